//! Commands about names that are resolved while the process runs.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use crate::resolve::{Counters, Resolver};
use crate::running::Running;
use crate::sample::append_json_string;
use crate::stats::Format;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "resolvers"],
    arguments: "[id]",
    help: "dumps counters from all resolvers section and associated name servers",
    level: StatsLevel::User,
    run: Run::Now(show_resolvers),
}];

/// The figures of a name server in HAProxy's order.
type Figures = [(&'static str, u64); 15];

/// Returns the figures of a name server.
fn figures(counters: &Counters) -> Figures {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    [
        ("sent", value(&counters.sent)),
        ("snd_error", value(&counters.snd_error)),
        ("valid", value(&counters.valid)),
        ("update", value(&counters.update)),
        // HAProxy never increments this one, nor `timeout`.
        ("cname", 0),
        ("cname_error", value(&counters.cname_error)),
        ("any_err", value(&counters.any_err)),
        ("nx", value(&counters.nx)),
        ("timeout", 0),
        ("refused", value(&counters.refused)),
        ("other", value(&counters.other)),
        ("invalid", value(&counters.invalid)),
        ("too_big", value(&counters.too_big)),
        ("truncated", value(&counters.truncated)),
        ("outdated", value(&counters.outdated)),
    ]
}

/// Returns the name servers of a section with their figures.
fn servers(resolver: &Resolver) -> impl Iterator<Item = (&str, Figures)> {
    let all = resolver.config.nameservers.iter().zip(&resolver.counters);
    all.map(|(server, counters)| (&*server.name, figures(counters)))
}

fn show_resolvers(call: &mut Call<'_>) {
    let directory = call.running.directory.clone();
    let asked = call.arg(0).to_owned();
    if !asked.is_empty() && directory.resolver(&asked).is_none() {
        return call.say("Can't find that resolvers section");
    }
    let mut text = String::new();
    let found = directory.resolvers.iter().filter(|resolver| asked.is_empty() || *asked == *resolver.config.name);
    for resolver in found {
        // Writing to a string can't fail.
        let _ = writeln!(text, "Resolvers section {}", resolver.config.name);
        for (name, figures) in servers(resolver) {
            let _ = writeln!(text, " nameserver {name}:");
            for (name, value) in figures {
                let _ = writeln!(text, "  {:<13}{value}", format!("{name}:"));
            }
        }
    }
    call.out.push(text);
}

/// Returns what `show stat domain resolvers` prints: name servers with their names, sections and figures.
pub(super) fn stat(running: &Running, format: Format) -> String {
    let mut text = String::new();
    let mut place = 0;
    for section in &running.directory.resolvers {
        for (server, figures) in servers(section) {
            // Statistics have another name for it.
            let figures = figures.map(|(name, value)| (if name == "snd_error" { "send_error" } else { name }, value));
            let texts = [("id", server), ("pid", &*section.config.name)];
            // Writing to a string can't fail.
            let _ = match format {
                Format::Plain => append_line(&mut text, place == 0, texts, figures),
                Format::Typed => append_typed(&mut text, texts, figures),
                Format::Json => append_json(&mut text, place == 0, texts, figures),
            };
            place += 1;
        }
    }
    match format {
        Format::Json => format!("[{text}]\n"),
        Format::Plain | Format::Typed => text,
    }
}

type Texts<'a> = [(&'static str, &'a str); 2];

fn append_line(out: &mut String, first: bool, texts: Texts<'_>, figures: Figures) -> std::fmt::Result {
    if first {
        out.push_str("# ");
        texts.iter().try_for_each(|(name, _)| write!(out, "{name},"))?;
        figures.iter().try_for_each(|(name, _)| write!(out, "{name},"))?;
        out.push('\n');
    }
    texts.iter().try_for_each(|(_, text)| write!(out, "{text},"))?;
    figures.iter().try_for_each(|(_, value)| write!(out, "{value},"))?;
    out.push('\n');
    Ok(())
}

fn append_typed(out: &mut String, texts: Texts<'_>, figures: Figures) -> std::fmt::Result {
    for (position, (name, text)) in texts.iter().enumerate() {
        writeln!(out, "N.{position}.{name}:CGP:str:{text}")?;
    }
    for (position, (name, value)) in figures.iter().enumerate() {
        writeln!(out, "N.{}.{name}:MGP:u64:{value}", position + texts.len())?;
    }
    Ok(())
}

fn append_json(out: &mut String, first: bool, texts: Texts<'_>, figures: Figures) -> std::fmt::Result {
    let field = |out: &mut String, position: usize, name: &str, (origin, kind): (&str, &str)| {
        write!(
            out,
            "{}{{\"field\":{{\"pos\":{position},\"name\":\"{name}\"}},\"tags\":{{\"origin\":\"{origin}\",\"nature\":\"Gauge\",\
             \"scope\":\"Process\"}},\"value\":{{\"type\":\"{kind}\",\"value\":",
            if position == 0 { "" } else { "," }
        )
    };
    out.push_str(if first { "[" } else { ",[" });
    for (position, (name, text)) in texts.iter().enumerate() {
        field(out, position, name, ("Config", "str"))?;
        append_json_string(text, out);
        out.push_str("}}");
    }
    for (position, (name, value)) in figures.iter().enumerate() {
        field(out, position + texts.len(), name, ("Metric", "u64"))?;
        write!(out, "{value}}}}}")?;
    }
    out.push(']');
    Ok(())
}
