//! How often scripts call commands, for INFO commandstats.
//!
//! An interpreter counts for itself and adds to the sums at each script's end, so scripts that run at the same time do not
//! write to the same lines at each command. What one that still runs has called is not in the sums.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::catalogue::Numbered;

/// Calls, those that were refused before they ran, and those that ran and failed.
pub(crate) type Figures = [u64; 3];

/// What a call came to; the place of its number in [`Figures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Well,
    Rejected,
    Failed,
}

/// What one interpreter has counted since its script began.
pub(crate) struct Counts {
    rows: Box<[[u32; 3]]>,
    /// Rows with a number above zero.
    touched: Vec<u16>,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts { rows: vec![[0; 3]; Numbered::count()].into(), touched: Vec::new() }
    }

    /// Counts a call.
    #[inline]
    pub(crate) fn add(&mut self, row: u16, came: Came) {
        let figures = &mut self.rows[usize::from(row)];
        if *figures == [0; 3] {
            self.touched.push(row);
        }
        match came {
            Came::Well => figures[0] += 1,
            Came::Rejected => figures[1] += 1,
            Came::Failed => {
                figures[0] += 1;
                figures[2] += 1;
            }
        }
    }

    /// Adds what was counted to the sums, and begins again.
    pub(crate) fn give(&mut self, sums: &Sums) {
        for row in self.touched.drain(..) {
            let figures = std::mem::take(&mut self.rows[usize::from(row)]);
            for (sum, count) in sums.rows[usize::from(row)].iter().zip(figures) {
                if count > 0 {
                    sum.fetch_add(count.into(), Ordering::Relaxed);
                }
            }
        }
    }
}

/// The sums of a store.
pub(crate) struct Sums {
    rows: Box<[[AtomicU64; 3]]>,
}

impl Sums {
    pub(crate) fn new() -> Sums {
        Sums { rows: (0..Numbered::count()).map(|_| Default::default()).collect() }
    }

    /// The figures of all rows, by number.
    pub(crate) fn figures(&self) -> impl Iterator<Item = Figures> {
        self.rows.iter().map(|row| row.each_ref().map(|sum| sum.load(Ordering::Relaxed)))
    }
}
