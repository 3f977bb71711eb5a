//! Counters tracked by a session or a stream, and the events counted in them.

use std::sync::Arc;

use sluicegate_config::limits::TRACKED_COUNTERS;
use sluicegate_config::model::DataKind;

use super::key::Key;
use super::row::Row;
use super::table::{Held, Table};
use crate::sample::Value;

/// The tracked counters of a session or of a stream. Nothing is allocated before something is tracked.
#[derive(Debug, Default)]
pub struct Tracked(Option<Box<Slots>>);

/// The first slots, and the further ones (`tune.stick-counters`), which are allocated once one of them is tracked.
#[derive(Debug, Default)]
struct Slots {
    first: [Option<Slot>; TRACKED_COUNTERS],
    more: Vec<Option<Slot>>,
}

impl Slots {
    fn get(&self, number: usize) -> Option<&Slot> {
        match self.first.get(number) {
            Some(slot) => slot.as_ref(),
            None => self.more.get(number - TRACKED_COUNTERS)?.as_ref(),
        }
    }

    fn place(&mut self, number: usize) -> &mut Option<Slot> {
        if number < TRACKED_COUNTERS {
            return &mut self.first[number];
        }
        let number = number - TRACKED_COUNTERS;
        if self.more.len() <= number {
            self.more.resize_with(number + 1, || None);
        }
        &mut self.more[number]
    }

    fn all(&self) -> impl Iterator<Item = &Slot> {
        self.first.iter().chain(&self.more).flatten()
    }

    /// Returns an upper limit of the numbers in use: one more than the highest number that may track an entry.
    fn end(&self) -> usize {
        TRACKED_COUNTERS + self.more.len()
    }
}

#[derive(Debug)]
struct Slot {
    held: Held,
    /// Whether a backend's rule tracked it.
    backend: bool,
}

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A connection became a session.
    Session,
    /// An HTTP request.
    Request,
    /// A request that was refused or that the server answered with 4xx.
    Error,
    /// A 5xx response except 501 and 505, or no response.
    Failure,
    /// Bytes from the client and to it.
    Bytes(u64, u64),
    /// Anomalies of a connection of HTTP/2.
    Glitches(u64),
}

impl Counted {
    fn kinds(self) -> [(DataKind, u64); 4] {
        use DataKind::{
            BytesInCnt, BytesInRate, BytesOutCnt, BytesOutRate, GlitchCnt, GlitchRate, HttpErrCnt, HttpErrRate,
            HttpFailCnt, HttpFailRate, HttpReqCnt, HttpReqRate, SessCnt, SessRate,
        };
        let two = |count, rate| [(count, 1), (rate, 1), (count, 0), (rate, 0)];
        match self {
            Counted::Session => two(SessCnt, SessRate),
            Counted::Request => two(HttpReqCnt, HttpReqRate),
            Counted::Error => two(HttpErrCnt, HttpErrRate),
            Counted::Failure => two(HttpFailCnt, HttpFailRate),
            Counted::Glitches(n) => [(GlitchCnt, n), (GlitchRate, n), (GlitchCnt, 0), (GlitchRate, 0)],
            Counted::Bytes(i, o) => [(BytesInCnt, i), (BytesInRate, i), (BytesOutCnt, o), (BytesOutRate, o)],
        }
    }

    fn count(self, row: &mut Row<'_>) {
        for (kind, n) in self.kinds() {
            if n > 0 {
                row.count(kind, n);
            }
        }
    }

    fn is_stored(self, table: &Table) -> bool {
        self.kinds().iter().any(|(kind, n)| *n > 0 && table.has(*kind))
    }
}

impl Tracked {
    /// Tracks a sample as a key of `table` under an unused number, and counts the connection and `events`. If the
    /// sample cannot be a key, or the table has no room, nothing is tracked.
    pub fn track(&mut self, number: usize, table: &Arc<Table>, sample: &Value<'_>, backend: bool, events: &[Counted]) {
        if self.get(number).is_some() {
            return;
        }
        let Some(key) = Key::new(table.key, sample) else { return };
        let tracked = table.track(&key, |row| {
            for kind in [DataKind::ConnCnt, DataKind::ConnCur, DataKind::ConnRate] {
                row.count(kind, 1);
            }
            events.iter().for_each(|event| event.count(row));
        });
        if let Some((held, ())) = tracked {
            *self.0.get_or_insert_default().place(number) = Some(Slot { held, backend });
        }
    }

    /// Returns whether nothing was ever tracked here.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the entry tracked under a number.
    pub fn get(&self, number: usize) -> Option<&Held> {
        Some(&self.0.as_ref()?.get(number)?.held)
    }

    /// Stops all tracking.
    pub fn clear(&mut self) {
        if let Some(slots) = &mut self.0 {
            slots.first = Default::default();
            slots.more.clear();
        }
    }

    /// Counts an event of a stream in its own counters and, for the other numbers, in those of the session.
    #[inline]
    pub fn count(stream: &Tracked, session: &Tracked, event: Counted) {
        if !stream.is_unused() || !session.is_unused() {
            let end = |tracked: &Tracked| tracked.0.as_ref().map_or(0, |slots| slots.end());
            for number in 0..end(stream).max(end(session)) {
                if let Some(held) = stream.get(number).or_else(|| session.get(number)) {
                    count(held, event);
                }
            }
        }
    }

    /// Counts an event in the counters that a backend's rules track.
    pub fn count_of_backend(&self, event: Counted) {
        for slot in self.0.iter().flat_map(|slots| slots.all()).filter(|slot| slot.backend) {
            count(&slot.held, event);
        }
    }
}

fn count(held: &Held, event: Counted) {
    if event.is_stored(&held.table) {
        held.change(|row| event.count(row));
    }
}
