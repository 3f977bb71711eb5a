//! `server-template`: many servers by one line.

use std::ops::RangeInclusive;

use super::declare;
use crate::section::proxy::ProxyReader;
use crate::unit;
use crate::word::{Line, bad_name_byte};

/// The maximum number of servers of a template.
const TEMPLATE_MAX: i64 = 100_000;

/// Reads `server-template PREFIX N|LOW-HIGH ADDRESS OPTION…`.
pub(crate) fn template(reader: &mut ProxyReader<'_>, line: &Line) {
    let prefix = line.text(1);
    if let Some(offset) = bad_name_byte(prefix) {
        let bad = prefix[offset..].chars().next().unwrap_or('?');
        let message = format!("character '{bad}' is not permitted in server name '{prefix}'");
        reader.diagnostics.error(line.within(1, offset), message);
        return;
    }
    let range = match range(line.text(2)) {
        Ok(range) => range,
        Err(message) => {
            let error = reader.diagnostics.error(line.at(2), format!("'server-template': {message}"));
            error.hint("a number of servers, or the first and the last number with '-' between");
            return;
        }
    };
    let names: Vec<_> = range.map(|number| reader.server_name(line, 1, format!("{prefix}{number}").into())).collect();
    declare(reader, line, 3, names);
}

/// Returns the numbers of a template's servers.
fn range(text: &str) -> Result<RangeInclusive<i64>, String> {
    let (low, high) = text.split_once('-').unwrap_or(("1", text));
    let low = unit::leading_integer(low, 1, i64::from(i32::MAX))?;
    let high = unit::leading_integer(high, low, i64::from(i32::MAX))?;
    if high - low < TEMPLATE_MAX { Ok(low..=high) } else { Err(format!("{TEMPLATE_MAX} servers at most")) }
}

/// Returns the names of the servers that a line declares, if any.
pub(crate) fn names(line: &Line) -> Vec<String> {
    match line.text(0) {
        "server" => vec![line.text(1).to_owned()],
        "server-template" => {
            range(line.text(2)).into_iter().flatten().map(|number| format!("{}{number}", line.text(1))).collect()
        }
        _ => Vec::new(),
    }
}
