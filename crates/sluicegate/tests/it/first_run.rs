//! The output for a user who starts a configuration file in a terminal.

use std::process::Command;

use sluicegate_testkit::{Client, Program, free_port, wait_for};

use crate::BINARY;

const DEFAULTS: &str =
    "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n";

/// A file in a directory of its own.
struct File {
    directory: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> File {
        let directory = tempfile::tempdir().expect("a directory");
        let text = text.replace("@DIR@", directory.path().to_str().expect("UTF-8"));
        std::fs::write(directory.path().join("a.cfg"), text).expect("writable");
        File { directory }
    }

    fn path(&self) -> String {
        self.directory.path().join("a.cfg").to_str().expect("UTF-8").to_owned()
    }

    fn run(&self, words: &[&str]) -> Program {
        let mut command = Command::new(BINARY);
        command.arg("run").args(words).arg(self.path());
        Program::start(command, &[])
    }
}

fn served(port: u16) -> Client {
    wait_for("the listener", || {
        let there = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        there.then(|| Client::connect(&format!("127.0.0.1:{port}")))
    })
}

#[test]
fn every_listener_has_a_line_in_the_foreground() {
    let (gate, other, store) = (free_port(), free_port(), free_port());
    let file = File::new(&format!(
        "global\n    stats socket @DIR@/stats\nstore main\n    bind 127.0.0.1:{store}\n{DEFAULTS}frontend www\n    \
         bind 127.0.0.1:{gate}\n    bind @DIR@/web\n    http-request return status 204\nlisten more\n    \
         bind 127.0.0.1:{other}\n    http-request return status 204\n"
    ));
    let directory = file.directory.path().display().to_string();
    let expected = [
        format!("listening on 127.0.0.1:{gate} (frontend www)\n"),
        format!("listening on {directory}/web (frontend www)\n"),
        format!("listening on 127.0.0.1:{other} (listen more)\n"),
        format!("listening on 127.0.0.1:{store} (store main)\n"),
        format!("listening on {directory}/stats (stats socket)\n"),
    ];
    {
        let mut program = file.run(&[]);
        program.wait_for_output("(stats socket)\n");
        // There is no other output: nothing to warn of, and no demo server to try.
        assert_eq!(program.output(), expected.concat());
        program.signal(libc::SIGTERM);
        program.wait();
    }
    {
        let mut program = file.run(&["-q"]);
        assert_eq!(served(gate).get("/").status, 204);
        program.signal(libc::SIGTERM);
        program.wait();
        assert_eq!(program.output(), "", "quiet");
    }
    {
        // A master in the foreground prints the greeting, too.
        let text = std::fs::read_to_string(file.path()).expect("a file");
        std::fs::write(file.path(), text.replace("global\n", "global\n    master-worker\n")).expect("writable");
        let mut program = file.run(&[]);
        program.wait_for_output(&expected[4]);
        assert!(program.output().contains(&expected.concat()), "{}", program.output());
        program.signal(libc::SIGTERM);
        program.wait();
    }
    // HAProxy prints nothing in the foreground, and neither does this program under its name.
    let link = file.directory.path().join("haproxy");
    std::os::unix::fs::symlink(BINARY, &link).expect("a link");
    let mut command = Command::new(&link);
    command.args(["-db", "-f", &file.path()]);
    let mut program = Program::start(command, &[]);
    assert_eq!(served(gate).get("/").status, 204);
    program.signal(libc::SIGTERM);
    program.wait();
    assert!(!program.output().contains("listening on"), "{}", program.output());
}

#[test]
fn what_to_try_comes_from_the_file() {
    let ports: Vec<u16> = (0..7).map(|_| free_port()).collect();
    let [origin, www, stats, locked, store, secret, none] = ports[..] else { unreachable!() };
    let file = File::new(&format!(
        "global\n    stats socket @DIR@/stats\nstore main\n    bind 127.0.0.1:{store}\nstore secret\n    \
         bind 127.0.0.1:{secret}\n    requirepass x\norigin demo\n    bind 127.0.0.1:{origin}\n{DEFAULTS}\
         frontend www\n    bind *:{www}\n    default_backend app\nbackend app\n    server one 127.0.0.1:{origin}\n\
         listen page\n    bind 127.0.0.1:{stats}\n    stats enable\n    stats uri /page\n\
         listen locked\n    bind 127.0.0.1:{locked}\n    stats auth u:p\n\
         frontend none\n    bind 127.0.0.1:{none}\n    http-request deny\n"
    ));
    let mut program = file.run(&[]);
    program.wait_for_output("Ctrl-C ends it.\n");
    let output = program.output();
    let commands = output.split_once("Try:\n").expect("a banner").1;
    let directory = file.directory.path().display();
    assert_eq!(
        commands,
        format!(
            "  curl -i 'http://127.0.0.1:{www}/fast'\n  curl -i 'http://127.0.0.1:{stats}/page'\n  \
             redis-cli -p {store} --scan\n  redis-cli -p {secret} --askpass --scan\n  \
             echo \"show stat\" | nc -U {directory}/stats\nCtrl-C ends it.\n"
        )
    );
    // The printed addresses work.
    assert_eq!(served(www).get("/fast").text(), "I'm FAST!!!!");
    assert_eq!(served(stats).get("/page").status, 200);
}

#[test]
fn few_descriptors_are_no_warning_unless_maxclients_is_asked_for() {
    for (line, warned) in [("", false), ("    maxclients 10000\n", true)] {
        let (gate, store) = (free_port(), free_port());
        let file = File::new(&format!(
            "store main\n    bind 127.0.0.1:{store}\n{line}{DEFAULTS}frontend www\n    bind 127.0.0.1:{gate}\n    \
             http-request return status 204\n"
        ));
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 2000 && exec \"$0\" run \"$1\"", BINARY, &file.path()]);
        let mut program = Program::start(command, &[]);
        program.wait_for_output("(store main)\n");
        let output = program.output();
        assert_eq!(output.contains("leaves no room for 'maxclients 10000'"), warned, "{output}");
        assert_eq!(output.contains("warning"), warned, "{output}");
        // The store still takes as many clients as there is room for.
        let answer = served(store).ask(&["CONFIG", "GET", "maxclients"]);
        assert!(!answer.contains("\r\n10000\r\n"), "{answer}");
    }
}
