//! Commands of the stats socket that scripts add.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use sluicegate_config::model::StatsLevel;
use tokio::sync::mpsc;

/// The highest number of commands that scripts may add.
const DYNAMIC_MAX: usize = 1_024;

/// The client of a dynamic command has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The output of a dynamic command. Usable on any thread and runtime.
#[derive(Clone, Debug)]
pub struct Outlet(pub(crate) mpsc::Sender<Vec<u8>>);

impl Outlet {
    /// Sends a piece of the reply; waits while the client does not read.
    pub async fn send(&self, piece: Vec<u8>) -> Result<(), Gone> {
        self.0.send(piece).await.map_err(|_| Gone)
    }
}

/// The function of a dynamic command: takes all words of its line and its outlet, and returns a future that ends with
/// the reply. The future runs on the control thread and must not block it.
pub type Handler = dyn Fn(Vec<Vec<u8>>, Outlet) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// A command that a script added.
#[derive(Clone)]
pub struct Dynamic {
    /// Its words.
    pub name: Vec<String>,
    /// Its line in the help, arguments included; empty hides it.
    pub usage: String,
    /// The required level.
    pub level: StatsLevel,
    /// Its code.
    pub handler: Arc<Handler>,
}

impl Dynamic {
    fn matches(&self, words: &[Vec<u8>]) -> bool {
        words.len() >= self.name.len() && self.name.iter().zip(words).all(|(name, word)| name.as_bytes() == word)
    }
}

/// The reason why a command was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no words.
    Empty,
    /// A command has the same words, or words that would hide it.
    Taken,
    /// There are too many.
    TooMany,
}

/// The commands that scripts added. Built-in commands have priority.
#[derive(Default)]
pub struct Registry(RwLock<Vec<Dynamic>>);

impl Registry {
    /// Adds a command; `is_built_in` returns whether a built-in command has its words.
    pub fn add(&self, command: Dynamic, is_built_in: impl Fn(&[Vec<u8>]) -> bool) -> Result<(), Refused> {
        let words: Vec<Vec<u8>> = command.name.iter().map(|word| word.as_bytes().to_vec()).collect();
        if words.is_empty() || words.iter().any(Vec::is_empty) {
            return Err(Refused::Empty);
        }
        let mut known = self.0.write();
        if is_built_in(&words) || known.iter().any(|other| other.matches(&words)) {
            return Err(Refused::Taken);
        }
        if known.len() >= DYNAMIC_MAX {
            return Err(Refused::TooMany);
        }
        known.push(command);
        Ok(())
    }

    /// Returns the command that a line begins with.
    pub(crate) fn find(&self, words: &[Vec<u8>]) -> Option<Dynamic> {
        self.0.read().iter().find(|command| command.matches(words)).cloned()
    }

    /// Returns all of them.
    pub(crate) fn all(&self) -> RwLockReadGuard<'_, Vec<Dynamic>> {
        self.0.read()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.read().iter().map(|command| &command.name)).finish()
    }
}
