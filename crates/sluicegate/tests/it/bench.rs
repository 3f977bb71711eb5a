//! `sluicegate bench` as a program: exit codes, signals, where its output goes. What it measures is tested in its crate.

use std::process::{Command, Stdio};

use sluicegate_bench::origin;
use sluicegate_testkit::{Certificates, Listening, Program, free_port, wait_for};

use crate::BINARY;

mod capacity;

fn demo(path: &str) -> String {
    let listening = Listening::new();
    let url = format!("http://{}{path}", listening.address());
    origin::spawn(listening.listener, 1).expect("startable");
    url
}

#[test]
fn exit_codes() {
    let refused = format!("http://127.0.0.1:{}/", free_port());
    for (words, code, out, error) in [
        (vec!["http", "-n", "3", "-c", "1", &demo("/fast")], 0, "3 answered", ""),
        (vec!["http", "-n", "3", "-c", "1", &demo("/status/500")], 0, "5xx 3 (500: 3)", ""),
        (vec!["http", "-n", "3", "-c", "1", &refused], 1, "refused 3", "error: every request failed"),
        (vec!["http", "-c", "0"], 1, "", "error: -c 0"),
        (vec!["walk"], 1, "", "unknown generator 'walk'"),
        (vec![], 0, "usage: sluicegate bench http", ""),
    ] {
        let output = Command::new(BINARY).arg("bench").args(&words).output().expect("starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{stdout}{stderr}");
        assert!(stdout.contains(out) && stderr.contains(error), "{words:?}\n{stdout}{stderr}");
        assert_eq!(stderr.is_empty(), error.is_empty(), "{words:?}\n{stderr}");
    }
}

#[test]
fn an_interrupt_ends_the_run_and_the_report_is_whole() {
    for signal in [2, 15] {
        for words in [&["-r", "500", "-t", "2"][..], &["-c", "3"]] {
            let mut command = Command::new(BINARY);
            command.args(["bench", "http", "-d", "600", "-i", "50ms", "--json"]).args(words).arg(demo("/fast"));
            let mut program = Program::start(command, &[]);
            program.wait_for_output("answered/s");
            program.signal(signal);
            assert_eq!(program.wait(), 130, "{}", program.output());
            let output = program.output();
            assert!(output.contains("\"interrupted\": true"), "{output}");
            assert!(output.contains("\"warnings\": ["), "the last field is there: {output}");
        }
    }
}

#[test]
fn an_interrupt_ends_waiting_for_answers_that_never_come() {
    let mut command = Command::new(BINARY);
    command.args(["bench", "http", "-n", "4", "-c", "4", "-i", "50ms", "--timeout", "1h", &demo("/delay/3000000")]);
    let mut program = Program::start(command, &[]);
    // A line for each twentieth of a second.
    wait_for("four requests to be sent", || {
        let output = program.output();
        let rates =
            output.lines().filter_map(|line| line.split_once(" sent/s")?.0.rsplit(' ').next()?.parse::<f64>().ok());
        (rates.sum::<f64>() >= 4.0 / 0.05).then_some(())
    });
    program.signal(2);
    assert_eq!(program.wait(), 130, "{}", program.output());
    let output = program.output();
    assert!(output.contains("4 sent  0 answered  0 failed  4 cut off by the interrupt"), "{output}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = Command::new(BINARY)
        .args(["bench", "http", "-n", "1", "-c", "1", &demo("/fast")])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("the report can't be written"), "{error}");
}

#[test]
fn the_guides_examples_are_understood() {
    let page = crate::workspace().join("docs/guide/load-testing.md");
    let text = std::fs::read_to_string(page).expect("the guide");
    let examples: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    sluicegate bench ")).collect();
    assert!(examples.len() >= 8, "{examples:?}");
    let certificates = Certificates::new();
    let authority = &certificates.path("ca.crt");
    // What is compared is files, and a search for a capacity has an error of its own.
    let is_load = |example: &&str| !["compare ", "capacity "].iter().any(|word| example.starts_with(word));
    for example in examples.into_iter().filter(is_load) {
        // A shell parses the quotes. Nothing listens, so a valid line ends with a connection error, and not with one
        // about its words.
        let line = format!("exec \"$0\" bench {example}");
        let line = line.replace(":8080", ":1").replace(":6379", ":1").replace("$(pidof haproxy)", "$$");
        let line = line.replace("urls.txt", "/dev/stdin").replace("www.example.com", "127.0.0.1:1");
        let line = line
            .replace("report.html", "/dev/null")
            .replace("report.svg", "/dev/null")
            .replace(":8081", ":1")
            .replace(":8443", ":1")
            .replace(":6380", ":1")
            .replace("ca.pem", authority);
        let mut command = Command::new("sh");
        command.args(["-c", &line, BINARY]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut input = child.stdin.take().expect("piped");
        let _ = std::io::Write::write_all(&mut input, b"http://127.0.0.1:1/a\n");
        drop(input);
        let output = child.wait_with_output().expect("ends");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("every request failed"), "{example}: {error}");
    }
}

/// The live view is drawn on a terminal, and what follows it is the report; elsewhere there is nothing of it.
#[test]
fn a_terminal_shows_the_run_and_the_report_is_left() {
    let url = demo("/fast");
    let run = |words: &str| {
        // script(1) is a terminal of its own to the program.
        let line = format!("{BINARY} bench http -c 2 -d 1500ms {words} {url}");
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        let output = output.expect("script is installed");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = run("");
    let (view, report) = text.rsplit_once("\x1b[?1049l").expect("the view ends");
    // Blanks between words are moves of the cursor.
    assert!(view.contains("\x1b[?1049h") && view.contains("┌responses") && view.contains("percentile"), "{view}");
    assert!(view.contains("http GET to 127.0.0.1:"), "{view}");
    assert!(report.contains("closed loop, 2 connections, 1 thread") && report.contains("2xx "), "{report}");
    for words in ["--no-tui", "--json", "--csv", "-i 100ms"] {
        let text = run(words);
        assert!(!text.contains('\x1b'), "{words}: {text}");
    }
    let output = Command::new(BINARY).args(["bench", "http", "-n", "3", "-c", "1", &url]).output().expect("starts");
    assert!(output.stderr.is_empty() && !output.stdout.contains(&b'\x1b'), "{output:?}");
}

#[test]
fn an_interrupt_of_the_view_leaves_the_terminal_as_it_was() {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("exec {BINARY} bench http -c 2 -d 600 {}", demo("/fast")), "/dev/null"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("┌responses");
    // script passes what arrives at its terminal on; here the signal goes to the program itself.
    let children = format!("/proc/{0}/task/{0}/children", program.pid());
    let children = std::fs::read_to_string(children).expect("the kernel lists children");
    let child = children.split_whitespace().next().expect("the program");
    assert!(Command::new("kill").args(["-INT", child]).status().expect("kill").success());
    assert_eq!(program.wait(), 130, "{}", program.output());
    let output = program.output();
    let (_, report) = output.rsplit_once("\x1b[?1049l").expect("the view ends");
    assert!(report.contains("\r\ninterrupted"), "{report}");
}

/// Returns the program under another name.
fn named(name: &str) -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    std::os::unix::fs::symlink(BINARY, &path).expect("a link");
    let command = Command::new(path);
    (dir, command)
}

#[test]
fn under_the_name_of_gobench_it_is_gobench() {
    let (_dir, mut command) = named("gobench");
    let output = command.args(["-u", &demo("/fast"), "-c", "4", "-r", "3"]).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let block = "Dispatching 4 clients\nWaiting for results...\n\nRequests:                               12 hits\n";
    assert!(output.status.success() && text.starts_with(block), "{text}");
    let (_dir, mut command) = named("gobench");
    let output = command.args(["http", &demo("/fast")]).output().expect("starts");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_interrupt_of_gobench_prints_the_report() {
    let (_dir, mut command) = named("gobench");
    command.args(["-u", &demo("/fast"), "-c", "2", "-t", "600"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Waiting for results...");
    program.signal(2);
    let code = program.wait();
    let output = program.output();
    // Whether a request was answered before the signal is a matter of timing.
    let has_succeeded = !output.contains("\nSuccessful requests:                     0 hits\n");
    assert!(code == 0 || !has_succeeded, "{code}: {output}");
    assert!(output.contains("\nTest time:  "), "{output}");
}

#[test]
fn under_the_name_of_memtier_it_is_memtier() {
    let server = sluicegate_testkit::RedisServer::start(&[]);
    let (_dir, mut command) = named("memtier_benchmark");
    let port = server.port.to_string();
    let output =
        command.args(["-h", "127.0.0.1", "-p", &port, "-n", "11", "-c", "2", "-t", "1"]).output().expect("starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && out.starts_with("1         Threads\n2         Connections per thread\n"),
        "{out}{err}"
    );
    // A machine that stands still meanwhile makes it a run of several seconds.
    let (begin, live) = err.split_once(" secs]").expect("a live line");
    assert!(begin.starts_with("[RUN #1 100%,   ") && begin.len() == "[RUN #1 100%,   0".len(), "{err}");
    assert!(
        live.starts_with("  1 threads  2 conns:          22 ops, ") && live.ends_with(" msec latency\r\n\n"),
        "{err}"
    );
    let (_dir, mut command) = named("memtier_benchmark");
    let output = command.args(["redis", "PING"]).output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn under_the_name_of_redis_benchmark_it_is_redis_benchmark() {
    let server = sluicegate_testkit::RedisServer::start(&[]);
    let (_dir, mut command) = named("redis-benchmark");
    let port = server.port.to_string();
    let mut child = command
        .args(["-p", &port, "-n", "11", "-c", "2", "--csv", "-x", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"from a pipe").expect("read");
    let output = child.wait_with_output().expect("ends");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.starts_with("\"test\",\"rps\",") && out.contains("\n\"echo\",\""), "{out}");
    let (_dir, mut command) = named("redis-benchmark");
    let output = command.args(["redis", "--server", "x"]).output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn idle_connections_wait_for_a_signal_and_loops_report_at_an_interrupt() {
    let server = sluicegate_testkit::RedisServer::start(&[]);
    let port = server.port.to_string();
    let (_dir, mut command) = named("redis-benchmark");
    command.args(["-p", &port, "-c", "7", "-I"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("clients: 7");
    let clients = sluicegate_testkit::Client::connect(&server.address()).ask(&["INFO", "clients"]);
    assert!(clients.contains("connected_clients:8\r\n"), "{clients}");
    program.signal(2);
    assert_eq!(program.wait(), 130, "{}", program.output());
    let (_dir, mut command) = named("redis-benchmark");
    command.args(["-p", &port, "-n", "100", "-c", "2", "-q", "-l", "-t", "ping_mbulk"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("PING_MBULK: ");
    program.wait_for_output("\n\n");
    program.signal(15);
    assert_eq!(program.wait(), 130, "{}", program.output());
}
