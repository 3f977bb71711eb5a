//! The view that other clients have of a running script, and the means to end it.
//!
//! A script is added to the list when its first slice is over, or when it begins to wait: shorter ones end before they
//! could be queried. Ending a script sets a flag: the script sees it at its next yield, which always occurs within a
//! slice; a waiting script is woken.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::code::Code;
use super::registry::Registry;
use crate::catalogue::Start;
use crate::owned::Words;
use crate::section::Section;

/// The value of `held` that stands for all keys.
const EVERYTHING: i64 = -1;

/// The maximum number of restarts of a script; after that, its request for another key fails instead.
const RESTARTS_MAX: u8 = 2;

/// Bits of the state: whether the script has written, and whether it was killed.
const WROTE: u8 = 1;
const KILLED: u8 = 2;

/// The decision about a write command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It is the script's first.
    First,
    Another,
    /// The script was killed before it wrote anything, so it must not write.
    Never,
}

/// The number of slots in which a thread keeps the controls of its last script calls.
const SPARES: usize = 4;

thread_local! {
    static SPARE: [Cell<Option<Arc<Control>>>; SPARES] = const { [const { Cell::new(None) }; SPARES] };
}

/// Returns the slot for a script, by its SHA-1.
fn place_of(sha: &[u8]) -> usize {
    usize::from(sha.last().copied().unwrap_or_default()) % SPARES
}

/// A script that is running or waiting for its keys.
pub(crate) struct Control {
    /// The number of this call.
    pub(crate) id: u64,
    pub(crate) code: Code,
    /// The number of the calling connection; 0: none.
    pub(crate) client: u64,
    /// The registry's [epoch](super::registry::Registry::epoch) when the script was looked up.
    epoch: u64,
    made: Instant,
    /// The start of its execution, in microseconds after `made`.
    began_us: AtomicU64,
    /// Whether it has acquired its first keys and is running.
    has_begun: AtomicBool,
    /// The number of keys that it holds; [`EVERYTHING`] for all.
    held: AtomicI64,
    /// Whether it has written, and whether it was killed: one word, because a script that has written may not be
    /// killed.
    state: AtomicU8,
    /// The number of its restarts.
    pub(crate) restarts: AtomicU8,
    /// Interrupts long library functions while an interpreter runs the script.
    stopper: Mutex<Option<Arc<AtomicBool>>>,
    /// The task that continues the script after a wait.
    waker: Mutex<Option<Waker>>,
    /// The number of its section; 0 if it has none.
    section: AtomicU64,
    /// Whether the log has the line that it is slow.
    is_logged: AtomicBool,
    /// The command that called a listed script: its name, the number of keys, and the words after that.
    pub(crate) called: OnceLock<(&'static str, usize, Arc<Words>)>,
}

impl Control {
    pub(crate) fn new(id: u64, code: Code, client: u64, began: Option<Instant>, epoch: u64) -> Control {
        Control {
            id,
            code,
            client,
            epoch,
            made: began.unwrap_or_else(Instant::now),
            began_us: AtomicU64::new(0),
            has_begun: AtomicBool::new(false),
            held: AtomicI64::new(0),
            state: AtomicU8::new(0),
            restarts: AtomicU8::new(0),
            stopper: Mutex::new(None),
            waker: Mutex::new(None),
            section: AtomicU64::new(0),
            is_logged: AtomicBool::new(false),
            called: OnceLock::new(),
        }
    }

    /// Reuses the control of this thread's last call of the script with this SHA-1, if it was kept. Most scripts are
    /// called again soon, and a new control would need another look-up in the registry.
    pub(crate) fn again(start: &Start<'_>, sha: &[u8], registry: &Registry) -> Option<Arc<Control>> {
        let mut spare = SPARE.with(|spare| spare[place_of(sha)].take())?;
        let control = Arc::get_mut(&mut spare)?;
        let Code::Script(script) = &control.code else { return None };
        if control.epoch != registry.epoch() || script.sha[..] != *sha {
            return None;
        }
        registry.touch(script);
        control.id = start.inner.ticket_id();
        control.client = start.client;
        control.made = start.began.unwrap_or_else(Instant::now);
        *control.has_begun.get_mut() = false;
        *control.state.get_mut() = 0;
        *control.is_logged.get_mut() = false;
        Some(spare)
    }

    /// Keeps the control for another call, if the script ended without having been listed.
    pub(crate) fn rest(mut self: Arc<Control>) {
        let Some(control) = Arc::get_mut(&mut self) else { return };
        let Code::Script(script) = &control.code else { return };
        if control.called.get().is_none() && *control.restarts.get_mut() == 0 {
            let place = place_of(&script.sha);
            // In a thread that is ending, the slots may be gone already.
            let _ = SPARE.try_with(|spare| spare[place].set(Some(self)));
        }
    }

    /// Ends the script at its next yield, or where it waits. Returns false if it has written and `is_forced` is not
    /// set.
    pub(crate) fn kill(&self, is_forced: bool) -> bool {
        {
            let stopper = self.stopper.lock();
            let may_end = |state| (is_forced || state & WROTE == 0).then_some(state | KILLED);
            if self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, may_end).is_err() {
                return false;
            }
            if let Some(stopper) = &*stopper {
                stopper.store(true, Ordering::SeqCst);
            }
        }
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Records that the script is about to write, and decides whether it may.
    #[inline]
    pub(crate) fn begin_write(&self) -> Write {
        if self.has_written() {
            return Write::Another;
        }
        self.begin_first_write()
    }

    fn begin_first_write(&self) -> Write {
        if self.called.get().is_none() && self.state.load(Ordering::Relaxed) == 0 {
            // It is not listed yet, so it cannot be killed now; only this thread lists it.
            self.state.store(WROTE, Ordering::Relaxed);
            return Write::First;
        }
        let unless_ended = |state| (state & KILLED == 0).then_some(state | WROTE);
        match self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, unless_ended) {
            Ok(state) if state & WROTE == 0 => Write::First,
            Ok(_) => Write::Another,
            // A script that was killed by force continues until its next yield.
            Err(state) if state & WROTE != 0 => Write::Another,
            Err(_) => Write::Never,
        }
    }

    /// Reverts the mark of the script's first write, which has changed nothing.
    pub(crate) fn take_back_write(&self) {
        self.state.fetch_and(!WROTE, Ordering::SeqCst);
    }

    /// Lets KILL reach the interpreter that runs it now.
    pub(crate) fn runs_in(&self, stopper: Arc<AtomicBool>) {
        let mut place = self.stopper.lock();
        if self.is_killed() {
            stopper.store(true, Ordering::SeqCst);
        }
        *place = Some(stopper);
    }

    /// Keeps KILL from reaching the interpreter from now on, because other scripts will run there. Returns whether the
    /// script was killed.
    pub(crate) fn leaves_interpreter(&self) -> bool {
        let mut place = self.stopper.lock();
        *place = None;
        self.is_killed()
    }

    /// Registers the waker for being killed during a wait. The caller must then check whether the script was killed
    /// already.
    pub(crate) fn listen(&self, waker: &Waker) {
        let mut place = self.waker.lock();
        match &*place {
            Some(old) if old.will_wake(waker) => {}
            _ => *place = Some(waker.clone()),
        }
    }

    /// Returns whether the script may be restarted: none of its effects is visible.
    pub(crate) fn may_restart(&self) -> bool {
        !self.has_written() && self.restarts.load(Ordering::SeqCst) < RESTARTS_MAX
    }

    /// Excludes a restart: something that the script or its transaction has done cannot be repeated.
    pub(crate) fn never_restarts(&self) {
        self.restarts.store(RESTARTS_MAX, Ordering::SeqCst);
    }

    /// Returns whether this is the first call.
    pub(super) fn log_once(&self) -> bool {
        !self.is_logged.swap(true, Ordering::Relaxed)
    }

    /// Records that the script runs in this section, or without one.
    pub(crate) fn begin(&self, section: Option<&Section>) {
        self.note_section(section);
        // A script that is not listed yet has not waited.
        if self.called.get().is_some() {
            self.began_us.store(self.made.elapsed().as_micros() as u64, Ordering::Relaxed);
        }
        self.has_begun.store(true, Ordering::Release);
    }

    /// Records a restart: the script waits for its keys again.
    pub(crate) fn begin_anew(&self) {
        self.restarts.fetch_add(1, Ordering::SeqCst);
        self.note_section(None);
        self.has_begun.store(false, Ordering::Release);
    }

    /// Records the script's section, and the number of keys that the section holds.
    pub(crate) fn note_section(&self, section: Option<&Section>) {
        self.section.store(section.map_or(0, Section::id), Ordering::Release);
        let held = section.map_or(0, |section| match section.has_everything() {
            true => EVERYTHING,
            false => section.held() as i64,
        });
        self.held.store(held, Ordering::Relaxed);
    }

    /// Returns the number of its section; 0 if it has none.
    pub(crate) fn section(&self) -> u64 {
        self.section.load(Ordering::Acquire)
    }

    /// Returns the number of keys that the script holds; [`EVERYTHING`] for all.
    pub(crate) fn held(&self) -> i64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether it is executing, and not waiting for its first keys.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Returns whether it was killed.
    pub(crate) fn is_killed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & KILLED != 0
    }

    /// Returns whether it has written.
    pub(crate) fn has_written(&self) -> bool {
        self.state.load(Ordering::SeqCst) & WROTE != 0
    }

    /// Returns the command that called the script; empty if the script is not listed.
    pub(crate) fn command(&self) -> Vec<Vec<u8>> {
        let Some((name, keys, words)) = self.called.get() else { return Vec::new() };
        let first = [name.as_bytes().to_vec(), self.code.name().as_bytes().to_vec(), keys.to_string().into_bytes()];
        first.into_iter().chain(words.to_vec().into_iter().map(<[u8]>::to_vec)).collect()
    }

    /// Returns the time since its start, or its waiting time if it has not started.
    pub(crate) fn age(&self) -> Duration {
        let began = if self.has_begun() { self.began_us.load(Ordering::Relaxed) } else { 0 };
        self.made.elapsed().saturating_sub(Duration::from_micros(began))
    }

    /// Returns the time since its call, including waits.
    pub(crate) fn took(&self) -> Duration {
        self.made.elapsed()
    }
}

/// The scripts that have run for longer than a slice, or that wait.
#[derive(Default)]
pub(crate) struct Running {
    list: Mutex<BTreeMap<u64, Arc<Control>>>,
    /// The number of entries, readable without the lock.
    count: AtomicU64,
}

impl Running {
    pub(crate) fn enter(&self, control: &Arc<Control>) {
        let mut list = self.list.lock();
        list.insert(control.id, control.clone());
        self.count.store(list.len() as u64, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, id: u64) {
        let mut list = self.list.lock();
        list.remove(&id);
        self.count.store(list.len() as u64, Ordering::Relaxed);
    }

    /// Returns the scripts that run and have their keys.
    pub(crate) fn begun(&self) -> Vec<Arc<Control>> {
        let mut all = self.all();
        all.retain(|control| control.has_begun());
        all
    }

    /// Returns the scripts that run or wait, in order of their numbers.
    pub(crate) fn all(&self) -> Vec<Arc<Control>> {
        match self.count.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.list.lock().values().cloned().collect(),
        }
    }
}
