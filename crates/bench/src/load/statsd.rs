//! Figures of a run for StatsD, and events of its beginning and end for Graphite.
//!
//! Metrics are datagrams that are sent once a second and never waited for; events are HTTP requests of threads of their
//! own, whose answers nobody reads. A server that is not there changes nothing about a run.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use sluicegate_report::quoted;

/// A longer metric is not sent.
const MAX_METRIC: usize = 511;

/// The time limits of an event: of its connection, and of its sending.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Figures of the last interval, and means of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) ops_s: f64,
    pub(super) mean_ops_s: f64,
    pub(super) bytes_s: f64,
    pub(super) mean_bytes_s: f64,
    pub(super) latency_ms: f64,
    pub(super) mean_latency_ms: f64,
    pub(super) connections: usize,
    pub(super) percent: f64,
    /// Requests without a response so far.
    pub(super) failed: u64,
}

/// Where the figures go, and their names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statsd {
    host: String,
    metrics: SocketAddr,
    events: SocketAddr,
    /// Of each metric.
    prefix: String,
    label: String,
    /// Percentiles of latency that are sent, too.
    percentiles: Vec<f64>,
}

impl Statsd {
    /// Finds the server. The ports are those of metrics and of events.
    pub(crate) fn find(
        host: &str,
        ports: (u16, u16),
        (prefix, label): (&str, &str),
        percentiles: &[f64],
    ) -> Option<Statsd> {
        let address = |port| (host, port).to_socket_addrs().ok()?.next();
        let named = |text: &str, others: &str| -> String {
            let is_kept = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
            text.chars().map(|c| if is_kept(c) { c } else { '_' }).collect()
        };
        let label = named(if label.is_empty() { "default" } else { label }, "_-");
        let prefix = match prefix {
            "" => format!("{label}."),
            prefix => format!("{}.{label}.", named(prefix, "_-.")),
        };
        let percentiles = percentiles.to_vec();
        let host = host.to_owned();
        Some(Statsd { metrics: address(ports.0)?, events: address(ports.1)?, host, prefix, label, percentiles })
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    fn event(&self, what: &str, tag: &str, data: &str) -> Vec<u8> {
        let tags = format!("memtier,{tag},run:{}", self.label);
        let body = format!("{{\"what\":{},\"tags\":{},\"data\":{}}}", quoted(what), quoted(&tags), quoted(data));
        let (host, port, len) = (&self.host, self.events.port(), body.len());
        let head = "Content-Type: application/json\r\nConnection: close";
        let text =
            format!("POST /events/ HTTP/1.1\r\nHost: {host}:{port}\r\n{head}\r\nContent-Length: {len}\r\n\r\n{body}");
        text.into_bytes()
    }

    fn metric(&self, name: &str, value: &str, kind: &str) -> Option<String> {
        let text = format!("{}{name}:{value}|{kind}", self.prefix);
        (text.len() <= MAX_METRIC).then_some(text)
    }

    /// Returns the metrics of a second.
    fn metrics(&self, now: &Now, latency_ms: impl Fn(f64) -> Option<f64>) -> Vec<String> {
        let whole = |number: f64| (number as u64).to_string();
        let mut list = vec![
            self.metric("ops_sec", &whole(now.ops_s), "g"),
            self.metric("ops_sec_avg", &whole(now.mean_ops_s), "g"),
            self.metric("bytes_sec", &whole(now.bytes_s), "g"),
            self.metric("bytes_sec_avg", &whole(now.mean_bytes_s), "g"),
            self.metric("latency_ms", &format!("{:.3}", now.latency_ms), "ms"),
            self.metric("latency_avg_ms", &format!("{:.3}", now.mean_latency_ms), "ms"),
            self.metric("connections", &now.connections.to_string(), "g"),
            self.metric("progress_pct", &format!("{:.6}", now.percent), "g"),
        ];
        if now.failed > 0 {
            list.push(self.metric("connection_errors", &now.failed.to_string(), "g"));
        }
        for percentile in &self.percentiles {
            let name = format!("latency_p{percentile}").replace('.', "_");
            list.extend(latency_ms(*percentile).map(|ms| self.metric(&name, &format!("{ms:.6}"), "g")));
        }
        list.into_iter().flatten().collect()
    }
}

/// The sender of a run's figures.
pub(super) struct Sender<'a> {
    statsd: &'a Statsd,
    socket: Option<UdpSocket>,
    run: u32,
    events: Vec<JoinHandle<()>>,
}

impl<'a> Sender<'a> {
    /// Begins a run of so many clients of each thread.
    pub(super) fn begin(statsd: &'a Statsd, run: u32, threads: usize, clients: usize) -> Sender<'a> {
        let any: SocketAddr = if statsd.metrics.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
        let socket = UdpSocket::bind(any).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        let mut sender = Sender { statsd, socket: socket.ok(), run, events: Vec::new() };
        let data = format!("threads={threads} connections={clients} run={run}");
        sender.event("Benchmark Started", "start", &data);
        sender
    }

    /// Sends the figures of a second; `latency_ms` returns a percentile, if there was an answer.
    pub(super) fn send(&self, now: &Now, latency_ms: impl Fn(f64) -> Option<f64>) {
        self.send_all(&self.statsd.metrics(now, latency_ms));
    }

    fn send_all(&self, metrics: &[String]) {
        for metric in metrics {
            // Nobody waits for a metric, and one that is lost is replaced in a second.
            let _ = self.socket.as_ref().map(|socket| socket.send_to(metric.as_bytes(), self.statsd.metrics));
        }
    }

    /// Ends the run: what is shown as a line drops to zero.
    pub(super) fn end(mut self) {
        let names = ["ops_sec", "ops_sec_avg", "bytes_sec", "bytes_sec_avg", "connections", "progress_pct"];
        let zeros: Vec<String> = names.iter().filter_map(|name| self.statsd.metric(name, "0", "g")).collect();
        let data = format!("run={}", self.run);
        self.event("Benchmark Completed", "end", &data);
        self.send_all(&zeros);
        for event in self.events {
            // A panic there is none of the run.
            let _ = event.join();
        }
    }

    fn event(&mut self, what: &str, tag: &str, data: &str) {
        let (address, text) = (self.statsd.events, self.statsd.event(what, tag, data));
        let post = move || {
            let Ok(mut stream) = TcpStream::connect_timeout(&address, TIMEOUT) else { return };
            // As with metrics.
            let _ = stream.set_write_timeout(Some(TIMEOUT)).and_then(|()| stream.write_all(&text));
        };
        self.events.extend(std::thread::Builder::new().name("graphite".to_owned()).spawn(post).ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_events_have_memtiers_forms() {
        let statsd = |prefix: &str, label: &str| {
            Statsd::find("127.0.0.1", (8125, 81), (prefix, label), &[50.0, 99.99]).expect("an address")
        };
        let now = Now {
            ops_s: 10.9,
            mean_ops_s: 11.0,
            bytes_s: 2048.0,
            mean_bytes_s: 0.0,
            latency_ms: 0.25,
            mean_latency_ms: 1.0 / 3.0,
            connections: 8,
            percent: 12.5,
            failed: 0,
        };
        let metrics = statsd("a b.c", "run 1").metrics(&now, |percentile| Some(percentile / 8.0));
        let expected = [
            "ops_sec:10|g",
            "ops_sec_avg:11|g",
            "bytes_sec:2048|g",
            "bytes_sec_avg:0|g",
            "latency_ms:0.250|ms",
            "latency_avg_ms:0.333|ms",
            "connections:8|g",
            "progress_pct:12.500000|g",
            "latency_p50:6.250000|g",
            "latency_p99_99:12.498750|g",
        ];
        assert_eq!(metrics, expected.map(|metric| format!("a_b.c.run_1.{metric}")));
        let none = statsd("", "").metrics(&Now { failed: 3, ..now }, |_| None);
        assert_eq!((none.len(), none[8].as_str()), (9, "default.connection_errors:3|g"));
        assert!(statsd(&"x".repeat(600), "").metrics(&now, |_| None).is_empty());
        let event = String::from_utf8(statsd("p", "l").event("What \"x\"", "end", "run=1")).unwrap();
        let (head, body) = event.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"what":"What \"x\"","tags":"memtier,end,run:l","data":"run=1"}"#);
        let length = format!("\r\nContent-Length: {}", body.len());
        assert!(
            head.starts_with("POST /events/ HTTP/1.1\r\nHost: 127.0.0.1:81\r\n") && head.ends_with(&length),
            "{head}"
        );
    }
}
