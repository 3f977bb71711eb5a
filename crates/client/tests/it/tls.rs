//! Engines behind TLS, with certificates that openssl makes.

use std::process::Command;
use std::time::Duration;

use sluicegate_client::{Address, Client, Mode, Options, Tls, TlsOptions};
use sluicegate_testkit::{Certificates, PATIENCE, Program, free_port, wait_for};
use sluicegate_wire::reply::Reply;

use crate::support::{ask, error, figures, options, patient, worker};

/// Returns the TLS options of a client that verifies certificates.
fn strict(made: &Certificates) -> Option<Tls> {
    tls(TlsOptions { authorities: Some(made.read("ca.crt")), ..TlsOptions::default() })
}

fn tls(options: TlsOptions) -> Option<Tls> {
    Some(Tls::new(options).expect("they are good"))
}

#[test]
fn engines_behind_tls_are_asked() {
    let made = Certificates::new();
    let ca = Some(made.read("ca.crt"));
    let (_engine, port) = made.engine("engine", "no");
    let named = TlsOptions { authorities: ca.clone(), name: Some("engine.example".into()), ..TlsOptions::default() };
    let client = Client::new(Options { tls: tls(named.clone()), ..patient(port) });
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        // More than a record, and more than the sockets' buffers hold.
        let long = "x".repeat(3_000_000);
        assert_eq!(ask(&client, &format!("SET long {long}")).await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "GET long").await, Reply::Bulk(long.into_bytes()));
        let (one, two) = tokio::join!(ask(&client, "INCR n"), ask(&client, "INCR n"));
        assert_eq!((one, two), (Reply::Integer(1), Reply::Integer(2)));
        assert_eq!(figures(&client).connects, 1);
    });
    let refused = |tls: Option<Tls>, port: u16, expected: &str| {
        let client = Client::new(Options { tls, breaker: 1, ..patient(port) });
        let text = error(worker(ask(&client, "GET k")));
        assert!(text.contains(expected), "{text}");
    };
    // The server's identity: its name, its address, its authority; or no verification.
    refused(tls(TlsOptions { name: None, ..named.clone() }), port, "certificate not valid for name");
    refused(
        tls(TlsOptions { name: Some("other.example".into()), ..named.clone() }),
        port,
        "certificate not valid for name",
    );
    let other = Some(made.read("other.crt"));
    refused(tls(TlsOptions { authorities: other, ..named.clone() }), port, "invalid peer certificate: UnknownIssuer");
    let anyone = Client::new(Options { tls: tls(TlsOptions::default()), ..patient(port) });
    assert_eq!(worker(ask(&anyone, "GET k")), Reply::Bulk(b"v".to_vec()));
    // A server without TLS on this port.
    let (plain, port) = made.engine("here", "yes");
    let client = Client::new(Options { tls: tls(named), breaker: 1, ..options(plain.port) });
    assert!(error(worker(ask(&client, "GET k"))).starts_with("BREAKER"));
    // The client's identity.
    let by_address = TlsOptions { authorities: ca, ..TlsOptions::default() };
    refused(tls(by_address.clone()), port, "127.0.0.1");
    let certificate = Some([made.read("client.crt"), made.read("client.key")].concat());
    let client = Client::new(Options { tls: tls(TlsOptions { certificate, ..by_address }), ..patient(port) });
    assert_eq!(worker(ask(&client, "INCR k")), Reply::Integer(1));
}

#[test]
fn files_that_are_no_certificates_are_errors() {
    let check = |options: TlsOptions, expected: &str| {
        let text = Tls::new(options).expect_err("it is wrong");
        assert!(text.starts_with(expected), "{text}");
    };
    let of = TlsOptions::default;
    check(TlsOptions { authorities: Some(b"none".to_vec()), ..of() }, "ca-file: no certificate");
    check(TlsOptions { certificate: Some(b"none".to_vec()), ..of() }, "crt: unable to load certificate");
    check(TlsOptions { name: Some("not a name".into()), ..of() }, "sni: ");
    let broken = b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n".to_vec();
    check(TlsOptions { authorities: Some(broken), ..of() }, "ca-file: ");
}

/// The nodes of a cluster announce each other's encrypted ports.
#[test]
fn a_cluster_behind_tls_is_asked() {
    let made = Certificates::new();
    let dir = made.path("");
    let nodes = [0, 1].map(|index| {
        made.engine_with("here", "no", || {
            let bus = free_port();
            format!(
                "--tls-cluster yes --tls-replication yes --cluster-enabled yes --cluster-port {bus} --dir {dir} \
                 --cluster-config-file nodes-{index}.conf --dbfilename {index}.rdb"
            )
        })
    });
    let of = |port: u16| Client::new(Options { name: "test".into(), tls: strict(&made), ..patient(port) });
    let own = nodes.each_ref().map(|(_, port)| of(*port));
    let tell = |index: usize, command: &str| worker(ask(&own[index], command));
    let ok = |index: usize, command: &str| assert_eq!(tell(index, command), Reply::Simple("OK".into()), "{command}");
    let text = |index: usize, command: &str| match tell(index, command) {
        Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8(text).expect("text"),
        reply => panic!("{command}: {reply:?}"),
    };
    ok(0, "CLUSTER ADDSLOTSRANGE 0 8191");
    ok(1, "CLUSTER ADDSLOTSRANGE 8192 16383");
    let Reply::Map(pairs) = tell(1, "CONFIG GET cluster-port") else { panic!("no port") };
    let Reply::Bulk(bus) = &pairs[0].1 else { panic!("{pairs:?}") };
    ok(0, &format!("CLUSTER MEET 127.0.0.1 {} {}", nodes[1].1, String::from_utf8_lossy(bus)));
    wait_for("the cluster", || {
        let is = |index: usize| text(index, "CLUSTER INFO").contains("cluster_state:ok\r\n");
        let slots = |index: usize| text(index, "CLUSTER NODES").contains(" 0-8191");
        (is(0) && is(1) && slots(0) && slots(1)).then_some(())
    });
    let seed = Address::Tcp("127.0.0.1".into(), nodes[0].1);
    let mode = Mode::Cluster { from_replicas: false };
    let client = Client::new(Options { mode, servers: vec![seed], tls: strict(&made), ..patient(0) });
    worker(async {
        for number in 0..20 {
            assert_eq!(ask(&client, &format!("INCR count:{number}")).await, Reply::Integer(1));
        }
        for (_, port) in &nodes {
            let address = format!("127.0.0.1:{port}");
            assert!(figures(&client).nodes.iter().any(|node| node.address == address && node.replies > 0), "{address}");
        }
    });
    // A slot that has moved is followed to the encrypted port.
    let key = "count:0";
    let slot = sluicegate_wire::slot::slot(key.as_bytes());
    let (from, to) = if slot < 8192 { (0, 1) } else { (1, 0) };
    let ids = [from, to].map(|index| text(index, "CLUSTER MYID"));
    ok(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    ok(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    ok(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 30000", nodes[to].1));
    assert_eq!(worker(ask(&client, &format!("INCR {key}"))), Reply::Integer(2));
    ok(to, &format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    ok(from, &format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    assert_eq!(worker(ask(&client, &format!("INCR {key}"))), Reply::Integer(3));
    assert!(figures(&client).redirected >= 1);
}

/// Connections to sentinels are encrypted too, and sentinels announce encrypted ports.
#[test]
fn a_master_behind_sentinels_and_tls_is_asked() {
    let made = Certificates::new();
    let dir = made.path("");
    let (_master, master) =
        made.engine_with("here", "no", || format!("--tls-replication yes --repl-diskless-sync-delay 0 --dir {dir}"));
    let (_replica, replica) = made.engine_with("here", "no", || {
        format!("--tls-replication yes --dir {dir} --dbfilename replica.rdb --replicaof 127.0.0.1 {master}")
    });
    let sentinels = [0, 1].map(|index| {
        for _ in 0..5 {
            let port = free_port();
            let words = made.words("here", "");
            let files: String = words.chunks(2).map(|pair| format!("{} {}\n", pair[0], pair[1])).collect();
            let path = made.path(&format!("sentinel-{index}.conf"));
            let text = format!(
                "port 0\ntls-port {port}\nbind 127.0.0.1\ntls-replication yes\ntls-auth-clients no\n{files}\
                 sentinel monitor mymaster 127.0.0.1 {master} 2\n"
            );
            std::fs::write(&path, text).expect("writable");
            let mut command = Command::new("redis-server");
            command.arg(&path).arg("--sentinel");
            let mut program = Program::start(command, &[]);
            if program.comes_to_print("+monitor master") {
                let own = Client::new(Options { name: "test".into(), tls: strict(&made), ..patient(port) });
                let hasty = "SENTINEL DEBUG info-period 200 publish-period 200 tilt-trigger 600000";
                assert_eq!(worker(ask(&own, hasty)), Reply::Simple("OK".into()));
                return (program, port);
            }
        }
        panic!("a sentinel found no free port in five tries");
    });
    let seed = Address::Tcp("127.0.0.1".into(), sentinels[0].1);
    let mode = Mode::Sentinel { master: "mymaster".into(), auth: None, from_replicas: true };
    let client = Client::new(Options { mode, servers: vec![seed], tls: strict(&made), ..patient(0) });
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        let seen = |port: u16, role: &str| {
            let address = format!("127.0.0.1:{port}");
            figures(&client).nodes.iter().any(|node| node.address == address && node.role == role && node.replies > 0)
        };
        let found = async {
            while !seen(replica, "replica") {
                ask(&client, "GET k").await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{:?}", figures(&client)));
        assert!(seen(master, "master"));
    });
    // The first sentinel announces the other.
    let known = Client::new(Options { name: "test".into(), tls: strict(&made), ..patient(sentinels[0].1) });
    wait_for("the sentinels to know each other", || {
        let Reply::Array(others) = worker(ask(&known, "SENTINEL SENTINELS mymaster")) else { panic!("no list") };
        (others.len() == 1).then_some(())
    });
    let replies = |sentinel: u16| {
        let address = format!("127.0.0.1:{sentinel}");
        figures(&client).nodes.iter().find(|node| node.address == address).map_or(0, |node| node.replies)
    };
    worker(async {
        let asking = async |enough: &dyn Fn() -> bool| {
            let asking = async {
                while !enough() {
                    ask(&client, "SET k v").await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{:?}", figures(&client)));
        };
        // Two polls later the client knows it, and uses it when the first is gone.
        let before = replies(sentinels[0].1);
        asking(&|| replies(sentinels[0].1) >= before + 8).await;
        sentinels[0].0.signal(libc::SIGKILL);
        asking(&|| replies(sentinels[1].1) > 0).await;
    });
}
