//! Style checks of single lines: no behaviour that depends on a command's name, no `use super::*`.

use std::path::{Path, PathBuf};

use crate::files::{logic, read, rust};

/// The store's sources, whose commands have rows.
const STORE: &str = "crates/store/src";

/// The files that look up rows by name, or write the reference: no other file compares a command's name.
const LOOK_UPS: [&str; 4] = ["catalogue.rs", "commands.rs", "names.rs", "reference.rs"];

/// Folders of other crates whose modules share the names of the one above them.
const SHARED_NAMES: [&str; 2] = ["crates/proxy/src/stream/http", "crates/config/src/section/rule"];

/// Finds comparisons of a command's name, group or full name: special behaviour must be a field of its row.
pub fn names_compared(files: &[PathBuf]) -> Vec<String> {
    let is_look_up = |path: &Path| LOOK_UPS.iter().any(|file| path == Path::new(STORE).join(file));
    let files = rust(files).filter(|path| path.starts_with(STORE) && !is_test(path) && !is_look_up(path));
    let is_wrong =
        |text: &str| statements(text).filter(|(_, text)| compares_name(text)).map(|(line, _)| line).collect();
    faults(files, "compares a command's name: give its row a field", is_wrong)
}

/// Finds `use super::*` outside tests: it hides what a module uses.
pub fn glob_imports(files: &[PathBuf]) -> Vec<String> {
    let shares = |path: &Path| SHARED_NAMES.iter().any(|folder| path.starts_with(folder));
    let files = rust(files).filter(|path| !is_test(path) && !shares(path));
    let is_wrong = |text: &str| {
        let lines = text.lines().enumerate();
        lines.filter(|(_, line)| line.trim_end().ends_with("use super::*;")).map(|(at, _)| at + 1).collect()
    };
    faults(files, "imports all names of the module above it", is_wrong)
}

fn faults<'f>(
    files: impl Iterator<Item = &'f PathBuf>,
    what: &str,
    lines_of: impl Fn(&str) -> Vec<usize>,
) -> Vec<String> {
    files
        .flat_map(|path| {
            let lines = lines_of(logic(&read(path)));
            lines.into_iter().map(|line| format!("{}:{line}: {what}", path.display())).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns whether a file has only tests.
fn is_test(path: &Path) -> bool {
    let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
    path.iter().any(is_test) || path.ends_with("commands/gated.rs")
}

/// Returns the numbered lines of a text without comments, each with the following ones up to the end of its brackets:
/// so a `match` or a call is complete even if it is broken into lines.
fn statements(text: &str) -> impl Iterator<Item = (usize, String)> {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    (0..lines.len()).map(move |at| {
        let mut whole = String::new();
        for line in lines[at..].iter().take(LINES_MAX) {
            whole.push_str(line);
            let open = whole.matches(['(', '[']).count();
            if open <= whole.matches([')', ']']).count() {
                break;
            }
            whole.push(' ');
        }
        // A match that is entirely in the following lines is found there.
        let own = lines[at].len();
        let end = whole.len().min(own + LOOK_AHEAD);
        let end = (end..=whole.len()).find(|end| whole.is_char_boundary(*end)).unwrap_or(whole.len());
        (at + 1, whole[..end].to_owned())
    })
}

/// The maximum number of lines of a statement that are examined.
const LINES_MAX: usize = 4;
/// The maximum number of bytes of the following lines that are examined.
const LOOK_AHEAD: usize = 60;

/// Returns whether a statement branches on a command's name: `spec.name == …`, `match row.full_name.as_str()`,
/// `NAMES.contains(&spec.name)`, `matches!(spec.group, …)`.
fn compares_name(text: &str) -> bool {
    [".name", ".group", ".full_name"].iter().any(|field| {
        text.match_indices(field).any(|(at, _)| {
            let receiver = receiver(&text[..at]);
            let is_row = *field == ".full_name" || receiver.trim_end_matches("()").ends_with("spec");
            let rest = &text[at + field.len()..];
            let is_field = !rest.starts_with(|next: char| next.is_alphanumeric() || "_(".contains(next));
            is_row && is_field && (is_compared(rest) || is_matched(&text[..at - receiver.len()]))
        })
    })
}

/// Returns the expression at the end of a text, whose field follows.
fn receiver(text: &str) -> &str {
    let mut depth = 0_usize;
    let start = text.char_indices().rev().find(|(_, sign)| match sign {
        ')' | ']' => {
            depth += 1;
            false
        }
        '(' | '[' if depth == 0 => true,
        '(' | '[' => {
            depth -= 1;
            false
        }
        sign => depth == 0 && !(sign.is_alphanumeric() || "_.:".contains(*sign)),
    });
    start.map_or(text, |(at, sign)| &text[at + sign.len_utf8()..])
}

/// Returns whether the text after a name compares it.
fn is_compared(mut rest: &str) -> bool {
    while let Some(next) = [".as_str()", ".as_bytes()", ".as_ref()", "[..]"].iter().find_map(|by| rest.strip_prefix(by))
    {
        rest = next;
    }
    let rest = rest.trim_start();
    let by = ["==", "!=", ".starts_with(", ".ends_with(", ".contains(", ".eq(", ".eq_ignore_ascii_case("];
    by.iter().any(|by| rest.starts_with(by))
}

/// Returns whether the text before a name compares it.
fn is_matched(before: &str) -> bool {
    let before = before.trim_end_matches(['&', '*', ' ', '(']);
    ["==", "!=", "match", "matches!", ".contains", ".eq_ignore_ascii_case", ".eq"].iter().any(|by| before.ends_with(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, lines: &[usize]) {
        let found: Vec<usize> =
            statements(text).filter(|(_, text)| compares_name(text)).map(|(line, _)| line).collect();
        assert_eq!(found, lines, "{text}");
    }

    #[test]
    fn comparisons_of_names_are_found() {
        for text in [
            "if spec.name == \"msetnx\" {",
            "let looking = self.spec.name != \"msetnx\";",
            "if \"get\" == queued.spec().name {",
            "match spec.name {",
            "match (spec.name, looking) {",
            "match self.commands[at].spec().name {",
            "match row.full_name.as_str() {",
            "let is = matches!(self.row(at).spec.group, \"string\" | \"bitmap\");",
            "if spec.group != \"string\" {",
            "if command.full_name.ends_with(\"subscribe\") {",
            "let is = NAMES.contains(&&*command.full_name);",
            "rows.iter().find(|row| row.spec.name.as_bytes().eq_ignore_ascii_case(name))",
        ] {
            check(text, &[1]);
        }
        check("let is = matches!(\n    spec.name,\n    \"a\" | \"b\",\n);", &[1]);
    }

    #[test]
    fn what_writes_a_name_is_left_alone() {
        for text in [
            "out.bulk(row.full_name.as_bytes());",
            "let name = spec.name.to_ascii_uppercase();",
            "format!(\"{}|{}\", spec.name, sub.name)",
            "// spec.name == \"get\"",
            "if parameter.name == name {",
            "if spec.names == names {",
            "facts::of(&row.full_name).is_some()",
            "self.session.command = &command.full_name;",
        ] {
            check(text, &[]);
        }
    }

    #[test]
    fn files_are_named_with_their_lines() {
        let file = PathBuf::from("crates/store/src/lib.rs");
        let found = faults([&file].into_iter(), "is wrong", |_| vec![3, 5]);
        assert_eq!(found, ["crates/store/src/lib.rs:3: is wrong", "crates/store/src/lib.rs:5: is wrong"]);
        assert!(is_test(Path::new("crates/proxy/src/server/tests.rs")) && !is_test(&file));
    }
}
