//! The link of a replica to its master.
//!
//! One thread, `store-link`, follows whatever master it is ordered to: it connects, makes Redis's handshake
//! (`handshake`), receives the data set if its own is not a part of the master's history (`payload`), and runs the commands
//! of the stream (`stream`), on all cores where their keys allow that. When a link that worked is lost, it tries again at
//! once, and then each second.
//!
//! Who orders something ([`Link::order`]) does not wait for it: a connection in use is shut down, and the thread takes the
//! order over once all commands that it has read are carried out and counted. So the offset always belongs to the data: the
//! thread holds the [border](Link::border) from the first command that it begins until all of them are counted, and whoever
//! needs both, such as a snapshot, takes it.
//!
//! Until the order to follow no master was taken over, clients cannot write: their changes belong to the history that
//! begins with it.

mod conn;
mod handshake;
mod payload;
mod state;
mod stream;
mod transactions;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use sluicegate_tls::connector::Connector;

use crate::config::ServerOptions;
use crate::levels::{NOTICE, WARNING};
use crate::oom_score;
use crate::save::Log;
use crate::{Inner, Store};
use conn::Conn;
use handshake::Answer;
use state::Phase;
pub(crate) use state::{Connection, HandOver, Link, Master, Terms};
use stream::Stream;
pub use stream::fuzz_stream;

/// The time between two attempts.
const AGAIN: Duration = Duration::from_secs(1);
/// The time between two looks at whether the server listens, or a file is still being loaded.
const LOOK_EACH: Duration = Duration::from_millis(20);

/// The server of a replica, as its link sees it.
pub(crate) struct Surroundings {
    /// The parameters.
    pub(crate) options: Arc<ServerOptions>,
    /// The port that the server listens on; 0: none.
    pub(crate) port: u16,
    /// Whether the port is not known yet.
    pub(crate) awaits_ports: bool,
    /// What encrypts the link, if it is to be.
    pub(crate) tls: Option<Arc<Connector>>,
    /// Makes the connection to the process that this one replaces, if that is the master.
    pub(crate) predecessor: Option<Arc<Predecessor>>,
    /// Writes a line to the log: level, from 0 for debug to 3 for warning, and text.
    pub(crate) log: Log,
}

/// The store of the process that this one replaces.
pub(crate) struct Predecessor {
    connect: Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>,
    attempts: AtomicU32,
}

impl Predecessor {
    /// Returns the store to which `connect` makes connections.
    pub(crate) fn new(connect: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static) -> Predecessor {
        Predecessor { connect: Box::new(connect), attempts: AtomicU32::new(0) }
    }

    /// Returns how often a connection was asked for.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        (self.connect)()
    }
}

/// Returns the server as it is now; [`None`] once it is gone.
pub(crate) type Look = Box<dyn Fn() -> Option<Surroundings> + Send + Sync>;

/// Why a link has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Gone {
    /// Another order has come, or the end.
    #[error("the link was stopped")]
    Stopped,
    /// The master has closed the connection.
    #[error("connection lost")]
    Closed,
    /// Nothing has come for too long.
    #[error("Connection timed out")]
    Timeout,
    /// What came is no reply and no command.
    #[error("Protocol error")]
    Protocol,
    /// A thread that runs commands has failed.
    #[error("a fault in the program")]
    Broken,
    /// It is told already.
    #[error("refused")]
    Told,
    /// Any other error of the connection or of a file.
    #[error("{}", crate::files::reason(.0))]
    Io(#[from] io::Error),
}

impl Inner {
    /// Orders the store to follow a master, or none. Returns the order's number.
    pub(crate) fn follow(self: &Arc<Inner>, master: Option<Master>, look: Look) -> io::Result<u64> {
        let (number, needs_thread) = self.link.order(master);
        if self.link.master().is_some() {
            self.memory.set_follows(true);
        }
        self.show_role();
        if needs_thread {
            let (link, inner) = (self.link.clone(), Arc::downgrade(self));
            let thread = std::thread::Builder::new().name("store-link".into());
            thread.spawn(move || run(&link, &inner, &look)).inspect_err(|_| {
                self.link.has_no_thread();
                self.memory.set_follows(false);
                self.show_role();
            })?;
        }
        Ok(number)
    }

    /// Makes the store look like what it is to its clients: a master, or a replica with a link that works or does not.
    pub(crate) fn show_role(&self) {
        self.link.with_role(|is_replica, is_up, terms| {
            let is_stale = is_replica && !is_up && !terms.serves_stale;
            self.loading.set_replica(is_replica && terms.is_read_only, is_stale);
            let is_unlimited = is_replica && terms.ignores_maxmemory;
            let limit = if is_unlimited { 0 } else { terms.maxmemory };
            Store(self.this.upgrade()?).limit_memory(limit, terms.policy);
            if let Err(error) = self.oom_score.adjust(terms.oom, is_replica) {
                self.saver.log(WARNING, &oom_score::failure(&error));
            }
            Some(())
        });
    }
}

/// Follows masters as ordered, until the server is gone.
fn run(link: &Arc<Link>, inner: &Weak<Inner>, look: &Look) {
    let mut taken = 0;
    let mut was_replica = false;
    while let Some((number, master)) = link.await_order(taken) {
        let Some(inner) = inner.upgrade() else { return };
        if number != taken {
            take_over(&inner, was_replica, master.is_some());
            was_replica = master.is_some();
            taken = number;
            link.take(number);
            inner.show_role();
            link.tell_taken(number);
        }
        let Some(master) = master else { continue };
        // The master is told the port, by which Sentinel finds this server.
        let since = Instant::now();
        let server = loop {
            let Some(server) = look() else { return };
            let is_known = !server.awaits_ports && (server.port != 0 || since.elapsed() >= AGAIN);
            if is_known || server.predecessor.is_some() || link.check(number).is_err() {
                break server;
            }
            std::thread::sleep(LOOK_EACH);
        };
        let attempt = Attempt { inner: &inner, link, order: number, master: &master, server };
        let goes_on = catch_unwind(AssertUnwindSafe(|| attempt.run())).unwrap_or_else(|_| {
            link.need_full();
            link.disconnect(number);
            inner.show_role();
            attempt.log(WARNING, "The link to the master has failed: a fault in the program. A full sync follows.");
            false
        });
        if goes_on && link.check(number).is_ok() {
            attempt.log(NOTICE, &format!("Reconnecting to MASTER {}:{}", master.host, master.port));
            continue;
        }
        drop(attempt);
        drop(inner);
        link.rest(number, AGAIN);
    }
}

/// Changes over from one role to another. As a master, no command of a client is under way at that moment; as a replica,
/// clients do not write, and what the master has sent is counted.
fn take_over(inner: &Arc<Inner>, was_replica: bool, is_replica: bool) {
    if was_replica == is_replica {
        return;
    }
    let _border = inner.link.border();
    let (closed, ticket) = inner.close_for_cut();
    match is_replica {
        true => inner.stop_leading(),
        false => inner.start_leading(),
    }
    inner.open_after_cut(closed, ticket);
    if !is_replica {
        // What has expired meanwhile is removed by this master.
        inner.memory.set_follows(false);
        inner.keyspace.own_expiring.clear();
    }
}

/// One attempt to follow a master, up to the loss of the connection.
struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    link: &'a Link,
    order: u64,
    master: &'a Master,
    server: Surroundings,
}

impl Attempt<'_> {
    fn log(&self, level: u8, text: &str) {
        (self.server.log)(level, text);
    }

    /// Follows the master until the link ends. Returns whether it can go on at once: it has worked, and nothing but the
    /// connection was lost.
    fn run(&self) -> bool {
        // What the store begins with comes first.
        while self.inner.loading.is_on() {
            if self.link.check(self.order).is_err() {
                return false;
            }
            std::thread::sleep(LOOK_EACH);
        }
        let ended = self.follow();
        let has_worked = self.link.disconnect(self.order);
        self.inner.show_role();
        if let Err(gone) = ended {
            self.report(&gone);
        }
        has_worked && !self.link.needs_full()
    }

    /// Logs why the link has ended, unless that is told already.
    fn report(&self, gone: &Gone) {
        match gone {
            Gone::Stopped | Gone::Told => {}
            gone => self.log(WARNING, &format!("Error condition on socket for SYNC: {gone}")),
        }
    }

    fn follow(&self) -> Result<(), Gone> {
        self.link.set_phase(self.order, Phase::Connecting);
        let mut conn = match &self.server.predecessor {
            Some(predecessor) => self.connect_to_predecessor(predecessor)?,
            None => self.connect()?,
        };
        self.link.set_phase(self.order, Phase::Handshake);
        match self.shake_hands(&mut conn)? {
            Answer::Continue => {}
            Answer::Full { id, offset } => self.receive(&mut conn, id, offset)?,
        }
        self.link.set_phase(self.order, Phase::Connected);
        self.inner.show_role();
        self.obey(&mut conn)
    }

    fn connect_to_predecessor(&self, predecessor: &Predecessor) -> Result<Conn<'_>, Gone> {
        self.log(NOTICE, "The data set of the process that this one replaces is received");
        let conn = conn::take(self.link, self.order, predecessor.connect()?)?;
        conn.register()?;
        Ok(conn)
    }

    fn connect(&self) -> Result<Conn<'_>, Gone> {
        let Master { host, port } = self.master;
        self.log(NOTICE, &format!("Connecting to MASTER {host}:{port}"));
        self.log(NOTICE, "MASTER <-> REPLICA sync started");
        let source = String::from_utf8_lossy(&self.server.options.bind_source_addr).into_owned();
        let mut conn = conn::connect(self.link, self.order, (host, *port), &source)
            .inspect_err(|gone| {
                if matches!(gone, Gone::Timeout) {
                    self.log(WARNING, "Timeout connecting to the MASTER...");
                }
            })
            .map_err(told_timeout)?;
        conn.register()?;
        conn.set_up(self.server.options.tcp_keepalive_s)?;
        if let Some(connector) = &self.server.tls {
            conn.encrypt(connector)?;
        }
        self.log(NOTICE, "Non blocking connect for SYNC fired the event.");
        Ok(conn)
    }

    /// Runs the commands of the master, until the connection ends.
    fn obey(&self, conn: &mut Conn<'_>) -> Result<(), Gone> {
        let mut stream = Stream::new(self.inner, self.link, self.order, &*self.server.log);
        let ended = stream.run(conn);
        // What was read is carried out, so that the next connection continues behind it.
        let settled = stream.settle();
        match (&ended, &settled) {
            (Err(Gone::Timeout), _) => self.log(WARNING, "MASTER timeout: no data nor PING received..."),
            (Err(Gone::Protocol), _) => {
                // The backlog of the master has the same bytes.
                self.link.need_full();
                self.log(WARNING, "Protocol error from the master: the connection is closed.");
            }
            (Err(Gone::Broken), _) | (_, Err(_)) => {
                self.link.need_full();
                self.log(WARNING, "A command of the master has failed: a fault in the program. A full sync follows.");
            }
            _ => {}
        }
        if !matches!(ended, Err(Gone::Stopped)) {
            self.log(NOTICE, "Connection with master lost.");
            self.log(NOTICE, "Caching the disconnected master state.");
        }
        Err(match ended {
            Err(Gone::Stopped) => Gone::Stopped,
            _ => Gone::Told,
        })
    }
}

/// Marks a time-out as logged.
fn told_timeout(gone: Gone) -> Gone {
    if let Gone::Timeout = gone { Gone::Told } else { gone }
}

/// The right to know the data set and the offset as they belong together.
pub(crate) type Border<'l> = MutexGuard<'l, ()>;

/// Returns the whole seconds since a moment.
fn seconds_since(at: Instant) -> u64 {
    at.elapsed().as_secs()
}
