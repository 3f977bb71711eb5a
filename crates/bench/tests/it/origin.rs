//! The demo origin, byte by byte.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use sluicegate_bench::origin;
use sluicegate_testkit::{Certificates, Client, Listening};

fn start() -> Client {
    let listening = Listening::new();
    let address = listening.address();
    origin::spawn(listening.listener, 1).expect("startable");
    Client::connect(&address)
}

/// Sends `request` and the end of the client's direction; compares all that comes.
fn check(request: &str, expected: &str) {
    let mut client = start();
    client.send(request);
    client.finish();
    assert_eq!(String::from_utf8_lossy(&client.read_to_end()), expected, "{request:?}");
}

#[test]
fn fast_answers_every_pipelined_request() {
    let one = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Type: text/plain\r\n\r\nI'm FAST!!!!";
    check(&"GET /fast HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3), &one.repeat(3));
}

#[test]
fn connections_live_as_their_requests_wish() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n";
    let keep = format!("{head}connection: keep-alive\r\n\r\nI'm FAST!!!!");
    let close = format!("{head}connection: close\r\n\r\nI'm FAST!!!!");
    check("GET /fast HTTP/1.0\r\n\r\nGET /fast HTTP/1.0\r\n\r\n", &close);
    check("GET /fast HTTP/1.1\r\nConnection: close\r\n\r\nGET /fast HTTP/1.1\r\n\r\n", &close);
    check("GET /fast HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /fast HTTP/1.0\r\n\r\n", &format!("{keep}{close}"));
}

#[test]
fn head_has_no_body() {
    check(
        "HEAD /bytes/5 HTTP/1.1\r\n\r\nHEAD /fast HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 5\r\n\r\n\
         HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\n",
    );
}

#[test]
fn echo_frames_as_it_was_framed() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\nx-request-method: PUT\r\n";
    check(
        "PUT /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloPUT /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: u\r\n\r\nPUT /echo HTTP/1.1\r\n\r\n",
        &format!(
            "{head}content-length: 5\r\n\r\nhello{head}transfer-encoding: chunked\r\n\r\n\
             3\r\nabc\r\n2\r\nde\r\n0\r\nt: u\r\n\r\n{head}content-length: 0\r\n\r\n"
        ),
    );
}

#[test]
fn a_client_that_expects_is_told_to_go_on() {
    let mut client = start();
    client.send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_response().status, 100);
    client.send("hello");
    assert_eq!(client.read_response().text(), "hello");
}

#[test]
fn statuses() {
    check(
        "GET /status/204 HTTP/1.1\r\n\r\nGET /status/503 HTTP/1.1\r\n\r\nGET /status/99 HTTP/1.1\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n\
         HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 19\r\n\r\nService Unavailable\
         HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nNot Found",
    );
}

#[test]
fn what_is_no_request_gets_400_and_the_end() {
    check("nonsense\r\n\r\n", sluicegate_wire::http::status::error_page(400).raw);
}

#[test]
fn bytes_and_bodies_of_any_size_stream() {
    let mut client = start();
    client.send("GET /bytes/3000000 HTTP/1.1\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.body.len(), 3_000_000);
    assert!(response.body.iter().all(|byte| byte.is_ascii_digit() || *byte == b'\n'));

    client.send(format!("POST /fast HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n{}", "x".repeat(3_000_000)));
    assert_eq!(client.read_response().text(), "I'm FAST!!!!");
}

#[test]
fn delay_waits_at_least_as_long_as_asked() {
    let mut client = start();
    let start = Instant::now();
    assert_eq!(client.get("/delay/30").text(), "30");
    assert!(start.elapsed().as_millis() >= 30);
}

/// The origin with the certificate `here`; gives its address.
fn start_tls(certificates: &Certificates) -> String {
    let listening = Listening::new();
    let address = listening.address();
    let path = |name: &str| PathBuf::from(certificates.path(name));
    let tls = origin::Tls::new(&path("here.crt"), &path("here.key")).expect("a certificate");
    origin::spawn_tls(listening.listener, 1, tls).expect("startable");
    address
}

/// Runs a client and returns its output.
#[track_caller]
fn output(program: &str, words: &str, input: &[u8]) -> String {
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("installed");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("its end");
    let _ = writer.join();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_is_answered_over_tls() {
    let certificates = Certificates::new();
    let address = start_tls(&certificates);
    let ca = certificates.path("ca.crt");
    for words in ["", "--tls-max 1.2", "--tlsv1.3", "--http1.1"] {
        let words = format!("-sS --fail {words} --cacert {ca} https://{address}/fast https://{address}/bytes/3");
        assert_eq!(output("curl", &words, b""), "I'm FAST!!!!012");
    }
    let body = vec![b'x'; 3_000_000];
    let words = format!("-sS --fail --cacert {ca} --data-binary @- https://{address}/echo");
    assert_eq!(output("curl", &words, &body).len(), body.len());
    let code = format!("-sS --cacert {ca} -o /dev/null -w %{{http_code}} https://{address}/status/503");
    assert_eq!(output("curl", &code, b""), "503");
}

#[test]
fn openssl_negotiates_and_resumes() {
    let certificates = Certificates::new();
    let address = start_tls(&certificates);
    let session = certificates.path("session");
    let request = b"GET /fast HTTP/1.1\r\nConnection: close\r\n\r\n";
    let words = format!("s_client -connect {address} -CAfile {} -verify_return_error", certificates.path("ca.crt"));
    for version in ["-tls1_2", "-tls1_3"] {
        let first =
            output("openssl", &format!("{words} {version} -ign_eof -alpn http/1.1 -sess_out {session}"), request);
        let again =
            output("openssl", &format!("{words} {version} -ign_eof -alpn http/1.1 -sess_in {session}"), request);
        for (text, part) in [(&first, "New, "), (&again, "Reused, ")] {
            // The connection ends as TLS demands; without `close_notify` it would be "read:errno=0".
            for part in [part, "ALPN protocol: http/1.1", "I'm FAST!!!!", "closed\n"] {
                assert!(text.contains(part), "no {part:?} in {text}");
            }
        }
    }
}

#[test]
fn plain_requests_and_silence_do_not_hold_a_tls_port() {
    let certificates = Certificates::new();
    let address = start_tls(&certificates);
    let _silent = Client::connect(&address);
    let mut plain = Client::connect(&address);
    plain.send("GET /fast HTTP/1.1\r\n\r\n");
    // An alert, and the end.
    assert_eq!(plain.read_to_end().first(), Some(&21));
    let ca = certificates.path("ca.crt");
    assert_eq!(output("curl", &format!("-sS --cacert {ca} https://{address}/fast"), b""), "I'm FAST!!!!");
}

#[test]
fn files_that_make_no_certificate_are_refused() {
    let certificates = Certificates::new();
    let check = |certificate: &str, key: &str, part: &str| {
        let path = |name: &str| PathBuf::from(certificates.path(name));
        let error = origin::Tls::new(&path(certificate), &path(key)).expect_err("refused");
        assert!(error.starts_with("--tls-") && error.contains(part), "{error}");
    };
    check("here.crt", "here.crt", "No Private Key found");
    check("here.key", "here.key", "unable to load certificate from file");
    check("here.crt", "client.key", "inconsistencies between private key and certificate");
    check("absent", "here.key", "No such file");
}

#[test]
fn curl_is_answered_in_http2() {
    let certificates = Certificates::new();
    let secure = start_tls(&certificates);
    let listening = Listening::new();
    let plain = listening.address();
    origin::spawn(listening.listener, 1).expect("startable");
    let secure = (format!("--cacert {} --http2", certificates.path("ca.crt")), format!("https://{secure}"));
    let prior_knowledge = ("--http2-prior-knowledge".to_owned(), format!("http://{plain}"));
    for (words, url) in [&secure, &prior_knowledge] {
        let words = format!("-sS {words} -w %{{http_version}},%{{http_code}},");
        let get = |path: &str| output("curl", &format!("{words} {url}{path}"), b"");
        assert_eq!(get("/fast"), "I'm FAST!!!!2,200,");
        assert_eq!(get("/delay/30"), "302,200,");
        assert_eq!(get("/status/204"), "2,204,");
        assert_eq!(get("/status/503"), "Service Unavailable2,503,");
        assert_eq!(get("/nowhere"), "Not Found2,404,");
        assert_eq!(get("/bytes/0"), "2,200,");
        let bytes = get("/bytes/3000000");
        assert!(bytes.len() == 3_000_006 && bytes.ends_with("2,200,"), "{}", bytes.len());
        let head = output("curl", &format!("{words} -I {url}/bytes/7"), b"");
        assert!(head.contains("content-length: 7\r\n") && head.ends_with("\r\n\r\n2,200,"), "{head}");
        let text: String = (0..400_000).map(|number| format!("{number} ")).collect();
        let echo = output("curl", &format!("{words} --data-binary @- {url}/echo"), text.as_bytes());
        assert!(echo == text.clone() + "2,200,", "{} bytes of {}", echo.len(), text.len());
        // Without a length, and with an expectation.
        let streamed = format!("{words} -H Expect:100-continue -T - {url}/echo");
        assert!(output("curl", &streamed, text.as_bytes()) == text + "2,200,");
    }
    // Heads of several responses on one connection. (curl 7.88 loses connections that it reuses by prior knowledge.)
    let (words, url) = (format!("-sS {} -w %{{http_version}},%{{http_code}},", secure.0), &secure.1);
    let heads = output("curl", &format!("{words} -i {url}/bytes/3 {url}/fast {url}/bytes/3"), b"");
    let (first, others) = heads.split_once("2,200,").unwrap();
    let bytes = "content-type: application/octet-stream\r\ncontent-length: 3\r\n\r\n012";
    assert_eq!(first, format!("HTTP/2 200 \r\n{bytes}"));
    let text = "content-type: text/plain\r\ncontent-length: 12\r\n\r\nI'm FAST!!!!";
    assert_eq!(others, format!("HTTP/2 200 \r\n{text}2,200,HTTP/2 200 \r\n{bytes}2,200,"));
    // More than one request at once, on one connection.
    let many = format!("{} --parallel {}/bytes/100000?[1-40] -o /dev/null", secure.0, secure.1);
    let many = output("curl", &format!("-sS {many} -w %{{http_code}}/%{{num_connects}}."), b"");
    assert_eq!((many.matches("200/").count(), many.matches("/1").count()), (40, 1), "{many}");
}
