//! Commands about caches.

use std::fmt::Write as _;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "cache"],
    arguments: "",
    help: "show cache status",
    level: StatsLevel::Admin,
    run: Run::Now(show_cache),
}];

/// The maximum number of responses of a cache that are listed.
const LISTED_MAX: usize = 100_000;

fn show_cache(call: &mut Call<'_>) {
    let directory = call.running.directory.clone();
    let mut text = String::new();
    // Writing to a string does not fail.
    for (index, cache) in directory.caches.iter().enumerate() {
        let now = crate::date::unix_seconds();
        let (mut rows, mut count) = (String::new(), 0);
        let available = cache.list(|key, entry, users| {
            count += 1;
            if count > LISTED_MAX {
                return;
            }
            let (number, hash, left) = (entry.number, key.number(), entry.expires - now);
            let _ = write!(rows, "0x{number:x} hash:{hash} vary:0x");
            entry.vary.append(&mut rows);
            let (size, blocks) = (entry.size, entry.blocks);
            let _ = writeln!(rows, " size:{size} ({blocks} blocks), refcount:{users}, expire:{left}");
        });
        let (number, name) = (index + 1, &cache.config().name);
        let _ = writeln!(text, "0x{number:x}: {name} (shctx:0x{number:x}, available blocks:{available})");
        text.push_str(&rows);
    }
    call.out.push(text);
}
