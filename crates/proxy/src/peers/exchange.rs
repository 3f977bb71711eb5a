//! The task of a section: accepts and makes connections, keeps the time, and passes changes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_transport::{Listener, Socket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::session::{self, Settings};
use super::{CONNECT, Section};
use crate::log::Severity;
use crate::proxied::skip_header;
use crate::server::{connect as connect_server, secure_connection, send_first, source_of};

/// The shortest time between two collections of changes: those that happen within it are sent together.
const COLLECT_EACH: Duration = Duration::from_millis(2);
/// The pause after an accept that failed for lack of descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// The number of connections from peers for each peer, as in HAProxy.
const ACCEPTED: usize = 3;

/// Exchanges the tables of a section, for the lifetime of the future.
pub(super) async fn run(section: Arc<Section>, settings: Settings) {
    let mut sessions = JoinSet::new();
    section.state.inner.lock().adopt(&section);
    // What has changed meanwhile.
    section.tables.iter().for_each(|shared| _ = shared.table.number_changes());
    let door = section.door().and_then(|door| Listener::from_fd(door.try_clone().ok()?).ok());
    let places = Arc::new(Semaphore::new(ACCEPTED * section.servers.len()));
    // A task of its own: a change does not poll all that the control thread waits for.
    sessions.spawn_local(collect(section.clone()));
    // The stop of the exchange closes its connections.
    let _closed = Closed(section.clone());
    loop {
        let now = Instant::now();
        let (to_connect, next) = section.state.inner.lock().step(settings.has_predecessor, now);
        for index in to_connect {
            let number = {
                let mut inner = section.state.inner.lock();
                let number = inner.next_connection();
                inner.peers[index].connection = Some(number);
                number
            };
            sessions.spawn_local(connect(section.clone(), settings.clone(), index, number));
        }
        let until = next.unwrap_or(now + CONNECT);
        tokio::select! {
            () = section.state.kick.notified() => {}
            () = tokio::time::sleep_until(until.into()) => {}
            accepted = accept(door.as_ref(), &places) => match accepted {
                Ok((socket, peer, place)) => {
                    let (section, settings) = (section.clone(), settings.clone());
                    sessions.spawn_local(async move {
                        serve(section, settings, socket, peer).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(EXHAUSTED_PAUSE).await,
            },
            Some(_) = sessions.join_next() => {}
        }
    }
}

/// Closes the connections of a section in its state.
struct Closed(Arc<Section>);

impl Drop for Closed {
    fn drop(&mut self) {
        let mut inner = self.0.state.inner.lock();
        for index in 0..inner.peers.len() {
            if inner.peers[index].connection.is_some() {
                inner.close(index, Instant::now());
                // It is connected to again at once.
                (inner.peers[index].status, inner.peers[index].reconnect) = (0, None);
            }
        }
    }
}

/// Numbers changes and wakes the connections, for the lifetime of the future.
async fn collect(section: Arc<Section>) {
    loop {
        section.state.wake.changed().await;
        section.tables.iter().for_each(|shared| _ = shared.table.number_changes());
        {
            let inner = section.state.inner.lock();
            inner.forget_changes();
            inner.peers.iter().filter(|peer| peer.is_established).for_each(|peer| peer.kick.notify_one());
        }
        tokio::time::sleep(COLLECT_EACH).await;
    }
}

type Accepted = (Socket, Option<SocketAddr>, tokio::sync::OwnedSemaphorePermit);

async fn accept(door: Option<&Listener>, places: &Arc<Semaphore>) -> std::io::Result<Accepted> {
    let Some(door) = door else { return std::future::pending().await };
    // The place is acquired before the connection is accepted, so excess connections wait in the backlog.
    let place = places.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, peer) = door.accept().await?;
    Ok((socket, peer, place))
}

/// Serves a connection that a peer has made.
async fn serve(section: Arc<Section>, settings: Settings, mut socket: Socket, peer: Option<SocketAddr>) {
    let proxy = &section.config.proxy;
    if !proxy.log.is_empty() {
        let name = section.local_name();
        let text = match (peer, socket.local_addr()) {
            (Some(from), Some(to)) => {
                format!("Connect from {}:{} to {}:{} ({name}/TCP)", from.ip(), from.port(), to.ip(), to.port())
            }
            _ => format!("Connect to unix listener 1 ({name}/TCP)"),
        };
        settings.logger.send(&proxy.log, Severity::Info, text.as_bytes());
    }
    if section.config.bind().is_some_and(|bind| bind.accept_proxy) {
        let skipped = tokio::time::timeout(super::HANDSHAKE, skip_header(&mut socket)).await;
        if !skipped.unwrap_or(false) {
            return;
        }
    }
    if let Some(tls) = &section.tls {
        let shaken = tokio::time::timeout(super::HANDSHAKE, socket.accept_tls(tls)).await;
        if !matches!(shaken, Ok(Ok(()))) {
            return;
        }
    }
    session::accepted(section.clone(), settings, socket).await;
}

/// Connects to a peer, and exchanges tables with it.
async fn connect(section: Arc<Section>, settings: Settings, index: usize, number: u64) {
    let server = section.servers[index].clone();
    let totals = settings.process.tls.clone();
    let mut guard = session::Connection::new(section.clone(), index, number);
    let connecting = async {
        let way = server.way_without_client(source_of(&section.config.proxy, &server.config), true);
        let mut socket = connect_server(&server, None, &way, None).await.ok()?;
        let (header, name) = section.introduction(index);
        if let Some(header) = header {
            send_first(&socket, &header, None).await.ok()?;
        }
        if let Some(connector) = server.tls() {
            secure_connection(&mut socket, connector, name.as_deref(), None, &totals).await.ok()?;
        }
        Some(socket)
    };
    let Ok(Some(socket)) = tokio::time::timeout(CONNECT, connecting).await else { return };
    session::connected(&mut guard, settings, socket).await;
}

/// Connects to the local peer, which is another process, and teaches it all entries. Returns whether it has confirmed
/// them, and whether the connection was made.
pub(super) async fn connect_to_local(section: &Arc<Section>, settings: &Settings) -> (bool, bool) {
    let Some(index) = section.local() else { return (false, false) };
    let number = {
        let mut inner = section.state.inner.lock();
        let number = inner.next_connection();
        let peer = &mut inner.peers[index];
        (peer.connection, peer.status) = (Some(number), super::state::CONNECTING);
        number
    };
    connect(section.clone(), settings.clone(), index, number).await;
    let inner = section.state.inner.lock();
    let peer = &inner.peers[index];
    let is_done = peer.flags & super::state::of_peer::SUCCEEDED != 0;
    (is_done, peer.status != super::state::CONNECTING)
}
