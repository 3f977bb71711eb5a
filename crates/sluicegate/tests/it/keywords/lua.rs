//! `lua-…` and `tune.lua.…`: what scripts find, may use, and where they log.

use sluicegate_testkit::{Client, Listening, Sluicegate};

use super::{answer, one_proxy};
use crate::BINARY;

/// Starts a proxy that runs the action `a` of this script and then answers the variable `txn.r`.
fn start(global: &str, script: &str, gate: &Listening) -> Sluicegate {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("script.lua"), script).unwrap();
    std::fs::create_dir(directory.path().join("lib")).unwrap();
    std::fs::write(directory.path().join("lib/word.lua"), "return 'found'").unwrap();
    let rules = format!("    http-request lua.a\n{}", answer("%[var(txn.r)]"));
    Sluicegate::start_in(BINARY, &one_proxy(global, gate, &rules), &[gate], directory)
}

/// The answer, and everything that was printed up to the end.
fn run(global: &str, script: &str) -> (String, String) {
    let gate = Listening::new();
    let mut server = start(&format!("{global}\n    lua-load @DIR@/script.lua\n"), script, &gate);
    let answer = Client::connect(&gate.address()).get("/").text();
    server.program.signal(libc::SIGUSR1);
    server.program.wait();
    (answer, server.program.output())
}

/// An action with this body.
fn action(body: &str) -> String {
    format!("core.register_action('a', {{'http-req'}}, function(txn) {body} end)")
}

#[test]
fn scripts_find_modules_and_variables() {
    let script = action("txn:set_var('txn.r', require('word') .. ' ' .. tostring(os.getenv('A')))");
    let global = "    lua-prepend-path @DIR@/lib/?.lua\n    setenv A one";
    assert_eq!(run(global, &script).0, "found one");
    let (answer, output) = run("    setenv A one\n    unsetenv A", &script);
    assert_eq!(answer, "");
    assert!(output.contains("module 'word' not found"), "{output}");
}

#[test]
fn lua_load_shares_a_state_and_lua_load_per_thread_does_not() {
    let script = "core.register_action('a', {'http-req'}, function(txn)
        seen = (seen or 0) + 1
        txn:set_var('txn.r', seen .. ' ' .. core.thread)
    end)";
    for (keyword, answers) in [("lua-load", ["1 0", "2 0"]), ("lua-load-per-thread", ["1 1", "2 1"])] {
        let gate = Listening::new();
        let _server = start(&format!("    nbthread 1\n    {keyword} @DIR@/script.lua"), script, &gate);
        let mut client = Client::connect(&gate.address());
        assert_eq!([client.get("/").text(), client.get("/").text()], answers, "{keyword}");
    }
}

#[test]
fn a_budget_ends_what_runs_too_long() {
    // A loop is made to yield, so only its sum of bursts grows; a comparison can't yield, so its burst does.
    for (global, body) in [
        ("    tune.lua.burst-timeout 0\n    tune.lua.session-timeout 50ms", "while true do end"),
        (
            "    tune.lua.session-timeout 0\n    tune.lua.burst-timeout 50ms",
            "table.sort({1, 2}, function() while true do end end)",
        ),
    ] {
        let (answer, output) = run(global, &action(body));
        assert_eq!(answer, "", "{global}");
        assert!(
            output.contains("Lua function 'a': [state-id 0] runtime error: execution timeout from "),
            "{global}\n{output}"
        );
    }
    // The same work within its limits ends by itself.
    let work = action("local n = 0 for i = 1, 1000000 do n = n + 1 end txn:set_var('txn.r', n)");
    let unlimited = "    tune.lua.session-timeout 0\n    tune.lua.burst-timeout 0\n    tune.lua.forced-yield 100";
    assert_eq!(run(unlimited, &work).0, "1000000");
}

#[test]
fn a_task_has_a_budget_of_its_own() {
    let gate = Listening::new();
    let script = format!("core.register_task(function() while true do end end)\n{}", action("txn:set_var('txn.r', 1)"));
    let global = "    tune.lua.burst-timeout 0\n    tune.lua.task-timeout 50ms\n    lua-load @DIR@/script.lua";
    let mut server = start(global, &script, &gate);
    server.program.wait_for_output("execution timeout");
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "1");
}

#[test]
fn maxmem_bounds_all_states() {
    let script = action("txn:set_var('txn.r', #('x'):rep(1 << 26))");
    assert_eq!(run("", &script).0, "67108864");
    assert_eq!(run("    tune.lua.maxmem 0", &script).0, "67108864");
    let (answer, output) = run("    tune.lua.maxmem 8", &script);
    assert_eq!(answer, "");
    assert!(output.contains("Lua function 'a': out of memory"), "{output}");
}

#[test]
fn booleans_are_converted_as_configured() {
    let script = action("txn:set_var('txn.r', tostring(txn.f:bool('true')))");
    assert_eq!(run("", &script).0, "1");
    assert_eq!(run("    tune.lua.bool-sample-conversion pre-3.1-bug", &script).0, "1");
    assert_eq!(run("    tune.lua.bool-sample-conversion normal", &script).0, "true");
}

/// A line to stderr has a level and the process's number before the message, a raw one to a target has neither.
#[test]
fn messages_go_where_they_should() {
    let script = action("txn:Warning('a word')");
    let target = "    log stdout format raw local0";
    for (global, stderr, logged) in [
        (String::new(), true, false),
        ("    tune.lua.log.stderr off".to_owned(), false, false),
        (target.to_owned(), false, true),
        (format!("{target}\n    tune.lua.log.stderr auto"), false, true),
        (format!("{target}\n    tune.lua.log.stderr on"), true, true),
        (format!("{target}\n    tune.lua.log.loggers off"), true, false),
        (format!("{target}\n    tune.lua.log.loggers off\n    tune.lua.log.stderr off"), false, false),
    ] {
        let (_, output) = run(&global, &script);
        let found = output.lines().any(|line| line.starts_with('[') && line.ends_with(") : a word"));
        assert_eq!((found, output.lines().any(|line| line == "a word")), (stderr, logged), "{global}\n{output}");
    }
}
