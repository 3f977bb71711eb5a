//! The service manager's notification socket (sd_notify(3)).
//!
//! One datagram per event, beginning with the state that the manager waits for: readers that expect `READY=1` at the
//! start of the first datagram, such as VTest, find it there.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket that `NOTIFY_SOCKET` names.
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notifier {
    /// Returns the manager's socket; `None` without a manager.
    pub fn from_environment() -> io::Result<Option<Notifier>> {
        std::env::var_os("NOTIFY_SOCKET").map(Notifier::new).transpose()
    }

    fn new(name: OsString) -> io::Result<Notifier> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold the master up.
        socket.set_nonblocking(true)?;
        Ok(Notifier { socket, address })
    }

    /// Sends one datagram. A datagram that cannot be delivered is lost; the manager then relies on its own timeout.
    pub fn send(&self, state: &str) {
        let _ = self.socket.send_to_addr(state.as_bytes(), &self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram_to_a_path_or_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("sluicegate-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let abstractly = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        for (manager, name) in [(at_path, path.into_os_string()), (abstractly, OsString::from(format!("@{name}")))] {
            Notifier::new(name).unwrap().send("READY=1\nSTATUS=Ready.\n");
            let mut buffer = [0; 64];
            let count = manager.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], b"READY=1\nSTATUS=Ready.\n");
        }
    }
}
