//! `limit`: rates and concurrency.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Expr, Position};

/// The longest time that a full bucket may take to get empty, ns: differences of times are exact up to 2^53 in an
/// engine's scripts.
pub const LIMIT_LONGEST_NS: u64 = 1 << 53;

/// The settings shared by all rules of one name.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of limit.
    pub kind: LimitKind,
    /// The store or engine that counts.
    pub store: Arc<str>,
    /// Whether that is an engine in another process.
    pub external: bool,
    /// The embedded store that counts instead while the engine is away.
    pub stand_in: Arc<str>,
    /// The position of its first rule.
    pub at: Position,
}

impl Limit {
    /// Returns whether both limits are the same, regardless of their positions.
    pub fn means_the_same(&self, other: &Limit) -> bool {
        self.name == other.name && self.kind == other.kind && self.store == other.store
    }
}

/// The kind of limit and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// `rate COUNT/PERIOD [burst B] [algorithm A]`.
    Rate {
        /// The number of requests…
        count: u32,
        /// …in this time.
        period: Duration,
        /// The number allowed at once (`gcra`); the count by default.
        burst: u32,
        /// The algorithm.
        algorithm: LimitAlgorithm,
    },
    /// `max N [lease T]`.
    Concurrency {
        /// The maximum number at once.
        max: u32,
        /// The time after which the slot of a stream is freed if its lease is not renewed.
        lease: Duration,
    },
}

/// The counting algorithm of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitAlgorithm {
    /// The generic cell rate algorithm: a burst, then an even pace.
    #[default]
    Gcra,
    /// At most the count in any stretch of the period.
    Sliding,
    /// At most the count in each period since 1970.
    Fixed,
}

impl LimitAlgorithm {
    /// Returns its name in files and commands.
    pub fn name(self) -> &'static str {
        match self {
            LimitAlgorithm::Gcra => "gcra",
            LimitAlgorithm::Sliding => "sliding",
            LimitAlgorithm::Fixed => "fixed",
        }
    }
}

/// Formats the limit as a file would contain it.
impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitKind::Rate { count, period, burst, algorithm } => {
                write!(f, "rate {count}/{} ", time(*period))?;
                if *algorithm == LimitAlgorithm::Gcra {
                    write!(f, "burst {burst} ")?;
                }
                write!(f, "algorithm {}", algorithm.name())
            }
            LimitKind::Concurrency { max, lease } => write!(f, "max {max} lease {}", time(*lease)),
        }
    }
}

/// Returns a time in the largest unit that it is a whole number of.
fn time(time: Duration) -> String {
    let ms = time.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    match units.iter().find(|(of, _)| ms.is_multiple_of(*of)) {
        Some((of, unit)) => format!("{}{unit}", ms / of),
        None => format!("{ms}ms"),
    }
}

/// A rule.
#[derive(Clone, Debug)]
pub struct LimitRule {
    /// The settings of its name.
    pub limit: Arc<Limit>,
    /// The key under which the request is counted.
    pub key: Expr,
    /// The cost of a request; 1 by default.
    pub cost: Option<Expr>,
    /// Counts and reports, but denies nothing.
    pub shadow: bool,
    /// The fields added to responses.
    pub headers: LimitHeaders,
    /// The status of a denied request.
    pub deny_status: u16,
    /// The decision when the limit cannot be queried.
    pub on_error: LimitOnError,
}

/// The fields that describe a limit in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitHeaders {
    /// `RateLimit-Policy` and `RateLimit`, as draft 11 of the IETF has them.
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    X,
    /// Only `Retry-After` in denied requests.
    Off,
}

/// The decision of a rule when the limit cannot be queried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitOnError {
    /// The request goes on.
    Open,
    /// It is denied with 503 (TCP: closed).
    Closed,
    /// An embedded store counts meanwhile, with this fraction of the limit.
    Local(f64),
}
