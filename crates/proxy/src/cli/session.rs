//! Commands about streams: `show sess`, `shutdown session`, `shutdown sessions server`.
//!
//! Streams live on workers; each command goes through every worker's streams a batch at a time and waits for its
//! client in between. A stream that begins meanwhile may or may not be seen.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use super::change::server;
use super::protocol::Answer;
use crate::running::Running;
use crate::server::ServerShared;
use crate::stream::{Detail, Killer, Which};

/// How long a worker may be busy before its streams are left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// The theme's rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["show", "sess"],
        arguments: "[all|<id>]",
        help: "report the list of current sessions or dump this exact session",
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

/// A stream's number, as `show sess` prints it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn show_sess(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let (which, detail) = match call.arg(0) {
            "" => (Which::Every, Detail::Line),
            "all" => (Which::Every, Detail::All),
            word => match number(word) {
                Some(id) => (Which::Id(id), Detail::All),
                None => {
                    call.say("Session not found.");
                    return Ok(());
                }
            },
        };
        let running = call.running.clone();
        let mut count = 0;
        for worker in 0..running.process.workers.len() {
            let mut next = Some(0);
            while let Some(from) = next {
                let job = running.process.on_worker(worker, move |worker| worker.describe_streams(which, detail, from));
                let Ok(Some(found)) = tokio::time::timeout(PATIENCE, job).await else { break };
                count += found.count;
                call.out.push(found.text);
                call.out.drain().await?;
                next = found.next;
            }
        }
        if matches!(which, Which::Id(_)) && count == 0 {
            call.say("Session not found.");
        }
        Ok(())
    })
}

/// Has all workers end the streams of a server, some time soon.
pub(crate) fn shut_sessions(running: &Arc<Running>, server: &ServerShared, killer: Killer) {
    let (running, which) = (running.clone(), Which::OfServer(server.life));
    // Whoever changes servers does so within a runtime; without one there are no streams either.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { end(&running, which, killer).await });
    }
}

/// Ends streams on all workers; gives how many.
pub(crate) async fn end(running: &Running, which: Which, killer: Killer) -> usize {
    let mut count = 0;
    for worker in 0..running.process.workers.len() {
        let mut next = Some(0);
        while let Some(from) = next {
            let job = running.process.on_worker(worker, move |worker| worker.end_streams(which, killer, from));
            let Ok(Some(found)) = tokio::time::timeout(PATIENCE, job).await else { break };
            count += found.count;
            next = found.next;
        }
    }
    count
}

fn shutdown_session(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        match number(call.arg(0)) {
            None => call.say("Session pointer expected (use 'show sess')."),
            Some(id) => {
                if end(call.running, Which::Id(id), Killer::Admin).await == 0 {
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
            end(call.running, Which::OfServer(server.shared.life), Killer::Admin).await;
        }
        Ok(())
    })
}
