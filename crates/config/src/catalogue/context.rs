//! The places where a keyword is allowed, as a bit set.

/// A set of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contexts(u32);

impl Contexts {
    /// `global`.
    pub const GLOBAL: Contexts = Contexts(1);
    /// `defaults`.
    pub const DEFAULTS: Contexts = Contexts(1 << 1);
    /// `frontend`.
    pub const FRONTEND: Contexts = Contexts(1 << 2);
    /// `backend`.
    pub const BACKEND: Contexts = Contexts(1 << 3);
    /// `listen`.
    pub const LISTEN: Contexts = Contexts(1 << 4);
    /// `store`.
    pub const STORE: Contexts = Contexts(1 << 5);
    /// `redis`.
    pub const REDIS: Contexts = Contexts(1 << 6);
    /// `origin`.
    pub const ORIGIN: Contexts = Contexts(1 << 7);
    /// Options behind a `bind` address.
    pub const BIND_OPTION: Contexts = Contexts(1 << 8);
    /// Options behind a `server` address.
    pub const SERVER_OPTION: Contexts = Contexts(1 << 9);
    /// Actions of `tcp-request connection`.
    pub const TCP_CONNECTION: Contexts = Contexts(1 << 10);
    /// Actions of `tcp-request content`.
    pub const TCP_REQUEST: Contexts = Contexts(1 << 11);
    /// Actions of `tcp-response content`.
    pub const TCP_RESPONSE: Contexts = Contexts(1 << 12);
    /// Actions of `http-request`.
    pub const HTTP_REQUEST: Contexts = Contexts(1 << 13);
    /// Actions of `http-response`.
    pub const HTTP_RESPONSE: Contexts = Contexts(1 << 14);
    /// Actions of `tcp-request session`.
    pub const TCP_SESSION: Contexts = Contexts(1 << 15);
    /// Actions of `http-after-response`.
    pub const HTTP_AFTER_RESPONSE: Contexts = Contexts(1 << 16);
    /// `userlist`.
    pub const USERLIST: Contexts = Contexts(1 << 17);
    /// `resolvers`.
    pub const RESOLVERS: Contexts = Contexts(1 << 18);
    /// `crt-store`.
    pub const CRT_STORE: Contexts = Contexts(1 << 19);
    /// `acme`.
    pub const ACME: Contexts = Contexts(1 << 20);
    /// `peers`.
    pub const PEERS: Contexts = Contexts(1 << 21);
    /// `fcgi-app`.
    pub const FCGI_APP: Contexts = Contexts(1 << 22);
    /// `traces`.
    pub const TRACES: Contexts = Contexts(1 << 23);
    /// `ring`.
    pub const RING: Contexts = Contexts(1 << 24);
    /// `log-forward`.
    pub const LOG_FORWARD: Contexts = Contexts(1 << 25);
    /// `log-profile`.
    pub const LOG_PROFILE: Contexts = Contexts(1 << 26);
    /// `mailers`.
    pub const MAILERS: Contexts = Contexts(1 << 27);
    /// `cache`.
    pub const CACHE: Contexts = Contexts(1 << 28);
    /// `program`.
    pub const PROGRAM: Contexts = Contexts(1 << 29);
    /// `namespace_list`.
    pub const NAMESPACE_LIST: Contexts = Contexts(1 << 30);
    /// `http-errors`.
    pub const HTTP_ERRORS: Contexts = Contexts(1 << 31);

    /// `defaults`, `frontend`, `listen`.
    pub const FRONT: Contexts = Contexts::DEFAULTS.or(Contexts::FRONTEND).or(Contexts::LISTEN);
    /// `defaults`, `backend`, `listen`.
    pub const BACK: Contexts = Contexts::DEFAULTS.or(Contexts::BACKEND).or(Contexts::LISTEN);
    /// `defaults`, `frontend`, `backend`, `listen`.
    pub const PROXY: Contexts = Contexts::FRONT.or(Contexts::BACK);

    /// Returns the union of both sets.
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Returns this set without another.
    pub const fn without(self, other: Contexts) -> Contexts {
        Contexts(self.0 & !other.0)
    }

    /// Returns whether the sets share a place.
    pub const fn intersects(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the names of the places, as sections and rule sets are called.
    pub fn section_names(self) -> Vec<&'static str> {
        const NAMES: [(Contexts, &str); 32] = [
            (Contexts::GLOBAL, "global"),
            (Contexts::DEFAULTS, "defaults"),
            (Contexts::FRONTEND, "frontend"),
            (Contexts::BACKEND, "backend"),
            (Contexts::LISTEN, "listen"),
            (Contexts::STORE, "store"),
            (Contexts::REDIS, "redis"),
            (Contexts::ORIGIN, "origin"),
            (Contexts::HTTP_ERRORS, "http-errors"),
            (Contexts::USERLIST, "userlist"),
            (Contexts::RESOLVERS, "resolvers"),
            (Contexts::CRT_STORE, "crt-store"),
            (Contexts::ACME, "acme"),
            (Contexts::PEERS, "peers"),
            (Contexts::LOG_PROFILE, "log-profile"),
            (Contexts::MAILERS, "mailers"),
            (Contexts::RING, "ring"),
            (Contexts::LOG_FORWARD, "log-forward"),
            (Contexts::CACHE, "cache"),
            (Contexts::FCGI_APP, "fcgi-app"),
            (Contexts::PROGRAM, "program"),
            (Contexts::NAMESPACE_LIST, "namespace_list"),
            (Contexts::TRACES, "traces"),
            (Contexts::BIND_OPTION, "bind"),
            (Contexts::SERVER_OPTION, "server"),
            (Contexts::TCP_CONNECTION, "tcp-request connection"),
            (Contexts::TCP_SESSION, "tcp-request session"),
            (Contexts::TCP_REQUEST, "tcp-request content"),
            (Contexts::TCP_RESPONSE, "tcp-response content"),
            (Contexts::HTTP_REQUEST, "http-request"),
            (Contexts::HTTP_RESPONSE, "http-response"),
            (Contexts::HTTP_AFTER_RESPONSE, "http-after-response"),
        ];
        NAMES.iter().filter(|(context, _)| self.intersects(*context)).map(|(_, name)| *name).collect()
    }
}
