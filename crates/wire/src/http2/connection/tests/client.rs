//! The client's side.

use super::*;
use crate::http2::Unsendable;

/// A request without a body.
fn get(method: &str, target: &str, fields: &[(&str, &str)]) -> Message {
    let mut message = Message::new();
    message.set_request(method.as_bytes(), target.as_bytes(), Version::Http11);
    for (name, value) in fields {
        message.add(name.as_bytes(), value.as_bytes());
    }
    message
}

fn side() -> Side {
    Side::client(Settings::default(), &[(setting::ENABLE_CONNECT_PROTOCOL, 1)])
}

/// Opens a stream and sends a request.
fn send(side: &mut Side, message: &Message, body: Framing, end: bool) -> Result<StreamKey, Unsendable> {
    let key = side.connection.open().expect("the server accepts streams");
    side.connection.send_request(key, message, body, true, end)?;
    side.streams.push(key);
    Ok(key)
}

/// Opens streams for requests without a body.
fn open(side: &mut Side, count: usize) -> Vec<StreamKey> {
    let keys = (0..count).map(|_| send(side, &get("GET", "/", &[]), Framing::None, true).unwrap()).collect();
    side.sent();
    keys
}

#[test]
fn a_request_and_its_response() {
    let mut side = Side::of(Connection::client(Settings::default()));
    side.connection.wrote(PREFACE.len());
    assert_eq!(side.sent(), ["SETTINGS 2=0 8=1 4=16384 3=100"]);
    // A client need not wait for the server's settings.
    let message = get("POST", "/a?b", &[("Host", "h"), ("x", "y")]);
    let key = send(&mut side, &message, Framing::Length(4), false).unwrap();
    assert_eq!(side.connection.send_data(key, b"body", true), 4);
    let head = "HEADERS 1\n:method: POST\n:scheme: https\n:path: /a?b\nhost: h\nx: y\ncontent-length: 4";
    assert_eq!(side.sent(), [head, "DATA 1 body end"]);
    let input = [settings(&[]), headers(1, ":status: 103\nlink: a"), headers(1, ":status: 200\nx: y"), data(1, "ab")];
    assert_eq!(
        side.receive(&input.concat()),
        ["settings", "response 1 None\nHttp2 103\nlink: a", "response 1 Chunked\nHttp2 200\nx: y", "data 1 ab"]
    );
    assert_eq!(side.receive(&last_headers(1, "grpc-status: 0")), ["trailers 1\ngrpc-status: 0"]);
    assert!(side.connection.is_closed(key));
    side.connection.release(key);
    assert_eq!(side.sent(), ["SETTINGS ack", "WINDOW_UPDATE 0 2147418114"]);
    assert_eq!(side.connection.open().map(StreamKey::id), Some(3));
}

#[test]
fn requests_as_they_are_written() {
    let check = |message: &Message, body: Framing, expected: &str| {
        let mut side = side();
        send(&mut side, message, body, false).unwrap();
        assert_eq!(side.sent(), [format!("HEADERS 1\n{expected}")]);
    };
    let of = |method: &str, target: &str, expected: &str| {
        let fields = [("host", "b"), ("te", "gzip, trailers"), ("keep-alive", "1"), ("transfer-encoding", "chunked")];
        check(&get(method, target, &fields), Framing::Chunked, expected);
    };
    of("GET", "/", ":method: GET\n:scheme: https\n:path: /\nhost: b\nte: trailers");
    of("PUT", "/c", ":method: PUT\n:scheme: https\n:path: /c\nhost: b\nte: trailers");
    of("GET", "http://a/c", ":method: GET\n:scheme: http\n:authority: a\n:path: /c\nte: trailers");
    of("GET", "ftp://u:p@a:1/c", ":method: GET\n:scheme: ftp\n:authority: a:1\n:path: /c\nte: trailers");
    of("GET", "https://a", ":method: GET\n:scheme: https\n:authority: a\n:path: /\nte: trailers");
    of("GET", "https://a?c", ":method: GET\n:scheme: https\n:authority: a\n:path: /?c\nte: trailers");
    of("OPTIONS", "https://a", ":method: OPTIONS\n:scheme: https\n:authority: a\n:path: *\nte: trailers");
    of("OPTIONS", "*", ":method: OPTIONS\n:scheme: https\n:path: *\nhost: b\nte: trailers");
    of("GET", "/c?http://d/", ":method: GET\n:scheme: https\n:path: /c?http://d/\nhost: b\nte: trailers");
    of("CONNECT", "a:1", ":method: CONNECT\n:authority: a:1\nte: trailers");
    let websocket = [("host", "h"), ("connection", "keep-alive, Upgrade"), ("upgrade", "websocket, x"), ("x", "y")];
    let extended = ":method: CONNECT\n:scheme: https\n:authority: h\n:path: /c\n:protocol: websocket\nx: y";
    check(&get("GET", "/c", &websocket), Framing::None, extended);
    check(&get("GET", "/c", &websocket[2..]), Framing::None, ":method: GET\n:scheme: https\n:path: /c\nx: y");

    assert_eq!(send(&mut side(), &get("GET", "", &[]), Framing::None, true), Err(Unsendable::Target));
    let message = get("POST", "/c", &websocket);
    assert_eq!(send(&mut side(), &message, Framing::Chunked, false), Err(Unsendable::UpgradeWithBody));
    let mut without = Side::client(Settings::default(), &[]);
    let message = get("GET", "/c", &websocket);
    assert_eq!(send(&mut without, &message, Framing::None, false), Err(Unsendable::NoExtendedConnect));
    // The stream's identifier was not used, so no reset is sent for it.
    assert_eq!(without.sent(), [""; 0]);
}

#[test]
fn responses_become_messages() {
    let check = |method: &str, end: bool, fields: &str, expected: &str| {
        let mut side = side();
        send(&mut side, &get(method, "/", &[]), Framing::None, true).unwrap();
        let input = if end { last_headers(1, fields) } else { headers(1, fields) };
        assert_eq!(side.receive(&input), [expected], "{fields}");
    };
    let ok = |end: bool, fields: &str, expected: &str| check("GET", end, fields, &format!("response 1 {expected}"));
    ok(false, ":status: 200", "Chunked\nHttp2 200");
    ok(true, ":status: 200", "Length(0) end\nHttp2 200");
    ok(false, ":status: 200\ncontent-length: 5", "Length(5)\nHttp2 200\ncontent-length: 5");
    ok(false, ":status: 999\nx:  y", "Chunked\nHttp2 999\nx: y");
    ok(true, ":status: 204", "None end\nHttp2 204");
    ok(true, ":status: 304\ncontent-length: 5", "None end\nHttp2 304\ncontent-length: 5");
    ok(false, ":status: 100", "None\nHttp2 100");
    ok(true, ":status: 200\nset-cookie: a\nset-cookie: b", "Length(0) end\nHttp2 200\nset-cookie: a\nset-cookie: b");
    check("HEAD", true, ":status: 200\ncontent-length: 5", "response 1 None end\nHttp2 200\ncontent-length: 5");
    for fields in [
        "x: y",
        ":status: 20",
        ":status: 2000",
        ":status: 099",
        ":status: 2x0",
        ":status: 101",
        ":status: 200\n:status: 200",
        ":status: 200\n:path: /",
        ":status: 200\nx: y\n:status: 200",
        ":status: 200\n:odd: y",
        ":status: 200\nX: y",
        ":status: 200\nx: \r",
        ":status: 200\nconnection: close",
        ":status: 200\ntransfer-encoding: chunked",
        ":status: 200\ncontent-length: 1, 2",
        ":status: 200\ncontent-length: 1",
        ":status: 103",
    ] {
        check("GET", true, fields, "reset 1 PROTOCOL_ERROR");
    }
}

#[test]
fn bodies_of_responses() {
    let check = |method: &str, input: &[Vec<u8>], last: &str| {
        let mut side = side();
        send(&mut side, &get(method, "/", &[]), Framing::None, true).unwrap();
        assert_eq!(side.receive(&input.concat()).last().unwrap(), last);
    };
    check("GET", &[headers(1, ":status: 200\ncontent-length: 2"), last_data(1, "ab")], "end 1");
    check("GET", &[headers(1, ":status: 200\ncontent-length: 2"), last_data(1, "a")], "reset 1 PROTOCOL_ERROR");
    check("GET", &[data(1, "a")], "reset 1 PROTOCOL_ERROR");
    check("GET", &[headers(1, ":status: 100"), data(1, "a")], "reset 1 PROTOCOL_ERROR");
    check("GET", &[headers(1, ":status: 204"), last_data(1, "")], "end 1");
    // Data of a response that has no body is ignored.
    check("GET", &[headers(1, ":status: 204"), data(1, "a"), last_data(1, "b")], "end 1");
    check("GET", &[headers(1, ":status: 204"), data(1, "a")], "response 1 None\nHttp2 204");
    check("GET", &[headers(1, ":status: 304\ncontent-length: 9"), last_data(1, "a")], "end 1");
    check("HEAD", &[headers(1, ":status: 200\ncontent-length: 5"), last_data(1, "")], "end 1");
    check("HEAD", &[headers(1, ":status: 200\ncontent-length: 5"), last_data(1, "a")], "end 1");
    check("GET", &[headers(1, ":status: 200"), headers(1, "x: y")], "reset 1 PROTOCOL_ERROR");
}

/// The scheme of a request whose target has none, because it named no authority.
#[test]
fn schemes_go_from_one_side_to_the_other() {
    for scheme in ["http", "https"] {
        let mut server = Side::server(Settings::default());
        server.receive(&last_headers(1, &format!(":method: GET\n:scheme: {scheme}\n:path: /\nhost: a")));
        let mut copy = Message::new();
        copy.copy_from(&server.message);
        let mut side = side();
        send(&mut side, &copy, Framing::None, true).unwrap();
        assert_eq!(side.sent(), [format!("HEADERS 1 end\n:method: GET\n:scheme: {scheme}\n:path: /\nhost: a")]);
    }
}

#[test]
fn tunnels() {
    let mut side = side();
    let connect = send(&mut side, &get("CONNECT", "a:1", &[]), Framing::None, true).unwrap();
    let fields = [("host", "h"), ("connection", "upgrade"), ("upgrade", "websocket")];
    let extended = send(&mut side, &get("GET", "/", &fields), Framing::None, true).unwrap();
    assert!(side.sent().iter().all(|text| !text.contains(" end")), "a tunnel stays open");
    let input = [headers(1, ":status: 200\ncontent-length: 5"), headers(3, ":status: 200")].concat();
    assert_eq!(
        side.receive(&input),
        [
            "response 1 None\nHttp2 200\ncontent-length: 5",
            "response 3 None\nHttp2 101\nconnection: upgrade\nupgrade: websocket"
        ]
    );
    assert_eq!(side.receive(&[data(1, "more than 5"), data(3, "in")].concat()), ["data 1 more than 5", "data 3 in"]);
    side.connection.send_data(connect, b"a", true);
    side.connection.send_data(extended, b"b", false);
    assert_eq!(side.sent(), ["DATA 1 a end", "DATA 3 b"]);
    // Attempts that fail have an ordinary body.
    send(&mut side, &get("GET", "/", &fields), Framing::None, true).unwrap();
    assert_eq!(side.receive(&last_headers(5, ":status: 403")), ["response 5 Length(0) end\nHttp2 403"]);
}

#[test]
fn the_server_s_limits_are_kept() {
    let of_server = [(setting::MAX_CONCURRENT_STREAMS, 2), (setting::MAX_FRAME_SIZE, 20_000)];
    let mut side = Side::client(Settings { output_max: 1 << 20, ..Settings::default() }, &of_server);
    assert_eq!((side.connection.streams_limit(), side.connection.available_streams()), (2, 2));
    let keys = open(&mut side, 2);
    assert_eq!(side.connection.open(), None);
    assert_eq!(side.receive(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)])), ["settings"]);
    side.receive(&last_headers(1, ":status: 200"));
    assert_eq!(side.connection.available_streams(), 0);
    side.receive(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 1000)]));
    assert_eq!((side.connection.streams_limit(), side.connection.available_streams()), (100, 99));
    side.connection.release(keys[0]);
    let key = send(&mut side, &get("POST", "/", &[]), Framing::Chunked, false).unwrap();
    side.sent();
    side.connection.send_data(key, &[b'x'; 30_000], true);
    let lens: Vec<_> = side.sent().iter().map(String::len).collect();
    assert_eq!(lens, [20_007, 10_011]);
}

fn goaway(last: u32, code: ErrorCode) -> Vec<u8> {
    frame(Kind::GoAway, 0, 0, &[&last.to_be_bytes()[..], &code.0.to_be_bytes()].concat())
}

#[test]
fn requests_that_may_be_repeated() {
    let mut side = side();
    let keys = open(&mut side, 5);
    side.receive(&rst_stream(1, ErrorCode::REFUSED_STREAM));
    assert!(side.connection.is_unprocessed(keys[0]));
    side.receive(&rst_stream(3, ErrorCode::CANCEL));
    assert!(!side.connection.is_unprocessed(keys[1]));
    // First the announcement, then the last stream that was processed.
    assert_eq!(side.receive(&goaway(frame::MAX_31, ErrorCode::NO_ERROR)), ["goaway 2147483647 NO_ERROR"]);
    assert_eq!((side.connection.open(), side.connection.is_last_stream_opened()), (None, true));
    let events = side.receive(&[goaway(5, ErrorCode::NO_ERROR), headers(5, ":status: 200")].concat());
    assert_eq!(
        events,
        [
            "goaway 5 NO_ERROR",
            "reset 7 REFUSED_STREAM by peer",
            "reset 9 REFUSED_STREAM by peer",
            "response 5 Chunked\nHttp2 200",
        ]
    );
    assert_eq!(
        keys.iter().map(|key| side.connection.is_unprocessed(*key)).collect::<Vec<_>>(),
        [true, false, false, true, true]
    );
    assert_eq!(side.sent(), [""; 0]);
}

#[test]
fn a_goaway_that_excludes_answered_streams() {
    let mut side = side();
    open(&mut side, 3);
    side.receive(&[headers(3, ":status: 200"), headers(5, ":status: 103")].concat());
    let events = side.receive(&[goaway(0, ErrorCode::NO_ERROR), last_data(3, "x")].concat());
    let resets = ["reset 1 REFUSED_STREAM by peer", "reset 5 REFUSED_STREAM by peer"];
    assert_eq!(events, [&["goaway 0 NO_ERROR"], &resets[..], &["data 3 x", "end 3"]].concat());
}

#[test]
fn numbers_of_streams_end() {
    let mut side = side();
    side.connection.last_opened = frame::MAX_31 - 4;
    assert_eq!(side.connection.available_streams(), 2);
    assert_eq!(side.connection.open().map(StreamKey::id), Some(frame::MAX_31 - 2));
    assert_eq!(side.connection.open().map(StreamKey::id), Some(frame::MAX_31));
    assert_eq!((side.connection.open(), side.connection.is_last_stream_opened()), (None, true));
}

#[test]
fn errors_of_a_server() {
    for (input, code) in [
        (headers(2, ":status: 200"), ErrorCode::PROTOCOL_ERROR),
        (headers(5, ":status: 200"), ErrorCode::PROTOCOL_ERROR),
        (data(5, "x"), ErrorCode::PROTOCOL_ERROR),
        (settings(&[(setting::ENABLE_PUSH, 2)]), ErrorCode::PROTOCOL_ERROR),
        (settings(&[(setting::ENABLE_CONNECT_PROTOCOL, 2)]), ErrorCode::PROTOCOL_ERROR),
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0xbe]), ErrorCode::COMPRESSION_ERROR),
    ] {
        let mut side = side();
        open(&mut side, 2);
        assert_eq!(side.receive(&input), [format!("failed {code}")]);
        assert_eq!(side.sent(), [format!("GOAWAY 0 {code}")]);
    }
    let mut push = frame(Kind::Ping, flag::END_HEADERS, 1, &[0, 0, 0, 2, 0x82, 0x86, 0x84, 0x84]);
    push[3] = 5;
    let mut side = side();
    open(&mut side, 1);
    assert_eq!(side.receive(&push), ["failed PROTOCOL_ERROR"]);
}

/// RFC 9113 forbids it, but it has no effect, and HAProxy accepts it.
#[test]
fn a_server_may_say_that_it_accepts_pushes() {
    let mut side = side();
    assert_eq!(side.receive(&settings(&[(setting::ENABLE_PUSH, 1)])), ["settings"]);
}

#[test]
fn requests_that_are_cancelled() {
    let mut side = side();
    let keys = open(&mut side, 2);
    let unsent = side.connection.open().unwrap();
    side.connection.release(unsent);
    side.connection.release(keys[0]);
    assert_eq!(side.sent(), ["RST_STREAM 1 CANCEL"]);
    // What the server has sent before is read, for the tables, and dropped.
    let response = frame(Kind::Headers, flag::END_HEADERS, 1, &[0x88, 0x40, 1, b'x', 1, b'y']);
    assert_eq!(side.receive(&[response, data(1, "abc"), last_data(1, "")].concat()), [""; 0]);
    let response = frame(Kind::Headers, flag::END_HEADERS, 3, &[0x88, 0xbe]);
    assert_eq!(side.receive(&response), ["response 3 Chunked\nHttp2 200\nx: y"]);
}

#[test]
fn pings() {
    let mut side = side();
    assert!(!side.connection.awaits_pong());
    side.connection.ping();
    assert_eq!(side.sent(), ["PING [0, 1, 2, 3, 4, 5, 6, 7]"]);
    // A ping of the peer is no answer.
    side.receive(&frame(Kind::Ping, 0, 0, b"\0\x01\x02\x03\x04\x05\x06\x07"));
    assert!(side.connection.awaits_pong());
    let answer = frame(Kind::Ping, flag::ACK, 0, b"\0\x01\x02\x03\x04\x05\x06\x07");
    assert_eq!(side.receive(&answer), ["pong [0, 1, 2, 3, 4, 5, 6, 7]"]);
    assert!(!side.connection.awaits_pong());
    assert!(side.connection.is_between_frames());
    side.receive(&answer[..5]);
    assert!(!side.connection.is_between_frames());
}
