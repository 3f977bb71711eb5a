//! The statistics page of a proxy.

use std::sync::Arc;
use std::time::Duration;

use super::{Condition, Position};

/// The default `stats uri`: the prefix of request targets for the page.
pub const STATS_URI: &str = "/haproxy?stats";

/// `stats …` of a proxy.
#[derive(Clone, Debug)]
pub struct StatsPage {
    /// `stats uri`: the prefix of request targets for the page.
    pub uri: String,
    /// `stats auth`: users with their passwords; if there is one, only these see the page.
    pub users: Vec<(String, String)>,
    /// `stats realm`.
    pub realm: Option<String>,
    /// `stats refresh`, whole seconds; `None`: browsers load it once.
    pub refresh: Option<Duration>,
    /// `stats admin`: the conditions for administering servers; never allowed without a line.
    pub admin: Vec<(Condition, Position)>,
    /// `stats http-request`, in order.
    pub access: Vec<StatsRule>,
    /// `stats hide-version`.
    pub hide_version: bool,
    /// `stats scope`: the proxies that are shown, `.` the page's own; empty: all.
    pub scope: Vec<String>,
    /// `stats show-desc`.
    pub description: Option<String>,
    /// `stats show-node`: the process's name, or its own.
    pub node: Option<Option<String>>,
    /// `stats show-legends`.
    pub legends: bool,
    /// `stats show-modules`.
    pub modules: bool,
    /// The position of its first line.
    pub at: Position,
}

/// A line of `stats http-request`.
#[derive(Clone, Debug)]
pub struct StatsRule {
    /// The access.
    pub access: StatsAccess,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position in the file.
    pub at: Position,
}

/// Access to the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsAccess {
    /// `allow`.
    Allow,
    /// `deny`.
    Deny,
    /// `auth [realm R]`: asks for a user and a password.
    Auth(Option<Arc<str>>),
}

impl StatsPage {
    /// Returns a page with default settings.
    pub fn new(at: Position) -> StatsPage {
        StatsPage {
            uri: STATS_URI.to_owned(),
            users: Vec::new(),
            realm: None,
            refresh: None,
            admin: Vec::new(),
            access: Vec::new(),
            hide_version: false,
            scope: Vec::new(),
            description: None,
            node: None,
            legends: false,
            modules: false,
            at,
        }
    }
}
