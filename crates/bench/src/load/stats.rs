//! Counters and histograms of a run.
//!
//! Each thread owns its counters exclusively; they are summed after all threads have ended. Times are recorded in
//! nanoseconds in HDR histograms with three significant digits, from 1 ns to one hour; longer times count as one hour.
//! Each histogram takes 270 KiB regardless of the number of requests, and only the pages in use are touched.
//!
//! **Invariant:** every started request ends in exactly one counter: `sent = answered + failed + unanswered`, where
//! `failed` is the sum of [`RequestFault`]s and `unanswered` are those that an interrupt cut off.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rustls::HandshakeKind;

use super::protocol::Outcome;
use super::tls::Parameters;

/// The longest time that is recorded; longer times count as this one.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Significant decimal digits of a recorded time.
const DIGITS: u8 = 3;

/// The maximum number of RESP error codes counted separately; all others are counted as `other`.
const MAX_CODES: usize = 32;

/// The maximum number of different parameters and errors of TLS counted separately; others are counted as `other`.
const MAX_TLS: usize = 32;

/// The maximum length of an example text, in bytes; in characters for that of an error reply.
const MAX_EXAMPLE: usize = 200;

/// Returns a histogram of nanoseconds.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the constructor accepts, so the coarse fallback is never used.
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
        .unwrap_or_else(|_| Histogram::new(DIGITS).expect("three digits are allowed"))
}

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$kind_doc:meta])* $kind:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum $name { $($(#[$kind_doc])* $kind,)+ }

        impl $name {
            /// Every kind, with its name in reports.
            pub(super) const ALL: &[($name, &str)] = &[$(($name::$kind, $text),)+];
        }
    };
}

kinds! {
    /// The reason why a request got no response.
    RequestFault {
        /// The connection for this request could not be established (only with one connection per request).
        Connect = "connect",
        /// No complete response arrived within the timeout.
        Timeout = "timeout",
        /// The peer reset the connection, or the stream of the request.
        Reset = "reset",
        /// The peer closed the connection before the first byte of the response.
        Closed = "closed",
        /// The peer closed the connection in the middle of the response.
        Short = "short",
        /// The response is malformed.
        BadResponse = "bad_response",
        /// The request was pipelined after one that failed, or after one whose response ended the connection; or the
        /// peer closed the connection without processing it.
        Dropped = "dropped",
        /// TLS failed after the handshake: a record that can't be decrypted, or an alert of the peer.
        Tls = "tls",
        /// Any other error of the socket.
        Io = "io",
    }
}

kinds! {
    /// The reason why a connection failed.
    ConnectFault {
        /// Connection refused: no process listens on the address.
        Refused = "refused",
        /// No connection within the timeout.
        Timeout = "timeout",
        /// The host or network is unreachable.
        Unreachable = "unreachable",
        /// The path of the Unix socket does not exist, or permission is denied.
        Path = "path",
        /// This machine has no free ports left, or this process no free descriptors.
        Resources = "resources",
        /// The connection was established but ended before the server answered AUTH, HELLO or SELECT.
        Login = "login",
        /// The connection was established but its TLS handshake failed.
        Tls = "tls",
        /// Anything else.
        Other = "other",
    }
}

/// The number of faults by name, with one example message each.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    counts: BTreeMap<&'static str, u64>,
    examples: BTreeMap<&'static str, String>,
}

impl Faults {
    fn add(&mut self, name: &'static str, example: impl FnOnce() -> String) {
        *self.counts.entry(name).or_default() += 1;
        self.examples.entry(name).or_insert_with(|| shortened(example()));
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the number of faults with this name.
    pub(super) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Returns the message of the first fault with this name.
    pub(super) fn example(&self, name: &str) -> Option<&str> {
        self.examples.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Returns the message of a fault, if there was one.
    pub(super) fn first_example(&self) -> Option<&str> {
        self.counts.keys().find_map(|name| self.example(name))
    }

    fn merge(&mut self, other: Faults) {
        for (name, count) in other.counts {
            *self.counts.entry(name).or_default() += count;
        }
        for (name, text) in other.examples {
            self.examples.entry(name).or_insert(text);
        }
    }
}

/// Returns at most [`MAX_EXAMPLE`] bytes of a text.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= MAX_EXAMPLE) {
        text.truncate(end);
    }
    text
}

/// The statistics of TLS.
#[derive(Clone, Debug)]
pub(super) struct TlsStats {
    /// Handshakes with a key exchange and certificates.
    pub(super) full: u64,
    /// Those of `full` in which the server asked for another group by a HelloRetryRequest.
    pub(super) retried: u64,
    /// Handshakes that resumed a session.
    pub(super) resumed: u64,
    /// The negotiated parameters, with the number of their handshakes.
    pub(super) parameters: Vec<(Parameters, u64)>,
    /// Errors by their text.
    pub(super) errors: BTreeMap<String, u64>,
    /// The time from the established connection to the end of the handshake.
    pub(super) handshake: Histogram<u64>,
}

impl TlsStats {
    fn new() -> TlsStats {
        TlsStats {
            full: 0,
            retried: 0,
            resumed: 0,
            parameters: Vec::new(),
            errors: BTreeMap::new(),
            handshake: histogram(),
        }
    }

    /// Records a complete handshake.
    pub(super) fn handshake(&mut self, parameters: Parameters, kind: HandshakeKind, took_ns: u64) {
        match kind {
            HandshakeKind::Resumed => self.resumed += 1,
            kind => {
                self.full += 1;
                self.retried += u64::from(kind == HandshakeKind::FullWithHelloRetryRequest);
            }
        }
        self.handshake.saturating_record(took_ns);
        self.add_parameters(parameters, 1);
    }

    /// Parameters beyond the limit are not listed; their handshakes count all the same.
    fn add_parameters(&mut self, parameters: Parameters, count: u64) {
        if let Some((_, known)) = self.parameters.iter_mut().find(|(known, _)| *known == parameters) {
            *known += count;
        } else if self.parameters.len() < MAX_TLS {
            self.parameters.push((parameters, count));
        }
    }

    /// Records an error.
    pub(super) fn error(&mut self, text: &str) {
        self.add_error(shortened(text.to_owned()), 1);
    }

    fn add_error(&mut self, text: String, count: u64) {
        let is_known = self.errors.contains_key(&text) || self.errors.len() < MAX_TLS;
        *self.errors.entry(if is_known { text } else { "other".to_owned() }).or_default() += count;
    }

    /// Returns the number of errors.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    fn merge(&mut self, other: TlsStats) {
        self.full += other.full;
        self.retried += other.retried;
        self.resumed += other.resumed;
        for (parameters, count) in other.parameters {
            self.add_parameters(parameters, count);
        }
        for (text, count) in other.errors {
            self.add_error(text, count);
        }
        add(&mut self.handshake, &other.handshake);
    }
}

/// The statistics of one command.
#[derive(Clone, Debug)]
pub(super) struct CommandStats {
    pub(super) answered: u64,
    pub(super) nulls: u64,
    pub(super) errors: u64,
    /// Those of `errors` that name another node of a cluster.
    pub(super) moved: u64,
    pub(super) asked: u64,
    /// The size of all requests, and of all responses that are replies of RESP.
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// The time from the scheduled sending to the end of the response.
    pub(super) latency: Histogram<u64>,
}

/// The maximum number of steps of a series. A longer run has steps of more than a second.
const MAX_STEPS: usize = 3600;

/// One second of one command, or a step of several.
#[derive(Clone, Debug)]
pub(super) struct Second {
    pub(super) sent: u64,
    /// Requests without a response.
    pub(super) failed: u64,
    /// Responses that are errors.
    pub(super) errors: u64,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// In microseconds.
    pub(super) latency: Histogram<u32>,
}

impl Second {
    fn new() -> Second {
        // Two digits, as in the logs that people read; a second with one request takes little memory.
        Second {
            sent: 0,
            failed: 0,
            errors: 0,
            bytes_sent: 0,
            bytes_received: 0,
            latency: Histogram::new(2).expect("two digits are allowed"),
        }
    }

    /// Records a latency in microseconds.
    pub(super) fn record(&mut self, latency_us: u64) {
        // An automatic histogram grows to take any value; a saturating call would not let it.
        let _ = self.latency.record(latency_us.max(1));
    }

    pub(super) fn merge(&mut self, other: &Second) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.errors += other.errors;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        // An automatic histogram grows to take any value.
        let _ = self.latency.add(&other.latency);
    }
}

impl Default for Second {
    fn default() -> Second {
        Second::new()
    }
}

/// The statistics of one thread, or the sums over all threads.
#[derive(Clone, Debug)]
pub(super) struct Stats {
    /// Requests started.
    pub(super) sent: u64,
    /// Requests with a complete response.
    pub(super) answered: u64,
    /// Responses received before the end of the load. The rate is computed from these only, so that late responses do
    /// not lower it.
    pub(super) answered_in_time: u64,
    /// Requests that an interrupt cut off.
    pub(super) unanswered: u64,
    /// Scheduled requests that were never sent.
    pub(super) unsent: u64,
    /// The number of responses by HTTP status, which has three digits.
    pub(super) statuses: Vec<u64>,
    pub(super) commands: Vec<CommandStats>,
    /// The steps of the run with the figures of each command, if they are wanted.
    pub(super) series: Vec<Vec<Second>>,
    /// The length of a step, in seconds.
    pub(super) step_s: usize,
    /// RESP errors by code.
    pub(super) codes: BTreeMap<String, u64>,
    pub(super) code_examples: BTreeMap<String, String>,
    pub(super) faults: Faults,
    pub(super) connect_faults: Faults,
    /// Connections established.
    pub(super) connected: u64,
    /// Those of `connected` that replaced a lost connection.
    pub(super) reconnected: u64,
    /// Connections that were given up after the last attempt that the plan allows.
    pub(super) exhausted: u64,
    /// Connections that the peer closed while no request was in flight.
    pub(super) closed_idle: u64,
    /// Messages from the peer that were not responses to a request.
    pub(super) unasked: u64,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) body_bytes: u64,
    /// The time from the actual sending to the end of the response; empty in a closed loop, where it equals the
    /// latency.
    pub(super) service: Histogram<u64>,
    /// The time from the scheduled to the actual sending; open loop only.
    pub(super) lag: Histogram<u64>,
    /// The time taken to establish a connection.
    pub(super) connect: Histogram<u64>,
    pub(super) tls: TlsStats,
    /// Requests sent later than the threshold although a connection was free: caused by the load generator.
    pub(super) late_generator: u64,
    /// Requests sent later than the threshold because every connection was waiting for a response: caused by the
    /// server.
    pub(super) late_connections: u64,
}

impl Stats {
    pub(super) fn new(commands: usize) -> Stats {
        let command = || CommandStats {
            answered: 0,
            nulls: 0,
            errors: 0,
            moved: 0,
            asked: 0,
            bytes_sent: 0,
            bytes_received: 0,
            latency: histogram(),
        };
        Stats {
            sent: 0,
            answered: 0,
            answered_in_time: 0,
            unanswered: 0,
            unsent: 0,
            statuses: vec![0; 1000],
            commands: (0..commands).map(|_| command()).collect(),
            series: Vec::new(),
            step_s: 1,
            codes: BTreeMap::new(),
            code_examples: BTreeMap::new(),
            faults: Faults::default(),
            connect_faults: Faults::default(),
            connected: 0,
            reconnected: 0,
            exhausted: 0,
            closed_idle: 0,
            unasked: 0,
            bytes_sent: 0,
            bytes_received: 0,
            body_bytes: 0,
            service: histogram(),
            lag: histogram(),
            connect: histogram(),
            tls: TlsStats::new(),
            late_generator: 0,
            late_connections: 0,
        }
    }

    /// Records the response to a request, received `latency_ns` after the scheduled sending.
    pub(super) fn answer(&mut self, command: u16, outcome: &Outcome, body: u64, latency_ns: u64) {
        self.answered += 1;
        self.body_bytes += body;
        let figures = &mut self.commands[usize::from(command)];
        figures.answered += 1;
        figures.bytes_received += body;
        figures.latency.saturating_record(latency_ns.max(1));
        match outcome {
            Outcome::Status(status) => self.statuses[usize::from(*status).min(999)] += 1,
            Outcome::Null => figures.nulls += 1,
            Outcome::Error(text) => {
                figures.errors += 1;
                figures.moved += u64::from(text.starts_with("MOVED "));
                figures.asked += u64::from(text.starts_with("ASK "));
                self.error_reply(text);
            }
            Outcome::Value | Outcome::Unasked | Outcome::Failed(..) => {}
        }
    }

    /// Returns the step of a second of a command; the run's first second is 0.
    pub(super) fn second(&mut self, second: usize, command: u16) -> &mut Second {
        while second / self.step_s >= MAX_STEPS {
            self.coarsen();
        }
        let step = second / self.step_s;
        while self.series.len() <= step {
            self.series.push((0..self.commands.len()).map(|_| Second::new()).collect());
        }
        &mut self.series[step][usize::from(command)]
    }

    /// Doubles the length of the steps.
    fn coarsen(&mut self) {
        self.step_s *= 2;
        let steps = std::mem::take(&mut self.series);
        for (number, commands) in steps.into_iter().enumerate() {
            match self.series.get_mut(number / 2) {
                None => self.series.push(commands),
                Some(sums) => sums.iter_mut().zip(&commands).for_each(|(sum, more)| sum.merge(more)),
            }
        }
    }

    fn error_reply(&mut self, text: &str) {
        let code = text.split(' ').next().unwrap_or_default();
        // A server may send any text as an error code; only plausible codes are counted separately.
        let is_code = !code.is_empty() && code.len() <= 32 && code.bytes().all(|byte| byte.is_ascii_graphic());
        let known = self.codes.contains_key(code) || self.codes.len() < MAX_CODES;
        let code = if is_code && known { code } else { "other" };
        *self.codes.entry(code.to_owned()).or_default() += 1;
        if !self.code_examples.contains_key(code) {
            let text: String = text.chars().take(MAX_EXAMPLE).collect();
            self.code_examples.insert(code.to_owned(), text);
        }
    }

    pub(super) fn fault(&mut self, fault: RequestFault, example: impl FnOnce() -> String) {
        self.faults.add(RequestFault::ALL[fault as usize].1, example);
    }

    pub(super) fn connect_fault(&mut self, fault: ConnectFault, example: impl FnOnce() -> String) {
        self.connect_faults.add(ConnectFault::ALL[fault as usize].1, example);
    }

    /// Returns the number of requests that got no response.
    pub(super) fn failed(&self) -> u64 {
        self.faults.total()
    }

    /// Returns the number of RESP error replies.
    pub(super) fn error_replies(&self) -> u64 {
        self.commands.iter().map(|command| command.errors).sum()
    }

    /// Returns the number of RESP nulls.
    pub(super) fn nulls(&self) -> u64 {
        self.commands.iter().map(|command| command.nulls).sum()
    }

    /// Returns the latencies of all commands.
    pub(super) fn latency(&self) -> Histogram<u64> {
        let mut all = histogram();
        for command in &self.commands {
            add(&mut all, &command.latency);
        }
        all
    }

    pub(super) fn merge(&mut self, other: Stats) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.answered_in_time += other.answered_in_time;
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        for (count, more) in self.statuses.iter_mut().zip(other.statuses) {
            *count += more;
        }
        for (command, more) in self.commands.iter_mut().zip(other.commands) {
            command.answered += more.answered;
            command.nulls += more.nulls;
            command.errors += more.errors;
            command.moved += more.moved;
            command.asked += more.asked;
            command.bytes_sent += more.bytes_sent;
            command.bytes_received += more.bytes_received;
            add(&mut command.latency, &more.latency);
        }
        while self.step_s < other.step_s {
            self.coarsen();
        }
        for (step, commands) in other.series.iter().enumerate() {
            for (command, more) in commands.iter().enumerate() {
                self.second(step * other.step_s, command as u16).merge(more);
            }
        }
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
        for (code, text) in other.code_examples {
            self.code_examples.entry(code).or_insert(text);
        }
        self.faults.merge(other.faults);
        self.connect_faults.merge(other.connect_faults);
        self.connected += other.connected;
        self.reconnected += other.reconnected;
        self.exhausted += other.exhausted;
        self.closed_idle += other.closed_idle;
        self.unasked += other.unasked;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.body_bytes += other.body_bytes;
        add(&mut self.service, &other.service);
        add(&mut self.lag, &other.lag);
        add(&mut self.connect, &other.connect);
        self.tls.merge(other.tls);
        self.late_generator += other.late_generator;
        self.late_connections += other.late_connections;
    }
}

/// Adds one histogram to another. This cannot fail, because all have the same bounds.
pub(super) fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    let added = to.add(from);
    debug_assert!(added.is_ok(), "all histograms have the same bounds");
}

/// Returns the latencies corrected for coordinated omission (Tene's correction): for each latency longer than
/// `interval_ns`, the latencies of the requests are added that the connection would have sent every `interval_ns`
/// instead of waiting.
pub(super) fn corrected(latency: &Histogram<u64>, interval_ns: u64) -> Histogram<u64> {
    latency.clone_correct(interval_ns.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_shows_once_corrected() {
        let mut latency = histogram();
        for _ in 0..999 {
            latency.saturating_record(1_000_000);
        }
        latency.saturating_record(1_000_000_000);
        assert!(latency.value_at_quantile(0.99) < 1_100_000);
        let corrected = corrected(&latency, 1_000_000);
        assert_eq!(corrected.len(), 1999);
        assert!(corrected.value_at_quantile(0.99) > 900_000_000);
    }

    #[test]
    fn figures_add_up() {
        let mut all = Stats::new(2);
        for _ in 0..3 {
            let mut one = Stats::new(2);
            one.sent = 4;
            one.answer(0, &Outcome::Value, 5, 10);
            one.answer(1, &Outcome::Null, 5, 20);
            one.answer(1, &Outcome::Error("WRONGTYPE no".into()), 5, 7_200_000_000_000);
            one.fault(RequestFault::Reset, || "by peer".into());
            all.merge(one);
        }
        assert_eq!((all.sent, all.answered, all.failed()), (12, 9, 3));
        assert_eq!((all.error_replies(), all.nulls(), all.body_bytes), (3, 3, 45));
        assert_eq!(all.codes["WRONGTYPE"], 3);
        assert_eq!((all.faults.count("reset"), all.faults.example("reset")), (3, Some("by peer")));
        assert_eq!(all.latency().len(), 9);
    }

    #[test]
    fn codes_of_a_hostile_server_are_bounded() {
        let mut stats = Stats::new(1);
        for number in 0..1000 {
            stats.answer(0, &Outcome::Error(format!("E{number} {}", "x".repeat(5000))), 0, 1);
        }
        assert!(stats.codes.len() <= MAX_CODES + 1);
        assert_eq!(stats.codes.values().sum::<u64>(), 1000);
        assert!(stats.code_examples.values().all(|text| text.len() <= MAX_EXAMPLE));
    }

    #[test]
    fn a_second_takes_any_latency() {
        let mut second = Second::new();
        for us in [0, 300, 5_000, 60_000_000] {
            second.record(us);
        }
        let mut sum = Second::new();
        sum.merge(&second);
        for second in [second, sum] {
            assert_eq!(second.latency.len(), 4);
            let at = |quantile| second.latency.value_at_quantile(quantile);
            assert!((299..305).contains(&at(0.5)) && (4950..5100).contains(&at(0.75)), "{} {}", at(0.5), at(0.75));
            assert!(second.latency.max() > 59_000_000);
        }
    }

    #[test]
    fn a_series_is_bounded() {
        let mut stats = Stats::new(1);
        let mut other = Stats::new(1);
        for second in 0..10_000 {
            stats.second(second, 0).sent += 1;
        }
        other.second(9_000, 0).sent += 5;
        other.merge(stats.clone());
        stats.merge(other);
        assert_eq!((stats.step_s, stats.series.len()), (4, 2500));
        assert_eq!(stats.series.iter().map(|step| step[0].sent).sum::<u64>(), 20_005);
        assert_eq!((stats.series[2250][0].sent, stats.series[2499][0].sent), (13, 8));
    }
}
