//! The limit of open descriptors, and the settings that depend on it or determine it: `ulimit-n`, `maxconn`, and the
//! stores' `maxclients`.
//!
//! A session needs two descriptors, one to the client and one to the server, and where a demo server of this process
//! may be that server, a third; a store's client needs one. All other
//! descriptors (listeners, logs, checks, runtimes, the pipes of `maxpipes`) are added, by HAProxy's formula if its
//! result is enough: the same limit of descriptors results in the same `maxconn`. `ulimit-n` sets the limit; otherwise
//! `maxconn` does, with the stores' clients; without either the system's hard limit is used and divided. A configured
//! value that is not possible is an error with the limit that would be needed; only `maxclients` is reduced, as in
//! Redis.

use std::io;

use sluicegate_config::Config;
use sluicegate_store::config::ServerOptions;

use crate::memory;
use crate::report::Report;

/// The number of descriptors that HAProxy reserves for uncounted uses.
const RESERVE: u64 = 10;

/// The number of descriptors of a process without listeners and workers: standard streams, the control thread's
/// runtime, logs, signals.
const BASE: u64 = 17;

/// The number of descriptors of a worker: those of its runtime, and its copies of the shared wake-up descriptors.
const OF_WORKER: u64 = 4;

/// The number of descriptors that HAProxy counts for a worker.
const OF_THREAD: u64 = 3;

/// The default number of clients of the stats socket without `stats maxconn`.
const STATS_CLIENTS: u64 = 10;

/// The maximum `maxconn` that is used when the system sets no sensible limit.
const MAXCONN_DEFAULT_MAX: u64 = 500_000;

/// The descriptors that the kernel's table has room for from the start, at most: half a MiB.
const RESERVED_MAX: u64 = 65_536;

/// The minimum `maxclients` that a store keeps.
const CLIENTS_MIN: u64 = 16;

/// The number of connections to an engine whose section has no `maxconn`.
const ENGINE_CONNECTIONS: u32 = sluicegate_client::MAXCONN_DEFAULT as u32;

/// The descriptors that a configuration needs, apart from sessions.
struct Needs {
    /// The number of descriptors that do not depend on the load.
    fixed: u64,
    /// The number of descriptors for each session.
    session: u64,
    /// The number of descriptors for the pipes of `maxpipes`. Without `maxpipes`, pipes use the descriptors that
    /// sessions do not need.
    pipes: u64,
    /// The number of clients of all stores that listen.
    clients: u64,
    /// The number of stores that listen.
    stores: u64,
}

impl Needs {
    fn of(config: &Config, stores: &[ServerOptions], workers: usize) -> Needs {
        let global = &config.global;
        let proxies = config.proxies.iter().flat_map(|proxy| &proxy.binds);
        let others = config.stores.iter().flat_map(|store| &store.binds);
        let others = others.chain(config.origins.iter().flat_map(|origin| &origin.binds));
        let addresses: usize = proxies.chain(others).map(|bind| bind.addresses.len()).sum();
        let servers = config.proxies.iter().flat_map(|proxy| &proxy.servers);
        let checks =
            servers.map(|server| usize::from(server.check.is_some()) + usize::from(server.health.agent.is_some()));
        // Connections with peers, as HAProxy counts them, and the sockets that accept them.
        let peers: usize =
            config.peers.iter().map(|peers| 3 * peers.proxy.servers.len() + peers.proxy.binds.len()).sum();
        let common = checks.sum::<usize>() + global.stats_sockets.len() + peers;
        let engines: u32 = config.engines.iter().map(|engine| engine.maxconn.unwrap_or(ENGINE_CONNECTIONS)).sum();
        let listening = config.stores.iter().zip(stores).filter(|(section, _)| !section.binds.is_empty());
        let workers_of = workers as u64;
        // A socket for each worker; unix sockets, which share one, are duplicated for each.
        let own = BASE + OF_WORKER * workers_of + (addresses * workers + common) as u64;
        let stats = global.stats_maxconn.map_or(STATS_CLIENTS, |most| most as u64);
        let clients = if global.stats_sockets.is_empty() { 0 } else { stats };
        // HAProxy's sum, so that `maxconn` is the same where this process needs no more.
        let theirs = RESERVE + OF_THREAD * workers_of + (addresses + common) as u64 + clients;
        Needs {
            fixed: own.max(theirs) + u64::from(engines),
            session: if config.origins.is_empty() { 2 } else { 3 },
            pipes: 2 * u64::from(global.tune.maxpipes.map_or(0, |_| global.tune.pipes(workers))),
            clients: listening.clone().map(|(_, options)| u64::from(options.maxclients)).sum(),
            stores: listening.count() as u64,
        }
    }
}

/// Sets the limit and returns `maxconn`; lowers the stores' `maxclients` to the descriptors left for them. With `no
/// strict-limits` a limit that cannot be raised causes a warning.
pub fn raise(config: &Config, stores: &mut [ServerOptions], workers: usize, report: Report) -> Result<u32, String> {
    let needs = Needs::of(config, stores, workers);
    let (soft, hard) = limits().map_err(|error| format!("cannot read the limit of descriptors ({error})"))?;
    let usable = config.global.fd_hard_limit.map_or(hard, |most| hard.min(most));
    let maxconn = config.global.maxconn.map(u64::from);
    let least = needs.fixed + needs.session * maxconn.unwrap_or(1) + CLIENTS_MIN * needs.stores;
    let wanted = match (config.global.ulimit_n, maxconn) {
        (Some(exactly), _) => exactly,
        (None, Some(maxconn)) => soft.max(needs.fixed + needs.pipes + needs.clients + needs.session * maxconn),
        (None, None) => soft.min(usable).max(usable.min(needs.fixed + needs.clients + 2 * MAXCONN_DEFAULT_MAX)),
    };
    let keyword = if config.global.ulimit_n.is_some() { "ulimit-n" } else { "maxconn" };
    let refuse = |message: String| {
        let message = format!("{}{message}", place(config, keyword));
        if config.global.limits.strict {
            return Err(message);
        }
        report.warning(&message);
        Ok(())
    };
    let limit = match set(wanted, hard) {
        Ok(()) => wanted,
        Err(error) => {
            if config.global.ulimit_n.is_some() || hard < least {
                let needed = if config.global.ulimit_n.is_some() { wanted } else { least };
                refuse(format!(
                    "Cannot raise FD limit to {needed}, limit is {hard} ({error})\n\nhint: start it as root, raise the limit \
                     before (ulimit -n {needed}), or lower '{keyword}' in 'global'"
                ))?;
            }
            set(hard, hard).map_err(|error| format!("cannot raise the limit of descriptors to {hard} ({error})"))?;
            hard
        }
    };
    if limit < least {
        refuse(format!(
            "FD limit ({limit}) too low for maxconn={}\n\nhint: raise it to {least} or more, by 'ulimit-n' in 'global' or \
             before the start (ulimit -n {least}), or lower 'maxconn'",
            maxconn.unwrap_or(1),
        ))?;
    }
    let room = limit.saturating_sub(needs.fixed);
    // Large bodies can do without pipes.
    let room = if needs.pipes < room { room - needs.pipes } else { room };
    let for_clients = match maxconn {
        Some(maxconn) => room.saturating_sub(needs.session * maxconn),
        None => room / 2,
    };
    if needs.clients > for_clients {
        lower(config, stores, limit, for_clients / needs.stores.max(1), report);
    }
    let derived = (room - needs.clients.min(for_clients)) / needs.session;
    let within_memory = memory::sessions(&config.global).unwrap_or(u64::MAX);
    let maxconn = config.global.maxconn.unwrap_or(derived.min(within_memory).clamp(1, MAXCONN_DEFAULT_MAX) as u32);
    reserve(limit.min(needs.fixed + needs.pipes + needs.clients + needs.session * u64::from(maxconn)));
    Ok(maxconn)
}

/// Makes the kernel's table of this process's descriptors large enough for so many. A table that grows while threads use
/// it waits for all processors (`synchronize_rcu`), and with it the worker that accepts, for 10 ms or more each time.
fn reserve(count: u64) {
    let Some(last) = count.min(RESERVED_MAX).checked_sub(1) else { return };
    // SAFETY: the calls touch no memory, and the descriptor that is closed is the one that was made. If it cannot be made,
    // the table grows later.
    unsafe {
        let fd = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, last as libc::c_int);
        if fd >= 0 {
            libc::close(fd);
        }
    }
}

/// Returns `file:line: ` of a keyword, if the configuration contains it.
fn place(config: &Config, keyword: &str) -> String {
    config.global.at(keyword).map(|at| format!("{}:{}: ", at.file, at.line)).unwrap_or_default()
}

/// Lowers `maxclients` of the stores that listen to `share` each, and warns about each store whose configuration sets
/// it.
fn lower(config: &Config, stores: &mut [ServerOptions], limit: u64, share: u64, report: Report) {
    let share = u32::try_from(share).unwrap_or(u32::MAX);
    for (section, options) in config.stores.iter().zip(stores) {
        if section.binds.is_empty() || options.maxclients <= share {
            continue;
        }
        if section.parameters.iter().any(|(name, ..)| name == "maxclients") {
            report.warning(&format!(
                "store '{}': the limit of {limit} descriptors leaves no room for 'maxclients {}', it is {share} now; raise \
                 the limit (ulimit -n)",
                section.name, options.maxclients
            ));
        }
        options.maxclients = share;
    }
}

/// Returns the soft and the hard limit.
pub fn limits() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit that the call fills.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok((limit.rlim_cur, limit.rlim_max)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the soft limit; the hard limit is raised if it is lower, which requires privileges.
pub fn set(soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard.max(soft) };
    // SAFETY: the pointer is to a live rlimit that the call reads.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
