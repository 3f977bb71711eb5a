//! HAProxy's configuration language: bytes → words with positions → `.if` → typed [`model::Config`] plus *all*
//! diagnostics.
//!
//! A configuration is processed in phases; each needs the results of the previous one:
//!
//! 1. [`read`] opens the files, through [`Files`], so that a privileged parent may do it and tests need no disk.
//! 2. [`parse`] splits lines into words (quotes, escapes, variables), follows `.if`, and types the `global` section.
//!    Lines are processed in order, since `setenv` changes the value of `"${VAR}"` in the following lines.
//! 3. The caller runs the Lua bodies that [`Draft::global`] names; they register actions.
//! 4. [`Draft::finish`] types every other section with the names that Lua registered, resolves references and
//!    runs the checks that need the whole configuration.
//!
//! **Invariants.** No socket is opened and no clock read; names are resolved by [`Files`] alone. A [`Config`] is
//! returned only if there is no error, so no later code meets a half-built state. Every error of a run is reported,
//! each with its position.
//!
//! **Cost.** Time and memory are linear in the size of the files: names are looked up in hash maps, and lines are
//! typed once, however many proxies share a `defaults`.
//!
//! **Limits.** [`limits`] names them; exceeding one is an error that names the limit.

#![forbid(unsafe_code)]

mod address;
mod bytes;
pub mod catalogue;
mod check;
mod default_path;
mod diagnostic;
mod directive;
mod environment;
mod expression;
mod format;
mod fuzz;
pub mod limits;
mod migrate;
pub mod model;
mod names;
mod pattern;
mod position;
mod reference;
mod reverse;
mod section;
mod source;
mod suggest;
pub mod traces;
mod track;
mod unit;
mod word;

use std::sync::Arc;

use sluicegate_pattern::{Kind, PatternFile, PatternFiles};

pub use default_path::DefaultPaths;
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use directive::{FEATURES, condition};
pub use environment::Environment;
pub use expression::converter::{digest_name, script_arguments};
pub use fuzz::{fuzz_config, fuzz_expression, fuzz_format, fuzz_tls_files};
pub use migrate::{Migrated, MigrationNote, fuzz_migrate, migrate};
pub use model::Config;
pub use reference::{items, reference};
pub use section::{AddedLine, Draft, add_server, check_guid, master_socket, parse, preset};
pub use source::{MemoryFiles, Source, SourceFile, read, recorded_listing, recorded_name};
pub use suggest::nearest;
pub use word::expand_address;

/// Returns the name and version of the library behind certificates and keys.
pub fn tls_library() -> String {
    sluicegate_tls::library::name()
}

/// The HAProxy version whose language, semantics and defaults this crate follows; `version_atleast` compares it.
pub const BASELINE: (u32, u32, u32) = (3, 2, 0);

/// Access to files, so that tests need no disk and a check can read files of a privileged parent.
pub trait Files {
    /// Returns the bytes of one file.
    fn read(&self, path: &std::path::Path) -> std::io::Result<Vec<u8>>;
    /// Returns the files of a directory whose names end in `.cfg`, sorted as HAProxy does; an error if it is not a
    /// directory.
    fn list(&self, path: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>>;
    /// Returns the names of all regular files of a directory, sorted by their bytes; an error if it is no directory.
    fn names(&self, _path: &std::path::Path) -> std::io::Result<Vec<String>> {
        Err(std::io::ErrorKind::NotADirectory.into())
    }
    /// Returns the addresses of a host name in the resolver's order; an error if there is none.
    fn resolve(&self, _host: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
    /// Returns whether there is a directory of this name; files in memory need none.
    fn is_directory(&self, _path: &std::path::Path) -> bool {
        true
    }
    /// Returns whether a file can be opened; files in memory need none.
    fn opens(&self, _path: &std::path::Path) -> bool {
        true
    }
    /// Sets the position of the line that names the next files; it determines where relative paths start.
    fn stand_at(&self, _at: &model::Position) {}
}

/// The names registered by Lua, queried when rules are typed.
pub trait LuaNames {
    /// Returns the number of arguments that `core.register_action` declared for `name`, if it is registered for `hook`
    /// (`http-req`, `http-res`, `tcp-req`, `tcp-res`).
    fn action(&self, name: &str, hook: &str) -> Option<usize>;
    /// Returns all action names, for "did you mean".
    fn actions(&self) -> Vec<String>;
    /// Returns the names of `core.register_fetches`.
    fn fetches(&self) -> Vec<String> {
        Vec::new()
    }
    /// Returns the names of `core.register_converters`.
    fn converters(&self) -> Vec<String> {
        Vec::new()
    }
    /// Returns the names of `core.register_service` for `mode`, `http` or `tcp`.
    fn services(&self, _mode: &str) -> Vec<String> {
        Vec::new()
    }
    /// Returns the names of `core.register_filter`.
    fn filters(&self) -> Vec<String> {
        Vec::new()
    }
    /// Returns whether scripts send the alerts by mail (`core.disable_legacy_mailers`).
    fn sends_mail(&self) -> bool {
        false
    }
}

/// A host without Lua: every `lua.NAME` is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLua;

impl LuaNames for NoLua {
    fn action(&self, _name: &str, _hook: &str) -> Option<usize> {
        None
    }
    fn actions(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Reads a map or ACL file into a process's files, unless one of that name exists; then that one is shared. `opt@NAME`
/// may be missing and is empty then, `virt@NAME` is not a file, `file@NAME` equals `NAME`.
pub fn load_patterns(
    files: &dyn Files,
    patterns: &PatternFiles,
    name: &str,
    kind: Kind,
) -> Result<Arc<PatternFile>, String> {
    let name = name.strip_prefix("file@").unwrap_or(name);
    if let Some(known) = patterns.get(name) {
        if known.kind() != kind {
            let known = if known.kind() == Kind::Map { "a map" } else { "an acl" };
            return Err(format!("the file '{name}' is already used as {known}"));
        }
        return Ok(known);
    }
    let read = |path: &str| match files.read(path.as_ref()) {
        Ok(bytes) if bytes.len() <= limits::PATTERN_FILE_BYTES => Ok(bytes),
        Ok(_) => Err(format!("'{path}' is larger than 1 GiB")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && name.starts_with("opt@") => Ok(Vec::new()),
        Err(error) => Err(format!("failed to open pattern file '{path}': {error}")),
    };
    let bytes = match name.split_once('@') {
        Some(("virt", _)) => Vec::new(),
        Some(("opt", path)) => read(path)?,
        _ => read(name)?,
    };
    PatternFile::parse(name, kind, &bytes).map(|file| patterns.insert(file)).map_err(|error| error.to_string())
}

/// Checks a command of a rule as far as its words are known before it runs; `None` is a word that is computed. `true`:
/// it is for a store of this process, not for an engine elsewhere.
pub type CommandCheck = fn(bool, &[Option<&[u8]>]) -> Result<(), CommandProblem>;

/// The reason why a rule may not call a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandProblem {
    /// An engine in another process may take it all the same: it may have modules or be newer.
    pub is_local: bool,
    /// The message.
    pub message: String,
    /// The hint.
    pub hint: Option<String>,
}

/// Reads, parses and finishes in one go, for callers that run no Lua.
pub fn load(
    files: &dyn Files,
    paths: &[std::path::PathBuf],
    env: &mut Environment,
    lua: &dyn LuaNames,
) -> (Option<Config>, Diagnostics) {
    match read(files, paths) {
        Ok(source) => parse(source, files, env).finish(files, lua),
        Err(diagnostics) => (None, diagnostics),
    }
}
