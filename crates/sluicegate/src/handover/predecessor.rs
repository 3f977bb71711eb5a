//! The new process's side of a start that replaces a running service of this program: its stores are followed until they
//! have the same data, its listening sockets are used, and it leaves the stores to this process.
//!
//! Nothing of the old service changes before this process is about to serve; if it ends before that, the old service continues.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::Config;
use sluicegate_store::server::{Progress, Server};

use super::errand;
use super::lender::Lender;
use super::offer::{OfStores, decode_keys, decode_positions, encode_keys};
use super::peer::Peer;
use super::{Kind, receive, send};
use crate::arguments::Service;
use crate::report::Report;
use crate::stores::Stores;

/// The time between two looks at whether the stores have the data of the old process.
const LOOKS_EACH: Duration = Duration::from_millis(5);

/// The time between two signs of life.
const BEATS_EACH: Duration = Duration::from_secs(1);

/// The time after which there is a message about what is waited for, and between two of them.
const FIRST_TOLD: Duration = Duration::from_secs(1);
const TELLS_EACH: Duration = Duration::from_secs(10);

/// The time limit for the end of the stream, once the old process has left the stores.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A running service whose stores this process takes over.
pub struct Predecessor {
    pid: u32,
    peer: Arc<Peer>,
    /// Its stores, with their numbers of keys.
    stores: OfStores<u64>,
}

impl Predecessor {
    /// Returns the service among the processes that this one replaces, if there is one. The error says why its stores
    /// cannot be taken over; a service that does not know how to is no error.
    pub fn find(service: &Service, report: Report) -> Result<Option<Predecessor>, String> {
        for pid in service.finish.iter().chain(&service.terminate).copied() {
            let Ok(Some(found)) = errand::find(pid) else { continue };
            let mut stream = found.into_stream();
            let asked = send(&mut stream, Kind::Stores, b"", None).and_then(|()| receive(&mut stream));
            match asked {
                Ok((Kind::Stores, bytes, _)) => {
                    let stores = decode_keys(&bytes).map_err(|error| format!("process {pid}: {error}"))?;
                    return Ok(Some(Predecessor { pid, peer: Arc::new(Peer::new(stream)), stores }));
                }
                Ok((Kind::Refused, text, _)) => {
                    return Err(format!("process {pid}: {}", String::from_utf8_lossy(&text)));
                }
                // Versions that do not know the question close the connection.
                _ => report.warning(&format!("process {pid} can't hand its stores over: they begin with their files")),
            }
        }
        Ok(None)
    }

    /// Returns whether it has a store of this name.
    pub fn has(&self, name: &str) -> bool {
        self.stores.iter().any(|(store, _)| store == name)
    }

    /// Returns an error if it has a store with keys that is not in the files any more.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let is_gone = |name: &String| !config.stores.iter().any(|store| *store.name == **name);
        let lost = self.stores.iter().filter(|(name, keys)| *keys > 0 && is_gone(name));
        let lost: Vec<_> = lost
            .map(|(name, keys)| {
                let pid = self.pid;
                format!(
                    "the store '{name}' of process {pid} has {keys} keys and is not in the files any more: empty it \
                     first (FLUSHALL), or stop that process"
                )
            })
            .collect();
        if lost.is_empty() { Ok(()) } else { Err(lost.join("\n")) }
    }

    /// Returns the stores that are taken over.
    fn taken(&self, stores: &Stores) -> Vec<(Arc<str>, Arc<Server>)> {
        stores.servers().into_iter().filter(|(name, _)| self.has(name)).collect()
    }

    /// Follows the stores, until they have the data of the old process. The error says why that failed.
    pub fn follow(&self, stores: &Stores, report: Report) -> Result<(), String> {
        let taken = self.taken(stores);
        for (name, server) in &taken {
            let (peer, store) = (self.peer.clone(), name.clone());
            let followed = server.follow_predecessor(move || peer.follow(&store));
            followed.map_err(|error| format!("store '{name}': {error}"))?;
        }
        let mut beaten = Instant::now();
        let mut tells_at = beaten + FIRST_TOLD;
        loop {
            let is_behind = |(_, server): &&(_, Arc<Server>)| server.progress() != Progress::Following;
            let Some((name, server)) = taken.iter().find(is_behind) else { return Ok(()) };
            if server.progress() == Progress::Failed {
                return Err(format!("store '{name}': its data set did not come from process {}", self.pid));
            }
            if beaten.elapsed() >= BEATS_EACH {
                beaten = Instant::now();
                self.peer.with(|stream| send(stream, Kind::Alive, b"", None)).map_err(|error| self.gone(&error))?;
            }
            if Instant::now() >= tells_at {
                tells_at = Instant::now() + TELLS_EACH;
                report.notice(&format!("store '{name}': its data set is being received from process {}", self.pid));
            }
            std::thread::sleep(LOOKS_EACH);
        }
    }

    /// Asks the old process, and returns its answer. The error is its refusal, too.
    fn ask(&self, kind: Kind, bytes: &[u8], wanted: Kind) -> Result<Vec<u8>, String> {
        let answer = self.peer.with(|stream| {
            send(stream, kind, bytes, None)?;
            receive(stream)
        });
        match answer.map_err(|error| self.gone(&error))? {
            (kind, bytes, _) if kind == wanted => Ok(bytes),
            (Kind::Refused, text, _) => Err(format!("process {}: {}", self.pid, String::from_utf8_lossy(&text))),
            _ => Err(format!("process {} answers nonsense", self.pid)),
        }
    }

    fn gone(&self, error: &io::Error) -> String {
        format!("process {} does not answer ({error})", self.pid)
    }

    /// Lets the old process write its state file.
    pub fn save_state(&self) -> Result<(), String> {
        self.ask(Kind::State, b"", Kind::Done).map(drop)
    }

    /// Returns duplicates of its listening sockets.
    pub fn sockets(&self) -> Result<Vec<OwnedFd>, String> {
        let talk = |stream: &mut UnixStream| {
            send(stream, Kind::Listeners, b"", None)?;
            let mut sockets = Vec::new();
            loop {
                match receive(stream)? {
                    (Kind::Socket, _, Some(socket)) => sockets.push(socket),
                    (Kind::Done, ..) => return Ok(sockets),
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        };
        self.peer.with(talk).map_err(|error| self.gone(&error))
    }

    /// Lets the old process leave the stores, and takes them over.
    pub fn take(&self, stores: &Stores) -> Result<(), String> {
        let taken = self.taken(stores);
        let names: Vec<_> = taken.iter().map(|(name, _)| (name, 0)).collect();
        let left = self.ask(Kind::Leave, &encode_keys(&names), Kind::Leave)?;
        let positions = decode_positions(&left).map_err(|error| format!("process {}: {error}", self.pid))?;
        let until = Instant::now() + ENDS_WITHIN;
        for (name, server) in &taken {
            let position = positions.iter().find(|(store, _)| **store == **name);
            let taken = match position {
                Some((_, position)) => server.take_over(position, until),
                None => Err("the old process did not leave it".into()),
            };
            taken.map_err(|error| format!("store '{name}': {error}"))?;
        }
        Ok(())
    }

    /// Tells the old process that the stores are this process's, which serves the rules and scripts of the old one from
    /// then on.
    pub fn settle(&self, stores: &Stores) -> Result<(), String> {
        self.ask(Kind::Taken, b"", Kind::Done)?;
        let duplicate = |stream: &mut UnixStream| {
            stream.set_read_timeout(None)?;
            stream.try_clone()
        };
        let mut stream = self.peer.with(duplicate).map_err(|error| self.gone(&error))?;
        let servers = stores.servers();
        let mut serve = move || {
            let lender = Lender::start()?;
            loop {
                // An error means that the old process has ended.
                match receive(&mut stream)? {
                    (Kind::Connect, name, _) => lender.answer(&servers, (Kind::Connect, &name), &mut stream)?,
                    _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("handed-over".into()).spawn(move || {
            let _: io::Result<()> = serve();
        });
        thread.map(drop).map_err(|error| error.to_string())
    }
}
