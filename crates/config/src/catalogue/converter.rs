//! Converters (HAProxy configuration manual 7.3.1) and the store's.

use super::{ArgKind, Output};

/// A converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
pub enum Converter {
    Lower,
    Upper,
    Concat,
    Field,
    Word,
    StoreGet,
    StoreIncr,
    Lua,
}

/// A converter's row. All of them take text, to which every type casts.
pub(crate) struct ConverterRow {
    pub(crate) name: &'static str,
    pub(crate) converter: Converter,
    pub(crate) args: &'static [ArgKind],
    /// How many of `args` must be given.
    pub(crate) required: usize,
    pub(crate) output: Output,
    /// It asks a store, so it may wait.
    pub(crate) waits: bool,
    pub(crate) docs: &'static str,
}

impl ConverterRow {
    pub(crate) fn all() -> &'static [ConverterRow] {
        ROWS
    }

    /// The row of a name.
    pub(crate) fn find(name: &str) -> Option<&'static ConverterRow> {
        // Seven rows: a scan is cheaper than a hash.
        ROWS.iter().find(|row| row.name == name)
    }

    /// The row of a converter.
    pub(crate) fn of(converter: Converter) -> &'static ConverterRow {
        ROWS.iter().find(|row| row.converter == converter).expect("every converter has a row, which a test asserts")
    }
}

use ArgKind as A;

static ROWS: &[ConverterRow] = &[
    row("lower", Converter::Lower, &[], 0, "The text in lower case (ASCII)."),
    row("upper", Converter::Upper, &[], 0, "The text in upper case (ASCII)."),
    row(
        "concat",
        Converter::Concat,
        &[A::Str, A::Var, A::Str],
        1,
        "The text, then a string, a variable and another string.",
    ),
    row(
        "field",
        Converter::Field,
        &[A::Int, A::Str, A::Int],
        2,
        "The text's nth field (negative: from the end) between any of the delimiters, and as many more as counted; 0: all.",
    ),
    row(
        "word",
        Converter::Word,
        &[A::Int, A::Str, A::Int],
        2,
        "The text's nth word: as field, but delimiters in a row are one.",
    ),
    ConverterRow {
        name: "store_get",
        converter: Converter::StoreGet,
        args: &[A::Store],
        required: 1,
        output: Output::Str,
        waits: true,
        docs: "The string that a store has under the text as key; nothing if there is none. A failure is told in txn.store_err.",
    },
    ConverterRow {
        name: "store_incr",
        converter: Converter::StoreIncr,
        args: &[A::Store, A::Int],
        required: 1,
        output: Output::Int,
        waits: true,
        docs: "Adds 1, or the given number, to the integer that a store has under the text as key, and gives the sum.",
    },
    ConverterRow {
        name: "lua.NAME",
        converter: Converter::Lua,
        args: &[A::Str, A::Str, A::Str, A::Str, A::Str],
        required: 0,
        output: Output::Str,
        waits: false,
        docs: "What a script's function makes of the text, known by this name to core.register_converters. It may wait in rules, and nowhere else.",
    },
];

const fn row(
    name: &'static str,
    converter: Converter,
    args: &'static [ArgKind],
    required: usize,
    docs: &'static str,
) -> ConverterRow {
    ConverterRow { name, converter, args, required, output: Output::Str, waits: false, docs }
}
