//! RESP2 and RESP3: requests in, replies out.
//!
//! [`CommandParser`] reads requests as a server sees them, [`ReplyWriter`] writes replies in either protocol,
//! [`ReplyParser`] reads replies as a client sees them, and [`ReplyScanner`]
//! only counts them. Code that produces a reply writes to a [`ReplySink`], so the
//! same command answers a socket (bytes, through [`ReplyWriter`]) and a rule or script (a
//! [`Reply`](crate::reply::Reply), through [`ReplyBuilder`]) without a dynamic call or an intermediate value.
//!
//! Everything is incremental and keeps no reference to its input: bytes may arrive split anywhere. Nothing is
//! allocated by a number that a peer announced; memory follows the bytes that really came.
//!
//! Format: <https://redis.io/docs/latest/develop/reference/protocol-spec/>. Where it leaves room, Redis 7 decides.

mod command;
mod number;
mod read;
mod scan;
mod write;

pub use command::{CommandLimits, CommandParser, CommandStatus, PLAIN_ARGS, ProtocolError, fuzz_resp_command};
pub use number::{format_decimal, format_double, parse_i64};
pub use read::{ReplyLimits, ReplyParseError, ReplyParser, ReplyProgress, fuzz_resp_reply};
pub use scan::{ReplyKind, ReplyScanner, ScannedReply, fuzz_resp_scan};
pub use write::{Protocol, ReplyBuilder, ReplySink, ReplyWriter};
