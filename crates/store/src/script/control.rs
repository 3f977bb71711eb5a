//! What others see of a script that runs, and how they end it.
//!
//! A script is entered into the list when its first slice is over: those that end before are gone before anybody could
//! ask. Ending one is a flag: the script sees it at its next yield, which comes within a slice whatever it does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::code::Code;
use crate::park::Words;

/// A script that runs.
pub(crate) struct Control {
    /// Its own number.
    pub(crate) id: u64,
    pub(crate) code: Code,
    pub(crate) began: Instant,
    /// It has written.
    pub(crate) wrote: AtomicBool,
    killed: AtomicBool,
    /// How often it has begun anew.
    pub(crate) restarts: AtomicU8,
    /// What makes long functions of the library stop.
    pub(crate) stopper: Mutex<Option<Arc<AtomicBool>>>,
    /// The number of its section; 0 if it has none.
    pub(crate) section: AtomicU64,
    /// The command that called it, of one that is listed: its name, the number of keys, and the words behind that.
    pub(crate) called: OnceLock<(&'static str, usize, Words)>,
}

impl Control {
    pub(crate) fn new(id: u64, code: Code) -> Control {
        Control {
            id,
            code,
            began: Instant::now(),
            wrote: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            restarts: AtomicU8::new(0),
            stopper: Mutex::new(None),
            section: AtomicU64::new(0),
            called: OnceLock::new(),
        }
    }

    /// Ends the script at its next yield.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        if let Some(stopper) = &*self.stopper.lock() {
            stopper.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was ended.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// Whether it has written.
    pub(crate) fn has_written(&self) -> bool {
        self.wrote.load(Ordering::SeqCst)
    }

    /// The command that called it; nothing if that is not known.
    pub(crate) fn command(&self) -> Vec<Vec<u8>> {
        let Some((name, keys, words)) = self.called.get() else { return Vec::new() };
        let first = [name.as_bytes().to_vec(), self.code.name().as_bytes().to_vec(), keys.to_string().into_bytes()];
        first.into_iter().chain(words.to_vec().into_iter().map(<[u8]>::to_vec)).collect()
    }

    /// How long it runs.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The scripts that run for longer than a slice.
#[derive(Default)]
pub(crate) struct Running {
    list: Mutex<BTreeMap<u64, Arc<Control>>>,
    /// How many there are, to be read without the lock.
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

    /// Those that run, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Control>> {
        match self.count.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.list.lock().values().cloned().collect(),
        }
    }
}
