//! `traces` sections, `trace` and `show trace`.

use sluicegate_testkit::{Client, Haproxy, wait_for};

use super::{Runner, ours, theirs};

const FILE: &str = "global\n nbthread 1\n stats socket PLACE level admin\nring r\n size 65536\nTRACES\
                    defaults\n mode http\n timeout client 60s\nfrontend f\n bind FRONT\n http-request return status 200\n";

fn text(traces: &str) -> String {
    FILE.replace("TRACES", traces)
}

/// Returns the lines of a ring, once there is one with this text; without their numbers of sessions and streams.
fn lines(runner: &Runner, ring: &str, until: &str) -> Vec<String> {
    wait_for(until, || {
        let text = runner.ask(&format!("show events {ring}"));
        text.contains(until).then(|| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    })
}

#[test]
fn a_section_starts_traces() {
    let runner = ours(&text(
        "traces\n trace h1 sink r level user verbosity simple start now\n trace session sink buf0 start now\n \
         trace session level state verbosity quiet event none event sess_new\n",
    ));
    runner.get(&["/one"]);
    let found = lines(&runner, "r", "HTTP/1.1 200");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("[00|h1|1|rx_headers] rcvd H1 request headers : sess="), "{found:?}");
    assert!(found[0].ends_with(" fe=f be=<NONE> srv=<NONE> [GET /one HTTP/1.1]"), "{found:?}");
    assert!(found[1].starts_with("[00|h1|1|tx_headers] sending response headers : sess="), "{found:?}");
    let sessions = lines(&runner, "buf0", "new session");
    assert!(sessions.iter().all(|line| line.starts_with("<0>")), "{sessions:?}");
    assert!(sessions.iter().all(|line| line.ends_with("[00|session|3|sess_new] new session")), "{sessions:?}");

    // Levels, verbosities, events and states change at once.
    assert_eq!(runner.ask("trace h1 verbosity quiet event -tx_headers sink buf0"), "\n");
    runner.get(&["/two"]);
    let found = lines(&runner, "buf0", "rcvd H1");
    assert!(found.iter().any(|line| line.ends_with("[00|h1|1|rx_headers] rcvd H1 request headers")), "{found:?}");
    assert!(!found.iter().any(|line| line.contains("tx_headers")), "{found:?}");
    assert_eq!(runner.ask("trace stream sink r verbosity clean level user start now"), "\n");
    assert_eq!(runner.ask("trace 0"), "All traces now stopped\n\n");
    assert_eq!(runner.ask("trace stream level state start strm_new stop strm_free"), "\n");
    assert!(runner.ask("show trace").contains(" [w] stream     -> r [drp 0]  [Applicative stream]\n"));
    runner.get(&["/three"]);
    let found = lines(&runner, "r", "releasing stream");
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[2..], ["[00|stream|3|strm_new] new stream", "[00|stream|3|strm_free] releasing stream"]);
    assert!(runner.ask("show trace").contains(" [.] stream     -> r [drp 0]  [Applicative stream]\n"));
    let status = runner.ask("show trace session");
    assert!(
        status.starts_with("Trace status for session:\n  - sink: buf0 [0 dropped]\n  - event name   : "),
        "{status}"
    );
    assert!(status.contains("\n    sess_end     :        -        -        -       -\n"), "{status}");
}

#[test]
fn the_commands_answer_like_haproxy() {
    let (own, other) = (ours(&text("")), theirs(&text(""), Haproxy::start_2_8));
    for command in [
        "trace x",
        "trace h1 foo",
        "trace h1 sink r",
        "trace h1 level data",
        "trace h1 level",
        "trace h1 start nope",
        "trace h1 lock nope",
        "trace h1 lock",
        "trace stream lock",
        "trace check lock",
        "trace fcgi lock nothing",
        "trace h2 event none",
        "trace h1 verbosity quiet start now",
        "show trace nope",
        "user; show trace h1",
        "user; trace 0",
        "trace 0",
    ] {
        assert_eq!(own.ask(command), other.ask(command), "{command}");
    }
    // What is not reported here is said.
    let remark = "no such events are reported here: 'rx_body'\n\n";
    assert_eq!(own.ask("trace h1 event rx_body start now"), remark);
    assert!(own.ask("show trace").contains(" [R] h1 "));
    assert!(own.ask("trace h1 event").contains("  + rx_body      : not reported here\n"));
    // 3.2 answers a wrong name with what is possible.
    assert_eq!(own.ask("trace h1 sink nope"), "No such trace sink 'nope' \n\n");
    let answer = own.ask("trace h1 level nope");
    assert!(answer.starts_with("No such trace level 'nope'. Supported trace levels for source h1:\n"), "{answer}");
}

#[test]
fn sources_are_locked_follow_and_pause() {
    let runner = ours(&text("traces\n trace h1 sink r verbosity simple start now lock session\n"));
    let mut clients = [(); 2].map(|()| Client::connect(&runner.front.address()));
    for (client, path) in [(0, "/a"), (1, "/b"), (0, "/c")] {
        assert_eq!(clients[client].get(path).status, 200);
    }
    let found = lines(&runner, "r", "[GET /c HTTP/1.1]");
    assert!(!found.iter().any(|line| line.contains("/b")), "{found:?}");

    assert_eq!(runner.ask("trace stream sink buf0 level state event none event strm_new follow h1"), "\n");
    for (client, path) in [(1, "/d"), (0, "/e")] {
        assert_eq!(clients[client].get(path).status, 200);
    }
    let found = lines(&runner, "buf0", "new stream");
    assert_eq!(found.len(), 1, "{found:?}");

    // It pauses with each response, which ends the lock, and goes on with the next request.
    assert_eq!(runner.ask("trace h1 lock nothing pause tx_headers start rx_headers"), "\n");
    assert_eq!(clients[1].get("/f").status, 200);
    lines(&runner, "r", "[GET /f HTTP/1.1]");
    wait_for("the pause", || runner.ask("show trace").contains(" [w] h1 ").then_some(()));
    assert_eq!(runner.ask("trace h1 stop now"), "\n");
    assert_eq!(clients[1].get("/g").status, 200);
    assert_eq!(runner.ask("trace h1 start now"), "\n");
    assert_eq!(clients[1].get("/h").status, 200);
    let found = lines(&runner, "r", "[GET /h HTTP/1.1]");
    assert!(!found.iter().any(|line| line.contains("/g")), "{found:?}");
}

#[test]
fn checks_and_http2_are_sources() {
    let traces = "traces\n trace check sink r level proto verbosity clean start now\n trace h2 sink buf0 verbosity advanced \
                  start now\n";
    let runner = ours(&format!(
        "{} use_backend b\nbackend b\n server s PLACE.h2 proto h2 check inter 2s\nbackend c\n server d 127.0.0.1:1 check inter \
         20ms\nfrontend g\n bind PLACE.h2 proto h2\n http-request return status 200 hdr x-of g\n",
        text(traces).replace(" http-request return status 200\n", "")
    ));
    runner.get(&["/two"]);
    let found = lines(&runner, "buf0", "x-of: g;");
    assert!(found[0].contains("[00|h2|1|rx_hdr] rcvd H2 request headers : sess="), "{found:?}");
    assert!(found[0].contains(" [GET /two HTTP/2.0] "), "{found:?}");
    assert!(found[1].contains("[00|h2|1|tx_hdr] sent H2 response headers : sess="), "{found:?}");
    for line in [
        "[00|check|2|hchck_start] starting health-check : srv=b/s",
        "[00|check|2|hchck_succ] health-check L4OK : srv=b/s",
        "[00|check|0|hchck_err] health-check L4CON : srv=c/d",
    ] {
        lines(&runner, "r", line);
    }
    // Events that are not chosen lock nothing.
    let command = "trace check event none event hchck_err lock check sink buf0 level error verbosity quiet";
    assert_eq!(runner.ask(command), "\n");
    lines(&runner, "buf0", "[00|check|0|hchck_err] health-check L4CON\n");
}

#[test]
fn handshakes_of_both_sides_are_traced() {
    let pki = crate::tls::Pki::new();
    let runner = ours(&format!(
        "{} use_backend plain if {{ path /plain }}\n default_backend b\nbackend b\n server s PLACE.tls ssl verify none\nbackend \
         plain\n timeout server 60s\n retries 0\n server p PLACE.tls\nfrontend g\n bind PLACE.tls ssl crt {}\n http-request \
         return status 200\n",
        text("traces\n trace ssl sink r level state verbosity simple start now\n")
            .replace(" http-request return status 200\n", ""),
        pki.path("both/a.pem").display(),
    ));
    runner.get(&["/"]);
    let found = lines(&runner, "r", " : srv=b/s");
    let mut client = Client::connect(&runner.front.address());
    assert_ne!(client.get("/plain").status, 200);
    let failed = lines(&runner, "r", "sslc_err");
    let has = |found: &[String], line: &str| found.iter().any(|known| known.starts_with(line));
    assert!(has(&found, "[00|ssl|3|sslc_hndshk] successful handshake : srv=b/s"), "{found:?}");
    assert!(failed.iter().any(|line| line == "[00|ssl|3|sslc_hndshk] successful handshake"), "{failed:?}");
    assert!(has(&failed, "[00|ssl|0|sslc_err] handshake error : "), "{failed:?}");
}

/// Each of these locks keeps a source to what its first event was about.
#[test]
fn locks_keep_to_one_object() {
    // The frontend's second listener is the server of its first one.
    let runner = ours(&format!(
        "{} bind PLACE.two\n http-request return status 200 if {{ so_id 2 }}\n use_backend c if {{ path_beg /c }}\n \
         default_backend b\nbackend b\n use-server two if {{ path_beg /two }}\n use-server one unless {{ path_beg /two }}\n \
         server one PLACE.two\n server two PLACE.two\nbackend c\n server one PLACE.g\nfrontend g\n bind PLACE.g\n \
         http-request return status 200\n",
        text("").replace(" http-request return status 200\n", " timeout server 60s\n timeout connect 60s\n")
    ));
    let lock = |name: &str, event: &str| {
        assert_eq!(runner.ask("trace h1 stop now"), "\n");
        let text = format!("trace h1 sink r verbosity simple event none event {event} lock {name} start now");
        assert_eq!(runner.ask(&text), "\n", "{name}");
    };
    let count = |text: &str| runner.ask("show events r").lines().filter(|line| line.contains(text)).count();
    let reached = |text: &str, expected: usize| wait_for(text, || (count(text) >= expected).then_some(()));

    lock("listener", "rx_headers");
    runner.get(&["/l1", "/l2", "/l3"]);
    reached("GET /l3 ", 1);
    assert_eq!(["GET /l1 ", "GET /l2 ", "GET /l3 "].map(count), [1, 1, 1]);
    lock("frontend", "rx_headers");
    runner.get(&["/f1", "/c1", "/f2"]);
    reached("GET /f2 ", 2);
    assert_eq!(["GET /f1 ", "GET /c1 ", "GET /f2 "].map(count), [2, 1, 2]);
    lock("backend", "tx_headers");
    runner.get(&["/b1", "/c2", "/b2"]);
    reached(" be=b srv=one ", 2);
    assert_eq!([" be=b srv=one ", " be=c "].map(count), [2, 0]);
    lock("server", "tx_headers");
    runner.get(&["/s1", "/two", "/s2"]);
    reached(" be=b srv=one ", 4);
    assert_eq!([" be=b srv=one ", " be=b srv=two "].map(count), [4, 0]);
    lock("nothing", "tx_headers");
    runner.get(&["/two", "/c3"]);
    reached(" be=c ", 1);
    assert_eq!(count(" be=b srv=two "), 1);
}
