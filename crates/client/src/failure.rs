//! The reasons why a command got no reply from its engine.

use std::time::Duration;

use sluicegate_wire::reply::Reply;

/// The reason why a command got no reply from its engine. The texts begin with a code, as Redis's errors do, so that
/// rules and scripts can distinguish them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The queue is full: `maxqueue` commands are already waiting.
    #[error("QUEUEFULL {0} commands wait for a connection (maxqueue)")]
    QueueFull(usize),
    /// No connection became free within `timeout queue`.
    #[error("QUEUETIMEOUT no connection within {} ms (timeout queue)", .0.as_millis())]
    QueueTimeout(Duration),
    /// The engine could not be reached within `timeout queue`; the text is the reason.
    #[error("CONNECT {0}")]
    Connect(String),
    /// The circuit breaker is open after this many consecutive failures; the text is the reason of the last one.
    #[error("BREAKER the engine is not asked after {0} failures in a row: {1}")]
    Breaker(u32, String),
    /// The command was sent, and no reply came within `timeout server`.
    #[error("TIMEOUT no reply within {} ms (timeout server)", .0.as_millis())]
    Timeout(Duration),
    /// The connection ended before the reply arrived; the command may have been sent.
    #[error("CONNLOST {0}")]
    Lost(String),
    /// The command can't be sent over a shared connection; the text says what to do instead.
    #[error("ERR {0}")]
    Refused(String),
    /// The key is at the first node of a cluster, but the caller's dedicated connection is already bound to the second.
    #[error("ELSEWHERE the key is at {0}, and this connection has begun at {1}: take another")]
    Elsewhere(String, String),
    /// The error reply that an engine would send.
    #[error("{0}")]
    Engine(String),
    /// The section was removed from the configuration, or the process is stopping.
    #[error("CLOSED the engine is not used any more")]
    Closed,
}

impl Failure {
    /// Returns the failure of a command that got no connection within this time. `last` is the reason why the last
    /// attempt to connect failed, if one failed.
    pub(crate) fn no_connection(last: Option<String>, within: Duration) -> Failure {
        last.map_or(Failure::QueueTimeout(within), Failure::Connect)
    }

    /// The number of kinds of failure.
    pub(crate) const KINDS: usize = 9;

    /// Names of the kinds, by [`kind`](Failure::kind), for statistics.
    pub(crate) const NAMES: [&'static str; Failure::KINDS] =
        ["queue_full", "queue_timeout", "connect", "breaker", "timeout", "lost", "refused", "closed", "elsewhere"];

    pub(crate) fn kind(&self) -> usize {
        match self {
            Failure::QueueFull(_) => 0,
            Failure::QueueTimeout(_) => 1,
            Failure::Connect(_) => 2,
            Failure::Breaker(..) => 3,
            Failure::Timeout(_) => 4,
            Failure::Lost(_) => 5,
            Failure::Refused(_) | Failure::Engine(_) => 6,
            Failure::Closed => 7,
            Failure::Elsewhere(..) => 8,
        }
    }

    /// Returns the reply that a rule or script gets.
    pub fn into_reply(self) -> Reply {
        Reply::Error(self.to_string())
    }
}
