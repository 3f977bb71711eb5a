//! Expressions that are evaluated per request: conditions, sample expressions, log-formats.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::{IndexId, PatternFile, Regex};

use super::{MqttField, MqttPacket, Position, VarName};
pub use crate::catalogue::MapGives;
use crate::catalogue::{Converter, Fetch};

/// An ACL: it holds if any of its tests does.
#[derive(Clone, Debug)]
pub struct Acl {
    /// Its name; empty for an anonymous one.
    pub name: Arc<str>,
    /// Lines of the same name, or-ed.
    pub tests: Vec<AclTest>,
    /// The position of the first line.
    pub at: Position,
}

/// One `acl` line or anonymous `{ … }`.
#[derive(Clone, Debug)]
pub struct AclTest {
    /// The sample expression.
    pub expr: Expr,
    /// The comparison.
    pub matcher: Matcher,
    /// Files whose patterns are compared in the same way (`-f`).
    pub files: Vec<(Arc<PatternFile>, IndexId)>,
    /// `-i`.
    pub ignore_case: bool,
}

/// `-m METHOD` with its patterns, typed. A list holds if any of its patterns matches.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// The sample exists.
    Found,
    /// It is true (an integer: not 0).
    Bool,
    /// Integer comparisons, ranges included; open ends are i64's.
    Int(Vec<(i64, i64)>),
    /// Length ranges.
    Len(Vec<(i64, i64)>),
    /// Networks.
    Ip(Vec<(IpAddr, u8)>),
    /// Exact strings; lower-cased already with `-i`.
    Str(Vec<Vec<u8>>),
    /// Prefixes.
    Beg(Vec<Vec<u8>>),
    /// Suffixes.
    End(Vec<Vec<u8>>),
    /// Substrings.
    Sub(Vec<Vec<u8>>),
    /// Whole path components between `/` (and `?`).
    Dir(Vec<Vec<u8>>),
    /// Whole domain components between `.` (and `/ ? :`).
    Dom(Vec<Vec<u8>>),
    /// Exact bytes, from hexadecimal.
    Bin(Vec<Vec<u8>>),
    /// Regular expressions; `-i` is compiled in.
    Reg(Vec<Regex>),
}

/// `if`/`unless`: a disjunction of conjunctions.
#[derive(Clone, Debug)]
pub struct Condition {
    /// `unless`: the result is inverted.
    pub unless: bool,
    /// Or-ed groups of and-ed terms.
    pub any: Vec<Vec<Term>>,
}

/// One term of a condition.
#[derive(Clone, Debug)]
pub struct Term {
    /// `!`.
    pub negated: bool,
    /// The tested ACL.
    pub acl: AclRef,
}

/// The ACL of a term.
#[derive(Clone, Debug)]
pub enum AclRef {
    /// Declared in the section: an index into [`Proxy::acls`](super::Proxy::acls).
    Named(u32),
    /// `{ … }`, or one of HAProxy's predefined names (TRUE, FALSE, METH_GET, LOCALHOST…), which expand to it.
    Inline(Arc<Acl>),
}

/// A sample expression: a fetch and its converters.
#[derive(Clone, Debug)]
pub struct Expr {
    /// The fetch.
    pub fetch: Fetch,
    /// The fetch's arguments, in number and types as in its catalogue row.
    pub args: Vec<Arg>,
    /// Converters in order.
    pub converters: Vec<ConverterCall>,
    /// Its position in the file.
    pub at: Position,
}

/// One converter of an expression.
#[derive(Clone, Debug)]
pub struct ConverterCall {
    /// The converter.
    pub converter: Converter,
    /// Its arguments.
    pub args: Vec<Arg>,
}

/// A map file as one converter looks into it.
#[derive(Clone, Debug)]
pub struct MapUse {
    /// The file.
    pub file: Arc<PatternFile>,
    /// The index of its keys.
    pub index: IndexId,
    /// The type to which a key is cast.
    pub method: sluicegate_pattern::Method,
    /// The type of a result.
    pub gives: MapGives,
}

/// A typed argument.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Text.
    Str(Arc<str>),
    /// Bytes that are not UTF-8, in place of text.
    Bytes(Arc<[u8]>),
    /// An integer.
    Int(i64),
    /// A variable.
    Var(VarName),
    /// A duration.
    Time(Duration),
    /// A store or engine, by name; it exists.
    Store(Arc<str>),
    /// A stick table, by name; it exists.
    Table(Arc<str>),
    /// A map file, read and indexed.
    Map(MapUse),
    /// A regular expression.
    Regex(Arc<Regex>),
    /// And-ed ACLs of the section, resolved.
    Acl(Vec<Term>),
    /// A field of an MQTT packet.
    Mqtt(MqttPacket, MqttField),
    /// The bytes of a file.
    File(Arc<[u8]>),
    /// An optional argument that was left out before a later one.
    Absent,
}

/// A log-format string: text, aliases such as `%ci`, and `%[expression]`s.
#[derive(Clone, Debug, Default)]
pub struct LogFormat {
    /// Its parts in order.
    pub parts: Vec<FormatPart>,
    /// `%{+json}o`, `%{+cbor}o`: the whole is one object of the items that have names, and texts are left out.
    pub encoding: Option<Encoding>,
    /// `%{+bin}o`.
    pub binary: bool,
}

impl LogFormat {
    /// Returns whether an item has its value only when the stream ends.
    pub fn has_final_items(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, FormatPart::Alias(alias, _) if alias.is_final()))
    }
}

/// A part of a log-format.
#[derive(Clone, Debug)]
pub enum FormatPart {
    /// Literal text.
    Text(Vec<u8>),
    /// Blanks of a log line: one, unless a blank or nothing stands before it.
    Blank,
    /// The name of the item that follows, `%(name)…`.
    Name(Box<str>),
    /// `%[…]`.
    Expr(Box<Expr>, FormatFlags),
    /// `%xx`.
    Alias(LogAlias, FormatFlags),
}

/// The machine-readable encoding of an item or of a whole format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON (RFC 8259).
    Json,
    /// CBOR (RFC 8949), its bytes in hexadecimal but with `+bin`.
    Cbor,
}

/// The type that `%(name:type)…` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// `str`.
    Text,
    /// `sint`.
    Integer,
    /// `bool`.
    Boolean,
}

/// `%{+Q,+E,+X,+bin,+json,+cbor}`, and the type behind an item's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatFlags {
    /// `+Q`.
    pub quote: bool,
    /// `+X`.
    pub hex: bool,
    /// `+E`.
    pub escape: bool,
    /// `+bin`, which counts in `%{…}o` alone: bytes stay as they are.
    pub binary: bool,
    /// `+json`, `+cbor`.
    pub encoding: Option<Encoding>,
    /// Only encodings ask for it.
    pub cast: Option<Cast>,
}

/// Log-format aliases (HAProxy configuration manual 8.2.6): those of httplog, tcplog and the other default formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as in the manual
pub enum LogAlias {
    Ci,
    Cp,
    Fi,
    Fp,
    Bi,
    Bp,
    Si,
    Sp, // addresses and ports
    Tr,
    T,
    Ft,
    F,
    B,
    S, // %tr date, %t date, %ft, %f, %b backend, %s server
    TimerTR,
    TimerTw,
    TimerTc,
    TimerTr,
    TimerTa,
    TimerTt,
    TimerTh,
    TimerTi,
    TimerTq,
    TimerTd,
    TimerTu,
    Status,
    BytesRead,
    BytesUploaded,
    CaptureReqCookie,
    CaptureResCookie,
    Ts,
    Tsc,
    Ac,
    Fc,
    Bc,
    Sc,
    Rc,
    Sq,
    Bq,
    Hr,
    Hs,
    Request,
    HttpMethod,
    HttpPath,
    HttpQuery,
    HttpUri,
    HttpVersion,
    Pid,
    Rt,
    HostName,
    HttpPathOnly,
    UniqueId,
    Origin,
    DateGmt,
    DateLocal,
    Timestamp,
    Milliseconds,
    TrGmt,
    TrLocal,
    Hrl,
    Hsl,
    LogCounter,
    SslCipher,
    SslVersion,
}

impl LogAlias {
    /// Returns whether HAProxy takes the value for one that is known only when the stream ends: counts of bytes, times,
    /// counts of connections, places in queues, and how the stream ended.
    fn is_final(self) -> bool {
        use LogAlias::{
            Ac, Bc, Bq, BytesRead, BytesUploaded, Fc, Rc, Sc, Sq, TimerTR, TimerTa, TimerTc, TimerTd, TimerTh, TimerTi,
            TimerTq, TimerTr, TimerTt, TimerTu, TimerTw, Ts, UniqueId,
        };
        matches!(
            self,
            BytesRead
                | BytesUploaded
                | UniqueId
                | TimerTa
                | TimerTc
                | TimerTd
                | TimerTh
                | TimerTi
                | TimerTq
                | TimerTr
                | TimerTR
                | TimerTt
                | TimerTu
                | TimerTw
                | Ac
                | Bc
                | Bq
                | Fc
                | Rc
                | Sc
                | Sq
                | Ts
        )
    }
}
