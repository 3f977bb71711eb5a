//! Facts compared with what openssl prints.

use super::*;
use crate::testing::Pki;

fn certificate(pki: &Pki, file: &str) -> Certificate {
    Certificate::from_pem(&pki.read(&[file])).expect("PEM")
}

fn text(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8(bytes).expect("UTF-8"))
}

/// Returns what openssl prints of a certificate.
fn printed(pki: &Pki, file: &str, options: &str) -> String {
    pki.openssl(&format!("x509 -in {file} -noout {options}")).trim_end().to_string()
}

#[test]
fn facts_are_those_of_openssl() {
    let pki = Pki::new();
    pki.request("a", "rsa:2048", "/C=FR/ST=Some-State/O=A,B/OU=one/OU=two/CN=a/emailAddress=a@b.c");
    let names = "subjectAltName=DNS:A.example,IP:1.2.3.4,URI:http://u,email:e@f,IP:2001:db8::1,DNS:z";
    pki.sign("a", "root", names, 30);
    let a = certificate(&pki, "a.crt");
    assert_eq!(format!("serial={}", facts::hex(&a.serial())), printed(&pki, "a.crt", "-serial"));
    let sha1 = printed(&pki, "a.crt", "-fingerprint -sha1").replace(':', "");
    assert_eq!(Some(&*facts::hex(&a.sha1())), sha1.split('=').nth(1));
    assert_eq!(format!("notBefore={}", a.not_before_text()), printed(&pki, "a.crt", "-startdate"));
    assert_eq!(format!("notAfter={}", a.not_after_text()), printed(&pki, "a.crt", "-enddate"));
    assert_eq!(a.not_after().expect("a time") - a.not_before().expect("a time"), 30 * 86_400);
    let short = text(a.not_before_short()).expect("a time");
    assert!(short.len() == 13 && short.ends_with('Z') && short.starts_with('2'), "{short}");
    assert_eq!(
        (a.version(), a.key_algorithm(), a.signature_algorithm()),
        (3, Some("rsaEncryption"), Some("ecdsa-with-SHA256"))
    );
    assert_eq!(a.key_text().as_deref(), Some("RSA2048"));
    assert_eq!(
        text(a.alternative_names_text()).as_deref(),
        Some("DNS:A.example, IP Address:1.2.3.4, URI:http://u, email:e@f, IP Address:2001:DB8:0:0:0:0:0:1, DNS:z")
    );
    assert_eq!(a.server_names(), ["a.example", "z", "a"]);

    let subject = a.subject();
    assert_eq!(
        text(Some(subject.one_line())).as_deref(),
        Some("/C=FR/ST=Some-State/O=A,B/OU=one/OU=two/CN=a/emailAddress=a@b.c")
    );
    assert_eq!(text(Some(a.issuer().one_line())).as_deref(), Some("/C=FR/CN=root"));
    for (key, occurrence, expected) in [
        ("CN", 1, Some("a")),
        ("cn", -1, Some("a")),
        ("OU", 1, Some("one")),
        ("OU", 2, Some("two")),
        ("OU", -1, Some("two")),
        ("OU", -2, Some("one")),
        ("OU", 3, None),
        ("OU", -3, None),
        ("OU", 0, None),
        ("L", 1, None),
        ("CN", 2, None),
        ("CN", i64::MIN, None),
    ] {
        assert_eq!(text(subject.value(key, occurrence)).as_deref(), expected, "{key} {occurrence}");
    }
    let expected = printed(&pki, "a.crt", "-subject -nameopt RFC2253");
    assert_eq!(text(subject.rfc2253()), expected.strip_prefix("subject=").map(str::to_owned));

    pki.write(
        "req.cnf",
        b"oid_section=oids\n[req]\ndistinguished_name=dn\nprompt=no\n[oids]\nmine=1.2.3.4.5\n[dn]\nCN=o\nmine=x\n",
    );
    pki.openssl("req -x509 -config req.cnf -newkey ed25519 -nodes -keyout o.key -out o.crt");
    let unknown = certificate(&pki, "o.crt");
    assert_eq!(text(Some(unknown.subject().one_line())).as_deref(), Some("/CN=o/1.2.3.4.5=x"));
    assert_eq!(text(unknown.subject().value("1.2.3.4.5", 1)).as_deref(), Some("x"));

    let details = String::from_utf8(a.details(&[certificate(&pki, "root.crt")], Some("chain.pem"))).expect("UTF-8");
    let keys: Vec<_> = details.lines().map(|line| line.split_once(": ").expect("a key").0).collect();
    assert_eq!(
        keys,
        [
            "Chain Filename",
            "Serial",
            "notBefore",
            "notAfter",
            "Subject Alternative Name",
            "Algorithm",
            "SHA1 FingerPrint",
            "Subject",
            "Issuer",
            "Chain Subject",
            "Chain Issuer"
        ]
    );
    assert!(details.contains("\nSubject Alternative Name: DNS:A.example, , , , , DNS:z\n"), "{details}");

    // Others.
    pki.signed("v1", "root", "");
    let v1 = certificate(&pki, "v1.crt");
    assert_eq!((v1.version(), v1.key_text().as_deref()), (1, Some("EC256")));
    assert_eq!((v1.key_algorithm(), v1.alternative_names_text()), (Some("id-ecPublicKey"), None));
    pki.openssl("req -x509 -newkey ed25519 -nodes -days 20000 -subj / -keyout none.key -out none.crt");
    let none = certificate(&pki, "none.crt");
    assert_eq!((none.subject().one_line(), none.subject().rfc2253(), none.key_text()), (Vec::new(), None, None));
    let after = text(none.not_after_short()).expect("a time");
    assert!(after.len() == 13 && after.starts_with('8'), "the century is left out: {after}");
    assert_eq!(none.key_type(), KeyType::Ed25519);
    assert_eq!(format!("{none:?}"), "Certificate()");
}

#[test]
fn bundles_are_files_of_certificates_and_lists() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    pki.crl("root.crl", "root", &["a", "inter"]);
    let content = pki.read(&["root.crt", "root.crl", "other.crt", "root.key", "root.crt"]);
    let bundle = Bundle::parse("x", &[&content]).expect("PEM");
    assert_eq!((bundle.certificates.len(), bundle.crls.len(), bundle.subjects().len()), (2, 1, 2));
    assert_eq!(bundle.digest, Bundle::digest(&[&content]));
    assert_ne!(bundle.digest, Bundle::digest(&[&content[1..]]));
    let error = |content: &[u8]| Bundle::parse("x", &[content]).expect_err("an error");
    assert_eq!(error(b""), "Couldn't open the ca-file 'x' (no certificate or crl found).");
    assert_eq!(error(&pki.read(&["root.key"])), "Couldn't open the ca-file 'x' (no certificate or crl found).");
    assert!(error(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").starts_with("Couldn't open"));

    let (root, key) = (pki.read(&["root.crt", "other.crt"]), pki.read(&["root.key"]));
    let (bundle, warnings) = Bundle::parse_directory("d", &[("a.pem", &root), ("b.pem", &key)]);
    assert_eq!(bundle.certificates.len(), 1);
    assert_eq!(warnings, ["ca-file: 'd' couldn't load 'd/b.pem' (no start line)"]);
    let (_, warnings) = Bundle::parse_directory("d", &[]);
    assert_eq!(warnings, ["ca-file: 0 CA were loaded from 'd'"]);

    let crl = Bundle::parse("x", &[&content]).expect("PEM").crls.remove(0);
    let details = String::from_utf8(crl.details()).expect("UTF-8");
    assert!(
        details.starts_with("Version 1\nSignature Algorithm: ecdsa-with-SHA256\nIssuer: /C=FR/CN=root\nLast Update: ")
    );
    let expected = pki.openssl("crl -in root.crl -noout -text");
    for line in details.lines().filter(|line| line.contains("Number: ") || line.contains("Date: ")) {
        assert!(expected.contains(line.trim()), "{line}");
    }
    assert_eq!(details.matches("Serial Number: ").count(), 2);
}

#[test]
fn errors_of_verification_have_names_numbers_and_texts() {
    assert_eq!(codes::number("X509_V_ERR_CERT_HAS_EXPIRED"), Some(10));
    assert_eq!(codes::number("X509_V_OK"), Some(0));
    assert_eq!(codes::number("X509_V_ERR_INVALID_CA"), Some(79));
    assert_eq!(codes::number("X509_V_ERR_EC_KEY_EXPLICIT_PARAMS"), Some(94));
    assert_eq!(codes::number("CERT_HAS_EXPIRED"), None);
    for code in 0..95 {
        assert_eq!(codes::name(code).and_then(codes::number), Some(code));
    }
    assert_eq!((codes::name(95), codes::name(-1)), (None, None));
    assert_eq!(codes::text(10), "certificate has expired");
    assert_eq!(codes::text(79), "invalid CA certificate");
    assert_eq!(codes::text(0), "ok");
    // The library's number 24 is OpenSSL's 79.
    assert_eq!(codes::text(24), "unknown certificate verification error");
}

#[test]
fn der_has_nothing_behind_it() {
    let pki = Pki::new();
    let der = certificate(&pki, "root.crt").to_der();
    assert_eq!(Certificate::from_der(&der).expect("DER").to_der(), der);
    assert!(Certificate::from_der(&[&der[..], &[0]].concat()).is_err());
    assert!(Certificate::from_der(&der[..der.len() - 1]).is_err());
    assert!(Certificate::from_der(b"").is_err());
}

#[test]
fn signatures_are_those_of_openssl_and_fit_their_keys() {
    let pki = Pki::new();
    let message = b"a message";
    pki.write("message", message);
    let p256 = Algorithm::Ecdsa(Hash::Sha256, Some(Curve::P256));
    let all = [
        Algorithm::RsaPkcs1(Hash::Sha256),
        Algorithm::RsaPkcs1(Hash::Sha384),
        Algorithm::RsaPkcs1(Hash::Sha512),
        Algorithm::RsaPss(Hash::Sha256),
        Algorithm::RsaPss(Hash::Sha384),
        Algorithm::RsaPss(Hash::Sha512),
        p256,
        Algorithm::Ecdsa(Hash::Sha384, Some(Curve::P384)),
        Algorithm::Ecdsa(Hash::Sha512, Some(Curve::P521)),
        Algorithm::Ed25519,
        // Hash and curve need not belong together in TLS 1.2.
        Algorithm::Ecdsa(Hash::Sha512, None),
    ];
    for (name, key, fitting) in [
        ("rsa", "rsa:2048", &[0, 1, 2, 3, 4, 5][..]),
        ("small", "rsa:1024", &[0, 1, 2, 3, 4]),
        ("tiny", "rsa:512", &[]),
        ("p256", "ec -pkeyopt ec_paramgen_curve:P-256", &[6, 10]),
        ("p384", "ec -pkeyopt ec_paramgen_curve:P-384", &[7, 10]),
        ("p521", "ec -pkeyopt ec_paramgen_curve:P-521", &[8, 10]),
        ("koblitz", "ec -pkeyopt ec_paramgen_curve:secp256k1", &[]),
        ("edwards", "ed25519", &[9]),
    ] {
        pki.signed_key(name, "root", "", key);
        let key = PrivateKey::from_pem(&pki.read(&[&format!("{name}.key")]), None).expect("a key");
        let certificate = certificate(&pki, &format!("{name}.crt"));
        let root = Certificate::from_pem(&pki.read(&["root.crt"])).expect("PEM");
        for (i, &algorithm) in all.iter().enumerate() {
            let is_fitting = fitting.contains(&i);
            assert_eq!(key.can_sign(algorithm), is_fitting, "{name} {algorithm:?}");
            let signature = key.sign(algorithm, message);
            assert_eq!(signature.is_some(), is_fitting, "{name} {algorithm:?}");
            let Some(mut signature) = signature else {
                assert!(!certificate.verify_signature(algorithm, message, &[0; 64]));
                continue;
            };
            assert!(certificate.verify_signature(algorithm, message, &signature));
            assert!(!certificate.verify_signature(algorithm, b"another", &signature));
            assert!(!certificate.verify_signature(algorithm, message, b""));
            assert!(!root.verify_signature(algorithm, message, &signature));
            for (j, &other) in all.iter().enumerate() {
                let is_same = i == j || [i, j] == [8, 10] || ([i, j] == [10, 8] && name == "p521");
                assert_eq!(certificate.verify_signature(other, message, &signature), is_same, "{name} {i} {j}");
            }
            // openssl agrees.
            pki.write("signature", &signature);
            pki.openssl(&format!("x509 -in {name}.crt -noout -pubkey -out public"));
            let options = match algorithm {
                Algorithm::Ed25519 => "pkeyutl -rawin -in message -sigfile signature".to_owned(),
                Algorithm::RsaPkcs1(hash) | Algorithm::Ecdsa(hash, _) => {
                    format!("dgst -{hash:?} -signature signature").to_lowercase()
                }
                Algorithm::RsaPss(hash) => format!(
                    "dgst -{hash:?} -sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:digest -signature signature"
                )
                .to_lowercase(),
            };
            match algorithm {
                Algorithm::Ed25519 => pki.openssl(&format!("{options} -verify -pubin -inkey public")),
                _ => pki.openssl(&format!("{options} -verify public message")),
            };
            *signature.last_mut().expect("a byte") ^= 1;
            assert!(!certificate.verify_signature(algorithm, message, &signature));
        }
    }
}
