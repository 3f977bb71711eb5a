//! The command about `peers` sections.

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use crate::peers::show;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "peers"],
    arguments: "[dict|-] [section]",
    help: "dump some information about all the peers or this peers section",
    level: StatsLevel::User,
    run: Run::Now(show_peers),
}];

fn show_peers(call: &mut Call<'_>) {
    let running = call.running.clone();
    let (with_names, name) = match call.arg(0) {
        "dict" => (true, call.arg(1)),
        // A section may be called 'dict'.
        "-" => (false, call.arg(1)),
        name => (false, name),
    };
    let found: Vec<_> =
        running.peers.iter().filter(|section| name.is_empty() || **section.state.name() == *name).collect();
    if found.is_empty() && !name.is_empty() {
        return call.say("No such peers");
    }
    let mut text = String::new();
    // HAProxy lists the last one first.
    for (at, section) in found.iter().rev().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        show::section(section, with_names, &mut text);
    }
    call.out.push(text);
}
