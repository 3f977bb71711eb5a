//! A running script: the execution of its commands, and its waits.

use std::sync::Arc;

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};

use super::call::Call;
use super::control::Write;
use super::errors_only::ErrorsOnly;
use super::limited::{Limited, MUCH, Size};
use super::run::WORDS_BYTES_MAX;
use super::source::Flags;
use super::take::Take;
use super::watched::Awaited;
use crate::Inner;
use crate::big::{carry_out, takes_long};
use crate::catalogue::Start;
use crate::catalogue::{CommandSpec, Detached, Flags as CommandFlags, Handler, Numbered};
use crate::execute::Origin;
use crate::memory::OOM;
use crate::owned::ReplyForm;
use crate::owned::Words;
use crate::refused::DB_RANGE;
use crate::refused::SectionError;
use crate::section::{Section, SectionWait};

/// The operation for which a script waits, and its result.
pub(crate) enum Waits {
    Nothing,
    /// For an undeclared key, or for everything.
    Key(Take),
    /// For a script thread, because a command takes long.
    Thread,
    /// For a script thread, on which the reply is converted to a value.
    Away(Vec<u8>),
    /// Of a non-atomic script: for keys that it locks.
    Lock(SectionWait),
    /// Of a non-atomic script: for a command that was parked.
    Command(Awaited),
    /// No wait: the reply for which it has waited.
    Reply(Vec<u8>),
    /// No wait: the script may not have the key.
    Refused(String),
}

/// The result of a command.
pub(crate) enum Ran {
    /// Its reply has been written.
    Replied,
    /// Like [`Replied`](Ran::Replied); the reply takes long to become a value, and the script may leave its worker for
    /// that.
    RepliedMuch,
    /// It was refused before it ran; the error has been written.
    Rejected,
    /// The script must wait; see [`Waits`].
    Waits,
}

/// The running script of an interpreter.
pub(crate) struct Active {
    pub(crate) call: Call,
    /// The section that holds its keys; a non-atomic script has none, except while it locks some.
    pub(crate) section: Option<Section>,
    /// The store of a non-atomic script; other scripts have it in their section. Another reference count for each
    /// script would be one more cache line that all workers write to.
    pub(crate) outside: Option<Arc<Inner>>,
    pub(crate) db: u32,
    /// The form of commands' replies to the script.
    pub(crate) protocol: Protocol,
    pub(crate) waits: Waits,
    /// Whether it runs on a thread that it may occupy for long.
    pub(crate) is_patient: bool,
    /// Whether it runs on a [spare](super::spare) thread, which it leaves before it calls a command.
    pub(crate) is_spare: bool,
    /// Whether it has called a command since this was cleared.
    pub(crate) has_called: bool,
    /// Whether its commands may run although memory is full (`allow-oom`).
    pub(crate) ignores_memory: bool,
    /// The row of the last command.
    pub(crate) row: u16,
}

impl Active {
    /// Returns the store.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        let of_section = self.section.as_ref().map(Section::inner);
        of_section.or(self.outside.as_ref()).expect("a script has a section, or is not atomic")
    }

    /// Executes a command and writes its encoded reply; only an error if the reply is discarded. `may_leave`: other
    /// tasks wait for this thread, and the script can move to another one here.
    pub(crate) fn execute(
        &mut self,
        row: Option<Numbered>,
        words: &[&[u8]],
        wants_reply: bool,
        may_leave: bool,
        out: &mut Vec<u8>,
    ) -> Ran {
        let error = |out: &mut Vec<u8>, text: &str| {
            ReplyWriter::new(out, Protocol::Resp2).error(text);
            Ran::Rejected
        };
        self.row = u16::MAX;
        self.has_called = true;
        let Some(mut row) = row else {
            return match crate::redis::refusal(words[0]) {
                Some(text) => error(out, &text),
                None => error(out, "ERR Unknown Redis command called from script"),
            };
        };
        if !row.spec.subcommands.is_empty() && words.len() >= 2 {
            let Some(found) = self.inner().rows.subcommand(row, words[1]) else {
                if let Some(text) = crate::redis::refusal_of_subcommand(words[0], words[1]) {
                    return error(out, &text);
                }
                return error(out, "ERR Unknown Redis command called from script");
            };
            row = found;
        }
        let spec = row.spec;
        self.row = row.number;
        if !spec.takes(words.len()) {
            return error(out, "ERR Wrong number of args calling Redis command from script");
        }
        if spec.flags.has(CommandFlags::NOSCRIPT) {
            return error(out, "ERR This Redis command is not allowed from script");
        }
        if let Some(guard) = &self.call.guard
            && let Some(text) = guard.denial(row, words)
        {
            ReplyWriter::new(out, Protocol::Resp2).error_bytes(&text);
            return Ran::Rejected;
        }
        if self.call.flags.has(Flags::NO_WRITES) && spec.counts_as_write() {
            return error(out, "ERR Write commands are not allowed from read-only scripts.");
        }
        let loading = &self.inner().loading;
        if loading.is_stale() && !spec.flags.has(CommandFlags::STALE) && !self.call.behalf.is_masters {
            return error(out, "ERR Can not execute the command on a stale replica");
        }
        if spec.flags.has(CommandFlags::DENYOOM) && !self.has_room() {
            return error(out, OOM);
        }
        if may_leave && is_much(spec, words) {
            self.waits = Waits::Thread;
            return Ran::Waits;
        }
        match spec.handler {
            Handler::Connection(command) => match self.of_connection(command, words, out) {
                Ran::Replied if may_leave && out.len() > MUCH => Ran::RepliedMuch,
                ran => ran,
            },
            Handler::Keyspace(_) | Handler::Global(_) if self.section.is_some() => {
                self.in_section(spec, words, wants_reply, may_leave, out)
            }
            Handler::Keyspace(_) | Handler::Global(_) => self.alone(spec, words, may_leave, out),
            // Of the commands about scripts, a script may call only the lists of subcommands (HELP).
            Handler::Script(handle) => {
                let (inner, client) = (self.inner(), self.call.control.client);
                let form = ReplyForm::Wire(self.protocol);
                let start = Start {
                    inner,
                    words,
                    received: None,
                    db: self.db,
                    client,
                    began: None,
                    form,
                    behalf: self.call.behalf,
                    guard: self.call.guard.as_ref(),
                    section: None,
                };
                drop(handle(&start, &mut ReplyWriter::new(out, self.protocol)));
                Ran::Replied
            }
            Handler::Container => error(out, "ERR This Redis command is not allowed from script"),
        }
    }

    /// Returns whether a command that needs memory may run. A script that has written continues to its end, whatever
    /// memory that takes: half a script is worse than a little more memory.
    fn has_room(&self) -> bool {
        let is_bound = !self.ignores_memory && !self.call.control.has_written();
        !is_bound || !self.inner().memory.is_over() || self.inner().make_room()
    }

    fn in_section(
        &mut self,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        wants_reply: bool,
        may_leave: bool,
        out: &mut Vec<u8>,
    ) -> Ran {
        let Some(section) = &mut self.section else { return Ran::Replied };
        if spec.needs_everything() && !section.has_everything() {
            if !section.may_have_more() {
                ReplyWriter::new(out, Protocol::Resp2).error(&SectionError::Undeclared.to_string());
                return Ran::Replied;
            }
            let take = Take::everything(section, Some(&self.call.control));
            if !take.has_everything() {
                self.waits = Waits::Key(take);
                return Ran::Waits;
            }
            section.adopt_everything();
        }
        let known = section.knows(spec, self.db, words);
        let held = known.map(|hash| (&**section.holding(), hash));
        let takes_long = takes_long(section.inner(), spec, words, self.db, held);
        if takes_long && !self.is_patient {
            self.waits = Waits::Thread;
            return Ran::Waits;
        }
        let write = match spec.flags.has(CommandFlags::WRITE) {
            true => self.call.control.begin_write(),
            false => Write::Another,
        };
        if write == Write::Never {
            // The killed script ends instead of running the command.
            return Ran::Waits;
        }
        let (mut wanted, mut limited, mut unwanted);
        let mut size = Size::new(spec);
        let sink: &mut dyn ReplySink = match wants_reply {
            true if may_leave => {
                limited = Limited::new(out, self.protocol, &mut size);
                &mut limited
            }
            true => {
                wanted = ReplyWriter::new(out, self.protocol);
                &mut wanted
            }
            false => {
                unwanted = ErrorsOnly(out);
                &mut unwanted
            }
        };
        let ran = match known {
            _ if takes_long => carry_out(section, spec, &Words::new(words), self.db, sink).map(|()| true),
            Some(hash) => section.try_known(spec, self.db, words, hash, sink),
            None => section.try_execute(spec, self.db, words, sink),
        };
        let result = match ran {
            // The value proved to be long.
            Ok(false) if !self.is_patient => {
                if write == Write::First {
                    self.call.control.take_back_write();
                }
                self.waits = Waits::Thread;
                return Ran::Waits;
            }
            Ok(false) => section.execute_pinned(spec, self.db, words, sink),
            ran => ran.map(drop),
        };
        if write == Write::First && (result.is_err() || out.first() == Some(&b'-')) {
            self.call.control.take_back_write();
        }
        match result {
            Ok(()) if wants_reply && may_leave => return self.replied(&size, out),
            Ok(()) => {}
            Err(SectionError::Held) => {
                out.clear();
                return match section.missed() {
                    Some((db, key)) => {
                        self.waits = Waits::Key(Take::new(section, &self.call.control, db, key));
                        Ran::Waits
                    }
                    None => {
                        ReplyWriter::new(out, Protocol::Resp2).error(&SectionError::Held.to_string());
                        Ran::Replied
                    }
                };
            }
            Err(SectionError::ReadOnly) => ReplyWriter::new(out, Protocol::Resp2)
                .error("ERR Write commands are not allowed from read-only scripts."),
            Err(refused) => ReplyWriter::new(out, Protocol::Resp2).error(&refused.to_string()),
        }
        Ran::Replied
    }

    /// Runs a command of a non-atomic script, as if a client had sent it.
    fn alone(&mut self, spec: &'static CommandSpec, words: &[&[u8]], may_leave: bool, out: &mut Vec<u8>) -> Ran {
        let control = &self.call.control;
        let loading = &self.inner().loading;
        if spec.flags.has(CommandFlags::WRITE)
            && !self.call.behalf.is_masters
            && let Some(text) = loading.refusal_of_writes()
        {
            ReplyWriter::new(out, Protocol::Resp2).error(text);
            return Ran::Rejected;
        }
        if spec.flags.has(CommandFlags::WRITE) && control.begin_write() == Write::Never {
            // The killed script ends instead of running the command.
            return Ran::Waits;
        }
        let form = ReplyForm::Wire(self.protocol);
        let behalf = self.call.behalf;
        let origin = Origin { db: self.db, client: control.client, behalf, ..Origin::default() };
        let inner = self.inner();
        let mut size = Size::new(spec);
        let started = match may_leave {
            true => {
                let mut limited = Limited::new(out, self.protocol, &mut size);
                inner.start(inner, spec, words, origin, form, &mut limited)
            }
            false => inner.start(inner, spec, words, origin, form, &mut ReplyWriter::new(out, self.protocol)),
        };
        match started {
            None if may_leave => self.replied(&size, out),
            None => Ran::Replied,
            Some(parked) => {
                // A script does not wait for other clients.
                parked.time_out();
                self.waits = Waits::Command(Awaited { parked, worked: None });
                Ran::Waits
            }
        }
    }

    /// Handles a command that has written this much of its reply. A truncated one is executed again, on a thread with
    /// more time; this is possible because it only reads.
    fn replied(&mut self, size: &Size, out: &mut Vec<u8>) -> Ran {
        if size.is_cut() {
            out.clear();
            self.waits = Waits::Thread;
            return Ran::Waits;
        }
        if size.is_much(out.len()) { Ran::RepliedMuch } else { Ran::Replied }
    }

    /// Runs one of the few connection commands that scripts may call.
    fn of_connection(&mut self, command: Detached, words: &[&[u8]], out: &mut Vec<u8>) -> Ran {
        let mut out = ReplyWriter::new(out, self.protocol);
        match command {
            Detached::Replies(handle) => handle(words, &mut out),
            Detached::Selects => match parse_i64(words[1]).map(u32::try_from) {
                Some(Ok(db)) if db < self.inner().keyspace.databases() => {
                    self.db = db;
                    out.ok();
                }
                Some(_) => out.error(DB_RANGE),
                None => out.error("ERR value is not an integer or out of range"),
            },
            Detached::Needless | Detached::Server => {
                if !self.inner().scripts.tell(self.row, words, &mut out) {
                    out.error("ERR This Redis command is not allowed from script");
                    return Ran::Rejected;
                }
            }
        }
        Ran::Replied
    }
}

/// Returns whether a command with these words takes long, whatever keys it reads or writes.
fn is_much(spec: &CommandSpec, words: &[&[u8]]) -> bool {
    words.iter().map(|word| word.len()).sum::<usize>() > WORDS_BYTES_MAX
        || spec.asks_for_much.is_some_and(|asks| asks(words))
}
