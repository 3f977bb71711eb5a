//! TLS of the connections on both sides (HAProxy configuration manual 7.3.4).
//!
//! What a handshake has found is kept with its connection; nothing is asked of the TLS library later. Certificates are
//! printed by libcrypto when they are fetched. Fetches of a clear connection have no sample, but for those that say
//! whether it is TLS.

use sluicegate_tls::failure::Code;
use sluicegate_tls::hello::{Hello, List, without_grease};
use sluicegate_tls::keylog::Secret;
use sluicegate_tls::session::Facts;
use sluicegate_tls::verify::Verdict;
use sluicegate_tls::x509::{Certificate, Name};

use super::args::Args;
use super::code::{Compiled, read, read_with};
use crate::proxied::ServerTlsError;
use crate::sample::value::Value;
use crate::stream::{ClientTls, Side, StreamContext};

/// The holder of a certificate.
#[derive(Clone, Copy)]
pub(super) enum Holder {
    /// `ssl_c_*`: the client.
    Client,
    /// `ssl_f_*`: this side, towards the client.
    Front,
    /// `ssl_s_*`: the server.
    Server,
}

/// A name in a certificate, or in its chain.
#[derive(Clone, Copy)]
pub(super) enum NameOf {
    /// Whose it is.
    Subject,
    /// Who signed it.
    Issuer,
    /// Whose the root of its chain is.
    Root,
}

fn facts(cx: &StreamContext, side: Side) -> Option<&Facts> {
    match side {
        Side::Client => cx.client.tls_facts(),
        Side::Server => cx.server_tls.as_deref(),
    }
}

fn certificate_of(cx: &StreamContext, holder: Holder) -> Option<&Certificate> {
    match holder {
        Holder::Client => cx.client.tls()?.certificate(),
        Holder::Front => Some(facts(cx, Side::Client)?.pair.as_ref()?.leaf()),
        Holder::Server => Some(&facts(cx, Side::Server)?.peer.as_ref()?.leaf),
    }
}

/// Returns bytes as a sample.
pub(super) fn binary<'a>(bytes: Vec<u8>) -> Value<'a> {
    Value::Bin(bytes.into())
}

/// Returns text as a sample.
pub(super) fn string<'a>(text: Vec<u8>) -> Value<'a> {
    Value::Str(text.into())
}

/// Returns a fetch of whether the connection of a side is TLS; also false without a connection.
pub(super) fn is_tls(side: Side) -> Compiled {
    read_with(side, |side, cx| match side {
        Side::Client => Some(Value::Bool(cx.client.tls().is_some())),
        Side::Server if refused(cx).is_some() => Some(Value::Bool(true)),
        Side::Server => Some(Value::Bool(cx.sockets.is_there(Side::Server) && cx.server_tls.is_some())),
    })
}

/// Returns a fetch of whether a session was resumed; also false on a clear connection.
pub(super) fn is_resumed(side: Side) -> Compiled {
    read_with(side, |side, cx| Some(Value::Bool(facts(cx, *side).is_some_and(|facts| facts.resumed))))
}

/// Returns a fetch of one of the facts of a handshake.
pub(super) fn fact(side: Side, of: for<'a> fn(&'a Facts) -> Option<Value<'a>>) -> Compiled {
    read_with((side, of), |(side, of), cx| of(facts(cx, *side)?))
}

/// Returns a fetch of a name that a handshake with a client has found, also one that failed.
pub(super) fn agreed(of: for<'a> fn(&'a ClientTls) -> &'static str) -> Compiled {
    read_with(of, |of, cx| Some(Value::text(of(cx.client.tls()?).as_bytes())))
}

/// Returns the error of a handshake with a server.
fn refused(cx: &StreamContext) -> Option<ServerTlsError> {
    cx.log.server_error.filter(|error| error.protocol().is_some())
}

/// Returns a fetch of a name that a handshake with a server has found, also one that failed.
pub(super) fn agreed_with_server(
    of: fn(&Facts) -> &'static str,
    of_refused: fn(ServerTlsError) -> Option<&'static str>,
) -> Compiled {
    read_with((of, of_refused), |(of, of_refused), cx| {
        let name = match refused(cx) {
            Some(error) => of_refused(error)?,
            None => of(facts(cx, Side::Server)?),
        };
        Some(Value::text(name.as_bytes()))
    })
}

/// Returns a fetch of a certificate.
pub(super) fn certificate(holder: Holder, of: for<'a> fn(&'a Certificate) -> Option<Value<'a>>) -> Compiled {
    read_with((holder, of), |(holder, of), cx| of(certificate_of(cx, *holder)?))
}

/// Returns a fetch of the certificates that the peer sent, in DER and without anything between them. As for OpenSSL the
/// chain of a client begins above its own certificate, and that of a server with it.
pub(super) fn chain(holder: Holder) -> Compiled {
    read_with(holder, |holder, cx| {
        let of_server = matches!(holder, Holder::Server);
        let peer = facts(cx, if of_server { Side::Server } else { Side::Client })?.peer.as_ref()?;
        let mut der = if of_server { peer.leaf.to_der() } else { Vec::new() };
        peer.sent.iter().for_each(|certificate| der.extend_from_slice(&certificate.to_der()));
        (!der.is_empty()).then(|| binary(der))
    })
}

/// Returns a fetch of a distinguished name or of an entry of it.
pub(super) fn name(args: &Args<'_>, holder: Holder, of: NameOf) -> Compiled {
    let entry = args.str(0)?.unwrap_or_default().to_owned();
    let occurrence = args.int(1)?.unwrap_or(0);
    let rfc2253 = match args.str(2)? {
        None | Some("") => false,
        Some("rfc2253") => true,
        Some(other) => return Err(format!("only rfc2253 or a zero-length string is valid, not '{other}'")),
    };
    read_with((holder, of, entry, occurrence, rfc2253), |(holder, of, entry, occurrence, rfc2253), cx| {
        let print = |name: Name<'_>| match (entry.is_empty(), rfc2253) {
            (false, _) => name.value(entry, if *occurrence == 0 { 1 } else { *occurrence }),
            (true, true) => name.rfc2253(),
            (true, false) => Some(name.one_line()),
        };
        let text = match of {
            NameOf::Subject => print(certificate_of(cx, *holder)?.subject()),
            NameOf::Issuer => print(certificate_of(cx, *holder)?.issuer()),
            NameOf::Root => print(facts(cx, Side::Client)?.peer.as_ref()?.root.as_ref()?.subject()),
        };
        Some(string(text?))
    })
}

/// Returns a fetch of the name that the client asked for; also that of a handshake that failed.
pub(super) fn sni() -> Compiled {
    read(|cx| {
        let tls = cx.client.tls()?;
        let name = tls.facts.as_ref().and_then(|facts| facts.sni.as_deref()).or(tls.sni.as_deref());
        Some(Value::text(name?.as_bytes()))
    })
}

pub(super) fn has_sni() -> Compiled {
    read(|cx| {
        let Some(tls) = cx.client.tls() else { return Some(Value::Bool(false)) };
        Some(Value::Bool(tls.sni.is_some() || tls.facts.as_ref().is_some_and(|facts| facts.sni.is_some())))
    })
}

pub(super) fn has_early() -> Compiled {
    read(|cx| cx.client.tls().map(|_| Value::Bool(false)))
}

pub(super) fn has_certificate() -> Compiled {
    read(|cx| {
        let facts = cx.client.tls_facts()?;
        Some(Value::Bool(facts.peer.as_ref().is_some_and(|peer| peer.sent_now)))
    })
}

pub(super) fn certificate_used() -> Compiled {
    read(|cx| Some(Value::Bool(cx.client.tls()?.certificate().is_some())))
}

/// Returns a fetch of the result of the verification of the client; none if the handshake has failed.
pub(super) fn verified() -> Compiled {
    fact(Side::Client, |facts| Some(Value::Int(facts.verdict.result.into())))
}

/// Returns a fetch of an error of the client's certificates.
pub(super) fn verdict(of: fn(&Verdict) -> i64) -> Compiled {
    read_with(of, |of, cx| {
        let tls = cx.client.tls()?;
        Some(Value::Int(of(tls.facts.as_ref().map_or(&tls.verdict, |facts| &facts.verdict))))
    })
}

/// Returns a fetch of OpenSSL's number of the error that ended a handshake.
pub(super) fn error(side: Side) -> Compiled {
    read_with(side, |side, cx| Some(Value::Int(error_of(cx, *side)?.into())))
}

/// Returns a fetch of the text of that error; none without an error.
pub(super) fn error_text(side: Side) -> Compiled {
    read_with(side, |side, cx| {
        let code = Code::from_number(error_of(cx, *side)?)?;
        Some(string(code.to_string().into_bytes()))
    })
}

fn error_of(cx: &StreamContext, side: Side) -> Option<u32> {
    match side {
        Side::Client => Some(cx.client.tls()?.error),
        Side::Server => match cx.log.server_error {
            Some(error) => Some(error.failure.code()),
            None => cx.server_tls.as_ref().map(|_| 0),
        },
    }
}

/// Returns a fetch of the identifier of a session.
pub(super) fn session_id(side: Side) -> Compiled {
    fact(side, |facts| Some(binary(facts.session_id()?.to_vec())))
}

/// Returns a fetch of a random of the handshake.
pub(super) fn random(side: Side, of_client: bool) -> Compiled {
    match of_client {
        true => fact(side, |facts| Some(binary(facts.client_random()?.to_vec()))),
        false => fact(side, |facts| Some(binary(facts.server_random()?.to_vec()))),
    }
}

/// Returns a fetch of the master secret.
pub(super) fn master(side: Side) -> Compiled {
    fact(side, |facts| {
        let secret = facts.secrets.as_ref()?.get(Secret::Master);
        (!secret.is_empty()).then(|| binary(secret.to_vec()))
    })
}

/// Returns a fetch of a secret in hexadecimal digits.
pub(super) fn secret(side: Side, secret: Secret) -> Compiled {
    read_with((side, secret), |(side, secret), cx| {
        Some(string(facts(cx, *side)?.secrets.as_ref()?.hex(*secret)?.into_bytes()))
    })
}

fn hello(cx: &StreamContext) -> Option<&Hello> {
    cx.client.tls()?.hello.as_ref()
}

/// Returns the argument that asks for a list without the values that clients invent.
fn real(args: &Args<'_>) -> Result<bool, String> {
    Ok(args.int(0)?.unwrap_or(0) != 0)
}

/// Returns a fetch of a list of the client's hello.
pub(super) fn list(args: &Args<'_>, list: List) -> Compiled {
    read_with((list, real(args)?), |(list, real), cx| {
        let bytes = hello(cx)?.list(*list);
        Some(if *real { binary(without_grease(bytes)) } else { Value::Bin(bytes.into()) })
    })
}

pub(super) fn cipher_digits(args: &Args<'_>) -> Compiled {
    read_with(real(args)?, |real, cx| {
        let bytes = hello(cx)?.list(List::Ciphers);
        let bytes = if *real { without_grease(bytes) } else { bytes.to_vec() };
        let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        Some(string(digits.into_bytes()))
    })
}

pub(super) fn cipher_names(args: &Args<'_>) -> Compiled {
    read_with(real(args)?, |real, cx| Some(string(hello(cx)?.cipher_names(*real).into_bytes())))
}

pub(super) fn cipher_hash() -> Compiled {
    read(|cx| Some(Value::Int(hello(cx)?.ciphers_hash as i64)))
}

pub(super) fn hello_version() -> Compiled {
    read(|cx| Some(Value::Int(hello(cx)?.version.into())))
}
