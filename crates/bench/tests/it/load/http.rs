//! HTTP against the demo origin and against servers that count.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use sluicegate_bench::origin;
use sluicegate_testkit::Listening;

use super::{run, run_with};

/// Starts the demo origin; returns its `http://ADDRESS`.
pub(super) fn demo() -> String {
    let listening = Listening::new();
    let url = format!("http://{}", listening.address());
    origin::spawn(listening.listener, 1).expect("startable");
    url
}

/// Starts a server that answers every request, and reports the request's head and the number of its connection.
fn telling(accept: impl Fn() -> Option<Box<dyn Stream>> + Send + 'static) -> mpsc::Receiver<(usize, String)> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for number in 0.. {
            let Some(mut stream) = accept() else { return };
            let tell = tell.clone();
            std::thread::spawn(move || {
                let (mut received, mut part) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut part) {
                    received.extend_from_slice(&part[..count]);
                    while let Some(at) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                        let head = String::from_utf8_lossy(&received[..at]).into_owned();
                        received.drain(..at + 4);
                        let _ = tell.send((number, head));
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    told
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub(super) fn telling_tcp(address: &str) -> (String, mpsc::Receiver<(usize, String)>) {
    let listener = TcpListener::bind(address).expect("a loopback port");
    let address = listener.local_addr().expect("bound").to_string();
    let told = telling(move || listener.accept().ok().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>));
    (address, told)
}

#[test]
fn the_servers_count_is_the_clients() {
    for words in ["", "-t 2", "-P 5", "-r 2000", "-t 3 -r 2000 -P 2 --arrivals exponential", "--no-keep-alive"] {
        let (address, told) = telling_tcp("127.0.0.1:0");
        let urls = [format!("http://{address}/a"), format!("http://{address}/b?__key__")];
        let words = format!("http -c 6 -n 500 --json --key-pattern sequential {words}");
        let ran = run_with(&words, &[&urls[0], &urls[1]]);
        let fields = ran.fields();
        fields.balance();
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
        assert_eq!(fields.count("requests.answered"), 500, "{words}");
        assert_eq!(fields.count("statuses.200"), 500);
        let heads: Vec<(usize, String)> = told.try_iter().collect();
        assert_eq!(heads.len(), 500, "{words}");
        let first = heads.iter().filter(|(_, head)| head.starts_with("GET /a HTTP/1.1\r\n")).count();
        assert_eq!(first, 250, "{words}: each URL in its turn");
        let connections = heads.iter().map(|(number, _)| number).max().unwrap() + 1;
        assert_eq!(connections as u64, fields.count("connections.made"), "{words}");
        assert_eq!(connections, if words.contains("no-keep-alive") { 500 } else { 6 }, "{words}");
    }
}

#[test]
fn an_open_loop_sends_what_it_intends() {
    let url = demo() + "/fast";
    // However busy the machine is, rate times time requests are due, and each is sent or reported as unsent. Even if
    // the machine stalls for seconds, there is time to send all of them.
    let ran = run_with("http -c 8 -t 2 -r 40 -d 5s -w 1s --json", &[&url]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.intended"), 200, "{}", ran.out);
    assert_eq!(fields.count("warmup.sent"), 40);
    assert_eq!(fields.count("send_lag_us.count"), fields.count("requests.sent"));
    assert_eq!(fields.count("service_us.count"), fields.count("requests.answered"));
    assert!(fields.number("latency_us.max") >= fields.number("service_us.min"));
    assert_eq!(fields.text("settings.loop"), "open");
}

#[test]
fn a_slow_server_makes_sends_late_and_that_is_said() {
    let url = demo() + "/delay/20";
    // One connection carries at most 50 requests a second, and 200 are due.
    let ran = run_with("http -c 1 -r 200 -d 4s --json", &[&url]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.intended"), 800);
    assert!(fields.count("requests.unsent") >= 400, "{}", ran.out);
    assert!(fields.count("late_sends.by_connections") >= 10);
    assert!(fields.number("latency_us.p99") > 10.0 * fields.number("service_us.min"), "{}", ran.out);
    assert!(fields.0.values().any(|text| text.contains("all 1 connections waited for answers")), "{}", ran.out);
    assert!(fields.0.values().any(|text| text.contains("were never sent")));
}

#[test]
fn warm_up_is_sent_and_not_counted() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let ran = run_with("http -c 2 -w 2s -n 10 --json", &[&format!("http://{address}/")]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.answered"), 10);
    let warmup = fields.count("warmup.answered");
    assert!(warmup > 0);
    assert_eq!(told.try_iter().count() as u64, 10 + warmup);
}

#[test]
fn what_is_sent_is_what_was_said() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let url = format!("http://{address}/x/__key__");
    let more = ["-H", "Host: other", "-H", "X-Key: __key__", "-m", "DELETE", &url];
    let ran = run_with("http -c 1 -n 2 --key-min 7 --key-pattern sequential --key-prefix k --json", &more);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let heads: Vec<String> = told.try_iter().map(|(_, head)| head).collect();
    let agent = concat!("User-Agent: sluicegate-bench/", env!("CARGO_PKG_VERSION"));
    assert_eq!(heads[0], format!("DELETE /x/k7 HTTP/1.1\r\nHost: other\r\nX-Key: k7\r\n{agent}"));
    assert!(heads[1].contains("/x/k8"));
}

#[test]
fn bodies_come_from_words_and_files() {
    let url = demo() + "/echo";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("body");
    std::fs::write(&path, [0, 255, b'_', b'_'].repeat(50_000)).unwrap();
    let ran = run_with("http -c 2 -n 10 --json --body-file", &[path.to_str().unwrap(), &url]);
    let fields = ran.fields();
    assert_eq!((ran.code, fields.count("bytes.bodies")), (0, 10 * 200_000), "{}", ran.err);
    assert!(fields.count("bytes.sent") > 10 * 200_000);
    let ran =
        run_with("http -c 2 -n 10 --json -P 3 --data-size 5 --body a=__data__&k=__key__ --key-min 999999", &[&url]);
    assert_eq!(ran.fields().count("bytes.bodies"), 10 * 16, "{}", ran.out);
    let ran = run_with("http -c 1 -n 5 -m HEAD --json", &[&(demo() + "/bytes/1000")]);
    assert_eq!((ran.code, ran.fields().count("bytes.bodies")), (0, 0));
}

#[test]
fn addresses_of_every_family() {
    let (address, told) = telling_tcp("[::1]:0");
    assert_eq!(run_with("http -6 -n 5 -c 1", &[&format!("http://{address}/")]).code, 0);
    assert_eq!(told.try_iter().count(), 5);

    let (address, _told) = telling_tcp("127.0.0.1:0");
    let port = address.rsplit(':').next().unwrap();
    // A name with two addresses and a server behind one of them.
    let ran = run(&format!("http -n 5 -c 1 --json http://localhost:{port}/"));
    assert_eq!((ran.code, ran.fields().count("requests.failed")), (0, 0), "{}", ran.err);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let told = telling(move || listener.accept().ok().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>));
    let connect = format!("unix:{}", path.display());
    for words in ["", "--no-keep-alive"] {
        let ran = run_with(&format!("http -n 5 -c 1 --json {words} --connect"), &[&connect, "http://a/", "http://b/"]);
        assert_eq!((ran.code, ran.fields().count("requests.answered")), (0, 5), "{}", ran.err);
    }
    assert!(told.try_iter().any(|(_, head)| head.contains("\r\nHost: b\r\n")));
}

#[test]
fn urls_come_from_a_file() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("urls");
    std::fs::write(&path, format!("# two\nhttp://{address}/1\n\n  http://{address}/2\r\n")).unwrap();
    let ran = run_with("http -c 1 -n 4 --urls", &[path.to_str().unwrap(), &format!("http://{address}/3")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let targets: Vec<String> =
        told.try_iter().map(|(_, head)| head.split(' ').nth(1).unwrap_or_default().to_owned()).collect();
    assert_eq!(targets, ["/1", "/2", "/3", "/1"]);
}

/// There is a line for each interval of the test and none after its end, even if responses arrive late.
#[test]
fn live_lines_are_those_of_the_test() {
    let base = demo();
    for (words, path, expected) in [
        ("-d 600ms -i 200ms -c 2", "/delay/90", vec!["0.2 s", "0.4 s", "0.6 s"]),
        ("-d 500ms -i 200ms -c 2 -t 2", "/delay/70", vec!["0.2 s", "0.4 s", "0.5 s"]),
        ("-d 600ms -i 200ms -c 1", "/delay/500", vec!["0.2 s", "0.4 s", "0.6 s"]),
    ] {
        let ran = run(&format!("http {words} {base}{path}"));
        let lines: Vec<&str> = ran.err.lines().filter(|line| line.contains("answered/s")).collect();
        let times: Vec<String> = lines
            .iter()
            .map(|line| line.split("  ").find(|part| !part.is_empty()).unwrap_or_default().trim().to_owned())
            .collect();
        assert_eq!(times, expected, "{words}: {}", ran.err);
    }
}

/// Each URL walks sequential keys by itself.
#[test]
fn each_url_has_a_sequence_of_its_own() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let url = format!("http://{address}");
    let words =
        format!("http -c 1 -n 6 --key-min 1 --key-max 9 --key-pattern sequential {url}/a/__key__ {url}/b/__key__");
    assert_eq!(run(&words).code, 0);
    let targets: Vec<String> =
        told.try_iter().filter_map(|(_, head)| head.split(' ').nth(1).map(str::to_owned)).collect();
    assert_eq!(targets, ["/a/1", "/b/1", "/a/2", "/b/2", "/a/3", "/b/3"]);
}
