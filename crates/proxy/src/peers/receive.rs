//! What a peer sends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::DataKind;
use sluicegate_wire::peers::columns::Part;
use sluicegate_wire::peers::{
    Column, Control, Definition, DefinitionError, Fault, Malformed, Message, Update, read_key, read_values,
};

use super::SharedTable;
use super::messages::{Scratch, key_kind, kind_of};
use super::session::{Connection, End, Settings};
use super::state::{Inner, Learning, Peer, PeerTable, of_peer};
use crate::stick::{Key, Learned, Table, is_summed, is_tag};

/// The time that a sign of life gives a peer.
const ALIVE: Duration = Duration::from_secs(5);

/// Acts on a message.
///
/// # Errors
/// The end of the connection.
pub(super) fn message(
    connection: &Connection,
    settings: &Settings,
    message: &Message<'_>,
    scratch: &mut Scratch,
) -> Result<(), End> {
    let section = &connection.section;
    let mut inner = section.state.inner.lock();
    let inner = &mut *inner;
    let peer = &mut inner.peers[connection.index];
    peer.flags |= of_peer::ALIVE;
    match message {
        Message::Control(control) => self::control(inner, connection, settings, *control),
        Message::Define(body) => define(peer, body),
        Message::Switch(number) => {
            peer.remote_table = peer.tables.iter().position(|table| table.remote_id == *number && *number != 0);
            Ok(())
        }
        Message::Update(head, body) => {
            let Some(at) = peer.remote_table else { return Ok(()) };
            let update = Update::read(*head, body)?;
            learn_update(peer, at, &update, scratch).map_err(End::from)
        }
        Message::Columns(kind, body) => {
            let (Some(at), Some(part)) = (peer.remote_table, Part::read(*kind, body)?) else { return Ok(()) };
            if !peer.has_columns {
                return Ok(());
            }
            let passes_on = inner.peers.iter().any(|peer| peer.is_established && !peer.is_local && !peer.has_columns);
            let peer = &mut inner.peers[connection.index];
            learn_part(peer, at, &part, (section.local_name(), passes_on), scratch).map_err(End::from)
        }
        Message::Ack { table, update } => {
            acknowledged(peer, *table, *update);
            Ok(())
        }
        // The peer closes the connection.
        Message::Fault(_) => Ok(()),
        Message::Other => Ok(()),
    }
}

fn control(inner: &mut Inner, connection: &Connection, settings: &Settings, control: Control) -> Result<(), End> {
    let (index, now) = (connection.index, Instant::now());
    let peer = &mut inner.peers[index];
    match control {
        Control::Request => {
            peer.tables.iter_mut().for_each(PeerTable::begin_teaching);
            peer.flags = peer.flags & !of_peer::TAUGHT | of_peer::TEACH | of_peer::ASKED;
            peer.next_table = 0;
        }
        Control::Finished | Control::Partial => {
            peer.confirm += 1;
            if peer.learning == Learning::Processing {
                inner.learned(index, control == Control::Finished, now);
                connection.section.state.kick.notify_one();
            }
        }
        Control::Confirm => {
            if settings.is_stopping() {
                peer.flags |= of_peer::SUCCEEDED;
                return Err(End::Closed);
            }
            if peer.flags & of_peer::TEACH != 0 {
                for table in &mut peer.tables {
                    (table.update, table.last_pushed) = (table.teaching_origin, table.teaching_origin);
                    table.taught = None;
                }
                peer.flags &= !(of_peer::TEACH | of_peer::TAUGHT);
            }
        }
        Control::Heartbeat => {
            peer.reconnect = Some(now + ALIVE);
            peer.received_heartbeats = peer.received_heartbeats.wrapping_add(1);
        }
    }
    Ok(())
}

/// Notes that a peer has received the changes of a table up to a number, if it was sent that many.
fn acknowledged(peer: &mut Peer, table: u64, update: u32) {
    if peer.flags & of_peer::TEACH != 0 {
        return;
    }
    if let Some(table) = peer.tables.iter_mut().find(|known| known.local_id == table)
        && update.wrapping_sub(table.update) <= table.last_pushed.wrapping_sub(table.update)
    {
        table.update = update;
    }
}

fn define(peer: &mut Peer, body: &[u8]) -> Result<(), End> {
    peer.remote_table = None;
    let found = match Definition::read(body) {
        Ok(found) => found,
        Err(DefinitionError::Malformed) => return Err(End::Fault(Fault::Protocol)),
        Err(DefinitionError::Unusable) => return Ok(()),
    };
    for table in &mut peer.tables {
        if table.remote_id == found.number {
            table.remote_id = 0;
        }
    }
    let is_it = |table: &PeerTable| table.shared.config.shared_name().as_bytes() == found.name;
    let Some(at) = peer.tables.iter().position(is_it) else { return Ok(()) };
    let table = &mut peer.tables[at];
    let key = table.table().key;
    if key_kind(key) != found.key || key.shared_size() != found.key_size {
        return Ok(());
    }
    table.remote_id = found.number;
    if table.columns != found.columns {
        table.learn_places(found.columns);
    }
    peer.remote_table = Some(at);
    Ok(())
}

impl PeerTable {
    /// Determines the places of a peer's values.
    fn learn_places(&mut self, columns: Vec<Column>) {
        let SharedTable { table, config, target } = &self.shared;
        let places = |columns: &[Column], table: &Table, is_taken: &dyn Fn(DataKind) -> bool| {
            let of_column = |column: &Column| {
                let kind = kind_of(column.number).filter(|kind| table.has(*kind) && is_taken(*kind));
                (0..column.elements).map(move |element| kind.map(|kind| (kind, element)))
            };
            columns.iter().flat_map(of_column).collect::<Vec<_>>()
        };
        let is_learned = |kind: DataKind| kind != DataKind::ConnCur || config.recv_only;
        let sums = table.is_aggregate();
        self.places = places(&columns, table, &|kind| is_learned(kind) && !(sums && is_summed(kind)));
        self.part_places = places(&columns, table, &is_learned);
        self.summed = columns.iter().filter(|column| kind_of(column.number).is_some_and(is_summed)).copied().collect();
        self.summed_places = places(&self.summed, table, &is_learned);
        // Values that are computed with would interfere with those of the target.
        self.target_places = target.as_ref().map(|target| places(&columns, target, &is_tag)).unwrap_or_default();
        self.columns = columns;
    }

    /// Returns the key at the start of `rest`, and skips it.
    fn key(&self, rest: &mut &[u8]) -> Result<Option<Key>, Malformed> {
        let kind = self.table().key;
        let key = read_key(rest, key_kind(kind), kind.shared_size())?;
        Ok(Key::of_peer(kind, &key))
    }
}

fn learn_update(peer: &mut Peer, at: usize, update: &Update<'_>, scratch: &mut Scratch) -> Result<(), Malformed> {
    let is_of_many = peer.learning == Learning::Processing;
    let table = &mut peer.tables[at];
    table.last_got = update.id.unwrap_or(table.last_got.wrapping_add(1));
    let mut rest = update.rest;
    let Some(key) = table.key(&mut rest)? else { return Ok(()) };
    scratch.values.clear();
    read_values(rest, &table.columns, &mut peer.received, &mut scratch.values)?;
    let (values, expire_ms) = (&scratch.values, update.expire_ms);
    let learned = Learned {
        places: &table.places,
        values,
        node: None,
        expire_ms,
        version: None,
        is_own: false,
        passes_on: false,
        is_of_many,
    };
    table.table().learn(&key, &learned);
    learn_in_target(table, &key, &learned);
    Ok(())
}

/// Returns the version of a peer's tags, below the latest ones: what is set afterwards has a later one.
fn limited(version: u64) -> u64 {
    version.min(u64::MAX >> 1)
}

fn learn_in_target(table: &PeerTable, key: &Key, learned: &Learned<'_>) {
    if let Some(target) = &table.shared.target {
        let places = &table.target_places;
        target.learn(key, &Learned { places, node: None, is_own: false, passes_on: false, ..*learned });
    }
}

fn learn_part(
    peer: &mut Peer,
    at: usize,
    part: &Part<'_>,
    (local_name, passes_on): (&str, bool),
    scratch: &mut Scratch,
) -> Result<(), Malformed> {
    let is_of_many = peer.learning == Learning::Processing;
    let table = &mut peer.tables[at];
    if let Some(id) = part.id {
        table.last_got = id;
    }
    let mut rest = part.rest;
    let Some(key) = table.key(&mut rest)? else { return Ok(()) };
    let columns = if part.node.is_some() { &table.summed } else { &table.columns };
    scratch.values.clear();
    read_values(rest, columns, &mut peer.received, &mut scratch.values)?;
    let named = |name: &str| {
        if name == local_name {
            return Some((None, true));
        }
        let node = table.table().nodes().iter().position(|node: &Arc<str>| **node == *name)?;
        Some((Some(node), false))
    };
    let (places, whose) = match part.node {
        // A local peer that teaches is this node before its restart.
        None if peer.is_local => (&table.part_places, Some((None, true))),
        None => (&table.part_places, named(&peer.name)),
        Some(name) => (&table.summed_places, named(name)),
    };
    let Some((node, is_own)) = whose else { return Ok(()) };
    let (values, expire_ms, version) = (&scratch.values, Some(part.expire_ms), part.version.map(limited));
    let learned = Learned { places, values, node, expire_ms, version, is_own, passes_on, is_of_many };
    table.table().learn(&key, &learned);
    if part.node.is_none() {
        learn_in_target(table, &key, &learned);
    }
    Ok(())
}
