//! Tests of the load generators against servers that count their requests, or misbehave as a test requires.
//!
//! Runs take place in this process, through `execute`, and the tests check their JSON reports. They assert counts and
//! orderings, never speed, so they also pass on a busy machine.

mod compare;
mod faults;
mod gobench;
mod habits;
mod http;
mod http2;
mod memtier;
mod nginx;
mod pictures;
mod redis;
mod redis_benchmark;
mod report;
mod tls;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;

use sluicegate_bench::load::{Console, Face, execute};

/// The outcome of a run.
struct Ran {
    code: u8,
    out: String,
    err: String,
}

impl Ran {
    /// Returns the report's fields by their paths, such as `latency_us.p99`.
    #[track_caller]
    fn fields(&self) -> Fields {
        assert!(self.out.starts_with('{'), "{}{}", self.out, self.err);
        Fields(flatten(&self.out))
    }
}

struct Fields(BTreeMap<String, String>);

impl Fields {
    #[track_caller]
    fn text(&self, path: &str) -> &str {
        self.0.get(path).unwrap_or_else(|| panic!("no {path} in {:#?}", self.0))
    }

    #[track_caller]
    fn number(&self, path: &str) -> f64 {
        self.text(path).parse().unwrap_or_else(|_| panic!("{path} is {}", self.text(path)))
    }

    #[track_caller]
    fn count(&self, path: &str) -> u64 {
        self.text(path).parse().unwrap_or_else(|_| panic!("{path} is {}", self.text(path)))
    }

    /// Checks that every request is in exactly one count.
    #[track_caller]
    fn balance(&self) {
        let count = |name: &str| self.count(&format!("requests.{name}"));
        assert_eq!(count("sent"), count("answered") + count("failed") + count("unanswered"));
        assert_eq!(count("intended"), count("sent") + count("unsent"));
        assert_eq!(self.count("latency_us.count"), count("answered"));
        let failures = |(path, _): &(&String, &String)| path.starts_with("failures.") && path.ends_with(".count");
        let sum: u64 = self.0.iter().filter(failures).map(|(_, count)| count.parse::<u64>().unwrap()).sum();
        assert_eq!(sum, count("failed"));
    }
}

/// Runs `bench WORDS…`; `words` is split at blanks, and the elements of `more` follow unchanged.
fn run_with(words: &str, more: &[&str]) -> Ran {
    let words = words.split_whitespace().chain(more.iter().copied()).map(OsString::from);
    ran(|console| execute(words, console))
}

fn ran(execute: impl FnOnce(&mut Console<'_>) -> u8) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = execute(&mut Console { out: &mut out, err: &mut err, takes_signals: false, is_terminal: false });
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code, out: text(out), err: text(err) }
}

/// Runs a load generator's command line under its name.
fn run_as(name: &str, words: &str) -> Ran {
    let face = Face::of_name(name).expect("a face");
    ran(|console| face.execute(words.split_whitespace().map(OsString::from), console))
}

fn run(words: &str) -> Ran {
    run_with(words, &[])
}

/// Returns the leaves of a JSON document by their paths; elements of arrays are numbered.
fn flatten(text: &str) -> BTreeMap<String, String> {
    let mut reader = Reader { text: text.as_bytes(), at: 0, leaves: BTreeMap::new() };
    reader.value("");
    reader.blank();
    assert_eq!(reader.at, text.len(), "more than one document");
    reader.leaves
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    leaves: BTreeMap<String, String>,
}

impl Reader<'_> {
    fn blank(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn next(&mut self, expected: u8) -> bool {
        self.blank();
        let is_there = self.text.get(self.at) == Some(&expected);
        self.at += usize::from(is_there);
        is_there
    }

    fn string(&mut self) -> String {
        let start = self.at;
        while self.text[self.at] != b'"' {
            assert!(self.text[self.at] >= b' ', "a control character in a string");
            self.at += 1 + usize::from(self.text[self.at] == b'\\');
        }
        self.at += 1;
        String::from_utf8_lossy(&self.text[start..self.at - 1]).into_owned()
    }

    fn value(&mut self, path: &str) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        self.blank();
        if self.next(b'{') {
            if self.next(b'}') {
                return;
            }
            loop {
                assert!(self.next(b'"'), "a name at {}", self.at);
                let name = self.string();
                assert!(self.next(b':'), "a colon at {}", self.at);
                self.value(&below(&name));
                if !self.next(b',') {
                    assert!(self.next(b'}'), "the end of an object at {}", self.at);
                    return;
                }
            }
        } else if self.next(b'[') {
            if self.next(b']') {
                return;
            }
            for number in 0.. {
                self.value(&below(&number.to_string()));
                if !self.next(b',') {
                    assert!(self.next(b']'), "the end of an array at {}", self.at);
                    return;
                }
            }
        } else if self.next(b'"') {
            let text = self.string();
            self.leaves.insert(path.to_owned(), text);
        } else {
            let rest = &self.text[self.at..];
            let len = rest.iter().position(|byte| b",}] \n".contains(byte)).expect("an end");
            let word = String::from_utf8_lossy(&rest[..len]).into_owned();
            let is_word = matches!(word.as_str(), "null" | "true" | "false") || word.parse::<f64>().is_ok();
            assert!(is_word, "{word:?} at {path}");
            self.at += len;
            self.leaves.insert(path.to_owned(), word);
        }
    }
}
