//! The master: its end compared with that of Debian's haproxy, its command socket, the service manager.

use std::os::unix::net::UnixDatagram;

use sluicegate_testkit::{Client, Listening, PATIENCE, Program, wait_for};

use super::{Site, ask, child, proc_value, root};

/// Returns how a master ends when it, or its worker, gets a signal: the exit code and the messages.
fn end(start: impl Fn(&Site, &Listening) -> Program, to_worker: bool, signal: i32) -> (i32, Vec<String>) {
    let front = Listening::new();
    let site = Site::serving("    stats socket @DIR@/stats\n", &front);
    let mut program = start(&site, &front);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let worker = child(program.pid());
    // Debian's processes have installed their signal handlers once they answer.
    assert!(ask(&site.path("master"), "show proc").contains("worker"));
    ask(&site.path("stats"), "show info");
    if to_worker {
        // SAFETY: takes numbers; the worker is a child of the program that runs.
        unsafe { libc::kill(worker as i32, signal) };
    } else {
        program.signal(signal);
    }
    let code = program.wait();
    let lines = program.output();
    let words = |line: &str| {
        let text = line.split_once(") : ").map(|(_, text)| text.to_owned())?;
        let text = text.replace(&worker.to_string(), "WORKER");
        let ours =
            ["haproxy version", "path to executable", "New worker", "Loading", "Proxy <HTTPCLIENT>", "Proxy GLOBAL"];
        (!ours.iter().any(|start| text.starts_with(start))).then_some(text)
    };
    let mut lines: Vec<String> = lines.lines().filter_map(words).collect();
    // Two processes write these lines.
    lines.sort();
    (code, lines)
}

#[test]
fn a_master_ends_as_haproxys() {
    for (to_worker, signal) in [
        (false, libc::SIGTERM),
        (false, libc::SIGINT),
        (false, libc::SIGUSR1),
        (true, libc::SIGTERM),
        (true, libc::SIGKILL),
        (true, libc::SIGUSR1),
    ] {
        let words = ["-W", "-p", "pid", "-S", "@DIR@/master"];
        let theirs = end(|site, front| site.theirs(&words, &[front]), to_worker, signal);
        let ours = end(|site, front| site.ours(&words, &[front]), to_worker, signal);
        // Stops are counted with connections, whose number differs by who looked at the stats socket.
        assert_eq!(ours, theirs, "signal {signal}, to the worker: {to_worker}");
    }
}

/// The pidfile names the process to which signals are sent.
#[test]
fn the_pidfile_names_the_master() {
    let front = Listening::new();
    let site = Site::serving("", &front);
    let program = site.ours(&["-W", "-p", "@DIR@/pid"], &[&front]);
    assert_eq!(site.pid("pid"), program.pid());
}

/// The manager is notified in one datagram, which begins with READY=1, that the service runs, and later that it stops.
#[test]
fn the_service_manager_is_told() {
    let front = Listening::new();
    let site = Site::serving("    daemon\n", &front);
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = site.command(&site.path("haproxy"), &["-Ws"]);
    command.env("NOTIFY_SOCKET", site.path("notify"));
    let mut program = Program::start(command, &super::fds(&[&front]));
    let hear = || {
        let mut buffer = [0; 1024];
        let count = manager.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    assert_eq!(hear(), format!("READY=1\nMAINPID={}\nSTATUS=Ready.\n", program.pid()));
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program.signal(libc::SIGTERM);
    assert_eq!(hear(), "STOPPING=1\nSTATUS=Stopping.\n");
    assert_eq!(program.wait(), 0);
}

/// A command of a unit that replaces a service: the manager is notified which process is the service then, and of its
/// reloads and its end.
#[test]
fn the_service_manager_hears_who_goes_on() {
    for theirs in [false, true] {
        let front = Listening::new();
        let site = Site::serving("", &front);
        let manager = UnixDatagram::bind(site.path("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let program = if theirs { std::path::PathBuf::from(super::HAPROXY) } else { site.path("haproxy") };
        let start = |program: &std::path::Path, words: &[&str]| {
            let mut command = site.command(program, words);
            command.env("NOTIFY_SOCKET", site.path("notify"));
            Program::start(command, &super::fds(&[&front]))
        };
        let hear = || {
            let mut buffer = [0; 1024];
            let count = manager.recv(&mut buffer).expect("a datagram");
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        };
        // Debian's master first reports that it loads.
        let hear_ready = || loop {
            let state = hear();
            if state.starts_with("READY=1\n") {
                return state;
            }
        };
        let mut old = start(&program, &["-Ws", "-p", "pid"]);
        hear_ready();
        assert_eq!(Client::connect(&front.address()).get("/").status, 200);
        let text = std::fs::read_to_string(site.path("a.cfg")).unwrap();
        std::fs::write(site.path("a.cfg"), text.replace("status 200", "status 202")).unwrap();
        let pid = old.pid().to_string();
        let mut new = start(&site.path("haproxy"), &["-Ws", "-p", "pid", "-sf", &pid]);
        // A process of this program continues as the service; one of haproxy is replaced.
        let serves = if theirs { new.pid() } else { old.pid() };
        let ready = format!("READY=1\nMAINPID={serves}\nSTATUS=Ready.\n");
        wait_for("the successor", || (hear() == ready).then_some(()));
        wait_for("the pidfile", || (site.pid("pid") == serves).then_some(()));
        wait_for("the new file", || (Client::connect(&front.address()).get("/").status == 202).then_some(()));
        if theirs {
            assert_eq!(old.wait(), 0, "{}", old.output());
        }
        // Signals that the manager sends to the command that it started reach the service.
        new.signal(libc::SIGUSR2);
        wait_for("the reload", || hear().starts_with("RELOADING=1\nMONOTONIC_USEC=").then_some(()));
        assert_eq!(hear(), ready);
        new.signal(libc::SIGTERM);
        assert_eq!(hear(), "STOPPING=1\nSTATUS=Stopping.\n");
        assert_eq!(new.wait(), 0, "{}", new.output());
        if !theirs {
            assert_eq!(old.wait(), 0, "{}", old.output());
        }
    }
}

/// A service that can't start is not reported as ready.
#[test]
fn the_service_manager_is_not_told_of_a_failure() {
    let site = Site::new("global\n    stats socket /nonexistent/x\n");
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut command = site.command(&site.path("haproxy"), &["-Ws"]);
    command.env("NOTIFY_SOCKET", site.path("notify"));
    assert_eq!(Program::start(command, &[]).wait(), 1);
    assert!(manager.recv(&mut [0; 64]).is_err());
}

#[test]
fn the_masters_socket_answers() {
    let front = Listening::new();
    let site = Site::serving("", &front);
    let words = ["-W", "-S", "@DIR@/all,mode,600", "-S", "@DIR@/some,level,operator"];
    let program = site.ours(&words, &[&front]);
    let all = |line: &str| ask(&site.path("all"), line);
    let shown = all("show proc");
    let worker = child(program.pid());
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "#<PID>          <type>          <reloads>       <uptime>        <version>      ");
    assert!(lines[1].starts_with(&format!("{:<16}{:<16}{:<16}0d00h00m", program.pid(), "master", "0 [failed: 0]")));
    assert!(lines[3].starts_with(&format!("{worker:<16}{:<16}{:<16}0d00h00m", "worker", 0)), "{shown}");
    assert!(all("help").starts_with("The following commands are valid at this level:\n  @!<pid>   "));
    assert_eq!(all("prompt; show cli level; quit"), "master> admin\n\nmaster> ");
    // Nothing is answered by nothing, whichever process is asked.
    assert_eq!(all("\n;prompt\n\n@1\n\n@;"), format!("\n\nmaster> \nmaster> {worker}> \n{worker}> master> \nmaster> "));
    assert_eq!(all("prompt i; show cli level\nprompt\nprompt"), "admin\n\nmaster> ");
    let timed = all("prompt timed");
    assert!(timed.starts_with("[0:00:00:") && timed.ends_with("] master> "), "{timed}");
    assert!(all("@1 show info").contains(&format!("\nPid: {worker}\n")));
    assert_eq!(all(&format!("@!{worker} show cli level")), "admin\n\n");
    let talk = format!("master> {worker}> admin\n\n{worker}> 3.2.0");
    assert!(all("prompt\n@1\nshow cli level\n@master show version\n@\nquit").starts_with(&talk));
    // Modes belong to the master, whichever process answers; those of a command with a prefix belong to the worker.
    assert_eq!(
        all("@1; expert-mode on; debug dev write 3; expert-mode off; debug dev write 3"),
        "..\n\nThis command is restricted to expert mode only.\n\n"
    );
    assert_eq!(all("@1 expert-mode on; expert-mode; @1 expert-mode"), "\nexpert-mode is OFF\n\n");
    assert_eq!(all("experimental-mode on; @1 experimental-mode"), "experimental-mode is ON\n\n");
    assert_eq!(all("@1; operator; show cli level; expert-mode on"), "operator\n\nPermission denied\n\n");
    assert_eq!(all("@2 show info"), "Can't find the target PID matching the prefix '@2'\n\n");
    assert_eq!(ask(&site.path("some"), "@1 disable frontend f"), "Permission denied\n\n");
    assert!(all("reload").starts_with("Success=1\n--\n"));
    assert!(all("show proc").contains("1 [failed: 0]"));
    assert_eq!(ask(&site.path("some"), "show cli level"), "operator\n\n");
    assert_eq!(ask(&site.path("some"), "reload"), "Permission denied\n\n");
    let mode = std::fs::metadata(site.path("all")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

/// The file may ask for a master, too; `-db` keeps it in the foreground.
#[test]
fn the_keyword_makes_a_master() {
    let front = Listening::new();
    let site = Site::serving("    master-worker no-exit-on-failure\n    daemon\n", &front);
    let mut program = site.ours(&["-db"], &[&front]);
    let worker = child(program.pid());
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program.wait_for_output("Loading success.");
    // SAFETY: takes numbers; the worker is a child of the program that runs.
    unsafe { libc::kill(worker as i32, libc::SIGKILL) };
    assert_eq!(program.wait(), 137);
    assert!(!program.output().contains("exit-on-failure:"), "{}", program.output());
}

/// A master holds no listener, and only a few descriptors.
#[test]
fn a_master_holds_nothing_that_serves() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let port = sluicegate_testkit::free_port();
    let site = Site::serving("", &front);
    let text = std::fs::read_to_string(site.path("a.cfg")).unwrap() + &format!("    bind 127.0.0.1:{port}\n");
    std::fs::write(site.path("a.cfg"), text).unwrap();
    let mut program = site.ours(&["-W"], &[&front]);
    program.wait_for_output("Loading success.");
    assert_eq!(Client::connect(&format!("127.0.0.1:{port}")).get("/").status, 200);
    assert_eq!(proc_value(program.pid(), "status", "Threads").as_deref(), Some("1"));
    let sockets = wait_for("ss", || std::process::Command::new("ss").args(["-Hltnp"]).output().ok());
    let sockets = String::from_utf8_lossy(&sockets.stdout).into_owned();
    let line = sockets.lines().find(|line| line.contains(&format!("127.0.0.1:{port} "))).unwrap_or_default();
    assert!(!line.contains(&format!("pid={},", program.pid())), "{line}");
}
