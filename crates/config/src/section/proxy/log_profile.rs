//! `log-profile` sections (HAProxy configuration manual 8.3.5).

use std::sync::Arc;

use super::ProxyReader;
use crate::catalogue::{Contexts, Place, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Config, LogProfile, LogProfileStep, LogStep, LogTarget, Position, Proxy};
use crate::section::Section;
use crate::section::table::{self, MANY, Row, Table};
use crate::suggest;
use crate::word::Line;

/// The reader of a section's lines.
pub(crate) struct ProfileReader<'r, 'a> {
    profile: LogProfile,
    proxy: &'r mut ProxyReader<'a>,
}

pub(crate) type ProfileParser = for<'r, 'a> fn(&mut ProfileReader<'r, 'a>, &Line);

/// The keywords of `log-profile`.
pub(crate) static KEYWORDS: Table<ProfileParser> = Table::new(&[
    Row {
        name: "log-tag",
        contexts: Contexts::LOG_PROFILE,
        min: 1,
        max: 1,
        usage: "TAG",
        docs: "The tag in the headers of the messages, in place of the proxy's.",
        parser: |r, line| r.profile.tag = Some(line.text(1).into()),
    },
    Row {
        name: "on",
        contexts: Contexts::LOG_PROFILE,
        min: 2,
        max: MANY,
        usage: "STEP [drop] [format FORMAT] [sd FORMAT]",
        docs: "How the lines of a step are written: not at all ('drop'), in this format, with this structured data. Steps are \
               'close', the end of a stream; 'error', a session without a request; 'accept', 'request', 'connect' and \
               'response', the lines of 'log-steps', the last two also of 'option logasap'; 'tcp-req-conn', 'tcp-req-sess', \
               'tcp-req-cont', 'tcp-res-cont', 'http-req', 'http-res' and 'http-after-res', the lines of 'do-log' in these rule \
               sets ('quic-init': none); and 'any' for all that have no line of their own.",
        parser: |r, line| r.step(line),
    },
]);

/// The steps of `log-steps`.
const STREAM_STEPS: [(&str, LogStep); 5] = [
    ("accept", LogStep::Accept),
    ("request", LogStep::Request),
    ("connect", LogStep::Connect),
    ("response", LogStep::Response),
    ("close", LogStep::Close),
];

const OTHER_STEPS: [(&str, LogStep); 2] = [("error", LogStep::Error), ("any", LogStep::Any)];

/// The steps of `do-log`, by rule set.
const RULE_STEPS: [(&str, LogStep); 8] = [
    ("tcp-req-conn", LogStep::TcpRequestConnection),
    ("tcp-req-sess", LogStep::TcpRequestSession),
    ("tcp-req-cont", LogStep::TcpRequestContent),
    ("tcp-res-cont", LogStep::TcpResponseContent),
    ("http-req", LogStep::HttpRequest),
    ("http-res", LogStep::HttpResponse),
    ("http-after-res", LogStep::HttpAfterResponse),
    ("quic-init", LogStep::QuicInitial),
];

/// Reads the steps of `log-steps`. As in HAProxy, `all` is alone, and an empty name ends the list.
pub(super) fn steps(text: &str) -> Result<Vec<LogStep>, String> {
    if text == "all" {
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    for name in text.strip_suffix(',').unwrap_or(text).split(',').filter(|_| !text.is_empty()) {
        let Some((_, step)) = STREAM_STEPS.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = STREAM_STEPS.iter().chain(&RULE_STEPS).map(|(name, _)| *name).collect();
            return Err(format!("invalid log step name ({name}). Expected values are: {}", names.join(", ")));
        };
        steps.push(*step);
    }
    Ok(steps)
}

impl ProfileReader<'_, '_> {
    fn step(&mut self, line: &Line) {
        let word = line.text(1);
        let diagnostics = &mut *self.proxy.diagnostics;
        let mut known = STREAM_STEPS.iter().chain(&OTHER_STEPS).chain(&RULE_STEPS);
        let Some((_, step)) = known.clone().find(|(name, _)| *name == word) else {
            let names: Vec<&str> = known.by_ref().map(|(name, _)| *name).collect();
            let message = format!("'on' expects a log step, one of {}", table::list(&names));
            diagnostics.error(line.at(1), message).did_you_mean(suggest::nearest(word, names));
            return;
        };
        let place = self.profile.steps.iter().position(|(known, _)| known == step);
        let place = place.unwrap_or_else(|| {
            self.profile.steps.push((*step, LogProfileStep::default()));
            self.profile.steps.len() - 1
        });
        let mut next = 2;
        while next < line.len() {
            let what = line.text(next);
            match what {
                "drop" if next == 2 => {
                    self.profile.steps[place].1.drop = true;
                    next += 1;
                    continue;
                }
                "format" | "sd" if next + 1 < line.len() => {}
                "format" | "sd" => {
                    let message = format!("'on {word} {what}' expects a logformat string");
                    self.proxy.diagnostics.error(line.at(next + 1), message);
                    return;
                }
                _ => {
                    let message = format!("'on {word}' expects 'drop', 'format' or 'sd'");
                    self.proxy.diagnostics.error(line.at(next), message);
                    return;
                }
            }
            let reader =
                crate::expression::ExpressionReader { stores: self.proxy.stores, place: Place::Log, acl: false };
            let format = crate::section::rule::log_line(&reader, line, next + 1, self.proxy.diagnostics);
            let read = &mut self.profile.steps[place].1;
            read.drop = false;
            match what {
                "format" => read.line = format.map(Arc::new),
                _ => read.structured = format.map(Arc::new),
            }
            next += 2;
        }
    }
}

/// Reads a section. `before` are the profiles that were read already.
pub(super) fn read(proxy: &mut ProxyReader<'_>, section: &Section, before: &[LogProfile]) -> Option<LogProfile> {
    let name = section.name.clone();
    if let Some(other) = before.iter().find(|other| other.name == name) {
        let Position { file, line, .. } = &other.at;
        let message = format!(
            "log-profile section '{name}' has the same name as another log-profile section declared at {file}:{line}"
        );
        proxy.diagnostics.error(section.at.clone(), message);
        return None;
    }
    let profile = LogProfile { name, tag: None, steps: Vec::new(), at: section.at.clone() };
    let mut reader = ProfileReader { profile, proxy };
    for line in &section.lines {
        match KEYWORDS.find(line.text(0), line.text(1)) {
            Some((row, words)) => {
                if table::arity(row, words, line, reader.proxy.diagnostics) {
                    (row.parser)(&mut reader, line);
                }
            }
            None => {
                let context = Contexts::LOG_PROFILE;
                table::unknown(&KEYWORDS, known::NONE, context, "log-profile", line, reader.proxy.diagnostics);
            }
        }
    }
    Some(reader.profile)
}

/// Finds the profiles that `log` lines name, and gives their targets the tags.
pub(crate) fn resolve(config: &mut Config, diagnostics: &mut Diagnostics) {
    let Config { global, proxies, log_profiles, .. } = config;
    let mut resolve = |target: &mut LogTarget, owner: &str| {
        let Some(name) = &target.profile else { return };
        match log_profiles.iter().find(|profile| profile.name == *name) {
            Some(profile) => target.tag = profile.tag.clone().or(target.tag.take()),
            None => {
                let near = suggest::nearest(name, log_profiles.iter().map(|profile| &*profile.name));
                let Position { file, line, .. } = &target.at;
                let message = format!("{owner} in file '{file}' at line {line} unknown log-profile '{name}'");
                diagnostics.error(target.at.clone(), message).did_you_mean(near);
            }
        }
    };
    global.log.iter_mut().for_each(|target| resolve(target, "global log directive declared"));
    for (owner, targets) in proxies.iter_mut().flat_map(Proxy::log_lists) {
        let owner = format!("log directive declared in {owner}");
        targets.iter_mut().for_each(|target| resolve(target, &owner));
    }
}
