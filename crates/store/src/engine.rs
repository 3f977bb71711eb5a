//! The store as rules and scripts call it: a function that returns a value.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sluicegate_wire::engine::{self as wire_engine, Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyBuilder;
use smallvec::SmallVec;

use crate::behalf::Behalf;
use crate::catalogue::Handle;
use crate::catalogue::{CommandSpec, Detached, Flags, Guard, Handler};
use crate::execute::Origin;
use crate::multi_lock::{COMMANDS_MAX, Plan, suits};
use crate::owned::Finished;
use crate::owned::ReplyForm;
use crate::park::Parked;
use crate::refused::FAILED;
use crate::{Inner, Store};

impl Engine for Store {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        let spec = match self.0.rows.resolve(args) {
            Ok(spec) => spec,
            Err(text) => return Started::Done(Reply::Error(String::from_utf8_lossy(&text).into_owned())),
        };
        if let Some(reply) = refused(&self.0, spec).or_else(|| unrun(spec, args)) {
            return Started::Done(reply);
        }
        match self.run(spec, db, args, None) {
            Ok(reply) => Started::Done(reply),
            Err(mut parked) => Started::Pending(Box::pin(std::future::poll_fn(move |context| {
                parked.poll_finished(context).map(as_value)
            }))),
        }
    }

    fn together(&self, _: wire_engine::Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        self.run_together(db, commands).map(Started::Done)
    }
}

/// Returns the reply to a rule or script if its command is refused because the data set is being loaded, or could not be
/// saved.
#[inline]
pub(crate) fn refused(inner: &Inner, spec: &CommandSpec) -> Option<Reply> {
    let refusal = if inner.loading.refuses_some() { spec.refusal_inside(&inner.loading) } else { None };
    refusal.map(|text| Reply::Error(text.into()))
}

/// Returns the reply that a rule or script gets without the command being run: one that needs no connection, or an
/// error.
pub(crate) fn unrun(spec: &CommandSpec, args: &[&[u8]]) -> Option<Reply> {
    if let Handler::Connection(command) = spec.handler {
        return Some(without_connection(command, args));
    }
    spec.blocking.is_some_and(|blocking| blocking.waits(args)).then(|| {
        let name = spec.name.to_ascii_uppercase();
        Reply::Error(format!(
            "ERR {name} is not allowed here: a rule or script must not wait for other clients, use the store's bind"
        ))
    })
}

/// Returns the reply of a command that was called for a value.
pub(crate) fn as_value(finished: Finished) -> Reply {
    match finished {
        Finished::Value(reply) => reply,
        Finished::Wire(_) => Reply::Error("ERR internal error: an encoded reply".into()),
    }
}

impl Store {
    /// Runs a command for a rule or script. Returns its reply, or the pending command.
    pub(crate) fn run(
        &self,
        spec: &'static CommandSpec,
        db: u32,
        args: &[&[u8]],
        guard: Option<&Arc<dyn Guard>>,
    ) -> Result<Reply, Parked> {
        let mut reply = ReplyBuilder::new();
        let origin = Origin { db, guard, ..Origin::default() };
        // A panic must not unwind through the frames of an interpreter. No partial result is visible afterwards: guards
        // unlock the stripes, and the partial reply is dropped.
        let mut parked = None;
        let run = AssertUnwindSafe(|| {
            parked = self.0.start_here(&self.0, spec, args, origin, ReplyForm::Value, &mut reply);
        });
        match (catch_unwind(run), parked) {
            (Err(_), _) => Ok(Reply::Error(FAILED.into())),
            (Ok(()), None) => Ok(reply.finish()),
            (Ok(()), Some(parked)) => Err(parked),
        }
    }

    /// Runs a few cheap commands while the locks of all their stripes are held, as EXEC does. Returns [`None`], without
    /// any effect, if one of them is not that cheap, is refused, or meets a held key.
    fn run_together(&self, db: u32, commands: &[&[&[u8]]]) -> Option<Reply> {
        let inner = &*self.0;
        if commands.len() > COMMANDS_MAX || db >= inner.keyspace.databases() {
            return None;
        }
        let mut plan = Plan::new();
        let mut handles: SmallVec<[(Handle, &'static CommandSpec); 8]> = SmallVec::new();
        for words in commands {
            let spec = inner.rows.resolve(words).ok()?;
            if inner.loading.refuses_some() && spec.refusal_inside(&inner.loading).is_some() {
                return None;
            }
            let Handler::Keyspace(handle) = spec.handler else { return None };
            let is_full = spec.flags.has(Flags::DENYOOM) && inner.memory.is_over();
            if is_full || !suits(spec, words) || !plan.add(inner, spec, words, db) {
                return None;
            }
            handles.push((handle, spec));
        }
        let (replies, ready) = {
            let pass = inner.gate.enter();
            if handles.iter().any(|(_, spec)| inner.comes_late(spec, Behalf::CLIENT)) {
                return None;
            }
            let mut ctx = plan.lock(inner, &pass)?;
            let mut replies = Vec::with_capacity(commands.len());
            for (index, (words, (handle, spec))) in commands.iter().zip(handles).enumerate() {
                // A panic ends only its own command; the others still run.
                let reply = catch_unwind(AssertUnwindSafe(|| {
                    let mut reply = ReplyBuilder::new();
                    plan.turn_to(index, &mut ctx, words, db);
                    handle(&mut ctx, &mut reply);
                    ctx.conclude(|| spec.recorded());
                    reply.finish()
                }));
                replies.push(reply.unwrap_or_else(|_| Reply::Error(FAILED.into())));
            }
            (replies, Plan::unlock(inner, ctx))
        };
        if let Some(ready) = ready {
            inner.serve_and_end(*ready);
        }
        Some(Reply::Array(replies))
    }
}

/// Returns the reply to a rule or script that calls a command of the server: that of the few commands that need no
/// connection, or an error that names the alternative.
pub(crate) fn without_connection(command: Detached, args: &[&[u8]]) -> Reply {
    let refuse = |text: &str| Reply::Error(format!("ERR {text}"));
    match command {
        Detached::Replies(handle) => {
            let mut reply = ReplyBuilder::new();
            handle(args, &mut reply);
            reply.finish()
        }
        Detached::Selects => {
            refuse("SELECT is not allowed here: open the store with its database, as in core.redis(name, {db=1})")
        }
        Detached::Needless => {
            refuse("AUTH and HELLO are not needed here: a rule or script is already inside the store")
        }
        Detached::Server => {
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
    fn cheap_commands_are_done_together_and_others_are_left_to_a_connection() {
        let store = Store::new(StoreOptions::default());
        let together = |lines: &[&str]| {
            let words: Vec<Vec<&[u8]>> =
                lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
            let commands: Vec<&[&[u8]]> = words.iter().map(Vec::as_slice).collect();
            store.together(&String::new, 1, &commands).map(|started| match started {
                Started::Done(reply) => reply,
                Started::Pending(_) => panic!("{lines:?} wait"),
            })
        };
        let replies = together(&["SET k 1", "INCR k", "LPUSH k x", "GET none"]).expect("they are cheap");
        let Reply::Array(replies) = replies else { panic!("{replies:?}") };
        assert_eq!(replies[..2], [Reply::Simple("OK".into()), Reply::Integer(2)]);
        assert!(matches!(&replies[2], Reply::Error(text) if text.starts_with("WRONGTYPE")));
        assert_eq!(replies[3], Reply::Null);
        assert_eq!(together(&["INCR k"]), Some(Reply::Array(vec![Reply::Integer(3)])));
        for other in ["FLUSHALL", "GET", "NOPE", "PING", "EVAL return(1) 0", "SORT l", "SELECT 2"] {
            assert_eq!(together(&["INCR k", other]), None, "{other}");
        }
        assert_eq!(together(&["INCR k"; COMMANDS_MAX + 1]), None);
        assert_eq!(together(&["INCR k"]), Some(Reply::Array(vec![Reply::Integer(4)])));
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
