//! Persistence: settings that return a client to the server that it used before.

use std::sync::Arc;
use std::time::Duration;

use super::{Condition, Expr, LogFormat, Position};

/// `cookie NAME …`: a cookie that names a client's server.
#[derive(Clone, Debug)]
pub struct PersistenceCookie {
    /// Its name.
    pub name: Arc<str>,
    /// Its delivery to the client; `None`: the server sets it, and it is not changed.
    pub mode: Option<CookieMode>,
    /// Servers don't see it, and a client that has it doesn't get it again.
    pub indirect: bool,
    /// Adding the cookie makes a cacheable response private.
    pub nocache: bool,
    /// Whether it is only added to responses to POST.
    pub postonly: bool,
    /// Whether a cookie that the server sets itself is left unchanged.
    pub preserve: bool,
    /// `httponly`, `secure`, `domain` and `attr`, as they are written after its value.
    pub suffix: String,
    /// The maximum time between two uses.
    pub maxidle: Option<Duration>,
    /// Its lifetime.
    pub maxlife: Option<Duration>,
    /// Servers without a `cookie` get a value made of their address.
    pub dynamic: bool,
}

/// The delivery of a persistence cookie to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieMode {
    /// The value that the server sets is replaced.
    Rewrite,
    /// The cookie is added.
    Insert,
    /// The server's name is put before the value of an application's cookie.
    Prefix,
}

/// `force-persist`, `ignore-persist`.
#[derive(Clone, Debug)]
pub struct PersistRule {
    /// Whether a server is used even if it is down; otherwise cookies are ignored.
    pub force: bool,
    /// Its condition.
    pub condition: Option<Condition>,
}

/// `use-server NAME|FORMAT [if …]`.
#[derive(Clone, Debug)]
pub struct UseServer {
    /// The server.
    pub server: ServerChoice,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position in the file.
    pub at: Position,
}

/// A server by its name, or by one that is computed per request.
#[derive(Clone, Debug)]
pub enum ServerChoice {
    /// A fixed name, which is resolved when the whole configuration is checked.
    Named(Arc<str>),
    /// A log-format; an unknown result ends the rules, a server that is down falls through to the next one.
    Computed(LogFormat),
}

/// `stick on|match|store-request|store-response KEY [table T] [if …]`.
#[derive(Clone, Debug)]
pub struct StickRule {
    /// Whether a server is looked up.
    pub matches: bool,
    /// Whether the server is stored.
    pub stores: bool,
    /// Whether the key is taken from the response.
    pub response: bool,
    /// The key.
    pub key: Expr,
    /// The table.
    pub table: Arc<str>,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position in the file.
    pub at: Position,
}
