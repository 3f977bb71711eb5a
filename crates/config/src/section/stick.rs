//! `stick-table` lines, the `table` lines of `peers` sections, and `stick` rules (HAProxy configuration manual 11).

use std::sync::Arc;

use crate::catalogue::{ConverterRow, FetchRow, Output};
use crate::diagnostic::Diagnostics;
use crate::expression::{StoreNames, is_ipv4};
use crate::model::{DataForm, DataKind, Expr, Position, StickTable, TableData, TableKey};
use crate::section::proxy::ProxyReader;
use crate::section::{Section, SectionKind};
use crate::unit::{self, TimeUnit};
use crate::word::Line;
use crate::{limits, suggest};

/// The longest key, bytes.
const KEY_MAX: i64 = 65_535;
/// Returns the default length of a key, in bytes; in that of a text, HAProxy counts the terminating zero.
fn default_length(name: &str) -> u32 {
    if name == "string" { 31 } else { 32 }
}

/// Records the tables of all sections, because expressions may name them before their section is read.
pub(crate) fn names(sections: &[Section], stores: &mut StoreNames<'_>) {
    for section in sections {
        let keyword = match section.kind {
            SectionKind::Frontend | SectionKind::Backend | SectionKind::Listen => "stick-table",
            SectionKind::Peers => "table",
            _ => continue,
        };
        for line in section.lines.iter().filter(|line| line.text(0) == keyword) {
            let after = |word: &str| (1..line.len()).find(|at| line.text(*at) == word).map(|at| line.text(at + 1));
            let length = after("len").and_then(|text| text.parse().ok());
            // Errors are reported when the line itself is read.
            let read = |name: &str| key(name, length.unwrap_or_else(|| default_length(name)));
            let key = after("type").and_then(read).unwrap_or(TableKey::Ip);
            let name = if keyword == "table" { name_of(&section.name, line.text(1)) } else { section.name.clone() };
            stores.tables.insert(name, key);
        }
    }
}

/// Returns the name of a table of a `peers` section.
fn name_of(section: &str, table: &str) -> Arc<str> {
    format!("{section}/{table}").into()
}

fn key(name: &str, length: u32) -> Option<TableKey> {
    Some(match name {
        "ip" | "ipv4" => TableKey::Ip,
        "ipv6" => TableKey::Ipv6,
        "integer" => TableKey::Integer,
        "string" => TableKey::Str(length),
        "binary" => TableKey::Bin(length),
        _ => return None,
    })
}

/// Returns whether an expression can be a table's key.
fn fits(expr: &Expr, key: TableKey) -> bool {
    let fetched = FetchRow::of(expr.fetch).output;
    let given = expr.converters.iter().fold(fetched, |given, call| match ConverterRow::of(call.converter).output {
        Output::Any => given,
        output => output,
    });
    if given == Output::Ip && key == TableKey::Integer {
        return is_ipv4(expr);
    }
    given.casts_to(match key {
        TableKey::Ip | TableKey::Ipv6 => Output::Ip,
        TableKey::Integer => Output::Int,
        TableKey::Str(_) => Output::Str,
        TableKey::Bin(_) => Output::Bin,
    })
}

impl ProxyReader<'_> {
    /// Reads `stick-table type T size N …`.
    pub(crate) fn stick_table(&mut self, line: &Line) {
        let proxy = &mut self.settings.proxy;
        if proxy.stick_table.is_some() {
            self.diagnostics.error(line.at(0), format!("'{}' has a 'stick-table' already", proxy.name));
            return;
        }
        let name = proxy.name.clone();
        proxy.stick_table = TableReader { line, diagnostics: self.diagnostics, next: 1, section: None }.read(name);
    }

    /// Returns the table that a word names, or the section's own, if `key` can be its key.
    pub(crate) fn table_for(&mut self, what: &str, name: &str, at: Position, key: &Expr) -> Option<Arc<str>> {
        match self.stores.find_table(name) {
            Err((message, hint)) => {
                let error = self.diagnostics.error(at, format!("'{what}': {message}"));
                if let Some(hint) = hint {
                    error.hint(hint);
                }
                None
            }
            Ok((table, kind)) if !fits(key, kind) => {
                let message =
                    format!("stick-table '{table}' uses a type ({}) incompatible with the '{what}' rule", kind.name());
                self.diagnostics.error(at, message);
                None
            }
            Ok((table, _)) => Some(table),
        }
    }
}

/// Reads `table NAME type T size N …` of a `peers` section.
pub(crate) fn table_of_peers(line: &Line, section: &Arc<str>, diagnostics: &mut Diagnostics) -> Option<StickTable> {
    let name = name_of(section, line.text(1));
    TableReader { line, diagnostics, next: 2, section: Some(section.clone()) }.read(name)
}

struct TableReader<'a, 'b> {
    line: &'a Line,
    diagnostics: &'b mut Diagnostics,
    next: usize,
    /// The `peers` section whose table it is.
    section: Option<Arc<str>>,
}

/// The words that may follow.
const ARGUMENTS: [&str; 11] = [
    "type",
    "size",
    "expire",
    "nopurge",
    "store",
    "srvkey",
    "brates-factor",
    "recv-only",
    "write-to",
    "aggregate",
    "peers",
];

impl<'a> TableReader<'a, '_> {
    fn read(mut self, name: Arc<str>) -> Option<StickTable> {
        let (mut kind, mut size, mut expire, mut nopurge, mut data) = (None, None, None, false, Vec::new());
        let (mut by_address, mut block) = (false, 1);
        let (of_peers, mut peers) = (self.section.is_some(), self.section.take());
        let (mut recv_only, mut aggregate, mut write_to) = (false, None, None);
        while self.next < self.line.len() {
            let word = self.line.text(self.next);
            match word {
                "type" => kind = Some(self.key()?),
                "size" => {
                    let found = unit::size(self.value(word)?, u64::from(u32::MAX >> 1));
                    let found =
                        found.and_then(|size| if size == 0 { Err("it must not be 0".into()) } else { Ok(size) });
                    size = Some(self.known(word, found)? as u32);
                }
                "expire" => {
                    let value = self.value(word)?;
                    let at = self.line.at(self.next - 1);
                    let found = self.diagnostics.duration(at, value, TimeUnit::Milliseconds);
                    expire = Some(self.known(word, found)?).filter(|time| !time.is_zero());
                }
                "nopurge" => {
                    nopurge = true;
                    self.next += 1;
                }
                "store" => {
                    let list = self.value(word)?;
                    self.store(list, &mut data)?;
                }
                "srvkey" => {
                    let value = self.value(word)?;
                    let found = match value {
                        "name" => Ok(false),
                        "addr" => Ok(true),
                        _ => Err(format!("expects name or addr, not '{value}'")),
                    };
                    by_address = self.known(word, found)?;
                }
                "brates-factor" => {
                    let found = unit::integer(self.value(word)?, 1, 1024);
                    block = self.known(word, found)? as u32;
                }
                "recv-only" => {
                    recv_only = true;
                    self.next += 1;
                }
                "aggregate" => {
                    aggregate = Some(self.line.at(self.next));
                    self.next += 1;
                }
                "write-to" => write_to = Some(self.value(word)?.into()),
                "peers" if !of_peers => peers = Some(self.value(word)?.into()),
                other => {
                    let known = &ARGUMENTS[..ARGUMENTS.len() - usize::from(of_peers)];
                    let near = suggest::nearest(other, known.iter().copied());
                    let message = format!("unknown argument '{other}' of '{}'", self.line.text(0));
                    self.diagnostics.error(self.line.at(self.next), message).did_you_mean(near);
                    return None;
                }
            }
        }
        let (Some(key), Some(size)) = (kind, size) else {
            let what = if kind.is_none() { "type" } else { "size" };
            let keyword = self.line.text(0);
            let error = self.diagnostics.error(self.line.at(self.line.len()), format!("'{keyword}' needs a '{what}'"));
            let name = if of_peers { " NAME" } else { "" };
            error.hint(format!("for example '{keyword}{name} type ip size 1m expire 30s store http_req_rate(10s)'"));
            return None;
        };
        if let (Some(at), None) = (&aggregate, &peers) {
            let error = self.diagnostics.error(at.clone(), "'aggregate' of 'stick-table' needs 'peers'");
            error.hint("name the 'peers' section whose nodes are summed up");
        }
        let rates = data.iter_mut().filter(|data| matches!(data.kind, DataKind::BytesInRate | DataKind::BytesOutRate));
        rates.for_each(|data| data.block = block);
        let (aggregate, at) = (aggregate.is_some(), self.line.at(0));
        self.exclusive(&data).then_some(StickTable {
            name,
            key,
            size,
            expire,
            nopurge,
            by_address,
            peers,
            of_peers,
            recv_only,
            aggregate,
            write_to,
            data,
            at,
        })
    }

    /// Returns the word after a keyword, and skips both.
    fn value(&mut self, keyword: &str) -> Option<&'a str> {
        self.next += 2;
        if self.next > self.line.len() {
            let message = format!("'{keyword}' of '{}' expects a value", self.line.text(0));
            self.diagnostics.error(self.line.at(self.next - 1), message);
            return None;
        }
        Some(self.line.text(self.next - 1))
    }

    /// Returns the value of the last word, or reports an error.
    fn known<T>(&mut self, word: &str, found: Result<T, String>) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(message) => {
                let message = format!("'{word}' of '{}': {message}", self.line.text(0));
                self.diagnostics.error(self.line.at(self.next - 1), message);
                None
            }
        }
    }

    fn key(&mut self) -> Option<TableKey> {
        let name = self.value("type")?;
        if name != "string" && name != "binary" || self.line.text(self.next) != "len" {
            let found = key(name, default_length(name)).ok_or_else(|| format!("unknown type '{name}'"));
            return self.known("type", found);
        }
        let length = unit::integer(self.value("len")?, 1, KEY_MAX);
        key(name, self.known("len", length)? as u32)
    }

    /// Reads `NAME[(ARGUMENT[,ARGUMENT])],…`.
    fn store(&mut self, list: &str, data: &mut Vec<TableData>) -> Option<()> {
        let mut rest = list;
        while !rest.is_empty() {
            let name_len = rest.find([',', '(']).unwrap_or(rest.len());
            let (name, mut behind) = rest.split_at(name_len);
            let mut argument = "";
            if let Some(inside) = behind.strip_prefix('(') {
                let Some((found, after)) = inside.split_once(')') else {
                    return self.known("store", Err(format!("missing ')' behind '{name}'")));
                };
                (argument, behind) = (found, after);
            }
            let found = datum(name, argument);
            let found = self.known("store", found)?;
            if found.period_ms > 0 {
                let period = argument.rsplit(',').next().unwrap_or(argument);
                self.diagnostics.behind_unit(self.line.at(self.next - 1), period);
            }
            if data.iter().any(|other| other.kind == found.kind) {
                let message = format!("stick-table: store option '{name}' already enabled, ignored");
                self.diagnostics.warning(self.line.at(self.next - 1), message);
            } else {
                data.push(found);
            }
            rest = match behind.strip_prefix(',') {
                Some(rest) => rest,
                None if behind.is_empty() => "",
                None => return self.known("store", Err(format!("a comma was expected at '{behind}'"))),
            };
        }
        Some(())
    }

    /// Reports an error if a table has both an array and single data of the same kind, which are elements of the array.
    fn exclusive(&mut self, data: &[TableData]) -> bool {
        use DataKind::{Gpc, Gpc0, Gpc0Rate, Gpc1, Gpc1Rate, GpcRate, Gpt, Gpt0};
        let has = |kind: DataKind| data.iter().any(|datum| datum.kind == kind);
        let sets = [
            (Gpt, &[Gpt0][..], "'gpt' and 'gpt0'"),
            (Gpc, &[Gpc0, Gpc1][..], "'gpc' and 'gpc[0/1]'"),
            (GpcRate, &[Gpc0Rate, Gpc1Rate][..], "'gpc_rate' and 'gpc[0/1]_rate'"),
        ];
        let both = sets.iter().find(|(array, singles, _)| has(*array) && singles.iter().any(|kind| has(*kind)));
        if let Some((array, _, names)) = both {
            let message = format!("simultaneous usage of {names} in a same table is not permitted");
            let error = self.diagnostics.error(self.line.at(0), message);
            error.hint(format!("the first elements of '{}' are the others", array.name()));
        }
        both.is_none()
    }
}

/// Parses one element of a `store` list.
fn datum(name: &str, argument: &str) -> Result<TableData, String> {
    let Some(kind) = DataKind::named(name) else {
        let near = suggest::nearest(name, DataKind::ALL.iter().map(|(_, name, _)| *name));
        let near = near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
        return Err(format!("unknown '{name}'{near}"));
    };
    let (elements, period) = match (kind.is_array(), argument.split_once(',')) {
        (true, Some((elements, period))) => (elements, period),
        (true, None) => (argument, ""),
        (false, _) => ("", argument),
    };
    let elements = match kind.is_array() {
        true => unit::integer(elements, 1, limits::COUNTER_ELEMENTS as i64)
            .map_err(|message| format!("'{name}': {message}"))? as u32,
        false => 1,
    };
    let period_ms = match kind.form() {
        DataForm::Rate if period.is_empty() => {
            let example = if kind.is_array() { "2,10s" } else { "10s" };
            return Err(format!("'{name}' expects its period, for example '{name}({example})'"));
        }
        DataForm::Rate => match unit::time(period, TimeUnit::Milliseconds) {
            Ok(period) if !period.is_zero() => period.as_millis() as u32,
            Ok(_) => return Err(format!("'{name}': its period must not be 0")),
            Err(message) => return Err(format!("'{name}': {message}")),
        },
        _ if period.is_empty() => 0,
        _ => return Err(format!("'{name}' takes no period")),
    };
    Ok(TableData { kind, period_ms, elements, block: 1 })
}
