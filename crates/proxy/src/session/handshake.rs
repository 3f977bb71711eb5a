//! What precedes a client's first byte: a PROXY protocol header (`accept-proxy`, `expect-proxy`), the TLS handshake.
//!
//! As in HAProxy both are subject to `timeout client-hs`, or `timeout client`, from the acceptance on; a connection
//! without a header is closed, with a log line and without being counted as a session. A header that arrives in pieces
//! is awaited, where HAProxy closes the connection.

use std::future::poll_fn;
use std::task::Poll;

use sluicegate_wire::proxy_protocol::{Addresses, Header, read};

use super::Session;
use crate::proxied::{HandshakeError, Proxied};

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
            true
        }
        Err(error) => {
            refuse(session, error);
            false
        }
    }
}

async fn header(session: &mut Session) -> Result<Header, HandshakeError> {
    let times = &session.frontend().config.timeouts;
    let limit = times.client_handshake.or(times.client);
    session.front.arm(limit.map(|limit| session.client.accepted + limit));
    let size = session.worker().buffers.size();
    poll_fn(|cx| {
        loop {
            if let Some(header) = read(session.front.input(), size)? {
                return Poll::Ready(Ok(header));
            }
            let silent = session.front.input().is_empty();
            match session.front.poll_fill(cx, &session.place.worker().buffers) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(Ok(_)) if silent => return Poll::Ready(Err(HandshakeError::Empty)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(HandshakeError::Truncated)),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(HandshakeError::Abort)),
                Poll::Pending => return session.front.poll_alarm(cx).map(|()| Err(HandshakeError::Timeout)),
            }
        }
    })
    .await
}

fn refuse(session: &mut Session, error: HandshakeError) {
    let mut stream = session.new_stream();
    let cx = &mut stream.cx;
    cx.making_unique_id.set(true);
    cx.log.no_request = true;
    cx.log.status = 0;
    cx.refused = Some(error);
    stream.end(b'P', b'R');
    stream.worker().running.logger.refused(&stream.cx, &stream.frontend().log, error);
    drop(stream);
}
