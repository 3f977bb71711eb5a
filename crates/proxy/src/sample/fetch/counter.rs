//! Stick tables: data of a tracked counter, or of the entry of the client's address (HAProxy configuration manual
//! 7.3.3).
//!
//! A counter that tracks nothing has no sample; a missing entry yields 0, and a table that does not store the datum
//! yields no sample.

use std::sync::Arc;

use sluicegate_config::catalogue::{CounterFigure, CounterOf};

use super::args::Args;
use super::code::{Compiled, read_with};
use crate::sample::value::Value;
use crate::stick::{self, Change, Key, Table};

fn table(args: &Args<'_>, index: usize) -> Result<Arc<Table>, String> {
    args.scope.table(args.table(index)?.unwrap_or_default())
}

fn number(args: &Args<'_>, index: usize) -> Result<u32, String> {
    u32::try_from(args.wanted_int(index)?).map_err(|_| "the number is negative".to_owned())
}

pub(super) fn table_cnt(args: &Args<'_>) -> Compiled {
    read_with(table(args, 0)?, |table, _| Some(Value::Int(table.len() as i64)))
}

pub(super) fn table_avail(args: &Args<'_>) -> Compiled {
    read_with(table(args, 0)?, |table, _| Some(Value::Int(i64::from(table.size()) - table.len() as i64)))
}

/// `sc_key`, `sc0_key`…: the key of a tracked counter.
pub(super) fn tracked_key(args: &Args<'_>, slot: Option<u8>) -> Compiled {
    let slot = match slot {
        Some(slot) => usize::from(slot),
        None => number(args, 0)? as usize,
    };
    read_with(slot, |slot, cx| {
        let session = cx.client.tracked.borrow();
        let held = cx.tracked.get(*slot).or_else(|| session.get(*slot))?;
        Some(Value::from_sample(held.key_sample()))
    })
}

/// `sc_…`, `src_…`: a figure of a tracked counter, or of the client's address.
pub(super) fn counter(args: &Args<'_>, of: CounterOf, figure: CounterFigure) -> Compiled {
    let (element, next) = match figure.has_element() {
        true => (number(args, 0)?, 1),
        false => (0, 0),
    };
    match of {
        CounterOf::Source => of_source(table(args, next)?, figure, element),
        CounterOf::Slot(slot) => of_slot(args, usize::from(slot), next, figure, element),
        CounterOf::Numbered => of_slot(args, number(args, next)? as usize, next + 1, figure, element),
    }
}

fn of_source(table: Arc<Table>, figure: CounterFigure, element: u32) -> Compiled {
    read_with((table, figure, element), |(table, figure, element), cx| {
        let key = Key::new(table.key, &Value::Ip(cx.source?.ip()))?;
        Some(Value::Int(of_key(table, &key, *figure, *element, true)?))
    })
}

/// Returns a fetch of a figure of a tracked counter; with a table's name at `index`, of the entry with the same key in
/// that table.
fn of_slot(args: &Args<'_>, slot: usize, index: usize, figure: CounterFigure, element: u32) -> Compiled {
    let other = args.table(index)?.map(|name| args.scope.table(name)).transpose()?;
    read_with((slot, other, figure, element), |(slot, table, figure, element), cx| {
        let session = cx.client.tracked.borrow();
        let held = cx.tracked.get(*slot).or_else(|| session.get(*slot));
        if *figure == CounterFigure::Tracked {
            return Some(Value::Bool(held.is_some()));
        }
        let held = held?;
        Some(Value::Int(match table {
            // A key of another type is in no such table.
            Some(table) if table.key != held.table.key => 0,
            Some(table) => of_key(table, &held.key(), *figure, *element, false)?,
            None => match stick::change(*figure) {
                Some((kind, change)) => changed(held.change(|row| row.change(kind, *element, change)), *figure)?,
                None if *figure == CounterFigure::Trackers => held.read(|_, life| i64::from(life.trackers)),
                None => held.read(|row, _| stick::read(row, *figure, *element))?,
            },
        }))
    })
}

/// Returns the result of a change. As in HAProxy it is 0 if the counter to increase is not stored.
fn changed(value: Option<u64>, figure: CounterFigure) -> Option<i64> {
    match (value, figure) {
        (None, CounterFigure::IncGpc | CounterFigure::IncGpc0 | CounterFigure::IncGpc1) => Some(0),
        (value, _) => value.map(|value| value as i64),
    }
}

/// Returns a figure of the entry of a key. `create`: an operation that increments creates a missing entry.
pub(crate) fn of_key(table: &Table, key: &Key, figure: CounterFigure, element: u32, create: bool) -> Option<i64> {
    match stick::change(figure) {
        Some((kind, change @ Change::Add(_))) if create => {
            changed(table.change(key, |row| row.change(kind, element, change))?, figure)
        }
        Some((kind, change)) => match table.change_known(key, |row| row.change(kind, element, change)) {
            None => Some(0),
            Some(value) => changed(value, figure),
        },
        None => {
            let asked = table.read(key, |row, life| match figure {
                CounterFigure::Trackers => Some(i64::from(life.trackers)),
                figure => stick::read(row, figure, element),
            });
            asked.unwrap_or(Some(0))
        }
    }
}
