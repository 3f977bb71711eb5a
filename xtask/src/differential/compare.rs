//! Comparison of two replies: byte for byte, except for randomness, clocks and the order of hash tables.
//!
//! Accepted differences are in [`EXPLAINED`]; commands that cannot be compared in [`LEFT_OUT`]. Both lists are in the
//! reference (`docs/reference/differences.md`), and an entry of the former that no run meets is an error.

use super::script::{SORTED, is_unordered};
use super::value::Value;

/// An intended difference.
pub(super) struct Explained {
    /// Commands, as the manual names them.
    pub(super) commands: &'static str,
    pub(super) difference: &'static str,
    pub(super) why: &'static str,
    /// Returns whether two different replies show this difference: the command's name in lower case, its words, the
    /// store's reply, Redis's reply.
    is: fn(&str, &[Vec<u8>], &Value, &Value) -> bool,
}

/// The intended differences, few in number.
pub(super) const EXPLAINED: &[Explained] = &[
    Explained {
        commands: "HELP of ACL, CLIENT, COMMAND, CONFIG, LATENCY, MEMORY, MODULE, OBJECT, PUBSUB, SLOWLOG and XINFO",
        difference: "other text after the same first line",
        why: "it describes this program",
        is: |_, words, ours, theirs| {
            words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"help"))
                && ours.items.first() == theirs.items.first()
        },
    },
    Explained {
        commands: "PFSELFTEST",
        difference: "passes with any `hll-sparse-max-bytes`, where Valkey fails with a small one",
        why: "the test sets its own limits",
        is: |name, _, ours, theirs| {
            name == "pfselftest" && ours.kind == b'+' && theirs.text.starts_with(b"ERR TESTFAILED")
        },
    },
    Explained {
        commands: "OBJECT REFCOUNT",
        difference: "2147483647 for every integer below 10,000, 1 for everything else",
        why: "which objects Redis shares depends on how the value was written, and on queued commands",
        is: |name, words, ours, theirs| {
            is_object(name, words, b"refcount")
                && matches!(&ours.text[..], b"1" | b"2147483647")
                && theirs.integer().is_some()
        },
    },
    Explained {
        commands: "COMMAND GETKEYS, COMMAND GETKEYSANDFLAGS",
        difference: "`Invalid command specified` for a command that does not exist here",
        why: "the command does not exist here",
        is: |name, words, ours, _| {
            name == "command"
                && words.get(1).is_some_and(|word| word.to_ascii_lowercase().starts_with(b"getkeys"))
                && ours.text == b"ERR Invalid command specified"
        },
    },
    Explained {
        commands: "SCAN with TYPE",
        difference: "an unknown type is not an error, and matches nothing",
        why: "only Valkey refuses it",
        is: |name, _, _, theirs| name == "scan" && theirs.text.starts_with(b"ERR unknown type name"),
    },
    Explained {
        commands: "CLIENT LIST, CLIENT KILL",
        difference: "an ID that is not a number gets Redis's errors",
        why: "Valkey's filters accept several IDs",
        is: |name, words, ours, theirs| {
            let is_of = |word: &Vec<u8>| [&b"list"[..], b"kill"].iter().any(|name| word.eq_ignore_ascii_case(name));
            name == "client" && words.get(1).is_some_and(is_of) && ours.kind == b'-' && theirs.kind == b'-'
        },
    },
    Explained {
        commands: "commands on sorted sets",
        difference: "a score of `-0` is kept by a small sorted set, and becomes `0` when the set is converted to a large one",
        why: "as in Redis 7",
        is: |name, _, ours, theirs| {
            (name.starts_with('z') || name.starts_with("bz")) && unsigned(ours.clone()) == unsigned(theirs.clone())
        },
    },
    Explained {
        commands: "OBJECT ENCODING of sorted sets",
        difference: "`listpack` after a ZADD of a long member that its options keep out",
        why: "as in Redis 7; Valkey converts the set before it looks at the options",
        is: |name, words, ours, theirs| {
            is_object(name, words, b"encoding") && ours.text == b"listpack" && theirs.text == b"skiplist"
        },
    },
    Explained {
        commands: "OBJECT ENCODING of strings",
        difference: "`embstr` up to 44 bytes, `raw` beyond",
        why: "as in Redis 7; in Valkey 8.1 the limit also depends on the length of the key",
        is: |name, words, ours, theirs| {
            let is_short = |value: &Value| matches!(&value.text[..], b"embstr" | b"raw");
            is_object(name, words, b"encoding") && is_short(ours) && is_short(theirs)
        },
    },
];

/// Returns whether a command is this subcommand of OBJECT.
fn is_object(name: &str, words: &[Vec<u8>], subcommand: &[u8]) -> bool {
    name == "object" && words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(subcommand))
}

/// Commands whose replies are not compared, by the beginning of their names, with the reason.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    ("acl|deluser", USERS),
    ("acl|dryrun", USERS),
    ("acl|genpass", "is random"),
    ("acl|load", USERS),
    ("acl|log", USERS),
    ("acl|save", USERS),
    ("acl|setuser", USERS),
    ("asking", "Valkey refuses it unless it is a node of a cluster"),
    ("bgrewriteaof", SAVES),
    ("bgsave", SAVES),
    ("client|caching", TRACKING),
    ("client|capa", "acts on replicas; has its own tests"),
    ("client|setinfo", "its effect shows in CLIENT LIST; has its own tests"),
    ("client|tracking", TRACKING),
    ("cluster", "Valkey refuses it unless it is a node of a cluster"),
    ("config|rewrite", "writes the server's file"),
    ("eval", SCRIPTS),
    ("eval_ro", SCRIPTS),
    ("evalsha", SCRIPTS),
    ("evalsha_ro", SCRIPTS),
    ("failover", "needs replicas; has its own tests"),
    ("fcall", SCRIPTS),
    ("fcall_ro", SCRIPTS),
    ("function", SCRIPTS),
    ("latency|doctor", "a report about the machine"),
    ("latency|graph", "drawn from durations; a test compares it with redis-server's"),
    ("latency|histogram", "durations of commands"),
    ("memory|malloc-stats", "the allocator's own report"),
    ("monitor", "each line has a time and a port; has its own tests"),
    ("psync", LINKS),
    ("quit", "ends the connection; has its own tests"),
    ("readonly", "Valkey refuses it unless it is a node of a cluster"),
    ("readwrite", "Valkey refuses it unless it is a node of a cluster"),
    ("replconf", LINKS),
    ("save", SAVES),
    ("script", SCRIPTS),
    ("shutdown", "ends the server; has its own tests"),
    ("sync", LINKS),
    ("waitaof", "there is no append-only file to wait for; has its own tests"),
];

/// Of commands between a master and its replicas.
const LINKS: &str = "begins or belongs to a replica's link; has its own tests";

/// Of commands of caches of clients.
const TRACKING: &str = "messages come when other clients write; has its own tests";

/// Of commands that write files.
const SAVES: &str = "writes a file; has its own tests";

/// Of commands that change who may do what.
const USERS: &str = "changes who may do what, or tells it; has its own tests";

const SCRIPTS: &str = "scripts are compared by a separate corpus";

/// Commands that are not sent, or only in another form, because Redis's answer is random or a bug of Redis.
pub(super) const NOT_SENT: &[(&str, &str)] = &[
    (
        "SORT of a sorted set in place",
        "Redis converts the set to its large encoding for good; a copy is sorted instead",
    ),
    ("ranges by name over members of different scores", "their result is undefined"),
    ("BITCOUNT with a start alone", "a syntax error as in Redis 7.2; Valkey counts to the end"),
    (
        "LSET, LINDEX, LPOS and LREM of -9223372036854775808",
        "the number cannot be negated; Valkey accepts it as an index",
    ),
    (
        "combinations of sets of more integers than set-max-intset-entries",
        "their encoding depends on how early a non-integer occurs, and so on the order of a hash table",
    ),
    (
        "CONFIG SET of list-max-listpack-size while lists exist",
        "Redis's lists keep the limit of their creation; a large list may be converted to a small one at another time",
    ),
    ("LSET with an index of more than 32 bits", "Valkey truncates it to 32 bits, which may be a valid index"),
    (
        "LIMIT with a negative offset",
        "Valkey counts it from the end of a large sorted set, and returns nothing from a small one",
    ),
    (
        "XREAD BLOCK of several streams while `keymiss` events are published",
        "Valkey runs the command again when it is served, and sends one more `keymiss` for each missing stream",
    ),
    ("MULTI and WATCH in a transaction", "Valkey refuses to run the transaction then"),
    ("BITFIELD SET of numbers near -9223372036854775808", "Redis's overflow check itself overflows"),
    ("SRANDMEMBER, HRANDFIELD and ZRANDMEMBER of counts far below zero", "Redis 7.0 allocates that many elements"),
    (
        "COUNT below the number of places found",
        "which of several places at the same distance are omitted depends on the sorting algorithm",
    ),
    (
        "LIMIT of SORT … BY other keys … ALPHA",
        "Redis's sort is not stable there, so it is undefined which of several equal texts are omitted",
    ),
    (
        "SORT directly after a command with a number out of range",
        "Redis does not reset errno and attributes the error to SORT; a ZADD is sent in between",
    ),
    ("XADD with an ID of `*`", "the ID is the current time of each program"),
    (
        "XADD with the next sequence number of a time whose sequence is exhausted",
        "Valkey reports that the elements are too large",
    ),
    ("times to live that end within the run", "which command first finds the key expired is random"),
];

/// Expectations of the public suites of Redis and Valkey that this store does not meet by design, apart from missing
/// features.
#[cfg(test)]
const BY_DESIGN: &[(&str, &str)] = &[
    (
        "a script that runs for longer than `busy-reply-threshold`",
        "only clients that need its keys get `BUSY`; all others are served, including EXEC and functions",
    ),
    (
        "a client that waits for several keys, one of which is given another type",
        "continues to wait for the others, where Redis 7.2 runs its command again and answers `WRONGTYPE`",
    ),
    (
        "a client that waits in a command and loses the permission for it",
        "gets `NOPERM` at once; Redis waits until its key has elements",
    ),
    (
        "permissions for keys",
        "hold for every key that a command uses: Redis finds none of PFMERGE without sources, and none in some words that the \
         command refuses",
    ),
    (
        "patterns with more than a thousand stars",
        "match correctly, in a time proportional to the lengths of pattern and text; Redis gives up and matches nothing",
    ),
    (
        "LATENCY",
        "has `command`, `fast-command` and those of saves and of the append-only file; others of Redis delay nobody here",
    ),
    (
        "`rdb_changes_since_last_save` in INFO",
        "counts each change of a key once, even a change of several elements; after FLUSHALL with save points it is 0 once the \
         empty store is saved, within a tenth of a second, and not before the reply",
    ),
    (
        "REPLICAOF within EXEC",
        "takes effect behind the transaction, which belongs to one history as a whole: behind `REPLICAOF NO ONE` ROLE says \
         `master`, but scripts in it can still be refused writes, and INFO can still say `slave`; behind `REPLICAOF host port` a \
         transaction that has written goes on writing",
    ),
    (
        "a replica that may be written to",
        "remembers up to 64 MiB of names of keys to which its clients have given an expiry; further ones are hidden once they \
         have expired, and stay",
    ),
    (
        "an RDB file that is damaged",
        "ends the start with the position in the file and the key in the log; the file is not examined further, and \
         `sanitize-dump-payload` has no effect, because every value is checked",
    ),
    (
        "`dir` in CONFIG SET",
        "is the directory of the store's files, and not the working directory of the process, which stays as it is",
    ),
    (
        "saves and rewrites",
        "have no child process: `total_forks` and `current_cow_size` are of this process, nothing can be killed, and a base file \
         is always an RDB file, whatever `aof-use-rdb-preamble` says",
    ),
    (
        "SWAPDB",
        "tells clients that track keys that all keys have changed, as FLUSHALL does; Redis tells them nothing, and their caches \
         keep the values of the other database",
    ),
    (
        "messages of CLIENT TRACKING to the client that runs a command",
        "follow its reply, whichever client the keys were read by; redis-server 7.0 puts those redirected to it before the reply \
         or inside that of EXEC. Keys that are evicted to make room for the command are told after its reply, too, and a command \
         that needs no memory evicts none",
    ),
    (
        "a client that waits in XREAD and tracks keys",
        "may get its reply before the message of the change that ended its wait",
    ),
    (
        "prefixes of CLIENT TRACKING of which the second and a later one overlap",
        "are refused; Redis reports the error, tracks them, and replies a second time",
    ),
    (
        "CLIENT TRACKING of a client that is gone",
        "its readings are forgotten before a key is known to be read by more than 64 clients, and all of them with the last client \
         that has tracked; Redis keeps them until the keys change",
    ),
    ("parameters that CONFIG GET shows only by their whole name", "belong to Redis's own tests, and do not exist here"),
    ("Lua tables traversed by `pairs` and cmsgpack", "have another order, which Lua does not define"),
    (
        "DEBUG",
        "has DIGEST, DIGEST-VALUE, ERROR, LOADAOF, LOG, OBJECT, POPULATE, PROTOCOL (without `attrib`), RELOAD, \
         SET-ACTIVE-EXPIRE, SLEEP and STRINGMATCH-LEN; the other subcommands change or show data structures of Redis. SLEEP delays only the reply of its own client, also in a \
         transaction, and DEBUG is never allowed in scripts",
    ),
    (
        "SCAN and KEYS",
        "omit expired keys without removing them; the next expiry cycle removes them. The difference shows only with \
         DEBUG SET-ACTIVE-EXPIRE 0; DEBUG OBJECT does not find expired keys",
    ),
    (
        "`used_memory`",
        "rises by 0.9 MiB with the first key of each database, for its shards; if the memory limit leaves less than \
         that, no further database can be used",
    ),
    ("`used_memory_lua`", "includes an interpreter for each worker that has run a script"),
    (
        "clients that do not read their replies",
        "are not read from until they read, so their replies neither grow without bound nor cause eviction. \
         `client-output-buffer-limit` counts bytes beyond the first 16 KiB; Redis counts its blocks, which are larger \
         than their contents in replies of many short elements. The soft limit is measured exactly, where Redis counts \
         whole seconds of the clock",
    ),
    ("`maxmemory-clients`", "is checked after a complete command has run, where Redis checks it before"),
    (
        "CLIENT LIST",
        "has the fields of Redis 7.4, with `watch`. An idle client has no query buffer, so `qbuf` and `qbuf-free` are \
         0; `qbuf` of a partial request counts all of it. The size of a growing buffer depends on how the request \
         arrives, so `tot-mem` of clients with requests of the same size may differ by half",
    ),
    ("INFO", "has no section `debug`, which describes Redis's event loop, but `tls_handshake_errors` in `stats`"),
    (
        "TLS",
        "is that of rustls: TLS 1.2 and 1.3, so `tls-protocols` with older versions is refused, and `tls-dh-params-file` has \
         no effect. A handshake that does not end is closed after `timeout`, or 10 seconds if that is 0. \
         `tls-ca-cert-dir` takes every file of the directory, whatever its name, when the parameter is set, and \
         `tls-session-cache-size 0` stands for 1048576 sessions",
    ),
    (
        "parameters whose absence would surprise a user",
        "are refused by name, not ignored: `enable-module-command`, `activedefrag` and those of other commands that do not \
         exist here",
    ),
    (
        "`threads`, `server-cpulist`, `bio-cpulist`, `bgsave-cpulist` and `aof-rewrite-cpulist` in CONFIG GET",
        "the first exists only here; the others have their Redis 7.4 names in addition to those of 7.2",
    ),
    ("`proc-title-template`", "has no effect: the process keeps its command line"),
    (
        "features of Valkey alone",
        "do not exist here: `NOSUB`, `ERRORSTATS_OVERFLOW`, ZSCAN with NOSCORES, `tot-net-in`, `tot-net-out` and `tot-cmds` \
         in CLIENT LIST, prefetching, error texts of scripts and functions with `server.` in place of `redis.`",
    ),
];

/// Returns whether a command is left out.
pub(super) fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|(start, _)| name == *start || name.starts_with(&format!("{start}|")))
}

/// The result of comparing two replies.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Equal,
    /// The entry of [`EXPLAINED`].
    Explained(usize),
    Different,
}

/// Returns the allowed difference between two clock readings in succession, in the unit of a command's times.
fn clocks_apart(name: &str) -> Option<i64> {
    match name {
        "ttl" | "expiretime" => Some(60),
        "pttl" | "pexpiretime" => Some(60_000),
        _ => None,
    }
}

/// Compares replies to a command.
pub(super) fn compare(words: &[Vec<u8>], ours: &Value, theirs: &Value) -> Verdict {
    if ours == theirs {
        return Verdict::Equal;
    }
    let name = words.first().map_or_else(String::new, |word| String::from_utf8_lossy(word).to_ascii_lowercase());
    let [left, right] = [ours, theirs].map(|value| normalised(&name, words, value.clone()));
    if left == right {
        return Verdict::Equal;
    }
    if let (Some(apart), Some(left), Some(right)) = (clocks_apart(&name), left.integer(), right.integer())
        && left > 0
        && (left - right).abs() <= apart
    {
        return Verdict::Equal;
    }
    if matches!(name.as_str(), "scan" | "sscan" | "hscan" | "zscan")
        && let ([left, _], [right, _]) = (&left.items[..], &right.items[..])
        && (left.text != b"0" || right.text != b"0")
    {
        // Only whole iterations are comparable.
        return Verdict::Equal;
    }
    let is_of_scores = name.starts_with('z') || name.starts_with("bz");
    if is_of_scores && long_scores(left.clone()) == long_scores(right.clone()) {
        return Verdict::Equal;
    }
    match EXPLAINED.iter().position(|explained| (explained.is)(&name, words, &left, &right)) {
        Some(at) => Verdict::Explained(at),
        None => Verdict::Different,
    }
}

/// Returns a reply without the parts that may differ.
fn normalised(name: &str, words: &[Vec<u8>], mut value: Value) -> Value {
    if matches!(value.kind, b'-' | b'!') || value.is_null {
        return value;
    }
    // The elements found by an incomplete iteration are random.
    let cursor = if name == "scan" { 1 } else { 2 };
    let is_scan = matches!(name, "scan" | "sscan" | "hscan" | "zscan");
    if is_scan && words.get(cursor).is_some_and(|word| word.iter().any(|byte| (b'1'..=b'9').contains(byte))) {
        return shape_only(&value);
    }
    let word =
        |at: usize| words.get(at).map_or_else(String::new, |word| String::from_utf8_lossy(word).to_ascii_lowercase());
    match name {
        "keys" | "smembers" | "sinter" | "sunion" | "sdiff" | "hkeys" | "hvals" => value.items.sort(),
        "hgetall" => sort_pairs(&mut value.items),
        "spop" => draw(&mut value, word(2).parse().ok()),
        "srandmember" | "hrandfield" | "zrandmember" => {
            // RESP2 has the elements of a pair in one flat array.
            if words.len() == 4 && value.items.first().is_some_and(|item| item.items.is_empty()) {
                value.items = value.items.chunks(2).map(|pair| row(pair.to_vec())).collect();
            }
            draw(&mut value, word(2).parse().ok());
        }
        "scan" | "sscan" => {
            if let Some(found) = value.items.get_mut(1) {
                found.items.sort();
            }
        }
        "hscan" | "zscan" => {
            if let Some(found) = value.items.get_mut(1) {
                sort_pairs(&mut found.items);
            }
        }
        "sort" | "sort_ro" if words[1] == SORTED && is_unordered(words) => {
            // Without an order, it is arbitrary which elements a limit selects.
            match (2..words.len()).any(|at| word(at) == "limit") {
                true => value.items.iter_mut().for_each(|item| *item = Value::stand_in("any")),
                false => value.items.sort(),
            }
        }
        "sort" | "sort_ro" if words[1] == SORTED && (2..words.len()).any(|at| word(at) == "alpha") => {
            // Redis compares only up to a NUL, and elements equal up to there are in any order.
            let text = |item: &Value| item.text.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
            value.items.iter_mut().for_each(|item| item.text = text(item));
        }
        "pubsub" if matches!(word(1).as_str(), "channels" | "shardchannels") => value.items.sort(),
        "config" if word(1) == "get" => sort_pairs(&mut value.items),
        "randomkey" | "time" | "lastsave" | "info" | "lolwut" => return shape_only(&value),
        "command" => match word(1).as_str() {
            "count" | "docs" | "" => return shape_only(&value),
            "list" if words.len() == 2 => return shape_only(&value),
            "list" => value.items.sort(),
            // Versions 7.2 and 7.0 differ in keys, tips and subcommands, which tests of the catalogue compare.
            "info" if words.len() == 2 => return shape_only(&value),
            "info" => value.items.iter_mut().for_each(|row| row.items.truncate(2)),
            _ => {}
        },
        "client" if matches!(word(1).as_str(), "id" | "info" | "list") => return shape_only(&value),
        "memory" if word(1) != "help" => return shape_only(&value),
        "object" if matches!(word(1).as_str(), "freq" | "idletime") => return shape_only(&value),
        "dump" => return shape_only(&value),
        "debug" if word(1) == "object" => return shape_only(&value),
        "xinfo" => {
            for pair in value.items.chunks_mut(2).filter(|pair| pair[0].text == b"radix-tree-nodes") {
                pair[1] = Value::stand_in("any");
            }
            return without_times(value);
        }
        "xpending" => return without_times(row(vec![Value::stand_in("pending"), value])),
        "hello" => {
            for pair in value.items.chunks_mut(2) {
                if matches!(&pair[0].text[..], b"server" | b"version" | b"id") {
                    pair[1] = Value::stand_in("any");
                }
            }
        }
        _ => {}
    }
    value
}

/// Replaces the times in what XINFO replies of consumers and of pending entries, each an ID, possibly an owner, a time and
/// a number of deliveries. A consumer that never succeeded has the time -1, which is compared.
fn without_times(mut value: Value) -> Value {
    let forget = |value: &mut Value| {
        if value.integer().is_some_and(|time| time >= 0) {
            *value = Value::stand_in("time");
        }
    };
    for at in 1..value.items.len() {
        let name = value.items[at - 1].text.clone();
        match &name[..] {
            b"seen-time" | b"active-time" | b"idle" | b"inactive" => forget(&mut value.items[at]),
            b"pending" => {
                for pending in value.items[at].items.iter_mut().filter(|pending| pending.items.len() >= 3) {
                    let place = pending.items.len() - 2;
                    forget(&mut pending.items[place]);
                }
            }
            _ => {}
        }
    }
    value.items = value.items.into_iter().map(without_times).collect();
    value
}

fn row(items: Vec<Value>) -> Value {
    Value { kind: b'*', text: Vec::new(), items, is_null: false }
}

fn sort_pairs(items: &mut Vec<Value>) {
    let mut pairs: Vec<Vec<Value>> = items.chunks(2).map(<[Value]>::to_vec).collect();
    pairs.sort();
    *items = pairs.concat();
}

/// Normalises a random selection: its size is compared, and its elements only if all were requested.
fn draw(value: &mut Value, count: Option<i64>) {
    const EVERYTHING: i64 = 1_000;
    match count {
        Some(EVERYTHING..) => value.items.sort(),
        _ if value.items.is_empty() && !matches!(value.kind, b'*' | b'~') => *value = shape_only(value),
        _ => value.items.iter_mut().for_each(|item| *item = Value::stand_in(item.shape())),
    }
}

fn shape_only(value: &Value) -> Value {
    Value::stand_in(value.shape())
}

/// Returns a reply in which zero has no sign.
fn unsigned(mut value: Value) -> Value {
    if value.text == b"-0" {
        value.text = b"0".to_vec();
    }
    value.items = value.items.into_iter().map(unsigned).collect();
    value
}

/// Returns a reply in which equal scores of sixteen digits or more look alike: the algorithm of Redis and Valkey finds the
/// shortest form of nearly all numbers, and one with a digit more of the others.
fn long_scores(mut value: Value) -> Value {
    let digits = value.text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if digits >= 16 {
        return numbers(value);
    }
    value.items = value.items.into_iter().map(long_scores).collect();
    value
}

/// Returns a reply in which equal numbers look alike.
pub(super) fn numbers(mut value: Value) -> Value {
    if matches!(value.kind, b'$' | b',') {
        let text = std::str::from_utf8(&value.text).ok().filter(|text| text.contains(['.', 'e']) || text.len() > 16);
        if let Some(number) = text.and_then(|text| text.parse::<f64>().ok()) {
            value.text = format!("{number:e}").into_bytes();
        }
    }
    value.items = value.items.into_iter().map(numbers).collect();
    value
}

/// Returns the messages of the subscribed connection in comparable form: channels unsubscribed together are in any
/// order.
pub(super) fn messages(frames: Vec<Value>) -> Vec<Value> {
    let mut made: Vec<Value> = Vec::new();
    let mut left: Vec<Value> = Vec::new();
    let kind = |frame: &Value| frame.items.first().map_or(&b""[..], |item| &item.text[..]).to_vec();
    for frame in frames {
        let mut frame = frame;
        for item in &mut frame.items {
            // Keys expire within a run only if they are given a time in the past: Valkey 8 has this event for it.
            if item.text.ends_with(b"expired") {
                item.text.truncate(item.text.len() - b"expired".len());
                item.text.extend_from_slice(b"del");
            }
        }
        if kind(&frame).ends_with(b"unsubscribe") {
            left.push(frame);
            continue;
        }
        made.append(&mut in_any_order(std::mem::take(&mut left)));
        // A message that matches several patterns is delivered for them in any order.
        let is_same = |other: &Value| kind(&frame) == b"pmessage" && other.items.get(2..) == frame.items.get(2..);
        let same = made.iter().rev().take_while(|other| is_same(other)).count();
        let at = made.len() - same + made[made.len() - same..].partition_point(|other| *other < frame);
        made.insert(at, frame);
    }
    made.append(&mut in_any_order(left));
    // Versions 7.0 and 7.2 differ in whether a connection's own message precedes its reply.
    let (mut pushed, replies): (Vec<Value>, Vec<Value>) = made.into_iter().partition(|frame| frame.kind == b'>');
    pushed.extend(replies);
    pushed
}

/// Returns frames about unsubscribed channels and the number that remains, with the channels sorted and the numbers in
/// the order received.
fn in_any_order(mut frames: Vec<Value>) -> Vec<Value> {
    let mut channels: Vec<Value> = frames.iter().filter_map(|frame| frame.items.get(1).cloned()).collect();
    channels.sort();
    for (frame, channel) in frames.iter_mut().zip(channels) {
        if let Some(item) = frame.items.get_mut(1) {
            *item = channel;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, ours: &str, theirs: &str, expected: Verdict) {
        let words: Vec<Vec<u8>> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let [ours, theirs] = [ours, theirs].map(|text| Value::parse(text.replace(' ', "\r\n").as_bytes()));
        assert_eq!(compare(&words, &ours, &theirs), expected, "{command}: {ours}, {theirs}");
    }

    #[test]
    fn order_chance_and_clocks_are_left_out_of_the_comparison() {
        check("GET a", "$1 a ", "$1 a ", Verdict::Equal);
        check("GET a", "$1 a ", "$1 b ", Verdict::Different);
        check("GET a", "$-1 ", "*-1 ", Verdict::Different);
        check("smembers a", "*2 :1 :2 ", "*2 :2 :1 ", Verdict::Equal);
        check("LRANGE a 0 1", "*2 :1 :2 ", "*2 :2 :1 ", Verdict::Different);
        check("HGETALL a", "*4 :1 :2 :3 :4 ", "*4 :3 :4 :1 :2 ", Verdict::Equal);
        check("HGETALL a", "*4 :1 :2 :3 :4 ", "*4 :3 :2 :1 :4 ", Verdict::Different);
        check("SRANDMEMBER a 2", "*2 :1 :2 ", "*2 :7 :8 ", Verdict::Equal);
        check("SRANDMEMBER a 2", "*2 :1 :2 ", "*1 :7 ", Verdict::Different);
        check("SRANDMEMBER a 1000", "*2 :1 :2 ", "*2 :7 :8 ", Verdict::Different);
        check("SRANDMEMBER a", "$1 a ", "$1 b ", Verdict::Equal);
        check("TTL a", ":100 ", ":101 ", Verdict::Equal);
        check("TTL a", ":-1 ", ":-2 ", Verdict::Different);
        check("BITCOUNT a 0", "-ERR\u{a0}syntax\u{a0}error ", ":1 ", Verdict::Different);
        check("ZSCORE a b", "$1 0 ", "$2 -0 ", Verdict::Explained(6));
        check("ZSCORE a b", "$17 6599.400000000001 ", "$18 6599.4000000000005 ", Verdict::Equal);
        check("ZSCORE a b", "$3 0.1 ", "$19 0.10000000000000001 ", Verdict::Different);
        check("INCRBYFLOAT a 1", "$3 0.1 ", "$19 0.10000000000000001 ", Verdict::Different);
        check("DUMP a", "$1 a ", "$-1 ", Verdict::Different);
    }

    /// `docs/reference/differences.md`.
    fn page() -> String {
        let mut page = "\
# Where replies differ from Redis's

The store implements Redis 7.2 and the features that Redis 7.4 and Valkey 8.1 share beyond it. `cargo xtask differential`
sends the same random commands to this store and to Valkey 8.1, and compares replies, keyspace events and the stored data.
These are the only accepted differences; any other is a bug. [The list of commands](commands.md) has the missing commands.

| commands | here | why |
|---|---|---|
"
        .to_owned();
        for row in EXPLAINED {
            page += &format!("| {} | {} | {} |\n", row.commands, row.difference, row.why);
        }
        page += "
Compared apart from order, randomness or the clock: replies in the order of a hash table (`SMEMBERS`, `HGETALL`, `KEYS`),
random elements (`SRANDMEMBER`, `SPOP`, `RANDOMKEY`), times to live. Setting an expiry time in the past removes the key
with the event `del`, as in Redis (`expired` in Valkey 8). Scores of sixteen digits or more are compared as numbers: here they
have as few digits as possible, and rarely one less than in Redis. For figures about the process (`INFO`, `CLIENT LIST`, `MEMORY`,
`OBJECT FREQ`) only the form of the reply is compared.

Not compared:

";
        for (name, why) in LEFT_OUT {
            page += &format!("- {}: {why}\n", name.to_ascii_uppercase().replace('|', " "));
        }
        page += "\nNot sent:\n\n";
        NOT_SENT.iter().for_each(|(what, why)| page += &format!("- {what}: {why}\n"));
        page += "
The suites of Redis 7.2 and Valkey 8.0, apart from replication and modules,
have further expectations that this store does not meet by design:

";
        BY_DESIGN.iter().for_each(|(what, how)| page += &format!("- {what}: {how}\n"));
        page
    }

    /// `UPDATE_DOCS=1` writes the page.
    #[test]
    fn the_manual_says_what_differs() {
        let path = crate::run::root().join("docs/reference/differences.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, page()).expect("writable");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page(), "docs/reference/differences.md is behind: run with UPDATE_DOCS=1");
    }
}
