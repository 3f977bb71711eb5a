//! `h1-case-adjust` and `h1-case-adjust-file`: the case in which names of fields are written.

use super::Reading;
use crate::Files;
use crate::diagnostic::Diagnostics;
use crate::model::{Global, Position};
use crate::word::Line;

/// Adds a pair, or returns the reason why it is invalid; HAProxy compares by the first name, which its messages have in
/// lower case.
fn add(global: &mut Global, from: &str, to: &str) -> Result<(), String> {
    if from.is_empty() || !from.eq_ignore_ascii_case(to) {
        return Err(format!("'{from}' and '{to}' must not differ except in their case"));
    }
    match global.name_cases.insert(from.to_ascii_lowercase().into_bytes(), to.as_bytes().to_vec()) {
        None => Ok(()),
        Some(_) => Err(format!("'{from}' was given before")),
    }
}

/// Reads `h1-case-adjust FROM TO`.
pub(super) fn pair(r: &mut Reading<'_>, line: &Line) {
    if let Err(message) = add(&mut r.reader.global, line.text(1), line.text(2)) {
        r.diagnostics.error(line.at(1), format!("'h1-case-adjust': {message}"));
    }
}

/// Notes `h1-case-adjust-file PATH`.
pub(super) fn file(r: &mut Reading<'_>, line: &Line) {
    r.reader.global.name_case_file = Some((line.text(1).to_owned(), line.at(1)));
}

/// Reads the file that was named, once all lines are.
pub(crate) fn read_file(global: &mut Global, files: &dyn Files, diagnostics: &mut Diagnostics) {
    let Some((path, at)) = global.name_case_file.clone() else { return };
    files.stand_at(&at);
    match files.read(path.as_ref()) {
        Ok(bytes) => pairs(global, &String::from_utf8_lossy(&bytes), &path, &at, diagnostics),
        Err(error) => {
            diagnostics.error(at, format!("'h1-case-adjust-file': cannot read '{path}': {error}"));
        }
    }
}

fn pairs(global: &mut Global, text: &str, path: &str, at: &Position, diagnostics: &mut Diagnostics) {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_matches([' ', '\t', '\r']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.split_once([' ', '\t']).ok_or_else(|| format!("'{line}' has no second name"));
        if let Err(message) = pair.and_then(|(from, to)| add(global, from, to.trim_start_matches([' ', '\t']))) {
            diagnostics.error(at.clone(), format!("'h1-case-adjust-file': '{path}', line {}: {message}", number + 1));
        }
    }
}
