//! Replies that nobody waits for: `r:acall(…)`.

use std::sync::Arc;

use sluicegate_wire::engine::Started;
use sluicegate_wire::reply::Reply;

use super::LogSink;
use crate::log::Throttle;

/// The severity of what is told: warning.
const LEVEL: u8 = 4;

/// Failures of commands whose replies nobody waited for, told at most once a second.
#[derive(Default)]
pub(super) struct Forgotten {
    throttle: Throttle,
}

impl Forgotten {
    fn failed(&self, sink: &LogSink, name: &str, reason: &str) {
        let Some(count) = self.throttle.count() else { return };
        let line: String = reason.chars().map(|char| if char.is_control() { '.' } else { char }).collect();
        sink(LEVEL, &format!("redis:acall: {count} commands failed, the last one of '{name}': {line}"));
    }
}

/// Lets a command go its way.
pub(super) fn forget(forgotten: &Arc<Forgotten>, sink: &LogSink, name: &Arc<str>, started: Started) {
    match started {
        Started::Done(Reply::Error(reason)) => forgotten.failed(sink, name, &reason),
        Started::Done(_) => {}
        Started::Pending(reply) => {
            let (forgotten, sink, name) = (forgotten.clone(), sink.clone(), name.clone());
            tokio::spawn(async move {
                if let Reply::Error(reason) = reply.await {
                    forgotten.failed(&sink, &name, &reason);
                }
            });
        }
    }
}
