//! What servers are told of a client's TLS in PROXY protocol headers, compared with HAProxy 2.8 byte for byte.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use sluicegate_testkit::{Haproxy, Listening, s_client};

use crate::start;
use crate::tls::{Pki, seen};

/// The options of `server` lines that are compared.
const OPTIONS: [&str; 6] = [
    "send-proxy-v2",
    "send-proxy-v2-ssl-cn no-send-proxy-v2-ssl-cn send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "send-proxy-v2 proxy-v2-options ssl,cert-cn,ssl-cipher,cert-sig,cert-key,authority,crc32c",
    "send-proxy-v2 proxy-v2-options authority,ssl-cipher,unique-id",
];

/// Returns a configuration with a frontend and a server for each of the options, and one without TLS.
fn configuration(pki: &Pki, listening: &[Listening], server: u16) -> String {
    let mut text =
        "defaults\n    mode tcp\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n".to_owned();
    let tls = format!(
        "ssl crt {} alpn h2,http/1.1 verify optional crt-ignore-err all ca-ignore-err all ca-file {}",
        pki.path("both/a.pem").display(),
        pki.path("ca.crt").display()
    );
    for (index, listening) in listening.iter().enumerate() {
        let (tls, options) = match OPTIONS.get(index) {
            Some(options) => (&*tls, *options),
            None => ("", OPTIONS[4]),
        };
        text += &format!(
            "listen l{index}\n    bind {} {tls}\n    server s 127.0.0.1:{server} {options}\n",
            listening.word()
        );
    }
    text
}

/// Returns lines of a frontend that sends a header to another one, which answers with what the header says.
fn chain(pki: &Pki, front: &Listening, behind: &Listening) -> String {
    format!(
        "listen chain\n    mode http\n    bind {} ssl crt {} alpn http/1.1\n    unique-id-format id-%[req.hdr(host)]\n    \
         server s 127.0.0.1:{} send-proxy-v2 proxy-v2-options authority,unique-id\nfrontend told\n    mode http\n    bind {} \
         accept-proxy\n    http-request return status 200 content-type text/plain lf-string \
         \"%[fc_pp_authority] %[fc_pp_unique_id] %[fc_pp_authority,length]\"\n",
        front.word(),
        pki.path("b.pem").display(),
        behind.port(),
        behind.word(),
    )
}

/// Returns the PROXY header that the server receives for a client's connection, without ports and checksum.
fn header(server: &TcpListener, port: u16, client: Option<&str>) -> Vec<u8> {
    let mut plain = None;
    let mut child = None;
    match client {
        None => {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
            stream.write_all(b"x").expect("writable");
            plain = Some(stream);
        }
        Some(client) => {
            let mut command = s_client(port);
            command.arg("-quiet").args(client.split_whitespace());
            let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut openssl = command.spawn().expect("openssl");
            openssl.stdin.as_mut().expect("a pipe").write_all(b"x\n").expect("writable");
            child = Some(openssl);
        }
    }
    let (mut stream, _) = server.accept().expect("a connection");
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes).expect("a header");
    let length = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    bytes.resize(16 + length, 0);
    stream.read_exact(&mut bytes[16..]).expect("a header");
    drop((stream, plain));
    if let Some(mut child) = child {
        child.wait().expect("openssl ends");
    }
    bytes[24..28].fill(0);
    if bytes[28..].starts_with(&[3, 0, 4]) {
        bytes[31..35].fill(0);
    }
    bytes
}

#[test]
fn servers_are_told_of_tls_as_by_haproxy() {
    let pki = Pki::new();
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("an address").port();
    let [theirs, ours] = [(); 2].map(|()| (0..=OPTIONS.len()).map(|_| Listening::new()).collect::<Vec<_>>());
    let chained = [(); 2].map(|()| [Listening::new(), Listening::new()]);
    let program = |own: &[Listening], chained: &[Listening; 2]| {
        configuration(&pki, own, port) + &chain(&pki, &chained[0], &chained[1])
    };
    let _haproxy =
        Haproxy::start_2_8(&program(&theirs, &chained[0]), &theirs.iter().chain(&chained[0]).collect::<Vec<_>>());
    let _sluicegate = start(&program(&ours, &chained[1]), &ours.iter().chain(&chained[1]).collect::<Vec<_>>());
    for [front, _] in &chained {
        assert_eq!(seen(front.port(), "-servername some.example"), "some.example id-h 12");
        assert_eq!(seen(front.port(), "-noservername"), " id-h ");
    }
    let with = |words: &str, name: &str| {
        let file = pki.path(&format!("{name}.pem")).display().to_string();
        Some(format!("-servername a.example {words} -cert {file} -key {file}"))
    };
    let clients = [
        Some("-noservername".to_owned()),
        Some("-servername a.example -alpn http/1.1 -tls1_2 -sigalgs RSA+SHA256".to_owned()),
        Some("-servername other.example -alpn h2".to_owned()),
        with("-tls1_2", "good"),
        with("-tls1_3", "late"),
        with("-tls1_3", "stranger"),
    ];
    let mut compared = 0;
    for (index, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        let clients = if index < OPTIONS.len() { &clients[..] } else { &[None] };
        for client in clients {
            let [expected, actual] =
                [theirs, ours].map(|listening| header(&server, listening.port(), client.as_deref()));
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            assert_eq!(text(&actual), text(&expected), "{:?} {client:?}", OPTIONS.get(index));
            compared += 1;
        }
    }
    assert_eq!(compared, OPTIONS.len() * clients.len() + 1);
}
