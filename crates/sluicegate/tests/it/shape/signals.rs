//! Signals: the effect of each, with the same messages as Debian's haproxy; none ends the process by its default
//! action.

use sluicegate_testkit::{Client, Listening, Program, wait_for};

use super::{Site, ask, child, frontend, proc_value};

/// Returns a socket that can be paused. Its port is fixed: the kernel would choose another one on resumption.
fn fixed() -> Listening {
    let listener = std::net::TcpListener::bind(("127.0.0.1", sluicegate_testkit::free_port()));
    Listening { listener: listener.expect("a free port") }
}

const PROXIES: &str = "listen l\n    bind \"BIND\"\n    server a 127.0.0.1:1\n    server c 127.0.0.1:1 weight 0\n    \
                       server b 127.0.0.1:1 backup\nbackend d\n    server a 127.0.0.1:1 disabled\n    \
                       server b 127.0.0.1:1 backup\nbackend e\n    server a 127.0.0.1:1 disabled\nbackend n\n";

/// Returns the lines that a program writes to stderr on these signals, sent one after the other, without the lines that
/// only one of the programs writes.
fn says(start: impl Fn(&Site, &[&Listening]) -> Program, signals: &[(i32, &str)]) -> Vec<String> {
    let (front, other) = (fixed(), fixed());
    let proxies = PROXIES.replace("BIND", &other.word());
    // One worker: a second one that is woken for the same connection holds a place while it finds none, and is counted.
    let global = "global\n    nbthread 1\n    stats socket @DIR@/stats\n";
    let site = Site::new(&format!("{global}{}{proxies}", frontend(&front)));
    let mut program = start(&site, &[&front, &other]);
    let mut client = Client::connect(&front.address());
    assert_eq!(client.get("/").status, 200);
    ask(&site.path("stats"), "show info");
    for (signal, answer) in signals {
        program.signal(*signal);
        // The output may answer an earlier signal, so this waits for delivery first: pending signals are delivered in
        // the order of their numbers.
        wait_for("the signal to be taken", || {
            let waits =
                |name| proc_value(program.pid(), "status", name).and_then(|bits| u64::from_str_radix(&bits, 16).ok());
            (waits("ShdPnd")? & 1 << (signal - 1) == 0).then_some(())
        });
        program.wait_for_output(answer);
    }
    drop(client);
    program.signal(libc::SIGUSR1);
    assert_eq!(program.wait(), 0);
    let own = ["HTTPCLIENT", "HTTPSCLIENT", "GLOBAL", "haproxy version", "path to executable", "has no effect"];
    let output = program.output();
    let lines = output.lines().filter(|line| !own.iter().any(|own| line.contains(own)));
    lines.filter_map(|line| Some(line.split_once(") : ")?.1.to_owned())).collect()
}

#[test]
fn states_pauses_and_stops_are_told_as_haproxy_tells_them() {
    let signals = [
        (libc::SIGHUP, "SIGHUP: Proxy n has no servers."),
        (libc::SIGTTOU, "Paused proxy l."),
        (libc::SIGTTOU, "Paused proxy l."),
        (libc::SIGTTIN, "Resumed proxy l."),
    ];
    let theirs = says(|site, listening| site.theirs(&["-db"], listening), &signals);
    let ours = says(|site, listening| site.ours(&["-db"], listening), &signals);
    assert_eq!(ours, theirs);
    assert!(ours.iter().any(|line| line.contains("SIGHUP: Server l/a is UP. Conn: 0 act")), "{ours:?}");
}

/// A paused port refuses connections until it is resumed; established connections continue. Both for one socket per
/// worker (a port of its own) and for a shared one (inherited).
#[test]
fn listeners_pause_and_resume() {
    let front = fixed();
    let port = sluicegate_testkit::free_port();
    let site = Site::serving("    nbthread 3\n", &front);
    let text = std::fs::read_to_string(site.path("a.cfg")).unwrap() + &format!("    bind 127.0.0.1:{port}\n");
    std::fs::write(site.path("a.cfg"), text).unwrap();
    let mut program = site.ours(&["-db"], &[&front]);
    let addresses = [front.address(), format!("127.0.0.1:{port}")];
    for round in 1..4 {
        let mut before: Vec<Client> = addresses.iter().map(|address| Client::connect(address)).collect();
        before.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
        program.signal(libc::SIGTTOU);
        for address in &addresses {
            wait_for("a refusal", || std::net::TcpStream::connect(address).err());
        }
        before.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200, "who is connected is served"));
        program.signal(libc::SIGTTIN);
        wait_for("the resumption", || (program.output().matches("Resumed frontend f.").count() == round).then_some(()));
        for address in &addresses {
            for _ in 0..10 {
                assert_eq!(Client::connect(address).get("/").status, 200);
            }
        }
    }
    assert!(program.is_running());
}

/// A soft stop reaches listeners that pause.
#[test]
fn a_paused_process_stops() {
    let front = fixed();
    let site = Site::serving("", &front);
    let mut program = site.ours(&["-db"], &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program.signal(libc::SIGTTOU);
    program.wait_for_output("Paused frontend f.");
    program.signal(libc::SIGUSR1);
    assert_eq!(program.wait(), 0);
}

/// Each signal is answered by its message, and the process continues.
#[test]
fn no_signal_ends_the_process_by_itself() {
    let signals = [
        (libc::SIGHUP, "SIGHUP received, dumping servers states."),
        (libc::SIGQUIT, "Dumping figures of process"),
        (libc::SIGTTOU, "Paused frontend f."),
        (libc::SIGTTIN, "Resumed frontend f."),
    ];
    let front = fixed();
    let site = Site::serving("", &front);
    let mut program = site.ours(&["-db"], &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program.signal(libc::SIGPIPE);
    // As in HAProxy, only a master reloads on this signal.
    program.signal(libc::SIGUSR2);
    for (signal, answer) in signals {
        program.signal(signal);
        program.wait_for_output(answer);
    }
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    assert!(program.is_running());
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait(), -libc::SIGTERM);
}

/// A master forwards the signals that concern the worker, and neither process ends.
#[test]
fn a_master_passes_signals_on() {
    let front = fixed();
    let site = Site::serving("", &front);
    let mut program = site.ours(&["-W"], &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program.wait_for_output("Loading success.");
    let worker = child(program.pid());
    for (signal, answer) in [
        (libc::SIGUSR2, "Reloading HAProxy".to_owned()),
        (libc::SIGQUIT, format!("Dumping figures of process {worker}")),
        (libc::SIGTTOU, "Paused frontend f.".to_owned()),
        (libc::SIGTTIN, "Resumed frontend f.".to_owned()),
    ] {
        program.signal(signal);
        program.wait_for_output(&answer);
    }
    program.signal(libc::SIGPIPE);
    program.signal(libc::SIGHUP);
    sluicegate_testkit::wait_for("both reloads", || {
        (program.output().matches("Loading success.").count() > 2).then_some(())
    });
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    assert_eq!(child(program.pid()), worker);
}

/// A signal that arrives while the configuration is read stays pending until the process handles signals.
#[test]
fn an_early_signal_is_not_lost() {
    let front = fixed();
    let site = Site::serving("    lua-load @DIR@/a.lua\n", &front);
    // The script ends once it has seen that the signal was sent.
    std::fs::write(
        site.path("a.lua"),
        "io.open('begun', 'w'):close()\nwhile true do local f = io.open('sent') if f then f:close() break end end\n",
    )
    .unwrap();
    let mut program = site.ours(&["-db"], &[&front]);
    wait_for("the script", || site.path("begun").exists().then_some(()));
    for signal in [libc::SIGUSR2, libc::SIGHUP, libc::SIGQUIT, libc::SIGTTOU] {
        program.signal(signal);
    }
    std::fs::write(site.path("sent"), "").unwrap();
    program.wait_for_output("Paused frontend f.");
    program.signal(libc::SIGUSR1);
    assert_eq!(program.wait(), 0);
}

/// `grace`: the stop is announced, and everything is served until it begins.
#[test]
fn grace_announces_a_stop_that_has_not_begun() {
    let front = Listening::new();
    let rule = "    http-after-response set-header X-Stopping %[stopping]\n";
    for (grace, ends) in [("1h", false), ("1ms", true)] {
        let site = Site::new(&format!("global\n    grace {grace}\n{}{rule}", frontend(&front)));
        let mut program = site.ours(&["-db"], &[&front]);
        let stopping = || {
            let response = Client::connect(&front.address()).get("/");
            response.header("x-stopping").unwrap_or_default().to_owned()
        };
        assert_eq!(stopping(), "0");
        program.signal(libc::SIGUSR1);
        if ends {
            assert_eq!(program.wait(), 0);
        } else {
            wait_for("the announcement", || (stopping() == "1").then_some(()));
            // A second signal does not shorten it.
            program.signal(libc::SIGUSR1);
            assert_eq!(stopping(), "1");
            program.signal(libc::SIGTERM);
        }
    }
}
