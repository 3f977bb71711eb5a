//! `runtime-state-file`: what a process learned is there after it was killed, stopped or replaced.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, free_port, wait_for};

use crate::BINARY;

/// A directory with a configuration, its state file and its stats socket.
struct Stage {
    directory: tempfile::TempDir,
    gate: Listening,
    marks: AtomicU32,
}

impl Stage {
    fn new() -> Stage {
        Stage { directory: tempfile::tempdir().expect("a directory"), gate: Listening::new(), marks: AtomicU32::new(0) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration: these lines of `global`, and sections. `@DIR@` is the directory, `@GATE@` the address.
    fn write(&self, global: &str, sections: &str) {
        let text = format!(
            "global\n nbthread 2\n stats socket @DIR@/stats level admin\n{global}defaults\n mode http\n timeout client 60s\n \
             timeout server 60s\n timeout connect 2s\n{sections}"
        );
        let dir = self.directory.path().to_str().expect("UTF-8");
        let text = text.replace("@DIR@", dir).replace("@GATE@", &self.gate.word());
        std::fs::write(self.path("a.cfg"), text).expect("written");
    }

    fn start(&self) -> Program {
        let _ = std::fs::remove_file(self.path("stats"));
        let mut command = Command::new(BINARY);
        command.args(["run", "a.cfg"]).current_dir(self.directory.path());
        let program = Program::start(command, &[self.gate.fd()]);
        assert!(!self.ask("show version").is_empty(), "{}", program.output());
        program
    }

    fn ask(&self, line: &str) -> String {
        Sluicegate::stats(&self.path("stats"), line)
    }

    fn get(&self, path: &str) -> u16 {
        Client::connect(&self.gate.address()).get(path).status
    }

    /// Waits until the file has what was done before: for a write that began later, so for the second that ends.
    fn wait_until_written(&self) {
        for _ in 0..2 {
            let mark = format!("mark-{:04}", self.marks.fetch_add(1, Ordering::Relaxed));
            assert_eq!(self.ask(&format!("set table marks key {mark} data.gpt0 1")).trim(), "");
            wait_for("the file", || {
                let bytes = std::fs::read(self.path("state")).ok()?;
                bytes.windows(mark.len()).any(|part| part == mark.as_bytes()).then_some(())
            });
        }
    }

    /// Kills the process once the file has everything.
    fn kill(&self, mut program: Program) {
        self.wait_until_written();
        program.signal(libc::SIGKILL);
        program.wait();
    }

    /// Stops the process.
    fn stop(&self, mut program: Program) {
        program.signal(libc::SIGTERM);
        program.wait();
    }
}

const EVERY: &str = " runtime-state-file @DIR@/state interval 20ms\n";
/// An interval that never passes: the file is written at the start and at the end.
const SELDOM: &str = " runtime-state-file @DIR@/state interval 1h\n";

const MARKS: &str = "backend marks\n stick-table type string len 16 size 10k store gpt0\n";

const TABLES: &str = "frontend front
 bind @GATE@
 stick-table type ip size 100k expire 1h store http_req_rate(1h),http_req_cnt,conn_cur,gpc(3),gpt0
 http-request track-sc0 src
 http-request sc-inc-gpc(1,0) if { path /gpc }
 http-request deny if { sc_http_req_rate(0) gt 3 }
 http-request return status 200
backend soon
 stick-table type integer size 100 expire 1s store gpc0
";

#[test]
fn a_client_at_its_limit_is_still_at_it_after_a_crash() {
    let stage = Stage::new();
    stage.write(EVERY, &format!("{TABLES}{MARKS}"));
    let program = stage.start();
    for expected in [200, 200, 200, 403] {
        assert_eq!(stage.get("/gpc"), expected);
    }
    stage.ask("set table front key 9.9.9.9 data.http_req_cnt 77 data.gpt0 4294967295 data.http_req_rate 500");
    stage.ask("set table soon key 5 data.gpc0 3");
    stage.kill(program);
    let mode = std::fs::metadata(stage.path("state")).expect("a file").mode();
    assert_eq!(mode & 0o777, 0o600);

    let program = stage.start();
    let found = stage.ask("show table front key 127.0.0.1");
    for data in ["http_req_cnt=4 ", "http_req_rate(3600000)=4 ", "conn_cur=0 ", "gpc1=4 ", "use=0 "] {
        assert!(format!("{found} ").replace('\n', " ").contains(data), "no {data}: {found}");
    }
    let found = stage.ask("show table front key 9.9.9.9");
    for data in ["gpt0=4294967295", "http_req_cnt=77", "http_req_rate(3600000)=500"] {
        assert!(found.contains(data), "no {data}: {found}");
    }
    let left: u64 = found.split("exp=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a time");
    assert!((1..=3_600_000).contains(&left), "{found}");
    assert_eq!(stage.get("/"), 403);
    wait_for("expiry", || stage.ask("show table soon").contains("used:0").then_some(()));
    stage.stop(program);
    // The end of the process writes, too.
    stage.write(SELDOM, &format!("{TABLES}{MARKS}"));
    let program = stage.start();
    assert!(stage.ask("show table front key 127.0.0.1").contains("http_req_cnt=5"));
    stage.ask("set table front key 8.8.8.8 data.http_req_cnt 1");
    stage.stop(program);
    let program = stage.start();
    assert!(stage.ask("show table front key 8.8.8.8").contains("http_req_cnt=1"));
    stage.stop(program);
}

const EVERYTHING: &str = "frontend front
 bind @GATE@
 http-request set-var(proc.seen) int(7) if { path /seen }
 http-request set-var(proc.preset) int(8) if { path /seen }
 http-request set-var(proc.changed) int(9) if { path /seen }
 http-request limit one key src rate 2/1h store memory if { path /gcra }
 http-request limit two key src rate 2/1h algorithm sliding store memory if { path /sliding }
 http-request limit three key src rate 2/1h algorithm fixed store memory if { path /fixed }
 http-request limit four key src max 1 store memory if { path /slots }
 http-request return status 200 hdr seen \"s%[var(proc.seen)] %[var(proc.preset)] %[var(proc.changed)]\"
store memory
backend app
 server one 127.0.0.1:1
 server two 127.0.0.1:1 check inter 1h rise 1
 server three 127.0.0.1:1 weight 10
 server four 127.0.0.1:1
backend plain
 load-server-state-from-file none
 server one 127.0.0.1:1
";

const PRESETS: &str = " set-var proc.preset int(1)\n set-var proc.changed int(1)\n";

impl Stage {
    fn column(&self, proxy: &str, server: &str, column: &str) -> String {
        let text = self.ask("show stat");
        let mut lines = text.lines();
        let header = lines.next().expect("a header").trim_start_matches("# ");
        let at = header.split(',').position(|name| name == column).expect("a column");
        let line = lines.find(|line| line.starts_with(&format!("{proxy},{server},"))).expect("a line");
        line.split(',').nth(at).expect("a cell").to_owned()
    }

    fn seen(&self, path: &str) -> String {
        let response = Client::connect(&self.gate.address()).get(path);
        response.header("seen").unwrap_or_default().to_owned()
    }
}

#[test]
fn limits_variables_servers_and_counters_are_kept() {
    let stage = Stage::new();
    stage.write(&format!("{EVERY}{PRESETS}"), &format!("{EVERYTHING}{MARKS}"));
    let program = stage.start();
    assert_eq!(stage.seen("/"), "s 1 1");
    assert_eq!(stage.seen("/seen"), "s7 8 9");
    for path in ["/gcra", "/sliding", "/fixed"] {
        assert_eq!([(); 3].map(|()| stage.get(path)), [200, 200, 429], "{path}");
    }
    assert_eq!(stage.get("/slots"), 200);
    for line in [
        "set server app/one state drain",
        "disable server app/two",
        "set weight app/three 4",
        "disable server plain/one",
    ] {
        assert_eq!(stage.ask(line).trim(), "", "{line}");
    }
    let requests: u64 = stage.column("front", "FRONTEND", "req_tot").parse().expect("a number");
    assert!(requests >= 12);
    stage.kill(program);

    // One of the lines has changed.
    let changed = PRESETS.replace("proc.changed int(1)", "proc.changed int(2)");
    stage.write(&format!("{EVERY}{changed}"), &format!("{EVERYTHING}{MARKS}"));
    let program = stage.start();
    assert_eq!(stage.seen("/"), "s7 8 2");
    for path in ["/gcra", "/sliding", "/fixed"] {
        assert_eq!(stage.get(path), 429, "{path}");
    }
    assert_eq!(stage.get("/slots"), 200);
    assert!(stage.column("app", "one", "status").starts_with("DRAIN"));
    assert_eq!(stage.column("app", "two", "status"), "MAINT");
    assert_eq!(stage.column("app", "three", "weight"), "4");
    assert_eq!(stage.column("app", "four", "status"), "no check");
    assert_eq!(stage.column("plain", "one", "status"), "no check", "its states are those of the configuration");
    let after: u64 = stage.column("front", "FRONTEND", "req_tot").parse().expect("a number");
    assert_eq!(after, requests + 5);
    let limits = stage.ask("show limits");
    assert!(limits.contains("one"), "{limits}");
    stage.stop(program);

    // The other way round: without the line in the file, the process begins anew.
    stage.write(PRESETS, &format!("{EVERYTHING}{MARKS}"));
    let program = stage.start();
    assert_eq!((stage.seen("/").as_str(), stage.get("/gcra")), ("s 1 1", 200));
    assert_ne!(stage.column("app", "two", "status"), "MAINT");
    stage.stop(program);
}

/// Listeners are known by their addresses; where one has counters of its own, these go on.
#[test]
fn counters_of_listeners_are_kept() {
    let stage = Stage::new();
    let other = Listening::new();
    let sections = format!(
        "{MARKS}defaults counted\n mode http\n timeout client 60s\n option socket-stats\nfrontend front from counted\n \
         bind @GATE@ name gate\n bind {}\n http-request return status 200\n",
        other.word()
    );
    let start = |stage: &Stage| {
        let _ = std::fs::remove_file(stage.path("stats"));
        let mut command = Command::new(BINARY);
        command.args(["run", "a.cfg"]).current_dir(stage.directory.path());
        let program = Program::start(command, &[stage.gate.fd(), other.fd()]);
        assert!(!stage.ask("show version").is_empty(), "{}", program.output());
        program
    };
    let total = |name: &str| stage.column("front", name, "stot");
    stage.write(EVERY, &sections);
    let program = start(&stage);
    for gate in [&stage.gate, &stage.gate, &other] {
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    }
    assert_eq!([total("gate"), total("sock-2"), total("FRONTEND")], ["2", "1", "3"]);
    stage.kill(program);
    // Another name and another place in the section.
    let line = format!(" bind {}\n", other.word());
    let changed =
        sections.replace(&line, "").replace(" bind @GATE@ name gate\n", &format!("{line} bind @GATE@ name web\n"));
    stage.write(EVERY, &changed);
    let program = start(&stage);
    assert_eq!([total("web"), total("sock-1"), total("FRONTEND")], ["2", "1", "3"]);
    assert_eq!(stage.get("/"), 200);
    assert_eq!([total("web"), total("sock-1"), total("FRONTEND")], ["3", "1", "4"]);
    // A reload keeps the counters, and the process writes them at its end.
    let reloaded = Command::new(BINARY).args(["reload", &program.pid().to_string()]).output().expect("it starts");
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert_eq!(total("web"), "3");
    stage.stop(program);
    // Without the option there is nothing to restore.
    stage.write(EVERY, &changed.replace(" option socket-stats\n", ""));
    let program = start(&stage);
    assert!(!stage.ask("show stat").contains("front,web"));
    stage.stop(program);
}

#[test]
fn changed_tables_and_damaged_files_do_not_stop_the_start() {
    let stage = Stage::new();
    let tables = |size, period, keys| {
        format!(
            "backend t\n stick-table type integer size {size} store gpc0,http_req_rate({period})\nbackend keys\n stick-table \
             type {keys} size 10 store gpc0\nbackend gone{size}\n stick-table type ip size 10 store gpc0\n{MARKS}frontend \
             front\n bind @GATE@\n http-request return status 200\n"
        )
    };
    stage.write(SELDOM, &tables(5, "1h", "ip"));
    let program = stage.start();
    for number in 1..=5 {
        stage.ask(&format!("set table t key {number} data.gpc0 {number} data.http_req_rate 9"));
    }
    stage.ask("set table keys key 1.2.3.4 data.gpc0 1");
    stage.ask("set table gone5 key 1.2.3.4 data.gpc0 1");
    stage.stop(program);

    stage.write(SELDOM, &tables(4, "2h", "integer"));
    let mut program = stage.start();
    for text in [
        "state: stick-table t is full: 1 entries are given up",
        "state: stick-table t is defined otherwise now: its entries lose http_req_rate",
        "state: stick-table keys has other keys now: its 1 entries are given up",
        "state: stick-table gone5 is not in the configuration any more: its 1 entries are given up",
    ] {
        program.wait_for_output(text);
    }
    let found = stage.ask("show table t");
    assert!(found.contains("used:4") && found.contains("key=1 ") && found.contains("gpc0=1 "), "{found}");
    assert!(!found.contains("=9"), "{found}");
    stage.stop(program);

    let good = std::fs::read(stage.path("state")).expect("read");
    let mut changed = good.clone();
    changed[60] ^= 1;
    for (bytes, expected) in [
        (&good[..good.len() - 9], format!("state: it is cut off after {} bytes", good.len() - 9)),
        (&changed, "state: it is damaged at byte 36".to_owned()),
        (b"# another file", "state: it is not a state file".to_owned()),
        (b"", "state: it is cut off after 0 bytes".to_owned()),
    ] {
        std::fs::write(stage.path("state"), bytes).expect("written");
        let mut program = stage.start();
        program.wait_for_output(&format!("{expected}; the process begins without its state; it is kept as "));
        assert!(stage.ask("show table t").contains("used:0"));
        assert_eq!(std::fs::read(stage.path("state.damaged")).expect("kept"), bytes);
        stage.stop(program);
        assert!(stage.path("state").exists() && !stage.path("state.new").exists());
    }
    // Not a file at all.
    std::fs::remove_file(stage.path("state")).expect("removed");
    std::fs::create_dir(stage.path("state")).expect("made");
    let mut program = stage.start();
    program.wait_for_output("state: it is not a file; the process begins without");
    stage.stop(program);
}

#[test]
fn a_reload_keeps_writing_and_a_process_that_was_replaced_does_not() {
    let stage = Stage::new();
    let sections = format!("{MARKS}frontend front\n bind @GATE@\n http-request return status 200\n");
    stage.write(" log stderr format raw daemon\n", &sections);
    let mut first = stage.start();
    let reload = |program: &Program| {
        let ended = Command::new(BINARY).args(["reload", &program.pid().to_string()]).output().expect("it starts");
        assert!(ended.status.success(), "{ended:?}");
    };
    // A reload turns it on, moves it and reports what is wrong.
    let every = format!(" log stderr format raw daemon\n{EVERY}");
    stage.write(&every, &sections);
    reload(&first);
    stage.wait_until_written();
    stage.write(&every.replace("@DIR@/state", "@DIR@/none/state"), &sections);
    reload(&first);
    first.wait_for_output("none/state: it can't be written: No such file or directory");
    std::fs::create_dir(stage.path("none")).expect("made");
    first.wait_for_output("none/state: it is written again");
    stage.write(&every, &sections);
    reload(&first);
    stage.wait_until_written();

    // Another process of this configuration begins with the file, and goes on with it.
    let other = stage.path("other");
    let text = std::fs::read_to_string(stage.path("a.cfg")).expect("read").replace("/stats level", "/other level");
    std::fs::write(stage.path("b.cfg"), text).expect("written");
    let mut command = Command::new(BINARY);
    command.args(["run", "b.cfg"]).current_dir(stage.directory.path());
    let mut second = Program::start(command, &[stage.gate.fd()]);
    assert!(Sluicegate::stats(&other, "show table marks").contains("used:"));
    first.wait_for_output("state: another process writes it now");
    stage.ask("set table marks key of-the-first data.gpt0 1");
    assert_eq!(Sluicegate::stats(&other, "set table marks key of-the-second data.gpt0 1").trim(), "");
    second.signal(libc::SIGTERM);
    second.wait();
    stage.stop(first);
    let bytes = std::fs::read(stage.path("state")).expect("read");
    let has = |key: &str| bytes.windows(key.len()).any(|part| part == key.as_bytes());
    assert!(has("of-the-second") && !has("of-the-first"));
}

#[test]
fn the_file_is_inside_the_jail() {
    // SAFETY: takes and returns numbers.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let stage = Stage::new();
    let [jail, inside] = ["jail", "jail/var"].map(|name| stage.path(name));
    std::fs::create_dir_all(&inside).expect("made");
    std::os::unix::fs::chown(&inside, Some(65534), Some(65534)).expect("root");
    let global = format!(
        " log stderr format raw daemon\n chroot {}\n uid 65534\n gid 65534\n runtime-state-file @FILE@ interval 1h\n",
        jail.display()
    );
    stage.write(&global.replace("@FILE@", "/var/state"), MARKS);
    for round in ["one", "two"] {
        let program = stage.start();
        stage.ask(&format!("set table marks key {round} data.gpt0 1"));
        assert!(stage.ask("show table marks").contains("key=one "), "{}", program.output());
        stage.stop(program);
        assert_eq!(std::fs::metadata(inside.join("state")).expect("a file").uid(), 65534);
    }
    // Only root may write here.
    stage.write(&global.replace("@FILE@", "/state"), MARKS);
    let mut program = stage.start();
    program.wait_for_output("'runtime-state-file': /state: it can't be written: Permission denied");
    stage.stop(program);
}

/// A store whose own file is older than the state file: the keys of limits come after it.
#[test]
fn limits_of_a_store_with_save_points_survive_a_crash() {
    let stage = Stage::new();
    let port = free_port();
    let sections = format!(
        "frontend front\n bind @GATE@\n http-request limit one key str(all) rate 3/1h store data on-error closed\n \
         http-request return status 200\nstore data\n bind 127.0.0.1:{port}\n dir @DIR@\n save 3600 1\n{MARKS}"
    );
    stage.write(EVERY, &sections);
    let ask = |words: &[&str]| Client::connect(&format!("127.0.0.1:{port}")).ask(words);
    let used = || ask(&["GET", "limit:one:all"]);
    // The first process leaves a file of the store, the second one counts on, and is killed.
    let program = stage.start();
    assert_eq!(stage.get("/"), 200);
    stage.stop(program);
    assert!(stage.path("dump.rdb").exists());
    let program = stage.start();
    wait_for("the key", || used().starts_with('$').then_some(()));
    assert_eq!([(); 3].map(|()| stage.get("/")), [200, 200, 429]);
    let before = used();
    stage.kill(program);
    let program = stage.start();
    wait_for("the key", || (used() == before).then_some(()));
    assert_eq!(stage.get("/"), 429);
    stage.kill(program);
    // Without the store's own file.
    std::fs::remove_file(stage.path("dump.rdb")).expect("removed");
    let program = stage.start();
    assert_eq!(stage.get("/"), 429);
    assert_eq!(used(), before);
    stage.stop(program);
}
