//! A lane: the queue of commands of one worker and one database, and the task that sends them to the engine.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_wire::engine::Started;
use sluicegate_wire::reply::Reply;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::cache::{Asked, Cache, Looked};
use crate::figures::{add, take};
use crate::node::running::{self, READ, Running};
use crate::node::section::Section;
use crate::node::{Connected, Node, NotConnected};
use crate::transaction::{Request, Transaction};
use crate::waiter::{Awaited, Waiter, pending};

/// The maximum number of bytes of commands that a lane keeps for a connection, or a section outside its lanes.
pub(crate) const QUEUED_MAX: usize = 64 << 20;

/// The prefix of a command to a cluster node that is importing the slot.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The queue of a worker for an engine's database.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) node: Arc<Node>,
    pub(crate) db: u32,
    queue: Mutex<Queue>,
    /// The client-side cache, if the section enables it.
    pub(crate) cache: Mutex<Cache>,
    /// Notified when the routing of commands has changed, so that the queued ones are routed again.
    turned: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    commands: Commands,
    /// The waker of the lane's task, if it sleeps.
    waker: Option<Waker>,
    /// Whether the lane's task has ended.
    closed: bool,
}

/// Commands in order: their bytes in sequence, and the treatment of each.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) bytes: Vec<u8>,
    /// The number of leading bytes whose commands are finished.
    pub(crate) answered: usize,
    pub(crate) entries: VecDeque<Entry>,
}

/// A queued or sent command.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The size of its encoding in bytes.
    pub(crate) len: usize,
    /// The time of queueing; after the command was sent, the time at which the connection took it.
    pub(crate) since: Instant,
    /// Whether it may be repeated: it only reads, and was not sent twice yet.
    pub(crate) repeatable: bool,
    /// Whether the reply to [`ASKING`] precedes its own.
    pub(crate) skips: bool,
    pub(crate) route: Route,
    /// The data for caching the reply, if it may be cached.
    pub(crate) asked: Option<Box<Asked>>,
    /// The state of a transaction, if it is one; it has several replies.
    pub(crate) transaction: Option<Box<Transaction>>,
    pub(crate) waiter: Waiter,
}

/// The data of a command that its redirection needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The slot of its first key; `None`: any node may execute it.
    pub(crate) slot: Option<u16>,
    pub(crate) db: u32,
    /// Whether it only reads.
    pub(crate) reads: bool,
    /// Whether the client itself sends it: it is never redirected, and its failure is not counted as a command's.
    pub(crate) own: bool,
    /// Whether [`ASKING`] precedes it.
    pub(crate) asking: bool,
    /// The number of its redirections so far.
    pub(crate) moves: u8,
    /// The time of its arrival.
    pub(crate) begun: Instant,
}

impl Route {
    pub(crate) fn new(slot: Option<u16>, db: u32, reads: bool) -> Route {
        Route { slot, db, reads, own: false, asking: false, moves: 0, begun: Instant::now() }
    }

    /// Returns the route of a command of the client itself.
    pub(crate) fn own() -> Route {
        Route { own: true, ..Route::new(None, 0, true) }
    }
}

impl Commands {
    /// Returns the bytes of the commands that are not answered yet.
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.answered..]
    }

    /// Drops this many leading bytes, and returns by how much the rest has moved: it is moved in batches, which costs
    /// no more than the dropped bytes.
    pub(crate) fn forget(&mut self, len: usize) -> usize {
        self.answered += len;
        if self.answered == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(4 * READ);
        } else if self.answered >= 4 * READ && self.answered >= self.bytes.len() / 2 {
            self.bytes.drain(..self.answered);
        } else {
            return 0;
        }
        std::mem::take(&mut self.answered)
    }
}

impl Entry {
    pub(crate) fn new(len: usize, route: Route, waiter: Waiter) -> Entry {
        let (repeatable, since) = (route.reads, route.begun);
        Entry { len, since, repeatable, skips: false, route, asked: None, transaction: None, waiter }
    }

    /// Prepares it for being sent again, encoded in this many bytes.
    pub(crate) fn again(&mut self, len: usize, now: Instant) {
        self.len = len;
        self.since = now;
        self.repeatable = self.route.reads;
        self.skips = self.route.asking;
        if let Some(transaction) = &mut self.transaction {
            transaction.again();
        }
        self.route.moves += u8::from(!self.route.asking);
    }

    pub(crate) fn fail(self, section: &Section, failure: Failure) {
        if !self.route.own {
            section.counters.failed(&failure);
        }
        self.waiter.tell(failure.into_reply());
    }
}

impl Lane {
    pub(crate) fn new(node: Arc<Node>, db: u32) -> Lane {
        Lane { node, db, queue: Mutex::default(), cache: Mutex::default(), turned: Notify::new() }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// Starts a command; a cached reply is returned immediately.
    pub(crate) fn start(&self, request: Request<'_>, route: Route) -> Result<Started, Failure> {
        let section = &*self.node.section;
        let mut asked = None;
        if section.options.client_cache > 0 {
            let mut cache = self.cache.lock();
            match request {
                Request::One(args) if route.reads => match cache.look(args, self.node.generation(), &section.cached) {
                    Looked::Hit(reply) => return Ok(Started::Done(reply)),
                    Looked::Miss(miss) => asked = Some(Box::new(miss)),
                    Looked::Other => {}
                },
                _ => request.commands().for_each(|args| cache.writes(args, &section.cached)),
            }
        }
        Ok(pending(self.queue(request, route, asked)?))
    }

    /// Queues a command; its reply or failure always arrives.
    pub(crate) fn push(&self, args: &[&[u8]], route: Route) -> Result<Awaited, Failure> {
        self.queue(Request::One(args), route, None)
    }

    fn queue(&self, request: Request<'_>, route: Route, asked: Option<Box<Asked>>) -> Result<Awaited, Failure> {
        let section = &*self.node.section;
        let most = section.options.maxqueue as u64;
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(Failure::Closed);
        }
        let queued = section.counters.queued.load(std::sync::atomic::Ordering::Relaxed);
        if queued >= most || queue.commands.bytes().len() > QUEUED_MAX {
            return Err(Failure::QueueFull(queued as usize));
        }
        add(&section.counters.queued, 1);
        let (waiter, awaited) = Waiter::of(&request);
        let before = queue.commands.bytes.len();
        request.encode(&mut queue.commands.bytes);
        let len = queue.commands.bytes.len() - before;
        let transaction = request.transaction();
        queue.commands.entries.push_back(Entry { asked, transaction, ..Entry::new(len, route, waiter) });
        let waker = queue.waker.take();
        drop(queue);
        // One wake-up for all commands queued before the task runs.
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(awaited)
    }

    /// Queues a command that was queued elsewhere before. Returns it if the lane is closed.
    pub(crate) fn requeue(&self, entry: Entry, bytes: &[u8]) -> Result<(), Entry> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(entry);
        }
        add(&self.node.section.counters.queued, 1);
        queue.commands.bytes.extend_from_slice(bytes);
        queue.commands.entries.push_back(entry);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Sends queued commands that belong to another node by now to that node.
    fn reroute(&self) {
        let Some(router) = self.node.section.router() else { return };
        // The lane was closed for this node, but the node may have become the right one again.
        let again = self.is_closed() && !self.node.section.is_closed();
        let commands = std::mem::take(&mut self.queue.lock().commands);
        take(&self.node.section.counters.queued, commands.entries.len() as u64);
        let (mut stay, mut start) = (Commands::default(), commands.answered);
        for entry in commands.entries {
            let bytes = &commands.bytes[start..start + entry.len];
            start += entry.len;
            match router.clone().elsewhere(&entry.route, &self.node) {
                Some(node) => router.resend(&node, entry, bytes),
                None if again && !entry.route.own => router.send(&self.node, entry, bytes),
                None => {
                    stay.bytes.extend_from_slice(bytes);
                    stay.entries.push_back(entry);
                }
            }
        }
        self.put_back(stay);
    }

    /// Lets the task route the queued commands again, since other nodes own the slots now.
    pub(crate) fn turn(&self) {
        self.turned.notify_one();
        self.wake();
    }

    /// Registers the task to be woken when there is work; for callers that take no commands now.
    pub(crate) fn watch(&self, cx: &Context<'_>) {
        self.queue.lock().waker = Some(cx.waker().clone());
    }

    /// Moves up to `most` commands to the end of `to`. If there are none, the task is woken when one comes.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, most: usize, to: &mut Commands) -> Poll<usize> {
        let mut queue = self.queue.lock();
        let count = queue.commands.entries.len().min(most);
        if count == 0 {
            let waker = cx.waker();
            if queue.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
                queue.waker = Some(waker.clone());
            }
            return if queue.closed { Poll::Ready(0) } else { Poll::Pending };
        }
        let all = count == queue.commands.entries.len();
        if all && to.entries.is_empty() && to.bytes.is_empty() && queue.commands.answered == 0 {
            std::mem::swap(&mut queue.commands, to);
        } else {
            let bytes: usize = queue.commands.entries.iter().take(count).map(|entry| entry.len).sum();
            to.bytes.extend_from_slice(&queue.commands.bytes()[..bytes]);
            queue.commands.forget(bytes);
            to.entries.extend(queue.commands.entries.drain(..count));
        }
        drop(queue);
        take(&self.node.section.counters.queued, count as u64);
        Poll::Ready(count)
    }

    /// Puts unanswered commands back before all others.
    pub(crate) fn put_back(&self, mut commands: Commands) {
        if commands.entries.is_empty() {
            return;
        }
        add(&self.node.section.counters.queued, commands.entries.len() as u64);
        let mut queue = self.queue.lock();
        commands.bytes.extend_from_slice(queue.commands.bytes());
        commands.entries.extend(queue.commands.entries.drain(..));
        queue.commands = commands;
    }

    /// Wakes the task to check for changes around the lane.
    pub(crate) fn wake(&self) {
        let waker = self.queue.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Closes the lane; its task fails the queued commands.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.wake();
    }

    /// Returns the deadline of the first command.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let timeout = self.node.section.options.timeout_queue;
        self.queue.lock().commands.entries.front().map(|entry| entry.since + timeout)
    }

    /// Fails commands with the results of `failure`, from the first on, until it returns `None`.
    fn fail_while(&self, failure: impl Fn(&Entry) -> Option<Failure>) {
        let (mut failed, mut bytes) = (Vec::new(), 0);
        let mut queue = self.queue.lock();
        while let Some(found) = queue.commands.entries.front().and_then(&failure) {
            let entry = queue.commands.entries.pop_front().expect("just seen");
            bytes += entry.len;
            failed.push((entry, found));
        }
        if failed.is_empty() {
            return;
        }
        queue.commands.forget(bytes);
        drop(queue);
        take(&self.node.section.counters.queued, failed.len() as u64);
        failed.into_iter().for_each(|(entry, found)| entry.fail(&self.node.section, found));
    }

    /// Fails commands whose deadline has passed.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        let timeout = self.node.section.options.timeout_queue;
        self.fail_while(|entry| {
            (entry.since + timeout <= now).then(|| Failure::no_connection(self.node.last_failure(), timeout))
        });
    }

    /// Waits until there is something to do. Returns false if the lane is closed.
    async fn wait_for_work(&self) -> bool {
        poll_fn(|cx| {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Poll::Ready(false);
            }
            if !queue.commands.entries.is_empty() {
                return Poll::Ready(true);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Fails commands whose deadline has passed, for ever.
    async fn expire_always(&self) {
        loop {
            self.expire();
            let next =
                self.first_deadline().unwrap_or_else(|| Instant::now() + self.node.section.options.timeout_queue);
            sleep_until(next).await;
        }
    }

    /// Returns a connection for the queued commands; `None`: no command is queued any more.
    async fn connect(&self) -> Option<Connected> {
        let wanted = || self.first_deadline().is_some();
        self.reroute();
        let connecting = async {
            while wanted() {
                match self.node.connect(self.db, wanted).await {
                    Ok(connected) => return Some(connected),
                    Err(NotConnected::Before(at)) => sleep_until(at).await,
                    Err(NotConnected::Unwanted) => return None,
                    Err(NotConnected::Failed) => {
                        self.reroute();
                        if let Some(failure) = self.node.open_failure() {
                            self.fail_while(|_| Some(failure.clone()));
                        }
                    }
                }
            }
            None
        };
        tokio::select! {
            biased;
            // The results of the last iteration are examined before a new attempt to connect is started.
            () = self.turned.notified() => None,
            connected = connecting => connected,
            () = self.expire_always() => None,
        }
    }
}

/// Closes the lane and fails the queued commands, also if its task is dropped with its runtime.
struct Closing(Arc<Lane>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
        self.0.fail_while(|_| Some(Failure::Closed));
    }
}

/// Serves a lane until it is closed. It is also closed if the runtime ends before this has begun.
pub(crate) fn serve(lane: Arc<Lane>) -> impl Future<Output = ()> + Send {
    let closing = Closing(lane);
    async move { serve_until_closed(&closing.0).await }
}

async fn serve_until_closed(lane: &Lane) {
    while lane.wait_for_work().await {
        let Some(connected) = lane.connect().await else { continue };
        let lifetime = lane.node.section.options.max_lifetime.map(jittered);
        let mut running = Running::new(lane, connected, lifetime);
        let generation = running.generation;
        let end = running.run().await;
        running.finish(&end);
        drop(running);
        if let running::End::Lost(reason) | running::End::Dead(reason) = &end {
            lane.node.died(generation, reason);
        }
    }
    lane.reroute();
}

/// Returns the lifetime changed by up to a tenth, so that connections made together don't end together.
pub(crate) fn jittered(lifetime: Duration) -> Duration {
    lifetime.mul_f64(0.9 + 0.2 * fastrand::f64())
}
/// Sends a command of the client's own and returns the reply.
pub(crate) async fn question(node: &Arc<Node>, words: &[&[u8]]) -> Reply {
    match node.lane(0).and_then(|lane| lane.push(words, Route::own())) {
        Ok(awaited) => pending(awaited).finish().await,
        Err(failure) => failure.into_reply(),
    }
}
