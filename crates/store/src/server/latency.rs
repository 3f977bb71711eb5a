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

/// Columns and rows of a graph, and the characters of a row's lower, middle and upper third, as in Redis. What is below
/// the character of its column is filled.
const GRAPH_COLUMNS: usize = 80;
const GRAPH_ROWS: usize = 4;
const GRAPH_STEPS: [char; 3] = ['_', 'o', '#'];
const GRAPH_FILL: char = '|';

#[derive(Debug, Default)]
struct Series {
    /// Unix seconds and milliseconds.
    samples: VecDeque<(u64, u64)>,
    longest_ms: u64,
}

impl Series {
    /// Returns the samples as text: columns of characters, with their ages below them, read from top to bottom.
    fn graph(&self, event: &str, now_s: u64) -> String {
        let times = || self.samples.iter().map(|sample| sample.1);
        let (low, high) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        let mut text = format!("{event} - high {high} ms, low {low} ms (all time high {} ms)\n", self.longest_ms);
        text.extend(std::iter::repeat_n('-', GRAPH_COLUMNS));
        text.push('\n');
        let steps = (GRAPH_STEPS.len() * GRAPH_ROWS) as u64;
        let samples: Vec<&(u64, u64)> = self.samples.iter().collect();
        for (number, part) in samples.chunks(GRAPH_COLUMNS).enumerate() {
            if number > 0 {
                text.push('\n');
            }
            for row in (0..GRAPH_ROWS).rev() {
                text.extend(part.iter().map(|(_, spent_ms)| {
                    let step = ((spent_ms - low) * steps / (high - low).max(1)).min(steps - 1) as usize;
                    match step.checked_sub(row * GRAPH_STEPS.len()) {
                        None => ' ',
                        Some(above) => GRAPH_STEPS.get(above).copied().unwrap_or(GRAPH_FILL),
                    }
                }));
                text.push('\n');
            }
            let ages: Vec<String> = part.iter().map(|(at_s, _)| age(now_s.saturating_sub(*at_s))).collect();
            text.extend(std::iter::repeat_n(' ', part.len()));
            text.push('\n');
            for line in 0..ages.iter().map(String::len).max().unwrap_or_default() {
                text.extend(ages.iter().map(|age| age.as_bytes().get(line).map_or(' ', |&byte| char::from(byte))));
                text.push('\n');
            }
        }
        text
    }
}

/// Returns a number of seconds in the largest unit of which it is at least one.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Events of a server, by name.
#[derive(Debug, Default)]
pub(super) struct Latency(Mutex<BTreeMap<&'static str, Series>>);

impl Latency {
    /// Keeps an event.
    pub fn add(&self, event: &'static str, spent_ms: u64) {
        let now_s = now_s();
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

/// Returns an event by the name in a command, with its samples.
fn named<'a>(all: &'a BTreeMap<&'static str, Series>, event: &[u8]) -> Option<(&'static str, &'a Series)> {
    all.get_key_value(std::str::from_utf8(event).ok()?).map(|(event, series)| (*event, series))
}

/// Returns the time in Unix seconds.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
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
    let samples = named(&all, args[2]).map(|(_, series)| series.samples.clone()).unwrap_or_default();
    drop(all);
    out.array(samples.len());
    for (at_s, spent_ms) in samples {
        out.array(2);
        out.integer(at_s as i64);
        out.integer(spent_ms as i64);
    }
    Outcome::Done
}

/// `LATENCY GRAPH event`.
pub(super) fn graph(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let all = context.worker.server.latency.0.lock();
    match named(&all, args[2]) {
        Some((event, series)) => out.verbatim(*b"txt", series.graph(event, now_s()).as_bytes()),
        None => out.error(&format!("ERR No samples available for event '{}'", String::from_utf8_lossy(args[2]))),
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

    use sluicegate_testkit::{Client, RedisServer};

    use super::{Series, now_s};
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

    #[test]
    fn graphs_are_those_of_redis() {
        let redis = RedisServer::start(&["--latency-monitor-threshold", "1", "--enable-debug-command", "yes"]);
        let mut client = Client::connect(&redis.address());
        // One sample a second.
        for seconds in ["0.011", "0.3", "0.002", "0.15"] {
            let began_s = now_s();
            client.ask(&["DEBUG", "SLEEP", seconds]);
            while now_s() == began_s {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let mut ask = |words: &[&str]| client.ask(words);
        let numbers = |reply: String| -> Vec<u64> {
            reply.split("\r\n").filter_map(|line| line.strip_prefix(':')?.parse().ok()).collect()
        };
        let longest_ms = numbers(ask(&["LATENCY", "LATEST"]))[2];
        let samples = numbers(ask(&["LATENCY", "HISTORY", "command"]));
        let samples = samples.chunks(2).map(|sample| (sample[0], sample[1])).collect();
        let series = Series { samples, longest_ms };
        let ours = |now_s| {
            let text = series.graph("command", now_s);
            format!("${}\r\n{text}\r\n", text.len())
        };
        let before_s = now_s();
        let theirs = ask(&["LATENCY", "GRAPH", "command"]);
        // Its clock may be some milliseconds behind.
        assert!((before_s - 1..=now_s()).any(|now_s| ours(now_s) == theirs), "{theirs}\n{}", ours(before_s));
    }

    #[test]
    fn graphs_of_many_samples_go_on_below() {
        let samples = (0..100).map(|number| (1_000_000 - 900 * number, 5 + number)).collect();
        let text = Series { samples, longest_ms: 500 }.graph("command", 1_000_000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 104 ms, low 5 ms (all time high 500 ms)");
        // The first line of ages: 0 s, 15, 30 and 45 minutes, then hours.
        assert_eq!(lines[7][..8], *"01341111");
        assert_eq!(lines[8][..8], *"s505hhhh");
        assert_eq!(lines[9][..8], *" mmm    ");
        assert_eq!(lines[10], "");
        assert_eq!(lines[14].len(), 20, "{text}");
        assert_eq!(lines[11], "___oooooooo#########", "{text}");
    }
}
