//! How long a side of a TCP stream has been silent.
//!
//! HAProxy measures a timeout from the last activity of its side, whatever the stream waits for meanwhile: content rules,
//! a queue, a connection. So the time begins with the stream for the client and with the connection for the server, and
//! the relay continues it.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::{BufferPool, clock};

use super::{Card, Endings, Reached};
use crate::mux::Front;

/// The silence of a side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// The time of the last activity.
    since: Instant,
    limit: Option<Duration>,
    /// The termination state of a silence that lasted too long: the side counts as ended.
    late: Option<Endings>,
}

/// The reason why a client's stream ends before it has a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The connection is broken.
    Broken,
    /// The client has ended its side.
    Ended,
    /// It was silent for too long.
    Late,
}

impl Silence {
    /// Returns a silence that begins now.
    pub(crate) fn new(limit: Option<Duration>) -> Silence {
        Silence { since: clock::now(), limit, late: None }
    }

    /// Records activity.
    pub(crate) fn interrupt(&mut self) {
        self.since = clock::now();
    }

    /// Returns the time of the last activity.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the time at which it has lasted too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.limit.filter(|_| self.late.is_none()).map(|limit| self.since + limit)
    }

    /// Returns the deadline of a client, of which nothing is expected once it has ended or while there is no room.
    pub(crate) fn deadline_of(&self, front: &Front<'_>, pool: &BufferPool) -> Option<Instant> {
        self.deadline().filter(|_| !front.has_ended() && !front.is_full(pool))
    }

    /// Records that it has lasted too long, and the termination state.
    pub(crate) fn end(&mut self, late: Endings) {
        self.late = Some(late);
    }

    /// Returns the termination state of a silence that lasted too long.
    pub(crate) fn late(&self) -> Option<Endings> {
        self.late
    }

    /// Polls the client of a stream that waits for its server. `had_ended` is whether it had ended its side before, `abort`
    /// is `option abortonclose`. As in HAProxy, a client that has sent nothing is not waited for once it ends or is late;
    /// while its connection is made, that takes `abort` if it is late or had ended before. In all other cases the server
    /// gets what it has sent.
    pub(crate) fn poll_left(
        &mut self,
        cx: &mut Context<'_>,
        front: &mut Front<'_>,
        pool: &BufferPool,
        card: &Card,
        (had_ended, abort): (bool, bool),
    ) -> Poll<Left> {
        let known = front.input().len();
        let gone = front.poll_gone(cx, pool, abort);
        if front.input().len() > known {
            self.interrupt();
        }
        let is_connecting = card.side() == Reached::Connecting;
        let has_sent = !front.input().is_empty();
        if gone.is_ready() {
            return Poll::Ready(if front.has_ended() { Left::Ended } else { Left::Broken });
        }
        if front.has_ended() {
            let stays = has_sent || is_connecting && had_ended;
            return if stays { Poll::Pending } else { Poll::Ready(Left::Ended) };
        }
        // As in 2.6 and 3.2, a client is not late while its data waits for a connection.
        if is_connecting && has_sent {
            return Poll::Pending;
        }
        front.arm(self.deadline_of(front, pool));
        ready!(front.poll_alarm(cx));
        self.end(Endings { who: b'c', phase: if is_connecting { b'C' } else { b'Q' } });
        let stays = has_sent || is_connecting && !abort;
        if stays { Poll::Pending } else { Poll::Ready(Left::Late) }
    }
}
