//! Servers that fail at every point of an answer.

use super::*;

#[rustfmt::skip]
fn servers() -> Vec<Case> {
    vec![
        // No answer.
        case("closes before it answers", &[], vec![send(GET)], vec![head(), Finish]),
        case("resets before it answers", &[], vec![send(GET)], vec![head(), Reset]),
        case("closes in its head", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Finish])
            .instead("2.6 says SH, 3.2 PH", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 502 209 - - PH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("resets in its head", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Reset])
            .instead("2.6 says SH, 3.2 PH", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 502 209 - - PH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("resets in the request's body", &[], vec![send(HALF_A_POST)], vec![Wait("12345"), Reset])
            .instead("2.6 says nothing to the client, 3.2 says 502", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 502 209 - - SH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("never answers", SERVER_SHORT, vec![send(GET)], vec![head(), Logged]),
        case("stops in its head", SERVER_SHORT, vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Logged]),
        case("never reads", SERVER_SHORT, vec![endless("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 67108000\r\n\r\n")], vec![Logged])
            .instead("2.6 says nothing to the client", "HTTP/1.1 504 Gateway Time-out | \"<html><body><h1>504 Gateway Time-out</h1>\\nThe server didn't respond in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 504 198 - - sH-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        // Half an answer.
        case("closes in a body of known length", &[], vec![send(GET)], vec![head(), send(HALF_KNOWN), Finish]),
        case("resets in a body of known length", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(HALF_KNOWN), Await, Reset]),
        case("stops in a body of known length", SERVER_SHORT, vec![send(GET)], vec![head(), send(HALF_KNOWN), Logged]),
        case("closes between chunks", &[], vec![send(GET)], vec![head(), send(CHUNK), Finish]),
        case("closes in a chunk", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, send("a\r\n123"), Finish]),
        case("closes in a chunk's size", &[], vec![send(GET)], vec![head(), send(CHUNK), send("1"), Finish]),
        case("resets between chunks", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, Reset]),
        case("stops between chunks", SERVER_SHORT, vec![send(GET)], vec![head(), send(CHUNK), Logged]),
        case("closes an answer without an end", &[], vec![send(GET)], vec![head(), send(UNTIL_CLOSE), Finish]),
        case("resets an answer without an end", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(UNTIL_CLOSE), Await, Reset]),
        case("stops in an answer without an end", SERVER_SHORT, vec![send(GET)], vec![head(), send(UNTIL_CLOSE), Logged]),
        // Nonsense.
        case("speaks another protocol", &[], vec![send(GET)], vec![head(), send("220 mail.example ESMTP\r\n\r\n"), Logged]),
        case("speaks binary", &[], vec![send(GET)], vec![head(), send(b"\x16\x03\x01\x00\xff\x00\x01".as_slice()), Logged]),
        case("has a head larger than the buffer", &[], vec![send(GET)], vec![head(), send(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(40_000))), Logged]),
        case("has a bad chunk size", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, send("zz\r\n"), Logged])
            .instead("2.6 says SD, 3.2 PD", "HTTP/1.1 200 OK | \"5\\r\\n12345\\r\\n\" [closed]\ncase/s N/N/N/N/N 200 63 - - PD-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        // Without HTTP.
        case("tcp: closes", TCP, vec![send("hello"), Wait("bye"), Finish], vec![Wait("hello"), send("bye"), Finish]),
        case("tcp: resets", TCP, vec![send("hello"), Wait("bye"), Signal], vec![Wait("hello"), send("bye"), Await, Reset]),
        case("tcp: says nothing", &["mode tcp", "option tcplog", "timeout server 1500ms"], vec![send("hello")], vec![Wait("hello"), Logged]),
    ]
}

#[test]
fn failing_servers_are_told_and_logged_as_haproxy_does() {
    check(&servers());
}
