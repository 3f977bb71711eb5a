//! Match methods and patterns of ACLs (HAProxy configuration manual 7.1).

use crate::catalogue::Output;
use crate::model::Matcher;
use crate::suggest;
use sluicegate_pattern::{Regex, hexadecimal, network};

/// A method of `-m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Found,
    Bool,
    Int,
    Ip,
    Bin,
    Len,
    Str,
    Sub,
    Beg,
    End,
    Dir,
    Dom,
    Reg,
}

pub(crate) const METHODS: [(&str, Method); 13] = [
    ("beg", Method::Beg),
    ("bin", Method::Bin),
    ("bool", Method::Bool),
    ("dir", Method::Dir),
    ("dom", Method::Dom),
    ("end", Method::End),
    ("found", Method::Found),
    ("int", Method::Int),
    ("ip", Method::Ip),
    ("len", Method::Len),
    ("reg", Method::Reg),
    ("str", Method::Str),
    ("sub", Method::Sub),
];

impl Method {
    /// Returns the method that a name stands for.
    pub(crate) fn named(name: &str) -> Result<Method, Option<&'static str>> {
        let found = METHODS.iter().find(|(n, _)| *n == name).map(|(_, method)| *method);
        found.ok_or_else(|| suggest::nearest(name, METHODS.map(|(n, _)| n)))
    }

    /// Returns the method that a type implies; a variable's type is not known, so it must be given.
    pub(crate) fn of(output: Output) -> Option<Method> {
        match output {
            Output::Any => None,
            Output::Bool => Some(Method::Bool),
            Output::Int => Some(Method::Int),
            Output::Ip => Some(Method::Ip),
            Output::Str | Output::Method => Some(Method::Str),
            Output::Bin => Some(Method::Bin),
        }
    }

    /// Returns the corresponding method of pattern files; `None` for a method without patterns.
    pub(crate) fn in_files(self) -> Option<sluicegate_pattern::Method> {
        use sluicegate_pattern::Method as In;
        Some(match self {
            Method::Found | Method::Bool => return None,
            Method::Int => In::Int,
            Method::Ip => In::Ip,
            Method::Bin => In::Bin,
            Method::Len => In::Len,
            Method::Str => In::Str,
            Method::Sub => In::Sub,
            Method::Beg => In::Beg,
            Method::End => In::End,
            Method::Dir => In::Dir,
            Method::Dom => In::Dom,
            Method::Reg => In::Reg,
        })
    }

    /// Returns whether the method has patterns.
    pub(crate) fn takes_patterns(self) -> bool {
        !matches!(self, Method::Found | Method::Bool)
    }
}

/// Patterns being collected into a matcher.
pub(crate) struct PatternReader {
    method: Method,
    ignore_case: bool,
    matcher: Matcher,
    /// `gt`, `lt`…, which applies to the integers after it.
    operator: Option<Operator>,
    /// Numbers are versions, `MAJOR.MINOR`.
    dotted: bool,
}

#[derive(Clone, Copy)]
enum Operator {
    Eq,
    Gt,
    Ge,
    Lt,
    Le,
}

impl PatternReader {
    pub(crate) fn new(method: Method, ignore_case: bool) -> Self {
        let matcher = match method {
            Method::Found => Matcher::Found,
            Method::Bool => Matcher::Bool,
            Method::Int => Matcher::Int(Vec::new()),
            Method::Len => Matcher::Len(Vec::new()),
            Method::Ip => Matcher::Ip(Vec::new()),
            Method::Bin => Matcher::Bin(Vec::new()),
            Method::Str => Matcher::Str(Vec::new()),
            Method::Sub => Matcher::Sub(Vec::new()),
            Method::Beg => Matcher::Beg(Vec::new()),
            Method::End => Matcher::End(Vec::new()),
            Method::Dir => Matcher::Dir(Vec::new()),
            Method::Dom => Matcher::Dom(Vec::new()),
            Method::Reg => Matcher::Reg(Vec::new()),
        };
        PatternReader { method, ignore_case, matcher, operator: None, dotted: false }
    }

    /// Reads numbers as versions.
    pub(crate) fn dotted(self, dotted: bool) -> Self {
        PatternReader { dotted, ..self }
    }

    /// Adds one pattern.
    pub(crate) fn add(&mut self, pattern: &[u8]) -> Result<(), String> {
        let ignore_case = self.ignore_case;
        let text = || String::from_utf8_lossy(pattern);
        let folded = || if ignore_case { pattern.to_ascii_lowercase() } else { pattern.to_vec() };
        match &mut self.matcher {
            Matcher::Found | Matcher::Bool => {}
            Matcher::Int(ranges) | Matcher::Len(ranges) => match &*text() {
                "eq" => self.operator = Some(Operator::Eq),
                "gt" => self.operator = Some(Operator::Gt),
                "ge" => self.operator = Some(Operator::Ge),
                "lt" => self.operator = Some(Operator::Lt),
                "le" => self.operator = Some(Operator::Le),
                pattern => ranges.push(range(pattern, self.operator, if self.dotted { version } else { integer })?),
            },
            Matcher::Ip(networks) => match network(&text()) {
                Some(network) => networks.push(network),
                None => return Err(format!("'{}' is no address or network (names are not resolved here)", text())),
            },
            Matcher::Bin(list) => {
                list.push(hexadecimal(pattern).ok_or_else(|| format!("'{}' is not hexadecimal", text()))?)
            }
            Matcher::Str(list)
            | Matcher::Sub(list)
            | Matcher::Beg(list)
            | Matcher::End(list)
            | Matcher::Dir(list)
            | Matcher::Dom(list) => list.push(folded()),
            Matcher::Reg(list) => {
                list.push(Regex::without_groups(pattern, ignore_case).map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }

    /// Returns the numbers in the notation of pattern files: ranges without operators.
    pub(crate) fn ranges(&self) -> Option<Vec<Vec<u8>>> {
        let (Matcher::Int(ranges) | Matcher::Len(ranges)) = &self.matcher else { return None };
        let text = |&(low, high): &(i64, i64)| match (low, high) {
            (low, high) if low == high => low.to_string(),
            (i64::MIN, high) => format!(":{high}"),
            (low, i64::MAX) => format!("{low}:"),
            (low, high) => format!("{low}:{high}"),
        };
        // A reversed range holds nothing.
        Some(ranges.iter().filter(|(low, high)| low <= high).map(|range| text(range).into_bytes()).collect())
    }

    /// Returns the matcher; an operator that no number followed is an error.
    pub(crate) fn finish(self) -> Result<Matcher, String> {
        if let (Some(_), Matcher::Int(ranges) | Matcher::Len(ranges)) = (self.operator, &self.matcher)
            && ranges.is_empty()
        {
            return Err("a comparison operator needs a number behind it".to_owned());
        }
        Ok(self.matcher)
    }

    /// Returns the notice of `check` about a pattern that needs backtracking.
    pub(crate) fn notice(&self) -> Option<String> {
        match &self.matcher {
            Matcher::Reg(list) => list.iter().find_map(Regex::notice),
            _ => None,
        }
    }

    pub(crate) fn method(&self) -> Method {
        self.method
    }
}

fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// `MAJOR.MINOR`, or `MAJOR` alone: the major number times 65536, plus the minor one.
fn version(text: &str) -> Option<i64> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    Some((i64::from(major.parse::<u16>().ok()?) << 16) + i64::from(minor.parse::<u16>().ok()?))
}

/// Returns the ends of a range: `LOW:HIGH`, or `LOW-HIGH` as in old files.
fn bounds(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').or_else(|| if integer(text).is_some() { None } else { text.split_once('-') })
}

fn range(text: &str, operator: Option<Operator>, parse: fn(&str) -> Option<i64>) -> Result<(i64, i64), String> {
    let bad = || format!("'{text}' is neither a number nor a range");
    let number = |text: &str| parse(text).ok_or_else(bad);
    if let Some((low, high)) = bounds(text) {
        if matches!(operator, Some(Operator::Gt | Operator::Ge | Operator::Lt | Operator::Le)) {
            return Err(format!("'{text}' is a range, which only 'eq' compares"));
        }
        let low = if low.is_empty() { i64::MIN } else { number(low)? };
        let high = match high {
            "" => i64::MAX,
            // HAProxy reads a sign without digits as 0: generated files have `eq -- 200`.
            "-" => 0,
            high => number(high)?,
        };
        return if low <= high { Ok((low, high)) } else { Err(format!("the range '{text}' is empty")) };
    }
    let value = number(text)?;
    Ok(match operator {
        None | Some(Operator::Eq) => (value, value),
        // The range above the greatest number is empty, which a reversed range is too.
        Some(Operator::Gt) => value.checked_add(1).map_or((i64::MAX, i64::MIN), |low| (low, i64::MAX)),
        Some(Operator::Ge) => (value, i64::MAX),
        Some(Operator::Lt) => value.checked_sub(1).map_or((i64::MAX, i64::MIN), |high| (i64::MIN, high)),
        Some(Operator::Le) => (i64::MIN, value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(method: &str, ignore_case: bool, patterns: &[&str]) -> Result<String, String> {
        let method = Method::named(method).expect("a method");
        let mut reader = PatternReader::new(method, ignore_case);
        patterns.iter().try_for_each(|p| reader.add(p.as_bytes()))?;
        Ok(match reader.finish()? {
            Matcher::Str(list) | Matcher::Bin(list) => format!("{list:?}"),
            other => format!("{other:?}"),
        })
    }

    #[track_caller]
    fn check(method: &str, patterns: &[&str], expected: &str) {
        assert_eq!(run(method, false, patterns).as_deref(), Ok(expected));
    }

    #[track_caller]
    fn refused(method: &str, patterns: &[&str], part: &str) {
        let message = run(method, false, patterns).expect_err("it is refused");
        assert!(message.contains(part), "{message}");
    }

    #[test]
    fn integers() {
        let (min, max) = (i64::MIN, i64::MAX);
        check("int", &["5", "1:3", "10:", ":0"], &format!("Int([(5, 5), (1, 3), (10, {max}), ({min}, 0)])"));
        check("int", &["gt", "5"], &format!("Int([(6, {max})])"));
        check("int", &["le", "5", "eq", "9"], &format!("Int([({min}, 5), (9, 9)])"));
        check("int", &["-5"], "Int([(-5, -5)])");
        check("int", &["200-299", "500-"], &format!("Int([(200, 299), (500, {max})])"));
        check("int", &["eq", "--", "200"], &format!("Int([({min}, 0), (200, 200)])"));
        refused("int", &["3-1"], "empty");
        check("len", &["lt", "3"], &format!("Len([({min}, 2)])"));
        check("int", &["gt", "9223372036854775807"], &format!("Int([({max}, {min})])"));
        refused("int", &["gt"], "needs a number");
        refused("int", &["x"], "neither a number");
        refused("int", &["3:1"], "empty");
        refused("int", &["gt", "1:3"], "is a range");
        refused("int", &["99999999999999999999"], "neither a number");
    }

    #[test]
    fn others() {
        check("ip", &["10.0.0.0/8", "::1"], "Ip([(10.0.0.0, 8), (::1, 128)])");
        check("bin", &["00ff"], "[[0, 255]]");
        assert_eq!(run("str", true, &["Ab"]).as_deref(), Ok("[[97, 98]]"));
        assert!(run("reg", false, &["^/(a|b)$"]).is_ok());
        refused("ip", &["localhost"], "no address");
        refused("bin", &["0"], "not hexadecimal");
        refused("reg", &["("], "regex '(' is invalid");
        refused("reg", &[r"\w{1000}{1000}"], "invalid");
        for (name, method) in METHODS {
            assert_eq!(Method::named(name), Ok(method));
        }
        assert_eq!(Method::named("regex"), Err(Some("reg")));
    }
}
