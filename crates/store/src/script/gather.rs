//! Acquisition of a script's keys.
//!
//! A few keys are queued on one by one, while the stripes of all are locked. Very many, whether declared or touched
//! before a restart, are collected in slices on a script thread, and held by a step for each stripe ([`Gathered`]).

use std::sync::Arc;
use std::time::Instant;

use sluicegate_transport::SLICE;

use super::IN_TURN;
use super::call::Call;
use crate::big::KEYS_PER_LOOK;
use crate::hold::{Gathered, Mode, Ticket};
use crate::owned::Words;
use crate::section::{Section, SectionWait};
use crate::{Inner, Store};

/// A key that a script has touched without declaring it.
pub(super) type Touched = (u32, Box<[u8]>, Mode);

/// Returns the section of a call whose keys are all free at this moment.
pub(super) fn begin_at_once(inner: &Arc<Inner>, call: &Call, words: &[&[u8]]) -> Option<Section> {
    Section::at_once(inner, call.control.id, declared(call, words).chain(in_turn(call)))
}

fn declared<'w>(call: &Call, words: &'w [&[u8]]) -> impl Iterator<Item = (u32, &'w [u8], Mode)> + Clone {
    let (db, mode) = (call.db, call.mode());
    words[..call.keys].iter().map(move |key| (db, *key, mode))
}

/// Returns the section of a call, with keys that it is known to touch.
pub(super) fn begin(inner: &Arc<Inner>, call: &Call, words: &[&[u8]], touched: &[Touched]) -> SectionWait {
    let touched = touched.iter().map(|(db, key, mode)| (*db, &**key, *mode));
    Store(inner.clone()).section(declared(call, words).chain(touched).chain(in_turn(call)))
}

/// Returns the key that calls of the same kind hold so that they run one after the other; `None` for other calls.
fn in_turn(call: &Call) -> Option<(u32, &'static [u8], Mode)> {
    call.code().is_in_turn().then_some((0, IN_TURN, Mode::Exclusive))
}

/// The collection of a call's very many keys.
pub(super) struct Gathering {
    keys: Gathered,
    next: usize,
}

impl Gathering {
    pub(super) fn new(inner: &Inner) -> Gathering {
        Gathering { keys: Gathered::new(inner), next: 0 }
    }

    /// Works for a slice. Returns whether all keys are collected and in order.
    pub(super) fn work(&mut self, inner: &Inner, call: &Call, words: &Words, touched: &[Touched]) -> bool {
        let (start, mode, all) = (Instant::now(), call.mode(), call.keys + touched.len());
        while self.next <= all {
            for place in self.next..=all.min(self.next + KEYS_PER_LOOK) {
                let key = match () {
                    () if place < call.keys => Some((call.db, words.get(place), mode)),
                    () if place < all => {
                        let (db, key, mode) = &touched[place - call.keys];
                        Some((*db, &**key, *mode))
                    }
                    () => in_turn(call),
                };
                key.into_iter().for_each(|(db, key, mode)| self.keys.add(inner, db, key, mode));
                self.next = place + 1;
            }
            if start.elapsed() >= SLICE {
                return false;
            }
        }
        self.keys.order(start)
    }

    /// Returns the ticket, once all keys are in order.
    pub(super) fn ticket(self) -> Ticket {
        self.keys.ticket()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::Ordering;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::StoreOptions;
    use crate::command::asked::ask;
    use crate::hold::{GRANTS, QUEUED};
    use crate::owned::Finished;
    use crate::script::run::{Job, Step};
    use crate::script::trial::job_of;
    use crate::section::Section;

    const KEYS: usize = 20_000;

    /// A script, a number of keys, and these keys.
    fn words(script: &str) -> Vec<String> {
        let keys = (0..KEYS).map(|number| format!("key:{number}"));
        ["EVAL".to_owned(), script.to_owned(), KEYS.to_string()].into_iter().chain(keys).collect()
    }

    /// Returns a job as on a script thread; this thread counts as one from now on.
    fn job(store: &Store, words: &[String]) -> Box<Job> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let job = job_of(store, &words);
        sluicegate_script::patient(true);
        GRANTS.set(0);
        QUEUED.set(0);
        job
    }

    fn step(job: &mut Job) -> Step {
        job.step(&mut Context::from_waker(Waker::noop()), true)
    }

    fn finish(mut job: Box<Job>) -> String {
        loop {
            let Step::Done(ended) = step(&mut job) else { continue };
            assert!(ended.section.is_none(), "its keys pass on where it ran");
            let Finished::Wire(reply) = ended.reply else { panic!("bytes were asked for") };
            sluicegate_script::patient(false);
            return String::from_utf8_lossy(&reply).into_owned();
        }
    }

    /// Returns a store in which waiting tickets may be overtaken for longer than a test takes.
    fn store() -> Store {
        let overtaken_for = std::time::Duration::from_secs(3600);
        Store::new(StoreOptions { stripes: 64, overtaken_for, ..StoreOptions::default() })
    }

    fn hold(store: &Store, key: &[u8]) -> Section {
        let mut wait = std::pin::pin!(store.section([(0, key, Mode::Exclusive)]));
        match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(section)) => section,
            _ => panic!("it is free"),
        }
    }

    fn at_rest(store: &Store) {
        while !store.0.aside.is_at_rest() {
            std::thread::yield_now();
        }
        assert_eq!(store.stats().tickets, 0);
    }

    const WRITES: &str = "redis.call('SET', KEYS[1], #KEYS) return redis.call('GET', KEYS[1])";

    #[test]
    fn very_many_keys_are_held_by_a_step_for_each_stripe() {
        let store = store();
        assert_eq!(finish(job(&store, &words(WRITES))), "$5\r\n20000\r\n");
        assert_eq!((GRANTS.get(), QUEUED.get()), (0, 0), "none was gone over while stripes were locked");
        at_rest(&store);
        // One of the keys is held by another section.
        let other = hold(&store, b"key:77");
        let mut job = job(&store, &words(WRITES));
        while job.ticket().is_none() {
            assert!(!matches!(step(&mut job), Step::Done(_)), "a key is held");
        }
        assert!(matches!(step(&mut job), Step::Waits));
        assert_eq!(ask(&store, &["SET", "key:78", "before"]).unwrap_or_default(), "+OK\r\n", "it is overtaken");
        drop(other);
        assert_eq!(finish(job), "$5\r\n20000\r\n");
        assert_eq!(QUEUED.get(), 0);
        at_rest(&store);
    }

    #[test]
    fn very_many_keys_that_were_touched_are_held_by_a_step_for_each_stripe() {
        let overtaken_for = std::time::Duration::from_nanos(1);
        let store = Store::new(StoreOptions { stripes: 64, overtaken_for, ..StoreOptions::default() });
        let script = "for i = 1, 20000 do redis.call('GET', 'key:' .. i) end redis.call('GET', 'last') return 1";
        let other = hold(&store, b"last");
        // This ticket has waited so long that the script restarts and queues behind it.
        let mut waits = std::pin::pin!(store.section([(0, &b"last"[..], Mode::Exclusive)]));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let much = "x".repeat(2 << 20);
        let mut job = job(&store, &["EVAL", script, "0", &much].map(str::to_owned));
        while store.0.sections.restarted.load(Ordering::Relaxed) == 0 {
            assert!(!matches!(step(&mut job), Step::Done(_)), "a key is held");
        }
        GRANTS.set(0);
        QUEUED.set(0);
        drop(other);
        let Poll::Ready(Ok(before)) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nobody is before it")
        };
        drop(before);
        assert_eq!(finish(job), ":1\r\n");
        let one_by_one = GRANTS.get() + QUEUED.get();
        assert!(one_by_one <= 8, "{one_by_one} were gone over while stripes were locked");
        at_rest(&store);
    }

    #[test]
    fn one_that_is_ended_while_it_gathers_holds_nothing() {
        let store = store();
        let mut job = job(&store, &words(WRITES));
        assert!(!matches!(step(&mut job), Step::Done(_)));
        store.0.scripts.running.all().iter().for_each(|control| assert!(control.kill(false)));
        assert!(finish(job).contains("killed by user"));
        at_rest(&store);
    }
}
