//! INFO: information about the server, in Redis's sections and fields.
//!
//! Fields without a meaning here are omitted instead of being invented; `sluicegate_version` is added after
//! `redis_version`. Sums are read without stopping writers, so figures of one reply may be of slightly different
//! moments.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::dispatch::{About, INDEX, Outcome};
use super::{REDIS_VERSION, SLUICEGATE_VERSION};
use super::{persistence, replicas};

/// The maximum age of the resident memory figure.
const RSS_AGE_MAX: Duration = Duration::from_millis(100);

/// A section: its name, whether it belongs to the default reply, and the function that writes its lines.
struct Section {
    name: &'static str,
    title: &'static str,
    is_default: bool,
    write: fn(&About<'_>, &mut String) -> std::fmt::Result,
}

const fn section(
    name: &'static str,
    title: &'static str,
    is_default: bool,
    write: fn(&About<'_>, &mut String) -> std::fmt::Result,
) -> Section {
    Section { name, title, is_default, write }
}

/// In the order in which they are shown.
const SECTIONS: &[Section] = &[
    section("server", "Server", true, server),
    section("clients", "Clients", true, clients),
    section("memory", "Memory", true, memory),
    section("persistence", "Persistence", true, persistence::info),
    section("stats", "Stats", true, stats),
    section("replication", "Replication", true, replicas::info),
    section("cpu", "CPU", true, cpu),
    section("modules", "Modules", true, |_, _| Ok(())),
    section("commandstats", "Commandstats", false, commandstats),
    section("errorstats", "Errorstats", true, errorstats),
    section("latencystats", "Latencystats", false, latencystats),
    section("cluster", "Cluster", true, |_, out| writeln!(out, "cluster_enabled:0")),
    section("keyspace", "Keyspace", true, keyspace),
];

/// `INFO [section…]`.
pub(super) fn info(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let wanted: Vec<Vec<u8>> = args[1..].iter().map(|name| name.to_ascii_lowercase()).collect();
    let asks_for = |name: &str| wanted.iter().any(|word| word == name.as_bytes());
    let everything = asks_for("all") || asks_for("everything");
    let defaults = wanted.is_empty() || asks_for("default");
    let mut text = String::new();
    for section in SECTIONS {
        if everything || (defaults && section.is_default) || asks_for(section.name) {
            if !text.is_empty() {
                text.push('\n');
            }
            let _ = writeln!(text, "# {}", section.title);
            // Writing to a string does not fail.
            let _ = (section.write)(about, &mut text);
        }
    }
    out.verbatim(*b"txt", text.replace('\n', "\r\n").as_bytes());
    Outcome::Done
}

fn server(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let server = about.server;
    let uptime_s = server.started.elapsed().as_secs();
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    writeln!(out, "redis_version:{REDIS_VERSION}")?;
    writeln!(out, "sluicegate_version:{SLUICEGATE_VERSION}")?;
    writeln!(out, "redis_git_sha1:00000000")?;
    writeln!(out, "redis_git_dirty:0")?;
    writeln!(out, "redis_build_id:{SLUICEGATE_VERSION}")?;
    writeln!(out, "redis_mode:standalone")?;
    writeln!(out, "os:{}", operating_system())?;
    writeln!(out, "arch_bits:64")?;
    writeln!(out, "monotonic_clock:POSIX clock_gettime")?;
    writeln!(out, "multiplexing_api:epoll")?;
    writeln!(out, "atomicvar_api:c11-builtin")?;
    // The value of a redis-server built by another compiler.
    writeln!(out, "gcc_version:0.0.0")?;
    writeln!(out, "process_id:{}", std::process::id())?;
    writeln!(out, "process_supervised:{}", about.options.process.supervised)?;
    writeln!(out, "run_id:{}", server.run_id)?;
    writeln!(out, "tcp_port:{}", server.tcp_port())?;
    writeln!(out, "server_time_usec:{now_us}")?;
    writeln!(out, "uptime_in_seconds:{uptime_s}")?;
    writeln!(out, "uptime_in_days:{}", uptime_s / 86_400)?;
    // The number of expiry cycles per second.
    writeln!(out, "hz:10")?;
    writeln!(out, "configured_hz:10")?;
    writeln!(out, "lru_clock:{}", (now_us / 1_000_000) & 0xff_ffff)?;
    writeln!(out, "executable:{}", executable())?;
    writeln!(out, "config_file:{}", server.config_file.get().map_or("", |path| path))?;
    writeln!(out, "io_threads_active:{}", u8::from(server.workers.lock().running.len() > 1))?;
    for (at, listener) in server.listeners.lock().iter().enumerate() {
        writeln!(out, "listener{at}:{listener}")?;
    }
    Ok(())
}

/// Returns system, release and machine, as in `uname`.
fn operating_system() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        format!("Linux {} {}", release.trim(), std::env::consts::ARCH)
    })
}

/// Returns the program's file, with its name at the first query.
fn executable() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| std::env::current_exe().unwrap_or_default().display().to_string())
}

fn clients(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let server = about.server;
    let clients = server.clients.matching(&super::client::Filter::default());
    let (mut blocked, mut timed, mut listening, mut input_max, mut output_max) = (0, 0, 0, 0, 0);
    for client in &clients {
        timed += u64::from(client.blocked.lock().as_ref().is_some_and(|waiter| waiter.deadline().is_some()));
        listening += u64::from(client.listening.is_any());
        let activity = client.activity.lock();
        blocked += u64::from(activity.is_blocked);
        input_max = input_max.max(activity.query);
        output_max = output_max.max(activity.output);
    }
    // As in Redis, a master is a client, and replicas are none.
    let replicas = clients.iter().filter(|client| client.replica.get().is_some()).count();
    let connected = clients.len() - replicas + usize::from(server.store.0.link.is_up());
    writeln!(out, "connected_clients:{connected}")?;
    writeln!(out, "cluster_connections:0")?;
    writeln!(out, "maxclients:{}", about.options.maxclients)?;
    writeln!(out, "client_recent_max_input_buffer:{input_max}")?;
    writeln!(out, "client_recent_max_output_buffer:{output_max}")?;
    writeln!(out, "blocked_clients:{blocked}")?;
    let [tracking, ..] = server.store.0.tracking.counts();
    writeln!(out, "tracking_clients:{tracking}")?;
    let (blocking, on_no_key, watched) = server.store.awaited_keys();
    writeln!(out, "pubsub_clients:{listening}")?;
    writeln!(out, "watching_clients:{}", server.store.0.keyspace.watching.load(Ordering::Relaxed))?;
    writeln!(out, "clients_in_timeout_table:{timed}")?;
    writeln!(out, "total_watched_keys:{watched}")?;
    writeln!(out, "total_blocking_keys:{blocking}")?;
    writeln!(out, "total_blocking_keys_on_nokey:{on_no_key}")
}

fn memory(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let rss = resident_bytes();
    let total = total_memory();
    let used = about.server.store.used_bytes();
    writeln!(out, "used_memory:{used}")?;
    writeln!(out, "used_memory_human:{}", human(used))?;
    let server = about.server;
    let outside = server.store.0.memory.outside();
    let peak = server.peak.fetch_max(used, Ordering::Relaxed).max(used);
    let overhead = server.empty_bytes + outside;
    let dataset = used.saturating_sub(overhead);
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    writeln!(out, "used_memory_peak:{peak}")?;
    writeln!(out, "used_memory_peak_human:{}", human(peak))?;
    writeln!(out, "used_memory_peak_perc:{:.2}%", share(used, peak))?;
    writeln!(out, "used_memory_overhead:{overhead}")?;
    writeln!(out, "used_memory_startup:{}", server.empty_bytes)?;
    writeln!(out, "used_memory_dataset:{dataset}")?;
    writeln!(out, "used_memory_dataset_perc:{:.2}%", share(dataset, used.saturating_sub(server.empty_bytes)))?;
    writeln!(out, "used_memory_rss:{rss}")?;
    writeln!(out, "used_memory_rss_human:{}", human(rss))?;
    writeln!(out, "total_system_memory:{total}")?;
    writeln!(out, "total_system_memory_human:{}", human(total))?;
    let options = about.options;
    writeln!(out, "maxmemory:{}", options.maxmemory)?;
    writeln!(out, "maxmemory_human:{}", human(options.maxmemory))?;
    writeln!(out, "maxmemory_policy:{}", options.maxmemory_policy.name())?;
    writeln!(out, "mem_fragmentation_ratio:{:.2}", rss as f64 / used.max(1) as f64)?;
    let scripts = server.store.0.scripts.usage();
    writeln!(out, "mem_clients_normal:{}", server.store.0.memory.clients())?;
    writeln!(out, "mem_not_counted_for_evict:{}", server.store.0.memory.apart())?;
    writeln!(out, "mem_fragmentation_bytes:{}", rss as i64 - used as i64)?;
    let total = scripts.eval_bytes + scripts.function_bytes;
    let bodies = (scripts.script_bytes + scripts.library_bytes) as u64;
    for (name, bytes) in
        [("used_memory_lua", scripts.eval_bytes), ("used_memory_vm_total", total), ("used_memory_scripts", bodies)]
    {
        writeln!(out, "{name}:{bytes}\n{name}_human:{}", human(bytes))?;
    }
    for (name, value) in [
        ("used_memory_vm_eval", scripts.eval_bytes),
        ("used_memory_scripts_eval", scripts.script_bytes as u64),
        ("used_memory_vm_functions", scripts.function_bytes),
        ("used_memory_functions", scripts.library_bytes as u64),
        ("number_of_cached_scripts", scripts.scripts as u64),
        ("number_of_functions", scripts.functions as u64),
        ("number_of_libraries", scripts.libraries as u64),
    ] {
        writeln!(out, "{name}:{value}")?;
    }
    let told = about.server.store.0.replication.told();
    let replicas = about.server.store.0.replication.visible_replicas();
    let held = told.backlog_len;
    for (name, bytes) in [
        ("mem_overhead_db_hashtable_rehashing", 0),
        ("mem_replication_backlog", told.backlog_len - told.behind_bytes),
        ("mem_total_replication_buffers", held),
        ("mem_clients_slaves", told.behind_bytes + replicas.iter().map(|replica| replica.payload_bytes()).sum::<u64>()),
        ("mem_cluster_links", 0),
        ("mem_aof_buffer", about.server.store.0.appender.state.lock().backlog),
    ] {
        writeln!(out, "{name}:{bytes}")?;
    }
    // The allocator has no fragmentation figures: these are those of a redis-server with the system's allocator.
    let whole = rss.max(1) as f64;
    writeln!(out, "allocator_allocated:{used}\nallocator_active:{rss}\nallocator_resident:{rss}")?;
    writeln!(out, "allocator_frag_ratio:{:.2}", rss as f64 / used.max(1) as f64)?;
    writeln!(out, "allocator_frag_bytes:{}", rss as i64 - used as i64)?;
    for name in ["allocator_rss", "rss_overhead"] {
        writeln!(out, "{name}_ratio:{:.2}\n{name}_bytes:0", rss as f64 / whole)?;
    }
    // No memory has to be moved before it can be returned.
    writeln!(out, "active_defrag_running:0")?;
    let keyspace = &server.store.0.keyspace;
    writeln!(out, "lazyfree_pending_objects:{}", keyspace.discarded_keys())?;
    writeln!(out, "lazyfreed_objects:{}", keyspace.freed.load(Ordering::Relaxed))?;
    writeln!(out, "mem_allocator:mimalloc")
}

/// Returns the resident memory of the process, in bytes: read at most every [`RSS_AGE_MAX`], as by Redis's cron.
fn resident_bytes() -> u64 {
    static LAST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut last = LAST.lock();
    if let Some((at, bytes)) = *last
        && at.elapsed() < RSS_AGE_MAX
    {
        return bytes;
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let bytes = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page_size();
    *last = Some((Instant::now(), bytes));
    bytes
}

fn page_size() -> u64 {
    // SAFETY: sysconf has no memory effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn total_memory() -> u64 {
    // SAFETY: sysconf has no memory effects.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0) * page_size()
}

/// Returns a size in Redis's short form: `1.50M`.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    let unit = (bytes.max(1).ilog2() / 10).min(5) as usize;
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{:.2}{}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}

fn stats(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let server = about.server;
    let totals = server.totals();
    let [commands, input, output, ..] = server.rate.lock().per_second;
    let store = server.store_stats();
    writeln!(out, "total_connections_received:{}", totals.connections)?;
    writeln!(out, "total_commands_processed:{}", totals.commands)?;
    writeln!(out, "instantaneous_ops_per_sec:{}", commands.round())?;
    writeln!(out, "total_net_input_bytes:{}", totals.input_bytes)?;
    writeln!(out, "total_net_output_bytes:{}", totals.output_bytes)?;
    let of_replicas = &server.store.0.replication.figures;
    writeln!(out, "total_net_repl_input_bytes:0")?;
    writeln!(out, "total_net_repl_output_bytes:{}", of_replicas.output_bytes.load(Ordering::Relaxed))?;
    writeln!(out, "instantaneous_input_kbps:{:.2}", input / 1024.0)?;
    writeln!(out, "instantaneous_output_kbps:{:.2}", output / 1024.0)?;
    writeln!(out, "rejected_connections:{}", totals.rejected)?;
    writeln!(out, "tls_handshake_errors:{}", totals.handshake_errors)?;
    let (syncs, before) = (of_replicas.syncs(), *server.syncs_reset_at.lock());
    for (index, name) in ["sync_full", "sync_partial_ok", "sync_partial_err"].into_iter().enumerate() {
        writeln!(out, "{name}:{}", syncs[index].saturating_sub(before[index]))?;
    }
    writeln!(out, "expired_keys:{}", store.expired)?;
    writeln!(out, "expired_subkeys:{}", store.expired_elements)?;
    writeln!(out, "evicted_keys:{}", store.evicted)?;
    writeln!(out, "evicted_clients:{}", server.store.0.memory.evicted_clients().load(Ordering::Relaxed))?;
    writeln!(out, "evicted_scripts:{}", server.store.0.scripts.registry.forgotten())?;
    // No expired key stays beyond the next tick, and none is skipped.
    writeln!(out, "expired_stale_perc:0.00\nexpired_time_cap_reached_count:0")?;
    writeln!(out, "expire_cycle_cpu_milliseconds:{}", server.store.0.sweeper.spent_ms())?;
    writeln!(out, "keyspace_hits:{}", store.hits)?;
    writeln!(out, "keyspace_misses:{}", store.misses)?;
    let [channels, patterns, shard_channels] = server.store.0.pubsub.counts();
    writeln!(out, "pubsub_channels:{channels}")?;
    writeln!(out, "pubsub_patterns:{patterns}")?;
    writeln!(out, "pubsubshard_channels:{shard_channels}")?;
    writeln!(out, "latest_fork_usec:0")?;
    writeln!(out, "total_forks:0")?;
    let [_, keys, items, prefixes] = server.store.0.tracking.counts();
    writeln!(out, "tracking_total_keys:{keys}")?;
    writeln!(out, "tracking_total_items:{items}")?;
    writeln!(out, "tracking_total_prefixes:{prefixes}")?;
    writeln!(out, "total_error_replies:{}", totals.error_replies)?;
    writeln!(out, "total_reads_processed:{}", totals.reads)?;
    writeln!(out, "total_writes_processed:{}", totals.writes)?;
    writeln!(out, "client_query_buffer_limit_disconnections:{}", totals.query_limit)?;
    writeln!(out, "client_output_buffer_limit_disconnections:{}", totals.output_limit)?;
    // Every payload of RESTORE is checked.
    let restored = INDEX.own(b"restore").map_or(0, |row| totals.per_command[usize::from(row)][0]);
    writeln!(out, "dump_payload_sanitizations:{restored}")?;
    let commands_ns: u64 = totals.per_command.iter().map(|[_, nanoseconds, ..]| nanoseconds).sum();
    let [cycles, busy_us] = server.loops();
    let [.., cycles_per_second, busy_per_cycle_us] = server.rate.lock().per_second;
    writeln!(out, "eventloop_cycles:{cycles}")?;
    writeln!(out, "eventloop_duration_sum:{busy_us}")?;
    writeln!(out, "eventloop_duration_cmd_sum:{}", commands_ns / 1000)?;
    writeln!(out, "instantaneous_eventloop_cycles_per_sec:{cycles_per_second:.0}")?;
    writeln!(out, "instantaneous_eventloop_duration_usec:{busy_per_cycle_us:.0}")?;
    for (what, count) in ["auth", "cmd", "key", "channel"].iter().zip(server.store.0.acl.denied()) {
        writeln!(out, "acl_access_denied_{what}:{count}")?;
    }
    let sections = &server.store.0.sections;
    writeln!(out, "script_longest_slice_usec:{}", sluicegate_script::longest_slice().as_micros())?;
    writeln!(out, "sections_parked:{}", sections.parked.load(Ordering::Relaxed))?;
    writeln!(out, "sections_granted:{}", sections.granted.load(Ordering::Relaxed))?;
    writeln!(out, "sections_moved:{}", sections.moved.load(Ordering::Relaxed))?;
    writeln!(out, "sections_restarted:{}", sections.restarted.load(Ordering::Relaxed))?;
    writeln!(out, "sections_refused:{}", sections.refused.load(Ordering::Relaxed))?;
    writeln!(out, "sections_aborted:{}", sections.aborted.load(Ordering::Relaxed))?;
    writeln!(out, "commands_aborted:{}", sections.aborted_commands.load(Ordering::Relaxed))?;
    writeln!(out, "slave_expires_tracked_keys:{}", server.store.0.keyspace.own_expiring.len())?;
    writeln!(out, "instantaneous_input_repl_kbps:0.00")?;
    writeln!(out, "instantaneous_output_repl_kbps:0.00")?;
    for name in [
        "total_eviction_exceeded_time",
        "current_eviction_exceeded_time",
        "migrate_cached_sockets",
        "unexpected_error_replies",
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
        "io_threaded_reads_processed",
        "io_threaded_writes_processed",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
    ] {
        writeln!(out, "{name}:0")?;
    }
    Ok(())
}

fn cpu(_: &About<'_>, out: &mut String) -> std::fmt::Result {
    for (who, suffix) in [(libc::RUSAGE_SELF, ""), (libc::RUSAGE_CHILDREN, "_children")] {
        // SAFETY: rusage is plain data for which all zeroes are valid, and it outlives the call that fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &mut usage);
            usage
        };
        for (name, time) in [("sys", usage.ru_stime), ("user", usage.ru_utime)] {
            writeln!(out, "used_cpu_{name}{suffix}:{}.{:06}", time.tv_sec, time.tv_usec)?;
        }
    }
    for (name, seconds) in ["sys", "user"].iter().zip(main_thread_seconds()) {
        writeln!(out, "used_cpu_{name}_main_thread:{seconds:.6}")?;
    }
    Ok(())
}

/// Returns the system and user CPU seconds of the process's first thread.
fn main_thread_seconds() -> [f64; 2] {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id())).unwrap_or_default();
    // The name, in brackets, may contain blanks; the times are the twelfth and the thirteenth word after it.
    let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let mut ticks = || words.next().and_then(|word| word.parse::<f64>().ok()).unwrap_or_default();
    let (user, system) = (ticks(), ticks());
    // SAFETY: sysconf has no memory effects.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    [system / per_second, user / per_second]
}

fn commandstats(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let totals = about.server.totals();
    for (row, [calls, nanoseconds, rejected, failed]) in INDEX.rows().iter().zip(totals.per_command) {
        if calls + rejected > 0 {
            let usec = nanoseconds / 1000;
            let per_call = nanoseconds as f64 / 1000.0 / calls.max(1) as f64;
            let name = &row.full_name;
            writeln!(
                out,
                "cmdstat_{name}:calls={calls},usec={usec},usec_per_call={per_call:.2},rejected_calls={rejected},\
                 failed_calls={failed}"
            )?;
        }
    }
    Ok(())
}

fn latencystats(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    for (row, histogram) in about.server.histograms() {
        if histogram.count() == 0 {
            continue;
        }
        write!(out, "latency_percentiles_usec_{}:", INDEX.rows()[row].full_name)?;
        for (at, percent) in about.options.latency_percentiles.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(out, "{comma}p{percent}={:.3}", histogram.percentile(*percent) as f64 / 1000.0)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn errorstats(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    for (code, count) in about.server.store.0.errors.list() {
        writeln!(out, "errorstat_{code}:count={count}")?;
    }
    Ok(())
}

fn keyspace(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let store = &about.server.store;
    for db in store.database_stats() {
        let ttl_ms = if db.expires > 0 { store.average_ttl_ms(db.index) } else { 0 };
        let timed = store.timed_values(db.index);
        writeln!(out, "db{}:keys={},expires={},avg_ttl={ttl_ms},subexpiry={timed}", db.index, db.keys, db.expires)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shortened_as_redis_does() {
        let check = |bytes: u64, expected: &str| assert_eq!(human(bytes), expected);
        check(0, "0B");
        check(1023, "1023B");
        check(1024, "1.00K");
        check(1_014_936, "991.15K");
        check(25_276_510_208, "23.54G");
    }
}
