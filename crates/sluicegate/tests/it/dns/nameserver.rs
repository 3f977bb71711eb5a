//! A small name server over UDP whose answers a test writes: records by name, or any bytes at all.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A received question.
#[derive(Clone, Debug)]
pub struct Question {
    pub name: String,
    pub kind: u16,
    /// The bytes of the message up to the end of the question.
    pub bytes: Vec<u8>,
}

pub const A: u16 = 1;
pub const CNAME: u16 = 5;
pub const AAAA: u16 = 28;
pub const SRV: u16 = 33;

pub const NX: u16 = 3;
pub const REFUSED: u16 = 5;

/// A record: its owner, type and data.
pub type Record = (String, u16, Vec<u8>);

type Answers = Box<dyn FnMut(&Question) -> Vec<Vec<u8>> + Send>;

pub struct Nameserver {
    pub address: String,
    answers: Arc<Mutex<Answers>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Nameserver {
    /// Starts a name server, which does not answer until answers are set.
    pub fn start() -> Nameserver {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let answers: Arc<Mutex<Answers>> = Arc::new(Mutex::new(Box::new(|_| Vec::new())));
        let ended = Arc::new(AtomicBool::new(false));
        let address = socket.local_addr().expect("bound").to_string();
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("settable");
        let (shared, end) = (answers.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let question = read(&buffer[..length]);
                for answer in (shared.lock().expect("not poisoned"))(&question) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Nameserver { address, answers, ended, thread: Some(thread) }
    }

    /// Sets the function that returns the answers from now on.
    pub fn say(&self, answers: impl FnMut(&Question) -> Vec<Vec<u8>> + Send + 'static) {
        *self.answers.lock().expect("not poisoned") = Box::new(answers);
    }

    /// Answers with these records; no others exist.
    pub fn know(&self, records: Vec<Record>) {
        let mut zone: HashMap<(String, u16), Vec<Record>> = HashMap::new();
        for record in records {
            zone.entry((record.0.clone(), record.1)).or_default().push(record);
        }
        self.say(move |question| {
            let found = zone.get(&(question.name.clone(), question.kind)).cloned().unwrap_or_default();
            let known = zone.keys().any(|(name, _)| *name == question.name);
            vec![answer(question, if known { 0 } else { NX }, &found)]
        });
    }

    /// Answers every question with an error.
    pub fn refuse(&self, code: u16) {
        self.say(move |question| vec![answer(question, code, &[])]);
    }
}

impl Drop for Nameserver {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn read(bytes: &[u8]) -> Question {
    let (mut at, mut labels) = (12, Vec::new());
    while bytes[at] != 0 {
        let length = usize::from(bytes[at]);
        labels.push(String::from_utf8_lossy(&bytes[at + 1..at + 1 + length]).into_owned());
        at += 1 + length;
    }
    let kind = u16::from_be_bytes([bytes[at + 1], bytes[at + 2]]);
    Question { name: labels.join("."), kind, bytes: bytes[..at + 5].to_vec() }
}

/// Returns a name in wire format.
pub fn wire(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// Returns an answer with a code and records.
pub fn answer(question: &Question, code: u16, records: &[Record]) -> Vec<u8> {
    answer_with(question, 0x8180 | code, records, &[])
}

/// Returns an answer with flags, records and additional records.
pub fn answer_with(question: &Question, flags: u16, records: &[Record], additional: &[Record]) -> Vec<u8> {
    let mut bytes = question.bytes.clone();
    bytes[2..4].copy_from_slice(&flags.to_be_bytes());
    bytes[4..6].copy_from_slice(&1u16.to_be_bytes());
    bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    bytes[8..10].copy_from_slice(&[0, 0]);
    bytes[10..12].copy_from_slice(&(additional.len() as u16).to_be_bytes());
    for (name, kind, data) in records.iter().chain(additional) {
        bytes.extend(wire(name));
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
        bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

/// Returns an address record.
pub fn address(name: &str, ip: &str) -> Record {
    match ip.parse().expect("an address") {
        IpAddr::V4(ip) => (name.to_owned(), A, ip.octets().to_vec()),
        IpAddr::V6(ip) => (name.to_owned(), AAAA, ip.octets().to_vec()),
    }
}

/// Returns a service record.
pub fn service(name: &str, weight: u16, port: u16, target: &str) -> Record {
    let numbers = [1u16, weight, port];
    let mut data: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    data.extend(wire(target));
    (name.to_owned(), SRV, data)
}
