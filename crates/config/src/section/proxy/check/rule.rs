//! One line of `http-check` or `tcp-check`.

use std::sync::Arc;

use sluicegate_pattern::{Regex, hexadecimal};

use super::{Request, RuleKind, nearest};
use crate::address;
use crate::catalogue::Place;
use crate::expression::{self, ExpressionReader};
use crate::format::{self as log_format, Blanks};
use crate::model::{
    CheckBytes, CheckConnect, CheckExpect, CheckPort, CheckProtocol, CheckStatus, CheckStepKind, Expected,
    ExpectedHeader, ExpectedText, Expr, LogFormat, Proto, VarTarget,
};
use crate::names;
use crate::section::proxy::ProxyReader;
use crate::section::tls::words;
use crate::section::{bind, rule, table};
use crate::unit;
use crate::word::Line;

type Read = (Option<Arc<str>>, RuleKind);

/// The statuses that a step may give by itself.
const OK: &[CheckStatus] = &[CheckStatus::L7Ok, CheckStatus::L7OkCond, CheckStatus::L6Ok, CheckStatus::L4Ok];
const ERROR: &[CheckStatus] =
    &[CheckStatus::L7OkCond, CheckStatus::L7Rsp, CheckStatus::L7Sts, CheckStatus::L6Rsp, CheckStatus::L4Con];
const TIMEOUT: &[CheckStatus] = &[CheckStatus::L7Tout, CheckStatus::L6Tout, CheckStatus::L4Tout];

const TCP_MATCHES: &[&str] = &["string", "rstring", "string-lf", "binary", "rbinary", "binary-lf"];
const HTTP_MATCHES: &[&str] = &["status", "rstatus", "string", "rstring", "string-lf", "hdr", "fhdr"];

/// The most ranges of `status`.
const STATUS_RANGES: usize = 64;

impl ProxyReader<'_> {
    /// Reads a line's comment and step; errors are returned.
    pub(super) fn check_rule(&mut self, line: &Line, protocol: CheckProtocol) -> Option<Read> {
        let word = line.text(1);
        if let Some((name, rest)) = word.split_once('(') {
            return self.check_variable(line, name, rest).map(|kind| (None, RuleKind::Step(kind)));
        }
        match word {
            "comment" => Some((Some(line.text(2).into()), RuleKind::Comment)),
            "connect" => self.check_connect(line),
            "expect" => self.check_expect(line, protocol),
            "send" if protocol == CheckProtocol::Http => self.check_request(line),
            _ => self.check_send(line, word),
        }
    }

    fn check_error(&mut self, line: &Line, index: usize, message: impl Into<String>) {
        let message = format!("'{} {}': {}", line.text(0), line.text(1), message.into());
        self.diagnostics.error(line.at(index), message);
    }

    /// Reports an error and returns `None` if no value follows the keyword at `index`.
    fn check_value(&mut self, line: &Line, index: usize, what: &str) -> Option<()> {
        if line.text(index + 1).is_empty() {
            self.check_error(line, index + 1, format!("'{}' expects {what}", line.text(index)));
            return None;
        }
        Some(())
    }

    /// Reads a word as a log-format of a check.
    pub(super) fn check_format(&mut self, line: &Line, index: usize) -> Option<LogFormat> {
        let reader = ExpressionReader { stores: self.stores, place: Place::Check, acl: false };
        rule::format(&reader, line, index, self.diagnostics)
    }

    /// Reads a part of a word as a format.
    pub(super) fn check_text_format(&mut self, line: &Line, index: usize, text: &[u8]) -> Option<LogFormat> {
        let reader = ExpressionReader { stores: self.stores, place: Place::Check, acl: false };
        match log_format::read(text, Blanks::Kept, &reader, &|_| line.at(index)) {
            Ok((format, ignored)) => {
                rule::note_ignored(self.diagnostics, line, index, ignored);
                Some(format)
            }
            Err(problem) => {
                self.diagnostics.error(line.at(index), problem.message);
                None
            }
        }
    }

    fn check_expression(&mut self, line: &Line, index: usize) -> Option<(Expr, usize)> {
        rule::key_expression(self, line, index, Place::Check)
    }

    fn check_regex(&mut self, line: &Line, index: usize, ignores_case: bool) -> Option<Regex> {
        match Regex::new(line.words[index].bytes(), ignores_case) {
            Ok(regex) => Some(regex),
            Err(error) => {
                self.check_error(line, index, error.to_string());
                None
            }
        }
    }

    fn check_hex(&mut self, line: &Line, index: usize) -> Option<Vec<u8>> {
        let bytes = hexadecimal(line.words[index].bytes());
        if bytes.is_none() {
            self.check_error(line, index, format!("'{}' is no even number of hexadecimal digits", line.text(index)));
        }
        bytes
    }

    fn check_variable(&mut self, line: &Line, name: &str, rest: &str) -> Option<CheckStepKind> {
        let Some(inside) = rest.strip_suffix(')') else {
            self.check_error(line, 1, format!("missing ')' in '{}'", line.text(1)));
            return None;
        };
        let target: VarTarget = match expression::variable_to_set(inside) {
            Ok(target) => target,
            Err((message, hint)) => {
                let error = self.diagnostics.error(line.at(1), message);
                if let Some(hint) = hint {
                    error.hint(hint);
                }
                return None;
            }
        };
        Some(match name {
            "set-var" => {
                let (expression, next) = self.check_expression(line, 2)?;
                table::ignored(line, next, self.diagnostics);
                CheckStepKind::SetVar(target, expression)
            }
            "set-var-fmt" => CheckStepKind::SetVarFormat(target, self.check_format(line, 2)?),
            _ if !target.conditions.is_empty() => {
                self.check_error(line, 1, "'unset-var' takes no conditions".to_owned());
                return None;
            }
            _ => {
                table::ignored(line, 2, self.diagnostics);
                CheckStepKind::UnsetVar(target.name)
            }
        })
    }

    fn check_connect(&mut self, line: &Line) -> Option<Read> {
        const WORDS: [&str; 11] =
            ["default", "port", "addr", "send-proxy", "via-socks4", "ssl", "sni", "alpn", "proto", "linger", "comment"];
        let (mut connect, mut comment) = (CheckConnect::default(), None);
        let mut next = 2;
        while next < line.len() {
            match line.text(next) {
                "default" => connect.default = true,
                "send-proxy" => connect.send_proxy = true,
                "via-socks4" => connect.via_socks4 = true,
                "linger" => connect.linger = true,
                "ssl" => connect.tls.enabled = true,
                "sni" => {
                    self.check_value(line, next, "a string as argument")?;
                    next += 1;
                    connect.tls.sni = Some(line.text(next).into());
                }
                "alpn" => {
                    let protocols = match line.text(next + 1) {
                        "" => Err("missing the comma-delimited ALPN protocol suite".to_owned()),
                        list => words::protocols(list),
                    };
                    next += 1;
                    match protocols {
                        Ok(protocols) => connect.tls.alpn = Some(protocols),
                        Err(message) => {
                            self.check_error(line, next, format!("'alpn' : {message}"));
                            return None;
                        }
                    }
                }
                "proto" => {
                    self.check_value(line, next, "a MUX protocol as argument")?;
                    next += 1;
                    let check = line.text(0);
                    let fits = |proto| (proto == Proto::Raw) == (check == "tcp-check");
                    match bind::proto(line.text(next)) {
                        Ok(proto) if fits(proto) => connect.tls.proto = Some(proto),
                        Ok(_) => {
                            let name = line.text(next);
                            self.check_error(
                                line,
                                next,
                                format!("'proto' : invalid MUX protocol '{name}' for {check}"),
                            );
                            return None;
                        }
                        Err(message) => {
                            self.check_error(line, next, format!("'proto' : {message}"));
                            return None;
                        }
                    }
                }
                "comment" => {
                    self.check_value(line, next, "a text")?;
                    next += 1;
                    comment = Some(line.text(next).into());
                }
                "port" => {
                    self.check_value(line, next, "a port number or a sample expression as argument")?;
                    next += 1;
                    if line.text(next).bytes().all(|byte| byte.is_ascii_digit()) {
                        match unit::integer(line.text(next), 1, 65535) {
                            Ok(port) => connect.port = Some(CheckPort::Fixed(port as u16)),
                            Err(_) => {
                                let got = line.text(next);
                                let message = format!(
                                    "expects a valid TCP port (from range 1 to 65535) or a sample expression, got {got}"
                                );
                                self.check_error(line, next, message);
                                return None;
                            }
                        }
                    } else {
                        let (port, behind) = self.check_expression(line, next)?;
                        connect.port = Some(CheckPort::Computed(Box::new(port)));
                        next = behind - 1;
                    }
                }
                "addr" => {
                    self.check_value(line, next, "an address")?;
                    next += 1;
                    match names::numeric(line.address(next), self.loaded.files).and_then(|text| address::numeric(&text))
                    {
                        Ok((address, port)) => connect.addr = Some((address, port.unwrap_or(0))),
                        Err(message) => {
                            self.check_error(line, next, format!("addr: {message}"));
                            return None;
                        }
                    }
                }
                word => {
                    let near = nearest(word, &WORDS);
                    let what = format!("'{} connect'", line.text(0));
                    let message = format!("{what} expects {}, not '{word}'", table::list(&WORDS));
                    self.diagnostics.error(line.at(next), message).did_you_mean(near);
                    return None;
                }
            }
            next += 1;
        }
        Some((comment, RuleKind::Step(CheckStepKind::Connect(connect))))
    }

    fn check_send(&mut self, line: &Line, word: &str) -> Option<Read> {
        let bytes = match word {
            "send" if line.text(2).is_empty() => {
                self.check_error(line, 2, "expects a text");
                return None;
            }
            "send" => CheckBytes::Plain(line.words[2].bytes().to_vec()),
            "send-binary" => CheckBytes::Plain(self.check_hex(line, 2)?),
            "send-lf" => CheckBytes::Format(self.check_format(line, 2)?),
            _ => CheckBytes::HexFormat(self.check_format(line, 2)?),
        };
        let mut comment = None;
        if line.len() > 3 {
            if line.text(3) != "comment" {
                self.check_error(line, 3, format!("expects 'comment', not '{}'", line.text(3)));
                return None;
            }
            self.check_value(line, 3, "a text")?;
            comment = Some(line.text(4).into());
        }
        Some((comment, RuleKind::Step(CheckStepKind::Send(bytes))))
    }

    fn check_request(&mut self, line: &Line) -> Option<Read> {
        const WORDS: [&str; 8] = ["meth", "uri", "uri-lf", "ver", "hdr", "body", "body-lf", "comment"];
        let (mut request, mut comment) = (Request::default(), None);
        let mut next = 2;
        while next < line.len() {
            let word = line.text(next);
            if !WORDS.contains(&word) {
                let near = nearest(word, &WORDS);
                let message = format!("'http-check send' expects {}, not '{word}'", table::list(&WORDS));
                self.diagnostics.error(line.at(next), message).did_you_mean(near);
                return None;
            }
            self.check_value(line, next, if word == "hdr" { "a name and a value" } else { "a value" })?;
            next += 1;
            let bytes = || CheckBytes::Plain(line.words[next].bytes().to_vec());
            match word {
                "meth" => request.method = Some(line.text(next).into()),
                "uri" => request.uri = Some(bytes()),
                "uri-lf" => request.uri = Some(CheckBytes::Format(self.check_format(line, next)?)),
                "ver" => {
                    let version = line.text(next);
                    if !matches!(version.strip_prefix("HTTP/"), Some("1.0" | "1.1")) {
                        self.check_error(line, next, format!("'{version}' is neither HTTP/1.0 nor HTTP/1.1"));
                        return None;
                    }
                    request.version = Some(version.into());
                }
                "hdr" => {
                    let name: Arc<str> = rule::header_name(self, line, next)?.to_ascii_lowercase().into();
                    self.check_value(line, next, "a value")?;
                    next += 1;
                    let value = self.check_format(line, next)?;
                    // The length is always the body's, whatever a line says.
                    if !matches!(&*name, "content-length" | "transfer-encoding") {
                        request.headers.push((name, value));
                    }
                }
                "body" => request.body = Some(bytes()),
                "body-lf" => request.body = Some(CheckBytes::Format(self.check_format(line, next)?)),
                _ => comment = Some(line.text(next).into()),
            }
            next += 1;
        }
        Some((comment, RuleKind::Request { request, by_option: false }))
    }

    fn check_status(&mut self, line: &Line, index: usize, known: &[CheckStatus]) -> Option<CheckStatus> {
        self.check_value(line, index, "a status")?;
        let word = line.text(index + 1);
        let found = known.iter().find(|status| status.name() == word);
        if found.is_none() {
            let names: Vec<&str> = known.iter().map(|status| status.name()).collect();
            let message = format!("'{}' only supports {}, not '{word}'", line.text(index), table::list(&names));
            self.check_error(line, index + 1, message);
        }
        found.copied()
    }

    fn check_expect(&mut self, line: &Line, protocol: CheckProtocol) -> Option<Read> {
        const MODIFIERS: [&str; 8] = [
            "min-recv",
            "comment",
            "ok-status",
            "error-status",
            "tout-status",
            "on-success",
            "on-error",
            "status-code",
        ];
        let matches = if protocol == CheckProtocol::Http { HTTP_MATCHES } else { TCP_MATCHES };
        let (mut what, mut negated, mut marked, mut min_recv, mut comment) = (None, false, false, None, None);
        let (mut ok_status, mut error_status, mut timeout_status) = (None, None, None);
        let (mut on_success, mut on_error, mut status_code) = (None, None, None);
        let mut next = 2;
        while next < line.len() {
            // Any number of `!`, apart or before the word.
            let word = line.text(next).trim_start_matches('!');
            let marks = line.text(next).len() - word.len();
            if marks > 0 {
                negated ^= marks % 2 == 1;
                marked = true;
                if word.is_empty() {
                    next += 1;
                    continue;
                }
            }
            if matches.contains(&word) {
                if what.is_some() {
                    self.check_error(line, next, format!("only one pattern, but there is '{word}', too"));
                    return None;
                }
                let (expected, behind) = self.check_expected(line, next, word, protocol)?;
                what = Some(expected);
                next = behind;
                marked = false;
                continue;
            }
            if marked {
                self.check_error(line, next, format!("'!' stands before the pattern, not before '{word}'"));
                return None;
            }
            match word {
                "min-recv" => {
                    self.check_value(line, next, "a number")?;
                    match unit::integer(line.text(next + 1), -1, i64::from(i32::MAX)) {
                        Ok(count) => min_recv = u32::try_from(count).ok(),
                        Err(message) => {
                            self.check_error(line, next + 1, format!("min-recv: {message}"));
                            return None;
                        }
                    }
                    next += 1;
                }
                "comment" => {
                    self.check_value(line, next, "a text")?;
                    next += 1;
                    comment = Some(line.text(next).into());
                }
                "ok-status" => {
                    ok_status = Some(self.check_status(line, next, OK)?);
                    next += 1;
                }
                "error-status" => {
                    error_status = Some(self.check_status(line, next, ERROR)?);
                    next += 1;
                }
                "tout-status" => {
                    timeout_status = Some(self.check_status(line, next, TIMEOUT)?);
                    next += 1;
                }
                "on-success" | "on-error" => {
                    self.check_value(line, next, "a format")?;
                    let format = Some(self.check_format(line, next + 1)?);
                    if word == "on-success" {
                        on_success = format;
                    } else {
                        on_error = format;
                    }
                    next += 1;
                }
                "status-code" => {
                    self.check_value(line, next, "an expression")?;
                    let (code, behind) = self.check_expression(line, next + 1)?;
                    status_code = Some(code);
                    next = behind - 1;
                }
                "custom" => {
                    self.check_error(line, next, "'custom' is for HAProxy itself");
                    return None;
                }
                _ => {
                    let words: Vec<&str> = ["!"].iter().chain(&MODIFIERS).chain(matches).copied().collect();
                    let near = nearest(word, &words);
                    let keyword = format!("{} expect", line.text(0));
                    let message = format!("'{keyword}' expects one of {}, not '{word}'", table::list(matches));
                    self.diagnostics.error(line.at(next), message).did_you_mean(near);
                    return None;
                }
            }
            next += 1;
        }
        let Some(what) = what else {
            self.check_error(line, line.len(), format!("expects one of {}", table::list(matches)));
            return None;
        };
        let expect = CheckExpect {
            what,
            negated,
            min_recv,
            ok_status,
            error_status,
            timeout_status,
            on_success,
            on_error,
            status_code,
        };
        Some((comment, RuleKind::Step(CheckStepKind::Expect(Box::new(expect)))))
    }

    /// Reads an expectation from its keyword on; also returns the word after it.
    fn check_expected(
        &mut self,
        line: &Line,
        at: usize,
        word: &str,
        protocol: CheckProtocol,
    ) -> Option<(Expected, usize)> {
        if matches!(word, "hdr" | "fhdr") {
            return self.check_header(line, at, word == "fhdr");
        }
        self.check_value(line, at, "a pattern")?;
        let plain = || CheckBytes::Plain(line.words[at + 1].bytes().to_vec());
        let what = match word {
            "string" => Expected::String(plain()),
            "string-lf" => Expected::String(CheckBytes::Format(self.check_format(line, at + 1)?)),
            "rstring" => Expected::Regex(self.check_regex(line, at + 1, false)?),
            "binary" => Expected::Binary(CheckBytes::Plain(self.check_hex(line, at + 1)?)),
            "binary-lf" => Expected::Binary(CheckBytes::HexFormat(self.check_format(line, at + 1)?)),
            "rbinary" => Expected::BinaryRegex(self.check_regex(line, at + 1, false)?),
            "rstatus" => Expected::StatusRegex(self.check_regex(line, at + 1, false)?),
            _ => {
                debug_assert_eq!(protocol, CheckProtocol::Http);
                match status_ranges(line.text(at + 1)) {
                    Ok(ranges) => Expected::Status(ranges),
                    Err(message) => {
                        self.check_error(line, at + 1, message);
                        return None;
                    }
                }
            }
        };
        Some((what, at + 2))
    }

    fn check_header(&mut self, line: &Line, at: usize, full: bool) -> Option<(Expected, usize)> {
        let mut next = at + 1;
        let name_format = match line.text(next) {
            "name" => false,
            "name-lf" => true,
            word => {
                let near = nearest(word, &["name", "name-lf"]);
                let message = format!("'http-check expect {}' expects 'name' or 'name-lf'", line.text(at));
                self.diagnostics.error(line.at(next), message).did_you_mean(near);
                return None;
            }
        };
        let name = self.check_text(line, &mut next, name_format)?;
        let value = match line.text(next) {
            "value" => Some(self.check_text(line, &mut next, false)?),
            "value-lf" => Some(self.check_text(line, &mut next, true)?),
            _ => None,
        };
        Some((Expected::Header(Box::new(ExpectedHeader { full, name, value })), next))
    }

    /// Reads `[-m METHOD] PATTERN` behind the keyword at `next`.
    fn check_text(&mut self, line: &Line, next: &mut usize, format: bool) -> Option<ExpectedText> {
        const METHODS: [&str; 5] = ["str", "beg", "end", "sub", "reg"];
        let keyword = *next;
        let mut method = "str";
        *next += 1;
        if line.text(*next) == "-m" {
            method = line.text(*next + 1);
            if !METHODS.contains(&method) {
                let message = format!("'-m' expects one of {}, not '{method}'", table::list(&METHODS));
                self.check_error(line, *next + 1, message);
                return None;
            }
            *next += 2;
        }
        if line.text(*next).is_empty() {
            self.check_error(line, *next, format!("'{}' expects a pattern", line.text(keyword)));
            return None;
        }
        let index = *next;
        *next += 1;
        if method == "reg" {
            if format {
                self.check_error(line, index, "'-m reg' takes no log-format");
                return None;
            }
            // Names of fields have no case.
            let is_name = line.text(keyword).starts_with("name");
            return self.check_regex(line, index, is_name).map(ExpectedText::Regex);
        }
        let bytes = match format {
            true => CheckBytes::Format(self.check_format(line, index)?),
            false => CheckBytes::Plain(line.words[index].bytes().to_vec()),
        };
        Some(match method {
            "beg" => ExpectedText::Prefix(bytes),
            "end" => ExpectedText::Suffix(bytes),
            "sub" => ExpectedText::Substring(bytes),
            _ => ExpectedText::Exact(bytes),
        })
    }
}

/// `200,300-399`.
fn status_ranges(text: &str) -> Result<Vec<(u16, u16)>, String> {
    let number = |part: &str| match part.parse::<u16>() {
        Ok(code) if (100..=999).contains(&code) && part.len() == 3 => Ok(code),
        _ => Err(format!("'{part}' in the list of status codes is none")),
    };
    let mut ranges = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (number(low)?, number(high)?);
        if low > high {
            return Err(format!("the range '{part}' is empty"));
        }
        ranges.push((low, high));
        if ranges.len() > STATUS_RANGES {
            return Err(format!("more than {STATUS_RANGES} ranges of status codes"));
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::status_ranges;

    #[test]
    fn status_lists() {
        assert_eq!(status_ranges("200"), Ok(vec![(200, 200)]));
        assert_eq!(status_ranges("200-399,404"), Ok(vec![(200, 399), (404, 404)]));
        for wrong in ["", "2xx", "200,", "399-200", "99", "1000", "200-300-400", "-200"] {
            assert!(status_ranges(wrong).is_err(), "{wrong}");
        }
        assert!(status_ranges(&vec!["200"; 65].join(",")).is_err(), "a list has a limit");
    }
}
