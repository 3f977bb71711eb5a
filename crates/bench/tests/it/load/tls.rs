//! Load over TLS against real servers, compared with the servers' own counts and logs.

use std::process::Command;

use rustls::pki_types::pem::PemObject;
use sluicegate_bench::origin;
use sluicegate_testkit::{Certificates, Client, Listening, Program, free_port, wait_for};

use super::nginx::Nginx;
use super::{Fields, Ran, run, run_with};

/// Starts the demo origin with the certificate `here`; returns its `https://ADDRESS`.
fn demo(certificates: &Certificates) -> String {
    let listening = Listening::new();
    let url = format!("https://{}", listening.address());
    let path = |name: &str| std::path::PathBuf::from(certificates.path(name));
    let tls = origin::Tls::new(&path("here.crt"), &path("here.key")).expect("a certificate");
    origin::spawn_tls(listening.listener, 1, tls).expect("startable");
    url
}

/// Starts `openssl s_server` with the certificate `here`, which answers with a page; also returns its port.
pub fn s_server(certificates: &Certificates, words: &[&str]) -> (Program, u16) {
    let port = free_port();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-www", "-quiet", "-accept", &format!("127.0.0.1:{port}")]);
    command.args(["-cert", &certificates.path("here.crt"), "-key", &certificates.path("here.key")]).args(words);
    let mut server = Program::start(command, &[]);
    wait_for("s_server", || {
        assert!(server.is_running(), "{}", server.output());
        std::net::TcpStream::connect(("127.0.0.1", port)).ok()
    });
    (server, port)
}

/// Returns the numbers of full, resumed and failed handshakes; the report's histogram contains the first two.
#[track_caller]
fn handshakes(fields: &Fields) -> (u64, u64, u64) {
    let (full, resumed) = (fields.count("tls.full"), fields.count("tls.resumed"));
    assert_eq!(fields.count("tls.handshake_us.count"), full + resumed);
    (full, resumed, fields.count("tls.failed"))
}

#[test]
fn the_origin_answers_over_tls() {
    let certificates = Certificates::new();
    let url = demo(&certificates);
    let ca = certificates.path("ca.crt");
    for (words, made) in [("", 6), ("-t 2 -P 5", 6), ("-r 2000", 6), ("--no-keep-alive", 300)] {
        let ran =
            run_with(&format!("http -c 6 -n 300 --json {words} --cacert {ca}"), &[&(url.clone() + "/bytes/50000")]);
        let fields = ran.fields();
        fields.balance();
        assert_eq!((ran.code, fields.count("statuses.200")), (0, 300), "{words}: {}", ran.err);
        assert_eq!(fields.count("bytes.bodies"), 300 * 50_000);
        assert_eq!(fields.count("connections.made"), made, "{words}");
        assert_eq!(handshakes(&fields), (made, 0, 0), "{words}");
        assert_eq!(fields.text("tls.parameters.0.alpn"), "http/1.1");
        assert_eq!(fields.count("tls.parameters.0.handshakes"), made);
    }
    let ran = run_with(&format!("http -c 2 -n 50 --insecure --body-file {ca}"), &[&(url + "/echo")]);
    for part in [" over TLS, 1 URL template", "TLSv1.3 TLS_AES_256_GCM_SHA384 X25519", "2 full  0 resumed  0 failed"] {
        assert!(ran.out.contains(part), "no {part:?} in:\n{}", ran.out);
    }
    assert!(ran.out.lines().any(|line| line.starts_with("handshake ")), "{}", ran.out);
}

/// A body of megabytes both ways: records that the kernel does not take at once.
#[test]
fn large_bodies_pass_both_ways() {
    let certificates = Certificates::new();
    let url = demo(&certificates) + "/echo";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("body");
    std::fs::write(&path, vec![7; 5_000_000]).unwrap();
    let ran = run_with("http -c 3 -n 9 --insecure --json --body-file", &[path.to_str().unwrap(), &url]);
    let fields = ran.fields();
    assert_eq!((ran.code, fields.count("bytes.bodies")), (0, 9 * 5_000_000), "{}", ran.out);
    assert!(fields.count("bytes.sent") > 9 * 5_000_000);
}

#[test]
fn nginx_sees_each_request_and_what_was_resumed() {
    let certificates = Certificates::new();
    let lines = "ssl_session_cache shared:s:1m; ssl_protocols TLSv1.2 TLSv1.3;";
    for (version, name, words, reused) in [
        ("1.2", "TLSv1.2", "", 0),
        ("1.3", "TLSv1.3", "", 0),
        ("1.2", "TLSv1.2", "--resume", 39),
        ("1.3", "TLSv1.3", "--resume", 39),
    ] {
        let nginx = Nginx::start(&certificates, "ssl", lines);
        let ran = run_with(
            &format!("http -c 1 -n 40 --no-keep-alive --json --tls-version {version} {words} --cacert"),
            &[&certificates.path("ca.crt"), &format!("https://127.0.0.1:{}/a", nginx.port)],
        );
        let fields = ran.fields();
        fields.balance();
        assert_eq!((ran.code, fields.count("statuses.200")), (0, 40), "{}", ran.err);
        assert_eq!(handshakes(&fields), (40 - reused, reused, 0), "{version} {words}");
        assert_eq!(fields.text("tls.parameters.0.version"), name);
        let log = nginx.log(40);
        assert_eq!(log.len(), 40);
        assert_eq!(log.iter().filter(|line| line[2] == "r").count() as u64, reused, "{version} {words}");
        assert!(log.iter().all(|line| line[0] == name && line[7] == "/a"), "{log:?}");
        let suite = fields.text("tls.parameters.0.cipher_suite");
        let same = if version == "1.3" { log[0][1] == suite } else { log[0][1] == "ECDHE-ECDSA-AES256-GCM-SHA384" };
        assert!(same, "{suite} and {}", log[0][1]);
    }
}

/// More than one connection at once: only the first handshakes of each are full.
#[test]
fn each_connection_resumes_its_sessions() {
    let certificates = Certificates::new();
    let nginx = Nginx::start(&certificates, "ssl", "");
    let words = "http -c 8 -t 2 -n 200 --no-keep-alive --json --resume --insecure";
    let fields = run_with(words, &[&format!("https://127.0.0.1:{}/", nginx.port)]).fields();
    let (full, resumed, failed) = handshakes(&fields);
    assert_eq!((full + resumed, failed), (200, 0));
    assert!((2..=8).contains(&full), "{full} full handshakes");
    assert_eq!(nginx.log(200).iter().filter(|line| line[2] == "r").count() as u64, resumed);
}

#[test]
fn openssls_own_counts_are_the_reports() {
    let certificates = Certificates::new();
    for (words, hits) in [("", 0), ("--resume", 19)] {
        let (_server, port) = s_server(&certificates, &[]);
        let url = format!("https://127.0.0.1:{port}/");
        let ran = run_with(
            &format!("http -c 1 -n 20 --no-keep-alive --json {words} --cacert"),
            &[&certificates.path("ca.crt"), &url],
        );
        let fields = ran.fields();
        assert_eq!((ran.code, fields.count("statuses.200")), (0, 20), "{}{}", ran.out, ran.err);
        assert_eq!(handshakes(&fields), (20 - hits, hits, 0), "{words}");
        // The page is of the last request and counts those before it, and the connection that looked for the server.
        let page = Command::new("curl").args(["-ks", &url]).output().expect("curl");
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        let count = |what: &str| -> u64 {
            let line = page.lines().find(|line| line.ends_with(what)).unwrap_or_else(|| panic!("no {what} in {page}"));
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        assert_eq!(count("server accepts that finished"), 21, "{page}");
        assert_eq!(count("session cache hits"), hits, "{page}");
    }
}

/// Checks that all handshakes of a run failed, with this text.
#[track_caller]
fn refused(ran: &Ran, text: &str) {
    let fields = ran.fields();
    fields.balance();
    let failed = fields.count("connect_failures.tls.count");
    assert!(failed >= 1, "{}", ran.out);
    assert_eq!((ran.code, handshakes(&fields), fields.count("requests.answered")), (1, (0, 0, failed), 0));
    assert!(fields.text("tls.errors.0.text").contains(text), "{}", fields.text("tls.errors.0.text"));
    assert_eq!(fields.text("tls.errors.0.text"), fields.text("connect_failures.tls.example"));
    assert!(ran.err.contains("every request failed"), "{}", ran.err);
}

#[test]
fn a_wrong_certificate_is_an_error_unless_it_may_be_any() {
    let certificates = Certificates::new();
    let url = demo(&certificates);
    let (ca, other) = (certificates.path("ca.crt"), certificates.path("other.crt"));
    for words in ["-n 4", "-d 1m", "-n 4 --no-keep-alive", "-r 100 -n 4"] {
        refused(&run_with(&format!("http -c 2 --json {words} --cacert {other}"), &[&url]), "UnknownIssuer");
    }
    refused(
        &run_with(&format!("http -c 1 -n 4 --json --cacert {ca} --servername other.example"), &[&url]),
        "not valid",
    );
    // An authority that signed nothing is not among the system's.
    let ran = run_with("http -c 1 -n 4 --json", &[&url]);
    if !ran.err.contains("authorities of the system") {
        refused(&ran, "UnknownIssuer");
    }
    for words in [format!("--cacert {ca}"), "--insecure".into(), "--insecure --servername other.example".into()] {
        let ran = run_with(&format!("http -c 1 -n 4 --json {words}"), &[&url]);
        assert_eq!((ran.code, ran.fields().count("tls.failed")), (0, 0), "{words}: {}", ran.err);
    }
}

/// Certificates of laboratories: one that is its own authority, and one of X.509 version 1.
#[test]
fn certificates_that_openssl_accepts_are_accepted() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    let openssl = |line: String| {
        let output = Command::new("openssl").args(line.split(' ')).output().expect("openssl");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (own, old, key) = (path("own.crt"), path("old.crt"), path("here.key"));
    openssl(format!("req -x509 -key {key} -days 2 -subj /CN=own -addext subjectAltName=IP:127.0.0.1 -out {own}"));
    let request = path("here.csr");
    openssl(format!("x509 -req -in {request} -CA {} -CAkey {} -days 2 -out {old}", path("ca.crt"), path("ca.key")));
    let run = |certificate: &str, words: &str| {
        let (_server, port) = s_server(&certificates, &["-cert", certificate]);
        run_with(&format!("http -c 1 -n 3 --json {words}"), &[&format!("https://127.0.0.1:{port}/")])
    };
    for (certificate, words) in [(&own, format!("--cacert {own}")), (&old, "--insecure".to_owned())] {
        for version in ["1.2", "1.3"] {
            let ran = run(certificate, &format!("{words} --tls-version {version}"));
            assert_eq!((ran.code, ran.fields().count("statuses.200")), (0, 3), "{}{}", ran.out, ran.err);
        }
    }
    refused(&run(&own, &format!("--cacert {}", path("ca.crt"))), "UnknownIssuer");
    // The certificate is trusted, but has no alternative name.
    let ran = run(&old, &format!("--cacert {}", path("ca.crt")));
    assert_eq!((ran.code, ran.fields().count("tls.full")), (1, 0), "{}", ran.out);
}

#[test]
fn servers_that_refuse_are_quoted() {
    let certificates = Certificates::new();
    let nginx = Nginx::start(&certificates, "ssl", "ssl_protocols TLSv1.2;");
    let url = format!("https://127.0.0.1:{}/", nginx.port);
    refused(&run_with("http -c 1 -n 4 --json --insecure --tls-version 1.3", &[&url]), "ProtocolVersion");
    // A server without TLS.
    let listening = Listening::new();
    let plain = format!("https://{}/", listening.address());
    origin::spawn(listening.listener, 1).expect("startable");
    refused(&run_with("http -c 1 -n 4 --json --insecure", &[&plain]), "corrupt message");
    // A server that sends nothing.
    let silent = Listening::new();
    let ran = run_with("http -c 1 -n 4 --json --insecure --connect-timeout 50ms --tls", &[&silent.address()]);
    refused(&ran, "the handshake did not end in time");
}

#[test]
fn clients_show_their_certificate() {
    let certificates = Certificates::new();
    let lines = format!("ssl_client_certificate {}; ssl_verify_client on;", certificates.path("ca.crt"));
    let nginx = Nginx::start(&certificates, "ssl", &lines);
    let url = format!("https://127.0.0.1:{}/", nginx.port);
    let (certificate, key) = (certificates.path("client.crt"), certificates.path("client.key"));
    let both = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(both.path(), [certificates.read("client.crt"), certificates.read("client.key")].concat()).unwrap();
    let both = both.path().display();
    for words in [format!("--cert {certificate} --key {key}"), format!("--cert {both}")] {
        let ran = run_with(&format!("http -c 2 -n 10 --json --insecure {words}"), &[&url]);
        assert_eq!((ran.code, ran.fields().count("statuses.200")), (0, 10), "{words}: {}", ran.err);
    }
    assert!(nginx.log(20).iter().all(|line| line[3] == "SUCCESS"));
    // nginx answers 400 to clients without a certificate.
    let fields = run_with("http -c 1 -n 4 --json --insecure", &[&url]).fields();
    assert_eq!(fields.count("statuses.400"), 4);
}

/// In TLS 1.3 the server's refusal of a client follows the client's handshake: the request fails.
#[test]
fn a_client_that_is_refused_late_fails_with_the_alert() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.crt");
    let (_server, port) = s_server(&certificates, &["-Verify", "3", "-verify_return_error", "-CAfile", &ca]);
    let words = "http -c 1 -n 2 --json --insecure --no-keep-alive";
    let url = format!("https://127.0.0.1:{port}/");
    let fields = run_with(&format!("{words} --tls-version 1.3"), &[&url]).fields();
    fields.balance();
    assert_eq!((fields.count("tls.full"), fields.count("failures.tls.count")), (2, 2));
    assert_eq!(fields.text("tls.errors.0.text"), "received fatal alert: CertificateRequired");
    let fields = run_with(&format!("{words} --tls-version 1.2"), &[&url]).fields();
    assert_eq!((fields.count("tls.full"), fields.count("connect_failures.tls.count")), (0, 2));
}

#[test]
fn the_name_is_sent() {
    let certificates = Certificates::new();
    let nginx = Nginx::start(&certificates, "ssl", "");
    let connect = format!("127.0.0.1:{}", nginx.port);
    let run = |words: &str, url: &str| {
        let ran = run_with(&format!("http -c 1 -n 1 --json --insecure {words} --connect {connect}"), &[url]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    run("", "https://a.example/1");
    run("--servername b.example", "https://a.example/2");
    run("--tls", "a.example/3");
    run("", "https://127.0.0.1/4");
    let names: Vec<(String, String)> = nginx.log(4).iter().map(|line| (line[7].clone(), line[4].clone())).collect();
    let expected = [("/1", "a.example"), ("/2", "b.example"), ("/3", "a.example"), ("/4", "-")];
    assert_eq!(names, expected.map(|(target, name)| (target.to_owned(), name.to_owned())));
}

#[test]
fn engines_answer_over_tls() {
    let certificates = Certificates::new();
    let (server, port) = certificates.engine("here", "yes");
    let path = |name: &str| certificates.path(name);
    let words = format!("--cacert {} --cert {} --key {}", path("ca.crt"), path("client.crt"), path("client.key"));
    for (how, more) in [("--tls --server ", ""), ("--server rediss://", "/3"), ("--tls --resp3 --server rediss://", "")]
    {
        let ran = run_with(
            &format!("redis -c 4 -n 400 -P 4 --json {words} {how}127.0.0.1:{port}{more}"),
            &["SET __key__ __data__", "GET __key__"],
        );
        let fields = ran.fields();
        fields.balance();
        assert_eq!((ran.code, fields.count("requests.answered")), (0, 400), "{how}: {}{}", ran.out, ran.err);
        assert_eq!(handshakes(&fields), (4, 0, 0));
        assert_eq!(fields.text("tls.parameters.0.alpn"), "null");
    }
    let mut client = Client::connect(&server.address());
    assert!(client.ask(&["INFO", "commandstats"]).contains("cmdstat_set:calls=600,"));
    let ran = run(&format!("redis --reconnect -n 50 --resume {words} --tls --server 127.0.0.1:{port}"));
    assert!(ran.code == 0 && ran.out.contains("50 commands to"), "{}{}", ran.out, ran.err);
    refused(
        &run(&format!("redis -c 1 -n 5 --json --tls --server 127.0.0.1:{port} --cacert {}", path("other.crt"))),
        "UnknownIssuer",
    );
}

/// A connection that is cut off without `close_notify` does not complete a body.
#[test]
fn a_body_that_ends_with_the_connection_needs_the_end_of_tls() {
    use std::io::{Read, Write};
    let certificates = Certificates::new();
    for (is_clean, answered) in [(true, 3), (false, 0)] {
        let listening = Listening::new();
        let url = format!("https://{}/", listening.address());
        let chain = rustls::pki_types::CertificateDer::from_pem_file(certificates.path("here.crt")).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_file(certificates.path("here.key")).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        let config = std::sync::Arc::new(config);
        std::thread::spawn(move || {
            for stream in listening.listener.incoming().map_while(Result::ok) {
                let connection = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end");
                if is_clean {
                    stream.conn.send_close_notify();
                }
                let _ = stream.flush();
                // The client must see the end of the stream, not a reset.
                let _ = stream.sock.shutdown(std::net::Shutdown::Write);
                let _ = stream.sock.read_to_end(&mut Vec::new());
            }
        });
        let fields = run_with("http -c 1 -n 3 --json --insecure", &[&url]).fields();
        fields.balance();
        assert_eq!(fields.count("requests.answered"), answered, "{is_clean}");
        assert_eq!(fields.count("bytes.bodies"), answered * 13);
        if !is_clean {
            let text = "the connection ended within an answer, without close_notify";
            assert_eq!(fields.text("failures.short.example"), text);
        }
    }
}
