//! Code that runs: a script, a function of a library, or libraries being loaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::library::{Function, Library, Load};
use super::registry::Script;

/// The time for which a script is serialized after it has starved a ticket.
const FOR_NOW: Duration = Duration::from_secs(1);

/// The end of the time for which code is serialized, in milliseconds since the first query; 0 if it is not. Calls of
/// all serialized code run one after the other.
#[derive(Debug, Default)]
pub(crate) struct InTurn(AtomicU64);

impl InTurn {
    fn now_ms() -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_millis() as u64
    }

    fn is_set(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => false,
            until => until == u64::MAX || InTurn::now_ms() < until,
        }
    }

    fn set(&self, until_ms: u64) {
        self.0.fetch_max(until_ms, Ordering::Relaxed);
    }
}

/// The code of a call.
#[derive(Clone)]
pub(crate) enum Code {
    Script(Arc<Script>),
    /// A function, by its index in its library.
    Function(Arc<Library>, usize),
    /// The code of libraries, which registers their functions.
    Load(Arc<Load>),
}

impl Code {
    /// Returns its name in errors.
    pub(crate) fn name(&self) -> &str {
        match self {
            Code::Script(script) => script.name(),
            Code::Function(library, place) => &library.functions[*place].name,
            Code::Load(_) => "",
        }
    }

    /// Returns its name in CLIENT LIST.
    pub(crate) fn owner(&self) -> String {
        match self {
            Code::Script(script) => format!("script-{}", &script.name()[..8]),
            Code::Function(..) => format!("script-{}", self.name()),
            Code::Load(_) => "function-load".into(),
        }
    }

    /// Returns the function, if it is one.
    pub(crate) fn function(&self) -> Option<&Function> {
        match self {
            Code::Function(library, place) => Some(&library.functions[*place]),
            Code::Script(_) | Code::Load(_) => None,
        }
    }

    /// Returns whether FCALL called it.
    pub(crate) fn is_function(&self) -> bool {
        self.function().is_some()
    }

    /// Returns its serialization state: permanent if it was part of a deadlock of scripts that waited for each other's
    /// keys.
    fn in_turn(&self) -> Option<&InTurn> {
        match self {
            Code::Script(script) => Some(&script.in_turn),
            Code::Function(..) => self.function().map(|function| &function.in_turn),
            Code::Load(_) => None,
        }
    }

    /// Returns whether it is serialized.
    pub(crate) fn is_in_turn(&self) -> bool {
        self.in_turn().is_some_and(InTurn::is_set)
    }

    /// Serializes it from now on.
    pub(crate) fn set_in_turn(&self) {
        if let Some(in_turn) = self.in_turn() {
            in_turn.set(u64::MAX);
        }
    }

    /// Serializes it for [`FOR_NOW`].
    pub(crate) fn set_in_turn_for_now(&self) {
        if let Some(in_turn) = self.in_turn() {
            in_turn.set(InTurn::now_ms() + FOR_NOW.as_millis() as u64);
        }
    }
}
