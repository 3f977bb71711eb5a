//! A connection with a peer: the handshake of either side, and messages in both directions.

use std::io::ErrorKind;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sluicegate_config::model::Tune;
use sluicegate_transport::Socket;
use sluicegate_wire::peers::hello::{self, Hello, Status};
use sluicegate_wire::peers::{self as wire, Fault};
use tokio::sync::Notify;

use super::state::{self, Link, of_peer};
use super::{HANDSHAKE, Section, traced};
use crate::log::Logger;
use crate::process::{Phase, Process};

/// The number of bytes requested from the kernel at a time.
const CHUNK: usize = 16 << 10;
/// The number of bytes of messages after which no more are made before the peer has read some.
pub(super) const OUT_MAX: usize = 64 << 10;

/// Settings of all connections.
#[derive(Clone)]
pub(super) struct Settings {
    /// The maximum size of a message's body.
    pub(super) message_max: usize,
    /// The number of messages after which others have their turn.
    pub(super) at_once: usize,
    /// Whether this process replaces another one, which may teach it.
    pub(super) has_predecessor: bool,
    pub(super) process: Arc<Process>,
    /// The destination of lines about connections.
    pub(super) logger: Logger,
}

impl Settings {
    pub(super) fn new(tune: &Tune, process: &Arc<Process>, logger: &Logger) -> Settings {
        Settings {
            message_max: tune.bufsize,
            at_once: tune.peers_updates as usize,
            has_predecessor: process.has_predecessor(),
            process: process.clone(),
            logger: logger.clone(),
        }
    }
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is closed.
    Closed,
    /// The peer has sent something wrong, and is told so.
    Fault(Fault),
}

impl From<wire::Malformed> for End {
    fn from(_: wire::Malformed) -> End {
        End::Fault(Fault::Protocol)
    }
}

/// A connection that is used for a peer; when this is dropped, it is not any more.
pub(super) struct Connection {
    pub(super) section: Arc<Section>,
    pub(super) index: usize,
    pub(super) number: u64,
    kick: Arc<Notify>,
    /// Counts while the handshake has succeeded.
    counted: Option<Counted>,
}

struct Counted {
    process: Arc<Process>,
    is_connected: bool,
}

impl Counted {
    fn new(process: &Arc<Process>) -> Counted {
        process.peers.active.add(1);
        Counted { process: process.clone(), is_connected: false }
    }

    fn connected(&mut self) {
        self.is_connected = true;
        self.process.peers.connected.add(1);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.process.peers.active.remove(1);
        if self.is_connected {
            self.process.peers.connected.remove(1);
        }
    }
}

impl Connection {
    pub(super) fn new(section: Arc<Section>, index: usize, number: u64) -> Connection {
        let kick = section.state.inner.lock().peers[index].kick.clone();
        Connection { section, index, number, kick, counted: None }
    }

    /// Returns whether it is still the connection that is used.
    fn is_current(&self) -> bool {
        self.section.state.inner.lock().peers[self.index].connection == Some(self.number)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut inner = self.section.state.inner.lock();
        if inner.peers[self.index].connection == Some(self.number) {
            inner.close(self.index, Instant::now());
            self.section.state.kick.notify_one();
        }
    }
}

/// Reads more; `Err`: the connection is closed.
async fn read_more(socket: &mut Socket, input: &mut Vec<u8>) -> Result<(), End> {
    loop {
        input.reserve(CHUNK);
        match socket.try_read_buf(input) {
            Ok(0) => return Err(End::Closed),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let waiting = &mut *socket;
                std::future::poll_fn(move |cx| waiting.poll_read_ready(cx)).await.map_err(|_| End::Closed)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(End::Closed),
        }
    }
}

/// Writes all bytes, or as many as the peer takes within the time of a handshake.
async fn write_all(socket: &mut Socket, bytes: &[u8]) -> Result<(), End> {
    let mut written = 0;
    let writing = async {
        while written < bytes.len() {
            match socket.try_write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    socket.writable().await.map_err(|_| End::Closed)?
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Closed),
            }
        }
        Ok(())
    };
    tokio::time::timeout(HANDSHAKE, writing).await.unwrap_or(Err(End::Closed))
}

/// Serves a connection that was accepted.
pub(super) async fn accepted(section: Arc<Section>, settings: Settings, mut socket: Socket) {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let hello = receive_hello(&section, &settings, &mut socket, &mut input);
    let taken = match tokio::time::timeout(HANDSHAKE, hello).await.unwrap_or(Err(None)) {
        Ok(Caller { index, minor, has_columns }) => {
            take_over(&section, index, minor, has_columns).map(|number| (index, number)).map_err(Some)
        }
        Err(status) => Err(status),
    };
    let (index, number) = match taken {
        Ok(taken) => taken,
        Err(status) => {
            if let Some(status) = status {
                hello::write_status(status, false, &mut out);
                let _ = write_all(&mut socket, &out).await;
            }
            return;
        }
    };
    let mut connection = Connection::new(section, index, number);
    let counted = connection.counted.insert(Counted::new(&settings.process));
    let has_columns = connection.section.state.inner.lock().peers[index].has_columns;
    hello::write_status(Status::Success, has_columns, &mut out);
    counted.connected();
    connection.section.state.inner.lock().established(index, false, Instant::now());
    converse(&mut connection, &settings, socket, input, out).await;
}

/// A peer that has connected.
struct Caller {
    index: usize,
    minor: u32,
    has_columns: bool,
}

/// Reads the handshake of a peer. The error is the status that it is refused with; `None`: it is gone.
async fn receive_hello(
    section: &Section,
    settings: &Settings,
    socket: &mut Socket,
    input: &mut Vec<u8>,
) -> Result<Caller, Option<Status>> {
    loop {
        if let Some((hello, length)) = hello::read(input, settings.message_max).map_err(Some)? {
            let index = recognize(section, &hello).map_err(Some)?;
            let caller = Caller { index, minor: hello.minor, has_columns: hello.has_columns };
            input.drain(..length);
            return Ok(caller);
        }
        read_more(socket, input).await.map_err(|_| None::<Status>)?;
    }
}

/// Sends the handshake and reads its status, and whether the peer announces own columns.
async fn send_hello(socket: &mut Socket, hello: &[u8], input: &mut Vec<u8>) -> Result<(Status, bool), End> {
    write_all(socket, hello).await?;
    loop {
        if let Some((status, has_columns, length)) = hello::read_status(input)? {
            input.drain(..length);
            return Ok((status, has_columns));
        }
        read_more(socket, input).await?;
    }
}

/// Returns the peer that connects.
fn recognize(section: &Section, hello: &Hello<'_>) -> Result<usize, Status> {
    if hello.remote != section.local_name() {
        return Err(Status::LocalName);
    }
    let inner = section.state.inner.lock();
    inner.peers.iter().position(|peer| *peer.name == *hello.local).ok_or(Status::RemoteName)
}

/// Makes a connection that was accepted the one that is used for a peer; returns its number. Another one is closed, or, if
/// it is that of the local peer, used on.
fn take_over(section: &Section, index: usize, minor: u32, has_columns: bool) -> Result<u64, Status> {
    let now = Instant::now();
    let mut inner = section.state.inner.lock();
    if inner.peers[index].connection.is_some() {
        if inner.peers[index].is_local {
            return Err(Status::TryAgain);
        }
        inner.close(index, now);
        let peer = &mut inner.peers[index];
        peer.reconnect = Some(now + state::random_pause());
        peer.heartbeat = None;
        peer.collisions += 1;
    }
    let number = inner.next_connection();
    let knows_columns = has_columns && section.has_columns();
    let peer = &mut inner.peers[index];
    peer.flags = if minor == 0 { peer.flags | of_peer::OLD_VERSION } else { peer.flags & !of_peer::OLD_VERSION };
    (peer.connection, peer.has_columns) = (Some(number), knows_columns);
    section.state.kick.notify_one();
    Ok(number)
}

/// Serves a connection that was made.
pub(super) async fn connected(connection: &mut Connection, settings: Settings, mut socket: Socket) {
    let (section, index) = (connection.section.clone(), connection.index);
    if !connection.is_current() {
        return;
    }
    connection.counted = Some(Counted::new(&settings.process));
    let mut out = Vec::new();
    {
        let mut inner = section.state.inner.lock();
        let peer = &mut inner.peers[index];
        let hello = Hello {
            minor: peer.minor(),
            remote: &peer.name,
            local: section.local_name(),
            pid: std::process::id(),
            has_columns: section.has_columns(),
        };
        hello::write(&hello, &mut out);
        peer.status = state::CONNECTED;
    }
    let mut input = Vec::new();
    let shaking = send_hello(&mut socket, &out, &mut input);
    let Ok(Ok((status, has_columns))) = tokio::time::timeout(HANDSHAKE, shaking).await else { return };
    if !connection.is_current() {
        return;
    }
    let now = Instant::now();
    {
        let mut inner = section.state.inner.lock();
        let peer = &mut inner.peers[index];
        (peer.status, peer.last_handshake) = (status.number(), Some(now));
        if status == Status::Version {
            peer.flags |= of_peer::OLD_VERSION;
        }
        if status != Status::Success {
            return;
        }
        peer.has_columns = has_columns && section.has_columns();
        inner.established(index, true, now);
    }
    if let Some(counted) = &mut connection.counted {
        counted.connected();
    }
    converse(connection, &settings, socket, input, Vec::new()).await;
}

/// Exchanges messages until the connection ends. `input` was received, and `out` is to be sent first.
async fn converse(
    connection: &mut Connection,
    settings: &Settings,
    mut socket: Socket,
    mut input: Vec<u8>,
    out: Vec<u8>,
) {
    {
        let mut inner = connection.section.state.inner.lock();
        let transport = if socket.tls().is_some() { "SSL" } else { "RAW" };
        inner.peers[connection.index].link =
            Link { transport, source: socket.peer_addr(), destination: socket.local_addr() };
    }
    connection.section.state.kick.notify_one();
    let mut out = Outgoing { bytes: out, written: 0 };
    let end = exchange(connection, settings, &mut socket, &mut input, &mut out).await;
    traced::ended(connection, settings, end);
    if let End::Fault(fault) = end {
        if connection.is_current() {
            connection.section.state.inner.lock().peers[connection.index].protocol_errors += 1;
        }
        // Behind what was begun.
        let mut rest = out.bytes.split_off(out.written);
        wire::write_fault(fault, &mut rest);
        let _ = write_all(&mut socket, &rest).await;
    }
}

/// Messages that are sent.
struct Outgoing {
    bytes: Vec<u8>,
    /// The number of bytes that the kernel has taken.
    written: usize,
}

async fn exchange(
    connection: &mut Connection,
    settings: &Settings,
    socket: &mut Socket,
    input: &mut Vec<u8>,
    out: &mut Outgoing,
) -> End {
    let mut scratch = super::messages::Scratch::default();
    loop {
        let (mut at, mut messages) = (0, 0);
        while messages < settings.at_once {
            match wire::read(&input[at..], settings.message_max) {
                Ok(Some((message, length))) => {
                    traced::received(connection, settings, &message);
                    if let Err(end) = super::receive::message(connection, settings, &message, &mut scratch) {
                        return end;
                    }
                    at += length;
                    messages += 1;
                }
                Ok(None) => break,
                Err(fault) => return End::Fault(fault),
            }
        }
        input.drain(..at);
        if !connection.is_current() {
            return End::Closed;
        }
        let mut is_more = messages == settings.at_once;
        if out.written == out.bytes.len() {
            out.bytes.clear();
            out.written = 0;
            is_more |= super::send::messages(connection, settings, &mut out.bytes, &mut scratch);
            traced::sent(connection, settings, &out.bytes);
        }
        while out.written < out.bytes.len() {
            match socket.try_write(&out.bytes[out.written..]) {
                Ok(count) => out.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return End::Closed,
            }
        }
        let is_blocked = out.written < out.bytes.len();
        if is_more && !is_blocked {
            tokio::task::yield_now().await;
            continue;
        }
        let ready = std::future::poll_fn(|cx| {
            let readable = socket.poll_read_ready(cx).is_ready();
            let writable = is_blocked && socket.poll_write_ready(cx).is_ready();
            if readable || writable { Poll::Ready(readable) } else { Poll::Pending }
        });
        let is_readable = tokio::select! {
            readable = ready => readable,
            () = connection.kick.notified() => false,
        };
        if is_readable {
            input.reserve(CHUNK);
            match socket.try_read_buf(input) {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return End::Closed,
            }
        }
    }
}

impl Settings {
    /// Returns whether the process is ending.
    pub(super) fn is_stopping(&self) -> bool {
        self.process.phase() >= Phase::Stopping
    }
}
