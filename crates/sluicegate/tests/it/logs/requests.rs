//! The lines of requests that the process makes itself.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};

use sluicegate_testkit::{Client, Haproxy};

use super::{Starter, Target, free_port, line, run};

/// Starts a server whose answer depends on the path.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(stream: std::net::TcpStream) {
    let mut stream = std::io::BufReader::new(stream);
    let first = line(&mut stream);
    while line(&mut stream).len() > 2 {}
    let text = match first.split(' ').nth(1).unwrap_or_default() {
        "/garbage" => "no answer\r\n\r\n",
        "/close" => "",
        "/cut" | "/late" => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab",
        _ if first.starts_with("HEAD") => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n",
        _ => "HTTP/1.1 404 Nothing\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd",
    };
    let _ = stream.get_mut().write_all(text.as_bytes());
    if matches!(first.split(' ').nth(1), Some("/late" | "/silent")) {
        // Until the client ends the connection.
        let _ = std::io::Read::read(&mut stream, &mut [0]);
    }
}

/// Masks the date, and times but -1: `-:- [DATE] <HTTPCLIENT> -/- TIMES …`.
fn masked(logged: &str) -> String {
    let mut words: Vec<String> = logged.trim_end().split(' ').map(str::to_owned).collect();
    "[DATE]".clone_into(&mut words[1]);
    words[4] = words[4].split('/').map(|time| if time == "-1" { time } else { "N" }).collect::<Vec<_>>().join("/");
    words.join(" ")
}

#[test]
fn requests_of_scripts_are_logged_by_the_targets_of_global() {
    let (server, gone) = (server(), free_port());
    let requests = [
        ("get", format!("http://{server}/a?b"), 5_000),
        ("head", format!("http://{server}/"), 5_000),
        ("get", format!("http://{server}/garbage"), 5_000),
        ("get", format!("http://{server}/close"), 5_000),
        ("get", format!("http://{server}/cut"), 5_000),
        ("get", format!("http://{server}/late"), 200),
        ("get", format!("http://127.0.0.1:{gone}/gone"), 5_000),
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("ask.lua");
    let asked: String = requests
        .iter()
        .map(|(method, url, wait)| format!(" core.httpclient():{method}{{url = '{url}', timeout = {wait}}}\n"))
        .collect();
    std::fs::write(&script, format!("core.register_action('ask', {{'http-req'}}, function()\n{asked}end)\n"))
        .expect("written");
    let lines = [None, Some(Haproxy::start_2_8 as Starter)].map(|start| {
        let target = Target::new();
        let text = format!(
            "global\n nbthread 1\n log {} format raw local0\n lua-load {}\n httpclient.retries 1\ndefaults\n mode http\n \
             timeout client 60s\nfrontend f\n bind FRONT\n http-request lua.ask\n http-request return status 200\n",
            target.address(),
            script.display()
        );
        let runner = run(start, &text);
        let mut client = Client::connect(&runner.front.address());
        client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        let lines = requests.each_ref().map(|_| masked(&target.receive()));
        assert_eq!(client.read_response().status, 200);
        lines
    });
    assert_eq!(lines[0], lines[1]);
    let expected = [
        ("N/N/N/N/N 404 58 - - ----", "0", "GET", "/a?b"),
        ("N/N/N/N/N 200 49 - - ----", "0", "HEAD", "/"),
        ("N/N/N/-1/N 502 209 - - PH--", "0", "GET", "/garbage"),
        ("N/N/N/-1/N 502 209 - - SH--", "1", "GET", "/close"),
        ("N/N/N/N/N 200 51 - - SD--", "0", "GET", "/cut"),
        ("N/N/N/N/N 200 51 - - sD--", "0", "GET", "/late"),
        ("N/N/-1/-1/N 503 217 - - SC--", "1", "GET", "/gone"),
    ];
    for (line, (middle, retries, method, path)) in lines[0].iter().zip(expected) {
        assert!(line.starts_with(&format!("-:- [DATE] <HTTPCLIENT> -/- {middle} ")), "{line}");
        assert!(line.contains(&format!("/0/0/0/{retries} 0/0 {{}} \"{method} http://")), "{line}");
        assert!(line.ends_with(&format!("{path} HTTP/1.1\"")), "{line}");
    }
}
