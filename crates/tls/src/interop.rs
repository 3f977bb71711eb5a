//! Listeners and connectors against the `openssl` command of the machine, over the loopback interface.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::server::Acceptor;
use rustls::{Connection, Error, ServerConnection};

use crate::failure::{Answer, Code};
use crate::handshakes::{FIXTURE, entry, settings};
use crate::hello::{Hello, List, Start};
use crate::listener::Listener;
use crate::policy::{Policy, ServerSettings, Settings, Verify, Version};
use crate::resumption::Resumption;
use crate::session::{Facts, Known};
use crate::x509::Bundle;
use crate::{connector::Connector, group, suite, verify};

/// The time for which a side waits for the other before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client's connection as the server saw it.
struct Seen {
    result: Result<Facts, Error>,
    hello: Vec<u8>,
    output: String,
}

impl Seen {
    fn facts(self) -> Facts {
        self.result.unwrap_or_else(|error| panic!("{error}: {}", self.output))
    }

    fn code(&self) -> Code {
        Code::of_hello(self.result.as_ref().expect_err("a failure"), &self.hello).0
    }
}

fn openssl(line: &str) -> Child {
    let mut command = Command::new("openssl");
    command.args(line.split_whitespace()).current_dir(FIXTURE.pki.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("openssl is installed: `cargo xtask test --install` brings it")
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Serves one connection: the handshake, a line, and the end.
fn serve(listener: &Listener, mut stream: TcpStream, hello: &mut Vec<u8>) -> Result<Facts, Error> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut acceptor = Acceptor::default();
    let mut sent = Vec::new();
    let accepted = loop {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        hello.extend_from_slice(&bytes[..count]);
        acceptor.read_tls(&mut &bytes[..count]).unwrap();
        match acceptor.accept() {
            Ok(None) => assert!(count > 0, "the client ended"),
            Ok(Some(accepted)) => break accepted,
            Err((error, mut alert)) => {
                match Code::of_hello(&error, hello).1 {
                    Answer::Alert(alert) => stream.write_all(&[21, 3, 1, 0, 2, 2, alert.into()]).unwrap(),
                    Answer::Rustls => alert.write_all(&mut stream).unwrap(),
                    Answer::Silence => {}
                }
                return Err(error);
            }
        }
    };
    let choice = listener.choose(&accepted.client_hello()).unwrap();
    let mut outcome = None;
    let server = verify::within(&mut outcome, || accepted.into_connection(choice.config.clone()));
    let mut server: ServerConnection = server.map_err(|(error, mut alert)| {
        alert.write_all(&mut stream).unwrap();
        error
    })?;
    let mut send = |server: &mut ServerConnection, stream: &mut TcpStream| {
        while server.wants_write() {
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            sent.extend_from_slice(&bytes);
            // The client may have disconnected already.
            let _ = stream.write_all(&bytes);
        }
    };
    while server.is_handshaking() {
        send(&mut server, &mut stream);
        if !server.is_handshaking() {
            break;
        }
        assert!(server.read_tls(&mut stream).unwrap() > 0, "the client ended");
        if let Err(error) = verify::within(&mut outcome, || server.process_new_packets()) {
            send(&mut server, &mut stream);
            return Err(error);
        }
    }
    server.writer().write_all(b"served\n").unwrap();
    server.send_close_notify();
    send(&mut server, &mut stream);
    let mut facts =
        Facts::new(&Connection::from(server), Known { pair: Some(choice.pair), outcome, ..Known::default() });
    facts.set_starts(Start::parse(hello), Start::parse(&sent));
    Ok(facts)
}

/// Runs `openssl s_client` with these arguments against a listener. The machine's certificate authorities are not
/// loaded, which would take most of a client's time.
fn client(listener: &Listener, arguments: &str) -> Seen {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let child = openssl(&format!("s_client -no-CAfile -no-CApath -no-CAstore -ign_eof -connect {address} {arguments}"));
    let (stream, _) = socket.accept().unwrap();
    let mut hello = Vec::new();
    let result = serve(listener, stream, &mut hello);
    let output = text(&child.wait_with_output().unwrap());
    Seen { result, hello, output }
}

fn both(change: impl FnOnce(&mut Settings)) -> Listener {
    let mut settings = settings(vec![entry(&FIXTURE.rsa, None, None), entry(&FIXTURE.ecdsa, Some("*.example"), None)]);
    change(&mut settings);
    Listener::new(settings, &Resumption::new(20_000)).unwrap()
}

#[test]
fn openssl_resumes_sessions() {
    for (name, no_tickets) in [("ticket", false), ("stored", true)] {
        let listener = both(|settings| settings.no_tickets = no_tickets);
        for version in ["tls1_2", "tls1_3"] {
            let file = format!("{name}-{version}.session");
            let line = format!("-servername rsa.example -{version}");
            let first = client(&listener, &format!("{line} -sess_out {file}"));
            let first_id = first.facts().session_id().map(<[u8]>::to_vec);
            let second = client(&listener, &format!("{line} -sess_in {file}"));
            assert!(second.output.contains("Reused, TLSv1."), "{name} {version}: {}", second.output);
            let second = second.facts();
            assert!(second.resumed);
            if no_tickets && version == "tls1_2" {
                assert_eq!(second.session_id(), first_id.as_deref());
                assert!(first_id.is_some_and(|id| id.len() == 32));
            }
        }
    }
}

#[test]
fn openssl_gets_what_haproxy_would_choose() {
    let listener = both(|settings| {
        settings.policy.alpn = Some(vec![b"h2".to_vec(), b"http/1.1".to_vec()]);
        settings.policy.groups = Some(group::parse("P-384:P-256:X25519").unwrap().list);
    });
    let seen = |arguments: &str| {
        let facts = client(&listener, &format!("-servername rsa.example {arguments}")).facts();
        let alpn = facts.alpn.as_deref().map(|alpn| String::from_utf8_lossy(alpn).into_owned());
        (facts.pair.as_ref().unwrap().path.clone(), facts.cipher(), facts.curve().unwrap(), alpn.unwrap_or_default())
    };
    let of = |path: &str, cipher, curve, alpn: &str| (path.to_owned(), cipher, curve, alpn.to_owned());
    assert_eq!(seen("-tls1_2 -alpn http/1.1,h2"), of("ecdsa", "ECDHE-ECDSA-AES256-GCM-SHA384", "secp384r1", "h2"));
    assert_eq!(seen("-tls1_3 -groups X25519 -alpn nothing"), of("ecdsa", "TLS_AES_256_GCM_SHA384", "X25519", ""));
    assert_eq!(
        seen("-tls1_3 -sigalgs RSA-PSS+SHA256 -groups P-256 -ciphersuites TLS_AES_128_GCM_SHA256"),
        of("rsa", "TLS_AES_128_GCM_SHA256", "prime256v1", "")
    );
    assert_eq!(
        seen("-tls1_2 -cipher ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384"),
        of("rsa", "ECDHE-RSA-CHACHA20-POLY1305", "secp384r1", "")
    );
}

#[test]
fn hellos_of_openssl() {
    let listener = both(|_| {});
    let line = "-servername rsa.example -ciphersuites TLS_AES_128_GCM_SHA256 -cipher ECDHE-RSA-AES128-GCM-SHA256";
    let seen = client(&listener, &format!("{line} -groups X25519:P-256 -sigalgs RSA-PSS+SHA256"));
    let hello = Hello::parse(&seen.hello, 1000).unwrap();
    let names = "TLS_AES_128_GCM_SHA256,ECDHE-RSA-AES128-GCM-SHA256,TLS_EMPTY_RENEGOTIATION_INFO_SCSV";
    assert_eq!((hello.version, hello.cipher_names(false).as_str()), (0x303, names));
    assert_eq!(hello.list(List::Groups), [0, 29, 0, 23]);
    assert_eq!(hello.list(List::SignatureSchemes), [8, 4]);
    assert!(hello.list(List::Versions).starts_with(&[3, 4, 3, 3]));
    assert!(hello.list(List::Extensions).chunks(2).any(|kind| kind == [0, 0]));
    let facts = seen.facts();
    assert_eq!(facts.client_random(), Some(&hello.random[..]));
    assert!(facts.server_random().is_some_and(|random| random != hello.random));
    assert_eq!(facts.session_id(), Some(&hello.session[..]));
}

#[test]
fn failures_have_openssls_codes() {
    let listener = both(|settings| {
        settings.policy = Policy { ciphers: Some(suite::parse_tls12("AES256").unwrap().list), ..Policy::default() };
    });
    let old = client(&listener, "-tls1_1 -cipher ALL:@SECLEVEL=0");
    assert_eq!(old.code().number(), 0x0a00_0102);
    assert!(old.output.contains("alert protocol version"), "{}", old.output);
    let code = |arguments: &str| client(&listener, &format!("-servername rsa.example {arguments}")).code().number();
    assert_eq!(code("-tls1_2 -cipher AES128-SHA"), 0x0a00_00c1);
    assert_eq!(code("-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256"), 0x0a00_00c1);
    // The fallback signal is ignored if the client offered the highest version that this side supports.
    let old = both(|settings| settings.policy.max = Some(Version::Tls12));
    assert_eq!(client(&old, "-servername rsa.example -tls1_2 -fallback_scsv").facts().protocol(), "TLSv1.2");
    // The client does not know the authority and sends an alert.
    assert_eq!(code("-tls1_3 -verify_return_error -CAfile other.crt"), 0x0a00_0418);
    let ca = Bundle::parse("root.crt", &[&FIXTURE.pki.read(&["root.crt"])]).unwrap();
    let asks = both(|settings| {
        settings.policy = Policy { verify: Some(Verify::Required), ca: Some(Arc::new(ca)), ..Policy::default() };
    });
    for version in ["-tls1_2", "-tls1_3"] {
        let code = |arguments: &str| client(&asks, &format!("{version} {arguments}")).code().number();
        assert_eq!(code(""), 0x0a00_00c7);
        assert_eq!(code("-cert stranger.crt -key stranger.key"), 0x0a00_0086);
        let facts = client(&asks, &format!("{version} -cert client.crt -key client.key")).facts();
        assert!(facts.peer.is_some_and(|peer| peer.root.is_some()));
    }
}

#[test]
fn connections_to_openssl() {
    let ca = Arc::new(Bundle::parse("root.crt", &[&FIXTURE.pki.read(&["root.crt"])]).unwrap());
    let policy = Policy {
        verify: Some(Verify::Required),
        ca: Some(ca),
        alpn: Some(vec![b"http/1.1".to_vec()]),
        ..Policy::default()
    };
    let connector = Connector::new(ServerSettings { policy, ..ServerSettings::default() }).unwrap();
    // A free port: openssl binds it at once, or the test finds it taken and fails.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut child = openssl(&format!(
        "s_server -accept 127.0.0.1:{port} -cert ecdsa.crt -key ecdsa.key -alpn h2,http/1.1 -www -naccept 3"
    ));
    for (place, name) in [Some("ecdsa.example"), Some("ecdsa.example"), None].into_iter().enumerate() {
        let started = std::time::Instant::now();
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::yield_now();
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = connector.connect(name, None).unwrap();
        let mut outcome = None;
        connection.writer().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut page = Vec::new();
        loop {
            while connection.wants_write() {
                connection.write_tls(&mut stream).unwrap();
            }
            if connection.read_tls(&mut stream).unwrap_or(0) == 0 {
                break;
            }
            verify::within(&mut outcome, || connection.process_new_packets()).unwrap();
            let _ = connection.reader().read_to_end(&mut page);
        }
        assert!(String::from_utf8_lossy(&page).contains("TLSv1.3"), "{}", String::from_utf8_lossy(&page));
        let known = Known { sni: name.map(Box::from), outcome, ..Known::default() };
        let facts = Facts::new(&Connection::from(connection), known);
        assert_eq!((facts.resumed, facts.sni.as_deref()), (place == 1, name));
        assert_eq!(facts.alpn.as_deref(), Some(&b"http/1.1"[..]));
    }
    assert!(child.wait().unwrap().success());
}
