//! Commands of very many keys: a section, worked in slices.
//!
//! A DEL of a million keys under locks would stop the store for a second. So a command of more than [`KEYS_MAX`] keys
//! becomes a section that holds its keys, and runs as pieces of itself of [`KEYS_MAX`] keys each, yielding its worker
//! every [`SLICE`]. To others it is as atomic as Redis's. So does a command whose values are long (`large` in its row),
//! in one piece, which does its work before it locks the keys that it holds.
//!
//! Limit: the holds are entered with all their stripes locked, about 0.2 µs a key. A client that leaves before its
//! section has begun takes the command with it; once begun it is finished.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyBuilder, ReplySink};

use crate::catalogue::{CommandSpec, Cost, Handler};
use crate::hold::Ticket;
use crate::keys::KeyRule;
use crate::park::{Finished, Parked, ReplyForm, Waits, Words};
use crate::section::{Section, SectionError, SectionWait};
use crate::undeclared::WORK_MAX;
use crate::whole::ELEMENTS_MAX;
use crate::{Inner, Store};

/// The most keys that are locked at once.
pub(crate) const KEYS_MAX: usize = 128;
/// How long a command works before it yields.
pub(crate) const SLICE: Duration = Duration::from_micros(500);

/// Whether the command must be worked in slices.
pub(crate) fn is_big(spec: &CommandSpec, words: &[&[u8]]) -> bool {
    match spec.keys {
        KeyRule::Range { first, last, step } if last < 0 && spec.cost == Cost::PerKey => {
            (words.len() - first as usize) / step as usize > KEYS_MAX
        }
        _ => false,
    }
}

/// Whether a command of a transaction takes so long that it is not done on the transaction's worker.
/// `held` has the ticket that holds its only key, and the key's hash, if there is such a key.
pub(crate) fn takes_long(
    inner: &Inner,
    spec: &'static CommandSpec,
    words: &[&[u8]],
    db: u32,
    held: Option<(&Ticket, u64)>,
) -> bool {
    match spec.cost_of(words.len()) {
        Cost::Constant => words.len() > ELEMENTS_MAX && inner.is_for_aside(spec, words, db, held),
        Cost::PerKey => {
            let halves = step(spec) == 2 && words.len().is_multiple_of(2);
            words.len() > KEYS_MAX && !halves && is_big(spec, words)
        }
        _ => match spec.leads(words) {
            Some(others) => (others.work)(inner, words, db) > WORK_MAX,
            None => inner.is_for_aside(spec, words, db, held),
        },
    }
}

/// Carries such a command out, in a section that holds its keys.
pub(crate) fn carry_out(
    section: &mut Section,
    spec: &'static CommandSpec,
    words: &Words,
    db: u32,
    out: &mut dyn ReplySink,
) -> Result<(), SectionError> {
    let list = words.to_vec();
    if spec.cost == Cost::PerKey {
        let mut pieces = Pieces::new(spec, words.clone(), db);
        while !pieces.piece(section) {}
        out.reply(&pieces.result());
        return Ok(());
    }
    match spec.handler {
        Handler::Keyspace(_) if spec.leads(&list).is_none() => section.execute_pinned(spec, db, &list, out),
        _ => section.execute_resolved(spec, db, &list, out),
    }
}

/// A command of many keys, as pieces of itself.
struct Pieces {
    spec: &'static CommandSpec,
    words: Words,
    db: u32,
    /// Words per key: 2 for MSET and MSETNX.
    step: usize,
    /// The next word to work on.
    next: usize,
    /// The reply so far.
    so_far: Option<Reply>,
    /// MSETNX looks at all keys first.
    looking: bool,
    /// Carried out in one piece, which works outside of locks.
    whole: bool,
}

/// A command in slices.
pub(crate) struct Big {
    wait: Option<SectionWait>,
    section: Option<Section>,
    form: ReplyForm,
    pieces: Pieces,
}

impl Big {
    /// Starts the command; one that is done within a slice is answered at once.
    pub(crate) fn start(
        inner: &Arc<Inner>,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        db: u32,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        if step(spec) == 2 && words.len().is_multiple_of(2) {
            // The handler words the error; it looks at the number of words before any key.
            out.error(&format!("ERR wrong number of arguments for '{}' command", spec.name));
            return None;
        }
        let keys = inner.keys_of(spec, words, db);
        let keys = keys.iter().map(|key| (key.db, words[key.word as usize], spec.mode()));
        let wait = Store(inner.clone()).section(keys);
        let pieces = Pieces::new(spec, Words::new(words), db);
        let mut big = Box::new(Big { wait: Some(wait), section: None, form, pieces });
        match big.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Finished::Value(reply)) => out.reply(&reply),
            Poll::Ready(Finished::Wire(_)) => out.reply(&big.pieces.result()),
            Poll::Pending => return Some(Parked(Waits::Big(big))),
        }
        None
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        if let Some(wait) = &mut self.wait {
            match std::pin::Pin::new(wait).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(section)) => self.section = Some(section),
                Poll::Ready(Err(refused)) => self.pieces.end(Reply::Error(refused.to_string())),
            }
            self.wait = None;
        }
        let start = Instant::now();
        while !self.piece() {
            if start.elapsed() >= SLICE {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        self.section = None;
        let result = self.pieces.result();
        Poll::Ready(self.form.collect(|out| out.reply(&result)))
    }

    /// Does one piece; true at the end.
    fn piece(&mut self) -> bool {
        // Taken out, so that a piece that panics ends the section, and the drop of this finds nothing more to do.
        let Some(mut section) = self.section.take() else { return true };
        let done = self.pieces.piece(&mut section);
        self.section = Some(section);
        done
    }
}

/// Words per key.
fn step(spec: &CommandSpec) -> usize {
    match spec.keys {
        KeyRule::Range { step, .. } => step as usize,
        _ => 1,
    }
}

impl Pieces {
    fn new(spec: &'static CommandSpec, words: Words, db: u32) -> Pieces {
        let (looking, whole) = (spec.name == "msetnx", spec.cost != Cost::PerKey);
        Pieces { spec, words, db, step: step(spec), next: 1, so_far: None, looking, whole }
    }

    fn result(&self) -> Reply {
        self.so_far.clone().unwrap_or_else(|| Reply::Error("ERR internal error: no reply".into()))
    }

    /// Leaves the rest undone.
    fn end(&mut self, reply: Reply) {
        self.so_far = Some(reply);
        self.next = self.words.len();
        self.looking = false;
    }

    /// Does one piece; true at the end.
    fn piece(&mut self, section: &mut Section) -> bool {
        if self.next >= self.words.len() {
            return true;
        }
        let most = if self.whole { usize::MAX } else { self.next + KEYS_MAX * self.step };
        let end = most.min(self.words.len());
        let name: &[u8] = match (self.spec.name, self.looking) {
            ("msetnx", true) => b"exists",
            ("msetnx", false) => b"mset",
            (name, _) => name.as_bytes(),
        };
        let stride = if self.looking { self.step } else { 1 };
        let mut piece = vec![name];
        piece.extend((self.next..end).step_by(stride).map(|word| self.words.get(word)));
        let mut reply = ReplyBuilder::new();
        let reply = match section.execute(self.db, &piece, &mut reply) {
            Ok(()) => reply.finish(),
            Err(refused) => Reply::Error(refused.to_string()),
        };
        self.next = end;
        if self.looking {
            if reply != Reply::Integer(0) {
                self.so_far = Some(Reply::Integer(0));
                self.next = self.words.len();
                return true;
            }
            if end == self.words.len() {
                self.looking = false;
                self.next = 1;
            }
            return false;
        }
        self.so_far = Some(match (self.so_far.take(), reply) {
            (Some(Reply::Integer(before)), Reply::Integer(more)) => Reply::Integer(before + more),
            (Some(Reply::Array(mut before)), Reply::Array(more)) => {
                before.extend(more);
                Reply::Array(before)
            }
            (_, Reply::Simple(_)) if self.spec.name == "msetnx" => Reply::Integer(1),
            (_, reply) => reply,
        });
        self.next >= self.words.len()
    }
}

impl Drop for Big {
    fn drop(&mut self) {
        // Its client has gone in the middle; half a command must not stay.
        while !self.piece() {}
    }
}
