//! Files that are loaded: what clients see meanwhile, and files of other servers.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use sluicegate_data::rdb::file::{Chunk, Contents, KeyHead, Settings, Written};
use sluicegate_data::value::Value;
use sluicegate_store::config::ServerOptions;
use sluicegate_store::{LoadOptions, Policy, Store, StoreOptions};
use sluicegate_testkit::{Client, Program, RedisServer, free_port};

use crate::server::check_alike;
use crate::support::{Running, exchange};

/// Returns a file of version 10 with so many keys of a kilobyte.
fn file(keys: usize) -> Vec<u8> {
    let mut chunk = Chunk::new(Settings::new(0));
    chunk.aux(b"redis-ver", b"7.0.0");
    chunk.database(0);
    for number in 0..keys {
        // Not compressible, so that the file has a kilobyte for each.
        let mut state = number as u64 + 1;
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .take(1_024)
        .collect();
        let name = format!("key:{number}");
        let head = KeyHead { name: name.as_bytes(), ..KeyHead::default() };
        assert!(chunk.key(head, Written::of(&Value::of(&value))));
    }
    let mut contents = Contents::default();
    contents.add(chunk.summed());
    let magic = contents.magic();
    [&magic[..], chunk.bytes(), &contents.tail(magic, true)].concat()
}

/// What clients send while a file is loaded, each in a connection of its own.
const MEANWHILE: &[&str] = &[
    "PING\r\n",
    "GET a\r\nSET a b\r\nGET\r\nnosuch a\r\nDBSIZE\r\nFLUSHALL\r\nDEL a\r\nKEYS *\r\n",
    "CONFIG GET timeout\r\nCONFIG FOO\r\nINFO nosuch\r\nSELECT 3\r\nCLIENT GETNAME\r\nCLIENT SETNAME x\r\nECHO x\r\n",
    "CONFIG SET dir /\r\nCONFIG SET dbfilename x.rdb\r\nCONFIG GET dbfilename\r\nCONFIG SET timeout 1 dir /\r\n",
    "MULTI\r\nGET a\r\nEXEC\r\nPING\r\n",
    "MULTI\r\nCONFIG GET timeout\r\nSELECT 2\r\nEXEC\r\n",
    "MULTI\r\nCONFIG GET timeout\r\nDISCARD\r\nEXEC\r\n",
    "WATCH a\r\nUNWATCH\r\nMULTI\r\nEXEC\r\n",
    "EVAL 'return 1' 0\r\nEVALSHA x 0\r\nFCALL f 0\r\nSCRIPT LOAD 'return 1'\r\nSCRIPT KILL\r\nFUNCTION LIST\r\nFUNCTION STATS\r\n",
    "SUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE\r\n",
    "PUBLISH a b\r\nPUBSUB NUMPAT\r\n",
    "SLOWLOG LEN\r\nLATENCY RESET\r\nMEMORY USAGE a\r\nOBJECT ENCODING a\r\nWAIT 0 0\r\nROLE\r\n",
    "RESET\r\nAUTH x\r\nHELLO 9\r\nASKING\r\nACL WHOAMI\r\nQUIT\r\n",
    "BLPOP a 1\r\nXREAD BLOCK 1 STREAMS s $\r\nSCAN 0\r\nRANDOMKEY\r\nSWAPDB 0 1\r\n",
];

#[test]
fn protected_parameters_are_changed_by_those_who_may_as_in_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(directory.path(), directory.path().join("link")).expect("made");
    let path = directory.path().display();
    for who in ["no", "local", "yes"] {
        let requests = [
            "CONFIG SET dir /nosuch\r\nCONFIG SET dir /etc/passwd\r\nCONFIG SET dir /etc/passwd/x\r\nCONFIG SET dir ''\r\n",
            &format!("CONFIG SET dir {path}/link timeout 1\r\nCONFIG GET dir\r\nCONFIG GET timeout\r\n"),
            "CONFIG SET dir link\r\nCONFIG GET dir\r\nCONFIG SET dir . dir .\r\n",
            "CONFIG SET dbfilename a/b\r\nCONFIG SET dbfilename x.rdb\r\nCONFIG GET dbfilename\r\n",
            "CONFIG SET enable-protected-configs yes\r\nCONFIG SET rdbchecksum no\r\nCONFIG GET rdbchecksum\r\n",
        ];
        let dir = directory.path().as_os_str().as_encoded_bytes().to_vec();
        let ours = ServerOptions { enable_protected_configs: who, dir, ..ServerOptions::default() };
        let redis = RedisServer::start(&["--enable-protected-configs", who, "--dir", &path.to_string()]);
        check_alike(&requests.map(|request| request), &redis, &Running::with(ours, 1));
    }
}

#[test]
fn clients_are_refused_while_a_file_is_loaded_as_by_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    // A file that takes minutes.
    std::fs::write(directory.path().join("dump.rdb"), file(20_000)).expect("written");
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--key-load-delay", "10000"]);
    command.args(["--enable-protected-configs", "yes"]);
    command.args(["--loading-process-events-interval-bytes", "1024"]).arg("--dir").arg(directory.path());
    let mut redis = Program::start(command, &[]);
    redis.wait_for_output("Loading RDB produced by version");
    let options = ServerOptions { enable_protected_configs: "yes", ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let load = ours.store().begin_load(Some(1_000)).expect("no other load");
    let mut differences = String::new();
    for requests in MEANWHILE {
        let replies = [format!("127.0.0.1:{port}"), ours.address()]
            .map(|address| String::from_utf8_lossy(&exchange(&address, requests.as_bytes())).into_owned());
        if replies[0] != replies[1] {
            differences += &format!("{requests:?}\n  redis: {:?}\n  ours:  {:?}\n", replies[0], replies[1]);
        }
    }
    assert!(differences.is_empty(), "{differences}");
    let mut client = ours.connect();
    let info = client.ask(&["INFO", "persistence"]);
    for line in ["loading:1", "async_loading:0", "loading_total_bytes:1000", "loading_loaded_perc:0.00"] {
        assert!(info.contains(&format!("{line}\r\n")), "{line}: {info}");
    }
    drop(load);
    let info = client.ask(&["INFO", "persistence"]);
    assert!(info.contains("loading:0\r\n") && !info.contains("loading_total_bytes"), "{info}");
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
}

/// Sends commands, whose words are separated by blanks, and reads their replies, none of which may be an error.
#[track_caller]
fn run(client: &mut Client, commands: impl IntoIterator<Item = Vec<String>>) {
    for words in commands {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = client.ask(&words);
        assert!(!reply.starts_with('-'), "{:?}: {reply}", &words[..words.len().min(4)]);
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Returns commands that make keys of every type, around the limits of their small forms.
fn commands() -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let texts = [("int", "12345".to_owned()), ("large", i64::MAX.to_string()), ("wide", "9".repeat(20))];
    let texts = texts.into_iter().chain([44, 45, 192, 193, 4095, 4096, 30_000].map(|len| ("x", "x".repeat(len))));
    for (at, (name, text)) in texts.enumerate() {
        commands.push(vec!["SET".into(), format!("string:{at}:{name}"), text]);
    }
    commands.push(words("SETRANGE bytes 300 \u{1}\u{7f}end"));
    for len in [1, 127, 128, 129, 511, 512, 513, 700] {
        let many = |command: &str, element: &dyn Fn(usize) -> String| {
            let name = format!("{command}:{len}");
            let elements = (0..len).map(|number| element(number).split(' ').map(str::to_owned).collect::<Vec<_>>());
            [vec![command.to_owned(), name], elements.flatten().collect()].concat()
        };
        commands.push(many("RPUSH", &|number| format!("element-{number}")));
        commands.push(many("SADD", &|number| format!("member-{number}")));
        commands.push(many("HSET", &|number| format!("field-{number} {number}")));
        commands.push(many("ZADD", &|number| format!("{}.5 member-{}", number * 7 % 101, number)));
        commands.push(many("PFADD", &|number| format!("{number}")));
        let mut ints = many("SADD", &|number| format!("{}", number as i64 * 70_000 - 5));
        ints[1] = format!("ints:{len}");
        commands.push(ints);
    }
    for len in [64, 65, 5_000] {
        let long = "y".repeat(len);
        for line in ["RPUSH", "SADD", "HSET", "ZADD"] {
            let rest = match line {
                "HSET" => format!("f {long}"),
                "ZADD" => format!("inf {long} -0 zero"),
                _ => format!("{long} short"),
            };
            commands.push(words(&format!("{line} long:{line}:{len} {rest}")));
        }
    }
    for number in 1..250 {
        commands.push(words(&format!("XADD stream {number}-1 field value-{number} other {}", number % 3)));
    }
    commands.extend(
        [
            "XADD stream 300-0 another form",
            "XDEL stream 5-1 6-1 300-0",
            "XADD gone 1-1 a b",
            "XDEL gone 1-1",
            "XGROUP CREATE stream g 3-1",
            "XGROUP CREATE stream other 0 ENTRIESREAD 2",
            "XGROUP CREATE gone g $",
            "XGROUP CREATECONSUMER stream g idle",
            "XREADGROUP GROUP g busy COUNT 20 STREAMS stream >",
            "XREADGROUP GROUP g second COUNT 5 STREAMS stream >",
            "XACK stream g 7-1 8-1",
            "SET expires v EXAT 4000000000",
            "HSET hash:expires f v",
            "EXPIREAT hash:expires 4000000001",
            "SELECT 9",
            "SET nine v",
            "RPUSH list:nine a b c",
            "SELECT 0",
        ]
        .map(words),
    );
    commands.push(vec![
        "FUNCTION".into(),
        "LOAD".into(),
        "#!lua name=lib\nredis.register_function('f', function(keys, args) return args[1] end)".into(),
    ]);
    commands
}

/// Returns what the keys of two databases are, by their names.
fn contents(client: &mut Client, with_encoding: bool) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let parts = |reply: &str, size: usize| {
        // The elements of an array of bulk strings, in groups, sorted.
        let mut parts: Vec<Vec<String>> = Vec::new();
        let texts: Vec<&str> = reply.split("\r\n").skip(2).step_by(2).collect();
        parts.extend(texts.chunks(size).map(|part| part.iter().map(|text| (*text).to_owned()).collect()));
        parts.sort();
        format!("{parts:?}")
    };
    for db in ["0", "9"] {
        client.ask(&["SELECT", db]);
        let keys = client.ask(&["KEYS", "*"]);
        let keys: Vec<String> = keys.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect();
        for key in keys.iter().filter(|key| !key.is_empty()) {
            let kind = client.ask(&["TYPE", key]);
            let value = match kind.trim_end() {
                "+string" => client.ask(&["GET", key]),
                "+list" => client.ask(&["LRANGE", key, "0", "-1"]),
                "+set" => parts(&client.ask(&["SMEMBERS", key]), 1),
                "+hash" => parts(&client.ask(&["HGETALL", key]), 2),
                "+zset" => client.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
                _ => [
                    client.ask(&["XRANGE", key, "-", "+"]),
                    client.ask(&["XINFO", "GROUPS", key]),
                    client.ask(&["XPENDING", key, "g"]),
                ]
                .concat(),
            };
            // Valkey's two encodings of strings follow from its allocations, and its hashes with times have one.
            let compares = with_encoding && kind != "+string\r\n" && !key.starts_with("timed:");
            let encoding = if compares { client.ask(&["OBJECT", "ENCODING", key]) } else { String::new() };
            let expiry = client.ask(&["PEXPIRETIME", key]);
            all.insert(format!("{db} {key}"), [kind, encoding, expiry, value].concat());
        }
    }
    all.insert("functions".into(), client.ask(&["FUNCTION", "LIST", "WITHCODE"]));
    client.ask(&["SELECT", "0"]);
    all
}

/// Returns a store with the contents of a file.
#[track_caller]
fn loaded(path: &Path, policy: Policy) -> Store {
    let store = Store::new(StoreOptions::default());
    store.limit_memory(0, policy);
    let file = File::open(path).expect("a file");
    let size = file.metadata().map(|data| data.len()).ok();
    store.load(file, size, LoadOptions::default()).unwrap_or_else(|fault| panic!("{fault}"));
    store
}

#[track_caller]
fn assert_same(found: &BTreeMap<String, String>, expected: &BTreeMap<String, String>) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, value) in expected {
        assert!(found[key] == *value, "{key}: {:.300}\ninstead of {value:.300}", found[key]);
    }
}

/// Has a server make keys and save them, and compares what is loaded here.
fn check_file_of(start: impl Fn(&[&str]) -> RedisServer, more: &[&str], with_encoding: bool) {
    for words_of_start in [&["--rdbcompression", "yes"][..], &["--rdbcompression", "no", "--rdbchecksum", "no"]] {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path().to_str().expect("UTF-8");
        let server = start(&[&["--dir", dir, "--enable-debug-command", "yes"][..], words_of_start].concat());
        let mut client = Client::connect(&server.address());
        run(&mut client, commands().into_iter().chain(more.iter().map(|line| words(line))));
        // It saves its keys and loads them again: an encoding may depend on how a value came about.
        assert_eq!(client.ask(&["DEBUG", "RELOAD"]), "+OK\r\n");
        let store = loaded(&directory.path().join("dump.rdb"), Policy::NoEviction);
        let ours = Running::serving(store, ServerOptions::default(), 1);
        let (found, expected) = (contents(&mut ours.connect(), with_encoding), contents(&mut client, with_encoding));
        assert!(expected.len() > 60, "{}", expected.len());
        assert_same(&found, &expected);
        for line in more.iter().filter(|line| line.starts_with("HEXPIREAT") || line.starts_with("HPEXPIREAT")) {
            let key = line.split(' ').nth(1).expect("a key");
            let fields = ["HPEXPIRETIME", key, "FIELDS", "4", "f0", "f1", "f2", "f699"];
            assert_eq!(ours.connect().ask(&fields), client.ask(&fields), "{key}");
        }
    }
}

#[test]
fn files_of_redis_are_loaded() {
    check_file_of(RedisServer::start, &[], false);
}

#[test]
fn files_of_valkey_8_are_loaded() {
    check_file_of(|words| RedisServer::start_valkey("8.1", words), &[], true);
}

#[test]
fn files_of_valkey_9_are_loaded() {
    let fields: String = (0..700).map(|field| format!(" f{field} {field}")).collect();
    let more = [
        "HSET timed:small f0 a f1 b f2 c",
        "HEXPIREAT timed:small 4000000000 FIELDS 1 f0",
        "HPEXPIREAT timed:small 4000000000123 FIELDS 1 f2",
        &format!("HSET timed:large{fields}"),
        "HEXPIREAT timed:large 4100000000 FIELDS 3 f0 f1 f699",
    ];
    check_file_of(|words| RedisServer::start_valkey("9.1", words), &more, true);
}

#[test]
fn accesses_are_loaded_if_the_policy_is_that_of_the_file() {
    for (policy, ours) in [("allkeys-lru", Policy::AllkeysLru), ("allkeys-lfu", Policy::AllkeysLfu)] {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path().to_str().expect("UTF-8");
        // Otherwise frequencies fall with the minutes of the clock.
        let words = ["--maxmemory", "1gb", "--maxmemory-policy", policy, "--lfu-decay-time", "0"];
        let redis = RedisServer::start(&[&["--dir", dir][..], &words].concat());
        let mut client = Client::connect(&redis.address());
        assert_eq!(client.ask(&["SET", "a", "1"]), "+OK\r\n");
        client.command(&["DUMP", "a"]);
        let reply = client.read_reply();
        let start = reply.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
        let payload = &reply[start..reply.len() - 2];
        client.command(&[&b"RESTORE"[..], b"idle", b"0", payload, b"IDLETIME", b"5000"]);
        assert_eq!(client.read_reply(), b"+OK\r\n");
        let is_lfu = ours == Policy::AllkeysLfu;
        (0..20).for_each(|_| drop(client.ask(&["GET", "a"])));
        let expected = client.ask(&["OBJECT", "FREQ", "a"]);
        assert_eq!(client.ask(&["SAVE"]), "+OK\r\n");
        let store = loaded(&directory.path().join("dump.rdb"), ours);
        let ours = Running::serving(
            store,
            ServerOptions { maxmemory_policy: ours, lfu_decay_time: 0, ..Default::default() },
            1,
        );
        let mut client = ours.connect();
        if is_lfu {
            assert_eq!(client.ask(&["OBJECT", "FREQ", "a"]), expected);
        } else {
            let idle = client.ask(&["OBJECT", "IDLETIME", "idle"]);
            let idle: i64 = idle.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
            assert!((5_000..5_100).contains(&idle), "{idle}");
        }
    }
}
