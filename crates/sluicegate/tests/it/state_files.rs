//! State files: a file that Debian's haproxy wrote is read here, and the other way round, with the same result.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, wait_for};

use crate::start;

/// Backends in which servers of every kind start; only the first is ever checked.
const BACKENDS: &str = "backend app\n@FROM@ server one @ONE@ weight 3 check inter 1h\n server two 127.0.0.1:1 backup check inter 1h\n \
                        server three 127.0.0.1:1 disabled\n server four 127.0.0.1:1 disabled check inter 1h\n server five \
                        127.0.0.1:1 weight 0\n server six 127.0.0.1:1 weight 0 check inter 1h id 77\n server seven 127.0.0.1:1 \
                        track app/one\n server eight 127.0.0.1:1 track app/four\n server nine localhost:1\n server ten \
                        127.0.0.1:1 check inter 1h port 9 addr 127.0.0.2\n server eleven 127.0.0.1:1 weight 7\n server twelve \
                        127.0.0.1:1 weight 7 check inter 1h\n server agent 127.0.0.1:1 check inter 1h agent-check agent-port \
                        9 agent-inter 1h\nbackend numbered\n@FROM@ id 55\n server a unix@/nowhere\n server b 127.0.0.1\n";

/// Commands of administrators between the start and the writing of the file.
const COMMANDS: [&str; 13] = [
    "set server app/one state drain",
    "disable server app/two",
    "enable server app/three",
    "set weight app/eleven 3",
    "set weight app/twelve 0",
    "disable health app/twelve",
    "set server app/ten health down",
    "set server app/nine addr 127.0.0.5 port 80",
    "set server app/eleven addr 127.0.0.6 port 81",
    "set server app/agent agent-port 10",
    "set server app/five health down",
    "set server numbered/b health stopping",
    "disable server numbered/a",
];

struct Stage {
    directory: tempfile::TempDir,
    one: Listening,
}

/// A program, which runs for as long as this value lives.
struct Side {
    stats: PathBuf,
    _program: Box<dyn std::any::Any>,
}

impl Stage {
    fn new() -> Stage {
        Stage { directory: tempfile::tempdir().expect("a directory"), one: Listening::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Haproxy's and ours, with these lines in `global` and in each backend.
    fn both(&self, global: &str, from: &str) -> [Side; 2] {
        let file = |name: &str| {
            let backends = BACKENDS.replace("@FROM@", from).replace("@ONE@", &self.one.address());
            let stats = self.path(name);
            let text = format!(
                "global\n nbthread 1\n stats socket {} level admin\n{global}defaults\n mode http\n timeout client 60s\n \
                 timeout server 60s\n timeout connect 2s\n{backends}",
                stats.display()
            );
            (stats, text)
        };
        let name = |side: &str| format!("{side}{}", std::fs::read_dir(self.directory.path()).unwrap().count());
        let (theirs, text) = file(&name("haproxy"));
        let haproxy = Haproxy::start(&text, &[]);
        let (ours, text) = file(&name("own"));
        let own = start(&text, &[]);
        let sides =
            [Side { stats: theirs, _program: Box::new(haproxy) }, Side { stats: ours, _program: Box::new(own) }];
        for side in &sides {
            wait_for("the socket", || UnixStream::connect(&side.stats).ok());
            wait_for("the first check", || side.ask("show stat app 4 -1").contains(",L4OK,").then_some(()));
        }
        sides
    }

    /// Keeps an answer as a file.
    fn keep(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text.replace("@PORT@", &self.one.port().to_string())).expect("a file");
        path
    }
}

impl Side {
    fn ask(&self, line: &str) -> String {
        Sluicegate::stats(&self.stats, line)
    }

    /// The lines of servers and their rows of the statistics, without ages, without the bit of a check that runs this
    /// moment, and without the levels of servers without checks, which later versions start at another figure.
    fn state(&self) -> Vec<String> {
        let masked = |line: &str| {
            let mut words: Vec<&str> = line.split(' ').collect();
            let state =
                words[13].parse::<u32>().map_or_else(|_| words[13].to_owned(), |state| (state & !1).to_string());
            if state == "0" {
                words[12] = "LEVEL";
            }
            (words[9], words[13]) = ("AGE", &state);
            words.join(" ")
        };
        let mut lines: Vec<String> =
            self.ask("show servers state").lines().skip(1).filter(|line| !line.is_empty()).map(masked).collect();
        for row in self.ask("show stat -1 4 -1").lines().filter(|row| row.contains(',')) {
            let cells: Vec<&str> = row.split(',').collect();
            lines.push([0, 1, 17, 18, 19, 20].map(|column| cells[column]).join(","));
        }
        lines
    }
}

fn ages(text: &str) -> Vec<u64> {
    let lines = text.lines().skip(2).filter(|line| !line.is_empty());
    lines.map(|line| line.split(' ').nth(9).expect("an age").parse().expect("a number")).collect()
}

fn from_global(path: &Path) -> String {
    format!(" server-state-file {}\n", path.display())
}

/// Both programs start, get the same commands and write the same file; each of them reads the files of both.
#[test]
fn states_travel_between_both_programs() {
    let stage = Stage::new();
    let before = stage.both("", "");
    assert_eq!(before[1].state(), before[0].state(), "at the start");
    for side in &before {
        COMMANDS.iter().for_each(|command| drop(side.ask(command)));
    }
    assert_eq!(before[1].state(), before[0].state(), "after the commands");
    let mut results = Vec::new();
    for (index, side) in before.iter().enumerate() {
        let path = stage.keep(&format!("state{index}"), &side.ask("show servers state"));
        let after = stage.both(&from_global(&path), " load-server-state-from-file global\n");
        results.extend(after.iter().map(Side::state));
    }
    assert!(results[0].iter().any(|line| line.starts_with("app,two,MAINT")), "{results:#?}");
    assert!(results[0].iter().any(|line| line.contains(" eleven 127.0.0.1 2 0 3 7 AGE ")), "{results:#?}");
    assert_eq!(results[1], results[0], "of haproxy's file");
    assert_eq!(results[2], results[0], "haproxy of ours");
    assert_eq!(results[3], results[0], "ours of ours");
}

const LINES: &str = "1\n# a comment\n9 app 9 one 127.0.0.9 2 0 9 3 5000 6 3 4 6 0 0 0 - @PORT@ - 0 0 - - 0\n9 app 9 eleven 127.0.0.9 2 8 200 \
                     100 6000 1 0 2 0 0 0 0 - 8080 - 0 0 - - 0\n9 app 9 twelve 127.0.0.9 3 0 2 7 7000 15 3 3 6 0 0 0 - 1 - 0 99 \
                     127.0.0.8 - 0\n9 nosuch 9 one 127.0.0.9 0 0 9 9 5000 6 3 4 6 0 0 0 - 0 - 0 0 - - 0\n";

/// Settings that the new configuration has changed take precedence; a server that the file does not name starts as
/// usual.
#[test]
fn a_file_is_found_by_base_and_name() {
    let stage = Stage::new();
    let base = format!(" server-state-base {}\n", stage.directory.path().display());
    stage.keep("all", LINES);
    stage.keep("app", LINES);
    stage.keep("other", LINES);
    let sources = [
        (" server-state-file all\n", " load-server-state-from-file global\n"),
        ("", " load-server-state-from-file local\n"),
        ("", " load-server-state-from-file local\n server-state-file-name use-backend-name\n"),
        ("", " load-server-state-from-file local\n server-state-file-name other\n"),
    ];
    for (global, from) in sources {
        let [theirs, ours] = stage.both(&format!("{base}{global}"), from);
        assert_eq!(ours.state(), theirs.state(), "{global}{from}");
        let told = ages(&ours.ask("show servers state app"));
        assert!(told[0] >= 5000 && told[10] >= 6000 && told[11] >= 7000 && told[1] < 5000, "{told:?}");
    }
    let [_, plain] = stage.both(&format!("{base} server-state-file all\n"), " load-server-state-from-file none\n");
    assert!(ages(&plain.ask("show servers state")).iter().all(|age| *age < 5000));
}

/// A file that can't be used is reported, and the process starts with what the configuration says.
#[test]
fn a_file_that_is_none_is_told_of() {
    let stage = Stage::new();
    let broken = stage.keep("broken", &format!("{LINES}9 app 9\n"));
    let future = stage.keep("future", "2\n");
    let wrong = stage.keep("wrong", &LINES.replace(" 2 0 9 3 ", " 7 0 999 3 "));
    let missing = stage.path("missing");
    for (path, text) in [
        (&broken, format!("config: corrupted global server state file '{}' at line 7.", broken.display())),
        (&future, format!("config: Can't get version of the global server state file '{}'.", future.display())),
        (&missing, format!("config: Can't open global server state file '{}': No such file", missing.display())),
        (
            &wrong,
            "server-state application failed for server 'app/one', invalid srv_op_state value '7', invalid srv_uweight \
             value '999'"
                .to_owned(),
        ),
    ] {
        let backends = BACKENDS.replace("@FROM@", " load-server-state-from-file global\n");
        let backends = backends.replace("@ONE@", &stage.one.address());
        let file = format!(
            "global\n stats socket @STATS@ level admin\n{}defaults\n timeout client 60s\n timeout server 60s\n timeout connect \
             2s\n{backends}",
            from_global(path)
        );
        let mut own = start(&file.replace("@STATS@", "@DIR@/stats"), &[]);
        own.program.wait_for_output(&text);
        let theirs = stage.path("theirs");
        let mut haproxy = Haproxy::start(&file.replace("@STATS@", &theirs.display().to_string()), &[]);
        // haproxy does not count the first line.
        haproxy.program.wait_for_output(text.trim_end_matches("7."));
    }
}
