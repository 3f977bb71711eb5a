//! Names resolved while the process runs: `resolvers` sections, the servers that follow a name, and rules that look one
//! up.
//!
//! A [`Resolver`] is a section. Its state is behind one lock (`state`) and changes by time, by a message, or by a
//! rule's look-up. The control thread drives it (`run`): it owns the sockets, sends questions and reads answers, and
//! updates servers (`servers`), so no worker ever waits for a name server. A rule acquires the lock for a look-up, and
//! gets a sufficiently fresh answer immediately, or waits on a channel.
//!
//! Names, their records and the times of the last valid answers outlive a snapshot: the next one has the same
//! `Resolver` if its section is unchanged.
//!
//! Limits: records of a name `state::RECORDS`, waiting rules `state::WAITING`, a message of `accepted_payload_size`
//! bytes, and the capacity of the channel of messages.

mod message;
mod route;
pub(crate) mod run;
mod section;
mod servers;
mod state;

pub use self::message::fuzz_answer;
pub use self::section::Resolver;
pub(crate) use self::state::Asked;
pub use self::state::Counters;
