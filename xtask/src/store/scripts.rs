//! The cost of scripts compared with redis-server's, and the effect of a long one on other clients.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::cpu::{Load, table};
use super::peer::{Peer, Server};
use crate::bench::{median, spread};
use crate::report::{Options, Part, ratios};
use crate::run::output;

/// The script of "Leveraging the power of Lua scripting with Dragonfly" that pushes JSON to lists and trims them: with
/// five keys and five messages it is fifty commands.
const LISTS: &str = "local messages = cjson.decode(ARGV[1]) for _, key in ipairs(KEYS) do \
    for _, message in ipairs(messages) do redis.pcall('LPUSH', key, message) redis.pcall('LTRIM', key, 0, 50) end end \
    return 'OK'";
const DECLARED: &str = "return redis.call('INCR', KEYS[1])";
const UNDECLARED: &str = "return redis.call('INCR', ARGV[1])";

const OWN_KEYS: &str = "5 l1 l2 l3 l4 l5 [1,2,3,4,5]";
const MANY_KEYS: &str = "5 __key__ __key__ __key__ __key__ __key__ [1,2,3,4,5]";

/// A script under load: the words after `EVALSHA sha`.
struct Scripted {
    name: &'static str,
    script: &'static str,
    words: &'static str,
    connections: &'static str,
    pipeline: u32,
    requests: u64,
}

const fn lists(name: &'static str, words: &'static str, connections: &'static str) -> Scripted {
    Scripted { name, script: LISTS, words, connections, pipeline: 5, requests: 40_000 }
}

const fn short(name: &'static str, script: &'static str, words: &'static str) -> Scripted {
    Scripted { name, script, words, connections: "50", pipeline: 16, requests: 400_000 }
}

impl Scripted {
    /// Loads the script into a server and returns the load that calls it there.
    fn on(&self, server: &Server) -> Result<Load, String> {
        let sha = server.client()?.must(&["SCRIPT", "LOAD", self.script])?;
        Ok(Load {
            name: self.name,
            command: format!("EVALSHA {sha} {}", self.words).into(),
            connections: self.connections,
            pipeline: self.pipeline,
            requests: self.requests,
            key_max: 999,
        })
    }
}

/// Measures each load on each peer, in alternating runs: CPU µs and real µs per script, `[load][peer][run]`.
fn alternate(options: &Options, peers: &[Peer], scripts: &[Scripted]) -> Result<[Vec<Vec<Vec<f64>>>; 2], String> {
    let servers: Vec<Server> = peers.iter().map(|peer| peer.start(&options.program, &[])).collect::<Result<_, _>>()?;
    let empty = vec![vec![Vec::new(); peers.len()]; scripts.len()];
    let (mut cpu, mut real) = (empty.clone(), empty);
    for round in options.rounds() {
        for (index, script) in scripts.iter().enumerate() {
            for (place, (peer, server)) in peers.iter().zip(&servers).enumerate() {
                let load = script.on(server)?;
                let start = Instant::now();
                let cpu_us = load.run(server, options)?;
                let real_us = start.elapsed().as_secs_f64() * 1e6 / script.requests as f64;
                println!("run {} {:<36} {:<24} {cpu_us:.3} µs CPU", round + 1, script.name, peer.name());
                cpu[index][place].push(cpu_us);
                real[index][place].push(real_us);
            }
        }
    }
    Ok([cpu, real])
}

const COSTS: [Scripted; 4] = [
    lists("one connection, pipeline of 5", OWN_KEYS, "1"),
    lists("50 connections, 1,000 lists", MANY_KEYS, "50"),
    short("EVALSHA of INCR", DECLARED, "1 count:__key__"),
    short("EVALSHA of INCR, undeclared key", UNDECLARED, "0 count:__key__"),
];

/// Measures the cost of scripts on one worker.
pub(super) fn costs(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("costs", "What scripts cost");
    let peers = [Peer::Redis, Peer::Ours(1)];
    let [cpu, real] = alternate(options, &peers, &COSTS)?;
    part.text += "Fifty commands on five lists, and one INCR; pipelines of 5 and of 16.\n\n";
    table(&mut part, &peers, COSTS.iter().map(|script| script.name), &cpu);
    let rate: Vec<f64> = ratios(&real[0]).iter().map(|ratio| 1.0 / ratio).collect();
    let _ = writeln!(part.text, "\nRate of one connection, ours / Redis's: {}.", spread(&rate, 2));
    part.goal("rate of one connection, ours / Redis's", "≥ 4", median(&rate), |ratio| ratio >= 4.0);
    part.goal("CPU of fifty commands, ours / Redis's", "≤ 0.22", median(&ratios(&cpu[1])), |ratio| ratio <= 0.22);
    part.goal("CPU of EVALSHA of INCR, ours / Redis's", "≤ 0.6", median(&ratios(&cpu[2])), |ratio| ratio <= 0.6);
    let more: Vec<f64> = cpu[3][1].iter().zip(&cpu[2][1]).map(|(undeclared, declared)| undeclared / declared).collect();
    part.goal("CPU of an undeclared key / a declared one", "≤ 1.2", median(&more), |ratio| ratio <= 1.2);
    Ok(part)
}

const SHARED: [Scripted; 2] = [
    lists("50 connections, 1,000 lists", MANY_KEYS, "50"),
    lists("50 connections, the same five lists", OWN_KEYS, "50"),
];

/// Measures their cost on two workers.
pub(super) fn workers(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("workers", "Scripts on two workers");
    let peers = [Peer::Ours(1), Peer::Ours(2)];
    let [cpu, _] = alternate(options, &peers, &SHARED)?;
    part.text += "The load takes its part of both cores here.\n\n";
    table(&mut part, &peers, SHARED.iter().map(|script| script.name), &cpu);
    for (script, of_load, wanted) in [(&SHARED[0], &cpu[0], 1.2), (&SHARED[1], &cpu[1], 1.25)] {
        let ratio = median(&ratios(of_load));
        part.goal(&format!("{}, two / one", script.name), &format!("≤ {wanted}"), ratio, |ratio| ratio <= wanted);
    }
    Ok(part)
}

/// A script that runs for long, on a key of its own: for 3 s if it runs alone, or without end.
struct Long {
    name: &'static str,
    script: &'static str,
}

const LONG: [Long; 5] = [
    Long { name: "writes to its key", script: "for i = 1, 6000000 do redis.call('SET', KEYS[1], i) end return 1" },
    Long { name: "computes", script: "local x = 0 for i = 1, 600000000 do x = x + i % 7 end return x" },
    Long {
        name: "works on strings",
        script: "local t = {} for i = 1, 10000000 do t[i % 100 + 1] = string.rep('x', 100) .. i end return #t",
    },
    Long {
        name: "scans, without atomicity",
        script: "#!lua flags=disable-atomicity\nlocal n, c = 0, '0' for turn = 1, 20 do repeat \
                 local r = redis.call('SCAN', c, 'COUNT', 100) c = r[1] n = n + #r[2] until c == '0' end return n",
    },
    Long { name: "never ends", script: "while true do end" },
];

/// The time for which other clients are observed while a script runs.
const LOOK: Duration = Duration::from_secs(1);

/// Measures the effect of a long script on other clients, with the whole server on one core.
pub(super) fn others(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("others", "What others notice of a long script");
    let server = Peer::Ours(1).start(&options.program, &[])?;
    let mut client = server.client()?;
    super::peer::fill(&mut client, 1_000_000, |n| {
        vec![b"SET".to_vec(), format!("key:{n}").into_bytes(), vec![b'v'; 32]]
    })?;
    let alone = (0..3).map(|_| Ok(gets(options, &server, None)?.rate)).collect::<Result<Vec<_>, String>>()?;
    let alone = median(&alone);
    let rate = alone / 2.0;
    let _ = writeln!(
        part.text,
        "The server and its script threads share core 0. GETs of a million keys over 20 connections, at {rate:.0} a \
         second: half of what the worker does alone. {} runs of {} s, those of each script and those without one in \
         turn; the medians count, and brackets give the least and the most.\n\n\
         | the script | GET p99, ms | slowest, ms |\n|---|---|---|",
        options.runs,
        LOOK.as_secs()
    );
    // `[script][run]`, the first without one.
    let mut seen: Vec<Vec<Seen>> = (0..=LONG.len()).map(|_| Vec::new()).collect();
    for round in options.rounds() {
        for (index, long) in std::iter::once(None).chain(LONG.iter().map(Some)).enumerate() {
            let running = match long {
                Some(long) => {
                    let sha = client.must(&["SCRIPT", "LOAD", long.script])?;
                    let mut owner = server.client()?;
                    owner.add(&[b"EVALSHA", sha.as_bytes(), b"1", b"long"]);
                    owner.flush()?;
                    Some((owner, sha))
                }
                None => None,
            };
            let gets = gets(options, &server, Some(rate))?;
            let name = long.map_or("none", |long| long.name);
            println!("run {} {name:<28} p99 {:.3} ms, max {:.3} ms", round + 1, gets.p99_ms, gets.max_ms);
            seen[index].push(gets);
            if let Some((mut owner, sha)) = running {
                client.must(&["SCRIPT", "KILL", &sha, "FORCE"])?;
                owner.answer()?;
            }
        }
    }
    let figure = |runs: &[Seen], figure: fn(&Seen) -> f64| runs.iter().map(figure).collect::<Vec<f64>>();
    let without = median(&figure(&seen[0], |seen| seen.p99_ms));
    let (mut p99, mut slowest) = (0.0_f64, 0.0_f64);
    for (runs, name) in seen.iter().zip(std::iter::once("none").chain(LONG.iter().map(|long| long.name))) {
        let (p99s, most) = (figure(runs, |seen| seen.p99_ms), figure(runs, |seen| seen.max_ms));
        part.keep("ms of a GET", &["p99", "slowest"], [name].into_iter(), &[vec![p99s.clone(), most.clone()]]);
        let _ = writeln!(part.text, "| {name} | {} | {} |", spread(&p99s, 3), spread(&most, 3));
        if name != "none" {
            (p99, slowest) = (p99.max(median(&p99s)), slowest.max(median(&most)));
        }
    }
    part.goal("GET p99 beside a long script, ms", "≤ 1", p99, |ms| ms <= 1.0);
    let ratio = p99 / without;
    part.goal("GET p99 beside a long script, of that without one", "≤ 1.2", ratio, |ratio| ratio <= 1.2);
    part.goal("slowest GET beside a long script, ms", "≤ 5", slowest, |ms| ms <= 5.0);
    let mut owner = server.client()?;
    let computes: [&[u8]; 3] = [b"EVAL", LONG[1].script.as_bytes(), b"0"];
    let start = Instant::now();
    owner.add(&computes);
    owner.flush()?;
    owner.answer()?;
    let by_itself = start.elapsed().as_secs_f64();
    let start = Instant::now();
    owner.add(&computes);
    owner.flush()?;
    let beside = gets(options, &server, None)?;
    let mut load = background(options, &server)?;
    owner.answer()?;
    let took = start.elapsed().as_secs_f64();
    // If the load can't be killed, it ends by itself after its time.
    let _ = load.kill();
    let _ = load.wait();
    part.goal("GETs at saturation, of those without a script", "≥ 0.4", beside.rate / alone, |part| part >= 0.4);
    // The script takes 3 s only on a machine of a certain speed.
    let took = took * 3.0 / by_itself;
    part.goal("a script of 3 s at saturation, s", "≤ 15", took, |seconds| seconds <= 15.0);
    Ok(part)
}

/// The latencies of other clients' GETs.
struct Seen {
    rate: f64,
    p99_ms: f64,
    max_ms: f64,
}

fn words(options: &Options, server: &Server, seconds: u64, rate: Option<f64>) -> Vec<String> {
    let mut words = vec![options.program.display().to_string()];
    let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
    add(&format!("bench redis -s 127.0.0.1:{} -c 20 --key-prefix key: --key-max 999999 --json", server.port));
    add(&format!("-d {seconds}s"));
    if let Some(rate) = rate {
        add(&format!("--rate {rate:.0}"));
    }
    words.push("GET __key__".into());
    words
}

fn gets(options: &Options, server: &Server, rate: Option<f64>) -> Result<Seen, String> {
    let words = words(options, server, LOOK.as_secs(), rate);
    let mut arguments = vec!["-c", "1"];
    arguments.extend(words.iter().map(String::as_str));
    let text = output("taskset", &arguments).ok_or("the load of GETs failed")?;
    let figure = |from: &str, name: &str| {
        let text = &text[text.find(from)?..];
        let rest = &text[text.find(name)? + name.len()..];
        rest.split([',', '}', '\n']).next()?.trim().parse::<f64>().ok()
    };
    let figure = |from, name| figure(from, name).ok_or(format!("the report has no {name}: {text}"));
    let latency = "\"latency_us\"";
    Ok(Seen {
        rate: figure("", "\"answered_per_s\":")?,
        p99_ms: figure(latency, "\"p99\":")? / 1e3,
        max_ms: figure(latency, "\"max\":")? / 1e3,
    })
}

/// Starts GETs at the maximum rate, which run until they are killed.
fn background(options: &Options, server: &Server) -> Result<std::process::Child, String> {
    Command::new("taskset")
        .args(["-c", "1"])
        .args(words(options, server, 20, None))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())
}

/// Measures the memory of a script in addition to its text, and the growth after a million runs.
pub(super) fn memory(options: &Options) -> Result<Part, String> {
    const SCRIPTS: usize = 10_000;
    let mut part = Part::new("memory", "What scripts take of memory");
    let server = Peer::Ours(2).start(&options.program, &[])?;
    let mut client = server.client()?;
    let text = |n: usize| format!("local n = {n} local t = {{}} for i = 1, n % 7 do t[i] = i end return #t + n");
    client.must(&["EVAL", &text(0), "0"])?;
    let before = server.resident()?;
    super::peer::fill(&mut client, SCRIPTS, |n| vec![b"SCRIPT".to_vec(), b"LOAD".to_vec(), text(n).into_bytes()])?;
    super::peer::fill(&mut client, SCRIPTS, |n| vec![b"EVAL".to_vec(), text(n).into_bytes(), b"0".to_vec()])?;
    let of_text: usize = (0..SCRIPTS).map(|n| text(n).len()).sum();
    let each = (server.resident()? - before - of_text as f64) / SCRIPTS as f64;
    let _ = writeln!(
        part.text,
        "{SCRIPTS} loaded scripts of about 80 bytes, each run once: {each:.0} bytes each beside its text."
    );
    part.goal("bytes of a loaded script beside its text", "≤ 8192", each, |bytes| bytes <= 8192.0);
    let run = |client: &mut crate::connection::Client| {
        super::peer::fill(client, 500_000, |_| {
            [&b"EVAL"[..], b"local t = {} for i = 1, 10 do t[i] = ARGV[1] .. i end return #t", b"0", b"x"]
                .map(<[u8]>::to_vec)
                .to_vec()
        })
    };
    run(&mut client)?;
    let middle = server.resident()?;
    run(&mut client)?;
    let grown = (server.resident()? - middle) / 1e6;
    part.goal("growth over 500,000 evaluations more, MB", "≤ 1", grown, |megabytes| megabytes <= 1.0);
    Ok(part)
}
