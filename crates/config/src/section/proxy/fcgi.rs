//! `fcgi-app` sections, and the proxies that use them (HAProxy configuration manual 9.5 and 10).

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_pattern::Regex;

use super::keywords::row;
use super::{ProxyParser, ProxyReader};
use crate::catalogue::{Contexts, Place, known};
use crate::diagnostic::Diagnostics;
use crate::expression::ExpressionReader;
use crate::expression::condition::{Acls, ConditionReader};
use crate::model::{FcgiAction, FcgiApp, FcgiRule, Filter, HeaderNames, Mode, Position, Proto, Proxy};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, log, rule};
use crate::suggest;
use crate::word::Line;

/// The reader of a section's lines.
pub(crate) struct AppReader<'r, 'a> {
    app: FcgiApp,
    acls: Acls,
    proxy: &'r mut ProxyReader<'a>,
}

pub(crate) type AppParser = for<'r, 'a> fn(&mut AppReader<'r, 'a>, &Line);

const fn line(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: AppParser,
) -> Row<AppParser> {
    Row { name, contexts: Contexts::FCGI_APP, min, max, usage, docs, parser }
}

/// The keywords of `fcgi-app`.
pub(crate) static KEYWORDS: Table<AppParser> = Table::new(&[
    line("acl", (1, MANY), "NAME CRITERION…", "Declares an ACL of this section.", |r, line| {
        let mut reader = ConditionReader { stores: r.proxy.stores, diagnostics: r.proxy.diagnostics };
        reader.declare(line, &mut r.acls);
    }),
    line(
        "docroot",
        (1, 1),
        "PATH",
        "The directory of the scripts on the application's host, DOCUMENT_ROOT; required.",
        |r, line| r.app.docroot = line.text(1).into(),
    ),
    line(
        "index",
        (1, 1),
        "NAME",
        "The script of a path that ends with a slash; it is appended to SCRIPT_NAME.",
        |r, line| r.app.index = Some(line.text(1).into()),
    ),
    line(
        "log-stderr",
        (1, MANY),
        "global | TARGET [len N] [format FORMAT] [sample RANGES:SIZE] FACILITY [LEVEL [MINLEVEL]]",
        "Where the messages that the application writes to its standard error are logged, with the level err and the \
         section's name as the tag; nowhere by default.",
        |r, line| r.log(line),
    ),
    line(
        "option get-values",
        (0, 0),
        "",
        "Asks the application on each new connection for FCGI_MAX_REQS and FCGI_MPXS_CONNS, which replace 'option \
         max-reqs' and 'option mpxs-conns'; requests wait for the answer.",
        |r, line| r.app.get_values = !line.negated,
    ),
    line(
        "option keep-conn",
        (0, 0),
        "",
        "The application keeps connections open after its responses, which is the default.",
        |r, line| r.app.keep_conn = !line.negated,
    ),
    line(
        "option max-reqs",
        (1, 1),
        "N",
        "The requests that a connection has at a time under 'option mpxs-conns'; 1.",
        |r, line| r.max_requests(line),
    ),
    line("option mpxs-conns", (0, 0), "", "A connection has several requests at a time; off.", |r, line| {
        r.app.multiplexes = !line.negated
    }),
    line(
        "pass-header",
        (1, MANY),
        "NAME [if|unless CONDITION]",
        "Passes a field of the request that is kept from the application otherwise: Authorization, \
         Proxy-Authorization, Proxy-Authenticate, Proxy, Connection, Keep-Alive, TE, Trailers, Transfer-Encoding and \
         Upgrade.",
        |r, line| r.rule(line, 2, |_, line| Some(FcgiAction::PassHeader(line.text(1).to_ascii_lowercase().into()))),
    ),
    line(
        "path-info",
        (1, 1),
        "REGEX",
        "Splits the decoded path: the first group is SCRIPT_NAME, the second, if there is one, PATH_INFO. A path with a \
         line feed or a NUL gets an error then.",
        |r, line| match Regex::new(line.text(1).as_bytes(), false) {
            Ok(regex) => r.app.path_info = Some(Arc::new(regex)),
            Err(error) => {
                r.proxy.diagnostics.error(line.at(1), format!("'{}' : {error}", line.text(1)));
            }
        },
    ),
    line(
        "set-param",
        (2, MANY),
        "NAME FORMAT [if|unless CONDITION]",
        "Sets a parameter, also in place of one that is set by default; the last line of a name whose condition holds \
         counts, and an empty value changes nothing.",
        |r, line| r.rule(line, 3, |r, line| r.parameter(line)),
    ),
]);

impl AppReader<'_, '_> {
    fn log(&mut self, line: &Line) {
        if line.text(1) == "global" && line.len() == 2 {
            self.app.log_global = true;
        } else if let Some(target) = log::target(line, self.proxy.loaded.files, self.proxy.diagnostics) {
            self.app.log.push(target);
        }
    }

    fn max_requests(&mut self, line: &Line) {
        if line.negated {
            let message = "negation/default is not supported for option 'max-reqs'.";
            self.proxy.diagnostics.error(line.at(1), message);
            return;
        }
        let digits = line.text(2).bytes().take_while(u8::is_ascii_digit);
        let number =
            digits.fold(0u32, |number, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')));
        if number == 0 {
            let message = "option 'max-reqs' expects a strictly positive integer argument.";
            self.proxy.diagnostics.error(line.at(2), message);
            return;
        }
        self.app.max_requests = number;
    }

    fn parameter(&mut self, line: &Line) -> Option<FcgiAction> {
        let reader = ExpressionReader { stores: self.proxy.stores, place: Place::HttpRequest, acl: false };
        let format = rule::format(&reader, line, 2, self.proxy.diagnostics)?;
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        Some(FcgiAction::SetParam(line.text(1).chars().map(plain).collect(), format))
    }

    /// Reads a rule whose condition begins at `start`.
    fn rule(&mut self, line: &Line, start: usize, read: fn(&mut Self, &Line) -> Option<FcgiAction>) {
        let Some(action) = read(self, line) else { return };
        if !matches!(line.text(start), "" | "if" | "unless") {
            let message =
                format!("'{}' : expects either 'if' or 'unless' but found '{}'", line.text(1), line.text(start));
            self.proxy.diagnostics.error(line.at(start), message);
            return;
        }
        let mut reader = ConditionReader { stores: self.proxy.stores, diagnostics: self.proxy.diagnostics };
        let Ok(mut condition) = reader.condition(line, start, &self.acls, Place::HttpRequest) else { return };
        if let Some(condition) = &mut condition {
            let acls: Vec<_> = self.acls.list.iter().map(|acl| Arc::new(acl.clone())).collect();
            rule::inline(condition, &acls);
        }
        self.app.rules.push(FcgiRule { action, condition, at: line.at(0) });
    }
}

/// The parameters that every application gets first, unless they are empty.
const DEFAULTS: [(&str, &str); 2] = [("remote_user", "%[http_auth_user]"), ("auth_type", "%[http_auth_type]")];

fn default(name: &str, text: &'static str, at: &Position) -> FcgiRule {
    let action = FcgiAction::SetParam(name.into(), crate::format::builtin_in(Place::HttpRequest, text));
    FcgiRule { action, condition: None, at: at.clone() }
}

/// The applications by name.
pub(crate) type Apps = HashMap<Arc<str>, Arc<FcgiApp>>;

/// Reads a section. `before` are the applications that were read already.
pub(super) fn read(proxy: &mut ProxyReader<'_>, section: &Section, before: &Apps) -> Option<FcgiApp> {
    let name = section.name.clone();
    if let Some(other) = before.get(&name) {
        let Position { file, line, .. } = &other.at;
        let message = format!("fcgi-app section '{name}' has the same name as another one declared at {file}:{line}.");
        proxy.diagnostics.error(section.at.clone(), message);
        return None;
    }
    let app = FcgiApp {
        name,
        docroot: "".into(),
        index: None,
        path_info: None,
        keep_conn: true,
        get_values: false,
        multiplexes: false,
        max_requests: 1,
        rules: DEFAULTS.map(|(name, text)| default(name, text, &section.at)).into(),
        log: Vec::new(),
        log_global: false,
        at: section.at.clone(),
    };
    let mut reader = AppReader { app, acls: Acls::default(), proxy };
    let failed = section.lines.iter().fold(false, |failed, line| {
        let before = reader.proxy.diagnostics.errors();
        app_line(&mut reader, line);
        failed || reader.proxy.diagnostics.errors() > before
    });
    let AppReader { mut app, proxy, .. } = reader;
    if app.docroot.is_empty() && !failed {
        proxy.diagnostics.error(app.at.clone(), format!("fcgi-app '{}': no docroot configured.", app.name));
    }
    if !app.multiplexes && !app.get_values && app.max_requests > 1 {
        let message = format!("fcgi-app '{}': multiplexing not supported, ignore the option 'max-reqs'.", app.name);
        proxy.diagnostics.warning(app.at.clone(), message);
    }
    if !app.multiplexes && !app.get_values {
        app.max_requests = 1;
    }
    Some(app)
}

fn app_line(reader: &mut AppReader<'_, '_>, line: &Line) {
    let negated;
    let mut line = line;
    if line.text(0) == "no" {
        negated = line.without_no();
        line = &negated;
        if line.text(0) == "log-stderr" {
            reader.app.log.clear();
            reader.app.log_global = false;
            return;
        }
        if line.text(0) != "option" {
            let message = format!("'no' cannot stand before '{}'", line.text(0));
            reader.proxy.diagnostics.error(line.at(0), message).hint("'no' is for options and 'log-stderr'");
            return;
        }
    }
    match KEYWORDS.find(line.text(0), line.text(1)) {
        Some((row, words)) => {
            if table::arity(row, words, line, reader.proxy.diagnostics) {
                (row.parser)(reader, line);
            }
        }
        None if line.text(0) == "option" && line.len() == 1 => {
            reader.proxy.diagnostics.error(line.at(1), "'option' expects an option name.");
        }
        None if line.text(0) == "option" => {
            let options = KEYWORDS.rows.iter().filter_map(|row| row.name.strip_prefix("option "));
            let near = suggest::nearest(line.text(1), options);
            let message = format!("unknown option '{}'.", line.text(1));
            reader.proxy.diagnostics.error(line.at(1), message).did_you_mean(near);
        }
        None => {
            let diagnostics = &mut *reader.proxy.diagnostics;
            table::unknown(&KEYWORDS, known::NONE, Contexts::FCGI_APP, "fcgi-app", line, diagnostics);
        }
    }
}

/// `use-fcgi-app`.
pub(super) const USE: Row<ProxyParser> = row(
    "use-fcgi-app",
    Contexts::BACKEND.or(Contexts::LISTEN),
    1,
    1,
    "NAME",
    "The FastCGI application of servers with 'proto fcgi'. Its parameters are made for every request, and unless 'option \
     http-restrict-req-hdr-names' says otherwise, fields whose names have other characters than letters, digits and '-' \
     are removed ([FastCGI](fastcgi.md)).",
    |r, line| r.use_fcgi_app(line),
);

/// The application of a proxy's filter.
fn of_filter(filter: &Filter) -> Option<&Arc<FcgiApp>> {
    match filter {
        Filter::Fcgi(app) => Some(app),
        _ => None,
    }
}

impl ProxyReader<'_> {
    fn app(&mut self, line: &Line, index: usize) -> Option<Arc<FcgiApp>> {
        let name = line.text(index);
        let found = self.fcgi_apps.get(name).cloned();
        if found.is_none() {
            let near = suggest::nearest(name, self.fcgi_apps.keys().map(|known| &**known));
            let message = format!("proxy '{}' : fcgi-app '{name}' not found.", self.settings.proxy.name);
            self.diagnostics.error(line.at(index), message).did_you_mean(near);
        }
        found
    }

    fn use_fcgi_app(&mut self, line: &Line) {
        let name = line.text(1);
        match self.settings.proxy.filters.iter().find_map(of_filter) {
            Some(known) if *known.name == *name => {}
            Some(_) => {
                let message = "'use-fcgi-app' : only one fcgi-app supported per backend";
                self.diagnostics.error(line.at(1), message);
            }
            None => {
                if let Some(app) = self.app(line, 1) {
                    self.settings.proxy.filters.push(Filter::Fcgi(app));
                }
            }
        }
    }

    /// `filter fcgi-app NAME`: the place of the application among the filters.
    pub(super) fn fcgi_filter(&mut self, line: &Line) -> Option<(Filter, usize)> {
        if line.text(2).is_empty() {
            self.diagnostics.error(line.at(2), "fcgi-app : expects a <name> argument");
            return None;
        }
        let app = self.app(line, 2)?;
        self.settings.proxy.filters.retain(|filter| of_filter(filter).is_none_or(|known| known.name != app.name));
        Some((Filter::Fcgi(app), 3))
    }

    /// Checks the filters beside an application's.
    pub(super) fn finish_fcgi(&mut self) {
        let proxy = &self.settings.proxy;
        let Some(app) = proxy.filters.iter().find_map(of_filter) else { return };
        let name = &proxy.name;
        let others = proxy.filters.iter().filter(|filter| of_filter(filter).is_none_or(|other| other.name != app.name));
        let message = others.into_iter().find_map(|filter| match filter {
            Filter::Compression | Filter::Cache(_) => None,
            Filter::Fcgi(_) => Some(format!("proxy '{name}' : only one fcgi-app supported per backend.")),
            // As in HAProxy, also if there is one.
            _ => Some(format!(
                "config: proxy '{name}': require an explicit filter declaration to use the fcgi-app '{}'.",
                app.name
            )),
        });
        if let Some(message) = message {
            let error = self.diagnostics.error(proxy.at.clone(), message);
            error.hint("beside an application, a backend has no other filters than 'cache' and 'compression'");
        }
    }
}

/// Checks that servers and applications fit together, and sets what follows from an application.
pub(crate) fn check(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let app = proxy.fcgi_app().map(|app| app.name.clone());
    let name = proxy.name.clone();
    if app.is_some() && proxy.mode != Mode::Http {
        let message = format!("proxy '{name}': FCGI application cannot be used in non-HTTP mode.");
        diagnostics.error(proxy.at.clone(), message).hint("add 'mode http'");
        return;
    }
    let mut servers = proxy.servers.iter().filter(|server| server.proto == Some(Proto::Fcgi));
    match (app, servers.next()) {
        (Some(_), Some(_)) => _ = proxy.options.header_names.get_or_insert(HeaderNames::Delete),
        (Some(_), None) => {
            let message = format!("proxy '{name}': FCGI app configured but no FCGI server found.");
            diagnostics.error(proxy.at.clone(), message).hint("add 'proto fcgi' to a 'server' line");
        }
        (None, Some(server)) if proxy.mode == Mode::Http => {
            let message = format!("proxy '{name}': FCGI server '{}' has no FCGI app configured.", server.name);
            diagnostics.error(server.at.clone(), message).hint("add 'use-fcgi-app NAME'");
        }
        (None, _) => {}
    }
}

impl Proxy {
    /// Returns its FastCGI application.
    pub fn fcgi_app(&self) -> Option<&Arc<FcgiApp>> {
        self.filters.iter().find_map(of_filter)
    }
}
