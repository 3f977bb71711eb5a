//! The actions that set a stream's filters: `set-bandwidth-limit`.

use sluicegate_config::model::{BandwidthLimit, Expr, Filter, NumberOr, SetBandwidthLimit, TimeOr};

use super::action::{Compiled, Done, Run, action, on_sample};
use super::build::Builder;
use super::carrier::milliseconds;
use super::stream::nothing;
use crate::sample::ExpressionCode;
use crate::stick::Key;
use crate::stream::StreamContext;

/// `set-bandwidth-limit`: enables the filter with its own terms, and those that the rule gives; without such a filter it
/// does nothing.
pub(super) fn set_bandwidth_limit(b: &mut Builder<'_>, set: &SetBandwidthLimit) -> Compiled {
    let found = b.proxy.filters.iter().find_map(|filter| match filter {
        Filter::Bandwidth(filter) if filter.name == set.filter => Some(filter.clone()),
        _ => None,
    });
    let Some(filter) = found else { return nothing() };
    if let BandwidthLimit::Shared { key, table, .. } = &filter.limit {
        let table = b.scope.table(table)?;
        b.expr(key);
        return on_sample(move |sample, run| {
            let key = Key::new(table.key, &sample.as_value());
            if let Some(entry) = key.and_then(|key| table.hold(&key)) {
                let mut setting = run.cx.bandwidth.enable(&filter).borrow_mut();
                setting.entry = Some(entry);
                setting.restart();
            }
            Done::Next
        });
    }
    let limit = Number::compile(b, set.limit.as_ref())?;
    let period = Time::compile(b, set.period.as_ref())?;
    action(move |run: &mut Run<'_>| {
        let (limit, period) = (limit.value(run.cx), period.value(run.cx));
        let mut setting = run.cx.bandwidth.enable(&filter).borrow_mut();
        (setting.limit, setting.period) = (limit, period);
        setting.restart();
        Done::Next
    })
}

/// A number of a rule.
enum Number {
    None,
    Constant(u32),
    Sample(ExpressionCode),
}

fn expression(b: &mut Builder<'_>, expr: &Expr) -> Result<ExpressionCode, String> {
    let code = ExpressionCode::compile(expr, b.engines, b.scope)?;
    b.look(&code.fetch);
    Ok(code)
}

impl Number {
    fn compile(b: &mut Builder<'_>, number: Option<&NumberOr>) -> Result<Number, String> {
        Ok(match number {
            None => Number::None,
            Some(NumberOr::Number(number)) => Number::Constant(*number),
            Some(NumberOr::Expr(expr)) => Number::Sample(expression(b, expr)?),
        })
    }

    /// Returns the number; none if a sample is not positive.
    fn value(&self, cx: &StreamContext) -> Option<u32> {
        let number = match self {
            Number::None => return None,
            Number::Constant(number) => *number,
            Number::Sample(code) => u32::try_from(code.value(cx)?.to_int()?).ok()?,
        };
        (number > 0).then_some(number)
    }
}

/// A time of a rule.
enum Time {
    None,
    Constant(std::time::Duration),
    Sample(ExpressionCode),
}

impl Time {
    fn compile(b: &mut Builder<'_>, time: Option<&TimeOr>) -> Result<Time, String> {
        Ok(match time {
            None => Time::None,
            Some(TimeOr::Time(time)) => Time::Constant(*time),
            Some(TimeOr::Expr(expr)) => Time::Sample(expression(b, expr)?),
        })
    }

    fn value(&self, cx: &StreamContext) -> Option<std::time::Duration> {
        match self {
            Time::None => None,
            Time::Constant(time) => Some(*time),
            Time::Sample(code) => milliseconds(&code.value(cx)?),
        }
    }
}
