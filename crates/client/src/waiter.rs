//! The receiver of a command's result.

use std::fmt;

use sluicegate_wire::engine::{Failed, Started};
use sluicegate_wire::reply::Reply;
use tokio::sync::oneshot;

use crate::Failure;
use crate::transaction::Request;

/// The receiver of the reply of a command.
pub(crate) enum Waiter {
    /// A caller, which may have stopped waiting.
    Somebody(oneshot::Sender<Reply>),
    /// No receiver; only errors are reported.
    Nobody(Failed),
}

/// The caller's end of a [`Waiter`]; `None` if there is no receiver.
pub(crate) type Awaited = Option<oneshot::Receiver<Reply>>;

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiter::Somebody(_) => "Somebody",
            Waiter::Nobody(_) => "Nobody",
        })
    }
}

impl Waiter {
    /// Returns the receiver of the reply to a request, and the caller's end.
    pub(crate) fn of(request: &Request<'_>) -> (Waiter, Awaited) {
        match request {
            Request::Forgotten(_, failed) => (Waiter::Nobody((*failed).clone()), None),
            Request::One(_) | Request::Together(_) => {
                let (sender, receiver) = oneshot::channel();
                (Waiter::Somebody(sender), Some(receiver))
            }
        }
    }

    pub(crate) fn tell(self, reply: Reply) {
        match self {
            Waiter::Somebody(sender) => drop(sender.send(reply)),
            Waiter::Nobody(failed) => {
                if let Reply::Error(text) = &reply {
                    failed(text);
                }
            }
        }
    }
}

/// Returns the pending reply. If the receiver is dropped without a reply, the engine is not used any more.
pub(crate) fn pending(awaited: Awaited) -> Started {
    match awaited {
        Some(receiver) => {
            Started::Pending(Box::pin(async move { receiver.await.unwrap_or_else(|_| Failure::Closed.into_reply()) }))
        }
        None => Started::Done(Reply::Null),
    }
}
