//! Operations for which a script may wait.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_transport::Socket;
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::certificates::Update;
use super::httpclient;
use super::tls::{ScriptTls, below};
use crate::stream::AppletWait;
use crate::target::Target;

/// An operation that a coroutine waits for.
pub(super) enum Operation {
    /// `core.yield`, and a yield at a script's top level.
    Yield,
    /// `core.sleep`, `core.msleep`.
    Sleep(Duration),
    /// Waits for bytes to read, or for their end.
    Readable(Arc<Socket>, Option<Duration>),
    /// Waits for room to write.
    Writable(Arc<Socket>, Option<Duration>),
    /// Waits for a connection to be established, with TLS if it is given.
    Connect(Target, Option<Arc<ScriptTls>>, Option<Duration>),
    /// Waits for a reply of a store or an engine.
    Reply(PendingReply),
    /// Waits for the addresses of a name.
    Resolve(String),
    /// Waits for a ring, or until the time is over.
    Bell(Arc<Notify>, Option<Duration>),
    /// An HTTP request of `core.httpclient`.
    Http(Box<httpclient::Request>),
    /// Replaces a certificate.
    Certificate(Box<Update>),
    /// Waits for the stream of a service, or until the time is over.
    Applet(AppletWait, Option<Instant>),
}

/// The end of an operation.
pub(super) enum Outcome {
    /// The operation is ready; an attempt returns its result.
    Ready,
    /// The operation timed out.
    TimedOut,
    /// The connection, or the error.
    Connected(io::Result<Socket>),
    /// There is no address of this name to connect to.
    Unresolved,
    /// The reply.
    Reply(Reply),
    /// The addresses, or the error.
    Resolved(io::Result<Vec<IpAddr>>),
    /// Whether the certificate was replaced.
    Certificate(Result<(), String>),
    /// The answer, or the page that replaces it.
    Http(Box<httpclient::Answer>),
}

/// Returns the name of one end of a connection: `ip:port`, or a unix socket's path.
pub(super) fn end_name(socket: &Socket, of_peer: bool) -> Option<String> {
    let address = if of_peer { socket.peer_addr() } else { socket.local_addr() };
    match address {
        Some(address) => Some(format!("{}:{}", address.ip(), address.port())),
        None => socket.unix_path(of_peer).map(|path| path.display().to_string()),
    }
}

impl Operation {
    /// Performs the operation on the worker that awaits it.
    pub(super) async fn perform(self) -> Outcome {
        match self {
            // Without its stream a service continues immediately, and finds that its client has disconnected.
            Operation::Yield | Operation::Applet(_, None) => {
                tokio::task::yield_now().await;
                Outcome::Ready
            }
            Operation::Applet(_, Some(deadline)) => {
                tokio::time::sleep_until(deadline.into()).await;
                Outcome::TimedOut
            }
            Operation::Sleep(time) => {
                tokio::time::sleep(time).await;
                Outcome::Ready
            }
            // An error while waiting for readiness is reported in more detail by the attempt that follows.
            Operation::Readable(stream, limit) => within(limit, below(&stream).readable()).await,
            Operation::Writable(stream, limit) => within(limit, below(&stream).writable()).await,
            Operation::Connect(target, tls, limit) => {
                let connecting = async {
                    let Ok(found) = target.resolve().await else { return Outcome::Unresolved };
                    let secured = async {
                        let mut socket = found.connect().await?;
                        if let Some(tls) = tls {
                            tls.secure_socket(&mut socket).await?;
                        }
                        Ok(socket)
                    };
                    Outcome::Connected(secured.await)
                };
                match limit {
                    None => connecting.await,
                    Some(limit) => timeout(limit, connecting).await.unwrap_or(Outcome::TimedOut),
                }
            }
            Operation::Reply(reply) => Outcome::Reply(reply.await),
            Operation::Http(request) => Outcome::Http(Box::new(request.perform().await)),
            Operation::Certificate(update) => Outcome::Certificate(update.perform().await),
            Operation::Resolve(name) => Outcome::Resolved(match name.parse() {
                Ok(ip) => Ok(vec![ip]),
                Err(_) => crate::hosts::lookup(&name, 0).await.map(|found| {
                    let mut ips: Vec<IpAddr> = found.into_iter().map(|address| address.ip()).collect();
                    ips.dedup();
                    ips
                }),
            }),
            Operation::Bell(bell, limit) => {
                let rung = async {
                    bell.notified().await;
                    Ok(())
                };
                within(limit, rung).await
            }
        }
    }
}

async fn within(limit: Option<Duration>, ready: impl Future<Output = io::Result<()>>) -> Outcome {
    match limit {
        None => {
            let _ = ready.await;
            Outcome::Ready
        }
        Some(limit) => match timeout(limit, ready).await {
            Ok(_) => Outcome::Ready,
            Err(_) => Outcome::TimedOut,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_in_the_remembered_file() {
        // The system's resolver does not know this name, just as inside a chroot it knows none.
        crate::hosts::remember_text("127.0.0.1 remembered.invalid\n");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let socket = Target::Name("remembered.invalid".to_owned(), address.port()).connect().await.unwrap();
            assert_eq!(end_name(&socket, true), Some(address.to_string()));
            let Outcome::Resolved(found) = Operation::Resolve("Remembered.invalid".to_owned()).perform().await else {
                panic!("a name is resolved")
            };
            assert_eq!(found.unwrap(), [address.ip()]);
        });
    }
}
