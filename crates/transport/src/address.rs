//! Addresses of unix sockets.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use socket2::{Domain, SockAddr, Type};

use crate::Socket;

/// The address of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixAddress<'a> {
    /// A file.
    Path(&'a Path),
    /// A name in the abstract namespace, and whether the address ends with it.
    Abstract(&'a str, bool),
}

impl UnixAddress<'_> {
    /// Connects; the kernel completes or refuses this immediately.
    pub fn connect(self) -> io::Result<Socket> {
        let address = match self {
            UnixAddress::Path(path) => SockAddr::unix(path)?,
            UnixAddress::Abstract(name, is_exact) => abstract_address(name, is_exact)?,
        };
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&address)?;
        Socket::from_fd(OwnedFd::from(socket), false)
    }
}

/// Returns the address of an abstract unix socket. As in HAProxy, zeros fill the name up to the length of a path
/// (`abns@`), unless the address ends with the name (`abnsz@`): both sides must agree on it.
///
/// # Errors
/// [`io::ErrorKind::InvalidFilename`] for a name that is too long.
pub fn abstract_address(name: &str, is_exact: bool) -> io::Result<SockAddr> {
    let mut path = [0; 108];
    let room = path[1..].get_mut(..name.len()).ok_or(io::ErrorKind::InvalidFilename)?;
    room.copy_from_slice(name.as_bytes());
    let length = if is_exact { 1 + name.len() } else { path.len() };
    SockAddr::unix(OsStr::from_bytes(&path[..length]))
}
