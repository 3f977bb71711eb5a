//! A store that serves RESP on threads of this process.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::server::Server;
use sluicegate_store::{Store, StoreOptions};
use sluicegate_testkit::{Client, Listening, wait_for};

/// A server with its workers; ended when this is dropped.
pub struct Running {
    pub server: Arc<Server>,
    store: Store,
    pub port: u16,
    workers: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts a server with one worker and default options.
    pub fn start() -> Running {
        Running::with(ServerOptions::default(), 1)
    }

    /// Starts a server with as many workers as given, all accepting from one socket.
    pub fn with(options: ServerOptions, workers: usize) -> Running {
        Running::serving(Store::new(StoreOptions::default()), options, workers)
    }

    /// The same with few stripes, for tests that save and rewrite: a pass goes through all of them, and leaves the cores to
    /// others after each, which takes long on a busy machine.
    pub fn with_files(options: ServerOptions, workers: usize) -> Running {
        Running::serving(Store::new(StoreOptions { stripes: 64, ..StoreOptions::default() }), options, workers)
    }

    /// Starts a server of a store that the test also calls directly.
    pub fn serving(store: Store, options: ServerOptions, workers: usize) -> Running {
        let listening = Listening::new();
        let server = Server::new(store.clone(), options);
        server.load_users().expect("users that can be loaded");
        let workers = (0..workers)
            .map(|_| {
                let server = server.clone();
                let listener = listening.listener.try_clone().expect("a descriptor");
                std::thread::spawn(move || {
                    on_runtime(
                        async move { server.serve_tcp(server.generation(), listener, None).await.expect("served") },
                    )
                })
            })
            .collect();
        Running { server, store, port: listening.port(), workers }
    }

    /// Returns the store that is served.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Collects the lines of the log from now on, each with its level and a blank before it.
    pub fn logged(&self) -> Arc<Mutex<Vec<String>>> {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_server = lines.clone();
        self.server.set_log(move |level, text| {
            of_server.lock().expect("no panic").push(format!("{level} {}", String::from_utf8_lossy(text)));
        });
        lines
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.address())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.stop();
        if std::thread::panicking() {
            // The awaited reply may never come.
            self.server.close_clients();
        }
        for worker in self.workers.drain(..) {
            // A worker that panicked has failed the test already by not answering.
            let _ = worker.join();
        }
    }
}

/// Returns a directory with a copy of the append-only files of another one, which a store may write meanwhile.
#[track_caller]
pub fn copied_append_only(directory: &Path) -> tempfile::TempDir {
    let from = directory.join("appendonlydir");
    let copy = tempfile::tempdir().expect("a directory");
    wait_for("a copy of all files that a manifest names", || {
        let to = copy.path().join("appendonlydir");
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).ok()?;
        let manifest = std::fs::read_to_string(from.join("appendonly.aof.manifest")).ok()?;
        for name in manifest.lines().filter_map(|line| line.split(' ').nth(1)) {
            // A rewrite may have removed it.
            std::fs::copy(from.join(name), to.join(name)).ok()?;
        }
        std::fs::write(to.join("appendonly.aof.manifest"), manifest).ok()
    });
    copy
}

/// Runs a future on a runtime like those of the proxy's workers.
pub fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(Default::default())
        .expect("a runtime")
        .block_on(future)
}

/// Sends bytes, ends the sending direction, and returns everything that is received until the peer closes.
#[track_caller]
pub fn exchange(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(address);
    client.send(bytes);
    client.finish();
    client.read_to_end()
}
