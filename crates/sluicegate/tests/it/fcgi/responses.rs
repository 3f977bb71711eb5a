//! Responses of applications, good and bad ones.

use sluicegate_testkit::wait_for;

use super::application::{Application, Heard, Request, end, record, stderr, stdout};
use super::{Gate, Parts, SPLIT, both, shown_parameters};

/// Returns the bytes that a client gets, without the date.
pub(super) fn shown(text: &str) -> String {
    text.split_inclusive("\r\n").filter(|line| !line.starts_with("date:")).collect()
}

/// Responses by path. Those that HAProxy may chunk or not, as they arrive, come slowly enough for neither.
fn respond(request: &Request) -> Vec<u8> {
    let id = request.id;
    match request.param("SCRIPT_NAME") {
        "/plain" => request.answer("Content-Type: text/plain\r\n\r\nhello"),
        "/status" => request.answer("Status: 404 Not here\r\nX-A: b\r\n\r\nnone"),
        "/location" => request.answer("Location: http://other/\r\n\r\n"),
        "/length" => request.answer("Content-Length: 5\r\n\r\nhello"),
        "/chunked" => request.answer("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        "/empty" => request.answer("\r\n"),
        "/none" => request.answer("Status: 204\r\n\r\n"),
        "/date" => request.answer("Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nStatus: 200\r\n\r\nx"),
        "/lf" => request.answer("X: y\n\nbody"),
        "/two" => {
            [stdout(id, b"X: y\r\n"), stdout(id, b"\r\nab"), stdout(id, b"cd"), record(6, id, b"", 0), end(id, 0)]
                .concat()
        }
        "/connection" => request.answer("Connection: close\r\nKeep-Alive: x\r\nContent-Length: 2\r\n\r\nok"),
        "/others" => [stdout(999, b"X: no\r\n\r\nno"), record(42, id, b"?", 1), request.answer("\r\nmine")].concat(),
        "/late" => [request.answer("Content-Length: 2\r\n\r\nok"), stdout(id, b"more"), end(id, 0)].concat(),
        // Bad ones.
        "/http" => request.answer("HTTP/1.1 200 OK\r\n\r\n"),
        "/garbage" => request.answer("no field\r\n\r\n"),
        "/coding" => request.answer("Transfer-Encoding: gzip\r\n\r\nx"),
        "/nothing" => end(id, 0),
        "/closed" => b"close".to_vec(),
        "/cut-head" => [stdout(id, b"X: y\r\n"), b"close".to_vec()].concat(),
        "/half-head" => [stdout(id, b"X: y\r\n"), end(id, 0)].concat(),
        "/cut-record" => [&record(6, id, b"X: y\r\n\r\nbody", 0)[..15], b"close"].concat(),
        "/cut-body" => [stdout(id, b"X: y\r\n\r\nbody"), b"close".to_vec()].concat(),
        "/short" => request.answer("Content-Length: 9\r\n\r\nbody"),
        "/long" => request.answer("Content-Length: 2\r\n\r\nbody"),
        "/overloaded" => end(id, 2),
        path => panic!("a request for {path}"),
    }
}

const GOOD: [&str; 13] = [
    "/plain",
    "/status",
    "/location",
    "/length",
    "/chunked",
    "/empty",
    "/none",
    "/date",
    "/lf",
    "/two",
    "/connection",
    "/others",
    "/late",
];

#[test]
fn responses_are_haproxys() {
    let [theirs, own] = both(|ours| {
        let app = Application::answering(respond);
        let gate = Gate::start(ours, &app.address, Parts::default());
        let mut seen = Vec::new();
        for path in GOOD {
            for (method, version) in [("GET", "1.1"), ("GET", "1.0"), ("HEAD", "1.1")] {
                // HAProxy leaves the chunks to a client of HTTP/1.0.
                if path == "/chunked" && version == "1.0" {
                    continue;
                }
                // The body of a response to HEAD is more than was announced.
                if method == "HEAD" && !matches!(path, "/empty" | "/location" | "/none") {
                    continue;
                }
                let request = format!("{method} {path} HTTP/{version}\r\nHost: h\r\nConnection: close\r\n\r\n");
                seen.push((method, path, version, shown(&gate.raw(&request))));
            }
        }
        seen
    });
    for (theirs, own) in theirs.iter().zip(&own) {
        assert_eq!(theirs, own);
    }
    assert!(own[0].3.contains("content-length: 5\r\n"), "{own:#?}");
}

#[test]
fn bad_responses_are_haproxys() {
    const BAD: [&str; 3] = ["/http", "/garbage", "/coding"];
    // HAProxy 2.8 waits for 'timeout server' after some of these.
    const ENDED: [(&str, &str); 9] = [
        ("/nothing", "502 SH"),
        ("/half-head", "502 PH"),
        ("/overloaded", "502 SH"),
        ("/closed", "502 SH"),
        ("/cut-head", "502 PH"),
        ("/cut-record", "502 SH"),
        ("/cut-body", "200 SD"),
        ("/short", "200 SD"),
        ("/long", "502 PH"),
    ];
    let [theirs, own] = both(|ours| {
        let app = Application::answering(respond);
        let log = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        log.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("settable");
        let front = format!(" log {} format raw local0\n log-format \"%ST %ts\"\n", log.local_addr().expect("bound"));
        let gate = Gate::start(ours, &app.address, Parts { front: &front, ..Parts::default() });
        let ask = |path: &'static str| {
            let text = gate.raw(&format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            let mut line = [0; 200];
            let count = log.recv(&mut line).expect("a log line");
            let line = String::from_utf8_lossy(&line[..count]).trim_end().to_owned();
            let first = text.lines().next().unwrap_or_default().to_owned();
            (path, line, first)
        };
        (BAD.map(ask), if ours { ENDED.map(|(path, _)| ask(path)).to_vec() } else { Vec::new() })
    });
    let (theirs, (own, ended)) = (theirs.0, own);
    let seen: Vec<_> = ended.iter().map(|(path, line, _)| (*path, &**line)).collect();
    assert_eq!(seen, ENDED);
    for (theirs, own) in theirs.iter().zip(&own) {
        assert_eq!(theirs, own, "{own:#?}");
    }
}

#[test]
fn messages_of_the_application_are_logged() {
    let [theirs, own] = both(|ours| {
        let app = Application::answering(|request| {
            let messages = [stderr(request.id, b"a line\n"), stderr(request.id, b""), stderr(request.id, b"last")];
            [messages.concat(), request.answer("\r\nx")].concat()
        });
        let log = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        log.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("settable");
        let address = log.local_addr().expect("bound");
        let app_lines = format!(" log-stderr {address} format rfc3164 local3\n");
        let gate = Gate::start(ours, &app.address, Parts { app: &app_lines, ..Parts::default() });
        assert_eq!(gate.get("/").text(), "x");
        [(); 2].map(|()| {
            let mut line = [0; 400];
            let count = log.recv(&mut line).expect("a log line");
            let line = String::from_utf8_lossy(&line[..count]).into_owned();
            // The priority and, behind the date and the process, the message.
            let (priority, rest) = line.split_at(5);
            let message = rest.split_once("]: ").map_or(rest, |(_, message)| message);
            let tag = rest.contains(" app[");
            (priority.to_owned(), tag, message.trim_end().to_owned())
        })
    });
    assert_eq!(theirs, own);
    assert_eq!(own[1], ("<155>".to_owned(), true, "last".to_owned()));
}

#[test]
fn large_bodies_pass_both_ways() {
    let app = Application::answering(|request| {
        let sum: u64 = request.body.iter().map(|byte| u64::from(*byte)).sum();
        let text = format!("X-Sum: {sum}\r\n\r\n");
        request.answer([text.as_bytes(), &vec![b'z'; 3_000_000][..]].concat())
    });
    let gate = Gate::start(true, &app.address, Parts::default());
    let mut client = gate.client();
    let body = vec![1u8; 2_000_000];
    for _ in 0..2 {
        client.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()));
        client.send(&body);
        let response = client.read_response();
        assert_eq!((response.header("x-sum"), response.body.len()), (Some("2000000"), 3_000_000));
    }
    assert_eq!(app.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_request_that_cannot_be_expressed_gets_haproxys_error() {
    let long = format!("/?{}", "q".repeat(9_000));
    let requests = [
        "GET /%zz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /a%0ab HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".to_owned(),
        format!("GET {long} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
    ];
    let [theirs, own] = both(|ours| {
        let app = Application::answering(|request| request.answer("\r\nok"));
        let gate = Gate::start(ours, &app.address, super::SPLIT);
        requests.clone().map(|request| gate.raw(&request).lines().next().unwrap_or_default().to_owned())
    });
    assert_eq!(theirs, own);
}

#[test]
fn an_aborted_upload_is_told_to_the_application() {
    let see = |ours| {
        let app = Application::answering(|request| request.answer("\r\nok"));
        let gate = Gate::start(ours, &app.address, Parts::default());
        let mut client = gate.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(50_000)));
        wait_for("the request at the application", || {
            (app.begun.load(std::sync::atomic::Ordering::SeqCst) > 0).then_some(())
        });
        client.reset();
        wait_for("the abort", || app.heard().iter().find(|(_, heard)| matches!(heard, Heard::Abort(1))).map(|_| ()));
    };
    both(see);
}

/// HTTP checks speak FastCGI: the application's view of a check, and the result.
#[test]
fn checks_are_haproxys() {
    let cases = [
        " timeout check 60s\n option httpchk GET /ping?x\n",
        " timeout check 60s\n option httpchk\n http-check send meth POST uri /health.php ver HTTP/1.1 hdr host h hdr x-a b body hello\n \
         http-check expect rstatus ^503\n",
    ];
    for backend in cases {
        let [theirs, own] = both(|ours| {
            let app = Application::answering(|request| match request.param("REQUEST_METHOD") {
                "POST" => request.answer("Status: 503 Busy\r\n\r\nbody"),
                _ => request.answer("Content-type: text/plain\r\n\r\nwell"),
            });
            let gate = Gate::start(ours, &app.address, Parts { backend, server: "check inter 2s", ..SPLIT });
            let result = wait_for("a check", || {
                let stat = gate.stats("show stat b 4 -1");
                let row = stat.lines().find(|line| line.starts_with("b,s,"))?;
                let cells: Vec<&str> = row.split(',').collect();
                cells[36].starts_with('L').then(|| [17, 36, 37, 65].map(|index| cells[index].to_owned()))
            });
            let heard = app.heard();
            let Some((_, Heard::Request(request))) = heard.first() else { panic!("no request: {heard:?}") };
            (shown_parameters(request), request.keep, request.body.clone(), result)
        });
        assert_eq!(own, theirs, "{backend}");
        assert_eq!((&*own.3[0], &*own.3[1]), ("UP", "L7OK"), "{own:?}");
    }
}
