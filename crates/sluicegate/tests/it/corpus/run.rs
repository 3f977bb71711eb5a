//! A run of one case in one program.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use regex::{Captures, Regex};
use sluicegate_testkit::{Listening, PATIENCE, Program};

use super::case::{Case, Step};
use super::client::{Connection, begun};
use super::mask::{self, Ports};
use super::origin::Origin;
use super::{DEFAULTS, GLOBAL};
use crate::BINARY;
use crate::http::normal::normalise;

#[derive(Clone, Copy, PartialEq)]
pub enum Which {
    Haproxy,
    Sluicegate,
}

/// The result of a run.
pub struct Gone {
    pub text: String,
    /// The number of log lines in it.
    pub lines: usize,
}

/// A placeholder `@name` that follows no letter or digit.
static PLACE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(^|[^0-9A-Za-z_])@([a-z][a-z0-9_]*)").expect("good"));
static BINARY_PLACE: LazyLock<regex::bytes::Regex> =
    LazyLock::new(|| regex::bytes::Regex::new(r"(?-u)(^|[^0-9A-Za-z_])@([a-z][a-z0-9_]*)").expect("good"));

/// The time limit for an expected log line.
const LOG_PATIENCE: Duration = Duration::from_secs(8);

/// Sockets and directories to which the placeholders of a case refer.
struct Places {
    directory: tempfile::TempDir,
    binds: Vec<(String, Listening)>,
    origins: Vec<Origin>,
    log: UdpSocket,
}

impl Places {
    fn new(case: &Case) -> Result<Places, String> {
        let directory = tempfile::tempdir().expect("a folder");
        let log = UdpSocket::bind("127.0.0.1:0").expect("a loopback port");
        let mut places = Places { directory, binds: Vec::new(), origins: Vec::new(), log };
        for (_, line) in case.configuration.iter().filter(|(_, line)| line.trim_start().starts_with("bind ")) {
            for place in PLACE.captures_iter(line) {
                if !matches!(&place[2], "dir" | "log") {
                    let listening = if line.contains(" v6") { Listening::v6() } else { Listening::new() };
                    places.binds.push((place[2].to_owned(), listening));
                }
            }
        }
        for (name, script) in &case.origins {
            places.origins.push(Origin::start(name, script.clone()));
        }
        for (_, line) in &case.configuration {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["server" | "server-template", _, rest @ ..] = &words[..] {
                for word in rest.iter().filter_map(|word| word.strip_prefix('@')) {
                    if !word.starts_with("dir")
                        && word != "down"
                        && places.origins.iter().all(|origin| origin.name != word)
                    {
                        places.origins.push(Origin::start(word, Vec::new()));
                    }
                }
            }
        }
        Ok(places)
    }

    /// Returns the value of a placeholder; in `bind` lines it is a descriptor.
    fn value(&self, name: &str, binds: bool) -> Option<String> {
        if let Some((_, listening)) = self.binds.iter().find(|(bind, _)| bind == name) {
            return Some(if binds { listening.word() } else { listening.address() });
        }
        if let Some(origin) = self.origins.iter().find(|origin| origin.name == name) {
            return Some(format!("127.0.0.1:{}", origin.port));
        }
        match name {
            "dir" => Some(self.directory.path().to_str().expect("a UTF-8 path").to_owned()),
            "log" => Some(self.log.local_addr().expect("bound").to_string()),
            "down" => Some("127.0.0.1:1".to_owned()),
            _ => None,
        }
    }

    fn fill(&self, line: &str, binds: bool) -> Result<String, String> {
        let mut unknown = None;
        let text = PLACE.replace_all(line, |found: &Captures<'_>| match self.value(&found[2], binds) {
            Some(value) => format!("{}{value}", &found[1]),
            None => {
                unknown = Some(found[2].to_owned());
                String::new()
            }
        });
        match unknown {
            Some(name) => Err(format!("unknown place @{name}")),
            None => Ok(text.into_owned()),
        }
    }

    fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let value = |found: &regex::bytes::Captures<'_>| {
            let name = String::from_utf8_lossy(&found[2]).into_owned();
            match self.value(&name, false) {
                Some(value) => [&found[1], value.as_bytes()].concat(),
                None => found[0].to_vec(),
            }
        };
        BINARY_PLACE.replace_all(bytes, value).into_owned()
    }

    fn configuration(&self, case: &Case) -> Result<String, String> {
        let mut text = self.fill(GLOBAL, false)?;
        if !case.configuration.iter().any(|(_, line)| line.starts_with("defaults")) {
            text += &self.fill(DEFAULTS, false)?;
        }
        for (number, line) in &case.configuration {
            let filled = self.fill(line, line.trim_start().starts_with("bind "));
            text += &filled.map_err(|fault| format!("{}.txt:{number}: {fault}", case.name))?;
            text.push('\n');
        }
        Ok(text)
    }
}

/// Returns the program of `CORPUS_HAPROXY`, which replaces haproxy 2.6.
pub fn other_haproxy() -> Option<PathBuf> {
    std::env::var_os("CORPUS_HAPROXY").map(PathBuf::from)
}

/// Runs the case's client against the program; `lines` is the number of expected log lines, if known.
pub fn run(case: &Case, which: Which, lines: Option<usize>) -> Result<Gone, String> {
    let places = Places::new(case)?;
    let directory = places.directory.path();
    let path = directory.join("case.cfg");
    std::fs::write(&path, places.configuration(case)?).expect("writable");
    for (name, text) in &case.files {
        std::fs::write(directory.join(name), places.fill(text, false)?.as_bytes()).expect("writable");
    }
    let link = directory.join("haproxy");
    let program = match which {
        Which::Haproxy if other_haproxy().is_some() => other_haproxy().unwrap_or_default(),
        Which::Haproxy if case.newer => crate::workspace().join("target/peers/bin/haproxy-2.8"),
        Which::Haproxy => "/usr/sbin/haproxy".into(),
        Which::Sluicegate => BINARY.into(),
    };
    std::os::unix::fs::symlink(program, &link).expect("a link");
    let mut command = Command::new(&link);
    command.envs(case.environment.iter().map(|(name, value)| (name, value)));
    if case.client.is_empty() {
        return Ok(checked(command.arg("-c").arg("-f").arg(&path)));
    }
    command.arg("-db").arg("-f").arg(&path).current_dir(directory);
    let fds: Vec<_> = places.binds.iter().map(|(_, listening)| listening.fd()).collect();
    let program = Program::start(command, &fds);
    let of_haproxy = case.haproxy.as_deref().filter(|_| which == Which::Haproxy && other_haproxy().is_none());
    let mut session = Session {
        case,
        expected: of_haproxy.or(case.expected.as_deref()).unwrap_or_default(),
        places: &places,
        program,
        connections: Vec::new(),
        current: 0,
        cli: Vec::new(),
        logged: Vec::new(),
    };
    for step in &case.client {
        session.step(step).map_err(|fault| format!("{fault}\n{}", session.program.output()))?;
    }
    session.end(lines)
}

/// A case without a client is only checked.
fn checked(command: &mut Command) -> Gone {
    let output = command.output().expect("starts");
    let text =
        if output.status.success() { "the configuration is accepted\n" } else { "the configuration is refused\n" };
    Gone { text: text.to_owned(), lines: 0 }
}

/// Returns the number of log lines in an expected text.
pub fn logged_lines(expected: &str) -> usize {
    expected.lines().skip_while(|line| *line != "log").skip(1).take_while(|line| line.starts_with("  ")).count()
}

struct Session<'a> {
    case: &'a Case,
    /// The expected text, if known.
    expected: &'a str,
    places: &'a Places,
    program: Program,
    connections: Vec<Connection>,
    current: usize,
    /// Commands and their answers.
    cli: Vec<(String, String)>,
    logged: Vec<String>,
}

impl Session<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Connect { name, bind, from } => {
                let bind = match bind {
                    Some(name) => self.places.binds.iter().find(|(bind, _)| bind == name),
                    None => self.places.binds.first(),
                };
                let (_, listening) = bind.ok_or("no such bind")?;
                let to: SocketAddr = listening.address().parse().expect("an address");
                let connection = Connection::open(name, to, *from).map_err(|error| error.to_string())?;
                self.connections.push(connection);
                self.current = self.connections.len() - 1;
            }
            Step::Use(name) => {
                let at = self.connections.iter().rposition(|connection| connection.name == *name);
                self.current = at.ok_or_else(|| format!("no connection {name}"))?;
            }
            Step::Send(bytes) => {
                let bytes = self.places.bytes(bytes);
                self.connection()?.send(&bytes);
            }
            Step::Request { bytes, head } => {
                let bytes = self.places.bytes(bytes);
                let connection = self.connection()?;
                connection.head |= head;
                connection.send(&bytes);
                connection.read(*head);
            }
            Step::Read => self.connection()?.read(false),
            Step::Wait(text) => self.connection()?.wait(text),
            Step::Finish => self.connection()?.finish(),
            Step::Closed => self.connection()?.closed(),
            Step::Reset => self.connection()?.reset(),
            Step::Seen(name, text) => {
                let origin = self.origin(name)?;
                poll(&format!("{name} to see {}", String::from_utf8_lossy(text)), || origin.has_seen(text))?;
            }
            Step::Release(name) => self.origin(name)?.release(),
            Step::Cli(line) => {
                let line = self.places.fill(line, false)?;
                let mut answer = self.ask(&line)?;
                // A stream is logged before it releases its entries; no case leaves one in use.
                if answer.contains(" use=") {
                    poll("the end of what uses the table", || {
                        answer = self.ask(&line).unwrap_or_default();
                        answer.matches(" use=").count() == answer.matches(" use=0 ").count()
                    })?;
                }
                self.cli.push((line, answer));
            }
            Step::Await { row, column, value } => {
                let wanted = format!(" {column}={value}");
                let (proxy, name) = row.split_once('/').ok_or("a row is PROXY/NAME")?;
                let begin = format!("{proxy} {name} ");
                poll(&format!("{row} to have {column} {value}"), || {
                    let csv = self.ask("show stat").unwrap_or_default();
                    let rows = mask::statistics(&csv, &Ports::new(Vec::new()));
                    rows.lines().any(|row| row.starts_with(&begin) && format!("{row} ").contains(&format!("{wanted} ")))
                })?;
            }
            Step::Idle => {
                self.end_connections();
                poll("the end of all sessions", || idle(&self.ask("show stat").unwrap_or_default()))?;
            }
            Step::Logged(count) => self.receive_log(*count),
        }
        Ok(())
    }

    fn origin(&self, name: &str) -> Result<&Origin, String> {
        self.places.origins.iter().find(|origin| origin.name == name).ok_or_else(|| format!("no server {name}"))
    }

    /// Returns the current connection; the first one is opened when it is needed.
    fn connection(&mut self) -> Result<&mut Connection, String> {
        if self.connections.is_empty() {
            self.step(&Step::Connect { name: "1".to_owned(), bind: None, from: None })?;
        }
        Ok(&mut self.connections[self.current])
    }

    fn ask(&self, line: &str) -> Result<String, String> {
        ask(&self.places.directory.path().join("stats"), line)
    }

    /// Receives the available log lines; waits until there are at least `count` in all, or for the time limit.
    fn receive_log(&mut self, count: usize) {
        let mut buffer = [0; 65536];
        let deadline = Instant::now() + LOG_PATIENCE;
        loop {
            let due = self.logged.len() < count;
            let _ = self.places.log.set_nonblocking(!due);
            let _ = self.places.log.set_read_timeout(Some(Duration::from_millis(100)));
            match self.places.log.recv(&mut buffer) {
                Ok(length) => self.logged.push(String::from_utf8_lossy(&buffer[..length]).into_owned()),
                Err(_) if due && Instant::now() < deadline => {}
                Err(_) => return,
            }
        }
    }

    /// Ends all connections. haproxy drops pipelined requests if it sees the end of the connection before their turn,
    /// so the end is sent when only the last response is missing.
    fn end_connections(&mut self) {
        for connection in &mut self.connections {
            connection.begun(responses(self.expected, &connection.name).saturating_sub(1));
            connection.end();
        }
    }

    /// Ends all connections and returns what is compared.
    fn end(mut self, lines: Option<usize>) -> Result<Gone, String> {
        self.end_connections();
        let mut csv = String::new();
        let mut runs = true;
        let over = poll("the end of all sessions", || {
            runs = self.program.is_running();
            csv = if runs { self.ask("show stat").unwrap_or_default() } else { String::new() };
            !runs || idle(&csv)
        });
        let over = if runs { over } else { Err("it has ended".to_owned()) };
        let over = over.map_err(|fault| format!("{fault}\n{csv}"));
        over.map_err(|fault| format!("{fault}\n{}", self.program.output()))?;
        self.receive_log(lines.unwrap_or(0));
        // Data sent to servers may still be in flight.
        self.program.signal(libc::SIGKILL);
        self.program.wait();
        for origin in &self.places.origins {
            origin.read_to_end()?;
        }
        let mut ports: Vec<(u16, String)> = Vec::new();
        for connection in &self.connections {
            // Two connections may have had the same port, one after the other.
            ports.push((connection.port, "client".to_owned()));
        }
        for (name, listening) in &self.places.binds {
            ports.push((listening.port(), name.clone()));
        }
        for origin in &self.places.origins {
            ports.push((origin.port, origin.name.clone()));
            ports.extend(origin.peers().into_iter().map(|port| (port, format!("to {}", origin.name))));
        }
        let told = [Some(&self.case.before), self.case.expected.as_ref(), self.case.haproxy.as_ref()];
        let ports = Ports::new(ports).but(told.into_iter().flatten());
        let directory = self.places.directory.path().to_str().expect("a UTF-8 path");
        let mut text = String::new();
        let mut part = |title: String, content: &str| {
            if !content.is_empty() {
                let content = mask::visible(&content.replace(directory, "@dir"));
                text.push_str(&format!("{title}\n"));
                for line in content.lines() {
                    text.push_str(format!("  {line}").trim_end());
                    text.push('\n');
                }
            }
        };
        for connection in &self.connections {
            let received = mask::text(&transcript(&connection.received, connection.head), &ports);
            part(format!("client {}", connection.name), &received);
        }
        for origin in &self.places.origins {
            for bytes in origin.received() {
                part(format!("server {}", origin.name), &mask::text(&transcript(&bytes, false), &ports));
            }
        }
        for (line, answer) in &self.cli {
            part(format!("cli {}", line.replace(directory, "@dir")), &mask::text(answer.trim_end(), &ports));
        }
        if self.case.bytes_only {
            // A text that is read from a file ends with its last line.
            text.truncate(text.trim_end_matches('\n').len() + 1);
            return Ok(Gone { text, lines: 0 });
        }
        let log: Vec<String> = self.logged.iter().map(|line| mask::log(line, &ports)).collect();
        part("log".to_owned(), &log.join("\n"));
        part("statistics".to_owned(), &mask::statistics(&csv, &ports));
        Ok(Gone { text, lines: self.logged.len() })
    }
}

/// Returns HTTP messages with names in lower case and joined chunks; anything else is unchanged.
fn transcript(bytes: &[u8], head: bool) -> String {
    if bytes.starts_with(b"PROXY ") {
        let end = super::find(bytes, b"\r\n").map_or(bytes.len(), |end| end + 2);
        return format!("{}{}", String::from_utf8_lossy(&bytes[..end]), transcript(&bytes[end..], head));
    }
    if let Some(rest) = bytes.strip_prefix(b"\r\n\r\n\0\r\nQUIT\n") {
        let (text, rest) = second_version(rest);
        return format!("PROXY v2 {text}\n{}", transcript(rest, head));
    }
    let line = &bytes[..super::find(bytes, b"\r\n").unwrap_or(bytes.len())];
    if super::find(line, b"HTTP/1.").is_some() { normalise(bytes, head) } else { crate::http::normal::text(bytes) }
}

/// Returns the PROXY header of version 2 that follows its signature, as text, and the bytes behind it.
fn second_version(bytes: &[u8]) -> (String, &[u8]) {
    let [command, family, high, low, rest @ ..] = bytes else { return ("cut off".to_owned(), &[]) };
    let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
    let (addresses, rest) = rest.split_at(length);
    let text = match addresses {
        [a, b, c, d, e, f, g, h, p, q, r, s, more @ ..] if *family == 0x11 => {
            let (from, to) = (u16::from_be_bytes([*p, *q]), u16::from_be_bytes([*r, *s]));
            format!("{a}.{b}.{c}.{d}:{from} {e}.{f}.{g}.{h}:{to} {more:02x?}")
        }
        other => format!("{other:02x?}"),
    };
    (format!("{command:02x} {family:02x} {text}"), rest)
}

fn poll(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE / 3;
    while !condition() {
        if Instant::now() > deadline {
            return Err(format!("waited for {what}"));
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(())
}

fn ask(path: &Path, line: &str) -> Result<String, String> {
    use std::io::Read;
    let mut stream = None;
    poll("the stats socket", || {
        stream = UnixStream::connect(path).ok();
        stream.is_some()
    })?;
    let mut stream = stream.expect("polled for");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    stream.write_all(format!("{line}\n").as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the number of responses that a client gets in an expected text.
fn responses(expected: &str, client: &str) -> usize {
    let title = format!("client {client}");
    let of_client = expected.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !is_title(line));
    of_client.map(|line| begun(line.as_bytes())).sum()
}

fn is_title(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(' ')
}

/// Returns whether no row has a session.
fn idle(csv: &str) -> bool {
    let mut lines = csv.lines();
    let header = lines.next().unwrap_or_default();
    let column = |name: &str| header.trim_start_matches("# ").split(',').position(|other| other == name);
    let (Some(queued), Some(sessions)) = (column("qcur"), column("scur")) else { return false };
    lines.filter(|line| !line.is_empty()).all(|line| {
        let values: Vec<&str> = line.split(',').collect();
        [queued, sessions].iter().all(|at| matches!(values.get(*at).copied(), Some("" | "0")))
    })
}
