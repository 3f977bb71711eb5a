//! `ring` sections and `show events`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use sluicegate_testkit::{Certificates, Client, Haproxy, PATIENCE, wait_for};

use super::{Collector, Runner, Target, exactly, line, ours, theirs};

const PROXY: &str = "defaults\n mode http\n timeout client 60s\nfrontend f\n bind FRONT\n log ring@r local0\n log-format \"%HU %ST\"\n \
                     http-request return status 200\n";

fn text(ring: &str) -> String {
    format!("global\n nbthread 1\n stats socket PLACE level admin\nring r\n{ring}{PROXY}")
}

#[test]
fn events_are_those_of_haproxy() {
    let configuration = text(" size 20000\n maxlen 40\n");
    let all =
        [ours(&configuration), theirs(&configuration, Haproxy::start), theirs(&configuration, Haproxy::start_2_8)];
    let paths: Vec<String> = (0..20).map(|number| format!("/{number}/{}", "x".repeat(number * 3))).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    for runner in &all {
        runner.get(&paths);
        wait_for("the last line", || runner.ask("show events r").contains("/19/").then_some(()));
    }
    let commands = [
        "show events r",
        "show events r -0",
        "show events r -n",
        "show events stdout",
        "show events nothing",
        "show events r -x",
        "user; show events r",
    ];
    for command in commands {
        let [own, old, new] = all.each_ref().map(|runner| runner.ask(command));
        // '-0' came with 2.9.
        if !command.contains("-0") {
            assert_eq!(own, new, "{command}");
            // After a message 2.6 lacks the empty line.
            assert_eq!(own.trim_end(), old.trim_end(), "{command}");
        }
    }
    assert_eq!(all[0].ask("show events r").lines().last(), Some(""));
    // A line is cut to `maxlen`.
    assert!(all[0].ask("show events r").contains(&format!("/19/{}\n", "x".repeat(36))));
    let list = all[0].ask("show events");
    assert!(
        list.starts_with(
            "Supported events sinks are listed below. Add -0(zero), -w(wait), -n(new). Any key to stop.\n"
        )
    );
    for known in [
        "    stdout     : type=fd, 0 dropped, standard output (fd#1)\n",
        "    r          : type=buffer, 0 dropped, r\n",
    ] {
        assert!(list.contains(known), "{list}");
    }
}

#[test]
fn formats_and_descriptions() {
    let runner = ours(&text(" description \"My ring\"\n format rfc5424\n size 8k\n"));
    runner.get(&["/a"]);
    let event = wait_for("the event", || Some(runner.ask("show events r")).filter(|text| text.contains("/a")));
    assert!(event.starts_with("<134>1 ") && event.ends_with(" - - /a 200\n\n"), "{event}");
    assert!(runner.ask("show events").contains("    r          : type=buffer, 0 dropped, My ring\n"));
    // A format of the line applies to rings that have none, which are those of streams; here the ring's wins.
    let runner = ours(&text(" format short\n").replace("log ring@r local0", "log ring@r format rfc3164 local0"));
    runner.get(&["/b"]);
    wait_for("the event", || (runner.ask("show events r") == "<6>/b 200\n\n").then_some(()));
}

#[test]
fn a_watcher_gets_what_comes_and_stops_by_any_input() {
    let runner = ours(&text(""));
    runner.get(&["/before"]);
    wait_for("the event", || (runner.ask("show events r") == "/before 200\n\n").then_some(()));
    // The end of the input counts as input.
    let mut watcher = UnixStream::connect(&runner.place).expect("there");
    watcher.set_read_timeout(Some(PATIENCE)).expect("settable");
    watcher.write_all(b"prompt\n").expect("writable");
    assert_eq!(exactly(&mut watcher, 3), "\n> ");
    watcher.write_all(b"show events r -nw\n").expect("writable");
    // The watcher has its place once something comes.
    let mut got = String::new();
    let mut buffer = [0; 256];
    watcher.set_nonblocking(true).expect("settable");
    wait_for("an event", || {
        runner.get(&["/after"]);
        match watcher.read(&mut buffer) {
            Ok(count) => got.push_str(std::str::from_utf8(&buffer[..count]).expect("text")),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        got.contains("\n").then_some(())
    });
    assert!(got.starts_with("/after 200\n"), "{got}");
    watcher.set_nonblocking(false).expect("settable");
    watcher.write_all(b"x").expect("writable");
    while !got.ends_with("\n\n> ") {
        let count = watcher.read(&mut buffer).expect("the prompt");
        got.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
    }
    watcher.write_all(b"show events r -0; quit\n").expect("writable");
    let mut rest = String::new();
    watcher.read_to_string(&mut rest).expect("the rest");
    assert!(rest.starts_with("/before 200\0/after 200\0"), "{rest:?}");
}

#[test]
fn servers_get_every_message_in_their_protocol() {
    let configuration = |legacy: &Collector, counted: &Collector| {
        text(&format!(
            " timeout connect 60s\n timeout server 60s\n server a {}\n server b {} log-proto octet-count\n",
            legacy.address(),
            counted.address()
        ))
    };
    let peers: [fn(&str) -> Runner; 3] =
        [ours, |text| theirs(text, Haproxy::start), |text| theirs(text, Haproxy::start_2_8)];
    for start in peers {
        let (legacy, counted) = (Collector::new(), Collector::new());
        let runner = start(&configuration(&legacy, &counted));
        let (mut a, mut b) = (legacy.accept(), counted.accept());
        runner.get(&["/one", "/two"]);
        assert_eq!([line(&mut a), line(&mut a)], ["/one 200\n", "/two 200\n"]);
        assert_eq!(exactly(&mut b, 20), "8 /one 2008 /two 200");
    }
}

/// A ring's servers that are `log-forward` sections, over TLS: each program as either.
#[test]
fn rings_send_to_forwarders_over_tls() {
    let certificates = Certificates::new();
    std::fs::write(certificates.path("here.pem"), certificates.pem("here")).expect("writable");
    let files = certificates.directory().display();
    let targets = [Target::new(), Target::new()];
    let receiver = |target: &Target| {
        format!(
            "global\n nbthread 1\n stats socket PLACE level admin\nlog-forward f\n bind FRONT ssl crt {files}/here.pem\n log {} \
             format raw local3\n",
            target.address()
        )
    };
    let receivers = [ours(&receiver(&targets[0])), theirs(&receiver(&targets[1]), Haproxy::start_2_8)];
    let server = |receiver: &Runner| {
        let address = receiver.front.address();
        format!(" server {} {address} ssl verify required ca-file {files}/ca.crt\n", address.replace(':', "-"))
    };
    let servers: String = receivers.iter().map(server).collect();
    let sender = text(&format!(" format rfc5424\n timeout connect 60s\n timeout server 60s\n{servers}"));
    for (sender, path) in [(ours(&sender), "/ours"), (theirs(&sender, Haproxy::start_2_8), "/theirs")] {
        sender.get(&[path]);
        let [message, same] = targets.each_ref().map(Target::receive);
        assert!(message.trim_end().ends_with(&format!("{path} 200")), "{message}");
        assert_eq!(message, same);
    }
}

#[test]
fn messages_wait_for_a_server_that_returns_and_those_that_do_not_fit_are_counted() {
    let collector = Collector::new();
    let runner = ours(&text(&format!(" size 200\n server a {}\n", collector.address())));
    let mut connection = collector.accept();
    runner.get(&["/first"]);
    assert_eq!(line(&mut connection), "/first 200\n");
    connection.get_ref().shutdown(std::net::Shutdown::Both).expect("open");
    drop(connection);
    // While nothing is accepted, the ring fills and drops what is new.
    let address = collector.address();
    drop(collector);
    let dropped = || {
        let list = runner.ask("show events");
        let entry = list.lines().find(|line| line.trim_start().starts_with("r ")).expect("listed");
        !entry.contains(" 0 dropped")
    };
    wait_for("a full ring", || {
        runner.get(&["/while-away"]);
        dropped().then_some(())
    });
    // A process that another test is about to start may have the closed listener until it runs its program.
    let listener = wait_for("the port", || std::net::TcpListener::bind(&address).ok());
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    let mut connection = std::io::BufReader::new(stream);
    assert_eq!(line(&mut connection), "/while-away 200\n");
    let mut seen = Vec::new();
    while !seen.iter().any(|text: &String| text.ends_with("dropped\n")) {
        runner.get(&["/next"]);
        seen.push(line(&mut connection));
    }
    assert_eq!(line(&mut connection), "/next 200\n");
}

#[test]
fn a_log_line_may_name_a_stream() {
    let collector = Collector::new();
    let configuration = format!(
        "global\n nbthread 1\n stats socket PLACE level admin\n log tcp@{} format rfc3164 local0\n{}",
        collector.address(),
        PROXY.replace("log ring@r local0", "log global")
    );
    let runner = ours(&configuration);
    let mut connection = collector.accept();
    runner.get(&["/streamed"]);
    let text = line(&mut connection);
    assert!(text.starts_with("<134>") && text.ends_with("]: /streamed 200\n"), "{text}");
    assert!(
        runner
            .ask("show events")
            .contains("    ring#1     : type=buffer, 0 dropped, created from log directive declared")
    );
}

#[test]
fn a_backing_file_survives_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("events");
    let configuration = text(&format!(" size 5000\n backing-file {}\n", path.display()));
    let runner = ours(&configuration);
    runner.get(&["/remember"]);
    wait_for("the event", || runner.ask("show events r").contains("/remember").then_some(()));
    let has = |path: &std::path::Path, text: &str| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|found| found == text.as_bytes()))
    };
    assert!(has(&path, "/remember 200"));
    drop(runner);
    let runner = ours(&configuration);
    Client::connect(&runner.front.address()).get("/second");
    assert!(has(&directory.path().join("events.bak"), "/remember 200") && !has(&path, "/remember 200"));
}

#[test]
fn samples_are_reported_to_rings() {
    let text = "global\n nbthread 1\n stats socket PLACE level admin\nring r\n format short\n size 20k\n\
                ring later\n maxlen 20\n size 20k\ndefaults\n mode http\n timeout client 60s\nfrontend f\n bind FRONT\n \
                http-request set-var(txn.a) path,debug\n \
                http-request set-var(txn.a) src,debug(who),debug(again,later)\n \
                http-request set-var(txn.a) int(3),debug(n,r)\n \
                http-request return status 200\n";
    let both = [ours(text), theirs(text, Haproxy::start_2_8)];
    for runner in &both {
        runner.get(&["/a%09", "/b"]);
    }
    let expected = [
        ("buf0", "<0>TIME [debug] : type=str </a%09>\n<0>TIME [debug] who: type=ipv4 <127.0.0.1>\n"),
        ("r", "<0>[debug] n: type=sint <3>\n<0>[debug] n: type=sint <3>\n\n"),
        ("later", "[debug] again: type=\n[debug] again: type=\n\n"),
    ];
    for runner in &both {
        for (ring, lines) in expected {
            let seen = runner.ask(&format!("show events {ring}"));
            let times = seen.lines().map(|line| match line.split_once("+00:00 ") {
                Some((_, rest)) => format!("<0>TIME {rest}\n"),
                None => format!("{line}\n"),
            });
            let seen: String = times.collect();
            assert!(seen.starts_with(lines), "{ring}: {seen:?}");
        }
    }
}
