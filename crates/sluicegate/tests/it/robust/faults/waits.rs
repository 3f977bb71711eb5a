//! What comes before an answer: queues, connections that are refused or never come about, retries and redispatch.

use super::*;

fn get(path: &str) -> Act {
    send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"))
}

const ONE: &[&str] = &["server s @BACK@ maxconn 1"];
/// The only backup, full: who wants it waits in its own queue.
const BACKUP: &[&str] = &["server s @BACK@ maxconn 1 backup"];
/// The same with room for one in that queue.
const FULL: &[&str] = &["server s @BACK@ maxconn 1 maxqueue 1 backup"];
const QUEUE_TCP: &[&str] = &["mode tcp", "option tcplog", "timeout queue 60s"];
const SHORT: &[&str] = &["timeout queue 1500ms"];
const LEAVES: &[&str] = &["option abortonclose"];

/// The first client holds the slot until `count` others wait. They connect once the server has its request.
fn holds(count: u64) -> Vec<Act> {
    vec![get("/1"), Queued(count), Signal, Wait("ok"), Logged]
}

/// The same for TCP: until the line of the other, which waits and then `leaves`.
fn holds_until_other(leaves: bool) -> Vec<Act> {
    let mut acts = vec![send("1\r\n\r\n")];
    if leaves {
        acts.extend([Queued(1), Signal]);
    }
    acts.extend([Lines(1), Signal, Wait("ok"), Finish]);
    acts
}

/// The same in TCP mode.
fn tells(signals: u32) -> Vec<Act> {
    vec![head(), Signal, AwaitAll(signals), send("ok"), Finish]
}

/// The server tells when it has the first request, and answers when `signals` were given.
fn answers(signals: u32) -> Vec<Act> {
    vec![head(), Signal, AwaitAll(signals), send(OK), Logged]
}

#[rustfmt::skip]
fn queues() -> Vec<Case> {
    vec![
        case("waits for a slot", &[], holds(1), answers(2)).servers(ONE)
            .and(vec![Await, get("/2"), Wait("ok"), Logged]),
        case("waits behind another", &[], holds(2), answers(2)).servers(ONE)
            .and(vec![Await, get("/2"), Wait("ok"), Logged])
            .and(vec![Await, Queued(1), get("/3"), Wait("ok"), Logged]),
        case("waits for a server", &[], holds(2), answers(2)).servers(BACKUP)
            .and(vec![Await, get("/2"), Wait("ok"), Logged])
            .and(vec![Await, Queued(1), get("/3"), Wait("ok"), Logged]),
        case("waits too long", SHORT, vec![get("/1"), Wait("ok"), Logged], answers(2)).servers(ONE)
            .and(vec![Await, get("/2"), Wait("</html>"), Signal, Logged]).any_count(),
        case("waits too long for a server", SHORT, vec![get("/1"), Wait("ok"), Logged], answers(2)).servers(BACKUP)
            .and(vec![Await, get("/2"), Wait("</html>"), Signal, Logged]).any_count(),
        case("leaves the queue", LEAVES, vec![get("/1"), Queued(1), Signal, Queued(0), Signal, Wait("ok"), Logged], answers(3)).servers(ONE)
            .and(vec![Await, get("/2"), AwaitAll(2), Finish]),
        case("breaks off in the queue", LEAVES, vec![get("/1"), Queued(1), Signal, Queued(0), Signal, Wait("ok"), Logged], answers(3)).servers(ONE)
            .and(vec![Await, get("/2"), AwaitAll(2), Reset]),
        case("is turned away", &[], vec![get("/1"), Queued(1), Signal, AwaitAll(3), Wait("ok"), Logged], answers(3)).servers(FULL)
            .and(vec![Await, get("/2"), Wait("ok"), Logged])
            .and(vec![AwaitAll(2), get("/3"), Wait("</html>"), Signal, Logged]).any_count(),
        case("stops in its body in the queue", &["timeout client 1500ms", "timeout queue 5s"], vec![get("/1"), AwaitAll(2), Wait("ok"), Logged], answers(2)).servers(ONE)
            .and(vec![Await, send(HALF_A_POST), Wait("</html>"), Signal, Logged]).any_count(),
        case("tcp: waits for a slot", QUEUE_TCP, vec![send("1\r\n\r\n"), Queued(1), Signal, Wait("ok"), Finish], tells(2)).servers(ONE)
            .and(vec![Await, send("2\r\n\r\n"), Wait("ok"), Finish]),
        case("tcp: waits too long", &["mode tcp", "option tcplog", "timeout queue 1500ms"], holds_until_other(false), tells(2)).servers(ONE)
            .and(vec![Await, send("2"), End]),
        case("tcp: leaves the queue", &["mode tcp", "option tcplog", "timeout queue 60s", "option abortonclose"], holds_until_other(true), tells(3)).servers(ONE)
            .and(vec![Await, send("2"), AwaitAll(2), Finish]),
        case("tcp: breaks off in the queue", &["mode tcp", "option tcplog", "timeout queue 60s"], holds_until_other(true), tells(3)).servers(ONE)
            .and(vec![Await, send("2"), AwaitAll(2), Reset]),
        case("tcp: says nothing in the queue", &["mode tcp", "option tcplog", "timeout queue 5s", "timeout client 1500ms"], holds_until_other(false), tells(2)).servers(ONE)
            .and(vec![Await, send("2"), End])
            .instead("since 2.8 a client that falls silent in the queue is named", " | \"ok\" [closed]\n | \"\" [closed]\ncase/<NOSRV> N/-1/N 0 cQ N/2/1/0/0 0/1\ncase/s N/N/N 2 cD N/1/0/0/0 0/0"),
        case("breaks off in the queue unseen", &["timeout queue 60s"], vec![get("/1"), Queued(1), Signal, Queued(0), Signal, Wait("ok"), Logged], answers(3)).servers(ONE)
            .and(vec![Await, get("/2"), AwaitAll(2), Reset])
            .instead("2.6 does not look, and keeps the place of a client that is gone", "HTTP/1.1 200 OK | \"ok\" [closed]\ngone\ncase/s N/N/N/N/N 200 51 - - ---- N/1/0/0/0 0/0 \"GET /1 HTTP/1.1\"\ncase/<NOSRV> N/N/-1/-1/N -1 0 - - CQ-- N/2/1/0/0 0/1 \"GET /2 HTTP/1.1\""),
    ]
}

#[test]
fn queues_are_told_and_logged_as_haproxy_does() {
    check(&queues());
}

#[rustfmt::skip]
fn connections() -> Vec<Case> {
    vec![
        case("is refused", &[], vec![get("/")], vec![]).servers(&["server s @REFUSED@"]),
        case("is refused again", &["retries 2", "timeout connect 300ms"], vec![get("/")], vec![]).servers(&["server s @REFUSED@"]),
        case("is redispatched", &["retries 1", "option redispatch", "timeout connect 300ms"], vec![get("/"), Wait("ok"), Logged], vec![head(), send(OK), Logged])
            .servers(&["server r @REFUSED@", "server s @BACK@"]),
        case("is redispatched late", &["retries 3", "option redispatch", "timeout connect 300ms"], vec![get("/"), Wait("ok"), Logged], vec![head(), send(OK), Logged])
            .servers(&["server r @REFUSED@", "server s @BACK@"]),
        case("is redispatched in vain", &["retries 2", "option redispatch 1", "timeout connect 300ms"], vec![get("/")], vec![])
            .servers(&["server s @REFUSED@", "server r @REFUSED@"]),
        case("is not redispatched", &["retries 2", "timeout connect 300ms"], vec![get("/")], vec![])
            .servers(&["server s @REFUSED@", "server r @BACK@"]),
        case("times out", &["timeout connect 300ms"], vec![get("/")], vec![]).servers(&["server s @DEAF@"]),
        case("times out again", &["retries 2", "timeout connect 200ms"], vec![get("/")], vec![]).servers(&["server s @DEAF@"]),
        case("times out and is redispatched", &["retries 1", "option redispatch", "timeout connect 300ms"], vec![get("/"), Wait("ok"), Logged], vec![head(), send(OK), Logged])
            .servers(&["server d @DEAF@", "server s @BACK@"]),
        case("finds no server", &[], vec![get("/")], vec![]).servers(&["server s @BACK@ disabled"]),
        case("finds no server in the backend", &[], vec![get("/")], vec![]).servers(&[]),
        case("finds no backend", &["use_backend %[str(none)] if TRUE"], vec![get("/")], vec![]).servers(&[]),
        case("leaves while it connects", LEAVES, vec![get("/"), Finish], vec![]).servers(&["server s @DEAF@"]),
        case("breaks off while it connects", LEAVES, vec![get("/"), Connecting, Reset], vec![]).servers(&["server s @DEAF@"]),
        case("leaves between two tries", &["option abortonclose", "retries 3"], vec![get("/"), Finish], vec![]).servers(&["server s @REFUSED@"]),
        case("tcp: is refused", TCP, vec![send("x")], vec![]).servers(&["server s @REFUSED@"]),
        case("tcp: is refused again", &["mode tcp", "option tcplog", "retries 1", "timeout connect 300ms"], vec![send("x")], vec![]).servers(&["server s @REFUSED@"]),
        case("tcp: is redispatched", &["mode tcp", "option tcplog", "retries 1", "option redispatch"], vec![send("x"), Wait("y"), Finish], vec![Wait("x"), send("y"), Finish])
            .servers(&["server r @REFUSED@", "server s @BACK@"]),
        case("tcp: times out", &["mode tcp", "option tcplog", "timeout connect 300ms"], vec![send("x")], vec![]).servers(&["server s @DEAF@"]),
        case("tcp: finds no server", TCP, vec![send("x")], vec![]).servers(&["server s @BACK@ disabled"]),
        case("tcp: finds no backend", &["mode tcp", "option tcplog", "use_backend %[str(none)] if TRUE"], vec![send("x")], vec![]).servers(&[]),
        case("tcp: leaves while it connects", &["mode tcp", "option tcplog", "option abortonclose"], vec![send("x"), Finish], vec![]).servers(&["server s @DEAF@"]),
        case("tcp: breaks off while it connects", TCP, vec![send("x"), Connecting, Reset], vec![]).servers(&["server s @DEAF@"]),
        case("tcp: says nothing while it connects", &["mode tcp", "option tcplog", "timeout client 1500ms", "timeout connect 5s"], vec![send("x")], vec![]).servers(&["server s @DEAF@"]),
    ]
}

#[test]
fn connections_that_fail_are_told_and_logged_as_haproxy_does() {
    check(&connections());
}
