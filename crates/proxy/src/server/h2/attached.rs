//! Connections that servers have opened (`attach-srv`), for servers with an `rhttp@` address.
//!
//! A session that a rule attaches gives its socket and the state of HTTP/2 to the worker's [`Connections`], where it is
//! an idle connection like any other, and ends. Nothing else connects to such a server: a request for which there is no
//! connection fails at once, as in HAProxy.
//!
//! **Workers.** An idle connection moves to the worker whose request needs it, by a job of the worker that has it; a
//! connection with streams stays where it is, and requests of other workers wait until it is idle or gone
//! ([`Attachments`]), where they fail in HAProxy. Between two configurations nothing moves: a
//! configuration that ends asks servers to connect again ([`Connections::retire_attached`]).
//!
//! **Limits** are those of the server's pool: `pool-max-conn`, `max-reuse`, and `pool-purge-delay`, after which a
//! connection is closed if there are more than requests have used at once lately; the last one stays. Together with the
//! sessions of the process they are at most as many as its `maxconn` ([`open_connections`]).

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_transport::{Buffer, Socket};
use sluicegate_wire::http2;
use tokio::sync::Notify;

use super::super::idle::Open;
use super::super::run::ServerRun;
use super::super::shared::ServerShared;
use super::{Begun, Connection, Connections, Stream, Wanted};
use crate::process::Process;

/// A connection whose peer has sent its preface and its settings.
pub(crate) struct Attached {
    pub(crate) socket: Socket,
    /// This side, which sends requests.
    pub(crate) wire: http2::Connection,
    /// Received bytes that are not parsed yet.
    pub(crate) input: Buffer,
    /// The name that requests must ask for.
    pub(crate) name: Option<Vec<u8>>,
}

/// An idle connection on its way to another worker.
struct Moved {
    socket: Socket,
    wire: http2::Connection,
    open: Open,
    label: Option<Arc<[u8]>>,
    lent: u32,
    place: Place,
}

/// All connections that a server has opened, by their labels, and the requests that wait for one to be idle.
#[derive(Debug, Default)]
pub(in crate::server) struct Attachments {
    counts: Mutex<HashMap<Box<[u8]>, u32>>,
    /// Notified when a connection is idle or gone.
    changed: Notify,
}

impl Attachments {
    fn has(&self, label: Option<&[u8]>) -> bool {
        self.counts.lock().contains_key(label.unwrap_or_default())
    }
}

/// The connections of the process that servers have opened.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Returns the number of connections of the process that servers have opened.
pub(crate) fn open_connections() -> u32 {
    OPEN.load(Ordering::Relaxed)
}

/// The place of a connection among [`Attachments`].
pub(super) struct Place {
    server: Arc<ServerShared>,
    label: Option<Arc<[u8]>>,
}

impl Place {
    fn take(server: &Arc<ServerShared>, label: Option<&Arc<[u8]>>) -> Place {
        let key = label.map_or(&[][..], |label| label);
        OPEN.fetch_add(1, Ordering::Relaxed);
        *server.attached.counts.lock().entry(key.into()).or_default() += 1;
        Place { server: server.clone(), label: label.cloned() }
    }

    /// Wakes the requests that wait.
    pub(super) fn tell(&self) {
        self.server.attached.changed.notify_waiters();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let key = self.label.as_deref().unwrap_or_default();
        let mut counts = self.server.attached.counts.lock();
        if let Some(count) = counts.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
            }
        }
        drop(counts);
        OPEN.fetch_sub(1, Ordering::Relaxed);
        self.tell();
    }
}

/// Returns the part of a connection's label that is the name of `sni` or `pool-conn-name`.
pub(in crate::server) fn label_of(name: &[u8]) -> Vec<u8> {
    [b"@", name, b" "].concat()
}

/// Returns whether the server has more connections than requests have used at once lately, and than one.
pub(super) fn is_surplus(server: &ServerShared) -> bool {
    server.connections.load(Ordering::Relaxed) > server.needed_connections().max(1)
}

impl Connections {
    /// Keeps a connection for a server; returns whether its pool has room.
    pub(crate) fn attach(self: &Rc<Self>, server: &Arc<ServerRun>, attached: Attached) -> bool {
        let Attached { socket, wire, input, name } = attached;
        let pool = &server.config.pool;
        let is_full = pool.max.is_some_and(|max| server.shared.idle_connections() >= max);
        if pool.purge_delay.is_none() || is_full {
            return false;
        }
        let Some(open) = Open::new(server) else { return false };
        // As in HAProxy, where it counts as used for a moment.
        server.shared.need.fetch_max(1, Ordering::Relaxed);
        let label: Option<Arc<[u8]>> = name.filter(|name| !name.is_empty()).map(|name| label_of(&name).into());
        let place = Place::take(&server.shared, label.as_ref());
        let moved = Moved { socket, wire, open, label, lent: 0, place };
        self.keep_attached(server, moved, input).figures().total_connections.add(1);
        true
    }

    fn keep_attached(self: &Rc<Self>, server: &Arc<ServerRun>, moved: Moved, input: Buffer) -> Rc<Connection> {
        let Moved { socket, wire, open, label, lent, place } = moved;
        let (address, session, shared, attached) = (None, None, true, Some(place));
        let connection =
            self.insert(server, Begun { wire, socket, open, label, address, session, shared, attached, input });
        let mut state = connection.state();
        state.lent = lent;
        connection.set_idle(&mut state, true);
        drop(state);
        connection
    }

    /// Lends a stream of a connection that the server has opened, which is busy or elsewhere; also returns the number of
    /// streams that were lent before. Waits, within `limit`, while all connections of this label are busy.
    pub(in crate::server) async fn await_attached(
        self: &Rc<Self>,
        process: &Process,
        server: &Arc<ServerRun>,
        wanted: &Wanted<'_>,
        limit: Option<Duration>,
    ) -> Option<(Stream, u32)> {
        let taking = async {
            loop {
                let mut changed = std::pin::pin!(server.shared.attached.changed.notified());
                changed.as_mut().enable();
                if let Some(found) = self.take(server, wanted) {
                    return Some(found);
                }
                if let Some(found) = self.obtain(process, server, wanted).await {
                    return Some(found);
                }
                if !server.shared.attached.has(wanted.label) {
                    return None;
                }
                changed.await;
            }
        };
        match limit {
            Some(limit) => tokio::time::timeout(limit, taking).await.ok()?,
            None => taking.await,
        }
    }

    /// Lends a stream of a connection that is idle at another worker, which moves here; also returns the number of streams
    /// that were lent before.
    async fn obtain(
        self: &Rc<Self>,
        process: &Process,
        server: &Arc<ServerRun>,
        wanted: &Wanted<'_>,
    ) -> Option<(Stream, u32)> {
        let workers = server.shared.idle.len();
        for other in (1..workers).map(|step| (self.worker + step) % workers) {
            if server.shared.idle[other].lending.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let (shared, label) = (server.shared.clone(), wanted.label.map(Arc::<[u8]>::from));
            let moved = process.on_worker(other, move |worker| worker.http2.give(&shared, label.as_deref())).await;
            if let Some(mut moved) = moved.flatten()
                && let Ok(socket) = moved.socket.adopt()
            {
                moved.socket = socket;
                self.keep_attached(server, moved, Buffer::default());
            }
            // Requests that have waited at the same time share what came.
            if let Some(found) = self.take(server, wanted) {
                return Some(found);
            }
        }
        None
    }

    /// Gives an idle connection away.
    fn give(&self, server: &Arc<ServerShared>, label: Option<&[u8]>) -> Option<Moved> {
        self.by_server.find(server, |connection| connection.give(label))
    }

    /// Asks servers that have connected to this side to connect again; their streams finish.
    pub(crate) fn retire_attached(&self) {
        self.by_server.each(|connection| {
            if connection.attached {
                connection.retire();
            }
        });
    }
}

impl Connection {
    /// Gives the socket and the state of HTTP/2 away, if the connection has no stream and waits for nothing.
    fn give(&self, label: Option<&[u8]>) -> Option<Moved> {
        if !self.attached || self.label.as_deref() != label {
            return None;
        }
        let mut state = self.state();
        if !state.is_idle()
            || !state.has_place()
            || self.pooled.is_used_up(state.lent)
            || state.wire.blocked().is_some()
        {
            return None;
        }
        let place = state.place.take()?;
        let (socket, open) = (state.socket.take()?, state.open.take()?);
        let wire = std::mem::replace(&mut state.wire, http2::Connection::server(http2::Settings::default()));
        self.set_idle(&mut state, false);
        self.counted.set(false);
        // The task ends when it finds no socket.
        state.gone = true;
        state.wake_task();
        Some(Moved { socket, wire, open, label: self.label.clone(), lent: state.lent, place })
    }
}
