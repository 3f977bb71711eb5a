//! Scripts that fail: each harms at most its own request, and the failure is logged.

use sluicegate_testkit::{Client, Haproxy, Listening, Program, wait_for};

use super::{Gate, PATIENT};

const SCRIPT: &str = "
core.register_action('spin', {'http-req'}, function() while true do end end)
core.register_action('fail', {'http-req'}, function() local function inner() error('boom') end inner() end)
core.register_action('grow', {'http-req'}, function() local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end end)
core.register_action('sleep', {'http-req'}, function() core.msleep(1000) end)
";

fn configuration(directory: &std::path::Path, gate: &Listening) -> String {
    let script = directory.join("bad.lua");
    std::fs::write(&script, SCRIPT).expect("writable");
    let mut text = format!(
        "global\n    nbthread 1\n    log stdout format raw local0\n    lua-load {}\n    tune.lua.session-timeout 2s\n    \
         tune.lua.maxmem 64\n{PATIENT}    log global\nlisten l\n    bind {}\n",
        script.display(),
        gate.word()
    );
    for action in ["spin", "fail", "grow"] {
        text.push_str(&format!("    http-request lua.{action} if {{ path /{action} }}\n"));
    }
    text.push_str("    http-request return status 200 content-type text/plain string served\n");
    text
}

/// Waits for a log line that contains all of these words, and returns it.
fn line_with(program: &Program, words: &[&str]) -> String {
    wait_for(&format!("{words:?} in the log"), || {
        let output = program.output();
        output.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    })
}

/// Checks the response and the log messages for each action in turn.
fn outcomes(gate: &Listening, program: &Program) {
    let mut client = Client::connect(&gate.address());
    let mut others = Client::connect(&gate.address());
    assert_eq!(others.get("/").text(), "served");
    // Other clients are served while a script spins: there is only one worker, and their responses come first.
    client.send("GET /spin HTTP/1.1\r\nHost: h\r\n\r\n");
    client.stream().set_nonblocking(true).expect("settable");
    let mut during = 0;
    while client.stream().peek(&mut [0]).is_err() {
        assert_eq!(others.get("/").text(), "served");
        during += 1;
    }
    client.stream().set_nonblocking(false).expect("settable");
    assert_eq!(client.read_response().text(), "served");
    assert!(during > 1, "{during} answers while a script was spinning");
    line_with(program, &["Lua function 'spin'", "timeout"]);
    assert_eq!(client.get("/fail").text(), "served", "the request goes on");
    line_with(program, &["Lua function 'fail'", "runtime error", "bad.lua:3: boom"]);
    assert_eq!(client.get("/grow").text(), "served", "the request goes on");
    line_with(program, &["Lua function 'grow'"]);
    assert_eq!(others.get("/").text(), "served");
}

#[test]
fn scripts_that_spin_fail_or_grow_cost_only_themselves_as_with_haproxy() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Listening::new();
    let haproxy = Haproxy::start(&configuration(directory.path(), &gate), &[&gate]);
    outcomes(&gate, &haproxy.program);
    drop(haproxy);
    let gate = Listening::new();
    let server = crate::start(&configuration(directory.path(), &gate), &[&gate]);
    outcomes(&gate, &server.program);
    let error = line_with(&server.program, &["Lua function 'grow'"]);
    assert!(error.contains("memory") || error.contains("timeout"), "{error}");
}

/// A script that waits is not interrupted when its client leaves (nor is it by haproxy); it holds nobody else back, and
/// its session ends with it.
#[test]
fn a_waiting_script_holds_nobody_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("sleep.lua");
    std::fs::write(&script, SCRIPT).expect("writable");
    let front = Listening::new();
    let text = format!(
        "{PATIENT}listen l\n    bind {}\n    http-request lua.sleep if {{ path /sleep }}\n    \
         http-request return status 200 content-type text/plain string served\n",
        front.word()
    );
    let gate = Gate::start(1, &format!("    lua-load {}\n", script.display()), &text, &[&front]);
    for _ in 0..50 {
        let mut client = Client::connect(&front.address());
        client.send("GET /sleep HTTP/1.1\r\nHost: h\r\n\r\n");
        client.reset();
    }
    assert_eq!(Client::connect(&front.address()).get("/").text(), "served");
    wait_for("the sessions' end", || (gate.info("CurrConns") == 0).then_some(()));
}
