//! Engines, runtimes and commands for the tests.

use std::future::Future;
use std::time::Duration;

use sluicegate_client::{Address, Client, Options};
use sluicegate_testkit::{PATIENCE, RedisServer};
use sluicegate_wire::engine::{Connections, Engine};
use sluicegate_wire::reply::Reply;

/// Returns the options of most tests: short time limits, so that failures come soon.
pub fn options(port: u16) -> Options {
    Options {
        timeout_connect: Duration::from_millis(300),
        timeout_queue: Duration::from_millis(300),
        timeout_server: Duration::from_millis(300),
        ..Options::new("sessions", Address::Tcp("127.0.0.1".into(), port))
    }
}

/// Returns options for tests in which nothing may time out, however slow the machine.
pub fn patient(port: u16) -> Options {
    Options {
        timeout_connect: Duration::from_secs(30),
        timeout_queue: Duration::from_secs(30),
        timeout_server: Duration::from_secs(30),
        maxqueue: 1_000_000,
        ..options(port)
    }
}

/// Returns a worker's runtime. Its connections make no progress while none of its futures runs.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Runs on a runtime of its own.
pub fn worker<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

/// The same with a time limit, so that a test that would hang fails.
pub fn patiently<T>(future: impl Future<Output = T>) -> T {
    worker(async { tokio::time::timeout(PATIENCE, future).await.expect("it comes") })
}

/// Sends a command to the section's database; returns the reply.
pub async fn ask(client: &Client, command: &str) -> Reply {
    ask_in(client, 0, command).await
}

pub async fn ask_in(client: &Client, db: u32, command: &str) -> Reply {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    client.start(db, &words).finish().await
}

/// Returns the text of an error reply.
pub fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(text) => text,
        reply => panic!("an error was expected: {reply:?}"),
    }
}

pub fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

/// Returns a number from `INFO`, over a separate connection.
pub fn info(server: &RedisServer, field: &str) -> u64 {
    let own = Client::new(Options { name: "observer".into(), ..patient(server.port) });
    let reply = worker(async { ask(&own, "INFO").await });
    let (Reply::Bulk(text) | Reply::Verbatim(_, text)) = reply else { panic!("{reply:?}") };
    let text = String::from_utf8(text).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {field} in {text}"))
}

/// Returns the client's counters.
pub fn figures(client: &Client) -> Connections {
    client.connections().expect("an engine has connections")
}
