//! The listening sockets of sections.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::is_same;
use crate::listener::{self, BindError, Sockets};
use crate::running::Running;

/// Binds the addresses of a snapshot's `peers` sections; those that `before` has, too, keep their sockets. The error lists
/// every address that cannot be bound.
pub fn bind(running: &Running, before: Option<&Running>, maker: &dyn Sockets) -> Result<(), Vec<String>> {
    let mut errors = Vec::new();
    for section in &running.peers {
        let Some(bind) = section.config.bind() else { continue };
        let Some(address) = bind.addresses.first() else { continue };
        let name = section.config.name();
        let known = before.and_then(|before| before.peers.iter().find(|known| known.config.name() == name));
        if let Some(tls) = &section.tls
            && !known.is_some_and(|known| is_same(known.tls.as_ref(), section.tls.as_ref()))
        {
            running.process.certificates.add_listener(tls);
        }
        let same = known.filter(|known| known.config.bind().is_some_and(|known| known.addresses == bind.addresses));
        let bound: Result<Arc<OwnedFd>, _> = match same.and_then(|known| known.door()) {
            Some(door) => Ok(door.clone()),
            None => listener::listen(bind, address, 1, maker).map(|mut made| Arc::new(made.remove(0))),
        };
        match bound {
            Ok(door) => _ = section.door.set(door),
            Err(error) => {
                errors.push(BindError::new(bind, &section.config.proxy.name, address, error).to_string());
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
