//! Commands of very many keys: a section, executed in slices.
//!
//! A DEL of a million keys under locks would stop the store for a second. So a command of more than [`KEYS_MAX`] keys
//! becomes a section that holds its keys, and runs as pieces of itself of [`KEYS_MAX`] keys each, yielding its worker
//! every [`SLICE`]. To others it is as atomic as Redis's. A command whose values are long (`large` in its row) also
//! becomes a section, in one piece, which does its work before it locks the keys that it holds.
//!
//! The keys of a command with very many of them are [gathered](Gathered) beforehand, so that no stripe is locked for
//! long, and are released on another thread. If the client disconnects before the section has begun, the command is
//! dropped; a section that has begun is finished.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use sluicegate_transport::{SLICE, give_way};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyBuilder, ReplySink};

use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Cost, Handler, KEYS_MAX};
use crate::execute::Origin;
use crate::hold::{Gathered, HeldKeys};
use crate::keys::KeyRule;
use crate::owned::{Finished, ReplyForm, Words};
use crate::park::{Parked, Waits, Work};
use crate::refused::SectionError;
use crate::section::{Ending, Section, SectionWait};
use crate::undeclared::WORK_MAX;
use crate::visits::ELEMENTS_MAX;
use crate::{Inner, Store};

/// More keys than this are gathered before the section queues on them, and are released on the thread pool; for fewer
/// keys, all stripes are locked for a millisecond at most.
pub(crate) const MANY_KEYS: usize = 2048;
/// The number of keys that are gathered between two readings of the clock.
pub(crate) const KEYS_PER_LOOK: usize = 256;

/// Returns whether a command of a transaction takes so long that it must not run on the transaction's worker. `held`
/// has the ticket that holds its only key, and the key's hash, if there is such a key.
pub(crate) fn takes_long(
    inner: &Inner,
    spec: &'static CommandSpec,
    words: &[&[u8]],
    db: u32,
    held: Option<(&HeldKeys, u64)>,
) -> bool {
    match spec.cost_of(words.len()) {
        Cost::Constant => words.len() > ELEMENTS_MAX && inner.is_for_aside(spec, words, db, held),
        Cost::PerKey => {
            let halves = step(spec) == 2 && words.len().is_multiple_of(2);
            words.len() > KEYS_MAX && !halves && spec.is_big(words)
        }
        _ => match spec.leads(words) {
            Some(others) => (others.work)(inner, words, db) > WORK_MAX,
            None => inner.is_for_aside(spec, words, db, held),
        },
    }
}

/// Executes such a command in a section that holds its keys.
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

/// A command of many keys, in pieces.
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
    /// Whether MSETNX is still looking whether one of its keys exists.
    looking: bool,
    /// Whether the command runs in one piece, which works outside of locks.
    whole: bool,
}

/// A command in slices.
pub(crate) struct Big {
    inner: Arc<Inner>,
    turn: Turn,
    section: Option<Section>,
    form: ReplyForm,
    behalf: Behalf,
    pieces: Pieces,
}

/// The progress of the command.
enum Turn {
    /// Its keys are being gathered; those before this word are done.
    Gathering(Gathered, usize),
    Waiting(SectionWait),
    /// Another thread releases its very many keys.
    Ending(Ending),
    /// The section has its keys, had them, or was refused.
    Over,
}

impl Inner {
    /// Starts a command in slices; one that is done within a slice is answered at once.
    pub(crate) fn start_big(
        self: &Arc<Inner>,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        let Origin { db, behalf, .. } = origin;
        if step(spec) == 2 && words.len().is_multiple_of(2) {
            // The error is that of the handler, which checks the number of words before any key.
            out.error(&format!("ERR wrong number of arguments for '{}' command", spec.name));
            return None;
        }
        let pieces = Pieces::new(spec, Words::new(words), db);
        let turn = match spec.cost == Cost::PerKey && words.len() / pieces.step > MANY_KEYS {
            true => Turn::Gathering(Gathered::new(self), pieces.next),
            false => {
                let keys = self.keys_of(spec, words, db);
                let keys = keys.iter().map(|key| (key.db, words[key.word as usize], spec.mode()));
                Turn::Waiting(Store(self.clone()).section(keys))
            }
        };
        let mut big = Box::new(Big { inner: self.clone(), turn, section: None, form, behalf, pieces });
        match big.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Finished::Value(reply)) => out.reply(&reply),
            Poll::Ready(Finished::Wire(_)) => out.reply(&big.pieces.result()),
            Poll::Pending => return Some(Parked(Waits::Work(big))),
        }
        None
    }
}

impl Work for Big {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        let start = Instant::now();
        if let Turn::Gathering(keys, next) = &mut self.turn {
            if !self.pieces.gather(&self.inner, keys, next, start) {
                give_way(context.waker());
                return Poll::Pending;
            }
            if let Turn::Gathering(keys, _) = std::mem::replace(&mut self.turn, Turn::Over) {
                self.turn = Turn::Waiting(Store(self.inner.clone()).section_of(keys.ticket()));
            }
        }
        if let Turn::Waiting(wait) = &mut self.turn {
            match std::pin::Pin::new(wait).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(mut section)) => {
                    section.set_behalf(self.behalf);
                    self.section = Some(section);
                }
                Poll::Ready(Err(refused)) => self.pieces.end(Reply::Error(refused.to_string())),
            }
            self.turn = Turn::Over;
        }
        while !self.piece() {
            if start.elapsed() >= SLICE {
                give_way(context.waker());
                return Poll::Pending;
            }
        }
        if let Some(section) = self.section.take_if(|section| section.held() > MANY_KEYS) {
            self.turn = Turn::Ending(section.end_aside());
        }
        if let Some(section) = self.section.take() {
            section.finish();
        }
        if let Turn::Ending(ending) = &mut self.turn {
            let _ = ready!(std::pin::Pin::new(ending).poll(context));
            self.turn = Turn::Over;
        }
        let result = self.pieces.result();
        Poll::Ready(self.form.collect(|out| out.reply(&result)))
    }
}

impl Big {
    /// Executes one piece; returns true after the last one.
    fn piece(&mut self) -> bool {
        // The section is taken out, so that a panic in a piece ends the section, and nothing is left to do when `self`
        // is dropped.
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
        let (looking, whole) = (spec.halves.is_some(), spec.cost != Cost::PerKey);
        Pieces { spec, words, db, step: step(spec), next: 1, so_far: None, looking, whole }
    }

    fn result(&self) -> Reply {
        self.so_far.clone().unwrap_or_else(|| Reply::Error("ERR internal error: no reply".into()))
    }

    /// Gathers the keys from this word on, for a slice; returns whether all are gathered.
    fn gather(&self, inner: &Inner, keys: &mut Gathered, next: &mut usize, start: Instant) -> bool {
        while *next < self.words.len() {
            let end = self.words.len().min(*next + KEYS_PER_LOOK * self.step);
            for word in (*next..end).step_by(self.step) {
                keys.add(inner, self.db, self.words.get(word), self.spec.mode());
            }
            *next = end;
            if start.elapsed() >= SLICE {
                return false;
            }
        }
        keys.order(start)
    }

    /// Ends the command with this reply, without the remaining pieces.
    fn end(&mut self, reply: Reply) {
        self.so_far = Some(reply);
        self.next = self.words.len();
        self.looking = false;
    }

    /// Executes one piece; returns true after the last one.
    fn piece(&mut self, section: &mut Section) -> bool {
        if self.next >= self.words.len() {
            return true;
        }
        let most = if self.whole { usize::MAX } else { self.next + KEYS_MAX * self.step };
        let end = most.min(self.words.len());
        let name = match self.spec.halves {
            Some(halves) if self.looking => halves.look,
            Some(halves) => halves.write,
            None => self.spec.name,
        };
        let stride = if self.looking { self.step } else { 1 };
        let mut piece = vec![name.as_bytes()];
        piece.extend((self.next..end).step_by(stride).map(|word| self.words.get(word)));
        let mut reply = ReplyBuilder::new();
        let behalf = section.behalf();
        if self.looking {
            // The client does not read these keys.
            section.set_behalf(behalf.untracked());
        }
        let executed = section.execute(self.db, &piece, &mut reply);
        section.set_behalf(behalf);
        let reply = match executed {
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
            (_, Reply::Simple(_)) if self.spec.halves.is_some() => Reply::Integer(1),
            (_, reply) => reply,
        });
        self.next >= self.words.len()
    }
}

impl Drop for Big {
    fn drop(&mut self) {
        // The client has disconnected while the command was running, which must not remain half done.
        let Some(mut section) = self.section.take() else { return };
        let nothing = Pieces::new(self.pieces.spec, Words::new(&[]), self.pieces.db);
        let mut pieces = std::mem::replace(&mut self.pieces, nothing);
        let is_large = section.held() > MANY_KEYS;
        let finish = move || {
            while !pieces.piece(&mut section) {}
            section.finish();
        };
        match is_large {
            true => self.inner.aside.run(finish),
            false => finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;
    use crate::command::asked::ask;
    use crate::hold::{GRANTS, Mode, QUEUED};

    const KEYS: usize = 20_000;

    /// Returns a store in which waiting tickets may be overtaken for as long as a test takes.
    fn store() -> Store {
        let overtaken_for = std::time::Duration::from_secs(3600);
        Store::new(StoreOptions { stripes: 64, overtaken_for, ..StoreOptions::default() })
    }

    /// Returns the words of a command of very many keys, each followed by the value if there is one.
    fn words(command: &str, value: Option<&'static str>) -> Vec<String> {
        let keys = (0..KEYS).flat_map(|number| [Some(format!("key:{number}")), value.map(str::to_owned)]);
        std::iter::once(command.to_owned()).chain(keys.flatten()).collect()
    }

    fn start(store: &Store, words: &[String]) -> Parked {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        ask(store, &words).expect_err("it takes long")
    }

    fn poll(parked: &mut Parked) -> Poll<Vec<u8>> {
        std::pin::Pin::new(parked).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn finish(mut parked: Parked) -> String {
        loop {
            if let Poll::Ready(reply) = poll(&mut parked) {
                return String::from_utf8_lossy(&reply).into_owned();
            }
        }
    }

    fn at_rest(store: &Store) {
        while !store.0.aside.is_at_rest() {
            std::thread::yield_now();
        }
        assert_eq!(store.stats().tickets, 0);
    }

    #[test]
    fn very_many_keys_are_held_by_a_step_for_each_stripe() {
        let store = store();
        GRANTS.set(0);
        QUEUED.set(0);
        let all = [("MSET", Some("1"), "+OK\r\n"), ("EXISTS", None, ":20000\r\n"), ("MSETNX", Some("2"), ":0\r\n")];
        for (command, value, reply) in all.into_iter().chain([("DEL", None, ":20000\r\n")]) {
            assert_eq!(finish(start(&store, &words(command, value))), reply, "{command}");
        }
        assert_eq!((GRANTS.get(), QUEUED.get()), (0, 0), "none was gone over while stripes were locked");
        at_rest(&store);
        // One of the keys is held by another section.
        let mut other = store.section([(0, &b"key:77"[..], Mode::Exclusive)]);
        let Poll::Ready(Ok(other)) = std::pin::Pin::new(&mut other).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it is free")
        };
        GRANTS.set(0);
        QUEUED.set(0);
        let mut waits = start(&store, &words("MSETNX", Some("2")));
        while store.stats().tickets == 1 {
            assert!(poll(&mut waits).is_pending());
        }
        assert_eq!(ask(&store, &["SET", "key:78", "before"]).unwrap_or_default(), "+OK\r\n", "it is overtaken");
        drop(other);
        assert_eq!(finish(waits), ":0\r\n");
        assert_eq!(QUEUED.get(), 0);
        at_rest(&store);
    }

    #[test]
    fn very_many_keys_are_finished_once_begun() {
        let store = store();
        drop(start(&store, &words("MSET", Some("1"))));
        at_rest(&store);
        assert_eq!(ask(&store, &["DBSIZE"]).unwrap_or_default(), ":0\r\n", "it had not begun");
        let mut begun = start(&store, &words("MSET", Some("1")));
        while ask(&store, &["EXISTS", "key:0"]).is_ok() {
            assert!(poll(&mut begun).is_pending(), "its keys are held while it works");
        }
        drop(begun);
        at_rest(&store);
        assert_eq!(ask(&store, &["DBSIZE"]).unwrap_or_default(), ":20000\r\n");
    }
}
