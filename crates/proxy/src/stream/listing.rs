//! Lists of a worker's streams, from their cards: what `show sess` prints, and which of them are ended.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Mode, ServerAddress};

use super::card::{Card, Killer, Reached};
use crate::date::{Clock, append_date};
use crate::running::Running;
use crate::server::ServerShared;
use crate::worker::Worker;

/// The time after which a busy worker's streams are omitted.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The level of detail about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line.
    Line,
    /// Several lines.
    All,
}

/// The selected streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All streams.
    Every,
    /// The stream with this number.
    Id(u64),
    /// Streams of a server, by [`ServerShared::life`](crate::server::ServerShared::life); a stream waiting for it
    /// may still go to another.
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
    /// The streams by number.
    pub which: Which,
    /// The minimum age.
    pub min_age: Duration,
    /// The name of the frontend.
    pub frontend: Option<Arc<str>>,
    /// The name of the backend.
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

/// The distance between the positions of two configurations in a listing: positions of one worker's streams under
/// several configurations form a single range.
const SNAPSHOT: usize = 1 << 40;

/// The result of a job for some of a worker's streams.
#[derive(Debug, Default)]
pub struct Found {
    /// Their description.
    pub text: String,
    /// Their number.
    pub count: usize,
    /// The place at which to continue.
    pub next: Option<usize>,
}

impl Worker {
    /// Visits the streams of this worker under one configuration; the position `from` selects the configuration and the
    /// place in it. `visit` returns the position at which to continue there, or `None` at the end; the next
    /// configuration follows then.
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

    /// Describes the selected streams, starting at a position.
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

    /// Ends the selected streams with their connections, starting at a position.
    pub fn end_streams(self: &Rc<Self>, which: Which, killer: Killer, from: usize) -> Found {
        self.each_snapshot(from, |worker, place, found| worker.end_own(which, killer, place, found))
    }

    /// Records that the process ends this worker's streams, whose tasks are about to be dropped: without a cause they would
    /// be logged as if they had ended well.
    pub(crate) fn end_with_process(self: &Rc<Self>) {
        let mut from = Some(0);
        while let Some(place) = from {
            from = self.end_streams(Which::Every, Killer::Admin, place).next;
        }
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

/// Returns the names of a stream's frontend, backend and server.
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
        Mode::Log => "syslog",
        Mode::Spop => "spop",
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

/// Begins to end the streams of a server on all workers.
pub(crate) fn shut_sessions(running: &Arc<Running>, server: &ServerShared, killer: Killer) {
    let (running, which) = (running.clone(), Which::OfServer(server.life));
    // Changes of servers happen within a runtime; without one there are no streams either.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { end_streams(&running, which, killer).await });
    }
}

/// Ends streams on all workers; returns their number.
pub(crate) async fn end_streams(running: &Running, which: Which, killer: Killer) -> usize {
    let mut count = 0;
    for worker in 0..running.process.workers.len() {
        let mut next = Some(0);
        while let Some(from) = next {
            let job = running.process.on_worker(worker, move |worker| worker.end_streams(which, killer, from));
            let Ok(Some(found)) = tokio::time::timeout(PATIENCE, job).await else { break };
            count += found.count;
            next = found.next;
        }
    }
    count
}
