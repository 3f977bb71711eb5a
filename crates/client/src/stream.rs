//! A connection to an engine: a socket, with or without TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use sluicegate_transport::{Socket, UnixAddress, connect_to_any};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use crate::{Address, Options};

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
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
        let socket = Stream::open(options, address).await?;
        match (&options.tls, address) {
            (Some(tls), Address::Tcp(host, _)) => Ok(Stream::Tls(Box::new(tls.connect(socket, host).await?))),
            _ => Ok(Stream::Plain(socket)),
        }
    }

    /// Connects. Host names are resolved on a blocking thread, because the lookup may block.
    async fn open(options: &Options, address: &Address) -> io::Result<Socket> {
        let name = address.clone();
        let addresses = match address {
            Address::Unix(path) => return UnixAddress::Path(path.as_ref()).connect(),
            Address::Tcp(host, port) if let Ok(ip) = host.parse() => vec![SocketAddr::new(ip, *port)],
            Address::Tcp(host, port) => {
                let found = tokio::task::spawn_blocking(move || name.resolve()).await.map_err(io::Error::other)?;
                match (found, options.names.get(host)) {
                    (Err(_), Some(known)) => known.iter().map(|ip| SocketAddr::new(*ip, *port)).collect(),
                    (found, _) => found?,
                }
            }
        };
        connect_to_any(addresses).await
    }

    /// Reads available data into `out`. Returns 0 at the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(out);
        let polled = match self {
            Stream::Plain(socket) => AsyncRead::poll_read(Pin::new(socket), cx, &mut buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, &mut buf),
            #[cfg(test)]
            Stream::Simulated(line) => Pin::new(&mut line.stream).poll_read(cx, &mut buf),
        };
        polled.map_ok(|()| buf.filled().len())
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(socket) => socket.poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(test)]
            Stream::Simulated(line) => Pin::new(&mut line.stream).poll_write(cx, bytes),
        }
    }

    /// Writes encrypted data that TLS has buffered to the socket.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            Stream::Simulated(_) => Poll::Ready(Ok(())),
        }
    }
}
