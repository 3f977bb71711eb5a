//! Instruction counts of the hot paths, which say the same on a busy machine as on a quiet one.
//!
//! Each path runs under callgrind with `FEW` and with `MANY` repetitions; the difference, divided by the difference in
//! repetitions, is one repetition without the start. In the proxy only the worker's thread counts: what others do
//! depends on the time that passes. The kernel's part is not seen. The build is the plain one: [what a program was seen
//! doing](crate::release) is not the same twice.
//!
//! What was accepted stands in docs/benchmarks/guard.md, a row per version of rustc and level of the CPU (libraries
//! choose their code by it).

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench::{Guard, free_port, wait_for_port};
use crate::run::{PACKAGED, built, output, root, run};

const FEW: u64 = 2_000;
const MANY: u64 = 6_000;
/// Growth that is named, as a part of the accepted count.
const GROWTH: f64 = 0.03;
/// Commands of one pipeline of SET.
const PIPELINE: u64 = 16;

const PATHS: [&str; 7] = [
    "parse a request",
    "redirect",
    "five rules",
    "Lua action with INCRBY",
    "SET from RESP",
    "EVALSHA of INCR",
    "EVALSHA of fifty commands",
];

const RULES: &str = "http-request set-header X-Client %[src]
    http-request set-var(txn.path) path
    http-request deny if { path_beg /admin }
    http-request add-header X-Site known if { hdr(host) -i guard }
    http-request del-header Cookie
    ";

const SCRIPT: &str = "local store = core.redis('main')
core.register_action('count', {'http-req'}, function(txn) store:incrby(txn.sf:src(), 1) end)
";

/// What EVALSHA runs, with its keys and its argument.
const ONE_COMMAND: (&str, &[&str]) = ("return redis.call('INCR', KEYS[1])", &["1", "counter"]);
const FIFTY_COMMANDS: (&str, &[&str]) = (
    "for _, key in ipairs(KEYS) do for _, message in ipairs(cjson.decode(ARGV[1])) do \
     redis.call('LPUSH', key, message) redis.call('LTRIM', key, 0, 50) end end return 1",
    &["5", "l1", "l2", "l3", "l4", "l5", "[1,2,3,4,5]"],
);

/// `bench guard [--write]`.
///
/// # Errors
/// Where a count grew by 3 % or more over the accepted one, or nothing was accepted for this compiler and CPU.
pub fn guard(arguments: &[&str]) -> Result<(), String> {
    let write = match arguments {
        [] => false,
        ["--write"] => true,
        other => return Err(format!("unknown: {}", other.join(" "))),
    };
    output("valgrind", &["--version"]).ok_or("valgrind is missing: `cargo xtask test --install` brings it")?;
    run("cargo", &["build", "--profile", PACKAGED, "-p", "sluicegate"])?;
    run("cargo", &["build", "--profile", PACKAGED, "-p", "sluicegate-wire", "--example", "parse"])?;
    let counts = Measurement::new()?.counts()?;
    let file = root().join("docs/benchmarks/guard.md");
    let mut rows = read(&file);
    let key = [rustc(), level()];
    let accepted = rows.iter().find(|row| row.key == key).map(|row| row.counts.clone());
    let mut grown = Vec::new();
    for (index, (path, count)) in PATHS.iter().zip(&counts).enumerate() {
        let Some(before) = accepted.as_ref().map(|counts| counts[index]) else {
            println!("{path:<24} {count:>8}");
            continue;
        };
        let change = *count as f64 / before as f64 - 1.0;
        println!("{path:<24} {count:>8}  accepted {before:>8}  {:>+6.1} %", change * 100.0);
        if change >= GROWTH {
            grown.push(format!("{path} by {:.1} %", change * 100.0));
        }
    }
    if write {
        rows.retain(|row| row.key != key);
        rows.push(Row { key, counts });
        return std::fs::write(&file, render(&rows)).map_err(|error| format!("{}: {error}", file.display()));
    }
    match accepted {
        None => Err(format!("no counts are accepted for {} on {}: --write accepts these", key[0], key[1])),
        Some(_) if grown.is_empty() => Ok(()),
        Some(_) => Err(format!("more instructions than accepted: {}", grown.join(", "))),
    }
}

/// What callgrind writes, and the configuration, in a folder of their own.
struct Measurement(PathBuf);

impl Drop for Measurement {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Measurement {
    fn new() -> Result<Measurement, String> {
        let directory = std::env::temp_dir().join(format!("sluicegate-guard-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        std::fs::write(directory.join("count.lua"), SCRIPT).map_err(|error| error.to_string())?;
        Ok(Measurement(directory))
    }

    /// One count per path, in their order.
    fn counts(&self) -> Result<Vec<u64>, String> {
        let parse = self.parse()?;
        let plain = self.requests("", "")?;
        let rules = self.requests("", RULES)?;
        let load = format!("lua-load {}", self.0.join("count.lua").display());
        let lua = self.requests(&load, "http-request lua.count\n    ")?;
        let (rules, lua) = (rules.saturating_sub(plain), lua.saturating_sub(plain));
        Ok(vec![parse, plain, rules, lua, self.sets()?, self.scripts(ONE_COMMAND)?, self.scripts(FIFTY_COMMANDS)?])
    }

    fn parse(&self) -> Result<u64, String> {
        let program = built(PACKAGED).join("examples/parse");
        let one = |count: u64| {
            let status = self.callgrind(&program, &[&count.to_string()])?.wait()?;
            if status.success() { self.read_counts() } else { Err(format!("{}: {status}", program.display())) }
        };
        each(&one(FEW)?, &one(MANY)?)
    }

    /// Instructions of the worker per request that `rules` and a redirection answer.
    fn requests(&self, global: &str, rules: &str) -> Result<u64, String> {
        let request = b"GET / HTTP/1.1\r\nHost: guard\r\nCookie: a=b\r\nUser-Agent: guard\r\nAccept: */*\r\n\r\n";
        let configuration = |port| {
            format!(
                "global\n    nbthread 1\n    {global}\ndefaults\n    mode http\n    timeout client 10m\n\
                 store main\nlisten guard\n    bind 127.0.0.1:{port}\n    {rules}http-request redirect location /ok\n"
            )
        };
        self.serve(configuration, |stream, count| {
            let mut answer = [0; 4096];
            for _ in 0..count {
                stream.write_all(request)?;
                // One answer is one write of the proxy, and smaller than a segment.
                let got = stream.read(&mut answer)?;
                if !answer[..got].starts_with(b"HTTP/1.1 302 ") {
                    return Err(std::io::Error::other("not a redirection"));
                }
            }
            Ok(())
        })
    }

    /// Instructions of the worker per SET of a pipeline.
    fn sets(&self) -> Result<u64, String> {
        self.serve(store_alone, |stream, count| {
            let value = "v".repeat(32);
            let mut answer = vec![0; 5 * PIPELINE as usize];
            for first in (0..count).step_by(PIPELINE as usize) {
                let commands: String = (first..first + PIPELINE)
                    .map(|key| format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{:012}\r\n$32\r\n{value}\r\n", key % 1_000))
                    .collect();
                stream.write_all(commands.as_bytes())?;
                stream.read_exact(&mut answer)?;
                if !answer.starts_with(b"+OK\r\n") {
                    return Err(std::io::Error::other("not OK"));
                }
            }
            Ok(())
        })
    }

    /// Instructions of the worker per EVALSHA of a pipeline.
    fn scripts(&self, (script, words): (&str, &[&str])) -> Result<u64, String> {
        self.serve(store_alone, |stream, count| {
            let mut sha = [0; 47];
            stream.write_all(&request(&["SCRIPT", "LOAD", script]))?;
            stream.read_exact(&mut sha)?;
            let sha = String::from_utf8_lossy(&sha[5..45]).into_owned();
            let pipeline = request(&[&["EVALSHA", &sha], words].concat()).repeat(PIPELINE as usize);
            let mut answer = [0; 4096];
            for _ in 0..count / PIPELINE {
                stream.write_all(&pipeline)?;
                let mut replies = 0;
                while replies < PIPELINE as usize {
                    let got = stream.read(&mut answer)?;
                    if got == 0 || answer[..got].contains(&b'-') {
                        return Err(std::io::Error::other("an error, or none"));
                    }
                    replies += answer[..got].iter().filter(|byte| **byte == b'\n').count();
                }
            }
            Ok(())
        })
    }

    /// Runs the program with few and many of what `drive` does on one connection.
    fn serve(
        &self,
        configuration: impl Fn(u16) -> String,
        drive: impl Fn(&mut TcpStream, u64) -> std::io::Result<()>,
    ) -> Result<u64, String> {
        let one = |count| {
            let port = free_port()?;
            let file = self.0.join("guard.cfg");
            std::fs::write(&file, configuration(port)).map_err(|error| error.to_string())?;
            let program = self.callgrind(&built(PACKAGED).join("sluicegate"), &["run", &file.display().to_string()])?;
            let driven = wait_for_port(port).and_then(|()| {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
                drive(&mut stream, count).map_err(|error| format!("the program under callgrind: {error}"))
            });
            let ended = program.end("-TERM");
            driven.and(ended)?;
            self.read_counts()
        };
        each(&one(FEW)?, &one(MANY)?)
    }

    fn callgrind(&self, program: &Path, arguments: &[&str]) -> Result<Guard, String> {
        Command::new("valgrind")
            .args(["--quiet", "--tool=callgrind", "--separate-threads=yes"])
            .arg(format!("--callgrind-out-file={}", self.0.join("out").display()))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Guard::new)
            .map_err(|error| format!("valgrind: {error}"))
    }

    /// Instructions of each thread of the last run; its files are removed.
    fn read_counts(&self) -> Result<Vec<u64>, String> {
        let mut counts = Vec::new();
        for number in 1.. {
            let file = self.0.join(format!("out-{number:02}"));
            let Ok(text) = std::fs::read_to_string(&file) else { break };
            let _ = std::fs::remove_file(&file);
            let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
            counts.push(total.ok_or(format!("{} has no totals", file.display()))?);
        }
        let _ = std::fs::remove_file(self.0.join("out"));
        if counts.is_empty() { Err("callgrind wrote nothing".to_owned()) } else { Ok(counts) }
    }
}

/// A configuration with a store and nothing else.
fn store_alone(port: u16) -> String {
    format!("global\n    nbthread 1\nstore main\n    bind 127.0.0.1:{port}\n")
}

/// A command as clients send it.
fn request(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
}

/// Instructions of one repetition, in the thread that repeated.
fn each(few: &[u64], many: &[u64]) -> Result<u64, String> {
    let grown = few.iter().zip(many).map(|(few, many)| many.saturating_sub(*few)).max();
    grown.map(|grown| grown / (MANY - FEW)).ok_or_else(|| "callgrind saw no thread".to_owned())
}

/// What was accepted for a compiler and a CPU.
struct Row {
    key: [String; 2],
    counts: Vec<u64>,
}

fn read(file: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let key = [cells.next()?.to_owned(), cells.next()?.to_owned()];
        let counts: Vec<u64> = cells.map_while(|cell| cell.parse().ok()).collect();
        (counts.len() == PATHS.len()).then_some(Row { key, counts })
    })
    .collect()
}

fn render(rows: &[Row]) -> String {
    let mut text = String::from(
        "# Instructions of the hot paths\n\n`cargo xtask bench guard` counts them by callgrind and fails where one grew \
         by 3 % over what stands here; `--write` accepts what it counted. Only user space counts, and of the proxy only \
         its worker. Five rules and the Lua action are what they add to a redirection.\n\n",
    );
    let _ = writeln!(text, "| rustc | CPU | {} |\n|---|---|{}", PATHS.join(" | "), "---|".repeat(PATHS.len()));
    for Row { key: [rustc, level], counts } in rows {
        let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
        let _ = writeln!(text, "| {rustc} | {level} | {} |", counts.join(" | "));
    }
    text
}

fn rustc() -> String {
    let text = output("rustc", &["--version"]).unwrap_or_default();
    text.split_whitespace().nth(1).unwrap_or("unknown").to_owned()
}

/// The level of the CPU as valgrind shows it to programs: it knows nothing above AVX2.
fn level() -> String {
    #[cfg(target_arch = "x86_64")]
    let level = if std::arch::is_x86_feature_detected!("avx2") { "x86-64-v3" } else { "x86-64-v2" };
    #[cfg(not(target_arch = "x86_64"))]
    let level = std::env::consts::ARCH;
    level.to_owned()
}
