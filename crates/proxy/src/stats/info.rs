//! `show info`: HAProxy 3.2's keys in its order, one row of the catalogue each.

use std::io::Write as _;
use std::time::UNIX_EPOCH;

use crate::counters::Figures;
use crate::process::{Phase, WorkerFigures};
use crate::running::Running;

/// The version that HAProxy's tools are told.
pub const VERSION: &str = concat!("3.2.0-sluicegate-", env!("CARGO_PKG_VERSION"));

/// The date of the HAProxy version that is followed.
pub const RELEASE_DATE: &str = "2025/05/28";

/// What rows are made from.
pub struct View<'a> {
    running: &'a Running,
    pid: u32,
}

/// A row.
pub struct Row {
    /// Its key.
    pub name: &'static str,
    value: fn(&View<'_>) -> String,
}

macro_rules! rows {
    ($($name:literal => $value:expr,)*) => {
        /// Every row in order.
        pub const ROWS: &[Row] = &[$(Row { name: $name, value: $value }),*];
    };
}

fn zero(_: &View<'_>) -> String {
    "0".to_owned()
}

rows! {
    "Name" => |_| "HAProxy".to_owned(),
    "Version" => |_| VERSION.to_owned(),
    "Release_date" => |_| RELEASE_DATE.to_owned(),
    "Nbthread" => |v| v.running.process.workers.len().to_string(),
    "Nbproc" => |_| "1".to_owned(),
    "Process_num" => |_| "1".to_owned(),
    "Pid" => |v| v.pid.to_string(),
    "Uptime" => |v| uptime(v.uptime_seconds()),
    "Uptime_sec" => |v| v.uptime_seconds().to_string(),
    "Memmax_MB" => |v| v.running.config.global.memory_mib.unwrap_or(0).to_string(),
    "PoolAlloc_MB" => zero,
    "PoolUsed_MB" => zero,
    "PoolFailed" => zero,
    "Ulimit-n" => |_| descriptor_limit().to_string(),
    "Maxsock" => |_| descriptor_limit().to_string(),
    "Maxconn" => |v| v.maxconn(),
    "Hard_maxconn" => |v| v.maxconn(),
    "CurrConns" => |v| v.running.process.sessions.current().to_string(),
    "CumConns" => |v| v.sum(|w| w.sessions.get()),
    "CumReq" => |v| v.sum(|w| w.requests.get()),
    "MaxSslConns" => zero,
    "CurrSslConns" => zero,
    "CumSslConns" => zero,
    "Maxpipes" => zero,
    "PipesUsed" => zero,
    "PipesFree" => zero,
    "ConnRate" => |v| v.frontends(|figures, now| figures.rate(now, |c| &c.conn_rate)),
    "ConnRateLimit" => zero,
    "MaxConnRate" => |v| v.highest(Figures::conn_rate_max),
    "SessRate" => |v| v.frontends(|figures, now| figures.rate(now, |c| &c.sess_rate)),
    "SessRateLimit" => zero,
    "MaxSessRate" => |v| v.highest(Figures::rate_max),
    "SslRate" => zero,
    "SslRateLimit" => zero,
    "MaxSslRate" => zero,
    "SslFrontendKeyRate" => zero,
    "SslFrontendMaxKeyRate" => zero,
    "SslFrontendSessionReuse_pct" => zero,
    "SslBackendKeyRate" => zero,
    "SslBackendMaxKeyRate" => zero,
    "SslCacheLookups" => zero,
    "SslCacheMisses" => zero,
    "CompressBpsIn" => zero,
    "CompressBpsOut" => zero,
    "CompressBpsRateLim" => zero,
    "Tasks" => |v| v.running.process.tasks().to_string(),
    "Run_queue" => zero,
    "Idle_pct" => |v| v.running.process.idle_percent().to_string(),
    "node" => |v| v.running.config.global.node.clone().unwrap_or_else(node_name),
    "description" => |v| v.running.config.global.description.clone().unwrap_or_default(),
    "Stopping" => |v| u32::from(v.running.process.phase() != Phase::Serving).to_string(),
    "Jobs" => |v| (u64::from(v.running.process.sessions.current()) + v.listeners()).to_string(),
    "Unstoppable Jobs" => zero,
    "Listeners" => |v| v.listeners().to_string(),
    "ActivePeers" => zero,
    "ConnectedPeers" => zero,
    "DroppedLogs" => |v| v.running.logger.dropped().to_string(),
    "BusyPolling" => zero,
    "FailedResolutions" => zero,
    "TotalBytesOut" => |v| v.sum(|w| w.bytes_out.get()),
    "TotalSplicedBytesOut" => zero,
    "BytesOutRate" => zero,
    "DebugCommandsIssued" => zero,
    "CumRecvLogs" => zero,
    "Build info" => |_| VERSION.to_owned(),
    "Memmax_bytes" => zero,
    "PoolAlloc_bytes" => zero,
    "PoolUsed_bytes" => zero,
    "Start_time_sec" => |v| {
        v.running.process.started_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string()
    },
    "Tainted" => zero,
    "TotalWarnings" => zero,
    "MaxconnReached" => zero,
    "BootTime_ms" => |v| v.running.process.boot.get().map_or(0, |boot| boot.as_millis()).to_string(),
    "Niced_tasks" => zero,
    "CurrStreams" => |v| v.sum(|w| w.streams.load(std::sync::atomic::Ordering::Relaxed)),
    "CumStreams" => |v| v.sum(|w| w.requests.get()),
    "BlockedTrafficWarnings" => zero,
    "PatternsAdded" => zero,
    "PatternsFreed" => zero,
}

impl View<'_> {
    fn uptime_seconds(&self) -> u64 {
        self.running.process.started.elapsed().as_secs()
    }

    fn maxconn(&self) -> String {
        self.running.process.sessions.max().unwrap_or(0).to_string()
    }

    fn sum(&self, figure: impl Fn(&WorkerFigures) -> u64) -> String {
        self.running.process.workers.iter().map(figure).sum::<u64>().to_string()
    }

    /// Sum over the frontends; a process's rate is theirs together.
    fn frontends(&self, rate: impl Fn(&Figures, std::time::Instant) -> u32) -> String {
        let now = std::time::Instant::now();
        let rates = self.running.proxies.iter().map(|proxy| u64::from(rate(&proxy.frontend.figures, now)));
        rates.sum::<u64>().to_string()
    }

    /// Highest of the frontends' highest rates, a lower bound of the process's.
    fn highest(&self, rate: impl Fn(&Figures) -> u32) -> String {
        self.running.proxies.iter().map(|proxy| rate(&proxy.frontend.figures)).max().unwrap_or(0).to_string()
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

/// The machine's name; empty if it can't be had.
pub fn node_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the pointer and the length describe `buffer`, less its last byte, which stays zero.
    let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let end = memchr::memchr(0, &buffer).unwrap_or(0);
    if result == 0 { String::from_utf8_lossy(&buffer[..end]).into_owned() } else { String::new() }
}

/// `show info`: every row.
pub fn show_info(running: &Running, out: &mut Vec<u8>) {
    let view = View { running, pid: std::process::id() };
    for row in ROWS {
        let value = (row.value)(&view);
        // As in HAProxy, a process that is not described has no line for it.
        if row.name != "description" || !value.is_empty() {
            // Writing to a vector can't fail.
            let _ = writeln!(out, "{}: {value}", row.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_reads_as_haproxys() {
        assert_eq!(uptime(12), "0d 0h00m12s");
        assert_eq!(uptime(86_400 * 2 + 3600 * 13 + 62), "2d 13h01m02s");
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
