//! Memory of clients under every policy: each kind of it is part of `used_memory` while it exists, is limited, and
//! never causes the eviction of everything.

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Policy, Store};
use sluicegate_testkit::{Client, encode, wait_for};

use crate::run;
use crate::support::Running;

const LIMIT: u64 = 20 << 20;
const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Returns a field of INFO.
fn info(client: &mut Client, field: &str) -> u64 {
    let text = client.ask(&["INFO", "everything"]);
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {field} in {text}"))
}

/// Returns a field of a client's line in CLIENT LIST; `None` once it has disconnected.
fn listed(client: &mut Client, id: u64, field: &str) -> Option<u64> {
    let text = client.ask(&["CLIENT", "LIST", "ID", &id.to_string()]);
    let line = text.lines().find(|line| line.starts_with("id="))?;
    let value = line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='))?;
    Some(value.parse().expect("a number"))
}

fn id(client: &mut Client) -> u64 {
    client.ask(&["CLIENT", "ID"]).trim_matches([':', '\r', '\n']).parse().expect("a number")
}

/// A way in which a client can use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hog {
    /// Commands between MULTI and EXEC.
    Queue,
    /// A request that is never completed.
    HalfRequest,
    /// Replies that the client does not read.
    Replies,
    /// Messages that the client does not read.
    Messages,
    /// Lines of MONITOR that the client does not read.
    Monitor,
    Channels,
    Patterns,
    Watched,
    /// The words of a command that waits for an element, and the requests after it.
    Blocked,
    /// Tables of a script that runs.
    Script,
}

const HOGS: [Hog; 10] = [
    Hog::Queue,
    Hog::HalfRequest,
    Hog::Replies,
    Hog::Messages,
    Hog::Monitor,
    Hog::Channels,
    Hog::Patterns,
    Hog::Watched,
    Hog::Blocked,
    Hog::Script,
];

/// Long names, so that fewer are needed.
fn name(n: usize) -> String {
    format!("{n:0>2000}")
}

impl Hog {
    /// Makes the client use about `bytes` bytes, with the help of another one. Continues after a refused command.
    fn take(self, client: &mut Client, other: &mut Client, bytes: usize) {
        let words = |command: &'static str| {
            let mut all = vec![command.to_owned()];
            // Each name counts twice: in the client's list, and in the table of subscribers or watchers.
            all.extend((0..bytes / 4400).map(name));
            encode(&all)
        };
        match self {
            Hog::Queue => {
                client.send(b"MULTI\r\n");
                for n in 0..bytes / 10_000 {
                    client.command(&["SET", &format!("queued:{n}"), &"q".repeat(10_000)]);
                }
            }
            Hog::HalfRequest => {
                client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", bytes + 1000));
                client.send(vec![b'v'; bytes]);
            }
            Hog::Replies => {
                assert_eq!(other.ask(&["SET", "big", &"b".repeat(1 << 20)]), "+OK\r\n");
                // One reply, as a connection that does not read gets no second one.
                client.command(
                    &["EVAL", "return table.concat({redis.call('get', KEYS[1]):rep(tonumber(ARGV[1]))})", "1", "big"]
                        .iter()
                        .map(|word| (*word).to_owned())
                        .chain([(bytes >> 20).max(1).to_string()])
                        .collect::<Vec<_>>(),
                );
            }
            Hog::Messages => {
                assert!(client.ask(&["SUBSCRIBE", "c"]).ends_with(":1\r\n"));
                for _ in 0..bytes / 100_000 {
                    let _ = other.ask(&["PUBLISH", "c", &"m".repeat(100_000)]);
                }
            }
            Hog::Monitor => {
                assert_eq!(client.ask(&["MONITOR"]), "+OK\r\n");
                for _ in 0..bytes / 100_000 {
                    let _ = other.ask(&["ECHO", &"m".repeat(100_000)]);
                }
            }
            Hog::Script => {
                let body = "local t = {} for i = 1, tonumber(ARGV[1]) do t[i] = string.rep('x', 10000) .. i end \
                            while true do end";
                client.command(&["EVAL", body, "0", &(bytes / 10_000).to_string()]);
            }
            Hog::Channels => client.send(words("SUBSCRIBE")),
            Hog::Patterns => client.send(words("PSUBSCRIBE")),
            Hog::Watched => client.send(words("WATCH")),
            Hog::Blocked => client
                .send([words("BLPOP"), b"*2\r\n$4\r\nECHO\r\n$9000000\r\n".to_vec(), vec![b'e'; bytes / 2]].concat()),
        }
    }
}

impl Hog {
    /// Ends what would outlive its client.
    fn end(self, other: &mut Client) {
        if self == Hog::Script {
            assert_eq!(other.ask(&["CONFIG", "SET", "busy-reply-threshold", "1"]), "+OK\r\n");
            wait_for("the script to end", || (other.ask(&["SCRIPT", "KILL"]) == "+OK\r\n").then_some(()));
        }
    }
}

fn serving(policy: Policy, limit: u64) -> Running {
    let options = ServerOptions { maxmemory: limit, maxmemory_policy: policy, ..ServerOptions::default() };
    Running::with(options, 2)
}

/// Fills the store to about nine tenths of the limit, with keys that the policy may evict.
fn fill(store: &Store, policy: Policy) -> u64 {
    let value = vec![b'v'; 50_000];
    let mut n = 0;
    while store.used_bytes() < LIMIT / 10 * 9 {
        let key = format!("key:{n}");
        let mut words = vec![&b"SET"[..], key.as_bytes(), &value];
        if policy.name().starts_with("volatile") {
            words.extend([&b"EX"[..], b"10000"]);
        }
        assert_eq!(run(store, &mut Caller::default(), &words), b"+OK\r\n");
        n += 1;
    }
    n
}

#[test]
fn every_kind_counts_while_it_is_there() {
    const BYTES: usize = 6_000_000;
    for hog in HOGS {
        let ours = serving(Policy::NoEviction, 0);
        let (mut client, mut other) = (ours.connect(), ours.connect());
        let own = id(&mut client);
        // The buffers of the other client stay large for a while.
        let _ = other.ask(&["ECHO", &"e".repeat(1 << 20)]);
        let before = (info(&mut other, "used_memory"), info(&mut other, "mem_clients_normal"));
        hog.take(&mut client, &mut other, BYTES);
        let data = if hog == Hog::Replies { 1 << 20 } else { 0 };
        let least = BYTES as u64 * 9 / 10 - if hog == Hog::Replies { 1 << 20 } else { 0 };
        wait_for(&format!("{hog:?} to be counted"), || {
            let used = info(&mut other, "used_memory").saturating_sub(before.0 + data);
            let clients = info(&mut other, "mem_clients_normal").saturating_sub(before.1);
            let listed = listed(&mut other, own, "tot-mem").expect("it is there");
            if hog == Hog::Script {
                return (used >= least).then_some(());
            }
            // The kernel's buffers hold a part of what is not read.
            let least = if matches!(hog, Hog::Replies | Hog::Messages | Hog::Monitor) { least / 4 } else { least };
            (used >= least && clients >= least && listed >= least).then_some(())
        });
        let stats = other.ask(&["MEMORY", "STATS"]);
        let place = stats.find("clients.normal\r\n:").expect("a figure") + "clients.normal\r\n:".len();
        let normal: u64 = stats[place..].split("\r\n").next().expect("a line").parse().expect("a number");
        assert!(normal > before.1 + 1_000_000 || hog == Hog::Script, "{hog:?}: {normal}");
        if hog == Hog::Queue {
            let report = other.ask(&["MEMORY", "DOCTOR"]);
            assert!(report.contains("Clients: more than half"), "{report}");
        }
        hog.end(&mut other);
        drop(client);
        wait_for(&format!("{hog:?} to be given back"), || {
            (info(&mut other, "used_memory") < before.0 + data + 1_000_000).then_some(())
        });
        assert!(info(&mut other, "mem_clients_normal") < before.1 + 1_000_000, "{hog:?}");
    }
}

#[test]
fn no_client_evicts_everything() {
    for policy in Policy::ALL {
        for hog in HOGS {
            let ours = serving(policy, LIMIT);
            let (mut client, mut other) = (ours.connect(), ours.connect());
            let keys = fill(ours.store(), policy);
            // Twice the limit.
            std::thread::scope(|scope| {
                let mut helper = ours.connect();
                let taking = scope.spawn(move || {
                    // The client may be closed while it sends.
                    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        hog.take(&mut client, &mut helper, 2 * LIMIT as usize);
                    }));
                    drop(taken);
                    client
                });
                let client = taking.join().expect("it goes on");
                let what = format!("{policy:?} {hog:?}");
                wait_for(&format!("{what}: memory to be within its limit"), || {
                    ours.store().tick();
                    let used = ours.store().used_bytes();
                    // A script has a limit of its own.
                    let is_kept = if hog == Hog::Script { used > 2 * LIMIT } else { used < LIMIT + (10 << 20) };
                    is_kept.then_some(())
                });
                let left: u64 = other.ask(&["DBSIZE"]).trim_matches([':', '\r', '\n']).parse().expect("a number");
                assert!(left >= keys / 3, "{what}: {left} of {keys} keys");
                if policy == Policy::NoEviction {
                    assert!(left >= keys, "{what}: {left} of {keys} keys");
                }
                hog.end(&mut other);
                drop(client);
            });
            wait_for("its memory to be given back", || {
                ours.store().tick();
                (ours.store().used_bytes() < LIMIT).then_some(())
            });
            let value = "n".repeat(1000);
            assert_eq!(other.ask(&["SET", "new", &value, "EX", "100"]), "+OK\r\n", "{policy:?} {hog:?}");
        }
    }
}

#[test]
fn a_queue_beyond_the_limit_is_refused_and_given_back() {
    for policy in Policy::ALL {
        let ours = serving(policy, LIMIT);
        let (mut client, mut other) = (ours.connect(), ours.connect());
        fill(ours.store(), policy);
        assert_eq!(client.ask(&["MULTI"]), "+OK\r\n");
        let value = "q".repeat(100_000);
        let mut refused = None;
        for n in 0..2 * LIMIT / 100_000 {
            match client.ask(&["RPUSH", "list", &value]).as_str() {
                "+QUEUED\r\n" => {}
                reply => {
                    assert_eq!(reply, OOM, "{policy:?}");
                    refused = Some(n);
                    break;
                }
            }
        }
        assert!(refused.is_some(), "{policy:?}: everything was queued");
        // Other clients can continue, because nothing of the refused command is kept.
        assert_eq!(other.ask(&["SET", "new", "value", "EX", "100"]), "+OK\r\n", "{policy:?}");
        assert_eq!(client.ask(&["SET", "a", "b"]), "+QUEUED\r\n", "{policy:?}");
        let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        assert_eq!(client.ask(&["EXEC"]), aborted, "{policy:?}");
        assert_eq!(client.ask(&["EXISTS", "list"]), ":0\r\n");
    }
}

#[test]
fn exec_is_refused_when_memory_is_full() {
    let ours = serving(Policy::NoEviction, LIMIT);
    let (mut client, mut other) = (ours.connect(), ours.connect());
    for command in [&["MULTI"][..], &["SET", "k", "v"]] {
        client.ask(command);
    }
    assert_eq!(other.ask(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    let refused =
        "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.\r\n";
    assert_eq!(client.ask(&["EXEC"]), refused);
}

#[test]
fn the_largest_clients_are_closed_at_maxmemory_clients() {
    for (limit, all) in [("4mb", "0"), ("25%", "16mb")] {
        let ours = Running::with(ServerOptions::default(), 1);
        let mut other = ours.connect();
        assert_eq!(other.ask(&["CONFIG", "SET", "maxmemory", all, "maxmemory-clients", limit]), "+OK\r\n");
        let shown = if all == "0" { "4194304" } else { limit };
        assert!(other.ask(&["CONFIG", "GET", "maxmemory-clients"]).ends_with(&format!("\r\n{shown}\r\n")));
        let (mut small, mut large, mut kept) = (ours.connect(), ours.connect(), ours.connect());
        assert_eq!(kept.ask(&["CLIENT", "NO-EVICT", "ON"]), "+OK\r\n");
        let ids = [&mut small, &mut large, &mut kept].map(id);
        kept.send(b"*2\r\n$4\r\nECHO\r\n$3000000\r\n");
        kept.send(vec![b'k'; 2_000_000]);
        small.send(b"*2\r\n$4\r\nECHO\r\n$3000000\r\n");
        small.send(vec![b's'; 300_000]);
        wait_for("both to be read", || {
            (listed(&mut other, ids[2], "qbuf")? >= 2_000_000 && listed(&mut other, ids[0], "qbuf")? >= 300_000)
                .then_some(())
        });
        large.send(b"*2\r\n$4\r\nECHO\r\n$9000000\r\n");
        // The client may be closed before everything is sent.
        let _ = std::io::Write::write_all(&mut large.stream(), &vec![b'l'; 3_000_000]);
        wait_for("the largest one to be closed", || (listed(&mut other, ids[1], "id").is_none()).then_some(()));
        assert!(listed(&mut other, ids[0], "id").is_some() && listed(&mut other, ids[2], "id").is_some());
        assert_eq!(info(&mut other, "evicted_clients"), 1);
        assert_eq!(other.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
        assert_eq!(info(&mut other, "evicted_clients"), 0);
    }
}

#[test]
fn the_asking_client_shows_its_buffers() {
    let ours = Running::start();
    let mut client = ours.connect();
    let own = id(&mut client);
    client.send(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n");
    let text = String::from_utf8(client.read_reply()).expect("text");
    let field = |name: &str| -> u64 {
        let value = text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.expect("a field").parse().expect("a number")
    };
    assert_eq!((field("qbuf"), field("argv-mem"), field("watch"), field("multi-mem")), (26, 10, 0, 0));
    assert!(field("qbuf-free") > 0 && field("tot-mem") > 2000, "{text}");
    assert_eq!((field("rbs"), field("obl"), field("oll"), field("omem")), (field("rbp"), 0, 0, 0));
    assert_eq!(client.ask(&["WATCH", "a", "b", "a"]), "+OK\r\n");
    assert_eq!(listed(&mut client, own, "watch"), Some(2));
    // A client that waits for an element keeps the words of its command.
    let mut waits = ours.connect();
    let waiting = id(&mut waits);
    waits.command(&["BLPOP", &"k".repeat(5000), "0"]);
    wait_for("it to wait", || (listed(&mut client, waiting, "argv-mem")? >= 5000).then_some(()));
    // The replies of a client that does not read are in its list.
    let mut slow = ours.connect();
    let unread = id(&mut slow);
    assert!(slow.ask(&["SUBSCRIBE", "c"]).ends_with(":1\r\n"));
    for _ in 0..200 {
        assert_eq!(client.ask(&["PUBLISH", "c", &"m".repeat(100_000)]), ":1\r\n");
    }
    wait_for("replies to wait", || {
        let (buffer, blocks, bytes) = (
            listed(&mut client, unread, "obl")?,
            listed(&mut client, unread, "oll")?,
            listed(&mut client, unread, "omem")?,
        );
        (buffer == 16_384 && bytes > 1_000_000 && blocks == bytes.div_ceil(16_384)).then_some(())
    });
}

#[test]
fn very_many_names_of_one_client_take_linear_time() {
    // With quadratic time, each command would take minutes.
    const NAMES: usize = 50_000;
    let ours = Running::start();
    let mut other = ours.connect();
    let words = |command: &str| {
        let names = (0..NAMES).map(|n| format!("name:{n}"));
        encode(&[command.to_owned()].into_iter().chain(names).collect::<Vec<_>>())
    };
    let mut client = ours.connect();
    client.send(words("WATCH"));
    assert_eq!(client.read_reply(), b"+OK\r\n");
    client.command(&["UNWATCH"]);
    assert_eq!(client.read_reply(), b"+OK\r\n");
    for command in ["SUBSCRIBE", "PSUBSCRIBE"] {
        let mut client = ours.connect();
        client.send(words(command));
        (0..NAMES).for_each(|_| drop(client.read_reply()));
        drop(client);
        wait_for("it to be forgotten", || {
            (info(&mut other, "pubsub_channels") + info(&mut other, "pubsub_patterns") == 0).then_some(())
        });
    }
    wait_for("its memory to be given back", || (info(&mut other, "mem_clients_normal") < 4 << 20).then_some(()));
}
