//! Certificates by ACME (RFC 8555): `acme` sections, HAProxy 3.2's commands, and a state file.
//!
//! A task of the control thread looks through the certificates with `acme` at the start, after a reload and every 12
//! hours (`run`), and renews those of whose validity less than a twelfth is left. A renewal is one state machine
//! (`order`), which has the steps, pauses and numbers of attempts of HAProxy's; requests are made by the process's HTTP
//! client and signed by the account's key (`account`). The new certificate replaces the old one in listeners as `commit
//! ssl cert` does; the old one serves until then, and for good if the renewal fails. `state` keeps new certificates
//! across restarts, a reload across configurations.
//!
//! Keys are generated and files are written on threads for blocking work. Limits: eight renewals at a time, names
//! and authorizations by what `domains` may have, bodies, deadlines and pauses by the constants of `order`.

mod account;
mod order;
mod run;
mod state;

pub(crate) use run::{due_at, run};
pub use state::{fuzz_state, restored};
