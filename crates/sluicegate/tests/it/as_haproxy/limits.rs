//! Limits of the process: what the command line and `global` say of connections, memory, workers and files.

use std::os::unix::fs::MetadataExt;

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, threads, wait_for};

use super::Place;

/// A running process and its listening socket.
struct Running {
    program: Program,
    gate: Listening,
    place: Place,
}

/// Starts with these words and lines of `global`; one frontend answers, and a stats socket is there.
fn start(words: &[&str], global: &str) -> Running {
    let (place, gate) = (Place::new(), Listening::new());
    let text = format!(
        "global\n stats socket {}/stats level admin\n{global}\
         defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
         frontend f\n bind {}\n http-request return status 200 content-type text/plain string ok\n",
        place.path().display(),
        gate.word()
    );
    place.write("a.cfg", text);
    let mut all = vec!["-db", "-f", "a.cfg"];
    all.extend(words);
    let program = Program::start(place.command(&place.program(), &all), &[gate.fd()]);
    Running { program, gate, place }
}

impl Running {
    fn info(&self, name: &str) -> String {
        let text = Sluicegate::stats(&self.place.path().join("stats"), "show info");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}")).to_owned()
    }

    fn answers(&self) {
        assert_eq!(Client::connect(&self.gate.address()).get("/").text(), "ok");
    }

    /// A field of `/proc/PID/limits`: the soft limit.
    fn limit(&self, name: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/limits", self.program.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    }
}

#[test]
fn connections_of_the_process_and_of_frontends() {
    let running = start(&["-n", "7"], " maxconn 9\n");
    assert_eq!(running.info("Maxconn"), "7", "the command line wins");
    let running = start(&["-N", "1"], "");
    let mut first = Client::connect(&running.gate.address());
    assert_eq!(first.get("/").status, 200);
    let mut second = Client::connect(&running.gate.address());
    second.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(first.get("/").status, 200);
    assert_eq!(running.info("CumConns"), "1", "the second waits in the kernel");
    drop(first);
    assert_eq!(second.read_response().status, 200);
}

/// A link in place of a pidfile is replaced and not followed; modes are the same whatever the umask.
#[test]
fn created_files_follow_no_link_and_ignore_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    for umask in ["0", "077"] {
        let (place, gate) = (Place::new(), Listening::new());
        let text = format!(
            "global\n stats socket {}/stats\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout \
             connect 5s\nfrontend f\n bind {}\n http-request return status 200\n",
            place.path().display(),
            gate.word()
        );
        place.write("a.cfg", text);
        place.write("precious", "untouched");
        std::os::unix::fs::symlink("precious", place.path().join("pid")).unwrap();
        let line = format!("umask {umask}; exec {} -W -p pid -f a.cfg", place.program().display());
        let mut program = Program::start(place.command(std::path::Path::new("/bin/sh"), &["-c", &line]), &[gate.fd()]);
        wait_for("its stats socket", || place.path().join("stats").exists().then_some(()));
        let meta = |name: &str| std::fs::symlink_metadata(place.path().join(name)).unwrap();
        let mode = |name: &str| meta(name).permissions().mode() & 0o7777;
        // The link is taken away before the file is there.
        let is_file = || std::fs::symlink_metadata(place.path().join("pid")).is_ok_and(|meta| meta.is_file());
        let written = || std::fs::read_to_string(place.path().join("pid")).is_ok_and(|text| text.ends_with('\n'));
        wait_for("its pidfile", || (is_file() && written()).then_some(()));
        assert_eq!(std::fs::read_to_string(place.path().join("pid")).unwrap().trim(), program.pid().to_string());
        assert_eq!(std::fs::read_to_string(place.path().join("precious")).unwrap(), "untouched");
        assert_eq!([mode("pid"), mode("stats")], [0o644, 0o755], "umask {umask}");
        program.signal(libc::SIGTERM);
        program.wait();
    }
}

/// Without `maxconn` it follows from the descriptors, by HAProxy's sum: these are the numbers of 3.2.0 with two threads.
#[test]
fn connections_follow_from_descriptors() {
    let checks: String = (0..50).map(|n| format!(" server s{n} 127.0.0.1:1 check inter 1h\n")).collect();
    for (limit, global, more, connections) in [
        (256, "", "", 114),
        (1024, "", "", 498),
        (20_000, "", "", 9_986),
        (1024, "", checks.as_str(), 473),
        (1024, " maxpipes 100\n", "", 398),
        (1024, " fd-hard-limit 512\n", "", 242),
        (1024, " nbthread 1\n", "", 499),
    ] {
        let (place, gate) = (Place::new(), Listening::new());
        let threads = if global.contains("nbthread") { "" } else { " nbthread 2\n" };
        let more = if more.is_empty() { String::new() } else { format!("backend b\n{more}") };
        let text = format!(
            "global\n stats socket {}/stats level admin\n{threads}{global}defaults\n mode http\n timeout client 60s\n \
             timeout server 60s\n timeout connect 60s\nfrontend f\n bind {}\n http-request return status 200\n{more}",
            place.path().display(),
            gate.word()
        );
        place.write("a.cfg", text);
        let program = place.program();
        let line = format!("ulimit -n {limit}; exec {} -db -f a.cfg", program.display());
        let started = Program::start(place.command(std::path::Path::new("/bin/sh"), &["-c", &line]), &[gate.fd()]);
        let running = Running { program: started, gate, place };
        wait_for("its stats socket", || running.place.path().join("stats").exists().then_some(()));
        assert_eq!(running.info("Maxconn"), connections.to_string(), "ulimit -n {limit}{global}");
        // The kernel's table has room for all from the start.
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.program.pid())).unwrap();
        let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(room.trim().parse::<u32>().unwrap() >= 2 * connections, "ulimit -n {limit}{global}: {room}");
    }
}

#[test]
fn memory_is_limited() {
    let running = start(&["-m", "200"], " nbthread 1\n");
    running.answers();
    assert_eq!(running.limit("Max data size"), (200 << 20).to_string());
    assert_eq!(running.info("Memmax_MB"), "200");
    let within: u32 = running.info("Maxconn").parse().unwrap();
    assert!((1..=200 * 32).contains(&within), "{within} sessions have no room in 200 MiB");
    let mut refused = start(&["-m", "1"], "");
    assert_eq!(refused.program.wait(), 1);
    assert!(refused.program.output().contains("-m 1: the program alone needs"), "{}", refused.program.output());
}

#[test]
fn thread_hard_limit_bounds_the_workers() {
    let counts = [" nbthread 3\n", " nbthread 3\n thread-hard-limit 1\n"].map(|global| {
        let running = start(&[], global);
        running.answers();
        (running.info("Nbthread"), threads(running.program.pid()))
    });
    assert_eq!([&*counts[0].0, &*counts[1].0], ["3", "1"]);
    assert_eq!(counts[0].1 - counts[1].1, 2);
}

#[test]
fn descriptors_bound_a_derived_maxconn() {
    let maxconn = |global: &str| -> u32 { start(&[], global).info("Maxconn").parse().unwrap() };
    let (free, bound) = (maxconn(""), maxconn(" fd-hard-limit 1000\n"));
    assert!(bound < 500 && bound < free, "{bound} of {free}");
}

/// A limit beyond what the kernel allows anybody (`fs.nr_open`).
#[test]
fn strict_limits_refuse_what_cannot_be_had() {
    let mut strict = start(&[], " maxconn 2000000000\n");
    assert_eq!(strict.program.wait(), 1);
    assert!(strict.program.output().contains("Cannot raise FD limit"), "{}", strict.program.output());
    let mut lax = start(&[], " maxconn 2000000000\n no strict-limits\n");
    lax.answers();
    lax.program.wait_for_output("[WARNING]");
    lax.program.wait_for_output("Cannot raise FD limit");
}

#[test]
fn unix_sockets_have_the_defaults_of_unix_bind() {
    let place = Place::new();
    let dir = place.path().display();
    place.write(
        "a.cfg",
        format!(
            "global\n unix-bind prefix {dir}/x- mode 640\n stats socket {dir}/stats\n\
             defaults\n mode http\n timeout client 1s\nfrontend f\n bind unix@front\n bind unix@own mode 600\n"
        ),
    );
    let _program = Program::start(place.command(&place.program(), &["-db", "-f", "a.cfg"]), &[]);
    for (name, mode) in [("x-front", 0o640), ("x-own", 0o600), ("stats", 0o640)] {
        let file = wait_for(name, || std::fs::metadata(place.path().join(name)).ok());
        assert_eq!(file.mode() & 0o777, mode, "{name}");
    }
}

/// A process whose user changed belongs to root in `/proc`, unless it may leave a core file. Root's test.
#[test]
fn set_dumpable_lets_core_files_be() {
    // SAFETY: the call takes nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for (global, uid) in [(" uid 65534\n", 0), (" uid 65534\n set-dumpable\n", 65534)] {
        let running = start(&[], global);
        running.answers();
        let owner = std::fs::metadata(format!("/proc/{}/environ", running.program.pid())).unwrap().uid();
        assert_eq!(owner, uid, "{global}");
    }
}

/// `-dr` starts with a server whose name has no address, and keeps it in maintenance.
#[test]
fn unresolvable_servers_may_wait() {
    let (place, gate) = (Place::new(), Listening::new());
    let text = format!(
        "global\n stats socket {}/stats\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
         timeout connect 60s\nlisten l\n bind {}\n server s name.invalid:80\n",
        place.path().display(),
        gate.word()
    );
    place.write("a.cfg", text);
    let mut refused = Program::start(place.command(&place.program(), &["-db", "-f", "a.cfg"]), &[gate.fd()]);
    assert_eq!(refused.wait(), 1);
    assert!(refused.output().contains("could not resolve address 'name.invalid'"), "{}", refused.output());
    let words = ["-db", "-dr", "-f", "a.cfg"];
    let mut program = Program::start(place.command(&place.program(), &words), &[gate.fd()]);
    assert_eq!(Client::connect(&gate.address()).get("/").status, 503);
    program.wait_for_output("disabling server");
    let stat = Sluicegate::stats(&place.path().join("stats"), "show stat");
    let server = stat.lines().find(|line| line.starts_with("l,s,")).unwrap();
    assert!(server.contains(",MAINT (resolution),"), "{server}");
}
