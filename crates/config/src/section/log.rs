//! `log` lines (HAProxy configuration manual 4.2, "log").

use std::path::PathBuf;

use crate::Files;
use crate::address;
use crate::diagnostic::Diagnostics;
use crate::limits;
use crate::model::{LogAddress, LogLevel, LogSample, LogTarget, LogWire, ServerAddress, ServerPort};
use crate::names;
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

const FORMATS: [(&str, LogWire); 8] = [
    ("iso", LogWire::Iso),
    ("local", LogWire::Local),
    ("priority", LogWire::Priority),
    ("raw", LogWire::Raw),
    ("rfc3164", LogWire::Rfc3164),
    ("rfc5424", LogWire::Rfc5424),
    ("short", LogWire::Short),
    ("timed", LogWire::Timed),
];

/// The port of a target without one.
const SYSLOG_PORT: u16 = 514;

const USAGE: &str =
    "log TARGET [len LENGTH] [format FORMAT] [sample RANGES:SIZE] [profile NAME] FACILITY [LEVEL [MINLEVEL]]";

/// Returns the level that a word of `set-log-level` names.
pub(crate) fn level(word: &str) -> Option<LogLevel> {
    match LEVELS.iter().position(|name| *name == word) {
        Some(number) => Some(LogLevel::Level(number as u8)),
        None => (word == "silent").then_some(LogLevel::Silent),
    }
}

/// Returns the words of `set-log-level`.
pub(crate) fn level_names() -> impl Iterator<Item = &'static str> {
    LEVELS.into_iter().chain(["silent"])
}

/// Reads `log TARGET …`; `log global` is the caller's.
pub(crate) fn target(line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<LogTarget> {
    let to = to(line, files, diagnostics)?;
    let mut target = LogTarget { format: LogWire::default(), max_len: 1024, at: line.at(0), ..LogTarget::raw(to) };
    let mut next = 2;
    loop {
        match line.text(next) {
            "len" => match unit::leading_integer(line.text(next + 1), 80, 65535) {
                Ok(len) => target.max_len = len as usize,
                Err(message) => {
                    diagnostics.error(line.at(next + 1), format!("'log len': {message}"));
                    return None;
                }
            },
            "format" => target.format = wire(line, next + 1, diagnostics)?,
            "sample" => match sample(line.text(next + 1)) {
                Ok(sample) => target.sample = Some(sample),
                Err(message) => {
                    let error = diagnostics.error(line.at(next + 1), format!("'log sample': {message}"));
                    error.hint("for example 'sample 1-2,5:8': the first, second and fifth of every eight lines");
                    return None;
                }
            },
            "profile" => {
                if line.text(next + 1).is_empty() {
                    diagnostics.error(line.at(next + 1), "expected log-profile name");
                    return None;
                }
                target.profile = Some(line.text(next + 1).into());
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

/// Reads the name of a format of messages.
pub(crate) fn wire(line: &Line, index: usize, diagnostics: &mut Diagnostics) -> Option<LogWire> {
    let word = line.text(index);
    if let Some((_, format)) = FORMATS.iter().find(|(name, _)| *name == word) {
        return Some(*format);
    }
    let names = FORMATS.map(|(name, _)| name);
    let near = suggest::nearest(word, names);
    let error = diagnostics.error(line.at(index), format!("unknown log format '{word}'"));
    match near {
        Some(near) => error.did_you_mean(Some(near)),
        None => error.hint(format!("formats are {}", table::list(&names))),
    };
    None
}

/// Reads `RANGES:SIZE`.
fn sample(text: &str) -> Result<LogSample, String> {
    let Some((ranges, size)) = text.rsplit_once(':') else {
        return Err(format!("'{text}' has no ':' before the sample's size"));
    };
    let number = |text: &str| unit::integer(text, 1, i64::from(u32::MAX)).map(|number| number as u32);
    let size = number(size)?;
    let mut list = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = match range.split_once('-') {
            Some((low, high)) => (number(low)?, number(high)?),
            None => (number(range)?, number(range)?),
        };
        if low > high {
            return Err(format!("the range '{range}' ends before it begins"));
        }
        if list.len() == limits::LOG_RANGES {
            return Err(format!("more than {} ranges", limits::LOG_RANGES));
        }
        list.push((low, high));
    }
    list.sort_unstable();
    if let Some(pair) = list.windows(2).find(|pair| pair[0].1 >= pair[1].0) {
        return Err(format!("the ranges {}-{} and {}-{} overlap", pair[0].0, pair[0].1, pair[1].0, pair[1].1));
    }
    match list.last() {
        Some((_, high)) if *high > size => Err(format!("the sample size {size} is less than the range's end {high}")),
        _ => Ok(LogSample { ranges: list, size }),
    }
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

fn to(line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<LogAddress> {
    let text = &*address::with_kind(line.address(1));
    let fail = |diagnostics: &mut Diagnostics, message: String| {
        diagnostics
            .error(line.at(1), message)
            .hint("a target is stdout, stderr, fd@N, ring@NAME, backend@NAME, /PATH, or ADDRESS[:PORT]");
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
    if let Some(path) = ["unix@", "uxdg@"].iter().find_map(|prefix| text.strip_prefix(prefix)) {
        return Some(LogAddress::Unix(PathBuf::from(path)));
    }
    let (prefix, plain) = match text.split_once('@') {
        None => ("", text),
        Some((prefix @ ("ip" | "ipv4" | "ipv6" | "udp" | "udp4" | "udp6"), rest)) => (prefix, rest),
        Some(("ring", name)) => return Some(LogAddress::Ring(name.into())),
        Some(("backend", name)) => return Some(LogAddress::Backend(name.into())),
        Some(("tcp" | "tcp4" | "tcp6" | "uxst", _)) => return stream(text, line, files, diagnostics),
        Some((family, _)) => return fail(diagnostics, format!("unknown address family '{family}@'")),
    };
    let Some((host, port)) = host_and_port(plain) else {
        return fail(diagnostics, format!("invalid log address '{text}'"));
    };
    // HAProxy sends to this address, too; it stands for the local host.
    let host = if host.is_empty() && port.is_some() { "0.0.0.0" } else { host };
    let port = match port {
        None | Some("") => SYSLOG_PORT,
        Some(port) => match unit::integer(port, 1, 65535) {
            Ok(port) => port as u16,
            Err(message) => return fail(diagnostics, format!("invalid port in log address '{text}': {message}")),
        },
    };
    let is_ip = host.parse::<std::net::IpAddr>().is_ok();
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    // A word similar to `stdout` is far more often a typing error than a host.
    let near = suggest::nearest(text, ["stdout", "stderr", "global"]);
    if host.is_empty() || !is_ip && (!host.bytes().all(name) || near.is_some()) {
        diagnostics.error(line.at(1), format!("invalid log address '{text}'")).did_you_mean(near);
        return None;
    }
    match names::host(prefix, host, files) {
        Ok(address) => Some(LogAddress::Udp(address.to_string(), port)),
        Err(message) => fail(diagnostics, format!("invalid log address '{text}': {message}")),
    }
}

/// Reads the address of a target that is reached by a stream.
fn stream(text: &str, line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<LogAddress> {
    let text = match names::numeric(text, files) {
        Ok(text) => text,
        Err(message) => {
            diagnostics.error(line.at(1), format!("invalid log address '{text}': {message}"));
            return None;
        }
    };
    let address = match address::server(&text) {
        Ok(ServerAddress::Inet(ip, ServerPort::Offset(_))) => ServerAddress::Inet(ip, ServerPort::Fixed(SYSLOG_PORT)),
        Ok(address) => address,
        Err(problem) => {
            diagnostics.error(line.at(1), format!("invalid log address '{text}': {}", problem.message));
            return None;
        }
    };
    Some(LogAddress::Stream(address))
}

/// Splits an address and its port. As in HAProxy, the port follows the last colon, even of an IPv6 address without
/// brackets, unless the text before it is not an address.
fn host_and_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.rsplit_once(':') {
        None => Some((text, None)),
        Some((host, port)) if !host.contains(':') || host.parse::<std::net::Ipv6Addr>().is_ok() => {
            Some((host, Some(port)))
        }
        Some(_) => text.parse::<std::net::Ipv6Addr>().is_ok().then_some((text, None)),
    }
}
