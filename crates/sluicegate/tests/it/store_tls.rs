//! TLS of the RESP port: `tls-port` of a store of its own, `bind … ssl` of a section, redis-cli and our own client as
//! peers, and Debian's redis-server beside it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::{ClientConnection, StreamOwned};
use sluicegate_testkit::{Certificates, Client, Listening, PATIENCE, Program, Sluicegate, encode, free_port, wait_for};
use sluicegate_tls::connector::Connector;
use sluicegate_tls::pair::{Pair, PairFiles};
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};
use sluicegate_tls::x509::Bundle;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};
use socket2::SockRef;

use crate::BINARY;

/// More bytes than fit into a record, a read, and the buffers of the sockets.
const HUGE: usize = 100 << 20;

/// A client over TLS that verifies 127.0.0.1.
struct Secure {
    stream: StreamOwned<ClientConnection, TcpStream>,
    parser: ReplyParser,
    input: Vec<u8>,
}

impl Secure {
    /// Connects; `certificate` is the name of the one that is shown.
    fn connect(made: &Certificates, port: u16, certificate: Option<&str>) -> Secure {
        Secure::try_connect(made, port, "127.0.0.1", certificate).expect("connected")
    }

    fn try_connect(made: &Certificates, port: u16, host: &str, certificate: Option<&str>) -> io::Result<Secure> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let ca = Some(Arc::new(Bundle::parse("ca.crt", &[&made.read("ca.crt")]).expect("authorities")));
        let policy = Policy { verify: Some(Verify::Required), ca, ..Policy::default() };
        let pair = certificate.map(|name| {
            let pem = [made.read(&format!("{name}.crt")), made.read(&format!("{name}.key"))].concat();
            Arc::new(Pair::parse(PairFiles { path: name, pem: &pem, ..PairFiles::default() }).expect("a certificate"))
        });
        let settings = ServerSettings { policy, pair, is_engine: true, ..ServerSettings::default() };
        let connection = Connector::new(settings).and_then(|connector| connector.connect_to(host));
        let mut stream = StreamOwned::new(connection.map_err(io::Error::other)?, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let limits = ReplyLimits { max_bulk: 2 * HUGE as u64, ..ReplyLimits::default() };
        Ok(Secure { stream, parser: ReplyParser::new(limits), input: Vec::new() })
    }

    fn send(&mut self, words: &[impl AsRef<[u8]>]) {
        self.stream.write_all(&encode(words)).expect("sent");
        self.stream.flush().expect("sent");
    }

    fn try_read(&mut self) -> io::Result<Reply> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let progress = self.parser.parse(&self.input).map_err(io::Error::other)?;
            self.input.drain(..progress.consumed);
            if let Some(reply) = progress.reply {
                return Ok(reply);
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.input.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[track_caller]
    fn read(&mut self) -> Reply {
        self.try_read().expect("a reply")
    }

    #[track_caller]
    fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> Reply {
        self.send(words);
        self.read()
    }

    #[track_caller]
    fn text(&mut self, words: &[&str]) -> String {
        match self.ask(words) {
            Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8(text).expect("text"),
            Reply::Simple(text) | Reply::Error(text) => text,
            reply => format!("{reply:?}"),
        }
    }
}

/// Starts `sluicegate store` with `tls-port` and a certificate for 127.0.0.1; returns its port.
fn store(made: &Certificates, words: &[&str]) -> (Program, u16) {
    let port = free_port();
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", "0", "--bind", "127.0.0.1", "--threads", "2", "--tls-port", &port.to_string()]);
    command.args(made.words("here", "--")).args(words);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Ready to accept connections tls");
    (program, port)
}

/// Runs redis-cli over TLS.
fn cli(made: &Certificates, port: u16, words: &[&str]) -> Output {
    let mut command = Command::new("redis-cli");
    command.args(["--tls", "--cacert", &made.path("ca.crt"), "-h", "127.0.0.1", "-p", &port.to_string()]);
    command.args(words).output().expect("redis-cli is installed")
}

#[test]
fn clients_are_served_over_tls() {
    let made = Certificates::new();
    let (_store, port) = store(&made, &["--tls-auth-clients", "no"]);
    let said = cli(&made, port, &["SET", "k", "of redis-cli"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "OK\n", "{said:?}");
    let mut client = Secure::connect(&made, port, None);
    assert_eq!(client.text(&["GET", "k"]), "of redis-cli");
    // Pipelines, of which the replies are more than a record.
    let piece = "x".repeat(700);
    let mut pipeline = Vec::new();
    for number in 0..1000 {
        pipeline.extend(encode(&["SET", &format!("key:{number}"), &format!("{number}{piece}")]));
        pipeline.extend(encode(&["GET", &format!("key:{number}")]));
    }
    client.stream.write_all(&pipeline).unwrap();
    for number in 0..1000 {
        assert_eq!(client.read(), Reply::Simple("OK".into()));
        assert_eq!(client.read(), Reply::Bulk(format!("{number}{piece}").into_bytes()));
    }
    // A transaction.
    for (words, expected) in [(&["MULTI"][..], "OK"), (&["INCR", "n"], "QUEUED"), (&["GET", "k"], "QUEUED")] {
        assert_eq!(client.text(words), expected);
    }
    let replies = vec![Reply::Integer(1), Reply::Bulk(b"of redis-cli".to_vec())];
    assert_eq!(client.ask(&["EXEC"]), Reply::Array(replies));
    // Another client wakes one that waits.
    client.send(&["BLPOP", "list", "0"]);
    let mut other = Secure::connect(&made, port, None);
    assert_eq!(other.ask(&["RPUSH", "list", "element"]), Reply::Integer(1));
    assert_eq!(client.read(), Reply::Array(vec![Reply::Bulk(b"list".to_vec()), Reply::Bulk(b"element".to_vec())]));
    let info = client.text(&["INFO", "server"]);
    assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    assert!(info.contains(&format!("listener0:name=tls,bind=127.0.0.1,port={port}\r\n")), "{info}");
    let list = client.text(&["CLIENT", "LIST"]);
    assert!(list.contains(&format!("laddr=127.0.0.1:{port}")) && !list.contains("tls"), "{list}");
    assert_eq!(client.text(&["QUIT"]), "OK");
    assert_eq!(client.try_read().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_huge_value_passes_both_ways() {
    let made = Certificates::new();
    let (_store, port) = store(&made, &["--tls-auth-clients", "no"]);
    let mut value = vec![0; HUGE];
    value.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at ^ at >> 8 ^ at >> 16) as u8);
    let mut client = Secure::connect(&made, port, None);
    assert_eq!(client.ask(&[&b"SET"[..], b"huge", &value]), Reply::Simple("OK".into()));
    // Both sockets are full before the reader begins, and another command follows.
    client.send(&["GET", "huge"]);
    client.send(&["STRLEN", "huge"]);
    let mut other = Secure::connect(&made, port, None);
    assert_eq!(other.ask(&["STRLEN", "huge"]), Reply::Integer(HUGE as i64));
    let Reply::Bulk(read) = client.read() else { panic!("no value") };
    assert!(read == value, "{} bytes", read.len());
    assert_eq!(client.read(), Reply::Integer(HUGE as i64));
}

#[test]
fn a_slow_subscriber_gets_every_message() {
    let made = Certificates::new();
    let (_store, port) = store(&made, &["--tls-auth-clients", "no"]);
    let mut slow = Secure::connect(&made, port, None);
    SockRef::from(&slow.stream.sock).set_recv_buffer_size(64 << 10).unwrap();
    assert!(matches!(slow.ask(&["SUBSCRIBE", "news"]), Reply::Array(_)));
    let mut publisher = Secure::connect(&made, port, None);
    let message = |number: usize| format!("{number}:{}", "y".repeat(number % 5000 * 7));
    for number in 0..1000 {
        assert_eq!(publisher.ask(&["PUBLISH", "news", &message(number)]), Reply::Integer(1));
    }
    for number in 0..1000 {
        let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        assert_eq!(slow.read(), Reply::Array(vec![bulk("message"), bulk("news"), bulk(&message(number))]));
        if number % 100 == 0 {
            // Replies between messages.
            slow.send(&["PING", "here"]);
            publisher.ask(&["PING"]);
        }
    }
    for _ in 0..10 {
        assert_eq!(slow.read(), Reply::Array(vec![Reply::Bulk(b"pong".to_vec()), Reply::Bulk(b"here".to_vec())]));
    }
}

#[test]
fn clients_show_certificates() {
    let made = Certificates::new();
    let (mut program, port) = store(&made, &[]);
    let ping = |certificate: Option<&str>| -> io::Result<Reply> {
        let mut client = Secure::try_connect(&made, port, "127.0.0.1", certificate)?;
        client.stream.write_all(b"PING\r\n")?;
        client.try_read()
    };
    let mut known = Secure::connect(&made, port, Some("client"));
    assert_eq!(known.text(&["PING"]), "PONG");
    let error = ping(None).unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    program.wait_for_output("Error accepting a client connection: peer sent no certificates (addr=127.0.0.1:");
    assert!(ping(Some("other")).is_err());
    program.wait_for_output("Error accepting a client connection: certificate: ");
    assert_eq!(known.text(&["CONFIG", "SET", "tls-auth-clients", "optional"]), "OK");
    assert_eq!(ping(None).unwrap(), Reply::Simple("PONG".into()));
    assert!(ping(Some("other")).is_err());
    assert_eq!(ping(Some("client")).unwrap(), Reply::Simple("PONG".into()));
    assert_eq!(known.text(&["CONFIG", "SET", "tls-auth-clients", "no"]), "OK");
    assert_eq!(ping(Some("other")).unwrap(), Reply::Simple("PONG".into()));
    // A client without TLS is not served, whatever it sends.
    let mut plain = Client::connect(&format!("127.0.0.1:{port}"));
    plain.send("PING\r\n");
    assert!(!plain.read_to_end().starts_with(b"+"));
    // And one that has the wrong name for the server ends the handshake itself.
    assert!(Secure::try_connect(&made, port, "127.0.0.2", None).is_err());
    program.wait_for_output("Error accepting a client connection: received fatal alert");
    wait_for("five failed handshakes", || {
        known.text(&["INFO", "stats"]).contains("\r\ntls_handshake_errors:5\r\n").then_some(())
    });
}

/// Authorities of a directory, an encrypted key, versions and suites.
#[test]
fn parameters_of_tls_act() {
    let made = Certificates::new();
    std::fs::create_dir(made.path("authorities")).unwrap();
    std::fs::copy(made.path("ca.crt"), made.path("authorities/any name")).unwrap();
    std::fs::write(made.path("authorities/no certificate"), "none").unwrap();
    let encrypt = ["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", "pass:secret"];
    let mut openssl = Command::new("openssl");
    openssl.args(encrypt).args(["-in", &made.path("here.key"), "-out", &made.path("secret.key")]);
    assert!(openssl.status().unwrap().success());
    let words = [
        ("--tls-ca-cert-file", String::new()),
        ("--tls-ca-cert-dir", made.path("authorities")),
        ("--tls-key-file", made.path("secret.key")),
        ("--tls-key-file-pass", "secret".into()),
        ("--tls-protocols", "TLSv1.2".into()),
        ("--tls-ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256".into()),
        ("--tls-ciphersuites", "TLS_AES_128_GCM_SHA256".into()),
        ("--tls-prefer-server-ciphers", "yes".into()),
        ("--tls-session-caching", "yes".into()),
        ("--tls-session-cache-size", "1000".into()),
        ("--tls-session-cache-timeout", "60".into()),
    ];
    let words: Vec<&str> = words.iter().flat_map(|(name, value)| [*name, value]).collect();
    let (_store, port) = store(&made, &words);
    let mut client = Secure::connect(&made, port, Some("client"));
    assert_eq!(client.text(&["PING"]), "PONG");
    let shown = |client: &Secure| {
        let suite = client.stream.conn.negotiated_cipher_suite().map(|suite| suite.suite());
        format!("{:?} {suite:?}", client.stream.conn.protocol_version())
    };
    assert_eq!(shown(&client), "Some(TLSv1_2) Some(TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)");
    assert_eq!(client.text(&["CONFIG", "SET", "tls-protocols", "TLSv1.3 TLSv1.2"]), "OK");
    let next = Secure::connect(&made, port, Some("client"));
    assert_eq!(shown(&next), "Some(TLSv1_3) Some(TLS13_AES_128_GCM_SHA256)");
    let refused = client.text(&["CONFIG", "SET", "tls-protocols", "TLSv1.1"]);
    assert!(
        refused.ends_with("'tls-protocols') - Unable to update TLS configuration. Check server logs."),
        "{refused}"
    );
    let get = |client: &mut Secure, name: &str| client.ask(&["CONFIG", "GET", name]);
    assert!(format!("{:?}", get(&mut client, "tls-session-cache-timeout")).contains("[54, 48]"));
    assert!(Secure::try_connect(&made, port, "127.0.0.1", None).and_then(|mut client| client.try_read()).is_err());
}

/// The same commands to us and to Debian's redis-server.
#[test]
fn config_set_replies_as_redis() {
    let made = Certificates::new();
    let (_ours, our_port) = store(&made, &["--tls-auth-clients", "no"]);
    let (_redis, their_port) = made.engine("here", "no");
    let mut ours = Secure::connect(&made, our_port, None);
    let mut theirs = Secure::connect(&made, their_port, None);
    let [here, engine, engine_key] = ["here.crt", "engine.crt", "engine.key"].map(|file| made.path(file));
    let lines: &[&[&str]] = &[
        &["CONFIG", "GET", "tls-c*-file"],
        &["CONFIG", "GET", "tls-key-file-pass"],
        &["CONFIG", "GET", "tls-auth-clients"],
        &["CONFIG", "GET", "tls-session*"],
        &["CONFIG", "GET", "tls-pr*"],
        &["CONFIG", "SET", "tls-cert-file", "/none.crt"],
        &["CONFIG", "SET", "tls-cert-file", &here],
        // The key of another certificate.
        &["CONFIG", "SET", "tls-key-file", &engine_key],
        &["CONFIG", "SET", "tls-cert-file", &engine, "tls-key-file", &engine_key],
        &["CONFIG", "GET", "tls-*-file"],
        &["CONFIG", "SET", "tls-ca-cert-file", ""],
        &["CONFIG", "SET", "tls-auth-clients", "maybe"],
        &["CONFIG", "SET", "tls-protocols", "SSLv3"],
        &["CONFIG", "SET", "tls-ciphers", "NONE"],
        &["CONFIG", "SET", "tls-session-caching", "no"],
        &["CONFIG", "SET", "tls-session-cache-size", "-1"],
        &["CONFIG", "SET", "tls-prefer-server-ciphers", "yes"],
        &["CONFIG", "SET", "tls-port", "70000"],
    ];
    let sorted = |reply: Reply| match reply {
        // Names and values; the order of names is not defined.
        Reply::Array(words) => {
            let mut pairs: Vec<String> = words.chunks(2).map(|pair| format!("{pair:?}")).collect();
            pairs.sort_unstable();
            pairs
        }
        Reply::Error(text) => vec![text],
        reply => vec![format!("{reply:?}")],
    };
    for line in lines {
        assert_eq!(sorted(ours.ask(line)), sorted(theirs.ask(line)), "{line:?}");
    }
    // Connections go on, and new ones see the new certificate.
    assert_eq!(ours.text(&["PING"]), "PONG");
    assert!(Secure::try_connect(&made, our_port, "127.0.0.1", None).is_err());
    Secure::try_connect(&made, our_port, "engine.example", None).expect("the other certificate");
    // The port moves, and goes.
    let next = free_port();
    assert_eq!(ours.text(&["CONFIG", "SET", "tls-port", &next.to_string()]), "OK");
    let mut moved = Secure::try_connect(&made, next, "engine.example", None).expect("the new port");
    wait_for("the old port is closed", || TcpStream::connect(("127.0.0.1", our_port)).is_err().then_some(()));
    assert_eq!(ours.text(&["CONFIG", "SET", "tls-port", "0"]), "OK");
    wait_for("no port", || TcpStream::connect(("127.0.0.1", next)).is_err().then_some(()));
    assert_eq!(moved.text(&["PING"]), "PONG");
}

#[test]
fn a_store_without_a_usable_certificate_does_not_start() {
    let made = Certificates::new();
    let port = free_port().to_string();
    let check = |words: &[&str], expected: &str| {
        let mut command = Command::new(BINARY);
        command.args(["store", "--port", "0", "--bind", "127.0.0.1", "--tls-port", &port]).args(words);
        let mut program = Program::start(command, &[]);
        assert_eq!(program.wait(), 1);
        program.comes_to_print("never printed");
        let output = program.output();
        assert!(output.contains(expected), "{output}");
        assert!(output.contains("Failed to configure TLS. Check logs for more info."), "{output}");
    };
    let [crt, key, other] = ["here.crt", "here.key", "other.key"].map(|file| made.path(file));
    check(&[], "No tls-cert-file configured!");
    check(&["--tls-cert-file", &crt], "No tls-key-file configured!");
    check(&["--tls-cert-file", &crt, "--tls-key-file", &key], "Either tls-ca-cert-file or tls-ca-cert-dir must be");
    let open = ["--tls-cert-file", &crt, "--tls-auth-clients", "no", "--tls-key-file"];
    check(&[&open[..], &[&other]].concat(), "inconsistencies between private key and certificate");
    check(&[&open[..], &["/none.key"]].concat(), "Failed to load private key: /none.key: No such file or directory");
}

/// Handshakes have a deadline, and count against `maxclients`.
#[test]
fn silent_clients_are_closed() {
    let made = Certificates::new();
    let (mut program, port) = store(&made, &["--tls-auth-clients", "no", "--maxclients", "3", "--timeout", "2"]);
    let mut known = Secure::connect(&made, port, None);
    let address = format!("127.0.0.1:{port}");
    let mut silent = Vec::new();
    wait_for("a client to be refused", || {
        silent.push(Client::connect(&address));
        // A slowly sent handshake counts as silence.
        silent[0].try_send(&[22, 3, 1]);
        let refused = Secure::try_connect(&made, port, "127.0.0.1", None).is_err();
        assert_eq!(known.text(&["PING"]), "PONG");
        refused.then_some(())
    });
    for client in &mut silent {
        assert_eq!(client.read_to_end(), b"");
    }
    program.wait_for_output("Error accepting a client connection: the TLS handshake took longer than 2 s (addr=");
    let mut next = Secure::connect(&made, port, None);
    assert_eq!(next.text(&["PING"]), "PONG");
    assert!(!next.text(&["INFO", "stats"]).contains("\r\nrejected_connections:0\r\n"));
}

/// `bind … ssl` of a section, a reload that changes its certificate, and the engine of a `redis` section in front of it.
#[test]
fn a_section_serves_tls_and_its_engine_asks_it() {
    let made = Certificates::new();
    let pem = |name: &str| [made.read(&format!("{name}.crt")), made.read(&format!("{name}.key"))].concat();
    let path = made.path("shown.pem");
    std::fs::write(&path, pem("here")).unwrap();
    let (gate, port, plain) = (Listening::new(), free_port(), free_port());
    let ca = made.path("ca.crt");
    let text = format!(
        "store main\n    bind 127.0.0.1:{port} ssl crt {path}\n    bind 127.0.0.1:{plain}\n\
         redis data\n    server one 127.0.0.1:{port}\n    ssl\n    verify required\n    ca-file {ca}\n    \
         timeout queue 30s\n    timeout connect 60s\n    timeout server 60s\n\
         frontend web\n    bind {}\n    mode http\n    timeout client 60s\n    \
         http-request store-call data INCR n set-var(txn.said)\n    \
         http-request return status 200 content-type text/plain lf-string \"%[var(txn.said)]%[var(txn.store_err)]\"\n",
        gate.word()
    );
    let server = Sluicegate::start(BINARY, &text, &[&gate]);
    let mut web = Client::connect(&gate.address());
    assert_eq!(web.get("/").text(), "1");
    assert_eq!(web.get("/").text(), "2");
    let mut client = Secure::connect(&made, port, None);
    assert_eq!(client.text(&["GET", "n"]), "2");
    assert_eq!(Client::connect(&format!("127.0.0.1:{plain}")).ask(&["GET", "n"]), "$1\r\n2\r\n");
    let info = client.text(&["INFO", "server"]);
    assert!(info.contains(&format!("name=tls,bind=127.0.0.1,port={port}\r\n")), "{info}");
    assert!(info.contains(&format!("tcp_port:{plain}\r\n")), "{info}");
    let refused = client.text(&["CONFIG", "SET", "tls-port", "1"]);
    assert!(refused.contains("write 'bind ADDRESS:PORT ssl crt FILE' in the store section"), "{refused}");
    let reload = || {
        let ended = Command::new(BINARY).args(["reload", &server.program.pid().to_string()]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    };
    reload();
    let mut again = Secure::connect(&made, port, None);
    assert_eq!(again.ask(&["INCR", "n"]), Reply::Integer(3));
    // Another certificate in the same file.
    std::fs::write(&path, pem("engine")).unwrap();
    reload();
    assert!(Secure::try_connect(&made, port, "127.0.0.1", None).is_err());
    let mut next = Secure::try_connect(&made, port, "engine.example", None).expect("the new certificate");
    assert_eq!(next.text(&["GET", "n"]), "3");
    assert_eq!([client.text(&["PING"]), again.text(&["PING"])], ["PONG", "PONG"]);
}
