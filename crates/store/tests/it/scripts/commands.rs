//! Subcommands of SCRIPT that return information about scripts, and flags that are not in a script's body.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};

use super::Ticking;
use crate::server::check_alike_by_default;
use crate::support::Running;

/// Requests whose replies must be equal byte for byte.
const ALIKE: &[&str] = &[
    "SCRIPT\r\nSCRIPT nosuch\r\nSCRIPT HELP x\r\nSCRIPT LOAD\r\nFUNCTION HELP x\r\n",
    "COMMAND GETKEYS SCRIPT LOAD x\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

#[test]
fn help_lists_what_there_is() {
    let ours = Running::start();
    let mut client = ours.connect();
    for (command, names) in [
        (
            ["SCRIPT", "HELP"],
            &["EXISTS", "FLAGS", "FLUSH", "GC", "HELP", "KILL", "LATENCY", "LIST", "LOAD", "PS", "SHOW"][..],
        ),
        (["FUNCTION", "HELP"], &["DELETE", "DUMP", "FLUSH", "HELP", "KILL", "LIST", "LOAD", "RESTORE", "STATS"]),
    ] {
        let reply = client.ask(&command);
        let heads = reply.lines().filter_map(|line| line.strip_prefix('+')).filter(|line| !line.starts_with(' '));
        let mut found: Vec<&str> = heads.skip(1).filter_map(|line| line.split(' ').next()).collect();
        found.sort_unstable();
        assert_eq!(found, names);
    }
}

/// Returns the SHA-1 that SCRIPT LOAD returns.
fn load(client: &mut Client, body: &str) -> String {
    let reply = client.ask(&["SCRIPT", "LOAD", body]);
    reply.lines().nth(1).expect("a bulk").to_owned()
}

#[test]
fn a_script_is_shown_and_listed() {
    let ours = Running::start();
    let mut client = ours.connect();
    let sha = load(&mut client, "return 1");
    assert_eq!(client.ask(&["SCRIPT", "SHOW", &sha.to_uppercase()]), "$8\r\nreturn 1\r\n");
    let unknown = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    assert_eq!(client.ask(&["SCRIPT", "SHOW", "nonsense"]), unknown);
    assert_eq!(client.ask(&["SCRIPT", "LIST"]), format!("*1\r\n*2\r\n$40\r\n{sha}\r\n$8\r\nreturn 1\r\n"));
    assert_eq!(client.ask(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(client.ask(&["SCRIPT", "LIST"]), "*0\r\n");
    assert_eq!(client.ask(&["SCRIPT", "SHOW", &sha]), unknown);
    assert_eq!(
        client.ask(&["SCRIPT", "DEBUG", "YES"]),
        "-ERR unknown subcommand 'DEBUG' of SCRIPT: there is no debugger of scripts; redis.log writes to the log, and \
         SCRIPT PS shows what runs\r\n"
    );
}

#[test]
fn calls_are_timed_by_script() {
    let ours = Running::start();
    let mut client = ours.connect();
    assert_eq!(client.ask(&["SCRIPT", "LATENCY"]), "*0\r\n");
    let sha = load(&mut client, "return ARGV[1]");
    assert_eq!(client.ask(&["SCRIPT", "LATENCY"]), "*0\r\n", "it was never called");
    client.ask(&["EVALSHA", &sha, "0", "x"]);
    client.ask(&["EVAL", "return ARGV[1]", "0", "x"]);
    let reply = client.ask(&["SCRIPT", "LATENCY"]);
    assert!(reply.starts_with(&format!("*1\r\n*2\r\n$40\r\n{sha}\r\n$")), "{reply}");
    assert!(reply.contains("\r\nCount: 2 Average: "), "{reply}");
    client.ask(&["HELLO", "3"]);
    assert!(client.ask(&["SCRIPT", "LATENCY"]).contains("\r\n="), "a verbatim string");
}

#[test]
fn interpreters_collect_their_garbage_when_asked() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "lua_mem_gc_threshold", "1gb"]);
    let lua = |client: &mut Client| {
        let info = client.ask(&["INFO", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory_lua:")).expect("the field");
        line.parse::<u64>().expect("a number")
    };
    client.ask(&["EVAL", "local t = {} for i = 1, 200000 do t[i] = {} end return #t", "0"]);
    let before = lua(&mut client);
    assert!(before > 4_000_000, "{before} bytes");
    assert_eq!(client.ask(&["SCRIPT", "GC"]), "+OK\r\n");
    assert!(lua(&mut client) < 1_000_000);
    // With a low threshold, a script leaves no garbage.
    client.ask(&["CONFIG", "SET", "lua_mem_gc_threshold", "100kb"]);
    client.ask(&["EVAL", "local t = {} for i = 1, 200000 do t[i] = {} end return #t", "0"]);
    assert!(lua(&mut client) < 1_000_000);
}

#[test]
fn flags_can_be_given_before_and_after_a_script_is_known() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "lua-undeclared-keys", "deny"]);
    let body = "return redis.call('SET', 'undeclared', ARGV[1])";
    let denied = client.ask(&["EVAL", body, "0", "x"]);
    assert!(denied.contains("undeclared key"), "{denied}");
    let sha = load(&mut client, body);
    assert_eq!(client.ask(&["SCRIPT", "FLAGS", &sha, "allow-undeclared-keys"]), "+OK\r\n");
    assert_eq!(client.ask(&["EVALSHA", &sha, "0", "x"]), "+OK\r\n");
    assert_eq!(client.ask(&["SCRIPT", "FLAGS", &sha.to_uppercase(), "no-writes,allow-undeclared-keys"]), "+OK\r\n");
    assert!(client.ask(&["EVALSHA", &sha, "0", "x"]).contains("Write commands are not allowed from read-only scripts"));
    // FLUSH removes the flags.
    assert_eq!(client.ask(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert!(client.ask(&["EVAL", body, "0", "x"]).contains("undeclared key"));
    // Flags are set before the script is loaded, and replace its own.
    let own = format!("#!lua flags=no-writes\n{body}");
    assert_eq!(client.ask(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    let sha = load(&mut client, &own);
    client.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(client.ask(&["SCRIPT", "FLAGS", &sha, "disable-atomicity", "legacy-float"]), "+OK\r\n");
    assert_eq!(client.ask(&["EVAL", &own, "0", "x"]), "+OK\r\n");
    for (words, expected) in [
        (&["SCRIPT", "FLAGS", &sha, "nosuch"][..], "-ERR Invalid config format: Invalid flag: nosuch\r\n"),
        (&["SCRIPT", "FLAGS", "abc", "no-writes"], "-ERR Invalid SHA-1: 40 hexadecimal digits are expected\r\n"),
        (&["SCRIPT", "FLAGS", &sha], "-ERR wrong number of arguments for 'script|flags' command\r\n"),
    ] {
        assert_eq!(client.ask(words), expected);
    }
}

#[test]
fn scripts_that_name_no_flags_have_those_of_the_parameter() {
    let ours = Running::with(ServerOptions { default_lua_flags: b"no-writes".into(), ..ServerOptions::default() }, 1);
    let mut client = ours.connect();
    let body = "return redis.call('SET', KEYS[1], 'v')";
    let refused = "Write commands are not allowed from read-only scripts";
    assert!(client.ask(&["EVAL", body, "1", "k"]).contains(refused));
    // Flags in the body, even an empty list, replace them, in both notations.
    assert_eq!(client.ask(&["EVAL", &format!("--!df flags=legacy-float\n{body}"), "1", "k"]), "+OK\r\n");
    assert_eq!(client.ask(&["EVAL", &format!("#!lua\n{body}"), "1", "k"]), "+OK\r\n");
    assert_eq!(
        client.ask(&["CONFIG", "GET", "default_lua_flags"]),
        "*2\r\n$17\r\ndefault_lua_flags\r\n$9\r\nno-writes\r\n"
    );
    assert_eq!(client.ask(&["CONFIG", "SET", "default_lua_flags", ""]), "+OK\r\n");
    assert_eq!(client.ask(&["EVAL", body, "1", "k"]), "+OK\r\n");
    let reply = client.ask(&["CONFIG", "SET", "default_lua_flags", "no-writes nosuch"]);
    assert!(reply.contains("Invalid flag: nosuch"), "{reply}");
    // Without atomicity, the effects of a script are visible before its end.
    assert_eq!(
        client.ask(&["CONFIG", "SET", "default_lua_flags", "allow-undeclared-keys;disable-atomicity"]),
        "+OK\r\n"
    );
    assert!(client.ask(&["EVAL", "dragonfly.unlock() return 1", "0"]).starts_with(":1"));
}

#[test]
fn scripts_that_run_or_wait_are_described() {
    let options = ServerOptions { busy_reply_threshold_ms: 0, ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let _ticking = Ticking::start(&ours);
    let (mut endless, mut waiting, mut reader, mut admin) =
        (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    assert_eq!(admin.ask(&["SCRIPT", "PS"]), "*0\r\n");
    let number = |client: &mut Client| client.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    let (first, second) = (number(&mut endless), number(&mut waiting));
    let body = "redis.call('SET', 'third', ARGV[1]) while true do end";
    let sha = load(&mut admin, body);
    endless.command(&["EVALSHA", &sha, "2", "a", "b", "x"]);
    wait_for("it to run", || admin.ask(&["SCRIPT", "PS"]).contains("$9\r\nkeys-held\r\n:3\r\n").then_some(()));
    waiting.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "a"]);
    reader.command(&["MGET", "a", "b"]);
    let reply = wait_for("two to wait", || {
        let reply = admin.ask(&["SCRIPT", "PS"]);
        (reply.starts_with("*2\r\n") && reply.contains("$7\r\nwaiters\r\n:2\r\n")).then_some(reply)
    });
    let described: Vec<&str> = reply.split("$2\r\nid\r\n").skip(1).collect();
    let of = |described: &str, name: &str| {
        let at = described.find(&format!("\r\n{name}\r\n")).unwrap_or_else(|| panic!("no {name} in {described}"));
        let mut lines = described[at + 2..].lines().skip(1);
        let line = lines.next().expect("a value");
        line.strip_prefix(':').map_or_else(|| lines.next().expect("a text").to_owned(), str::to_owned)
    };
    let runs = described.iter().find(|text| text.contains("running")).expect("one runs");
    let waits = described.iter().find(|text| text.contains("waiting")).expect("one waits");
    assert_eq!((of(runs, "sha"), of(runs, "client"), of(runs, "wrote")), (sha.clone(), first, "1".into()));
    assert_eq!((of(waits, "client"), of(waits, "keys-held"), of(waits, "wrote")), (second, "0".into(), "0".into()));
    assert_eq!(of(waits, "waiters"), "0");
    assert!(of(runs, "age-ms").parse::<u64>().is_ok());
    // For a waiting script the owner of the key is listed.
    let owner = format!(" wait-db=0 wait-owner=script-{}", &sha[..8]);
    let reasons = wait_for("both to say why", || {
        let list = admin.ask(&["CLIENT", "LIST"]);
        let reasons: Vec<String> = list.lines().filter(|line| line.ends_with(&owner)).map(str::to_owned).collect();
        (reasons.len() == 2).then_some(reasons)
    });
    let waits_for = |command: &str, key: &str| {
        let says = |line: &&String| line.contains(&format!(" cmd={command} "));
        assert!(
            reasons.iter().find(says).is_some_and(|line| line.contains(&format!(" wait-key={key}"))),
            "{reasons:?}"
        );
    };
    waits_for("eval", "a ");
    waits_for("mget", "");
    // A waiting script is ended at once, by its number.
    let id = waits.lines().next().and_then(|line| line.strip_prefix(':')).expect("a number");
    assert_eq!(admin.ask(&["SCRIPT", "KILL", id]), "+OK\r\n");
    assert!(waiting.read_reply().starts_with(b"-ERR Script killed by user"));
    assert!(admin.ask(&["SCRIPT", "KILL", &sha]).starts_with("-UNKILLABLE"));
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &sha, "FORCE"]), "+OK\r\n");
    assert!(endless.read_reply().starts_with(b"-ERR Script killed by user"));
    assert_eq!(reader.read_reply(), b"*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(admin.ask(&["SCRIPT", "PS"]), "*0\r\n");
}

#[test]
fn functions_are_described_by_their_names() {
    let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 0, ..ServerOptions::default() }, 2);
    let (mut endless, mut admin) = (ours.connect(), ours.connect());
    let code = "#!lua name=l\nredis.register_function('f', function(keys) while true do end end)";
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", code]), "$1\r\nl\r\n");
    endless.command(&["FCALL", "f", "1", "a"]);
    wait_for("it to run", || admin.ask(&["SCRIPT", "PS"]).contains("$8\r\nfunction\r\n$1\r\nf\r\n").then_some(()));
    assert_eq!(admin.ask(&["FUNCTION", "KILL", "f"]), "+OK\r\n");
    assert!(endless.read_reply().starts_with(b"-ERR Script killed by user"));
}

#[test]
fn what_comes_behind_a_long_call_is_answered_after_it() {
    let ours = Running::start();
    let mut client = ours.connect();
    let long = "x".repeat(3 << 20);
    let mut requests = Vec::new();
    let mut add = |words: &[&str]| {
        requests.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        words.iter().for_each(|word| requests.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes()));
    };
    let script = "redis.call('SET', KEYS[1], ARGV[1]) return #ARGV[1]";
    add(&["PING"]);
    add(&["EVAL", script, "1", "k", &long]);
    add(&["STRLEN", "k"]);
    // The arguments are not kept.
    add(&["SET", "other", &long]);
    add(&["MULTI"]);
    add(&["EVAL", script, "1", "k", &long[1..]]);
    add(&["EVALSHA", "nothing", "1", "k", &long]);
    add(&["STRLEN", "other"]);
    add(&["EXEC"]);
    add(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"]);
    add(&["EVAL", "return {KEYS[1] == ARGV[1], ARGV[2]}", "1", &long, &long, "end"]);
    client.send(&requests);
    let len = long.len();
    let whole = &long[1..];
    let replies = format!(
        "+PONG\r\n:{len}\r\n:{len}\r\n+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
         *3\r\n:{}\r\n-NOSCRIPT No matching script. Please use EVAL.\r\n:{len}\r\n${}\r\n{whole}\r\n*2\r\n:1\r\n$3\r\nend\r\n",
        whole.len(),
        whole.len()
    );
    assert!(client.read_exact(replies.len()) == replies.as_bytes());
    assert_eq!(client.ask(&["DBSIZE"]), ":2\r\n");
}
