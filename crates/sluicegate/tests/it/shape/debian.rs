//! Debian's own unit and init script, as its package installs them, start our binary.

use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, PATIENCE, Program};

use super::{Site, ask, child, root};
use crate::BINARY;

const UNIT: &str = "/lib/systemd/system/haproxy.service";
const SCRIPT: &str = "/etc/init.d/haproxy";

/// `global` as Debian's file has it, with a folder of the test's own for the socket.
const GLOBAL: &str = "    chroot /var/lib/haproxy\n    stats socket @DIR@/admin.sock mode 660 level admin\n    \
                      stats timeout 30s\n    user haproxy\n    group haproxy\n    daemon\n";

/// Returns the values of a key in the unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Returns the variables that the unit sets.
fn environment(unit: &str) -> HashMap<String, String> {
    values(unit, "Environment")
        .iter()
        .flat_map(|line| line.split('"').filter(|part| part.contains('=')))
        .filter_map(|part| part.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// Returns a command line of the unit as systemd runs it, with the variables of its environment, and with our binary in
/// place of haproxy's.
fn command(site: &Site, line: &str, environment: &HashMap<String, String>) -> Command {
    let words = line.split_whitespace().flat_map(|word| match word.strip_prefix('$') {
        Some(name) => environment[name].split_whitespace().map(str::to_owned).collect(),
        None => vec![word.to_owned()],
    });
    let mut words = words.map(|word| word.replace("/usr/sbin/haproxy", site.path("haproxy").to_str().expect("UTF-8")));
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).envs(environment).env("NOTIFY_SOCKET", site.path("notify"));
    command
}

#[test]
fn the_unit_starts_reloads_and_stops() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let site = Site::serving(GLOBAL, &front);
    let unit = std::fs::read_to_string(UNIT).expect("Debian's unit");
    let mut environment = environment(&unit);
    // What an administrator sets in /etc/default/haproxy; the names are the unit's.
    let path = |name: &str| site.path(name).to_str().unwrap().to_owned();
    for (name, value) in
        [("CONFIG", path("a.cfg")), ("PIDFILE", path("pid")), ("EXTRAOPTS", format!("-S {}", path("master.sock")))]
    {
        assert!(environment.insert(name.to_owned(), value).is_some(), "the unit knows {name}");
    }
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    for line in values(&unit, "ExecStartPre") {
        assert_eq!(Program::start(command(&site, line, &environment), &super::fds(&[&front])).wait(), 0, "{line}");
    }
    let [start] = values(&unit, "ExecStart")[..] else { panic!("one ExecStart") };
    let mut service = Program::start(command(&site, start, &environment), &super::fds(&[&front]));
    let mut buffer = [0; 1024];
    let count = manager.recv(&mut buffer).expect("READY=1");
    assert!(buffer[..count].starts_with(b"READY=1\n"), "{}", String::from_utf8_lossy(&buffer[..count]));
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    assert_eq!(site.pid("pid"), service.pid());
    let worker = child(service.pid());
    assert!(ask(&site.path("master.sock"), "show proc").contains(&format!("\n{worker:<16}worker")));
    assert!(ask(&site.path("admin.sock"), "show cli level").starts_with("admin"));
    for line in values(&unit, "ExecReload") {
        let line = line.replace("$MAINPID", &service.pid().to_string());
        let mut reload = Program::start(command(&site, &line, &environment), &super::fds(&[&front]));
        assert_eq!(reload.wait(), 0, "{line}: {}", reload.output());
    }
    let mut hear = || {
        let count = manager.recv(&mut buffer).expect("a state");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    assert!(hear().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(hear(), format!("READY=1\nMAINPID={}\nSTATUS=Ready.\n", service.pid()));
    assert_eq!(Client::connect(&front.address()).get("/").status, 200, "the service outlives a reload");
    assert_eq!(child(service.pid()), worker);
    service.signal(libc::SIGTERM);
    let expected: Vec<i32> = values(&unit, "SuccessExitStatus").iter().filter_map(|code| code.parse().ok()).collect();
    let code = service.wait();
    assert!(code == 0 || expected.contains(&code), "{code}");
}

/// The unit of our own package: it reports readiness, its reload fails if the files are invalid, and stopping it is a
/// success.
#[test]
fn our_own_unit_starts_reloads_and_stops() {
    let front = Listening::new();
    let site = Site::serving("", &front);
    let unit = std::fs::read_to_string(crate::workspace().join("packaging/sluicegate.service")).expect("our unit");
    let path = |name: &str| site.path(name).to_str().unwrap().to_owned();
    let unit = unit
        .replace("/usr/lib/sluicegate/haproxy", &path("haproxy"))
        .replace("/usr/bin/sluicegate", BINARY)
        .replace("/run/sluicegate/pid", &path("pid"));
    let mut environment = environment(&unit);
    for (name, value) in [("CONFIG", path("a.cfg")), ("OPTIONS", format!("-S {}", path("master.sock")))] {
        assert!(environment.insert(name.to_owned(), value).is_some(), "the unit knows {name}");
    }
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let [start] = values(&unit, "ExecStart")[..] else { panic!("one ExecStart") };
    let mut service = Program::start(command(&site, start, &environment), &super::fds(&[&front]));
    let mut buffer = [0; 1024];
    let count = manager.recv(&mut buffer).expect("READY=1");
    assert!(buffer[..count].starts_with(b"READY=1\n"));
    assert_eq!(site.pid("pid"), service.pid());
    let reload = |site: &Site| {
        let lines = values(&unit, "ExecReload").into_iter();
        lines
            .map(|line| line.replace("$MAINPID", &service.pid().to_string()))
            .all(|line| Program::start(command(site, &line, &environment), &super::fds(&[&front])).wait() == 0)
    };
    assert!(reload(&site));
    let text = std::fs::read_to_string(site.path("a.cfg")).unwrap();
    std::fs::write(site.path("a.cfg"), format!("{text}frob\n")).unwrap();
    assert!(!reload(&site), "a file with errors is no reload");
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    service.signal(libc::SIGTERM);
    assert_eq!(service.wait(), 0);
}

/// The unit's command line, with its variables and Debian's configuration file, in a mount and network namespace in
/// which our binary is mounted over haproxy's and `/run` is empty.
#[test]
fn the_unit_starts_the_stock_file() {
    if !root() {
        return;
    }
    let site = Site::serving(GLOBAL, &Listening::new());
    let unit = std::fs::read_to_string(UNIT).expect("Debian's unit");
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let [line] = values(&unit, "ExecStart")[..] else { panic!("one ExecStart") };
    let mut command = Command::new("unshare");
    let prepare = format!(
        "set -e; mount --make-rprivate /; mount -t tmpfs none /run; mkdir /run/haproxy; chown haproxy: /run/haproxy
         mount --bind {BINARY} /usr/sbin/haproxy; exec {line}"
    );
    command.args(["--net", "--mount", "sh", "-c", &prepare]).envs(environment(&unit));
    command.env("NOTIFY_SOCKET", site.path("notify"));
    let mut service = Program::start(command, &[]);
    let mut buffer = [0; 1024];
    let count = manager.recv(&mut buffer).unwrap_or_else(|_| panic!("READY=1: {}", service.output()));
    assert!(buffer[..count].starts_with(b"READY=1\n"), "{}", String::from_utf8_lossy(&buffer[..count]));
    // The namespace's files, seen through the master's root.
    let inside = |path: &str| std::path::PathBuf::from(format!("/proc/{}/root{path}", service.pid()));
    let worker = child(service.pid());
    assert!(ask(&inside("/run/haproxy-master.sock"), "show proc").contains(&format!("\n{worker:<16}worker")));
    assert!(ask(&inside("/run/haproxy/admin.sock"), "show cli level").starts_with("admin"));
    assert_eq!(std::fs::read_link(format!("/proc/{worker}/root")).unwrap().to_str(), Some("/var/lib/haproxy"));
    assert_eq!(std::fs::read_to_string(inside("/run/haproxy.pid")).unwrap().trim(), service.pid().to_string());
    service.signal(libc::SIGTERM);
    let expected: Vec<i32> = values(&unit, "SuccessExitStatus").iter().filter_map(|code| code.parse().ok()).collect();
    let code = service.wait();
    assert!(code == 0 || expected.contains(&code), "{code}");
}

/// The init script runs in a mount and network namespace of its own, in which our binary is mounted over haproxy's,
/// `/run` is empty and the configuration is the test's.
#[test]
fn the_init_script_starts_and_stops() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let site = Site::serving(&GLOBAL.replace("@DIR@", "/run/haproxy"), &front);
    let text = std::fs::read_to_string(site.path("a.cfg")).unwrap().replace(&front.word(), "127.0.0.1:8099");
    std::fs::write(site.path("a.cfg"), text).unwrap();
    let script = format!(
        "set -e; ip link set lo up; mount --make-rprivate /; mount -t tmpfs none /run
         mount --bind {BINARY} /usr/sbin/haproxy; mount --bind {config} /etc/haproxy/haproxy.cfg
         trap 'test -f /run/haproxy.pid && kill -9 $(cat /run/haproxy.pid) 2>/dev/null || true' EXIT
         say() {{ set +e; {SCRIPT} $1; echo \"$1: $?\"; set -e; }}
         say status; say start; say status
         grep '^Uid' /proc/$(cat /run/haproxy.pid)/status
         curl -s -o /dev/null -w 'answer %{{http_code}}\\n' http://127.0.0.1:8099/
         echo 'show cli level' | socat - /run/haproxy/admin.sock
         stat -c '%U %G %a' /run/haproxy
         before=$(cat /run/haproxy.pid); sed 's/status 200/status 202/' {config} > /run/new; cat /run/new > {config}
         say reload; test \"$before\" = \"$(cat /run/haproxy.pid)\" && echo 'the same process'
         curl -s -o /dev/null -w 'then %{{http_code}}\\n' http://127.0.0.1:8099/
         say start; say restart; say status; say stop; say status; say stop
         text=$(sed 's/user haproxy/user nosuchuser/' /etc/haproxy/haproxy.cfg)
         echo \"$text\" > /etc/haproxy/haproxy.cfg; say start",
        config = site.path("a.cfg").display()
    );
    let mut shell = Command::new("unshare");
    shell.args(["-m", "-n", "bash", "-c", &script]);
    let mut shell = Program::start(shell, &[]);
    shell.wait();
    let output = shell.output();
    let told: Vec<&str> = output
        .lines()
        .filter(|line| {
            let (word, code) = line.split_once(": ").unwrap_or(("", ""));
            ["start", "stop", "status", "restart", "reload"].contains(&word) && code.parse::<i32>().is_ok()
        })
        .collect();
    let expected = [
        "status: 3",
        "start: 0",
        "status: 0",
        "reload: 0",
        "start: 0",
        "restart: 0",
        "status: 0",
        "stop: 0",
        "status: 3",
        "stop: 0",
        "start: 1",
    ];
    assert_eq!(told, expected, "{output}");
    for expected in
        ["the same process", "then 202", "answer 200", "Uid:\t103", "admin\n", "haproxy haproxy 2775", "nosuchuser"]
    {
        let expected = expected.replace("103", &id("haproxy"));
        assert!(output.contains(&expected), "no {expected:?} in:\n{output}");
    }
}

/// Returns a user's ID.
fn id(user: &str) -> String {
    let output = Command::new("id").args(["-u", user]).output().expect("id");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
