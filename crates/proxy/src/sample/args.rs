//! Arguments that fetches and converters read in the same way.

use sluicegate_config::model::Arg;

/// Returns an argument of a fetch or a converter, as `of` says, as an integer, if present.
pub(super) fn int_argument(list: &[Arg], index: usize, of: &str) -> Result<Option<i64>, String> {
    match list.get(index) {
        Some(Arg::Int(number)) => Ok(Some(*number)),
        Some(Arg::Str(text)) => text.parse().map(Some).map_err(|_| format!("'{text}' is not an integer")),
        None | Some(Arg::Absent) => Ok(None),
        Some(other) => Err(format!("argument {} of a {of} must be an integer, found {other:?}", index + 1)),
    }
}
