//! Handshakes in memory between listeners and clients, and the certificates that such tests share.

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::server::{Accepted, Acceptor};
use rustls::{ClientConnection, Connection, Error, ServerConnection};

use crate::keylog::{self, Secrets};
use crate::listener::{Listener, Refusal};
use crate::pair::{Pair, PairFiles};
use crate::policy::{Entry, Policy, Settings};
use crate::resumption::Resumption;
use crate::session::{Facts, Known};
use crate::testing::Pki;
use crate::verify::{self, Outcome};

/// Certificates that these tests share, because generating an RSA key takes long.
pub struct Fixture {
    pub pki: Pki,
    pub rsa: Arc<Pair>,
    pub ecdsa: Arc<Pair>,
    pub ed25519: Arc<Pair>,
}

/// The fixture.
pub static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let pki = Pki::new();
    pki.signed_key("rsa", "root", "subjectAltName=DNS:rsa.example,DNS:both.example", "rsa:2048");
    pki.signed("ecdsa", "root", "subjectAltName=DNS:ecdsa.example,DNS:*.wild.example");
    pki.signed_key("ed25519", "root", "subjectAltName=DNS:ed25519.example", "ed25519");
    pki.signed("client", "root", "extendedKeyUsage=clientAuth");
    pki.signed("stranger", "other", "extendedKeyUsage=clientAuth");
    let [rsa, ecdsa, ed25519] = ["rsa", "ecdsa", "ed25519"].map(|name| pair(&pki, name));
    Fixture { pki, rsa, ecdsa, ed25519 }
});

/// Returns a certificate of the fixture's directory.
pub fn pair(pki: &Pki, name: &str) -> Arc<Pair> {
    let pem = pki.read(&[&format!("{name}.crt"), &format!("{name}.key")]);
    Arc::new(Pair::parse(PairFiles { path: name, pem: &pem, ..PairFiles::default() }).unwrap())
}

/// Returns an entry with filters between blanks.
pub fn entry(pair: &Arc<Pair>, filters: Option<&str>, policy: Option<Policy>) -> Entry {
    let filters = filters.map(|filters| filters.split(' ').map(str::to_owned).collect());
    Entry { pair: pair.clone(), filters, policy, is_default: false, from: ("list".into(), 1) }
}

/// Returns the settings of a `bind` line.
pub fn settings(entries: Vec<Entry>) -> Settings {
    Settings { entries: entries.into(), cache_size: 20_000, lifetime: Duration::from_secs(300), ..Settings::default() }
}

/// Returns a listener with a store of its own.
pub fn listener(settings: Settings) -> Listener {
    Listener::new(settings, &Resumption::new(20_000)).unwrap()
}

/// The end of a handshake that failed.
#[derive(Debug)]
pub enum Failed {
    /// No certificate was chosen.
    Refused(Refusal),
    /// The server's error.
    Server(Error),
    /// The client's error, and the outcome of its verification.
    Client(Error, Option<Box<Outcome>>),
}

/// The facts that both sides have about a finished handshake.
#[derive(Debug)]
pub struct Met {
    /// The server's side.
    pub server: Facts,
    /// The client's side.
    pub client: Facts,
}

/// One side of a handshake.
#[derive(Default)]
struct Side {
    outcome: Option<Outcome>,
    secrets: Secrets,
}

impl Side {
    fn step<R>(&mut self, process: impl FnOnce() -> R) -> R {
        let result = verify::within(&mut self.outcome, process);
        self.secrets.extend(*keylog::take().unwrap_or_default());
        result
    }

    fn known(self) -> Known {
        let secrets = (!self.secrets.client_random().is_empty()).then(|| Box::new(self.secrets));
        Known { outcome: self.outcome, secrets, ..Known::default() }
    }
}

/// Returns a client's hello as a server sees it.
pub fn accept(client: &mut ClientConnection) -> Accepted {
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    let mut acceptor = Acceptor::default();
    acceptor.read_tls(&mut &bytes[..]).unwrap();
    acceptor.accept().unwrap().unwrap()
}

/// Drives a handshake, and one exchange after it.
pub fn meet(listener: &Listener, mut client: ClientConnection) -> Result<Met, Failed> {
    let (mut theirs, mut ours) = (Side::default(), Side::default());
    let accepted = accept(&mut client);
    let choice = listener.choose(&accepted.client_hello()).map_err(Failed::Refused)?;
    let server = ours.step(|| accepted.into_connection(choice.config.clone()));
    let mut server: ServerConnection = server.map_err(|(error, _)| Failed::Server(error))?;
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            if let Err(error) = theirs.step(|| client.process_new_packets()) {
                return Err(Failed::Client(error, theirs.outcome.map(Box::new)));
            }
        }
        if !client.is_handshaking() && server.is_handshaking() {
            client.writer().write_all(b"x").unwrap();
        }
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            ours.step(|| server.process_new_packets()).map_err(Failed::Server)?;
        }
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    let server = Facts::new(&Connection::from(server), Known { pair: Some(choice.pair), ..ours.known() });
    let client = Facts::new(&Connection::from(client), theirs.known());
    Ok(Met { server, client })
}
