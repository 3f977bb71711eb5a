//! Commands that panic, of test builds only: a fault in a handler must leave no lock taken, no key held, no pass counted
//! and no stripe half-changed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use crate::catalogue::{CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::gate::Closed;
use crate::keys::KeyRule;
use crate::keyspace::Keyspace;
use crate::refused::FAILED;
use crate::value::Value;
use crate::{Caller, Executed, Mode, Store, StoreOptions, execute};

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

fn alone(_: &Keyspace, _: &Closed<'_>, _: &[&[u8]], _: u32, _: &mut dyn ReplySink) {
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
        name: "faultalone",
        group: "test",
        summary: "Panics with the gate closed.",
        handler: Handler::Global(alone),
        ..CommandSpec::EMPTY
    },
];

fn ask(store: &Store, command: &str) -> Result<String, crate::Parked> {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut out = Vec::new();
    match execute(store, &mut Caller::default(), &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2)) {
        Executed::Done => Ok(String::from_utf8(out).expect("text")),
        Executed::Parked(parked) => Err(parked),
        Executed::Connection(command) => panic!("{command:?} needs a connection"),
    }
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Everything works as if nothing had happened: keys, sections, global commands, figures.
#[track_caller]
fn check_whole(store: &Store) {
    assert_eq!(ask(store, "SET a 1").unwrap(), "+OK\r\n");
    assert_eq!(ask(store, "DEL a b").unwrap().as_bytes()[0], b':');
    drop(ready(store.section([(0, &b"a"[..], Mode::Exclusive), (0, &b"b"[..], Mode::Exclusive)])).expect("free keys"));
    assert_eq!(ask(store, "FLUSHALL").unwrap(), "+OK\r\n");
    assert_eq!(ask(store, "DBSIZE").unwrap(), ":0\r\n");
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
        assert!(catch_unwind(AssertUnwindSafe(|| ask(&store, command))).is_err(), "{command}");
        check_whole(&store);
    }
}

#[test]
fn what_a_fault_wrote_before_it_is_there_and_counted() {
    let store = store();
    assert!(catch_unwind(AssertUnwindSafe(|| ask(&store, "FAULT edit a b"))).is_err());
    assert_eq!(ask(&store, "STRLEN a").unwrap(), ":100000\r\n");
    assert_eq!(ask(&store, "GET b").unwrap(), "$7\r\nchanged\r\n");
    assert_eq!(ask(&store, "DBSIZE").unwrap(), ":2\r\n");
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
        let faulty = ask(&store, command).expect_err("the key is held");
        let behind = ask(&store, "APPEND a !").expect_err("the key is held");
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
    let waiting = ask(&store, "INCR a").expect_err("the key is held");
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
    assert!(catch_unwind(AssertUnwindSafe(|| drop(section))).is_err());
    check_whole(&store);
}

#[test]
fn a_fault_in_one_piece_ends_a_command_of_many_keys() {
    let store = store();
    let keys = " k".repeat(2 * crate::catalogue::KEYS_MAX);
    let held = ready(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("a free key");
    let parked = ask(&store, &format!("FAULT locked{keys}")).expect_err("the key is held");
    drop(held);
    assert!(catch_unwind(AssertUnwindSafe(|| ready(parked))).is_err());
    check_whole(&store);
}
