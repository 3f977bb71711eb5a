//! `traces` sections: traces that run from the start (HAProxy management guide, `trace`).

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::Ring;
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::traces::{TraceSeverity, Traces, unreported};
use crate::word::Line;

/// Reads a line into the settings.
type TracesParser = fn(&mut Traces, &Line, &mut Diagnostics);

/// The sources of an HAProxy with QUIC.
const OF_QUIC: [&str; 3] = ["quic", "qmux", "h3"];

/// The keywords of `traces`.
pub(crate) static KEYWORDS: Table<TracesParser> = Table::new(&[Row {
    name: "trace",
    contexts: Contexts::TRACES,
    min: 0,
    max: MANY,
    usage: "SOURCE|all|0 [sink NAME] [level LEVEL] [verbosity NAME] [event|start|pause|stop [+|-]EVENT] \
            [lock CRITERION] [follow SOURCE]",
    docs: "Sets up the traces of a source, as the stats socket's 'trace' does: where lines go (a ring, 'buf0', 'stdout' or \
           'stderr'), how much is reported, and what starts and ends it; 'start now' starts at once. All sources and \
           events of HAProxy are taken, and a check warns of those that are not reported here. A missing value lists what is \
           possible.",
    parser: |traces, line, diagnostics| {
        let words: Vec<&str> = (1..line.len()).map(|index| line.text(index)).collect();
        if let Some(name) = words.first().filter(|name| OF_QUIC.contains(name)) {
            let message =
                format!("'trace': no such events are reported here: '{name}' is of QUIC, which is not supported");
            diagnostics.warning(line.at(1), message);
            return;
        }
        match traces.run(&words, None) {
            Some((TraceSeverity::Error, message)) => _ = diagnostics.error(line.at(0), message),
            Some((_, message)) => _ = diagnostics.warning(line.at(0), format!("'trace': {message}")),
            None => {
                if let Some(remark) = unreported(&words) {
                    diagnostics.warning(line.at(0), format!("'trace': {remark}"));
                }
            }
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
                for index in
                    (2..line.len()).step_by(2).filter(|index| line.text(*index) == "sink").map(|index| index + 1)
                {
                    let name = line.text(index);
                    let known = || rings.iter().map(|ring| &*ring.name).chain(Ring::BUILT_IN);
                    if !["", "none"].contains(&name) && !known().any(|known| known == name) {
                        let near = crate::suggest::nearest(name, known());
                        diagnostics
                            .error(line.at(index), format!("traces: sink '{name}' doesn't exist."))
                            .did_you_mean(near);
                    }
                }
            }
            Some(_) => {}
            None => table::unknown(&KEYWORDS, known::NONE, Contexts::TRACES, "traces", line, diagnostics),
        }
    }
    traces
}
