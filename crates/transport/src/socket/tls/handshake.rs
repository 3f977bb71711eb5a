//! The handshake: what is read and sent until the stream is open, and the reasons for which it ends before.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustls::server::{Accepted, ClientHello};
use rustls::{AlertDescription, Connection, ProtocolVersion, ServerConfig};
use sluicegate_tls::failure::{Answer, Code};
use sluicegate_tls::hello::{self, First};
use sluicegate_tls::session::Reached;
use sluicegate_tls::{keylog, verify};

use super::super::Socket;
use super::{Direct, Inner, Phase, RECEIVED, RECEIVED_MAX, Tls, poll_send, send};
use crate::turn;

/// The type of a record with an alert, and the level of one that ends the connection.
const ALERT: u8 = 21;
const FATAL: u8 = 2;

/// The end of a handshake that failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer closed the connection.
    Closed {
        /// Whether this side is a server that still waits for a client's first message.
        unasked: bool,
    },
    /// The connection broke.
    Broken(io::Error),
    /// The chooser refused the client, which got this alert.
    Refused(AlertDescription),
    /// A message was invalid, or the two sides have nothing in common.
    Tls {
        /// The reason.
        error: rustls::Error,
        /// OpenSSL's code where the first bytes say more than the error.
        code: Option<Code>,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Closed { .. } => f.write_str("the connection was closed during the TLS handshake"),
            HandshakeError::Broken(error) => error.fmt(f),
            HandshakeError::Refused(alert) => write!(f, "the TLS handshake was refused: {alert:?}"),
            HandshakeError::Tls { error, .. } => error.fmt(f),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        match error {
            HandshakeError::Broken(error) => error,
            error => io::Error::other(error),
        }
    }
}

/// The configuration for a client's first message, or the alert that refuses the client. Pending: it is called again
/// when the task is woken.
pub type Choose<'a> = dyn FnMut(&mut Context<'_>, &ClientHello<'_>) -> Poll<Chosen> + 'a;

/// What [`Choose`] decides.
pub type Chosen = Result<Arc<ServerConfig>, AlertDescription>;

impl Tls {
    /// Drives the handshake. `choose` is called on a server with the client's first message, until it is ready.
    ///
    /// When ready, everything that this side had to say is in the kernel.
    pub fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
        choose: &mut Choose<'_>,
    ) -> Poll<Result<(), HandshakeError>> {
        let (socket, inner) = self.parts();
        loop {
            if let Phase::Open(connection) = &mut inner.phase {
                match poll_send_first(socket, cx, connection, &mut inner.sent_first) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(inner.broken(error))),
                    Poll::Pending => return Poll::Pending,
                }
                if !connection.is_handshaking() {
                    inner.hello.shrink_to_fit();
                    return Poll::Ready(Ok(()));
                }
            }
            if matches!(inner.phase, Phase::Greeted(_)) {
                ready!(inner.turn.poll(cx));
            }
            let chosen = match &inner.phase {
                Phase::Greeted(accepted) => Some(ready!(choose(cx, &accepted.client_hello()))),
                _ => None,
            };
            if chosen.is_none() && inner.rest.is_empty() {
                let received = RECEIVED.with_borrow_mut(|buffer| {
                    buffer.resize(RECEIVED_MAX, 0);
                    let count = ready!(socket.poll_read(cx, buffer))?;
                    inner.rest.extend_from_slice(&buffer[..count]);
                    Poll::Ready(io::Result::Ok(count))
                });
                match ready!(received) {
                    Ok(0) => {
                        inner.ended = true;
                        let unasked = matches!(inner.phase, Phase::Hello(_));
                        return Poll::Ready(Err(HandshakeError::Closed { unasked }));
                    }
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(inner.broken(error))),
                }
            }
            // The client's first message is only parsed; what follows has public keys, signatures, or both.
            if matches!(inner.phase, Phase::Open(_)) {
                ready!(inner.turn.poll(cx));
            }
            let computes = !matches!(inner.phase, Phase::Hello(_));
            let begun = Instant::now();
            if chosen.is_none() {
                inner.keep_first();
            }
            let mut outcome = inner.outcome.take();
            let step = verify::within(&mut outcome, || match chosen {
                Some(chosen) => inner.begin(socket, chosen),
                None => inner.step(socket),
            });
            inner.outcome = outcome;
            if computes {
                turn::spent(begun);
            }
            if let Some(more) = keylog::take() {
                match &mut inner.secrets {
                    Some(secrets) => secrets.extend(*more),
                    None => inner.secrets = Some(more),
                }
            }
            if let Err(error) = step {
                inner.reached = inner.reached.or(inner.reached());
                inner.phase = Phase::Failed;
                inner.closed = true;
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl Inner {
    fn broken(&mut self, error: io::Error) -> HandshakeError {
        self.closed = true;
        // A client that closes with unread data resets the connection: to the user that is the same.
        HandshakeError::Broken(error)
    }

    /// Keeps the first bytes that were received.
    fn keep_first(&mut self) {
        self.received_first.push(&self.rest);
    }

    /// Returns how far the handshake has come.
    pub(super) fn reached(&self) -> Option<Reached> {
        match &self.phase {
            Phase::Open(connection) => Reached::of_connection(connection),
            Phase::Hello(_) => {
                let offered = hello::version(self.received_first.bytes());
                offered.filter(|version| *version < ProtocolVersion::TLSv1_2.into()).map(Reached::of_version)
            }
            Phase::Greeted(accepted) => Some(Reached::of_hello(&accepted.client_hello())),
            Phase::Failed => None,
        }
    }

    /// Continues with what was chosen for the client.
    fn begin(&mut self, socket: &Socket, chosen: Chosen) -> Result<(), HandshakeError> {
        self.reached = self.reached();
        if let Phase::Greeted(accepted) = std::mem::replace(&mut self.phase, Phase::Failed) {
            self.phase = Phase::Open(Box::new(open(*accepted, socket, chosen)?.into()));
            self.reached = None;
        }
        Ok(())
    }

    /// Gives received bytes to the handshake.
    fn step(&mut self, socket: &Socket) -> Result<(), HandshakeError> {
        match &mut self.phase {
            Phase::Greeted(_) | Phase::Failed => Err(HandshakeError::Closed { unasked: false }),
            Phase::Hello(acceptor) => {
                let mut bytes = &self.rest[..];
                let accepted = loop {
                    let before = bytes.len();
                    acceptor.read_tls(&mut bytes).map_err(HandshakeError::Broken)?;
                    let taken = self.rest.len() - before..self.rest.len() - bytes.len();
                    let room = self.hello_kept.saturating_sub(self.hello.len()).min(taken.len());
                    self.hello.extend_from_slice(&self.rest[taken][..room]);
                    match acceptor.accept() {
                        Ok(None) if bytes.is_empty() => break None,
                        Ok(None) => {}
                        Ok(Some(accepted)) => break Some(accepted),
                        Err((error, mut alert)) => {
                            let (code, answer) = Code::of_hello(&error, &self.rest);
                            match answer {
                                Answer::Rustls => _ = alert.write_all(&mut Direct(socket)),
                                Answer::Alert(alert) => _ = socket.offer(&alert_record(alert)),
                                Answer::Silence => {}
                            }
                            return Err(HandshakeError::Tls { error, code: Some(code) });
                        }
                    }
                };
                let left = self.rest.len() - bytes.len();
                self.rest.drain(..left);
                if let Some(accepted) = accepted {
                    self.phase = Phase::Greeted(Box::new(accepted));
                }
                Ok(())
            }
            Phase::Open(connection) => {
                let mut bytes = &self.rest[..];
                while !bytes.is_empty() && connection.is_handshaking() {
                    connection.read_tls(&mut bytes).map_err(HandshakeError::Broken)?;
                    match connection.process_new_packets() {
                        Ok(state) => self.readable = state.plaintext_bytes_to_read(),
                        Err(error) => {
                            // A client of TLS 1.2 does not know the alert that rustls has for it.
                            let is_tls12 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_2);
                            match error {
                                rustls::Error::NoCertificatesPresented if is_tls12 => {
                                    socket.offer(&alert_record(AlertDescription::HandshakeFailure));
                                }
                                _ => _ = send(socket, connection),
                            }
                            return Err(HandshakeError::Tls { error, code: None });
                        }
                    }
                }
                let left = self.rest.len() - bytes.len();
                self.rest.drain(..left);
                Ok(())
            }
        }
    }
}

/// Continues a handshake with the configuration that is chosen for the client's first message.
fn open(accepted: Accepted, socket: &Socket, chosen: Chosen) -> Result<rustls::ServerConnection, HandshakeError> {
    let config = chosen.map_err(|alert| {
        socket.offer(&alert_record(alert));
        HandshakeError::Refused(alert)
    })?;
    let is_tls13 = hello::offers_tls13(&accepted.client_hello());
    accepted.into_connection(config).map_err(|(error, mut alert)| {
        let _ = alert.write_all(&mut Direct(socket));
        let code = Some(Code::of_choice(&error, is_tls13));
        HandshakeError::Tls { error, code }
    })
}

/// Returns the record of an alert that ends a connection before its keys are known.
fn alert_record(alert: AlertDescription) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, FATAL, alert.into()]
}

/// Sends the messages of a handshake, and keeps the first bytes that are sent.
fn poll_send_first(
    socket: &Socket,
    cx: &mut Context<'_>,
    connection: &mut Connection,
    first: &mut First,
) -> Poll<io::Result<()>> {
    while connection.wants_write() && !first.is_full() {
        match connection.write_tls(&mut Keeping(socket, first)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
            result => _ = result?,
        }
    }
    poll_send(socket, cx, connection)
}

/// A socket that is written to without waiting, and the first bytes that it has taken.
struct Keeping<'a>(&'a Socket, &'a mut First);

impl Write for Keeping<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.try_write(bytes)?;
        self.1.push(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
