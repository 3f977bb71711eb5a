//! Other clients: curl, nghttp and h2load, over TLS by ALPN and on plain connections.

use std::process::Command;

use super::*;
use sluicegate_testkit::Certificates;

/// Runs a program; returns its output if it succeeded.
#[track_caller]
pub(crate) fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask test --install` brings it (nghttp2-client, curl)", words[0])
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A frontend with TLS and one without, before a server that echoes.
fn fronts() -> (Sluicegate, Listening, Listening, Certificates) {
    let certificates = Certificates::new();
    let pem = [certificates.read("here.crt"), certificates.read("here.key")].concat();
    std::fs::write(certificates.path("here.pem"), pem).expect("written");
    let (secure, plain) = (Listening::new(), Listening::new());
    let text = format!(
        "{DEFAULTS}frontend front\n bind {} ssl crt {}\n bind {}\n http-response set-header x-facts \
         \"%[fc_http_major] %[ssl_fc_alpn]\"\n default_backend back\nbackend back\n option forwarded\n server one {}\n",
        secure.word(),
        certificates.path("here.pem"),
        plain.word(),
        Origin::echo().address()
    );
    let server = start(&text, &[&secure, &plain]);
    (server, secure, plain, certificates)
}

#[test]
fn curl_speaks_http_2() {
    let (_server, secure, plain, certificates) = fronts();
    let ca = certificates.path("ca.crt");
    let (https, http) = (format!("https://{}/p?q", secure.address()), format!("http://{}/p?q", plain.address()));
    let print = "\n%{http_version} %{response_code} %header{x-facts}";
    let text = run(&["curl", "-sS", "--http2", "--cacert", &ca, "-w", print, &https]);
    assert!(text.starts_with("GET /p?q HTTP/1.1\n") && text.ends_with("\n2 200 2 h2"), "{text}");
    let text = run(&["curl", "-sS", "--http1.1", "--cacert", &ca, "-w", print, &https]);
    assert!(text.ends_with("\n1.1 200 1 http/1.1"), "{text}");
    let text = run(&["curl", "-sS", "--http2-prior-knowledge", "-w", print, &http]);
    assert!(text.ends_with("\n2 200 2"), "{text}");
    // HTTP/2 can no longer be requested by an Upgrade field.
    let text = run(&["curl", "-sS", "--http2", "-w", print, &http]);
    assert!(text.ends_with("\n1.1 200 1"), "{text}");
    let text = run(&["curl", "-sS", "--http2", "--cacert", &ca, "-I", "-w", print, &https]);
    assert!(text.starts_with("HTTP/2 200") && text.contains("x-answer: 1\r\n"), "{text}");
    let body = "x".repeat(300_000);
    let file = certificates.path("body");
    std::fs::write(&file, &body).expect("written");
    for transfer in ["Content-Type: a", "Transfer-Encoding: chunked"] {
        let data = format!("@{file}");
        let words = ["curl", "-sS", "--http2", "--cacert", &ca, "-H", transfer, "--data-binary", &data, &https];
        let text = run(&words);
        assert!(text.starts_with("POST /p?q HTTP/1.1\n") && text.ends_with(&body), "{transfer} {}", text.len());
    }
}

/// `option forwarded` reports the protocol of the client's connection, in both versions of HTTP.
#[test]
fn forwarded_reports_tls() {
    let (_server, secure, plain, certificates) = fronts();
    let ca = certificates.path("ca.crt");
    for (version, scheme, gate) in
        [("--http2", "https", &secure), ("--http1.1", "https", &secure), ("--http2-prior-knowledge", "http", &plain)]
    {
        let url = format!("{scheme}://{}/", gate.address());
        let text = run(&["curl", "-sS", version, "--cacert", &ca, &url]);
        assert!(text.contains(&format!("\nforwarded: proto={scheme};for=127.0.0.1\n")), "{version} {text}");
    }
}

#[test]
fn nghttp_and_h2load_speak_http_2() {
    let (_server, secure, plain, certificates) = fronts();
    let (https, http) = (format!("https://{}/a", secure.address()), format!("http://{}/a", plain.address()));
    let file = certificates.path("body");
    std::fs::write(&file, "some text").expect("written");
    // Trailers can't follow a body of HTTP/1 that has a length.
    let text = run(&["nghttp", "--no-verify-peer", "--trailer", "x-sum: 1", "-d", &file, &https]);
    assert!(text.starts_with("POST /a HTTP/1.1\n") && text.ends_with("\nsome text"), "{text}");
    // Small windows and padding; many streams on several connections.
    let text = run(&["nghttp", "-w", "10", "-W", "10", "-b", "100", "-m", "20", &http]);
    assert_eq!(text.matches("GET /a HTTP/1.1\n").count(), 20, "{text}");
    for (url, count) in [(&http, "5000"), (&https, "1000")] {
        let text = run(&["h2load", "-n", count, "-c", "5", "-m", "50", "-d", &file, url]);
        let expected = format!("requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed");
        assert!(text.contains(&expected), "{text}");
    }
}
