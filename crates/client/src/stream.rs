//! A connection to an engine: a socket, with or without TLS.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use sluicegate_transport::{Socket, UnixAddress, connect_to_any};

use crate::{Address, Options};

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Socket(Socket),
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
        let mut socket = Stream::open(options, address).await?;
        if let (Some(tls), Address::Tcp(host, _)) = (&options.tls, address) {
            tls.connect(&mut socket, host).await?;
        }
        Ok(Stream::Socket(socket))
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
        match self {
            Stream::Socket(socket) => socket.poll_read(cx, out),
            #[cfg(test)]
            Stream::Simulated(line) => {
                let mut buf = tokio::io::ReadBuf::new(out);
                let polled = tokio::io::AsyncRead::poll_read(std::pin::Pin::new(&mut line.stream), cx, &mut buf);
                polled.map_ok(|()| buf.filled().len())
            }
        }
    }

    /// Accepts some of `bytes` for sending. TLS may hold them back until a flush.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Socket(socket) => socket.poll_queue(cx, bytes),
            #[cfg(test)]
            Stream::Simulated(line) => {
                tokio::io::AsyncWrite::poll_write(std::pin::Pin::new(&mut line.stream), cx, bytes)
            }
        }
    }

    /// Sends what TLS holds back.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Socket(socket) => socket.poll_flush(cx),
            #[cfg(test)]
            Stream::Simulated(_) => Poll::Ready(Ok(())),
        }
    }
}
