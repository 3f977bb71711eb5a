//! The two servers under test, and a client that pipelines.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::{Guard, cpu_time_us, free_port, wait_for_port};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Redis,
    /// Our store, with so many workers.
    Ours(u32),
}

impl Peer {
    pub(super) fn name(self) -> String {
        match self {
            Peer::Redis => "redis-server".into(),
            Peer::Ours(1) => "sluicegate".into(),
            Peer::Ours(workers) => format!("sluicegate, {workers} workers"),
        }
    }

    /// Starts it on its cores (one per worker, from 0 on), with parameters as both name them.
    pub(super) fn start(self, program: &std::path::Path, parameters: &[(&str, &str)]) -> Result<Server, String> {
        let port = free_port()?;
        let mut file = None;
        let mut command = Command::new("taskset");
        match self {
            Peer::Redis => {
                command.args(["-c", "0", "redis-server", "--port", &port.to_string(), "--bind", "127.0.0.1"]);
                command.args(["--save", "", "--appendonly", "no"]);
                for (name, value) in parameters {
                    command.args([format!("--{name}"), (*value).to_owned()]);
                }
            }
            Peer::Ours(workers) => {
                let mut text = format!("global\n    nbthread {workers}\nstore main\n    bind 127.0.0.1:{port}\n");
                parameters.iter().for_each(|(name, value)| text += &format!("    {name} {value}\n"));
                let path = std::env::temp_dir().join(format!("sluicegate-bench-{}-{port}.cfg", std::process::id()));
                std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
                command.args(["-c", if workers == 1 { "0" } else { "0-1" }]).arg(program).arg("run").arg(&path);
                file = Some(path);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.name()))?;
        let server = Server { guard: Guard::new(child), port, file };
        wait_for_port(port)?;
        Ok(server)
    }
}

/// A running server; ended when this is dropped.
pub(super) struct Server {
    guard: Guard,
    pub(super) port: u16,
    file: Option<PathBuf>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Server {
    pub(super) fn client(&self) -> Result<Client, String> {
        Client::connect(self.port)
    }

    /// CPU time since its start, µs.
    pub(super) fn cpu_us(&self) -> f64 {
        cpu_time_us(self.guard.id())
    }

    /// Resident memory, bytes.
    pub(super) fn resident(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/status", self.guard.id());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        kib.map(|kib: f64| kib * 1024.0).ok_or(format!("{path} has no VmRSS"))
    }

    /// A number of INFO.
    pub(super) fn info(&self, name: &str) -> Result<f64, String> {
        let text = self.client()?.ask(&["INFO"])?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).ok_or(format!("INFO has no {name}"))
    }
}

/// One reply, as far as the benches look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Null,
    Error,
    Other,
}

/// A blocking connection.
pub(super) struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    start: usize,
    output: Vec<u8>,
}

impl Client {
    pub(super) fn connect(port: u16) -> Result<Client, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Client { stream, input: Vec::new(), start: 0, output: Vec::new() })
    }

    /// Adds a command to those that [`flush`](Self::flush) sends.
    pub(super) fn add(&mut self, words: &[&[u8]]) {
        // Writing to a vector does not fail.
        let _ = write!(self.output, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.output, "${}\r\n", word.len());
            self.output.extend_from_slice(word);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), String> {
        let sent = self.stream.write_all(&self.output).map_err(|error| error.to_string());
        self.output.clear();
        sent
    }

    /// Reads one reply.
    pub(super) fn answer(&mut self) -> Result<Answer, String> {
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

    /// Sends what was added and reads as many replies; `each` sees them.
    pub(super) fn exchange(&mut self, replies: usize, mut each: impl FnMut(usize, Answer)) -> Result<(), String> {
        self.flush()?;
        for index in 0..replies {
            let answer = self.answer()?;
            each(index, answer);
        }
        Ok(())
    }

    /// Sends a command and gives the reply's text: the line, or a bulk's contents.
    pub(super) fn ask(&mut self, words: &[&str]) -> Result<String, String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.add(&words);
        self.flush()?;
        let line = String::from_utf8_lossy(&self.line()?).into_owned();
        match line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
            Some(len) => {
                self.fill(len + 2)?;
                let text = String::from_utf8_lossy(&self.input[self.start..self.start + len]).into_owned();
                self.start += len + 2;
                Ok(text)
            }
            None => Ok(line),
        }
    }

    /// As [`ask`](Self::ask), and an error reply is one.
    pub(super) fn must(&mut self, words: &[&str]) -> Result<String, String> {
        let reply = self.ask(words)?;
        if reply.starts_with('-') { Err(format!("{}: {reply}", words.join(" "))) } else { Ok(reply) }
    }

    fn line(&mut self) -> Result<Vec<u8>, String> {
        let mut looked = 0;
        loop {
            let rest = &self.input[self.start..];
            if let Some(at) = rest[looked..].windows(2).position(|pair| pair == b"\r\n") {
                let line = rest[..looked + at].to_vec();
                self.start += looked + at + 2;
                return Ok(line);
            }
            looked = rest.len().saturating_sub(1);
            self.read()?;
        }
    }

    fn skip(&mut self, mut bytes: usize) -> Result<(), String> {
        loop {
            let there = (self.input.len() - self.start).min(bytes);
            self.start += there;
            bytes -= there;
            if bytes == 0 {
                return Ok(());
            }
            self.read()?;
        }
    }

    fn fill(&mut self, bytes: usize) -> Result<(), String> {
        while self.input.len() - self.start < bytes {
            self.read()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        self.input.drain(..self.start);
        self.start = 0;
        let len = self.input.len();
        self.input.resize(len + (1 << 16), 0);
        let count = self.stream.read(&mut self.input[len..]).map_err(|error| error.to_string())?;
        self.input.truncate(len + count);
        if count == 0 { Err("the server closed the connection".into()) } else { Ok(()) }
    }
}

/// Sends `count` commands that `words` makes, a thousand at a time; an error if one is refused.
pub(super) fn fill(client: &mut Client, count: usize, words: impl Fn(usize) -> Vec<Vec<u8>>) -> Result<(), String> {
    for first in (0..count).step_by(1_000) {
        let last = (first + 1_000).min(count);
        for index in first..last {
            let words = words(index);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            client.add(&words);
        }
        let mut refused = 0;
        client.exchange(last - first, |_, answer| refused += usize::from(answer == Answer::Error))?;
        if refused > 0 {
            return Err(format!("{refused} commands of {} were refused", last - first));
        }
    }
    Ok(())
}

/// A small generator of numbers, the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// From 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
