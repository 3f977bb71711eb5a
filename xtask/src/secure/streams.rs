//! CPU time of HTTP/2: small responses by a rule and by a server, and downloads.

use std::fmt::Write as _;

use super::handshakes::{DOWNLOAD, PerUnit, columns};
use super::material::{Key, bind, libraries};
use crate::proxy::cpu::{SECONDS, log_reader};
use crate::proxy::peer::Bench;
use crate::report::{Options, Part};

const CONNECTIONS: &str = "10";
/// Concurrent streams of a connection.
const STREAMS: &str = "100";

/// Returns a file with five rules and a log, whose requests `answer` answers.
fn ordinary(bind: &str, log_port: u16, answer: &str) -> String {
    format!(
        "global\n    nbthread 1\n    log 127.0.0.1:{log_port} local0\n\
         defaults\n    mode http\n    log global\n    option httplog\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\n\
         listen www\n    bind 127.0.0.1:PORT {bind}\n    \
         http-request deny if {{ path_beg /private /admin }}\n    http-request set-header X-Forwarded-Proto http\n    \
         http-request set-var(txn.host) req.hdr(host),lower\n    http-request del-header X-Secret\n    \
         http-after-response set-header X-Frame-Options DENY\n    {answer}\n"
    )
}

/// The `bind` lines that are measured: by prior knowledge and in TLS.
fn binds(bench: &Bench<'_>) -> Result<[(&'static str, String); 2], String> {
    Ok([("h2", String::from("proto h2")), ("h2 in TLS 1.3", bind(bench, Key::Ecdsa, "1.3", "h2")?)])
}

/// Small responses: adds a table, and a goal for each bind.
fn small(part: &mut Part, bench: &Bench<'_>, answer: &str, wanted: f64) -> Result<(), String> {
    let _ = writeln!(
        part.text,
        "{} {CONNECTIONS} connections with {STREAMS} streams each, {} s a run; five rules and `option httplog` to \
         a UDP socket.\n",
        libraries(bench),
        bench.options.seconds(SECONDS)
    );
    let log = log_reader()?;
    let request = PerUnit { path: "/fast", units: "Requests", unit: "request", wanted };
    let mut results = Vec::new();
    let binds = binds(bench)?;
    for (name, bind) in &binds {
        let load = ["-c", CONNECTIONS, "--http2", "--streams", STREAMS];
        results.push(request.compare(part, bench, name, &ordinary(bind, log, answer), &load)?);
    }
    part.table("CPU µs per request", &columns(), binds.iter().map(|bind| bind.0), &results);
    Ok(())
}

/// `rules`: requests that a rule answers.
pub(super) fn rules(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("rules", "Streams answered by a rule");
    let bench = Bench::new(options)?;
    small(&mut part, &bench, "http-request return status 200 content-type text/plain string fast", 0.8)?;
    Ok(part)
}

/// `proxied`: requests to a server in HTTP/1.1.
pub(super) fn proxied(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("proxied", "Streams to a server in HTTP/1.1");
    let bench = Bench::new(options)?;
    small(&mut part, &bench, &format!("server origin {}", bench.origin()), 0.85)?;
    Ok(part)
}

/// `large`: responses of 1 MiB by a server in HTTP/1.1.
pub(super) fn large(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("large", "Downloads");
    let bench = Bench::new(options)?;
    let seconds = options.seconds(SECONDS);
    let _ = writeln!(part.text, "Responses of 1 MiB, {CONNECTIONS} connections, {seconds} s a run.\n");
    let mut results = Vec::new();
    let binds = binds(&bench)?;
    for (name, bind) in &binds {
        let text = format!(
            "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    \
             timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT {bind}\n    server origin {}\n",
            bench.origin()
        );
        let load = ["-c", CONNECTIONS, "--http2"];
        results.push(DOWNLOAD.compare(&mut part, &bench, name, &text, &load)?);
    }
    part.table("CPU µs per MiB", &columns(), binds.iter().map(|bind| bind.0), &results);
    Ok(part)
}
