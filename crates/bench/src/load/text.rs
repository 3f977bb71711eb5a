//! The report as text.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::outcome::{Outcome, ProcessTime};
use super::plan::{Plan, ProtocolPlan};
use super::reactor::Tick;
use super::stats::{ConnectFault, Faults, RequestFault, TlsStats};

pub(super) use sluicegate_report::time;

/// The quantiles of the reports, each with its name in the text, its name in JSON and its value.
pub(super) const QUANTILES: [(&str, &str, f64); 8] = [
    ("p50", "p50", 0.5),
    ("p75", "p75", 0.75),
    ("p90", "p90", 0.9),
    ("p95", "p95", 0.95),
    ("p99", "p99", 0.99),
    ("p99.9", "p99_9", 0.999),
    ("p99.99", "p99_99", 0.9999),
    ("p99.999", "p99_999", 0.99999),
];

pub(super) fn amount(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.1} kB", bytes / 1e3),
        ..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn row(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "{name:<13} {text}");
}

/// Returns the line that reports one interval.
pub(super) fn live_line(interval_ns: u64, tick: &Tick) -> String {
    let interval_s = tick.length_ns.max(1) as f64 / 1e9;
    let at_s = (tick.number * interval_ns + tick.length_ns) as f64 / 1e9;
    let quantile = |quantile| time(tick.latency.value_at_quantile(quantile));
    format!(
        "{at_s:>8.1} s  {:>10.0} sent/s  {:>10.0} answered/s  p50 {:>8}  p99 {:>8}  max {:>8}  failed {}",
        tick.sent as f64 / interval_s,
        tick.latency.len() as f64 / interval_s,
        quantile(0.5),
        quantile(0.99),
        time(tick.latency.max()),
        tick.failed
    )
}

/// Returns the whole report.
pub(super) fn report(plan: &Plan, outcome: &Outcome) -> String {
    let mut out = String::new();
    let (load, stats) = (&plan.load, &outcome.stats);
    let _ = writeln!(out, "{}\n{}\n", subject(plan), manner(plan, outcome));
    let mut counts = format!("{} sent  {} answered  {} failed", stats.sent, stats.answered, stats.failed());
    if stats.unanswered > 0 {
        let _ = write!(counts, "  {} cut off by the interrupt", stats.unanswered);
    }
    if load.rate.is_some() || stats.unsent > 0 {
        let _ = write!(counts, "  {} never sent", stats.unsent);
    }
    row(&mut out, "requests", &counts);
    if outcome.warmup.sent > 0 {
        let warmup = &outcome.warmup;
        let text = format!(
            "{} sent  {} answered  {} failed (not counted above)",
            warmup.sent,
            warmup.answered,
            warmup.failed()
        );
        row(&mut out, "warm-up", &text);
    }
    let per_second = |bytes: u64| amount(bytes as f64 / outcome.elapsed_s.max(1e-9));
    row(
        &mut out,
        "rate",
        &format!(
            "{:.1}/s  in {}/s  out {}/s",
            outcome.rate(),
            per_second(stats.bytes_received),
            per_second(stats.bytes_sent)
        ),
    );
    answers(&mut out, plan, outcome);
    faults(&mut out, "failed", &stats.faults, RequestFault::ALL.iter().map(|(_, name)| *name));
    faults(&mut out, "connecting", &stats.connect_faults, ConnectFault::ALL.iter().map(|(_, name)| *name));
    let mut connections = stats.connected.to_string();
    if stats.reconnected > 0 {
        let _ = write!(connections, " ({} reconnects)", stats.reconnected);
    }
    for (count, what) in
        [(stats.closed_idle, "closed by the peer while idle"), (stats.unasked, "messages that answered nothing")]
    {
        if count > 0 {
            let _ = write!(connections, ", {count} {what}");
        }
    }
    row(&mut out, "connections", &connections);
    if load.tls.is_some() {
        handshakes(&mut out, &stats.tls);
    }
    out.push('\n');
    times(&mut out, plan, outcome);
    if load.has_histogram {
        bars(&mut out, &outcome.latency);
    }
    out.push('\n');
    cpu(&mut out, outcome);
    for warning in &outcome.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if outcome.is_interrupted {
        out.push_str("interrupted\n");
    }
    out
}

pub(super) fn subject(plan: &Plan) -> String {
    let tls = if plan.load.tls.is_some() { " over TLS" } else { "" };
    match &plan.protocol {
        ProtocolPlan::Http(http) | ProtocolPlan::Http2(http) => {
            let version = if matches!(plan.protocol, ProtocolPlan::Http2(_)) { "http/2" } else { "http" };
            let templates = plural(http.count(), "URL template");
            format!("{version} {} to {}{tls}, {templates}", http.method(), plan.load.server)
        }
        ProtocolPlan::Redis(redis) => {
            format!("redis {} to {}{tls}", redis.names().collect::<Vec<_>>().join(" "), plan.load.server)
        }
    }
}

fn handshakes(out: &mut String, tls: &TlsStats) {
    let is_one = tls.parameters.len() == 1;
    let mut title = "tls";
    for (parameters, count) in &tls.parameters {
        let count = if is_one { String::new() } else { format!(" ({count})") };
        row(out, title, &format!("{}{count}", printable(&parameters.to_string())));
        title = "";
    }
    let retried = if tls.retried > 0 { format!(" ({} with a HelloRetryRequest)", tls.retried) } else { String::new() };
    row(out, "handshakes", &format!("{} full{retried}  {} resumed  {} failed", tls.full, tls.resumed, tls.failed()));
    for (text, count) in &tls.errors {
        row(out, "", &format!("{count}: {}", printable(text)));
    }
}

pub(super) fn manner(plan: &Plan, outcome: &Outcome) -> String {
    let load = &plan.load;
    let mut text = match load.rate {
        Some(rate) => format!("open loop, {rate}/s {:?}", load.arrivals).to_lowercase(),
        None => "closed loop".to_owned(),
    };
    let _ = write!(text, ", {}, {}", plural(load.connections, "connection"), plural(load.threads, "thread"));
    if let ProtocolPlan::Http2(_) = plan.protocol {
        let _ = write!(text, ", {} each", plural(load.pipeline, "stream"));
    } else if load.pipeline > 1 {
        let _ = write!(text, ", pipeline {}", load.pipeline);
    }
    if !load.keep_alive {
        text.push_str(", a connection per request");
    }
    let _ = write!(text, ", {:.2} s", outcome.elapsed_s);
    text
}

fn answers(out: &mut String, plan: &Plan, outcome: &Outcome) {
    let stats = &outcome.stats;
    if let ProtocolPlan::Redis(_) = plan.protocol {
        let errors = stats.error_replies();
        let values = stats.answered - errors - stats.nulls();
        row(out, "replies", &format!("{values} values  {} nulls  {errors} errors", stats.nulls()));
        for (code, count) in &stats.codes {
            let example = stats.code_examples.get(code).map_or("", String::as_str);
            row(out, "", &format!("{code} {count}: {}", printable(example)));
        }
        return;
    }
    let mut text = String::new();
    for class in 1..10 {
        let codes = &stats.statuses[class * 100..class * 100 + 100];
        let total: u64 = codes.iter().sum();
        if total > 0 {
            let seen: Vec<String> = codes
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(|(code, count)| format!("{}: {count}", class * 100 + code))
                .collect();
            let _ = write!(text, "{class}xx {total} ({})  ", seen.join(", "));
        }
    }
    row(out, "status", if text.is_empty() { "none" } else { text.trim_end() });
}

pub(super) fn faults(out: &mut String, title: &str, faults: &Faults, names: impl Iterator<Item = &'static str>) {
    let mut title = title;
    for name in names.filter(|name| faults.count(name) > 0) {
        let example = faults.example(name).map_or(String::new(), |text| format!(": {}", printable(text)));
        row(out, title, &format!("{name} {}{example}", faults.count(name)));
        title = "";
    }
}

/// Returns a peer's text with unprintable characters replaced.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '.' } else { c }).collect()
}

pub(super) fn times(out: &mut String, plan: &Plan, outcome: &Outcome) {
    let stats = &outcome.stats;
    if outcome.latency.is_empty() && stats.connect.is_empty() {
        return;
    }
    let mut head = String::new();
    for (name, _, _) in QUANTILES {
        let _ = write!(head, "{name:>9}");
    }
    row(out, "", &format!("{head}{:>9}{:>9}", "max", "mean"));
    let mut line = |name: &str, histogram: &Histogram<u64>| {
        if histogram.is_empty() {
            return;
        }
        let mut text = String::new();
        for (_, _, quantile) in QUANTILES {
            let _ = write!(text, "{:>9}", time(histogram.value_at_quantile(quantile)));
        }
        let _ = write!(text, "{:>9}{:>9}", time(histogram.max()), time(histogram.mean() as u64));
        row(out, name, &text);
    };
    line("latency", &outcome.latency);
    if let Some(corrected) = &outcome.corrected {
        line("corrected", corrected);
    }
    line("service", &stats.service);
    line("send lag", &stats.lag);
    line("connect", &stats.connect);
    line("handshake", &stats.tls.handshake);
    // A batch is answered as one, so every command in it has the same latency.
    let is_batched = plan.load.pipeline > 1 && !matches!(plan.protocol, ProtocolPlan::Http2(_));
    if outcome.commands.len() > 1 && is_batched {
        let text = "not measured: with --pipeline the commands of a batch are answered together; use --pipeline 1";
        row(out, "by command", text);
    } else if outcome.commands.len() > 1 {
        for (name, command) in outcome.commands.iter().zip(&stats.commands) {
            line(&format!("  {name}"), &command.latency);
        }
    }
    if plan.load.rate.is_some() {
        let late = format!(
            "{} by the generator, {} for want of a free connection (later than {})",
            stats.late_generator,
            stats.late_connections,
            time(plan.load.late_ns)
        );
        row(out, "late sends", &late);
    }
}

/// The number of bars of a histogram, and the length of the longest.
const BARS: u64 = 11;
const BAR: u64 = 40;

/// Writes a histogram from the shortest latency to the 99.9th percentile; longer ones are in the last bar.
fn bars(out: &mut String, latency: &Histogram<u64>) {
    if latency.is_empty() {
        return;
    }
    out.push('\n');
    let (from, to) = (latency.min(), latency.value_at_quantile(0.999).max(latency.min() + BARS));
    let upper = |bar: u64| if bar + 1 == BARS { u64::MAX } else { from + (to - from) * (bar + 1) / BARS };
    let mut counts = [0u64; BARS as usize];
    let mut bar = 0;
    for step in latency.iter_recorded() {
        while latency.median_equivalent(step.value_iterated_to()) > upper(bar) {
            bar += 1;
        }
        counts[bar as usize] += step.count_at_value();
    }
    let most = counts.iter().max().copied().unwrap_or(1).max(1);
    for (bar, count) in (0..BARS).zip(counts) {
        let title = if bar + 1 == BARS { format!("> {}", time(upper(bar - 1))) } else { time(upper(bar)) };
        let line = "■".repeat((count * BAR).div_ceil(most) as usize);
        row(out, &format!("{title:>12}"), format!("{count:>10} {line}").trim_end());
    }
}

pub(super) fn cpu(out: &mut String, outcome: &Outcome) {
    let own = format!(
        "{:.2} µs CPU per request, busiest thread {:.0} % of a core",
        outcome.cpu_per_request_us(outcome.cpu_s),
        outcome.busiest * 100.0
    );
    row(out, "generator", &own);
    if let Some(ProcessTime { pid, user_s, system_s }) = outcome.peer {
        let per_request = |seconds| outcome.cpu_per_request_us(seconds);
        let text = format!(
            "{:.2} µs CPU per request ({:.2} user, {:.2} system), pid {pid}",
            per_request(user_s + system_s),
            per_request(user_s),
            per_request(system_s)
        );
        row(out, "peer", &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_all_counts() {
        let mut latency = crate::load::stats::histogram();
        for us in 1..=1000u64 {
            latency.saturating_record(us * 1000);
        }
        latency.saturating_record(60_000_000_000);
        let mut out = String::new();
        bars(&mut out, &latency);
        let lines: Vec<Vec<&str>> = out.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((lines.len(), lines[0][1], lines[10][0], lines[10][2]), (11, "µs", ">", "µs"), "{out}");
        let sum: u64 =
            lines.iter().map(|words| words[if words[0] == ">" { 3 } else { 2 }].parse::<u64>().unwrap()).sum();
        assert_eq!(sum, 1001, "{out}");
    }

    #[test]
    fn times_have_units() {
        for (ns, text) in [
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (12_340, "12.3 µs"),
            (999_000, "999 µs"),
            (1_500_000, "1.50 ms"),
            (2_000_000_000, "2.00 s"),
        ] {
            assert_eq!(time(ns), text);
        }
        assert_eq!((amount(12.0), amount(12_340.0)), ("12 B".into(), "12.3 kB".into()));
        assert_eq!(printable("a\x1b[31mb\r\n"), "a.[31mb..");
    }
}
