//! The acceptance of connections, from listening sockets and from the process itself, and refusals before a first
//! command.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_tls::listener::Listener as TlsListener;
use sluicegate_transport::{Listener, ReadHalf, Socket, WriteHalf};

use super::batch::Exit;
use super::client::{self, Client, SUCCESSOR};
use super::connection::Connection;
use super::dispatch::Session;
use super::inside::NOWHERE;
use super::{Generation, HOUSEKEEPING, Server, Worker};
use crate::acl::User;
use crate::config::ServerOptions;

const TOO_MANY_CLIENTS: &[u8] = b"-ERR max number of clients reached\r\n";

const PROTECTED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no \
password is set for the default user. In this mode connections are only accepted from the loopback interface. If you \
want to connect from external computers to Redis you may adopt one of the following solutions: 1) Just disable \
protected mode sending the command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Redis \
from the same host the server is running, however MAKE SURE Redis is not publicly accessible from internet if you do \
so. Use CONFIG REWRITE to make this change permanent. 2) Alternatively you can just disable the protected mode by \
editing the Redis configuration file, and setting the protected mode option to 'no', and then restarting the server. \
3) If you started the server manually just for testing, restart it with the '--protected-mode no' option. 4) Setup a \
an authentication password for the default user. NOTE: You only need to do one of the above things in order for the \
server to start accepting connections from the outside.\r\n";

/// The time to wait for descriptors before accepting again.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Accepts and serves connections on the calling worker's `LocalRuntime` until [`stop`](Self::stop).
    ///
    /// The socket was bound in `generation` and is served until the generation ends: `CONFIG SET port` may have
    /// replaced the socket before its worker received it. With `tls`, connections begin with a handshake.
    pub async fn serve_tcp(
        self: &Arc<Self>,
        generation: Generation,
        listener: std::net::TcpListener,
        tls: Option<Arc<TlsListener>>,
    ) -> io::Result<()> {
        let Generation(mut replaced) = generation;
        let local = listener.local_addr()?;
        let listener = Listener::from_fd(listener.into())?;
        {
            let mut listeners = self.listeners.lock();
            if replaced.has_changed().unwrap_or(true) {
                return Ok(());
            }
            let (name, port) = if tls.is_some() { ("tls", &self.tls_port) } else { ("tcp", &self.tcp_port) };
            // Of several listeners, the first is that of the server.
            let _ = port.compare_exchange(0, local.port().into(), Ordering::Relaxed, Ordering::Relaxed);
            note(&mut listeners, format!("name={name},bind={},port={}", local.ip(), local.port()));
        }
        let worker = self.worker();
        let sending = tokio::task::spawn_local(worker.clone().send_batches());
        tokio::select! {
            () = self.serve(&worker, &listener, |socket, peer| worker.receive(socket, peer, "", tls.as_ref())) => {}
            // The connections of the replaced socket continue.
            _ = replaced.changed() => {}
        }
        drop(listener);
        worker.finish().await;
        sending.abort();
        Ok(())
    }

    /// Like [`serve_tcp`](Self::serve_tcp), for a Unix socket.
    pub async fn serve_unix(
        self: &Arc<Self>,
        listener: std::os::unix::net::UnixListener,
        tls: Option<Arc<TlsListener>>,
    ) -> io::Result<()> {
        let listener = Listener::from_fd(listener.into())?;
        let path = listener.path().map(|path| path.display().to_string()).unwrap_or_default();
        note(&mut self.listeners.lock(), format!("name=unix,bind={path}"));
        let worker = self.worker();
        let sending = tokio::task::spawn_local(worker.clone().send_batches());
        self.serve(&worker, &listener, |socket, peer| worker.receive(socket, peer, &path, tls.as_ref())).await;
        drop(listener);
        worker.finish().await;
        sending.abort();
        Ok(())
    }

    /// Returns a connection of this process to itself: the calling thread's `LocalRuntime` serves the other end. It
    /// needs no password.
    pub fn connect(self: &Arc<Self>) -> io::Result<UnixStream> {
        self.connect_as(NOWHERE, self.inside_user())
    }

    /// Like [`connect`](Self::connect), for the process that replaces this one, which follows this store until it takes it
    /// over.
    pub fn connect_successor(self: &Arc<Self>) -> io::Result<UnixStream> {
        self.connect_as(SUCCESSOR, self.store.0.acl.process_user())
    }

    fn connect_as(self: &Arc<Self>, address: &str, user: &Arc<User>) -> io::Result<UnixStream> {
        thread_local! {
            /// The servers to which this thread has such connections, and their workers.
            static INSIDE: RefCell<Vec<(*const Server, RcWeak<Worker>)>> = const { RefCell::new(Vec::new()) };
        }
        if self.is_stopping() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (theirs, ours) = UnixStream::pair()?;
        let ours = Socket::of_unix(ours)?;
        let worker = INSIDE.with_borrow_mut(|inside| {
            // A worker keeps its server alive, so an address belongs to that server as long as the worker lives.
            inside.retain(|(_, worker)| worker.strong_count() > 0);
            let known = inside.iter().find(|(server, _)| *server == Arc::as_ptr(self));
            if let Some(worker) = known.and_then(|(_, worker)| worker.upgrade()) {
                return worker;
            }
            let worker = self.worker();
            let sending = tokio::task::spawn_local(worker.clone().send_batches());
            let (serving, mut stopping) = (worker.clone(), self.stopping.subscribe());
            tokio::task::spawn_local(async move {
                // The sender is dropped with the server, so an error means the end as well.
                let _ = stopping.wait_for(|stop| *stop).await;
                serving.finish().await;
                sending.abort();
            });
            inside.push((Arc::as_ptr(self), Rc::downgrade(&worker)));
            worker
        });
        worker.accept_inside(ours, address, user);
        Ok(theirs)
    }

    async fn serve(&self, worker: &Rc<Worker>, listener: &Listener, start: impl Fn(Socket, Option<SocketAddr>)) {
        let mut stopping = self.stopping.subscribe();
        let mut tick = tokio::time::interval(HOUSEKEEPING);
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) => start(socket, peer),
                    // Accepting again immediately would be a busy loop: the connection that can't be accepted stays in
                    // the queue.
                    Err(error) if is_exhaustion(&error) => tokio::time::sleep(EXHAUSTED_PAUSE).await,
                    // Only that connection failed, before it was accepted.
                    Err(_) => {}
                },
                _ = tick.tick() => worker.server.keep_house(),
            }
        }
    }
}

impl Worker {
    /// Serves an accepted connection, with `tls` after its handshake.
    pub(super) fn receive(
        self: &Rc<Self>,
        socket: Socket,
        peer: Option<SocketAddr>,
        path: &str,
        tls: Option<&Arc<TlsListener>>,
    ) {
        match tls {
            Some(tls) => self.accept_tls(socket, peer, path, tls),
            None => self.accept(socket, peer, path),
        }
    }

    /// Serves an accepted connection; `path` is that of a unix socket.
    pub(super) fn accept(self: &Rc<Self>, socket: Socket, peer: Option<SocketAddr>, path: &str) {
        match peer {
            Some(peer) => self.accept_tcp(socket, peer),
            None => self.accept_unix(socket, path),
        }
    }

    pub(super) fn accept_tcp(self: &Rc<Self>, socket: Socket, peer: SocketAddr) {
        let options = self.options();
        if options.tcp_keepalive_s > 0 {
            let every = Duration::from_secs(options.tcp_keepalive_s.into());
            let keepalive = socket2::TcpKeepalive::new()
                .with_time(every)
                .with_interval((every / 3).max(Duration::from_secs(1)))
                .with_retries(3);
            // Best effort, as a connection works without it.
            let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive);
        }
        let acl = &self.server.store.0.acl;
        let needs_login = !acl.admits_anyone();
        if is_refused(options.protected_mode, acl.default_takes_any_password(), peer.ip()) {
            self.counters.rejected.add(1);
            let _ = socket.try_write(PROTECTED);
            return;
        }
        let local = socket.local_addr().map(|local| local.to_string()).unwrap_or_default();
        let descriptor = socket.fd().as_raw_fd();
        let (stream, half) = socket.into_split();
        let user = acl.default_user();
        self.start(stream, half, &options, user, !needs_login, |id| {
            Client::new(&self.server.store.0.memory, user, id, peer.to_string(), local, false, descriptor)
        });
    }

    pub(super) fn accept_unix(self: &Rc<Self>, socket: Socket, path: &str) {
        let address = format!("{path}:0");
        let descriptor = socket.fd().as_raw_fd();
        let options = self.options();
        let (stream, half) = socket.into_split();
        let acl = &self.server.store.0.acl;
        let user = acl.default_user();
        self.start(stream, half, &options, user, acl.admits_anyone(), |id| {
            Client::new(&self.server.store.0.memory, user, id, address.clone(), address, true, descriptor)
        });
    }

    fn accept_inside(self: &Rc<Self>, socket: Socket, address: &str, user: &Arc<User>) {
        let (descriptor, options, address) = (socket.fd().as_raw_fd(), self.options(), address.to_owned());
        let (stream, half) = socket.into_split();
        self.start(stream, half, &options, user, true, |id| {
            Client::new(&self.server.store.0.memory, user, id, address.clone(), address, true, descriptor)
        });
    }

    fn start(
        self: &Rc<Self>,
        stream: ReadHalf,
        half: WriteHalf,
        options: &ServerOptions,
        user: &Arc<User>,
        authenticated: bool,
        client: impl FnOnce(u64) -> Client,
    ) {
        let id = self.server.next_client.fetch_add(1, Ordering::Relaxed);
        let client = Arc::new(client(id).encrypted(matches!(stream, ReadHalf::Tls(_))));
        let exit = Exit::new(half, client.clone());
        let places = (options.maxclients as usize).saturating_sub(self.server.handshakes());
        let is_added = self.server.clients.add(&client, places);
        self.counters.connections.add(1);
        if !is_added {
            self.counters.rejected.add(1);
            let _ = exit.try_write(TOO_MANY_CLIENTS);
            return;
        }
        self.live.set(self.live.get() + 1);
        let connection =
            Connection::new(self.clone(), stream, exit, client, Session::new(id, user.clone(), authenticated));
        tokio::task::spawn_local(connection.run());
    }
}

/// Returns whether protected mode refuses a client from this address: the default user takes any password.
fn is_refused(protected_mode: bool, any_password: bool, peer: IpAddr) -> bool {
    protected_mode && any_password && !client::is_own_machine(peer)
}

/// Records a listening socket; every worker has its own for the same address.
fn note(listeners: &mut Vec<String>, listener: String) {
    if !listeners.contains(&listener) {
        listeners.push(listener);
    }
}

/// Returns whether accepting failed for lack of descriptors or memory, so that waiting may help.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::tests::on_worker;
    use super::*;

    #[test]
    fn protected_mode_refuses_strangers_while_there_is_no_password() {
        let check = |protected_mode: bool, password: &str, peer: &str, expected: bool| {
            let found = is_refused(protected_mode, password.is_empty(), peer.parse().expect("an address"));
            assert_eq!(found, expected, "{peer} {password:?}");
        };
        check(true, "", "10.0.0.1", true);
        check(true, "", "2001:db8::1", true);
        check(true, "", "127.0.0.1", false);
        check(true, "", "::1", false);
        check(true, "secret", "10.0.0.1", false);
        check(false, "", "10.0.0.1", false);
        assert!(PROTECTED.starts_with(b"-DENIED ") && PROTECTED.ends_with(b"outside.\r\n"));
    }

    #[test]
    fn a_stranger_is_told_why_and_let_in_once_protected_mode_is_off() {
        on_worker(async |worker, listener| {
            let server = &worker.server;
            let address = listener.local_addr().expect("bound");
            for protected in [true, false] {
                *server.options.write() = Arc::new(ServerOptions { protected_mode: protected, ..Default::default() });
                server.options_version.fetch_add(1, Ordering::Release);
                let mut client = tokio::net::TcpStream::connect(address).await.expect("connected");
                let (stream, _) = listener.accept().await.expect("accepted");
                // The connection is treated as one from another machine.
                worker.accept_tcp(Socket::Tcp(stream), "192.0.2.7:1000".parse().expect("an address"));
                let mut reply = Vec::new();
                if !protected {
                    client.write_all(b"QUIT\r\n").await.expect("sent");
                }
                client.read_to_end(&mut reply).await.expect("closed");
                let expected = if protected { PROTECTED } else { b"+OK\r\n" };
                assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(expected));
            }
            assert_eq!(server.totals().rejected, 1);
        });
    }
}
