//! Connections of their own: for what a lane can't do, because it changes what a connection is or waits for others.
//!
//! **Whose it is.** A connection belongs to who took it and to nobody else: the future that asks has it while it asks, so
//! who stops waiting drops it, and with it what the engine was busy with. What is done with it goes back to rest, cleaned:
//! `DISCARD` and `UNWATCH` where a transaction may be open; one that listens to channels is closed.
//!
//! **Bounds.** It counts in `maxconn` before it is made; who waits for one is served in order, for at most `timeout
//! queue`, and counts in `maxqueue`. What rests ends after `timeout idle` and at its `max-lifetime`, when its node gave a
//! sign of death, and when somebody waits for a connection. It is looked at before it is used again, and asked for a sign
//! of life after 30 s of rest.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_wire::engine::{Own, PendingReply, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};

use crate::command::{self, Waits, encode};
use crate::figures::{Gauge, add};
use crate::keys::{Place, place};
use crate::lane::jittered;
use crate::node::{Connected, Node, NotConnected};
use crate::running::{BULK_MAX, ELEMENTS_MAX, READ, VALIDATE_AFTER};
use crate::section::Section;
use crate::stream::Stream;
use crate::topology::Topology;
use crate::{Address, Failure, Options, handshake};

/// How often connections that rest are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// Messages of channels that come while something else is asked, and are kept.
const MESSAGES_MAX: usize = 1000;

/// What a connection is made of.
#[derive(Debug)]
enum Line {
    /// It counts among those of its node.
    Engine(Connected),
    /// A store of this process is at its other end.
    Here(Stream),
}

impl Line {
    fn stream(&mut self) -> &mut Stream {
        match self {
            Line::Engine(connected) => &mut connected.stream,
            Line::Here(stream) => stream,
        }
    }
}

/// A connection and what was read of it.
#[derive(Debug)]
pub(crate) struct Conversation {
    line: Line,
    db: u32,
    input: Vec<u8>,
    filled: usize,
    parser: ReplyParser,
    messages: VecDeque<Reply>,
    /// A transaction may be open, or keys watched.
    unclean: bool,
    listens: bool,
    generation: u64,
    renew_at: Option<Instant>,
    active: Instant,
}

impl Conversation {
    fn new(line: Line, db: u32, generation: u64, lifetime: Option<Duration>) -> Conversation {
        let limits = ReplyLimits { max_bulk: BULK_MAX, max_elements: ELEMENTS_MAX, ..ReplyLimits::default() };
        let now = Instant::now();
        Conversation {
            line,
            db,
            input: vec![0; READ],
            filled: 0,
            parser: ReplyParser::new(limits),
            messages: VecDeque::new(),
            unclean: false,
            listens: false,
            generation,
            renew_at: lifetime.map(|lifetime| now + jittered(lifetime)),
            active: now,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let stream = self.line.stream();
            match poll_fn(|cx| stream.poll_write(cx, &bytes[written..])).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => written += count,
            }
        }
        let stream = self.line.stream();
        poll_fn(|cx| stream.poll_flush(cx)).await
    }

    /// The next reply or message. What was read of one stays here if the caller stops waiting.
    async fn read(&mut self) -> Result<Reply, String> {
        loop {
            let progress = self.parser.parse(&self.input[..self.filled]);
            let progress = progress.map_err(|error| format!("the engine speaks no RESP: {error}"))?;
            self.input.copy_within(progress.consumed..self.filled, 0);
            self.filled -= progress.consumed;
            if let Some(reply) = progress.reply {
                if self.filled == 0 && self.input.len() > 4 * READ {
                    self.input = vec![0; READ];
                }
                return Ok(reply);
            }
            if self.filled == self.input.len() {
                let larger = 2 * self.input.len();
                self.input.resize(larger, 0);
            }
            let stream = self.line.stream();
            match poll_fn(|cx| stream.poll_read(cx, &mut self.input[self.filled..])).await {
                Ok(0) => return Err("the engine ended the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Keeps a message that came between replies.
    fn keep(&mut self, message: Reply) -> Result<(), String> {
        if self.messages.len() == MESSAGES_MAX {
            return Err(format!("more than {MESSAGES_MAX} messages came while something else was asked"));
        }
        self.messages.push_back(message);
        Ok(())
    }

    /// Sends commands together and reads so many replies.
    async fn ask(&mut self, bytes: &[u8], replies: usize) -> Result<Vec<Reply>, String> {
        self.write(bytes).await.map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        while all.len() < replies {
            match self.read().await? {
                message @ Reply::Push(_) => self.keep(message)?,
                reply => all.push(reply),
            }
        }
        self.active = Instant::now();
        Ok(all)
    }

    /// Begins to listen to channels, or to those of patterns.
    async fn subscribe(&mut self, bytes: &[u8], channels: usize) -> Result<Reply, String> {
        self.listens = true;
        self.write(bytes).await.map_err(|error| error.to_string())?;
        let mut confirmed = 0;
        while confirmed < channels {
            match self.read().await? {
                error @ Reply::Error(_) => return Ok(error),
                reply if is_message(&reply) => self.keep(reply)?,
                _ => confirmed += 1,
            }
        }
        Ok(Reply::Simple("OK".into()))
    }

    /// The next message of a channel.
    async fn message(&mut self) -> Result<Reply, String> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(message);
            }
            let reply = self.read().await?;
            if is_message(&reply) {
                return Ok(reply);
            }
        }
    }

    /// Whether it is as it was left: open, with nothing to read.
    async fn is_quiet(&mut self) -> bool {
        let stream = self.line.stream();
        let mut byte = [0];
        self.filled == 0 && poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut byte).is_pending())).await
    }

    fn is_stale(&self, node: &Node, now: Instant) -> bool {
        let idle = node.section.options.timeout_idle;
        self.generation != node.generation()
            || self.renew_at.is_some_and(|at| at <= now)
            || idle.is_some_and(|idle| self.active + idle <= now)
    }
}

/// A message of a channel, as RESP3 pushes it and RESP2 sends it.
fn is_message(reply: &Reply) -> bool {
    let (Reply::Push(items) | Reply::Array(items)) = reply else { return false };
    matches!(items.first(), Some(Reply::Bulk(kind)) if kind == b"message" || kind == b"pmessage")
}

/// Connections of a section that nobody has now.
#[derive(Debug, Default)]
pub(crate) struct Resting(Mutex<VecDeque<(Arc<Node>, Conversation)>>);

impl Resting {
    /// The one of this node that was used last.
    fn take(&self, node: &Arc<Node>, db: u32) -> Option<Conversation> {
        let mut all = self.0.lock();
        let now = Instant::now();
        all.retain(|(of, one)| !one.is_stale(of, now));
        let at = all.iter().rposition(|(of, one)| Arc::ptr_eq(of, node) && one.db == db)?;
        all.remove(at).map(|(_, one)| one)
    }

    /// Ends the one that rests for longest, since somebody needs its place.
    pub(crate) fn give_way(&self) {
        let oldest = self.0.lock().pop_front();
        drop(oldest);
    }

    /// Ends all.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }

    /// Ends those that are idle for too long, too old, or of a node that gave a sign of death. False: there are none left.
    fn sweep(&self) -> bool {
        let mut all = self.0.lock();
        let now = Instant::now();
        all.retain(|(of, one)| !one.is_stale(of, now));
        !all.is_empty()
    }
}

/// Who may use one of the section's connections of their own now.
type Right = OwnedSemaphorePermit;

impl Node {
    /// A connection of one's own, from those that rest or a new one.
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
        result.unwrap_or_else(|_| {
            Err(match self.last_failure() {
                Some(reason) => Failure::Connect(reason),
                None => Failure::QueueTimeout(timeout),
            })
        })
    }

    /// What rested, if it is still alive.
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

    /// What replies say of the engine.
    fn heard(&self, replies: &[Reply]) {
        add(&self.counters.replies, replies.len() as u64);
        replies.iter().for_each(|reply| self.answered(reply));
    }

    /// Nobody needs it any more: it rests, once it is clean.
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
        section.resting.0.lock().push_back((self.clone(), one));
        drop(right);
        // Whoever came meanwhile has not seen it.
        if section.is_closed() {
            return section.resting.clear();
        }
        if section.is_awaited() {
            section.resting.give_way();
        }
        if section.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let section = Arc::downgrade(section);
        runtime.spawn(async move {
            while let Some(section) = section.upgrade() {
                if !section.resting.sweep() {
                    section.sweeping.store(false, Ordering::Relaxed);
                    return;
                }
                drop(section);
                sleep(SWEEP).await;
            }
        });
    }
}

/// Where a connection of one's own leads.
#[derive(Clone, Debug)]
enum Way {
    /// To a node of an engine.
    Engine(Topology, Arc<Section>),
    /// To a store of this process.
    Here(Arc<Options>, Here),
}

/// Makes a socket whose other end is served by this process.
#[derive(Clone)]
struct Here(Arc<dyn Fn() -> io::Result<std::os::unix::net::UnixStream> + Send + Sync>);

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Here")
    }
}

/// An open connection with what it belongs to.
#[derive(Debug)]
struct Taken {
    conversation: Conversation,
    /// Its node, and the right to it; a store of this process has none.
    of: Option<(Arc<Node>, Right)>,
}

impl Taken {
    fn rest(self) {
        if let Some((node, right)) = self.of {
            node.rest(self.conversation, right);
        }
    }

    fn lost(&self, reason: &str) -> Failure {
        match &self.of {
            Some((node, _)) => {
                let reason = format!("{}: {reason}", node.address);
                node.failed(&reason);
                Failure::Lost(reason)
            }
            None => Failure::Lost(reason.to_owned()),
        }
    }
}

#[derive(Debug, Default)]
enum State {
    /// Nothing was asked yet, or it could not be opened.
    #[default]
    Unopened,
    Open(Box<Taken>),
    /// Somebody asks, or stopped waiting for what was asked.
    Busy,
    /// It ended, and so did whatever it was in the middle of.
    Ended,
}

/// What is done with a connection.
struct Work {
    bytes: Vec<u8>,
    kind: WorkKind,
    /// The most time for it once there is a connection.
    limit: Option<Duration>,
    /// A key of what is asked: a cluster's node is chosen by it.
    key: Option<Box<[u8]>>,
    /// What it leaves behind, if it says.
    unclean: Option<bool>,
}

enum WorkKind {
    /// So many commands are asked.
    Ask(usize),
    /// So many channels are listened to.
    Subscribe(usize),
    /// The next message is waited for; a null when the time is up.
    Message,
}

/// A connection of one's own, made when it is asked first.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    way: Way,
    db: u32,
    state: Arc<Mutex<State>>,
}

/// A connection of one's own to a store of this process: `connect` makes a socket whose other end the store serves.
pub fn own_here(
    name: &Arc<str>,
    db: u32,
    connect: impl Fn() -> io::Result<std::os::unix::net::UnixStream> + Send + Sync + 'static,
) -> Box<dyn Own> {
    let options = Options::new(name, Address::Unix(PathBuf::new()));
    Box::new(OwnConnection { way: Way::Here(Arc::new(options), Here(Arc::new(connect))), db, state: Arc::default() })
}

/// One command on a connection of its own. Who drops the reply ends the connection.
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
        let mut work = Work {
            bytes: Vec::new(),
            kind: WorkKind::Ask(commands.len()),
            limit: Some(self.way.options().timeout_server),
            key: None,
            unclean: None,
        };
        for args in commands {
            let waits = match command::of_own(args) {
                Ok(waits) => waits,
                Err(failure) => return Box::pin(std::future::ready(failure.into_reply())),
            };
            if let Way::Engine(_, section) = &self.way {
                add(&section.counters.commands, 1);
            }
            work.limit = match (work.limit, waits) {
                (Some(limit), Waits::For(time)) => limit.checked_add(time),
                _ => None,
            };
            work.unclean = command::leaves_unclean(args).or(work.unclean);
            if work.key.is_none()
                && let Ok(Place::Key(key)) = place(args)
            {
                work.key = Some(key.into());
            }
            encode(args, &mut work.bytes);
        }
        self.perform(work)
    }

    fn subscribe(&mut self, patterns: bool, channels: &[&[u8]]) -> PendingReply {
        let mut words: Vec<&[u8]> = vec![if patterns { b"PSUBSCRIBE" } else { b"SUBSCRIBE" }];
        words.extend(channels);
        let mut bytes = Vec::new();
        encode(&words, &mut bytes);
        let (kind, limit) = (WorkKind::Subscribe(channels.len()), Some(self.way.options().timeout_server));
        self.perform(Work { bytes, kind, limit, key: None, unclean: None })
    }

    fn message(&mut self, limit: Option<Duration>) -> PendingReply {
        self.perform(Work { bytes: Vec::new(), kind: WorkKind::Message, limit, key: None, unclean: None })
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
            Way::Engine(topology, _) => {
                let node = topology.own_node(key).await?;
                let (conversation, right) = node.take_own(db).await?;
                Ok(Taken { conversation, of: Some((node, right)) })
            }
            Way::Here(options, connect) => {
                let connecting = async {
                    let socket = (connect.0)()?;
                    socket.set_nonblocking(true)?;
                    tokio::net::UnixStream::from_std(socket).map(Stream::Unix)
                };
                let mut stream = connecting.await.map_err(|error| Failure::Connect(error.to_string()))?;
                let greeting = handshake::greet(&mut stream, options, db);
                let greeted = tokio::time::timeout(options.timeout_connect, greeting).await;
                greeted.map_err(|_| Failure::QueueTimeout(options.timeout_connect))?.map_err(Failure::Connect)?;
                Ok(Taken { conversation: Conversation::new(Line::Here(stream), db, 0, None), of: None })
            }
        }
    }
}

/// Takes the connection, or opens it, does the work, and puts it back.
async fn perform(way: &Way, db: u32, state: &Mutex<State>, work: Work) -> Result<Reply, Failure> {
    let was = std::mem::replace(&mut *state.lock(), State::Busy);
    let mut taken = match was {
        State::Open(taken) => taken,
        State::Busy => return Err(Failure::Refused("the connection is in use, or what was asked was given up".into())),
        State::Ended => {
            *state.lock() = State::Ended;
            return Err(Failure::Lost("the connection has ended".into()));
        }
        State::Unopened => match way.open(db, work.key.as_deref()).await {
            Ok(taken) => Box::new(taken),
            Err(failure) => {
                *state.lock() = State::Unopened;
                return Err(failure);
            }
        },
    };
    let busy = taken.of.as_ref().map(|(node, _)| node.clone());
    let in_flight = busy.as_ref().map(|node| Gauge::of(&node.counters.in_flight));
    let conversation = &mut taken.conversation;
    conversation.unclean = work.unclean.unwrap_or(conversation.unclean);
    let doing = async {
        match work.kind {
            WorkKind::Ask(count) => conversation.ask(&work.bytes, count).await.map(Reply::Array),
            WorkKind::Subscribe(count) => conversation.subscribe(&work.bytes, count).await,
            WorkKind::Message => conversation.message().await,
        }
    };
    let done = match work.limit {
        Some(limit) => tokio::time::timeout(limit, doing).await.map_err(|_| limit),
        None => Ok(doing.await),
    };
    drop(in_flight);
    let reply = match done {
        Ok(Ok(reply)) => reply,
        Err(_) if matches!(work.kind, WorkKind::Message) => Reply::Null,
        Ok(Err(reason)) => {
            *state.lock() = State::Ended;
            return Err(taken.lost(&reason));
        }
        Err(limit) => {
            *state.lock() = State::Ended;
            taken.lost(&format!("no reply within {} ms", limit.as_millis()));
            return Err(Failure::Timeout(limit));
        }
    };
    if let (Some((node, _)), Reply::Array(replies), WorkKind::Ask(_)) = (&taken.of, &reply, &work.kind) {
        node.heard(replies);
    }
    // Whoever had the connection may have gone meanwhile.
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
