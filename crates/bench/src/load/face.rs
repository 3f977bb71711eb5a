//! Faces: the command lines and reports of other load generators, over the engine of this one.
//!
//! Under the name of such a program only its command line is understood. Under this program's own name the words after
//! `bench http` or `bench redis` are those of a face if they contain an option that is known there and unknown here.

use std::ffi::OsString;
use std::process::ExitCode;

use super::console::Console;
use super::{gobench, memtier, redis_benchmark};

/// A load generator whose command line is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// gobench: HTTP, by the number of requests of each client or by time.
    Gobench,
    /// memtier_benchmark: commands of Redis.
    Memtier,
    /// redis-benchmark: commands of Redis, or its series of tests.
    RedisBenchmark,
}

impl Face {
    /// Every face.
    pub const ALL: &[Face] = &[Face::Gobench, Face::Memtier, Face::RedisBenchmark];

    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Face::Gobench => "gobench",
            Face::Memtier => "memtier_benchmark",
            Face::RedisBenchmark => "redis-benchmark",
        }
    }

    /// Returns the face of a program of this name.
    pub fn of_name(name: &str) -> Option<Face> {
        Face::ALL.iter().copied().find(|face| face.name() == name)
    }

    /// Returns the face whose command line the words after `bench` are, and its words.
    pub(crate) fn of_words(words: &[OsString]) -> Option<(Face, Vec<OsString>)> {
        let [kind, rest @ ..] = words else { return None };
        let texts: Vec<String> = rest.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let face = match kind.to_str() {
            Some("http") if gobench::is_meant(&texts) => Face::Gobench,
            Some("redis") if redis_benchmark::is_meant(&texts) => Face::RedisBenchmark,
            Some("redis") if memtier::is_meant(&texts) => Face::Memtier,
            _ => return None,
        };
        Some((face, rest.to_vec()))
    }

    /// Runs the command line of the program. Reports go to standard output, errors to standard error.
    pub fn command(self, words: impl IntoIterator<Item = OsString>) -> ExitCode {
        let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
        let mut console = Console { out: &mut out, err: &mut err, takes_signals: true, is_terminal: false };
        ExitCode::from(self.execute(words, &mut console))
    }

    /// Like [`Face::command`], for a program that processes the output itself. Returns the exit code.
    pub fn execute(self, words: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> u8 {
        let words: Result<Vec<String>, OsString> = words.into_iter().map(OsString::into_string).collect();
        match (self, words) {
            (_, Err(word)) => console.refuse(&format!("{word:?} is not UTF-8")),
            (Face::Gobench, Ok(words)) => gobench::execute(&words, console),
            (Face::Memtier, Ok(words)) => memtier::execute(&words, console),
            (Face::RedisBenchmark, Ok(words)) => redis_benchmark::execute(&words, console),
        }
    }
}
