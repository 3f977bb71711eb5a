//! The lines of streams: formats compiled once per configuration.
//!
//! `option httplog` and the other predefined formats are compiled like any other format, into a flat list of texts,
//! aliases and expressions; rendering allocates only if an expression does.

use std::sync::Arc;

use sluicegate_config::model::{
    FormatFlags, FormatPart, LogAlias, LogFormat, LogProfile, LogStep, LogTarget, Position, Proxy,
};

use super::alias::{self, View};
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::sample::{ExpressionCode, FetchScope, FormatMode, append_value, encoded_parts};
use crate::stream::{StreamContext, UniqueId};

/// A part of a compiled format.
enum Part {
    Text(Box<[u8]>),
    Blank,
    Alias(LogAlias, FormatFlags),
    Expr(ExpressionCode, FormatFlags),
}

/// A compiled format.
pub struct LineCode {
    parts: Box<[Part]>,
    mode: FormatMode,
}

impl LineCode {
    /// Compiles a format; adds the error of each expression that cannot be compiled to `errors`.
    pub(crate) fn compile(
        format: &LogFormat,
        mode: FormatMode,
        engines: &Engines,
        scope: FetchScope<'_>,
        errors: &mut Vec<CompileError>,
    ) -> LineCode {
        let mut fail = |at: &Position, message: String| errors.push(CompileError { at: at.clone(), message });
        let mut parts = Vec::with_capacity(format.parts.len());
        for part in &*encoded_parts(format, mode) {
            parts.push(match part {
                FormatPart::Name(_) => continue,
                FormatPart::Text(text) => Part::Text(text.as_slice().into()),
                FormatPart::Blank => Part::Blank,
                FormatPart::Alias(alias, flags) => Part::Alias(*alias, *flags),
                FormatPart::Expr(expr, flags) => match ExpressionCode::compile(expr, engines, scope) {
                    Ok(code) => Part::Expr(code, *flags),
                    Err(message) => {
                        fail(&expr.at, message);
                        continue;
                    }
                },
            });
        }
        LineCode { parts: parts.into(), mode }
    }

    fn uses(&self, wanted: impl Fn(LogAlias) -> bool) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Alias(alias, _) if wanted(*alias)))
    }

    /// Appends the line.
    pub fn render(&self, view: &View<'_>, out: &mut Vec<u8>) {
        // Consecutive blanks are printed as one, even with empty items between them, and leading blanks are not
        // printed.
        let mut blank = true;
        for part in &self.parts {
            let before = out.len();
            blank &= match part {
                Part::Blank => {
                    if !std::mem::replace(&mut blank, true) {
                        out.push(b' ');
                    }
                    continue;
                }
                // Most texts are one separator, which is not worth a call.
                Part::Text(text) => match &**text {
                    [byte] => {
                        out.push(*byte);
                        false
                    }
                    text => {
                        out.extend_from_slice(text);
                        text.is_empty()
                    }
                },
                Part::Alias(alias, flags) => {
                    alias::append_here(*alias, *flags, self.mode, view, out);
                    // In HAProxy a list of captures with slots counts as text, even if all slots are empty; so does the
                    // query string, except in log lines since 3.0.
                    out.len() == before
                        && !alias::has_slots(*alias, view)
                        && (self.mode == FormatMode::Log || *alias != LogAlias::HttpQuery)
                }
                Part::Expr(code, flags) => {
                    append_value(code.value(view.cx).as_ref(), *flags, self.mode, out);
                    false
                }
            };
        }
    }
}

impl std::fmt::Debug for LineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineCode").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// The compiled log formats of a frontend.
#[derive(Default)]
pub struct ProxyLog {
    /// `None`: `Connect from …`.
    pub(super) line: Option<LineCode>,
    pub(super) error_line: Option<LineCode>,
    pub(super) structured: Option<LineCode>,
    /// The profiles of targets, by name.
    profiles: Vec<(Arc<str>, Steps)>,
    unique_id: Option<Arc<dyn UniqueId>>,
    /// Whether the addresses of server connections are looked up.
    pub(crate) wants_server_addresses: bool,
    /// Whether an expression uses the server's connection, which is closed when the line is written.
    pub(crate) wants_server_connection: bool,
    /// Whether lines are counted, because some line prints their count.
    counts_lines: bool,
    /// Whether a stream's line is written before its end ([`Logging::is_early`]).
    ///
    /// [`Logging::is_early`]: sluicegate_config::model::Logging::is_early
    early: bool,
    /// Whether some line is written when a connection is established or a response begins.
    pub(crate) has_steps: bool,
}

/// The steps that a profile changes.
type Steps = Vec<(LogStep, StepCode)>;

/// The lines of a step, as a profile changes them.
pub(super) struct StepCode {
    pub(super) drop: bool,
    pub(super) line: Option<LineCode>,
    pub(super) structured: Option<LineCode>,
}

impl ProxyLog {
    /// Compiles a proxy's formats and the profiles of its targets, or returns the expressions that cannot be compiled.
    pub fn compile(
        proxy: &Proxy,
        profiles: &[LogProfile],
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<ProxyLog, Vec<CompileError>> {
        let logging = &proxy.logging;
        let used: Vec<&LogProfile> = profiles
            .iter()
            .filter(|profile| proxy.log.iter().any(|target| target.profile.as_ref() == Some(&profile.name)))
            .collect();
        let mut errors = Vec::new();
        let mut code = |format: Option<&LogFormat>, mode| {
            format.map(|format| LineCode::compile(format, mode, engines, scope, &mut errors))
        };
        let mut log = ProxyLog {
            line: code(logging.line.as_ref().map(|line| &*line.format), FormatMode::Log),
            error_line: code(logging.error_line.as_deref(), FormatMode::Log),
            structured: code(logging.structured.as_deref(), FormatMode::Log),
            unique_id: code(logging.unique_id.as_deref(), FormatMode::Http).map(|code| Arc::new(code) as _),
            profiles: Vec::new(),
            early: logging.is_early(),
            has_steps: logging.is_early() || logging.steps.is_some(),
            ..ProxyLog::default()
        };
        for profile in &used {
            let steps = profile.steps.iter().map(|(step, read)| {
                let line = code(read.line.as_deref(), FormatMode::Log);
                (
                    *step,
                    StepCode { drop: read.drop, line, structured: code(read.structured.as_deref(), FormatMode::Log) },
                )
            });
            log.profiles.push((profile.name.clone(), steps.collect()));
        }
        let steps = log.profiles.iter().flat_map(|(_, steps)| steps);
        let steps = steps.flat_map(|(_, step)| [&step.line, &step.structured]);
        let all: Vec<_> = [&log.line, &log.error_line, &log.structured].into_iter().chain(steps).flatten().collect();
        let uses = |wanted: fn(LogAlias) -> bool| all.iter().any(|code| code.uses(wanted));
        let (addresses, counter) = (uses(alias::wants_server_addresses), uses(|alias| alias == LogAlias::LogCounter));
        log.wants_server_addresses = addresses;
        log.counts_lines = counter;
        let line = logging.line.as_ref().map(|line| &*line.format);
        let formats = [line, logging.error_line.as_deref(), logging.structured.as_deref()];
        let steps = used.iter().flat_map(|profile| &profile.steps);
        let steps = steps.flat_map(|(_, step)| [step.line.as_deref(), step.structured.as_deref()]);
        let mut parts = formats.into_iter().chain(steps).flatten().flat_map(|format| &format.parts);
        log.wants_server_connection = parts.any(|part| match part {
            FormatPart::Expr(expression, _) => expression.fetch.asks_server_connection(),
            _ => false,
        });
        if errors.is_empty() { Ok(log) } else { Err(errors) }
    }

    /// Returns what a target's profile says of a step; `None`: the proxy's formats.
    pub(super) fn step(&self, target: &LogTarget, wanted: LogStep) -> Option<&StepCode> {
        let name = target.profile.as_ref()?;
        let (_, steps) = self.profiles.iter().find(|(known, _)| known == name)?;
        let find = |wanted| steps.iter().find(|(step, _)| *step == wanted).map(|(_, code)| code);
        find(wanted).or_else(|| find(LogStep::Any))
    }

    /// Returns the compiled `unique-id-format`.
    pub fn unique_id(&self) -> Option<&Arc<dyn UniqueId>> {
        self.unique_id.as_ref()
    }

    /// Returns whether a stream's line is written before its end.
    pub(super) fn is_early(&self) -> bool {
        self.early
    }

    /// Returns whether some line prints the count of lines.
    pub(crate) fn counts_lines(&self) -> bool {
        self.counts_lines
    }
}

impl UniqueId for LineCode {
    fn render(&self, cx: &StreamContext, out: &mut Vec<u8>) {
        self.render(&View::running(cx), out);
    }
}
