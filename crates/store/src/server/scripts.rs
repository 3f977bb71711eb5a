//! The server's side of a store's scripts: commands about the server, and observers of their commands.

use std::sync::Weak;
use std::time::Duration;

use sluicegate_wire::resp::ReplyWriter;

use super::dispatch::{self, INDEX, judge};
use super::{Server, slowlog};
use crate::catalogue::Flags;
use crate::script::Surroundings;

/// The address of a command that no client sent, as in Redis.
const NOBODY: &str = "?:0";

/// The server around a store's scripts, while it lives.
pub(super) struct AroundScripts(pub Weak<Server>);

impl Surroundings for AroundScripts {
    fn tell(&self, row: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> bool {
        self.0.upgrade().is_some_and(|server| dispatch::tell(&server, row, words, out))
    }

    fn show(&self, row: u16, words: &[&[u8]], db: u32, sender: &str) {
        let Some(server) = self.0.upgrade() else { return };
        // Effects that only this store knows are no commands.
        let Some(row) = INDEX.rows().get(usize::from(row)) else { return };
        if !row.spec.flags.has(Flags::ADMIN) {
            let limit = server.options().client_output_buffer_limit[0];
            server.monitors.show(row, &format!("{db} {sender}"), words, limit);
        }
    }

    fn judge(&self, row: u16, words: &[&[u8]], client: u64, spent: Duration) {
        let Some(server) = self.0.upgrade() else { return };
        let shortened = || slowlog::shortened(&INDEX.rows()[usize::from(row)], words);
        let sender = || match server.clients.with_id(client) {
            Some(client) => client.sender(),
            None => (NOBODY.to_owned(), String::new()),
        };
        judge(&server, &server.options(), row, spent, sender, shortened);
    }
}
