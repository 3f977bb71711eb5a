//! Scripted servers, and both programs checking servers of their own with the same script.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluicegate_testkit::{Haproxy, PATIENCE, Sluicegate, wait_for};

use crate::server::fixture::Whole;

/// What a scripted server does with a connection, step by step.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Waits for bytes.
    Take,
    /// Sends these.
    Give(&'static [u8]),
    /// Closes.
    Close,
}

/// A server that does the same on every connection, and remembers what it was sent on the first.
pub struct Scripted {
    pub address: SocketAddr,
    first: Arc<Mutex<Vec<u8>>>,
    first_over: Arc<AtomicBool>,
    connections: Arc<Mutex<usize>>,
}

impl Scripted {
    pub fn new(script: &'static [Act]) -> Scripted {
        Scripted::with(move |_| script)
    }

    /// One script per connection, by its number.
    pub fn with(script: impl Fn(usize) -> &'static [Act] + Send + 'static) -> Scripted {
        let listener = sluicegate_testkit::lasting_listener();
        let address = listener.local_addr().expect("bound");
        let first = Arc::new(Mutex::new(Vec::new()));
        let first_over = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(Mutex::new(0));
        let (seen, over, count) = (first.clone(), first_over.clone(), connections.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                *count.lock().expect("no panic") += 1;
                let (seen, script) = ((number == 0).then(|| seen.clone()), script(number));
                let over = over.clone();
                std::thread::spawn(move || {
                    play(stream, script, seen.as_deref());
                    over.fetch_or(number == 0, Ordering::SeqCst);
                });
            }
        });
        Scripted { address, first, first_over, connections }
    }

    /// What came on the first connection so far.
    pub fn received(&self) -> String {
        let mut bytes = self.first.lock().expect("no panic").clone();
        // The time in a ClientHello.
        if bytes.starts_with(&[0x16, 3, 0]) && bytes.len() > 15 {
            bytes[11..15].fill(b'T');
        }
        bytes.escape_ascii().to_string()
    }

    /// The same as it came.
    pub fn bytes(&self) -> Vec<u8> {
        self.first.lock().expect("no panic").clone()
    }

    /// Waits until the first connection is over, and all of it received.
    pub fn wait_for_first(&self) {
        wait_for("the end of the first connection", || self.first_over.load(Ordering::SeqCst).then_some(()));
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        *self.connections.lock().expect("no panic")
    }
}

fn play(mut stream: TcpStream, script: &[Act], seen: Option<&Mutex<Vec<u8>>>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let take = |stream: &mut TcpStream| {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => {
                if let Some(seen) = seen {
                    seen.lock().expect("no panic").extend_from_slice(&buffer[..count]);
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            _ => false,
        }
    };
    for act in script {
        let goes_on = match act {
            Act::Take => take(&mut stream),
            Act::Give(bytes) => stream.write_all(bytes).is_ok(),
            Act::Close => return,
        };
        if !goes_on {
            return;
        }
    }
    while take(&mut stream) {}
}

/// One of the two programs, with a stats socket and its lines.
pub enum Either {
    Ours(Whole),
    Theirs(Haproxy, tempfile::TempDir),
}

const HEAD: &str = "defaults\n timeout connect 60s\n timeout server 60s\n timeout client 60s\n";

impl Either {
    /// Starts Sluicegate in this process.
    pub fn ours(text: &str) -> Either {
        Either::Ours(Whole::start(
            &format!("global\n max-spread-checks 1\n log @LOG@ format raw local0\n{}", with_logs(text)),
            1,
        ))
    }

    /// Starts Debian's haproxy.
    pub fn theirs(text: &str) -> Either {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let global = format!(
            "global\n max-spread-checks 1\n stats socket {} level admin\n log stdout format raw local0\n",
            socket.display()
        );
        let haproxy = Haproxy::start(&(global + &with_logs(text)), &[]);
        wait_for("haproxy's stats socket", || socket.exists().then_some(()));
        Either::Theirs(haproxy, directory)
    }

    fn socket(&self) -> std::path::PathBuf {
        match self {
            Either::Ours(whole) => whole.stats.clone(),
            Either::Theirs(_, directory) => directory.path().join("s"),
        }
    }

    /// A command's answer.
    pub fn ask(&self, command: &str) -> String {
        Sluicegate::stats(&self.socket(), command)
    }

    /// A column of `show stat` of `be/NAME`.
    pub fn column(&self, backend: &str, server: &str, column: &str) -> String {
        let answer = self.ask("show stat");
        let mut lines = answer.lines();
        let names: Vec<&str> = lines.next().expect("a header").trim_start_matches("# ").split(',').collect();
        let index = names.iter().position(|name| *name == column).unwrap_or_else(|| panic!("no column {column}"));
        let line = lines.find(|line| line.starts_with(&format!("{backend},{server},")));
        cells(line.unwrap_or_else(|| panic!("no {backend}/{server}:\n{answer}")))[index].clone()
    }

    fn text(&self) -> String {
        match self {
            Either::Ours(whole) => whole.log_lines(0).join("\n"),
            Either::Theirs(haproxy, _) => haproxy.program.output(),
        }
    }

    /// The lines about servers and backends so far, less what differs from run to run.
    pub fn lines(&self) -> Vec<String> {
        // A line of its own behind all others shows that they have come.
        let own = || self.text().lines().filter(|line| line.starts_with("Server sentinel/z ")).count();
        let before = own();
        self.ask("set server sentinel/z state drain");
        self.ask("set server sentinel/z state ready");
        wait_for("the last line", || (own() >= before + 2).then_some(()));
        self.lines_so_far()
    }

    /// Those that have come.
    fn lines_so_far(&self) -> Vec<String> {
        let told = |line: &&str| {
            let starts = ["Server ", "Backup Server ", "Health check ", "Agent check ", "backend ", "proxy "];
            starts.iter().any(|start| line.starts_with(start)) && !line.contains("sentinel")
        };
        self.text().lines().filter(told).map(normal).collect()
    }

    pub fn address(&self) -> String {
        match self {
            Either::Ours(whole) => whole.address(),
            Either::Theirs(..) => panic!("haproxy's frontends are inherited"),
        }
    }
}

fn with_logs(text: &str) -> String {
    let text = if text.contains("defaults\n") { text.to_owned() } else { format!("{HEAD}{text}") };
    text.replacen("defaults\n", "defaults\n log global\n", 1) + "\nbackend sentinel\n server z 127.0.0.1:1\n"
}

/// A CSV line's cells.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

/// A line without times and ports.
pub fn normal(line: &str) -> String {
    let mut line = line.to_owned();
    if let Some(start) = line.find("check duration: ") {
        let from = start + "check duration: ".len();
        let end = line[from..].find("ms").map_or(line.len(), |end| from + end);
        line.replace_range(from..end, "N");
    }
    if let Some(start) = line.find("(connect port ") {
        let from = start + "(connect port ".len();
        let end = line[from..].find(')').map_or(line.len(), |end| from + end);
        line.replace_range(from..end, "N");
    }
    line
}

/// What later versions say, in the words of 2.6: socket errors have names since 3.1, passed checks of MySQL and LDAP an info,
/// a comment behind an empty answer has no quotes, and expected bytes have digits, where 2.6 has them as they are up to a
/// zero. An empty answer to a check of Redis or SMTP has no info in 3.2.
fn in_older_words(rows: &str, shown: &str) -> String {
    let mut text = shown.to_owned();
    for name in ["ECONNREFUSED", "ECONNRESET", "EPIPE", "ENETUNREACH"] {
        let start = format!("{name} returned by OS (");
        while let Some(at) = text.find(&start) {
            let Some(end) = text[at..].find(')') else { break };
            let words = text[at + start.len()..at + end].to_owned();
            text.replace_range(at..=at + end, &words);
        }
    }
    text = text.replace("(expect binary '4142')", "(expect binary 'AB')");
    text = text.replace("(expect binary '4100205C0D0A093DFF')", "(expect binary 'A')");
    let empty = "TCPCHK got an empty response at step ";
    if rows.contains("redis-check") || rows.contains("smtpchk") {
        text = text.replace(&format!("last_chk: {empty}2\n"), "last_chk: \n");
        text = text.replace(&format!("info: \"{empty}2\", "), "");
    }
    if rows.contains("expect string hello comment why") {
        text = text.replace(&format!("{empty}1 comment: 'why'"), &format!("{empty}1 comment: why"));
    }
    let tells = (rows.contains("mysql-check") || rows.contains("ldap-check")) && text.contains("check_status: L7OK\n");
    if tells {
        let line =
            |line: &str| if line.starts_with("last_chk: ") { "last_chk: \n".to_owned() } else { format!("{line}\n") };
        text = text.lines().map(line).collect();
    }
    text
}

/// What this process makes of each case.
pub fn ours(cases: &[Case]) -> Vec<String> {
    run(cases, Either::ours, "")
}

/// What is compared of a server that was checked.
pub const COLUMNS: &[&str] = &[
    "status",
    "check_status",
    "check_code",
    "last_chk",
    "check_desc",
    "chkfail",
    "chkdown",
    "check_rise",
    "check_fall",
    "check_health",
    "weight",
    "slim",
    "agent_status",
    "agent_code",
    "last_agt",
    "agent_desc",
    "agent_rise",
    "agent_fall",
    "agent_health",
];

/// A backend with one server that is checked once.
pub struct Case {
    /// The backend's rows.
    pub rows: &'static str,
    /// Words of its server behind `check`.
    pub words: &'static str,
    /// What the server does.
    pub script: &'static [Act],
    /// What its agent does, which is asked in place of a check.
    pub agent: Option<&'static [Act]>,
}

/// A case without further words.
pub const fn case(rows: &'static str, script: &'static [Act]) -> Case {
    Case { rows, words: "", script, agent: None }
}

/// An agent that answers like this.
pub const fn agent(words: &'static str, script: &'static [Act]) -> Case {
    Case { rows: "", words, script: &[], agent: Some(script) }
}

/// What one program made of a case: what it sent, its columns, its lines.
fn run(cases: &[Case], start: impl Fn(&str) -> Either, defaults: &str) -> Vec<String> {
    let servers: Vec<Scripted> = cases.iter().map(|case| Scripted::new(case.agent.unwrap_or(case.script))).collect();
    let mut text = format!("{HEAD}{defaults}");
    for (number, (case, server)) in cases.iter().zip(&servers).enumerate() {
        let (rows, words, address) = (case.rows, case.words, server.address);
        let check = match case.agent {
            None => "check inter 1h".to_owned(),
            Some(_) => format!("agent-check agent-inter 1h agent-port {}", address.port()),
        };
        text.push_str(&format!("backend c{number}\n{rows}\n server s {address} {check} {words}\n"));
    }
    let program = start(&text);
    let settled = |number: usize| {
        let column = if cases[number].agent.is_some() { "agent_status" } else { "check_status" };
        let status = program.column(&format!("c{number}"), "s", column);
        !status.starts_with('*') && status != "INI"
    };
    let deadline = Instant::now() + PATIENCE;
    while !(0..cases.len()).all(settled) {
        assert!(Instant::now() < deadline, "some check does not end:\n{}", program.ask("show stat"));
        std::thread::sleep(Duration::from_millis(5));
    }
    let lines = program.lines();
    let made = |(number, server): (usize, &Scripted)| {
        let backend = format!("c{number}");
        // What is sent last may still be on its way to the script. A bare connection may never come to it.
        let script = cases[number].agent.unwrap_or(cases[number].script);
        if matches!(script, [Act::Take, ..]) || server.connections() > 0 {
            server.wait_for_first();
        }
        let mut shown = format!("sent: {}\n", server.received());
        for column in COLUMNS {
            shown.push_str(&format!("{column}: {}\n", normal(&program.column(&backend, "s", column))));
        }
        let own = |line: &&String| line.contains(&format!(" {backend}/s ")) || line.contains(&format!(" {backend} "));
        lines.iter().filter(own).for_each(|line| shown.push_str(&format!("{line}\n")));
        shown.replace(&server.address.port().to_string(), "PORT")
    };
    servers.iter().enumerate().map(made).collect()
}

/// Both programs say the same lines, so many of them, about `servers` whose addresses stand for `@0@`, `@1@`…, and
/// answer `commands` alike at the end.
#[track_caller]
pub fn compare_lines(text: &str, servers: impl Fn() -> Vec<Scripted> + Sync, count: usize, commands: &[&str]) {
    let told = |start: fn(&str) -> Either| {
        let servers = servers();
        let mut text = text.to_owned();
        for (number, server) in servers.iter().enumerate() {
            text = text.replace(&format!("@{number}@"), &server.address.to_string());
            text = text.replace(&format!("@PORT{number}@"), &server.address.port().to_string());
        }
        let program = start(&text);
        let deadline = Instant::now() + PATIENCE;
        // Nothing more is made to be said meanwhile: haproxy drops lines that nobody takes from it at once.
        while program.lines_so_far().len() < count {
            assert!(Instant::now() < deadline, "{count} lines do not come:\n{}", program.lines_so_far().join("\n"));
            std::thread::sleep(Duration::from_millis(5));
        }
        wait_for("first checks", || {
            let answer = program.ask("show stat");
            (!answer.contains(",INI,") && !answer.contains(",* INI,")).then_some(())
        });
        let mut told = program.lines();
        told.truncate(count.max(if commands.is_empty() { 0 } else { told.len() }));
        for command in commands {
            let before = program.lines().len();
            let answer = program.ask(command);
            // 2.6 has no empty line behind some messages.
            told.push(format!("> {command}\n{}", answer.replace("\n\n", "\n")));
            told.extend(program.lines().split_off(before));
        }
        let ports = |line: String| {
            servers.iter().fold(line, |line, server| line.replace(&server.address.port().to_string(), "PORT"))
        };
        told.into_iter().map(ports).collect::<Vec<_>>()
    };
    let (theirs, ours) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| told(Either::theirs));
        let ours = told(Either::ours);
        (theirs.join().expect("haproxy's lines"), ours)
    });
    assert_eq!(ours, theirs, "ours, haproxy's\n{text}");
}

/// Both programs make the same of every case.
#[track_caller]
pub fn compare(cases: &[Case]) {
    compare_with("", cases);
}

/// The same with rows in their `defaults`.
#[track_caller]
pub fn compare_with(defaults: &str, cases: &[Case]) {
    let (theirs, ours) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| run(cases, Either::theirs, defaults));
        let ours = run(cases, Either::ours, defaults);
        (theirs.join().expect("haproxy's answers"), ours)
    });
    let mut differences = String::new();
    for ((case, ours), theirs) in cases.iter().zip(ours).zip(theirs) {
        let (rows, words) = (case.rows, case.words);
        if in_older_words(rows, &ours) != in_older_words(rows, &theirs) {
            differences.push_str(&format!("{rows} {words}\n--- haproxy:\n{theirs}--- ours:\n{ours}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
