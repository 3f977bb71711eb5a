//! `show stores`: the figures of the process's own stores.

use std::fmt::Write as _;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use crate::stats::named_figures;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "stores"],
    arguments: "[name]",
    help: "report keys, memory, commands, files and replicas of stores",
    level: StatsLevel::User,
    run: Run::Now(show_stores),
}];

fn show_stores(call: &mut Call<'_>) {
    let asked = call.arg(0).to_owned();
    let running = call.running.clone();
    let mut stores = running.told(|engine| engine.figures());
    stores.retain(|(name, _)| asked.is_empty() || *name == asked);
    if stores.is_empty() && !asked.is_empty() {
        return call.say("Can't find that store");
    }
    let mut text = String::new();
    for (name, figures) in &stores {
        // Writing to a string can't fail.
        let _ = writeln!(text, "# store: {name}");
        for (figure, value) in named_figures(figures) {
            let _ = writeln!(text, "{figure}: {value}");
        }
        text.push('\n');
    }
    call.out.push(text);
}
