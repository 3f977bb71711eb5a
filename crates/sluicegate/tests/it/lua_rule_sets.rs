//! Registration of Lua actions by rule set: one name may stand for another function, with another number of arguments,
//! in each. Every case is compared with Debian's haproxy.

use std::fmt::Write as _;

use sluicegate_testkit::{Client, Haproxy, Listening, Program};

/// A configuration whose response says what ran, with these scripts.
fn configuration(
    directory: &std::path::Path,
    scripts: &[&str],
    rules: &str,
    load: &str,
    [gate, origin]: [&Listening; 2],
) -> String {
    let mut text = String::from("global\n    nbthread 1\n    log stdout format raw local0\n");
    for (number, script) in scripts.iter().enumerate() {
        let path = directory.join(format!("{number}.lua"));
        std::fs::write(&path, script).expect("writable");
        let _ = writeln!(text, "    {load} {}", path.display());
    }
    let _ = write!(
        text,
        "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend origin\n    bind {}\n    http-request return status 200\n\
         listen l\n    bind {}\n    tcp-request inspect-delay 5s\n{rules}    \
         http-response set-header x-v \"%[var(txn.v)]\"\n    server s {}\n",
        origin.word(),
        gate.word(),
        origin.address()
    );
    text
}

/// A function that appends to `txn.v`.
fn register(name: &str, hooks: &str, mark: &str, args: &str) -> String {
    let count = args.split(',').filter(|arg| !arg.is_empty()).count();
    let comma = if args.is_empty() { "" } else { ", " };
    let values = if args.is_empty() { "''".to_owned() } else { args.replace(", ", " .. ") };
    format!(
        "core.register_action('{name}', {{{hooks}}}, function(txn{comma}{args})
           txn:set_var('txn.v', (txn:get_var('txn.v') or '') .. '{mark}' .. {values}) end, {count})\n"
    )
}

fn answer(gate: &Listening) -> String {
    let response = Client::connect(&gate.address()).get("/");
    response.header("x-v").unwrap_or_default().to_owned()
}

/// Checks what runs, in a shared state and in one of each worker, and how often the warning about a name that is
/// already registered is printed.
#[track_caller]
fn check(scripts: &[&str], rules: &str, expected: &str, warnings: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let count = |program: &mut Program| {
        // The warning is written before the first answer, and may be read after it.
        if warnings > 0 {
            program.wait_for_output("more than once");
        }
        program.output().matches("more than once").count()
    };
    for load in ["lua-load", "lua-load-per-thread"] {
        let (gate, origin) = (Listening::new(), Listening::new());
        let text = configuration(directory.path(), scripts, rules, load, [&gate, &origin]);
        let mut haproxy = Haproxy::start(&text, &[&gate, &origin]);
        assert_eq!((&*answer(&gate), count(&mut haproxy.program)), (expected, warnings), "haproxy, {load}");
        drop(haproxy);
        let (gate, origin) = (Listening::new(), Listening::new());
        let text = configuration(directory.path(), scripts, rules, load, [&gate, &origin]);
        let mut server = crate::start(&text, &[&gate, &origin]);
        assert_eq!(
            (&*answer(&gate), count(&mut server.program)),
            (expected, warnings),
            "{load}: {}",
            server.program.output()
        );
    }
}

#[test]
fn one_name_is_another_function_in_each_rule_set() {
    let request = register("x", "'http-req'", "REQ", "");
    let response = register("x", "'http-res'", "RES", "");
    let rules = "    http-request lua.x\n    http-response lua.x\n";
    check(&[&format!("{request}{response}")], rules, "REQRES", 0);
    // Over two files, in either order.
    check(&[&request, &response], rules, "REQRES", 0);
    check(&[&response, &request], rules, "REQRES", 0);
    // One registration for both.
    let both = register("x", "'http-req', 'http-res'", "ANY", "");
    check(&[&both], rules, "ANYANY", 0);
}

/// Debian's haproxy knows no such rules in scripts.
#[test]
fn the_rules_after_a_response_are_a_set_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let (gate, origin) = (Listening::new(), Listening::new());
    let script = format!(
        "{}{}{}",
        register("x", "'http-req'", "REQ", "a, b"),
        register("x", "'http-res'", "RES", ""),
        register("x", "'http-after-res'", "AFTER", "a")
    );
    let rules = "    http-request lua.x one two\n    http-response lua.x\n    http-after-response lua.x three\n    \
                 http-after-response set-header x-after \"%[var(txn.v)]\"\n";
    let text = configuration(directory.path(), &[&script], rules, "lua-load", [&gate, &origin]);
    let _server = crate::start(&text, &[&gate, &origin]);
    let response = Client::connect(&gate.address()).get("/");
    assert_eq!(response.header("x-after"), Some("REQonetwoRESAFTERthree"));
}

#[test]
fn arguments_are_counted_for_each_rule_set() {
    let request = register("x", "'http-req'", "REQ", "a, b");
    let response = register("x", "'http-res'", "RES", "");
    let tcp = register("x", "'tcp-req'", "TCP", "a");
    let rules =
        "    tcp-request content lua.x one\n    http-request lua.x two three if TRUE\n    http-response lua.x\n";
    check(&[&format!("{request}{response}{tcp}")], rules, "TCPoneREQtwothreeRES", 0);
    check(&[&tcp, &response, &request], rules, "TCPoneREQtwothreeRES", 0);
}

#[test]
fn the_last_of_two_in_one_rule_set_counts() {
    let first = register("x", "'http-req', 'http-res'", "ONE", "");
    let second = register("x", "'http-req'", "TWO", "");
    let rules = "    http-request lua.x\n    http-response lua.x\n";
    check(&[&format!("{first}{second}")], rules, "TWOONE", 1);
    check(&[&first, &second], rules, "TWOONE", 1);
}

#[test]
fn one_name_is_an_action_a_fetch_a_converter_and_a_service() {
    let script = format!(
        "{}core.register_fetches('x', function(txn) return 'F' end)
        core.register_converters('x', function(text) return text .. 'C' end)
        core.register_service('x', 'http', function(a) end)",
        register("x", "'http-req'", "A", "")
    );
    let rules = "    http-request lua.x\n    http-request set-var(txn.f) lua.x,lua.x\n    http-request set-header x-w \"%[var(txn.f)]\"\n";
    check(&[&script], rules, "A", 0);
}
