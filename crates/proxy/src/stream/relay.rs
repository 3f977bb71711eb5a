//! A relay of plain bytes in both directions: TCP mode, and HTTP connections after an upgrade or CONNECT.
//!
//! The end of one direction is forwarded as a FIN and the other continues, until both have ended, a side breaks, or a
//! second timeout expires. A side can time out while it is waited for: for its bytes while it has not ended, or for
//! room for data sent to it; traffic in either direction keeps it alive. A side whose bytes did not arrive in time is
//! considered ended, as in HAProxy, so the other one receives a FIN and may still respond; that first timeout is
//! logged. A side that accepts no data ends the relay. With `option independent-streams` of its proxy, data sent to a
//! side does not keep it alive: only its own bytes do. `timeout tunnel` replaces both sides' timeouts, and a side that
//! was sent a FIN and has not sent its own is subject to `client-fin` or `server-fin`.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_config::model::Proxy;
use sluicegate_transport::clock;
use sluicegate_wire::http::Framing;

use super::filter::Carries;
use super::flow::Flow;
use super::silence::Silence;
use super::{Active, Endings, Overrides};
use crate::mux::{Back, FlowError, Front, Moved, Wait};

/// The timeouts of a relay, the frontend's for the client's side and the backend's for the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelayTimeouts {
    client: Option<Duration>,
    client_fin: Option<Duration>,
    server: Option<Duration>,
    server_fin: Option<Duration>,
    tunnel: Option<Duration>,
    /// `option independent-streams`, of each side.
    client_independent: bool,
    server_independent: bool,
}

impl RelayTimeouts {
    pub(crate) fn new(frontend: &Proxy, backend: &Proxy, set: &Overrides) -> RelayTimeouts {
        let independent = |proxy: &Proxy| proxy.options.independent_streams;
        let (client_independent, server_independent) = (independent(frontend), independent(backend));
        let (frontend, backend) = (&frontend.timeouts, &backend.timeouts);
        RelayTimeouts {
            client_independent,
            server_independent,
            client: set.client.or(frontend.client),
            client_fin: frontend.client_fin,
            server: set.server.or(backend.server),
            server_fin: backend.server_fin,
            tunnel: set.tunnel.or(backend.tunnel),
        }
    }
}

/// Both directions between a client and a server.
pub(crate) struct Relay<'a, 'f> {
    front: &'a mut Front<'f>,
    stream: &'a mut Active,
    back: &'a mut Back,
    timeouts: RelayTimeouts,
    up: Flow,
    down: Flow,
    up_ended: bool,
    down_ended: bool,
    /// The event for which each direction waits.
    up_waits: Wait,
    down_waits: Wait,
    client_active: Instant,
    server_active: Instant,
    /// The time at which a side itself last sent bytes.
    client_sent: Instant,
    server_sent: Instant,
    /// Whether a direction ends once what its source has sent so far is written: that side was late before the relay began.
    up_ends: bool,
    down_ends: bool,
    /// The termination state of the first timeout, if there was one.
    late: Option<Endings>,
}

pub(super) const CLIENT_LATE: Endings = Endings { who: b'c', phase: b'D' };
pub(super) const SERVER_LATE: Endings = Endings { who: b's', phase: b'D' };

impl<'a, 'f> Relay<'a, 'f> {
    /// Returns a relay between two ends that were switched to tunnels; `up` may hold data already, and `carries` says what
    /// the server's bytes are to filters.
    pub(crate) fn new(
        front: &'a mut Front<'f>,
        stream: &'a mut Active,
        back: &'a mut Back,
        up: Flow,
        carries: Carries,
        timeouts: RelayTimeouts,
    ) -> Relay<'a, 'f> {
        let now = clock::now();
        let mut down = Flow::new(Framing::UntilClose);
        down.filter(stream.relay_filters(true, carries));
        Relay {
            front,
            stream,
            back,
            timeouts,
            up,
            down,
            up_ended: false,
            down_ended: false,
            up_waits: Wait::Source,
            down_waits: Wait::Source,
            client_active: now,
            server_active: now,
            client_sent: now,
            server_sent: now,
            up_ends: false,
            down_ends: false,
            late: None,
        }
    }

    /// Returns the relay of two sides whose silences go on.
    pub(crate) fn after(mut self, client: &Silence, server: &Silence) -> Relay<'a, 'f> {
        (self.client_active, self.client_sent) = (client.since(), client.since());
        (self.server_active, self.server_sent) = (server.since(), server.since());
        (self.up_ends, self.down_ends) = (client.late().is_some(), server.late().is_some());
        self.late = client.late().or(server.late());
        self
    }

    /// Runs the relay to its end; returns the termination state.
    pub(crate) async fn run(mut self) -> Endings {
        let ending = poll_fn(|cx| self.poll(cx)).await;
        self.late.unwrap_or(ending)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Endings> {
        let ending = |who, phase| Poll::Ready(Endings { who, phase });
        let (mut up, mut down) = (Moved::default(), Moved::default());
        let mut result = Poll::Pending;
        if !self.up_ended {
            match self.up.poll_scripted(cx, self.front, self.back, self.stream, &mut up) {
                Ok(Wait::Done) => self.end_up(),
                Ok(Wait::Source) if self.up_ends => self.end_up(),
                Ok(waiting) => self.up_waits = waiting,
                Err(FlowError::Sink) => result = ending(b'S', b'D'),
                Err(FlowError::Filter) => result = ending(b'P', b'D'),
                Err(_) => result = ending(b'C', b'D'),
            }
        }
        if !self.down_ended && result.is_pending() {
            match self.down.poll_scripted(cx, self.back, self.front, self.stream, &mut down) {
                Ok(Wait::Done) => self.end_down(),
                Ok(Wait::Source) if self.down_ends => self.end_down(),
                Ok(waiting) => self.down_waits = waiting,
                Err(FlowError::Sink) => result = ending(b'C', b'D'),
                Err(FlowError::Filter) => result = ending(b'P', b'D'),
                Err(_) => result = ending(b'S', b'D'),
            }
        }
        self.stream.count(up.body, down.body);
        self.stream.count_sent(down.written);
        if result.is_ready() {
            return result;
        }
        if self.up_ended && self.down_ended {
            return ending(b'-', b'-');
        }
        let client_moved = up.read + down.written > 0;
        let server_moved = up.written + down.read > 0;
        if client_moved || server_moved {
            let now = clock::now();
            if client_moved {
                self.client_active = now;
            }
            if server_moved {
                self.server_active = now;
            }
            if up.read > 0 {
                self.client_sent = now;
            }
            if down.read > 0 {
                self.server_sent = now;
            }
        }
        self.poll_timeouts(cx)
    }

    fn end_up(&mut self) {
        self.up_ended = true;
        self.back.end_side();
    }

    fn end_down(&mut self) {
        self.down_ended = true;
        self.front.end_side();
    }

    fn poll_timeouts(&mut self, cx: &mut Context<'_>) -> Poll<Endings> {
        let times = &self.timeouts;
        let both_open = !self.up_ended && !self.down_ended;
        let last = self.client_active.max(self.server_active);
        let since = |active: Instant, own: Option<Instant>| match own {
            Some(own) => own,
            None if both_open && times.tunnel.is_some() => last,
            None => active,
        };
        let deadline =
            |waited: bool, sent_fin: bool, fin: Option<Duration>, plain: Option<Duration>, since: Instant| {
                let timeout = fin.filter(|_| sent_fin).or(times.tunnel).or(plain);
                timeout.filter(|_| waited).map(|timeout| since + timeout)
            };
        // Neither side is late while a filter holds data back.
        let (up_blocked, down_blocked) = (self.up_waits == Wait::Sink, self.down_waits == Wait::Sink);
        let client_waited = !self.up_ended && self.up_waits != Wait::Filter || down_blocked;
        let server_waited = !self.down_ended && self.down_waits != Wait::Filter || up_blocked;
        // Once a side has ended, only room for data sent to it is awaited.
        let client_own = Some(self.client_sent).filter(|_| times.client_independent && !self.up_ended);
        let server_own = Some(self.server_sent).filter(|_| times.server_independent && !self.down_ended);
        let client_since = since(self.client_active, client_own);
        let server_since = since(self.server_active, server_own);
        let client = deadline(client_waited, self.down_ended, times.client_fin, times.client, client_since);
        let server = deadline(server_waited, self.up_ended, times.server_fin, times.server, server_since);
        let first = match (client, server) {
            (Some(client), Some(server)) => Some(client.min(server)),
            (one, other) => one.or(other),
        };
        self.front.arm(first);
        std::task::ready!(self.front.poll_alarm(cx));
        let of_client = client.is_some() && client == first;
        let late = *self.late.get_or_insert(if of_client { CLIENT_LATE } else { SERVER_LATE });
        match of_client {
            true if !down_blocked || client_own.is_some() => self.end_up(),
            false if !up_blocked || server_own.is_some() => self.end_down(),
            _ => return Poll::Ready(late),
        }
        if self.up_ended && self.down_ended { Poll::Ready(late) } else { self.poll_timeouts(cx) }
    }
}
