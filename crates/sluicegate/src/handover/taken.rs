//! `-x SOCKET`: takes over the listening sockets of the process that this one replaces, which is HAProxy or another
//! version of this program.
//!
//! A connection in a socket's accept queue is lost when the socket is closed; an inherited socket stays open. Each
//! address uses the inherited sockets bound to it. If there are fewer than one for each worker, the missing ones are
//! opened. Inherited sockets that no address of the files uses are closed.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sluicegate_config::model::{AbstractName, BindAddress};
use sluicegate_proxy::cli::expose;
use sluicegate_proxy::listener::{Sockets, Wanted};
use sluicegate_transport::abstract_address;
use socket2::{SockAddr, SockRef, Type};

use crate::arguments::Service;
use crate::report::Report;

/// The sockets that were taken over, if any.
#[derive(Debug, Default)]
pub struct Taken(Vec<OwnedFd>);

impl Taken {
    /// Requests the listening sockets from the process given by `-x`. If this fails, the worker of a master process
    /// starts without them after a warning, as in HAProxy.
    pub fn by(service: &Service, has_master: bool, report: Report) -> Result<Taken, String> {
        let Some(path) = service.take_over.as_deref().filter(|path| *path != Path::new("/dev/null")) else {
            return Ok(Taken::default());
        };
        match expose::take(path) {
            Ok(sockets) => Ok(Taken(sockets)),
            Err(error) => {
                let text = format!("Failed to get the sockets from the old process! (-x {}: {error})", path.display());
                if !has_master {
                    return Err(text);
                }
                report.warning(&text);
                Ok(Taken::default())
            }
        }
    }

    /// Adds sockets that came from the process to be replaced, if none were requested otherwise.
    pub fn or_sockets(self, sockets: impl FnOnce() -> Result<Vec<OwnedFd>, String>) -> Result<Taken, String> {
        if self.0.is_empty() { sockets().map(Taken) } else { Ok(self) }
    }

    /// Returns a source of sockets for one attempt to bind all addresses. Sockets that were not inherited are created
    /// by `maker`.
    pub fn or<'a>(&'a self, maker: &'a dyn Sockets) -> impl Sockets + 'a {
        Attempt { free: RefCell::new(self.0.iter().collect()), maker }
    }
}

struct Attempt<'a> {
    free: RefCell<Vec<&'a OwnedFd>>,
    maker: &'a dyn Sockets,
}

impl Sockets for Attempt<'_> {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        let mut free = self.free.borrow_mut();
        let Some(at) = free.iter().position(|socket| is_for(socket, wanted)) else {
            return self.maker.listen(wanted);
        };
        let socket = free.remove(at).try_clone()?;
        let raw = SockRef::from(&socket);
        raw.listen(wanted.backlog.min(i32::MAX as u32) as i32)?;
        // Accepted connections inherit TCP_NODELAY. Sockets other than TCP reject the option, so the error is ignored.
        let _ = raw.set_tcp_nodelay(true);
        raw.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Returns whether a socket matches the wanted address.
fn is_for(socket: &OwnedFd, wanted: Wanted<'_>) -> bool {
    let raw = SockRef::from(socket);
    let Ok(local) = raw.local_addr() else { return false };
    if !matches!(raw.r#type(), Ok(Type::STREAM)) {
        return false;
    }
    match wanted.address {
        BindAddress::Inet(host, port) => {
            let same = local.as_socket().is_some_and(|local| (local.ip(), local.port()) == (*host, *port));
            same && (!host.is_ipv6() || wanted.v6only.is_none_or(|only| raw.only_v6().is_ok_and(|is| is == only)))
        }
        BindAddress::Unix(path) => is_at(&local, path),
        BindAddress::Abstract(AbstractName { name, is_exact }) => {
            abstract_address(name, *is_exact).is_ok_and(|address| address == local)
        }
        BindAddress::Fd(_) | BindAddress::Sockpair(_) | BindAddress::Reverse(_) => false,
    }
}

/// Returns whether a socket is bound to `path`. The kernel reports the name under which the socket was bound before it
/// was renamed: `PATH.NUMBER.tmp`, both in HAProxy and here.
fn is_at(local: &SockAddr, path: &Path) -> bool {
    let Some(known) = local.as_pathname() else { return false };
    let behind = known.as_os_str().as_bytes().strip_prefix(path.as_os_str().as_bytes());
    behind.is_some_and(|behind| {
        let number = behind.strip_prefix(b".").and_then(|behind| behind.strip_suffix(b".tmp"));
        behind.is_empty() || number.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted_at(address: &BindAddress) -> Wanted<'_> {
        let (backlog, v6only, transparent, exclusive, mode, user, group) = (1, None, false, false, None, None, None);
        let (datagram, multipath, namespace, shared) = (false, false, None, true);
        Wanted {
            address,
            backlog,
            datagram,
            v6only,
            transparent,
            multipath,
            namespace,
            shared,
            exclusive,
            mode,
            user,
            group,
        }
    }

    #[test]
    fn an_abstract_socket_is_known_by_its_whole_address() {
        let name = |is_exact| AbstractName { name: format!("sg-taken-{}", std::process::id()), is_exact };
        for is_exact in [false, true] {
            let socket = socket2::Socket::new(socket2::Domain::UNIX, Type::STREAM, None).unwrap();
            socket.bind(&abstract_address(&name(is_exact).name, is_exact).unwrap()).unwrap();
            let socket = OwnedFd::from(socket);
            for wanted in [false, true] {
                let address = BindAddress::Abstract(name(wanted));
                assert_eq!(is_for(&socket, wanted_at(&address)), wanted == is_exact);
            }
        }
    }

    #[test]
    fn a_unix_socket_is_known_by_its_name_before() {
        let is_at = |known: &str, path: &str| is_at(&SockAddr::unix(known).unwrap(), Path::new(path));
        assert!(is_at("/run/s", "/run/s") && is_at("/run/s.17.tmp", "/run/s"));
        for known in ["/run/s.tmp", "/run/s..tmp", "/run/s.x.tmp", "/run/sx", "/run/s.1.tmpx"] {
            assert!(!is_at(known, "/run/s"), "{known}");
        }
    }
}
