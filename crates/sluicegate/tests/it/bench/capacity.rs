//! `bench capacity` finds each limit that is planted: in a real haproxy, in this program, and in the server behind.

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, free_port};

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
    let output = std::process::Command::new(BINARY)
        .args(["bench", "capacity", "-d", "1s", &format!("--json={}", json.display())])
        .args(words.split_whitespace())
        .arg(url)
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let document = std::fs::read_to_string(json).expect("the document");
    let limits = document.split_once("\"limits\": [").expect("limits").1.split_once(']').expect("their end").0;
    let names = limits.lines().filter_map(|line| line.trim().strip_prefix("\"name\": \""));
    (names.map(|name| name.trim_end_matches("\",").to_owned()).collect(), text)
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
            Sluicegate::stats(std::path::Path::new(&socket), "show info");
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
    Sluicegate::stats(std::path::Path::new(&sockets[1]), "show info");
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
    let (limits, report) = found(&format!("--steps 1,3 --html {}", page.display()), &url, 0);
    assert!(limits.iter().all(|name| name.ends_with("cpu")), "{limits:?}\n{report}");
    assert!(report.contains("all steps are made") && report.contains("3 connections have 95 % of it"), "{report}");
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
        let output =
            std::process::Command::new(BINARY).args(["bench", "capacity"]).args(words.split(' ')).arg(&url).output();
        let output = output.expect("starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(part), "{words}: {error}");
    }
}
