//! `log-forward` sections (HAProxy configuration manual 12.6).
//!
//! A section is a frontend whose clients send syslog messages. It is in the list of proxies, behind all others, so that it
//! listens like them; no name refers to it.

use super::{KEYWORDS as PROXY_KEYWORDS, ProxyParser, ProxyReader, Settings};
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{LogForward, LogFrom, Mode, Position, Proxy, ProxyKind};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::word::Line;

/// HAProxy's `maxconn` of a section without one.
const MAXCONN: u32 = 10;

const fn row(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: fn(&mut ProxyReader<'_>, &Line),
) -> Row<ProxyParser> {
    Row { name, contexts: Contexts::LOG_FORWARD, min, max, usage, docs, parser: ProxyParser(parser) }
}

/// Reads a keyword as it is read in a frontend.
fn as_frontend(reader: &mut ProxyReader<'_>, line: &Line) {
    if let Some((row, _)) = PROXY_KEYWORDS.find(line.text(0), line.text(1)) {
        (row.parser.0)(reader, line);
    }
}

/// The keywords of `log-forward`.
pub(crate) static KEYWORDS: Table<ProxyParser> = Table::new(&[
    row("backlog", (1, 1), "N", "Length of the kernel's accept queue; maxconn by default.", as_frontend),
    row(
        "bind",
        (1, MANY),
        "ADDRESS[,ADDRESS]… [OPTION]…",
        "Listens for messages by TCP or a unix stream, with the options of a frontend's 'bind', TLS included. Each message \
         begins with its length, or ends with a line feed (RFC 6587).",
        as_frontend,
    ),
    row(
        "dgram-bind",
        (1, MANY),
        "ADDRESS[,ADDRESS]… [OPTION]…",
        "Receives messages by UDP, one in a datagram. Of the options of 'bind', 'interface', 'name', 'transparent', 'v4v6' and \
         'v6only' have an effect.",
        |r, line| {
            let before = r.settings.proxy.binds.len();
            let bind = crate::section::bind::BindContext { section: r.section, loader: r.loaded.tls };
            if let Some((bind, words)) = crate::section::bind::bind(line, &bind, r.diagnostics) {
                r.settings.proxy.binds.push(bind);
                r.settings.bind_words.push((line.text(1).into(), words));
            }
            r.settings.proxy.binds[before..].iter_mut().for_each(|bind| bind.datagram = true);
        },
    ),
    row(
        "log",
        (1, MANY),
        "global | TARGET [len N] [format F] [sample RANGES:SIZE] FACILITY [LEVEL [MIN]]",
        "A target of the messages. Without a format they keep theirs; the facility is for those that have none.",
        |r, line| r.log(line),
    ),
    row("maxconn", (1, 1), "N", "Maximum number of concurrent connections; 10.", as_frontend),
    row(
        "option assume-rfc6587-ntf",
        (0, 0),
        "",
        "Every message of a stream ends with a line feed, whatever it begins with.",
        |r, line| {
            let on = super::on(line);
            r.log_from().always_lines = on;
        },
    ),
    row(
        "option dont-parse-log",
        (0, 0),
        "",
        "Passes messages on as they are, for targets of 'format raw'.",
        |r, line| {
            let on = super::on(line);
            r.log_from().unparsed = on;
        },
    ),
    row(
        "option host",
        (1, 1),
        "replace|fill|keep|append",
        "The host name of messages of formats that have one: the sender's address in its place (replace), where it is missing \
         (fill, the default) or behind it and a comma (append), or the message's own alone (keep).",
        |r, line| {
            let host = match line.text(2) {
                "replace" => LogFrom::Replace,
                "fill" => LogFrom::Fill,
                "keep" => LogFrom::Keep,
                "append" => LogFrom::Append,
                _ => {
                    let message = "option 'host' expects {replace|fill|keep|append}";
                    r.diagnostics.error(line.at(2), message);
                    return;
                }
            };
            r.log_from().host = host;
        },
    ),
    row(
        "timeout client",
        (1, 1),
        "TIME",
        "The time after which a silent client is disconnected. Not set.",
        as_frontend,
    ),
]);

impl ProxyReader<'_> {
    fn log_from(&mut self) -> &mut LogForward {
        self.settings.proxy.log_forward.get_or_insert_default()
    }
}

/// Returns the settings that a section begins with.
pub(super) fn settings(section: &Section) -> Settings {
    let mut proxy = Proxy::new(section.name.clone(), ProxyKind::Frontend, section.at.clone());
    (proxy.mode, proxy.maxconn, proxy.log_forward) = (Mode::Log, Some(MAXCONN), Some(LogForward::default()));
    Settings { proxy, ..Settings::new() }
}

/// Reads a section's lines.
pub(super) fn read(reader: &mut ProxyReader<'_>, section: &Section) {
    for line in &section.lines {
        let negated;
        let line = match (line.text(0), line.text(1)) {
            ("no", "option" | "log") => {
                negated = line.without_no();
                &negated
            }
            _ => line,
        };
        match KEYWORDS.find(line.text(0), line.text(1)) {
            Some((row, words)) => {
                let row_arity = if line.negated { Row { min: 0, ..row.bare() } } else { row.bare() };
                if table::arity(&row_arity, words, line, reader.diagnostics) {
                    (row.parser.0)(reader, line);
                }
            }
            None => {
                let context = Contexts::LOG_FORWARD;
                table::unknown(&KEYWORDS, known::NONE, context, "log-forward", line, reader.diagnostics);
            }
        }
    }
}

/// Reports sections whose name another one has.
pub(super) fn names(sections: &[Section], diagnostics: &mut Diagnostics) {
    let word = |kind| match kind {
        SectionKind::Frontend => Some("frontend"),
        SectionKind::Backend => Some("backend"),
        SectionKind::Listen => Some("proxy"),
        _ => None,
    };
    for (index, section) in sections.iter().enumerate().filter(|(_, one)| one.kind == SectionKind::LogForward) {
        let name = &section.name;
        let mut earlier = sections[..index].iter().filter(|other| other.name == *name);
        let found = earlier.find_map(|other| {
            let Position { file, line, .. } = &other.at;
            Some(match (other.kind, word(other.kind)) {
                (SectionKind::LogForward, _) => format!(
                    "log-forward section '{name}' has the same name as another log-forward section declared at {file}:{line}"
                ),
                (_, Some(kind)) => format!(
                    "log forward section '{name}' has the same name as {kind} '{name}' declared at {file}:{line}"
                ),
                _ => return None,
            })
        });
        if let Some(message) = found {
            diagnostics.error(section.at.clone(), message);
        }
    }
}
