//! The beginning of HTTP/2 on a connection whose roles are reversed: until the peer's settings have come, it belongs to
//! neither a session nor a server.

use std::task::{Context, Poll, ready};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::Message;
use sluicegate_wire::http2::{self, Event, Progress};

use crate::mux::h1;

/// Reads and writes until the peer has sent its settings, and no further; ready with whether it has. Bytes after the
/// settings stay in the connection's buffer, and what could not be written in the output.
pub(crate) fn poll_greeting(
    cx: &mut Context<'_>,
    wire: &mut http2::Connection,
    connection: &mut h1::Front,
    pool: &BufferPool,
) -> Poll<bool> {
    let mut message = Message::new();
    wire.begin_turn();
    loop {
        let greeted = loop {
            match wire.receive(connection.input(), &mut message) {
                Ok((count, progress)) => {
                    connection.skip(count);
                    match progress {
                        Progress::Event(Event::Settings) => break Ok(true),
                        Progress::Event(_) => {}
                        Progress::Idle => break Ok(false),
                        // So early only a peer that floods is not read from.
                        Progress::Blocked(_) => break Err(()),
                    }
                }
                Err(_) => break Err(()),
            }
        };
        while !wire.output().is_empty() {
            match connection.poll_write(cx, wire.output()) {
                Poll::Ready(Ok(count)) => wire.wrote(count),
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => break,
            }
        }
        match greeted {
            Ok(true) => return Poll::Ready(true),
            Ok(false) => {}
            Err(()) => return Poll::Ready(false),
        }
        match ready!(connection.poll_fill(cx, pool)) {
            Ok(count) if count > 0 => {}
            _ => return Poll::Ready(false),
        }
    }
}
