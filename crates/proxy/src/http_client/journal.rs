//! Log lines of the client's requests: those of HAProxy's internal proxy `<HTTPCLIENT>`, for the `log` targets of `global`.
//!
//! As there, `%Tc` is the time of all attempts, and the letters of the session state are those of a proxied request. Unlike
//! there, `%TR` is the time in which the server's name was looked up, without the start of the stream.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model::LogTarget;

use super::{Failure, HttpRequest, HttpResponse};
use crate::counters::head_size;
use crate::date::{Clock, append_date};
use crate::log::{Logger, Severity};
use crate::process::Process;

/// The destination of the lines.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) logger: Logger,
    pub(crate) targets: Vec<LogTarget>,
    pub(crate) process: Arc<Process>,
}

/// The course of a request.
#[derive(Debug)]
pub(super) struct Account {
    began: Instant,
    began_at: SystemTime,
    /// The moment from which addresses of the server were known.
    pub(super) resolved: Option<Instant>,
    /// The moment of the last connection.
    pub(super) connected: Option<Instant>,
    /// The moment of the first data of a response on it.
    pub(super) answered: Option<Instant>,
    /// The number of attempts after the first.
    pub(super) retries: u32,
    /// Whether the last attempt to connect took too long.
    pub(super) connected_late: bool,
}

impl Account {
    pub(super) fn new() -> Account {
        Account {
            began: Instant::now(),
            began_at: SystemTime::now(),
            resolved: None,
            connected: None,
            answered: None,
            retries: 0,
            connected_late: false,
        }
    }

    /// Called when another attempt begins after a connection without a response.
    pub(super) fn again(&mut self) {
        (self.connected, self.answered) = (None, None);
        self.retries += 1;
    }

    /// Returns the letters of the session state.
    fn state(&self, result: &Result<HttpResponse, Failure>) -> &'static str {
        match result {
            Ok(response) if response.is_complete => "--",
            Ok(response) if response.is_late => "sD",
            Ok(_) => "SD",
            Err(Failure::Unresolved) => "LR",
            Err(Failure::Unreachable) if self.connected_late => "sC",
            Err(Failure::Unreachable) => "SC",
            Err(Failure::NoAnswer) => "PH",
            Err(Failure::Ended) => "SH",
            Err(Failure::Late) if self.connected.is_none() => "sC",
            Err(Failure::Late) => "sH",
        }
    }
}

impl Journal {
    /// Writes the line of a request that has ended.
    pub(super) fn write(&self, request: &HttpRequest, account: &Account, result: &Result<HttpResponse, Failure>) {
        if self.targets.is_empty() {
            return;
        }
        let page;
        let response = match result {
            Ok(response) => response,
            Err(failure) => {
                page = failure.page();
                &page
            }
        };
        let (status, bytes) = (response.head.status(), head_size(&response.head) + response.body.len());
        let mut date = Vec::with_capacity(32);
        append_date(account.began_at, Clock::LocalMilliseconds, &mut date);
        let resolved = account.resolved;
        let queued = if resolved.is_some() { 0 } else { -1 };
        let connect = between(resolved, account.connected);
        let answer = if result.is_ok() { between(account.connected, account.answered) } else { -1 };
        let total = account.began.elapsed();
        let resolve = millis(resolved.map_or(total, |at| at.saturating_duration_since(account.began)));
        let total = millis(total);
        let (state, active, retries) = (account.state(result), self.process.sessions.current(), account.retries);
        let line = format!(
            "-:- [{}] <HTTPCLIENT> -/- {resolve}/{queued}/{connect}/{answer}/{total} {status} {bytes} - - {state}-- \
             {active}/0/0/0/{retries} 0/0 {{}} \"{} {} HTTP/1.1\"",
            String::from_utf8_lossy(&date),
            String::from_utf8_lossy(request.method_text()),
            String::from_utf8_lossy(&request.url),
        );
        self.logger.send(&self.targets, Severity::Info, line.as_bytes());
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the milliseconds between two moments, -1 if one was not reached.
fn between(from: Option<Instant>, to: Option<Instant>) -> i64 {
    from.zip(to).map_or(-1, |(from, to)| millis(to.saturating_duration_since(from)))
}
