//! `in_table` and `table_…`: what the entry under the sample holds (HAProxy configuration manual 7.3.1).

use std::sync::Arc;

use sluicegate_config::catalogue::CounterFigure;

use super::super::fetch::of_key;
use super::super::value::Value;
use crate::stick::{Key, Table};

/// A converter that asks a table.
#[derive(Clone, Debug)]
pub struct TableCode {
    pub(super) table: Arc<Table>,
    pub(super) figure: CounterFigure,
    pub(super) element: u32,
    /// What `table_expire` and `table_idle` give where there is no entry.
    pub(super) default: Option<i64>,
}

impl TableCode {
    /// Looks a sample up. One that can't be a key, and an entry that does not store what is asked, give nothing.
    pub(super) fn find(&self, value: &Value<'_>) -> Option<Value<'static>> {
        let key = Key::new(self.table.key, value)?;
        let life = || self.table.read(&key, |_, life| *life);
        Some(match self.figure {
            CounterFigure::In => Value::Bool(life().is_some()),
            CounterFigure::Expire => Value::Int(life().map(|life| i64::from(life.left_ms)).or(self.default)?),
            CounterFigure::Idle => {
                let idle = life().map(|life| i64::from(life.expire_ms.saturating_sub(life.left_ms)));
                Value::Int(idle.or(self.default)?)
            }
            // HAProxy counts who asks, too.
            CounterFigure::Trackers => Value::Int(life().map_or(0, |life| i64::from(life.trackers) + 1)),
            figure => Value::Int(of_key(&self.table, &key, figure, self.element, true)?),
        })
    }
}
