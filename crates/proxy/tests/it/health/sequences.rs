//! Checks that follow each other: what is counted, what is logged, and when the next one comes.

use sluicegate_testkit::{RedisServer, wait_for};

use super::fixture::Act::{Close, Give, Take};
use super::fixture::{Either, Scripted, compare_lines};

/// How long a check may take: 'inter' bounds its connection, and the rest has as long as a busy machine needs.
const TIMES: &str = "timeout check 20s\n server s @0@ check inter 2s fastinter 10ms downinter 10ms";
const OK: &[super::fixture::Act] = &[Take, Give(b"HTTP/1.0 200 OK\r\n\r\n"), Close];
const NO: &[super::fixture::Act] = &[Take, Give(b"HTTP/1.0 503 No\r\n\r\n"), Close];
const GONE: &[super::fixture::Act] = &[Take, Give(b"HTTP/1.0 404 Gone\r\n\r\n"), Close];

#[test]
fn rises_and_falls_are_told_alike() {
    let servers = || {
        vec![Scripted::with(|number| match number {
            0..2 => OK,
            2..6 => NO,
            _ => OK,
        })]
    };
    for (option, lines) in [("", 3), (" option log-health-checks\n", 9)] {
        let text = format!("backend be\n option httpchk\n{option} {TIMES} rise 2 fall 3\n");
        compare_lines(&text, servers, lines, &[]);
    }
}

#[test]
fn a_server_that_asks_for_no_more_traffic_and_comes_back() {
    let servers = || {
        vec![Scripted::with(|number| match number {
            0 => OK,
            1..3 => GONE,
            3 => OK,
            4..9 => NO,
            // What is down is not brought up by a 404.
            9..12 => GONE,
            _ => OK,
        })]
    };
    let text = format!("backend be\n option httpchk\n http-check disable-on-404\n {TIMES} rise 2 fall 2\n");
    compare_lines(&text, servers, 6, &[]);
}

#[test]
fn a_real_redis_server_is_well() {
    let redis = RedisServer::start(&[]);
    let program = Either::ours(&format!("backend be\n option redis-check\n server s {} check\n", redis.address()));
    wait_for("a check", || (program.column("be", "s", "check_status") == "L7OK").then_some(()));
    assert_eq!(program.column("be", "s", "last_chk"), "Redis server is ok");
    // Its refusal is no end of its answer, so the check waits for the rest until its time is over.
    let secret = RedisServer::start(&["--requirepass", "x"]);
    let text = format!("backend be\n option redis-check\n server s {} check inter 300ms\n", secret.address());
    for program in [Either::ours(&text), Either::theirs(&text)] {
        wait_for("the end of its time", || {
            let down = program.column("be", "s", "status") == "DOWN";
            (down && program.column("be", "s", "check_status").ends_with("L7TOUT")).then_some(())
        });
    }
}

#[test]
fn init_state_says_how_many_checks_it_takes() {
    // So many good checks, or bad ones, until the server's state is another one than at the start.
    for (word, good, first, checks) in [
        ("none", false, "UP 1/3", 1),
        ("up", false, "UP 1/3", 1),
        ("fully-up", false, "UP", 3),
        ("down", true, "DOWN 1/2", 1),
        ("fully-down", true, "DOWN", 2),
    ] {
        // No check is answered before the state at the start was seen.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let server = Scripted::with(move |_| {
            let _ = wait.recv();
            if good { OK } else { NO }
        });
        let text = format!(
            "backend be\n option httpchk\n timeout check 60s\n server s {} disabled check inter 20ms rise 2 fall 3 init-state {word}\n",
            server.address
        );
        let program = Either::ours(&text);
        program.ask("disable health be/s");
        program.ask("set server be/s state ready");
        program.ask("enable health be/s");
        let begins = program.column("be", "s", "status");
        let serves = |status: &str| !status.starts_with("DOWN");
        assert!(serves(&begins) == serves(first), "{word}: {begins}");
        drop(go);
        wait_for("the other state", || (serves(&program.column("be", "s", "status")) != serves(first)).then_some(()));
        assert!(server.connections() >= checks, "{word}: {} checks", server.connections());
    }
}

#[test]
fn what_never_ends_is_bounded() {
    static FLOOD: [u8; 65_536] = [b'a'; 65_536];
    static SCRIPT: [super::fixture::Act; 3] = [Give(&FLOOD), Give(&FLOOD), Give(&FLOOD)];
    for rows in [" option httpchk", " option tcp-check\n tcp-check expect string b", " option redis-check"] {
        let server = Scripted::new(&SCRIPT);
        let program = Either::ours(&format!("backend be\n{rows}\n server s {} check inter 1h\n", server.address));
        // The interval is an hour: what ends the check is its room.
        wait_for("the end of a flood", || {
            let status = program.column("be", "s", "check_status");
            matches!(status.as_str(), "L7RSP" | "L7STS").then_some(())
        });
    }
}

#[test]
fn spread_checks_and_their_limit() {
    // Ten servers with an interval of an hour: without the limit the last one would wait for most of it.
    let server = Scripted::new(&[Take]);
    let servers: String =
        (0..10).map(|number| format!(" server s{number} {} check inter 1h\n", server.address)).collect();
    let program = Either::ours(&format!("backend be\n{servers}"));
    wait_for("every server's check", || (server.connections() >= 10).then_some(()));
    drop(program);
}
