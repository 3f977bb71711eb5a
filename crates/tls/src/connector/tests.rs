use super::*;
use crate::failure::Code;
use crate::handshakes::{FIXTURE, Failed, Met, entry, listener, meet, pair, settings};
use crate::listener::Listener;
use crate::policy::{Policy, Settings, Version};
use crate::suite;
use crate::verify::Failure;
use crate::x509::Bundle;

fn server() -> Listener {
    let mut settings = settings(vec![entry(&FIXTURE.rsa, None, None), entry(&FIXTURE.ecdsa, None, None)]);
    settings.policy.alpn = Some(vec![b"h2".to_vec(), b"http/1.1".to_vec()]);
    listener(settings)
}

fn ca() -> Arc<Bundle> {
    Arc::new(Bundle::parse("root.crt", &[&FIXTURE.pki.read(&["root.crt"])]).unwrap())
}

fn verifying() -> ServerSettings {
    let policy = Policy { verify: Some(Verify::Required), ca: Some(ca()), ..Policy::default() };
    ServerSettings { policy, ..ServerSettings::default() }
}

fn met(server: &Listener, connector: &Connector, sni: Option<&str>) -> Result<Met, Failed> {
    meet(server, connector.connect(sni, None).unwrap())
}

#[test]
fn names_are_sent_and_verified() {
    let server = server();
    let connector = Connector::new(verifying()).unwrap();
    let facts = met(&server, &connector, Some("ecdsa.example")).unwrap();
    assert_eq!(facts.server.sni.as_deref(), Some("ecdsa.example"));
    assert_eq!(facts.client.cipher(), facts.server.cipher());
    let peer = facts.client.peer.unwrap();
    assert!(peer.leaf == *FIXTURE.ecdsa.leaf() && peer.root.is_some());
    // The default certificate is for other names.
    let failed = met(&server, &connector, Some("other.example")).unwrap_err();
    let Failed::Client(error, Some(outcome)) = failed else { panic!("{failed:?}") };
    assert_eq!(outcome.failure, Some(Failure::MismatchSni));
    assert_eq!(Code::from(&error), Code::VERIFY_FAILED);
    // Without a name nothing is sent or compared, unless the line has `verifyhost`.
    assert_eq!(met(&server, &connector, None).unwrap().server.sni, None);
    let host = |name: &str| ServerSettings { verify_host: Some(name.into()), ..verifying() };
    assert!(met(&server, &Connector::new(host("both.example")).unwrap(), None).is_ok());
    let failed = met(&server, &Connector::new(host("other.example")).unwrap(), None).unwrap_err();
    let Failed::Client(_, Some(outcome)) = failed else { panic!("{failed:?}") };
    assert_eq!(outcome.failure, Some(Failure::Mismatch));
}

#[test]
fn engines_are_verified_by_name_or_address() {
    let pki = &FIXTURE.pki;
    let leaf = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:*.engine.example,IP:10.0.0.1,IP:fd00::1";
    pki.signed("engine", "inter", leaf);
    pki.signed("common.example", "inter", "basicConstraints=CA:FALSE\nsubjectAltName=DNS:other.example");
    let of = |name: &str| listener(settings(vec![entry(&pair(pki, name), None, None)]));
    // Also an intermediate authority is trusted by itself.
    let ca = Arc::new(Bundle::parse("inter.crt", &[&pki.read(&["inter.crt"])]).unwrap());
    let policy = Policy { verify: Some(Verify::Required), ca: Some(ca), ..Policy::default() };
    let settings = ServerSettings { policy, is_engine: true, ..ServerSettings::default() };
    let connector = Connector::new(settings.clone()).unwrap();
    let check = |name: &str, host: &str, expected: Result<(), &str>| {
        let outcome = match meet(&of(name), connector.connect_to(host).unwrap()) {
            Ok(_) => Ok(()),
            Err(Failed::Client(error, Some(outcome))) => {
                assert_eq!(outcome.failure, Some(Failure::MismatchEngine), "{name} {host}");
                Err(error.to_string())
            }
            Err(failed) => panic!("{name} {host}: {failed:?}"),
        };
        match (&outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(text), Err(part)) if text.contains(part) => {}
            _ => panic!("{name} {host}: {outcome:?}"),
        }
    };
    check("engine", "10.0.0.1", Ok(()));
    check("engine", "fd00::1", Ok(()));
    check("engine", "a.engine.example", Ok(()));
    check("engine", "a.b.engine.example", Err("certificate not valid for name \"a.b.engine.example\""));
    check("engine", "10.0.0.2", Err("only valid for *.engine.example, 10.0.0.1 or fd00::1"));
    check("engine", "0.0.0.0", Err("0.0.0.0"));
    check("engine", "engine", Err("engine"));
    check("common.example", "common.example", Err("other.example"));
    assert!(connector.connect_to("not a name").is_err());
    // HAProxy compares no address, and trusts no intermediate authority.
    let lax = ServerSettings { is_engine: false, ..settings };
    let failed = meet(&of("engine"), Connector::new(lax).unwrap().connect_to("10.0.0.1").unwrap()).unwrap_err();
    let Failed::Client(_, Some(outcome)) = failed else { panic!("{failed:?}") };
    assert!(matches!(outcome.failure, Some(Failure::Authority(_) | Failure::Certificate(_))), "{outcome:?}");
    assert!(meet(&of("engine"), Connector::new(verifying()).unwrap().connect_to("10.0.0.2").unwrap()).is_err());
}

#[test]
fn names_that_are_none() {
    let lax = Connector::new(ServerSettings::default()).unwrap();
    let strict = Connector::new(verifying()).unwrap();
    assert_eq!(met(&server(), &strict, Some("")).unwrap().server.sni, None);
    for name in ["10.0.0.1", "::1", "a b", "a..b"] {
        assert_eq!(met(&server(), &lax, Some(name)).unwrap().server.sni, None, "{name}");
        assert!(strict.connect(Some(name), None).is_err_and(|why| why.contains("can't be sent as SNI")), "{name}");
    }
}

#[test]
fn sessions_are_kept_by_name() {
    let server = server();
    for version in [Version::Tls12, Version::Tls13] {
        let mut settings = verifying();
        (settings.policy.min, settings.policy.max) = (Some(version), Some(version));
        let connector = Connector::new(settings.clone()).unwrap();
        let resumed = |connector: &Connector, name| met(&server, connector, name).unwrap().client.resumed;
        assert!(!resumed(&connector, Some("rsa.example")));
        for _ in 0..12 {
            assert!(resumed(&connector, Some("rsa.example")));
        }
        assert!(!resumed(&connector, Some("both.example")));
        assert!(!resumed(&connector, None));
        assert!(resumed(&connector, None));
        let peer = met(&server, &connector, Some("rsa.example")).unwrap().client.peer.unwrap();
        assert!(peer.leaf == *FIXTURE.rsa.leaf() && !peer.sent_now);
        connector.replace(settings.clone()).unwrap();
        assert!(resumed(&connector, Some("rsa.example")));
        let other = Connector::new(ServerSettings { no_reuse: true, ..settings.clone() }).unwrap();
        assert!(!resumed(&other, None) && !resumed(&other, None));
        connector.replace(ServerSettings { keylog: true, ..settings }).unwrap();
        assert!(!resumed(&connector, Some("rsa.example")));
    }
}

#[test]
fn the_store_is_bounded() {
    let sessions = Sessions::default();
    let name = |number: usize| ServerName::try_from(format!("n{number}.example")).unwrap();
    for number in 0..NAMES_MAX + 10 {
        sessions.set_kx_hint(name(number), NamedGroup::X25519);
    }
    assert_eq!(sessions.names.lock().len(), NAMES_MAX);
    assert_eq!(sessions.kx_hint(&name(9)), None);
    assert_eq!(sessions.kx_hint(&name(10)), Some(NamedGroup::X25519));
}

#[test]
fn protocols_suites_and_own_certificate() {
    let mut line = ServerSettings::default();
    line.policy.alpn = Some(vec![b"http/1.1".to_vec()]);
    line.policy.max = Some(Version::Tls12);
    line.policy.ciphers = Some(suite::parse_tls12("AES128").unwrap().list);
    let connector = Connector::new(line).unwrap();
    let facts = met(&server(), &connector, None).unwrap().client;
    assert_eq!((facts.protocol(), facts.alpn.as_deref()), ("TLSv1.2", Some(&b"http/1.1"[..])));
    assert!(facts.cipher().ends_with("AES128-GCM-SHA256"));
    let connection = connector.connect(None, Some(&[b"h2".to_vec()])).unwrap();
    assert_eq!(meet(&server(), connection).unwrap().client.alpn.as_deref(), Some(&b"h2"[..]));

    let mut asks = settings(vec![entry(&FIXTURE.rsa, None, None)]);
    asks.policy = Policy { verify: Some(Verify::Required), ca: Some(ca()), ..Policy::default() };
    let asks = listener(asks);
    let client = pair(&FIXTURE.pki, "client");
    let shows = Connector::new(ServerSettings { pair: Some(client.clone()), ..ServerSettings::default() }).unwrap();
    let peer = met(&asks, &shows, None).unwrap().server.peer.unwrap();
    assert!(peer.leaf == *client.leaf());
    assert!(met(&asks, &connector, None).is_err());
    assert_eq!(shows.replace_pair(&FIXTURE.rsa), Ok(false));
    assert_eq!(shows.replace_pair(&client), Ok(true));
    let nothing = Policy { min: Some(Version::Tls13), max: Some(Version::Tls12), ..Policy::default() };
    assert!(Connector::new(ServerSettings { policy: nothing, ..ServerSettings::default() }).is_err());
}

#[test]
fn a_server_without_tickets_is_sent_none() {
    // A server that stores no session has tickets only.
    let server = listener(Settings { cache_size: 0, ..settings(vec![entry(&FIXTURE.rsa, None, None)]) });
    for (no_tickets, version, expected) in [
        (false, Version::Tls12, true),
        (true, Version::Tls12, false),
        // The word is about TLS 1.2.
        (true, Version::Tls13, true),
    ] {
        let mut with = ServerSettings { no_tickets, ..ServerSettings::default() };
        with.policy.max = Some(version);
        let connector = Connector::new(with).unwrap();
        let resumed = || met(&server, &connector, None).unwrap().client.resumed;
        assert!(!resumed());
        assert_eq!(resumed(), expected, "{no_tickets} {version:?}");
    }
}
