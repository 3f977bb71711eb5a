//! Access log lines against Debian's haproxy on the same requests, ports, dates and times set aside.

use std::net::{TcpListener, TcpStream};

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use super::fixture::Whole;

/// A server that answers every request of every connection with the same response.
fn server(response: &'static [u8]) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || answer(stream, response));
        }
    });
    address
}

fn answer(mut stream: TcpStream, response: &[u8]) {
    use std::io::{Read, Write};
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            received.drain(..end + 4);
            if stream.write_all(response).is_err() {
                return;
            }
        }
    }
}

/// Client port, date and the numbers of milliseconds are replaced; -1 stays, for it says which phases were reached.
/// So are the counts of sessions, as haproxy may count one that has just ended.
fn normal(line: &str) -> String {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    if line.starts_with("Connect from") {
        let port = line.rfind(':').map_or(line.len(), |at| at);
        return format!("Connect from X{}", &line[port..].trim_start_matches(|c: char| c != ' '));
    }
    words[0] = "CLIENT".to_owned();
    words[1] = "[DATE]".to_owned();
    let times = words[4].split('/').map(|time| if time == "-1" { "-1" } else { "N" });
    words[4] = times.collect::<Vec<_>>().join("/");
    if let Some(counts) = words.iter_mut().skip(5).find(|word| word.matches('/').count() == 4) {
        let own: Vec<_> = counts.split('/').skip(2).collect();
        *counts = format!("N/N/{}", own.join("/"));
    }
    words.join(" ")
}

/// Each step connects, sends its bytes, and reads to the end. Steps go one after the other. In TCP mode the client has to
/// end; after a malformed request haproxy would tell its end from its nonsense or not, as chance has it.
fn converse(address: &str, steps: &[&[u8]], mut logged: impl FnMut(usize) -> Vec<String>) -> Vec<String> {
    let mut lines = Vec::new();
    for (done, step) in steps.iter().enumerate() {
        let mut client = Client::connect(address);
        client.send(step);
        if step.starts_with(b"GET / HTTP/1.0") {
            client.finish();
        }
        client.read_to_end();
        lines = logged(done + 1);
    }
    lines.iter().map(|line| normal(line)).collect()
}

/// `text` with `@BIND@` and `@LOG@`.
fn compare(text: &str, steps: &[&[u8]]) {
    let listening = Listening::new();
    let theirs = text.replace("@BIND@", &listening.word()).replace("@LOG@", "stdout");
    let haproxy = Haproxy::start(&theirs, &[&listening]);
    // Lines of the program itself begin with a bracket.
    let expected = converse(&listening.address(), steps, |count| {
        wait_for("haproxy's log", || {
            let output = haproxy.program.output();
            let lines: Vec<_> = output.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        })
    });
    let whole = Whole::start(&text.replace("@BIND@", "127.0.0.1:1"), 1);
    let ours = converse(&whole.address(), steps, |count| whole.log_lines(count));
    assert_eq!(ours, expected);
}

const DEFAULTS: &str = "global\n log @LOG@ format raw local0 info\ndefaults\n log global\n timeout connect 20ms\n \
                        timeout client 20s\n timeout server 20s\n timeout http-request 20s\n retries 1\n";

#[test]
fn http_lines_are_haproxys() {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let bad = server(b"NONSENSE\r\n\r\n");
    let text = format!(
        "{DEFAULTS} mode http\n option httplog\nfrontend www\n bind @BIND@\n http-request return status 204 if {{ path \
         /local }}\n http-request deny if {{ path /denied }}\n use_backend bad if {{ path /bad }}\n use_backend none \
         if {{ path /none }}\n use_backend refused if {{ path /refused }}\n default_backend good\nbackend good\n \
         server s1 {good}\nbackend bad\n server s1 {bad}\nbackend none\n server s1 {good} disabled\nbackend refused\n \
         server s1 127.0.0.1:1\n"
    );
    compare(
        &text,
        &[
            b"GET /x?y=1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /a\"b#c|{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"POST /post HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
            b"GET /local HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /denied HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /bad HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /refused HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"BROKEN\r\n\r\n",
        ],
    );
}

#[test]
fn tcp_and_default_lines_are_haproxys() {
    let good = server(b"HTTP/1.0 200 OK\r\n\r\nhello");
    let backends = format!("backend good\n server s1 {good}\n");
    let hello: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
    compare(
        &format!("{DEFAULTS} option tcplog\nfrontend tcp\n bind @BIND@\n default_backend good\n{backends}"),
        &[hello],
    );
    compare(
        &format!(
            "{DEFAULTS} option tcplog\nfrontend tcp\n bind @BIND@\n default_backend r\nbackend r\n server s1 \
             127.0.0.1:1\n"
        ),
        &[hello],
    );
    compare(&format!("{DEFAULTS}frontend tcp\n bind @BIND@\n default_backend good\n{backends}"), &[hello]);
}

/// A destination that nobody reads fills up; requests go on, and what could not be kept is counted.
#[test]
fn a_full_pipe_blocks_nobody() {
    let (_read, write) = std::io::pipe().expect("a pipe");
    use std::os::fd::AsRawFd;
    let text = format!(
        "global\n log fd@{} format raw local0\ndefaults\n log global\n mode http\n option httplog\n timeout client \
         20s\nfrontend www\n bind 127.0.0.1:1\n http-request return status 200\n",
        write.as_raw_fd()
    );
    let whole = Whole::start(&text, 1);
    let path = "x".repeat(900);
    let mut client = Client::connect(&whole.address());
    // One pipe, one swapped-out buffer and one that fills: far less than these lines.
    for _ in 0..4_000 {
        assert_eq!(client.get(&format!("/{path}")).status, 200);
    }
    assert!(whole.running.logger.dropped() > 0);
}
