//! Arguments of converters, typed by the configuration's reader or taken from a script's texts.

use std::net::Ipv6Addr;
use std::sync::Arc;

use sluicegate_config::model::Arg;

use super::super::args::int_argument;
use super::super::fetch::FetchScope;
use super::super::variables::VarRef;
use super::number::Operand;
use crate::engines::Engines;

/// The arguments of one converter, and the objects to which names in them refer.
pub(super) struct Args<'a> {
    /// The arguments as parsed by the configuration.
    pub(super) list: &'a [Arg],
    /// The stores and engines by name.
    pub(super) engines: &'a Engines,
    /// Proxies, servers and tables by name.
    pub(super) scope: FetchScope<'a>,
}

impl Args<'_> {
    /// Returns an argument as text; an absent one is empty.
    pub(super) fn text(&self, index: usize) -> Result<Box<[u8]>, String> {
        match self.list.get(index) {
            Some(Arg::Str(text)) => Ok(text.as_bytes().into()),
            Some(Arg::Bytes(bytes)) => Ok((&**bytes).into()),
            Some(Arg::Int(number)) => Ok(number.to_string().into_bytes().into()),
            None | Some(Arg::Absent) => Ok(Box::default()),
            Some(other) => Err(format!("argument {} of a converter must be text, found {other:?}", index + 1)),
        }
    }

    /// Returns an argument as an integer, if present.
    pub(super) fn int(&self, index: usize) -> Result<Option<i64>, String> {
        int_argument(self.list, index, "converter")
    }

    /// Returns an argument as an integer, or as a variable that holds one.
    pub(super) fn operand(&self, index: usize) -> Result<Option<Operand>, String> {
        Ok(match self.list.get(index) {
            Some(Arg::Var(_)) => self.variable(index)?.map(Operand::Variable),
            _ => match self.int(index) {
                Ok(number) => number.map(Operand::Constant),
                Err(_) => self.variable(index)?.map(Operand::Variable),
            },
        })
    }

    /// Returns an argument as a variable, if present.
    pub(super) fn variable(&self, index: usize) -> Result<Option<VarRef>, String> {
        match self.list.get(index) {
            Some(Arg::Var(name)) => {
                VarRef::intern(name).map(Some).ok_or("too many variable names in this process".to_owned())
            }
            Some(Arg::Str(name)) if !name.is_empty() => {
                VarRef::parse(name).map(Some).ok_or_else(|| format!("'{name}' is not a variable's name"))
            }
            Some(Arg::Str(_) | Arg::Absent) | None => Ok(None),
            Some(other) => Err(format!("a variable's name is needed, found {other:?}")),
        }
    }

    /// Returns a required argument as a variable.
    pub(super) fn wanted_variable(&self, index: usize) -> Result<VarRef, String> {
        self.variable(index)?.ok_or_else(|| "a variable is needed".to_owned())
    }

    /// Returns an argument as an IPv6 mask, if present.
    pub(super) fn mask6(&self, index: usize) -> Result<Option<Ipv6Addr>, String> {
        match self.list.get(index) {
            Some(Arg::Str(mask)) => mask.parse().map(Some).map_err(|_| format!("'{mask}' is no IPv6 mask")),
            _ => Ok(None),
        }
    }

    /// Returns the name of a stick table.
    pub(super) fn table(&self, index: usize) -> Result<&Arc<str>, String> {
        match self.list.get(index) {
            Some(Arg::Table(name) | Arg::Str(name)) => Ok(name),
            _ => Err("a table is needed".to_owned()),
        }
    }
}
