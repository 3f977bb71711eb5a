//! The statistics page of a proxy.

use std::sync::Arc;
use std::time::Duration;

use super::{Condition, Position};

/// What a request's target begins with that is for the page, where the file has no `stats uri`.
pub const STATS_URI: &str = "/haproxy?stats";

/// `stats …` of a proxy.
#[derive(Clone, Debug)]
pub struct StatsPage {
    /// `stats uri`: what a request's target begins with that is for the page.
    pub uri: String,
    /// `stats auth`: users with their passwords; nobody else sees the page if there is one.
    pub users: Vec<(String, String)>,
    /// `stats realm`.
    pub realm: Option<String>,
    /// `stats refresh`, whole seconds; `None`: browsers load it once.
    pub refresh: Option<Duration>,
    /// `stats admin`: who may change servers; without a line nobody.
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
    /// Where its first line stands.
    pub at: Position,
}

/// A line of `stats http-request`.
#[derive(Clone, Debug)]
pub struct StatsRule {
    /// What it does.
    pub access: StatsAccess,
    /// When.
    pub condition: Option<Condition>,
    /// Where it stands.
    pub at: Position,
}

/// Who may see the page.
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
    /// A page of which nothing is said but that it is there.
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
