//! The figures that are recorded for the dashboard ([`History`](crate::history::History)), of each kind of object.

use std::time::Instant;

use sluicegate_wire::engine::{Connections, Figures};

use super::columns::{self, Cell, Row};
use super::{Object, objects};
use crate::history::{Figure, Name, OBJECTS};
use crate::limit::Counts;
use crate::running::Running;

/// A recorded figure: its name, and its value.
type Recorded<T> = (&'static str, fn(&T) -> Figure);

/// The figures of the process.
pub(super) const PROCESS: &[Recorded<Running>] = &[
    ("requests", |running| counter(running.process.workers.iter().map(|worker| worker.requests.get()).sum())),
    ("connections", |running| counter(running.process.workers.iter().map(|worker| worker.sessions.get()).sum())),
    ("sessions", |running| gauge(running.process.sessions.current().into())),
    ("bytes_out", |running| counter(running.process.workers.iter().map(|worker| worker.bytes_out.get()).sum())),
    ("busy", |running| gauge(u64::from(100 - running.process.idle_percent().min(100)))),
];

/// The figures of a frontend, as columns of `show stat`.
pub(super) const FRONTEND: &[Recorded<Row>] = &[
    ("requests", |row| Figure::Counter(number(row, "req_tot"))),
    ("connections", |row| Figure::Counter(number(row, "conn_tot"))),
    ("sessions", |row| Figure::Gauge(number(row, "scur"))),
    ("bytes_in", |row| Figure::Counter(number(row, "bin"))),
    ("bytes_out", |row| Figure::Counter(number(row, "bout"))),
    ("denied", |row| Figure::Counter(number(row, "dreq"))),
    ("errors", |row| Figure::Counter(number(row, "hrsp_5xx"))),
];

/// The figures of a backend, as columns of `show stat`.
pub(super) const BACKEND: &[Recorded<Row>] = &[
    ("requests", |row| Figure::Counter(number(row, "stot"))),
    ("sessions", |row| Figure::Gauge(number(row, "scur"))),
    ("queue", |row| Figure::Gauge(number(row, "qcur"))),
    ("bytes_out", |row| Figure::Counter(number(row, "bout"))),
    ("response_ms", |row| Figure::Gauge(number(row, "rtime"))),
    ("failed_connections", |row| Figure::Counter(number(row, "econ"))),
    ("errors", |row| Figure::Counter(number(row, "hrsp_5xx"))),
];

/// The figures of a store.
pub(super) const STORE: &[Recorded<Figures>] = &[
    ("commands", |figures| counter(figures.commands)),
    ("keys", |figures| gauge(figures.keys)),
    ("memory", |figures| gauge(figures.used_bytes)),
    ("misses", |figures| counter(figures.misses)),
    ("lock_waits", |figures| counter(figures.waited)),
    ("slow", |figures| counter(figures.slow)),
    ("evicted", |figures| counter(figures.evicted)),
];

/// The figures of an engine in another process.
pub(super) const ENGINE: &[Recorded<Connections>] = &[
    ("commands", |of| counter(of.commands)),
    ("in_flight", |of| gauge(of.in_flight)),
    ("queue", |of| gauge(of.queued)),
    ("failed", |of| counter(of.failures.iter().map(|(_, count)| count).sum())),
];

/// The figures of a limit.
pub(super) const LIMIT: &[Recorded<Counts>] = &[
    ("allowed", |counts| counter(counts.allowed)),
    ("denied", |counts| counter(counts.denied)),
    ("failed", |counts| counter(counts.failed)),
];

fn counter(count: u64) -> Figure {
    Figure::Counter(Some(count))
}

fn gauge(value: u64) -> Figure {
    Figure::Gauge(Some(value))
}

/// Returns a column's number; [`None`] if the line does not have it.
fn number(row: &Row, column: &str) -> Option<u64> {
    match row.get(column) {
        Cell::Number(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns whether somebody can see the points: whether a proxy has a statistics page.
pub(super) fn is_shown(running: &Running) -> bool {
    running.proxies.iter().any(|proxy| proxy.config.stats.is_some())
}

/// Records a point of all figures if it is due.
pub(super) fn record(running: &Running, now: Instant) {
    let history = &running.process.history;
    if history.is_due(now) {
        history.record(now, all(running, now));
    }
}

/// Returns the present figures of all objects that have a history.
fn all(running: &Running, now: Instant) -> Vec<(Name, Vec<Figure>)> {
    fn of<T>(recorded: &[Recorded<T>], object: &T) -> Vec<Figure> {
        recorded.iter().map(|(_, figure)| figure(object)).collect()
    }
    let mut all = vec![(("process", String::new()), of(PROCESS, running))];
    let proxies = objects(running).filter_map(|object| {
        let (kind, recorded, proxy) = match object {
            Object::Frontend(proxy) => ("frontend", FRONTEND, proxy),
            Object::Backend(proxy) => ("backend", BACKEND, proxy),
            Object::Server(..) | Object::Socket(..) => return None,
        };
        Some(((kind, proxy.config.name.to_string()), of(recorded, &columns::row(running, object, now))))
    });
    // Those of which there are few come first: not all may have a place.
    all.extend(
        running
            .told(|engine| engine.figures())
            .iter()
            .map(|(name, of_store)| (("store", (*name).to_owned()), of(STORE, of_store))),
    );
    all.extend(
        running
            .told(|engine| engine.connections())
            .iter()
            .map(|(name, of_engine)| (("engine", (*name).to_owned()), of(ENGINE, of_engine))),
    );
    all.extend(
        running
            .directory
            .limits
            .iter()
            .map(|limit| (("limit", limit.config.name.to_string()), of(LIMIT, &limit.counts()))),
    );
    // The others are not looked at: there may be many thousand.
    let places = OBJECTS.saturating_sub(all.len());
    all.extend(proxies.take(places));
    all
}
