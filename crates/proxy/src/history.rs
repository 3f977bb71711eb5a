//! Figures of the last hour, for the dashboard: for each figure of an object a bounded ring of points.
//!
//! The control thread records a point of every figure each [`EACH`]. A gauge's point is its value; a counter's point is
//! its increase per second since the point before, so that a chart needs no further arithmetic. Points have numbers,
//! the same for all objects: a reader that has seen a point asks for those behind it.
//!
//! **Bounds:** [`POINTS`] points of a figure and [`OBJECTS`] objects, less than 7 MiB with eight figures each. Objects that
//! are not recorded any more, as a reload has removed them, are forgotten with their points.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two points.
pub const EACH: Duration = Duration::from_secs(5);

/// The most points of a figure: an hour.
pub const POINTS: usize = 720;

/// The most objects with a history.
pub const OBJECTS: usize = 200;

/// A figure of an object at one moment; [`None`]: the object does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A present value.
    Gauge(Option<u64>),
    /// A count since the start.
    Counter(Option<u64>),
}

/// The name of an object: its kind, and its name among those of this kind.
pub type Name = (&'static str, String);

/// The histories of all objects.
#[derive(Debug, Default)]
pub struct History(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// The number of the last point; 0: there is none.
    last: u64,
    at: Option<Instant>,
    objects: BTreeMap<Name, Object>,
}

#[derive(Debug)]
struct Object {
    /// The number of its last point.
    last: u64,
    series: Vec<Series>,
}

#[derive(Debug, Default)]
struct Series {
    counted: Option<u64>,
    /// Not a number where there was no value.
    points: VecDeque<f32>,
}

impl Series {
    fn push(&mut self, figure: Figure, elapsed: Option<Duration>) {
        let point = match figure {
            Figure::Gauge(value) => value.map(|value| value as f32),
            Figure::Counter(count) => {
                let before = std::mem::replace(&mut self.counted, count);
                match (count, before, elapsed) {
                    (Some(count), Some(before), Some(elapsed)) => {
                        // It may have been cleared.
                        Some((count.saturating_sub(before) as f64 / elapsed.as_secs_f64().max(1e-3)) as f32)
                    }
                    _ => None,
                }
            }
        };
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point.unwrap_or(f32::NAN));
    }
}

impl History {
    /// Returns whether it is time for the next point; half a second early is near enough.
    pub fn is_due(&self, now: Instant) -> bool {
        const EARLY: Duration = Duration::from_millis(500);
        self.0.lock().at.is_none_or(|at| now.saturating_duration_since(at) + EARLY > EACH)
    }

    /// Records a point of each figure of these objects. The figures of an object come in the same order each time.
    pub fn record(&self, now: Instant, objects: impl IntoIterator<Item = (Name, Vec<Figure>)>) {
        let mut held = self.0.lock();
        let elapsed = held.at.replace(now).map(|at| now.saturating_duration_since(at));
        held.last += 1;
        let number = held.last;
        for (name, figures) in objects {
            if !held.objects.contains_key(&name) && held.objects.len() >= OBJECTS {
                continue;
            }
            let object = held.objects.entry(name).or_insert_with(|| Object { last: number, series: Vec::new() });
            object.last = number;
            object.series.resize_with(figures.len(), Series::default);
            object.series.iter_mut().zip(figures).for_each(|(series, figure)| series.push(figure, elapsed));
        }
        held.objects.retain(|_, object| object.last == number);
    }

    /// Returns the number of the last point; 0: there is none.
    pub fn last(&self) -> u64 {
        self.0.lock().last
    }

    /// Returns the points of an object with numbers above `after` and up to `last`, a list for each figure, which is
    /// shorter for an object that has come since; [`None`] if the object has no history. A point that is not a number
    /// stands for a figure that had no value.
    pub fn points(&self, name: &Name, after: u64, last: u64) -> Option<Vec<Vec<f32>>> {
        let held = self.0.lock();
        let object = held.objects.get(name)?;
        let (newer, wanted) = (held.last.saturating_sub(last), last.saturating_sub(after));
        let of_series = |series: &Series| {
            let end = series.points.len().saturating_sub(usize::try_from(newer).unwrap_or(usize::MAX));
            let start = end.saturating_sub(usize::try_from(wanted).unwrap_or(usize::MAX));
            series.points.range(start..end).copied().collect()
        };
        Some(object.series.iter().map(of_series).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        ("store", text.to_owned())
    }

    #[test]
    fn counters_become_rates_and_gauges_stay() {
        let (history, start) = (History::default(), Instant::now());
        for (round, count) in [(0, 10), (1, 30), (2, 20)] {
            let figures = vec![Figure::Counter(Some(count)), Figure::Gauge(Some(round)), Figure::Gauge(None)];
            history.record(start + EACH * round as u32, [(name("a"), figures)]);
        }
        let points = history.points(&name("a"), 0, history.last()).expect("recorded");
        assert!(points[0][0].is_nan() && points[2].iter().all(|point| point.is_nan()));
        // A counter that was cleared has not grown.
        assert_eq!((&points[0][1..], &points[1][..]), (&[4.0, 0.0][..], &[0.0, 1.0, 2.0][..]));
        assert_eq!(history.points(&name("a"), 1, 2).expect("recorded")[1], [1.0]);
        assert_eq!(history.points(&name("a"), 3, 3).expect("recorded")[1], [0.0; 0]);
        assert_eq!(history.points(&name("b"), 0, 3), None);
    }

    #[test]
    fn it_is_bounded_and_forgets_what_is_gone() {
        let (history, start) = (History::default(), Instant::now());
        let gauges = || vec![Figure::Gauge(Some(1))];
        for round in 0..POINTS as u32 + 50 {
            history.record(start + EACH * round, [(name("a"), gauges())]);
        }
        let last = history.last();
        assert_eq!(last, POINTS as u64 + 50);
        assert_eq!(history.points(&name("a"), 0, last).expect("recorded")[0].len(), POINTS);
        let many = (0..2 * OBJECTS).map(|number| (name(&number.to_string()), gauges()));
        history.record(start, many.chain([(name("b"), gauges())]));
        let held = history.0.lock();
        assert!(held.objects.len() < OBJECTS && !held.objects.contains_key(&name("a")));
    }
}
