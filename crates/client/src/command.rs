//! Properties of commands that the client needs, and their serialization.

use std::sync::LazyLock;
use std::time::Duration;

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use crate::Failure;

/// The permitted treatment of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It changes nothing, so it may be repeated when it is unknown whether it was executed.
    Reads,
    /// Anything else, known or not.
    Writes,
    /// It waits for other clients, on a dedicated connection.
    Waits,
}

/// The alternative for transactions, in Lua.
const TRANSACTION: &str = "use r:multi(…) or r:own(…)";
/// The alternative for channels, in Lua.
const CHANNELS: &str = "use r:subscribe(…) or r:psubscribe(…)";

/// Commands that change the state of a connection, with the alternative.
const OF_CONNECTIONS: &[(&str, &str)] = &[
    ("ASKING", "redirections are followed without it"),
    ("AUTH", "the section's 'auth' says who asks"),
    ("DISCARD", TRANSACTION),
    ("EXEC", TRANSACTION),
    ("HELLO", "the section's 'auth' says who asks"),
    ("MONITOR", "it needs a connection of its own"),
    ("MULTI", TRANSACTION),
    ("PSUBSCRIBE", CHANNELS),
    ("PSYNC", "it needs a connection of its own"),
    ("PUNSUBSCRIBE", "it needs a connection of its own"),
    ("QUIT", "connections are shared"),
    ("READONLY", "the section's 'read-from' says where is read"),
    ("READWRITE", "the section's 'read-from' says where is read"),
    ("REPLCONF", "it is for engines, which answer some of it with nothing"),
    ("RESET", "connections are shared"),
    ("SELECT", "open the engine with its database, as in core.redis(name, {db=1})"),
    ("SSUBSCRIBE", "it needs a connection of its own"),
    ("SUBSCRIBE", CHANNELS),
    ("SUNSUBSCRIBE", "it needs a connection of its own"),
    ("SYNC", "it needs a connection of its own"),
    ("UNSUBSCRIBE", "it needs a connection of its own"),
    ("UNWATCH", TRANSACTION),
    ("WATCH", TRANSACTION),
];

/// Subcommands of CLIENT that do not concern the connection that sends them.
const OF_ALL_CLIENTS: [&str; 5] = ["HELP", "KILL", "LIST", "UNBLOCK", "UNPAUSE"];

/// Subcommands of CLIENT that read the state of the connection that sends them.
const OF_ONE_CLIENT: [&str; 5] = ["GETNAME", "GETREDIR", "ID", "INFO", "TRACKINGINFO"];

/// Commands that wait until replicas have received the writes of the same connection.
const REPLICATED: [&str; 2] = ["WAIT", "WAITAOF"];

/// Commands that wait for other clients.
const BLOCKING: &[&str] = &["BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN"];

/// The reason for refusing a command on the writes of its own connection.
const OF_OWN_WRITES: &str = "it is about what its own connection wrote, use r:own(…)";

/// Commands that only read.
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

/// Returns a name in upper case; `None` if it is longer than `room`.
pub(crate) fn upper_case<'a>(name: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let upper = room.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    Some(upper)
}

/// Returns the permitted treatment of a command, or the reason why it may not be sent over a shared connection.
pub(crate) fn classify(args: &[&[u8]]) -> Result<Kind, Failure> {
    let [name, rest @ ..] = args else {
        return Err(Failure::Refused("a command is empty".into()));
    };
    let mut upper = [0; NAME_MAX];
    let Some(upper) = upper_case(name, &mut upper) else { return Ok(Kind::Writes) };
    let is = |word: Option<&&[u8]>, text: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(text.as_bytes()));
    let refused = |name: &str, instead: &str| Err(Failure::Refused(format!("{name} is not allowed here: {instead}")));
    match known(upper) {
        None => Ok(Kind::Writes),
        Some((_, Class::Reads)) => Ok(Kind::Reads),
        Some((_, Class::Blocks)) => Ok(Kind::Waits),
        Some((_, Class::MayBlock)) if rest.iter().any(|word| is(Some(word), "BLOCK")) => Ok(Kind::Waits),
        Some((_, Class::MayBlock)) => Ok(Kind::Writes),
        Some((name, Class::Refused(instead))) => refused(name, instead),
        Some((_, Class::Client)) if OF_ALL_CLIENTS.iter().any(|word| is(rest.first(), word)) => Ok(Kind::Writes),
        Some((_, Class::Client)) => {
            let text =
                "this CLIENT command is not allowed here: it is about its own connection, and connections are shared";
            Err(Failure::Refused(text.into()))
        }
    }
}

/// Returns the reason why a command may not be sent over a shared connection.
pub fn refusal(args: &[&[u8]]) -> Option<String> {
    match classify(args) {
        Err(Failure::Refused(text)) => Some(text.to_string()),
        _ => None,
    }
}

/// The properties of a command name.
#[derive(Clone, Copy, Debug)]
enum Class {
    Reads,
    Blocks,
    /// It blocks if it has the word BLOCK.
    MayBlock,
    /// It is refused; the text names the alternative.
    Refused(&'static str),
    /// It depends on the subcommand.
    Client,
}

/// All names above, by their first eight letters as a number: every command of every request is looked up here.
static KNOWN: LazyLock<Vec<(u64, &str, Class)>> = LazyLock::new(|| {
    let classes = (READING.iter().map(|name| (*name, Class::Reads)))
        .chain(BLOCKING.iter().map(|name| (*name, Class::Blocks)))
        .chain(OF_CONNECTIONS.iter().map(|(name, instead)| (*name, Class::Refused(instead))))
        .chain(REPLICATED.iter().map(|name| (*name, Class::Refused(OF_OWN_WRITES))))
        .chain([("XREAD", Class::MayBlock), ("XREADGROUP", Class::MayBlock), ("CLIENT", Class::Client)]);
    let mut known: Vec<_> = classes.map(|(name, class)| (first_letters(name.as_bytes()), name, class)).collect();
    known.sort_by_key(|(letters, name, _)| (*letters, *name));
    known
});

fn first_letters(name: &[u8]) -> u64 {
    let mut letters = [0; 8];
    let count = name.len().min(8);
    letters[..count].copy_from_slice(&name[..count]);
    u64::from_be_bytes(letters)
}

fn known(upper: &[u8]) -> Option<(&'static str, Class)> {
    let letters = first_letters(upper);
    let first = KNOWN.partition_point(|(of, ..)| *of < letters);
    let same = KNOWN[first..].iter().take_while(|(of, ..)| *of == letters);
    same.map(|(_, name, class)| (*name, *class)).find(|(name, _)| name.as_bytes() == upper)
}

/// The time for which a command waits for other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    For(Duration),
    Forever,
}

/// Returns the time for which a command waits on a dedicated connection, or the reason why it may not be sent over one
/// either: the connection could not be reused afterwards.
pub(crate) fn of_own(args: &[&[u8]]) -> Result<Waits, Failure> {
    const TRANSACTIONS: [&str; 5] = ["DISCARD", "EXEC", "MULTI", "UNWATCH", "WATCH"];
    let is = |words: &[&str]| args.first().is_some_and(|name| words.iter().any(|word| same(name, word)));
    match classify(args) {
        Ok(Kind::Waits) => Ok(waits(args)),
        Ok(_) => Ok(Waits::For(Duration::ZERO)),
        Err(_) if is(&TRANSACTIONS) => Ok(Waits::For(Duration::ZERO)),
        Err(_) if is(&["CLIENT"]) && args.get(1).is_some_and(|word| OF_ONE_CLIENT.iter().any(|of| same(word, of))) => {
            Ok(Waits::For(Duration::ZERO))
        }
        // The last word is in milliseconds.
        Err(_) if is(&REPLICATED) => Ok(period(args.last(), 0.001)),
        Err(failure) => Err(failure),
    }
}

fn same(name: &[u8], word: &str) -> bool {
    name.eq_ignore_ascii_case(word.as_bytes())
}

/// Returns whether a command waits for other clients, and so needs a connection of its own.
pub fn waits_for_others(args: &[&[u8]]) -> bool {
    // Their names begin with B or X, as few others do.
    args.first().is_some_and(|name| matches!(name.first(), Some(b'B' | b'b' | b'X' | b'x')))
        && classify(args) == Ok(Kind::Waits)
}

/// Returns the time for which a command of [`BLOCKING`], or XREAD or XREADGROUP with BLOCK, waits.
fn waits(args: &[&[u8]]) -> Waits {
    let [name, rest @ ..] = args else { return Waits::For(Duration::ZERO) };
    if name[0].eq_ignore_ascii_case(&b'X') {
        let block = rest.iter().position(|word| same(word, "BLOCK"));
        return period(block.and_then(|at| rest.get(at + 1)), 0.001);
    }
    // The first word, or the last one.
    let time = if same(name, "BLMPOP") || same(name, "BZMPOP") { rest.first() } else { rest.last() };
    period(time, 1.0)
}

/// Parses a timeout of a command, where 0 means no limit. With an invalid one, the engine replies an error immediately.
fn period(word: Option<&&[u8]>, unit_s: f64) -> Waits {
    let time = word.and_then(|word| std::str::from_utf8(word).ok()?.parse::<f64>().ok());
    match time.map(|time| Duration::try_from_secs_f64(time * unit_s)) {
        Some(Ok(Duration::ZERO)) => Waits::Forever,
        Some(Ok(time)) => Waits::For(time),
        Some(Err(_)) | None => Waits::For(Duration::ZERO),
    }
}

/// Returns whether a transaction may be open, or keys watched, after a command that is not refused; `None`: the command
/// does not change that.
pub(crate) fn leaves_unclean(args: &[&[u8]]) -> Option<bool> {
    let name = args.first()?;
    if same(name, "MULTI") || same(name, "WATCH") {
        return Some(true);
    }
    (same(name, "EXEC") || same(name, "DISCARD")).then_some(false)
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
    fn every_name_is_known_once() {
        for (_, name, _) in KNOWN.iter() {
            assert_eq!(known(name.as_bytes()).map(|(found, _)| found), Some(*name));
        }
        let mut names: Vec<&str> = KNOWN.iter().map(|(_, name, _)| *name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(names.iter().map(|name| name.len()).max(), Some(NAME_MAX));
        for other in ["", "GE", "GETS", "ZREVRANGEBYLE", "ZREVRANGEBYSCORES"] {
            assert!(known(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn commands_are_told_apart() {
        let kind = |words: &str| classify(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        assert_eq!(kind("get k"), Ok(Kind::Reads));
        assert_eq!(kind("GEORADIUSBYMEMBER_RO k m 1 m"), Ok(Kind::Reads));
        assert_eq!(kind("INCR k"), Ok(Kind::Writes));
        assert_eq!(kind("A.COMMAND.OF.A.MODULE k"), Ok(Kind::Writes));
        assert_eq!(kind("XREAD COUNT 1 STREAMS s 0"), Ok(Kind::Writes));
        assert_eq!(kind("CLIENT list"), Ok(Kind::Writes));
        assert_eq!(kind("blpop k 0"), Ok(Kind::Waits));
        assert!(waits_for_others(&[b"blpop", b"k", b"0"]) && !waits_for_others(&[b"BITCOUNT", b"k"]));
        assert_eq!(kind("XREAD block 0 STREAMS s $"), Ok(Kind::Waits));
        for refused in [
            "select 1",
            "Multi",
            "subscribe c",
            "wait 1 0",
            "client reply off",
            "client id",
            "CLIENT",
            "replconf ack 0",
        ] {
            assert!(matches!(kind(refused), Err(Failure::Refused(_))), "{refused}");
        }
    }

    #[test]
    fn times_are_known() {
        let waits = |words: &str| of_own(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        let ms = |ms: u64| Ok(Waits::For(Duration::from_millis(ms)));
        assert_eq!(waits("get k"), ms(0));
        assert_eq!(waits("multi"), ms(0));
        assert_eq!(waits("client ID"), ms(0));
        assert_eq!(waits("blpop a b 0.25"), ms(250));
        assert_eq!(waits("BLPOP a 0"), Ok(Waits::Forever));
        assert_eq!(waits("BLPOP a -1"), ms(0));
        assert_eq!(waits("BLPOP a 1e400"), ms(0));
        assert_eq!(waits("BLPOP"), ms(0));
        assert_eq!(waits("bzmpop 2 1 z MIN"), ms(2000));
        assert_eq!(waits("xread COUNT 1 block 30 STREAMS s $"), ms(30));
        assert_eq!(waits("WAIT 1 100"), ms(100));
        for refused in ["select 1", "subscribe c", "client reply off", "client setname x", "hello 3", "reset"] {
            assert!(matches!(waits(refused), Err(Failure::Refused(_))), "{refused}");
        }
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut out = Vec::new();
        encode(&[b"SET", b"k", b"0123456789ab", b""], &mut out);
        assert_eq!(out, b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\n0123456789ab\r\n$0\r\n\r\n");
    }
}
