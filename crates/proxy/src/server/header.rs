//! The PROXY protocol header of connections to servers (`send-proxy`, `send-proxy-v2`).
//!
//! It is built for every request, before a server is chosen, once for all servers with the same options: an idle
//! connection may serve a request only if it began with the header that the request would send, so that no request is
//! sent under another client's address.

use std::sync::Arc;

use sluicegate_config::model::{self, SendProxy, SendProxyTls};
use sluicegate_tls::session::Facts;
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

    /// Returns the header of a connection to the server with this index that is made for no request.
    pub(crate) fn sent_without_stream(&self, cx: &StreamContext, server: usize) -> Option<Arc<[u8]>> {
        self.of(server, &self.make(cx)).cloned()
    }

    /// Returns whether no server gets one.
    pub(super) fn is_empty(&self) -> bool {
        self.codes.is_empty()
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
    let flags = |options: &SendProxy| {
        let SendProxy { v2, checksum, unique_id, authority, tls, tlvs: _ } = options;
        (*v2, *checksum, *unique_id, *authority, *tls)
    };
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
        let facts = cx.client.tls_facts();
        if let Some(alpn) = facts.and_then(|facts| facts.alpn.as_deref()) {
            let _ = writer.tlv(tlv::ALPN, alpn);
        }
        if self.config.authority {
            let told = cx.client.proxied().and_then(|proxied| proxied.tlv(tlv::AUTHORITY));
            let sni = || facts.and_then(|facts| facts.sni.as_deref()).map(str::as_bytes);
            if let Some(authority) = told.as_deref().or_else(sni) {
                let _ = writer.tlv(tlv::AUTHORITY, authority);
            }
        }
        if self.config.unique_id {
            // Without a format the ID is empty, and sent.
            let _ = writer.tlv(tlv::UNIQUE_ID, cx.unique_id().unwrap_or_default());
        }
        if self.config.tls.used {
            let _ = writer.tlv(tlv::SSL, &of_tls(&self.config.tls, facts));
        }
        writer.finish(&mut out);
        out.into()
    }
}

/// The client has used TLS.
const CLIENT_SSL: u8 = 1;
/// The client has shown a certificate in this connection.
const CLIENT_CERT_CONN: u8 = 2;
/// The client has shown a certificate in this connection or in the one whose session was resumed.
const CLIENT_CERT_SESS: u8 = 4;

/// Returns the value of `PP2_TYPE_SSL`: flags, the result of the verification, which is 0 without a certificate, and
/// TLVs in HAProxy's order. A value that does not fit its length is left out.
fn of_tls(config: &SendProxyTls, facts: Option<&Facts>) -> Vec<u8> {
    let Some(facts) = facts else { return vec![0; 5] };
    let (mut client, mut verify) = (CLIENT_SSL, 0);
    if let Some(peer) = &facts.peer {
        client |= CLIENT_CERT_SESS | if peer.sent_now { CLIENT_CERT_CONN } else { 0 };
        verify = facts.verdict.result;
    }
    let mut out = vec![client];
    out.extend_from_slice(&verify.to_be_bytes());
    let mut add = |kind: u8, value: &[u8]| {
        if let Ok(len) = u16::try_from(value.len()) {
            out.push(kind);
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(value);
        }
    };
    add(tlv::SSL_VERSION, facts.protocol().as_bytes());
    let name = || facts.peer.as_ref()?.leaf.subject().value("CN", 1);
    if let Some(name) = config.cn.then(name).flatten() {
        add(tlv::SSL_CN, &name);
    }
    let own = facts.pair.as_ref().map(|pair| pair.leaf());
    if let Some(key) = own.filter(|_| config.key).and_then(|own| own.key_text()) {
        add(tlv::SSL_KEY_ALG, key.as_bytes());
    }
    if let Some(signature) = own.filter(|_| config.signature).and_then(|own| own.signature_algorithm()) {
        add(tlv::SSL_SIG_ALG, signature.as_bytes());
    }
    if config.cipher {
        add(tlv::SSL_CIPHER, facts.cipher().as_bytes());
    }
    out
}
