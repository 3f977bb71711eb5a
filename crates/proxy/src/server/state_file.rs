//! Server states of another process from its `show servers state`, restored at start (`server-state-file`).
//!
//! The text is [`parse`]d as a whole: one malformed line invalidates all of it, as in HAProxy, since the rest may be
//! damaged, too. Changed definitions of the configuration win: a weight is restored only if the configured one is still
//! the same, and so is maintenance. Workers are not notified, as they do not run yet.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{CheckStatus, ProxyKind, ServerAddress, StateSource};

use super::admin::WEIGHT_MAX;
use super::health::{CheckReport, Health};
use super::run::ServerRun;
use super::shared::{Admin, Operation, initial};
use crate::running::{ProxyRun, Running};

/// Bits of `srv_admin_state`.
const FORCED_MAINTENANCE: u32 = 0x01;
const INHERITED_MAINTENANCE: u32 = 0x02;
const CONFIGURED_MAINTENANCE: u32 = 0x04;
const FORCED_DRAIN: u32 = 0x08;
const INHERITED_DRAIN: u32 = 0x10;
const UNRESOLVED: u32 = 0x20;
const NAME_BY_COMMAND: u32 = 0x40;

/// Bits of `srv_check_state` and `srv_agent_state`.
const CONFIGURED: u32 = 0x02;
const ENABLED: u32 = 0x04;

/// The highest number of a check's status that HAProxy knows.
const LAST_CHECK_STATUS: u32 = 20;

/// The number of columns of a line before `srv_use_ssl`: those of HAProxy 1.8. A shorter line is rejected.
const FEWEST: usize = 20;

/// The lines of a text by `backend server`.
type Lines<'a> = HashMap<(&'a str, &'a str), Vec<&'a str>>;

/// The reason why a text is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin with the line `1`.
    Version,
    /// This line, counted from 1, does not describe a server.
    Line(usize),
}

/// Returns the lines of version 1.
pub fn parse(text: &str) -> Result<Lines<'_>, Fault> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, first)| first != "1") {
        return Err(Fault::Version);
    }
    let mut found = Lines::new();
    for (index, line) in lines {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.len() < FEWEST {
            return Err(Fault::Line(index + 1));
        }
        // The first line of a server counts.
        found.entry((words[1], words[3])).or_insert_with(|| words[4..].to_vec());
    }
    Ok(found)
}

/// The fuzz target of the parser: any text is either parsed or rejected.
pub fn fuzz_state_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(lines) = parse(text) {
        for line in lines.values() {
            if let Ok(state) = read(line) {
                assert!(state.weight <= WEIGHT_MAX && state.initial_weight <= WEIGHT_MAX);
            }
        }
    }
}

/// A server's line.
struct State {
    address: Option<IpAddr>,
    operation: u32,
    admin: u32,
    weight: u32,
    initial_weight: u32,
    age: Duration,
    check_status: u32,
    level: u32,
    check_state: u32,
    agent_state: u32,
    port: Option<u16>,
    check: (Option<IpAddr>, Option<u16>),
    agent: (Option<IpAddr>, Option<u16>),
    /// The name set by a command.
    fqdn: Option<Arc<str>>,
    /// The name that its address comes from.
    name: Option<Arc<str>>,
    /// The service whose record it follows.
    service: Option<Arc<str>>,
    /// `srv_use_ssl`, if the line has it.
    tls: Option<i32>,
}

/// Parses the words after the server's name; `Err` lists all invalid ones.
fn read(words: &[&str]) -> Result<State, String> {
    let mut wrong = String::new();
    let mut number = |index: usize, name: &str, good: &dyn Fn(u32) -> bool| {
        let value = words[index].parse().ok().filter(|value| good(*value));
        value.unwrap_or_else(|| {
            wrong.push_str(&format!(", invalid {name} value '{}'", words[index]));
            0
        })
    };
    let any = |_: u32| true;
    let weight = |weight: u32| weight <= WEIGHT_MAX;
    let known = CONFIGURED_MAINTENANCE | FORCED_MAINTENANCE | FORCED_DRAIN;
    let others = INHERITED_MAINTENANCE | INHERITED_DRAIN | UNRESOLVED | NAME_BY_COMMAND;
    let operation = number(1, "srv_op_state", &|state| state <= 3);
    let admin = number(2, "srv_admin_state", &|state| {
        state & !(known | others) == 0
            && state & (FORCED_MAINTENANCE | FORCED_DRAIN) != FORCED_MAINTENANCE | FORCED_DRAIN
    });
    let (own, initial) = (number(3, "srv_uweight", &weight), number(4, "srv_iweight", &weight));
    let age = number(5, "srv_last_time_change", &any);
    let check_status = number(6, "srv_check_status", &|status| status <= LAST_CHECK_STATUS);
    number(7, "srv_check_result", &|result| result <= 4);
    let level = number(8, "srv_check_health", &any);
    let check_state = number(9, "srv_check_state", &|state| state <= 0x0f);
    let agent_state = number(10, "srv_agent_state", &|state| state <= 0x1f);
    number(11, "bk_f_forced_id", &|flag| flag <= 1);
    number(12, "srv_f_forced_id", &|flag| flag <= 1);
    let port = number(14, "srv_port", &|port| port <= u32::from(u16::MAX));
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let address = |index: usize| words.get(index).and_then(|word| word.parse().ok());
    let port_at = |index: usize| words.get(index).and_then(|word| word.parse().ok()).filter(|port| *port > 0);
    Ok(State {
        address: address(0),
        operation,
        admin,
        weight: own,
        initial_weight: initial,
        age: Duration::from_secs(age.into()),
        check_status,
        level,
        check_state,
        agent_state,
        port: (port > 0).then_some(port as u16),
        check: (address(18), port_at(17)),
        agent: (address(19), port_at(20)),
        name: (words[13] != "-").then(|| words[13].into()),
        service: words.get(15).filter(|name| **name != "-").map(|name| (*name).into()),
        tls: words.get(16).and_then(|word| word.parse().ok()),
        // The name of a service's record is none that a command has set.
        fqdn: (admin & NAME_BY_COMMAND != 0 && words[13] != "-" && words.get(15).is_none_or(|name| *name == "-"))
            .then(|| words[13].into()),
    })
}

/// States of servers that the previous process kept: lines of the state file's version 1.
#[derive(Debug, Default)]
pub struct KeptStates {
    pub(crate) text: String,
    /// The difference between the times since the last changes and those of the lines, in seconds.
    pub(crate) later_s: i64,
}

/// Restores the states of servers of a configuration that is about to be served: from state files, which are read with
/// `file`, or, where no source is configured, from what the previous process `kept`. Returns the last addresses of names
/// by `backend/server`, and the messages.
pub fn restore(
    running: &Arc<Running>,
    kept: &KeptStates,
    file: &dyn Fn(&Path) -> io::Result<Vec<u8>>,
) -> (HashMap<String, IpAddr>, Vec<String>) {
    let (mut addresses, mut notes) = (HashMap::new(), Vec::new());
    let global = &running.config.global;
    let place = |name: &str| match &global.server_state_base {
        Some(base) if !name.starts_with('/') => base.join(name),
        _ => PathBuf::from(name),
    };
    let mut load = |name: &str, subject: &str, kind: &str| {
        let path = place(name);
        let shown = path.display();
        let bytes = match file(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                notes.push(format!("{subject}: Can't open {kind} '{shown}': {error}"));
                return None;
            }
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match parse(&text) {
            Ok(_) => return Some(text),
            Err(Fault::Version) => notes.push(format!("{subject}: Can't get version of the {kind} '{shown}'.")),
            Err(Fault::Line(line)) => notes.push(format!("{subject}: corrupted {kind} '{shown}' at line {line}.")),
        }
        None
    };
    let shared = global.server_state_file.as_deref().and_then(|name| load(name, "config", "global server state file"));
    let shared_lines = shared.as_deref().and_then(|text| parse(text).ok()).unwrap_or_default();
    let mut texts = Vec::new();
    for proxy in running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend) {
        let own = match proxy.config.state_source {
            _ if proxy.config.disabled || proxy.servers.is_empty() => continue,
            StateSource::None => continue,
            StateSource::Unset if kept.text.is_empty() => continue,
            StateSource::Unset | StateSource::Global => None,
            StateSource::Local => {
                let name = proxy.config.state_file.as_deref().unwrap_or(&proxy.config.name);
                let subject = format!("Proxy '{}'", proxy.config.name);
                let Some(text) = load(name, &subject, "server state file") else { continue };
                Some(text)
            }
        };
        texts.push((proxy, own));
    }
    let kept_lines = parse(&kept.text).unwrap_or_default();
    let now = Instant::now();
    for (proxy, text) in &texts {
        let own = text.as_deref().and_then(|text| parse(text).ok());
        let lines = match proxy.config.state_source {
            StateSource::Unset => &kept_lines,
            _ => own.as_ref().unwrap_or(&shared_lines),
        };
        for server in &proxy.servers {
            let Some(line) = lines.get(&(&*proxy.config.name, &**server.name())) else { continue };
            let subject = format!("for server '{}/{}'", proxy.config.name, server.name());
            match read(line) {
                Ok(state) if state.is_of_another_service(server) => {
                    let (is, was) = (server.hostname(), state.service);
                    let [is, was] = [&is, &was].map(|name| name.as_deref().unwrap_or("-"));
                    notes.push(format!(
                        "server-state application failed {subject}, it follows the service '{is}' and not '{was}'"
                    ));
                }
                Ok(mut state) => {
                    if proxy.config.state_source == StateSource::Unset {
                        let age_s = i64::try_from(state.age.as_secs()).unwrap_or(i64::MAX);
                        state.age = Duration::from_secs(age_s.saturating_add(kept.later_s).max(0).cast_unsigned());
                    }
                    if let Some(address) = state.address {
                        addresses.insert(format!("{}/{}", proxy.config.name, server.name()), address);
                    }
                    state.apply(proxy, server, now);
                }
                Err(wrong) => notes.push(format!("server-state application failed {subject}{wrong}")),
            }
        }
    }
    running.settle_trackers();
    (addresses, notes)
}

impl State {
    /// Returns whether the address came from the records of a service that the server no longer follows.
    fn is_of_another_service(&self, server: &ServerRun) -> bool {
        server.follows_service() && self.service.is_some() && self.service != server.hostname()
    }

    fn apply(&self, proxy: &ProxyRun, server: &ServerRun, now: Instant) {
        let (config, index) = (&server.config, server.shared.index);
        let was_disabled = self.admin & CONFIGURED_MAINTENANCE != 0;
        let admin = match self.admin & FORCED_MAINTENANCE != 0 {
            // A changed definition wins.
            _ if was_disabled != config.disabled && config.disabled => Admin::Maintenance,
            _ if was_disabled != config.disabled => Admin::Ready,
            true => Admin::Maintenance,
            // An initial weight of 0 had drained the server, and the configuration no longer has it.
            false if self.admin & FORCED_DRAIN != 0 && (self.initial_weight > 0 || config.weight == 0) => Admin::Drain,
            false => Admin::Ready,
        };
        // The server was down only because of a maintenance that is over, so it starts as without a state file.
        let over = FORCED_MAINTENANCE | INHERITED_MAINTENANCE | CONFIGURED_MAINTENANCE | UNRESOLVED;
        let unknown = self.operation == 0 && self.admin & over != 0 && admin != Admin::Maintenance;
        let rule = config.check.as_ref().map_or(
            Health::new(config.health.unchecked.rise, config.health.unchecked.top + 1 - config.health.unchecked.rise),
            |check| Health::new(check.rise, check.fall),
        );
        let (operation, level) = match self.operation {
            0 => (Operation::Stopped, 0),
            // With a `fall` of 1 there is no level between up and down.
            3 if rule.fall == 1 => (Operation::Stopped, 0),
            3 if (rule.rise..rule.top()).contains(&self.level) => (Operation::Stopping, self.level),
            3 => (Operation::Stopping, rule.rise),
            _ => (Operation::Running, rule.top()),
        };
        let change = |status: &mut super::ServerStatus| {
            status.admin = admin;
            if unknown {
                (status.health, status.operation) = initial(config);
            } else {
                status.times_down += u64::from(operation == Operation::Stopped && !config.disabled);
                status.operation = operation;
                status.unchecked_level = level;
                if config.check.is_some() {
                    status.health.level = level;
                }
            }
            let taken_out = |state: u32| state & CONFIGURED != 0 && state & ENABLED == 0;
            status.checks &= !(config.check.is_some() && taken_out(self.check_state));
            status.agent.enabled &= !taken_out(self.agent_state);
            let status_of_check = CheckStatus::ALL.into_iter().find(|known| *known as u32 == self.check_status);
            status.check =
                status_of_check.map(|status| CheckReport { status, code: 0, info: Vec::new(), duration: None });
            if self.initial_weight == u32::from(config.weight) && (proxy.backend.dynamic || self.weight == 0) {
                status.weight = self.weight;
            }
        };
        proxy.backend.update(index, now, change);
        proxy.backend.update(index, now, |status| {
            status.changed = now.checked_sub(self.age).unwrap_or(now);
            status.starting = self.operation == 1 && config.slowstart.is_some();
        });
        if config.resolve.is_some() && !server.follows_service() && self.fqdn != server.hostname() {
            server.shared.set_fqdn(self.fqdn.clone());
        }
        if let Some(name) = self.name.as_deref().filter(|_| server.follows_service() && self.service.is_some()) {
            server.shared.set_target(name);
        }
        // As in HAProxy, a server whose line has settings of TLS uses it if it did.
        if server.config.tls.is_some()
            && let Some(uses @ (0 | 1)) = self.tls
        {
            server.shared.set_tls(uses == 1);
        }
        self.move_there(server);
    }

    /// Restores the ports and check addresses that commands have changed. A server's address is not restored here:
    /// `init-addr` does that, for servers given by name only.
    fn move_there(&self, server: &ServerRun) {
        let config = &server.config;
        let port = self.port.filter(|port| {
            matches!(config.address, ServerAddress::Inet(..) | ServerAddress::Name(..)) && *port != server.shown_port()
        });
        let check = config.check.as_ref();
        let agent = config.health.agent.as_ref();
        let moved =
            |value: Option<IpAddr>, configured: Option<IpAddr>| value.filter(|value| Some(*value) != configured);
        let check_addr = check.and_then(|check| moved(self.check.0, check.addr));
        let check_port = check.and(self.check.1).filter(|port| check.and_then(|check| check.port) != Some(*port));
        let agent_addr = agent.and_then(|agent| moved(self.agent.0, agent.addr));
        let agent_port = agent.and(self.agent.1).filter(|port| agent.map(|agent| agent.port) != Some(*port));
        if (port, check_port, agent_port) == (None, None, None) && (check_addr, agent_addr) == (None, None) {
            return;
        }
        server.set_moved(|moved| {
            moved.port = port.or(moved.port);
            moved.check_port = check_port.or(moved.check_port);
            moved.check_addr = check_addr.or(moved.check_addr);
            moved.agent_port = agent_port.or(moved.agent_port);
            moved.agent_addr = agent_addr.or(moved.agent_addr);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "1\n# names\n3 app 1 one 127.0.0.1 2 8 3 3 7 6 3 4 6 0 0 0 - 7781 - 0 0 - - 0\n";

    #[test]
    fn a_line_that_is_none_spoils_the_file() {
        let lines = parse(GOOD).unwrap();
        let state = read(&lines[&("app", "one")]).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!((state.operation, state.admin, state.weight, state.port), (2, 8, 3, Some(7781)));
        assert_eq!(parse("").unwrap_err(), Fault::Version);
        assert_eq!(parse("2\n").unwrap_err(), Fault::Version);
        assert_eq!(parse(&format!("{GOOD}3 app 1\n")).unwrap_err(), Fault::Line(4));
        let wrong = GOOD.replace(" 2 8 3 ", " 9 9 300 ");
        let said = read(&parse(&wrong).unwrap()[&("app", "one")]).err().unwrap();
        let expected =
            ", invalid srv_op_state value '9', invalid srv_admin_state value '9', invalid srv_uweight value '300'";
        assert_eq!(said, expected);
    }

    #[test]
    fn any_text_is_read() {
        let mut state = 7u64;
        for _ in 0..3_000 {
            let mut data = GOOD.as_bytes().to_vec();
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % data.len();
                match state >> 62 {
                    0 => data.truncate(at.max(1)),
                    1 => data.insert(at, (state >> 40) as u8 & 0x7f),
                    _ => data[at] = (state >> 48) as u8 & 0x7f,
                }
            }
            fuzz_state_file(&data);
        }
    }
}
