//! SLOWLOG: commands whose execution took long.
//!
//! Only execution counts: the time that a command waits for a held key, for an element or for its turn is not in it.
//! Every command whose work can be large is timed by itself; of those whose work is the same for every value, a run of
//! equal ones is timed together, unless the threshold is below a millisecond.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::dispatch::{self, About, Outcome, Row};
use super::monitor::is_secret;

/// The maximum number of words of a command that are kept, and of bytes of a word, as in Redis.
const WORDS_MAX: usize = 32;
const WORD_MAX: usize = 128;

/// The number of entries that GET returns by default.
const SHOWN: usize = 10;

/// The maximum number of entries, regardless of `slowlog-max-len`: some 4 KiB each.
const ENTRIES_MAX: i64 = 100_000;

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    /// Unix time.
    at_s: u64,
    spent_us: u64,
    words: Vec<Vec<u8>>,
    address: String,
    name: String,
}

/// The log of a server.
#[derive(Debug, Default)]
pub(super) struct Slowlog(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    next: u64,
}

impl Slowlog {
    /// Adds a command; the oldest entry is removed if there are too many.
    pub fn add(&self, words: Vec<Vec<u8>>, spent_us: u64, address: String, name: String, max_len: i64) {
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut kept = self.0.lock();
        let id = kept.next;
        kept.next += 1;
        kept.entries.push_front(Entry { id, at_s, spent_us, words, address, name });
        kept.entries.truncate(max_len.clamp(0, ENTRIES_MAX) as usize);
    }

    /// Returns the number of commands that were added so far.
    pub fn count(&self) -> u64 {
        self.0.lock().next
    }
}

/// Returns the words of a command as they are stored: the first ones, each shortened, without passwords.
pub(super) fn shortened(row: &Row, args: &[&[u8]]) -> Vec<Vec<u8>> {
    let shown = if args.len() > WORDS_MAX { WORDS_MAX - 1 } else { args.len() };
    let mut words: Vec<Vec<u8>> = (0..shown)
        .map(|at| match args[at] {
            _ if is_secret(row, args, at) => b"(redacted)".to_vec(),
            word if word.len() > WORD_MAX => {
                let more = format!("... ({} more bytes)", word.len() - WORD_MAX);
                [&word[..WORD_MAX], more.as_bytes()].concat()
            }
            word => word.to_vec(),
        })
        .collect();
    if shown < args.len() {
        words.push(format!("... ({} more arguments)", args.len() - shown).into());
    }
    words
}

/// `SLOWLOG GET [count]`.
pub(super) fn get(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let count = match args.get(2) {
        _ if args.len() > 3 => {
            let shown = &args[1][..args[1].len().min(128)];
            out.error_bytes(
                &[b"ERR unknown subcommand or wrong number of arguments for '", shown, b"'. Try SLOWLOG HELP."]
                    .concat(),
            );
            return Outcome::Done;
        }
        None => SHOWN,
        Some(word) => match parse_i64(word) {
            Some(-1) => usize::MAX,
            Some(count) if count >= 0 => count as usize,
            _ => {
                out.error("ERR count should be greater than or equal to -1");
                return Outcome::Done;
            }
        },
    };
    let entries: Vec<Entry> = about.server.slowlog.0.lock().entries.iter().take(count).cloned().collect();
    out.array(entries.len());
    for entry in entries {
        out.array(6);
        out.integer(entry.id as i64);
        out.integer(entry.at_s as i64);
        out.integer(entry.spent_us as i64);
        out.array(entry.words.len());
        entry.words.iter().for_each(|word| out.bulk(word));
        out.bulk(entry.address.as_bytes());
        out.bulk(entry.name.as_bytes());
    }
    Outcome::Done
}

/// `SLOWLOG LEN`.
pub(super) fn len(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let len = about.server.slowlog.0.lock().entries.len();
    out.integer(len as i64);
    Outcome::Done
}

/// `SLOWLOG RESET`.
pub(super) fn reset(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    about.server.slowlog.0.lock().entries.clear();
    out.ok();
    Outcome::Done
}

/// `SLOWLOG HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("slowlog", out)
}
