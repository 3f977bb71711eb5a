//! One connection of a run, and the counters of its errors.

use std::collections::VecDeque;
use std::io::ErrorKind;

use super::NEVER;
use crate::load::plan::Load;
use crate::load::stats::{ConnectFault, RequestFault};
use crate::load::transport::Transport;
use rustix::io::Errno;

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The scheduled sending time.
    pub(super) intended: u64,
    /// The actual sending time.
    pub(super) sent: u64,
    pub(super) command: u16,
    /// The tag of its answer.
    pub(super) tag: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No socket is open; one is opened when a request needs it.
    Closed,
    Connecting,
    /// Connected, with an incomplete TLS handshake.
    Handshaking,
    /// Connected. No request is sent until `login_left` is 0.
    Open,
    /// Waits before the next attempt to connect.
    Paused,
    /// No further attempt to connect is made.
    GivenUp,
}

pub(super) struct Connection<S> {
    pub(super) transport: Option<Transport>,
    pub(super) state: State,
    /// The generation of the socket, so that a late event of an earlier socket is not attributed to this one.
    pub(super) generation: u32,
    pub(super) session: S,
    /// The received bytes of a response that is not complete yet.
    pub(super) partial: Vec<u8>,
    /// The bytes to send, of which the first `written` have been sent.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    pub(super) watches_write: bool,
    /// The error of a failed write. Earlier responses may still have to be read, and the end of the stream after them.
    pub(super) broken: Option<std::io::Error>,
    /// The requests without a response, in the order of sending, and so of their tags.
    pub(super) in_flight: VecDeque<Request>,
    /// The time of the last bytes from the peer.
    pub(super) heard: u64,
    /// The request for which the connection is being opened, with its scheduled sending time.
    pub(super) waiting: Option<Request>,
    pub(super) login_left: u32,
    /// The number of requests written on its present socket.
    pub(super) carried: u64,
    /// The number of requests that may still be sent on it.
    pub(super) left: u64,
    /// The start of the attempt to connect, then that of the TLS handshake.
    pub(super) connect_began: u64,
    /// Attempts since the last answer.
    pub(super) attempts: u32,
    pub(super) was_open: bool,
    pub(super) is_listed: bool,
    pub(super) deadline: u64,
    pub(super) entry: Option<u64>,
}

impl<S: Default> Connection<S> {
    pub(super) fn new(requests: Option<u64>) -> Connection<S> {
        Connection {
            transport: None,
            state: State::Closed,
            generation: 0,
            session: S::default(),
            partial: Vec::new(),
            out: Vec::new(),
            written: 0,
            watches_write: false,
            broken: None,
            in_flight: VecDeque::new(),
            heard: 0,
            waiting: None,
            login_left: 0,
            carried: 0,
            left: requests.unwrap_or(u64::MAX),
            connect_began: 0,
            attempts: 0,
            was_open: false,
            is_listed: false,
            deadline: NEVER,
            entry: None,
        }
    }
}

impl<S> Connection<S> {
    /// Removes the request with this tag.
    pub(super) fn take_request(&mut self, tag: u32) -> Option<Request> {
        if self.in_flight.front()?.tag == tag {
            return self.in_flight.pop_front();
        }
        let at = self.in_flight.binary_search_by_key(&tag, |request| request.tag).ok()?;
        self.in_flight.remove(at)
    }

    /// Returns whether another request can be sent on this connection now, as far as the load is concerned.
    pub(super) fn has_room(&self, load: &Load) -> bool {
        match self.state {
            _ if self.left == 0 || load.renew_after.is_some_and(|count| self.carried >= count) => false,
            State::Open => self.login_left == 0 && self.in_flight.len() < load.pipeline && self.broken.is_none(),
            State::Closed => self.waiting.is_none() && !load.keep_alive,
            _ => false,
        }
    }
}

/// Returns the token by which the poller identifies a connection's current socket.
pub(super) fn token(id: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | id as u64
}

pub(super) fn connect_fault(error: &std::io::Error) -> ConnectFault {
    match error.kind() {
        ErrorKind::ConnectionRefused => ConnectFault::Refused,
        ErrorKind::TimedOut => ConnectFault::Timeout,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => ConnectFault::Unreachable,
        ErrorKind::NotFound | ErrorKind::PermissionDenied => ConnectFault::Path,
        ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse => ConnectFault::Resources,
        _ => match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS) => ConnectFault::Resources,
            _ => ConnectFault::Other,
        },
    }
}

pub(super) fn request_fault(error: &std::io::Error) -> RequestFault {
    match error.kind() {
        _ if is_of_tls(error) => RequestFault::Tls,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => RequestFault::Reset,
        ErrorKind::TimedOut => RequestFault::Timeout,
        _ => RequestFault::Io,
    }
}

/// Returns whether TLS failed, and not the socket below.
pub(super) fn is_of_tls(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}
