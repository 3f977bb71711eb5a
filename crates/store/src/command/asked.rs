//! Commands of unit tests, run as a caller without a connection runs them.

use sluicegate_wire::resp::{Protocol, ReplyWriter};

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
