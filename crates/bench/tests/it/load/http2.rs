//! HTTP/2 against nginx, whose log says what it saw, against the origin, and against servers that misbehave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use sluicegate_bench::origin;
use sluicegate_testkit::{Certificates, Listening};
use sluicegate_wire::http::{Framing, Message, Version};
use sluicegate_wire::http2::{Connection, ErrorCode, Event, Progress, Settings, StreamKey};

use super::nginx::Nginx;
use super::tls::s_server;
use super::{Fields, run_with};

/// Requests by any number of streams and connections, over TLS and without: the log has them all.
#[test]
fn nginx_sees_each_request() {
    let certificates = Certificates::new();
    for (listen, scheme) in [("ssl http2", "https"), ("http2", "http")] {
        let nginx = Nginx::start(&certificates, listen, "");
        let mut seen = 0;
        for (words, connections) in [
            ("", 5),
            ("--streams 20", 5),
            ("-t 2 --streams 7", 5),
            ("--streams 10 -r 2000", 5),
            ("-t 2 -r 2000 --streams 3 --arrivals exponential", 5),
            ("--no-keep-alive", 300),
        ] {
            let url = format!("{scheme}://127.0.0.1:{}", nginx.port);
            let urls = [format!("{url}/a"), format!("{url}/b?__key__")];
            let words = format!("http -c 5 -n 300 --http2 --json --key-pattern sequential {words}");
            let insecure = if scheme == "https" { " --insecure" } else { "" };
            let ran = run_with(&format!("{words}{insecure}"), &[&urls[0], &urls[1]]);
            let fields = ran.fields();
            fields.balance();
            assert_eq!((ran.code, fields.count("statuses.200")), (0, 300), "{words}: {}{}", ran.out, ran.err);
            assert_eq!(fields.count("bytes.bodies"), 300 * 5);
            assert_eq!(fields.count("connections.made"), connections, "{words}");
            assert_eq!(fields.text("settings.http_version"), "2");
            if scheme == "https" {
                assert_eq!(fields.text("tls.parameters.0.alpn"), "h2");
            }
            let log = nginx.log(seen + 300);
            assert_eq!(log.len(), seen + 300, "{words}");
            let lines = &log[seen..];
            seen += 300;
            assert!(lines.iter().all(|line| line[5] == "HTTP/2.0" && line[9] == "200"), "{lines:?}");
            assert_eq!(lines.iter().filter(|line| line[7] == "/a").count(), 150, "{words}");
            let numbers: std::collections::BTreeSet<&str> = lines.iter().map(|line| line[6].as_str()).collect();
            assert_eq!(numbers.len() as u64, connections, "{words}");
        }
    }
}

/// The reaction of a server to a request.
#[derive(Clone, Copy)]
enum Act {
    Answer,
    /// Announces a body of three bytes and sends two.
    Wrong,
    Reset(ErrorCode),
    /// Answers, and accepts no other request on the connection.
    Last,
    /// Closes the connection.
    Close,
    Silence,
}

/// The events that a server recorded.
#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    resets: AtomicU64,
    body: AtomicU64,
}

/// Starts a server that does `act` with each request, by its number over all connections; returns its address, the
/// events that it records, and the heads.
fn server(settings: Settings, act: fn(u64) -> Act) -> (String, Arc<Seen>, mpsc::Receiver<String>) {
    let listening = Listening::new();
    let address = listening.address();
    let seen = Arc::new(Seen::default());
    let (tell, told) = mpsc::channel();
    let server_seen = seen.clone();
    std::thread::spawn(move || {
        for stream in listening.listener.incoming().map_while(Result::ok) {
            let (seen, tell) = (server_seen.clone(), tell.clone());
            std::thread::spawn(move || serve(stream, settings, &seen, &tell, act));
        }
    });
    (address, seen, told)
}

fn serve(mut stream: TcpStream, settings: Settings, seen: &Seen, tell: &mpsc::Sender<String>, act: fn(u64) -> Act) {
    let mut connection = Connection::server(settings);
    let (mut message, mut part) = (Message::new(), [0; 16 * 1024]);
    while let Ok(count @ 1..) = stream.read(&mut part) {
        let mut at = 0;
        loop {
            connection.begin_turn();
            let Ok((used, progress)) = connection.receive(&part[at..count], &mut message) else { return };
            at += used;
            let complete = match progress {
                Progress::Event(Event::Request { stream, end, .. }) => {
                    let fields: Vec<String> = message
                        .fields()
                        .map(|(_, name, value)| {
                            format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
                        })
                        .collect();
                    let text = String::from_utf8_lossy;
                    let line = format!("{} {}", text(message.method()), text(message.target()));
                    let _ = tell.send(format!("{line}\n{}", fields.join("\n")));
                    end.then_some(stream)
                }
                Progress::Event(Event::Data { stream, range }) => {
                    seen.body.fetch_add(range.len() as u64, Ordering::SeqCst);
                    connection.consume(stream, range.len());
                    None
                }
                Progress::Event(Event::End { stream }) => Some(stream),
                Progress::Event(Event::Reset { stream, .. }) => {
                    seen.resets.fetch_add(1, Ordering::SeqCst);
                    connection.release(stream);
                    None
                }
                Progress::Event(_) => None,
                Progress::Idle => break,
                Progress::Blocked(_) => panic!("blocked"),
            };
            if let Some(key) = complete
                && !answer(&mut connection, key, act(seen.requests.fetch_add(1, Ordering::SeqCst)))
            {
                let _ = stream.write_all(connection.output());
                let _ = stream.shutdown(Shutdown::Write);
                // The rest of the client's data is read: closing with unread data would reset the connection.
                while stream.read(&mut part).is_ok_and(|count| count > 0) {}
                return;
            }
        }
        if stream.write_all(connection.output()).is_err() {
            return;
        }
        connection.wrote(connection.output().len());
    }
}

/// Returns false if the connection ends.
fn answer(connection: &mut Connection, key: StreamKey, act: Act) -> bool {
    let mut message = Message::new();
    message.set_response(Version::Http2, 200, b"OK");
    match act {
        Act::Answer | Act::Last => {
            connection.send_response(key, &message, Framing::Length(2), false).unwrap();
            connection.send_data(key, b"ok", true);
            if matches!(act, Act::Last) {
                connection.goaway(key.id(), ErrorCode::NO_ERROR);
            }
            connection.release(key);
        }
        Act::Wrong => {
            connection.send_response(key, &message, Framing::Length(3), false).unwrap();
            connection.send_data(key, b"ok", true);
            connection.release(key);
        }
        Act::Reset(code) => {
            connection.reset(key, code);
            connection.release(key);
        }
        Act::Close => return false,
        Act::Silence => {}
    }
    true
}

/// Sends 20 requests to a server that does `act`; returns the report after the checks that apply to every run.
fn check(act: fn(u64) -> Act, words: &str) -> (Fields, Arc<Seen>) {
    let (address, seen, _told) = server(Settings::default(), act);
    let ran = run_with(&format!("http --http2 -n 20 --json {words}"), &[&format!("http://{address}/")]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.intended"), 20);
    let read = seen.requests.load(Ordering::SeqCst);
    let kinds = ["failures.dropped.count", "failures.closed.count", "failures.timeout.count"];
    let unread: u64 = kinds.into_iter().map(|kind| fields.count(kind)).sum();
    let sent = fields.count("requests.sent");
    assert!(read <= sent && read + unread >= sent, "{read} of {sent} came, {unread} may not have");
    (fields, seen)
}

#[test]
fn a_stream_fails_alone() {
    for words in ["-c 2", "-c 1 --streams 4", "-c 2 --streams 3 -r 500"] {
        let act = |number| if number % 4 == 3 { Act::Reset(ErrorCode::CANCEL) } else { Act::Answer };
        let (fields, _) = check(act, words);
        assert_eq!((fields.count("failures.reset.count"), fields.count("requests.answered")), (5, 15), "{words}");
        assert_eq!(fields.text("failures.reset.example"), "the server has reset the stream: CANCEL");
        assert_eq!(fields.count("connections.made_again"), 0, "{words}");

        let (fields, seen) = check(|number| if number % 4 == 3 { Act::Wrong } else { Act::Answer }, words);
        assert_eq!((fields.count("failures.bad_response.count"), fields.count("requests.answered")), (5, 15));
        let text = "malformed response on a stream: PROTOCOL_ERROR";
        assert_eq!(fields.text("failures.bad_response.example"), text);
        assert_eq!(fields.count("connections.made_again"), 0, "{words}");
        // The server has closed these streams, so it ignores the client's resets.
        assert_eq!(seen.resets.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_request_whose_time_is_up_is_cancelled_and_the_others_go_on() {
    let act = |number| if number % 10 == 3 { Act::Silence } else { Act::Answer };
    let (fields, seen) = check(act, "-c 1 --streams 4 --timeout 2s");
    // A machine that stands still for as long is too late for others as well.
    let late = fields.count("failures.timeout.count");
    assert!((2..20).contains(&late), "{late}");
    assert_eq!(fields.count("requests.answered"), 20 - late);
    assert_eq!(fields.count("connections.made"), 1);
    sluicegate_testkit::wait_for("the resets", || (seen.resets.load(Ordering::SeqCst) >= 2).then_some(()));
    // A connection on which nothing arrives is closed.
    let (fields, _) = check(|_| Act::Silence, "-c 1 --streams 4 --timeout 20ms");
    assert_eq!((fields.count("requests.answered"), fields.count("failures.dropped.count")), (0, 0));
    assert_eq!(fields.count("failures.timeout.count"), 20);
}

#[test]
fn connections_that_their_server_ends_are_made_again() {
    // If the server ends a connection between two requests, no request is lost.
    let (fields, _) = check(|number| if number % 5 == 4 { Act::Last } else { Act::Answer }, "-c 1");
    assert_eq!((fields.count("requests.answered"), fields.count("connections.made")), (20, 4));
    let act = |number| if number % 5 == 4 { Act::Last } else { Act::Answer };
    let (fields, _) = check(act, "-c 1 --streams 4");
    let dropped = fields.count("failures.dropped.count");
    assert_eq!(fields.count("requests.answered") + dropped, 20);
    if dropped > 0 {
        assert!(fields.text("failures.dropped.example").contains("has not processed it"));
    }
    // All requests of a connection that is closed have the same fate.
    let (fields, _) = check(|number| if number % 5 == 4 { Act::Close } else { Act::Answer }, "-c 1 --streams 4");
    let closed = fields.count("failures.closed.count") + fields.count("failures.short.count");
    assert!(closed >= 2, "{closed}");
    assert_eq!(fields.count("requests.answered") + closed, 20);
    assert!(fields.count("connections.made_again") >= 2);
}

#[test]
fn the_servers_limit_of_streams_is_kept_and_reported() {
    let settings = Settings { max_concurrent_streams: 2, ..Settings::default() };
    let (address, seen, _told) = server(settings, |_| Act::Answer);
    let ran = run_with("http --http2 -c 2 -n 200 --streams 10 --json", &[&format!("http://{address}/")]);
    let fields = ran.fields();
    assert_eq!((fields.count("requests.answered"), seen.requests.load(Ordering::SeqCst)), (200, 200), "{}", ran.out);
    assert_eq!(fields.count("settings.streams"), 10);
    assert!(fields.text("warnings.0").contains("allows 2 streams on a connection at once, fewer than --streams 10"));
}

#[test]
fn heads_and_bodies_are_those_that_were_asked_for() {
    let (address, seen, told) = server(Settings { initial_window: 10, ..Settings::default() }, |_| Act::Answer);
    let url = format!("http://{address}/x/__key__?a=__data__");
    let words = "http --http2 -c 1 -n 2 --streams 2 --json --key-min 7 --key-pattern sequential --data-size 3";
    let body = format!("id=__key__&{}", "y".repeat(1000));
    let ran = run_with(words, &["-m", "PUT", "-H", "X-Key: __key__", "-b", &body, &url]);
    assert_eq!((ran.code, ran.fields().count("requests.answered")), (0, 2), "{}{}", ran.out, ran.err);
    assert_eq!(seen.body.load(Ordering::SeqCst), 2 * 1005);
    let heads: Vec<String> = told.try_iter().collect();
    let agent = concat!("user-agent: sluicegate-bench/", env!("CARGO_PKG_VERSION"));
    for (head, key) in heads.iter().zip([7, 8]) {
        let fields = format!("host: {address}\nx-key: {key}\n{agent}\ncontent-length: 1005");
        assert_eq!(*head, format!("PUT http://{address}/x/{key}?a=xxx\n{fields}"));
    }
    // Another authority, and no body.
    let url = format!("http://{address}/");
    run_with("http --http2 -c 1 -n 1", &["-H", "Host: other.example", &url]);
    assert!(told.recv().unwrap().starts_with("GET http://other.example/\nhost: other.example\n"));
    run_with("http --http2 -c 1 -n 1 -m HEAD", &[&url]);
    assert!(told.recv().unwrap().starts_with(&format!("HEAD http://{address}/\n")));
}

#[test]
fn large_bodies_pass_both_ways() {
    let certificates = Certificates::new();
    let (plain, secure) = (Listening::new(), Listening::new());
    let urls = [format!("http://{}/echo", plain.address()), format!("https://{}/echo", secure.address())];
    let path = |name: &str| std::path::PathBuf::from(certificates.path(name));
    let tls = origin::Tls::new(&path("here.crt"), &path("here.key")).expect("a certificate");
    origin::spawn(plain.listener, 1).expect("startable");
    origin::spawn_tls(secure.listener, 1, tls).expect("startable");
    let directory = tempfile::tempdir().unwrap();
    let body = directory.path().join("body");
    std::fs::write(&body, vec![7; 2_000_000]).unwrap();
    for url in &urls {
        let words = format!("http --http2 -c 2 --streams 3 -n 12 {} --json --body-file", insecure(url));
        let ran = run_with(&words, &[body.to_str().unwrap(), url]);
        let fields = ran.fields();
        fields.balance();
        assert_eq!((ran.code, fields.count("bytes.bodies")), (0, 12 * 2_000_000), "{}{}", ran.out, ran.err);
        assert!(fields.count("bytes.sent") > 12 * 2_000_000);
        let url = url.replace("/echo", "/bytes/3000000");
        let words = format!("http --http2 -c 2 --streams 5 -n 20 {} --json", insecure(&url));
        assert_eq!(run_with(&words, &[&url]).fields().count("bytes.bodies"), 20 * 3_000_000);
        let url = url.replace("/bytes/3000000", "/delay/20");
        let fields = run_with(&words.replace("-n 20", "-r 200 -n 60"), &[&url]).fields();
        assert_eq!((fields.count("requests.answered"), fields.count("statuses.200")), (60, 60));
    }
}

fn insecure(url: &str) -> &'static str {
    if url.starts_with("https") { "--insecure" } else { "" }
}

#[test]
fn servers_without_http2_are_an_error() {
    let certificates = Certificates::new();
    // nginx refuses a client that offers only h2; openssl continues without ALPN.
    let nginx = Nginx::start(&certificates, "ssl", "");
    let (_server, openssl) = s_server(&certificates, &[]);
    for (port, text) in [
        (nginx.port, "received fatal alert: NoApplicationProtocol"),
        (openssl, "the server did not choose the application protocol h2"),
    ] {
        let ran = run_with("http --http2 -c 1 -n 3 --insecure --json", &[&format!("https://127.0.0.1:{port}/")]);
        assert_eq!((ran.code, ran.fields().text("connect_failures.tls.example")), (1, text));
    }
    let nginx = Nginx::start(&certificates, "", "");
    let ran = run_with("http --http2 -c 1 -n 3 --json", &[&format!("http://127.0.0.1:{}/", nginx.port)]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!((ran.code, fields.count("requests.answered")), (1, 0));
    assert!(fields.count("failures.bad_response.count") >= 1, "{}", ran.out);
}
