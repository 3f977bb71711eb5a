//! Entries as messages: what an update and the part of a node have.

use std::sync::Arc;

use sluicegate_config::model::{DataForm, DataKind, TableData, TableKey};
use sluicegate_wire::peers::dictionary::Sent;
use sluicegate_wire::peers::{Column, Definition, KeyKind, Rate, Value, varint, write_key};

use super::SharedTable;
use crate::stick::{Changed, Table, for_peer, is_summed, rate_parts};

/// Memory that a connection uses again and again.
#[derive(Default)]
pub(super) struct Scratch {
    /// A copy of an entry.
    pub(super) copy: Changed,
    /// Its key and its values.
    pub(super) rest: Vec<u8>,
    /// The body of a message.
    pub(super) body: Vec<u8>,
    /// Values that were received.
    pub(super) values: Vec<Value>,
}

/// Returns the kind of a table's keys.
pub(super) fn key_kind(key: TableKey) -> KeyKind {
    match key {
        TableKey::Ip => KeyKind::Ipv4,
        TableKey::Ipv6 => KeyKind::Ipv6,
        TableKey::Integer => KeyKind::Integer,
        TableKey::Str(_) => KeyKind::Text,
        TableKey::Bin(_) => KeyKind::Binary,
    }
}

/// Returns the definition of a table.
pub(super) fn definition(shared: &SharedTable, number: u64) -> Definition<'_> {
    let table = &shared.table;
    let column =
        |data: TableData| Column { number: data.kind as u8, elements: data.elements, period_ms: data.period_ms };
    Definition {
        number,
        name: shared.config.shared_name().as_bytes(),
        key: key_kind(table.key),
        key_size: table.key.shared_size(),
        expire_ms: Some(table.expire_ms().into()),
        columns: table.data().map(column).collect(),
    }
}

/// Returns the kind of data with a number.
pub(super) fn kind_of(number: u8) -> Option<DataKind> {
    DataKind::ALL.get(usize::from(number)).map(|(kind, ..)| *kind)
}

/// The values of an entry that a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// All of them, counters of a table with `aggregate` as sums.
    Sums,
    /// All of them, counters as this node has counted them.
    Own,
    /// The counters of another node.
    Of(usize),
}

/// Appends the key and the values of an entry. Returns whether any value is not 0.
pub(super) fn append(table: &Table, copy: &mut Changed, content: Content, names: &mut Sent, out: &mut Vec<u8>) -> bool {
    for_peer(table.key, copy.key(), |key, _| write_key(key, out));
    let mut is_any = false;
    let mut row = copy.row(table);
    let now = row.now();
    for data in table.data() {
        let (kind, form) = (data.kind, data.kind.form());
        let node = match content {
            Content::Of(_) if !is_summed(kind) => continue,
            Content::Of(node) => Some(node),
            Content::Own | Content::Sums => None,
        };
        let is_sum = content == Content::Sums && table.is_aggregate() && is_summed(kind);
        for element in 0..data.elements {
            if is_sum {
                let sum = row.get(kind, element).unwrap_or(0);
                match form {
                    // As if the events had all just happened, so that no rounding hides one.
                    DataForm::Rate => {
                        let current = (sum / u64::from(data.block)) as u32;
                        Rate { age_ms: 0, current, previous: 0 }.write(out);
                    }
                    _ => varint::write(sum, out),
                }
                continue;
            }
            let words = row.words_of(kind, element, node).map_or(&[][..], |words| &*words);
            is_any |= match form {
                DataForm::Rate => {
                    let (age_ms, current, previous) = rate_parts(words, now);
                    Rate { age_ms, current, previous }.write(out);
                    current | previous != 0
                }
                DataForm::Name => {
                    let name: Option<Arc<str>> = words.first().and_then(|number| table.name_of((*number).into()));
                    names.write(name.as_ref(), out);
                    name.is_some()
                }
                DataForm::Word | DataForm::Long => {
                    let number = words.iter().rev().fold(0, |number, word| number << 32 | u64::from(*word));
                    varint::write(number, out);
                    number != 0
                }
            };
        }
    }
    is_any
}
