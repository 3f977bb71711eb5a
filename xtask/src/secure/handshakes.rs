//! CPU time of handshakes, and of bulk data in TLS.

use std::fmt::Write as _;

use super::material::{Key, bind, libraries};
use crate::bench::{median, spread};
use crate::proxy::cpu::{SECONDS, in_turn};
use crate::proxy::peer::{Bench, NEWER, start_all};
use crate::report::{Options, Part, ratios};

/// Connections of the load that makes handshakes.
const CONNECTIONS: &str = "40";
/// Connections of downloads.
const DOWNLOADS: &str = "10";

/// Returns a file with one TLS `bind` and these rules.
fn file(bind: &str, rules: &str) -> String {
    format!(
        "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT {bind}\n    {rules}\n"
    )
}

/// A measurement of CPU time per unit.
pub(super) struct PerUnit {
    /// The path that is requested.
    pub(super) path: &'static str,
    /// The unit in rates, and in the goal.
    pub(super) units: &'static str,
    pub(super) unit: &'static str,
    /// The greatest ratio to HAProxy's CPU time.
    pub(super) wanted: f64,
}

/// Responses of 1 MiB.
pub(super) const DOWNLOAD: PerUnit = PerUnit { path: "/bytes/1048576", units: "MiB", unit: "byte", wanted: 0.9 };

impl PerUnit {
    /// Measures both programs with a file, and adds the rates and the goal to a report. Returns CPU times per request.
    pub(super) fn compare(
        &self,
        part: &mut Part,
        bench: &Bench<'_>,
        name: &str,
        text: &str,
        load: &[&str],
    ) -> Result<Vec<Vec<f64>>, String> {
        let running = start_all(NEWER, bench, text)?;
        let (cpu, rates) = in_turn(bench, &running, self.path, load)?;
        let rates: Vec<String> = rates.iter().map(|rates| spread(rates, 0)).collect();
        let _ = writeln!(part.text, "{} a second, {name}: {}.\n", self.units, rates.join(" and "));
        let goal = format!("CPU per {}, {name}, ours / haproxy's", self.unit);
        let wanted = self.wanted;
        part.goal(&goal, &format!("≤ {wanted}"), median(&ratios(&cpu)), |ratio| ratio <= wanted);
        Ok(cpu)
    }
}

pub(super) fn columns() -> [String; 2] {
    NEWER.map(|peer| peer.name().to_owned())
}

/// `handshakes`: a new connection for each request, which a rule answers.
pub(super) fn handshakes(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("handshakes", "Handshakes");
    let bench = Bench::new(options)?;
    let _ = writeln!(
        part.text,
        "{} {CONNECTIONS} connections at a time, {} s a run, each with one request that `http-request return` \
         answers; X25519, AES-128-GCM. Resumed: TLS 1.3 psk_dhe_ke, TLS 1.2 by ticket.\n",
        libraries(&bench),
        options.seconds(SECONDS)
    );
    let full: &[&str] = &[];
    let cases = [
        ("TLS 1.3, ECDSA P-256, full", Key::Ecdsa, "1.3", full, 1.0),
        ("TLS 1.3, RSA-2048, full", Key::Rsa, "1.3", full, 0.9),
        ("TLS 1.2, ECDSA P-256, full", Key::Ecdsa, "1.2", full, 1.0),
        ("TLS 1.2, RSA-2048, full", Key::Rsa, "1.2", full, 0.9),
        ("TLS 1.3, ECDSA P-256, resumed", Key::Ecdsa, "1.3", &["--resume"], 1.3),
        ("TLS 1.2, ECDSA P-256, resumed", Key::Ecdsa, "1.2", &["--resume"], 1.3),
    ];
    let mut results = Vec::new();
    for (name, key, version, resume, wanted) in cases {
        println!("{name}, {}", key.name());
        let rules = "http-request return status 200 content-type text/plain string fast";
        let running = start_all(NEWER, &bench, &file(&bind(&bench, key, version, "http/1.1")?, rules))?;
        let load = [&["-c", CONNECTIONS, "--no-keep-alive"], resume].concat();
        let (cpu, _) = in_turn(&bench, &running, "/", &load)?;
        // Handshakes per CPU second: the inverse of CPU time per connection.
        let ratio = 1.0 / median(&ratios(&cpu));
        let goal = format!("handshakes per CPU second, {name}, ours / haproxy's");
        part.goal(&goal, &format!("≥ {wanted}"), ratio, |ratio| ratio >= wanted);
        results.push(cpu);
    }
    part.table("CPU µs per connection", &columns(), cases.iter().map(|case| case.0), &results);
    Ok(part)
}

/// `bulk`: responses of 1 MiB by an HTTP/1.1 origin.
pub(super) fn bulk(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("bulk", "Bulk data");
    let bench = Bench::new(options)?;
    let _ = writeln!(
        part.text,
        "{} Responses of 1 MiB from an origin without TLS, {DOWNLOADS} keep-alive connections, AES-128-GCM.\n",
        libraries(&bench)
    );
    let mut results = Vec::new();
    let versions = ["1.3", "1.2"];
    for version in versions {
        let server = format!("server origin {}", bench.origin());
        let text = file(&bind(&bench, Key::Ecdsa, version, "http/1.1")?, &server);
        let name = format!("TLS {version}");
        results.push(DOWNLOAD.compare(&mut part, &bench, &name, &text, &["-c", DOWNLOADS])?);
    }
    let rows = versions.map(|version| format!("TLS {version}"));
    part.table("CPU µs per MiB", &columns(), rows.iter().map(String::as_str), &results);
    Ok(part)
}
