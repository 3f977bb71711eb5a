//! Arguments of commands: numbers and options.

use sluicegate_wire::resp::parse_i64;

use crate::refused::{NOT_INTEGER, Refused};

/// Returns an integer argument.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Refused> {
    parse_i64(word).ok_or(NOT_INTEGER.into())
}

/// Parses a 32-bit integer argument; `error` replaces Redis's default message.
pub(crate) fn small_integer(word: &[u8], error: Option<&'static str>) -> Result<i32, Refused> {
    let Some(value) = parse_i64(word) else { return Err(error.unwrap_or(NOT_INTEGER).into()) };
    i32::try_from(value)
        .map_err(|_| error.unwrap_or("ERR value is out of range, value must between -2147483648 and 2147483647").into())
}

/// Returns whether a word is this option, in any case.
pub(crate) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}
