//! Diagnostics: errors, warnings and notices about a configuration, each with its position.
//!
//! A run collects everything; nothing stops at the first error. The text of a line is attached once, at the end,
//! so that a diagnostic costs two words more than its message while a file is being read.

use std::fmt;
use std::time::Duration;

use crate::limits;
use crate::model::Position;
use crate::unit::{self, TimeUnit};

/// The severity of a diagnostic, ordered from mild to severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Only shown with `-dD`: a valid line that is probably not intended.
    Diag,
    /// Information, such as the text of `.notice`.
    Notice,
    /// The configuration is accepted, but may not do what the user expects.
    Warning,
    /// The configuration is refused.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Diag => "diag",
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// Its position; `None` if it concerns the whole run.
    pub at: Option<Position>,
    /// The message, one sentence without a full stop.
    pub message: String,
    /// The hint.
    pub hint: Option<String>,
    /// The line as it stands in the file.
    pub line: Option<String>,
}

impl Diagnostic {
    /// Sets the hint: what to do about it.
    pub fn hint(&mut self, hint: impl Into<String>) -> &mut Self {
        self.hint = Some(crate::bytes::shown(hint.into()));
        self
    }

    /// Adds "did you mean 'x'?" if there is a suggestion.
    pub fn did_you_mean(&mut self, suggestion: Option<&str>) -> &mut Self {
        if let Some(name) = suggestion {
            self.hint = Some(format!("did you mean '{name}'?"));
        }
        self
    }
}

/// `file:line:col: error: …`, the line, a caret, `hint: …`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "{}:{}:{}: ", at.file, at.line, at.column)?;
        }
        write!(f, "{}: {}", self.severity, self.message)?;
        if let (Some(line), Some(at)) = (&self.line, &self.at) {
            let (shown, caret) = excerpt(line, at.column as usize);
            write!(f, "\n  {shown}\n  {caret}^")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// The number of bytes of a line that are shown around a position.
const EXCERPT: usize = 160;

/// Returns the part of a line around a column, and the blanks before the caret. Tabs stay tabs in both, so the caret
/// stands under its character on any terminal.
fn excerpt(line: &str, column: usize) -> (String, String) {
    let column = column.max(1) - 1;
    let mut start = column.saturating_sub(EXCERPT * 3 / 4);
    if start > 0 {
        while start < line.len() && !line.is_char_boundary(start) {
            start += 1;
        }
    }
    let start = start.min(line.len());
    let mut end = (start + EXCERPT).min(line.len());
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let shown: String = line[start..end].chars().map(|c| if c.is_control() && c != '\t' { '?' } else { c }).collect();
    let mut caret = String::new();
    for (offset, c) in shown.char_indices() {
        if start + offset >= column {
            break;
        }
        caret.push(if c == '\t' { '\t' } else { ' ' });
    }
    (shown, caret)
}

/// All findings of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    errors: usize,
    left_off: usize,
}

impl Diagnostics {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding and returns it, so that a hint can be added.
    pub fn add(&mut self, severity: Severity, at: Option<Position>, message: impl Into<String>) -> &mut Diagnostic {
        if severity == Severity::Error {
            self.errors += 1;
        }
        // Beyond the limit the last one is overwritten, so that its builder still has something to write to.
        if self.list.len() >= limits::DIAGNOSTICS {
            self.left_off += 1;
            self.list.pop();
        }
        let message = crate::bytes::shown(message.into());
        self.list.push(Diagnostic { severity, at, message, hint: None, line: None });
        self.list.last_mut().expect("one was pushed just now")
    }

    /// Adds an error at a place.
    pub fn error(&mut self, at: Position, message: impl Into<String>) -> &mut Diagnostic {
        self.add(Severity::Error, Some(at), message)
    }

    /// Adds a warning at a place.
    pub fn warning(&mut self, at: Position, message: impl Into<String>) -> &mut Diagnostic {
        self.add(Severity::Warning, Some(at), message)
    }

    /// Adds an error about something that `expose-experimental-directives` would have to allow.
    pub(crate) fn experimental(&mut self, at: Position, what: &str) {
        let message = format!("{what} is experimental, must be allowed via a global 'expose-experimental-directives'");
        self.error(at, message);
    }

    /// Reads a duration at a position, with HAProxy's warning about text after its unit.
    pub(crate) fn duration(&mut self, at: Position, text: &str, unit: TimeUnit) -> Result<Duration, String> {
        let time = unit::time(text, unit)?;
        self.behind_unit(at, text);
        Ok(time)
    }

    /// Warns about text after the unit of a duration, if there is any.
    pub(crate) fn behind_unit(&mut self, at: Position, text: &str) {
        if let Some(found) = unit::behind_unit(text).chars().next() {
            let message = format!(
                "unexpected character '{found}' after the timer value '{text}', only (us=microseconds,ms=milliseconds,\
                 s=seconds,m=minutes,h=hours,d=days) are supported. This will be reported as an error in next versions."
            );
            self.warning(at, message);
        }
    }

    /// Returns whether there is such a finding already.
    pub(crate) fn contains(&self, at: &Position, message: &str) -> bool {
        self.list.iter().any(|found| found.at.as_ref() == Some(at) && found.message == message)
    }

    /// Returns whether the configuration is refused.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns the number of errors.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Returns the number of warnings that are kept.
    pub fn warnings(&self) -> usize {
        self.list.iter().filter(|d| d.severity == Severity::Warning).count()
    }

    /// Returns all of them, by file and line as they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Returns the number that are kept.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of diagnostics beyond [`limits::DIAGNOSTICS`].
    pub fn left_off(&self) -> usize {
        self.left_off
    }

    /// Sorts findings by file, in the order of `rank`, and by line; findings without a position come last.
    pub(crate) fn sort(&mut self, rank: impl Fn(&str) -> usize) {
        self.list.sort_by_key(|d| match &d.at {
            // Files that lines name come behind those of the configuration.
            Some(at) => (rank(&at.file), at.file.clone(), at.line),
            None => (usize::MAX, "".into(), 0),
        });
    }

    /// Sets the text of each finding's line.
    pub(crate) fn attach(&mut self, line: impl Fn(&Position) -> Option<String>) {
        for diagnostic in &mut self.list {
            if let (Some(at), None) = (&diagnostic.at, &diagnostic.line) {
                diagnostic.line = line(at);
            }
        }
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The findings, each followed by a line feed.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.list {
            writeln!(f, "{diagnostic}")?;
        }
        if self.left_off > 0 {
            writeln!(f, "notice: {} more are not shown", self.left_off)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(column: u32) -> Position {
        Position { file: "a.cfg".into(), line: 3, column }
    }

    #[track_caller]
    fn check(line: &str, column: u32, expected: &str) {
        let mut all = Diagnostics::new();
        all.error(at(column), "bad").hint("do better");
        all.attach(|_| Some(line.to_owned()));
        assert_eq!(all.to_string(), expected);
    }

    #[test]
    fn shows_line_and_caret() {
        check("\tbind x", 7, "a.cfg:3:7: error: bad\n  \tbind x\n  \t     ^\nhint: do better\n");
        check("é", 9, "a.cfg:3:9: error: bad\n  é\n   ^\nhint: do better\n");
        check(&"x".repeat(1000), 990, &{
            let shown = "x".repeat(131);
            format!("a.cfg:3:990: error: bad\n  {shown}\n  {}^\nhint: do better\n", " ".repeat(120))
        });
    }

    #[test]
    fn keeps_a_bounded_number() {
        let mut all = Diagnostics::new();
        for _ in 0..limits::DIAGNOSTICS + 5 {
            all.error(at(1), "bad");
        }
        assert_eq!((all.len(), all.errors(), all.left_off()), (limits::DIAGNOSTICS, limits::DIAGNOSTICS + 5, 5));
    }
}
