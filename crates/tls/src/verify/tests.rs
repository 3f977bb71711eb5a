//! Verdicts compared with `openssl verify`, and handshakes in memory.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::testing::Pki;

const DAY: i64 = 86_400;

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs().try_into().expect("before the end")
}

fn bundle(pki: &Pki, files: &[&str]) -> Bundle {
    Bundle::parse("x", &[&pki.read(files)]).expect("PEM")
}

/// A chain to verify, and where to look for its issuers.
struct Case<'a> {
    leaf: &'a str,
    untrusted: &'a [&'a str],
    trusted: &'a [&'a str],
    crls: &'a [&'a str],
    days: i64,
    purpose: Purpose,
}

const CASE: Case<'_> =
    Case { leaf: "", untrusted: &[], trusted: &["root.crt"], crls: &[], days: 0, purpose: Purpose::Client };

/// Compares the first error with that of openssl, and returns it.
fn check(pki: &Pki, case: Case<'_>) -> Option<(i32, u32)> {
    let time = now() + case.days * DAY;
    let mut line = format!("-attime {time} -no-CApath -no-CAstore");
    line += if case.purpose == Purpose::Client { " -purpose sslclient" } else { " -purpose sslserver" };
    pki.write("trusted", &pki.read(case.trusted));
    line += " -CAfile trusted";
    if !case.untrusted.is_empty() {
        pki.write("untrusted", &pki.read(case.untrusted));
        line += " -untrusted untrusted";
    }
    for crl in case.crls {
        line += &format!(" -crl_check_all -CRLfile {crl}");
    }
    let expected = pki.verify(&format!("{line} {}", case.leaf));

    let trusted = bundle(pki, case.trusted);
    let crls = (!case.crls.is_empty()).then(|| bundle(pki, case.crls));
    let store = Store::new([Some(&trusted), crls.as_ref()].into_iter().flatten(), crls.is_some());
    let leaf = Certificate::from_pem(&pki.read(&[case.leaf])).expect("PEM");
    let untrusted: Vec<_> =
        case.untrusted.iter().map(|file| Certificate::from_pem(&pki.read(&[file])).expect("PEM")).collect();
    let mut error = None;
    let verification = store.verify(&leaf, &untrusted, case.purpose, time, &mut |code, depth| {
        error = Some((code, depth));
        false
    });
    assert_eq!(error, expected, "{line} {}", case.leaf);
    assert_eq!(verification.accepted, expected.is_none());
    error
}

#[test]
fn verdicts_and_depths_are_those_of_openssl() {
    let pki = Pki::new();
    pki.signed("client", "inter", "extendedKeyUsage=clientAuth\nsubjectAltName=DNS:client.example");
    pki.signed("server", "inter", "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:server.example");
    let chain = &["inter.crt"][..];
    let client = || Case { leaf: "client.crt", untrusted: chain, ..CASE };

    // Good, expired, not yet valid.
    assert_eq!(check(&pki, client()), None);
    assert_eq!(check(&pki, Case { days: 301, ..client() }), Some((10, 1)));
    assert_eq!(check(&pki, Case { days: -1, ..client() }), Some((9, 2)));
    pki.request("short", "ec -pkeyopt ec_paramgen_curve:P-256", "/CN=short");
    pki.sign("short", "inter", "", 2);
    assert_eq!(check(&pki, Case { leaf: "short.crt", days: 3, ..client() }), Some((10, 0)));

    // Other authorities, missing issuers.
    assert_eq!(check(&pki, Case { trusted: &["other.crt"], ..client() }), Some((20, 1)));
    assert_eq!(check(&pki, Case { untrusted: &[], ..client() }), Some((20, 0)));
    assert_eq!(check(&pki, Case { untrusted: &["inter.crt", "root.crt"], ..client() }), None);
    assert_eq!(
        check(&pki, Case { untrusted: &["inter.crt", "root.crt"], trusted: &["other.crt"], ..client() }),
        Some((19, 2))
    );
    assert_eq!(check(&pki, Case { untrusted: &[], trusted: &["inter.crt"], ..client() }), Some((2, 1)));
    assert_eq!(check(&pki, Case { untrusted: &[], trusted: &["inter.crt", "root.crt"], ..client() }), None);

    // Self-signed.
    assert_eq!(check(&pki, Case { leaf: "other.crt", ..client() }), Some((18, 0)));
    assert_eq!(check(&pki, Case { leaf: "root.crt", ..client() }), Some((26, 0)));

    // Purposes.
    assert_eq!(check(&pki, Case { leaf: "server.crt", ..client() }), Some((26, 0)));
    assert_eq!(check(&pki, Case { leaf: "server.crt", purpose: Purpose::Server, ..client() }), None);
    assert_eq!(check(&pki, Case { purpose: Purpose::Server, ..client() }), Some((26, 0)));

    // X.509 v1, RSA of 1024 bits, Ed25519.
    pki.signed("v1", "root", "");
    assert_eq!(check(&pki, Case { leaf: "v1.crt", ..CASE }), None);
    pki.signed_key("small", "root", "", "rsa:1024");
    assert_eq!(check(&pki, Case { leaf: "small.crt", ..CASE }), None);
    pki.signed_key("edwards", "root", "keyUsage=digitalSignature", "ed25519");
    assert_eq!(check(&pki, Case { leaf: "edwards.crt", ..CASE }), None);

    // Issuers that are no authorities, or too deep.
    pki.signed("plain", "root", "basicConstraints=CA:FALSE");
    pki.signed("below-plain", "plain", "");
    assert_eq!(check(&pki, Case { leaf: "below-plain.crt", untrusted: &["plain.crt"], ..CASE }), Some((79, 1)));
    pki.signed("deep", "inter", "basicConstraints=critical,CA:TRUE");
    pki.signed("below-deep", "deep", "");
    assert_eq!(
        check(&pki, Case { leaf: "below-deep.crt", untrusted: &["deep.crt", "inter.crt"], ..CASE }),
        Some((25, 2))
    );

    // Constraints of names, unknown critical extensions.
    pki.signed("narrow", "root", "basicConstraints=CA:TRUE\nnameConstraints=critical,permitted;DNS:ok.example");
    pki.signed("inside", "narrow", "subjectAltName=DNS:a.ok.example");
    pki.signed("outside", "narrow", "subjectAltName=DNS:bad.example");
    assert_eq!(check(&pki, Case { leaf: "inside.crt", untrusted: &["narrow.crt"], ..CASE }), None);
    assert_eq!(check(&pki, Case { leaf: "outside.crt", untrusted: &["narrow.crt"], ..CASE }), Some((47, 0)));
    pki.signed("critical", "root", "1.2.3.4=critical,ASN1:NULL");
    assert_eq!(check(&pki, Case { leaf: "critical.crt", ..CASE }), Some((34, 0)));

    // A signature that another key made.
    pki.openssl("ec -in other.key -out forged.key");
    pki.openssl(
        "req -x509 -key forged.key -days 3650 -subj /C=FR/CN=root -addext keyUsage=critical,keyCertSign -out forged.crt",
    );
    pki.signed("impostor", "forged", "authorityKeyIdentifier=none");
    assert_eq!(check(&pki, Case { leaf: "impostor.crt", ..CASE }), Some((7, 0)));

    // Revocation lists.
    pki.crl("root.crl", "root", &[]);
    pki.crl("inter.crl", "inter", &["server"]);
    pki.crl("inter-revoked.crl", "root", &["inter"]);
    let lists = |crls| Case { crls, ..client() };
    assert_eq!(check(&pki, lists(&["root.crl", "inter.crl"])), None);
    assert_eq!(
        check(&pki, Case { leaf: "server.crt", purpose: Purpose::Server, ..lists(&["root.crl", "inter.crl"]) }),
        Some((23, 0))
    );
    assert_eq!(check(&pki, lists(&["inter-revoked.crl", "inter.crl"])), Some((23, 1)));
    assert_eq!(check(&pki, lists(&["root.crl"])), Some((3, 0)));
    assert_eq!(check(&pki, lists(&["inter.crl"])), Some((3, 1)));
    assert_eq!(check(&pki, Case { days: 40, ..lists(&["root.crl", "inter.crl"]) }), Some((12, 0)));
}

/// A ticketer that keeps its tickets in clear, with the verdict in front.
#[derive(Debug)]
struct Tickets;

impl rustls::server::ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        300
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let verdict = current().map(Verdict::to_bytes).unwrap_or_default();
        Some([&verdict, plain].concat())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let (verdict, plain) = cipher.split_at_checked(5)?;
        if let Some(verdict) = Verdict::from_bytes(verdict) {
            resume(verdict);
        }
        Some(plain.to_vec())
    }
}

/// What both sides know after a handshake.
struct Met {
    server: Result<(), Error>,
    client: Result<(), Error>,
    outcome: Option<Outcome>,
    server_outcome: Option<Outcome>,
    is_resumed: bool,
    peer: Option<Vec<u8>>,
}

/// A server's and a client's side.
struct Sides {
    server: Arc<rustls::ServerConfig>,
    client: Arc<rustls::ClientConfig>,
    name: ServerName<'static>,
}

impl Sides {
    fn new(
        version: &'static rustls::SupportedProtocolVersion,
        (policy, pair): (&Policy, &crate::pair::Pair),
        (settings, client_pair): (&ServerSettings, Option<&crate::pair::Pair>),
        name: &str,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let resolver = |pair: &crate::pair::Pair| Arc::new(rustls::sign::SingleCertAndKey::from(pair.certified()));
        let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .expect("suites")
            .with_client_cert_verifier(Arc::new(ClientVerifier::new(policy)))
            .with_cert_resolver(resolver(pair));
        server.ticketer = Arc::new(Tickets);
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("suites")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(settings)));
        let client = match client_pair {
            Some(pair) => client.with_client_cert_resolver(resolver(pair)),
            None => client.with_no_client_auth(),
        };
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        Sides { server: Arc::new(server), client: Arc::new(client), name }
    }

    /// Lets both sides meet, with one record after the other as it may come from a network.
    fn meet(&self) -> Met {
        let mut server = rustls::ServerConnection::new(self.server.clone()).expect("a configuration");
        let mut client =
            rustls::ClientConnection::new(self.client.clone(), self.name.clone()).expect("a configuration");
        let mut met =
            Met { server: Ok(()), client: Ok(()), outcome: None, server_outcome: None, is_resumed: false, peer: None };
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        loop {
            client.write_tls(&mut to_server).expect("memory");
            server.write_tls(&mut to_client).expect("memory");
            if to_server.is_empty() && to_client.is_empty() {
                break;
            }
            if met.server.is_ok() && !to_server.is_empty() {
                server.read_tls(&mut &to_server[..]).expect("memory");
                met.server = within(&mut met.outcome, || server.process_new_packets()).map(|_| ());
            }
            if met.client.is_ok() && !to_client.is_empty() {
                client.read_tls(&mut &to_client[..]).expect("memory");
                met.client = within(&mut met.server_outcome, || client.process_new_packets()).map(|_| ());
            }
            to_server.clear();
            to_client.clear();
        }
        met.is_resumed = server.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        met.peer = server.peer_certificates().map(|chain| chain[0].to_vec());
        met
    }
}

fn pair(pki: &Pki, name: &str, chain: &[&str]) -> crate::pair::Pair {
    let files: Vec<String> = [format!("{name}.crt")]
        .into_iter()
        .chain(chain.iter().map(|file| file.to_string()))
        .chain([format!("{name}.key")])
        .collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let pem = pki.read(&files);
    crate::pair::Pair::parse(crate::pair::PairFiles { path: name, pem: &pem, ..Default::default() }).expect(name)
}

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[test]
fn handshakes_end_or_go_on_by_the_verdict() {
    let pki = Pki::new();
    pki.signed("site", "root", "subjectAltName=DNS:site.example");
    pki.signed("client", "inter", "extendedKeyUsage=clientAuth");
    pki.signed("v1", "root", "");
    pki.signed_key("v1-rsa", "root", "", "rsa:2048");
    pki.signed_key("small", "root", "", "rsa:1024");
    pki.signed_key("edwards", "root", "keyUsage=digitalSignature", "ed25519");
    pki.signed_key("p384", "root", "", "ec -pkeyopt ec_paramgen_curve:P-384");
    pki.signed_key("p521", "root", "", "ec -pkeyopt ec_paramgen_curve:P-521");
    pki.crl("inter.crl", "inter", &["client"]);
    pki.crl("root.crl", "root", &[]);
    let root = Arc::new(bundle(&pki, &["root.crt"]));
    let crl = Arc::new(bundle(&pki, &["inter.crl", "root.crl"]));
    let other = Arc::new(bundle(&pki, &["other.crt"]));
    let site = pair(&pki, "site", &[]);
    let client = pair(&pki, "client", &["inter.crt"]);
    let settings = ServerSettings {
        policy: Policy { verify: Some(Verify::Required), ca: Some(root.clone()), ..Policy::default() },
        ..ServerSettings::default()
    };
    let required = Policy { verify: Some(Verify::Required), ca: Some(root.clone()), ..Policy::default() };
    let der = |pair: &crate::pair::Pair| Some(pair.leaf().to_der());

    for version in VERSIONS {
        let meet = |policy: &Policy, client: Option<&crate::pair::Pair>| {
            let sides = Sides::new(version, (policy, &site), (&settings, client), "site.example");
            let first = sides.meet();
            let second = first.server.is_ok().then(|| sides.meet());
            (first, second)
        };

        // Good, of each kind of key, and X.509 v1; resumed.
        let others: Vec<_> =
            ["v1", "v1-rsa", "small", "edwards", "p384", "p521"].iter().map(|name| pair(&pki, name, &[])).collect();
        for client in others.iter().chain([&client]) {
            let (first, second) = meet(&required, Some(client));
            assert_eq!((first.server, first.client), (Ok(()), Ok(())), "{}", client.path);
            let outcome = first.outcome.expect("a verifier was asked");
            assert_eq!((outcome.verdict, outcome.resumed), (Verdict::default(), false));
            assert_eq!(outcome.root.as_ref(), Some(&root.certificates[0]));
            assert_eq!(outcome.leaf.map(|leaf| leaf.to_der()), der(client));
            assert_eq!(first.peer, der(client));
            let second = second.expect("the first went well");
            assert!(second.is_resumed);
            let outcome = second.outcome.expect("the ticket had one");
            assert_eq!((outcome.verdict, outcome.resumed), (Verdict::default(), true));
            assert_eq!(second.peer, der(client));
        }

        // None.
        let (first, _) = meet(&required, None);
        assert_eq!(first.server, Err(Error::NoCertificatesPresented));
        assert!(first.outcome.is_none());
        let optional = Policy { verify: Some(Verify::Optional), ..required.clone() };
        let (first, second) = meet(&optional, None);
        assert_eq!(first.server, Ok(()));
        assert!(first.outcome.is_none() && second.is_some_and(|second| second.is_resumed && second.outcome.is_none()));

        // Bad ones, and their alerts.
        let check = |policy: Policy, alert: rustls::AlertDescription, failure: Failure, verdict: Verdict| {
            let (first, _) = meet(&policy, Some(&client));
            let outcome = first.outcome.expect("a verifier was asked");
            assert_eq!((outcome.failure, outcome.verdict), (Some(failure), verdict));
            assert_eq!(outcome.leaf.map(|leaf| leaf.to_der()), der(&client));
            assert_eq!(first.server, Err(failure.error()));
            assert_eq!(first.client, Err(Error::AlertReceived(alert)));
        };
        let verdict = |result, code, ca_code, ca_depth| Verdict { result, code, ca_code, ca_depth };
        check(
            Policy { ca: Some(other.clone()), ..optional.clone() },
            rustls::AlertDescription::UnknownCA,
            Failure::Authority(20),
            verdict(20, 0, 20, 1),
        );
        let listed = Policy { crl: Some(crl.clone()), ..required.clone() };
        check(
            listed.clone(),
            rustls::AlertDescription::CertificateRevoked,
            Failure::Certificate(23),
            verdict(23, 23, 0, 0),
        );

        // Ignored errors are reported, also when the session is resumed.
        let ignored = |policy: Policy, expected: Verdict| {
            let (first, second) = meet(&policy, Some(&client));
            assert_eq!(first.server, Ok(()));
            let outcome = first.outcome.expect("a verifier was asked");
            assert_eq!((outcome.failure, outcome.verdict), (None, expected));
            let outcome = second.and_then(|second| second.outcome).expect("the ticket had one");
            assert_eq!((outcome.resumed, outcome.verdict), (true, expected));
        };
        ignored(Policy { crt_ignored: Ignored::Codes(vec![10, 23]), ..listed.clone() }, verdict(23, 23, 0, 0));
        // The chain ends early, and then nothing proves the last certificate's signature.
        ignored(
            Policy {
                ca: Some(other.clone()),
                ca_ignored: Ignored::Codes(vec![20]),
                crt_ignored: Ignored::Codes(vec![21]),
                ..required.clone()
            },
            verdict(20, 0, 20, 1),
        );
        // HAProxy 3.2 reports the same of a leaf alone, and takes the end of what there is for the root.
        let (first, _) = meet(
            &Policy { ca: Some(other.clone()), crt_ignored: Ignored::All, ..required.clone() },
            Some(&pair(&pki, "client", &[])),
        );
        let outcome = first.outcome.expect("a verifier was asked");
        assert_eq!((outcome.verdict, outcome.root.as_ref()), (verdict(21, 20, 0, 0), Some(client.leaf())));
        check(
            Policy { ca_ignored: Ignored::All, ..listed },
            rustls::AlertDescription::CertificateRevoked,
            Failure::Certificate(23),
            verdict(23, 23, 0, 0),
        );
    }
}

#[test]
fn servers_are_verified_by_the_name_that_was_sent_else_by_verifyhost() {
    let pki = Pki::new();
    pki.signed("site", "root", "subjectAltName=DNS:site.example,DNS:*.site.example,IP:127.0.0.1");
    pki.signed("client", "inter", "extendedKeyUsage=clientAuth");
    pki.signed("v1", "root", "");
    let root = Some(Arc::new(bundle(&pki, &["root.crt"])));
    let site = pair(&pki, "site", &[]);
    let none = Policy::default();
    for version in VERSIONS {
        let meet = |pair: &crate::pair::Pair, settings: &ServerSettings, name: &str| {
            let met = Sides::new(version, (&none, pair), (settings, None), name).meet();
            assert_eq!(met.client.is_ok(), met.server.is_ok());
            let outcome = met.server_outcome.expect("a verifier was asked");
            assert_eq!(outcome.leaf.as_ref(), Some(pair.leaf()));
            (outcome.failure, outcome.verdict.result, met.server)
        };
        let required = |host: Option<&str>| ServerSettings {
            policy: Policy { verify: Some(Verify::Required), ca: root.clone(), ..Policy::default() },
            verify_host: host.map(Arc::from),
            ..ServerSettings::default()
        };
        assert_eq!(meet(&site, &required(None), "site.example"), (None, 0, Ok(())));
        assert_eq!(meet(&site, &required(Some("ignored")), "a.site.example"), (None, 0, Ok(())));
        // The common name counts, although there are other names.
        assert_eq!(meet(&site, &required(None), "site"), (None, 0, Ok(())));
        let unknown = Err(Error::AlertReceived(rustls::AlertDescription::CertificateUnknown));
        assert_eq!(meet(&site, &required(None), "other.example"), (Some(Failure::MismatchSni), 1, unknown.clone()));
        // Nothing is sent as SNI: addresses are not compared.
        assert_eq!(meet(&site, &required(None), "127.0.0.2"), (None, 0, Ok(())));
        assert_eq!(meet(&site, &required(Some("SITE.example")), "127.0.0.2"), (None, 0, Ok(())));
        assert_eq!(meet(&site, &required(Some("other.example")), "127.0.0.1"), (Some(Failure::Mismatch), 1, unknown));
        // Without verification nothing is compared.
        let settings = ServerSettings {
            policy: Policy { verify: Some(Verify::None), ..Policy::default() },
            ..required(Some("other.example"))
        };
        assert_eq!(meet(&site, &settings, "other.example"), (None, 0, Ok(())));
        assert_eq!(meet(&pair(&pki, "v1", &[]), &required(None), "v1"), (None, 0, Ok(())));
        // A client's certificate, an unknown authority.
        assert_eq!(
            meet(&pair(&pki, "client", &["inter.crt"]), &required(None), "client"),
            (
                Some(Failure::Certificate(26)),
                26,
                Err(Error::AlertReceived(rustls::AlertDescription::UnsupportedCertificate))
            )
        );
        assert_eq!(
            meet(&pair(&pki, "client", &[]), &required(None), "client"),
            (Some(Failure::Certificate(20)), 20, Err(Error::AlertReceived(rustls::AlertDescription::UnknownCA)))
        );
    }
}

#[test]
fn schemes_of_clients_can_be_limited() {
    let pki = Pki::new();
    pki.signed_key("rsa", "root", "", "rsa:2048");
    pki.signed("client", "root", "");
    let root = Some(Arc::new(bundle(&pki, &["root.crt"])));
    let settings = ServerSettings::default();
    let site = pair(&pki, "client", &[]);
    let policy = Policy {
        verify: Some(Verify::Required),
        ca: root,
        client_sigalgs: Some(Arc::new([Scheme::RSA_PSS_SHA384])),
        ..Policy::default()
    };
    let meet = |name: &str| {
        Sides::new(&rustls::version::TLS13, (&policy, &site), (&settings, Some(&pair(&pki, name, &[]))), "a").meet()
    };
    assert_eq!(meet("rsa").server, Ok(()));
    assert_eq!(meet("client").server, Err(Error::NoCertificatesPresented));
}

#[test]
fn names_of_authorities_are_sent() {
    let pki = Pki::new();
    let ca = Arc::new(bundle(&pki, &["root.crt", "other.crt", "root.crt"]));
    let verify = Arc::new(bundle(&pki, &["inter.crt"]));
    let policy = Policy { ca: Some(ca.clone()), ca_verify: Some(verify), ..Policy::default() };
    let hints: Vec<Vec<u8>> =
        ClientVerifier::new(&policy).root_hint_subjects().iter().map(|name| name.as_ref().to_vec()).collect();
    let expected: Vec<_> = ca.certificates.iter().map(|ca| ca.subject().to_der()).collect();
    assert_eq!((hints.len(), hints), (2, expected));
    let silent = Policy { no_ca_names: true, ..policy.clone() };
    assert!(ClientVerifier::new(&silent).root_hint_subjects().is_empty());
    assert_eq!(ClientVerifier::new(&silent).fingerprint(), ClientVerifier::new(&policy).fingerprint());
    let ignoring = Policy { ca_ignored: Ignored::All, ..policy.clone() };
    assert_ne!(ClientVerifier::new(&ignoring).fingerprint(), ClientVerifier::new(&policy).fingerprint());
}

#[test]
fn verdicts_have_a_form_for_tickets() {
    let verdict = Verdict { result: 94, code: 23, ca_code: 20, ca_depth: 3 };
    assert_eq!(Verdict::from_bytes(&verdict.to_bytes()), Some(verdict));
    assert_eq!(Verdict::from_bytes(&[]), None);
    assert_eq!(Verdict::from_bytes(&[0; 5]), None);
    assert_eq!(Verdict::from_bytes(&[1; 6]), None);
}
