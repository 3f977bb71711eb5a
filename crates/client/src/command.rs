//! What the client must know of commands, and how they are written.

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use crate::Failure;

/// How a command may be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It changes nothing: it may be sent again when nobody knows whether it was done.
    Reads,
    /// Anything else, known or not.
    Writes,
}

/// Commands that change what a connection is, with the way to do it.
const OF_CONNECTIONS: &[(&str, &str)] = &[
    ("ASKING", "redirections are followed without it"),
    ("AUTH", "the section's 'auth' says who asks"),
    ("DISCARD", "it belongs to a transaction"),
    ("EXEC", "it belongs to a transaction"),
    ("HELLO", "the section's 'auth' says who asks"),
    ("MONITOR", "it needs a connection of its own"),
    ("MULTI", "it needs a connection of its own"),
    ("PSUBSCRIBE", "it needs a connection of its own"),
    ("PSYNC", "it needs a connection of its own"),
    ("PUNSUBSCRIBE", "it needs a connection of its own"),
    ("QUIT", "connections are shared"),
    ("READONLY", "the section's 'read-from' says where is read"),
    ("READWRITE", "the section's 'read-from' says where is read"),
    ("RESET", "connections are shared"),
    ("SELECT", "open the engine with its database, as in core.redis(name, {db=1})"),
    ("SSUBSCRIBE", "it needs a connection of its own"),
    ("SUBSCRIBE", "it needs a connection of its own"),
    ("SUNSUBSCRIBE", "it needs a connection of its own"),
    ("SYNC", "it needs a connection of its own"),
    ("UNSUBSCRIBE", "it needs a connection of its own"),
    ("UNWATCH", "it belongs to a transaction"),
    ("WATCH", "it belongs to a transaction"),
];

/// Commands that wait for other clients.
const BLOCKING: &[&str] =
    &["BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "WAIT", "WAITAOF"];

/// Commands that only read, in order.
const READING: &[&str] = &[
    "BITCOUNT",
    "BITFIELD_RO",
    "BITPOS",
    "DBSIZE",
    "DUMP",
    "ECHO",
    "EVALSHA_RO",
    "EVAL_RO",
    "EXISTS",
    "EXPIRETIME",
    "FCALL_RO",
    "GEODIST",
    "GEOHASH",
    "GEOPOS",
    "GEORADIUSBYMEMBER_RO",
    "GEORADIUS_RO",
    "GEOSEARCH",
    "GET",
    "GETBIT",
    "GETRANGE",
    "HEXISTS",
    "HEXPIRETIME",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HPEXPIRETIME",
    "HPTTL",
    "HRANDFIELD",
    "HSCAN",
    "HSTRLEN",
    "HTTL",
    "HVALS",
    "INFO",
    "KEYS",
    "LCS",
    "LINDEX",
    "LLEN",
    "LOLWUT",
    "LPOS",
    "LRANGE",
    "MGET",
    "PEXPIRETIME",
    "PFCOUNT",
    "PING",
    "PTTL",
    "PUBSUB",
    "RANDOMKEY",
    "SCAN",
    "SCARD",
    "SDIFF",
    "SINTER",
    "SINTERCARD",
    "SISMEMBER",
    "SMEMBERS",
    "SMISMEMBER",
    "SORT_RO",
    "SRANDMEMBER",
    "SSCAN",
    "STRLEN",
    "SUBSTR",
    "SUNION",
    "TIME",
    "TTL",
    "TYPE",
    "XINFO",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "XREVRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZDIFF",
    "ZINTER",
    "ZINTERCARD",
    "ZLEXCOUNT",
    "ZMSCORE",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZREVRANK",
    "ZSCAN",
    "ZSCORE",
    "ZUNION",
];

/// The longest name above.
const NAME_MAX: usize = 20;

/// How a command may be treated, or why it may not be sent over a shared connection.
pub(crate) fn classify(args: &[&[u8]]) -> Result<Kind, Failure> {
    let [name, rest @ ..] = args else {
        return Err(Failure::Refused("a command is empty".into()));
    };
    if name.len() > NAME_MAX {
        return Ok(Kind::Writes);
    }
    let mut upper = [0; NAME_MAX];
    let upper = &mut upper[..name.len()];
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let Ok(upper) = std::str::from_utf8(upper) else { return Ok(Kind::Writes) };
    if READING.binary_search(&upper).is_ok() {
        return Ok(Kind::Reads);
    }
    if let Ok(at) = OF_CONNECTIONS.binary_search_by_key(&upper, |(name, _)| name) {
        let (name, instead) = OF_CONNECTIONS[at];
        return Err(Failure::Refused(format!("{name} is not allowed here: {instead}")));
    }
    let is = |word: Option<&&[u8]>, text: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(text.as_bytes()));
    let blocks = BLOCKING.binary_search(&upper).is_ok()
        || matches!(upper, "XREAD" | "XREADGROUP") && rest.iter().any(|word| is(Some(word), "BLOCK"));
    if blocks {
        return Err(Failure::Refused(format!(
            "{upper} is not allowed here: a rule or script must not wait for others"
        )));
    }
    if upper == "CLIENT" && ["REPLY", "TRACKING", "PAUSE", "NO-EVICT"].into_iter().any(|word| is(rest.first(), word)) {
        return Err(Failure::Refused("this CLIENT command is not allowed here: connections are shared".into()));
    }
    Ok(Kind::Writes)
}

/// Appends a command as an array of strings.
pub(crate) fn encode(args: &[&[u8]], out: &mut Vec<u8>) {
    let mut out = ReplyWriter::new(out, Protocol::Resp2);
    out.array(args.len());
    args.iter().for_each(|arg| out.bulk(arg));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_in_order() {
        assert!(READING.is_sorted());
        assert!(BLOCKING.is_sorted());
        assert!(OF_CONNECTIONS.is_sorted_by_key(|(name, _)| *name));
        let longest = READING.iter().chain(BLOCKING).map(|name| name.len()).max();
        assert_eq!(longest, Some(NAME_MAX));
    }

    #[test]
    fn commands_are_told_apart() {
        let kind = |words: &str| classify(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        assert_eq!(kind("get k"), Ok(Kind::Reads));
        assert_eq!(kind("GEORADIUSBYMEMBER_RO k m 1 m"), Ok(Kind::Reads));
        assert_eq!(kind("INCR k"), Ok(Kind::Writes));
        assert_eq!(kind("A.COMMAND.OF.A.MODULE k"), Ok(Kind::Writes));
        assert_eq!(kind("XREAD COUNT 1 STREAMS s 0"), Ok(Kind::Writes));
        for refused in ["select 1", "Multi", "blpop k 0", "XREAD block 0 STREAMS s $", "client reply off"] {
            assert!(matches!(kind(refused), Err(Failure::Refused(_))), "{refused}");
        }
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut out = Vec::new();
        encode(&[b"SET", b"k", b"0123456789ab", b""], &mut out);
        assert_eq!(out, b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\n0123456789ab\r\n$0\r\n\r\n");
    }
}
