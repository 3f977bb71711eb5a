//! Handshakes that fail: what the client gets and what the log says, compared with HAProxy 2.8.
//!
//! A client is the `openssl` command or a few raw bytes. Half of the frontends log by default formats, which have the
//! texts that operators search for; the others log by formats of their own, which have every fact of the handshake.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Haproxy, Listening, PATIENCE, Program, rss_bytes, s_client, wait_for};

use crate::start;
use crate::tls::{Pki, seen};

/// What both proxies log of a handshake, failed or not.
const FACTS: &str = "fc=%[fc_err]/%[fc_err_str] ssl=%[ssl_fc_err,hex]/%[ssl_fc_err_str] \
    c=%[ssl_c_verify]/%[ssl_c_err]/%[ssl_c_ca_err]/%[ssl_c_ca_err_depth] used=%[ssl_c_used]/%[ssl_fc_has_crt] \
    dn=%[ssl_c_s_dn]/%[ssl_c_i_dn(cn)]/%[ssl_c_serial,hex]/%[ssl_c_notafter] sni=%[ssl_fc_sni]/%[ssl_fc_has_sni] \
    fc=%[ssl_fc]/%[ssl_fc_is_resumed] %sslv/%sslc/%[ssl_fc_protocol]/%[ssl_fc_cipher]";

/// A client.
#[derive(Clone)]
enum Client {
    /// `openssl s_client` with these words.
    OpenSsl(String),
    /// Bytes, and what becomes of the connection behind them.
    Raw(&'static str, Vec<u8>, End),
}

/// What a raw client does after its bytes.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// It waits for the proxy's end.
    Waits,
    /// It sends no more.
    Ends,
    /// It resets the connection, once it was answered.
    Resets,
}

impl Client {
    fn name(&self) -> &str {
        match self {
            Client::OpenSsl(words) => words,
            Client::Raw(name, ..) => name,
        }
    }

    /// Returns what the client gets: a body, an alert or bytes.
    fn ask(&self, port: u16) -> String {
        let (bytes, end) = match self {
            Client::OpenSsl(words) => return seen(port, words),
            Client::Raw(_, bytes, end) => (bytes, *end),
        };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        // The proxy may have ended the connection before all bytes are sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        match end {
            End::Waits => _ = stream.read_to_end(&mut answer),
            End::Ends => {
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut answer);
            }
            End::Resets => {
                if bytes.len() > HALF {
                    let _ = stream.read(&mut [0; 1]);
                }
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(std::time::Duration::ZERO)).expect("settable");
            }
        }
        match answer.first() {
            // Its contents are random.
            Some(22) => "a handshake".to_owned(),
            _ => format!("{answer:02x?}"),
        }
    }
}

/// The number of bytes of a hello that incomplete handshakes send.
const HALF: usize = 50;

/// A hello in the form of SSL 2, but for its challenge.
const SSL2_HELLO: &[u8] =
    b"\x80\x2e\x01\0\x02\0\x15\0\0\0\x10\x01\0\x80\x02\0\x80\x03\0\x80\x04\0\x80\x05\0\x80\x06\0\x40\x07\0\xc0";

/// Returns a client's hello of TLS 1.3, as `openssl` sends it.
fn hello() -> Vec<u8> {
    let listening = Listening::new();
    let mut command = s_client(listening.port());
    command.args(["-servername", "a.example"]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("openssl");
    let (mut stream, _) = listening.listener.accept().expect("a client");
    let mut head = [0; 5];
    stream.read_exact(&mut head).expect("a record");
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut body).expect("its contents");
    drop(stream);
    let _ = child.wait();
    [&head[..], &body].concat()
}

/// The clients that need no certificate.
fn strangers(pki: &Pki) -> Vec<Client> {
    let hello = hello();
    let words = [
        "-tls1_1 -cipher DEFAULT@SECLEVEL=0",
        "-tls1 -cipher DEFAULT@SECLEVEL=0",
        "-servername a.example -tls1_2 -cipher DHE-RSA-AES128-GCM-SHA256",
        "-servername a.example -tls1_2 -sigalgs ed25519",
        "-servername a.example -tls1_3 -sigalgs ed25519",
        "-servername a.example -tls1_3 -ciphersuites TLS_AES_128_CCM_SHA256",
        "-servername a.example -tls1_2 -groups P-521",
        "-servername a.example -tls1_2",
        "-servername a.example -tls1_3",
        "-servername b.example -tls1_2",
        "-servername unknown.example",
        "-servername a.example -tls1_2 -fallback_scsv",
    ];
    let raw = |name, bytes: &[u8], end| Client::Raw(name, bytes.to_vec(), end);
    let mut all: Vec<Client> = words.iter().map(|words| Client::OpenSsl((*words).to_owned())).collect();
    // Clients that refuse the certificate.
    let refuses = format!("-servername a.example -verify_return_error -CAfile {}", pki.path("other.crt").display());
    all.extend(["-tls1_2", "-tls1_3"].map(|version| Client::OpenSsl(format!("{refuses} {version}"))));
    all.extend([
        raw("GET", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", End::Waits),
        raw("CONNECT", b"CONNECT a:443 HTTP/1.1\r\n\r\n", End::Waits),
        raw("OPTIONS", b"OPTIONS / HTTP/1.1\r\n\r\n", End::Waits),
        raw("SSH", b"SSH-2.0-x\r\n\r\n\r\n", End::Waits),
        raw("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", End::Waits),
        raw("nothing", b"", End::Ends),
        raw("half a hello", &hello[..HALF], End::Ends),
        raw("a hello alone", &hello, End::Ends),
        raw("nothing and a reset", b"", End::Resets),
        raw("half a hello and a reset", &hello[..HALF], End::Resets),
        raw("a hello and a reset", &hello, End::Resets),
        raw("a change of ciphers", &[20, 3, 3, 0, 1, 1], End::Waits),
        raw("a record that is too long", &[&[22, 3, 1, 255, 255][..], &[b'a'; 300]].concat(), End::Waits),
        raw(
            "a message that is too long",
            &[&[22, 3, 1, 64, 0, 1, 255, 255, 255][..], &[b'a'; 16380]].concat(),
            End::Waits,
        ),
        raw("data", b"\x17\x03\x03\0\x05hello", End::Waits),
        raw("SSL 2", &[SSL2_HELLO, &[b'x'; 40]].concat(), End::Waits),
    ]);
    all
}

/// Makes more certificates of clients than [`Pki::new`], and returns the clients that have one.
fn bearers(pki: &Pki) -> Vec<Client> {
    let key = "ec -pkeyopt ec_paramgen_curve:P-256";
    pki.issue("early.pem", "early", key, "ca", "-not_before 400101000000Z -not_after 400201000000Z", "DNS:early");
    pki.issue("server.pem", "server", key, "ca", "-days 9", "DNS:server\nextendedKeyUsage=serverAuth");
    pki.issue("strange.pem", "strange", key, "ca", "-days 9", "DNS:strange\n1.2.3.4=critical,DER:0500");
    let authority = "DNS:x\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign";
    pki.issue("between.crt", "between", key, "ca", "-days 9", authority);
    std::fs::copy(pki.path("between.crt"), pki.path("between.key")).expect("a copy");
    pki.issue("below.pem", "below", key, "between", "-days 9", "DNS:below");
    std::fs::copy(pki.path("good.pem"), pki.path("good.crt")).expect("a copy");
    std::fs::copy(pki.path("good.pem"), pki.path("good.key")).expect("a copy");
    pki.issue("no-authority.pem", "no-authority", key, "good", "-days 9", "DNS:no-authority");
    pki.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /C=FR/O=Test/CN=ca -addext basicConstraints=critical,CA:TRUE -keyout fake.key -out fake.crt");
    pki.issue("forged.pem", "forged", key, "fake", "-days 9", "DNS:forged");
    pki.openssl("ca -config ca.cnf -cert ca.crt -keyfile ca.key -gencrl -crl_lastupdate 200101000000Z -crl_nextupdate 200201000000Z -out old.crl");
    let chains = [("below", "between.crt"), ("no-authority", "good.crt")];
    let names =
        ["good", "late", "early", "revoked", "stranger", "server", "strange", "below", "no-authority", "forged"];
    let mut all = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let file = pki.path(&format!("{name}.pem")).display().to_string();
        // Each version with every other certificate.
        let version = ["-tls1_2", "-tls1_3"][index % 2];
        let words = format!("-servername a.example {version} -cert {file} -key {file}");
        all.extend(
            chains
                .iter()
                .filter(|(leaf, _)| leaf == name)
                .map(|(_, chain)| Client::OpenSsl(format!("{words} -cert_chain {}", pki.path(chain).display()))),
        );
        all.push(Client::OpenSsl(words));
    }
    all.extend(["-tls1_2", "-tls1_3"].map(|words| Client::OpenSsl(words.to_owned())));
    all
}

/// Returns the options of `bind` lines, and whether they ask for certificates.
fn lines(pki: &Pki) -> Vec<(String, bool)> {
    let path = |name: &str| pki.path(name).display().to_string();
    let own = format!("crt {}", path("both/a.pem"));
    let (ca, crl, old) = (path("ca.crt"), path("crl.pem"), path("old.crl"));
    let plain = |text: String| (text, false);
    let asks = |text: &str| (format!("{own} {text}"), true);
    vec![
        plain(own.clone()),
        plain(own.clone()),
        plain(format!("{own} strict-sni")),
        plain(format!("{own} ssl-min-ver TLSv1.3")),
        plain(format!("{own} ssl-max-ver TLSv1.2")),
        plain(format!("{own} curves P-384 ciphersuites TLS_AES_128_GCM_SHA256")),
        asks(&format!("verify required ca-file {ca}")),
        asks(&format!("verify required ca-file {ca}")),
        asks(&format!("verify optional ca-file {ca} crl-file {crl}")),
        asks(&format!("verify none ca-file {ca}")),
        asks(&format!("verify required ca-file {ca} crl-file {old}")),
        asks(&format!("verify required ca-file {ca} crl-file {crl} crt-ignore-err 10,23")),
        asks(&format!("verify optional ca-file {ca} ca-ignore-err all")),
        asks(&format!("verify optional ca-file {ca} ca-ignore-err all crt-ignore-err all")),
        asks(&format!("verify required ca-file {} ca-ignore-err 20 crt-ignore-err 20,21,27", path("other.crt"))),
    ]
}

/// Returns the configuration of a proxy with a frontend for each line.
fn configuration(lines: &[(String, bool)], listening: &[Listening]) -> String {
    let mut text =
        "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n timeout client 60s\n".to_owned();
    for (index, ((line, _), listening)) in lines.iter().zip(listening).enumerate() {
        text += &format!(
            "frontend {}\n bind {} name b ssl {line}\n http-request return status 200 content-type text/plain string ok\n",
            frontend(index),
            listening.word()
        );
        text += &match index % 2 {
            0 => " option httpslog\n".to_owned(),
            _ => format!(" log-format \"%f {FACTS}\"\n error-log-format \"%f {FACTS}\"\n"),
        };
    }
    text
}

/// Returns the name of the frontend of a line; none contains another.
fn frontend(index: usize) -> String {
    format!("front{index:02}")
}

/// Returns a log line without what differs from one client to the next: addresses, times and sizes.
fn masked(line: &str) -> String {
    let line = line.split_once("] ").map_or(line, |(_, rest)| rest);
    let is_timer = |word: &str| word.split('/').count() == 5 && word.split('/').all(|part| part.parse::<i32>().is_ok());
    line.split(' ').map(|word| if is_timer(word) { "N" } else { word }).collect::<Vec<_>>().join(" ")
}

/// Asks a proxy as a client, and returns what the client got and what the proxy logged.
fn asked(program: &Program, index: usize, port: u16, client: &Client) -> (String, String) {
    let name = frontend(index);
    // What the program says at its start is no log line.
    let is_logged = |line: &&str| line.contains(&name) && !line.starts_with("listening on ");
    let lines = || program.output().lines().filter(is_logged).map(masked).collect::<Vec<_>>();
    let before = lines().len();
    let got = client.ask(port);
    let logged = wait_for("a log line", || lines().get(before).cloned());
    (got, logged)
}

/// Returns why a difference is accepted; docs/reference/tls.md lists these for users.
fn known(line: &str, client: &Client, theirs: &(String, String), ours: &(String, String)) -> Option<&'static str> {
    let name = client.name();
    let without_name =
        |text: &str| text.split(' ').filter(|word| !word.starts_with("sni=")).collect::<Vec<_>>().join(" ");
    if theirs.0 == ours.0 && without_name(&theirs.1) == without_name(&ours.1) {
        return Some("OpenSSL refuses some clients before it reads the name, or forgets that there was one");
    }
    if line.contains("strict-sni") && name.starts_with("-tls1") && theirs.0 == "alert 112" && ours.0 == "alert 70" {
        return Some("a client without TLS 1.2 is refused for its version first");
    }
    if name == "data" && theirs.0 == ours.0 {
        return Some("OpenSSL takes the version of the first record for that of the connection");
    }
    if name.contains("strange.pem") && line.contains("crt-ignore-err all") && ours.0 == "ok" {
        return Some("HAProxy ignores none of the errors 32 to 63, whatever is asked for");
    }
    None
}

#[test]
fn failed_handshakes_are_told_and_logged_as_haproxy_does() {
    let pki = Pki::new();
    let (strangers, bearers) = (strangers(&pki), bearers(&pki));
    let lines = lines(&pki);
    let [theirs, ours] = [(); 2].map(|()| lines.iter().map(|_| Listening::new()).collect::<Vec<_>>());
    let haproxy = Haproxy::start_2_8(&configuration(&lines, &theirs), &theirs.iter().collect::<Vec<_>>());
    let sluicegate = start(&configuration(&lines, &ours), &ours.iter().collect::<Vec<_>>());
    let next = AtomicUsize::new(0);
    let compare = || {
        let mut differences = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((line, asks)) = lines.get(index) else { return differences };
            for client in if *asks { &bearers } else { &strangers } {
                // The results of raw clients do not depend on settings.
                if index > 1 && matches!(client, Client::Raw(..)) {
                    continue;
                }
                let mut expected = asked(&haproxy.program, index, theirs[index].port(), client);
                if matches!(client, Client::Raw(_, _, End::Resets)) {
                    // It is told otherwise if it comes between the acceptance and the first look at the connection.
                    expected.1 = expected.1.replace("Connection error during SSL handshake", "SSL handshake failure");
                    expected.1 = expected.1.replace("fc=25/", "fc=34/");
                }
                let actual = asked(&sluicegate.program, index, ours[index].port(), client);
                if expected != actual && known(line, client, &expected, &actual).is_none() {
                    let name = client.name();
                    differences
                        .push(format!("bind {line}\nclient {name}\nHAProxy: {expected:?}\nhere:    {actual:?}\n"));
                }
            }
        }
    };
    let differences: Vec<String> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(compare));
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Clients that stop in the middle of their first message, or behind it.
#[test]
fn crowds_of_half_handshakes_end_by_their_time() {
    const CROWD: usize = 400;
    /// More than what a half handshake holds, in bytes.
    const MOST: u64 = 32 * 1024;
    let (pki, listening) = (Pki::new(), Listening::new());
    let text = format!(
        "global\n nbthread 1\n log stdout format raw local0\ndefaults\n mode http\n log global\n timeout client 120s\n \
         timeout client-hs 5s\nfrontend front\n bind {} ssl crt {}\n http-request return status 200 content-type \
         text/plain string ok\n",
        listening.word(),
        pki.path("b.pem").display()
    );
    let server = start(&text, &[&listening]);
    assert_eq!(seen(listening.port(), ""), "ok");
    // A record of 300 bytes with a hello of 296, as far as its random bytes.
    let half = [&[22, 3, 1, 1, 44, 1, 0, 1, 40, 3, 3][..], &[7; 32]].concat();
    let before = rss_bytes(server.program.pid());
    let mut crowd: Vec<TcpStream> = (0..CROWD)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", listening.port())).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("settable");
            stream.write_all(&half).expect("open");
            stream
        })
        .collect();
    // Other clients are served, although they come after all of these.
    assert_eq!(seen(listening.port(), ""), "ok");
    let grown = rss_bytes(server.program.pid()).saturating_sub(before);
    assert!(grown < CROWD as u64 * MOST, "{grown} bytes for {CROWD} half handshakes");
    for stream in &mut crowd {
        let mut answer = Vec::new();
        // It ends by a reset where bytes were not read.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    let counted = || server.program.output().matches("Timeout during SSL handshake").count();
    wait_for("a line for each of them", || (counted() == CROWD).then_some(()));
    assert_eq!(seen(listening.port(), ""), "ok");
}
