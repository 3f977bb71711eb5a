//! Filters: what a stream's heads and bodies pass on their way (HAProxy configuration manual 9).

use std::sync::Arc;
use std::time::Duration;

use super::{Expr, FcgiApp, NumberOr, Position, SpoeFilter, TimeOr};

/// A `filter` line; those of a proxy apply in their order.
#[derive(Clone, Debug)]
pub enum Filter {
    /// `filter compression`: the place of `compression`.
    Compression,
    /// `filter cache NAME`.
    Cache(Arc<str>),
    /// `filter trace`.
    Trace(Arc<TraceFilter>),
    /// `filter bwlim-in`, `filter bwlim-out`.
    Bandwidth(Arc<BandwidthFilter>),
    /// `filter spoe`.
    Spoe(Arc<SpoeFilter>),
    /// `use-fcgi-app`, `filter fcgi-app`.
    Fcgi(Arc<FcgiApp>),
    /// `filter lua.NAME`.
    Lua(Arc<LuaFilter>),
}

/// `filter lua.NAME`: a filter that a script registers.
#[derive(Clone, Debug)]
pub struct LuaFilter {
    /// Its name, without `lua.`.
    pub name: Box<str>,
    /// The arguments.
    pub args: Vec<String>,
    /// The line.
    pub at: Position,
}

/// `filter trace`: prints what passes to the standard error.
#[derive(Clone, Debug)]
pub struct TraceFilter {
    /// Its name, and that of the proxy.
    pub name: String,
    /// `quiet`: prints nothing.
    pub quiet: bool,
    /// `random-forwarding`: forwards a random part of the data that is there.
    pub random_forwarding: bool,
    /// `hexdump`: prints the data.
    pub hexdump: bool,
}

/// `filter bwlim-in`, `filter bwlim-out`.
#[derive(Clone, Debug)]
pub struct BandwidthFilter {
    /// The name by which rules enable it.
    pub name: Arc<str>,
    /// `bwlim-in`: limits requests; otherwise responses.
    pub request: bool,
    /// `min-size`: the least number of bytes that are forwarded at once.
    pub min_size: u32,
    /// What it allows.
    pub limit: BandwidthLimit,
}

/// The limit of a bandwidth filter.
#[derive(Clone, Debug)]
pub enum BandwidthLimit {
    /// `default-limit` and `default-period`: each stream alone.
    Stream {
        /// Bytes in a period.
        limit: u32,
        /// The period.
        period: Duration,
    },
    /// `limit` and `key`: all streams with the same entry of a stick table, which has the period.
    Shared {
        /// Bytes in a period.
        limit: u32,
        /// The key of the entry.
        key: Expr,
        /// The table.
        table: Arc<str>,
    },
}

impl super::Proxy {
    /// Returns the bandwidth filter of a name.
    pub(crate) fn bandwidth_filter(&self, name: &str) -> Option<&Arc<BandwidthFilter>> {
        self.filters.iter().find_map(|filter| match filter {
            Filter::Bandwidth(filter) if *filter.name == *name => Some(filter),
            _ => None,
        })
    }
}

/// `set-bandwidth-limit NAME [limit SIZE|EXPRESSION] [period TIME|EXPRESSION]`.
#[derive(Clone, Debug)]
pub struct SetBandwidthLimit {
    /// The name of the filter that it enables.
    pub filter: Arc<str>,
    /// The limit of this stream.
    pub limit: Option<NumberOr>,
    /// The period of this stream.
    pub period: Option<TimeOr>,
    /// The position of the name.
    pub at: Position,
}
