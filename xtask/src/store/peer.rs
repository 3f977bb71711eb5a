//! The two servers under test, and a client that pipelines.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::{Guard, cpu_time_us, free_port, resident_bytes, wait_for_port};
use crate::connection::Connection;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Redis,
    /// Our store, with so many workers.
    Ours(u32),
    /// Our store, with one worker on this core.
    OursOn(u32),
}

impl Peer {
    pub(super) fn name(self) -> String {
        match self {
            Peer::Redis => "redis-server".into(),
            Peer::Ours(1) | Peer::OursOn(_) => "sluicegate".into(),
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
            Peer::Ours(_) | Peer::OursOn(_) => {
                let (workers, cores) = match self {
                    Peer::OursOn(core) => (1, core.to_string()),
                    Peer::Ours(workers) if workers > 1 => (workers, format!("0-{}", workers - 1)),
                    _ => (1, "0".into()),
                };
                let mut text = format!("global\n    nbthread {workers}\nstore main\n    bind 127.0.0.1:{port}\n");
                parameters.iter().for_each(|(name, value)| text += &format!("    {name} {value}\n"));
                let path = std::env::temp_dir().join(format!("sluicegate-bench-{}-{port}.cfg", std::process::id()));
                std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
                command.args(["-c", &cores]).arg(program).arg("run").arg(&path);
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
        resident_bytes(self.guard.id())
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
pub(crate) struct Client(Connection);

impl Client {
    pub(crate) fn connect(port: u16) -> Result<Client, String> {
        Connection::connect(port).map(Client)
    }

    /// Adds a command to those that [`flush`](Self::flush) sends.
    pub(super) fn add(&mut self, words: &[&[u8]]) {
        self.0.add(words);
    }

    pub(super) fn flush(&mut self) -> Result<(), String> {
        self.0.flush()
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
                Ok(String::from_utf8_lossy(&self.0.take(len + 2)[..len]).into_owned())
            }
            None => Ok(line),
        }
    }

    /// As [`ask`](Self::ask), and an error reply is one.
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
