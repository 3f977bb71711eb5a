//! One connection: bytes in, commands in order, bytes out.
//!
//! The task waits for readability without a buffer, takes a [`Workspace`] of the worker when there is something to
//! read, and gives it back as soon as nothing is half read, so that an idle connection is a few hundred bytes. One
//! read makes one turn: all complete commands are run, the replies are written once, mostly together with those of
//! other connections ([`batch`](super::batch)).
//!
//! Reads go through `poll_read`, which notices that a partly filled buffer means an empty socket; so a request and
//! its reply cost one read, one write and one wait, and no read that fails.

mod ahead;
mod waiting;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::ReadHalf;
use sluicegate_wire::resp::{CommandLimits, CommandStatus, ProtocolError, ReplySink, ReplyWriter};
use tokio::io::AsyncReadExt;

use super::Worker;
use super::batch::{Exit, State};
use super::client::Client;
use super::dispatch::{Buffers, Context, Outcome, Replies, Session};
use super::multi;
use super::tracking;
use super::workspace::{READ_SIZE_MAX, Workspace};
use crate::config::ServerOptions;
use crate::outbox::UNCOUNTED;
use crate::owned::Received;
use crate::park::Parked;
use crate::record;
use crate::transaction::Exec;
use ahead::Ahead;

/// The bytes of replies at which a turn stops to write them and to let other connections run.
const TURN_OUTPUT: usize = 64 * 1024;
const _: () = assert!(UNCOUNTED <= TURN_OUTPUT);

/// The number of commands after which a turn stops for the same reasons.
const TURN_COMMANDS: usize = 512;

/// The bytes that are read of a client whose commands are paused, so that the kernel makes it wait. Before, its disconnection
/// shows.
const HELD_INPUT_MAX: usize = 64 * 1024;

/// The size from which on requests are passed on with the buffer that contains them, which the store may keep.
const LONG_REQUEST: usize = 1 << 20;

/// The size from which on memory is freed on the thread pool: freeing it takes longer than a turn may.
const FREED_ASIDE: usize = 8 << 20;

/// The bytes of replies after which a connection lets the others of its worker run.
const WRITE_SHARE: usize = 256 * 1024;

/// A connection's task.
pub(super) struct Connection {
    worker: Rc<Worker>,
    stream: ReadHalf,
    exit: Rc<Exit>,
    client: Arc<Client>,
    session: Session,
    workspace: Option<Box<Workspace>>,
    ahead: Ahead,
}

/// An event for a waiting connection.
enum Came {
    /// Bytes of requests; 0 at the end of the stream.
    Bytes(usize),
    /// Messages of channels that it listens to.
    Messages,
    /// No event: the socket did not accept the replies of the last turn.
    Stuck,
}

/// The reason why a turn cannot continue by itself.
enum Step {
    /// All complete requests are run.
    Drained,
    /// The turn has done its share of work, and there is more.
    Share,
    /// The command's reply is pending.
    Parked(Parked),
    /// The command's reply is written at a certain time.
    Later(Pin<Box<dyn Future<Output = Vec<u8>>>>),
    /// A transaction waits for its keys, or continues after a slice.
    Exec(Box<Exec>),
    /// The next command waits for the end of a pause.
    Paused { is_write: bool },
    /// The next command waits for the end of this.
    Again(Option<Parked>),
    /// Write the pending output and close.
    Close,
    /// Close immediately.
    Abort,
}

/// While it exists, this thread has what it records taken itself.
struct Commits;

impl Commits {
    fn new() -> Commits {
        record::set_commits(true);
        Commits
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        record::set_commits(false);
    }
}

impl Connection {
    pub fn new(
        worker: Rc<Worker>,
        stream: ReadHalf,
        exit: Rc<Exit>,
        client: Arc<Client>,
        session: Session,
    ) -> Connection {
        Connection { worker, stream, exit, client, session, workspace: None, ahead: Ahead::default() }
    }

    /// Serves the client until it disconnects or is closed.
    #[expect(clippy::manual_async_fn, reason = "the future of an `async fn` holds its argument and a copy of it")]
    pub fn run(mut self) -> impl Future<Output = ()> {
        async move {
            loop {
                let mut last = false;
                let count = match poll_fn(|cx| self.poll_read(cx, &mut last)).await {
                    Ok(Came::Bytes(count)) if count > 0 => count,
                    Ok(Came::Messages | Came::Stuck) => {
                        if !Box::pin(self.deliver()).await {
                            return;
                        }
                        self.settle();
                        continue;
                    }
                    _ => return,
                };
                let filled = count == READ_SIZE_MAX
                    || self
                        .workspace
                        .as_ref()
                        .is_some_and(|workspace| workspace.input.len() == workspace.input.capacity());
                if !self.turn(last).await || last {
                    return;
                }
                self.settle();
                if filled {
                    // There is probably more to read: let the others run first.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Reads available data; 0 at the end of the stream and when the connection has to end. `last` is set when the
    /// server stops: requests received already are executed, and no more are read.
    fn poll_read(&mut self, cx: &mut TaskContext<'_>, last: &mut bool) -> Poll<io::Result<Came>> {
        self.client.register(cx.waker());
        if self.client.is_killed() {
            return Poll::Ready(Ok(Came::Bytes(0)));
        }
        match self.exit.state() {
            State::Clear | State::Waiting => {}
            State::Stuck => return Poll::Ready(Ok(Came::Stuck)),
            State::Gone => return Poll::Ready(Ok(Came::Bytes(0))),
        }
        *last = self.worker.server.is_stopping();
        match self.stream.poll_readable(cx) {
            Poll::Pending if *last => return Poll::Ready(Ok(Came::Bytes(0))),
            // After requests, so that a flood of messages doesn't keep the client from unsubscribing.
            Poll::Pending if self.has_messages() => return Poll::Ready(Ok(Came::Messages)),
            readable => ready!(readable)?,
        }
        let workspace = self.workspace.get_or_insert_with(|| self.worker.take_workspace());
        workspace.make_room();
        // A buffer may have more room than a turn should read.
        let mut piece = (&mut self.stream).take(READ_SIZE_MAX as u64);
        let read = pin!(piece.read_buf(&mut workspace.input)).poll(cx);
        match read {
            Poll::Ready(Ok(count)) => {
                workspace.count(&self.worker.server.store.0.memory);
                self.worker.counters.reads.add(1);
                self.worker.counters.input_bytes.add(count as u64);
            }
            Poll::Pending if workspace.is_idle() => self.give_back(),
            _ => {}
        }
        read.map_ok(Came::Bytes)
    }

    /// Returns whether messages wait to be sent.
    fn has_messages(&self) -> bool {
        // A client may have stopped listening since: in the transaction that published them.
        self.client.outbox.is_filled()
    }

    /// Sends the messages that arrived while no request was pending, and the rest of the last replies. Returns false if
    /// the connection has to be closed.
    async fn deliver(&mut self) -> bool {
        let mut workspace = self.workspace.take().unwrap_or_else(|| self.worker.take_workspace());
        self.client.outbox.drain_some(WRITE_SHARE, &mut workspace.output);
        let options = self.worker.options();
        workspace.count(&self.worker.server.store.0.memory);
        let goes_on = self.flush(&mut workspace.output, &options).await;
        workspace.count(&self.worker.server.store.0.memory);
        self.workspace = Some(workspace);
        if self.has_messages() {
            // Let the others on this worker run first.
            tokio::task::yield_now().await;
        }
        goes_on
    }

    fn give_back(&mut self) {
        if let Some(mut workspace) = self.workspace.take() {
            let Workspace { input, output, .. } = &mut *workspace;
            for buffer in [input, output] {
                if buffer.capacity() >= FREED_ASIDE {
                    let freed = std::mem::take(buffer);
                    self.worker.server.store.0.aside.run(move || drop(freed));
                }
            }
            workspace.clear();
            self.worker.give_back(workspace);
        }
    }

    /// After a turn: frees the buffers if no partial request is left, and publishes the activity.
    fn settle(&mut self) {
        let mut buffers = Buffers::default();
        match &self.workspace {
            Some(workspace) if workspace.is_idle() => self.give_back(),
            Some(workspace) => buffers = workspace.buffers(),
            None => {}
        }
        self.tell(false, buffers);
    }

    fn tell(&self, is_blocked: bool, buffers: Buffers) {
        let mut activity = self.client.activity.lock();
        activity.set(&self.session);
        activity.is_blocked = is_blocked;
        activity.waits = None;
        Buffers { query: activity.query, query_free: activity.query_free, reply_room: activity.reply_room } = buffers;
        (activity.output, activity.words) = (0, 0);
    }

    /// Runs every complete request. Returns false if the connection has to be closed. With `last`, replies are not
    /// batched.
    async fn turn(&mut self, last: bool) -> bool {
        let Some(mut workspace) = self.workspace.take() else { return false };
        let goes_on = loop {
            let options = self.worker.options();
            let tracking = &self.worker.server.store.0.tracking;
            let broadcasts = tracking.begin_turn();
            let step = {
                // What it records is committed before the replies are sent.
                let _commits = self.worker.server.store.0.loading.holds_replies().then(Commits::new);
                self.step(&mut workspace, &options)
            };
            if broadcasts {
                self.worker.server.store.0.tracking.end_turn();
                if self.has_messages() && matches!(step, Step::Drained | Step::Share | Step::Close) {
                    self.client.outbox.drain(&mut workspace.output);
                }
            }
            let memory = &self.worker.server.store.0.memory;
            workspace.count(memory);
            if memory.watches_clients() && memory.has_clients_excess() {
                self.tell(false, workspace.buffers());
                self.worker.server.close_largest();
            }
            self.session.stop_clock(&self.worker);
            match step {
                Step::Drained if !last && self.keep(&mut workspace.output) => break true,
                Step::Drained => break self.flush(&mut workspace.output, &options).await,
                Step::Share => {
                    if !self.flush(&mut workspace.output, &options).await {
                        break false;
                    }
                    tokio::task::yield_now().await;
                }
                Step::Parked(reply) => {
                    // The replies before it must not wait for it.
                    if !self.flush(&mut workspace.output, &options).await {
                        break false;
                    }
                    *self.client.blocked.lock() = reply.waiter().cloned();
                    if let Some(waiter) = reply.waiter() {
                        self.worker.server.unblock_late(waiter);
                    }
                    self.waits(&workspace, workspace.waits);
                    self.client.activity.lock().waits = reply.ticket().cloned();
                    if self.session.user.restrictions().is_some() {
                        // Its permissions may have changed since they were checked.
                        self.worker.server.refuse_blocked(&self.client, &self.session.user);
                    }
                    // Boxed: few connections ever wait like this, but all would carry its size.
                    let waits = Box::pin(async {
                        let came = self.reply_of(reply, &mut workspace, &options).await;
                        self.end_wait(came, &mut workspace, &options).await
                    });
                    if !waits.await {
                        break false;
                    }
                }
                Step::Later(reply) => {
                    if !self.flush(&mut workspace.output, &options).await {
                        break false;
                    }
                    self.waits(&workspace, 0);
                    let waits = Box::pin(async {
                        let came = self.unless_gone(reply, &mut workspace, usize::MAX, &options).await;
                        self.end_wait(came, &mut workspace, &options).await
                    });
                    if !waits.await {
                        break false;
                    }
                }
                Step::Exec(exec) => {
                    if !Box::pin(self.exec(exec, &mut workspace, &options)).await {
                        break false;
                    }
                }
                Step::Paused { is_write } => {
                    if !self.flush(&mut workspace.output, &options).await {
                        break false;
                    }
                    self.waits(&workspace, 0);
                    let server = self.worker.server.clone();
                    let pause = Box::pin(async move {
                        let may_run = server.pause.wait(is_write).await;
                        if may_run {
                            server.store.0.loading.room().await;
                        }
                        may_run
                    });
                    let came = Box::pin(self.unless_gone(pause, &mut workspace, HELD_INPUT_MAX, &options)).await;
                    if came.is_none_or(|(may_run, _)| !may_run) {
                        break false;
                    }
                    self.goes_on();
                }
                Step::Again(awaited) => {
                    if !self.flush(&mut workspace.output, &options).await {
                        break false;
                    }
                    let Some(awaited) = awaited else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    self.waits(&workspace, 0);
                    if Box::pin(self.reply_of(awaited, &mut workspace, &options)).await.is_none() {
                        break false;
                    }
                    self.goes_on();
                }
                Step::Close => {
                    self.flush(&mut workspace.output, &options).await;
                    break false;
                }
                Step::Abort => break false,
            }
        };
        self.workspace = Some(workspace);
        goes_on
    }

    /// Runs requests until something has to be awaited.
    fn step(&mut self, workspace: &mut Workspace, options: &Arc<ServerOptions>) -> Step {
        let query_limit = options.client_query_buffer_limit;
        if (workspace.input.len() - workspace.start + self.session.queued_bytes()) as u64 > query_limit {
            self.worker.counters.query_limit.add(1);
            return Step::Abort;
        }
        if self.has_messages() {
            // The messages were sent before these requests, so the replies follow them.
            self.client.outbox.drain(&mut workspace.output);
        }
        let Workspace { input, start, parser, output, need, waits, .. } = workspace;
        self.session.now = Instant::now();
        if self.worker.batch.is_overdue(self.session.now) {
            self.worker.send_batch();
        }
        let mut plain = Default::default();
        for _ in 0..TURN_COMMANDS {
            let limits = CommandLimits {
                max_bulk: options.proto_max_bulk_len,
                unauthenticated: !self.session.authenticated && !self.worker.server.store.0.acl.admits_anyone(),
                ..CommandLimits::default()
            };
            let other;
            let request = &input[*start..];
            let (consumed, args) = if let Some((consumed, count)) = parser.plain(request, &limits, &mut plain) {
                (consumed, &plain[..count])
            } else {
                let consumed = match parser.parse(request, &limits) {
                    CommandStatus::Complete { consumed } => consumed,
                    CommandStatus::Incomplete { need: lacking } => {
                        *need = lacking;
                        return Step::Drained;
                    }
                    CommandStatus::Error(error) => {
                        self.refuse(error, output);
                        return Step::Close;
                    }
                };
                if consumed > LONG_REQUEST {
                    return self.run_long(workspace, consumed, options);
                }
                other = parser.args(request);
                (consumed, &other[..])
            };
            if args.is_empty() {
                *start += consumed;
                continue;
            }
            let store = &self.worker.server.store.0;
            self.ahead.advance(store, self.session.db, (parser, &limits), (request, consumed));
            let buffers = Buffers {
                query: request.len(),
                query_free: input.capacity() - input.len(),
                reply_room: output.capacity(),
            };
            let outcome = self.context(options, None, request, buffers).execute(args, output);
            if let Outcome::Done = outcome
                && self.goes_straight_on(output)
            {
                *start += consumed;
                // It has nothing to be dropped.
                std::mem::forget(outcome);
                continue;
            }
            if !matches!(outcome, Outcome::Paused { .. } | Outcome::Again(_)) {
                *start += consumed;
            }
            if let Some(step) = self.after(outcome, output, options) {
                *waits = consumed;
                return step;
            }
        }
        Step::Share
    }

    fn context<'c>(
        &'c mut self,
        options: &'c Arc<ServerOptions>,
        received: Option<&'c Received>,
        request: &'c [u8],
        buffers: Buffers,
    ) -> Context<'c> {
        let (worker, session, client) = (&self.worker, &mut self.session, &self.client);
        Context { worker, options, session, client, received, request, buffers }
    }

    /// Runs the request that was just read, which is long. The bytes after it continue in a new buffer if the store
    /// keeps this one.
    fn run_long(&mut self, workspace: &mut Workspace, consumed: usize, options: &Arc<ServerOptions>) -> Step {
        let buffers = workspace.buffers();
        let Workspace { input, start, parser, output, waits, .. } = workspace;
        let received = Arc::new(std::mem::take(input));
        let outcome =
            self.context(options, Some(&received), &[], buffers).execute(&parser.args(&received[*start..]), output);
        if !matches!(outcome, Outcome::Paused { .. } | Outcome::Again(_)) {
            *start += consumed;
        }
        *input = Arc::try_unwrap(received).unwrap_or_else(|kept| kept[std::mem::take(start)..].to_vec());
        *waits = consumed;
        self.after(outcome, output, options).unwrap_or(Step::Share)
    }

    /// Returns whether the next request follows one that is done, as far as that is seen at once; if not,
    /// [`after`](Self::after) decides.
    #[inline]
    fn goes_straight_on(&self, output: &[u8]) -> bool {
        output.len() <= UNCOUNTED && !self.has_messages() && !self.worker.options_changed() && !self.client.is_killed()
    }

    /// Returns the step after a request; `None` if the next request follows.
    fn after(&self, outcome: Outcome, output: &mut Vec<u8>, options: &ServerOptions) -> Option<Step> {
        if self.has_messages() && !matches!(outcome, Outcome::Abort | Outcome::Paused { .. } | Outcome::Again(_)) {
            self.client.outbox.drain(output);
        }
        Some(match outcome {
            Outcome::Paused { is_write } => Step::Paused { is_write },
            Outcome::Again(awaited) => Step::Again(awaited),
            Outcome::Parked(reply) => Step::Parked(reply),
            Outcome::Later(reply) => Step::Later(reply),
            Outcome::Exec(exec) => Step::Exec(exec),
            Outcome::Close => Step::Close,
            Outcome::Abort => Step::Abort,
            _ if self.exceeds(output, options) => Step::Abort,
            _ if output.len() > TURN_OUTPUT => Step::Share,
            // CONFIG SET acts on the very next command.
            _ if self.worker.options_changed() => Step::Share,
            _ if self.client.is_killed() => Step::Close,
            _ => return None,
        })
    }

    fn refuse(&mut self, error: ProtocolError, output: &mut Vec<u8>) {
        let message = error.message();
        self.worker.counters.error_replies.add(1);
        self.worker.server.store.0.errors.count(&message);
        if self.session.replies != Replies::Off {
            ReplyWriter::new(output, self.session.protocol).error_bytes(&message);
        }
    }

    /// Adds a turn's replies to the worker's batch, if it has other connections.
    fn keep(&mut self, output: &mut Vec<u8>) -> bool {
        if self.worker.live.get() <= 1 || output.is_empty() {
            return false;
        }
        let inner = &self.worker.server.store.0;
        let number = inner.loading.holds_replies().then(|| inner.record.last());
        let has_written = self.session.has_written;
        let is_kept = self.worker.batch.keep(&self.exit, output, self.session.now, number, has_written);
        if is_kept {
            self.session.has_written = false;
            output.clear();
        }
        is_kept
    }

    /// Writes everything. Returns false if the client has disconnected, is killed or reads too slowly.
    async fn flush(&mut self, output: &mut Vec<u8>, options: &ServerOptions) -> bool {
        if output.len() > WRITE_SHARE {
            // Boxed: few replies are so large, all connections would carry its size.
            return Box::pin(self.flush_in_shares(output, options)).await;
        }
        let inner = &self.worker.server.store.0;
        if inner.loading.holds_replies() {
            let appender = &inner.appender;
            if output.is_empty() && self.exit.state() == State::Clear {
                // The client wants no replies.
                appender.commit();
            } else if !Box::pin(self.wait_for_disk()).await {
                return false;
            }
        }
        if self.exit.is_batched() {
            self.worker.send_batch();
        }
        self.exit.take_rest(output);
        if self.exit.state() == State::Gone {
            return false;
        }
        let mut sent = 0;
        while sent < output.len() {
            match self.exit.try_write(&output[sent..]) {
                Ok(count) => {
                    sent += count;
                    self.worker.counters.writes.add(1);
                    self.worker.counters.output_bytes.add(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let limit = options.client_output_buffer_limit[self.output_class()];
                    let waiting = output.len() - sent + self.client.behind.load(Ordering::Relaxed);
                    self.client.outbox.left(waiting);
                    self.client.activity.lock().output = waiting;
                    let soft = limit.is_nearly_passed_by(waiting).then(|| Duration::from_secs(limit.soft_s));
                    // Boxed: few replies have to wait, all connections would carry its size.
                    let since = Instant::now();
                    if !Box::pin(self.wait_writable(soft)).await {
                        if soft.is_some_and(|soft| since.elapsed() >= soft) {
                            self.worker.counters.output_limit.add(1);
                        }
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        output.clear();
        self.client.outbox.left(0);
        true
    }

    /// Waits until what the replies follow is on the disk. Returns false if the client must not get them, because what it
    /// has written may not last.
    async fn wait_for_disk(&mut self) -> bool {
        let has_written = std::mem::take(&mut self.session.has_written);
        let inner = self.worker.server.store.0.clone();
        let number = inner.record.last();
        let durable = Box::pin(async move {
            if inner.appender.durable_number() < number {
                inner.appender.commit();
            }
            inner.appender.durable(number).await
        });
        let Some((is_durable, _)) = self.unless_killed(durable).await else { return false };
        if !is_durable {
            // Its earlier replies come first.
            self.worker.batch.fail(&self.worker.counters);
        }
        is_durable || !has_written
    }

    /// Like [`flush`](Self::flush), but lets the worker's other clients run in between.
    async fn flush_in_shares(&mut self, output: &mut Vec<u8>, options: &ServerOptions) -> bool {
        let mut behind = output.len();
        for share in output.chunks(WRITE_SHARE) {
            behind -= share.len();
            self.client.behind.store(behind, Ordering::Relaxed);
            if !self.flush(&mut share.to_vec(), options).await {
                return false;
            }
            tokio::task::yield_now().await;
        }
        output.clear();
        true
    }

    /// Continues a transaction until its reply is in the output. Returns false if the connection has to be closed.
    async fn exec(&mut self, mut exec: Box<Exec>, workspace: &mut Workspace, options: &Arc<ServerOptions>) -> bool {
        // If the transaction has begun, its reply is in the output already.
        if !exec.has_begun() && !self.flush(&mut workspace.output, options).await {
            return false;
        }
        self.waits(workspace, 0);
        let finished = poll_fn(|cx| {
            self.client.register(cx.waker());
            if self.client.is_killed() || self.exceeds(&workspace.output, options) {
                return Poll::Ready(false);
            }
            let mut context = self.context(options, None, &[], Buffers::default());
            let polled = multi::poll(&mut exec, cx.waker(), &mut context, &mut workspace.output).map(|()| true);
            workspace.count(&self.worker.server.store.0.memory);
            polled
        });
        let finished = finished.await;
        self.goes_on();
        let before = exec.reply_start().unwrap_or(workspace.output.len());
        self.session.finish_exec(&self.worker, &mut workspace.output, before);
        if self.exceeds(&workspace.output, options) {
            return false;
        }
        let closes = exec.closes;
        drop(exec);
        if closes {
            self.flush(&mut workspace.output, options).await;
        }
        finished && !closes
    }

    /// Returns whether the replies exceed the client's limit of unread data.
    fn exceeds(&self, output: &[u8], options: &ServerOptions) -> bool {
        let exceeds = options.client_output_buffer_limit[self.output_class()].is_passed_by(output.len());
        if exceeds {
            self.worker.counters.output_limit.add(1);
        }
        exceeds
    }

    /// Returns the client's row of `client-output-buffer-limit`.
    fn output_class(&self) -> usize {
        match () {
            () if self.session.listens() => 2,
            () if self.client.replica.get().is_some() => 1,
            () => 0,
        }
    }

    async fn wait_writable(&self, at_most: Option<Duration>) -> bool {
        let writable = poll_fn(|cx| {
            self.client.register(cx.waker());
            if self.client.is_killed() {
                return Poll::Ready(false);
            }
            self.stream.poll_writable(cx).map(|ready| ready.is_ok())
        });
        match at_most {
            None => writable.await,
            // Boxed: few connections ever need the timer, all would carry its size.
            Some(time) => Box::pin(tokio::time::timeout(time, writable)).await.unwrap_or(false),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.exit.is_batched() {
            // The worker may end with its last connection.
            self.worker.send_batch();
        }
        self.session.leave(&self.client, &self.worker.server.store.0);
        tracking::leave(&self.client, &self.worker.server.store.0);
        if let Some(replica) = self.client.replica.get() {
            self.worker.server.lose_replica(replica);
        }
        if self.client.is_monitor() {
            let server = &self.worker.server;
            server.monitors.remove(&self.client, &server.store.0.scripts.watches);
        }
        if self.client.outbox.is_given_up() {
            self.worker.counters.output_limit.add(1);
        }
        self.worker.gone(self.client.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_small() {
        // What a hundred thousand idle clients cost beside their sockets.
        fn future_size<F: Future>(_: fn(Connection) -> F) -> usize {
            size_of::<F>()
        }
        let size = future_size(Connection::run);
        assert!(size <= 512, "{size} bytes");
    }
}
