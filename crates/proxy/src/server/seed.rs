//! The source of a server's points on the ring of `hash-type consistent` (`hash-key`): its number, or its address and
//! port, so that several balancers with the same servers in another order choose alike.
//!
//! An address may change while the process runs ([`ServerRun::set_moved`]), and a name may have none yet; code that
//! sets one calls [`ServerRun::rekey`], which moves the server's points.

use std::net::IpAddr;

use sluicegate_config::model::{self, ServerAddress, ServerHashKey, ServerPort};

use super::shared::{Moved, ServerRun};
use crate::balance::{Member, WEIGHT_SCALE, full_hash};

/// Returns HAProxy's number for an address and a port; without an address the server's own number.
fn seed(config: &model::Server, ip: Option<IpAddr>, port: Option<u16>) -> u32 {
    let key = match config.hash_key {
        ServerHashKey::Id => None,
        ServerHashKey::Addr => ip.map(|ip| (ip, 0)),
        ServerHashKey::AddrPort => ip.map(|ip| (ip, full_hash(u32::from(port.unwrap_or(0))))),
    };
    match key {
        None => config.sid.wrapping_mul(WEIGHT_SCALE * 256),
        // HAProxy adds the address as it lies in memory.
        Some((IpAddr::V4(ip), port)) => full_hash(port.wrapping_add(u32::from_ne_bytes(ip.octets()))),
        Some((IpAddr::V6(ip), port)) => xxhash_rust::xxh32::xxh32(&ip.octets(), port),
    }
}

/// Returns the port by the file, where it is one of its own.
fn fixed_port(config: &model::Server) -> Option<u16> {
    match config.address {
        ServerAddress::Inet(_, ServerPort::Fixed(port)) | ServerAddress::Name(_, ServerPort::Fixed(port)) => Some(port),
        _ => None,
    }
}

/// Returns a server as its balancer first sees it.
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
    /// Returns its port, unless that depends on a client's.
    pub(super) fn port(&self) -> Option<u16> {
        self.shared.moved().port.or_else(|| fixed_port(&self.config))
    }

    /// Moves it; idle connections to where it was are closed by the caller.
    pub(crate) fn set_moved(&self, change: impl FnOnce(&mut Moved)) {
        self.shared.set_moved(change);
        self.rekey();
    }

    /// Its address or port may be another one.
    pub(crate) fn rekey(&self) {
        if self.config.hash_key != ServerHashKey::Id {
            self.backend.set_seed(self.shared.index, seed(&self.config, self.address(), self.port()));
        }
    }
}
