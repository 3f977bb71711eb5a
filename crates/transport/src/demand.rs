//! How much unused memory of one kind a thread should keep.
//!
//! Streams come in bursts: a response frees the memory of a stream that the client's next request needs a moment later.
//! What a free list then cannot keep goes through the allocator, whose empty pages go back to the kernel and are
//! cleared for the next burst. A fixed limit is either too low for a thread with a thousand streams or wastes memory
//! on one with ten. So a list keeps as many blocks as the thread has lately used at once beyond those in use now.
//! **Limits:** at least [`Demand::LEAST`] blocks, at most [`Demand::MOST`]; a maximum is forgotten after one to two
//! periods of [`PERIOD`] blocks that are taken.

/// The number of blocks after which a new maximum is sought.
const PERIOD: u32 = 4096;

/// The use of blocks of one kind.
#[derive(Debug, Default)]
pub struct Demand {
    used: usize,
    /// The maximum of `used` in this period and in the one before.
    highest: usize,
    highest_before: usize,
    /// Blocks that were taken in this period.
    taken: u32,
}

impl Demand {
    /// The number of unused blocks that may always be kept.
    pub const LEAST: usize = 64;

    /// The largest number of unused blocks that are kept.
    pub const MOST: usize = 1024;

    /// Returns the demand of a thread that has used nothing.
    pub const fn new() -> Demand {
        Demand { used: 0, highest: 0, highest_before: 0, taken: 0 }
    }

    /// Records that a block is in use.
    #[inline]
    pub fn take(&mut self) {
        self.used += 1;
        self.highest = self.highest.max(self.used);
        self.taken += 1;
        if self.taken == PERIOD {
            (self.highest_before, self.highest, self.taken) = (self.highest, self.used, 0);
        }
    }

    /// Records that a block is in use no more; returns how many unused ones should be kept.
    #[inline]
    pub fn give(&mut self) -> usize {
        self.used = self.used.saturating_sub(1);
        (self.highest.max(self.highest_before) - self.used).clamp(Demand::LEAST, Demand::MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(demand: &mut Demand, size: usize) -> usize {
        (0..size).for_each(|_| demand.take());
        (0..size).map(|_| demand.give()).last().unwrap_or_default()
    }

    #[test]
    fn as_many_are_kept_as_were_used_at_once() {
        let mut demand = Demand::new();
        assert_eq!(burst(&mut demand, 10), Demand::LEAST);
        assert_eq!(burst(&mut demand, 500), 500);
        (0..300).for_each(|_| demand.take());
        assert_eq!(demand.give(), 201, "those in use need no memory beside them");
        assert_eq!(burst(&mut demand, 5000), Demand::MOST);
    }

    #[test]
    fn a_burst_is_forgotten() {
        let mut demand = Demand::new();
        burst(&mut demand, 500);
        let kept: Vec<usize> = (0..2 * PERIOD).map(|_| burst(&mut demand, 1)).collect();
        assert_eq!((kept[0], kept.last()), (500, Some(&Demand::LEAST)));
    }
}
