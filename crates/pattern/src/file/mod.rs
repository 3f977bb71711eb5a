//! Map and ACL files (HAProxy configuration manual 7.1.2 and 7.3.1, management guide 9.3): one object per file, shared
//! by all references to it.
//!
//! A [`PatternFile`] holds its entries in the file's order and an index for each way in which some ACL or converter
//! matches them, so `map_str(f)` and `map_beg(f)` share the text. The stats socket, Lua and rules change it while it
//! is used: a change updates every index, or none if an index or a typed value rejects it.
//!
//! **Order.** Of several entries with the same key the first is used, as in HAProxy; longest prefixes win for beg
//! and ip, the file's order decides for the others.
//!
//! **Locks.** A read-write lock per file, held for one lookup (shared) or one change. Nothing else is locked under it,
//! and the callback of [`PatternFile::lookup`] must not access the same file.
//!
//! **Cost.** 12 bytes and its text per entry, and 5 to 9 bytes per entry and index. A change is O(1) amortized;
//! one that removes an entry while others with the same key are shadowed rebuilds the index. Garbage beyond half of the
//! file is compacted, which takes as long as loading did.
//!
//! Measured on two cores of a 2026 VM, 1,000,000 keys of 30 bytes, release build: str and beg load in 0.2 s,
//! 61 bytes per entry with its text (haproxy 2.6: 0.6 s, 345 bytes); a million networks 0.2 s and 45 bytes (1.5 s,
//! 302).
//!
//! **Limits.** [`TEXT_LIMIT`] bytes of text per file; a change that would exceed it is rejected.

mod content;
mod index;
mod version;
mod watch;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::{Captures, Key, Method};
use content::{Content, EntryId};
use index::Index;
use version::Versions;
pub use version::{VersionError, VersionNumbers};
use watch::Watchers;
pub use watch::{Change, Watcher};

/// Bytes of keys and values that one file may hold.
pub const TEXT_LIMIT: usize = 1 << 30;
/// Entries that one file may hold, removed ones that are not yet compacted included.
const ENTRIES_LIMIT: usize = 1 << 28;

/// The format of a file's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pattern per line.
    Acl,
    /// A key and a value per line.
    Map,
}

/// The type that a map's values must have for some of its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Any text.
    Str,
    /// An integer.
    Int,
    /// An address.
    Ip,
}

impl ValueType {
    /// Returns a value as an integer.
    pub fn integer(value: &[u8]) -> Option<i64> {
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// Returns a value as an address.
    pub fn address(value: &[u8]) -> Option<IpAddr> {
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    fn check(self, value: &[u8]) -> Result<(), EditError> {
        let good = match self {
            ValueType::Str => true,
            ValueType::Int => ValueType::integer(value).is_some(),
            ValueType::Ip => ValueType::address(value).is_some(),
        };
        let what = if self == ValueType::Int { "an integer" } else { "an address" };
        if good { Ok(()) } else { Err(EditError(format!("'{}' is not {what}", String::from_utf8_lossy(value)))) }
    }
}

/// The reason why a file's line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at line {line} of file '{file}'")]
pub struct LoadError {
    /// The file.
    pub file: Arc<str>,
    /// From 1; for entries added at run time, the number of the entry.
    pub line: usize,
    /// The error message.
    pub message: String,
}

/// The reason why a change was refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EditError(pub String);

/// A way of matching a file; see [`PatternFile::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexId(usize);

/// The entry that a lookup found.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// Its key as it stands in the file.
    pub key: &'a [u8],
    /// Its value; empty in an ACL.
    pub value: &'a [u8],
    /// The groups of a regular expression, by [`PatternFile::lookup_groups`].
    captures: Option<(&'a Captures, &'a [u8])>,
}

impl Hit<'_> {
    /// The value with `\1`, `\2`… replaced by the groups of the match (`map_regm`), else the value.
    pub fn expand(&self, out: &mut Vec<u8>) {
        match self.captures {
            Some((captures, text)) => crate::regular::append_template(self.value, text, captures, out),
            None => out.extend_from_slice(self.value),
        }
    }
}

/// A map or ACL file.
pub struct PatternFile {
    name: Arc<str>,
    kind: Kind,
    /// The number that the configuration gives it; others have one by their order.
    number: Option<u32>,
    /// A hash of the bytes that it was read from.
    origin: u64,
    state: RwLock<State>,
    watchers: Watchers,
}

#[derive(Default)]
struct State {
    content: Content,
    /// Whether the groups of expressions have numbers: the values of a map may name them.
    grouped: bool,
    /// The line of each entry, while the file is loaded.
    lines: Vec<u32>,
    indexes: Vec<Index>,
    /// The index that only changes by key asked for.
    own: Option<usize>,
    values: Vec<ValueType>,
    versions: Versions,
}

impl PatternFile {
    /// Reads a file's bytes. Lines that are empty or begin with `#` are skipped; blanks around keys and values too.
    pub fn parse(name: &str, kind: Kind, bytes: &[u8]) -> Result<PatternFile, LoadError> {
        let name: Arc<str> = name.into();
        let origin = {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        let mut state = State { grouped: kind == Kind::Map, ..State::default() };
        let lines = memchr::memchr_iter(b'\n', bytes).count() + 1;
        if bytes.len() > TEXT_LIMIT || lines > ENTRIES_LIMIT {
            return Err(LoadError { file: name, line: lines, message: "the file is too large".to_owned() });
        }
        state.content.reserve(lines, bytes.len());
        state.lines.reserve_exact(lines);
        for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1..) {
            if let Some((key, value)) = split_line(kind, line) {
                state.content.push(key, value);
                state.lines.push(number);
            }
        }
        Ok(PatternFile { name, kind, number: None, origin, state: RwLock::new(state), watchers: Watchers::default() })
    }

    /// Returns an ACL's patterns that stand in the configuration and have a number there (`-u`); the file's name is
    /// `#N`.
    pub fn numbered(number: u32, patterns: &[Vec<u8>]) -> Result<PatternFile, LoadError> {
        let mut hasher = DefaultHasher::new();
        patterns.hash(&mut hasher);
        let mut state = State::default();
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        let name: Arc<str> = format!("#{number}").into();
        if bytes > TEXT_LIMIT || patterns.len() > ENTRIES_LIMIT {
            return Err(LoadError { file: name, line: 1, message: "there are too many patterns".to_owned() });
        }
        for pattern in patterns {
            state.content.push(pattern, b"");
            state.lines.push(1);
        }
        let (kind, origin) = (Kind::Acl, hasher.finish());
        Ok(PatternFile {
            name,
            kind,
            number: Some(number),
            origin,
            state: RwLock::new(state),
            watchers: Watchers::default(),
        })
    }

    /// Returns the file's name as the configuration gives it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the number that the configuration gives it.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// Returns whether it has values.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.state.read().content.len()
    }

    /// Returns whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares a way of matching; the same one is made once.
    pub fn index(&self, method: Method, ignore_case: bool) -> Result<IndexId, LoadError> {
        let mut state = self.state.write();
        let id = state.index(&self.name, method, ignore_case)?;
        if state.own == Some(id.0) {
            state.own = None;
        }
        Ok(id)
    }

    /// Returns the ways of matching that were prepared: each with its method and whether it ignores case.
    pub fn indexes(&self) -> Vec<(IndexId, Method, bool)> {
        let state = self.state.read();
        let shown = state.indexes.iter().enumerate().filter(|(at, _)| state.own != Some(*at));
        shown.map(|(at, index)| (IndexId(at), index.method, index.fold)).collect()
    }

    /// Returns the types of its values in addition to text.
    pub fn value_types(&self) -> Vec<ValueType> {
        self.state.read().values.clone()
    }

    /// Requires every value to be of this type from now on; an error names the first line whose value is not.
    pub fn require(&self, values: ValueType) -> Result<(), LoadError> {
        let mut state = self.state.write();
        if values == ValueType::Str || state.values.contains(&values) {
            return Ok(());
        }
        for id in state.content.ids(0) {
            if let Err(EditError(message)) = values.check(state.content.value(id)) {
                return Err(LoadError { file: self.name.clone(), line: state.line(id), message });
            }
        }
        state.values.push(values);
        Ok(())
    }

    /// Forgets what only error messages of loading need.
    pub fn loaded(&self) {
        self.state.write().lines = Vec::new();
    }

    /// Returns the notice of `check` about the first pattern that needs backtracking.
    pub fn notice(&self) -> Option<String> {
        self.state.read().indexes.iter().find_map(Index::notice)
    }

    /// Looks a key up and runs `f` on the match, under the file's shared lock.
    pub fn lookup<R>(&self, index: IndexId, key: Key<'_>, f: impl FnOnce(Hit<'_>) -> R) -> Option<R> {
        let state = self.state.read();
        let id = state.indexes.get(index.0)?.find(&state.content, key, None)?;
        Some(f(Hit { key: state.content.key(id), value: state.content.value(id), captures: None }))
    }

    /// As [`PatternFile::lookup`], with the groups of the regular expression for [`Hit::expand`].
    pub fn lookup_groups<R>(&self, index: IndexId, text: &[u8], f: impl FnOnce(Hit<'_>) -> R) -> Option<R> {
        let mut captures = Captures::default();
        let state = self.state.read();
        let id = state.indexes.get(index.0)?.find(&state.content, Key::Bytes(text), Some(&mut captures))?;
        let captures = Some((&captures, text));
        Some(f(Hit { key: state.content.key(id), value: state.content.value(id), captures }))
    }

    /// Returns whether any pattern matches.
    pub fn matches(&self, index: IndexId, key: Key<'_>) -> bool {
        self.lookup(index, key, |_| ()).is_some()
    }

    /// Returns the value of the first entry whose key is exactly this text.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.with_exact(key, |content, id| content.value(id).to_vec())
    }

    /// Returns whether an entry has exactly this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.with_exact(key, |_, _| ()).is_some()
    }

    fn with_exact<R>(&self, key: &[u8], f: impl FnOnce(&Content, EntryId) -> R) -> Option<R> {
        {
            let state = self.state.read();
            if let Some(exact) = state.exact_index() {
                return exact.exact(&state.content, key).map(|id| f(&state.content, id));
            }
        }
        let mut state = self.state.write();
        state.ensure_exact(&self.name);
        let id = state.exact_index()?.exact(&state.content, key)?;
        Some(f(&state.content, id))
    }

    /// Adds an entry behind the others (`add map`, `add acl`).
    pub fn add(&self, key: &[u8], value: &[u8]) -> Result<(), EditError> {
        self.state.write().add(key, value)?;
        self.watchers.tell(Change::Added);
        Ok(())
    }

    /// Sets the value of every entry with exactly this key (`set map`); returns how many there are.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<usize, EditError> {
        let count = self.state.write().set(&self.name, key, value)?;
        if count > 0 {
            self.watchers.tell(Change::Set);
        }
        Ok(count)
    }

    /// Sets the value of the entries with this key, or adds one (`http-request set-map`, Lua's `core.set_map`).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), EditError> {
        let mut state = self.state.write();
        let adds = state.set(&self.name, key, value)? == 0;
        if adds {
            state.add(key, value)?;
        }
        drop(state);
        self.watchers.tell(if adds { Change::Added } else { Change::Set });
        Ok(())
    }

    /// Removes every entry with exactly this key (`del map`, `del acl`); returns how many there were.
    pub fn del(&self, key: &[u8]) -> usize {
        let mut state = self.state.write();
        state.ensure_exact(&self.name);
        let mut removed = 0;
        while let Some(id) = state.exact_index().and_then(|index| index.exact(&state.content, key)) {
            state.remove(&self.name, id);
            removed += 1;
        }
        state.tidy(&self.name);
        drop(state);
        if removed > 0 {
            self.watchers.tell(Change::Deleted);
        }
        removed
    }

    /// Sets the value of the entry with this number (`set map #0x…`); `false` if there is none.
    pub fn set_by_number(&self, number: u32, value: &[u8]) -> Result<bool, EditError> {
        let mut state = self.state.write();
        if !state.content.exists(number) {
            return Ok(false);
        }
        state.check_value(value)?;
        state.check_room(value.len() + state.content.key(number).len())?;
        state.content.set_value(number, value);
        drop(state);
        self.watchers.tell(Change::Set);
        Ok(true)
    }

    /// Removes the entry with this number (`del map #0x…`); `false` if there is none.
    pub fn del_by_number(&self, number: u32) -> bool {
        let mut state = self.state.write();
        let exists = state.content.exists(number);
        if exists {
            state.remove(&self.name, number);
            state.tidy(&self.name);
            drop(state);
            self.watchers.tell(Change::Deleted);
        }
        exists
    }

    /// Removes all entries (`clear map`, `clear acl`).
    pub fn clear(&self) {
        let mut state = self.state.write();
        state.content = Content::default();
        state.rebuild(&self.name);
        drop(state);
        self.watchers.tell(Change::Cleared);
    }

    /// Replaces all entries at once: what `prepare map` … `commit map` collected.
    pub fn replace<'a>(&self, entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<(), EditError> {
        let mut state = self.state.write();
        let mut fresh = state.successor();
        for (key, value) in entries {
            fresh.add(key, value)?;
        }
        fresh.versions = std::mem::take(&mut state.versions);
        *state = fresh;
        drop(state);
        self.watchers.tell(Change::Committed);
        Ok(())
    }

    /// Tells `watcher` of the changes of the current entries from now on, until it is dropped.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.watchers.add(watcher);
    }

    /// Runs `f` on up to `limit` entries from number `from` on: number, key and value. Gives the number to go on from,
    /// or `None` at the end. The lock is held for one call, so a long walk delays nobody; numbers change when a file
    /// is compacted after removals, and such a walk may miss entries or see them twice.
    pub fn page(&self, from: u32, limit: usize, f: impl FnMut(u32, &[u8], &[u8])) -> Option<u32> {
        self.page_of(self.versions().current, from, limit, f)
    }

    /// Returns the bytes on the heap, without those of compiled regular expressions.
    pub fn heap_bytes(&self) -> usize {
        let state = self.state.read();
        state.content.heap_bytes()
            + state.lines.capacity() * 4
            + state.indexes.iter().map(Index::heap_bytes).sum::<usize>()
    }
}

impl fmt::Debug for PatternFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PatternFile({:?}, {:?})", self.name, self.kind)
    }
}

/// Returns the key and value of a line; `None` if there is none.
fn split_line(kind: Kind, line: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    if line.first() == Some(&b'#') {
        return None;
    }
    let start = line.iter().position(|byte| !blank(byte))?;
    let end = line.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    let line = &line[start..end];
    if kind == Kind::Acl {
        return Some((line, b""));
    }
    let key_end = line.iter().position(blank).unwrap_or(line.len());
    let value = line[key_end..].iter().position(|byte| !blank(byte)).map_or(line.len(), |at| key_end + at);
    Some((&line[..key_end], &line[value..]))
}

impl State {
    fn line(&self, id: EntryId) -> usize {
        self.lines.get(id as usize).map_or(id as usize + 1, |line| *line as usize)
    }

    /// Returns a state without entries that is matched in the same ways.
    fn successor(&self) -> State {
        let indexes = self.indexes.iter().map(|index| Index::new(index.method, index.fold)).collect();
        State { grouped: self.grouped, values: self.values.clone(), own: self.own, indexes, ..State::default() }
    }

    fn index(&mut self, name: &Arc<str>, method: Method, fold: bool) -> Result<IndexId, LoadError> {
        if let Some(at) = self.indexes.iter().position(|index| index.method == method && index.fold == fold) {
            return Ok(IndexId(at));
        }
        let index = self.build(name, method, fold)?;
        self.indexes.push(index);
        Ok(IndexId(self.indexes.len() - 1))
    }

    fn build(&self, name: &Arc<str>, method: Method, fold: bool) -> Result<Index, LoadError> {
        let mut index = Index::new(method, fold);
        index.reserve(&self.content);
        for id in self.content.ids(0) {
            match index.parse(self.content.key(id), self.grouped) {
                Ok(parsed) => index.insert(&self.content, id, parsed),
                Err(message) => return Err(LoadError { file: name.clone(), line: self.line(id), message }),
            }
        }
        Ok(index)
    }

    fn exact_index(&self) -> Option<&Index> {
        self.indexes.iter().find(|index| index.method == Method::Str && !index.fold)
    }

    /// Creates the index of the keys themselves, which changes by key need, at the first such change.
    fn ensure_exact(&mut self, name: &Arc<str>) {
        let known = self.indexes.len();
        // A text is always a pattern of method str, so this cannot fail.
        let made = self.index(name, Method::Str, false);
        debug_assert!(made.is_ok());
        if self.indexes.len() > known {
            self.own = Some(known);
        }
    }

    fn check_value(&self, value: &[u8]) -> Result<(), EditError> {
        self.values.iter().try_for_each(|values| values.check(value))
    }

    fn check_room(&self, more: usize) -> Result<(), EditError> {
        if self.content.text_len() + self.versions.text_len() + more > TEXT_LIMIT {
            return Err(EditError(format!("the file would hold more than {TEXT_LIMIT} bytes")));
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), EditError> {
        self.check_value(value)?;
        self.check_room(key.len() + value.len())?;
        if self.content.len() >= ENTRIES_LIMIT {
            return Err(EditError(format!("the file would hold more than {ENTRIES_LIMIT} entries")));
        }
        let parsed: Result<Vec<_>, _> = self.indexes.iter().map(|index| index.parse(key, self.grouped)).collect();
        let parsed = parsed.map_err(EditError)?;
        let id = self.content.push(key, value);
        for (index, parsed) in self.indexes.iter_mut().zip(parsed) {
            index.insert(&self.content, id, parsed);
        }
        Ok(())
    }

    fn set(&mut self, name: &Arc<str>, key: &[u8], value: &[u8]) -> Result<usize, EditError> {
        self.check_value(value)?;
        self.ensure_exact(name);
        let Some(first) = self.exact_index().and_then(|index| index.exact(&self.content, key)) else { return Ok(0) };
        // Hidden entries are also in the other indexes, but equal keys match alike: only the first entry is ever found,
        // so only its value counts. HAProxy changes all of them, which shows in `show map`.
        self.check_room(key.len() + value.len())?;
        self.content.set_value(first, value);
        self.tidy(name);
        Ok(1)
    }

    fn remove(&mut self, name: &Arc<str>, id: EntryId) {
        let stale: Vec<bool> = self.indexes.iter_mut().map(|index| !index.remove(&self.content, id)).collect();
        self.content.remove(id);
        for (at, _) in stale.into_iter().enumerate().filter(|(_, stale)| *stale) {
            self.rebuild_one(name, at);
        }
    }

    fn rebuild_one(&mut self, name: &Arc<str>, at: usize) {
        let (method, fold) = (self.indexes[at].method, self.indexes[at].fold);
        // Every key was parsed for this method before, so it can be again.
        match self.build(name, method, fold) {
            Ok(index) => self.indexes[at] = index,
            Err(error) => debug_assert!(false, "{error}"),
        }
    }

    fn rebuild(&mut self, name: &Arc<str>) {
        self.lines = Vec::new();
        (0..self.indexes.len()).for_each(|at| self.rebuild_one(name, at));
    }

    fn tidy(&mut self, name: &Arc<str>) {
        if self.content.is_wasteful() {
            self.content = self.content.compacted();
            self.rebuild(name);
        }
    }
}

/// The files of a process by name, and in the order in which they were first named.
#[derive(Debug, Default)]
pub struct PatternFiles(RwLock<Files>);

#[derive(Debug, Default)]
struct Files {
    all: Vec<Arc<PatternFile>>,
    names: BTreeMap<Arc<str>, usize>,
    /// Descriptions of numbered lists, by number.
    described: BTreeMap<u32, Arc<str>>,
    /// The files of the previous configuration, while another one is read.
    before: Option<Arc<PatternFiles>>,
}

impl PatternFiles {
    /// Takes a file that has the same bytes in `before` over in its present state, with its run-time changes, from now
    /// until [`complete`](Self::complete).
    pub fn take_over(&self, before: Arc<PatternFiles>) {
        self.0.write().before = Some(before);
    }

    /// Ends [`take_over`](Self::take_over), after all files are read.
    pub fn complete(&self) {
        self.0.write().before = None;
    }

    /// Returns the file of a name.
    pub fn get(&self, name: &str) -> Option<Arc<PatternFile>> {
        let files = self.0.read();
        files.names.get(name).map(|at| files.all[*at].clone())
    }

    /// Adds a file; an existing one of that name stays, and is returned.
    pub fn insert(&self, file: PatternFile) -> Arc<PatternFile> {
        let files = &mut *self.0.write();
        let at = *files.names.entry(file.name.clone()).or_insert(files.all.len());
        if at == files.all.len() {
            let known = files.before.as_ref().and_then(|before| before.get(&file.name));
            let known = known.filter(|known| (known.kind, known.origin) == (file.kind, file.origin));
            files.all.push(known.unwrap_or_else(|| Arc::new(file)));
        }
        files.all[at].clone()
    }

    /// Adds a numbered list with its description; `None`: the number is taken.
    pub fn insert_numbered(&self, file: PatternFile, description: &str) -> Option<Arc<PatternFile>> {
        let number = file.number?;
        match self.0.write().described.entry(number) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => _ = place.insert(description.into()),
        }
        Some(self.insert(file))
    }

    /// Returns all files with their numbers, in their order: those that the configuration gives, and for each of the
    /// others the least that is free.
    pub fn by_number(&self) -> Vec<(u32, Arc<PatternFile>)> {
        let files = self.0.read();
        let taken = |number: u32| files.described.contains_key(&number);
        let mut free = (0..).filter(|number| !taken(*number));
        let mut number = |file: &PatternFile| file.number.or_else(|| free.next()).unwrap_or_default();
        let mut all: Vec<_> = files.all.iter().map(|file| (number(file), file.clone())).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }

    /// Returns the description of a numbered list.
    pub fn description(&self, number: u32) -> Option<Arc<str>> {
        self.0.read().described.get(&number).cloned()
    }

    /// Returns all files, in the order in which they were first named.
    pub fn all(&self) -> Vec<Arc<PatternFile>> {
        self.0.read().all.clone()
    }
}

/// Loads whatever comes as a map and as an ACL, matches it every way and changes it.
pub fn fuzz_pattern_file(data: &[u8]) {
    let (text, rest) = data.split_at(data.len() / 4);
    for kind in [Kind::Map, Kind::Acl] {
        let Ok(file) = PatternFile::parse("fuzz", kind, rest) else { return };
        let count = file.len();
        for method in [Method::Str, Method::Beg, Method::End, Method::Sub, Method::Dir, Method::Dom, Method::Reg] {
            for fold in [false, true] {
                if let Ok(index) = file.index(method, fold) {
                    file.lookup(index, Key::Bytes(text), |hit| hit.value.len());
                }
            }
        }
        for (method, key) in [
            (Method::Int, Key::Int(text.len() as i64)),
            (Method::Len, Key::Bytes(text)),
            (Method::Bin, Key::Bytes(text)),
            (Method::Ip, Key::Ip(IpAddr::from([127, 0, 0, 1]))),
        ] {
            if let Ok(index) = file.index(method, false) {
                file.matches(index, key);
            }
        }
        assert_eq!(file.len(), count);
        if file.put(text, b"v").is_ok() {
            assert_eq!(file.get(text).as_deref(), Some(&b"v"[..]));
            assert!(file.del(text) > 0);
        }
        assert_eq!(file.get(text), None);
        file.clear();
        assert!(file.is_empty());
    }
}

#[cfg(test)]
mod tests;
