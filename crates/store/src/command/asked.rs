//! Commands of unit tests, run as a caller without a connection runs them, and a client that listens to their events.

use std::sync::Arc;

use sluicegate_wire::resp::{Protocol, ReplyWriter};

use crate::memory::{Account, Memory};
use crate::notify::parse_classes;
use crate::outbox::Outbox;
use crate::pubsub::{Kind, Subscriber};
use crate::{Caller, Executed, Parked, Store, execute};

/// Returns the reply of a command, or its pending reply.
pub(crate) fn ask(store: &Store, words: &[&str]) -> Result<String, Parked> {
    ask_in(store, 0, words)
}

/// As [`ask`], of the words of a line, in a database.
pub(crate) fn ask_line(store: &Store, db: u32, line: &str) -> Result<String, Parked> {
    ask_in(store, db, &line.split(' ').collect::<Vec<_>>())
}

fn ask_in(store: &Store, db: u32, words: &[&str]) -> Result<String, Parked> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let (mut out, mut caller) = (Vec::new(), Caller { db, ..Caller::default() });
    match execute(store, &mut caller, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2)) {
        Executed::Done => Ok(String::from_utf8_lossy(&out).into_owned()),
        Executed::Parked(parked) => Err(parked),
        Executed::Connection(command) => panic!("{command:?} needs a connection"),
    }
}

/// A client that listens to events.
pub(crate) struct Listener {
    account: Arc<Account>,
    pub(crate) outbox: Outbox,
}

impl Subscriber for Listener {
    fn id(&self) -> u64 {
        1
    }

    fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn wake(&self) {}

    fn kill(&self) {}

    fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Listener {
    /// Lets the store publish events of these classes, and listens to those of these names in database 0.
    pub(crate) fn of(store: &Store, classes: &[u8], events: &[&str]) -> Arc<Listener> {
        store.0.notifier.set_classes(parse_classes(classes).expect("classes"));
        let account = Account::new(&Arc::new(Memory::new()));
        let listener = Arc::new(Listener { account, outbox: Outbox::default() });
        let subscriber: Arc<dyn Subscriber> = listener.clone();
        for event in events {
            store.0.pubsub.subscribe(Kind::Channel, format!("__keyevent@0__:{event}").as_bytes(), &subscriber);
        }
        listener
    }

    /// Returns the number of received events.
    pub(crate) fn heard(&self) -> usize {
        let mut output = Vec::new();
        self.outbox.drain(&mut output);
        self.outbox.left(0);
        String::from_utf8(output).expect("text").matches("message").count()
    }
}
