//! How soon the kernel ends this process when memory runs out (`oom-score-adj`).
//!
//! The kernel's score of a process lies between -1000 (it is never ended) and 1000. Masters and replicas have a score each,
//! absolute or relative to the score with which the process was started. `no` restores that score.

use std::io;

use parking_lot::Mutex;

use crate::files::reason;

/// Where the kernel has the score.
const FILE: &str = "/proc/self/oom_score_adj";

/// The parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OomTerms {
    pub(crate) mode: OomMode,
    /// `oom-score-adj-values`, of masters and of replicas. The third one of Redis is that of children, of which there are none.
    pub(crate) of_master: i32,
    pub(crate) of_replica: i32,
}

/// The use of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OomMode {
    /// None: the score is the one of the start.
    #[default]
    Left,
    /// The values are added to that of the start.
    Relative,
    /// The values are the score.
    Absolute,
}

impl OomMode {
    /// The values of `oom-score-adj`. Two of them are the same.
    pub(crate) const NAMES: &[&str] = &["no", "yes", "relative", "absolute"];

    /// Reads a value.
    pub(crate) fn parse(value: &[u8]) -> Option<OomMode> {
        let name = Self::NAMES.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(value))?;
        Some(match *name {
            "no" => OomMode::Left,
            "absolute" => OomMode::Absolute,
            _ => OomMode::Relative,
        })
    }

    /// Returns the value as Redis shows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OomMode::Left => "no",
            OomMode::Relative => "yes",
            OomMode::Absolute => "absolute",
        }
    }
}

/// Returns the line of the log for a score that could not be set.
pub(crate) fn failure(error: &io::Error) -> String {
    format!("Unable to write oom_score_adj: {}", reason(error))
}

/// The score of this process.
#[derive(Debug, Default)]
pub(crate) struct OomScore(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The score of the start; [`None`] as long as the program has not set another one.
    base: Option<i32>,
    /// The score that was set last.
    set: Option<i32>,
}

impl OomScore {
    /// Sets the score of a master, or of a replica.
    pub(crate) fn adjust(&self, terms: OomTerms, is_replica: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        let value = if is_replica { terms.of_replica } else { terms.of_master };
        let base = match state.base {
            Some(base) => base,
            None if terms.mode == OomMode::Left => return Ok(()),
            None => *state.base.insert(std::fs::read_to_string(FILE)?.trim().parse().map_err(io::Error::other)?),
        };
        let score = match terms.mode {
            OomMode::Left => base,
            OomMode::Relative => base + value,
            OomMode::Absolute => value,
        };
        let score = score.clamp(-1000, 1000);
        if state.set != Some(score) {
            std::fs::write(FILE, score.to_string())?;
            state.set = Some(score);
        }
        if terms.mode == OomMode::Left {
            *state = State::default();
        }
        Ok(())
    }
}
