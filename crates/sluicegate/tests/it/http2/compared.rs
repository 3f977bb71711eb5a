//! Details of requests and responses, beside HAProxy 2.8 before the same server.

use std::fmt::Debug;
use std::io::Read;
use std::sync::{Condvar, Mutex};

use super::requests::headers;
use super::server::{Server, frame};
use super::*;
use sluicegate_testkit::{Haproxy, Program, wait_for};
use sluicegate_wire::http2::{ErrorCode, Settings};

/// Both programs, with the same lines.
struct Both {
    theirs: (Haproxy, Listening),
    ours: (Sluicegate, Listening),
}

impl Both {
    /// Starts both with lines of a frontend and a backend, which names its server `one`.
    fn start(front: &str, back: &str) -> Both {
        Both::logging("%HPO %b/%s %ST %ts %B", front, back)
    }

    fn logging(format: &str, front: &str, back: &str) -> Both {
        let text = |gate: &Listening| {
            format!(
                "global\n log stdout format raw local0\n nbthread 1\ndefaults\n mode http\n log global\n log-format \"log \
                 {format}\"\n timeout connect 60s\n timeout client 60s\n timeout server 60s\nfrontend front\n bind \
                 {}\n{front}\n default_backend back\nbackend back\n{back}\n",
                gate.word()
            )
        };
        let (theirs, ours) = (Listening::new(), Listening::new());
        let haproxy = Haproxy::start_2_8(&text(&theirs), &[&theirs]);
        let sluicegate = start(&text(&ours), &[&ours]);
        Both { theirs: (haproxy, theirs), ours: (sluicegate, ours) }
    }

    /// Asserts that a client sees the same of both, and returns it.
    #[track_caller]
    fn agree<T: Debug + PartialEq>(&self, what: &str, talk: impl Fn(&str) -> T) -> T {
        let expected = talk(&self.theirs.1.address());
        assert_eq!(talk(&self.ours.1.address()), expected, "{what}");
        expected
    }

    /// Asserts that both log the same of the requests for a path, and returns it without the path.
    #[track_caller]
    fn logged(&self, path: &str) -> Vec<String> {
        let start = format!("log {path} ");
        let lines = |program: &Program| -> Vec<String> {
            wait_for("a log line", || {
                let output = program.output();
                let all: Vec<_> =
                    output.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect();
                (!all.is_empty()).then_some(all)
            })
        };
        let expected = lines(&self.theirs.0.program);
        assert_eq!(lines(&self.ours.0.program), expected, "{path}");
        expected
    }
}

/// The compared parts of an answer.
fn seen(answer: &Answer) -> (Vec<u16>, u16, String, String, bool) {
    let interim = answer.interim.iter().map(|(status, _)| *status).collect();
    (interim, answer.status, answer.fields.clone(), answer.text(), answer.complete)
}

/// A server whose answers depend on the path.
fn origin(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> String {
    let origin = Origin::start(move |mut client| {
        while let Some(head) = Request::read_head(&mut client) {
            let target = head.split(' ').nth(1).unwrap_or_default();
            let path = target.split('?').next().unwrap_or_default();
            client.send(answer(path));
        }
    });
    format!(" server one {}", origin.address())
}

fn echo() -> String {
    format!(" server one {}", Origin::echo().address())
}

/// Sends a request of HTTP/1 and another one behind its response, so that both ends are found; returns both.
fn plain(address: &str, request: &str) -> [(String, String); 2] {
    let mut client = Plain::connect(address);
    [request, "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"].map(|request| {
        client.send(request);
        let response = client.read_response();
        (response.head.clone(), response.text())
    })
}

#[test]
fn options_without_a_path_ask_for_the_whole_server() {
    let both = Both::start(" http-request set-header x-path [%[path]]", &echo());
    let text = both.agree("OPTIONS", |address| Client::connect(address).ask("OPTIONS http://h").text());
    assert!(text.starts_with("OPTIONS * HTTP/1.1\n") && text.contains("x-path: []\n"), "{text}");
}

/// The parameter may be in the body, whatever the target has; a server that is known already gets the request at once.
#[test]
fn the_body_of_a_post_is_awaited_for_the_parameter_that_chooses_a_server() {
    let check = |word: &str| {
        let lines = format!(" timeout http-request 1500ms\n balance url_param u{word}\n{}", echo());
        let both = Both::logging("%HPO %b/%s %ts", "", &lines);
        let stalled = |address: &str, target: &str| {
            let mut client = Client::connect(address);
            let stream = client.begin(&format!("POST {target}\nhost: h\ncontent-length: 9"), false);
            client.data(stream, b"ab", false);
            client.head(stream).status
        };
        for (path, query) in [("/absent", ""), ("/there", "?u=1")] {
            let target = format!("{path}{query}");
            assert_eq!(both.agree(&target, |address| stalled(address, &target)), 408);
            assert_eq!(both.logged(path), ["back/<NOSRV> cR"], "{word}");
        }
        let answer = both.agree("a whole body", |address| {
            seen(&Client::connect(address).post("POST /whole\nhost: h\ncontent-length: 3", b"u=1"))
        });
        assert_eq!(answer.1, 200);
    };
    // Side by side, because both wait for what times out.
    std::thread::scope(|scope| {
        for word in ["", " check_post"] {
            scope.spawn(move || check(word));
        }
    });
    let server = Origin::start(|mut client| {
        if Request::read_head(&mut client).is_some() {
            client.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let lines = format!(" balance url_param u\n cookie S\n server one {} cookie k", server.address());
    let both = Both::start("", &lines);
    let status = both.agree("a known server", |address| {
        let mut client = Client::connect(address);
        let stream = client.begin("POST /known\nhost: h\ncontent-length: 9\ncookie: S=k", false);
        client.head(stream).status
    });
    assert_eq!(status, 403);
}

/// The head that the server has sent decides, and not what rules make of it.
#[test]
fn rules_do_not_decide_what_is_compressed() {
    let server = origin(|path| {
        let (status, kind) = match path {
            "/other-type" | "/set-type" => ("200 OK", "a/b"),
            "/set-200" | "/after-200" => ("404 Not Found", "text/plain"),
            _ => ("200 OK", "text/plain"),
        };
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: 50\r\n\r\n{}", "a".repeat(50))
    });
    let lines = "http-response set-header content-type text/plain if { var(txn.p) -m str /other-type }
        http-response set-status 200 if { var(txn.p) -m str /set-200 }
        http-response set-status 404 if { var(txn.p) -m str /set-404 }
        http-response set-header content-encoding br if { var(txn.p) -m str /set-coding }
        http-after-response set-header content-type text/plain if { var(txn.p) -m str /set-type }
        http-after-response del-header content-type if { var(txn.p) -m str /no-type }
        http-after-response set-status 200 if { var(txn.p) -m str /after-200 }
        http-after-response set-status 404 if { var(txn.p) -m str /after-404 }
        http-after-response set-header cache-control no-transform if { var(txn.p) -m str /no-transform }
        http-after-response set-header etag odd if { var(txn.p) -m str /tag }
        http-after-response set-header vary x if { var(txn.p) -m str /vary }
        http-after-response set-header x-length %[res.hdr(content-length)]
        http-response set-header x-compressed \"%[res.comp] %[res.comp_algo]\"";
    let back = format!(" compression algo gzip\n compression type text/plain\n {lines}\n{server}");
    let both = Both::start(" http-request set-var(txn.p) path", &back);
    let paths = [
        ("/plain", true),
        ("/other-type", false),
        ("/set-type", false),
        ("/no-type", true),
        ("/set-200", false),
        ("/after-200", false),
        ("/set-404", true),
        ("/after-404", true),
        ("/set-coding", true),
        ("/no-transform", true),
        ("/tag", true),
        ("/vary", true),
    ];
    for (path, compressed) in paths {
        let (fields, body) = both.agree(path, |address| {
            let answer = Client::connect(address).ask(&format!("GET {path}\nhost: h\naccept-encoding: gzip"));
            let mut text = String::new();
            let _ = flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text);
            (answer.fields.clone(), if text.is_empty() { answer.text() } else { text })
        });
        assert_eq!(fields.contains("content-encoding: gzip\n"), compressed, "{path}: {fields}");
        assert_eq!(body, "a".repeat(50), "{path}");
    }
}

/// Chunks take the place of a length that a rule has deleted, in both directions.
#[test]
fn a_deleted_length_stays_away() {
    let server = origin(|path| {
        let body = if path == "/empty" { "" } else { "abcde" };
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    for rule in ["http-response", "http-after-response"] {
        let front = " http-request return status 200 content-type a/b string abc if { path /return }\n http-request \
                     redirect location /x if { path /redirect }";
        let both = Both::start(&format!("{front}\n {rule} del-header content-length"), &server);
        for path in ["/", "/empty", "/return", "/redirect"] {
            let answers =
                both.agree(path, |address| plain(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")));
            let (has, of_server) = (answers[0].0.contains("content-length"), matches!(path, "/" | "/empty"));
            assert_eq!(has, rule == "http-response" && !of_server, "{path}: {answers:?}");
            let (.., fields, _, complete) = both.agree(path, |address| seen(&Client::connect(address).get(path)));
            assert_eq!((fields.contains("content-length"), complete), (has, true), "{path}: {fields}");
        }
    }
    let both = Both::start(" http-request del-header content-length", &echo());
    let request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let [(_, first), (_, next)] = both.agree("HTTP/1", |address| plain(address, request));
    assert!(first.contains("transfer-encoding: chunked\n") && first.ends_with("\nabc"), "{first}");
    assert!(next.starts_with("GET /next "), "{next}");
    let answer = both
        .agree("HTTP/2", |address| seen(&Client::connect(address).post("POST /\nhost: h\ncontent-length: 3", b"abc")));
    assert!(answer.3.contains("transfer-encoding: chunked\n") && answer.3.ends_with("\nabc"), "{answer:?}");
}

/// A client that expects a 100 gets it before a body that is awaited here, and never without one.
#[test]
fn expectations_of_awaited_bodies() {
    let both = Both::start(" option http-buffer-request", &echo());
    let answer = both.agree("a length", |address| {
        let head = "POST /length\nhost: h\ncontent-length: 3\nexpect: 100-continue";
        seen(&Client::connect(address).post(head, b"abc"))
    });
    assert_eq!((answer.0, answer.3.contains("expect")), (vec![100], false));
    let answer = both
        .agree("no body", |address| seen(&Client::connect(address).ask("POST /none\nhost: h\nexpect: 100-continue")));
    assert_eq!((answer.0, answer.3.contains("expect")), (vec![], true));
    for (path, body) in [
        ("/1-length", "Content-Length: 3\r\n\r\nabc"),
        ("/1-chunks", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        ("/1-empty", "Content-Length: 0\r\n\r\n"),
        ("/1-none", "\r\n"),
    ] {
        let responses = both.agree(path, |address| {
            let mut client = Plain::connect(address);
            client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n{body}"));
            let mut all = vec![client.read_response()];
            if all[0].status == 100 {
                all.push(client.read_response());
            }
            all.iter().map(|response| (response.head.clone(), response.text())).collect::<Vec<_>>()
        });
        let continues = !matches!(path, "/1-empty" | "/1-none");
        assert_eq!(responses.len(), 1 + usize::from(continues), "{path}: {responses:?}");
        both.logged(path);
    }
    // The interim response counts.
    for path in ["/length", "/none"] {
        both.logged(path);
    }
}

/// Only the client's part is missing once the response has come as a whole.
#[test]
fn responses_that_have_come_end_in_their_last_state() {
    let server = origin(|path| {
        let len = match path {
            "/huge" => 200_000,
            "/post" | "/1-post" => 2,
            _ => 5000,
        };
        format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{}", "x".repeat(len))
    });
    let both = Both::logging("%HPO %ST %ts", " timeout client 2s\n timeout http-request 60s", &server);
    let patient = Both::logging("%HPO %ST %ts", "", &server);
    for gate in [&both.theirs.1, &both.ours.1] {
        // The time of a client of HTTP/1 does not begin before it has sent its request.
        crate::robust::accept_with_data(&gate.listener);
    }
    let settings = Settings { max_concurrent_streams: 0, initial_window: 100, ..Settings::default() };
    let ends = |path: &str, resets: bool| {
        let both = if resets { &patient } else { &both };
        both.agree(path, |address| {
            let mut client = Client::with(address, settings);
            client.consumes = false;
            let stream = client.begin(&format!("GET {path}\nhost: h"), true);
            client.until("a full window", |client| client.seen(stream).body.len() == 100);
            if resets {
                client.reset(stream, ErrorCode::CANCEL);
            } else {
                client.until("a reset", |client| client.seen(stream).is_over());
            }
        });
        both.logged(path)
    };
    let post = || {
        both.agree("/1-post", |address| {
            let mut client = Plain::connect(address);
            client.send("POST /1-post HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab");
            let response = client.read_response();
            (response.text(), client.read_to_end())
        });
        assert_eq!(both.logged("/1-post"), ["200 cL"]);
    };
    // Side by side, because all but one wait for what times out.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(ends("/waits", false), ["200 cL"]));
        scope.spawn(|| assert_eq!(ends("/resets", true), ["200 CL"]));
        scope.spawn(|| assert_eq!(ends("/huge", false), ["200 cD"]));
        scope.spawn(post);
    });
}

/// A client that says farewell may still send requests while others are being served.
#[test]
fn streams_behind_a_farewell_are_served() {
    let both = {
        let came = (Mutex::new(0), Condvar::new());
        Both::start(
            "",
            &origin(move |path| {
                let mut count = came.0.lock().expect("unharmed");
                *count += usize::from(path == "/late");
                came.1.notify_all();
                // The first request of each program waits for its second one.
                let wanted = path.strip_prefix("/early").map_or(0, |number| number.parse().expect("a number"));
                drop(came.1.wait_while(count, |count| *count < wanted).expect("unharmed"));
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned()
            }),
        )
    };
    let turns = Mutex::new(0);
    both.agree("both streams", |address| {
        let turn = {
            let mut turns = turns.lock().expect("unharmed");
            *turns += 1;
            *turns
        };
        let mut client = Client::connect(address);
        let early = client.begin(&format!("GET /early{turn}\nhost: h"), true);
        // The client's own frames would open no stream behind it.
        client.raw(&frame(7, 0, &[0; 8]));
        let late = client.begin("GET /late\nhost: h", true);
        let texts = [early, late].map(|stream| client.end(stream).text());
        client.until_closed();
        texts
    });
}

/// Many interim responses of a server of HTTP/2 may come at once.
#[test]
fn interim_responses_may_come_in_crowds() {
    const COUNT: usize = 64;
    // The server's first stream is 1, and this class of frames sets the stream of the first one only.
    let mut crowd = headers(1, 4, &[(":status", "103"), ("link", "x")]).repeat(COUNT);
    crowd.extend(headers(1, 5, &[(":status", "200")]));
    let server = Server::answering(vec![crowd]);
    let both = Both::start("", &format!(" server one {} proto h2", server.address));
    let statuses = both.agree("HTTP/1", |address| {
        let mut client = Plain::connect(address);
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        (0..=COUNT).map(|_| client.read_response().status).collect::<Vec<_>>()
    });
    assert_eq!((statuses[0], statuses[COUNT]), (103, 200));
}

/// Nor does an empty response of HTTP/2 get a length that its server has not stated.
#[test]
fn an_empty_response_has_no_length_of_its_own() {
    let stated = [frame(1, 5, &[&[0x88, 0][..], b"\x0econtent-length\x010"].concat())];
    for (answer, has) in [(frame(1, 5, &[0x88]), false), (stated[0].clone(), true)] {
        let server = Server::answering(vec![answer]);
        let both = Both::start("", &format!(" server one {} proto h2", server.address));
        let answers = both.agree("HTTP/1", |address| plain(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(answers[0].0.contains("content-length: 0\r\n"), has, "{answers:?}");
        for method in ["GET", "HEAD"] {
            let (.., fields, _, complete) =
                both.agree(method, |address| seen(&Client::connect(address).ask(&format!("{method} /\nhost: h"))));
            assert_eq!((fields.contains("content-length: 0\n"), complete), (has, true), "{method}: {fields}");
        }
    }
}
