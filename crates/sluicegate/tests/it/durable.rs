//! Acknowledged changes are there after the process was killed. `SLUICEGATE_KILLS` sets how often each test does that,
//! `SLUICEGATE_SEED` the first seed of the histories.

mod histories;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_testkit::{Client, Program, encode, free_port};

use crate::BINARY;

/// The number of accounts between which money is moved.
const ACCOUNTS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Returns how often the process is killed.
fn kills(count: u64) -> u64 {
    number("SLUICEGATE_KILLS").unwrap_or(count)
}

fn start(dir: &str) -> (Program, String) {
    let port = free_port().to_string();
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", &port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--io-threads", "2"]);
    command.args(["--appendonly", "yes", "--appendfsync", "always"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Ready to accept connections tcp");
    (program, format!("127.0.0.1:{port}"))
}

/// Moves money until the server is gone: by EXEC and by scripts, with declared keys and without.
fn move_money(address: &str, thread: u64, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let mut buffer = [0; 1024];
    for count in 0_u64.. {
        let (from, to) = (format!("a{}", count % ACCOUNTS), format!("a{}", (count * 7 + thread) % ACCOUNTS));
        let script = "redis.call('decr', KEYS[1] or ARGV[1]) redis.call('incr', KEYS[2] or ARGV[2])";
        let request = match count % 3 {
            0 => [encode(&["MULTI"]), encode(&["DECR", &from]), encode(&["INCR", &to]), encode(&["EXEC"])].concat(),
            1 => encode(&["EVAL", script, "2", &from, &to]),
            _ => encode(&["EVAL", script, "0", &from, &to]),
        };
        if stop.load(Ordering::SeqCst) || stream.write_all(&request).is_err() {
            return;
        }
        if !matches!(stream.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().to_str().expect("text");
    let mut acknowledged = 0_u64;
    for round in 0..kills(10) {
        let (mut program, address) = start(dir);
        let mut client = Client::connect(&address);
        let found: u64 = match client.ask(&["GET", "n"]).lines().nth(1) {
            Some(number) => number.parse().expect("a number"),
            None => 0,
        };
        assert!(found >= acknowledged, "round {round}: {found} of {acknowledged}");
        let accounts = (0..ACCOUNTS).map(|account| match client.ask(&["GET", &format!("a{account}")]).lines().nth(1) {
            Some(number) => number.parse::<i64>().expect("a number"),
            None => 0,
        });
        assert_eq!(accounts.sum::<i64>(), 0, "round {round}");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            (0..3).for_each(|thread| {
                scope.spawn({
                    let (address, stop) = (&address, &stop);
                    move || move_money(address, thread, stop)
                });
            });
            let count = 150 + 31 * (round % 10);
            // Some kills come in the middle of a rewrite.
            let rewritten_at = if round % 2 == 0 { 60 } else { count - 3 };
            for number in 0..count {
                let reply = client.ask(&["INCR", "n"]);
                acknowledged = reply[1..].trim_end().parse().unwrap_or_else(|_| panic!("{reply}"));
                if number == rewritten_at {
                    assert!(client.ask(&["BGREWRITEAOF"]).starts_with('+'));
                }
            }
            program.signal(libc::SIGKILL);
            stop.store(true, Ordering::SeqCst);
        });
        program.wait();
    }
}
