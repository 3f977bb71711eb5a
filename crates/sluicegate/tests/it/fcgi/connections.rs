//! Connections to applications: kept, shared, and asked for values.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use sluicegate_testkit::wait_for;

use super::application::{Application, Heard, Request, end, record};
use super::{Gate, Parts, both};

/// An application that answers no request before `count` have come, and then the last one first.
fn gathering(count: usize, values: &'static [u8]) -> Application {
    let held = Mutex::new(Vec::<Request>::new());
    Application::with(move |heard| match heard {
        Heard::Request(request) => {
            let mut held = held.lock().expect("a lock");
            held.push(request.clone());
            if held.len() < count {
                return Vec::new();
            }
            let all: Vec<Request> = held.drain(..).rev().collect();
            all.iter().flat_map(|request| request.answer(format!("\r\n{}", request.param("SCRIPT_NAME")))).collect()
        }
        Heard::Values(_) => record(10, 0, values, 0),
        Heard::Abort(_) => Vec::new(),
    })
}

#[test]
fn connections_are_kept_or_not() {
    for (option, connections, flag) in [("", 1, true), (" no option keep-conn\n", 3, false)] {
        let seen = both(|ours| {
            let app = Application::answering(|request| request.answer(format!("\r\n{} {}", request.id, request.keep)));
            let gate = Gate::start(
                ours,
                &app.address,
                Parts { app: option, backend: " http-reuse always\n", ..Parts::default() },
            );
            let mut client = gate.client();
            let texts = [(); 3].map(|()| client.get("/").text());
            (texts, app.connections.load(Ordering::SeqCst))
        });
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[1].1, connections);
        assert!(seen[1].0.iter().all(|text| text.ends_with(&flag.to_string())), "{seen:?}");
    }
}

#[test]
fn requests_share_a_connection_as_the_application_allows() {
    let values = b"\x0d\x01FCGI_MAX_REQS3\x0f\x01FCGI_MPXS_CONNS1";
    for (options, asked) in [
        (" option mpxs-conns\n option max-reqs 3\n", false),
        (" option get-values\n", true),
        (" option get-values\n option max-reqs 9\n", true),
    ] {
        let app = gathering(3, values);
        let gate = Gate::start(
            true,
            &app.address,
            Parts { app: options, backend: " http-reuse always\n", ..Parts::default() },
        );
        let mut clients = ["/a", "/b", "/c"].map(|path| {
            let mut client = gate.client();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            if path == "/a" {
                // The others find an established connection.
                wait_for("the first request", || {
                    app.heard().iter().find(|(_, heard)| matches!(heard, Heard::Request(_))).map(|_| ())
                });
            }
            (client, path)
        });
        for (client, path) in &mut clients {
            assert_eq!(client.read_response().text(), *path);
        }
        assert_eq!(app.connections.load(Ordering::SeqCst), 1, "{options}");
        let heard = app.heard();
        let names: Vec<_> = heard
            .iter()
            .filter_map(|(_, heard)| if let Heard::Values(names) = heard { Some(names.join(" ")) } else { None })
            .collect();
        let expected: &[&str] = if asked { &["FCGI_MAX_REQS FCGI_MPXS_CONNS"] } else { &[] };
        assert_eq!(names, expected);
    }
}

#[test]
fn without_multiplexing_each_request_has_a_connection() {
    for (options, values) in
        [("", &b""[..]), (" option mpxs-conns\n option get-values\n option max-reqs 9\n", b"\x0f\x01FCGI_MPXS_CONNS0")]
    {
        both(|ours| {
            let app = gathering(2, values);
            let gate = Gate::start(
                ours,
                &app.address,
                Parts { app: options, backend: " http-reuse always\n", ..Parts::default() },
            );
            let mut one = gate.client();
            one.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
            wait_for("the first request", || {
                app.heard().iter().find(|(_, heard)| matches!(heard, Heard::Request(_))).map(|_| ())
            });
            let mut two = gate.client();
            two.send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
            // Each connection is answered by the thread of the second, which has only its own: the answers of others are
            // skipped, so nothing more is awaited here.
            wait_for("the second connection", || (app.connections.load(Ordering::SeqCst) == 2).then_some(()));
        });
    }
}

#[test]
fn a_bad_answer_to_the_question_for_values_ends_the_connection() {
    let [theirs, own] = both(|ours| {
        let app = Application::with(|heard| match heard {
            Heard::Values(_) => record(10, 0, b"\x0d\x05FCGI", 0),
            Heard::Request(request) => [request.answer("\r\nno"), end(request.id, 0)].concat(),
            Heard::Abort(_) => Vec::new(),
        });
        let gate = Gate::start(ours, &app.address, Parts { app: " option get-values\n", ..Parts::default() });
        gate.raw("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").lines().next().unwrap_or_default().to_owned()
    });
    assert_eq!(theirs, own);
}

#[test]
fn statistics_count_requests_and_reuse() {
    let app = Application::answering(|request| request.answer("\r\nx"));
    let gate = Gate::start(true, &app.address, Parts { backend: " http-reuse always\n", ..Parts::default() });
    let mut client = gate.client();
    for _ in 0..4 {
        assert_eq!(client.get("/").text(), "x");
    }
    let text = gate.stats("show stat");
    let mut lines = text.trim_start_matches("# ").lines();
    let names: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let server = lines.find(|line| line.starts_with("b,s,")).expect("the server's line");
    let values: Vec<&str> = server.split(',').collect();
    let value = |name: &str| names.iter().position(|known| *known == name).map_or("", |at| values[at]);
    assert_eq!(
        [value("stot"), value("hrsp_2xx"), value("connect"), value("reuse"), value("status")],
        ["4", "4", "1", "3", "no check"]
    );
    assert!(gate.directory().exists());
}

/// Records of both directions and the connection are reported.
#[test]
fn records_are_traced() {
    let application = Application::answering(|request| request.answer("\r\nok"));
    let gate = Gate::start(true, &application.address, Parts::default());
    assert_eq!(gate.stats("trace fcgi sink buf0 level state verbosity minimal start now lock server"), "\n");
    assert_eq!(gate.get("/a").status, 200);
    wait_for("the end", || gate.stats("show events buf0").contains("fconn_end").then_some(()));
    let text = gate.stats("show events buf0");
    let lines: Vec<&str> = text.lines().filter_map(|line| line.split_once("[00|fcgi|").map(|(_, rest)| rest)).collect();
    assert_eq!(lines.first(), Some(&"3|fconn_new] new FCGI connection : srv=b/s"));
    for expected in [
        "2|tx_begin_request] FCGI BEGIN_REQUEST record xferred : srv=b/s strm=1",
        "2|tx_params] FCGI PARAMS record xferred : srv=b/s strm=1",
        "2|tx_stding] FCGI STDIN record xferred : srv=b/s strm=1",
        "2|rx_stdout] FCGI STDOUT record rcvd : srv=b/s strm=1",
        "2|rx_end_req] FCGI END_REQUEST record rcvd : srv=b/s strm=1",
        "3|fconn_end] FCGI connection terminated : srv=b/s",
    ] {
        assert!(lines.contains(&expected), "{expected}: {text}");
    }
}
