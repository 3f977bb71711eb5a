//! `show limits`, `show top`, `clear limit`.

use std::fmt::Write as _;
use std::sync::Arc;

use sluicegate_config::model::StatsLevel;
use sluicegate_wire::reply::Reply;

use super::catalogue::{Call, Command, Run};
use crate::limit::Limit;
use crate::rule::shown;

/// The number of keys that `show top` shows without an argument.
const SHOWN: usize = 10;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["clear", "limit"],
        arguments: "<name> key <k>",
        help: "forget what a limit has counted of a key",
        level: StatsLevel::Operator,
        run: Run::Long(|call| Box::pin(clear(call))),
    },
    Command {
        name: &["show", "limits"],
        arguments: "[name]",
        help: "report the limits of rules, and what became of requests",
        level: StatsLevel::User,
        run: Run::Now(show),
    },
    Command {
        name: &["show", "top"],
        arguments: "<limit> [<count>]",
        help: "report the keys that a limit was asked for most (10)",
        level: StatsLevel::User,
        run: Run::Now(top),
    },
];

const UNKNOWN: &str = "Can't find that limit";

fn named(call: &Call<'_>) -> Option<Arc<Limit>> {
    let name = call.arg(0);
    call.running.directory.limits.iter().find(|limit| *limit.config.name == *name).cloned()
}

fn show(call: &mut Call<'_>) {
    let asked = call.arg(0).to_owned();
    let mut text = String::new();
    for limit in call.running.directory.limits.iter().filter(|limit| asked.is_empty() || *limit.config.name == asked) {
        let (config, counts) = (&limit.config, limit.counts());
        // Writing to a string can't fail.
        let _ = writeln!(text, "# limit: {}, {}, store: {}", config.name, config.kind, config.store);
        let _ = writeln!(
            text,
            "allowed={} near={} denied={} shadowed={} failed={} local={}\n",
            counts.allowed, counts.near, counts.denied, counts.shadowed, counts.failed, counts.local
        );
    }
    if text.is_empty() && !asked.is_empty() {
        return call.say(UNKNOWN);
    }
    call.out.push(text);
}

fn top(call: &mut Call<'_>) {
    let Some(limit) = named(call) else { return call.say(UNKNOWN) };
    let count = match call.arg(1) {
        "" => SHOWN,
        word => match word.parse() {
            Ok(count) => count,
            Err(_) => return call.say("A number of keys is expected"),
        },
    };
    let mut text = String::new();
    for heavy in limit.top().iter().take(count) {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "requests={} denied={} error={} key={}",
            heavy.requests,
            heavy.denied,
            heavy.error,
            shown(&heavy.key, heavy.key.len())
        );
    }
    call.out.push(text);
}

async fn clear(mut call: Call<'_>) -> std::io::Result<()> {
    let Some(limit) = named(&call) else {
        call.say(UNKNOWN);
        return Ok(());
    };
    let key = call.args.get(2).cloned().unwrap_or_default();
    if call.arg(1) != "key" || key.is_empty() {
        call.say("Required arguments: <name> key <k>");
        return Ok(());
    }
    let stored = limit.stored_key(&key);
    let mut removed = 0;
    for store in limit.stores() {
        match store.start(0, &[b"DEL", &stored]).finish().await {
            Reply::Integer(count) => removed += count,
            Reply::Error(reason) => call.say(format!("The key can't be cleared: {reason}")),
            _ => {}
        }
    }
    limit.forget(&key);
    if removed == 0 {
        call.say("Nothing is counted of that key");
    }
    Ok(())
}
