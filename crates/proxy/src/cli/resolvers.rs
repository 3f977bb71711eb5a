//! Commands about names that are resolved while the process runs.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "resolvers"],
    arguments: "[id]",
    help: "dumps counters from all resolvers section and associated name servers",
    level: StatsLevel::User,
    run: Run::Now(show_resolvers),
}];

fn show_resolvers(call: &mut Call<'_>) {
    let directory = call.running.directory.clone();
    let asked = call.arg(0).to_owned();
    if !asked.is_empty() && directory.resolver(&asked).is_none() {
        return call.say("Can't find that resolvers section");
    }
    let mut text = String::new();
    let found = directory.resolvers.iter().filter(|resolver| asked.is_empty() || *asked == *resolver.config.name);
    for resolver in found {
        // Writing to a string can't fail.
        let _ = writeln!(text, "Resolvers section {}", resolver.config.name);
        for (server, counters) in resolver.config.nameservers.iter().zip(&resolver.counters) {
            let _ = writeln!(text, " nameserver {}:", server.name);
            for (name, counter) in [
                ("sent", Some(&counters.sent)),
                ("snd_error", Some(&counters.snd_error)),
                ("valid", Some(&counters.valid)),
                ("update", Some(&counters.update)),
                // HAProxy never increments the two counters without a value.
                ("cname", None),
                ("cname_error", Some(&counters.cname_error)),
                ("any_err", Some(&counters.any_err)),
                ("nx", Some(&counters.nx)),
                ("timeout", None),
                ("refused", Some(&counters.refused)),
                ("other", Some(&counters.other)),
                ("invalid", Some(&counters.invalid)),
                ("too_big", Some(&counters.too_big)),
                ("truncated", Some(&counters.truncated)),
                ("outdated", Some(&counters.outdated)),
            ] {
                let value = counter.map_or(0, |counter| counter.load(Ordering::Relaxed));
                let _ = writeln!(text, "  {:<13}{value}", format!("{name}:"));
            }
        }
    }
    call.out.push(text);
}
