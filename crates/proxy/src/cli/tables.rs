//! Commands that show and change stick tables, in HAProxy's words.
//!
//! A listing holds a shard's lock for a page at a time and waits for its client in between, so the entries are not of
//! one point in time. Changes require level `operator`, as HAProxy's manual says and its code does not.

use std::net::IpAddr;

use sluicegate_config::model::{DataForm, DataKind, Position, StatsLevel, StickTable, TableData, TableKey};
use sluicegate_pattern::embedded_ipv4;

use super::catalogue::{Call, Command, Run};
use super::protocol::Answer;
use crate::sample::Sample;
use crate::stick::{Key, Row, Seen, Table};

/// The number of entries visited while a lock is held.
const PAGE: u32 = 64;
/// The maximum number of conditions in one command.
const FILTERS: usize = 4;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["clear", "table"],
        arguments: "<table> [<filter>]*",
        help: "remove an entry from a table (filter: data/key)",
        level: StatsLevel::Operator,
        run: Run::Long(|call| Box::pin(clear(call))),
    },
    Command {
        name: &["set", "table"],
        arguments: "<table> key <k> [data.* <v>]*",
        help: "update or create a table entry's data",
        level: StatsLevel::Operator,
        run: Run::Long(|call| Box::pin(set(call))),
    },
    Command {
        name: &["show", "table"],
        arguments: "<table> [<filter>]*",
        help: "report table usage stats or dump this table's contents (filter: data/key)",
        level: StatsLevel::User,
        run: Run::Long(show),
    },
];

const SHOW_WHAT: &str =
    "Optional argument only supports \"data.<store_data_type>\" <operator> <value> or key <key> or ptr <ptr>";
const CLEAR_WHAT: &str = "Required arguments: <table> \"data.<store_data_type>\" <operator> <value> or <table> key <key> \
                          or <table> ptr <ptr>";
const SET_WHAT: &str = "Required arguments: <table> key <key> [data.<store_data_type> <value>]* or <table> ptr <ptr> \
                        [data.<store_data_type> <value>]*";

const NOT_FOUND: &str = "No entry can be found matching ptr.";
const IN_USE: &str = "Entry currently in use, cannot remove";

/// The entries selected by a command.
#[derive(Debug)]
enum Chosen {
    All,
    Key(Key),
    /// The one that a listing shows with this number.
    Numbered(u64),
    Filtered(Vec<Filter>),
}

/// `data.TYPE OPERATOR VALUE`.
#[derive(Debug)]
struct Filter {
    kind: DataKind,
    /// The index in an array.
    element: u32,
    holds: fn(&i128, &i128) -> bool,
    value: i128,
}

impl Filter {
    fn matches(&self, row: &Row<'_>) -> bool {
        // A name counts as 0, as in HAProxy.
        let value = if self.kind.form() == DataForm::Name { Some(0) } else { row.get(self.kind, self.element) };
        value.is_some_and(|value| (self.holds)(&i128::from(value), &self.value))
    }
}

/// Parses `TYPE` or, for an array, `TYPE[N]`; without a number the first element is meant.
fn datum(name: &str) -> Option<(DataKind, u32)> {
    let Some((name, number)) = name.split_once('[') else { return Some((DataKind::named(name)?, 0)) };
    let kind = DataKind::named(name).filter(|kind| kind.is_array())?;
    Some((kind, number.strip_suffix(']')?.parse().ok()?))
}

/// Parses a key; an error is HAProxy's message.
fn key(table: &Table, text: &str, doing: &str) -> Result<Key, String> {
    if text.is_empty() {
        return Err("Key value expected".to_owned());
    }
    if matches!(table.key, TableKey::Bin(_)) {
        return Err(format!("{doing} tables of type other than ip, ipv6, string and integer is not supported"));
    }
    // As in HAProxy an address of the other version is that address of the table's version that maps to it.
    let mapped = match (table.key, text.parse()) {
        (TableKey::Ip, Ok(IpAddr::V6(ip))) => embedded_ipv4(ip).map(|ip| ip.to_string()),
        (TableKey::Ipv6, Ok(IpAddr::V4(ip))) => Some(ip.to_ipv6_mapped().to_string()),
        _ => None,
    };
    Key::parse(table.key, mapped.as_deref().unwrap_or(text)).ok_or_else(|| "Invalid key".to_owned())
}

/// Parses the number with which a listing shows an entry; an error is HAProxy's message.
fn number(text: &str) -> Result<u64, String> {
    let Some(digits) = text.strip_prefix("0x") else { return Err("Pointer expected (0xffff notation)".to_owned()) };
    u64::from_str_radix(digits, 16).map_err(|_| "Malformed ptr.".to_owned())
}

/// Parses the part after a table's name. `otherwise`: the message for unknown words.
fn chosen(table: &Table, words: &[&str], doing: &str, otherwise: &str) -> Result<Chosen, String> {
    match words {
        [] => Ok(Chosen::All),
        ["key", rest @ ..] => key(table, rest.first().copied().unwrap_or(""), doing).map(Chosen::Key),
        ["ptr", rest @ ..] => number(rest.first().copied().unwrap_or("")).map(Chosen::Numbered),
        [first, ..] if first.starts_with("data.") => filters(table, words).map(Chosen::Filtered),
        _ => Err(otherwise.to_owned()),
    }
}

fn filters(table: &Table, all: &[&str]) -> Result<Vec<Filter>, String> {
    let mut filters = Vec::new();
    for (at, words) in all.chunks(3).enumerate() {
        let wrong = |what: &str| Err(format!("Filter entry #{}: {what}", at + 1));
        if at == FILTERS {
            let (word, last) = (4 + 3 * FILTERS, all[3 * FILTERS - 1]);
            return Err(format!("Detected extra data in filter, {word}th word of input, after '{last}'"));
        }
        let Some((kind, element)) = words[0].strip_prefix("data.").and_then(datum) else {
            return wrong("Unknown data type");
        };
        if !table.has(kind) {
            return wrong("Data type not stored in this table");
        }
        let holds: fn(&i128, &i128) -> bool = match words.get(1).copied().unwrap_or("") {
            "eq" => i128::eq,
            "ne" => i128::ne,
            "le" => i128::le,
            "ge" => i128::ge,
            "lt" => i128::lt,
            "gt" => i128::gt,
            _ => return wrong("Require and operator among \"eq\", \"ne\", \"le\", \"ge\", \"lt\", \"gt\""),
        };
        let Some(value) = words.get(2).and_then(|word| word.parse::<i64>().ok()) else {
            return wrong("Require a valid integer value to compare against");
        };
        filters.push(Filter { kind, element, holds, value: i128::from(value) });
    }
    Ok(filters)
}

/// Reads any text as the part after a table's name: it is parsed or refused, and no other entry than the named one is
/// created.
pub fn fuzz_table_words(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let words: Vec<&str> = text.split(' ').collect();
    for key in [TableKey::Ip, TableKey::Ipv6, TableKey::Integer, TableKey::Str(8), TableKey::Bin(4)] {
        let datum = |kind, period_ms, elements| TableData { kind, period_ms, elements, block: 1 };
        let data = vec![
            datum(DataKind::Gpc0, 0, 1),
            datum(DataKind::Gpt, 0, 3),
            datum(DataKind::HttpReqRate, 1000, 1),
            datum(DataKind::ServerKey, 0, 1),
        ];
        let nowhere = Position { file: "".into(), line: 0, column: 0 };
        let (name, by_address) = ("fuzz".into(), false);
        let config = StickTable {
            name,
            key,
            size: 4,
            expire: None,
            nopurge: true,
            by_address,
            peers: None,
            of_peers: false,
            recv_only: false,
            aggregate: false,
            write_to: None,
            data,
            at: nowhere,
        };
        let table = Table::new(&config);
        let changed = change(&table, &words, None).is_ok();
        assert!(table.len() <= 1 && (table.len() == 1 || !changed));
        if let Ok(Chosen::Filtered(filters)) = chosen(&table, &words, "", "") {
            assert!(filters.len() <= FILTERS);
        }
    }
}

/// Returns the table named by the first word, and the words after it, or sends the client an error.
fn table<'c>(call: &'c mut Call<'_>) -> Option<(std::sync::Arc<Table>, Vec<&'c str>)> {
    let Some(table) = call.running.directory.table(call.arg(0)).cloned() else {
        call.say("No such table");
        return None;
    };
    let words = call.args.iter().skip(1).map(|word| std::str::from_utf8(word).unwrap_or("")).collect();
    Some((table, words))
}

fn head(table: &Table, out: &mut Vec<u8>) {
    table.expire();
    let (name, kind, size, used) = (&table.name, table.key.name(), table.size(), table.len());
    out.extend_from_slice(format!("# table: {name}, type: {kind}, size:{size}, used:{used}\n").as_bytes());
}

fn show(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        if call.arg(0).is_empty() {
            // HAProxy lists the last one first.
            let running = call.running.clone();
            running.directory.tables.iter().rev().for_each(|table| head(table, call.out.buffer()));
            return Ok(());
        }
        let Some((table, words)) = table(&mut call) else { return Ok(()) };
        match chosen(&table, &words, "Showing keys from", SHOW_WHAT) {
            Err(message) => call.say(message),
            Ok(Chosen::Key(_) | Chosen::Numbered(_)) if call.session.rights.level < StatsLevel::Operator => {
                call.say("Permission denied");
            }
            Ok(Chosen::Key(key)) => {
                let mut found = Vec::new();
                table.see(&key, |seen| append(&table, seen, &mut found));
                if !found.is_empty() {
                    head(&table, call.out.buffer());
                    call.out.push(found);
                }
            }
            Ok(Chosen::Numbered(number)) => {
                let mut found = Vec::new();
                each(&table, |seen| {
                    if seen.number == number {
                        append(&table, seen, &mut found);
                    }
                    true
                })
                .await;
                if found.is_empty() {
                    call.say(NOT_FOUND);
                } else {
                    head(&table, call.out.buffer());
                    call.out.push(found);
                }
            }
            Ok(chosen) => {
                head(&table, call.out.buffer());
                let mut next = Some((0, 0));
                while let Some(from) = next {
                    let out = call.out.buffer();
                    next = table.page(from, PAGE, |seen| {
                        let shown = match &chosen {
                            Chosen::Filtered(filters) => filters.iter().all(|filter| filter.matches(&seen.row)),
                            _ => true,
                        };
                        if shown {
                            append(&table, seen, out);
                        }
                        true
                    });
                    call.out.drain().await?;
                }
            }
        }
        Ok(())
    })
}

/// Passes all entries to `f`; untracked ones for which it returns `false` are removed.
async fn each(table: &Table, mut f: impl FnMut(Seen<'_>) -> bool) {
    let mut next = Some((0, 0));
    while let Some(from) = next {
        next = table.page(from, PAGE, &mut f);
        // A big table must not occupy the control thread for long.
        tokio::task::yield_now().await;
    }
}

/// Appends the line of an entry.
fn append(table: &Table, seen: Seen<'_>, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector can't fail.
    let _ = write!(out, "{:#x}: key=", seen.number);
    match &seen.key {
        Sample::Str(text) => append_escaped(text, out),
        Sample::Bin(bytes) => bytes.iter().for_each(|byte| crate::sample::append_hex(out, *byte)),
        key => key.as_value().append_text(out),
    }
    let shard = seen.shard;
    let _ = write!(out, " use={} exp={} shard={shard}", seen.trackers, seen.expires_ms);
    for data in table.data() {
        for element in 0..data.elements {
            let name = data.kind.name();
            let value = seen.row.get(data.kind, element).unwrap_or(0);
            let _ = match (data.kind, data.kind.form()) {
                (DataKind::GpcRate, _) => write!(out, " gpc{element}_rate({})={value}", data.period_ms),
                (DataKind::Gpc | DataKind::Gpt, _) => write!(out, " {name}{element}={value}"),
                (_, DataForm::Rate) => write!(out, " {name}({})={value}", data.period_ms),
                (_, DataForm::Name) => {
                    write!(out, " {name}={}", table.name_of(value).as_deref().unwrap_or("-"))
                }
                _ => write!(out, " {name}={value}"),
            };
        }
    }
    out.push(b'\n');
}

/// Appends a text as HAProxy dumps it: blanks, `=` and unprintable bytes are escaped.
fn append_escaped(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        let escape = match byte {
            b' ' | b'=' | b'\\' => *byte,
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            0x1B => b'e',
            byte if byte.is_ascii_graphic() => {
                out.push(*byte);
                continue;
            }
            byte => {
                out.extend_from_slice(b"\\x");
                crate::sample::append_hex(out, *byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escape]);
    }
}

async fn clear(mut call: Call<'_>) -> std::io::Result<()> {
    if call.args.is_empty() {
        call.say(CLEAR_WHAT);
        return Ok(());
    }
    let Some((table, words)) = table(&mut call) else { return Ok(()) };
    match chosen(&table, &words, "Removing keys from", CLEAR_WHAT) {
        Err(message) => call.say(message),
        Ok(Chosen::Key(key)) => {
            if !table.remove(&key) {
                call.say(IN_USE);
            }
        }
        Ok(Chosen::Numbered(number)) => {
            let mut trackers = None;
            each(&table, |seen| {
                let found = seen.number == number;
                trackers = if found { Some(seen.trackers) } else { trackers };
                !found
            })
            .await;
            match trackers {
                None => call.say(NOT_FOUND),
                Some(0) => {}
                Some(_) => call.say(IN_USE),
            }
        }
        Ok(chosen) => {
            let kept = |seen: Seen<'_>| match &chosen {
                Chosen::Filtered(filters) => !filters.iter().all(|filter| filter.matches(&seen.row)),
                _ => false,
            };
            each(&table, kept).await;
        }
    }
    Ok(())
}

async fn set(mut call: Call<'_>) -> std::io::Result<()> {
    if call.args.is_empty() {
        call.say(SET_WHAT);
        return Ok(());
    }
    let Some((table, words)) = table(&mut call) else { return Ok(()) };
    let of_number = match words[..] {
        ["ptr", ref rest @ ..] => match number(rest.first().copied().unwrap_or("")) {
            Ok(number) => key_of(&table, number).await.ok_or_else(|| NOT_FOUND.to_owned()),
            Err(message) => Err(message),
        }
        .map(Some),
        _ => Ok(None),
    };
    if let Err(message) = of_number.and_then(|key| change(&table, &words, key)) {
        call.say(message);
    }
    Ok(())
}

/// Returns the key of the entry that a listing shows with this number.
async fn key_of(table: &Table, number: u64) -> Option<Key> {
    let mut key = None;
    each(table, |seen| {
        if seen.number == number {
            key = Key::new(table.key, &seen.key.as_value());
        }
        true
    })
    .await;
    key
}

/// Creates the entry, then sets one datum after another up to the first one that cannot be set. `known`: the key, if
/// the words do not have it.
fn change(table: &Table, words: &[&str], known: Option<Key>) -> Result<(), String> {
    let data = match words {
        ["ptr", rest @ ..] => rest.get(1..).unwrap_or(&[]),
        // HAProxy empties the table here, which cannot be intended.
        ["key", rest @ ..] => rest.get(1..).unwrap_or(&[]),
        [first, ..] if first.starts_with("data.") => {
            return Err("content-based lookup is only supported with the \"show\" and \"clear\" actions".to_owned());
        }
        _ => return Err(SET_WHAT.to_owned()),
    };
    let key = match known {
        Some(key) => key,
        None => key(table, words.get(1).copied().unwrap_or(""), "Inserting keys into")?,
    };
    let changed = table.change(&key, |row| {
        for pair in data.chunks(2) {
            let Some(name) = pair[0].strip_prefix("data.") else {
                return Err("\"data.<type>\" followed by a value expected".to_owned());
            };
            let Some((kind, element)) = datum(name) else { return Err("Unknown data type".to_owned()) };
            if !table.has(kind) {
                return Err("Data type not stored in this table".to_owned());
            }
            let Some(value) = pair.get(1).and_then(|word| word.parse::<i64>().ok()) else {
                return Err("Require a valid integer value to store".to_owned());
            };
            if kind.form() != DataForm::Name && !row.set(kind, element, value as u64) {
                return Err("index out of range in this data array".to_owned());
            }
        }
        Ok(())
    });
    changed.unwrap_or_else(|| Err("Unable to allocate a new entry".to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_words_are_survived(data in "[ -~]{0,60}") {
            fuzz_table_words(data.as_bytes());
        }

        #[test]
        fn nearly_good_words_are_survived(
            words in proptest::collection::vec("key|data\\.(gpc0|gpt|gpt\\[[0-9]{1,10}\\]|http_req_rate|server_key|gpc1)|eq|ge|-?[0-9]{1,20}|127\\.0\\.0\\.1|::1|a", 0..9)
        ) {
            fuzz_table_words(words.join(" ").as_bytes());
        }
    }
}
