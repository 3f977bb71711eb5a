//! Connections of HTTP/2 that are being opened, and the requests that wait for their streams.
//!
//! Under `http-reuse always` HAProxy attaches requests to a connection of `proto h2` before it is established. Here the
//! first request opens the connection, and those that arrive meanwhile wait for the outcome: a stream of the connection,
//! or the same error, which each of them retries by itself. If the first request ends before that (its client has left),
//! the others start again.
//!
//! **Limit.** As many requests wait for a connection as it may have streams before the server's settings are known. All
//! of it belongs to one worker's thread.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::proxied::ServerTlsError;

/// The reason why a connection failed; it decides whether, when and where it is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The peer or the network refused the connection, after the attempt had begun.
    Refused,
    /// The system refused immediately (unix sockets): a retry needs no pause.
    RefusedAtOnce,
    /// The TLS handshake failed.
    Tls(ServerTlsError),
    /// `timeout connect`.
    TimedOut,
    /// The server (`rhttp@`) has no connection to this side; another attempt would not help.
    Unattached,
    /// The connection could not be passed to the server (`sockpair@`); HAProxy does not try again.
    Internal,
    /// This machine has no descriptor, port or memory left; another attempt would not help.
    Resource,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection lends streams.
    Opened,
    Failed(ConnectError),
    /// The request that opened the connection has ended.
    Abandoned,
}

/// The properties by which a request recognises a connection that it can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    /// The server, by the address of its shared state.
    pub(super) server: usize,
    pub(super) label: Option<Arc<[u8]>>,
    pub(super) address: Option<SocketAddr>,
    pub(super) tls: bool,
}

#[derive(Debug)]
pub(super) struct Opening {
    sought: Sought,
    waiting: Cell<u32>,
    outcome: Cell<Option<Outcome>>,
    done: Notify,
}

impl Opening {
    /// Waits for the outcome.
    pub(super) async fn outcome(&self) -> Outcome {
        /// Counts a waiting request, also if it is cancelled.
        struct Waiting<'a>(&'a Cell<u32>);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        self.waiting.set(self.waiting.get() + 1);
        let _waiting = Waiting(&self.waiting);
        loop {
            let done = self.done.notified();
            match self.outcome.get() {
                Some(outcome) => return outcome,
                None => done.await,
            }
        }
    }
}

/// One worker's connections that are being opened.
#[derive(Debug, Default)]
pub(super) struct Openings(RefCell<Vec<Rc<Opening>>>);

/// The part of a request in the opening of a connection.
#[derive(Debug)]
pub(super) enum Part {
    /// It opens the connection.
    First(Opener),
    /// It waits.
    Other(Rc<Opening>),
}

impl Openings {
    /// Joins a connection that is being opened, or begins one. At most `most` requests wait for a connection.
    pub(super) fn join(self: &Rc<Self>, sought: Sought, most: u32) -> Part {
        let mut list = self.0.borrow_mut();
        let has_room = |opening: &&Rc<Opening>| opening.waiting.get() < most && opening.sought == sought;
        if let Some(opening) = list.iter().find(has_room) {
            return Part::Other(opening.clone());
        }
        let opening = Rc::new(Opening { sought, waiting: Cell::new(0), outcome: Cell::new(None), done: Notify::new() });
        list.push(opening.clone());
        Part::First(Opener { openings: self.clone(), opening })
    }
}

/// The request that opens a connection; dropped without an outcome, it abandons the others.
#[derive(Debug)]
pub(super) struct Opener {
    openings: Rc<Openings>,
    opening: Rc<Opening>,
}

impl Opener {
    /// Reports the outcome to all requests that wait.
    pub(super) fn finish(self, outcome: Outcome) {
        self.opening.outcome.set(Some(outcome));
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.openings.0.borrow_mut().retain(|known| !Rc::ptr_eq(known, &self.opening));
        let outcome = self.opening.outcome.get().unwrap_or(Outcome::Abandoned);
        self.opening.outcome.set(Some(outcome));
        self.opening.done.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sought(server: usize) -> Sought {
        Sought { server, label: None, address: None, tls: false }
    }

    #[track_caller]
    fn first(openings: &Rc<Openings>, most: u32) -> Opener {
        match openings.join(sought(1), most) {
            Part::First(opener) => opener,
            Part::Other(_) => panic!("a connection is being opened"),
        }
    }

    #[track_caller]
    fn other(openings: &Rc<Openings>, most: u32) -> Rc<Opening> {
        match openings.join(sought(1), most) {
            Part::First(_) => panic!("no connection is being opened"),
            Part::Other(opening) => opening,
        }
    }

    #[tokio::test]
    async fn all_hear_the_outcome() {
        let openings = Rc::new(Openings::default());
        for outcome in [Some(Outcome::Opened), Some(Outcome::Failed(ConnectError::Refused)), None] {
            let opener = first(&openings, 9);
            let opening = other(&openings, 9);
            assert!(matches!(openings.join(sought(2), 9), Part::First(_)), "of another server");
            let finishing = async {
                match outcome {
                    Some(outcome) => opener.finish(outcome),
                    None => drop(opener),
                }
            };
            // The third request asks for the outcome after the end.
            let (one, two, ()) = tokio::join!(opening.outcome(), opening.outcome(), finishing);
            let all = [one, two, opening.outcome().await];
            assert_eq!(all, [outcome.unwrap_or(Outcome::Abandoned); 3]);
        }
        assert!(openings.0.borrow().is_empty());
    }

    #[tokio::test]
    async fn a_connection_has_room_for_so_many_streams() {
        let openings = Rc::new(Openings::default());
        let opener = first(&openings, 1);
        let opening = other(&openings, 1);
        let mut waiting = Box::pin(opening.outcome());
        assert!(futures_poll(waiting.as_mut()).is_none());
        let second = first(&openings, 1);
        // A request that leaves makes room.
        drop(waiting);
        assert!(Rc::ptr_eq(&other(&openings, 1), &opening));
        drop((opener, second));
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
