//! Clients that fail at every point of a request and of its answer.

use super::*;

#[rustfmt::skip]
fn clients() -> Vec<Case> {
    vec![
        // In the head.
        case("says nothing", REQUEST_SHORT, vec![], vec![]),
        case("stops in its head", REQUEST_SHORT, vec![send("GET / HT")], vec![]),
        case("drips its head", REQUEST_SHORT, vec![Drip("GET / HTTP/1.1\r\nX: ")], vec![]),
        case("closes in its head", &[], vec![send("GET / HT"), Finish], vec![]),
        case("resets in its head", &[], vec![send("GET / HT"), Reset], vec![]),
        // In the body.
        case("stops in its body", CLIENT_SHORT, vec![send(HALF_A_POST)], vec![Wait("12345")])
            .instead("2.6 waits for the server, which waits for the client", "HTTP/1.1 408 Request Time-out | \"<html><body><h1>408 Request Time-out</h1>\\nYour browser didn't send a complete request in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 408 232 - - cH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("stops between chunks", CLIENT_SHORT, vec![send(HALF_CHUNKED)], vec![Wait("12345")])
            .instead("2.6 waits for the server, which waits for the client", "HTTP/1.1 408 Request Time-out | \"<html><body><h1>408 Request Time-out</h1>\\nYour browser didn't send a complete request in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 408 232 - - cH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("closes in its body", &[], vec![send(HALF_A_POST), Await, Finish], vec![Wait("12345"), Signal, End])
            .instead("since 2.8 a 400 that nobody gets is logged", " | \"\" [closed]\ncase/s N/N/N/-1/N 400 206 - - CH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("closes between chunks", &[], vec![send(HALF_CHUNKED), Await, Finish], vec![Wait("12345"), Signal, End])
            .instead("since 2.8 a 400 that nobody gets is logged", " | \"\" [closed]\ncase/s N/N/N/-1/N 400 206 - - CH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("resets in its body", &[], vec![send(HALF_A_POST), Await, Reset], vec![Wait("12345"), Signal, End])
            .instead("since 2.8 a 400 that nobody gets is logged", "gone\ncase/s N/N/N/-1/N 400 206 - - CH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("resets between chunks", &[], vec![send(HALF_CHUNKED), Await, Reset], vec![Wait("12345"), Signal, End])
            .instead("since 2.8 a 400 that nobody gets is logged", "gone\ncase/s N/N/N/-1/N 400 206 - - CH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("has a bad chunk size", &[], vec![send(HALF_CHUNKED), Await, send("zz\r\n")], vec![Wait("12345"), Signal, End]),
        // While it is answered.
        case("resets before the answer", &[], vec![send(GET), Await, Reset], vec![head(), Signal, End])
            .instead("2.6 does not look, and goes on waiting for an answer that nobody wants", "gone\ncase/s N/N/N/-1/N 400 206 - - CD-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("resets in an answer of known length", SERVER_SHORT, vec![send(GET), Wait("12345"), Reset], vec![head(), send(HALF_KNOWN), End]),
        case("resets in a chunked answer", SERVER_SHORT, vec![send(GET), Wait("12345"), Reset], vec![head(), send(CHUNK), End]),
        case("resets under a flood", &[], vec![send(GET), Wait("xxx"), Reset], vec![head(), endless("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")]).any_size(),
        case("never reads its answer", CLIENT_SHORT, vec![send(GET), Logged], vec![head(), endless("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")]).any_size(),
        // Without HTTP.
        case("tcp: resets", TCP, vec![send("hello"), Wait("bye"), Reset], vec![Wait("hello"), send("bye"), End]),
        case("tcp: says nothing", &["mode tcp", "option tcplog", "timeout client 1500ms"], vec![Wait("hello")], vec![send("hello"), End, Finish]),
        case("tcp: never reads", &["mode tcp", "option tcplog", "timeout client 1500ms"], vec![send("hello"), Logged], vec![Wait("hello"), endless("")]).any_size(),
    ]
}

#[test]
fn failing_clients_are_told_and_logged_as_haproxy_does() {
    check(&clients());
}
