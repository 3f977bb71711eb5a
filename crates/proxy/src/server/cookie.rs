//! Values of the persistence cookie computed from servers' addresses (`cookie … dynamic`, `dynamic-cookie-key`).
//!
//! A value is HAProxy's hash of a key, the server's address and its port, so every process with the same key computes
//! the same value. The address may change at run time, by commands and by DNS, and so may the key and the setting
//! itself; a server caches the last value with its inputs, and computes a new one when they differ.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use sluicegate_config::model::{self, ServerAddress, ServerPort};

use super::run::ServerRun;

/// The settings from which the values of a backend's servers are computed.
#[derive(Debug)]
pub struct CookieMaker {
    on: AtomicBool,
    key: RwLock<Option<Arc<str>>>,
}

/// A server's cached value, once it has been computed.
#[derive(Debug, Default)]
pub(super) struct Made(Mutex<Option<Value>>);

/// A value, and its inputs.
#[derive(Debug)]
struct Value {
    key: Arc<str>,
    place: Place,
    text: Arc<str>,
}

type Place = (IpAddr, u16);

impl CookieMaker {
    pub(super) fn new(config: &model::Proxy) -> CookieMaker {
        let maker = CookieMaker { on: AtomicBool::new(false), key: RwLock::new(None) };
        maker.define(config);
        maker
    }

    /// Applies the configuration.
    pub(crate) fn define(&self, config: &model::Proxy) {
        self.set_key(config.dynamic_cookie_key.as_deref());
        self.enable(config.cookie.as_ref().is_some_and(|cookie| cookie.dynamic));
    }

    /// Takes over the key and the setting of another backend version, on a change of configuration.
    pub(super) fn follow(&self, other: &CookieMaker) {
        self.set_key(other.key.read().as_deref());
        self.enable(other.on.load(Ordering::Relaxed));
    }

    /// `enable dynamic-cookie`, `disable dynamic-cookie`.
    pub(crate) fn enable(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// `set dynamic-cookie-key`.
    pub(crate) fn set_key(&self, key: Option<&str>) {
        *self.key.write() = key.map(Arc::from);
    }

    /// Returns the computed value, for a server without a configured `cookie` value.
    pub(crate) fn value(&self, server: &ServerRun) -> Option<Arc<str>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let key = self.key.read().clone()?;
        let place = place(server)?;
        let mut made = server.shared.cookie.0.lock();
        match &*made {
            Some(value) if value.key == key && value.place == place => Some(value.text.clone()),
            _ => {
                let text = value(&key, place);
                *made = Some(Value { key, place, text: text.clone() });
                Some(text)
            }
        }
    }
}

/// Returns the address and port from which a value is computed. If the server's port is relative to the port that the
/// client connected to, the offset is used as the port.
fn place(server: &ServerRun) -> Option<Place> {
    let configured = match &server.config.address {
        ServerAddress::Inet(_, port) | ServerAddress::Name(_, port) => *port,
        ServerAddress::Unix(_) | ServerAddress::Abstract(_) | ServerAddress::Sockpair(_) | ServerAddress::Reverse => {
            return None;
        }
    };
    let port = match (server.shared.moved().port, configured) {
        (Some(port), _) | (None, ServerPort::Fixed(port)) => port,
        (None, ServerPort::Offset(offset)) => offset as u16,
    };
    Some((server.address()?, port))
}

fn value(key: &str, (ip, port): Place) -> Arc<str> {
    let mut bytes = key.as_bytes().to_vec();
    match ip {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
    bytes.extend_from_slice(&u32::from(port).to_be_bytes());
    format!("{:016x}", xxhash_rust::xxh64::xxh64(&bytes, 0)).into()
}
