//! Commands that change servers, frontends and limits.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_config::model::{ProxyKind, StatsLevel};

use super::catalogue::{Call, Command, Run};
use crate::frontend::Gate;
use crate::log::{Logger, Severity};
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Directive, HealthWord, ServerRun, parse_weight, say};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["clear", "counters"],
        arguments: "[all]",
        help: "clear max statistics counters (or all counters)",
        level: StatsLevel::Operator,
        run: Run::Now(clear_counters),
    },
    Command {
        name: &["disable", "agent"],
        arguments: "",
        help: "disable agent checks",
        level: StatsLevel::Admin,
        run: Run::Now(|call| direct(call, Directive::AgentChecks(false))),
    },
    Command {
        name: &["disable", "dynamic-cookie", "backend"],
        arguments: "<bk>",
        help: "disable dynamic cookies on a specific backend",
        level: StatsLevel::Admin,
        run: Run::Now(|call| dynamic_cookie(call, |_, proxy| proxy.backend.cookies.enable(false))),
    },
    Command {
        name: &["disable", "frontend"],
        arguments: "<frontend>",
        help: "temporarily disable specific frontend",
        level: StatsLevel::Admin,
        run: Run::Now(|call| gate(call, Gate::Paused)),
    },
    Command {
        name: &["disable", "health"],
        arguments: "",
        help: "disable health checks",
        level: StatsLevel::Admin,
        run: Run::Now(|call| direct(call, Directive::Checks(false))),
    },
    Command {
        name: &["disable", "server"],
        arguments: "(DEPRECATED)",
        help: "disable a server for maintenance (use 'set server' instead)",
        level: StatsLevel::Admin,
        run: Run::Now(|call| direct(call, Directive::State(Admin::Maintenance))),
    },
    Command {
        name: &["enable", "agent"],
        arguments: "",
        help: "enable agent checks",
        level: StatsLevel::Admin,
        run: Run::Now(enable_agent),
    },
    Command {
        name: &["enable", "dynamic-cookie", "backend"],
        arguments: "<bk>",
        help: "enable dynamic cookies on a specific backend",
        level: StatsLevel::Admin,
        run: Run::Now(|call| dynamic_cookie(call, |_, proxy| proxy.backend.cookies.enable(true))),
    },
    Command {
        name: &["enable", "frontend"],
        arguments: "<frontend>",
        help: "re-enable specific frontend",
        level: StatsLevel::Admin,
        run: Run::Now(|call| gate(call, Gate::Open)),
    },
    Command {
        name: &["enable", "health"],
        arguments: "",
        help: "enable health checks",
        level: StatsLevel::Admin,
        run: Run::Now(enable_health),
    },
    Command {
        name: &["enable", "server"],
        arguments: " (DEPRECATED)",
        help: "enable a disabled server (use 'set server' instead)",
        level: StatsLevel::Admin,
        run: Run::Now(|call| direct(call, Directive::State(Admin::Ready))),
    },
    Command {
        name: &["get", "weight"],
        arguments: "<bk>/<srv>",
        help: "report a server's current weight",
        level: StatsLevel::User,
        run: Run::Now(get_weight),
    },
    Command {
        name: &["set", "dynamic-cookie-key", "backend"],
        arguments: "<bk> <k>",
        help: "change a backend secret key for dynamic cookies",
        level: StatsLevel::Admin,
        run: Run::Now(|call| dynamic_cookie(call, set_cookie_key)),
    },
    Command {
        name: &["set", "maxconn", "frontend"],
        arguments: "<frontend> <value>",
        help: "change a frontend's maxconn setting",
        level: StatsLevel::Admin,
        run: Run::Now(set_maxconn_frontend),
    },
    Command {
        name: &["set", "maxconn", "global"],
        arguments: "<value>",
        help: "change the per-process maxconn setting",
        level: StatsLevel::Admin,
        run: Run::Now(set_maxconn_global),
    },
    Command {
        name: &["set", "maxconn", "server"],
        arguments: "<bk>/<srv>",
        help: "change a server's maxconn setting",
        level: StatsLevel::Admin,
        run: Run::Now(set_maxconn_server),
    },
    Command {
        name: &["set", "rate-limit"],
        arguments: "<setting> <value>",
        help: "change a rate limiting value",
        level: StatsLevel::Admin,
        run: Run::Now(set_rate_limit),
    },
    Command {
        name: &["set", "server"],
        arguments: "<bk>/<srv> [opts]",
        help: "change a server's state, weight, address or ssl",
        level: StatsLevel::Admin,
        run: Run::Now(set_server),
    },
    Command {
        name: &["set", "weight"],
        arguments: "<bk>/<srv>  (DEPRECATED)",
        help: "change a server's weight (use 'set server' instead)",
        level: StatsLevel::Admin,
        run: Run::Now(|call| {
            if let Some((proxy, server)) = server(call) {
                set_weight(call, &proxy, &server, 1);
            }
        }),
    },
    Command {
        name: &["shutdown", "frontend"],
        arguments: "<frontend>",
        help: "stop a specific frontend",
        level: StatsLevel::Admin,
        run: Run::Now(|call| gate(call, Gate::Shut)),
    },
];

type Target = (Arc<ProxyRun>, Arc<ServerRun>);

/// Returns the server that the first argument names as `backend/server`, or sends the client an error.
pub(super) fn server(call: &mut Call<'_>) -> Option<Target> {
    let Some((backend, name)) = call.arg(0).split_once('/') else {
        call.say("Require 'backend/server'.");
        return None;
    };
    let proxy = backend_named(call.running, backend).cloned();
    let found = proxy.as_ref().and_then(|proxy| proxy.server(name).cloned());
    match (proxy, found) {
        (Some(proxy), Some(server)) => return Some((proxy, server)),
        (None, _) => call.say("No such backend."),
        _ => call.say("No such server."),
    }
    None
}

/// Returns the backend of this name, or of this number as `#N`.
pub(super) fn backend_named<'r>(running: &'r Running, name: &str) -> Option<&'r Arc<ProxyRun>> {
    match name.strip_prefix('#').and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => {
            let is_backend = |proxy: &&Arc<ProxyRun>| proxy.config.kind != ProxyKind::Frontend;
            running.proxies.iter().filter(is_backend).find(|proxy| proxy.config.uid == number)
        }
        None => Some(&running.proxies[running.directory.backend_id(name)?.0 as usize]),
    }
}

fn frontend(call: &mut Call<'_>) -> Option<Arc<ProxyRun>> {
    let name = call.arg(0);
    if name.is_empty() {
        call.say("A frontend name is expected.");
        return None;
    }
    let found = call.running.directory.frontend_id(name);
    if found.is_none() {
        call.say("No such frontend.");
    }
    Some(call.running.proxies[found?.0 as usize].clone())
}

/// Changes the computation of a backend's persistence cookie values.
fn dynamic_cookie(call: &mut Call<'_>, change: fn(&mut Call<'_>, &ProxyRun)) {
    let found = match call.arg(0) {
        "" => Err("A backend name is expected."),
        name => backend_named(call.running, name).cloned().ok_or("No such backend."),
    };
    match found {
        Ok(proxy) => change(call, &proxy),
        Err(message) => call.say(message),
    }
}

fn set_cookie_key(call: &mut Call<'_>, proxy: &ProxyRun) {
    match call.arg(1) {
        "" => call.say("String value expected."),
        key => proxy.backend.cookies.set_key(Some(key)),
    }
}

fn direct(call: &mut Call<'_>, directive: Directive) {
    if let Some((proxy, server)) = server(call) {
        proxy.direct(call.running, &server, directive);
    }
}

fn enable_health(call: &mut Call<'_>) {
    let Some((proxy, server)) = server(call) else { return };
    if server.config.check.is_none() {
        return call.say("Health check was not configured on this server, cannot enable.");
    }
    proxy.direct(call.running, &server, Directive::Checks(true));
}

fn enable_agent(call: &mut Call<'_>) {
    let Some((proxy, server)) = server(call) else { return };
    if server.config.health.agent.is_none() {
        return call.say("Agent was not configured on this server, cannot enable.");
    }
    proxy.direct(call.running, &server, Directive::AgentChecks(true));
}

/// `set server … agent`, `agent-addr`, `agent-port`, `agent-send`.
fn set_agent(call: &mut Call<'_>, proxy: &ProxyRun, server: &ServerRun) {
    const OFF: &str = "agent checks are not enabled on this server";
    if !server.shared.status().agent.enabled {
        // HAProxy ends some of these answers with a full stop and a line feed, and others with neither.
        let ends = matches!(call.arg(1), "agent" | "agent-send");
        return if ends { call.say(format!("{OFF}.")) } else { call.answer(OFF) };
    }
    match (call.arg(1), call.arg(2)) {
        ("agent", "up") => proxy.direct(call.running, server, Directive::Agent(true)),
        ("agent", "down") => proxy.direct(call.running, server, Directive::Agent(false)),
        ("agent", _) => call.say("'set server <srv> agent' expects 'up' or 'down'."),
        ("agent-send", _) => match call.args.get(2) {
            Some(text) => server.send_to_agent(text),
            None => call.say("agent-send requires a string."),
        },
        ("agent-port", text) => match check_port(text) {
            Ok(port) => server.check_elsewhere(|moved| moved.agent_port = Some(port)),
            Err(message) => call.answer(message),
        },
        _ => match address(call) {
            Ok((host, port)) => server.check_elsewhere(|moved| {
                moved.agent_addr = Some(host);
                moved.agent_port = port.or(moved.agent_port);
            }),
            Err(message) => call.answer(message.as_bytes()),
        },
    }
}

/// `set server … check-addr`, `check-port`.
fn set_check(call: &mut Call<'_>, server: &ServerRun) {
    if server.config.check.is_none() {
        return call.answer("health checks are not enabled on this server");
    }
    match (call.arg(1), call.arg(2)) {
        ("check-port", text) => match check_port(text) {
            Ok(port) => server.check_elsewhere(|moved| moved.check_port = Some(port)),
            Err(message) => call.answer(message),
        },
        _ => match address(call) {
            Ok((host, port)) => server.check_elsewhere(|moved| {
                moved.check_addr = Some(host);
                moved.check_port = port.or(moved.check_port);
            }),
            Err(message) => call.answer(message.as_bytes()),
        },
    }
}

/// Parses `ADDR [port PORT]`, starting with the third argument.
fn address(call: &Call<'_>) -> Result<(IpAddr, Option<u16>), Cow<'static, str>> {
    let text = call.arg(2);
    let host = text.parse().map_err(|_| format!("invalid addr '{text}'"))?;
    let port = (call.arg(3) == "port").then(|| check_port(call.arg(4))).transpose()?;
    Ok((host, port))
}

fn check_port(text: &str) -> Result<u16, &'static str> {
    match text.parse::<u16>() {
        Ok(port) => Ok(port),
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => Err("provided port is invalid"),
        Err(_) => Err("provided port is not an integer"),
    }
}

fn gate(call: &mut Call<'_>, to: Gate) {
    let Some(proxy) = frontend(call) else { return };
    if let Err(refusal) = proxy.turn(to, &call.running.logger) {
        call.say(refusal);
    }
}

impl ProxyRun {
    /// Pauses, resumes or stops a frontend and logs that; if it has no effect, the error is HAProxy's message.
    pub(crate) fn turn(&self, to: Gate, logger: &Logger) -> Result<(), &'static str> {
        let shared = &self.frontend;
        match (shared.gate(), to) {
            (Gate::Shut, Gate::Open) => return Err("Frontend was previously shut down, cannot enable."),
            (Gate::Shut, Gate::Paused) => return Err("Frontend was previously shut down, cannot disable."),
            (Gate::Shut, Gate::Shut) => return Err("Frontend was already shut down."),
            (Gate::Open, Gate::Open) => return Err("All sockets are already enabled."),
            (Gate::Paused, Gate::Paused) => return Err("All sockets are already disabled."),
            _ => {}
        }
        if to == Gate::Paused && self.config.binds.iter().any(|bind| bind.is_reverse()) {
            logger.send(&self.config.log, Severity::Error, b"cannot disable a reverse-HTTP listener.");
            return Err("Failed to pause frontend, check logs for precise cause.");
        }
        shared.set_gate(to);
        let name = &self.config.name;
        let kind = if self.config.kind == ProxyKind::Listen { "proxy" } else { "frontend" };
        let line = match to {
            Gate::Open => format!("Resumed {kind} {name}."),
            Gate::Paused => format!("Paused {kind} {name}."),
            Gate::Shut => {
                let (front, back) = (self.frontend.figures.sum(|c| &c.conn_tot), self.backend.figures.sum(|c| &c.stot));
                format!("Proxy {name} stopped (cumulated conns: FE: {front}, BE: {back}).")
            }
        };
        say(self, logger, "WARNING", Severity::Warning, &line);
        Ok(())
    }
}

fn get_weight(call: &mut Call<'_>) {
    if let Some((_, server)) = server(call) {
        call.out.push(format!("{} (initial {})\n", server.shared.status().weight, server.config.weight));
    }
}

fn set_weight(call: &mut Call<'_>, proxy: &ProxyRun, server: &ServerRun, at: usize) {
    match call.arg(at) {
        "" => call.say("Require <weight> or <weight%>."),
        text => match parse_weight(text, server.config.weight, proxy.backend.dynamic) {
            Ok(weight) => proxy.direct(call.running, server, Directive::Weight(weight)),
            Err(error) => call.answer(error.message()),
        },
    }
}

fn set_server(call: &mut Call<'_>) {
    let Some((proxy, server)) = server(call) else { return };
    let running = call.running.clone();
    let direct = |directive| proxy.direct(&running, &server, directive);
    match (call.arg(1), call.arg(2)) {
        ("weight", _) => set_weight(call, &proxy, &server, 2),
        ("state", "ready") => direct(Directive::State(Admin::Ready)),
        ("state", "drain") => direct(Directive::State(Admin::Drain)),
        ("state", "maint") => direct(Directive::State(Admin::Maintenance)),
        ("state", _) => call.say("'set server <srv> state' expects 'ready', 'drain' and 'maint'."),
        ("health", _) if server.config.health.track.is_some() => {
            call.say("cannot change health on a tracking server.");
        }
        ("health", "up") => direct(Directive::Health(HealthWord::Up)),
        ("health", "stopping") => direct(Directive::Health(HealthWord::Stopping)),
        ("health", "down") => direct(Directive::Health(HealthWord::Down)),
        ("health", _) => call.say("'set server <srv> health' expects 'up', 'stopping', or 'down'."),
        ("agent" | "agent-addr" | "agent-port" | "agent-send", _) => set_agent(call, &proxy, &server),
        ("check-addr" | "check-port", _) => set_check(call, &server),
        ("addr", "") => call.say("set server <b>/<s> addr requires an address and optionally a port."),
        ("addr", text) => {
            let text = text.to_owned();
            set_address(call, &proxy, &server, &text);
        }
        ("fqdn", "") => call.say("set server <b>/<s> fqdn requires a FQDN."),
        ("fqdn", name) => {
            let name = name.to_owned();
            set_name(call, &proxy, &server, &name);
        }
        ("ssl", _) if server.connector().is_none() => {
            call.say("'set server <srv> ssl' cannot be set.  default-server should define ssl settings");
        }
        ("ssl", word @ ("on" | "off")) => {
            server.shared.set_tls(word == "on");
            crate::server::clear_idle(&server);
            call.say("server ssl setting updated.");
        }
        ("ssl", _) => call.say("'set server <srv> ssl' expects 'on' or 'off'."),
        _ => call.say(
            "usage: set server <backend>/<server> addr | agent | agent-addr | agent-port | agent-send | check-addr | \
             check-port | fqdn | health | ssl | state | weight",
        ),
    }
}

fn set_address(call: &mut Call<'_>, proxy: &ProxyRun, server: &ServerRun, text: &str) {
    let port = (call.arg(3) == "port").then(|| call.arg(4).to_owned());
    call.say(proxy.move_server(call.running, server, (text, port.as_deref()), "stats socket command"));
}

/// `set server … fqdn`: changes the name whose address the server follows.
fn set_name(call: &mut Call<'_>, proxy: &ProxyRun, server: &ServerRun, name: &str) {
    let refused = |why: &str| format!("set server <b>/<s> fqdn failed because {why}.");
    let section = server.config.resolve.as_ref().and_then(|resolve| proxy.directory.resolver(&resolve.section));
    let said = match section {
        None => refused("no resolution is configured"),
        Some(_) if server.follows_service() => refused("SRV resolution is configured"),
        Some(section) => format!("{} by 'stats socket command'", section.rename(&proxy.config.name, server, name)),
    };
    call.say(said);
}

/// Parses a limit as HAProxy does: digits; anything else counts as 0.
fn limit(text: &str) -> Option<u32> {
    match text.parse::<i64>() {
        Ok(number) => u32::try_from(number).ok(),
        Err(_) => Some(0),
    }
}

fn set_maxconn_frontend(call: &mut Call<'_>) {
    let Some(proxy) = frontend(call) else { return };
    match call.arg(1) {
        "" => call.say("Integer value expected."),
        text => match limit(text) {
            Some(max) => proxy.frontend.sessions.set_max(Some(max)),
            None => call.say("Value out of range."),
        },
    }
}

fn set_maxconn_global(call: &mut Call<'_>) {
    let sessions = &call.running.process.sessions;
    let hard = call.running.process.hard_maxconn();
    match call.arg(0) {
        "" => call.say("Expects an integer value."),
        // A number below 0 counts as 0, which is the hard limit.
        text => match (limit(text).or_else(|| text.starts_with('-').then_some(0)), hard) {
            (Some(0), hard) => sessions.set_max(hard),
            (Some(max), Some(hard)) if max <= hard => sessions.set_max(Some(max)),
            (Some(max), None) => sessions.set_max(Some(max)),
            _ => call.say("Value out of range."),
        },
    }
}

fn set_rate_limit(call: &mut Call<'_>) {
    let process = call.running.process.clone();
    let (text, global) = (call.arg(2), call.arg(1) == "global");
    let set: &dyn Fn(u32) = match call.arg(0) {
        "connections" if global => &|limit| process.connection_pace.set_limit(limit),
        "sessions" if global => &|limit| process.session_pace.set_limit(limit),
        "ssl-sessions" if global => &|limit| process.tls_pace.set_limit(limit),
        "http-compression" if global => {
            &|limit| process.compression_rate.store(u64::from(limit) * 1024, Ordering::Relaxed)
        }
        _ => {
            return call.say(
                "'set rate-limit' only supports :\n   - 'connections global' to set the per-process maximum connection \
                 rate\n   - 'sessions global' to set the per-process maximum session rate\n   - 'ssl-sessions global' to \
                 set the per-process maximum SSL session rate\n   - 'http-compression global' to set the per-process \
                 maximum compression speed in kB/s",
            );
        }
    };
    match (text, limit(text)) {
        ("", _) => call.say("Expects an integer value."),
        (_, Some(limit)) => set(limit),
        (_, None) => call.say("Value out of range."),
    }
}

fn set_maxconn_server(call: &mut Call<'_>) {
    let Some((proxy, server)) = server(call) else { return };
    match call.arg(1) {
        "" => call.say("Require <maxconn>."),
        text => match text.parse::<u32>() {
            Ok(max) => proxy.backend.set_maxconn(server.shared.index, max),
            Err(_) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                call.answer("Trailing garbage in maxconn string");
            }
            Err(_) => call.answer("maxconn string empty or preceded by garbage"),
        },
    }
}

fn clear_counters(call: &mut Call<'_>) {
    let all = call.arg(0) == "all";
    if all && !call.may(StatsLevel::Admin) {
        return;
    }
    for proxy in &call.running.proxies {
        proxy.frontend.sessions.clear_peak();
        proxy.frontend.figures.clear(all);
        proxy.backend.figures.clear(all);
        for listener in call.running.counted_listeners(proxy) {
            listener.sessions.clear_peak();
            listener.figures().inspect(|figures| figures.clear(all));
        }
        proxy.backend.queue.clear_highest();
        for server in &proxy.servers {
            server.shared.figures.clear(all);
            server.shared.clear_highest();
            if all {
                proxy.backend.forget_failures(server.shared.index);
            }
        }
    }
    call.running.process.sessions.clear_peak();
}
