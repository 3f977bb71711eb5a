//! The reports of `bench capacity`: a table that grows with the steps, what follows from it, JSON, and charts.

use std::fmt::Write as _;

use sluicegate_report::{Axis, Chart, Line, Picture, Scale, Unit};

use super::probe::Kind;
use super::{ERRORS, FLAT, Found, SLOW, Step};
use crate::load::json::{self, Writer};
use crate::load::text::time;

/// The version of the document's schema.
const SCHEMA: &str = "sluicegate-capacity/1";

/// The title of the second table.
pub(super) const RATES_HEADER: &str = "\nopen loop, the rate grows\n";

/// Returns the lines before the first step.
pub(super) fn header(found: &Found) -> String {
    format!(
        "{}\n\nclosed loop, the connections grow\n{:>12}{:>12}{:>12}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}\n",
        found.target, "connections", "wanted/s", "rate/s", "p50", "p99", "errors", "failed", "sessions", "queued"
    )
}

/// Returns the line of a step.
pub(super) fn row(step: &Step) -> String {
    let (sessions, queued) = in_use(step)
        .map_or(("-".to_owned(), "-".to_owned()), |(sessions, queued)| (sessions.to_string(), queued.to_string()));
    format!(
        "{:>12}{:>12}{:>12.1}{:>10}{:>10}{:>9}{:>9}{sessions:>9}{queued:>9}\n",
        step.connections,
        step.wanted.map_or("-".to_owned(), |wanted| format!("{wanted:.1}")),
        step.rate,
        time(step.p50),
        time(step.p99),
        step.errors,
        step.failed,
    )
}

/// Returns the sessions at the servers and the requests in their queues at once.
fn in_use(step: &Step) -> Option<(u64, u64)> {
    let rows = &step.observed.proxy.as_ref()?.rows;
    let sessions = rows.iter().filter(|row| row.kind == Kind::Server).map(|row| row.sessions).sum();
    // Requests wait for any server of the backend, or for the one to which they are bound; frontends have no queue.
    let queued = rows.iter().map(|row| row.queued).sum();
    Some((sessions, queued))
}

/// Limits for a rate.
struct Advice {
    rate: f64,
    /// Of each server.
    server_maxconn: u64,
    fullconn: u64,
    /// Of frontends and of the process.
    maxconn: u64,
    servers: u64,
}

impl Advice {
    /// Requests at the servers are those that come in the time of one (Little's law), and a margin more. The limit of
    /// connections has room for as many again, which wait.
    fn of(found: &Found) -> Advice {
        let servers = found.servers().len().max(1) as u64;
        let at_once = found.rate() * found.time_s() * (1.0 + found.margin);
        let server_maxconn = (at_once / servers as f64).ceil().max(1.0) as u64;
        let fullconn = server_maxconn * servers;
        let knee = found.knee.map_or(0, |knee| found.steps[knee].connections);
        let maxconn = (fullconn * 2).max((knee as f64 * (1.0 + found.margin)).ceil() as u64);
        Advice { rate: found.rate(), server_maxconn, fullconn, maxconn, servers }
    }

    /// Returns the time that the last of the waiting requests waits, in seconds.
    fn wait_s(&self) -> f64 {
        self.maxconn.saturating_sub(self.fullconn) as f64 / self.rate.max(f64::MIN_POSITIVE)
    }
}

/// Returns what follows from the steps.
pub(super) fn conclusions(found: &Found) -> String {
    let mut out = format!("\n{}\n", found.end);
    let Some(knee) = found.knee.map(|knee| &found.steps[knee]) else {
        for limit in &found.limits {
            let _ = writeln!(out, "limit          {}", limit.text);
        }
        return out;
    };
    let _ = writeln!(out, "highest rate   {:.1}/s; {} connections have 95 % of it", found.best(), knee.connections);
    match found.sustained.map(|sustained| &found.rates[sustained]) {
        Some(step) => {
            let _ = writeln!(out, "sustained      {:.1}/s, 99 % of the responses within {}", step.rate, time(step.p99));
        }
        None => match found.rates.last() {
            Some(step) if step.resources.is_some() => {
                out.push_str("sustained      not known: the earlier steps have used up the ports or descriptors of this machine\n");
            }
            Some(_) => out.push_str("sustained      none: half of the highest rate is too much already\n"),
            None => {}
        },
    }
    if found.limits.is_empty() {
        let text = match found.end.as_str() {
            "all steps are made" => "none was reached: more connections may give more",
            _ => {
                "not found: no limit of the proxy, no processor; the network, or what the proxy does not tell (--stats, --pid)"
            }
        };
        let _ = writeln!(out, "limit          {text}");
    }
    for (number, limit) in found.limits.iter().enumerate() {
        let _ = writeln!(out, "{:<14} {}", if number == 0 { "limit" } else { "also" }, limit.text);
    }
    law(&mut out, found);
    let advice = Advice::of(found);
    let _ = write!(
        out,
        "\nfor {:.1}/s, with a margin of {:.0} %:\n  server maxconn  {:<8} on each of {}: {:.1}/s x {} x {:.2}\n  \
         fullconn        {:<8} of the backend: all servers together\n  \
         maxconn         {:<8} of frontend and process: as many again may wait\n  \
         timeout queue   {:<8} longer than the last of them waits\n",
        advice.rate,
        found.margin * 100.0,
        advice.server_maxconn,
        if advice.servers == 1 { "1 server".to_owned() } else { format!("{} servers", advice.servers) },
        advice.rate,
        time((found.time_s() * 1e9) as u64),
        1.0 + found.margin,
        advice.fullconn,
        advice.maxconn,
        time((advice.wait_s() * 1e9) as u64),
    );
    for warning in &found.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

/// Compares the servers' limits with rate x time.
fn law(out: &mut String, found: &Found) {
    let servers = found.servers();
    let Some(limits) = servers.iter().copied().collect::<Option<Vec<u64>>>().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let (maxconn, time_s) = (limits.iter().sum::<u64>(), found.time_s());
    let needed = found.best() * time_s;
    let allowed = maxconn as f64 / time_s.max(f64::MIN_POSITIVE);
    let _ = writeln!(
        out,
        "rate x time    {:.1}/s x {} = {needed:.1} requests at once; the servers' maxconn is {maxconn}, which allows {allowed:.1}/s",
        found.best(),
        time((time_s * 1e9) as u64)
    );
}

/// Returns the document.
pub(super) fn document(found: &Found) -> String {
    json::document(|w| {
        w.field("schema", SCHEMA);
        w.field("target", found.target.as_str());
        w.object("rules", |w| {
            w.field("errors", ERRORS);
            w.field("flat", FLAT);
            w.field("slow", SLOW);
        });
        for (name, steps) in [("connections", &found.steps), ("rates", &found.rates)] {
            w.nest(name, ['[', ']'], |w| {
                for step in steps {
                    w.object("", |w| fields(w, step));
                }
            });
        }
        w.field("end", found.end.as_str());
        w.field("highest_per_s", found.best());
        w.field("knee_connections", found.knee.map(|knee| found.steps[knee].connections));
        w.field("sustained_per_s", found.sustained.map(|sustained| found.rates[sustained].rate));
        w.field("time_s", json::Fixed(found.time_s(), 6));
        w.nest("limits", ['[', ']'], |w| {
            for limit in &found.limits {
                w.object("", |w| {
                    w.field("name", limit.name);
                    w.field("text", limit.text.as_str());
                });
            }
        });
        let advice = Advice::of(found);
        w.object("recommended", |w| {
            w.field("rate_per_s", advice.rate);
            w.field("margin", found.margin);
            w.field("server_maxconn", advice.server_maxconn);
            w.field("fullconn", advice.fullconn);
            w.field("maxconn", advice.maxconn);
            w.field("timeout_queue_s", advice.wait_s());
        });
        w.nest("warnings", ['[', ']'], |w| found.warnings.iter().for_each(|warning| w.field("", warning.as_str())));
    })
}

fn fields(w: &mut Writer, step: &Step) {
    w.field("connections", step.connections);
    w.field("wanted_per_s", step.wanted);
    w.field("rate_per_s", step.rate);
    w.field("answered", step.answered);
    w.field("errors", step.errors);
    w.field("failed", step.failed);
    w.field("unsent", step.unsent);
    w.field("p50_us", step.p50 as f64 / 1e3);
    w.field("p99_us", step.p99 as f64 / 1e3);
    let used = in_use(step);
    w.field("sessions", used.map(|(sessions, _)| sessions));
    w.field("queued", used.map(|(_, queued)| queued));
    w.nest("processes", ['[', ']'], |w| {
        for process in &step.observed.processes {
            w.object("", |w| {
                w.field("pid", u64::from(process.pid));
                w.field("cores", process.cores);
                w.field("waited_cores", process.waited);
                w.field("busiest_thread", process.busiest);
            });
        }
    });
}

/// Returns the picture.
pub(super) fn picture(found: &Found) -> Picture {
    let line = |name: &str, steps: &[Step], x: fn(&Step) -> f64, y: fn(&Step) -> f64| Line {
        name: name.to_owned(),
        points: steps.iter().map(|step| (x(step), y(step))).collect(),
    };
    let connections = || Axis::new("connections", Scale::Log, Unit::Number);
    let of_connections: fn(&Step) -> f64 = |step| step.connections as f64;
    let of_rate: fn(&Step) -> f64 = |step| step.wanted.unwrap_or(step.rate);
    let us = |title: &str, x: Axis, lines: Vec<Line>| Chart {
        title: title.to_owned(),
        x,
        y: Axis::new("", Scale::Log, Unit::Microseconds),
        lines,
        mark: None,
    };
    let mark = found.knee.map(|knee| (found.steps[knee].connections as f64, "knee".to_owned()));
    let p50: fn(&Step) -> f64 = |step| step.p50 as f64 / 1e3;
    let p99: fn(&Step) -> f64 = |step| step.p99 as f64 / 1e3;
    let mut charts = vec![
        Chart {
            title: "Responses per second".to_owned(),
            x: connections(),
            y: Axis::new("", Scale::Linear, Unit::Number),
            lines: vec![line("rate", &found.steps, of_connections, |step| step.rate)],
            mark: mark.clone(),
        },
        Chart {
            mark,
            ..us(
                "Latency by connections",
                connections(),
                vec![line("p50", &found.steps, of_connections, p50), line("p99", &found.steps, of_connections, p99)],
            )
        },
    ];
    if !found.rates.is_empty() {
        charts.push(us(
            "Latency by rate",
            Axis::new("requests per second", Scale::Linear, Unit::Number),
            vec![line("p50", &found.rates, of_rate, p50), line("p99", &found.rates, of_rate, p99)],
        ));
    }
    let advice = Advice::of(found);
    let facts = [
        ("highest rate", format!("{:.1}/s", found.best())),
        ("knee", found.knee.map_or("none".to_owned(), |knee| format!("{} connections", found.steps[knee].connections))),
        ("sustained rate", found.sustained.map_or("none".to_owned(), |at| format!("{:.1}/s", found.rates[at].rate))),
        ("limit", found.limits.first().map_or("none found".to_owned(), |limit| limit.text.clone())),
        ("server maxconn", advice.server_maxconn.to_string()),
        ("maxconn", advice.maxconn.to_string()),
    ];
    let rows = |steps: &[Step]| steps.iter().map(row).collect::<String>();
    let mut text = header(found) + &rows(&found.steps);
    if !found.rates.is_empty() {
        text += RATES_HEADER;
        text += &rows(&found.rates);
    }
    Picture {
        title: format!("Capacity of {}", found.target),
        subtitle: found.end.clone(),
        warnings: found.warnings.clone(),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        charts,
        text: text + &conclusions(found),
    }
}
