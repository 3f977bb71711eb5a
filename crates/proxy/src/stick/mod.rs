//! Stick tables: data about clients under a key, with an expiry time (HAProxy configuration manual 11).
//!
//! A [`Table`] is shared by all workers: shards, each a mutex over a hash index and entries of one size in chunks. An
//! entry is five words of bookkeeping, its key and its data, so an IPv4 address with one rate takes 36 bytes and about
//! 8 of index. Code under a shard's lock does not acquire other locks, log or wake, and only computes the entry's own
//! words, so a lock is held for some hundred nanoseconds.
//!
//! **Tracked counters.** [`Tracked`] has the entries that a session or a stream tracks; a tracked entry neither expires
//! nor is evicted. A stream has its session's counters and may track others under the remaining numbers; every event
//! counts in the one that has the number.
//!
//! **Peers.** A table that is shared (`Sharing`) has a word more in each entry: the number of its last change. Whoever
//! changes an entry puts it into its shard's list of changes, once, and wakes (`Wake`) the control thread, which numbers
//! the changes and sends them. In a table with `aggregate` the parts of other nodes follow an entry's own data; reading a
//! counter sums them up.
//!
//! **Limits.** A table never has more than its `size` entries. A full one evicts the least recently used entries, a
//! 256th of its size at once, or with `nopurge` refuses new ones. Tables of more than 4,096 entries choose them shard
//! by shard.

mod ask;
mod key;
mod memory;
pub(crate) mod rate;
mod row;
mod table;
mod tracked;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sluicegate_transport::clock;

pub use ask::{change, read};
pub use key::Key;
pub(crate) use key::for_peer;
pub(crate) use rate::{parts as rate_parts, set_parts as set_rate_parts};
pub use row::{Change, Row};
pub(crate) use row::{is_summed, is_tag};
#[cfg(test)]
pub(crate) use table::moved;
pub(crate) use table::{Changed, Column, Learned, Origin, Sharing, Shift, Wake};
pub use table::{Held, Seen, Table};
pub use tracked::{Counted, Tracked};

/// Returns the current time in milliseconds on the scale of tables. Like HAProxy's ticks it wraps, so only differences
/// are meaningful.
pub fn now_ms() -> u32 {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = clock::now();
    now.duration_since(*START.get_or_init(Instant::now)).as_millis() as u32
}

/// Returns a duration on that scale. HAProxy's durations are below 2^31 milliseconds, and so are those of the
/// configuration.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(i32::MAX as u32)
}

/// Returns whether the time `at` has passed.
fn is_past(at: u32, now: u32) -> bool {
    now.wrapping_sub(at) as i32 >= 0
}
