//! `log-steps`, and lines of rules (`do-log`).

use super::{Runner, Target, ours};

impl Target {
    fn log(&self, profile: &str) -> String {
        format!(" log {} format raw {profile} local0\n", self.address())
    }

    fn lines(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.receive().trim_end().to_owned()).collect()
    }
}

/// A frontend with these lines, before a server in the same process.
fn before_a_server(defaults: &str, frontend: &str, backend: &str) -> Runner {
    ours(&format!(
        "global\n nbthread 1\n stats socket PLACE level admin\nlog-profile p\n on any format \"%OG %ST\"\n on request format \
         \"%OG %HU\"\n on connect format \"%OG %s\"\nlog-profile q\n on http-req format \"request %HU\"\n on http-res drop\n on any \
         format \"%OG %ST\"\ndefaults\n mode http\n timeout client 30s\n timeout server 30s\n timeout connect 5s\n{defaults}frontend \
         f\n bind FRONT\n default_backend b\n{frontend}backend b\n server s unix@@DIR@/back\n{backend}frontend back\n no log\n bind \
         @DIR@/back\n http-request return status 200\n"
    ))
}

#[test]
fn all_steps_have_lines() {
    let target = Target::new();
    let frontend = format!("{}{} log-format \"%OG\"\n log-steps all\n", target.log("profile p"), target.log(""));
    let runner = before_a_server("", &frontend, "");
    runner.get(&["/a", "/b"]);
    for path in ["/a", "/b"] {
        let expected = [
            "txn_accept -1",
            "txn_accept",
            &format!("txn_request {path}"),
            "txn_request",
            "txn_connect s",
            "txn_connect",
            "txn_response 200",
            "txn_response",
            "txn_close 200",
            "txn_close",
        ];
        assert_eq!(target.lines(10), expected);
    }
}

#[test]
fn steps_are_chosen_and_inherited() {
    let target = Target::new();
    // A line without a format of its own is empty, and is not sent.
    let frontend = format!("{}{} log-steps close\n", target.log("profile p"), target.log(""));
    let runner = before_a_server(" log-steps request\n", &frontend, "");
    runner.get(&["/a", "/b"]);
    assert_eq!(target.lines(4), ["txn_request /a", "txn_close 200", "txn_request /b", "txn_close 200"]);
    // What `set-log-level silent` silences has no line of the later steps.
    let frontend = format!(
        "{} log-steps request,response\n http-request set-log-level silent if {{ path /b }}\n",
        target.log("profile p")
    );
    let runner = before_a_server("", &frontend, "");
    runner.get(&["/b", "/a"]);
    assert_eq!(target.lines(3), ["txn_request /b", "txn_request /a", "txn_response 200"]);
    // As in HAProxy, 'option logasap' wins.
    let frontend = format!("{} log-steps close\n option logasap\n log-format x\n", target.log("profile p"));
    let runner = before_a_server("", &frontend, "");
    runner.get(&["/a", "/b"]);
    assert_eq!(target.lines(2), ["txn_response 200"; 2]);
}

#[test]
fn bytes_have_steps_without_a_request() {
    let target = Target::new();
    let frontend = format!("{} log-format \"%OG\"\n log-steps all\n mode tcp\n", target.log(""));
    let runner = before_a_server("", &frontend, " mode tcp\n");
    runner.get(&["/a"]);
    assert_eq!(target.lines(3), ["txn_accept", "txn_connect", "txn_close"]);
}

#[test]
fn rules_log() {
    let target = Target::new();
    let rules = " tcp-request connection do-log\n tcp-request session do-log\n tcp-request content do-log\n http-request \
                 do-log\n http-response do-log if { capture.req.uri /a }\n http-after-response do-log\n";
    let frontend = format!("{} log-format \"plain %OG\"\n log-steps close\n{rules}", target.log(""));
    let runner = before_a_server("", &frontend, " tcp-response content do-log\n");
    runner.get(&["/a", "/b"]);
    let of_connection = ["plain tcp-req-conn", "plain tcp-req-sess"];
    let of_request = ["plain tcp-req-cont", "plain http-req"];
    let of_response = ["plain http-after-res", "plain txn_close"];
    let lines: Vec<&str> = of_connection
        .into_iter()
        .chain(of_request)
        .chain(["plain tcp-res-cont", "plain http-res"])
        .chain(of_response)
        .chain(of_request)
        .chain(["plain tcp-res-cont"])
        .chain(of_response)
        .collect();
    assert_eq!(target.lines(lines.len()), lines);
    // Profiles have formats of these steps; a silenced stream has no lines.
    let rules = " http-request set-log-level silent if { path /b }\n http-request do-log\n http-response do-log\n \
                 http-after-response do-log\n";
    let frontend = format!("{}{rules} log-steps request\n", target.log("profile q"));
    let runner = before_a_server("", &frontend, "");
    runner.get(&["/b", "/a"]);
    let expected = ["txn_request -1", "txn_request -1", "request /a", "http-after-res 200"];
    assert_eq!(target.lines(4), expected);
}
