//! One configuration, two proxies: this one in this process and Debian's haproxy, with the same clients and origins.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use sluicegate_testkit::{Haproxy, Listening, wait_for};

use crate::server::fixture::Whole;

/// Waits until a proxy has logged this number of lines, and returns them.
pub type Logged<'a> = &'a dyn Fn(usize) -> Vec<String>;

/// Runs `talk` with each proxy's address of `@BIND@` and log `@LOG@`, with this proxy first.
pub fn both<T>(text: &str, talk: impl Fn(&str, Logged<'_>) -> T) -> (T, T) {
    (ours(text, &talk), theirs(text, &talk))
}

/// Like [`both`], with this proxy only.
pub fn ours<T>(text: &str, talk: impl Fn(&str, Logged<'_>) -> T) -> T {
    let whole = Whole::start(&text.replace("@BIND@", "127.0.0.1:1"), 1);
    talk(&whole.address(), &|count| whole.log_lines(count))
}

/// Like [`both`], with haproxy only.
pub fn theirs<T>(text: &str, talk: impl Fn(&str, Logged<'_>) -> T) -> T {
    theirs_after("global\n", text, talk)
}

/// Like [`theirs`], after a `global` section.
pub fn theirs_after<T>(global: &str, text: &str, talk: impl Fn(&str, Logged<'_>) -> T) -> T {
    let listening = Listening::new();
    let text = text.replace("@BIND@", &listening.word()).replace("@LOG@", "stdout");
    let haproxy = Haproxy::start(&format!("{global} nbthread 1\n{text}"), &[&listening]);
    let logged = |count| {
        wait_for("haproxy's log", || {
            let output = haproxy.program.output();
            // Messages of the program itself begin with a bracket.
            let lines: Vec<_> = output.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        })
    };
    talk(&listening.address(), &logged)
}

/// Converts the text that haproxy 2.6 sends for an `lf-string` to that of 3.2: 2.6 encodes control characters in it, as
/// in a log line, 3.2 does not.
pub fn unencoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code =
            part.get(..2).filter(|digits| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F')));
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(code) if code.is_ascii_control() => {
                plain.push(code.into());
                plain.push_str(&part[2..]);
            }
            _ => {
                plain.push('%');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// Starts a server that passes every connection to `serve`, each on a thread of its own.
pub fn origin(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), serve) = (stream, serve.clone()) else { return };
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads a head to its end; returns `None` at the connection's end.
pub fn read_head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") || head.len() < 13 {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(head)
}

/// Starts a server that answers every request with the result of `answer` for its head, which other bytes may precede.
pub fn answering(answer: impl Fn(&[u8]) -> Vec<u8> + Clone + Send + 'static) -> SocketAddr {
    origin(move |mut stream| {
        while let Some(head) = read_head(&mut stream) {
            if stream.write_all(&answer(&head)).is_err() {
                return;
            }
        }
    })
}
