//! Commands that add and delete servers.
//!
//! A snapshot never changes, so a snapshot with one more server is built and replaces the current one as after a reload
//! ([`Current::amend`](crate::reload::Current::amend)): requests in progress finish where they began, and counters and
//! states of the other servers are kept. A reload uses only the file: it removes such servers and restores deleted
//! ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Config, ServerAddress, ServerChoice, StatsLevel};
use sluicegate_config::{add_server, expand_address};
use sluicegate_transport::carrier;

use super::catalogue::{Call, Command, Run};
use super::change::backend_named;
use super::protocol::Answer;
use crate::listener::reason;
use crate::reload::{Amended, Current};
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Detail, ServerRun, clear_idle};

/// HAProxy's message about a server that has connections.
pub(super) const BUSY: &str = "Server still has connections attached to it, cannot remove it.";

/// The time in which the last connections of a server may end, before it cannot be deleted for them: a worker may not have
/// seen yet that a client has left. On a machine with more to do than it can, it may not run for a tenth of a second.
const ENDING_MAX: Duration = Duration::from_millis(500);
const LOOKS_EACH: Duration = Duration::from_millis(2);

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["add", "server"],
        arguments: "<bk>/<srv>",
        help: "create a new server",
        level: StatsLevel::Admin,
        run: Run::Long(add),
    },
    Command {
        name: &["del", "server"],
        arguments: "<bk>/<srv>",
        help: "remove a dynamically added server",
        level: StatsLevel::Admin,
        run: Run::Long(delete),
    },
];

fn current(call: &Call<'_>) -> Option<Arc<Current>> {
    call.running.process.current()
}

const NOT_SERVED: &str = "The process serves nothing that could be changed.";

fn add<'a>(mut call: Call<'a>) -> Answer<'a> {
    Box::pin(async move {
        let place = call.arg(0).to_owned();
        let Some((backend, name)) = place.split_once('/').filter(|(_, name)| !name.is_empty()) else {
            call.answer("Require 'backend/server'.");
            return Ok(());
        };
        let mut words: Vec<String> = (1..call.args.len()).map(|index| call.arg(index).to_owned()).collect();
        if let Some(address) = words.first_mut() {
            *address = expand_address(address, |name| std::env::var(name).ok());
        }
        let change = |running: &Arc<Running>| {
            let proxy = backend_named(running, backend).ok_or("No such backend.")?;
            if !proxy.backend.dynamic {
                return Err("Backend must use a dynamic load balancing to support dynamic servers.".to_owned());
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // A line feed distinguishes HAProxy's last message from the first two.
            let mut config = Config::clone(&running.config);
            config.tls_files = Arc::new(running.process.certificates.files());
            let config = add_server(&config, proxy.id, name, &words).map_err(|message| message + "\n")?;
            let server = config.proxies[proxy.id.0 as usize].servers.last();
            if let Some(ServerAddress::Sockpair(number)) = server.map(|server| &server.address)
                && let Err(error) = carrier(*number)
            {
                return Err(format!("cannot use file descriptor '{number}' : {}.\n", reason(&error)));
            }
            Ok(Amended { config, added: Some(proxy.id) })
        };
        match current(&call) {
            None => call.say(NOT_SERVED),
            Some(current) => match current.amend(change).await {
                Ok(()) => {
                    let running = current.running();
                    let proxy = backend_named(&running, backend);
                    if let Some((proxy, server)) = proxy.and_then(|proxy| Some((proxy, proxy.server(name)?))) {
                        running.tell_event(proxy, server, Detail::Added);
                    }
                    call.say("New server registered.");
                }
                Err(message) => call.answer(message),
            },
        }
        Ok(())
    })
}

fn delete<'a>(mut call: Call<'a>) -> Answer<'a> {
    Box::pin(async move {
        let place = call.arg(0).to_owned();
        let Some((backend, name)) = place.split_once('/') else {
            call.answer("Require 'backend/server'.");
            return Ok(());
        };
        let until = Instant::now() + ENDING_MAX;
        while Instant::now() < until
            && current(&call).is_some_and(|current| is_only_busy(&current.running(), backend, name))
        {
            tokio::time::sleep(LOOKS_EACH).await;
        }
        let mut deleted = None;
        let change = |running: &Arc<Running>| {
            let proxy = backend_named(running, backend).ok_or("No such backend.")?;
            let server = proxy.server(name).ok_or("No such server.")?;
            may_go(running, proxy, server)?;
            clear_idle(server);
            deleted = Some((running.clone(), proxy.clone(), server.clone()));
            Ok(Amended { config: without(&running.config, proxy, server), added: None })
        };
        let answer = match current(&call) {
            None => Err(NOT_SERVED.to_owned()),
            Some(current) => current.amend(change).await,
        };
        if let (Ok(()), Some((running, proxy, server))) = (&answer, &deleted) {
            running.tell_event(proxy, server, Detail::Deleted);
        }
        call.answer(answer.err().unwrap_or_else(|| "Server deleted.".to_owned()));
        Ok(())
    })
}

/// Returns whether a server cannot be deleted, but only because of its connections.
fn is_only_busy(running: &Running, backend: &str, name: &str) -> bool {
    let server = backend_named(running, backend).and_then(|proxy| Some((proxy, proxy.server(name)?)));
    server.is_some_and(|(proxy, server)| may_go(running, proxy, server) == Err(BUSY))
}

/// Checks whether a server may be deleted; the error is HAProxy's message.
pub(super) fn may_go(running: &Running, proxy: &ProxyRun, server: &ServerRun) -> Result<(), &'static str> {
    let named = |choice: &ServerChoice| matches!(choice, ServerChoice::Named(name) if name == server.name());
    let config = &proxy.config;
    if config.use_server.iter().any(|rule| named(&rule.server))
        || running.trackers(proxy.id, server.shared.index).next().is_some()
        || server.config.resolve.is_some()
        || server.config.is_named
    {
        return Err("This server cannot be removed at runtime due to other configuration elements pointing to it.");
    }
    if server.shared.status().admin() != Admin::Maintenance {
        return Err("Only servers in maintenance mode can be deleted.");
    }
    if server.shared.is_busy() {
        return Err(BUSY);
    }
    Ok(())
}

/// Returns the configuration without this server.
fn without(config: &Config, proxy: &ProxyRun, server: &ServerRun) -> Config {
    let (id, gone) = (proxy.id, server.shared.index);
    let mut config = config.clone();
    config.proxies[id.0 as usize].servers.remove(gone);
    // Tracked servers behind the deleted one have moved up.
    let targets = config.proxies.iter_mut().flat_map(|proxy| &mut proxy.servers);
    for target in targets.filter_map(|server| server.health.track.as_mut()?.target.as_mut()) {
        if target.0 == id && target.1 > gone {
            target.1 -= 1;
        }
    }
    config
}
