//! What peers that are no peers get to hear, compared with haproxy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use sluicegate_testkit::{Listening, PATIENCE, wait_for};

use super::{Cluster, Haproxy28, Kind, Node, Ours};

const SECTIONS: &str = "peers mates\n@MATES@ table t type string len 8 size 10 store gpc0\nfrontend f\n bind @GATE@\n";

/// Sends bytes to a node's address for peers; returns all that it answers until it closes the connection, without signs of
/// life.
fn answer(port: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut stream = wait_for("the address", || TcpStream::connect(("127.0.0.1", port)).ok());
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    for part in parts {
        // It may have closed the connection already.
        let _ = stream.write_all(part);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

const HELLO: &[u8] = b"HAProxyS 2.1\na\nb 7 1\n";

/// Returns the last bytes of what a node answers to bytes after a handshake.
fn end_of(port: u16, bytes: &[u8]) -> Vec<u8> {
    let answer = answer(port, &[HELLO, bytes]);
    assert!(answer.starts_with(b"200\n"), "{answer:x?}");
    answer[answer.len() - 2..].to_vec()
}

#[test]
fn what_is_no_peer_is_refused_as_haproxy_refuses_it() {
    let each = |kind: Kind| {
        let cluster = Cluster::new(&["a", "b"], SECTIONS);
        let node = cluster.start(kind, "a");
        let port = cluster.ports["a"];
        let refused: Vec<_> = [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"HAProxyS 3.0\na\nb 7 1\n",
            b"HAProxyS 2.9\na\nb 7 1\n",
            b"HAProxyS 2\na\nb 7 1\n",
            b"HAProxyS 2.1\nc\nb 7 1\n",
            b"HAProxyS 2.1\na\nc 7 1\n",
            b"HAProxyS 2.1\na\nb\n",
        ]
        .iter()
        .map(|hello| String::from_utf8_lossy(&answer(port, &[hello])).into_owned())
        .collect();
        let define = b"\x0a\x82\x0d\x01\x02/t\x06\x09\x04\x00";
        let ends: Vec<_> = [
            // The reserved class.
            &b"\xff\x00"[..],
            // A message that is larger than a buffer.
            b"\x0a\x80\xf0\xff\xff\xff\x01",
            // A length that never ends.
            b"\x0a\x80\xff\xff\xff\xff\xff\xff",
            // A definition without a name, one that is cut, an acknowledgement without a number.
            b"\x0a\x82\x02\x01\x00",
            b"\x0a\x82\x03\x01\x09t",
            b"\x0a\x84\x01\x01",
        ]
        .iter()
        .map(|bytes| end_of(port, bytes))
        .collect();
        // An update that is cut within its key, and within its values.
        let mut define = define.to_vec();
        define[2] = define.len() as u8 - 3;
        let cut = [&b"\x0a\x80\x05\x00\x00\x00\x01\x09"[..], b"\x0a\x80\x06\x00\x00\x00\x01\x01x"]
            .map(|update| end_of(port, &[&define[..], update].concat()));
        drop(node);
        (refused, ends, cut)
    };
    let (ours, theirs) = (each(Ours), each(Haproxy28));
    assert_eq!(ours, theirs);
    assert_eq!(ours.0, ["501\n", "502\n", "502\n", "502\n", "503\n", "504\n", "501\n"]);
    assert_eq!(ours.1[0], [1, 0]);
    assert_eq!(ours.1[1], [1, 1]);
}

/// What is not known is skipped, and what follows is read.
#[test]
fn unknown_messages_are_skipped() {
    for kind in [Ours, Haproxy28] {
        let cluster = Cluster::new(&["a", "b"], SECTIONS);
        let node = cluster.start(kind, "a");
        let mut stream = wait_for("the address", || TcpStream::connect(("127.0.0.1", cluster.ports["a"])).ok());
        stream.write_all(HELLO).expect("written");
        // Classes and types of other programs, the definition of another table with an update, bytes behind a definition.
        let mut bytes = b"\x2a\x07\x2a\x80\x02xx\x00\x63\x0a\xc0\x01x".to_vec();
        let name = |name: &[u8], number: u8| {
            let mut body = vec![number, name.len() as u8];
            body.extend_from_slice(name);
            body.extend_from_slice(&[6, 9, 4, 0]);
            let mut message = vec![10, 0x82, body.len() as u8];
            message.extend(body);
            message
        };
        bytes.extend(name(b"/u", 1));
        bytes.extend(b"\x0a\x80\x07\x00\x00\x00\x05\x01x\x09");
        bytes.extend(name(b"/t", 2));
        bytes.extend(b"\x0a\x80\x07\x00\x00\x00\x06\x01y\x07\x0a\x81\x03\x01z\x08");
        stream.write_all(&bytes).expect("written");
        node.wait_for_entry("mates/t", "y", "gpc0=7");
        node.wait_for_entry("mates/t", "z", "gpc0=8");
        assert_eq!(node.entries("mates/t").len(), 2, "{kind:?}");
        // The last number is acknowledged with this side's number of the table.
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        let mut seen = Vec::new();
        wait_for("an acknowledgement", || {
            let mut buffer = [0; 512];
            let count = stream.read(&mut buffer).expect("more");
            seen.extend_from_slice(&buffer[..count]);
            seen.windows(8).any(|part| part == b"\x0a\x84\x05\x02\x00\x00\x00\x07").then_some(())
        });
    }
}

/// A peer that says nothing is sent signs of life, and is given up.
#[test]
fn a_silent_peer_is_given_up() {
    let cluster = Cluster::new(&["a", "b"], SECTIONS);
    let node = cluster.start(Ours, "a");
    let answer = answer(cluster.ports["a"], &[HELLO]);
    // The status, a request for all entries, and signs of life.
    assert!(answer.starts_with(b"200\n\x00\x00"), "{answer:x?}");
    let signs = answer[6..].chunks(2).collect::<Vec<_>>();
    assert!(!signs.is_empty() && signs.iter().all(|sign| *sign == [0, 4]), "{answer:x?}");
    assert!(node.peer("b").contains("no_hbt=1"), "{}", node.peer("b"));
}

/// The latest connection of a peer is the one that is used.
#[test]
fn a_second_connection_of_a_peer_ends_the_first() {
    let cluster = Cluster::new(&["a", "b"], SECTIONS);
    let node = cluster.start(Ours, "a");
    let connect = || {
        let mut stream = wait_for("the address", || TcpStream::connect(("127.0.0.1", cluster.ports["a"])).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.write_all(HELLO).expect("written");
        let mut status = [0; 4];
        stream.read_exact(&mut status).expect("a status");
        assert_eq!(&status, b"200\n");
        stream
    };
    let mut first = connect();
    let mut second = connect();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).expect("the end of the first");
    node.set("mates/t", "x", "data.gpc0 1");
    let mut seen = Vec::new();
    // Nothing is pushed to a peer that is being learned from, so the end of that is said first.
    second.write_all(b"\x00\x02").expect("written");
    wait_for("the change", || {
        let mut buffer = [0; 512];
        let count = second.read(&mut buffer).expect("more");
        seen.extend_from_slice(&buffer[..count]);
        seen.windows(3).any(|part| part == b"\x01x\x01").then_some(())
    });
}

/// An old version is spoken to in its own.
#[test]
fn a_peer_of_version_2_0_is_sent_no_times() {
    let cluster = Cluster::new(&["a", "b"], SECTIONS);
    let listener = std::net::TcpListener::bind(("127.0.0.1", cluster.ports["b"])).expect("the port");
    let node = cluster.start(Ours, "a");
    node.set("mates/t", "x", "data.gpc0 1");
    let accept = |status: &[u8]| {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        let mut hello = Vec::new();
        while hello.iter().filter(|byte| **byte == b'\n').count() < 3 {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a handshake");
            hello.push(byte[0]);
        }
        stream.write_all(status).expect("written");
        (String::from_utf8(hello).expect("text"), stream)
    };
    let (hello, _) = accept(b"502\n");
    assert!(hello.starts_with("HAProxyS 2.1\nb\na "), "{hello}");
    let (hello, mut stream) = accept(b"200\n\x00\x02\x00\x00");
    assert!(hello.starts_with("HAProxyS 2.0\nb\na "), "{hello}");
    let mut seen = Vec::new();
    wait_for("all entries", || {
        let mut buffer = [0; 512];
        let count = stream.read(&mut buffer).expect("more");
        seen.extend_from_slice(&buffer[..count]);
        // The end of all entries, from a node that is up to date or not.
        seen.windows(2).any(|part| part == [0, 1] || part == [0, 2]).then_some(())
    });
    // A number, the key, the counter; no time.
    assert!(seen.windows(3).any(|part| part == [10, 0x80, 7]), "{seen:x?}");
    assert!(!seen.windows(2).any(|part| part == [10, 0x85]), "{seen:x?}");
}

/// Returns a node, and its connection to a peer with these options.
fn connection(kind: Kind, options: &str) -> (Node, TcpStream) {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut cluster = Cluster::new(&["a"], "");
    let (own, port) = (cluster.ports["a"], other.local_addr().expect("bound").port());
    cluster.sections = format!(
        "peers mates\n bind 127.0.0.1:{own}\n server a\n server other 127.0.0.1:{port} {options}\n table t type ip size 10 \
         store gpc0\nfrontend f\n bind @GATE@\n"
    );
    let node = cluster.start_with(kind, "a", Listening::new(), " set-var proc.n str(of-proc)\n", &[]);
    let (stream, _) = other.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    (node, stream)
}

/// Returns the next bytes of a connection, as many as `length` says of the first ones.
fn framed(stream: &mut TcpStream, first: usize, length: fn(&[u8]) -> usize) -> Vec<u8> {
    let mut bytes = vec![0; first];
    stream.read_exact(&mut bytes).expect("a header");
    bytes.resize(first + length(&bytes), 0);
    stream.read_exact(&mut bytes[first..]).expect("what follows");
    bytes
}

/// The parts of a header of version 2 that no client's connection has: an ID, which is empty, a checksum, no TLS, and TLVs
/// that are formats. 3.2.0 sends these bytes; 2.8 sends peers no header.
#[test]
fn headers_of_peers_have_all_their_parts() {
    let formats = "set-proxy-v2-tlv-fmt(0xE1) %[str(ab)]%[var(proc.n)]%[src]%ft%b%s set-proxy-v2-tlv-fmt(0xE2)";
    let options = format!("send-proxy-v2 proxy-v2-options unique-id,authority,ssl,crc32c {formats}");
    let (_node, mut stream) = connection(Ours, &options);
    let mut bytes = framed(&mut stream, 16, |head| usize::from(u16::from_be_bytes([head[14], head[15]])));
    let checksum = bytes.windows(3).position(|part| part == b"\x03\x00\x04").expect("a checksum") + 3;
    assert!(bytes[checksum..][..4].iter().any(|byte| *byte != 0), "{bytes:x?}");
    bytes.drain(checksum..checksum + 4);
    let parts: [&[u8]; 6] = [
        b"\x20\x00\x00\x28",
        b"\xe1\x00\x10abof-procaaother",
        b"\xe2\x00\x00",
        b"\x03\x00\x04",
        b"\x05\x00\x00",
        b"\x20\x00\x05\x00\x00\x00\x00\x00",
    ];
    assert_eq!(bytes[12..], parts.concat(), "{bytes:x?}");
}

/// `sni` names the peer in the hello; there is no client whose data it could use.
#[test]
fn hellos_to_peers_have_a_name() {
    for (expression, name, is_sent) in [
        ("str(here.example)", &b"here.example"[..], true),
        ("var(proc.n)", b"of-proc", true),
        ("src,concat(x)", b"x", false),
    ] {
        for kind in [Ours, Haproxy28] {
            let (_node, mut stream) = connection(kind, &format!("ssl verify none sni {expression}"));
            let hello = framed(&mut stream, 5, |head| usize::from(u16::from_be_bytes([head[3], head[4]])));
            // The type of the extension, its length, that of the list, the type of the name and its length.
            let length = name.len() as u8;
            let extension = [&[0, 0, 0, length + 5, 0, length + 3, 0, 0, length], name].concat();
            let has = hello.windows(extension.len()).any(|part| part == extension);
            assert_eq!(has, is_sent, "{kind:?} {expression}: {hello:x?}");
        }
    }
}
