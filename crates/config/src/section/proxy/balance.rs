//! `balance` and its options (HAProxy configuration manual 4, `balance` and `hash-type`), and `retry-on`.

use std::sync::Arc;

use super::ProxyReader;
use crate::catalogue::Place;
use crate::expression::ExpressionReader;
use crate::model::{Affinity, Balance, Expr, HashFunction, HashKey, HashType, RetryOn};
use crate::section::table;
use crate::suggest;
use crate::word::Line;

/// Algorithms without arguments, or with arguments in parentheses.
const NAMES: [&str; 13] = [
    "roundrobin",
    "static-rr",
    "leastconn",
    "first",
    "random",
    "source",
    "uri",
    "url_param",
    "hdr",
    "hash",
    "rdp-cookie",
    "log-hash",
    "sticky",
];

/// Statuses that `retry-on` may name.
const RETRYABLE: [u16; 12] = [401, 403, 404, 408, 421, 425, 429, 500, 501, 502, 503, 504];

const RETRY_WORDS: [&str; 7] = [
    "none",
    "conn-failure",
    "empty-response",
    "junk-response",
    "response-timeout",
    "0rtt-rejected",
    "all-retryable-errors",
];

/// The most servers that `random` draws.
const DRAWS_MAX: i64 = 1_000;

impl ProxyReader<'_> {
    pub(super) fn balance(&mut self, line: &Line) {
        let word = line.text(1);
        let (name, argument) = match word.split_once('(') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(')').unwrap_or(rest))),
            None => (word, None),
        };
        let read = match (name, argument) {
            ("roundrobin" | "", None) => self.alone(Balance::RoundRobin),
            ("static-rr", None) => self.alone(Balance::StaticRoundRobin),
            ("leastconn", None) => self.alone(Balance::LeastConn),
            ("first", None) => self.alone(Balance::First),
            ("source", None) => self.alone(Balance::Hash(Arc::new(HashKey::Source))),
            ("random", None) => self.alone(Balance::Random(2)),
            ("random", Some(draws)) => match crate::unit::integer(draws, 1, DRAWS_MAX) {
                Ok(draws) => self.alone(Balance::Random(draws as u32)),
                Err(message) => {
                    let message = format!("'balance random': {message}");
                    self.diagnostics.error(line.at(1), message).hint("how many servers are drawn: 'random(2)'");
                    None
                }
            },
            ("uri", None) => self.balance_uri(line),
            ("url_param", None) => self.balance_url_param(line),
            ("hdr", Some(field)) => self.balance_header(line, field),
            ("hdr", None) => {
                let error = self.diagnostics.error(line.at(1), "'balance hdr' expects a header's name");
                error.hint("for example 'hdr(host)'");
                None
            }
            ("hash", None) => self.balance_hash(line),
            ("rdp-cookie", name) => {
                let expr = self.rdp_cookie(line, name.unwrap_or("mstshash"));
                expr.and_then(|expr| self.alone(Balance::Hash(Arc::new(HashKey::RdpCookie(expr)))))
            }
            ("sticky", None) => self.alone(Balance::Sticky),
            ("log-hash", None) => self.balance_message(line),
            (name, Some(_)) if NAMES.contains(&name) => {
                self.diagnostics.error(line.at(1), format!("'balance {name}' takes no argument in parentheses"));
                None
            }
            _ => {
                let near = suggest::nearest(name, NAMES);
                self.diagnostics.error(line.at(1), format!("unknown 'balance' algorithm '{word}'")).did_you_mean(near);
                None
            }
        };
        if let Some(balance) = read {
            self.settings.proxy.balance = balance;
            self.settings.dispatch.balanced = true;
        }
    }

    /// Returns the fetch of a cookie by name.
    fn rdp_cookie(&mut self, line: &Line, name: &str) -> Option<Expr> {
        let reader = ExpressionReader { stores: self.stores, place: Place::Balance, acl: false };
        let text = format!("req.rdp_cookie({name})");
        match reader.read(&text, line.at(1)) {
            Ok(parsed) if parsed.used == text.len() && !name.is_empty() => Some(parsed.expr),
            _ => {
                self.diagnostics.error(line.at(1), format!("'{}' expects a cookie's name", line.text(0)));
                None
            }
        }
    }

    /// Reads `persist rdp-cookie[(NAME)]`.
    pub(super) fn persist_rdp_cookie(&mut self, line: &Line) {
        let word = line.text(1);
        let name = match word.strip_prefix("rdp-cookie") {
            Some("") => Some("msts"),
            Some(rest) => rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')),
            None => None,
        };
        match name {
            Some(name) => {
                table::ignored(line, 2, self.diagnostics);
                self.settings.proxy.persist_rdp_cookie = self.rdp_cookie(line, name);
            }
            None => {
                let error =
                    self.diagnostics.error(line.at(1), format!("'persist' only supports rdp-cookie, not '{word}'"));
                error.hint("'persist rdp-cookie' or 'persist rdp-cookie(NAME)'");
            }
        }
    }

    /// Returns an algorithm behind which nothing may stand. An algorithm without arguments; HAProxy passes over
    /// whatever follows.
    fn alone(&mut self, balance: Balance) -> Option<Balance> {
        Some(balance)
    }

    /// Returns whether the line ends before this word; reports an error otherwise.
    fn ends(&mut self, line: &Line, index: usize) -> bool {
        if line.len() > index {
            let message = format!("'balance' cannot handle unexpected argument '{}'", line.text(index));
            self.diagnostics.error(line.at(index), message);
        }
        line.len() <= index
    }

    fn balance_uri(&mut self, line: &Line) -> Option<Balance> {
        let (mut len, mut depth, mut whole, mut path_only) = (0, 0, false, false);
        let mut next = 2;
        while next < line.len() {
            match line.text(next) {
                word @ ("len" | "depth") => {
                    if next + 1 >= line.len() {
                        let message = format!("'balance uri {word}' expects a number");
                        self.diagnostics.error(line.at(next + 1), message);
                        return None;
                    }
                    let number = self.leading_integer(line, next + 1, 1, i64::from(i32::MAX))? as u32;
                    *(if word == "len" { &mut len } else { &mut depth }) = number;
                    next += 2;
                }
                "whole" => {
                    whole = true;
                    next += 1;
                }
                "path-only" => {
                    path_only = true;
                    next += 1;
                }
                word => {
                    let names = ["len", "depth", "whole", "path-only"];
                    let message = format!("'balance uri' only accepts {}, not '{word}'", table::list(&names));
                    let near = suggest::nearest(word, names);
                    self.diagnostics.error(line.at(next), message).did_you_mean(near);
                    return None;
                }
            }
        }
        Some(Balance::Hash(Arc::new(HashKey::Uri { len, depth, whole, path_only })))
    }

    fn balance_url_param(&mut self, line: &Line) -> Option<Balance> {
        let name = line.text(2).to_owned();
        if name.is_empty() {
            self.diagnostics.error(line.at(2), "'balance url_param' expects a parameter's name");
            return None;
        }
        // The word has no effect, as in HAProxy: the body of a POST is always examined.
        if line.len() > 3 && line.text(3) != "check_post" {
            let message =
                format!("'balance url_param' only accepts 'check_post' behind the name, not '{}'", line.text(3));
            let near = suggest::nearest(line.text(3), ["check_post"]);
            self.diagnostics.error(line.at(3), message).did_you_mean(near);
            return None;
        }
        // HAProxy once waited for this many bytes; now it waits for the body, and the number has no effect.
        if line.len() > 4 {
            self.leading_integer(line, 4, 1, i64::from(i32::MAX))?;
        }
        table::ignored(line, 5, self.diagnostics);
        Some(Balance::Hash(Arc::new(HashKey::UrlParam { name })))
    }

    fn balance_header(&mut self, line: &Line, field: &str) -> Option<Balance> {
        if field.is_empty() || !field.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            let error = self.diagnostics.error(line.at(1), format!("'balance hdr': '{field}' is no header's name"));
            error.hint("for example 'hdr(host)'");
            return None;
        }
        let domain_only = line.len() > 2;
        if domain_only && line.text(2) != "use_domain_only" {
            let message = format!("'balance hdr(name)' only accepts 'use_domain_only', not '{}'", line.text(2));
            let near = suggest::nearest(line.text(2), ["use_domain_only"]);
            self.diagnostics.error(line.at(2), message).did_you_mean(near);
            return None;
        }
        if !self.ends(line, 3) {
            return None;
        }
        Some(Balance::Hash(Arc::new(HashKey::Header { name: field.to_owned(), domain_only })))
    }

    fn balance_hash(&mut self, line: &Line) -> Option<Balance> {
        if line.len() < 3 {
            let error = self.diagnostics.error(line.at(2), "'balance hash' expects a sample expression");
            error.hint("for example 'balance hash req.cook(id)'");
            return None;
        }
        let reader = ExpressionReader { stores: self.stores, place: Place::Balance, acl: false };
        let text = line.text(2);
        match reader.read(text, line.at(2)) {
            Ok(parsed) if parsed.used == text.len() => {
                self.ends(line, 3).then(|| Balance::Hash(Arc::new(HashKey::Sample(parsed.expr))))
            }
            Ok(parsed) => {
                let rest = &text[parsed.used..];
                let message = format!("'balance hash': '{rest}' behind the expression is not understood");
                self.diagnostics.error(line.within(2, parsed.used), message);
                None
            }
            Err(problem) => {
                let message = format!("'balance hash': {}", problem.message);
                let error = self.diagnostics.error(line.within(2, problem.offset), message);
                if let Some(hint) = problem.hint {
                    error.hint(hint);
                }
                None
            }
        }
    }

    /// Reads `log-hash CONVERTERS`: as in HAProxy, they are those of a text.
    fn balance_message(&mut self, line: &Line) -> Option<Balance> {
        if line.len() < 3 {
            self.diagnostics.error(line.at(2), "balance log-hash requires a converter list.");
            return None;
        }
        let reader = ExpressionReader { stores: self.stores, place: Place::Balance, acl: false };
        let text = format!("str(dummy),{}", line.text(2));
        let message = match reader.read(&text, line.at(2)) {
            Ok(parsed) if parsed.used == text.len() => {
                return Some(Balance::Hash(Arc::new(HashKey::Message(parsed.expr))));
            }
            Ok(parsed) => format!("'{}' behind the converters is not understood", &text[parsed.used..]),
            Err(problem) => problem.message,
        };
        let message = format!("{message} (from converter list argument in \"balance log-hash\")");
        self.diagnostics.error(line.at(2), message);
        None
    }

    pub(super) fn hash_type(&mut self, line: &Line) {
        const FUNCTIONS: [(&str, HashFunction); 5] = [
            ("sdbm", HashFunction::Sdbm),
            ("djb2", HashFunction::Djb2),
            ("wt6", HashFunction::Wt6),
            ("crc32", HashFunction::Crc32),
            ("none", HashFunction::None),
        ];
        let Some(consistent) = self.one_of(line, 1, &[("map-based", false), ("consistent", true)]) else { return };
        // Without a further word the ring's hash is mixed, because its default function is too regular for it.
        let mut hash_type = HashType { consistent, avalanche: consistent, ..HashType::default() };
        if line.len() > 2 {
            let Some(function) = self.one_of(line, 2, &FUNCTIONS) else { return };
            if line.len() > 3 && self.one_of(line, 3, &[("avalanche", ())]).is_none() {
                return;
            }
            hash_type = HashType { consistent, function, avalanche: line.len() > 3 };
        }
        self.settings.proxy.hash_type = hash_type;
    }

    pub(super) fn retry_on(&mut self, line: &Line) {
        let mut retry_on = RetryOn::none();
        for index in 1..line.len() {
            match line.text(index) {
                "none" if line.len() == 2 => {}
                "none" => {
                    self.diagnostics.error(line.at(index), "'retry-on none' stands alone");
                }
                "conn-failure" => retry_on.conn_failure = true,
                "empty-response" => retry_on.empty_response = true,
                "junk-response" => retry_on.junk_response = true,
                "response-timeout" => retry_on.response_timeout = true,
                "0rtt-rejected" => {}
                "all-retryable-errors" => {
                    (retry_on.conn_failure, retry_on.empty_response) = (true, true);
                    (retry_on.junk_response, retry_on.response_timeout) = (true, true);
                    retry_on.statuses.extend([500, 502, 503, 504]);
                }
                word => match word.parse() {
                    Ok(status) if RETRYABLE.contains(&status) => retry_on.statuses.push(status),
                    _ => {
                        let near = suggest::nearest(word, RETRY_WORDS);
                        let message = format!("'retry-on': '{word}' is nothing to try again for");
                        self.diagnostics.error(line.at(index), message).did_you_mean(near);
                    }
                },
            }
        }
        self.settings.proxy.retry_on = retry_on;
    }

    pub(super) fn hash_balance_factor(&mut self, line: &Line) {
        let Some(factor) = self.leading_integer(line, 1, 0, i64::from(i32::MAX)) else { return };
        if factor != 0 && factor <= 100 {
            self.diagnostics.error(line.at(1), "'hash-balance-factor' must be 0 or greater than 100");
            return;
        }
        self.settings.proxy.hash_balance_factor = factor as u32;
    }

    pub(super) fn hash_preserve_affinity(&mut self, line: &Line) {
        const NAMES: [(&str, Affinity); 3] =
            [("always", Affinity::Always), ("maxconn", Affinity::Maxconn), ("maxqueue", Affinity::Maxqueue)];
        if let Some(affinity) = self.one_of(line, 1, &NAMES) {
            self.settings.proxy.hash_preserve_affinity = affinity;
        }
    }
}
