//! Commands that show the process, its proxies and its servers.

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use super::protocol::Answer;
use crate::running::Running;
use crate::stats::{self, Filter};

/// The theme's rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["show", "info"],
        arguments: "",
        help: "report information about the running process",
        level: StatsLevel::User,
        run: Run::Now(show_info),
    },
    Command {
        name: &["show", "stat"],
        arguments: "[<px> <type> <sid>] [no-maint|up]*",
        help: "report counters for each proxy and server",
        level: StatsLevel::User,
        run: Run::Long(show_stat),
    },
    Command {
        name: &["show", "version"],
        arguments: "",
        help: "show version of the current process",
        level: StatsLevel::User,
        run: Run::Now(|call| call.say(stats::info::VERSION)),
    },
];

fn refuse_formats(call: &mut Call<'_>) -> bool {
    let refused = call.args.iter().find(|word| matches!(&word[..], b"typed" | b"json" | b"desc" | b"float"));
    let Some(word) = refused else { return false };
    let text = format!("Output format '{}' is not available yet.", String::from_utf8_lossy(word));
    call.say(text);
    true
}

fn show_info(call: &mut Call<'_>) {
    if !refuse_formats(call) {
        stats::info::show_info(call.running, call.out.buffer());
    }
}

fn show_stat(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        if refuse_formats(&mut call) {
            return Ok(());
        }
        match filter(call.args, call.running) {
            Ok(filter) => {
                stats::show_stat(call.running, &filter, call.out.buffer());
                call.out.drain().await?;
            }
            Err(message) => call.say(message),
        }
        Ok(())
    })
}

/// `[{<iid>|<proxy>} <type> <sid>] [no-maint] [up]`; -1 stands for any.
fn filter(args: &[Vec<u8>], running: &Running) -> Result<Filter, &'static str> {
    let mut filter = Filter::default();
    let mut flags = args;
    if let [proxy, types, server, rest @ ..] = args
        && let (Some(types), Some(server)) = (number(types), number(server))
    {
        flags = rest;
        filter.proxy = match number(proxy) {
            Some(iid) => u32::try_from(iid).ok(),
            None => {
                let named = running.proxies.iter().find(|known| known.config.name.as_bytes() == proxy);
                Some(named.ok_or("No such proxy.")?.config.uid)
            }
        };
        filter.types = u32::try_from(types).ok();
        filter.server = u32::try_from(server).ok();
    }
    filter.up = flags.iter().any(|word| word == b"up");
    filter.no_maint = flags.iter().any(|word| word == b"no-maint");
    Ok(filter)
}

fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
