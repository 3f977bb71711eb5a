//! `crt-list` files, and the `ssl-f-use` lines of a frontend, which form a list, too (HAProxy configuration manual
//! 5.1).
//!
//! A line is a certificate, options between brackets and names that it answers for. The whole list is read before its
//! certificates are parsed, so that all cores share that work, and a list that several `bind` lines name is read once.

use std::rc::Rc;
use std::sync::Arc;

use sluicegate_tls::bulk::Bulk;
use sluicegate_tls::policy::{Entry, Policy};

use super::bind::{BindWords, Certificate};
use super::files::{Loader, Slot, digest, reason};
use super::named::{self, NamedFiles, Origin};
use super::words::{LIST_WORDS, PolicyWords, Reading, Subject};
use crate::diagnostic::{Diagnostics, Severity};
use crate::model::{self, Config, CrtList, CrtListLine, Position, TlsFiles};
use crate::source::MemoryFiles;

/// The longest line, as in HAProxy.
const LINE_BYTES: usize = 65535;
/// The maximum number of words of a line, as in HAProxy.
const WORDS_MAX: usize = 2048;

/// A line whose certificate is not loaded.
#[derive(Clone, Debug, Default)]
pub(super) struct ListLine {
    /// The path as written.
    path: String,
    files: NamedFiles,
    words: Option<PolicyWords>,
    /// The options as written.
    options: String,
    filters: Vec<String>,
    number: u32,
}

/// The option words of each line of a list, in the order of the [`CrtList`].
pub(super) type ListWords = Vec<Option<PolicyWords>>;

/// A list whose certificates are loaded, as `bind` lines use it.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) list: Arc<CrtList>,
    pub(super) words: Rc<ListWords>,
}

/// A word of a line and the offset of its text.
type Word<'a> = (&'a str, usize);

/// A line's words: those before the brackets, between them, and behind them.
struct Split<'a> {
    words: Vec<Word<'a>>,
    /// The words between the brackets.
    options: std::ops::Range<usize>,
    /// The text between the brackets.
    text: &'a str,
}

/// Splits a line: blanks and brackets separate words.
fn split(line: &str) -> Result<Split<'_>, String> {
    let mut words = Vec::new();
    let (mut open, mut close) = (None, None);
    let mut start = None;
    let mut text = "";
    for (at, c) in line.char_indices().chain([(line.len(), ' ')]) {
        let bracket = matches!(c, '[' | ']');
        if (c.is_ascii_whitespace() || bracket)
            && let Some(start) = start.take()
        {
            if words.len() == WORDS_MAX {
                return Err("too many args".to_owned());
            }
            words.push((&line[start..at], start));
        } else if !c.is_ascii_whitespace() && !bracket && start.is_none() {
            start = Some(at);
        }
        match c {
            '[' if open.is_some() => return Err("too many '['".to_owned()),
            '[' if words.is_empty() => return Err("file must start with a cert".to_owned()),
            '[' => open = Some((words.len(), at)),
            ']' => match open {
                _ if close.is_some() => return Err("too many ']'".to_owned()),
                None => return Err("missing '['".to_owned()),
                Some((_, from)) => {
                    close = Some(words.len());
                    text = line[from + 1..at].trim();
                }
            },
            _ => {}
        }
    }
    let first = open.map_or(1, |(words, _)| words).min(words.len());
    // As in HAProxy, the words after a bracket that is not closed are names, not options.
    let options = first..close.unwrap_or(first);
    Ok(Split { words, options, text })
}

/// Reads a line of a file; `None`: it is blank.
pub(super) fn line(text: &str, file: &Arc<str>, number: u32, loader: &Loader<'_>) -> Result<Option<ListLine>, String> {
    let Some(line) = split_line(text, file, number, loader)? else { return Ok(None) };
    let is_wild = |filter: &String| filter.len() > 1 && filter.starts_with('*');
    let excludes = |filter: &String| filter.len() > 1 && filter.starts_with('!') && !filter.starts_with("!*");
    if line.filters.iter().any(excludes) && !line.filters.iter().any(is_wild) {
        let message = "without a positive wildcard filter won't do anything!";
        let path = &line.path;
        loader.warn(format!(
            "parsing [{file}:{number}]: crt-list: negative filters on crt-list line \"{path}\" {message}"
        ));
    }
    Ok(Some(line))
}

/// The name of a line that is added at run time. As in HAProxy, messages of its options do not say where they are.
const ADDED: &str = "CLI";

fn split_line(text: &str, file: &Arc<str>, number: u32, loader: &Loader<'_>) -> Result<Option<ListLine>, String> {
    let here = |message: &str| format!("parsing [{file}:{number}]: {message}");
    let Split { words, options, text } = split(text).map_err(|message| here(&message))?;
    let Some((path, _)) = words.first() else { return Ok(None) };
    if options.start > 1 {
        loader.warn(here("malformated line, filters can't be between filename and options!"));
    }
    let mut line = ListLine { path: (*path).to_owned(), number, options: text.to_owned(), ..ListLine::default() };
    let mut next = options.start;
    while next < options.end {
        let (name, offset) = words[next];
        let values = match read_word(&mut line, name, &words[next + 1..options.end], file, offset, loader) {
            Some(Err(Fault::Option(message))) if **file == *ADDED => return Err(message),
            Some(Err(Fault::Option(message) | Fault::Line(message))) => return Err(here(&message)),
            Some(Ok(values)) => values,
            None => {
                let near = named::nearest(name).map(|near| format!("; did you mean '{near}'?"));
                return Err(here(&format!("unknown ssl keyword {name}{}", near.unwrap_or_default())));
            }
        };
        next += 1 + values;
    }
    line.options = line.normal_options();
    line.filters = words[options.end..].iter().map(|(name, _)| (*name).to_owned()).collect();
    for filter in line.filters.iter().filter(|filter| filter.len() > 2 && filter.starts_with("!*")) {
        loader.warn(here(&format!("crt-list: Unsupported exclusion (!) on a wildcard filter \"{filter}\"")));
    }
    Ok(Some(line))
}

/// The reason why a word is refused.
enum Fault {
    /// Its value.
    Option(String),
    /// The line: the value is missing, or is one of files.
    Line(String),
}

/// Reads a word between brackets; returns the number of its values, `None` if there is no such word.
fn read_word(
    line: &mut ListLine,
    name: &str,
    behind: &[Word<'_>],
    file: &Arc<str>,
    offset: usize,
    loader: &Loader<'_>,
) -> Option<Result<usize, Fault>> {
    let value = behind.first();
    let missing = || Some(Err(Fault::Line(format!("ssl args out of '[]' for {name}"))));
    if let Some(row) = LIST_WORDS.iter().find(|row| row.name == name) {
        if row.values > behind.len() {
            return missing();
        }
        let column = value.filter(|_| row.values > 0).map_or(offset, |(_, offset)| *offset) as u32 + 1;
        let at = Position { file: file.clone(), line: line.number, column };
        let reading = Reading { loader, name: row.name, at };
        let words = line.words.get_or_insert_default();
        let result = (row.word)(words, &reading, value.map_or("", |(value, _)| value));
        return Some(result.map(|()| row.values).map_err(Fault::Option));
    }
    // A line's first word is its certificate.
    if name == "crt" || !named::knows(name) {
        return None;
    }
    let Some((value, offset)) = value else { return missing() };
    let at = Position { file: file.clone(), line: line.number, column: *offset as u32 + 1 };
    loader.names_acme(name, value, &at);
    line.files.origin = Origin::List;
    let read = line.files.word(name, value)?;
    let read = read.map(|warning| {
        warning.into_iter().for_each(|warning| loader.warn(warning));
        1
    });
    Some(read.map_err(Fault::Line))
}

/// Parses a `crt-list` file.
fn file(path: &str, bytes: &[u8], loader: &Loader<'_>) -> Result<Vec<ListLine>, String> {
    let file: Arc<str> = path.into();
    let mut lines = Vec::new();
    let mut number = 0;
    for bytes in bytes.split_inclusive(|byte| *byte == b'\n') {
        number += 1;
        let fault = |message: &str| format!("parsing [{path}:{number}]: {message}");
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            return Err(fault(&format!("Stray NUL character at position {}", at + 1)));
        }
        if bytes.len() > LINE_BYTES {
            return Err(fault(&format!("line too long, limit is {LINE_BYTES} characters")));
        }
        let Some(content) = bytes.strip_suffix(b"\n") else {
            let message = "Missing LF on last line, file might have been truncated at position";
            return Err(fault(&format!("{message} {}", bytes.len() + 1)));
        };
        if content.starts_with(b"#") {
            continue;
        }
        lines.extend(line(&crate::bytes::to_text(content), &file, number, loader)?);
    }
    Ok(lines)
}

/// Loads the certificates of a list's lines. A bundle becomes several lines. If the list was changed at run time and
/// the file still has the digest that it had then, the changed lines are loaded instead.
fn load(
    name: &str,
    mut lines: Vec<ListLine>,
    file_digest: [u8; 32],
    number: u32,
    loader: &Loader<'_>,
) -> Result<Loaded, String> {
    let edited = loader.edited(name, file_digest);
    let mut batch = loader.batch();
    let mut slots = Vec::new();
    if let Some(edited) = &edited {
        let file: Arc<str> = name.into();
        lines.clear();
        for (index, kept) in edited.lines.iter().enumerate() {
            let again = line(&kept.text(), &file, kept.number, loader)?;
            lines.push(again.unwrap_or_default());
            let slot = batch.push_again(&kept.pair).map_err(|message| in_line(name, kept.number, &message))?;
            slots.push((index, slot));
        }
    } else {
        for (index, line) in lines.iter().enumerate() {
            let path = loader.crt_path(&line.path);
            let found = batch.add(&path, &line.files, name, line.number);
            let found = found.map_err(|message| in_line(name, line.number, &message))?;
            slots.extend(found.into_iter().map(|slot| (index, slot)));
        }
    }
    let pairs = batch.finish().map_err(|(slot, message)| {
        let number = slots.iter().find(|(_, found)| *found == slot).map_or(0, |(index, _)| lines[*index].number);
        in_line(name, number, &message)
    })?;
    let mut list = CrtList {
        name: name.into(),
        lines: Bulk::default(),
        last_number: edited.as_ref().map_or(number, |edited| edited.last_number),
        is_directory: false,
        file_digest,
        is_edited: edited.is_some(),
    };
    let mut words = ListWords::new();
    for (index, Slot(slot)) in slots {
        let line = &lines[index];
        list.lines.push(CrtListLine {
            number: line.number,
            pair: pairs[slot].clone(),
            options: line.options.clone(),
            filters: line.filters.clone(),
        });
        words.push(line.words.clone());
    }
    Ok(Loaded { list: Arc::new(list), words: Rc::new(words) })
}

fn in_line(name: &str, number: u32, message: &str) -> String {
    format!("error processing line {number} in file '{name}' : {message}")
}

/// Returns a `crt-list` file, read once.
pub(super) fn from_file(path: &str, loader: &Loader<'_>) -> Result<Loaded, String> {
    let path = path.trim_end_matches('/');
    if let Some(known) = loader.known_list(path) {
        return known;
    }
    let loaded = loader.read(path).map_err(|error| format!("cannot open file '{path}' : {}", reason(&error)));
    let loaded = loaded.and_then(|bytes| {
        let count = bytes.iter().filter(|byte| **byte == b'\n').count();
        let number = u32::try_from(count).unwrap_or(u32::MAX);
        load(path, file(path, &bytes, loader)?, digest(&[&bytes]), number, loader)
    });
    loader.keep_list(path, loaded.clone());
    loaded
}

/// Returns the list of the `ssl-f-use` lines of a frontend. As in HAProxy the last line comes first.
pub(super) fn of_frontend(name: &str, mut lines: Vec<ListLine>, loader: &Loader<'_>) -> Result<Loaded, String> {
    lines.reverse();
    let name = format!("@{name}");
    let texts: Vec<String> = lines.iter().map(|line| format!("{} {}", line.path, line.options)).collect();
    let number = lines.iter().map(|line| line.number).max().unwrap_or(0);
    let loaded = load(&name, lines, digest(&texts), number, loader);
    loader.keep_list(&name, loaded.clone());
    loaded
}

impl ListLine {
    /// Reads a word of an `ssl-f-use` line; returns the number of its values.
    pub(super) fn word(
        &mut self,
        name: &str,
        value: Option<&str>,
        at: Position,
        loader: &Loader<'_>,
    ) -> Result<usize, String> {
        let missing = || format!("'{name}' expects a value");
        if let Some(row) = LIST_WORDS.iter().find(|row| row.name == name) {
            if row.values > 0 && value.is_none() {
                return Err(format!("'{name}' : {}", row.missing));
            }
            let reading = Reading { loader, name: row.name, at };
            loader.stand_at(&reading.at);
            (row.word)(self.words.get_or_insert_default(), &reading, value.unwrap_or_default())?;
            return Ok(row.values);
        }
        if name == "crt" {
            if !self.path.is_empty() {
                return Err("'crt' already specified, aborting".to_owned());
            }
            self.path = value.ok_or_else(missing)?.to_owned();
            return Ok(1);
        }
        loader.names_acme(name, value.unwrap_or_default(), &at);
        match self.files.word(name, value.unwrap_or_default()) {
            None => {
                let near = named::nearest(name).map(|near| format!("; did you mean '{near}'?"));
                Err(format!("unknown crt keyword '{name}'{}", near.unwrap_or_default()))
            }
            Some(result) => {
                result?.into_iter().for_each(|warning| loader.warn(warning));
                self.files.origin = Origin::List;
                value.map(|_| 1).ok_or_else(missing)
            }
        }
    }

    /// Returns the options as `show ssl crt-list` prints them: HAProxy's options in HAProxy's order, then the files.
    fn normal_options(&self) -> String {
        let mut words = self.words.as_ref().map(PolicyWords::shown).unwrap_or_default();
        if let Some(update) = self.files.update {
            words.push(format!("ocsp-update {}", if update { "on" } else { "off" }));
        }
        let NamedFiles { key, ocsp, issuer, sctl, .. } = &self.files;
        for (name, file) in [("key", key), ("ocsp", ocsp), ("issuer", issuer), ("sctl", sctl)] {
            words.extend(file.as_ref().map(|file| format!("{name} {file}")));
        }
        words.extend(self.files.acme.as_ref().map(|section| format!("acme {section}")));
        words.extend(self.files.domains.as_ref().map(|domains| format!("domains {}", domains.join(","))));
        words.join(" ")
    }

    /// Completes an `ssl-f-use` line.
    pub(super) fn finish(&mut self, number: u32) -> Result<(), String> {
        if self.path.is_empty() {
            return Err("'ssl-f-use' expects 'crt FILE'".to_owned());
        }
        (self.options, self.number) = (self.normal_options(), number);
        Ok(())
    }
}

impl BindWords {
    /// Adds the certificates of a list.
    pub(super) fn add_list(&mut self, loaded: &Loaded) {
        let file: Arc<str> = loaded.list.name.clone();
        self.lists.push(file.clone());
        for (line, words) in loaded.list.lines.iter().zip(&*loaded.words) {
            let entry = Entry {
                pair: line.pair.clone(),
                filters: (!line.filters.is_empty()).then(|| line.filters.clone()),
                policy: None,
                is_default: self.certificates.is_empty(),
                from: (file.clone(), line.number),
            };
            self.certificates.push(Certificate { entry, words: words.clone() });
        }
    }
}

/// A line that the runtime API adds to a list, without its certificate.
#[derive(Clone, Debug)]
pub struct AddedLine {
    line: ListLine,
    /// The warnings about the line.
    pub warnings: Vec<String>,
}

impl AddedLine {
    /// Reads a line for a list. No file is read: CA files and revocation lists that its options name must be among
    /// `loaded`. Errors are HAProxy's texts. Returns `None` if the line is blank.
    pub fn parse(text: &str, config: &Config, loaded: &TlsFiles) -> Result<Option<AddedLine>, String> {
        let files = MemoryFiles::new();
        let loader = Loader::with(&files, &config.global.tls, loaded.clone());
        let line = split_line(text, &ADDED.into(), 1, &loader);
        // No file was looked for.
        let line = line.map_err(|message| message.replace(" (No such file or directory)", ""))?;
        Ok(line.map(|line| AddedLine { line, warnings: loader.take_warnings() }))
    }

    /// Returns the path of the certificate with `crt-base` before it.
    pub fn path(&self, config: &Config) -> String {
        super::files::below(config.global.tls.crt_base.as_deref(), &self.line.path)
    }

    /// Returns the path as it was written.
    pub fn written_path(&self) -> &str {
        &self.line.path
    }

    /// Returns the files that the line names, and the value of its `ocsp-update`.
    pub fn files(&self) -> (model::NamedFiles, Option<bool>) {
        (self.line.files.shown().unwrap_or_default(), self.line.files.update)
    }

    /// Returns whether the line has `acme` or `domains`.
    pub fn has_acme(&self) -> bool {
        self.line.files.acme.is_some() || self.line.files.domains.is_some()
    }

    /// Returns whether the line has more than a certificate.
    pub fn has_more(&self) -> bool {
        self.line.words.is_some() || !self.line.filters.is_empty() || self.line.files != NamedFiles::default()
    }

    /// Returns whether the line names files of the certificate.
    pub fn names_files(&self) -> bool {
        self.line.files != NamedFiles::default()
    }

    /// Returns the names that the certificate answers for; if there are none, it answers for its own names.
    pub fn filters(&self) -> &[String] {
        &self.line.filters
    }

    /// Returns the line of the list.
    pub fn finish(&self, pair: Arc<sluicegate_tls::pair::Pair>, number: u32) -> CrtListLine {
        let ListLine { options, filters, .. } = self.line.clone();
        CrtListLine { number, pair, options, filters }
    }

    /// Returns the settings of a `bind` line with those of this line applied, or the first error.
    pub fn policy(&self, bind: &Policy, proxy: &str, argument: &str, at: &Position) -> Result<Option<Policy>, String> {
        let Some(words) = &self.line.words else { return Ok(None) };
        let mut diagnostics = Diagnostics::new();
        let shown = format!("bind '{argument}'");
        let subject = Subject { proxy, line: &shown, server: None, at };
        let policy = words.for_list(bind, &subject, &mut diagnostics);
        match diagnostics.iter().find(|found| found.severity == Severity::Error) {
            Some(found) => Err(found.message.clone()),
            None => Ok(Some(policy)),
        }
    }
}

impl CrtListLine {
    /// Returns the line as a file would have it.
    pub fn text(&self) -> String {
        let mut text = self.pair.path.clone();
        text.push_str(&self.words());
        text
    }

    /// Returns the part of the line after the path: options between brackets and filters, each after a blank.
    pub fn words(&self) -> String {
        let mut text = String::new();
        if !self.options.is_empty() {
            text = format!(" [{}]", self.options);
        }
        for filter in &self.filters {
            text.push(' ');
            text.push_str(filter);
        }
        text
    }
}

/// Fuzz target: splits any bytes as a line, and asserts that the result is consistent.
pub(super) fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(Split { words, options, .. }) = split(text) {
        assert!(options.start <= options.end && options.end <= words.len().max(options.start));
        assert!(words.iter().all(|(word, at)| !word.is_empty() && text[*at..].starts_with(word)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<[&str; 3], &str>) {
        let found = split(text).map(|split| {
            let words: Vec<&str> = split.words.iter().map(|(word, _)| *word).collect();
            let (first, rest) = words.split_at(split.options.start.min(words.len()));
            let (options, filters) = rest.split_at(split.options.len().min(rest.len()));
            [first, options, filters].map(|part| part.join(" "))
        });
        let expected = expected.map(|parts| parts.map(str::to_owned)).map_err(str::to_owned);
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn lines_are_split_at_blanks_and_brackets() {
        check("", Ok(["", "", ""]));
        check("a.pem", Ok(["a.pem", "", ""]));
        check(" a.pem\t*.b.c !x.b.c \r", Ok(["a.pem", "", "*.b.c !x.b.c"]));
        check("a.pem [alpn h2 verify none] b c", Ok(["a.pem", "alpn h2 verify none", "b c"]));
        check("a.pem[no-alpn]b", Ok(["a.pem", "no-alpn", "b"]));
        check("a.pem b [no-alpn] c", Ok(["a.pem b", "no-alpn", "c"]));
        check("a.pem []", Ok(["a.pem", "", ""]));
        check("a.pem [b", Ok(["a.pem", "", "b"]));
        check("[no-alpn] a.pem", Err("file must start with a cert"));
        check("a [b] [c]", Err("too many '['"));
        check("a b] c", Err("missing '['"));
        check("a [b] c]", Err("too many ']'"));
    }
}
