//! ACLs and conditions over them (HAProxy configuration manual 7.1, 7.2 and 7.4).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_pattern::{IndexId, Kind, PatternFile};

use crate::catalogue::{FetchRow, Place, SUFFIXES};
use crate::diagnostic::{Diagnostics, Severity};
use crate::expression::{ExpressionReader, Problem, StoreNames, identifier};
use crate::model::{Acl, AclRef, AclTest, Condition, Position, Term};
use crate::pattern::{Method, PatternReader};
use crate::suggest;
use crate::word::{Line, Scope, split};

/// The ACLs that HAProxy predefines, as the tests they stand for.
const PREDEFINED: &[(&str, &str)] = &[
    ("FALSE", "bool(false)"),
    ("HTTP", "req.proto_http"),
    ("HTTP_1.0", "req.ver 1.0"),
    ("HTTP_1.1", "req.ver 1.1"),
    ("HTTP_2.0", "req.ver 2.0"),
    ("HTTP_3.0", "req.ver 3.0"),
    ("HTTP_CONTENT", "req.hdr(content-length) -m int gt 0"),
    ("HTTP_URL_ABS", "url_reg ^[^/:]*://"),
    ("HTTP_URL_SLASH", "url_beg /"),
    ("HTTP_URL_STAR", "url *"),
    ("LOCALHOST", "src 127.0.0.1/8 ::1"),
    ("METH_CONNECT", "method CONNECT"),
    ("METH_DELETE", "method DELETE"),
    ("METH_GET", "method GET HEAD"),
    ("METH_HEAD", "method HEAD"),
    ("METH_OPTIONS", "method OPTIONS"),
    ("METH_POST", "method POST"),
    ("METH_PUT", "method PUT"),
    ("METH_TRACE", "method TRACE"),
    ("RDP_COOKIE", "req.rdp_cookie_cnt gt 0"),
    ("REQ_CONTENT", "req.len gt 0"),
    ("TRUE", "bool(true)"),
    ("WAIT_END", "wait_end"),
];

/// Keywords of HAProxy's that exist for ACLs. Those of `MATCHED` also exist with the suffixes of `SUFFIXES`, as `path_beg`.
const KEYWORDS: &[&str] = &[
    "http_auth_group",
    "method",
    "payload",
    "payload_lv",
    "req.ssl_ver",
    "req_rdp_cookie",
    "req_rdp_cookie_cnt",
    "req_ssl_sni",
    "req_ssl_ver",
    "req_ver",
    "resp_ver",
    "ssl_fc_sni_end",
    "ssl_fc_sni_reg",
];
const MATCHED: &[&str] = &["base", "cook", "hdr", "path", "scook", "shdr", "url", "urlp"];

fn is_acl_keyword(name: &str) -> bool {
    let suffixed =
        || name.rsplit_once('_').is_some_and(|(stem, suffix)| MATCHED.contains(&stem) && SUFFIXES.contains(&suffix));
    KEYWORDS.contains(&name) || MATCHED.contains(&name) || suffixed()
}

/// Returns the names of the predefined ACLs, for the reference.
pub(crate) fn predefined() -> impl Iterator<Item = (&'static str, &'static str)> {
    PREDEFINED.iter().copied()
}

/// The ACLs of a section while it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acls {
    pub(crate) list: Vec<Acl>,
    index: HashMap<Arc<str>, u32>,
    /// The errors of ACLs of a `defaults` that name what does not exist. As in HAProxy they count once a rule uses the
    /// ACL; see [`ConditionReader::declare_in_defaults`].
    unresolved: RefCell<HashMap<u32, Vec<(Position, Problem)>>>,
}

/// An ACL of the section as its expressions see it.
pub(crate) struct DeclaredAcl {
    acl: Acl,
    /// An expression has named it.
    used: bool,
}

/// Resolves the ACLs that an expression names, each negated by `!`. They are copied, so that none can contain itself.
pub(crate) fn resolve(stores: &StoreNames<'_>, names: &[&str]) -> Result<Vec<Term>, String> {
    names.iter().map(|word| resolve_one(stores, word)).collect()
}

fn resolve_one(stores: &StoreNames<'_>, word: &str) -> Result<Term, String> {
    let name = word.strip_prefix('!').unwrap_or(word);
    let negated = name.len() < word.len();
    let declared = stores.acls.borrow_mut().get_mut(name).map(|declared| {
        declared.used = true;
        AclRef::Inline(Arc::new(declared.acl.clone()))
    });
    let predefined = || {
        let (_, test) = PREDEFINED.iter().find(|(known, _)| *known == name)?;
        let at = Position { file: "".into(), line: 0, column: 0 };
        let mut diagnostics = Diagnostics::default();
        let mut reader = ConditionReader { stores, diagnostics: &mut diagnostics };
        reader.predefined(name, test, Place::Declared, at)
    };
    let Some(acl) = declared.or_else(predefined) else {
        return Err(format!("ACL '{name}' not found: it must be declared before in the section"));
    };
    let AclRef::Inline(whole) = &acl else { return Err(format!("ACL '{name}' not found")) };
    let waits = |call: &crate::model::ConverterCall| crate::catalogue::ConverterRow::of(call.converter).waits;
    if whole.tests.iter().any(|test| test.expr.converters.iter().any(waits)) {
        return Err(format!("ACL '{name}' asks a store, which may wait, which an expression's ACL can't"));
    }
    Ok(Term { negated, acl })
}

/// The context for reading an ACL or a condition.
pub(crate) struct ConditionReader<'a> {
    pub(crate) stores: &'a StoreNames<'a>,
    pub(crate) diagnostics: &'a mut Diagnostics,
}

impl ConditionReader<'_> {
    /// Reads `acl NAME TEST…`.
    pub(crate) fn declare(&mut self, line: &Line, acls: &mut Acls) {
        self.declare_or(line, acls, |reader, _, at, problem| reader.problem(at, problem));
    }

    /// Reads an `acl` of a `defaults`, whose arguments are resolved when a rule uses it.
    pub(crate) fn declare_in_defaults(&mut self, line: &Line, acls: &mut Acls) {
        self.declare_or(line, acls, |reader, unresolved, at, problem| match problem.unresolved {
            true => unresolved.push((at, problem)),
            false => reader.problem(at, problem),
        });
    }

    fn declare_or(
        &mut self,
        line: &Line,
        acls: &mut Acls,
        failed: fn(&mut Self, &mut Vec<(Position, Problem)>, Position, Problem),
    ) {
        let name = line.text(1);
        if let Some(offset) = crate::word::bad_name_byte(name) {
            let bad = name[offset..].chars().next().unwrap_or('?');
            let message = format!("character '{bad}' is not permitted in acl name '{name}'");
            self.diagnostics.error(line.within(1, offset), message);
            return;
        }
        if name.eq_ignore_ascii_case("or") {
            let message = format!("acl name '{name}' will never match: it expresses a disjunction within a condition");
            self.diagnostics.error(line.at(1), message);
            return;
        }
        // The name is taken even if the test is wrong, so that its uses give no error of their own.
        let index = *acls.index.entry(name.into()).or_insert_with(|| {
            acls.list.push(Acl { name: name.into(), tests: Vec::new(), at: line.at(0) });
            acls.list.len() as u32 - 1
        });
        let mut unresolved = Vec::new();
        let test = self.test_or(line, 2, line.len(), Place::Declared, |reader, at, problem| {
            failed(reader, &mut unresolved, at, problem);
        });
        if let Some(test) = test {
            self.remember(name, &test, line);
            acls.list[index as usize].tests.push(test);
        }
        acls.unresolved.get_mut().entry(index).or_default().append(&mut unresolved);
    }

    /// Reports an error in an expression.
    fn problem(&mut self, at: Position, problem: Problem) {
        let error = self.diagnostics.error(at, problem.message);
        if let Some(hint) = problem.hint {
            error.hint(hint);
        }
    }

    /// Reads `if …` or `unless …` from a word to the end of the line; `None` without an error if nothing is left. Any
    /// other text is an error.
    pub(crate) fn condition(
        &mut self,
        line: &Line,
        start: usize,
        acls: &Acls,
        place: Place,
    ) -> Result<Option<Condition>, ()> {
        let unless = match line.text(start) {
            _ if start >= line.len() => return Ok(None),
            "if" => false,
            "unless" => true,
            other => {
                let message = format!("'{}' expects 'if' or 'unless' or nothing, not '{other}'", line.text(0));
                let near = suggest::nearest(other, ["if", "unless"]);
                self.diagnostics.error(line.at(start), message).did_you_mean(near);
                return Err(());
            }
        };
        let mut condition = Condition { unless, any: vec![Vec::new()] };
        let mut next = start + 1;
        let mut good = true;
        let mut ors = Vec::new();
        while next < line.len() {
            let mut word = line.text(next);
            // HAProxy takes this word in capitals, too.
            if word == "||" || word.eq_ignore_ascii_case("or") {
                condition.any.push(Vec::new());
                ors.push((next, word));
                next += 1;
                continue;
            }
            let mut negated = false;
            let mut offset = 0;
            loop {
                while let Some(rest) = word.strip_prefix('!') {
                    negated = !negated;
                    word = rest;
                    offset += 1;
                }
                // `! name` is as good as `!name`.
                if !word.is_empty() || offset == 0 || next + 1 >= line.len() {
                    break;
                }
                next += 1;
                word = line.text(next);
                offset = 0;
            }
            if word.starts_with('(') {
                let error = self.diagnostics.error(line.within(next, offset), format!("no such ACL: '{word}'"));
                error.hint("a test that has no name stands between braces, with blanks around them: 'if { path /a }'");
                return Err(());
            }
            let acl = if word == "{" {
                let Some(end) = (next + 1..line.len()).find(|i| line.text(*i) == "}") else {
                    let error = self.diagnostics.error(line.at(next), "missing closing '}' in condition");
                    error.hint("a blank must stand before and after each brace");
                    return Err(());
                };
                let test = self.test(line, next + 1, end, place);
                next = end;
                test.map(|test| AclRef::Inline(Arc::new(Acl { name: "".into(), tests: vec![test], at: line.at(next) })))
            } else {
                self.named(line, next, offset, word, acls, place)
            };
            match acl {
                Some(acl) => {
                    self.conflicts(line, next, word, &acl, acls, place);
                    let acl = without_request(acl, acls, place);
                    condition.any.last_mut().expect("there is always a group").push(Term { negated, acl });
                }
                None => good = false,
            }
            next += 1;
        }
        if good && start + 1 == line.len() {
            // HAProxy takes it without a word.
            let never = if unless { "always" } else { "never" };
            let warning =
                self.diagnostics.warning(line.at(start), format!("the condition is empty: it {never} applies"));
            warning.hint(format!("write '{} NAME' or '{} {{ TEST }}'", line.text(start), line.text(start)));
            condition.any.clear();
        } else if good && let Some(empty) = condition.any.iter().position(Vec::is_empty) {
            // HAProxy takes this without a word, too; an alternative without a test is none.
            let side = if empty == 0 { "before" } else { "behind" };
            let (index, word) = ors[empty.saturating_sub(1)];
            let message = format!("nothing stands {side} '{word}', which has no effect");
            self.diagnostics.warning(line.at(index), message);
            condition.any.retain(|terms| !terms.is_empty());
        }
        if good { Ok(Some(condition)) } else { Err(()) }
    }

    /// Keeps a test for the expressions that name its ACL; see [`resolve`].
    fn remember(&mut self, name: &str, test: &AclTest, line: &Line) {
        let mut known = self.stores.acls.borrow_mut();
        let entry = known.entry(name.into()).or_insert_with(|| DeclaredAcl {
            acl: Acl { name: name.into(), tests: Vec::new(), at: line.at(0) },
            used: false,
        });
        if entry.used {
            let message = format!("acl '{name}' is used by an expression above, which would not see this test");
            let error = self.diagnostics.error(line.at(1), message);
            error.hint(format!("move the line before the first 'acl({name})' or 'when(acl,{name})'"));
        }
        entry.acl.tests.push(test.clone());
    }

    fn named(
        &mut self,
        line: &Line,
        index: usize,
        offset: usize,
        name: &str,
        acls: &Acls,
        place: Place,
    ) -> Option<AclRef> {
        if let Some(found) = acls.index.get(name) {
            let unresolved = acls.unresolved.borrow_mut().remove(found).unwrap_or_default();
            unresolved.into_iter().for_each(|(at, problem)| self.problem(at, problem));
            return Some(AclRef::Named(*found));
        }
        if let Some((_, test)) = PREDEFINED.iter().find(|(n, _)| *n == name) {
            return self.predefined(name, test, place, line.at(index));
        }
        let at = line.within(index, offset);
        let names = acls.list.iter().map(|acl| &*acl.name).chain(PREDEFINED.iter().map(|(n, _)| *n));
        let near = suggest::nearest(name, names).map(str::to_owned);
        let error = self.diagnostics.error(at, format!("no such ACL: '{name}'"));
        match name {
            "&&" => _ = error.hint("terms are and-ed by writing them one after another"),
            name if name.eq_ignore_ascii_case("and") => {
                error.hint("terms are and-ed by writing them one after another");
            }
            name if name.eq_ignore_ascii_case("not") => _ = error.hint("'!' before a term negates it"),
            name if name.starts_with('{') || name.ends_with('}') => {
                error.hint("a blank must stand before and after each brace");
            }
            _ => _ = error.did_you_mean(near.as_deref()),
        }
        None
    }

    fn predefined(&mut self, name: &str, test: &str, place: Place, at: Position) -> Option<AclRef> {
        let env = crate::Environment::new();
        let scope = Scope { env: &env, file: "", line: 0, section: "" };
        let words = split(test.as_bytes(), &scope).expect("the table's tests are well-formed");
        let line = Line::new(at.file.clone(), at.line, words);
        // Read as a declaration: `conflicts` reports once whether the place has the needed sources.
        let _ = place;
        let test = self.test(&line, 0, line.len(), Place::Declared)?;
        Some(AclRef::Inline(Arc::new(Acl { name: name.into(), tests: vec![test], at })))
    }

    /// HAProxy's warning about a test that has nothing to look at where it stands, and the error about one that would
    /// have to wait where nothing may.
    fn conflicts(&mut self, line: &Line, index: usize, name: &str, acl: &AclRef, acls: &Acls, place: Place) {
        let acl = match acl {
            AclRef::Named(index) => &acls.list[*index as usize],
            AclRef::Inline(acl) => acl,
        };
        for test in &acl.tests {
            let row = FetchRow::of(test.expr.fetch);
            let what = if acl.name.is_empty() { "anonymous acl".to_owned() } else { format!("acl '{name}'") };
            let sides = self.stores.sides.get();
            if !row.needs.met_by(place.has(sides)) {
                let message = format!(
                    "{what} will never match because it uses keyword '{}' which is incompatible with '{}'",
                    row.names[0],
                    place.name_in(sides)
                );
                let warning = self.diagnostics.warning(line.at(index), message);
                warning.hint(format!("'{}' needs {}", row.names[0], row.needs.name()));
            }
            let waits = |call: &crate::model::ConverterCall| crate::catalogue::ConverterRow::of(call.converter).waits;
            if !place.may_wait() && test.expr.converters.iter().any(waits) && !acl.name.is_empty() {
                let message = format!("{what} asks a store, which may wait, which '{}' can't", place.name());
                let error = self.diagnostics.error(line.at(index), message);
                error.hint("call the store in a later rule set");
            }
        }
    }

    /// Reads a test: an expression, flags and patterns, from one word to before another.
    fn test(&mut self, line: &Line, start: usize, end: usize, place: Place) -> Option<AclTest> {
        self.test_or(line, start, end, place, Self::problem)
    }

    /// Reads a test, and gives an error in its expression to `failed`.
    fn test_or(
        &mut self,
        line: &Line,
        start: usize,
        end: usize,
        place: Place,
        failed: impl FnOnce(&mut Self, Position, Problem),
    ) -> Option<AclTest> {
        if start >= end {
            let error = self.diagnostics.error(line.at(start), "an acl expects a sample fetch");
            error.hint("for example '{ path_beg /static }'");
            return None;
        }
        let reader = ExpressionReader { stores: self.stores, place, acl: true };
        let text = line.text(start);
        if start + 1 < end && line.text(start + 1).starts_with('(') && !text.contains('(') {
            let message = format!(
                "matching '{text}' for pattern '{}' is likely a mistake and probably not what you want. Maybe you need \
                 to remove the extraneous space before '('. If you are really sure this is not an error, please insert \
                 '--' between the match and the pattern to make this warning message disappear.",
                line.text(start + 1)
            );
            self.diagnostics.warning(line.at(start + 1), message);
        }
        let mut next = start + 1;
        let mut failed_at = start;
        let read = reader.read(text, line.at(start)).and_then(|mut parsed| {
            if parsed.used < text.len() {
                let bad = text[parsed.used..].chars().next().unwrap_or('?');
                let message = format!("missing comma after the expression, at '{bad}'");
                return Err(Problem::new(parsed.used, message));
            }
            // Behind a fetch that is no ACL keyword, words may be converters. HAProxy takes the first word behind the
            // expression for a flag or a pattern all the same, and so every word.
            if !is_acl_keyword(identifier(text)) {
                for word in start + 1..end {
                    failed_at = word;
                    if !reader.more(line.text(word), &mut parsed)? {
                        break;
                    }
                }
            }
            Ok(parsed)
        });
        let parsed = match read {
            Ok(parsed) => parsed,
            Err(problem) => {
                failed(self, line.within(failed_at, problem.offset), problem);
                return None;
            }
        };
        let mut method = match parsed.suffix {
            Some(suffix) => Method::named(suffix).ok(),
            None => Method::of(parsed.output),
        };
        let mut ignore_case = false;
        let mut lists = Vec::new();
        let mut silent = false;
        let mut number = None;
        let mut as_map = false;
        while next < end {
            match line.text(next) {
                "-i" => ignore_case = true,
                // No name is ever resolved here, which is what this asks for.
                "-n" => {}
                "-m" if next + 1 < end => {
                    next += 1;
                    match Method::named(line.text(next)) {
                        Ok(found) => method = Some(found),
                        Err(near) => {
                            let message = format!("unknown match method '{}'", line.text(next));
                            self.diagnostics.error(line.at(next), message).did_you_mean(near);
                            return None;
                        }
                    }
                }
                "-f" if next + 1 < end => {
                    next += 1;
                    lists.push(next);
                }
                "-u" if next + 1 < end => {
                    next += 1;
                    let Ok(found) = line.text(next).parse::<u32>() else {
                        let message = format!("'-u': '{}' is no number from 0 to {}", line.text(next), u32::MAX);
                        self.diagnostics.error(line.at(next), message);
                        return None;
                    };
                    number = Some((found, next));
                }
                flag @ ("-m" | "-f" | "-u") => {
                    self.diagnostics.error(line.at(next), format!("flag '{flag}' expects an argument"));
                    return None;
                }
                "-M" => as_map = true,
                "--" => {
                    silent = true;
                    next += 1;
                    break;
                }
                _ => break,
            }
            next += 1;
        }
        let Some(method) = method else {
            let message = "matching method must be specified first (using '-m') when using a sample fetch of this type";
            let error = self.diagnostics.error(line.at(start), format!("{message} ('{text}')"));
            error.hint("for example '-m str VALUE', '-m int gt 5' or '-m found'");
            return None;
        };
        let mut patterns = PatternReader::new(method, ignore_case).dotted(parsed.dotted);
        let kind = if as_map { Kind::Map } else { Kind::Acl };
        let mut good = true;
        let mut files = Vec::new();
        for index in &lists {
            match self.list(line, *index, kind, method, ignore_case) {
                Some(file) if patterns.method().takes_patterns() => files.push(file),
                Some(_) => {}
                None => good = false,
            }
        }
        let first = next;
        for index in first..end {
            if let Err(message) = patterns.add(line.words[index].bytes()) {
                let error = self.diagnostics.error(line.at(index), message);
                if matches!(line.text(index), "-i" | "-f" | "-m" | "-n") {
                    error.hint("flags stand before the patterns");
                }
                good = false;
            }
        }
        if patterns.method().takes_patterns() && first >= end && lists.is_empty() && !silent {
            let message =
                format!("no pattern to match against were provided for '{text}', so this ACL will never match");
            let warning = self.diagnostics.warning(line.at(start), message);
            warning
                .hint("'-m found' matches what exists, '-m bool' a number that is not 0; '--' silences this warning");
        }
        if let Some(notice) = patterns.notice() {
            self.diagnostics.add(Severity::Notice, Some(line.at(first)), notice);
        }
        let ranges = patterns.ranges();
        let mut matcher = match patterns.finish() {
            Ok(matcher) => matcher,
            Err(message) => {
                self.diagnostics.error(line.at(end - 1), message);
                return None;
            }
        };
        if let (Some(number), true) = (number, good && method.takes_patterns()) {
            let words = || line.words[first..end].iter().map(|word| word.bytes().to_vec()).collect();
            files.push(self.numbered(line, number, text, ranges.unwrap_or_else(words), method, ignore_case)?);
            matcher = PatternReader::new(method, ignore_case).finish().ok()?;
        }
        good.then_some(AclTest { expr: parsed.expr, matcher, files, ignore_case })
    }

    /// Keeps patterns where commands can change them, under their number (`-u`).
    fn numbered(
        &mut self,
        line: &Line,
        (number, at): (u32, usize),
        text: &str,
        patterns: Vec<Vec<u8>>,
        method: Method,
        ignore_case: bool,
    ) -> Option<(Arc<PatternFile>, IndexId)> {
        let place = line.at(0);
        let description = format!("acl '{text}' file '{}' line {}", place.file, place.line);
        let made = PatternFile::numbered(number, &patterns).map_err(|error| error.to_string()).and_then(|file| {
            let inserted = self.stores.patterns.insert_numbered(file, &description);
            let file = inserted.ok_or_else(|| format!("another acl has the number {number}"))?;
            let method = method.in_files().unwrap_or(sluicegate_pattern::Method::Str);
            let index = file.index(method, ignore_case).map_err(|error| error.to_string())?;
            Ok((file, index))
        });
        made.map_err(|message| _ = self.diagnostics.error(line.at(at), message)).ok()
    }

    /// Reads the file of `-f`, unless it is known already, and prepares it for a method.
    fn list(
        &mut self,
        line: &Line,
        index: usize,
        kind: Kind,
        method: Method,
        ignore_case: bool,
    ) -> Option<(Arc<PatternFile>, IndexId)> {
        let path = line.text(index);
        let loaded = self.stores.load(path, kind).and_then(|file| {
            // What takes no patterns reads its files all the same, for their errors.
            let method = method.in_files().unwrap_or(sluicegate_pattern::Method::Str);
            let index = file.index(method, ignore_case).map_err(|error| error.to_string())?;
            Ok((file, index))
        });
        match loaded {
            Ok((file, id)) => {
                if let Some(notice) = file.notice() {
                    self.diagnostics.add(Severity::Notice, Some(line.at(index)), format!("{notice} (file '{path}')"));
                }
                Some((file, id))
            }
            Err(message) => {
                self.diagnostics.error(line.at(index), message);
                None
            }
        }
    }
}

/// Returns the test for a response rule, in which the request is unavailable: a test of the request never matches.
fn without_request(acl: AclRef, acls: &Acls, place: Place) -> AclRef {
    let whole = match &acl {
        AclRef::Named(index) => &acls.list[*index as usize],
        AclRef::Inline(acl) => acl,
    };
    let gone = |test: &AclTest| FetchRow::of(test.expr.fetch).needs.is_gone_in(place);
    if !whole.tests.iter().any(gone) {
        return acl;
    }
    let tests = whole.tests.iter().filter(|test| !gone(test)).cloned().collect();
    AclRef::Inline(Arc::new(Acl { name: whole.name.clone(), tests, at: whole.at.clone() }))
}
