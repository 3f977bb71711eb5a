//! Stores that are each other's master, and redis-server's: failover, restarts, Sentinel.

mod failovers;

use std::path::PathBuf;
use std::process::Command;

use sluicegate_testkit::{Certificates, Client, Program, RedisServer, Sluicegate, free_port, wait_for};

use crate::BINARY;

/// A store, with the folder of its files.
struct Node {
    directory: tempfile::TempDir,
    port: u16,
    program: Program,
}

impl Node {
    /// Starts one with these lines in its configuration.
    fn start(lines: &str) -> Node {
        let directory = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(BINARY, directory.path().join("redis-server")).expect("linked");
        let port = free_port();
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsave \"\"\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n{lines}\n",
            directory.path().display()
        );
        std::fs::write(directory.path().join("redis.conf"), text).expect("written");
        let program = Node::run(&directory);
        Node { directory, port, program }
    }

    fn run(directory: &tempfile::TempDir) -> Program {
        let mut command = Command::new(directory.path().join("redis-server"));
        command.arg("redis.conf").current_dir(directory.path());
        let mut program = Program::start(command, &[]);
        program.wait_for_output("Ready to accept connections tcp");
        program
    }

    /// Starts it again, after it has ended.
    fn again(&mut self) {
        self.program.wait();
        self.program = Node::run(&self.directory);
    }

    fn connect(&self) -> Client {
        Client::connect(&format!("127.0.0.1:{}", self.port))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns the reply to a command on a connection of its own; [`None`] if that is closed, as by Sentinel at a failover.
fn ask(port: u16, words: &[&str]) -> Option<String> {
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    client.command(words);
    client.try_read_reply().map(|reply| String::from_utf8_lossy(&reply).into_owned())
}

/// Returns the value of a line of INFO.
fn told(port: u16, section: &str, name: &str) -> String {
    wait_for(name, || {
        let text = ask(port, &["INFO", section])?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
    })
}

/// Waits until a server follows another one.
fn await_link(port: u16, master: u16) {
    wait_for("the link", || {
        let text = ask(port, &["INFO", "replication"])?;
        let has = |line: &str| text.lines().any(|found| found == line);
        (has(&format!("master_port:{master}")) && has("master_link_status:up")).then_some(())
    });
}

fn await_value(port: u16, key: &str, value: &str) {
    wait_for("a value", || (ask(port, &["GET", key])? == format!("${}\r\n{value}\r\n", value.len())).then_some(()));
}

/// Waits until a master has this number of replicas that get the stream.
fn await_replicas(port: u16, count: usize) {
    wait_for("replicas", || {
        (ask(port, &["INFO", "replication"])?.matches("state=online").count() == count).then_some(())
    });
}

fn replicaof(port: u16) -> String {
    format!("replicaof 127.0.0.1 {port}")
}

#[test]
fn failover_loses_nothing() {
    let first = Node::start("");
    let second = Node::start(&replicaof(first.port));
    let port = first.port.to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let words = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0", "--dir"];
    let redis = RedisServer::start(&[&words[..], &[dir.path().to_str().expect("text")]].concat());
    let mut clients = [first.connect(), second.connect(), Client::connect(&redis.address())];
    await_replicas(first.port, 2);
    [second.port, redis.port].iter().for_each(|port| await_link(*port, first.port));
    for (words, error) in [
        (&["FAILOVER", "ABORT"][..], "ERR No failover in progress."),
        (&["FAILOVER", "TO", "127.0.0.1", "1"], "ERR FAILOVER target HOST and PORT is not a replica."),
        (&["FAILOVER", "TIMEOUT", "0"], "ERR FAILOVER timeout must be greater than 0"),
        (&["FAILOVER", "FORCE"], "ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        (&["FAILOVER", "TO", "127.0.0.1"], "ERR syntax error"),
    ] {
        assert_eq!(clients[0].ask(words), format!("-{error}\r\n"));
    }
    assert_eq!(clients[1].ask(&["FAILOVER"]), "-ERR FAILOVER is not valid when server is a replica.\r\n");
    let nobody = "-ERR PSYNC FAILOVER can't be sent to a master.\r\n";
    assert_eq!(clients[0].ask(&["PSYNC", &"0".repeat(40), "1", "FAILOVER"]), nobody);

    // Clients go on writing to whoever is the master.
    let nodes = [first.port, second.port, redis.port];
    let mut written = 0;
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        let (target, full) = (nodes[to].to_string(), told(nodes[to], "stats", "sync_full"));
        // The replica that is not asked follows the new master, as Sentinel would have it.
        let other = 3 - from - to;
        let asked = clients[from].ask(&["FAILOVER", "TO", "127.0.0.1", &target]);
        assert_eq!(asked, "+OK\r\n", "{from} {to}");
        loop {
            let reply = clients[from].ask(&["INCR", "n"]);
            match reply.starts_with(':') {
                true => written += 1,
                false => break assert!(reply.starts_with("-READONLY"), "{reply}"),
            }
        }
        await_link(nodes[from], nodes[to]);
        clients[other].ask(&["REPLICAOF", "127.0.0.1", &target]);
        await_link(nodes[other], nodes[to]);
        assert_eq!(told(nodes[to], "stats", "sync_full"), full, "all continue");
        assert_eq!(clients[to].ask(&["INCR", "n"]), format!(":{}\r\n", written + 1));
        written += 1;
        await_replicas(nodes[to], 2);
        nodes.iter().for_each(|port| await_value(*port, "n", &written.to_string()));
    }
    // A replica that is not there in time.
    redis.program.signal(libc::SIGSTOP);
    clients[0].ask(&["INCR", "n"]);
    let asked = clients[0].ask(&["FAILOVER", "TO", "127.0.0.1", &redis.port.to_string(), "TIMEOUT", "50"]);
    assert_eq!(asked, "+OK\r\n");
    assert_eq!(clients[0].ask(&["INCR", "n"]), format!(":{}\r\n", written + 2), "a write that waited is carried out");
    // A client that gives it up is told when it is over. A key that expires meanwhile stays: its removal is a write.
    assert_eq!(clients[0].ask(&["SET", "brief", "v", "PX", "3000"]), "+OK\r\n");
    let asked = clients[0].ask(&["FAILOVER", "TO", "127.0.0.1", &redis.port.to_string(), "TIMEOUT", "60000"]);
    assert_eq!(asked, "+OK\r\n");
    assert_eq!(told(first.port, "replication", "master_failover_state"), "waiting-for-sync");
    let expired = told(first.port, "stats", "expired_keys");
    wait_for("the key to expire", || (clients[0].ask(&["GET", "brief"]) == "$-1\r\n").then_some(()));
    assert_eq!(told(first.port, "stats", "expired_keys"), expired);
    assert_eq!(clients[0].ask(&["FAILOVER", "ABORT"]), "+OK\r\n");
    assert_eq!(told(first.port, "replication", "master_failover_state"), "no-failover");
    wait_for("its removal", || (told(first.port, "stats", "expired_keys") != expired).then_some(()));
    redis.program.signal(libc::SIGCONT);
    assert_eq!(told(first.port, "replication", "role"), "master");
}

#[test]
fn a_history_is_continued_after_restarts() {
    let mut master = Node::start("");
    let mut replicas =
        [Node::start(&replicaof(master.port)), Node::start(&format!("{}\nappendonly yes", replicaof(master.port)))];
    let full = |master: &Node| told(master.port, "stats", "sync_full");
    await_replicas(master.port, 2);
    let before = full(&master);
    master.connect().ask(&["SET", "a", "1"]);
    replicas.iter().for_each(|replica| await_value(replica.port, "a", "1"));
    wait_for("the file", || (told(replicas[1].port, "persistence", "aof_rewrite_in_progress") == "0").then_some(()));
    // One has saved its data set, the other one has a file of what it did.
    replicas[0].connect().command(&["SHUTDOWN", "SAVE"]);
    replicas[1].connect().command(&["SHUTDOWN"]);
    for replica in &mut replicas {
        replica.program.wait();
    }
    assert_eq!(master.connect().ask(&["SET", "b", "2"]), "+OK\r\n");
    replicas.iter_mut().for_each(Node::again);
    for replica in &replicas {
        await_link(replica.port, master.port);
        await_value(replica.port, "b", "2");
        await_value(replica.port, "a", "1");
    }
    assert_eq!(full(&master), before);
    // So has the master.
    for (words, setting) in [(&["SHUTDOWN", "SAVE"][..], "no"), (&["SHUTDOWN", "NOSAVE"], "yes")] {
        let mut client = master.connect();
        assert_eq!(client.ask(&["CONFIG", "SET", "appendonly", setting]), "+OK\r\n");
        assert_eq!(client.ask(&["CONFIG", "REWRITE"]), "+OK\r\n");
        wait_for("the file", || (told(master.port, "persistence", "aof_rewrite_in_progress") == "0").then_some(()));
        client.ask(&["SET", "c", setting]);
        assert_eq!(client.ask(&["WAIT", "2", "0"]), ":2\r\n");
        // Signs of life are due while the last file is written, which has no offset for them.
        let slow = ["CONFIG", "SET", "repl-ping-replica-period", "1", "rdb-key-save-delay", "600000"];
        assert_eq!(client.ask(&slow), "+OK\r\n");
        client.command(words);
        master.again();
        await_replicas(master.port, 2);
        assert_eq!(full(&master), "0");
        replicas.iter().for_each(|replica| await_value(replica.port, "c", setting));
        master.connect().ask(&["SET", "d", setting]);
        replicas.iter().for_each(|replica| await_value(replica.port, "d", setting));
    }
    // Redis's checker accepts the files.
    let text = std::fs::read_dir(master.path("appendonlydir")).expect("a folder");
    assert!(text.count() >= 3);
    let mut check = Command::new("redis-check-aof");
    let manifest = master.path("appendonlydir/appendonly.aof.manifest");
    master.connect().command(&["SHUTDOWN", "NOSAVE"]);
    master.program.wait();
    let checked = check.arg(manifest).output().expect("it runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// Links are encrypted and verified on both sides, between stores and with redis-server.
#[test]
fn links_are_encrypted() {
    let made = Certificates::new();
    let lines = |port: u16, clients: &str| {
        let files = made.words("here", "");
        let files: String = files.chunks(2).map(|pair| format!("{} {}\n", pair[0], pair[1])).collect();
        format!("tls-port {port}\ntls-auth-clients {clients}\ntls-replication yes\n{files}")
    };
    let tls_port = free_port();
    let master = Node::start(&lines(tls_port, "yes"));
    let own = Node::start(&format!("{}{}", lines(free_port(), "no"), replicaof(tls_port)));
    let (redis, _) = made.engine_with("here", "no", || {
        format!(
            "--tls-replication yes --repl-diskless-sync-delay 0 --replicaof 127.0.0.1 {tls_port} --dir {}",
            made.directory().display()
        )
    });
    await_link(own.port, tls_port);
    await_link(redis.port, tls_port);
    let mut client = master.connect();
    let large = "x".repeat(5_000_000);
    assert_eq!(client.ask(&["SET", "large", &large]), "+OK\r\n");
    for number in 0..200 {
        client.ask(&["RPUSH", "list", &number.to_string()]);
    }
    client.ask(&["SET", "last", "1"]);
    for port in [own.port, redis.port] {
        await_value(port, "last", "1");
        assert_eq!(ask(port, &["STRLEN", "large"]).as_deref(), Some(":5000000\r\n"));
        assert_eq!(ask(port, &["LLEN", "list"]).as_deref(), Some(":200\r\n"));
    }
    // It is the port for TLS that replicas are found by.
    let told = client.ask(&["INFO", "replication"]);
    assert!(!told.contains(&format!("port={},", own.port)), "{told}");
    // A certificate for links alone, whose key is encrypted.
    let openssl = Command::new("openssl")
        .args(["pkcs8", "-topk8", "-in", "client.key", "-out", "sealed.key", "-passout", "pass:word"])
        .current_dir(made.directory())
        .status();
    assert!(openssl.expect("openssl runs").success());
    let (certificate, key) = (made.path("client.crt"), made.path("sealed.key"));
    let own_link =
        ["tls-client-cert-file", &certificate, "tls-client-key-file", &key, "tls-client-key-file-pass", "word"];
    assert_eq!(ask(own.port, &[&["CONFIG", "SET"], &own_link[..]].concat()).as_deref(), Some("+OK\r\n"));
    client.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    client.ask(&["SET", "last", "2"]);
    await_value(own.port, "last", "2");
    // A master whose certificate another authority has signed is not followed; what was there stays.
    assert_eq!(
        ask(own.port, &["CONFIG", "SET", "tls-ca-cert-file", &made.path("other.crt")]).as_deref(),
        Some("+OK\r\n")
    );
    client.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    wait_for("a refused certificate", || own.program.output().contains("certificate").then_some(()));
    assert_eq!(told_down(own.port), "down");
    await_value(own.port, "last", "2");
    assert_eq!(ask(own.port, &["CONFIG", "SET", "tls-ca-cert-file", &made.path("ca.crt")]).as_deref(), Some("+OK\r\n"));
    await_link(own.port, tls_port);
}

/// The link of a `store` section to a master that demands certificates, and replicas of a section that demands them.
#[test]
fn the_link_of_a_section_is_encrypted() {
    let made = Certificates::new();
    let (ca, crt, key) = (made.path("ca.crt"), made.path("client.crt"), made.path("client.key"));
    let dir = made.directory().display();
    let (redis, tls_port) =
        made.engine_with("here", "yes", || format!("--repl-diskless-sync-delay 0 --save '' --dir {dir}"));
    std::fs::write(made.path("here.pem"), made.pem("here")).expect("written");
    let [port, port_of_replicas] = [free_port(), free_port()];
    let text = |further: &str| {
        format!(
            "global\n log stderr format raw local0\nstore main\n bind 127.0.0.1:{port}\n bind 127.0.0.1:{port_of_replicas} \
             ssl crt {} ca-file {ca} verify required\n replicaof 127.0.0.1 {tls_port}\n tls-replication yes\n{further}",
            made.path("here.pem")
        )
    };
    // What cannot work is refused by the check.
    let check = |further: &str, expected: &str| {
        let path = made.directory().join("checked.cfg");
        std::fs::write(&path, text(further)).expect("written");
        let checked = Command::new(BINARY).arg("check").arg(&path).output().expect("it runs");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(!checked.status.success() && said.contains(expected), "no {expected:?} in:\n{said}");
    };
    check("", "'tls-replication yes': Either tls-ca-cert-file or tls-ca-cert-dir must be specified");
    check(" tls-ca-cert-file ca.crt\n", "'tls-ca-cert-file ca.crt': argument must be an absolute path");
    check(" tls-ca-cert-file /nosuch\n", "/nosuch: No such file or directory");
    check(&format!(" tls-ca-cert-file {ca}\n tls-client-cert-file {crt}\n"), "Failed to load private key");
    check(&format!(" tls-ca-cert-file {ca}\n tls-cert-file {crt}\n"), "write 'bind ADDRESS:PORT ssl crt FILE'");

    let of_link = format!(
        " tls-ca-cert-file {ca}\n tls-client-cert-file {crt}\n tls-client-key-file {key}\n tls-protocols TLSv1.3\n \
         tls-ciphersuites TLS_AES_128_GCM_SHA256\n"
    );
    let server = Sluicegate::start(BINARY, &text(&of_link), &[]);
    await_link(port, tls_port);
    let mut master = Client::connect(&redis.address());
    assert_told(&mut master, port_of_replicas);
    assert_eq!(master.ask(&["SET", "k", "1"]), "+OK\r\n");
    await_value(port, "k", "1");
    // A replica of the section, over its own port for TLS.
    let (replica, _) = made.engine_with("here", "no", || {
        format!("--tls-replication yes --replicaof 127.0.0.1 {port_of_replicas} --save '' --dir {dir} --dbfilename replica.rdb")
    });
    await_value(replica.port, "k", "1");
    master.ask(&["SET", "k", "2"]);
    await_value(replica.port, "k", "2");

    // A setting that cannot work changes nothing.
    let failed = ask(port, &["CONFIG", "SET", "tls-client-key-file", &made.path("other.key")]).expect("a reply");
    assert!(failed.contains("Unable to update TLS configuration. Check server logs."), "{failed}");
    let shown = ask(port, &["CONFIG", "GET", "tls-client-key-file"]).expect("a reply");
    assert!(shown.ends_with(&format!("{key}\r\n")), "{shown}");
    // A reload takes over what belongs together, and files with other contents.
    let mut reload = || {
        let ended = Command::new(BINARY).args(["reload", &server.program.pid().to_string()]).output().expect("it runs");
        assert!(ended.status.success(), "{ended:?}");
        master.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    };
    let (crt, key) = (made.path("here.crt"), made.path("here.key"));
    let of_link = format!(" tls-ca-cert-file {ca}\n tls-client-cert-file {crt}\n tls-client-key-file {key}\n");
    std::fs::write(server.directory().join("sluicegate.cfg"), text(&of_link)).expect("written");
    reload();
    await_link(port, tls_port);
    let shown = ask(port, &["CONFIG", "GET", "tls-client-key-file"]).expect("a reply");
    assert!(shown.ends_with(&format!("{key}\r\n")), "{shown}");
    let right = made.read("ca.crt");
    std::fs::write(&ca, made.read("other.crt")).expect("written");
    reload();
    assert_eq!(told_down(port), "down");
    std::fs::write(&ca, right).expect("written");
    reload();
    await_link(port, tls_port);
    Client::connect(&redis.address()).ask(&["SET", "k", "3"]);
    await_value(port, "k", "3");
}

fn assert_told(master: &mut Client, port: u16) {
    let info = master.ask(&["INFO", "replication"]);
    assert!(info.contains(&format!("slave0:ip=127.0.0.1,port={port},")), "{info}");
}

/// A section tells its master the port of its first listener, although the process does other things before it listens.
#[test]
fn the_port_of_a_section_is_known_before_it_listens() {
    let dir = tempfile::tempdir().expect("a directory");
    // Longer than the link waits for a port that nobody announces.
    let script = dir.path().join("slow.lua");
    let text = "core.register_init(function() local to = os.time() + 3 while os.time() < to do end end)";
    std::fs::write(&script, text).expect("written");
    let redis = RedisServer::start(&["--repl-diskless-sync-delay", "0", "--dir", dir.path().to_str().expect("text")]);
    let mut master = Client::connect(&redis.address());
    let [first, second] = [free_port(), free_port()];
    let text = format!(
        "global\n lua-load {}\nstore main\n bind 127.0.0.1:{first}\n bind 127.0.0.1:{second}\n replicaof 127.0.0.1 {}\n",
        script.display(),
        redis.port
    );
    let server = Sluicegate::start(BINARY, &text, &[]);
    await_link(first, redis.port);
    assert_told(&mut master, first);
    assert_eq!(told(second, "server", "tcp_port"), first.to_string());

    // A listener that is left after a reload comes before new ones.
    for (binds, port) in [(vec![second], second), (vec![first, second], second), (vec![first], first)] {
        let binds: String = binds.iter().map(|port| format!(" bind 127.0.0.1:{port}\n")).collect();
        let text = format!("store main\n{binds} replicaof 127.0.0.1 {}\n", redis.port);
        std::fs::write(server.directory().join("sluicegate.cfg"), text).expect("written");
        let ended = Command::new(BINARY).args(["reload", &server.program.pid().to_string()]).output().expect("it runs");
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(told(port, "server", "tcp_port"), port.to_string());
    }
}

fn told_down(port: u16) -> String {
    wait_for("the link to be lost", || {
        let status = told(port, "replication", "master_link_status");
        (status == "down").then_some(status)
    })
}
