//! One call of a script, from its keys to its reply.
//!
//! It waits for its keys like a section, takes an interpreter, and runs: its first slice on the thread that called it,
//! which is enough for most scripts. A script that exceeds the slice moves to a script thread
//! ([`threads`](super::threads)) with its whole state; so does one whose caller has gone. Its reply is written before
//! its section ends.

use std::ffi::c_int;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluicegate_script::{Budget, Burst, Coroutine, ErrorKind, is_patient};
use sluicegate_wire::resp::{Protocol, ReplySink};

use super::active::{Active, Waits};
use super::call::Call;
use super::code::Code;
use super::convert;
use super::failed::{KILLED, at_place};
use super::gather::{Gathering, Touched, begin, begin_at_once};
use super::interpreter::Interpreter;
use super::library::{Library, Load, Policy};
use super::limited::MUCH;
pub(crate) use super::pending::{Heir, Pending};
use super::source::Flags;
use super::spare::{End, Slices, Spare};
use super::take::{Take, Took};
use super::threads::Done;
use crate::big::MANY_KEYS;
use crate::hold::{Mode, Ticket};
use crate::owned::Finished;
use crate::owned::ReplyForm;
use crate::owned::Words;
use crate::park::{Parked, Waits as Parks};
use crate::section::{Section, SectionWait};
use crate::stats::SectionCounts;
use crate::{Inner, Store};

/// The number of bytes of keys and arguments, of a script or a command, above which they are processed on a script
/// thread.
pub(super) const WORDS_BYTES_MAX: usize = 1 << 20;

/// The same for their number.
const WORDS_MAX: usize = 4096;

/// The time limit for loading libraries.
const LOAD_MAX: Duration = Duration::from_millis(500);

/// The stages of a script.
enum Stage {
    /// Not started: its arguments have to be processed on a thread with more time.
    New,
    /// Its very many keys are being collected.
    Gathering(Gathering),
    /// It waits for its keys.
    Keys(SectionWait),
    /// It was restarted, and waits for everything.
    Everything(Take, Section),
    /// It has its keys, and has to be prepared on a thread with more time.
    Ready(Option<Section>),
    Runs(Box<Runs>),
    /// It has ended, and its result has to be written on a thread with more time.
    Ended(Box<Runs>, Burst),
    Over,
}

/// The result of a step.
#[allow(clippy::large_enum_variant, reason = "it is looked at where it was made")]
pub(crate) enum Step {
    /// It waits, and will be woken.
    Waits,
    /// Its slice is over, or its next command needs a script thread.
    Forced,
    Done(Ended),
}

/// A script that has ended.
pub(crate) struct Ended {
    pub(crate) reply: Finished,
    /// The enclosing section, which the consumer of the reply finishes.
    pub(crate) section: Option<Section>,
    /// Whether it was killed, or ended by a fault.
    pub(crate) is_aborted: bool,
}

impl Ended {
    /// Ends the section, if it belongs to the script alone, and returns the reply.
    pub(crate) fn finish(self) -> Finished {
        if let Some(section) = self.section
            && !self.is_aborted
        {
            section.finish();
        }
        self.reply
    }
}

/// A call in progress.
pub(crate) struct Job {
    inner: Arc<Inner>,
    call: Call,
    words: Arc<Words>,
    form: ReplyForm,
    stage: Stage,
    /// The undeclared keys that it has touched; after a restart they are declared.
    touched: Vec<Touched>,
    /// Whether it was restarted to run with everything held.
    wants_everything: bool,
    /// Whether it continues on a script thread.
    leaves: bool,
    is_listed: bool,
    /// Whether its section has a name, and other clients can kill it.
    is_named: bool,
    /// Whether its section belongs to a transaction, which continues with it.
    is_part: bool,
}

/// An interpreter with a script in it.
pub(super) struct Runs {
    pub(super) interpreter: Box<Interpreter>,
    pub(super) coroutine: Coroutine,
    /// The number of values on its stack for its first burst.
    arguments: c_int,
    budget: Budget,
}

/// The reason why a script did not begin.
enum NotBegun {
    /// It has an error, which is the reply.
    Failed(Vec<u8>),
    /// Preparing it takes too long for this thread.
    TooLong(Call),
}

/// Starts a script. Most end at once.
pub(crate) fn start(
    inner: &Arc<Inner>,
    call: Call,
    words: &[&[u8]],
    owned: impl FnOnce() -> Arc<Words>,
    form: ReplyForm,
    out: &mut dyn ReplySink,
) -> Option<Parked> {
    let (mut section, mut stage, mut leaves) = (None, None, false);
    if are_many(words) || call.keys > MANY_KEYS {
        (stage, leaves) = (Some(Stage::New), true);
    } else if !call.flags.has(Flags::NON_ATOMIC) {
        section = begin_at_once(inner, &call, words);
        if section.is_none() {
            let mut wait = begin(inner, &call, words, &[]);
            match std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(begun)) => section = Some(begun),
                Poll::Ready(Err(refused)) => {
                    out.error(&refused.to_string());
                    return None;
                }
                Poll::Pending => stage = Some(Stage::Keys(wait)),
            }
        }
    }
    let (call, stage) = 'begins: {
        if let Some(stage) = stage {
            (call, stage)
        } else {
            let mut runs = match Runs::new(inner, call, words, &mut section) {
                Ok(runs) => runs,
                Err(NotBegun::Failed(text)) => {
                    out.error_bytes(&text);
                    Section::finish_in(&mut section);
                    return None;
                }
                Err(NotBegun::TooLong(call)) => {
                    leaves = true;
                    break 'begins (call, Stage::Ready(section));
                }
            };
            match runs.burst() {
                burst @ Burst::Done(_) if runs.says_much(burst) => {
                    leaves = true;
                    (runs.active().call.clone(), Stage::Ended(Box::new(runs), burst))
                }
                burst @ (Burst::Done(_) | Burst::Failed | Burst::Yielded) => {
                    runs.end(inner, burst, &mut section, out);
                    Section::finish_in(&mut section);
                    return None;
                }
                burst @ (Burst::Waiting | Burst::Forced) => {
                    leaves = burst == Burst::Forced;
                    (runs.active().call.clone(), Stage::Runs(Box::new(runs)))
                }
            }
        }
    };
    let mut job = Job::new(inner, call, owned(), form, stage, leaves);
    job.list();
    Some(job.parked())
}

/// Returns whether processing these words takes long, and other tasks wait for this thread.
fn are_many(words: &[&[u8]]) -> bool {
    let is_much = words.len() > WORDS_MAX || words.iter().map(|word| word.len()).sum::<usize>() > WORDS_BYTES_MAX;
    is_much && !is_patient()
}

impl Runs {
    /// Takes an interpreter and prepares a script in it, to which the section then belongs.
    fn new(inner: &Arc<Inner>, call: Call, words: &[&[u8]], section: &mut Option<Section>) -> Result<Runs, NotBegun> {
        if are_many(words) {
            return Err(NotBegun::TooLong(call));
        }
        let pool = &inner.scripts.pool;
        let mut interpreter = match pool.take() {
            Ok(interpreter) => interpreter,
            Err(error) => return Err(NotBegun::Failed(format!("ERR {}", error.message).into())),
        };
        let (keys, others) = words.split_at(call.keys);
        let (coroutine, arguments) = match interpreter.begin(call.code(), keys, others) {
            Ok(Some(begun)) => begun,
            Ok(None) => {
                pool.put_away(interpreter, true);
                return Err(NotBegun::TooLong(call));
            }
            Err(refused) => {
                pool.put_away(interpreter, refused.is_sound);
                return Err(NotBegun::Failed(refused.text.into()));
            }
        };
        call.control.begin(section.as_ref());
        if let Some(section) = section {
            section.set_behalf(call.behalf);
            let denies = inner.scripts.denies_undeclared() && !call.flags.has(Flags::UNDECLARED);
            section.extend_as(if denies { None } else { Some(call.mode()) });
        }
        let total = matches!(call.code(), Code::Load(_)).then_some(LOAD_MAX);
        interpreter.host().active = Some(Active {
            outside: section.is_none().then(|| inner.clone()),
            section: section.take(),
            db: call.db,
            protocol: Protocol::Resp2,
            waits: Waits::Nothing,
            is_patient: false,
            is_spare: false,
            has_called: false,
            ignores_memory: call.flags.has(Flags::ALLOW_OOM),
            row: 0,
            call,
        });
        Ok(Runs { interpreter, coroutine, arguments, budget: Budget::new(total, None) })
    }

    fn active(&mut self) -> &mut Active {
        self.interpreter.host().active.as_mut().expect("a script is in it until its end")
    }

    /// Runs until the script ends, waits, or has had its slice.
    fn burst(&mut self) -> Burst {
        let arguments = std::mem::take(&mut self.arguments);
        // SAFETY: the coroutine is this state's; on its stack are the function and its arguments, or the values from
        // when it yielded.
        unsafe { self.interpreter.state.resume(&self.coroutine, arguments, &mut self.budget) }
    }

    /// Returns whether writing the script's result takes long, and other tasks wait for this thread.
    fn says_much(&self, burst: Burst) -> bool {
        let Burst::Done(results @ 1..) = burst else { return false };
        // SAFETY: the coroutine has ended and its results are on top of its stack.
        !is_patient() && unsafe { convert::is_much(self.coroutine.thread(), -results) }
    }

    /// Writes the script's result or error, and returns the interpreter to the pool and the section to its place.
    fn end(mut self, inner: &Inner, burst: Burst, section: &mut Option<Section>, out: &mut dyn ReplySink) {
        let lua = self.coroutine.thread();
        // From place to place: a section is large to be moved.
        std::mem::swap(section, &mut self.active().section);
        let Active { call, protocol, .. } =
            self.interpreter.host().active.take().expect("a script is in it until its end");
        let mut is_sound = match call.code() {
            Code::Script(script) => {
                script.times.add(call.control.took());
                true
            }
            Code::Function(library, _) => self.interpreter.adopt(std::slice::from_ref(library)),
            Code::Load(load) => {
                let is_sound = self.end_load(inner, load, burst, out);
                self.put_away(inner, is_sound);
                return;
            }
        };
        match burst {
            // As in Redis, only the first returned value is used.
            Burst::Done(0) => out.null(),
            Burst::Done(results) => {
                let host = self.interpreter.host();
                // SAFETY: the coroutine has ended and its results are on top of its stack.
                unsafe { convert::say(lua, host, -results, protocol == Protocol::Resp3, out) };
            }
            Burst::Yielded => {
                let place = self.place();
                out.error_bytes(&at_place(
                    b"ERR attempt to yield across metamethod/C-call boundary".into(),
                    &call,
                    place,
                ));
            }
            _ => {
                let error = self.interpreter.state.failure(&self.coroutine);
                is_sound &= error.kind != ErrorKind::Memory;
                let text = self.error_text(&call, &error.message);
                out.error_bytes(&text);
            }
        }
        call.control.rest();
        self.put_away(inner, is_sound);
    }

    /// Puts the interpreter back into the pool, or closes it if its state may be corrupt.
    fn put_away(self, inner: &Inner, is_sound: bool) {
        let Runs { mut interpreter, coroutine, .. } = self;
        interpreter.host().counts.give(&inner.scripts.counts, &inner.errors);
        interpreter.state.recycle(coroutine);
        inner.scripts.pool.put_away(interpreter, is_sound);
    }

    /// Registers the loaded libraries, and replies. Returns whether the interpreter may be reused.
    fn end_load(&mut self, inner: &Inner, load: &Load, burst: Burst, out: &mut dyn ReplySink) -> bool {
        let Burst::Done(_) = burst else {
            let error = self.interpreter.state.failure(&self.coroutine);
            let text = match error.kind {
                ErrorKind::Timeout => b"ERR FUNCTION LOAD timeout".to_vec(),
                _ => self.error(&error.message),
            };
            out.error_bytes(&[b"ERR Error registering functions: ", &text[..]].concat());
            return false;
        };
        let registered = match &mut self.interpreter.host().loading {
            Some(loading) => &mut loading.registered,
            None => return false,
        };
        if registered.iter().any(Vec::is_empty) {
            out.error("ERR No functions registered");
            return false;
        }
        let libraries: Vec<Arc<Library>> = load
            .sources
            .iter()
            .zip(&*registered)
            .map(|(source, registered)| Library::new(source, registered))
            .collect();
        let installed = {
            // A snapshot has either the libraries or their records.
            let _pass = inner.gate.enter();
            let installed = inner.scripts.libraries.install(load, libraries.clone());
            if installed.is_ok() && inner.record.is_on() {
                inner.record.put(|unit| {
                    if load.policy == Policy::Flush {
                        unit.add(0, &[b"FUNCTION", b"FLUSH"]);
                    }
                    for library in &libraries {
                        unit.add(0, &[b"FUNCTION", b"LOAD", b"REPLACE", &library.source]);
                    }
                });
            }
            installed
        };
        if let Err(text) = installed {
            out.error_bytes(text.as_bytes());
            return false;
        }
        if load.policy != Policy::Append {
            inner.scripts.pool.forget_libraries();
        }
        match (load.is_restored, &libraries[..]) {
            (false, [library]) => out.bulk(library.name.as_bytes()),
            _ => out.ok(),
        }
        self.interpreter.adopt(&libraries)
    }

    /// Reports the last command, which was parked, if it took long.
    fn judge_command(&mut self, worked: Duration) {
        let host = self.interpreter.host();
        if let Some(active) = &host.active {
            // The script is suspended in its call, with the words on its stack.
            active.judge(&host.words, worked);
        }
    }

    /// Ends the script at the point where it is suspended, and closes its interpreter.
    fn kill(mut self, call: &Call, out: &mut dyn ReplySink) -> Option<Section> {
        let place = self.place();
        out.error_bytes(&at_place(KILLED.into(), call, place));
        self.discard()
    }

    /// Abandons the script at the point where it is suspended, and closes its interpreter.
    fn discard(mut self) -> Option<Section> {
        let host = self.interpreter.host();
        let Active { section, waits, outside, .. } = host.active.take().expect("a script is in it until its end");
        // A wait for a key ends here, before the section does.
        drop(waits);
        if let Some(inner) = section.as_ref().map(Section::inner).or(outside.as_ref()) {
            host.counts.give(&inner.scripts.counts, &inner.errors);
        }
        section
    }
}

impl Slices for Runs {
    fn slice(&mut self) -> Burst {
        self.burst()
    }
}

impl Job {
    /// Returns a script that runs as part of a transaction's section.
    #[allow(clippy::result_large_err, reason = "the section goes back to who knows what to do with it")]
    pub(crate) fn within(
        inner: &Arc<Inner>,
        call: Call,
        words: &[&[u8]],
        owned: impl FnOnce() -> Arc<Words>,
        form: ReplyForm,
        section: Section,
    ) -> Result<Box<Job>, (Vec<u8>, Option<Section>)> {
        // Earlier commands of the transaction are not repeated.
        call.control.never_restarts();
        let mut section = Some(section);
        let (stage, leaves) = match Runs::new(inner, call.clone(), words, &mut section) {
            Ok(runs) => (Stage::Runs(Box::new(runs)), false),
            Err(NotBegun::TooLong(_)) => (Stage::Ready(section), true),
            Err(NotBegun::Failed(text)) => return Err((text, section)),
        };
        let mut job = Job::new(inner, call, owned(), form, stage, leaves);
        job.is_part = true;
        Ok(job)
    }

    fn new(inner: &Arc<Inner>, call: Call, words: Arc<Words>, form: ReplyForm, stage: Stage, leaves: bool) -> Box<Job> {
        let (inner, touched) = (inner.clone(), Vec::new());
        let (wants_everything, is_listed, is_named, is_part) = (false, false, false, false);
        Box::new(Job {
            inner,
            call,
            words,
            form,
            stage,
            touched,
            wants_everything,
            leaves,
            is_listed,
            is_named,
            is_part,
        })
    }

    fn parked(self: Box<Self>) -> Parked {
        Parked(Parks::Work(Box::new(Pending::new(self))))
    }

    /// Returns whether it has begun, or only has too much to prepare: then it is finished even if its client
    /// disconnects.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.stage, Stage::New | Stage::Runs(_) | Stage::Ready(_) | Stage::Ended(..))
    }

    /// Returns its ticket, while it is queued for its keys.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        match &self.stage {
            Stage::Keys(wait) => wait.ticket(),
            _ => None,
        }
    }

    /// Returns whether tickets wait for its holds.
    pub(crate) fn is_wanted(&mut self) -> bool {
        match &mut self.stage {
            Stage::Runs(runs) | Stage::Ended(runs, _) => {
                let inner = &self.inner;
                runs.active().section.as_ref().is_some_and(|section| match section.has_everything() {
                    true => inner.gate.has_waiting(),
                    false => inner.is_any_wanted(section.first_keys()),
                })
            }
            _ => false,
        }
    }

    /// Returns whether the script has called a command since the last call of this.
    pub(super) fn has_called(&mut self) -> bool {
        match &mut self.stage {
            Stage::Runs(runs) => std::mem::take(&mut runs.active().has_called),
            _ => true,
        }
    }

    /// Continues for up to a slice. `is_patient`: it may occupy the thread for long.
    pub(crate) fn step(&mut self, context: &mut Context<'_>, is_patient: bool) -> Step {
        let step = self.go_on(context, is_patient);
        self.note_wait(context, step)
    }

    /// Like [`step`](Self::step) on a script thread, for a script that only computes: on its spare thread up to the end
    /// of the slice there, which is also returned.
    pub(super) fn step_on(&mut self, spare: &Spare<Runs>, context: &mut Context<'_>) -> (Step, Option<End>) {
        let (step, end) = match self.lend(spare) {
            Some((step, end)) => (step, Some(end)),
            None => (None, None),
        };
        let step = step.unwrap_or_else(|| self.go_on(context, true));
        (self.note_wait(context, step), end)
    }

    /// Runs the script on a spare thread, if it runs and waits for nothing. Returns the end of the slice there and the
    /// step that ends with it; no step if the script has to go on here.
    fn lend(&mut self, spare: &Spare<Runs>) -> Option<(Option<Step>, End)> {
        let Stage::Runs(runs) = &mut self.stage else { return None };
        // The limit of a library's loading is one of real time.
        let has_limit = runs.budget.total.is_some();
        let active = runs.active();
        if has_limit || self.call.control.is_killed() || !matches!(active.waits, Waits::Nothing) {
            return None;
        }
        (active.is_patient, active.is_spare) = (false, true);
        let Stage::Runs(runs) = std::mem::replace(&mut self.stage, Stage::Over) else { return None };
        let (mut runs, burst, end) = spare.run(runs);
        let active = runs.active();
        (active.is_patient, active.is_spare) = (true, false);
        self.stage = Stage::Runs(runs);
        let burst = burst.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Some((self.after(burst, true), end))
    }

    fn note_wait(&mut self, context: &mut Context<'_>, step: Step) -> Step {
        if let Step::Waits = step {
            self.list();
            self.call.control.listen(context.waker());
            if self.call.control.is_killed() {
                return self.killed();
            }
        }
        step
    }

    fn go_on(&mut self, context: &mut Context<'_>, is_patient: bool) -> Step {
        loop {
            if let Err(step) = self.reach(context, is_patient) {
                return step;
            }
            match self.end_wait(context, is_patient) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(step) => return step,
            }
            if let Some(step) = self.burst(is_patient) {
                return step;
            }
        }
    }

    /// Advances it to the stage in which it runs, through the waits for its keys. An error is the step that ends here.
    #[inline]
    #[allow(clippy::result_large_err, reason = "the step is the caller's own result")]
    fn reach(&mut self, context: &mut Context<'_>, is_patient: bool) -> Result<(), Step> {
        if let Stage::Ended(..) = self.stage {
            if !is_patient {
                return Err(Step::Forced);
            }
            if let Stage::Ended(runs, burst) = std::mem::replace(&mut self.stage, Stage::Over) {
                return Err(self.end(runs, burst));
            }
        }
        if self.call.control.is_killed() {
            return Err(self.killed());
        }
        if let Stage::New = self.stage {
            if !is_patient {
                return Err(Step::Forced);
            }
            self.stage = match self.call.flags.has(Flags::NON_ATOMIC) {
                true => Stage::Ready(None),
                false => self.wait_for_keys(),
            };
        }
        if let Stage::Gathering(gathering) = &mut self.stage {
            if !is_patient || !gathering.work(&self.inner, &self.call, &self.words, &self.touched) {
                return Err(Step::Forced);
            }
            if let Stage::Gathering(gathering) = std::mem::replace(&mut self.stage, Stage::Over) {
                self.stage = Stage::Keys(Store(self.inner.clone()).section_of(gathering.ticket()));
            }
        }
        if let Stage::Keys(wait) = &mut self.stage {
            match std::pin::Pin::new(wait).poll(context) {
                Poll::Pending => return Err(Step::Waits),
                Poll::Ready(Err(refused)) => return Err(self.over(&refused.to_string())),
                Poll::Ready(Ok(section)) if self.wants_everything => {
                    self.stage = Stage::Everything(Take::everything(&section, None), section);
                }
                Poll::Ready(Ok(section)) => self.runs(Some(section))?,
            }
        }
        if let Stage::Everything(take, _) = &mut self.stage {
            // The script holds nothing yet, so this wait can be part of no deadlock.
            match take.poll(context) {
                Poll::Pending => return Err(Step::Waits),
                Poll::Ready(Took::Refused(why)) => return Err(self.over(&why.to_string())),
                Poll::Ready(_) => {}
            }
            if let Stage::Everything(take, mut section) = std::mem::replace(&mut self.stage, Stage::Over) {
                drop(take);
                section.adopt_everything();
                self.runs(Some(section))?;
            }
        }
        if self.leaves && !is_patient {
            return Err(Step::Forced);
        }
        if let Stage::Ready(section) = &mut self.stage {
            let section = section.take();
            self.runs(section)?;
        }
        Ok(())
    }
    /// Polls the wait of a running script. Returns false if it is restarted. An error is the step that ends here.
    #[inline]
    #[allow(clippy::result_large_err, reason = "the step is the caller's own result")]
    fn end_wait(&mut self, context: &mut Context<'_>, is_patient: bool) -> Result<bool, Step> {
        let Stage::Runs(runs) = &mut self.stage else { return Err(self.over(crate::refused::FAILED)) };
        let active = runs.active();
        active.is_patient = is_patient;
        match std::mem::replace(&mut active.waits, Waits::Nothing) {
            Waits::Key(mut take) => match take.poll(context) {
                Poll::Pending => {
                    active.waits = Waits::Key(take);
                    return Err(Step::Waits);
                }
                Poll::Ready(Took::Key(held)) => {
                    if let Some(section) = &mut active.section {
                        section.adopt(held);
                    }
                }
                Poll::Ready(Took::Everything) => {
                    if let Some(section) = &mut active.section {
                        section.adopt_everything();
                    }
                }
                Poll::Ready(Took::Refused(why)) => active.waits = Waits::Refused(why.to_string()),
                Poll::Ready(Took::Restart) => {
                    let key = take.key().map(|(db, key, mode)| (db, key.into(), mode));
                    drop(take);
                    self.begin_anew(key);
                    return Ok(false);
                }
            },
            Waits::Command(mut awaited) => match awaited.poll(context) {
                Poll::Pending => {
                    active.waits = Waits::Command(awaited);
                    return Err(Step::Waits);
                }
                Poll::Ready(bytes) => {
                    let leaves = bytes.len() > MUCH && !is_patient;
                    active.waits = if leaves { Waits::Away(bytes) } else { Waits::Reply(bytes) };
                    if let Some(worked) = awaited.worked {
                        runs.judge_command(worked);
                    }
                    if leaves {
                        return Err(Step::Forced);
                    }
                }
            },
            Waits::Lock(mut wait) => match std::pin::Pin::new(&mut wait).poll(context) {
                Poll::Pending => {
                    active.waits = Waits::Lock(wait);
                    return Err(Step::Waits);
                }
                Poll::Ready(Ok(section)) => active.lock(section),
                Poll::Ready(Err(refused)) => active.waits = Waits::Refused(refused.to_string()),
            },
            wanting @ (Waits::Thread | Waits::Away(_)) if !is_patient => {
                active.waits = wanting;
                return Err(Step::Forced);
            }
            Waits::Away(reply) => active.waits = Waits::Reply(reply),
            Waits::Thread | Waits::Nothing => {}
            known @ (Waits::Reply(_) | Waits::Refused(_)) => active.waits = known,
        }
        Ok(true)
    }
    /// Runs it for a slice. Returns `None` if it continues with a wait that has just begun.
    #[inline]
    fn burst(&mut self, is_patient: bool) -> Option<Step> {
        let Stage::Runs(runs) = &mut self.stage else { return None };
        let burst = runs.burst();
        self.after(burst, is_patient)
    }
    /// Handles the end of a burst like [`burst`](Self::burst).
    #[inline]
    fn after(&mut self, burst: Burst, is_patient: bool) -> Option<Step> {
        let Stage::Runs(runs) = &mut self.stage else { return None };
        match burst {
            Burst::Forced => {
                self.inner.scripts.pool.count_running(&mut runs.interpreter);
                self.list();
                return Some(Step::Forced);
            }
            Burst::Waiting => {
                self.inner.scripts.pool.count_running(&mut runs.interpreter);
                self.list();
            }
            burst => {
                if self.call.control.leaves_interpreter() {
                    return Some(self.killed());
                }
                let Stage::Runs(runs) = std::mem::replace(&mut self.stage, Stage::Over) else {
                    unreachable!("it ran just now")
                };
                if !is_patient && runs.says_much(burst) {
                    self.stage = Stage::Ended(runs, burst);
                    self.list();
                    return Some(Step::Forced);
                }
                return Some(self.end(runs, burst));
            }
        }
        None
    }
    /// Returns the stage in which it acquires its keys: very many are collected before it queues on them.
    fn wait_for_keys(&self) -> Stage {
        match self.call.keys + self.touched.len() > MANY_KEYS {
            true => Stage::Gathering(Gathering::new(&self.inner)),
            false => Stage::Keys(begin(&self.inner, &self.call, &self.words.to_vec(), &self.touched)),
        }
    }

    /// Writes the result.
    fn end(&mut self, runs: Box<Runs>, burst: Burst) -> Step {
        let mut section = None;
        let reply = self.form.collect(|out| runs.end(&self.inner, burst, &mut section, out));
        self.done(reply, section)
    }

    /// Ends the call. Very many keys are released here instead of by the caller, whose other tasks that would delay,
    /// unless the section has a continuation.
    fn done(&mut self, reply: Finished, section: Option<Section>) -> Step {
        self.unlist();
        Step::Done(self.ended(reply, section, false))
    }

    fn ended(&self, reply: Finished, mut section: Option<Section>, is_aborted: bool) -> Ended {
        let ends_here = |section: &mut Section| !self.is_part && is_patient() && section.held() > MANY_KEYS;
        if let Some(section) = section.take_if(ends_here)
            && !is_aborted
        {
            section.finish();
        }
        Ended { reply, section, is_aborted }
    }

    /// Starts to run it, with its keys.
    #[allow(clippy::result_large_err, reason = "the section goes back to who knows what to do with it")]
    fn runs(&mut self, mut section: Option<Section>) -> Result<(), Step> {
        let words = self.words.to_vec();
        match Runs::new(&self.inner, self.call.clone(), &words, &mut section) {
            Ok(runs) => {
                self.stage = Stage::Runs(Box::new(runs));
                if self.is_listed {
                    self.list();
                }
                Ok(())
            }
            Err(NotBegun::TooLong(_)) => {
                self.stage = Stage::Ready(section);
                self.leaves = true;
                self.list();
                Err(Step::Forced)
            }
            Err(NotBegun::Failed(text)) => {
                self.stage = Stage::Over;
                let reply = self.form.collect(|out| out.error_bytes(&text));
                Err(self.done(reply, section))
            }
        }
    }

    fn over(&mut self, text: &str) -> Step {
        if let Stage::Everything(_, section) | Stage::Ready(Some(section)) =
            std::mem::replace(&mut self.stage, Stage::Over)
        {
            section.finish();
        }
        self.done(self.form.collect(|out| out.error(text)), None)
    }

    fn killed(&mut self) -> Step {
        let mut section = None;
        let reply = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Runs(runs) => self.form.collect(|out| section = runs.kill(&self.call, out)),
            Stage::Ready(held) => {
                section = held;
                self.form.collect(|out| out.error(KILLED))
            }
            _ => self.form.collect(|out| out.error(KILLED)),
        };
        self.unlist();
        Step::Done(self.ended(reply, section, true))
    }

    /// Ends it after a panic.
    pub(crate) fn fail(mut self: Box<Self>) -> Ended {
        let section = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Runs(runs) | Stage::Ended(runs, _) => runs.discard(),
            Stage::Ready(section) => section,
            Stage::Everything(_, section) => Some(section),
            Stage::New | Stage::Gathering(..) | Stage::Keys(_) | Stage::Over => None,
        };
        let reply = self.form.collect(|out| out.error(crate::refused::FAILED));
        Ended { reply, section, is_aborted: true }
    }

    /// Abandons its work, none of which is visible, and waits for all keys that it has touched, or for everything if it
    /// needed no other key.
    fn begin_anew(&mut self, key: Option<(u32, Box<[u8]>, Mode)>) {
        let Stage::Runs(runs) = std::mem::replace(&mut self.stage, Stage::Over) else { return };
        self.call.control.begin_anew();
        self.is_named = false;
        SectionCounts::count(&self.inner.sections.restarted);
        if let Some(section) = runs.discard() {
            self.touched.extend(section.give_up());
        }
        self.wants_everything |= key.is_none();
        self.touched.extend(key);
        self.stage = match self.wants_everything {
            true => Stage::Keys(Store(self.inner.clone()).section([])),
            false => self.wait_for_keys(),
        };
    }

    /// Lists the script, with its present state.
    fn list(&mut self) {
        let control = &self.call.control;
        if !std::mem::replace(&mut self.is_listed, true) {
            // Waiting clients may see it from here on.
            let _ = control.called.set((self.call.by, self.call.keys, self.words.clone()));
            self.inner.scripts.running.enter(control);
        }
        let Stage::Runs(runs) = &mut self.stage else { return };
        if !std::mem::replace(&mut self.is_named, true) {
            control.runs_in(runs.interpreter.state.stopper());
            if let Some(section) = &runs.active().section {
                section.set_owner(&control.code.owner());
            }
        }
        control.note_section(runs.active().section.as_ref());
    }

    /// Passes it to a script thread.
    pub(super) fn go_away(self: Box<Self>, done: Done) {
        SectionCounts::count(&self.inner.sections.moved);
        let inner = self.inner.clone();
        inner.scripts.threads.add(self, done);
    }

    fn unlist(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.inner.scripts.running.leave(self.call.control.id);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.unlist();
        if let Stage::Runs(runs) | Stage::Ended(runs, _) = std::mem::replace(&mut self.stage, Stage::Over) {
            drop(runs.discard());
        }
    }
}
