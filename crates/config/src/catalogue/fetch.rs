//! Sample fetches (HAProxy configuration manual 7.3).

use std::collections::HashMap;
use std::sync::OnceLock;

use super::counter::{counter_rows, numbered_element};
pub use super::fetch_rows::Fetch;
use super::fetch_rows::{KEYS, ROWS};
use super::{ArgKind, Output};

impl Fetch {
    /// Returns the fetch by the name that scripts call it by, such as `req_hdr` for `req.hdr`.
    pub fn named_in_scripts(name: &str) -> Option<Fetch> {
        FetchRow::named_in_scripts(name)
    }

    /// Returns its name in the manual.
    pub fn name(self) -> &'static str {
        FetchRow::of(self).names[0]
    }

    /// Returns whether it reads from the connection to the server a value that is stored nowhere else.
    pub fn asks_server_connection(self) -> bool {
        matches!(
            self,
            Fetch::BcSrc
                | Fetch::BcSrcPort
                | Fetch::BcDst
                | Fetch::BcDstPort
                | Fetch::BcReused
                | Fetch::BcHttpMajor
                | Fetch::BcErr
                | Fetch::BcErrStr
                | Fetch::BcErrName
                | Fetch::BcRtt
                | Fetch::BcRttvar
                | Fetch::BsDebugStr
        )
    }
}

/// Returns the name of a fetch or converter as scripts write it.
pub(super) fn script_name(name: &str) -> String {
    name.replace(['.', '-', '+'], "_")
}

/// The sources of a fetch: any one of these that a [`Place`] has is enough. They are HAProxy's classes of sources;
/// `haproxy -dKsmp` lists the places of each fetch, and a test compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs(u16);

impl Needs {
    /// Nothing: constants, the clock, variables.
    pub(crate) const NOTHING: Needs = Needs(0);
    /// The client's connection and the frontend.
    pub(crate) const CLIENT: Needs = Needs(1);
    /// The client's connection once its handshakes are over.
    pub(crate) const SESSION: Needs = Needs(1 << 1);
    /// The request's bytes received so far.
    pub(crate) const REQUEST_DATA: Needs = Needs(1 << 2);
    /// The request's head, which is unavailable once forwarded.
    pub(crate) const REQUEST: Needs = Needs(1 << 3);
    /// The data of the request that is kept while its response is processed.
    pub(crate) const REQUEST_KEPT: Needs = Needs(1 << 4);
    /// The part of an HTTP request's body received so far.
    pub(crate) const REQUEST_BODY: Needs = Needs(1 << 5);
    /// The backend.
    pub(crate) const BACKEND: Needs = Needs(1 << 6);
    /// The connection to the server.
    pub(crate) const SERVER: Needs = Needs(1 << 7);
    /// The response's bytes received so far.
    pub(crate) const RESPONSE_DATA: Needs = Needs(1 << 8);
    /// The response's head.
    pub(crate) const RESPONSE: Needs = Needs(1 << 9);
    /// The data of the response that is kept once it is being forwarded.
    pub(crate) const RESPONSE_KEPT: Needs = Needs(1 << 10);
    /// The part of an HTTP response's body received so far.
    pub(crate) const RESPONSE_BODY: Needs = Needs(1 << 11);
    /// Data that exists at the end of the transaction: log lines can read it, rules cannot.
    pub(crate) const END: Needs = Needs(1 << 12);

    /// Returns the union of two sets of sources.
    pub(crate) const fn or(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }

    /// Returns whether a place with the sources `has` can evaluate the fetch.
    pub(crate) fn met_by(self, has: Needs) -> bool {
        self == Needs::NOTHING || self.0 & has.0 != 0
    }

    /// Returns whether it reads only data of the request, which are gone in `place` because that processes the
    /// response.
    pub(crate) fn is_gone_in(self, place: Place) -> bool {
        let request = Needs::REQUEST.or(Needs::REQUEST_DATA).or(Needs::REQUEST_BODY);
        self != Needs::NOTHING && place.is_response() && self.0 & !request.0 == 0
    }

    /// Returns whether it reads bytes, whatever their protocol.
    pub(crate) fn is_data(self) -> bool {
        self.met_by(Needs::REQUEST_DATA.or(Needs::RESPONSE_DATA)) && self != Needs::NOTHING
    }

    /// Returns its sources, as HAProxy names them in its warnings.
    pub(crate) fn name(self) -> String {
        const NAMES: [(Needs, &str); 13] = [
            (Needs::CLIENT, "client connection"),
            (Needs::SESSION, "client-side connection"),
            (Needs::REQUEST_DATA, "request contents"),
            (Needs::REQUEST, "HTTP request headers"),
            (Needs::REQUEST_KEPT, "HTTP request"),
            (Needs::REQUEST_BODY, "HTTP request body"),
            (Needs::BACKEND, "backend"),
            (Needs::SERVER, "server connection"),
            (Needs::RESPONSE_DATA, "response contents"),
            (Needs::RESPONSE, "HTTP response headers"),
            (Needs::RESPONSE_KEPT, "HTTP response"),
            (Needs::RESPONSE_BODY, "HTTP response body"),
            (Needs::END, "the end of the transaction"),
        ];
        let names: Vec<&str> = NAMES.iter().filter(|(part, _)| self.0 & part.0 != 0).map(|(_, name)| *name).collect();
        names.join(" or ")
    }

    /// Returns the names of the rule sets that can evaluate it, in a section with both sides.
    pub(crate) fn places(self) -> Vec<&'static str> {
        Place::ALL.iter().filter(|p| self.met_by(p.has(Sides::BOTH))).map(|p| p.name()).collect()
    }
}

/// The sides of the section that an expression stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    /// Whether it knows its backend: a `backend`, a `listen`, or a `defaults` that either may use.
    pub(crate) back: bool,
}

impl Default for Sides {
    fn default() -> Sides {
        Sides::BOTH
    }
}

impl Sides {
    /// A `frontend`.
    pub(crate) const FRONT: Sides = Sides { back: false };
    /// Any other section.
    pub(crate) const BOTH: Sides = Sides { back: true };
}

/// A place in which an expression is evaluated, with its sources, and whether it may wait for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `tcp-request connection`.
    TcpConnection,
    /// `tcp-request session`.
    TcpSession,
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
    /// `http-after-response`.
    HttpAfterResponse,
    /// `unique-id-format`.
    UniqueId,
    /// `balance hash`.
    Balance,
    /// `log-format` and the other log lines: the data left when a stream has ended.
    Log,
    /// `tcp-check` and `http-check`.
    Check,
    /// `set-var` of `global`: no source is available yet.
    Start,
    /// An `acl` line: the place where the ACL is used decides.
    Declared,
}

impl Place {
    const ALL: [Place; 13] = [
        Place::TcpConnection,
        Place::TcpSession,
        Place::TcpRequest,
        Place::HttpRequest,
        Place::UseBackend,
        Place::TcpResponse,
        Place::HttpResponse,
        Place::HttpAfterResponse,
        Place::UniqueId,
        Place::Balance,
        Place::Log,
        Place::Check,
        Place::Start,
    ];

    /// Returns the sources of this place, in a section with these sides. Rules of a `frontend` that process a response
    /// can read its backend.
    pub(crate) fn has(self, sides: Sides) -> Needs {
        let kept = Needs::CLIENT.or(Needs::SESSION).or(Needs::REQUEST_KEPT);
        let request = kept.or(Needs::REQUEST).or(Needs::REQUEST_DATA).or(Needs::REQUEST_BODY);
        let answered = kept.or(Needs::BACKEND).or(Needs::SERVER).or(Needs::RESPONSE_KEPT);
        match self {
            Place::TcpConnection => Needs::CLIENT,
            Place::Balance => request.or(Needs::BACKEND),
            Place::TcpSession => Needs::CLIENT.or(Needs::SESSION),
            Place::TcpRequest | Place::HttpRequest | Place::UniqueId if sides.back => request.or(Needs::BACKEND),
            Place::TcpRequest | Place::HttpRequest | Place::UniqueId | Place::UseBackend => request,
            Place::TcpResponse | Place::HttpResponse | Place::HttpAfterResponse => {
                answered.or(Needs::RESPONSE).or(Needs::RESPONSE_DATA).or(Needs::RESPONSE_BODY)
            }
            Place::Log => answered.or(Needs::END),
            // There is neither a client nor a request.
            Place::Check => Needs::BACKEND
                .or(Needs::SERVER)
                .or(Needs::RESPONSE)
                .or(Needs::RESPONSE_KEPT)
                .or(Needs::RESPONSE_DATA)
                .or(Needs::RESPONSE_BODY),
            Place::Start => Needs(0),
            Place::Declared => Needs(u16::MAX),
        }
    }

    /// Returns whether an evaluation may wait.
    pub(crate) fn may_wait(self) -> bool {
        !matches!(
            self,
            Place::TcpConnection
                | Place::TcpSession
                | Place::UniqueId
                | Place::Balance
                | Place::Log
                | Place::Check
                | Place::Start
        )
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::TcpConnection => "tcp-request connection",
            Place::TcpSession => "tcp-request session",
            Place::TcpRequest => "tcp-request content",
            Place::HttpRequest => "http-request",
            Place::UseBackend => "use_backend",
            Place::TcpResponse => "tcp-response content",
            Place::HttpResponse => "http-response",
            Place::HttpAfterResponse => "http-after-response",
            Place::UniqueId => "unique-id-format",
            Place::Balance => "balance hash",
            Place::Log => "log-format",
            Place::Check => "health check",
            Place::Start => "set-var of global",
            Place::Declared => "acl",
        }
    }

    /// Returns its name, with the section's side where that matters.
    pub(crate) fn name_in(self, sides: Sides) -> String {
        let name = self.name();
        if self.has(sides) == self.has(Sides::BOTH) { name.to_owned() } else { format!("frontend {name}") }
    }

    /// Returns whether the place has only a response.
    pub(crate) fn is_response(self) -> bool {
        matches!(self, Place::TcpResponse | Place::HttpResponse | Place::HttpAfterResponse | Place::Check)
    }
}

/// A fetch's row.
#[derive(Clone, Copy)]
pub(crate) struct FetchRow {
    /// Its names; the first one is the manual's.
    pub(crate) names: &'static [&'static str],
    pub(crate) fetch: Fetch,
    pub(crate) args: &'static [ArgKind],
    /// The number of required arguments.
    pub(crate) required: usize,
    pub(crate) output: Output,
    pub(crate) needs: Needs,
    /// ACL keywords such as `path_beg`: the name with a suffix that stands for `-m`.
    pub(crate) suffixed: &'static [&'static str],
    /// Patterns are versions, such as 3.1.
    pub(crate) dotted: bool,
    pub(crate) docs: &'static str,
}

impl FetchRow {
    pub(crate) fn all() -> &'static [FetchRow] {
        static ALL: OnceLock<Vec<FetchRow>> = OnceLock::new();
        ALL.get_or_init(|| {
            let mut rows = [ROWS, KEYS].concat();
            counter_rows(&mut rows);
            rows.push(numbered_element());
            rows
        })
    }

    /// Returns the row of a name or alias. `hdr` and `payload` refer to the response in places that have only that,
    /// except as ACL keywords, which refer to the request.
    pub(crate) fn find(name: &str, place: Place, acl: bool) -> Option<&'static FetchRow> {
        static INDEX: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
        let index = INDEX.get_or_init(|| {
            let names = |(i, row): (usize, &FetchRow)| row.names.iter().map(move |n| (*n, i)).collect::<Vec<_>>();
            FetchRow::all().iter().enumerate().flat_map(names).collect()
        });
        let name = match name {
            "cookie" if place.is_response() => "res.cook",
            "hdr" if place.is_response() && !acl => "res.hdr",
            "payload" if place.is_response() && !acl => "res.payload",
            "payload_lv" if place.is_response() && !acl => "res.payload_lv",
            name => name,
        };
        index.get(name).map(|i| &FetchRow::all()[*i])
    }

    /// Returns the fetch by a script's name: the catalogue's with `.`, `-` and `+` turned into `_`.
    fn named_in_scripts(name: &str) -> Option<Fetch> {
        static INDEX: OnceLock<HashMap<String, Fetch>> = OnceLock::new();
        let index = INDEX.get_or_init(|| {
            let names = |row: &'static FetchRow| row.names.iter().map(|name| (script_name(name), row.fetch));
            FetchRow::all().iter().filter(|row| row.fetch != Fetch::Lua).flat_map(names).collect()
        });
        index.get(name).copied()
    }

    /// Returns the row of a fetch.
    pub(crate) fn of(fetch: Fetch) -> &'static FetchRow {
        static INDEX: OnceLock<HashMap<Fetch, usize>> = OnceLock::new();
        let index = INDEX.get_or_init(|| FetchRow::all().iter().enumerate().map(|(at, row)| (row.fetch, at)).collect());
        index.get(&fetch).map(|at| &FetchRow::all()[*at]).expect("every fetch has a row, which a test asserts")
    }
}
