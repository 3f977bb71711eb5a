//! Sections that overfill `maxmemory`: a transaction or a script that writes more than fits completes, delays no other
//! client, does not search its own keys for victims, and can be ended from outside.

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Mode, Policy, Store, StoreOptions};
use sluicegate_testkit::wait_for;

use crate::support::Running;
use crate::{ask, block_on, run};

const LIMIT: u64 = 4 << 20;
const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

fn evicting() -> impl Iterator<Item = Policy> {
    Policy::ALL.into_iter().filter(|policy| *policy != Policy::NoEviction)
}

fn limited(policy: Policy) -> Store {
    let store = Store::new(StoreOptions::default());
    store.limit_memory(LIMIT, policy);
    store
}

/// Returns a write of a section: a KiB under the key, with a time to live if the policy needs one.
fn write(command: &str, key: &str, policy: Policy) -> Vec<Vec<u8>> {
    let value = "v".repeat(1024);
    let mut words = match command {
        "HSET" => vec!["HSET", key, "field", &value],
        _ => vec!["SET", key, &value],
    };
    if policy.name().starts_with("volatile") && command == "SET" {
        words.extend(["EX", "1000"]);
    }
    words.into_iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn a_section_that_overfills_the_store_ends_and_others_go_on() {
    // Two and a half times what fits. If each command made a round over all held keys, a policy would take minutes.
    const KEYS: usize = 10_000;
    for policy in evicting() {
        for command in ["SET", "HSET"] {
            let store = limited(policy);
            let names: Vec<String> = (0..KEYS).map(|n| format!("own:{n}")).collect();
            let section = store.section(names.iter().map(|name| (0, name.as_bytes(), Mode::Exclusive)));
            let mut section = block_on(section).expect("the keys are free");
            let mut reply = Vec::new();
            for name in &names {
                let words = write(command, name, policy);
                let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
                reply.clear();
                let out = &mut sluicegate_wire::resp::ReplyWriter::new(&mut reply, Default::default());
                section.execute(0, &words, out).expect("its own key");
                assert!(!reply.starts_with(b"-"), "{policy:?}: {}", String::from_utf8_lossy(&reply));
            }
            assert!(store.used_bytes() > 2 * LIMIT, "nothing of its own is evicted");
            // Writes of other clients are refused only if no key could be evicted even after the section's end.
            let expected = if policy.name().starts_with("volatile") && command == "HSET" { OOM } else { "+OK\r\n" };
            for n in 0..1000 {
                assert_eq!(ask(&store, &format!("SET other:{n} value EX 1000")), expected, "{policy:?} {command} {n}");
                if expected == OOM {
                    break;
                }
            }
            drop(section);
            if expected == OOM {
                continue;
            }
            wait_for("what is too much to be evicted", || {
                store.tick();
                (store.used_bytes() <= LIMIT / 50 * 51).then_some(())
            });
            assert_eq!(ask(&store, "SET other value EX 1000"), "+OK\r\n");
        }
    }
}

#[test]
fn keys_of_others_go_while_a_section_holds_most() {
    let store = limited(Policy::AllkeysLru);
    (0..2000).for_each(|n| {
        let value = vec![b'o'; 1024];
        let key = format!("other:{n}");
        assert_eq!(run(&store, &mut Caller::default(), &[b"SET", key.as_bytes(), &value]), b"+OK\r\n");
    });
    let names: Vec<String> = (0..2500).map(|n| format!("own:{n}")).collect();
    let section = store.section(names.iter().map(|name| (0, name.as_bytes(), Mode::Exclusive)));
    let mut section = block_on(section).expect("the keys are free");
    for name in &names {
        let words = write("SET", name, Policy::AllkeysLru);
        let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
        let mut reply = Vec::new();
        let out = &mut sluicegate_wire::resp::ReplyWriter::new(&mut reply, Default::default());
        section.execute(0, &words, out).expect("its own key");
    }
    assert!(store.used_bytes() < LIMIT / 50 * 51, "{}: what may go has gone", store.used_bytes());
    assert!(store.stats().evicted > 500, "{}", store.stats().evicted);
}

#[test]
fn a_script_that_overfills_the_store_ends() {
    for policy in evicting() {
        let options = ServerOptions { maxmemory: LIMIT, maxmemory_policy: policy, ..ServerOptions::default() };
        let ours = Running::with(options, 1);
        let (mut client, mut other) = (ours.connect(), ours.connect());
        let ttl = if policy.name().starts_with("volatile") { ",'EX','1000'" } else { "" };
        let body = format!("for i=1,16000 do redis.call('set','e'..i,ARGV[1]{ttl}) end return 1");
        client.command(&["EVAL", &body, "0", &"v".repeat(1000)]);
        // Other clients are neither delayed nor refused.
        assert_eq!(other.ask(&["SET", "o", "value", "EX", "1000"]), "+OK\r\n", "{policy:?}");
        assert_eq!(client.read_reply(), b":1\r\n", "{policy:?}");
        assert_eq!(other.ask(&["SET", "o", "value", "EX", "1000"]), "+OK\r\n", "{policy:?}");
        wait_for("what is too much to be evicted", || {
            ours.store().tick();
            (ours.store().used_bytes() <= LIMIT / 50 * 51).then_some(())
        });
    }
}

/// Sends a transaction of `count` commands, with one key that shows its beginning and one that shows its end.
fn long_transaction(client: &mut sluicegate_testkit::Client, command: &[&str], count: usize) {
    let mut all = b"MULTI\r\n".to_vec();
    if command[0] != "LRANGE" {
        all.extend(sluicegate_testkit::encode(&["SET", "begun", "1"]));
    }
    let one = sluicegate_testkit::encode(command);
    (0..count).for_each(|_| all.extend_from_slice(&one));
    if command[0] != "LRANGE" {
        all.extend(sluicegate_testkit::encode(&["SET", "ended", "1"]));
    }
    all.extend_from_slice(b"EXEC\r\n");
    client.send(all);
}

#[test]
fn a_transaction_whose_client_is_killed_is_not_cut_in_half() {
    // A transaction that has written completes without its client; one that only reads is ended.
    for (command, ends) in [(&["RPUSH", "list", "x"][..], true), (&["LRANGE", "long", "0", "-1"], false)] {
        let ours = Running::with(ServerOptions::default(), 2);
        let (mut client, mut other) = (ours.connect(), ours.connect());
        let words: Vec<String> =
            ["RPUSH", "long"].map(str::to_owned).into_iter().chain((0..1000).map(|n| n.to_string())).collect();
        other.command(&words);
        other.read_reply();
        let id = client.ask(&["CLIENT", "ID"]).trim_matches([':', '\r', '\n']).to_owned();
        let (count, granted) = (100_000, ours.store().stats().granted);
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                long_transaction(&mut client, command, count);
                client.read_to_end()
            });
            wait_for("the transaction to begin", || (ours.store().stats().granted > granted).then_some(()));
            assert_eq!(other.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
            wait_for("its client to be gone", || {
                (!other.ask(&["CLIENT", "LIST", "ID", &id]).contains("id=")).then_some(())
            });
            drop(sending.join());
        });
        wait_for("its keys to be free", || (ours.store().stats().tickets == 0).then_some(()));
        if ends {
            assert_eq!(other.ask(&["LLEN", "list"]), format!(":{count}\r\n"));
            assert_eq!(other.ask(&["EXISTS", "begun", "ended"]), ":2\r\n");
        }
    }
}

#[test]
fn a_transaction_with_too_many_replies_loses_its_client_and_goes_on() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut client, mut other) = (ours.connect(), ours.connect());
    assert_eq!(other.ask(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"]), "+OK\r\n");
    assert_eq!(other.ask(&["SET", "long", &"v".repeat(100_000)]), "+OK\r\n");
    assert_eq!(client.ask(&["MULTI"]), "+OK\r\n");
    for command in
        [&["SET", "begun", "1"][..]].into_iter().chain([&["GET", "long"][..]; 200]).chain([&["SET", "ended", "1"][..]])
    {
        assert_eq!(client.ask(command), "+QUEUED\r\n");
    }
    client.command(&["EXEC"]);
    let came = client.read_to_end().len();
    assert!(came < 2_000_000, "{came} bytes of 20 MB");
    wait_for("its keys to be free", || (ours.store().stats().tickets == 0).then_some(()));
    assert_eq!(other.ask(&["EXISTS", "begun", "ended"]), ":2\r\n");
}
