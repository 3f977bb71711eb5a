//! The proxy's cost of a request with more connections, more rules, more entries of an ACL.

use std::fmt::Write as _;

use sluicegate_report::Scale;

use super::Curves;
use crate::proxy::peer::{BOTH, Bench, CONNECTIONS, Peer, Running};
use crate::report::{Options, Part};

const SECONDS: u32 = 2;
/// The warm-up of each run.
const WARMUP: &str = "500ms";

/// The last is ten thousand, reduced so that a limit of 20,000 descriptors allows twice as many.
const CONNECTIONS_OF: [usize; 4] = [10, 100, 1_000, 9_800];
const RULES: [usize; 4] = [0, 10, 100, 1_000];
const ENTRIES: [usize; 4] = [10, 1_000, 100_000, 1_000_000];

/// Returns a file with rules that answers by itself.
fn file(rules: &str) -> String {
    format!(
        "global\n    nbthread 1\n    maxconn 9900\ndefaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    \
         timeout connect 3s\nfrontend www\n    bind 127.0.0.1:PORT\n{rules}    http-request return status 200\n"
    )
}

fn names() -> Vec<String> {
    BOTH.map(|peer| peer.name().to_owned()).to_vec()
}

/// Measures each size with each program in turn. Returns `[size][program][run]`.
fn alternate(
    options: &Options,
    sizes: &[usize],
    start: impl Fn(usize, Peer) -> Result<Running, String>,
    cost: impl Fn(&Running, usize) -> Result<f64, String>,
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let mut results = vec![vec![Vec::new(); BOTH.len()]; sizes.len()];
    for round in options.rounds() {
        for (size, of_size) in sizes.iter().zip(&mut results) {
            for (peer, runs) in BOTH.into_iter().zip(of_size) {
                let cpu_us = cost(&start(*size, peer)?, *size)?;
                println!("run {} {size:>8} {:<12} {cpu_us:.2} µs", round + 1, peer.name());
                runs.push(cpu_us);
            }
        }
    }
    Ok(results)
}

/// Returns CPU µs per request with the usual number of connections.
fn cost(bench: &Bench<'_>, running: &Running, more: &[&str]) -> Result<f64, String> {
    let (connections, seconds) = (CONNECTIONS.to_string(), bench.options.seconds(SECONDS).to_string());
    let words = [&["-c", &connections, "-d", &seconds, "-w", WARMUP], more].concat();
    Ok(bench.load(running, "/", &words)?.cpu_us)
}

/// `connections`: requests over more and more connections.
pub(super) fn connections(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("connections", "Connections");
    let bench = Bench::new(options)?;
    let text = file("");
    let seconds = (options.seconds(SECONDS) + 1).to_string();
    let run = |running: &Running, connections: usize, seconds: &str| {
        bench.load(running, "/", &["-c", &connections.to_string(), "-d", seconds])
    };
    // The difference of a long and a short run is what requests cost without the opening of their connections.
    let cost = |running: &Running, connections: usize| {
        let short = run(running, connections, "1")?;
        let long = run(running, connections, &seconds)?;
        let used = |loaded: &crate::proxy::peer::Loaded| loaded.cpu_us * loaded.answered;
        Ok((used(&long) - used(&short)) / (long.answered - short.answered).max(1.0))
    };
    let results = alternate(options, &CONNECTIONS_OF, |_, peer| peer.start(&bench, &text), cost)?;
    let _ = writeln!(
        part.text,
        "Requests that a rule answers, one in flight on each connection. The difference of runs of {seconds} s and 1 s, so the \
         opening of connections does not count.\n"
    );
    let what = "CPU µs per request, by connections";
    Curves { what, over: "connections", sizes: &CONNECTIONS_OF, names: names(), scale: Scale::Linear }
        .add(&mut part, &results);
    Ok(part)
}

/// `rules`: requests that pass more and more rules.
pub(super) fn rules(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("rules", "Rules");
    let bench = Bench::new(options)?;
    let text = |count: usize| {
        let mut rules = String::new();
        for number in 0..count {
            let _ = writeln!(rules, "    http-request deny if {{ path_beg /private/{number}/ }}");
        }
        file(&rules)
    };
    let start = |size: usize, peer: Peer| peer.start(&bench, &text(size));
    let results = alternate(options, &RULES, start, |running, _| cost(&bench, running, &[]))?;
    let _ = writeln!(
        part.text,
        "`http-request deny if {{ path_beg /private/N/ }}`, none of which matches; {CONNECTIONS} connections, {} s a run.\n",
        options.seconds(SECONDS)
    );
    let what = "CPU µs per request, by rules";
    Curves { what, over: "rules", sizes: &RULES, names: names(), scale: Scale::Linear }.add(&mut part, &results);
    Ok(part)
}

/// `acl`: requests whose header is looked up among more and more entries.
pub(super) fn acl(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("acl", "Entries of an ACL");
    let bench = Bench::new(options)?;
    let list = |entries: usize| bench.path(&format!("entries-{entries}"));
    for entries in ENTRIES {
        let mut text = String::new();
        (0..entries).for_each(|number| {
            let _ = writeln!(text, "key-{number}");
        });
        std::fs::write(list(entries), text).map_err(|error| format!("{}: {error}", list(entries).display()))?;
    }
    let start = |entries: usize, peer: Peer| {
        let rule = format!(
            "    http-request set-var(txn.known) int(1) if {{ req.hdr(x-key) -f {} }}\n",
            list(entries).display()
        );
        peer.start(&bench, &file(&rule))
    };
    let of_entries = |running: &Running, entries: usize| {
        let key_max = (entries - 1).to_string();
        cost(&bench, running, &["-H", "X-Key: key-__key__", "--key-max", &key_max])
    };
    let results = alternate(options, &ENTRIES, start, of_entries)?;
    let _ = writeln!(
        part.text,
        "`set-var(txn.known) int(1) if {{ req.hdr(x-key) -f FILE }}`, with a random entry of the file in each request; \
         {CONNECTIONS} connections, {} s a run.\n",
        options.seconds(SECONDS)
    );
    let what = "CPU µs per request, by entries of an ACL";
    Curves { what, over: "entries", sizes: &ENTRIES, names: names(), scale: Scale::Linear }.add(&mut part, &results);
    Ok(part)
}
