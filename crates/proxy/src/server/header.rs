//! The PROXY protocol header of connections to servers (`send-proxy`, `send-proxy-v2`).
//!
//! It is built for every request, before a server is chosen, once for all servers with the same options: an idle
//! connection may serve a request only if it began with the header that the request would send, so that no request is
//! sent under another client's address.

use std::sync::Arc;

use sluicegate_config::model::{self, SendProxy};
use sluicegate_wire::proxy_protocol::{Writer, tlv, write_v1};

use crate::engines::Engines;
use crate::errors::CompileError;
use crate::log::alias::View;
use crate::log::line::LineCode;
use crate::sample::{FetchScope, FormatMode};
use crate::stream::StreamContext;

/// The PROXY protocol headers of a backend's servers.
#[derive(Default)]
pub struct Headers {
    /// The code of each distinct header.
    codes: Vec<HeaderCode>,
    /// The index of each server's header in `codes`; empty if no server has one.
    of_server: Box<[Option<usize>]>,
}

struct HeaderCode {
    config: SendProxy,
    tlvs: Vec<(u8, LineCode)>,
}

/// The headers for one request, indexed by [`Headers::of_server`].
pub(super) type Made = Vec<Arc<[u8]>>;

impl Headers {
    /// Compiles the headers of a backend.
    pub fn compile(
        proxy: &model::Proxy,
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<Headers, Vec<CompileError>> {
        let mut headers = Headers::default();
        if proxy.servers.iter().all(|server| server.send_proxy.is_none()) {
            return Ok(headers);
        }
        let mut errors = Vec::new();
        let mut of_server = Vec::with_capacity(proxy.servers.len());
        for server in &proxy.servers {
            let Some(config) = &server.send_proxy else {
                of_server.push(None);
                continue;
            };
            let known = headers.codes.iter().position(|code| is_same(&code.config, config));
            of_server.push(Some(known.unwrap_or(headers.codes.len())));
            if known.is_none() {
                let tlvs = config.tlvs.iter().map(|(kind, format)| {
                    (*kind, LineCode::compile(format, FormatMode::Http, engines, scope, &mut errors))
                });
                let tlvs = tlvs.collect();
                headers.codes.push(HeaderCode { config: config.clone(), tlvs });
            }
        }
        headers.of_server = of_server.into();
        if errors.is_empty() { Ok(headers) } else { Err(errors) }
    }

    /// Returns the headers of a request.
    pub(super) fn make(&self, cx: &StreamContext) -> Made {
        self.codes.iter().map(|code| code.make(cx)).collect()
    }

    /// Returns the header that is sent to a server.
    pub(super) fn of<'a>(&self, server: usize, made: &'a Made) -> Option<&'a Arc<[u8]>> {
        made.get((*self.of_server.get(server)?)?)
    }
}

/// A type of TLV and the format of its value.
type TlvFormat = (u8, Arc<model::LogFormat>);

/// Returns whether two servers' options yield the same header. Formats are the same if they come from one
/// `default-server`.
fn is_same(one: &SendProxy, other: &SendProxy) -> bool {
    let flags = |options: &SendProxy| (options.v2, options.checksum, options.unique_id, options.authority);
    let same = |(one, other): (&TlvFormat, &TlvFormat)| one.0 == other.0 && Arc::ptr_eq(&one.1, &other.1);
    flags(one) == flags(other) && one.tlvs.len() == other.tlvs.len() && one.tlvs.iter().zip(&other.tlvs).all(same)
}

impl HeaderCode {
    /// Builds the header; a TLV that does not fit is left out.
    fn make(&self, cx: &StreamContext) -> Arc<[u8]> {
        let mut out = Vec::new();
        if !self.config.v2 {
            write_v1(cx.source, cx.destination, &mut out);
            return out.into();
        }
        let mut writer = Writer::new(cx.source, cx.destination);
        for (kind, format) in &self.tlvs {
            let mut value = Vec::new();
            format.render(&View::running(cx), &mut value);
            let _ = writer.tlv(*kind, &value);
        }
        if self.config.checksum {
            writer.checksum();
        }
        let authority = || cx.client.proxied()?.tlv(tlv::AUTHORITY);
        if self.config.authority
            && let Some(authority) = authority()
        {
            let _ = writer.tlv(tlv::AUTHORITY, &authority);
        }
        if self.config.unique_id
            && let Some(id) = cx.unique_id()
        {
            let _ = writer.tlv(tlv::UNIQUE_ID, id);
        }
        writer.finish(&mut out);
        out.into()
    }
}
