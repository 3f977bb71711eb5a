//! MONITOR: every command of any worker, sent to the monitoring clients.
//!
//! A worker that runs a command posts a line to each monitoring client, whose own worker sends it; without such a
//! client that is one load. Lines of one worker are in its order, those of several in the order of their posting. A
//! client that does not read is closed, as its lines wait in a bounded buffer. Administrative commands and passwords
//! are not shown, as in Redis. Commands of scripts have the origin `lua`; those of a restarted script are shown for
//! both runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::client::Client;
use super::dispatch::{Context, Outcome, Row};
use crate::outbox::OutputLimit;
use crate::script::Watches;
use crate::words::quote;

/// The bytes of unsent lines that a monitoring client may have if `client-output-buffer-limit normal` sets no limit.
const WAITING_MAX: u64 = 64 << 20;

/// The replacement of a hidden word.
const REDACTED: &[u8] = b"(redacted)";

/// The clients that monitor.
#[derive(Debug, Default)]
pub(super) struct Monitors {
    count: AtomicUsize,
    clients: Mutex<Vec<Arc<Client>>>,
}

impl Monitors {
    /// Returns whether there is a monitoring client.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn add(&self, client: &Arc<Client>, scripts: &Watches) {
        let mut clients = self.clients.lock();
        if !clients.iter().any(|known| known.id == client.id) {
            clients.push(client.clone());
        }
        self.count.store(clients.len(), Ordering::Relaxed);
        scripts.show(true);
    }

    /// Removes a client that has disconnected, or does not monitor any more.
    pub fn remove(&self, client: &Client, scripts: &Watches) {
        client.set_monitor(false);
        let mut clients = self.clients.lock();
        clients.retain(|known| known.id != client.id);
        self.count.store(clients.len(), Ordering::Relaxed);
        scripts.show(!clients.is_empty());
    }

    /// Sends a command to all monitoring clients; `place` is its database and its sender.
    #[cold]
    pub fn show(&self, row: &Row, place: &str, args: &[&[u8]], limit: OutputLimit) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = format!("+{}.{:06} [{place}]", time.as_secs(), time.subsec_micros()).into_bytes();
        for (at, word) in args.iter().enumerate() {
            line.push(b' ');
            quote(if is_secret(row, args, at) { REDACTED } else { word }, &mut line);
        }
        line.extend_from_slice(b"\r\n");
        let hard = if limit.hard > 0 { limit.hard } else { WAITING_MAX };
        let limit = OutputLimit { hard, ..limit };
        let watching = self.clients.lock().clone();
        watching.iter().for_each(|client| client.post(&line, &limit));
    }
}

/// Returns whether a word is a password, or belongs to one.
pub(super) fn is_secret(row: &Row, args: &[&[u8]], at: usize) -> bool {
    row.traits.is_secret.is_some_and(|is_secret| is_secret(args, at))
}

/// `MONITOR`.
pub(super) fn monitor(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.in_exec {
        out.error("ERR MONITOR isn't allowed for DENY BLOCKING client");
        return Outcome::Done;
    }
    // Redis does not reply if the client already monitors.
    if context.client.is_monitor() {
        return Outcome::Done;
    }
    context.client.set_monitor(true);
    let server = &context.worker.server;
    server.monitors.add(context.client, &server.store.0.scripts.watches);
    out.ok();
    Outcome::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::dispatch::INDEX;

    #[test]
    fn passwords_are_not_shown() {
        let secrets = |name: &str, line: &str| {
            let row = INDEX.find_full(name.as_bytes()).expect("a row");
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            (0..args.len()).filter(|at| is_secret(row, &args, *at)).collect::<Vec<_>>()
        };
        assert_eq!(secrets("auth", "AUTH a b"), [1, 2]);
        assert_eq!(secrets("hello", "HELLO 3 SETNAME x AUTH a b"), [5, 6]);
        assert_eq!(secrets("config|set", "CONFIG SET timeout 1 requirepass x"), [5]);
        assert_eq!(secrets("get", "GET auth"), []);
    }
}
