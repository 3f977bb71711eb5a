//! Sample fetches (HAProxy configuration manual 7.3).

use std::collections::HashMap;
use std::sync::OnceLock;

use super::{ArgKind, Output};

/// A sample fetch. Aliases (`hdr` for `req.hdr`, `cook` for `req.cook`…) are resolved when the file is read; `hdr`
/// means the response's where only a response is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
pub enum Fetch {
    AlwaysTrue,
    AlwaysFalse,
    Bool,
    Int,
    Str,
    Var,
    Date,
    Rand,
    Src,
    SrcPort,
    Dst,
    DstPort,
    Method,
    Path,
    Query,
    Url,
    ReqVer,
    ReqHdr,
    ReqHdrCnt,
    ReqFhdr,
    ReqCook,
    Status,
    ResHdr,
    ResHdrCnt,
    ResFhdr,
    ResCook,
    FeName,
    BeName,
    Lua,
}

/// What a fetch needs: a set of things that a [`Place`] may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs(u8);

impl Needs {
    /// Nothing: constants, the clock, variables.
    pub(crate) const NOTHING: Needs = Needs(0);
    /// The client's connection and the frontend.
    pub(crate) const CLIENT: Needs = Needs(1);
    /// The request's head, gone once it was forwarded.
    pub(crate) const REQUEST: Needs = Needs(1 << 1);
    /// What is kept of the request while its response is processed.
    pub(crate) const REQUEST_KEPT: Needs = Needs(1 << 2);
    /// The backend.
    pub(crate) const BACKEND: Needs = Needs(1 << 3);
    /// The response's head.
    pub(crate) const RESPONSE: Needs = Needs(1 << 4);
    /// What is kept of the response once it is on its way.
    pub(crate) const RESPONSE_KEPT: Needs = Needs(1 << 5);

    const fn or(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }

    pub(crate) const fn within(self, has: Needs) -> bool {
        self.0 & !has.0 == 0
    }

    /// As HAProxy words it in its warnings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Needs::CLIENT => "client connection",
            Needs::REQUEST => "HTTP request headers",
            Needs::REQUEST_KEPT => "HTTP request",
            Needs::BACKEND => "backend",
            Needs::RESPONSE => "HTTP response headers",
            Needs::RESPONSE_KEPT => "HTTP response",
            _ => "nothing",
        }
    }

    /// The rule sets that have it.
    pub(crate) fn places(self) -> Vec<&'static str> {
        Place::ALL.iter().filter(|p| self.within(p.has())).map(|p| p.name()).collect()
    }
}

/// Where an expression is evaluated: what is at hand there, and whether it may wait for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `tcp-request connection`.
    TcpConnection,
    /// `tcp-request content`.
    TcpRequest,
    /// `http-request` and `redirect`.
    HttpRequest,
    /// `use_backend`.
    UseBackend,
    /// `tcp-response content`.
    TcpResponse,
    /// `http-response`.
    HttpResponse,
    /// `unique-id-format`.
    UniqueId,
    /// `log-format` and its kin: what is left when a stream has ended.
    Log,
    /// An `acl` line: where it is used decides.
    Declared,
}

impl Place {
    const ALL: [Place; 8] = [
        Place::TcpConnection,
        Place::TcpRequest,
        Place::HttpRequest,
        Place::UseBackend,
        Place::TcpResponse,
        Place::HttpResponse,
        Place::UniqueId,
        Place::Log,
    ];

    pub(crate) fn has(self) -> Needs {
        let kept = Needs::CLIENT.or(Needs::REQUEST_KEPT).or(Needs::BACKEND);
        let request = kept.or(Needs::REQUEST);
        match self {
            Place::TcpConnection => Needs::CLIENT,
            Place::TcpRequest | Place::HttpRequest | Place::UseBackend => request,
            Place::TcpResponse | Place::HttpResponse => kept.or(Needs::RESPONSE).or(Needs::RESPONSE_KEPT),
            Place::UniqueId => Needs::CLIENT.or(Needs::REQUEST).or(Needs::REQUEST_KEPT),
            Place::Log => kept.or(Needs::RESPONSE_KEPT),
            Place::Declared => Needs(u8::MAX),
        }
    }

    /// Whether an evaluation may wait.
    pub(crate) fn may_wait(self) -> bool {
        !matches!(self, Place::TcpConnection | Place::UniqueId | Place::Log)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::TcpConnection => "tcp-request connection",
            Place::TcpRequest => "tcp-request content",
            Place::HttpRequest => "http-request",
            Place::UseBackend => "use_backend",
            Place::TcpResponse => "tcp-response content",
            Place::HttpResponse => "http-response",
            Place::UniqueId => "unique-id-format",
            Place::Log => "log-format",
            Place::Declared => "acl",
        }
    }

    /// Whether only a response is at hand, so that `hdr` means the response's.
    pub(crate) fn is_response(self) -> bool {
        matches!(self, Place::TcpResponse | Place::HttpResponse)
    }
}

/// A fetch's row.
pub(crate) struct FetchRow {
    /// Its names, the manual's first.
    pub(crate) names: &'static [&'static str],
    pub(crate) fetch: Fetch,
    pub(crate) args: &'static [ArgKind],
    /// How many of `args` must be given.
    pub(crate) required: usize,
    pub(crate) output: Output,
    pub(crate) needs: Needs,
    /// ACL keywords such as `path_beg`: the name with a suffix that stands for `-m`.
    pub(crate) suffixed: &'static [&'static str],
    pub(crate) docs: &'static str,
}

impl FetchRow {
    pub(crate) fn all() -> &'static [FetchRow] {
        ROWS
    }

    /// The row of a name or alias. `hdr` and its kin mean the response where only that is at hand.
    pub(crate) fn find(name: &str, place: Place) -> Option<&'static FetchRow> {
        static INDEX: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
        let index = INDEX.get_or_init(|| {
            let names = |(i, row): (usize, &FetchRow)| row.names.iter().map(move |n| (*n, i)).collect::<Vec<_>>();
            ROWS.iter().enumerate().flat_map(names).collect()
        });
        let name = match name {
            "hdr" if place.is_response() => "res.hdr",
            "hdr_cnt" if place.is_response() => "res.hdr_cnt",
            "cook" if place.is_response() => "res.cook",
            name => name,
        };
        index.get(name).map(|i| &ROWS[*i])
    }

    /// The row of a fetch.
    pub(crate) fn of(fetch: Fetch) -> &'static FetchRow {
        ROWS.iter().find(|row| row.fetch == fetch).expect("every fetch has a row, which a test asserts")
    }
}

use ArgKind as A;
use Output as O;

static ROWS: &[FetchRow] = &[
    row(&["always_true"], Fetch::AlwaysTrue, &[], 0, O::Bool, Needs::NOTHING, "True."),
    row(&["always_false"], Fetch::AlwaysFalse, &[], 0, O::Bool, Needs::NOTHING, "False."),
    row(&["bool"], Fetch::Bool, &[A::Bool], 1, O::Bool, Needs::NOTHING, "The constant true or false."),
    row(&["int"], Fetch::Int, &[A::Int], 1, O::Int, Needs::NOTHING, "A constant integer."),
    row(&["str"], Fetch::Str, &[A::Str], 1, O::Str, Needs::NOTHING, "A constant string."),
    row(
        &["var"],
        Fetch::Var,
        &[A::Var, A::Str],
        1,
        O::Any,
        Needs::NOTHING,
        "A variable, or the default if it is not set.",
    ),
    row(
        &["date"],
        Fetch::Date,
        &[A::Int, A::DateUnit],
        0,
        O::Int,
        Needs::NOTHING,
        "The time since 1970 in seconds (or the given unit), plus an offset.",
    ),
    row(
        &["rand"],
        Fetch::Rand,
        &[A::Int],
        0,
        O::Int,
        Needs::NOTHING,
        "A random integer from 0 to below the given range, or of 32 bits.",
    ),
    row(&["src"], Fetch::Src, &[], 0, O::Ip, Needs::CLIENT, "The client's address."),
    row(&["src_port"], Fetch::SrcPort, &[], 0, O::Int, Needs::CLIENT, "The client's port."),
    row(&["dst"], Fetch::Dst, &[], 0, O::Ip, Needs::CLIENT, "The address that the client connected to."),
    row(&["dst_port"], Fetch::DstPort, &[], 0, O::Int, Needs::CLIENT, "The port that the client connected to."),
    row(&["fe_name"], Fetch::FeName, &[], 0, O::Str, Needs::CLIENT, "The frontend's name."),
    row(
        &["be_name"],
        Fetch::BeName,
        &[],
        0,
        O::Str,
        Needs::BACKEND,
        "The backend's name; before one is chosen the frontend's.",
    ),
    row(&["method"], Fetch::Method, &[], 0, O::Method, Needs::REQUEST_KEPT, "The request's method."),
    suffixed(&["path"], Fetch::Path, &[], 0, Needs::REQUEST, "The request's path, without its query string."),
    row(
        &["query"],
        Fetch::Query,
        &[],
        0,
        O::Str,
        Needs::REQUEST,
        "The request's query string, without the question mark.",
    ),
    suffixed(&["url"], Fetch::Url, &[], 0, Needs::REQUEST, "The request's target as it was sent."),
    row(
        &["req.ver", "req_ver"],
        Fetch::ReqVer,
        &[],
        0,
        O::Str,
        Needs::REQUEST_KEPT,
        "The request's version, e.g. 1.1.",
    ),
    suffixed(
        &["req.hdr", "hdr"],
        Fetch::ReqHdr,
        &[A::Str, A::Occurrence],
        0,
        Needs::REQUEST,
        "A request header's value: the last one, or the given occurrence; values are split at commas.",
    ),
    row(
        &["req.hdr_cnt", "hdr_cnt"],
        Fetch::ReqHdrCnt,
        &[A::Str],
        0,
        O::Int,
        Needs::REQUEST,
        "The number of a request header's values, split at commas.",
    ),
    row(
        &["req.fhdr"],
        Fetch::ReqFhdr,
        &[A::Str, A::Occurrence],
        0,
        O::Str,
        Needs::REQUEST,
        "A request header's whole value, commas included.",
    ),
    suffixed(&["req.cook", "cook"], Fetch::ReqCook, &[A::Str], 0, Needs::REQUEST, "A cookie that the client sent."),
    row(&["status"], Fetch::Status, &[], 0, O::Int, Needs::RESPONSE_KEPT, "The response's status."),
    suffixed(
        &["res.hdr", "shdr"],
        Fetch::ResHdr,
        &[A::Str, A::Occurrence],
        0,
        Needs::RESPONSE,
        "A response header's value: the last one, or the given occurrence; values are split at commas.",
    ),
    row(
        &["res.hdr_cnt", "shdr_cnt"],
        Fetch::ResHdrCnt,
        &[A::Str],
        0,
        O::Int,
        Needs::RESPONSE,
        "The number of a response header's values, split at commas.",
    ),
    row(
        &["res.fhdr"],
        Fetch::ResFhdr,
        &[A::Str, A::Occurrence],
        0,
        O::Str,
        Needs::RESPONSE,
        "A response header's whole value, commas included.",
    ),
    suffixed(&["res.cook", "scook"], Fetch::ResCook, &[A::Str], 0, Needs::RESPONSE, "A cookie that the server set."),
    row(
        &["lua.NAME"],
        Fetch::Lua,
        &[A::Str, A::Str, A::Str, A::Str, A::Str],
        0,
        O::Str,
        Needs::NOTHING,
        "What a script's function gives that core.register_fetches knows by this name. It may wait in rules, and nowhere else.",
    ),
];

/// The suffixes that HAProxy's ACL keywords have.
pub(crate) const SUFFIXES: &[&str] = &["beg", "dir", "dom", "end", "len", "reg", "sub"];

const fn row(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [ArgKind],
    required: usize,
    output: Output,
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { names, fetch, args, required, output, needs, suffixed: &[], docs }
}

/// A text fetch whose short name (the last) also exists as `name_beg`, `name_dir`… in ACLs.
const fn suffixed(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [ArgKind],
    required: usize,
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { names, fetch, args, required, output: Output::Str, needs, suffixed: SUFFIXES, docs }
}
