//! Network namespaces in which sockets are made (`namespace`).
//!
//! A thread enters the namespace to make a socket, which stays in it, and returns at once. Both need `CAP_SYS_ADMIN`. The
//! files are opened while they can be found: before the process changes its root.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;

use socket2::{Domain, Socket, Type};

/// Where `ip netns add` keeps namespaces by name.
const DIRECTORY: &str = "/var/run/netns";

/// The namespace of the process, to return to.
static OWN: OnceLock<File> = OnceLock::new();

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Opens a namespace by its name.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a name with a slash; otherwise the kernel's.
    pub fn open(name: &str) -> io::Result<Namespace> {
        if name.contains('/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = File::open(Path::new(DIRECTORY).join(name))?;
        if OWN.get().is_none() {
            let _ = OWN.set(File::open("/proc/self/ns/net")?);
        }
        Ok(Namespace(file))
    }

    /// Calls `make` in the namespace.
    ///
    /// # Errors
    /// The kernel's, or those of `make`.
    pub fn within<T>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(own) = OWN.get() else { return Err(io::ErrorKind::NotFound.into()) };
        enter(&self.0)?;
        let made = make();
        // A thread that entered has the right to leave; without it, its sockets would be made elsewhere.
        enter(own)?;
        made
    }

    /// Returns a stream socket of the namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn socket(&self, domain: Domain) -> io::Result<Socket> {
        self.within(|| Socket::new(domain, Type::STREAM, None))
    }
}

/// Moves this thread to a namespace.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: takes two numbers, of which the first is an open descriptor; it changes this thread alone.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path_and_an_unknown_one_is_not_found() {
        assert_eq!(Namespace::open("../x").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Namespace::open("no-such-namespace").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
