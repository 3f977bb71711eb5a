//! Stick tables in the state file.
//!
//! A frame has the definition of a table (name, keys, lifetime, columns), servers' names by their numbers, and entries:
//! expiry, key and data as words. Times are on the scale of the header.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use hashbrown::HashMap;
use sluicegate_config::model::{DataKind, TableData, TableKey};

use super::frame::{BODY_FULL, Header, Put, Take, Writer};
use super::{Kind, since};
use crate::running::Running;
use crate::stick::{Column, Origin, Shift, Table, now_ms};

/// The maximum number of entries that are copied while a part of a table is locked.
const COPIED: usize = 128;
/// The maximum number of columns of a table in a file.
const COLUMNS_MAX: u32 = 1024;

/// Writes all tables.
pub(super) fn write<W: Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    running.directory.tables.iter().try_for_each(|table| write_table(table, writer))
}

fn write_table<W: Write>(table: &Table, writer: &mut Writer<W>) -> io::Result<()> {
    let origin = table.origin();
    let (stride, names) = (origin.words(), table.name_places());
    let most = (BODY_FULL / 4 / stride).clamp(1, COPIED);
    let mut words = Vec::with_capacity(BODY_FULL / 4 + stride * most);
    let mut next = Some((0, 0));
    while let Some(from) = next {
        next = table.copy(from, most as u32, &mut words);
        if words.len() * 4 >= BODY_FULL || (next.is_none() && !words.is_empty()) {
            let mut body = Put::default();
            put_origin(&mut body, &table.name, &origin);
            put_names(&mut body, table, words.chunks_exact(stride), &names);
            body.u32((words.len() / stride) as u32);
            body.words(&words);
            writer.frame(Kind::Table as u8, &body.0)?;
            words.clear();
        }
    }
    Ok(())
}

fn put_origin(body: &mut Put, name: &str, origin: &Origin) {
    body.text(name.as_bytes());
    let (kind, length) = match origin.key {
        TableKey::Ip => (0, 0),
        TableKey::Ipv6 => (1, 0),
        TableKey::Integer => (2, 0),
        TableKey::Str(length) => (3, length),
        TableKey::Bin(length) => (4, length),
    };
    body.u8(kind);
    body.u32(length);
    body.u8(u8::from(origin.by_address));
    body.u32(origin.expire_ms.map_or(u32::MAX, |ms| ms));
    body.u32(origin.columns.len() as u32);
    for Column { data, words } in &origin.columns {
        let Some(data) = data else { continue };
        body.text(data.kind.name().as_bytes());
        body.u32(*words as u32);
        body.u32(data.elements);
        body.u32(data.period_ms);
        body.u32(data.block);
    }
}

fn take_origin<'a>(body: &mut Take<'a>) -> Option<(&'a str, Origin)> {
    let name = body.name()?;
    let (kind, length) = (body.u8()?, body.u32()?);
    let key = match kind {
        0 => TableKey::Ip,
        1 => TableKey::Ipv6,
        2 => TableKey::Integer,
        3 => TableKey::Str(length),
        4 => TableKey::Bin(length),
        _ => return None,
    };
    let by_address = body.u8()? != 0;
    let expire_ms = Some(body.u32()?).filter(|ms| *ms != u32::MAX);
    let count = body.u32().filter(|count| *count <= COLUMNS_MAX)?;
    let mut columns = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (kind, words) = (DataKind::named(body.name()?), body.u32()? as usize);
        let (elements, period_ms, block) = (body.u32()?, body.u32()?, body.u32()?);
        columns.push(Column { data: kind.map(|kind| TableData { kind, period_ms, elements, block }), words });
    }
    Some((name, Origin { key, by_address, expire_ms, columns }))
}

fn put_names<'a>(body: &mut Put, table: &Table, entries: impl Iterator<Item = &'a [u32]>, places: &[usize]) {
    let mut names = BTreeMap::new();
    if !places.is_empty() {
        for number in entries.flat_map(|words| places.iter().map(|at| words[*at])).filter(|number| *number > 0) {
            names.entry(number).or_insert_with(|| table.name_of(number.into()));
        }
    }
    body.u32(names.len() as u32);
    for (number, name) in names {
        body.u32(number);
        body.text(name.as_deref().unwrap_or_default().as_bytes());
    }
}

/// The tables of a process while they adopt the entries of a file.
pub(super) struct Tables<'a> {
    running: &'a Running,
    shift: Shift,
    found: BTreeMap<String, Found>,
    words: Vec<u32>,
}

/// The result of the adoption of a table's entries.
#[derive(Default)]
struct Found {
    adopted: u64,
    left_out: u64,
    lost: Vec<DataKind>,
    /// Why no entry was adopted, and their number.
    refused: Option<(&'static str, u64)>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(running: &'a Running, header: &Header) -> Tables<'a> {
        let shift = Shift { base: header.ticks, passed_ms: since(header.unix_ms), now: now_ms() };
        Tables { running, shift, found: BTreeMap::new(), words: Vec::new() }
    }

    /// Adopts the entries of a frame; `None` if it is malformed.
    pub(super) fn take(&mut self, body: &[u8]) -> Option<()> {
        let mut body = Take(body);
        let (name, origin) = take_origin(&mut body)?;
        let mut names = HashMap::new();
        for _ in 0..body.u32()? {
            let (number, name) = (body.u32()?, body.name()?);
            names.insert(number, Arc::from(name));
        }
        let count = body.u32()?;
        let stride = origin.words();
        let found = self.found.entry(name.to_owned()).or_default();
        let mut refuse = |reason| found.refused.get_or_insert((reason, 0)).1 += u64::from(count);
        let Some(table) = self.running.directory.table(name) else {
            refuse("is not in the configuration any more");
            return Some(());
        };
        let Some(mut adoption) = table.adopt(origin, self.shift) else {
            refuse("has other keys now");
            return Some(());
        };
        for _ in 0..count {
            body.words(stride, &mut self.words)?;
            adoption.add(&self.words, &names);
        }
        found.adopted += adoption.adopted;
        found.left_out += adoption.left_out;
        found.lost = adoption.lost;
        Some(())
    }

    /// Ends the adoption. Returns the messages.
    pub(super) fn finish(self) -> Vec<String> {
        let mut said = Vec::new();
        for (name, found) in self.found {
            if let Some(table) = self.running.directory.table(&name) {
                table.put_in_order();
            }
            if let Some((reason, count)) = found.refused {
                said.push(format!("stick-table {name} {reason}: its {count} entries are given up"));
            }
            if !found.lost.is_empty() && found.adopted > 0 {
                let lost: Vec<&str> = found.lost.iter().map(|kind| kind.name()).collect();
                said.push(format!("stick-table {name} is defined otherwise now: its entries lose {}", lost.join(", ")));
            }
            if found.left_out > 0 {
                said.push(format!("stick-table {name} is full: {} entries are given up", found.left_out));
            }
        }
        said
    }
}
