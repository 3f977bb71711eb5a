//! The cost of calling an external engine at request time, compared with haproxy and a pool in Lua.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{self, Bench, Goals, Options, Sample, Setup, each, find, machine, median, stolen, table};
use crate::child::{Guard, free_port, wait_for_port};
use crate::release;
use crate::run::{output, root};

/// Commands of each half of the reconnection table; the post's.
const COMMANDS: u32 = 50_000;

const REDIRECT: &str = "http-request redirect location /ok";

/// `bench engines [--runs N] [--seconds N] [--only WORD] [--write]`.
pub fn engines(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    release::program(false)?;
    let bench = Bench::new()?;
    let cluster = Cluster::new()?;
    let mut setups = setups(&bench, &cluster)?;
    options.choose(&mut setups);
    let steal = stolen();
    let results = bench.alternate(&setups, &options)?;
    let mut report = format!("# Engines in other processes\n\n`cargo xtask bench engines`\n\n{}\n\n", machine());
    let _ = writeln!(report, "{}", options.manner(steal));
    report.push_str(&table(&setups, &results));
    let _ = writeln!(report, "\n{}", goals(&setups, &results));
    if setups.iter().any(|setup| setup.name == "redirect") {
        report.push_str(&reconnection(&bench, &options)?);
    }
    println!("\n{report}");
    if options.write {
        let path = root().join("docs/benchmarks/engines.md");
        std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn setups(bench: &Bench, cluster: &Cluster) -> Result<Vec<Setup>, String> {
    let mut setups = vec![
        bench.setup("haproxy", "redirect", "/", "", REDIRECT)?,
        bench.lua("haproxy", "pool and redis-lua", "redis_lua_pool.lua")?,
        bench.setup("sluicegate", "redirect", "/", "", REDIRECT)?,
    ];
    let single = format!("\nredis data\n    server one 127.0.0.1:{}\n", bench.redis_port);
    let script = format!("lua-load {}\n", root().join("examples/engines/count.lua").display());
    let mut add = |name, global: &str, rule: &str, sections: &str| -> Result<(), String> {
        let mut setup = bench.setup("sluicegate", name, "/", global, &format!("{rule}\n    {REDIRECT}"))?;
        setup.configuration.push_str(sections);
        setups.push(setup);
        Ok(())
    };
    add("Lua, redis-server", &script, "http-request lua.count", &single)?;
    add("Lua acall, redis-server", &script, "http-request lua.count_later", &single)?;
    add("store-call, redis-server", "", "http-request store-call data INCRBY %[src] 1", &single)?;
    let spread = "http-request store-call data INCRBY %[rand(1000)] 1";
    add("store-call, 1,000 keys, one master", "", spread, &single)?;
    add("store-call, 1,000 keys, three masters", "", spread, &cluster.section())?;
    let limit = "http-request limit gate key src rate 100000000/1s headers draft-11";
    add("limit, embedded store", "", limit, "")?;
    add("limit, redis-server", "", &format!("{limit} store data"), &single)?;
    Ok(setups)
}

fn goals(setups: &[Setup], results: &[Vec<Sample>]) -> String {
    let rate = |program: &str, name: &str| {
        find(setups, results, program, name).map(|samples| median(&each(samples, |sample| sample.rate)))
    };
    let p99 = |name: &str| {
        find(setups, results, "sluicegate", name).map(|samples| median(&each(samples, |sample| sample.p99_ms)))
    };
    let mut goals = Goals::new();
    let mut at_least = |goal: &str, least: f64, one: Option<f64>, other: Option<f64>| {
        if let (Some(one), Some(other)) = (one, other) {
            goals.row(goal, &format!("≥ {least}"), one / other, one / other >= least);
        }
    };
    let ours = |name: &str| rate("sluicegate", name);
    let pool = rate("haproxy", "pool and redis-lua");
    at_least("rate: Lua in redis-server / haproxy with its pool", 2.5, ours("Lua, redis-server"), pool);
    at_least("rate: store-call to redis-server / haproxy with its pool", 3.0, ours("store-call, redis-server"), pool);
    at_least("rate: fire and forget / no Lua", 0.8, ours("Lua acall, redis-server"), ours("redirect"));
    at_least(
        "rate: limit with headers in the embedded store / none",
        0.9,
        ours("limit, embedded store"),
        ours("redirect"),
    );
    at_least(
        "rate: three cluster masters / one",
        0.8,
        ours("store-call, 1,000 keys, three masters"),
        ours("store-call, 1,000 keys, one master"),
    );
    if let Some(p99) = p99("Lua, redis-server") {
        goals.row("p99: Lua in redis-server, ms", "≤ 5", p99, p99 <= 5.0);
    }
    goals.into_text()
}

/// Measures the table of the post *Redis Reconnection Overhead*, and the cost of a call compared with redis-benchmark.
fn reconnection(bench: &Bench, options: &Options) -> Result<String, String> {
    let port = bench.redis_port.to_string();
    let address = format!("127.0.0.1:{port}");
    let count = COMMANDS.to_string();
    let program = bench::binary().display().to_string();
    let own = ["-c", "0", &program, "bench", "redis", "--reconnect", "-n", &count, "--server", &address];
    let peer = ["-c", "0", "redis-benchmark", "-p", &port, "-c", "1", "-n", &count, "-t", "set", "--csv"];
    let us_of = |text: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with("reuse redis"))?;
        let seconds: f64 = line.split(['(', ')']).nth(1)?.trim().parse().ok()?;
        Some(seconds * 1e6 / f64::from(COMMANDS))
    };
    let (mut generator, mut script) = (String::new(), String::new());
    let (mut own_us, mut script_us, mut peer_us) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs {
        generator = output("taskset", &own).ok_or("sluicegate bench redis --reconnect failed")?;
        own_us.push(us_of(&generator).ok_or("the generator printed no time")?);
        script = example(&program, &port, &count)?;
        script_us.push(us_of(&script).ok_or("the example printed no time")?);
        let csv = output("taskset", &peer).ok_or("redis-benchmark failed")?;
        let rate: Option<f64> =
            csv.lines().last().and_then(|line| line.split('"').nth(3)).and_then(|word| word.parse().ok());
        peer_us.push(1e6 / rate.ok_or("redis-benchmark printed no rate")?);
    }
    let (own_us, script_us, peer_us) = (median(&own_us), median(&script_us), median(&peer_us));
    let mut goals = Goals::new();
    let mut goal = |who: &str, us: f64| {
        let ratio = us / peer_us;
        goals.row(&format!("time of a call {who} / redis-benchmark's, one connection"), "≤ 1.1", ratio, ratio <= 1.1);
    };
    goal("of the generator", own_us);
    goal("from Lua", script_us);
    Ok(format!(
        "## Redis Reconnection Overhead\n\nThe post of that name sets {COMMANDS} keys over one connection and over one for \
         each: 2.83 s and 9.58 s there.\n\n`examples/engines/reconnect.cfg`, the first half over the section's \
         connection, the second over sockets of the script:\n\n```\n{}```\n\n`sluicegate bench redis --reconnect`:\n\n\
         ```\n{}```\n\nMedians of {} alternating runs, of which those above are the last, µs a SET over one connection: \
         redis-benchmark {peer_us:.1}, the generator {own_us:.1}, the example {script_us:.1}.\n\n{}",
        script,
        generator.replace(&address, "redis-server"),
        options.runs,
        goals.into_text()
    ))
}

/// Runs the example and returns its output.
fn example(program: &str, port: &str, count: &str) -> Result<String, String> {
    let mut command = Command::new("timeout");
    command.args(["300", "taskset", "-c", "0", program, "run", "examples/engines/reconnect.cfg"]);
    command.envs([("REDIS_PORT", port), ("COUNT", count)]).current_dir(root()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    let out = child.stdout.take().ok_or("no output")?;
    let mut text = String::new();
    for line in std::io::BufRead::lines(std::io::BufReader::new(out)).map_while(Result::ok) {
        text.push_str(&line);
        text.push('\n');
        if line.starts_with("new redis") {
            break;
        }
    }
    // SAFETY: it is this function's child, and was not waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    child.wait().map_err(|error| error.to_string())?;
    Ok(text)
}

/// Three masters that have all slots between them.
struct Cluster {
    ports: Vec<u16>,
    nodes: Vec<Guard>,
    directory: std::path::PathBuf,
}

impl Cluster {
    fn new() -> Result<Cluster, String> {
        let directory = std::env::temp_dir().join(format!("sluicegate-cluster-{}", std::process::id()));
        let (mut ports, mut nodes) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let place = directory.join(number.to_string());
            std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
            let (port, bus) = (free_port()?, free_port()?);
            let (place, port_word, bus) = (place.display().to_string(), port.to_string(), bus.to_string());
            let arguments = [
                "--port",
                &port_word,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                &place,
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
            ];
            nodes.push(crate::child::start(1, "redis-server", &arguments)?);
            wait_for_port(port)?;
            ports.push(port);
        }
        let cluster = Cluster { ports, nodes, directory };
        let addresses = cluster.addresses();
        let mut arguments = vec!["--cluster", "create"];
        arguments.extend(addresses.iter().map(String::as_str));
        arguments.push("--cluster-yes");
        output("redis-cli", &arguments).ok_or("redis-cli --cluster create failed")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        for port in &cluster.ports {
            let port = port.to_string();
            while !output("redis-cli", &["-p", &port, "cluster", "info"]).is_some_and(|text| text.contains("state:ok"))
            {
                if Instant::now() > deadline {
                    return Err("the cluster is not complete after 30 s".to_owned());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(cluster)
    }

    fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    fn section(&self) -> String {
        let mut text = String::from("\nredis data\n    mode cluster\n");
        for (number, address) in self.addresses().iter().enumerate() {
            let _ = writeln!(text, "    server n{number} {address}");
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
