//! Reloads: a process with privileges sends a configuration to the serving process.
//!
//! The serving process may run in a `chroot` as an unprivileged user, and has threads. So another process, the
//! *errand*, does the privileged part: it reads the files, checks them completely (scripts and names included), and
//! connects to the serving process. It sends the contents of the files, and opens the requested sockets,
//! only for addresses of those files. The serving process builds the new configuration in parallel to the
//! old one, switches once no step can fail any more, and then answers; on an error it answers with its message.
//!
//! The errand is a child of the master, or the command itself (`sluicegate reload`, `haproxy -sf PID`). It finds the
//! process by an abstract unix socket whose name contains the service's public process ID. Neither side trusts
//! the name: the listening process must be that process or its child, and the connecting user must be root or the user
//! who started the service.
//!
//! A start with `-sf` or `-st` of a process that runs another program uses the same connection: the new process follows the
//! stores of the old one ([`predecessor`], [`successor`]), takes its sockets, and serves in its place.

pub mod errand;
pub mod instead;
mod lender;
pub mod living;
mod offer;
pub mod peer;
pub mod predecessor;
mod successor;
pub mod taken;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use sluicegate_transport::{receive_descriptors, send_descriptors};

/// The maximum size of one message in bytes; map files may be large.
const MESSAGE_MAX: u32 = 1 << 30;

/// Returns the listening address of the process with this id.
fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("sluicegate-{pid}"))
}

/// Returns what identifies the file of this process's program: its device and its number there; empty if that is not known.
pub fn program() -> String {
    let found = std::fs::metadata("/proc/self/exe");
    found.map_or_else(|_| String::new(), |found| format!("{}:{}", found.dev(), found.ino()))
}

/// Listens for reloads. The name is free unless another process pretends to be this one.
pub fn listen(pid: u32) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address(pid)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The kinds of messages on the connection: a kind, a length, the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// From the reloading process: everything that was read.
    Offer = 1,
    /// From the serving process: a socket is needed.
    Want = 2,
    /// From the reloading process: the socket, as a descriptor attached to the message.
    Socket = 3,
    /// From the reloading process: the reason why the socket could not be created.
    NoSocket = 4,
    /// From the serving process: a message, and its severity.
    Say = 5,
    /// From the serving process: it serves the new configuration.
    Done = 6,
    /// From the serving process: it continues with the old configuration.
    Refused = 7,
    /// From the reloading process: the question how the service was started. The answer is an offer without files.
    Ask = 8,
    /// From a process that replaces this one: the question which stores there are. The answer has their keys' numbers.
    Stores = 9,
    /// From it: a connection is needed for following this store. The answer is a socket, or none.
    Follow = 10,
    /// From either process: a connection is needed for commands of rules and scripts for this store. Likewise.
    Connect = 11,
    /// From the replacing process: the listening sockets are needed. They follow, and then `Done`.
    Listeners = 12,
    /// From it: a sign of life.
    Alive = 13,
    /// From it: it follows all stores, and the old process has to leave them. The answer has their positions.
    Leave = 14,
    /// From it: it has taken the stores over. It waits for `Done` before it serves.
    Taken = 15,
    /// From it: it is about to read the state file, which is written before the answer, `Done`.
    State = 16,
}

impl Kind {
    fn of(byte: u8) -> io::Result<Kind> {
        use Kind::{
            Alive, Ask, Connect, Done, Follow, Leave, Listeners, NoSocket, Offer, Refused, Say, Socket, State, Stores,
            Taken, Want,
        };
        let kinds = [
            Offer, Want, Socket, NoSocket, Say, Done, Refused, Ask, Stores, Follow, Connect, Listeners, Alive, Leave,
            Taken, State,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == byte);
        kind.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no message of a reload"))
    }
}

/// Sends a message, with a descriptor if there is one.
fn send(stream: &mut UnixStream, kind: Kind, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= MESSAGE_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the files are too large"))?;
    let mut head = [0; 5];
    head[0] = kind as u8;
    head[1..].copy_from_slice(&length.to_le_bytes());
    let descriptors: Vec<_> = descriptor.into_iter().map(std::os::fd::AsFd::as_fd).collect();
    // Five bytes go into an empty socket buffer at once, or not at all.
    let sent = send_descriptors(&*stream, &head, &descriptors)?;
    stream.write_all(&head[sent..])?;
    stream.write_all(bytes)
}

/// Returns the next message, and the descriptor that came with it.
fn receive(stream: &mut UnixStream) -> io::Result<(Kind, Vec<u8>, Option<OwnedFd>)> {
    let mut head = [0; 5];
    let (read, descriptors) = receive_descriptors(&*stream, &mut head)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptor = descriptors.into_iter().next();
    stream.read_exact(&mut head[read..])?;
    let length = u32::from_le_bytes(head[1..].try_into().expect("four bytes"));
    if length > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of a reload is too long"));
    }
    let mut bytes = Vec::new();
    stream.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((Kind::of(head[0])?, bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_bytes_and_descriptors() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"inside").unwrap();
        let descriptor = OwnedFd::from(file);
        send(&mut one, Kind::Socket, b"here", Some(&descriptor)).unwrap();
        send(&mut one, Kind::Done, b"", None).unwrap();
        drop(one);
        let (kind, bytes, received) = receive(&mut other).unwrap();
        assert_eq!((kind, &bytes[..]), (Kind::Socket, &b"here"[..]));
        let mut text = String::new();
        let mut file = std::fs::File::from(received.unwrap());
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        let (kind, bytes, received) = receive(&mut other).unwrap();
        assert!(kind == Kind::Done && bytes.is_empty() && received.is_none());
        assert_eq!(receive(&mut other).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for head in [[17, 0, 0, 0, 0], [1, 255, 255, 255, 255], [1, 9, 0, 0, 0]] {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            one.write_all(&head).unwrap();
            drop(one);
            assert!(receive(&mut other).is_err(), "{head:?}");
        }
    }
}
