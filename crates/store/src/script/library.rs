//! Libraries of functions loaded with FUNCTION LOAD, by name, and their functions, by names in any case.
//!
//! A library is its source. Each interpreter runs that before the first of its functions, so the source's local
//! variables belong to an interpreter, and functions that count in them count per interpreter. The functions registered
//! by a library are determined once, when it is loaded; readers see either all libraries of a load or none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::code::InTurn;
use super::source::Flags;
use crate::memory::{Memory, Outside};
use crate::words::split;

/// The maximum number of functions that one library may register.
pub(crate) const FUNCTIONS_MAX: usize = 10_000;

/// One library.
pub(crate) struct Library {
    /// Unique in the process: names it in an interpreter's cache.
    pub(crate) id: u64,
    pub(crate) name: Box<str>,
    /// The text as it was sent, with its first line.
    pub(crate) source: Box<[u8]>,
    pub(crate) functions: Vec<Function>,
}

/// A function of a library.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: Box<str>,
    pub(crate) description: Option<Box<[u8]>>,
    pub(crate) flags: Flags,
    pub(crate) in_turn: InTurn,
}

/// A library's name and source, before it is loaded.
pub(crate) struct Source {
    pub(crate) name: Box<str>,
    pub(crate) text: Box<[u8]>,
}

/// The action if a library of the same name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Nothing is loaded.
    Append,
    /// The new library replaces the old one.
    Replace,
    /// All libraries are removed, whatever their names.
    Flush,
}

/// Libraries that are to be loaded together.
pub(crate) struct Load {
    pub(crate) sources: Vec<Source>,
    pub(crate) policy: Policy,
    /// Whether they come from FUNCTION RESTORE, whose reply is OK, and not from FUNCTION LOAD, which replies the
    /// library's name.
    pub(crate) is_restored: bool,
}

impl Function {
    fn copy(&self) -> Function {
        let (name, description) = (self.name.clone(), self.description.clone());
        Function { name, description, flags: self.flags, in_turn: InTurn::default() }
    }
}

impl Source {
    /// Reads the first line of a library: `#!lua name=NAME`. The text of the error is Redis's.
    pub(crate) fn read(text: &[u8]) -> Result<Source, String> {
        let rest = text.strip_prefix(b"#!").ok_or("ERR Missing library metadata")?;
        let end = memchr::memchr(b'\n', rest).ok_or("ERR Invalid library metadata")?;
        let words = split(&text[..end + 2]).ok_or("ERR Invalid library metadata")?;
        let (first, options) = words.split_first().ok_or("ERR Invalid library metadata")?;
        let mut name = None;
        for option in options {
            let value = option.split_at_checked(5).filter(|(key, _)| key.eq_ignore_ascii_case(b"name="));
            let Some((_, value)) = value else {
                return Err(format!("ERR Invalid metadata value given: {}", String::from_utf8_lossy(option)));
            };
            if name.replace(value).is_some() {
                return Err("ERR Invalid metadata value, name argument was given multiple times".into());
            }
        }
        let name = name.ok_or("ERR Library name was not given")?;
        let name = checked_name(name).ok_or_else(|| format!("ERR {WRONG_NAME}"))?;
        let engine = first.get(2..).unwrap_or_default();
        if !engine.eq_ignore_ascii_case(b"lua") {
            return Err(format!("ERR Engine '{}' not found", String::from_utf8_lossy(engine)));
        }
        Ok(Source { name, text: text.into() })
    }
}

/// Redis's error for an invalid name of a library or a function.
pub(crate) const WRONG_NAME: &str =
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// Returns the name of a library or a function, if it is valid.
pub(crate) fn checked_name(name: &[u8]) -> Option<Box<str>> {
    let is_name = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_name.then(|| String::from_utf8_lossy(name).into())
}

/// All libraries of a store.
pub(crate) struct Libraries {
    state: RwLock<State>,
    memory: Arc<Memory>,
}

#[derive(Default)]
struct State {
    by_name: BTreeMap<Box<str>, Arc<Library>>,
    /// Functions by their names in lower case; of two that differ only in case, the one that was registered first.
    functions: HashMap<Box<str>, (Arc<Library>, usize), foldhash::fast::RandomState>,
    bytes: Outside,
}

impl State {
    fn remove(&mut self, name: &str) -> bool {
        let Some(library) = self.by_name.remove(name) else { return false };
        self.functions.retain(|_, (owner, _)| !Arc::ptr_eq(owner, &library));
        true
    }

    fn insert(&mut self, library: Arc<Library>) {
        for (place, function) in library.functions.iter().enumerate() {
            let name = function.name.to_ascii_lowercase().into();
            self.functions.entry(name).or_insert_with(|| (library.clone(), place));
        }
        self.by_name.insert(library.name.clone(), library);
    }

    /// Returns the memory of the libraries, in bytes.
    fn size(&self) -> usize {
        let of_function = |function: &Function| {
            let text = function.description.as_ref().map_or(0, |text| text.len());
            2 * function.name.len() + text + size_of::<Function>() + size_of::<(Box<str>, Arc<Library>, usize)>()
        };
        let of_library = |library: &Arc<Library>| {
            let functions: usize = library.functions.iter().map(of_function).sum();
            size_of::<Library>() + 2 * library.name.len() + library.source.len() + functions
        };
        self.by_name.values().map(of_library).sum()
    }
}

impl Libraries {
    pub(crate) fn new(memory: Arc<Memory>) -> Libraries {
        Libraries { state: RwLock::default(), memory }
    }

    /// Returns the function of this name, in any case: its library, and its place there.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        let name = std::str::from_utf8(name).ok()?;
        let state = self.state.read();
        match state.functions.get(name) {
            Some(found) => Some(found.clone()),
            None => state.functions.get(&*name.to_ascii_lowercase()).cloned(),
        }
    }

    /// Returns whether a library has this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.state.read().by_name.contains_key(name)
    }

    /// Adds libraries, all or none. The text of the error is Redis's.
    pub(crate) fn install(&self, load: &Load, libraries: Vec<Arc<Library>>) -> Result<(), String> {
        let mut state = self.state.write();
        let mut old = HashSet::new();
        if load.policy == Policy::Flush {
            old.extend(state.by_name.keys().cloned());
        }
        let mut functions: HashMap<String, &str> = HashMap::new();
        for library in &libraries {
            match load.policy {
                Policy::Append if state.by_name.contains_key(&library.name) => {
                    let quote = if load.is_restored { "" } else { "'" };
                    return Err(format!("ERR Library {quote}{}{quote} already exists", library.name));
                }
                _ => old.insert(library.name.clone()),
            };
        }
        for (library, function) in
            libraries.iter().flat_map(|library| library.functions.iter().map(move |function| (library, function)))
        {
            let name = function.name.to_ascii_lowercase();
            let is_taken = state.functions.get(&*name).is_some_and(|(library, _)| !old.contains(&library.name));
            // Within one library, names may differ in case alone.
            let other = functions.insert(name, &library.name).filter(|other| **other != *library.name);
            if is_taken || other.is_some() {
                return Err(format!("ERR Function {} already exists", function.name));
            }
        }
        for name in &old {
            state.remove(name);
        }
        libraries.into_iter().for_each(|library| state.insert(library));
        self.account(&mut state);
        Ok(())
    }

    fn account(&self, state: &mut State) {
        let size = state.size();
        state.bytes.set(&self.memory, size);
    }

    /// Removes a library. Returns false if it does not exist.
    pub(crate) fn remove(&self, name: &[u8]) -> bool {
        let mut state = self.state.write();
        let is_removed = std::str::from_utf8(name).is_ok_and(|name| state.remove(name));
        self.account(&mut state);
        is_removed
    }

    /// Removes all libraries.
    pub(crate) fn flush(&self) {
        // Dropped outside of the lock.
        let before = std::mem::take(&mut *self.state.write());
        drop(before);
    }

    /// Returns all libraries, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Library>> {
        self.state.read().by_name.values().cloned().collect()
    }

    /// Returns the number of libraries, the number of functions, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize, usize) {
        let state = self.state.read();
        let functions = state.by_name.values().map(|library| library.functions.len()).sum();
        (state.by_name.len(), functions, state.bytes.bytes())
    }
}

impl Library {
    /// Returns a library with the functions that it has registered; the second part of each is ignored.
    pub(crate) fn new<T>(source: &Source, registered: &[(Function, T)]) -> Arc<Library> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let functions = registered.iter().map(|(function, _)| function.copy()).collect();
        Arc::new(Library { id, name: source.name.clone(), source: source.text.clone(), functions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sources: &[&str], policy: Policy, is_restored: bool) -> Load {
        let sources = sources.iter().map(|name| source(name)).collect();
        Load { sources, policy, is_restored }
    }

    fn source(name: &str) -> Source {
        Source { name: name.into(), text: format!("#!lua name={name}\n").into_bytes().into() }
    }

    fn library(name: &str, functions: &[&str]) -> Arc<Library> {
        let function = |name: &&str| {
            let name = (*name).into();
            (Function { name, description: None, flags: Flags::NONE, in_turn: InTurn::default() }, ())
        };
        Library::new(&source(name), &functions.iter().map(function).collect::<Vec<_>>())
    }

    #[test]
    fn libraries_are_added_all_or_none() {
        let memory = Arc::new(Memory::new());
        let libraries = Libraries::new(memory.clone());
        let append = load(&[], Policy::Append, true);
        let check = |load: &Load, added: &[(&str, &[&str])], expected: Result<(), &str>, names: &[&str]| {
            let added = added.iter().map(|(name, functions)| library(name, functions)).collect();
            assert_eq!(libraries.install(load, added), expected.map_err(|text| format!("ERR {text}")));
            let found: Vec<String> = libraries.all().iter().map(|library| library.name.to_string()).collect();
            assert_eq!(found, names);
        };
        check(&append, &[("a", &["f"]), ("b", &["g", "G"])], Ok(()), &["a", "b"]);
        check(&append, &[("c", &["h"]), ("a", &["i"])], Err("Library a already exists"), &["a", "b"]);
        check(&append, &[("c", &["h"]), ("d", &["F"])], Err("Function F already exists"), &["a", "b"]);
        check(&append, &[("c", &["h"]), ("d", &["h"])], Err("Function h already exists"), &["a", "b"]);
        check(&load(&[], Policy::Append, false), &[("a", &["i"])], Err("Library 'a' already exists"), &["a", "b"]);
        check(&load(&[], Policy::Replace, true), &[("a", &["i"])], Ok(()), &["a", "b"]);
        assert!(libraries.find(b"f").is_none() && libraries.find(b"I").is_some());
        assert_eq!(
            libraries.find(b"G").map(|(library, place)| (library.name.to_string(), place)),
            Some(("b".into(), 0))
        );
        check(&load(&[], Policy::Replace, true), &[("a", &["g"])], Err("Function g already exists"), &["a", "b"]);
        check(&load(&[], Policy::Flush, true), &[("z", &["g"])], Ok(()), &["z"]);
        assert_eq!(libraries.size().0, 1);
        assert!(memory.outside() > 0);
        assert!(!libraries.remove(b"y") && libraries.remove(b"z"));
        assert_eq!((libraries.size(), memory.outside()), ((0, 0, 0), 0));
    }

    #[test]
    fn the_first_line_is_read_as_redis_does() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let found = Source::read(text.as_bytes()).map(|source| source.name.to_string());
            assert_eq!(found, expected.map(str::to_owned).map_err(|text| format!("ERR {text}")), "{text:?}");
        };
        check("#!lua name=a\nx", Ok("a"));
        check("#!LUA NAME=\"a_B9\" \nx", Ok("a_B9"));
        check("#!lua \"name=y\"\r\nx", Ok("y"));
        check("#!\"lua\" name=x\nx", Ok("x"));
        check("#!lua name=\"x\nx", Err("Invalid library metadata"));
        check("#!lua name=x", Err("Invalid library metadata"));
        check("x", Err("Missing library metadata"));
        check(" #!lua name=x\n", Err("Missing library metadata"));
        check("#!\n", Err("Library name was not given"));
        check("#! name=x\n", Err("Engine '' not found"));
        check("#!lua name=x flags=y\n", Err("Invalid metadata value given: flags=y"));
        check("#!lua name=x name=y\n", Err("Invalid metadata value, name argument was given multiple times"));
        check("#!lua name=x-y\n", Err(WRONG_NAME));
    }
}
