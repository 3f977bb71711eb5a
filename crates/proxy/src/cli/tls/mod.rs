//! Commands about TLS: certificates, authorities, revocation lists, lists of certificates, ticket keys, and OCSP
//! responses (management guide 9.3).
//!
//! They work on the process's [`Registry`](crate::tls::Registry), by the names that files gave, and read no file. A
//! commit replaces a certificate in each listener (of stores as well) and connector that has it, for handshakes that
//! begin after it. Its cost is that of a copy of the listeners' tables, whose configurations are kept.
//!
//! A reload that is being prepared has seen the registry, so that changes meanwhile would be lost: they are refused in
//! HAProxy's words for a lock.

mod acme;
mod authorities;
mod certificates;
mod keys;
mod lists;
mod ocsp;

use super::catalogue::{Call, Command};
use crate::reload::{Turn, listeners};
use crate::running::{Running, tls_connectors};

/// The commands of these modules.
pub(super) const COMMANDS: [&[Command]; 6] =
    [acme::COMMANDS, certificates::COMMANDS, authorities::COMMANDS, lists::COMMANDS, keys::COMMANDS, ocsp::COMMANDS];

/// Returns in how many places a certificate is used.
fn uses(running: &Running, path: &str) -> usize {
    let binds = listeners(running).into_iter().map(|listener| {
        let settings = listener.settings();
        settings.entries.iter().filter(|entry| entry.pair.path == path).count()
    });
    let servers = tls_connectors(running)
        .filter(|connector| connector.settings().pair.as_ref().is_some_and(|pair| pair.path == path));
    binds.sum::<usize>() + servers.count()
}

/// What stands before HAProxy's words for a lock.
const LOCKED: &str = "Operations on certificates are currently locked!";

/// Prevents reloads until the result is dropped. `None`: one is being prepared, which the client has been told, after
/// `what` that cannot be done.
fn locked(call: &mut Call<'_>, what: &str) -> Option<Option<Turn>> {
    match call.running.process.current() {
        None => Some(None),
        Some(current) => match current.try_turn() {
            Some(turn) => Some(Some(turn)),
            None => {
                call.say(format!("{what}{LOCKED}"));
                None
            }
        },
    }
}

/// Writes the dots of a commit, one for each place.
fn dots(call: &mut Call<'_>, count: usize) {
    call.out.buffer().extend(std::iter::repeat_n(b'.', count));
}
