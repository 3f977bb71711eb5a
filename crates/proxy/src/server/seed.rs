//! The seed from which a server's points on the ring of `hash-type consistent` are computed (`hash-key`): its id, or
//! its address with or without its port. With an address, several balancers that list the same servers in a different
//! order make the same choice.
//!
//! A server's address may change at run time ([`ServerRun::set_moved`]), and a server configured by name may not be
//! resolved yet. Code that sets an address calls [`ServerRun::rekey`], which recomputes the server's points.

use std::net::IpAddr;

use sluicegate_config::model::{self, ServerAddress, ServerHashKey, ServerPort};

use super::run::ServerRun;
use super::shared::Moved;
use crate::balance::{Member, full_hash};

/// Returns the seed that HAProxy computes for an address and a port, or one computed from the server's id if there is
/// no address.
fn seed(config: &model::Server, ip: Option<IpAddr>, port: Option<u16>) -> u32 {
    let key = match config.hash_key {
        ServerHashKey::Id => None,
        ServerHashKey::Addr => ip.map(|ip| (ip, 0)),
        ServerHashKey::AddrPort => ip.map(|ip| (ip, full_hash(u32::from(port.unwrap_or(0))))),
    };
    match key {
        None => full_hash(config.sid),
        // HAProxy adds the address in its in-memory byte order.
        Some((IpAddr::V4(ip), port)) => full_hash(port.wrapping_add(u32::from_ne_bytes(ip.octets()))),
        Some((IpAddr::V6(ip), port)) => xxhash_rust::xxh32::xxh32(&ip.octets(), port),
    }
}

/// Returns the configured port, unless it is an offset to the port that the client connected to.
fn fixed_port(config: &model::Server) -> Option<u16> {
    match config.address {
        ServerAddress::Inet(_, ServerPort::Fixed(port)) | ServerAddress::Name(_, ServerPort::Fixed(port)) => Some(port),
        _ => None,
    }
}

/// Returns the initial balancer entry of a server.
pub(super) fn member(config: &model::Server, effective: u32) -> Member {
    let ip = match config.address {
        ServerAddress::Inet(ip, _) => Some(ip),
        _ => None,
    };
    Member {
        weight: u32::from(config.weight),
        effective,
        backup: config.backup,
        number: config.sid,
        seed: seed(config, ip, fixed_port(config)),
    }
}

impl ServerRun {
    /// Returns the server's port, or `None` if it depends on the port that the client connected to.
    pub(super) fn port(&self) -> Option<u16> {
        self.shared.moved().port.or_else(|| fixed_port(&self.config))
    }

    /// Changes the server's address or port. The caller closes idle connections to the old address.
    pub(crate) fn set_moved(&self, change: impl FnOnce(&mut Moved)) {
        self.shared.set_moved(change);
        self.rekey();
    }

    /// Recomputes the server's seed after its address or port may have changed.
    pub(crate) fn rekey(&self) {
        if self.config.hash_key != ServerHashKey::Id {
            self.backend.set_seed(self.shared.index, seed(&self.config, self.address(), self.port()));
        }
    }
}
