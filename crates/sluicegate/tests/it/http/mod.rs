//! HTTP/1 on the wire: the same bytes through Debian's haproxy and through the binary, in front of a scripted server,
//! and the same bytes expected at both ends.
//!
//! A [`Case`] is data: what the client sends and awaits, and the server's reply to each request. One process of each
//! proxy serves all cases, a `listen` section each. Transcripts are compared after [`normal::normalise`], which removes
//! differences without meaning: the case of field names (haproxy lower-cases them) and where chunks begin.
//!
//! Where HAProxy 3.2 differs from the installed 2.6, or where a difference is wanted, the case says what is expected
//! instead and why.

mod cases;
mod differential;
pub(crate) mod normal;
mod slow;
mod smuggling;
mod splicing;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluicegate_testkit::{Haproxy, Listening, wait_for};

/// The time for which a client waits for the next byte before the transcript records that nothing more arrived.
const QUIET: Duration = Duration::from_secs(12);

/// One conversation.
pub struct Case {
    name: &'static str,
    /// The lines of its `listen` section in addition to `bind` and `server`.
    options: &'static [&'static str],
    client: Vec<Step>,
    server: Vec<Reply>,
    /// Whether all requests of the client are HEAD.
    head: bool,
    /// Whether the transcript must be the same however the client's bytes are split. It need not be if the response to
    /// invalid bytes depends on what was already sent to the server.
    splits: bool,
    /// The expected transcript if it is not that of haproxy 2.6, and the reason.
    instead: Option<(String, &'static str)>,
}

/// A step of the client.
pub enum Step {
    /// Sends this.
    Send(String),
    /// Receives until this has arrived.
    Wait(&'static str),
    /// Waits until the server has received this.
    Seen(&'static str),
    /// Shuts down its sending side, as at the end of every case.
    Finish,
    /// Receives until the proxy closes.
    End,
}

impl Step {
    fn len(&self) -> usize {
        match self {
            Step::Send(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// A step of the server: when `after` has arrived since its last reply, it sends `send` and closes if `close` is set.
pub struct Reply {
    after: &'static str,
    send: String,
    close: bool,
}

fn case(name: &'static str, client: Vec<Step>, server: Vec<Reply>) -> Case {
    Case { name, options: &[], client, server, head: false, splits: false, instead: None }
}

impl Case {
    fn splits(mut self) -> Case {
        self.splits = true;
        self
    }

    fn options(mut self, options: &'static [&'static str]) -> Case {
        self.options = options;
        self
    }

    fn head(mut self) -> Case {
        self.head = true;
        self
    }

    fn instead(mut self, why: &'static str, transcript: impl Into<String>) -> Case {
        self.instead = Some((transcript.into(), why));
        self
    }
}

fn send(bytes: impl Into<String>) -> Step {
    Step::Send(bytes.into())
}

fn wait(text: &'static str) -> Step {
    Step::Wait(text)
}

fn seen(text: &'static str) -> Step {
    Step::Seen(text)
}

fn reply(send: impl Into<String>) -> Reply {
    Reply { after: "\r\n\r\n", send: send.into(), close: false }
}

fn reply_after(after: &'static str, send: impl Into<String>) -> Reply {
    Reply { after, send: send.into(), close: false }
}

fn reply_and_close(send: impl Into<String>) -> Reply {
    Reply { after: "\r\n\r\n", send: send.into(), close: true }
}

/// The scripted server of one case, and the bytes that it has received on each connection.
struct Origin {
    replies: VecDeque<(String, String, bool)>,
    received: Vec<Vec<u8>>,
    /// The ports of the peers.
    peers: Vec<u16>,
    /// The number of connections that are not read to their end yet.
    open: usize,
}

fn start_origin(listener: TcpListener, replies: &[Reply]) -> Arc<Mutex<Origin>> {
    let replies = replies.iter().map(|reply| (reply.after.to_owned(), reply.send.clone(), reply.close)).collect();
    let origin = Arc::new(Mutex::new(Origin { replies, received: Vec::new(), peers: Vec::new(), open: 0 }));
    let shared = origin.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = shared.clone();
            let number = {
                let mut origin = shared.lock().unwrap();
                origin.received.push(Vec::new());
                origin.peers.extend(stream.peer_addr().map(|address| address.port()));
                origin.open += 1;
                origin.received.len() - 1
            };
            std::thread::spawn(move || {
                serve(stream, number, &shared);
                shared.lock().unwrap().open -= 1;
            });
        }
    });
    origin
}

fn serve(mut stream: TcpStream, number: usize, shared: &Mutex<Origin>) {
    stream.set_nodelay(true).unwrap();
    let mut answered = 0;
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut origin = shared.lock().unwrap();
        origin.received[number].extend_from_slice(&buffer[..count]);
        while let Some((after, _, _)) = origin.replies.front() {
            let unanswered = &origin.received[number][answered..];
            let Some(at) = find(unanswered, after.as_bytes()) else { break };
            answered += at + after.len();
            let (_, send, close) = origin.replies.pop_front().unwrap();
            let sent = stream.write_all(send.as_bytes());
            if close || sent.is_err() {
                let _ = stream.shutdown(Shutdown::Write);
                break;
            }
        }
    }
}

/// Waits until everything that was sent by a proxy, which has ended since, has been accepted and read.
fn read_to_end(address: SocketAddr, origin: &Mutex<Origin>) {
    // Connections are accepted in order, so none of the proxy's follows this one.
    let last = TcpStream::connect(address).expect("it listens");
    let port = last.local_addr().expect("bound").port();
    wait_for("the end of the connections to a server", || {
        let origin = origin.lock().unwrap();
        // The connection of this function is still open.
        (origin.peers.last() == Some(&port) && origin.open == 1).then_some(())
    });
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    if what.is_empty() {
        return Some(0);
    }
    bytes.windows(what.len()).position(|window| window == what)
}

/// Runs the client's side; returns what it received, with a note if the proxy did not close at the end.
fn converse(address: &str, steps: &[Step], origin: &Mutex<Origin>) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the proxy listens");
    stream.set_read_timeout(Some(QUIET)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 65536];
    let mut seen = 0;
    'steps: for step in steps {
        match step {
            Step::Send(bytes) => {
                // The proxy may have closed already; what it sent before counts.
                let _ = stream.write_all(bytes.as_bytes());
            }
            Step::Finish => {
                let _ = stream.shutdown(Shutdown::Write);
            }
            Step::End => {
                receive_to_end(&mut stream, &mut received);
                return received;
            }
            Step::Seen(text) => {
                let deadline = Instant::now() + QUIET;
                let has_seen = |origin: &Origin| origin.received.iter().any(|all| find(all, text.as_bytes()).is_some());
                while !has_seen(&origin.lock().unwrap()) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            Step::Wait(text) => loop {
                if let Some(at) = find(&received[seen..], text.as_bytes()) {
                    seen += at + text.len();
                    break;
                }
                match stream.read(&mut buffer) {
                    Ok(0) => return received,
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                    Err(_) => {
                        received.extend_from_slice(format!("[waits for {text:?}]").as_bytes());
                        break 'steps;
                    }
                }
            },
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    receive_to_end(&mut stream, &mut received);
    received
}

/// Receives until the proxy closes; notes if it does not.
fn receive_to_end(stream: &mut TcpStream, received: &mut Vec<u8>) {
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(_) => return received.extend_from_slice(b"[open]"),
        }
    }
}

/// Runs all cases through the proxy that `start` starts; returns a transcript for each.
fn transcripts<P>(cases: &[Case], start: impl FnOnce(&str, &[&Listening]) -> P) -> Vec<String> {
    let listening: Vec<Listening> = cases.iter().map(|_| Listening::new()).collect();
    // HAProxy accepts no descriptor beyond those that its `maxconn` needs, and other tests may have thousands open.
    let highest = listening.iter().map(Listening::fd).max().unwrap_or(0);
    let mut configuration = format!(
        "global\n    maxconn {}\n\ndefaults\n    mode http\n    timeout connect 60s\n    timeout client 60s\n    \
         timeout server 60s\n    timeout http-request 9s\n    retries 0\n",
        highest.max(1000)
    );
    let mut origins = Vec::new();
    for (number, (case, front)) in cases.iter().zip(&listening).enumerate() {
        let back = TcpListener::bind("127.0.0.1:0").unwrap();
        configuration.push_str(&format!("\nlisten case{number}\n    bind {}\n", front.word()));
        for option in case.options {
            configuration.push_str(&format!("    {option}\n"));
        }
        configuration.push_str(&format!("    server s {}\n", back.local_addr().unwrap()));
        let address = back.local_addr().unwrap();
        origins.push((address, start_origin(back, &case.server)));
    }
    let proxy = start(&configuration, &listening.iter().collect::<Vec<_>>());
    let run = |case: &Case, front: &Listening, origin: &Mutex<Origin>| {
        let received = converse(&front.address(), &case.client, origin);
        normal::normalise(&received, case.head)
    };
    // The cases mostly wait, so they run concurrently.
    let mut texts: Vec<String> = std::thread::scope(|scope| {
        let jobs = cases.iter().zip(listening.iter().zip(&origins));
        let jobs: Vec<_> =
            jobs.map(|(case, (front, (_, origin)))| scope.spawn(move || run(case, front, origin))).collect();
        jobs.into_iter().map(|job| job.join().expect("no panic in a case")).collect()
    });
    drop(proxy);
    for (text, (address, origin)) in texts.iter_mut().zip(&origins) {
        read_to_end(*address, origin);
        // A connection on which nothing arrived does not count: the proxy is free to open it at any time.
        for connection in origin.lock().unwrap().received.iter().filter(|connection| !connection.is_empty()) {
            text.push_str("--- server\n");
            text.push_str(&normal::normalise(connection, false));
        }
    }
    texts
}

fn all_cases() -> Vec<Case> {
    let mut all = cases::cases();
    all.extend(smuggling::cases());
    all
}

/// Returns the expected result of every case: haproxy's transcript, or the case's own.
fn expected(cases: &[Case]) -> Vec<String> {
    let mut expected = transcripts(cases, Haproxy::start);
    if std::env::var_os("SLUICEGATE_TRANSCRIPTS").is_some() {
        for (case, transcript) in cases.iter().zip(&expected) {
            println!("=== {}\n{transcript}", case.name);
        }
    }
    for (case, transcript) in cases.iter().zip(&mut expected) {
        if let Some((ours, why)) = &case.instead {
            assert_ne!(ours, transcript, "{}: haproxy does so too, no need to say: {why}", case.name);
            transcript.clone_from(ours);
        }
    }
    expected
}

fn compare(cases: &[Case], expected: &[String], got: &[String]) {
    let mut failures = String::new();
    for ((case, expected), got) in cases.iter().zip(expected).zip(got) {
        if expected != got {
            let why = case.instead.as_ref().map_or("as haproxy", |(_, why)| why);
            failures.push_str(&format!("=== {} ({why})\nexpected:\n{expected}\ngot:\n{got}\n", case.name));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Returns the cases whose transcript must not depend on how bytes are split, with their bytes sent one by one.
fn split_cases() -> Vec<Case> {
    let mut cases = all_cases();
    cases.retain(|case| case.splits && case.client.iter().map(Step::len).sum::<usize>() < 4096);
    for case in &mut cases {
        let steps = std::mem::take(&mut case.client);
        case.client = steps
            .into_iter()
            .flat_map(|step| match step {
                Step::Send(text) => text.chars().map(send).collect::<Vec<_>>(),
                step => vec![step],
            })
            .collect();
    }
    cases
}

#[test]
fn the_binary_speaks_as_haproxy_does() {
    let cases = all_cases();
    let expected = expected(&cases);
    let got = transcripts(&cases, crate::start);
    compare(&cases, &expected, &got);
    let split = split_cases();
    let expected_of = |name| cases.iter().position(|case| case.name == name).map(|at| expected[at].clone());
    let expected: Vec<String> = split.iter().filter_map(|case| expected_of(case.name)).collect();
    let got = transcripts(&split, crate::start);
    compare(&split, &expected, &got);
}

#[test]
fn names_are_in_lower_case_and_fields_keep_their_order() {
    let request = "GET / HTTP/1.1\r\nHOST: h\r\nx-Mixed-Case: 1\r\naccept: a\r\nX-mixed-case: 2\r\n\r\n";
    let response = "HTTP/1.1 200 fine\r\nETAG: x\r\nset-Cookie: a\r\nCONTENT-length: 3\r\nSet-cookie: b\r\n\r\none";
    let (front, back) = (Listening::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let configuration = format!(
        "listen l\n    mode http\n    bind {}\n    timeout connect 60s\n    timeout client 60s\n    timeout server 60s\n    \
         server s {}\n",
        front.word(),
        back.local_addr().unwrap()
    );
    let origin = start_origin(back, &[reply(response)]);
    let _proxy = crate::start(&configuration, &[&front]);
    let received = converse(&front.address(), &[send(request), wait("one")], &origin);
    let lower = "HTTP/1.1 200 fine\r\netag: x\r\nset-cookie: a\r\ncontent-length: 3\r\nset-cookie: b\r\n\r\none";
    assert_eq!(String::from_utf8(received).unwrap(), lower);
    let lower = "GET / HTTP/1.1\r\nhost: h\r\nx-mixed-case: 1\r\naccept: a\r\nx-mixed-case: 2\r\n\r\n";
    assert_eq!(String::from_utf8_lossy(&origin.lock().unwrap().received[0]), lower);
}
