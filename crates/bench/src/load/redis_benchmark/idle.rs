//! `-I`: connections that send nothing, until the first of them ends or a signal arrives.

use std::io;

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::load::console::Console;
use crate::load::run::raise_descriptors;
use crate::load::target::Server;

/// Opens the connections and waits. Returns the exit code: 130 after a signal, 1 if a connection ends or is not made.
pub(super) fn run(server: &Server, clients: u64, console: &mut Console<'_>) -> Result<u8, String> {
    raise_descriptors(clients as usize)?;
    let text = |error: io::Error| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
    runtime.block_on(async {
        let mut signals = match console.takes_signals {
            true => {
                Some((signal(SignalKind::interrupt()).map_err(text)?, signal(SignalKind::terminate()).map_err(text)?))
            }
            false => None,
        };
        let (ended, mut ends) = mpsc::channel::<String>(1);
        for number in 0..clients {
            let reason = |error: io::Error| format!("Could not connect to Redis at {server}: {error}");
            let ended = ended.clone();
            // The task that sees the first end reports it; the report of another finds no room, and is not needed.
            match server {
                Server::Tcp(host, port) => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(reason)?;
                    tokio::spawn(async move {
                        let end = stream.ready(Interest::READABLE).await;
                        let _ = ended.try_send(end.err().map_or("Server closed the connection".to_owned(), text));
                    });
                }
                Server::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(reason)?;
                    tokio::spawn(async move {
                        let end = stream.ready(Interest::READABLE).await;
                        let _ = ended.try_send(end.err().map_or("Server closed the connection".to_owned(), text));
                    });
                }
            }
            if number + 1 == clients {
                // Whoever waits for the connections reads this line.
                let written = write!(console.out, "clients: {clients}\r").and_then(|()| console.out.flush());
                written.map_err(text)?;
            }
        }
        tokio::select! {
            () = crate::load::run::interrupted(&mut signals) => Ok(130),
            reason = ends.recv() => Err(format!("Error: {}", reason.unwrap_or_default())),
        }
    })
}
