//! MEMORY: the memory of keys and of the store.
//!
//! `USAGE` is exact, because every value knows its bytes: the entry's block with its rounding, the value's memory
//! outside of it, and the key's share of its stripe's table. `SAMPLES` is accepted and ignored.

use std::sync::atomic::Ordering;

use sluicegate_wire::resp::ReplySink;

use super::{Refused, SYNTAX, help, integer, is, or_error};
use crate::catalogue::{CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::keyspace::STRIPE_BYTES;

fn usage(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut options = words[3..].iter();
        while let Some(option) = options.next() {
            match options.next() {
                Some(samples) if is(option, "samples") => {
                    if integer(samples)? < 0 {
                        return Err(Refused::from(SYNTAX));
                    }
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        match ctx.bytes_of(0) {
            Some(bytes) => out.integer(bytes as i64),
            None => out.null(),
        }
        Ok(())
    })();
    or_error(result, out);
}

/// The memory of one database.
#[derive(Default)]
struct Used {
    index: u32,
    keys: u64,
    /// Bytes of entries, values and tables.
    bytes: u64,
    /// Bytes of tables alone.
    tables: u64,
    stripes: u64,
}

/// Returns the databases that exist; tables are queried one stripe at a time.
fn used(ctx: &Ctx<'_>) -> Vec<Used> {
    let mut all = Vec::new();
    for index in 0..ctx.inner.keyspace.databases() {
        let mut used = Used { index, ..Used::default() };
        let mut stripe = 0;
        while let Some(db) = ctx.inner.keyspace.db(ctx.pass, index)
            && stripe < db.stripes()
        {
            used.bytes += db.figures[stripe].bytes.load(Ordering::Relaxed) as u64;
            used.tables += db.lock(stripe).table.bytes() as u64;
            used.keys = db.keys();
            used.stripes = db.stripes() as u64;
            stripe += 1;
            // SAFETY: the database is looked up again in each round.
            unsafe { ctx.pass.give_way() };
        }
        if stripe > 0 {
            all.push(used);
        }
    }
    all
}

/// Bytes of the process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: sysconf only reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0) * u64::try_from(page).unwrap_or(4096)
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A figure of STATS.
enum Figure {
    Bytes(u64),
    Ratio(f64),
    /// Bytes of the tables of a database.
    Database(u64),
}

fn stats(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let databases = used(ctx);
    let sum = |of: fn(&Used) -> u64| databases.iter().map(of).sum::<u64>();
    let (keys, tables, startup) = (sum(|db| db.keys), sum(|db| db.tables), sum(|db| db.stripes) * STRIPE_BYTES as u64);
    let outside = ctx.inner.memory.outside();
    let scripts = ctx.inner.scripts.usage();
    let clients = ctx.inner.memory.clients();
    let total = sum(|db| db.bytes) + startup + outside;
    let peak = ctx.inner.memory.note_peak(total);
    let overhead = startup + outside + tables;
    let dataset = total.saturating_sub(overhead);
    let rss = resident();
    use Figure::{Bytes, Database, Ratio};
    let mut figures: Vec<(String, Figure)> = Vec::new();
    let mut add = |name: &str, figure: Figure| figures.push((name.to_owned(), figure));
    add("peak.allocated", Bytes(peak));
    add("total.allocated", Bytes(total));
    add("startup.allocated", Bytes(startup));
    for absent in ["replication.backlog", "clients.slaves"] {
        add(absent, Bytes(0));
    }
    add("clients.normal", Bytes(clients));
    for absent in ["cluster.links", "aof.buffer"] {
        add(absent, Bytes(0));
    }
    // As in Redis: the known scripts, without the interpreters.
    add("lua.caches", Bytes(scripts.script_bytes as u64));
    add("functions.caches", Bytes(scripts.library_bytes as u64));
    for db in databases.iter().filter(|db| db.keys > 0) {
        add(&format!("db.{}", db.index), Database(db.tables));
    }
    // Tables grow in one step.
    add("overhead.db.hashtable.lut", Bytes(tables));
    add("overhead.db.hashtable.rehashing", Bytes(0));
    add("overhead.total", Bytes(overhead));
    add("db.dict.rehashing.count", Bytes(0));
    add("keys.count", Bytes(keys));
    add("keys.bytes-per-key", Bytes(total.saturating_sub(startup).checked_div(keys).unwrap_or(0)));
    add("dataset.bytes", Bytes(dataset));
    add("dataset.percentage", Ratio(100.0 * share(dataset, total.saturating_sub(startup))));
    add("peak.percentage", Ratio(100.0 * share(total, peak)));
    // The allocator has no figures of its own: the memory it has from the system is the resident memory.
    add("allocator.allocated", Bytes(total));
    add("allocator.active", Bytes(rss));
    add("allocator.resident", Bytes(rss));
    add("allocator.muzzy", Bytes(0));
    add("allocator-fragmentation.ratio", Ratio(share(rss, total)));
    add("allocator-fragmentation.bytes", Bytes(rss.saturating_sub(total)));
    for (name, figure) in [("allocator-rss", Ratio(1.0)), ("rss-overhead", Ratio(1.0))] {
        add(&format!("{name}.ratio"), figure);
        add(&format!("{name}.bytes"), Bytes(0));
    }
    add("fragmentation", Ratio(share(rss, total)));
    add("fragmentation.bytes", Bytes(rss.saturating_sub(total)));
    out.map(figures.len());
    for (name, figure) in figures {
        out.bulk(name.as_bytes());
        match figure {
            Bytes(bytes) => out.integer(bytes as i64),
            Ratio(ratio) => out.double(ratio),
            Database(tables) => {
                out.map(3);
                out.bulk(b"overhead.hashtable.main");
                out.integer(tables as i64);
                // Expiries are stored in the entries, and there are no slots.
                for absent in ["overhead.hashtable.expires", "overhead.hashtable.slot-to-keys"] {
                    out.bulk(absent.as_bytes());
                    out.integer(0);
                }
            }
        }
    }
}

/// Below this number of bytes, there is nothing to report.
const DOCTOR_MIN: u64 = 5 << 20;

fn doctor(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let databases = used(ctx);
    let total: u64 = databases.iter().map(|db| db.bytes + db.stripes * STRIPE_BYTES as u64).sum();
    let total = total + ctx.inner.memory.outside();
    let (peak, rss) = (ctx.inner.memory.note_peak(total), resident());
    let mut text = String::new();
    if total < DOCTOR_MIN {
        text += "The store is nearly empty: too little to tell from.\n";
    } else {
        if peak > total + total / 2 {
            text += "Peak: more than half as much again was in use once. What the process keeps of it shows as fragmentation.\n";
        }
        if rss > total + total / 2 {
            text += "Fragmentation: the process has half as much memory again as is in use.\n";
        }
        if ctx.inner.memory.clients() > total / 2 {
            text += "Clients: more than half of what is in use is theirs. CLIENT LIST shows whose it is (tot-mem).\n";
        }
        let keys: u64 = databases.iter().map(|db| db.keys).sum();
        let tables: u64 = databases.iter().map(|db| db.tables).sum();
        if keys > 0 && tables / keys > 64 {
            text +=
                "Tables: there are few keys for tables of this size; they shrink when keys are deleted, not before.\n";
        }
        if text.is_empty() {
            text += "Nothing is wrong with the memory of this store.\n";
        }
    }
    out.verbatim(*b"txt", text.as_bytes());
}

fn malloc_stats(_ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    out.bulk(b"Stats not supported for the current allocator");
}

fn purge(_ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    // The allocator returns unused pages by itself; Redis gives the same reply with an allocator that cannot be asked
    // to.
    out.ok();
}

fn memory_help(_ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let lines = [
        "DOCTOR",
        "    Return memory problems reports.",
        "MALLOC-STATS",
        "    Return internal statistics report from the memory allocator.",
        "PURGE",
        "    Attempt to purge dirty pages for reclamation by the allocator.",
        "STATS",
        "    Return information about the memory usage of the server.",
        "USAGE <key> [SAMPLES <count>]",
        "    Return memory in bytes used by <key> and its value. Nested values are",
        "    sampled up to <count> times (default: 5, 0 means sample all).",
    ];
    help("MEMORY", &lines, out);
}

const fn sub(name: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        name,
        arity: 2,
        since: "4.0.0",
        group: "server",
        summary,
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "memory",
    arity: -2,
    since: "4.0.0",
    group: "server",
    summary: "A container for memory diagnostics commands.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        sub("doctor", "Outputs a memory problems report.", doctor),
        CommandSpec {
            flags: Flags::LOADING.and(Flags::STALE),
            ..sub("help", "Returns helpful text about the different subcommands.", memory_help)
        },
        sub("malloc-stats", "Returns the allocator statistics.", malloc_stats),
        sub("purge", "Asks the allocator to release memory. Refused: it does so by itself.", purge),
        sub("stats", "Returns details about memory usage.", stats),
        CommandSpec {
            arity: -3,
            flags: Flags::READONLY,
            keys: KeyRule::Range { first: 2, last: 2, step: 1 },
            complexity: "O(1)",
            ..sub("usage", "Estimates the memory usage of a key.", usage)
        },
    ],
    ..CommandSpec::EMPTY
}];
