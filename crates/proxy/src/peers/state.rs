//! How far the peers of a section are, and whether this process has all entries.
//!
//! This follows HAProxy's `peers.c`: the flags have its values, since `show peers` prints them, and the times are its
//! times. All changes are made by the control thread; the lock is for commands and the next snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use sluicegate_config::model::DataKind;
use sluicegate_wire::peers::Column;
use sluicegate_wire::peers::dictionary::{Received, Sent};
use sluicegate_wire::peers::hello::Status;
use tokio::sync::Notify;

use super::{Section, SharedTable};
use crate::random::random_below;
use crate::stick::{Table, Wake};

/// The time after which a resynchronisation that does not begin is not waited for.
const RESYNC: Duration = Duration::from_secs(5);
/// The time between attempts to connect, and the period in which a peer must have sent something.
const RECONNECT: Duration = Duration::from_secs(5);
/// The time between signs of life.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// Flags of a section.
pub(super) mod of_section {
    /// Nothing is learned from the local peer any more.
    pub(crate) const LOCAL_FINISHED: u32 = 0x1;
    /// Nothing is learned from other peers any more.
    pub(crate) const REMOTE_FINISHED: u32 = 0x2;
    pub(crate) const FINISHED: u32 = LOCAL_FINISHED | REMOTE_FINISHED;
    /// A peer is learned from.
    pub(crate) const ASSIGNED: u32 = 0x4;
    pub(crate) const LOCAL_TIMEOUT: u32 = 0x10_0000;
    pub(crate) const REMOTE_TIMEOUT: u32 = 0x20_0000;
    pub(crate) const LOCAL_ABORT: u32 = 0x40_0000;
    pub(crate) const REMOTE_ABORT: u32 = 0x80_0000;
    pub(crate) const LOCAL_DONE: u32 = 0x100_0000;
    pub(crate) const REMOTE_DONE: u32 = 0x200_0000;
    pub(crate) const LOCAL_PARTIAL: u32 = 0x400_0000;
    pub(crate) const REMOTE_PARTIAL: u32 = 0x800_0000;
    pub(crate) const LOCAL_ASSIGNED: u32 = 0x1000_0000;
    pub(crate) const REMOTE_ASSIGNED: u32 = 0x2000_0000;
}

/// Flags of a peer.
pub(super) mod of_peer {
    /// It is taught all entries.
    pub(crate) const TEACH: u32 = 0x1;
    /// It was sent all of them, and has not confirmed that yet.
    pub(crate) const TAUGHT: u32 = 0x2;
    /// The next process has confirmed that it has all entries.
    pub(crate) const SUCCEEDED: u32 = 0x4;
    /// It cannot teach all entries.
    pub(crate) const NOT_UP_TO_DATE: u32 = 0x8;
    /// It has sent something in this period.
    pub(crate) const ALIVE: u32 = 0x20;
    /// A sign of life is due.
    pub(crate) const HEARTBEAT: u32 = 0x40;
    /// It speaks version 2.0.
    pub(crate) const OLD_VERSION: u32 = 0x80;
    /// It has asked for all entries at least once.
    pub(crate) const ASKED: u32 = 0x10_0000;
}

/// HAProxy's numbers of a connection that is not established.
pub(super) const CONNECTING: u32 = 100;
pub(super) const CONNECTED: u32 = 110;

/// Whether this process learns all entries from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Learning {
    #[default]
    No,
    /// It is to be asked.
    Assigned,
    /// It was asked, or teaches unasked.
    Processing,
}

/// What outlives the snapshots of a section.
pub(crate) struct State {
    name: Arc<str>,
    /// Wakes the exchange when an entry has changed.
    pub(crate) wake: Arc<Wake>,
    /// Wakes the exchange when something else has happened.
    pub(super) kick: Notify,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) flags: u32,
    pub(super) resync_until: Option<Instant>,
    pub(super) since: SystemTime,
    /// The number of steps of the exchange.
    pub(super) calls: u32,
    pub(super) peers: Vec<Peer>,
    /// Whether the parts of nodes, this one's as well, are still to be learned, which a peer without own columns does not
    /// have.
    pub(super) needs_parts: bool,
    connections: u64,
}

/// A peer.
pub(super) struct Peer {
    pub(super) name: Arc<str>,
    pub(super) is_local: bool,
    pub(super) shard: u32,
    /// The number of the connection that is used.
    pub(super) connection: Option<u64>,
    /// What is known of that connection.
    pub(super) link: Link,
    /// Whether its handshake has succeeded.
    pub(super) is_established: bool,
    /// The status of the last handshake, or how far it is; 0: none.
    pub(super) status: u32,
    pub(super) reconnect: Option<Instant>,
    pub(super) heartbeat: Option<Instant>,
    pub(super) last_handshake: Option<Instant>,
    pub(super) learning: Learning,
    pub(super) flags: u32,
    /// The number of confirmations that are due.
    pub(super) confirm: u32,
    pub(super) sent_heartbeats: u32,
    pub(super) received_heartbeats: u32,
    pub(super) missed_heartbeats: u32,
    pub(super) new_connections: u32,
    pub(super) protocol_errors: u32,
    pub(super) collisions: u32,
    /// Whether it understands messages about own columns.
    pub(super) has_columns: bool,
    pub(super) tables: Vec<PeerTable>,
    /// The table of the updates that are received, and of those that are sent.
    pub(super) remote_table: Option<usize>,
    pub(super) local_table: Option<usize>,
    /// The table that is sent next.
    pub(super) next_table: usize,
    pub(super) sent: Sent,
    pub(super) received: Received,
    /// Wakes its connection.
    pub(super) kick: Arc<Notify>,
}

/// What `show peers` shows of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) transport: &'static str,
    pub(super) source: Option<std::net::SocketAddr>,
    pub(super) destination: Option<std::net::SocketAddr>,
}

/// A table as a peer knows it.
pub(super) struct PeerTable {
    pub(super) shared: SharedTable,
    /// This node's number of the table.
    pub(super) local_id: u64,
    /// The peer's number of the table; 0: it has not defined it.
    pub(super) remote_id: u64,
    /// The data of its updates.
    pub(super) columns: Vec<Column>,
    /// The places of an update's values in an entry; `None`: they are not taken over.
    pub(super) places: Vec<Option<(DataKind, u32)>>,
    /// The same for the parts of nodes: all values of the sender's own part, and those that are summed.
    pub(super) part_places: Vec<Option<(DataKind, u32)>>,
    pub(super) summed: Vec<Column>,
    pub(super) summed_places: Vec<Option<(DataKind, u32)>>,
    /// The same for the table of `write-to`.
    pub(super) target_places: Vec<Option<(DataKind, u32)>>,
    pub(super) last_acked: u32,
    pub(super) last_pushed: u32,
    pub(super) last_got: u32,
    pub(super) teaching_origin: u32,
    /// The last number that the peer has acknowledged.
    pub(super) update: u32,
    /// How far the table is taught: the next position, `None`: to its end.
    pub(super) taught: Option<(usize, u32)>,
    pub(super) taught_number: u32,
}

impl PeerTable {
    fn new(shared: SharedTable, local_id: u64) -> PeerTable {
        PeerTable {
            shared,
            local_id,
            remote_id: 0,
            columns: Vec::new(),
            places: Vec::new(),
            part_places: Vec::new(),
            summed: Vec::new(),
            summed_places: Vec::new(),
            target_places: Vec::new(),
            last_acked: 0,
            last_pushed: 0,
            last_got: 0,
            teaching_origin: 0,
            update: 0,
            taught: None,
            taught_number: 0,
        }
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    /// Prepares the table for being taught from its beginning.
    pub(super) fn begin_teaching(&mut self) {
        self.teaching_origin = self.shared.table.number_changes();
        self.taught = Some((0, 0));
        self.taught_number = self.teaching_origin.wrapping_add(1 << 31);
    }
}

impl State {
    pub(super) fn new(name: Arc<str>) -> State {
        let inner = Inner {
            flags: 0,
            resync_until: None,
            since: SystemTime::now(),
            calls: 0,
            peers: Vec::new(),
            needs_parts: false,
            connections: 0,
        };
        State { name, wake: Arc::default(), kick: Notify::new(), inner: Mutex::new(inner) }
    }

    /// Returns the section's name.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl Inner {
    /// Adopts the peers and tables of a section. Peers and tables that it had before keep their numbers.
    pub(super) fn adopt(&mut self, section: &Section) {
        let mut before = std::mem::take(&mut self.peers);
        for (index, server) in section.config.proxy.servers.iter().enumerate() {
            let is_local = section.local() == Some(index);
            let known = before.iter().position(|peer| peer.name == server.name && peer.is_local == is_local);
            let mut peer = match known {
                Some(at) => before.swap_remove(at),
                None => Peer::new(server.name.clone(), is_local),
            };
            peer.shard = server.shard;
            let mut tables = std::mem::take(&mut peer.tables);
            for (number, shared) in section.tables.iter().enumerate() {
                let known = tables.iter().position(|known| Arc::ptr_eq(known.table(), &shared.table));
                let mut table = PeerTable::new(shared.clone(), number as u64 + 1);
                match known.map(|at| tables.swap_remove(at)) {
                    Some(known) => table.update = known.update,
                    None => self.needs_parts |= shared.table.is_aggregate(),
                }
                peer.tables.push(table);
            }
            self.peers.push(peer);
        }
    }

    /// Returns the number of a new connection.
    pub(super) fn next_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// Returns whether this process has all entries, as far as they are to be had.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.flags & of_section::FINISHED == of_section::FINISHED
    }

    fn learns_from(&self, stage: u32) -> bool {
        self.flags & of_section::FINISHED == stage && self.flags & of_section::ASSIGNED == 0
    }

    /// The handshake with a peer has succeeded on the connection that is used. `is_outgoing`: this side has connected.
    pub(super) fn established(&mut self, index: usize, is_outgoing: bool, now: Instant) {
        self.stop_learning(index, now);
        let peer = &mut self.peers[index];
        peer.status = Status::Success.number();
        (peer.last_handshake, peer.heartbeat) = (Some(now), Some(now + HEARTBEAT));
        if peer.reconnect.is_none_or(|at| at <= now) {
            peer.reconnect = Some(now + RECONNECT);
        }
        peer.is_established = true;
        peer.confirm = 0;
        peer.flags &= !(of_peer::TEACH | of_peer::TAUGHT);
        peer.flags |= of_peer::ALIVE;
        let teaches = peer.is_local && is_outgoing;
        if teaches {
            peer.flags |= of_peer::TEACH;
        }
        (peer.next_table, peer.local_table, peer.remote_table) = (0, None, None);
        for table in &mut peer.tables {
            (table.last_got, table.last_acked) = (0, 0);
            table.last_pushed = table.update;
            table.teaching_origin = table.update;
            table.taught = None;
            if teaches {
                table.begin_teaching();
            }
        }
        let is_local = peer.is_local;
        if is_local && !is_outgoing && self.learns_from(0) {
            self.peers[index].learning = Learning::Processing;
            self.flags |= of_section::ASSIGNED | of_section::LOCAL_ASSIGNED;
        } else if !is_local && self.is_to_be_asked(index) {
            self.assign(index);
        }
    }

    /// Returns whether all entries, or the parts of nodes, are to be learned from a peer that is not the local one.
    fn is_to_be_asked(&self, index: usize) -> bool {
        let is_free = self.flags & (of_section::LOCAL_FINISHED | of_section::ASSIGNED) == of_section::LOCAL_FINISHED;
        is_free && (!self.is_up_to_date() || self.needs_parts && self.peers[index].has_columns)
    }

    fn assign(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if peer.flags & of_peer::NOT_UP_TO_DATE == 0 {
            peer.learning = Learning::Assigned;
            peer.kick.notify_one();
            self.flags |= of_section::ASSIGNED | of_section::REMOTE_ASSIGNED;
        }
    }

    /// Ends learning from a peer that has not taught everything; another one is looked for.
    fn stop_learning(&mut self, index: usize, now: Instant) {
        let peer = &mut self.peers[index];
        if peer.learning != Learning::No {
            peer.put_tables_in_order();
            peer.learning = Learning::No;
            let aborted = if peer.is_local { of_section::LOCAL_ABORT } else { of_section::REMOTE_ABORT };
            self.flags = self.flags & !of_section::ASSIGNED | aborted;
            self.resync_until = Some(now + RESYNC);
        }
        peer.flags &= !of_peer::NOT_UP_TO_DATE;
    }

    /// A peer has taught all that it has. `is_whole`: it was up to date.
    pub(super) fn learned(&mut self, index: usize, is_whole: bool, now: Instant) {
        let (is_local, shard) = (self.peers[index].is_local, self.peers[index].shard);
        self.peers[index].put_tables_in_order();
        self.peers[index].learning = Learning::No;
        if self.needs_parts && self.peers[index].has_columns {
            self.needs_parts = false;
            // What was held back meanwhile.
            self.peers.iter().filter(|peer| peer.is_established).for_each(|peer| peer.kick.notify_one());
        }
        self.flags &= !of_section::ASSIGNED;
        let (partial, done) = match is_local {
            true => (of_section::LOCAL_PARTIAL, of_section::LOCAL_DONE),
            false => (of_section::REMOTE_PARTIAL, of_section::REMOTE_DONE),
        };
        if !is_whole {
            self.peers[index].flags |= of_peer::NOT_UP_TO_DATE;
            self.flags |= partial;
            self.resync_until = Some(now + RESYNC);
            return;
        }
        let mut is_complete = true;
        if shard > 0 {
            self.flags |= partial;
            self.peers[index].flags |= of_peer::NOT_UP_TO_DATE;
            for (other, peer) in self.peers.iter_mut().enumerate().filter(|(_, peer)| peer.shard > 0) {
                if other == index {
                    continue;
                }
                if peer.shard == shard {
                    peer.flags |= of_peer::NOT_UP_TO_DATE;
                } else if peer.flags & of_peer::NOT_UP_TO_DATE == 0 {
                    // Another part of the keys is still to be asked for.
                    is_complete = false;
                }
            }
            if !is_complete {
                self.resync_until = Some(now + RESYNC);
            }
        }
        if is_complete {
            self.flags |= of_section::FINISHED | done;
        }
    }

    /// Closes the connection that is used.
    pub(super) fn close(&mut self, index: usize, now: Instant) {
        let peer = &mut self.peers[index];
        peer.connection = None;
        peer.is_established = false;
        peer.flags &= !(of_peer::TEACH | of_peer::TAUGHT | of_peer::ALIVE);
        (peer.remote_table, peer.local_table) = (None, None);
        (peer.sent, peer.received) = (Sent::default(), Received::default());
        peer.kick.notify_one();
        self.stop_learning(index, now);
    }

    /// Takes a step of the exchange. Returns the peers to connect to, and the time of the next step at the latest.
    pub(super) fn step(&mut self, has_predecessor: bool, now: Instant) -> (Vec<usize>, Option<Instant>) {
        self.calls = self.calls.wrapping_add(1);
        let resync_until = *self.resync_until.get_or_insert(now + RESYNC);
        if self.learns_from(0) && (!has_predecessor || resync_until <= now) {
            self.flags |= of_section::LOCAL_FINISHED | of_section::LOCAL_TIMEOUT;
            self.resync_until = Some(now + RESYNC);
        }
        let (mut to_connect, mut next) = (Vec::new(), None);
        let mut earlier = |at: Option<Instant>| next = [next, at].into_iter().flatten().min();
        for index in 0..self.peers.len() {
            if self.peers[index].is_local {
                continue;
            }
            if self.peers[index].connection.is_none() {
                let peer = &mut self.peers[index];
                if peer.status == 0 || peer.reconnect.is_none_or(|at| at <= now) {
                    peer.new_connections += 1;
                    (peer.reconnect, peer.heartbeat) = (Some(now + RECONNECT), None);
                    (peer.status, peer.last_handshake) = (CONNECTING, Some(now));
                    to_connect.push(index);
                }
                earlier(peer.reconnect);
                continue;
            }
            if !self.peers[index].is_established {
                continue;
            }
            if self.is_to_be_asked(index) {
                self.assign(index);
            }
            let peer = &mut self.peers[index];
            if peer.reconnect.is_none_or(|at| at <= now) {
                peer.reconnect = Some(now + RECONNECT);
                if peer.flags & of_peer::ALIVE != 0 {
                    peer.flags &= !of_peer::ALIVE;
                } else {
                    peer.missed_heartbeats += 1;
                    self.close(index, now);
                    let peer = &mut self.peers[index];
                    (peer.reconnect, peer.heartbeat) = (Some(now + random_pause()), None);
                    earlier(peer.reconnect);
                    continue;
                }
            }
            if peer.heartbeat.is_none_or(|at| at <= now) {
                peer.heartbeat = Some(now + HEARTBEAT);
                peer.flags |= of_peer::HEARTBEAT;
                peer.kick.notify_one();
            }
            earlier(peer.reconnect);
            earlier(peer.heartbeat);
        }
        let has_others = self.peers.iter().any(|peer| !peer.is_local);
        let resync_until = self.resync_until.unwrap_or(now);
        if self.learns_from(of_section::LOCAL_FINISHED) && (resync_until <= now || !has_others) {
            self.flags |= of_section::REMOTE_FINISHED | of_section::REMOTE_TIMEOUT;
        }
        if !self.is_up_to_date() && resync_until > now {
            earlier(self.resync_until);
        }
        (to_connect, next)
    }

    /// Notes that something was sent, in place of a sign of life.
    pub(super) fn note_sent(&mut self, index: usize, now: Instant) {
        let peer = &mut self.peers[index];
        peer.flags &= !of_peer::HEARTBEAT;
        peer.heartbeat = Some(now + HEARTBEAT);
    }

    /// Forgets the changes that all peers have.
    pub(super) fn forget_changes(&self) {
        for at in 0..self.peers.first().map_or(0, |peer| peer.tables.len()) {
            let others = self.peers.iter().filter(|peer| !peer.is_local).map(|peer| &peer.tables[at]);
            let table = self.peers[0].tables[at].table();
            let last = table.last_change();
            // The one that is furthest behind.
            let oldest = others.map(|other| other.update).max_by_key(|update| last.wrapping_sub(*update));
            table.forget_changes(oldest.unwrap_or(last));
        }
    }
}

impl Peer {
    fn new(name: Arc<str>, is_local: bool) -> Peer {
        Peer {
            name,
            is_local,
            shard: 0,
            connection: None,
            link: Link::default(),
            is_established: false,
            status: 0,
            reconnect: None,
            heartbeat: None,
            last_handshake: None,
            learning: Learning::No,
            flags: 0,
            confirm: 0,
            sent_heartbeats: 0,
            received_heartbeats: 0,
            missed_heartbeats: 0,
            new_connections: 0,
            protocol_errors: 0,
            collisions: 0,
            has_columns: false,
            tables: Vec::new(),
            remote_table: None,
            local_table: None,
            next_table: 0,
            sent: Sent::default(),
            received: Received::default(),
            kick: Arc::default(),
        }
    }

    /// Brings tables that very many entries were learned for into the order of expiry.
    fn put_tables_in_order(&self) {
        if self.learning == Learning::Processing {
            self.tables.iter().for_each(|table| table.table().put_in_order());
        }
    }

    /// Returns the minor version that it is spoken to in.
    pub(super) fn minor(&self) -> u32 {
        u32::from(self.flags & of_peer::OLD_VERSION == 0)
    }
}

/// Returns the pause before the next connection after one was closed by this side: 50 to 2050 ms, so that both sides do
/// not connect at the same time again.
pub(super) fn random_pause() -> Duration {
    Duration::from_millis(50 + random_below(2_000))
}
