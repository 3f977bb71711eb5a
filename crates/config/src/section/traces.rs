//! `traces` sections: traces that run from the start (HAProxy management guide, `trace`).

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::Ring;
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::traces::{TraceSeverity, Traces};
use crate::word::Line;

/// Reads a line into the settings.
type TracesParser = fn(&mut Traces, &Line, &mut Diagnostics);

/// The sinks that are always there.
const BUILT_IN: [&str; 4] = ["stdout", "stderr", "buf0", "dpapi"];

/// The keywords of `traces`.
pub(crate) static KEYWORDS: Table<TracesParser> = Table::new(&[Row {
    name: "trace",
    contexts: Contexts::TRACES,
    min: 0,
    max: MANY,
    usage: "SOURCE|all|0 [sink NAME] [level LEVEL] [verbosity NAME] [event|start|pause|stop [+|-]EVENT] \
            [lock CRITERION] [follow SOURCE]",
    docs: "Sets up the traces of a source, as the stats socket's 'trace' does: where lines go (a ring, 'buf0', 'stdout' or \
           'stderr'), how much is reported, and what starts and ends it; 'start now' starts at once. Sources are 'h1', 'h2', \
           'stream', 'check' and 'session', with the events that this program reports. A missing value lists what is possible.",
    parser: |traces, line, diagnostics| {
        let words: Vec<&str> = (1..line.len()).map(|index| line.text(index)).collect();
        match traces.run(&words, None) {
            Some((TraceSeverity::Error, message)) => _ = diagnostics.error(line.at(0), message),
            Some((_, message)) => _ = diagnostics.warning(line.at(0), format!("'trace': {message}")),
            None => {}
        }
    },
}]);

/// Returns the settings of all `traces` sections.
pub(crate) fn all(sections: &[Section], rings: &[Ring], diagnostics: &mut Diagnostics) -> Traces {
    let mut traces = Traces::default();
    let sections = sections.iter().filter(|section| section.kind == SectionKind::Traces);
    for line in sections.flat_map(|section| &section.lines) {
        match KEYWORDS.find(line.text(0), "") {
            Some((row, words)) if table::arity(row, words, line, diagnostics) => {
                (row.parser)(&mut traces, line, diagnostics);
                let sink = (2..line.len()).step_by(2).find(|index| line.text(*index) == "sink").map(|index| index + 1);
                if let Some(index) = sink.filter(|index| *index < line.len()) {
                    let name = line.text(index);
                    let is_known = name == "none" || BUILT_IN.contains(&name) || rings.iter().any(|r| *r.name == *name);
                    if !is_known {
                        let near = crate::suggest::nearest(name, rings.iter().map(|ring| &*ring.name).chain(BUILT_IN));
                        diagnostics.error(line.at(index), format!("unknown sink '{name}'")).did_you_mean(near);
                    }
                }
            }
            Some(_) => {}
            None => table::unknown(&KEYWORDS, known::NONE, Contexts::TRACES, "traces", line, diagnostics),
        }
    }
    traces
}
