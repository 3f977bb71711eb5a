//! The PROXY protocol options of a `server` line.

use std::sync::Arc;

use super::ServerSettings;
use crate::model::{LogFormat, SendProxy, SendProxyTls};
use crate::section::proxy::ProxyReader;
use crate::unit;
use crate::word::Line;

/// The prefix of the option with a TLV's type.
pub(super) const TLV: &str = "set-proxy-v2-tlv-fmt";

/// The settings so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// `send-proxy`.
    pub(super) v1: bool,
    /// `send-proxy-v2`, which wins.
    pub(super) v2: bool,
    checksum: bool,
    unique_id: bool,
    authority: bool,
    /// `send-proxy-v2-ssl` and options about TLS.
    pub(super) tls: SendProxyTls,
    tlvs: Vec<(u8, Arc<LogFormat>)>,
}

impl Settings {
    /// Reads `proxy-v2-options`.
    pub(super) fn options(&mut self, text: &str) -> Result<(), String> {
        for option in text.split(',') {
            match option {
                "crc32c" => self.checksum = true,
                "unique-id" => self.unique_id = true,
                "authority" => self.authority = true,
                "ssl" => self.tls.used = true,
                "cert-cn" => (self.tls.used, self.tls.cn) = (true, true),
                "cert-key" => (self.tls.used, self.tls.key) = (true, true),
                "cert-sig" => (self.tls.used, self.tls.signature) = (true, true),
                "ssl-cipher" => (self.tls.used, self.tls.cipher) = (true, true),
                _ => return Err(format!("'{option}' : proxy v2 option not implemented")),
            }
        }
        Ok(())
    }

    /// Returns the header, if there is to be one.
    pub(super) fn finish(self) -> Option<SendProxy> {
        let Settings { v1, v2, checksum, unique_id, authority, tls, tlvs } = self;
        (v1 || v2).then_some(SendProxy { v2, checksum, unique_id, authority, tls, tlvs })
    }
}

/// Reads `set-proxy-v2-tlv-fmt(ID) FORMAT` at word `index`.
pub(super) fn tlv(reader: &mut ProxyReader<'_>, line: &Line, index: usize, settings: &mut ServerSettings) {
    let word = line.text(index);
    let id = word.strip_prefix(TLV).and_then(|rest| rest.strip_prefix('(')?.strip_suffix(')'));
    let Some(id) = id.and_then(unit::any_base).and_then(|number| u8::try_from(number).ok()) else {
        let error = reader.diagnostics.error(line.at(index), format!("'{word}' does not name a type of TLV"));
        error.hint(format!("write '{TLV}(ID)', where ID is 0 to 255 or 0x00 to 0xff"));
        return;
    };
    if index + 1 >= line.len() {
        // A TLV without a value, as in HAProxy.
        settings.send_proxy.tlvs.push((id, Arc::default()));
        return;
    }
    if let Some(format) = reader.server_format(line, index + 1) {
        settings.send_proxy.tlvs.push((id, Arc::new(format)));
    }
}
