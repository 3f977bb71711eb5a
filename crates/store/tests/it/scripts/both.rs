//! Comparison of redis-server and the store, which get the same scripts over sockets.

use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};

use crate::support::Running;

/// Databases whose keys are compared.
const DATABASES: usize = 4;

/// Both servers, and a connection to each.
pub struct Both {
    clients: [Client; 2],
    _redis: RedisServer,
    _ours: Running,
}

/// The replies of both, redis-server's first.
#[derive(Clone, Debug)]
pub struct Said(pub [Vec<u8>; 2]);

impl Said {
    /// Returns whether the replies are the same, apart from the order in maps and sets.
    pub fn is_same(&self) -> bool {
        let [theirs, ours] = &self.0;
        theirs == ours || parse(theirs).zip(parse(ours)).is_some_and(|(theirs, ours)| ordered(theirs) == ordered(ours))
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [theirs, ours] = &self.0;
        write!(f, "  redis: {}\n  ours:  {}", theirs.escape_ascii(), ours.escape_ascii())
    }
}

/// Parses a reply, unless it is nested so deeply that no client would read it.
fn parse(bytes: &[u8]) -> Option<Reply> {
    ReplyParser::new(ReplyLimits::default()).parse(bytes).ok()?.reply
}

/// Returns a reply with sorted maps and sets.
fn ordered(reply: Reply) -> Reply {
    let all = |items: Vec<Reply>| -> Vec<Reply> { items.into_iter().map(ordered).collect() };
    match reply {
        Reply::Array(items) => Reply::Array(all(items)),
        Reply::Set(items) => {
            let mut items = all(items);
            items.sort_by_key(|item| format!("{item:?}"));
            Reply::Set(items)
        }
        Reply::Map(pairs) => {
            let mut pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (ordered(key), ordered(value))).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::Map(pairs)
        }
        // NaN is not equal to itself.
        Reply::Double(number) => Reply::Simple(number.to_string()),
        other => other,
    }
}

impl Both {
    pub fn start() -> Both {
        let (redis, ours) = (RedisServer::start(&[]), Running::start());
        let clients = [Client::connect(&redis.address()), ours.connect()];
        Both { clients, _redis: redis, _ours: ours }
    }

    /// Empties both and selects the protocol.
    pub fn begin(&mut self, protocol: u8) {
        for client in &mut self.clients {
            client.send(format!("SELECT 0\r\nFLUSHALL\r\nSCRIPT FLUSH\r\nHELLO {protocol}\r\n"));
            (0..3).for_each(|_| assert_eq!(client.read_reply(), b"+OK\r\n"));
            client.read_reply();
        }
    }

    /// Sends requests unchanged, and returns the replies of both.
    pub fn send(&mut self, requests: &[Vec<u8>]) -> Vec<Said> {
        for client in &mut self.clients {
            client.send(requests.concat());
        }
        let read = |client: &mut Client| -> Vec<Vec<u8>> { requests.iter().map(|_| client.read_reply()).collect() };
        let [redis, ours] = &mut self.clients;
        read(redis).into_iter().zip(read(ours)).map(|(theirs, ours)| Said([theirs, ours])).collect()
    }

    /// Returns all keys with their values, in the order of their names.
    pub fn keyspace(&mut self) -> [String; 2] {
        let [redis, ours] = &mut self.clients;
        [keyspace(redis), keyspace(ours)]
    }
}

/// Returns a number for a text that is one.
fn number(reply: Reply) -> Reply {
    let Reply::Bulk(text) = &reply else { return reply };
    match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
        Some(number) => Reply::Double(number),
        None => reply,
    }
}

fn keyspace(client: &mut Client) -> String {
    let mut text = String::new();
    for db in 0..DATABASES {
        client.command(&["SELECT", &db.to_string()]);
        client.read_reply();
        client.command(&["KEYS", "*"]);
        let Some(Reply::Array(mut keys)) = parse(&client.read_reply()) else { panic!("KEYS gives an array") };
        keys.sort_by_key(|key| format!("{key:?}"));
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("a name, not {key:?}") };
            client.command(&[&b"TYPE"[..], &key]);
            let kind = String::from_utf8_lossy(&client.read_reply()[1..]).trim().to_owned();
            let words: &[&[u8]] = match kind.as_str() {
                "string" => &[b"GET", &key],
                "list" => &[b"LRANGE", &key, b"0", b"-1"],
                "hash" => &[b"HGETALL", &key],
                "set" => &[b"SMEMBERS", &key],
                _ => &[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"],
            };
            client.command(words);
            let value = parse(&client.read_reply()).expect("the value of a key");
            let value = match (kind.as_str(), value) {
                ("hash", Reply::Array(items)) => {
                    let pairs = items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
                    ordered(Reply::Map(pairs))
                }
                ("set", Reply::Array(items)) => ordered(Reply::Set(items)),
                // Redis 7.0 prints more digits of a score than necessary.
                ("zset", Reply::Array(items)) => Reply::Array(items.into_iter().map(number).collect()),
                (_, value) => ordered(value),
            };
            client.command(&[&b"PTTL"[..], &key]);
            let expires = client.read_reply()[1] != b'-';
            text += &format!("{db} {} {kind} expires: {expires} {value:?}\n", key.escape_ascii());
        }
    }
    client.command(&["SELECT", "0"]);
    client.read_reply();
    text
}
