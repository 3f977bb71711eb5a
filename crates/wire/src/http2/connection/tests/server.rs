//! The server's side.

use super::*;

/// Feeds a server and compares the events, and what it sends.
fn check(input: &[Vec<u8>], events: &[&str], sent: &[&str]) {
    let mut side = Side::server(Settings::default());
    let got = side.receive(&input.concat());
    assert_eq!(got, events);
    assert_eq!(side.sent(), sent);
}

/// A request with these fields must lead to this event.
fn request(fields: &str, event: &str) {
    check_request(Settings::default(), true, fields, event);
}

fn check_request(settings: Settings, end: bool, fields: &str, event: &str) {
    let mut side = Side::server(settings);
    let input = if end { last_headers(1, fields) } else { headers(1, fields) };
    assert_eq!(side.receive(&input), [event], "{fields}");
    // Whatever the head was, the connection continues with the HPACK tables in step.
    let next = side.receive(&last_headers(3, GET));
    assert_eq!(next, ["request 3\nGET https://a/ Http2\nhost: a"]);
}

fn malformed(fields: &str, reason: &str) {
    request(fields, &format!("refused 1 PROTOCOL_ERROR {reason}"));
}

#[test]
fn a_request_and_its_response() {
    let mut side = Side::of(Connection::server(Settings::default()));
    let input = [&PREFACE[..], &settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]), &headers(1, POST)].concat();
    let events = side.receive(&input);
    assert_eq!(events, ["settings", "request 1 Chunked\nPOST https://a/ Http2\nhost: a"]);
    assert_eq!(side.sent(), ["SETTINGS 8=1 4=16384 3=100", "SETTINGS ack"]);
    assert_eq!(side.receive(&[data(1, "some "), last_data(1, "body")].concat()), ["data 1 some body", "end 1"]);
    let mut head = status(200);
    head.add(b"Server", b"x");
    let key = side.key(1);
    side.connection.send_response(key, &status(103), Framing::None, false).unwrap();
    side.connection.send_response(key, &head, Framing::Length(120), false).unwrap();
    assert_eq!(side.connection.send_data(key, &[b'x'; 120], true), 100);
    assert_eq!(side.connection.send_data(key, &[b'x'; 20], true), 0);
    assert_eq!(side.receive(&window_update(1, 20)), ["writable 1"]);
    assert_eq!(side.connection.send_data(key, &[b'x'; 20], true), 20);
    assert_eq!(
        side.sent(),
        [
            "WINDOW_UPDATE 0 2147418117",
            "HEADERS 1\n:status: 103",
            "HEADERS 1\n:status: 200\nserver: x\ncontent-length: 120",
            &format!("DATA 1 {}", "x".repeat(100)),
            &format!("DATA 1 {} end", "x".repeat(20)),
        ]
    );
    assert!(side.connection.is_closed(key));
    assert_eq!((side.connection.open_streams(), side.connection.held_streams()), (0, 1));
    side.connection.release(key);
    assert_eq!(side.connection.held_streams(), 0);
    assert_eq!(side.sent(), [""; 0]);
}

#[test]
fn requests_become_messages() {
    request(GET, "request 1\nGET https://a/ Http2\nhost: a");
    request(":method: GET\n:scheme: http\n:path: /b?c\nhost: d\nx: y", "request 1\nGET /b?c Http2\nhost: d\nx: y");
}

#[test]
fn fields_of_a_request() {
    let prefix = "request 1\nGET https://a/ Http2\nhost: a";
    let also = |fields: &str, expected: &str| request(&format!("{GET}\n{fields}"), &format!("{prefix}{expected}"));
    also("x: y", "\nx: y");
    also("x:  y\t ", "\nx: y");
    also("x: \t ", "\nx: ");
    also("host: b\nhost: c", "");
    also("te: trailers", "\nte: trailers");
    also("cookie: a=1", "\ncookie: a=1");
    also("cookie: a=1\nx: y\ncookie: b=2\ncookie: c=3", "\nx: y\ncookie: a=1; b=2; c=3");
    also("content-length: 0", "\ncontent-length: 0");
    also("content-length: 00\ncontent-length: 0", "\ncontent-length: 0");
    also("authorization: é", "\nauthorization: é");
    // Without an authority the first Host is the only one.
    request(":method: GET\n:scheme: https\n:path: *\nx: y\nhost: b\nhost: c", "request 1\nGET * Http2\nx: y\nhost: b");
    request(":method: GET\n:scheme: http\n:path: *\nhost: b:80", "request 1\nGET * Http2\nhost: b:80");
    request(":method: CONNECT\n:authority: b:443", "request 1\nCONNECT b:443 Http2\nhost: b:443");
    request(":method: OPTIONS\n:scheme: https\n:path: *\n:authority: b", "request 1\nOPTIONS https://b Http2\nhost: b");
    request(":method: GET\n:scheme: https\n:path: *\n:authority: b", "request 1\nGET https://b/ Http2\nhost: b");
    request(
        ":method: GET\n:scheme: https\n:path: //b\n:authority: c:443\nx: y",
        "request 1\nGET https://c//b Http2\nhost: c\nx: y",
    );
    request(
        ":method: GET\n:scheme: HTTP\n:path: /\n:authority: [::1]:80",
        "request 1\nGET HTTP://[::1]/ Http2\nhost: [::1]",
    );
    request(
        ":method: GET\n:scheme: http\n:path: /\n:authority: [::1]:443",
        "request 1\nGET http://[::1]:443/ Http2\nhost: [::1]:443",
    );
}

#[test]
fn requests_that_are_reset() {
    for (fields, reason) in [
        (":method: GET\n:scheme: https\n:path: /\nX: y", "FieldName"),
        (":method: GET\n:scheme: https\n:path: /\nZ: y", "FieldName"),
        (":method: GET\n:scheme: https\n:path: /\nx(: y", "FieldName"),
        (":method: GET\n:scheme: https\n:path: /\nx: a\0b", "FieldValue"),
        (":method: GET\n:scheme: https\n:path: /\nx: a\rb", "FieldValue"),
        (":method: GET\n:scheme: https\n:path: /a\x01", "Path"),
        (":method: GET\n:scheme: https\n:path: /a b", "Path"),
        (":method: GET\n:scheme: https\n:path: /a#b", "Path"),
        (":method: GET\n:scheme: https\n:path: ", "Path"),
        (":method: GET\n:scheme: https\n:path: a", "Path"),
        (":method: GET\n:scheme: https\n:path: **", "Path"),
        (":method: GET\n:scheme: https\nx: y\n:path: /", "Missing"),
        (":method: GET\n:scheme: https\n:path: /\nx: y\n:authority: a", "PseudoField"),
        (":method: GET\n:method: GET\n:scheme: https\n:path: /", "PseudoField"),
        (":method: GET\n:scheme: https\n:path: /\n:odd: /", "PseudoField"),
        (":method: GET\n:scheme: https\n:path: /\n:status: 200", "PseudoField"),
        (":method: GET\n:scheme: https\n:path: /\n:authority: a\n:protocol: websocket", "PseudoField"),
        (":scheme: https\n:path: /", "Missing"),
        (":method: GET\n:path: /", "Missing"),
        (":method: GET\n:scheme: https", "Missing"),
        (":method: \n:scheme: https\n:path: /", "Method"),
        (":method: CONNECT\n:authority: a:1\n:scheme: https", "PseudoField"),
        (":method: CONNECT\n:authority: a:1\n:path: /", "PseudoField"),
        (":method: CONNECT", "Missing"),
        (":method: CONNECT\n:scheme: https\n:path: /\n:protocol: websocket", "Missing"),
        (":method: CONNECT\n:scheme: https\n:authority: a\n:protocol: websocket", "Missing"),
        (":method: CONNECT\n:scheme: https\n:path: /\n:authority: a\n:protocol: h2", "Protocol"),
        (":method: CONNECT\n:scheme: https\n:path: /\n:authority: a\n:protocol: H2C", "Protocol"),
        (":method: CONNECT\n:scheme: https\n:path: /\n:authority: a\n:protocol: ", "Protocol"),
        (":method: CONNECT\n:scheme: https\n:path: /\n:authority: a\n:protocol: x, h2c", "Protocol"),
        (":method: GET\n:scheme: https\n:path: /\n:authority: a/b", "Authority"),
        (":method: GET\n:scheme: https\n:path: /\n:authority: u@a", "Authority"),
        (":method: GET\n:scheme: https\n:path: /\n:authority: a b", "Authority"),
        (":method: GET\n:scheme: https\n:path: /\n:authority: [::1", "Authority"),
        (":method: GET\n:scheme: https\n:path: /\nhost: a/b", "Authority"),
        (":method: GET\n:scheme: https\n:path: /\ncontent-length: 0\ncontent-length: 1", "Length"),
        (":method: GET\n:scheme: https\n:path: /\ncontent-length: x", "Length"),
        (":method: GET\n:scheme: https\n:path: /\ncontent-length: 0, 1", "Length"),
        (":method: GET\n:scheme: https\n:path: /\ncontent-length: 1", "Length"),
        (":method: GET\n:scheme: https\n:path: /\nconnection: close", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\nproxy-connection: close", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\nkeep-alive: 1", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\nupgrade: x", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\ntransfer-encoding: chunked", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\nte: gzip", "Connection"),
        (":method: GET\n:scheme: https\n:path: /\nte: trailers, gzip", "Connection"),
        ("x: y", "Missing"),
    ] {
        malformed(fields, reason);
    }
}

#[test]
fn requests_that_are_answered_with_400() {
    for (fields, target) in [
        (":method: GET\n:scheme: 1x\n:path: /", "GET /"),
        (":method: GET\n:scheme: ht:tp\n:path: /\n:authority: a", "GET ht:tp://a/"),
        (":method: GE T\n:scheme: https\n:path: /", "GE T /"),
        (":method: GET\n:scheme: https\n:path: /\x7f", "GET /\x7f"),
    ] {
        let host = if fields.contains(":authority") { "\nhost: a" } else { "" };
        request(fields, &format!("request 1 400\n{target} Http2{host}"));
    }
    let settings =
        Settings { head: crate::http::Limits { lenient: true, ..Default::default() }, ..Settings::default() };
    let lenient = |path: &str, bad: &str| {
        let fields = format!(":method: GET\n:scheme: https\n:path: {path}");
        check_request(settings, true, &fields, &format!("request 1{bad}\nGET {path} Http2"));
    };
    lenient("/a#b", "");
    lenient("/a b", " 400");
    let fields = ":method: GET\n:scheme: https\n:path: /a\0b";
    check_request(settings, true, fields, "refused 1 PROTOCOL_ERROR FieldValue");
}

#[test]
fn bodies_of_requests() {
    let with_body = |fields: &str, event: &str| check_request(Settings::default(), false, fields, event);
    with_body(POST, "request 1 Chunked\nPOST https://a/ Http2\nhost: a");
    with_body(
        &format!("{POST}\ncontent-length: 5\nexpect: 100-continue"),
        "request 1 Length(5)\nPOST https://a/ Http2\nhost: a\ncontent-length: 5\nexpect: 100-continue",
    );
    with_body(":method: CONNECT\n:authority: a:1", "request 1 None\nCONNECT a:1 Http2\nhost: a:1");
    with_body(
        ":method: CONNECT\n:scheme: https\n:path: /c\n:authority: a\n:protocol: websocket\nx: y",
        "request 1 None\nGET https://a/c Http2\nhost: a\nx: y\nupgrade: websocket\nconnection: upgrade",
    );
    let without = Settings { connect_protocol: false, ..Settings::default() };
    check_request(
        without,
        false,
        ":method: CONNECT\n:scheme: https\n:path: /c\n:authority: a\n:protocol: websocket",
        "refused 1 PROTOCOL_ERROR PseudoField",
    );
}

#[test]
fn the_length_of_a_body_is_checked() {
    let post = |length: u64| headers(1, &format!("{POST}\ncontent-length: {length}"));
    let head =
        |length: u64| format!("request 1 Length({length})\nPOST https://a/ Http2\nhost: a\ncontent-length: {length}");
    let (error, rst) = ("reset 1 PROTOCOL_ERROR", "RST_STREAM 1 PROTOCOL_ERROR");
    check(&[post(5), data(1, "123"), last_data(1, "45")], &[&head(5), "data 1 12345", "end 1"], &[]);
    check(&[post(5), data(1, "123"), last_data(1, "4")], &[&head(5), "data 1 123", error], &[rst]);
    check(&[post(5), data(1, "123"), last_data(1, "456")], &[&head(5), "data 1 123", error], &[rst]);
    check(&[post(0), last_data(1, "")], &[&head(0), "end 1"], &[]);
    check(&[post(0), data(1, "1")], &[&head(0), error], &[rst]);
    check(&[post(1), data(1, "1"), last_headers(1, "x: y")], &[&head(1), "data 1 1", "trailers 1\nx: y"], &[]);
    check(&[post(2), data(1, "1"), last_headers(1, "x: y")], &[&head(2), "data 1 1", error], &[rst]);
    // Padding does not count.
    let padded = frame(Kind::Data, flag::END_STREAM | flag::PADDED, 1, b"\x0412345\0\0\0\0");
    check(&[post(5), padded], &[&head(5), "data 1 12345", "end 1"], &[]);
}

#[test]
fn trailers() {
    let begin = [headers(1, POST), data(1, "b")];
    let request = "request 1 Chunked\nPOST https://a/ Http2\nhost: a";
    let check_trailers = |flags: u8, fields: &str, event: &str| {
        let mut side = Side::server(Settings::default());
        let mut input = begin.concat();
        input.extend(headers_with(flags, 1, fields));
        assert_eq!(side.receive(&input), [request, "data 1 b", event], "{fields}");
    };
    check_trailers(flag::END_STREAM, "grpc-status: 0\nx:  y ", "trailers 1\ngrpc-status: 0\nx: y");
    check_trailers(flag::END_STREAM, "", "trailers 1\n");
    let error = "reset 1 PROTOCOL_ERROR";
    check_trailers(0, "x: y", error);
    for fields in [
        ":method: GET",
        ":odd: y",
        "X: y",
        "x: \0",
        "host: a",
        "content-length: 1",
        "connection: close",
        "proxy-connection: close",
        "keep-alive: 1",
        "upgrade: x",
        "te: trailers",
        "transfer-encoding: chunked",
    ] {
        check_trailers(flag::END_STREAM, fields, error);
    }
}

#[test]
fn heads_that_are_too_large() {
    let limits = crate::http::Limits { max_head: 400, max_fields: 10, ..Default::default() };
    let settings = Settings { head: limits, ..Settings::default() };
    let refused = "refused 1 PROTOCOL_ERROR TooLarge";
    let many = |count: usize| (0..count).map(|_| "\nx: y").collect::<String>();
    let get = ":method: GET\n:scheme: https\n:path: /\n:authority: a";
    let head = "request 1\nGET https://a/ Http2\nhost: a";
    check_request(settings, true, &format!("{get}{}", many(8)), &format!("{head}{}", many(8)));
    check_request(settings, true, &format!("{get}{}", many(9)), refused);
    check_request(settings, true, &format!("{get}{}", many(60)), refused);
    // 400 = 79 + request line 25 + host 9 + end 2 + four for each field + the other field.
    let field = |len: usize| format!("\nxx: {}", "y".repeat(len));
    check_request(settings, true, &format!("{get}{}", field(271)), &format!("{head}{}", field(271)));
    check_request(settings, true, &format!("{get}{}", field(272)), refused);

    // A small block that would become a large head.
    let mut side = Side::server(Settings::default());
    let large = "y".repeat(3000);
    let mut block = block(GET);
    block.extend([0x40, 1, b'x', 0x7f, (3000 - 127) as u8 & 0x7f | 0x80, ((3000 - 127) >> 7) as u8]);
    block.extend(large.as_bytes());
    block.extend([0xbe; 10_000]);
    let bomb = frame(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 1, &block);
    assert_eq!(side.receive(&bomb), ["refused 1 PROTOCOL_ERROR TooLarge"]);
    assert!(side.message.wire_len() < 64 * 1024);
    let mut next = super::block(GET);
    next.push(0xbe);
    let next = frame(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 3, &next);
    assert_eq!(side.receive(&next), [format!("request 3\nGET https://a/ Http2\nhost: a\nx: {large}")]);
}

#[test]
fn field_blocks_over_several_frames() {
    let whole = block(GET);
    let (first, rest) = whole.split_at(7);
    let (second, third) = rest.split_at(5);
    let begin = |flags| frame(Kind::Headers, flags, 1, first);
    let more = |flags, fragment| frame(Kind::Continuation, flags, 1, fragment);
    let request = "request 1\nGET https://a/ Http2\nhost: a";
    let all = [begin(flag::END_STREAM), more(0, second), more(0, b""), more(flag::END_HEADERS, third)];
    check(&all, &[request], &[]);
    let error = "failed PROTOCOL_ERROR";
    let goaway = "GOAWAY 0 PROTOCOL_ERROR";
    for other in [
        frame(Kind::Continuation, flag::END_HEADERS, 3, rest),
        frame(Kind::Ping, 0, 0, &[0; 8]),
        frame(Kind::Headers, flag::END_HEADERS, 1, rest),
        unknown_frame(),
    ] {
        check(&[begin(0), other], &[error], &[goaway]);
    }
    check(&[more(flag::END_HEADERS, rest)], &[error], &[goaway]);
    // A field block may not be larger than the largest frame.
    let mut side = Side::server(Settings::default());
    let endless = [begin(0), more(0, &[0; 16_000]), more(0, &[0; 16_000])].concat();
    assert_eq!(side.receive(&endless), ["failed ENHANCE_YOUR_CALM"]);
}

#[test]
fn small_fragments_are_glitches() {
    let mut side = Side::server(Settings::default());
    let whole = block(GET);
    let mut input = frame(Kind::Headers, flag::END_STREAM, 1, b"");
    for byte in &whole {
        input.extend(frame(Kind::Continuation, 0, 1, &[*byte]));
    }
    input.extend(frame(Kind::Continuation, flag::END_HEADERS, 1, b""));
    assert_eq!(side.receive(&input), ["request 1\nGET https://a/ Http2\nhost: a"]);
    assert_eq!(side.connection.glitches() as usize, (whole.len() + 1).div_ceil(16));

    let mut side = Side::server(Settings { glitches_threshold: 4, frames_per_turn: 100_000, ..Settings::default() });
    let mut input = frame(Kind::Headers, flag::END_STREAM, 1, b"");
    (0..80).for_each(|_| input.extend(frame(Kind::Continuation, 0, 1, b"")));
    assert_eq!(side.receive(&input), ["failed ENHANCE_YOUR_CALM"], "before the block ends");
    assert_eq!(side.sent(), ["GOAWAY 200 NO_ERROR", "GOAWAY 0 ENHANCE_YOUR_CALM"]);
}

#[test]
fn a_preface_is_exact() {
    let mut side = Side::of(Connection::server(Settings::default()));
    assert_eq!(side.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r"), ["failed PROTOCOL_ERROR"]);
    assert_eq!(side.sent(), [""; 0], "what the peer speaks is not known");
    for first in [
        frame(Kind::Settings, flag::ACK, 0, b""),
        frame(Kind::Ping, 0, 0, &[0; 8]),
        last_headers(1, GET),
        frame(Kind::WindowUpdate, 0, 0, &[0, 0, 0, 1]),
    ] {
        let mut side = Side::of(Connection::server(Settings::default()));
        assert_eq!(side.receive(&[&PREFACE[..], &first].concat()), ["failed PROTOCOL_ERROR"]);
        assert_eq!(side.sent().last().unwrap(), "GOAWAY 0 PROTOCOL_ERROR");
    }
}

#[test]
fn errors_that_end_the_connection() {
    use ErrorCode as Code;
    let depends = |stream: u32| [&stream.to_be_bytes()[..], &[15]].concat();
    let padded = |kind, padding: u8, payload: &[u8]| {
        frame(kind, flag::PADDED | flag::END_HEADERS, 1, &[&[padding], payload].concat())
    };
    let with_priority = |payload: &[u8]| frame(Kind::Headers, flag::PRIORITY | flag::END_HEADERS, 1, payload);
    let mut push_promise = frame(Kind::Ping, 0, 1, &[0; 8]);
    push_promise[3] = 5;
    let mut large = vec![0, 0x40, 1, 0, 0, 0, 0, 0, 1];
    large.extend([0; 16_385]);
    for (input, code) in [
        // Streams that were not opened.
        (data(1, "x"), Code::PROTOCOL_ERROR),
        (data(2, "x"), Code::PROTOCOL_ERROR),
        (rst_stream(1, Code::CANCEL), Code::PROTOCOL_ERROR),
        (window_update(1, 1), Code::PROTOCOL_ERROR),
        (frame(Kind::Continuation, flag::END_HEADERS, 1, b""), Code::PROTOCOL_ERROR),
        (last_headers(2, GET), Code::PROTOCOL_ERROR),
        (push_promise, Code::PROTOCOL_ERROR),
        // Streams of frames.
        (data(0, "x"), Code::PROTOCOL_ERROR),
        (last_headers(0, GET), Code::PROTOCOL_ERROR),
        (frame(Kind::Priority, 0, 0, &depends(1)), Code::PROTOCOL_ERROR),
        (frame(Kind::RstStream, 0, 0, &[0; 4]), Code::PROTOCOL_ERROR),
        (frame(Kind::Settings, 0, 1, b""), Code::PROTOCOL_ERROR),
        (frame(Kind::Ping, 0, 1, &[0; 8]), Code::PROTOCOL_ERROR),
        (frame(Kind::GoAway, 0, 1, &[0; 8]), Code::PROTOCOL_ERROR),
        // Lengths.
        (large, Code::FRAME_SIZE_ERROR),
        (frame(Kind::Priority, 0, 1, &[0; 4]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::Settings, 0, 0, &[0; 3]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::Settings, flag::ACK, 0, &[0; 6]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::Ping, 0, 0, &[0; 6]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::GoAway, 0, 0, &[0; 7]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::WindowUpdate, 0, 0, &[0; 3]), Code::FRAME_SIZE_ERROR),
        (with_priority(&[0; 4]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::Headers, flag::PADDED | flag::END_HEADERS, 1, b""), Code::FRAME_SIZE_ERROR),
        (padded(Kind::Headers, 5, b"1234"), Code::PROTOCOL_ERROR),
        // Priorities.
        (frame(Kind::Priority, 0, 1, &depends(1)), Code::PROTOCOL_ERROR),
        (frame(Kind::Priority, 0, 1, &depends(1 | 1 << 31)), Code::PROTOCOL_ERROR),
        (with_priority(&[&depends(1)[..], &block(GET)].concat()), Code::PROTOCOL_ERROR),
        // Settings and windows.
        (settings(&[(setting::ENABLE_PUSH, 2)]), Code::PROTOCOL_ERROR),
        (settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), Code::FLOW_CONTROL_ERROR),
        (settings(&[(setting::MAX_FRAME_SIZE, 16_383)]), Code::PROTOCOL_ERROR),
        (settings(&[(setting::MAX_FRAME_SIZE, 1 << 24)]), Code::PROTOCOL_ERROR),
        (window_update(0, 0), Code::PROTOCOL_ERROR),
        (window_update(0, 1 << 31), Code::PROTOCOL_ERROR),
        (window_update(0, (1 << 31) - 1), Code::FLOW_CONTROL_ERROR),
        // HPACK.
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0x80]), Code::COMPRESSION_ERROR),
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0xbe]), Code::COMPRESSION_ERROR),
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0x82, 0x20]), Code::COMPRESSION_ERROR),
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0x3f, 0xe2, 0x1f]), Code::COMPRESSION_ERROR),
        (frame(Kind::Headers, flag::END_HEADERS, 1, &[0, 0x81, 0xff, 0]), Code::COMPRESSION_ERROR),
    ] {
        let mut side = Side::server(Settings::default());
        assert_eq!(side.receive(&input), [format!("failed {code}")], "{input:?}");
        let goaway = side.sent().pop().unwrap();
        assert!(goaway.starts_with("GOAWAY ") && goaway.ends_with(&code.to_string()), "{goaway}");
        assert_eq!(side.receive(&input), [format!("failed {code}")], "it stays failed");
        assert_eq!(side.sent(), [""; 0]);
    }
    // On a stream that is open.
    for (input, code) in [
        (frame(Kind::RstStream, 0, 1, &[0; 3]), Code::FRAME_SIZE_ERROR),
        (frame(Kind::WindowUpdate, 0, 1, &[0; 5]), Code::FRAME_SIZE_ERROR),
        (padded(Kind::Data, 5, b"1234"), Code::PROTOCOL_ERROR),
        (frame(Kind::Data, flag::PADDED, 1, b""), Code::FRAME_SIZE_ERROR),
    ] {
        let mut side = Side::server(Settings::default());
        let events = side.receive(&[headers(1, POST), input].concat());
        assert_eq!(events[1], format!("failed {code}"));
        assert_eq!(side.sent(), [format!("GOAWAY 1 {code}")]);
    }
}

#[test]
fn errors_that_end_a_stream() {
    let post = || headers(1, POST);
    let request = "request 1 Chunked\nPOST https://a/ Http2\nhost: a";
    let get = || last_headers(1, GET);
    let complete = "request 1\nGET https://a/ Http2\nhost: a";
    let closed = ["RST_STREAM 1 STREAM_CLOSED"];
    // The client has ended its side.
    check(&[get(), data(1, "x")], &[complete, "reset 1 STREAM_CLOSED"], &closed);
    check(&[get(), last_headers(1, "x: y")], &[complete, "reset 1 STREAM_CLOSED"], &closed);
    // The client has reset it.
    let reset = || rst_stream(1, ErrorCode::CANCEL);
    let by_peer = "reset 1 CANCEL by peer";
    check(&[post(), reset(), data(1, "x")], &[request, by_peer], &closed);
    check(&[post(), reset(), reset(), window_update(1, 1)], &[request, by_peer], &[]);
    check(
        &[post(), reset(), last_headers(1, "x: y")],
        &[request, by_peer, "failed STREAM_CLOSED"],
        &["GOAWAY 1 STREAM_CLOSED"],
    );
    // Windows.
    check(&[post(), window_update(1, 0)], &[request, "reset 1 PROTOCOL_ERROR"], &["RST_STREAM 1 PROTOCOL_ERROR"]);
    check(
        &[post(), window_update(1, (1 << 31) - 1)],
        &[request, "reset 1 FLOW_CONTROL_ERROR"],
        &["RST_STREAM 1 FLOW_CONTROL_ERROR"],
    );
    let mut side = Side::server(Settings::default());
    side.consumes = false;
    let large = "x".repeat(10_000);
    let input = [post(), data(1, &large), data(1, &large)].concat();
    assert_eq!(side.receive(&input), [request, &format!("data 1 {large}"), "reset 1 FLOW_CONTROL_ERROR"]);
}

#[test]
fn streams_that_were_closed() {
    let mut side = Side::server(Settings::default());
    side.receive(&[headers(1, POST), headers(3, POST), last_headers(5, GET)].concat());
    // Reset by this side: frames in flight are ignored, and the HPACK tables are kept in step.
    side.connection.reset(side.key(1), ErrorCode::CANCEL);
    side.connection.release(side.key(1));
    assert_eq!(side.sent(), ["RST_STREAM 1 CANCEL"]);
    let mut trailers = vec![0x40, 1, b'x', 1, b'y'];
    let late = frame(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 1, &trailers);
    let late = [data(1, "x"), late, window_update(1, 7), rst_stream(1, ErrorCode::CANCEL)].concat();
    assert_eq!(side.receive(&late), [""; 0]);
    assert_eq!((side.sent().len(), side.connection.glitches()), (0, 0));
    trailers = vec![0xbe];
    let next = frame(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 3, &trailers);
    assert_eq!(side.receive(&next), ["trailers 3\nx: y"]);
    // Completed.
    for id in [3, 5] {
        let key = side.key(id);
        side.connection.send_response(key, &status(204), Framing::None, true).unwrap();
        assert!(side.connection.is_closed(key));
        side.connection.release(key);
        assert_eq!(side.sent(), [format!("HEADERS {id} end\n:status: 204")]);
        assert_eq!(side.receive(&data(id, "x")), [""; 0]);
        assert_eq!(side.sent(), [format!("RST_STREAM {id} STREAM_CLOSED")]);
    }
    assert_eq!(side.connection.glitches(), 2);
    // Completed, and not released yet.
    side.receive(&last_headers(9, GET));
    side.connection.send_response(side.key(9), &status(204), Framing::None, true).unwrap();
    assert_eq!(side.receive(&[data(9, "x"), data(9, "x")].concat()), [""; 0]);
    assert_eq!(side.sent()[1..], ["RST_STREAM 9 STREAM_CLOSED"]);
    assert_eq!(side.connection.glitches(), 3);
    // An identifier that was skipped.
    side.receive(&last_headers(11, GET));
    assert_eq!(side.receive(&last_headers(7, GET)), ["failed STREAM_CLOSED"]);
}

#[test]
fn a_stream_that_is_released_early() {
    let mut side = Side::server(Settings::default());
    side.receive(&[headers(1, POST), headers(3, POST), headers(5, POST)].concat());
    side.connection.release(side.key(1));
    side.connection.send_response(side.key(3), &status(200), Framing::Length(5), false).unwrap();
    side.connection.release(side.key(3));
    side.connection.send_response(side.key(5), &status(302), Framing::Length(0), true).unwrap();
    assert!(!side.connection.is_closed(side.key(5)));
    side.connection.release(side.key(5));
    let sent = side.sent();
    let resets: Vec<_> = sent.iter().filter(|text| text.starts_with("RST")).collect();
    assert_eq!(resets, ["RST_STREAM 1 REFUSED_STREAM", "RST_STREAM 3 CANCEL", "RST_STREAM 5 NO_ERROR"]);
    // A key of a stream that was released does nothing.
    let old = side.key(1);
    side.receive(&headers(7, POST));
    side.connection.release(old);
    side.connection.reset(old, ErrorCode::CANCEL);
    assert_eq!(side.connection.send_data(old, b"x", true), 1);
    assert_eq!((side.sent().len(), side.connection.held_streams()), (0, 1));
    assert!(side.connection.is_closed(old) && side.connection.has_ended(old));
}

#[test]
fn frames_that_are_ignored() {
    let unknown = unknown_frame();
    let priority = frame(Kind::Priority, 0, 5, &[0x80, 0, 0, 3, 200]);
    let unknown_setting = settings(&[(0x77, 12)]);
    check(&[unknown, priority, unknown_setting], &["settings"], &["SETTINGS ack"]);
    // Priorities, padding and reserved bits.
    let payload = [&[3, 0x80, 0, 0, 0, 200][..], &block(GET), &[0; 3]].concat();
    let flags = flag::PRIORITY | flag::PADDED | flag::END_HEADERS | flag::END_STREAM;
    check(&[frame(Kind::Headers, flags, 1, &payload)], &["request 1\nGET https://a/ Http2\nhost: a"], &[]);
    let mut reserved = last_headers(1, GET);
    reserved[5] |= 0x80;
    check(&[reserved, window_update(1, 1 << 31 | 5)], &["request 1\nGET https://a/ Http2\nhost: a"], &[]);
    // A message of another's answer is not an error.
    let goaway = frame(Kind::GoAway, 0, 0, &[0x80, 0, 0, 0, 0, 0, 0, 2, b'd']);
    check(&[goaway], &["goaway 0 INTERNAL_ERROR"], &[]);
    check(&[frame(Kind::Ping, flag::ACK, 0, b"12345678")], &["pong [49, 50, 51, 52, 53, 54, 55, 56]"], &[]);
    check(&[frame(Kind::Ping, 0, 0, b"12345678")], &[], &["PING ack [49, 50, 51, 52, 53, 54, 55, 56]"]);
}

#[test]
fn the_peer_s_windows_bound_what_is_sent() {
    let mut side = Side::server(Settings { output_max: 1 << 20, ..Settings::default() });
    side.receive(&last_headers(1, GET));
    let key = side.key(1);
    let big = vec![b'x'; 100_000];
    side.connection.send_response(key, &status(200), Framing::Chunked, false).unwrap();
    assert_eq!(side.connection.send_data(key, &big, true), 65_535);
    let lens = |side: &mut Side| side.sent().iter().map(String::len).collect::<Vec<_>>();
    assert_eq!(lens(&mut side), [22, 16_391, 16_391, 16_391, 16_390]);
    // A smaller initial window makes that of the stream negative.
    assert_eq!(side.receive(&settings(&[(setting::INITIAL_WINDOW_SIZE, 100)])), ["settings"]);
    assert_eq!(side.connection.glitches(), 1);
    assert_eq!(side.receive(&[window_update(1, 65_435), window_update(0, 10)].concat()), ["writable"]);
    assert_eq!(side.connection.send_window(key), 0);
    assert_eq!(side.receive(&window_update(1, 5)), ["writable 1"]);
    assert_eq!(side.connection.send_data(key, &big, true), 5);
    assert_eq!(side.receive(&settings(&[(setting::INITIAL_WINDOW_SIZE, 110)])), ["settings"]);
    assert_eq!(side.connection.send_window(key), 5, "that of the connection");
    assert_eq!(side.connection.send_data(key, &big[..5], true), 5);
    assert_eq!(side.sent(), ["SETTINGS ack", "DATA 1 xxxxx", "SETTINGS ack", "DATA 1 xxxxx end"]);
    // A window may not overflow by settings.
    side.receive(&[last_headers(3, GET), window_update(3, (1 << 31) - 1 - 110)].concat());
    assert_eq!(side.receive(&settings(&[(setting::INITIAL_WINDOW_SIZE, 111)])), ["failed FLOW_CONTROL_ERROR"]);
}

#[test]
fn the_output_is_bounded() {
    let mut side = Side::server(Settings { output_max: 1000, ..Settings::default() });
    side.receive(&last_headers(1, GET));
    let key = side.key(1);
    side.connection.send_response(key, &status(200), Framing::Chunked, false).unwrap();
    let accepted = side.connection.send_data(key, &[b'x'; 5000], true);
    assert!((900..1000).contains(&accepted));
    assert!(side.connection.is_output_full());
    assert_eq!(side.connection.send_data(key, &[b'x'; 5000], true), 0);
    side.sent();
    assert!(!side.connection.is_output_full());
    assert_eq!(side.connection.send_data(key, &[b'x'; 10], true), 10);
    let len = side.connection.output().len();
    side.connection.wrote(len - 1);
    assert_eq!(side.connection.output(), b"x");
    side.connection.wrote(1);
    assert!(side.connection.take_output_memory().is_some());
    assert!(side.connection.take_output_memory().is_none());
    side.connection.lend_output_memory(vec![1, 2, 3]);
    assert!(side.connection.output().is_empty());
}

#[test]
fn an_output_that_is_never_empty_does_not_grow() {
    let mut side = Side::server(Settings { output_max: 10_000, ..Settings::default() });
    side.receive(&[last_headers(1, GET), window_update(1, 1 << 30), window_update(0, 1 << 30)].concat());
    let key = side.key(1);
    side.connection.send_response(key, &status(200), Framing::Chunked, false).unwrap();
    let (mut accepted, mut output) = (0, Vec::new());
    while accepted < 1_000_000 {
        accepted += side.connection.send_data(key, &[b'x'; 5000], false);
        let part = side.connection.output().len().min(3000);
        output.extend_from_slice(&side.connection.output()[..part]);
        side.connection.wrote(part);
        assert!(side.connection.output.len() <= 2 * 10_000 + 5000);
    }
    output.extend_from_slice(side.connection.output());
    let frames = frames(&mut side.decoder, &output);
    let data: usize = frames.iter().skip(1).map(|text| text.len() - "DATA 1 ".len()).sum();
    assert_eq!(data, accepted);
}

#[test]
fn credit_follows_what_is_consumed() {
    let mut side = Side::server(Settings::default());
    side.consumes = false;
    side.receive(&[headers(1, POST), data(1, &"x".repeat(12_000))].concat());
    let key = side.key(1);
    side.connection.consume(key, 8000);
    assert_eq!(side.sent(), [""; 0]);
    side.connection.consume(key, 1000);
    assert_eq!(side.sent(), ["WINDOW_UPDATE 1 9000"]);
    side.connection.set_window(key, 100_000);
    assert_eq!(side.sent(), [format!("WINDOW_UPDATE 1 {}", 100_000 - 16_384)]);
    side.connection.set_window(key, 16_384);
    side.connection.consume(key, 3000);
    assert_eq!(side.sent(), [""; 0], "a promise is kept");
    // Padding is consumed as it comes.
    let mut padded = vec![255];
    padded.extend([0; 255]);
    let padded = frame(Kind::Data, flag::PADDED, 3, &padded);
    side.receive(&headers(3, POST));
    (0..32).for_each(|_| side.receive(&padded).clear());
    assert_eq!(side.sent(), [format!("WINDOW_UPDATE 3 {}", 32 * 256)]);
    // A peer that has no more to send needs no credit.
    side.receive(&[headers(5, &format!("{POST}\ncontent-length: 20000")), data(5, &"x".repeat(10_000))].concat());
    side.connection.consume(side.key(5), 10_000);
    assert_eq!(side.sent(), ["WINDOW_UPDATE 5 10000"]);
    side.receive(&data(5, &"x".repeat(9_000)));
    side.connection.consume(side.key(5), 9_000);
    assert_eq!(side.sent(), [""; 0]);
}

#[test]
fn streams_with_long_bodies_share_the_receive_buffers() {
    const BUFFER: i64 = 16_384;
    let settings = Settings { receive_total: 10 * BUFFER as usize, max_concurrent_streams: 10, ..Settings::default() };
    let mut side = Side::server(settings);
    side.consumes = false;
    let mut credit = |stream: u32, head: &str| {
        side.receive(&[headers(stream, head), data(stream, &"x".repeat(9000))].concat());
        side.connection.consume(side.key(stream), 9000);
        side.sent()
    };
    // Of ten buffers, two are kept for the nine streams that may still be opened; the next time, one for eight.
    // Unconsumed data counts as received.
    assert_eq!(credit(1, POST), [format!("WINDOW_UPDATE 1 {}", 8 * BUFFER - BUFFER)]);
    assert_eq!(credit(3, POST), [format!("WINDOW_UPDATE 3 {}", 5 * BUFFER - BUFFER)]);
    // A body that fits the window of a new stream needs no larger window.
    assert_eq!(credit(5, &format!("{POST}\ncontent-length: 16000")), [""; 0]);
    // A stream that has ended receives no more.
    side.receive(&[data(1, ""), last_data(3, ""), last_data(1, "")].concat());
    side.connection.consume(side.key(5), 0);
    assert_eq!(side.connection.streams.receiving, 1);
    side.connection.reset(side.key(5), ErrorCode::CANCEL);
    assert_eq!(side.connection.streams.receiving, 0);
}

#[test]
fn before_the_settings_are_acknowledged_the_default_window_holds() {
    let mut side = Side::of(Connection::server(Settings { initial_window: 20_000, ..Settings::default() }));
    side.consumes = false;
    side.receive(&[&PREFACE[..], &settings(&[]), &headers(1, POST)].concat());
    let large = data(1, &"x".repeat(16_000));
    assert_eq!(side.receive(&[&large[..], &large, &large, &large].concat()).len(), 1);
    assert_eq!(side.receive(&frame(Kind::Settings, flag::ACK, 0, b"")), [""; 0]);
    side.connection.consume(side.key(1), 64_000);
    // 64,000 were sent of 20,000 that were meant.
    assert!(side.sent().contains(&"WINDOW_UPDATE 1 64000".to_owned()));
    assert_eq!(side.receive(&[data(1, &"x".repeat(16_000)), data(1, &"x".repeat(4_000))].concat()).len(), 1);
    assert_eq!(side.receive(&data(1, "x")), ["reset 1 FLOW_CONTROL_ERROR"]);
}

#[test]
fn what_was_consumed_before_the_acknowledgement_is_credited_after_it() {
    let mut side = Side::of(Connection::server(Settings { initial_window: 16_384, ..Settings::default() }));
    side.receive(&[&PREFACE[..], &settings(&[]), &headers(1, POST), &headers(3, POST)].concat());
    side.sent();
    // All that the default window allows comes before the peer has seen the settings, and is consumed at once.
    let large = data(1, &"x".repeat(13_107));
    side.receive(&[&large[..], &large, &large, &large, &large].concat());
    let credits = side.sent().into_iter().filter(|text| text.starts_with("WINDOW_UPDATE 1 "));
    let before: i64 = credits.map(|text| text["WINDOW_UPDATE 1 ".len()..].parse::<i64>().expect("a number")).sum();
    side.receive(&frame(Kind::Settings, flag::ACK, 0, b""));
    let rest = format!("WINDOW_UPDATE 1 {}", 65_535 - before);
    assert_eq!(side.sent().into_iter().filter(|text| !text.ends_with(" 0 2147418112")).collect::<Vec<_>>(), [rest]);
}

#[test]
fn the_first_data_opens_the_window_of_the_connection() {
    let mut side = Side::of(Connection::server(Settings::default()));
    let input = [&PREFACE[..], &settings(&[]), &headers(1, POST), &data(1, "")].concat();
    side.receive(&input);
    assert_eq!(side.sent(), ["SETTINGS 8=1 4=16384 3=100", "SETTINGS ack"]);
    side.receive(&data(1, "some "));
    assert_eq!(side.sent(), [format!("WINDOW_UPDATE 0 {}", (1u32 << 31) - 1 - 65_535 + 5)]);
    side.receive(&data(1, "more"));
    assert_eq!(side.sent(), [""; 0]);
}

#[test]
fn the_window_of_the_connection_never_closes() {
    let settings = Settings { initial_window: frame::MAX_31, frames_per_turn: u32::MAX, ..Settings::default() };
    let mut side = Side::server(settings);
    side.receive(&headers(1, POST));
    side.connection.receive_window = (1 << 30) + 10;
    side.receive(&data(1, &"x".repeat(20)));
    let updates: Vec<_> = side.sent().into_iter().filter(|text| text.starts_with("WINDOW_UPDATE 0")).collect();
    assert_eq!(updates, [format!("WINDOW_UPDATE 0 {}", (1 << 30) + 9)]);
    assert_eq!(side.connection.receive_window, (1 << 31) - 1);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let settings = Settings { max_concurrent_streams: 2, ..Settings::default() };
    let mut side = Side::server(settings);
    let get = "GET https://a/ Http2\nhost: a";
    let events = side.receive(&[last_headers(1, GET), last_headers(3, GET), last_headers(5, GET)].concat());
    assert_eq!(events, [&format!("request 1\n{get}"), &format!("request 3\n{get}"), "refused 5 REFUSED_STREAM"]);
    assert_eq!(side.sent(), ["RST_STREAM 5 REFUSED_STREAM"]);
    assert_eq!(side.receive(&data(5, "late")), [""; 0]);
    // Streams that the client has reset count until they are released: then nothing more is read.
    assert_eq!(side.receive(&rst_stream(1, ErrorCode::CANCEL)), ["reset 1 CANCEL by peer"]);
    let next = last_headers(7, GET);
    assert_eq!(side.receive(&next), [format!("request 7\n{get}")]);
    assert_eq!((side.connection.open_streams(), side.connection.held_streams()), (2, 3));
    let ping = frame(Kind::Ping, 0, 0, &[0; 8]);
    assert_eq!(side.receive(&ping), ["blocked Streams", "17 bytes left"]);
    assert_eq!(side.connection.blocked(), Some(Blocked::Streams));
    side.connection.release(side.key(1));
    assert_eq!(side.receive(&ping), [""; 0]);
    assert_eq!(side.connection.streams_limit(), 2);
}

#[test]
fn a_connection_is_renewed_after_so_many_streams() {
    let mut side = Side::server(Settings { max_concurrent_streams: 2, max_total_streams: 3, ..Settings::default() });
    for id in [1, 3, 5, 7, 9] {
        assert_eq!(side.receive(&last_headers(id, GET)).len(), 1);
        side.connection.release(side.key(id));
        let sent = side.sent();
        assert_eq!(sent.contains(&"GOAWAY 9 NO_ERROR".to_owned()), id == 5, "{id} {sent:?}");
    }
    assert!(side.connection.is_last_stream_opened());
    assert_eq!(side.receive(&last_headers(11, GET)), ["failed ENHANCE_YOUR_CALM"]);
    assert_eq!(side.connection.total_streams(), 5);
}

#[test]
fn after_a_goaway_later_streams_are_refused() {
    let mut side = Side::server(Settings::default());
    side.connection.goaway(frame::MAX_31, ErrorCode::NO_ERROR);
    assert_eq!(side.receive(&last_headers(1, GET)).len(), 1);
    side.connection.goaway(side.connection.last_opened(), ErrorCode::NO_ERROR);
    assert!(side.connection.is_last_stream_opened());
    assert_eq!(side.receive(&last_headers(3, GET)), ["refused 3 REFUSED_STREAM"]);
    assert_eq!(side.sent(), ["GOAWAY 2147483647 NO_ERROR", "GOAWAY 1 NO_ERROR", "RST_STREAM 3 REFUSED_STREAM"]);
}

#[test]
fn answers_wait_for_a_peer_that_does_not_read() {
    let mut side = Side::server(Settings::default());
    let pings = frame(Kind::Ping, 0, 0, &[0; 8]).repeat(400);
    let events = side.receive(&pings);
    let answered = CONTROL_MAX.div_ceil(17);
    assert_eq!(events, ["blocked Output".to_owned(), format!("{} bytes left", (400 - answered) * 17)]);
    assert_eq!(side.sent().len(), answered);
    assert_eq!(side.receive(&pings[..170]), [""; 0]);
}

#[test]
fn answers_that_were_written_do_not_count() {
    // An output that is never empty: answers are written between data.
    let mut side = Side::server(Settings { output_max: 30_000, frames_per_turn: u32::MAX, ..Settings::default() });
    side.receive(&[last_headers(1, GET), window_update(1, 1 << 30), window_update(0, 1 << 30)].concat());
    let key = side.key(1);
    side.connection.send_response(key, &status(200), Framing::Chunked, false).unwrap();
    let pings = frame(Kind::Ping, 0, 0, &[0; 8]).repeat(20);
    side.connection.send_data(key, &[b'x'; 30_000], false);
    for _ in 0..200 {
        assert_eq!(side.receive(&pings), [""; 0]);
        side.connection.wrote(10_000);
        side.connection.send_data(key, &[b'x'; 30_000], false);
    }
    // Nothing is written any more.
    let events = side.receive(&pings.repeat(20));
    assert_eq!(events[0], "blocked Output");
}

#[test]
fn a_turn_has_a_budget() {
    let mut side = Side::server(Settings { frames_per_turn: 3, resets_per_turn: 2, ..Settings::default() });
    side.connection.begin_turn();
    let ping = frame(Kind::Ping, flag::ACK, 0, &[0; 8]);
    let events = side.receive(&ping.repeat(5));
    assert_eq!(events.last().unwrap(), "34 bytes left");
    side.connection.begin_turn();
    assert_eq!(side.receive(&ping.repeat(2)).len(), 2);
    side.connection.begin_turn();
    side.receive(&[headers(1, POST), headers(3, POST)].concat());
    side.connection.begin_turn();
    let resets = [rst_stream(1, ErrorCode::CANCEL), window_update(3, 0), ping].concat();
    let events = side.receive(&resets);
    assert_eq!(events[..2], ["reset 1 CANCEL by peer", "reset 3 PROTOCOL_ERROR"]);
    assert_eq!(events[2..], ["blocked Turn", "17 bytes left"], "one was received and one was answered");
}

#[test]
fn glitches_end_a_connection() {
    let mut side = Side::server(Settings { glitches_threshold: 4, ..Settings::default() });
    let rapid = |id| [headers(id, POST), rst_stream(id, ErrorCode::CANCEL)].concat();
    for id in [1, 3] {
        side.receive(&rapid(id));
        side.connection.release(side.key(id));
    }
    assert_eq!(side.sent(), [""; 0]);
    // Work has begun: that is not an attack.
    side.receive(&headers(5, POST));
    side.connection.mark_started(side.key(5));
    side.receive(&rst_stream(5, ErrorCode::CANCEL));
    assert_eq!(side.connection.glitches(), 2);
    side.receive(&rapid(7));
    assert_eq!(side.sent(), ["GOAWAY 207 NO_ERROR"], "at three quarters");
    side.connection.set_strict(false);
    side.receive(&rapid(9));
    assert_eq!((side.connection.glitches(), side.sent().len()), (4, 0));
    side.connection.set_strict(true);
    assert_eq!(side.receive(&rapid(11)).last().unwrap(), "failed ENHANCE_YOUR_CALM");
    assert_eq!(side.sent(), ["GOAWAY 11 ENHANCE_YOUR_CALM"]);
}

#[test]
fn extended_connects_are_answered_by_a_switch_of_protocols() {
    let fields = ":method: CONNECT\n:scheme: https\n:path: /c\n:authority: a\n:protocol: websocket";
    let mut side = Side::server(Settings::default());
    side.receive(
        &[headers(1, fields), headers(3, fields), headers(5, fields), headers(7, ":method: CONNECT\n:authority: a:1")]
            .concat(),
    );
    let mut switched = status(101);
    switched.add(b"connection", b"upgrade");
    switched.add(b"upgrade", b"websocket");
    let send = |side: &mut Side, id, message: &Message, end| {
        let key = side.key(id);
        side.connection.send_response(key, message, Framing::None, end)
    };
    send(&mut side, 1, &switched, false).unwrap();
    assert_eq!(send(&mut side, 3, &status(200), false), Err(super::super::super::Unsendable::NotSwitched));
    send(&mut side, 5, &status(403), true).unwrap();
    assert_eq!(send(&mut side, 7, &switched, false), Err(super::super::super::Unsendable::Status));
    send(&mut side, 7, &status(200), false).unwrap();
    assert_eq!(
        side.receive(&[data(1, "in"), data(7, "in"), last_data(7, "")].concat()),
        ["data 1 in", "data 7 in", "end 7"]
    );
    let (first, last) = (side.key(1), side.key(7));
    side.connection.send_data(first, b"out", false);
    side.connection.send_end(last, None);
    assert_eq!(
        side.sent(),
        [
            "HEADERS 1\n:status: 200",
            "HEADERS 5 end\n:status: 403",
            "HEADERS 7\n:status: 200",
            "DATA 1 out",
            "DATA 7  end",
        ]
    );
}

#[test]
fn responses_as_they_are_written() {
    let check = |fields: &[(&str, &str)], code: u16, framing: Framing, expected: &str| {
        let mut side = Side::server(Settings::default());
        side.receive(&last_headers(1, GET));
        let mut message = status(code);
        for (name, value) in fields {
            message.add(name.as_bytes(), value.as_bytes());
        }
        let key = side.key(1);
        side.connection.send_response(key, &message, framing, false).unwrap();
        assert_eq!(side.sent(), [format!("HEADERS 1\n:status: {code}{expected}")]);
    };
    let own = [
        ("Connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "x"),
        ("upgrade", "x"),
        ("transfer-encoding", "chunked"),
        ("content-length", "7"),
        ("content-length", "7"),
        ("X", " y "),
        (":z", "z"),
        ("host", "h"),
        ("cookie", "c"),
    ];
    let rest = "\nx: y\nhost: h\ncookie: c";
    check(&own, 200, Framing::Length(7), &format!("\ncontent-length: 7{rest}"));
    check(&own, 200, Framing::Length(9), &format!("\ncontent-length: 9{rest}"));
    check(&own[6..], 200, Framing::Length(9), &format!("\ncontent-length: 9{rest}"));
    check(&own[7..], 200, Framing::Length(9), &format!("{rest}\ncontent-length: 9"));
    check(&own, 200, Framing::Chunked, rest);
    check(&own, 200, Framing::UntilClose, rest);
    check(&own[6..], 304, Framing::None, &format!("\ncontent-length: 7{rest}"));
    check(&own, 204, Framing::None, rest);
    check(&own, 103, Framing::None, rest);
}

#[test]
fn trailers_as_they_are_written() {
    let check = |fields: &[(&str, &str)], expected: &str| {
        let mut side = Side::server(Settings::default());
        side.receive(&last_headers(1, GET));
        let key = side.key(1);
        side.connection.send_response(key, &status(200), Framing::Chunked, false).unwrap();
        side.sent();
        let mut trailers = Message::new();
        for (name, value) in fields {
            trailers.add(name.as_bytes(), value.as_bytes());
        }
        side.connection.send_end(key, Some(&trailers));
        assert_eq!(side.sent(), [expected]);
        assert!(side.connection.is_closed(key));
    };
    check(&[("grpc-status", "0"), ("te", "x"), ("content-length", "5")], "HEADERS 1 end\ngrpc-status: 0");
    check(&[("host", "a")], "DATA 1  end");
    check(&[], "DATA 1  end");
}

#[test]
fn large_heads_are_sent_in_several_frames() {
    let mut side = Side::server(Settings::default());
    side.receive(&last_headers(1, GET));
    let mut message = status(200);
    let large = "v".repeat(20_000);
    message.add(b"a", large.as_bytes());
    message.add(b"b", large.as_bytes());
    let key = side.key(1);
    side.connection.send_response(key, &message, Framing::None, true).unwrap();
    let head = format!("HEADERS 1\n:status: 200\na: {large}\nb: {large}");
    assert_eq!(side.sent(), ["Headers 1 end", "Continuation 1", &head]);
}

#[test]
fn counts_and_codes() {
    let mut side = Side::server(Settings::default());
    let input = [headers(1, POST), data(1, "a"), data(1, "b"), rst_stream(1, ErrorCode(77)), headers(3, POST)];
    side.receive(&input.concat());
    side.receive(&window_update(3, 0));
    let (one, three) = (side.key(1), side.key(3));
    assert_eq!((side.connection.code_received(one), side.connection.code_sent(one)), (Some(ErrorCode(77)), None));
    let sent = Some(ErrorCode::PROTOCOL_ERROR);
    assert_eq!((side.connection.code_received(three), side.connection.code_sent(three)), (None, sent));
    let counts = side.connection.take_counts();
    assert_eq!((counts.headers_received, counts.data_received, counts.settings_received), (2, 2, 2));
    assert_eq!((counts.resets_received, counts.goaways_received), (1, 0));
    assert_eq!((counts.resets_sent, counts.goaways_sent), (1, 0));
    assert_eq!((counts.stream_errors, counts.connection_errors), (1, 0));
    side.receive(&data(9, ""));
    let counts = side.connection.take_counts();
    assert_eq!((counts.goaways_sent, counts.connection_errors, counts.stream_errors), (1, 1, 0));
    assert_eq!(side.connection.failure().map(|failure| failure.code), sent);
}

#[test]
fn data_of_a_stream_that_is_reset_while_it_comes() {
    let mut side = Side::server(Settings::default());
    side.receive(&headers(1, POST));
    let input = data(1, "0123456789");
    assert_eq!(side.receive(&input[..12]), ["data 1 012"]);
    side.connection.reset(side.key(1), ErrorCode::CANCEL);
    assert_eq!(side.receive(&input[12..15]), [""; 0]);
    side.connection.release(side.key(1));
    assert_eq!(side.receive(&[&input[15..], &last_headers(3, GET)].concat()).len(), 1);
}
