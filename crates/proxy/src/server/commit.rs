//! Changed definitions of servers that continue to serve under a new configuration.

use std::sync::Arc;
use std::time::Instant;

use sluicegate_config::model;

use super::health::Health;
use super::shared::{Admin, Moved, Operation, ServerStatus};
use super::{admin, idle};
use crate::site::Site;

/// Applies a changed configuration to the objects shared by `before` and `after`. Each change is reported in one line;
/// unchanged definitions keep their run-time state.
pub(crate) fn commit(before: &Site, after: &Site, now: Instant, say: &mut dyn FnMut(String)) {
    if !Arc::ptr_eq(&before.backend, &after.backend) {
        after.backend.succeed(&before.backend, now);
        after.backend.cookies.follow(&before.backend.cookies);
    }
    let makes = |config: &model::Proxy| {
        (config.dynamic_cookie_key.clone(), config.cookie.as_ref().is_some_and(|cookie| cookie.dynamic))
    };
    if makes(&before.config) != makes(&after.config) {
        after.backend.cookies.define(&after.config);
    }
    for server in &after.servers {
        let subject = format!("Server {}/{}", after.config.name, server.name());
        let Some(old) = before.servers.iter().find(|old| old.name() == server.name()) else {
            continue;
        };
        let (was, is, index) = (&old.config, &server.config, server.shared.index);
        if was.address == is.address {
            // An address or port that was changed at run time is kept.
            if !Arc::ptr_eq(&old.shared, &server.shared) && old.shared.moved() != Moved::default() {
                server.shared.set_moved(|moved| *moved = old.shared.moved());
            }
            if !Arc::ptr_eq(&old.shared, &server.shared) {
                server.shared.set_fqdn(old.shared.fqdn());
                server.rekey();
            }
        } else {
            // Connections to the previous address must not be reused.
            idle::clear(server);
            say(format!("{subject} has another address by the configuration."));
        }
        let begins = |server: &model::Server| server.send_proxy.as_ref().map(|header| header.v2);
        if begins(was) != begins(is) {
            // Idle connections with another header or source would never be reused.
            idle::clear(server);
        }
        let (from, to) = (was.maxconn.unwrap_or(0), is.maxconn.unwrap_or(0));
        if from != to {
            after.backend.set_maxconn(index, to);
            say(format!("{subject} changed its maxconn from {from} to {to} by the configuration."));
        }
        if was.weight != is.weight {
            say(format!("{subject} changed its weight from {} to {} by the configuration.", was.weight, is.weight));
        }
        if was.disabled != is.disabled {
            let word = if is.disabled { "enters" } else { "leaves" };
            say(format!("{subject} {word} maintenance by the configuration."));
        }
        let rules = |check: &Option<sluicegate_config::model::Check>| {
            check.as_ref().map(|check| (check.rise.max(1), check.fall.max(1)))
        };
        let (old_rules, rules) = (rules(&was.check), rules(&is.check));
        after.backend.update(index, now, |status| {
            if was.weight != is.weight {
                status.weight = u32::from(is.weight);
            }
            if was.disabled != is.disabled {
                let admin = if is.disabled { Admin::Maintenance } else { Admin::Ready };
                admin::transit(status, server, |status| status.admin = admin);
            }
            if was.health.agent.is_some() != is.health.agent.is_some() {
                status.agent.enabled = is.health.agent.is_some();
                status.agent.health = Health::new(1, 1);
                if status.health.is_up() {
                    status.operation = Operation::Running;
                }
            }
            // The state inherited from the tracked server no longer applies.
            if was.health.track.is_some() && is.health.track.is_none() && is.check.is_none() {
                status.operation = Operation::Running;
                status.inherited = Admin::Ready;
            }
            if old_rules != rules {
                recount(status, rules);
            }
        });
    }
}

/// Resets the health of a server whose `rise` or `fall` changed, or whose checks were added or removed. A server that
/// was up stays up, one that was down stays down.
fn recount(status: &mut ServerStatus, rules: Option<(u32, u32)>) {
    let up = status.operation != Operation::Stopped;
    status.health = match rules {
        Some((rise, fall)) => Health { level: 0, rise, fall },
        // No check would ever mark it up again.
        None => Health::unchecked(),
    };
    if rules.is_some() {
        status.health.level = if up { status.health.top() } else { 0 };
    } else {
        status.operation = Operation::Running;
    }
}
