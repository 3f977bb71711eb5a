//! Replies of cluster nodes about other nodes: the slot map, and errors that redirect a command.

use std::ops::RangeInclusive;

use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::SLOTS;

use crate::Address;

/// The maximum number of known nodes of a cluster, and of replicas of a master behind sentinels.
pub(crate) const NODES_MAX: usize = 4096;
/// The maximum number of other sentinels accepted from one reply.
pub(crate) const SENTINELS_MAX: usize = 16;

/// A master with its replicas, and the slots that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) slots: Vec<RangeInclusive<u16>>,
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
    /// Replicas that are reachable but currently disconnected from their master, according to a sentinel.
    pub(crate) spare: Vec<Address>,
}

/// Parses the reply to `CLUSTER SLOTS` of the node `from`.
pub(crate) fn slots(reply: &Reply, from: &Address) -> Result<Vec<Shard>, String> {
    let lines = match reply {
        Reply::Array(lines) => lines,
        Reply::Error(text) => return Err(text.clone()),
        _ => return Err("CLUSTER SLOTS is answered by something else than a list".into()),
    };
    if lines.len() > usize::from(SLOTS) {
        return Err(format!("CLUSTER SLOTS has {} entries, more than there are slots", lines.len()));
    }
    let mut shards: Vec<Shard> = Vec::new();
    let mut nodes = 0;
    for line in lines {
        let Reply::Array(line) = line else { return Err("an entry of CLUSTER SLOTS is no list".into()) };
        let [Reply::Integer(first), Reply::Integer(last), hosts @ ..] = &line[..] else {
            return Err("an entry of CLUSTER SLOTS has no slots".into());
        };
        let range = match (slot(*first), slot(*last)) {
            (Some(first), Some(last)) if first <= last => first..=last,
            _ => return Err(format!("CLUSTER SLOTS tells of the slots {first} to {last}")),
        };
        let mut hosts = hosts.iter().filter_map(|host| node(host, from));
        // A master whose address is not known to its neighbours yet is unusable.
        let Some(master) = hosts.next() else { continue };
        if let Some(known) = shards.iter_mut().find(|shard| shard.master == master) {
            known.slots.push(range);
            continue;
        }
        let replicas: Vec<Address> = hosts.filter(|replica| *replica != master).collect();
        nodes += 1 + replicas.len();
        if nodes > NODES_MAX {
            return Err(format!("CLUSTER SLOTS tells of more than {NODES_MAX} nodes"));
        }
        shards.push(Shard { slots: vec![range], master, replicas, spare: Vec::new() });
    }
    if shards.is_empty() {
        return Err("no slot has a node".into());
    }
    Ok(shards)
}

fn slot(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < SLOTS)
}

/// Parses a node's entry: its host, which if empty is that of the queried node, and its port.
fn node(entry: &Reply, from: &Address) -> Option<Address> {
    let Reply::Array(words) = entry else { return None };
    let [host, Reply::Integer(port), ..] = &words[..] else { return None };
    let host = match host {
        Reply::Bulk(host) => std::str::from_utf8(host).ok()?,
        Reply::Simple(host) => host,
        Reply::Null => "",
        _ => return None,
    };
    address(host, u16::try_from(*port).ok()?, from)
}

fn address(host: &str, port: u16, from: &Address) -> Option<Address> {
    match (host, from) {
        _ if port == 0 => None,
        ("?", _) => None,
        ("", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}

/// Parses the answer of the sentinel `from` about a master: the replies of `SENTINEL GET-MASTER-ADDR-BY-NAME` and of
/// `SENTINEL MASTER`, which includes the configuration epoch.
pub(crate) fn master(address: &Reply, state: &Reply, from: &Address) -> Result<(Address, u64), String> {
    let there = match address {
        Reply::Error(text) => return Err(text.clone()),
        Reply::Null => return Err("no master of this name is watched".into()),
        Reply::Array(words) => match &words[..] {
            [host, Reply::Bulk(port)] => {
                let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                node(&Reply::Array(vec![host.clone(), Reply::Integer(port.unwrap_or(0))]), from)
            }
            _ => None,
        },
        _ => None,
    };
    let there = there.ok_or("a master is told without an address")?;
    if let Reply::Error(text) = state {
        return Err(text.clone());
    }
    let epoch = field(state, "config-epoch").and_then(|epoch| epoch.parse().ok());
    Ok((there, epoch.ok_or("a master is told without its epoch")?))
}

/// Returns a field of a sentinel's description of an instance: a map, in RESP2 a list of names and values.
fn field<'a>(state: &'a Reply, name: &str) -> Option<&'a str> {
    let value = match state {
        Reply::Map(pairs) => pairs.iter().find(|(of, _)| is(of, name)).map(|(_, value)| value),
        Reply::Array(words) => words.chunks_exact(2).find(|pair| is(&pair[0], name)).map(|pair| &pair[1]),
        _ => None,
    };
    match value? {
        Reply::Bulk(value) => std::str::from_utf8(value).ok(),
        _ => None,
    }
}

fn is(word: &Reply, name: &str) -> bool {
    matches!(word, Reply::Bulk(word) if word == name.as_bytes())
}

/// Returns the address of an instance in the answer of the sentinel `from`.
fn instance(state: &Reply, from: &Address) -> Option<Address> {
    address(field(state, "ip")?, field(state, "port")?.parse().ok()?, from)
}

fn is_down(state: &Reply) -> bool {
    let flags = field(state, "flags").unwrap_or_default();
    flags.split(',').any(|flag| matches!(flag, "s_down" | "o_down" | "disconnected"))
}

/// Parses the answer of the sentinel `from` about a master's replicas (`SENTINEL REPLICAS`): those connected to it, and
/// disconnected ones with data. Replicas that are down, or never received data from a master, are omitted.
pub(crate) fn replicas(reply: &Reply, from: &Address) -> Result<(Vec<Address>, Vec<Address>), String> {
    let states = match reply {
        Reply::Array(states) => states,
        Reply::Error(text) => return Err(text.clone()),
        _ => return Err("SENTINEL REPLICAS is answered by something else than a list".into()),
    };
    if states.len() > NODES_MAX {
        return Err(format!("SENTINEL REPLICAS tells of more than {NODES_MAX} nodes"));
    }
    let (mut linked, mut spare) = (Vec::new(), Vec::new());
    for state in states.iter().filter(|state| !is_down(state)) {
        let Some(there) = instance(state, from) else { continue };
        if field(state, "master-link-status") == Some("ok") {
            linked.push(there);
        } else if field(state, "slave-repl-offset").is_some_and(|offset| offset != "0") {
            spare.push(there);
        }
    }
    Ok((linked, spare))
}

/// Parses the other sentinels that the sentinel `from` knows (`SENTINEL SENTINELS`); those that are down come last. An
/// invalid reply has none.
pub(crate) fn sentinels(reply: &Reply, from: &Address) -> Vec<Address> {
    let Reply::Array(states) = reply else { return Vec::new() };
    let (down, up): (Vec<&Reply>, Vec<&Reply>) = states.iter().partition(|state| is_down(state));
    up.into_iter().chain(down).filter_map(|state| instance(state, from)).take(SENTINELS_MAX).collect()
}

/// An error that means that the command should be sent to another node, or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// `MOVED`: this node owns the slot from now on.
    Moved(u16, Address),
    /// `ASK`: that node has this key already, but does not own the slot yet.
    Ask(Address),
    /// Some of the keys have moved and some have not, the cluster has no majority, a master has become a replica, or a
    /// node cannot reply now: retry a little later.
    Later,
}

/// Parses an error of the node `from`.
pub(crate) fn redirect(text: &str, from: &Address) -> Option<Redirect> {
    let mut words = text.split(' ');
    match words.next()? {
        "TRYAGAIN" | "CLUSTERDOWN" | "READONLY" | "MASTERDOWN" | "LOADING" => Some(Redirect::Later),
        code @ ("MOVED" | "ASK") => {
            let slot = slot(words.next()?.parse().ok()?)?;
            let (host, port) = words.next()?.rsplit_once(':')?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let port = port.parse().ok()?;
            match address(host, port, from) {
                Some(there) if code == "MOVED" => Some(Redirect::Moved(slot, there)),
                Some(there) => Some(Redirect::Ask(there)),
                // The node does not know the new owner: others know it, or the node will soon.
                None => Some(Redirect::Later),
            }
        }
        _ => None,
    }
}

/// Parses any bytes as the reply of `CLUSTER SLOTS`, as a sentinel's answer, and as an error: must not panic.
#[doc(hidden)]
pub fn fuzz_told(data: &[u8]) {
    let from = Address::Tcp("127.0.0.1".into(), 7000);
    let limits = sluicegate_wire::resp::ReplyLimits::default();
    if let Ok(progress) = sluicegate_wire::resp::ReplyParser::new(limits).parse(data)
        && let Some(reply) = progress.reply
    {
        let _ = master(&reply, &reply, &from);
        assert!(sentinels(&reply, &from).len() <= SENTINELS_MAX);
        let (linked, spare) = replicas(&reply, &from).unwrap_or_default();
        assert!(linked.len() + spare.len() <= NODES_MAX);
        let shards = slots(&reply, &from).unwrap_or_default();
        assert!(shards.iter().flat_map(|shard| &shard.slots).all(|range| !range.is_empty() && *range.end() < SLOTS));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Some(Redirect::Moved(slot, there)) = redirect(text, &from)
    {
        assert!(slot < SLOTS && there != Address::Tcp(String::new(), 0), "{there}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    fn read(bytes: &str) -> Result<Vec<Shard>, String> {
        let limits = sluicegate_wire::resp::ReplyLimits::default();
        let progress = sluicegate_wire::resp::ReplyParser::new(limits).parse(bytes.as_bytes()).expect("RESP");
        slots(&progress.reply.expect("whole"), &tcp("10.0.0.9", 7000))
    }

    const TWO: &str = "*3\r\n\
        *4\r\n:0\r\n:99\r\n*3\r\n$8\r\n10.0.0.1\r\n:7001\r\n$2\r\nid\r\n*3\r\n$8\r\n10.0.0.2\r\n:7002\r\n$2\r\nid\r\n\
        *3\r\n:100\r\n:16383\r\n*3\r\n$-1\r\n:7003\r\n$2\r\nid\r\n\
        *3\r\n:200\r\n:201\r\n*3\r\n$8\r\n10.0.0.1\r\n:7001\r\n$2\r\nid\r\n";

    #[test]
    fn a_slot_map_is_read() {
        let expected = vec![
            Shard {
                slots: vec![0..=99, 200..=201],
                master: tcp("10.0.0.1", 7001),
                replicas: vec![tcp("10.0.0.2", 7002)],
                spare: vec![],
            },
            // Without a host, the master is the queried node.
            Shard { slots: vec![100..=16383], master: tcp("10.0.0.9", 7003), replicas: vec![], spare: vec![] },
        ];
        assert_eq!(read(TWO), Ok(expected));
        let check = |bytes: &str, expected: &str| assert_eq!(read(bytes).unwrap_err(), expected, "{bytes}");
        check("*0\r\n", "no slot has a node");
        check("*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$1\r\n?\r\n:7001\r\n", "no slot has a node");
        check("*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:7001\r\n", "CLUSTER SLOTS tells of the slots 0 to 16384");
        check("*1\r\n*3\r\n:9\r\n:8\r\n*2\r\n$1\r\nh\r\n:7001\r\n", "CLUSTER SLOTS tells of the slots 9 to 8");
        check("*1\r\n:1\r\n", "an entry of CLUSTER SLOTS is no list");
        check("-ERR This instance has cluster support disabled\r\n", "ERR This instance has cluster support disabled");
        check("+OK\r\n", "CLUSTER SLOTS is answered by something else than a list");
    }

    #[test]
    fn a_master_is_read() {
        let text = |text: &str| Reply::Bulk(text.into());
        let here = Reply::Array(vec![text("10.0.0.1"), text("6380")]);
        let pairs = [("name", "m"), ("config-epoch", "7"), ("quorum", "2")];
        let flat = Reply::Array(pairs.iter().flat_map(|(name, value)| [text(name), text(value)]).collect());
        let map = Reply::Map(pairs.iter().map(|(name, value)| (text(name), text(value))).collect());
        let from = tcp("10.0.0.9", 26379);
        for state in [&flat, &map] {
            assert_eq!(master(&here, state, &from), Ok((tcp("10.0.0.1", 6380), 7)));
        }
        let check = |address: Reply, state: &Reply, expected: &str| {
            assert_eq!(master(&address, state, &from).unwrap_err(), expected);
        };
        check(Reply::Null, &map, "no master of this name is watched");
        check(Reply::Array(vec![text("h"), text("x")]), &map, "a master is told without an address");
        check(Reply::Integer(1), &map, "a master is told without an address");
        check(here.clone(), &Reply::Array(vec![]), "a master is told without its epoch");
        check(here, &Reply::Error("NOAUTH".into()), "NOAUTH");
    }

    /// Instances as a sentinel tells of them: port, flags, link, offset; as maps, or as flat lists.
    fn instances(all: &[(&str, &str, &str, &str)], maps: bool) -> Reply {
        let text = |text: &str| Reply::Bulk(text.into());
        let one = |(port, flags, link, offset): &(&str, &str, &str, &str)| {
            let fields = [("ip", "10.0.0.1"), ("port", *port), ("flags", *flags)];
            let further = [("master-link-status", *link), ("slave-repl-offset", *offset)];
            let pairs = fields.into_iter().chain(further).map(|(name, value)| (text(name), text(value)));
            match maps {
                true => Reply::Map(pairs.collect()),
                false => Reply::Array(pairs.flat_map(|(name, value)| [name, value]).collect()),
            }
        };
        Reply::Array(all.iter().map(one).collect())
    }

    #[test]
    fn replicas_of_a_master_are_read() {
        let from = tcp("10.0.0.9", 26379);
        let all = [
            ("1", "slave", "ok", "7"),
            ("2", "s_down,slave", "ok", "7"),
            ("3", "slave,disconnected", "ok", "7"),
            ("4", "slave", "err", "7"),
            ("5", "slave", "err", "0"),
            ("x", "slave", "ok", "7"),
            ("6", "slave", "ok", "7"),
        ];
        for maps in [true, false] {
            let (linked, spare) = replicas(&instances(&all, maps), &from).expect("a list");
            assert_eq!(linked, [tcp("10.0.0.1", 1), tcp("10.0.0.1", 6)]);
            assert_eq!(spare, [tcp("10.0.0.1", 4)]);
        }
        let many = vec![("1", "slave", "ok", "7"); NODES_MAX + 1];
        assert_eq!(
            replicas(&instances(&many, true), &from).unwrap_err(),
            "SENTINEL REPLICAS tells of more than 4096 nodes"
        );
        assert_eq!(replicas(&Reply::Error("NOPERM".into()), &from).unwrap_err(), "NOPERM");
        let other = "SENTINEL REPLICAS is answered by something else than a list";
        assert_eq!(replicas(&Reply::Integer(1), &from).unwrap_err(), other);
    }

    #[test]
    fn other_sentinels_are_read() {
        let from = tcp("10.0.0.9", 26379);
        let all = [("1", "s_down,sentinel", "", ""), ("2", "sentinel", "", ""), ("0", "sentinel", "", "")];
        assert_eq!(sentinels(&instances(&all, true), &from), [tcp("10.0.0.1", 2), tcp("10.0.0.1", 1)]);
        let many = vec![("1", "sentinel", "", ""); 100];
        assert_eq!(sentinels(&instances(&many, false), &from).len(), SENTINELS_MAX);
        assert_eq!(sentinels(&Reply::Error("NOPERM".into()), &from), []);
    }

    #[test]
    fn errors_that_send_elsewhere_are_read() {
        let check = |text: &str, expected: Option<Redirect>| {
            assert_eq!(redirect(text, &tcp("10.0.0.9", 7000)), expected, "{text}");
        };
        check("MOVED 3999 127.0.0.1:6381", Some(Redirect::Moved(3999, tcp("127.0.0.1", 6381))));
        check("MOVED 3999 ::1:6381", Some(Redirect::Moved(3999, tcp("::1", 6381))));
        check("MOVED 3999 [::1]:6381", Some(Redirect::Moved(3999, tcp("::1", 6381))));
        check("MOVED 3999 node.example:6381", Some(Redirect::Moved(3999, tcp("node.example", 6381))));
        check("MOVED 3999 :6381", Some(Redirect::Moved(3999, tcp("10.0.0.9", 6381))));
        check("ASK 3999 127.0.0.1:6381", Some(Redirect::Ask(tcp("127.0.0.1", 6381))));
        check("MOVED 3999 ?:0", Some(Redirect::Later));
        check("TRYAGAIN Multiple keys request during rehashing of slot", Some(Redirect::Later));
        check("CLUSTERDOWN Hash slot not served", Some(Redirect::Later));
        check("LOADING Redis is loading the dataset in memory", Some(Redirect::Later));
        check("MASTERDOWN Link with MASTER is down", Some(Redirect::Later));
        for other in
            ["ERR MOVED", "MOVED", "MOVED 16384 h:1", "MOVED -1 h:1", "MOVED 1 h", "MOVED 1 h:65536", "ASK x h:1"]
        {
            check(other, None);
        }
    }

    proptest! {
        #[test]
        fn fuzz_told_holds(cut in 0usize..400, at in 0usize..400, byte in any::<u8>(), text in ".{0,40}") {
            let mut bytes = TWO.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut.max(1));
            fuzz_told(&bytes);
            fuzz_told(format!("MOVED {text}").as_bytes());
            fuzz_told(format!("ASK 1 {text}:1").as_bytes());
            fuzz_told(text.as_bytes());
        }
    }
}
