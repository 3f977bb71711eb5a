//! A connection in use: commands out, replies in, in order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::figures::{add, take};
use crate::node::Connected;
use crate::node::lane::{Commands, Entry, Lane};
use crate::{Failure, told};

/// The maximum number of commands that are sent before the first of them is answered.
const PIPELINE_MAX: usize = 1024;
/// The number of bytes of unanswered commands at which no more are taken.
const PIPELINE_BYTES_MAX: usize = 16 << 20;
/// The maximum length of a string in a reply, in bytes.
const BULK_MAX: u64 = 64 << 20;
/// The maximum number of elements of a reply.
const ELEMENTS_MAX: u64 = 1 << 22;
/// The size of a read.
pub(crate) const READ: usize = 16 * 1024;
/// A connection that was idle for this time is checked with a PING before it gets a command.
pub(crate) const VALIDATE_AFTER: Duration = Duration::from_secs(30);
/// The time limit for outstanding replies of a node that receives no further commands.
pub(crate) const GRACE: Duration = Duration::from_millis(100);
/// A node of a cluster that has owed a reply for this time may have lost its slots.
const DOUBT: Duration = Duration::from_millis(200);

/// Asks an engine for invalidations of the keys read over the connection, and reports whether it accepts.
const TRACKING: &[u8] =
    b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n*2\r\n$6\r\nCLIENT\r\n$12\r\nTRACKINGINFO\r\n";

/// Returns a reader of replies.
pub(crate) fn reply_parser() -> ReplyParser {
    ReplyParser::new(ReplyLimits { max_bulk: BULK_MAX, max_elements: ELEMENTS_MAX, ..ReplyLimits::default() })
}

/// The reason why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was idle for too long, or has to reconnect.
    Quiet,
    /// The lane is closed.
    Closed,
    /// The engine closed the connection, or did not send valid RESP.
    Lost(String),
    /// The engine did not answer in time.
    Dead(String),
}

/// A connection and the commands that were sent over it.
pub(crate) struct Running<'a> {
    lane: &'a Lane,
    connected: Connected,
    /// Entries in flight; the bytes of the first one begin at 0.
    commands: Commands,
    /// The number of their bytes that were written.
    written: usize,
    /// Whether TLS has passed all written bytes to the socket.
    flushed: bool,
    /// The time of the last reply, or of sending a probe.
    active: Instant,
    input: Vec<u8>,
    filled: usize,
    parser: ReplyParser,
    pub(crate) generation: u64,
    epoch: u64,
    /// The time at which the cluster is asked again whether a node that owes a reply still owns the slots.
    doubted: Option<Instant>,
    /// Set when another engine has taken over: no more commands are sent, and unanswered ones fail at this time.
    left: Option<Instant>,
    renew_at: Option<Instant>,
    /// Whether the reply to a PING is awaited.
    validating: bool,
    /// The number of replies to [`TRACKING`] still to come, and whether the engine has agreed so far.
    tracking: (u8, bool),
    timer: Pin<Box<Sleep>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // If the task was dropped with its runtime, commands may still be in flight.
        take(&self.lane.node.counters.in_flight, self.commands.entries.len() as u64);
        self.lane.cache.lock().end(&self.lane.node.section.cached);
    }
}

impl<'a> Running<'a> {
    pub(crate) fn new(lane: &'a Lane, connected: Connected, lifetime: Option<Duration>) -> Running<'a> {
        let now = Instant::now();
        let tracking = lane.node.section.options.client_cache > 0;
        Running {
            lane,
            connected,
            commands: Commands { bytes: if tracking { TRACKING.to_vec() } else { Vec::new() }, ..Commands::default() },
            written: 0,
            flushed: true,
            active: now,
            input: vec![0; READ],
            filled: 0,
            parser: reply_parser(),
            generation: lane.node.generation(),
            epoch: lane.node.epoch(),
            left: None,
            doubted: None,
            renew_at: lifetime.map(|lifetime| now + lifetime),
            validating: tracking,
            tracking: (if tracking { 2 } else { 0 }, true),
            timer: Box::pin(sleep_until(now)),
        }
    }

    pub(crate) async fn run(&mut self) -> End {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Some(end) = self.take(cx) {
                return Poll::Ready(end);
            }
            if let Err(end) = self.write(cx) {
                return Poll::Ready(end);
            }
            match self.read(cx) {
                Err(end) => return Poll::Ready(end),
                // Room for more commands, or an end that was waited for.
                Ok(true) => continue,
                Ok(false) => {}
            }
            match self.next_deadline() {
                None => return Poll::Pending,
                Some(at) => {
                    // Deadlines move on with each reply; the timer follows when it fires, not each time.
                    if at < self.timer.deadline() {
                        self.timer.as_mut().reset(at);
                    }
                    if self.timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    if self.timer.deadline() < at {
                        self.timer.as_mut().reset(at);
                    } else if let Some(end) = self.overdue() {
                        return Poll::Ready(end);
                    }
                }
            }
        }
    }

    /// Returns whether the connection has to end before it gets another command.
    fn is_stale(&self, now: Instant) -> bool {
        self.generation != self.lane.node.generation() || self.renew_at.is_some_and(|at| at <= now)
    }

    fn is_idle(&self) -> bool {
        self.commands.entries.is_empty() && !self.validating
    }

    /// Takes commands from the lane, unless the connection has to end first.
    fn take(&mut self, cx: &mut Context<'_>) -> Option<End> {
        let now = Instant::now();
        if self.left.is_none() && self.epoch != self.lane.node.epoch() {
            self.left = Some(now + GRACE);
        }
        let stale = self.is_stale(now);
        if self.validating || stale {
            self.lane.watch(cx);
            return (stale && self.is_idle()).then_some(End::Quiet);
        }
        let idle = self.is_idle();
        if idle && now.duration_since(self.active) >= VALIDATE_AFTER && self.lane.first_deadline().is_some() {
            self.commands.bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            self.validating = true;
            self.active = now;
            return None;
        }
        let room = PIPELINE_MAX.saturating_sub(self.commands.entries.len());
        if room == 0 || self.commands.bytes.len() - self.commands.answered > PIPELINE_BYTES_MAX {
            return None;
        }
        let before = self.commands.entries.len();
        match self.lane.poll_take(cx, room, &mut self.commands) {
            Poll::Pending => (idle && self.lane.node.section.gives_way()).then_some(End::Quiet),
            Poll::Ready(0) => idle.then_some(End::Closed),
            Poll::Ready(count) => {
                let counters = &self.lane.node.counters;
                add(&counters.in_flight, count as u64);
                for entry in self.commands.entries.iter_mut().skip(before) {
                    let queued = std::mem::replace(&mut entry.since, now);
                    counters.waited(now.saturating_duration_since(queued));
                }
                None
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        self.flushed &= self.written == self.commands.bytes.len();
        while self.written < self.commands.bytes.len() {
            match self.connected.stream.poll_write(cx, &self.commands.bytes[self.written..]) {
                Poll::Ready(Ok(0)) => return Err(self.lost("the connection takes no more")),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
                Poll::Pending => return Ok(()),
            }
        }
        if !self.flushed {
            match self.connected.stream.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushed = true,
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Reads and delivers replies. Returns true if there were any.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut some = false;
        loop {
            if self.filled == self.input.len() {
                let larger = 2 * self.input.len();
                self.input.resize(larger, 0);
            }
            match self.connected.stream.poll_read(cx, &mut self.input[self.filled..]) {
                Poll::Ready(Ok(0)) if self.is_idle() => return Err(End::Quiet),
                Poll::Ready(Ok(0)) => return Err(self.lost("the engine ended the connection")),
                Poll::Ready(Ok(count)) => self.filled += count,
                Poll::Ready(Err(_)) if self.is_idle() => return Err(End::Quiet),
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
                Poll::Pending => return Ok(some),
            }
            let full = self.filled == self.input.len();
            some |= self.deliver()?;
            if !full {
                // All available data was read: another read would find none.
                if some {
                    return Ok(true);
                }
            }
        }
    }

    fn deliver(&mut self) -> Result<bool, End> {
        let mut at = 0;
        let mut some = false;
        loop {
            let progress = match self.parser.parse(&self.input[at..self.filled]) {
                Ok(progress) => progress,
                Err(error) => return Err(self.lost(format_args!("the engine speaks no RESP: {error}"))),
            };
            at += progress.consumed;
            let Some(reply) = progress.reply else { break };
            some = true;
            self.answer(reply)?;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == 0 && self.input.len() > 4 * READ {
            self.input = vec![0; READ];
        }
        Ok(some)
    }

    fn answer(&mut self, reply: Reply) -> Result<(), End> {
        self.active = Instant::now();
        if let Reply::Push(message) = &reply {
            if self.lane.node.section.options.client_cache > 0 {
                self.lane.cache.lock().told(message, &self.lane.node.section.cached);
            }
            return Ok(());
        }
        if self.tracking.0 > 0 {
            self.tracking.0 -= 1;
            // Without RESP3 an engine answers OK but sends no invalidations; a map exists only in RESP3.
            self.tracking.1 &= matches!((self.tracking.0, &reply), (1, Reply::Simple(_)) | (0, Reply::Map(_)));
            if self.tracking.0 > 0 {
                return Ok(());
            }
            if self.tracking.1 {
                self.lane.cache.lock().begin(self.generation);
            }
        }
        if std::mem::take(&mut self.validating) {
            self.commands.bytes.clear();
            self.written = 0;
            return Ok(());
        }
        let node = &*self.lane.node;
        let Some(mut entry) = self.commands.entries.pop_front() else {
            return Err(self.lost("a reply that nobody asked for"));
        };
        if entry.skips && matches!(reply, Reply::Simple(_)) {
            self.commands.entries.push_front(Entry { skips: false, ..entry });
            return Ok(());
        }
        if entry.skips {
            // Later data would be taken for the next command's reply.
            self.commands.entries.push_front(entry);
            return Err(self.lost("ASKING is not understood"));
        }
        let len = entry.len;
        let reply = match &mut entry.transaction {
            None => reply,
            Some(transaction) => match transaction.take(reply) {
                Some(reply) => reply,
                None => {
                    self.commands.entries.push_front(entry);
                    return Ok(());
                }
            },
        };
        if self.commands.answered + len > self.written {
            // Later data would be taken for the rest of it.
            self.commands.entries.push_front(entry);
            return Err(self.lost("a reply to what was not sent yet"));
        }
        let entry = match &reply {
            Reply::Error(text)
                if let Some(router) = node.section.router()
                    && let Some(redirect) = told::redirect(text, &node.address) =>
            {
                // A node that cannot answer now is not queried again immediately.
                if text.starts_with("LOADING") || text.starts_with("MASTERDOWN") {
                    node.died(self.generation, text);
                } else {
                    if text.starts_with("READONLY") {
                        node.flush();
                    }
                    node.succeeded();
                }
                let start = self.commands.answered;
                let bytes = &self.commands.bytes[start..start + len];
                router.redirect(entry, bytes, redirect).err()
            }
            _ => Some(entry),
        };
        self.acknowledge(len);
        take(&node.counters.in_flight, 1);
        let Some(entry) = entry else { return Ok(()) };
        add(&node.counters.replies, 1);
        node.answered(&reply, self.generation);
        if let Some(asked) = entry.asked {
            let section = &node.section;
            self.lane.cache.lock().keep(*asked, &reply, section.options.client_cache, &section.cached);
        }
        entry.waiter.tell(reply);
        Ok(())
    }

    /// Drops the bytes of an answered command; in batches, since most replies arrive in groups.
    fn acknowledge(&mut self, len: usize) {
        self.written -= self.commands.forget(len);
    }

    fn lost(&self, reason: impl std::fmt::Display) -> End {
        End::Lost(format!("{}: {reason}", self.lane.node.address))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let options = &self.lane.node.section.options;
        let queued = self.lane.first_deadline();
        let own = if self.is_idle() {
            let idle = options.timeout_idle.map(|idle| self.active + idle);
            [idle, self.renew_at].into_iter().flatten().min()
        } else {
            match self.commands.entries.front() {
                Some(first) => {
                    let doubt = self.lane.node.section.is_cluster().then(|| self.doubt(first.since));
                    [Some(first.since + options.timeout_server), doubt].into_iter().flatten().min()
                }
                None => Some(self.active + options.timeout_connect),
            }
        };
        [queued, own, self.left].into_iter().flatten().min()
    }

    /// Returns the next time at which the cluster is asked about a reply owed since `since`.
    fn doubt(&self, since: Instant) -> Instant {
        let first = since + DOUBT;
        self.doubted.filter(|next| *next > first).unwrap_or(first)
    }

    /// Returns the consequence of an expired deadline, if there is one for the whole connection.
    fn overdue(&mut self) -> Option<End> {
        self.lane.expire();
        let now = Instant::now();
        let options = &self.lane.node.section.options;
        if self.left.is_some_and(|at| at <= now) {
            return Some(self.lost("another engine has taken over"));
        }
        if self.is_idle() {
            let idle = options.timeout_idle.is_some_and(|idle| self.active + idle <= now);
            return (idle || self.is_stale(now)).then_some(End::Quiet);
        }
        let Some(first) = self.commands.entries.front() else {
            return (self.active + options.timeout_connect <= now).then_some(End::Quiet);
        };
        let timeout = options.timeout_server;
        if self.doubt(first.since) <= now
            && let Some(router) = self.lane.node.section.router()
        {
            self.doubted = Some(now + DOUBT);
            router.refresh();
        }
        (first.since + timeout <= now)
            .then(|| End::Dead(format!("{}: no reply within {} ms", self.lane.node.address, timeout.as_millis())))
    }

    /// Ends the remaining commands: those that were not sent, and those that may be repeated, return to the lane.
    pub(crate) fn finish(&mut self, end: &End) {
        let node = &*self.lane.node;
        let mut back = Commands::default();
        let mut start = self.commands.answered;
        let mut first = true;
        for mut entry in std::mem::take(&mut self.commands.entries) {
            take(&node.counters.in_flight, 1);
            let bytes = start..start + entry.len;
            start = bytes.end;
            let sent = bytes.start < self.written;
            // The engine is assumed to be busy with the first overdue command of the connection.
            let overdue = std::mem::take(&mut first) && matches!(end, End::Dead(_));
            if sent && (overdue || !entry.repeatable) {
                let failure = match end {
                    End::Dead(_) if overdue => Failure::Timeout(node.section.options.timeout_server),
                    End::Dead(reason) | End::Lost(reason) => Failure::Lost(reason.clone()),
                    End::Quiet | End::Closed => Failure::Closed,
                };
                entry.fail(&node.section, failure);
                continue;
            }
            entry.repeatable &= !sent;
            entry.skips = entry.route.asking;
            add(&node.counters.resent, u64::from(sent));
            back.bytes.extend_from_slice(&self.commands.bytes[bytes]);
            back.entries.push_back(entry);
        }
        self.lane.put_back(back);
    }
}
