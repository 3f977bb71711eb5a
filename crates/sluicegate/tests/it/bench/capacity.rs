//! `bench capacity` finds each limit that is planted: in a real haproxy, in this program, and in the server behind.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Certificates, Haproxy, Listening, Sluicegate, free_port};

use crate::BINARY;

/// Whether all limits are planted, and must be found: that needs a machine without other load, so it is a part of soak.
fn is_soak() -> bool {
    std::env::var_os("SLUICEGATE_CAPACITY").is_some()
}

/// Returns the limits, the highest rate and the report of a search.
#[track_caller]
fn found(words: &str, url: &str, code: i32) -> (Vec<String>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("json");
    let output = Command::new(BINARY)
        .args(["bench", "capacity", "-d", "1s", &format!("--json={}", json.display())])
        .args(words.split_whitespace())
        .arg(url)
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let document = std::fs::read_to_string(json).expect("the document");
    (names(&document), text)
}

/// Returns the names of the limits of a document.
#[track_caller]
fn names(document: &str) -> Vec<String> {
    let limits = document.split_once("\"limits\": [").expect("limits").1.split_once(']').expect("their end").0;
    let names = limits.lines().filter_map(|line| line.trim().strip_prefix("\"name\": \""));
    names.map(|name| name.trim_end_matches("\",").to_owned()).collect()
}

fn configuration(
    socket: &str,
    listening: &Listening,
    origin: &str,
    global: &str,
    frontend: &str,
    server: &str,
) -> String {
    format!(
        "global\n  stats socket {socket}\n  {global}\n\
         defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  timeout server 60s\n  timeout queue 10s\n\
         frontend www\n  {frontend}\n  bind {}\n  default_backend app\n\
         backend app\n  server s1 {origin} {server}\n",
        listening.word()
    )
}

/// The server answers after 20 ms; each limit is far below what it takes. Outside of soak one search is made, and what it
/// reads of the proxy must be right.
#[test]
fn planted_limits_are_found() {
    let origin = super::demo("");
    let origin = origin.trim_start_matches("http://");
    let planted = [
        ("", "", "maxconn 4", "1,2,4,8,16,32,64", "server_maxconn", "maxconn 4 of server app/s1: up to "),
        ("", "maxconn 6", "", "1,2,6,12,24,48", "frontend_maxconn", "maxconn 6 of frontend www"),
        ("maxconn 10", "", "", "1,5,10,20,40,80", "global_maxconn", "maxconn 10 of the process: "),
    ];
    let count = if is_soak() { planted.len() } else { 1 };
    for (global, frontend, server, steps, limit, text) in &planted[..count] {
        for is_real in [false, true].into_iter().take(if is_soak() { 2 } else { 1 }) {
            let dir = tempfile::tempdir().expect("a directory");
            let socket = dir.path().join("s").display().to_string();
            let listening = Listening::new();
            let url = format!("http://{}/delay/20", listening.address());
            let lines = configuration(&socket, &listening, origin, global, frontend, server);
            let words = format!("--steps {steps} --timeout 3s --stats {socket}");
            let (_haproxy, _program) = match is_real {
                true => (Some(Haproxy::start(&lines, &[&listening])), None),
                false => (None, Some(Sluicegate::start(BINARY, &lines, &[&listening]))),
            };
            // Returns when the socket is there.
            Sluicegate::stats(Path::new(&socket), "show info");
            let (limits, report) = found(&words, &url, 0);
            if is_soak() {
                assert!(limits.iter().any(|name| name == limit), "{is_real} {limits:?}\n{report}");
                assert!(report.contains(text), "{is_real}\n{report}");
            }
            if *limit == "server_maxconn" {
                assert!(report.contains("the servers' maxconn is 4, which allows "), "{report}");
            }
        }
    }
}

/// What limits is behind the proxy that is asked: its server takes longer, and its own limits are far away.
#[test]
fn the_servers_time_is_found_and_a_page_is_read() {
    let origin = super::demo("");
    let (behind, front) = (Listening::new(), Listening::new());
    let dir = tempfile::tempdir().expect("a directory");
    let sockets = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    let origin = origin.trim_start_matches("http://");
    let _behind = Haproxy::start(&configuration(&sockets[0], &behind, origin, "", "", "maxconn 2"), &[&behind]);
    let lines = configuration(&sockets[1], &front, &behind.address(), "", "stats enable\n  stats uri /figures", "");
    let _front = Haproxy::start(&lines, &[&front]);
    Sluicegate::stats(Path::new(&sockets[1]), "show info");
    let url = format!("http://{}/delay/20", front.address());
    let page = format!("http://{}/figures", front.address());
    for source in [sockets[1].as_str(), &page] {
        let (limits, report) = found(&format!("--steps 1,2,8,16,32,64 --timeout 3s --stats {source}"), &url, 0);
        assert!(!is_soak() || limits.contains(&"server_time".to_owned()), "{source} {limits:?}\n{report}");
        assert!(!limits.iter().any(|name| name.ends_with("maxconn")), "{source} {limits:?}\n{report}");
    }
}

#[test]
fn a_rate_that_grows_has_no_limit_and_limits_are_recommended() {
    let url = super::demo("/delay/20");
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let (limits, report) = found(&format!("--steps 1,8 --html {}", page.display()), &url, 0);
    assert!(limits.iter().all(|name| name.ends_with("cpu")), "{limits:?}\n{report}");
    assert!(report.contains("all steps are made") && report.contains("8 connections have 95 % of it"), "{report}");
    for part in ["\n  server maxconn  ", "\n  fullconn        ", "\n  maxconn         ", "\n  timeout queue   "] {
        assert!(report.contains(part), "{report}");
    }
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains("Latency by connections") && page.contains(">knee</text>"), "{page}");
    let refused = format!("http://127.0.0.1:{}/", free_port());
    let (limits, report) = found("--steps 1,2", &refused, 1);
    assert!(limits.contains(&"connections_refused".to_owned()), "{limits:?}\n{report}");
    assert!(report.contains("error: no step without errors"), "{report}");
    for (words, part) in [
        ("--steps 3,2", "each number is above the one before"),
        ("--rate 5", "--rate does not go with it"),
        ("--stats nowhere", "the port is missing"),
        ("--stats /does/not/exist", "No such file"),
    ] {
        let output = Command::new(BINARY).args(["bench", "capacity"]).args(words.split(' ')).arg(&url).output();
        let output = output.expect("starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(part), "{words}: {error}");
    }
}

/// A proxy that runs until this is dropped.
enum Proxy {
    Haproxy(Haproxy),
    Sluicegate(Sluicegate),
}

impl Proxy {
    /// Starts HAProxy 2.8 or this program, and waits for its stats socket.
    fn start(is_real: bool, lines: &str, listening: &[&Listening], socket: &str) -> Proxy {
        let proxy = match is_real {
            true => Proxy::Haproxy(Haproxy::start_2_8(lines, listening)),
            false => Proxy::Sluicegate(Sluicegate::start(BINARY, lines, listening)),
        };
        Sluicegate::stats(Path::new(socket), "show info");
        proxy
    }

    fn pid(&self) -> u32 {
        match self {
            Proxy::Haproxy(proxy) => proxy.program.pid(),
            Proxy::Sluicegate(proxy) => proxy.program.pid(),
        }
    }
}

/// Returns the error of a search that can't begin.
#[track_caller]
fn refused(words: &str, url: &str) -> String {
    let command = ["bench", "capacity", "--steps", "1", "-d", "100ms"];
    let output = Command::new(BINARY).args(command).args(words.split_whitespace()).arg(url).output().expect("starts");
    assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Statistics pages of both programs behind a login and TLS: their figures name the limit, and what is missing is said.
#[test]
fn pages_with_a_login_and_tls_are_read() {
    let certificates = Certificates::new();
    let (file, authority) = (certificates.path("here.pem"), certificates.path("ca.crt"));
    std::fs::write(&file, certificates.pem("here")).expect("writable");
    let origin = super::demo("");
    let origin = origin.trim_start_matches("http://");
    for is_real in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        let (front, open, safe) = (Listening::new(), Listening::new(), Listening::new());
        let lines = configuration(&socket, &front, origin, "", "", "maxconn 2")
            + &format!(
                "frontend page\n  bind {}\n  bind {} ssl crt {file}\n  stats enable\n  stats uri /figures\n  \
                 stats auth admin:s@crets\n",
                open.word(),
                safe.word()
            );
        let _proxy = Proxy::start(is_real, &lines, &[&front, &open, &safe], &socket);
        let url = format!("http://{}/delay/20", front.address());
        let (open, safe) = (open.address(), safe.address());
        let source = match is_real {
            true => format!("https://{safe}/figures --insecure --stats-user admin:s@crets"),
            false => format!("https://admin:s%40crets@{safe}/figures --cacert {authority}"),
        };
        let words = format!("-d 300ms --steps 2,24 --timeout 5s --stats {source}");
        let (limits, report) = found(&words, &url, 0);
        assert!(limits.contains(&"server_maxconn".to_owned()), "{is_real} {limits:?}\n{report}");
        assert!(!report.contains("warning"), "{is_real}\n{report}");
        for (words, part) in [
            (
                format!("--stats http://{open}/figures"),
                "401, the page wants a login\n\nhint: --stats-user USER:PASSWORD",
            ),
            (format!("--stats http://admin:no@{open}/figures"), "401, the page does not accept user 'admin'"),
            (format!("--stats http://admin:s%40crets@{open}/other"), "its path is that of `stats uri`"),
            (format!("--stats https://{safe}/figures"), "--insecure accepts any certificate"),
            (format!("--stats https://{open}/figures --insecure"), "a page without TLS is an http:// one"),
            (format!("--stats http://{open}/figures --insecure"), "--insecure is of no use without TLS"),
            (format!("--stats {socket} --stats-user a:b"), "is the login of a statistics page"),
            (format!("--stats http://{open}/figures --stats-user a"), "--stats-user wants USER:PASSWORD"),
        ] {
            let error = refused(&words, &url);
            assert!(error.contains(part), "{is_real} {words}: {error}");
            assert!(!error.contains("s@crets") && !error.contains("s%40crets"), "{error}");
        }
        // The two programs answer HTTP on a TLS port differently.
        refused(&format!("--stats http://{safe}/figures"), &url);
    }
}

/// Two requests at a time are served in 50 ms, forty come, and each waits for 100 ms.
#[test]
fn a_short_timeout_of_the_queue_is_found() {
    let origin = super::demo("");
    let origin = origin.trim_start_matches("http://");
    for is_real in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        let front = Listening::new();
        let lines = configuration(&socket, &front, origin, "", "timeout client 30s", "maxconn 2")
            .replace("timeout queue 10s", "timeout queue 100ms");
        let _proxy = Proxy::start(is_real, &lines, &[&front], &socket);
        let words = format!("-d 400ms --steps 1,40 --stats {socket}");
        let (limits, report) = found(&words, &format!("http://{}/delay/50", front.address()), 0);
        assert_eq!(limits[..2], ["server_maxconn", "queue"], "{is_real}\n{report}");
        let count = report.split_once("timeout queue: ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        assert!(count >= Some(1u64) && report.contains("failed or were answered with 5xx"), "{is_real}\n{report}");
        assert!(report.contains("1 connections have 95 % of it"), "{is_real}\n{report}");
    }
}

/// Each request costs the only worker a millisecond or more of computing, in one go, and so many wait behind it that it has work
/// even if the generator and the server do not get a processor for a while. HAProxy's turn is in soak.
#[test]
fn the_processor_of_a_worker_is_found() {
    let origin = super::demo("");
    let origin = origin.trim_start_matches("http://");
    for is_real in [false, true].into_iter().take(if is_soak() { 2 } else { 1 }) {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        let script = dir.path().join("a.lua");
        let text = "core.register_converters(\"burn\", function(text)\n local n = 0\n for i = 1, 100000 do n = n + i % 7 \
                    end\n return text .. n\nend)\n";
        std::fs::write(&script, text).expect("writable");
        let front = Listening::new();
        let global = format!("nbthread 1\n  lua-load {}", script.display());
        let lines = configuration(&socket, &front, origin, &global, "http-request set-var(txn.x) str(a),lua.burn", "");
        let proxy = Proxy::start(is_real, &lines, &[&front], &socket);
        let words = format!("-d 700ms --steps 1,60 --stats {socket}");
        let (limits, report) = found(&words, &format!("http://{}/fast", front.address()), 0);
        assert_eq!(limits[0], "process_cpu", "{is_real} {limits:?}\n{report}");
        assert!(report.contains(&format!("limit          CPU of process {}: ", proxy.pid())), "{is_real}\n{report}");
    }
}

/// In a network namespace of its own there are a hundred ports: too few for the generator at a port, and for a proxy whose
/// clients come through a unix socket.
#[test]
fn ports_that_run_out_are_found() {
    if !Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        // Without the right to create a network namespace there is nothing to test.
        return;
    }
    let haproxy = sluicegate_testkit::newer_peer("haproxy-2.8").display().to_string();
    let through = "--stats $PWD/s --connect unix:$PWD/w http://a/delay/50";
    for (proxy, words, limit, text) in [
        (None, "http://127.0.0.1:20001/delay/50", "resources", "ports or descriptors of this machine: "),
        (Some(format!("{BINARY} run")), through, "server_connections", "connections to server app/s1: "),
        (Some(format!("{haproxy} -db -f")), through, "server_connections", "connections to server app/s1: "),
    ] {
        let (sockets, proxy) = match proxy {
            Some(proxy) => (2, format!("{proxy} a.cfg > proxy 2>&1 & trap \"kill $origin $!\" EXIT")),
            None => (0, String::new()),
        };
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().display();
        let lines = format!(
            "global\n  stats socket {path}/s\ndefaults\n  mode http\n  timeout connect 9s\n  timeout client 60s\n  timeout \
             server 60s\nlisten app\n  bind unix@{path}/w\n  server s1 127.0.0.1:20001\n"
        );
        std::fs::write(dir.path().join("a.cfg"), lines).expect("writable");
        let script = format!(
            "ip link set lo up; echo 40000 40099 > /proc/sys/net/ipv4/ip_local_port_range; cd {path}
             {BINARY} origin --listen 127.0.0.1:20001 2> origin & origin=$!; trap 'kill $origin' EXIT
             {proxy}
             for i in $(seq 1000); do
               grep -q 'origin on' origin && [ $(grep -c ' 00010000 .*{path}/[sw][^/]*$' /proc/net/unix) = {sockets} ] && break
               sleep 0.02
             done
             {BINARY} bench capacity -d 400ms --steps 4,300 --json=json {words} 2>&1; echo code $?"
        );
        let output = Command::new("unshare").args(["-n", "bash", "-c", &script]).output().expect("starts");
        let report = String::from_utf8_lossy(&output.stdout);
        let json = std::fs::read_to_string(dir.path().join("json")).unwrap_or_else(|_| panic!("{report}"));
        assert_eq!(names(&json)[0], limit, "{proxy}\n{report}");
        assert!(report.contains(&format!("\nlimit          {text}")) && report.ends_with("code 0\n"), "{report}");
        assert!(report.contains("/s; 4 connections have 95 % of it"), "{report}");
    }
}
