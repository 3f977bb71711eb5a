//! Commands that show the process, its proxies and its servers.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{ProxyKind, ServerAddress, StatsLevel};

use super::catalogue::{Call, Command, Run};
use super::change::backend_named;
use super::general::level_name;
use super::inside::{anonymous, anonymous_address};
use super::protocol::Answer;
use crate::listener::DisplayAddress;
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Operation, ServerRun};
use crate::stats::{self, Filter, Format, typed};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["show", "activity"],
        arguments: "",
        help: "show per-thread activity stats (for support/developers)",
        level: StatsLevel::Operator,
        run: Run::Now(show_activity),
    },
    Command {
        name: &["show", "backend"],
        arguments: "",
        help: "list backends in the current running config",
        level: StatsLevel::User,
        run: Run::Long(show_backend),
    },
    Command {
        name: &["show", "cli", "sockets"],
        arguments: "",
        help: "dump list of cli sockets",
        level: StatsLevel::Operator,
        run: Run::Now(show_cli_sockets),
    },
    Command {
        name: &["dump", "stats-file"],
        arguments: "",
        help: "dump stats for restore",
        level: StatsLevel::User,
        run: Run::Now(|call| call.out.push(stats::stats_file::dump(call.running))),
    },
    Command {
        name: &["show", "env"],
        arguments: "[var]",
        help: "dump environment variables known to the process",
        level: StatsLevel::Operator,
        run: Run::Long(show_env),
    },
    Command {
        name: &["show", "info"],
        arguments: "[desc|json|typed|float]*",
        help: "report information about the running process",
        level: StatsLevel::User,
        run: Run::Now(show_info),
    },
    Command {
        name: &["show", "schema", "json"],
        arguments: "",
        help: "report schema used for stats",
        level: StatsLevel::User,
        run: Run::Now(|call| call.out.push(format!("{}\n", stats::schema::text()))),
    },
    Command {
        name: &["show", "servers", "conn"],
        arguments: "[<backend>]",
        help: "dump server connections status (all or for a single backend)",
        level: StatsLevel::User,
        run: Run::Long(|call| show_servers(call, connections_header, connections)),
    },
    Command {
        name: &["show", "servers", "state"],
        arguments: "[<backend>]",
        help: "dump volatile server information (all or for a single backend)",
        level: StatsLevel::User,
        run: Run::Long(|call| show_servers(call, state_header, state)),
    },
    Command {
        name: &["show", "stat"],
        arguments: "[desc|json|no-maint|typed|up]*",
        help: "report counters for each proxy and server",
        level: StatsLevel::User,
        run: Run::Long(show_stat),
    },
    Command {
        name: &["show", "version"],
        arguments: "",
        help: "show version of the current process",
        level: StatsLevel::User,
        run: Run::Now(|call| call.say(stats::info::VERSION)),
    },
];

/// The flags other than those that omit lines.
struct Flags {
    format: Format,
    /// `desc`: what each value means.
    described: bool,
    /// `float`: times with their fractions.
    fractions: bool,
}

fn flags(call: &Call<'_>) -> Flags {
    let has = |flag: &[u8]| call.args.iter().any(|word| word == flag);
    let format = match () {
        () if has(b"json") => Format::Json,
        () if has(b"typed") => Format::Typed,
        () => Format::Plain,
    };
    Flags { format, described: has(b"desc"), fractions: has(b"float") }
}

fn show_info(call: &mut Call<'_>) {
    let Flags { format, described, fractions } = flags(call);
    let fields = stats::info::fields(call.running, fractions);
    let describe = described.then_some(stats::describe::key as typed::Describe);
    let mut text = String::new();
    match format {
        Format::Plain => stats::info::lines(&fields, describe, &mut text),
        Format::Typed => typed::lines(None, &fields, describe, &mut text),
        Format::Json => {
            typed::json(None, &fields, &mut text);
            text.push('\n');
        }
    }
    call.out.push(text);
}

fn show_stat(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let Flags { format, described, .. } = flags(&call);
        match call.args {
            [domain, name, ..] if domain == b"domain" && name == b"resolvers" => {
                let text = super::resolvers::stat(call.running, format);
                call.out.push(text);
                return Ok(());
            }
            [domain, name, rest @ ..] if domain == b"domain" && name == b"proxy" => call.args = rest,
            [domain, ..] if domain == b"domain" => {
                call.say("Invalid statistics domain.");
                return Ok(());
            }
            _ => {}
        }
        let describe = described.then_some(stats::describe::column as typed::Describe);
        let filter = match filter(call.args, call.running) {
            Ok(filter) => filter,
            Err(message) => {
                call.say(message);
                return Ok(());
            }
        };
        let running = call.running.clone();
        let now = Instant::now();
        format.begin(call.out.buffer());
        for (index, object) in stats::filtered(&running, &filter, now).enumerate() {
            format.object(&running, (object, index == 0), &filter, describe, now, call.out.buffer());
            call.out.drain().await?;
        }
        format.end(call.out.buffer());
        Ok(())
    })
}

/// `[{<iid>|<proxy>} <type> <sid>] [no-maint] [up]`; -1 stands for any.
fn filter(args: &[Vec<u8>], running: &Running) -> Result<Filter, &'static str> {
    let mut filter = Filter::default();
    let mut flags = args;
    if let [proxy, types, server, rest @ ..] = args
        && let (Some(types), Some(server)) = (number(types), number(server))
    {
        flags = rest;
        filter.proxy = match number(proxy) {
            Some(iid) => u32::try_from(iid).ok(),
            None => {
                let named = running.proxies.iter().find(|known| known.config.name.as_bytes() == proxy);
                Some(named.ok_or("No such proxy.")?.config.uid)
            }
        };
        filter.types = u32::try_from(types).ok();
        filter.server = u32::try_from(server).ok();
    }
    filter.up = flags.iter().any(|word| word == b"up");
    filter.no_maint = flags.iter().any(|word| word == b"no-maint");
    Ok(filter)
}

fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn show_backend(call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        call.out.push("# name\n");
        for proxy in call.running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend) {
            call.out.push(&*proxy.config.name);
            call.out.push("\n");
            call.out.drain().await?;
        }
        Ok(())
    })
}

fn show_cli_sockets(call: &mut Call<'_>) {
    call.out.push("# socket lvl processes\n");
    for socket in &call.running.config.global.stats_sockets {
        let line = format!("{} {} all\n", DisplayAddress(&socket.address), level_name(socket.level));
        call.out.push(line);
    }
}

fn show_env(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        use std::os::unix::ffi::OsStrExt;
        let wanted = call.args.first().cloned();
        let mut found = false;
        let running = call.running.clone();
        let set = running
            .config
            .environment
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        // The configuration's environment has texts alone.
        let rest = std::env::vars_os().filter(|(name, value)| name.to_str().and(value.to_str()).is_none());
        let rest = rest.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        let all: Vec<(Vec<u8>, Vec<u8>)> = set.chain(rest).collect();
        for (name, value) in all {
            if wanted.as_ref().is_some_and(|wanted| name != *wanted) {
                continue;
            }
            found = true;
            for part in [&name[..], b"=", &value, b"\n"] {
                call.out.push(part);
            }
            call.out.drain().await?;
        }
        if wanted.is_some() && !found {
            call.say("Variable not found");
        }
        Ok(())
    })
}

/// Prints the metrics of every worker's runtime and its figures.
fn show_activity(call: &mut Call<'_>) {
    let workers = &call.running.process.workers;
    let mut row = |name: &str, values: Vec<u64>| {
        let total: u64 = values.iter().sum();
        let each: Vec<String> = values.iter().map(u64::to_string).collect();
        let list = if each.len() > 1 { format!(" [ {} ]", each.join(" ")) } else { String::new() };
        call.out.push(format!("{name}: {total}{list}\n"));
    };
    row("sessions_current", workers.iter().map(|w| u64::from(w.load.load(Ordering::Relaxed))).collect());
    row("sessions", workers.iter().map(|w| w.sessions.get()).collect());
    row("requests", workers.iter().map(|w| w.requests.get()).collect());
    row("streams_current", workers.iter().map(|w| w.streams.load(Ordering::Relaxed)).collect());
    row("accept_maxconn", workers.iter().map(|w| w.full.get()).collect());
    row("accept_exhausted", workers.iter().map(|w| w.exhausted.get()).collect());
    let runtimes: Vec<_> = workers.iter().filter_map(|worker| worker.runtime.get()).collect();
    row("tasks", runtimes.iter().map(|runtime| runtime.num_alive_tasks() as u64).collect());
    row("busy_ms", runtimes.iter().map(|r| r.worker_total_busy_duration(0).as_millis() as u64).collect());
    row("parks", runtimes.iter().map(|r| r.worker_park_count(0)).collect());
}

/// Returns a table of the servers of one backend or of all.
fn show_servers<'a>(
    mut call: Call<'a>,
    header: fn(&Running) -> String,
    line: fn(&ProxyRun, &ServerRun, Instant, Option<u32>) -> String,
) -> Answer<'a> {
    Box::pin(async move {
        let only: Option<Arc<ProxyRun>> = match call.arg(0) {
            "" => None,
            name => match backend_named(call.running, name) {
                Some(proxy) => Some(proxy.clone()),
                None => {
                    call.say("Can't find backend.");
                    return Ok(());
                }
            },
        };
        call.out.push(header(call.running));
        let (now, anonymous) = (Instant::now(), call.session.anonymous);
        for proxy in call.running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend) {
            if only.as_ref().is_some_and(|only| !Arc::ptr_eq(only, proxy)) {
                continue;
            }
            for server in &proxy.servers {
                // Writing to a vector can't fail.
                let _ = writeln!(call.out.buffer(), "{}", line(proxy, server, now, anonymous));
                call.out.drain().await?;
            }
        }
        Ok(())
    })
}

fn ip(server: &ServerRun) -> Option<IpAddr> {
    let configured = match &server.config.address {
        ServerAddress::Inet(ip, _) => Some(*ip),
        _ => server.socket_addr(None).map(|address| address.ip()),
    };
    server.shared.moved().ip.or(configured)
}

/// Returns a server's address and port; `-` and 0 if it has none.
fn place(server: &ServerRun) -> (String, u16) {
    let address = ip(server).map_or_else(|| "-".to_owned(), |ip| ip.to_string());
    (address, server.shown_port())
}

pub(crate) fn state_header(_: &Running) -> String {
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
     srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state \
     bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr \
     srv_agent_addr srv_agent_port\n"
        .to_owned()
}

/// Returns a line of the state file's version 1 (management guide, `show servers state`).
pub(crate) fn state(proxy: &ProxyRun, server: &ServerRun, now: Instant, key: Option<u32>) -> String {
    let status = server.shared.status();
    let config = &server.config;
    let checked = config.check.is_some();
    let maintenance = status.admin() == Admin::Maintenance;
    let operation = match status.operation {
        _ if !status.is_running() => 0,
        Operation::Running if status.starting => 1,
        Operation::Stopping => 3,
        _ => 2,
    };
    let (name, service) = match &config.address {
        ServerAddress::Name(name, _) if server.follows_service() => {
            let section = config.resolve.as_ref().and_then(|own| proxy.directory.resolver(&own.section));
            let target = section.and_then(|section| section.name_of(&proxy.config.name, server.name()));
            (target.unwrap_or_else(|| "-".to_owned()), name.as_str())
        }
        _ => (server.hostname().map_or_else(|| "-".to_owned(), |name| name.to_string()), "-"),
    };
    // Forced maintenance, that of the tracked server, configured maintenance, forced drain, that of the tracked server,
    // no address, and a name set by a command or by the record of a service.
    let is_renamed = server.shared.fqdn().is_some() || service != "-" && name != "-";
    let admin = u32::from(is_renamed) << 6
        | u32::from(status.unresolved) << 5
        | u32::from(status.inherited == Admin::Drain) << 4
        | u32::from(status.inherited == Admin::Maintenance) << 1
        | u32::from(status.admin == Admin::Maintenance)
        | u32::from(config.disabled) << 2
        | u32::from(status.admin == Admin::Drain) << 3;
    let (check_status, result) = match status.check.as_ref().map(|check| check.status) {
        None => (1, 0),
        Some(status) => (status as u32, status.result() as u32),
    };
    let level = if checked { status.health.level } else { status.unchecked_level };
    // Configured, enabled, paused.
    let check_state = match checked {
        true => 2 | u32::from(status.checks) << 2 | u32::from(maintenance) << 3,
        false => u32::from(config.disabled) << 3,
    };
    let (address, port) = place(server);
    let check = config.check.as_ref();
    let check_port = server.shared.moved().check_port.or(check.and_then(|check| check.port)).unwrap_or(0);
    let place = |addr: Option<IpAddr>| addr.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
    let moved = server.shared.moved();
    let check_addr = place(moved.check_addr.or(check.and_then(|check| check.addr)));
    let agent = config.health.agent.as_ref();
    // The settings of checks apply to agents, too, unless these have their own.
    let agent_addr = place(moved.agent_addr.or_else(|| agent.and_then(|a| a.addr).or(check.and_then(|c| c.addr))));
    let checked_port = check.and_then(|check| check.port);
    let agent_port = moved.agent_port.or_else(|| agent.map(|agent| agent.port).or(checked_port)).unwrap_or(0);
    // Configured, enabled, an agent's.
    let agent_state = agent.map_or(0, |_| 2 | u32::from(status.agent.enabled) << 2 | 16);
    let uses_tls = match server.shared.tls_set() {
        None if config.no_tls => -1,
        _ => i32::from(server.tls().is_some()),
    };
    let [address, check_addr, agent_addr] = [address, check_addr, agent_addr].map(|text| anonymous_address(key, &text));
    let name = if name == "-" { name } else { anonymous(key, &name) };
    format!(
        "{} {} {} {} {address} {operation} {admin} {} {} {} {check_status} {result} {level} {check_state} \
         {agent_state} {} {} {name} {port} {service} {uses_tls} {check_port} {check_addr} {agent_addr} {agent_port}",
        proxy.config.uid,
        anonymous(key, &proxy.config.name),
        config.sid,
        anonymous(key, server.name()),
        status.weight,
        config.weight,
        now.saturating_duration_since(status.changed).as_secs(),
        u32::from(proxy.config.forced_id),
        u32::from(config.forced_id),
    )
}

fn connections_header(running: &Running) -> String {
    format!(
        "# bkname/svname bkid/svid addr port - purge_delay used_cur used_max need_est unsafe_nb safe_nb idle_lim \
         idle_cur idle_per_thr[{}]\n",
        running.process.workers.len()
    )
}

fn connections(proxy: &ProxyRun, server: &ServerRun, _: Instant, key: Option<u32>) -> String {
    let (address, port) = place(server);
    let figures = &server.shared.figures;
    let (used, most) = (figures.scur.load(Ordering::Relaxed), figures.smax.load(Ordering::Relaxed));
    let need = server.shared.needed_connections().max(used);
    let idle: Vec<String> = server.shared.idle_by_worker().map(|count| count.to_string()).collect();
    let total = server.shared.idle_connections();
    let safe = server.shared.safe_idle_connections();
    let others = total.saturating_sub(safe);
    let pool = server.config.pool;
    let delay = pool.purge_delay.unwrap_or_default().as_millis();
    let limit = pool.max.map_or_else(|| "-1".to_owned(), |max| max.to_string());
    format!(
        "{}/{} {}/{} {address} {port} - {delay} {used} {most} {need} {others} {safe} {limit} {total} {}",
        anonymous(key, &proxy.config.name),
        anonymous(key, server.name()),
        proxy.config.uid,
        server.config.sid,
        idle.join(" ")
    )
}
