//! A few commands asked of a server before a run, one after the other: the nodes of a cluster, settings.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustls::StreamOwned;
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use super::redis::Login;
use super::target::{Family, Server};
use super::tls::{Connector, ThreadConnector};

/// The maximum size of all answers.
const MAX_ANSWER: usize = 4 << 20;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why there is no answer.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    /// No connection.
    Connect(String),
    /// The login was refused.
    Login(String),
    /// The connection ended, or what came is no answer.
    Answer(String),
}

/// A server and how a connection to it is made.
pub(super) struct Asked<'a> {
    pub(super) server: &'a Server,
    pub(super) family: Family,
    pub(super) login: &'a Login,
    pub(super) tls: Option<&'a Connector>,
}

pub(super) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Sends the commands over one connection, after the login, and returns their replies.
pub(super) fn ask(asked: &Asked<'_>, commands: &[&[&str]]) -> Result<Vec<Item>, Failure> {
    let tls = asked.tls.map(|tls| tls.of_thread(1));
    let mut stream = connect(asked.server, asked.family, tls.as_ref()).map_err(Failure::Connect)?;
    let mut out = Vec::new();
    let mut count = commands.len();
    let login = asked.login;
    if let Some(password) = &login.password {
        let mut words = vec!["AUTH"];
        words.extend(login.user.as_deref());
        words.push(password);
        command(&words, &mut out);
        count += 1;
    }
    for words in commands {
        command(words, &mut out);
    }
    let failed = |error: std::io::Error| Failure::Answer(error.to_string());
    stream.write_all(&out).map_err(failed)?;
    let (mut buf, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let mut reader = Reader { buf: &buf, at: 0 };
        let mut values = Vec::new();
        while values.len() < count {
            match reader.value(0).map_err(Failure::Answer)? {
                Some(Item::Error(error)) if values.is_empty() && count > commands.len() => {
                    return Err(Failure::Login(error));
                }
                Some(value) => values.push(value),
                None => break,
            }
        }
        if values.len() == count {
            return Ok(values.split_off(count - commands.len()));
        }
        match stream.read(&mut part).map_err(failed)? {
            0 => return Err(Failure::Answer("the server closed the connection".to_owned())),
            read if buf.len() + read > MAX_ANSWER => {
                return Err(Failure::Answer("the answer is too long".to_owned()));
            }
            read => buf.extend_from_slice(&part[..read]),
        }
    }
}

/// Connects to the server, without a login. TLS begins with the first bytes that are written.
pub(super) fn connect(
    server: &Server,
    family: Family,
    tls: Option<&ThreadConnector>,
) -> Result<Box<dyn Stream>, String> {
    let text = |error: std::io::Error| error.to_string();
    if let Server::Unix(path) = server {
        let stream = UnixStream::connect(path).map_err(text)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
        return Ok(Box::new(stream));
    }
    let mut last = String::from("no address");
    for address in server.resolve(family)? {
        let Some(address) = address.as_socket() else { continue };
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
                let Some(tls) = tls else { return Ok(Box::new(stream)) };
                let connection = tls.connection(0).map_err(|error| error.to_string())?;
                return Ok(Box::new(StreamOwned::new(connection, stream)));
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

fn command(words: &[&str], out: &mut Vec<u8>) {
    let mut writer = ReplyWriter::new(out, Protocol::Resp2);
    writer.array(words.len());
    for word in words {
        writer.bulk(word.as_bytes());
    }
}

/// A reply of RESP2.
#[derive(Debug, PartialEq)]
pub(super) enum Item {
    Text(String),
    Number(u64),
    List(Vec<Item>),
    Error(String),
}

pub(super) struct Reader<'a> {
    pub(super) buf: &'a [u8],
    pub(super) at: usize,
}

impl Reader<'_> {
    fn line(&mut self) -> Option<String> {
        let rest = &self.buf[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.at += end + 2;
        Some(line)
    }

    /// Returns the next value, or `None` if it is not complete.
    pub(super) fn value(&mut self, depth: usize) -> Result<Option<Item>, String> {
        let Some(line) = self.line() else { return Ok(None) };
        let odd = || format!("an answer that is not understood: {line:?}");
        if depth > 4 || !line.is_char_boundary(1.min(line.len())) || line.is_empty() {
            return Err(odd());
        }
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<i64>().map_err(|_| odd());
        match kind {
            "+" => Ok(Some(Item::Text(rest.to_owned()))),
            "-" => Ok(Some(Item::Error(rest.to_owned()))),
            ":" => Ok(Some(Item::Number(count()?.unsigned_abs()))),
            "$" => {
                let Ok(length) = usize::try_from(count()?) else { return Ok(Some(Item::Text(String::new()))) };
                let Some(bytes) = self.buf.get(self.at..self.at.saturating_add(length)) else { return Ok(None) };
                let text = String::from_utf8_lossy(bytes).into_owned();
                self.at += length + 2;
                Ok((self.at <= self.buf.len()).then_some(Item::Text(text)))
            }
            "*" => {
                let mut list = Vec::new();
                for _ in 0..count()?.max(0) {
                    match self.value(depth + 1)? {
                        Some(value) => list.push(value),
                        None => return Ok(None),
                    }
                }
                Ok(Some(Item::List(list)))
            }
            _ => Err(odd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        let read = |text: &[u8]| Reader { buf: text, at: 0 }.value(0);
        let text = |text: &str| Item::Text(text.to_owned());
        assert_eq!(read(b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"), Ok(Some(Item::List(vec![text("save"), text("")]))));
        assert_eq!(read(b"-ERR no\r\n"), Ok(Some(Item::Error("ERR no".to_owned()))));
        assert_eq!(read(b"$5\r\nab"), Ok(None));
        assert!(read(b"HTTP/1.1 400\r\n").is_err() && read(b"\r\n").is_err());
        assert!(read(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n").is_err(), "too deep");
    }

    /// Answers of any bytes end in a value, in none or in an error.
    #[test]
    fn fuzz_replies() {
        let mut random = super::super::random::Random::new(5);
        for _ in 0..20_000 {
            let len = random.below(40) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| b"*$+-:019\r\n\xffx"[random.below(12) as usize]).collect();
            let mut reader = Reader { buf: &bytes, at: 0 };
            while let Ok(Some(_)) = reader.value(0) {
                assert!(reader.at <= bytes.len());
            }
        }
    }
}
