//! The old process's side of a start that replaces it: it lends connections for following its stores, passes its
//! listening sockets on, and leaves the stores.
//!
//! From the moment at which it leaves them until the new process has taken them over, commands of rules and scripts wait,
//! and so do writes of clients. If the new process ends before that, this process keeps its stores and continues. Afterwards the rules and
//! scripts of streams that this process still serves ask the stores of the new one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sluicegate_proxy::cli::protocol::Commands;
use sluicegate_proxy::runtime_state;
use sluicegate_store::server::{Leave, Server};

use super::lender::Lender;
use super::living::{Asked, Hand, Living};
use super::offer::{decode_keys, encode_keys, encode_positions};
use super::peer::Peer;
use super::{Kind, receive, send};
use crate::stores::Site;

/// The time limit for the new process to have nearly everything.
const NEAR_WITHIN: Duration = Duration::from_secs(60);

/// The time limit for commands that run when the stores are left.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The time limit for the new process to take the stores over.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

impl Living {
    /// Serves a process that replaces this one, until it has taken over, or is gone. It has asked for the stores.
    pub(super) fn be_replaced(&self, mut stream: UnixStream, hand: &Hand) -> io::Result<()> {
        let servers = self.stores.servers();
        if let Some((name, _)) = servers.iter().find(|(_, server)| !server.can_leave()) {
            let text = format!("the store '{name}' is still being loaded");
            return send(&mut stream, Kind::Refused, text.as_bytes(), None);
        }
        let lender = Lender::start()?;
        send(&mut stream, Kind::Stores, &encode_keys(&self.stores.keys()), None)?;
        loop {
            let (kind, bytes, _) = receive(&mut stream)?;
            match kind {
                Kind::Alive => {}
                Kind::Follow | Kind::Connect => lender.answer(&servers, (kind, &bytes), &mut stream)?,
                Kind::Listeners => {
                    for socket in self.listening()? {
                        send(&mut stream, Kind::Socket, b"", Some(&socket))?;
                    }
                    send(&mut stream, Kind::Done, b"", None)?;
                }
                Kind::State => {
                    runtime_state::write_once(&self.current);
                    send(&mut stream, Kind::Done, b"", None)?;
                }
                Kind::Leave => {
                    let names = decode_keys(&bytes).map_err(io::Error::other)?;
                    let left = names.iter().filter_map(|(name, _)| servers.get_key_value(&**name));
                    let left = left.map(|(name, server)| (name.clone(), server.clone())).collect();
                    return self.leave(&left, stream, hand);
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Returns all listening sockets: those that a stats socket exposes, and those of stores and demo servers.
    fn listening(&self) -> io::Result<Vec<Arc<OwnedFd>>> {
        let mut sockets = self.current.listening();
        for post in self.posts.lock().iter() {
            for socket in post.sockets() {
                sockets.push(Arc::new(socket.try_clone()?));
            }
        }
        Ok(sockets)
    }

    /// Leaves stores to the process that replaces this one, unless it does not take them over.
    fn leave(&self, servers: &HashMap<Arc<str>, Arc<Server>>, mut stream: UnixStream, hand: &Hand) -> io::Result<()> {
        let until = Instant::now() + NEAR_WITHIN;
        for (name, server) in servers {
            if let Err(text) = server.await_successor(until) {
                return refuse(&mut stream, name, &text);
            }
        }
        let set = |site: &Site| servers.keys().for_each(|name| self.stores.set_site(name, site.clone()));
        set(&Site::Moving);
        servers.values().for_each(|server| server.hold_writes());
        let taken = self.pass_everywhere(hand).and_then(|()| leave_all(servers, &mut stream));
        match taken {
            Ok(()) => {
                stream.set_read_timeout(None)?;
                let peer = Peer::new(stream);
                set(&Site::There(Arc::new(move |store| peer.connect(store))));
                Ok(())
            }
            Err(error) => {
                servers.values().for_each(|server| server.release_writes());
                set(&Site::Here);
                Err(error)
            }
        }
    }

    /// Waits until the control thread and every worker have finished what they were doing when this was called.
    fn pass_everywhere(&self, hand: &Hand) -> io::Result<()> {
        let (passed, wait) = mpsc::channel();
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        hand.send(Asked::Pass(passed)).map_err(|_| gone())?;
        wait.recv().map_err(|_| gone())?;
        let process = self.current.running().process.clone();
        tokio::runtime::LocalRuntime::new()?.block_on(async {
            for worker in 0..process.workers.len() {
                // One that is stuck is in no command of a store.
                let _: Option<()> = process.on_worker(worker, |_| ()).await;
            }
        });
        Ok(())
    }
}

/// Tells the other process why a store cannot be left, and returns that as an error.
fn refuse(stream: &mut UnixStream, name: &str, why: &str) -> io::Result<()> {
    let text = format!("the store '{name}' can't be left: {why}");
    send(stream, Kind::Refused, text.as_bytes(), None)?;
    Err(io::Error::other(text))
}

/// Leaves the stores, tells the other process their positions, and waits until it has taken all of them over.
fn leave_all(servers: &HashMap<Arc<str>, Arc<Server>>, stream: &mut UnixStream) -> io::Result<()> {
    let until = Instant::now() + ENDS_WITHIN;
    let mut leaves: Vec<(&Arc<str>, Leave<'_>)> = Vec::new();
    for (name, server) in servers {
        match server.leave(until) {
            Ok(leave) => leaves.push((name, leave)),
            Err(text) => return refuse(stream, name, &text),
        }
    }
    let positions: Vec<_> = leaves.iter().map(|(name, leave)| (name, leave.position())).collect();
    send(stream, Kind::Leave, &encode_positions(&positions), None)?;
    stream.set_read_timeout(Some(TAKEN_WITHIN))?;
    match receive(stream)? {
        (Kind::Taken, ..) => {}
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    send(stream, Kind::Done, b"", None)?;
    leaves.into_iter().for_each(|(_, leave)| leave.confirm());
    Ok(())
}
