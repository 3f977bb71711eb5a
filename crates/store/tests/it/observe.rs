//! Observation of a server: MONITOR, SLOWLOG, LATENCY, INFO and CLIENT LIST, compared with redis-server where possible.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Mode, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::support::{Running, on_runtime};

/// Returns a line of MONITOR without its time and the client's address.
fn shown(line: &str) -> String {
    let (time, rest) = line.split_once(" [").expect("a time");
    let (seconds, micros) = time.strip_prefix('+').and_then(|time| time.split_once('.')).expect("seconds and a point");
    assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6, "{line}");
    let (place, words) = rest.split_once("] ").expect("a place");
    let (db, address) = place.split_once(' ').expect("a database and an address");
    let from = if address == "lua" { " lua" } else { "" };
    assert!(!from.is_empty() || address.starts_with("127.0.0.1:"), "{line}");
    format!("[{db}{from}] {words}")
}

#[test]
fn monitor_shows_what_all_workers_run_in_the_form_of_redis() {
    let script: &[&[&str]] = &[
        &["SET", "k", "a \"b\"\\\r\n\t\u{7}\u{8}\u{1}é"],
        &["get", "k"],
        &["SELECT", "3"],
        &["AUTH", "secret"],
        &["HELLO", "2", "AUTH", "default", "secret", "SETNAME", "x"],
        &["CONFIG", "SET", "timeout", "0"],
        &["GET"],
        &["NOSUCH", "x"],
        &["EXISTS", "a", "b"],
        &["PING"],
        &["CLIENT", "SETNAME", "me"],
        &["CLIENT", "LIST"],
        &["COMMAND", "COUNT"],
        &["EVAL", "return 1", "0"],
        &[
            "EVAL",
            "redis.call('set', KEYS[1], 1.5); redis.call('Get', KEYS[1]); return redis.pcall('nosuch')",
            "1",
            "k",
        ],
        &["EVAL", "redis.call('SELECT', 4) return redis.call('lpush', 'other', 1, '\"\\n\"')", "0"],
        &["EVAL", "redis.pcall('get', 'a', 'b') redis.pcall('config', 'get', 'maxmemory')", "0"],
        &["EVAL_RO", "redis.pcall('set', 'k', 'v') redis.pcall('hget', 'k', 'f') return redis.call('ping')", "0"],
        &["EVAL", "no code", "0"],
        &["EVAL", "return 1", "x"],
        &["EVALSHA", "x", "0"],
        &["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() redis.call('incr', 'n') end)"],
        &["FCALL", "f", "0"],
        &["MULTI"],
        &["SET", "k", "v"],
        &["EVAL", "return redis.call('get', KEYS[1])", "1", "k"],
        &["FCALL", "f", "0"],
        &["EXEC"],
        &["INFO", "server"],
        &["ECHO", ""],
    ];
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let run = |address: String| -> Vec<String> {
        let mut watching = Client::connect(&address);
        assert_eq!(watching.ask(&["MONITOR"]), "+OK\r\n");
        let mut client = Client::connect(&address);
        script.iter().for_each(|words| drop(client.ask(words)));
        client.ask(&["ECHO", "the end"]);
        let mut lines = Vec::new();
        loop {
            let line = watching.read_line();
            lines.push(shown(line.trim_end()));
            if line.contains("the end") {
                return lines;
            }
        }
    };
    assert_eq!(run(ours.address()), run(redis.address()));
}

#[test]
fn a_monitor_still_answers_and_ends_with_reset() {
    let ours = Running::start();
    let (mut watching, mut client) = (ours.connect(), ours.connect());
    assert_eq!(watching.ask(&["MONITOR"]), "+OK\r\n");
    assert!(client.ask(&["CLIENT", "LIST"]).contains(" flags=O "));
    assert_eq!(client.ask(&["ECHO", "one"]), "$3\r\none\r\n");
    wait_for("the line", || watching.read_line().contains("\"ECHO\" \"one\"").then_some(()));
    watching.command(&["RESET"]);
    wait_for("the reply", || (watching.read_line() == "+RESET").then_some(()));
    assert_eq!(client.ask(&["ECHO", "two"]), "$3\r\ntwo\r\n");
    assert_eq!(watching.ask(&["PING"]), "+PONG\r\n", "nothing is shown any more");
    assert!(!client.ask(&["CLIENT", "LIST"]).contains(" flags=O "));
}

#[test]
fn a_monitor_has_no_keys_and_begins_outside_of_transactions() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let run = |address: String| -> Vec<String> {
        let mut client = Client::connect(&address);
        let commands: &[&[&str]] = &[
            &["MULTI"],
            &["MONITOR"],
            &["EXEC"],
            &["MONITOR"],
            &["GET", "k"],
            &["PUBLISH", "c", "m"],
            &["EVAL_RO", "return 1", "0"],
            &["FLUSHALL"],
        ];
        let mut replies: Vec<String> = commands.iter().map(|words| client.ask(words)).collect();
        // The second MONITOR gets no reply.
        client.command(&["MONITOR"]);
        replies.push(client.ask(&["SET", "k", "v"]));
        replies
    };
    let own = run(ours.address());
    assert_eq!(own, run(redis.address()));
    assert!(own[4].starts_with("-ERR Replica can't"), "{own:?}");
}

#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let ours = Running::start();
    let mut client = ours.connect();
    assert_eq!(client.ask(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"]), "+OK\r\n");
    let mut watching = ours.connect();
    assert_eq!(watching.ask(&["MONITOR"]), "+OK\r\n");
    let long = "x".repeat(500_000);
    wait_for("it to be closed", || {
        client.ask(&["ECHO", &long]);
        (ours.server.client_count() == 1).then_some(())
    });
}

#[test]
fn the_slow_log_keeps_what_redis_keeps() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let many: Vec<String> = (0..40).map(|at| at.to_string()).collect();
    let many: Vec<&str> = std::iter::once("MGET").chain(many.iter().map(String::as_str)).collect();
    let long = "y".repeat(300);
    let script: Vec<Vec<&str>> = vec![
        vec!["SLOWLOG", "GET", "x"],
        vec!["SLOWLOG", "GET", "-2"],
        vec!["SLOWLOG", "GET", "1", "2"],
        vec!["SLOWLOG", "LEN", "x"],
        vec!["SLOWLOG", "FOO"],
        vec!["CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "6"],
        vec!["SLOWLOG", "RESET"],
        vec!["CLIENT", "SETNAME", "me"],
        many,
        vec!["SET", "k", &long],
        vec!["AUTH", "a", "b"],
        vec!["GET", "k"],
        vec!["CONFIG", "SET", "requirepass", ""],
        vec!["SLOWLOG", "LEN"],
        vec!["CONFIG", "SET", "slowlog-log-slower-than", "-1"],
        vec!["GET", "k"],
        vec!["SLOWLOG", "LEN"],
    ];
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    for words in &script {
        assert_eq!(own.ask(words), theirs.ask(words), "{words:?}");
    }
    // Entries without their numbers, times and addresses.
    let entries = |client: &mut Client, count: &str| -> Vec<String> {
        let reply = client.ask(&["SLOWLOG", "GET", count]);
        let is_kept = |line: &&str| !line.starts_with(':') && !line.contains("127.0.0.1:") && !line.starts_with('$');
        reply.split("\r\n").filter(is_kept).map(str::to_owned).collect()
    };
    for count in ["-1", "3", "100"] {
        assert_eq!(entries(&mut own, count), entries(&mut theirs, count), "{count}");
    }
    assert_eq!(own.ask(&["SLOWLOG", "RESET"]), "+OK\r\n");
    assert_eq!(own.ask(&["SLOWLOG", "GET"]), "*0\r\n");
    assert!(own.ask(&["SLOWLOG", "HELP"]).starts_with('*'));
}

/// As in Redis 7.4 and Valkey 8, a slow log without entries uses up no numbers.
#[test]
fn a_slow_log_without_entries_counts_none() {
    let valkey = RedisServer::start_valkey("8.1", &[]);
    let ours = Running::start();
    for client in [&mut Client::connect(&valkey.address()), &mut ours.connect()] {
        client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "0"]);
        client.ask(&["SLOWLOG", "RESET"]);
        client.ask(&["PING"]);
        assert_eq!(client.ask(&["SLOWLOG", "LEN"]), ":0\r\n");
        client.ask(&["CONFIG", "SET", "slowlog-max-len", "1"]);
        let reply = client.ask(&["SLOWLOG", "GET"]);
        assert!(reply.starts_with("*1\r\n*6\r\n:0\r\n"), "{reply}");
    }
}

/// Returns the words of the entries of the slow log, the latest first.
fn logged(client: &mut Client) -> Vec<String> {
    let reply = client.ask(&["SLOWLOG", "GET", "-1"]);
    let entries = value(&mut reply.split("\r\n"));
    let words = |entry: &Value| list(&list(entry)[3]).iter().map(Value::text).collect::<Vec<_>>().join(" ");
    list(&entries).iter().map(words).collect()
}

#[test]
fn the_slow_log_names_the_commands_of_a_transaction() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let mut all = Vec::new();
    for client in [&mut Client::connect(&redis.address()), &mut ours.connect()] {
        client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        let mut seen = Vec::new();
        // Under one locking, as a section, alone, and after a watched key was touched.
        for transaction in [
            &[&["SET", "k", "1"][..], &["GET", "k"], &["SELECT", "0"], &["AUTH", "a", "b"]][..],
            &[&["SET", "k", "1"], &["SCRIPT", "EXISTS", "x"], &["CLIENT", "SETNAME", "me"], &["EVAL", "return 1", "0"]],
            &[&["SET", "k", "1"], &["FLUSHALL"], &["KEYS", "*"], &["INCR", "k"]],
            &[&["SET", "k", "1"], &["EVAL", "redis.call('get', KEYS[1]) redis.pcall('lpush', KEYS[1], 1)", "1", "k"]],
        ] {
            client.ask(&["SLOWLOG", "RESET"]);
            client.ask(&["MULTI"]);
            transaction.iter().for_each(|words| drop(client.ask(words)));
            client.ask(&["EXEC"]);
            seen.push(logged(client));
        }
        client.ask(&["WATCH", "k"]);
        client.ask(&["SET", "k", "2"]);
        client.ask(&["MULTI"]);
        client.ask(&["SLOWLOG", "RESET"]);
        client.ask(&["SET", "k", "3"]);
        assert_eq!(client.ask(&["EXEC"]), "*-1\r\n");
        seen.push(logged(client));
        all.push(seen);
    }
    assert_eq!(all[1], all[0]);
    assert!(all[1][0].contains(&"AUTH (redacted) (redacted)".to_owned()), "{all:?}");
}

#[test]
fn the_slow_log_names_the_commands_of_a_script() {
    const SCRIPT: &str = "redis.call('set', KEYS[1], 'v') redis.pcall('nosuch') redis.pcall('get') \
                          redis.pcall('lpush', KEYS[1], 1) return redis.call('get', 'undeclared')";
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let mut all = Vec::new();
    for client in [&mut Client::connect(&redis.address()), &mut ours.connect()] {
        client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        client.ask(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=l\nredis.register_function('f', function() redis.call('incr', 'n') end)",
        ]);
        client.ask(&["SLOWLOG", "RESET"]);
        client.ask(&["EVAL", SCRIPT, "1", "k"]);
        client.ask(&["FCALL", "f", "0"]);
        all.push(logged(client));
    }
    assert_eq!(all[1], all[0]);
    assert_eq!(all[1][0], "FCALL f 0");
    // Who sent the script, and no time for what takes none.
    let mut client = ours.connect();
    client.ask(&["CLIENT", "SETNAME", "me"]);
    client.ask(&["SLOWLOG", "RESET"]);
    client.ask(&["EVAL", "return redis.call('get', KEYS[1])", "1", "k"]);
    let entries = value(&mut client.ask(&["SLOWLOG", "GET"]).split("\r\n"));
    let from: Vec<&str> = list(&entries).iter().map(|entry| list(entry)[5].text()).collect();
    assert_eq!(from, ["me"; 3]);
    client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "999"]);
    client.ask(&["SLOWLOG", "RESET"]);
    client.ask(&["EVAL", "for i = 1, 100 do redis.call('get', KEYS[1]) end", "1", "k"]);
    // A few commands may be long because the thread lost its core during them.
    let long = logged(&mut client).iter().filter(|words| words.starts_with("get")).count();
    assert!(long < 10, "{long} of 100");
}

#[test]
fn the_slow_log_names_the_long_command_of_a_script_by_its_own_time() {
    let ours = Running::start();
    let mut client = ours.connect();
    fill_large(&mut client);
    // The lowest threshold at which commands of constant time are not timed.
    client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"]);
    for flags in ["", "#!lua flags=disable-atomicity\n"] {
        client.ask(&["SLOWLOG", "RESET"]);
        let script =
            format!("{flags}redis.call('get', 'k') for i = 1, 4 do redis.call('sunionstore', 'd', 'large') end");
        assert_eq!(client.ask(&["EVAL", &script, "2", "large", "d"]), "$-1\r\n");
        let logged = logged(&mut client);
        assert_eq!(logged.iter().filter(|words| *words == "sunionstore d large").count(), 4, "{flags} {logged:?}");
        assert!(logged.len() <= 5, "{logged:?}");
    }
}

/// Creates a set of 80,000 members, which is read on the thread pool.
fn fill_large(client: &mut Client) {
    for chunk in 0..40 {
        let members: Vec<String> = (0..2_000).map(|n| format!("member:{chunk}:{n}")).collect();
        let words: Vec<&str> = ["SADD", "large"].into_iter().chain(members.iter().map(String::as_str)).collect();
        assert_eq!(client.ask(&words), ":2000\r\n");
    }
}

#[test]
fn a_long_command_of_a_transaction_is_kept_with_its_own_time() {
    let ours = Running::start();
    let mut client = ours.connect();
    fill_large(&mut client);
    assert_eq!(client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]), "+OK\r\n");
    assert_eq!(client.ask(&["SLOWLOG", "RESET"]), "+OK\r\n");
    let script = "local n = 0 for i = 1, 200000 do n = n + i end return n";
    client.ask(&["MULTI"]);
    // A read on the thread pool, a script on a script thread, and a sleeping command.
    for words in [&["SMEMBERS", "large"][..], &["EVAL", script, "0"], &["ECHO", "short"]] {
        assert_eq!(client.ask(words), "+QUEUED\r\n");
    }
    assert!(client.ask(&["EXEC"]).starts_with("*3\r\n*80000\r\n"));
    let slow = logged(&mut client);
    for long in ["SMEMBERS large".to_owned(), format!("EVAL {script} 0")] {
        assert!(slow.contains(&long), "{slow:?}");
    }
    assert!(!slow.contains(&"ECHO short".to_owned()) || slow.len() > 2, "{slow:?}");
}

#[test]
fn sleep_of_debug_is_execution() {
    let ours = Running::with(ServerOptions { enable_debug_command: "yes", ..Default::default() }, 1);
    let mut client = ours.connect();
    for prelude in [&[][..], &["MULTI"]] {
        client.ask(&["SLOWLOG", "RESET"]);
        prelude.iter().for_each(|word| drop(client.ask(&[word])));
        client.ask(&["DEBUG", "SLEEP", "0.05"]);
        prelude.iter().for_each(|_| drop(client.ask(&["EXEC"])));
        assert_eq!(logged(&mut client), ["DEBUG SLEEP 0.05"], "{prelude:?}");
    }
    let stats = client.ask(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_debug:calls=2,"), "{stats}");
}

#[test]
fn waiting_is_not_execution() {
    let store = Store::new(StoreOptions::default());
    let ours = Running::serving(store.clone(), ServerOptions { slowlog_slower_than_us: 0, ..Default::default() }, 1);
    let section = on_runtime(store.section([(0, &b"held"[..], Mode::Exclusive)])).expect("nobody else holds it");
    let (mut waiting, mut other) = (ours.connect(), ours.connect());
    let begun = Instant::now();
    waiting.command(&["DEL", "held"]);
    wait_for("it to wait", || other.ask(&["CLIENT", "LIST"]).contains(" flags=b ").then_some(()));
    let waits = Instant::now();
    wait_for("a while", || (waits.elapsed() > Duration::from_millis(60)).then_some(()));
    let waited = waits.elapsed();
    drop(section);
    assert_eq!(waiting.read_reply(), b":0\r\n");
    let rest = begun.elapsed() - waited;
    let log = other.ask(&["SLOWLOG", "GET"]);
    let all = value(&mut log.split("\r\n"));
    let deleted = list(&all).iter().map(list).find(|entry| list(&entry[3])[0].is("DEL")).expect("it is logged");
    let Value::Number(took_us) = deleted[2] else { panic!("{log}") };
    assert!(took_us as u128 <= rest.as_micros(), "{took_us} us, of which it waited {waited:?}");
}

#[test]
fn execution_on_another_thread_counts() {
    let ours = Running::start();
    let mut client = ours.connect();
    fill_large(&mut client);
    assert_eq!(client.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]), "+OK\r\n");
    assert_eq!(client.ask(&["SLOWLOG", "RESET"]), "+OK\r\n");
    // 80,000 elements are read on the thread pool, and no machine does that in 0.1 ms.
    assert!(client.ask(&["SMEMBERS", "large"]).starts_with("*80000\r\n"));
    let slow = client.ask(&["SLOWLOG", "GET"]);
    assert!(slow.contains("SMEMBERS"), "{slow}");
}

#[test]
fn latency_events_and_histograms() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    for command in [
        "LATENCY",
        "LATENCY FOO",
        "LATENCY LATEST",
        "LATENCY LATEST x",
        "LATENCY HISTORY",
        "LATENCY HISTORY command",
        "LATENCY RESET",
        "LATENCY RESET command x",
        "LATENCY HISTOGRAM nosuch",
        "LATENCY HISTOGRAM append",
        "CONFIG SET latency-monitor-threshold 1",
        "CONFIG GET latency-monitor-threshold",
        "CONFIG SET latency-tracking-info-percentiles 101",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(own.ask(&words), theirs.ask(&words), "{command}");
    }
    assert_eq!(own.ask(&["CONFIG", "SET", "latency-tracking-info-percentiles", "50 99"]), "+OK\r\n");
    // Something that takes a while: a pattern over many keys.
    for at in 0..200 {
        let keys: Vec<String> = (0..500).map(|n| format!("key:{at}:{n}")).collect();
        let mut words = vec!["MSET"];
        keys.iter().for_each(|key| words.extend([key.as_str(), "v"]));
        own.ask(&words);
    }
    wait_for("an event", || {
        own.ask(&["KEYS", "*a*b*c*d*e*f"]);
        own.ask(&["LATENCY", "LATEST"]).contains("$7\r\ncommand\r\n").then_some(())
    });
    assert!(own.ask(&["LATENCY", "HISTORY", "command"]).contains("\r\n*2\r\n:"));
    assert!(own.ask(&["LATENCY", "DOCTOR"]).contains("command: "));
    assert!(own.ask(&["LATENCY", "HELP"]).starts_with('*'));
    assert_ne!(own.ask(&["LATENCY", "RESET"]), ":0\r\n");
    let histogram = own.ask(&["LATENCY", "HISTOGRAM", "keys", "mset", "append"]);
    assert!(histogram.starts_with("*4\r\n$4\r\nkeys\r\n*4\r\n$5\r\ncalls\r\n:"), "{histogram}");
    assert!(histogram.contains("$4\r\nmset\r\n*4\r\n$5\r\ncalls\r\n:200\r\n$14\r\nhistogram_usec\r\n*"), "{histogram}");
    let stats = own.ask(&["INFO", "latencystats"]);
    assert!(stats.contains("\r\nlatency_percentiles_usec_mset:p50="), "{stats}");
    assert!(stats.contains(",p99=") && !stats.contains("p99.9="), "{stats}");
    assert_eq!(own.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert_eq!(own.ask(&["LATENCY", "HISTOGRAM", "mset"]), "*0\r\n");
    assert_eq!(own.ask(&["CONFIG", "SET", "latency-tracking", "no"]), "+OK\r\n");
    own.ask(&["MSET", "a", "1"]);
    assert_eq!(own.ask(&["LATENCY", "HISTOGRAM", "mset"]), "*0\r\n");
}

/// Fields that redis-server shows, but for which this store has no true values.
const NOT_SHOWN: &[&str] = &[
    "atomicvar_api",
    "gcc_version",
    "dump_payload_sanitizations",
    "expire_cycle_cpu_milliseconds",
    "expired_stale_perc",
    "expired_time_cap_reached_count",
    "lazyfree_pending_objects",
    "lazyfreed_objects",
    "rdb_changes_since_last_save",
    "reply_buffer_expands",
    "reply_buffer_shrinks",
    "used_cpu_sys_main_thread",
    "used_cpu_user_main_thread",
];

#[test]
fn info_has_the_sections_and_fields_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let names = |address: String, section: &str| -> Vec<String> {
        let text = Client::connect(&address).ask(&["INFO", section]);
        let lines = text.lines().filter(|line| line.contains(':') || line.starts_with('#'));
        lines.map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
    };
    let titles =
        |names: Vec<String>| -> Vec<String> { names.into_iter().filter(|name| name.starts_with('#')).collect() };
    for section in ["default", "all", "everything", "cluster", "nosuch", "SERVER"] {
        let (own, theirs) = (titles(names(ours.address(), section)), titles(names(redis.address(), section)));
        assert_eq!(own, theirs, "{section}");
    }
    for section in ["server", "clients", "memory", "persistence", "stats", "replication", "cpu"] {
        let own: BTreeSet<String> = names(ours.address(), section).into_iter().collect();
        let missing: Vec<String> = names(redis.address(), section)
            .into_iter()
            .filter(|name| !own.contains(name) && !NOT_SHOWN.contains(&name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{section} lacks {missing:?}");
    }
    let several = Client::connect(&ours.address()).ask(&["INFO", "cpu", "replication"]);
    assert!(several.contains("# Replication\r\n") && several.contains("# CPU\r\n") && !several.contains("# Server"));
}

#[test]
fn hits_and_misses_are_counted_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    let counted = |client: &mut Client| -> Vec<u64> {
        let text = client.ask(&["INFO", "stats"]);
        let lines = text.lines().filter_map(|line| line.strip_prefix("keyspace_")?.split_once(':'));
        lines.filter_map(|(_, count)| count.parse().ok()).collect()
    };
    // On existing keys, then on missing ones.
    let fill = "SET str 1;RPUSH lst a b c d;SADD set a b c d;HSET hsh a 1 b 2;ZADD zst 1 a 2 b;GEOADD geo 1 1 a;\
                PFADD hll a;XADD stm 1-1 a b";
    let commands = "GET str;MGET str lst;GETRANGE str 0 1;SUBSTR str 0 1;STRLEN str;GETBIT str 1;BITCOUNT str;\
                    BITPOS str 1;BITFIELD str GET u8 0;BITFIELD_RO str GET u8 0;BITOP AND dst str;LCS str str;\
                    GETEX str;SET str 2 GET;SET str 2 XX;GETSET str 3;INCR str;APPEND str 1;EXISTS str lst;TYPE str;\
                    TTL str;EXPIRE str 100;PERSIST str;TOUCH str;DUMP str;COPY str cpy;OBJECT ENCODING str;\
                    MEMORY USAGE str;LLEN lst;LINDEX lst 0;LRANGE lst 0 1;LPOS lst a;LSET lst 0 a;LREM lst 1 z;\
                    LMOVE lst ls2 LEFT LEFT;RPOPLPUSH lst ls2;LPOP lst;LMPOP 1 lst LEFT;SORT set ALPHA;SCARD set;\
                    SISMEMBER set a;SMISMEMBER set a b;SMEMBERS set;SRANDMEMBER set;SMOVE set st2 a;SMOVE set st2 a;\
                    SMOVE set st2 b;SINTER set st2;SUNIONSTORE st3 set st2;SINTERCARD 1 set;SPOP set;SPOP set 0;\
                    HGET hsh a;HMGET hsh a z;HGETALL hsh;HLEN hsh;HINCRBY hsh a 1;HSETNX hsh a 1;HDEL hsh a;\
                    HRANDFIELD hsh;HSCAN hsh 0;ZSCORE zst a;ZRANK zst a;ZRANGE zst 0 1;ZCOUNT zst 0 1;ZUNION 1 zst;\
                    ZRANGESTORE zs2 zst 0 1;ZINCRBY zst 1 a;ZPOPMIN zst;ZMPOP 1 zst MIN;ZMSCORE zst a;GEOPOS geo a;\
                    GEOSEARCH geo FROMLONLAT 1 1 BYRADIUS 1 m;GEODIST geo a a;PFCOUNT hll;PFMERGE hl2 hll;XLEN stm;\
                    XRANGE stm - +;XREAD STREAMS stm 0;XDEL stm 1-1;MOVE hll 3;RENAME str str2;GETDEL str2;UNLINK lst;DEL set";
    for client in [&mut theirs, &mut own] {
        fill.split(';').for_each(|command| drop(client.ask(&command.split(' ').collect::<Vec<_>>())));
    }
    for _ in 0..2 {
        for command in commands.split(';').map(str::trim) {
            let words: Vec<&str> = command.split(' ').collect();
            for client in [&mut theirs, &mut own] {
                client.ask(&["CONFIG", "RESETSTAT"]);
                client.ask(&words);
            }
            assert_eq!(counted(&mut own), counted(&mut theirs), "{command}");
        }
        for client in [&mut theirs, &mut own] {
            client.ask(&["FLUSHALL"]);
        }
    }
}

#[test]
fn clients_are_listed_as_they_are_asked_for() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let mut all = Vec::new();
    for address in [redis.address(), ours.address()] {
        let [mut first, mut second] = [Client::connect(&address), Client::connect(&address)];
        let ids = [&mut first, &mut second]
            .map(|client| client.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned());
        first.ask(&["CLIENT", "SETNAME", "first"]);
        second.ask(&["CLIENT", "SETNAME", "second"]);
        let shown = |client: &mut Client, ids: &[&str]| -> Vec<String> {
            let words: Vec<&str> = ["CLIENT", "LIST", "ID"].into_iter().chain(ids.iter().copied()).collect();
            let reply = client.ask(&words);
            let lines = reply.lines().filter(|line| line.contains("addr="));
            let field = |line: &str, name: &str| {
                line.split(' ').find(|field| field.starts_with(name)).unwrap_or_default().to_owned()
            };
            let fields = ["name=", "cmd=", "flags=", "multi="];
            lines.map(|line| fields.map(|name| field(line, name)).join(" ")).collect()
        };
        all.push(shown(&mut first, &[&ids[1], &ids[0], "999999", &ids[1]]));
        // A refused command also counts as the last command.
        for words in [&["NOSUCH"][..], &["CLIENT", "NOSUCH"], &["GET"], &["CONFIG", "GET"]] {
            second.ask(words);
            all.push(shown(&mut first, &[&ids[1]]));
        }
        // Changes of a client's watched keys by others show while the client is idle.
        second.ask(&["WATCH", "k"]);
        second.ask(&["MULTI"]);
        all.push(shown(&mut first, &[&ids[1]]));
        first.ask(&["SET", "k", "v"]);
        all.push(shown(&mut first, &[&ids[1]]));
        second.ask(&["EXEC"]);
        all.push(shown(&mut first, &[&ids[1]]));
    }
    let (theirs, own) = all.split_at(all.len() / 2);
    assert_eq!(own, theirs);
    assert_eq!(own[0].len(), 3);
}

#[test]
fn info_tells_the_average_time_to_live() {
    let clock = sluicegate_store::ManualClock::new(1_000_000);
    let store =
        Store::new(StoreOptions { clock: sluicegate_store::Clock::Manual(clock.clone()), ..Default::default() });
    let ours = Running::serving(store, ServerOptions::default(), 1);
    let mut client = ours.connect();
    let shown = |client: &mut Client, index: u32| -> String {
        let text = client.ask(&["INFO", "keyspace"]);
        let line = text.lines().find(|line| line.starts_with(&format!("db{index}:"))).unwrap_or_default();
        line.trim_end_matches(",subexpiry=0").to_owned()
    };
    client.ask(&["SET", "lasting", "1"]);
    assert_eq!(shown(&mut client, 0), "db0:keys=1,expires=0,avg_ttl=0");
    client.ask(&["SELECT", "3"]);
    for (key, time_ms) in [("a", "1000"), ("b", "2000"), ("c", "9000")] {
        client.ask(&["SET", key, "1", "PX", time_ms]);
    }
    assert_eq!(shown(&mut client, 3), "db3:keys=3,expires=3,avg_ttl=4000");
    clock.advance(500);
    assert_eq!(shown(&mut client, 3), "db3:keys=3,expires=3,avg_ttl=3500");
}

#[test]
fn a_client_may_leave_accesses_unnoted() {
    let clock = sluicegate_store::ManualClock::new(1_000_000);
    let store =
        Store::new(StoreOptions { clock: sluicegate_store::Clock::Manual(clock.clone()), ..Default::default() });
    let ours = Running::serving(store, ServerOptions::default(), 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["CLIENT", "NO-TOUCH", "maybe"]), "-ERR syntax error\r\n");
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(client.ask(&["CLIENT", "NO-TOUCH", "on"]), "+OK\r\n");
    assert!(client.ask(&["CLIENT", "INFO"]).contains(" flags=T "));
    clock.advance(100_000);
    assert_eq!(client.ask(&["GET", "k"]), "$1\r\nv\r\n");
    assert_eq!(client.ask(&["OBJECT", "IDLETIME", "k"]), ":100\r\n");
    assert_eq!(client.ask(&["TOUCH", "k"]), ":1\r\n");
    assert_eq!(client.ask(&["OBJECT", "IDLETIME", "k"]), ":0\r\n");
    clock.advance(100_000);
    assert_eq!(client.ask(&["CLIENT", "NO-TOUCH", "off"]), "+OK\r\n");
    assert_eq!(client.ask(&["GET", "k"]), "$1\r\nv\r\n");
    assert_eq!(client.ask(&["OBJECT", "IDLETIME", "k"]), ":0\r\n");
}

#[test]
fn accesses_are_noted_as_the_client_of_the_command_wants_whoever_runs_it() {
    let clock = sluicegate_store::ManualClock::new(1_000_000);
    let store =
        Store::new(StoreOptions { clock: sluicegate_store::Clock::Manual(clock.clone()), ..Default::default() });
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let (mut silent, mut plain) = (ours.connect(), ours.connect());
    assert_eq!(silent.ask(&["CLIENT", "NO-TOUCH", "on"]), "+OK\r\n");
    // Long enough to be read aside.
    let members: Vec<String> = (0..30_000).map(|number| format!("member:{number}")).collect();
    let words: Vec<&str> = ["SADD", "large"].into_iter().chain(members.iter().map(String::as_str)).collect();
    plain.command(&words);
    assert_eq!(plain.read_reply(), b":30000\r\n");
    assert_eq!(plain.ask(&["SET", "held", "1"]), "+OK\r\n");
    assert_eq!(plain.ask(&["XADD", "stream", "1-1", "a", "1"]), "$3\r\n1-1\r\n");
    let mut idle = |key: &str| plain.ask(&["OBJECT", "IDLETIME", key]);
    clock.advance(100_000);
    // A command that parks is executed by the thread that passes the key on.
    let section = on_runtime(store.section([(0, &b"held"[..], Mode::Exclusive)])).expect("nobody else holds it");
    silent.command(&["GET", "held"]);
    wait_for("it to wait", || (store.stats().tickets == 2).then_some(()));
    section.finish();
    assert_eq!(silent.read_reply(), b"$1\r\n1\r\n");
    assert_eq!(idle("held"), ":100\r\n");
    // A command that is executed aside.
    silent.command(&["SMEMBERS", "large"]);
    assert!(silent.read_reply().starts_with(b"*30000\r\n"));
    assert_eq!(idle("large"), ":100\r\n");
    // A command in a script, and in a transaction.
    assert_eq!(silent.ask(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "held"]), "$1\r\n1\r\n");
    for command in [&["MULTI"][..], &["GET", "held"], &["EXEC"]] {
        silent.ask(command);
    }
    assert_eq!(idle("held"), ":100\r\n");
    // A command of another client that is served by this client's command.
    let mut reader = ours.connect();
    reader.command(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
    wait_for("it to block", || silent.ask(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
    assert_eq!(silent.ask(&["XADD", "stream", "2-1", "a", "2"]), "$3\r\n2-1\r\n");
    assert!(String::from_utf8_lossy(&reader.read_reply()).contains("2-1"));
    assert_eq!(idle("stream"), ":0\r\n");
}

#[test]
fn a_client_that_waits_says_for_which_key_and_who_has_it() {
    let store = Store::new(StoreOptions::default());
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let section = on_runtime(store.section([(0, &b"held key"[..], Mode::Exclusive)])).expect("nobody else holds it");
    let (mut waiting, mut other) = (ours.connect(), ours.connect());
    let id = waiting.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    let figure = |client: &mut Client, name: &str| -> u64 {
        let text = client.ask(&["INFO", "stats"]);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).expect("a figure");
        line.parse().expect("a number")
    };
    let parked = figure(&mut other, "sections_parked");
    let granted = figure(&mut other, "sections_granted");
    waiting.command(&["INCR", "held key"]);
    let line = wait_for("it to wait", || {
        let line = other.ask(&["CLIENT", "LIST", "ID", &id]);
        line.contains(" flags=b ").then_some(line)
    });
    assert!(line.contains(" wait-key=held\\x20key wait-db=0 wait-owner="), "{line}");
    assert_eq!(figure(&mut other, "sections_parked"), parked + 1);
    drop(section);
    assert_eq!(waiting.read_reply(), b":1\r\n");
    assert!(!other.ask(&["CLIENT", "LIST", "ID", &id]).contains("wait-key"));
    assert_eq!(figure(&mut other, "sections_granted"), granted + 1);
    assert_eq!(figure(&mut other, "sections_refused"), 0);
}

/// A parsed reply of RESP2.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
    Null,
    List(Vec<Value>),
}

impl Value {
    fn text(&self) -> &str {
        if let Value::Text(text) = self { text } else { "" }
    }

    fn is(&self, text: &str) -> bool {
        self.text() == text
    }
}

fn value(lines: &mut std::str::Split<'_, &str>) -> Value {
    let head = lines.next().expect("a line");
    let (kind, rest) = head.split_at(1);
    match kind {
        ":" => Value::Number(rest.parse().expect("a number")),
        "$" if rest == "-1" => Value::Null,
        "$" => Value::Text(lines.next().expect("text").to_owned()),
        "*" if rest == "-1" => Value::Null,
        "*" => Value::List((0..rest.parse().expect("a number")).map(|_| value(lines)).collect()),
        _ => Value::Text(head.to_owned()),
    }
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(values) => values,
        other => panic!("no list: {other:?}"),
    }
}

/// Returns the rows of COMMAND by name, including those of containers.
fn rows(client: &mut Client) -> BTreeMap<String, Value> {
    fn add(row: &Value, all: &mut BTreeMap<String, Value>) {
        let [Value::Text(name), rest @ .., subcommands] = list(row) else { panic!("a row: {row:?}") };
        let mut rest = rest.to_vec();
        // Notes are sentences, which belong to Redis.
        if let Some(Value::List(specs)) = rest.last_mut() {
            for spec in specs {
                if let Value::List(fields) = spec
                    && fields.first() == Some(&Value::Text("notes".into()))
                {
                    fields.drain(..2);
                }
            }
        }
        all.insert(name.clone(), Value::List(rest));
        list(subcommands).iter().for_each(|row| add(row, all));
    }
    let reply = client.ask(&["COMMAND"]);
    let mut all = BTreeMap::new();
    list(&value(&mut reply.split("\r\n"))).iter().for_each(|row| add(row, &mut all));
    all
}

/// Commands of which Valkey says something else than Redis 7.2.
const VALKEYS_OWN: &[&str] = &[
    "cluster|info",
    "cluster|myid",
    "cluster|myshardid",
    "cluster|nodes",
    "exec",
    "memory|malloc-stats",
    "memory|purge",
    "multi",
    "sinterstore",
    "watch",
];

#[test]
fn command_says_what_redis_says_of_every_command_that_both_have() {
    let redis = RedisServer::start_valkey("8.1", &[]);
    let ours = Running::start();
    let (theirs, own) = (rows(&mut Client::connect(&redis.address())), rows(&mut ours.connect()));
    let mut differences = String::new();
    let mut both = 0;
    for (name, row) in &own {
        let Some(expected) = theirs.get(name) else { continue };
        both += 1;
        for (at, what) in ["arity", "flags", "first", "last", "step", "categories", "tips", "keys"].iter().enumerate() {
            // These commands have an additional option in this store.
            if *what == "arity" && ["script|kill", "function|kill"].contains(&name.as_str()) {
                continue;
            }
            if ["flags", "tips", "keys"].contains(what) && VALKEYS_OWN.contains(&name.as_str()) {
                continue;
            }
            if list(row)[at] != list(expected)[at] {
                differences +=
                    &format!("{name} {what}\n  redis: {:?}\n  ours:  {:?}\n", list(expected)[at], list(row)[at]);
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(both > 150, "{both}");
}

#[test]
fn keys_are_found_with_what_is_done_to_them() {
    let redis = RedisServer::start_valkey("8.1", &[]);
    let ours = Running::start();
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    for command in [
        "set k v",
        "set k v get",
        "SET k v EX 10 GET",
        "get",
        "get k",
        "mset a 1 b 2",
        "ping a",
        "nosuch a",
        "sort k store d",
        "sort k by x get y",
        "bitop and d a b",
        "bitfield k get u8 0",
        "bitfield k set u8 0 1",
        "bitfield k get u8 0 incrby u8 0 1",
        "copy a b",
        "rename a b",
        "del a b c",
        "zunionstore d 2 a b weights 1 2",
        "zunionstore d 9 a",
        "object encoding k",
        "expire k 1",
    ] {
        for verb in ["GETKEYS", "GETKEYSANDFLAGS"] {
            let words: Vec<&str> = ["COMMAND", verb].into_iter().chain(command.split(' ')).collect();
            assert_eq!(own.ask(&words), theirs.ask(&words), "{verb} {command}");
        }
    }
}

/// What 7.0 does not have: newer commands, and Dragonfly's.
const NEWER_ARGUMENTS: &[&str] = &["hscan", "restore", "set", "zrank", "zrevrank"];

fn arguments_differ(
    name: &str,
    expected: &BTreeMap<String, Value>,
    found: &BTreeMap<String, Value>,
    differences: &mut String,
) {
    // This store does not say since when an argument exists; the text shown for an argument is its name, which 7.0 does
    // not give.
    fn bare(arguments: &Value) -> Vec<Vec<(Value, Value)>> {
        let unsaid = ["since", "deprecated_since", "display_text", "summary"];
        let one = |argument: &Value| {
            let fields = list(argument).chunks(2).filter(|pair| !unsaid.iter().any(|name| pair[0].is(name)));
            fields
                .map(|pair| match pair[0].is("arguments") {
                    true => (pair[0].clone(), Value::Text(format!("{:?}", bare(&pair[1])))),
                    false => (pair[0].clone(), pair[1].clone()),
                })
                .collect()
        };
        list(arguments).iter().map(one).collect()
    }
    if let Some(expected) = expected.get("arguments") {
        let (expected, mut found) = (bare(expected), found.get("arguments").map(bare).unwrap_or_default());
        if NEWER_ARGUMENTS.contains(&name) {
            found.pop();
        }
        // MAXAGE is within another argument, and a category was renamed.
        if expected != found && !["acl|cat", "client|kill"].contains(&name) {
            *differences += &format!("{name} arguments: redis {expected:?}, ours {found:?}\n");
        }
    }
    let theirs = of_container(expected);
    for (name, found) in of_container(found) {
        if let Some(expected) = theirs.get(&name) {
            arguments_differ(&name, expected, &found, differences);
        }
    }
}

/// Returns the documentation of a container's commands by name.
fn of_container(docs: &BTreeMap<String, Value>) -> BTreeMap<String, BTreeMap<String, Value>> {
    let pairs = docs.get("subcommands").map(list).unwrap_or_default().chunks(2);
    pairs.map(|pair| (pair[0].text().to_owned(), fields(&pair[1]))).collect()
}

/// Compares the versions since which a command exists, and its replacement.
fn facts_differ(
    name: &str,
    expected: &BTreeMap<String, Value>,
    found: &BTreeMap<String, Value>,
    differences: &mut String,
) {
    for field in ["since", "group", "doc_flags", "deprecated_since", "replaced_by"] {
        // Redis has no documentation for features of this store alone.
        if !expected.is_empty() && found.get(field) != expected.get(field) {
            *differences += &format!("{name} {field}: redis {:?}, ours {:?}\n", expected.get(field), found.get(field));
        }
    }
    let theirs = of_container(expected);
    for (name, found) in of_container(found) {
        facts_differ(&name, theirs.get(&name).unwrap_or(&BTreeMap::new()), &found, differences);
    }
}

/// Returns a map's fields by name.
fn fields(map: &Value) -> BTreeMap<String, Value> {
    list(map).chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].clone())).collect()
}

#[test]
fn documentation_has_the_facts_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let docs = |client: &mut Client, name: &str| -> BTreeMap<String, Value> {
        let reply = client.ask(&["COMMAND", "DOCS", name]);
        let all = value(&mut reply.split("\r\n"));
        let [_, documented] = list(&all) else { return BTreeMap::new() };
        fields(documented)
    };
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    let names: Vec<String> = rows(&mut own).into_keys().filter(|name| !name.contains('|')).collect();
    let mut differences = String::new();
    for name in names {
        let (expected, found) = (docs(&mut theirs, &name), docs(&mut own, &name));
        facts_differ(&name, &expected, &found, &mut differences);
        arguments_differ(&name, &expected, &found, &mut differences);
    }
    assert!(differences.is_empty(), "{differences}");
}
