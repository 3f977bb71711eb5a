//! The other process of a handover, as it is asked for connections to its stores.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;

use super::{Kind, receive, send};

/// A process that lends connections to its stores. Each question waits for its answer.
pub struct Peer(Mutex<UnixStream>);

impl Peer {
    pub(super) fn new(stream: UnixStream) -> Peer {
        Peer(Mutex::new(stream))
    }

    /// Returns a connection for commands of rules and scripts to a store of that process.
    ///
    /// # Errors
    /// Those of the connection; `NotConnected` if there is no such store, or it ends.
    pub fn connect(&self, store: &str) -> io::Result<UnixStream> {
        self.ask_socket(Kind::Connect, store).map(UnixStream::from)
    }

    /// Returns a connection for following a store of that process. Errors as those of [`connect`](Self::connect).
    pub(super) fn follow(&self, store: &str) -> io::Result<OwnedFd> {
        self.ask_socket(Kind::Follow, store)
    }

    fn ask_socket(&self, kind: Kind, store: &str) -> io::Result<OwnedFd> {
        self.with(|stream| {
            send(stream, kind, store.as_bytes(), None)?;
            match receive(stream)? {
                (Kind::Socket, _, Some(socket)) => Ok(socket),
                (Kind::NoSocket, ..) => Err(io::ErrorKind::NotConnected.into()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        })
    }

    /// Calls `talk` with the connection, while nobody else uses it.
    pub(super) fn with<R>(&self, talk: impl FnOnce(&mut UnixStream) -> io::Result<R>) -> io::Result<R> {
        talk(&mut self.0.lock())
    }
}
