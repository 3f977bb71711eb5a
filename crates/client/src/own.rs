//! Dedicated connections, for commands that change the state of a connection or wait for other clients.
//!
//! **Ownership.** A connection has exactly one user: the future of a command owns it until the reply, so dropping the
//! future closes the connection, and cancels the command in the engine. After use a connection returns to the idle list
//! in a clean state (`DISCARD` and `UNWATCH` if a transaction may be open); one that is subscribed to channels is
//! closed.
//!
//! **Bounds.** A connection counts in `maxconn` before it is opened; waiters are served in order, for at most `timeout
//! queue`, and count in `maxqueue`. An idle connection is closed after `timeout idle`, at its `max-lifetime`, when its
//! node has shown a failure, and when a command waits for a connection. It is checked for end-of-stream before reuse,
//! and sent a PING first after 30 s of idleness.
//!
//! **Several nodes.** A connection leads to the master of the first key, and can be [redirected](crate::follow) until a
//! command was executed on it. When its node leaves the topology, the pending command fails, as on a lane, so no caller
//! waits forever for an element or a message from an engine that has been replaced.

use std::fmt;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_transport::Socket;
use sluicegate_wire::engine::{Own, PendingReply, Started};
use sluicegate_wire::reply::Reply;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::MOVES_MAX;
use crate::command::{self, Waits, encode};
use crate::figures::{Gauge, add};
use crate::follow::{Session, Together};
use crate::node::conversation::{Conversation, Line};
use crate::node::handshake;
use crate::node::running::{GRACE, VALIDATE_AFTER};
use crate::node::section::Section;
use crate::node::{Node, NotConnected};
use crate::stream::Stream;
use crate::told::Redirect;
use crate::topology::Topology;
use crate::{Address, Failure, Options};

/// The interval at which idle connections are checked.
const SWEEP: Duration = Duration::from_secs(1);

/// The interval at which a cluster's map is read again while a caller waits.
const LOOK: Duration = Duration::from_secs(1);

/// The permission to use one of the section's dedicated connections.
type Right = OwnedSemaphorePermit;

impl Node {
    /// Returns a dedicated connection: an idle one, or a new one.
    async fn take_own(self: &Arc<Node>, db: u32) -> Result<(Conversation, Right), Failure> {
        self.admit()?;
        let section = &*self.section;
        let (begun, timeout) = (Instant::now(), section.options.timeout_queue);
        let queued = section.counters.queued.load(Ordering::Relaxed);
        if queued >= section.options.maxqueue as u64 {
            return Err(Failure::QueueFull(queued as usize));
        }
        let gauge = Gauge::of(&section.counters.queued);
        let taking = async {
            let right = section.own.clone().acquire_owned().await.map_err(|_| Failure::Closed)?;
            while let Some(found) = section.resting.take(self, db) {
                if let Some(alive) = self.validated(found).await {
                    return Ok((alive, right));
                }
            }
            loop {
                match self.connect(db, || true).await {
                    Ok(connected) => {
                        let (generation, lifetime) = (self.generation(), section.options.max_lifetime);
                        return Ok((Conversation::new(Line::Engine(connected), db, generation, lifetime), right));
                    }
                    Err(NotConnected::Before(at)) => sleep_until(at).await,
                    Err(NotConnected::Unwanted) => return Err(Failure::Closed),
                    Err(NotConnected::Failed) => {
                        if let Some(failure) = self.open_failure() {
                            return Err(failure);
                        }
                    }
                }
            }
        };
        let result = tokio::time::timeout(timeout, taking).await;
        drop(gauge);
        section.counters.waited(begun.elapsed());
        result.unwrap_or_else(|_| Err(Failure::no_connection(self.last_failure(), timeout)))
    }

    /// Returns an idle connection, if one is still alive.
    async fn validated(&self, mut one: Conversation) -> Option<Conversation> {
        if !one.is_quiet().await {
            return None;
        }
        if one.active.elapsed() >= VALIDATE_AFTER {
            let limit = self.section.options.timeout_connect;
            tokio::time::timeout(limit, one.ask(b"*1\r\n$4\r\nPING\r\n", 1)).await.ok()?.ok()?;
        }
        Some(one)
    }

    /// Records the engine's health as shown by replies.
    fn heard(&self, replies: &[Reply], generation: u64) {
        add(&self.counters.replies, replies.len() as u64);
        replies.iter().for_each(|reply| self.answered(reply, generation));
    }

    /// Puts the connection into the idle list, once it is clean.
    fn rest(self: &Arc<Node>, mut one: Conversation, right: Right) {
        let Ok(runtime) = Handle::try_current() else { return };
        if one.listens || !one.messages.is_empty() {
            return;
        }
        if !one.unclean {
            return self.lay(one, right, &runtime);
        }
        let (node, handle) = (self.clone(), runtime.clone());
        runtime.spawn(async move {
            let limit = node.section.options.timeout_connect;
            // DISCARD is an error where no transaction is open.
            let cleaning = one.ask(b"*1\r\n$7\r\nDISCARD\r\n*1\r\n$7\r\nUNWATCH\r\n", 2);
            if let Ok(Ok(_)) = tokio::time::timeout(limit, cleaning).await {
                one.unclean = false;
                node.lay(one, right, &handle);
            }
        });
    }

    fn lay(self: &Arc<Node>, one: Conversation, right: Right, runtime: &Handle) {
        let section = &self.section;
        if section.is_awaited() || one.is_stale(self, Instant::now()) {
            return;
        }
        section.resting.add(self, one);
        drop(right);
        // If the section was closed meanwhile, the list was cleared before this connection was added.
        if section.is_closed() {
            return section.resting.clear();
        }
        if section.is_awaited() {
            section.resting.give_way();
        }
        if section.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut sweeping = Sweeping(Arc::downgrade(section));
        runtime.spawn(async move {
            while let Some(section) = sweeping.0.upgrade() {
                if !section.resting.sweep(&section.sweeping) {
                    // `sweep` has already cleared the mark, and another task may have started since.
                    sweeping.0 = Weak::new();
                    continue;
                }
                drop(section);
                sleep(SWEEP).await;
            }
        });
    }
}

/// A guard: idle connections count as being swept until this is dropped, also if the task is dropped with its runtime.
struct Sweeping(Weak<Section>);

impl Drop for Sweeping {
    fn drop(&mut self) {
        if let Some(section) = self.0.upgrade() {
            section.sweeping.store(false, Ordering::Relaxed);
        }
    }
}

/// The target of a dedicated connection.
#[derive(Clone, Debug)]
enum Way {
    /// To a node of an engine.
    Engine(Topology, Arc<Section>),
    /// To a store of this process.
    Here(Arc<Options>, Here),
}

/// Creates a socket whose other end this process serves.
#[derive(Clone)]
struct Here(Arc<dyn Fn() -> io::Result<std::os::unix::net::UnixStream> + Send + Sync>);

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Here")
    }
}

/// An open connection with its node and permit.
#[derive(Debug)]
struct Taken {
    conversation: Conversation,
    /// Its node and permit; a connection to a store of this process has none.
    of: Option<(Arc<Node>, Right)>,
    /// The node's epoch when the connection was taken.
    epoch: u64,
    session: Session,
}

impl Taken {
    /// Takes or opens a connection to a node.
    async fn of(node: &Arc<Node>, db: u32, session: Session) -> Result<Taken, Failure> {
        let epoch = node.epoch();
        let (conversation, right) = node.take_own(db).await?;
        Ok(Taken { conversation, of: Some((node.clone(), right)), epoch, session })
    }

    /// Executes the work; `again`: on another node than the one that rejected it.
    async fn work(&mut self, work: &Work, again: bool) -> Result<Reply, Failure> {
        let node = self.of.as_ref().map(|(node, _)| node.clone());
        let in_flight = node.as_ref().map(|node| Gauge::of(&node.counters.in_flight));
        let conversation = &mut self.conversation;
        // Assumed until a reply shows that the transaction has ended.
        conversation.unclean |= work.unclean.is_some();
        let doing = async {
            match &work.kind {
                WorkKind::Ask(together) => {
                    let (bytes, wanted) = self.session.bytes(together, again);
                    let replies = conversation.ask(&bytes, wanted.len()).await?;
                    let replies = replies.into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
                    Ok(Reply::Array(replies.map(|(reply, _)| reply).collect()))
                }
                WorkKind::Subscribe(bytes, count) => conversation.subscribe(bytes, *count).await,
                WorkKind::Message => conversation.message().await,
            }
        };
        let doing = async {
            match work.limit {
                Some(limit) => tokio::time::timeout(limit, doing).await.map_err(|_| limit),
                None => Ok(doing.await),
            }
        };
        let done = tokio::select! {
            biased;
            done = doing => done,
            () = is_left(node.as_ref(), self.epoch) => Ok(Err("another engine has taken over".to_owned())),
        };
        drop(in_flight);
        match done {
            Ok(Ok(reply)) => {
                if let (Some(node), Reply::Array(replies), WorkKind::Ask(_)) = (&node, &reply, &work.kind) {
                    node.heard(replies, self.conversation.generation);
                }
                Ok(reply)
            }
            Err(_) if matches!(work.kind, WorkKind::Message) => Ok(Reply::Null),
            Ok(Err(reason)) => Err(self.lost(&reason)),
            Err(limit) => {
                self.lost(&format!("no reply within {} ms", limit.as_millis()));
                Err(Failure::Timeout(limit))
            }
        }
    }

    /// Returns the node that the whole work is redirected to, if nothing was executed here.
    fn redirect(&self, work: &Work, reply: &Reply) -> Option<Redirect> {
        let (Some((node, _)), WorkKind::Ask(together), Reply::Array(replies)) = (&self.of, &work.kind, reply) else {
            return None;
        };
        node.section.router()?;
        self.session.redirect(together, replies, &node.address)
    }

    /// Records executed commands. `tells`: rejections that cannot be followed get this client's own error.
    fn done(&mut self, work: &Work, reply: &mut Reply, tells: bool) {
        if let (WorkKind::Ask(together), Some(false), Reply::Array(replies)) = (&work.kind, work.unclean, &*reply) {
            self.conversation.unclean &= !together.has_ended(replies);
        }
        if let (Some((node, _)), WorkKind::Ask(together), Reply::Array(replies)) = (&self.of, &work.kind, reply) {
            self.session.done(together, replies, node, tells && node.section.is_cluster());
        }
    }

    fn rest(self) {
        if let Some((node, right)) = self.of {
            node.rest(self.conversation, right);
        }
    }

    fn lost(&self, reason: &str) -> Failure {
        match &self.of {
            Some((node, _)) => {
                let reason = format!("{}: {reason}", node.address);
                node.died(self.conversation.generation, &reason);
                Failure::Lost(reason)
            }
            None => Failure::Lost(reason.to_owned()),
        }
    }
}

#[derive(Debug, Default)]
enum State {
    /// No command was sent yet, or the connection could not be opened.
    #[default]
    Unopened,
    Open(Box<Taken>),
    /// A command is in progress, or its caller has stopped waiting.
    Busy,
    /// The connection has ended, with any transaction that was open on it.
    Ended,
}

/// One use of a connection.
struct Work {
    kind: WorkKind,
    /// The time limit once there is a connection.
    limit: Option<Duration>,
    /// Whether its state needs a reset, if known.
    unclean: Option<bool>,
}

enum WorkKind {
    /// Sends commands.
    Ask(Together),
    /// Subscribes to this many channels, by this command.
    Subscribe(Vec<u8>, usize),
    /// Waits for the next message; a null when the time limit has passed.
    Message,
}

impl Work {
    /// Returns a key of the command, by which a cluster's node is chosen.
    fn key(&self) -> Option<&[u8]> {
        match &self.kind {
            WorkKind::Ask(together) => together.key.as_deref(),
            WorkKind::Subscribe(..) | WorkKind::Message => None,
        }
    }
}

/// A dedicated connection, which is opened when the first command is sent.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    way: Way,
    db: u32,
    state: Arc<Mutex<State>>,
}

/// Returns a dedicated connection to a store of this process: `connect` creates a socket whose other end the store
/// serves.
pub fn own_here(
    name: &Arc<str>,
    db: u32,
    connect: impl Fn() -> io::Result<std::os::unix::net::UnixStream> + Send + Sync + 'static,
) -> Box<dyn Own> {
    let options = Options::new(name, Address::Unix(PathBuf::new()));
    Box::new(OwnConnection { way: Way::Here(Arc::new(options), Here(Arc::new(connect))), db, state: Arc::default() })
}

/// One command on a dedicated connection. Dropping the reply closes the connection.
pub fn alone(mut own: Box<dyn Own>, args: &[&[u8]]) -> Started {
    let reply = own.start(&[args]);
    Started::Pending(Box::pin(async move {
        let reply = reply.await;
        drop(own);
        match reply {
            Reply::Array(mut replies) if replies.len() == 1 => replies.swap_remove(0),
            reply => reply,
        }
    }))
}

impl OwnConnection {
    pub(crate) fn new(topology: &Topology, section: &Arc<Section>, db: u32) -> OwnConnection {
        OwnConnection { way: Way::Engine(topology.clone(), section.clone()), db, state: Arc::default() }
    }

    fn perform(&self, work: Work) -> PendingReply {
        let (way, db, state) = (self.way.clone(), self.db, self.state.clone());
        Box::pin(async move {
            perform(&way, db, &state, work).await.unwrap_or_else(|failure| {
                if let Way::Engine(_, section) = &way {
                    section.counters.failed(&failure);
                }
                failure.into_reply()
            })
        })
    }
}

impl Own for OwnConnection {
    fn start(&mut self, commands: &[&[&[u8]]]) -> PendingReply {
        let mut together = Together::default();
        let (mut limit, mut unclean) = (Some(self.way.options().timeout_server), None);
        for args in commands {
            let waits = match command::of_own(args) {
                Ok(waits) => waits,
                Err(failure) => return Box::pin(std::future::ready(failure.into_reply())),
            };
            if let Way::Engine(_, section) = &self.way {
                add(&section.counters.commands, 1);
            }
            limit = match (limit, waits) {
                (Some(limit), Waits::For(time)) => limit.checked_add(time),
                _ => None,
            };
            unclean = command::leaves_unclean(args).or(unclean);
            together.push(args);
        }
        self.perform(Work { kind: WorkKind::Ask(together), limit, unclean })
    }

    fn subscribe(&mut self, patterns: bool, channels: &[&[u8]]) -> PendingReply {
        let name = if patterns { "PSUBSCRIBE" } else { "SUBSCRIBE" };
        if channels.is_empty() {
            // The engine's error would be taken for the reply to the next command.
            let refused = Failure::Refused(format!("{name} without a channel"));
            return Box::pin(std::future::ready(refused.into_reply()));
        }
        let mut words: Vec<&[u8]> = vec![name.as_bytes()];
        words.extend(channels);
        let mut bytes = Vec::new();
        encode(&words, &mut bytes);
        let limit = Some(self.way.options().timeout_server);
        self.perform(Work { kind: WorkKind::Subscribe(bytes, channels.len()), limit, unclean: None })
    }

    fn message(&mut self, limit: Option<Duration>) -> PendingReply {
        self.perform(Work { kind: WorkKind::Message, limit, unclean: None })
    }
}

impl Drop for OwnConnection {
    fn drop(&mut self) {
        if let State::Open(taken) = std::mem::replace(&mut *self.state.lock(), State::Ended) {
            taken.rest();
        }
    }
}

impl Way {
    fn options(&self) -> &Options {
        match self {
            Way::Engine(_, section) => &section.options,
            Way::Here(options, _) => options,
        }
    }

    async fn open(&self, db: u32, key: Option<&[u8]>) -> Result<Taken, Failure> {
        match self {
            Way::Engine(topology, section) => {
                let until = Instant::now() + section.options.timeout_queue;
                loop {
                    let node = topology.own_node(key).await?;
                    let turns_away = async {
                        match topology {
                            Topology::Cluster(cluster) => cluster.turns_away(key, &node).await,
                            Topology::Single(_) => pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        taken = Taken::of(&node, db, Session::default()) => return taken,
                        () = turns_away => {}
                    }
                    if Instant::now() >= until {
                        return Err(Failure::QueueTimeout(section.options.timeout_queue));
                    }
                }
            }
            Way::Here(options, connect) => {
                let connected = (connect.0)().and_then(Socket::of_unix);
                let mut stream = Stream::Socket(connected.map_err(|error| Failure::Connect(error.to_string()))?);
                let greeting = handshake::greet(&mut stream, options, db);
                let greeted = tokio::time::timeout(options.timeout_connect, greeting).await;
                greeted.map_err(|_| Failure::QueueTimeout(options.timeout_connect))?.map_err(Failure::Connect)?;
                let conversation = Conversation::new(Line::Here(stream), db, 0, None);
                Ok(Taken { conversation, of: None, epoch: 0, session: Session::default() })
            }
        }
    }
}

/// Takes or opens the connection, executes the work, and puts the connection back.
async fn perform(way: &Way, db: u32, state: &Mutex<State>, work: Work) -> Result<Reply, Failure> {
    let was = std::mem::replace(&mut *state.lock(), State::Busy);
    let mut taken = match was {
        State::Open(taken) => taken,
        State::Busy => return Err(Failure::Refused("the connection is in use, or what was asked was given up".into())),
        State::Ended => {
            *state.lock() = State::Ended;
            return Err(Failure::Lost("the connection has ended".into()));
        }
        State::Unopened => match way.open(db, work.key()).await {
            Ok(taken) => Box::new(taken),
            Err(failure) => {
                *state.lock() = State::Unopened;
                return Err(failure);
            }
        },
    };
    let (mut moves, mut until) = (0, None);
    let mut reply = loop {
        let reply = match taken.work(&work, moves > 0).await {
            Ok(reply) => reply,
            Err(failure) => {
                *state.lock() = State::Ended;
                return Err(failure);
            }
        };
        let Some(redirect) = taken.redirect(&work, &reply) else {
            break reply;
        };
        let now = Instant::now();
        let options = way.options();
        if moves == MOVES_MAX || now > *until.get_or_insert(now + options.timeout_queue + options.timeout_server) {
            break reply;
        }
        moves += 1;
        let untouched = taken.session.is_untouched();
        taken = match follow(way, *taken, db, &work, redirect, moves).await {
            Ok(taken) => Box::new(taken),
            Err(failure) => {
                *state.lock() = if untouched { State::Unopened } else { State::Ended };
                return Err(failure);
            }
        };
    };
    let tells = taken.redirect(&work, &reply).is_none();
    taken.done(&work, &mut reply, tells);
    // The user of the connection may have dropped it meanwhile.
    let mut state = state.lock();
    match *state {
        State::Ended => {
            drop(state);
            taken.rest();
        }
        _ => *state = State::Open(taken),
    }
    Ok(reply)
}

/// Opens a connection to the node to which the present connection was redirected, and replaces the present one.
async fn follow(
    way: &Way,
    taken: Taken,
    db: u32,
    work: &Work,
    redirect: Redirect,
    moves: u8,
) -> Result<Taken, Failure> {
    let Way::Engine(Topology::Cluster(cluster), _) = way else { return Err(Failure::Closed) };
    let mut session = taken.session.elsewhere();
    taken.rest();
    let (node, asking) = cluster.redirect_own(redirect, moves, work.key()).await?;
    session.asking = asking;
    Taken::of(&node, db, session).await
}

/// Waits until another engine has become the master, and then for the grace period. Reads the cluster's map again at
/// intervals, because a blocked command triggers no refresh.
async fn is_left(node: Option<&Arc<Node>>, epoch: u64) {
    let Some((node, router)) = node.and_then(|node| Some((node, node.section.router()?))) else {
        return pending().await;
    };
    let asking = async {
        loop {
            sleep(LOOK).await;
            router.clone().refresh();
        }
    };
    tokio::select! {
        () = node.left(epoch) => sleep(GRACE).await,
        () = asking => {}
    }
}
