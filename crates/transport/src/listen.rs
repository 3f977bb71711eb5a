//! Listening sockets: how they are bound, and the files of unix sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// Options of a TCP socket that are set before it is bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpOptions {
    /// Whether an IPv6 address excludes IPv4; `None` leaves the system's default.
    pub v6only: Option<bool>,
    /// Whether the address may belong to another machine.
    pub is_transparent: bool,
    /// Whether connections may be of MPTCP.
    pub is_multipath: bool,
    /// Whether other sockets may be bound to the address and share its connections.
    pub is_shared: bool,
}

/// Sets a whole number among the options of TCP.
///
/// # Errors
/// The kernel's.
pub fn set_tcp_option(socket: impl AsFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (fd, from) = (socket.as_fd().as_raw_fd(), std::ptr::from_ref(&value).cast());
    // SAFETY: the descriptor is the socket's; the kernel reads the integer's size.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, from, size_of_val(&value) as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mode and owner of a unix socket's file.
#[derive(Clone, Copy, Debug)]
pub struct UnixFile {
    /// Permissions.
    pub mode: u32,
    /// The id of the user; `None`: that of the process.
    pub user: Option<u32>,
    /// The id of the group; `None`: that of the process.
    pub group: Option<u32>,
}

/// Binds a TCP socket, which does not listen yet. The address may be bound again immediately after an earlier socket
/// was closed.
///
/// # Errors
/// The kernel's.
pub fn bind_tcp(address: SocketAddr, options: TcpOptions) -> io::Result<OwnedFd> {
    let protocol = options.is_multipath.then_some(Protocol::MPTCP);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, protocol)?;
    bind(&socket, address, options)?;
    Ok(socket.into())
}

fn bind(socket: &Socket, address: SocketAddr, options: TcpOptions) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if options.is_shared {
        // A kernel without it lets one socket bind; the bind of the second reports the error.
        let _ = socket.set_reuse_port(true);
    }
    if let (true, Some(only)) = (address.is_ipv6(), options.v6only) {
        socket.set_only_v6(only)?;
    }
    if options.is_transparent {
        make_transparent(socket, address.is_ipv4())?;
    }
    socket.bind(&address.into())
}

/// Binds a UDP socket, which may share its address with the sockets of other workers.
///
/// # Errors
/// The kernel's.
pub fn bind_udp(address: SocketAddr, options: TcpOptions) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    bind(&socket, address, options)?;
    Ok(socket.into())
}

/// Allows an address of another machine. A socket that has the option already keeps it without the capability.
///
/// # Errors
/// The kernel's.
pub fn make_transparent(socket: impl AsFd, v4: bool) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    match v4 {
        true if !socket.ip_transparent_v4()? => socket.set_ip_transparent_v4(true),
        false if !socket.ip_transparent_v6()? => socket.set_ip_transparent_v6(true),
        _ => Ok(()),
    }
}

/// Listens on a unix socket. The file is created under a temporary name with its final owner and mode, and then
/// replaces the old one atomically, so that no client ever finds a missing socket or one with a wrong owner.
///
/// # Errors
/// `EADDRINUSE` if a process listens at the path and must not be replaced; otherwise the kernel's errors.
pub fn listen_unix(path: &Path, file: UnixFile, backlog: i32, replaces: bool) -> io::Result<OwnedFd> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if !replaces && path.exists() && !is_stale(path) {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&temporary)?)?;
    let set_up = || -> io::Result<()> {
        set_socket_mode(&temporary, file.mode)?;
        if file.user.is_some() || file.group.is_some() {
            std::os::unix::fs::lchown(&temporary, file.user, file.group)?;
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
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
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
pub fn remove_stale(path: &Path) {
    if is_stale(path) {
        // Without permission it stays, for the next process to replace.
        let _ = std::fs::remove_file(path);
    }
}

/// Returns whether a process listens on the unix socket at this path.
pub fn is_alive(path: &Path) -> bool {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && !is_stale(path)
}

/// Returns whether a socket file is stale, because it refuses connections; files of other kinds are never stale.
fn is_stale(path: &Path) -> bool {
    let Ok(address) = SockAddr::unix(path) else { return false };
    let Ok(probe) = Socket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    if probe.set_nonblocking(true).is_err() {
        return false;
    }
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && matches!(probe.connect(&address), Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED))
}
