//! Publish and subscribe, compared with a real Redis, across workers, with subscribers that do not read or disconnect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use crate::Random;
use crate::server::check_alike_by_default;
use crate::support::Running;

/// Requests whose replies must be the same to the byte. Each runs on a connection of its own.
const ALIKE: &[&str] = &[
    "SUBSCRIBE a b\r\nSUBSCRIBE a\r\nPSUBSCRIBE x*\r\nSSUBSCRIBE s1\r\nPING\r\nPING hi\r\nGET a\r\nPUBLISH a b\r\n\
     UNSUBSCRIBE a\r\nUNSUBSCRIBE nosuch b\r\nUNSUBSCRIBE\r\nPUNSUBSCRIBE\r\nSUNSUBSCRIBE\r\nUNSUBSCRIBE\r\n\
     PUNSUBSCRIBE\r\nSUNSUBSCRIBE\r\nGET a\r\nPING\r\nPING hi\r\n",
    "UNSUBSCRIBE\r\nUNSUBSCRIBE a b\r\nPUNSUBSCRIBE a\r\nSUNSUBSCRIBE\r\nSUNSUBSCRIBE a\r\n",
    "SUBSCRIBE a b c\r\nUNSUBSCRIBE b a\r\nUNSUBSCRIBE\r\n",
    "SUBSCRIBE\r\nPSUBSCRIBE\r\nSSUBSCRIBE\r\nPUBLISH a\r\nSPUBLISH a b c\r\n",
    "SUBSCRIBE a\r\nPING a b\r\nnosuch\r\nGET\r\nHELLO 3\r\nCLIENT ID\r\nMULTI\r\nQUIT\r\n",
    "SUBSCRIBE a\r\nPSUBSCRIBE a*\r\nSSUBSCRIBE a\r\nRESET\r\nGET nosuch\r\nPUBSUB CHANNELS\r\nPUBSUB NUMPAT\r\n",
    "SUBSCRIBE \"\"\r\nPSUBSCRIBE \"\"\r\nSUBSCRIBE \"a\\x00b\"\r\n",
    "CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nUNSUBSCRIBE a\r\nCLIENT REPLY ON\r\n",
    "CLIENT REPLY SKIP\r\nSUBSCRIBE a\r\nPING\r\n",
    "PUBLISH a b\r\nSPUBLISH a b\r\nPUBSUB CHANNELS\r\nPUBSUB CHANNELS x\r\nPUBSUB NUMSUB\r\nPUBSUB NUMSUB a b\r\n",
    "PUBSUB NUMPAT\r\nPUBSUB SHARDCHANNELS\r\nPUBSUB SHARDNUMSUB a\r\nPUBSUB HELP\r\nPUBSUB\r\nPUBSUB FOO\r\n",
    "PUBSUB NUMPAT x\r\nPUBSUB CHANNELS x y\r\nPUBSUB SHARDCHANNELS x y\r\nPUBSUB HELP x\r\n",
    "COMMAND INFO subscribe unsubscribe psubscribe punsubscribe ssubscribe sunsubscribe publish spublish\r\n",
    "COMMAND INFO pubsub|channels pubsub|numsub pubsub|numpat pubsub|shardchannels pubsub|shardnumsub pubsub|help\r\n",
    "COMMAND GETKEYS publish a b\r\nCOMMAND GETKEYS spublish a b\r\nCOMMAND GETKEYS ssubscribe a\r\n",
    "SUBSCRIBE a\r\nCLIENT LIST TYPE pubsub\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

#[test]
fn resp3_has_pushes_beside_replies() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.command(&["HELLO", "3"]);
    client.read_reply();
    assert_eq!(client.ask(&["SUBSCRIBE", "a"]), ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(client.ask(&["GET", "nosuch"]), "_\r\n", "no limits in RESP3");
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
    // Redis 7.2: the reply first, then the client's own message.
    assert_eq!(client.ask(&["PUBLISH", "a", "one"]), ":1\r\n");
    assert_eq!(client.read_reply(), b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\none\r\n");
    client.ask(&["PSUBSCRIBE", "a*"]);
    assert_eq!(client.ask(&["PUBLISH", "a", "two"]), ":2\r\n");
    assert_eq!(client.read_reply(), b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\ntwo\r\n");
    assert_eq!(client.read_reply(), b">4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$1\r\na\r\n$3\r\ntwo\r\n");
    client.ask(&["SSUBSCRIBE", "a"]);
    assert_eq!(client.ask(&["SPUBLISH", "a", "three"]), ":1\r\n");
    assert_eq!(client.read_reply(), b">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$5\r\nthree\r\n");
    assert_eq!(client.ask(&["PUBSUB", "NUMSUB", "a", "b"]), "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:0\r\n");
    assert_eq!(client.ask(&["PUBSUB", "SHARDNUMSUB", "a"]), "*2\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(client.ask(&["PUBSUB", "CHANNELS"]), "*1\r\n$1\r\na\r\n");
    assert_eq!(client.ask(&["PUBSUB", "SHARDCHANNELS", "b*"]), "*0\r\n");
    assert_eq!(client.ask(&["PUBSUB", "NUMPAT"]), ":1\r\n");
    let own = client.ask(&["CLIENT", "INFO"]);
    assert!(own.contains(" flags=P ") && own.contains(" sub=1 psub=1 ssub=1 "), "{own}");
    let info = client.ask(&["INFO", "stats"]);
    assert!(info.contains("pubsub_channels:1\r\npubsub_patterns:1\r\npubsubshard_channels:1\r\n"), "{info}");
    assert_eq!(client.ask(&["RESET"]), "+RESET\r\n");
    assert_eq!(client.ask(&["PUBLISH", "a", "nobody"]), ":0\r\n");
}

#[test]
fn a_subscriber_that_leaves_is_forgotten() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut publisher = ours.connect();
    for _ in 0..20 {
        let mut subscriber = ours.connect();
        subscriber.ask(&["SUBSCRIBE", "c"]);
        subscriber.ask(&["PSUBSCRIBE", "*"]);
        subscriber.ask(&["SSUBSCRIBE", "c"]);
        assert_eq!(publisher.ask(&["PUBLISH", "c", "x"]), ":2\r\n");
        match publisher.ask(&["PUBSUB", "NUMPAT"]).as_str() {
            ":1\r\n" => subscriber.reset(),
            other => panic!("{other}"),
        }
        // The subscriber's subscriptions end one after the other.
        for (words, nobody) in [
            (&["PUBLISH", "c", "x"][..], ":0\r\n"),
            (&["PUBSUB", "NUMPAT"], ":0\r\n"),
            (&["PUBSUB", "SHARDCHANNELS"], "*0\r\n"),
        ] {
            wait_for("nobody to listen", || (publisher.ask(words) == nobody).then_some(()));
        }
    }
}

#[test]
fn each_subscriber_gets_every_publishers_messages_in_order_and_all_see_the_same() {
    const PUBLISHERS: usize = 4;
    const MESSAGES: usize = 500;
    let ours = Running::with(ServerOptions::default(), 3);
    let address = ours.address();
    let subscribers: Vec<Client> = (0..4)
        .map(|index| {
            let mut client = ours.connect();
            match index % 2 {
                0 => client.ask(&["SUBSCRIBE", "c"]),
                _ => client.ask(&["PSUBSCRIBE", "c*"]),
            };
            client
        })
        .collect();
    let seen: Vec<Vec<String>> = std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let address = &address;
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for message in 0..MESSAGES {
                    assert_eq!(client.ask(&["PUBLISH", "c", &format!("{publisher}:{message}")]), ":4\r\n");
                }
            });
        }
        let readers: Vec<_> = subscribers
            .into_iter()
            .map(|mut client| {
                scope.spawn(move || {
                    let mut next = || {
                        let message = String::from_utf8(client.read_reply()).expect("text");
                        message.trim_end().rsplit("\r\n").next().expect("a message").to_owned()
                    };
                    (0..PUBLISHERS * MESSAGES).map(|_| next()).collect::<Vec<String>>()
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().expect("all came")).collect()
    });
    for messages in &seen {
        assert_eq!(messages, &seen[0], "one order for all");
        for publisher in 0..PUBLISHERS {
            let own = messages.iter().filter_map(|message| message.strip_prefix(&format!("{publisher}:")));
            assert!(own.eq((0..MESSAGES).map(|message| message.to_string())), "in the publisher's order");
        }
    }
}

#[test]
fn nothing_of_a_channel_follows_its_unsubscription() {
    let ours = Running::with(ServerOptions::default(), 2);
    let address = ours.address();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = Client::connect(&address);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                publisher.ask(&["PUBLISH", "c", "x"]);
            }
        });
        let mut client = ours.connect();
        let mut random = Random(7);
        for _ in 0..200 {
            client.ask(&["SUBSCRIBE", "c"]);
            for _ in 0..random.below(3) {
                assert!(client.read_reply().starts_with(b"*3\r\n$7\r\nmessage"));
            }
            client.command(&["UNSUBSCRIBE", "c"]);
            while client.read_reply().starts_with(b"*3\r\n$7\r\nmessage") {}
            assert_eq!(client.ask(&["ECHO", "quiet"]), "$5\r\nquiet\r\n");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_subscriber_that_does_not_read_loses_its_connection_and_nobody_waits_for_it() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut publisher = ours.connect();
    assert_eq!(publisher.ask(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 4mb 0 0"]), "+OK\r\n");
    let mut slow = ours.connect();
    slow.ask(&["SUBSCRIBE", "c"]);
    let mut good = ours.connect();
    good.ask(&["SUBSCRIBE", "c"]);
    let message = "x".repeat(256 << 10);
    // The sockets' buffers take some; then the outbox fills.
    let mut sent = 0;
    while publisher.ask(&["PUBLISH", "c", &message]) == ":2\r\n" {
        assert!(good.read_reply().len() > message.len());
        sent += 1;
        assert!(sent < 1_000, "the slow one is never dropped");
    }
    wait_for("the slow one to leave", || (ours.server.client_count() == 2).then_some(()));
    assert!(good.read_reply().len() > message.len(), "the last message came, too");
    let got = slow.read_to_end();
    assert!(got.len() < sent * message.len());
}

#[test]
fn the_soft_limit_is_one_of_time() {
    let ours = Running::with(ServerOptions::default(), 1);
    let mut publisher = ours.connect();
    assert_eq!(publisher.ask(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 1mb 1"]), "+OK\r\n");
    let mut slow = ours.connect();
    slow.ask(&["SUBSCRIBE", "c"]);
    let message = "x".repeat(1 << 20);
    let start = Instant::now();
    // Far more than sockets buffer; nothing is published after that.
    for _ in 0..30 {
        publisher.ask(&["PUBLISH", "c", &message]);
    }
    wait_for("the slow one to leave", || (ours.server.client_count() == 1).then_some(()));
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
}

#[test]
fn messages_come_while_a_command_waits_for_its_key() {
    let ours = Running::with(ServerOptions::default(), 2);
    let held = [(0, &b"k"[..], sluicegate_store::Mode::Exclusive)];
    let section = crate::block_on(ours.store().section(held)).expect("a free key");
    let mut client = ours.connect();
    client.command(&["HELLO", "3"]);
    client.read_reply();
    client.ask(&["SUBSCRIBE", "c"]);
    client.command(&["GET", "k"]);
    let mut publisher = ours.connect();
    assert_eq!(publisher.ask(&["PUBLISH", "c", "meanwhile"]), ":1\r\n");
    assert!(client.read_reply().ends_with(b"meanwhile\r\n"));
    drop(section);
    assert_eq!(client.read_reply(), b"_\r\n");
}

/// After the reply to PUBLISH, a command of the subscriber gets its reply only after the message.
#[test]
fn a_reply_does_not_overtake_a_message_that_was_published_before() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (done, mut overtaken) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        // Busy workers deliver to their subscribers late.
        scope.spawn(|| {
            let mut clients: Vec<Client> = (0..60).map(|_| ours.connect()).collect();
            while !done.load(Ordering::SeqCst) {
                clients.iter_mut().for_each(|client| client.send("LRANGE l 0 -1\r\n"));
                clients.iter_mut().for_each(|client| drop(client.read_reply()));
            }
        });
        let (mut publisher, mut subscriber) = (ours.connect(), ours.connect());
        for _ in 0..20 {
            publisher
                .ask(&["RPUSH", "l", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]);
        }
        subscriber.ask(&["SUBSCRIBE", "c"]);
        for round in 0..4_000 {
            let text = round.to_string();
            publisher.ask(&["PUBLISH", "c", &text]);
            subscriber.command(&["PING", &text]);
            let replies = [subscriber.read_reply(), subscriber.read_reply()];
            let [message, pong] = replies.map(|reply| String::from_utf8(reply).expect("text"));
            if !message.contains("message") || !pong.contains("pong") {
                overtaken.push((message, pong));
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(overtaken.is_empty(), "{overtaken:?}");
}

#[test]
fn rules_and_scripts_publish_and_do_not_subscribe() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["SUBSCRIBE", "c"]);
    let call = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match ours.store().start(0, &words) {
            Started::Done(reply) => reply,
            Started::Pending(_) => panic!("it waits"),
        }
    };
    assert_eq!(call(&["PUBLISH", "c", "from inside"]), Reply::Integer(1));
    assert!(client.read_reply().ends_with(b"from inside\r\n"));
    assert_eq!(call(&["PUBSUB", "NUMPAT"]), Reply::Integer(0));
    for word in ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"] {
        let Reply::Error(text) = call(&[word, "c"]) else { panic!("{word} is refused") };
        assert!(text.contains("needs a connection of its own"), "{text}");
    }
}

#[test]
fn a_section_tells_everything_at_its_end_and_in_order() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "notify-keyspace-events", "KA"]);
    client.ask(&["SUBSCRIBE", "c"]);
    client.ask(&["PSUBSCRIBE", "__key*"]);
    let held = [(0, &b"k"[..], sluicegate_store::Mode::Exclusive)];
    let mut section = crate::block_on(ours.store().section(held)).expect("a free key");
    for words in [&["SET", "k", "1"][..], &["PUBLISH", "c", "between"], &["INCR", "k"], &["DEL", "k"]] {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut reply = sluicegate_wire::resp::ReplyBuilder::new();
        section.execute(0, &words, &mut reply).expect("its own key");
        if words[0] == b"PUBLISH" {
            assert_eq!(reply.finish(), Reply::Integer(1), "how many it will reach");
        }
    }
    assert_eq!(client.ask(&["PING"]), "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "nothing has come yet");
    drop(section);
    let mut last = || {
        let message = String::from_utf8(client.read_reply()).expect("text");
        message.trim_end().rsplit("\r\n").next().expect("a message").to_owned()
    };
    assert_eq!([last(), last(), last(), last()], ["set", "between", "incrby", "del"]);
}
