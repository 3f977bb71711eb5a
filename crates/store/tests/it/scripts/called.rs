//! Commands without keys that scripts call: information about the server, and the counting of calls.

use sluicegate_testkit::{Client, RedisServer};

use crate::server::check_alike_by_default;
use crate::support::Running;

/// Requests whose replies must be equal byte for byte.
const ALIKE: &[&str] = &[
    "EVAL \"redis.call('set','p',1) redis.call('pexpireat','p',1) return redis.call('exists','p')\" 0\r\n",
    "EVAL \"return redis.call('command','getkeys','mset','a','1','b','2')\" 0\r\nEVAL \"return redis.call('command','info','nosuch')\" 0\r\n",
    "EVAL \"return redis.call('command','nosuch')\" 0\r\nEVAL \"return redis.call('command','getkeys')\" 0\r\n",
    "CONFIG SET slowlog-log-slower-than -1\r\nEVAL \"return redis.call('slowlog','reset')\" 0\r\nEVAL \"return redis.call('slowlog','len')\" 0\r\nEVAL \"return redis.call('slowlog','get','x')\" 0\r\n",
    "EVAL \"return redis.call('client','id')\" 0\r\nEVAL \"return redis.call('config','get','port')\" 0\r\n\
     EVAL \"return redis.call('subscribe','x')\" 0\r\nEVAL \"return redis.call('multi')\" 0\r\n\
     EVAL \"return redis.call('script','exists','x')\" 0\r\nEVAL \"return redis.call('debug','sleep',0)\" 0\r\nEVAL \"return redis.call('latency','latest')\" 0\r\n",
    "EVAL \"return #redis.call('time')\" 0\r\nEVAL \"return redis.call('ping','x')\" 0\r\nEVAL \"return redis.call('echo','x')\" 0\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

#[test]
fn the_server_tells_scripts_what_concerns_no_connection() {
    let ours = Running::start();
    let mut client = ours.connect();
    let mut of = |call: &str| client.ask(&["EVAL", &format!("return redis.call({call})"), "0"]);
    assert!(of("'info'").contains("\r\nredis_version:7."));
    let keyspace = of("'info','keyspace'");
    assert!(keyspace.contains("# Keyspace"), "{keyspace}");
    assert!(of("'lolwut'").contains("Redis ver. 7."));
    assert!(of("'command','count'").starts_with(':'));
    assert!(of("'cluster','keyslot','x'") == ":16287\r\n");
    assert!(of("'cluster','nodes'").contains("myself,master"));
    assert_eq!(of("'readonly'"), "+OK\r\n");
    assert!(of("'client','help'").starts_with('*'));
    // A script without atomicity, and one that runs in a transaction.
    let body = "--!df flags=disable-atomicity\nreturn redis.call('command','count')";
    assert!(client.ask(&["EVAL", body, "0"]).starts_with(':'));
    client.send("MULTI\r\nEVAL \"return redis.call('info','server')\" 0\r\nEXEC\r\n");
    (0..2).for_each(|_| drop(client.read_reply()));
    assert!(String::from_utf8_lossy(&client.read_reply()).contains("redis_version:7."));
}

/// Returns INFO's figures about these commands: calls, rejected calls and failed calls.
fn counted(client: &mut Client, names: &[&str]) -> Vec<String> {
    let info = client.ask(&["INFO", "commandstats"]);
    let of = |name: &&str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:")));
        let numbers = line.unwrap_or("calls=0,,,rejected_calls=0,failed_calls=0").split(',');
        let kept: Vec<&str> = numbers.filter(|number| number.contains("calls") && !number.contains("per")).collect();
        format!("{name} {}", kept.join(" "))
    };
    names.iter().map(of).collect()
}

#[test]
fn calls_are_counted_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let body = "redis.call('set','x',1) redis.call('get','x') redis.call('get','x')
        redis.pcall('incr','x','y') redis.pcall('lpush','x',1) redis.pcall('nosuch') redis.pcall('object','encoding','x')
        redis.pcall('client','id') redis.pcall('object','nosuch')
        return redis.call('incr','x')";
    let names = ["set", "get", "incr", "lpush", "object|encoding", "client|id", "eval", "strlen"];
    let failing = "redis.call('set','y','text') return redis.call('incr','y')";
    let ask = |mut client: Client| {
        client.ask(&["EVAL", body, "0"]);
        client.ask(&["EVAL", failing, "0"]);
        client.ask(&["EVAL", "--[[not ours]] return redis.call('strlen','x')", "0"]);
        counted(&mut client, &names)
    };
    assert_eq!(ask(ours.connect()), ask(Client::connect(&redis.address())));
    let mut client = ours.connect();
    let total = |client: &mut Client| {
        let info = client.ask(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("the field");
        line.parse::<u64>().expect("a number")
    };
    let before = total(&mut client);
    client.ask(&["EVAL", "for i = 1, 1000 do redis.call('incr','n') end", "0"]);
    assert!(total(&mut client) >= before + 1001);
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert_eq!(counted(&mut client, &["set"]), ["set calls=0 rejected_calls=0 failed_calls=0"]);
    // The calls of a script that ends with an error are counted.
    client.ask(&["EVAL", "redis.call('set','x',1) error('x')", "0"]);
    assert_eq!(counted(&mut client, &["set"]), ["set calls=1 rejected_calls=0 failed_calls=0"]);
}

/// Scripts that get errors, raise them, ignore them, and reply with them.
const WITH_ERRORS: &[&str] = &[
    "redis.pcall('get') return 1",
    "redis.pcall('lpush','s','1') redis.pcall('lpush','s','1') return 1",
    "return redis.pcall('lpush','s','1')",
    "redis.call('lpush','s','1')",
    "redis.pcall('lpush','s','1') return redis.pcall('lpush','s','1')",
    "local swallowed = redis.pcall('lpush','s','1') error(swallowed)",
    "pcall(redis.call,'lpush','s','1') return redis.call('get')",
    "redis.pcall('nosuch') redis.pcall('subscribe','x') return 1",
    "return redis.error_reply('MINE x')",
    "return {err='MINE x'}",
    "error({err='MINE x'})",
    "error('x')",
    "return {1,redis.error_reply('NESTED y'),redis.pcall('lpush','s','1'),{redis.error_reply('NESTED y')}}",
    "redis.pcall() return 1",
    "redis.call()",
];

#[test]
fn errors_are_counted_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut ours) = (Client::connect(&redis.address()), ours.connect());
    let errors = |client: &mut Client, script: &str, in_transaction: bool| {
        client.ask(&["SET", "s", "text"]);
        client.ask(&["CONFIG", "RESETSTAT"]);
        if in_transaction {
            client.ask(&["MULTI"]);
        }
        client.ask(&["EVAL", script, "0"]);
        if in_transaction {
            client.ask(&["EXEC"]);
        }
        let stats = client.ask(&["INFO", "stats"]);
        let total = stats.lines().find(|line| line.starts_with("total_error_replies")).map(str::to_owned);
        (client.ask(&["INFO", "errorstats"]), total)
    };
    for script in WITH_ERRORS {
        for in_transaction in [false, true] {
            let redis = errors(&mut theirs, script, in_transaction);
            assert_eq!(
                errors(&mut ours, script, in_transaction),
                redis,
                "{script}, in a transaction: {in_transaction}"
            );
        }
    }
}

/// A long script mostly runs on another thread than its client's worker.
#[test]
fn the_time_of_a_long_script_is_its_call_s() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"]);
    client.ask(&["CONFIG", "RESETSTAT"]);
    let script = super::turns(5_000_000);
    assert!(client.ask(&["EVAL", &script, "0"]).starts_with(':'));
    let slow = client.ask(&["SLOWLOG", "GET"]);
    assert!(slow.contains(&script), "{slow}");
    let stats = client.ask(&["INFO", "commandstats"]);
    let took = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls=1,usec=")?.split_once(','));
    let (took_us, _) = took.unwrap_or_else(|| panic!("{stats}"));
    assert!(took_us.parse::<u64>().is_ok_and(|took_us| took_us >= 5_000), "{stats}");
}
