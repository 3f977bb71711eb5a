//! Names of servers, resolved once at start, before any worker runs.
//!
//! The system's resolver may block for seconds, so this is called from the main thread while the process starts; all
//! failures are reported together, each with the line it comes from. The first address is taken, as HAProxy does
//! with `init-addr libc`.

use std::fmt;
use std::io;
use std::net::ToSocketAddrs;

use sluicegate_config::model::{Position, ServerAddress};

use crate::running::Running;

/// A server's name that has no address.
#[derive(Debug)]
pub struct ResolveError {
    /// Where the server stands.
    pub at: Position,
    /// `backend/server`.
    pub server: String,
    /// The name.
    pub name: String,
    /// What the resolver said; `None`: it answered without an address.
    pub source: Option<io::Error>,
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResolveError { at, server, name, source } = self;
        write!(f, "{}:{}: error: server {server}: could not resolve address '{name}'", at.file, at.line)?;
        match source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ResolveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Resolves the names of all servers of `running`. Blocks.
pub fn resolve_names(running: &Running) -> Result<(), Vec<ResolveError>> {
    let mut errors = Vec::new();
    for proxy in &running.proxies {
        for server in &proxy.servers {
            let ServerAddress::Name(name, _) = &server.config.address else { continue };
            let answer = (name.as_str(), 0).to_socket_addrs().map(|mut addresses| addresses.next());
            let (found, source) = match answer {
                Ok(found) => (found, None),
                Err(error) => (None, Some(error)),
            };
            match found {
                // A second start of the same snapshot keeps the first answer.
                Some(address) => drop(server.resolved.set(address.ip())),
                None => errors.push(ResolveError {
                    at: server.config.at.clone(),
                    server: format!("{}/{}", proxy.config.name, server.name()),
                    name: name.clone(),
                    source,
                }),
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
