//! Compression of responses that are made here: those of services are compressed, as with Debian's haproxy, while
//! responses of rules and error pages are not.

use std::io::Read;

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use crate::start;

/// A service whose answer is chunked, one that says its length, one that finds nothing, and one that waits halfway.
const SERVICES: &str = r#"
local function text(status, length, wait)
    return function(applet)
        local body = string.rep("hello, and again: ", 12)
        applet:set_status(status)
        applet:add_header("content-type", "text/plain")
        if length then applet:add_header("content-length", #body) end
        applet:start_response()
        applet:send(body:sub(1, 100))
        if wait then core.msleep(200) end
        applet:send(body:sub(101))
    end
end
core.register_service("long", "http", text(200, false))
core.register_service("known", "http", text(200, true))
core.register_service("waits", "http", text(200, true, true))
core.register_service("missing", "http", text(404, false))
"#;

const PATHS: [&str; 9] =
    ["/long", "/known", "/waits", "/missing", "/return", "/deny", "/stats", "/stats;csv", "/metrics"];

fn decoded(head: &str, body: &[u8]) -> String {
    let mut text = String::new();
    match head.to_ascii_lowercase().contains("content-encoding: gzip") {
        true => _ = flate2::read::GzDecoder::new(body).read_to_string(&mut text).expect("gzip"),
        false => _ = { body }.read_to_string(&mut text).expect("text"),
    }
    text
}

/// Returns the responses that a client gets for each path, by GET and by HEAD.
fn ask(address: &str) -> Vec<String> {
    let asked = PATHS.iter().flat_map(|path| ["GET", "HEAD"].map(|method| (method, path)));
    let answers = asked.map(|(method, path)| {
        let mut client = Client::connect(address);
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n"));
        let response = client.read_response_to(method == "HEAD");
        let mut lines: Vec<String> = Vec::new();
        for line in response.head.lines() {
            let line = match line.split_once(": ") {
                Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
                None => line.to_owned(),
            };
            // HAProxy 2.6 repeats this field if the service has set it.
            if !(line == "transfer-encoding: chunked" && lines.contains(&line)) {
                lines.push(line);
            }
        }
        // The order of a service's fields is arbitrary.
        lines.sort();
        let body = decoded(&response.head, &response.body);
        // Figures differ from one moment to the next.
        let shown = if has_figures(path) { format!("empty: {}", body.is_empty()) } else { body };
        format!("{method} {path} {lines:?} {shown}")
    });
    answers.collect()
}

fn has_figures(path: &str) -> bool {
    matches!(path, "/stats" | "/stats;csv" | "/metrics")
}

#[test]
fn services_are_compressed_and_answers_of_rules_are_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("services.lua");
    std::fs::write(&script, SERVICES).expect("writable");
    let gates = [Listening::new(), Listening::new()];
    let text = |gate: &Listening| {
        let body = "an answer of a rule, an answer of a rule, an answer of a rule";
        format!(
            "global\n lua-load {}\n nbthread 1\ndefaults\n mode http\n log stdout format raw local0\n \
             log-format \"LINE %r %ST %B %tsc [%[res.comp] %[res.comp_algo]]\"\n timeout client 60s\n \
             timeout connect 60s\n timeout server 60s\nlisten f\n bind {}\n compression algo gzip\n \
             compression type text/ application/\n \
             http-request use-service lua.long if {{ path /long }}\n \
             http-request use-service lua.known if {{ path /known }}\n \
             http-request use-service lua.waits if {{ path /waits }}\n \
             http-request use-service lua.missing if {{ path /missing }}\n \
             http-request use-service prometheus-exporter if {{ path /metrics }}\n \
             http-request return status 200 content-type text/plain string '{body}' if {{ path /return }}\n \
             http-request deny if {{ path /deny }}\n stats enable\n stats uri /stats\n",
            script.display(),
            gate.word()
        )
    };
    let lines = |output: String| -> Vec<String> {
        let all = output.lines().filter_map(|line| line.split_once("LINE ")).map(|(_, line)| line.to_owned());
        let known = all.map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            // The number of bytes changes with the figures.
            match has_figures(words[1]) {
                true => [&words[..4], &words[5..]].concat().join(" "),
                false => line,
            }
        });
        // A line may be logged after that of the next request.
        let mut known: Vec<String> = known.collect();
        known.sort();
        known
    };
    let logged = |output: &dyn Fn() -> String| {
        wait_for("the log", || Some(lines(output())).filter(|lines| lines.len() == 2 * PATHS.len()))
    };
    let haproxy = Haproxy::start(&text(&gates[0]), &[&gates[0]]);
    let mut theirs = ask(&gates[0].address());
    // As in 3.2, the head of a service without a length announces no chunks to HEAD.
    let is_service = |answer: &&mut String| ["/long", "/waits", "/missing"].iter().any(|path| answer.contains(path));
    for answer in theirs.iter_mut().filter(|answer| answer.starts_with("HEAD ")).filter(is_service) {
        *answer = answer.replace(", \"transfer-encoding: chunked\"", "");
    }
    let their_lines = logged(&|| haproxy.program.output());
    let server = start(&text(&gates[1]), &[&gates[1]]);
    let ours = ask(&gates[1].address());
    assert_eq!(ours, theirs);
    assert_eq!(logged(&|| server.program.output()), their_lines);
    let compressed = |answer: &&String| answer.contains("content-encoding: gzip");
    let paths: Vec<&str> = ours.iter().filter(compressed).filter_map(|answer| answer.split(' ').nth(1)).collect();
    assert_eq!(paths, ["/long", "/known", "/waits", "/stats", "/stats;csv", "/metrics"]);
}
