//! `errorfile` and its kin: the same bytes and the same log line as Debian's haproxy.

use sluicegate_testkit::{Client, Haproxy, Listening, Program, wait_for};

use super::Place;
use crate::start;

/// Everything that a file may be, beside Debian's own ones.
fn write_pages(place: &Place) {
    for (name, text) in [
        ("length.http", "HTTP/1.1 403 No way\r\nX-Foo: Bar\r\nContent-Length: 5\r\n\r\nhello"),
        ("plain.http", "HTTP/1.0 200 Fine\nA: b\nset-cookie: x\n\nbody\n"),
        ("bare.http", "HTTP/1.1 405 Other\r\nX-Foo: Bar\r\nX-Foo: Baz\r\nConnection: close\r\n\r\n"),
        ("close.http", "HTTP/1.1 503 Later\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"),
        ("old.http", "HTTP/1.0 503 Later\r\nContent-Length: 2\r\n\r\nno"),
        ("folded.http", "\r\nHTTP/1.1 503\r\nA: b\r\n  c\r\nContent-Length: 0\r\n\r\n"),
        ("empty.http", ""),
    ] {
        place.write(name, text);
    }
}

fn file(place: &Place, fronts: [&Listening; 2], log: &str) -> String {
    let dir = place.path().display();
    let [one, two] = fronts.map(Listening::word);
    format!(
        "global\n nbthread 1\n{log}defaults\n mode http\n log global\n option httplog\n retries 0\n \
         timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
         http-errors group\n errorfile 403 {dir}/plain.http\n errorfile 429 {dir}/empty.http\n\
         frontend one\n bind {one}\n \
         errorfile 400 /etc/haproxy/errors/400.http\n \
         errorfile 403 /etc/haproxy/errors/403.http\n \
         errorfile 503 /etc/haproxy/errors/503.http\n \
         errorloc 500 /sorry\n errorloc302 501 http://sorry.example/\n errorloc303 502 /later?a=b\n \
         errorfile 410 {dir}/empty.http\n errorfile 405 {dir}/length.http\n errorfiles group 429\n \
         http-request deny if {{ path /403 }}\n \
         http-request deny deny_status 500 if {{ path /500 }}\n \
         http-request deny deny_status 501 if {{ path /501 }}\n \
         http-request deny deny_status 502 if {{ path /502 }}\n \
         http-request deny deny_status 404 if {{ path /404 }}\n \
         http-request deny deny_status 405 if {{ path /405 }}\n \
         http-request deny deny_status 410 if {{ path /410 }}\n \
         http-request deny deny_status 429 if {{ path /429 }}\n \
         http-request return status 503 default-errorfiles if {{ path /default }}\n \
         http-request return errorfile {dir}/length.http if {{ path /length }}\n \
         http-request return status 500 errorfile {dir}/plain.http if {{ path /plain }}\n \
         http-request return errorfile {dir}/bare.http if {{ path /bare }}\n \
         http-request return errorfile {dir}/close.http if {{ path /close }}\n \
         http-request return errorfile {dir}/old.http if {{ path /old }}\n \
         http-request return errorfile {dir}/folded.http if {{ path /folded }}\n \
         http-request return errorfile {dir}/empty.http if {{ path /empty }}\n \
         http-request return status 403 errorfiles group if {{ path /group }}\n \
         http-request return status 404 errorfiles group if {{ path /missing }}\n \
         default_backend refused\n\
         frontend two\n bind {two}\n errorfile 400 {dir}/empty.http\n errorfile 403 {dir}/length.http\n \
         errorfile 503 {dir}/empty.http\n default_backend refused\n\
         backend refused\n errorfile 403 {dir}/plain.http\n http-request deny if {{ path /back }}\n \
         server s 127.0.0.1:1\n"
    )
}

/// No request: whoever reads it answers and closes.
const MALFORMED: &str = "GE T\r\n\r\n";

/// What a client gets that sends this and then ends its side. Behind a malformed request it doesn't: HAProxy, which may
/// read the end together with the request, would take it for the client's abort.
fn conversation(front: &Listening, request: &str) -> String {
    let mut client = Client::connect(&front.address());
    client.send(request);
    if request != MALFORMED {
        client.finish();
    }
    String::from_utf8_lossy(&client.read_to_end()).into_owned()
}

fn conversations(fronts: [&Listening; 2]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for path in [
        "/403", "/500", "/501", "/502", "/404", "/405", "/410", "/429", "/default", "/length", "/plain", "/bare",
        "/close", "/old", "/folded", "/empty", "/group", "/missing", "/back", "/refused",
    ] {
        for (method, version) in [("GET", "1.1"), ("HEAD", "1.1"), ("GET", "1.0")] {
            let request = format!("{method} {path} HTTP/{version}\r\nHost: test\r\n\r\n");
            all.push((format!("one {request:?}"), conversation(fronts[0], &request)));
        }
    }
    for request in ["GET /refused HTTP/1.1\r\nHost: x\r\n\r\n", "GET /back HTTP/1.1\r\nHost: x\r\n\r\n", MALFORMED] {
        all.push((format!("two {request:?}"), conversation(fronts[1], request)));
    }
    // A page that is no whole request's: the built-in one, whatever the files say.
    all.push(("one, no request".to_owned(), conversation(fronts[0], MALFORMED)));
    all
}

/// The log line without date, ports and timers: the frontend, the backend, status, bytes and the ending.
fn log_lines(output: &str, frontend: &str) -> Vec<String> {
    let lines = output.lines().filter(|line| line.contains(&format!("] {frontend} ")));
    let part = |line: &str| -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let from = words.iter().position(|word| *word == frontend).unwrap_or(0);
        let request = line.split('"').nth(1).unwrap_or_default();
        let picked = [from, from + 1, from + 3, from + 4, from + 7].map(|index| words.get(index).copied());
        format!("{:?} {request}", picked.map(|word| word.unwrap_or("?")))
    };
    lines.map(part).collect()
}

/// The lines of both frontends once there are as many as conversations.
fn wait_for_lines(program: &Program, count: usize) -> Vec<String> {
    let mut lines = wait_for("the log", || {
        let output = program.output();
        let lines = [log_lines(&output, "one"), log_lines(&output, "two")].concat();
        (lines.len() >= count).then_some(lines)
    });
    // A line may follow that of the next request.
    lines.sort();
    lines
}

#[test]
fn pages_are_haproxys_to_the_byte() {
    let place = Place::new();
    write_pages(&place);
    let log = " log stdout format raw local0\n";
    let (one, two) = (Listening::new(), Listening::new());
    let server = start(&file(&place, [&one, &two], log), &[&one, &two]);
    let ours = conversations([&one, &two]);
    let our_lines = wait_for_lines(&server.program, ours.len());
    let (one, two) = (Listening::new(), Listening::new());
    let server = Haproxy::start(&file(&place, [&one, &two], log), &[&one, &two]);
    let theirs = conversations([&one, &two]);
    let their_lines = wait_for_lines(&server.program, theirs.len());
    for ((request, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        // Since 2.8 an empty reason is written as the status's own.
        let theirs = theirs.replace("HTTP/1.1 503 \r\n", "HTTP/1.1 503 Service Unavailable\r\n");
        assert_eq!(*ours, theirs, "{request}");
    }
    assert_eq!(our_lines, their_lines);
}
