//! Commands about streams: `show sess`, `shutdown session`, `shutdown sessions server`.
//!
//! Streams live on workers; each command goes through every worker's streams a batch at a time and waits for its
//! client in between. A stream that begins meanwhile may or may not be seen.

use std::time::Duration;

use sluicegate_config::model::{ProxyKind, StatsLevel};

use super::catalogue::{Call, Command, Run};
use super::change::{backend_named, server};
use super::protocol::Answer;
use crate::stream::{Detail, Killer, PATIENCE, Selection, Which, end_streams};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["show", "sess"],
        arguments: "[help|<id>|all] [opts...]",
        help: "report the list of current streams or dump this exact stream",
        level: StatsLevel::Operator,
        run: Run::Long(show_sess),
    },
    Command {
        name: &["shutdown", "session"],
        arguments: "[id]",
        help: "kill a specific session",
        level: StatsLevel::Admin,
        run: Run::Long(shutdown_session),
    },
    Command {
        name: &["shutdown", "sessions", "server"],
        arguments: "<bk>/<srv>",
        help: "kill sessions on a server",
        level: StatsLevel::Admin,
        run: Run::Long(shutdown_sessions),
    },
];

/// Parses a stream's number as `show sess` prints it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

const USAGE: &str = "Usage: show sess [<id> | all | help] [<options>*]\nDumps active streams. Selectors:\n   <id>         only this \
     stream (0x...), in large format\n   all          all streams, in large format\n   help         this message\nOptions:\n   \
     older <age>  only streams older than <age> seconds\n   server <b/s> only streams of this server\n   backend <b>  only \
     streams of this backend\n   frontend <f> only streams of this frontend\n   susp         only streams in a state that can't \
     be\nWithout a selector, streams take a line each.";

/// Parses the words of `show sess`; `Err` is the error message.
fn selection(call: &Call<'_>) -> Result<(Selection, Detail, bool), String> {
    let mut selected = Selection { which: Which::Every, min_age: Duration::ZERO, frontend: None, backend: None };
    let (mut detail, mut suspicious, mut next) = (Detail::Line, false, 1);
    match call.arg(0) {
        "" => {}
        "all" => detail = Detail::All,
        "help" => return Err(USAGE.to_owned()),
        "older" => (detail, next) = (Detail::All, 0),
        word => match number(word) {
            Some(id) => (selected.which, detail) = (Which::Id(id), Detail::All),
            None => next = 0,
        },
    }
    let running = call.running;
    let mut bound = false;
    while next < call.args.len() {
        let (word, value) = (call.arg(next), call.arg(next + 1));
        next += 2;
        if matches!(word, "server" | "backend" | "frontend") && std::mem::replace(&mut bound, true) {
            return Err("Only one of backend, frontend or server may be set.".to_owned());
        }
        match (word, value) {
            ("susp", _) => {
                (suspicious, next) = (true, next - 1);
            }
            ("older", "") => return Err("Expects a minimum age (in seconds by default).".to_owned()),
            ("older", age) => selected.min_age = super::general::delay(age).ok_or("Invalid age.")?,
            ("server", "") => return Err("Missing server name (<backend>/<server>).".to_owned()),
            ("server", place) => {
                let (backend, name) = place.split_once('/').ok_or("Require 'backend/server'.")?;
                let server = backend_named(running, backend).ok_or("No such backend.")?.server(name);
                selected.which = Which::OfServer(server.ok_or("No such server.")?.shared.life);
            }
            ("backend", "") => return Err("Missing backend name.".to_owned()),
            ("backend", name) => {
                let backend = backend_named(running, name).ok_or("No such backend.")?;
                selected.backend = Some(backend.config.name.clone());
            }
            ("frontend", "") => return Err("Missing frontend name.".to_owned()),
            ("frontend", name) => {
                let mut frontends = running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Backend);
                let frontend = frontends.find(|proxy| &*proxy.config.name == name).ok_or("No such frontend.")?;
                selected.frontend = Some(frontend.config.name.clone());
            }
            _ => return Err(format!("Unsupported option '{word}', try 'help' for more info.")),
        }
    }
    Ok((selected, detail, suspicious))
}

fn show_sess(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let (selected, detail, suspicious) = match selection(&call) {
            Ok(read) => read,
            Err(message) => {
                call.say(message);
                return Ok(());
            }
        };
        // No stream here is in an impossible state, which is what `suspicious` selects.
        if suspicious {
            return Ok(());
        }
        let running = call.running.clone();
        let mut count = 0;
        for worker in 0..running.process.workers.len() {
            let mut next = Some(0);
            while let Some(from) = next {
                let selected = selected.clone();
                let job =
                    running.process.on_worker(worker, move |worker| worker.describe_streams(&selected, detail, from));
                let Ok(Some(found)) = tokio::time::timeout(PATIENCE, job).await else { break };
                count += found.count;
                call.out.push(found.text);
                call.out.drain().await?;
                next = found.next;
            }
        }
        if matches!(selected.which, Which::Id(_)) && count == 0 {
            call.say("Session not found.");
        }
        Ok(())
    })
}

fn shutdown_session(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        match number(call.arg(0)) {
            None => call.say("Session pointer expected (use 'show sess')."),
            Some(id) => {
                if end_streams(call.running, Which::Id(id), Killer::Admin).await == 0 {
                    call.say("No such session (use 'show sess').");
                }
            }
        }
        Ok(())
    })
}

fn shutdown_sessions(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        if let Some((_, server)) = server(&mut call) {
            end_streams(call.running, Which::OfServer(server.shared.life), Killer::Admin).await;
        }
        Ok(())
    })
}
