//! `trace`, `show trace`.

use std::fmt::Write as _;

use sluicegate_config::model::StatsLevel;
use sluicegate_config::traces::{TRACE_SOURCES, TraceSeverity, Traces};

use super::catalogue::{Call, Command, Run};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["show", "trace"],
        arguments: "[<module>]",
        help: "show live tracing state",
        level: StatsLevel::User,
        run: Run::Now(show),
    },
    Command {
        name: &["trace"],
        arguments: "[<module>|0] [cmd [args...]]",
        help: "manage live tracing (empty to list, 0 to stop all)",
        level: StatsLevel::Operator,
        run: Run::Now(trace),
    },
];

fn trace(call: &mut Call<'_>) {
    let words: Vec<String> = (0..call.args.len()).map(|index| call.arg(index).to_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((severity, text)) = call.running.logger.run_trace(&words) else { return };
    let severity = match severity {
        TraceSeverity::Error => (3, "err"),
        TraceSeverity::Warning => (4, "warning"),
        TraceSeverity::Notice => (5, "notice"),
    };
    call.answer_as(severity, text);
}

/// Returns the name of a sink and the number of its dropped messages.
fn sink(call: &Call<'_>, name: Option<&str>) -> (String, u32) {
    let ring = call.running.logger.open_rings().find(|ring| name == Some(&*ring.name));
    (name.unwrap_or("none").to_owned(), ring.map_or(0, |ring| ring.dropped()))
}

fn show(call: &mut Call<'_>) {
    let traces = call.running.logger.traces();
    let asked = call.arg(0).to_owned();
    if asked.is_empty() {
        let mut text = "Supported trace sources and states (.=stopped, w=waiting, R=running) :\n".to_owned();
        for (source, settings) in traces.all() {
            let (state, (sink, dropped)) = (settings.state.letter(), sink(call, settings.sink.as_deref()));
            let (name, description) = (source.name, source.description);
            // Writing to a string does not fail.
            let _ = writeln!(text, " [{state}] {name:<10} -> {sink} [drp {dropped}]  [{description}]");
        }
        call.answer_as((6, "info"), text);
        return;
    }
    if !call.may(StatsLevel::Operator) {
        return;
    }
    let Some(source) = Traces::find(&asked) else {
        call.say("No such trace source");
        return;
    };
    let (sink, dropped) = sink(call, traces.settings()[source].sink.as_deref());
    let name = TRACE_SOURCES[source].name;
    let events = traces.status(source);
    call.answer_as((4, "warning"), format!("Trace status for {name}:\n  - sink: {sink} [{dropped} dropped]\n{events}"));
}
