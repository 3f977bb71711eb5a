//! Variables of the process that a file sets at start (`set-var` and `set-var-fmt` of `global`), or a command while it
//! runs (`set var` of the stats socket).
//!
//! There is neither a client nor a request, so only fetches that do not need a stream can be used.

use crate::catalogue::Place;
use crate::diagnostic::Diagnostics;
use crate::expression::{self, ExpressionReader, Problem, StoreNames};
use crate::format::{self, Blanks};
use crate::model::{Config, Position, Preset, PresetValue, VarScope, VarTarget};
use crate::section::{Section, SectionKind};

/// Keywords of `global` that are parsed together with the other sections.
pub(crate) const WORDS: [&str; 2] = ["set-var", "set-var-fmt"];

/// Returns the variables of all `global` sections, in order.
pub(crate) fn all(sections: &[Section], stores: &StoreNames<'_>, diagnostics: &mut Diagnostics) -> Vec<Preset> {
    let lines =
        sections.iter().filter(|section| section.kind == SectionKind::Global).flat_map(|section| &section.lines);
    let mut presets = Vec::new();
    for line in lines {
        if let Some(files) = stores.files {
            files.stand_at(&line.at(0));
        }
        let keyword = line.text(0);
        let wrong = match name(line.text(1)) {
            Err(problem) => Err((1, problem)),
            Ok(target) => {
                let place = |offset: usize| line.within(2, offset);
                value(stores, keyword == "set-var-fmt", line.text(2), &place)
                    .map(|value| presets.push(Preset { target, value, text: line.text(2).to_owned(), at: line.at(0) }))
                    .map_err(|problem| (2, problem))
            }
        };
        if let Err((index, problem)) = wrong {
            let error =
                diagnostics.error(line.within(index, problem.offset), format!("'{keyword}': {}", problem.message));
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
        }
    }
    presets
}

/// Parses the argument of `set var`, with the files of the configuration.
pub fn preset(config: &Config, variable: &str, is_format: bool, text: &str) -> Result<Preset, String> {
    let stores = StoreNames { patterns: config.patterns.clone(), any_store: true, ..StoreNames::default() };
    let place = |offset: usize| Position { file: "stats socket".into(), line: 1, column: offset as u32 + 1 };
    let target = name(variable).map_err(|problem| format!("'set var': {}.", problem.message))?;
    let value = value(&stores, is_format, text, &place).map_err(|problem| problem.message)?;
    Ok(Preset { target, value, text: text.to_owned(), at: place(0) })
}

fn name(text: &str) -> Result<VarTarget, Problem> {
    match expression::variable_to_set(text) {
        Ok(target) if target.name.scope == VarScope::Proc => Ok(target),
        Ok(_) => Err(Problem::new(0, format!("cannot set variable '{text}', only scope 'proc' is permitted here"))),
        Err((message, hint)) => Err(Problem::new(0, message).hint(hint)),
    }
}

fn value(
    stores: &StoreNames<'_>,
    is_format: bool,
    text: &str,
    place: &dyn Fn(usize) -> Position,
) -> Result<PresetValue, Problem> {
    let reader = ExpressionReader { stores, place: Place::Start, acl: false };
    if is_format {
        return Ok(PresetValue::Format(format::read(text.as_bytes(), Blanks::Kept, &reader, place)?.0));
    }
    let parsed = reader.read(text, place(0))?;
    match text[parsed.used..].chars().next() {
        Some(bad) => Err(Problem::new(parsed.used, format!("missing comma after the expression, at '{bad}'"))),
        None => Ok(PresetValue::Expr(parsed.expr)),
    }
}
