//! The names that expressions may refer to.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sluicegate_pattern::{Kind, PatternFile, PatternFiles};

use super::{Problem, condition};
use crate::catalogue::{ArgKind, Sides};
use crate::model::{Arg, OnError, Position, Ring, TableKey};
use crate::{CommandCheck, CommandProblem, Files, Severity, load_patterns, suggest};

/// The names that expressions may refer to.
#[derive(Default)]
pub(crate) struct StoreNames<'f> {
    /// Stores and engines.
    pub(crate) stores: HashSet<Arc<str>>,
    /// The embedded ones among them, in the order of the file.
    pub(crate) embedded: Vec<Arc<str>>,
    /// The result of a failed call of an engine without its own `on-error`.
    pub(crate) on_error: HashMap<Arc<str>, OnError>,
    /// Map and ACL files that were read already.
    pub(crate) patterns: Arc<PatternFiles>,
    /// Looks at the commands that rules call.
    pub(crate) commands: Option<CommandCheck>,
    /// Access to other files; none in tests of words.
    pub(crate) files: Option<&'f dyn Files>,
    /// Whether any name is a store's: a script's arguments, which are looked up when they are used.
    pub(crate) any_store: bool,
    /// Notices about valid expressions.
    pub(crate) notices: RefCell<Vec<(Position, String)>>,
    /// The servers that expressions name, by their backends.
    pub(crate) named_servers: RefCell<HashMap<Arc<str>, HashSet<String>>>,
    /// The names registered by scripts.
    pub(crate) lua: LuaSamples,
    /// Sections with a frontend side.
    pub(crate) frontends: HashSet<Arc<str>>,
    /// Sections with a backend side, with the names of their servers.
    pub(crate) backends: HashMap<Arc<str>, HashSet<String>>,
    /// The section that is being read; `None` in a `defaults`, whose users are not known yet.
    pub(crate) section: RefCell<Option<Arc<str>>>,
    /// The sides that this section has.
    pub(crate) sides: Cell<Sides>,
    /// Stick tables by name, with what their keys are.
    pub(crate) tables: HashMap<Arc<str>, TableKey>,
    /// Counters that a stream may track, and a session as many.
    pub(crate) counters: usize,
    /// Bytes that are kept of a cookie for the log.
    pub(crate) cookie: usize,
    /// User lists.
    pub(crate) user_lists: HashSet<Arc<str>>,
    /// `cache` sections.
    pub(crate) caches: HashSet<Arc<str>>,
    /// `ring` sections.
    pub(crate) rings: HashSet<Arc<str>>,
    /// `resolvers` sections.
    pub(crate) resolvers: HashSet<Arc<str>>,
    /// The ACLs that the section has declared so far, for the expressions that name them.
    pub(crate) acls: RefCell<HashMap<Arc<str>, condition::DeclaredAcl>>,
    /// The environment, for `env`.
    pub(crate) environment: HashMap<String, String>,
}

/// The fetches and converters that scripts registered.
#[derive(Debug, Default)]
pub(crate) struct LuaSamples {
    pub(crate) fetches: Vec<String>,
    pub(crate) converters: Vec<String>,
    /// Whether a script could not be loaded, which was reported: any name may have been its own.
    pub(crate) failed: bool,
}

impl LuaSamples {
    /// Returns the argument that names the function of `word`, which is `lua.NAME`.
    pub(super) fn find(&self, word: &str, names: &[String], what: &str, offset: usize) -> Result<Arg, Problem> {
        let name = word.strip_prefix("lua.").unwrap_or(word);
        if self.failed || names.iter().any(|known| known == name) {
            return Ok(Arg::Str(name.into()));
        }
        let hint = match suggest::nearest(name, names.iter().map(String::as_str)) {
            Some(near) => Some(format!("did you mean 'lua.{near}'?")),
            None if names.is_empty() => Some(format!("a script registers it with core.register_{what}s")),
            None => None,
        };
        let what = what.replace("fetche", "sample fetch");
        Err(Problem::new(offset, format!("the Lua {what} '{name}' is not registered")).hint(hint))
    }
}

impl StoreNames<'_> {
    /// Reads a map or ACL file, unless it is known already.
    pub(crate) fn load(&self, name: &str, kind: Kind) -> Result<Arc<PatternFile>, String> {
        match self.files {
            Some(files) => load_patterns(files, &self.patterns, name, kind),
            None => Err(format!("failed to open pattern file '{name}': no files are at hand")),
        }
    }

    /// Checks that a store can be called.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<str>, (String, Option<String>)> {
        if self.any_store {
            return Ok(name.into());
        }
        if let Some(store) = self.stores.get(name) {
            return Ok(store.clone());
        }
        let near =
            suggest::nearest(name, self.stores.iter().map(|s| &**s)).map(|near| format!("did you mean '{near}'?"));
        Err((format!("no such store: '{name}'"), near.or_else(|| Some(format!("declare it: 'store {name}'")))))
    }
}

impl StoreNames<'_> {
    /// Checks a command for a store or an engine; an error has its severity.
    pub(crate) fn command(&self, store: &str, words: &[Option<&[u8]>]) -> Result<(), (Severity, CommandProblem)> {
        let Some(check) = self.commands else { return Ok(()) };
        let own = self.embedded.iter().any(|name| **name == *store);
        check(own, words).map_err(|problem| {
            let severity = if own || !problem.is_local { Severity::Error } else { Severity::Warning };
            (severity, problem)
        })
    }

    /// Checks that a user list of this name exists.
    pub(super) fn find_users(&self, name: &str) -> Result<(), (String, Option<String>)> {
        if self.user_lists.contains(name) || self.any_store {
            return Ok(());
        }
        let near = suggest::nearest(name, self.user_lists.iter().map(|known| &**known));
        Err((format!("unable to find userlist '{name}'"), near.map(|near| format!("did you mean '{near}'?"))))
    }

    /// Checks that a ring or an output of this name exists.
    pub(crate) fn find_sink(&self, name: &str) -> Result<(), String> {
        if self.any_store || Ring::BUILT_IN.contains(&name) || self.rings.contains(name) {
            return Ok(());
        }
        let near = suggest::nearest(name, self.rings.iter().map(|known| &**known).chain(Ring::BUILT_IN));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
        Err(format!("sink '{name}' doesn't exist{hint}"))
    }

    /// Checks that a stick table exists; an empty name is that of the section.
    pub(crate) fn find_table(&self, name: &str) -> Result<(Arc<str>, TableKey), (String, Option<String>)> {
        if self.any_store {
            return Ok((name.into(), TableKey::Ip));
        }
        let own = self.section.borrow();
        let wanted = match (name, &*own) {
            ("", Some(own)) => own,
            ("", None) => return Err(("a table must be named here".to_owned(), None)),
            _ => name,
        };
        if let Some((name, key)) = self.tables.get_key_value(wanted) {
            return Ok((name.clone(), *key));
        }
        let near = suggest::nearest(wanted, self.tables.keys().map(|name| &**name));
        let hint = near.map(|near| format!("did you mean '{near}'?"));
        Err((
            format!("unable to find table '{wanted}'"),
            hint.or_else(|| Some("give the section a 'stick-table'".into())),
        ))
    }

    /// Checks that a frontend, backend or server exists; an empty name is the section that it stands in.
    pub(super) fn find_proxy(&self, kind: ArgKind, name: &str) -> Result<(), (String, Option<String>)> {
        let near = |names: &mut dyn Iterator<Item = &str>| {
            suggest::nearest(name, names).map(|near| format!("did you mean '{near}'?"))
        };
        let section = self.section.borrow();
        let missing = |what: &str, hint| Err((format!("unable to find {what} '{name}'"), hint));
        match kind {
            ArgKind::Frontend => match (name, &*section) {
                ("", None) => Ok(()),
                ("", Some(own)) if self.frontends.contains(own) => Ok(()),
                ("", Some(own)) => Err((format!("'{own}' has no frontend side: name one"), None)),
                _ if self.frontends.contains(name) => Ok(()),
                _ => missing("frontend", near(&mut self.frontends.iter().map(|name| &**name))),
            },
            ArgKind::Backend => match (name, &*section) {
                ("", None) => Ok(()),
                ("", Some(own)) if self.backends.contains_key(own) => Ok(()),
                ("", Some(own)) => Err((format!("'{own}' has no backend side: name one"), None)),
                _ if self.backends.contains_key(name) => Ok(()),
                _ => missing("backend", near(&mut self.backends.keys().map(|name| &**name))),
            },
            _ => {
                let (backend, server) = match name.split_once('/') {
                    Some((backend, server)) => (backend, server),
                    None => match &*section {
                        None => {
                            let hint = format!("write 'BACKEND/{name}'");
                            return Err(("the backend must be named here".into(), Some(hint)));
                        }
                        Some(own) => (&**own, name),
                    },
                };
                match self.backends.get(backend) {
                    None => Err((format!("unable to find backend '{backend}' of server '{name}'"), None)),
                    Some(servers) if servers.contains(server) => {
                        let mut named = self.named_servers.borrow_mut();
                        named.entry(backend.into()).or_default().insert(server.to_owned());
                        Ok(())
                    }
                    Some(servers) => {
                        let near = suggest::nearest(server, servers.iter().map(String::as_str));
                        let hint = near.map(|near| format!("did you mean '{near}'?"));
                        Err((format!("unable to find server '{server}' in backend '{backend}'"), hint))
                    }
                }
            }
        }
    }
}
