//! The client's side: connections to a server of a `server` line.
//!
//! One rustls configuration serves all connections of a line. The name that is sent as SNI and the protocols of ALPN
//! belong to a connection. Sessions are stored by that name, so that a session verified for one name is not resumed for
//! another; their number is bounded. HAProxy keeps one session for each thread of a server. In TLS 1.3 each ticket
//! should be used only once, which rustls enforces, so a few are kept, the newest first, for concurrent connections.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::client::{
    ClientSessionStore, ResolvesClientCert, Resumption, Tls12ClientSessionValue, Tls12Resumption,
    Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, NamedGroup, SignatureScheme};

use crate::equal::same_pair;
use crate::keylog;
use crate::options::{explain, groups, provider, restricted, suites, versions};
use crate::pair::Pair;
use crate::policy::{ServerSettings, Verify};
use crate::verify::ServerVerifier;

/// The maximum number of names whose sessions a server's store keeps.
const NAMES_MAX: usize = 64;

/// The maximum number of TLS 1.3 tickets for one name.
const TICKETS_MAX: usize = 8;

/// Returns the name of a connection that sends no SNI: an address, which rustls does not send.
fn nameless() -> ServerName<'static> {
    ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// One state of a connector.
#[derive(Debug)]
struct State {
    settings: Arc<ServerSettings>,
    config: Arc<ClientConfig>,
}

/// The means to connect to a server with TLS, which can be replaced while it is in use.
#[derive(Debug)]
pub struct Connector {
    state: RwLock<Arc<State>>,
}

impl Connector {
    /// Builds the configuration of a line.
    ///
    /// # Errors
    /// A sentence about settings that cannot work.
    pub fn new(settings: ServerSettings) -> Result<Connector, String> {
        Ok(Connector { state: RwLock::new(Arc::new(State::new(settings)?)) })
    }

    /// Returns a connection. `sni` is the name that is sent, and that the server's certificate must have if it is
    /// verified; as in HAProxy, an empty name means none. `alpn` replaces the protocols of the line.
    ///
    /// # Errors
    /// A name that cannot be sent while the server is verified: nothing could be compared with the certificate. A server
    /// that is not verified is sent no name then.
    pub fn connect(&self, sni: Option<&str>, alpn: Option<&[Vec<u8>]>) -> Result<ClientConnection, String> {
        let state = self.state.read().clone();
        let sni = sni.filter(|name| !name.is_empty());
        let name = match sni.map(|name| ServerName::try_from(name.to_owned())) {
            None => nameless(),
            Some(Ok(name @ ServerName::DnsName(_))) => name,
            Some(_) if state.settings.policy.verify.unwrap_or_default() == Verify::None => nameless(),
            Some(_) => return Err(format!("'{}' can't be sent as SNI", sni.unwrap_or_default().escape_debug())),
        };
        let connection = match alpn {
            None => ClientConnection::new(state.config.clone(), name),
            Some(alpn) => ClientConnection::new_with_alpn(state.config.clone(), name, alpn.to_vec()),
        };
        connection.map_err(explain)
    }

    /// Returns a connection to a host by its name, which is sent as SNI, or its address.
    ///
    /// # Errors
    /// Text that is neither a name nor an address.
    pub fn connect_to(&self, host: &str) -> Result<ClientConnection, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("'{}' is neither a host name nor an address", host.escape_debug()))?;
        let config = self.state.read().config.clone();
        ClientConnection::new(config, name).map_err(explain)
    }

    /// Returns the present settings.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.state.read().settings.clone()
    }

    /// Replaces the settings for connections that begin after this. Sessions are kept if the settings are equal, and
    /// dropped otherwise, since an earlier verification may not be valid any more.
    ///
    /// # Errors
    /// As [`Connector::new`]; the present settings stay.
    pub fn replace(&self, settings: ServerSettings) -> Result<(), String> {
        if *self.settings() != settings {
            let state = Arc::new(State::new(settings)?);
            *self.state.write() = state;
        }
        Ok(())
    }

    /// Replaces the certificate that is shown to the server if it has this path; returns whether it has.
    pub fn replace_pair(&self, pair: &Arc<Pair>) -> Result<bool, String> {
        let before = self.settings();
        match &before.pair {
            Some(shown) if shown.path == pair.path && !same_pair(shown, pair) => {
                let settings = ServerSettings { pair: Some(pair.clone()), ..ServerSettings::clone(&before) };
                self.replace(settings).map(|()| true)
            }
            Some(shown) => Ok(shown.path == pair.path),
            None => Ok(false),
        }
    }
}

impl State {
    fn new(settings: ServerSettings) -> Result<State, String> {
        let policy = &settings.policy;
        let versions = versions(policy)?;
        let builder = ClientConfig::builder_with_provider(provider(suites(policy, &versions), groups(policy)))
            .with_protocol_versions(&versions)
            .map_err(explain)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(&settings)));
        let mut config = match &settings.pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let shown = Shown { pair: pair.clone(), schemes: policy.client_sigalgs.clone() };
                builder.with_client_cert_resolver(Arc::new(shown))
            }
        };
        config.alpn_protocols = policy.alpn.clone().unwrap_or_default();
        config.resumption = match settings.no_reuse {
            true => Resumption::disabled(),
            // Like OpenSSL's option, this only concerns tickets of TLS 1.2.
            false if settings.no_tickets => {
                Resumption::store(Arc::new(Sessions::default())).tls12_resumption(Tls12Resumption::SessionIdOnly)
            }
            false => Resumption::store(Arc::new(Sessions::default())),
        };
        config.key_log = keylog::of(settings.keylog);
        Ok(State { config: Arc::new(config), settings: Arc::new(settings) })
    }
}

/// The certificate that is shown to a server that asks.
#[derive(Debug)]
struct Shown {
    pair: Arc<Pair>,
    schemes: Option<Arc<[SignatureScheme]>>,
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Like OpenSSL, this ignores the authorities that the server names.
        Some(match &self.schemes {
            None => self.pair.certified(),
            Some(schemes) => restricted(&self.pair, schemes),
        })
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The stored sessions of a name.
#[derive(Default)]
struct Kept {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    /// The TLS 1.3 tickets, oldest first.
    tls13: VecDeque<Tls13ClientSessionValue>,
}

/// The sessions of a server, by name.
#[derive(Default)]
struct Sessions {
    /// The sessions, oldest first; most servers have one name.
    names: Mutex<VecDeque<(ServerName<'static>, Kept)>>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sessions")
    }
}

impl Sessions {
    /// Returns the result of `read` for a name's sessions.
    fn find<R>(&self, name: &ServerName<'_>, read: impl FnOnce(&mut Kept) -> Option<R>) -> Option<R> {
        let mut names = self.names.lock();
        names.iter_mut().find(|(kept, _)| kept == name).and_then(|(_, kept)| read(kept))
    }

    /// Changes a name's sessions, which may evict those of another name.
    fn change(&self, name: ServerName<'static>, change: impl FnOnce(&mut Kept)) {
        let mut names = self.names.lock();
        if let Some((_, kept)) = names.iter_mut().find(|(kept, _)| *kept == name) {
            return change(kept);
        }
        if names.len() == NAMES_MAX {
            names.pop_front();
        }
        let mut kept = Kept::default();
        change(&mut kept);
        names.push_back((name, kept));
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.change(name, |kept| kept.group = Some(group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.find(name, |kept| kept.group)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.change(name, |kept| kept.tls12 = Some(session));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.find(name, |kept| kept.tls12.clone())
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.find(name, |kept| kept.tls12.take());
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, session: Tls13ClientSessionValue) {
        self.change(name, |kept| {
            if kept.tls13.len() == TICKETS_MAX {
                kept.tls13.pop_front();
            }
            kept.tls13.push_back(session);
        });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.find(name, |kept| kept.tls13.pop_back())
    }
}

#[cfg(test)]
mod tests;
