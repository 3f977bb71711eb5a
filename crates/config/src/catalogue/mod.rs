//! What the language knows, as data: one item per keyword, fetch and converter. Parsing, help, "did you mean", the
//! reference and the tests' coverage all derive from these rows.

mod converter;
mod fetch;

pub use converter::Converter;
pub use fetch::Fetch;
