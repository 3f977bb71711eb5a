//! Applications that are reached by FastCGI (HAProxy configuration manual 10).

use std::sync::Arc;

use sluicegate_pattern::Regex;

use super::{Condition, LogFormat, LogTarget, Position};

/// A `fcgi-app` section.
#[derive(Clone, Debug)]
pub struct FcgiApp {
    /// Its name.
    pub name: Arc<str>,
    /// `docroot`: the directory of the scripts on the application's host.
    pub docroot: Box<str>,
    /// `index`: the script of a path that ends with a slash.
    pub index: Option<Box<str>>,
    /// `path-info`: captures the name of the script and the path behind it.
    pub path_info: Option<Arc<Regex>>,
    /// `option keep-conn`: the application keeps connections open.
    pub keep_conn: bool,
    /// `option get-values`: it is asked for its values.
    pub get_values: bool,
    /// `option mpxs-conns`: a connection has several requests at a time.
    pub multiplexes: bool,
    /// `option max-reqs`: the requests that a connection has at a time.
    pub max_requests: u32,
    /// `set-param` and `pass-header` lines.
    pub rules: Vec<FcgiRule>,
    /// `log-stderr`: where the application's messages go.
    pub log: Vec<LogTarget>,
    /// `log-stderr global`.
    pub log_global: bool,
    /// Its position.
    pub at: Position,
}

/// A `set-param` or `pass-header` line.
#[derive(Clone, Debug)]
pub struct FcgiRule {
    /// Its effect.
    pub action: FcgiAction,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position.
    pub at: Position,
}

/// The effect of a rule of an application.
#[derive(Clone, Debug)]
pub enum FcgiAction {
    /// `set-param NAME FORMAT`. The name is in lower case, with `_` for all but letters and digits.
    SetParam(Box<str>, LogFormat),
    /// `pass-header NAME`, in lower case.
    PassHeader(Box<str>),
}
