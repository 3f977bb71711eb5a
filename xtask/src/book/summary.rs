//! The table of the README: a few figures of the book, with its date.

use std::fmt::Write as _;

use super::write::Book;
use crate::bench::median;
use crate::run::root;

/// What surrounds the table in the README.
const BEGIN: &str = "<!-- measured: cargo xtask bench all -->\n";
const END: &str = "<!-- end of measured -->\n";

/// A row of the table: a part, one of its tables, and a cell of each side.
struct Row {
    what: &'static str,
    part: &'static str,
    table: &'static str,
    /// Row and column; without a row the last one.
    theirs: (&'static str, &'static str),
    ours: (&'static str, &'static str),
}

const fn row(
    what: &'static str,
    part: &'static str,
    table: &'static str,
    row: &'static str,
    peer: &'static str,
    own: &'static str,
) -> Row {
    Row { what, part, table, theirs: (row, peer), ours: (row, own) }
}

const ROWS: &[Row] = &[
    Row {
        what: "counting clients from Lua, requests/s (haproxy: pool to redis-server)",
        part: "posts-accounting",
        table: "req/s",
        theirs: ("Redis with pools", "haproxy"),
        ours: ("Lua, with the store in the process", "sluicegate"),
    },
    row(
        "proxied request with five rules, CPU µs",
        "proxy-cpu",
        "CPU µs per request",
        "keep-alive",
        "haproxy",
        "sluicegate",
    ),
    row(
        "request over 9,800 connections, CPU µs",
        "growth-connections",
        "CPU µs per request, by connections",
        "",
        "haproxy",
        "sluicegate",
    ),
    row(
        "request through 1,000 rules, CPU µs",
        "growth-rules",
        "CPU µs per request, by rules",
        "",
        "haproxy",
        "sluicegate",
    ),
    row(
        "full handshake of TLS 1.3, ECDSA P-256, CPU µs",
        "tls-handshakes",
        "CPU µs per connection",
        "TLS 1.3, ECDSA P-256, full",
        "haproxy 2.8",
        "sluicegate",
    ),
    row("SET of 32 bytes, CPU µs", "store-cpu", "CPU µs per command", "SET of 32 B", "redis-server", "sluicegate"),
    row(
        "GET among all keys, pipeline 16, CPU µs",
        "growth-keys",
        "CPU µs per GET, by keys",
        "",
        "redis-server",
        "sluicegate",
    ),
    row(
        "memtier's script of fifty commands, 200 connections, scripts/s",
        "posts-scripts",
        "scripts a second",
        "200 connections, any lists, by sluicegate bench redis",
        "redis-server",
        "sluicegate",
    ),
    row(
        "the same script, CPU µs",
        "posts-scripts",
        "CPU µs per script",
        "200 connections, any lists, by sluicegate bench redis",
        "redis-server",
        "sluicegate",
    ),
    row(
        "load generator of HTTP, its CPU µs per request (wrk)",
        "http-self-http",
        "CPU µs of the generator per request",
        "GET",
        "wrk",
        "sluicegate bench",
    ),
];

impl Row {
    fn figure(&self, book: &Book, (row, column): (&str, &str)) -> Option<f64> {
        let table = book.part(self.part)?.tables.iter().find(|table| table.what == self.table)?;
        let row = if row.is_empty() { table.rows.last()?.0.as_str() } else { row };
        table.cell(row, column).filter(|runs| !runs.is_empty()).map(median)
    }
}

/// Returns three significant digits, or all those before the point.
fn short(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Returns the table, or what stands in its place before there is a book.
pub(super) fn table(book: Option<&Book>) -> String {
    let Some(book) = book else {
        return "`cargo xtask bench all` measures; its table has not been written yet.\n".to_owned();
    };
    let kind = if book.head.is_quick { "a quick run of " } else { "" };
    let mut text = format!(
        "Measured on {} by {kind}`cargo xtask bench all`, {}; medians.\n\n| | peer | Sluicegate | ratio |\n|---|---|---|---|\n",
        book.head.date,
        book.head.machine.lines().next().unwrap_or_default()
    );
    for row in ROWS {
        let cells = match (row.figure(book, row.theirs), row.figure(book, row.ours)) {
            (Some(theirs), Some(ours)) => {
                format!("{}: {} | {} | {:.2}", row.theirs.1, short(theirs), short(ours), ours / theirs)
            }
            _ => "not measured | not measured | ".to_owned(),
        };
        let _ = writeln!(text, "| {} | {cells} |", row.what);
    }
    text
}

/// Returns the README with another table; [`None`] if it has no place for it.
fn replaced(readme: &str, table: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// Writes the table into the README.
pub(super) fn replace(book: &Book) -> Result<(), String> {
    let path = root().join("README.md");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let readme = std::fs::read_to_string(&path).map_err(failed)?;
    let text = replaced(&readme, &table(Some(book))).ok_or("README.md has no place for the table")?;
    std::fs::write(&path, text).map_err(failed)
}

/// Returns a fault if the README does not have the table of the book.
pub(super) fn fault(book: Option<&Book>) -> Option<String> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap_or_default();
    match replaced(&readme, &table(book)) {
        None => Some("README.md: has no place for the measured table".to_owned()),
        Some(text) if text != readme => {
            Some("README.md: the table of measurements is not what the data says".to_owned())
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::STEPS;
    use super::super::write::tests::book;
    use super::*;
    use crate::kept::Table;

    #[test]
    fn the_table_has_medians_and_says_what_is_missing() {
        let mut book = book();
        let keys = &mut book.parts[1].1.tables;
        keys[0] = Table {
            what: "CPU µs per GET, by keys".to_owned(),
            columns: ["redis-server", "sluicegate"].map(str::to_owned).into(),
            rows: vec![
                ("0 keys".to_owned(), vec![vec![9.0], vec![9.0]]),
                ("1000000 keys".to_owned(), vec![vec![2.0, 2.5, 4.0], vec![1.0, 1.5, 1.25]]),
            ],
        };
        let text = table(Some(&book));
        assert!(text.starts_with(
            "Measured on 2026-01-02 by a quick run of `cargo xtask bench all`, a machine; medians.\n\n\
             | | peer | Sluicegate | ratio |\n|---|---|---|---|\n"
        ));
        assert!(
            text.contains("| GET among all keys, pipeline 16, CPU µs | redis-server: 2.50 | 1.25 | 0.50 |\n"),
            "{text}"
        );
        assert!(text.contains("| SET of 32 bytes, CPU µs | not measured | not measured |  |\n"), "{text}");
        assert_eq!(text.lines().count(), 4 + ROWS.len());
    }

    #[test]
    fn rows_are_of_parts_that_a_quick_run_has() {
        for row in ROWS {
            assert!(STEPS.iter().any(|step| step.name() == row.part && step.quick.is_some()), "{}", row.what);
        }
    }

    #[test]
    fn the_readme_keeps_the_rest() {
        let readme = format!("a\n{BEGIN}\nold\n{END}b\n");
        let text = replaced(&readme, "new\n").unwrap();
        assert_eq!(text, format!("a\n{BEGIN}\nnew\n\n{END}b\n"));
        assert_eq!(replaced(&text, "new\n").as_deref(), Some(text.as_str()));
        assert_eq!(replaced("a\n", "new\n"), None);
        assert_eq!([9.994, 99.94, 123_456.7].map(short), ["9.99", "99.9", "123457"]);
    }
}
