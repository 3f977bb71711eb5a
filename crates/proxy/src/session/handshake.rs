//! What precedes a client's first byte: a PROXY protocol header (`accept-proxy`, `expect-proxy`) or one of NetScaler
//! (`accept-netscaler-cip`), the TLS handshake.
//!
//! As in HAProxy both are subject to `timeout client-hs`, or `timeout client`, from the acceptance on; a connection
//! without a header is closed, with a log line and without being counted as a session. A header that arrives in pieces
//! is awaited, where HAProxy closes the connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustls::server::ClientHello;
use sluicegate_tls::failure::Code;
use sluicegate_tls::hello::{Hello, asks_for_status};
use sluicegate_tls::listener::Listener as TlsListener;
use sluicegate_tls::pair::{Pair, any_staples};
use sluicegate_tls::policy::Version;
use sluicegate_tls::session::NO_SUITE;
use sluicegate_tls::verify::Failure;
use sluicegate_tls::version;
use sluicegate_transport::{self as transport, Tls};
use sluicegate_wire::netscaler;
use sluicegate_wire::proxy_protocol::{Addresses, Header, HeaderError, addresses_of_refused, read};

use super::Session;
use crate::counters::Counters;
use crate::log::{Level, Source};
use crate::proxied::{HandshakeError, Proxied, TlsFailure, count_handshake};
use crate::stream::ClientTls;
use crate::tls::{Side, forge};

/// Reads the PROXY protocol header; returns `false` if there is none, which is logged.
pub(super) async fn receive(session: &mut Session) -> bool {
    match header(session).await {
        Ok(Header { len, addresses, tlvs, .. }) => {
            session.front.skip(len);
            let own = session.client.ends();
            let ends = match addresses {
                Addresses::Inet { source, destination } => (Some(source), Some(destination)),
                _ => own,
            };
            session.client.set_ends(ends, Some(Proxied { peer: own.0, local: own.1, tlvs: Some(tlvs) }));
            session.client.end_handshakes();
            true
        }
        Err(error) => {
            // Of a header that is refused for its TLVs, the line shows the client that it tells.
            if error == HandshakeError::Header(HeaderError::Invalid)
                && let Some(Addresses::Inet { source, destination }) = addresses_of_refused(session.front.input())
            {
                session.client.set_ends((Some(source), Some(destination)), None);
            }
            refuse(session, Some(error));
            false
        }
    }
}

/// Reads the header of NetScaler's Client IP insertion protocol; returns `false` if there is none, which is logged.
pub(super) async fn receive_cip(session: &mut Session) -> bool {
    let magic = session.listener().bind().cip.unwrap_or_default();
    let failures = Failures {
        empty: HandshakeError::CipEmpty,
        truncated: HandshakeError::CipTruncated,
        abort: HandshakeError::CipAbort,
        timeout: HandshakeError::CipTimeout,
    };
    match until_read(session, failures, |input| Ok(netscaler::read(input, magic)?)).await {
        Ok((len, addresses)) => {
            session.front.skip(len);
            let own = session.client.ends();
            let ends = match addresses {
                Addresses::Inet { source, destination } => (Some(source), Some(destination)),
                Addresses::Own => own,
            };
            session.client.set_ends(ends, Some(Proxied { peer: own.0, local: own.1, tlvs: None }));
            session.client.end_handshakes();
            true
        }
        Err(error) => {
            refuse(session, Some(error));
            false
        }
    }
}

async fn header(session: &mut Session) -> Result<Header, HandshakeError> {
    let size = session.worker().buffers.size();
    let failures = Failures {
        empty: HandshakeError::Empty,
        truncated: HandshakeError::Truncated,
        abort: HandshakeError::Abort,
        timeout: HandshakeError::Timeout,
    };
    until_read(session, failures, |input| Ok(read(input, size)?)).await
}

/// The errors of a header that does not arrive.
struct Failures {
    empty: HandshakeError,
    truncated: HandshakeError,
    abort: HandshakeError,
    timeout: HandshakeError,
}

/// Receives until `parse` has read the header at the start of the connection, or has failed.
async fn until_read<T>(
    session: &mut Session,
    failures: Failures,
    parse: impl Fn(&[u8]) -> Result<Option<T>, HandshakeError>,
) -> Result<T, HandshakeError> {
    let times = &session.frontend().config.timeouts;
    let limit = times.client_handshake.or(times.client);
    session.front.arm(limit.map(|limit| session.client.accepted + limit));
    poll_fn(|cx| {
        loop {
            if let Some(header) = parse(session.front.input())? {
                return Poll::Ready(Ok(header));
            }
            let silent = session.front.input().is_empty();
            match session.front.poll_fill(cx, &session.place.worker().buffers) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(Ok(_)) if silent => return Poll::Ready(Err(failures.empty)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(failures.truncated)),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(failures.abort)),
                Poll::Pending => return session.front.poll_alarm(cx).map(|()| Err(failures.timeout)),
            }
        }
    })
    .await
}

/// Logs a connection that ends before its first byte is examined; without an error, `tcp-request session` has rejected
/// it.
pub(super) fn refuse(session: &mut Session, error: Option<HandshakeError>) {
    let mut stream = session.new_stream();
    let cx = &mut stream.cx;
    cx.making_unique_id.set(true);
    cx.log.no_request = true;
    cx.log.status = 0;
    cx.refused = error;
    stream.end(b'P', b'R');
    stream.worker().running.logger.refused(&stream.cx, &stream.frontend().log, error);
    drop(stream);
}

/// The largest hello that is examined for fetches.
const HELLO_MAX: usize = 64 * 1024;

/// Performs the TLS handshake of a `bind … ssl`; returns `false` if it fails, which is counted and logged.
pub(super) async fn secure(session: &mut Session, listener: &Arc<TlsListener>) -> bool {
    let process = session.worker().running.process.clone();
    let mut tls = ClientTls { place: process.tls.begin(), ..ClientTls::default() };
    let result = match tls.place {
        Some(_) => {
            process.tls.accepted(Instant::now());
            shake(session, listener, &mut tls).await
        }
        None => Err(TlsFailure::TooMany),
    };
    let resumed = tls.facts.as_ref().is_some_and(|facts| facts.resumed);
    let worker = session.worker().index;
    session.listener().count(worker, |counters| count_handshake(counters, result.as_ref().map(|()| resumed)));
    match result {
        Ok(()) => {
            process.tls.done(Side::Front, resumed, Instant::now());
            session.client.set_tls(tls);
            session.client.end_handshakes();
            session.trace(Source::Ssl, (&["sslc_hndshk"], Level::State), || "successful handshake".to_owned());
            true
        }
        Err(failure) => {
            let text = || format!("handshake error : {failure}");
            session.trace(Source::Ssl, (&["sslc_err", "sslc_hndshk"], Level::Error), text);
            tls.error = failure.code();
            session.client.set_tls(tls);
            refuse(session, Some(failure.into()));
            false
        }
    }
}

async fn shake(session: &mut Session, listener: &TlsListener, tls: &mut ClientTls) -> Result<(), TlsFailure> {
    let times = &session.frontend().config.timeouts;
    let limit = times.client_handshake.or(times.client);
    session.front.arm(limit.map(|limit| session.client.accepted + limit));
    let settings = listener.settings();
    let capture = settings.capture;
    let kept = if capture > 0 || any_staples() { HELLO_MAX } else { 0 };
    session.front.start_tls(kept, &session.place.worker().buffers);
    let (mut pair, mut refused, mut making) = (None, None, None);
    let result = poll_fn(|cx| {
        let Some(stream) = session.front.tls() else { return Poll::Ready(Err(TlsFailure::Broken)) };
        let mut choose = |cx: &mut Context<'_>, hello: &ClientHello<'_>| {
            tls.sni = hello.server_name().map(Box::from);
            Poll::Ready(match ready!(forge::poll_choose(cx, listener, hello, &mut making)) {
                Ok(choice) => {
                    pair = Some(choice.pair);
                    Ok(choice.config)
                }
                Err(refusal) => {
                    refused = Some(refusal.code());
                    Err(refusal.alert())
                }
            })
        };
        match stream.poll_handshake(cx, &mut choose) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(failure(stream, &error, refused, tls))),
            Poll::Pending => session.front.poll_alarm(cx).map(|()| Err(TlsFailure::Timeout)),
        }
    })
    .await;
    if let Some(stream) = session.front.tls() {
        stream.set_record_sizes(settings.records);
        let hello = stream.take_hello();
        tls.hello = Some(&hello).filter(|_| capture > 0).and_then(|hello| Hello::parse(hello, capture));
        if result.is_ok() {
            let staples = pair.as_ref().and_then(|pair: &Arc<Pair>| pair.staples()).filter(|_| asks_for_status(&hello));
            tls.facts = stream.take_facts(pair, None);
            tls.sni = None;
            // A resumed session has no certificate.
            let is_full = tls.facts.as_ref().is_some_and(|facts| !facts.resumed);
            if let Some(sent) = staples.filter(|_| is_full) {
                let worker = session.worker().index;
                session.listener().count(worker, |Counters { tls, .. }| match sent {
                    true => tls.stapled.add(1),
                    false => tls.not_stapled.add(1),
                });
            }
        } else {
            let best = settings.policy.max;
            let offered = best.unwrap_or(Version::Tls13);
            tls.reached = stream
                .reached()
                .map_or((version::name(offered), NO_SUITE), |reached| (reached.protocol(best), reached.cipher()));
        }
    }
    result
}

/// Returns HAProxy's kind of an error, and notes the verdict on the client.
fn failure(
    stream: &mut Tls,
    error: &transport::HandshakeError,
    refused: Option<Code>,
    tls: &mut ClientTls,
) -> TlsFailure {
    let outcome = stream.take_outcome();
    if let Some(outcome) = &outcome {
        tls.verdict = outcome.verdict;
        tls.refused = outcome.leaf.clone().filter(|_| outcome.failure.is_some());
    }
    match (outcome.and_then(|outcome| outcome.failure), refused) {
        (Some(Failure::Authority(_)), _) => TlsFailure::Authority,
        (Some(Failure::Certificate(_)), _) => TlsFailure::Certificate,
        (_, Some(code)) => TlsFailure::Handshake(code.number()),
        (_, None) => error.into(),
    }
}
