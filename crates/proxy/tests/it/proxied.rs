//! The PROXY protocol: the headers that `accept-proxy` and `expect-proxy` accept and that `send-proxy` and
//! `send-proxy-v2` send, and which requests share a connection; compared with Debian's haproxy.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Client, wait_for};
use sluicegate_wire::proxy_protocol::{Addresses, SIGNATURE, Writer, read, tlv};

use crate::pair::{Logged, answering, both, origin, ours, read_head};
use crate::rules::fixture::verdict;

const DEFAULTS: &str = "defaults\n mode http\n log @LOG@ format raw local0\n option httplog\n timeout client 60s\n timeout connect 60s\n \
                        timeout server 60s\n";

/// Rules that print the addresses of the connection before and after its header, and the data of the header.
const SEEN: &str = " tcp-request connection set-var(sess.l4) src\n tcp-request session set-var(sess.l5) src\n http-request return status 200 \
    hdr seen \"%[var(sess.l4)] %[var(sess.l5)] %[src] %[src_port] %[dst] %[dst_port] %ci %cp %fi %fp %[fc_src] %[fc_dst] \
    %[fc_src_is_local] %[fc_dst_is_local] %[fc_rcvd_proxy] <%[fc_pp_authority]> <%[fc_pp_unique_id]>\"\n";

const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

fn v2(tlvs: &[(u8, &[u8])], checksum: bool) -> Vec<u8> {
    let mut writer = Writer::new("192.0.2.1:1000".parse().ok(), "192.0.2.2:2000".parse().ok());
    if checksum {
        writer.checksum();
    }
    tlvs.iter().for_each(|(kind, value)| writer.tlv(*kind, value).expect("room"));
    let mut out = Vec::new();
    writer.finish(&mut out);
    out
}

/// Masks the ephemeral ports, the listener's port, the date and the times in a text.
fn masked(text: &str, client: &Client, address: &str) -> String {
    let local = client.stream().local_addr().expect("connected").port().to_string();
    let port = address.rsplit(':').next().expect("a port").to_owned();
    let text = text.replace(&local, "CLIENT").replace(&port, "BIND");
    let text = match (text.find('['), text.find(']')) {
        (Some(from), Some(to)) if from < to => format!("{}[]{}", &text[..from], &text[to + 1..]),
        _ => text,
    };
    let timers = |word: &&str| word.split('/').count() == 5 && word.split('/').all(|part| part.parse::<i64>().is_ok());
    match text.split(' ').find(timers) {
        Some(word) => {
            let masked: Vec<&str> =
                word.split('/').map(|part| if part.starts_with('-') { part } else { "T" }).collect();
            text.replacen(word, &masked.join("/"), 1)
        }
        None => text,
    }
}

/// Returns the answer to a client that sends these bytes and closes, and the log line.
fn ask(address: &str, logged: Logged<'_>, count: usize, bytes: &[u8]) -> (String, String) {
    let mut client = Client::connect(address);
    client.send(bytes);
    if bytes.is_empty() {
        client.finish();
    }
    let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    let seen = answer.lines().find(|line| line.starts_with("seen")).unwrap_or(&answer).to_owned();
    let line = logged(count).pop().unwrap_or_default();
    (masked(&seen, &client, address), masked(&line, &client, address))
}

#[test]
fn accepted_headers_replace_the_addresses() {
    let text = format!("{DEFAULTS}frontend f\n bind @BIND@ accept-proxy\n{SEEN}");
    let all: Vec<Vec<u8>> = vec![
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::1 2001:db8::2 1000 2000\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        v2(&[], false),
        v2(&[(tlv::AUTHORITY, b"a.test"), (tlv::UNIQUE_ID, b"id-1"), (tlv::NOOP, b"  "), (0xe0, b"x")], true),
        [&SIGNATURE[..], b"\x20\0\0\0"].concat(),
    ];
    let (ours, theirs) = both(&text, |address, logged| {
        let talks = all.iter().enumerate();
        let talks = talks.map(|(done, header)| ask(address, logged, done + 1, &[header, GET].concat()));
        talks.collect::<Vec<_>>()
    });
    assert_eq!(ours, theirs);
    assert!(ours[4].0.contains("192.0.2.1 192.0.2.1 1000 192.0.2.2 2000"), "{ours:?}");
    assert!(ours[4].0.ends_with("127.0.0.1 127.0.0.1 1 1 1 <a.test> <id-1>"), "{ours:?}");
}

#[test]
fn what_is_no_header_is_closed_and_logged() {
    let text = format!("{DEFAULTS}frontend f\n bind @BIND@ name gate accept-proxy\n{SEEN}");
    let unspecified = [&SIGNATURE[..], b"\x21\0\0\0", GET].concat();
    let all: &[&[u8]] = &[GET, b"PROXY UDP4 192.0.2.1 192.0.2.2 1000 2000\r\n", &unspecified, b""];
    let (ours_said, theirs) = both(&text, |address, logged| {
        let talks = all.iter().enumerate();
        talks.map(|(done, bytes)| ask(address, logged, done + 1, bytes)).collect::<Vec<_>>()
    });
    assert_eq!(ours_said, theirs);
    assert!(ours_said[0].1.ends_with("f/gate: Received something which does not look like a PROXY protocol header"));

    // HAProxy reads the first as 192.0.2.0, and logs for the second the address of the invalid header.
    let stricter: &[&[u8]] =
        &[b"PROXY TCP4 192.0.2 192.0.2.2 1000 2000\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0b12345678901"];
    ours(&text, |address, logged| {
        for (done, bytes) in stricter.iter().enumerate() {
            let (answer, line) = ask(address, logged, done + 1, bytes);
            assert_eq!(answer, "");
            assert_eq!(line, "127.0.0.1:CLIENT [] f/gate: Received an invalid PROXY protocol header");
        }
    });
}

#[test]
fn a_header_in_pieces_is_waited_for() {
    let text = format!("{DEFAULTS}frontend f\n bind @BIND@ accept-proxy\n{SEEN}");
    ours(&text, |address, logged| {
        let mut client = Client::connect(address);
        for byte in b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n" {
            client.send([*byte]);
        }
        client.send(GET);
        assert!(String::from_utf8_lossy(&client.read_to_end()).contains("seen: 127.0.0.1 192.0.2.1"));
        logged(1);
        let mut client = Client::connect(address);
        client.send("PROXY TCP4 192");
        client.finish();
        assert_eq!(client.read_to_end(), b"");
        assert!(logged(2)[1].ends_with("f/1: Truncated PROXY protocol header received"));
    });
}

#[test]
fn lines_of_refused_connections_follow_the_options() {
    let format = "error-log-format \"%ci %ft %[fc_err] %[fc_err_str] %ST %ts %B %[fc_rcvd_proxy] %{+Q}r\"";
    let text = format!("{DEFAULTS}frontend f\n {format}\n option dontlognull\n bind @BIND@ accept-proxy\n{SEEN}");
    let (ours, theirs) = both(&text, |address, logged| {
        // A connection without data is not logged.
        let mut silent = Client::connect(address);
        silent.finish();
        silent.read_to_end();
        ask(address, logged, 1, GET)
    });
    assert_eq!(ours, theirs);
    let line =
        "127.0.0.1 f 15 Received something which does not look like a PROXY protocol header 0 PR 0 - \"<BADREQ>\"";
    assert_eq!(ours.1, line);
}

#[test]
fn a_late_header_ends_the_connection() {
    for timeout in ["timeout client 200ms", "timeout client-hs 200ms"] {
        let text = format!("{DEFAULTS}frontend f\n {timeout}\n bind @BIND@ accept-proxy\n{SEEN}");
        let late = |address: &str, logged: Logged<'_>| {
            let mut client = Client::connect(address);
            assert_eq!(client.read_to_end(), b"");
            masked(&logged(1)[0], &client, address)
        };
        let line = "127.0.0.1:CLIENT [] f/1: Timeout while waiting for PROXY protocol header";
        // 2.6 has no 'timeout client-hs'.
        if timeout.contains("client-hs") {
            assert_eq!(ours(&text, late), line);
        } else {
            assert_eq!(both(&text, late), (line.to_owned(), line.to_owned()));
        }
    }
}

#[test]
fn rules_may_expect_a_header() {
    for (condition, expected) in [("127.0.0.0/8", true), ("192.0.2.0/24", false)] {
        let rule = format!(" tcp-request connection expect-proxy layer4 if {{ src {condition} }}\n");
        let text = format!("{DEFAULTS}frontend f\n bind @BIND@\n{rule}{SEEN}");
        let header: &[u8] = if expected { b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n" } else { b"" };
        let (ours, theirs) = both(&text, |address, logged| ask(address, logged, 1, &[header, GET].concat()));
        assert_eq!(ours, theirs);
        assert_eq!(ours.0.contains("192.0.2.1"), expected, "{ours:?}");
    }
}

/// Returns the first data that an origin receives: the header of either version as text, and the head after it.
fn first_bytes(bytes: &[u8], client: u16) -> String {
    let Ok(Some(header)) = read(bytes, 16_384) else { return String::from_utf8_lossy(bytes).to_lowercase() };
    let version = if bytes.starts_with(b"PROXY") { 1 } else { 2 };
    let tlvs = header.tlvs.iter().map(|(kind, value)| match kind {
        // Verified before; the bytes depend on the ports.
        tlv::CRC32C => " sum".to_owned(),
        kind => format!(" {kind:02x}={}", String::from_utf8_lossy(value)),
    });
    let tlvs: String = tlvs.collect();
    let from = match header.addresses {
        Addresses::Own => "nobody".to_owned(),
        Addresses::Inet { source, destination } => {
            format!("{}{} {}", source.ip(), if source.port() == client { ":CLIENT" } else { "" }, destination.ip())
        }
    };
    format!("v{version} {from}{tlvs} | {}", String::from_utf8_lossy(&bytes[header.len..]).to_lowercase())
}

/// Starts an origin that answers with the data that it received.
fn echo() -> std::net::SocketAddr {
    answering(|head| {
        let body: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal")).collect()
}

fn sent(client: &mut Client) -> String {
    let own = client.stream().local_addr().expect("connected").port();
    first_bytes(&unhex(&client.get("/").text()), own)
}

#[test]
fn servers_are_sent_headers() {
    let back = echo();
    let v1 = "v1 127.0.0.1:CLIENT 127.0.0.1 | get";
    for (options, expected) in [
        ("", "get"),
        ("send-proxy", v1),
        ("send-proxy-v2", "v2 127.0.0.1:CLIENT 127.0.0.1 | get"),
        ("send-proxy send-proxy-v2", "v2 127.0.0.1:CLIENT 127.0.0.1 | get"),
        ("send-proxy-v2 no-send-proxy-v2", "get"),
        ("send-proxy no-send-proxy", "get"),
        ("send-proxy-v2 proxy-v2-options crc32c", "v2 127.0.0.1:CLIENT 127.0.0.1 sum | get"),
        ("send-proxy-v2 proxy-v2-options unique-id", "v2 127.0.0.1:CLIENT 127.0.0.1 05=id-127.0.0.1 | get"),
        (
            "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority",
            "v2 127.0.0.1:CLIENT 127.0.0.1 sum 05=id-127.0.0.1 | get",
        ),
    ] {
        let text = format!("{DEFAULTS}listen f\n bind @BIND@\n unique-id-format id-%ci\n server s {back} {options}\n");
        let (ours, theirs) = both(&text, |address, _| sent(&mut Client::connect(address)));
        assert_eq!(ours, theirs, "{options}");
        assert!(ours.starts_with(expected), "{options}: {ours}");
    }
    // Not in 2.6.
    let options =
        "send-proxy-v2 set-proxy-v2-tlv-fmt(0xE1) %[src]-%[path] set-proxy-v2-tlv-fmt(5) x proxy-v2-options crc32c";
    let text = format!("{DEFAULTS}listen f\n bind @BIND@\n server s {back} {options}\n");
    let said = ours(&text, |address, _| sent(&mut Client::connect(address)));
    assert!(said.starts_with("v2 127.0.0.1:CLIENT 127.0.0.1 e1=127.0.0.1-/ 05=x sum | get"), "{said}");
    // A TLV without a value is empty.
    let options = "send-proxy-v2 set-proxy-v2-tlv-fmt(0xE1)";
    let text = format!("{DEFAULTS}listen f\n bind @BIND@\n server s {back} {options}\n");
    let said = ours(&text, |address, _| sent(&mut Client::connect(address)));
    assert!(said.starts_with("v2 127.0.0.1:CLIENT 127.0.0.1 e1= | get"), "{said}");
}

#[test]
fn a_header_is_passed_on() {
    let back = echo();
    let options = "send-proxy-v2 proxy-v2-options authority";
    let text = format!("{DEFAULTS}listen f\n bind @BIND@ accept-proxy\n server s {back} {options}\n");
    let (ours_said, theirs) = both(&text, |address, _| {
        let mut client = Client::connect(address);
        client.send(v2(&[(tlv::AUTHORITY, b"a.test")], false));
        sent(&mut client)
    });
    assert_eq!(ours_said, theirs);
    assert!(ours_said.starts_with("v2 192.0.2.1 192.0.2.2 02=a.test |"), "{ours_said}");
    // A format can pass on any TLV.
    let options = "send-proxy-v2 set-proxy-v2-tlv-fmt(0xE0) %[fc_pp_tlv(0xE0)]-%[fc_pp_tlv(AUTHORITY)] \
                   set-proxy-v2-tlv-fmt(0342) %[fc_pp_tlv(ssl),hex]/%[fc_pp_tlv(Ssl_Cn)]/%[fc_pp_tlv(041)]";
    let text = format!("{DEFAULTS}listen f\n bind @BIND@ accept-proxy\n server s {back} {options}\n");
    let said = ours(&text, |address, _| {
        let mut client = Client::connect(address);
        client.send(v2(
            &[
                (tlv::AUTHORITY, b"a.test"),
                (0xe0, b"one"),
                (0xe0, b"two"),
                // The client's TLS; HAProxy does not find the types within it.
                (tlv::SSL, b"\x05\0\0\0\0\x21\0\x07TLSv1.3\x22\0\x01a"),
                (tlv::SSL_VERSION, b"TLSv1.2"),
            ],
            false,
        ));
        sent(&mut client)
    });
    assert!(said.contains(" e0=onetwo-a.test "), "{said}");
    assert!(said.contains(" e2=0500000000210007544C5376312E3322000161/a/TLSv1.3TLSv1.2 |"), "{said}");
}

#[test]
fn tcp_servers_are_sent_headers() {
    let back = origin(|mut stream| {
        let mut bytes = [0; 1024];
        let mut all = Vec::new();
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            all.extend_from_slice(&bytes[..count]);
        }
        let _ = std::io::Write::write_all(&mut stream, &all);
    });
    let text = format!("{DEFAULTS}listen f\n mode tcp\n option tcplog\n bind @BIND@\n server s {back} send-proxy\n");
    let (ours, theirs) = both(&text, |address, _| {
        let mut client = Client::connect(address);
        client.send("hello");
        client.finish();
        let own = client.stream().local_addr().expect("connected").port();
        first_bytes(&client.read_to_end(), own)
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours, "v1 127.0.0.1:CLIENT 127.0.0.1 | hello");
}

/// The second request of a client uses the client's own connection, without a header; another client's does not.
#[test]
fn connections_are_shared_only_under_the_same_header() {
    let back = echo();
    let text =
        format!("{DEFAULTS}listen f\n http-reuse always\n bind @BIND@\n server s {back} send-proxy pool-low-conn 9\n");
    // HAProxy keeps two idle connections only after two simultaneous requests.
    let said = ours(&text, |address, _| {
        let (mut one, mut other) = (Client::connect(address), Client::connect(address));
        [sent(&mut one), sent(&mut one), sent(&mut other), sent(&mut other), sent(&mut one)]
    });
    let began: Vec<bool> = said.iter().map(|said| said.starts_with("v1 127.0.0.1:CLIENT")).collect();
    assert_eq!(began, [true, false, true, false, false]);
    // Connections whose headers name the same client share a connection to the server.
    let text =
        format!("{DEFAULTS}listen f\n http-reuse always\n bind @BIND@ accept-proxy\n server s {back} send-proxy\n");
    let (ours_said, theirs) = both(&text, |address, logged| {
        let mut began = Vec::new();
        for source in ["192.0.2.1", "192.0.2.1", "192.0.2.9", "192.0.2.1"] {
            let mut client = Client::connect(address);
            client.send(format!("PROXY TCP4 {source} 192.0.2.2 1000 2000\r\n"));
            began.push(sent(&mut client).starts_with("v1 "));
            logged(began.len());
        }
        began
    });
    assert_eq!(ours_said, theirs);
    assert_eq!(ours_said, [true, false, true, false]);
}

/// NTLM and Negotiate authenticate a connection, which stays with the client whose request has met it, on its server.
#[test]
fn connections_that_servers_authenticate_are_not_shared() {
    let cases = [
        ("401 A\r\nWWW-Authenticate: NTLM", true),
        ("401 A\r\nWWW-Authenticate: Basic realm=\"a\"\r\nwww-authenticate: x, negotiate", true),
        ("407 A\r\nProxy-Authenticate: Nego2 YQ==", true),
        ("401 A\r\nWWW-Authenticate: Basic realm=\"a, NTLM\"", false),
        ("401 A\r\nProxy-Authenticate: NTLM", false),
        ("200 A\r\nWWW-Authenticate: NTLM", false),
    ];
    for (challenge, is_reserved) in cases {
        let (opened, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, gone) = (opened.clone(), ended.clone());
        let back = origin(move |mut stream| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            while let Some(head) = read_head(&mut stream) {
                let status = if head.starts_with(b"GET /login") { challenge } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nX-Number: {number}\r\n\r\n");
                if stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
            gone.fetch_add(1, Ordering::SeqCst);
        });
        let text = format!(
            "{DEFAULTS}listen f\n http-reuse always\n bind @BIND@\n http-response set-header x-server %s\n server s {back} \
             pool-low-conn 9\n server t {back} pool-low-conn 9\n"
        );
        let (ours, theirs) = both(&text, |address, _| {
            let first = opened.load(Ordering::SeqCst);
            let before = ended.load(Ordering::SeqCst);
            let (mut one, mut other) = (Client::connect(address), Client::connect(address));
            let mut seen = Vec::new();
            let mut ask = |client: &mut Client, path: &str| {
                let answer = client.get(path);
                let number: usize = answer.header("x-number").and_then(|text| text.parse().ok()).expect("a number");
                seen.push(format!("{}{}", answer.header("x-server").expect("a server"), number - first));
            };
            ask(&mut one, "/login");
            for _ in 0..2 {
                ask(&mut other, "/");
                ask(&mut other, "/");
                ask(&mut one, "/");
            }
            drop(one);
            if is_reserved {
                wait_for("the end of its connection", || (ended.load(Ordering::SeqCst) > before).then_some(()));
            }
            seen.join(" ")
        });
        assert_eq!(ours, theirs, "{challenge}");
        let expected = if is_reserved { "s0 t1 s2 s0 t1 s2 s0" } else { "s0 t1 s0 t1 s0 t1 s0" };
        assert_eq!(ours, expected, "{challenge}");
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (lines, expected) in [
        ("tcp-request connection expect-proxy layer5", "'expect-proxy' expects 'layer4'"),
        ("server s :1 proxy-v2-options crc", "'crc' : proxy v2 option not implemented"),
        ("server s :1 set-proxy-v2-tlv-fmt(256) x", "does not name a type of TLV"),
        ("server s :1 set-proxy-v2-tlv-fmt x", "does not name a type of TLV"),
        ("http-request return status 200 hdr a %[fc_pp_tlv(nonsense)]", "Could not convert type 'nonsense'"),
    ] {
        let text = format!("defaults\n mode http\n timeout client 60s\nlisten f\n {lines}\n");
        let said = verdict(&text).expect_err(lines);
        assert!(said.contains(expected), "{lines}: {said}");
    }
}
