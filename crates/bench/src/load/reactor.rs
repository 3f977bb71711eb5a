//! One thread, its connections and its event loop.
//!
//! Each thread is a reactor with its own connections and shares only a stop flag with the others, so the cost of a run
//! is that of the kernel: one `recv` and one `send` per response, and one `epoll_wait` for all ready sockets. Requests
//! are prepared; `wire` parses responses from one buffer that all connections of the thread share; only the first part
//! of an incomplete response is stored with its connection.
//!
//! In a *closed loop* a connection sends its next request when it has a response. In an *open loop* requests are due at
//! times fixed before the start ([`Schedule`]); a due request takes the connection that has waited longest, and if none
//! is free it stays due: its latency increases, and no later request overtakes it.
//!
//! **Invariant:** a started request ends as exactly one of answered, failed by kind, or unanswered when the run is
//! interrupted; nothing is sent twice. A connection has at most one entry in `timers`: activity only moves its
//! `deadline`, and an entry that expires before the deadline is inserted again.
//!
//! Limits: `pipeline` requests in flight on each connection, one answer's head (64 KiB) kept with each, back-off up to
//! a second between attempts to connect.

mod connect;
mod connection;
mod exchange;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use socket2::SockAddr;

use connect::ATTEMPTS_UNREACHED;
use connection::{Connection, Request, State};

use super::clients::ClientStats;
use super::console::shown;
use super::cpu;
use super::plan::Load;
use super::poller::Poller;
use super::protocol::Protocol;
use super::schedule::Schedule;
use super::stats::{ConnectFault, RequestFault, Stats, histogram};
use super::tls::ThreadConnector;
use super::transport::{PLAINTEXT, RECORDS};

/// The number of bytes received by one call, and the room for the largest head of a response.
const BUFFER: usize = 256 * 1024;

/// An incomplete answer takes at most half of it.
const _: () = assert!(BUFFER - BUFFER / 2 >= PLAINTEXT);

/// The longest wait of the loop, in ns: the time within which an interrupt is noticed.
const LONGEST_WAIT: u64 = 50_000_000;

/// The bytes of a request or an error that are shown.
const MAX_SHOWN: usize = 256;

/// No deadline.
const NEVER: u64 = u64::MAX;

/// State shared by the threads of a run.
pub(super) struct Shared {
    /// The origin of all times, which are in nanoseconds.
    pub(super) epoch: Instant,
    /// Whether the run has to end immediately.
    pub(super) stop: AtomicBool,
    /// Whether a connection has been made.
    pub(super) reached: AtomicBool,
    /// The reason why the run cannot continue.
    pub(super) fatal: Mutex<Option<String>>,
    /// Threads wait here for each other twice: before one of them sets `start`, and afterwards.
    pub(super) barrier: Barrier,
    /// The time at which requests begin; 0: not known yet. Relaxed is enough: the barrier orders it for threads, and
    /// the main thread only polls it.
    pub(super) start: AtomicU64,
}

impl Shared {
    pub(super) fn new(threads: usize) -> Shared {
        Shared {
            epoch: Instant::now(),
            stop: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            fatal: Mutex::new(None),
            barrier: Barrier::new(threads),
            start: AtomicU64::new(0),
        }
    }

    /// Returns the nanoseconds since the epoch.
    pub(super) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn fail(&self, reason: String) {
        if let Ok(mut fatal) = self.fatal.lock() {
            fatal.get_or_insert(reason);
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The statistics of one interval of a run, for the live line.
#[derive(Clone, Debug)]
pub(super) struct Tick {
    /// The number of the interval, from 0.
    pub(super) number: u64,
    /// Its length; the last one may be shorter.
    pub(super) length_ns: u64,
    pub(super) sent: u64,
    pub(super) failed: u64,
    /// Responses that are errors: of HTTP by their status, of RESP error replies.
    pub(super) errors: u64,
    /// The size of requests, and of responses that are replies of RESP.
    pub(super) bytes: u64,
    pub(super) latency: Histogram<u64>,
}

impl Tick {
    pub(super) fn new(number: u64, length_ns: u64) -> Tick {
        Tick { number, length_ns, sent: 0, failed: 0, errors: 0, bytes: 0, latency: histogram() }
    }
}

/// A message of a thread to the main thread during a run.
#[derive(Debug)]
pub(super) enum Told {
    Tick(Tick),
    /// A line for standard error.
    Line(String),
}

/// The results of a thread.
pub(super) struct ThreadReport {
    pub(super) stats: Stats,
    /// The statistics of requests before the measured part.
    pub(super) warmup: Stats,
    /// The thread's clients, if they are wanted.
    pub(super) clients: Vec<ClientStats>,
    /// A condition that limits the validity of the figures.
    pub(super) warning: Option<String>,
    /// The CPU time of the thread during the measured part.
    pub(super) cpu_ns: u64,
    /// The start and the end of the measured part.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

/// One thread of a run.
pub(super) struct Reactor<'a, P: Protocol> {
    load: &'a Load,
    shared: &'a Shared,
    /// The addresses of the server; of the nodes of a cluster, which the connections have in turn.
    addresses: &'a [SockAddr],
    protocol: P,
    /// The TLS of every connection.
    tls: Option<ThreadConnector>,
    poller: Poller,
    connections: Vec<Connection<P::Session>>,
    timers: BTreeSet<(u64, u32)>,
    /// Connections that can take a request (open loop), longest waiting first; each at most once.
    free: VecDeque<u32>,
    /// The connections of a ramp, or of later steps, that send no request yet, with their times.
    beginners: VecDeque<(u64, u32)>,
    /// The arrivals of the warm-up, then those of the measured part.
    schedules: VecDeque<Schedule>,
    /// The number of requests that may still be sent.
    budget: u64,
    /// Those of connections that were given up, if each connection has its own.
    abandoned: u64,
    is_sending: bool,
    /// The number of requests in flight or waiting for their connection.
    open_requests: u64,
    given_up: usize,
    /// The time at which no connection was free for a due request.
    starved_at: Option<u64>,
    measure_from: u64,
    end: u64,
    last_answer: u64,
    /// The thread's CPU time at the start of the measured part.
    cpu_from: Option<u64>,
    stats: Stats,
    warmup: Stats,
    clients: Vec<ClientStats>,
    tick: Option<Tick>,
    told: tokio::sync::mpsc::Sender<Told>,
    buffer: Vec<u8>,
    /// Received records, if there is TLS.
    records: Vec<u8>,
}

impl<'a, P: Protocol> Reactor<'a, P> {
    pub(super) fn new(
        load: &'a Load,
        shared: &'a Shared,
        addresses: &'a [SockAddr],
        (protocol, tls): (P, Option<ThreadConnector>),
        thread: usize,
        told: tokio::sync::mpsc::Sender<Told>,
    ) -> std::io::Result<Reactor<'a, P>> {
        let count = load.share(load.connections as u64, thread) as usize;
        let commands = protocol.commands().len();
        let each = load.requests_each.iter().cycle().take(count).map(|requests| Some(*requests));
        let each: Vec<Option<u64>> = if load.requests_each.is_empty() { vec![None; count] } else { each.collect() };
        Ok(Reactor {
            load,
            shared,
            addresses,
            protocol,
            records: vec![0; if tls.is_some() { RECORDS } else { 0 }],
            tls,
            poller: Poller::new()?,
            budget: match each.iter().flatten().sum() {
                0 => load.requests.map_or(u64::MAX, |requests| load.share(requests, thread)),
                sum => sum,
            },
            connections: each.into_iter().map(Connection::new).collect(),
            timers: BTreeSet::new(),
            free: VecDeque::new(),
            beginners: VecDeque::new(),
            schedules: VecDeque::new(),
            abandoned: 0,
            is_sending: true,
            open_requests: 0,
            given_up: 0,
            starved_at: None,
            measure_from: 0,
            end: NEVER,
            last_answer: 0,
            cpu_from: None,
            stats: Stats::new(commands),
            warmup: Stats::new(commands),
            clients: match load.has_clients {
                true => vec![ClientStats::new(commands); count.div_ceil(addresses.len())],
                false => Vec::new(),
            },
            tick: load.interval_ns.map(|interval| Tick::new(0, interval)),
            told,
            buffer: vec![0; BUFFER],
        })
    }

    /// Connects, waits for the other threads, sends and receives until the run is over.
    pub(super) fn run(mut self, thread: usize) -> Result<ThreadReport, String> {
        let settled = self.settle(thread);
        if let Err(error) = &settled {
            self.shared.fail(format!("waiting for sockets: {error}"));
        }
        if self.shared.barrier.wait().is_leader() {
            // A time at which every thread will be awake.
            self.shared.start.store(self.shared.now() + 1_000_000, Ordering::Relaxed);
        }
        self.shared.barrier.wait();
        let start = self.shared.start.load(Ordering::Relaxed);
        self.begin(start, thread);
        let mut cut_off = None;
        let mut ready = Vec::new();
        let to = loop {
            let now = self.shared.now();
            self.measure_if_due(now);
            if self.shared.stop.load(Ordering::Relaxed) {
                cut_off = Some(now);
                break now;
            }
            self.fire_timers(now);
            self.begin_due(now);
            if self.load.rate.is_some() {
                self.send_due();
            }
            if now >= self.end || self.budget == 0 {
                self.is_sending = false;
            }
            if self.load.cuts_off && now >= self.end {
                cut_off = Some(now);
                break now;
            }
            self.send_tick(now, false);
            if !self.is_sending && self.open_requests == 0 {
                break now;
            }
            if self.given_up == self.connections.len() {
                break now;
            }
            let (now, until) = self.wait_until();
            self.poller.wait(now, until, &mut ready).map_err(|error| format!("waiting for sockets: {error}"))?;
            for event in &ready {
                self.handle(*event);
            }
        };
        let cpu_ns = self.cpu_from.map_or(0, |from| cpu::thread_ns() - from);
        self.send_tick(to, true);
        self.settle_accounts(to, cut_off.is_some());
        let to_ns = match (cut_off, self.load.duration_ns) {
            (None, Some(_)) if self.end <= to => self.end,
            (Some(_), Some(_)) if self.load.cuts_off && self.end <= to => self.end,
            (None, None) if self.last_answer > 0 => self.last_answer,
            _ => to,
        };
        Ok(ThreadReport {
            stats: self.stats,
            warmup: self.warmup,
            clients: self.clients,
            warning: self.protocol.warning(),
            cpu_ns,
            from_ns: self.measure_from,
            to_ns: to_ns.max(self.measure_from),
        })
    }

    /// Opens every connection and waits until each has been established or has failed once.
    fn settle(&mut self, thread: usize) -> std::io::Result<()> {
        if !self.load.keep_alive {
            return Ok(());
        }
        let first = self.load.growth.map_or(self.connections.len(), |growth| growth.first);
        let mut openings = self.load.openings(first.min(self.connections.len()), thread, self.shared.now());
        let mut ready = Vec::new();
        let is_unsettled = |connection: &Connection<P::Session>| match connection.state {
            State::Connecting | State::Handshaking => true,
            State::Open => connection.login_left > 0,
            _ => connection.attempts < ATTEMPTS_UNREACHED && !connection.was_open && connection.state == State::Paused,
        };
        loop {
            while let Some((_, id)) = openings.pop_front_if(|(due, _)| *due <= self.shared.now()) {
                let now = self.shared.now();
                self.connect(id, now);
            }
            let is_settled = openings.is_empty() && !self.connections.iter().any(is_unsettled);
            if is_settled || self.shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.fire_timers(self.shared.now());
            let (now, until) = self.wait_until();
            let until = openings.front().map_or(until, |(due, _)| until.min(*due));
            self.poller.wait(now, until, &mut ready)?;
            for event in &ready {
                self.handle(*event);
            }
        }
    }

    fn begin(&mut self, start: u64, thread: usize) {
        let load = self.load;
        self.measure_from = start + load.warmup_ns;
        self.end = load.duration_ns.map_or(NEVER, |duration| self.measure_from + duration);
        self.schedule(start, thread);
        if let Some(wait) = start.checked_sub(self.shared.now()) {
            std::thread::sleep(Duration::from_nanos(wait));
        }
        self.measure_if_due(start);
        if load.rate.is_none() && load.ramp_ns > 0 {
            // The connections of all threads begin in turn, at even distances.
            let count = (load.connections as u64).max(1);
            let place = |id: u64| id * load.threads as u64 + thread as u64;
            let due = |id: u64| start + (u128::from(load.ramp_ns) * u128::from(place(id)) / u128::from(count)) as u64;
            self.beginners = (0..self.connections.len()).map(|id| (due(id as u64), id as u32)).collect();
            return;
        }
        let all = self.connections.len();
        let first = load.growth.map_or(all, |growth| growth.first.min(all));
        if let Some(growth) = load.growth {
            self.beginners = (first..all).map(|id| (start.saturating_add(growth.begins_ns(id)), id as u32)).collect();
        }
        for id in 0..first {
            self.give_work(id);
        }
    }

    /// Makes the schedules of an open loop.
    fn schedule(&mut self, start: u64, thread: usize) {
        let load = self.load;
        let Some(rate) = load.rate else { return };
        let place = (thread as u64, load.threads as u64);
        let schedule = |ramp, times, count| Schedule::new(ramp, load.arrivals, place, load.seed, times, count);
        let end = load.duration_ns.map(|_| self.end);
        if let Some(growth) = load.growth {
            // The rate of each connection is the same. No plan has such steps with a warm-up or a number of requests.
            let all = self.connections.len();
            let at = |ns: u64| self.measure_from.saturating_add(ns);
            let mut steps = growth.steps(all).peekable();
            while let Some((from, active)) = steps.next_if(|(from, _)| end.is_none_or(|end| at(*from) < end)) {
                let until = steps.peek().map(|(next, _)| at(*next)).into_iter().chain(end).min();
                let rate = rate * active as f64 / all.max(1) as f64;
                self.schedules.push_back(schedule((rate, 0), (at(from), until), None));
            }
            return;
        }
        let mut ramp = load.ramp_ns;
        if load.warmup_ns > 0 {
            self.schedules.push_back(schedule((rate, ramp), (start, Some(self.measure_from)), None));
            ramp = 0;
        }
        let count = load.requests.map(|_| self.budget);
        self.schedules.push_back(schedule((rate, ramp), (self.measure_from, end), count));
    }

    /// Lets the connections begin whose time has come: those of a ramp are open, those of a step are not.
    fn begin_due(&mut self, now: u64) {
        while let Some((due, id)) = self.beginners.front().copied() {
            if due > now {
                return;
            }
            self.beginners.pop_front();
            match self.load.growth {
                Some(_) => self.connect(id as usize, now),
                None => self.give_work(id as usize),
            }
        }
    }

    fn measure_if_due(&mut self, now: u64) {
        if self.cpu_from.is_none() && now >= self.measure_from {
            self.cpu_from = Some(cpu::thread_ns());
        }
    }

    /// Uses a connection that can take requests: sends some now (closed loop), or lists it for due requests.
    fn give_work(&mut self, id: usize) {
        let is_open_loop = self.load.rate.is_some();
        loop {
            if !self.is_sending || self.measure_from == 0 || !self.has_room(id) {
                break;
            }
            if is_open_loop {
                let connection = &mut self.connections[id];
                if !connection.is_listed {
                    connection.is_listed = true;
                    self.free.push_back(id as u32);
                }
                return;
            }
            let now = self.shared.now();
            if self.budget == 0 || now >= self.end {
                self.is_sending = false;
                break;
            }
            self.request(id, now, now);
            if self.connections[id].state != State::Open {
                return;
            }
        }
        if self.connections[id].state == State::Open {
            self.flush(id);
        }
    }

    /// Sends due requests on free connections.
    fn send_due(&mut self) {
        while self.is_sending {
            let Some(schedule) = self.schedules.front() else {
                self.is_sending = false;
                return;
            };
            let Some(due) = schedule.next() else {
                self.schedules.pop_front();
                continue;
            };
            let now = self.shared.now();
            if due > now {
                return;
            }
            let Some(id) = self.free_connection() else {
                self.starved_at = Some(now);
                return;
            };
            if let Some(schedule) = self.schedules.front_mut() {
                schedule.advance();
            }
            let lag = now - due;
            let stats = if due >= self.measure_from { &mut self.stats } else { &mut self.warmup };
            stats.lag.saturating_record(lag.max(1));
            if lag > self.load.late_ns {
                match self.starved_at {
                    Some(at) if at >= due => stats.late_connections += 1,
                    _ => stats.late_generator += 1,
                }
            }
            self.request(id, due, now);
            self.flush(id);
            self.give_work(id);
        }
    }

    /// Returns whether another request can be sent on a connection now.
    fn has_room(&self, id: usize) -> bool {
        let connection = &self.connections[id];
        let is_open = connection.state == State::Open;
        let waits = self.beginners.front().is_some_and(|(_, first)| id >= *first as usize);
        !waits && connection.has_room(self.load) && (!is_open || self.protocol.has_room(&connection.session))
    }

    /// Returns the connection that has been free for longest; it is no longer listed.
    fn free_connection(&mut self) -> Option<usize> {
        loop {
            let id = self.free.pop_front()? as usize;
            self.connections[id].is_listed = false;
            if self.has_room(id) {
                return Some(id);
            }
        }
    }

    /// Begins a request on a connection that has room for it; [`Reactor::flush`] sends its bytes.
    fn request(&mut self, id: usize, intended: u64, now: u64) {
        self.open_requests += 1;
        if intended >= self.measure_from {
            self.stats.sent += 1;
            // The arrivals of an open loop are counted separately; there the budget only ends the run.
            self.budget = self.budget.saturating_sub(1);
            let connection = &mut self.connections[id];
            connection.left = connection.left.saturating_sub(1);
            if let Some(tick) = &mut self.tick {
                tick.sent += 1;
            }
        } else {
            self.warmup.sent += 1;
        }
        let request = Request { intended, sent: now, command: 0, tag: 0 };
        if self.connections[id].state == State::Open {
            self.write(id, request);
        } else {
            self.connections[id].waiting = Some(request);
            self.connect(id, now);
        }
    }

    fn write(&mut self, id: usize, mut request: Request) {
        let connection = &mut self.connections[id];
        let before = connection.out.len();
        let written = self.protocol.write(&mut connection.session, id, &mut connection.out);
        (request.command, request.tag) = (written.command, written.tag);
        connection.in_flight.push_back(request);
        connection.carried += 1;
        let bytes = (connection.out.len() - before) as u64;
        if self.load.traces {
            self.trace(id, &format!("sending {}", shown(&self.connections[id].out[before..], MAX_SHOWN)));
        }
        if request.intended >= self.measure_from {
            if let Some(tick) = &mut self.tick {
                tick.bytes += bytes;
            }
            self.stats.commands[usize::from(request.command)].bytes_sent += bytes;
            if self.load.has_series {
                let second = self.second(request.sent);
                let figures = self.stats.second(second, request.command);
                figures.sent += 1;
                figures.bytes_sent += bytes;
                if let Some(client) = self.client(id) {
                    client.sent(second, request.command, bytes);
                }
            }
        }
        let connection = &self.connections[id];
        if connection.in_flight.len() == 1 {
            let timeout_ns = self.load.timeout_ns.min(self.load.write_timeout_ns);
            self.set_deadline(id, request.sent.saturating_add(timeout_ns));
        }
    }

    /// Tells what happens on a connection, and waits until there is room for the line.
    fn trace(&self, id: usize, what: &str) {
        let address = &self.addresses[id % self.addresses.len()];
        let server = match (address.as_socket(), address.as_pathname()) {
            (Some(address), _) => address.to_string(),
            (None, path) => path.map_or_else(String::new, |path| path.display().to_string()),
        };
        // The main thread ends early only if the run does.
        let _ = self.told.blocking_send(Told::Line(format!("server {server}: {what}")));
    }

    /// Returns the figures of a connection's client, if they are wanted.
    fn client(&mut self, id: usize) -> Option<&mut ClientStats> {
        if self.clients.is_empty() {
            return None;
        }
        self.clients.get_mut(id / self.addresses.len())
    }

    /// Returns the statistics to which a request with this scheduled time belongs.
    fn stats_of(&mut self, intended: u64) -> &mut Stats {
        if intended >= self.measure_from { &mut self.stats } else { &mut self.warmup }
    }

    /// Returns the second of the measured part.
    fn second(&self, now: u64) -> usize {
        (now.saturating_sub(self.measure_from) / 1_000_000_000) as usize
    }

    /// Returns the statistics to which an event at this time belongs.
    fn stats_at(&mut self, now: u64) -> &mut Stats {
        self.stats_of(now)
    }

    fn set_deadline(&mut self, id: usize, deadline: u64) {
        let connection = &mut self.connections[id];
        connection.deadline = deadline;
        match connection.entry {
            Some(entry) if entry <= deadline => {}
            entry => {
                if let Some(entry) = entry {
                    self.timers.remove(&(entry, id as u32));
                }
                self.timers.insert((deadline, id as u32));
                connection.entry = Some(deadline);
            }
        }
    }

    fn fire_timers(&mut self, now: u64) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let id = id as usize;
            let connection = &mut self.connections[id];
            connection.entry = None;
            match connection.deadline {
                NEVER => {}
                deadline if deadline > now => self.set_deadline(id, deadline),
                _ => {
                    connection.deadline = NEVER;
                    self.time_is_up(id, now);
                }
            }
        }
    }

    fn time_is_up(&mut self, id: usize, now: u64) {
        let connection = &self.connections[id];
        match connection.state {
            State::Connecting => {
                self.connect_failed(id, now, ConnectFault::Timeout, "no connection in time".to_owned());
            }
            State::Handshaking => {
                self.connect_failed(id, now, ConnectFault::Tls, "the handshake did not end in time".to_owned());
            }
            State::Open if connection.login_left > 0 => {
                self.lose(id, now, RequestFault::Timeout, || "no answer to AUTH, HELLO or SELECT in time".to_owned());
            }
            State::Open => {
                // The deadline belongs to a request that may have been answered since.
                let Some(first) = connection.in_flight.front() else { return };
                let (sent, tag) = (first.sent, first.tag);
                let write_deadline = sent.saturating_add(self.load.write_timeout_ns);
                if connection.watches_write && write_deadline <= now {
                    return self
                        .lose(id, now, RequestFault::Timeout, || "the request was not accepted in time".to_owned());
                }
                let mut deadline = sent.saturating_add(self.load.timeout_ns);
                if connection.watches_write {
                    deadline = deadline.min(write_deadline);
                }
                if deadline > now {
                    return self.set_deadline(id, deadline);
                }
                if !P::MULTIPLEXED || connection.heard < sent || !self.load.keep_alive {
                    return self.lose(id, now, RequestFault::Timeout, || "no answer in time".to_owned());
                }
                self.cancel(id, tag, now);
            }
            State::Paused if !self.is_sending => {
                self.give_up(id);
            }
            State::Paused if self.load.keep_alive => self.connect(id, now),
            State::Paused => {
                self.connections[id].state = State::Closed;
                self.give_work(id);
            }
            State::Closed | State::GivenUp => {}
        }
    }

    /// Gives up the oldest request of a connection that is alive, because its time is up.
    fn cancel(&mut self, id: usize, tag: u32, now: u64) {
        let connection = &mut self.connections[id];
        let Some(request) = connection.take_request(tag) else { return };
        self.protocol.cancel(&mut connection.session, tag, &mut connection.out);
        let next = connection.in_flight.front().map(|request| request.sent);
        self.open_requests -= 1;
        self.fail_request(&request, RequestFault::Timeout, || "no answer in time".to_owned());
        if let Some(sent) = next {
            self.set_deadline(id, sent.saturating_add(self.load.timeout_ns).max(now));
        }
        self.flush(id);
        self.go_on(id, now);
    }

    /// Returns the present time, and the time until which this thread may wait for its sockets.
    fn wait_until(&self) -> (u64, u64) {
        let now = self.shared.now();
        let mut until = now.saturating_add(LONGEST_WAIT);
        if let Some((at, _)) = self.timers.first() {
            until = until.min(*at);
        }
        if self.is_sending || self.load.cuts_off {
            until = until.min(self.end);
        }
        if let Some((due, _)) = self.beginners.front().filter(|_| self.is_sending) {
            until = until.min(*due);
        }
        if self.is_sending
            && !self.free.is_empty()
            && let Some(due) = self.schedules.front().and_then(Schedule::next)
        {
            until = until.min(due);
        }
        (now, until)
    }

    /// Sends the statistics of finished intervals. Responses after the end of sending belong to the last interval.
    fn send_tick(&mut self, now: u64, is_last: bool) {
        let (Some(interval), Some(tick)) = (self.load.interval_ns, &mut self.tick) else { return };
        let most = self.load.duration_ns.map_or(u64::MAX, |duration| duration.div_ceil(interval).max(1) - 1);
        let number = (now.saturating_sub(self.measure_from) / interval).min(most);
        while number > tick.number {
            let over = std::mem::replace(tick, Tick::new(tick.number + 1, interval));
            // The lines are only shown; a line that cannot be delivered is dropped and the report is still complete.
            let _ = self.told.try_send(Told::Tick(over));
        }
        if is_last {
            // An open loop whose last requests are answered may end a moment before its time.
            let is_whole = now >= self.end.saturating_sub(interval / 10);
            let until = if is_whole { self.end } else { now }.saturating_sub(self.measure_from);
            let length_ns = until.saturating_sub(tick.number * interval).min(interval);
            let over = std::mem::replace(tick, Tick::new(tick.number, interval));
            if length_ns > 0 || over.sent + over.failed + over.latency.len() > 0 {
                let _ = self.told.try_send(Told::Tick(Tick { length_ns, ..over }));
            }
        }
    }

    /// Accounts for the remaining requests at the end of the run.
    fn settle_accounts(&mut self, now: u64, is_cut_off: bool) {
        for id in 0..self.connections.len() {
            let connection = &mut self.connections[id];
            let waiting = connection.waiting.take();
            let requests: Vec<Request> = connection.in_flight.drain(..).chain(waiting).collect();
            debug_assert!(is_cut_off || requests.is_empty(), "a run that ends by itself has no request open");
            for request in requests {
                self.stats_of(request.intended).unanswered += 1;
            }
        }
        let until = now.min(self.end);
        if self.load.rate.is_some() {
            let left: u64 = self.schedules.iter_mut().map(|schedule| schedule.drain(until)).sum();
            self.stats.unsent += left;
        } else if self.load.requests.is_some() && !is_cut_off && now < self.end {
            self.stats.unsent += self.budget + self.abandoned;
        }
    }
}
