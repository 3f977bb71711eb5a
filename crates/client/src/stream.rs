//! A connection's socket: TCP, TCP with TLS, or a unix socket.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::{Address, Options};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(test)]
    Simulated(crate::model::Line),
}

impl Stream {
    /// Connects, with TLS if the section enables it.
    pub(crate) async fn connect(options: &Options, address: &Address) -> io::Result<Stream> {
        #[cfg(test)]
        if let Some(simulated) = options.place.connect() {
            return simulated.map(Stream::Simulated);
        }
        match (Stream::open(options, address).await?, &options.tls, address) {
            (Stream::Tcp(stream), Some(tls), Address::Tcp(host, _)) => {
                Ok(Stream::Tls(Box::new(tls.connect(stream, host).await?)))
            }
            (stream, ..) => Ok(stream),
        }
    }

    /// Connects; names are looked up aside, since that may block.
    async fn open(options: &Options, address: &Address) -> io::Result<Stream> {
        let name = address.clone();
        let addresses = match address {
            Address::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
            Address::Tcp(host, port) if let Ok(ip) = host.parse() => vec![SocketAddr::new(ip, *port)],
            Address::Tcp(host, port) => {
                let found = tokio::task::spawn_blocking(move || name.resolve()).await.map_err(io::Error::other)?;
                match (found, options.names.get(host)) {
                    (Err(_), Some(known)) => known.iter().map(|ip| SocketAddr::new(*ip, *port)).collect(),
                    (found, _) => found?,
                }
            }
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Reads what is there into a part of a buffer; 0 at the end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(out);
        let polled = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, &mut buf),
            #[cfg(test)]
            Stream::Simulated(line) => Pin::new(&mut line.stream).poll_read(cx, &mut buf),
        };
        polled.map_ok(|()| buf.filled().len())
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(test)]
            Stream::Simulated(line) => Pin::new(&mut line.stream).poll_write(cx, bytes),
        }
    }

    /// Gives the kernel what encryption has taken and not given it yet.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            Stream::Simulated(_) => Poll::Ready(Ok(())),
        }
    }
}
