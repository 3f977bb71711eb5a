//! Scripts that run for too long: BUSY replies to waiting clients, and ways to end such scripts.
//!
//! A script older than `busy-reply-threshold` keeps its keys, and clients waiting for one of them get Redis's BUSY
//! instead of waiting on; commands on other keys are unaffected. The same applies to a command that waits until no
//! script runs, like FLUSHALL. Polled at 10 Hz; free unless a client is blocked by such a script.
//!
//! Exceptions: a client that had blocked before, which keeps waiting as in Redis; and a script that has written and
//! needs such a key without having declared it, as an error would leave it half done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Scripting;
use super::control::Control;
use crate::Inner;
use crate::hold::Ticket;
use crate::levels::WARNING;

/// The error for clients blocked by a script that exceeds the threshold.
pub(crate) const BUSY_SCRIPT: &str =
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
/// Like [`BUSY_SCRIPT`], for a function.
pub(crate) const BUSY_FUNCTION: &str =
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";

/// The result of a request to end a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Killed {
    Done,
    /// No such script runs.
    None,
    /// It has written.
    Unkillable,
    /// No running code can be ended by this command; the text names the other command, which can end it.
    Other(&'static str),
}

/// Returns the error for clients blocked by this script.
fn text_of(control: &Control) -> &'static str {
    if control.code.is_function() { BUSY_FUNCTION } else { BUSY_SCRIPT }
}

impl Scripting {
    /// Returns the error for what has to wait until no script runs, if one that is too old does.
    pub(crate) fn busy(&self) -> Option<&'static str> {
        let old = self.older_than(self.threshold()?);
        old.iter().find(|control| control.section() != 0).map(|control| text_of(control))
    }

    /// Returns the scripts and functions that have run for at least this time.
    fn older_than(&self, threshold: Duration) -> Vec<Arc<Control>> {
        let mut begun = self.running.begun();
        begun.retain(|control| control.age() >= threshold);
        begun
    }

    /// Writes Redis's line of a script that is too old to the log, once for each call.
    fn log_slow(&self, control: &Control) {
        if !control.log_once() {
            return;
        }
        let kill = if control.code.is_function() { "FUNCTION KILL" } else { "SCRIPT KILL" };
        let (ms, name) = (control.age().as_millis(), control.code.name());
        let line = format!(
            "Slow script detected: still in execution after {ms} milliseconds. You can try killing the script using the \
             {kill} command. Script name is: {name}."
        );
        self.log(WARNING, line.as_bytes());
    }

    /// Returns the age at which a script is too old; [`None`]: never.
    fn threshold(&self) -> Option<Duration> {
        match self.busy_after_ms.load(Ordering::Relaxed) {
            0 => None,
            after_ms => Some(Duration::from_millis(after_ms)),
        }
    }

    /// Ends every script, or every function, that is too old and has not written.
    pub(crate) fn kill_old(&self, are_functions: bool) -> Killed {
        let old = self.older_than(self.threshold().unwrap_or_default());
        if old.is_empty() {
            return Killed::None;
        }
        // As in Redis, the report that all have written takes precedence over the hint at the other command.
        let mut killed = match old.iter().all(|control| control.has_written()) {
            true => Killed::Unkillable,
            false => Killed::Other(if are_functions { BUSY_SCRIPT } else { BUSY_FUNCTION }),
        };
        for control in old.iter().filter(|control| control.code.is_function() == are_functions) {
            if control.kill(false) {
                killed = Killed::Done;
            } else if killed != Killed::Done {
                killed = Killed::Unkillable;
            }
        }
        killed
    }

    /// Ends all scripts and functions, also those that have written.
    pub(crate) fn kill_every(&self) {
        for control in self.running.all() {
            control.kill(true);
        }
    }

    /// Ends the scripts with this number or SHA-1, or the functions with this number or name. With `is_forced`, also
    /// ends those that have written.
    pub(crate) fn kill_named(&self, name: &[u8], are_functions: bool, is_forced: bool) -> Killed {
        let id = std::str::from_utf8(name).ok().and_then(|text| text.parse::<u64>().ok());
        let mut killed = Killed::None;
        for control in self.running.all() {
            let is_meant = Some(control.id) == id || control.code.name().as_bytes().eq_ignore_ascii_case(name);
            if !is_meant || control.code.is_function() != are_functions {
                continue;
            }
            if control.kill(is_forced) {
                killed = Killed::Done;
            } else if killed != Killed::Done {
                killed = Killed::Unkillable;
            }
        }
        killed
    }
}

impl Inner {
    /// Sends BUSY to clients blocked by scripts that exceed the threshold, and lets waiting scripts have more threads.
    pub(crate) fn tick_scripts(&self) {
        self.scripts.threads.tick();
        let Some(threshold) = self.scripts.threshold() else { return };
        let mut old = self.scripts.older_than(threshold);
        old.iter().for_each(|control| self.scripts.log_slow(control));
        // A script without a section blocks no client.
        old.retain(|control| control.section() != 0);
        let Some(first) = old.first() else { return };
        // These tickets wait behind a section that wants everything, which itself waits for an old script.
        self.everything.denied().into_iter().for_each(|ticket| self.refuse(ticket, text_of(first)));
        let wants_everything = self.waiting_for_everything().into_iter();
        let is_behind = |ticket: &Arc<Ticket>| old.iter().any(|control| control.section() != ticket.id);
        wants_everything.filter(is_behind).for_each(|ticket| self.refuse(ticket, text_of(first)));
        self.refuse_alone(text_of(first));
        for control in old {
            let section = control.section();
            self.waiting_behind(section).into_iter().for_each(|ticket| self.refuse(ticket, text_of(&control)));
            // The restarted scripts wait for their keys again, and are refused there.
            self.restart_behind(section);
        }
    }

    /// Refuses tickets that wait until no section exists, because others wait behind them.
    fn refuse_alone(&self, text: &'static str) {
        let alone = self.gate.give_up_alone();
        if alone.is_empty() {
            return;
        }
        for ticket in alone {
            let _ = ticket.refusal.set(text);
            match ticket.take_command() {
                Some(command) => ticket.finish(command.form.collect(|out| out.error(text)), Duration::ZERO),
                None if ticket.cancel() => ticket.wake(),
                None => {}
            }
        }
        self.gate.went();
        self.run_waiting();
    }

    /// Returns the tickets that wait for their first keys, one of which this section holds.
    fn waiting_behind(&self, section: u64) -> Vec<Arc<Ticket>> {
        let mut waiting = Vec::new();
        let pass = self.gate.enter();
        for db in (0..self.keyspace.databases()).filter_map(|index| self.keyspace.db(&pass, index)) {
            for stripe in 0..db.stripes() {
                if let Some(holds) = db.lock(stripe).holds.as_deref() {
                    holds.behind(section, &mut waiting);
                }
            }
        }
        waiting.dedup_by(|a, b| Arc::ptr_eq(a, b));
        waiting
    }
}
