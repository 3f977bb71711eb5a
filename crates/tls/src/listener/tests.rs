use rustls::client::Resumption as Kept;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error, PeerIncompatible};

use super::*;
use crate::handshakes::{FIXTURE, Failed, accept, entry, listener, meet, pair, settings};
use crate::keylog::Secret;
use crate::options::{provider, suites, versions};
use crate::pair::PairFiles;
use crate::policy::{Policy, ServerSettings, TicketKeyFile, Verify, Version};
use crate::session::Facts;
use crate::verify::ServerVerifier;
use crate::x509::Bundle;
use crate::{group, scheme, suite};

/// A client, as far as these tests vary it.
#[derive(Clone, Default)]
struct Client {
    versions: Option<Version>,
    ciphers: Option<&'static str>,
    ciphersuites: Option<&'static str>,
    curves: Option<&'static str>,
    sigalgs: Option<&'static str>,
    alpn: &'static [&'static str],
    shows: Option<&'static str>,
}

impl Client {
    fn config(&self) -> Arc<ClientConfig> {
        // rustls offers suites of versions that it does not offer, which no other client does.
        let policy = Policy {
            min: self.versions,
            max: self.versions,
            ciphers: self.ciphers.map(|text| suite::parse_tls12(text).unwrap().list),
            ciphersuites: self.ciphersuites.map(|text| suite::parse_tls13(text).unwrap().list),
            ..Policy::default()
        };
        let versions = versions(&policy).unwrap();
        let suites = suites(&policy, &versions);
        let groups = match self.curves {
            Some(text) => group::parse(text).unwrap().list.to_vec(),
            None => group::default().collect(),
        };
        let sigalgs = self.sigalgs.map(|text| scheme::parse(text).unwrap().list);
        let policy = Policy { sigalgs, ..Policy::default() };
        let verifier = ServerVerifier::new(&ServerSettings { policy, ..ServerSettings::default() });
        let builder = ClientConfig::builder_with_provider(provider(suites, groups))
            .with_protocol_versions(&versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let shown = rustls::sign::SingleCertAndKey::from(pair(&FIXTURE.pki, name).certified());
                builder.with_client_cert_resolver(Arc::new(shown))
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = Kept::in_memory_sessions(32);
        Arc::new(config)
    }
}

/// Returns what the server knows after a handshake.
fn shake(listener: &Listener, config: &Arc<ClientConfig>, name: Option<&str>) -> Result<Facts, Failed> {
    let name = ServerName::try_from(name.unwrap_or("127.0.0.1").to_owned()).unwrap();
    let client = ClientConnection::new(config.clone(), name).unwrap();
    meet(listener, client).map(|met| met.server)
}

/// Returns the server's error.
fn error(listener: &Listener, client: &Client) -> Error {
    match shake(listener, &client.config(), Some("rsa.example")) {
        Err(Failed::Server(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn facts(listener: &Listener, client: &Client, name: &str) -> Facts {
    shake(listener, &client.config(), Some(name)).unwrap()
}

fn shown(listener: &Listener, client: &Client, name: &str) -> String {
    facts(listener, client, name).pair.unwrap().path.clone()
}

#[test]
fn one_certificate_and_the_facts() {
    let listener = listener(settings(vec![entry(&FIXTURE.rsa, None, None)]));
    let plain = Client { alpn: &["http/1.1"], ..Client::default() };
    let facts = shake(&listener, &plain.config(), Some("RSA.example")).unwrap();
    assert_eq!((facts.protocol(), facts.cipher(), facts.key_bits()), ("TLSv1.3", "TLS_AES_256_GCM_SHA384", 256));
    assert_eq!((facts.curve(), facts.sni.as_deref(), facts.resumed), (Some("X25519"), Some("rsa.example"), false));
    assert!(facts.alpn.is_none() && facts.peer.is_none() && facts.secrets.is_none());
    let old = Client { versions: Some(Version::Tls12), curves: Some("P-384"), ..Client::default() };
    let facts = shake(&listener, &old.config(), None).unwrap();
    assert_eq!((facts.protocol(), facts.cipher()), ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384"));
    assert_eq!((facts.curve(), facts.sni.as_deref()), (Some("secp384r1"), None));
}

#[test]
fn key_types() {
    let both = [entry(&FIXTURE.rsa, Some("a.example"), None), entry(&FIXTURE.ecdsa, Some("*.example"), None)];
    let listener = listener(settings(both.to_vec()));
    let name = "a.example";
    assert_eq!(shown(&listener, &Client::default(), name), "ecdsa");
    let rsa = Client { sigalgs: Some("RSA-PSS+SHA256:RSA+SHA256"), ..Client::default() };
    assert_eq!(shown(&listener, &rsa, name), "rsa");
    // An ECDSA scheme without a suite for it.
    let odd = Client { versions: Some(Version::Tls12), ciphers: Some("aRSA"), ..Client::default() };
    assert_eq!(shown(&listener, &odd, name), "rsa");
    assert_eq!(shown(&listener, &Client { versions: Some(Version::Tls12), ..Client::default() }, name), "ecdsa");
    // Nothing for the name: the first of the line.
    assert_eq!(shown(&listener, &Client::default(), "other.test"), "rsa");
    let other = super::Listener::new(settings(vec![entry(&FIXTURE.ed25519, None, None)]), &Resumption::new(0)).unwrap();
    assert_eq!(shown(&other, &Client::default(), "anything"), "ed25519");
}

#[test]
fn strict_sni() {
    let mut strict = settings(vec![entry(&FIXTURE.rsa, None, None)]);
    strict.strict_sni = true;
    let listener = listener(strict);
    assert_eq!(shown(&listener, &Client::default(), "both.example"), "rsa");
    for name in [Some("other.example"), None] {
        let Err(Failed::Refused(refusal)) = shake(&listener, &Client::default().config(), name) else { panic!() };
        assert_eq!((&refusal, u8::from(refusal.alert())), (&Refusal::NoCertificate, 112));
    }
    let empty = super::Listener::new(Settings { strict_sni: true, ..settings(Vec::new()) }, &Resumption::new(0));
    assert!(shake(&empty.unwrap(), &Client::default().config(), Some("a")).is_err());
}

#[test]
fn application_protocols() {
    let policy = |alpn: &[&str]| Policy {
        alpn: Some(alpn.iter().map(|name| name.as_bytes().to_vec()).collect()),
        ..Policy::default()
    };
    let mut with = settings(vec![
        entry(&FIXTURE.rsa, None, None),
        entry(&FIXTURE.ecdsa, None, Some(policy(&["x"]))),
        entry(&FIXTURE.ed25519, None, Some(policy(&[]))),
    ]);
    with.policy = policy(&["h2", "http/1.1"]);
    let listener = listener(with);
    let alpn = |offered, name| {
        let client = Client { alpn: offered, ..Client::default() };
        facts(&listener, &client, name).alpn.map(|alpn| String::from_utf8(alpn.into()).unwrap())
    };
    assert_eq!(alpn(&["http/1.1", "h2"], "rsa.example").as_deref(), Some("h2"));
    assert_eq!(alpn(&["http/1.1"], "rsa.example").as_deref(), Some("http/1.1"));
    assert_eq!(alpn(&["spdy/3"], "rsa.example"), None);
    assert_eq!(alpn(&[], "rsa.example"), None);
    assert_eq!(alpn(&["h2", "x"], "ecdsa.example").as_deref(), Some("x"));
    assert_eq!(alpn(&["h2"], "ed25519.example"), None);
}

#[test]
fn versions_and_orders() {
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings(vec![entry(&FIXTURE.rsa, None, None), entry(&FIXTURE.ecdsa, None, None)]);
        change(&mut settings);
        listener(settings)
    };
    let cipher = |listener: &Listener, client: &Client| facts(listener, client, "rsa.example").cipher();
    let plain = with(|_| {});
    let old = Client { versions: Some(Version::Tls12), ..Client::default() };
    let backwards = Client { ciphers: Some("AES128:AES256:CHACHA20"), ..old.clone() };
    assert_eq!(cipher(&plain, &backwards), "ECDHE-RSA-AES256-GCM-SHA384");
    let chacha = Client { ciphers: Some("CHACHA20:AES256"), ..old.clone() };
    assert_eq!(cipher(&plain, &chacha), "ECDHE-RSA-CHACHA20-POLY1305");
    let chacha =
        Client { ciphersuites: Some("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"), ..Client::default() };
    assert_eq!(cipher(&plain, &chacha), "TLS_CHACHA20_POLY1305_SHA256");
    let client_order = with(|settings| settings.prefer_client_ciphers = true);
    assert_eq!(cipher(&client_order, &backwards), "ECDHE-RSA-AES128-GCM-SHA256");
    let new = with(|settings| settings.policy.min = Some(Version::Tls13));
    assert_eq!(error(&new, &old), Error::from(PeerIncompatible::Tls12NotOfferedOrEnabled));
    let limited = with(|settings| {
        settings.policy.max = Some(Version::Tls12);
        settings.policy.ciphers = Some(suite::parse_tls12("AES128").unwrap().list);
        settings.policy.groups = Some(group::parse("P-384:X25519").unwrap().list);
    });
    let limited = facts(&limited, &Client::default(), "rsa.example");
    // The server's order of groups, which rustls does not follow by itself.
    assert_eq!((limited.cipher(), limited.curve()), ("ECDHE-RSA-AES128-GCM-SHA256", Some("secp384r1")));
    let nothing = Policy { min: Some(Version::Tls13), max: Some(Version::Tls12), ..Policy::default() };
    let error = Listener::new(Settings { policy: nothing, ..settings(Vec::new()) }, &Resumption::new(0)).err();
    assert_eq!(error.as_deref(), Some("all SSL/TLS versions are disabled"));
}

#[test]
fn own_signature_schemes() {
    let mut with = settings(vec![entry(&FIXTURE.rsa, None, None)]);
    with.policy.sigalgs = Some(scheme::parse("RSA-PSS+SHA384").unwrap().list);
    let listener = listener(with.clone());
    facts(&listener, &Client::default(), "rsa.example");
    let other = Client { sigalgs: Some("RSA-PSS+SHA256"), ..Client::default() };
    for (versions, code) in [(Version::Tls12, 0x0a00_00c1), (Version::Tls13, 0x0a00_0076)] {
        let other = Client { versions: Some(versions), ..other.clone() };
        let refused = shake(&listener, &other.config(), Some("rsa.example"));
        let Err(Failed::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!((u8::from(refusal.alert()), refusal.code().number()), (40, code));
    }
    // Without a common version that comes first.
    with.policy.max = Some(Version::Tls12);
    let other = Client { versions: Some(Version::Tls13), ..other };
    let refused = shake(&self::listener(with), &other.config(), Some("rsa.example"));
    let Err(Failed::Refused(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!((u8::from(refusal.alert()), refusal.code().number()), (70, 0x0a00_0102));
}

#[test]
fn tickets_across_listeners_with_one_key_file() {
    let file = |bytes: [u8; 3]| TicketKeyFile { path: "keys".into(), keys: bytes.map(|byte| vec![byte; 80]).to_vec() };
    let with = |keys: [u8; 3]| Settings {
        ticket_keys: Some(Arc::new(file(keys))),
        cache_size: 0,
        ..settings(vec![entry(&FIXTURE.rsa, None, None)])
    };
    for version in [Version::Tls12, Version::Tls13] {
        let config = Client { versions: Some(version), ..Client::default() }.config();
        let resumed = |listener: &Listener| shake(listener, &config, Some("rsa.example")).unwrap().resumed;
        assert!(!resumed(&listener(with([1, 2, 3]))));
        // Another process with the next keys.
        assert!(resumed(&listener(with([2, 3, 4]))));
        assert!(!resumed(&listener(with([5, 6, 7]))));
    }
}

#[test]
fn sessions_of_the_store() {
    let resumption = Resumption::new(20_000);
    let with = Settings { no_tickets: true, ..settings(vec![entry(&FIXTURE.rsa, None, None)]) };
    let first = Listener::new(with.clone(), &resumption).unwrap();
    let second = Listener::new(with, &resumption).unwrap();
    for version in [Version::Tls12, Version::Tls13] {
        let config = Client { versions: Some(version), ..Client::default() }.config();
        let resumed = |listener: &Listener, name| shake(listener, &config, Some(name)).unwrap().resumed;
        assert!(!resumed(&first, "rsa.example"));
        assert!(resumed(&second, "rsa.example"));
        assert!(!resumed(&second, "both.example"));
    }
    let (lookups, misses) = resumption.lookups_and_misses();
    assert!(lookups >= 2 && misses < lookups);
    let none = Listener::new(
        Settings { no_tickets: true, cache_size: 0, ..settings(vec![entry(&FIXTURE.rsa, None, None)]) },
        &resumption,
    );
    let none = none.unwrap();
    let config = Client::default().config();
    for _ in 0..2 {
        assert!(!shake(&none, &config, Some("rsa.example")).unwrap().resumed);
    }
}

#[test]
fn client_certificates_and_their_sessions() {
    let ca = Bundle::parse("root.crt", &[&FIXTURE.pki.read(&["root.crt"])]).unwrap();
    let policy = |verify, all| Policy {
        verify: Some(verify),
        ca: Some(Arc::new(ca.clone())),
        crt_ignored: if all { crate::policy::Ignored::All } else { Default::default() },
        ca_ignored: if all { crate::policy::Ignored::All } else { Default::default() },
        ..Policy::default()
    };
    let resumption = Resumption::new(20_000);
    let with = |policy| {
        let settings = Settings { policy, ..settings(vec![entry(&FIXTURE.rsa, None, None)]) };
        Listener::new(settings, &resumption).unwrap()
    };
    let required = with(policy(Verify::Required, false));
    let lax = with(policy(Verify::Optional, true));
    let open = with(Policy::default());
    let name = Some("rsa.example");
    for version in [Version::Tls12, Version::Tls13] {
        let client = Client { versions: Some(version), ..Client::default() };
        let own = Client { shows: Some("client"), ..client.clone() }.config();
        let facts = shake(&required, &own, name).unwrap();
        assert_eq!(facts.verdict.result, 0);
        let peer = facts.peer.unwrap();
        assert!(peer.sent_now && peer.root.is_some());
        let resumed = shake(&required, &own, name).unwrap();
        let again = resumed.peer.unwrap();
        assert!(resumed.resumed && !again.sent_now && again.leaf == peer.leaf);
        // A session without verification is none where a certificate is required.
        let none = client.config();
        assert!(!shake(&open, &none, name).unwrap().resumed);
        assert!(shake(&open, &none, name).unwrap().resumed);
        assert_eq!(error(&required, &client), Error::NoCertificatesPresented);
        // The verdict is kept by the resumed session, and by the one after it.
        let stranger = Client { shows: Some("stranger"), ..client.clone() }.config();
        assert!(matches!(shake(&required, &stranger, name), Err(Failed::Server(Error::InvalidCertificate(_)))));
        let first = shake(&lax, &stranger, name).unwrap();
        assert_ne!(first.verdict.result, 0);
        for _ in 0..3 {
            let next = shake(&lax, &stranger, name).unwrap();
            assert!(next.resumed);
            assert_eq!(next.verdict, first.verdict);
        }
    }
}

#[test]
fn secrets_are_kept_on_demand() {
    let mut with = settings(vec![entry(&FIXTURE.rsa, None, None)]);
    with.keylog = true;
    let listener = listener(with);
    let secrets = facts(&listener, &Client::default(), "rsa.example").secrets.unwrap();
    assert_eq!(secrets.client_random().len(), 32);
    for secret in [Secret::ClientHandshakeTraffic, Secret::ServerTraffic0, Secret::Exporter] {
        assert_eq!(secrets.hex(secret).unwrap().len(), 96);
    }
    assert_eq!(secrets.hex(Secret::Master), None);
    let old = Client { versions: Some(Version::Tls12), ..Client::default() };
    assert_eq!(facts(&listener, &old, "rsa.example").secrets.unwrap().get(Secret::Master).len(), 48);
}

#[test]
fn replacements_keep_what_is_equal() {
    let listener = listener(settings(vec![
        entry(&FIXTURE.rsa, None, None),
        entry(&FIXTURE.ecdsa, None, None),
        entry(&FIXTURE.rsa, Some("x.example"), None),
    ]));
    let slots = |listener: &Listener| listener.table.read().slots.clone();
    let before = slots(&listener);
    // A renewed certificate with another name.
    FIXTURE.pki.signed("renewed", "root", "subjectAltName=DNS:renewed.example");
    let pem = FIXTURE.pki.read(&["renewed.crt", "renewed.key"]);
    let renewed = Arc::new(Pair::parse(PairFiles { path: "rsa", pem: &pem, ..PairFiles::default() }).unwrap());
    assert_eq!(listener.replace_pair(&renewed), 2);
    let after = slots(&listener);
    assert!(Arc::ptr_eq(&before[1], &after[1]) && !Arc::ptr_eq(&before[0], &after[0]));
    assert!(Arc::ptr_eq(&after[2].pair, &renewed) && Arc::ptr_eq(&after[2].options, &before[2].options));
    let found = |name| facts(&listener, &Client::default(), name).pair.unwrap();
    assert!(Arc::ptr_eq(&found("renewed.example"), &renewed));
    assert_eq!(found("ecdsa.example").path, "ecdsa");
    assert_eq!(listener.replace_pair(&FIXTURE.ed25519), 0);

    let same = Settings::clone(&listener.settings());
    assert!(same == *listener.settings());
    listener.replace(same.clone()).unwrap();
    assert!(slots(&listener).iter().zip(&after).all(|(a, b)| Arc::ptr_eq(a, b)));
    let other = Settings { keylog: true, ..same };
    assert!(other != *listener.settings());
    listener.replace(other).unwrap();
    assert!(slots(&listener).iter().zip(&after).all(|(a, b)| !Arc::ptr_eq(a, b)));
    let broken = Policy { min: Some(Version::Tls13), max: Some(Version::Tls12), ..Policy::default() };
    assert!(listener.replace(Settings { policy: broken, ..Settings::clone(&listener.settings()) }).is_err());
    assert_eq!(found("ecdsa.example").path, "ecdsa");
}

#[test]
fn configurations_are_built_once() {
    let listener = listener(settings(vec![entry(&FIXTURE.rsa, None, None)]));
    let config = |client: &Client| {
        let mut connection =
            ClientConnection::new(client.config(), ServerName::try_from("rsa.example").unwrap()).unwrap();
        listener.choose(&accept(&mut connection).client_hello()).unwrap().config
    };
    let p256 = Client { versions: Some(Version::Tls12), curves: Some("P-256:X25519"), ..Client::default() };
    let chacha = Client { ciphersuites: Some("TLS_CHACHA20_POLY1305_SHA256"), ..Client::default() };
    for client in [Client::default(), p256.clone(), chacha] {
        assert!(Arc::ptr_eq(&config(&client), &config(&client)));
    }
    assert!(!Arc::ptr_eq(&config(&Client::default()), &config(&p256)));
}
