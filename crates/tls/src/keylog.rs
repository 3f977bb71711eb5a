//! Secrets of a handshake, for the fetches that print them if `tune.ssl.keylog` is set.
//!
//! rustls reports secrets of all connections to one object, which does not know the connection. It reports them on the
//! thread that drives the handshake, so they are collected in a thread-local variable, which [`take`] empties after
//! each step. Nothing is collected without the setting.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

use rustls::KeyLog;

/// A secret, in the order of [`Secrets`]' fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// `ssl_fc_session_key`, the master secret of TLS 1.2.
    Master,
    /// `ssl_fc_client_early_traffic_secret`, which no connection has.
    ClientEarlyTraffic,
    /// `ssl_fc_client_handshake_traffic_secret`.
    ClientHandshakeTraffic,
    /// `ssl_fc_server_handshake_traffic_secret`.
    ServerHandshakeTraffic,
    /// `ssl_fc_client_traffic_secret_0`.
    ClientTraffic0,
    /// `ssl_fc_server_traffic_secret_0`.
    ServerTraffic0,
    /// `ssl_fc_exporter_secret`.
    Exporter,
    /// `ssl_fc_early_exporter_secret`, likewise.
    EarlyExporter,
}

const COUNT: usize = 8;

impl Secret {
    /// Returns the secret of a label of a key log. Those of early data are not among them: rustls reports one with each
    /// resumed session, but early data is neither sent nor accepted.
    fn of(label: &str) -> Option<Secret> {
        Some(match label {
            "CLIENT_RANDOM" => Secret::Master,
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => Secret::ClientHandshakeTraffic,
            "SERVER_HANDSHAKE_TRAFFIC_SECRET" => Secret::ServerHandshakeTraffic,
            "CLIENT_TRAFFIC_SECRET_0" => Secret::ClientTraffic0,
            "SERVER_TRAFFIC_SECRET_0" => Secret::ServerTraffic0,
            "EXPORTER_SECRET" => Secret::Exporter,
            _ => return None,
        })
    }
}

/// The secrets of one connection.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    client_random: Vec<u8>,
    secrets: [Vec<u8>; COUNT],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Returns the client's random, which names the connection in a key log.
    pub fn client_random(&self) -> &[u8] {
        &self.client_random
    }

    /// Returns a secret; empty if the connection has none of the kind.
    pub fn get(&self, secret: Secret) -> &[u8] {
        &self.secrets[secret as usize]
    }

    /// Returns a secret in hexadecimal digits, as the fetches print it.
    pub fn hex(&self, secret: Secret) -> Option<String> {
        let bytes = self.get(secret);
        let mut hex = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            let _ = write!(hex, "{byte:02x}");
        }
        (!hex.is_empty()).then_some(hex)
    }

    /// Adds the secrets of a later step.
    pub fn extend(&mut self, later: Secrets) {
        if !later.client_random.is_empty() {
            self.client_random = later.client_random;
        }
        for (mine, later) in self.secrets.iter_mut().zip(later.secrets) {
            if !later.is_empty() {
                *mine = later;
            }
        }
    }
}

thread_local! {
    static COLLECTED: RefCell<Option<Box<Secrets>>> = const { RefCell::new(None) };
}

/// Returns the secrets that this thread's handshake has reported since the last call.
pub fn take() -> Option<Box<Secrets>> {
    COLLECTED.take()
}

/// The collector, for configurations with the setting.
#[derive(Debug)]
struct Collector;

impl KeyLog for Collector {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let Some(kind) = Secret::of(label) else { return };
        COLLECTED.with_borrow_mut(|collected| {
            let collected = collected.get_or_insert_default();
            collected.client_random = client_random.to_vec();
            collected.secrets[kind as usize] = secret.to_vec();
        });
    }
}

/// Returns the key log of a configuration.
pub(crate) fn of(keylog: bool) -> Arc<dyn KeyLog> {
    if keylog { Arc::new(Collector) } else { Arc::new(rustls::NoKeyLog) }
}
