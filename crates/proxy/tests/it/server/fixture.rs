//! The whole proxy in this process, started from a configuration text.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sluicegate_config::model::{BindAddress, StatsLevel};
use sluicegate_config::{MemoryFiles, NoLua, load};
use sluicegate_proxy::control;
use sluicegate_proxy::listener::{self, SystemSockets};
use sluicegate_proxy::log::{Identity, Logger};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::reload::Current;
use sluicegate_proxy::running::{Parts, Running, build};
use sluicegate_proxy::worker;
use sluicegate_proxy::{cli, server};
use sluicegate_testkit::wait_for;

use crate::rules::fixture::TestFiles;

/// Workers, control thread, log and stats socket.
pub struct Whole {
    pub running: Arc<Running>,
    /// The frontends' addresses in the order of their `bind` lines.
    pub addresses: Vec<SocketAddr>,
    /// The stats socket.
    pub stats: PathBuf,
    logged: Arc<Mutex<Vec<u8>>>,
    ended: Option<tokio::sync::oneshot::Sender<()>>,
    workers: Option<worker::Workers>,
    control: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Whole {
    /// Starts the proxy. `bind 127.0.0.1:1` stands for a port that the kernel chooses, which the language cannot
    /// express. `@LOG@` is replaced by a `log` target that [`Whole::log_lines`] reads.
    pub fn start(text: &str, workers: usize) -> Whole {
        let (read, write) = std::io::pipe().expect("a pipe");
        let text = text.replace("@LOG@", &format!("fd@{}", write.as_raw_fd()));
        let files = TestFiles(MemoryFiles::new().with("test.cfg", text.as_str()));
        let (config, diagnostics) = load(&files, &[PathBuf::from("test.cfg")], &mut std::env::vars().collect(), &NoLua);
        let mut config = config.unwrap_or_else(|| {
            panic!("{text}\n{}", diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        });
        for address in config.proxies.iter_mut().flat_map(|proxy| &mut proxy.binds).flat_map(|bind| &mut bind.addresses)
        {
            if *address == BindAddress::Inet(Ipv4Addr::LOCALHOST.into(), 1) {
                *address = BindAddress::Inet(Ipv4Addr::LOCALHOST.into(), 0);
            }
        }
        let config = Arc::new(config);
        let logger = Logger::new(&config, Identity { tag: "haproxy".into(), ..Identity::default() });
        let process = Process::new(workers, config.global.maxconn);
        let parts =
            Parts { pages: sluicegate_proxy::stats::pages(), engines: Default::default(), lua: None, logger, process };
        let running = build(config, parts).expect("rules compile");
        server::resolve_names(&running, &std::collections::HashMap::new()).expect("no names");
        let bound = listener::bind(&running, &SystemSockets).unwrap_or_else(|errors| panic!("{errors:?}"));
        let addresses = bound.iter().filter_map(|listener| listener.local).collect();
        let started = worker::start(&running, bound, Vec::new()).expect("threads");

        let directory = tempfile::tempdir().expect("a temporary directory");
        let stats = directory.path().join("stats.sock");
        let listener = OwnedFd::from(UnixListener::bind(&stats).expect("bindable"));
        let (ended, end) = tokio::sync::oneshot::channel();
        let control = {
            let running = running.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::LocalRuntime::new().expect("a runtime");
                let sockets = vec![cli::Socket {
                    listener: Arc::new(listener),
                    clients: cli::SocketClients {
                        level: StatsLevel::Admin,
                        exposes: false,
                        severity: Default::default(),
                        accept_proxy: false,
                        maxconn: None,
                    },
                    tls: None,
                }];
                let current = Current::new(running, sockets);
                let end = async { end.await.unwrap_or(()) };
                runtime.block_on(control::run(current, end)).expect("the stats socket works");
                drop(write);
            })
        };
        let logged = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let logged = logged.clone();
            move || collect(read, &logged)
        });
        let (control, workers) = (Some(control), Some(started));
        Whole { running, addresses, stats, logged, ended: Some(ended), workers, control, _directory: directory }
    }

    /// Returns the first frontend's address.
    pub fn address(&self) -> String {
        self.addresses[0].to_string()
    }

    /// Waits for `count` log lines and returns them.
    pub fn log_lines(&self, count: usize) -> Vec<String> {
        wait_for("log lines", || {
            let lines = lines(&self.logged.lock().expect("no panic"));
            (lines.len() >= count).then_some(lines)
        })
    }
}

/// Returns the complete lines so far.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    text[..end].lines().map(str::to_owned).collect()
}

fn collect(mut from: impl Read, into: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        into.lock().expect("no panic").extend_from_slice(&buffer[..count]);
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.running.process.stop_now();
        let workers = self.workers.take().map(worker::Workers::join);
        drop(self.ended.take());
        let control = self.control.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            workers.expect("joined once").expect("workers end well");
            control.expect("joined once").expect("the control thread ends well");
        }
    }
}
