//! The plan of a run: the command line, parsed and checked.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::http::HttpPlan;
use super::random::Random;
use super::redis::RedisPlan;
use super::schedule::Arrivals;
use super::statsd::Statsd;
use super::target::{Family, Server, StatsSource};
use super::template::KeySpace;
use super::tls::TlsPlan;

/// Parameters common to every protocol. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) server: Server,
    pub(crate) family: Family,
    /// `None`: without TLS.
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    /// The duration of sending requests; `None`: until their number is reached.
    pub(crate) duration_ns: Option<u64>,
    pub(crate) requests: Option<u64>,
    /// The number of requests of each connection of a thread, in turn; `requests` is then that of all of them. Empty:
    /// connections share `requests`.
    pub(crate) requests_each: Vec<u64>,
    /// Whether requests in flight at the end of the duration are cut off, and not waited for.
    pub(crate) cuts_off: bool,
    /// The duration of sending requests before the measured part.
    pub(crate) warmup_ns: u64,
    /// The scheduled requests per second, of all threads together; `None`: a closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) arrivals: Arrivals,
    /// The time within which the load grows: in an open loop the rate, in a closed loop the number of connections that
    /// send requests. It is the beginning of the warm-up, or of the measured part without one.
    pub(crate) ramp_ns: u64,
    /// The maximum number of unanswered requests of a connection; with HTTP/2 that of streams.
    pub(crate) pipeline: usize,
    pub(crate) timeout_ns: u64,
    pub(crate) connect_timeout_ns: u64,
    /// The time within which the kernel has to accept a request whole.
    pub(crate) write_timeout_ns: u64,
    /// A request that is sent later than this after its scheduled time counts as late.
    pub(crate) late_ns: u64,
    /// The number of requests after which a connection is replaced.
    pub(crate) renew_after: Option<u64>,
    /// How the connections of each thread begin in steps; `None`: all at once.
    pub(crate) growth: Option<Growth>,
    /// The shortest and the longest pause between the first connections of each thread.
    pub(crate) opening_pause_ns: (u64, u64),
    /// How lost connections are replaced; `None`: at once, then with pauses that get longer.
    pub(crate) reconnects: Option<Reconnects>,
    /// Whether figures of each second are kept.
    pub(crate) has_series: bool,
    /// Whether figures of each client are kept.
    pub(crate) has_clients: bool,
    /// The nodes of a cluster, of which each connection of a thread has one in turn; empty: `server`.
    pub(crate) nodes: Vec<Server>,
    /// Whether a connection carries more than one request.
    pub(crate) keep_alive: bool,
    /// Whether a RESP error reply ends the run, unless it names another node of a cluster.
    pub(crate) stops_on_error: bool,
    pub(crate) correct: Option<Correction>,
    pub(crate) interval_ns: Option<u64>,
    pub(crate) keys: KeySpace,
    pub(crate) seed: u64,
    /// A process whose CPU time is reported, too.
    pub(crate) pid: Option<u32>,
    pub(crate) json: Destination,
    pub(crate) csv: Destination,
    pub(crate) pictures: Pictures,
    /// Whether the text has a histogram of latencies.
    pub(crate) has_histogram: bool,
    pub(crate) live: Live,
    /// Where the figures of each second of [`Live::Memtier`] go, too.
    pub(crate) statsd: Option<Statsd>,
    /// Whether every request and every answer is told on standard error.
    pub(crate) traces: bool,
    /// Printed when the run begins, from which on signals end it with a report.
    pub(crate) banner: String,
}

/// Connections of a thread of which some begin with the run and others in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// The number of the first ones.
    pub(crate) first: usize,
    /// The number of those of each step.
    pub(crate) step: usize,
    pub(crate) every_ns: u64,
}

impl Growth {
    /// Returns the time at which a connection begins.
    pub(crate) fn begins_ns(&self, id: usize) -> u64 {
        match id.checked_sub(self.first) {
            None => 0,
            Some(more) => self.every_ns.saturating_mul((more / self.step) as u64 + 1),
        }
    }

    /// Returns the number of connections, of `count`, that have begun at a time.
    pub(crate) fn count_at(&self, ns: u64, count: usize) -> usize {
        let steps = usize::try_from(ns / self.every_ns).unwrap_or(usize::MAX);
        self.first.saturating_add(self.step.saturating_mul(steps)).min(count)
    }

    /// Returns the times at which the number of connections grows, with the number from then on.
    pub(crate) fn steps(&self, count: usize) -> impl Iterator<Item = (u64, usize)> {
        let growth = *self;
        let last = count.saturating_sub(self.first).div_ceil(self.step) as u64;
        (0..=last).map(move |step| {
            let ns = growth.every_ns.saturating_mul(step);
            (ns, growth.count_at(ns, count))
        })
    }
}

/// The attempts to replace a connection, each after a pause of a second times a factor for each attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reconnects {
    /// The number of attempts until a connection is established; `None`: no limit.
    pub(crate) most: Option<u32>,
    pub(crate) factor: f64,
}

impl Reconnects {
    /// Returns the pause before an attempt, the first of which is 1, from a millisecond to an hour; `None` if there are no
    /// more.
    pub(crate) fn pause_ns(&self, attempt: u32) -> Option<u64> {
        if self.most.is_some_and(|most| attempt > most) {
            return None;
        }
        let pause = self.factor.powi(attempt.min(10_000) as i32) * 1e9;
        Some(pause.clamp(1e6, 3.6e12) as u64)
    }
}

/// The interval by which a closed loop's latencies are corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// The expected interval between two requests of a connection.
    IntervalNs(u64),
    /// The run's own median latency.
    Median,
}

/// The destination of a report that is not the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    No,
    /// To standard output, in place of the text.
    Output,
    /// To a file, in addition to the text.
    File(PathBuf),
}

/// The files of reports with pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pictures {
    /// A page.
    pub(crate) html: Option<PathBuf>,
    /// The charts alone.
    pub(crate) svg: Option<PathBuf>,
}

impl Pictures {
    /// Returns whether there is none.
    pub(crate) fn is_none(&self) -> bool {
        self.html.is_none() && self.svg.is_none()
    }
}

/// The form of the lines that show the progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Live {
    /// One line for each interval.
    #[default]
    Lines,
    /// A view of the terminal that is drawn anew for each interval.
    Screen,
    /// One line that memtier_benchmark overwrites, with the number of the run.
    Memtier(u32),
    /// One line on standard output that redis-benchmark overwrites, with the title of the test.
    RedisBenchmark(String),
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) load: Load,
    pub(crate) protocol: ProtocolPlan,
}

/// What is done with the result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The percentage by which a figure may be worse.
    pub(crate) fail_over: Option<f64>,
    pub(crate) json: Destination,
    pub(crate) pictures: Pictures,
}

/// Two loads that are compared by runs in turns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Versus {
    pub(crate) one: Plan,
    pub(crate) other: Plan,
    /// The number of runs of each.
    pub(crate) rounds: u64,
    pub(crate) comparison: Comparison,
}

/// A search for what a target can take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CapacityPlan {
    /// A step; its connections and its rate differ from step to step.
    pub(crate) plan: Plan,
    /// Numbers of connections, in ascending order.
    pub(crate) steps: Vec<u64>,
    /// The proxy's own figures.
    pub(crate) source: Option<StatsSource>,
    /// Processes whose CPU time is read.
    pub(crate) pids: Vec<u32>,
    /// The share by which recommended limits exceed what is needed.
    pub(crate) margin: f64,
    pub(crate) json: Destination,
    pub(crate) pictures: Pictures,
}

/// The requests of a protocol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProtocolPlan {
    Http(HttpPlan),
    Http2(HttpPlan),
    Redis(RedisPlan),
}

impl ProtocolPlan {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ProtocolPlan::Http(_) | ProtocolPlan::Http2(_) => "http",
            ProtocolPlan::Redis(_) => "redis",
        }
    }
}

impl Load {
    /// Returns a closed loop of one connection of one thread without an end. Whoever makes a plan sets what differs.
    pub(crate) fn to(server: Server) -> Load {
        Load {
            server,
            family: Family::Any,
            tls: None,
            connections: 1,
            threads: 1,
            duration_ns: None,
            requests: None,
            requests_each: Vec::new(),
            cuts_off: false,
            warmup_ns: 0,
            rate: None,
            arrivals: Arrivals::Constant,
            ramp_ns: 0,
            pipeline: 1,
            timeout_ns: 10_000_000_000,
            connect_timeout_ns: 3_000_000_000,
            write_timeout_ns: 10_000_000_000,
            late_ns: 1_000_000,
            renew_after: None,
            growth: None,
            opening_pause_ns: (0, 0),
            reconnects: None,
            has_series: false,
            has_clients: false,
            nodes: Vec::new(),
            keep_alive: true,
            stops_on_error: false,
            correct: None,
            interval_ns: None,
            keys: KeySpace::none(),
            seed: 1,
            pid: None,
            json: Destination::No,
            csv: Destination::No,
            pictures: Pictures::default(),
            has_histogram: false,
            live: Live::Lines,
            statsd: None,
            traces: false,
            banner: String::new(),
        }
    }

    /// Returns the times at which a thread opens its first connections, with their numbers, from `now` on.
    pub(super) fn openings(&self, count: usize, thread: usize, now: u64) -> VecDeque<(u64, usize)> {
        let (min, max) = self.opening_pause_ns;
        let mut random = Random::new(self.seed ^ (thread as u64 + 1).wrapping_mul(0x9e6c_63d0_876a_68de));
        let mut due = now;
        let pause = |id: usize| {
            due = due.saturating_add(if id == 0 { 0 } else { min + random.below(max - min + 1) });
            (due, id)
        };
        (0..count).map(pause).collect()
    }

    /// Shows no view of the terminal.
    pub(super) fn leave_screen(&mut self) {
        if self.live == Live::Screen {
            (self.live, self.interval_ns) = (Live::Lines, None);
        }
    }

    /// Returns this thread's share of `total`; all shares add up to it.
    pub(super) fn share(&self, total: u64, thread: usize) -> u64 {
        let (threads, thread) = (self.threads as u64, thread as u64);
        total / threads + u64::from(thread < total % threads)
    }
}
