//! TLS of clients' connections: handshakes, and the parameters of `tls-port`.
//!
//! A handshake is a task of its own, on the worker that has accepted the connection; the client exists after it. As in
//! Redis it counts against `maxclients` from the acceptance on, and a connection beyond that is closed without a
//! message, which could not be encrypted yet. Unlike in Redis, a client that does not finish is closed after `timeout`,
//! or [`HANDSHAKE_MAX`] if that is 0.
//!
//! The sockets of a section bring the [`Listener`] of their `bind` line. That of `tls-port` belongs to the server, and so
//! does the [`Connector`] of the link to a master; `CONFIG SET` replaces their settings. Files are read when a parameter
//! is set.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::{Pair, PairFiles};
use sluicegate_tls::policy::{Entry, Policy, ServerSettings, Settings, Verify, Version};
use sluicegate_tls::resumption::Resumption;
use sluicegate_tls::suite;
use sluicegate_tls::x509::{Bundle, Secret};
use sluicegate_transport::Socket;

use super::{Server, Worker};
use crate::config::TlsOptions;
use crate::files::reason;
use crate::levels::WARNING;

/// The time limit of a handshake without a `timeout`.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The maximum number of stored sessions.
const SESSIONS_MAX: usize = 1 << 20;

const NO_AUTHORITIES: &str = "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
tls-replication or tls-auth-clients are enabled!";

/// The TLS state of a server.
pub(super) struct ServerTls {
    /// The number of handshakes that take place.
    handshakes: AtomicUsize,
    /// The certificates of `tls-port`, once it was set.
    listener: RwLock<Option<Arc<Listener>>>,
    resumption: Arc<Resumption>,
    /// What encrypts the link to a master, once it was set. Files are read then, since a process that has begun to serve
    /// may not be able to.
    to_master: RwLock<Option<Arc<Connector>>>,
}

impl Default for ServerTls {
    fn default() -> ServerTls {
        let (handshakes, resumption) = (AtomicUsize::new(0), Resumption::new(0));
        ServerTls { handshakes, listener: RwLock::default(), resumption, to_master: RwLock::default() }
    }
}

/// Parameters of `tls-port` whose files are read and whose values are known to work.
pub struct TlsPort {
    settings: Settings,
}

impl TlsPort {
    /// Reads the files.
    ///
    /// # Errors
    /// The line of the log, in Redis's words where it has some.
    pub fn new(options: &TlsOptions) -> Result<TlsPort, String> {
        let settings = settings(options)?;
        // Some invalid values are only detected when they are used.
        Listener::new(settings.clone(), &Resumption::new(0))?;
        Ok(TlsPort { settings })
    }
}

/// Returns the settings that follow from parameters.
fn settings(options: &TlsOptions) -> Result<Settings, String> {
    let verify = match options.auth_clients {
        "no" => Verify::None,
        "optional" => Verify::Optional,
        _ => Verify::Required,
    };
    if options.cert_file.is_empty() {
        return Err("No tls-cert-file configured!".into());
    }
    if options.key_file.is_empty() {
        return Err("No tls-key-file configured!".into());
    }
    if verify != Verify::None && options.ca_cert_file.is_empty() && options.ca_cert_dir.is_empty() {
        return Err(NO_AUTHORITIES.into());
    }
    let (ca, ca_verify) = authorities(options)?;
    // As in Redis: a client may send any certificate that it has.
    let policy = Policy { verify: Some(verify), ca, ca_verify, no_ca_names: true, ..suites_of(options)? };
    let pair = Arc::new(pair(options)?);
    let entry = Entry { pair, filters: None, policy: None, is_default: true, from: ("tls-cert-file".into(), 0) };
    let sessions = match (options.session_caching, options.session_cache_size) {
        (false, _) => 0,
        (true, 0) => SESSIONS_MAX,
        (true, count) => (count as usize).min(SESSIONS_MAX),
    };
    Ok(Settings {
        entries: vec![entry].into(),
        policy,
        prefer_client_ciphers: !options.prefer_server_ciphers,
        cache_size: sessions,
        lifetime: Duration::from_secs(options.session_cache_timeout_s.into()),
        ..Settings::default()
    })
}

/// Returns the versions and suites that parameters allow.
fn suites_of(options: &TlsOptions) -> Result<Policy, String> {
    let (min, max) = versions(&text(&options.protocols))?;
    let ciphers = text(&options.ciphers);
    let suites = (!ciphers.is_empty()).then(|| suite::parse_tls12(&ciphers)).transpose();
    let suites = suites.map_err(|error| format!("Failed to configure ciphers: {error}"))?;
    let ciphersuites = text(&options.ciphersuites);
    let suites13 = (!ciphersuites.is_empty()).then(|| suite::parse_tls13(&ciphersuites)).transpose();
    let suites13 = suites13.map_err(|error| format!("Failed to configure ciphersuites: {error}"))?;
    let (ciphers, ciphersuites) = (suites.map(|parsed| parsed.list), suites13.map(|parsed| parsed.list));
    Ok(Policy { min, max, ciphers, ciphersuites, ..Policy::default() })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the first and the last version of `tls-protocols`; `None`s for an empty text.
fn versions(text: &str) -> Result<(Option<Version>, Option<Version>), String> {
    let mut found = Vec::new();
    for word in text.split_ascii_whitespace() {
        found.push(match word.to_ascii_lowercase().as_str() {
            "tlsv1.2" => Version::Tls12,
            "tlsv1.3" => Version::Tls13,
            "tlsv1" | "tlsv1.1" => {
                return Err(format!("tls-protocols: '{word}' is not supported: there are TLSv1.2 and TLSv1.3"));
            }
            _ => {
                return Err("Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'.".into());
            }
        });
    }
    Ok((found.iter().min().copied(), found.iter().max().copied()))
}

/// Checks the files that the link to a master needs, if it is to be encrypted.
///
/// # Errors
/// As [`TlsPort::new`].
pub fn check_link(options: &TlsOptions) -> Result<(), String> {
    if options.replication { to_masters(options).map(drop) } else { Ok(()) }
}

/// Returns what encrypts the link to a master, and verifies it: by the authorities, whatever its name is, as Redis does.
pub(super) fn to_masters(options: &TlsOptions) -> Result<Connector, String> {
    let (ca, ca_verify) = authorities(options)?;
    if ca.is_none() && ca_verify.is_none() {
        return Err(NO_AUTHORITIES.into());
    }
    let TlsOptions { client_cert_file, client_key_file, client_key_file_pass, .. } = options;
    let shown = match (client_cert_file.is_empty(), options.cert_file.is_empty()) {
        (false, _) => Some(pair_of(client_cert_file, client_key_file, client_key_file_pass)?),
        (true, false) => Some(pair(options)?),
        (true, true) => None,
    };
    let policy = Policy { verify: Some(Verify::Required), ca, ca_verify, ..suites_of(options)? };
    Connector::new(ServerSettings { policy, pair: shown.map(Arc::new), no_reuse: true, ..ServerSettings::default() })
}

/// Reads the certificate of `tls-port` and its key.
fn pair(options: &TlsOptions) -> Result<Pair, String> {
    pair_of(&options.cert_file, &options.key_file, &options.key_file_pass)
}

fn pair_of(path: &[u8], key_path: &[u8], pass_phrase: &[u8]) -> Result<Pair, String> {
    let [path, key_path] = [path, key_path].map(text);
    let read = |what: &str, path: &str| {
        std::fs::read(path).map_err(|error| format!("Failed to load {what}: {path}: {}", reason(&error)))
    };
    let pem = read("certificate", &path)?;
    // Overwritten when they are dropped.
    let key = Secret::from(read("private key", &key_path)?);
    let files = PairFiles {
        path: &path,
        pem: &pem,
        key: Some((&key_path, &key)),
        key_wins: true,
        pass_phrase: Some(pass_phrase).filter(|phrase| !phrase.is_empty()),
        ..PairFiles::default()
    };
    Pair::parse(files).map_err(|error| format!("Failed to load certificate: {path}: {error}"))
}

type Authorities = (Option<Arc<Bundle>>, Option<Arc<Bundle>>);

/// Reads the authorities of the file, and those of the directory.
fn authorities(options: &TlsOptions) -> Result<Authorities, String> {
    let failed =
        |path: &str, why: String| format!("Failed to configure CA certificate(s) file/directory: {path}: {why}");
    let mut ca = None;
    if !options.ca_cert_file.is_empty() {
        let path = text(&options.ca_cert_file);
        let pem = std::fs::read(&path).map_err(|error| failed(&path, reason(&error)))?;
        ca = Some(Arc::new(Bundle::read(&path, &[&pem]).map_err(|why| failed(&path, why))?));
    }
    let mut of_directory = None;
    if !options.ca_cert_dir.is_empty() {
        let path = text(&options.ca_cert_dir);
        let files = files_of(&path).map_err(|error| failed(&path, reason(&error)))?;
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (&name[..], &content[..])).collect();
        // As for OpenSSL, the directory may contain files that are not certificates.
        let (bundle, _) = Bundle::parse_directory(&path, &files);
        if bundle.certificates.is_empty() && ca.is_none() {
            return Err(failed(&path, "no certificate found".into()));
        }
        of_directory = Some(Arc::new(bundle));
    }
    Ok((ca, of_directory))
}

/// Returns names and contents of a directory's files, by name.
fn files_of(path: &str) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, std::fs::read(&path)?));
        }
    }
    files.sort_unstable();
    Ok(files)
}

impl Server {
    /// Uses other parameters for `tls-port`, for connections from now on.
    pub fn set_tls(&self, port: TlsPort) {
        self.tls.resumption.resize(port.settings.cache_size);
        let mut listener = self.tls.listener.write();
        let set = match &*listener {
            Some(listener) => listener.replace(port.settings),
            None => Listener::new(port.settings, &self.tls.resumption).map(|new| *listener = Some(Arc::new(new))),
        };
        debug_assert!(set.is_ok(), "a listener was built of these settings before: {set:?}");
    }

    /// Returns the certificates of `tls-port`; `None` if it was never set.
    pub fn tls(&self) -> Option<Arc<Listener>> {
        self.tls.listener.read().clone()
    }

    /// Reads the files of the link to a master again, if it is encrypted. After an error it keeps what it has.
    ///
    /// # Errors
    /// As [`TlsPort::new`].
    pub fn renew_link_tls(&self) -> Result<(), String> {
        let tls = self.options().process.tls.clone();
        let connector = tls.replication.then(|| to_masters(&tls)).transpose()?;
        self.set_link_tls(connector);
        Ok(())
    }

    /// Encrypts the link to a master from its next connection on, or does not.
    pub(super) fn set_link_tls(&self, connector: Option<Connector>) {
        *self.tls.to_master.write() = connector.map(Arc::new);
    }

    /// Returns what encrypts the link to a master.
    pub(super) fn link_tls(&self) -> Option<Arc<Connector>> {
        self.tls.to_master.read().clone()
    }

    /// Returns the number of handshakes that take place.
    pub(super) fn handshakes(&self) -> usize {
        self.tls.handshakes.load(Ordering::Relaxed)
    }
}

/// A handshake's share of `maxclients`.
struct Place(Arc<Server>);

impl Place {
    /// Returns a place, unless clients and handshakes have all of them.
    fn take(server: &Arc<Server>, maxclients: u32) -> Option<Place> {
        let before = server.tls.handshakes.fetch_add(1, Ordering::Relaxed);
        let place = Place(server.clone());
        (server.client_count() + before < maxclients as usize).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.tls.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps the worker alive until a task has ended.
struct Living(Rc<Worker>);

impl Living {
    fn new(worker: &Rc<Worker>) -> Living {
        worker.live.set(worker.live.get() + 1);
        Living(worker.clone())
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Worker {
    /// Serves an accepted connection after its handshake; `path` is that of a unix socket.
    pub(super) fn accept_tls(
        self: &Rc<Self>,
        mut socket: Socket,
        peer: Option<SocketAddr>,
        path: &str,
        listener: &Arc<Listener>,
    ) {
        let options = self.options();
        let Some(place) = Place::take(&self.server, options.maxclients) else {
            self.counters.connections.add(1);
            self.counters.rejected.add(1);
            return;
        };
        let limit = match options.timeout_s {
            0 => HANDSHAKE_MAX,
            seconds => Duration::from_secs(seconds.into()),
        };
        let (living, listener, path) = (Living::new(self), listener.clone(), path.to_owned());
        tokio::task::spawn_local(async move {
            let worker = &living.0;
            let mut stopping = worker.server.stopping.subscribe();
            let failed = tokio::select! {
                shaken = socket.accept_tls(&listener) => shaken.err().map(|(error, outcome)| {
                    // The verdict on the certificate is clearer than the alert that follows from it.
                    outcome.and_then(|outcome| outcome.failure).map_or_else(|| error.to_string(), |why| why.to_string())
                }),
                () = tokio::time::sleep(limit) => {
                    Some(format!("the TLS handshake took longer than {} s", limit.as_secs()))
                }
                _ = stopping.wait_for(|stop| *stop) => return,
            };
            drop(place);
            match failed {
                None => worker.accept(socket, peer, &path),
                Some(why) => worker.handshake_failed(&socket, peer, &path, &why),
            }
        });
    }

    fn handshake_failed(&self, socket: &Socket, peer: Option<SocketAddr>, path: &str, why: &str) {
        self.counters.connections.add(1);
        self.counters.handshake_errors.add(1);
        let shown = |address: Option<SocketAddr>| address.map_or_else(|| format!("{path}:0"), |ip| ip.to_string());
        let (peer, local) = (shown(peer), shown(socket.local_addr()));
        let text = format!("Error accepting a client connection: {why} (addr={peer} laddr={local})");
        self.server.log(WARNING, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_a_range() {
        let check = |text: &str, expected: Result<(Option<Version>, Option<Version>), &str>| {
            let found = versions(text);
            match expected {
                Ok(range) => assert_eq!(found, Ok(range), "{text}"),
                Err(part) => assert!(found.as_ref().is_err_and(|why| why.contains(part)), "{text}: {found:?}"),
            }
        };
        let (two, three) = (Some(Version::Tls12), Some(Version::Tls13));
        check("", Ok((None, None)));
        check("TLSv1.2", Ok((two, two)));
        check("tlsv1.3  TLSv1.2", Ok((two, three)));
        check("TLSv1.3", Ok((three, three)));
        check("TLSv1.1 TLSv1.2", Err("'TLSv1.1' is not supported"));
        check("SSLv3", Err("Invalid tls-protocols"));
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused() {
        let check = |options: TlsOptions, expected: &str| {
            let why = TlsPort::new(&options).err().expect("it is wrong");
            assert!(why.contains(expected), "{why}");
        };
        let none = TlsOptions::default();
        let files = TlsOptions { cert_file: b"/none.crt".to_vec(), key_file: b"/none.key".to_vec(), ..none.clone() };
        check(none.clone(), "No tls-cert-file configured!");
        check(TlsOptions { cert_file: b"/none.crt".to_vec(), ..none }, "No tls-key-file configured!");
        check(files.clone(), "Either tls-ca-cert-file or tls-ca-cert-dir must be specified");
        let open = TlsOptions { auth_clients: "no", ..files.clone() };
        check(open.clone(), "Failed to load certificate: /none.crt: No such file or directory");
        check(TlsOptions { ciphers: b"none".to_vec(), ..open.clone() }, "Failed to configure ciphers");
        check(TlsOptions { ciphersuites: b"none".to_vec(), ..open }, "Failed to configure ciphersuites");
        check(
            TlsOptions { ca_cert_file: b"/none.pem".to_vec(), ..files },
            "Failed to configure CA certificate(s) file/directory: /none.pem: No such file or directory",
        );
    }
}
