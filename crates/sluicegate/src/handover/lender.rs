//! Connections to the stores of this process for another process: a thread serves their other ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;

use sluicegate_store::server::Server;
use tokio::runtime::LocalRuntime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{Kind, send};

/// The thread that serves connections. It ends with this value, and with it the connections.
pub struct Lender(UnboundedSender<Asked>);

/// A connection that is asked for.
struct Asked {
    server: Arc<Server>,
    is_successor: bool,
    answer: mpsc::Sender<io::Result<UnixStream>>,
}

impl Lender {
    /// Starts the thread.
    pub fn start() -> io::Result<Lender> {
        let (sender, mut asked) = unbounded_channel::<Asked>();
        let serve = async move {
            while let Some(Asked { server, is_successor, answer }) = asked.recv().await {
                let connected = if is_successor { server.connect_successor() } else { server.connect() };
                // The asking thread waits for the answer.
                let _ = answer.send(connected);
            }
        };
        std::thread::Builder::new().name("handover".into()).spawn(move || {
            if let Ok(runtime) = LocalRuntime::new() {
                runtime.block_on(serve);
            }
        })?;
        Ok(Lender(sender))
    }

    /// Answers a question for a connection with a socket, or none if there is no such store.
    pub fn answer(
        &self,
        servers: &HashMap<Arc<str>, Arc<Server>>,
        (kind, store): (Kind, &[u8]),
        stream: &mut UnixStream,
    ) -> io::Result<()> {
        let server = std::str::from_utf8(store).ok().and_then(|store| servers.get(store));
        let socket = server.and_then(|server| self.connect(server, kind == Kind::Follow).ok());
        match socket {
            Some(socket) => send(stream, Kind::Socket, b"", Some(&OwnedFd::from(socket))),
            None => send(stream, Kind::NoSocket, b"", None),
        }
    }

    fn connect(&self, server: &Arc<Server>, is_successor: bool) -> io::Result<UnixStream> {
        let (answer, answered) = mpsc::channel();
        let asked = Asked { server: server.clone(), is_successor, answer };
        self.0.send(asked).map_err(|_| io::ErrorKind::NotConnected)?;
        answered.recv().map_err(|_| io::ErrorKind::NotConnected)?
    }
}
