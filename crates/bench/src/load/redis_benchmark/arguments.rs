//! The options of redis-benchmark.

use std::io::Read;
use std::path::PathBuf;

use rustls::SupportedCipherSuite;
use sluicegate_tls::suite;

use super::tests_of;
use crate::load::arguments::tls::TlsOptions;
use crate::load::arguments::{MAX_BYTES, MAX_CONNECTIONS, MAX_PIPELINE, redis_server};
use crate::load::redis::Login;
use crate::load::target::Server;
use crate::load::tls::TlsPlan;

/// The options that neither `sluicegate bench redis` nor memtier_benchmark has.
const OWN: &[&str] = &[
    "-3",
    "--dbnum",
    "--cluster",
    "--enable-tracking",
    "-k",
    "-q",
    "--precision",
    "--csv",
    "-l",
    "-I",
    "-e",
    "--cacertdir",
    "--tls-ciphers",
    "--tls-ciphersuites",
];

/// The most threads.
const MAX_THREADS: u64 = 500;

/// The highest number of `-r`: the largest with twelve digits, and one more.
const MAX_KEYS: u64 = 1_000_000_000_000;

/// The options, checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) server: Server,
    pub(super) login: Login,
    pub(super) tls: Option<TlsPlan>,
    /// Whether `--sni` names the server.
    pub(super) has_server_name: bool,
    pub(super) clients: u64,
    pub(super) requests: u64,
    pub(super) data_size: usize,
    /// 0: one thread, and the report says that there are no more.
    pub(super) threads: u64,
    pub(super) cluster: bool,
    pub(super) keep_alive: bool,
    /// The number of keys of `__rand_int__`; `None`: it stays as it is.
    pub(super) keys: Option<u64>,
    pub(super) pipeline: u64,
    pub(super) quiet: bool,
    pub(super) csv: bool,
    pub(super) precision: u8,
    pub(super) loops: bool,
    pub(super) idle: bool,
    pub(super) tests: Option<Vec<String>>,
    pub(super) command: Vec<Vec<u8>>,
    /// The command's words as given.
    pub(super) title: String,
    pub(super) seed: Option<u64>,
    pub(super) warnings: Vec<&'static str>,
}

/// What is asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    Help,
    Version,
    Run(Box<Options>),
}

/// Returns whether the words after `bench redis` are redis-benchmark's: one of them is an option that only it has, or `-t`
/// has names of its tests.
pub(crate) fn is_meant(words: &[String]) -> bool {
    let names = |text: &str| text.split(',').all(tests_of::is_name);
    words.iter().enumerate().any(|(at, word)| match word.as_str() {
        "-t" => words.get(at + 1).is_some_and(|value| names(value)),
        word => OWN.contains(&word),
    })
}

/// Parses redis-benchmark's command line.
pub(super) fn parse(line: &[String]) -> Result<Asked, String> {
    let mut options = Options {
        server: Server::Tcp("127.0.0.1".to_owned(), 6379),
        login: Login::default(),
        tls: None,
        has_server_name: false,
        clients: 50,
        requests: 100_000,
        data_size: 3,
        threads: 0,
        cluster: false,
        keep_alive: true,
        keys: None,
        pipeline: 1,
        quiet: false,
        csv: false,
        precision: 3,
        loops: false,
        idle: false,
        tests: None,
        command: Vec::new(),
        title: String::new(),
        seed: None,
        warnings: Vec::new(),
    };
    let (mut host, mut port, mut socket) = ("127.0.0.1".to_owned(), 6379, None);
    let (mut tls, mut reads_input) = (TlsOptions::default(), false);
    let (mut ciphers, mut ciphersuites) = (None, None);
    let mut words = line.iter();
    while let Some(word) = words.next() {
        let name = word.as_str();
        if !name.starts_with('-') {
            let command: Vec<&str> = [name].into_iter().chain(words.map(String::as_str)).collect();
            options.title = command.join(" ");
            options.command = command.iter().map(|word| word.as_bytes().to_vec()).collect();
            break;
        }
        let mut text = || words.next().cloned().ok_or_else(|| invalid(name));
        match name {
            "--help" => return Ok(Asked::Help),
            "-v" | "--version" => return Ok(Asked::Version),
            "-h" => host = text()?,
            "-p" => port = number(name, &text()?, 1, 65535)? as u16,
            "-s" => socket = Some(PathBuf::from(text()?)),
            "-a" => options.login.password = Some(text()?),
            "--user" => options.login.user = Some(text()?),
            "-u" => {
                let uri = text()?;
                if !uri.contains("://") {
                    return Err(format!("-u {uri}: redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB] is expected"));
                }
                tls.tls |= uri.starts_with("rediss://");
                if let Server::Tcp(name, number) = redis_server(&uri, &mut options.login)? {
                    (host, port) = (name, number);
                }
            }
            "-c" => options.clients = number(name, &text()?, 1, MAX_CONNECTIONS)?,
            "-n" => options.requests = number(name, &text()?, 1, u64::MAX >> 1)?,
            "-d" => options.data_size = number(name, &text()?, 1, MAX_BYTES)? as usize,
            "--dbnum" => options.login.db = number(name, &text()?, 0, u64::from(u32::MAX))? as u32,
            "-3" => options.login.resp3 = true,
            "--threads" => options.threads = number(name, &text()?, 0, MAX_THREADS)?,
            "--cluster" => options.cluster = true,
            "--enable-tracking" => options.login.tracking = true,
            "-k" => options.keep_alive = number(name, &text()?, 0, 1)? == 1,
            "-r" => options.keys = Some(number(name, &text()?, 0, MAX_KEYS)?),
            "-P" => options.pipeline = number(name, &text()?, 1, MAX_PIPELINE)?,
            "-q" => options.quiet = true,
            "--csv" => options.csv = true,
            "--precision" => options.precision = number(name, &text()?, 0, 4)? as u8,
            "-l" => options.loops = true,
            "-I" => options.idle = true,
            "-e" => options.warnings.push("-e option has no effect. The first error reply ends the run."),
            "-x" => reads_input = true,
            "--seed" => options.seed = Some(number(name, &text()?, 0, u64::MAX)?),
            "-t" => {
                let text = text()?.to_ascii_lowercase();
                let names: Vec<String> = text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
                if let Some(unknown) = names.iter().find(|name| !tests_of::is_name(name)) {
                    return Err(format!(
                        "-t: there is no test '{unknown}'; there are {}",
                        tests_of::names().join(", ")
                    ));
                }
                options.tests = Some(names);
            }
            "--tls" => tls.tls = true,
            "--sni" => tls.server_name = Some(text()?),
            "--cacert" => tls.authorities = Some(PathBuf::from(text()?)),
            "--insecure" => tls.insecure = true,
            "--cert" => tls.certificate = Some(PathBuf::from(text()?)),
            "--key" => tls.key = Some(PathBuf::from(text()?)),
            "--cacertdir" => tls.directory = Some(PathBuf::from(text()?)),
            "--tls-ciphers" => ciphers = Some(text()?),
            "--tls-ciphersuites" => ciphersuites = Some(text()?),
            _ => return Err(invalid(name)),
        }
    }
    if options.login.user.is_some() && options.login.password.is_none() {
        return Err("--user wants -a".to_owned());
    }
    if reads_input && !options.command.is_empty() {
        options.command.push(input()?);
    }
    if !options.command.is_empty() && options.tests.is_some() {
        options.warnings.push("Option -t is ignored.");
    }
    let host = if host.contains(':') { host.trim_matches(['[', ']']).to_owned() } else { host };
    options.server = match socket {
        Some(path) => Server::Unix(path),
        None => Server::Tcp(host.clone(), port),
    };
    if options.cluster {
        for (is_given, name) in [(matches!(options.server, Server::Unix(_)), "-s"), (options.login.db > 0, "--dbnum")] {
            if is_given {
                return Err(format!("--cluster does not go with {name}"));
            }
        }
    }
    if tls.tls {
        let name = match &options.server {
            Server::Tcp(host, _) => Some(host.as_str()),
            Server::Unix(_) => None,
        };
        tls.authorities = tls.authorities.filter(|_| !tls.insecure);
        tls.directory = tls.directory.filter(|_| !tls.insecure);
        tls.suites = suites(ciphers.as_deref(), ciphersuites.as_deref(), &mut options.warnings)?;
        options.has_server_name = tls.server_name.is_some();
        options.tls = Some(tls.plan(name, "a unix socket has no name", &[])?);
    }
    Ok(Asked::Run(Box::new(options)))
}

/// Returns the suites of both lists; one that is not given leaves all of its version.
fn suites(
    ciphers: Option<&str>,
    ciphersuites: Option<&str>,
    warnings: &mut Vec<&'static str>,
) -> Result<Option<Vec<SupportedCipherSuite>>, String> {
    if ciphers.or(ciphersuites).is_none() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for (option, text, parse, default) in [
        (
            "--tls-ciphersuites",
            ciphersuites,
            suite::parse_tls13 as fn(&str) -> _,
            suite::default_tls13().collect::<Vec<_>>(),
        ),
        ("--tls-ciphers", ciphers, suite::parse_tls12, suite::default_tls12().collect()),
    ] {
        match text.map(parse).transpose().map_err(|error: String| format!("{option}: {error}"))? {
            Some(parsed) => {
                if !parsed.unknown.is_empty() {
                    warnings.push("Suites that are not known are left out of --tls-ciphers and --tls-ciphersuites.");
                }
                all.extend_from_slice(&parsed.list);
            }
            None => all.extend(default),
        }
    }
    Ok(Some(all))
}

fn invalid(name: &str) -> String {
    format!("Invalid option \"{name}\" or option argument missing")
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{name} {text}: a number from {min} to {max} is expected")),
    }
}

/// Reads the last argument from standard input.
fn input() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("-x: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("-x: more than {MAX_BYTES} bytes"));
    }
    Ok(bytes)
}
