//! The generated reference page, and the effect or refusal of every parameter over RESP.

use std::collections::BTreeMap;
use std::path::Path;

use sluicegate_store::config::{FIXED, Form, IDLE, PARAMETERS, PROCESS, ServerOptions};
use sluicegate_store::{Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike;
use crate::support::Running;

/// The page is generated from the catalogues; `UPDATE_DOCS=1` writes it.
#[test]
fn reference_is_in_step() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    let expected = sluicegate_store::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/reference/commands.md is behind the catalogues: run with UPDATE_DOCS=1");
}

/// Sets a parameter at run time, and reads it back.
#[track_caller]
fn set(ours: &Running, name: &str, value: &str, shown: &str) {
    let mut client = ours.connect();
    assert_eq!(client.ask(&["CONFIG", "SET", name, value]), "+OK\r\n", "{name} {value}");
    let pair = format!("*2\r\n${}\r\n{name}\r\n${}\r\n{shown}\r\n", name.len(), shown.len());
    assert_eq!(client.ask(&["CONFIG", "GET", name]), pair);
    // The client must leave before clients are counted.
    client.command(&["QUIT"]);
    client.read_to_end();
    wait_for("the client to leave", || (ours.server.client_count() == 0).then_some(()));
}

#[test]
fn client_output_buffer_limit_acts_at_once() {
    for limits in ["normal 1mb 0 0", "normal 0 1kb 0"] {
        let ours = Running::start();
        let shown = match limits {
            "normal 1mb 0 0" => "normal 1048576 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
            _ => "normal 0 1024 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        };
        set(&ours, "client-output-buffer-limit", limits, shown);
        let mut client = ours.connect();
        let value = "x".repeat(32 << 20);
        assert_eq!(client.ask(&["SET", "k", &value]), "+OK\r\n");
        client.command(&["GET", "k"]);
        wait_for("the client to be dropped", || (ours.server.client_count() == 0).then_some(()));
        assert!(client.read_to_end().len() < value.len(), "{limits}");
    }
}

#[test]
fn client_query_buffer_limit_acts_at_once() {
    let ours = Running::start();
    set(&ours, "client-query-buffer-limit", "1mb", "1048576");
    let mut client = ours.connect();
    client.send(b"*2\r\n$4\r\nECHO\r\n$4000000\r\n");
    use std::io::Write;
    // The rest may be sent after the server has closed the connection.
    let _ = client.stream().write_all(&vec![b'x'; 2 << 20]);
    wait_for("the client to be dropped", || (ours.server.client_count() == 0).then_some(()));
}

#[test]
fn databases_is_read_at_start() {
    let store = Store::new(StoreOptions { databases: 3, ..StoreOptions::default() });
    let ours = Running::serving(store, ServerOptions { databases: 3, ..ServerOptions::default() }, 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["CONFIG", "GET", "databases"]), "*2\r\n$9\r\ndatabases\r\n$1\r\n3\r\n");
    assert_eq!(client.ask(&["SELECT", "2"]), "+OK\r\n");
    assert_eq!(client.ask(&["SELECT", "3"]), "-ERR DB index is out of range\r\n");
    assert!(client.ask(&["CONFIG", "SET", "databases", "4"]).ends_with("can't set immutable config\r\n"));
}

#[test]
fn enable_debug_command_is_read_at_start() {
    let ours = Running::start();
    let mut client = ours.connect();
    assert!(client.ask(&["DEBUG", "SLEEP", "0"]).starts_with("-ERR DEBUG command not allowed."));
    assert!(client.ask(&["CONFIG", "SET", "enable-debug-command", "yes"]).ends_with("can't set immutable config\r\n"));
    let options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["DEBUG", "SLEEP", "0"]), "+OK\r\n");
    assert_eq!(
        client.ask(&["CONFIG", "GET", "enable-debug-command"]),
        "*2\r\n$20\r\nenable-debug-command\r\n$3\r\nyes\r\n"
    );
}

#[test]
fn maxclients_acts_at_once() {
    let ours = Running::start();
    set(&ours, "maxclients", "1", "1");
    let mut first = ours.connect();
    assert_eq!(first.ask(&["PING"]), "+PONG\r\n");
    assert_eq!(ours.connect().read_to_end(), b"-ERR max number of clients reached\r\n");
    assert_eq!(first.ask(&["CONFIG", "SET", "maxclients", "2"]), "+OK\r\n");
    assert_eq!(ours.connect().ask(&["PING"]), "+PONG\r\n");
}

#[test]
fn notify_keyspace_events_acts_at_once() {
    let ours = Running::start();
    let mut listener = ours.connect();
    listener.ask(&["SUBSCRIBE", "__keyspace@0__:k"]);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["SET", "k", "untold"]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "notify-keyspace-events", "$K"]), "+OK\r\n");
    assert_eq!(
        client.ask(&["CONFIG", "GET", "notify-keyspace-events"]),
        "*2\r\n$22\r\nnotify-keyspace-events\r\n$2\r\n$K\r\n"
    );
    assert_eq!(client.ask(&["APPEND", "k", "told"]), ":10\r\n");
    assert_eq!(listener.read_reply(), b"*3\r\n$7\r\nmessage\r\n$16\r\n__keyspace@0__:k\r\n$6\r\nappend\r\n");
}

#[test]
fn proto_max_bulk_len_acts_at_once() {
    let ours = Running::start();
    set(&ours, "proto-max-bulk-len", "1mb", "1048576");
    let mut client = ours.connect();
    client.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$1048577\r\n");
    assert_eq!(client.read_to_end(), b"+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
}

#[test]
fn requirepass_acts_at_once() {
    let ours = Running::start();
    set(&ours, "requirepass", "secret", "secret");
    let mut client = ours.connect();
    assert_eq!(client.ask(&["PING"]), "-NOAUTH Authentication required.\r\n");
    assert_eq!(client.ask(&["AUTH", "secret"]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "requirepass", ""]), "+OK\r\n");
    assert_eq!(ours.connect().ask(&["PING"]), "+PONG\r\n");
}

#[test]
fn timeout_acts_on_those_who_are_connected() {
    let ours = Running::start();
    let mut idle = ours.connect();
    assert_eq!(idle.ask(&["CONFIG", "SET", "timeout", "1"]), "+OK\r\n");
    assert_eq!(idle.read_to_end(), b"");
}

/// Returns the kernel's time, in hundredths of a second, to the next keep-alive probe of the server's side of a
/// connection.
fn keepalive_cs(server_port: u16, client_port: u16) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let (local, remote) = (format!("0100007F:{server_port:04X}"), format!("0100007F:{client_port:04X}"));
    let row = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.len() > 5 && row[1] == local && row[2] == remote)?;
    let (timer, when) = row[5].split_once(':')?;
    (timer == "02").then(|| u32::from_str_radix(when, 16).expect("a hexadecimal number"))
}

#[test]
fn tcp_keepalive_acts_on_new_connections() {
    let ours = Running::start();
    for (value, least, most) in [("300", 20_000, 30_100), ("10", 1, 1_100)] {
        set(&ours, "tcp-keepalive", value, value);
        let mut client = ours.connect();
        assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
        let port = client.stream().local_addr().expect("connected").port();
        // The kernel shows the timer of a probe once no retransmission timer is active.
        let time = wait_for("a keep-alive timer", || keepalive_cs(ours.port, port));
        assert!((least..=most).contains(&time), "{time} hundredths with {value}");
        drop(client);
        wait_for("the client to leave", || (ours.server.client_count() == 0).then_some(()));
    }
    set(&ours, "tcp-keepalive", "0", "0");
    let mut client = ours.connect();
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
    let port = client.stream().local_addr().expect("connected").port();
    assert_eq!(keepalive_cs(ours.port, port), None);
}

/// Each parameter without effect can be set over RESP to its present value only.
#[test]
fn what_does_not_act_is_refused() {
    let ours = Running::start();
    let mut client = ours.connect();
    let pair = |name: &str, value: &str| format!("*2\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
    let refused =
        |name: &str, why: &str| format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n");
    // All are named, so that none is added or removed unnoticed.
    let fixed = [
        "activedefrag",
        "aof-rewrite-cpulist",
        "bgsave-cpulist",
        "bio-cpulist",
        "cluster-enabled",
        "enable-module-command",
        "server-cpulist",
        "socket-mark-id",
        "syslog-enabled",
    ];
    assert_eq!(fixed.to_vec(), FIXED.iter().map(|row| row.name).collect::<Vec<_>>());
    let process = [
        "bind",
        "daemonize",
        "io-threads",
        "logfile",
        "loglevel",
        "oom-score-adj",
        "oom-score-adj-values",
        "pidfile",
        "port",
        "shutdown-on-sigint",
        "shutdown-on-sigterm",
        "supervised",
        "tcp-backlog",
        "threads",
        "tls-auth-clients",
        "tls-cert-file",
        "tls-key-file",
        "tls-key-file-pass",
        "tls-port",
        "tls-prefer-server-ciphers",
        "tls-session-cache-size",
        "tls-session-cache-timeout",
        "tls-session-caching",
        "unixsocket",
        "unixsocketperm",
    ];
    assert_eq!(process.to_vec(), PROCESS.iter().map(|row| row.name).collect::<Vec<_>>());
    let options = ServerOptions::default();
    let immutable = |name: &str| options.is_immutable(name).then(|| refused(name, "can't set immutable config"));
    for row in FIXED {
        assert_eq!(client.ask(&["CONFIG", "GET", row.name]), pair(row.name, row.value));
        if let Some(text) = immutable(row.name) {
            assert_eq!(client.ask(&["CONFIG", "SET", row.name, row.value]), text);
            continue;
        }
        assert_eq!(client.ask(&["CONFIG", "SET", row.name, row.value]), "+OK\r\n", "{}", row.name);
        let other = match (row.name, row.value) {
            ("save", _) => "60 1",
            (_, "no") => "yes",
            (_, "0") => "1",
            _ => "other",
        };
        assert_eq!(client.ask(&["CONFIG", "SET", row.name, other]), refused(row.name, row.why));
        assert_eq!(client.ask(&["CONFIG", "GET", row.name]), pair(row.name, row.value), "nothing has changed");
    }
    for row in IDLE {
        assert_eq!(client.ask(&["CONFIG", "GET", row.name]), pair(row.name, row.default));
        if let Some(text) = immutable(row.name) {
            assert_eq!(client.ask(&["CONFIG", "SET", row.name, row.default]), text);
            continue;
        }
        assert_eq!(client.ask(&["CONFIG", "SET", row.name, row.default]), "+OK\r\n", "{}", row.name);
        let other = match row.form {
            Form::Text | Form::Name(..) => "other",
            Form::Number(least, _) => &(least + 1).to_string(),
            Form::Memory(_) => "7",
            Form::Flags(_) => "now",
            Form::Scores => "1 2 3",
            Form::Switch if row.default == "yes" => "no",
            Form::Switch => "yes",
            Form::Choice(choices) => choices.iter().find(|choice| **choice != row.default).expect("a second choice"),
        };
        let expected = if row.is_hint { "+OK\r\n".to_owned() } else { refused(row.name, row.why) };
        assert_eq!(client.ask(&["CONFIG", "SET", row.name, other]), expected);
    }
    // A store section of a proxy's file has no process of its own.
    let alone = ServerOptions { standalone: true, ..ServerOptions::default() };
    for row in PROCESS {
        let value = String::from_utf8(alone.get(row.name).expect("a value")).expect("text");
        assert_eq!(client.ask(&["CONFIG", "SET", row.name, &value]), refused(row.name, row.in_section));
        assert_eq!(client.ask(&["CONFIG", "GET", row.name]), "*0\r\n");
    }
}

/// Every parameter of redis-server is known here, and parameters that both show have Redis's defaults.
#[test]
fn parameters_are_those_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions { standalone: true, ..ServerOptions::default() }, 1);
    let all = |address: String| -> BTreeMap<String, String> {
        let reply = Client::connect(&address).ask(&["CONFIG", "GET", "*"]);
        let words: Vec<&str> = reply.split("\r\n").skip(1).collect();
        words.chunks(4).filter(|four| four.len() == 4).map(|four| (four[1].into(), four[3].into())).collect()
    };
    let (expected, found) = (all(redis.address()), all(ours.address()));
    assert!(expected.len() > 150);
    let by_start = ["bind", "port", "dir", "io-threads", "logfile", "pidfile", "tls-port", "save"];
    for (name, value) in &expected {
        if by_start.contains(&name.as_str()) {
            continue;
        }
        assert_eq!(found.get(name), Some(value), "{name}");
    }
    // Those for tests are shown to clients that name them.
    let requests = [
        "CONFIG GET key-load-delay\r\nCONFIG GET rdb-*-delay\r\nCONFIG GET *-load-delay Key-Load-Delay\r\n",
        "CONFIG SET key-load-delay 5 loading-process-events-interval-bytes 4096\r\nCONFIG GET key-load-delay\r\n",
        "CONFIG GET loading-process-events-interval-bytes\r\nCONFIG SET loading-process-events-interval-bytes 1023\r\n",
    ];
    check_alike(&requests, &redis, &ours);
}

#[test]
fn several_parameters_are_set_together_or_not_at_all() {
    let ours = Running::start();
    let mut client = ours.connect();
    let refused = client.ask(&["CONFIG", "SET", "timeout", "7", "maxclients", "5", "activedefrag", "yes"]);
    assert!(refused.contains("'activedefrag'"), "{refused}");
    for parameter in PARAMETERS {
        let shown = ServerOptions::default().get(parameter.name);
        assert_eq!(ours.server.options().get(parameter.name), shown, "{}", parameter.name);
    }
}

/// Subcommands that no other test calls by name.
#[test]
fn every_subcommand_answers() {
    let ours = Running::start();
    let mut client = ours.connect();
    for (command, starts) in [
        ("client getname", "$-1"),
        ("client getredir", ":-1"),
        ("client trackinginfo", "*6"),
        ("command getkeysandflags get k", "*1"),
        ("client help", "*"),
        ("client id", ":"),
        ("client info", "$"),
        ("client kill id 999", ":0"),
        ("client list", "$"),
        ("client no-evict on", "+OK"),
        ("client pause 0", "+OK"),
        ("client reply on", "+OK"),
        ("client setinfo lib-name x", "+OK"),
        ("client setname x", "+OK"),
        ("client unpause", "+OK"),
        ("command count", ":"),
        ("command docs get", "*2"),
        ("command getkeys get k", "*1"),
        ("command help", "*"),
        ("command info get", "*1"),
        ("command list", "*"),
        ("config get timeout", "*2"),
        ("config help", "*"),
        ("config resetstat", "+OK"),
        ("config rewrite", "-ERR The server is running without a config file"),
        ("config set timeout 0", "+OK"),
        ("pubsub channels", "*0"),
        ("pubsub help", "*"),
        ("pubsub numpat", ":0"),
        ("pubsub numsub a", "*2"),
        ("pubsub shardchannels", "*0"),
        ("pubsub shardnumsub a", "*2"),
        ("object encoding none", "$-1"),
        ("object freq none", "$-1"),
        ("object help", "*"),
        ("function help", "*"),
        ("object idletime none", "$-1"),
        ("object refcount none", "$-1"),
        ("object sticky none", "$-1"),
        ("memory doctor", "$"),
        ("memory help", "*"),
        ("memory malloc-stats", "$"),
        ("memory purge", "+OK"),
        ("memory stats", "*"),
        ("memory usage none", "$-1"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let reply = client.ask(&words);
        assert!(reply.starts_with(starts), "{command}: {reply}");
    }
}
