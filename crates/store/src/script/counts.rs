//! Counts of commands called by scripts, for INFO commandstats, and of their errors, for INFO errorstats.
//!
//! An interpreter has its own counters and adds them to the sums at each script's end, so concurrent scripts do not
//! write to the same cache lines at each command. Calls of running scripts are not in the sums yet.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::catalogue::Rows;
use crate::errors::{Errors, code_of};

/// The numbers of calls, of those refused before they ran, and of those that ran and failed.
pub(crate) type Figures = [u64; 3];

/// The result of a call; its index in [`Figures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Well,
    Rejected,
    Failed,
}

/// The counters of one interpreter since its script began.
pub(crate) struct Counts {
    rows: Box<[[u32; 3]]>,
    /// Rows with a count above zero.
    touched: Vec<u16>,
    /// Error replies by their code: those that commands replied and those within the script's reply, except the one
    /// that became the script's own reply, which is counted with that.
    errors: RefCell<Vec<(Box<[u8]>, i64)>>,
}

/// The maximum number of error codes counted separately for one script.
const CODES_MAX: usize = 16;

impl Counts {
    pub(crate) fn new(rows: &Rows) -> Counts {
        Counts { rows: vec![[0; 3]; rows.count()].into(), touched: Vec::new(), errors: RefCell::default() }
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

    /// Adds `by` to the count of an error reply; `line` starts after the dash.
    pub(crate) fn error(&self, line: &[u8], by: i64) {
        let code = code_of(line);
        let mut errors = self.errors.borrow_mut();
        if let Some(known) = errors.iter_mut().find(|known| *known.0 == *code) {
            known.1 += by;
        } else if errors.len() < CODES_MAX {
            errors.push((code.into(), by));
        }
    }

    /// Adds the counters to the sums, and resets them.
    pub(crate) fn give(&mut self, sums: &Sums, of_store: &Errors) {
        for (code, count) in self.errors.get_mut().drain(..) {
            if let Ok(count @ 1..) = u64::try_from(count) {
                of_store.add(&code, count);
                sums.errors.fetch_add(count, Ordering::Relaxed);
            }
        }
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
    errors: AtomicU64,
}

impl Sums {
    pub(crate) fn new(rows: &Rows) -> Sums {
        Sums { rows: (0..rows.count()).map(|_| Default::default()).collect(), errors: AtomicU64::new(0) }
    }

    /// Returns the number of error replies that scripts received and did not return.
    pub(crate) fn error_replies(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns the figures of all rows, by number.
    pub(crate) fn figures(&self) -> impl Iterator<Item = Figures> {
        self.rows.iter().map(|row| row.each_ref().map(|sum| sum.load(Ordering::Relaxed)))
    }
}
