//! LATENCY: events that took long, and the time of every command in histograms.
//!
//! Events are commands whose execution reached `latency-monitor-threshold`: `command`, or `fast-command` for those that
//! Redis calls fast; and steps of the store's files: `aof-write`, `aof-fsync-always`, and `save-cut`, which is the moment of a
//! save at which no command runs. Each keeps 160 samples, one per second: the longest in that second.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::counters::Histogram;
use super::dispatch::{self, About, Context, INDEX, Outcome, Row};

/// Samples of an event, as in Redis.
const SAMPLES: usize = 160;

#[derive(Debug, Default)]
struct Series {
    /// Unix seconds and milliseconds.
    samples: VecDeque<(u64, u64)>,
    longest_ms: u64,
}

/// Events of a server, by name.
#[derive(Debug, Default)]
pub(super) struct Latency(Mutex<BTreeMap<&'static str, Series>>);

impl Latency {
    /// Keeps an event.
    pub fn add(&self, event: &'static str, spent_ms: u64) {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut all = self.0.lock();
        let series = all.entry(event).or_default();
        series.longest_ms = series.longest_ms.max(spent_ms);
        match series.samples.back_mut() {
            Some((at_s, longest)) if *at_s == now_s => *longest = spent_ms.max(*longest),
            _ => {
                if series.samples.len() == SAMPLES {
                    series.samples.pop_front();
                }
                series.samples.push_back((now_s, spent_ms));
            }
        }
    }
}

/// `LATENCY LATEST`.
pub(super) fn latest(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let all = context.worker.server.latency.0.lock();
    out.array(all.len());
    for (event, series) in all.iter() {
        let (at_s, spent_ms) = series.samples.back().copied().unwrap_or_default();
        out.array(4);
        out.bulk(event.as_bytes());
        out.integer(at_s as i64);
        out.integer(spent_ms as i64);
        out.integer(series.longest_ms as i64);
    }
    Outcome::Done
}

/// `LATENCY HISTORY event`.
pub(super) fn history(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let all = context.worker.server.latency.0.lock();
    let series = all.iter().find(|(event, _)| event.as_bytes() == args[2]).map(|(_, series)| series);
    let samples = series.map(|series| series.samples.clone()).unwrap_or_default();
    drop(all);
    out.array(samples.len());
    for (at_s, spent_ms) in samples {
        out.array(2);
        out.integer(at_s as i64);
        out.integer(spent_ms as i64);
    }
    Outcome::Done
}

/// `LATENCY RESET [event…]`: replies the number of removed events.
pub(super) fn reset(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut all = context.worker.server.latency.0.lock();
    let before = all.len();
    match &args[2..] {
        [] => all.clear(),
        events => all.retain(|event, _| !events.contains(&event.as_bytes())),
    }
    let gone = before - all.len();
    drop(all);
    out.integer(gone as i64);
    Outcome::Done
}

/// Returns what can be done about an event.
fn advice(event: &str) -> &'static str {
    match event {
        "command" | "fast-command" => "SLOWLOG GET names the commands.",
        "aof-write" | "aof-fsync-always" => "The disk is slow; appendfsync says who waits for it.",
        _ => "No command runs at this moment of a save.",
    }
}

/// `LATENCY DOCTOR`: an assessment of the events, with advice.
pub(super) fn doctor(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut text = String::new();
    let all = context.worker.server.latency.0.lock();
    if context.options.latency_threshold_ms == 0 {
        text.push_str(
            "Events are not watched: CONFIG SET latency-monitor-threshold MILLISECONDS says from which time on they are \
             kept.\n",
        );
    } else if all.is_empty() {
        text.push_str(
            "Neither a command's execution nor a step of writing files has reached latency-monitor-threshold.\n",
        );
    }
    for (event, series) in all.iter() {
        let count = series.samples.len().max(1) as u64;
        let mean = series.samples.iter().map(|sample| sample.1).sum::<u64>() / count;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{event}: {} samples, {mean} ms on average, {} ms at most. {}",
            series.samples.len(),
            series.longest_ms,
            advice(event)
        );
    }
    drop(all);
    out.verbatim(*b"txt", text.as_bytes());
    Outcome::Done
}

/// `LATENCY HISTOGRAM [command…]`: cumulative counts at powers of two, of the commands that ran.
pub(super) fn histogram(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let wanted: Vec<&Row> = match &args[2..] {
        [] => INDEX.rows().iter().collect(),
        names => names
            .iter()
            .filter_map(|name| INDEX.find_full(name))
            .flat_map(|row| std::iter::once(row).chain(INDEX.subcommands(row)))
            .collect(),
    };
    let all = context.worker.server.histograms();
    let at = |row: &Row| INDEX.rows().iter().position(|known| std::ptr::eq(known, row));
    let shown: Vec<(&Row, &Histogram)> =
        wanted.into_iter().filter_map(|row| Some((row, all.get(&at(row)?)?))).filter(|(_, h)| h.count() > 0).collect();
    out.map(shown.len());
    for (row, histogram) in shown {
        out.bulk(row.full_name.as_bytes());
        out.map(2);
        out.bulk(b"calls");
        out.integer(histogram.count() as i64);
        out.bulk(b"histogram_usec");
        let steps = histogram.steps();
        out.map(steps.len());
        for (below_us, count) in steps {
            out.integer(below_us as i64);
            out.integer(count as i64);
        }
    }
    Outcome::Done
}

/// `LATENCY HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("latency", out)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::config::ServerOptions;
    use crate::server::Server;
    use crate::{Store, StoreOptions};

    #[test]
    fn steps_of_files_are_events_from_the_threshold_on() {
        let options = ServerOptions { latency_threshold_ms: 10_000, ..ServerOptions::default() };
        let server = Server::new(Store::new(StoreOptions::default()), options);
        let appender = &server.store.0.appender;
        let ago = |milliseconds| Instant::now() - Duration::from_millis(milliseconds);
        appender.took("aof-write", Instant::now());
        assert!(server.latency.0.lock().is_empty());
        appender.took("aof-write", ago(50_000));
        appender.took("save-cut", ago(20_000));
        server.set_parameters(&[("latency-monitor-threshold".to_owned(), "0".to_owned())]).expect("a parameter");
        appender.took("aof-fsync-always", ago(90_000));
        let all = server.latency.0.lock();
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), ["aof-write", "save-cut"]);
        assert!(all["aof-write"].longest_ms >= 50_000);
    }
}
