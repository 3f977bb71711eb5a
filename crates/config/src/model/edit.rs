//! Actions that change a message's head, and actions that change its connection.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::Regex;

use super::{Expr, LogFormat};

/// A change of a head.
#[derive(Clone, Debug)]
pub enum Edit {
    /// `replace-header`, or with `each` `replace-value`: replaces matches by a format, which may refer to groups.
    ReplaceField {
        /// The fields' name.
        name: String,
        /// Whether comma-separated values are matched one by one.
        each: bool,
        /// The pattern.
        regex: Arc<Regex>,
        /// The replacement.
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
    /// `set-status N [reason R]`; `None`: the standard reason of the status.
    SetStatus(u16, Option<String>),
    /// `normalize-uri`.
    Normalize(Normalizer),
}

/// A part of a request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPart {
    /// From the first `/` after the authority to the `?`.
    Path,
    /// From the first `/` after the authority to the end.
    PathAndQuery,
    /// After the `?`.
    Query,
    /// All of it.
    Whole,
}

/// The names that `del-header` removes.
#[derive(Clone, Debug)]
pub enum NameMatch {
    /// Names with this prefix; lower case.
    Beg(String),
    /// Names with this suffix; lower case.
    End(String),
    /// Names that contain this text; lower case.
    Sub(String),
    /// Names whose lower-case form matches.
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
    /// `path-strip-dotdot [full]`: with `full`, segments that lead above the root are removed, too.
    PathStripDotdot {
        /// `full`.
        full: bool,
    },
    /// `percent-decode-unreserved [strict]`.
    PercentDecodeUnreserved {
        /// Whether a malformed sequence is answered with 400.
        strict: bool,
    },
    /// `percent-to-uppercase [strict]`.
    PercentToUppercase {
        /// Whether a malformed sequence is answered with 400.
        strict: bool,
    },
    /// `query-sort-by-name`.
    QuerySortByName,
}

/// A number: a constant, or the result of an expression.
#[derive(Clone, Debug)]
pub enum NumberOr {
    /// A constant.
    Number(u32),
    /// A sample.
    Expr(Expr),
}

/// A duration: a constant, or an expression that returns milliseconds.
#[derive(Clone, Debug)]
pub enum TimeOr {
    /// A constant.
    Time(Duration),
    /// A sample.
    Expr(Expr),
}

/// A change of a stream's connections, timeouts or retries.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// `set-src`, `set-src-port`, `set-dst`, `set-dst-port`.
    Address(AddressPart, Expr),
    /// `set-fc-mark`, `set-fc-tos`, `set-bc-mark`, `set-bc-tos`.
    Socket {
        /// Whether the server's connection is changed instead of the client's.
        server: bool,
        /// Whether the mark is set instead of the type of service.
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

/// The address that a rule sets.
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

/// The timeout that `set-timeout` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSide {
    /// `timeout client`.
    Client,
    /// `timeout server`.
    Server,
    /// `timeout tunnel`.
    Tunnel,
}
