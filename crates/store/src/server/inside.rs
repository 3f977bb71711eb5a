//! Commands of rules and HAProxy Lua: counted, timed and shown like those of clients.
//!
//! A thread that runs such commands has its own counters for each server, which no other thread writes. MONITOR and
//! SLOWLOG show `rule:FILE:LINE` or `lua:FILE:LINE` in place of a client's address; the text is made only when it is
//! shown. A command costs two clock readings, for the durations of commandstats and LATENCY HISTOGRAM.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_transport::clock;
use sluicegate_wire::engine::{Engine, Origin, Started};
use sluicegate_wire::reply::Reply;

use super::Server;
use super::counters::WorkerCounters;
use super::dispatch::{INDEX, Moment, judge};
use super::guard::Kept;
use super::slowlog;
use crate::acl::{Refusal, User, Where};
use crate::catalogue::{Flags, Guard, Handler, Numbered};
use crate::config::ServerOptions;
use crate::engine::{as_value, refused, unrun};
use crate::park::Parked;

/// The origin of a command of the process that neither a rule nor a script sent.
pub(super) const NOWHERE: &str = "inside:0";

/// The counters of a thread for one server, with the relevant parameters.
struct Inside {
    counters: Arc<WorkerCounters>,
    /// Keeps the server's address from being reused for another one.
    server: Weak<Server>,
    /// The version of the parameters that the following fields come from.
    version: u64,
    tracks_latency: bool,
    /// Commands that take at least this many microseconds are reported.
    slow_us: u64,
}

thread_local! {
    static INSIDE: RefCell<Vec<Inside>> = const { RefCell::new(Vec::new()) };
}

impl Inside {
    fn new(server: &Server) -> Inside {
        let mut workers = server.workers.lock();
        let free = workers.inside.iter().find(|counters| Arc::strong_count(counters) == 1).cloned();
        let counters = free.unwrap_or_else(|| {
            let counters = Arc::new(WorkerCounters::new(INDEX.len()));
            workers.inside.push(counters.clone());
            counters
        });
        // The counts of the previous thread become visible to this one.
        fence(Ordering::Acquire);
        let mut inside =
            Inside { counters, server: server.this.clone(), version: 0, tracks_latency: false, slow_us: 0 };
        inside.read(server.options_version.load(Ordering::Acquire), &server.options());
        inside
    }

    fn read(&mut self, version: u64, options: &ServerOptions) {
        let slow_us = u64::try_from(options.slowlog_slower_than_us).unwrap_or(u64::MAX);
        let latency_us = match u64::try_from(options.latency_threshold_ms) {
            Ok(threshold @ 1..) => threshold.saturating_mul(1000),
            _ => u64::MAX,
        };
        (self.version, self.tracks_latency, self.slow_us) =
            (version, options.latency_tracking, slow_us.min(latency_us));
    }
}

/// The result of a command.
#[derive(Clone, Copy)]
enum Came {
    /// It ran for this time.
    Ran(Duration),
    /// It was refused before it ran.
    Rejected,
}

impl Server {
    /// Calls `with` with this thread's counters. A thread that is ending has none any more.
    fn with_inside<R>(&self, with: impl FnOnce(&Inside) -> R) -> Option<R> {
        let with = |inside: &RefCell<Vec<Inside>>| {
            let mut inside = inside.borrow_mut();
            let at = inside.iter().position(|one| std::ptr::eq(one.server.as_ptr(), self)).unwrap_or_else(|| {
                inside.retain(|one| one.server.strong_count() > 0);
                inside.push(Inside::new(self));
                inside.len() - 1
            });
            let one = &mut inside[at];
            let version = self.options_version.load(Ordering::Acquire);
            if one.version != version {
                one.read(version, &self.options());
            }
            with(one)
        };
        INSIDE.try_with(with).ok()
    }

    /// Counts a command by its reply. Returns true if it was slow.
    #[inline]
    fn count_inside(&self, row: Option<u16>, reply: &Reply, came: Came) -> bool {
        if let Reply::Error(text) = reply {
            self.store.0.errors.count(text.as_bytes());
        }
        let count = |inside: &Inside| {
            let counters = &*inside.counters;
            let is_error = matches!(reply, Reply::Error(_));
            if is_error {
                counters.error_replies.add(1);
            }
            let Some(row) = row else { return false };
            let of_command = &counters.per_command[usize::from(row)];
            let refused = match reply {
                Reply::Error(text) => INDEX.rows()[usize::from(row)].was_refused(text.as_bytes()),
                _ => false,
            };
            let spent = match came {
                Came::Ran(spent) if !refused => spent,
                _ => {
                    of_command.rejected.add(1);
                    return false;
                }
            };
            counters.commands.add(1);
            of_command.calls.add(1);
            if is_error {
                of_command.failed.add(1);
            }
            let nanoseconds = spent.as_nanos() as u64;
            of_command.nanoseconds.add(nanoseconds);
            if inside.tracks_latency {
                of_command.times.add(nanoseconds, 1);
            }
            nanoseconds / 1000 >= inside.slow_us
        };
        self.with_inside(count).unwrap_or_default()
    }

    /// Counts a command that ran, and reports it if it was slow.
    #[inline]
    fn account_inside(&self, row: u16, reply: &Reply, spent: Duration, origin: Origin<'_>, args: &[&[u8]]) {
        if self.count_inside(Some(row), reply, Came::Ran(spent)) {
            self.judge_inside(row, spent, origin(), slowlog::shortened(&INDEX.rows()[usize::from(row)], args));
        }
    }

    /// Starts a command of a rule or script.
    pub(super) fn start_inside(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        let row = match self.store.0.rows.resolve_numbered(args) {
            Ok(row) => row,
            Err((number, text)) => {
                let reply = Reply::Error(String::from_utf8_lossy(&text).into_owned());
                self.count_inside(number, &reply, Came::Rejected);
                return Started::Done(reply);
            }
        };
        if let Some(reply) = refused(&self.store.0, row.spec) {
            self.count_inside(Some(row.number), &reply, Came::Rejected);
            return Started::Done(reply);
        }
        if let Some(reply) = self.denial_inside(origin, row, args) {
            self.count_inside(Some(row.number), &reply, Came::Rejected);
            return Started::Done(reply);
        }
        let began = Instant::now();
        if let Some(reply) = unrun(row.spec, args) {
            if let Reply::Error(_) = reply {
                self.count_inside(Some(row.number), &reply, Came::Rejected);
            } else {
                self.show_inside(row.number, Moment::After, origin, db, args);
                self.account_inside(row.number, &reply, began.elapsed(), origin, args);
            }
            return Started::Done(reply);
        }
        self.show_inside(row.number, Moment::Before, origin, db, args);
        let guard = match row.spec.handler {
            Handler::Script(_) => self.inside_guard(),
            _ => None,
        };
        let ran = self.store.run(row.spec, db, args, guard.as_ref());
        // The same reading is the time of the caller's turn.
        let spent = clock::read() - began;
        self.show_inside(row.number, Moment::After, origin, db, args);
        match ran {
            Ok(reply) => {
                self.account_inside(row.number, &reply, spent, origin, args);
                Started::Done(reply)
            }
            Err(parked) => {
                let words = slowlog::shortened(&INDEX.rows()[usize::from(row.number)], args);
                Started::Pending(Box::pin(Waiting {
                    server: self.this.clone(),
                    parked,
                    row: row.number,
                    words,
                    origin: origin(),
                    worked: Duration::ZERO,
                }))
            }
        }
    }

    /// Runs a few cheap commands of a script together.
    pub(super) fn together_inside(&self, origin: Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        let user = self.inside_user();
        if user.restrictions().is_some() {
            let (acl, permissions) = (&self.store.0.acl, user.permissions());
            let is_denied = |args: &&[&[u8]]| {
                let row = self.store.0.rows.resolve_numbered(args);
                row.is_ok_and(|row| permissions.denies(acl.commands(), row, args).is_some())
            };
            if commands.iter().any(is_denied) {
                return None;
            }
        }
        let began = Instant::now();
        let started = self.store.together(origin, db, commands)?;
        let Started::Done(Reply::Array(replies)) = &started else { return Some(started) };
        // The measured time is divided evenly among the commands.
        let spent = (clock::read() - began) / u32::try_from(replies.len()).unwrap_or(u32::MAX).max(1);
        for (args, reply) in commands.iter().zip(replies) {
            let Ok(row) = self.store.0.rows.resolve_numbered(args) else { continue };
            self.show_inside(row.number, Moment::After, origin, db, args);
            self.account_inside(row.number, reply, spent, origin, args);
        }
        Some(started)
    }

    /// Returns the user of commands of rules and of scripts of the proxy: the process, or the one that the store's section
    /// names.
    #[inline]
    pub(super) fn inside_user(&self) -> &Arc<User> {
        self.inside_user.get().unwrap_or_else(|| self.store.0.acl.process_user())
    }

    /// Returns the permissions for commands of scripts that rules call, if they are restricted.
    fn inside_guard(&self) -> Option<Arc<dyn Guard>> {
        let user = self.inside_user();
        user.restrictions().map(|version| Kept::new(version, user).guard(self, None).clone())
    }

    /// Returns the error of a command that rules and scripts may not call, after it was logged.
    #[inline]
    fn denial_inside(&self, origin: Origin<'_>, row: Numbered, args: &[&[u8]]) -> Option<Reply> {
        let user = self.inside_user();
        user.restrictions()?;
        let (acl, permissions) = (&self.store.0.acl, user.permissions());
        let text = match permissions.refuses(acl.commands(), row, args)? {
            Refusal::Others(text) => text.into(),
            Refusal::Denied(denied) => {
                self.note_denied(denied, Where::TopLevel, user, row, args, origin);
                [b"NOPERM ", &denied.text(user.name(), acl.commands().full_name(row.number))[..]].concat()
            }
        };
        Some(Reply::Error(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Shows a command to MONITOR clients, if commands of this kind are shown at `moment`.
    #[inline]
    fn show_inside(&self, row: u16, moment: Moment, origin: Origin<'_>, db: u32, args: &[&[u8]]) {
        if !self.monitors.any() {
            return;
        }
        let row = &INDEX.rows()[usize::from(row)];
        if moment == Moment::of(row) && !row.spec.flags.has(Flags::ADMIN) {
            let limit = self.options().client_output_buffer_limit[0];
            self.monitors.show(row, &format!("{db} {}", origin()), args, limit);
        }
    }

    #[cold]
    fn judge_inside(&self, row: u16, spent: Duration, origin: String, words: Vec<Vec<u8>>) {
        judge(self, &self.options(), row, spent, || (origin, String::new()), || words);
    }
}

/// A command of a rule or script whose reply is pending.
struct Waiting {
    server: Weak<Server>,
    parked: Parked,
    row: u16,
    /// Its words and its origin for the slow log.
    words: Vec<Vec<u8>>,
    origin: String,
    /// The time that it has run so far on the polling thread.
    worked: Duration,
}

impl Future for Waiting {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let this = &mut *self;
        let began = Instant::now();
        let polled = this.parked.poll_finished(context);
        this.worked += began.elapsed();
        let Poll::Ready(finished) = polled else { return Poll::Pending };
        let reply = as_value(finished);
        let worked = this.worked + this.parked.worked();
        let Some(server) = this.server.upgrade() else { return Poll::Ready(reply) };
        if server.count_inside(Some(this.row), &reply, Came::Ran(worked)) {
            let (origin, words) = (std::mem::take(&mut this.origin), std::mem::take(&mut this.words));
            server.judge_inside(this.row, worked, origin, words);
        }
        Poll::Ready(reply)
    }
}
