//! What is run: a script, a function of a library, or libraries that are being loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::library::{Function, Library, Load};
use super::registry::Script;

/// What a call runs.
#[derive(Clone)]
pub(crate) enum Code {
    Script(Arc<Script>),
    /// A function by its place in its library.
    Function(Arc<Library>, usize),
    /// The code of libraries, which registers their functions.
    Load(Arc<Load>),
}

impl Code {
    /// What errors call it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Code::Script(script) => script.name(),
            Code::Function(library, place) => &library.functions[*place].name,
            Code::Load(_) => "",
        }
    }

    /// What CLIENT LIST calls it.
    pub(crate) fn owner(&self) -> String {
        match self {
            Code::Script(script) => format!("script-{}", &script.name()[..8]),
            Code::Function(..) => format!("script-{}", self.name()),
            Code::Load(_) => "function-load".into(),
        }
    }

    /// The function, if it is one.
    pub(crate) fn function(&self) -> Option<&Function> {
        match self {
            Code::Function(library, place) => Some(&library.functions[*place]),
            Code::Script(_) | Code::Load(_) => None,
        }
    }

    /// Whether FCALL called it.
    pub(crate) fn is_function(&self) -> bool {
        self.function().is_some()
    }

    /// Set once it is to run alone among those like it: it was in a circle of scripts that waited for each other's keys.
    fn in_turn(&self) -> Option<&AtomicBool> {
        match self {
            Code::Script(script) => Some(&script.in_turn),
            Code::Function(..) => self.function().map(|function| &function.in_turn),
            Code::Load(_) => None,
        }
    }

    /// Whether it runs alone among those like it.
    pub(crate) fn is_in_turn(&self) -> bool {
        self.in_turn().is_some_and(|in_turn| in_turn.load(Ordering::Relaxed))
    }

    /// Lets it run alone among those like it from now on.
    pub(crate) fn set_in_turn(&self) {
        if let Some(in_turn) = self.in_turn() {
            in_turn.store(true, Ordering::Relaxed);
        }
    }
}
