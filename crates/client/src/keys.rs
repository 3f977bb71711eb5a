//! The position of a command's first key, by which a cluster client chooses the node. The node checks whether the other
//! keys are in the same slot (`CROSSSLOT`).

use crate::Failure;
use crate::command::upper_case;

/// The part of a command that determines its node in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// The node that owns this key.
    Key(&'a [u8]),
    /// Any node.
    Any,
}

/// Commands without a key to which every node gives the same reply, or a reply about itself.
const ANYWHERE: &[&str] = &[
    "ACL",
    "BGREWRITEAOF",
    "BGSAVE",
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "ECHO",
    "FAILOVER",
    "INFO",
    "LASTSAVE",
    "LATENCY",
    "LOLWUT",
    "MODULE",
    "PING",
    "PUBLISH",
    "PUBSUB",
    "REPLICAOF",
    "ROLE",
    "SAVE",
    "SHUTDOWN",
    "SLAVEOF",
    "SLOWLOG",
    "TIME",
    "WAIT",
    "WAITAOF",
];

/// Commands on all keys or all scripts, of which a node of a cluster has only a part.
const EVERYWHERE: &[&str] =
    &["DBSIZE", "FLUSHALL", "FLUSHDB", "FUNCTION", "KEYS", "RANDOMKEY", "SCAN", "SCRIPT", "SWAPDB"];

/// Commands in which the number of keys precedes the keys, with the index of that number.
const NUMBERED: &[(&str, usize)] = &[
    ("BLMPOP", 2),
    ("BZMPOP", 2),
    ("EVAL", 2),
    ("EVALSHA", 2),
    ("EVALSHA_RO", 2),
    ("EVAL_RO", 2),
    ("FCALL", 2),
    ("FCALL_RO", 2),
    ("LMPOP", 1),
    ("SINTERCARD", 1),
    ("ZDIFF", 1),
    ("ZINTER", 1),
    ("ZINTERCARD", 1),
    ("ZMPOP", 1),
    ("ZUNION", 1),
];

/// Commands whose first key is the second argument, after a subcommand or an operation.
const SECOND: &[&str] = &["BITOP", "DEBUG", "MEMORY", "OBJECT", "XGROUP", "XINFO"];

/// The longest name above.
const NAME_MAX: usize = 12;

/// Returns the routing of a command in a cluster. For an unknown command, such as a module's, the first argument is
/// assumed to be its key; the node redirects the command if that is wrong.
pub(crate) fn place<'a>(args: &[&'a [u8]]) -> Result<Place<'a>, Failure> {
    let [name, rest @ ..] = args else { return Ok(Place::Any) };
    let at = |index: usize| args.get(index).map_or(Place::Any, |key| Place::Key(key));
    let mut upper = [0; NAME_MAX];
    let Some(upper) = upper_case(name, &mut upper).and_then(|upper| std::str::from_utf8(upper).ok()) else {
        return Ok(at(1));
    };
    if ANYWHERE.binary_search(&upper).is_ok() {
        return Ok(Place::Any);
    }
    if EVERYWHERE.binary_search(&upper).is_ok() {
        return Err(Failure::Refused(format!(
            "{upper} is about all nodes of a cluster, and one is asked: not available with 'mode cluster'"
        )));
    }
    if let Ok(found) = NUMBERED.binary_search_by_key(&upper, |(name, _)| name) {
        let index = NUMBERED[found].1;
        let none = args.get(index).is_none_or(|count| count.iter().all(|digit| *digit == b'0'));
        return Ok(if none { Place::Any } else { at(index + 1) });
    }
    if SECOND.binary_search(&upper).is_ok() {
        return Ok(at(2));
    }
    let behind = |word: &[u8]| rest.iter().position(|arg| arg.eq_ignore_ascii_case(word)).map(|index| at(index + 2));
    Ok(match upper {
        "XREAD" | "XREADGROUP" => behind(b"STREAMS").unwrap_or(Place::Any),
        "MIGRATE" if args.get(3).is_some_and(|key| key.is_empty()) => behind(b"KEYS").unwrap_or(Place::Any),
        "MIGRATE" => at(3),
        _ => at(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_in_order() {
        assert!(ANYWHERE.is_sorted() && EVERYWHERE.is_sorted() && SECOND.is_sorted());
        assert!(NUMBERED.is_sorted_by_key(|(name, _)| *name));
        let names = ANYWHERE.iter().chain(EVERYWHERE).chain(SECOND).chain(NUMBERED.iter().map(|(name, _)| name));
        assert_eq!(names.map(|name| name.len()).max(), Some(NAME_MAX));
    }

    #[test]
    fn the_first_key_is_found() {
        let check = |words: &str, key: &str| {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            assert_eq!(place(&args), Ok(Place::Key(key.as_bytes())), "{words}");
        };
        check("get k", "k");
        check("MSET a 1 b 2", "a");
        check("BITOP AND d a b", "d");
        check("object encoding k", "k");
        check("EVAL script 1 k v", "k");
        check("FCALL f 2 a b", "a");
        check("ZUNIONSTORE d 2 a b", "d");
        check("ZUNION 2 a b", "a");
        check("blmpop 0 2 a b LEFT", "a");
        check("XREADGROUP GROUP g c COUNT 1 STREAMS s t > >", "s");
        check("MIGRATE host 6379 k 0 100", "k");
        check("JSON.GET k $", "k");
        check("A.VERY.LONG.NAME.OF.A.MODULE k", "k");
        for any in ["PING", "PUBLISH c m", "EVAL script 0", "info", "GET", "XREAD STREAMS"] {
            let args: Vec<&[u8]> = any.split(' ').map(str::as_bytes).collect();
            assert_eq!(place(&args), Ok(Place::Any), "{any}");
        }
        let args: [&[u8]; 2] = [b"MIGRATE", b"h"];
        assert_eq!(place(&args), Ok(Place::Any));
        assert!(matches!(place(&[b"scan", b"0"]), Err(Failure::Refused(_))));
    }
}
