//! The RESP server: bytes as from redis-server 7.0, beginning and end of connections, real clients.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Clock, ManualClock, Mode, Store, StoreOptions};
use sluicegate_testkit::{Client, PATIENCE, RedisServer, descriptors, wait_for};

use crate::support::{Running, exchange, on_runtime};

/// Requests whose replies must be the same to the byte. Each runs on a connection of its own.
const ALIKE: &[&str] = &[
    // Framing.
    "PING\r\nPING\n*1\r\n$4\r\nPING\r\n",
    "\r\n\r\n*0\r\n*-1\r\nPING\r\n",
    "*1\r\n$4\r\nPINGxxPING\r\n",
    "SET k \"a\\x41\\n b\"\r\nGET k\r\nSET k 'it\\'s'\r\nGET k\r\nGET \"k\"\r\n",
    "GET \"k\r\nPING\r\n",
    "GET \"k\"x\r\n",
    "*x\r\n",
    "*\r\n",
    "*2147483648\r\n",
    "*1048577\r\n$4\r\nPING\r\n",
    "*1\r\nx\r\n",
    "*1\r\n\r\n",
    "*1\r\n$x\r\n",
    "*1\r\n$-1\r\n",
    "*1\r\n$536870913\r\n",
    "*2\r\n$3\r\nGET\r\n:1\r\n",
    "PING\r\n*1\r\n$4\r\nECHO\r\n*1\r\n!\r\nPING\r\n",
    // Unknown commands and numbers of words.
    "foo\r\n",
    "foo bar \"a\\nb\" baz\r\n",
    "\"a\\r\\nb\" x\r\n",
    "NOSUCH \"return 1\" 0 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
    "PING a b\r\nECHO\r\nECHO a b\r\nPING hello\r\nECHO hello\r\n",
    "CLIENT\r\nCLIENT FOO\r\nCLIENT ID x\r\nclient nosuch a b\r\n",
    "CONFIG\r\nCONFIG GET\r\nCONFIG FOO\r\nCONFIG SET maxclients\r\nCONFIG SET timeout 1 maxclients\r\n",
    "COMMAND FOO\r\nCOMMAND COUNT x\r\n",
    "SELECT\r\nSELECT 16\r\nSELECT -1\r\nSELECT x\r\nSELECT 15\r\nSELECT 99999999999\r\n",
    // HELLO and AUTH without a password.
    "HELLO 4\r\nHELLO x\r\nHELLO 2 AUTH a b\r\nHELLO 2 FOO\r\nHELLO 2 AUTH a\r\nHELLO 2 SETNAME \"a b\"\r\n",
    "AUTH x\r\nAUTH default x\r\nAUTH foo x\r\nAUTH a b c\r\nAUTH\r\n",
    "RESET\r\nRESET a\r\n",
    "QUIT\r\nPING\r\n",
    "QUIT a b\r\nPING\r\n",
    // CLIENT.
    "CLIENT GETNAME\r\nCLIENT SETNAME bob\r\nCLIENT GETNAME\r\nCLIENT SETNAME \"\"\r\nCLIENT GETNAME\r\n",
    "CLIENT SETNAME \"a\\nb\"\r\nCLIENT SETNAME bob\r\nRESET\r\nCLIENT GETNAME\r\n",
    "CLIENT KILL 1.2.3.4:5\r\nCLIENT KILL ID 44444\r\nCLIENT KILL ID x\r\nCLIENT KILL ID 0\r\nCLIENT KILL TYPE foo\r\n",
    "CLIENT KILL ADDR\r\nCLIENT KILL FOO bar\r\nCLIENT KILL USER foo\r\nCLIENT KILL SKIPME maybe\r\n",
    "CLIENT KILL TYPE replica SKIPME yes\r\nCLIENT KILL ADDR 1.2.3.4:5 LADDR 1.1.1.1:1\r\nCLIENT KILL ID 1 ADDR\r\n",
    "CLIENT LIST TYPE foo\r\nCLIENT LIST TYPE pubsub\r\nCLIENT LIST ID x\r\nCLIENT LIST ID 99999\r\nCLIENT LIST ID -1\r\nCLIENT LIST FOO\r\n",
    "CLIENT REPLY FOO\r\nCLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\n",
    "CLIENT REPLY SKIP\r\nGET\r\nPING\r\nCLIENT REPLY SKIP\r\nnosuch\r\nPING\r\nCLIENT REPLY OFF\r\nQUIT\r\n",
    "CLIENT REPLY OFF\r\n*x\r\n",
    "CLIENT REPLY OFF\r\nCLIENT REPLY SKIP\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\n",
    "CLIENT NO-EVICT foo\r\nCLIENT NO-EVICT on\r\nCLIENT NO-EVICT off\r\n",
    "CLIENT PAUSE x\r\nCLIENT PAUSE -1\r\nCLIENT PAUSE 1 FOO\r\nCLIENT PAUSE 1 WRITE x\r\nCLIENT UNPAUSE\r\nCLIENT PAUSE 0\r\nPING\r\n",
    "CLIENT UNBLOCK 1 ERROR x\r\nCLIENT UNBLOCK x FOO\r\nCLIENT UNBLOCK 99999 FOO\r\nCLIENT UNBLOCK 99999\r\n",
    // CONFIG.
    "CONFIG GET timeou? TIMEOUT\r\nCONFIG GET TIMEOUT nosuch timeou?\r\n\
     CONFIG SET timeout 7\r\nCONFIG GET timeout\r\nCONFIG SET timeout 0\r\nCONFIG GET timeout\r\n",
    "CONFIG GET MaxMemory\r\nCONFIG GET maxmemory MAXMEMORY\r\nCONFIG GET TIMEOU?\r\n",
    "CONFIG SET client-output-buffer-limit \"\"\r\nCONFIG GET client-output-buffer-limit\r\n",
    "CONFIG SET maxmemory-policy foo\r\nCONFIG SET maxmemory x\r\nCONFIG SET maxmemory -1\r\nCONFIG SET lfu-decay-time -1\r\n",
    "CONFIG SET maxmemory 100mb maxmemory-policy ALLKEYS-LFU lfu-decay-time 2\r\nCONFIG GET maxmemory\r\nCONFIG GET maxmemory-policy\r\n\
     CONFIG GET lfu-decay-time\r\nSET k v\r\nOBJECT FREQ nokey\r\nOBJECT IDLETIME k\r\nOBJECT IDLETIME nokey\r\n\
     RESTORE r 0 \"\\x00\\xc0\\x01\\x0a\\x00&x\\xe7\\xb6\\xd1\\x01\\x11\\xfc\" FREQ 100\r\nOBJECT FREQ r\r\n\
     CONFIG SET maxmemory-policy allkeys-lru\r\nOBJECT FREQ k\r\nCONFIG SET maxmemory 0 maxmemory-policy noeviction\r\n",
    "CONFIG SET maxmemory 1\r\nSET k v\r\nAPPEND k v\r\nGET k\r\nDEL k\r\nEXPIRE k 5\r\nMSET a b\r\nCONFIG SET maxmemory 0\r\nSET k v\r\nFLUSHALL\r\n",
    "CONFIG GET nosuch\r\nCONFIG GET maxclients\r\nCONFIG GET timeout timeout TIMEOUT\r\n",
    "CONFIG SET nosuch 1\r\nCONFIG SET maxclients x\r\nCONFIG SET maxclients 0\r\nCONFIG SET timeout -1\r\n",
    "CONFIG SET databases 3\r\nCONFIG SET timeout 1 timeout 2\r\nCONFIG SET timeout 1 nosuch 2\r\n",
    "CONFIG SET protected-mode maybe\r\nCONFIG SET proto-max-bulk-len 5\r\nCONFIG SET proto-max-bulk-len 1xb\r\n",
    "CONFIG SET client-output-buffer-limit 5\r\nCONFIG SET client-output-buffer-limit \"normal 1mb 1 x\"\r\n",
    "CONFIG SET client-output-buffer-limit \"foo 1 1 1\"\r\nCONFIG SET timeout 99999999999\r\nCONFIG GET timeout\r\n",
    "CONFIG SET client-output-buffer-limit \"normal 2mb 1kb 2\"\r\nCONFIG GET client-output-buffer-limit\r\n",
    "CONFIG SET client-output-buffer-limit \"normal 1 1 1\"\r\nPING\r\nCONFIG GET client-output-buffer-limit\r\nECHO 123\r\n",
    "CONFIG SET client-output-buffer-limit \"normal 0 0 0\"\r\nCONFIG GET client-output-buffer-limit\r\n",
    "CONFIG SET maxmemory \"\"\r\nCONFIG SET maxmemory k\r\nCONFIG GET maxmemory\r\nCONFIG SET proto-max-bulk-len 99999999999999999999\r\n",
    "CONFIG SET timeout 100 tcp-keepalive 10\r\nCONFIG GET timeout\r\nCONFIG SET timeout 0 tcp-keepalive 300\r\n",
    "CONFIG SET save \"\" appendonly no\r\nCONFIG SET maxmemory-policy noeviction\r\nCONFIG GET maxmemory-policy\r\n",
    "CONFIG RESETSTAT x\r\nCONFIG RESETSTAT\r\nCONFIG REWRITE\r\n",
    "CONFIG SET proto-max-bulk-len 2mb\r\n*1\r\n$2097153\r\n",
    "CONFIG SET proto-max-bulk-len 512mb\r\n",
    "CONFIG SET proto-max-bulk-len 1mb\r\nSETRANGE long 1048576 a\r\nSETRANGE long 1048575 a\r\nAPPEND long a\r\n\
     SETBIT long 8388607 1\r\nSETBIT long 8388608 1\r\nGETBIT long 8388608\r\nBITFIELD long GET u8 8388608\r\n\
     BITFIELD long SET u8 8388607 1\r\nSTRLEN long\r\nDEL long\r\nCONFIG SET proto-max-bulk-len 512mb\r\n",
    // A parameter that does not exist here is refused by its name, but an invalid value is reported first.
    "CONFIG SET lfu-log-factor -1\r\nCONFIG SET lfu-log-factor 99999999999\r\nCONFIG SET lfu-log-factor x\r\n",
    "CONFIG SET maxmemory-samples 0\r\nCONFIG SET active-expire-effort 11\r\nCONFIG SET repl-timeout 0\r\n",
    "CONFIG SET repl-backlog-size 0\r\nCONFIG SET acllog-max-len -1\r\nCONFIG SET tls-port 65536\r\nCONFIG SET tls-port x\r\n",
    "CONFIG SET min-replicas-to-write -1\r\nCONFIG SET list-compress-depth -1\r\nCONFIG SET oom-score-adj foo\r\n",
    "CONFIG SET oom-score-adj-values \"0 200\"\r\nCONFIG SET oom-score-adj-values \"0 200 2001\"\r\n",
    "CONFIG SET shutdown-on-sigint foo\r\nCONFIG SET maxmemory-clients 101%\r\nCONFIG SET maxmemory-clients x%\r\n",
    "CONFIG SET maxmemory-clients 0%\r\nCONFIG GET maxmemory-clients\r\nCONFIG SET hll-sparse-max-bytes -1\r\n",
    "CONFIG SET save \"1 2 3\"\r\nCONFIG SET save \"a b\"\r\nCONFIG SET save \"\" \"\"\r\nCONFIG SET save \"0 1\"\r\n",
    "CONFIG SET hash-max-listpack-value 1k\r\nCONFIG GET hash-max-listpack-value\r\nCONFIG SET hash-max-listpack-value 64\r\n",
    "CONFIG SET lua-time-limit 1 busy-reply-threshold 2\r\nCONFIG GET lua-time-limit\r\nCONFIG SET lua-time-limit 5000\r\n",
    // COMMAND.
    "COMMAND INFO get nosuch\r\n",
    "COMMAND INFO client|reply client|no-evict client|pause client|unpause client|help config|get config|help nosuch|x\r\n",
    "COMMAND INFO setbit getbit bitcount bitpos bitfield_ro pfselftest\r\n",
    "COMMAND GETKEYS bitop and d a b\r\n",
    "COMMAND GETKEYS sort k by x store d get y\r\nCOMMAND GETKEYS sort k limit 1 store store d store e\r\n",
    "COMMAND GETKEYS sort k store\r\nCOMMAND GETKEYS sort_ro k by x\r\nCOMMAND GETKEYS restore k 0 v\r\n",
    // Numbers of keys that the command itself refuses.
    "COMMAND GETKEYS zunion 01 a\r\nCOMMAND GETKEYS zunion \" +1x\" a\r\nCOMMAND GETKEYS zunion 2 a\r\n",
    "COMMAND GETKEYS zunion 4294967297 a\r\nCOMMAND GETKEYS zunion 99999999999999999999 a\r\n",
    "COMMAND GETKEYS zunionstore d 1.0 a\r\nCOMMAND GETKEYS zunionstore d 1 a\r\nCOMMAND GETKEYS zunionstore d x a\r\n",
    "COMMAND GETKEYS blmpop 0 01 a left\r\nCOMMAND GETKEYSANDFLAGS zunionstore d 01 a\r\nCOMMAND GETKEYS lmpop -1 a left\r\n",
    "COMMAND GETKEYS get a b c\r\nCOMMAND LIST FOO\r\nCOMMAND LIST FILTERBY FOO x\r\n",
    "COMMAND LIST FILTERBY MODULE x\r\nCOMMAND LIST FILTERBY ACLCAT nosuch\r\nCOMMAND LIST FILTERBY PATTERN geta*\r\n",
    "INFO nosuch\r\n",
    // RESP3 forms.
    "HELLO 3 FOO\r\nGET nosuchkey\r\n",
];

/// Commands that versions later than Debian's redis-server 7.0 answer in another way.
const ALIKE_LATER: &[&str] = &[
    "COMMAND INFO echo quit reset hello auth select client|id client|getname client|setname client|kill\r\n",
    "COMMAND INFO config|resetstat config|rewrite command|count command|getkeys command|help\r\n",
    "COMMAND GETKEYS get\r\nCOMMAND GETKEYS set k v\r\nCOMMAND GETKEYS nosuch a\r\nCOMMAND GETKEYS ping a\r\n",
];

/// Sends each script to both, in this order, and reports every reply that differs.
#[track_caller]
pub fn check_alike(scripts: &[&str], redis: &RedisServer, ours: &Running) {
    let mut differences = String::new();
    for script in scripts {
        let expected = exchange(&redis.address(), script.as_bytes());
        let found = exchange(&ours.address(), script.as_bytes());
        if found != expected {
            let (found, expected) = (String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
            differences += &format!("{script:?}\n  redis: {expected:?}\n  ours:  {found:?}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Like [`check_alike`], with two servers that are started for it and have nothing set.
#[track_caller]
pub fn check_alike_by_default(scripts: &[&str]) {
    check_alike(scripts, &RedisServer::start(&[]), &Running::start());
}

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

/// Times that are zero in 64-bit floats, but not in 80-bit ones. The client stays, since a server drops a blocked client
/// that has closed its side.
#[test]
fn the_shortest_times_are_waited_for_as_in_redis() {
    let (redis, ours) = (RedisServer::start(&[]), Running::start());
    let replies = |address: &str, command: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("a reply");
        line
    };
    for command in [
        "BLPOP nokey 1e-400",
        "BRPOP nokey 1e-4000",
        "BLMPOP 1e-400 1 nokey LEFT",
        "BZPOPMIN nokey 1e-400",
        "BLMOVE nokey other LEFT LEFT 0x1p-1080",
        "BRPOPLPUSH nokey other 1e-400",
        "BZMPOP 1e-400 1 nokey MIN",
    ] {
        assert_eq!(replies(&ours.address(), command), replies(&redis.address(), command), "{command}");
    }
}

#[test]
fn replies_are_those_of_valkey_8() {
    check_alike(ALIKE_LATER, &RedisServer::start_valkey("8.1", &[]), &Running::start());
}

/// Requests to a server with a password; the configuration is the same on both sides.
const ALIKE_WITH_PASSWORD: &[&str] = &[
    "PING\r\nGET\r\nGET a\r\nnosuch\r\nCLIENT ID\r\nCLIENT FOO\r\nRESET\r\nQUIT\r\n",
    "HELLO\r\nHELLO 3\r\nHELLO 3 AUTH default wrong\r\nHELLO 3 AUTH nobody secret\r\nPING\r\n",
    "AUTH wrong\r\nAUTH nobody secret\r\nPING\r\nAUTH secret\r\nPING\r\nRESET\r\nPING\r\n",
    "AUTH default secret\r\nPING\r\nAUTH wrong\r\nPING\r\n",
    "*10\r\n$4\r\nPING\r\n",
    "*11\r\n",
    "*1\r\n$16384\r\n",
    "*1\r\n$16385\r\n",
];

#[test]
fn a_password_is_asked_for_as_redis_does() {
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let ours = Running::with(ServerOptions { requirepass: b"secret".to_vec(), ..ServerOptions::default() }, 1);
    check_alike(ALIKE_WITH_PASSWORD, &redis, &ours);
}

#[test]
fn a_password_set_at_run_time_spares_those_who_are_in() {
    let ours = Running::start();
    let mut inside = ours.connect();
    assert_eq!(inside.ask(&["CONFIG", "SET", "requirepass", "secret"]), "+OK\r\n");
    assert_eq!(inside.ask(&["PING"]), "+PONG\r\n");
    let mut outside = ours.connect();
    assert_eq!(outside.ask(&["PING"]), "-NOAUTH Authentication required.\r\n");
    assert_eq!(outside.ask(&["AUTH", "secret"]), "+OK\r\n");
    assert_eq!(outside.ask(&["CONFIG", "GET", "requirepass"]), "*2\r\n$11\r\nrequirepass\r\n$6\r\nsecret\r\n");
}

/// Returns a reply with every number of two or more digits replaced, so that ids, ports and times compare equal.
fn shape(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply).replace("7.0.15", "VERSION").replace("7.2.5", "VERSION");
    let mut out = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        out.push_str(if digits.is_empty() { "" } else { "N" });
        out.push_str(&part[digits.len()..]);
    }
    out
}

#[test]
fn hello_and_client_lines_have_the_shape_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    for script in ["HELLO\r\n", "HELLO 3\r\nGET x\r\n", "HELLO 3 AUTH default x SETNAME bob\r\nCLIENT GETNAME\r\n"] {
        let expected = exchange(&redis.address(), script.as_bytes());
        let found = exchange(&ours.address(), script.as_bytes());
        assert_eq!(shape(&found), shape(&expected), "for {script:?}");
    }
    // The fields in Redis's order; 7.2 adds the last two, 7.4 the number of watched keys.
    let fields = |address: String| {
        let text = Client::connect(&address).ask(&["CLIENT", "LIST"]);
        let line = text.lines().nth(1).unwrap_or_default().to_owned();
        let names: Vec<String> = line.split(' ').map(|field| field.split('=').next().unwrap_or("").into()).collect();
        names
    };
    let mut expected = fields(redis.address());
    expected.extend(["lib-name".to_owned(), "lib-ver".to_owned()]);
    let place = expected.iter().position(|name| name == "multi").expect("a field") + 1;
    expected.insert(place, "watch".to_owned());
    assert_eq!(fields(ours.address()), expected);
}

#[test]
fn client_tells_who_is_connected() {
    let ours = Running::start();
    let mut first = ours.connect();
    let mut second = ours.connect();
    assert_eq!(first.ask(&["CLIENT", "SETNAME", "first"]), "+OK\r\n");
    assert_eq!(first.ask(&["CLIENT", "SETINFO", "LIB-NAME", "redis-rb"]), "+OK\r\n");
    assert_eq!(first.ask(&["CLIENT", "SETINFO", "lib-ver", "1.2"]), "+OK\r\n");
    assert_eq!(first.ask(&["CLIENT", "SETINFO", "foo", "1.2"]), "-ERR Unrecognized option 'foo'\r\n");
    let spaces = "-ERR lib-name cannot contain spaces, newlines or special characters.\r\n";
    assert_eq!(first.ask(&["CLIENT", "SETINFO", "lib-name", "a b"]), spaces);
    assert_eq!(first.ask(&["SELECT", "3"]), "+OK\r\n");
    let id = first.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    let list = second.ask(&["CLIENT", "LIST", "ID", &id]);
    for part in
        [" name=first ", " db=3 ", " flags=N ", " cmd=client|id ", " resp=2 ", " lib-name=redis-rb lib-ver=1.2\n"]
    {
        assert!(list.contains(part), "{part:?} in {list}");
    }
    let own = second.ask(&["CLIENT", "INFO"]);
    assert!(own.contains(" cmd=client|info ") && own.contains(" flags=N "), "{own}");
    assert_eq!(second.ask(&["CLIENT", "LIST"]).matches("\nid=").count() + 1, 3, "the header line and two clients");
    // Kills the other client, then itself.
    assert_eq!(second.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
    assert_eq!(first.read_to_end(), b"");
    wait_for("the killed client to leave", || (ours.server.client_count() == 1).then_some(()));
    let own_id = second.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    assert_eq!(second.ask(&["CLIENT", "KILL", "ID", &own_id]), ":0\r\n", "oneself is spared by default");
    assert_eq!(second.ask(&["CLIENT", "KILL", "ID", &own_id, "SKIPME", "no"]), ":1\r\n");
    assert_eq!(second.read_to_end(), b"");
}

#[test]
fn a_pause_holds_writes_until_it_is_ended() {
    let ours = Running::start();
    let mut admin = ours.connect();
    let mut writer = ours.connect();
    assert_eq!(admin.ask(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "+OK\r\n");
    writer.command(&["PING"]);
    writer.command(&["SET", "k", "v"]);
    assert_eq!(writer.read_reply(), b"+PONG\r\n", "replies before the pause are not held back");
    assert_eq!(admin.ask(&["GET", "k"]), "$-1\r\n", "reads go on");
    assert_eq!(admin.ask(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
    assert_eq!(writer.read_reply(), b"+OK\r\n");
    assert_eq!(admin.ask(&["GET", "k"]), "$1\r\nv\r\n");
}

/// As in Redis, where keys are kept for the replicas.
#[test]
fn keys_do_not_expire_while_a_pause_holds() {
    let hand = ManualClock::new(1_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let (mut admin, mut listening) = (ours.connect(), ours.connect());
    assert_eq!(admin.ask(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]), "+OK\r\n");
    assert!(listening.ask(&["SUBSCRIBE", "__keyevent@0__:expired"]).ends_with(":1\r\n"));
    let mut expired = 0;
    let mut expired_after = |admin: &mut Client, more: u64| {
        expired += more;
        let text = admin.ask(&["INFO", "stats"]);
        assert!(text.contains(&format!("\r\nexpired_keys:{expired}\r\n")), "{text}");
    };
    for unpause in [&["CLIENT", "UNPAUSE"][..], &["CLIENT", "PAUSE", "0", "WRITE"]] {
        assert_eq!(admin.ask(&["SET", "a", "v", "PX", "30"]), "+OK\r\n");
        assert_eq!(admin.ask(&["SET", "b", "v", "PX", "30"]), "+OK\r\n");
        assert_eq!(admin.ask(&["CLIENT", "PAUSE", "100000000", "WRITE"]), "+OK\r\n");
        hand.advance(150);
        store.tick();
        assert_eq!(admin.ask(&["GET", "a"]), "$-1\r\n");
        assert_eq!(admin.ask(&["DBSIZE"]), ":2\r\n");
        expired_after(&mut admin, 0);
        if unpause.len() > 2 {
            // A shorter pause does not end a longer one.
            assert_eq!(admin.ask(unpause), "+OK\r\n");
            store.tick();
            assert_eq!(admin.ask(&["DBSIZE"]), ":2\r\n");
        }
        assert_eq!(admin.ask(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        assert_eq!(admin.ask(&["GET", "a"]), "$-1\r\n");
        assert_eq!(admin.ask(&["DBSIZE"]), ":1\r\n");
        store.tick();
        assert_eq!(admin.ask(&["DBSIZE"]), ":0\r\n");
        expired_after(&mut admin, 2);
        (0..2).for_each(|_| drop(listening.read_reply()));
    }
}

/// Even the command that would end the pause waits.
#[test]
fn a_pause_of_everything_lasts_its_time() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    for address in [redis.address(), ours.address()] {
        let (mut admin, mut other) = (Client::connect(&address), Client::connect(&address));
        let time = Duration::from_millis(300);
        let start = Instant::now();
        assert_eq!(admin.ask(&["CLIENT", "PAUSE", "300"]), "+OK\r\n");
        assert_eq!(other.ask(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        // Redis's clock counts whole milliseconds.
        assert!(start.elapsed() + Duration::from_millis(2) >= time, "{address}");
        assert_eq!(admin.ask(&["PING"]), "+PONG\r\n");
    }
}

/// Commands that Redis would replicate wait like writes, and so does a script that may write.
#[test]
fn a_pause_of_writes_is_that_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let read_only = "#!lua flags=no-writes\nreturn 1";
    let unknown = "0".repeat(40);
    let commands: Vec<(Vec<&str>, bool)> = vec![
        (vec!["GET", "k"], false),
        (vec!["PUBLISH", "c", "m"], true),
        (vec!["SPUBLISH", "c", "m"], true),
        (vec!["PFCOUNT", "k"], true),
        (vec!["EVAL", "return 1", "0"], true),
        (vec!["EVAL", read_only, "0"], false),
        (vec!["EVAL", "#!lua\nreturn 1", "0"], true),
        (vec!["EVAL_RO", "return 1", "0"], false),
        (vec!["EVALSHA", &unknown, "0"], true),
        (vec!["EVALSHA_RO", &unknown, "0"], false),
        (vec!["FCALL", "nosuch", "0"], true),
        (vec!["FCALL", "reads", "0"], false),
        (vec!["FCALL", "writes", "0"], true),
        (vec!["SCRIPT", "EXISTS", &unknown], false),
        (vec!["FUNCTION", "LIST"], false),
    ];
    let library = "#!lua name=l\nredis.register_function('writes', function() return 1 end)\n\
        redis.register_function{function_name = 'reads', callback = function() return 2 end, flags = {'no-writes'}}";
    for address in [redis.address(), ours.address()] {
        let mut admin = Client::connect(&address);
        assert_eq!(admin.ask(&["FUNCTION", "LOAD", library]), "$1\r\nl\r\n");
        for (words, waits) in &commands {
            // A waiting command is answered after the end of the pause, in a transaction, too.
            for queued in [false, true] {
                let mut client = Client::connect(&address);
                let id = client.ask(&["CLIENT", "ID"]);
                let id = id.trim_start_matches(':').trim_end();
                if queued {
                    assert_eq!(client.ask(&["MULTI"]), "+OK\r\n");
                    assert_eq!(client.ask(words), "+QUEUED\r\n");
                }
                assert_eq!(admin.ask(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "+OK\r\n");
                client.command(if queued { &["EXEC"] } else { words });
                if *waits {
                    let flag = if queued { " flags=xb " } else { " flags=b " };
                    let waits = |line: String| line.contains(flag).then_some(());
                    wait_for("it to wait", || waits(admin.ask(&["CLIENT", "LIST", "ID", id])));
                } else {
                    client.read_reply();
                }
                assert_eq!(admin.ask(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
                if *waits {
                    client.read_reply();
                }
            }
        }
    }
}

#[test]
fn command_describes_the_catalogue() {
    let ours = Running::start();
    let mut client = ours.connect();
    let count: usize = client.ask(&["COMMAND", "COUNT"]).trim_start_matches(':').trim().parse().expect("a number");
    let all = client.ask(&["COMMAND"]);
    assert!(all.starts_with(&format!("*{count}\r\n")), "{}", &all[..20]);
    assert_eq!(client.ask(&["COMMAND", "INFO"]), all);
    let docs = client.ask(&["COMMAND", "DOCS", "get", "nosuch"]);
    assert!(docs.starts_with("*2\r\n$3\r\nget\r\n*10\r\n$7\r\nsummary\r\n"), "{docs}");
    let list = client.ask(&["COMMAND", "LIST", "FILTERBY", "PATTERN", "client|k*"]);
    assert_eq!(list, "*1\r\n$11\r\nclient|kill\r\n");
    assert!(client.ask(&["COMMAND", "LIST", "FILTERBY", "ACLCAT", "connection"]).contains("$4\r\nping\r\n"));
    for container in ["COMMAND", "CLIENT", "CONFIG"] {
        let help = client.ask(&[container, "HELP"]);
        assert!(help.contains(&format!("{container} <subcommand>")) && help.contains("\r\n+HELP\r\n"), "{help}");
    }
    // Sets and maps in RESP3.
    client.command(&["HELLO", "3"]);
    client.read_reply();
    let get = client.ask(&["COMMAND", "INFO", "get"]);
    assert!(
        get.starts_with("*1\r\n*10\r\n$3\r\nget\r\n:2\r\n~2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~"),
        "{get}"
    );
}

#[test]
fn a_command_that_memory_refuses_counts_as_rejected() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    for words in [&["SET", "k", "v"][..], &["EVAL", "return redis.pcall('GETSET', 'k', 'v')", "1", "k"]] {
        let reply = client.ask(words);
        assert!(reply.starts_with("-OOM command not allowed when used memory > 'maxmemory'."), "{reply}");
    }
    let stats = client.ask(&["INFO", "commandstats"]);
    // What a script returns is its own reply.
    for (name, calls, figures) in [
        ("set", "calls=0,", ",rejected_calls=1,failed_calls=0"),
        ("getset", "calls=0,", ",rejected_calls=1,failed_calls=0"),
        ("eval", "calls=1,", ",rejected_calls=0,failed_calls=1"),
    ] {
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(name)?.strip_prefix(':'));
        assert!(line.is_some_and(|line| line.starts_with(calls) && line.ends_with(figures)), "{name} in {stats}");
    }
    let errors = client.ask(&["INFO", "errorstats"]);
    assert!(errors.contains("errorstat_OOM:count="), "{errors}");
}

#[test]
fn info_has_redis_sections_and_right_figures() {
    let ours = Running::start();
    let mut client = ours.connect();
    for _ in 0..3 {
        client.ask(&["SET", "k", "v"]);
    }
    client.ask(&["GET"]);
    client.ask(&["nosuch"]);
    client.ask(&["CONFIG", "SET", "timeout", "x"]);
    let all = client.ask(&["INFO", "everything"]);
    for part in [
        "# Server\r\nredis_version:7.2.5\r\nsluicegate_version:",
        "\r\nredis_mode:standalone\r\n",
        &format!("\r\ntcp_port:{}\r\n", ours.port),
        "\r\n\r\n# Clients\r\nconnected_clients:1\r\n",
        "\r\nrole:master\r\nconnected_slaves:0\r\n",
        "\r\ncmdstat_set:calls=3,usec=",
        "\r\ncmdstat_get:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n",
        "rejected_calls=0,failed_calls=1\r\n",
        "\r\nerrorstat_ERR:count=3\r\n",
        "\r\ntotal_connections_received:1\r\n",
        "\r\ntotal_commands_processed:4\r\n",
        "\r\ntotal_error_replies:3\r\n",
        "\r\nused_cpu_user:",
        "# Keyspace\r\n",
    ] {
        assert!(all.contains(part), "{part:?} in {all}");
    }
    assert!(!client.ask(&["INFO"]).contains("Commandstats"));
    assert_eq!(client.ask(&["INFO", "cluster"]), "$30\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n");
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert_eq!(client.ask(&["INFO", "errorstats"]), "$14\r\n# Errorstats\r\n\r\n");
    assert!(client.ask(&["INFO", "stats"]).contains("\r\ntotal_commands_processed:2\r\n"));
}

#[test]
fn what_comes_behind_the_limit_of_clients_is_told_so() {
    let ours = Running::with(ServerOptions { maxclients: 2, ..ServerOptions::default() }, 1);
    let (mut first, mut second) = (ours.connect(), ours.connect());
    first.ask(&["PING"]);
    second.ask(&["PING"]);
    assert_eq!(ours.connect().read_to_end(), b"-ERR max number of clients reached\r\n");
    drop(second);
    wait_for("a place", || {
        let mut third = ours.connect();
        third.command(&["PING"]);
        (third.read_line() == "+PONG").then_some(())
    });
}

#[test]
fn a_query_beyond_the_limit_ends_the_connection() {
    let ours = Running::with(ServerOptions { client_query_buffer_limit: 1 << 20, ..ServerOptions::default() }, 1);
    let mut client = ours.connect();
    client.send(b"*2\r\n$4\r\nECHO\r\n$100000000\r\n");
    let piece = vec![b'x'; 64 << 10];
    // Writing fails once the server has closed the connection; until then it takes at most the limit and the sockets'
    // buffers.
    use std::io::Write;
    let mut stream = client.stream();
    let taken = (0..1000).take_while(|_| stream.write_all(&piece).is_ok()).count();
    assert!(taken < 1000);
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn a_client_that_does_not_read_is_dropped_at_its_limit() {
    let options = ServerOptions::default();
    let mut limits = options.client_output_buffer_limit;
    limits[0].hard = 1 << 20;
    let ours = Running::with(ServerOptions { client_output_buffer_limit: limits, ..options }, 1);
    let mut client = ours.connect();
    let value = "x".repeat(2 << 20);
    assert_eq!(client.ask(&["SET", "k", &value]), "+OK\r\n");
    client.command(&["GET", "k"]);
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn large_arguments_and_replies_pass_whole() {
    let ours = Running::start();
    let mut client = ours.connect();
    let value: String = (0..5_000_000).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
    assert_eq!(client.ask(&["SET", "k", &value]), "+OK\r\n");
    assert_eq!(client.ask(&["GET", "k"]), format!("${}\r\n{value}\r\n", value.len()));
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut client = ours.connect();
    let mut writer = client.stream().try_clone().expect("a descriptor");
    let sender = std::thread::spawn(move || {
        use std::io::Write;
        for at in 0..20_000 {
            let text = at.to_string();
            write!(writer, "*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len()).expect("the server reads");
        }
    });
    for at in 0..20_000 {
        let text = at.to_string();
        assert_eq!(client.read_reply(), format!("${}\r\n{text}\r\n", text.len()).as_bytes());
    }
    sender.join().expect("sent");
}

#[test]
fn connections_leave_nothing_behind() {
    let ours = Running::start();
    let mut witness = ours.connect();
    witness.ask(&["PING"]);
    let pid = std::process::id();
    // Other tests of this process open and close descriptors too, so the server's own count decides.
    for round in 0..1000 {
        let mut client = ours.connect();
        match round % 4 {
            0 => drop(client.ask(&["PING"])),
            1 => client.send(b"*2\r\n$3\r\nGET\r\n$100\r\nhalf"),
            2 => client.reset(),
            _ => {}
        }
    }
    // The last clients may still be in the kernel's queue, so the count may be one before they are accepted, too.
    let mut alone =
        || ours.server.client_count() == 1 && witness.ask(&["CLIENT", "LIST"]).matches("\nid=").count() == 1;
    wait_for("all clients to leave", || alone().then_some(()));
    assert!(descriptors(pid) < 900, "{}", descriptors(pid));
}

#[test]
fn an_idle_client_is_dropped_after_the_timeout() {
    let ours = Running::with(ServerOptions { timeout_s: 2, ..ServerOptions::default() }, 1);
    let mut watching = ours.connect();
    assert_eq!(watching.ask(&["MONITOR"]), "+OK\r\n");
    for mut idle in [ours.connect(), ours.connect()] {
        assert_eq!(idle.read_to_end(), b"");
    }
    assert_eq!(watching.ask(&["PING"]), "+PONG\r\n", "one that watches may be silent");
}

#[test]
fn stopping_answers_what_was_sent_and_closes() {
    let ours = Running::start();
    let mut idle = ours.connect();
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
    drop(ours);
    assert_eq!(idle.read_to_end(), b"");
}

#[test]
fn those_who_keep_a_stop_waiting_can_be_closed() {
    let store = Store::new(StoreOptions::default());
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let section = on_runtime(store.section([(0, &b"held"[..], Mode::Exclusive)])).expect("nobody else holds it");
    let (mut waiting, mut paused) = (ours.connect(), ours.connect());
    waiting.command(&["GET", "held"]);
    let blocked = |other: &mut Client| other.ask(&["CLIENT", "LIST"]).contains(" flags=b ").then_some(());
    wait_for("the command to park", || blocked(&mut paused));
    assert_eq!(paused.ask(&["CLIENT", "PAUSE", "1000000"]), "+OK\r\n");
    paused.command(&["PING"]);
    ours.server.stop();
    assert!(matches!(&paused.read_to_end()[..], b"+PONG\r\n" | b""), "a stop ends the pause");
    ours.server.close_clients();
    assert_eq!(waiting.read_to_end(), b"");
    drop(section);
}

#[test]
fn a_unix_socket_serves_too() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let store = Store::new(StoreOptions::default());
    let server = sluicegate_store::server::Server::new(store, ServerOptions::default());
    let worker = {
        let server = server.clone();
        std::thread::spawn(move || on_runtime(async move { server.serve_unix(listener, None).await.expect("served") }))
    };
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("connected");
    stream.write_all(b"PING\r\nCLIENT LIST\r\nQUIT\r\n").expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("read");
    assert!(reply.starts_with("+PONG\r\n$") && reply.ends_with("+OK\r\n"), "{reply}");
    assert!(reply.contains(&format!(" addr={}:0 ", path.display())) && reply.contains(" flags=U "), "{reply}");
    server.stop();
    worker.join().expect("ended");
}

#[test]
fn redis_cli_and_redis_benchmark_work() {
    let ours = Running::with(ServerOptions::default(), 2);
    let port = ours.port.to_string();
    let cli = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(cli(&["set", "k", "v"]), "OK");
    assert_eq!(cli(&["-3", "get", "k"]), "v");
    assert!(cli(&["info", "server"]).contains("redis_mode:standalone"));
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-n", "20000", "-t", "set,get,incr", "-P", "16", "-q"])
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    for test in ["SET", "GET", "INCR"] {
        assert!(text.contains(&format!("{test}: ")), "{text}");
    }
    assert_eq!(cli(&["get", "counter:__rand_int__"]), "20000");
}

#[test]
fn a_command_on_a_held_key_waits_alone() {
    let store = Store::new(StoreOptions::default());
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let section = on_runtime(store.section([(0, &b"held"[..], Mode::Exclusive)])).expect("nobody else holds it");
    let (mut waiting, mut other) = (ours.connect(), ours.connect());
    let id = waiting.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    waiting.send("PING\r\nINCR held\r\nPING again\r\n");
    assert_eq!(waiting.read_reply(), b"+PONG\r\n", "what came before is answered");
    wait_for("the command to park", || other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=b ").then_some(()));
    assert_eq!(other.ask(&["SET", "free", "1"]), "+OK\r\n", "the worker serves the others");
    assert!(other.ask(&["INFO", "clients"]).contains("\r\nblocked_clients:1\r\n"));
    drop(section);
    assert_eq!(waiting.read_reply(), b":1\r\n");
    assert_eq!(waiting.read_reply(), b"$5\r\nagain\r\n", "what came behind waited for its turn");
    assert!(other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=N "));
}

#[test]
fn a_parked_command_outlives_its_client() {
    let store = Store::new(StoreOptions::default());
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let section = on_runtime(store.section([(0, &b"held"[..], Mode::Exclusive)])).expect("nobody else holds it");
    let (mut waiting, mut other) = (ours.connect(), ours.connect());
    let id = waiting.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    waiting.command(&["INCR", "held"]);
    wait_for("the command to park", || other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=b ").then_some(()));
    assert_eq!(other.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
    assert_eq!(waiting.read_to_end(), b"");
    drop(section);
    wait_for("the command to run", || (other.ask(&["GET", "held"]) == "$1\r\n1\r\n").then_some(()));
}
