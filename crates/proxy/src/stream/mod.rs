//! One request's life, from its first byte to its log line.

mod active;
mod card;
mod context;
mod flow;
mod forwardfor;
pub(crate) mod http;
mod inspect;
mod inspection;
mod invalid;
mod relay;
mod sockets;
pub(crate) mod tcp;
mod times;

pub(crate) use active::{Active, FreeList};
pub use card::{Card, Detail, Found, Job, Killer, Selection, Which};
pub(crate) use card::{Cards, Reached};
pub(crate) use context::Connection;
pub use context::{Endings, LogRecord, Overrides, RulePlace, StreamContext, UniqueId};
pub(crate) use forwardfor::ForwardedCode;
pub use inspection::{Content, ContentForm, Inspection};
pub use invalid::{Fault, Invalid, LastInvalid, fuzz_invalid};
pub use sockets::{Side, Sockets, TcpFigure};
pub use times::Timers;
