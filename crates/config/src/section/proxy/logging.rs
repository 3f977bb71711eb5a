//! The keywords of proxies that control logging.

use std::sync::Arc;

use super::{ProxyReader, on};
use crate::catalogue::{Contexts, Place};
use crate::expression::ExpressionReader;
use crate::format;
use crate::limits;
use crate::model::{Capture, LogFormat, LogLine};
use crate::section::{log, rule, table};
use crate::word::Line;

/// A line that an option asks for.
#[derive(Clone, Copy)]
pub(super) struct LogForm {
    /// The keyword that requests it.
    pub(super) keyword: &'static str,
    /// The line's format.
    pub(super) text: &'static str,
}

/// `option httplog`.
pub(super) const HTTP: LogForm = LogForm { keyword: "option httplog", text: format::HTTP_LOG };
/// `option httplog clf`.
pub(super) const HTTP_CLF: LogForm = LogForm { keyword: "option httplog clf", text: format::HTTP_CLF_LOG };
/// `option httpslog`.
pub(super) const HTTPS: LogForm = LogForm { keyword: "option httpslog", text: format::HTTPS_LOG };
/// `option tcplog`.
pub(super) const TCP: LogForm = LogForm { keyword: "option tcplog", text: format::TCP_LOG };
/// `option tcplog clf`.
pub(super) const TCP_CLF: LogForm = LogForm { keyword: "option tcplog clf", text: format::TCP_CLF_LOG };

impl ProxyReader<'_> {
    pub(super) fn log(&mut self, line: &Line) {
        let settings = &mut self.settings;
        if line.negated {
            settings.log_global = None;
            settings.proxy.log.clear();
            if line.len() > 1 {
                let message = format!("'no log' cannot handle unexpected argument '{}'", line.text(1));
                self.diagnostics.error(line.at(1), message);
            }
        } else if line.text(1) == "global" {
            settings.log_global = Some(line.at(0));
            if line.len() > 2 {
                let message = format!("'log global' cannot handle unexpected argument '{}'", line.text(2));
                self.diagnostics.error(line.at(2), message);
            }
        } else if let Some(target) = log::target(line, self.loaded.files, self.diagnostics) {
            settings.proxy.log.push(target);
        }
    }

    pub(super) fn log_steps(&mut self, line: &Line) {
        if self.context == Contexts::BACKEND {
            let name = &self.settings.proxy.name;
            let message = format!("log-steps will be ignored because backend '{name}' has no frontend capability");
            self.diagnostics.warning(line.at(0), message);
            return;
        }
        // Steps of earlier lines, of `defaults` too, are kept.
        match super::log_profile::steps(line.text(1)) {
            Ok(steps) => self.settings.proxy.logging.steps.get_or_insert_default().extend(steps),
            Err(message) => _ = self.diagnostics.error(line.at(1), message),
        }
    }

    pub(super) fn log_tag(&mut self, line: &Line) {
        self.settings.proxy.logging.tag = Some(line.text(1).into());
    }

    /// Returns the word behind the keyword as a format of log lines, or of what HAProxy reads by the same rules.
    pub(super) fn log_format(&mut self, line: &Line, place: Place) -> Option<Arc<LogFormat>> {
        let reader = ExpressionReader { stores: self.stores, place, acl: false };
        rule::log_line(&reader, line, 1, self.diagnostics).map(Arc::new)
    }

    pub(super) fn log_line(&mut self, line: &Line) {
        if let Some(format) = self.log_format(line, Place::Log) {
            self.overrides(line, "log-format");
            self.settings.proxy.logging.line = Some(LogLine { keyword: "log-format", at: line.at(0), format });
        }
    }

    /// `option httplog`, `tcplog` and `httpslog`, with `clf` behind those that have such a form.
    pub(super) fn log_option(&mut self, line: &Line, form: LogForm, clf: Option<LogForm>) {
        let form = match (line.text(2), clf) {
            ("clf", Some(clf)) => {
                self.option_arity(line, 1);
                clf
            }
            _ => {
                self.option_arity(line, 0);
                form
            }
        };
        if self.context == Contexts::BACKEND {
            let option = format!("option {}", line.text(1));
            self.ignored_in_backend(line, &option);
        }
        self.overrides(line, form.keyword);
        let format = || Arc::new(format::builtin(form.text));
        self.settings.proxy.logging.line =
            on(line).then(|| LogLine { keyword: form.keyword, at: line.at(0), format: format() });
    }

    /// HAProxy's warning about a log format of a backend, which has no lines of its own.
    pub(super) fn ignored_in_backend(&mut self, line: &Line, keyword: &str) {
        let name = &self.settings.proxy.name;
        let message = format!("backend '{name}' : '{keyword}' directive is ignored in backends");
        self.diagnostics.warning(line.at(0), message);
    }

    /// HAProxy's warning about a second format in a `defaults`.
    fn overrides(&mut self, line: &Line, keyword: &str) {
        if self.context == Contexts::DEFAULTS
            && let Some(earlier) = &self.settings.proxy.logging.line
        {
            let message = format!("'{keyword}' overrides previous '{}' in 'defaults' section", earlier.keyword);
            self.diagnostics.warning(line.at(0), message);
        }
    }

    /// `capture request|response header NAME len N` and `capture cookie NAME len N`.
    pub(super) fn capture(&mut self, line: &Line) {
        let (name_at, cookie) = match (line.text(1), line.text(2)) {
            ("cookie", _) => (2, true),
            ("request" | "response", "header") => (3, false),
            ("request" | "response", other) => {
                let message = format!("'capture {}' expects 'header', not '{other}'", line.text(1));
                self.diagnostics.error(line.at(2), message);
                return;
            }
            (other, _) => {
                let message =
                    format!("'capture' expects 'cookie', 'request header' or 'response header', not '{other}'");
                self.diagnostics.error(line.at(1), message);
                return;
            }
        };
        let name = line.text(name_at);
        if name.is_empty() {
            self.diagnostics.error(line.at(name_at), "'capture' expects a name");
            return;
        }
        let Some(len) = self.capture_len(line, name_at + 1) else { return };
        let capture = Capture { name: Some(name.to_owned()), len };
        if cookie {
            let most = self.stores.cookie;
            if len > most {
                let kind = if self.section == "listen" { "proxy" } else { self.section };
                let message =
                    format!("truncating capture length to {most} bytes for {kind} '{}'", self.settings.proxy.name);
                self.diagnostics.warning(line.at(name_at + 2), message).hint("'tune.http.cookielen' says how many");
            }
            let capture = Capture { len: len.min(most), ..capture };
            self.settings.proxy.logging.cookie = Some(capture);
        } else {
            self.capture_slot(line, line.text(1) == "response", capture);
        }
    }

    /// `declare capture request|response len N`.
    pub(super) fn declare_capture(&mut self, line: &Line) {
        let response = match line.text(2) {
            "request" => false,
            "response" => true,
            other => {
                let message = format!("'declare capture' expects 'request' or 'response', not '{other}'");
                self.diagnostics.error(line.at(2), message);
                return;
            }
        };
        if let Some(len) = self.capture_len(line, 3) {
            self.capture_slot(line, response, Capture { name: None, len });
        }
    }

    /// Reads `len N` at the end of a line.
    fn capture_len(&mut self, line: &Line, at: usize) -> Option<usize> {
        if line.text(at) != "len" {
            let error = self.diagnostics.error(line.at(at), format!("'{}' expects 'len N' here", line.text(0)));
            error.hint("how many bytes are kept of the value");
            return None;
        }
        let len = match line.text(0) {
            "declare" => self.integer(line, at + 1, 1, limits::CAPTURE_BYTES)?,
            _ => self.leading_integer(line, at + 1, 0, limits::CAPTURE_BYTES)?,
        };
        if line.text(0) == "declare" {
            table::ignored(line, at + 2, self.diagnostics);
        } else if line.len() > at + 2 {
            let message = format!("'{}' cannot handle unexpected argument '{}'", line.text(0), line.text(at + 2));
            self.diagnostics.error(line.at(at + 2), message);
            return None;
        }
        Some(len as usize)
    }

    /// Adds a slot; returns its number.
    pub(crate) fn capture_slot(&mut self, line: &Line, response: bool, capture: Capture) -> Option<u32> {
        let logging = &mut self.settings.proxy.logging;
        let slots = if response { &mut logging.response_captures } else { &mut logging.request_captures };
        if slots.len() == limits::CAPTURES {
            let message = format!("more than {} captures in one frontend", limits::CAPTURES);
            self.diagnostics.error(line.at(0), message);
            return None;
        }
        slots.push(capture);
        Some(slots.len() as u32 - 1)
    }
}
