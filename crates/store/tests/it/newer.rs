//! Behaviour of Redis 7.2 and later that Debian's redis-server 7.0 does not have, compared with Valkey 8.1.

use std::io::Write;

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike;
use crate::support::Running;

/// Starts a Valkey for one test.
fn valkey() -> RedisServer {
    RedisServer::start_valkey("8.1", &["--enable-debug-command", "yes"])
}

/// Returns what the clients of a server get in a scenario, line by line: `1 COMMAND` sends a command of client 1 and
/// reads the reply, `1< COMMAND` sends a command that blocks, `1>` reads a reply, `1!` reports that none has come.
fn transcript(address: &str, scenario: &str) -> Vec<String> {
    let mut control = Client::connect(address);
    control.ask(&["FLUSHALL"]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(address)).collect();
    let (mut waiting, mut replies) = (0, Vec::new());
    for line in scenario.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let client = usize::from(line.as_bytes()[0] - b'0');
        let (how, command) = (&line[1..2], line[2..].trim());
        let client = &mut clients[client];
        match how {
            "<" => {
                client.send(format!("{command}\r\n"));
                waiting += 1;
                let blocked = format!("blocked_clients:{waiting}\r\n");
                wait_for("a blocked client", || control.ask(&["INFO", "clients"]).contains(&blocked).then_some(()));
            }
            ">" => {
                waiting = usize::max(waiting, 1) - 1;
                replies.push(format!("{line} {}", client.read_reply().escape_ascii()));
            }
            _ => {
                client.send(format!("{}\r\n", &line[2..]));
                replies.push(format!("{line}: {}", client.read_reply().escape_ascii()));
            }
        }
    }
    replies
}

/// Compares the transcripts of scenarios on a store and on Valkey.
#[track_caller]
fn check(scenarios: &[&str]) {
    let (valkey, ours) = (valkey(), Running::with(debuggable(), 2));
    for scenario in scenarios {
        let expected = transcript(&valkey.address(), scenario);
        assert_eq!(transcript(&ours.address(), scenario), expected, "ours, then Valkey's, in: {scenario}");
    }
}

fn debuggable() -> ServerOptions {
    ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() }
}

/// Compares the replies to requests, each on a connection of its own.
#[track_caller]
fn check_replies(requests: &[&str]) {
    check_alike(requests, &valkey(), &Running::with(debuggable(), 1));
}

#[test]
fn a_reader_of_streams_is_woken_in_every_database_however_the_stream_comes_about() {
    let ways = [
        "2 XADD s 1-1 a 1",
        "2 XADD t 1-1 a 1\n2 COPY t s",
        "2 XADD t 1-1 a 1\n2 RENAME t s",
        "3 SELECT 9\n3 XADD s 1-1 a 1\n3 MOVE s 2",
        "3 SELECT 9\n3 XADD s 1-1 a 1\n3 COPY s s DB 2",
        "3 SELECT 9\n3 XADD s 1-1 a 1\n3 SWAPDB 9 2",
        "2 MULTI\n2 XADD s 1-1 a 1\n2 EXEC",
        "2 EVAL \"redis.call('xadd', 's', '1-1', 'a', '1')\" 1 s",
        "2 FUNCTION LOAD REPLACE \"#!lua name=l\\nredis.register_function('f', function(k) \
         redis.call('xadd', k[1], '1-1', 'a', '1') end)\"\n2 FCALL f 1 s",
    ];
    let readers = ["XREAD BLOCK 0 STREAMS s $", "XREAD COUNT 1 BLOCK 0 STREAMS nothing s 0 0"];
    for way in ways {
        let scenarios = readers.map(|reader| format!("1 SELECT 2\n2 SELECT 2\n1< {reader}\n{way}\n1>"));
        check(&scenarios.each_ref().map(String::as_str));
    }
}

#[test]
fn clients_that_wait_in_another_database_are_woken_by_what_comes_from_elsewhere() {
    let waits = [("BLPOP k 0", "RPUSH"), ("BLMOVE k to LEFT LEFT 0", "RPUSH"), ("BZPOPMIN k 0", "ZADD 1")];
    for (wait, fill) in waits {
        let (name, score) = fill.split_once(' ').unwrap_or((fill, ""));
        let scenarios = [
            format!("1 SELECT 5\n2 SELECT 6\n1< {wait}\n2 {name} k {score} x\n2 MOVE k 5\n1>"),
            format!("1 SELECT 5\n2 SELECT 6\n1< {wait}\n2 {name} k {score} x\n2 SWAPDB 6 5\n1>"),
            format!("1 SELECT 5\n2 SELECT 6\n1< {wait}\n2 {name} j {score} x\n2 COPY j k DB 5\n1>"),
        ];
        check(&scenarios.each_ref().map(String::as_str));
    }
    check(&["1 SELECT 3\n2 SELECT 3\n1< BLPOP k 0\n2 SADD s b a\n2 SORT s ALPHA STORE k\n1>\n2 LRANGE k 0 -1"]);
}

#[test]
fn messages_of_a_transaction_reach_who_listened_when_they_were_published() {
    let sequences = [
        "HELLO 3\nSUBSCRIBE foo\nMULTI\nPUBLISH foo one\nUNSUBSCRIBE foo\nPUBLISH foo two\nEXEC",
        "HELLO 3\nMULTI\nSUBSCRIBE foo\nPUBLISH foo one\nUNSUBSCRIBE foo\nPUBLISH foo two\nEXEC",
        "HELLO 3\nMULTI\nPUBLISH foo zero\nSUBSCRIBE foo\nPUBLISH foo one\nEXEC\nPUBLISH foo two",
        "HELLO 3\nMULTI\nPUBLISH foo a\nPSUBSCRIBE f*\nPUBLISH foo b\nPUNSUBSCRIBE f*\nPUBLISH foo c\nEXEC",
        "HELLO 3\nSSUBSCRIBE foo\nMULTI\nSPUBLISH foo one\nSUNSUBSCRIBE foo\nSPUBLISH foo two\nEXEC",
        "HELLO 3\nSUBSCRIBE foo\nMULTI\nPUBLISH foo one\nUNSUBSCRIBE\nEXEC",
        "HELLO 3\nSUBSCRIBE foo\nPSUBSCRIBE f*\nMULTI\nPUBLISH foo a\nUNSUBSCRIBE foo\nPUBLISH foo b\nPUNSUBSCRIBE\nEXEC",
        "HELLO 3\nSUBSCRIBE foo\nMULTI\nFLUSHALL\nPUBLISH foo one\nUNSUBSCRIBE foo\nPUBLISH foo two\nEXEC",
        "HELLO 3\nSUBSCRIBE foo\nMULTI\nEVAL \"redis.call('publish', 'foo', 'one') return 1\" 0\nUNSUBSCRIBE foo\nEXEC",
        "HELLO 3\nSUBSCRIBE foo\nCLIENT REPLY OFF\nMULTI\nPUBLISH foo one\nUNSUBSCRIBE foo\nEXEC\nCLIENT REPLY ON",
        "MULTI\nSUBSCRIBE foo\nPUBLISH foo one\nUNSUBSCRIBE foo\nEXEC",
        "MULTI\nPUBLISH foo one\nSUBSCRIBE foo\nEXEC",
        "CONFIG SET notify-keyspace-events KEA\nHELLO 3\nSUBSCRIBE __keyspace@0__:k\nMULTI\nSET k v\n\
         UNSUBSCRIBE __keyspace@0__:k\nSET k w\nEXEC\nCONFIG SET notify-keyspace-events \"\"",
    ];
    let (valkey, ours) = (valkey(), Running::start());
    for sequence in sequences {
        // HELLO's reply names the program.
        let replies = |address: &str| {
            let mut client = Client::connect(address);
            let greets = sequence.starts_with("HELLO 3\n");
            if greets {
                client.ask(&["HELLO", "3"]);
            }
            let rest = sequence.strip_prefix("HELLO 3\n").unwrap_or(sequence).replace("HELLO 3\n", "");
            client.send(rest.replace('\n', "\r\n") + "\r\n");
            client.finish();
            client.read_to_end().escape_ascii().to_string()
        };
        assert_eq!(replies(&ours.address()), replies(&valkey.address()), "ours, then Valkey's, in: {sequence}");
    }
}

#[test]
fn blocking_commands_answer_at_once_in_scripts() {
    check_replies(&[
        "EVAL \"return redis.call('blpop', 'l', 0)\" 1 l\r\nEVAL \"return redis.call('brpop', 'l', 0)\" 1 l\r\n",
        "EVAL \"return redis.call('bzpopmin', 'l', 0)\" 1 l\r\nEVAL \"return redis.call('bzpopmax', 'l', 0)\" 1 l\r\n",
        "EVAL \"return redis.call('blmove', 'l', 'm', 'left', 'left', 0)\" 2 l m\r\n",
        "EVAL \"return redis.call('brpoplpush', 'l', 'm', 0)\" 2 l m\r\n",
        "EVAL \"redis.call('rpush', 'k', 'x') return redis.call('blpop', 'k', 0)\" 1 k\r\n",
        "EVAL \"return redis.call('wait', 1, 0)\" 0\r\nEVAL \"return redis.call('wait', 'x', 0)\" 0\r\n",
        "EVAL \"return redis.call('waitaof', 0, 1, 0)\" 0\r\nEVAL \"return redis.call('waitaof', 1, 1, 0)\" 0\r\n",
        "EVAL \"return redis.call('xread', 'block', 0, 'streams', 's', '$')\" 1 s\r\n",
        "EVAL \"redis.call('xadd', 's', '1-1', 'a', 1) return redis.call('xread', 'block', 0, 'streams', 's', '0')\" \
         1 s\r\n",
        "EVAL_RO \"return redis.call('blpop', 'l', 0)\" 1 l\r\n",
        "EVAL \"return redis.call('script', 'help')[1]\" 0\r\n",
        "COMMAND INFO blpop brpop blmove brpoplpush bzpopmin bzpopmax wait waitaof\r\n",
    ]);
}

#[test]
fn a_set_is_sorted_for_a_script_whatever_it_asks_for() {
    let sort = |words: &str| format!("EVAL \"return redis.call('sort', 's', {words})\" 1 s\r\n");
    let read = |words: &str| format!("EVAL \"return redis.call('sort_ro', 's', {words})\" 1 s\r\n");
    let mut requests = "DEL s\r\nSADD s b a aa c ccc 10 2\r\n".to_owned();
    for words in ["'by', '_'", "'by', '_', 'desc'", "'by', '_', 'limit', 1, 2", "'by', '_', 'get', '#', 'get', 'w_*'"] {
        requests += &(sort(words) + &read(words));
    }
    check_replies(&[&requests]);
}

#[test]
fn time_stands_still_in_scripts_and_transactions() {
    let ours = Running::with(debuggable(), 1);
    let mut client = ours.connect();
    let script = "local a = redis.call('time') local t = redis.call('time') for i = 1, 300000 do end \
                  t = redis.call('time') return {a[1] == t[1] and a[2] == t[2], a[2]}";
    let reply = client.ask(&["EVAL", script, "0"]);
    assert!(reply.starts_with("*2\r\n:1\r\n"), "{reply}");
    for between in ["DEBUG SLEEP 0.002", "FLUSHALL", "SET k v"] {
        client.ask(&["MULTI"]);
        for command in ["TIME", between, "TIME"] {
            client.ask(&command.split(' ').collect::<Vec<_>>());
        }
        let reply = client.ask(&["EXEC"]);
        let times: Vec<&str> = reply.split("*2\r\n").skip(1).collect();
        assert_eq!(times[0].strip_suffix("+OK\r\n"), Some(times[1]), "{between}: {reply}");
    }
}

#[test]
fn several_keys_that_are_filled_at_once_serve_a_client_by_the_first_that_it_names() {
    let fills = [
        ("BLPOP a b 0", ["RPUSH b 1", "RPUSH a 2"]),
        ("BRPOP a b c 0", ["RPUSH c 1", "RPUSH b 2"]),
        ("BLMPOP 0 2 a b LEFT", ["RPUSH b 1", "RPUSH a 2"]),
        ("BZPOPMIN a b 0", ["ZADD b 1 x", "ZADD a 2 y"]),
        ("BZMPOP 0 2 a b MAX", ["ZADD b 1 x", "ZADD a 2 y"]),
        ("BLPOP b a 0", ["RPUSH b 1", "RPUSH a 2"]),
        ("XREAD BLOCK 0 STREAMS a b $ $", ["XADD b 1-1 x 1", "XADD a 2-1 y 2"]),
        ("XREAD COUNT 1 BLOCK 0 STREAMS b a a 0 0 0", ["XADD a 1-1 x 1", "XADD b 2-1 y 2"]),
    ];
    for (wait, [first, second]) in fills {
        let quoted = |command: &str| format!("'{}'", command.replace(' ', "','"));
        let script = format!("redis.call({}) redis.call({})", quoted(first), quoted(second));
        check(&[
            &format!("1< {wait}\n2< {wait}\n3 MULTI\n3 {first}\n3 {second}\n3 EXEC\n1>\n2>"),
            &format!("1< {wait}\n2< {wait}\n3 EVAL \"{script}\" 2 a b\n1>\n2>"),
            &format!("1< {wait}\n2< {wait}\n3 {first}\n1>\n3 {second}\n2>"),
        ]);
    }
}

#[test]
fn a_stream_is_read_from_its_last_entry_by_a_plus() {
    check_replies(&[
        "DEL s e\r\nXADD s 1-1 a 1\r\nXADD s 2-1 b 2\r\nXREAD STREAMS s +\r\nXREAD COUNT 5 STREAMS s none + +\r\n\
         XREAD STREAMS none +\r\nXDEL s 2-1\r\nXREAD STREAMS s +\r\n\
         XADD e 1-1 a 1\r\nXDEL e 1-1\r\nXREAD STREAMS e +\r\nXREAD STREAMS s s 0\r\nXREAD BLOCK 5 STREAMS s s 0\r\n",
        "DEL s\r\nXADD s 1-1 a 1\r\nXADD s 2-1 a 1\r\nXSETID s 5-1 ENTRIESADDED 10 MAXDELETEDID 3-1\r\nXDEL s 2-1\r\n\
         XSETID s 1-5\r\nXSETID s 3-1\r\n",
    ]);
    check(&["1< XREAD BLOCK 0 STREAMS s +\n3 MULTI\n3 XADD s 1-1 a 1\n3 XADD s 2-1 b 2\n3 EXEC\n1>"]);
}

#[test]
fn arguments_are_checked_before_the_key() {
    check_replies(&[
        "DEL l k\r\nRPUSH l a\r\nSET k abc\r\nBITCOUNT nokey a b\r\nBITCOUNT nokey 0 b\r\nBITCOUNT nokey 0 1 x\r\n\
         BITCOUNT nokey 0 b x\r\nBITCOUNT k -1 -2 x\r\nBITCOUNT k -1 -2\r\nBITCOUNT l a b\r\nBITCOUNT l 0 1\r\n",
        "BITPOS nokey 0 1 x y\r\nBITPOS nokey 0 1 2 y\r\nBITPOS nokey 2\r\nBITPOS nokey 1 x\r\nBITPOS l 1 x\r\n\
         BITPOS nokey 1 1 1 1 1\r\nBITPOS k 0 1 2 bit\r\n",
        "SET k abc\r\nSCAN -1\r\nSCAN abc\r\nSCAN \"\"\r\nSCAN \"1 \"\r\nSCAN 18446744073709551616\r\nSSCAN nokey -1\r\n\
         HSCAN nokey -1\r\nZSCAN nokey -1\r\nSSCAN k -1\r\n",
        "HSCAN nokey 0 NOVALUES\r\nDEL h\r\nHSET h f v\r\nHSCAN h 0 NOVALUES\r\nHSCAN h 0 COUNT 5 NOVALUES\r\n\
         SSCAN nokey 0 NOVALUES\r\n",
        "COMMAND GETKEYS PING\r\nCOMMAND GETKEYS SET\r\nCOMMAND GETKEYS\r\nCOMMAND GETKEYS NOSUCH\r\n\
         COMMAND GETKEYS CLIENT\r\nCOMMAND GETKEYSANDFLAGS SET\r\nCOMMAND GETKEYSANDFLAGS PING\r\n",
        "CONFIG|GET a\r\nconfig|get a b\r\nXINFO|GROUPS a\r\nACL|LIST\r\nCLIENT nosuch|x\r\n",
        "COMMAND INFO cluster|shards cluster|slots client|setname client|setinfo config|resetstat config|rewrite\r\n",
        "COMMAND INFO latency|reset msetnx randomkey scan command|getkeys command|getkeysandflags\r\n",
    ]);
    // Only Valkey accepts a start without an end.
    assert_eq!(Running::start().connect().ask(&["BITCOUNT", "none", "0"]), "-ERR syntax error\r\n");
}

#[test]
fn what_clients_ask_of_users_modules_and_snapshots_is_answered() {
    check_replies(&[
        "ACL WHOAMI\r\nACL USERS\r\nACL LIST\r\nACL GETUSER default\r\nACL GETUSER nosuch\r\nACL CAT\r\nACL CAT x\r\n",
        "ACL CAT a b\r\nACL\r\nACL NOSUCH\r\nMODULE LIST\r\nMODULE\r\nMODULE NOSUCH\r\n",
        "MULTI\r\nACL WHOAMI\r\nMODULE LIST\r\nEXEC\r\nEVAL \"return redis.call('acl', 'whoami')\" 0\r\n",
        "COMMAND INFO acl|cat acl|getuser acl|help acl|list acl|users acl|whoami module|help module|list lastsave\r\n",
    ]);
    let ours = Running::with(ServerOptions { requirepass: b"foo".to_vec(), ..ServerOptions::default() }, 1);
    let mut client = ours.connect();
    client.ask(&["AUTH", "foo"]);
    let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    let rules = format!("user default on sanitize-payload #{digest} ~* &* +@all");
    assert_eq!(client.ask(&["ACL", "LIST"]), format!("*1\r\n${}\r\n{rules}\r\n", rules.len()));
    let user = client.ask(&["ACL", "GETUSER", "default"]);
    assert!(user.contains(digest) && !user.contains("nopass"), "{user}");
    assert!(client.ask(&["ACL", "CAT", "transaction"]).starts_with("*5\r\n"));
    assert!(client.ask(&["ACL", "HELP"]).contains("WHOAMI"));
    assert!(client.ask(&["MODULE", "HELP"]).contains("LIST"));
    assert_eq!(
        client.ask(&["MODULE", "LOAD", "x"]),
        "-ERR unknown subcommand 'LOAD' of MODULE: modules are not supported\r\n"
    );
    let saved = client.ask(&["LASTSAVE"]);
    let time = saved.trim_start_matches(':').trim_end();
    assert!(client.ask(&["INFO", "persistence"]).contains(&format!("rdb_last_save_time:{time}\r\n")));
}

#[test]
fn connections_are_ended_by_their_age() {
    check_replies(&[
        "CLIENT KILL MAXAGE 100000\r\nCLIENT KILL MAXAGE 0\r\nCLIENT KILL MAXAGE -1\r\nCLIENT KILL MAXAGE abc\r\n",
        "CLIENT KILL MAXAGE 100000 SKIPME no TYPE pubsub\r\nCLIENT KILL MAXAGE 1 MAXAGE\r\n",
    ]);
    let ours = Running::start();
    let (mut old, mut client) = (ours.connect(), ours.connect());
    old.ask(&["PING"]);
    wait_for("a client of a second", || client.ask(&["CLIENT", "LIST"]).contains(" age=1 ").then_some(()));
    let mut young = ours.connect();
    young.ask(&["CLIENT", "SETNAME", "young"]);
    assert_eq!(client.ask(&["CLIENT", "KILL", "MAXAGE", "1", "SKIPME", "yes"]), ":1\r\n");
    assert_eq!(old.read_to_end(), b"");
    assert!(young.ask(&["CLIENT", "GETNAME"]).contains("young"));
}

#[test]
fn figures_tell_who_watches_waits_and_listens() {
    let ours = Running::start();
    let mut clients: Vec<Client> = (0..4).map(|_| ours.connect()).collect();
    let mut control = ours.connect();
    let mut figure = |name: &str| {
        let info = control.ask(&["INFO", "everything"]);
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name} is missing")).to_owned()
    };
    let names =
        ["watching_clients", "total_watched_keys", "total_blocking_keys", "pubsub_clients", "clients_in_timeout_table"];
    for name in names.iter().chain(&["total_blocking_keys_on_nokey", "evicted_scripts", "lazyfree_pending_objects"]) {
        assert_eq!(figure(name), "0", "{name}");
    }
    clients[0].ask(&["WATCH", "a", "b", "a"]);
    clients[1].ask(&["WATCH", "b"]);
    clients[2].send("BLPOP k l m 1000\r\n");
    clients[3].ask(&["SUBSCRIBE", "c"]);
    wait_for("a blocked client", || (figure("blocked_clients") == "1").then_some(()));
    assert_eq!(names.map(&mut figure), ["2", "2", "3", "1", "1"]);
    let own = clients[0].ask(&["CLIENT", "INFO"]);
    assert!(own.contains(" watch=2 "), "{own}");
    clients[0].ask(&["UNWATCH"]);
    assert_eq!(figure("watching_clients"), "1");
    assert!(clients[0].ask(&["CLIENT", "INFO"]).contains(" watch=0 "));
    // Fields that programs read are numbers.
    for name in [
        "rdb_changes_since_last_save",
        "lazyfreed_objects",
        "expired_stale_perc",
        "expired_time_cap_reached_count",
        "expire_cycle_cpu_milliseconds",
        "eventloop_cycles",
        "eventloop_duration_sum",
        "eventloop_duration_cmd_sum",
        "instantaneous_eventloop_cycles_per_sec",
        "instantaneous_eventloop_duration_usec",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
        "acl_access_denied_auth",
        "acl_access_denied_cmd",
        "dump_payload_sanitizations",
        "used_cpu_sys_main_thread",
        "used_cpu_user_main_thread",
        "client_query_buffer_limit_disconnections",
        "client_output_buffer_limit_disconnections",
    ] {
        let value = figure(name);
        assert!(value.parse::<f64>().is_ok(), "{name}:{value}");
    }
    assert_eq!(figure("listener0"), format!("name=tcp,bind=127.0.0.1,port={}", ours.port));
    assert_ne!((figure("gcc_version"), figure("atomicvar_api")), Default::default());
    assert_ne!(figure("eventloop_cycles"), "0");
}

#[test]
fn figures_count_fields_that_expire_wrong_passwords_and_clients_that_were_too_much() {
    let ours = Running::start();
    let mut client = ours.connect();
    for command in ["HSET h f v", "HSET i f v", "SET k v", "HEXPIRE h 1000 FIELDS 1 f"] {
        client.ask(&command.split(' ').collect::<Vec<_>>());
    }
    let has = |client: &mut Client, section: &str, line: &str| {
        let info = client.ask(&["INFO", section]);
        assert!(info.contains(line), "{line} in {info}");
    };
    has(&mut client, "keyspace", "db0:keys=3,expires=0,avg_ttl=0,subexpiry=1\r\n");
    client.ask(&["HPERSIST", "h", "FIELDS", "1", "f"]);
    has(&mut client, "keyspace", "subexpiry=0\r\n");
    has(&mut client, "persistence", "rdb_changes_since_last_save:5\r\n");
    client.ask(&["AUTH", "default", "wrong"]);
    client.ask(&["CONFIG", "SET", "requirepass", "right"]);
    client.ask(&["AUTH", "wrong"]);
    has(&mut client, "stats", "acl_access_denied_auth:1\r\n");
    client.ask(&["CONFIG", "SET", "requirepass", ""]);
    client.ask(&["CONFIG", "SET", "client-query-buffer-limit", "1048576"]);
    let greedy = ours.connect();
    let long = vec![b'x'; 2 << 20];
    // It may be closed before all is sent.
    let _ = greedy.stream().write_all(&[b"*2\r\n$4\r\nECHO\r\n$3145728\r\n", &long[..]].concat());
    wait_for("a connection that is closed", || {
        let info = client.ask(&["INFO", "stats"]);
        info.contains("client_query_buffer_limit_disconnections:1\r\n").then_some(())
    });
    client.ask(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 100 0 0"]);
    let mut slow = ours.connect();
    slow.ask(&["SUBSCRIBE", "c"]);
    client.ask(&["PUBLISH", "c", &"x".repeat(1000)]);
    wait_for("a subscriber that is closed", || {
        let info = client.ask(&["INFO", "stats"]);
        info.contains("client_output_buffer_limit_disconnections:1\r\n").then_some(())
    });
    client.ask(&["CONFIG", "RESETSTAT"]);
    has(&mut client, "stats", "client_output_buffer_limit_disconnections:0\r\n");
}

#[test]
fn hints_are_taken_at_run_time_and_what_somebody_may_rely_on_is_not() {
    let ours = Running::start();
    let mut client = ours.connect();
    for (name, value, shown) in [
        ("hz", "1000", "500"),
        ("dynamic-hz", "no", "no"),
        ("active-expire-effort", "5", "5"),
        ("lazyfree-lazy-user-del", "yes", "yes"),
        ("list-compress-depth", "2", "2"),
        ("maxmemory-samples", "20", "20"),
        ("activerehashing", "no", "no"),
        ("stop-writes-on-bgsave-error", "no", "no"),
        ("rdbcompression", "no", "no"),
        ("sanitize-dump-payload", "clients", "clients"),
        ("crash-log-enabled", "no", "no"),
        ("repl-ping-slave-period", "7", "7"),
        ("max-new-connections-per-cycle", "20", "20"),
        ("max-new-tls-connections-per-cycle", "5", "5"),
        ("hide-user-data-from-log", "yes", "yes"),
    ] {
        assert_eq!(client.ask(&["CONFIG", "SET", name, value]), "+OK\r\n", "{name}");
        let expected = format!("${}\r\n{shown}\r\n", shown.len());
        assert!(client.ask(&["CONFIG", "GET", name]).ends_with(&expected), "{name}");
    }
    for (name, value, why) in [
        ("tls-replication", "maybe", "argument must be 'yes' or 'no'"),
        ("min-replicas-to-write", "-1", "argument must be between 0 and 2147483647 inclusive"),
        ("cluster-enabled", "no", "can't set immutable config"),
        ("rdbchecksum", "yes", "can't set immutable config"),
        ("bio-cpulist", "1", "can't set immutable config"),
        ("hz", "x", "argument couldn't be parsed into an integer"),
    ] {
        let text = format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n");
        assert_eq!(client.ask(&["CONFIG", "SET", name, value]), text);
    }
    assert!(client.ask(&["CONFIG", "GET", "bio?cpulist"]).contains("bio_cpulist"));
}
