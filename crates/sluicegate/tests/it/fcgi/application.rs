//! A FastCGI application, written from the specification.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A request that is complete.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: u16,
    pub(super) keep: bool,
    pub(super) params: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Returns a parameter.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns a whole response with this text and its end.
    pub(super) fn answer(&self, text: impl AsRef<[u8]>) -> Vec<u8> {
        [stdout(self.id, text.as_ref()), end(self.id, 0)].concat()
    }
}

/// Returns a record.
pub(super) fn record(kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a record is short");
    let mut out = vec![1, kind];
    out.extend(id.to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend([padding, 0]);
    out.extend(content);
    out.resize(out.len() + usize::from(padding), 0);
    out
}

/// Returns the records of a part of a response; none for an empty part.
pub(super) fn stdout(id: u16, text: &[u8]) -> Vec<u8> {
    text.chunks(60_000).flat_map(|part| record(6, id, part, (part.len() % 8) as u8)).collect()
}

/// Returns the record of a message.
pub(super) fn stderr(id: u16, text: &[u8]) -> Vec<u8> {
    record(7, id, text, 3)
}

/// Returns the end of a request.
pub(super) fn end(id: u16, status: u8) -> Vec<u8> {
    record(3, id, &[0, 0, 0, 0, status, 0, 0, 0], 0)
}

/// What a connection hears.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    Request(Request),
    Abort(u16),
    /// The names that are asked for.
    Values(Vec<String>),
}

type Handler = dyn Fn(&Heard) -> Vec<u8> + Send + Sync;

pub(super) struct Application {
    pub(super) address: String,
    /// What was heard, with the number of the connection.
    heard: Arc<Mutex<Vec<(usize, Heard)>>>,
    pub(super) connections: Arc<AtomicUsize>,
    /// The number of requests that have begun.
    pub(super) begun: Arc<AtomicUsize>,
}

impl Application {
    /// Starts an application that writes what the handler returns; after an empty answer to a request the connection stays
    /// silent, and after `b"close"` it is closed.
    pub(super) fn with(handler: impl Fn(&Heard) -> Vec<u8> + Send + Sync + 'static) -> Application {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let heard = Arc::<Mutex<Vec<(usize, Heard)>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let begun = Arc::<AtomicUsize>::default();
        let (kept, counted, counted_begun) = (heard.clone(), connections.clone(), begun.clone());
        let handler = Arc::<Handler>::from(Box::new(handler) as Box<Handler>);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let (kept, begun, handler) = (kept.clone(), counted_begun.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, number, (&kept, &begun), &*handler));
            }
        });
        Application { address, heard, connections, begun }
    }

    /// Starts an application that answers requests.
    pub(super) fn answering(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Application {
        Application::with(move |heard| match heard {
            Heard::Request(request) => answer(request),
            _ => Vec::new(),
        })
    }

    /// Returns what was heard so far.
    pub(super) fn heard(&self) -> Vec<(usize, Heard)> {
        self.heard.lock().expect("a lock").clone()
    }
}

fn serve(
    mut stream: TcpStream,
    number: usize,
    (heard, begun): (&Mutex<Vec<(usize, Heard)>>, &AtomicUsize),
    handler: &Handler,
) {
    let mut open: Vec<(Request, Vec<u8>)> = Vec::new();
    loop {
        let mut header = [0; 8];
        if stream.read_exact(&mut header).is_err() {
            return;
        }
        let id = u16::from_be_bytes([header[2], header[3]]);
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut content = vec![0; length + usize::from(header[6])];
        if stream.read_exact(&mut content).is_err() {
            return;
        }
        content.truncate(length);
        let of = |open: &mut Vec<(Request, Vec<u8>)>| open.iter().position(|(request, _)| request.id == id);
        let done = match header[1] {
            1 => {
                assert_eq!(content[..2], [0, 1], "the role of a responder");
                open.push((
                    Request { id, keep: content[2] & 1 == 1, params: Vec::new(), body: Vec::new() },
                    Vec::new(),
                ));
                begun.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            2 => {
                if let Some(place) = of(&mut open) {
                    open.remove(place);
                }
                Heard::Abort(id)
            }
            4 => {
                let place = of(&mut open).expect("it has begun");
                match content.is_empty() {
                    true => open[place].0.params = pairs(&open[place].1),
                    false => open[place].1.extend(content),
                }
                continue;
            }
            5 if content.is_empty() => {
                let place = of(&mut open).expect("it has begun");
                Heard::Request(open.remove(place).0)
            }
            5 => {
                let place = of(&mut open).expect("it has begun");
                open[place].0.body.extend(content);
                continue;
            }
            9 => Heard::Values(pairs(&content).into_iter().map(|(name, _)| name).collect()),
            kind => panic!("a record of type {kind}"),
        };
        let keeps = !matches!(&done, Heard::Request(Request { keep: false, .. }));
        let answer = handler(&done);
        heard.lock().expect("a lock").push((number, done));
        if answer.ends_with(b"close") {
            let _ = stream.write_all(&answer[..answer.len() - 5]);
            return;
        }
        if stream.write_all(&answer).is_err() || !keeps {
            return;
        }
    }
}

fn pairs(mut content: &[u8]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while !content.is_empty() {
        let mut length = || {
            let (first, rest) = content.split_first().expect("a length");
            if first & 0x80 == 0 {
                content = rest;
                return usize::from(*first);
            }
            let (four, rest) = content.split_first_chunk::<4>().expect("a length of four bytes");
            content = rest;
            (u32::from_be_bytes(*four) & 0x7fff_ffff) as usize
        };
        let (name, value) = (length(), length());
        let (pair, rest) = content.split_at(name + value);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        all.push((text(&pair[..name]), text(&pair[name..])));
        content = rest;
    }
    all
}
