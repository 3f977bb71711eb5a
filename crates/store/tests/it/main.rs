//! The store from outside: compared with a real Redis, over RESP and by function calls, against a model, and under many
//! threads.

mod admin;
mod allocated;
mod append;
mod aside;
mod bitmaps;
mod blocking;
mod client_memory;
mod concurrency;
mod differential;
mod drops;
mod dump;
mod field_expiry;
mod full;
mod garbage;
mod group_waits;
mod holds;
mod keys;
mod linear;
mod loading;
mod memory;
mod model;
mod newer;
mod observe;
mod pubsub;
mod reference;
mod replica;
mod replicas;
mod restore;
mod save;
mod scripts;
mod server;
mod streams;
mod support;
mod tracking;
mod transactions;
mod undeclared;
mod users;
mod zset_waits;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use sluicegate_store::{Caller, Executed, Parked, Store, execute};
use sluicegate_testkit::wait_for;
use sluicegate_wire::resp::ReplyWriter;

/// Blocks the thread until the future is ready.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs a command that waits for no other one, and returns the reply's bytes. The thread that has ended a client's wait may
/// still hold the key for a moment.
#[track_caller]
fn run(store: &Store, caller: &mut Caller, words: &[&[u8]]) -> Vec<u8> {
    match start(store, caller, words) {
        Ok(reply) => reply,
        Err(mut parked) => wait_for(&String::from_utf8_lossy(words[0]), || {
            match Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reply) => Some(reply),
                Poll::Pending => None,
            }
        }),
    }
}

/// Starts a command: returns the reply's bytes, or the parked command.
fn start(store: &Store, caller: &mut Caller, words: &[&[u8]]) -> Result<Vec<u8>, Parked> {
    let mut out = Vec::new();
    let protocol = caller.protocol;
    match execute(store, caller, words, &mut ReplyWriter::new(&mut out, protocol)) {
        Executed::Done => Ok(out),
        Executed::Connection(command) => panic!("{command:?} needs a connection"),
        Executed::Parked(parked) => Err(parked),
    }
}

/// Runs a command given as text, on database 0 and in RESP2.
#[track_caller]
fn ask(store: &Store, command: &str) -> String {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    String::from_utf8(run(store, &mut Caller::default(), &words)).expect("tests use text")
}

/// A small random number generator, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}
