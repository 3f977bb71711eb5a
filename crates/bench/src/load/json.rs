//! The report as JSON, described in `docs/reference/load-report.md`.
//!
//! Names and units don't change within a schema number; a field may be added. Every field is always present; fields
//! that do not apply are `null`.

use hdrhistogram::Histogram;
use sluicegate_report::quoted;

use super::csv;
use super::outcome::{Outcome, ProcessTime};
use super::plan::{Correction, Plan, ProtocolPlan};
use super::stats::{ConnectFault, Faults, RequestFault};
use super::text::QUANTILES;
use super::tls::{TlsPlan, Verify, Version};

/// The version of the document's schema.
pub(super) const SCHEMA: &str = "sluicegate-load/1";

/// Writes objects with one field per line.
pub(super) struct Writer {
    out: String,
    depth: usize,
    is_first: bool,
}

impl Writer {
    fn name(&mut self, name: &str) {
        if !self.is_first {
            self.out.push(',');
        }
        self.out.push('\n');
        self.out.push_str(&"  ".repeat(self.depth));
        self.is_first = false;
        if !name.is_empty() {
            self.out.push_str(&quoted(name));
            self.out.push_str(": ");
        }
    }

    pub(super) fn field(&mut self, name: &str, value: impl Value) {
        self.name(name);
        value.write(&mut self.out);
    }

    pub(super) fn nest(&mut self, name: &str, brackets: [char; 2], fields: impl FnOnce(&mut Writer)) {
        self.name(name);
        self.out.push(brackets[0]);
        self.depth += 1;
        self.is_first = true;
        fields(self);
        self.depth -= 1;
        if !self.is_first {
            self.out.push('\n');
            self.out.push_str(&"  ".repeat(self.depth));
        }
        self.is_first = false;
        self.out.push(brackets[1]);
    }

    pub(super) fn object(&mut self, name: &str, fields: impl FnOnce(&mut Writer)) {
        self.nest(name, ['{', '}'], fields);
    }
}

pub(super) trait Value {
    fn write(&self, out: &mut String);
}

impl Value for u64 {
    fn write(&self, out: &mut String) {
        out.push_str(itoa::Buffer::new().format(*self));
    }
}

impl Value for bool {
    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

impl Value for f64 {
    fn write(&self, out: &mut String) {
        // JSON has no infinities; no value can be infinite, and `null` would stand for one.
        if self.is_finite() {
            out.push_str(&format!("{self:.3}"));
        } else {
            out.push_str("null");
        }
    }
}

/// A number with so many decimals.
pub(super) struct Fixed(pub(super) f64, pub(super) usize);

impl Value for Fixed {
    fn write(&self, out: &mut String) {
        let Fixed(number, decimals) = *self;
        out.push_str(&if number.is_finite() { format!("{number:.decimals$}") } else { "null".to_owned() });
    }
}

impl Value for &str {
    fn write(&self, out: &mut String) {
        out.push_str(&quoted(self));
    }
}

impl<T: Value> Value for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            Some(value) => value.write(out),
            None => out.push_str("null"),
        }
    }
}

/// Returns the whole document.
pub(super) fn report(plan: &Plan, outcome: &Outcome) -> String {
    document(|w| run(w, plan, outcome))
}

/// Returns the document of two runs of one comparison, by their names.
pub(super) fn both(one: (&str, &Plan, &Outcome), other: (&str, &Plan, &Outcome)) -> String {
    document(|w| {
        for (name, plan, outcome) in [one, other] {
            w.object(name, |w| run(w, plan, outcome));
        }
    })
}

pub(super) fn document(fields: impl FnOnce(&mut Writer)) -> String {
    let mut writer = Writer { out: String::from("{"), depth: 1, is_first: true };
    fields(&mut writer);
    writer.out.push_str("\n}\n");
    writer.out
}

fn run(w: &mut Writer, plan: &Plan, outcome: &Outcome) {
    w.field("schema", SCHEMA);
    w.field("program", concat!("sluicegate ", env!("CARGO_PKG_VERSION")));
    w.field("protocol", plan.protocol.name());
    w.field("server", plan.load.server.to_string().as_str());
    w.field("started_unix_ms", outcome.started_unix_ms);
    w.field("interrupted", outcome.is_interrupted);
    settings(w, plan);
    w.field("elapsed_s", outcome.elapsed_s);
    counts(w, plan, outcome);
    latencies(w, plan, outcome);
    series(w, outcome);
    processes(w, outcome);
    w.nest("warnings", ['[', ']'], |w| {
        for warning in &outcome.warnings {
            w.field("", warning.as_str());
        }
    });
}

fn settings(w: &mut Writer, plan: &Plan) {
    let load = &plan.load;
    let seconds = |ns: u64| ns as f64 / 1e9;
    w.object("settings", |w| {
        w.field("loop", if load.rate.is_some() { "open" } else { "closed" });
        w.field("rate_per_s", load.rate);
        w.field("arrivals", load.rate.map(|_| format!("{:?}", load.arrivals).to_lowercase()).as_deref());
        w.field("connections", load.connections as u64);
        w.field("threads", load.threads as u64);
        w.field("duration_s", load.duration_ns.map(seconds));
        w.field("requests", load.requests);
        w.field("warmup_s", seconds(load.warmup_ns));
        w.field("ramp_s", seconds(load.ramp_ns));
        let (version, is_http2) = match &plan.protocol {
            ProtocolPlan::Http(_) => (Some("1.1"), false),
            ProtocolPlan::Http2(_) => (Some("2"), true),
            ProtocolPlan::Redis(_) => (None, false),
        };
        w.field("http_version", version);
        w.field("pipeline", if is_http2 { 1 } else { load.pipeline as u64 });
        w.field("streams", is_http2.then_some(load.pipeline as u64));
        w.field("keep_alive", load.keep_alive);
        w.field("timeout_s", seconds(load.timeout_ns));
        w.field("connect_timeout_s", seconds(load.connect_timeout_ns));
        w.field("late_s", seconds(load.late_ns));
        w.field(
            "correct",
            load.correct
                .map(|correction| match correction {
                    Correction::Median => "median".to_owned(),
                    Correction::IntervalNs(ns) => format!("{:.6} s", seconds(ns)),
                })
                .as_deref(),
        );
        w.field("seed", load.seed);
        match &load.tls {
            None => w.field("tls", None::<u64>),
            Some(tls) => w.object("tls", |w| tls_settings(w, tls)),
        }
    });
}

fn tls_settings(w: &mut Writer, tls: &TlsPlan) {
    w.field("server_name", tls.server_name.as_str());
    let verify = match &tls.verify {
        Verify::System => "system",
        Verify::Files(_) => "file",
        Verify::Nobody => "none",
    };
    w.field("verify", verify);
    w.field("version", tls.version.map(Version::name));
    w.field("client_certificate", tls.certificate.is_some());
    w.field("resume", tls.resume);
}

fn tls(w: &mut Writer, plan: &Plan, outcome: &Outcome) {
    let tls = &outcome.stats.tls;
    if plan.load.tls.is_none() {
        return w.field("tls", None::<u64>);
    }
    w.object("tls", |w| {
        w.field("full", tls.full);
        w.field("full_retried", tls.retried);
        w.field("resumed", tls.resumed);
        w.field("failed", tls.failed());
        w.nest("parameters", ['[', ']'], |w| {
            for (parameters, count) in &tls.parameters {
                w.object("", |w| {
                    w.field("version", parameters.version().as_str());
                    w.field("cipher_suite", parameters.suite().as_str());
                    w.field("group", parameters.group().as_deref());
                    w.field("alpn", parameters.protocol().as_deref());
                    w.field("handshakes", *count);
                });
            }
        });
        w.nest("errors", ['[', ']'], |w| {
            for (text, count) in &tls.errors {
                w.object("", |w| {
                    w.field("text", text.as_str());
                    w.field("count", *count);
                });
            }
        });
        times(w, "handshake_us", Some(&tls.handshake));
    });
}

fn counts(w: &mut Writer, plan: &Plan, outcome: &Outcome) {
    let stats = &outcome.stats;
    w.object("requests", |w| {
        w.field("intended", stats.sent + stats.unsent);
        w.field("sent", stats.sent);
        w.field("answered", stats.answered);
        w.field("failed", stats.failed());
        w.field("unanswered", stats.unanswered);
        w.field("unsent", stats.unsent);
    });
    w.object("warmup", |w| {
        w.field("sent", outcome.warmup.sent);
        w.field("answered", outcome.warmup.answered);
        w.field("failed", outcome.warmup.failed());
        w.field("unanswered", outcome.warmup.unanswered);
    });
    w.field("answered_per_s", outcome.rate());
    w.object("bytes", |w| {
        w.field("sent", stats.bytes_sent);
        w.field("received", stats.bytes_received);
        w.field("bodies", stats.body_bytes);
    });
    let is_http = matches!(plan.protocol, ProtocolPlan::Http(_) | ProtocolPlan::Http2(_));
    if is_http {
        w.object("status_classes", |w| {
            for class in 1..6 {
                let total: u64 = stats.statuses[class * 100..class * 100 + 100].iter().sum();
                w.field(&format!("{class}xx"), total);
            }
            w.field("other", stats.statuses[..100].iter().chain(&stats.statuses[600..]).sum::<u64>());
        });
        w.object("statuses", |w| {
            for (status, count) in stats.statuses.iter().enumerate().filter(|(_, count)| **count > 0) {
                w.field(&status.to_string(), *count);
            }
        });
        w.field("replies", None::<u64>);
    } else {
        w.field("status_classes", None::<u64>);
        w.field("statuses", None::<u64>);
        let (nulls, errors) = (stats.nulls(), stats.error_replies());
        w.object("replies", |w| {
            w.field("values", stats.answered - nulls - errors);
            w.field("nulls", nulls);
            w.field("errors", errors);
            w.object("codes", |w| {
                for (code, count) in &stats.codes {
                    w.object(code, |w| {
                        w.field("count", *count);
                        w.field("example", stats.code_examples.get(code).map(String::as_str));
                    });
                }
            });
        });
    }
    faults(w, "failures", &stats.faults, RequestFault::ALL.iter().map(|(_, name)| *name));
    faults(w, "connect_failures", &stats.connect_faults, ConnectFault::ALL.iter().map(|(_, name)| *name));
    w.object("connections", |w| {
        w.field("made", stats.connected);
        w.field("made_again", stats.reconnected);
        w.field("closed_idle", stats.closed_idle);
        w.field("unasked_messages", stats.unasked);
    });
    tls(w, plan, outcome);
}

fn faults(w: &mut Writer, title: &str, faults: &Faults, names: impl Iterator<Item = &'static str>) {
    w.object(title, |w| {
        for name in names {
            w.object(name, |w| {
                w.field("count", faults.count(name));
                w.field("example", faults.example(name));
            });
        }
    });
}

fn latencies(w: &mut Writer, plan: &Plan, outcome: &Outcome) {
    let stats = &outcome.stats;
    let is_open = plan.load.rate.is_some();
    times(w, "latency_us", Some(&outcome.latency));
    times(w, "corrected_us", outcome.corrected.as_ref());
    times(w, "service_us", is_open.then_some(&stats.service));
    times(w, "send_lag_us", is_open.then_some(&stats.lag));
    if is_open {
        w.object("late_sends", |w| {
            w.field("by_generator", stats.late_generator);
            w.field("by_connections", stats.late_connections);
        });
    } else {
        w.field("late_sends", None::<u64>);
    }
    times(w, "connect_us", Some(&stats.connect));
    w.nest("commands", ['[', ']'], |w| {
        for (name, command) in outcome.commands.iter().zip(&stats.commands) {
            w.object("", |w| {
                w.field("name", name.as_str());
                w.field("answered", command.answered);
                w.field("nulls", command.nulls);
                w.field("errors", command.errors);
                times(w, "latency_us", Some(&command.latency));
            });
        }
    });
}

fn series(w: &mut Writer, outcome: &Outcome) {
    w.object("series", |w| {
        w.field("step_s", outcome.stats.step_s as u64);
        w.nest("steps", ['[', ']'], |w| {
            for step in csv::steps(&outcome.stats) {
                w.object("", |w| {
                    w.field("sent", step.sent);
                    w.field("answered", step.latency.len());
                    w.field("errors", step.errors);
                    w.field("failed", step.failed);
                    w.field("mean_us", step.latency.mean());
                    for (name, quantile) in [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99)] {
                        w.field(name, step.latency.value_at_quantile(quantile));
                    }
                    w.field("max_us", step.latency.max());
                });
            }
        });
    });
}

fn times(w: &mut Writer, name: &str, histogram: Option<&Histogram<u64>>) {
    let Some(histogram) = histogram else { return w.field(name, None::<u64>) };
    let us = |ns: u64| ns as f64 / 1e3;
    w.object(name, |w| {
        w.field("count", histogram.len());
        w.field("min", us(if histogram.is_empty() { 0 } else { histogram.min() }));
        w.field("mean", histogram.mean() / 1e3);
        w.field("stdev", histogram.stdev() / 1e3);
        for (_, name, quantile) in QUANTILES {
            w.field(name, us(histogram.value_at_quantile(quantile)));
        }
        w.field("max", us(histogram.max()));
    });
}

fn processes(w: &mut Writer, outcome: &Outcome) {
    let process = |w: &mut Writer, time: &ProcessTime| {
        w.field("pid", u64::from(time.pid));
        w.field("user_s", time.user_s);
        w.field("system_s", time.system_s);
    };
    w.object("generator", |w| {
        process(w, &outcome.own);
        w.field("threads_cpu_s", outcome.cpu_s);
        w.field("cpu_us_per_request", outcome.cpu_per_request_us(outcome.cpu_s));
        w.field("busiest_thread", outcome.busiest);
    });
    match &outcome.peer {
        None => w.field("peer", None::<u64>),
        Some(peer) => w.object("peer", |w| {
            process(w, peer);
            w.field("cpu_us_per_request", outcome.cpu_per_request_us(peer.user_s + peer.system_s));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_numbers_are_json() {
        assert_eq!(quoted("a\"b\\c\n\x01é"), "\"a\\\"b\\\\c\\n\\u0001é\"");
        let mut out = String::new();
        f64::INFINITY.write(&mut out);
        1.5f64.write(&mut out);
        assert_eq!(out, "null1.500");
    }
}
