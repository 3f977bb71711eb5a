//! From the words of a request to its reply: lookup (`table`), checks in Redis's order, and the choice of the executor.

mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use super::client::Client;
use super::guard::Kept;
use super::multi;
use super::redirect::{self, Redirected, Redirects};
use super::rows::Queueing;
use super::subscription::{self, Subscriptions};
use super::tracking::Tracker;
use super::{Server, Worker};
use super::{pause, slowlog};
use crate::Inner;
use crate::acl::User;
use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Cost, Flags, Handler, Numbered};
use crate::config::ServerOptions;
use crate::execute::Origin;
use crate::loading::{LOADING, MASTERDOWN, NOREPLICAS, READONLY};
use crate::memory::OOM;
use crate::owned::Received;
use crate::owned::ReplyForm;
use crate::park::Parked;
use crate::refused::FAILED;
use crate::refused::MISCONF;
use crate::refused::{unknown_command, unknown_subcommand};
use crate::replication::replica;
use crate::transaction::{Exec, Multi};
use crate::watch::Mark;
use crate::watching::Watching;
pub(super) use table::{INDEX, Row};

/// The result of a command.
pub(super) enum Outcome {
    /// Its reply is written.
    Done,
    /// Its reply is written, and the connection has to be closed.
    Close,
    /// Not a command but HTTP: the connection is closed immediately, without sending the remaining replies.
    Abort,
    /// Its reply is pending, and will be encoded in the connection's protocol.
    Parked(Parked),
    /// Its encoded reply is written at a certain time.
    Later(Pin<Box<dyn Future<Output = Vec<u8>>>>),
    /// A transaction, whose reply the connection writes.
    Exec(Box<Exec>),
    /// It has not been run: CLIENT PAUSE.
    Paused { is_write: bool },
    /// It has not been run, and has to be once this has ended.
    Again(Option<Parked>),
}

/// Whether replies are sent: CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replies {
    On,
    Off,
    /// The reply of the next command is suppressed.
    SkipNext,
    /// The reply of this command is suppressed.
    Skip,
}

/// State that few connections have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Its subscriptions.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// The commands queued since MULTI.
    pub multi: Option<Box<Multi>>,
    /// The keys that the client watches.
    pub watching: Option<Box<Watching>>,
    /// The permissions of its user, if it is restricted.
    pub kept: Option<Kept>,
    /// What it has told of itself before it becomes a replica.
    pub told: Option<Box<replica::Told>>,
    /// Its tracking, once it has tracked keys.
    pub tracker: Option<Tracker>,
}

/// The state of a connection that its commands change.
#[derive(Debug)]
pub(super) struct Session {
    pub db: u32,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// The user of its commands: `default` before it has logged in.
    pub user: Arc<User>,
    pub replies: Replies,
    /// Whether something is due after the current command: CLIENT REPLY suppresses replies, or CLIENT CACHING was called.
    pub has_afterwork: bool,
    pub no_evict: bool,
    /// On whose behalf its next command runs.
    pub behalf: Behalf,
    pub rare: Box<Rare>,
    /// Whether the commands of a transaction are being run.
    pub in_exec: bool,
    /// What it is told on a replica.
    pub redirects: Redirects,
    /// Whether it has called a command that may write since its replies were last sent.
    pub has_written: bool,
    /// The last command, for CLIENT LIST.
    pub command: &'static str,
    /// The start of the commands being timed.
    pub now: Instant,
    /// The row being timed. Consecutive commands of the same row are timed together, so a pipeline of them costs one
    /// reading of the clock, and the sums are still right.
    timed: Option<u16>,
    /// The number of commands that have run since then.
    timed_calls: u16,
    /// Boxed, as few connections ever have one.
    parked: Option<Box<ParkedCommand>>,
}

/// Data about a command whose reply is pending.
#[derive(Debug)]
struct ParkedCommand {
    row: u16,
    /// Its words for the slow log; empty if not needed.
    words: Vec<Vec<u8>>,
}

impl Session {
    pub fn new(client: u64, user: Arc<User>, authenticated: bool) -> Session {
        Session {
            db: 0,
            protocol: Protocol::Resp2,
            authenticated,
            user,
            replies: Replies::On,
            has_afterwork: false,
            no_evict: false,
            behalf: Behalf::of_client(client),
            rare: Box::default(),
            in_exec: false,
            redirects: Redirects::default(),
            has_written: false,
            command: "NULL",
            now: Instant::now(),
            timed: None,
            timed_calls: 0,
            parked: None,
        }
    }

    /// Returns whether it has subscriptions.
    #[inline]
    pub fn listens(&self) -> bool {
        self.rare.subscriptions.is_some()
    }

    /// Returns the number and size of the commands queued for EXEC, and the mark of watched keys, for CLIENT LIST.
    pub fn transaction(&self) -> (Option<(usize, usize)>, Option<Arc<Mark>>) {
        let mark = self.rare.watching.as_ref().map(|watching| watching.mark.clone());
        (self.rare.multi.as_ref().map(|multi| multi.size()), mark)
    }

    /// Returns the bytes of commands that wait for EXEC.
    pub fn queued_bytes(&self) -> usize {
        self.rare.multi.as_ref().map_or(0, |multi| multi.size().1)
    }

    /// Counts a command of a transaction by its reply.
    pub fn count_inner(&self, worker: &Worker, row: u16, reply: &[u8]) {
        let counters = &worker.counters.per_command[usize::from(row)];
        counters.calls.add(1);
        worker.counters.commands.add(1);
        if reply.first() == Some(&b'-') {
            counters.failed.add(1);
            count_error(worker, reply, 0);
        }
    }

    /// Accounts for a transaction whose reply starts at `before`.
    pub fn finish_exec(&mut self, worker: &Worker, output: &mut Vec<u8>, before: usize) {
        if let Some(parked) = self.parked.take() {
            let row = parked.row;
            self.timed = Some(row);
            self.account(worker, row, output, before, true);
            self.stop_clock(worker);
        }
    }

    /// Returns whether it tracks keys, in any mode.
    pub fn tracks_keys(&self) -> bool {
        self.rare.tracker.as_ref().is_some_and(Tracker::is_on)
    }

    /// Returns whether CLIENT REPLY suppresses the current reply.
    pub fn is_mute(&self) -> bool {
        matches!(self.replies, Replies::Off | Replies::Skip)
    }

    /// Ends subscriptions, watch and transaction: RESET, and a connection's end.
    pub fn leave(&mut self, client: &Client, inner: &Inner) {
        multi::end_queue(self, inner);
        multi::end_watch(self, inner);
        subscription::leave_all(self, client, &inner.pubsub);
        if let Some(tracker) = self.rare.tracker.take() {
            tracker.end(inner, &mut self.behalf);
            self.note_afterwork();
        }
    }

    /// Ends the timing of the commands so far: at a turn's end, and before a command of another row.
    pub fn stop_clock(&mut self, worker: &Worker) -> Duration {
        let Some(row) = self.timed.take() else { return Duration::ZERO };
        let now = Instant::now();
        let spent = now.duration_since(self.now);
        self.spend(worker, row, spent);
        self.now = now;
        spent
    }

    /// Counts the time of the commands since the clock was started.
    fn spend(&mut self, worker: &Worker, row: u16, spent: Duration) {
        let nanoseconds = spent.as_nanos() as u64;
        let counters = &worker.counters.per_command[usize::from(row)];
        counters.nanoseconds.add(nanoseconds);
        let calls = u64::from(std::mem::take(&mut self.timed_calls));
        if calls > 0 && worker.tracks_latency() {
            counters.times.add(nanoseconds / calls, calls);
        }
    }

    /// Processes the reply of the parked command, which ran for `worked` and waited for the rest of the time.
    pub fn finish_parked(
        &mut self,
        worker: &Rc<Worker>,
        client: &Client,
        worked: Duration,
        bytes: Vec<u8>,
        output: &mut Vec<u8>,
    ) {
        let before = output.len();
        if output.is_empty() {
            // A large reply is not copied.
            *output = bytes;
        } else {
            output.extend_from_slice(&bytes);
        }
        if let Some(parked) = self.parked.take() {
            let ParkedCommand { row, words } = *parked;
            self.account(worker, row, output, before, false);
            self.spend(worker, row, worked);
            judge(&worker.server, &worker.options(), row, worked, || client.sender(), || words);
            self.now = Instant::now();
        }
    }

    /// Counts a command that ran, by the reply it wrote, and drops the reply if the client does not want it. For a
    /// transaction (`is_kept`), that was done command by command, because one of them may be CLIENT REPLY.
    #[inline(always)]
    fn account(&mut self, worker: &Worker, row: u16, output: &mut Vec<u8>, before: usize, is_kept: bool) {
        if output.get(before) == Some(&b'-') || self.has_afterwork {
            return self.account_for_error(worker, row, output, before, is_kept);
        }
        worker.counters.per_command[usize::from(row)].calls.add(1);
        self.timed_calls = self.timed_calls.saturating_add(1);
        worker.counters.commands.add(1);
    }

    /// [`account`](Self::account), for an error, or if something is due after the command.
    #[inline(never)]
    fn account_for_error(&mut self, worker: &Worker, row: u16, output: &mut Vec<u8>, before: usize, is_kept: bool) {
        let counters = &worker.counters.per_command[usize::from(row)];
        let is_error = output.get(before) == Some(&b'-');
        if is_error && INDEX.rows()[usize::from(row)].was_refused(&output[before + 1..]) {
            counters.rejected.add(1);
            count_error(worker, output, before);
        } else {
            counters.calls.add(1);
            self.timed_calls = self.timed_calls.saturating_add(1);
            worker.counters.commands.add(1);
            if is_error {
                counters.failed.add(1);
                count_error(worker, output, before);
            }
        }
        if self.has_afterwork {
            self.after(row, output, before, is_kept);
        }
    }

    /// Does what is due after a command.
    #[cold]
    fn after(&mut self, row: u16, output: &mut Vec<u8>, before: usize, is_kept: bool) {
        let row = &INDEX.rows()[usize::from(row)];
        if !row.traits.keeps_caching {
            self.end_caching();
        }
        let kept = is_kept || row.traits.pushes;
        self.filter(output, if kept { output.len() } else { before });
    }

    /// Ends the effect of CLIENT CACHING, which is on the next command, or the next transaction.
    fn end_caching(&mut self) {
        if self.rare.multi.is_none()
            && let Some(tracker) = &mut self.rare.tracker
        {
            tracker.set_caching(false, &mut self.behalf);
        }
        self.note_afterwork();
    }

    /// Decides whether something is due after commands.
    pub fn note_afterwork(&mut self) {
        let is_caching = self.rare.tracker.as_ref().is_some_and(Tracker::is_caching);
        self.has_afterwork = self.replies != Replies::On || is_caching;
    }

    /// Drops a reply that CLIENT REPLY suppresses.
    fn filter(&mut self, output: &mut Vec<u8>, before: usize) {
        match self.replies {
            Replies::On => {}
            Replies::Off => output.truncate(before),
            Replies::SkipNext => {
                output.truncate(before);
                self.replies = Replies::Skip;
            }
            Replies::Skip => {
                output.truncate(before);
                self.replies = Replies::On;
                self.note_afterwork();
            }
        }
    }
}

/// Returns whether a command must be timed separately, for the slow log or as an event.
pub(super) fn is_timed_alone(spec: &CommandSpec, words: usize, options: &ServerOptions) -> bool {
    options.times_all() || options.slowlog_slower_than_us >= 0 && spec.cost_of(words) != Cost::Constant
}

/// The moment at which MONITOR shows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// For a script: before the commands that it calls.
    Before,
    /// For any other, as in Redis: SELECT is shown with the database that it selected.
    After,
}

impl Moment {
    pub fn of(row: &Row) -> Moment {
        if row.spec.flags.has(Flags::SKIP_MONITOR) { Moment::Before } else { Moment::After }
    }
}

/// Reports a command that took long; `sender` returns the address and the name of its sender.
pub(super) fn judge(
    server: &Server,
    options: &ServerOptions,
    row: u16,
    spent: Duration,
    sender: impl FnOnce() -> (String, String),
    words: impl FnOnce() -> Vec<Vec<u8>>,
) {
    let (spent_us, threshold_ms) = (spent.as_micros() as u64, options.latency_threshold_ms as u64);
    if threshold_ms > 0 && spent_us / 1000 >= threshold_ms {
        let is_fast = INDEX.rows()[usize::from(row)].spec.flags.has(Flags::FAST);
        server.latency.add(if is_fast { "fast-command" } else { "command" }, spent_us / 1000);
    }
    let is_skipped = options.slowlog_max_len == 0 || INDEX.rows()[usize::from(row)].spec.flags.has(Flags::SKIP_SLOWLOG);
    if !is_skipped && u64::try_from(options.slowlog_slower_than_us).is_ok_and(|limit| spent_us >= limit) {
        let (address, name) = sender();
        server.slowlog.add(words(), spent_us, address, name, options.slowlog_max_len);
    }
}

pub(super) fn count_error(worker: &Worker, output: &[u8], before: usize) {
    worker.counters.error_replies.add(1);
    worker.server.store.0.errors.count(&output[before + 1..]);
}

/// A command that the connection itself executes.
pub(super) type Local = fn(&mut Context<'_>, &[&[u8]], &mut ReplyWriter<'_>) -> Outcome;

/// A command about the server, which needs no connection.
pub(super) type Told = fn(&About<'_>, &[&[u8]], &mut ReplyWriter<'_>) -> Outcome;

/// The context of a command that needs no connection.
pub(super) struct About<'a> {
    pub server: &'a Server,
    pub options: &'a ServerOptions,
    /// The address that the client reached; none if a script asks.
    pub local: Option<&'a str>,
}

/// The function of a command of the server.
#[derive(Clone, Copy)]
pub(super) enum By {
    Connection(Local),
    Server(Told),
    /// The first one for a connection, the second one for a script.
    Either(Local, Told),
}

impl By {
    /// Runs the function.
    pub fn call(self, context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
        match self {
            By::Connection(local) | By::Either(local, _) => local(context, args, out),
            By::Server(told) => {
                let local = (!context.client.is_unix).then_some(&*context.client.local);
                told(&About { server: &context.worker.server, options: context.options, local }, args, out)
            }
        }
    }
}

/// Runs a command for a script, by the number of its row. Returns false if it needs a connection.
pub(super) fn tell(server: &Server, row: u16, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> bool {
    let Some(By::Server(told) | By::Either(_, told)) = INDEX.rows()[usize::from(row)].local() else { return false };
    // Such a command replies immediately.
    drop(told(&About { server, options: &server.options(), local: None }, args, out));
    true
}

/// The sizes of a connection's buffers, for CLIENT LIST.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffers {
    /// Bytes of requests that have not run, including this one, and of the free room after them.
    pub query: usize,
    pub query_free: usize,
    /// The capacity of the buffer for replies.
    pub reply_room: usize,
}

/// The context in which one command runs.
pub(super) struct Context<'a> {
    pub worker: &'a Rc<Worker>,
    pub options: &'a Arc<ServerOptions>,
    pub session: &'a mut Session,
    pub client: &'a Arc<Client>,
    /// The buffer that contains the words, for a long request.
    pub received: Option<&'a Received>,
    /// The bytes from the start of a request on; empty if it is a long one.
    pub request: &'a [u8],
    pub buffers: Buffers,
}

impl Context<'_> {
    /// Runs one request and appends its reply; `args` has at least the command's name.
    pub fn execute(&mut self, args: &[&[u8]], output: &mut Vec<u8>) -> Outcome {
        let before = output.len();
        let commands = &*INDEX;
        let mut row = match commands.find(args[0]) {
            Some(row) => row,
            None if is_http(args[0]) => return Outcome::Abort,
            None => return self.reject(None, output, before, |out| out.error_bytes(&unknown_command(args))),
        };
        let mut command = &commands.rows()[usize::from(row)];
        if args.len() > 1 && !command.subcommands.is_empty() {
            row = match commands.subcommand(row, args[1]) {
                Some(row) => row,
                None => {
                    return self
                        .reject(None, output, before, |out| out.error_bytes(&unknown_subcommand(args[0], args[1])));
                }
            };
            command = &commands.rows()[usize::from(row)];
        }
        if !command.takes(args.len()) {
            return self.reject(Some(row), output, before, |out| wrong_arity(&command.full_name, out));
        }
        // Found once: nothing that is called below changes where these are.
        let server: &Server = &self.worker.server;
        let (inner, options) = (&*server.store.0, self.options);
        if !self.session.authenticated && !command.spec.flags.has(Flags::NO_AUTH) && self.needs_login() {
            return self.reject(Some(row), output, before, |out| out.error("NOAUTH Authentication required."));
        }
        if let Some(version) = self.session.user.restrictions()
            && !self.is_allowed(version, row, args)
            && let Some(text) = self.denial(version, row, args)
        {
            return self.reject(Some(row), output, before, |out| out.error_bytes(&text));
        }
        if self.session.redirects.is_capable
            && let Some(redirected) = self.redirected(command)
        {
            return match redirected {
                Redirected::Waits => Outcome::Paused { is_write: true },
                Redirected::To(text) => self.reject(Some(row), output, before, |out| out.error(&text)),
            };
        }
        if self.session.listens() && self.session.protocol == Protocol::Resp2 && !command.traits.while_subscribed {
            let text = format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
                 this context",
                command.full_name
            );
            return self.reject(Some(row), output, before, |out| out.error(&text));
        }
        let is_monitored = server.monitors.any();
        if is_monitored
            && self.client.is_monitor()
            && (command.spec.flags.has(Flags::READONLY) || self.may_write(command.spec, args))
        {
            let text = "ERR Replica can't interact with the keyspace";
            return self.reject(Some(row), output, before, |out| out.error(text));
        }
        if inner.loading.is_special() && inner.loading.concerns(command.spec.flags.has(Flags::READONLY)) {
            if let Some(text) = self.refusal(command) {
                return self.reject(Some(row), output, before, |out| out.error(text));
            }
            if inner.loading.holds_writes() && self.waits_for_room(command, args) {
                return Outcome::Paused { is_write: true };
            }
            self.session.has_written |= command.spec.may_write();
        }
        if self.session.rare.multi.is_some()
            && let Some(outcome) = self.in_multi(row, args, output, before)
        {
            return outcome;
        }
        if server.pause.is_active() {
            let is_write = self.may_write(command.spec, args);
            if server.pause.holds(is_write) {
                return Outcome::Paused { is_write };
            }
        }
        let is_timed_alone = is_timed_alone(command.spec, args.len(), options);
        if is_timed_alone || self.session.timed != Some(row) {
            self.session.stop_clock(self.worker);
            self.session.timed = Some(row);
        }
        self.session.command = &command.full_name;
        if is_monitored {
            self.show(command, Moment::Before, || args.to_vec());
        }
        if let Some(local) = command.local() {
            return match local.call(self, args, &mut ReplyWriter::new(output, self.session.protocol)) {
                // It may be MONITOR itself.
                Outcome::Done if !is_timed_alone && !server.monitors.any() => {
                    self.session.account(self.worker, row, output, before, false);
                    Outcome::Done
                }
                outcome => self.end(row, args, outcome, output, before, is_timed_alone),
            };
        }
        // A panic ends its command, not the connection with the others in its pipeline. No partial result is visible
        // afterwards: guards unlock the stripes, and the partial reply is dropped.
        let mut parked = None;
        let began = is_timed_alone.then_some(self.session.now);
        let run = AssertUnwindSafe(|| {
            let mut out = ReplyWriter::new(output, self.session.protocol);
            match self.run_on_keyspace(command.spec, args, began, &mut out) {
                None => true,
                waits => {
                    parked = waits;
                    false
                }
            }
        });
        match catch_unwind(run) {
            // As `end` does, for nearly every command.
            Ok(true) if !is_timed_alone && !is_monitored => {
                self.session.account(self.worker, row, output, before, false);
                return Outcome::Done;
            }
            Ok(_) => {}
            Err(_) => {
                output.truncate(before);
                ReplyWriter::new(output, self.session.protocol).error(FAILED);
            }
        }
        let outcome = parked.map_or(Outcome::Done, Outcome::Parked);
        self.end(row, args, outcome, output, before, is_timed_alone)
    }

    /// Accounts for a command that has run.
    #[inline(never)]
    fn end(
        &mut self,
        row: u16,
        args: &[&[u8]],
        outcome: Outcome,
        output: &mut Vec<u8>,
        before: usize,
        is_timed_alone: bool,
    ) -> Outcome {
        let command = &INDEX.rows()[usize::from(row)];
        let mut is_kept = false;
        let outcome = match outcome {
            // Most transactions find their keys free and are done at once.
            Outcome::Exec(mut exec) => match multi::poll(&mut exec, Waker::noop(), self, output) {
                Poll::Ready(()) => {
                    is_kept = true;
                    if exec.closes { Outcome::Close } else { Outcome::Done }
                }
                Poll::Pending => Outcome::Exec(exec),
            },
            outcome => outcome,
        };
        if let Outcome::Again(_) = outcome {
            (self.session.timed, self.session.timed_calls) = (None, 0);
            return outcome;
        }
        self.show(command, Moment::After, || args.to_vec());
        if let Outcome::Parked(_) | Outcome::Later(_) | Outcome::Exec(_) = outcome {
            self.session.timed = None;
            self.session.timed_calls = 0;
            let is_kept = self.options.slowlog_slower_than_us >= 0;
            let words = if is_kept { slowlog::shortened(command, args) } else { Vec::new() };
            self.session.parked = Some(Box::new(ParkedCommand { row, words }));
        } else {
            self.session.account(self.worker, row, output, before, is_kept);
            if is_timed_alone {
                let spent = self.session.stop_clock(self.worker);
                let (server, words) = (&self.worker.server, || slowlog::shortened(command, args));
                judge(server, &self.worker.options(), row, spent, || self.client.sender(), words);
            }
        }
        outcome
    }

    /// Brings the table's data about this client up to date, which are those of its last turn: its own line shows this
    /// command.
    pub fn show_own_state(&self, args: &[&[u8]]) {
        let mut activity = self.client.activity.lock();
        activity.set(self.session);
        let Buffers { query, query_free, reply_room } = self.buffers;
        (activity.query, activity.query_free, activity.reply_room) = (query, query_free, reply_room);
        activity.words = args.iter().map(|word| word.len()).sum();
    }

    /// Shows a command to MONITOR clients, if commands of this kind are shown at `moment`.
    #[inline]
    pub fn show<'w>(&self, row: &Row, moment: Moment, words: impl FnOnce() -> Vec<&'w [u8]>) {
        let monitors = &self.worker.server.monitors;
        if monitors.any() && moment == Moment::of(row) && !row.spec.flags.has(Flags::ADMIN) {
            let limit = self.options.client_output_buffer_limit[0];
            monitors.show(row, &self.client.place(self.session.db), &words(), limit);
        }
    }

    /// Queues a command after MULTI, or records why EXEC will be refused; [`None`] if the command has to run now.
    #[cold]
    fn in_multi(&mut self, row: u16, args: &[&[u8]], output: &mut Vec<u8>, before: usize) -> Option<Outcome> {
        let command = &INDEX.rows()[usize::from(row)];
        let is_exec = command.traits.queueing == Queueing::Exec;
        if command.traits.queueing == Queueing::AtOnce {
            return None;
        }
        let of_queue = |flag| is_exec && self.session.rare.multi.as_ref().is_some_and(|multi| multi.has(flag));
        if command.spec.flags.has(Flags::NO_MULTI) {
            let text = "ERR Command not allowed inside a transaction";
            return Some(self.reject(Some(row), output, before, |out| out.error(text)));
        }
        // Queueing itself needs memory, whatever the command is.
        if (!is_exec || of_queue(Flags::DENYOOM)) && !self.has_room() {
            if let Some(multi) = &mut self.session.rare.multi {
                multi.give_up(&self.worker.server.store.0);
            }
            return Some(self.reject(Some(row), output, before, |out| out.error(OOM)));
        }
        let server = &self.worker.server;
        if server.pause.is_active() {
            let is_write = match &self.session.rare.multi {
                Some(multi) if is_exec => multi.any(|spec, words| self.may_write(spec, words)),
                _ => self.may_write(command.spec, args),
            };
            if server.pause.holds(is_write) {
                return Some(Outcome::Paused { is_write });
            }
        }
        if is_exec {
            return None;
        }
        if let Some(multi) = &mut self.session.rare.multi
            && !multi.aborted
        {
            multi.push(&self.client.account, Numbered { spec: command.spec, number: row }, args, self.received);
        }
        self.session.command = &command.full_name;
        ReplyWriter::new(output, self.session.protocol).simple("QUEUED");
        self.session.filter(output, before);
        Some(Outcome::Done)
    }

    /// Returns the error of a command that is refused while the data set is loaded, after a save that failed, or by a
    /// replica: EXEC, if one of those queued is; after a failure PING, too, by which monitoring notices.
    #[cold]
    fn refusal(&self, command: &Row) -> Option<&'static str> {
        let loading = &self.worker.server.store.0.loading;
        let is_exec = command.traits.queueing == Queueing::Exec;
        let queued = self.session.rare.multi.as_ref().filter(|_| is_exec);
        let of_queued = || {
            let queued = queued?;
            let is_why = |text: &&str| queued.any(|spec, _| spec.refusal(loading) == Some(*text));
            let unwritten = loading.refuses_appending();
            [MISCONF].into_iter().chain(unwritten).chain([NOREPLICAS, READONLY, MASTERDOWN, LOADING]).find(is_why)
        };
        let of_ping = || if command.traits.notices_failures { loading.refusal_by_disk() } else { None };
        of_ping().or_else(|| command.spec.refusal(loading)).or_else(of_queued)
    }

    /// Returns whether a command waits because too much waits to be written to a file.
    #[cold]
    fn waits_for_room(&self, command: &Row, args: &[&[u8]]) -> bool {
        match &self.session.rare.multi {
            Some(multi) if command.traits.queueing == Queueing::Exec => multi.any(|spec, _| spec.may_write()),
            Some(_) => false,
            None => self.may_write(command.spec, args),
        }
    }

    /// Returns whether a command waits while writes are paused.
    fn may_write(&self, spec: &CommandSpec, args: &[&[u8]]) -> bool {
        pause::may_write(&self.worker.server.store.0, spec, args)
    }

    /// Returns whether there is memory for one more command of a transaction that needs some. Queued commands
    /// themselves count as memory of clients.
    fn has_room(&self) -> bool {
        let inner = &self.worker.server.store.0;
        !inner.memory.is_over() || inner.make_room() && !inner.memory.is_over_by_clients()
    }

    /// Passes a command to the store. Returns its pending reply, if it has not replied.
    #[inline(always)]
    fn run_on_keyspace(
        &mut self,
        spec: &'static CommandSpec,
        args: &[&[u8]],
        began: Option<Instant>,
        out: &mut ReplyWriter<'_>,
    ) -> Option<Parked> {
        let guard = match spec.handler {
            Handler::Script(_) if self.prepare_guard(args) => {
                self.session.rare.kept.as_ref().and_then(Kept::prepared_guard)
            }
            _ => None,
        };
        let inner = &self.worker.server.store.0;
        let (db, client, received) = (self.session.db, self.client.id, self.received);
        let request = self.request;
        let origin = Origin { db, client, received, request, began, behalf: self.session.behalf, guard };
        let form = ReplyForm::Wire(self.session.protocol);
        inner.start_here(inner, spec, args, origin, form, out)
    }

    /// Replies an error without running the command.
    fn reject(
        &mut self,
        row: Option<u16>,
        output: &mut Vec<u8>,
        before: usize,
        write: impl FnOnce(&mut ReplyWriter<'_>),
    ) -> Outcome {
        self.session.command = row.map_or("NULL", |row| &INDEX.rows()[usize::from(row)].full_name);
        write(&mut ReplyWriter::new(output, self.session.protocol));
        if let Some(multi) = &mut self.session.rare.multi {
            multi.aborted = true;
        }
        if row.is_some_and(|row| INDEX.rows()[usize::from(row)].traits.queueing == Queueing::Exec) {
            // An error that makes EXEC fail ends the transaction.
            let line = output.split_off(before);
            let why = line.strip_prefix(b"-ERR ").or_else(|| line.strip_prefix(b"-")).unwrap_or(&line).trim_ascii_end();
            let text = match why.starts_with(redirect::PREFIX) {
                // Clients look for it at the beginning.
                true => why.to_vec(),
                false => [b"EXECABORT Transaction discarded because of: ", why].concat(),
            };
            ReplyWriter::new(output, self.session.protocol).error_bytes(&text);
            multi::end_queue(self.session, &self.worker.server.store.0);
            multi::end_watch(self.session, &self.worker.server.store.0);
        }
        if let Some(row) = row {
            self.worker.counters.per_command[usize::from(row)].rejected.add(1);
        }
        count_error(self.worker, output, before);
        if self.session.has_afterwork {
            self.session.end_caching();
            self.session.filter(output, before);
        }
        Outcome::Done
    }
}

/// Returns whether this is the first word of a request that a web page made a browser send here. Its body could contain
/// commands, so nothing after it is read (Redis's protection against cross-protocol scripting).
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

pub(super) fn wrong_arity(full_name: &str, out: &mut ReplyWriter<'_>) {
    out.error(&format!("ERR wrong number of arguments for '{full_name}' command"));
}

/// Writes the lines of `… HELP`: the container's subcommands with their summaries in the catalogue.
pub(super) fn help(container: &str, out: &mut ReplyWriter<'_>) -> Outcome {
    let Some(row) = INDEX.own(container.as_bytes()) else {
        out.error("ERR unknown command");
        return Outcome::Done;
    };
    let row = &INDEX.rows()[usize::from(row)];
    let subcommands = INDEX.subcommands(row);
    out.array(1 + 2 * subcommands.len());
    let name = container.to_ascii_uppercase();
    out.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for row in subcommands {
        out.simple(&row.spec.name.to_ascii_uppercase());
        out.simple(&format!("    {}", row.spec.summary));
    }
    Outcome::Done
}
