//! Replies without a receiver: `r:acall(…)`.

use std::sync::Arc;

use sluicegate_wire::engine::{Engine, Failed, Origin, Started};
use sluicegate_wire::reply::Reply;

use super::{LogSink, ScriptLine};
use crate::log::Throttle;

/// Returns a function that logs failed commands without a receiver, at most once a second.
pub(super) fn teller(throttle: &Arc<Throttle>, sink: &LogSink, name: &Arc<str>) -> Failed {
    let (throttle, sink, name) = (throttle.clone(), sink.clone(), name.clone());
    Arc::new(move |reason| {
        let Some(count) = throttle.count() else { return };
        let line: String = reason.chars().map(|char| if char.is_control() { '.' } else { char }).collect();
        let text = format!("redis:acall: {count} commands failed, the last one of '{name}': {line}");
        sink(&ScriptLine::warning(&text));
    })
}

/// Starts a command whose reply is discarded.
pub(super) fn forget(engine: &dyn Engine, origin: Origin<'_>, db: u32, args: &[&[u8]], failed: &Failed) {
    match engine.forget(origin, db, args, failed) {
        Some(Started::Done(Reply::Error(reason))) => failed(&reason),
        Some(Started::Pending(reply)) => {
            let failed = failed.clone();
            tokio::spawn(async move {
                if let Reply::Error(reason) = reply.await {
                    failed(&reason);
                }
            });
        }
        Some(Started::Done(_)) | None => {}
    }
}
