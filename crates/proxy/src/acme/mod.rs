//! Certificates by ACME (RFC 8555): `acme` sections, HAProxy 3.2's commands, and a state file.
//!
//! A task of the control thread looks through the certificates with `acme` at the start, after a reload and every 12
//! hours (`run`), and renews those with less than a twelfth of their validity left. A renewal is one state machine
//! (`order`) with HAProxy's steps, pauses and numbers of attempts; requests are made by the process's HTTP client and
//! signed by the account's key (`account`). The new certificate replaces the old one in listeners as `commit ssl cert`
//! does; if the renewal fails, the old one stays. New certificates are kept across restarts by `state`, and across
//! configurations by a reload.
//!
//! Keys are generated and files are written on threads for blocking work. Limits: eight renewals at a time, names
//! and authorizations by what `domains` may have, bodies, deadlines and pauses by the constants of `order`.

mod account;
mod order;
mod run;
mod state;

pub(crate) use run::{due_at, run};
pub use state::{fuzz_state, restored};
