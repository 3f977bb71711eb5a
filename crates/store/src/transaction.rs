//! Transactions: from the commands queued since MULTI to the reply of EXEC.
//!
//! EXEC of a few cheap commands locks the stripes of all their keys at once (`crate::multi_lock`). A longer
//! transaction, or one that meets a held key, runs as a section (`crate::section`): it holds the keys that the commands
//! name, for writing or reading, and the watched keys for reading, all at once, and only commands on those keys wait;
//! if one of them needs all keys, and another is a script, it holds [everything](crate::everything). Either way watched
//! keys are checked when no other client can change them any more, so of two clients that watch each other's keys one
//! sees the other's write. Without a script, a transaction with FLUSHALL, FLUSHDB, SWAPDB or KEYS has the gate closed
//! instead: it is exclusive.
//!
//! A long transaction yields its worker every [`SLICE`]; the holds stay. A command in it that takes long by itself runs
//! on the [thread pool](crate::aside), to which the section moves and from which it returns. An exclusive transaction
//! acquires holds on its keys after its last command that changes databases, and opens the gate (`alone`): from there
//! on it is not exclusive any more, which cannot be observed. The messages of its commands are published at its end, in
//! order, before the holds are released. There is no roll-back, as in Redis: an error is that command's reply.
//!
//! If its client is killed, or leaves too many replies unread, it continues on another thread if it has written, since
//! half a transaction must not remain, and ends if it has not.
//!
//! Limits: queued commands count for `client-query-buffer-limit` and as memory of their client. An exclusive one does
//! not yield before its last FLUSHALL, FLUSHDB or SWAPDB, or before its last KEYS if a SORT that refers to other keys
//! precedes that.

mod alone;
mod away;
mod gather;
mod queue;
mod together;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::{SLICE, give_way};
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};
use tokio::time::Sleep;

use crate::Inner;
use crate::behalf::Behalf;
use crate::big::{MANY_KEYS, carry_out};
use crate::catalogue::{CommandSpec, Cost, Flags, Guard, Handler, Numbered};
use crate::catalogue::{ScriptHandle, Start};
use crate::effect::{Collected, Effect};
use crate::gate::Closed;
use crate::hold::Ticket;
use crate::loading::READONLY;
use crate::memory::Share;
use crate::owned::Finished;
use crate::owned::ReplyForm;
use crate::owned::caught;
use crate::record::Unit;
use crate::refused::FAILED;
use crate::script::{Pending, Take, Took};
use crate::section::{Ending, Section, SectionWait};
use crate::stripe::{Frozen, Now};
use crate::undeclared::Alone;
use crate::watching::Watching;
use alone::{Listed, alone_until};
use away::{Away, Back, Rest};
use gather::{Gathering, Ready as Gathered};
pub(crate) use queue::Multi;
use queue::{FREED_ASIDE, Queued};
use together::run_together;

/// The number of commands between two readings of the clock.
const COMMANDS_PER_LOOK: usize = 16;
/// Commands of up to this many words in total run exclusively, before and with those that change databases.
const ALONE_MAX: usize = 512;
/// Up to this many remaining commands of a disconnected client run on its worker.
const LEFT_MAX: usize = 64;

/// The connection of a transaction's client.
///
/// A generic parameter in place of a `dyn`: there is one implementation, in the server.
pub(crate) trait Connection {
    /// Returns the selected database.
    fn db(&self) -> u32;
    /// Returns the form of replies.
    fn protocol(&self) -> Protocol;
    /// Returns on whose behalf its commands run.
    fn behalf(&self) -> Behalf;
    /// Returns whether CLIENT REPLY suppresses the current reply.
    fn is_mute(&self) -> bool;
    /// Returns the client's number.
    fn client(&self) -> u64;
    /// Returns whether its user may not call every command.
    fn is_restricted(&self) -> bool;
    /// Returns whether its user may call a command; nothing is logged.
    fn permits(&self, row: Numbered, words: &[&[u8]]) -> bool;
    /// Returns the error of a command that its user may not call.
    fn denial(&mut self, row: Numbered, words: &[&[u8]]) -> Option<Vec<u8>>;
    /// Returns the permissions for commands of its scripts, if they are restricted.
    fn guard(&mut self) -> Option<Arc<dyn Guard>>;
    /// Counts the error of a command that was not run.
    fn count_denied(&self, reply: &[u8]);
    /// Returns the watched keys.
    fn watching(&mut self) -> &mut Option<Box<Watching>>;
    /// Appends the messages of channels that were not sent to the client yet.
    fn drain_messages(&mut self, output: &mut Vec<u8>);
    /// Returns whether a client watches commands by MONITOR.
    fn has_monitors(&self) -> bool;
    /// Returns whether a command must be timed separately.
    fn is_timed(&self, spec: &CommandSpec, words: usize) -> bool;
    /// Runs a command of the connection or of its server, by the number of its row.
    fn run(&mut self, row: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> Ran;
    /// Returns whether a command of the connection changes its subscriptions, or the form of its messages.
    fn changes_listening(&self, row: u16) -> bool;
    /// Returns whether the reply of a command is a push, which CLIENT REPLY does not suppress.
    fn pushes(&self, row: u16) -> bool;
    /// Shows a command to monitors before it runs, if it is one that is shown then.
    fn show_before<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>);
    /// Shows a command to monitors after it has run, if it is one that is shown then.
    fn show_after<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>);
    /// Adds a command that took long to the slow log and to the latency events.
    fn judge<'w>(&self, row: u16, spent: Duration, words: impl FnOnce() -> Vec<&'w [u8]>);
    /// Counts a command by its reply.
    fn count(&mut self, row: u16, reply: &[u8]);
}

/// The result of a command that the connection has run.
pub(crate) enum Ran {
    /// The reply is written.
    Done,
    /// The reply is written, and the connection has to be closed.
    Close,
    /// The reply is `OK`, after this time.
    Sleep(Pin<Box<Sleep>>, Duration),
    /// The command cannot wait in a transaction.
    Waits,
}

/// A transaction in progress.
pub(crate) struct Exec {
    inner: Arc<Inner>,
    commands: Vec<Queued>,
    /// The commands' size, and its share in the account of the client.
    bytes: usize,
    share: Share,
    next: usize,
    turn: Turn,
    /// Whether it is a section that holds everything.
    wants_everything: bool,
    /// Whether a command has asked for the connection to be closed.
    pub(crate) closes: bool,
    /// Its start, in Unix microseconds.
    now_us: i64,
    /// The start of the reply in the output.
    start: Option<usize>,
    /// The database of the commands that are executed after their client has disconnected.
    db: u32,
    /// The permissions for these commands, if they are restricted.
    guard: Option<Arc<dyn Guard>>,
    /// The results of its KEYS, which were read in advance.
    listed: VecDeque<Listed>,
    /// The data collected for an exclusive transaction.
    gathered: Option<Gathered>,
    /// The pause requested by its `DEBUG SLEEP`: the reply is delayed, while its keys are free.
    nap: Option<Pin<Box<Sleep>>>,
    /// The run time of the script in progress.
    worked: Duration,
}

/// The stage of acquiring its keys.
enum Turn {
    /// It may be short, and has not been tried yet.
    New,
    /// Its keys are being collected.
    Gathering(Box<Gathering>),
    /// It waits for its keys.
    Keys(SectionWait),
    /// It has no keys of its own, and waits for everything.
    Everything(Take, Section),
    /// It has its keys.
    Held(Section),
    /// It has its keys, on another thread, which executes a long command.
    Aside(Arc<Away>),
    /// A script of it has its keys.
    Script(Box<Pending>),
    /// It waits for exclusivity; the ticket is in the gate's queue.
    Alone(Option<Arc<Ticket>>),
    /// All commands have run, and another thread releases its very many keys.
    Ending(Ending),
    /// It has ended, or was refused.
    Over,
}

impl Exec {
    /// Returns the transaction of these commands, which begins with this database selected.
    pub(crate) fn new(inner: Arc<Inner>, multi: Multi, db: u32) -> Exec {
        let Multi { commands, bytes, share, is_alone: wants_everything, has_script, is_long, .. } = multi;
        let (listed, gathered) = (VecDeque::new(), None);
        // With much to do before it changes databases, it acquires everything instead of waiting at the gate.
        let words = || commands[..alone_until(&commands)].iter().map(|queued| queued.words.len());
        let goes_alone = wants_everything && !has_script && words().sum::<usize>() <= ALONE_MAX;
        let turn = match (goes_alone, wants_everything) {
            (false, true) => Turn::Keys(crate::Store(inner.clone()).section([])),
            (false, false) if !is_long => Turn::New,
            _ => Turn::Gathering(Gathering::new(&inner, db, goes_alone, has_script)),
        };
        Exec {
            inner,
            commands,
            bytes,
            share,
            next: 0,
            turn,
            wants_everything,
            closes: false,
            now_us: 0,
            start: None,
            db,
            guard: None,
            listed,
            gathered,
            nap: None,
            worked: Duration::ZERO,
        }
    }

    /// Returns whether it has started: then it is finished even if its client disconnects.
    pub(crate) fn has_begun(&self) -> bool {
        self.nap.is_some() || matches!(self.turn, Turn::Held(_) | Turn::Aside(_) | Turn::Script(_))
    }

    /// Returns whether it has run a write command.
    fn has_written(&self) -> bool {
        let writes = |queued: &Queued| {
            let spec = queued.spec();
            spec.counts_as_write() || spec.may_write() || matches!(spec.handler, Handler::Script(_))
        };
        self.commands[..self.next].iter().any(writes)
    }

    /// Returns the start of its reply in the output, once it has started.
    pub(crate) fn reply_start(&self) -> Option<usize> {
        self.start
    }

    /// Continues the transaction; when it is ready, the reply is complete and may be sent.
    pub(crate) fn poll(&mut self, waker: &Waker, context: &mut impl Connection, output: &mut Vec<u8>) -> Poll<()> {
        if self.nap.is_none() || !matches!(self.turn, Turn::Over) {
            ready!(self.poll_commands(waker, context, output));
        }
        match &mut self.nap {
            Some(nap) => nap.as_mut().poll(&mut std::task::Context::from_waker(waker)),
            None => Poll::Ready(()),
        }
    }

    /// Ends a transaction that has done nothing, with an error.
    fn refused(&mut self, why: &str, context: &mut impl Connection, output: &mut Vec<u8>) {
        self.end_section();
        if let Some(watching) = context.watching().take() {
            watching.end(&self.inner);
        }
        ReplyWriter::new(output, context.protocol()).error(why);
    }

    pub(super) fn poll_commands(
        &mut self,
        waker: &Waker,
        context: &mut impl Connection,
        output: &mut Vec<u8>,
    ) -> Poll<()> {
        if let Turn::New = self.turn {
            // Each command is shown to monitors, which is not done under locks.
            if !context.has_monitors() && !self.denies_some(context) && self.run_at_once(context, output) {
                self.turn = Turn::Over;
                return Poll::Ready(());
            }
            self.turn = Turn::Gathering(Gathering::new(&self.inner, self.db, false, false));
        }
        if let Turn::Gathering(_) = self.turn
            && self.poll_gathering(waker, context).is_pending()
        {
            return Poll::Pending;
        }
        if let Turn::Alone(_) = self.turn {
            return self.poll_alone(waker, context, output);
        }
        if !ready!(self.poll_keys(waker, context, output)) {
            return Poll::Ready(());
        }
        ready!(self.poll_elsewhere(waker, context, output));
        let start = Instant::now();
        while self.next < self.commands.len() {
            let at = self.next;
            if let Turn::Over = self.turn {
                self.fail_next(context, output);
                continue;
            }
            if self.deny_next(context, output) {
                continue;
            }
            if let Handler::Script(handle) = self.commands[at].spec().handler {
                self.run_script(handle, context, output);
                return self.poll_commands(waker, context, output);
            }
            if self.takes_long(context) {
                self.go_aside(context);
                return self.poll_commands(waker, context, output);
            }
            if !self.run_next(context, output, None) {
                self.go_aside(context);
                return self.poll_commands(waker, context, output);
            }
            if self.is_slice_over(at, start) {
                self.db = context.db();
                if let Turn::Held(section) = &self.turn {
                    section.set_owner(&format!("client-{}", context.client()));
                }
                give_way(waker);
                return Poll::Pending;
            }
        }
        self.poll_end(waker)
    }

    /// Waits for its keys, or for everything. Returns false if it has ended: it was refused, or a watched key was
    /// changed.
    fn poll_keys(&mut self, waker: &Waker, context: &mut impl Connection, output: &mut Vec<u8>) -> Poll<bool> {
        if let Turn::Keys(wait) = &mut self.turn {
            let section = match std::pin::Pin::new(wait).poll(&mut std::task::Context::from_waker(waker)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(section)) => section,
                Poll::Ready(Err(refused)) => {
                    self.refused(&refused.to_string(), context, output);
                    return Poll::Ready(false);
                }
            };
            self.turn = match self.wants_everything {
                true => Turn::Everything(Take::everything(&section, None), section),
                false => Turn::Held(section),
            };
            if !self.wants_everything && !self.begin_held(context, output) {
                return Poll::Ready(false);
            }
        }
        if let Turn::Everything(take, _) = &mut self.turn {
            match take.poll(&mut std::task::Context::from_waker(waker)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Took::Refused(why)) => {
                    self.refused(&why.to_string(), context, output);
                    return Poll::Ready(false);
                }
                Poll::Ready(_) => {}
            }
            if let Turn::Everything(take, mut section) = std::mem::replace(&mut self.turn, Turn::Over) {
                drop(take);
                section.adopt_everything();
                self.turn = Turn::Held(section);
            }
            if !self.begin_held(context, output) {
                return Poll::Ready(false);
            }
        }
        Poll::Ready(true)
    }

    /// Waits for a command on another thread, or for a script, and appends its reply.
    fn poll_elsewhere(&mut self, waker: &Waker, context: &mut impl Connection, output: &mut Vec<u8>) -> Poll<()> {
        if let Turn::Aside(away) = &self.turn {
            let Poll::Ready(Back { section, reply, spent }) = away.poll(waker) else { return Poll::Pending };
            self.turn = Turn::Held(section);
            let before = output.len();
            output.extend_from_slice(&reply);
            self.note(self.next - 1, before, Some(spent), context, output);
        }
        if let Turn::Script(script) = &mut self.turn {
            let start = Instant::now();
            let polled = script.poll_begun(&mut std::task::Context::from_waker(waker));
            self.worked += start.elapsed();
            let elsewhere = script.worked();
            let Poll::Ready(ended) = polled else { return Poll::Pending };
            let spent = std::mem::take(&mut self.worked) + elsewhere;
            self.turn = match ended.section {
                Some(mut section) => {
                    section.extend_by_command();
                    Turn::Held(section)
                }
                None => Turn::Over,
            };
            let before = output.len();
            if let Finished::Wire(reply) = ended.reply {
                output.extend_from_slice(&reply);
            }
            self.note(self.next - 1, before, Some(spent), context, output);
        }
        Poll::Ready(())
    }

    /// Ends its section.
    fn poll_end(&mut self, waker: &Waker) -> Poll<()> {
        // The end of the section: effects, then holds.
        self.turn = match std::mem::replace(&mut self.turn, Turn::Over) {
            Turn::Held(section) if section.held() > MANY_KEYS => Turn::Ending(section.end_aside()),
            Turn::Held(section) => {
                section.finish();
                Turn::Over
            }
            Turn::Ending(ending) => Turn::Ending(ending),
            _ => Turn::Over,
        };
        if let Turn::Ending(ending) = &mut self.turn {
            let _ = ready!(Pin::new(ending).poll(&mut std::task::Context::from_waker(waker)));
            self.turn = Turn::Over;
        }
        Poll::Ready(())
    }

    /// Begins to reply, after it has acquired everything it needs. Returns false if it has ended, because a watched key
    /// was changed.
    fn begin_held(&mut self, context: &mut impl Connection, output: &mut Vec<u8>) -> bool {
        if let Turn::Held(section) = &self.turn {
            self.now_us = section.now_us();
        }
        if self.refuses_late(context, output) {
            return false;
        }
        let is_dirty = self.ends_watch_dirty(context, None);
        let begins = self.begin(is_dirty, context, output);
        if !begins {
            self.end_section();
        }
        begins
    }

    /// Refuses the transaction if one of its commands writes and [comes too late](Inner::comes_late).
    fn refuses_late(&mut self, context: &mut impl Connection, output: &mut Vec<u8>) -> bool {
        let is_late = self.comes_late(context);
        if is_late {
            self.refused(&format!("EXECABORT Transaction discarded because of: {READONLY}"), context, output);
        }
        is_late
    }

    fn comes_late(&self, context: &impl Connection) -> bool {
        self.commands.iter().any(|queued| self.inner.comes_late(queued.spec(), context.behalf()))
    }

    /// Ends its section, if it has one.
    fn end_section(&mut self) {
        if let Turn::Held(section) | Turn::Everything(_, section) = std::mem::replace(&mut self.turn, Turn::Over) {
            section.finish();
        }
    }

    /// Returns whether the command just executed was the last of a slice.
    fn is_slice_over(&self, at: usize, start: Instant) -> bool {
        let looks = self.next.is_multiple_of(COMMANDS_PER_LOOK) || self.commands[at].cost() != Cost::Constant;
        looks && start.elapsed() >= SLICE
    }

    /// Runs the next command, which is about scripts. If it runs a script, the script has the section until its end.
    fn run_script(&mut self, handle: ScriptHandle, context: &mut impl Connection, output: &mut Vec<u8>) {
        let Turn::Held(section) = std::mem::replace(&mut self.turn, Turn::Over) else { return };
        let at = self.next;
        self.next += 1;
        self.db = context.db();
        let (before, protocol) = (output.len(), context.protocol());
        let place = RefCell::new(Some(section));
        let words = self.commands[at].words.to_vec();
        context.show_before(self.commands[at].row.number, || words.clone());
        let guard = context.guard();
        let start = Start {
            inner: &self.inner,
            words: &words,
            received: self.commands[at].words.received(),
            db: self.db,
            client: context.client(),
            began: None,
            form: ReplyForm::Wire(protocol),
            behalf: context.behalf(),
            guard: guard.as_ref(),
            section: Some(&place),
        };
        let begun = Instant::now();
        let pending = handle(&start, &mut ReplyWriter::new(output, protocol));
        match pending.map(Pending::of) {
            Some(Ok(script)) => {
                self.worked = begun.elapsed();
                self.turn = Turn::Script(script);
            }
            _ => {
                if let Some(section) = place.take() {
                    self.turn = Turn::Held(section);
                }
                self.note(at, before, Some(begun.elapsed()), context, output);
            }
        }
    }

    /// Replies an error to the next command: a panic has dropped the section, so the remaining commands have no keys.
    fn fail_next(&mut self, context: &mut impl Connection, output: &mut Vec<u8>) {
        let (at, before) = (self.next, output.len());
        self.next += 1;
        ReplyWriter::new(output, context.protocol()).error(FAILED);
        self.note(at, before, None, context, output);
    }

    /// Lets the thread pool execute the next command.
    fn go_aside(&mut self, context: &impl Connection) {
        let away = Arc::new(Away::default());
        let Turn::Held(mut section) = std::mem::replace(&mut self.turn, Turn::Aside(away.clone())) else { return };
        section.set_owner(&format!("client-{}", context.client()));
        section.set_behalf(context.behalf());
        let queued = &self.commands[self.next];
        self.next += 1;
        self.db = context.db();
        let (spec, words, db) = (queued.spec(), queued.words.clone(), self.db);
        let form = ReplyForm::Wire(context.protocol());
        self.inner.aside.run(move || {
            let start = Instant::now();
            let (reply, _) = caught(form, |out| {
                if let Err(refused) = carry_out(&mut section, spec, &words, db, out) {
                    out.error(&refused.to_string());
                }
            });
            let Finished::Wire(reply) = reply else { unreachable!("bytes were asked for") };
            away.come_back(Back { section, reply, spent: start.elapsed() });
        });
    }

    /// Runs all commands while the locks of all their stripes are held. Returns false, without any effect, if that is
    /// not possible.
    fn run_at_once(&mut self, context: &mut impl Connection, output: &mut Vec<u8>) -> bool {
        // Messages that precede the transaction: there is no place for them inside its reply.
        context.drain_messages(output);
        let start = output.len();
        let watching = context.watching().take();
        let Some(ran) = run_together(&self.inner, &self.commands, watching.as_deref(), context, output) else {
            *context.watching() = watching;
            return false;
        };
        let mut from = ran.head;
        for (queued, end) in self.commands.iter().zip(&ran.ends) {
            context.count(queued.row.number, &output[from..*end]);
            from = *end;
        }
        for (at, spent) in ran.timed {
            self.commands[at].judge(spent, context);
        }
        self.start = Some(start);
        self.drop_if_mute(context, output);
        if let Some(ready) = ran.ready {
            self.inner.serve_and_end(*ready);
        }
        true
    }

    /// Ends the watch. Returns whether a watched key was changed.
    fn ends_watch_dirty(&self, context: &mut impl Connection, closed: Option<&Closed<'_>>) -> bool {
        let Some(watching) = context.watching().take() else { return false };
        let mut now = Now::frozen(&self.inner.clock, &self.inner.limits, self.now_us / 1000);
        let pass = match closed {
            Some(closed) => closed.pass(),
            None => self.inner.gate.enter(),
        };
        let is_dirty = watching.is_dirty(&self.inner, &pass, &mut now);
        watching.end_within(&self.inner, &pass);
        is_dirty
    }

    /// Writes the head of the reply. Returns false if there is nothing to run.
    fn begin(&mut self, is_dirty: bool, context: &mut impl Connection, output: &mut Vec<u8>) -> bool {
        self.guard = context.guard();
        // Messages that precede the transaction: there is no place for them inside its reply.
        context.drain_messages(output);
        self.start = Some(output.len());
        let mut out = ReplyWriter::new(output, context.protocol());
        match is_dirty {
            true => out.null_array(),
            false => out.array(self.commands.len()),
        }
        self.drop_if_mute(context, output);
        !is_dirty
    }

    /// Drops the output just written if CLIENT REPLY suppresses it.
    fn drop_if_mute(&self, context: &impl Connection, output: &mut Vec<u8>) {
        if context.is_mute() {
            output.truncate(self.start.unwrap_or(output.len()));
        }
    }

    /// Runs the next command and appends its reply. Returns false, without any effect, if it has to run on the thread
    /// pool.
    fn run_next(
        &mut self,
        context: &mut impl Connection,
        output: &mut Vec<u8>,
        alone: Option<(&Closed<'_>, &Collected)>,
    ) -> bool {
        let at = self.next;
        self.next += 1;
        let Numbered { spec, number } = self.commands[at].row;
        let before = output.len();
        let protocol = context.protocol();
        let timed = self.is_timed(at, context).then(Instant::now);
        let mut slept = None;
        let is_own = self.commands[at].is_own();
        if is_own && context.changes_listening(number) {
            self.emit_early(alone.map(|(_, collected)| collected));
        }
        // A panic ends only its own command; the others still run.
        let run = catch_unwind(AssertUnwindSafe(|| match is_own {
            true => {
                let words = self.commands[at].words.to_vec();
                match context.run(number, &words, &mut ReplyWriter::new(output, protocol)) {
                    Ran::Done => {}
                    Ran::Close => self.closes = true,
                    Ran::Sleep(nap, time) => {
                        slept = Some(time);
                        self.nap = Some(match self.nap.take() {
                            Some(before) => {
                                let time = nap.deadline().saturating_duration_since(tokio::time::Instant::now());
                                Box::pin(tokio::time::sleep_until(before.deadline() + time))
                            }
                            None => nap,
                        });
                        ReplyWriter::new(output, protocol).ok();
                    }
                    Ran::Waits => {
                        output.truncate(before);
                        ReplyWriter::new(output, protocol).error("ERR this command cannot wait in a transaction");
                    }
                }
                true
            }
            false => {
                let db = context.db();
                let out = &mut ReplyWriter::new(output, protocol);
                self.run_on_keyspace(at, spec, (db, context.behalf()), out, alone)
            }
        }));
        match run {
            Ok(true) => {}
            Ok(false) => {
                self.next = at;
                return false;
            }
            Err(_) => {
                output.truncate(before);
                ReplyWriter::new(output, protocol).error(FAILED);
            }
        }
        let spent = timed.map(|start| start.elapsed() + slept.unwrap_or_default()).or(slept);
        self.note(at, before, spent, context, output);
        true
    }

    /// Returns whether a command is not allowed any more.
    fn denies_some(&self, context: &impl Connection) -> bool {
        context.is_restricted()
            && self.commands.iter().any(|queued| !context.permits(queued.row, &queued.words.to_vec()))
    }

    /// Replies an error to the next command if its user may not call it any more: the permissions, or the user, may have
    /// changed since it was queued, also by the commands before it.
    fn deny_next(&mut self, context: &mut impl Connection, output: &mut Vec<u8>) -> bool {
        if !context.is_restricted() {
            return false;
        }
        let queued = &self.commands[self.next];
        let Some(text) = context.denial(queued.row, &queued.words.to_vec()) else { return false };
        self.next += 1;
        let before = output.len();
        ReplyWriter::new(output, context.protocol()).error_bytes(&text);
        context.count_denied(&output[before..]);
        if context.is_mute() {
            output.truncate(before);
        }
        true
    }

    /// Publishes the messages of the commands so far.
    fn emit_early(&mut self, collected: Option<&Collected>) {
        match (collected, &mut self.turn) {
            (Some(collected), _) => {
                let (deferred, now) = collected.take().into_iter().partition(Effect::is_deferred);
                collected.replace(deferred);
                let now: Vec<Effect> = now;
                self.inner.emit(now);
            }
            (None, Turn::Held(section)) => section.emit_early(),
            (None, _) => {}
        }
    }

    /// Returns whether a command's own duration may be needed.
    fn is_timed(&self, at: usize, context: &impl Connection) -> bool {
        let queued = &self.commands[at];
        context.is_timed(queued.spec(), queued.words.len())
    }

    /// Counts and shows a command, and drops its reply if the client does not want it.
    fn note(
        &self,
        at: usize,
        before: usize,
        spent: Option<Duration>,
        context: &mut impl Connection,
        output: &mut Vec<u8>,
    ) {
        let row = self.commands[at].row.number;
        if let Some(spent) = spent {
            self.commands[at].judge(spent, context);
        }
        context.show_after(row, || self.commands[at].words.to_vec());
        context.count(row, &output[before..]);
        if context.is_mute() && !context.pushes(row) {
            output.truncate(before);
        }
    }

    /// Runs a command of the keyspace. Returns false, without any effect, if it has to run on the thread pool.
    fn run_on_keyspace(
        &mut self,
        at: usize,
        spec: &'static CommandSpec,
        (db, behalf): (u32, Behalf),
        out: &mut dyn ReplySink,
        alone: Option<(&Closed<'_>, &Collected)>,
    ) -> bool {
        if self.say_listed(at, db, out) {
            return true;
        }
        let words = self.commands[at].words.to_vec();
        let inner = &self.inner;
        match (alone, &mut self.turn) {
            (Some((closed, collected)), _) => match spec.handler {
                Handler::Global(handle) => {
                    if handle(&inner.keyspace, closed, &words, db, out) {
                        collected.borrow_mut().extend(inner.forget_tracked());
                        if inner.record.is_on() {
                            collected.borrow_mut().push(Effect::Change(Unit::of(db, &words)));
                        }
                    }
                }
                Handler::Keyspace(_) => {
                    let time = Frozen::at(self.now_us);
                    Alone { inner, closed, time, behalf, collected }.execute(spec, db, &words, out);
                }
                // A transaction with a script would be a section.
                Handler::Script(_) | Handler::Container | Handler::Connection(_) => out.error(FAILED),
            },
            (None, Turn::Held(section)) => {
                section.set_behalf(behalf);
                if spec.flags.has(Flags::WRITE) {
                    section.begin_to_write();
                }
                match section.try_execute(spec, db, &words, out) {
                    Ok(done) => return done,
                    Err(refused) => out.error(&refused.to_string()),
                }
            }
            (None, _) => out.error(FAILED),
        }
        true
    }

    fn leave_gate_if_queued(&mut self) {
        if let Turn::Alone(_) = self.turn {
            self.leave_gate();
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.leave_gate_if_queued();
        if !self.has_begun() {
            if self.bytes > FREED_ASIDE {
                let gathering = match std::mem::replace(&mut self.turn, Turn::Over) {
                    Turn::Gathering(gathering) => Some(gathering),
                    _ => None,
                };
                let over = (std::mem::take(&mut self.commands), self.gathered.take(), gathering);
                self.inner.aside.run(move || drop(over));
            }
            return;
        }
        // Its client has disconnected in the middle; half a transaction must not remain.
        let (inner, has_written) = (self.inner.clone(), self.has_written());
        let (commands, share) = (std::mem::take(&mut self.commands), std::mem::take(&mut self.share));
        let guard = self.guard.take();
        let rest = Rest { inner, commands, next: self.next, db: self.db, guard, _share: share };
        match std::mem::replace(&mut self.turn, Turn::Over) {
            Turn::Held(section) if has_written => rest.finish_somewhere(section),
            Turn::Held(section) => rest.give_up(section),
            Turn::Aside(away) => away.leave(rest),
            Turn::Script(script) => script.leave(move |ended| {
                if let Some(section) = ended.section {
                    rest.finish_somewhere(section);
                }
            }),
            _ => {}
        }
    }
}

/// Returns the database that a SELECT chooses, if it exists.
pub(crate) fn selected(inner: &Inner, word: &[u8]) -> Option<u32> {
    let db = parse_i64(word).and_then(|db| u32::try_from(db).ok())?;
    (db < inner.keyspace.databases()).then_some(db)
}
