//! Actions that change a message's head, and actions that change its connection.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::Regex;

use super::{Expr, LogFormat};

/// A change of a head.
#[derive(Clone, Debug)]
pub enum Edit {
    /// `replace-header`, or with `each` `replace-value`: what matches becomes the format, which may name groups.
    ReplaceField {
        /// The fields' name.
        name: String,
        /// Each value between commas by itself.
        each: bool,
        /// What matches.
        regex: Arc<Regex>,
        /// What it becomes.
        by: LogFormat,
    },
    /// `replace-path`, `replace-pathq`, `replace-uri`.
    ReplaceTarget(TargetPart, Arc<Regex>, LogFormat),
    /// `set-path`, `set-pathq`, `set-query`, `set-uri`.
    SetTarget(TargetPart, LogFormat),
    /// `set-method`.
    SetMethod(LogFormat),
    /// `del-header NAME -m …`.
    DelMatching(NameMatch),
    /// `set-status N [reason R]`; without a reason the status's own.
    SetStatus(u16, Option<String>),
    /// `normalize-uri`.
    Normalize(Normalizer),
}

/// A part of a request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPart {
    /// From the first `/` behind the authority to the `?`.
    Path,
    /// The same to the end.
    PathAndQuery,
    /// Behind the `?`.
    Query,
    /// All of it.
    Whole,
}

/// Which names `del-header` removes.
#[derive(Clone, Debug)]
pub enum NameMatch {
    /// Those that begin so; lower case.
    Beg(String),
    /// Those that end so; lower case.
    End(String),
    /// Those that hold it; lower case.
    Sub(String),
    /// Those whose lower-case form matches.
    Reg(Arc<Regex>),
}

/// `normalize-uri`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalizer {
    /// `fragment-encode`.
    FragmentEncode,
    /// `fragment-strip`.
    FragmentStrip,
    /// `path-merge-slashes`.
    PathMergeSlashes,
    /// `path-strip-dot`.
    PathStripDot,
    /// `path-strip-dotdot`, or with `full` without those that lead above the root.
    PathStripDotdot {
        /// `full`.
        full: bool,
    },
    /// `percent-decode-unreserved [strict]`.
    PercentDecodeUnreserved {
        /// A malformed sequence is answered with 400.
        strict: bool,
    },
    /// `percent-to-uppercase [strict]`.
    PercentToUppercase {
        /// A malformed sequence is answered with 400.
        strict: bool,
    },
    /// `query-sort-by-name`.
    QuerySortByName,
}

/// A number that stands in the file or is computed.
#[derive(Clone, Debug)]
pub enum NumberOr {
    /// It stands there.
    Number(u32),
    /// A sample.
    Expr(Expr),
}

/// A duration that stands in the file, or milliseconds that are computed.
#[derive(Clone, Debug)]
pub enum TimeOr {
    /// It stands there.
    Time(Duration),
    /// A sample.
    Expr(Expr),
}

/// A change of what carries a message.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// `set-src`, `set-src-port`, `set-dst`, `set-dst-port`.
    Address(AddressPart, Expr),
    /// `set-fc-mark`, `set-fc-tos`, `set-bc-mark`, `set-bc-tos`.
    Socket {
        /// The server's connection; otherwise the client's.
        server: bool,
        /// The mark; otherwise the type of service.
        mark: bool,
        /// The value.
        value: NumberOr,
    },
    /// `set-timeout`.
    Timeout(TimeoutSide, TimeOr),
    /// `silent-drop [rst-ttl N]`.
    SilentDrop(Option<u8>),
    /// `pause`.
    Pause(TimeOr),
    /// `set-retries`.
    Retries(NumberOr),
}

/// Which address a rule sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPart {
    /// The client's.
    Source,
    /// Its port.
    SourcePort,
    /// The one that the client connected to.
    Destination,
    /// Its port.
    DestinationPort,
}

/// Which timeout `set-timeout` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSide {
    /// `timeout client`.
    Client,
    /// `timeout server`.
    Server,
    /// `timeout tunnel`.
    Tunnel,
}
