//! Entries of all kinds between this program and haproxies, and between two of this program.

use std::time::{Duration, Instant};

use sluicegate_testkit::{Listening, wait_for};

use super::{Cluster, Haproxy26, Haproxy28, Kind, Ours, has};

/// A table for each type of keys, and data of every kind that 2.6 knows.
const TABLES: &str = "peers mates
@MATES@backend ips
 stick-table type ip size 1k expire 10m store gpc0,gpt0,conn_cnt,conn_cur,sess_cnt,http_req_cnt,http_err_cnt,http_fail_cnt,gpc1 peers mates
backend ips6
 stick-table type ipv6 size 1k expire 10m store bytes_in_cnt,bytes_out_cnt,gpt(3),gpc(2) peers mates
backend numbers
 stick-table type integer size 1k expire 10m store gpc0,gpc0_rate(1h),gpc1_rate(1h),conn_rate(1h),sess_rate(1h),http_req_rate(1h),http_err_rate(1h),http_fail_rate(1h),bytes_in_rate(1h),bytes_out_rate(1h) peers mates
backend texts
 stick-table type string len 20 size 1k expire 10m store gpc0,gpc_rate(2,1h) peers mates
backend arrays
 stick-table type string len 20 size 1k expire 10m store gpt(3),gpc(2),gpc_rate(2,1h) peers mates
backend bytes
 stick-table type binary len 8 size 1k expire 10m store http_req_cnt peers mates
backend servers
 stick-table type string size 1k expire 10m peers mates
 stick on path
 server s1 @GATE@ id 7
 http-request set-path /ok
frontend web
 bind @GATE@
 http-request track-sc0 path,sha1 table bytes if { path_beg /bytes }
 http-request track-sc1 path table arrays if { path_beg /arrays }
 http-request sc-inc-gpc(1,1) if { path_beg /arrays }
 http-request sc-set-gpt(2,1) 77 if { path_beg /arrays }
 use_backend servers if { path_beg /server }
 http-request return status 200 unless { path_beg /server }
";

/// The rates that are set in `numbers`.
const RATES: [&str; 9] = [
    "http_req_rate",
    "bytes_in_rate",
    "bytes_out_rate",
    "conn_rate",
    "sess_rate",
    "http_err_rate",
    "http_fail_rate",
    "gpc0_rate",
    "gpc1_rate",
];

/// Returns the tables with an address of the frontend that a server can have.
fn tables(port: u16) -> String {
    TABLES.replace("server s1 @GATE@", &format!("server s1 127.0.0.1:{port}"))
}

/// Sets entries of every table at one node.
fn fill(node: &super::Node, tag: u32) {
    let count = |number: u32| 1_000 * tag + number;
    let ips = (1..10).map(count).collect::<Vec<_>>();
    node.set(
        "ips",
        &format!("10.0.0.{tag}"),
        &format!(
            "data.gpc0 {} data.gpt0 {} data.conn_cnt {} data.conn_cur {} data.sess_cnt {} data.http_req_cnt {} \
             data.http_err_cnt {} data.http_fail_cnt {} data.gpc1 {}",
            ips[0], ips[1], ips[2], ips[3], ips[4], ips[5], ips[6], ips[7], ips[8]
        ),
    );
    let large = (1_u64 << 40) + u64::from(tag);
    node.set("ips6", &format!("2001:db8::{tag}"), &format!("data.bytes_in_cnt {large} data.bytes_out_cnt {tag}"));
    node.set(
        "numbers",
        &format!("{}", 70_000 + tag),
        &RATES.iter().zip(2..).fold(format!("data.gpc0 {}", count(1)), |line, (rate, number)| {
            format!("{line} data.{rate} {}", count(number))
        }),
    );
    node.set("texts", &format!("key-{tag}"), &format!("data.gpc0 {}", count(1)));
    for _ in 0..2 {
        assert_eq!(node.get(&format!("/arrays/{tag}")), 200);
    }
    assert_eq!(node.get(&format!("/bytes/{tag}")), 200);
    assert_eq!(node.get(&format!("/server/{tag}")), 200);
}

/// Waits until a node has what [`fill`] has set at another one.
#[track_caller]
fn wait_for_all(node: &super::Node, tag: u32, filled: &super::Node) {
    let count = |number: u32| 1_000 * tag + number;
    let ip = format!("10.0.0.{tag}");
    // Connections are those of a node itself.
    let expected = format!(
        "gpc0={} gpt0={} conn_cnt={} conn_cur=0 sess_cnt={} http_req_cnt={} http_err_cnt={} http_fail_cnt={} gpc1={}",
        count(1),
        count(2),
        count(3),
        count(5),
        count(6),
        count(7),
        count(8),
        count(9)
    );
    node.wait_for_entry("ips", &ip, &expected);
    let large = (1_u64 << 40) + u64::from(tag);
    node.wait_for_entry("ips6", &format!("2001:db8::{tag}"), &format!("bytes_in_cnt={large} bytes_out_cnt={tag}"));
    let expected = RATES
        .iter()
        .zip(2..)
        .fold(format!("gpc0={}", count(1)), |line, (rate, number)| format!("{line} {rate}(3600000)={}", count(number)));
    node.wait_for_entry("numbers", &format!("{}", 70_000 + tag), &expected);
    node.wait_for_entry("texts", &format!("key-{tag}"), &format!("gpc0={}", count(1)));
    let arrays = filled.entry("arrays", &format!("/arrays/{tag}")).unwrap_or_default();
    assert!(has(&arrays, "gpt0=0 gpt1=0 gpt2=77 gpc0=0 gpc1=2"), "{arrays}");
    for table in ["arrays", "bytes", "servers"] {
        let entries = filled.entries(table);
        assert!(!entries.is_empty(), "{table}");
        wait_for(&format!("{table} at {}", node.name), || {
            let found = node.entries(table);
            entries.iter().all(|(key, entry)| found.get(key) == Some(entry)).then_some(())
        });
    }
    let servers = node.entries("servers");
    assert!(servers.values().any(|entry| entry.contains("server_id=7 server_key=s1")), "{servers:?}");
}

/// Sets data at a node until another one has them: what that one has sent before may arrive behind them and take their
/// place.
#[track_caller]
fn pass(from: &super::Node, to: &super::Node, (table, key): (&str, &str), gpc0: u32) {
    wait_for(&format!("gpc0={gpc0} of {table} {key} at {}", to.name), || {
        from.set(table, key, &format!("data.gpc0 {gpc0}"));
        to.entry(table, key).is_some_and(|entry| has(&entry, &format!("gpc0={gpc0}"))).then_some(())
    });
}

#[track_caller]
fn pass_in_both_directions(one: Kind, other: Kind) {
    let gates = [Listening::new(), Listening::new()];
    let mut cluster = Cluster::new(&["a", "b"], "");
    cluster.sections = tables(gates[0].port());
    let [gate_a, gate_b] = gates;
    let a = cluster.start_with(one, "a", gate_a, "", &[]);
    cluster.sections = tables(gate_b.port());
    let b = cluster.start_with(other, "b", gate_b, "", &[]);
    a.wait_for_peer("b");
    b.wait_for_peer("a");
    fill(&a, 1);
    wait_for_all(&b, 1, &a);
    fill(&b, 2);
    wait_for_all(&a, 2, &b);
    // A later change overwrites.
    pass(&b, &a, ("texts", "both"), 76);
    pass(&a, &b, ("texts", "both"), 77);
    // Changes that come one after another arrive as the last one.
    for number in 1..=50 {
        b.set("numbers", "5", &format!("data.gpc0 {number}"));
    }
    a.wait_for_entry("numbers", "5", "gpc0=50");

    // A process that starts learns all entries, old and new.
    let gate = b.kill();
    a.set("texts", "meanwhile", "data.gpc0 5");
    let b = cluster.start_with(other, "b", gate, "", &[]);
    wait_for_all(&b, 1, &a);
    b.wait_for_entry("texts", "meanwhile", "gpc0=5");
    b.wait_for_entry("texts", "both", "gpc0=77");
    cluster.sections = tables(a.gate.port());
    let gate = a.kill();
    b.set("texts", "later", "data.gpc0 6");
    let a = cluster.start_with(one, "a", gate, "", &[]);
    wait_for_all(&a, 2, &b);
    a.wait_for_entry("texts", "later", "gpc0=6");
    // And changes pass in both directions again.
    a.wait_for_peer("b");
    pass(&a, &b, ("ips", "10.9.9.9"), 1);
    pass(&b, &a, ("ips", "10.9.9.9"), 2);
}

#[test]
fn all_kinds_of_entries_pass_between_this_program_and_haproxy_2_8() {
    pass_in_both_directions(Ours, Haproxy28);
}

#[test]
fn all_kinds_of_entries_pass_between_this_program_and_haproxy_2_6() {
    pass_in_both_directions(Haproxy26, Ours);
}

#[test]
fn all_kinds_of_entries_pass_between_two_of_this_program() {
    pass_in_both_directions(Ours, Ours);
}

/// Clients may go on to another node at once: ten changes, each made when the one before has come, pass in much less than
/// ten times 10 ms, at least on a machine that is not busy all the time.
#[test]
fn a_change_passes_within_some_milliseconds() {
    let sections = "peers mates\n@MATES@ table t type string len 8 size 100 store gpc0\nfrontend f\n bind @GATE@\n";
    let cluster = Cluster::new(&["a", "b"], sections);
    let (a, b) = (cluster.start(Ours, "a"), cluster.start(Ours, "b"));
    a.wait_for_peer("b");
    b.wait_for_peer("a");
    let mut value = 0;
    wait_for("ten quick changes", || {
        let begin = Instant::now();
        for _ in 0..10 {
            value += 1;
            a.set("mates/t", "x", &format!("data.gpc0 {value}"));
            let expected = format!("gpc0={value}");
            while !b.entry("mates/t", "x").is_some_and(|entry| has(&entry, &expected)) {
                assert!(begin.elapsed() < Duration::from_secs(20), "no {expected}");
            }
        }
        (begin.elapsed() < Duration::from_millis(70)).then_some(())
    });
}

/// Two tables that differ in ways that peers may.
#[test]
fn data_that_one_side_lacks_are_skipped() {
    for other in [Ours, Haproxy28] {
        let section = |line: &str| format!("peers mates\n@MATES@ table t {line}\nfrontend f\n bind @GATE@\n");
        let mut cluster = Cluster::new(&["a", "b"], "");
        cluster.sections = section("type string len 8 size 10 store gpc0,http_req_rate(10s),gpt(2),gpc1");
        let a = cluster.start(Ours, "a");
        cluster.sections = section("type string len 8 size 10 store gpt(4),gpc0");
        let b = cluster.start(other, "b");
        a.wait_for_peer("b");
        a.set("mates/t", "x", "data.gpc0 1 data.gpc1 9");
        b.wait_for_entry("mates/t", "x", "gpc0=1 gpt2=0");
        b.set("mates/t", "y", "data.gpc0 2");
        a.wait_for_entry("mates/t", "y", "gpc0=2 gpc1=0");
    }
}

/// Tables with keys of another type or length are not exchanged, and the others are.
#[test]
fn tables_with_other_keys_are_ignored() {
    for other in [Ours, Haproxy28] {
        let section = |line: &str| {
            format!(
                "peers mates\n@MATES@ table t {line}\n table same type ip size 10 store gpc0\nfrontend f\n bind @GATE@\n"
            )
        };
        let mut cluster = Cluster::new(&["a", "b"], "");
        cluster.sections = section("type string len 8 size 10 store gpc0");
        let a = cluster.start(Ours, "a");
        cluster.sections = section("type string len 9 size 10 store gpc0");
        let b = cluster.start(other, "b");
        a.wait_for_peer("b");
        for (from, to, key) in [(&a, &b, "10.0.0.1"), (&b, &a, "10.0.0.2")] {
            from.set("mates/t", "x", "data.gpc0 1");
            from.set("mates/same", key, "data.gpc0 1");
            to.wait_for_entry("mates/same", key, "gpc0=1");
        }
        assert_eq!((a.entries("mates/t").len(), b.entries("mates/t").len()), (1, 1), "each its own");
    }
}

/// Connections with TLS in both directions, behind the header of the PROXY protocol and from an address of their own.
#[test]
fn peers_exchange_over_tls() {
    let certificates = sluicegate_testkit::Certificates::new();
    std::fs::write(certificates.path("here.pem"), certificates.pem("here")).expect("writable");
    let files = certificates.directory().to_str().expect("UTF-8").to_owned();
    for (other, header) in [(Ours, "send-proxy"), (Haproxy28, "send-proxy-v2")] {
        let mut cluster = Cluster::new(&["a", "b"], "");
        cluster.peer = "server @NAME@ 127.0.0.1:@PORT@";
        let (names, ports) = (["a", "b"], cluster.ports.clone());
        let section = |own: &str| {
            let lines = names.map(|name| match name == own {
                true => {
                    format!(" bind 127.0.0.1:{} accept-proxy ssl crt {files}/here.pem\n server {name}\n", ports[name])
                }
                false => format!(" server {name} 127.0.0.1:{}\n", ports[name]),
            });
            let lines = lines.concat();
            format!(
                "peers mates\n default-server ssl ca-file {files}/ca.crt verify required {header} source 127.0.0.9\n{lines} \
                 table t type ip size 10 store gpc0\nfrontend f\n bind @GATE@\n"
            )
        };
        cluster.sections = section("a");
        let a = cluster.start(Ours, "a");
        cluster.sections = section("b");
        let b = cluster.start(other, "b");
        a.wait_for_peer("b");
        a.set("mates/t", "10.0.0.1", "data.gpc0 1");
        b.wait_for_entry("mates/t", "10.0.0.1", "gpc0=1");
        b.set("mates/t", "10.0.0.2", "data.gpc0 2");
        a.wait_for_entry("mates/t", "10.0.0.2", "gpc0=2");
        let found = a.peer("b");
        assert!(found.contains("xprt=SSL") && found.contains("127.0.0.9:"), "{found}");
    }
}

/// Keys are divided as HAProxy divides them, and each peer is sent its part.
#[test]
fn shards_are_those_of_haproxy() {
    let sections = "peers mates\n shards 3\n@MATES@ table t type string len 20 size 1k store gpc0\n table n type integer size \
                    1k store gpc0\n table i type ip size 1k store gpc0\nfrontend f\n bind @GATE@\n";
    let cluster = Cluster::new(&["a"], sections);
    let shards = |kind: Kind| {
        let node = cluster.start(kind, "a");
        (0..20).for_each(|number| {
            node.set("mates/t", &format!("key-{number}"), "data.gpc0 1");
            node.set("mates/n", &number.to_string(), "data.gpc0 1");
            node.set("mates/i", &format!("10.0.0.{number}"), "data.gpc0 1");
        });
        let of = |table: &str| {
            let text = node.ask(&format!("show table {table}"));
            let lines = text.lines().filter(|line| line.starts_with("0x"));
            let word = |line: &str, name: &str| {
                line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned()
            };
            let mut found: Vec<_> = lines.map(|line| (word(line, "key="), word(line, "shard="))).collect();
            found.sort();
            found
        };
        ["mates/t", "mates/n", "mates/i"].map(of)
    };
    let (ours, theirs) = (shards(Ours), shards(Haproxy28));
    assert_eq!(ours, theirs);
    assert!(["1", "2", "3"].iter().all(|part| ours[0].iter().any(|(_, shard)| shard == part)), "{ours:?}");
}

#[test]
fn a_peer_with_a_shard_is_sent_its_part() {
    let mut cluster = Cluster::new(&["a", "b", "c"], "");
    let ports = cluster.ports.clone();
    let line = |name: &str, shard: &str| format!(" peer {name} 127.0.0.1:{}{shard}\n", ports[name]);
    let table = " table t type string len 20 size 1k store gpc0\nfrontend f\n bind @GATE@\n";
    let section = |peers: &[(&str, &str)]| {
        let lines: String = peers.iter().map(|(name, shard)| line(name, shard)).collect();
        format!("peers mates\n shards 2\n{lines}{table}")
    };
    cluster.sections = section(&[("a", ""), ("b", " shard 1"), ("c", " shard 2")]);
    let a = cluster.start(Ours, "a");
    // The others do not know each other, so neither teaches the other its entries.
    let nodes = [(Ours, "b"), (Haproxy28, "c")].map(|(kind, name)| {
        cluster.sections = section(&[("a", ""), (name, "")]);
        cluster.start(kind, name)
    });
    ["b", "c"].iter().for_each(|name| a.wait_for_peer(name));
    (0..20).for_each(|number| a.set("mates/t", &format!("key-{number}"), "data.gpc0 1"));
    wait_for("all entries", || {
        let found = nodes.each_ref().map(|node| node.entries("mates/t").len());
        (found[0] + found[1] == 20 && found[0] > 0 && found[1] > 0).then_some(())
    });
}

/// `write-to` and `recv-only`, which 2.8 lacks.
#[test]
fn what_is_received_is_written_to_another_table_and_connections_are_learned_where_it_is_asked_for() {
    let sections = "peers mates\n@MATES@ table t type string len 8 size 10 store gpc0,gpt0,conn_cur\n table r type string \
                    len 8 size 10 store gpc0,gpt0,conn_cur recv-only write-to w\nfrontend w\n bind @GATE@\n stick-table \
                    type string len 8 size 10 store gpc0,gpt0\n";
    let cluster = Cluster::new(&["a", "b"], sections);
    let (a, b) = (cluster.start(Ours, "a"), cluster.start(Ours, "b"));
    a.wait_for_peer("b");
    for table in ["mates/t", "mates/r"] {
        a.set(table, "x", "data.gpc0 1 data.gpt0 2 data.conn_cur 3");
    }
    b.wait_for_entry("mates/t", "x", "gpc0=1 gpt0=2 conn_cur=0");
    b.wait_for_entry("mates/r", "x", "gpc0=1 gpt0=2 conn_cur=3");
    b.wait_for_entry("w", "x", "gpc0=0 gpt0=2");
}

/// A section that is `disabled`, and one without this process, leave their tables as they are.
#[test]
fn a_disabled_section_is_not_used() {
    let cluster = Cluster::new(
        &["a", "b"],
        "peers mates\n disabled\n@MATES@\npeers others\n peer z 127.0.0.1:1\nbackend t\n stick-table type ip size 10 store \
         gpc0 peers mates\nbackend u\n stick-table type ip size 10 store gpc0 peers others\nfrontend f\n bind @GATE@\n",
    );
    let a = cluster.start(Ours, "a");
    a.set("t", "10.0.0.1", "data.gpc0 1");
    a.set("u", "10.0.0.1", "data.gpc0 1");
    assert_eq!(a.ask("show peers").trim(), "");
    assert_eq!(a.ask("show peers mates").trim(), "No such peers");
    // Nobody listens on the address.
    std::net::TcpListener::bind(("127.0.0.1", cluster.ports["a"])).expect("a free address");
}

/// Two sections with a table of the same name, and one in a proxy: each has its own peers.
#[test]
fn tables_of_one_name_in_two_sections_are_apart() {
    let ports = [sluicegate_testkit::free_port(), sluicegate_testkit::free_port()];
    let others = format!(
        "peers others\n peer a 127.0.0.1:{}\n peer b 127.0.0.1:{}\n table t type ip size 10 store gpc0\n",
        ports[0], ports[1]
    );
    let sections = format!(
        "peers mates\n@MATES@ table t type ip size 10 store gpc0\n{others}backend t\n stick-table type ip size 10 store gpc0 \
         peers mates\nfrontend f\n bind @GATE@\n"
    );
    for other in [Ours, Haproxy28] {
        let cluster = Cluster::new(&["a", "b"], &sections);
        let (a, b) = (cluster.start(Ours, "a"), cluster.start(other, "b"));
        a.wait_for_peer("b");
        for (table, count) in [("mates/t", 1), ("others/t", 2), ("t", 3)] {
            a.set(table, "10.0.0.1", &format!("data.gpc0 {count}"));
        }
        for (table, count) in [("mates/t", 1), ("others/t", 2), ("t", 3)] {
            b.wait_for_entry(table, "10.0.0.1", &format!("gpc0={count}"));
        }
    }
}

/// Commands and figures.
#[test]
fn show_peers_has_the_fields_of_haproxy() {
    let cluster = Cluster::new(
        &["a", "b"],
        "peers mates\n@MATES@ log stdout format raw local0\n table t type string len 8 size 10 store gpc0\nfrontend f\n bind \
         @GATE@\n",
    );
    let shape = |text: &str| -> Vec<String> {
        let name = |word: &str| {
            let word = word.split(['=', ':']).next().unwrap_or(word).to_owned();
            if word.starts_with("0x") || word.starts_with('[') { "*".to_owned() } else { word }
        };
        text.lines().map(|line| line.split_whitespace().map(name).collect::<Vec<_>>().join(" ")).collect()
    };
    let (mut a, b) = (cluster.start(Ours, "a"), cluster.start(Haproxy28, "b"));
    a.wait_for_peer("b");
    b.wait_for_peer("a");
    a.set("mates/t", "x", "data.gpc0 1");
    b.set("mates/t", "y", "data.gpc0 1");
    a.wait_for_entry("mates/t", "y", "gpc0=1");
    b.wait_for_entry("mates/t", "x", "gpc0=1");
    let text = a.ask("show peers mates");
    let shown = shape(&text);
    assert_eq!(shown[0], "* * id disabled flags resync_timeout task_calls", "{text}");
    assert!(text.contains("id=a(local,inactive)") && text.contains("id=b(remote,active)"), "{text}");
    // What 2.8 shows of a peer is here, too; 3.2 calls the first states otherwise.
    let theirs = b.ask("show peers mates");
    let lines =
        |text: &str, start: &str| shape(text).into_iter().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    for start in ["reconnect", "last_acked", "table"] {
        assert_eq!(lines(&text, start).first(), lines(&theirs, start).first(), "{text}\n{theirs}");
    }
    assert!(a.ask("show peers dict mates").contains("TX dictionary cache:"));
    assert_eq!(a.ask("show peers nobody").trim(), "No such peers");
    let info = a.ask("show info");
    assert!(info.contains("ActivePeers: 1\n") && info.contains("ConnectedPeers: 1\n"), "{info}");
    a.program.signal(libc::SIGTERM);
    a.program.wait();
    let output = a.program.output();
    // The line of a connection from a peer, if it was not this node that has connected.
    let connected = output.lines().filter(|line| line.starts_with("Connect from 127.0.0.1:"));
    assert!(connected.clone().all(|line| line.ends_with("(a/TCP)")), "{output}");
}

/// Messages of both directions and the end of a connection are reported.
#[test]
fn messages_of_peers_are_traced() {
    let sections = "peers mates\n@MATES@ table t type string len 8 size 10 store gpc0\nfrontend f\n bind @GATE@\n";
    let cluster = Cluster::new(&["a", "b"], sections);
    let a = cluster.start(Ours, "a");
    assert_eq!(a.ask("trace peers sink buf0 level proto lock server start now"), "\n");
    let b = cluster.start(Ours, "b");
    a.wait_for_peer("b");
    b.set("mates/t", "x", "data.gpc0 1");
    a.wait_for_entry("mates/t", "x", "gpc0=1");
    b.wait_for_peer("a");
    drop(b);
    let line = |event: &str, text: &str| format!("[00|peers|2|{event}] {text} : peer=mates/b");
    wait_for("the end", || {
        let text = a.ask("show events buf0");
        text.contains(&line("sessrl", "releasing peer session")).then_some(())
    });
    let text = a.ask("show events buf0");
    for (event, what) in [
        ("ctrlmsg", "received control message"),
        ("ctrlmsg", "send control message"),
        ("defmsg", "received definition message"),
        ("updtmsg", "received update message"),
    ] {
        assert!(text.contains(&line(event, what)), "{what}: {text}");
    }
}
