//! An HTTP server that gives the responses of an ACME authority that a test wants, and a name server for authorities.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::dns::{address_record, dns_answer, dns_question};

/// The response of a path: status, fields, body.
type Responses = Arc<Mutex<HashMap<String, (u16, String, String)>>>;

pub struct Authority {
    address: String,
    responses: Responses,
    thread: Option<JoinHandle<()>>,
}

impl Authority {
    pub fn start() -> Authority {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let responses = Responses::default();
        let shared = responses.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let Ok(Some(path)) = request(&stream) else { continue };
                if path == "/end" {
                    return;
                }
                let found = shared.lock().expect("not poisoned").get(&path).cloned();
                let (status, fields, body) = found.unwrap_or((404, String::new(), String::new()));
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} x\r\n{fields}content-length: {length}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Authority { address, responses, thread: Some(thread) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn say(&mut self, path: &str, status: u16, fields: &str, body: &str) {
        let response = (status, fields.to_owned(), body.to_owned());
        self.responses.lock().expect("not poisoned").insert(path.to_owned(), response);
    }

    pub fn serve_directory(&mut self) {
        let [nonce, account, order] = ["/nonce", "/account", "/order"].map(|path| self.url(path));
        let body = format!(r#"{{"newNonce":"{nonce}","newAccount":"{account}","newOrder":"{order}"}}"#);
        self.say("/dir", 200, "", &body);
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        if let Ok(mut stream) = std::net::TcpStream::connect(&self.address) {
            let _ = stream.write_all(b"GET /end HTTP/1.1\r\n\r\n");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a request; returns its path.
fn request(stream: &std::net::TcpStream) -> std::io::Result<Option<String>> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut path, mut length) = (String::new(), None, 0);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let text = line.trim_end();
        if text.is_empty() {
            std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
            return Ok(path);
        }
        match text.strip_prefix("content-length: ") {
            Some(number) => length = number.parse().unwrap_or(0),
            None if path.is_none() => path = text.split(' ').nth(1).map(str::to_owned),
            None => {}
        }
    }
}

/// A name server over TCP for which all names are on this machine. It lives as long as the tests.
pub struct Names {
    pub address: String,
}

impl Names {
    pub fn start() -> Names {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || while answer(&stream).is_ok() {});
            }
        });
        Names { address }
    }
}

/// Answers one question.
fn answer(mut stream: &std::net::TcpStream) -> std::io::Result<()> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut question)?;
    let question = dns_question(&question);
    let here = address_record(&question.name, "127.0.0.1");
    let found = if question.kind == here.1 { vec![here] } else { Vec::new() };
    let answer = dns_answer(&question, 0, &found);
    let length = u16::try_from(answer.len()).expect("a short answer").to_be_bytes();
    stream.write_all(&[&length[..], &answer].concat())
}
