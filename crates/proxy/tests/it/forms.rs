//! The form of messages on the wire: the case of names, malformed heads that options accept, trailers; compared with
//! Debian's haproxy where it has these options.

use std::io::{Read, Write};
use std::net::SocketAddr;

use sluicegate_testkit::Client;

use crate::pair::{answering, both, origin, ours, read_head};

const DEFAULTS: &str =
    "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n timeout http-request 9s\n";

/// Starts a server that answers with the received head as its body.
fn echo() -> SocketAddr {
    answering(|head| {
        let fields = "Content-Type: text/plain\r\nX-a: 1\r\nx-None: 2\r\n";
        let mut answer = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", head.len()).into_bytes();
        answer.extend_from_slice(head);
        answer
    })
}

fn ask(address: &str, request: &[u8]) -> String {
    let mut client = Client::connect(address);
    client.send(request);
    String::from_utf8_lossy(&client.read_to_end()).into_owned()
}

/// Returns the answer with its names in lower case: 2.6 sends those of an error page unchanged.
fn lower_names(answer: &str) -> String {
    let lines = answer.split_inclusive('\n').map(|line| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    });
    lines.collect()
}

#[test]
fn names_have_the_case_that_is_asked_for() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "# names\n\n content-type  Content-TYPE \nx-local X-LoCaL\n").expect("writable");
    let global = format!(
        "global\n h1-case-adjust host HoSt\n h1-case-adjust x-a X-A\n h1-case-adjust content-length Content-Length\n \
         h1-case-adjust connection Connection\n h1-case-adjust-file {}\n",
        file.path().display()
    );
    let at = echo();
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-A: host: x-a:\r\nX-B: 1\r\nconnection: close\r\n\r\n").into_bytes()
    };
    for (client, server) in [(true, true), (true, false), (false, true)] {
        let option =
            |on: bool, name: &str| if on { format!(" option h1-case-adjust-bogus-{name}\n") } else { String::new() };
        let text = format!(
            "{DEFAULTS}frontend f\n bind @BIND@\n{} http-request return status 200 hdr x-local 1 content-type text/plain \
             string hello if {{ path /local }}\n http-request redirect location / if {{ path /away }}\n default_backend \
             b\nbackend b\n{} server s {at}\n",
            option(client, "client"),
            option(server, "server")
        );
        let talk = |address: &str| ["/", "/local", "/away"].map(|path| ask(address, &get(path)));
        let ours = ours(&format!("{global}{text}"), |address, _| talk(address));
        let theirs = crate::pair::theirs_after(&global, &text, |address, _| talk(address));
        assert_eq!(ours, theirs, "client {client}, server {server}");
        assert_eq!(ours[0].contains("\r\nContent-TYPE: text/plain\r\nX-A: 1\r\nx-none: 2\r\n"), client, "{}", ours[0]);
        assert_eq!(ours[0].contains("\r\nHoSt: a\r\nX-A: host: x-a:\r\n"), server, "{}", ours[0]);
    }
}

/// Requests that are malformed, each in one way.
const REQUESTS: &[&[u8]] = &[
    b"GET /a#b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /\xc3\xa4\xff?\x80 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /a\x01 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /a\x7f HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX Y: 1\r\nX(Z)@\xe9: 2\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nNoColon\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n: empty\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\nConnection: close\r\n\r\n",
    b"GET http://other/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\nConnection: close\r\n\r\n",
    b"GET / RTSP/1.0\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET / RTSP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /nine\r\n",
    b"POST /nine\r\n",
];

#[test]
fn malformed_requests_pass_where_an_option_says_so() {
    let at = echo();
    for option in ["", " option accept-invalid-http-request\n"] {
        let text = format!("{DEFAULTS}listen l\n bind @BIND@\n{option} server s {at}\n");
        let (ours, theirs) = both(&text, |address, _| REQUESTS.iter().map(|r| ask(address, r)).collect::<Vec<_>>());
        let mut different = Vec::new();
        for ((ours, theirs), request) in ours.iter().zip(&theirs).zip(REQUESTS) {
            // 2.6 accepts NULs in values without the option, 3.2 only with it.
            if option.is_empty() && request.contains(&0) {
                assert!(ours.starts_with("HTTP/1.1 400 "), "{ours}");
                continue;
            }
            // The name RTSP is not passed on, but the version's numbers are.
            let (ours, theirs) = (lower_names(ours), lower_names(theirs).replace("RTSP/", "HTTP/"));
            different.extend((ours != theirs).then(|| format!("{}\n{ours}\n{theirs}", request.escape_ascii())));
        }
        assert!(different.is_empty(), "{option}{}", different.join("\n"));
        assert_eq!(ours[4].starts_with("HTTP/1.1 200"), !option.is_empty(), "{}", ours[4]);
    }
    // The current name of the option. A version with other digits is passed on as an existing version of HTTP.
    let text =
        format!("{DEFAULTS}listen l\n bind @BIND@\n option accept-unsafe-violations-in-http-request\n server s {at}\n");
    let said = ours(&text, |address, _| ask(address, b"GET /a#b HTTP/1.10\r\nHost: h\r\n\r\n"));
    assert!(said.contains("GET /a#b HTTP/1.0\r\n"), "{said}");
}

#[test]
fn malformed_responses_pass_where_an_option_says_so() {
    let responses: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\nX Y: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
    ];
    let at = answering(move |head| {
        let place = head.iter().find(|byte| byte.is_ascii_digit()).map_or(0, |digit| usize::from(digit - b'0'));
        responses[place].to_vec()
    });
    for option in ["", " option accept-invalid-http-response\n"] {
        let text = format!("{DEFAULTS}listen l\n bind @BIND@\n{option} server s {at}\n");
        let (ours, theirs) = both(&text, |address, _| {
            let get = |place| format!("GET /{place} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").into_bytes();
            (0..responses.len()).map(|place| ask(address, &get(place))).collect::<Vec<_>>()
        });
        let mut different = Vec::new();
        for ((ours, theirs), response) in ours.iter().zip(&theirs).zip(responses) {
            if option.is_empty() && response.contains(&0) {
                assert!(ours.starts_with("HTTP/1.1 502 "), "{ours}");
                continue;
            }
            let (ours, theirs) = (lower_names(ours), lower_names(theirs));
            different.extend((ours != theirs).then(|| format!("{}\n{ours}\n{theirs}", response.escape_ascii())));
        }
        assert!(different.is_empty(), "{option}{}", different.join("\n"));
        assert_eq!(ours[0].starts_with("HTTP/1.1 200"), !option.is_empty(), "{}", ours[0]);
    }
}

#[test]
fn trailers_are_dropped_where_an_option_says_so() {
    let at = origin(|mut stream| {
        let Some(head) = read_head(&mut stream) else { return };
        let mut body = Vec::new();
        let mut byte = [0];
        // A body of one chunk ends with an empty line, with or without trailers before it.
        while !body.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
            body.push(byte[0]);
        }
        let seen = String::from_utf8_lossy(&body).contains("x-up");
        let chunked = String::from_utf8_lossy(&head).contains("chunked");
        let answer = format!(
            "HTTP/1.1 200 OK\r\nX-Seen: {chunked} {seen}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Down: \
             1\r\n\r\n"
        );
        let _ = stream.write_all(answer.as_bytes());
    });
    let post = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Up: 1\r\n\r\n";
    let talk = |options: &str| {
        ours(&format!("{DEFAULTS}listen l\n bind @BIND@\n{options} server s {at}\n"), |address, _| ask(address, post))
    };
    for (options, up, down) in [
        ("", true, true),
        (" option http-drop-request-trailers\n", false, true),
        (" option http-drop-response-trailers\n", true, false),
    ] {
        let said = talk(options);
        assert!(said.contains(&format!("x-seen: true {up}\r\n")), "{options}{said}");
        assert!(
            said.ends_with(if down { "ok\r\n0\r\nx-down: 1\r\n\r\n" } else { "ok\r\n0\r\n\r\n" }),
            "{options}{said}"
        );
    }
}
