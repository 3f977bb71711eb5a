//! `mailers` sections (HAProxy configuration manual 12.3).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::proxy::ProxyReader;
use crate::Files;
use crate::address;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Config, EmailAlert, LogLevel, Mailer, Mailers, ProxyKind};
use crate::names;
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind, log};
use crate::suggest;
use crate::unit::{TIME_HINT, TimeUnit};
use crate::word::{Line, bad_name_byte};

/// The default of `timeout mail`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of mailers of a section.
const MAILERS: usize = 64;

/// The reader of a section's lines.
pub(crate) struct MailersReader<'a> {
    section: Mailers,
    files: &'a dyn Files,
    diagnostics: &'a mut Diagnostics,
}

pub(crate) type MailersParser = fn(&mut MailersReader<'_>, &Line);

/// The keywords of `mailers`.
pub(crate) static KEYWORDS: Table<MailersParser> = Table::new(&[
    Row {
        name: "mailer",
        contexts: Contexts::MAILERS,
        min: 2,
        max: 2,
        usage: "NAME ADDRESS:PORT",
        docs: "A mail server, which gets every alert by SMTP.",
        parser: |r, line| r.mailer(line),
    },
    Row {
        name: "timeout mail",
        contexts: Contexts::MAILERS,
        min: 1,
        max: 1,
        usage: "TIME",
        docs: "The time limit of an alert's delivery to one mailer; 10 s.",
        parser: |r, line| match r.diagnostics.duration(line.at(2), line.text(2), TimeUnit::Milliseconds) {
            Ok(time) if time.is_zero() => {
                r.diagnostics.error(line.at(2), "unexpected 'timeout mail' of 0").hint(TIME_HINT);
            }
            Ok(time) => r.section.timeout = time,
            Err(message) => {
                r.diagnostics.error(line.at(2), format!("'timeout mail': {message}")).hint(TIME_HINT);
            }
        },
    },
]);

impl MailersReader<'_> {
    fn mailer(&mut self, line: &Line) {
        let name = line.text(1);
        if let Some(offset) = bad_name_byte(name) {
            let bad = name[offset..].chars().next().unwrap_or('?');
            let message = format!("character '{bad}' is not permitted in server name '{name}'");
            self.diagnostics.error(line.within(1, offset), message);
            return;
        }
        let read = names::numeric(line.address(2), self.files).and_then(|text| address::numeric(&text));
        let address = match read {
            Ok((ip, Some(port))) => SocketAddr::new(ip, port),
            Ok((_, None)) => {
                let message = format!("'mailer {name}' : missing port number in '{}'", line.text(2));
                self.diagnostics.error(line.at(2), message).hint("for example 'mailer smtp1 192.0.2.1:25'");
                return;
            }
            Err(message) => {
                self.diagnostics.error(line.at(2), format!("'mailer {name}' : {message}"));
                return;
            }
        };
        if self.section.mailers.len() == MAILERS {
            self.diagnostics.error(line.at(0), format!("more than {MAILERS} mailers"));
            return;
        }
        self.section.mailers.push(Mailer { name: name.into(), address });
    }
}

/// Reads the `mailers` sections.
pub(crate) fn all(sections: &[Section], files: &dyn Files, diagnostics: &mut Diagnostics) -> Vec<Mailers> {
    let mut found: Vec<Mailers> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Mailers) {
        if let Some(other) = found.iter().find(|other| other.name == section.name) {
            let message = format!(
                "mailers section '{}' has the same name as another mailers section declared at {}:{}",
                other.name, other.at.file, other.at.line
            );
            diagnostics.error(section.at.clone(), message);
            continue;
        }
        let (name, at) = (section.name.clone(), section.at.clone());
        let blank = Mailers { name, timeout: TIMEOUT, mailers: Vec::new(), at };
        let mut reader = MailersReader { section: blank, files, diagnostics };
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, reader.diagnostics) {
                        (row.parser)(&mut reader, line);
                    }
                }
                None => {
                    table::unknown(&KEYWORDS, known::NONE, Contexts::MAILERS, "mailers", line, reader.diagnostics);
                }
            }
        }
        found.push(reader.section);
    }
    found
}

/// Reads a line `email-alert …` of a proxy.
pub(crate) fn email_alert(reader: &mut ProxyReader<'_>, line: &Line) {
    let value: Arc<str> = line.text(2).into();
    let at = line.at(2);
    table::ignored(line, 3, reader.diagnostics);
    let level = match line.text(1) {
        "level" => match log::level(&value) {
            Some(LogLevel::Level(level)) => Some(level),
            _ => {
                let near = suggest::nearest(&value, log::level_names());
                let message = format!("unknown log level 'level' after '{value}'");
                reader.diagnostics.error(at, message).did_you_mean(near);
                return;
            }
        },
        _ => None,
    };
    let alert = reader.settings.proxy.email_alert.get_or_insert_default();
    match line.text(1) {
        "from" => alert.from = Some(value),
        "to" => alert.to = Some(value),
        "myhostname" => alert.host = Some(value),
        "mailers" => alert.mailers = Some((value, at)),
        _ => alert.level = level.unwrap_or(alert.level),
    }
}

/// Drops incomplete settings of alerts and sections that no other uses, with HAProxy's warnings. `by_scripts`: scripts send
/// the mails.
pub(crate) fn check(config: &mut Config, by_scripts: bool, diagnostics: &mut Diagnostics) {
    for proxy in config.proxies.iter_mut().filter(|proxy| !proxy.disabled) {
        let Some(EmailAlert { from, to, mailers, .. }) = &proxy.email_alert else { continue };
        let kind = match proxy.kind {
            ProxyKind::Frontend => "frontend",
            ProxyKind::Backend => "backend",
            ProxyKind::Listen => "proxy",
        };
        let name = &proxy.name;
        let (Some(_), Some(_), Some((section, at))) = (from, to, mailers) else {
            let message = format!(
                "'email-alert' will be ignored for {kind} '{name}' (the presence any of 'email-alert from', 'email-alert level' \
                 'email-alert mailers', 'email-alert myhostname', or 'email-alert to' requires each of 'email-alert from', \
                 'email-alert mailers' and 'email-alert to' to be present)"
            );
            diagnostics.warning(proxy.at.clone(), message);
            proxy.email_alert = None;
            continue;
        };
        if !config.mailers.iter().any(|known| known.name == *section) {
            let near = suggest::nearest(section, config.mailers.iter().map(|known| &*known.name));
            let message = format!("Proxy '{name}': unable to find mailers '{section}'");
            diagnostics.error(at.clone(), message).did_you_mean(near);
            continue;
        }
        if by_scripts {
            continue;
        }
        let message = format!(
            "Legacy mailers used by {kind} '{name}' will not be supported anymore in version 3.3. You should use Lua to send \
             email-alerts, see 'examples/lua/mailers.lua' file"
        );
        diagnostics.warning(at.clone(), message);
    }
    let users = |section: &Mailers| {
        config.proxies.iter().any(|proxy| {
            let named = proxy.email_alert.as_ref().and_then(|alert| alert.mailers.as_ref());
            named.is_some_and(|(name, _)| *name == section.name)
        })
    };
    let (used, unused): (Vec<_>, Vec<_>) = std::mem::take(&mut config.mailers).into_iter().partition(users);
    config.mailers = used;
    for section in unused {
        diagnostics.warning(section.at, format!("Removing incomplete section 'mailers {}'.", section.name));
    }
}
