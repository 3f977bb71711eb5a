//! A store that serves RESP on threads of this process.

use std::sync::Arc;
use std::thread::JoinHandle;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::server::Server;
use sluicegate_store::{Store, StoreOptions};
use sluicegate_testkit::{Client, Listening};

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
