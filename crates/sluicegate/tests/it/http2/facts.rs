//! Facts and figures of connections: fetches, logs, statistics, counters of glitches.

use super::requests::{frame, headers};
use super::*;
use sluicegate_testkit::wait_for;
use sluicegate_wire::http2::ErrorCode;

/// The head of a request with an invalid path.
const MALFORMED: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":path", "x"), (":authority", "h")];

#[test]
fn fetches_of_streams() {
    let facts = "%[fc_http_major] %[fs.id] %[fc_nb_streams] %[fc_settings_streams_limit] %[fc_glitches] %[fs.aborted] \
                 %[req.ver] %[http_first_req]";
    let lines = format!(
        " log stdout format raw local0 info\n log-format \"%HPO %ST code=%[fs.rst_code] aborted=%[fs.aborted]\"\n \
         stick-table type ip size 10 store glitch_cnt,glitch_rate(1h)\n tcp-request connection track-sc0 src\n \
         http-request tarpit if {{ path /wait }}\n timeout tarpit 600s\n http-request return status 200 hdr x \"{facts}\" \
         hdr y \"%[sc_glitch_cnt(0)] %[sc_glitch_rate(0)]\""
    );
    let (mut server, gate) = front(&lines);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").field("x"), Some("2 1 1 100 0 0 2.0 0"));
    let waits = client.begin("GET /wait\nhost: h", true);
    assert_eq!(client.get("/").field("x"), Some("2 5 2 100 0 0 2.0 0"));
    for _ in 0..3 {
        let stream = client.open();
        client.raw(&headers(stream.id(), 5, MALFORMED));
        assert_eq!(client.end(stream).reset, Some(ErrorCode::PROTOCOL_ERROR));
    }
    let answer = client.get("/");
    assert_eq!((answer.field("x"), answer.field("y")), (Some("2 13 2 100 3 0 2.0 0"), Some("3 3")));
    client.reset(waits, ErrorCode(0x1234));
    server.program.wait_for_output("/wait 500 code=4660 aborted=1\n");
    // HTTP/1 on the same port.
    let mut plain = Plain::connect(&gate.address());
    assert_eq!(plain.get("/").header("x"), Some("1 0 1 1  0 1.1 1"));
}

/// Returns a text with its numbers of more than one digit, and of ports and microseconds, left out.
fn without_numbers(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('=') {
        Some((name, _)) if name.ends_with("_us") => format!("{name}="),
        Some((name, value)) if value.len() > 1 && !["h1", "h2", "100"].contains(&value) => format!("{name}="),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// HAProxy 3.2's layers of `fs.debug_str` and `bs.debug_str`.
#[test]
fn debug_texts_have_their_layers() {
    let origin = Origin::start(|mut client| {
        while Request::read(&mut client).is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let lines = " log stdout format raw local0 info\n log-format \"at the end:%[bs.debug_str(8)].\"\n http-response \
                 set-header front \"a%[fs.debug_str(3)]\"\n http-response set-header back \"a%[bs.debug_str(11)]\"\n \
                 http-response set-header tls \"a%[fs.debug_str(4)]\"\n http-response set-header socket \
                 \"a%[fs.debug_str(16)]\"\n http-response set-header all \"a%[fs.debug_str]\"";
    let (mut server, gate) = before(&origin, lines, "");
    let mut client = Client::connect(&gate.address());
    let answer = client.get("/");
    let field = |name| without_numbers(answer.field(name).expect("a field"));
    assert_eq!(field("front"), "a stream= id=1 received= rst=- mux=h2 streams=1 limit=100 glitches=0");
    let back = field("back");
    assert!(back.starts_with("a stream= id=0 received=") && back.ends_with(" src= dst= reused="), "{back}");
    // A round trip may take less than 10 µs.
    let socket = field("socket");
    assert!(socket.starts_with("a fd= rtt_us=") && socket.contains(" rttvar_us="), "{socket}");
    assert_eq!(field("tls"), "a");
    assert!(field("all").contains(" glitches=0 src= dst= fd="), "{}", field("all"));
    // The line is written when the connection to the server is no longer the stream's.
    server.program.wait_for_output(&format!(" dst={} reused=false.", origin.address()));
    let mut plain = Plain::connect(&gate.address());
    let answer = plain.get("/");
    let front = without_numbers(answer.header("front").expect("a field"));
    assert!(front.ends_with(" rst=- mux=h1 streams=1 limit=1 glitches=0"), "{front}");
}

/// No stream counts as the first request of its connection, so `http-reuse safe` lets all of them share idle connections.
#[test]
fn first_streams_take_idle_connections() {
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = count.clone();
    let origin = Origin::start(move |mut client| {
        seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        while Request::read(&mut client).is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (_server, gate) = before(&origin, "", " http-reuse safe");
    for _ in 0..3 {
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    // The first request of a connection of HTTP/1 has a connection of its own.
    assert_eq!(Plain::connect(&gate.address()).get("/").status, 200);
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 2);
}

/// `%Th` belongs to the first stream; `%Ti` is the time since the previous stream began.
#[test]
fn a_log_line_for_each_stream() {
    let lines = " log stdout format raw local0 info\n log-format \"%HPO %rc %ac %Th %Ti %TR %sslv %HV %{+Q}r %B\"\n \
                 option httpclose\n http-request return status 200 content-type text/plain string x";
    let (mut server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    for path in ["/a", "/b", "/c"] {
        assert_eq!(client.get(path).status, 200);
    }
    server.program.wait_for_output("/c ");
    let output = server.program.output();
    let lines: Vec<Vec<&str>> =
        output.lines().filter(|line| line.starts_with('/')).map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 3, "{output}");
    for (line, path) in lines.iter().zip(["/a", "/b", "/c"]) {
        assert_eq!((line[0], line[7], line[9]), (path, "HTTP/2.0", &*format!("http://h{path}")), "{output}");
        assert!(line[3] == "0" && line[4].parse::<u32>().is_ok() && line[5].parse::<u32>().is_ok(), "{output}");
    }
}

#[test]
fn statistics_of_frames() {
    let (server, gate) = front(" http-request return status 200");
    let path = server.directory().join("stats");
    let column = |name: &str, line: &str| {
        let text = Sluicegate::stats(&path, "show stat");
        let at = text.lines().next().and_then(|head| head.split(',').position(|column| column == name)).expect("there");
        let line = text.lines().find(|row| row.starts_with(line)).expect("a line");
        line.split(',').nth(at).expect("a cell").to_owned()
    };
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /\nhost: h\ncontent-length: 3", false);
    client.data(stream, b"abc", true);
    assert_eq!(client.end(stream).status, 200);
    assert_eq!(client.get("/").status, 200);
    let stream = client.open();
    client.raw(&headers(stream.id(), 5, MALFORMED));
    client.end(stream);
    let stream = client.begin("POST /\nhost: h\ncontent-length: 3", false);
    client.until("an answer", |client| client.seen(stream).is_over());
    client.raw(&frame(3, 0, stream.id(), &[0, 0, 0, 8]));
    client.raw(&frame(7, 0, 0, &[0; 8]));
    let is = |name: &str, expected: &str| {
        let mut seen = String::new();
        wait_for(&format!("{name} {expected}"), || {
            seen = column(name, "front,FRONTEND");
            (seen == expected).then_some(())
        });
    };
    is("h2_headers_rcvd", "4");
    is("h2_data_rcvd", "1");
    is("h2_settings_rcvd", "2");
    is("h2_rst_stream_rcvd", "1");
    is("h2_goaway_rcvd", "1");
    is("h2_detected_strm_protocol_errors", "1");
    is("h2_detected_conn_protocol_errors", "0");
    is("h2_total_connections", "1");
    is("h2_backend_total_streams", "3");
    is("h2_backend_open_streams", "0");
    is("h2sess", "1");
    is("h1sess", "0");
    is("h2req", "3");
    is("h1req", "0");
    drop(client);
    is("h2_open_connections", "0");
    let mut client = Client::connect(&gate.address());
    client.begin("GET /\nhost: h", true);
    client.raw(&frame(8, 0, 0, &[0; 4]));
    client.until_closed();
    assert_eq!(client.goaway, Some((1, ErrorCode::PROTOCOL_ERROR)));
    is("h2_detected_conn_protocol_errors", "1");
    is("h2_goaway_resp", "1");
    assert_eq!(Plain::connect(&gate.address()).get("/").status, 200);
    is("h1req", "1");
}
