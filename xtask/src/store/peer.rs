//! The two servers under test, and a client that pipelines.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::{cpu_time_us, resident_bytes};
use crate::child::{Guard, free_port, wait_for_port};
use crate::connection::{Answer, Client};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Redis,
    /// This store, with this many workers.
    Ours(u32),
    /// This store, with one worker on this core.
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

    /// Starts the server on its cores (one per worker, from 0 on), with parameters whose names both servers know.
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

    /// Returns the CPU time since its start, in µs.
    pub(super) fn cpu_us(&self) -> f64 {
        cpu_time_us(self.guard.id())
    }

    /// Returns the resident memory, in bytes.
    pub(super) fn resident(&self) -> Result<f64, String> {
        resident_bytes(self.guard.id())
    }

    /// Returns a number of INFO.
    pub(super) fn info(&self, name: &str) -> Result<f64, String> {
        let text = self.client()?.ask(&["INFO"])?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).ok_or(format!("INFO has no {name}"))
    }
}

/// Sends `count` commands made by `words`, a thousand at a time; returns an error if one is refused.
pub(crate) fn fill(client: &mut Client, count: usize, words: impl Fn(usize) -> Vec<Vec<u8>>) -> Result<(), String> {
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
