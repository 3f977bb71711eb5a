//! Rules, scripts, limits and queues: each stream is a request of its own.

use std::io::Write;

use super::requests::frame;
use super::*;
use sluicegate_testkit::wait_for;
use sluicegate_wire::http2::ErrorCode;

#[test]
fn rules_of_each_stream() {
    let lines = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"\n monitor-uri /alive\n \
                 http-request deny if { path /deny }\n http-request deny deny_status 429 if { path /many }\n \
                 http-request redirect location /there code 303 if { path /redirect }\n \
                 http-request return status 200 content-type text/plain string text hdr x-n %[fs.id] if { path /return }\n \
                 http-request auth realm r if { path /auth }\n \
                 http-request tarpit if { path /tarpit }\n timeout tarpit 100ms\n \
                 http-request set-var(sess.seen) int(0) unless { var(sess.seen) -m found }\n \
                 http-request set-var(sess.seen) var(sess.seen),add(1)\n \
                 http-after-response set-header x-seen %[var(sess.seen)] if { var(sess.seen) -m found }\n \
                 http-request return status 204 if { path /seen }\n \
                 redirect prefix /p if { path /old }";
    let (mut server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    let mut check = |path: &str, status: u16, field: (&str, Option<&str>)| {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.complete, answer.reset), (status, true, None), "{path} {answer:?}");
        assert_eq!(answer.field(field.0), field.1, "{path} {answer:?}");
        answer
    };
    check("/alive", 200, ("connection", None));
    let denied = check("/deny", 403, ("content-type", Some("text/html")));
    assert!(denied.text().contains("<h1>403 Forbidden</h1>"), "{denied:?}");
    check("/many", 429, ("connection", None));
    check("/redirect", 303, ("location", Some("/there")));
    let answer = check("/return", 200, ("content-length", Some("4")));
    assert_eq!((answer.text().as_str(), answer.field("x-n")), ("text", Some("9")));
    check("/auth", 401, ("www-authenticate", Some("Basic realm=\"r\"")));
    check("/tarpit", 500, ("connection", None));
    // The streams of a session share its variables.
    check("/seen", 204, ("x-seen", Some("1")));
    check("/seen", 204, ("x-seen", Some("2")));
    check("/old", 302, ("location", Some("/p/old")));
    check("/other", 503, ("x-seen", Some("4")));
    for line in ["/deny 403 PR\n", "/redirect 303 LR\n", "/auth 401 LR\n", "/tarpit 500 PT\n", "/other 503 SC\n"] {
        server.program.wait_for_output(line);
    }
    assert!(!server.program.output().contains("/alive"), "{}", server.program.output());
}

/// A tarpit of one stream does not hold up others, and ends when its client resets it.
#[test]
fn waiting_streams_do_not_hold_up_others() {
    let lines = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"\n http-request tarpit if { path /pit }\n \
                 timeout tarpit 600s\n http-request silent-drop if { path /drop }\n http-request return status 200";
    let (mut server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    let pits: Vec<_> = (0..50).map(|_| client.begin("GET /pit\nhost: h", true)).collect();
    assert_eq!(client.get("/").status, 200);
    for stream in &pits {
        client.reset(*stream, ErrorCode::CANCEL);
    }
    server.program.wait_for_output("/pit 500 PT\n");
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.goaway, None);
    // `silent-drop` ends the connection without sending anything: what comes later finds nobody.
    client.begin("GET /drop\nhost: h", true);
    let ping = frame(6, 0, 0, &[0; 8]);
    let mut socket = client.socket();
    wait_for("the end", || socket.write_all(&ping).is_err().then_some(()));
    client.until_closed();
    assert_eq!(client.goaway, None);
}

/// `reject` ends the connection, as in HAProxy.
#[test]
fn reject_ends_the_connection() {
    let lines = " http-request reject if { path /reject }\n http-request return status 200";
    let (_server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 200);
    client.begin("GET /reject\nhost: h", true);
    client.until_closed();
    assert_eq!(client.goaway.map(|(_, code)| code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    // Other streams are not waited for.
    let lines = " http-request reject if { path /reject }\n http-request tarpit\n timeout tarpit 600s";
    let (_server, gate) = front(lines);
    let mut client = Client::connect(&gate.address());
    client.begin("GET /pit\nhost: h", true);
    client.begin("GET /reject\nhost: h", true);
    client.until_closed();
    assert_eq!(client.resets, [(3, ErrorCode::ENHANCE_YOUR_CALM)]);
}

#[test]
fn scripts_serve_streams() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("a.lua");
    std::fs::write(
        &script,
        "core.register_service('echo', 'http', function(applet)
            local body = applet:receive()
            applet:set_status(200)
            applet:add_header('x-version', applet.version)
            applet:start_response()
            applet:send(applet.method .. ' ' .. applet.path .. ' ' .. body)
        end)
        core.register_action('mark', { 'http-req' }, function(txn)
            core.msleep(5)
            txn.http:req_set_header('x-mark', txn.sf:method())
        end)",
    )
    .expect("written");
    let gate = Listening::new();
    let text = format!(
        "{}frontend front\n bind {}\n http-request lua.mark\n http-request return status 200 hdr x-mark %[req.hdr(x-mark)] \
         if {{ path /mark }}\n http-request use-service lua.echo\n",
        DEFAULTS.replacen("global\n", &format!("global\n lua-load {}\n", script.display()), 1),
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let streams: Vec<_> = (0..20).map(|index| client.begin(&format!("POST /{index}\nhost: h"), false)).collect();
    for stream in &streams {
        client.data(*stream, b"bo", false);
    }
    for stream in &streams {
        client.data(*stream, b"dy", true);
    }
    for (index, stream) in streams.into_iter().enumerate() {
        let answer = client.end(stream);
        assert_eq!(answer.text(), format!("POST /{index} body"));
        assert_eq!(answer.field("transfer-encoding"), None);
    }
    assert_eq!(client.get("/mark").field("x-mark"), Some("GET"));
}

#[test]
fn counters_and_limits_count_streams() {
    let gate = Listening::new();
    let text = format!(
        "{}store main\nfrontend front\n bind {}\n stick-table type ip size 10 store conn_cnt,conn_cur,http_req_cnt,http_err_cnt\n \
         tcp-request connection track-sc0 src\n http-request limit one key src rate 3/1h store main if {{ path /limit }}\n \
         http-request deny if {{ path /deny }}\n http-request return status 200 hdr x-n \
         \"%[sc_conn_cnt(0)] %[sc_conn_cur(0)] %[sc_http_req_cnt(0)] %[sc_http_err_cnt(0)]\"\n",
        DEFAULTS,
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").field("x-n"), Some("1 1 1 0"));
    assert_eq!(client.get("/deny").status, 403);
    assert_eq!(client.get("/").field("x-n"), Some("1 1 3 1"));
    let mut other = Client::connect(&gate.address());
    assert_eq!(other.get("/").field("x-n"), Some("2 2 4 1"));
    // A malformed head is a request and an error.
    let stream = other.open();
    other.raw(&super::requests::headers(stream.id(), 5, &[(":method", "GET"), ("Upper", "1")]));
    assert_eq!(other.end(stream).reset, Some(ErrorCode::PROTOCOL_ERROR));
    assert_eq!(other.get("/").field("x-n"), Some("2 2 6 2"));
    let statuses: Vec<_> = (0..4).map(|_| client.get("/limit").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn streams_queue_for_a_server() {
    let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let now = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = most.clone();
    let origin = Origin::start(move |mut client| {
        use std::sync::atomic::Ordering::SeqCst;
        while Request::read(&mut client).is_some() {
            seen.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, SeqCst);
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (server, gate) = front(&format!(
        " default_backend back\nbackend back\n timeout queue 60s\n server one {} maxconn 2",
        origin.address()
    ));
    let mut client = Client::connect(&gate.address());
    let streams: Vec<_> = (0..60).map(|_| client.begin("GET /\nhost: h", true)).collect();
    for stream in streams {
        assert_eq!(client.end(stream).text(), "ok");
    }
    assert!(most.load(std::sync::atomic::Ordering::SeqCst) <= 2);
    // A stream that is reset leaves the queue.
    let (_stuck, stuck) = front(&format!(
        " default_backend back\nbackend back\n timeout queue 60s\n option abortonclose\n server one {} maxconn 1",
        Origin::start(|mut client| drop(client.read_to_end())).address()
    ));
    let mut client = Client::connect(&stuck.address());
    let streams: Vec<_> = (0..5).map(|_| client.begin("GET /\nhost: h", true)).collect();
    let path = _stuck.directory().join("stats");
    let queued = || Sluicegate::stats(&path, "show stat").lines().any(|line| line.starts_with("back,BACKEND,4,"));
    wait_for("four in the queue", || queued().then_some(()));
    for stream in streams {
        client.reset(stream, ErrorCode::CANCEL);
    }
    let empty = || Sluicegate::stats(&path, "show stat").lines().any(|line| line.starts_with("back,BACKEND,0,"));
    wait_for("an empty queue", || empty().then_some(()));
    drop(server);
}

#[test]
fn cookies_keep_clients_at_their_server() {
    let origin = Origin::echo();
    let (_server, gate) = front(&format!(
        " default_backend back\nbackend back\n cookie SRV insert indirect\n server a {0} cookie a\n server b {0} cookie b",
        origin.address()
    ));
    let mut client = Client::connect(&gate.address());
    let cookie = client.get("/").field("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.starts_with("SRV="), "{cookie}");
    let answer = client.ask("GET /\nhost: h\ncookie: x=1\ncookie: SRV=b\ncookie: y=2");
    assert_eq!(answer.field("set-cookie"), None);
    assert!(answer.text().contains("cookie: x=1; y=2\n"), "{answer:?}");
}

#[test]
fn pages_of_the_process() {
    let gate = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("503.http");
    std::fs::write(&page, "HTTP/1.0 503 Gone\r\nConnection: close\r\nX-Own: 1\r\n\r\nown page").expect("written");
    let text = format!(
        "{DEFAULTS}frontend front\n bind {}\n errorfile 503 {}\n stats enable\n stats uri /stats\n \
         http-request use-service prometheus-exporter if {{ path /metrics }}\n",
        gate.word(),
        page.display()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let stats = client.get("/stats");
    assert!(
        stats.status == 200 && stats.complete && stats.text().contains("<h2><a href=\"#front\">front</a>"),
        "{}",
        stats.text()
    );
    let csv = client.get("/stats;csv");
    assert!(csv.text().starts_with("# pxname"), "{csv:?}");
    let metrics = client.get("/metrics");
    assert!(metrics.complete && metrics.text().contains("haproxy_process_"), "{}", metrics.text());
    let own = client.get("/");
    assert_eq!((own.status, own.text().as_str(), own.field("x-own")), (503, "own page", Some("1")), "{own:?}");
    assert_eq!(own.field("connection"), None);
}
