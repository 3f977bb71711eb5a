//! What passes a proxy, printed to the standard error (`filter trace`).
//!
//! The lines are those of HAProxy for the start and the end of a stream, its backend, heads, data and the ends of
//! messages. The steps of HAProxy's analysers have no counterpart here; in place of a stream's address and of its
//! analysers the lines have its number and zeros. It is meant for tests of configurations: a line is written at once.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::Config;
use sluicegate_config::model::{Filter, Mode, TraceFilter};
use sluicegate_wire::http::{Message, Version};

use crate::random::random_below;
use crate::site::Site;
use crate::stream::StreamContext;

/// The trace filters of a stream.
pub(crate) struct StreamTrace;

fn filters(site: &Site) -> impl Iterator<Item = &Arc<TraceFilter>> {
    site.config.filters.iter().filter_map(|filter| match filter {
        Filter::Trace(trace) => Some(trace),
        _ => None,
    })
}

/// Writes a line with the time and the filter's name.
fn print(filter: &TraceFilter, text: &str) {
    if filter.quiet {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = format!("{}.{:06} [{:<20}] {text}\n", now.as_secs(), now.subsec_micros(), filter.name);
    // Nobody can be told of an error of the standard error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints the trace filters of a configuration that is served from now on.
pub(crate) fn announce(config: &Config, workers: usize) {
    let all = || config.proxies.iter().flat_map(|proxy| &proxy.filters);
    let traces = || all().filter_map(|filter| if let Filter::Trace(trace) = filter { Some(trace) } else { None });
    for filter in traces() {
        let (quiet, random, hexdump) = (filter.quiet, filter.random_forwarding, filter.hexdump);
        print(filter, &format!("filter initialized [quiet={quiet} - fwd random={random} - hexdump={hexdump}]"));
    }
    for worker in 0..workers {
        for filter in traces() {
            print(filter, &format!("filter initialized for thread tid {worker}"));
        }
    }
}

fn stream_line(cx: &StreamContext, event: &str) -> String {
    format!("[strm 0x{:x}({:x}) 0x00000000 0x00000000] {event}", cx.id, cx.id)
}

/// Returns the mode and the side that a stream has reached.
fn position(cx: &StreamContext) -> (&'static str, &'static str) {
    let proxy = cx.backend.as_ref().unwrap_or(&cx.frontend);
    let mode = if proxy.config.mode == Mode::Http { "HTTP" } else { "TCP" };
    (mode, if cx.backend.is_some() { "backend" } else { "frontend" })
}

fn on_channel(cx: &StreamContext, event: &str, response: bool) -> String {
    let (mode, position) = position(cx);
    let channel = if response { "RESPONSE" } else { "REQUEST" };
    stream_line(cx, &format!("{event:<25}: channel={channel:<10} - mode={mode:<5} ({position})"))
}

impl StreamTrace {
    /// Calls `f` for each trace filter of a stream, with the side that it belongs to.
    fn each(cx: &StreamContext, mut f: impl FnMut(&Arc<TraceFilter>, &'static str)) {
        for (proxy, side) in cx.proxies().zip(["frontend", "backend"]) {
            filters(proxy).for_each(|filter| f(filter, side));
        }
    }

    /// The stream begins.
    pub(crate) fn begin(cx: &StreamContext) {
        for filter in filters(&cx.frontend) {
            print(filter, &stream_line(cx, &format!("{:<25}: filter-type=frontend", "trace_attach")));
            print(filter, &stream_line(cx, &format!("{:<25}", "trace_stream_start")));
        }
    }

    /// The stream has its backend.
    pub(crate) fn backend(cx: &StreamContext) {
        let Some(backend) = &cx.backend else { return };
        if backend.id != cx.frontend.id {
            for filter in filters(backend) {
                print(filter, &stream_line(cx, &format!("{:<25}: filter-type=backend", "trace_attach")));
            }
        }
        StreamTrace::each(cx, |filter, _| {
            let text = format!("{:<25}: backend={}", "trace_stream_set_backend", backend.config.name);
            print(filter, &stream_line(cx, &text));
        });
    }

    /// A head is about to be sent on.
    pub(crate) fn head(cx: &StreamContext, response: bool) {
        StreamTrace::each(cx, |filter, _| {
            if filter.quiet {
                return;
            }
            let head = if response { &cx.response } else { &cx.request };
            print(
                filter,
                &format!("{}\t{}", on_channel(cx, "trace_http_headers", response), start_line(head, response)),
            );
            for (_, name, value) in head.fields() {
                let field = format!("\t{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                print(filter, &stream_line(cx, &field));
            }
        });
    }

    /// The stream ends.
    pub(crate) fn end(cx: &StreamContext) {
        StreamTrace::each(cx, |filter, side| {
            if side == "backend" {
                print(filter, &stream_line(cx, &format!("{:<25}: filter-type=backend", "trace_detach")));
            }
        });
        for filter in filters(&cx.frontend) {
            print(filter, &stream_line(cx, &format!("{:<25}", "trace_stream_stop")));
            print(filter, &stream_line(cx, &format!("{:<25}: filter-type=frontend", "trace_detach")));
        }
    }
}

pub(crate) fn start_line(head: &Message, response: bool) -> String {
    // The reason is a response's target.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let version = match head.version() {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2.0",
    };
    match response {
        true => format!("{version} {} {}", head.status(), text(head.target())),
        false => format!("{} {} {version}", text(head.method()), text(head.target())),
    }
}

/// The trace filter of one body.
#[derive(Debug)]
pub(crate) struct BodyTrace {
    filter: Arc<TraceFilter>,
    /// The line of a piece of data, up to its numbers.
    payload: String,
    /// The line of the end, in HTTP.
    end: Option<String>,
    /// Bytes that have passed.
    offset: u64,
}

impl BodyTrace {
    /// Returns the filter of a stream's body.
    pub(crate) fn new(filter: Arc<TraceFilter>, cx: &StreamContext, response: bool) -> BodyTrace {
        let http = position(cx).0 == "HTTP";
        let payload = on_channel(cx, if http { "trace_http_payload" } else { "trace_tcp_payload" }, response);
        let end = http.then(|| on_channel(cx, "trace_http_end", response));
        BodyTrace { filter, payload, end, offset: 0 }
    }

    /// Receives data; returns the number of bytes that pass.
    pub(crate) fn data(&mut self, data: &[u8]) -> usize {
        let mut passed = data.len();
        if self.filter.random_forwarding {
            passed = random_below(passed as u64 + 1) as usize;
            if passed == 0 {
                passed = data.len();
            }
        }
        if !self.filter.quiet {
            let line = format!("{} - offset={} - len={} - forward={passed}", self.payload, self.offset, data.len());
            print(&self.filter, &line);
        }
        if self.filter.hexdump {
            let _ = std::io::stderr().write_all(hexdump(&data[..passed]).as_bytes());
        }
        self.offset += passed as u64;
        passed
    }

    /// Receives the end.
    pub(crate) fn end(&mut self) {
        if let Some(end) = &self.end {
            print(&self.filter, end);
        }
    }
}

/// Returns lines of 16 bytes in hexadecimal and as text.
fn hexdump(data: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in data.chunks(16).enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "\t0x{:06x}: ", at * 16);
        for place in 0..16 {
            if place == 8 {
                text.push_str("  ");
            }
            match line.get(place) {
                Some(byte) => _ = write!(text, "{byte:02x} "),
                None => text.push_str("   "),
            }
        }
        let shown = |byte: &u8| if (32..127).contains(byte) { char::from(*byte) } else { '.' };
        text.push_str("  |");
        text.extend(line.iter().map(shown));
        text.push_str("|\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hexdump_looks_like_haproxys() {
        let expected = "\t0x000000: 68 65 6c 6c 6f 20 77 6f   72 6c 64 20 62 6f 64 79   |hello world body|\n\
                        \t0x000010: 0a 61                                               |.a|\n";
        assert_eq!(hexdump(b"hello world body\na"), expected);
    }
}
