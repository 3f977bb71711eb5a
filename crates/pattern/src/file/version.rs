//! Versions of a file that are prepared in parallel to the active one, and replace it atomically (management guide,
//! `prepare map`, `commit map`).
//!
//! A version is a whole file with its indexes, so a commit swaps a pointer. Prepared entries count against the limit
//! of the file's text; a commit discards all versions older than the committed one and keeps newer ones.

use std::collections::BTreeMap;

use super::{Change, EditError, PatternFile, State};

/// Versions that may be prepared at a time.
const PREPARED_MAX: usize = 64;

/// The versions of a file besides the one that is served.
#[derive(Default)]
pub(super) struct Versions {
    current: u32,
    last: u32,
    prepared: BTreeMap<u32, State>,
}

/// The version that is served, and the last one that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionNumbers {
    /// Served.
    pub current: u32,
    /// The version prepared last; equal to `current` if there is none.
    pub last: u32,
}

/// The reason why an operation on a version was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionError {
    /// It is not prepared yet.
    Future,
    /// It was abandoned, or never existed.
    Gone,
    /// The edit of the entry was refused.
    Edit(EditError),
}

impl Versions {
    /// Returns the number of bytes of text in all prepared versions.
    pub(super) fn text_len(&self) -> usize {
        self.prepared.values().map(|state| state.content.text_len()).sum()
    }
}

impl State {
    /// Returns a prepared version.
    fn prepared(&mut self, version: u32) -> Result<&mut State, VersionError> {
        let last = self.versions.last;
        let found = self.versions.prepared.get_mut(&version);
        found.ok_or(if version > last { VersionError::Future } else { VersionError::Gone })
    }
}

impl PatternFile {
    /// Begins another version without entries; returns its number.
    pub fn prepare(&self) -> Result<u32, EditError> {
        let mut state = self.state.write();
        if state.versions.prepared.len() >= PREPARED_MAX {
            return Err(EditError(format!("{PREPARED_MAX} versions are prepared already")));
        }
        let next = state.successor();
        let versions = &mut state.versions;
        versions.last += 1;
        versions.prepared.insert(versions.last, next);
        Ok(versions.last)
    }

    /// Returns the numbers of the file's versions.
    pub fn versions(&self) -> VersionNumbers {
        let versions = &self.state.read().versions;
        VersionNumbers { current: versions.current, last: versions.last }
    }

    /// Adds an entry to a version.
    pub fn add_to(&self, version: u32, key: &[u8], value: &[u8]) -> Result<(), VersionError> {
        let mut state = self.state.write();
        if version == state.versions.current {
            state.add(key, value).map_err(VersionError::Edit)?;
            drop(state);
            self.watchers.tell(Change::Added);
            return Ok(());
        }
        state.check_room(key.len() + value.len()).map_err(VersionError::Edit)?;
        // A type of values may have been requested since the version was prepared.
        state.check_value(value).map_err(VersionError::Edit)?;
        state.prepared(version)?.add(key, value).map_err(VersionError::Edit)
    }

    /// Removes all entries of a version; a prepared version stays prepared.
    pub fn clear_version(&self, version: u32) -> Result<(), VersionError> {
        let mut state = self.state.write();
        if version == state.versions.current {
            drop(state);
            self.clear();
            return Ok(());
        }
        let empty = state.successor();
        *state.prepared(version)? = empty;
        Ok(())
    }

    /// Replaces the current version atomically. Indexes requested since it was prepared are built first, which may
    /// fail.
    pub fn commit(&self, version: u32) -> Result<(), VersionError> {
        let mut state = self.state.write();
        let mut next = std::mem::take(state.prepared(version).map_err(|_| VersionError::Gone)?);
        let made = state.indexes[next.indexes.len()..].iter().try_for_each(|index| {
            let built =
                next.build(&self.name, index.method, index.fold).map_err(|error| EditError(error.to_string()))?;
            next.indexes.push(built);
            Ok(())
        });
        let checked = made.and_then(|()| {
            let new = &state.values[next.values.len()..];
            next.content.ids(0).try_for_each(|id| new.iter().try_for_each(|of| of.check(next.content.value(id))))
        });
        if let Err(error) = checked {
            state.versions.prepared.insert(version, next);
            return Err(VersionError::Edit(error));
        }
        let mut versions = std::mem::take(&mut state.versions);
        versions.prepared = versions.prepared.split_off(&(version + 1));
        versions.current = version;
        (next.values, next.own, next.versions) = (state.values.clone(), state.own, versions);
        *state = next;
        drop(state);
        self.watchers.tell(Change::Committed);
        Ok(())
    }

    /// As [`PatternFile::page`], for a version; no entries if it does not exist.
    pub fn page_of(&self, version: u32, from: u32, limit: usize, mut f: impl FnMut(u32, &[u8], &[u8])) -> Option<u32> {
        let state = self.state.read();
        let state = match version == state.versions.current {
            true => &*state,
            false => state.versions.prepared.get(&version)?,
        };
        let mut ids = state.content.ids(from);
        for id in ids.by_ref().take(limit) {
            f(id, state.content.key(id), state.content.value(id));
        }
        ids.next()
    }
}
