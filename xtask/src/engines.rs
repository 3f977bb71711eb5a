//! The cost of calling an external engine at request time, compared with haproxy and a pool in Lua.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{Bench, Sample, Setup, each, find, manner, median, stolen, table};
use crate::child::{Guard, free_port, wait_for_port};
use crate::report::{Measure, Options, Part, Report};
use crate::run::{output, root};

pub(crate) const ENGINES: Report = Report { name: "engines", title: "Engines in other processes", parts: PARTS };

const PARTS: &[Measure] = &[("calls", calls), ("reconnection", reconnection)];

/// Commands of each half of the reconnection table; the post's.
const COMMANDS: u32 = 50_000;
const SECONDS: u32 = 3;

const REDIRECT: &str = "http-request redirect location /ok";

/// `bench engines [PART…] [--runs N] [--seconds N] [--profile NAME | --program PATH] [--write]`.
pub fn engines(arguments: &[&str]) -> Result<(), String> {
    ENGINES.measure(arguments)
}

/// `calls`: what a call costs a request.
fn calls(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("calls", "Calls at request time");
    let bench = Bench::new(&options.program)?;
    let cluster = Cluster::new()?;
    let setups = setups(&bench, &cluster)?;
    let steal = stolen();
    let seconds = options.seconds(SECONDS);
    let results = bench.alternate(&setups, options.rounds(), seconds)?;
    let _ = writeln!(part.text, "{}\n{}", manner(results[0].len(), seconds, steal), table(&setups, &results));
    let figures: Vec<Vec<Vec<f64>>> =
        results.iter().map(|samples| vec![each(samples, |sample| sample.cpu_us)]).collect();
    let labels: Vec<String> = setups.iter().map(Setup::label).collect();
    part.keep("CPU µs per request", &["CPU"], labels.iter().map(String::as_str), &figures);
    goals(&mut part, &setups, &results);
    Ok(part)
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

fn goals(part: &mut Part, setups: &[Setup], results: &[Vec<Sample>]) {
    let rate = |program: &str, name: &str| {
        find(setups, results, program, name).map(|samples| median(&each(samples, |sample| sample.rate)))
    };
    let p99 = |name: &str| {
        find(setups, results, "sluicegate", name).map(|samples| median(&each(samples, |sample| sample.p99_ms)))
    };
    let mut at_least = |goal: &str, least: f64, one: Option<f64>, other: Option<f64>| {
        if let (Some(one), Some(other)) = (one, other) {
            part.goal(goal, &format!("≥ {least}"), one / other, |ratio| ratio >= least);
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
        part.goal("p99: Lua in redis-server, ms", "≤ 5", p99, |ms| ms <= 5.0);
    }
}

/// `reconnection`: the table of the post *Redis Reconnection Overhead*, and the cost of a call compared with
/// redis-benchmark.
fn reconnection(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("reconnection", "Redis Reconnection Overhead");
    let bench = Bench::new(&options.program)?;
    let port = bench.redis_port.to_string();
    let address = format!("127.0.0.1:{port}");
    let count = COMMANDS.to_string();
    let program = options.program.display().to_string();
    let own = ["-c", "0", &program, "bench", "redis", "--reconnect", "-n", &count, "--server", &address];
    let peer = ["-c", "0", "redis-benchmark", "-p", &port, "-c", "1", "-n", &count, "-t", "set", "--csv"];
    let us_of = |text: &str| Some(1e6 * real_s(text, "reuse redis")? / f64::from(COMMANDS));
    let (mut generator, mut script) = (String::new(), String::new());
    let (mut own_us, mut script_us, mut peer_us) = (Vec::new(), Vec::new(), Vec::new());
    for _ in options.rounds() {
        generator = output("taskset", &own).ok_or("sluicegate bench redis --reconnect failed")?;
        own_us.push(us_of(&generator).ok_or("the generator printed no time")?);
        script = example(&program, &port, &count)?;
        script_us.push(us_of(&script).ok_or("the example printed no time")?);
        let csv = output("taskset", &peer).ok_or("redis-benchmark failed")?;
        let rate: Option<f64> =
            csv.lines().last().and_then(|line| line.split('"').nth(3)).and_then(|word| word.parse().ok());
        peer_us.push(1e6 / rate.ok_or("redis-benchmark printed no rate")?);
    }
    let columns = ["redis-benchmark", "the generator", "the example"];
    let [peers, own, example] = [&peer_us, &own_us, &script_us].map(|values| median(values));
    let _ = writeln!(
        part.text,
        "The post of that name sets {COMMANDS} keys over one connection and over one for each: 2.83 s and 9.58 s \
         there.\n\n`examples/engines/reconnect.cfg`, the first half over the section's connection, the second over \
         sockets of the script:\n\n```\n{}```\n\n`sluicegate bench redis --reconnect`:\n\n```\n{}```\n\nMedians of {} \
         alternating runs, of which those above are the last, µs a SET over one connection: redis-benchmark {peers:.1}, \
         the generator {own:.1}, the example {example:.1}.",
        script,
        generator.replace(&address, "redis-server"),
        own_us.len(),
    );
    for (who, us) in [("of the generator", own), ("from Lua", example)] {
        let goal = format!("time of a call {who} / redis-benchmark's, one connection");
        part.goal(&goal, "≤ 1.1", us / peers, |ratio| ratio <= 1.1);
    }
    part.keep("µs a SET over one connection", &columns, ["SET"].into_iter(), &[vec![peer_us, own_us, script_us]]);
    Ok(part)
}

/// Returns the seconds by the clock in a row of the post's table.
pub(crate) fn real_s(table: &str, row: &str) -> Option<f64> {
    let line = table.lines().find(|line| line.starts_with(row))?;
    line.split(['(', ')']).nth(1)?.trim().parse().ok()
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
