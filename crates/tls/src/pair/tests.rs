//! Certificates from files, their errors, and staples.

use super::*;
use crate::testing::Pki;
use crate::x509::Curve;

fn parse(pki: &Pki, files: &[&str]) -> Result<Pair, String> {
    Pair::parse(PairFiles { path: "x.pem", pem: &pki.read(files), ..PairFiles::default() })
}

#[test]
fn keys_of_all_kinds_and_forms_are_read() {
    let pki = Pki::new();
    let p256 = KeyType::Ecdsa(Curve::P256);
    for (name, key, expected) in [
        ("rsa", "rsa:2048", KeyType::Rsa),
        ("p256", "ec -pkeyopt ec_paramgen_curve:P-256", p256),
        ("p384", "ec -pkeyopt ec_paramgen_curve:P-384", KeyType::Ecdsa(Curve::P384)),
        ("p521", "ec -pkeyopt ec_paramgen_curve:P-521", KeyType::Ecdsa(Curve::P521)),
        ("edwards", "ed25519", KeyType::Ed25519),
    ] {
        pki.signed_key(name, "root", "subjectAltName=DNS:b.Example,DNS:*.example,IP:1.2.3.4,DNS:b.example", key);
        let pair = parse(&pki, &[&format!("{name}.key"), &format!("{name}.crt"), "root.crt"]).expect(name);
        assert_eq!((pair.key_type(), pair.leaf().key_type()), (expected, expected));
        assert_eq!(pair.names(), ["b.example", "*.example", name]);
        assert_eq!(pair.chain(), [Certificate::from_pem(&pki.read(&["root.crt"])).expect("PEM")]);
        assert_eq!(pair.issuer(), pair.chain().first());
        let certified = pair.certified();
        assert_eq!(certified.cert[0].as_ref(), pair.leaf().to_der());
        assert_eq!((certified.cert.len(), certified.ocsp.is_none()), (2, true));
        // What is printed can be read again.
        let printed = [&pair.key().to_pem().expect("PEM")[..], &pair.leaf().to_pem()].concat();
        let again = Pair::parse(PairFiles { path: "again", pem: &printed, ..PairFiles::default() }).expect(name);
        assert_eq!(again.leaf(), pair.leaf());
    }
    pki.openssl("ec -in p256.key -out sec1.key");
    pki.openssl("rsa -in rsa.key -traditional -out pkcs1.key");
    pki.openssl("ecparam -name prime256v1 -out parameters");
    assert!(parse(&pki, &["p256.crt", "parameters", "sec1.key"]).is_ok());
    assert!(parse(&pki, &["rsa.crt", "pkcs1.key"]).is_ok());
    assert!(!format!("{:?}", parse(&pki, &["p256.crt", "p256.key"]).expect("a pair")).contains("key"));

    // Encrypted keys in both forms.
    for cipher in ["pkcs8 -topk8 -v2 aes-256-cbc", "rsa -traditional -aes256"] {
        pki.openssl(&format!("{cipher} -in rsa.key -passout pass:secret -out locked.key"));
        let pem = pki.read(&["rsa.crt", "locked.key"]);
        let files = PairFiles { path: "x.pem", pem: &pem, ..PairFiles::default() };
        let error = Pair::parse(files).expect_err("encrypted");
        assert_eq!(error, "'x.pem': encrypted private key: nothing can ask for the pass phrase");
        assert!(Pair::parse(PairFiles { pass_phrase: Some(b"secret"), ..files }).is_ok());
        let error = Pair::parse(PairFiles { pass_phrase: Some(b"wrong"), ..files }).expect_err("wrong");
        assert!(error.starts_with("No Private Key found in 'x.pem' ("), "{error}");
        let error = Pair::parse(PairFiles { pass_phrase: Some(&[b'a'; 5000]), ..files }).expect_err("too long");
        assert!(error.starts_with("No Private Key found in 'x.pem' ("), "{error}");
    }
}

#[test]
fn errors_are_haproxys() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    pki.signed("b", "root", "");
    pki.signed_key("small", "root", "", "rsa:512");
    pki.signed_key("curve", "root", "", "ec -pkeyopt ec_paramgen_curve:secp256k1");
    let error = |files: &[&str]| parse(&pki, files).expect_err("no pair");
    assert_eq!(error(&["a.key"]), "unable to load certificate from file 'x.pem': no start line");
    assert_eq!(error(&["a.crt"]), "No Private Key found in 'x.pem'");
    assert_eq!(error(&["a.crt", "b.key"]), "inconsistencies between private key and certificate loaded 'x.pem'");
    assert_eq!(
        error(&["small.crt", "small.key"]),
        "unable to load SSL private key into SSL Context 'x.pem': RSA keys have 1024 to 16384 bits here, this one has 512"
    );
    assert_eq!(
        error(&["curve.crt", "curve.key"]),
        "unable to load SSL private key into SSL Context 'x.pem': the type of the private key is not supported"
    );
    let crt = pki.read(&["a.crt"]);
    let broken =
        |pem: &[u8]| Pair::parse(PairFiles { path: "x.pem", pem, ..PairFiles::default() }).expect_err("no pair");
    let half = [&crt[..crt.len() / 2], &pki.read(&["a.key"])].concat();
    assert!(broken(&half).starts_with("unable to load certificate from file 'x.pem': "), "{}", broken(&half));
    let behind = [&crt[..], &pki.read(&["a.key"]), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"];
    assert!(broken(&behind.concat()).starts_with("unable to load certificate chain from file 'x.pem': "));
    assert!(broken(b"").starts_with("unable to load certificate from file 'x.pem': no start line"));

    // Files of keys and issuers.
    let (key, other, root) = (pki.read(&["a.key"]), pki.read(&["b.key"]), pki.read(&["root.crt"]));
    let files = PairFiles { path: "x.pem", pem: &crt, ..PairFiles::default() };
    let error = |files| Pair::parse(files).expect_err("no pair");
    assert!(Pair::parse(PairFiles { key: Some(("x.key", &key)), ..files }).is_ok());
    assert_eq!(error(PairFiles { key_sought: Some("x.pem.key"), ..files }), "No Private Key found in 'x.pem.key'");
    assert_eq!(
        error(PairFiles { key: Some(("x.key", &root)), ..files }),
        "unable to load private key from file 'x.key'"
    );
    assert_eq!(
        error(PairFiles { key: Some(("x.key", &key)), issuer: Some(("x.issuer", &key)), ..files }),
        "'x.issuer' cannot be read or parsed"
    );
    assert_eq!(
        error(PairFiles { key: Some(("x.key", &key)), issuer: Some(("x.issuer", &crt)), ..files }),
        "'x.issuer' is not an issuer"
    );
    let both = pki.read(&["a.crt", "a.key"]);
    let files = PairFiles { pem: &both, key: Some(("x.key", &other)), ..files };
    assert!(Pair::parse(files).is_ok());
    assert!(error(PairFiles { key_wins: true, ..files }).starts_with("inconsistencies"));
}

#[test]
fn chains_are_completed_and_roots_left_out() {
    let pki = Pki::new();
    pki.signed("a", "inter", "authorityKeyIdentifier=keyid");
    let inter = Certificate::from_pem(&pki.read(&["inter.crt"])).expect("PEM");
    let pem = pki.read(&["a.crt", "a.key"]);
    let mut issuers = Issuers::default();
    issuers.add("i.pem", &pki.read(&["inter.crt", "root.crt"])).expect("a chain");
    assert_eq!(
        issuers.add("j.pem", &pki.read(&["inter.crt"])),
        Err("duplicate issuers-chain j.pem: i.pem already in store".into())
    );
    assert_eq!(
        issuers.add("k.pem", b""),
        Err("unable to load issuers-chain k.pem : pem certificate not found.".into())
    );
    let files = PairFiles { path: "x.pem", pem: &pem, issuers: Some(&issuers), ..PairFiles::default() };
    let pair = Pair::parse(files).expect("a pair");
    assert_eq!((pair.chain().len(), pair.chain_file()), (2, Some("i.pem")));
    assert_eq!(pair.issuer(), Some(&inter));
    let pair = Pair::parse(PairFiles { skip_self_issued: true, ..files }).expect("a pair");
    assert_eq!(pair.chain(), std::slice::from_ref(&inter));
    assert_eq!(pair.certified().cert.len(), 2);
    // Chains of several files share certificates.
    let pool = Pool::default();
    let chained = pki.read(&["a.crt", "a.key", "inter.crt"]);
    let pooled = || Pair::parse(PairFiles { pem: &chained, pool: Some(&pool), ..files }).expect("a pair");
    assert_eq!((pooled().chain(), pooled().chain()), (&[inter.clone()][..], &[inter.clone()][..]));
    // A file with a chain keeps it, in the order that leads to the root.
    let pem = pki.read(&["a.crt", "a.key", "root.crt", "other.crt", "inter.crt"]);
    let files = PairFiles { pem: &pem, ..files };
    assert_eq!(Pair::parse(files).expect("a pair").chain().len(), 3);
    let pair = Pair::parse(PairFiles { skip_self_issued: true, ..files }).expect("a pair");
    assert_eq!((pair.chain(), pair.chain_file()), (&[inter][..], None));
}

#[test]
fn a_checked_pair_is_parsed_when_something_looks_into_it() {
    let pki = Pki::new();
    pki.signed("a", "root", "subjectAltName=DNS:a.example");
    let pem = pki.read(&["a.key", "a.crt"]);
    let digest = PairFiles { path: "x.pem", pem: &pem, ..PairFiles::default() }.digest();
    let parsed = Arc::new(AtomicBool::new(false));
    let parse = {
        let parsed = parsed.clone();
        move || {
            parsed.store(true, Ordering::Relaxed);
            Pair::parse(PairFiles { path: "x.pem", pem: &pem, ..PairFiles::default() })
        }
    };
    let pair = Pair::checked("x.pem".into(), digest, parse);
    assert_eq!((pair.digest(), pair.file_digest(), pair.staples()), (digest, Some(digest), None));
    assert!(!parsed.load(Ordering::Relaxed), "its digests are known");
    assert_eq!(pair.names()[0], "a.example");
    assert!(parsed.load(Ordering::Relaxed));
}

#[test]
fn digests_cover_what_a_pair_depends_on() {
    let files = PairFiles { path: "x.pem", pem: b"a", ..PairFiles::default() };
    let all = [
        files,
        PairFiles { pem: b"b", ..files },
        PairFiles { key: Some(("k", b"a")), ..files },
        PairFiles { key: Some(("k", b"")), ..files },
        PairFiles { key: Some(("k", b"a")), key_wins: true, ..files },
        PairFiles { ocsp: Some(("o", b"a")), ..files },
        PairFiles { issuer: Some(("i", b"a")), ..files },
        PairFiles { skip_self_issued: true, ..files },
    ];
    let digests: std::collections::HashSet<_> = all.iter().map(PairFiles::digest).collect();
    assert_eq!(digests.len(), all.len());
    assert_eq!(PairFiles { path: "y.pem", pass_phrase: Some(b"p"), ..files }.digest(), files.digest());
}

#[test]
fn staples_are_sent_while_they_are_valid() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    pki.signed("b", "root", "");
    let response = pki.ocsp("a", "root", false, 1);
    let pem = pki.read(&["a.crt", "a.key", "root.crt"]);
    let files = PairFiles { path: "x.pem", pem: &pem, ocsp: Some(("x.pem.ocsp", &response)), ..PairFiles::default() };
    let pair = Pair::parse(files).expect("a pair");
    assert_eq!((pair.warning(), pair.certified().ocsp.as_deref()), (None, Some(&response[..])));
    let staple = pair.staple().expect("a staple");
    assert_eq!(Some(&staple.id), pair.ocsp_key().as_ref());
    pair.set_staple(Some(Staple { expires: now() - 1, ..staple }));
    assert_eq!(pair.certified().ocsp, None);
    pair.set_staple(None);
    assert_eq!(pair.staple(), None);

    // Another certificate's response is ignored; without an issuer there is an error.
    let other = pki.ocsp("b", "root", false, 1);
    let pair = Pair::parse(PairFiles { ocsp: Some(("x.pem.ocsp", &other)), ..files }).expect("a pair");
    assert_eq!(
        pair.warning(),
        Some(
            "Loading: OCSP single response: Certificate ID does not match certificate and issuer. Content will be \
             ignored"
        )
    );
    assert_eq!(pair.certified().ocsp, None);
    let pem = pki.read(&["a.crt", "a.key"]);
    let files = PairFiles { pem: &pem, ..files };
    assert!(Pair::parse(files).expect_err("no issuer").starts_with("'x.pem.ocsp' is present and activates OCSP but"));
    let root = pki.read(&["root.crt"]);
    let pair = Pair::parse(PairFiles { issuer: Some(("x.issuer", &root)), ..files }).expect("a pair");
    assert!(pair.certified().ocsp.is_some());
}

#[test]
fn fuzz_pair_holds() {
    let pki = Pki::new();
    pki.signed("a", "inter", "subjectAltName=DNS:a.example");
    pki.crl("root.crl", "root", &["inter"]);
    let whole = pki.read(&["a.crt", "a.key", "inter.crt", "root.crt", "root.crl"]);
    let parts = [&whole[..], b"\0", &pki.read(&["a.key", "inter.crt", "root.crt"])].concat();
    fuzz_pair(&whole);
    fuzz_pair(&parts);
    fuzz_pair(b"");
    for step in 1..64 {
        let at = parts.len() * step / 64;
        fuzz_pair(&parts[..at]);
        let mut changed = parts.clone();
        changed[at] ^= 1;
        fuzz_pair(&changed);
    }
}

#[test]
fn parts_are_set_one_by_one() {
    let pki = Pki::new();
    for name in ["one", "two"] {
        pki.signed_key(
            name,
            "root",
            &format!("subjectAltName=DNS:{name}.example"),
            "ec -pkeyopt ec_paramgen_curve:P-256",
        );
    }
    let issuers = Issuers::default();
    let pair = parse(&pki, &["one.crt", "root.crt", "one.key"]).expect("a pair");
    let mut draft = Draft::of(&pair);
    assert_eq!((draft.leaf(), draft.chain().len(), draft.key().is_some()), (Some(pair.leaf()), 1, true));
    // The same parts are the same certificate, yet not what the files are.
    let again = draft.build(false).expect("a pair");
    assert_eq!((again.leaf(), again.chain(), again.file_digest()), (pair.leaf(), pair.chain(), pair.file_digest()));
    assert_ne!(again.digest(), pair.digest());
    assert_eq!(again.digest(), draft.build(false).expect("a pair").digest());
    assert_ne!(again.digest(), draft.build(true).expect("a pair").digest());
    // A certificate without its key, with that of another, and with its own.
    draft.set_pem(&pki.read(&["two.crt"]), &issuers).expect("PEM");
    assert!(draft.chain().is_empty() && draft.key().is_none());
    let error = draft.check().expect_err("no key");
    assert_eq!(error, "The transaction must contain at least a certificate and a private key!");
    draft.set_key(&pki.read(&["one.key"])).expect("PEM");
    let error = draft.build(false).expect_err("another key");
    assert_eq!(error, "inconsistencies between private key and certificate loaded 'x.pem'.");
    draft.set_key(&pki.read(&["two.key"])).expect("PEM");
    let changed = draft.build(false).expect("a pair");
    assert_eq!(changed.names(), ["two.example", "two"]);
    assert_eq!((changed.path.as_str(), changed.file_digest()), ("x.pem", pair.file_digest()));
    // What can't be read changes nothing.
    let error = draft.set_pem(b"", &issuers).expect_err("empty");
    assert_eq!(error, "unable to load certificate from file 'x.pem': no start line.");
    assert_eq!(draft.set_key(b""), Err("unable to load private key from file 'x.pem'.".to_string()));
    assert_eq!(draft.set_issuer(b""), Err("'x.pem' cannot be read or parsed'.".to_string()));
    assert_eq!(draft.build(false).expect("a pair").digest(), changed.digest());
    // Certificates without files, and chains of others' files.
    let mut made = Draft::empty("made");
    assert_eq!(made.check(), Err("inconsistencies between private key and certificate loaded 'made'.".to_string()));
    let mut chains = Issuers::default();
    chains.add("root.crt", &pki.read(&["root.crt"])).expect("a chain");
    made.set_pem(&pki.read(&["one.crt", "one.key"]), &chains).expect("PEM");
    let made = made.build(false).expect("a pair");
    assert_eq!((made.chain_file(), made.chain().len(), made.file_digest()), (Some("root.crt"), 1, None));
    // A response about another certificate is left out.
    let mut stapled = Draft::of(&made);
    stapled.set_ocsp(b"nothing".to_vec());
    let stapled = stapled.build(false).expect("a pair");
    assert_eq!(stapled.warning(), Some("Loading: Unable to parse OCSP response. Content will be ignored"));
    let mut alone = Draft::of(&changed);
    alone.set_ocsp(b"nothing".to_vec());
    let error = alone.build(false).expect_err("no issuer");
    assert!(error.starts_with("'x.pem.ocsp' is present and activates OCSP but it is impossible"), "{error}");
}
