//! The parameters of a script's call.

use std::sync::Arc;

use super::code::Code;
use super::control::Control;
use super::source::Flags;
use crate::behalf::Behalf;
use crate::catalogue::{Guard, Start};
use crate::hold::Mode;

/// The parameters of a call.
#[derive(Clone)]
pub(crate) struct Call {
    /// The called code, as other clients see it.
    pub(crate) control: Arc<Control>,
    /// The number of words that are keys.
    pub(crate) keys: usize,
    pub(crate) db: u32,
    /// The flags of the script, and of the command that calls it.
    pub(crate) flags: Flags,
    /// On whose behalf its commands run.
    pub(crate) behalf: Behalf,
    /// The permissions for its commands, if they are restricted.
    pub(crate) guard: Option<Arc<dyn Guard>>,
    /// The name of the calling command.
    pub(super) by: &'static str,
}

impl Call {
    /// Returns a call of code with these flags, through a command with `more` flags.
    pub(crate) fn new(start: &Start<'_>, code: Code, flags: Flags, more: Flags, keys: usize) -> Call {
        Call::of(start, Arc::new(control_of(start, code, 0)), flags, more, keys)
    }

    /// Like [`new`](Self::new), for a call with an existing control.
    pub(crate) fn of(start: &Start<'_>, control: Arc<Control>, flags: Flags, more: Flags, keys: usize) -> Call {
        let by = match (&control.code, more.has(Flags::NO_WRITES)) {
            (Code::Script(_), false) => "evalsha",
            (Code::Script(_), true) => "evalsha_ro",
            (Code::Function(..), false) => "fcall",
            (Code::Function(..), true) => "fcall_ro",
            (Code::Load(_), _) => "function",
        };
        let guard = start.guard.cloned();
        Call { control, keys, db: start.db, flags: flags | more, behalf: start.behalf, guard, by }
    }

    pub(super) fn code(&self) -> &Code {
        &self.control.code
    }

    /// Returns the mode in which its keys are held.
    pub(super) fn mode(&self) -> Mode {
        if self.flags.has(Flags::NO_WRITES) { Mode::Shared } else { Mode::Exclusive }
    }
}

/// Returns the view of the called code for other clients.
pub(super) fn control_of(start: &Start<'_>, code: Code, epoch: u64) -> Control {
    Control::new(start.inner.ticket_id(), code, start.client, start.began, epoch)
}
