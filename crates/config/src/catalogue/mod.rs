//! The catalogue of the language: one item per keyword, fetch and converter. Parsing, help, "did you mean", the
//! reference and the tests' coverage all derive from these rows.
//!
//! The rows of a section's keywords are in the file of its parser (`section/*.rs`); [`items`](crate::items) lists all
//! rows.

mod context;
mod converter;
mod counter;
mod fetch;
mod fetch_rows;
pub mod known;

pub use context::Contexts;
pub use converter::{Converter, MapGives, converter_for_scripts};
pub use counter::{CounterFigure, CounterOf};
pub use fetch::Fetch;

pub(crate) use converter::ConverterRow;
pub(crate) use fetch::{FetchRow, Needs, Place, Sides};
pub(crate) use fetch_rows::SUFFIXES;

/// The type of a fetch's or converter's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// Text.
    Str,
    /// A whole number.
    Int,
    /// `true`, `false`, `1` or `0`; typed as an integer.
    Bool,
    /// A variable, `scope.name`.
    Var,
    /// A header's occurrence: from -10 to 32767, not 0.
    Occurrence,
    /// `s`, `ms` or `us`.
    DateUnit,
    /// `ms` or `us`.
    TimeUnit,
    /// A store's name.
    Store,
    /// Bytes in hexadecimal.
    Hex,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A frontend's name; if empty, the section that contains the expression.
    Frontend,
    /// A backend's name; if empty, the section that contains the expression.
    Backend,
    /// `[BACKEND/]SERVER`.
    Server,
    /// A stick table's name; the section's own if empty.
    Table,
    /// A user list's name.
    Userlist,
    /// An integer, or a variable that holds one.
    Operand,
    /// An IPv4 network mask or the number of its bits; typed as the mask's integer.
    Mask4,
    /// The same for IPv6; typed as the text of its address.
    Mask6,
}

impl ArgKind {
    /// Returns whether it names a section, or a server in one, which must exist.
    pub(crate) fn is_reference(self) -> bool {
        matches!(self, ArgKind::Backend | ArgKind::Frontend | ArgKind::Server | ArgKind::Table | ArgKind::Userlist)
    }

    /// Returns its name in the reference.
    pub fn name(self) -> &'static str {
        match self {
            ArgKind::Str => "string",
            ArgKind::Int => "integer",
            ArgKind::Bool => "boolean",
            ArgKind::Var => "variable",
            ArgKind::Occurrence => "occurrence",
            ArgKind::DateUnit => "unit",
            ArgKind::TimeUnit => "unit",
            ArgKind::Store => "store",
            ArgKind::Hex => "hexadecimal",
            ArgKind::Ipv4 => "ipv4",
            ArgKind::Ipv6 => "ipv6",
            ArgKind::Frontend => "frontend",
            ArgKind::Backend => "backend",
            ArgKind::Server => "server",
            ArgKind::Table => "table",
            ArgKind::Userlist => "userlist",
            ArgKind::Operand => "integer or variable",
            ArgKind::Mask4 => "IPv4 mask",
            ArgKind::Mask6 => "IPv6 mask",
        }
    }
}

/// The type of a fetch's or converter's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Known only when it runs (a variable).
    Any,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// An address.
    Ip,
    /// Text.
    Str,
    /// An HTTP method.
    Method,
    /// Bytes; as text they end at the first NUL.
    Bin,
}

impl Output {
    /// Returns whether HAProxy has a cast from this type to a converter's input type.
    pub fn casts_to(self, input: Output) -> bool {
        match (self, input) {
            (Output::Any, _) | (_, Output::Any | Output::Str | Output::Bin) => true,
            (Output::Bool, Output::Ip) => false,
            (Output::Ip, Output::Bool) => false,
            (Output::Bin | Output::Method, Output::Bool | Output::Int | Output::Ip) => false,
            _ => true,
        }
    }

    /// Returns its name in the reference.
    pub fn name(self) -> &'static str {
        match self {
            Output::Any => "any",
            Output::Bool => "boolean",
            Output::Int => "integer",
            Output::Ip => "ip",
            Output::Str => "string",
            Output::Method => "method",
            Output::Bin => "binary",
        }
    }
}

/// The kinds of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    /// A keyword of a section.
    Keyword,
    /// An option of `bind`.
    BindOption,
    /// An option of `server`.
    ServerOption,
    /// An action of a rule set.
    Action,
    /// A sample fetch.
    Fetch,
    /// A converter.
    Converter,
}

/// One row of the catalogue, as the reference and the tests see it.
#[derive(Clone, Debug)]
pub struct Item {
    /// The kind of item.
    pub kind: ItemKind,
    /// Its name; a fetch's aliases follow in `aliases`.
    pub name: &'static str,
    /// Its other names.
    pub aliases: &'static [&'static str],
    /// The places where it is allowed.
    pub places: Vec<&'static str>,
    /// Its arguments.
    pub usage: String,
    /// The description.
    pub docs: &'static str,
}
