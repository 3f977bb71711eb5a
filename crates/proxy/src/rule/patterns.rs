//! The actions that change map and ACL files in memory: `set-map`, `del-map`, `add-acl`, `del-acl`.

use sluicegate_config::model::{EditPatterns, PatternEdit};

use super::action::{Compiled, Done, action};
use super::build::Builder;
use crate::sample::FormatMode;

/// The texts are the key and the value. As in HAProxy, a key or value that the file's users cannot accept, or that does
/// not fit into the file, changes nothing.
pub(super) fn edit_patterns(b: &mut Builder<'_>, rule: &EditPatterns) -> Compiled {
    let unused = || format!("no map or acl uses the file '{}', so nothing would see the change", rule.file);
    let file = b.patterns.get(&rule.file).ok_or_else(unused)?;
    b.texts(std::iter::once(&rule.key).chain(&rule.value), FormatMode::Plain);
    let edit = rule.edit;
    action(move |run| {
        let mut texts = run.machine.texts();
        let key = texts.next().unwrap_or(b"");
        match edit {
            PatternEdit::Set => _ = file.put(key, texts.next().unwrap_or(b"")),
            PatternEdit::Add if file.contains(key) => {}
            PatternEdit::Add => _ = file.add(key, b""),
            PatternEdit::Remove => _ = file.del(key),
        }
        Done::Next
    })
}
