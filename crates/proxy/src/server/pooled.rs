//! Connections that lend places to several requests: the limits of their server, their places, and their output.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_transport::{Socket, clock};

use super::idle;
use super::run::ServerRun;
use super::shared::ServerShared;

/// The server of a connection, and its limits on connections that are kept.
pub(super) struct Pooled {
    pub(super) server: Arc<ServerShared>,
    worker: usize,
    /// `pool-max-conn`.
    idle_max: u32,
    /// `pool-low-conn`.
    idle_low: u32,
    /// `max-reuse`.
    reuse_max: u32,
    /// The server's era in which it was opened, if it ends with that.
    era: Option<u32>,
}

impl Pooled {
    /// Returns the limits of the server's line.
    pub(super) fn new(server: &ServerRun, worker: usize) -> Pooled {
        let pool = &server.config.pool;
        Pooled {
            server: server.shared.clone(),
            worker,
            idle_max: pool.max.unwrap_or(u32::MAX),
            idle_low: pool.low,
            reuse_max: pool.max_reuse.unwrap_or(u32::MAX),
            era: Some(server.shared.era.load(Ordering::Relaxed)),
        }
    }

    /// Returns the same for a connection that only its session uses, which no limit of the server closes.
    pub(super) fn own(self) -> Pooled {
        Pooled { idle_max: u32::MAX, idle_low: u32::MAX, era: None, ..self }
    }

    /// Returns the same for a connection that this side can't replace: only `pool-max-conn` closes it.
    pub(super) fn lasting(self) -> Pooled {
        Pooled { idle_low: u32::MAX, era: None, ..self }
    }

    /// Returns whether a connection that has lent so many places lends no more, or is of another era of its server.
    pub(super) fn is_used_up(&self, lent: u32) -> bool {
        lent > self.reuse_max || self.era.is_some_and(|era| era != self.server.era.load(Ordering::Relaxed))
    }

    /// Returns whether the connection, whose last place was given back, is kept for other requests.
    pub(super) fn is_needed(&self) -> bool {
        let is_one_of_few = self.idle_max == u32::MAX || self.server.idle_connections() < self.idle_max;
        is_one_of_few && idle::is_needed(&self.server, self.worker, self.idle_low)
    }

    /// Records whether the connection is idle, since `since`, and counts it.
    pub(super) fn set_idle(&self, since: &mut Option<Instant>, idle: bool) {
        let count = &self.server.idle[self.worker].lending;
        match (idle, &since) {
            (true, None) => {
                *since = Some(clock::now());
                count.fetch_add(1, Ordering::Relaxed);
            }
            (false, Some(_)) => {
                *since = None;
                count.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Takes the first free place; returns its index.
pub(super) fn take_place<S: Default>(slots: &mut Vec<Option<S>>) -> usize {
    let free = slots.iter().position(Option::is_none);
    let place = free.unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    slots[place] = Some(S::default());
    place
}

/// Writes the output behind its first `written` bytes as far as the socket takes it; returns whether some is left.
pub(super) fn write_output(
    socket: &mut Socket,
    cx: &mut Context<'_>,
    output: &mut Vec<u8>,
    written: &mut usize,
) -> io::Result<bool> {
    while *written < output.len() {
        match socket.poll_write(cx, &output[*written..]) {
            Poll::Ready(count) => *written += count?,
            Poll::Pending => return Ok(true),
        }
    }
    output.clear();
    *written = 0;
    Ok(false)
}
