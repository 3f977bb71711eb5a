//! A scripted server of HTTP/2 whose frames the test supplies, so that their bytes are checked.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sluicegate_testkit::wait_for;

/// A server that answers each request.
pub struct Server {
    pub address: String,
    pub connections: AtomicUsize,
    pub ended: AtomicUsize,
    pub pings: AtomicUsize,
    /// Whether pings are acknowledged.
    pub answers: AtomicBool,
    /// The frames that answer a request, with 0 for its stream.
    answer: Vec<Vec<u8>>,
    /// The payload of the settings that it sends.
    greeting: Vec<u8>,
    /// The received payloads of SETTINGS, and streams and increments of WINDOW_UPDATE.
    pub settings: Mutex<Vec<Vec<u8>>>,
    pub credit: Mutex<Vec<(u32, u32)>>,
}

/// Returns a frame.
pub fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
}

impl Server {
    /// Starts a server that responds with status 200 alone.
    pub fn start() -> Arc<Server> {
        Server::answering(vec![frame(1, 5, &[0x88])])
    }

    /// Starts a server that responds with these frames.
    pub fn answering(answer: Vec<Vec<u8>>) -> Arc<Server> {
        Server::with(answer, &[])
    }

    /// Starts a server with this payload of its settings.
    pub fn greeting(greeting: &[u8]) -> Arc<Server> {
        Server::with(Vec::new(), greeting)
    }

    fn with(answer: Vec<Vec<u8>>, greeting: &[u8]) -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Arc::new(Server {
            address: listener.local_addr().expect("bound").to_string(),
            connections: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            pings: AtomicUsize::new(0),
            answers: AtomicBool::new(true),
            answer,
            greeting: greeting.to_vec(),
            settings: Mutex::default(),
            credit: Mutex::default(),
        });
        let serving = server.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let serving = serving.clone();
                std::thread::spawn(move || {
                    serving.serve(socket);
                    serving.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    fn serve(&self, mut socket: TcpStream) -> Option<()> {
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).ok()?;
        socket.write_all(&frame(4, 0, &self.greeting)).ok()?;
        loop {
            let mut header = [0; 9];
            socket.read_exact(&mut header).ok()?;
            let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
            socket.read_exact(&mut payload).ok()?;
            let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
            match (header[3], header[4]) {
                (1, _) => {
                    for part in &self.answer {
                        // SETTINGS, PING and GOAWAY are of no stream.
                        let stream = if matches!(part[3], 4 | 6 | 7) { &part[5..9] } else { &header[5..] };
                        socket.write_all(&[&part[..5], stream, &part[9..]].concat()).ok()?;
                    }
                }
                (4, 0) => {
                    self.settings.lock().expect("unharmed").push(payload);
                    socket.write_all(&frame(4, 1, b"")).ok()?;
                }
                (6, 0) => {
                    self.pings.fetch_add(1, Ordering::SeqCst);
                    if self.answers.load(Ordering::SeqCst) {
                        socket.write_all(&frame(6, 1, &payload)).ok()?;
                    }
                }
                (8, _) => self.credit.lock().expect("unharmed").push((word(&header[5..]), word(&payload))),
                _ => {}
            }
        }
    }

    /// Waits until a number of this server has this value, or more.
    #[track_caller]
    pub fn wait(&self, what: &str, count: &AtomicUsize, least: usize) {
        wait_for(what, || (count.load(Ordering::SeqCst) >= least).then_some(()));
    }

    /// Waits for credit of a stream.
    #[track_caller]
    pub fn wait_for_credit(&self, stream: u32) -> u32 {
        wait_for("credit", || {
            let credit = self.credit.lock().expect("unharmed");
            credit.iter().find(|(of, _)| *of == stream).map(|(_, increment)| *increment)
        })
    }
}
