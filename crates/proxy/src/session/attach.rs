//! Sessions whose clients are servers (`attach-srv`): once the client has sent its preface and its settings, it expects
//! requests. The connection becomes an idle one of its server, and the session ends.
//!
//! A client that speaks no HTTP/2, or for which the server's pool has no room, is disconnected, as in HAProxy.

use std::future::poll_fn;
use std::task::Poll;

use sluicegate_config::model::HttpReuse;
use sluicegate_wire::http2;

use super::{Session, h2};
use crate::mux::h2::poll_greeting;
use crate::server::{Attached, attached_connections};
use crate::stream::Attaching;

/// Gives the session's connection to the server, or ends it.
pub(super) async fn serve(session: &mut Session, attaching: Attaching) {
    let worker = session.worker().clone();
    if !session.speaks_h2() {
        return;
    }
    let settings = h2::settings(&worker, session.frontend());
    let mut wire = http2::Connection::reversed_client(settings);
    if !greeted(session, &mut wire).await {
        return;
    }
    // The configuration may have changed meanwhile.
    let worker = worker.newer().unwrap_or(worker);
    let Some((backend, server)) = worker.running.server_named(&attaching.server) else { return };
    let has_room = worker.running.process.sessions.leaves(attached_connections());
    if backend.config.http_reuse == HttpReuse::Never || !has_room {
        return;
    }
    let Some(front) = session.front.take() else { return };
    let (socket, input) = front.into_parts();
    worker.http2.attach(server, Attached { socket, wire, input, name: attaching.name });
}

/// Waits for the client's settings; returns `false` if they do not come.
async fn greeted(session: &mut Session, wire: &mut http2::Connection) -> bool {
    let times = &session.frontend().config.timeouts;
    let limit = times.http_request.or(times.client);
    session.front.arm(limit.map(|limit| session.client.accepted + limit));
    poll_fn(|cx| {
        session.place.waits(cx.waker());
        let buffers = session.place.worker().buffers.clone();
        match poll_greeting(cx, wire, &mut session.front, &buffers) {
            Poll::Ready(greeted) => Poll::Ready(greeted),
            Poll::Pending if session.closing_time().is_some() => Poll::Ready(false),
            Poll::Pending => session.front.poll_alarm(cx).map(|()| false),
        }
    })
    .await
}
