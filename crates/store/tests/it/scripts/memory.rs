//! The memory of scripts: INFO and MEMORY STATS, `maxmemory`, and the limit of an interpreter.

use sluicegate_testkit::Client;

use crate::support::Running;

/// Returns a figure of INFO.
fn info(client: &mut Client, name: &str) -> u64 {
    let info = client.ask(&["INFO", "everything"]);
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
}

/// Returns a figure of MEMORY STATS.
fn stat(client: &mut Client, name: &str) -> u64 {
    let stats = client.ask(&["MEMORY", "STATS"]);
    let mut lines = stats.lines().skip_while(|line| *line != name).skip(1);
    lines.next().and_then(|line| line.strip_prefix(':')?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {stats}"))
}

#[test]
fn scripts_and_libraries_are_counted_and_part_of_used_memory() {
    let ours = Running::start();
    let mut client = ours.connect();
    let fields = [
        "number_of_cached_scripts",
        "number_of_functions",
        "number_of_libraries",
        "used_memory_functions",
        "used_memory_lua",
        "used_memory_scripts",
        "used_memory_scripts_eval",
        "used_memory_vm_eval",
        "used_memory_vm_functions",
        "used_memory_vm_total",
    ];
    for field in fields {
        assert_eq!(info(&mut client, field), 0, "{field}");
    }
    let (used, normal) = (info(&mut client, "used_memory"), info(&mut client, "mem_clients_normal"));
    let comment = "x".repeat(100_000);
    for n in 0..3 {
        client.ask(&["EVAL", &format!("return {n} --{comment}"), "0"]);
    }
    assert_eq!(info(&mut client, "number_of_cached_scripts"), 3);
    let (bodies, lua) = (info(&mut client, "used_memory_scripts_eval"), info(&mut client, "used_memory_lua"));
    assert!((300_000..303_000).contains(&bodies), "{bodies}");
    assert!(lua > 32_000, "{lua}");
    assert_eq!(info(&mut client, "used_memory_vm_eval"), lua);
    assert_eq!(info(&mut client, "used_memory_vm_functions"), 0);
    assert_eq!(stat(&mut client, "lua.caches"), bodies);
    assert!(info(&mut client, "used_memory") >= used + bodies + lua);
    assert!(info(&mut client, "mem_clients_normal") < normal + 300_000, "they are no client's");
    client.ask(&[
        "FUNCTION",
        "LOAD",
        &format!("#!lua name=l\nredis.register_function('f', function() end) --{comment}"),
    ]);
    assert_eq!((info(&mut client, "number_of_libraries"), info(&mut client, "number_of_functions")), (1, 1));
    let library = info(&mut client, "used_memory_functions");
    assert!(library > 100_000, "{library}");
    assert_eq!(stat(&mut client, "functions.caches"), library);
    assert_eq!(info(&mut client, "used_memory_scripts"), bodies + library);
    assert!(info(&mut client, "used_memory_vm_functions") > 0, "the interpreter has a library now");
    assert_eq!(client.ask(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(client.ask(&["FUNCTION", "FLUSH"]), "+OK\r\n");
    assert_eq!((info(&mut client, "used_memory_scripts"), info(&mut client, "number_of_cached_scripts")), (0, 0));
}

#[test]
fn bodies_fill_maxmemory() {
    let ours = Running::start();
    let mut client = ours.connect();
    let used = info(&mut client, "used_memory");
    client.ask(&["CONFIG", "SET", "maxmemory", &(used + (2 << 20)).to_string()]);
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK\r\n");
    client.ask(&["SCRIPT", "LOAD", &format!("return 1 --{}", "x".repeat(3 << 20))]);
    assert!(client.ask(&["SET", "k", "v"]).starts_with("-OOM"));
    // For a script that may write, this error comes before any other.
    let may_write = ["EVAL_RO", "#!lua\nreturn 1", "0"];
    assert!(client.ask(&may_write).starts_with("-OOM"));
    client.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK\r\n");
    assert!(client.ask(&may_write).starts_with("-ERR Can not execute a script with write flag"));
}

#[test]
fn an_interpreter_takes_no_more_than_its_limit() {
    let ours = Running::start();
    let mut client = ours.connect();
    let big = "local t = {} for i = 1, 64 do t[i] = string.rep(tostring(i % 10), 1000000) end return #t";
    assert_eq!(client.ask(&["EVAL", big, "0"]), ":64\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "lua-memory-limit", "16mb"]), "+OK\r\n");
    let reply = client.ask(&["EVAL", big, "0"]);
    assert!(reply.contains("not enough memory"), "{reply}");
    // Other scripts need less memory; an error within `pcall` is caught.
    assert_eq!(client.ask(&["EVAL", "return #string.rep('x', 1000000)", "0"]), ":1000000\r\n");
    let caught = format!("return pcall(function() {big} end) and 1 or 2");
    let reply = client.ask(&["EVAL", &caught, "0"]);
    assert!(reply == ":2\r\n" || reply.contains("not enough memory"), "{reply}");
    assert_eq!(client.ask(&["CONFIG", "SET", "lua-memory-limit", "512mb"]), "+OK\r\n");
    assert_eq!(client.ask(&["EVAL", big, "0"]), ":64\r\n");
    assert!(client.ask(&["CONFIG", "SET", "lua-memory-limit", "1"]).starts_with("-ERR"));
}
