//! `generate-certificates`: what clients of names without a certificate get, compared with HAProxy 2.8 field by field.

use std::io::Write;
use std::process::{Command, Stdio};

use sluicegate_testkit::{Haproxy, Listening, s_client};

use crate::start;
use crate::tls::Pki;

/// The `bind` lines that are compared, by their words.
fn lines(pki: &Pki) -> Vec<String> {
    for name in ["ca", "rsa-ca"] {
        let parts =
            [format!("{name}.crt"), format!("{name}.key")].map(|part| std::fs::read(pki.path(&part)).expect("made"));
        std::fs::write(pki.path(&format!("{name}.pem")), parts.concat()).expect("writable");
    }
    let path = |name: &str| pki.path(name).display().to_string();
    let sign = format!("generate-certificates ca-sign-file {}", path("ca.pem"));
    vec![
        format!("crt {} {sign}", path("b.pem")),
        format!("crt {} {sign} strict-sni", path("b.pem")),
        format!("crt {} generate-certificates ca-sign-file {}", path("both/a.pem.rsa"), path("rsa-ca.pem")),
        format!("crt {} crt {} {sign}", path("both/a.pem.rsa"), path("b.pem")),
    ]
}

/// Returns the text of the certificate that a client gets, or the alert.
fn shown(port: u16, client: &str) -> String {
    let mut command = s_client(port);
    command.arg("-showcerts").args(client.split_whitespace());
    let output = command.stdin(Stdio::null()).output().expect("openssl");
    let (answer, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if let Some(alert) = errors.lines().find_map(|line| line.split("SSL alert number ").nth(1)) {
        return format!("alert {alert}");
    }
    let sent = answer.matches("-----BEGIN CERTIFICATE-----").count();
    format!("{sent} certificates\n{}", text(&answer))
}

/// Returns the text of a certificate without what differs in each: number, signature, and the time of day.
fn text(pem: &str) -> String {
    let mut command = Command::new("openssl");
    command.args("x509 -noout -text -nameopt RFC2253".split(' '));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl");
    child.stdin.take().expect("a pipe").write_all(pem.as_bytes()).expect("writable");
    let output = child.wait_with_output().expect("openssl ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let (fields, _) = text.rsplit_once("Signature Value:").unwrap_or((&text, ""));
    let kept = fields.lines().filter(|line| !line.contains("Serial Number:")).map(|line| match line.contains(" GMT") {
        true => line.split(':').next().unwrap_or_default().to_owned() + line.rsplit(' ').nth(1).unwrap_or_default(),
        false => line.to_owned(),
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the configuration of a proxy with a frontend for each line.
fn configuration(lines: &[String], listening: &[Listening]) -> String {
    let mut text = "defaults\n    mode http\n    timeout client 60s\n".to_owned();
    for (line, listening) in lines.iter().zip(listening) {
        let port = listening.port();
        text += &format!(
            "frontend f{port}\n    bind {} ssl {line}\n    http-request return status 200\n",
            listening.word()
        );
    }
    text
}

#[test]
fn names_without_a_certificate_get_what_haproxy_makes() {
    let pki = Pki::new();
    pki.openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 9 -subj /C=FR/O=Test/CN=rsa -addext basicConstraints=critical,CA:TRUE \
         -addext subjectKeyIdentifier=none -keyout rsa-ca.key -out rsa-ca.crt",
    );
    let lines = lines(&pki);
    let [theirs, ours] = [(); 2].map(|()| lines.iter().map(|_| Listening::new()).collect::<Vec<_>>());
    let _haproxy = Haproxy::start_2_8(&configuration(&lines, &theirs), &theirs.iter().collect::<Vec<_>>());
    let _ours = start(&configuration(&lines, &ours), &ours.iter().collect::<Vec<_>>());
    for (index, line) in lines.iter().enumerate() {
        for client in [
            "-servername made.example",
            "-servername Made.Example -tls1_2",
            "-servername b.example",
            "-servername a.example",
            "-servername x-y.w.example",
            "-noservername",
        ] {
            let [theirs, ours] = [&theirs[index], &ours[index]].map(|listening| shown(listening.port(), client));
            assert_eq!(theirs, ours, "{line}: {client}");
        }
    }
    // HAProxy refuses a name that no common name can hold.
    let long = format!("{}.example", "a".repeat(60));
    let made = shown(ours[0].port(), &format!("-servername {long}"));
    assert!(made.contains(&format!("DNS:{long}")) && made.contains("Subject: CN=ca,O=Test,C=FR\n"), "{made}");
    // A made certificate is kept.
    let [one, two] = [(); 2].map(|()| serial(ours[0].port(), "kept.example"));
    assert_eq!(one, two);
    assert_ne!(one, serial(ours[0].port(), "another.example"));
}

/// Returns the serial number of the certificate that a client gets.
fn serial(port: u16, name: &str) -> String {
    let mut command = s_client(port);
    command.args(["-servername", name]);
    let answer = command.stdin(Stdio::null()).stderr(Stdio::null()).output().expect("openssl").stdout;
    let mut command = Command::new("openssl");
    let mut child = command
        .args(["x509", "-noout", "-serial"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl");
    child.stdin.take().expect("a pipe").write_all(&answer).expect("writable");
    String::from_utf8_lossy(&child.wait_with_output().expect("openssl ends").stdout).into_owned()
}

#[test]
fn the_cache_is_bounded_and_an_encrypted_authority_has_a_pass_phrase() {
    let pki = Pki::new();
    pki.openssl("pkey -in ca.key -aes128 -passout pass:secret -out locked.key");
    let parts = ["ca.crt", "locked.key"].map(|part| std::fs::read(pki.path(part)).expect("made"));
    std::fs::write(pki.path("locked.pem"), parts.concat()).expect("writable");
    let listening = Listening::new();
    let text = format!(
        "global\n    tune.ssl.ssl-ctx-cache-size 2\n    nbthread 1\ndefaults\n    mode http\n    timeout client \
         10s\nfrontend f\n    bind {} ssl crt {} generate-certificates ca-sign-file {} ca-sign-pass secret\n    http-request \
         return status 200\n",
        listening.word(),
        pki.path("b.pem").display(),
        pki.path("locked.pem").display(),
    );
    let _ours = start(&text, &[&listening]);
    let serials =
        ["a.test", "b.test", "a.test", "c.test", "a.test", "b.test"].map(|name| serial(listening.port(), name));
    assert!(serials[0].starts_with("serial="), "{serials:?}");
    assert!(serials[0] == serials[2] && serials[0] == serials[4], "{serials:?}");
    assert_ne!(serials[1], serials[5]);
}

#[test]
fn an_authority_that_cannot_sign_fails_the_check() {
    let pki = Pki::new();
    let own = pki.path("b.pem").display().to_string();
    std::fs::write(pki.path("text"), "nothing\n").expect("writable");
    let path = |name: &str| pki.path(name).display().to_string();
    let failed = |name: &str| format!("Failed to read CA certificate file '{}'. Chain loading failed: ", path(name));
    for (line, expected) in [
        (String::new(), "cannot enable certificate generation, no CA certificate File configured".to_owned()),
        (format!("ca-sign-file {}", path("no.pem")), failed("no.pem") + "cannot open the file"),
        (format!("ca-sign-file {}", path("ca.crt")), failed("ca.crt") + "No Private Key found in"),
        (format!("ca-sign-file {}", path("text")), failed("text") + "unable to load certificate from file"),
    ] {
        let file = pki.path("refused.cfg");
        let text = format!(
            "defaults\n    mode http\n    timeout client 1s\nfrontend f\n    bind 127.0.0.1:1 ssl crt {own} \
             generate-certificates {line}\n"
        );
        std::fs::write(&file, text).expect("writable");
        let output = Command::new(crate::BINARY).arg("check").arg(&file).output().expect("starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains(&expected), "{line}: {errors}");
    }
}
