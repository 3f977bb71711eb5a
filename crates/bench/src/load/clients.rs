//! Figures of each client by itself.
//!
//! A client is a connection, or one to each node of a cluster. Latencies have a histogram for each command, seconds only
//! sums. A run keeps at most [`MAX_SERIES`] of them, and a series has at most [`MAX_STEPS`] steps: a longer run has steps
//! of several seconds.

use hdrhistogram::Histogram;

use super::protocol::Outcome;

/// The maximum number of clients times commands of a run: each has a histogram and a series.
pub(super) const MAX_SERIES: u64 = 4000;

/// The maximum number of steps of a series.
const MAX_STEPS: usize = 600;

/// One command in one second, or in a step of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Step {
    /// Replies that are no errors, and those of them that are null.
    pub(super) answered: u64,
    pub(super) nulls: u64,
    /// Errors that name another node of a cluster.
    pub(super) moved: u64,
    pub(super) asked: u64,
    /// The size of the requests that were sent, and of the replies that were received.
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// The sum of the latencies of `answered`.
    pub(super) latency_us: u64,
}

impl Step {
    fn add(&mut self, other: &Step) {
        self.answered += other.answered;
        self.nulls += other.nulls;
        self.moved += other.moved;
        self.asked += other.asked;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.latency_us += other.latency_us;
    }
}

/// The figures of a client.
#[derive(Clone, Debug)]
pub(super) struct ClientStats {
    /// Latencies of each command in microseconds, of replies that are no errors.
    pub(super) latency: Vec<Histogram<u32>>,
    /// The steps of the run with the figures of each command.
    pub(super) series: Vec<Vec<Step>>,
    /// The length of a step, in seconds.
    pub(super) step_s: usize,
}

impl ClientStats {
    pub(super) fn new(commands: usize) -> ClientStats {
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        ClientStats { latency: (0..commands).map(|_| histogram()).collect(), series: Vec::new(), step_s: 1 }
    }

    /// Records a request.
    pub(super) fn sent(&mut self, second: usize, command: u16, bytes: u64) {
        self.step(second, command).bytes_sent += bytes;
    }

    /// Records a reply.
    pub(super) fn answered(&mut self, second: usize, command: u16, outcome: &Outcome, bytes: u64, latency_us: u64) {
        let step = self.step(second, command);
        step.bytes_received += bytes;
        if let Outcome::Error(text) = outcome {
            step.moved += u64::from(text.starts_with("MOVED "));
            step.asked += u64::from(text.starts_with("ASK "));
            return;
        }
        step.answered += 1;
        step.nulls += u64::from(*outcome == Outcome::Null);
        step.latency_us += latency_us;
        // An automatic histogram grows to take any value; a saturating call would not let it.
        let _ = self.latency[usize::from(command)].record(latency_us.max(1));
    }

    /// Returns whether a request was sent.
    pub(super) fn has_begun(&self) -> bool {
        !self.series.is_empty()
    }

    fn step(&mut self, second: usize, command: u16) -> &mut Step {
        while second / self.step_s >= MAX_STEPS {
            self.step_s *= 2;
            let steps = std::mem::take(&mut self.series);
            self.series = steps.chunks(2).map(Self::together).collect();
        }
        let step = second / self.step_s;
        if self.series.len() <= step {
            self.series.resize(step + 1, vec![Step::default(); self.latency.len()]);
        }
        &mut self.series[step][usize::from(command)]
    }

    fn together(steps: &[Vec<Step>]) -> Vec<Step> {
        let mut sums = steps[0].clone();
        for step in &steps[1..] {
            sums.iter_mut().zip(step).for_each(|(sum, more)| sum.add(more));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_bounded_and_loses_nothing() {
        let mut stats = ClientStats::new(2);
        assert!(!stats.has_begun());
        for second in 0..2000 {
            stats.sent(second, 1, 3);
            stats.answered(second, 1, &Outcome::Value, 5, 7);
        }
        stats.answered(1999, 1, &Outcome::Null, 0, 9);
        stats.answered(1999, 1, &Outcome::Error("MOVED 1 a:1".into()), 0, 9);
        assert_eq!((stats.step_s, stats.series.len(), stats.latency[1].len()), (4, 500, 2001));
        let step = |nulls, moved, answered, latency_us| Step {
            answered,
            nulls,
            moved,
            asked: 0,
            bytes_sent: 12,
            bytes_received: 20,
            latency_us,
        };
        assert_eq!((stats.series[0][1], stats.series[499][1]), (step(0, 0, 4, 28), step(1, 1, 5, 37)));
        assert_eq!(stats.series[7][0], Step::default());
    }
}
