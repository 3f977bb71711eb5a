//! LCS: the longest common subsequence of two strings, by the textbook's table.
//!
//! The table takes 4 bytes per pair of bytes, at most 512 MiB as in Redis. Both values are copied or shared under the
//! locks and worked on after them, outside the gate, so that only the caller's worker is busy with it.

use std::sync::Arc;

use sluicegate_data::value::STRING_MAX;
use sluicegate_wire::resp::ReplySink;

use super::{Refused, SYNTAX, integer, is};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, LongWords};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::visits;

#[derive(Default)]
struct Options {
    idx: bool,
    len: bool,
    with_match_len: bool,
    min_match_len: i64,
}

fn options(words: &[&[u8]]) -> Result<Options, Refused> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match () {
            () if is(word, "idx") => options.idx = true,
            () if is(word, "len") => options.len = true,
            () if is(word, "withmatchlen") => options.with_match_len = true,
            () if is(word, "minmatchlen") => {
                options.min_match_len = integer(words.next().ok_or(SYNTAX)?)?.max(0);
            }
            () => return Err(SYNTAX.into()),
        }
    }
    if options.idx && options.len {
        return Err("ERR If you want both the length and indexes, please just use IDX.".into());
    }
    Ok(options)
}

/// A common run: its first and last byte in both strings.
struct Run {
    a: (usize, usize),
    b: (usize, usize),
}

/// For each pair of beginnings of `a` and `b`, the length of their longest common subsequence; rows are `b.len() + 1`
/// wide.
fn lengths(a: &[u8], b: &[u8]) -> Vec<u32> {
    let width = b.len() + 1;
    let mut table = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            table[i * width + j] = match a[i - 1] == b[j - 1] {
                true => table[(i - 1) * width + j - 1] + 1,
                false => table[(i - 1) * width + j].max(table[i * width + j - 1]),
            };
        }
    }
    table
}

fn lcs(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let mut text = |index: usize| match ctx.read(index) {
        None => Some(Arc::default()),
        Some(entry) => entry.shared().or_else(|| {
            let view = entry.string()?;
            Some(Arc::new(view.text(&mut itoa::Buffer::new()).to_vec()))
        }),
    };
    let (a, b): (Arc<Vec<u8>>, Arc<Vec<u8>>) = match (text(0), text(1)) {
        (Some(a), Some(b)) => (a, b),
        _ => return out.error("ERR The specified keys must contain string values"),
    };
    ctx.unlock();
    let options = match options(&ctx.words[3..]) {
        Ok(options) => options,
        Err(text) => return out.error_bytes(text.text()),
    };

    let width = b.len() + 1;
    if (a.len() + 1).saturating_mul(width).saturating_mul(4) > STRING_MAX {
        return out.error("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len");
    }
    // SAFETY: the values are this function's own, and everything is unlocked.
    let table = unsafe { ctx.pass.outside(|| lengths(&a, &b)) };
    let total = table[a.len() * width + b.len()] as usize;
    if options.len {
        return out.integer(total as i64);
    }

    // Back from the end: runs come last first, as Redis reports them.
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = vec![0; total];
    let mut left = total;
    let mut runs = Vec::new();
    let mut run: Option<Run> = None;
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            left -= 1;
            common[left] = a[i - 1];
            (i, j) = (i - 1, j - 1);
            match &mut run {
                Some(run) => (run.a.0, run.b.0) = (i, j),
                None => run = Some(Run { a: (i, i), b: (j, j) }),
            }
            if i == 0 || j == 0 {
                runs.extend(run.take());
            }
        } else {
            if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
            runs.extend(run.take());
        }
    }
    if !options.idx {
        return out.bulk(&common);
    }
    let length = |run: &Run| (run.a.1 - run.a.0 + 1) as i64;
    runs.retain(|run| length(run) >= options.min_match_len);
    out.map(2);
    out.bulk(b"matches");
    out.array(runs.len());
    for run in &runs {
        out.array(2 + usize::from(options.with_match_len));
        for (first, last) in [run.a, run.b] {
            out.array(2);
            out.integer(first as i64);
            out.integer(last as i64);
        }
        if options.with_match_len {
            out.integer(length(run));
        }
    }
    out.bulk(b"len");
    out.integer(total as i64);
}

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "lcs",
    arity: -3,
    flags: Flags::READONLY,
    keys: KeyRule::TWO,
    categories: &[Category::String],
    cost: Cost::PerByte,
    since: "7.0.0",
    group: "string",
    visits: Some(visits::pairs),
    long_words: LongWords::Read,
    summary: "Finds the longest common substring.",
    complexity: "O(N*M) where N and M are the lengths of s1 and s2, respectively",
    handler: Handler::Keyspace(lcs),
    ..CommandSpec::EMPTY
}];
