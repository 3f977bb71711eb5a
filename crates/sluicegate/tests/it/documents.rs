//! Configurations in the documents and examples: each is complete and valid, and each limit works as pasted.
//!
//! A reader pastes a block and expects it to work. So a block that belongs to a configuration must have its sections:
//! `check` accepts it without a warning. A block that cannot be complete is preceded by `<!-- fragment -->`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Certificates, Client, Listening, RedisServer, Sluicegate, wait_for};

use crate::{BINARY, workspace};

/// Keywords that begin a section.
const SECTIONS: &[&str] = &[
    "backend",
    "cache",
    "defaults",
    "fcgi-app",
    "frontend",
    "global",
    "http-errors",
    "listen",
    "mailers",
    "origin",
    "peers",
    "program",
    "redis",
    "resolvers",
    "ring",
    "store",
    "userlist",
];

/// Keywords that only stand inside a section.
const INSIDE: &[&str] = &[
    "acl",
    "balance",
    "bind",
    "compression",
    "cookie",
    "default-server",
    "default_backend",
    "errorfile",
    "filter",
    "http-after-response",
    "http-check",
    "http-request",
    "http-response",
    "lua-load",
    "lua-load-per-thread",
    "lua-prepend-path",
    "maxconn",
    "mode",
    "nbthread",
    "option",
    "server",
    "server-template",
    "stats",
    "stick",
    "stick-table",
    "tcp-check",
    "tcp-request",
    "tcp-response",
    "timeout",
    "use-server",
    "use_backend",
];

/// The marker before a block that is not a whole configuration.
const FRAGMENT: &str = "<!-- fragment -->";

/// An indented or fenced block of a document.
#[derive(Clone)]
pub(crate) struct Block {
    document: String,
    /// Line of the document, from 1, at which the text begins.
    line: usize,
    pub(crate) text: String,
    is_marked: bool,
}

/// Meaning of a block's text.
#[derive(Debug, PartialEq)]
enum Kind {
    Configuration,
    Fragment,
    /// Errors that `check` prints.
    Diagnostics,
    Other,
}

impl Block {
    /// Returns the kind; a block with `─` is a drawing.
    fn kind(&self) -> Kind {
        let first = |line: &str| line.split_whitespace().next().unwrap_or("").to_owned();
        if self.text.lines().next().is_some_and(|line| line.contains(": error: ")) {
            Kind::Diagnostics
        } else if self.text.lines().any(|line| !line.starts_with(' ') && SECTIONS.contains(&&*first(line))) {
            Kind::Configuration
        } else if !self.text.contains('─') && self.text.lines().any(|line| INSIDE.contains(&&*first(line))) {
            Kind::Fragment
        } else {
            Kind::Other
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }
}

/// Returns the blocks of a document in Markdown, without their indentation or fences.
fn blocks(document: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    let (mut at, mut before) = (0, "");
    while at < lines.len() {
        let line = lines[at];
        let fence = line.trim_start().strip_prefix("```").is_some();
        let is_indented = line.starts_with("    ") && !line.trim().is_empty();
        let begin = if fence { at + 1 } else { at };
        let mut end = begin;
        if fence {
            while end < lines.len() && !lines[end].trim_start().starts_with("```") {
                end += 1;
            }
            at = end + 1;
        } else if is_indented && (at == 0 || lines[at - 1].trim().is_empty()) {
            while end < lines.len() && (lines[end].starts_with("    ") || lines[end].trim().is_empty()) {
                end += 1;
            }
            at = end;
        } else {
            if !line.trim().is_empty() {
                before = line.trim();
            }
            at += 1;
            continue;
        }
        let body = &lines[begin..end];
        let nonblank = body.iter().filter(|line| !line.trim().is_empty());
        let indentation = nonblank.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
        let text: Vec<&str> = body.iter().map(|line| line.get(indentation..).unwrap_or("")).collect();
        found.push(Block {
            document: document.to_owned(),
            line: begin + 1,
            text: format!("{}\n", text.join("\n").trim_end()),
            is_marked: before == FRAGMENT,
        });
        before = "";
    }
    found
}

/// Returns the files below `folder` whose names have one of these endings, in order of their paths.
fn files(folder: &str, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![workspace().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)) {
                found.push(path.strip_prefix(workspace()).expect("within").to_str().expect("UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn read(file: &str) -> String {
    std::fs::read_to_string(workspace().join(file)).expect("a document")
}

/// Returns the blocks of all documents.
fn all() -> Vec<Block> {
    let mut documents: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into();
    documents.extend(files("docs", &["md"]));
    documents.extend(files("examples", &["md"]));
    documents
        .iter()
        .filter(|file| !file.starts_with("docs/progress/"))
        .flat_map(|file| blocks(file, &read(file)))
        .collect()
}

/// Returns the blocks of one document that are configurations.
pub(crate) fn configurations(document: &str) -> Vec<Block> {
    blocks(document, &read(document)).into_iter().filter(|block| block.kind() == Kind::Configuration).collect()
}

/// Files that configurations of the documents name, in a directory of the test.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { directory: tempfile::tempdir().expect("a directory") };
        // The script of the guide, which its configuration loads.
        let guide = "docs/guide/getting-started.md";
        let script = blocks(guide, &read(guide)).into_iter().find(|block| block.text.contains("core.register_action"));
        files.write("count.lua", script.expect("the guide has a script").text.as_bytes());
        let page = "docs/reference/spoe.md";
        let engine = blocks(page, &read(page)).into_iter().find(|block| block.text.contains("spoe-agent"));
        files.write("scores.conf", engine.expect("the page has an engine's file").text.as_bytes());
        files
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.directory.path().join(name), bytes).expect("writable");
    }

    fn with_certificates() -> Files {
        let (files, made) = (Files::new(), Certificates::new());
        ["clients.pem", "redis-ca.pem"].iter().for_each(|name| files.write(name, &made.read("ca.crt")));
        let pair = [made.read("client.crt"), made.read("client.key")].concat();
        ["sluicegate.pem", "www.example.org.pem"].iter().for_each(|name| files.write(name, &pair));
        files
    }

    /// Replaces the paths of the documents by those of the test.
    fn replace(&self, text: &str) -> String {
        let directory = self.directory.path().to_str().expect("UTF-8");
        const PATHS: [&str; 6] = [
            "/etc/haproxy/count.lua",
            "/etc/sluicegate/scores.conf",
            "/etc/ssl/clients.pem",
            "/etc/ssl/redis-ca.pem",
            "/etc/ssl/sluicegate.pem",
            "/etc/ssl/www.example.org.pem",
        ];
        PATHS.iter().fold(text.to_owned(), |text, path| {
            let name = Path::new(path).file_name().and_then(|name| name.to_str()).expect("a name");
            text.replace(path, &format!("{directory}/{name}"))
        })
    }

    /// Returns the output of `check`, exit code first.
    fn check(&self, text: &str) -> String {
        self.write("haproxy.cfg", self.replace(text).as_bytes());
        let mut command = Command::new(BINARY);
        let output =
            command.args(["check", "haproxy.cfg"]).current_dir(self.directory.path()).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        format!("{} {}", output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text))
    }

    /// Returns the complaint about a block; none of one that is fine.
    fn complaint(&self, block: &Block) -> Option<String> {
        match block.kind() {
            _ if block.is_marked => None,
            Kind::Configuration => {
                let output = self.check(&block.text);
                (output != VALID).then(|| format!("{}: {output}", block.place()))
            }
            Kind::Fragment => Some(format!("{}: a fragment without the marker {FRAGMENT}", block.place())),
            Kind::Diagnostics | Kind::Other => None,
        }
    }
}

const VALID: &str = "0 Configuration file is valid\n";

#[test]
fn configurations_are_complete_and_valid() {
    let files = Files::with_certificates();
    let blocks = all();
    let complaints: Vec<String> = blocks.iter().filter_map(|block| files.complaint(block)).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    // At least these documents have configurations.
    for document in
        ["README.md", "docs/guide/getting-started.md", "docs/reference/limits.md", "docs/reference/engines.md"]
    {
        let of_it = |block: &&Block| block.document == document && block.kind() == Kind::Configuration;
        assert!(blocks.iter().any(|block| of_it(&block)), "{document}");
    }
}

#[test]
fn examples_are_valid() {
    for file in files("examples", &["cfg"]) {
        // They work from any directory.
        for directory in [workspace(), "/".into()] {
            let mut command = Command::new(BINARY);
            command.arg("check").arg(workspace().join(&file)).current_dir(&directory);
            let output = command.output().expect("it runs");
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!((output.status.code(), &*text), (Some(0), "Configuration file is valid\n"), "{file}");
        }
    }
}

/// The files of the packages; the user that a package creates is replaced.
#[test]
fn packaged_files_are_valid() {
    let (files_of_test, packaged) = (Files::new(), files("packaging", &["cfg"]));
    assert!(!packaged.is_empty());
    for file in packaged {
        let text = read(&file)
            .replace("    user sluicegate\n", "    uid 1\n")
            .replace("    group sluicegate\n", "    gid 1\n");
        assert_eq!(files_of_test.check(&text), VALID, "{file}");
    }
}

/// The check itself: incomplete blocks, indented or fenced, do not pass.
#[test]
fn incomplete_blocks_are_refused() {
    let files = Files::new();
    let check = |text: &str, expected: &[&str]| {
        let complaints: Vec<String> = blocks("x", text).iter().filter_map(|block| files.complaint(block)).collect();
        assert_eq!(complaints.len(), expected.len(), "{text}: {complaints:?}");
        for (complaint, expected) in complaints.iter().zip(expected) {
            assert!(complaint.contains(expected), "{text}: {complaint}");
        }
    };
    check("A rule:\n\n    http-request deny\n\nand\n\n    echo\n", &["x:3: a fragment"]);
    check("```\nbind :80\nserver s 127.0.0.1:1\n```\n", &["x:2: a fragment"]);
    check("<!-- fragment -->\n\n    http-request deny\n\n    bind :80\n", &[]);
    check("<!-- fragment -->\n```\nbind :80\n```\n```\nbind :80\n```\n", &["x:6: a fragment"]);
    let frontend = "    frontend www\n        bind :8080\n        http-request deny\n";
    check(frontend, &["warning"]);
    check(&format!("{frontend}        default_backend app\n"), &["default_backend"]);
    check("```\nstore main\n    bind 127.0.0.1:6379\n```\n", &[]);
}

/// Errors that the documents print are those of the program, to the letter.
#[test]
fn printed_diagnostics_are_true() {
    let files = Files::new();
    let mut seen = 0;
    for block in all().iter().filter(|block| block.kind() == Kind::Diagnostics) {
        let lines: Vec<&str> = block.text.lines().collect();
        // The source lines, by number; the others make a configuration of them.
        let mut sources = BTreeMap::new();
        for pair in lines.windows(2).filter(|pair| pair[0].contains(": error: ")) {
            let number = pair[0].split(':').nth(1).and_then(|word| word.parse::<usize>().ok()).expect("a line number");
            sources.insert(number, pair[1].strip_prefix("  ").expect("an indented source line"));
        }
        let first = "listen www\n    bind :80\n    mode http\n    timeout connect 60s\n    timeout client 60s\n    timeout server 60s\n";
        let mut text = first.to_owned();
        for number in first.lines().count() + 1..=*sources.keys().max().expect("an error") {
            let _ = writeln!(text, "{}", sources.get(&number).unwrap_or(&"    # further lines"));
        }
        text.push_str("    server app1 127.0.0.1:8000\n");
        let output = files.check(&text);
        assert!(output.starts_with("1 "), "{}: {output}", block.place());
        assert!(output.contains(&block.text), "{} prints\n{}\nand check\n{output}", block.place(), block.text);
        seen += 1;
    }
    assert!(seen > 0, "getting-started has a sample");
}

/// README's table of what is not supported names only keywords that a check refuses for that reason.
#[test]
fn unsupported_keywords_of_the_readme_are_refused() {
    let files = Files::new();
    let text = read("README.md");
    let rows =
        text.lines().skip_while(|line| !line.starts_with("| area |")).skip(2).take_while(|line| line.starts_with('|'));
    let mut seen = 0;
    for row in rows {
        let unsupported = row.split('|').nth(2).expect("a second column");
        for keyword in unsupported.split('`').skip(1).step_by(2) {
            let text = match keyword.split_once(" … ") {
                Some(("bind", word)) => format!("listen www\n    bind :443 {word}\n"),
                Some(("server", word)) => format!("backend app\n    server app1 127.0.0.1:443 {word}\n"),
                Some(_) => panic!("{keyword}: unknown line"),
                None => format!("{keyword} one\n"),
            };
            let output = files.check(&text);
            assert!(output.starts_with("1 ") && output.contains("not supported yet"), "{keyword}: {output}");
            seen += 1;
        }
    }
    assert_eq!(seen, 1, "keywords of the table");
}

/// The options that users of other load generators are told are options of `bench`.
#[test]
fn options_for_users_of_other_load_generators_are_known() {
    let (mut command, mut seen) = (None, 0);
    for line in read("docs/guide/moving.md").lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, ours, _] = cells[..] else {
            command = None;
            continue;
        };
        if let Some(name) = ours.strip_prefix("`sluicegate bench ") {
            command = Some(name.trim_end_matches('`').to_owned());
        }
        let Some(command) = &command else { continue };
        for options in ours.split('`').skip(1).step_by(2).filter(|code| code.starts_with('-')) {
            // `-m`, `-b` and the like stand without a value.
            let value = if options.contains(' ') || options.len() > 2 { "" } else { "GET" };
            let options = options.replace("HOST", "localhost").replace("PORT", "6379");
            let script = format!("\"$0\" bench {command} {options} {value} --help");
            let output = Command::new("sh").args(["-c", &script, BINARY]).output().expect("it runs");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            // A file that an option names is not there, but the option is.
            let is_known = output.status.success() || error.contains("No such file");
            assert!(is_known, "{options}: {error}");
            seen += 1;
        }
    }
    assert!(seen > 25, "{seen} options");
}

/// A configuration of a document that runs: on sockets of the test, in front of servers that answer with their names.
pub(crate) struct Running {
    _server: Sluicegate,
    _files: Files,
    /// Listening sockets by the address in the document.
    sockets: BTreeMap<String, Listening>,
}

impl Running {
    /// Starts `text`; `engine` replaces the servers of `redis` sections.
    pub(crate) fn start(text: &str, engine: Option<&RedisServer>) -> Running {
        let files = Files::new();
        let mut sockets: BTreeMap<String, Listening> = BTreeMap::new();
        for line in text.lines() {
            if let ["bind", address, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
                sockets.entry(address.to_owned()).or_default();
            }
        }
        let (mut result, mut upstream, mut section) = (String::new(), String::new(), "");
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !line.starts_with([' ', '#']) && !words.is_empty() {
                section = words[0];
            }
            let line = match words[..] {
                ["bind", address, ..] => line.replace(address, &format!("\"{}\"", sockets[address].word())),
                ["server", _, address, ..] if section == "redis" => {
                    line.replace(address, &engine.expect("an engine for the section").address())
                }
                ["server", name, address, ..] => {
                    if !sockets.contains_key(address) {
                        let socket = sockets.entry(address.to_owned()).or_default();
                        let _ = write!(
                            upstream,
                            "frontend upstream-{name}\n    mode http\n    bind \"{}\"\n    timeout client 60s\n    \
                             http-request return status 401 hdr X-Server {name} if {{ path /status/401 }}\n    \
                             http-request return status 500 hdr X-Server {name} if {{ path /status/500 }}\n    \
                             http-request return status 200 hdr X-Server {name} \
                             hdr X-Saw \"%[req.hdr(x-feature-checkout)]\"\n",
                            socket.word()
                        );
                    }
                    line.replace(address, &sockets[address].address())
                }
                ["stats", "socket", path, ..] => line.replace(path, "@DIR@/stats"),
                _ => line.to_owned(),
            };
            let _ = writeln!(result, "{line}");
        }
        let text = files.replace(&format!("{result}{upstream}"));
        let server = crate::start(&text, &sockets.values().collect::<Vec<_>>());
        Running { _server: server, _files: files, sockets }
    }

    pub(crate) fn client(&self, address: &str) -> Client {
        Client::connect(&self.sockets[address].address())
    }
}

/// Sends requests until one is denied: `at_least` pass before. A slow machine passes more, as allowance returns.
pub(crate) fn exhaust(place: &str, at_least: usize, mut status: impl FnMut() -> u16) {
    for passed in 0..100_000 {
        match status() {
            200 => {}
            429 => {
                assert!(passed >= at_least, "{place}: request {} was denied", passed + 1);
                return;
            }
            other => panic!("{place}: status {other}"),
        }
    }
    panic!("{place}: nothing was denied");
}

/// Every key of the store has a time to live, and there is at least one while requests come.
pub(crate) fn check_keys_expire(place: &str, store: &mut Client, mut request: impl FnMut()) {
    wait_for("a key", || {
        request();
        let keys = store.ask(&["KEYS", "*"]);
        let keys: Vec<&str> = keys.lines().skip(1).filter(|line| !line.starts_with('$')).collect();
        let mut living = 0;
        for key in keys {
            // -2 is a key that expired meanwhile, -1 one that never does.
            let time = store.ask(&["PTTL", key]);
            assert_ne!(time, ":-1\r\n", "{place}: {key} never expires");
            living += usize::from(time != ":-2\r\n");
        }
        (living > 0).then_some(())
    });
}

/// The addresses of the store and of the frontend in a configuration of the README or the guide.
fn addresses(text: &str) -> (String, String) {
    let find = |wanted: &str| {
        let rest = text.split(&format!("\n{wanted}")).nth(1).or_else(|| text.strip_prefix(wanted)).expect(wanted);
        let bind = rest.lines().find_map(|line| line.trim().strip_prefix("bind ")).expect("a bind");
        bind.to_owned()
    };
    (find("store "), find("frontend "))
}

/// README and guide: 100 requests pass, a later one is denied, and what was counted expires.
#[test]
fn limits_of_readme_and_guide_limit_and_expire() {
    let mut driven = 0;
    for document in ["README.md", "docs/guide/getting-started.md"] {
        for block in configurations(document).iter().filter(|block| block.text.contains("100")) {
            let place = block.place();
            let (store, front) = addresses(&block.text);
            let running = Running::start(&block.text, None);
            let mut client = running.client(&front);
            let first = client.get("/");
            assert_eq!((first.status, first.header("x-server")), (200, Some("app1")), "{place}: {}", first.head);
            exhaust(&place, 99, || client.get("/").status);
            check_keys_expire(&place, &mut running.client(&store), || {
                client.get("/");
            });
            driven += 1;
        }
    }
    assert_eq!(driven, 4, "README's, and three of the guide: a script, rules, a limit");
}

#[test]
fn limits_of_the_reference_limit_and_expire() {
    let engine = RedisServer::start(&[]);
    let block = &configurations("docs/reference/limits.md")[0];
    let place = block.place();
    let running = Running::start(&block.text, Some(&engine));
    let mut client = running.client(":8080");
    // 300 units of 1000, three times; a day that ends meanwhile lets more pass.
    let mut quota = || {
        client.send("GET / HTTP/1.1\r\nHost: test\r\nx-customer: acme\r\nx-units: 300\r\n\r\n");
        client.read_response().status
    };
    exhaust(&place, 3, &mut quota);
    check_keys_expire(&place, &mut Client::connect(&engine.address()), || {
        quota();
    });
    assert_eq!(client.get("/files/a").header("x-server"), Some("app1"));
    exhaust(&place, 1, || client.get("/").status);
    check_keys_expire(&place, &mut running.client("127.0.0.1:7379"), || {
        client.get("/files/a");
    });
    // Connections: what is denied is closed without an answer.
    exhaust(&place, 20, || {
        let mut client = running.client(":5432");
        client.send("GET / HTTP/1.0\r\n\r\n");
        if client.read_to_end().is_empty() { 429 } else { 200 }
    });
}

#[test]
fn rules_of_engines_limit_expire_and_route() {
    let engine = RedisServer::start(&[]);
    let mut store = Client::connect(&engine.address());
    assert_eq!(store.ask(&["ACL", "SETUSER", "bob", "on", "~*", "&*", "+@all", ">a secret"]), "+OK\r\n");
    let block = &configurations("docs/reference/engines.md")[0];
    let place = block.place();
    let running = Running::start(&block.text, Some(&engine));
    let mut client = running.client(":80");
    assert_eq!(store.ask(&["SET", "7", "canary", "EX", "3600"]), "+OK\r\n");
    client.send("GET / HTTP/1.1\r\nHost: test\r\nCookie: sid=7\r\n\r\n");
    assert_eq!(client.read_response().header("x-server"), Some("app2"));
    assert_eq!(client.get("/").header("x-server"), Some("app1"));
    exhaust(&place, 98, || client.get("/").status);
    check_keys_expire(&place, &mut store, || {
        client.get("/");
    });
}

/// The example that the README starts counts each address.
#[test]
fn the_accounting_example_counts() {
    let text = read("examples/accounting/sluicegate.cfg");
    let text = text.replace("lua-load ", &format!("lua-load {}/examples/accounting/", workspace().display()));
    let running = Running::start(&text, None);
    let mut client = running.client("127.0.0.1:10060");
    for _ in 0..5 {
        assert_eq!(client.get("/fast").status, 200);
    }
    assert_eq!(running.client("127.0.0.1:7379").ask(&["GET", "127.0.0.1"]), "$1\r\n5\r\n");
}
