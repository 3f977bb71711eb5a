//! Faults outside the process: peers that die, stall, flood or send nonsense, and files and addresses that are not
//! available. In each case the process continues and reports the fault, or reports why it can't start; it leaks neither
//! memory nor descriptors.

mod faults;
mod flood;
mod garbage;
mod lua;
mod scripts;
mod starting;
mod wear;

use std::path::{Path, PathBuf};

use sluicegate_testkit::{Listening, Sluicegate, wait_for};

/// A run of the binary with a stats socket.
struct Gate {
    server: Sluicegate,
    stats: PathBuf,
}

impl Gate {
    /// Starts it with `configuration` behind a `global` section of `workers` workers and further `global` lines.
    fn start(workers: usize, global: &str, configuration: &str, listening: &[&Listening]) -> Gate {
        let text = format!(
            "global\n    nbthread {workers}\n    stats socket @DIR@/stats level admin\n{global}{configuration}"
        );
        let server = crate::start(&text, listening);
        let stats = server.directory().join("stats");
        wait_for("the stats socket", || stats.exists().then_some(()));
        Gate { server, stats }
    }

    fn pid(&self) -> u32 {
        self.server.program.pid()
    }

    /// A figure of `show info`.
    fn info(&self, name: &str) -> u64 {
        info(&self.stats, name)
    }
}

/// A figure of `show info` at a stats socket, ours or haproxy's.
pub(crate) fn info(stats: &Path, name: &str) -> u64 {
    let answer = Sluicegate::stats(stats, "show info");
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {answer}"))
}

/// A column of `show stat` for the row of this proxy and server (`FRONTEND`, `BACKEND`).
pub(crate) fn stat(stats: &Path, proxy: &str, server: &str, column: &str) -> u64 {
    let answer = Sluicegate::stats(stats, "show stat");
    let mut lines = answer.lines();
    let names = lines.next().unwrap_or_default().trim_start_matches("# ");
    let at = names.split(',').position(|name| name == column).unwrap_or_else(|| panic!("no {column} in {names}"));
    let row = lines.find(|line| line.starts_with(&format!("{proxy},{server},")));
    let cell = row.and_then(|row| row.split(',').nth(at));
    cell.unwrap_or_else(|| panic!("no {proxy}/{server} in {answer}")).parse().unwrap_or(0)
}

/// Timeouts that no test means to reach.
const PATIENT: &str =
    "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n";

/// Makes the kernel send a RST when this socket is closed, whatever is still in its buffers.
fn reset_on_close(stream: &std::net::TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's value is a linger struct that outlives the call, and its size is passed.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
}

/// Makes the kernel deliver connections to the acceptor only once their first bytes have arrived.
pub(crate) fn accept_with_data(listener: &std::net::TcpListener) {
    use std::os::fd::AsRawFd;
    let seconds: libc::c_int = 60;
    // SAFETY: the option's value is an int that outlives the call, and its size is passed.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            std::ptr::from_ref(&seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "settable");
}
