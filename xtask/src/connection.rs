//! A blocking connection that sends commands and collects what comes back; how a reply is read is the caller's matter.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Bytes that are read at a time.
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

    /// What has come and was not taken yet.
    pub(crate) fn received(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Takes so many received bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> &[u8] {
        self.start += bytes;
        &self.input[self.start - bytes..self.start]
    }

    /// Reads once; 0 bytes come at the connection's end.
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
