//! What is counted, once per frontend, backend, server and process.
//!
//! Every figure is kept per worker on a cache line of its own and written by that worker alone, so counting costs a
//! plain store; who reads sums over workers. Gauges that decide (current sessions against `maxconn`, a server's
//! served requests) are not here: they are shared atomics beside what they limit.

use std::sync::atomic::{AtomicU64, Ordering};

/// A figure that only one worker writes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`; only the owning worker may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The figure as last written.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it to 0 (the owning worker, or `clear counters`, which may lose concurrent increments as HAProxy's).
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The figures of one proxy side (frontend or backend) or one server, as `show stat` names them.
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
    pub connect: Count,
    pub reuse: Count,
    pub qtime: Count,
    pub ctime: Count,
    pub rtime: Count,
    pub ttime: Count,
}
