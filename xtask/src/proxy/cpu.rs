//! CPU time: small responses with ordinary rules and a log, a connection for each request, large responses, responses
//! from a cache.

use std::fmt::Write as _;
use std::net::UdpSocket;

use super::peer::{BOTH, Bench, CONNECTIONS, Peer, Running, start_all};
use crate::bench::{median, on_core, spread};
use crate::report::{Options, Part, ratios};

/// The seconds of a load, unless the options have others.
pub(crate) const SECONDS: u32 = 3;

/// Returns a file with five rules as nearly every file has them, and a line for each request.
fn ordinary(bench: &Bench<'_>, log_port: u16) -> String {
    format!(
        "global\n    nbthread 1\n    log 127.0.0.1:{log_port} local0\n\
         defaults\n    mode http\n    log global\n    option httplog\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\n\
         frontend www\n    bind 127.0.0.1:PORT\n    option forwardfor\n    acl api path_beg /api/\n    \
         http-request deny if {{ path_beg /private /admin }}\n    http-request set-header X-Forwarded-Proto http\n    \
         http-request set-var(txn.host) req.hdr(host),lower\n    http-request del-header X-Secret\n    \
         http-response set-header X-Frame-Options DENY\n    use_backend api if api\n    default_backend pages\n\
         backend api\n    server a {origin}\n\
         backend pages\n    server p {origin}\n",
        origin = bench.origin()
    )
}

/// Returns a file that only passes on.
fn plain(bench: &Bench<'_>, option: &str) -> String {
    format!(
        "global\n    nbthread 1\ndefaults\n    mode http\n    {option}\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT\n    server p {}\n",
        bench.origin()
    )
}

/// Returns a file whose responses come from a cache.
fn caching(bench: &Bench<'_>) -> String {
    let cache = "    http-request cache-use small\n    http-response set-header Cache-Control max-age=3600\n    \
                 http-response cache-store small\n";
    let section = "cache small\n    total-max-size 64\n    max-object-size 1000000\n    max-age 3600\n";
    plain(bench, "").replace("    server p", &format!("{cache}    server p")) + section
}

/// Takes log lines and throws them away, on the core of everything that is not measured.
pub(crate) fn log_reader() -> Result<u16, String> {
    let reader = UdpSocket::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = reader.local_addr().map_err(|error| error.to_string())?.port();
    std::thread::spawn(move || {
        on_core(1);
        let mut buffer = [0; 4096];
        while reader.recv(&mut buffer).is_ok() {}
    });
    Ok(port)
}

/// CPU µs per request and rates of programs in turn: `[program][run]` each.
pub(crate) type Figures = (Vec<Vec<f64>>, Vec<Vec<f64>>);

fn alternate(bench: &Bench<'_>, running: &[(&str, Running)], path: &str, load: &[&str]) -> Result<Figures, String> {
    let connections = CONNECTIONS.to_string();
    in_turn(bench, running, path, &[&["-c", &connections], load].concat())
}

/// Puts the load on the programs in turn.
pub(crate) fn in_turn(
    bench: &Bench<'_>,
    running: &[(&str, Running)],
    path: &str,
    load: &[&str],
) -> Result<Figures, String> {
    let (mut cpu, mut rates) = (vec![Vec::new(); running.len()], vec![Vec::new(); running.len()]);
    let seconds = bench.options.seconds(SECONDS).to_string();
    let arguments = [&["-d", &seconds, "-w", "500ms"], load].concat();
    for round in bench.options.rounds() {
        for ((name, program), (cpu, rates)) in running.iter().zip(cpu.iter_mut().zip(&mut rates)) {
            let loaded = bench.load(program, path, &arguments)?;
            println!("run {} {path} {name:<24} {:>8.0} req/s {:>8.2} µs", round + 1, loaded.rate, loaded.cpu_us);
            cpu.push(loaded.cpu_us);
            rates.push(loaded.rate);
        }
    }
    Ok((cpu, rates))
}

/// `cpu`: small responses.
pub(super) fn cpu(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("cpu", "Small responses");
    let bench = Bench::new(options)?;
    let running = start_all(BOTH, &bench, &ordinary(&bench, log_reader()?))?;
    let _ = writeln!(
        part.text,
        "{CONNECTIONS} connections, {} s a run; five rules, two ACLs, `option forwardfor` and `option httplog` to \
         a UDP socket.\n",
        options.seconds(SECONDS)
    );
    let (mut results, mut all_rates) = (Vec::new(), Vec::new());
    let cases: [(&str, &[&str], f64); 2] =
        [("keep-alive", &[], 0.8), ("a new connection for each request", &["--no-keep-alive"], 0.9)];
    for (name, load, wanted) in cases {
        let (cpu, rates) = alternate(&bench, &running, "/fast", load)?;
        let rate: Vec<String> = rates.iter().map(|rates| spread(rates, 0)).collect();
        let _ = writeln!(part.text, "Requests a second, {name}: {}.\n", rate.join(" and "));
        part.goal(
            &format!("CPU per request, {name}, ours / haproxy's"),
            &format!("≤ {wanted}"),
            median(&ratios(&cpu)),
            |ratio| ratio <= wanted,
        );
        results.push(cpu);
        all_rates.push(rates);
    }
    let columns = BOTH.map(|peer| peer.name().to_owned());
    part.table("CPU µs per request", &columns, cases.iter().map(|case| case.0), &results);
    part.keep("requests a second", &columns, cases.iter().map(|case| case.0), &all_rates);
    Ok(part)
}

/// `large`: responses of 1 MiB.
pub(super) fn large(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("large", "Large responses");
    let bench = Bench::new(options)?;
    let running = vec![
        ("haproxy", Peer::Haproxy.start(&bench, &plain(&bench, ""))?),
        ("haproxy, splice-response", Peer::Haproxy.start(&bench, &plain(&bench, "option splice-response"))?),
        ("sluicegate", Peer::Ours.start(&bench, &plain(&bench, ""))?),
    ];
    let (cpu, rates) = alternate(&bench, &running, "/bytes/1048576", &[])?;
    let _ = writeln!(
        part.text,
        "Responses of 1 MiB, {CONNECTIONS} connections.\n\n| | CPU µs per MiB | MiB/s |\n|---|---|---|"
    );
    for ((name, _), (cpu, rates)) in running.iter().zip(cpu.iter().zip(&rates)) {
        let _ = writeln!(part.text, "| {name} | {} | {} |", spread(cpu, 0), spread(rates, 0));
    }
    let names: Vec<&str> = running.iter().map(|(name, _)| *name).collect();
    part.keep("CPU µs per MiB", &names, ["1 MiB"].into_iter(), std::slice::from_ref(&cpu));
    part.keep("MiB/s", &names, ["1 MiB"].into_iter(), &[rates]);
    for (index, other) in ["haproxy's", "haproxy's with splice"].into_iter().enumerate() {
        let ratio: Vec<f64> = cpu[2].iter().zip(&cpu[index]).map(|(ours, theirs)| ours / theirs).collect();
        part.goal(&format!("CPU per byte, ours / {other}"), "≤ 0.9", median(&ratio), |ratio| ratio <= 0.9);
    }
    Ok(part)
}

/// `cached`: responses from a cache.
pub(super) fn cached(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("cached", "Responses from a cache");
    let bench = Bench::new(options)?;
    let running = start_all(BOTH, &bench, &caching(&bench))?;
    let seconds = options.seconds(SECONDS);
    let _ = writeln!(part.text, "{CONNECTIONS} connections, {seconds} s a run; `cache-use` without a log.\n");
    let mut results = Vec::new();
    let cases = [("a small response", "/fast"), ("64 KiB", "/bytes/65536")];
    for (name, path) in cases {
        let (cpu, rates) = alternate(&bench, &running, path, &[])?;
        let rate: Vec<String> = rates.iter().map(|rates| spread(rates, 0)).collect();
        let _ = writeln!(part.text, "Requests a second, {name}: {}.\n", rate.join(" and "));
        part.goal(&format!("CPU per request, {name}, ours / haproxy's"), "≤ 0.8", median(&ratios(&cpu)), |ratio| {
            ratio <= 0.8
        });
        results.push(cpu);
    }
    let columns = BOTH.map(|peer| peer.name().to_owned());
    part.table("CPU µs per request", &columns, cases.iter().map(|case| case.0), &results);
    Ok(part)
}
