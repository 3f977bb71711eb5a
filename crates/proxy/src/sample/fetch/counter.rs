//! Stick tables: what a tracked counter, or the entry of the client's address, holds (HAProxy configuration manual
//! 7.3.3).
//!
//! A counter that tracks nothing gives no sample; an entry that is not there gives 0, and one whose table does not
//! store what is asked gives no sample.

use std::sync::Arc;

use sluicegate_config::catalogue::{CounterFigure, CounterOf, Fetch};

use super::{Args, FetchScope};
use crate::sample::value::Value;
use crate::stick::{self, Change, Key, Table};
use crate::stream::StreamContext;

/// A fetch of a stick table.
#[derive(Clone, Debug)]
pub enum Counter {
    /// `table_cnt`.
    Entries(Arc<Table>),
    /// `sc_key`, `sc0_key`…: the key of a tracked counter.
    Key(usize),
    /// `table_avail`.
    Room(Arc<Table>),
    /// `sc_…`: of a tracked counter; with a table, of the same key's entry there.
    Tracked(usize, Option<Arc<Table>>, CounterFigure, u32),
    /// `src_…`: of the client's address.
    Source(Arc<Table>, CounterFigure, u32),
}

impl Counter {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>, scope: FetchScope<'_>) -> Result<Option<Counter>, String> {
        let table = |index| scope.table(args.table(index)?.unwrap_or_default());
        let number = |index| u32::try_from(args.wanted_int(index)?).map_err(|_| "the number is negative".to_owned());
        Ok(Some(match fetch {
            Fetch::TableCnt => Counter::Entries(table(0)?),
            Fetch::TableAvail => Counter::Room(table(0)?),
            Fetch::TrackedKey(Some(slot)) => Counter::Key(usize::from(slot)),
            Fetch::TrackedKey(None) => Counter::Key(number(0)? as usize),
            Fetch::Counter(of, figure) => {
                let (element, mut next) = match figure.has_element() {
                    true => (number(0)?, 1),
                    false => (0, 0),
                };
                let slot = match of {
                    CounterOf::Source => return Ok(Some(Counter::Source(table(next)?, figure, element))),
                    CounterOf::Slot(slot) => usize::from(slot),
                    CounterOf::Numbered => {
                        next += 1;
                        number(next - 1)? as usize
                    }
                };
                let other = args.table(next)?.map(|name| scope.table(name)).transpose()?;
                Counter::Tracked(slot, other, figure, element)
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn fetch(&self, cx: &StreamContext) -> Option<Value<'static>> {
        Some(match self {
            Counter::Entries(table) => Value::Int(table.len() as i64),
            Counter::Key(slot) => {
                let session = cx.client.tracked.borrow();
                let held = cx.tracked.get(*slot).or_else(|| session.get(*slot))?;
                Value::from_sample(held.key_sample())
            }
            Counter::Room(table) => Value::Int(i64::from(table.size()) - table.len() as i64),
            Counter::Source(table, figure, element) => {
                let key = Key::new(table.key, &Value::Ip(cx.source?.ip()))?;
                Value::Int(of_key(table, &key, *figure, *element, true)?)
            }
            Counter::Tracked(slot, table, figure, element) => {
                let session = cx.client.tracked.borrow();
                let held = cx.tracked.get(*slot).or_else(|| session.get(*slot));
                if *figure == CounterFigure::Tracked {
                    return Some(Value::Bool(held.is_some()));
                }
                let held = held?;
                Value::Int(match table {
                    // A key of another type is in no such table.
                    Some(table) if table.key != held.table.key => 0,
                    Some(table) => of_key(table, &held.key(), *figure, *element, false)?,
                    None => match stick::change(*figure) {
                        Some((kind, change)) => {
                            changed(held.change(|row| row.change(kind, *element, change)), *figure)?
                        }
                        None if *figure == CounterFigure::Trackers => held.read(|_, life| i64::from(life.trackers)),
                        None => held.read(|row, _| stick::read(row, *figure, *element))?,
                    },
                })
            }
        })
    }
}

/// What a change gives. HAProxy says 0 where a counter that is to rise is not stored.
fn changed(value: Option<u64>, figure: CounterFigure) -> Option<i64> {
    match (value, figure) {
        (None, CounterFigure::IncGpc | CounterFigure::IncGpc0 | CounterFigure::IncGpc1) => Some(0),
        (value, _) => value.map(|value| value as i64),
    }
}

/// What the entry of a key answers. `create`: one that is raised is made if it is not there.
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
