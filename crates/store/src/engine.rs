//! The store as rules and scripts call it: a function that returns a value.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyBuilder;

use crate::Store;
use crate::catalogue::{ConnectionCommand, Handler};
use crate::execute::{FAILED, Origin, resolve};
use crate::park::{Finished, ReplyForm};

impl Engine for Store {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        let spec = match resolve(args) {
            Ok(spec) => spec,
            Err(text) => return Started::Done(Reply::Error(String::from_utf8_lossy(&text).into_owned())),
        };
        if let Handler::Connection(command) = spec.handler {
            return Started::Done(without_connection(command, args));
        }
        if spec.blocking.is_some_and(|blocking| blocking.waits(args)) {
            let name = spec.name.to_ascii_uppercase();
            return Started::Done(Reply::Error(format!(
                "ERR {name} is not allowed here: a rule or script must not wait for other clients, use the store's bind"
            )));
        }
        let mut reply = ReplyBuilder::new();
        let origin = Origin { db, client: 0 };
        // A panic must not travel through the frames of an interpreter. Nothing half-done is seen after it: guards
        // unlock the stripes, and the half reply is dropped.
        let started =
            catch_unwind(AssertUnwindSafe(|| self.0.start(&self.0, spec, args, origin, ReplyForm::Value, &mut reply)));
        let Ok(started) = started else { return Started::Done(Reply::Error(FAILED.into())) };
        match started {
            None => Started::Done(reply.finish()),
            Some(mut parked) => Started::Pending(Box::pin(std::future::poll_fn(move |context| {
                parked.poll_finished(context).map(|finished| match finished {
                    Finished::Value(reply) => reply,
                    // Commands started here ask for a value.
                    Finished::Wire(_) => Reply::Error("ERR internal error: an encoded reply".into()),
                })
            }))),
        }
    }
}

/// What a rule or script gets that calls a command of the connection: the few that need none are answered, the others
/// refused with the way to do it.
fn without_connection(command: ConnectionCommand, args: &[&[u8]]) -> Reply {
    let refuse = |text: &str| Reply::Error(format!("ERR {text}"));
    match command {
        ConnectionCommand::Ping => match args.get(1) {
            Some(text) => Reply::Bulk(text.to_vec()),
            None => Reply::Simple("PONG".into()),
        },
        ConnectionCommand::Echo => Reply::Bulk(args.get(1).copied().unwrap_or_default().to_vec()),
        ConnectionCommand::Select => {
            refuse("SELECT is not allowed here: open the store with its database, as in core.redis(name, {db=1})")
        }
        ConnectionCommand::Auth | ConnectionCommand::Hello => {
            refuse("AUTH and HELLO are not needed here: a rule or script is already inside the store")
        }
        _ => {
            let name = String::from_utf8_lossy(args[0]).to_ascii_uppercase();
            refuse(&format!(
                "{name} is not allowed here: it needs a connection of its own, as r:multi(…), r:own(…) and r:subscribe(…) have in Lua"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;

    #[track_caller]
    fn check(store: &Store, command: &str, expected: Reply) {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        match store.start(0, &words) {
            Started::Done(reply) => assert_eq!(reply, expected, "{command}"),
            Started::Pending(_) => panic!("{command} waits"),
        }
    }

    #[test]
    fn replies_are_values() {
        let store = Store::new(StoreOptions::default());
        check(&store, "INCRBY hits 5", Reply::Integer(5));
        check(&store, "GET hits", Reply::Bulk(b"5".to_vec()));
        check(&store, "GET none", Reply::Null);
        check(&store, "MGET hits none", Reply::Array(vec![Reply::Bulk(b"5".to_vec()), Reply::Null]));
        check(&store, "GET", Reply::Error("ERR wrong number of arguments for 'get' command".into()));
        check(&store, "NOPE a", Reply::Error("ERR unknown command 'NOPE', with args beginning with: 'a' ".into()));
    }

    #[test]
    fn databases_are_apart_and_counted() {
        let store = Store::new(StoreOptions::default());
        assert!(matches!(store.start(3, &[b"SET", b"k", b"v"]), Started::Done(Reply::Simple(_))));
        check(&store, "GET k", Reply::Null);
        assert!(matches!(store.start(16, &[b"GET", b"k"]), Started::Done(Reply::Error(_))));
        let stats = store.stats();
        assert_eq!(stats.databases.iter().map(|db| (db.index, db.keys)).collect::<Vec<_>>(), [(3, 1)]);
    }
}
