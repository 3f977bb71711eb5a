//! Creation of listening sockets, and the socket options of a `bind` line.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sluicegate_config::model::{Bind, BindAddress, BindTcp};
use sluicegate_transport::abstract_address;
use socket2::{Domain, SockAddr, SockRef, Socket as RawSocket, Type};

/// The required properties of a listening socket.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The address.
    pub address: &'a BindAddress,
    /// Connections that the kernel may complete ahead of `accept`.
    pub backlog: u32,
    /// `v6only`/`v4v6`; `None` leaves the system's default.
    pub v6only: Option<bool>,
    /// `transparent`: the address may be another machine's.
    pub transparent: bool,
    /// Whether the address must be free: a socket of another process or section there is an error. Later sockets may
    /// share it.
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

/// Sockets made here and now.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        listen_system(wanted, false)
    }
}

/// The same for a process that replaces another one: a unix socket takes the place of one that is alive.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplacingSockets {
    /// Whether the replaced process is alive: an exclusive address is shared with it until it ends.
    pub shares: bool,
}

impl Sockets for ReplacingSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        let exclusive = wanted.exclusive && !self.shares;
        listen_system(Wanted { exclusive, ..wanted }, true)
    }
}

fn listen_system(wanted: Wanted<'_>, replace: bool) -> io::Result<OwnedFd> {
    let backlog = wanted.backlog.min(i32::MAX as u32) as i32;
    let socket = match wanted.address {
        BindAddress::Inet(host, port) => listen_inet(*host, *port, &wanted)?,
        BindAddress::Unix(path) => return listen_unix(path, wanted, backlog, replace),
        BindAddress::Abstract(name) => {
            let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&abstract_address(name)?)?;
            socket
        }
        BindAddress::Fd(number) => inherited(*number)?,
    };
    if !socket.is_listener()? {
        socket.listen(backlog)?;
    }
    if let (true, BindAddress::Inet(..)) = (wanted.exclusive, wanted.address) {
        // The sockets of the other workers and of a successor may follow. The option is set after `listen`, the step that
        // succeeds for one of two concurrent starts only.
        socket.set_reuse_port(true)?;
    }
    // Accepted connections inherit it; sockets other than TCP refuse it.
    let _ = socket.set_tcp_nodelay(true);
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets the options of a `bind` line on its TCP sockets, whoever created them.
pub(super) fn set_up(socket: &OwnedFd, bind: &Bind, backlog: u32) -> io::Result<()> {
    let BindTcp { interface, mss, user_timeout, defer_accept, fast_open, transparent } = &bind.tcp;
    let raw = SockRef::from(socket);
    if let (true, Some(local)) = (*transparent, raw.local_addr()?.as_socket()) {
        make_transparent(&raw, local.is_ipv4())?;
    }
    if let Some(interface) = interface {
        raw.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(mss) = mss {
        raw.set_tcp_mss(*mss)?;
    }
    if user_timeout.is_some() {
        raw.set_tcp_user_timeout(*user_timeout)?;
    }
    if *defer_accept {
        set_tcp(socket, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    if *fast_open {
        set_tcp(socket, libc::TCP_FASTOPEN, backlog.min(i32::MAX as u32) as i32)?;
    }
    Ok(())
}

fn set_tcp(socket: &OwnedFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (fd, from) = (socket.as_raw_fd(), std::ptr::from_ref(&value).cast());
    // SAFETY: the descriptor is the socket's; the kernel reads the integer's size.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, from, size_of_val(&value) as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn listen_inet(host: IpAddr, port: u16, wanted: &Wanted<'_>) -> io::Result<RawSocket> {
    let address = SocketAddr::new(host, port);
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if !wanted.exclusive {
        // A kernel without it can still serve one worker; the second worker's bind then reports the error.
        let _ = socket.set_reuse_port(true);
    }
    if let (true, Some(only)) = (address.is_ipv6(), wanted.v6only) {
        socket.set_only_v6(only)?;
    }
    if wanted.transparent {
        make_transparent(&SockRef::from(&socket), address.is_ipv4())?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// One that is already may stay so without the capability.
fn make_transparent(socket: &SockRef<'_>, v4: bool) -> io::Result<()> {
    match v4 {
        true if !socket.ip_transparent_v4()? => socket.set_ip_transparent_v4(true),
        false if !socket.ip_transparent_v6()? => socket.set_ip_transparent_v6(true),
        _ => Ok(()),
    }
}

/// The mode of a unix socket without `mode`: that of the usual umask, with which its owner alone may connect.
const UNIX_MODE: u32 = 0o755;

/// A unix socket appears under a temporary name with its final owner and mode, then takes the place of the old one in
/// one step, so that no client ever meets a missing or a wrongly owned socket.
fn listen_unix(path: &std::path::Path, wanted: Wanted<'_>, backlog: i32, replace: bool) -> io::Result<OwnedFd> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = std::path::PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if !replace && path.exists() && !is_stale(path) {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&temporary)?)?;
    let set_up = || -> io::Result<()> {
        set_socket_mode(&temporary, wanted.mode.unwrap_or(UNIX_MODE))?;
        let user = wanted.user.map(user_id).transpose()?;
        let group = wanted.group.map(group_id).transpose()?;
        if user.is_some() || group.is_some() {
            std::os::unix::fs::lchown(&temporary, user, group)?;
        }
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = set_up() {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(socket.into())
}

/// Sets the mode of a unix socket's file, whatever the umask. A link in its place is not followed.
pub fn set_socket_mode(path: &std::path::Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let permissions = std::fs::Permissions::from_mode(mode);
    // A descriptor of this kind takes no `fchmod`; its name in /proc does.
    let named = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    match std::fs::set_permissions(named, permissions.clone()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::set_permissions(path, permissions),
        set => set,
    }
}

/// Removes the file of a unix socket without a listening process; a socket in use, or another kind of file, stays.
pub fn remove_stale(path: &std::path::Path) {
    if is_stale(path) {
        // Without permission it stays, for the next process to replace.
        let _ = std::fs::remove_file(path);
    }
}

/// Returns whether a process listens on the unix socket at this path.
pub fn is_alive(path: &std::path::Path) -> bool {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && !is_stale(path)
}

/// Returns whether a socket file is stale: a connection is refused; other kinds of files are never stale.
fn is_stale(path: &std::path::Path) -> bool {
    let Ok(address) = SockAddr::unix(path) else { return false };
    let Ok(probe) = RawSocket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    if probe.set_nonblocking(true).is_err() {
        return false;
    }
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && matches!(probe.connect(&address), Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED))
}

fn inherited(number: i32) -> io::Result<RawSocket> {
    // SAFETY: `fcntl` with a descriptor that isn't open fails with EBADF and touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was made just now, so it has no other owner.
    Ok(RawSocket::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

/// Returns the number of a user given by name or number. Reads the system's files, so it is called before threads
/// exist.
pub fn user_id(name: &str) -> io::Result<u32> {
    look_up(name, "user", |name| {
        // SAFETY: `name` is a C string; the result is read at once, before threads exist that could look up another.
        unsafe { libc::getpwnam(name.as_ptr()).as_ref().map(|entry| entry.pw_uid) }
    })
}

/// Returns the number of a group, as [`user_id`].
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
            v6only: None,
            transparent: false,
            exclusive: false,
            mode: None,
            user: None,
            group: None,
        }
    }
}

#[cfg(test)]
mod tests {
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
