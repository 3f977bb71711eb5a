//! The listening sockets of a standalone store.
//!
//! Each worker accepts from its own socket on the same address, so the kernel distributes connections. That needs
//! `SO_REUSEPORT`, with which a second store could silently share the port. The first worker's socket
//! therefore listens without the option, which fails if the port is in use, and sets it afterwards.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use sluicegate_store::config::ProcessOptions;
use socket2::{Domain, SockAddr, Socket, Type};

use super::log::{Level, Log};
use super::{path_of, reason};

/// A listening socket.
pub struct Listening {
    /// The socket.
    pub socket: OwnedFd,
    /// Whether its connections begin with a TLS handshake.
    pub has_tls: bool,
}

/// The bound sockets.
pub struct Sockets {
    /// The sockets of each worker.
    pub of_workers: Vec<Vec<Listening>>,
    /// The TCP port, if there is one.
    pub port: Option<u16>,
    /// The TCP port with TLS, if there is one.
    pub tls_port: Option<u16>,
    /// An address that other machines may be able to reach, if there is one.
    pub public: Option<IpAddr>,
    /// Whether there is a unix socket.
    pub has_unix: bool,
}

/// Binds all configured addresses; the error is the message to log before the process exits.
pub fn listen(process: &ProcessOptions, workers: usize, log: &Log) -> Result<Sockets, String> {
    let mut sockets = Sockets::new(workers);
    tcp_sockets(&mut sockets, process, [true; 2], log)?;
    if !process.unixsocket.is_empty() {
        let socket = unix(process).map_err(|error| format!("Failed opening Unix socket: bind: {}", reason(&error)))?;
        for worker in &mut sockets.of_workers {
            let copy = socket.try_clone().map_err(|error| format!("Failed opening Unix socket: {}", reason(&error)))?;
            worker.push(Listening { socket: copy.into(), has_tls: false });
        }
        sockets.has_unix = true;
    }
    if sockets.port.is_none() && sockets.tls_port.is_none() && !sockets.has_unix {
        return Err("Configured to not listen anywhere, exiting.".into());
    }
    Ok(sockets)
}

/// Binds the TCP addresses of a store that is already serving, for each worker. `probes` says
/// for the port without TLS and for the port with TLS whether an address in use is an error. It is not where the store
/// itself may be using the address.
pub fn tcp_again(
    process: &ProcessOptions,
    workers: usize,
    probes: [bool; 2],
    log: &Log,
) -> Result<Vec<Vec<Listening>>, String> {
    let mut sockets = Sockets::new(workers);
    tcp_sockets(&mut sockets, process, probes, log)?;
    Ok(sockets.of_workers)
}

impl Sockets {
    fn new(workers: usize) -> Sockets {
        let of_workers = (0..workers).map(|_| Vec::new()).collect();
        Sockets { of_workers, port: None, tls_port: None, public: None, has_unix: false }
    }
}

fn tcp_sockets(sockets: &mut Sockets, process: &ProcessOptions, probes: [bool; 2], log: &Log) -> Result<(), String> {
    let ports = [(process.port, false, probes[0]), (process.tls.port, true, probes[1])];
    for (port, has_tls, probes) in ports.into_iter().filter(|(port, ..)| *port != 0) {
        for word in &process.bind {
            tcp(sockets, word, process.backlog, &Port { number: port as u16, has_tls, probes }, log)?;
        }
    }
    Ok(())
}

/// A port to bind on every address.
struct Port {
    number: u16,
    has_tls: bool,
    probes: bool,
}

/// Binds the address in one word of `bind`.
fn tcp(sockets: &mut Sockets, word: &[u8], backlog: u32, port: &Port, log: &Log) -> Result<(), String> {
    let Port { number: port, has_tls, probes } = *port;
    let text = String::from_utf8_lossy(word);
    let (may_fail, host) = match text.strip_prefix('-') {
        Some(host) => (true, host),
        None => (false, &*text),
    };
    let bound = resolve(host, port).and_then(|address| {
        let mut local = None;
        for worker in &mut sockets.of_workers {
            let socket = bind(address, !probes || local.is_some())?;
            socket.listen(backlog as i32)?;
            socket.set_reuse_port(true)?;
            local = Some(socket.local_addr()?);
            worker.push(Listening { socket: socket.into(), has_tls });
        }
        Ok((address, local))
    });
    match bound {
        Ok((address, local)) => {
            let bound = local.and_then(|local| local.as_socket()).map(|local| local.port());
            *(if has_tls { &mut sockets.tls_port } else { &mut sockets.port }) = bound;
            if !address.ip().to_canonical().is_loopback() {
                sockets.public = Some(address.ip());
            }
            Ok(())
        }
        // An optional address may be missing on the machine.
        Err(error)
            if may_fail
                && matches!(
                    error.raw_os_error(),
                    Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT)
                ) =>
        {
            Ok(())
        }
        Err(error) => {
            let text = reason(&error);
            // As in Redis, an error of the resolver has no `bind:` before it.
            let text = match text.strip_prefix("failed to lookup address information: ") {
                Some(text) => text.to_owned(),
                None => format!("bind: {text}"),
            };
            let kind = if has_tls { "tls" } else { "tcp" };
            log.say(
                Level::Warning,
                &format!("Warning: Could not create server TCP listening socket {host}:{port}: {text}"),
            );
            Err(format!("Failed listening on port {port} ({kind}), aborting."))
        }
    }
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    match host {
        "*" => return Ok((Ipv4Addr::UNSPECIFIED, port).into()),
        "::*" => return Ok((Ipv6Addr::UNSPECIFIED, port).into()),
        _ => {}
    }
    let mut found = (host, port).to_socket_addrs()?;
    found.next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Creates the unix socket. As in Redis, the file at its path is removed; unlike in Redis, a socket with a listening
/// process is an error, because its clients would silently move to other data.
fn unix(process: &ProcessOptions) -> io::Result<Socket> {
    let path = path_of(&process.unixsocket);
    if sluicegate_transport::is_alive(&path) {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&path)?)?;
    // By default the mode is the one that the usual umask (022) gives, whatever the process's umask is.
    let mode = if process.unixsocketperm == 0 { 0o755 } else { process.unixsocketperm };
    sluicegate_transport::set_socket_mode(&path, mode)?;
    socket.listen(process.backlog as i32)?;
    Ok(socket)
}
