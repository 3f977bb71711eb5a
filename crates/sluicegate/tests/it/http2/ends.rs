//! Ends of connections: timeouts, graceful stops, reloads, closes of the client.

use super::*;
use sluicegate_testkit::wait_for;
use sluicegate_wire::http2::{ErrorCode, PREFACE, Settings};

/// The last GOAWAY of a connection that nobody uses.
#[track_caller]
fn ends_with(client: &mut Client, last: u32, code: ErrorCode) {
    client.until_closed();
    assert_eq!(client.goaway, Some((last, code)));
}

#[test]
fn silent_connections_time_out() {
    let lines = |first: &str, next: &str| {
        format!(
            " timeout client 60s\n timeout client-fin 50ms\n timeout http-request {first}\n timeout http-keep-alive \
             {next}\n http-request wait-for-body time 60s if {{ path /wait }}\n http-request return status 200"
        )
    };
    // Before the first request; between requests; within a frame.
    let (_server, gate) = front(&lines("300ms", "60s"));
    let mut client = Client::connect(&gate.address());
    client.until("the settings", |client| client.wire.is_greeted());
    ends_with(&mut client, 0, ErrorCode::NO_ERROR);
    let (_server, gate) = front(&lines("60s", "300ms"));
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 200);
    ends_with(&mut client, 1, ErrorCode::NO_ERROR);
    let (_server, gate) = front(&lines("2s", "300ms"));
    let mut client = Client::by_hand(&gate.address());
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
    client.raw(&[&super::requests::headers(1, 5, &get)[..], &[0, 0, 9]].concat());
    ends_with(&mut client, 1, ErrorCode::NO_ERROR);
    // An incomplete preface, after ALPN or not, ends the connection without a GOAWAY.
    let lines = lines("300ms", "300ms");
    let (_server, gate) = front(&lines);
    let mut plain = Plain::connect(&gate.address());
    plain.send(&PREFACE[..20]);
    plain.read_to_end();
    let (_server, gate) = front_with("proto h2", &lines);
    let mut plain = Plain::connect(&gate.address());
    plain.send(&PREFACE[..20]);
    assert_eq!(plain.read_to_end(), b"");
}

/// An idle client is asked to close the connection, and has the time of `timeout client-fin` for it, else that of `timeout
/// client`. Nothing is accepted from it meanwhile.
#[test]
fn idle_clients_have_some_time_to_close() {
    let times =
        [(" timeout client-fin 400ms", 400), (" timeout client-fin 1200ms", 1200), (" timeout client 800ms", 800)];
    for (line, time) in times {
        let lines = format!(
            " timeout client 60s\n timeout http-request 60s\n timeout http-keep-alive 100ms\n{line}\n http-request return \
             status 200"
        );
        let (_server, gate) = front(&lines);
        let mut client = Client::connect(&gate.address());
        // From before the request on, since this side may see the answer and the GOAWAY late.
        let before = std::time::Instant::now();
        assert_eq!(client.get("/").status, 200);
        client.until("a GOAWAY", |client| client.goaway.is_some());
        ends_with(&mut client, 1, ErrorCode::NO_ERROR);
        assert!(before.elapsed() >= std::time::Duration::from_millis(time + 50), "{line}: {:?}", before.elapsed());
    }
    let (_server, gate) = front(" timeout client 60s\n timeout http-keep-alive 100ms\n http-request return status 200");
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 200);
    client.until("a GOAWAY", |client| client.goaway.is_some());
    client.raw(&super::requests::headers(
        3,
        5,
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")],
    ));
    ends_with(&mut client, 1, ErrorCode::NO_ERROR);
}

/// The time of a keep-alive begins with the end of the last stream, also of one that was answered at once.
#[test]
fn answers_at_once_begin_the_idle_time_anew() {
    let lines = " timeout client 60s\n timeout client-fin 50ms\n timeout http-request 60s\n timeout http-keep-alive 1s\n \
         http-request return status 200";
    let (_server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    client.until("the settings", |client| client.wire.is_greeted());
    std::thread::sleep(std::time::Duration::from_millis(600));
    let before = std::time::Instant::now();
    assert_eq!(client.get("/").status, 200);
    ends_with(&mut client, 1, ErrorCode::NO_ERROR);
    assert!(before.elapsed() >= std::time::Duration::from_secs(1), "the connection ended after {:?}", before.elapsed());
}

#[test]
fn streams_time_out_alone() {
    let origin = Origin::start(|mut client| drop(client.read_to_end()));
    let lines = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"\n timeout http-keep-alive 60s\n \
                 timeout client 300ms\n timeout http-request 2s\n option http-buffer-request\n \
                 http-request return status 200 if { path /ok }";
    let (mut server, gate) = before(&origin, lines, " timeout server 300ms");
    // The time for a request is also that until the first one begins.
    let mut client = Client::connect(&gate.address());
    // The body does not come, and the server does not answer.
    let body = client.begin("POST /body\nhost: h\ncontent-length: 3", false);
    let slow = client.begin("GET /slow\nhost: h", true);
    assert_eq!((client.end(slow).status, client.head(body).status), (504, 408));
    assert_eq!(client.get("/ok").status, 200);
    for line in ["/slow 504 sH\n", "/body 408 cR\n"] {
        server.program.wait_for_output(line);
    }
    assert_eq!(client.goaway, None);
}

/// A client that does not read its answer loses the stream by `timeout client`, and only that.
#[test]
fn clients_that_do_not_read_time_out() {
    let origin = Origin::start(|mut client| {
        while let Some(request) = Request::read(&mut client) {
            let len = if request.head.starts_with("GET /big") { 4 << 20 } else { 2 };
            client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n"));
            client.send(pattern(len));
        }
    });
    let lines = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"\n timeout client 500ms\n timeout http-request 60s\n \
                 timeout http-keep-alive 60s";
    let (mut server, gate) = before(&origin, lines, "");
    let settings = Settings { max_concurrent_streams: 0, initial_window: 100, ..Settings::default() };
    let mut client = Client::with(&gate.address(), settings);
    client.consumes = false;
    let big = client.begin("GET /big\nhost: h", true);
    client.until("the end of the stream", |client| client.seen(big).is_over());
    assert!(client.seen(big).reset.is_some() && client.seen(big).body.len() == 100);
    server.program.wait_for_output("/big 200 cD\n");
    assert_eq!(client.get("/small").body.len(), 2);
}

#[test]
fn a_stop_lets_streams_finish() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (come, came) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new((gone, come));
    let origin = Origin::start(move |mut client| {
        while Request::read(&mut client).is_some() {
            let _ = gone.lock().map(|gone| {
                let _ = gone.1.send(());
                gone.0.recv()
            });
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (mut server, gate) = before(&origin, "", "");
    let mut idle = Client::connect(&gate.address());
    idle.until("the settings", |client| client.wire.is_greeted());
    let mut busy = Client::connect(&gate.address());
    let stream = busy.begin("GET /\nhost: h", true);
    let path = server.directory().join("stats");
    wait_for("a request", || {
        Sluicegate::stats(&path, "show stat").lines().any(|line| line.starts_with("back,one,0,0,1,")).then_some(())
    });
    server.program.signal(libc::SIGUSR1);
    busy.until("a GOAWAY", |client| client.goaway.is_some());
    assert_eq!(busy.goaway, Some(((1 << 31) - 1, ErrorCode::NO_ERROR)));
    // The first request waits at the server before the second comes there.
    came.recv().expect("it comes");
    // Requests in flight are served.
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/late"), (":authority", "h")];
    busy.raw(&super::requests::headers(3, 5, &get));
    go.send(()).expect("it waits");
    assert_eq!(busy.end(stream).text(), "ok");
    // This client's frames know nothing of the second stream: its answer comes last.
    go.send(()).expect("it waits");
    busy.until_closed();
    idle.until_closed();
    // The second GOAWAY names the last stream that was processed: none.
    assert_eq!(idle.goaway, Some((0, ErrorCode::NO_ERROR)));
    assert_eq!(server.program.wait(), 0);
}

#[test]
fn total_streams_renew_connections() {
    let gate = Listening::new();
    let text = format!(
        "{}frontend front\n bind {}\n http-request return status 200\n",
        DEFAULTS.replacen(
            "global\n",
            "global\n tune.h2.fe.max-total-streams 5\n tune.h2.fe.max-concurrent-streams 10\n",
            1
        ),
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    for _ in 0..5 {
        assert_eq!(client.get("/").status, 200);
    }
    client.until("a GOAWAY", |client| client.goaway.is_some());
    assert_eq!(client.goaway, Some((29, ErrorCode::NO_ERROR)));
}

#[test]
fn the_preface_decides() {
    // `proto h1` and the option leave a plain bind to HTTP/1; `proto h2` to HTTP/2.
    for (words, line) in [("proto h1", ""), ("", " option disable-h2-upgrade")] {
        let (_server, gate) = front_with(words, &format!("{line}\n http-request return status 200"));
        let mut plain = Plain::connect(&gate.address());
        plain.send(PREFACE);
        let answer = plain.read_response();
        assert_eq!(answer.status, 400, "{words} {line}");
        assert_eq!(Plain::connect(&gate.address()).get("/").status, 200);
    }
    let (_server, gate) = front_with("proto h2", " http-request return status 200");
    assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    let mut plain = Plain::connect(&gate.address());
    plain.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(!String::from_utf8_lossy(&plain.read_to_end()).contains("HTTP/1.1 200"));
    // A preface is valid only at the beginning of a connection.
    let (_server, gate) = front(" http-request return status 200");
    let mut plain = Plain::connect(&gate.address());
    assert_eq!(plain.get("/").status, 200);
    plain.send(PREFACE);
    assert_eq!(plain.read_response().status, 400);
}

/// A client that goes away ends what its streams do.
#[test]
fn a_client_that_leaves_ends_its_streams() {
    let (told, tell) = std::sync::mpsc::channel();
    let origin = Origin::start(move |mut client| {
        Request::read(&mut client);
        client.read_to_end();
        let _ = told.send(());
    });
    let (mut server, gate) =
        before(&origin, " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"", " option abortonclose");
    let mut client = Client::connect(&gate.address());
    for index in 0..5 {
        client.begin(&format!("GET /{index}\nhost: h"), true);
    }
    server.program.is_running();
    let path = server.directory().join("stats");
    wait_for("requests", || {
        Sluicegate::stats(&path, "show stat").lines().any(|line| line.starts_with("back,one,0,0,5,")).then_some(())
    });
    drop(client);
    for _ in 0..5 {
        tell.recv_timeout(sluicegate_testkit::PATIENCE).expect("an end");
    }
    server.program.wait_for_output("/4 400 C");
}

/// A client may end its side behind complete requests: they are answered, but for `abortonclose`; others never will be
/// complete.
#[test]
fn a_client_may_end_its_side_first() {
    for (option, status, line) in [("", 200, "/get 200 --\n"), (" option abortonclose\n", 400, "/get 400 CH\n")] {
        let (half, halved) = std::sync::mpsc::channel();
        let (arrived, arrivals) = std::sync::mpsc::channel();
        let halved = std::sync::Mutex::new(halved);
        let origin = Origin::start(move |mut client| {
            let head = Request::read_head(&mut client).unwrap_or_default();
            let _ = arrived.send(());
            if head.starts_with("GET ") {
                let _ = halved.lock().expect("unharmed").recv_timeout(sluicegate_testkit::PATIENCE);
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            } else {
                drop(client.read_to_end());
            }
        });
        let log = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"";
        let (mut server, gate) = before(&origin, log, option);
        let mut client = Client::connect(&gate.address());
        let get = client.begin("GET /get\nhost: h", true);
        let post = client.begin("POST /post\nhost: h", false);
        client.data(post, b"half", false);
        for _ in 0..2 {
            arrivals.recv_timeout(sluicegate_testkit::PATIENCE).expect("a request at the server");
        }
        client.socket().shutdown(std::net::Shutdown::Write).expect("shut");
        // The end has arrived once the other stream has ended.
        client.until("a reset", |client| client.seen(post).reset.is_some());
        assert_eq!(client.seen(post).reset, Some(ErrorCode::REFUSED_STREAM));
        let _ = half.send(());
        assert_eq!(client.head(get).status, status, "{option}");
        client.until_closed();
        assert!(client.seen(get).complete, "{option}");
        server.program.wait_for_output(line);
    }
}

#[test]
fn a_reload_asks_for_another_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Listening::new();
    let text = |name: &str| {
        format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend front\n bind {}\n http-request tarpit if {{ path /wait }}\n timeout tarpit 600s\n http-request return status 200 hdr name {name}\n",
            gate.word()
        )
    };
    let file = directory.path().join("a.cfg");
    std::fs::write(&file, text("one")).expect("written");
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["run", "a.cfg"]).current_dir(directory.path());
    let mut program = sluicegate_testkit::Program::start(command, &[gate.fd()]);
    program.wait_for_output("listening on");
    let mut idle = Client::connect(&gate.address());
    let mut busy = Client::connect(&gate.address());
    assert_eq!(idle.get("/").field("name"), Some("one"));
    busy.begin("GET /wait\nhost: h", true);
    assert_eq!(busy.get("/").field("name"), Some("one"));
    std::fs::write(&file, text("two")).expect("written");
    let done = std::process::Command::new(crate::BINARY).args(["reload", &program.pid().to_string()]).output();
    let done = done.expect("it runs");
    assert!(done.status.success(), "{done:?}");
    // A connection without streams changes to the new configuration; one with a stream keeps the old one and is asked
    // to end.
    assert_eq!(idle.get("/").field("name"), Some("two"));
    busy.until("a GOAWAY", |client| client.goaway.is_some());
    assert_eq!(busy.goaway, Some(((1 << 31) - 1, ErrorCode::NO_ERROR)));
    assert_eq!(Client::connect(&gate.address()).get("/").field("name"), Some("two"));
}
