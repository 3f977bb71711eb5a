//! `set-var` and `unset-var` as converters.
//!
//! A converter only reads its stream, so it hands the change out ([`Converted::Assign`]) to whoever evaluates, who
//! makes it and goes on with the sample.
//!
//! [`Converted::Assign`]: super::Converted::Assign

use super::super::value::{Sample, Value};

/// What must hold before a variable is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// `ifexists` and `ifset`: it has a value.
    Set(bool),
    /// `ifempty` and `ifnotempty`: the sample is an empty text.
    Empty(bool),
    /// `ifgt`: its integer is above the sample's.
    Greater,
    /// `iflt`: below.
    Less,
}

impl Requirement {
    /// The requirement by its name.
    pub(super) fn named(name: &[u8]) -> Option<Requirement> {
        Some(match name {
            b"ifexists" | b"ifset" => Requirement::Set(true),
            b"ifnotexists" | b"ifnotset" => Requirement::Set(false),
            b"ifempty" => Requirement::Empty(true),
            b"ifnotempty" => Requirement::Empty(false),
            b"ifgt" => Requirement::Greater,
            b"iflt" => Requirement::Less,
            _ => return None,
        })
    }

    /// Whether it holds for the variable's value and the sample.
    pub(super) fn holds(self, old: Option<&Sample>, new: &Value<'_>) -> bool {
        let compare = |wanted: fn(i64, i64) -> bool| match (old, new) {
            (Some(Sample::Int(old)), Value::Int(new)) => wanted(*old, *new),
            _ => true,
        };
        match self {
            Requirement::Set(wanted) => old.is_some() == wanted,
            Requirement::Empty(wanted) => {
                let empty = matches!(new, Value::Str(text) | Value::Bin(text) if text.is_empty());
                empty == wanted
            }
            Requirement::Greater => compare(|old, new| old > new),
            Requirement::Less => compare(|old, new| old < new),
        }
    }
}
