//! The keywords about scripts that depend on each other.

use std::path::PathBuf;

use super::Reading;
use crate::diagnostic::Severity;
use crate::model::{LUA_LIBRARIES, LuaLoad};
use crate::section::table;
use crate::suggest;
use crate::word::Line;

/// `tune.lua.bool-sample-conversion`.
pub(super) fn bool_conversion(r: &mut Reading<'_>, line: &Line) {
    const NAMES: [&str; 2] = ["normal", "pre-3.1-bug"];
    let Some(index) = NAMES.iter().position(|name| *name == line.text(1)) else {
        return r.one_of(line, 1, &NAMES);
    };
    if r.reader.global.lua_loads.is_empty() {
        r.reader.global.tune.lua_bool_as_integer = Some(index == 1);
        return;
    }
    let message = format!(
        "ignored as some Lua was loaded already. \"{}\" must be set before any \"lua-load\" or \
         \"lua-load-per-thread\" directive for it to be considered.",
        r.name
    );
    r.diagnostics.warning(line.at(0), message);
}

/// `lua-load`, `lua-load-per-thread`.
pub(super) fn lua_load(r: &mut Reading<'_>, line: &Line, per_thread: bool) {
    if r.reader.global.lua_loads.is_empty() && r.reader.global.tune.lua_bool_as_integer.is_none() {
        let message = "hlua: please set \"tune.lua.bool-sample-conversion\" tunable to either \"normal\" or \
                       \"pre-3.1-bug\" explicitly to avoid ambiguities. This must be set before any \"lua-load\" or \
                       \"lua-load-per-thread\" directive. Defaulting to \"pre-3.1-bug\".";
        r.diagnostics.add(Severity::Warning, None, message);
    }
    r.reader.global.lua_loads.push(LuaLoad {
        path: PathBuf::from(line.text(1)),
        directory: r.reader.global.default_paths.base(&line.at(0)),
        args: line.words[2..].iter().map(|w| w.text().to_owned()).collect(),
        per_thread,
        at: line.at(1),
    });
}

/// `tune.lua.openlibs`.
pub(super) fn openlibs(r: &mut Reading<'_>, line: &Line) {
    if !r.reader.global.lua_loads.is_empty() || !r.reader.global.lua_prepend_paths.is_empty() {
        let message =
            format!("'{}' must be set before any 'lua-load', 'lua-load-per-thread' or 'lua-prepend-path'", r.name);
        r.diagnostics.error(line.at(0), message);
        return;
    }
    let names: Vec<&str> = line.text(1).split(',').filter(|name| !name.is_empty()).collect();
    let mut open = 0;
    for name in &names {
        match LUA_LIBRARIES.iter().position(|known| known == name) {
            Some(at) => open |= 1 << at,
            None if *name == "all" => open = u8::MAX,
            None if *name == "none" => {}
            None => {
                let known: Vec<&str> = ["all", "none"].into_iter().chain(LUA_LIBRARIES).collect();
                let message =
                    format!("'{}': unknown library '{name}', expected one of {}", r.name, table::list(&known));
                r.diagnostics.error(line.at(1), message).did_you_mean(suggest::nearest(name, known.iter().copied()));
                return;
            }
        }
    }
    if names.is_empty() || (open != 0 && names.contains(&"none")) {
        let message = match names.is_empty() {
            true => format!("'{}' expects 'all', 'none' or libraries, separated by commas", r.name),
            false => format!("'{}': 'none' cannot be combined with other libraries", r.name),
        };
        r.diagnostics.error(line.at(1), message);
        return;
    }
    r.reader.global.tune.lua_libraries = open;
}
