//! A TLS stream over a socket: rustls's connection, its handshake ([`handshake`]), and reads and writes that mean what
//! those of a plain socket mean.
//!
//! A write that is reported as done has left the process: its records are in the kernel. Where the kernel takes only a
//! part of them, the write is pending and the caller repeats it with the same bytes, as with OpenSSL's `SSL_write`. So
//! a caller of these functions needs no flush, and a connection may be closed after its last write. [`Tls::poll_queue`] and
//! [`Tls::hold`] accept bytes that only [`Tls::poll_flush`] is certain to send.
//!
//! Records are read from the kernel into a buffer of the thread and decrypted into the caller's buffer; an idle
//! connection holds no buffer but rustls's own, which is empty or has a part of a record.
//!
//! Methods take `&self` where those of a plain socket do, so the state is in a cell. No method calls foreign code while
//! it is borrowed, and a socket belongs to one thread at a time.

mod handshake;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::server::{Accepted, Acceptor};
use rustls::{ClientConnection, Connection};
use sluicegate_tls::failure::Code;
use sluicegate_tls::hello::First;
use sluicegate_tls::keylog::Secrets;
use sluicegate_tls::pair::Pair;
use sluicegate_tls::policy::RecordSizes;
use sluicegate_tls::session::{Facts, Known, Reached};
use sluicegate_tls::verify::Outcome;

pub use self::handshake::{Choose, Chosen, HandshakeError};
use super::Socket;
use super::records::{RECORD_MAX, Records};
use crate::turn::Turn;

/// The size of a thread's buffer for received records: more than one of the largest size.
const RECEIVED_MAX: usize = 20 * 1024;

/// The least number of bytes that a read asks for.
const RECEIVED_MIN: usize = 4096;

/// More bytes than a record has beyond its plaintext.
const RECORD_EXTRA: usize = 256;

/// The plaintext that rustls may hold before it takes no more.
const PLAINTEXT_MAX: usize = 16 * 1024;

/// The most plaintext that one write encrypts before it waits for the kernel.
const WRITTEN_MAX: usize = 64 * 1024;

/// The most bytes that are copied by one call, see [`encrypt`].
const PIECE: usize = 2048;

/// The most bytes of a client's first message that are kept for fetches or inspected.
const HELLO_MAX: usize = 64 * 1024;

thread_local! {
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The phase of a connection.
enum Phase {
    /// A server that waits for the client's first message.
    Hello(Box<Acceptor>),
    /// A server whose configuration for the client is not known yet.
    Greeted(Box<Accepted>),
    /// The handshake and what follows it.
    Open(Box<Connection>),
    /// The handshake failed.
    Failed,
}

struct Inner {
    phase: Phase,
    /// Received bytes that rustls has not taken yet.
    rest: Vec<u8>,
    /// The bytes of decrypted data that rustls holds.
    readable: usize,
    /// The plaintext of a pending write that is encrypted already.
    accepted: usize,
    records: Records,
    /// The first message, as far as it is kept.
    hello: Vec<u8>,
    /// The number of bytes of the first message that are kept.
    hello_kept: usize,
    /// The first bytes of either side's first message, during the handshake.
    received_first: First,
    sent_first: First,
    /// What the verification of the peer has found.
    outcome: Option<Outcome>,
    /// The handshake's next turn to compute.
    turn: Turn,
    /// The secrets, if the configuration keeps them.
    secrets: Option<Box<Secrets>>,
    /// How far the handshake had come when it failed.
    reached: Option<Reached>,
    /// The error that ended the connection after its handshake.
    failure: Option<Code>,
    /// The end of the peer's stream was seen.
    ended: bool,
    /// `close_notify` was sent, or must not be.
    closed: bool,
}

/// A TLS stream.
pub struct Tls {
    /// What the handshake of a client has found.
    facts: Option<Arc<Facts>>,
    /// Dropped with the stream.
    guard: Option<Box<dyn Any + std::marker::Send>>,
    /// The socket below; absent only until it is set, and while it moves to another runtime.
    socket: Option<Socket>,
    inner: RefCell<Inner>,
    /// Whether the connection ends by a reset, which nothing may precede.
    resets: Cell<bool>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("socket", self.socket()).finish_non_exhaustive()
    }
}

impl Tls {
    /// Returns the server's side of a connection whose client has already sent `early`, of which the socket has no
    /// copy. `keep` bytes of the first message are kept.
    pub(super) fn server(early: &[u8], keep: usize) -> Tls {
        Tls::new(Phase::Hello(Box::default()), early.to_vec(), keep.min(HELLO_MAX))
    }

    /// Returns the client's side of a connection.
    pub(super) fn client(connection: ClientConnection) -> Tls {
        Tls::new(Phase::Open(Box::new(connection.into())), Vec::new(), 0)
    }

    /// Sets the socket below.
    pub(super) fn place_over(&mut self, socket: Socket) {
        self.socket = Some(socket);
    }

    fn new(phase: Phase, rest: Vec<u8>, hello_kept: usize) -> Tls {
        let inner = Inner {
            phase,
            rest,
            readable: 0,
            accepted: 0,
            records: Records::default(),
            hello: Vec::new(),
            hello_kept,
            received_first: First::default(),
            sent_first: First::default(),
            outcome: None,
            turn: Turn::default(),
            secrets: None,
            reached: None,
            failure: None,
            ended: false,
            closed: false,
        };
        Tls { facts: None, guard: None, socket: None, inner: RefCell::new(inner), resets: Cell::new(false) }
    }

    /// Returns the socket below.
    pub fn socket(&self) -> &Socket {
        self.socket.as_ref().expect("only a stream with a socket leaves this module")
    }

    fn parts(&mut self) -> (&mut Socket, &mut Inner) {
        (self.socket.as_mut().expect("only a stream with a socket leaves this module"), self.inner.get_mut())
    }

    /// Moves the connection to the runtime of this thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn adopt(mut self: Box<Tls>) -> io::Result<Box<Tls>> {
        if let Some(socket) = self.socket.take() {
            self.socket = Some(socket.adopt()?);
        }
        Ok(self)
    }

    /// Returns what `read` finds in rustls's connection; `None` before the client's first message was answered.
    pub fn inspect<R>(&self, read: impl FnOnce(&Connection) -> R) -> Option<R> {
        match &self.inner.borrow().phase {
            Phase::Open(connection) => Some(read(connection)),
            Phase::Hello(_) | Phase::Greeted(_) | Phase::Failed => None,
        }
    }

    /// Returns what became of the verification of the peer; `None`: there was none.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.inner.get_mut().outcome.take()
    }

    /// Returns how far a handshake has come that does not go on; `None`: the version is not known yet.
    pub fn reached(&self) -> Option<Reached> {
        let inner = self.inner.borrow();
        inner.reached.or_else(|| inner.reached())
    }

    /// Returns OpenSSL's code of the error that ended the connection after its handshake, such as an alert: with TLS 1.3
    /// a server's verdict on this side's certificate.
    pub fn failure(&self) -> Option<Code> {
        self.inner.borrow().failure
    }

    /// Returns the facts of a handshake that is done, with the certificate of this side and, on a client, the name that
    /// was asked for. `None` before its end.
    pub fn take_facts(&mut self, pair: Option<Arc<Pair>>, sni: Option<Box<str>>) -> Option<Facts> {
        let inner = self.inner.get_mut();
        let (outcome, secrets) = (inner.outcome.take(), inner.secrets.take());
        let Phase::Open(connection) = &inner.phase else { return None };
        let mut facts = Facts::new(connection, Known { pair, sni, outcome, secrets });
        let starts = [&mut inner.received_first, &mut inner.sent_first].map(std::mem::take);
        let [received, sent] = starts.map(|first| first.start());
        match connection.as_ref() {
            Connection::Server(_) => facts.set_starts(received, sent),
            Connection::Client(_) => facts.set_starts(sent, received),
        }
        Some(facts)
    }

    /// Keeps what the handshake of a client has found.
    pub(super) fn find_facts(&mut self, sni: Option<Box<str>>) {
        self.facts = self.take_facts(None, sni).map(Arc::new);
    }

    /// Sets the sizes of the records that are sent.
    pub fn set_record_sizes(&mut self, sizes: RecordSizes) {
        self.inner.get_mut().records.set_sizes(sizes);
    }

    /// A new message is about to be sent.
    #[inline]
    pub fn start_message(&mut self) {
        self.inner.get_mut().records.start_message();
    }

    /// Many messages share the connection from here on, so that the amount of data that is to be written decides on the
    /// sizes of records.
    pub fn multiplex(&mut self) {
        self.inner.get_mut().records.multiplex();
    }

    /// Keeps a value until the stream is dropped.
    pub fn attach(&mut self, guard: Box<dyn Any + std::marker::Send>) {
        self.guard = Some(guard);
    }

    /// Returns what the handshake of a client has found.
    pub fn facts(&self) -> Option<&Arc<Facts>> {
        self.facts.as_ref()
    }

    /// Returns the kept part of the client's first message, without the headers of its records.
    pub fn take_hello(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.inner.get_mut().hello)
    }

    /// Ready when a read may succeed.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inner.borrow().has_readable() { Poll::Ready(Ok(())) } else { self.socket().poll_read_ready(cx) }
    }

    /// Reads decrypted bytes; returns 0 at the end of the peer's stream.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let (socket, inner) = self.parts();
        let read = inner.read(into, &mut |buffer| socket.poll_read(cx, buffer));
        if let Some(connection) = inner.with_answer() {
            // Nothing else may write for a while, so this task is woken for the rest.
            let _ = poll_send(socket, cx, connection);
        }
        read
    }

    /// Reads available bytes; `WouldBlock` if there are none.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.inner.borrow_mut();
        let read = inner.read(into, &mut |buffer| now(self.socket().try_read(buffer)));
        inner.answer(self.socket());
        would_block(read)
    }

    /// Writes some of `bytes`. After `Pending` the next write must begin with the same bytes.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let (socket, inner) = self.parts();
        inner.write(bytes, &mut |connection| poll_send(socket, cx, connection))
    }

    /// Encrypts some of `bytes`, which are not written again; those that the kernel does not take are sent by the next
    /// call of this function or of [`Tls::poll_flush`]. `Pending`: earlier bytes still wait.
    pub fn poll_queue(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_write(cx, bytes) {
            Poll::Pending if self.inner.get_mut().accepted > 0 => {
                Poll::Ready(Ok(std::mem::take(&mut self.inner.get_mut().accepted)))
            }
            polled => polled,
        }
    }

    /// Encrypts some of `bytes`, which are not written again, for the next call of [`Tls::poll_flush`].
    ///
    /// # Errors
    /// The connection is not open.
    pub fn hold(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.get_mut().encrypt(bytes)
    }

    /// Sends what is encrypted.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (socket, inner) = self.parts();
        let waits = inner.with_answer().is_some();
        ready!(inner.flush(&mut |connection| poll_send(socket, cx, connection)))?;
        if waits {
            inner.records.wrote();
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as many bytes as fit; `WouldBlock` if none do, after which the next write must begin with the same bytes.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        would_block(self.inner.borrow_mut().write(bytes, &mut |connection| now(send(self.socket(), connection))))
    }

    /// Writes bytes that are not written again; returns the number of those that are on their way.
    pub fn offer(&self, bytes: &[u8]) -> usize {
        match self.try_write(bytes) {
            Ok(count) => count,
            // What is encrypted precedes the next write.
            Err(_) => std::mem::take(&mut self.inner.borrow_mut().accepted),
        }
    }

    /// Returns whether the connection is open and has nothing to read.
    pub fn is_quiet(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let read = inner.read(&mut [], &mut |buffer| now(self.socket().try_read(buffer)));
        inner.answer(self.socket());
        read.is_pending() && !inner.has_readable()
    }

    /// Waits until a read may succeed.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Sends `close_notify`, as far as the kernel takes it at once.
    pub fn close(&self) {
        let Some(socket) = &self.socket else { return };
        let mut inner = self.inner.borrow_mut();
        if std::mem::replace(&mut inner.closed, true) || self.resets.get() {
            return;
        }
        if let Phase::Open(connection) = &mut inner.phase
            && !connection.is_handshaking()
        {
            connection.send_close_notify();
            let _ = send(socket, connection);
        }
    }

    /// Nothing more is sent: the connection ends by a reset.
    pub fn reset_on_close(&self) {
        self.resets.set(true);
        self.socket().reset_on_close();
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let is_open = !self.inner.get_mut().closed && !self.resets.get();
        self.close();
        // The peer answers `close_notify`, and the kernel resets a connection that is closed with unread bytes: without a
        // FIN before it, the reset looks like a failure of this side.
        if let (true, Some(socket)) = (is_open, &self.socket) {
            socket.shutdown(Shutdown::Write);
        }
    }
}

impl Inner {
    fn has_readable(&self) -> bool {
        self.readable > 0 || !self.rest.is_empty() || self.ended
    }

    /// Reads decrypted bytes; with an empty `into` only processes what has arrived until there is something to read.
    fn read(&mut self, into: &mut [u8], receive: &mut Receive<'_>) -> Poll<io::Result<usize>> {
        loop {
            let Phase::Open(connection) = &mut self.phase else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if self.readable > 0 {
                let count = connection.reader().read(into)?;
                self.readable -= count;
                return Poll::Ready(Ok(count));
            }
            if self.ended {
                return Poll::Ready(Ok(0));
            }
            let processed = if self.rest.is_empty() {
                // What arrives gives no more plaintext than it has bytes.
                let want = (into.len().max(RECEIVED_MIN) + RECORD_EXTRA).min(RECEIVED_MAX);
                ready!(self.receive(want, receive))
            } else {
                let rest = std::mem::take(&mut self.rest);
                self.process(&rest)
            };
            if let Err(error) = processed {
                (self.closed, self.ended) = (true, true);
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Sends what rustls has to send, as far as the kernel takes it at once. What it does not take precedes the next
    /// write.
    fn answer(&mut self, socket: &Socket) {
        if let Some(connection) = self.with_answer() {
            let _ = send(socket, connection);
        }
    }

    /// Returns the connection if it has something to send: a new key or an alert as the answer to what was read, or
    /// bytes that were offered.
    fn with_answer(&mut self) -> Option<&mut Connection> {
        match &mut self.phase {
            Phase::Open(connection) if connection.wants_write() => Some(connection),
            _ => None,
        }
    }

    /// Receives at most `want` bytes and processes them in the thread's buffer.
    fn receive(&mut self, want: usize, receive: &mut Receive<'_>) -> Poll<io::Result<()>> {
        RECEIVED.with_borrow_mut(|buffer| {
            buffer.resize(RECEIVED_MAX, 0);
            let count = ready!(receive(&mut buffer[..want]))?;
            if count == 0 {
                // Without `close_notify`, as many peers do it; what needs an end has one in its protocol.
                self.ended = true;
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(self.process(&buffer[..count]))
        })
    }

    /// Gives received bytes to rustls, until it holds as much plaintext as it may; keeps what is left of them.
    fn process(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Phase::Open(connection) = &mut self.phase else { return Ok(()) };
        while !bytes.is_empty() && self.readable < PLAINTEXT_MAX {
            if connection.read_tls(&mut bytes)? == 0 {
                // After `close_notify` nothing counts.
                self.ended = true;
                return Ok(());
            }
            let state = connection.process_new_packets().map_err(|error| {
                self.failure = Some(Code::from(&error));
                io::Error::new(io::ErrorKind::InvalidData, error)
            })?;
            self.readable = state.plaintext_bytes_to_read();
            if state.peer_has_closed() {
                self.ended = true;
                return Ok(());
            }
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Encrypts some of `bytes`; returns their count.
    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Phase::Open(connection) = &mut self.phase else { return Err(io::ErrorKind::NotConnected.into()) };
        if self.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let limit = self.records.limit(bytes.len());
        encrypt(connection, &bytes[..bytes.len().min(WRITTEN_MAX)], limit)
    }

    /// Sends what is encrypted.
    fn flush(&mut self, send: &mut Send<'_>) -> Poll<io::Result<()>> {
        match &mut self.phase {
            Phase::Open(connection) => send(connection),
            Phase::Hello(_) | Phase::Greeted(_) | Phase::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Encrypts and sends some of `bytes`; returns their count once all their records are in the kernel.
    fn write(&mut self, bytes: &[u8], send: &mut Send<'_>) -> Poll<io::Result<usize>> {
        if self.accepted == 0 {
            // An answer to the peer may still be waiting: it goes first.
            ready!(self.flush(send))?;
            self.accepted = self.encrypt(bytes)?;
        }
        ready!(self.flush(send))?;
        self.records.wrote();
        Poll::Ready(Ok(std::mem::take(&mut self.accepted).min(bytes.len())))
    }
}

/// Encrypts some of `bytes` into records of at most `limit` bytes; returns the number of bytes taken.
///
/// rustls copies each record's plaintext behind a header of 5 bytes. The C library copies 4 KiB and more by one string
/// instruction, which some processors execute 25 times slower if the destination lies less than 32 bytes behind the
/// source modulo a page, as a header makes it. In pieces the same copy takes ordinary loads and stores.
fn encrypt(connection: &mut Connection, bytes: &[u8], limit: usize) -> io::Result<usize> {
    let mut taken = 0;
    for part in bytes.chunks(limit) {
        let mut pieces = [IoSlice::new(&[]); RECORD_MAX / PIECE];
        let mut filled = 0;
        for (piece, bytes) in pieces.iter_mut().zip(part.chunks(PIECE)) {
            *piece = IoSlice::new(bytes);
            filled += 1;
        }
        let count = connection.writer().write_vectored(&pieces[..filled])?;
        taken += count;
        if count < part.len() {
            break;
        }
    }
    Ok(taken)
}

/// Reads from the socket below.
type Receive<'a> = dyn FnMut(&mut [u8]) -> Poll<io::Result<usize>> + 'a;

/// Sends what rustls has to send.
type Send<'a> = dyn FnMut(&mut Connection) -> Poll<io::Result<()>> + 'a;

/// Sends what rustls has to send; `WouldBlock` if the kernel takes only a part.
fn send(socket: &Socket, connection: &mut Connection) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(&mut Direct(socket))?;
    }
    Ok(())
}

fn poll_send(socket: &Socket, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<io::Result<()>> {
    loop {
        match send(socket, connection) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
            result => return Poll::Ready(result),
        }
    }
}

/// Returns a result that is not waited for.
fn now<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

fn would_block<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A socket that is written to without waiting.
struct Direct<'a>(&'a Socket);

impl Write for Direct<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::net::UnixStream;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{AlertDescription, ClientConfig, RootCertStore, ServerConfig};

    use super::*;

    /// A self-signed certificate of `localhost`, valid until 2126, and its key.
    const PEM: &[u8] = include_bytes!("tests/localhost.pem");

    fn server_config() -> Arc<ServerConfig> {
        let chain = vec![CertificateDer::from_pem_slice(PEM).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(PEM).unwrap();
        Arc::new(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap())
    }

    fn client() -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(PEM).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
    }

    async fn shake(socket: &mut Socket) -> Result<(), HandshakeError> {
        let tls = socket.tls_mut().unwrap();
        poll_fn(|cx| tls.poll_handshake(cx, &mut |_, _| Poll::Ready(Ok(server_config())))).await
    }

    /// Returns both ends of a connection after its handshake, of which the first `early` bytes were read before.
    async fn pair(early: usize) -> (Socket, Socket) {
        let (one, other) = UnixStream::pair().unwrap();
        joined(Socket::of_unix(one).unwrap(), Socket::of_unix(other).unwrap(), early).await
    }

    async fn joined(mut server: Socket, mut client_end: Socket, early: usize) -> (Socket, Socket) {
        client_end.start_tls_client(client());
        let serving = async {
            let mut first = vec![0; early];
            for byte in &mut first {
                poll_fn(|cx| server.poll_read(cx, std::slice::from_mut(byte))).await.unwrap();
            }
            server.start_tls_server(&first, 4096);
            shake(&mut server).await.unwrap();
        };
        let (done, ()) = tokio::join!(shake(&mut client_end), serving);
        done.unwrap();
        (server, client_end)
    }

    async fn write_all(socket: &mut Socket, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = poll_fn(|cx| socket.poll_write(cx, bytes)).await.unwrap();
            bytes = &bytes[count..];
        }
    }

    /// Queues everything without waiting for the kernel, and flushes it.
    async fn queue_all(socket: &mut Socket, mut bytes: &[u8]) {
        let mut is_held = false;
        while !bytes.is_empty() {
            let count = poll_fn(|cx| socket.poll_queue(cx, bytes)).await.unwrap();
            is_held |= poll_fn(|cx| Poll::Ready(socket.poll_flush(cx).is_pending())).await;
            bytes = &bytes[count..];
        }
        assert!(is_held, "the kernel has taken everything at once");
        poll_fn(|cx| socket.poll_flush(cx)).await.unwrap();
    }

    async fn read_all(socket: &mut Socket, size: usize) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; size]);
        loop {
            match poll_fn(|cx| socket.poll_read(cx, &mut buffer)).await.unwrap() {
                0 => return all,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[tokio::test]
    async fn bytes_pass_in_any_sizes_and_end_with_close_notify() {
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ n >> 8) as u8).collect();
        for (early, size) in [(0, 1), (1, 700), (7, 16 * 1024), (60, 200_000)] {
            let (mut server, mut client) = pair(early).await;
            let sent = &sent[..if size == 1 { 40_000 } else { sent.len() }];
            let sending = async {
                write_all(&mut client, sent).await;
                client.shutdown_write();
            };
            let (received, ()) = tokio::join!(read_all(&mut server, size), sending);
            assert!(received == sent, "{size}: {} bytes", received.len());
            // The other direction is still open.
            write_all(&mut server, b"answer").await;
            drop(server);
            assert_eq!(read_all(&mut client, 100).await, b"answer");
        }
    }

    #[tokio::test]
    async fn a_connection_with_unread_bytes_ends_before_it_is_reset() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let end = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [one, other] = [listener.accept().unwrap().0, end].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            Socket::from_fd(stream.into(), true).unwrap()
        });
        let (mut server, mut client) = joined(one, other, 0).await;
        write_all(&mut server, b"answer").await;
        write_all(&mut client, b"unread").await;
        drop(server);
        assert_eq!(read_all(&mut client, 100).await, b"answer");
        let Socket::Tls(client) = client else { panic!("the client has TLS") };
        client.socket().readable().await.unwrap();
        assert_eq!(client.socket().try_read(&mut [0; 8]).unwrap(), 0);
    }

    #[tokio::test]
    async fn queued_bytes_are_sent_once_and_in_order() {
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ n >> 8) as u8).collect();
        let (mut server, mut client) = pair(0).await;
        let sending = async {
            queue_all(&mut client, &sent).await;
            client.shutdown_write();
        };
        let (received, ()) = tokio::join!(read_all(&mut server, 16 * 1024), sending);
        assert!(received == sent, "{} bytes", received.len());
    }

    #[tokio::test]
    async fn gathered_bytes_wait_for_a_flush_or_for_many() {
        let sent: Vec<u8> = (0..400_000_u32).map(|n| (n ^ n >> 8) as u8).collect();
        // Records of one byte fill TLS before their plaintext is much.
        for piece in [1, 700, 16 * 1024, 100_000] {
            let (mut server, mut client) = pair(0).await;
            let mut held = 0;
            let count = poll_fn(|cx| client.poll_gather(cx, &sent[..piece.min(1000)], &mut held)).await.unwrap();
            assert!(count == held && server.is_quiet(), "{piece}: nothing is sent yet");
            let sent = &sent[..if piece == 1 { 20_000 } else { sent.len() }];
            let sending = async {
                let mut at = count;
                while at < sent.len() {
                    let next = &sent[at..sent.len().min(at + piece)];
                    at += poll_fn(|cx| client.poll_gather(cx, next, &mut held)).await.unwrap();
                }
                poll_fn(|cx| client.poll_flush(cx)).await.unwrap();
                client.shutdown_write();
            };
            let (received, ()) = tokio::join!(read_all(&mut server, 16 * 1024), sending);
            assert!(received == sent, "{piece}: {} bytes", received.len());
        }
    }

    #[tokio::test]
    async fn the_first_message_is_kept_without_the_headers_of_records() {
        let (mut server, _client) = pair(3).await;
        let hello = server.tls_mut().unwrap().take_hello();
        assert_eq!(hello[0], 22, "the type of a record of the handshake");
        assert_eq!(usize::from(u16::from_be_bytes([hello[3], hello[4]])) + 5, hello.len());
    }

    #[tokio::test]
    async fn a_pending_write_counts_once() {
        let (mut server, mut client) = pair(0).await;
        let bytes = vec![7; 4_000_000];
        let mut sent = 0;
        // Nobody reads: the kernel fills up.
        while let Ok(count) = client.try_write(&bytes[sent..]) {
            sent += count;
        }
        assert!(sent > 0 && sent < bytes.len());
        let sending = async {
            write_all(&mut client, &bytes[sent..]).await;
            drop(client);
        };
        let (received, ()) = tokio::join!(read_all(&mut server, 9000), sending);
        assert!(received == bytes, "{} bytes", received.len());
    }

    #[tokio::test]
    async fn what_is_quiet_has_nothing_to_read() {
        let (mut server, client) = pair(0).await;
        // The tickets that follow the handshake are nothing to read.
        assert!(client.is_quiet() && server.is_quiet());
        write_all(&mut server, b"x").await;
        client.readable().await.unwrap();
        assert!(!client.is_quiet());
        assert_eq!(client.try_read(&mut [0; 9]).unwrap(), 1);
        assert!(client.is_quiet());
        drop(server);
        client.readable().await.unwrap();
        assert!(!client.is_quiet());
    }

    #[tokio::test]
    async fn failed_handshakes_tell_why() {
        let attempt = async |first: &'static [u8]| {
            let (one, other) = UnixStream::pair().unwrap();
            let mut server = Socket::of_unix(one).unwrap();
            let mut other = Socket::of_unix(other).unwrap();
            server.start_tls_server(b"", 0);
            if !first.is_empty() {
                write_all(&mut other, first).await;
            }
            other.shutdown_write();
            let error = shake(&mut server).await.unwrap_err();
            drop(server);
            (error, read_all(&mut other, 100).await)
        };
        assert!(matches!(attempt(b"").await.0, HandshakeError::Closed { unasked: true }));
        assert!(matches!(attempt(b"\x16\x03\x01").await.0, HandshakeError::Closed { unasked: true }));
        let (error, answer) = attempt(b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(matches!(error, HandshakeError::Tls { code: Some(_), .. }), "{error:?}");
        // A client that does not speak TLS is told nothing.
        assert!(answer.is_empty());
        let (error, _) = attempt(b"\x16\x03\x01\0\x05\x01\0\0\x01\xff").await;
        assert!(matches!(error, HandshakeError::Tls { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_refused_client_gets_the_alert() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut server, mut client_end) = (Socket::of_unix(one).unwrap(), Socket::of_unix(other).unwrap());
        server.start_tls_server(b"", 0);
        client_end.start_tls_client(client());
        let tls = server.tls_mut().unwrap();
        let refusing =
            poll_fn(|cx| tls.poll_handshake(cx, &mut |_, _| Poll::Ready(Err(AlertDescription::UnrecognisedName))));
        let (client, server) = tokio::join!(shake(&mut client_end), refusing);
        assert!(matches!(server, Err(HandshakeError::Refused(AlertDescription::UnrecognisedName))));
        let alert = rustls::Error::AlertReceived(AlertDescription::UnrecognisedName);
        assert!(matches!(client, Err(HandshakeError::Tls { error, .. }) if error == alert));
    }
}
