//! Compression, compared with Debian's haproxy: the bodies that are compressed, their heads, the statistics, and the
//! decoded data.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_testkit::{Client, Sluicegate, wait_for};

use crate::pair::{Logged, answering, both, origin, ours, read_head};
use crate::rules::fixture::verdict;
use crate::server::fixture::Whole;

const DEFAULTS: &str = "defaults\n mode http\n log @LOG@ format raw local0\n log-format \"%ST %B %[res.comp] %[res.comp_algo]\"\n \
                        timeout client 60s\n timeout connect 60s\n timeout server 60s\n";

const BODY: &str = "hello hello hello hello hello, and again: hello";

/// Returns a body, decoded as its head says.
fn decoded(head: &str, body: &[u8]) -> String {
    let mut out = Vec::new();
    let coding =
        head.to_ascii_lowercase().lines().find_map(|line| Some(line.strip_prefix("content-encoding: ")?.to_owned()));
    let read = match coding.as_deref() {
        Some("gzip") => flate2::read::GzDecoder::new(body).read_to_end(&mut out),
        // With `deflate`, some send the zlib format, which begins with this byte, and some raw data.
        Some("deflate") if body.first() == Some(&0x78) => flate2::read::ZlibDecoder::new(body).read_to_end(&mut out),
        Some("deflate") => flate2::read::DeflateDecoder::new(body).read_to_end(&mut out),
        _ => (&mut { body }).read_to_end(&mut out),
    };
    read.map_or_else(|error| format!("undecodable: {error}"), |_| String::from_utf8_lossy(&out).into_owned())
}

/// Starts an origin that answers with this head and [`BODY`], and with the number of Accept-Encoding fields received.
fn server(head: &'static str, status: &'static str) -> std::net::SocketAddr {
    answering(move |request| {
        let told = String::from_utf8_lossy(request).to_ascii_lowercase().matches("accept-encoding").count();
        let head = head.replace("LEN", &format!("Content-Length: {}\r\n", BODY.len()));
        let body = match head.contains("chunked") {
            true => format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len()),
            false if request.starts_with(b"HEAD") => String::new(),
            false => BODY.to_owned(),
        };
        format!("HTTP/1.1 {status}\r\n{head}Told: {told}\r\n\r\n{body}").into_bytes()
    })
}

/// Returns the response to a request, with names in lower case and the body decoded, and the log line.
fn ask(address: &str, logged: Logged<'_>, request: &str) -> String {
    let mut client = Client::connect(address);
    client.send(request);
    let response = client.read_response_to(request.starts_with("HEAD"));
    let lines = response.head.lines().map(|line| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    });
    let head = lines.collect::<Vec<_>>().join("\n");
    format!("{head}{}\n{}", decoded(&response.head, &response.body), logged(1)[0])
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

/// Asserts that both give the same response, with this encoding.
#[track_caller]
fn check(lines: &str, (head, status): (&'static str, &'static str), request: &str, compressed: &str) {
    let text = format!("{DEFAULTS}listen f\n bind @BIND@\n {lines}\n server s {}\n", server(head, status));
    let (ours, theirs) = both(&text, |address, logged| ask(address, logged, request));
    // 2.6 adds a second Vary field after the server's; 3.2 has one field with both values.
    let theirs = match theirs.contains("\nvary: Foo\n") {
        true => theirs.replace("\nvary: Accept-Encoding", "").replace("\nvary: Foo", "\nvary: Foo,Accept-Encoding"),
        false => theirs,
    };
    assert_eq!(ours, theirs, "{lines} {request}");
    let coding = ours.lines().find_map(|line| line.strip_prefix("content-encoding: ")).unwrap_or("no");
    assert_eq!(coding, compressed, "{ours}");
}

const TEXT: &str = "Content-Type: text/plain\r\nLEN";
const OK: &str = "200 OK";

#[test]
fn algorithms_are_those_that_both_know() {
    for (lines, fields, compressed) in [
        ("compression algo gzip", "Accept-Encoding: gzip\r\n", "gzip"),
        ("compression algo gzip deflate", "Accept-Encoding: deflate\r\n", "deflate"),
        ("compression algo raw-deflate", "Accept-Encoding: deflate\r\n", "deflate"),
        ("compression algo gzip deflate", "Accept-Encoding: *\r\n", "deflate"),
        ("compression algo gzip deflate", "Accept-Encoding: br, gzip;q=0.2, deflate;q=0.1\r\n", "gzip"),
        ("compression algo gzip deflate", "Accept-Encoding: gzip;q=0, deflate;q=0.001\r\n", "deflate"),
        ("compression algo gzip", "Accept-Encoding: gzip;q=0\r\n", "no"),
        ("compression algo gzip", "Accept-Encoding: br\r\nAccept-Encoding: x, GZIP\r\n", "gzip"),
        ("compression algo gzip", "", "no"),
        ("compression algo identity", "", "no"),
        ("compression algo gzip identity", "Accept-Encoding: br\r\n", "no"),
        ("filter compression\n compression algo gzip", "Accept-Encoding: gzip\r\n", "gzip"),
        ("filter compression", "Accept-Encoding: gzip\r\n", "no"),
        ("compression algo gzip\n compression offload", "Accept-Encoding: gzip\r\n", "gzip"),
        ("compression algo gzip\n compression offload", "Accept-Encoding: br\r\n", "no"),
        ("compression algo gzip", "Accept-Encoding: gzip\r\nUser-Agent: Mozilla/4.08 [en]\r\n", "no"),
    ] {
        check(lines, (TEXT, OK), &get(fields), compressed);
    }
}

#[test]
fn responses_are_those_that_may_be() {
    const ANY: &str = "compression algo gzip";
    const SOME: &str = "compression algo gzip\n compression type text/ application/json";
    let request = get("Accept-Encoding: gzip\r\n");
    for (lines, response, compressed) in [
        (ANY, ("LEN", OK), "gzip"),
        (SOME, ("LEN", OK), "no"),
        (SOME, ("Content-Type: Text/HTML; charset=x\r\nLEN", OK), "gzip"),
        (SOME, ("Content-Type: image/png\r\nLEN", OK), "no"),
        (ANY, ("Content-Type: multipart/byteranges; boundary=x\r\nLEN", OK), "no"),
        (ANY, ("Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n", OK), "gzip"),
        (ANY, ("ETag: \"abc\"\r\nVary: Foo\r\nLEN", OK), "gzip"),
        (ANY, ("ETag: W/\"abc\"\r\nLEN", OK), "gzip"),
        (ANY, ("ETag: abc\r\nLEN", OK), "no"),
        (ANY, ("ETag: \"a\"\r\nETag: \"b\"\r\nLEN", OK), "no"),
        (ANY, ("Cache-Control: private, No-Transform\r\nLEN", OK), "no"),
        (ANY, ("Content-Encoding: br\r\nLEN", OK), "br"),
        (ANY, ("LEN", "201 Created"), "gzip"),
        (ANY, ("LEN", "203 So"), "gzip"),
        (ANY, ("Content-Range: bytes 0-1/9\r\nLEN", "206 Partial Content"), "no"),
        (ANY, ("LEN", "404 Not Found"), "no"),
    ] {
        check(lines, response, &request, compressed);
    }
    check(ANY, (TEXT, OK), "HEAD / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n", "no");
    check(ANY, (TEXT, OK), "GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n", "no");
}

/// 2.6 has neither `algo-res` nor minimum sizes; the sizes are those of 3.2.
#[test]
fn newer_words() {
    let accept = get("Accept-Encoding: gzip\r\n");
    for (lines, compressed) in [
        ("compression algo-res gzip", true),
        ("compression algo-res gzip\n compression type-res text/", true),
        ("compression algo-res gzip\n compression type-res image/", false),
        ("compression algo gzip\n compression minsize-res 47", true),
        ("compression algo gzip\n compression minsize-res 48", false),
        ("compression algo gzip\n compression direction both", true),
        ("compression algo gzip\n compression direction request", false),
        ("compression algo-req gzip\n compression direction request", false),
    ] {
        let text = format!("{DEFAULTS}listen f\n bind @BIND@\n {lines}\n server s {}\n", server(TEXT, OK));
        let said = ours(&text, |address, logged| ask(address, logged, &accept));
        assert_eq!(said.contains("content-encoding: gzip"), compressed, "{lines}: {said}");
        assert!(said.contains(BODY), "{said}");
    }
    // The backend's setting has priority over the frontend's.
    let text = format!(
        "{DEFAULTS}frontend f\n bind @BIND@\n compression algo gzip\n compression type image/\n default_backend b\nbackend b\n \
         compression algo deflate\n compression type text/\n server s {}\n",
        server(TEXT, OK)
    );
    let (ours, theirs) =
        both(&text, |address, logged| ask(address, logged, &get("Accept-Encoding: gzip, deflate\r\n")));
    assert_eq!(ours, theirs);
    assert!(ours.contains("content-encoding: deflate"), "{ours}");
}

#[test]
fn requests_are_compressed() {
    // The origin answers with the head that it received, and the decoded body.
    let back = origin(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let mut body = Vec::new();
            let mut byte = [0];
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            while length.map_or(!body.ends_with(b"\r\n0\r\n\r\n"), |length: usize| body.len() < length) {
                stream.read_exact(&mut byte).expect("a body");
                body.push(byte[0]);
            }
            let data = match length {
                Some(_) => body,
                None => {
                    let mut data = Vec::new();
                    let mut rest = &body[..];
                    while let Some(at) = rest.windows(2).position(|end| end == b"\r\n") {
                        let size = usize::from_str_radix(&String::from_utf8_lossy(&rest[..at]), 16).expect("a size");
                        if size == 0 {
                            break;
                        }
                        data.extend_from_slice(&rest[at + 2..at + 2 + size]);
                        rest = &rest[at + size + 4..];
                    }
                    data
                }
            };
            let said = format!("{head}{}", decoded(&head, &data));
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len());
        }
    });
    for (lines, kind, compressed) in [
        ("compression direction request\n compression algo-req gzip", "text/plain", Some("gzip")),
        ("compression direction both\n compression algo-req raw-deflate", "text/plain", Some("deflate")),
        ("compression algo-req gzip", "text/plain", None),
        (
            "compression direction both\n compression algo-req gzip\n compression type-req text/",
            "text/plain",
            Some("gzip"),
        ),
        ("compression direction both\n compression algo-req gzip\n compression type-req text/", "image/png", None),
        ("compression direction both\n compression algo-req gzip\n compression minsize-req 12", "text/plain", None),
        (
            "compression direction both\n compression algo-req gzip\n compression minsize-req 11",
            "text/plain",
            Some("gzip"),
        ),
    ] {
        let text = format!("{DEFAULTS}listen f\n bind @BIND@\n {lines}\n server s {back}\n");
        let said = ours(&text, |address, _| {
            let mut client = Client::connect(address);
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: 11\r\n\r\nhello hello"
            ));
            client.read_response().text()
        });
        assert!(said.ends_with("\r\n\r\nhello hello"), "{lines}: {said}");
        let coding = said.lines().find_map(|line| line.strip_prefix("content-encoding: "));
        assert_eq!(coding, compressed, "{lines}: {said}");
        assert_eq!(said.contains("transfer-encoding: chunked"), compressed.is_some(), "{said}");
        assert_eq!(said.contains("content-length"), compressed.is_none(), "{said}");
    }
}

/// A long body that is read slowly arrives unchanged; data of a slow server arrives before the server sends more.
#[test]
fn bodies_stream() {
    let long: String = (0..60_000).map(|number| format!("{number} ")).collect();
    let sent = long.clone();
    let back =
        answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{sent}", sent.len()).into_bytes());
    let text = format!("{DEFAULTS}listen f\n bind @BIND@\n compression algo gzip\n server s {back}\n");
    let (our, their) = both(&text, |address, logged| {
        let mut client = Client::connect(address);
        client.send(get("Accept-Encoding: gzip\r\n"));
        let response = client.read_response();
        assert!(response.body.len() < long.len(), "compressed");
        assert!(decoded(&response.head, &response.body) == long);
        logged(1)[0].clone()
    });
    assert_eq!(our, their);

    let back = origin(|mut stream| {
        read_head(&mut stream).expect("a request");
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n");
        // The rest follows when the client has read this part.
        read_head(&mut stream);
    });
    let text = format!("{DEFAULTS}listen f\n bind @BIND@\n compression algo deflate\n server s {back}\n");
    ours(&text, |address, _| {
        let mut client = Client::connect(address);
        client.send(get("Accept-Encoding: deflate\r\n"));
        client.read_until(b"\r\n\r\n");
        let (mut inflate, mut said) = (flate2::Decompress::new(true), Vec::with_capacity(64));
        while said.len() < 6 {
            let size = usize::from_str_radix(&client.read_line(), 16).expect("a chunk");
            let chunk = client.read_exact(size + 2);
            inflate.decompress_vec(&chunk[..size], &mut said, flate2::FlushDecompress::Sync).expect("zlib");
        }
        assert_eq!(said, b"first ");
    });
}

#[test]
fn what_is_compressed_is_counted() {
    let back = server(TEXT, OK);
    let columns = ["comp_in", "comp_out", "comp_byp", "comp_rsp"];
    for (algorithm, expected) in [("gzip", ["94", "some", "0", "2"]), ("identity", ["0", "0", "94", "2"])] {
        let text = format!("{DEFAULTS}listen f\n bind 127.0.0.1:1\n compression algo {algorithm}\n server s {back}\n");
        let whole = Whole::start(&text, 1);
        for _ in 0..2 {
            let mut client = Client::connect(&whole.address());
            client.send(get("Accept-Encoding: gzip\r\n"));
            client.read_response();
        }
        whole.log_lines(2);
        let page = Sluicegate::stats(&whole.stats, "show stat");
        let names: Vec<&str> = page.lines().next().expect("a header").trim_start_matches("# ").split(',').collect();
        for side in ["FRONTEND", "BACKEND"] {
            let row = page.lines().find(|line| line.starts_with(&format!("f,{side},"))).expect("a row");
            let cells: Vec<&str> = row.split(',').collect();
            let cell = |name: &str| cells[names.iter().position(|other| *other == name).expect("a column")];
            let found = columns.map(|name| match cell(name) {
                number if name == "comp_out" && number != "0" => {
                    assert!(number.parse::<u64>().is_ok_and(|bytes| bytes < 94), "{number}");
                    "some"
                }
                number => number,
            });
            assert_eq!(found, expected, "{algorithm} {side}");
        }
        let info = Sluicegate::stats(&whole.stats, "show info");
        assert!(info.contains("CompressBpsRateLim: 0\n"), "{info}");
    }
}

/// Limits of the process: a body is only compressed if they are not reached when it begins.
#[test]
fn the_process_has_limits() {
    let start = |global: &str| {
        let text = format!(
            "global\n {global}\n{DEFAULTS}listen f\n bind 127.0.0.1:1\n compression algo gzip\n server s {}\n",
            large()
        );
        Whole::start(&text, 1)
    };
    for global in ["maxzlibmem 1", "maxcompcpuusage 100"] {
        let whole = start(global);
        let mut client = Client::connect(&whole.address());
        assert!((0..2).all(|_| is_compressed(&mut client)), "{global}");
    }
    let told = |whole: &Whole| Sluicegate::stats(&whole.stats, "show info");
    assert!(told(&start("maxcompcpuusage 0")).contains("CompressBpsRateLim: 0\n"));
    let whole = start("maxcomprate 1");
    let mut client = Client::connect(&whole.address());
    assert!(is_compressed(&mut client), "nothing was spent yet");
    wait_for("a response as it is", || (!is_compressed(&mut client)).then_some(()));
    assert!(told(&whole).contains("CompressBpsRateLim: 1024\n"), "{}", told(&whole));
}

/// Returns whether a response of two kibibytes is compressed, which exceeds a limit of one kibibyte per second.
fn is_compressed(client: &mut Client) -> bool {
    client.send(get("Accept-Encoding: gzip\r\n"));
    client.read_response().header("content-encoding").is_some()
}

fn large() -> std::net::SocketAddr {
    answering(|_| format!("HTTP/1.1 200 OK\r\nContent-Length: 2048\r\n\r\n{}", "x".repeat(2048)).into_bytes())
}

#[test]
fn a_rate_is_set_while_the_process_runs() {
    let text = format!("{DEFAULTS}listen f\n bind 127.0.0.1:1\n compression algo gzip\n server s {}\n", large());
    let whole = Whole::start(&text, 1);
    let mut client = Client::connect(&whole.address());
    assert!((0..5).all(|_| is_compressed(&mut client)));
    Sluicegate::stats(&whole.stats, "set rate-limit http-compression global 1");
    wait_for("a response as it is", || (!is_compressed(&mut client)).then_some(()));
    Sluicegate::stats(&whole.stats, "set rate-limit http-compression global 0");
    assert!((0..5).all(|_| is_compressed(&mut client)));
}

/// A worker that is busier than `maxcompcpuusage` passes responses on unchanged.
#[test]
fn busy_workers_compress_nothing() {
    let text = format!(
        "global\n maxcompcpuusage 10\n{DEFAULTS}listen f\n bind 127.0.0.1:1\n compression algo gzip\n server s {}\n",
        large()
    );
    let whole = Whole::start(&text, 1);
    let mut client = Client::connect(&whole.address());
    assert!(is_compressed(&mut client), "nothing was measured yet");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(&whole.address());
                // A number that is never reached: the loop ends by `over`.
                for _ in 0..10_000_000 {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    is_compressed(&mut client);
                }
            });
        }
        wait_for("a response as it is", || (!is_compressed(&mut client)).then_some(()));
        over.store(true, Ordering::Relaxed);
    });
}

/// A higher level and a larger window give a smaller result for a body whose repetitions are far apart.
#[test]
fn levels_and_windows_act() {
    let noise = |from: u32| (0..3_000_u32).map(move |n| format!("{:x}", (n + from).wrapping_mul(2_654_435_761)));
    let body: String = noise(0).chain(noise(0)).collect();
    let size = |global: &str| {
        let sent = body.clone();
        let back =
            answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{sent}", sent.len()).into_bytes());
        let text =
            format!("global\n {global}\n{DEFAULTS}listen f\n bind @BIND@\n compression algo gzip\n server s {back}\n");
        ours(&text, |address, _| {
            let mut client = Client::connect(address);
            client.send(get("Accept-Encoding: gzip\r\n"));
            let response = client.read_response();
            assert!(decoded(&response.head, &response.body) == body);
            response.body.len()
        })
    };
    assert!(size("tune.comp.maxlevel 9") < size("tune.comp.maxlevel 1"));
    assert!(
        size("tune.comp.maxlevel 9\n tune.zlib.windowsize 15") < size("tune.comp.maxlevel 9\n tune.zlib.windowsize 9")
    );
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (lines, expected) in [
        ("compression algo br", "'compression algo' expects"),
        ("compression algo-req zstd", "'compression algo-req' expects"),
        ("compression direction up", "expects 'request', 'response' or 'both'"),
        ("compression minsize-res x", "'compression minsize-res'"),
        ("filter opentracing id x", "'filter opentracing' is not supported yet"),
        ("filter lua.x", "unknown filter 'lua.x'"),
        ("filter compresion", "unknown filter 'compresion'"),
    ] {
        let text = format!("defaults\n mode http\n timeout client 60s\nlisten f\n {lines}\n");
        let said = verdict(&text).expect_err(lines);
        assert!(said.contains(expected), "{lines}: {said}");
    }
}
