//! CLIENT TRACKING, compared to the byte with redis-server 7.0 and Valkey 8.1, and with a model of caches.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Clock, ManualClock, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer, encode, wait_for};

use crate::Random;
use crate::support::Running;

/// One conversation: lines of the form `connection: command; command…`. The commands of a line are sent at once; then
/// everything that any connection receives is read. `@x` is the number of connection `x`, `-x` closes a connection, and
/// commands after `x!:` get no reply yet.
type Conversation = &'static [&'static str];

/// The connections of a conversation, by their names, with their numbers.
struct Connections {
    address: String,
    open: Vec<(char, Client)>,
    ids: HashMap<char, String>,
    waiting: Vec<char>,
    syncs: usize,
    seen: String,
}

impl Connections {
    fn get(&mut self, name: char) -> &mut Client {
        if !self.open.iter().any(|(other, _)| *other == name) {
            let mut client = Client::connect(&self.address);
            let id = client.ask(&["CLIENT", "ID"]);
            self.ids.insert(name, id.trim_start_matches(':').trim_end().to_owned());
            self.open.push((name, client));
        }
        &mut self.open.iter_mut().find(|(other, _)| *other == name).expect("open").1
    }

    /// Replaces the names of connections in a command.
    fn resolved(&self, command: &str) -> String {
        self.ids.iter().fold(command.to_owned(), |text, (name, id)| text.replace(&format!("@{name}"), id))
    }

    /// Reads what all connections that do not wait have received, that of `first` first.
    fn sync(&mut self, first: char) {
        self.syncs += 1;
        let token = format!("sync-{}", self.syncs);
        // The commands have run once the connection that sent them has its replies, so it comes first.
        self.open.sort_by_key(|(name, _)| (*name != first, *name));
        let mut lines = Vec::new();
        for (name, client) in &mut self.open {
            if self.waiting.contains(name) {
                continue;
            }
            client.command(&["PING", &token]);
            let end = format!("{token}\r\n");
            let got = String::from_utf8(client.read_until(end.as_bytes())).expect("text");
            let head = got.len() - end.len();
            let mut text = got[..head].to_owned();
            for ping in ["*2\r\n$4\r\npong\r\n", ">2\r\n$4\r\npong\r\n"] {
                text = text.replace(&format!("{ping}${}\r\n", token.len()), "");
            }
            text = text.strip_suffix(&format!("${}\r\n", token.len())).unwrap_or(&text).to_owned();
            if !text.is_empty() {
                for (other, id) in &self.ids {
                    if text == format!(":{id}\r\n") {
                        text = format!("@{other}");
                    }
                    // Only here, because other integers may be the same number.
                    for before in ["tracking-redir-broken\r\n", "$8\r\nredirect\r\n"] {
                        text = text.replace(&format!("{before}:{id}\r\n"), &format!("{before}:@{other}\r\n"));
                    }
                }
                lines.push(format!("  {name} {text:?}\n"));
            }
        }
        lines.sort();
        self.seen += &lines.concat();
    }
}

/// Carries out a conversation and returns what every connection has received.
fn converse(address: &str, conversation: Conversation) -> String {
    let (ids, address) = (HashMap::new(), address.to_owned());
    let (open, waiting, seen) = (Vec::new(), Vec::new(), String::new());
    let mut connections = Connections { address, open, ids, waiting, syncs: 0, seen };
    let mut admin = Client::connect(&connections.address);
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
    for line in conversation {
        connections.seen += &format!("{line}\n");
        if let Some(name) = line.strip_prefix('-') {
            let name = name.chars().next().expect("a name");
            connections.open.retain(|(other, _)| *other != name);
            let gone = format!("id={} ", connections.ids[&name]);
            wait_for("a connection to be gone", || (!admin.ask(&["CLIENT", "LIST"]).contains(&gone)).then_some(()));
        } else {
            let (who, commands) = line.split_once(": ").expect("a line");
            let name = who.chars().next().expect("a name");
            connections.get(name);
            if let Some(version) = commands.strip_prefix("HELLO ") {
                // The reply names the program.
                connections.get(name).ask(&["HELLO", version]);
                continue;
            }
            connections.waiting.retain(|other| *other != name);
            if who.ends_with('!') {
                connections.waiting.push(name);
            }
            let commands: String = commands.split("; ").map(|command| connections.resolved(command) + "\r\n").collect();
            connections.get(name).send(commands);
            if !who.ends_with('!') {
                // With the first reply all have run: what follows is no part of the same turn.
                connections.get(name).stream().peek(&mut [0]).expect("a reply");
            }
            connections.sync(name);
            continue;
        }
        connections.sync(' ');
    }
    connections.seen
}

/// Checks that conversations are the same with the peers and with the store, and returns what differs.
fn check(conversations: &[Conversation], peers: &[(&str, &RedisServer)], ours: &Running) {
    let mut differences = String::new();
    for conversation in conversations {
        let found = converse(&ours.address(), conversation);
        for (name, peer) in peers {
            let expected = converse(&peer.address(), conversation);
            if found != expected {
                differences += &format!("--- {name}\n{expected}--- ours\n{found}\n");
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Conversations in which all programs say the same.
const ALIKE: &[Conversation] = &[
    // A key is told once, and then only after it was read again.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: GET k",
        "b: SET k 1",
        "b: SET k 2",
        "a: GET k; GET k; GET other",
        "b: DEL k",
        "b: SET other 1; SET k 1",
        "a: CLIENT TRACKING OFF",
        "a: GET k",
        "b: SET k 3",
    ],
    // Own changes are told after the reply.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: GET k; SET k 1; GET k; INCR k; GET k",
        "a: MGET k x y; MSET k 1 x 2 y 3; PING",
        "a: GET k; DEL k x y",
        "a: GET n; RENAME n m; SET n 1; GET m; GET n; RENAME n m; EXISTS n m",
    ],
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON NOLOOP",
        "a: GET k; SET k 1; GET k",
        "b: SET k 2",
        "a: MULTI; GET k; SET k 1; EXEC",
        "a: EVAL \"return{redis.call('get',KEYS[1]),redis.call('set',KEYS[1],2)}\" 1 k",
        "b: SET k 3",
    ],
    // In MULTI, behind the whole reply.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: MULTI; GET k; SET k 1; GET k; SET k 2; GET j; EXEC",
        "b: SET k 1; SET j 1",
        "a: GET k; GET j",
        "b: MULTI; SET k 1; SET k 2; SET j 1; SET k 3; EXEC",
        "a: MULTI; GET k; MGET k j; EXEC; GET j",
        "b: MULTI; FLUSHALL; SET k 1; EXEC",
        "a: GET k",
        "a: MULTI; GET k; FLUSHDB; SET k 1; EXEC; GET k",
        "b: SET k 1",
        "a: GET k; MULTI; SET k 1; DISCARD",
        "a: WATCH k; SET k 5; MULTI; GET k; EXEC",
    ],
    // Scripts: reads count for the caller, changes are told at the end.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: EVAL \"return{redis.call('get',KEYS[1]),redis.call('hget',KEYS[2],'f')}\" 2 k h",
        "b: EVAL \"redis.call('set',KEYS[1],1)redis.call('hset',KEYS[2],'f','v')redis.call('set',KEYS[1],2)\" 2 k h",
        "a: EVAL_RO \"return(redis.call('get',KEYS[1]))\" 1 k",
        "b: SET k 1",
        "a: EVAL \"redis.call('set',KEYS[1],1)return(redis.call('get',KEYS[1]))\" 1 k",
        "b: SET k 1",
        "a: GET k; EVAL \"return(redis.call('set',KEYS[1],1))\" 1 k",
        "a: MULTI; GET k; EVAL \"return(redis.call('set',KEYS[1],1))\" 1 k; GET k; EXEC",
        "b: SET k 1",
        "b: EVAL \"return(redis.call('flushall'))\" 0",
    ],
    // Commands of every kind.
    &[
        "b: SET s abc; RPUSH l a b c; HSET h f v; SADD t a b; ZADD z 1 a 2 b; XADD x 1-1 f v; PFADD p a",
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: STRLEN s; LRANGE l 0 -1; HGETALL h; SMISMEMBER t a; ZRANGE z 0 -1; XRANGE x - +; PFCOUNT p; TTL s; TYPE h",
        "b: APPEND s d; LPUSH l x; HSET h g w; SADD t c; ZADD z 3 c; XADD x 1-2 f v; PFADD p b",
        "a: STRLEN s; LLEN l; HLEN h; SCARD t; ZCARD z; XLEN x; PFCOUNT p; OBJECT ENCODING s; DUMP nosuch",
        "b: EXPIRE s 100; LTRIM l 0 1; HDEL h g; SREM t c; ZREM z c; XDEL x 1-2; PFMERGE p q",
        "a: GETRANGE s 0 1; LINDEX l 0; HGET h f; SISMEMBER t a; ZSCORE z a; TOUCH s; EXISTS q p",
        "b: PERSIST s; LSET l 0 z; HINCRBY h n 1; SMOVE t u a; ZINCRBY z 1 a; SETRANGE s 0 x; COPY s q REPLACE",
        "a: GETBIT s 1; SRANDMEMBER nosuch; SINTER t u; ZUNION 1 z; SORT_RO l ALPHA; BITCOUNT s; LCS s q; BITPOS s 1",
        "b: SETBIT s 1 1; SPOP t 1; SADD u b; ZPOPMIN z; LPOP l; BITFIELD q SET u8 0 1; RPOPLPUSH l l2; GETDEL s",
        "a: GET l2; GEOPOS geo m; SSCAN v 0; HSCAN h 0; ZSCAN z 0; OBJECT ENCODING q; OBJECT FREQ q",
        "b: GEOADD geo 1 1 m; SET l2 1; SDIFFSTORE u t; ZUNIONSTORE z 1 nosuch; HDEL h f n; SORT nosuch STORE q",
        "a: GETSET k 1; GETEX k; GETDEL k; GETEX k PERSIST; SMISMEMBER t a; SET k v GET",
        "b: SET k 1; DEL t",
        "a: SORT l2; SORT l; XINFO STREAM x; SUBSTR k 0 1; KEYS nosuch*; DBSIZE",
        "b: DEL k x; FLUSHDB",
    ],
    // Failing commands remember and tell nothing else than succeeding ones.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "b: SET k 1",
        "a: LRANGE k 0 1; GET; NOSUCH k",
        "b: LPUSH k x; SET k 1 NX; SETNX k 2; DEL nosuch; EXPIRE nosuch 1; HDEL k f",
        "b: SET k 2",
    ],
    // Flushes are a null, for all databases.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "b: SET k 1",
        "b: FLUSHALL",
        "a: FLUSHALL; GET k",
        "a: FLUSHDB; PING",
        "b: SELECT 1; FLUSHDB ASYNC; FLUSHDB nonsense",
        "a: GET k",
        "b: SELECT 9; SET k 1",
        "a: SELECT 3; GET k; SELECT 0; GET k; MOVE k 3",
        "b: SELECT 3; SET k 1; COPY k k2 DB 0; MOVE k 0",
        "a: CLIENT TRACKING OFF",
        "b: FLUSHALL",
    ],
    // OPTIN and OPTOUT.
    &[
        "a: HELLO 3",
        "a: CLIENT CACHING YES; CLIENT TRACKING ON OPTIN; CLIENT CACHING NO; CLIENT CACHING nonsense",
        "a: GET k1; CLIENT CACHING YES; GET k2; GET k3; CLIENT TRACKINGINFO",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING YES; CLIENT TRACKINGINFO; CLIENT GETNAME; GET k1; GET k2",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING YES; MULTI; GET k1; GET k2; EXEC; GET k3; CLIENT TRACKINGINFO",
        "b: MSET k1 1 k2 2 k3 3",
        "a: MULTI; GET k1; CLIENT CACHING YES; GET k2; GET k3; EXEC; GET k1; CLIENT TRACKINGINFO",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING YES; EVAL \"return{redis.call('get',KEYS[1]),redis.call('get',KEYS[2])}\" 2 k1 k2; GET k3",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING YES; NOSUCH; GET k1",
        "a: CLIENT CACHING YES; GET; GET k1",
        "b: MSET k1 1 k2 2 k3 3",
    ],
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON OPTOUT; CLIENT CACHING YES; GET k1; CLIENT CACHING NO; GET k2; GET k3",
        "a: CLIENT CACHING NO; CLIENT TRACKINGINFO; PING; CLIENT TRACKINGINFO",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING NO; MULTI; GET k1; GET k2; EXEC; GET k3",
        "b: MSET k1 1 k2 2 k3 3",
        "a: CLIENT CACHING NO; SET k1 1; GET k1",
        "b: MSET k1 1 k2 2 k3 3",
    ],
    // Broadcasting: one array for each prefix, ordered, at the end of what was read at once.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON BCAST",
        "b: SET k 1; SET a 1; SET k 2; DEL nosuch",
        "a: GET k; SET z 1; SET y 1; SET z 2; PING",
        "a: MULTI; SET b 1; SET a 1; EXEC",
        "b: EVAL \"redis.call('set','e2',1)redis.call('set','e1',1)\" 0",
        "b: FLUSHALL; SET k 1",
        "a: CLIENT TRACKING OFF",
        "b: SET k 1",
    ],
    &[
        "a: HELLO 3",
        "c: HELLO 3",
        "a: CLIENT TRACKING ON BCAST PREFIX user: PREFIX order:",
        "c: CLIENT TRACKING ON BCAST PREFIX user:1 PREFIX x NOLOOP",
        "b: MSET user:10 1 user:2 1 order:1 1 x1 1 other 1",
        "c: MSET user:10 1 user:2 1 order:1 1 x1 1 other 1",
        "c: MSET user:10 1 x1 1",
        "b: SET user:11 1",
        "a: CLIENT TRACKINGINFO; CLIENT GETREDIR; SET user:1 1",
        "a: CLIENT TRACKING ON BCAST PREFIX more:",
        "b: SET more:1 1; SET user:1 1",
        "a: CLIENT TRACKINGINFO",
        "c: MULTI; SET user:1 1; EXEC",
    ],
    // Options that do not fit.
    &[
        "a: CLIENT TRACKING; CLIENT TRACKING nonsense; CLIENT TRACKING on nonsense; CLIENT TRACKING off nonsense",
        "a: CLIENT TRACKING on REDIRECT; CLIENT TRACKING on REDIRECT x; CLIENT TRACKING on REDIRECT 1000000",
        "a: CLIENT TRACKING on REDIRECT -1; CLIENT TRACKING on REDIRECT 0; CLIENT TRACKING on PREFIX",
        "a: CLIENT TRACKING on REDIRECT @a REDIRECT @a; CLIENT TRACKING on PREFIX x; CLIENT TRACKING on OPTIN OPTOUT",
        "a: CLIENT TRACKING on BCAST OPTIN; CLIENT TRACKING on BCAST OPTOUT; CLIENT TRACKING nonsense REDIRECT x",
        "a: CLIENT TRACKING on BCAST PREFIX foo PREFIX foobar; CLIENT TRACKING on BCAST PREFIX foo PREFIX foo",
        "a: CLIENT TRACKINGINFO; CLIENT GETREDIR; CLIENT CACHING YES; CLIENT CACHING",
        "a: CLIENT TRACKING on; CLIENT TRACKING on BCAST; CLIENT TRACKING on; CLIENT TRACKINGINFO",
        "a: CLIENT TRACKING off; CLIENT TRACKING off; CLIENT TRACKING on BCAST PREFIX foo",
        "a: CLIENT TRACKING on; CLIENT TRACKING on BCAST PREFIX f; CLIENT TRACKING on BCAST PREFIX foo1",
        "a: CLIENT TRACKING on BCAST; CLIENT TRACKINGINFO; CLIENT TRACKING off; CLIENT TRACKINGINFO",
        "a: CLIENT TRACKING on OPTIN; CLIENT TRACKING on OPTOUT; CLIENT TRACKING on; CLIENT TRACKING on OPTOUT",
        "a: CLIENT TRACKING on OPTIN; CLIENT TRACKINGINFO; CLIENT TRACKING on NOLOOP; CLIENT TRACKINGINFO; RESET",
        "a: CLIENT TRACKINGINFO; CLIENT GETREDIR; CLIENT CACHING NO; CLIENT GETREDIR x; CLIENT TRACKINGINFO x",
    ],
    // Redirection to a subscriber of RESP2.
    &[
        "d: SUBSCRIBE __redis__:invalidate",
        "a: CLIENT TRACKING ON REDIRECT @d; CLIENT TRACKINGINFO",
        "a: CLIENT GETREDIR",
        "a: GET k",
        "b: SET k 1",
        "a: GET k; SET k 2; MGET k j",
        "b: MSET k 1 j 2",
        "b: FLUSHALL",
        "e: HELLO 3",
        "e: CLIENT TRACKING ON REDIRECT @d",
        "e: GET k",
        "b: SET k 1",
        "b: FLUSHALL",
        "d: UNSUBSCRIBE",
        "a: GET k",
        "b: SET k 1",
        "d: SUBSCRIBE other",
        "a: GET k",
        "b: SET k 1",
        "a: CLIENT TRACKING ON",
        "a: GET k",
        "b: SET k 1",
    ],
    // Redirection to RESP3, with broadcasting, and to one that is gone.
    &[
        "d: HELLO 3",
        "a: CLIENT TRACKING ON REDIRECT @d BCAST PREFIX k",
        "b: SET k1 1; SET x 1; SET k2 1",
        "e: HELLO 3",
        "e: CLIENT TRACKING ON REDIRECT @d NOLOOP",
        "e: GET x; SET x 1; GET x",
        "b: SET x 2",
        "e: GET x",
        "-d",
        "b: SET x 3",
        "e: CLIENT TRACKINGINFO; GET x; PING",
        "b: SET x 3; SET k1 2; SET k2 2",
        "a: CLIENT TRACKINGINFO",
        "e: CLIENT TRACKING ON; CLIENT TRACKINGINFO",
    ],
    // The protocol decides at the moment of the message.
    &[
        "a: CLIENT TRACKING ON",
        "a: GET k",
        "b: SET k 1",
        "a: GET k",
        "a: HELLO 3",
        "b: SET k 1",
        "a: GET k",
        "a: HELLO 2",
        "b: SET k 1; FLUSHALL",
        "a: CLIENT TRACKINGINFO",
    ],
    // Two clients, one that leaves, one that changes its mind.
    &[
        "a: HELLO 3",
        "c: HELLO 3",
        "a: CLIENT TRACKING ON",
        "c: CLIENT TRACKING ON",
        "a: GET k",
        "c: GET k",
        "b: SET k 1",
        "a: GET k",
        "c: GET k; SET k 2",
        "a: GET k",
        "c: GET k",
        "-c",
        "b: SET k 1",
        "a: GET k; CLIENT TRACKING OFF; CLIENT TRACKING ON",
        "b: SET k 1",
        "a: GET k; CLIENT TRACKING OFF",
        "b: SET k 1",
        "a: GET k; CLIENT TRACKING ON; GET k; CLIENT TRACKING OFF; CLIENT TRACKING ON BCAST PREFIX x",
        "b: SET k 1",
        "a: CLIENT TRACKING OFF; CLIENT TRACKING ON; GET k; RESET",
        "b: SET k 1",
    ],
    // CLIENT REPLY does not concern messages.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: GET k; CLIENT REPLY OFF; GET j; SET j 1; CLIENT REPLY ON",
        "b: SET k 1",
        "a: CLIENT REPLY SKIP; GET k; SET k 1; CLIENT REPLY SKIP; SET x 1",
        "a: GET k; MULTI; CLIENT REPLY OFF; SET k 1; GET k; CLIENT REPLY ON; EXEC",
        "b: SET k 1",
    ],
    // A reader that waits for a stream.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "a: XREAD COUNT 1 STREAMS x 0",
        "b: XADD x 1-1 f v",
        "b: BLPOP l 0.01; RPUSH l a; LPUSH l2 b",
        "a: LLEN l; LLEN l2",
        "b: BLMPOP 1 2 l l2 LEFT; BLMOVE l2 l3 LEFT LEFT 1",
        "a: LLEN l3; BLPOP l3 1; LLEN l3",
        "b: RPUSH l3 x",
    ],
    // Events of keys are messages of their own.
    &[
        "a: HELLO 3",
        "a: CONFIG SET notify-keyspace-events KEA",
        "a: SUBSCRIBE __keyspace@0__:k",
        "a: CLIENT TRACKING ON",
        "a: GET k",
        "b: SET k 1; DEL k",
        "a: GET k",
        "b: MULTI; SET k 1; SET j 1; DEL k; EXEC",
        "a: UNSUBSCRIBE; GET k",
        "a: CONFIG SET notify-keyspace-events \"\"; SET k 1",
    ],
    // Many keys at once, and rows that go beyond the limit: which ones is a matter of chance.
    &[
        "a: HELLO 3",
        "b: CONFIG SET tracking-table-max-keys 1; CONFIG GET tracking-table-max-keys",
        "a: CLIENT TRACKING ON",
        "a: GET k; GET k; GET k",
        "b: SET k 1",
        "a: GET k; FLUSHALL; GET k",
        "b: CONFIG SET tracking-table-max-keys 1000000; CONFIG SET tracking-table-max-keys -1",
    ],
    // What a client of RESP2 without redirection is not told.
    &[
        "a: CLIENT TRACKING ON BCAST",
        "b: SET k 1; FLUSHALL",
        "a: SUBSCRIBE __redis__:invalidate",
        "b: SET k 1; FLUSHALL",
    ],
    // Expired at the moment of a look.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "b: SET k 1; SET j 1",
        "a: GET k; GET j",
        "b: PEXPIREAT k 1; EXPIRE j -1; SET i 1 PXAT 1",
        "a: GET k; GETEX j PXAT 1; SET j 1; GETEX j EXAT 1",
    ],
];

/// Conversations in which redis-server 7.0 puts messages before replies, or inside of them.
const LATER: &[Conversation] = &[
    // What a client is told of its own change follows its reply, though it had to wait for that.
    &[
        "a: HELLO 3",
        "a: CLIENT TRACKING ON",
        "b: RPUSH l2 a",
        "a: LRANGE l2 0 -1",
        "a!: BLMOVE l1 l2 LEFT LEFT 0",
        "b: RPUSH l1 foo",
        "a: PING",
    ],
    // Redirection to the client that changes the key.
    &[
        "d: HELLO 3",
        "a: HELLO 3",
        "a: CLIENT TRACKING ON REDIRECT @d",
        "a: GET k; GET j",
        "d: MULTI; SET k 1; SET j 1; EXEC",
        "a: GET k; GET j",
        "d: FLUSHALL; PING",
        "d: CLIENT TRACKING ON BCAST NOLOOP",
        "a: GET k",
        "d: SET k 1; EVAL \"redis.call('set','k',1)\" 0; MULTI; SET k 1; EVAL \"redis.call('set','j',1)\" 0; EXEC",
        "d: EVAL \"redis.call('set','k',1)\" 0",
        "b: EVAL \"redis.call('set','k',1)\" 0",
        "a: CLIENT TRACKING ON REDIRECT @a",
        "a: GET k; SET k 1; GET k",
        "b: SET k 1",
    ],
];

#[test]
fn conversations_are_those_of_redis_and_valkey() {
    let valkey = RedisServer::start_valkey("8.1", &[]);
    let ours = Running::with(ServerOptions::default(), 2);
    check(ALIKE, &[("redis-server 7.0", &RedisServer::start(&[])), ("Valkey 8.1", &valkey)], &ours);
    check(LATER, &[("Valkey 8.1", &valkey)], &ours);
}

/// Connects a client that speaks RESP3 and tracks keys.
fn tracking(ours: &Running, options: &[&str]) -> Client {
    let mut client = ours.connect();
    client.command(&["HELLO", "3"]);
    client.read_reply();
    assert_eq!(client.ask(&[&["CLIENT", "TRACKING", "ON"], options].concat()), "+OK\r\n");
    client
}

/// Returns a figure of INFO.
fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.ask(&["INFO", "everything"]);
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name} in {info}")).parse().expect("a number")
}

fn figures(client: &mut Client) -> [u64; 4] {
    ["tracking_clients", "tracking_total_keys", "tracking_total_items", "tracking_total_prefixes"]
        .map(|name| figure(client, name))
}

#[test]
fn figures_and_the_list_of_clients_show_who_tracks() {
    let ours = Running::start();
    let mut other = ours.connect();
    let line = |client: &mut Client| client.ask(&["CLIENT", "INFO"]);
    assert!(line(&mut other).contains(" redir=-1 "));
    let mut broad = tracking(&ours, &["BCAST", "PREFIX", "x", "PREFIX", "y"]);
    let mut own = tracking(&ours, &["NOLOOP"]);
    let text = line(&mut broad);
    assert!(text.contains(" flags=tB ") && text.contains(" redir=0 "), "{text}");
    assert!(line(&mut own).contains(" flags=t "));
    own.ask(&["MGET", "a", "b", "a"]);
    let mut third = tracking(&ours, &[]);
    third.ask(&["GET", "a"]);
    assert_eq!(figures(&mut other), [3, 2, 3, 2]);
    let id = third.ask(&["CLIENT", "ID"]).trim_end()[1..].to_owned();
    assert_eq!(own.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "+OK\r\n");
    assert!(line(&mut own).contains(&format!(" redir={id} ")));
    third.reset();
    wait_for("a client to be gone", || (figures(&mut other)[0] == 2).then_some(()));
    assert_eq!(figures(&mut other), [2, 2, 3, 2], "rows are not searched when a client leaves");
    other.ask(&["SET", "a", "1"]);
    assert_eq!(own.read_reply(), format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{id}\r\n").as_bytes());
    assert!(line(&mut own).contains(" flags=tR "));
    assert_eq!(figures(&mut other), [2, 1, 1, 2]);
    broad.reset();
    own.reset();
    wait_for("all rows to be dropped", || (figures(&mut other) == [0; 4]).then_some(()));
}

#[test]
fn rows_beyond_the_limit_are_dropped_and_their_clients_are_told() {
    let ours = Running::start();
    let mut other = ours.connect();
    let mut client = tracking(&ours, &[]);
    let told = |client: &mut Client| {
        let message = String::from_utf8(client.read_reply()).expect("text");
        message.strip_prefix(">2\r\n$10\r\ninvalidate\r\n*1\r\n").expect("a message").to_owned()
    };
    assert_eq!(other.ask(&["CONFIG", "SET", "tracking-table-max-keys", "10"]), "+OK\r\n");
    let mut cached: Vec<String> = Vec::new();
    for number in 0..30 {
        let key = format!("key:{number:04}");
        client.ask(&["GET", &key]);
        cached.push(format!("$8\r\n{key}\r\n"));
        if number >= 10 {
            let gone = told(&mut client);
            cached.remove(cached.iter().position(|key| *key == gone).expect("a key that was read"));
        }
    }
    assert_eq!(figures(&mut other), [1, 10, 10, 0]);
    // What is left is told when it changes.
    for key in &cached {
        other.ask(&["SET", key.lines().nth(1).expect("a name"), "1"]);
        assert_eq!(told(&mut client), *key);
    }
    assert_eq!(figures(&mut other), [1, 0, 0, 0]);
    // A lower limit acts on the rows that there are.
    assert_eq!(other.ask(&["CONFIG", "SET", "tracking-table-max-keys", "0"]), "+OK\r\n");
    let keys: Vec<String> = (0..5000).map(|number| format!("k{number}")).collect();
    let words: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
    client.ask(&words);
    assert_eq!(figures(&mut other), [1, 5000, 5000, 0], "a command of very many keys, in pieces");
    assert_eq!(other.ask(&["CONFIG", "SET", "tracking-table-max-keys", "100"]), "+OK\r\n");
    ours.store().tick();
    assert_eq!(figures(&mut other), [1, 100, 100, 0]);
    (0..4900).for_each(|_| drop(told(&mut client)));
    assert_eq!(other.ask(&["FLUSHALL"]), "+OK\r\n");
    assert_eq!(client.read_reply(), b">2\r\n$10\r\ninvalidate\r\n_\r\n");
    assert_eq!(figures(&mut other), [1, 0, 0, 0]);
}

#[test]
fn a_row_takes_little_memory() {
    const KEYS: usize = 200_000;
    let ours = Running::start();
    let mut other = ours.connect();
    let mut client = tracking(&ours, &[]);
    let mut measured = Vec::new();
    let mut before = figure(&mut other, "mem_not_counted_for_evict");
    for part in 0..4 {
        for group in 0..KEYS / 4 / 100 {
            let keys: Vec<String> =
                (0..100).map(|key| format!("key:{:012}", (part * KEYS / 4) + group * 100 + key)).collect();
            client.ask(&std::iter::once("EXISTS").chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
        }
        let after = figure(&mut other, "mem_not_counted_for_evict");
        measured.push((after - before) as f64 / (KEYS / 4) as f64);
        before = after;
    }
    let mean = measured.iter().sum::<f64>() / 4.0;
    assert!((30.0..64.0).contains(&mean), "{measured:?} bytes");
}

#[test]
fn expiry_and_eviction_are_changes_and_swapping_databases_is_one_of_all_keys() {
    let hand = ManualClock::new(1_000_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    let ours = Running::serving(store, ServerOptions::default(), 1);
    let mut other = ours.connect();
    let mut client = tracking(&ours, &[]);
    let mut broad = tracking(&ours, &["BCAST", "PREFIX", "k"]);
    let message = |keys: &str| format!(">2\r\n$10\r\ninvalidate\r\n{keys}").into_bytes();
    let (k, null) = (message("*1\r\n$1\r\nk\r\n"), message("_\r\n"));
    // By the sweep, and by the look of the client itself, whose reply is first.
    other.ask(&["SET", "k", "v", "PX", "10"]);
    client.ask(&["EXISTS", "k"]);
    hand.advance(20);
    ours.store().tick();
    assert_eq!(client.read_reply(), k);
    other.ask(&["SET", "k", "v", "PX", "10"]);
    client.ask(&["EXISTS", "k"]);
    hand.advance(20);
    assert_eq!(client.ask(&["EXISTS", "k"]), ":0\r\n");
    assert_eq!(client.read_reply(), k);
    other.ask(&["SET", "k", "v"]);
    assert_eq!(client.read_reply(), k, "the second look counts again");
    other.ask(&["DEL", "k"]);
    // An element of a value.
    other.ask(&["HSET", "k", "f", "v", "g", "v"]);
    other.ask(&["FIELDEXPIRE", "k", "1", "f"]);
    client.ask(&["HGET", "k", "f"]);
    hand.advance(2_000);
    ours.store().tick();
    assert_eq!(client.read_reply(), k);
    (0..9).for_each(|change| assert_eq!(broad.read_reply(), k, "change {change}"));
    other.ask(&["FLUSHALL"]);
    assert_eq!((client.read_reply(), broad.read_reply()), (null.clone(), null.clone()));
    // Eviction.
    other.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let mut keys: HashSet<Vec<u8>> = HashSet::new();
    for number in 0..200 {
        let key = format!("key:{number:03}");
        other.ask(&["SET", &key, "v"]);
        client.ask(&["GET", &key]);
        keys.insert(message(&format!("*1\r\n$7\r\n{key}\r\n")));
    }
    other.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    other.ask(&["SET", "x", "v"]);
    other.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let evicted = figure(&mut other, "evicted_keys");
    assert!(evicted > 0);
    assert_eq!(figure(&mut other, "tracking_total_keys"), 200 - evicted);
    (0..evicted).for_each(|_| assert!(keys.remove(&client.read_reply())));
    // SWAPDB.
    assert_eq!(other.ask(&["SWAPDB", "0", "5"]), "+OK\r\n");
    assert_eq!(client.read_reply(), null);
    assert_eq!(client.ask(&["SWAPDB", "0", "5"]), "+OK\r\n");
    assert_eq!(client.read_reply(), null);
    assert_eq!(figures(&mut other)[1], 0);
}

/// A client that caches what it reads until it is told of a change.
struct Cache {
    client: Client,
    values: HashMap<String, String>,
    is_optin: bool,
}

impl Cache {
    /// Reads up to the next reply; messages before it drop values.
    fn reply(&mut self) -> String {
        loop {
            let text = String::from_utf8(self.client.read_reply()).expect("text");
            let Some(told) = text.strip_prefix(">2\r\n$10\r\ninvalidate\r\n") else { return text };
            if told == "_\r\n" {
                self.values.clear();
            }
            let lines: Vec<&str> = told.lines().collect();
            lines.iter().skip(2).step_by(2).for_each(|key| drop(self.values.remove(*key)));
        }
    }

    /// Reads keys by one of several ways, and caches their values.
    fn read(&mut self, keys: &[String], way: usize) {
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        if self.is_optin {
            self.client.command(&["CLIENT", "CACHING", "YES"]);
            assert_eq!(self.reply(), "+OK\r\n");
        }
        let count = names.len().to_string();
        let script = "local t={} for i=1,#KEYS do t[i]=redis.call('get',KEYS[i]) end return t";
        let skipped = match way {
            0 => {
                self.client.command(&[&["MGET"], &names[..]].concat());
                0
            }
            1 => {
                self.client.command(&[&["EVAL", script, &count], &names[..]].concat());
                0
            }
            _ => {
                let gets: Vec<u8> = names.iter().flat_map(|name| encode(&["GET", name])).collect();
                self.client.send([encode(&["MULTI"]), gets, encode(&["EXEC"])].concat());
                1 + names.len()
            }
        };
        (0..skipped).for_each(|_| drop(self.reply()));
        let reply = self.reply();
        let mut rest = &reply[reply.find("\r\n").expect("an array") + 2..];
        for name in names {
            let end = rest.find("\r\n").expect("a line");
            let len = if rest.starts_with('$') { rest[1..end].parse::<usize>().expect("a length") + 2 } else { 0 };
            let (value, more) = rest.split_at(end + 2 + len);
            self.values.insert(name.to_owned(), value.to_owned());
            rest = more;
        }
    }
}

/// One of the changes that a writer makes.
fn change(random: &mut Random, client: &mut Client, key: &dyn Fn(usize) -> String) {
    let (one, other) = (key(random.below(24)), key(random.below(24)));
    let value = random.below(1 << 30).to_string();
    let reply = match random.below(40) {
        0..14 => client.ask(&["SET", &one, &value]),
        14..18 => client.ask(&["DEL", &one, &other]),
        18..22 => client.ask(&["MSET", &one, &value, &other, &value]),
        22..24 => client.ask(&["RENAME", &one, &other]),
        24..26 => client.ask(&["COPY", &one, &other, "REPLACE"]),
        26..29 => client.ask(&["SET", &one, &value, "PX", "1"]),
        29..33 => {
            let script =
                "for i=1,2000 do local x=i end redis.call('set',KEYS[1],ARGV[1]) redis.call('append',KEYS[2],ARGV[1])";
            client.ask(&["EVAL", script, "2", &one, &other, &value])
        }
        33..37 => {
            let set = encode(&["SET", &one, &value]);
            client.send([encode(&["MULTI"]), set, encode(&["GETDEL", &other]), encode(&["EXEC"])].concat());
            (0..3).for_each(|_| drop(client.read_reply()));
            String::from_utf8_lossy(&client.read_reply()).into_owned()
        }
        37 => client.ask(&["SWAPDB", "0", "1"]),
        38 => client.ask(&["FLUSHDB"]),
        _ => client.ask(&["EXPIRE", &one, "0"]),
    };
    let is_expected = reply.starts_with("-ERR no such key") || reply.starts_with("-ERR source and destination");
    assert!(!reply.starts_with('-') || is_expected, "{reply}");
}

/// Clients read and cache, others change the same keys in every way: in the end no cache has a value that the store has
/// not.
#[test]
fn no_client_keeps_what_has_changed() {
    const ROUNDS: usize = 400;
    let ours = Running::with(ServerOptions::default(), 3);
    let key = |number: usize| format!("key:{number:02}");
    let done = AtomicBool::new(false);
    let modes: [&[&str]; 4] = [&[], &["BCAST", "PREFIX", "key:"], &["OPTIN"], &["OPTOUT"]];
    let mut caches: Vec<Cache> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                let (ours, key) = (&ours, &key);
                scope.spawn(move || {
                    let (mut client, mut random) = (ours.connect(), Random(seed));
                    (0..ROUNDS).for_each(|_| change(&mut random, &mut client, key));
                })
            })
            .collect();
        let readers: Vec<_> = modes
            .iter()
            .enumerate()
            .map(|(seed, mode)| {
                let (ours, key, done) = (&ours, &key, &done);
                scope.spawn(move || {
                    let (client, mut random) = (tracking(ours, mode), Random(100 + seed as u64));
                    let mut cache = Cache { client, values: HashMap::new(), is_optin: mode.contains(&"OPTIN") };
                    while !done.load(Ordering::SeqCst) {
                        let way = random.below(3);
                        // Sometimes so many that the command is done in pieces.
                        let count = if way == 0 && random.below(8) == 0 { 200 } else { 1 + random.below(4) };
                        let keys: Vec<String> = (0..count).map(|_| key(random.below(24))).collect();
                        cache.read(&keys, way);
                    }
                    cache
                })
            })
            .collect();
        let ticks = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                ours.store().tick();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        written.into_iter().for_each(|writer| writer.expect("it writes"));
        ticks.join().expect("it ticks");
        readers.into_iter().map(|reader| reader.join().expect("it reads")).collect()
    });
    wait_for("keys to expire", || {
        ours.store().tick();
        ours.store().stats().databases.iter().all(|db| db.expires == 0).then_some(())
    });
    let mut plain = ours.connect();
    plain.command(&["HELLO", "3"]);
    plain.read_reply();
    for (cache, mode) in caches.iter_mut().zip(modes) {
        cache.client.command(&["PING"]);
        assert_eq!(cache.reply(), "+PONG\r\n");
        assert!(!cache.values.is_empty(), "{mode:?}");
        for (key, value) in &cache.values {
            assert_eq!(plain.ask(&["GET", key]), *value, "{key} of {mode:?}");
        }
    }
}
