//! `show info`: HAProxy 3.2's keys in its order, one row of the catalogue each.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use sluicegate_transport::allocated;

use super::typed::{Describe, Field};
use crate::compress::Cost;
use crate::counters::{Figures, Rate, second};
pub use crate::hosts::node_name;
use crate::process::{Phase, WorkerFigures};
use crate::running::Running;
use crate::tls::Side;

/// The version reported to HAProxy's tools.
pub const VERSION: &str = concat!("3.2.0-sluicegate-", env!("CARGO_PKG_VERSION"));

/// The release date of the HAProxy version that this program follows.
pub const RELEASE_DATE: &str = "2025/05/28";

/// The source of rows.
pub struct View<'a> {
    running: &'a Running,
    pid: u32,
}

/// A row.
pub struct Row {
    /// Its position among HAProxy's keys, some of which are shown only if they apply.
    pub position: usize,
    /// Its key.
    pub name: &'static str,
    /// Origin, nature and scope, a letter each, as the typed format shows them.
    pub tags: &'static str,
    /// Its type in the typed format.
    pub kind: &'static str,
    value: fn(&View<'_>) -> String,
}

macro_rules! rows {
    ($($position:literal $name:literal $tags:ident $kind:ident => $value:expr,)*) => {
        /// Every row in order.
        pub const ROWS: &[Row] = &[$(Row {
            position: $position,
            name: $name,
            tags: stringify!($tags),
            kind: stringify!($kind),
            value: $value,
        }),*];
    };
}

/// Returns the keys that were agreed on per second, and the largest rate.
fn key_rate(v: &View<'_>, side: Side) -> (u32, u32) {
    v.running.process.tls.key_rate(side, Instant::now())
}

fn zero(_: &View<'_>) -> String {
    "0".to_owned()
}

rows! {
    0 "Name" POS str => |_| "HAProxy".to_owned(),
    1 "Version" POS str => |_| VERSION.to_owned(),
    2 "Release_date" POS str => |_| RELEASE_DATE.to_owned(),
    3 "Nbthread" CGS u32 => |v| v.running.process.workers.len().to_string(),
    4 "Nbproc" CGS u32 => |_| "1".to_owned(),
    5 "Process_num" KGP u32 => |_| "1".to_owned(),
    6 "Pid" SGP u32 => |v| v.pid.to_string(),
    7 "Uptime" MDP str => |v| uptime(v.uptime_seconds()),
    8 "Uptime_sec" MDP u32 => |v| v.uptime_seconds().to_string(),
    9 "Memmax_MB" CLP u32 => |v| v.running.config.global.memory_mib.unwrap_or(0).to_string(),
    10 "PoolAlloc_MB" MGP u32 => |_| (allocated() >> 20).to_string(),
    11 "PoolUsed_MB" MGP u32 => |v| (v.buffers_used() >> 20).to_string(),
    12 "PoolFailed" MCP u32 => zero,
    13 "Ulimit-n" CLP u32 => |_| descriptor_limit().to_string(),
    14 "Maxsock" CLP u32 => |_| descriptor_limit().to_string(),
    15 "Maxconn" CLP u32 => |v| v.maxconn(),
    16 "Hard_maxconn" CLP u32 => |v| v.running.process.hard_maxconn().unwrap_or(0).to_string(),
    17 "CurrConns" MGP u32 => |v| v.running.process.sessions.current().to_string(),
    18 "CumConns" MCP u32 => |v| v.sum(|w| w.sessions.get()),
    19 "CumReq" MCP u32 => |v| v.sum(|w| w.requests.get()),
    20 "MaxSslConns" MMP u32 => |v| v.running.process.tls.limit().to_string(),
    21 "CurrSslConns" MGP u32 => |v| v.running.process.tls.current().to_string(),
    22 "CumSslConns" MCP u32 => |v| v.running.process.tls.total().to_string(),
    23 "Maxpipes" CLP u32 => |v| v.maxpipes(),
    24 "PipesUsed" MGP u32 => |v| v.sum(|w| w.pool.pipes_used.load(Ordering::Relaxed)),
    25 "PipesFree" MGP u32 => |v| v.sum(|w| w.pool.pipes_free.load(Ordering::Relaxed)),
    26 "ConnRate" MRP u32 => |v| v.frontends(|figures, now| figures.rate(now, |c| &c.conn_rate)),
    27 "ConnRateLimit" CLP u32 => |v| v.running.process.connection_pace.limit().to_string(),
    28 "MaxConnRate" MMP u32 => |v| v.highest(Figures::conn_rate_max),
    29 "SessRate" MRP u32 => |v| v.frontends(|figures, now| figures.rate(now, |c| &c.sess_rate)),
    30 "SessRateLimit" CLP u32 => |v| v.running.process.session_pace.limit().to_string(),
    31 "MaxSessRate" MRP u32 => |v| v.highest(Figures::rate_max),
    32 "SslRate" MRP u32 => |v| v.running.process.tls.rate(Instant::now()).0.to_string(),
    33 "SslRateLimit" CLP u32 => |v| v.running.process.tls_pace.limit().to_string(),
    34 "MaxSslRate" MMP u32 => |v| v.running.process.tls.rate(Instant::now()).1.to_string(),
    35 "SslFrontendKeyRate" MGP u32 => |v| key_rate(v, Side::Front).0.to_string(),
    36 "SslFrontendMaxKeyRate" MMP u32 => |v| key_rate(v, Side::Front).1.to_string(),
    37 "SslFrontendSessionReuse_pct" MGP u32 => |v| v.running.process.tls.reuse_percent(Instant::now()).to_string(),
    38 "SslBackendKeyRate" MRP u32 => |v| key_rate(v, Side::Back).0.to_string(),
    39 "SslBackendMaxKeyRate" MMP u32 => |v| key_rate(v, Side::Back).1.to_string(),
    40 "SslCacheLookups" MCP u32 => |v| v.running.process.resumption.lookups_and_misses().0.to_string(),
    41 "SslCacheMisses" MCP u32 => |v| v.running.process.resumption.lookups_and_misses().1.to_string(),
    42 "CompressBpsIn" MRP u32 => |v| v.compressed(|cost| &cost.read),
    43 "CompressBpsOut" MRP u32 => |v| v.compressed(|cost| &cost.written),
    44 "CompressBpsRateLim" CLP u32 => |v| v.running.process.compression_rate.load(Ordering::Relaxed).to_string(),
    47 "Tasks" MGP u32 => |v| v.running.process.tasks().to_string(),
    48 "Run_queue" MGP u32 => |v| v.running.process.run_queue().to_string(),
    49 "Idle_pct" MaP u32 => |v| v.running.process.idle_percent().to_string(),
    50 "node" COS str => |v| v.running.config.global.node.clone().unwrap_or_else(node_name),
    51 "description" COS str => |v| v.running.config.global.description.clone().unwrap_or_default(),
    52 "Stopping" MGP u32 => |v| u32::from(v.running.process.phase() != Phase::Serving).to_string(),
    53 "Jobs" MGP u32 => |v| (u64::from(v.running.process.sessions.current()) + v.listeners()).to_string(),
    54 "Unstoppable Jobs" MGP u32 => zero,
    55 "Listeners" MGP u32 => |v| v.listeners().to_string(),
    56 "ActivePeers" MGP u32 => |v| v.running.process.peers.active.get().to_string(),
    57 "ConnectedPeers" MGP u32 => |v| v.running.process.peers.connected.get().to_string(),
    58 "DroppedLogs" MGP u32 => |v| v.running.logger.dropped().to_string(),
    59 "BusyPolling" MGP u32 => zero,
    60 "FailedResolutions" MGP u32 => |v| v.failed_resolutions().to_string(),
    61 "TotalBytesOut" MGP u64 => |v| v.sum(|w| w.bytes_out.get()),
    62 "TotalSplicedBytesOut" MGP u64 => |v| v.sum(|w| w.pool.spliced.load(Ordering::Relaxed)),
    63 "BytesOutRate" MRP u64 => |v| v.running.process.bytes_out_rate().to_string(),
    64 "DebugCommandsIssued" MGP u32 => zero,
    65 "CumRecvLogs" MCP u32 => |v| v.sum(|w| w.messages.get()),
    66 "Build info" POS str => |_| VERSION.to_owned(),
    67 "Memmax_bytes" CLP u32 => |v| v.memory_max().to_string(),
    68 "PoolAlloc_bytes" MGP u64 => |_| allocated().to_string(),
    69 "PoolUsed_bytes" MGP u64 => |v| v.buffers_used().to_string(),
    70 "Start_time_sec" MDP u32 => |v| {
        v.running.process.started_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string()
    },
    71 "Tainted" SGP str => zero,
    72 "TotalWarnings" MCP u32 => zero,
    73 "MaxconnReached" MCP u32 => |v| v.sum(|w| w.full.get()),
    74 "BootTime_ms" MDP u32 => |v| v.running.process.boot.get().map_or(0, |boot| boot.as_millis()).to_string(),
    75 "Niced_tasks" MGP u32 => zero,
    76 "CurrStreams" MGP u64 => |v| v.sum(|w| w.streams.load(Ordering::Relaxed)),
    77 "CumStreams" MGP u64 => |v| v.sum(|w| w.requests.get()),
    78 "BlockedTrafficWarnings" MGP u32 => zero,
    79 "PatternsAdded" MCP u64 => zero,
    80 "PatternsFreed" MCP u64 => zero,
}

impl View<'_> {
    fn uptime_seconds(&self) -> u64 {
        self.running.process.started.elapsed().as_secs()
    }

    /// Returns the bytes of the buffers that contain data.
    fn buffers_used(&self) -> u64 {
        let free = self.running.process.workers.iter().map(|worker| worker.pool.buffers_free.load(Ordering::Relaxed));
        allocated().saturating_sub(free.sum())
    }

    /// Returns the limit of memory in bytes, as far as the figure's type has room for it; HAProxy's wraps.
    fn memory_max(&self) -> u32 {
        let bytes = self.running.config.global.memory_mib.unwrap_or(0) << 20;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    fn maxconn(&self) -> String {
        self.running.process.sessions.max().unwrap_or(0).to_string()
    }

    fn maxpipes(&self) -> String {
        self.running.config.global.tune.pipes(self.running.process.workers.len()).to_string()
    }

    fn sum(&self, figure: impl Fn(&WorkerFigures) -> u64) -> String {
        self.running.process.workers.iter().map(figure).sum::<u64>().to_string()
    }

    /// Returns the bytes per second that enter or leave compression.
    fn compressed(&self, which: impl Fn(&Cost) -> &Rate) -> String {
        let now = second(std::time::Instant::now());
        self.sum(|worker| u64::from(which(&worker.compression).at(now.saturating_sub(1))))
    }

    /// Returns the sum over the frontends, which is the rate of the process.
    fn frontends(&self, rate: impl Fn(&Figures, std::time::Instant) -> u32) -> String {
        let now = std::time::Instant::now();
        let rates = self.running.proxies.iter().map(|proxy| u64::from(rate(&proxy.frontend.figures, now)));
        rates.sum::<u64>().to_string()
    }

    /// Returns the maximum of the frontends' highest rates, which is a lower bound for the process.
    fn highest(&self, rate: impl Fn(&Figures) -> u32) -> String {
        self.running.proxies.iter().map(|proxy| rate(&proxy.frontend.figures)).max().unwrap_or(0).to_string()
    }

    fn failed_resolutions(&self) -> u64 {
        self.running.directory.resolvers.iter().map(|resolver| resolver.failed.load(Ordering::Relaxed)).sum()
    }

    fn listeners(&self) -> u64 {
        let binds = self.running.proxies.iter().flat_map(|proxy| &proxy.config.binds);
        binds.map(|bind| bind.addresses.len() as u64).sum()
    }
}

fn uptime(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    format!("{days}d {}h{:02}m{:02}s", rest / 3600, rest % 3600 / 60, rest % 60)
}

fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes one rlimit, which is what the pointer is to.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// Appends a line per key, with its description if requested.
pub fn lines(fields: &[Field], describe: Option<Describe>, out: &mut String) {
    for Field { name, value, .. } in fields {
        // Writing to a string can't fail.
        let _ = match describe {
            Some(describe) => writeln!(out, "{name}: {value}:\"{}\"", describe(name)),
            None => writeln!(out, "{name}: {value}"),
        };
    }
}

/// Returns every row; with `fractions`, the times that HAProxy reports in microseconds include fractions. As in
/// HAProxy, a process without a description has no row for it.
pub fn fields(running: &Running, fractions: bool) -> Vec<Field> {
    let view = View { running, pid: std::process::id() };
    let field = |row: &Row| Field {
        position: row.position,
        name: row.name,
        tags: row.tags,
        kind: row.kind,
        value: match row.name {
            "Uptime_sec" if fractions => format!("{:.6}", running.process.started.elapsed().as_secs_f64()),
            "Start_time_sec" if fractions => {
                let since = running.process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
                format!("{:.6}", since.as_secs_f64())
            }
            _ => (row.value)(&view),
        },
    };
    ROWS.iter().map(field).filter(|field| field.name != "description" || !field.value.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_reads_as_haproxys() {
        assert_eq!(uptime(12), "0d 0h00m12s");
        assert_eq!(uptime(86_400 * 2 + 3600 * 13 + 62), "2d 13h01m02s");
    }

    /// Where the type is not what one would expect, it is 3.2.0's.
    #[test]
    fn types_are_haproxys() {
        let of = |name: &str| ROWS.iter().find(|row| row.name == name).map(|row| (row.tags, row.kind));
        assert_eq!(of("Memmax_bytes"), Some(("CLP", "u32")));
        assert_eq!(of("CumStreams"), Some(("MGP", "u64")));
        assert_eq!(of("BlockedTrafficWarnings"), Some(("MGP", "u32")));
    }

    /// Debian's 2.6 has the same keys up to `Tainted`, one of them misspelt.
    #[test]
    fn keys_are_haproxys_in_its_order() {
        let known = include_str!("../../tests/it/golden/show_info_2.6.txt").lines();
        // The golden process had no description.
        for (row, line) in ROWS.iter().filter(|row| row.name != "description").zip(known) {
            let key = line.split(": ").next().unwrap().replace("Spliced", "Splicded");
            assert_eq!(row.name.replace("Spliced", "Splicded"), key);
        }
    }
}
