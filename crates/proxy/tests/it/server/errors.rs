//! `show errors`, compared with Debian's haproxy after the same invalid messages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, wait_for};

use super::fixture::Whole;

/// Starts a server whose answer depends on the request's path.
fn server() -> std::net::SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let count = stream.read(&mut request).unwrap_or(0);
            let answer: &[u8] = match request[..count].get(5) {
                Some(b'n') => b"HTTP/1.1 200 OK\r\nBad Header: x\r\nContent-Length: 0\r\n\r\n",
                Some(b'g') => b"GARBAGE\xff\x01\r\n\r\n",
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            };
            let _ = stream.write_all(answer);
        }
    });
    address
}

/// Returns the lines without dates, ports, the state of haproxy's parser and the size of its buffer's reserve.
fn masked(answer: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in answer.lines().filter(|line| !line.contains("flags 0x") && !line.contains("chunk len")) {
        let line = match (line.find('['), line.find(']')) {
            (Some(from), Some(to)) => format!("{}[DATE]{}", &line[..from], &line[to + 1..]),
            _ => line.to_owned(),
        };
        let line = match line.find("src 127.0.0.1:") {
            Some(at) => format!("{}src", &line[..at]),
            None => line,
        };
        if !line.contains("H1 msg state") {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn the_last_invalid_messages_are_shown_as_by_haproxy() {
    let server = server();
    let front = Listening::new();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let theirs = directory.path().join("stats.sock");
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend www\n bind @BIND@\n \
         default_backend app\nbackend app\n server one {server}\n"
    );
    let global = format!("global\n nbthread 1\n stats socket {} level admin\n", theirs.display());
    let _haproxy = Haproxy::start(&format!("{global}{}", text.replace("@BIND@", &front.word())), &[&front]);
    wait_for("haproxy's socket", || UnixStream::connect(&theirs).ok());
    let own = format!("global\n stats socket /nowhere level admin\n{text}");
    let whole = Whole::start(&own.replace("@BIND@", "127.0.0.1:1"), 1);
    let ask = |line: &str| [&whole.stats, &theirs].map(|socket| masked(&Sluicegate::stats(socket, line)));
    let mut count = 0;
    let [ours, other] = ask("show errors");
    assert_eq!(ours, other);
    for sent in [
        "NONSENSE\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: h\r\nBad Name: v\r\nFoo: bar\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5x\r\n\r\nhello",
        "GET /x\\y\u{1b} HTTP/1.1\r\nHost: h\r\n\r\n",
        &format!("GET /x HTTP/1.1\r\nLong: {}\r\nTab\t: \u{1}\\ \r\n\r\n", "a".repeat(132)),
        "GET /names HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /garbage HTTP/1.1\r\nHost: h\r\n\r\n",
    ] {
        for address in [whole.address(), front.address()] {
            let mut client = TcpStream::connect(address).expect("listening");
            client.write_all(sent.as_bytes()).expect("writable");
            client.shutdown(std::net::Shutdown::Write).expect("open");
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            assert!(answer.starts_with(b"HTTP/1.1 4") || answer.starts_with(b"HTTP/1.1 5"), "{sent:?}");
        }
        count += 1;
        for line in ["show errors", "show errors app", "show errors www response", "show errors -1 request"] {
            let [ours, other] = ask(line);
            assert_eq!(ours, other, "{line} after {sent:?}");
            assert_eq!(ours[0], format!("Total events captured on [DATE] : {count}"));
        }
    }
    let [ours, other] = ask("show errors nosuch");
    assert_eq!((ours, &other[0][..]), (other.clone(), "No such proxy."));
    assert_eq!(Sluicegate::stats(&whole.stats, "user; show errors"), "\nPermission denied\n\n");
}
