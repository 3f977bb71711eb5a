//! What a session or a stream tracks, and what is counted of it.

use std::sync::Arc;

use sluicegate_config::limits::TRACKED_COUNTERS;
use sluicegate_config::model::DataKind;

use super::key::Key;
use super::row::Row;
use super::table::{Held, Table};
use crate::sample::Value;

/// The tracked counters of a session or of a stream. Nothing is allocated before something is tracked.
#[derive(Debug, Default)]
pub struct Tracked(Option<Box<[Option<Slot>; TRACKED_COUNTERS]>>);

#[derive(Debug)]
struct Slot {
    held: Held,
    /// It was tracked by a backend's rule.
    backend: bool,
}

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A connection became a session.
    Session,
    /// An HTTP request.
    Request,
    /// A request that was refused or that the server answered with 4xx.
    Error,
    /// A response of 5xx except 501 and 505, or none.
    Failure,
    /// Bytes from the client and to it.
    Bytes(u64, u64),
}

impl Counted {
    fn kinds(self) -> [(DataKind, u64); 4] {
        use DataKind::{
            BytesInCnt, BytesInRate, BytesOutCnt, BytesOutRate, HttpErrCnt, HttpErrRate, HttpFailCnt, HttpFailRate,
            HttpReqCnt, HttpReqRate, SessCnt, SessRate,
        };
        let two = |count, rate| [(count, 1), (rate, 1), (count, 0), (rate, 0)];
        match self {
            Counted::Session => two(SessCnt, SessRate),
            Counted::Request => two(HttpReqCnt, HttpReqRate),
            Counted::Error => two(HttpErrCnt, HttpErrRate),
            Counted::Failure => two(HttpFailCnt, HttpFailRate),
            Counted::Bytes(i, o) => [(BytesInCnt, i), (BytesInRate, i), (BytesOutCnt, o), (BytesOutRate, o)],
        }
    }

    fn count(self, row: &mut Row<'_>) {
        for (kind, n) in self.kinds() {
            if n > 0 {
                row.add(kind, 0, n);
            }
        }
    }

    fn is_stored(self, table: &Table) -> bool {
        self.kinds().iter().any(|(kind, n)| *n > 0 && table.has(*kind))
    }
}

impl Tracked {
    /// Tracks a sample as a key of `table` under a number that tracks nothing yet, and counts the connection and
    /// `events`. A sample that can't be a key, and a table without room, track nothing.
    pub fn track(&mut self, number: usize, table: &Arc<Table>, sample: &Value<'_>, backend: bool, events: &[Counted]) {
        if self.get(number).is_some() {
            return;
        }
        let Some(key) = Key::new(table.key, sample) else { return };
        let tracked = table.track(&key, |row| {
            for kind in [DataKind::ConnCnt, DataKind::ConnCur, DataKind::ConnRate] {
                row.add(kind, 0, 1);
            }
            events.iter().for_each(|event| event.count(row));
        });
        if let (Some((held, ())), Some(slot)) = (tracked, self.0.get_or_insert_default().get_mut(number)) {
            *slot = Some(Slot { held, backend });
        }
    }

    /// Nothing was ever tracked here.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// What a number tracks.
    pub fn get(&self, number: usize) -> Option<&Held> {
        Some(&self.0.as_ref()?.get(number)?.as_ref()?.held)
    }

    /// Tracks nothing any more.
    pub fn clear(&mut self) {
        for slot in self.0.iter_mut().flat_map(|slots| slots.iter_mut()) {
            *slot = None;
        }
    }

    /// Counts an event of a stream, in its own counters and for the other numbers in the session's.
    #[inline]
    pub fn count(stream: &Tracked, session: &Tracked, event: Counted) {
        if !stream.is_unused() || !session.is_unused() {
            for number in 0..TRACKED_COUNTERS {
                if let Some(held) = stream.get(number).or_else(|| session.get(number)) {
                    count(held, event);
                }
            }
        }
    }

    /// Counts an event in the counters that a backend's rules track.
    pub fn count_of_backend(&self, event: Counted) {
        for slot in self.0.iter().flat_map(|slots| slots.iter().flatten()).filter(|slot| slot.backend) {
            count(&slot.held, event);
        }
    }
}

fn count(held: &Held, event: Counted) {
    if event.is_stored(&held.table) {
        held.change(|row| event.count(row));
    }
}
