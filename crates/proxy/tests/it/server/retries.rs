//! `retry-on`: the failures after which a request is sent again, how often and to which server, compared with Debian's
//! haproxy.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use super::fixture::Whole;

/// A server that sends the same bytes on every connection after it has read a request, and counts the requests.
struct Stub {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Stub {
    /// Starts a server; with `None` it never answers.
    fn new(answer: Option<&'static str>) -> Stub {
        let listener = sluicegate_testkit::lasting_listener();
        let address = listener.local_addr().expect("bound").to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
                    head.push(byte[0]);
                }
                if head.starts_with(b"POST") {
                    let mut body = [0; 4];
                    let _ = stream.read_exact(&mut body);
                }
                count.fetch_add(1, Ordering::SeqCst);
                match answer {
                    Some(answer) => drop(stream.write_all(answer.as_bytes())),
                    None => silent.push(stream),
                }
            }
        });
        Stub { address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngood";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy";
const MISSING: &str = "HTTP/1.1 404 No\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngone";

/// Returns the status of a request to a proxy with these lines, and how many requests the bad and the good server
/// received.
fn outcome(ours: bool, lines: &str, bad: &Stub, good: &Stub, request: &str) -> (u16, usize, usize) {
    outcome_within("20s", ours, lines, bad, good, request)
}

/// Like [`outcome`], with this `timeout server`.
fn outcome_within(time: &str, ours: bool, lines: &str, bad: &Stub, good: &Stub, request: &str) -> (u16, usize, usize) {
    let lines = lines.replace("{bad}", &bad.address).replace("{good}", &good.address);
    let defaults = format!("defaults\n mode http\n timeout client 60s\n timeout server {time}\n timeout connect 60s\n");
    let ask = |address: &str| {
        let mut client = Client::connect(address);
        client.send(request);
        client.read_response().status
    };
    let status = if ours {
        let whole = Whole::start(&format!("{defaults}listen l\n bind 127.0.0.1:1\n{lines}"), 1);
        ask(&whole.address())
    } else {
        let front = Listening::new();
        let _haproxy = Haproxy::start(&format!("{defaults}listen l\n bind {}\n{lines}", front.word()), &[&front]);
        ask(&front.address())
    };
    (status, bad.asked(), good.asked())
}

const RETRY_ON: [&str; 6] =
    ["none", "empty-response", "junk-response", "response-timeout", "503 404", "all-retryable-errors"];

const GET: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";

/// Returns a proxy's lines with these words of `retry-on`, without and with redispatch.
fn lines_for(retry_on: &str) -> [String; 2] {
    ["", " option redispatch\n"]
        .map(|more| format!(" retries 2\n retry-on {retry_on}\n{more} server bad {{bad}}\n server good {{good}}\n"))
}

#[test]
fn requests_are_sent_again_for_what_retry_on_names() {
    let answers =
        [("empty", ""), ("part", "HTTP/1.1 200 O"), ("junk", "junk junk\r\n\r\n"), ("503", BUSY), ("404", MISSING)];
    let good = Stub::new(Some(GOOD));
    let mut repeated = 0;
    for (name, answer) in answers {
        let bad = Stub::new(Some(answer));
        for lines in RETRY_ON.iter().flat_map(|retry_on| lines_for(retry_on)) {
            let theirs = outcome(false, &lines, &bad, &good, GET);
            let ours = outcome(true, &lines, &bad, &good, GET);
            assert_eq!(ours, theirs, "{name}\n{lines}");
            repeated += usize::from(theirs.1 + theirs.2 > 1);
        }
    }
    assert_eq!(repeated, 18, "of the cases above so many are worth another try");
}

/// Runs all cases at once, as each waits for a server to time out; the timeout must be long enough for the server that
/// answers.
#[test]
fn requests_are_sent_again_for_silence_where_retry_on_names_it() {
    let outcome = |ours: bool, lines: &str| {
        let (bad, good) = (Stub::new(None), Stub::new(Some(GOOD)));
        outcome_within("4s", ours, lines, &bad, &good, GET)
    };
    let repeated = std::thread::scope(|scope| {
        let cases: Vec<_> = RETRY_ON
            .iter()
            .flat_map(|retry_on| lines_for(retry_on))
            .map(|lines| {
                let (other, outcome) = (lines.clone(), &outcome);
                let theirs = scope.spawn(move || outcome(false, &other));
                let other = lines.clone();
                (lines, theirs, scope.spawn(move || outcome(true, &other)))
            })
            .collect();
        let judge = |(lines, theirs, ours): (
            String,
            std::thread::ScopedJoinHandle<'_, _>,
            std::thread::ScopedJoinHandle<'_, _>,
        )| {
            let (theirs, ours): ((u16, usize, usize), _) =
                (theirs.join().expect("no panic"), ours.join().expect("no panic"));
            assert_eq!(ours, theirs, "{lines}");
            usize::from(theirs.1 + theirs.2 > 1)
        };
        cases.into_iter().map(judge).sum::<usize>()
    });
    assert_eq!(repeated, 4, "'response-timeout' and 'all-retryable-errors'");
}

#[test]
fn bodies_are_sent_again_and_rules_can_forbid_it() {
    let (bad, good) = (Stub::new(Some(BUSY)), Stub::new(Some(GOOD)));
    let post = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody";
    for (rule, expected) in [("", (200, 1, 1)), (" http-request disable-l7-retry if METH_POST\n", (503, 1, 0))] {
        let lines = format!(
            " retry-on 503\n option redispatch\n option http-buffer-request\n{rule} server bad {{bad}}\n server good \
             {{good}}\n"
        );
        for ours in [false, true] {
            assert_eq!(outcome(ours, &lines, &bad, &good, post), expected, "{ours} {rule}");
        }
    }
}

#[test]
fn connections_are_tried_once_where_that_is_not_named() {
    for (retry_on, retries) in [("conn-failure", "3"), ("none", "0"), ("503", "0")] {
        let whole = Whole::start(
            &format!(
                "defaults\n mode http\n log @LOG@ format raw local0\n option httplog\n timeout client 60s\n timeout \
                 server 20s\n timeout connect 10ms\nlisten l\n bind 127.0.0.1:1\n retry-on {retry_on}\n server bad \
                 127.0.0.1:9\n"
            ),
            1,
        );
        assert_eq!(Client::connect(&whole.address()).get("/").status, 503);
        let line = wait_for("the line", || whole.log_lines(1).pop());
        assert!(line.contains(&format!("/{retries} 0/0 ")), "{retry_on}: {line}");
    }
}
