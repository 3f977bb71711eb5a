//! What becomes of a server whose name resolves, to another address, or no longer. The lines are HAProxy's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::log::Severity;
use crate::running::{ProxyRun, Running};
use crate::server::{ServerRun, clear_idle, say};

/// A server as its state is changed.
pub(super) struct Target<'a> {
    pub(super) running: &'a Arc<Running>,
    pub(super) proxy: &'a Arc<ProxyRun>,
    pub(super) server: &'a Arc<ServerRun>,
}

impl Target<'_> {
    fn label(&self) -> String {
        format!("{}/{}", self.proxy.config.name, self.server.name())
    }

    fn notice(&self, line: &str) {
        say(self.proxy, &self.running.logger, "WARNING", Severity::Notice, line);
    }

    /// Whether it is out of service because its name has no address.
    pub(super) fn is_unresolved(&self) -> bool {
        self.server.shared.status().unresolved
    }

    /// Gives it an address; whether that is another one.
    pub(super) fn set_address(&self, ip: IpAddr, by: &str) -> bool {
        let before = self.server.address();
        if before == Some(ip) {
            return false;
        }
        self.server.set_moved(|moved| (moved.ip, moved.lost) = (Some(ip), false));
        let old = before.map_or_else(|| "(none)".to_owned(), |old| old.to_string());
        self.notice(&format!("{} changed its IP from {old} to {ip} by {by}.", self.label()));
        clear_idle(self.server);
        true
    }

    /// Takes its address away.
    pub(super) fn lose_address(&self) {
        self.server.set_moved(|moved| (moved.ip, moved.lost) = (None, true));
        clear_idle(self.server);
    }

    /// Sets its port as a service's record says.
    pub(super) fn set_port(&self, port: u16) {
        if self.server.shared.moved().port != Some(port) {
            self.server.set_moved(|moved| moved.port = Some(port));
            clear_idle(self.server);
        }
    }

    pub(super) fn forget_port(&self) {
        self.server.set_moved(|moved| moved.port = None);
    }

    /// Sets its weight as a service's record says: HAProxy's share of 256 for DNS's of 65535, 0 for none.
    pub(super) fn set_weight(&self, weight: u16) {
        let weight = u32::from(weight).div_ceil(256);
        let index = self.server.shared.index;
        if self.server.shared.status().weight != weight && (self.proxy.backend.dynamic || weight == 0) {
            self.proxy.backend.update(index, Instant::now(), |status| status.weight = weight);
        }
    }

    /// Into service or out of it; whether that is new.
    pub(super) fn set_resolved(&self, resolved: Result<(), &str>) -> bool {
        self.proxy.set_resolved(self.running, self.server, resolved)
    }

    /// It is in service because a name server said so.
    pub(super) fn tell_ready(&self) {
        self.notice(&format!("Server {} administratively READY thanks to valid DNS answer.", self.label()));
    }

    /// It follows another name.
    pub(super) fn tell_name(&self, from: Option<&str>, to: &str, by: &str) {
        let from = from.unwrap_or("(null)");
        let line = format!("{} changed its FQDN from {from} to {to} by '{by}'", self.label());
        self.running.logger.send(&self.proxy.config.log, Severity::Notice, line.as_bytes());
    }
}
