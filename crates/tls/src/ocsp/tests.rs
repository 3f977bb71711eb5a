//! Responses that openssl signed.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::testing::Pki;

const DAY: i64 = 86_400;

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs().try_into().expect("before the end")
}

fn certificate(pki: &Pki, file: &str) -> Certificate {
    Certificate::from_pem(&pki.read(&[file])).expect("PEM")
}

#[test]
fn responses_are_checked_as_haproxy_does() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    pki.signed("b", "root", "");
    let (a, b, root) = (certificate(&pki, "a.crt"), certificate(&pki, "b.crt"), certificate(&pki, "root.crt"));
    let id = key(&a, &root).expect("an identifier");
    let now = now();
    let good = pki.ocsp("a", "root", false, 10);
    let staple = check(&good, Some(&id), now).expect("a staple");
    assert_eq!((&staple.response, &staple.id), (&good, &id));
    assert!((staple.expires - now - 10 * DAY + SKEW_SECONDS).abs() < 100);
    assert_eq!(check(&good, None, now), Ok(staple.clone()));
    assert!(check(&pki.ocsp("a", "root", true, 10), Some(&id), now).is_ok(), "revoked");

    let error = |response: &[u8], id: Option<&[u8]>, now| check(response, id, now).expect_err("an error");
    let other = key(&b, &root).expect("an identifier");
    assert_eq!(
        error(&good, Some(&other), now),
        "OCSP single response: Certificate ID does not match certificate and issuer"
    );
    assert_eq!(error(&good, None, now - DAY), "OCSP single response: no longer valid.");
    assert_eq!(error(&good, None, now + 11 * DAY), "OCSP single response: no longer valid.");
    assert_eq!(
        error(&good, None, staple.expires + 1),
        "OCSP single response: no longer valid. Must be valid during at least 300s."
    );
    assert_eq!(error(b"", None, now), "Unable to parse OCSP response");
    assert_eq!(error(&good[..good.len() - 1], None, now), "Unable to parse OCSP response");
    assert_eq!(error(&[0; RESPONSE_MAX_BYTES + 1], None, now), "Unable to parse OCSP response");
    // tryLater
    assert_eq!(error(&[0x30, 3, 0x0a, 1, 3], None, now), "OCSP response status not successful");
    assert_eq!(
        check_signature(&[0x30, 3, 0x0a, 1, 3], &[], Some(&root)),
        Err("OCSP response not successful (3: trylater)".into())
    );
    assert_eq!(error(&pki.ocsp_unknown("a", "root"), None, now), "OCSP single response: certificate status is unknown");
    pki.openssl("ocsp -issuer root.crt -cert a.crt -cert b.crt -no_nonce -reqout two.req");
    pki.openssl(
        "ocsp -index index -CA root.crt -rsigner root.crt -rkey root.key -reqin two.req -respout two.ocsp -ndays 1",
    );
    assert_eq!(
        error(&pki.read(&["two.ocsp"]), None, now),
        "OCSP response ignored because contains multiple single responses (2)"
    );
    pki.openssl("ocsp -issuer root.crt -cert a.crt -no_nonce -reqout one.req");
    pki.openssl("ocsp -index index -CA root.crt -rsigner root.crt -rkey root.key -reqin one.req -respout endless.ocsp");
    assert_eq!(error(&pki.read(&["endless.ocsp"]), None, now), "OCSP single response: certificate status is unknown");
}

#[test]
fn signatures_are_verified_with_issuers_and_their_responders() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    let (root, other) = (certificate(&pki, "root.crt"), certificate(&pki, "other.crt"));
    let good = pki.ocsp("a", "root", false, 10);
    assert_eq!(check_signature(&good, std::slice::from_ref(&root), None), Ok(()));
    assert_eq!(check_signature(&good, &[], Some(&root)), Ok(()));
    let failed = Err("OCSP_basic_verify() failed".into());
    assert_eq!(check_signature(&good, &[], Some(&other)), failed);
    let mut forged = good.clone();
    let produced = good.windows(2).position(|pair| pair[0].is_ascii_digit() && pair[1] == b'Z').expect("a time");
    forged[produced] ^= 1;
    assert!(check_signature(&forged, &[], Some(&root)).is_err());
    assert!(check_signature(&good, &[], None).is_err());
    // A responder of its own, which the authority certified or did not.
    pki.signed("responder", "root", "extendedKeyUsage=OCSPSigning");
    pki.signed("stranger", "root", "");
    for (signer, expected) in [("responder", Ok(())), ("stranger", failed)] {
        pki.openssl(&format!(
            "ocsp -index index -CA root.crt -rsigner {signer}.crt -rkey {signer}.key -reqin a.req -respout by.ocsp \
             -ndays 1"
        ));
        assert_eq!(check_signature(&pki.read(&["by.ocsp"]), &[], Some(&root)), expected, "{signer}");
    }
}

#[test]
fn requests_are_those_of_openssl() {
    let pki = Pki::new();
    pki.signed("a", "root", "authorityInfoAccess=OCSP;URI:http://ocsp.example/x,caIssuers;URI:http://ca.example");
    let (a, root) = (certificate(&pki, "a.crt"), certificate(&pki, "root.crt"));
    assert_eq!(a.ocsp_uri().as_deref(), Some("http://ocsp.example/x"));
    assert_eq!(root.ocsp_uri(), None);
    let id = key(&a, &root).expect("an identifier");
    pki.openssl("ocsp -issuer root.crt -cert a.crt -no_nonce -reqout a.req");
    let expected = pki.read(&["a.req"]);
    let encoded = pki.openssl("base64 -A -in a.req").replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    assert_eq!(
        request("http://ocsp.example/x", &id),
        Some(Request { uri: format!("http://ocsp.example/x/{encoded}"), body: None })
    );
    let long = format!("http://{}", "a".repeat(250));
    assert_eq!(request(&long, &id), Some(Request { uri: long, body: Some(expected) }));
    assert_eq!(request("http://a", b"no identifier"), None);

    let details = key_details(&id).expect("an identifier");
    let text = pki.openssl("ocsp -reqin a.req -req_text");
    for line in details.lines() {
        assert!(text.contains(line.trim()), "{line}: {text}");
    }
    assert!(details.starts_with(" Certificate ID:\n   Issuer Name Hash: "));
    assert_eq!(key_text(&[0, 0xab]), "00ab");
}

#[test]
fn texts_have_no_empty_line() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    let good = pki.ocsp("a", "root", false, 10);
    let text = String::from_utf8(text(&good).expect("a text")).expect("ASCII");
    assert!(text.starts_with("OCSP Response Data:\n    OCSP Response Status: successful (0x0)\n"), "{text}");
    assert!(text.contains("Cert Status: good") && text.contains("\n \n") && !text.contains("\n\n"), "{text}");
}

#[test]
fn fuzz_response_holds() {
    let pki = Pki::new();
    pki.signed("a", "root", "");
    let good = pki.ocsp("a", "root", false, 10_000);
    fuzz_response(&good);
    fuzz_response(b"");
    for at in 0..good.len() {
        fuzz_response(&good[..at]);
        let mut changed = good.clone();
        changed[at] ^= 1 << (at % 8);
        fuzz_response(&changed);
    }
}
