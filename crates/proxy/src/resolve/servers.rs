//! State changes of servers whose name resolves, resolves to another address, or no longer resolves. The log lines are
//! HAProxy's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::state::{Servers, Target};
use crate::log::Severity;
use crate::running::{ProxyRun, Running};
use crate::server::{Detail, ServerRun, clear_idle, say};

impl Servers for Arc<Running> {
    fn at(&self, (proxy, server): (usize, usize)) -> Box<dyn Target + '_> {
        let proxy = &self.proxies[proxy];
        Box::new(RunningServer { running: self, proxy, server: &proxy.servers[server] })
    }
}

/// A server of a snapshot.
struct RunningServer<'a> {
    running: &'a Arc<Running>,
    proxy: &'a Arc<ProxyRun>,
    server: &'a Arc<ServerRun>,
}

impl RunningServer<'_> {
    fn label(&self) -> String {
        format!("{}/{}", self.proxy.config.name, self.server.name())
    }

    /// Closes idle connections to the previous address, and tells subscribers of the change.
    fn moved(&self) {
        clear_idle(self.server);
        self.running.tell_event(self.proxy, self.server, Detail::Address);
    }

    fn notice(&self, line: &str) {
        say(self.proxy, &self.running.logger, "WARNING", Severity::Notice, line);
    }
}

impl Target for RunningServer<'_> {
    fn server(&self) -> &ServerRun {
        self.server
    }

    fn is_unresolved(&self) -> bool {
        self.server.shared.status().unresolved
    }

    fn set_address(&self, ip: IpAddr, by: &str) -> bool {
        let before = self.server.address();
        if before == Some(ip) {
            return false;
        }
        self.server.set_moved(|moved| (moved.ip, moved.lost) = (Some(ip), false));
        let old = before.map_or_else(|| "(none)".to_owned(), |old| old.to_string());
        self.notice(&format!("{}: IP changed from '{old}' to '{ip}' by '{by}'.", self.label()));
        self.moved();
        true
    }

    fn lose_address(&self) {
        self.server.set_moved(|moved| (moved.ip, moved.lost) = (None, true));
        self.moved();
    }

    fn set_port(&self, port: u16) {
        if self.server.shared.moved().port != Some(port) {
            self.server.set_moved(|moved| moved.port = Some(port));
            self.moved();
        }
    }

    fn forget_port(&self) {
        self.server.set_moved(|moved| moved.port = None);
    }

    fn set_weight(&self, weight: u16) {
        let weight = u32::from(weight).div_ceil(256);
        let index = self.server.shared.index;
        if self.server.shared.status().weight != weight && (self.proxy.backend.dynamic || weight == 0) {
            self.proxy.backend.update(index, Instant::now(), |status| status.weight = weight);
        }
    }

    fn set_resolved(&self, resolved: Result<(), &str>, target: Option<&str>) -> bool {
        self.proxy.set_resolved(self.running, self.server, resolved, target)
    }

    fn tell_ready(&self) {
        self.notice(&format!("Server {} administratively READY thanks to valid DNS answer.", self.label()));
    }

    fn tell_name(&self, from: Option<&str>, to: &str, by: &str) {
        let from = from.unwrap_or("(null)");
        let line = format!("{} changed its FQDN from {from} to {to} by '{by}'", self.label());
        self.running.logger.send(&self.proxy.config.log, Severity::Notice, line.as_bytes());
    }
}
