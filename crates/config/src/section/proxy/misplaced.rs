//! Keywords in a proxy that lacks their side: for most HAProxy warns, for some it refuses the file.

use super::{ProxyParser, ProxyReader};
use crate::catalogue::Contexts;
use crate::section::table::{self, Row};
use crate::word::Line;

/// Options that HAProxy ignores in a proxy of the other side; all others are unknown there.
const IGNORED_OPTIONS: &[&str] = &[
    "external-check",
    "forwarded",
    "httpchk",
    "ldap-check",
    "mysql-check",
    "pgsql-check",
    "redis-check",
    "redispatch",
    "smtpchk",
    "spop-check",
    "ssl-hello-chk",
    "tcp-check",
];

/// Those of them that 'no' may stand before.
const NEGATED_OPTIONS: &[&str] = &["forwarded", "redispatch"];

/// Keywords whose arguments HAProxy reads nevertheless, and refuses if they are wrong.
const READ: &[&str] = &["balance", "cookie", "default_backend", "http-reuse", "use-server", "use_backend"];

impl ProxyReader<'_> {
    /// A keyword of the other side is a warning in HAProxy, and has no effect; in `defaults` it is an error.
    pub(super) fn misplaced(&mut self, row: &Row<ProxyParser>, line: &Line) {
        let name = row.name;
        if self.context == Contexts::DEFAULTS && name != "use-fcgi-app" {
            let message = format!("'{name}' not allowed in '{}' section", self.section);
            let places = row.contexts.section_names().join("', '");
            self.diagnostics.error(line.at(0), message).hint(format!("it belongs in: '{places}'"));
            return;
        }
        let side = if self.context == Contexts::BACKEND { "frontend" } else { "backend" };
        let proxy = self.settings.proxy.name.clone();
        let lacks = format!("because {} '{proxy}' has no {side} capability", self.section);
        let (option, keyword) = match name.strip_prefix("option ") {
            Some(option) => (true, option),
            None => (false, name),
        };
        let keyword = match keyword.split_once(' ') {
            Some((first @ ("http-check" | "monitor" | "tcp-check"), _)) => first,
            _ => keyword,
        };
        match keyword {
            "declare capture" | "hash-preserve-affinity" | "retry-on" | "use-fcgi-app" => {
                let keyword = keyword.split(' ').next().unwrap_or(keyword);
                let message = format!("'{keyword}' only available in {side} or listen section");
                self.diagnostics.error(line.at(0), message);
            }
            "default-server" | "server" | "server-template" => {
                let error = self.diagnostics.error(line.at(0), format!("'{keyword}' not allowed {lacks}"));
                error.hint("it belongs in: 'backend', 'listen'");
            }
            "log-format" | "log-format-sd" | "error-log-format" => self.ignored_in_backend(line, keyword),
            "tcp-request connection" | "tcp-request session" => {
                let message = format!("{keyword} is not allowed because backend {proxy} is not a frontend");
                self.diagnostics.error(line.at(0), message);
            }
            keyword if keyword.starts_with("tcp-response ") => {
                let message =
                    format!("{keyword} is only allowed in 'backend' sections or 'defaults' section with a name");
                self.diagnostics.error(line.at(0), message);
            }
            "clitcpka-cnt"
            | "clitcpka-idle"
            | "clitcpka-intvl"
            | "max-keep-alive-queue"
            | "rate-limit sessions"
            | "srvtcpka-cnt"
            | "srvtcpka-idle"
            | "srvtcpka-intvl" => {
                self.diagnostics.warning(line.at(0), format!("{keyword} will be ignored {lacks}"));
            }
            "forwarded" if line.negated => {}
            "forwarded" => _ = self.diagnostics.warning(line.at(0), format!("'{name}' ignored {lacks}")),
            keyword if keyword.starts_with("timeout ") => {
                self.diagnostics.warning(line.at(0), format!("'{keyword}' will be ignored {lacks}"));
            }
            "fullconn" | "maxconn" => {
                let other = if keyword == "maxconn" { "fullconn" } else { "maxconn" };
                let message = format!("'{keyword}' ignored {lacks}. Maybe you want '{other}' instead ?");
                self.diagnostics.warning(line.at(0), message);
            }
            _ => {
                self.diagnostics.warning(line.at(0), format!("'{keyword}' ignored {lacks}"));
            }
        }
        let ignored = IGNORED_OPTIONS.contains(&keyword) && (!line.negated || NEGATED_OPTIONS.contains(&keyword));
        if option && !ignored {
            let message = match line.negated {
                true => format!("negation/default is not supported for option '{keyword}'"),
                false => format!("unknown option '{keyword}'"),
            };
            let places = row.contexts.section_names().join("', '");
            self.diagnostics.error(line.at(0), message).hint(format!("it belongs in: '{places}'"));
        }
        if READ.contains(&name) && table::arity(&row.bare(), 1, line, self.diagnostics) {
            let settings = self.settings.clone();
            (row.parser.0)(self, line);
            let chosen = self.settings.proxy.use_server.len() > settings.proxy.use_server.len();
            if chosen && !line.text(1).contains('%') {
                let message = format!("unable to find server '{}' referenced in a 'use-server' rule", line.text(1));
                self.diagnostics.error(line.at(1), message);
            }
            *self.settings = settings;
        }
    }
}
