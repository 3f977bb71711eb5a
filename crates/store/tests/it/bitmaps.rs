//! BITOP on long values, beside other commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_store::{Caller, Mode, Store, StoreOptions};

use crate::{ask, block_on, run, start};

fn set(store: &Store, key: &[u8], byte: u8, len: usize) {
    let value = vec![byte; len];
    assert_eq!(run(store, &mut Caller::default(), &[b"SET", key, &value]), b"+OK\r\n");
}

#[test]
fn a_long_bitop_waits_for_a_held_key_and_is_done_after_it() {
    let store = Store::new(StoreOptions { overtaken_for: Duration::MAX, ..StoreOptions::default() });
    set(&store, b"a", 0x0f, 1 << 20);
    set(&store, b"b", 0x3c, 1 << 20);
    let mut section = block_on(store.section([(0, &b"b"[..], Mode::Exclusive)])).expect("a free key");
    let waiting =
        start(&store, &mut Caller::default(), &[b"BITOP", b"AND", b"out", b"a", b"b"]).expect_err("b is held");
    assert_eq!(ask(&store, "EXISTS none"), ":0\r\n");
    let mut reply = Vec::new();
    let mut out = sluicegate_wire::resp::ReplyWriter::new(&mut reply, Default::default());
    section.execute(0, &[b"SET", b"b", &vec![0xff; 2 << 20]], &mut out).expect("the section's own key");
    drop(section);
    assert_eq!(block_on(waiting), b":2097152\r\n");
    assert_eq!(ask(&store, "BITCOUNT out"), format!(":{}\r\n", 4 << 20));
}

/// A thread inverts all bits of a source repeatedly; every result is of one of the two states, never of a mix.
#[test]
fn a_long_bitop_sees_its_sources_at_one_time() {
    let store = Store::new(StoreOptions::default());
    let len = 300 << 10;
    set(&store, b"{x}a", 0x00, len);
    set(&store, b"{x}b", 0x00, len);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let values = [vec![0x00; len], vec![0xff; len]];
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                let value = &values[round % 2];
                let words: [&[u8]; 5] = [b"MSET", b"{x}a", value, b"{x}b", value];
                start(&store, &mut Caller::default(), &words).unwrap_or_else(block_on);
                round += 1;
            }
        });
        for _ in 0..200 {
            let words: [&[u8]; 5] = [b"BITOP", b"XOR", b"out", b"{x}a", b"{x}b"];
            let reply = start(&store, &mut Caller::default(), &words).unwrap_or_else(block_on);
            assert_eq!(reply, format!(":{len}\r\n").as_bytes());
            assert_eq!(ask(&store, "BITCOUNT out"), ":0\r\n");
        }
        done.store(true, Ordering::Relaxed);
    });
}
