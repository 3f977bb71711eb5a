//! Commands that panic, of test builds only: a fault in a handler must leave no lock taken, no key held, no pass counted
//! and no stripe half-changed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate_data::object::List;
use sluicegate_data::object::list::End;
use sluicegate_data::value::Value;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use crate::catalogue::{CommandSpec, Cost, Flags, Handler};
use crate::command::asked::{Listener, ask_line};
use crate::context::Ctx;
use crate::gate::Closed;
use crate::keys::KeyRule;
use crate::keyspace::Keyspace;
use crate::notify::Class;
use crate::refused::FAILED;
use crate::{Mode, Store, StoreOptions};

/// `FAULT where key…`: changes every key, then panics at the place named.
fn fault(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    // The head of a reply that never comes.
    out.array(2);
    for index in 0..ctx.places.len() {
        ctx.key(index).set(Value::of(b"changed"), None);
    }
    match ctx.words[1] {
        b"locked" => panic!("a fault under the locks"),
        b"edit" => {
            ctx.key(0).set(Value::of(&[b'v'; 1000]), None);
            ctx.key(0).edit(1001, |bytes| {
                bytes.resize(100_000, b'v');
                panic!("a fault while a value is changed")
            });
        }
        b"outside" => {
            ctx.unlock();
            // SAFETY: no database is looked at after this.
            unsafe { ctx.pass.outside(|| panic!("a fault outside the gate")) }
        }
        _ => out.null(),
    }
}

/// `FAULTPUSH key`: pushes to a list, then panics.
fn fault_push(ctx: &mut Ctx<'_>, _: &mut dyn ReplySink) {
    let limits = ctx.limits();
    assert!(ctx.key(0).edit_as(|list: &mut List| list.push(End::Tail, b"element", limits)).is_ok());
    ctx.notify(0, Class::List, "rpush");
    panic!("a fault behind a write");
}

fn alone(_: &Keyspace, _: &Closed<'_>, _: &[&[u8]], _: u32, _: &mut dyn ReplySink) -> bool {
    panic!("a fault with the gate closed");
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "fault",
        arity: -3,
        flags: Flags::WRITE,
        keys: KeyRule::Range { first: 2, last: -1, step: 1 },
        cost: Cost::PerKey,
        group: "test",
        summary: "Panics.",
        handler: Handler::Keyspace(fault),
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "faultpush",
        arity: 2,
        flags: Flags::WRITE,
        keys: KeyRule::ONE,
        group: "test",
        summary: "Pushes to a list and panics.",
        handler: Handler::Keyspace(fault_push),
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "faultalone",
        group: "test",
        summary: "Panics with the gate closed.",
        handler: Handler::Global(alone),
        ..CommandSpec::EMPTY
    },
];

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Everything works as if nothing had happened: keys, sections, global commands, figures.
#[track_caller]
fn check_whole(store: &Store) {
    // Waiters of an aborted command are served by another thread.
    while !store.0.aside.is_at_rest() {
        std::thread::yield_now();
    }
    assert_eq!(ask_line(store, 0, "SET a 1").unwrap(), "+OK\r\n");
    assert_eq!(ask_line(store, 0, "DEL a b").unwrap().as_bytes()[0], b':');
    drop(ready(store.section([(0, &b"a"[..], Mode::Exclusive), (0, &b"b"[..], Mode::Exclusive)])).expect("free keys"));
    assert_eq!(ask_line(store, 0, "FLUSHALL").unwrap(), "+OK\r\n");
    assert_eq!(ask_line(store, 0, "DBSIZE").unwrap(), ":0\r\n");
    while store.0.keyspace.free_discarded(1) {}
    let stats = store.stats();
    assert_eq!((stats.tickets, stats.databases.len()), (0, 0));
}

fn store() -> Store {
    Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() })
}

#[test]
fn a_fault_passes_to_the_caller_and_leaves_the_store_whole() {
    for command in ["FAULT locked a b", "FAULT edit a", "FAULT outside a", "FAULTALONE"] {
        let store = store();
        assert!(catch_unwind(AssertUnwindSafe(|| ask_line(&store, 0, command))).is_err(), "{command}");
        check_whole(&store);
    }
}

#[test]
fn what_a_fault_wrote_before_it_is_there_and_counted() {
    let store = store();
    assert!(catch_unwind(AssertUnwindSafe(|| ask_line(&store, 0, "FAULT edit a b"))).is_err());
    assert_eq!(ask_line(&store, 0, "STRLEN a").unwrap(), ":100000\r\n");
    assert_eq!(ask_line(&store, 0, "GET b").unwrap(), "$7\r\nchanged\r\n");
    assert_eq!(ask_line(&store, 0, "DBSIZE").unwrap(), ":2\r\n");
    assert!(store.stats().used_bytes >= 100_000);
    check_whole(&store);
}

#[test]
fn rules_and_scripts_get_an_error() {
    let store = store();
    let Started::Done(reply) = store.start(0, &[b"FAULT", b"locked", b"a"]) else { panic!("it waits") };
    assert_eq!(reply, Reply::Error(FAILED.into()));
    check_whole(&store);
}

#[test]
fn a_parked_fault_is_answered_and_lets_those_behind_it_in() {
    for command in ["FAULT locked a b", "FAULTALONE"] {
        let store = store();
        let section = ready(store.section([(0, &b"a"[..], Mode::Exclusive)])).expect("a free key");
        let faulty = ask_line(&store, 0, command).expect_err("the key is held");
        let behind = ask_line(&store, 0, "APPEND a !").expect_err("the key is held");
        drop(section);
        assert_eq!(ready(faulty), format!("-{FAILED}\r\n").as_bytes(), "{command}");
        assert_eq!(ready(behind)[0], b':');
        check_whole(&store);
    }
}

#[test]
fn a_section_that_panics_passes_its_keys_on() {
    let store = store();
    let section = ready(store.section([(0, &b"a"[..], Mode::Exclusive)])).expect("a free key");
    let waiting = ask_line(&store, 0, "INCR a").expect_err("the key is held");
    let mut out = Vec::new();
    let fault = AssertUnwindSafe(|| {
        let words: [&[u8]; 3] = [b"FAULT", b"outside", b"a"];
        let mut section = section;
        section.execute(0, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2))
    });
    assert!(catch_unwind(fault).is_err());
    assert!(ready(waiting).starts_with(b"-ERR value is not an integer"));
    // An effect that panics, too.
    let mut section = ready(store.section([(0, &b"a"[..], Mode::Exclusive)])).expect("a free key");
    section.defer(|| panic!("a fault in an effect"));
    assert!(catch_unwind(AssertUnwindSafe(|| section.finish())).is_err());
    check_whole(&store);
}

#[test]
fn a_fault_in_one_piece_ends_a_command_of_many_keys() {
    let store = store();
    let keys = " k".repeat(2 * crate::catalogue::KEYS_MAX);
    let held = ready(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("a free key");
    let parked = ask_line(&store, 0, &format!("FAULT locked{keys}")).expect_err("the key is held");
    drop(held);
    assert!(catch_unwind(AssertUnwindSafe(|| ready(parked))).is_err());
    check_whole(&store);
}

/// Waits for what another thread serves.
fn served(mut parked: crate::Parked) -> String {
    for _ in 0..1_000_000 {
        let polled = std::pin::Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(reply) = polled {
            return String::from_utf8_lossy(&reply).into_owned();
        }
        std::thread::yield_now();
    }
    panic!("nobody serves it");
}

fn aborted(store: &Store) -> (u64, u64) {
    let stats = store.stats();
    (stats.aborted_commands, stats.aborted)
}

const POPPED: &str = "*2\r\n$4\r\nlist\r\n$7\r\nelement\r\n";

#[test]
fn a_fault_behind_a_write_is_published_and_its_waiters_are_served() {
    let store = store();
    let listener = Listener::of(&store, b"El", &["rpush"]);
    let waiter = ask_line(&store, 0, "BLPOP list 0").expect_err("there is nothing yet");
    assert!(catch_unwind(AssertUnwindSafe(|| ask_line(&store, 0, "FAULTPUSH list"))).is_err());
    assert_eq!(served(waiter), POPPED);
    assert_eq!((listener.heard(), aborted(&store)), (1, (1, 0)));
    // The same for a parked command.
    let held = ready(store.section([(0, &b"list"[..], Mode::Exclusive)])).expect("a free key");
    let faulty = ask_line(&store, 0, "FAULTPUSH list").expect_err("the key is held");
    let waiter = ask_line(&store, 0, "BLPOP list 0").expect_err("the key is held");
    held.finish();
    assert_eq!(ready(faulty), format!("-{FAILED}\r\n").as_bytes());
    assert_eq!(served(waiter), POPPED);
    assert_eq!((listener.heard(), aborted(&store)), (1, (2, 0)));
    check_whole(&store);
}

#[test]
fn a_fault_in_a_section_keeps_the_effects_of_the_section() {
    let store = store();
    let listener = Listener::of(&store, b"El", &["rpush"]);
    let waiter = ask_line(&store, 0, "BLPOP list 0").expect_err("there is nothing yet");
    let mut section = ready(store.section([(0, &b"list"[..], Mode::Exclusive)])).expect("a free key");
    let mut out = Vec::new();
    let mut run = |section: &mut crate::Section, words: &[&[u8]]| {
        let work = AssertUnwindSafe(|| section.execute(0, words, &mut ReplyWriter::new(&mut out, Protocol::Resp2)));
        catch_unwind(work).is_ok()
    };
    assert!(run(&mut section, &[b"RPUSH", b"list", b"element"]));
    assert!(!run(&mut section, &[b"FAULTPUSH", b"list"]));
    assert_eq!(listener.heard(), 0, "nobody hears of a section that goes on");
    section.finish();
    assert_eq!(served(waiter), POPPED);
    assert_eq!((listener.heard(), aborted(&store)), (2, (1, 0)));
    check_whole(&store);
}

#[test]
fn a_section_whose_client_goes_passes_its_keys_on() {
    let store = store();
    let listener = Listener::of(&store, b"El", &["rpush"]);
    let blocked = ask_line(&store, 0, "BLPOP list 0").expect_err("there is nothing yet");
    let mut section = ready(store.section([(0, &b"list"[..], Mode::Exclusive)])).expect("a free key");
    let behind = ask_line(&store, 0, "LLEN list").expect_err("the key is held");
    let mut out = Vec::new();
    let words: [&[u8]; 4] = [b"RPUSH", b"list", b"element", b"another"];
    assert_eq!(section.execute(0, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2)), Ok(()));
    section.defer(|| panic!("a fault in an effect"));
    drop(section);
    assert_eq!(served(blocked), POPPED);
    assert_eq!(served(behind), ":1\r\n");
    assert_eq!((listener.heard(), aborted(&store)), (1, (0, 1)));
    ready(store.section([(0, &b"list"[..], Mode::Exclusive)])).expect("a free key").finish();
    assert_eq!(aborted(&store), (0, 1), "an end is no abort");
    check_whole(&store);
}
