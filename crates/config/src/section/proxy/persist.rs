//! `cookie`, `stick`, `use-server`, `force-persist` and `ignore-persist` (HAProxy configuration manual 4.2).

use super::ProxyReader;
use crate::catalogue::Place;
use crate::expression::ExpressionReader;
use crate::model::{CookieMode, PersistRule, PersistenceCookie, ServerChoice, StickRule, UseServer};
use crate::section::{rule, table};
use crate::suggest;
use crate::unit::TimeUnit;
use crate::word::Line;

const COOKIE_WORDS: [&str; 14] = [
    "rewrite", "insert", "prefix", "indirect", "nocache", "postonly", "preserve", "httponly", "secure", "domain",
    "maxidle", "maxlife", "dynamic", "attr",
];

impl ProxyReader<'_> {
    /// Reads `cookie NAME …`.
    pub(super) fn persistence_cookie(&mut self, line: &Line) {
        let mut cookie = PersistenceCookie {
            name: line.text(1).into(),
            mode: None,
            indirect: false,
            nocache: false,
            postonly: false,
            preserve: false,
            suffix: String::new(),
            maxidle: None,
            maxlife: None,
            dynamic: false,
        };
        let (mut domains, mut flags, mut attributes) = (String::new(), ["", ""], String::new());
        let mut next = 2;
        while next < line.len() {
            let word = line.text(next);
            next += 1;
            let mode = match word {
                "rewrite" => Some(CookieMode::Rewrite),
                "insert" => Some(CookieMode::Insert),
                "prefix" => Some(CookieMode::Prefix),
                _ => None,
            };
            if mode.is_some() {
                if cookie.mode.is_some_and(|other| Some(other) != mode) {
                    let message = "'cookie': 'rewrite', 'insert' and 'prefix' modes are incompatible";
                    self.diagnostics.error(line.at(next - 1), message);
                    return;
                }
                cookie.mode = mode;
                continue;
            }
            match word {
                "indirect" => cookie.indirect = true,
                "nocache" => cookie.nocache = true,
                "postonly" => cookie.postonly = true,
                "preserve" => cookie.preserve = true,
                "httponly" => flags[0] = "; HttpOnly",
                "secure" => flags[1] = "; Secure",
                "dynamic" => cookie.dynamic = true,
                "domain" | "maxidle" | "maxlife" | "attr" => {
                    next += 1;
                    if next > line.len() {
                        self.diagnostics.error(line.at(next), format!("'cookie {word}' expects a value"));
                        return;
                    }
                    let value = line.text(next - 1);
                    let problem = match word {
                        "domain" if value.is_empty() || value.contains([' ', ';', ',']) => {
                            Err(format!("'{value}' is no domain"))
                        }
                        "domain" => {
                            if !value[1..].contains('.') {
                                let message = format!(
                                    "domain '{value}' contains no embedded dot, this configuration may not work \
                                     properly (see RFC6265#5.2.3)"
                                );
                                self.diagnostics.warning(line.at(next - 1), message);
                            }
                            domains += &format!("; domain={value}");
                            Ok(())
                        }
                        "attr" if value.contains(';') || value.bytes().any(|b| b < 0x20 || b == 0x7f) => {
                            Err("an attribute has neither ';' nor control characters".to_owned())
                        }
                        "attr" => {
                            attributes += &format!("; {value}");
                            Ok(())
                        }
                        _ => self.diagnostics.duration(line.at(next - 1), value, TimeUnit::Seconds).map(|time| {
                            let time = Some(time).filter(|time| time.as_secs() > 0);
                            *(if word == "maxidle" { &mut cookie.maxidle } else { &mut cookie.maxlife }) = time;
                        }),
                    };
                    if let Err(message) = problem {
                        self.diagnostics.error(line.at(next - 1), format!("'cookie {word}': {message}"));
                        return;
                    }
                }
                other => {
                    let message = format!("'cookie' knows {}, not '{other}'", table::list(&COOKIE_WORDS));
                    let near = suggest::nearest(other, COOKIE_WORDS);
                    self.diagnostics.error(line.at(next - 1), message).did_you_mean(near);
                    return;
                }
            }
        }
        let incompatible = match cookie.mode {
            Some(CookieMode::Rewrite) if cookie.indirect => Some("'rewrite' and 'indirect' modes are incompatible"),
            mode if cookie.preserve && mode != Some(CookieMode::Insert) && !cookie.indirect => {
                Some("'preserve' requires at least 'insert' or 'indirect'")
            }
            _ => None,
        };
        if let Some(message) = incompatible {
            self.diagnostics.error(line.at(0), format!("'cookie': {message}"));
            return;
        }
        cookie.suffix = domains + flags[0] + flags[1] + &attributes;
        self.settings.proxy.cookie = Some(cookie);
    }

    /// Reads `force-persist if …` or `ignore-persist if …`.
    pub(super) fn persist_rule(&mut self, line: &Line, force: bool) {
        if !matches!(line.text(1), "if" | "unless") {
            let message = format!("'{}' requires either 'if' or 'unless' followed by a condition", line.text(0));
            self.diagnostics.error(line.at(1), message);
            return;
        }
        if let Ok(condition) = self.condition(line, 1, Place::HttpRequest) {
            self.settings.proxy.persist_rules.push(PersistRule { force, condition });
        }
    }

    /// Reads `use-server NAME|FORMAT [if …]`.
    pub(super) fn use_server(&mut self, line: &Line) {
        let server = if line.text(1).contains('%') {
            let reader = ExpressionReader { stores: self.stores, place: Place::HttpRequest, acl: false };
            let Some(format) = rule::format(&reader, line, 1, self.diagnostics) else { return };
            ServerChoice::Computed(format)
        } else {
            ServerChoice::Named(line.text(1).into())
        };
        if let Ok(condition) = self.condition(line, 2, Place::HttpRequest) {
            self.settings.proxy.use_server.push(UseServer { server, condition, at: line.at(1) });
        }
    }

    /// Reads `stick on|match|store-request|store-response KEY [table T] [if …]`.
    pub(super) fn stick(&mut self, line: &Line) {
        let (matches, stores, response) = match line.text(1) {
            "on" => (true, true, false),
            "match" => (true, false, false),
            "store-request" => (false, true, false),
            "store-response" => (false, true, true),
            other => {
                let names = ["on", "match", "store-request", "store-response"];
                let message = format!("'stick' expects one of {}, not '{other}'", table::list(&names));
                let near = suggest::nearest(other, names);
                self.diagnostics.error(line.at(1), message).did_you_mean(near);
                return;
            }
        };
        let place = if response { Place::HttpResponse } else { Place::HttpRequest };
        let Some((key, mut next)) = rule::key_expression(self, line, 2, place) else { return };
        let mut name = "";
        if line.text(next) == "table" {
            next += 2;
            if line.len() < next {
                self.diagnostics.error(line.at(next - 1), "'table' of 'stick' expects a name");
                return;
            }
            name = line.text(next - 1);
        }
        let Some(table) = self.table_for("stick", name, line.at(next - 1), &key) else { return };
        let Ok(condition) = self.condition(line, next, place) else { return };
        let rule = StickRule { matches, stores, response, key, table, condition, at: line.at(0) };
        self.settings.proxy.stick_rules.push(rule);
    }
}
