//! Commands under other names: `rename-command` lines.
//!
//! Only what clients and scripts say is looked up by these names. Users, replication and the files of the store know the
//! commands by their own names, and replication and files by both: a request is recorded as it came.

use super::ROWS;
use crate::config::{ConfigLine, FileError};

/// Renames commands as the lines say, each a name and a new one; an empty new name takes the command away from everybody. It
/// holds for the process, and is called before it serves.
pub fn rename(lines: &[ConfigLine]) -> Result<(), FileError> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut names: Vec<(String, u16)> = Vec::new();
    for (number, spec) in ROWS.commands().iter().enumerate() {
        names.push((spec.name.to_owned(), number as u16));
    }
    for line in lines {
        apply(&mut names, line).map_err(|message| FileError::Line {
            number: line.number,
            text: line.text.clone(),
            message: message.into(),
        })?;
    }
    ROWS.rename(names);
    Ok(())
}

fn apply(names: &mut Vec<(String, u16)>, line: &ConfigLine) -> Result<(), &'static str> {
    let [old, new] = &line.words[..] else { return Err("Bad directive or wrong number of arguments") };
    let at = names.iter().position(|(name, _)| name.as_bytes().eq_ignore_ascii_case(old));
    let at = at.ok_or("No such command in rename-command")?;
    let (name, number) = names.swap_remove(at);
    if new.is_empty() {
        return Ok(());
    }
    let Ok(new) = String::from_utf8(new.to_ascii_lowercase()) else { return Err("a name is not UTF-8") };
    // Records of requests are read by both names, so no command gets the name of another one, even of a renamed one.
    let is_own = ROWS.find(new.as_bytes()).is_some_and(|row| row.number != number);
    if name != new && (is_own || names.iter().any(|(known, _)| *known == new)) {
        return Err("Target command name already exists");
    }
    names.push((new, number));
    Ok(())
}
