//! A table of keywords: rows, a hash index over them, and the diagnostics for a word without a row.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::catalogue::Contexts;
use crate::catalogue::known::{self as names, is_known};
use crate::diagnostic::Diagnostics;
use crate::suggest;
use crate::word::Line;

/// One keyword, with everything that the program knows about it.
pub(crate) struct Row<P: 'static> {
    /// One or two words, e.g. `maxconn`, `timeout client`.
    pub(crate) name: &'static str,
    /// The sections that have it.
    pub(crate) contexts: Contexts,
    /// The minimum number of arguments after the name.
    pub(crate) min: usize,
    /// The maximum number of arguments; `usize::MAX` if the parser decides.
    pub(crate) max: usize,
    /// The arguments as the reference shows them.
    pub(crate) usage: &'static str,
    /// The description, for the reference.
    pub(crate) docs: &'static str,
    /// The parser of its arguments.
    pub(crate) parser: P,
}

impl<P> Row<P> {
    /// Returns the row without its parser, so that its arity can be changed.
    pub(crate) fn bare(&self) -> Row<()> {
        let Row { name, contexts, min, max, usage, docs, .. } = *self;
        Row { name, contexts, min, max, usage, docs, parser: () }
    }
}

/// Arity without an upper bound.
pub(crate) const MANY: usize = usize::MAX;

/// A static table with its index.
pub(crate) struct Table<P: 'static> {
    /// The rows, for the reference and the tests.
    pub(crate) rows: &'static [Row<P>],
    index: OnceLock<HashMap<&'static str, usize>>,
}

impl<P: 'static> Table<P> {
    pub(crate) const fn new(rows: &'static [Row<P>]) -> Self {
        Table { rows, index: OnceLock::new() }
    }

    fn index(&self) -> &HashMap<&'static str, usize> {
        self.index.get_or_init(|| self.rows.iter().enumerate().map(|(i, row)| (row.name, i)).collect())
    }

    /// Returns the row that words name and how many words the name has: two-word names win over one-word names.
    pub(crate) fn find(&self, first: &str, second: &str) -> Option<(&'static Row<P>, usize)> {
        if !second.is_empty()
            && let Some(row) = self.index().get(format!("{first} {second}").as_str())
        {
            return Some((&self.rows[*row], 2));
        }
        self.index().get(first).map(|row| (&self.rows[*row], 1))
    }

    /// Returns the second words of the names that start with `first`, within a context.
    fn seconds(&self, first: &str, context: Contexts) -> Vec<&'static str> {
        let within = self.rows.iter().filter(|row| row.contexts.intersects(context));
        within.filter_map(|row| row.name.strip_prefix(first)?.strip_prefix(' ')).collect()
    }

    /// Names of one context.
    pub(crate) fn names(&self, context: Contexts) -> impl Iterator<Item = &'static str> {
        self.rows.iter().filter(move |row| row.contexts.intersects(context)).map(|row| row.name)
    }
}

/// Reports an unsuitable keyword of a line: not supported yet, of another section, or unknown with the nearest name.
pub(crate) fn unknown<P: 'static>(
    table: &Table<P>,
    known: &'static [&'static str],
    context: Contexts,
    section: &str,
    line: &Line,
    diagnostics: &mut Diagnostics,
) {
    let (first, second) = (line.text(0), line.text(1));
    let seconds = table.seconds(first, context);
    if !seconds.is_empty() && table.find(first, "").is_none() {
        let both = format!("{first} {second}");
        if second.is_empty() {
            let error = diagnostics.error(line.at(1), format!("'{first}' expects one of {}", list(&seconds)));
            error.hint(format!("for example '{first} {}'", seconds[0]));
        } else if is_known(known, &both) {
            diagnostics.error(line.at(1), format!("'{both}' is not supported yet"));
        } else if is_known(names::NEWER_PROXY, &both) {
            diagnostics.error(line.at(1), format!("'{both}' is newer than HAProxy 3.2"));
        } else if table.find(first, second).is_some() {
            diagnostics.error(line.at(0), format!("'{both}' is not allowed in a '{section}' section"));
        } else {
            let prefix = format!("{first} ");
            let others = known.iter().filter_map(|name| name.strip_prefix(prefix.as_str()));
            let near = suggest::nearest(second, seconds.iter().copied().chain(others));
            let message = format!("unknown '{first}' keyword '{second}' in a '{section}' section");
            diagnostics.error(line.at(1), message).did_you_mean(near);
        }
        return;
    }
    if let Some((row, words)) = table.find(first, second) {
        let sections = row.contexts.section_names().join("', '");
        let name = if words == 2 { format!("{first} {second}") } else { first.to_owned() };
        let error = diagnostics.error(line.at(0), format!("'{name}' is not allowed in a '{section}' section"));
        error.hint(format!("it belongs in: '{sections}'"));
    } else if is_known(known, first) || (!second.is_empty() && is_known(known, &format!("{first} {second}"))) {
        diagnostics.error(line.at(0), format!("'{first}' is not supported yet"));
    } else if context == Contexts::GLOBAL && is_known(names::NEWER_GLOBAL, first)
        || is_known(names::NEWER_PROXY, first)
        || is_known(names::NEWER_PROXY, &format!("{first} {second}"))
    {
        diagnostics.error(line.at(0), format!("'{first}' is newer than HAProxy 3.2"));
    } else if let Some(places) = crate::section::places(first, second) {
        let error = diagnostics.error(line.at(0), format!("'{first}' is not allowed in a '{section}' section"));
        error.hint(format!("it belongs in: '{}'", places.section_names().join("', '")));
    } else {
        // Names of other contexts are suggested, too: the next run reports where they belong.
        let firsts = table.rows.iter().map(|row| row.name).chain(known.iter().copied());
        let near = suggest::nearest(first, firsts.map(|n| n.split(' ').next().unwrap_or(n)));
        // A line that is not indented more likely begins a section.
        let section_near = suggest::nearest(first, crate::section::section_names());
        let near = if line.at(0).column == 1 { section_near.or(near) } else { near.or(section_near) };
        let message = format!("unknown keyword '{first}' in '{section}' section");
        diagnostics.error(line.at(0), message).did_you_mean(near);
    }
}

/// Checks the number of arguments of a row; reports an error if it does not fit.
pub(crate) fn arity<P>(row: &Row<P>, name_words: usize, line: &Line, diagnostics: &mut Diagnostics) -> bool {
    let given = line.len() - name_words;
    if given < row.min {
        let error = diagnostics.error(line.at(line.len()), format!("'{}' expects {}", row.name, row.usage));
        error.hint(format!("write '{} {}'", row.name, row.usage));
        return false;
    }
    if given > row.max {
        let at = name_words + row.max;
        let message = format!("'{}' cannot handle unexpected argument '{}'", row.name, line.text(at));
        let error = diagnostics.error(line.at(at), message);
        if row.usage.is_empty() {
            error.hint(format!("'{}' takes no argument", row.name));
        } else {
            error.hint(format!("write '{} {}'", row.name, row.usage));
        }
        return false;
    }
    true
}

/// Warns about arguments from a word on, which HAProxy takes without a message.
pub(crate) fn ignored(line: &Line, from: usize, diagnostics: &mut Diagnostics) {
    if line.len() > from {
        diagnostics.warning(line.at(from), format!("'{}' is ignored", line.text(from)));
    }
}

/// `'a', 'b' and 'c'`.
pub(crate) fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("'{n}'")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
