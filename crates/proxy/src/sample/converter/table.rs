//! `in_table` and `table_…`: data of the entry under the sample (HAProxy configuration manual 7.3.1).

use sluicegate_config::catalogue::CounterFigure;

use super::super::fetch::of_key;
use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use crate::stick::Key;

/// Compiles a converter that returns a figure of an entry. There is no result for a sample that cannot be a key, nor
/// for an entry that does not store the figure. `table_expire` and `table_idle` return their default if there is no
/// entry.
pub(super) fn table(figure: CounterFigure, args: &Args<'_>) -> Compiled {
    let at = usize::from(figure.has_element());
    let element = if at == 1 { args.int(0)?.unwrap_or(0) } else { 0 };
    let element = u32::try_from(element).map_err(|_| "the element's number is negative")?;
    let table = args.scope.table(args.table(at)?)?;
    value((table, figure, element, args.int(at + 1)?), |(table, figure, element, default), value, _| {
        // A sample that cannot be cast to a key has no entry.
        let key = Key::new(table.key, &value);
        let life = || table.read(key.as_ref()?, |_, life| *life);
        Some(match *figure {
            CounterFigure::In => Value::Bool(life().is_some()),
            CounterFigure::Expire => Value::Int(life().map(|life| i64::from(life.left_ms)).or(*default)?),
            CounterFigure::Idle => {
                let idle = life().map(|life| i64::from(life.expire_ms.saturating_sub(life.left_ms)));
                Value::Int(idle.or(*default)?)
            }
            // HAProxy counts the querying stream, too.
            CounterFigure::Trackers => Value::Int(life().map_or(0, |life| i64::from(life.trackers) + 1)),
            figure => Value::Int(match &key {
                Some(key) => of_key(table, key, figure, *element, true)?,
                None => 0,
            }),
        })
    })
}
