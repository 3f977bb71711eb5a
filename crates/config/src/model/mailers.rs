//! Alerts by mail about the states of servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Position;

/// A `mailers` section.
#[derive(Clone, Debug)]
pub struct Mailers {
    /// Its name.
    pub name: Arc<str>,
    /// `timeout mail`; 10 s.
    pub timeout: Duration,
    /// `mailer` lines.
    pub mailers: Vec<Mailer>,
    /// Its position.
    pub at: Position,
}

/// A `mailer` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailer {
    /// Its name.
    pub name: Arc<str>,
    /// The mail server's address.
    pub address: SocketAddr,
}

/// `email-alert` lines of a proxy. Complete in a checked configuration, except for the host name.
#[derive(Clone, Debug)]
pub struct EmailAlert {
    /// `from`.
    pub from: Option<Arc<str>>,
    /// `to`.
    pub to: Option<Arc<str>>,
    /// `mailers`: the name of a section, and its position.
    pub mailers: Option<(Arc<str>, Position)>,
    /// `myhostname`; `None`: the machine's name.
    pub host: Option<Arc<str>>,
    /// `level`: the least severe level that is sent; 1 (alert).
    pub level: u8,
}

impl Default for EmailAlert {
    fn default() -> EmailAlert {
        EmailAlert { from: None, to: None, mailers: None, host: None, level: 1 }
    }
}
