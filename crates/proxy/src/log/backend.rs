//! Backends of log messages (`mode log`): which server gets a message.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sluicegate_config::model::LogAddress;

use crate::server::KeyCode;
use crate::site::Site;
use crate::stream::{LogRecord, StreamContext};

/// The destination of a message.
pub(super) enum LogPlace<'a> {
    /// As the file has it.
    Configured(&'a LogAddress),
    /// Where `set server … addr` has moved the server.
    Moved(SocketAddr),
}

/// A backend of messages.
pub(crate) struct LogBackend {
    site: Arc<Site>,
    /// The key of `balance log-hash`.
    key: Option<KeyCode>,
    /// The destination of each server.
    servers: Vec<LogAddress>,
}

impl LogBackend {
    pub(crate) fn new(site: Arc<Site>, key: Option<KeyCode>) -> LogBackend {
        let servers = site.config.log_destinations();
        LogBackend { site, key, servers }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        *self.site.config.name == *name
    }

    /// Returns where a message goes; `None`: no server is usable, or the message has no key.
    pub(super) fn destination(&self, message: &[u8]) -> Option<LogPlace<'_>> {
        let hash = match &self.key {
            Some(key) => {
                let log = LogRecord::new(SystemTime::now(), Instant::now());
                Some(key.hash_of_message(message, &StreamContext::unconnected(self.site.clone(), log))?)
            }
            None => None,
        };
        let index = self.site.backend.pick_for_message(hash)?;
        let configured = self.servers.get(index)?;
        let server = self.site.servers.get(index)?;
        let moved = server.shared.moved();
        let is_moved = matches!(configured, LogAddress::Udp(..)) && (moved.ip.is_some() || moved.port.is_some());
        match server.socket_addr(None).filter(|_| is_moved) {
            Some(address) => Some(LogPlace::Moved(address)),
            None => Some(LogPlace::Configured(configured)),
        }
    }
}

impl std::fmt::Debug for LogBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogBackend").field("name", &self.site.config.name).finish_non_exhaustive()
    }
}
