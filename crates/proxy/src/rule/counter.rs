//! The actions on stick tables: `track-scN`, `sc-inc-gpc*`, `sc-add-gpc`, `sc-set-gpt*`.

use std::sync::Arc;

use sluicegate_config::model::{CounterChange, CounterValue, DataKind, LogTarget, Track};

use super::Hook;
use super::action::{Act, ActionCode, Compiled, Done, Run, action, on_sample};
use super::build::Builder;
use crate::log::{Logger, Severity};
use crate::sample::Sample;
use crate::stick::{Change, Counted, Table};
use crate::stream::StreamContext;

/// `track-scN`: the sample is the key.
pub(super) fn track(b: &mut Builder<'_>, track: &Track) -> Compiled {
    let table = b.scope.table(&track.table)?;
    b.stable_expr(&track.key);
    let slot = track.slot;
    on_sample(move |sample, run| {
        begin(slot, &table, &sample, run);
        Done::Next
    })
}

/// Starts tracking: for the session if there is no stream yet, otherwise for the stream. Events of a stream's request
/// or response that precede the rule are counted now, as in HAProxy.
fn begin(slot: usize, table: &Arc<Table>, sample: &Sample, run: &mut Run<'_>) {
    let (hook, cx, value) = (run.hook, &mut *run.cx, sample.as_value());
    if hook.is_early() {
        return cx.client.tracked.borrow_mut().track(slot, table, &value, false, &[]);
    }
    // A stream inherits its session's counters, so a number that the session tracks is in use.
    if cx.client.tracked.borrow().get(slot).is_some() {
        return;
    }
    let status = if matches!(hook, Hook::HttpResponse | Hook::HttpAfterResponse) { cx.response.status() } else { 0 };
    let classes = &cx.frontend.directory.status_classes;
    let events: &[Counted] = match (classes.errors.contains(status), classes.failures.contains(status)) {
        (true, false) => &[Counted::Request, Counted::Error],
        (false, true) => &[Counted::Request, Counted::Failure],
        (true, true) => &[Counted::Request, Counted::Error, Counted::Failure],
        (false, false) if hook.is_http() => &[Counted::Request],
        (false, false) => &[],
    };
    let backend = cx.backend.as_ref().is_some_and(|backend| backend.id != cx.frontend.id);
    cx.tracked.track(slot, table, &value, backend, events);
}

/// `sc-inc-gpc*`, `sc-add-gpc`, `sc-set-gpt*`; without a number the sample is used.
pub(super) fn change(b: &mut Builder<'_>, change: &CounterChange) -> Compiled {
    let (slot, kind, element) = (change.slot, change.kind, change.element);
    match &change.by {
        CounterValue::Int(by) => {
            let by = *by;
            action(move |run| {
                change_by(slot, kind, element, by, run.cx);
                Done::Next
            })
        }
        CounterValue::Expr(expr) => {
            b.expr(expr);
            let name = match kind {
                DataKind::Gpt0 => "gpt0".to_owned(),
                DataKind::Gpt => format!("gpt{element}"),
                _ => format!("gpc{element}"),
            };
            let message = format!("stick table: invalid expression or data type while setting {name}.");
            let (logger, targets) = (b.logger.clone(), b.targets.clone());
            Ok(ActionCode::with_sample(ChangeBySample { slot, kind, element, message, logger, targets }))
        }
    }
}

/// `sc-add-gpc` and `sc-set-gpt*` by a sample.
struct ChangeBySample {
    slot: usize,
    kind: DataKind,
    element: u32,
    /// The line of the log where there is no sample.
    message: String,
    logger: Logger,
    targets: Arc<[LogTarget]>,
}

impl Act for ChangeBySample {
    fn act<'a>(&'a self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        let ChangeBySample { slot, kind, element, .. } = *self;
        match sample.and_then(|sample| sample.as_value().to_int()) {
            Some(by) => change_by(slot, kind, element, by as u32, run.cx),
            None if is_stored(slot, kind, element, run.cx) => {
                self.logger.send(&self.targets, Severity::Warning, self.message.as_bytes());
            }
            None => {}
        }
        Done::Next
    }
}

/// Returns whether the slot tracks an entry that has the datum.
fn is_stored(slot: usize, kind: DataKind, element: u32, cx: &StreamContext) -> bool {
    let session = cx.client.tracked.borrow();
    let Some(held) = cx.tracked.get(slot).or_else(|| session.get(slot)) else { return false };
    held.read(|row, _| {
        row.get(kind, element).is_some() || kind == DataKind::Gpc && row.get(DataKind::GpcRate, element).is_some()
    })
}

fn change_by(slot: usize, kind: DataKind, element: u32, by: u32, cx: &StreamContext) {
    let session = cx.client.tracked.borrow();
    let Some(held) = cx.tracked.get(slot).or_else(|| session.get(slot)) else { return };
    held.change(|row| match kind {
        DataKind::Gpt | DataKind::Gpt0 => _ = row.set(kind, element, u64::from(by)),
        kind => _ = row.change(kind, element, Change::Add(by)),
    });
}
