//! Some hundreds of requests and responses through HAProxy 2.8 and through the binary: what the client and the server
//! receive, and whether their connections stay open, must be the same.
//!
//! Every case is one variation of a plain message, followed by a second request. [`ACCEPTED`] names the variations on
//! which the two differ, with the reason; a listed case that no longer differs fails, too. The cases are about matters
//! on which parsers are known to disagree: framing, names, line ends, targets, hosts, limits.

use sluicegate_testkit::Haproxy;

use super::{Case, Step, case, reply, reply_after, send, transcripts};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
/// The last request. The client does not close its sending side, because HAProxy would then drop a pipelined request.
const LAST: &str = "GET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Cases (by the start of their names) on which HAProxy 2.8 and the binary differ, and why.
const ACCEPTED: &[(&str, &str)] = &[
    ("target: http://a?x a", "a query needs no path (RFC 3986 3.3), as 3.5 has it"),
    ("target: http:///x a", "as 3.2, which checks the form of a target"),
    ("target: http:/x a", "as 3.2, which checks the form of a target"),
    ("target: http:x a", "as 3.2, which checks the form of a target"),
    ("target: * a", "as 3.2, which checks the form of a target"),
    ("target: x a", "as 3.2, which checks the form of a target"),
    ("target: a:80 a", "as 3.2, which checks the form of a target"),
    ("target: 1http://a/x a", "as 3.2, which checks the form of a target"),
    ("method: PUT *", "as 3.2, which checks the form of a target"),
    ("method: TRACE *", "as 3.2, which checks the form of a target"),
    ("method: DELETE *", "as 3.2, which checks the form of a target"),
    ("chunks: extension with NUL", "stricter: control characters and open quotes in an extension"),
    ("chunks: extension with DEL", "stricter: control characters and open quotes in an extension"),
    ("chunks: extension with ESC", "stricter: control characters and open quotes in an extension"),
    ("chunks: extension with an open quote", "stricter: control characters and open quotes in an extension"),
    ("chunks: extension with a backslash", "stricter: control characters and open quotes in an extension"),
    ("chunks: trailer that frames", "stricter: a trailer that frames a message is refused"),
    ("chunks: trailer with a host", "a Host among trailers is passed on unchecked; rules never see trailers"),
    ("chunks of an answer: extension with NUL", "stricter: control characters and open quotes in an extension"),
    ("chunks of an answer: extension with DEL", "stricter: control characters and open quotes in an extension"),
    ("chunks of an answer: extension with ESC", "stricter: control characters and open quotes in an extension"),
    (
        "chunks of an answer: extension with an open quote",
        "stricter: control characters and open quotes in an extension",
    ),
    ("chunks of an answer: extension with a backslash", "stricter: control characters and open quotes in an extension"),
    ("chunks of an answer: trailer that frames", "stricter: a trailer that frames a message is refused"),
    (
        "chunks of an answer: trailer with a host",
        "a Host among trailers is passed on unchecked; rules never see trailers",
    ),
    (
        "field: Connection: Upgrade, HTTP2-Settings",
        "2.8 drops the wish for HTTP/2 but leaves its settings; here both go on",
    ),
    ("answer: HTTP/1.1 20 OK", "stricter: a status has three digits, from 100 (RFC 9110 15)"),
    ("answer: HTTP/1.1 2000 OK", "stricter: a status has three digits, from 100 (RFC 9110 15)"),
    ("answer: HTTP/1.1 099 OK", "stricter: a status has three digits, from 100 (RFC 9110 15)"),
    ("status: 100 Transfer-Encoding", "as 3.5: an interim answer has no body, so an encoding makes it invalid"),
    ("status: 102 Transfer-Encoding", "as 3.5: an interim answer has no body, so an encoding makes it invalid"),
    ("status: 103 Transfer-Encoding", "as 3.5: an interim answer has no body, so an encoding makes it invalid"),
    ("status: 199 Transfer-Encoding", "as 3.5: an interim answer has no body, so an encoding makes it invalid"),
];

fn name(group: &str, variation: &str) -> &'static str {
    let shown: String = variation.chars().take(48).flat_map(char::escape_debug).collect();
    Box::leak(format!("{group}: {shown}").into_boxed_str())
}

/// A request that the server answers once it has received `end`.
fn request(group: &str, variation: &str, bytes: String, end: &'static str) -> Case {
    // The second reply waits for the path, because an empty line may also end trailers.
    let replies = vec![reply_after(end, OK), reply_after("/next ", OK)];
    case(name(group, variation), vec![send(bytes + LAST), Step::End], replies)
}

fn get(group: &str, variation: &str, fields: &str) -> Case {
    request(group, variation, format!("GET /x HTTP/1.1\r\n{fields}\r\n"), "\r\n\r\n")
}

fn hosts() -> impl Iterator<Item = Case> {
    let values = [
        "a",
        "A.b",
        "a.",
        ".",
        "",
        "*",
        "a b",
        "a@b",
        "u:p@a",
        "a/b",
        "a, b",
        "a?b",
        "a#b",
        "a\\b",
        "a\tb",
        "a\u{1}",
        "a\u{7f}",
        "\u{e9}",
        "[::1]",
        "[::1]:80",
        "[::1]:",
        "[::1",
        "::1",
        "[::1]x",
        "[]",
        "[v1.x]",
        "[zz]",
        "a[b]",
        "]",
        "a:80",
        "a:",
        ":80",
        "a:b",
        "a:80:90",
        "a:-1",
        "a: 80",
        "a:99999",
        "a%41",
        "a%",
        "a!$&'()*+;=b",
        "a\"b",
        "a<b>",
        "a{b}",
        "a|b",
        "a^b",
        "a`b",
        "a~b",
        "a_b",
        "127.0.0.1:8080",
        "a;b",
    ];
    let fields = [
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nhost: A\r\n",
        "Host: a\r\nHost: b\r\n",
        "Host:\r\nHost: a\r\n",
        "Host: a\r\nHost:\r\n",
        "Host: a b\r\nHost: a b\r\n",
        "Host:\r\n a\r\n",
        "Host: a\r\n \r\n",
        "Host: a\r\n b\r\n",
        "Host: a\r\n X: y\r\n",
        "Host : a\r\n",
        "X: a\r\n",
    ];
    let values = values.into_iter().map(|value| get("host", value, &format!("Host: {value}\r\n")));
    values.chain(fields.into_iter().map(|fields| get("hosts", fields, fields)))
}

fn targets() -> impl Iterator<Item = Case> {
    let pairs = [
        ("http://a/x", "a"),
        ("http://a/x", "b"),
        ("http://a/x", ""),
        ("http://a", "a"),
        ("http://a?x", "a"),
        ("http://a:80/x", "a"),
        ("http://a:80/x", "a:80"),
        ("http://a/x", "a:80"),
        ("http://a:8080/x", "a"),
        ("http://a:8080/x", "a:8080"),
        ("https://a:443/x", "a"),
        ("https://a/x", "a:443"),
        ("http://a:443/x", "a"),
        ("http://a:/x", "a"),
        ("http://a:", "a:"),
        ("http://u:p@a/x", "a"),
        ("http://u:p@a:80/x", "a:80"),
        ("http://u@a/x", "u@a"),
        ("http:///x", "a"),
        ("http:/x", "a"),
        ("http:x", "a"),
        ("ftp://a/x", "a"),
        ("HTTP://A/x", "a"),
        ("http://[::1]/x", "[::1]"),
        ("http://[::1]:80/x", "[::1]"),
        ("http://[::1/x", "[::1"),
        ("http://a@b@c/x", "c"),
        ("//a/x", "b"),
        ("*", "a"),
        ("x", "a"),
        ("/x#y", "a"),
        ("/%zz", "a"),
        ("/a%00b", "a"),
        ("/\u{e9}", "a"),
        ("/a\u{7f}", "a"),
        ("/a\"<>\\^`{|}b", "a"),
        ("http://a/x", "a b"),
        ("a:80", "a"),
        ("http+x://a/x", "a"),
        ("1http://a/x", "a"),
        ("http://a:080/x", "a"),
        ("http://a:0/x", "a"),
    ];
    let pairs = pairs.into_iter().map(|(target, host)| {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        request("target", &format!("{target} {host}"), bytes, "\r\n\r\n")
    });
    let methods = ["OPTIONS", "PUT", "TRACE", "OWN", "get", "DELETE", "PATCH"].into_iter().flat_map(|method| {
        ["/x", "*"].map(|target| {
            let bytes = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            request("method", &format!("{method} {target}"), bytes, "\r\n\r\n")
        })
    });
    let connects = [("a", "a"), ("a:", "a"), ("/x", "a"), ("http://a/", "a"), ("a:81", "a"), ("a:81", "a:82")];
    let connects = connects.into_iter().map(|(target, host)| {
        let bytes = format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        request("connect", &format!("{target} {host}"), bytes, "\r\n\r\n")
    });
    pairs.chain(methods).chain(connects)
}

fn lengths() -> impl Iterator<Item = Case> {
    let values = [
        "5",
        "05",
        "0005",
        "+5",
        "-5",
        "5,5",
        "5, 5 ,5",
        "5,6",
        "5 5",
        "0x5",
        "",
        " ",
        "5;",
        "5.0",
        "5e0",
        "\t5\t",
        "5,",
        ",5",
        "5\u{1}",
        "\u{662}",
        "five",
        "9223372036854775808",
        "99999999999999999999",
        "0",
    ];
    let fields = [
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length:\r\n 5\r\n",
        "CONTENT-LENGTH: 5\r\n",
        "Content-Length : 5\r\n",
        "Content_Length: 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
    ];
    let post = |variation: &str, fields: &str| {
        let bytes = format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\nhello");
        let end = if fields.contains(": 5") || fields.contains("05") || fields.contains("\t5") {
            "hello"
        } else {
            "\r\n\r\n"
        };
        request("length", variation, bytes, end)
    };
    let values = values.into_iter().map(move |value| post(value, &format!("Content-Length: {value}\r\n")));
    let versions = ["GET", "HEAD", "POST", "PUT", "DELETE"].into_iter().flat_map(|method| {
        ["1.0", "1.1"].map(|version| {
            let bytes = format!("{method} /x HTTP/{version}\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
            request("length of", &format!("{method} in {version}"), bytes, "hello")
        })
    });
    values.chain(fields.into_iter().map(move |fields| post(fields, fields))).chain(versions)
}

fn encodings() -> impl Iterator<Item = Case> {
    let values = [
        "chunked",
        "Chunked",
        "CHUNKED ",
        "\tchunked",
        "chunked;q=1",
        "chunked, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "gzip",
        "identity",
        "identity, chunked",
        "chunked, identity",
        "x chunked",
        "chunkedx",
        "xchunked",
        "",
        ",chunked",
        "chunked,",
        " ,chunked",
        "\"chunked\"",
        "\u{b}chunked",
        "chunked\u{b}",
        "trailers, chunked",
        "chun\tked",
        "\u{a0}chunked",
        "chunked\u{0}",
    ];
    let fields = [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: x\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer_Encoding: chunked\r\n",
        "Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n",
    ];
    let post = |variation: &str, fields: &str| {
        let bytes = format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n5\r\nhello\r\n0\r\n\r\n");
        request("encoding", variation, bytes, "0\r\n\r\n")
    };
    let values = values.into_iter().map(move |value| post(value, &format!("Transfer-Encoding: {value}\r\n")));
    let versions = ["GET", "POST"].into_iter().flat_map(|method| {
        ["1.0", "1.1"].map(|version| {
            let head = format!("{method} /x HTTP/{version}\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            request("encoding of", &format!("{method} in {version}"), head + "5\r\nhello\r\n0\r\n\r\n", "0\r\n\r\n")
        })
    });
    values.chain(fields.into_iter().map(move |fields| post(fields, fields))).chain(versions)
}

/// Returns chunked bodies, for requests and responses.
fn bodies() -> Vec<(&'static str, String)> {
    let mut bodies: Vec<(&str, String)> = [
        ("plain", "5\r\nhello\r\n0\r\n\r\n"),
        ("two chunks", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        ("size in capitals", "A\r\n0123456789\r\n0\r\n\r\n"),
        ("size with zeros", "0000000000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("last with zeros", "5\r\nhello\r\n0000\r\n\r\n"),
        ("size with a blank", "5 \r\nhello\r\n0\r\n\r\n"),
        ("size with a tab", "5\t\r\nhello\r\n0\r\n\r\n"),
        ("blank first", " 5\r\nhello\r\n0\r\n\r\n"),
        ("minus", "-5\r\nhello\r\n0\r\n\r\n"),
        ("plus", "+5\r\nhello\r\n0\r\n\r\n"),
        ("0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("two sizes", "5 5\r\nhello\r\n0\r\n\r\n"),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("underscore", "5_0\r\nhello\r\n0\r\n\r\n"),
        ("beyond 52 bits", "10000000000000\r\nhello\r\n0\r\n\r\n"),
        ("beyond 64 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("too long", "5\r\nhello!\r\n0\r\n\r\n"),
        ("too short", "5\r\nhell\r\n0\r\n\r\n"),
        ("LF behind the size", "5\nhello\r\n0\r\n\r\n"),
        ("CR behind the size", "5\rhello\r\n0\r\n\r\n"),
        ("LF behind the data", "5\r\nhello\n0\r\n\r\n"),
        ("LF behind the last", "5\r\nhello\r\n0\n\r\n"),
        ("extension", "5;a=b\r\nhello\r\n0;c\r\n\r\n"),
        ("extension in quotes", "5;a=\"b\\\"c\"\r\nhello\r\n0\r\n\r\n"),
        ("extension without a name", "5;\r\nhello\r\n0\r\n\r\n"),
        ("extension with a tab", "5;\ta\r\nhello\r\n0\r\n\r\n"),
        ("extension with NUL", "5;\0\r\nhello\r\n0\r\n\r\n"),
        ("extension with DEL", "5;\u{7f}\r\nhello\r\n0\r\n\r\n"),
        ("extension with ESC", "5;\u{1b}\r\nhello\r\n0\r\n\r\n"),
        ("extension with an open quote", "5;a=\"\r\nhello\r\n0\r\n\r\n"),
        ("extension with a backslash", "5;a\\b\r\nhello\r\n0\r\n\r\n"),
        ("extension with a LF", "5;a\nhello\r\n0\r\n\r\n"),
        ("extension with a CR", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("extension beyond ASCII", "5;\u{e9}\r\nhello\r\n0\r\n\r\n"),
        ("trailer", "5\r\nhello\r\n0\r\nT: v\r\n\r\n"),
        ("trailer that frames", "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("trailer with a length", "5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n"),
        ("trailer with a host", "5\r\nhello\r\n0\r\nHost: b c\r\n\r\n"),
        ("trailer without a colon", "5\r\nhello\r\n0\r\nT\r\n\r\n"),
        ("trailer without a name", "5\r\nhello\r\n0\r\n: v\r\n\r\n"),
        ("trailer with a blank", "5\r\nhello\r\n0\r\nT : v\r\n\r\n"),
        ("trailer with NUL", "5\r\nhello\r\n0\r\nT: \0\r\n\r\n"),
        ("trailer with a CR", "5\r\nhello\r\n0\r\nT: a\rb\r\n\r\n"),
        ("trailer that is folded", "5\r\nhello\r\n0\r\nT: a\r\n b\r\n\r\n"),
    ]
    .map(|(name, body)| (name, body.to_owned()))
    .into();
    let trailers = |count: usize| format!("5\r\nhello\r\n0\r\n{}\r\n", "T: v\r\n".repeat(count));
    bodies.push(("100 trailers", trailers(100)));
    bodies.push(("101 trailers", trailers(101)));
    bodies.push(("long name of a trailer", format!("5\r\nhello\r\n0\r\n{}: v\r\n\r\n", "t".repeat(256))));
    bodies.push(("long extension", format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(9000))));
    bodies
}

fn chunks() -> impl Iterator<Item = Case> {
    bodies().into_iter().map(|(name, body)| {
        let head = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        // Trailers are passed on, so the server can wait only for the last chunk's line.
        let end = if name.contains("trailer") { "\r\n\r\n5\r\nhello\r\n0\r\n" } else { "0\r\n\r\n" };
        request("chunks", name, head.to_owned() + &body, end)
    })
}

fn lines() -> impl Iterator<Item = Case> {
    let lines = [
        "GET /x HTTP/1.2\r\n",
        "GET /x HTTP/2.0\r\n",
        "GET /x HTTP/9.9\r\n",
        "GET /x HTTP/1.10\r\n",
        "GET /x HTTP/1\r\n",
        "GET /x HTTP/11\r\n",
        "GET /x http/1.1\r\n",
        "GET /x HTTQ/1.1\r\n",
        "GET /x RTSP/1.0\r\n",
        "GET /x\r\n",
        "GET\r\n",
        "GET  /x  HTTP/1.1\r\n",
        "GET\t/x\tHTTP/1.1\r\n",
        "GET /x HTTP/1.1 \r\n",
        "GET /x y HTTP/1.1\r\n",
        " GET /x HTTP/1.1\r\n",
        "\rGET /x HTTP/1.1\r\n",
        "\n\nGET /x HTTP/1.1\r\n",
        "\r\n\r\nGET /x HTTP/1.1\r\n",
        "G(T /x HTTP/1.1\r\n",
        "G\0T /x HTTP/1.1\r\n",
        "G\u{e9}T /x HTTP/1.1\r\n",
        "G:T /x HTTP/1.1\r\n",
        "GET /x HTTP/1.1\n",
        "GET /x HTTP/1.1\r\r\n",
    ];
    let lines = lines.into_iter().map(|line| request("line", line, format!("{line}Host: a\r\n\r\n"), "\r\n\r\n"));
    let fields = [
        "X Y: b\r\n",
        ": b\r\n",
        "Xb\r\n",
        "X\0: b\r\n",
        "X\u{e9}: b\r\n",
        "X(: b\r\n",
        "X\u{1}: b\r\n",
        "X : b\r\n",
        "X\t: b\r\n",
        "X_Y: b\r\n",
        "X.Y: b\r\n",
        "X@Y: b\r\n",
        "X: a\0b\r\n",
        "X: a\rb\r\n",
        "X: a\u{1}b\r\n",
        "X: a\u{7f}b\r\n",
        "X: \u{e9}\r\n",
        "X:\r\n",
        "X: \t \r\n",
        "X:\ta\t\r\n",
        " X: b\r\n",
        "X: a\r\n b\r\n",
        "X: a\n b\r\n",
        "X: a\r\n \r\n",
        "X\r\n : a\r\n",
        "X:\r\n b\r\n",
        "X: a\r\r\n",
        "X: b\n",
        "Connection: close\r\n",
        "Connection: Close, x\r\n",
        "Connection: keep-alive, x\r\n",
        "Connection: host\r\n",
        "Connection: content-length\r\n",
        "Connection:\r\n",
        "Connection: ,,\r\n",
        "Proxy-Connection: close\r\n",
        "Keep-Alive: timeout=5\r\n",
        "TE: trailers, gzip\r\n",
        "TE: gzip\r\n",
        "Trailer: x\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        "Connection: upgrade\r\nUpgrade: x\r\n",
        "Expect: x\r\n",
    ];
    let fields = fields.into_iter().map(|field| get("field", field, &format!("A: b\r\n{field}Host: a\r\n")));
    let long = [
        ("name of 255", format!("{}: b\r\n", "x".repeat(255))),
        ("name of 256", format!("{}: b\r\n", "x".repeat(256))),
        ("name of 15,000", format!("{}: b\r\n", "x".repeat(15_000))),
        ("value of 15,000", format!("X: {}\r\n", "y".repeat(15_000))),
        ("100 fields", "X: y\r\n".repeat(99)),
        ("101 fields", "X: y\r\n".repeat(100)),
        ("102 fields", "X: y\r\n".repeat(101)),
    ];
    let long = long.into_iter().map(|(name, fields)| get("long", name, &format!("Host: a\r\n{fields}")));
    lines.chain(fields).chain(long)
}

/// Returns a case in which the server answers a GET with `bytes`, and the next request with a plain response.
fn answer(group: &str, variation: &str, bytes: String) -> Case {
    case(name(group, variation), vec![send(NEXT.to_owned() + LAST), Step::End], vec![reply(bytes), reply(OK)])
}

fn answers() -> impl Iterator<Item = Case> {
    let lines = [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200",
        "HTTP/1.1 200 ",
        "HTTP/1.1  200  OK",
        "HTTP/1.1\t200\tOK",
        "HTTP/1.0 200 OK",
        "HTTP/1.2 200 OK",
        "HTTP/2.0 200 OK",
        "HTTP/1 200 OK",
        "HTTP/1.10 200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 999 OK",
        "HTTP/1.1 2a0 OK",
        "HTTP/1.1 -20 OK",
        "HTTP/1.1",
        "HTTP/1.1 200OK",
        "ICY 200 OK",
        "RTSP/1.0 200 OK",
        " HTTP/1.1 200 OK",
        "HTTP/1.1 200 \u{e9}",
        "HTTP/1.1 200 O\u{1}K",
        "HTTP/1.1 200 O\rK",
        "\r\nHTTP/1.1 200 OK",
    ];
    let lines = lines.into_iter().map(|line| answer("answer", line, format!("{line}\r\nContent-Length: 3\r\n\r\nabc")));
    let fields = [
        "Content-Length: 03\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3,3\r\n",
        "Content-Length: 3,4\r\n",
        "Content-Length:\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: x\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length: 0\r\n",
    ];
    let fields = fields.into_iter().map(|field| answer("answer", field, format!("HTTP/1.1 200 OK\r\n{field}\r\nabc")));
    let plain = [
        "X Y: b\r\n",
        ": b\r\n",
        "Xb\r\n",
        "X\0: b\r\n",
        "X : b\r\n",
        "X: a\rb\r\n",
        "X: \u{1}\r\n",
        "X: \u{e9}\r\n",
        "X: a\r\n b\r\n",
        "X: a\r\n Content-Length: 9\r\n",
        " X: b\r\n",
        "Connection: close\r\n",
        "Connection: x\r\n",
        "Keep-Alive: 5\r\n",
        "Proxy-Connection: x\r\n",
        "Upgrade: x\r\n",
        "TE: x\r\n",
        "Trailer: x\r\n",
        "Host: a b\r\n",
    ];
    let plain = plain
        .into_iter()
        .map(|field| answer("answer", field, format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 3\r\n\r\nabc")));
    let encodings = [
        "chunked",
        "Chunked",
        "gzip, chunked",
        "chunked, gzip",
        "gzip",
        "identity",
        "",
        "chunked, chunked",
        "chunked;x",
        "xchunked",
        "chunked,",
        ",chunked",
        "\"chunked\"",
        "chunked\r\nTransfer-Encoding: chunked",
        "chunked\r\nContent-Length: 3",
        "chunked\r\nContent-Length: 9",
    ];
    let encodings = encodings.into_iter().map(|value| {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {value}\r\n\r\n");
        answer("encoded answer", value, head + "3\r\nabc\r\n0\r\n\r\n")
    });
    let chunks = bodies().into_iter().map(|(name, body)| {
        answer("chunks of an answer", name, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned() + &body)
    });
    let statuses = [100, 102, 103, 199, 101, 204, 304, 205].into_iter().flat_map(|status| {
        [
            "",
            "Transfer-Encoding: chunked\r\n",
            "Content-Length: 0\r\n",
            "Content-Length: 3\r\n",
            "Connection: close\r\n",
        ]
        .map(|field| {
            let further = if status < 200 { OK } else { "" };
            answer("status", &format!("{status} {field}"), format!("HTTP/1.1 {status} X\r\n{field}\r\n{further}"))
        })
    });
    lines.chain(fields).chain(plain).chain(encodings).chain(chunks).chain(statuses)
}

#[test]
fn requests_and_responses_are_read_as_by_haproxy_2_8() {
    let groups: [Vec<Case>; 2] = [
        hosts().chain(targets()).chain(lengths()).chain(encodings()).collect(),
        chunks().chain(lines()).chain(answers()).collect(),
    ];
    let mut faults = String::new();
    for cases in &groups {
        // Both run concurrently, because both wait for timeouts of incomplete messages.
        let (theirs, ours) = std::thread::scope(|scope| {
            let theirs = scope.spawn(|| transcripts(cases, Haproxy::start_2_8));
            let ours = transcripts(cases, crate::start);
            (theirs.join().expect("no panic"), ours)
        });
        // A proxy is free to choose a connection to the server for the second request: HAProxy closes excess idle ones.
        let joined = |transcripts: Vec<String>| -> Vec<String> {
            transcripts.iter().map(|transcript| transcript.replace("--- server\n", "")).collect()
        };
        let (theirs, ours) = (joined(theirs), joined(ours));
        for ((case, theirs), ours) in cases.iter().zip(&theirs).zip(&ours) {
            let reason = ACCEPTED.iter().find(|(start, _)| case.name.starts_with(start)).map(|(_, reason)| *reason);
            match reason {
                None if theirs != ours => {
                    faults.push_str(&format!("=== {}\nhaproxy:\n{theirs}\nhere:\n{ours}\n", case.name));
                }
                Some(reason) if theirs == ours => {
                    faults.push_str(&format!("=== {}: no longer differs ({reason})\n", case.name));
                }
                _ => {}
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}
