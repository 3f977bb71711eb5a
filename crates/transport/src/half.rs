//! The halves of a connection whose writer is shared with others.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{tcp, unix};

use crate::{Socket, Tls};

/// The most plaintext of a record.
const RECORD_MAX: usize = 16 * 1024;

/// The half that reads.
#[derive(Debug)]
pub enum ReadHalf {
    /// TCP.
    Tcp(tcp::OwnedReadHalf),
    /// A unix stream socket.
    Unix(unix::OwnedReadHalf),
    /// TLS, whose state both halves need.
    Tls(Arc<Mutex<Box<Tls>>>),
}

/// The half that writes. The connection is closed when both halves are dropped; dropping this half alone does not shut
/// down its direction.
#[derive(Debug)]
pub struct WriteHalf(Option<Write>);

#[derive(Debug)]
enum Write {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    Tls(Arc<Mutex<Box<Tls>>>),
}

/// Locks the stream for one read or write. A thread that panicked in one leaves a stream that fails by itself.
fn lock(stream: &Mutex<Box<Tls>>) -> MutexGuard<'_, Box<Tls>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Socket {
    /// Splits the connection.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Socket::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf(Some(Write::Tcp(write))))
            }
            Socket::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf(Some(Write::Unix(write))))
            }
            Socket::Tls(stream) => {
                let stream = Arc::new(Mutex::new(stream));
                (ReadHalf::Tls(stream.clone()), WriteHalf(Some(Write::Tls(stream))))
            }
        }
    }
}

impl ReadHalf {
    /// Ready when a read may succeed.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ReadHalf::Tcp(half) => half.as_ref().poll_read_ready(cx),
            ReadHalf::Unix(half) => half.as_ref().poll_read_ready(cx),
            ReadHalf::Tls(stream) => lock(stream).poll_read_ready(cx),
        }
    }

    /// Ready when a write to the other half may succeed.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ReadHalf::Tcp(half) => half.as_ref().poll_write_ready(cx),
            ReadHalf::Unix(half) => half.as_ref().poll_write_ready(cx),
            ReadHalf::Tls(stream) => lock(stream).socket().poll_write_ready(cx),
        }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadHalf::Tcp(half) => Pin::new(half).poll_read(cx, into),
            ReadHalf::Unix(half) => Pin::new(half).poll_read(cx, into),
            ReadHalf::Tls(stream) => {
                // A read returns a record at most, so that no more room needs to be initialized for it.
                let room = into.remaining().min(RECORD_MAX);
                let count = ready!(lock(stream).poll_read(cx, into.initialize_unfilled_to(room)))?;
                into.advance(count);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl WriteHalf {
    /// Writes as many bytes as fit; `WouldBlock` if none do.
    ///
    /// # Errors
    /// The kernel's.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Some(Write::Tcp(half)) => half.try_write(bytes),
            Some(Write::Unix(half)) => half.try_write(bytes),
            Some(Write::Tls(stream)) => lock(stream).try_write(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // Dropping the runtime's half would shut the socket down for writing.
        match self.0.take() {
            Some(Write::Tcp(half)) => half.forget(),
            Some(Write::Unix(half)) => half.forget(),
            Some(Write::Tls(_)) | None => {}
        }
    }
}
