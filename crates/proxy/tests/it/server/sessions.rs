//! `show sess` and the commands that end streams, compared with Debian's haproxy, and with a client that does not read.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, Sluicegate, wait_for};

use super::fixture::Whole;

/// Starts a server that accepts, reads and never answers.
fn silent() -> std::net::SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            kept.push(stream);
        }
    });
    address
}

/// Returns the configuration; in haproxy a stream whose client has disconnected ends with these timeouts.
fn text(server: std::net::SocketAddr) -> String {
    format!(
        "defaults\n log @LOG@ format raw local0\n timeout client 20s\n timeout server 20s\n timeout connect 20s\n\
         frontend web\n bind @WEB@\n mode http\n option httplog\n default_backend app\n\
         frontend raw\n bind @RAW@\n mode tcp\n option tcplog\n default_backend plain\n\
         backend app\n mode http\n server one {server} maxconn 1\n\
         backend plain\n mode tcp\n server two {server}\n"
    )
}

/// Returns the named values of a line of `show sess`, by their names.
fn named(line: &str) -> HashMap<&str, &str> {
    line.split(' ')
        .filter_map(|word| word.split_once('='))
        .filter(|(key, _)| matches!(*key, "proto" | "fe" | "be" | "srv" | "src"))
        .collect()
}

/// Returns the streams of the proxies' frontends, one line each.
fn streams(socket: &Path) -> Vec<String> {
    let list = Sluicegate::stats(socket, "show sess");
    let mut lines: Vec<String> =
        list.lines().filter(|line| line.contains(" fe=web") || line.contains(" fe=raw")).map(str::to_owned).collect();
    lines.sort_by_key(|line| line.split(" be=").nth(1).map(str::to_owned));
    lines
}

fn id(line: &str) -> &str {
    line.split(':').next().expect("a first word")
}

/// Returns whether a client's connection ends without an error.
fn ends(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(PATIENCE)).expect("settable");
    // Haproxy sends a 502 or 503 first.
    client.read_to_end(&mut Vec::new()).is_ok()
}

#[test]
fn streams_are_listed_and_ended_as_haproxy_does() {
    let server = silent();
    let (web, raw) = (Listening::new(), Listening::new());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let theirs = directory.path().join("stats.sock");
    let global = format!("global\n nbthread 1\n stats socket {} level admin\n", theirs.display());
    let other = text(server).replace("@WEB@", &web.word()).replace("@RAW@", &raw.word()).replace("@LOG@", "stdout");
    let haproxy = Haproxy::start(&format!("{global}{other}"), &[&web, &raw]);
    wait_for("haproxy's socket", || UnixStream::connect(&theirs).ok());
    let own = text(server).replace("@WEB@", "127.0.0.1:1").replace("@RAW@", "127.0.0.1:1");
    let whole = Whole::start(&own, 2);

    let mut logged = Vec::new();
    for (socket, http, tcp) in [
        (&theirs, web.address(), raw.address()),
        (&whole.stats, whole.addresses[0].to_string(), whole.addresses[1].to_string()),
    ] {
        let list = |count: usize| {
            wait_for("the streams", || {
                let lines = streams(socket);
                (lines.len() == count && lines.iter().all(|line| !line.contains("be=<NONE>"))).then_some(lines)
            })
        };
        let mut client = TcpStream::connect(&http).expect("listening");
        client.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").expect("writable");
        let lines = wait_for("the connection", || Some(list(1)).filter(|lines| lines[0].contains("scb=[8,")));
        let expected = HashMap::from([("proto", "tcpv4"), ("fe", "web"), ("be", "app"), ("srv", "one")]);
        let mut words = named(&lines[0]);
        assert_eq!(words.remove("src"), Some(client.local_addr().expect("bound").to_string().as_str()));
        assert_eq!(words, expected, "{}", lines[0]);
        let age = lines[0].split(' ').find_map(|word| word.strip_prefix("age=")?.strip_suffix('s')).expect("an age");
        assert!(age.parse::<u64>().is_ok_and(|seconds| seconds < PATIENCE.as_secs()), "{}", lines[0]);

        // The next stream waits in the queue.
        let mut queued = TcpStream::connect(&http).expect("listening");
        queued.write_all(b"GET /queued HTTP/1.1\r\nHost: h\r\n\r\n").expect("writable");
        let mut plain = TcpStream::connect(&tcp).expect("listening");
        plain.write_all(b"bytes").expect("writable");
        let lines = wait_for("each where it stays", || {
            let there = |lines: &Vec<String>| {
                lines[2].contains("srv=two") && ["srv=one", "scb=[2,"].iter().all(|word| lines.concat().contains(word))
            };
            Some(list(3)).filter(there)
        });
        let slow = lines.iter().find(|line| line.contains("srv=one")).expect("the first stream");
        assert_eq!(named(&lines[2])["srv"], "two");
        let waiting = lines.iter().find(|line| line.contains("scb=[2,")).expect("a queued stream");
        assert_eq!(named(waiting)["be"], "app");

        let all = Sluicegate::stats(socket, &format!("show sess {}", id(&lines[2])));
        for part in [
            "  frontend=raw (id=",
            "mode=tcp), listener=? (id=1) addr=",
            "  backend=plain (id=",
            "  server=two (id=1) addr=",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
        // Haproxy lists the stream of the command itself, too, and perhaps the previous one.
        wait_for("so many sessions", || {
            let count = Sluicegate::stats(socket, "show sess all").matches(" source=").count();
            (count == if *socket == theirs { 4 } else { 3 }).then_some(())
        });

        // The selectors and options of 3.2.
        if *socket != theirs {
            let count =
                |words: &str| Sluicegate::stats(socket, &format!("show sess {words}")).matches(": proto=").count();
            let large =
                |words: &str| Sluicegate::stats(socket, &format!("show sess {words}")).matches(" source=").count();
            assert_eq!([count("server plain/two"), count("backend app"), count("frontend raw")], [1, 2, 1]);
            assert_eq!(
                [large("all server plain/two"), large("all backend app older 1h"), large("older 1h")],
                [1, 0, 0]
            );
            assert_eq!([count("susp"), large("all susp")], [0, 0]);
            for (words, said) in [
                ("foo", "Unsupported option 'foo', try 'help' for more info."),
                ("older", "Expects a minimum age (in seconds by default)."),
                ("older x", "Invalid age."),
                ("server", "Missing server name (<backend>/<server>)."),
                ("server plain", "Require 'backend/server'."),
                ("server none/two", "No such backend."),
                ("server plain/none", "No such server."),
                ("backend", "Missing backend name."),
                ("backend raw", "No such backend."),
                ("frontend plain", "No such frontend."),
                ("backend app frontend raw", "Only one of backend, frontend or server may be set."),
            ] {
                assert_eq!(Sluicegate::stats(socket, &format!("show sess {words}")), format!("{said}\n\n"), "{words}");
            }
            assert!(Sluicegate::stats(socket, "show sess help").starts_with("Usage: show sess ["));
        }

        // In haproxy a killed stream stays in the queue until its timeout; here it leaves at once.
        if *socket == theirs {
            drop(queued);
        } else {
            assert_eq!(Sluicegate::stats(socket, &format!("shutdown session {}", id(waiting))), "\n");
            assert!(ends(&mut queued));
        }
        assert_eq!(Sluicegate::stats(socket, "shutdown sessions server plain/two"), "\n");
        assert!(ends(&mut plain));
        assert_eq!(Sluicegate::stats(socket, &format!("shutdown session {}", id(slow))), "\n");
        assert!(ends(&mut client));
        list(0);
        for (line, answer) in [
            ("show sess 0x123", "Session not found.\n\n"),
            ("shutdown session", "Session pointer expected (use 'show sess').\n\n"),
            ("shutdown session 0x123", "No such session (use 'show sess').\n\n"),
            ("shutdown sessions server app/x", "No such server.\n\n"),
            ("user; show sess", "\nPermission denied\n\n"),
            ("operator; shutdown session 0x1", "\nPermission denied\n\n"),
        ] {
            assert_eq!(Sluicegate::stats(socket, line), answer, "{line}");
        }
        let lines = match *socket == theirs {
            true => wait_for("haproxy's lines", || {
                let lines: Vec<String> =
                    haproxy.program.output().lines().filter(|line| line.contains(" K")).map(str::to_owned).collect();
                (lines.len() >= 2).then_some(lines)
            }),
            false => whole.log_lines(3).into_iter().filter(|line| !line.contains("/queued")).collect(),
        };
        let mut endings: Vec<_> =
            lines.iter().filter(|line| !line.contains("/queued")).map(|line| ending(line)).collect();
        endings.sort();
        logged.push(endings);
    }
    assert_eq!(logged[1], logged[0]);
}

/// Returns backend, server and termination state of a log line.
fn ending(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let state = words.iter().find(|word| word.len() >= 2 && word.len() <= 4 && word.starts_with('K')).unwrap_or(&"?");
    format!("{} {state}", words[3])
}

/// While a list of very many streams is sent to a client that does not read, requests are served. (The memory that this
/// takes is tested where the program is a process of its own.)
#[test]
fn a_client_that_does_not_read_holds_no_worker() {
    const STREAMS: usize = 300;
    let server = silent();
    let own = format!(
        "global\n maxconn 5000\n stats timeout 60s\n{}frontend quick\n bind 127.0.0.1:1\n mode http\n http-request return status 200\n",
        text(server)
            .replace("@WEB@", "127.0.0.1:1")
            .replace("@RAW@", "127.0.0.1:1")
            .replace(" log @LOG@ format raw local0\n", "")
    );
    let whole = Whole::start(&own, 1);
    let clients: Vec<TcpStream> =
        (0..STREAMS).map(|_| TcpStream::connect(whole.addresses[1]).expect("listening")).collect();
    wait_for("the streams", || {
        (Sluicegate::stats(&whole.stats, "show sess").matches(" fe=raw ").count() == STREAMS).then_some(())
    });
    let mut deaf = UnixStream::connect(&whole.stats).expect("listening");
    // Twenty times the list is far more than the sockets' buffers hold.
    deaf.write_all(format!("{}\n", "show sess all;".repeat(20)).as_bytes()).expect("writable");
    let mut quick = Client::connect(&whole.addresses[2].to_string());
    for _ in 0..100 {
        assert_eq!(quick.get("/").status, 200);
    }
    assert_eq!(Sluicegate::stats(&whole.stats, "show cli level"), "admin\n\n");
    // When the client reads at last, it receives everything.
    deaf.set_read_timeout(Some(PATIENCE)).expect("settable");
    let mut list = Vec::new();
    deaf.read_to_end(&mut list).expect("an answer");
    let count = String::from_utf8_lossy(&list).matches(" source=").count();
    assert!(count >= 20 * STREAMS, "{count}");
    drop(clients);
}

/// The stats socket answers even if the process has reached its limit of sessions: it has a limit of its own.
#[test]
fn the_stats_socket_answers_when_the_proxy_is_full() {
    let server = silent();
    let own =
        format!("global\n maxconn 3\n{}", text(server).replace("@WEB@", "127.0.0.1:1").replace("@RAW@", "127.0.0.1:1"));
    let whole = Whole::start(&own, 1);
    let _clients: Vec<TcpStream> =
        (0..6).map(|_| TcpStream::connect(whole.addresses[1]).expect("in the backlog")).collect();
    let info = wait_for("a full process", || {
        let info = Sluicegate::stats(&whole.stats, "show info");
        (info.contains("\nCurrConns: 3\n") && !info.contains("\nMaxconnReached: 0\n")).then_some(info)
    });
    assert!(info.contains("\nMaxconn: 3\n"), "{info}");
    // A raised limit admits the next clients; the hard limit can't be exceeded.
    assert_eq!(Sluicegate::stats(&whole.stats, "set maxconn global 4"), "Value out of range.\n\n");
    assert_eq!(Sluicegate::stats(&whole.stats, "set maxconn global 2; show info").matches("\nMaxconn: 2\n").count(), 1);
}
