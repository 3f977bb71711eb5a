//! The options of `bench compare`.

use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value};

use super::{Command, HELP, HINT, destination, hint, value};
use crate::load::plan::{Comparison, Destination, Pictures};

/// Parses the words after `bench compare`.
pub(super) fn files(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut options = Comparison { fail_over: None, json: Destination::No, pictures: Pictures::default() };
    let mut paths = Vec::new();
    while let Some(argument) = parser.next().map_err(hint)? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(HELP)),
            Long("fail-over") => options.fail_over = Some(percent("--fail-over", &value("--fail-over", &mut parser)?)?),
            Long("json") => options.json = destination("--json", &mut parser)?,
            Long("html") => options.pictures.html = Some(value("--html", &mut parser)?.into()),
            Long("svg") => options.pictures.svg = Some(value("--svg", &mut parser)?.into()),
            Value(path) => paths.push(PathBuf::from(path)),
            other => return Err(hint(other.unexpected())),
        }
    }
    let paths = <[PathBuf; 2]>::try_from(paths);
    paths
        .map(|paths| Command::Compare(paths, options))
        .map_err(|_| format!("two reports are compared: A.json B.json\n\n{HINT}"))
}

/// Parses `3` or `3%`.
pub(super) fn percent(option: &str, text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent >= 0.0 && percent.is_finite() => Ok(percent),
        _ => Err(format!("{option} {text}: a percentage is expected, 3%")),
    }
}
