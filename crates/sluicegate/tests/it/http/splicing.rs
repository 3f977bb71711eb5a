//! Chunked bodies whose data passes through pipes: what arrives is what was sent, in both directions, whatever the sizes
//! of the chunks, and a body that is cut stays incomplete.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use sluicegate_testkit::{Listening, PATIENCE, Sluicegate, wait_for};

use crate::robust::stat;
use crate::start;

/// The sizes of the chunks of a body and its trailers.
#[derive(Clone, Debug, Default)]
struct Body {
    chunks: Vec<usize>,
    trailers: &'static str,
}

impl Body {
    fn of(chunks: &[usize], trailers: &'static str) -> Body {
        Body { chunks: chunks.to_vec(), trailers }
    }

    /// The data: no two places are alike, so that moved or lost bytes are seen.
    fn data(&self) -> Vec<u8> {
        let len: usize = self.chunks.iter().sum();
        let words = 0..len.div_ceil(4) as u32;
        let mut data: Vec<u8> = words.flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        data.truncate(len);
        data
    }

    fn encoded(&self) -> Vec<u8> {
        let (data, mut at, mut out) = (self.data(), 0, Vec::new());
        for size in &self.chunks {
            out.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            out.extend_from_slice(&data[at..at + size]);
            out.extend_from_slice(b"\r\n");
            at += size;
        }
        out.extend_from_slice(format!("0\r\n{}\r\n", self.trailers).as_bytes());
        out
    }
}

/// A received message.
#[derive(Debug, Default)]
struct Received {
    head: String,
    data: Vec<u8>,
    /// The lines behind the last chunk; `None` if that is missing.
    trailers: Option<String>,
}

/// Reads bytes up to the end of a line, with it.
fn line(stream: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("UTF-8")
}

/// Reads lines up to an empty one, with it.
fn lines(stream: &mut impl Read) -> String {
    let mut all = String::new();
    loop {
        let line = line(stream);
        all.push_str(&line);
        if line.len() <= 2 {
            return all;
        }
    }
}

/// Reads a message with a chunked body, or one that ends with its connection.
fn receive(stream: &mut TcpStream) -> Received {
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    let mut stream = std::io::BufReader::new(stream);
    let mut received = Received { head: lines(&mut stream).to_ascii_lowercase(), ..Received::default() };
    if received.head.starts_with("get ") {
        return received;
    }
    if !received.head.contains("transfer-encoding: chunked\r\n") {
        let ended = stream.read_to_end(&mut received.data);
        received.trailers = ended.ok().map(|_| "\r\n".to_owned());
        return received;
    }
    loop {
        let size = line(&mut stream);
        if size.is_empty() {
            return received;
        }
        let size = usize::from_str_radix(size.trim_end(), 16).unwrap_or_else(|_| panic!("no size: {size:?}"));
        if size == 0 {
            received.trailers = Some(lines(&mut stream));
            return received;
        }
        let start = received.data.len();
        (&mut stream).take(size as u64).read_to_end(&mut received.data).expect("readable");
        if received.data.len() - start < size {
            return received;
        }
        let end = line(&mut stream);
        if end.is_empty() {
            return received;
        }
        assert_eq!(end, "\r\n", "behind a chunk of {size}");
    }
}

const POST: &str = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Writes as much as the peer takes.
fn send(stream: &TcpStream, bytes: Vec<Vec<u8>>) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().expect("a copy");
    std::thread::spawn(move || {
        for bytes in bytes {
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    })
}

struct Gate {
    server: Sluicegate,
    gate: Listening,
    origin: Listening,
}

impl Gate {
    fn start(lines: &str) -> Gate {
        let (gate, origin) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n nbthread 1\n stats socket @DIR@/stats\n{lines}defaults\n mode http\n timeout client 60s\n timeout \
             server 60s\n timeout connect 60s\nlisten gate\n bind {}\n log stdout format raw local0\n log-format \
             \"ends %ts\"\n server o {}\n",
            gate.word(),
            origin.address()
        );
        Gate { server: start(&text, &[&gate]), gate, origin }
    }

    /// The bytes of requests and of responses that passed through pipes.
    fn spliced(&self) -> [u64; 2] {
        let stats = self.server.directory().join("stats");
        let of = |side, way| stat(&stats, "gate", side, &format!("h1_spliced_bytes_{way}"));
        assert_eq!(of("FRONTEND", "in"), of("BACKEND", "out"), "requests");
        assert_eq!(of("FRONTEND", "out"), of("BACKEND", "in"), "responses");
        [of("FRONTEND", "in"), of("FRONTEND", "out")]
    }

    /// Exchanges a request and a response with a connection of their own; returns what arrived of both.
    fn exchange(&self, request: Vec<Vec<u8>>, response: Vec<Vec<u8>>) -> (Received, Received) {
        let mut client = TcpStream::connect(self.gate.address()).expect("connected");
        let sent = send(&client, request);
        let (mut origin, _) = self.origin.listener.accept().expect("accepted");
        let up = receive(&mut origin);
        let answered = send(&origin, response);
        let down = std::thread::spawn(move || receive(&mut client));
        answered.join().expect("sent");
        // A response without a length ends here, and one that is cut.
        let _ = origin.shutdown(Shutdown::Write);
        sent.join().expect("sent");
        (up, down.join().expect("received"))
    }
}

/// Bodies with chunks of all sizes around those of buffers and pipes.
fn bodies() -> Vec<Body> {
    const SIZES: [usize; 16] = [
        1, 3, 1000, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 81_919, 81_920, 81_921, 262_144, 262_145, 500_000,
        1_500_000,
    ];
    let mut bodies: Vec<Body> = SIZES.iter().map(|size| Body::of(&[*size], "")).collect();
    bodies.push(Body::of(&[], "x-last: 1\r\n"));
    bodies.push(Body::of(&SIZES, "x-last: 1\r\nx-more: 2\r\n"));
    bodies.push(Body::of(&[204_800; 5], ""));
    bodies.push(Body::of(&[10_000, 10_000, 50_000, 100_000, 300_000], "x-last: 1\r\n"));
    bodies.push(Body::of(&[7; 5000], "x-last: 1\r\n"));
    // Sizes in an order without a pattern.
    let mut state = 1_u32;
    for _ in 0..4 {
        let sizes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            SIZES[(state >> 24) as usize % (SIZES.len() - 1)]
        });
        bodies.push(Body { chunks: sizes.take(12).collect(), trailers: "x-last: 1\r\n" });
    }
    bodies
}

/// Cuts bytes into pieces that are written one by one.
fn pieces(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    bytes.chunks(size).map(<[u8]>::to_vec).collect()
}

#[test]
fn chunked_bodies_pass_as_they_were_sent() {
    for (lines, splices) in [("", true), (" maxpipes 1\n tune.pipesize 4096\n", true), (" nosplice\n", false)] {
        let gate = Gate::start(lines);
        for (at, body) in bodies().into_iter().enumerate() {
            let other = Body::of(&body.chunks.iter().rev().copied().collect::<Vec<_>>(), body.trailers);
            let size = [usize::MAX, 70_000, 1 << 20][at % 3];
            let request = pieces(&[POST.as_bytes(), &body.encoded()].concat(), size);
            let response = pieces(&[OK.as_bytes(), &other.encoded()].concat(), size);
            let (up, down) = gate.exchange(request, response);
            for (way, received, sent) in [("request", up, &body), ("response", down, &other)] {
                assert_eq!(received.trailers, Some(format!("{}\r\n", sent.trailers)), "{lines}{way} {at}");
                assert!(received.data == sent.data(), "{lines}{way} {at}: {:?}", sent.chunks);
            }
        }
        let spliced = gate.spliced();
        assert!(spliced.iter().all(|bytes| (*bytes > 0) == splices), "{lines}{spliced:?}");
    }
}

#[test]
fn small_chunks_are_copied() {
    let gate = Gate::start("");
    let body = Body::of(&[32_000; 40], "");
    let request = pieces(&[POST.as_bytes(), &body.encoded()].concat(), usize::MAX);
    let response = pieces(&[OK.as_bytes(), &body.encoded()].concat(), usize::MAX);
    let (up, down) = gate.exchange(request, response);
    assert!(up.data == body.data() && down.data == body.data());
    assert_eq!(gate.spliced(), [0, 0]);
}

/// Chunks from 32 KiB on, among smaller ones; `option splice-request` and `option splice-response` change nothing.
#[test]
fn large_chunks_among_small_ones_pass_through_pipes() {
    let gate = Gate::start("");
    let up = Body::of(&[10_000, 10_000, 10_000, 10_000, 10_000, 50_000, 100_000, 300_000], "");
    let down = Body::of(&[204_800; 5], "");
    let request = [POST.as_bytes(), &up.encoded()].concat();
    let response = [OK.as_bytes(), &down.encoded()].concat();
    let (got_up, got_down) = gate.exchange(vec![request], vec![response]);
    assert!(got_up.data == up.data() && got_down.data == down.data());
    assert!(gate.spliced().iter().all(|bytes| *bytes > 0), "{:?}", gate.spliced());
}

/// A client of HTTP/1.0 gets the data without chunks.
#[test]
fn chunks_pass_through_pipes_to_a_client_without_chunks() {
    let gate = Gate::start("");
    let body = Body::of(&[1_000_000, 5, 1_000_000], "x-last: 1\r\n");
    let response = [OK.as_bytes(), &body.encoded()].concat();
    let (_, down) = gate.exchange(vec![b"GET / HTTP/1.0\r\nHost: h\r\n\r\n".to_vec()], vec![response]);
    assert!(!down.head.contains("chunked"), "{}", down.head);
    assert_eq!(down.trailers.as_deref(), Some("\r\n"));
    assert!(down.data == body.data());
    assert!(gate.spliced()[1] > 0);
}

/// A receiver that reads nothing for a while keeps the pipe filled.
#[test]
fn chunks_wait_in_pipes_for_their_receiver() {
    let gate = Gate::start("");
    let stats = gate.server.directory().join("stats");
    let body = Body::of(&[3_000_000; 8], "x-last: 1\r\n");
    let mut client = TcpStream::connect(gate.gate.address()).expect("connected");
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
    let (mut origin, _) = gate.origin.listener.accept().expect("accepted");
    lines(&mut origin);
    let sent = send(&origin, vec![OK.into(), body.encoded()]);
    wait_for("a pipe to be in use", || {
        let info = Sluicegate::stats(&stats, "show info");
        info.lines().any(|line| line == "PipesUsed: 1").then_some(())
    });
    let received = receive(&mut client);
    sent.join().expect("sent");
    assert_eq!(received.trailers.as_deref(), Some("x-last: 1\r\n\r\n"));
    assert!(received.data == body.data());
    // The connections are used again.
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
    lines(&mut origin);
    let small = Body::of(&[3], "");
    origin.write_all(&[OK.as_bytes(), &small.encoded()].concat()).expect("sent");
    assert!(receive(&mut client).data == small.data());
}

#[test]
fn a_body_that_is_cut_stays_incomplete() {
    let mut gate = Gate::start("");
    let body = Body::of(&[400_000, 400_000], "x-last: 1\r\n");
    let encoded = body.encoded();
    // Within the data, between it and its line end, before the next size, and before the last chunk.
    for (at, cut) in [300_000, 400_007, 400_008, 400_009, 600_000, encoded.len() - 20].into_iter().enumerate() {
        let response = [OK.as_bytes(), &encoded[..cut]].concat();
        let (_, down) = gate.exchange(vec![b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()], vec![response]);
        assert_eq!(down.trailers, None, "{at}");
        assert!(body.data().starts_with(&down.data), "{at}");
        // The received part of the data is forwarded.
        let arrived = cut.saturating_sub(16).min(body.data().len());
        assert!(down.data.len() >= arrived - 16, "{at}: {} of {arrived}", down.data.len());
        gate.server.program.wait_for_output("ends SD\n");
    }
    assert!(gate.spliced()[1] > 0);
    // A client that leaves in the middle of its body: what the server gets is not complete.
    let mut client = TcpStream::connect(gate.gate.address()).expect("connected");
    client.write_all(POST.as_bytes()).expect("sent");
    client.write_all(&encoded[..500_000]).expect("sent");
    let (mut origin, _) = gate.origin.listener.accept().expect("accepted");
    client.shutdown(Shutdown::Write).expect("open");
    let up = receive(&mut origin);
    assert_eq!(up.trailers, None);
    assert!(body.data().starts_with(&up.data) && up.data.len() > 400_000);
    assert!(gate.spliced()[0] > 0);
    // A client that does not want its response any more.
    let mut client = TcpStream::connect(gate.gate.address()).expect("connected");
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
    let (mut origin, _) = gate.origin.listener.accept().expect("accepted");
    lines(&mut origin);
    let large = Body::of(&[30_000_000], "");
    let sent = send(&origin, vec![OK.into(), large.encoded()]);
    assert!(line(&mut client).starts_with("HTTP/1.1 200"));
    drop(client);
    sent.join().expect("ended");
    gate.server.program.wait_for_output("ends CD\n");
}

/// A malformed end of a chunk is seen behind data that was not.
#[test]
fn framing_behind_spliced_data_is_checked() {
    let mut gate = Gate::start("");
    let mut encoded = Body::of(&[400_000, 5], "").encoded();
    encoded[7 + 400_000] = b'x';
    let (_, down) =
        gate.exchange(vec![b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()], vec![[OK.as_bytes(), &encoded].concat()]);
    assert_eq!(down.trailers, None);
    gate.server.program.wait_for_output("ends PD\n");
    assert!(gate.spliced()[1] > 0);
}
