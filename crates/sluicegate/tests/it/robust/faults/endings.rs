//! Endings that are neither's fault: rules, tunnels, early lines.

use super::*;

/// A format without a value that is known only at the end.
const EARLY: &[&str] = &[r#"log-format "%ci:%cp [%t] %f %b/%s 0 %ST %tsc 0/0/0/0/0 %HU""#];
const EARLY_ERRORS: &[&str] = &["option dontlog-normal", EARLY[0]];
const EARLY_TCP: &[&str] = &["mode tcp", r#"log-format "%ci:%cp [%t] %f %b/%s 0 0 -- 0/0/0/0/0""#];
const LATE_TCP: &[&str] = &["mode tcp", r#"log-format "%ci:%cp [%t] %f %b/%s 0 0 %ts 0/0/0/0/0""#];
/// A response that waits for the second half of its body.
const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok";
const SMALL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const UPGRADE: &str = "GET /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: plain\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: plain\r\n\r\n";
const CONNECT: &str = "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n";
const TUNNEL_SHORT: &[&str] = &["timeout tunnel 1500ms"];

/// Endings that are neither's fault: what rules, queues and tunnels make of a stream.
#[rustfmt::skip]
fn endings() -> Vec<Case> {
    vec![
        case("is answered", &[], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("is asked twice", &[], vec![send(GET), Wait("ok"), Finish], vec![head(), send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), Logged]),
        case("is denied", &["http-request deny"], vec![send(GET), Finish], vec![]),
        case("is denied with a status", &["http-request deny deny_status 429"], vec![send(GET), Finish], vec![]),
        case("is rejected", &["http-request reject"], vec![send(GET)], vec![]),
        case("is refused by content", &["tcp-request content reject"], vec![send(GET)], vec![]),
        case("is redirected", &["http-request redirect location /x"], vec![send(GET), Finish], vec![]),
        case("is redirected late", &["redirect prefix /x code 301"], vec![send(GET), Finish], vec![]),
        case("is returned", &["http-request return status 404"], vec![send(GET), Finish], vec![]),
        case("has its response denied", &["http-response deny"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 logs no time of the response, 3.2 does", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/N/N 502 260 - - PH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has its response returned", &["http-response return status 418 content-type text/plain string x"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 logs no time of the response, 3.2 does", "HTTP/1.1 418 I'm a teapot | \"x\" [closed]\ncase/s N/N/N/N/N 418 133 - - LH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has its response's content refused", &["tcp-response content reject"], vec![send(GET)], vec![head(), send(OK), Logged]),
        case("is tarpitted", &["timeout tarpit 200ms", "http-request tarpit"], vec![send(GET)], vec![]),
        case("is tarpitted with a status", &["timeout tarpit 200ms", "http-request tarpit deny_status 429"], vec![send(GET)], vec![]),
        case("is tarpitted with a body", &["timeout tarpit 1500ms", "http-request tarpit"], vec![send(HALF_A_POST), send("12345")], vec![]),
        case("leaves the tarpit", &["timeout tarpit 5s", "http-request tarpit"], vec![send(GET), Finish], vec![]),
        case("has its body waited for", &["http-request wait-for-body time 1500ms"], vec![send(HALF_A_POST)], vec![]),
        case("has its body buffered", &["option http-buffer-request", "timeout http-request 1500ms"], vec![send(HALF_A_POST)], vec![]),
        case("closes while its body is waited for", &["http-request wait-for-body time 10s"], vec![send(HALF_A_POST), Finish], vec![])
            .instead("since 2.8 a 400 that nobody gets is logged", " | \"\" [closed]\ncase/<NOSRV> N/-1/-1/-1/N 400 206 - - CR-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("breaks off while its body is waited for", &["http-request wait-for-body time 10s"], vec![send(HALF_A_POST), Finish, Reset], vec![])
            .instead("since 2.8 a 400 that nobody gets is logged", "gone\ncase/<NOSRV> N/-1/-1/-1/N 400 206 - - CR-- N/1/0/0/0 0/0 \"POST /p HTTP/1.1\""),
        case("is rejected with a body", &["http-request reject"], vec![send(HALF_A_POST)], vec![]),
        // HAProxy sends nothing to a client whose FIN it sees before the rule.
        case("is denied with half a body", &["http-request deny"], vec![send(HALF_A_POST), Wait("403"), Finish], vec![]),
        case("is denied silently", &["http-request deny", "errorfile 403 /dev/null"], vec![send(GET), Finish], vec![]),
        case("is refused by content with a body", &["tcp-request content reject"], vec![send(HALF_A_POST)], vec![]),
        case("has no room for a field", &["http-request add-header X-Copy %[req.fhdr(x)]"], vec![send(format!("GET /a HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(12_000))), Finish], vec![]),
        case("asks twice on one connection", &["timeout http-keep-alive 60s"], vec![send(GET), Wait("ok"), send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n"), Wait("ok"), Finish], vec![head(), send(SMALL), head(), send(SMALL), Logged]).lines(2),
        case("is alone on a used connection", &["timeout http-keep-alive 60s"], vec![send(GET), Wait("ok"), send(HALF_A_POST), send("12345")], vec![head(), send(OK), head(), Finish, End]).unlogged(),
        // Tunnels.
        case("switches protocols", &[], vec![send(UPGRADE), Wait("hello"), send("bye"), Finish], vec![head(), send(format!("{SWITCH}hello")), Wait("bye"), Finish]),
        case("switches and is silent", TUNNEL_SHORT, vec![send(UPGRADE), Wait("hello")], vec![head(), send(format!("{SWITCH}hello")), Logged]),
        case("switches and closes", &[], vec![send(UPGRADE), Wait("hello")], vec![head(), send(format!("{SWITCH}hello")), Finish, End]).any_size(),
        case("refuses to switch", &[], vec![send(UPGRADE), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("connects", &[], vec![send(CONNECT), Wait("\r\n\r\n"), send("x"), Wait("y"), Finish], vec![head(), send("HTTP/1.1 200 OK\r\n\r\n"), Wait("x"), send("y"), Finish]),
        case("connects and is silent", TUNNEL_SHORT, vec![send(CONNECT), Wait("\r\n\r\n")], vec![head(), send("HTTP/1.1 200 OK\r\n\r\n"), Logged]),
        // Without HTTP.
        case("tcp: is refused by content", &["mode tcp", "option tcplog", "tcp-request content reject"], vec![], vec![]),
        case("tcp: response refused", &["mode tcp", "option tcplog", "tcp-response content reject"], vec![], vec![send("y"), Logged]),
        case("tcp: client closes first", TCP, vec![send("a"), Wait("b"), Finish], vec![Wait("a"), send("b"), End, Finish]),
        case("tcp: half closed for too long", &["mode tcp", "option tcplog", "timeout server-fin 1500ms"], vec![send("a"), Wait("b"), Finish], vec![Wait("a"), send("b"), Logged]),
        case("tcp: server closed for too long", &["mode tcp", "option tcplog", "timeout client-fin 1500ms"], vec![send("a"), Wait("b"), Logged], vec![Wait("a"), send("b"), Finish]),
        // Early lines.
        case("is logged early", &["option logasap"], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("is logged with its response's head", EARLY, vec![send(GET), Wait("okok"), Finish], vec![head(), send(HALF), Lines(1), send("ok")]).unlogged(),
        case("is logged at its end if it fails", EARLY_ERRORS, vec![send(GET)], vec![head(), send(HALF), Finish]),
        case("tcp: is logged when it is connected", EARLY_TCP, vec![send("a"), Lines(1), send("b"), Wait("c"), Finish], vec![Wait("b"), send("c"), End, Finish]).unlogged(),
        case("tcp: has a value of its end", LATE_TCP, vec![send("a"), Wait("b"), Finish], vec![Wait("a"), send("b"), End, Finish, Logged]),
        // A malformed chunk in the same read as the head.
        case("has a bad chunk at once", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), Logged]),
    ]
}

#[test]
fn every_other_ending_is_told_and_logged_as_haproxy_does() {
    check(&endings());
}
