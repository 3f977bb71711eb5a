//! Clients of HTTP/2 and over TLS before applications, and applications beside servers of HTTP.

use std::sync::atomic::Ordering;

use sluicegate_testkit::wait_for;
use sluicegate_wire::http2::ErrorCode;

use super::application::{Application, Heard};
use super::responses::shown;
use super::{Gate, Parts, SPLIT, both, shown_parameters};
use crate::http2::{Client, Origin, run};
use crate::http2_servers::Server;
use crate::tls::Pki;

/// Requests by curl over TLS: what the application gets, and what curl gets.
#[test]
fn clients_over_tls() {
    let pki = Pki::new();
    let bind = format!("ssl crt {} alpn h2,http/1.1", pki.path("b.pem").display());
    let file = pki.path("body");
    std::fs::write(&file, "x".repeat(300_000)).expect("writable");
    let file = format!("@{}", file.display());
    let requests: [&[&str]; 4] = [
        &["/a.php/more?x=1"],
        &["-I", "/b.php"],
        &["--data-binary", &file, "/length.php"],
        &["--data-binary", "hello", "-H", "Transfer-Encoding: chunked", "/chunked.php"],
    ];
    let [theirs, own] = both(|ours| {
        let app = Application::answering(|request| {
            let end = if request.param("REQUEST_METHOD") == "HEAD" { "" } else { "body" };
            request.answer(format!("X-Length: {}\r\nContent-Type: text/plain\r\n\r\n{end}", request.body.len()))
        });
        let gate = Gate::start(ours, &app.address, Parts { bind: &bind, ..SPLIT });
        let mut seen = Vec::new();
        for version in ["--http1.1", "--http2"] {
            for request in requests {
                let (path, words) = request.split_last().expect("a path");
                let url = format!("https://{}{path}", gate.front.address());
                let fields = ["curl", "-sSik", version, "-A", "curl", "-H", "Host: www.example"];
                seen.push(shown(&run(&[&fields, words, &[&*url]].concat())));
            }
        }
        let heard = app.heard();
        let requests = heard.iter().filter_map(|(_, heard)| match heard {
            Heard::Request(request) => Some((shown_parameters(request), request.body.len())),
            _ => None,
        });
        (requests.collect::<Vec<_>>(), seen)
    });
    for (theirs, own) in theirs.0.iter().zip(&own.0) {
        assert_eq!(theirs, own);
    }
    assert_eq!(theirs.1, own.1);
    let has = |number: usize, line: &str| own.0[number].0.iter().any(|known| known == line);
    assert!(has(0, "HTTPS=on") && has(4, "HTTPS=on") && has(4, "SERVER_PROTOCOL=HTTP/2.0"), "{:?}", own.0[4]);
    assert_eq!((own.0[6].1, own.0[7].1), (300_000, 5));
}

/// A stream that its client resets ends at the application, too, and the connection's other streams go on.
#[test]
fn a_client_of_http_2_resets_its_stream() {
    both(|ours| {
        let app = Application::answering(|request| request.answer(format!("\r\n{}", request.body.len())));
        let gate = Gate::start(ours, &app.address, Parts::default());
        let mut client = Client::connect(&gate.front.address());
        let stream = client.begin("POST /\nhost: h\ncontent-length: 50000", false);
        client.data(stream, &[b'x'; 20_000], false);
        wait_for("the request at the application", || (app.begun.load(Ordering::SeqCst) > 0).then_some(()));
        client.reset(stream, ErrorCode::CANCEL);
        wait_for("the abort", || app.heard().iter().find(|(_, heard)| matches!(heard, Heard::Abort(1))).map(|_| ()));
        assert_eq!(client.post("POST /\nhost: h", b"hello").text(), "5");
    });
}

/// A request that an application leaves unanswered is sent again to a server of HTTP/1 or HTTP/2, with its body.
#[test]
fn a_retry_at_a_server_of_http() {
    let requests = [
        "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        "PUT /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
        "GET /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    ];
    let see = |ours: bool, address: &str, words: &str| {
        let app = Application::answering(|_| b"close".to_vec());
        let backend = " balance first\n retries 3\n option redispatch 1\n retry-on empty-response\n";
        let server = format!("\n server t {address} {words}\n");
        let gate = Gate::start(ours, &app.address, Parts { backend, server: &server, ..Parts::default() });
        let seen = requests.map(|request| gate.raw(request));
        let of_app = app.heard().len();
        (seen.map(|text| shown(&text)), of_app)
    };
    let (origin, origin2) = (Origin::echo(), Server::start());
    for (address, words) in [(&origin.address(), ""), (&origin2.address, "proto h2")] {
        let [theirs, own] = both(|ours| see(ours, address, words));
        assert_eq!(theirs, own, "{words}");
        assert!(own.0[0].ends_with("\nhello") && own.0[1].ends_with("\nhelloyou"), "{words}: {:?}", own.0);
        assert_eq!(own.1, 3, "{words}");
    }
}
