//! Concurrent scripts: two that can only end if both run at the same time, and clients that are served on the same core
//! as a script that does not end.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::wait_for;

use super::Ticking;
use crate::support::Running;

/// Creates a key and waits until the other script has created its own: DBSIZE counts the keys that other scripts hold.
const MEET: &str = "\
redis.call('SET', KEYS[1], 'x')
local turns = 0
repeat turns = turns + 1 until redis.call('DBSIZE') >= 2
return turns";

#[test]
fn atomic_scripts_on_other_keys_overlap() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut two, mut admin) = (ours.connect(), ours.connect(), ours.connect());
    one.command(&["EVAL", MEET, "1", "a"]);
    two.command(&["EVAL", MEET, "1", "b"]);
    // Each is atomic, and each has seen the other's key while it ran.
    assert!(one.read_reply().starts_with(b":"));
    assert!(two.read_reply().starts_with(b":"));
    assert_eq!(admin.ask(&["DEL", "a", "b"]), ":2\r\n");
}

/// Restricts this thread, and those that it starts, to one core.
fn keep_to_one_core() {
    // SAFETY: both calls are about this thread, with a set that outlives them.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&cores), &mut cores), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&core| libc::CPU_ISSET(core, &cores)).expect("a core");
        libc::CPU_ZERO(&mut cores);
        libc::CPU_SET(first, &mut cores);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&cores), &cores), 0);
    }
}

/// Scripts that run for as long as other clients are served.
const LONG: &[&str] = &[
    "redis.call('SET', KEYS[1], 'x') while true do end",
    "while true do redis.call('INCR', KEYS[1]) end",
    "redis.call('SET', KEYS[1], 'x') while true do local s = ('x'):rep(1000000):gsub('x', 'y') end",
    "redis.call('SET', KEYS[1], 'x') return ('a'):rep(40):find(('a*'):rep(40) .. 'b')",
    "redis.call('SET', KEYS[1], 'x') while true do pcall(function() while true do end end) end",
    "--!df flags=disable-atomicity\nredis.call('SET', KEYS[1], 'x') while true do redis.call('GET', KEYS[1]) end",
];

#[test]
fn others_go_on_beside_scripts_on_one_core() {
    let alone = std::thread::spawn(|| {
        keep_to_one_core();
        let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 0, ..ServerOptions::default() }, 1);
        let _ticking = Ticking::start(&ours);
        let (mut other, mut admin) = (ours.connect(), ours.connect());
        for script in LONG {
            let mut long = ours.connect();
            admin.command(&["SCRIPT", "LOAD", script]);
            let sha = String::from_utf8_lossy(&admin.read_reply()[5..45]).into_owned();
            long.command(&["EVALSHA", &sha, "1", "held"]);
            wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
            for n in 0..500 {
                assert_eq!(other.ask(&["SET", "elsewhere", &n.to_string()]), "+OK\r\n");
                assert_eq!(
                    other.ask(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "elsewhere"]).lines().nth(1),
                    Some(&*n.to_string())
                );
            }
            // The script is still running, since it does not end by itself.
            assert_eq!(admin.ask(&["SCRIPT", "KILL", &sha, "FORCE"]), "+OK\r\n");
            let reply = long.read_reply();
            assert!(reply.starts_with(b"-ERR Script killed by user"), "{script}: {}", reply.escape_ascii());
            assert_eq!(admin.ask(&["DEL", "held", "elsewhere"]), ":2\r\n");
        }
    });
    alone.join().expect("it ended");
}
