//! An agent (SPOP) that records what it is sent and answers as a test says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};

use sluicegate_testkit::{PATIENCE, lasting_listener};

/// Types of frames.
const HELLO: u8 = 1;
const DISCONNECT: u8 = 2;
const NOTIFY: u8 = 3;
pub(crate) const AGENT_HELLO: u8 = 101;
pub(crate) const AGENT_DISCONNECT: u8 = 102;
pub(crate) const ACK: u8 = 103;

/// Scopes of variables.
pub(crate) const PROCESS: u8 = 0;
pub(crate) const SESSION: u8 = 1;
pub(crate) const TRANSACTION: u8 = 2;
pub(crate) const REQUEST: u8 = 3;
pub(crate) const RESPONSE: u8 = 4;

/// What an agent is sent, with the number of the connection, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Names and values.
    Hello(usize, Vec<(String, String)>),
    Notify(usize, Notify),
    /// Names and values.
    Disconnect(usize, Vec<(String, String)>),
    /// The connection has ended.
    Closed(usize),
}

/// Messages of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    pub(crate) stream: u64,
    pub(crate) frame: u64,
    /// Each with its arguments.
    pub(crate) messages: Vec<(String, Vec<(String, String)>)>,
}

impl Notify {
    /// Returns the names of the messages.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.messages.iter().map(|(name, _)| &**name).collect()
    }

    /// Returns the value of the first argument of this name.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut args = self.messages.iter().flat_map(|(_, args)| args);
        args.find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Returns the answer with these actions.
    pub(crate) fn ack(&self, actions: &[Vec<u8>]) -> Vec<u8> {
        frame(ACK, 1, self.stream, self.frame, &actions.concat())
    }
}

/// What an agent does.
pub(crate) trait Behaviour: Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static {}

impl<F: Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static> Behaviour for F {}

/// An agent; it ends with the test.
pub(crate) struct Agent {
    pub(crate) address: String,
    seen: mpsc::Receiver<Seen>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Agent {
    /// Starts an agent whose answers a function returns; `None` ends the connection.
    pub(crate) fn start(answer: impl Behaviour) -> Agent {
        let listener = lasting_listener();
        let address = listener.local_addr().expect("bound").to_string();
        let (sender, seen) = mpsc::channel();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (answer, kept) = (Arc::new(answer), streams.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                kept.lock().expect("not poisoned").push(stream.try_clone().expect("a handle"));
                let (sender, answer) = (sender.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, number, &sender, &*answer));
            }
        });
        Agent { address, seen, streams }
    }

    /// Starts an agent that answers messages with actions.
    pub(crate) fn with(actions: impl Fn(&Notify) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Agent {
        Agent::start(move |seen: &Seen| Some(polite(seen, &actions)))
    }

    /// Returns the next thing that it is sent.
    #[track_caller]
    pub(crate) fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("something for the agent")
    }

    /// Returns the next messages that it is sent.
    #[track_caller]
    pub(crate) fn notified(&self) -> Notify {
        loop {
            if let Seen::Notify(_, notify) = self.next() {
                return notify;
            }
        }
    }

    /// Returns the next reason why a connection ends.
    #[track_caller]
    pub(crate) fn disconnected(&self) -> Vec<(String, String)> {
        loop {
            if let Seen::Disconnect(_, items) = self.next() {
                return items;
            }
        }
    }

    /// Sends bytes on a connection.
    #[track_caller]
    pub(crate) fn send(&self, connection: usize, bytes: &[u8]) {
        let mut stream = &self.streams.lock().expect("not poisoned")[connection];
        stream.write_all(bytes).expect("writable");
    }
}

/// Returns the answer of an agent that keeps to the protocol.
pub(crate) fn polite(seen: &Seen, actions: &dyn Fn(&Notify) -> Vec<Vec<u8>>) -> Vec<u8> {
    match seen {
        Seen::Hello(..) => hello(16_380, "pipelining"),
        Seen::Notify(_, notify) => notify.ack(&actions(notify)),
        Seen::Disconnect(..) => disconnect(0, "normal"),
        Seen::Closed(_) => Vec::new(),
    }
}

fn serve(mut stream: TcpStream, number: usize, sender: &mpsc::Sender<Seen>, answer: &impl Behaviour) {
    loop {
        let seen = read(&mut stream, number).unwrap_or(Seen::Closed(number));
        let over = matches!(seen, Seen::Closed(_));
        // The test may be over.
        let _ = sender.send(seen.clone());
        let Some(bytes) = answer(&seen).filter(|_| !over) else {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        };
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn read(stream: &mut TcpStream, number: usize) -> Option<Seen> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut bytes).ok()?;
    let (kind, flags) = (bytes[0], u32::from_be_bytes(bytes[1..5].try_into().expect("four bytes")));
    assert_eq!(flags, 1, "a frame is complete");
    let mut rest = &bytes[5..];
    let (id, frame) = (integer(&mut rest), integer(&mut rest));
    Some(match kind {
        HELLO => Seen::Hello(number, items(&mut rest)),
        DISCONNECT => Seen::Disconnect(number, items(&mut rest)),
        NOTIFY => {
            let mut messages = Vec::new();
            while !rest.is_empty() {
                let (name, count) = (string(&mut rest), rest[0]);
                rest = &rest[1..];
                messages.push((name, (0..count).map(|_| item(&mut rest)).collect()));
            }
            Seen::Notify(number, Notify { stream: id, frame, messages })
        }
        kind => panic!("a frame of type {kind}"),
    })
}

fn items(rest: &mut &[u8]) -> Vec<(String, String)> {
    let mut list = Vec::new();
    while !rest.is_empty() {
        list.push(item(rest));
    }
    list
}

fn item(rest: &mut &[u8]) -> (String, String) {
    (string(rest), value(rest))
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(count);
    *rest = left;
    taken
}

fn string(rest: &mut &[u8]) -> String {
    let length = integer(rest) as usize;
    String::from_utf8_lossy(take(rest, length)).into_owned()
}

/// Returns a value with its type.
fn value(rest: &mut &[u8]) -> String {
    let kind = take(rest, 1)[0];
    match kind & 15 {
        0 => "null".to_owned(),
        1 => format!("bool {}", kind >> 4),
        2 => format!("int32 {}", integer(rest) as i32),
        3 => format!("uint32 {}", integer(rest)),
        4 => format!("int64 {}", integer(rest) as i64),
        5 => format!("uint64 {}", integer(rest)),
        6 => format!("ipv4 {:?}", take(rest, 4)),
        7 => format!("ipv6 {:?}", take(rest, 16)),
        8 => format!("str {}", string(rest)),
        9 => format!("bin {}", string(rest)),
        other => panic!("a value of type {other}"),
    }
}

fn integer(rest: &mut &[u8]) -> u64 {
    let mut value = u64::from(take(rest, 1)[0]);
    if value < 240 {
        return value;
    }
    let mut shift = 4;
    loop {
        let byte = u64::from(take(rest, 1)[0]);
        value = value.wrapping_add(byte << shift);
        if byte < 128 {
            return value;
        }
        shift += 7;
    }
}

/// Returns an integer of variable length.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    if value < 240 {
        return vec![value as u8];
    }
    let mut bytes = vec![value as u8 | 240];
    let mut rest = (value - 240) >> 4;
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest = (rest - 128) >> 7;
    }
    bytes.push(rest as u8);
    bytes
}

pub(crate) fn text(text: &[u8]) -> Vec<u8> {
    [varint(text.len() as u64), text.to_vec()].concat()
}

/// Returns typed values.
pub(crate) fn str(value: &[u8]) -> Vec<u8> {
    [vec![8], text(value)].concat()
}

pub(crate) fn bin(value: &[u8]) -> Vec<u8> {
    [vec![9], text(value)].concat()
}

pub(crate) fn number(kind: u8, value: u64) -> Vec<u8> {
    [vec![kind], varint(value)].concat()
}

/// Returns actions.
pub(crate) fn set(scope: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [vec![1, 3, scope], text(name.as_bytes()), value.to_vec()].concat()
}

pub(crate) fn unset(scope: u8, name: &str) -> Vec<u8> {
    [vec![2, 2, scope], text(name.as_bytes())].concat()
}

/// Returns a frame.
pub(crate) fn frame(kind: u8, flags: u32, stream: u64, number: u64, payload: &[u8]) -> Vec<u8> {
    let body = [vec![kind], flags.to_be_bytes().to_vec(), varint(stream), varint(number), payload.to_vec()].concat();
    [(body.len() as u32).to_be_bytes().to_vec(), body].concat()
}

pub(crate) fn hello(max_frame_size: u64, capabilities: &str) -> Vec<u8> {
    hello_of("2.0", max_frame_size, capabilities)
}

pub(crate) fn hello_of(version: &str, max_frame_size: u64, capabilities: &str) -> Vec<u8> {
    let items = [
        text(b"version"),
        str(version.as_bytes()),
        text(b"max-frame-size"),
        number(3, max_frame_size),
        text(b"capabilities"),
        str(capabilities.as_bytes()),
    ];
    frame(AGENT_HELLO, 1, 0, 0, &items.concat())
}

pub(crate) fn disconnect(status: u64, message: &str) -> Vec<u8> {
    let items = [text(b"status-code"), number(3, status), text(b"message"), str(message.as_bytes())];
    frame(AGENT_DISCONNECT, 1, 0, 0, &items.concat())
}
