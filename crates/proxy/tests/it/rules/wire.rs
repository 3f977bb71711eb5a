//! Rules on whole connections, compared with Debian's haproxy: the bytes that client and server receive, and the log
//! line.
//!
//! The server sends back the head that it received, so what a client reads shows both directions.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, wait_for};

use super::super::server::fixture::Whole;

/// Starts a server whose response has the request's head as its body; for `/status/N` it has this status.
pub fn mirror() -> SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || reflect(stream));
        }
    });
    address
}

fn reflect(mut stream: TcpStream) {
    let mut received = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head: Vec<u8> = received.drain(..end + 4).collect();
            let text = String::from_utf8_lossy(&head);
            let status = text.split("/status/").nth(1).and_then(|rest| rest.get(..3)).unwrap_or("200");
            let mut answer = format!(
                "HTTP/1.1 {status} From server\r\nServer: mirror\r\nX-List: one, two,three\r\nX-List: \"a, b\", four\r\n\
                 Set-Cookie: a=1\r\nContent-Length: {}\r\n\r\n",
                head.len()
            )
            .into_bytes();
            if !text.starts_with("HEAD ") {
                answer.extend_from_slice(&head);
            }
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

/// Returns what a client receives, with the names of fields in lower case, as haproxy writes them.
fn normal(received: &[u8]) -> String {
    let text = String::from_utf8_lossy(received).replace("\r\n", "\n");
    let line = |line: &str| match line.split_once(": ") {
        Some((name, value)) if !name.contains(' ') => format!("{}: {value}", name.to_ascii_lowercase()),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the answers to these requests, each on a connection of its own.
fn run(address: &str, requests: &[&str]) -> Vec<String> {
    let ask = |request: &&str| {
        let mut client = Client::connect(address);
        client.send(request);
        // Bytes that are not a request make the proxy close the connection; a close by the client could be logged
        // instead.
        if request.contains(" HTTP/") {
            client.finish();
        }
        normal(&client.read_to_end())
    };
    requests.iter().map(ask).collect()
}

/// Asserts that both give the same answers and log lines, and returns the answers.
#[track_caller]
pub fn compare(front: &str, back: &str, requests: &[&str]) -> Vec<String> {
    compare_with("", front, back, requests)
}

#[track_caller]
pub fn compare_with(global: &str, front: &str, back: &str, requests: &[&str]) -> Vec<String> {
    compare_logged(global, front, back, requests, requests.len())
}

/// Like [`compare`], with this number of log lines; `global` has the lines of its section.
#[track_caller]
pub fn compare_logged(global: &str, front: &str, back: &str, requests: &[&str], logged: usize) -> Vec<String> {
    let server = mirror();
    let text = format!(
        "global\n nbthread 1\n{global}defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n\
         frontend f\n bind @BIND@\n log @LOG@ format raw local0\n \
         log-format \"%ST %tsc %B %{{+Q}}r %s %hs\"\n{front} default_backend b\nbackend b\n{back} server s {server}\n"
    );
    let listening = Listening::new();
    let haproxy = Haproxy::start(&text.replace("@BIND@", &listening.word()).replace("@LOG@", "stdout"), &[&listening]);
    let mut theirs = run(&listening.address(), requests);
    theirs.extend(wait_for("haproxy's log", || {
        let output = haproxy.program.output();
        let lines: Vec<_> = output.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect();
        (lines.len() >= logged).then_some(lines)
    }));
    drop(haproxy);
    let whole = Whole::start(&text.replace("@BIND@", "127.0.0.1:1"), 1);
    let mut ours = run(&whole.address(), requests);
    ours.extend(whole.log_lines(logged));
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "{} of\n{front}--\n{back}", requests[index % requests.len()]);
    }
    assert_eq!(ours.len(), theirs.len());
    ours
}

const GET: &str =
    "GET /a/b?c=d HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: one, two ,three\r\nX: \"q, r\"\r\nX-Other: 1\r\n\r\n";

#[test]
fn replaced_fields_and_targets_reach_the_server_as_from_haproxy() {
    let answers = compare(
        " http-request replace-header X o(.*)e <\\1>\n http-request replace-value X ^t(.) [\\1\\x41]%[method]\n \
          http-request replace-header none . x\n http-request replace-header Host (.*) new.\\1\n",
        "",
        &[GET],
    );
    assert!(answers[0].contains("x: <ne,[wA]GET,[hA]GET\n") && answers[0].contains("host: new.h\n"), "{}", answers[0]);
    let requests = [
        GET,
        "GET http://u@host:81/a/b?c HTTP/1.1\r\nHost: host:81\r\nConnection: close\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "PURGE /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    ];
    for rules in [
        " http-request replace-path /a(.*) /new\\1\n",
        " http-request replace-path (.*) /x\\1y\n",
        " http-request replace-pathq (.*)\\?(.*) /p\\1/\\2\n",
        " http-request replace-uri ^http://[^/]*/(.*) /from/\\1\n",
        " http-request replace-uri ^/(.*) http://other/\\1\n",
        " http-request set-path /set%[path]\n",
        " http-request set-pathq /%[query]?q\n",
        " http-request set-query %[query]&x=%[path]\n",
        " http-request set-query %[str()]\n",
        " http-request set-uri http://u:p@third:9%[path]\n",
        " http-request set-uri /%[method]\n",
        " http-request set-method PATCH\n",
        " http-request set-method HEAD\n",
        " http-request set-method GET\n",
        " http-request set-method %[str(get),upper]\n",
        // Rules see the client's.
        " http-request set-method POST\n http-request set-method PUT\n http-request set-header X-M %[method]\n \
            http-request set-header X-Get yes if METH_GET\n",
        " http-request del-header x -m beg\n",
        " http-request del-header oTHEr -m end\n",
        " http-request del-header -O -m sub\n",
        " http-request del-header ^x-?o? -m reg\n",
        " http-request del-header X-Other -m str\n",
    ] {
        compare(rules, "", &requests);
        compare("", rules, &requests[..1]);
    }
}

#[test]
fn responses_are_edited_as_by_haproxy() {
    for rules in [
        " http-response replace-header X-List (.*) <\\1>\n",
        " http-response replace-value X-List ^(.) %[status]\\1\\\\\n",
        " http-response set-status 299\n http-response set-status 418 reason \"No tea\" if { status 299 }\n",
        " http-response set-status 204\n",
        " http-response set-status 304\n",
        " http-response del-header x -m beg\n http-response set-header X-Left %[res.hdrs]\n",
    ] {
        compare(rules, "", &[GET]);
        compare("", rules, &[GET, "GET /status/404 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"]);
    }
}

#[test]
fn rules_behind_responses_see_all_that_leaves() {
    let front = " http-request set-var(txn.a) str(kept)\n http-request set-var(req.b) str(gone)\n \
        http-request return status 201 content-type text/plain string made hdr X-Made here if { path /return }\n \
        http-request deny deny_status 429 if { path /deny }\n http-request redirect location /x if { path /redirect }\n \
        http-request set-header big %[str(a),concat(b)] if { path /big }\n \
        http-response return status 503 content-type text/plain string back if { status 404 }\n \
        http-after-response set-header X-After %[status]:%[var(txn.a)]:%[var(req.b)]:%[res.hdr(x-made)]\n \
        http-after-response replace-header X-List ^one(.*) f\\1\n http-after-response del-header server\n \
        http-after-response allow if { status 302 }\n \
        http-after-response add-header Set-Cookie f=%[fe_name]\n \
        http-after-response set-status 299 reason \"From after\" if { status 201 }\n \
        http-after-response unset-var(txn.a)\n http-after-response set-var(res.c) str(c)\n \
        http-after-response replace-value X-After (.*) \\1%[var(res.c)]\n";
    let back = " http-after-response add-header X-Back %[be_name]\n http-after-response strict-mode on\n";
    let paths = ["/", "/return", "/deny", "/redirect", "/status/404", "/status/503"];
    let requests: Vec<String> =
        paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).collect();
    let mut requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    requests.push("HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    requests.push("NONSENSE\r\n\r\n");
    let answers = compare(front, back, &requests);
    assert!(answers[0].contains("x-back: b\n") && answers[0].contains("x-after: 200:kept::c\n"), "{}", answers[0]);
    assert!(answers[1].starts_with("HTTP/1.1 299 From after\n"), "{}", answers[1]);
    assert!(!answers[7].contains("x-after"), "what is no request is answered by the parser: {}", answers[7]);
}

/// Returns the rule that sets a value so long that a head with two of them does not fit the buffer.
fn long() -> String {
    format!(" http-request set-var(txn.long) str({})\n", "a".repeat(9000))
}

#[test]
fn an_edit_that_does_not_fit_fails_as_in_haproxy() {
    let twice = |set: &str, line: &str| format!(" {set} {line} %[var(txn.long)]\n {set} {line} %[var(txn.long)]\n");
    for (set, soft) in [
        ("http-request", false),
        ("http-request", true),
        ("http-response", false),
        ("http-response", true),
        ("http-after-response", false),
        ("http-after-response", true),
    ] {
        let mode = if soft { format!(" {set} strict-mode off\n") } else { String::new() };
        let rules = format!("{}{mode}{}", long(), twice(set, "add-header X-Long"));
        let answers = compare(&rules, "", &[GET]);
        let status = if soft { "HTTP/1.1 200 " } else { "HTTP/1.1 500 " };
        assert!(answers[0].starts_with(status), "{set} {soft}: {}", answers[0]);
        // The mode applies to one rule list: that of a backend is strict again.
        if soft && set != "http-after-response" {
            let rules = format!("{}{mode}", long());
            let (front, back) = if set == "http-request" {
                (rules, twice(set, "add-header X-Long"))
            } else {
                (format!("{}{}", long(), twice(set, "add-header X-Long")), mode.clone())
            };
            let answers = compare(&front, &back, &[GET]);
            assert!(answers[0].starts_with("HTTP/1.1 500 "), "{set}: {}", answers[0]);
        }
    }
}

#[test]
fn targets_have_the_normal_forms_of_haproxy() {
    let targets = [
        "/a//b///c/",
        "//",
        "/./a/./b/.",
        "/.",
        "/a/.b/c./",
        "/a/../b",
        "/a/b/..",
        "/..",
        "/../a/../../b",
        "/a/../..",
        "/a//../b",
        "/...",
        "/a%2fb%7e%41?%61=%c3",
        "/%",
        "/%4",
        "/%zz%41",
        "/p?b=2&a=1&b=1&aa=0&&=x",
        "/p?",
        "/p",
        "/a/./../b/?x=/../y//z/./",
        "http://host/a/../b//c",
    ];
    let requests: Vec<String> = targets
        .iter()
        .map(|target| format!("GET {target} HTTP/1.1\r\nHost: host\r\nConnection: close\r\n\r\n"))
        .collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    for normalizer in [
        "path-merge-slashes",
        "path-strip-dot",
        "path-strip-dotdot",
        "path-strip-dotdot full",
        "percent-decode-unreserved",
        "percent-decode-unreserved strict",
        "percent-to-uppercase",
        "percent-to-uppercase strict",
        "query-sort-by-name",
        "fragment-strip",
        "fragment-encode",
    ] {
        let rule = format!(" http-request normalize-uri {normalizer}\n");
        compare_with(" expose-experimental-directives\n", &rule, "", &requests);
    }
}

#[test]
fn hints_are_sent_before_the_answer_as_by_haproxy() {
    let front = " http-request early-hint Link <a>\n http-request early-hint Link %[path]\n \
        http-request early-hint X-Two 2 if { path / }\n http-request return status 200 if { path /own }\n";
    let answers = compare(
        front,
        "",
        &[
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "GET /own HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "GET /own HTTP/1.0\r\nHost: h\r\n\r\n",
        ],
    );
    assert!(answers[0].starts_with("HTTP/1.1 103 Early Hints\nlink: <a>\nlink: /\n\nHTTP/1.1 103 "), "{}", answers[0]);
}

#[test]
fn addresses_that_rules_set_are_seen_by_rules_and_logs_as_in_haproxy() {
    let shown = " http-request return status 200 content-type a/b lf-string \
        \"%[src]:%[src_port] %[dst]:%[dst_port] %[fc_src] %[fc_dst] %ci:%cp %[src_is_local]\"\n";
    for rules in [
        " http-request set-src req.hdr(x-ip)\n http-request set-src-port int(7)\n",
        " http-request set-dst str(10.9.8.7)\n http-request set-dst-port int(99)\n",
        " http-request set-src str(2001:db8::1)\n http-request set-dst str(no)\n http-request set-src-port int(1)\n \
          http-request set-dst-port str(x)\n http-request set-dst-port int(2)\n",
        " tcp-request connection set-src str(10.1.1.1)\n tcp-request connection set-src-port int(5)\n \
          tcp-request connection set-dst str(10.1.1.2)\n tcp-request connection set-dst-port int(6)\n",
        " tcp-request connection set-src str(10.1.1.1)\n tcp-request session set-src str(10.1.1.5)\n \
          tcp-request session set-dst str(10.1.1.6)\n",
        " tcp-request content set-src str(10.1.1.3)\n tcp-request content set-src-port int(5)\n \
          tcp-request content set-dst-port int(5)\n tcp-request content set-dst str(10.1.1.4)\n",
    ] {
        let shown = if rules.contains("dst-port") { shown.to_owned() } else { shown.replace(":%[dst_port]", "") };
        let shown =
            if rules.contains("src-port") { shown } else { shown.replace(":%[src_port]", "").replace(":%cp", "") };
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Ip: 192.0.2.7\r\nConnection: close\r\n\r\n";
        compare(&format!("{rules}{shown}"), "", &[request]);
    }
    // A server without an address stands for the client's destination.
    let server = mirror();
    let listening = Listening::new();
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nfrontend f\n bind @BIND@\n \
         http-request set-dst str({})\n http-request set-dst-port int({})\n default_backend b\nbackend b\n server s \
         0.0.0.0:0\n",
        server.ip(),
        server.port()
    );
    let haproxy = Haproxy::start(&text.replace("@BIND@", &listening.word()), &[&listening]);
    let theirs = run(&listening.address(), &[GET]);
    drop(haproxy);
    let whole = Whole::start(&text.replace("@BIND@", "127.0.0.1:1"), 1);
    assert_eq!(run(&whole.address(), &[GET]), theirs);
    assert!(theirs[0].contains("server: mirror"), "{}", theirs[0]);
}

/// Returns a socket of this process that is connected to this address.
fn socket_to(peer: SocketAddr) -> socket2::Socket {
    find_socket_to(peer).unwrap_or_else(|| panic!("nobody is connected to {peer}"))
}

fn find_socket_to(peer: SocketAddr) -> Option<socket2::Socket> {
    for entry in std::fs::read_dir("/proc/self/fd").expect("linux") {
        let name = entry.expect("readable").file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // SAFETY: the descriptor is only asked, duplicated if it is the one, and never closed here.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let socket = socket2::SockRef::from(&fd);
        if socket.peer_addr().is_ok_and(|address| address.as_socket() == Some(peer)) {
            return Some(socket.try_clone().expect("a free descriptor"));
        }
    }
    None
}

#[test]
fn packets_have_the_type_of_service_that_rules_say() {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n bind 127.0.0.1:1\n \
         tcp-request connection set-fc-tos 0x10\n tcp-request session set-fc-mark 7\n \
         http-request set-fc-tos req.hdr_val(tos) if {{ req.hdr(tos) -m found }}\n \
         http-request set-bc-tos 0x20 if {{ path /bc }}\n http-request set-tos 4 if {{ path /old }}\n \
         http-request set-bc-mark int(9)\n server s {}\n",
        origin.local_addr().expect("bound")
    );
    let whole = Whole::start(&text, 1);
    let check = |head: &str, client_tos: u32, server_tos: u32| {
        let mut client = Client::connect(&whole.address());
        client.send(head);
        let (mut server, proxy) = origin.accept().expect("the proxy connects");
        let mut buffer = [0; 1024];
        assert!(server.read(&mut buffer).expect("a request") > 0);
        let _ = proxy;
        let to_client = socket_to(client.stream().local_addr().expect("connected"));
        let to_server = socket_to(origin.local_addr().expect("bound"));
        assert_eq!(to_client.tos_v4().expect("inet"), client_tos, "{head}");
        assert_eq!(to_server.tos_v4().expect("inet"), server_tos, "{head}");
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("the proxy reads");
        assert_eq!(client.read_response().status, 200);
        drop((server, to_client, to_server));
        let gone = || find_socket_to(origin.local_addr().expect("bound")).is_none();
        wait_for("the proxy's end of the connection", || gone().then_some(()));
    };
    check("GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 0x10, 0);
    check("GET /old HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 4, 0);
    check("GET /bc HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTos: 8\r\n\r\n", 8, 0x20);
}

/// Returns what a client reads from a dropped connection: nothing for this time, or a reset.
fn dropped(address: &str, request: &str, silence: std::time::Duration) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(address).expect("listening");
    stream.set_read_timeout(Some(silence)).expect("settable");
    stream.write_all(request.as_bytes())?;
    stream.read(&mut [0; 100])
}

#[test]
fn a_dropped_client_is_told_nothing_or_reset() {
    let rules = |action: &str| {
        format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
             bind 127.0.0.1:1\n log @LOG@ format raw local0\n log-format \"%ST %tsc\"\n{action}\n \
             http-request return status 200 if {{ path /200 }}\n server s {}\n",
            mirror()
        )
    };
    for (rule, line) in [
        (" tcp-request connection silent-drop", None),
        (" tcp-request session silent-drop rst-ttl 3", None),
        (" tcp-request content silent-drop", Some("0 PR--")),
        (" http-request silent-drop", Some("0 PR--")),
        (" http-request silent-drop rst-ttl 2", Some("0 PR--")),
        (" http-response silent-drop", Some("PH--")),
    ] {
        let whole = Whole::start(&rules(rule), 1);
        // Leaves enough time for a reset to arrive.
        let silence = if rule.contains("rst-ttl") { PATIENCE } else { std::time::Duration::from_millis(300) };
        let error = dropped(&whole.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n", silence)
            .map_or_else(|error| error, |count| panic!("{rule}: an end is told: {count}"));
        let reset = matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe);
        let silent = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        // Without TCP_REPAIR, which needs a capability, a reset is sent.
        assert!(reset || silent && !rule.contains("rst-ttl"), "{rule}: {error}");
        if let Some(line) = line {
            let logged = whole.log_lines(1).remove(0);
            assert!(logged.contains(line.trim_start_matches("0 ")), "{rule}: {logged}");
        }
    }
}

#[test]
fn rules_set_timeouts_and_pauses() {
    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n timeout tunnel 60s\n\
         listen f\n bind 127.0.0.1:1\n log @LOG@ format raw local0\n log-format \"%ST %tsc %[cur_server_timeout]\"\n \
         http-request set-timeout server 20ms if {{ path /server }}\n \
         http-request set-timeout server req.hdr_val(ms) if {{ req.hdr(ms) -m found }}\n \
         http-request set-timeout client 500ms if {{ path /client }}\n \
         http-request set-timeout tunnel 70ms\n http-request pause 1 if {{ path /server }}\n \
         http-request set-var(txn.t) date(0,ms)\n http-request pause int(30) if {{ path /pause }}\n \
         http-request return status 200 content-type a/b lf-string \"%[date(0,ms),sub(txn.t)] %[cur_tunnel_timeout]\" \
         if {{ path /pause }}\n http-request wait-for-handshake\n http-request set-nice 5\n server s {}\n",
        silent.local_addr().expect("bound")
    );
    let whole = Whole::start(&text, 1);
    let ask = |request: &str| {
        let mut client = Client::connect(&whole.address());
        client.send(request);
        normal(&client.read_to_end())
    };
    let answer = ask("GET /server HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    let answer = ask("GET / HTTP/1.1\r\nHost: h\r\nMs: 15\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    let answer = ask("POST /client HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let answer = ask("GET /pause HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let shown = answer.lines().last().and_then(|line| line.split_once(' ')).expect("two numbers");
    assert!(shown.0.parse::<u64>().expect("a number") >= 30 && shown.1 == "70", "{answer}");
    let lines = whole.log_lines(4);
    assert_eq!(lines[..2], ["504 sH-- 20", "504 sH-- 15"]);
    assert_eq!(lines[2], "408 cH-- 60000");
}

/// The `timeout connect` of defaults stands in for `timeout tarpit` where connections are made.
#[test]
fn a_tarpit_of_a_frontend_without_a_time_ends_at_once() {
    let text = "defaults\n mode http\n timeout client 600s\n timeout connect 600s\n timeout server 600s\n\
                frontend f\n bind 127.0.0.1:1\n log @LOG@ format raw local0\n log-format \"%ST %tsc\"\n \
                http-request tarpit deny_status 403\n";
    let whole = Whole::start(text, 1);
    let mut client = Client::connect(&whole.address());
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let answer = normal(&client.read_to_end());
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(whole.log_lines(1), ["403 PT--"]);
}

#[test]
fn rules_set_how_often_a_connection_is_tried() {
    let text = |rule: &str| {
        format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 1ms\n timeout server 60s\n retries 1\nlisten f\n \
             bind 127.0.0.1:1\n log @LOG@ format raw local0\n log-format \"%ST %rc\"\n{rule} server s 127.0.0.1:{}\n",
            sluicegate_testkit::free_port()
        )
    };
    for (rule, expected) in [
        ("", "503 1"),
        (" http-request set-retries 3\n", "503 3"),
        (" http-request set-retries int(0)\n", "503 0"),
        (" tcp-request content set-retries 2\n", "503 2"),
    ] {
        let whole = Whole::start(&text(rule), 1);
        Client::connect(&whole.address()).get("/");
        assert_eq!(whole.log_lines(1), [expected], "{rule}");
    }
}

#[test]
fn monitors_are_answered_as_by_haproxy_and_not_logged() {
    let front = " monitor-uri /mon?x\n monitor fail if { nbsrv(b) lt 1 }\n monitor fail if { req.hdr(x-fail) -m found }\n \
        http-request deny\n http-after-response set-header X-After yes\n";
    let requests = [
        "GET /mon?x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "GET /mon HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "GET /mon?x HTTP/1.1\r\nHost: h\r\nX-Fail: 1\r\nConnection: close\r\n\r\n",
        "HEAD /mon?x HTTP/1.0\r\n\r\n",
    ];
    let answers = compare_logged("", front, "", &requests, 1);
    assert!(answers[0].starts_with("HTTP/1.1 200 ") && answers[2].starts_with("HTTP/1.1 503 "), "{answers:?}");
}

#[test]
fn error_answers_are_made_for_each_request_as_by_haproxy() {
    let front = " http-error status 403 content-type text/plain lf-string \"no %[path] %[src]\" hdr X-E %[method] hdr X-F f\n \
        http-error status 404 content-type a/b string x\n http-error status 503 content-type a/b string made\n \
        http-error status 500 default-errorfiles\n http-error status 429 hdr X-Only 1\n \
        http-request deny if { path /403 }\n http-request deny deny_status 404 if { path /404 }\n \
        http-request deny deny_status 429 if { path /429 }\n http-request deny deny_status 500 if { path /500 }\n \
        http-response deny deny_status 503 if { status 401 }\n http-after-response set-header X-After %[status]\n";
    let paths = ["/403", "/404", "/429", "/500", "/status/401"];
    let requests: Vec<String> =
        paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let answers = compare(front, "", &requests);
    assert!(answers[0].contains("x-e: GET\nx-f: f\n") && answers[0].ends_with("no /403 127.0.0.1"), "{}", answers[0]);
    compare("", " http-error status 502 content-type a/b lf-string %[be_name]\n http-response deny\n", &requests[..1]);
}

#[test]
fn servers_are_told_what_haproxy_tells_them() {
    let requests = [GET, "GET /x HTTP/1.0\r\nX_y: 1\r\nX.z: 2\r\nX-Original-To: me\r\nX-Name: 5\r\n\r\n"];
    for lines in [
        " option originalto\n",
        " option originalto header X-To\n option forwardfor if-none\n",
        " option originalto except 127.0.0.0/8\n",
        " option http-restrict-req-hdr-names delete\n",
        " option http-restrict-req-hdr-names reject\n",
        " option http-restrict-req-hdr-names preserve\n",
    ] {
        compare(lines, "", &requests);
        compare("", lines, &requests);
    }
    compare(" option originalto header X-Front\n", " option originalto header X-Back except 127.0.0.1\n", &requests);
    for lines in [
        " http-send-name-header X-Name\n",
        " option httpclose\n option http-pretend-keepalive\n",
        " option http-server-close\n option http-pretend-keepalive\n",
        " option httpclose\n",
    ] {
        compare("", lines, &requests);
    }
}

/// Returns the request that a server receives from a proxy with these lines.
fn told(lines: &str, request: &str) -> String {
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n bind 127.0.0.1:1\n\
         {lines} server s {}\n",
        mirror()
    );
    let whole = Whole::start(&text, 1);
    run(&whole.address(), &[request]).remove(0)
}

#[test]
fn servers_are_told_of_clients_by_the_standard() {
    let check = |option: &str, expected: &str| {
        let request = "GET / HTTP/1.1\r\nHost: h:80\r\nX: [::1]\r\nP: _p\r\nN: _hidden\r\nConnection: close\r\n\r\n";
        let answer = told(
            &format!(" {option}\n http-request set-src-port int(1)\n http-request set-dst-port int(2)\n"),
            request,
        );
        let field = answer.lines().find_map(|line| line.strip_prefix("forwarded: ")).unwrap_or("none");
        assert_eq!(field, expected, "{option}");
    };
    check("option forwarded", "proto=http;for=127.0.0.1");
    check("no option forwarded", "none");
    check("option forwarded proto", "proto=http");
    check("option forwarded host by for", "host=\"h:80\";by=127.0.0.1;for=127.0.0.1");
    check("option forwarded for for_port by by_port", "by=\"127.0.0.1:2\";for=\"127.0.0.1:1\"");
    check("option forwarded for-expr req.hdr(x) for_port-expr req.hdr(p)", "for=\"[::1]:_p\"");
    check("option forwarded host-expr str(a) by-expr req.hdr(n)", "host=\"a\";by=_hidden");
    check("option forwarded host-expr req.hdr(x) by-expr str(plain)", "host=\"[::1]\";by=_plain");
    check(
        "option forwarded host-expr str(a/b) for-expr str(a/b) for_port-expr str(99999)",
        "host=\"\";for=\"unknown:_99999\"",
    );
    check("option forwarded for-expr req.hdr(none)", "for=unknown");
}

/// A valid Forwarded field of the client is extended; an invalid one is left unchanged next to the new one.
#[test]
fn forwarded_goes_on_with_valid_fields() {
    let check = |fields: &str, expected: &[&str]| {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
        let answer = told(" option forwarded proto\n", &request);
        let found: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("forwarded: ")).collect();
        assert_eq!(found, expected, "{fields}");
    };
    check("", &["proto=http"]);
    check("Forwarded: for=9.9.9.9\r\n", &["for=9.9.9.9,proto=http"]);
    check("Forwarded: for=a\r\n", &["for=a", "proto=http"]);
    check("Forwarded: for=_a, for=\"[::1]:80\"\r\n", &["for=_a, for=\"[::1]:80\",proto=http"]);
    check("Forwarded: for=_a\r\nForwarded: by=_b\r\n", &["for=_a", "by=_b,proto=http"]);
    check("Forwarded: for=_a\r\nForwarded: junk\r\n", &["for=_a", "junk", "proto=http"]);
}

#[test]
fn a_redirect_keeps_the_query_and_sets_a_made_cookie() {
    let check = |rule: &str, target: &str, location: &str, cookie: Option<&str>| {
        let answer = told(
            &format!(" http-request redirect {rule}\n"),
            &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
        );
        let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name));
        assert_eq!(field("location: "), Some(location), "{rule} {target}");
        assert_eq!(field("set-cookie: "), cookie, "{rule} {target}");
    };
    check("location /new", "/a?b=c", "/new", None);
    check("location /new keep-query", "/a?b=c", "/new?b=c", None);
    check("location /new?x keep-query", "/a?b=c", "/new?x&b=c", None);
    check("location /new keep-query", "/a", "/new", None);
    check("location /new set-cookie-fmt A=%[path]", "/a", "/new", Some("A=/a; path=/;"));
    check("location /new set-cookie A=b", "/a", "/new", Some("A=b; path=/;"));
}

#[test]
fn the_kernel_probes_and_ends_connections_as_options_say() {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let server = origin.local_addr().expect("bound");
    let begin = |lines: &str| {
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
             bind 127.0.0.1:1\n{lines} server s {server}\n"
        );
        let whole = Whole::start(&text, 1);
        let mut client = Client::connect(&whole.address());
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let (mut peer, _) = origin.accept().expect("the proxy connects");
        assert!(peer.read(&mut [0; 1024]).expect("a request") > 0);
        (whole, client, peer)
    };
    let check = |lines: &str, of_client: bool, of_server: bool| {
        let (_whole, client, peer) = begin(lines);
        let to_client = socket_to(client.stream().local_addr().expect("connected"));
        let to_server = socket_to(server);
        assert_eq!(to_client.keepalive().expect("asked"), of_client, "{lines}");
        assert_eq!(to_server.keepalive().expect("asked"), of_server, "{lines}");
        drop(peer);
        (to_client, to_server)
    };
    check("", false, false);
    check(" option clitcpka\n", true, false);
    check(" option srvtcpka\n", false, true);
    let (to_client, to_server) = check(
        " option tcpka\n clitcpka-cnt 5\n clitcpka-idle 100s\n clitcpka-intvl 7\n srvtcpka-cnt 6\n srvtcpka-idle 90\n \
         srvtcpka-intvl 1m\n",
        true,
        true,
    );
    let seconds = std::time::Duration::from_secs;
    assert_eq!(to_client.tcp_keepalive_retries().expect("asked"), 5);
    assert_eq!(to_client.tcp_keepalive_time().expect("asked"), seconds(100));
    assert_eq!(to_client.tcp_keepalive_interval().expect("asked"), seconds(7));
    assert_eq!(to_server.tcp_keepalive_retries().expect("asked"), 6);
    assert_eq!(to_server.tcp_keepalive_time().expect("asked"), seconds(90));
    assert_eq!(to_server.tcp_keepalive_interval().expect("asked"), seconds(60));
    // These descriptors keep sockets to the same server open.
    drop((to_client, to_server));
    for (lines, lingers) in [("", None), (" option nolinger\n", Some(std::time::Duration::ZERO))] {
        let (_whole, client, _peer) = begin(lines);
        assert_eq!(socket_to(client.stream().local_addr().expect("connected")).linger().expect("asked"), lingers);
        // A socket of the previous proxy may still be open.
        wait_for("the option", || (socket_to(server).linger().expect("asked") == lingers).then_some(()));
    }
}

#[test]
fn an_idle_client_is_closed_at_once_or_behind_its_next_response() {
    for (option, expected) in [("", false), (" option idle-close-on-response\n", true)] {
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
             bind 127.0.0.1:1\n{option} http-request return status 200\n"
        );
        let whole = Whole::start(&text, 1);
        let mut client = Client::connect(&whole.address());
        assert_eq!(client.get("/").header("connection"), None);
        whole.running.process.begin_soft_stop();
        if expected {
            assert_eq!(client.get("/").header("connection"), Some("close"));
        }
        assert_eq!(client.read_to_end(), b"");
    }
}

/// Returns the socket of this process that listens on an address.
fn socket_at(address: &str) -> socket2::Socket {
    for entry in std::fs::read_dir("/proc/self/fd").expect("linux") {
        let name = entry.expect("readable").file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // SAFETY: the descriptor is only asked, duplicated if it is the one, and never closed here.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let socket = socket2::SockRef::from(&fd);
        let local = socket.local_addr().ok().and_then(|local| local.as_socket());
        if local.is_some_and(|local| local.to_string() == address) && socket.is_listener().unwrap_or(false) {
            return socket.try_clone().expect("a free descriptor");
        }
    }
    panic!("nobody listens on {address}");
}

#[test]
fn listening_sockets_are_set_up_as_their_line_says() {
    let begin = |options: &str| {
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
             bind 127.0.0.1:1 {options}\n http-request return status 200 content-type a/b lf-string %[so_id]\n"
        );
        let whole = Whole::start(&text, 1);
        let socket = socket_at(&whole.address());
        (whole, socket)
    };
    let (whole, plain) = begin("");
    assert_eq!(Client::connect(&whole.address()).get("/").text(), "1");
    let (whole, set) = begin("id 7 nice 5 tcp-ut 4s mss 600 interface lo");
    assert_eq!(Client::connect(&whole.address()).get("/").text(), "7");
    assert_eq!(set.tcp_user_timeout().expect("asked"), Some(std::time::Duration::from_secs(4)));
    assert_eq!(set.tcp_mss().expect("asked"), 600);
    assert_eq!(set.device().expect("asked"), Some(b"lo".to_vec()));
    assert_eq!(plain.device().expect("asked"), None);
    let (_whole, set) = begin("defer-accept tfo");
    for name in [libc::TCP_DEFER_ACCEPT, libc::TCP_FASTOPEN] {
        assert_eq!(tcp_option(&plain, name), 0);
        assert!(tcp_option(&set, name) > 0);
    }
}

#[test]
fn connections_are_set_up_as_global_and_their_server_say() {
    let begin = |global: &str, options: &str| {
        // A port of its own: connections are found by their peer's address.
        let peer = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let place = peer.local_addr().expect("bound");
        let text = format!(
            "global\n{global}defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
             bind 127.0.0.1:1\n retry-on conn-failure empty-response response-timeout\n server s {place} {options}\n"
        );
        let whole = Whole::start(&text, 1);
        let mut client = Client::connect(&whole.address());
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let (accepted, _) = peer.accept().expect("a connection");
        let to_client = socket_to(client.stream().local_addr().expect("connected"));
        let to_server = socket_to(place);
        (whole, client, accepted, to_client, to_server)
    };
    let (_whole, _client, accepted, to_client, to_server) = begin("", "");
    let default = to_server.send_buffer_size().expect("asked");
    assert_eq!(to_server.tcp_user_timeout().expect("asked"), None);
    assert_eq!(tcp_option(&to_server, libc::TCP_FASTOPEN_CONNECT), 0);
    assert_eq!(to_client.tcp_notsent_lowat().expect("asked"), to_server.tcp_notsent_lowat().expect("asked"));
    drop((to_client, to_server, accepted));
    let global = " tune.sndbuf.client 8192\n tune.rcvbuf.client 9000\n tune.notsent-lowat.client 7000\n \
                  tune.sndbuf.server 10000\n tune.rcvbuf.server 11000\n tune.notsent-lowat.server 6000\n";
    let (_whole, _client, accepted, to_client, to_server) = begin(global, "tcp-ut 4s tfo");
    // The kernel doubles what it is told.
    assert_eq!(to_client.send_buffer_size().expect("asked"), 2 * 8192);
    assert_eq!(to_client.recv_buffer_size().expect("asked"), 2 * 9000);
    assert_eq!(to_client.tcp_notsent_lowat().expect("asked"), 7000);
    assert_ne!(default, 20_000);
    assert_eq!(to_server.send_buffer_size().expect("asked"), 2 * 10_000);
    assert_eq!(to_server.recv_buffer_size().expect("asked"), 2 * 11_000);
    assert_eq!(to_server.tcp_notsent_lowat().expect("asked"), 6000);
    assert_eq!(to_server.tcp_user_timeout().expect("asked"), Some(std::time::Duration::from_secs(4)));
    assert_eq!(tcp_option(&to_server, libc::TCP_FASTOPEN_CONNECT), 1);
    drop((to_client, to_server, accepted));
    // Undone by a line of its own.
    let (_whole, _client, _accepted, _, to_server) = begin("", "tfo no-tfo");
    assert_eq!(tcp_option(&to_server, libc::TCP_FASTOPEN_CONNECT), 0);
}

/// Returns an option of TCP that is a whole number.
fn tcp_option(socket: &socket2::Socket, name: libc::c_int) -> libc::c_int {
    use std::os::fd::AsRawFd;
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    let into = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most the integer's size.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, into, &mut length) };
    assert_eq!(failed, 0);
    value
}
