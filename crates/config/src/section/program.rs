//! `program` sections (HAProxy configuration manual, "Programs").

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::Program;
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::word::Line;

type ProgramParser = fn(&mut Program, &Line, &mut Diagnostics);

const fn row(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: ProgramParser,
) -> Row<ProgramParser> {
    Row { name, contexts: Contexts::PROGRAM, min, max, usage, docs, parser }
}

/// The keywords of `program`.
pub(crate) static KEYWORDS: Table<ProgramParser> = Table::new(&[
    row(
        "command",
        (1, MANY),
        "PROGRAM [ARGUMENT]…",
        "What is started; a name without a slash is looked up in PATH.",
        |program, line, _| program.command = (1..line.len()).map(|index| line.text(index).to_owned()).collect(),
    ),
    row(
        "group",
        (1, 1),
        "NAME",
        "The group that it runs as; the master's by default.",
        |program, line, diagnostics| {
            once(&mut program.group, "group/gid", line, diagnostics);
        },
    ),
    row(
        "option start-on-reload",
        (0, 0),
        "",
        "A reload ends the program and starts it again, which is the default; after 'no' it stays.",
        |program, line, _| program.start_on_reload = !line.negated,
    ),
    row("user", (1, 1), "NAME", "The user that it runs as; the master's by default.", |program, line, diagnostics| {
        once(&mut program.user, "user/uid", line, diagnostics);
    }),
]);

/// Sets a name unless it is set.
fn once(name: &mut Option<String>, what: &str, line: &Line, diagnostics: &mut Diagnostics) {
    match name {
        Some(_) => _ = diagnostics.warning(line.at(0), format!("{what} already specified. Continuing.")),
        None => *name = Some(line.text(1).to_owned()),
    }
}

/// Reads the `program` sections.
pub(crate) fn all(sections: &[Section], diagnostics: &mut Diagnostics) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Program) {
        let name = section.name.clone();
        if programs.iter().any(|other| other.name == name) {
            let message = format!("'{name}' program section already exists in the configuration.");
            diagnostics.error(section.at.clone(), message);
            continue;
        }
        let (command, user, group, at) = (Vec::new(), None, None, section.at.clone());
        let mut program = Program { name, command, user, group, start_on_reload: true, at };
        for line in &section.lines {
            read(&mut program, line, diagnostics);
        }
        if program.command.is_empty() {
            let message = format!("program '{}' has no 'command'", program.name);
            diagnostics.error(program.at.clone(), message);
        }
        programs.push(program);
    }
    programs
}

fn read(program: &mut Program, line: &Line, diagnostics: &mut Diagnostics) {
    let negated;
    let line = match (line.text(0), line.text(1)) {
        ("no", "option") => {
            negated = line.without_no();
            &negated
        }
        _ => line,
    };
    match KEYWORDS.find(line.text(0), line.text(1)) {
        Some((row, words)) => {
            if table::arity(row, words, line, diagnostics) {
                (row.parser)(program, line, diagnostics);
            }
        }
        None if line.text(0) == "option" && line.len() == 1 => {
            diagnostics.error(line.at(1), "'option' expects an option name.");
        }
        None if line.text(0) == "option" => {
            let near = suggest::nearest(line.text(1), ["start-on-reload"]);
            diagnostics.error(line.at(1), format!("unknown option '{}'.", line.text(1))).did_you_mean(near);
        }
        None => table::unknown(&KEYWORDS, known::NONE, Contexts::PROGRAM, "program", line, diagnostics),
    }
}
