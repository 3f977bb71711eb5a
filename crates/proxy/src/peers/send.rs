//! What a peer is sent: acknowledgements, changes, all entries if it asks for them, signs of life.

use std::time::Instant;

use sluicegate_wire::peers::columns::Part;
use sluicegate_wire::peers::{Control, Update, write_ack, write_control};

use super::messages::{Content, Scratch, append, definition};
use super::session::{Connection, OUT_MAX, Settings};
use super::state::{Inner, Learning, Peer, of_peer};
use crate::stick::Changed;

/// Bytes of an update's body besides its key and its values, at most.
const HEAD_MAX: usize = 24;

/// Appends messages; returns whether there are more.
pub(super) fn messages(connection: &Connection, settings: &Settings, out: &mut Vec<u8>, scratch: &mut Scratch) -> bool {
    let section = &connection.section;
    let mut inner = section.state.inner.lock();
    let is_more = append_all(&mut inner, connection, settings, out, scratch);
    if !out.is_empty() {
        inner.note_sent(connection.index, Instant::now());
    }
    is_more
}

fn append_all(
    inner: &mut Inner,
    connection: &Connection,
    settings: &Settings,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> bool {
    let (is_up_to_date, needs_parts) = (inner.is_up_to_date(), inner.needs_parts);
    let peer = &mut inner.peers[connection.index];
    if peer.flags & of_peer::HEARTBEAT != 0 {
        write_control(Control::Heartbeat, out);
        peer.flags &= !of_peer::HEARTBEAT;
        peer.sent_heartbeats = peer.sent_heartbeats.wrapping_add(1);
    }
    if peer.learning == Learning::Assigned && !peer.is_local {
        write_control(Control::Request, out);
        peer.learning = Learning::Processing;
    }
    let mut batch = Batch { left: settings.at_once, message_max: settings.message_max };
    for _ in 0..peer.tables.len() {
        let at = peer.next_table % peer.tables.len();
        let table = &mut peer.tables[at];
        if table.last_got != table.last_acked {
            write_ack(table.remote_id, table.last_got, out);
            table.last_acked = table.last_got;
        }
        // After a restart this node's part is greater than it knows, and would be overwritten by what it has counted since.
        let is_held = needs_parts && peer.has_columns && peer.tables[at].table().is_aggregate();
        let is_done = match peer.flags & (of_peer::TEACH | of_peer::TAUGHT) {
            0 if is_held => true,
            0 if peer.learning == Learning::No => batch.changes(peer, at, out, scratch),
            of_peer::TEACH => batch.teach(peer, at, out, scratch),
            _ => true,
        };
        if !is_done {
            return true;
        }
        peer.next_table = at + 1;
    }
    if peer.flags & (of_peer::TEACH | of_peer::TAUGHT) == of_peer::TEACH {
        write_control(if is_up_to_date { Control::Finished } else { Control::Partial }, out);
        peer.flags |= of_peer::TAUGHT;
    }
    for _ in 0..std::mem::take(&mut peer.confirm) {
        write_control(Control::Confirm, out);
    }
    false
}

/// A number of entries after which others have their turn.
struct Batch {
    left: usize,
    message_max: usize,
}

impl Batch {
    fn is_full(&self, out: &[u8]) -> bool {
        self.left == 0 || out.len() >= OUT_MAX
    }

    /// Appends changes of a table; returns whether none are left.
    fn changes(&mut self, peer: &mut Peer, at: usize, out: &mut Vec<u8>, scratch: &mut Scratch) -> bool {
        let (table, from) = (peer.tables[at].table().clone(), peer.tables[at].last_pushed);
        if from == table.last_change() {
            return true;
        }
        let mut entries = Entries::begin(self, peer, at, false);
        entries.define(out, scratch);
        let Scratch { copy, rest, body, .. } = scratch;
        let mut is_done = true;
        let last = table.changes_after(from, copy, |copy| {
            entries.append(copy, copy.number, (&mut *out, &mut *rest, &mut *body));
            is_done = !entries.batch.is_full(out);
            is_done
        });
        peer.tables[at].last_pushed = last;
        is_done
    }

    /// Appends entries of a table that is taught from its beginning; returns whether none are left.
    fn teach(&mut self, peer: &mut Peer, at: usize, out: &mut Vec<u8>, scratch: &mut Scratch) -> bool {
        let Some(from) = peer.tables[at].taught else { return true };
        let (table, mut number) = (peer.tables[at].table().clone(), peer.tables[at].taught_number);
        let mut entries = Entries::begin(self, peer, at, true);
        entries.define(out, scratch);
        let Scratch { copy, rest, body, .. } = scratch;
        let next = table.entries_from(from, copy, |copy| {
            number = number.wrapping_add(1);
            entries.append(copy, number, (&mut *out, &mut *rest, &mut *body));
            !entries.batch.is_full(out)
        });
        let table = &mut peer.tables[at];
        (table.taught, table.taught_number) = (next, number);
        next.is_none()
    }
}

/// Entries of a table that are appended.
struct Entries<'a> {
    batch: &'a mut Batch,
    peer: &'a mut Peer,
    at: usize,
    /// Whether they have the time until they expire: the peer does not know them.
    is_taught: bool,
    /// The number of the last one; `None` before the first, which has its number for this reason.
    last: Option<u32>,
    /// Whether the peer is sent the parts of nodes.
    in_parts: bool,
}

impl<'a> Entries<'a> {
    fn begin(batch: &'a mut Batch, peer: &'a mut Peer, at: usize, is_taught: bool) -> Entries<'a> {
        let in_parts = peer.has_columns && peer.tables[at].table().is_aggregate();
        Entries { batch, peer, at, is_taught, last: None, in_parts }
    }

    /// Appends the definition of the table, unless the last one was this table's.
    fn define(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) {
        if self.peer.local_table != Some(self.at) {
            let table = &self.peer.tables[self.at];
            definition(&table.shared, table.local_id).write(out, &mut scratch.body);
            self.peer.local_table = Some(self.at);
        }
    }

    fn append(
        &mut self,
        copy: &mut Changed,
        number: u32,
        (out, rest, body): (&mut Vec<u8>, &mut Vec<u8>, &mut Vec<u8>),
    ) {
        self.batch.left = self.batch.left.saturating_sub(1);
        let table = self.peer.tables[self.at].table().clone();
        if self.peer.shard > 0 && table.shard_of(copy.key()) != self.peer.shard {
            self.last = None;
            return;
        }
        rest.clear();
        let content = if self.in_parts { Content::Own } else { Content::Sums };
        append(&table, copy, content, &mut self.peer.sent, rest);
        if rest.len() + HEAD_MAX > self.batch.message_max {
            // The peer would end the connection.
            self.last = None;
            return;
        }
        let expire_ms = copy.left_ms;
        if self.in_parts {
            let version = copy.row(&table).tag_version();
            Part { id: Some(number), expire_ms, version, node: None, rest: rest.as_slice() }.write(out, body);
            if self.is_taught {
                self.append_parts(copy, expire_ms, (out, rest, body));
            }
            return;
        }
        let follows = self.last.is_some_and(|last| last.wrapping_add(1) == number);
        let is_timed = self.is_taught && self.peer.minor() > 0;
        let update = Update {
            id: (!follows).then_some(number),
            expire_ms: is_timed.then_some(expire_ms),
            rest: rest.as_slice(),
        };
        update.write(out, body);
        self.last = Some(number);
    }

    /// Appends what is known of other nodes: those that the peer does not hear of itself, and its own part, of which it
    /// may know less after a restart.
    fn append_parts(
        &mut self,
        copy: &mut Changed,
        expire_ms: u32,
        (out, rest, body): (&mut Vec<u8>, &mut Vec<u8>, &mut Vec<u8>),
    ) {
        let table = self.peer.tables[self.at].table().clone();
        for (node, name) in table.nodes().iter().enumerate() {
            rest.clear();
            let is_any = append(&table, copy, Content::Of(node), &mut self.peer.sent, rest);
            if is_any && rest.len() + HEAD_MAX + name.len() <= self.batch.message_max {
                Part { id: None, expire_ms, version: None, node: Some(&**name), rest: rest.as_slice() }
                    .write(out, body);
            }
        }
    }
}
