//! Names that are resolved while the process runs: `resolvers` sections, the servers that follow a name, and rules that
//! ask for one.
//!
//! A [`Resolver`] is a section. What it knows stands behind one lock (`state`) and moves by three things: time, a
//! message, and a rule that asks. The control thread drives it (`run`): it owns the sockets, sends questions and reads
//! answers, and changes servers (`servers`), so no worker ever waits for a name server. A rule that asks takes the
//! lock for a look-up, gets an answer that is fresh enough at once, or waits for a channel.
//!
//! Names, their records and the times of the last good answers outlive a snapshot: the next one has the same `Resolver`
//! if its section is the same.
//!
//! Limits: records of a name `state::RECORDS`, rules that wait `state::WAITING`, a message of `accepted_payload_size`
//! bytes, and as many messages as a channel holds.

mod message;
pub(crate) mod run;
mod section;
mod servers;
mod state;

pub use self::message::fuzz_answer;
pub use self::section::Resolver;
pub(crate) use self::state::Asked;
pub use self::state::Counters;
