//! The `global` section (HAProxy configuration manual 3).
//!
//! Most keywords put one value into one field, so a row names the shape of its value and the field ([`Parser`]); only
//! those with a grammar of their own have a function.

mod cpu_map;
pub(super) mod http2;
mod keywords;
mod lua;
mod name_case;
mod stats_socket;
pub(super) mod tls;
mod unix_bind;
pub(super) mod without_effect;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use crate::Files;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::model::Global;
use crate::section::removed;
use crate::section::table::{self, Row, Table};
use crate::suggest;
use crate::unit::{self, SIZE_HINT, TIME_HINT, TimeUnit};
use crate::word::Line;

pub(crate) use keywords::KEYWORDS;
pub(crate) use name_case::read_file as read_name_cases;
pub(crate) use stats_socket::SecureLines;
pub use stats_socket::master_socket;

/// Reads the section line by line; several `global` sections add up, as in HAProxy.
#[derive(Default)]
pub(crate) struct GlobalReader {
    global: Global,
    secure: SecureLines,
}

/// One line while it is read.
struct Reading<'a> {
    /// The keyword, both words of it.
    name: &'static str,
    /// The number of words of the keyword: its first argument's index.
    first: usize,
    reader: &'a mut GlobalReader,
    env: &'a mut Environment,
    files: &'a dyn Files,
    diagnostics: &'a mut Diagnostics,
}

/// The type of a keyword's argument and its destination. The enum is private to the section, since it accesses the
/// reader's fields; the table's rows carry it in [`GlobalRow`].
enum Parser {
    /// The keyword alone; `no KEYWORD` takes it back where the row allows a negation.
    Flag(fn(&mut Global) -> &mut bool),
    /// A duration; 0 is none.
    Time(fn(&mut Global) -> &mut Option<Duration>),
    /// A whole number within these limits.
    Integer(i64, i64, fn(&mut Global, i64)),
    /// A size in bytes within these limits.
    Size(u64, u64, fn(&mut Global, usize)),
    /// A word.
    Text(fn(&mut Global) -> &mut Option<String>),
    /// A path.
    Path(fn(&mut Global) -> &mut Option<PathBuf>),
    /// One of these words; the function gets its index.
    OneOf(&'static [&'static str], fn(&mut Global, usize)),
    /// A function that parses the whole line, for keywords with a grammar of their own.
    Line(fn(&mut Reading<'_>, &Line)),
}

/// A row's parser.
pub(crate) struct GlobalRow(Parser);

/// Keywords that `no` may stand in front of, as in HAProxy.
const NEGATABLE: &[&str] =
    &["busy-polling", "insecure-fork-wanted", "numa-cpu-mapping", "set-dumpable", "strict-limits"];

/// Numbers with nothing behind them.
const WHOLE: &[&str] = &[
    "fd-hard-limit",
    "gid",
    "maxconn",
    "nbthread",
    "thread-groups",
    "thread-hard-limit",
    "tune.lua.forced-yield",
    "tune.lua.maxmem",
    "tune.recv_enough",
    "tune.stick-counters",
    "tune.zlib.memlevel",
    "tune.zlib.windowsize",
    "uid",
];

/// The maximum of HAProxy's `int`.
const INT: i64 = i32::MAX as i64;

/// The tables of keywords.
pub(super) static TABLES: [&Table<GlobalRow>; 4] =
    [&KEYWORDS, &tls::KEYWORDS, &http2::KEYWORDS, &without_effect::KEYWORDS];

/// Names in addition to those of [`KEYWORDS`], for "did you mean".
static OTHER_NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let others = TABLES[1..].iter().flat_map(|table| table.rows).map(|row| row.name);
    known::GLOBAL.iter().copied().chain(others).collect()
});

impl GlobalReader {
    /// Notes the file that is read next.
    pub(crate) fn begin(&mut self, file: &std::sync::Arc<str>) {
        self.global.default_paths.begin(file);
    }

    /// Notes that lines from this one on have the defaults of TLS that are set now.
    pub(crate) fn keep_tls_defaults(&mut self, line: &Line) {
        self.global.tls.keep_defaults(line.at(0));
    }

    /// Returns whether `program` sections are allowed.
    pub(crate) fn allows_programs(&self) -> bool {
        self.global.expose_deprecated
    }

    /// Reads one line.
    pub(crate) fn line(
        &mut self,
        line: &Line,
        env: &mut Environment,
        files: &dyn Files,
        diagnostics: &mut Diagnostics,
    ) {
        let negated;
        let line = if line.text(0) == "no" && NEGATABLE.contains(&line.text(1)) {
            negated = line.without_no();
            &negated
        } else {
            line
        };
        if removed::report_global(line, diagnostics) {
            return;
        }
        match TABLES.iter().find_map(|table| table.find(line.text(0), line.text(1))) {
            Some((row, first)) => {
                if table::arity(row, first, line, diagnostics) {
                    let errors = diagnostics.errors();
                    let mut reading = Reading { name: row.name, first, reader: self, env, files, diagnostics };
                    reading.parse(&row.parser.0, line);
                    if diagnostics.errors() == errors {
                        self.global.places.insert(row.name, line.at(0));
                    }
                }
            }
            None if line.text(0) == "no" => {
                let error = diagnostics.error(line.at(0), format!("'no' cannot stand before '{}'", line.text(1)));
                error.hint(format!("'no' is for {}", table::list(NEGATABLE)));
            }
            None => table::unknown(&KEYWORDS, &OTHER_NAMES, Contexts::GLOBAL, "global", line, diagnostics),
        }
    }

    /// Returns the whole section, once every line was read.
    pub(crate) fn finish(mut self) -> (Global, SecureLines) {
        let tag = self.global.log_tag.clone();
        self.global.log.iter_mut().for_each(|target| target.tag.clone_from(&tag));
        let unix_bind = self.global.unix_bind.clone();
        self.global.stats_sockets.iter_mut().for_each(|socket| unix_bind.apply_to_stats(socket));
        let tune = &mut self.global.tune;
        // HAProxy's own rule: the reserve is never more than half of a buffer.
        tune.maxrewrite = tune.maxrewrite.min(tune.bufsize / 2);
        (self.global, self.secure)
    }
}

impl Reading<'_> {
    fn parse(&mut self, parser: &Parser, line: &Line) {
        let given = line.text(self.first);
        match parser {
            Parser::Flag(field) => *field(&mut self.reader.global) = !line.negated,
            Parser::Time(field) => {
                match self.diagnostics.duration(line.at(self.first), given, TimeUnit::Milliseconds) {
                    Ok(time) => *field(&mut self.reader.global) = (!time.is_zero()).then_some(time),
                    Err(message) => self.wrong(line, message, Some(TIME_HINT)),
                }
            }
            Parser::Integer(min, max, set) => match self.number(given, *min, *max) {
                Ok(value) => set(&mut self.reader.global, value),
                Err(message) => self.wrong(line, message, None),
            },
            Parser::Size(min, max, set) => match unit::size(given, *max) {
                Ok(size) if size >= *min => set(&mut self.reader.global, size as usize),
                Ok(size) => self.wrong(line, format!("the value must be at least {min} (was {size})"), None),
                Err(message) => self.wrong(line, message, Some(SIZE_HINT)),
            },
            Parser::Text(field) => *field(&mut self.reader.global) = Some(given.to_owned()),
            Parser::Path(field) => *field(&mut self.reader.global) = Some(PathBuf::from(given)),
            Parser::OneOf(names, set) => match names.iter().position(|name| *name == given) {
                Some(index) => set(&mut self.reader.global, index),
                None => self.one_of(line, self.first, names),
            },
            Parser::Line(read) => read(self, line),
        }
    }

    /// Returns a number by HAProxy's rules for the keyword: most end at the first character that is no digit.
    fn number(&self, given: &str, min: i64, max: i64) -> Result<i64, String> {
        let read = if WHOLE.contains(&self.name) { unit::integer } else { unit::leading_integer };
        read(given, min, max)
    }

    /// Reports an error of the first argument.
    fn wrong(&mut self, line: &Line, message: String, hint: Option<&str>) {
        let error = self.diagnostics.error(line.at(self.first), format!("'{}': {message}", self.name));
        if let Some(hint) = hint {
            error.hint(hint);
        }
    }

    /// Reports a word that is not one of these.
    fn one_of(&mut self, line: &Line, index: usize, names: &[&str]) {
        let given = line.text(index);
        let message = format!("'{}' expects one of {}, not '{given}'", self.name, table::list(names));
        let near = suggest::nearest(given, names.iter().copied());
        self.diagnostics.error(line.at(index), message).did_you_mean(near);
    }

    /// HAProxy knows no empty variable: a name and a value are both needed.
    fn has_value(&mut self, line: &Line) -> bool {
        let empty = (1..3).find(|i| line.text(*i).is_empty());
        if let Some(index) = empty {
            self.diagnostics.error(line.at(index), format!("'{}' expects a name and a value", self.name));
        }
        empty.is_none()
    }
}

const fn row(
    name: &'static str,
    min: usize,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    parser: Parser,
) -> Row<GlobalRow> {
    Row { name, contexts: Contexts::GLOBAL, min, max, usage, docs, parser: GlobalRow(parser) }
}

/// Returns the keyword alone.
const fn flag(name: &'static str, docs: &'static str, field: fn(&mut Global) -> &mut bool) -> Row<GlobalRow> {
    row(name, 0, 0, "", docs, Parser::Flag(field))
}

/// One argument.
const fn one(name: &'static str, usage: &'static str, docs: &'static str, parser: Parser) -> Row<GlobalRow> {
    row(name, 1, 1, usage, docs, parser)
}

/// Returns the row of a keyword with a grammar of its own.
const fn line(
    name: &'static str,
    min: usize,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    read: fn(&mut Reading<'_>, &Line),
) -> Row<GlobalRow> {
    row(name, min, max, usage, docs, Parser::Line(read))
}
