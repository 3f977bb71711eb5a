//! Reasons why a stream gets no server connection, with the status and the termination state that follow.

use crate::stream::Endings;

/// The reason why there is no server connection. The response is a 503, unless the error is this process's own or the
/// server redirects; the log's termination state differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFailure {
    /// No server is usable (`SC`, `<NOSRV>`).
    NoServer,
    /// `timeout queue` (`sQ`).
    QueueTimeout,
    /// The server's queue has reached `maxqueue` (`SQ`).
    QueueFull,
    /// The server refused, after all retries (`SC`).
    Refused,
    /// `timeout connect`, after all retries (`sC`).
    ConnectTimeout,
    /// This machine has no descriptor, port or memory left (`RC`).
    Resource,
    /// A connection could not be passed to the server (`IC`).
    Internal,
    /// None: the server redirects the request to another place (`redir`, `LC`).
    Redirected,
}

impl ServerFailure {
    /// Returns the status of the error page.
    pub fn status(self) -> u16 {
        match self {
            ServerFailure::Redirected => 302,
            ServerFailure::Internal => 500,
            _ => 503,
        }
    }

    /// Returns the termination state for the log.
    pub fn ending(self) -> Endings {
        let (who, phase) = match self {
            ServerFailure::NoServer | ServerFailure::Refused => (b'S', b'C'),
            ServerFailure::QueueTimeout => (b's', b'Q'),
            ServerFailure::QueueFull => (b'S', b'Q'),
            ServerFailure::ConnectTimeout => (b's', b'C'),
            ServerFailure::Resource => (b'R', b'C'),
            ServerFailure::Internal => (b'I', b'C'),
            ServerFailure::Redirected => (b'L', b'C'),
        };
        Endings { who, phase }
    }
}
