//! Costs that grow with the number of objects: entries of a stick table, servers of a backend, lines of a file.

use std::fmt::Write as _;

use super::cpu::SECONDS;
use super::peer::{BOTH, Bench, CONNECTIONS, Peer, check_s};
use crate::bench::{median, spread};
use crate::report::{Options, Part, ratios};

/// Entries of the table.
const ENTRIES: usize = 1_000_000;
const SERVERS: usize = 1_000;
const LINES: usize = 20_000;

fn head() -> &'static str {
    "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    timeout connect 3s\n"
}

/// CPU µs per request of two files of each program in turn: `[program][file][run]`. `fill` is put on the second file
/// before.
fn alternate(
    bench: &Bench<'_>,
    files: &[String; 2],
    load: &[&str],
    fill: Option<&[&str]>,
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let mut results = vec![vec![Vec::new(); 2]; BOTH.len()];
    let mut running = Vec::new();
    for peer in BOTH {
        running.push([peer.start(bench, &files[0])?, peer.start(bench, &files[1])?]);
    }
    let connections = CONNECTIONS.to_string();
    if let Some(fill) = fill {
        for [_, second] in &running {
            bench.load(second, "/fast", &[&["-c", &connections], fill].concat())?;
        }
    }
    let seconds = bench.options.seconds(SECONDS).to_string();
    let arguments = [&["-c", &connections, "-d", &seconds, "-w", "500ms"], load].concat();
    for round in bench.options.rounds() {
        for ((peer, pair), of_peer) in BOTH.iter().zip(&running).zip(&mut results) {
            let cpu_us =
                [bench.load(&pair[0], "/fast", &arguments)?.cpu_us, bench.load(&pair[1], "/fast", &arguments)?.cpu_us];
            println!("run {} {:<12} {cpu_us:.2?} µs", round + 1, peer.name());
            of_peer.iter_mut().zip(cpu_us).for_each(|(of_file, cpu_us)| of_file.push(cpu_us));
        }
    }
    Ok(results)
}

/// `tables`: requests that are counted in a large stick table, and that are not.
pub(super) fn tables(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("tables", "A large stick table");
    let bench = Bench::new(options)?;
    let file = |rules: &str| {
        format!("{}listen www\n    bind 127.0.0.1:PORT\n{rules}    server p {}\n", head(), bench.origin())
    };
    let tracked = format!(
        "    stick-table type string len 32 size {ENTRIES} expire 1h store http_req_cnt,http_req_rate(10s)\n    \
         http-request track-sc0 req.hdr(x-client)\n"
    );
    let files = [file(""), file(&tracked)];
    let key_max = (ENTRIES - 1).to_string();
    let header = ["-H", "X-Client: client-__key__", "--key-max", &key_max];
    let entries = ENTRIES.to_string();
    let fill = [&header[..], &["-n", &entries, "--key-pattern", "sequential"]].concat();
    let results = alternate(&bench, &files, &header, Some(&fill))?;
    let _ = writeln!(
        part.text,
        "{ENTRIES} clients by a header, one at random for each request; `track-sc0` with `http_req_cnt` and \
         `http_req_rate`, and without.\n"
    );
    let columns = ["not tracked".to_owned(), "tracked".to_owned()];
    part.table("CPU µs per request", &columns, BOTH.iter().map(|peer| peer.name()), &results);
    part.goal("CPU, tracked / not tracked", "≤ 1.15", median(&ratios(&results[1])), |ratio| ratio <= 1.15);
    Ok(part)
}

/// `servers`: leastconn over few and many servers.
pub(super) fn servers(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("servers", "Many servers");
    let bench = Bench::new(options)?;
    let file = |count: usize| {
        let mut text = format!("{}listen www\n    bind 127.0.0.1:PORT\n    balance leastconn\n", head());
        for number in 0..count {
            let _ = writeln!(text, "    server s{number} {}", bench.origin());
        }
        text
    };
    let results = alternate(&bench, &[file(10), file(SERVERS)], &[], None)?;
    let _ =
        writeln!(part.text, "`balance leastconn` over 10 and over {SERVERS} servers, all of them the same origin.\n");
    let columns = ["10 servers".to_owned(), format!("{SERVERS} servers")];
    part.table("CPU µs per request", &columns, BOTH.iter().map(|peer| peer.name()), &results);
    part.goal(&format!("CPU, {SERVERS} servers / 10"), "≤ 1.2", median(&ratios(&results[1])), |ratio| ratio <= 1.2);
    Ok(part)
}

/// `check`: a long file.
pub(super) fn check(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("check", "A long file");
    let bench = Bench::new(options)?;
    let file = bench.file(&long_file(&bench))?;
    let mut results = vec![vec![Vec::new(); BOTH.len()]];
    for _ in options.rounds() {
        for (index, peer) in BOTH.into_iter().enumerate() {
            results[0][index].push(check_s(peer, &bench, &file)?);
        }
    }
    let _ = writeln!(part.text, "{LINES} lines: backends with servers, rules and ACLs, and a frontend that chooses.\n");
    let columns = BOTH.map(|peer| peer.name().to_owned());
    part.table("seconds", &columns, ["check"].into_iter(), &results);
    part.goal("seconds", "≤ 0.5", median(&results[0][1]), |seconds| seconds <= 0.5);
    let _ = writeln!(part.text, "\nOurs: {} s.", spread(&results[0][Peer::Ours as usize], 3));
    Ok(part)
}

/// Backends of twenty lines, each with a line of the frontend that leads to it.
fn long_file(bench: &Bench<'_>) -> String {
    let mut backends = String::new();
    let mut rules = String::new();
    let (mut lines, mut number) = (head().lines().count() + 2, 0);
    while lines < LINES {
        let _ = writeln!(rules, "    use_backend b{number} if {{ hdr(host) -i h{number}.example.com }}");
        let _ = writeln!(backends, "backend b{number}\n    balance leastconn\n    option httpchk GET /health");
        for rule in 0..6 {
            let _ = writeln!(backends, "    acl a{rule} path_beg /path/{number}/{rule} /other/{rule}");
            let _ = writeln!(
                backends,
                "    http-request set-header X-Rule-{rule} %[src],%[req.hdr(host),lower] if a{rule}"
            );
        }
        for server in 0..5 {
            let _ = writeln!(backends, "    server s{server} {} check inter 10s weight {}", bench.origin(), server + 1);
        }
        lines += 21;
        number += 1;
    }
    format!("{}frontend www\n    bind 127.0.0.1:8080\n{rules}{backends}", head())
}
