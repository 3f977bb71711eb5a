//! The stats socket: HAProxy's command line over a unix or TCP socket (management guide 9.3).
//!
//! [`protocol`] is the line protocol, [`catalogue`] the commands, a file per theme. Everything runs on the control
//! thread, so no command delays a request, and the proxy's limits do not apply to the socket.
//!
//! Limits: [`protocol::LINE_MAX`] bytes a line, `stats maxconn` connections, `stats timeout` without a byte in or
//! out.

mod cache;
pub mod catalogue;
mod change;
mod engines;
mod errors;
mod events;
pub mod expose;
mod general;
mod inside;
mod limits;
mod maps;
mod peers;
pub mod protocol;
mod resolvers;
mod servers;
pub(crate) mod session;
pub(crate) mod show;
mod socket;
mod stores;
mod tables;
mod tls;
mod traces;

pub use tables::fuzz_table_words;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_transport::{self as transport, Listener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use protocol::Rights;

use crate::proxied::skip_header;
use crate::reload::Current;
pub use socket::{Socket, SocketClients};

/// The maximum number of concurrent connections without `stats maxconn`.
pub const CONNECTIONS_MAX: usize = 10;
/// The timeout without `stats timeout`.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after an accept that failed for lack of descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Returns a separate listener on a socket on which others may listen later.
fn listener(socket: &OwnedFd) -> io::Result<Listener> {
    Listener::from_fd(socket.try_clone()?)
}

/// The settings shared by the clients of some sockets.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// The inactivity timeout of a client.
    pub timeout: Duration,
    /// The time from which `prompt timed` counts.
    pub started: Instant,
    /// The prefix of the prompt's `> `.
    pub name: &'static str,
    /// The maximum number of concurrent clients of all sockets.
    pub connections: usize,
}

impl Serving {
    /// Returns the settings of a master that started at `started`; an operator who watches it may be silent for an
    /// hour.
    pub fn master(started: Instant) -> Serving {
        Serving { timeout: Duration::from_secs(3600), started, name: "master", connections: CONNECTIONS_MAX }
    }
}

/// Serves the stats sockets of the current configuration for the lifetime of the future. Runs on the control thread's
/// runtime.
///
/// A new configuration keeps the sockets of both, and every connection: each command is answered by the configuration
/// that is current at that moment.
pub async fn serve(current: Arc<Current>) -> io::Result<()> {
    let mut changes = current.watch_stats();
    let mut serving: Vec<(Socket, JoinSet<()>)> = Vec::new();
    let mut limit = Arc::new(Semaphore::new(0));
    let mut connections_max = 0;
    let connections = Connections::default();
    loop {
        let sockets = changes.borrow_and_update().clone();
        let running = current.running();
        let global = &running.config.global;
        let settings = Serving {
            timeout: global.stats_timeout.unwrap_or(TIMEOUT),
            started: running.process.started,
            name: "",
            connections: global.stats_maxconn.unwrap_or(CONNECTIONS_MAX),
        };
        if settings.connections != connections_max {
            connections_max = settings.connections;
            limit = Arc::new(Semaphore::new(connections_max));
        }
        // A new level or timeout applies to later connections.
        for (_, mut accepting) in serving.drain(..) {
            accepting.shutdown().await;
        }
        for socket in sockets {
            let mut accepting = JoinSet::new();
            let listener = listener(&socket.listener)?;
            accepting.spawn(accept(
                listener,
                socket.clone(),
                settings,
                current.clone(),
                limit.clone(),
                connections.clone(),
            ));
            serving.push((socket, accepting));
        }
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// The tasks of all clients: they outlive the socket that accepted them, and end with the last owner of this value.
type Connections = Arc<parking_lot::Mutex<JoinSet<()>>>;

impl protocol::Commands for Current {
    fn run<'a>(
        &'a self,
        request: protocol::Request,
        session: &'a mut protocol::Session,
        out: &'a mut protocol::Output,
    ) -> protocol::Answer<'a> {
        let running = self.running();
        Box::pin(async move { running.run(request, session, out).await })
    }

    fn listening(&self) -> Vec<Arc<OwnedFd>> {
        let mut sockets: Vec<_> = self.running().listeners().iter().flat_map(|listener| listener.sockets()).collect();
        sockets.extend(self.stats_sockets().into_iter().map(|socket| socket.listener));
        // As in HAProxy, the sockets of `sockpair@` are inherited from the parent alone.
        sockets.retain(|socket| !transport::is_carrier(socket));
        sockets
    }
}

/// Answers one client that did not connect through a stats socket, but over a connection that the master created. One
/// line is answered, as by a stats socket.
pub async fn serve_one(current: Arc<Current>, stream: std::os::unix::net::UnixStream, rights: protocol::Rights) {
    let Ok(stream) = transport::Socket::of_unix(stream) else { return };
    let running = current.running();
    let timeout = running.config.global.stats_timeout.unwrap_or(TIMEOUT);
    let mut session = protocol::Session::new(rights, timeout, running.process.started);
    drop(running);
    let _ = protocol::converse(stream, &mut session, &*current).await;
}

/// Serves sockets with the commands of `commands`, for the lifetime of the future.
pub async fn serve_commands<C>(sockets: Vec<Socket>, serving: Serving, commands: Arc<C>) -> io::Result<()>
where
    C: protocol::Commands + 'static,
{
    let limit = Arc::new(Semaphore::new(serving.connections));
    let mut listeners = JoinSet::new();
    for socket in sockets {
        let connections = Connections::default();
        let listener = self::listener(&socket.listener)?;
        listeners.spawn(accept(listener, socket, serving, commands.clone(), limit.clone(), connections));
    }
    while listeners.join_next().await.is_some() {}
    // Without sockets there are no clients, but the future must not end.
    std::future::pending().await
}

async fn accept<C>(
    listener: Listener,
    socket: Socket,
    serving: Serving,
    commands: Arc<C>,
    limit: Arc<Semaphore>,
    connections: Connections,
) where
    C: protocol::Commands + 'static,
{
    let own = socket.clients.maxconn.map(|most| Arc::new(Semaphore::new(most as usize)));
    loop {
        let own = match &own {
            Some(own) => own.clone().acquire_owned().await.ok(),
            None => None,
        };
        // The place is acquired before the connection is accepted, so excess connections wait in the backlog.
        let Ok(place) = limit.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let (commands, Socket { clients, tls, .. }) = (commands.clone(), socket.clone());
                connections.lock().spawn(async move {
                    if clients.accept_proxy {
                        let skipped = tokio::time::timeout(serving.timeout, skip_header(&mut stream)).await;
                        if !skipped.unwrap_or(false) {
                            return;
                        }
                    }
                    if let Some(tls) = tls {
                        // A failed handshake ends with an alert to the client, and frees the place.
                        let shaken = tokio::time::timeout(serving.timeout, stream.accept_tls(&tls)).await;
                        if !matches!(shaken, Ok(Ok(()))) {
                            return;
                        }
                    }
                    if let transport::Socket::Unix(stream) = &stream
                        && clients.exposes
                    {
                        // The conversation times out a silent client.
                        let asked = tokio::time::timeout(serving.timeout, expose::is_asked(stream)).await;
                        if asked.unwrap_or(false) {
                            let sockets = commands.listening();
                            let _ = tokio::time::timeout(serving.timeout, expose::give(stream, &sockets)).await;
                            return;
                        }
                    }
                    // A client that goes away in the middle of an answer needs no report.
                    let mut session =
                        protocol::Session::new(Rights::of(clients.level), serving.timeout, serving.started);
                    session.severity = clients.severity;
                    session.name = serving.name.to_owned();
                    if !session.name.is_empty() {
                        // A master keeps the connection, with or without a prompt.
                        session.mode = protocol::Mode::Interactive;
                    }
                    let _ = protocol::converse(stream, &mut session, &*commands).await;
                    drop((place, own));
                });
            }
            Err(_) => tokio::time::sleep(EXHAUSTED_PAUSE).await,
        }
        while connections.lock().try_join_next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_config::model::StatsLevel;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::running::Running;
    use crate::running::tests::without_proxies;

    fn running() -> Arc<Running> {
        without_proxies(&crate::process::Process::new(1, None), None)
    }

    #[track_caller]
    fn talk(sent: &[&str]) -> String {
        talk_to(&running(), sent)
    }

    #[track_caller]
    fn talk_to(running: &Arc<Running>, sent: &[&str]) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, server) = tokio::io::duplex(64 * 1024);
            let (mut from, mut to) = tokio::io::split(client);
            let talk = async {
                for part in sent {
                    // The server may have closed already, which is what some of these tests are about.
                    let _ = to.write_all(part.as_bytes()).await;
                    tokio::task::yield_now().await;
                }
                let _ = to.shutdown().await;
            };
            let mut answer = String::new();
            let mut session = protocol::Session::new(
                Rights::of(StatsLevel::Operator),
                Duration::from_secs(5),
                running.process.started,
            );
            let served = protocol::converse(server, &mut session, running);
            let (served, (), read) = tokio::join!(served, talk, from.read_to_string(&mut answer));
            read.unwrap();
            drop(served);
            answer
        })
    }

    #[test]
    fn one_line_is_answered_and_the_connection_closed() {
        let answer = talk(&["show cli le", "vel; show version\n"]);
        assert_eq!(answer, format!("operator\n\n{}\n\n", crate::stats::info::VERSION));
        assert_eq!(talk(&["show cli level"]), "operator\n\n", "a last line without its end counts");
    }

    #[test]
    fn empty_commands_have_empty_answers() {
        let version = crate::stats::info::VERSION;
        assert_eq!(talk(&["\n"]), "\n");
        assert_eq!(talk(&[" \n"]), "\n");
        assert_eq!(talk(&[";show version\n"]), format!("\n{version}\n\n"));
        assert_eq!(talk(&["show version;;show version;\n"]), format!("{version}\n\n\n{version}\n\n\n"));
        assert_eq!(talk(&["prompt\n\n;\n"]), "\n> \n> \n\n> ");
    }

    #[test]
    fn a_prompt_keeps_the_connection() {
        let answer = talk(&["prompt\n", "show cli level\n", "prompt timed\n", "quit\n", "show version\n"]);
        assert_eq!(answer, "\n> operator\n\n> \n[0:00:00:00]> ");
        assert_eq!(talk(&["prompt timed\n", "prompt timed\n", "prompt\n"]), "\n[0:00:00:00]> \n> \n");
        assert_eq!(talk(&["prompt i timed\n", "prompt p\n"]), "\n\n[0:00:00:00]> ");
        assert_eq!(talk(&["prompt\n", "user;user\n"]), "\n> \n\n> ");
        assert!(talk(&["prompt x\n"]).starts_with("Usage: prompt [help | n | i | p | timed]*\n"));
        assert_eq!(talk(&["prompt i\n", "show cli level\n", "prompt n\n", "user\n"]), "\noperator\n\n\n");
    }

    #[test]
    fn dynamic_commands_stream_their_answers() {
        let registered = running();
        let handler: Arc<crate::script_commands::Handler> = Arc::new(|words, out| {
            Box::pin(async move {
                for word in words {
                    let _ = out.send(word).await;
                    let _ = out.send(b"\n".to_vec()).await;
                }
            })
        });
        let name = vec!["cache".to_owned(), "show".to_owned()];
        let usage = "cache show : what is cached".to_owned();
        let command = crate::script_commands::Dynamic { name, usage, level: StatsLevel::Operator, handler };
        registered.commands.add(command, catalogue::is_built_in).unwrap();
        let talk = |line: &str| talk_to(&registered, &[line]);
        assert_eq!(talk("cache show all\n"), "cache\nshow\nall\n\n");
        assert_eq!(talk("user; cache show\n"), "\nPermission denied\n\n");
        assert!(talk("help cache\n").contains("  cache show : what is cached\n"));
    }
}
