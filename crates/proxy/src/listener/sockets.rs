//! Creation of listening sockets, and the socket options of a `bind` line.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sluicegate_config::model::{AbstractName, Bind, BindAddress, BindTcp};
use sluicegate_transport::{self as transport, Namespace, TcpOptions, UnixFile, abstract_address};
use socket2::{Domain, SockRef, Socket as RawSocket, Type};

/// The required properties of a listening socket.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The address.
    pub address: &'a BindAddress,
    /// The number of connections that the kernel may complete ahead of `accept`.
    pub backlog: u32,
    /// Whether it receives datagrams (`dgram-bind`).
    pub datagram: bool,
    /// `v6only`/`v4v6`; `None` leaves the system's default.
    pub v6only: Option<bool>,
    /// `transparent`: the address may belong to another machine.
    pub transparent: bool,
    /// `mptcp@`: the socket is one of MPTCP.
    pub multipath: bool,
    /// `namespace`: the network namespace in which the socket listens.
    pub namespace: Option<&'a str>,
    /// Whether other sockets may be bound to the address (no `noreuseport`).
    pub shared: bool,
    /// Whether the address must be free: if a socket of another process or section is bound to it, that is an error.
    /// Later sockets may share it.
    pub exclusive: bool,
    /// Mode of a unix socket.
    pub mode: Option<u32>,
    /// Owner of a unix socket: a name or a number.
    pub user: Option<&'a str>,
    /// Group of a unix socket: a name or a number.
    pub group: Option<&'a str>,
}

/// The creator of listening sockets: this process, or a privileged parent on its behalf.
pub trait Sockets {
    /// Returns a listening, non-blocking, close-on-exec socket.
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd>;
}

/// Creates sockets directly in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        listen_system(wanted, false)
    }
}

/// Like [`SystemSockets`], for a process that replaces another one: a new unix socket replaces one that is still
/// listening.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplacingSockets {
    /// Whether the replaced process is running: an exclusive address is shared with it until it ends.
    pub shares: bool,
}

impl Sockets for ReplacingSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        let exclusive = wanted.exclusive && !self.shares;
        listen_system(Wanted { exclusive, ..wanted }, true)
    }
}

/// The mode of a unix socket without `mode`: that of the usual umask, under which only its owner may connect.
const UNIX_MODE: u32 = 0o755;

fn listen_system(wanted: Wanted<'_>, replace: bool) -> io::Result<OwnedFd> {
    let backlog = wanted.backlog.min(i32::MAX as u32) as i32;
    let socket = match wanted.address {
        BindAddress::Inet(host, port) => {
            let options = TcpOptions {
                v6only: wanted.v6only,
                is_transparent: wanted.transparent,
                is_multipath: wanted.multipath,
                // A kernel without it still serves one worker; the second worker's bind then says what is wrong.
                is_shared: wanted.shared && !wanted.exclusive,
            };
            let address = SocketAddr::new(*host, *port);
            let bind = || match wanted.datagram {
                true => transport::bind_udp(address, options),
                false => transport::bind_tcp(address, options),
            };
            RawSocket::from(match wanted.namespace {
                Some(name) => Namespace::open(name)?.within(bind)?,
                None => bind()?,
            })
        }
        BindAddress::Unix(path) => {
            let file = UnixFile {
                mode: wanted.mode.unwrap_or(UNIX_MODE),
                user: wanted.user.map(user_id).transpose()?,
                group: wanted.group.map(group_id).transpose()?,
            };
            return transport::listen_unix(path, file, backlog, replace);
        }
        BindAddress::Abstract(AbstractName { name, is_exact }) => {
            let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&abstract_address(name, *is_exact)?)?;
            socket
        }
        BindAddress::Fd(number) => RawSocket::from(transport::inherited(*number)?),
        BindAddress::Sockpair(number) => return transport::carrier(*number),
        // Nothing listens there.
        BindAddress::Reverse(_) => return Err(io::ErrorKind::Unsupported.into()),
    };
    if wanted.datagram {
        if socket.r#type()? != Type::DGRAM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no datagram socket"));
        }
        socket.set_nonblocking(true)?;
        return Ok(socket.into());
    }
    if !socket.is_listener()? {
        socket.listen(backlog)?;
    }
    if let (true, true, BindAddress::Inet(..)) = (wanted.exclusive, wanted.shared, wanted.address) {
        // The sockets of the other workers and of a successor may follow. The option is set after `listen`, which
        // succeeds for only one of two concurrent starts.
        socket.set_reuse_port(true)?;
    }
    // Accepted connections inherit it; sockets other than TCP refuse it.
    let _ = socket.set_tcp_nodelay(true);
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets the options of a `bind` line on its TCP sockets, whoever created them.
pub(super) fn set_up(socket: &OwnedFd, bind: &Bind, backlog: u32) -> io::Result<()> {
    let BindTcp { interface, mss, user_timeout, defer_accept, fast_open, transparent, .. } = &bind.tcp;
    let raw = SockRef::from(socket);
    if let (true, Some(local)) = (*transparent, raw.local_addr()?.as_socket()) {
        transport::make_transparent(socket, local.is_ipv4())?;
    }
    if let Some(interface) = interface {
        raw.bind_device(Some(interface.as_bytes()))?;
    }
    if bind.datagram {
        return Ok(());
    }
    if let Some(mss) = mss {
        raw.set_tcp_mss(*mss)?;
    }
    if user_timeout.is_some() {
        raw.set_tcp_user_timeout(*user_timeout)?;
    }
    if *defer_accept {
        transport::set_tcp_option(socket, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    if *fast_open {
        transport::set_tcp_option(socket, libc::TCP_FASTOPEN, backlog.min(i32::MAX as u32) as i32)?;
    }
    Ok(())
}

/// Returns the id of a user given by name or number. Reads the system's files, so it must be called before threads
/// exist.
pub fn user_id(name: &str) -> io::Result<u32> {
    look_up(name, "user", |name| {
        // SAFETY: `name` is a C string; the result is read at once, before threads exist that could look up another.
        unsafe { libc::getpwnam(name.as_ptr()).as_ref().map(|entry| entry.pw_uid) }
    })
}

/// Returns the id of a group, like [`user_id`].
pub fn group_id(name: &str) -> io::Result<u32> {
    look_up(name, "group", |name| {
        // SAFETY: `name` is a C string; the result is read at once, before threads exist that could look up another.
        unsafe { libc::getgrnam(name.as_ptr()).as_ref().map(|entry| entry.gr_gid) }
    })
}

fn look_up(name: &str, what: &str, find: impl Fn(&std::ffi::CStr) -> Option<u32>) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = std::ffi::CString::new(name).ok().and_then(|name| find(&name));
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {what} '{name}'")))
}

#[cfg(test)]
impl<'a> Wanted<'a> {
    /// Returns a socket at an address, without options.
    pub(super) fn plain(address: &'a BindAddress) -> Wanted<'a> {
        Wanted {
            address,
            backlog: 16,
            datagram: false,
            v6only: None,
            transparent: false,
            multipath: false,
            namespace: None,
            shared: true,
            exclusive: false,
            mode: None,
            user: None,
            group: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_unix_socket_gets_its_mode_replaces_a_stale_one_and_spares_a_living_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let address = BindAddress::Unix(path.clone());
        let first = SystemSockets.listen(Wanted { mode: Some(0o600), ..Wanted::plain(&address) }).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let error = SystemSockets.listen(Wanted::plain(&address)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
        drop(first);
        SystemSockets.listen(Wanted::plain(&address)).unwrap();
    }

    #[test]
    fn an_exclusive_socket_is_the_first_and_others_may_follow() {
        let any = BindAddress::Inet("127.0.0.1".parse().unwrap(), 0);
        fn exclusive(address: &BindAddress) -> io::Result<OwnedFd> {
            SystemSockets.listen(Wanted { exclusive: true, ..Wanted::plain(address) })
        }
        let first = exclusive(&any).unwrap();
        let port = SockRef::from(&first).local_addr().unwrap().as_socket().unwrap().port();
        for host in ["127.0.0.1", "0.0.0.0"] {
            let address = BindAddress::Inet(host.parse().unwrap(), port);
            assert_eq!(exclusive(&address).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE), "{host}");
        }
        let address = BindAddress::Inet("127.0.0.1".parse().unwrap(), port);
        let second = SystemSockets.listen(Wanted::plain(&address)).unwrap();
        drop(first);
        // A socket that shares the address stands in the way, too; a process that replaces another one takes it.
        assert_eq!(exclusive(&address).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        let replacing = ReplacingSockets { shares: true };
        replacing.listen(Wanted { exclusive: true, ..Wanted::plain(&address) }).unwrap();
        drop(second);
    }

    #[test]
    fn an_inherited_socket_may_listen_already() {
        let parent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = SystemSockets.listen(Wanted::plain(&BindAddress::Fd(parent.as_raw_fd()))).unwrap();
        assert_eq!(SockRef::from(&fd).local_addr().unwrap().as_socket(), parent.local_addr().ok());
        assert!(SystemSockets.listen(Wanted::plain(&BindAddress::Fd(999_999))).is_err());
    }
}
