//! The limit of open descriptors and `maxconn`: one is derived from the other, as in HAProxy.
//!
//! A session needs two descriptors, one to the client and one to the server. What else is open (listeners, logs,
//! checks, runtimes) is counted beside it.

use sluicegate_config::Config;

use crate::memory;
use crate::report::Report;

/// Descriptors that are open whatever the load: runtimes, logs, the stats socket and its clients, the store's clients.
const BASE: u64 = 200;

/// `maxconn` where the system sets no sensible limit.
const MAXCONN_DEFAULT_MAX: u64 = 500_000;

/// Raises the limit for the configured `maxconn`, or derives `maxconn` from what the limit allows; gives `maxconn`.
/// Under `no strict-limits` one that can't be raised is warned of.
pub fn raise(config: &Config, report: Report) -> Result<u32, String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit that the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(format!("cannot read the limit of descriptors ({})", std::io::Error::last_os_error()));
    }
    let listeners: usize = config.proxies.iter().flat_map(|proxy| &proxy.binds).map(|bind| bind.addresses.len()).sum();
    let checks: usize = config.proxies.iter().map(|proxy| proxy.servers.len()).sum();
    let base = BASE + 2 * (listeners + checks) as u64;
    let wanted = config.global.maxconn.map(|maxconn| base + 2 * u64::from(maxconn));
    let usable = config.global.fd_hard_limit.map_or(limit.rlim_max, |most| limit.rlim_max.min(most));
    let raised = wanted.unwrap_or(usable.min(base + 2 * MAXCONN_DEFAULT_MAX).max(limit.rlim_cur.min(usable)));
    if raised > limit.rlim_cur {
        let new = libc::rlimit { rlim_cur: raised, rlim_max: limit.rlim_max.max(raised) };
        // SAFETY: the pointer is to a live rlimit that the call reads. Raising the hard limit needs privileges; without
        // them the call fails and changes nothing.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new) } != 0 {
            let message = format!(
                "maxconn {} needs {raised} descriptors and the limit is {}\n\nhint: raise it (ulimit -n {raised}) or lower \
                 'maxconn' in 'global'",
                config.global.maxconn.unwrap_or(0),
                limit.rlim_max
            );
            if config.global.limits.strict {
                return Err(message);
            }
            report.warning(&message);
        }
    }
    let derived = raised.saturating_sub(base) / 2;
    let within_memory = memory::sessions(&config.global).unwrap_or(u64::MAX);
    Ok(config.global.maxconn.unwrap_or(derived.min(within_memory).clamp(1, MAXCONN_DEFAULT_MAX) as u32))
}
