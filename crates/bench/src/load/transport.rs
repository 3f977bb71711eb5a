//! The byte stream of a connection: a socket, or TLS over one.
//!
//! Both have the same calls and none of them waits. TLS costs one `recv` and one `send` like the plain stream:
//! records are received into a buffer that all connections of a thread share, and decrypted into the reactor's; what
//! stays with a connection is an incomplete record, and records that the kernel did not take.
//!
//! Counts of bytes are those of the application, without what TLS adds.

use std::io::{self, ErrorKind, Read, Write};

use rustls::ClientConnection;
use socket2::Socket;

/// The number of bytes received by one call under TLS.
pub(super) const RECORDS: usize = 64 * 1024;

/// The maximum plaintext of one call to [`Transport::receive`] under TLS: what the records contain, and the record whose
/// beginning was received before.
pub(super) const PLAINTEXT: usize = RECORDS + 20 * 1024;

/// A connected stream.
pub(super) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

/// TLS over a socket.
pub(super) struct TlsStream {
    socket: Socket,
    connection: ClientConnection,
}

/// The result of one call to [`Transport::receive`].
#[derive(Debug)]
pub(super) struct Received {
    /// The number of bytes of the application.
    pub(super) count: usize,
    /// The end of the stream, if nothing follows these bytes.
    pub(super) end: Option<End>,
}

/// The way in which the peer's stream ended.
#[derive(Debug)]
pub(super) enum End {
    /// With a FIN; under TLS with `close_notify`.
    Clean,
    /// Under TLS without `close_notify`: anybody on the way may have cut the stream off.
    Truncated,
    /// With an error of TLS.
    Broken(io::Error),
}

impl Transport {
    /// Returns the socket.
    pub(super) fn socket(&self) -> &Socket {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => &stream.socket,
        }
    }

    /// Returns the TLS connection, if there is one.
    pub(super) fn tls(&self) -> Option<&ClientConnection> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => Some(&stream.connection),
        }
    }

    /// Starts TLS on a connected socket.
    pub(super) fn with_tls(self, connection: ClientConnection) -> Transport {
        match self {
            Transport::Plain(socket) => Transport::Tls(Box::new(TlsStream { socket, connection })),
            Transport::Tls(_) => self,
        }
    }

    /// Receives by one `recv`. `records` is scratch of [`RECORDS`] bytes, and `into` has room for [`PLAINTEXT`], if this
    /// is TLS.
    pub(super) fn receive(&mut self, records: &mut [u8], into: &mut [u8]) -> io::Result<Received> {
        match self {
            Transport::Plain(socket) => {
                let count = (&*socket).read(into)?;
                Ok(Received { count, end: (count == 0).then_some(End::Clean) })
            }
            Transport::Tls(stream) => stream.receive(records, into),
        }
    }

    /// Sends some of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => (&*socket).write(bytes),
            Transport::Tls(stream) => stream.send(bytes),
        }
    }

    /// Sends the records that wait for the kernel; `WouldBlock` if some still do.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            Transport::Tls(stream) => stream.flush(),
        }
    }

    /// Tells the peer that nothing follows. The socket closes with this value.
    pub(super) fn close(&mut self) {
        if let Transport::Tls(stream) = self
            && !stream.connection.is_handshaking()
        {
            stream.connection.send_close_notify();
            // A peer that accepts no data now would not accept it later.
            let _ = stream.flush();
        }
    }
}

impl TlsStream {
    fn receive(&mut self, records: &mut [u8], into: &mut [u8]) -> io::Result<Received> {
        debug_assert!(records.len() == RECORDS && into.len() >= PLAINTEXT, "room for all that was received");
        let count = (&self.socket).read(records)?;
        if count == 0 {
            return Ok(Received { count, end: Some(End::Truncated) });
        }
        let mut rest = &records[..count];
        let mut received = Received { count: 0, end: None };
        while !rest.is_empty() && received.end.is_none() {
            // rustls takes 4 KiB at a time.
            self.connection.read_tls(&mut rest)?;
            let state = self.connection.process_new_packets();
            received.count += self.take(&mut into[received.count..])?;
            received.end = match state {
                Ok(state) => state.peer_has_closed().then_some(End::Clean),
                Err(error) => Some(End::Broken(io::Error::new(ErrorKind::InvalidData, error))),
            };
        }
        // Messages of the handshake, or the alert after an error. What the kernel does not take is sent with the next
        // data, and a broken connection is seen by the next call.
        let _ = self.flush();
        Ok(received)
    }

    /// Moves decrypted bytes.
    fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        loop {
            match self.connection.reader().read(&mut into[taken..]) {
                Ok(0) => return Ok(taken),
                Ok(count) => taken += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let count = self.connection.writer().write(bytes)?;
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut &self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
