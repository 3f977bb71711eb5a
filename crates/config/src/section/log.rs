//! `log` lines (HAProxy configuration manual 4.2, "log").

use std::path::PathBuf;

use crate::diagnostic::Diagnostics;
use crate::model::{LogAddress, LogTarget, LogWire};
use crate::section::table;
use crate::suggest;
use crate::unit;
use crate::word::Line;

/// Facilities in the order of their numbers.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "auth2", "ftp", "ntp", "audit",
    "alert", "cron2", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

/// Levels in the order of their numbers.
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

const FORMATS: [(&str, LogWire); 5] = [
    ("local", LogWire::Local),
    ("raw", LogWire::Raw),
    ("rfc3164", LogWire::Rfc3164),
    ("rfc5424", LogWire::Rfc5424),
    ("short", LogWire::Short),
];

const USAGE: &str = "log TARGET [len LENGTH] [format FORMAT] FACILITY [LEVEL [MINLEVEL]]";

/// Reads `log TARGET …`; `log global` is the caller's.
pub(crate) fn target(line: &Line, diagnostics: &mut Diagnostics) -> Option<LogTarget> {
    let to = address(line, diagnostics)?;
    let mut target =
        LogTarget { to, format: LogWire::default(), max_len: 1024, facility: 0, max_level: 7, min_level: 0 };
    let mut next = 2;
    loop {
        match line.text(next) {
            "len" => match unit::integer(line.text(next + 1), 80, 65535) {
                Ok(len) => target.max_len = len as usize,
                Err(message) => {
                    diagnostics.error(line.at(next + 1), format!("'log len': {message}"));
                    return None;
                }
            },
            "format" => match FORMATS.iter().find(|(name, _)| *name == line.text(next + 1)) {
                Some((_, format)) => target.format = *format,
                None => {
                    let names = FORMATS.map(|(name, _)| name);
                    let message = match line.text(next + 1) {
                        name @ ("timed" | "iso" | "priority") => format!("log format '{name}' is not supported yet"),
                        name => format!("unknown log format '{name}'"),
                    };
                    diagnostics.error(line.at(next + 1), message).hint(format!("formats are {}", table::list(&names)));
                    return None;
                }
            },
            word @ ("sample" | "profile") => {
                diagnostics.error(line.at(next), format!("'{word}' of 'log' is not supported yet"));
                return None;
            }
            _ => break,
        }
        next += 2;
    }
    if next >= line.len() {
        diagnostics.error(line.at(next), "'log' expects a facility").hint(USAGE);
        return None;
    }
    target.facility = named(line, next, &FACILITIES, "log facility", diagnostics)?;
    if next + 1 < line.len() {
        target.max_level = named(line, next + 1, &LEVELS, "optional log level", diagnostics)?;
    }
    if next + 2 < line.len() {
        target.min_level = named(line, next + 2, &LEVELS, "optional minimum log level", diagnostics)?;
    }
    if next + 3 < line.len() {
        let message = format!("'log' cannot handle unexpected argument '{}'", line.text(next + 3));
        diagnostics.error(line.at(next + 3), message).hint(USAGE);
        return None;
    }
    Some(target)
}

fn named(line: &Line, index: usize, names: &[&str], what: &str, diagnostics: &mut Diagnostics) -> Option<u8> {
    let word = line.text(index);
    if let Some(number) = names.iter().position(|name| *name == word) {
        return Some(number as u8);
    }
    let near = suggest::nearest(word, names.iter().copied());
    diagnostics.error(line.at(index), format!("unknown {what} '{word}'")).did_you_mean(near);
    None
}

fn address(line: &Line, diagnostics: &mut Diagnostics) -> Option<LogAddress> {
    let text = line.text(1);
    let fail = |diagnostics: &mut Diagnostics, message: String| {
        diagnostics.error(line.at(1), message).hint("a target is stdout, stderr, fd@N, /PATH, or ADDRESS[:PORT]");
        None
    };
    match text {
        "stdout" => return Some(LogAddress::Stdout),
        "stderr" => return Some(LogAddress::Stderr),
        _ => {}
    }
    if let Some(number) = text.strip_prefix("fd@") {
        return match unit::integer(number, 0, i64::from(i32::MAX)) {
            Ok(number) => Some(LogAddress::Fd(number as i32)),
            Err(_) => fail(diagnostics, format!("file descriptor '{number}' is no number")),
        };
    }
    if text.starts_with('/') {
        return Some(LogAddress::Unix(PathBuf::from(text)));
    }
    if let Some(path) = text.strip_prefix("unix@") {
        return Some(LogAddress::Unix(PathBuf::from(path)));
    }
    let plain = match text.split_once('@') {
        None => text,
        Some(("udp" | "udp4" | "udp6" | "ipv4" | "ipv6", rest)) => rest,
        Some((family, _)) => {
            return fail(diagnostics, format!("log targets of the form '{family}@' are not supported yet"));
        }
    };
    let (host, port) = match plain.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (plain, None),
    };
    let port = match port.map(|p| unit::integer(p, 1, 65535)) {
        None => 514,
        Some(Ok(port)) => port as u16,
        Some(Err(message)) => return fail(diagnostics, format!("invalid port in log address '{text}': {message}")),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_ip = host.parse::<std::net::IpAddr>().is_ok();
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    // A bare word without a dot is far more often a slip (`stdou`) than a host.
    if host.is_empty() || !(is_ip || host.bytes().all(name) && (host.contains('.') || host == "localhost")) {
        let near = suggest::nearest(text, ["stdout", "stderr", "global"]);
        diagnostics.error(line.at(1), format!("invalid log address '{text}'")).did_you_mean(near);
        return None;
    }
    Some(LogAddress::Udp(host.to_owned(), port))
}
