//! Rules: the actions of every rule set and their arguments (HAProxy configuration manual 4.3 and 4.4).

mod answer;
mod connection;
mod edit;
mod limit;
mod rows;

use std::sync::Arc;

use crate::bytes::is_token;
use crate::catalogue::known::is_known;
use crate::catalogue::{Contexts, FetchRow, Place, Sides, known};
use crate::diagnostic::{Diagnostics, Severity};
use crate::expression::condition::Acls;
use crate::expression::{ExpressionReader, Problem, variable, variable_to_set};
use crate::format::Blanks;
use crate::model::{
    AclRef, Action, AddressPart, AttachServer, BodyWait, CacheRule, Capture, Carrier, Condition, CounterChange,
    CounterValue, DataKind, DoResolve, Edit, EditPatterns, FormatPart, LogFormat, LuaAction, NameMatch, Normalizer,
    NumberOr, PatternEdit, Position, Proxy, Redirect, RedirectKind, Return, ReturnBody, Rule, SendSpoeGroup,
    SetBandwidthLimit, StoreCall, TargetPart, TimeOr, TimeoutSide, Track, VarName, VarTarget,
};
use crate::section::error;
use crate::section::log;
use crate::section::proxy::ProxyReader;
use crate::word::Line;
use crate::{format as log_format, limits, suggest, unit};

pub(crate) use rows::ACTIONS;

/// The line of an action while it is being read.
pub(crate) struct ActionReader<'a, 'b> {
    reader: &'a mut ProxyReader<'b>,
    line: &'a Line,
    place: Place,
    /// The word that names the action.
    name_at: usize,
    /// The text in parentheses after the name: `txn.x` of `set-var(txn.x)`.
    inside: Option<&'a str>,
    /// The next word.
    next: usize,
    /// Whether formats are read as literal text.
    literal: bool,
}

/// Reads an action's arguments; returns `None` if it reported an error.
pub(crate) struct ActionParser(fn(&mut ActionReader<'_, '_>) -> Option<Action>);

fn context(place: Place) -> Contexts {
    match place {
        Place::TcpConnection => Contexts::TCP_CONNECTION,
        Place::TcpSession => Contexts::TCP_SESSION,
        Place::TcpRequest => Contexts::TCP_REQUEST,
        Place::TcpResponse => Contexts::TCP_RESPONSE,
        Place::HttpResponse => Contexts::HTTP_RESPONSE,
        Place::HttpAfterResponse => Contexts::HTTP_AFTER_RESPONSE,
        Place::HttpRequest
        | Place::UseBackend
        | Place::UniqueId
        | Place::Balance
        | Place::Log
        | Place::Check
        | Place::Start
        | Place::Declared => Contexts::HTTP_REQUEST,
    }
}

/// Reads the rule whose action is word `start`.
pub(crate) fn rule(reader: &mut ProxyReader<'_>, line: &Line, start: usize, place: Place) -> Option<Rule> {
    let word = line.text(start);
    let (name, inside) = match word.split_once('(') {
        Some((name, rest)) => match rest.strip_suffix(')') {
            Some(inside) => (name, Some(inside)),
            None => {
                reader.diagnostics.error(line.at(start), format!("missing ')' in '{word}'"));
                return None;
            }
        },
        None => (word, None),
    };
    let lua = name.starts_with("lua.");
    let track = name.strip_prefix("track-sc").is_some_and(|number| number.parse::<u32>().is_ok());
    let found = match name {
        _ if lua => "lua.NAME",
        _ if track => "track-scN",
        name => name,
    };
    let found = ACTIONS.find(found, "").map(|(row, _)| row);
    let Some(row) = found.filter(|row| row.contexts.intersects(context(place))) else {
        unknown(reader, line, start, name, place, found.is_some());
        return None;
    };
    let (takes_inside, optional) = (row.usage.starts_with('('), row.usage.starts_with("[("));
    if inside.is_some() != takes_inside && !optional {
        let message = if takes_inside {
            format!("'{name}' expects something between parentheses")
        } else {
            format!("'{name}' takes nothing between parentheses")
        };
        let error = reader.diagnostics.error(line.at(start), message);
        error.hint(format!("write '{name}{}{}'", if takes_inside { "" } else { " " }, row.usage));
        return None;
    }
    let mut action = ActionReader { reader, line, place, name_at: start, inside, next: start + 1, literal: false };
    let read = (row.parser.0)(&mut action)?;
    let next = action.next;
    let condition = reader.condition(line, next, place).ok()?;
    Some(Rule { action: read, condition, at: line.at(0) })
}

/// Parses the expression of a key, starting with word `start`; also returns the index of the word after it.
pub(crate) fn key_expression(
    reader: &mut ProxyReader<'_>,
    line: &Line,
    start: usize,
    place: Place,
) -> Option<(crate::model::Expr, usize)> {
    let mut action = ActionReader { reader, line, place, name_at: 0, inside: None, next: start, literal: false };
    let key = action.expression()?;
    Some((key, action.next))
}

/// Reads an `http-error` line.
pub(crate) fn http_error(reader: &mut ProxyReader<'_>, line: &Line) {
    let place = Place::HttpRequest;
    let mut action = ActionReader { reader, line, place, name_at: 0, inside: None, next: 1, literal: false };
    let Some(reply) = action.reply(0, false) else { return };
    if action.next < line.len() {
        let (next, word) = (action.next, line.text(action.next));
        reader.diagnostics.error(line.at(next), format!("'http-error' : unknown keyword '{word}'"));
        return;
    }
    if reply.status == 0 {
        reader.diagnostics.error(line.at(1), "'http-error' expects 'status N'");
        return;
    }
    if !error::CODES.contains(&reply.status) {
        let message = format!("status code '{}' not handled by default, so there is no page of it", reply.status);
        reader.diagnostics.error(line.at(0), message);
        return;
    }
    let proxy = &mut reader.settings.proxy;
    match &reply.body {
        // The built-in page is the default.
        ReturnBody::ErrorPage => _ = proxy.errors.remove(&reply.status),
        ReturnBody::ErrorFile(page) => _ = proxy.errors.insert(reply.status, page.clone()),
        _ => {
            proxy.errors.insert(reply.status, Arc::new(crate::model::ErrorPage::Reply));
            proxy.http_errors.insert(reply.status, reply);
        }
    }
}

/// Reads the legacy `redirect` line, whose target is literal text, not a format.
pub(crate) fn redirect_line(reader: &mut ProxyReader<'_>, line: &Line) -> Option<Rule> {
    let place = Place::HttpRequest;
    let mut action = ActionReader { reader, line, place, name_at: 0, inside: None, next: 1, literal: true };
    let redirect = action.redirect()?;
    let next = action.next;
    let condition = reader.condition(line, next, place).ok()?;
    Some(Rule { action: Action::Redirect(redirect), condition, at: line.at(0) })
}

fn unknown(reader: &mut ProxyReader<'_>, line: &Line, index: usize, name: &str, place: Place, elsewhere: bool) {
    let set = place.name();
    let at = line.at(index);
    let supported: Vec<&str> = ACTIONS.names(context(place)).collect();
    if name.is_empty() {
        let error = reader.diagnostics.error(at, format!("'{set}' expects an action"));
        error.hint(format!("one of {}", crate::section::table::list(&supported)));
        return;
    }
    let known: &[&str] = known::ACTIONS.iter().find(|(s, _)| *s == set).map_or(&[], |(_, names)| names);
    if name.starts_with("lua.") {
        let error = reader.diagnostics.error(at, format!("'{set}' cannot run Lua"));
        error.hint("actions of scripts run in 'tcp-request content' and later rule sets");
    } else if is_known(known, name) || is_known(known, line.text(index)) {
        reader.diagnostics.error(at, format!("'{set} {name}' is not supported yet"));
    } else if is_known(known::NEWER_ACTIONS, name) {
        reader.diagnostics.error(at, format!("'{set} {name}' is newer than HAProxy 3.2"));
    } else {
        let near = suggest::nearest(name, supported.iter().copied().chain(known.iter().copied()));
        let message = if elsewhere {
            format!("action '{name}' is not allowed in '{set}'")
        } else {
            format!("unknown action '{name}' of '{set}'")
        };
        let near = near.map(|n| n.trim_end_matches('*').to_owned());
        reader.diagnostics.error(at, message).did_you_mean(near.as_deref());
    }
}

fn give(diagnostics: &mut Diagnostics, line: &Line, index: usize, problem: Problem) {
    add(diagnostics, Severity::Error, line.within(index, problem.offset), problem);
}

/// Adds a warning about a flag of a format in a word that is ignored, if there is one.
pub(crate) fn note_ignored(diagnostics: &mut Diagnostics, line: &Line, index: usize, ignored: Option<Problem>) {
    if let Some(problem) = ignored {
        add(diagnostics, Severity::Warning, line.within(index, problem.offset), problem);
    }
}

fn add(diagnostics: &mut Diagnostics, severity: Severity, at: Position, problem: Problem) {
    let finding = diagnostics.add(severity, Some(at), problem.message);
    if let Some(hint) = problem.hint {
        finding.hint(hint);
    }
}

/// Reads a word as a log-format.
pub(crate) fn format(
    reader: &ExpressionReader<'_>,
    line: &Line,
    index: usize,
    diagnostics: &mut Diagnostics,
) -> Option<LogFormat> {
    read_format(reader, Blanks::Kept, line, index, diagnostics)
}

/// Reads a word as the format of a log line.
pub(crate) fn log_line(
    reader: &ExpressionReader<'_>,
    line: &Line,
    index: usize,
    diagnostics: &mut Diagnostics,
) -> Option<LogFormat> {
    read_format(reader, Blanks::Merged, line, index, diagnostics)
}

fn read_format(
    reader: &ExpressionReader<'_>,
    blanks: Blanks,
    line: &Line,
    index: usize,
    diagnostics: &mut Diagnostics,
) -> Option<LogFormat> {
    let place = |offset: usize| line.within(index, offset);
    match log_format::read(line.words[index].bytes(), blanks, reader, &place) {
        Ok((format, ignored)) => {
            note_ignored(diagnostics, line, index, ignored);
            if matches!(
                reader.place,
                Place::HttpRequest | Place::HttpResponse | Place::HttpAfterResponse | Place::UniqueId
            ) {
                data_in_http(&format, diagnostics);
            }
            Some(format)
        }
        Err(problem) => {
            give(diagnostics, line, index, problem);
            None
        }
    }
}

/// Adds HAProxy's warning about a fetch that reads the bytes of a message whose head is parsed.
fn data_in_http(format: &LogFormat, diagnostics: &mut Diagnostics) {
    for part in &format.parts {
        if let FormatPart::Expr(expr, _) = part
            && FetchRow::of(expr.fetch).needs.is_data()
        {
            let message = format!("L6 sample fetch <{}> in an HTTP log-format string", expr.fetch.name());
            let warning = diagnostics.warning(expr.at.clone(), message);
            warning.hint("it sees what is held of the message, not what was sent");
        }
    }
}

/// Reads the name of a header field that is set or added, with HAProxy's warning about a character that is not allowed
/// in names (RFC 9110, 5.1); the name is sent unchanged.
pub(crate) fn sent_header_name(reader: &mut ProxyReader<'_>, line: &Line, index: usize) -> Option<String> {
    let token = |c: &char| u8::try_from(*c).is_ok_and(is_token);
    let name = header_name(reader, line, index)?;
    let bad = name.char_indices().find(|(at, c)| !(token(c) || *at == 0 && *c == ':'));
    if let Some((_, bad)) = bad {
        let message = format!("header name '{name}' contains forbidden character '{bad}'");
        reader.diagnostics.warning(line.at(index), message);
    }
    Some(name)
}

/// Reads the name of a header field. HAProxy accepts any name; one that would end a line of the message is refused
/// here.
pub(crate) fn header_name(reader: &mut ProxyReader<'_>, line: &Line, index: usize) -> Option<String> {
    let name = line.text(index);
    if !name.is_empty() && !name.contains(['\r', '\n', '\0']) {
        return Some(name.to_owned());
    }
    let message = match name {
        "" => "a header name is missing".to_owned(),
        name => format!("'{}' is no header name", name.escape_debug()),
    };
    reader.diagnostics.error(line.at(index), message);
    None
}

/// Returns whether HAProxy marks an action as final: without a condition, no rule after it in its section is reached.
pub(crate) fn is_final(action: &Action, place: Place) -> bool {
    let redirects = matches!(action, Action::Redirect(redirect) if !redirect.ignore_empty);
    match place {
        Place::HttpRequest => {
            matches!(action, Action::Accept | Action::Auth(_) | Action::Deny(_) | Action::Return(_) | Action::Tarpit(_))
                || redirects
        }
        Place::HttpResponse => matches!(action, Action::Accept | Action::Deny(_) | Action::Return(_)) || redirects,
        Place::HttpAfterResponse => matches!(action, Action::Accept),
        _ => false,
    }
}

/// Returns the text of a format, if it is constant.
fn constant(format: &LogFormat) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for part in &format.parts {
        match part {
            FormatPart::Text(part) => text.extend_from_slice(part),
            _ => return None,
        }
    }
    Some(text)
}

/// Returns whether a word starts the condition.
fn is_condition(word: &str) -> bool {
    matches!(word, "if" | "unless")
}

impl ActionReader<'_, '_> {
    /// Returns whether there is a word that does not start the condition.
    fn has(&self, index: usize) -> bool {
        index < self.line.len() && !is_condition(self.line.text(index))
    }

    fn name(&self) -> &str {
        self.line.text(self.name_at).split('(').next().unwrap_or_default()
    }

    fn missing(&mut self, index: usize, what: &str) {
        let message = format!("'{}' expects {what}", self.name());
        self.reader.diagnostics.error(self.line.at(index), message);
    }

    fn expressions(&self) -> ExpressionReader<'_> {
        ExpressionReader { stores: self.reader.stores, place: self.place, acl: false }
    }

    /// Reads `NAME FORMAT` of a header field.
    fn field(&mut self) -> Option<(String, LogFormat)> {
        let name = sent_header_name(self.reader, self.line, self.next)?;
        let format = self.format(self.next + 1, "a value")?;
        self.next += 2;
        Some((name, format))
    }

    /// Returns the word at `index` as a format. As in HAProxy, even `if` is a format where one is required.
    fn format(&mut self, index: usize, what: &str) -> Option<LogFormat> {
        if index >= self.line.len() {
            self.missing(index, what);
            return None;
        }
        if self.literal {
            let text = self.line.words[index].bytes().to_vec();
            return Some(LogFormat { parts: vec![FormatPart::Text(text)], ..LogFormat::default() });
        }
        let reader = ExpressionReader { stores: self.reader.stores, place: self.place, acl: false };
        format(&reader, self.line, index, self.reader.diagnostics)
    }

    fn wait_for_body(&mut self) -> Option<Action> {
        let (mut time, mut at_least) = (None, 0);
        while matches!(self.line.text(self.next), "time" | "at-least") {
            let (word, value) = (self.line.text(self.next), self.line.text(self.next + 1));
            let problem = match word {
                "time" => {
                    let at = self.line.at(self.next + 1);
                    let read = self.reader.diagnostics.duration(at, value, unit::TimeUnit::Milliseconds);
                    read.map(|found| time = Some(found)).err()
                }
                _ => unit::size(value, u64::from(u32::MAX)).map(|found| at_least = found).err(),
            };
            if let Some(message) = problem {
                self.reader.diagnostics.error(self.line.at(self.next + 1), format!("'{word}': {message}"));
                return None;
            }
            self.next += 2;
        }
        let Some(time) = time else {
            let error = self.reader.diagnostics.error(self.line.at(self.next), "'wait-for-body' expects 'time'");
            error.hint("write 'wait-for-body time 1s'");
            return None;
        };
        Some(Action::WaitForBody(BodyWait { time, at_least }))
    }

    fn do_resolve(&mut self) -> Option<Action> {
        let inside = self.inside.unwrap_or_default();
        let mut words = inside.split(',');
        let (name, section) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let variable = self.variable_named(self.name_at, name)?;
        let mut prefer_v4 = false;
        for word in words {
            match word {
                "ipv4" => prefer_v4 = true,
                "ipv6" => prefer_v4 = false,
                _ => {
                    let message = format!("'do-resolve' knows ipv4 and ipv6, not '{word}'");
                    self.reader.diagnostics.error(self.line.at(self.name_at), message);
                    return None;
                }
            }
        }
        if !self.reader.stores.resolvers.contains(section) {
            let message = format!("can't find resolvers section '{section}' for do-resolve action");
            let near = suggest::nearest(section, self.reader.stores.resolvers.iter().map(|known| &**known));
            self.reader.diagnostics.error(self.line.at(self.name_at), message).did_you_mean(near);
            return None;
        }
        let at = self.line.at(self.name_at);
        Some(Action::DoResolve(DoResolve { variable, section: section.into(), prefer_v4, at }, self.expression()?))
    }

    fn variable(&mut self) -> Option<VarName> {
        let name = self.inside.unwrap_or_default();
        self.variable_named(self.name_at, name)
    }

    fn variable_named(&mut self, index: usize, name: &str) -> Option<VarName> {
        self.good_variable(index, variable(name))
    }

    fn variable_to_set(&mut self) -> Option<VarTarget> {
        let inside = self.inside.unwrap_or_default();
        self.good_variable(self.name_at, variable_to_set(inside))
    }

    fn good_variable<T>(&mut self, index: usize, found: Result<T, (String, Option<String>)>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err((message, hint)) => {
                let offset = self.line.text(index).find('(').map_or(0, |i| i + 1);
                let error = self.reader.diagnostics.error(self.line.within(index, offset), message);
                if let Some(hint) = hint {
                    error.hint(hint);
                }
                None
            }
        }
    }

    fn expression(&mut self) -> Option<crate::model::Expr> {
        let index = self.next;
        if !self.has(index) {
            self.missing(index, "an expression");
            return None;
        }
        let text = self.line.text(index);
        let mut next = index + 1;
        let mut failed_at = index;
        let reader = self.expressions();
        let read = reader.read(text, self.line.at(index)).and_then(|mut parsed| {
            if parsed.used < text.len() {
                let bad = text[parsed.used..].chars().next().unwrap_or('?');
                return Err(Problem::new(parsed.used, format!("missing comma after the expression, at '{bad}'")));
            }
            while next < self.line.len() {
                failed_at = next;
                if !reader.more(self.line.text(next), &mut parsed)? {
                    break;
                }
                next += 1;
            }
            Ok(parsed.expr)
        });
        match read {
            Ok(expr) => {
                self.next = next;
                Some(expr)
            }
            Err(problem) => {
                give(self.reader.diagnostics, self.line, failed_at, problem);
                None
            }
        }
    }

    /// Returns the index of the value after a keyword; reports an error and returns `None` if the line ends there.
    fn value(&mut self, keyword: &str) -> Option<usize> {
        let index = self.next + 1;
        if index >= self.line.len() {
            let message = format!("'{keyword}' of '{}' expects a value", self.name());
            self.reader.diagnostics.error(self.line.at(index), message);
            return None;
        }
        Some(index)
    }

    /// `capture EXPRESSION len N` makes a slot, `capture EXPRESSION id SLOT` names one.
    fn capture(&mut self) -> Option<Action> {
        let expr = self.expression()?;
        let response = matches!(self.place, Place::HttpResponse | Place::HttpAfterResponse);
        let needs = FetchRow::of(expr.fetch).needs;
        // Slots belong to the frontend, even in a section with both sides.
        if self.place == Place::HttpRequest && !needs.met_by(self.place.has(Sides::FRONT)) {
            let message =
                format!("fetch method '{}' needs {}, which 'capture' doesn't have", expr.fetch.name(), needs.name());
            self.reader.diagnostics.error(expr.at, message);
            return None;
        }
        let keyword = self.line.text(self.next);
        let index = self.next + 1;
        let range = match keyword {
            "len" => 1..=limits::CAPTURE_BYTES,
            "id" => 0..=limits::CAPTURES as i64 - 1,
            _ => {
                self.missing(self.next, "'len N' or 'id SLOT' behind its expression");
                return None;
            }
        };
        let read = if keyword == "len" { unit::leading_integer } else { unit::integer };
        let number = match read(self.line.text(index), *range.start(), *range.end()) {
            Ok(number) => number,
            Err(message) => {
                self.reader.diagnostics.error(self.line.at(index), format!("'capture {keyword}': {message}"));
                return None;
            }
        };
        self.next += 2;
        if keyword == "id" {
            return Some(Action::Capture { expr, slot: number as u32, response });
        }
        if response || !self.reader.context.intersects(Contexts::FRONT) {
            let error = self.reader.diagnostics.error(self.line.at(self.next - 2), "'capture … len' needs a frontend");
            error.hint("declare a slot there with 'declare capture', and name it with 'id'");
            return None;
        }
        let slot = self.reader.capture_slot(self.line, false, Capture { name: None, len: number as usize })?;
        Some(Action::Capture { expr, slot, response })
    }

    fn track(&mut self) -> Option<Action> {
        let slot = self.slot(&self.line.text(self.name_at)["track-sc".len()..])?;
        let key = self.expression()?;
        let (mut name, mut at) = ("", self.name_at);
        if self.line.text(self.next) == "table" {
            at = self.value("table")?;
            name = self.line.text(at);
            self.next += 2;
        }
        let what = format!("track-sc{slot}");
        let table = self.reader.table_for(&what, name, self.line.at(at), &key)?;
        Some(Action::Track(Track { slot, key, table }))
    }

    /// Returns the number of a tracked counter.
    fn slot(&mut self, text: &str) -> Option<usize> {
        let counters = self.reader.stores.counters;
        match unit::integer(text, 0, limits::TRACKED_COUNTERS_MAX as i64 - 1) {
            Ok(slot) if (slot as usize) < counters => Some(slot as usize),
            Ok(_) => {
                let message = format!("'{}': there are {counters} tracked counters, the first is 0", self.name());
                let error = self.reader.diagnostics.error(self.line.at(self.name_at), message);
                error.hint("'tune.stick-counters N' of 'global' says how many");
                None
            }
            Err(message) => {
                let message = format!("'{}': the number of a tracked counter: {message}", self.name());
                self.reader.diagnostics.error(self.line.at(self.name_at), message);
                None
            }
        }
    }

    /// Reads `(N)` or `(ELEMENT,N)`, then the value unless `by` gives it.
    fn counter(&mut self, kind: DataKind, array: bool, by: Option<u32>) -> Option<Action> {
        let inside = self.inside.unwrap_or("0");
        let (element, slot) = match (array, inside.split_once(',')) {
            (true, Some((element, slot))) => (element.trim(), slot.trim()),
            (true, None) => {
                self.missing(self.name_at, "an element and a counter in parentheses, as in '(0,1)'");
                return None;
            }
            (false, _) => ("0", inside),
        };
        let slot = self.slot(slot)?;
        let element = match unit::integer(element, 0, limits::COUNTER_ELEMENTS as i64 - 1) {
            Ok(element) => element as u32,
            Err(message) => {
                let message = format!("'{}': the element: {message}", self.name());
                self.reader.diagnostics.error(self.line.at(self.name_at), message);
                return None;
            }
        };
        let by = match (by, self.line.text(self.next).parse::<u32>()) {
            (Some(by), _) => CounterValue::Int(by),
            (None, Ok(number)) => {
                self.next += 1;
                CounterValue::Int(number)
            }
            (None, Err(_)) => CounterValue::Expr(self.expression()?),
        };
        Some(Action::ChangeCounter(CounterChange { slot, kind, element, by }))
    }

    /// Reads `(FILE)`, a key, and a value for `set-map`.
    fn edit_patterns(&mut self, edit: PatternEdit) -> Option<Action> {
        let file = self.inside.unwrap_or_default();
        if file.is_empty() {
            self.missing(self.name_at, "a file's name in parentheses");
            return None;
        }
        let key = self.format(self.next, "a key")?;
        self.next += 1;
        let value = match edit {
            PatternEdit::Set => {
                self.next += 1;
                Some(self.format(self.next - 1, "a value")?)
            }
            PatternEdit::Add | PatternEdit::Remove => None,
        };
        let file = file.strip_prefix("file@").unwrap_or(file).into();
        Some(Action::EditPatterns(EditPatterns { file, edit, key, value }))
    }

    fn store_call(&mut self) -> Option<StoreCall> {
        if !self.has(self.next) || !self.has(self.next + 1) {
            self.missing(self.next, "a store and a command");
            return None;
        }
        let store = match self.reader.stores.find(self.line.text(self.next)) {
            Ok(store) => store,
            Err((message, hint)) => {
                let error = self.reader.diagnostics.error(self.line.at(self.next), message);
                if let Some(hint) = hint {
                    error.hint(hint);
                }
                return None;
            }
        };
        let on_error = self.reader.stores.on_error.get(&store).cloned().unwrap_or_default();
        let mut call = StoreCall { store, args: Vec::new(), set_var: None, on_error };
        let mut says_value = false;
        self.next += 1;
        let command_at = self.next;
        while self.has(self.next) {
            let word = self.line.text(self.next);
            if word == "on-error" || (word.starts_with("set-var(") && word.ends_with(')')) {
                break;
            }
            call.args.push(self.format(self.next, "a format")?);
            self.next += 1;
        }
        if call.args.is_empty() {
            self.missing(self.next, "a command");
            return None;
        }
        let constants: Vec<Option<Vec<u8>>> = call.args.iter().map(constant).collect();
        let words: Vec<Option<&[u8]>> = constants.iter().map(Option::as_deref).collect();
        if let Err((severity, problem)) = self.reader.stores.command(&call.store, &words) {
            let message = format!("'{}': {}", self.name(), problem.message);
            let at = self.line.at(command_at);
            let found = self.reader.diagnostics.add(severity, Some(at), message);
            if let Some(hint) = problem.hint {
                found.hint(hint);
            }
        }
        while self.has(self.next) {
            let word = self.line.text(self.next);
            if let Some(name) = word.strip_prefix("set-var(").and_then(|w| w.strip_suffix(')')) {
                call.set_var = Some(self.variable_named(self.next, name)?);
                self.next += 1;
            } else if word == "on-error" {
                let index = self.value(word)?;
                says_value = self.line.text(index).starts_with("value:");
                call.on_error = super::redis::on_error(self.line, index, self.reader.diagnostics)?;
                self.next += 2;
            } else {
                let message = format!("'{word}' stands behind the command's arguments");
                let error = self.reader.diagnostics.error(self.line.at(self.next), message);
                error.hint("the arguments end at the first 'set-var(…)', 'on-error', 'if' or 'unless'");
                return None;
            }
        }
        if call.set_var.is_none() && says_value {
            let message = "'on-error value:…' without 'set-var(…)' has nothing to set";
            self.reader.diagnostics.warning(self.line.at(self.name_at), message);
        }
        Some(call)
    }

    fn service(&mut self) -> Option<Action> {
        if !self.has(self.next) {
            self.missing(self.next, "a service");
            return None;
        }
        let index = self.next;
        self.next += 1;
        let word = self.line.text(index);
        let mode = if self.place == Place::TcpRequest { "tcp" } else { "http" };
        let names = self.reader.loaded.lua.services(mode);
        match word.strip_prefix("lua.") {
            Some(name) if self.reader.loaded.lua_failed || names.iter().any(|known| known == name) => {
                return Some(Action::UseService(name.into()));
            }
            Some(name) => {
                let other = if mode == "tcp" { "http" } else { "tcp" };
                let elsewhere = self.reader.loaded.lua.services(other).iter().any(|known| known == name);
                let error = self
                    .reader
                    .diagnostics
                    .error(self.line.at(index), format!("no {mode} service is registered as '{name}'"));
                match suggest::nearest(name, names.iter().map(String::as_str)) {
                    _ if elsewhere => _ = error.hint(format!("the script registers it for '{other}'")),
                    Some(near) => _ = error.hint(format!("did you mean 'lua.{near}'?")),
                    None => _ = error.hint("a script registers it with core.register_service"),
                }
            }
            None if word == "prometheus-exporter" && mode == "http" => return Some(Action::Exporter),
            None => {
                let message = format!("no {mode} service is named '{word}'");
                let near = suggest::nearest(word, ["prometheus-exporter"]);
                match near {
                    Some(near) if mode == "http" => {
                        self.reader.diagnostics.error(self.line.at(index), message).did_you_mean(Some(near));
                    }
                    _ => {
                        let hint = "services of scripts are 'lua.NAME'";
                        self.reader.diagnostics.error(self.line.at(index), message).hint(hint);
                    }
                }
            }
        }
        None
    }

    fn lua(&mut self) -> Option<Action> {
        let name = &self.line.text(self.name_at)["lua.".len()..];
        let hook = match self.place {
            Place::HttpResponse => "http-res",
            Place::HttpAfterResponse => "http-after-res",
            Place::TcpRequest => "tcp-req",
            Place::TcpResponse => "tcp-res",
            _ => "http-req",
        };
        let Some(wanted) = self.reader.loaded.lua.action(name, hook) else {
            if self.reader.loaded.lua_failed {
                // The error of the script was reported; the number of the action's arguments is unknown.
                while self.has(self.next) {
                    self.next += 1;
                }
                return Some(Action::Lua(LuaAction { name: name.into(), args: Vec::new() }));
            }
            let names = self.reader.loaded.lua.actions();
            let message = if names.iter().any(|n| n == name) {
                format!("the Lua action '{name}' is not registered for '{hook}'")
            } else {
                format!("the Lua action '{name}' is not registered")
            };
            let elsewhere: Vec<&str> = ["tcp-req", "tcp-res", "http-req", "http-res", "http-after-res"]
                .into_iter()
                .filter(|hook| self.reader.loaded.lua.action(name, hook).is_some())
                .collect();
            let error = self.reader.diagnostics.error(self.line.at(self.name_at), message);
            match suggest::nearest(name, names.iter().map(String::as_str)) {
                _ if !elsewhere.is_empty() => {
                    _ = error.hint(format!("the script registers it for {}", crate::section::table::list(&elsewhere)));
                }
                Some(near) => _ = error.hint(format!("did you mean 'lua.{near}'?")),
                None if names.is_empty() => _ = error.hint("load the script in 'global': 'lua-load FILE'"),
                None => {}
            }
            return None;
        };
        let mut args = Vec::with_capacity(wanted);
        for index in 0..wanted {
            if self.next >= self.line.len() {
                let message = format!("'lua.{name}' expects {wanted} argument(s), not {index}");
                self.reader.diagnostics.error(self.line.at(self.next), message);
                return None;
            }
            args.push(self.line.text(self.next).to_owned());
            self.next += 1;
        }
        Some(Action::Lua(LuaAction { name: name.into(), args }))
    }
}

/// Replaces the named ACLs in the rules of a `defaults` by their conditions, since no other section sees those ACLs.
pub(crate) fn inline_acls(proxy: &mut Proxy, acls: &Acls) {
    if acls.list.is_empty() {
        return;
    }
    let shared: Vec<Arc<crate::model::Acl>> = acls.list.iter().map(|acl| Arc::new(acl.clone())).collect();
    let sets = [
        &mut proxy.tcp_request_connection,
        &mut proxy.tcp_request_session,
        &mut proxy.tcp_request_content,
        &mut proxy.tcp_response_content,
        &mut proxy.http_request,
        &mut proxy.http_response,
        &mut proxy.http_after_response,
    ];
    sets.into_iter()
        .flatten()
        .filter_map(|rule| rule.condition.as_mut())
        .for_each(|condition| inline(condition, &shared));
}

/// Replaces the named ACLs of a condition by copies of these.
pub(crate) fn inline(condition: &mut Condition, acls: &[Arc<crate::model::Acl>]) {
    for term in condition.any.iter_mut().flatten() {
        if let AclRef::Named(index) = term.acl {
            term.acl = AclRef::Inline(acls[index as usize].clone());
        }
    }
}
