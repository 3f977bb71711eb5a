//! What the stats socket may learn of a stream while it runs (`show sess`), and how it ends one (`shutdown session`).
//!
//! A stream belongs to its worker and is borrowed by its own future all the time, so nobody else may look into it. It
//! keeps a [`Card`] up to date instead, a few plain cells in the worker's list of cards. The control thread sends a
//! worker a [`Job`], which reads [`BATCH`] cards at most, so that even a list of very many streams holds a worker for
//! microseconds only, and no more text exists than the client has room for.
//!
//! Cost: a few stores per stream; cards keep their places and are used again with the memory of their streams.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Mode, ProxyId, ServerAddress};

use crate::date::{Clock, append_date};
use crate::running::Running;
use crate::session::Session;
use crate::worker::Worker;

/// Cards that one job looks at.
pub const BATCH: usize = 64;

/// Something that the control thread has a worker do between two events. It must be short.
pub type Job = Box<dyn FnOnce(&Rc<Worker>) + Send>;

const NONE: u32 = u32::MAX;

/// How far a stream's server side is, by HAProxy's numbers of a stream connector's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// No server is looked for yet.
    Initial = 0,
    /// It waits in a queue.
    Queued = 2,
    /// A connection is being made.
    Connecting = 5,
    /// There is a connection.
    Established = 8,
}

/// Who ends a stream from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killer {
    /// An administrator, or a script.
    Admin,
    /// Its server went down (`on-marked-down shutdown-sessions`).
    Down,
    /// A server came back for which its own, a backup, stood in (`on-marked-up shutdown-backup-sessions`).
    Up,
}

impl Killer {
    /// The first letter of the termination state.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Killer::Admin => b'K',
            Killer::Down => b'D',
            Killer::Up => b'U',
        }
    }
}

/// A stream as others may see it.
#[derive(Debug)]
pub struct Card {
    id: Cell<u64>,
    source: Cell<Option<SocketAddr>>,
    destination: Cell<Option<SocketAddr>>,
    begun: Cell<Instant>,
    fd: Cell<i32>,
    frontend: Cell<u32>,
    backend: Cell<u32>,
    server: Cell<u32>,
    side: Cell<Reached>,
    retries: Cell<u32>,
    /// The place of its session among the worker's.
    session: Cell<u32>,
    killed: Cell<Option<Killer>>,
    /// There is a stream that it tells of.
    used: Cell<bool>,
    /// Its place in the worker's list of cards.
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

    /// Makes it that of a stream of `session`.
    pub(crate) fn begin(&self, id: u64, session: &Session) {
        self.id.set(id);
        self.source.set(session.peer);
        self.destination.set(session.local);
        self.begun.set(session.last_active);
        self.fd.set(session.socket.fd().as_raw_fd());
        self.frontend.set(session.frontend().id.0);
        self.backend.set(NONE);
        self.server.set(NONE);
        self.side.set(Reached::Initial);
        self.retries.set(0);
        self.session.set(session.place());
        self.killed.set(None);
        self.used.set(true);
    }

    /// The stream that it told of has ended.
    pub(crate) fn end(&self) {
        self.used.set(false);
    }

    pub(crate) fn set_backend(&self, backend: ProxyId) {
        self.backend.set(backend.0);
    }

    /// Where its way to a server stands: the server by its place in the backend, once it is chosen.
    pub(crate) fn set_side(&self, side: Reached, server: Option<usize>, retries: u32) {
        self.side.set(side);
        self.server.set(server.map_or(NONE, |index| index as u32));
        self.retries.set(retries);
    }

    /// Who ended it, if somebody did.
    pub(crate) fn killed(&self) -> Option<Killer> {
        self.killed.get()
    }
}

/// The cards of a worker's streams, and of the memory that waits for the next ones; places are used again.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    places: RefCell<Vec<Option<Rc<Card>>>>,
    free: RefCell<Vec<u32>>,
}

impl Cards {
    /// A card that tells of nothing yet.
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

    /// Visits [`BATCH`] places from `from` on; gives where to go on, or `None` at the end.
    fn visit(&self, from: usize, mut each: impl FnMut(&Card)) -> Option<usize> {
        let places = self.places.borrow();
        let until = (from + BATCH).min(places.len());
        let cards = places[from.min(until)..until].iter().flatten();
        cards.filter(|card| card.used.get()).for_each(|card| each(card));
        (until < places.len()).then_some(until)
    }
}

/// How much of a stream is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line.
    Line,
    /// Several lines.
    All,
}

/// Which streams are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every one.
    Every,
    /// The one of this number.
    Id(u64),
    /// Those that a server serves, by [`ServerShared::life`](crate::server::ServerShared::life); who waits for it may yet go
    /// to another.
    OfServer(u64),
}

impl Which {
    fn takes(self, card: &Card, running: &Running) -> bool {
        match self {
            Which::Every => true,
            Which::Id(id) => card.id.get() == id,
            Which::OfServer(life) => {
                if matches!(card.side.get(), Reached::Initial | Reached::Queued) {
                    return false;
                }
                let backend = running.proxies.get(card.backend.get() as usize);
                let server = backend.and_then(|backend| backend.servers.get(card.server.get() as usize));
                server.is_some_and(|server| server.shared.life == life)
            }
        }
    }
}

/// Streams as `show sess` selects them.
#[derive(Clone, Debug)]
pub struct Selection {
    /// By their number.
    pub which: Which,
    /// By their age.
    pub min_age: Duration,
    /// By the name of their frontend.
    pub frontend: Option<Arc<str>>,
    /// By the name of their backend.
    pub backend: Option<Arc<str>>,
}

impl Selection {
    fn takes(&self, card: &Card, running: &Running, now: Instant) -> bool {
        let named = |id: u32, wanted: &Option<Arc<str>>| {
            let name = || running.proxies.get(id as usize).map(|proxy| &proxy.config.name);
            wanted.as_ref().is_none_or(|wanted| name() == Some(wanted))
        };
        self.which.takes(card, running)
            && now.saturating_duration_since(card.begun.get()) >= self.min_age
            && named(card.frontend.get(), &self.frontend)
            && named(card.backend.get(), &self.backend)
    }
}

/// Places of one worker's streams under one configuration, as commands count on through several.
const SNAPSHOT: usize = 1 << 40;

/// What a job found among some of a worker's streams.
#[derive(Debug, Default)]
pub struct Found {
    /// What it tells of them.
    pub text: String,
    /// How many there were.
    pub count: usize,
    /// Where to go on.
    pub next: Option<usize>,
}

impl Worker {
    /// Goes through the streams of this worker, under one configuration after the other, from one place on: `visit`
    /// sees those of one worker from there, and gives where to go on there.
    fn each_snapshot(
        self: &Rc<Self>,
        from: usize,
        visit: impl FnOnce(&Rc<Worker>, usize, &mut Found) -> Option<usize>,
    ) -> Found {
        let mut found = Found::default();
        let (snapshot, place) = (from / SNAPSHOT, from % SNAPSHOT);
        let all = self.all();
        let Some(worker) = all.get(snapshot) else { return found };
        found.next = match visit(worker, place, &mut found) {
            Some(next) => Some(snapshot * SNAPSHOT + next),
            None => (snapshot + 1 < all.len()).then_some((snapshot + 1) * SNAPSHOT),
        };
        found
    }

    /// Tells of the streams that are meant, from one place on.
    pub fn describe_streams(self: &Rc<Self>, selection: &Selection, detail: Detail, from: usize) -> Found {
        self.each_snapshot(from, |worker, place, found| worker.describe_own(selection, detail, place, found))
    }

    fn describe_own(&self, selection: &Selection, detail: Detail, from: usize, found: &mut Found) -> Option<usize> {
        let now = Instant::now();
        self.cards.visit(from, |card| {
            if selection.takes(card, &self.running, now) {
                found.count += 1;
                match detail {
                    Detail::Line => line(card, &self.running, self.index, now, &mut found.text),
                    Detail::All => all(card, self, now, &mut found.text),
                }
            }
        })
    }

    /// Ends the streams that are meant, with their connections, from one place on.
    pub fn end_streams(self: &Rc<Self>, which: Which, killer: Killer, from: usize) -> Found {
        self.each_snapshot(from, |worker, place, found| worker.end_own(which, killer, place, found))
    }

    fn end_own(&self, which: Which, killer: Killer, from: usize, found: &mut Found) -> Option<usize> {
        let mut sessions = Vec::new();
        let next = self.cards.visit(from, |card| {
            if which.takes(card, &self.running) && card.killed.get().is_none() {
                card.killed.set(Some(killer));
                found.count += 1;
                sessions.push(card.session.get());
            }
        });
        sessions.into_iter().for_each(|session| self.kill_session(session));
        next
    }
}

fn protocol(address: Option<SocketAddr>) -> &'static str {
    match address {
        Some(SocketAddr::V4(_)) => "tcpv4",
        Some(SocketAddr::V6(_)) => "tcpv6",
        None => "unix_stream",
    }
}

fn address(address: Option<SocketAddr>) -> String {
    match address {
        // HAProxy brackets no address of version 6.
        Some(address) => format!("{}:{}", address.ip(), address.port()),
        None => "unix:1".to_owned(),
    }
}

/// Its frontend, backend and server by name.
fn names<'r>(card: &Card, running: &'r Running) -> (&'r str, &'r str, &'r str) {
    let proxy = |index: u32| running.proxies.get(index as usize);
    let backend = proxy(card.backend.get());
    let server = backend.and_then(|backend| backend.servers.get(card.server.get() as usize));
    (
        proxy(card.frontend.get()).map_or("<NONE>", |proxy| &proxy.config.name),
        backend.map_or("<NONE>", |proxy| &proxy.config.name),
        server.map_or("<none>", |server| server.name()),
    )
}

fn line(card: &Card, running: &Running, worker: usize, now: Instant, out: &mut String) {
    let (frontend, backend, server) = names(card, running);
    // Writing to a string can't fail.
    let _ = writeln!(
        out,
        "0x{:x}: proto={} src={} fe={frontend} be={backend} srv={server} ts={:02x} age={}s scf=[8,0h,fd={}] \
         scb=[{},0h] rc={}",
        card.id.get(),
        protocol(card.source.get()),
        address(card.source.get()),
        1u64.checked_shl(worker as u32).unwrap_or(0),
        now.saturating_duration_since(card.begun.get()).as_secs(),
        card.fd.get(),
        card.side.get() as u32,
        card.retries.get(),
    );
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Tcp => "tcp",
        Mode::Http => "http",
    }
}

fn all(card: &Card, worker: &Worker, now: Instant, out: &mut String) {
    let running = &worker.running;
    let (frontend, backend, server) = names(card, running);
    let proxy = |index: u32| running.proxies.get(index as usize);
    let mut date = Vec::new();
    append_date(worker.wall_clock(card.begun.get()), Clock::LocalMilliseconds, &mut date);
    let _ = write!(
        out,
        "0x{:x}: [{}] id={} proto={} source={}\n  conn_retries={} age={}s\n",
        card.id.get(),
        String::from_utf8_lossy(&date),
        card.id.get(),
        protocol(card.source.get()),
        address(card.source.get()),
        card.retries.get(),
        now.saturating_duration_since(card.begun.get()).as_secs(),
    );
    let of = |index| proxy(index).map_or((-1, "-"), |proxy| (i64::from(proxy.config.uid), mode(proxy.config.mode)));
    let (id, kind) = of(card.frontend.get());
    let _ = writeln!(
        out,
        "  frontend={frontend} (id={id} mode={kind}), listener=? (id=1) addr={}",
        address(card.destination.get())
    );
    let (id, kind) = of(card.backend.get());
    let _ = writeln!(out, "  backend={backend} (id={id} mode={kind})");
    let run = proxy(card.backend.get()).and_then(|backend| backend.servers.get(card.server.get() as usize));
    let id = run.map_or(-1, |server| i64::from(server.config.sid));
    let _ = write!(out, "  server={server} (id={id})");
    if let Some(server) = run {
        let place = match (&server.config.address, server.socket_addr(card.destination.get())) {
            (_, Some(place)) => address(Some(place)),
            (ServerAddress::Unix(path), _) => format!("unix:{}", path.display()),
            _ => "?".to_owned(),
        };
        let _ = write!(out, " addr={place}");
    }
    let _ = writeln!(
        out,
        "\n  scf state=EST fd={}\n  scb state={}",
        card.fd.get(),
        match card.side.get() {
            Reached::Initial => "INI",
            Reached::Queued => "QUE",
            Reached::Connecting => "CON",
            Reached::Established => "EST",
        }
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_visited_in_batches() {
        let cards = Cards::default();
        let all: Vec<_> = (0..BATCH + 3).map(|_| cards.add()).collect();
        all.iter().for_each(|card| card.used.set(true));
        // One that tells of nothing is not seen, whether it keeps its place or not.
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
