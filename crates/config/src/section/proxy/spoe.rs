//! `filter spoe` and the file that it names (HAProxy's SPOE.txt, section 2).
//!
//! The file has a section `spoe-agent` for an engine, its messages and its groups; those of other engines stand in
//! other scopes (`[NAME]`) and are skipped. Words without effect in HAProxy 3.2 are read and have none here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::ProxyReader;
use crate::catalogue::{FetchRow, Place, Sides};
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::expression::condition::{Acls, ConditionReader};
use crate::expression::{ExpressionReader, Problem};
use crate::limits;
use crate::model::{
    Action, Condition, Expr, Filter, Mode, Position, Proxy, ProxyKind, SendSpoeGroup, SpoeAgent, SpoeEvent, SpoeFilter,
    SpoeGroup, SpoeMessage,
};
use crate::section::{LineReader, log, read_lines, rule};
use crate::unit::{TIME_HINT, TimeUnit};
use crate::word::{Line, bad_name_byte};

/// The least `max-frame-size`. The most is what a buffer holds, with the field of the length.
const FRAME_MIN: u32 = 256;
const LENGTH: usize = 4;

/// The maximum number of arguments of a message, which the protocol counts in one byte.
const ARGS_MAX: usize = 255;

/// The sections of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    None,
    Agent,
    Message,
    Group,
}

impl Part {
    fn keyword(self) -> &'static str {
        match self {
            Part::None => "",
            Part::Agent => "spoe-agent",
            Part::Message => "spoe-message",
            Part::Group => "spoe-group",
        }
    }
}

/// `spoe-agent` while it is read.
struct Agent {
    at: Position,
    backend: Option<Box<str>>,
    prefix: Option<Box<str>>,
    settings: SpoeAgent,
}

/// `spoe-message` while it is read.
struct Message {
    name: Box<str>,
    at: Position,
    args: Vec<(Box<str>, Expr)>,
    acls: Acls,
    event: Option<SpoeEvent>,
    condition: Option<Condition>,
}

/// `spoe-group` while it is read.
struct Group {
    name: Box<str>,
    at: Position,
    messages: Vec<Box<str>>,
}

/// The sections of an engine.
struct FileReader<'r, 'p> {
    proxy: &'r mut ProxyReader<'p>,
    engine: Option<&'r str>,
    scope: Option<Box<str>>,
    part: Part,
    agent: Option<Agent>,
    messages: Vec<Message>,
    groups: Vec<Group>,
    /// The agent's `messages` and `groups`.
    used_messages: Vec<Box<str>>,
    used_groups: Vec<Box<str>>,
}

impl ProxyReader<'_> {
    /// `filter spoe [engine NAME] config FILE`.
    pub(super) fn spoe(&mut self, line: &Line) -> Option<(Filter, usize)> {
        let (mut file, mut engine) = (None, None);
        let mut next = 2;
        while next < line.len() {
            let slot = match line.text(next) {
                "config" => &mut file,
                "engine" => &mut engine,
                _ => break,
            };
            if next + 1 >= line.len() {
                let message = format!("'spoe' : '{}' option without value", line.text(next));
                self.diagnostics.error(line.at(next), message);
                return None;
            }
            *slot = Some(next + 1);
            next += 2;
        }
        if next < line.len() {
            self.diagnostics.error(line.at(next), format!("unknown keyword '{}'", line.text(next)));
            return None;
        }
        let Some(file) = file else {
            self.diagnostics.error(line.at(1), "'spoe' : missing config file");
            return None;
        };
        let engine = engine.map(|index| line.text(index));
        let filter = self.spoe_file(line, file, engine)?;
        let known = self.settings.proxy.filters.iter();
        let mut known = known.filter(|known| matches!(known, Filter::Spoe(known) if known.engine == filter.engine));
        if known.next().is_some() {
            let message =
                format!("Proxy {} : duplicated name for SPOE engine '{}'", self.settings.proxy.name, filter.engine);
            self.diagnostics.error(line.at(0), message);
            return None;
        }
        Some((Filter::Spoe(Arc::new(filter)), next))
    }

    fn spoe_file(&mut self, line: &Line, file: usize, engine: Option<&str>) -> Option<SpoeFilter> {
        let name = line.text(file);
        let bytes = match self.loaded.files.read(Path::new(name)) {
            Ok(bytes) if bytes.len() > limits::SOURCE_BYTES => {
                self.diagnostics.error(line.at(file), format!("configuration file {name} is larger than 256 MiB"));
                return None;
            }
            Ok(bytes) => bytes,
            Err(error) => {
                self.diagnostics.error(line.at(file), format!("Could not open configuration file {name} : {error}"));
                return None;
            }
        };
        let before = self.diagnostics.errors();
        // Expressions of the file see no ACL of the proxy.
        let declared = std::mem::take(&mut *self.stores.acls.borrow_mut());
        let mut env = self.loaded.environment.clone();
        let mut reader = FileReader {
            proxy: self,
            engine,
            scope: None,
            part: Part::None,
            agent: None,
            messages: Vec::new(),
            groups: Vec::new(),
            used_messages: Vec::new(),
            used_groups: Vec::new(),
        };
        read_lines(&mut reader, &name.into(), &bytes, &mut env);
        let failed = reader.proxy.diagnostics.errors() > before;
        let filter = if failed { None } else { reader.finish(line.at(file), name) };
        *self.stores.acls.borrow_mut() = declared;
        if failed {
            self.diagnostics.error(line.at(file), format!("Error(s) found in configuration file {name}"));
        }
        filter
    }

    /// Checks the rules that send groups.
    pub(super) fn finish_spoe(&mut self) {
        let proxy = &self.settings.proxy;
        let sides = sides_of(proxy);
        let sets = [
            (Place::TcpRequest, &proxy.tcp_request_content),
            (Place::TcpResponse, &proxy.tcp_response_content),
            (Place::HttpRequest, &proxy.http_request),
            (Place::HttpResponse, &proxy.http_response),
        ];
        let mut errors = Vec::new();
        for (place, rules) in sets {
            for rule in rules {
                if let Action::SendSpoeGroup(send) = &rule.action
                    && let Err(message) = check_group(send, &proxy.filters, place, sides)
                {
                    errors.push((send.at.clone(), message));
                }
            }
        }
        for (at, message) in errors {
            self.diagnostics.error(at, message);
        }
    }
}

fn sides_of(proxy: &Proxy) -> Sides {
    if proxy.kind == ProxyKind::Frontend { Sides::FRONT } else { Sides::BOTH }
}

/// Checks that the group of a rule exists, and that its arguments are available to the rule.
fn check_group(send: &SendSpoeGroup, filters: &[Filter], place: Place, sides: Sides) -> Result<(), String> {
    let found = filters.iter().find_map(|filter| match filter {
        Filter::Spoe(filter) if filter.engine == send.engine => Some(filter),
        _ => None,
    });
    let (engine, name) = (&send.engine, &send.group);
    let filter =
        found.ok_or_else(|| format!("unable to find SPOE engine '{engine}' used by the send-spoe-group '{name}'"))?;
    let group = filter.groups.iter().find(|group| *group.name == **name);
    let group =
        group.ok_or_else(|| format!("unable to find SPOE group '{name}' into SPOE engine '{engine}' configuration"))?;
    for message in &group.messages {
        if let Some(what) = unavailable(&message.args, place, sides) {
            let at = &message.at;
            return Err(format!(
                "Invalid SPOE message '{}' used by SPOE group '{name}' at {}:{}: {what}",
                message.name, at.file, at.line
            ));
        }
    }
    Ok(())
}

/// Returns what is wrong with arguments that have nothing to look at.
fn unavailable(args: &[(Box<str>, Expr)], place: Place, sides: Sides) -> Option<String> {
    let needs = args.iter().map(|(_, expr)| FetchRow::of(expr.fetch).needs);
    let needs = needs.into_iter().find(|needs| !needs.met_by(place.has(sides)) || needs.is_gone_in(place))?;
    Some(format!(
        "some args extract information from '{}', none of which is available here ('{}')",
        needs.name(),
        place.name_in(sides)
    ))
}

/// Returns the place whose expressions have what those of an event have.
fn place_of(event: SpoeEvent) -> Place {
    match event {
        SpoeEvent::ClientSession => Place::TcpSession,
        SpoeEvent::FrontendTcpRequest | SpoeEvent::BackendTcpRequest => Place::TcpRequest,
        SpoeEvent::FrontendHttpRequest | SpoeEvent::BackendHttpRequest => Place::HttpRequest,
        SpoeEvent::ServerSession | SpoeEvent::TcpResponse => Place::TcpResponse,
        SpoeEvent::HttpResponse => Place::HttpResponse,
    }
}

/// Makes the backends of agents backends of messages, as HAProxy does, and reports those of other modes.
pub(super) fn convert_backends(proxies: &mut [&mut Proxy], diagnostics: &mut Diagnostics) {
    let mut wanted = Vec::new();
    for proxy in proxies.iter() {
        for filter in &proxy.filters {
            if let Filter::Spoe(filter) = filter {
                wanted.push((filter.agent.backend, filter.agent.name.clone(), proxy.name.clone(), proxy.at.clone()));
            }
        }
    }
    for (backend, agent, proxy, at) in wanted {
        let Some(target) = proxies.get_mut(backend.0 as usize) else { continue };
        match target.mode {
            Mode::Tcp => target.mode = Mode::Spop,
            Mode::Spop => {}
            Mode::Http | Mode::Log => {
                let message = format!(
                    "Proxy {proxy} : backend '{}' used by SPOE agent '{agent}' must use SPOP mode",
                    target.name
                );
                diagnostics.error(at, message);
            }
        }
    }
}

impl LineReader for FileReader<'_, '_> {
    fn diagnostics(&mut self) -> &mut Diagnostics {
        self.proxy.diagnostics
    }

    fn section(&self) -> &'static str {
        self.part.keyword()
    }

    fn line(&mut self, line: Line, _: &mut Environment) {
        if line.text(0).starts_with('[') {
            return self.scope(&line);
        }
        let negated;
        let line = match line.text(0) {
            "no" if line.len() > 1 => {
                negated = line.without_no();
                &negated
            }
            _ => &line,
        };
        let keyword = line.text(0);
        let begins = [Part::Agent, Part::Message, Part::Group].into_iter().find(|part| part.keyword() == keyword);
        if let Some(part) = begins {
            self.part = part;
        } else if self.part == Part::None {
            let message = format!("unknown keyword '{keyword}' out of section");
            self.error(line.at(0), message);
            return;
        }
        if self.scope.as_deref() != self.engine {
            return;
        }
        let begins = begins.is_some();
        match self.part {
            Part::Agent if begins => self.begin_agent(line),
            Part::Message if begins => self.begin_message(line),
            Part::Group if begins => self.begin_group(line),
            Part::Agent => self.agent(line),
            Part::Message => self.message(line),
            Part::Group => self.group(line),
            Part::None => {}
        }
    }
}

impl FileReader<'_, '_> {
    fn error(&mut self, at: Position, message: impl Into<String>) -> &mut crate::diagnostic::Diagnostic {
        self.proxy.diagnostics.error(at, message)
    }

    fn scope(&mut self, line: &Line) {
        let text = line.text(0);
        let name = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let problem = match name {
            Some("") => "empty scope name is forbidden".to_owned(),
            Some(name) if bad_name_byte(name).is_some() => "this name is not permitted for a scope".to_owned(),
            Some(_) if line.len() > 1 => {
                format!("'{}' is not permitted after scope declaration", line.text(1))
            }
            Some(name) => {
                self.scope = Some(name.into());
                return;
            }
            None => format!("'{text}' is no scope: it ends with ']'"),
        };
        self.error(line.at(0), problem);
    }

    /// Returns the name of a section, if it is one.
    fn name(&mut self, line: &Line) -> Option<Box<str>> {
        let (keyword, name) = (line.text(0), line.text(1));
        if name.is_empty() {
            self.error(line.at(1), format!("missing name for {keyword} section"));
            return None;
        }
        if let Some(offset) = bad_name_byte(name) {
            let bad = name[offset..].chars().next().unwrap_or('?');
            let message = format!("character '{bad}' is not permitted in '{keyword}' name '{name}'");
            self.error(line.within(1, offset), message);
            return None;
        }
        self.ends(line, 2).then(|| name.into())
    }

    /// Reports words behind the last one that has a meaning.
    fn ends(&mut self, line: &Line, len: usize) -> bool {
        if line.len() <= len {
            return true;
        }
        let message = format!("'{}' cannot handle unexpected argument '{}'", line.text(0), line.text(len));
        self.error(line.at(len), message);
        false
    }

    /// Returns the maximum length of a frame.
    fn frame_max(&self) -> u32 {
        u32::try_from(self.proxy.pages.bufsize.saturating_sub(LENGTH)).unwrap_or(u32::MAX)
    }

    fn begin_agent(&mut self, line: &Line) {
        let Some(name) = self.name(line) else { return };
        if self.agent.is_some() {
            self.error(line.at(0), "another spoe-agent section previously defined");
            return;
        }
        let settings = SpoeAgent {
            name: Arc::from(name),
            backend: crate::model::ProxyId(0),
            prefix: "".into(),
            on_error: None,
            process_time: None,
            total_time: None,
            registered: Vec::new(),
            sets_any: false,
            continues: false,
            pipelining: true,
            logs_failures_only: false,
            log: Vec::new(),
            log_global: false,
            processing: None,
            max_frame_size: self.frame_max(),
        };
        self.agent = Some(Agent { at: line.at(0), backend: None, prefix: None, settings });
    }

    fn agent(&mut self, line: &Line) {
        let keyword = line.text(0);
        let expects = |what: &str| format!("'{keyword}' expects {what}");
        match keyword {
            "messages" => self.names(line, |r| &mut r.used_messages, "spoe-message"),
            "groups" => self.names(line, |r| &mut r.used_groups, "spoe-group"),
            "maxconnrate" | "maxerrrate" | "max-waiting-frames" | "max-frame-size" if line.len() < 2 => {
                self.error(line.at(1), expects("an integer argument"));
            }
            // Without effect since HAProxy 3.1.
            "maxconnrate" | "maxerrrate" => {}
            "max-waiting-frames" => _ = self.ends(line, 2),
            "max-frame-size" => {
                if !self.ends(line, 2) {
                    return;
                }
                let most = self.frame_max();
                let size = line.text(1).parse::<u32>().ok().filter(|size| (FRAME_MIN..=most).contains(size));
                match (size, &mut self.agent) {
                    (None, _) => {
                        let what = format!("a positive integer argument in the range [{FRAME_MIN}, {most}]");
                        self.error(line.at(1), expects(&what));
                    }
                    (Some(size), Some(agent)) => agent.settings.max_frame_size = size,
                    (Some(_), None) => {}
                }
            }
            "use-backend" => {
                if line.len() < 2 {
                    self.error(line.at(1), expects("a backend name"));
                } else if self.ends(line, 2)
                    && let Some(agent) = &mut self.agent
                {
                    agent.backend = Some(line.text(1).into());
                }
            }
            "register-var-names" => {
                if line.len() < 2 {
                    self.error(line.at(1), expects("one or more variable names"));
                }
                for index in 1..line.len() {
                    self.register(line, index);
                }
            }
            "timeout" => self.timeout(line),
            "option" => self.option(line),
            "log" => self.log(line),
            _ => _ = self.error(line.at(0), format!("unknown keyword '{keyword}' in spoe-agent section")),
        }
    }

    /// Appends names to a list that has each once.
    fn names(&mut self, line: &Line, list: fn(&mut Self) -> &mut Vec<Box<str>>, what: &str) {
        for index in 1..line.len() {
            let name = line.text(index);
            if list(self).iter().any(|known| **known == *name) {
                self.error(line.at(index), format!("{what} '{name}' already used"));
                return;
            }
            list(self).push(name.into());
        }
    }

    fn is_variable(name: &str) -> bool {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
    }

    fn register(&mut self, line: &Line, index: usize) {
        let name = line.text(index);
        if !Self::is_variable(name) {
            let message = format!("failed to register variable '{name}': only [a-zA-Z0-9_.] chars are supported");
            self.error(line.at(index), message);
        } else if let Some(agent) = &mut self.agent {
            agent.settings.registered.push(name.into());
        }
    }

    fn timeout(&mut self, line: &Line) {
        let which = line.text(1);
        match which {
            "" => {
                self.error(line.at(1), "'timeout' expects 'hello', 'idle' and 'processing'");
            }
            _ if !self.ends(line, 3) => {}
            // Without effect since HAProxy 3.1: the backend has the timeouts of connections.
            "hello" | "idle" => {}
            "processing" if line.len() < 3 => {
                let message = "'timeout processing' expects an integer value (in milliseconds)";
                self.error(line.at(2), message);
            }
            "processing" => {
                let read = self.proxy.diagnostics.duration(line.at(2), line.text(2), TimeUnit::Milliseconds);
                match (read, &mut self.agent) {
                    (Ok(time), Some(agent)) => agent.settings.processing = (!time.is_zero()).then_some(time),
                    (Ok(_), None) => {}
                    (Err(message), _) => {
                        self.error(line.at(2), format!("'timeout processing': {message}")).hint(TIME_HINT);
                    }
                }
            }
            _ => {
                self.error(line.at(1), format!("'timeout' supports 'processing' (got {which})"));
            }
        }
    }

    fn option(&mut self, line: &Line) {
        let (name, on) = (line.text(1), !line.negated);
        let Some(agent) = &mut self.agent else { return };
        let settings = &mut agent.settings;
        match name {
            "" => _ = self.error(line.at(1), "'option' expects an option name"),
            "pipelining" => {
                settings.pipelining = on;
                self.ends(line, 2);
            }
            "dontlog-normal" => {
                settings.logs_failures_only = on;
                self.ends(line, 2);
            }
            // Without effect since HAProxy 3.1.
            "async" | "send-frag-payload" => _ = self.ends(line, 2),
            _ if !on => _ = self.error(line.at(1), format!("negation is not supported for option '{name}'")),
            "force-set-var" => {
                settings.sets_any = true;
                self.ends(line, 2);
            }
            "continue-on-error" => {
                settings.continues = true;
                self.ends(line, 2);
            }
            "var-prefix" | "set-on-error" | "set-process-time" | "set-total-time" => {
                let value = line.text(2);
                let slot = match name {
                    "var-prefix" => &mut agent.prefix,
                    "set-on-error" => &mut settings.on_error,
                    "set-process-time" => &mut settings.process_time,
                    _ => &mut settings.total_time,
                };
                if value.is_empty() {
                    self.error(line.at(2), format!("'option {name}' expects a value"));
                } else if !Self::is_variable(value) {
                    self.error(line.at(2), format!("'option {name}' only supports [a-zA-Z0-9_.] chars"));
                } else {
                    *slot = Some(value.into());
                    self.ends(line, 3);
                }
            }
            _ => _ = self.error(line.at(1), format!("option '{name}' is not supported")),
        }
    }

    fn log(&mut self, line: &Line) {
        let Some(agent) = &mut self.agent else { return };
        let settings = &mut agent.settings;
        if line.negated {
            settings.log.clear();
            settings.log_global = false;
            self.ends(line, 1);
        } else if line.text(1) == "global" && line.len() == 2 {
            settings.log_global = true;
        } else if let Some(target) = log::target(line, self.proxy.loaded.files, self.proxy.diagnostics) {
            settings.log.push(target);
        }
    }

    fn begin_message(&mut self, line: &Line) {
        let Some(name) = self.name(line) else { return };
        self.proxy.stores.acls.borrow_mut().clear();
        if let Some(other) = self.messages.iter().find(|other| other.name == name) {
            let (file, number) = (&other.at.file, other.at.line);
            let message =
                format!("spoe-message section '{name}' has the same name as another one declared at {file}:{number}");
            self.error(line.at(0), message);
            return;
        }
        self.messages.push(Message {
            name,
            at: line.at(0),
            args: Vec::new(),
            acls: Acls::default(),
            event: None,
            condition: None,
        });
    }

    fn message(&mut self, line: &Line) {
        let Some(message) = self.messages.last_mut() else { return };
        match line.text(0) {
            "args" => {
                for index in 1..line.len() {
                    self.argument(line, index);
                }
            }
            "acl" => {
                let mut reader = ConditionReader { stores: self.proxy.stores, diagnostics: self.proxy.diagnostics };
                reader.declare(line, &mut message.acls);
            }
            "event" => self.event(line),
            keyword => {
                // HAProxy skips them silently.
                let message = format!("unknown keyword '{keyword}' in spoe-message section is ignored");
                self.proxy.diagnostics.warning(line.at(0), message);
            }
        }
    }

    fn argument(&mut self, line: &Line, index: usize) {
        let word = line.text(index);
        let (name, text) = word.split_once('=').unwrap_or(("", word));
        let start = word.len() - text.len();
        let reader = ExpressionReader { stores: self.proxy.stores, place: Place::Declared, acl: false };
        let read = reader.read(text, line.within(index, start)).and_then(|parsed| match parsed.used < text.len() {
            true => {
                let bad = text[parsed.used..].chars().next().unwrap_or('?');
                Err(Problem::new(parsed.used, format!("missing comma after the expression, at '{bad}'")))
            }
            false => Ok(parsed.expr),
        });
        match (read, self.messages.last_mut()) {
            (Ok(_), Some(message)) if message.args.len() >= ARGS_MAX => {
                self.error(line.at(index), format!("a message has at most {ARGS_MAX} arguments"));
            }
            (Ok(expr), Some(message)) => message.args.push((name.into(), expr)),
            (Ok(_), None) => {}
            (Err(problem), _) => {
                let at = line.within(index, start + problem.offset);
                let error = self.error(at, format!("'args': {}", problem.message));
                if let Some(hint) = problem.hint {
                    error.hint(hint);
                }
            }
        }
    }

    fn event(&mut self, line: &Line) {
        let name = line.text(1);
        if name.is_empty() {
            self.error(line.at(1), "missing event name");
            return;
        }
        let Some(event) = SpoeEvent::ALL.into_iter().find(|event| event.name() == name) else {
            let near = crate::suggest::nearest(name, SpoeEvent::ALL.into_iter().map(SpoeEvent::name));
            self.error(line.at(1), format!("unknown event '{name}'")).did_you_mean(near);
            return;
        };
        if !matches!(line.text(2), "" | "if" | "unless") {
            let message = format!(
                "'event {name}' expects either 'if' or 'unless' followed by a condition but found '{}'",
                line.text(2)
            );
            self.error(line.at(2), message);
            return;
        }
        let Some(message) = self.messages.last_mut() else { return };
        message.event = Some(event);
        let mut reader = ConditionReader { stores: self.proxy.stores, diagnostics: self.proxy.diagnostics };
        let Ok(condition) = reader.condition(line, 2, &message.acls, place_of(event)) else { return };
        if let Some(mut condition) = condition {
            let acls: Vec<_> = message.acls.list.iter().map(|acl| Arc::new(acl.clone())).collect();
            rule::inline(&mut condition, &acls);
            message.condition = Some(condition);
        }
    }

    fn begin_group(&mut self, line: &Line) {
        let Some(name) = self.name(line) else { return };
        if let Some(other) = self.groups.iter().find(|other| other.name == name) {
            let (file, number) = (&other.at.file, other.at.line);
            let message =
                format!("spoe-group section '{name}' has the same name as another one declared at {file}:{number}");
            self.error(line.at(0), message);
            return;
        }
        self.groups.push(Group { name, at: line.at(0), messages: Vec::new() });
    }

    fn group(&mut self, line: &Line) {
        if line.text(0) != "messages" {
            self.error(line.at(0), format!("unknown keyword '{}' in spoe-group section", line.text(0)));
            return;
        }
        if self.groups.is_empty() {
            return;
        }
        self.names(line, |r| &mut r.groups.last_mut().expect("there is a group").messages, "spoe-message");
    }

    /// Resolves the names of the sections.
    fn finish(mut self, at: Position, file: &str) -> Option<SpoeFilter> {
        let proxy = &self.proxy.settings.proxy;
        let (name, sides) = (proxy.name.clone(), sides_of(proxy));
        let has_front = proxy.kind != ProxyKind::Backend;
        let is_both = proxy.kind == ProxyKind::Listen;
        let Some(Agent { at: agent_at, backend, prefix, mut settings }) = self.agent.take() else {
            self.error(at, format!("No SPOE agent found in file {file}"));
            return None;
        };
        let agent = settings.name.clone();
        let Some(backend) = backend else {
            self.error(agent_at, format!("No backend declared for SPOE agent '{agent}'"));
            return None;
        };
        if settings.processing.is_none() {
            let message = format!(
                "Proxy '{name}': missing 'processing' timeout for SPOE agent '{agent}'. While not properly invalid, you \
                 will certainly encounter various problems with such a configuration. To fix this, please ensure it is \
                 set to a non-zero value"
            );
            self.proxy.diagnostics.warning(agent_at.clone(), message);
        }
        settings.prefix = match prefix {
            Some(prefix) => prefix,
            None if Self::is_variable(&agent) => (&*agent).into(),
            None => {
                let message = format!(
                    "Invalid variable prefix '{agent}' for SPOE agent '{agent}'. Use 'option var-prefix' to set it. Only \
                     [a-zA-Z0-9_.] chars are supported"
                );
                self.error(agent_at, message);
                return None;
            }
        };
        if self.used_messages.is_empty() && self.used_groups.is_empty() {
            let message = format!("Proxy '{name}': No message/group used by SPOE agent '{agent}'");
            self.proxy.diagnostics.warning(agent_at.clone(), message);
        }
        let mut made: HashMap<&str, Arc<SpoeMessage>> = HashMap::new();
        for message in &self.messages {
            let Message { name, args, condition, at, .. } = message;
            let (name, args, at) = (name.clone(), args.clone(), at.clone());
            let message_made = SpoeMessage { name, args, condition: condition.clone(), at };
            made.insert(&message.name, Arc::new(message_made));
        }
        let diagnostics = &mut *self.proxy.diagnostics;
        let mut messages = Vec::new();
        for used in &self.used_messages {
            let Some(message) = self.messages.iter().find(|message| message.name == *used) else {
                let message = format!("SPOE agent '{agent}' try to use undefined SPOE message '{used}'");
                diagnostics.error(agent_at, message);
                return None;
            };
            let event = match message.event {
                Some(SpoeEvent::BackendTcpRequest) if is_both => Some(SpoeEvent::FrontendTcpRequest),
                Some(SpoeEvent::BackendHttpRequest) if is_both => Some(SpoeEvent::FrontendHttpRequest),
                event => event,
            };
            let Some(event) = event else {
                let warning = format!("Proxy '{name}': Ignore SPOE message '{used}' without event");
                diagnostics.warning(message.at.clone(), warning);
                continue;
            };
            let of_front = matches!(
                event,
                SpoeEvent::ClientSession | SpoeEvent::FrontendTcpRequest | SpoeEvent::FrontendHttpRequest
            );
            if of_front && !has_front {
                let warning = format!("Proxy '{name}': frontend event used on a backend proxy");
                diagnostics.warning(message.at.clone(), warning);
                continue;
            }
            if let Some(what) = unavailable(&message.args, place_of(event), sides) {
                diagnostics.error(message.at.clone(), format!("Ignore SPOE message '{used}': {what}"));
                return None;
            }
            messages.push((event, made[&*message.name].clone()));
        }
        let mut groups = Vec::new();
        let mut grouped: HashMap<&str, &str> = HashMap::new();
        for used in &self.used_groups {
            let Some(group) = self.groups.iter().find(|group| group.name == *used) else {
                let message = format!("SPOE agent '{agent}' try to use undefined SPOE group '{used}'");
                diagnostics.error(agent_at, message);
                return None;
            };
            let mut members = Vec::new();
            for member in &group.messages {
                let Some(message) = made.get(&**member) else {
                    let message = format!("SPOE group '{used}' try to use undefined SPOE message '{member}'");
                    diagnostics.error(group.at.clone(), message);
                    return None;
                };
                if let Some(other) = grouped.insert(member, used) {
                    let message = format!("SPOE message '{member}' already belongs to the SPOE group '{other}'");
                    diagnostics.error(group.at.clone(), message);
                    return None;
                }
                members.push(message.clone());
            }
            groups.push(SpoeGroup { name: used.clone(), messages: members });
        }
        let Some(backend) = self.proxy.names.backends.get(&*backend) else {
            let message = format!("Proxy {name} : unknown backend '{backend}' used by SPOE agent '{agent}'");
            let near = crate::suggest::nearest(&backend, self.proxy.names.backends.keys().map(|known| &**known));
            diagnostics.error(agent_at, message).did_you_mean(near);
            return None;
        };
        settings.backend = *backend;
        let engine = self.engine.map_or(agent, Arc::from);
        Some(SpoeFilter { engine, agent: settings, messages, groups })
    }
}
