//! Transactions on a shared connection: `MULTI`, commands and `EXEC` as one entry of a lane.
//!
//! An entry is written contiguously, so no command of another caller comes between, and no part of it is sent alone.
//! Its replies arrive one by one; the result is the reply of `EXEC`, or the first error, which is more specific than
//! `EXECABORT`: in that case nothing was executed. Keys are not watched here, since WATCH is state of the connection.

use sluicegate_wire::engine::Failed;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::slot;

use crate::Failure;
use crate::command::encode;
use crate::keys::{Place, place};

/// The engine's error for keys of several slots in one transaction.
const CROSSING: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// A request: one command, or several without other commands in between.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    One(&'a [&'a [u8]]),
    /// A command whose reply has no receiver.
    Forgotten(&'a [&'a [u8]], &'a Failed),
    Together(&'a [&'a [&'a [u8]]]),
}

impl<'a> Request<'a> {
    /// Appends the encoded request.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Request::One(args) | Request::Forgotten(args, _) => encode(args, out),
            Request::Together(commands) => {
                encode(&[b"MULTI"], out);
                commands.iter().for_each(|args| encode(args, out));
                encode(&[b"EXEC"], out);
            }
        }
    }

    /// Returns the state for collecting several replies, if the request has several.
    pub(crate) fn transaction(&self) -> Option<Box<Transaction>> {
        match self {
            Request::One(_) | Request::Forgotten(..) => None,
            Request::Together(commands) => Some(Box::new(Transaction::new(commands.len()))),
        }
    }

    /// Returns the commands of the request.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'a [&'a [u8]]> {
        let (one, several) = match *self {
            Request::One(args) | Request::Forgotten(args, _) => (Some(args), &[][..]),
            Request::Together(commands) => (None, commands),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// Returns the routing of the request in a cluster.
    pub(crate) fn place(&self) -> Result<Place<'a>, Failure> {
        let mut found = Place::Any;
        for args in self.commands() {
            match (place(args)?, found) {
                (Place::Key(key), Place::Any) => found = Place::Key(key),
                (Place::Key(key), Place::Key(first)) if slot(key) != slot(first) => {
                    return Err(Failure::Engine(CROSSING.into()));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The replies of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    commands: usize,
    /// The number of replies that come before that of `EXEC`: one to `MULTI`, and one to each command.
    left: usize,
    /// The first error among them.
    refused: Option<String>,
}

impl Transaction {
    fn new(commands: usize) -> Transaction {
        Transaction { commands, left: commands + 1, refused: None }
    }

    /// Called when the transaction is sent once more, from its start.
    pub(crate) fn again(&mut self) {
        *self = Transaction::new(self.commands);
    }

    /// Processes the next reply. Returns the result of the transaction once it is known.
    pub(crate) fn take(&mut self, reply: Reply) -> Option<Reply> {
        let Some(left) = self.left.checked_sub(1) else {
            return Some(match (reply, self.refused.take()) {
                (Reply::Error(_), Some(first)) => Reply::Error(first),
                (reply, _) => reply,
            });
        };
        self.left = left;
        if let (Reply::Error(text), None) = (reply, &self.refused) {
            self.refused = Some(text);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_the_last_reply_or_the_first_refusal() {
        let simple = |text: &str| Reply::Simple(text.into());
        let error = |text: &str| Reply::Error(text.into());
        let check = |replies: Vec<Reply>, expected: Reply| {
            let mut transaction = Transaction::new(replies.len() - 2);
            for _ in 0..2 {
                let mut given: Vec<Option<Reply>> = replies.iter().map(|r| transaction.take(r.clone())).collect();
                assert_eq!(given.pop(), Some(Some(expected.clone())));
                assert!(given.iter().all(Option::is_none));
                transaction.again();
            }
        };
        let done = Reply::Array(vec![Reply::Integer(1), error("WRONGTYPE")]);
        check(vec![simple("OK"), simple("QUEUED"), simple("QUEUED"), done.clone()], done.clone());
        check(vec![simple("OK"), simple("QUEUED"), error("ERR wrong"), error("EXECABORT")], error("ERR wrong"));
        check(vec![simple("OK"), error("MOVED 1 h:1"), error("ERR wrong"), error("EXECABORT")], error("MOVED 1 h:1"));
        check(vec![simple("OK"), simple("QUEUED"), error("TRYAGAIN")], error("TRYAGAIN"));
    }

    #[test]
    fn it_has_one_slot() {
        let get = |key: &'static [u8]| [&b"GET"[..], key];
        let place = |keys: &[&'static [u8]]| {
            let commands: Vec<[&[u8]; 2]> = keys.iter().map(|key| get(key)).collect();
            let commands: Vec<&[&[u8]]> = commands.iter().map(|command| &command[..]).collect();
            Request::Together(&commands).place().map(|place| match place {
                Place::Key(key) => key.to_vec(),
                Place::Any => Vec::new(),
            })
        };
        assert_eq!(place(&[]), Ok(Vec::new()));
        assert_eq!(place(&[b"a{t}", b"b{t}"]), Ok(b"a{t}".to_vec()));
        assert_eq!(place(&[b"a", b"b"]), Err(Failure::Engine(CROSSING.into())));
        assert!(Request::Together(&[&[b"PING"], &get(b"a"), &[b"SCAN", b"0"]]).place().is_err());
    }
}
