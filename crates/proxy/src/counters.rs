//! Counters of frontends, backends and servers.
//!
//! Every figure is kept per worker on separate cache lines and written by that worker alone, so counting costs a plain
//! store; a reader sums over the workers. Gauges on which decisions depend (current sessions against `maxconn`, a
//! server's active requests) are shared atomics.
//!
//! Rates are HAProxy's two-slot counters (the current second and the previous one), also kept per worker: a reader adds
//! up the slots of one second. The maximum rate is that of whole seconds, updated once a second by [`Figures::tick`] on
//! the control thread, so no request pays for a shared maximum.
//!
//! Invariant: a worker writes only [`Figures::at`] its own index. Cost: about 640 bytes per worker and object.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use sluicegate_wire::http::{Message, StartLine, Version};
use sluicegate_wire::http2;

/// The number of requests over which `show stat` averages times (HAProxy's TIME_STATS_SAMPLES).
pub const TIME_SAMPLES: u64 = 512;

/// Returns the zero of [`second`]: the first call in the process.
pub(crate) fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Returns the whole seconds of a moment, on the scale that rates use; from 1, so that 0 means "never".
#[inline]
pub fn second(now: Instant) -> u32 {
    now.saturating_duration_since(epoch()).as_secs() as u32 + 1
}

/// Returns the milliseconds of a moment within its [`second`].
#[inline]
pub fn milliseconds(now: Instant) -> u32 {
    now.saturating_duration_since(epoch()).subsec_millis()
}

/// Returns the size of a message's head as HAProxy counts it in `%B`, `bin` and `bout`: that of its own representation
/// (a start line's three parts and 20 bytes, names and values, one byte for the end) and not that on the wire. A response
/// of HTTP/2 has no reason.
pub fn head_size(message: &Message) -> usize {
    let start = match message.start_line() {
        StartLine::Request { method, target, .. } => method.len() + target.len(),
        StartLine::Response { version: Version::Http2, .. } => 3,
        StartLine::Response { reason, .. } => 3 + reason.len(),
    };
    20 + "HTTP/1.1".len() + start + message.fields_len() + 1
}

/// A figure that only one worker writes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`; only the owning worker may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Raises the figure to `n` if it is lower; only the owning worker may call this.
    #[inline]
    pub fn raise(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// Returns the figure as last written.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the figure to 0. Called by the owning worker, or by `clear counters`, which may lose concurrent increments,
    /// as in HAProxy.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Events per second, one worker's share: in the current second and in the previous one.
#[derive(Debug, Default)]
pub struct Rate {
    second: AtomicU32,
    current: AtomicU32,
    previous: AtomicU32,
}

impl Rate {
    /// Counts `n` events at `now`; only the owning worker may call this.
    #[inline]
    pub fn add(&self, now: Instant, n: u32) {
        let now = second(now);
        let at = self.second.load(Ordering::Relaxed);
        if at == now {
            self.current.store(self.current.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        } else {
            let last = if at + 1 == now { self.current.load(Ordering::Relaxed) } else { 0 };
            self.previous.store(last, Ordering::Relaxed);
            self.current.store(n, Ordering::Relaxed);
            self.second.store(now, Ordering::Release);
        }
    }

    /// Returns the events counted in the whole second `at`, if that is the current or the previous one.
    pub(crate) fn at(&self, at: u32) -> u32 {
        self.in_second(at)
    }

    fn in_second(&self, at: u32) -> u32 {
        let second = self.second.load(Ordering::Acquire);
        if second == at {
            self.current.load(Ordering::Relaxed)
        } else if second == at + 1 {
            self.previous.load(Ordering::Relaxed)
        } else {
            0
        }
    }
}

/// The figures of one proxy side (frontend or backend) or one server, as `show stat` names them; one worker's share.
#[derive(Debug, Default)]
#[repr(align(128))]
#[allow(missing_docs)] // the names are show stat's columns
pub struct Counters {
    pub stot: Count,
    pub bin: Count,
    pub bout: Count,
    pub dreq: Count,
    pub dresp: Count,
    pub ereq: Count,
    pub econ: Count,
    pub eresp: Count,
    pub wretr: Count,
    pub wredis: Count,
    pub lbtot: Count,
    pub hrsp_1xx: Count,
    pub hrsp_2xx: Count,
    pub hrsp_3xx: Count,
    pub hrsp_4xx: Count,
    pub hrsp_5xx: Count,
    pub hrsp_other: Count,
    pub req_tot: Count,
    pub cli_abrt: Count,
    pub srv_abrt: Count,
    pub conn_tot: Count,
    pub intercepted: Count,
    pub dcon: Count,
    pub dses: Count,
    pub wrew: Count,
    pub eint: Count,
    pub comp_in: Count,
    pub comp_out: Count,
    pub comp_byp: Count,
    pub comp_rsp: Count,
    pub cache_lookups: Count,
    pub cache_hits: Count,
    pub connect: Count,
    pub reuse: Count,
    pub h1_spliced_bytes_in: Count,
    pub h1_spliced_bytes_out: Count,
    pub qtime: Average,
    pub ctime: Average,
    pub rtime: Average,
    pub ttime: Average,
    /// The figures of TLS.
    pub tls: TlsCounters,
    /// The figures of HTTP/2.
    pub http2: Http2Counters,
    /// Sessions (frontends) or requests (backends, servers) per second.
    pub sess_rate: Rate,
    /// HTTP requests per second (frontends).
    pub req_rate: Rate,
    /// Connections per second (frontends).
    pub conn_rate: Rate,
    /// The time of the last session assignment, in [`second`]s; 0: never.
    pub lastsess: Count,
}

/// The figures of TLS.
#[derive(Debug, Default)]
pub struct TlsCounters {
    /// Sessions that were established with a full handshake.
    pub sessions: Count,
    /// Sessions that were resumed.
    pub resumed: Count,
    /// Handshakes that failed.
    pub failed: Count,
    /// OCSP responses that were sent.
    pub stapled: Count,
    /// Requests for OCSP responses that are missing or expired.
    pub not_stapled: Count,
}

/// The figures of HTTP/2, as `show stat` names them.
#[derive(Debug, Default)]
#[allow(missing_docs)] // the names are show stat's columns
pub struct Http2Counters {
    pub headers_rcvd: Count,
    pub data_rcvd: Count,
    pub settings_rcvd: Count,
    pub rst_stream_rcvd: Count,
    pub goaway_rcvd: Count,
    pub detected_conn_protocol_errors: Count,
    pub detected_strm_protocol_errors: Count,
    pub rst_stream_resp: Count,
    pub goaway_resp: Count,
    /// Connections and streams since the start, and those of them that have ended.
    pub total_connections: Count,
    pub ended_connections: Count,
    pub total_streams: Count,
    pub ended_streams: Count,
}

impl Http2Counters {
    /// Adds what a connection has received and sent.
    pub(crate) fn add(&self, counts: &http2::Counts) {
        self.headers_rcvd.add(counts.headers_received.into());
        self.data_rcvd.add(counts.data_received.into());
        self.settings_rcvd.add(counts.settings_received.into());
        self.rst_stream_rcvd.add(counts.resets_received.into());
        self.goaway_rcvd.add(counts.goaways_received.into());
        self.detected_conn_protocol_errors.add(counts.connection_errors.into());
        self.detected_strm_protocol_errors.add(counts.stream_errors.into());
        self.rst_stream_resp.add(counts.resets_sent.into());
        self.goaway_resp.add(counts.goaways_sent.into());
    }
}

impl Counters {
    /// Counts a session of a frontend, or a request of a backend or server, that begins at `now`.
    #[inline]
    pub fn session(&self, now: Instant) {
        self.stot.add(1);
        self.sess_rate.add(now, 1);
        self.lastsess.raise(u64::from(second(now)));
    }

    /// Counts one HTTP response by the class of its status.
    #[inline]
    pub fn response(&self, status: i32) {
        match status {
            100..=199 => self.hrsp_1xx.add(1),
            200..=299 => self.hrsp_2xx.add(1),
            300..=399 => self.hrsp_3xx.add(1),
            400..=499 => self.hrsp_4xx.add(1),
            500..=599 => self.hrsp_5xx.add(1),
            _ => self.hrsp_other.add(1),
        }
    }

    /// Returns the counts of events since the start, with the names that the state file has for them.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Count)> {
        [
            ("stot", &self.stot),
            ("bin", &self.bin),
            ("bout", &self.bout),
            ("dreq", &self.dreq),
            ("dresp", &self.dresp),
            ("ereq", &self.ereq),
            ("econ", &self.econ),
            ("eresp", &self.eresp),
            ("wretr", &self.wretr),
            ("wredis", &self.wredis),
            ("lbtot", &self.lbtot),
            ("hrsp_1xx", &self.hrsp_1xx),
            ("hrsp_2xx", &self.hrsp_2xx),
            ("hrsp_3xx", &self.hrsp_3xx),
            ("hrsp_4xx", &self.hrsp_4xx),
            ("hrsp_5xx", &self.hrsp_5xx),
            ("hrsp_other", &self.hrsp_other),
            ("req_tot", &self.req_tot),
            ("cli_abrt", &self.cli_abrt),
            ("srv_abrt", &self.srv_abrt),
            ("conn_tot", &self.conn_tot),
            ("intercepted", &self.intercepted),
            ("dcon", &self.dcon),
            ("dses", &self.dses),
            ("wrew", &self.wrew),
            ("eint", &self.eint),
            ("connect", &self.connect),
            ("reuse", &self.reuse),
            ("tls.sessions", &self.tls.sessions),
            ("tls.resumed", &self.tls.resumed),
            ("tls.failed", &self.tls.failed),
            ("tls.stapled", &self.tls.stapled),
            ("tls.not_stapled", &self.tls.not_stapled),
            ("http2.headers_rcvd", &self.http2.headers_rcvd),
            ("http2.data_rcvd", &self.http2.data_rcvd),
            ("http2.settings_rcvd", &self.http2.settings_rcvd),
            ("http2.rst_stream_rcvd", &self.http2.rst_stream_rcvd),
            ("http2.goaway_rcvd", &self.http2.goaway_rcvd),
            ("http2.detected_conn_protocol_errors", &self.http2.detected_conn_protocol_errors),
            ("http2.detected_strm_protocol_errors", &self.http2.detected_strm_protocol_errors),
            ("http2.rst_stream_resp", &self.http2.rst_stream_resp),
            ("http2.goaway_resp", &self.http2.goaway_resp),
            ("comp_in", &self.comp_in),
            ("comp_out", &self.comp_out),
            ("comp_byp", &self.comp_byp),
            ("comp_rsp", &self.comp_rsp),
            ("cache_lookups", &self.cache_lookups),
            ("cache_hits", &self.cache_hits),
        ]
        .into_iter()
    }

    /// Resets the highest times, and with `all` all counters; the rates and the last session's time stay (HAProxy's
    /// `clear counters`). Concurrent increments of the worker may be lost.
    fn clear(&self, all: bool) {
        for time in [&self.qtime, &self.ctime, &self.rtime, &self.ttime] {
            time.max.clear();
        }
        if !all {
            return;
        }
        let cleared = self.named().filter(|(name, _)| !name.starts_with("comp"));
        cleared.for_each(|(_, count)| count.clear());
    }

    /// Adds the times of one finished request, in milliseconds, to the averages and maxima; a negative time belongs to
    /// a phase that was not reached.
    pub fn times(&self, queue_ms: i64, connect_ms: i64, response_ms: i64, total_ms: i64) {
        self.qtime.feed(queue_ms);
        self.ctime.feed(connect_ms);
        self.rtime.feed(response_ms);
        self.ttime.feed(total_ms);
    }
}

/// A sliding average over about [`TIME_SAMPLES`] values (HAProxy's swrate), and the highest value.
#[derive(Debug, Default)]
pub struct Average {
    sum: Count,
    seen: Count,
    /// The highest value, milliseconds.
    pub max: Count,
}

impl Average {
    /// Adds a value; a negative one counts as 0, as HAProxy does for phases that were not reached.
    #[inline]
    pub fn feed(&self, value: i64) {
        let value = value.max(0) as u64;
        let seen = self.seen.get();
        if seen < TIME_SAMPLES {
            self.seen.add(1);
            self.sum.add(value);
        } else {
            let sum = self.sum.get();
            self.sum.0.store(sum - sum.div_ceil(TIME_SAMPLES) + value, Ordering::Relaxed);
        }
        self.max.raise(value);
    }

    /// Returns the sum and the number of the values that it stands for.
    fn parts(&self) -> (u64, u64) {
        (self.sum.get(), self.seen.get())
    }
}

/// All counters of a frontend, backend or server.
#[derive(Debug)]
pub struct Figures {
    workers: Box<[Counters]>,
    /// Current sessions (frontend), requests (backend) or requests being processed (server).
    pub scur: AtomicU32,
    /// Highest value of `scur`.
    pub smax: AtomicU32,
    rate_max: AtomicU32,
    req_rate_max: AtomicU32,
    conn_rate_max: AtomicU32,
    /// The [`second`] up to which a session that began may not be in `rate_max` yet.
    busy_until: AtomicU32,
}

impl Figures {
    /// Returns figures for `workers` workers, all 0.
    pub fn new(workers: usize) -> Figures {
        epoch();
        Figures {
            workers: (0..workers.max(1)).map(|_| Counters::default()).collect(),
            scur: AtomicU32::new(0),
            smax: AtomicU32::new(0),
            rate_max: AtomicU32::new(0),
            req_rate_max: AtomicU32::new(0),
            conn_rate_max: AtomicU32::new(0),
            busy_until: AtomicU32::new(0),
        }
    }

    /// Returns the counters of the worker with this index, which alone may write them.
    #[inline]
    pub fn at(&self, worker: usize) -> &Counters {
        &self.workers[worker]
    }

    /// Counts one more current session; returns their number.
    #[inline]
    pub fn enter(&self) -> u32 {
        let now = self.scur.fetch_add(1, Ordering::Relaxed) + 1;
        if now > self.smax.load(Ordering::Relaxed) {
            self.smax.fetch_max(now, Ordering::Relaxed);
        }
        now
    }

    /// Counts one current session less.
    #[inline]
    pub fn leave(&self) {
        self.scur.fetch_sub(1, Ordering::Relaxed);
    }

    /// Resets the highest values, and with `all` all counters.
    pub fn clear(&self, all: bool) {
        self.smax.store(self.scur.load(Ordering::Relaxed), Ordering::Relaxed);
        for max in [&self.rate_max, &self.req_rate_max, &self.conn_rate_max] {
            max.store(0, Ordering::Relaxed);
        }
        self.workers.iter().for_each(|counters| counters.clear(all));
    }

    /// Returns the sums over all workers that are not 0, by their names.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = self.workers.first().into_iter().flat_map(Counters::named).map(|(name, _)| name);
        let mut sums: Vec<(&'static str, u64)> = names.map(|name| (name, 0)).collect();
        for counters in &self.workers {
            sums.iter_mut().zip(counters.named()).for_each(|(sum, (_, count))| sum.1 += count.get());
        }
        sums.into_iter().filter(|(_, sum)| *sum > 0)
    }

    /// Adds to the count of this name, before the workers begin.
    pub(crate) fn restore(&self, name: &str, value: u64) {
        let counters = self.workers.first();
        if let Some((_, count)) = counters.and_then(|counters| counters.named().find(|(known, _)| *known == name)) {
            count.add(value);
        }
    }

    /// Sets the count of this name, before the workers begin.
    pub(crate) fn preset(&self, name: &str, value: u64) {
        for (worker, counters) in self.workers.iter().enumerate() {
            if let Some((_, count)) = counters.named().find(|(known, _)| *known == name) {
                count.clear();
                count.add(if worker == 0 { value } else { 0 });
            }
        }
    }

    /// Returns the sum of one figure over all workers.
    pub fn sum(&self, figure: impl Fn(&Counters) -> &Count) -> u64 {
        self.workers.iter().map(|counters| figure(counters).get()).sum()
    }

    /// Returns the highest value of one figure over all workers.
    pub fn highest(&self, figure: impl Fn(&Counters) -> &Count) -> u64 {
        self.workers.iter().map(|counters| figure(counters).get()).max().unwrap_or(0)
    }

    /// Returns the average of one time over all workers, in milliseconds.
    pub fn average(&self, figure: impl Fn(&Counters) -> &Average) -> u64 {
        let (sum, seen) = self
            .workers
            .iter()
            .map(|counters| figure(counters).parts())
            .fold((0, 0), |(sum, seen), (more, n)| (sum + more, seen + n));
        sum.checked_div(seen).unwrap_or(0)
    }

    /// Returns the events of the last 1,000 ms, as HAProxy estimates them: those of the current second, plus those of
    /// the previous second in proportion to the time that is left of the current one.
    pub fn rate(&self, now: Instant, rate: impl Fn(&Counters) -> &Rate) -> u32 {
        let at = second(now);
        let passed_ms = u64::from(milliseconds(now));
        let (current, previous) = self.slots(at, rate);
        (current + (previous * (1000 - passed_ms) / 1000)) as u32
    }

    fn slots(&self, at: u32, rate: impl Fn(&Counters) -> &Rate) -> (u64, u64) {
        self.workers.iter().map(&rate).fold((0, 0), |(current, previous), rate| {
            (current + u64::from(rate.in_second(at)), previous + u64::from(rate.in_second(at - 1)))
        })
    }

    /// Updates the highest rates with the current and the last whole second. Must be called at least once a second.
    pub fn tick(&self, now: Instant) {
        let at = second(now);
        self.raise(&self.rate_max, at, |counters| &counters.sess_rate);
        self.raise(&self.req_rate_max, at, |counters| &counters.req_rate);
        self.raise(&self.conn_rate_max, at, |counters| &counters.conn_rate);
    }

    /// Like [`tick`](Self::tick), for a backend or a server, which has no other rate than that of sessions.
    pub fn tick_sessions(&self, now: Instant) {
        self.raise(&self.rate_max, second(now), |counters| &counters.sess_rate);
    }

    fn raise(&self, max: &AtomicU32, at: u32, rate: fn(&Counters) -> &Rate) {
        let (current, previous) = self.slots(at, rate);
        let highest = current.max(previous) as u32;
        if highest > max.load(Ordering::Relaxed) {
            max.fetch_max(highest, Ordering::Relaxed);
        }
    }

    /// Returns whether a session of this backend, or of one of its servers, may have begun in the current second or the
    /// one before. Must be called at least once a second.
    pub fn is_busy(&self, now: Instant) -> bool {
        let at = second(now);
        let began = |counters: &Counters| counters.lastsess.get() + 1 >= u64::from(at);
        if self.scur.load(Ordering::Relaxed) > 0 || self.workers.iter().any(began) {
            // A session that is no longer current when this is called again may have been given to a server until then.
            self.busy_until.store(at + 2, Ordering::Relaxed);
            return true;
        }
        self.busy_until.load(Ordering::Relaxed) >= at
    }

    /// Returns the highest session rate so far.
    pub fn rate_max(&self) -> u32 {
        self.rate_max.load(Ordering::Relaxed)
    }

    /// Returns the highest request rate so far.
    pub fn req_rate_max(&self) -> u32 {
        self.req_rate_max.load(Ordering::Relaxed)
    }

    /// Returns the highest connection rate so far.
    pub fn conn_rate_max(&self) -> u32 {
        self.conn_rate_max.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_follow_the_seconds() {
        let figures = Figures::new(2);
        let start = epoch();
        let at = |ms: u64| start + Duration::from_millis(5_000 + ms);
        for _ in 0..10 {
            figures.at(0).sess_rate.add(at(0), 1);
            figures.at(1).sess_rate.add(at(900), 1);
        }
        let rate = |ms| figures.rate(at(ms), |counters| &counters.sess_rate);
        assert_eq!(rate(950), 20);
        assert_eq!(rate(1_250), 15, "a quarter of the next second has passed");
        assert_eq!(rate(2_000), 0);
        figures.tick(at(1_100));
        assert_eq!(figures.rate_max(), 20);
        figures.at(0).sess_rate.add(at(1_500), 1);
        figures.tick(at(1_900));
        assert_eq!(figures.rate_max(), 20);
        assert_eq!(rate(1_500), 11);
    }

    #[test]
    fn figures_are_busy_until_their_last_second_is_over() {
        let figures = Figures::new(2);
        let at = |seconds: u64| epoch() + Duration::from_secs(100 + seconds);
        assert!(!figures.is_busy(at(0)));
        figures.enter();
        assert!(figures.is_busy(at(1)), "a session is current");
        figures.leave();
        assert!(figures.is_busy(at(3)), "it may have reached a server after the last call");
        assert!(!figures.is_busy(at(4)));
        figures.at(1).session(at(5));
        assert!(figures.is_busy(at(5)) && figures.is_busy(at(6)), "the rate of the second before");
        figures.tick_sessions(at(6));
        assert_eq!(figures.rate_max(), 1);
        assert!(!figures.is_busy(at(9)));
    }

    #[test]
    fn averages_slide() {
        let average = Average::default();
        for _ in 0..10_000 {
            average.feed(40);
        }
        let (sum, seen) = average.parts();
        assert_eq!((sum / seen, seen), (40, TIME_SAMPLES));
        average.feed(-1);
        assert_eq!(average.max.get(), 40);
    }

    #[test]
    fn gauges_keep_their_highest_value() {
        let figures = Figures::new(1);
        figures.enter();
        assert_eq!(figures.enter(), 2);
        figures.leave();
        assert_eq!((figures.scur.load(Ordering::Relaxed), figures.smax.load(Ordering::Relaxed)), (1, 2));
    }
}
