//! Files of redis-server and Valkey, and files made by hand, replayed into stores.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Mutex;

use sluicegate_testkit::{Client, RedisServer, encode, wait_for};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use super::*;
use crate::aof::parts::Found;
use crate::command::asked::Listener;
use crate::files::simulated::{Disk, Plan};
use crate::files::{Directory, Files};
use crate::{Clock, ManualClock, Policy, Store, StoreOptions};

const DIRECTORY: &[u8] = b"appendonlydir";
const NAME: &[u8] = b"appendonly.aof";
const MANIFEST: &[u8] = b"appendonly.aof.manifest";
const NOW_MS: i64 = 1_700_000_000_000;

fn store() -> Store {
    let clock = Clock::Manual(ManualClock::new(NOW_MS));
    Store::new(StoreOptions { stripes: 8, clock, ..StoreOptions::default() })
}

pub(crate) fn ask(store: &Store, db: u32, words: &[&[u8]]) -> Reply {
    match store.start(db, words) {
        Started::Done(reply) => reply,
        Started::Pending(_) => panic!("{words:?} waits"),
    }
}

fn ask_line(store: &Store, db: u32, line: &str) -> Reply {
    ask(store, db, &line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

fn bulks(reply: Reply) -> Vec<Vec<u8>> {
    let items = match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        Reply::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        other => panic!("{other:?}"),
    };
    items.into_iter().map(|item| if let Reply::Bulk(bytes) = item { bytes } else { panic!("{item:?}") }).collect()
}

/// Returns a value in a form that depends neither on orders without a meaning nor on the time of reading.
fn shown(store: &Store, db: u32, key: &[u8]) -> Vec<Reply> {
    let ask = |words: &[&[u8]]| ask(store, db, words);
    let kind = ask(&[b"TYPE", key]);
    let Reply::Simple(name) = &kind else { panic!("{kind:?}") };
    let value = match &name[..] {
        "string" => ask(&[b"GET", key]),
        "list" => ask(&[b"LRANGE", key, b"0", b"-1"]),
        "zset" => ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
        "set" => {
            let mut members = bulks(ask(&[b"SMEMBERS", key]));
            members.sort();
            let with_expiry = members.into_iter().map(|member| {
                let left = ask(&[b"FIELDTTL", key, &member]);
                Reply::Array(vec![Reply::Bulk(member), left])
            });
            Reply::Array(with_expiry.collect())
        }
        "hash" => {
            let fields: BTreeMap<Vec<u8>, Vec<u8>> =
                bulks(ask(&[b"HGETALL", key])).chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            let with_expiry = fields.into_iter().map(|(field, value)| {
                let expiry = ask(&[b"HPEXPIRETIME", key, b"FIELDS", b"1", &field]);
                Reply::Array(vec![Reply::Bulk(field), Reply::Bulk(value), expiry])
            });
            Reply::Array(with_expiry.collect())
        }
        "stream" => timeless(ask(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"])),
        other => panic!("{other}"),
    };
    vec![kind.clone(), ask(&[b"PEXPIRETIME", key]), ask(&[b"OBJECT", b"STICKY", key]), value]
}

/// Drops when consumers were seen, which files do not have.
fn timeless(reply: Reply) -> Reply {
    match reply {
        Reply::Array(items) => {
            let mut is_time = false;
            let items = items.into_iter().map(|item| {
                let was_time = is_time;
                is_time = matches!(&item, Reply::Bulk(name) if name.ends_with(b"-time"));
                if was_time { Reply::Null } else { timeless(item) }
            });
            Reply::Array(items.collect())
        }
        Reply::Map(pairs) => timeless(Reply::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())),
        other => other,
    }
}

pub(crate) type Contents = BTreeMap<(u32, Vec<u8>), Vec<Reply>>;

/// Returns all that a store has.
pub(crate) fn contents(store: &Store) -> Contents {
    let keys = |db| bulks(ask(store, db, &[b"KEYS", b"*"])).into_iter().map(move |key| (db, key));
    let all = (0..16).flat_map(keys).map(|(db, key)| ((db, key.clone()), shown(store, db, &key)));
    // All elements have expired, so the key may be gone, too.
    all.filter(|(_, shown)| !matches!(&shown[..], [Reply::Simple(kind), .., Reply::Array(items)] if items.is_empty() && (kind == "set" || kind == "hash"))).collect()
}

/// Replays the files of a directory into a new store. Returns the log, too.
fn replay_in(
    dir: &dyn Files,
    store: &Store,
    options: ReplayOptions<'_>,
) -> (Result<Replayed, String>, Vec<(u8, String)>) {
    let lines = Mutex::new(Vec::new());
    let log = |level: u8, text: &str| lines.lock().expect("not poisoned").push((level, text.to_owned()));
    let parts = Parts::open(dir, DIRECTORY, NAME).expect("right files").0;
    let load = store.begin_load(None).expect("no other load");
    let replayed = load.replay(&parts, ReplayOptions { log: &log, ..options }).map_err(|fault| fault.to_string());
    assert!(!store.0.memory.is_timeless());
    drop(load);
    (replayed, lines.into_inner().expect("not poisoned"))
}

/// Returns a disk with a manifest and files.
fn disk(manifest: &str, files: &[(&str, &[u8])]) -> Disk {
    let disk = Disk::new(1, Plan::default());
    disk.make_directory(DIRECTORY).expect("a directory");
    put(&disk, MANIFEST, manifest.as_bytes());
    files.iter().for_each(|(name, bytes)| put(&disk, name.as_bytes(), bytes));
    disk
}

fn put(disk: &Disk, name: &[u8], bytes: &[u8]) {
    let directory = disk.directory(DIRECTORY).expect("a directory");
    directory.create(name).and_then(|mut file| file.write_all(bytes)).expect("a file");
}

fn read(disk: &Disk, name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let directory = disk.directory(DIRECTORY).expect("a directory");
    directory.open(name).and_then(|mut file| file.read_to_end(&mut bytes)).expect("a file");
    bytes
}

/// Returns a disk with one increment.
fn one_file(bytes: &[u8]) -> Disk {
    disk("file a.incr.aof seq 1 type i\n", &[("a.incr.aof", bytes)])
}

/// Returns commands, one in each line.
fn commands(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| encode(&line.split(' ').collect::<Vec<_>>())).collect()
}

/// Replays one file. Returns the store and what was logged as a warning.
#[track_caller]
fn replayed(lines: &[&str]) -> (Store, Vec<String>) {
    let store = store();
    let (result, log) = replay_in(&one_file(&commands(lines)), &store, ReplayOptions::default());
    result.expect("right commands");
    (store, log.into_iter().filter(|(level, _)| *level == WARNING).map(|(_, text)| text).collect())
}

#[track_caller]
fn fault(disk: &Disk, accepts_cut: bool) -> String {
    replay_in(disk, &store(), ReplayOptions { accepts_cut, ..ReplayOptions::default() }).0.expect_err("wrong files")
}

/// Commands with effects of all kinds; the second half comes after a rewrite.
const HALVES: [&[&str]; 2] = [
    &[
        "SET gone 1",
        "SELECT 5",
        "SET gone 1",
        "FLUSHALL",
        "SELECT 0",
        "SET string value EX 100000",
        "APPEND string more",
        "SET number 10",
        "INCRBYFLOAT number 0.5",
        "SETRANGE range 5 x",
        "BITFIELD bits SET u8 3 200",
        "SET late x PX 1",
        "RPUSH list a b c d",
        "LPOP list 2",
        "LMOVE list other RIGHT LEFT",
        "SADD set a b c d",
        "SADD ints 1 2 3",
        "SPOP set",
        "SMOVE ints set 2",
        "HSET hash f v n 1",
        "HINCRBYFLOAT hash n 1.5",
        "ZADD zset 1 a 2.5 b -inf c",
        "ZPOPMIN zset",
        "XADD stream * f v",
        "XADD stream * f w g x",
        "XADD stream * f z",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group reader COUNT 2 STREAMS stream >",
        "XADD short MAXLEN 2 1-1 f v",
        "XADD short MAXLEN 2 1-2 f v",
        "XADD short MAXLEN 2 1-3 f v",
        "XDEL short 1-3",
        "FUNCTION LOAD #!lua name=lib\nredis.register_function('add',function(k,a)redis.call('INCR',k[1])return redis.call('SADD',k[2],a[1])end)",
        "FCALL add 2 called names x",
    ],
    &[
        "FCALL add 2 called names y",
        "EVAL redis.call('SET',KEYS[1],'1');redis.call('PEXPIRE',KEYS[1],70000000);redis.call('SELECT','7');redis.call('RPUSH','seven','a') 1 evaluated",
        "XREADGROUP GROUP group other STREAMS stream >",
        "XAUTOCLAIM stream group third 0 0 COUNT 1",
        "XGROUP CREATECONSUMER stream group idle",
        "XGROUP CREATE stream second $",
        "PFADD logs a b c",
        "PFADD more c d",
        "PFMERGE merged logs more",
        "GEOADD geo 1 2 a 1.001 2 b",
        "GEOSEARCHSTORE near geo FROMMEMBER a BYRADIUS 1 km",
        "COPY list copied DB 3",
        "MOVE copied 3",
        "RENAME other renamed",
        "SORT ints DESC STORE sorted",
        "SUNIONSTORE union set ints",
        "ZRANGESTORE ranged zset 0 -1",
        "BITOP NOT inverted string",
        "EXPIRE hash 100000",
        "GETEX string PERSIST",
        "GETDEL range",
        "EXPIRE bits 0",
        "MULTI",
        "SET in 1",
        "SELECT 1",
        "RPUSH in a b",
        "EXEC",
        "SELECT 2",
        "SET two x",
        "SWAPDB 1 2",
        "SELECT 4",
        "SET flushed x",
        "FLUSHDB",
        "SET kept x",
        "SELECT 0",
        "XACK stream group 0-0",
        "XSETID short 9-9",
        "FUNCTION LOAD #!lua name=gone\nredis.register_function('f',function()end)",
        "FUNCTION DELETE gone",
        "DEL names",
    ],
];

/// Returns the words of a line; code of a library is one word.
fn words(line: &str) -> Vec<&str> {
    match line.strip_prefix("FUNCTION LOAD ") {
        Some(code) => vec!["FUNCTION", "LOAD", code],
        None => line.split(' ').collect(),
    }
}

/// Returns what a peer has, as a store that has restored its payloads shows it.
fn contents_of_peer(client: &mut Client) -> Contents {
    let store = Store::new(StoreOptions::default());
    for db in 0..16_u32 {
        client.ask(&["SELECT", &db.to_string()]);
        let keys = client.ask(&["KEYS", "*"]);
        for key in keys.lines().skip(1).filter(|line| !line.starts_with('$')) {
            client.command(&["DUMP", key]);
            let dump = client.read_reply();
            let start = dump.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
            let expiry = client.ask(&["PEXPIRETIME", key]);
            let expiry = expiry[1..].trim_ascii_end();
            let ttl = if expiry == "-1" { "0" } else { expiry };
            let payload = &dump[start..dump.len() - 2];
            let restore: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), ttl.as_bytes(), payload, b"ABSTTL"];
            assert_eq!(ask(&store, db, &restore), Reply::Simple("OK".into()), "{key}");
        }
    }
    contents(&store)
}

#[track_caller]
pub(crate) fn check_same(found: &Contents, expected: &Contents) {
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "{}", key.1.escape_ascii());
    }
    assert_eq!(found.len(), expected.len());
}

/// Runs a peer with the commands, and compares what its files make of a store with what they make of the peer.
#[track_caller]
fn check_peer(start: impl Fn(&[&str]) -> RedisServer, preamble: &str, more: &[&str]) {
    let path = tempfile::tempdir().expect("a directory");
    let dir = path.path().to_str().expect("UTF-8");
    let arguments = ["--dir", dir, "--appendonly", "yes", "--aof-use-rdb-preamble", preamble];
    let mut server = start(&[&arguments[..], &["--aof-timestamp-enabled", "yes"]].concat());
    let mut client = Client::connect(&server.address());
    for (number, half) in HALVES.into_iter().enumerate() {
        for line in half.iter().chain(if number == 1 { more } else { &[] }) {
            let reply = client.ask(&words(line));
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
        if number == 0 {
            client.ask(&["BGREWRITEAOF"]);
            wait_for("the rewrite", || {
                let info = client.ask(&["INFO", "persistence"]);
                (info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrites:1")).then_some(())
            });
        }
    }
    wait_for("a key to expire", || (client.ask(&["EXISTS", "late"]) == ":0\r\n").then_some(()));
    server.program.signal(libc::SIGTERM);
    assert_eq!(server.program.wait(), 0);

    let store = Store::new(StoreOptions { stripes: 8, ..StoreOptions::default() });
    let (result, log) = replay_in(&Directory::new(path.path()), &store, ReplayOptions::default());
    let replayed = result.expect("files of a peer");
    assert_eq!((replayed.errors, replayed.cut_bytes), (0, 0), "{log:?}");
    assert!(log.iter().all(|(level, _)| *level < WARNING), "{log:?}");
    // Not all that the peer had is in its files.
    let server = start(&arguments);
    let expected = contents_of_peer(&mut Client::connect(&server.address()));
    assert!(expected.len() > 26, "{}", expected.len());
    check_same(&contents(&store), &expected);
    assert_eq!(ask_line(&store, 0, "FCALL add 2 called names z"), Reply::Integer(1));
    let Reply::Array(libraries) = ask_line(&store, 0, "FUNCTION LIST") else { panic!("libraries") };
    assert_eq!(libraries.len(), 1);
}

#[test]
fn files_of_redis_are_replayed() {
    check_peer(RedisServer::start, "yes", &[]);
    check_peer(RedisServer::start, "no", &[]);
}

#[test]
fn files_of_valkey_8_are_replayed() {
    check_peer(|arguments| RedisServer::start_valkey("8.1", arguments), "no", &["SET string x IFEQ y"]);
}

#[test]
fn files_of_valkey_9_are_replayed() {
    let more = [
        "HSET timed a 1 b 2 c 3",
        "HEXPIRE timed 100000 FIELDS 1 a",
        "HSETEX timed EX 100000 FIELDS 1 d 4",
        "HEXPIRE timed 0 FIELDS 1 b",
        "HPERSIST timed FIELDS 1 d",
        "HGETEX timed EX 200000 FIELDS 1 c",
    ];
    for preamble in ["yes", "no"] {
        check_peer(|arguments| RedisServer::start_valkey("9.1", arguments), preamble, &more);
    }
}

/// As of Redis before 7.0: one file, an RDB file that commands follow.
#[test]
fn a_single_file_of_an_old_version_is_replayed() {
    let path = tempfile::tempdir().expect("a directory");
    let dir = path.path().to_str().expect("UTF-8");
    let server = RedisServer::start(&["--dir", dir]);
    let mut client = Client::connect(&server.address());
    client.ask(&["SET", "k", "1"]);
    client.ask(&["SELECT", "3"]);
    client.ask(&["SET", "other", "1"]);
    client.ask(&["SAVE"]);
    let rdb = std::fs::read(path.path().join("dump.rdb")).expect("a file");
    let tail = commands(&["SELECT 0", "INCR k", "MULTI", "SELECT 3", "APPEND other x", "EXEC"]);
    let disk = Disk::new(1, Plan::default());
    disk.put(NAME, &[&rdb[..], &tail].concat());
    let store = store();
    let (parts, found) = Parts::open(&disk, DIRECTORY, NAME).expect("an old file");
    assert_eq!((found, parts.manifest().base.is_some()), (Found::Old, true));
    drop(parts);
    let (result, log) = replay_in(&disk, &store, ReplayOptions::default());
    let replayed = result.expect("right files");
    let bytes = (rdb.len() + tail.len()) as u64;
    assert_eq!((replayed.commands, replayed.base_bytes, replayed.bytes), (2, bytes, bytes));
    assert_eq!(ask_line(&store, 0, "GET k"), Reply::Bulk(b"2".to_vec()));
    assert_eq!(ask_line(&store, 3, "GET other"), Reply::Bulk(b"1x".to_vec()));
    let texts: Vec<&str> = log.iter().map(|(_, text)| text.as_str()).collect();
    assert!(texts.contains(&"Reading RDB preamble from AOF file..."), "{texts:?}");
    assert!(texts.contains(&"Reading the remaining AOF tail..."), "{texts:?}");
}

/// A last file that is cut anywhere is shortened to what is whole, and makes what that made.
#[test]
fn a_file_that_is_cut_is_shortened() {
    let lines = [
        "SELECT 2",
        "SET k a",
        "RPUSH l a b c",
        "MULTI",
        "SET k b",
        "SELECT 3",
        "SET k c",
        "EXEC",
        "APPEND k d",
        "HSET h f v",
        "MULTI",
        "DEL h",
        "INCR n",
        "EXEC",
        "SET k e",
    ];
    let mut file = commands(&lines);
    file.splice(0..0, *b"#TS:1700000000\r\n");
    file.extend(b"#TS:1700000001\r\n");
    let mut made: BTreeMap<u64, Contents> = BTreeMap::new();
    for len in (0..=file.len()).rev().take(400) {
        for zeros in [0, 1 + len % 7] {
            let bytes = [&file[..len], &vec![0; zeros]].concat();
            let (disk, store) = (one_file(&bytes), store());
            let (result, log) = replay_in(&disk, &store, ReplayOptions::default());
            let replayed = result.unwrap_or_else(|fault| panic!("{len}: {fault}"));
            let whole = replayed.last_bytes;
            assert_eq!(read(&disk, b"a.incr.aof"), &file[..whole as usize], "{len}");
            assert_eq!(replayed.cut_bytes, bytes.len() as u64 - whole, "{len}");
            assert_eq!(log.iter().any(|(_, text)| text.contains("Truncating")), replayed.cut_bytes > 0);
            let now = contents(&store);
            assert_eq!(*made.entry(whole).or_insert_with(|| now.clone()), now, "{len}");
            // It is whole now.
            let again = self::store();
            let (result, log) = replay_in(&disk, &again, ReplayOptions { accepts_cut: false, ..Default::default() });
            assert_eq!((result.expect("a whole file").cut_bytes, log.len()), (0, 1), "{len}");
            assert_eq!(contents(&again), now, "{len}");
        }
    }
    assert!(made.len() > 8, "{}", made.len());
    let last = made.last_key_value().expect("one").1;
    assert_eq!(last.len(), 4, "{last:?}");
}

#[test]
fn a_cut_is_told_as_redis_does() {
    let whole = commands(&["SET k v"]);
    let file = [&whole[..], &commands(&["MULTI", "SET k w"])].concat();
    let store = store();
    let (result, log) = replay_in(&one_file(&file), &store, ReplayOptions::default());
    assert_eq!(result.expect("it is shortened").last_bytes, whole.len() as u64);
    let log: Vec<&str> = log.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(
        log[..log.len() - 1],
        [
            "Revert incomplete MULTI/EXEC transaction in AOF file a.incr.aof",
            "!!! Warning: short read while loading the AOF file a.incr.aof!!!",
            &format!("!!! Truncating the AOF a.incr.aof at offset {} !!!", whole.len()),
            "AOF a.incr.aof loaded anyway because aof-load-truncated is enabled",
        ]
    );
    assert!(log[4].starts_with("DB loaded from incr file a.incr.aof: 0."), "{log:?}");
    assert_eq!(ask_line(&store, 0, "GET k"), Reply::Bulk(b"v".to_vec()));
    let text = fault(&one_file(&file), false);
    assert_eq!(
        text,
        "Unexpected end of file reading the append only file a.incr.aof. You can: 1) Make a backup of your AOF file, then \
         use ./redis-check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server. (offset 27)"
    );
}

#[test]
fn what_is_wrong_is_told_as_redis_does() {
    let good = commands(&["SET k v"]);
    let two = |first: &[u8], second: &[u8]| {
        let manifest = "file a.base.aof seq 1 type b\nfile b.incr.aof seq 1 type i\nfile c.incr.aof seq 2 type i\n";
        disk(manifest, &[("a.base.aof", first), ("b.incr.aof", second), ("c.incr.aof", &good)])
    };
    let cut = &good[..good.len() - 1];
    assert!(replay_in(&two(&good, &good), &store(), ReplayOptions::default()).0.is_ok());
    for (first, second, name) in [(cut, &good[..], "a.base.aof"), (&good[..], cut, "b.incr.aof")] {
        let text = fault(&two(first, second), true);
        assert_eq!(text, format!("Fatal error: the truncated file is not the last file ({name}, offset 0)"));
        assert!(fault(&two(first, second), false).starts_with("Unexpected end of file reading"));
    }
    // An annotation without its end is not missed.
    assert!(replay_in(&two(&[&good[..], b"#TS"].concat(), &good), &store(), ReplayOptions::default()).0.is_ok());

    for accepts_cut in [true, false] {
        let bad = fault(&one_file(&[&good[..], b"x", &good].concat()), accepts_cut);
        assert_eq!(
            bad,
            "Bad file format reading the append only file a.incr.aof: make a backup of your AOF file, then use \
             ./redis-check-aof --fix <filename.manifest> (offset 27)"
        );
        let zeros = fault(&one_file(&[&good[..], &[0; 5], &good].concat()), accepts_cut);
        assert!(zeros.starts_with("Bad file format"), "{zeros}");
        for unknown in ["NOPE k", "XGROUP NOPE k"] {
            let name = unknown.split(' ').next().expect("a word");
            let text = fault(&one_file(&commands(&["SET k v", "MULTI", unknown, "EXEC"])), accepts_cut);
            let expected = format!("Unknown command '{name}' reading the append only file a.incr.aof (offset ");
            assert!(text.starts_with(&expected), "{text}");
        }
        let text = fault(&one_file(&commands(&["SET k"])), accepts_cut);
        assert_eq!(text, "Wrong number of arguments of 'SET' reading the append only file a.incr.aof (offset 20)");
        let text = fault(&one_file(&commands(&["SELECT 16"])), accepts_cut);
        assert!(text.contains("configured to handle more than 16 databases"), "{text}");
    }

    let base = |bytes: &[u8]| disk("file a.base.rdb seq 1 type b\n", &[("a.base.rdb", bytes)]);
    let text = fault(&base(b"REDIS0010\xff\0"), true);
    assert_eq!(text, "Error reading the RDB base file a.base.rdb, AOF loading aborted");
    let missing = one_file(&good);
    let parts = Parts::open(&missing, DIRECTORY, NAME).expect("files").0;
    missing.directory(DIRECTORY).expect("it exists").remove(b"a.incr.aof").expect("it exists");
    let store = store();
    let gone = store.begin_load(None).expect("no other").replay(&parts, ReplayOptions::default());
    let gone = gone.expect_err("a file is gone").to_string();
    assert_eq!(gone, "The append log file a.incr.aof doesn't exist: No such file or directory");
}

#[test]
fn nothing_has_expired_while_commands_are_replayed() {
    let past = (NOW_MS - 5).to_string();
    let file = [
        &format!("SET counter 1 PXAT {past}")[..],
        "INCR counter",
        "PERSIST counter",
        "SET dead x",
        &format!("PEXPIREAT dead {past}"),
        "APPEND dead y",
        "HSET hash a 1 b 2",
        &format!("HPEXPIREAT hash {past} FIELDS 1 a"),
        "HINCRBY hash a 4",
        "HPERSIST hash FIELDS 1 a",
        &format!("HPEXPIREAT hash {past} FIELDS 1 b"),
        "SET script 1 PXAT 5",
        "EVAL return(redis.call('INCR',KEYS[1])) 1 script",
        "PERSIST script",
    ];
    let (store, warnings) = replayed(&file);
    assert!(warnings.is_empty(), "{warnings:?}");
    // The key that has expired is there until somebody looks.
    assert_eq!(store.keys(), 4);
    for (line, reply) in [
        ("GET counter", Reply::Bulk(b"2".to_vec())),
        ("GET dead", Reply::Null),
        ("GET script", Reply::Bulk(b"2".to_vec())),
    ] {
        assert_eq!(ask_line(&store, 0, line), reply, "{line}");
    }
    assert_eq!(bulks(ask_line(&store, 0, "HGETALL hash")), [b"a", b"5"]);
    assert_eq!(store.keys(), 3);
}

#[test]
fn commands_do_not_wait_nor_count_nor_publish_and_need_no_room() {
    let store = store();
    store.limit_memory(1, Policy::NoEviction);
    let listener = Listener::of(&store, b"KEA", &["rpush", "set", "sortstore", "lpop", "del"]);
    let lines = [
        "BLPOP none 0",
        "XREAD BLOCK 0 STREAMS none $",
        "RPUSH l a b",
        "BLPOP l 0",
        "EVAL redis.call('SET',KEYS[1],'v') 1 k",
        "PING",
        "CLIENT SETNAME x",
        "SORT l BY nosort GET w_* STORE sorted",
        "DEL none",
    ];
    let (result, log) = replay_in(&one_file(&commands(&lines)), &store, ReplayOptions::default());
    let replayed = result.expect("right commands");
    assert_eq!((replayed.commands, replayed.errors), (7, 0), "{log:?}");
    store.limit_memory(0, Policy::NoEviction);
    assert_eq!(bulks(ask_line(&store, 0, "LRANGE l 0 -1")), [b"b"]);
    assert_eq!(bulks(ask_line(&store, 0, "LRANGE sorted 0 -1")), [b""]);
    assert_eq!(ask_line(&store, 0, "GET k"), Reply::Bulk(b"v".to_vec()));
    assert_eq!(store.stats().tickets, 0);
    assert_eq!(listener.outbox.len(), 0);
    assert_eq!(ask_line(&store, 0, "SET k w"), Reply::Simple("OK".into()));
    assert!(listener.outbox.len() > 0);
}

#[test]
fn errors_of_commands_are_logged_and_do_not_end_a_replay() {
    let (store, warnings) =
        replayed(&["SET k v", "RPUSH k x", "XGROUP DESTROY k g", "EVAL return(redis.call('GET')) 0", "SET k w"]);
    assert_eq!(ask_line(&store, 0, "GET k"), Reply::Bulk(b"w".to_vec()));
    let starts = [
        "== CRITICAL == This server is sending an error to its AOF-loading-client: 'WRONGTYPE Operation against a key \
         holding the wrong kind of value' after processing the command 'rpush'",
        "== CRITICAL == This server is sending an error to its AOF-loading-client: 'WRONGTYPE Operation against a key \
         holding the wrong kind of value' after processing the command 'xgroup|destroy'",
        "== CRITICAL == This server is sending an error to its AOF-loading-client: 'ERR ",
    ];
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{warnings:?}");
}

#[test]
fn large_commands_and_values_are_replayed() {
    let long = "x".repeat(3 << 20);
    let keys: Vec<String> = (0..3_000).map(|number| format!("k{number}")).collect();
    let pairs = keys.iter().map(|key| format!("{key} 1")).collect::<Vec<_>>().join(" ");
    let all = format!("MSET {pairs}");
    let elements = format!("RPUSH l {}", (0..20_000).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
    let some = format!("DEL {}", keys[..2_900].join(" "));
    let lines = [
        &all[..],
        &elements,
        &format!("SET long {long}"),
        "APPEND long y",
        "SORT l STORE sorted",
        "MULTI",
        &some,
        "EXEC",
    ];
    let (store, warnings) = replayed(&lines);
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(store.keys(), 103);
    assert_eq!(ask_line(&store, 0, "STRLEN long"), Reply::Integer(long.len() as i64 + 1));
    assert_eq!(ask_line(&store, 0, "LLEN sorted"), Reply::Integer(20_000));
}

#[test]
fn progress_is_told() {
    let lines: Vec<String> = (0..5_000).map(|number| format!("SET k{number} v")).collect();
    let file = commands(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let store = store();
    let (result, _) = replay_in(&one_file(&file), &store, ReplayOptions::default());
    assert_eq!(result.expect("right commands").bytes, file.len() as u64);
    let loading = &store.0.loading;
    assert_eq!(loading.total_bytes.load(Ordering::Relaxed), file.len() as u64);
    assert_eq!(loading.loaded_bytes.load(Ordering::Relaxed), file.len() as u64);
}

/// Returns commands of all kinds, with keys that are used often and keys that are not.
fn random_commands(seed: u64, count: usize) -> Vec<u8> {
    let mut next = sluicegate_data::random::numbers(seed);
    let mut file = Vec::new();
    let mut is_open = false;
    for number in 0..count {
        let [key, other] =
            [0, 1].map(|_| if next(2) == 0 { format!("hot{}", next(3)) } else { format!("k{}", next(200)) });
        let line = match next(60) {
            0 => format!("SELECT {}", next(3)),
            1 => format!("MSET {key} 1 {other} {number}"),
            2 => format!("RENAME {key} {other}"),
            3 => format!("DEL {key} {other}"),
            4 => format!("COPY {key} {other} REPLACE"),
            5 if next(20) == 0 => "SWAPDB 0 1".to_owned(),
            6 if next(40) == 0 => "FLUSHDB".to_owned(),
            7 => format!("EVAL return(redis.call('APPEND',KEYS[1],'{number}')) 1 s{key}"),
            8 if !is_open => "MULTI".to_owned(),
            9..12 if is_open => "EXEC".to_owned(),
            12..20 => format!("APPEND s{key} {number},"),
            20..28 => format!("RPUSH l{key} {number}"),
            28..33 => format!("LPOP l{key}"),
            33..40 => format!("SADD m{key} {}", next(50)),
            40..44 => format!("HINCRBY h{key} f{} 3", next(5)),
            44..47 => format!("PEXPIREAT l{key} {}", NOW_MS + 100_000),
            47..50 => format!("SET {key} {number}"),
            50..52 => format!("RPOPLPUSH l{key} l{other}"),
            52..54 => format!("INCR h{key}"),
            _ => format!("ZADD z{key} {} {}", next(100), next(20)),
        };
        is_open = line == "MULTI" || is_open && line != "EXEC";
        file.extend(commands(&[&line]));
    }
    if is_open {
        file.extend(commands(&["EXEC"]));
    }
    file
}

#[test]
fn threads_make_what_one_makes() {
    for seed in 0..6 {
        let disk = one_file(&random_commands(seed, 6_000));
        let made = [1, 2, 5].map(|threads| {
            let store = store();
            let parts = Parts::open(&disk, DIRECTORY, NAME).expect("right files").0;
            let load = store.begin_load(None).expect("no other load");
            let replayed = load.replay_on(Some(threads), &parts, ReplayOptions::default()).expect("right commands");
            drop(load);
            (contents(&store), replayed.commands, replayed.errors)
        });
        assert!(made[0].0.len() > 100 && made[0].2 > 10, "{} keys, {} errors", made[0].0.len(), made[0].2);
        assert!(made[1..].iter().all(|other| *other == made[0]), "seed {seed}");
    }
}
