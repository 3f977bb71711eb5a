//! Answers and effects of the stats socket's commands, compared with Debian's haproxy with the same configuration.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, free_port, wait_for};

use super::fixture::Whole;

const TEXT: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 0\n\
                    frontend origin\n bind @ORIGIN@\n http-request return status 200 content-type text/plain string \
                    hello\n\
                    frontend www\n bind @BIND@\n use_backend %[path,field(2,/)]\n\
                    backend app\n log @LOG@ format raw local0\n server one @SERVER@ weight 3 maxconn 7 check inter 1h\n server two @SERVER@ backup\n \
                    server three @SERVER@ disabled\n\
                    backend pair\n log @LOG@ format raw local0\n server a @SERVER@ weight 10\n server b @SERVER@ weight 10 check inter 1h\n\
                    backend path\n server u unix@/nowhere/at-all\n";

/// The same configuration in haproxy and in this process, with haproxy's origin for both.
struct Both {
    haproxy: Haproxy,
    whole: Whole,
    theirs: PathBuf,
    front: String,
    _origin: Listening,
    _directory: tempfile::TempDir,
}

impl Both {
    fn start() -> Both {
        let both = Both::with(TEXT);
        for socket in [&both.theirs, &both.whole.stats] {
            wait_for("the first check", || {
                let csv = Sluicegate::stats(socket, "show stat -1 4 -1");
                csv.contains(",L4OK,").then_some(())
            });
        }
        both
    }

    fn with(text: &str) -> Both {
        // Haproxy cannot pause inherited sockets, so it binds its frontend itself.
        let (front, origin) = (format!("127.0.0.1:{}", free_port()), Listening::new());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let theirs = directory.path().join("stats.sock");
        let global = format!("global\n nbthread 1\n maxconn 1000\n stats socket {} level admin\n", theirs.display());
        let text = text.replace("@SERVER@", &origin.address());
        let other = text.replace("@ORIGIN@", &origin.word()).replace("@BIND@", &front).replace("@LOG@", "stdout");
        let haproxy = Haproxy::start(&format!("{global}{other}"), &[&origin]);
        wait_for("haproxy's origin", || UnixStream::connect(&theirs).ok());
        // A pause would release a port that the kernel chose, and another one would be chosen afterwards.
        let own = text.replace("@ORIGIN@", "127.0.0.1:1").replace("@BIND@", &format!("127.0.0.1:{}", free_port()));
        let whole =
            Whole::start(&format!("global\n nbthread 1\n maxconn 1000\n stats socket /nowhere level admin\n{own}"), 1);
        Both { haproxy, whole, theirs, front, _origin: origin, _directory: directory }
    }

    /// Returns both answers, ours first.
    fn ask(&self, line: &str) -> (String, String) {
        (Sluicegate::stats(&self.whole.stats, line), Sluicegate::stats(&self.theirs, line))
    }

    /// Asserts that both answer the same.
    #[track_caller]
    fn same(&self, line: &str) {
        let (ours, theirs) = self.ask(line);
        let theirs = if line.contains(" addr ") { moved_in_3_2(&theirs) } else { theirs };
        assert_eq!(one_end(&ours), one_end(&theirs), "{line}");
    }

    /// Asserts that both answers are the same after `mask` has removed what may differ.
    #[track_caller]
    fn same_but(&self, line: &str, mask: impl Fn(&str) -> String) {
        let (ours, theirs) = self.ask(line);
        assert_eq!(mask(&ours), mask(&theirs), "{line}");
    }

    /// Asserts that the state of all servers is the same in both: `show servers state`, and the columns of `show stat`
    /// about the state.
    #[track_caller]
    fn same_state(&self, after: &str) {
        let state = |socket: &Path| {
            let lines = Sluicegate::stats(socket, "show servers state");
            let mut states: Vec<String> = lines.lines().filter(|line| line.len() > 20).map(masked_state).collect();
            for row in Sluicegate::stats(socket, "show stat -1 6 -1").lines().filter(|row| row.contains(',')) {
                let cells: Vec<&str> = row.split(',').collect();
                // Name, status, active, backup, chkfail, chkdown.
                let chosen = [0, 1, 17, 19, 20, 21, 22].map(|column| cells[column]);
                states.push(chosen.join(","));
            }
            states
        };
        assert_eq!(state(&self.whole.stats), state(&self.theirs), "after {after}");
    }
}

/// Returns the answers with one line feed at their ends: 2.6 lacks it behind some messages, where 3.2 has an empty line.
pub(super) fn one_end(answers: &str) -> String {
    answers.replace("\n\n", "\n")
}

/// Converts an answer of 2.6 to `set server … addr` to that of 3.2, which omits what did not change.
fn moved_in_3_2(answer: &str) -> String {
    const BY: &str = " by 'stats socket command'";
    let changes =
        answer.replace("no need to change the addr, ", "").replace("no need to change the addr", "nothing changed");
    match changes.contains("changed from") {
        true => changes,
        false => changes.replace("configuration file", "configuration file.").replace(BY, ""),
    }
}

/// Returns the line without the time since the last change, and without the bit that is set while a check runs.
fn masked_state(line: &str) -> String {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    if let [.., _, _, _] = &words[..]
        && words.len() > 14
    {
        words[9] = "AGE".to_owned();
        if let Ok(state) = words[13].parse::<u32>() {
            words[13] = (state & !1).to_string();
        }
    }
    words.join(" ")
}

/// Every answer to an invalid or harmless command equals haproxy's, byte for byte.
#[test]
fn answers_are_haproxys() {
    let both = Both::start();
    for line in [
        "show cli level",
        "show backend",
        "show backend ignored",
        "show servers state nosuch",
        "show env NOSUCHVARIABLE",
        "show env PATH",
        "set server",
        "set server x",
        "set server x/y",
        "set server app/nosuch state maint",
        "set server app/one",
        "set server app/one nothing",
        "set server app/one state",
        "set server app/one state off",
        "set server app/one weight",
        "set server app/one weight abc",
        "set server app/one weight 5x",
        "set server app/one weight 50%x",
        "set server app/one weight %",
        "set server app/one weight 300",
        "set server app/one weight 50%",
        "get weight app/one",
        "set server app/one weight 200%",
        "get weight app/one",
        "set weight app/one 2",
        "get weight app/one",
        "set weight app/one -1",
        "set weight app/one",
        "set weight",
        "get weight",
        "get weight app/nosuch",
        "get weight nosuch/one",
        "set server app/one health",
        "set server app/one health ill",
        "set server app/one agent up",
        "set server app/one addr",
        "set server app/one addr nonsense",
        "set server path/u addr 127.0.0.1",
        "set server app/one check-port word",
        "set server app/one check-port 99999",
        "set server app/two check-port 1234",
        "set server app/one fqdn example.invalid",
        "set server app/one ssl on",
        "set maxconn global",
        "set maxconn global 100",
        "set maxconn global 5000",
        "set maxconn global 0",
        "set maxconn frontend",
        "set maxconn frontend nosuch 5",
        "set maxconn frontend www",
        "set maxconn frontend www -1",
        "set maxconn frontend www 100",
        "set maxconn server app/one",
        "set maxconn server app/one abc",
        "set maxconn server app/one 5x",
        "set maxconn server app/nosuch 5",
        "set maxconn server app/one 5",
        "set timeout",
        "set timeout cli",
        "set timeout cli abc",
        "set timeout cli 0",
        "set timeout cli 5",
        "disable server",
        "disable server app",
        "enable server x/y",
        "enable health app/three",
        "disable health app/three",
        "enable agent app/one",
        "disable agent app/one",
        "disable frontend",
        "disable frontend nosuch",
        "enable frontend www",
        "shutdown frontend nosuch",
        "clear counters",
        "clear counters all",
        "show stat nosuch -1 -1",
        "operator; show cli level; user; show cli level; operator; show cli level",
        "user; set weight app/one 3; disable server app/one; clear counters; show env; get weight app/one",
        "operator; clear counters; clear counters all",
        r"show cli level\;x; quit; show cli level",
        "prompt\nquit",
    ] {
        if line.contains("\\;") {
            // The list of similar commands is this program's own.
            both.same_but(line, |answer| format!("{} {}", answer.starts_with("Unknown command"), answer.len() > 60));
        } else {
            both.same(line);
        }
    }
    both.same_but("show servers conn", |answer| {
        let row = |line: &str| line.split(' ').take(6).collect::<Vec<_>>().join(" ");
        answer.lines().map(row).collect::<Vec<_>>().join("\n")
    });
}

/// After each administrative step every server is in the same state as in haproxy, and the lines on stderr are equal.
#[test]
fn servers_go_through_haproxys_states() {
    let both = Both::start();
    both.same_state("the start");
    for line in [
        "set server app/one state drain",
        "set server app/one state ready",
        "set server app/one state maint",
        "set server app/one state maint",
        "set server app/one state drain",
        "set server app/one state ready",
        "set server app/three state ready",
        "set server app/three state maint",
        "set server app/one health stopping",
        "set server app/one health down",
        "set server app/one state maint",
        "enable server app/one",
        "set server app/one health up",
        "disable health app/one",
        "enable health app/one",
        "set server app/two health down",
        "set server app/two health up",
        "set server app/two state drain",
        "enable server app/two",
        "set server app/one weight 0",
        "set server app/one weight 5",
        "set server #4/#1 weight 3",
        "disable server pair/a",
        "disable server pair/b",
        "enable server pair/a",
        "enable server pair/b",
        "set server pair/b health down",
        "set server pair/a state maint",
        "set server pair/a health up",
        "set server pair/a state ready",
        "set server pair/b check-port 1",
        // No earlier line is about this server, so its line marks the end.
        "set server app/two state maint",
    ] {
        both.same(line);
        both.same_state(line);
    }
    // Lines in brackets are the same messages on stderr, with a label.
    let said = || {
        let output = both.haproxy.program.output();
        output.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = |lines: &Vec<String>| {
        lines.last().is_some_and(|line| line.starts_with("Backup Server app/two is going DOWN for maintenance"))
    };
    let theirs = wait_for("haproxy's last line", || Some(said()).filter(whole));
    let ours = wait_for("the last line", || Some(both.whole.log_lines(0)).filter(whole));
    assert!(theirs.len() > 20);
    assert_eq!(ours, theirs);
}

const COOKIES: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 0\n\
                       frontend origin\n bind @ORIGIN@\n http-request return status 200 content-type text/plain string \
                       hello\n\
                       frontend www\n bind @BIND@\n use_backend %[path,field(2,/)]\n\
                       backend made\n cookie S insert dynamic\n dynamic-cookie-key first\n server a @SERVER@\n \
                       server b 127.0.0.2:1\n server own @SERVER@ cookie fixed\n server off [::1]:7 disabled\n\
                       backend keyless\n cookie S insert indirect dynamic\n server a @SERVER@\n server b 127.0.0.3\n\
                       backend plain\n cookie S insert indirect\n dynamic-cookie-key first\n server a @SERVER@\n \
                       server u unix@/nowhere/at-all\n\
                       backend none\n server a @SERVER@\n";

/// Commands create the values of cookies, derive them from another key and remove them; values follow the servers'
/// addresses.
#[test]
fn values_of_cookies_are_made_as_commands_say() {
    let both = Both::with(COOKIES);
    // Name, sessions, cookie of each server.
    let values = |text: &str| {
        let cells =
            |line: &str| [0, 1, 7, 74].map(|at| line.split(',').nth(at).unwrap_or_default().to_owned()).join(" ");
        text.lines().map(cells).collect::<Vec<_>>()
    };
    let same = |line: &str| {
        both.same(line);
        let (ours, theirs) = both.ask("show stat -1 4 -1");
        assert_eq!(values(&ours), values(&theirs), "after {line}");
        values(&ours)
    };
    let value = |servers: &[String], name: &str| {
        let found = servers.iter().find_map(|line| line.strip_prefix(name)).expect("the server");
        found.rsplit(' ').next().expect("a cell").to_owned()
    };
    let first = same("show backend");
    for line in [
        "enable dynamic-cookie backend",
        "enable dynamic-cookie backend nosuch",
        "enable dynamic-cookie backend www",
        "disable dynamic-cookie backend",
        "disable dynamic-cookie backend nosuch",
        "set dynamic-cookie-key backend",
        "set dynamic-cookie-key backend nosuch",
        "set dynamic-cookie-key backend nosuch key",
        "set dynamic-cookie-key backend made",
        "user; set dynamic-cookie-key backend made x; enable dynamic-cookie backend made",
        "enable dynamic-cookie backend keyless",
        "enable dynamic-cookie backend plain",
        "enable dynamic-cookie backend none",
        "set dynamic-cookie-key backend none other",
        "set dynamic-cookie-key backend keyless other",
        "disable dynamic-cookie backend plain",
        "set dynamic-cookie-key backend plain third",
        "enable dynamic-cookie backend plain",
        "set server made/b addr 127.0.0.9",
        "set server made/b addr 127.0.0.9 port 99",
        "set server made/b addr ::9 port 7",
        "disable dynamic-cookie backend made",
        "set dynamic-cookie-key backend made second",
    ] {
        same(line);
    }
    let second = same("enable dynamic-cookie backend made");
    assert_ne!(value(&second, "made a"), value(&first, "made a"));
    assert_eq!(value(&second, "made own"), "fixed");
    // The current value selects the server; the values of other servers or of the first key do not.
    let addresses = [both.whole.addresses[1].to_string(), both.front.clone()];
    for (server, made) in [("a", value(&second, "made a")), ("own", "fixed".to_owned()), ("-", value(&first, "made a"))]
    {
        let given = addresses.each_ref().map(|address| {
            let mut client = Client::connect(address);
            client.send(format!("GET /made HTTP/1.1\r\nHost: x\r\nCookie: S={made}\r\nConnection: close\r\n\r\n"));
            let response = client.read_response();
            (response.status, response.header("set-cookie").map(str::to_owned))
        });
        assert_eq!(given[0], given[1], "{server}");
        assert_eq!(given[0].1.is_none(), server != "-", "{given:?}");
        same("show backend");
    }
}

/// After `disable frontend` the kernel refuses connections, `enable frontend` accepts again, `shutdown frontend` is
/// final.
#[test]
fn frontends_pause_resume_and_shut() {
    let both = Both::start();
    let addresses = [both.whole.addresses[1].to_string(), both.front.clone()];
    let connects = || {
        addresses.each_ref().map(|address| {
            std::net::TcpStream::connect_timeout(
                &address.parse().expect("an address"),
                std::time::Duration::from_secs(1),
            )
            .is_ok()
        })
    };
    let status = |line: &str| line.lines().nth(1).and_then(|row| row.split(',').nth(17)).unwrap_or("").to_owned();
    let become_ = |refused: bool| {
        let (mut last, deadline) = (connects(), std::time::Instant::now() + sluicegate_testkit::PATIENCE);
        while last != [!refused; 2] {
            let late = std::time::Instant::now() > deadline;
            assert!(!late, "ours and haproxy's accept: {last:?}, refused should be {refused}");
            std::thread::sleep(std::time::Duration::from_millis(5));
            last = connects();
        }
    };
    become_(false);
    for (line, refused, state) in [
        ("disable frontend www", true, "PAUSED"),
        ("disable frontend www", true, "PAUSED"),
        ("enable frontend www", false, "OPEN"),
        ("shutdown frontend www", true, "STOP"),
        ("enable frontend www", true, "STOP"),
        ("disable frontend www", true, "STOP"),
        ("shutdown frontend www", true, "STOP"),
    ] {
        both.same(line);
        become_(refused);
        both.same_but("show stat www 1 -1", status);
        assert_eq!(status(&Sluicegate::stats(&both.whole.stats, "show stat www 1 -1")), state);
    }
}

/// Every command of haproxy exists here, or is listed in the reference as missing.
#[test]
fn commands_of_haproxy_are_there_or_listed() {
    let printed = std::process::Command::new("haproxy")
        .args(["-dKcli", "-q", "-c", "-f", "/dev/null"])
        .output()
        .expect("Debian's haproxy runs");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let names: Vec<&str> = printed.lines().filter_map(|line| Some(line.split_once(" [WORKER]")?.0.trim())).collect();
    assert!(names.len() > 80, "{printed}");
    let whole = Whole::start("global\n stats socket /nowhere level admin\n", 1);
    // A command without its arguments is an error, so none of these has an effect.
    let is_unknown = |name: &&str| Sluicegate::stats(&whole.stats, name).starts_with("Unknown command");
    let unknown: std::collections::BTreeSet<&str> = names.iter().copied().filter(is_unknown).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/stats-socket.md");
    let page = std::fs::read_to_string(page).expect("the reference");
    let (_, behind) = page.split_once("## Not there yet\n").expect("the section");
    let section = behind.split("\n## ").next().expect("its text");
    let listed: std::collections::BTreeSet<&str> = section.split('`').skip(1).step_by(2).collect();
    let missing: Vec<&&str> = unknown.difference(&listed).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Commands of later versions are listed, too, so each listed one must be unknown.
    let there: Vec<&&str> = listed.iter().filter(|name| !is_unknown(name)).collect();
    assert!(there.is_empty(), "{there:?}");
}

/// The health level of servers without checks is their `rise` at first, as observed with HAProxy 3.2.0.
#[test]
fn levels_of_servers_without_checks() {
    let whole = Whole::start(
        "global\n stats socket /nowhere level admin\nbackend a\n server plain 127.0.0.1:1\n server own 127.0.0.1:1 rise 5 fall \
         2\n server checked 127.0.0.1:1 check inter 1h rise 3\n server tracking 127.0.0.1:1 track a/checked\n server off \
         127.0.0.1:1 disabled\nbackend b\n default-server rise 1\n server plain 127.0.0.1:1\n server none 127.0.0.1:1 \
         no-check\n server tracking 127.0.0.1:1 track a/checked\n server off 127.0.0.1:1 disabled\n",
        1,
    );
    let levels = |backend: &str| -> Vec<String> {
        let text = Sluicegate::stats(&whole.stats, &format!("show servers state {backend}"));
        let rows = text.lines().filter(|line| line.contains(&format!(" {backend} ")) && !line.contains("checked"));
        rows.map(|line| line.split(' ').nth(12).expect("a level").to_owned()).collect()
    };
    assert_eq!(levels("a"), ["2", "5", "2", "0"]);
    assert_eq!(levels("b"), ["1", "1", "1", "0"]);
    for line in ["set server a/plain health up", "set server a/own health up", "set server b/plain health down"] {
        assert_eq!(Sluicegate::stats(&whole.stats, line), "\n");
    }
    assert_eq!(levels("a"), ["4", "6", "2", "0"]);
    assert_eq!(levels("b"), ["0", "1", "1", "0"]);
}

/// If a listing omits servers, the status of their backend contains the numbers of usable and of all servers.
#[test]
fn a_backends_status_has_its_servers_numbers_where_some_are_hidden() {
    let whole = Whole::start(
        "global\n stats socket /nowhere level admin\nbackend a\n server one 127.0.0.1:1\n server two 127.0.0.1:1 disabled\n\
         backend none\n",
        1,
    );
    for (words, wanted) in [("", "UP"), (" up", "UP (1/2)"), (" no-maint", "UP (1/2)")] {
        let text = Sluicegate::stats(&whole.stats, &format!("show stat a 2 -1{words}"));
        let line = text.lines().nth(1).expect("its line");
        assert_eq!(line.split(',').nth(17), Some(wanted), "{words}");
    }
    assert!(Sluicegate::stats(&whole.stats, "show stat none 2 -1 up").contains(",UP (0/0),"));
}

/// Commands of HAProxy 3.2 about the process and about the session.
#[test]
fn commands_of_3_2_are_there() {
    let whole = Whole::start(
        "global\n stats socket /nowhere level admin\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
         timeout connect 60s\nbackend b\n server s1 10.0.0.1:1\n server s2 127.0.0.1:2 disabled\n",
        2,
    );
    let ask = |line: &str| Sluicegate::stats(&whole.stats, line);
    assert_eq!(ask("echo a  b; echo"), "a b\n\n\n\n");
    for (line, said) in [
        ("wait", "Expects a duration in milliseconds.\n\n"),
        ("wait x", "Invalid duration.\n\n"),
        ("wait 0", "Invalid duration.\n\n"),
        ("wait 1ms", "Done.\n\n"),
        ("wait 1ms srv-removable", "Missing server name (<backend>/<server>).\n\n"),
        ("wait 1ms srv-removable b", "Require 'backend/server'.\n\n"),
        ("wait 1ms srv-removable b/none", "Failed.\n\n"),
        ("wait 1ms srv-removable b/s1", "Failed.\n\n"),
        ("wait 1h srv-removable b/s2; del server b/s2", "Done.\n\nServer deleted.\n\n"),
        ("set severity-output", "one of 'none', 'number', 'string' is a required argument\n\n"),
        ("set severity-output number; show cli level", "\n[6]: admin\n\n"),
        ("set severity-output number; set server b/s9 state ready", "\n[3]: No such server.\n\n"),
        ("set severity-output string; disable frontend x", "\n[err]: No such frontend.\n\n"),
        ("set severity-output string; get weight b/s1", "\n1 (initial 1)\n\n"),
        ("set severity-output number; set severity-output none; enable frontend x", "\n\nNo such frontend.\n\n"),
        ("show anon", "Anonymized mode disabled\n\n"),
        ("set server b/s1 check-port x", "health checks are not enabled on this server\n\n"),
        ("set server b/s1 agent-addr 1.1.1.1", "agent checks are not enabled on this server\n\n"),
        ("del server b/nosuch", "No such server.\n\n"),
        ("del server b/s1", "Only servers in maintenance mode can be deleted.\n\n"),
        ("show events nosuch", "No such event sink\n\n"),
        ("get var proc.nosuch", "Variable not found.\n\n"),
        ("show startup-logs", "\n"),
        ("show events nosuch -x", "No such event sink\n\n"),
        ("set anon on 1234; show anon", "\nAnonymized mode enabled\nKey : 1234\n\n"),
        ("set anon on 0", "Value out of range (1 to 4294967295 expected).\n\n"),
        ("set anon on 1234; debug dev hash b; set anon off; debug dev hash b", "\nc359d4\n\n\nb\n\n"),
        ("set anon off 1", "Key can't be added while disabling anonymized mode\n\n"),
        ("set anon global-key", "Expects an integer value.\n\n"),
        ("set anon global-key -1", "Value out of range (0 to 4294967295 expected).\n\n"),
        ("debug dev log x", "This command is restricted to expert mode only.\n\n"),
        ("debug dev exit", "This command is restricted to expert mode only.\n\n"),
        ("debug dev panic", "This command is restricted to expert mode only.\n\n"),
        ("expert-mode on; debug dev log hello; debug dev delay 1", "\n\n\n"),
        ("expert-mode on; debug dev write 66", &format!("\n{}\n.\n\n", ".".repeat(63))),
        ("show fd x", "Expects the number of a descriptor.\n\n"),
        ("user; wait 1ms", "\nPermission denied\n\n"),
    ] {
        assert_eq!(ask(line), said, "{line}");
    }
    let hidden = ask("set anon on 1234; show servers state b");
    assert!(hidden.contains(" c359d4 1 238337 IPV4("), "{hidden}");
    assert_eq!(
        ask("set anon global-key 77; set anon on; show anon; set anon global-key 0"),
        "\n\nAnonymized mode enabled\nKey : 77\n\n\n"
    );
    assert!(ask("show fd").lines().any(|line| line.contains(" : socket:[")));
    assert_eq!(ask("show fd 0").trim().lines().count(), 1);
    assert!(ask("show libs").starts_with("0x"));
    assert!(ask("show events").ends_with(" ring buffer\n\n") && !ask("show events").ends_with("\n\n\n"));
    // As 3.2.0 tags them.
    let typed = ask("show stat typed");
    assert!(typed.contains(".srid.1:MCP:u32:0\n"), "{typed}");
    assert!(typed.lines().any(|line| line.starts_with("B.") && line.contains(".rate.1:MRP:u32:0")), "{typed}");
    assert!(ask("show dev").contains("\nProcess info\n"));
    assert!(ask("show pools").starts_with("Dumping pools usage."));
    assert!(ask("show tasks").contains("(2 threads)\n"));
    assert!(ask("show threads").starts_with("  Thread 1 : sessions="));
}

const SLOW: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
                    frontend origin\n bind @ORIGIN@\n http-request return status 200\n\
                    frontend www\n bind @BIND@\n default_backend turns\n\
                    backend turns\n server hour @SERVER@ weight 100 slowstart 1h\n server sixteen @SERVER@ weight 100 \
                    slowstart 16s\n server two @SERVER@ weight 100 slowstart 2s\n server light @SERVER@ weight 3 slowstart 2s\n \
                    server quick @SERVER@ weight 100\n\
                    backend fixed\n balance static-rr\n server s @SERVER@ weight 100 slowstart 1h\n\
                    backend mapped\n balance source\n server s @SERVER@ weight 100 slowstart 1h\n\
                    backend ringed\n balance source\n hash-type consistent\n server s @SERVER@ weight 100 slowstart 1h\n\
                    backend least\n balance leastconn\n server s @SERVER@ weight 10 slowstart 1h\n";

/// Weights during a slow start, which change once a second: each value that either program shows must be one of the
/// expected steps, in order, and both must reach the last one.
#[test]
fn slow_starts_go_haproxys_way() {
    let both = Both::with(SLOW);
    let each = [
        "turns/hour",
        "turns/sixteen",
        "turns/two",
        "turns/light",
        "turns/quick",
        "fixed/s",
        "mapped/s",
        "ringed/s",
        "least/s",
    ];
    // The state from `show servers state`, the weight and the throttle from `show stat`.
    let seen = |socket: &Path, server: &str| {
        let (backend, name) = server.split_once('/').expect("a backend");
        let state = Sluicegate::stats(socket, &format!("show servers state {backend}"));
        let state = state.lines().find(|line| line.split(' ').nth(3) == Some(name)).expect("its line").to_owned();
        let rows = Sluicegate::stats(socket, &format!("show stat {backend} 4 -1"));
        let row = rows.lines().find(|row| row.split(',').nth(1) == Some(name)).expect("its row").to_owned();
        let state = state.split(' ').nth(5).expect("a state").to_owned();
        [
            state,
            row.split(',').nth(18).expect("a weight").to_owned(),
            row.split(',').nth(29).expect("a share").to_owned(),
        ]
    };
    for server in each {
        both.same(&format!("set server {server} state maint"));
    }
    for server in each {
        both.same(&format!("set server {server} state ready"));
    }
    let sockets = [&both.whole.stats, &both.theirs];
    // A slow start of an hour stays at its first step during the test.
    for (server, weight, share) in [
        ("turns/hour", "7", "6"),
        ("fixed/s", "100", "100"),
        ("mapped/s", "100", "100"),
        ("ringed/s", "7", "6"),
        ("least/s", "1", "6"),
    ] {
        for socket in sockets {
            assert_eq!(seen(socket, server), ["1", weight, share], "{server}");
        }
    }
    for socket in sockets {
        assert_eq!(seen(socket, "turns/quick"), ["2", "100", ""]);
    }
    // The steps, one per second: sixteenths of the weight, rounded up.
    let way = |weight: u32, seconds: u32| {
        let steps = (0..seconds).map(move |second| (16 * second + seconds) / seconds);
        steps.map(move |steps| ((weight * steps).div_ceil(16).to_string(), (steps * 100 / 16).to_string()))
    };
    for (server, weight, seconds) in [("turns/two", 100, 2), ("turns/light", 3, 2), ("turns/sixteen", 100, 16)] {
        for socket in sockets {
            let steps: Vec<_> = way(weight, seconds).chain([(weight.to_string(), String::new())]).collect();
            let mut reached = 0;
            wait_for("the last step", || {
                let [_, weight, share] = seen(socket, server);
                let at = steps.iter().position(|step| *step == (weight.clone(), share.clone()));
                let at = at.unwrap_or_else(|| panic!("{server} is at {weight}, {share}% of {steps:?}"));
                assert!(at >= reached, "{server} went back from step {reached} to {at}");
                reached = at;
                // For the long slow start it is enough that the weight has changed.
                (at + 1 == steps.len() || (seconds > 2 && at > 0)).then_some(())
            });
        }
    }
}
