//! Blocking connections that send commands: [`Connection`] collects the bytes of replies, [`Client`] reads RESP2.

use std::io::{Read, Write};
use std::net::TcpStream;

/// The number of bytes that are read at a time.
const READ: usize = 1 << 16;

/// A connection to a server of this machine.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    input: Vec<u8>,
    start: usize,
    output: Vec<u8>,
}

impl Connection {
    pub(crate) fn connect(port: u16) -> Result<Connection, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Connection { stream, input: Vec::new(), start: 0, output: Vec::new() })
    }

    /// Adds a command to those that [`flush`](Self::flush) sends.
    pub(crate) fn add(&mut self, words: &[impl AsRef<[u8]>]) {
        // Writing to a vector does not fail.
        let _ = write!(self.output, "*{}\r\n", words.len());
        for word in words.iter().map(AsRef::as_ref) {
            let _ = write!(self.output, "${}\r\n", word.len());
            self.output.extend_from_slice(word);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), String> {
        let sent = self.stream.write_all(&self.output).map_err(|error| error.to_string());
        self.output.clear();
        sent
    }

    /// Returns the received and not yet consumed bytes.
    pub(crate) fn received(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Consumes this many received bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> &[u8] {
        self.start += bytes;
        &self.input[self.start - bytes..self.start]
    }

    /// Reads once; returns 0 at the end of the connection.
    pub(crate) fn receive(&mut self) -> std::io::Result<usize> {
        self.input.drain(..self.start);
        self.start = 0;
        let len = self.input.len();
        self.input.resize(len + READ, 0);
        let count = self.stream.read(&mut self.input[len..]);
        self.input.truncate(len + *count.as_ref().unwrap_or(&0));
        count
    }
}

/// One reply, as far as the benchmarks distinguish replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Null,
    Error,
    Other,
}

/// A connection that reads replies.
pub(crate) struct Client(Connection);

impl Client {
    pub(crate) fn connect(port: u16) -> Result<Client, String> {
        Connection::connect(port).map(Client)
    }

    /// Adds a command to those that [`flush`](Self::flush) sends.
    pub(crate) fn add(&mut self, words: &[&[u8]]) {
        self.0.add(words);
    }

    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.0.flush()
    }

    /// Reads one reply.
    pub(crate) fn answer(&mut self) -> Result<Answer, String> {
        let mut left = 1_u64;
        let mut first = None;
        while left > 0 {
            left -= 1;
            let line = self.line()?;
            let number = || std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse::<i64>().ok());
            let answer = match line.first() {
                Some(b'-') => Answer::Error,
                Some(b'$' | b'*') if number() == Some(-1) => Answer::Null,
                Some(b'$') => {
                    self.skip(number().ok_or("a bulk without a length")? as usize + 2)?;
                    Answer::Other
                }
                Some(b'*') => {
                    left += number().ok_or("an array without a length")? as u64;
                    Answer::Other
                }
                _ => Answer::Other,
            };
            first.get_or_insert(answer);
        }
        Ok(first.unwrap_or(Answer::Other))
    }

    /// Sends the added commands and reads `replies` replies, each of which is passed to `each`.
    pub(crate) fn exchange(&mut self, replies: usize, mut each: impl FnMut(usize, Answer)) -> Result<(), String> {
        self.flush()?;
        for index in 0..replies {
            let answer = self.answer()?;
            each(index, answer);
        }
        Ok(())
    }

    /// Sends a command and returns the reply's text: the line, or the contents of a bulk string.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<String, String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.add(&words);
        self.flush()?;
        let line = String::from_utf8_lossy(&self.line()?).into_owned();
        match line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
            Some(len) => {
                self.fill(len + 2)?;
                Ok(String::from_utf8_lossy(&self.0.take(len + 2)[..len]).into_owned())
            }
            None => Ok(line),
        }
    }

    /// Like [`ask`](Self::ask), but an error reply is an error.
    pub(crate) fn must(&mut self, words: &[&str]) -> Result<String, String> {
        let reply = self.ask(words)?;
        if reply.starts_with('-') { Err(format!("{}: {reply}", words.join(" "))) } else { Ok(reply) }
    }

    fn line(&mut self) -> Result<Vec<u8>, String> {
        let mut looked = 0;
        loop {
            let rest = self.0.received();
            if let Some(at) = rest[looked..].windows(2).position(|pair| pair == b"\r\n") {
                let len = looked + at;
                return Ok(self.0.take(len + 2)[..len].to_vec());
            }
            looked = rest.len().saturating_sub(1);
            self.read()?;
        }
    }

    fn skip(&mut self, mut bytes: usize) -> Result<(), String> {
        loop {
            let there = self.0.received().len().min(bytes);
            self.0.take(there);
            bytes -= there;
            if bytes == 0 {
                return Ok(());
            }
            self.read()?;
        }
    }

    fn fill(&mut self, bytes: usize) -> Result<(), String> {
        while self.0.received().len() < bytes {
            self.read()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let count = self.0.receive().map_err(|error| error.to_string())?;
        if count == 0 { Err("the server closed the connection".into()) } else { Ok(()) }
    }
}
