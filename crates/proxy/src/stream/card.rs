//! The descriptor of a running stream for the stats socket (`show sess`), and the means to end it (`shutdown session`).
//!
//! A stream belongs to its worker and is borrowed by its own future all the time, so it cannot be examined from
//! outside. Instead it keeps a [`Card`] up to date, a few plain cells in the worker's list of cards. The control thread
//! sends a worker a [`Job`](crate::desks::Job), which reads at most [`BATCH`] cards, so that even a list of very many
//! streams occupies a worker only for microseconds, and no more text is made than the client has room for.
//!
//! Cost: a few stores per stream; cards keep their places and are reused with the memory of their streams.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use sluicegate_config::model::ProxyId;

/// The number of cards that one job visits.
pub const BATCH: usize = 64;

const NONE: u32 = u32::MAX;

/// The state of a stream's server side, with HAProxy's numbers of a stream connector's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// No server is being chosen yet.
    Initial = 0,
    /// The stream waits in a queue.
    Queued = 2,
    /// A connection is being made.
    Connecting = 5,
    /// The connection is open.
    Established = 8,
}

/// The external cause of a stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killer {
    /// An administrator, a script, or the end of the process.
    Admin,
    /// Its server went down (`on-marked-down shutdown-sessions`).
    Down,
    /// A server came back up that this backup server had replaced (`on-marked-up shutdown-backup-sessions`).
    Up,
}

impl Killer {
    /// Returns the first letter of the termination state.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Killer::Admin => b'K',
            Killer::Down => b'D',
            Killer::Up => b'U',
        }
    }
}

/// The state of a stream that other parts of the worker can read.
#[derive(Debug)]
pub struct Card {
    pub(super) id: Cell<u64>,
    pub(super) source: Cell<Option<SocketAddr>>,
    pub(super) destination: Cell<Option<SocketAddr>>,
    pub(super) begun: Cell<Instant>,
    pub(super) fd: Cell<i32>,
    pub(super) frontend: Cell<u32>,
    pub(super) backend: Cell<u32>,
    pub(super) server: Cell<u32>,
    pub(super) side: Cell<Reached>,
    pub(super) retries: Cell<u32>,
    /// The index of its session among the worker's sessions.
    pub(super) session: Cell<u32>,
    pub(super) killed: Cell<Option<Killer>>,
    /// Whether the card describes a stream.
    used: Cell<bool>,
    /// The index of the card in the worker's list of cards.
    index: Cell<u32>,
}

impl Card {
    fn new(index: u32) -> Rc<Card> {
        Rc::new(Card {
            id: Cell::new(0),
            source: Cell::new(None),
            destination: Cell::new(None),
            begun: Cell::new(Instant::now()),
            fd: Cell::new(-1),
            frontend: Cell::new(NONE),
            backend: Cell::new(NONE),
            server: Cell::new(NONE),
            side: Cell::new(Reached::Initial),
            retries: Cell::new(0),
            session: Cell::new(NONE),
            killed: Cell::new(None),
            used: Cell::new(false),
            index: Cell::new(index),
        })
    }

    /// Assigns the card to another stream: its number, its session and its frontend, the client's two addresses, the
    /// descriptor of the client's connection, and when it began.
    pub(crate) fn begin(
        &self,
        (id, session, frontend): (u64, u32, ProxyId),
        (source, destination): (Option<SocketAddr>, Option<SocketAddr>),
        fd: i32,
        begun: Instant,
    ) {
        self.id.set(id);
        self.source.set(source);
        self.destination.set(destination);
        self.begun.set(begun);
        self.fd.set(fd);
        self.frontend.set(frontend.0);
        self.backend.set(NONE);
        self.server.set(NONE);
        self.side.set(Reached::Initial);
        self.retries.set(0);
        self.session.set(session);
        self.killed.set(None);
        self.used.set(true);
    }

    /// Records that the stream has ended.
    pub(crate) fn end(&self) {
        self.used.set(false);
    }

    pub(crate) fn set_backend(&self, backend: ProxyId) {
        self.backend.set(backend.0);
    }

    /// Records the state of the server side: the server by its index in the backend, once it is chosen.
    pub(crate) fn set_side(&self, side: Reached, server: Option<usize>, retries: u32) {
        self.side.set(side);
        self.server.set(server.map_or(NONE, |index| index as u32));
        self.retries.set(retries);
    }

    /// Returns the state of the server side.
    pub(crate) fn side(&self) -> Reached {
        self.side.get()
    }

    /// Returns the external cause of its end, if any.
    pub(crate) fn killed(&self) -> Option<Killer> {
        self.killed.get()
    }
}

/// The cards of a worker's streams, including unused ones that later streams take over; indices are reused.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    places: RefCell<Vec<Option<Rc<Card>>>>,
    free: RefCell<Vec<u32>>,
}

impl Cards {
    /// Returns a new card without a stream.
    pub(crate) fn add(&self) -> Rc<Card> {
        let mut places = self.places.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            places.push(None);
            places.len() as u32 - 1
        });
        let card = Card::new(index);
        places[index as usize] = Some(card.clone());
        card
    }

    pub(crate) fn remove(&self, card: &Card) {
        let index = card.index.replace(NONE);
        if index != NONE {
            self.places.borrow_mut()[index as usize] = None;
            self.free.borrow_mut().push(index);
        }
    }

    /// Visits [`BATCH`] indices starting with `from`; returns the index at which to continue, or `None` at the end.
    pub(super) fn visit(&self, from: usize, mut each: impl FnMut(&Card)) -> Option<usize> {
        let places = self.places.borrow();
        let until = (from + BATCH).min(places.len());
        let cards = places[from.min(until)..until].iter().flatten();
        cards.filter(|card| card.used.get()).for_each(|card| each(card));
        (until < places.len()).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_visited_in_batches() {
        let cards = Cards::default();
        let all: Vec<_> = (0..BATCH + 3).map(|_| cards.add()).collect();
        all.iter().for_each(|card| card.used.set(true));
        // A card without a stream is not visited, whether it keeps its place or not.
        all[2].end();
        cards.remove(&all[1]);
        cards.remove(&all[1]);
        let mut seen = 0;
        let next = cards.visit(0, |_| seen += 1);
        assert_eq!((next, seen), (Some(BATCH), BATCH - 2));
        assert_eq!(cards.visit(BATCH, |_| seen += 1), None);
        assert_eq!(seen, BATCH + 1);
        assert_eq!(cards.visit(usize::MAX - BATCH, |_| panic!("nothing there")), None);
        assert_eq!(cards.add().index.get(), 1);
    }
}
