//! What nodes of a cluster say of other nodes: the slot map, and errors that send a command elsewhere.

use std::ops::RangeInclusive;

use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::SLOTS;

use crate::Address;

/// Most nodes of a cluster that are known at a time.
const NODES_MAX: usize = 4096;

/// A master with its replicas, and the slots that are theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) slots: Vec<RangeInclusive<u16>>,
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

/// Reads the reply of `CLUSTER SLOTS` that `from` gave.
pub(crate) fn slots(reply: &Reply, from: &Address) -> Result<Vec<Shard>, String> {
    let lines = match reply {
        Reply::Array(lines) => lines,
        Reply::Error(text) => return Err(text.clone()),
        _ => return Err("CLUSTER SLOTS is answered by something else than a list".into()),
    };
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
        // A master whose address its neighbours don't know yet serves nobody.
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
        shards.push(Shard { slots: vec![range], master, replicas });
    }
    if shards.is_empty() {
        return Err("no slot has a node".into());
    }
    Ok(shards)
}

fn slot(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < SLOTS)
}

/// A node's entry: its host, which is that of the node that was asked if it is empty, and its port.
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

/// Reads what the sentinel `from` says of a master: the replies of `SENTINEL GET-MASTER-ADDR-BY-NAME` and of `SENTINEL
/// MASTER`, of which the configuration's epoch tells how new it is.
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
    let epoch = |name: &Reply, value: &Reply| match (name, value) {
        (Reply::Bulk(name), Reply::Bulk(value)) if name == b"config-epoch" => {
            std::str::from_utf8(value).ok()?.parse().ok()
        }
        _ => None,
    };
    let epoch = match state {
        Reply::Error(text) => return Err(text.clone()),
        Reply::Map(pairs) => pairs.iter().find_map(|(name, value)| epoch(name, value)),
        Reply::Array(words) => words.chunks_exact(2).find_map(|pair| epoch(&pair[0], &pair[1])),
        _ => None,
    };
    Ok((there, epoch.ok_or("a master is told without its epoch")?))
}

/// An error that means: not here, or not now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// `MOVED`: the slot is there from now on.
    Moved(u16, Address),
    /// `ASK`: this one key is there already, or only there.
    Ask(Address),
    /// Some of the keys have moved and some have not, the cluster has no majority, or a master has become a
    /// replica: a little later.
    Later,
}

/// Reads an error of `from`.
pub(crate) fn redirect(text: &str, from: &Address) -> Option<Redirect> {
    let mut words = text.split(' ');
    match words.next()? {
        "TRYAGAIN" | "CLUSTERDOWN" | "READONLY" => Some(Redirect::Later),
        code @ ("MOVED" | "ASK") => {
            let slot = slot(words.next()?.parse().ok()?)?;
            let (host, port) = words.next()?.rsplit_once(':')?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let port = port.parse().ok()?;
            match address(host, port, from) {
                Some(there) if code == "MOVED" => Some(Redirect::Moved(slot, there)),
                Some(there) => Some(Redirect::Ask(there)),
                // It does not know where: others will, or it will soon.
                None => Some(Redirect::Later),
            }
        }
        _ => None,
    }
}

/// Reads whatever comes as the reply of `CLUSTER SLOTS` and as an error: no input makes it fail.
#[doc(hidden)]
pub fn fuzz_told(data: &[u8]) {
    let from = Address::Tcp("127.0.0.1".into(), 7000);
    let limits = sluicegate_wire::resp::ReplyLimits::default();
    if let Ok(progress) = sluicegate_wire::resp::ReplyParser::new(limits).parse(data)
        && let Some(reply) = progress.reply
    {
        let _ = master(&reply, &reply, &from);
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
            },
            // Without a host it is the one that was asked.
            Shard { slots: vec![100..=16383], master: tcp("10.0.0.9", 7003), replicas: vec![] },
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
