//! `.if`, `.elif`, `.else`, `.endif`, and the messages of `.notice`, `.warning` and `.alert` (configuration manual
//! 2.4).
//!
//! A condition is a number, nothing (false), or predicates joined by `!`, `&&`, `||` and parentheses. As in HAProxy a
//! branch is evaluated only if it may be taken, so `.if feature(X)` may guard lines that another version cannot parse;
//! every predicate is still parsed, and an unknown one is an error.

use sluicegate_tls::library;

use crate::BASELINE;
use crate::diagnostic::{Diagnostics, Severity};
use crate::environment::Environment;
use crate::limits;
use crate::model::Position;
use crate::suggest;
use crate::word::{self, Line};

/// HAProxy's names of features that this program has: those for which `feature(NAME)` is true.
pub const FEATURES: &[&str] = &[
    "ACCEPT4",
    "CRYPT_H",
    "EPOLL",
    "GETADDRINFO",
    "LIBCRYPT",
    "LINUX_CAP",
    "LINUX_SPLICE",
    "LINUX_TPROXY",
    "LUA",
    "MATH",
    "NETFILTER",
    "OPENSSL",
    "OPENSSL_AWSLC",
    "PCRE2",
    "PCRE2_JIT",
    "POLL",
    "PRCTL",
    "PROMEX",
    "SSL",
    "TFO",
    "THREAD",
    "THREAD_DUMP",
    "TPROXY",
    "ZLIB",
];

/// The names for which `enabled(NAME)` is true. To HAProxy 3.2 `KQUEUE` is another name of `EPOLL`.
const ENABLED: &[&str] = &["EPOLL", "FAST-FORWARD", "GETADDRINFO", "KQUEUE", "POLL", "REUSEPORT", "SPLICE"];

/// Predicates and their numbers of arguments.
const PREDICATES: &[(&str, usize)] = &[
    ("awslc_api_atleast", 1),
    ("awslc_api_before", 1),
    ("defined", 1),
    ("enabled", 1),
    ("feature", 1),
    ("openssl_version_atleast", 1),
    ("openssl_version_before", 1),
    ("ssllib_name_startswith", 1),
    ("streq", 2),
    ("strneq", 2),
    ("strstr", 2),
    ("version_atleast", 1),
    ("version_before", 1),
];

/// The directives: words that start with a dot.
pub(crate) const NAMES: &[&str] = &[".alert", ".diag", ".elif", ".else", ".endif", ".if", ".notice", ".warning"];

/// The state of a nested block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Branch {
    /// Its lines are read.
    Taken,
    /// No branch was taken yet.
    Waiting,
    /// A branch was taken already, or the block around it is not read.
    Done,
}

struct Block {
    branch: Branch,
    in_else: bool,
    at: Position,
}

/// The nested blocks of one file.
#[derive(Default)]
pub(crate) struct Blocks {
    stack: Vec<Block>,
}

impl Blocks {
    /// Returns whether lines are read here.
    pub(crate) fn active(&self) -> bool {
        self.stack.last().is_none_or(|b| b.branch == Branch::Taken)
    }

    /// Executes a line that starts with a dot.
    pub(crate) fn line(&mut self, line: &Line, env: &Environment, diagnostics: &mut Diagnostics) {
        match line.text(0) {
            ".if" => {
                if self.stack.len() >= limits::NESTED_CONDITIONS {
                    let message = format!("too many nested '.if', max is {}", limits::NESTED_CONDITIONS);
                    diagnostics.error(line.at(0), message);
                }
                let branch = if self.active() { evaluate(line, env, diagnostics) } else { Branch::Done };
                // Beyond the limit blocks are still counted, so that each '.endif' finds its own.
                self.stack.push(Block { branch, in_else: false, at: line.at(0) });
            }
            ".elif" => match self.stack.last_mut() {
                None => _ = diagnostics.error(line.at(0), "lone '.elif' with no matching '.if'"),
                Some(block) if block.in_else => {
                    diagnostics.error(line.at(0), "'.elif' after '.else' is not permitted");
                }
                Some(block) => {
                    block.branch = match block.branch {
                        Branch::Waiting => evaluate(line, env, diagnostics),
                        Branch::Taken | Branch::Done => Branch::Done,
                    }
                }
            },
            ".else" => {
                no_words(line, diagnostics);
                match self.stack.last_mut() {
                    None => _ = diagnostics.error(line.at(0), "lone '.else' with no matching '.if'"),
                    Some(block) if block.in_else => {
                        diagnostics.error(line.at(0), "'.else' after '.else' is not permitted");
                    }
                    Some(block) => {
                        block.in_else = true;
                        block.branch = match block.branch {
                            Branch::Waiting => Branch::Taken,
                            Branch::Taken | Branch::Done => Branch::Done,
                        }
                    }
                }
            }
            ".endif" => {
                no_words(line, diagnostics);
                if self.stack.pop().is_none() {
                    diagnostics.error(line.at(0), "lone '.endif' with no matching '.if'");
                }
            }
            _ if !self.active() => {}
            word @ (".notice" | ".warning" | ".alert" | ".diag") => {
                let severity = match word {
                    ".notice" => Severity::Notice,
                    ".warning" => Severity::Warning,
                    ".alert" => Severity::Error,
                    _ => Severity::Diag,
                };
                if line.len() > 2 {
                    let error = diagnostics.error(line.at(2), format!("'{word}' takes one message"));
                    error.hint("put the message between quotes");
                } else {
                    diagnostics.add(severity, Some(line.at(0)), format!("'{}'", line.text(1)));
                }
            }
            other => {
                let near = suggest::nearest(other, NAMES.iter().copied());
                diagnostics.error(line.at(0), format!("unknown directive '{other}'")).did_you_mean(near);
            }
        }
    }

    /// Ends the file: reports blocks that are not closed.
    pub(crate) fn finish(self, diagnostics: &mut Diagnostics) {
        for block in self.stack {
            diagnostics.error(block.at, "'.if' without its '.endif'");
        }
    }
}

/// Evaluates a condition for `-cc` as `.if` does, including quotes and variables; returns a message if it is invalid.
pub fn condition(text: &str, env: &Environment) -> Result<bool, String> {
    let unparsable = |message: &str| format!("unparsable conditional expression '{text}': {message}");
    let scope = word::Scope { env, file: "", line: 1, section: "" };
    let words = word::split(text.as_bytes(), &scope).map_err(|error| unparsable(error.message))?;
    let text = words.iter().map(word::Word::text).collect::<Vec<_>>().join(" ");
    let mut parser = Parser { text: &text, at: 0, env, depth: 0 };
    parser.whole().map_err(|problem| {
        let near = problem.suggestion.map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default();
        unparsable(&format!("{}{near}", problem.message))
    })
}

fn no_words(line: &Line, diagnostics: &mut Diagnostics) {
    if line.len() > 1 {
        let message = format!("unexpected argument '{}' for '{}'", line.text(1), line.text(0));
        diagnostics.error(line.at(1), message);
    }
}

fn evaluate(line: &Line, env: &Environment, diagnostics: &mut Diagnostics) -> Branch {
    let mut text = String::new();
    // The start of each word's text, to determine the position of an error.
    let mut starts = Vec::new();
    for word in &line.words[1..] {
        if !text.is_empty() {
            text.push(' ');
        }
        starts.push(text.len());
        text.push_str(word.text());
    }
    let mut parser = Parser { text: &text, at: 0, env, depth: 0 };
    match parser.whole() {
        Ok(true) => Branch::Taken,
        Ok(false) => Branch::Waiting,
        Err(problem) => {
            let index = starts.iter().rposition(|start| *start <= problem.at).unwrap_or(0);
            let offset = problem.at - starts.get(index).copied().unwrap_or(0);
            let at = line.within(index + 1, offset);
            let message = format!("unparsable conditional expression in '{}': {}", line.text(0), problem.message);
            let error = diagnostics.error(at, message);
            if let Some(name) = problem.suggestion {
                error.did_you_mean(Some(name));
            }
            // It is unknown which branch is right; the block is skipped, so that one mistake causes one error.
            Branch::Done
        }
    }
}

struct Problem {
    at: usize,
    message: String,
    suggestion: Option<&'static str>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    env: &'a Environment,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn problem<T>(&self, at: usize, message: impl Into<String>) -> Result<T, Problem> {
        Err(Problem { at, message: message.into(), suggestion: None })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn whole(&mut self) -> Result<bool, Problem> {
        self.blanks();
        if self.rest().is_empty() {
            return Ok(false);
        }
        let value = self.any()?;
        self.blanks();
        if self.rest().is_empty() { Ok(value) } else { self.problem(self.at, format!("unexpected '{}'", self.rest())) }
    }

    /// Parses terms joined by `||`. All are parsed, but only those that decide the result count; evaluation has no
    /// effects.
    fn any(&mut self) -> Result<bool, Problem> {
        let mut value = self.all()?;
        while self.take("||") {
            value |= self.all()?;
        }
        Ok(value)
    }

    fn all(&mut self) -> Result<bool, Problem> {
        let mut value = self.term()?;
        while self.take("&&") {
            value &= self.term()?;
        }
        Ok(value)
    }

    fn term(&mut self) -> Result<bool, Problem> {
        let mut negated = false;
        while self.take("!") {
            negated = !negated;
        }
        let value = if self.take("(") {
            self.depth += 1;
            if self.depth > limits::NESTED_PARENTHESES {
                return self.problem(self.at, "too many nested parentheses");
            }
            let value = self.any()?;
            if !self.take(")") {
                return self.problem(self.at, "missing ')'");
            }
            self.depth -= 1;
            value
        } else {
            self.predicate()?
        };
        Ok(value != negated)
    }

    fn predicate(&mut self) -> Result<bool, Problem> {
        self.blanks();
        let start = self.at;
        if self.rest().starts_with(['-', '+']) && self.rest().as_bytes().get(1).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        let length = self.rest().bytes().position(|b| !(b.is_ascii_alphanumeric() || b == b'_'));
        let word = &self.rest()[..length.unwrap_or(self.rest().len())];
        self.at += word.len();
        if word.is_empty() {
            return self
                .problem(start, if self.rest().is_empty() { "a term is missing" } else { "a term was expected" });
        }
        if word.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(word.bytes().any(|b| b != b'0'));
        }
        let Some((_, arity)) = PREDICATES.iter().find(|(name, _)| *name == word) else {
            let suggestion = suggest::nearest(word, PREDICATES.iter().map(|(name, _)| *name));
            return Err(Problem { at: start, message: format!("unknown predicate '{word}'"), suggestion });
        };
        if !self.rest().starts_with('(') {
            return self.problem(self.at, format!("'{word}' needs its argument between parentheses"));
        }
        let Some(length) = self.rest().find(')') else {
            return self.problem(self.at, "missing ')'");
        };
        let inside = &self.rest()[1..length];
        let args: Vec<&str> = if inside.is_empty() { Vec::new() } else { inside.split(',').collect() };
        // As in HAProxy, the only argument may be missing: it is empty.
        if args.len() > *arity || (args.len() < *arity && *arity > 1) {
            return self.problem(self.at, format!("'{word}' takes {arity} argument(s), not {}", args.len()));
        }
        let argument = |index: usize| args.get(index).copied().unwrap_or("");
        let value = self.value(word, argument(0), argument(1))?;
        self.at += length + 1;
        Ok(value)
    }

    fn value(&self, predicate: &str, first: &str, second: &str) -> Result<bool, Problem> {
        Ok(match predicate {
            "defined" => self.env.get(first).is_some(),
            "feature" => FEATURES.contains(&first),
            "enabled" => ENABLED.contains(&first),
            "streq" => first == second,
            "strneq" => first != second,
            "strstr" => first.contains(second),
            "version_atleast" => self.version(first)? <= baseline(),
            "version_before" => self.version(first)? > baseline(),
            "openssl_version_atleast" => self.openssl(first)? <= library::OPENSSL_VERSION,
            "openssl_version_before" => self.openssl(first)? > library::OPENSSL_VERSION,
            "awslc_api_atleast" => self.api(first)? <= library::API_VERSION,
            "awslc_api_before" => self.api(first)? > library::API_VERSION,
            _ => library::name().starts_with(first),
        })
    }

    /// Returns a version of OpenSSL as its number: four bits of the major version, eight each of minor version, fix and
    /// patch, four of the status, which is 15 of a release.
    fn openssl(&self, text: &str) -> Result<u32, Problem> {
        let bad = |_| Problem { at: self.at, message: format!("'{text}' is no version"), suggestion: None };
        let mut parts = text.splitn(3, '.');
        let mut part = |max: u32| -> Result<u32, Problem> {
            let number = parts.next().and_then(|part| part.parse().ok()).filter(|number| *number <= max);
            number.ok_or(()).map_err(bad)
        };
        let (major, minor) = (part(0xf)?, part(0xff)?);
        let rest = parts.next().ok_or(()).map_err(bad)?;
        let digits = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        let fix: u32 = rest[..digits].parse().ok().filter(|fix| *fix <= 0xff).ok_or(()).map_err(bad)?;
        let (patch, status) = match &rest[digits..] {
            "" => (0, 0xf),
            suffix => match suffix.strip_prefix('-') {
                Some(stage) => match stage.strip_prefix("beta") {
                    Some(number) => (0, number.parse().ok().filter(|n| *n <= 14).ok_or(()).map_err(bad)?),
                    None => (0, 0),
                },
                None if suffix.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                    let letters = suffix.bytes().map(|byte| u32::from(byte.to_ascii_uppercase() - b'A'));
                    (1 + letters.sum::<u32>(), 0xf)
                }
                None => return Err(bad(())),
            },
        };
        Ok(major << 28 | minor << 20 | fix << 12 | (patch & 0xff) << 4 | status)
    }

    /// Returns a version of AWS-LC's interface, which is a number.
    fn api(&self, text: &str) -> Result<u32, Problem> {
        let message = format!("'{text}' is no version");
        text.parse().map_err(|_| Problem { at: self.at, message, suggestion: None })
    }

    /// Returns a version as a number with HAProxy's order: `3.2-dev4` is before `3.2`, which is `3.2.0`; a fourth
    /// part and a suffix such as `-12` behind a release count as later.
    fn version(&self, text: &str) -> Result<Version, Problem> {
        let bad = |_| Problem { at: self.at, message: format!("'{text}' is no version"), suggestion: None };
        let (numbers, suffix) = text.split_once('-').unwrap_or((text, ""));
        let mut parts = [0u32; 4];
        let given: Vec<&str> = numbers.split('.').collect();
        if given.len() > 4 {
            return Err(bad(()));
        }
        for (part, text) in parts.iter_mut().zip(&given) {
            *part = text.parse().map_err(|_| bad(()))?;
        }
        let (stage, number) = if let Some(dev) = suffix.strip_prefix("dev") {
            (0, dev.split('-').next().unwrap_or("0").parse().unwrap_or(0))
        } else if let Some(rc) = suffix.strip_prefix("rc") {
            (1, rc.parse().unwrap_or(0))
        } else {
            (2, suffix.rsplit('-').next().unwrap_or("0").parse().unwrap_or(0))
        };
        Ok((parts, stage, number))
    }
}

/// Up to four parts; 0 for `dev`, 1 for `rc`, 2 for a release; the number of the `dev`, the `rc` or a commit.
type Version = ([u32; 4], u32, u32);

fn baseline() -> Version {
    ([BASELINE.0, BASELINE.1, BASELINE.2, 0], 2, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::Scope;

    fn run(condition: &str) -> Result<bool, String> {
        let mut env = Environment::new();
        env.set("HERE", "1");
        let text = format!(".if {condition}");
        let scope = Scope { env: &env, file: "", line: 1, section: "" };
        let words = word::split(text.as_bytes(), &scope).expect("it splits");
        let line = Line::new("f".into(), 1, words);
        let mut diagnostics = Diagnostics::new();
        let branch = evaluate(&line, &env, &mut diagnostics);
        match diagnostics.iter().next() {
            Some(found) => {
                let at = found.at.as_ref().map_or(0, |at| at.column);
                Err(format!("{at}: {} {}", found.message, found.hint.as_deref().unwrap_or("")))
            }
            None => Ok(branch == Branch::Taken),
        }
    }

    #[track_caller]
    fn check(condition: &str, expected: bool) {
        assert_eq!(run(condition), Ok(expected), "{condition}");
    }

    #[track_caller]
    fn refused(condition: &str, part: &str) {
        let message = run(condition).expect_err("it is refused");
        assert!(message.contains(part), "{condition}: {message}");
    }

    #[test]
    fn predicates() {
        check("", false);
        check("1", true);
        check("0", false);
        check("defined(HERE)", true);
        check("defined(NOT)", false);
        check("feature(THREAD)", true);
        check("feature(OPENSSL) && feature(SSL)", true);
        check("feature(OPENSSL_WOLFSSL)", false);
        check("ssllib_name_startswith(AWS-LC) && feature(OPENSSL_AWSLC)", true);
        check("ssllib_name_startswith(OpenSSL) || ssllib_name_startswith(BoringSSL)", false);
        check("openssl_version_atleast(1.1.1) && openssl_version_atleast(1.0.2k)", true);
        check("openssl_version_atleast(3.0.0) || openssl_version_atleast(1.1.1h)", false);
        check("openssl_version_before(3.0.0-beta1)", true);
        check("awslc_api_atleast(1) && awslc_api_before(100000)", true);
        check("enabled(EPOLL) && enabled(SPLICE) && enabled(FAST-FORWARD)", true);
        check("enabled(epoll) || enabled(EVPORTS)", false);
        check("streq(a,a)", true);
        check("strneq(a,a)", false);
        check("strstr(abc,bc)", true);
        check("\"streq($HERE,1)\"", true);
        check("version_atleast(2.4)", true);
        check("version_atleast(3.2-dev9)", true);
        check("version_atleast(3.2)", true);
        check("version_atleast(3.2.1)", false);
        check("version_atleast(3.2.0-12) || version_atleast(3.2.0.1) || version_atleast(4)", false);
        check("version_atleast(3) && -1000 && +2 && !-0", true);
        check("version_atleast(3.3-dev1)", false);
        check("version_before(3.3-dev0)", true);
        check("version_before(3.2)", false);
    }

    #[test]
    fn operators() {
        check("!0 && 1", true);
        check("!defined(NOT) && (feature(X) || streq(a,a))", true);
        check("0 && 0 || 1", true);
        check("1 || 0 && 0", true);
        check("!(1 || 0)", false);
        check("!!1", true);
        check("defined() || feature() || enabled()", false);
        check("streq(,)", true);
    }

    #[test]
    fn mistakes() {
        refused("frob()", "5: unparsable conditional expression in '.if': unknown predicate 'frob'");
        refused("featur(A)", "did you mean 'feature'?");
        refused("feature", "parentheses");
        refused("(1", "missing ')'");
        refused("1 &&", "a term is missing");
        refused("1 2", "unexpected '2'");
        refused("streq()", "takes 2");
        refused("streq(a)", "takes 2");
        refused("strstr(a)", "takes 2");
        refused("version_atleast(x)", "is no version");
        refused("openssl_version_atleast(1.1)", "is no version");
        refused("awslc_api_atleast(x)", "is no version");
        refused(&format!("{}1", "(".repeat(40)), "nested parentheses");
    }
}
