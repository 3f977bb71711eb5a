//! Arguments of fetches: typed by the configuration's reader, or texts from a script.

use std::sync::Arc;

use sluicegate_config::model::Arg;

use super::super::args::int_argument;
use super::FetchScope;
use crate::directory::Sides;

/// The arguments of one fetch, and the objects to which names in them refer.
pub(super) struct Args<'a> {
    /// The arguments as parsed by the configuration.
    pub(super) list: &'a [Arg],
    /// Proxies, servers, tables and user lists by name.
    pub(super) scope: FetchScope<'a>,
}

impl Args<'_> {
    pub(super) fn text(&self, index: usize) -> Result<Box<[u8]>, String> {
        if let Some(Arg::Bytes(bytes)) = self.list.get(index) {
            return Ok((&**bytes).into());
        }
        Ok(self.str(index)?.unwrap_or_default().as_bytes().into())
    }

    /// Returns an argument as text; `None` if it is absent or empty.
    pub(super) fn str(&self, index: usize) -> Result<Option<&str>, String> {
        match self.list.get(index) {
            Some(Arg::Str(text)) if text.is_empty() => Ok(None),
            Some(Arg::Str(text)) => Ok(Some(text)),
            None | Some(Arg::Absent) => Ok(None),
            Some(other) => Err(format!("argument {} of a fetch must be text, found {other:?}", index + 1)),
        }
    }

    pub(super) fn int(&self, index: usize) -> Result<Option<i64>, String> {
        int_argument(self.list, index, "fetch")
    }

    /// Returns a table's name.
    pub(super) fn table(&self, index: usize) -> Result<Option<&str>, String> {
        match self.list.get(index) {
            Some(Arg::Table(name)) => Ok(Some(name)),
            _ => self.str(index),
        }
    }

    pub(super) fn wanted_int(&self, index: usize) -> Result<i64, String> {
        self.int(index)?.ok_or_else(|| format!("argument {} of a fetch is missing", index + 1))
    }

    /// Returns a required argument that is an offset or a count, which is not negative.
    pub(super) fn wanted_size(&self, index: usize) -> Result<usize, String> {
        let number = self.wanted_int(index)?;
        usize::try_from(number).map_err(|_| format!("'{number}' is negative"))
    }

    /// Returns whether the flag `i` is given: without regard to case.
    pub(super) fn ignores_case(&self, index: usize) -> Result<bool, String> {
        match self.str(index)? {
            None => Ok(false),
            Some("i") => Ok(true),
            Some(other) => Err(format!("'{other}' is not 'i'")),
        }
    }

    /// Returns an argument that is a single character, or the default.
    pub(super) fn delimiter(&self, index: usize, default: u8) -> Result<u8, String> {
        match self.str(index)?.map(str::as_bytes) {
            None => Ok(default),
            Some([byte]) => Ok(*byte),
            Some(_) => Err("a delimiter is one character".to_owned()),
        }
    }

    /// Returns the section that contains the expression, if there is one.
    pub(super) fn own(&self) -> Option<Arc<Sides>> {
        self.scope.directory.zip(self.scope.own).map(|(directory, index)| directory.proxies[index].clone())
    }
}
