//! What others see of a script that runs, and how they end it.
//!
//! A script is entered into the list when its first slice is over: those that end before are gone before anybody could
//! ask. Ending one is a flag: the script sees it at its next yield, which comes within a slice whatever it does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::registry::Sha;

/// Why a script is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kill {
    /// SCRIPT KILL.
    Script = 1,
    /// FUNCTION KILL.
    Function,
}

/// A script that runs.
#[derive(Debug)]
pub(crate) struct Control {
    /// Its number: that of its section, or one of its own.
    pub(crate) id: u64,
    pub(crate) sha: Sha,
    /// The name of the function, of one that FCALL called; empty otherwise.
    pub(crate) function: String,
    pub(crate) client: u64,
    pub(crate) began: Instant,
    /// It has written.
    pub(crate) wrote: AtomicBool,
    /// A [`Kill`], or 0.
    killed: AtomicU8,
    /// It is to begin anew, because it stands in a circle of scripts that wait for each other.
    pub(crate) is_victim: AtomicBool,
    /// How often it has begun anew.
    pub(crate) restarts: AtomicU8,
    /// What makes long functions of the library stop.
    pub(crate) stopper: Mutex<Option<Arc<AtomicBool>>>,
    /// The number of its section; 0 if it has none.
    pub(crate) section: AtomicU64,
}

impl Control {
    pub(crate) fn new(id: u64, sha: Sha, client: u64) -> Control {
        Control {
            id,
            sha,
            function: String::new(),
            client,
            began: Instant::now(),
            wrote: AtomicBool::new(false),
            killed: AtomicU8::new(0),
            is_victim: AtomicBool::new(false),
            restarts: AtomicU8::new(0),
            stopper: Mutex::new(None),
            section: AtomicU64::new(0),
        }
    }

    /// Ends the script at its next yield.
    pub(crate) fn kill(&self, how: Kill) {
        self.killed.store(how as u8, Ordering::SeqCst);
        if let Some(stopper) = &*self.stopper.lock() {
            stopper.store(true, Ordering::SeqCst);
        }
    }

    /// Whether and how it was ended.
    pub(crate) fn killed(&self) -> Option<Kill> {
        match self.killed.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Kill::Script),
            _ => Some(Kill::Function),
        }
    }

    /// Whether FCALL called it.
    pub(crate) fn is_function(&self) -> bool {
        !self.function.is_empty()
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
