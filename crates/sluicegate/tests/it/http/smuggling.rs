//! Bytes that two readers might read differently, and bytes that are no HTTP at all.
//!
//! A second request follows each of these; it must be answered, or be left unread, exactly as with haproxy.

use super::{Case, case, reply, reply_after, send};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";

const BAD_REQUEST: &str = "HTTP/1.1 400 Bad request\ncontent-length: 90\ncache-control: no-cache\nconnection: close\n\
    content-type: text/html\n\n<html><body><h1>400 Bad request</h1>\nYour browser sent an invalid request.\n\
    </body></html>\n\n";
const BAD_GATEWAY: &str = "HTTP/1.1 502 Bad Gateway\ncontent-length: 107\ncache-control: no-cache\n\
    content-type: text/html\n\n<html><body><h1>502 Bad Gateway</h1>\n\
    The server returned an invalid or incomplete response.\n</body></html>\n\n";

const TWO_ANSWERS: &str = "HTTP/1.1 200 OK\ncontent-length: 3\n\none\nHTTP/1.1 200 OK\ncontent-length: 3\n\none\n";
const NEXT_SEEN: &str = "GET /next HTTP/1.1\nhost: h\n\n";

/// A request that is expected to end the connection, and another one, which must not be answered.
fn refused(name: &'static str, request: &str) -> Case {
    case(name, vec![send(format!("{request}{NEXT}"))], vec![reply(OK), reply(OK)])
}

/// A request whose last bytes are `end`, followed by another.
fn passed(name: &'static str, request: &str, end: &'static str) -> Case {
    case(name, vec![send(format!("{request}{NEXT}"))], vec![reply_after(end, OK), reply(OK)]).splits()
}

/// A request that haproxy 2.6 passes and 3.2 refuses.
fn refused_since(version: &'static str, name: &'static str, request: &str) -> Case {
    refused(name, request).instead(version, BAD_REQUEST)
}

/// An answer that haproxy passes and that is refused here.
fn refused_answer(why: &'static str, name: &'static str, response: &str) -> Case {
    answered(name, response).instead(why, format!("{BAD_GATEWAY}--- server\n{NEXT_SEEN}"))
}

/// An answer of the server to a GET.
fn answered(name: &'static str, response: &str) -> Case {
    case(name, vec![send(NEXT)], vec![reply(response)])
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        // Lengths.
        refused("two lengths", "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
        refused("two lengths in a list", "POST / HTTP/1.1\r\nContent-Length: 3, 4\r\n\r\nabc"),
        passed("equal lengths", "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "abc"),
        passed("equal lengths in a list", "POST / HTTP/1.1\r\nContent-Length: 3, 3 ,3\r\n\r\nabc", "abc"),
        passed("length with zeros", "POST / HTTP/1.1\r\nContent-Length: 003\r\n\r\nabc", "abc")
            .instead("3.2 passes the number on without its zeros", format!("{TWO_ANSWERS}--- server\nPOST / HTTP/1.1\ncontent-length: 3\n\nabc\n{NEXT_SEEN}")),
        refused("length with a sign", "POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc"),
        refused("negative length", "POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc"),
        refused("length in hex", "POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc"),
        refused("length with a word", "POST / HTTP/1.1\r\nContent-Length: 3 a\r\n\r\nabc"),
        refused("length too large", "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc"),
        refused("empty length", "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n"),
        refused("length with an empty element", "POST / HTTP/1.1\r\nContent-Length: 3,\r\n\r\nabc"),
        // Length and encoding.
        passed("encoding and length", "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "0\r\n\r\n"),
        passed("length and encoding", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "0\r\n\r\n"),
        passed("encoding in 1.0", "POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "0\r\n\r\n"),
        refused("encoding that is not chunked", "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nabc"),
        refused("identity", "POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc"),
        refused("chunked is not last", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
        refused("chunked after gzip", "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        refused("chunked twice", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        refused("chunked on two lines", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        refused("nearly chunked", "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        refused("chunked in quotes", "POST / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
        passed("chunked in capitals", "POST / HTTP/1.1\r\nTRANSFER-ENCODING: \t CHUNKED \r\n\r\n0\r\n\r\n", "0\r\n\r\n"),
        refused("empty encoding", "POST / HTTP/1.1\r\nTransfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc"),
        refused("blank before the colon", "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        passed("folded encoding", "POST / HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "0\r\n\r\n"),
        refused("vertical tab in the encoding", "POST / HTTP/1.1\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n"),
        refused("1.0 get with a body", "GET / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"),
        // Chunks.
        refused("chunk size with a sign", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n"),
        refused("chunk size with 0x", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n"),
        refused("chunk size that is none", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n"),
        refused("empty chunk size", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n"),
        refused("chunk size too large", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n100000000000000003\r\nabc\r\n0\r\n\r\n"),
        refused("chunk too long", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"),
        refused_since("refused since 2.9", "chunk with LF at its end", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab\r\n0\r\n\r\n"),
        passed("chunk size with zeros", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\n\r\n", "0\r\n\r\n"),
        passed("chunk size with blanks", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", "0\r\n\r\n"),
        passed("chunk extensions", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\";c\r\nabc\r\n0;d\r\n\r\n", "0\r\n\r\n"),
        refused("chunk size line with a bare CR", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\rabc\r\n0\r\n\r\n"),
        refused_since("refused since 2.9", "chunks with bare LF", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n"),
        refused("bad trailer", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT u\r\n\r\n"),
        passed("framing in trailers", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nContent-Length: 7\r\nHost: evil\r\nX: y\r\n\r\n", "y\r\n\r\n"),
        // Hosts.
        refused("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        passed("equal hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: A\r\n\r\n", "\r\n\r\n"),
        refused("host against target", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        refused("port against target", "GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        refused_since("refused since 2.6.15 or later", "authority as target", "GET a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
        refused("no path", "GET ?x HTTP/1.1\r\nHost: a\r\n\r\n"),
        refused_since("refused since 2.6.15 or later", "asterisk for get", "GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
        refused("connect without port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n"),
        refused("connect to a path", "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n"),
        // Lines.
        passed("empty lines first", "\r\n\r\nGET / HTTP/1.1\r\n\r\n", "\r\n\r\n"),
        passed("bare LF", "GET / HTTP/1.1\nHost: h\n\n", "\r\n\r\n"),
        passed("tabs in the request line", "GET\t/\tHTTP/1.1\r\n\r\n", "\r\n\r\n"),
        passed("folded value", "GET / HTTP/1.1\r\nX: a\r\n b\r\n\t c\r\n\r\n", "\r\n\r\n"),
        refused("fold before the first field", "GET / HTTP/1.1\r\n X: a\r\n\r\n"),
        refused("bare CR in a value", "GET / HTTP/1.1\r\nX: a\rb\r\n\r\n"),
        refused("bare CR in the request line", "GET / HTTP/1.1\rX: a\r\n\r\n"),
        refused_since("refused since 2.6.15 or later", "NUL in a value", "GET / HTTP/1.1\r\nX: a\0b\r\n\r\n"),
        refused("NUL in the target", "GET /\0 HTTP/1.1\r\n\r\n"),
        refused("NUL in a name", "GET / HTTP/1.1\r\nX\0: a\r\n\r\n"),
        refused("no colon", "GET / HTTP/1.1\r\nX\r\n\r\n"),
        refused("no name", "GET / HTTP/1.1\r\n: a\r\n\r\n"),
        refused("parenthesis in a name", "GET / HTTP/1.1\r\nX(: a\r\n\r\n"),
        passed("control character in a value", "GET / HTTP/1.1\r\nX: a\u{1}\u{7f}b\r\n\r\n", "\r\n\r\n"),
        passed("empty value", "GET / HTTP/1.1\r\nX:\r\nY: \t \r\n\r\n", "\r\n\r\n"),
        refused("0.9", "GET /\r\n"),
        refused("0.9 with fields", "GET /\r\nHost: h\r\n\r\n"),
        refused("method only", "GET\r\n\r\n"),
        refused("version 2", "GET / HTTP/2\r\n\r\n"),
        refused("version in lower case", "GET / http/1.1\r\n\r\n"),
        refused("version with two digits", "GET / HTTP/1.10\r\n\r\n"),
        refused("version of another protocol", "GET / RTSP/1.0\r\n\r\n"),
        refused("more after the version", "GET / HTTP/1.1 x\r\n\r\n"),
        refused("bytes above 127 in the target", "GET /\u{e9} HTTP/1.1\r\n\r\n"),
        refused("fragment", "GET /a#b HTTP/1.1\r\n\r\n"),
        refused("tls", "\u{16}\u{3}\u{1}\u{0}\u{5}hello"),
        refused("blank first", " GET / HTTP/1.1\r\n\r\n"),
        refused("too many fields", &format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101))),
        passed("many fields", &format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(100)), "\r\n\r\n"),
        refused("head too large", &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(17_000)))
            .instead("3.2 names what is too long", "HTTP/1.1 431 Request Header Fields Too Large\ncontent-length: 106\ncache-control: no-cache\ncontent-type: text/html\n\n<html><body><h1>431 Request Header Fields Too Large</h1>\n>Request Header Fields Too Large.\n</body></html>\n\n"),
        refused("target too large", &format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(17_000)))
            .instead("3.2 names what is too long", "HTTP/1.1 414 URI Too Long\ncontent-length: 110\ncache-control: no-cache\ncontent-type: text/html\n\n<html><body><h1>414 URI Too Long</h1>\nThe URI provided was too long for the server to process.\n</body></html>\n\n"),
        passed("large head", &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(15_000)), "\r\n\r\n"),
        refused("websocket without key", "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        // Answers.
        answered("two lengths in an answer", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        answered("equal lengths in an answer", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        answered("encoding and length in an answer", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        answered("unknown encoding in an answer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc"),
        answered("gzip and chunked in an answer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        answered("bad chunk in an answer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nxyz\r\n"),
        answered("bad first chunk in an answer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        answered("folded answer", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 3\r\n\r\nabc"),
        answered("bare CR in an answer", "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 3\r\n\r\nabc"),
        refused_answer("not HTTP (RFC 9112 4, RFC 9110 5.5)", "NUL in an answer", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 3\r\n\r\nabc"),
        answered("bad name in an answer", "HTTP/1.1 200 OK\r\nX y: a\r\nContent-Length: 3\r\n\r\nabc"),
        refused_answer("not HTTP (RFC 9112 4, RFC 9110 5.5)", "short status", "HTTP/1.1 20 OK\r\nContent-Length: 3\r\n\r\nabc"),
        refused_answer("not HTTP (RFC 9112 4, RFC 9110 5.5)", "long status", "HTTP/1.1 2000 OK\r\nContent-Length: 3\r\n\r\nabc"),
        answered("answer without version", "200 OK\r\nContent-Length: 3\r\n\r\nabc"),
        answered("answer in version 2", "HTTP/2 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
        answered("answer head too large", &format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 3\r\n\r\nabc", "y".repeat(17_000))),
        answered("101 that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\nabc"),
        answered("encoding in a 1.0 answer", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    ]
}
