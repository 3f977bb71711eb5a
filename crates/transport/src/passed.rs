//! Connections that are passed as descriptors over a unix socket (`sockpair@`), in HAProxy's form: two bytes without a
//! meaning and one descriptor a connection.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use socket2::{SockRef, Type};

use crate::Socket;
use crate::descriptors::{inherited, try_send_descriptors};

/// The bytes that come with a descriptor.
const BYTES: [u8; 2] = [0; 2];

/// Duplicates the inherited descriptor over which connections are passed: a connected unix stream socket.
///
/// # Errors
/// `EBADF` if none was inherited under that number, `ENOTSOCK` if it is no socket, [`io::ErrorKind::InvalidInput`] if it is
/// another socket.
pub fn carrier(number: RawFd) -> io::Result<OwnedFd> {
    let copy = inherited(number)?;
    // A descriptor that this process has opened itself is not the one that the file means; an `exec` closes it.
    // SAFETY: `fcntl` with this command reads the flags of a descriptor and touches no memory.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    if !carries(&copy)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no connected unix stream socket"));
    }
    Ok(copy)
}

/// Returns whether a socket is a unix stream that does not listen.
fn carries(socket: &OwnedFd) -> io::Result<bool> {
    let raw = SockRef::from(socket);
    Ok(raw.local_addr()?.is_unix() && raw.r#type()? == Type::STREAM && !raw.is_listener()?)
}

/// Returns whether connections are passed over a socket that is used like a listening one.
pub fn is_carrier(socket: &OwnedFd) -> bool {
    carries(socket).is_ok_and(|carries| carries)
}

/// Receives a connection; never waits, whatever the mode of the socket. Of several descriptors in a message only the first
/// is taken, and the others are closed.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] once the other end is closed, `EINTR` for a message without a descriptor, `EMFILE` if
/// the descriptor was lost because this process has too many; otherwise the kernel's.
pub fn receive_connection(carrier: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = BYTES;
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(carrier, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut first = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|descriptor| _ = first.get_or_insert(descriptor));
        }
    }
    match first {
        Some(connection) => {
            SockRef::from(&connection).set_nonblocking(true)?;
            Ok(connection)
        }
        None if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        None if received.flags.contains(ReturnFlags::CTRUNC) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        None => Err(io::Error::from_raw_os_error(libc::EINTR)),
    }
}

/// Connects over the inherited descriptor with this number: makes a pair of sockets, passes one and returns the other.
///
/// # Errors
/// The kernel's: `EAGAIN` if the receiver does not take those that were passed before, `EPIPE` if it is gone.
pub fn connect_over(number: RawFd) -> io::Result<Socket> {
    let carrier = inherited(number)?;
    let (near, far) = UnixStream::pair()?;
    try_send_descriptors(&carrier, &BYTES, &[far.as_fd()])?;
    Socket::of_unix(near)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;

    use rustix::io::FdFlags;

    use super::*;
    use crate::send_descriptors;

    /// Lets a descriptor look as if it was inherited.
    fn as_inherited(descriptor: impl AsFd) {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_passed() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let socket = connect_over(sender.as_raw_fd()).unwrap();
        let mut passed = UnixStream::from(receive_connection(&receiver).unwrap());
        passed.write_all(b"hi").unwrap();
        socket.readable().await.unwrap();
        let mut bytes = [0; 3];
        assert_eq!(socket.try_read(&mut bytes).unwrap(), 2);
        assert_eq!(receive_connection(&receiver).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(socket);
        assert_eq!(passed.read(&mut bytes).unwrap(), 0);
        drop(sender);
        assert_eq!(receive_connection(&receiver).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn messages_with_less_and_more_than_a_descriptor() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        send_descriptors(&sender, b"nothing", &[]).unwrap();
        for _ in 0..4 {
            assert_eq!(receive_connection(&receiver).unwrap_err().raw_os_error(), Some(libc::EINTR));
        }
        let pairs: Vec<_> = (0..9).map(|_| UnixStream::pair().unwrap()).collect();
        let passed: Vec<_> = pairs.iter().map(|(_, far)| far.as_fd()).collect();
        send_descriptors(&sender, b"x", &passed).unwrap();
        let mut first = UnixStream::from(receive_connection(&receiver).unwrap());
        let mut nears: Vec<_> = pairs.into_iter().map(|(near, _)| near).collect();
        first.write_all(b"x").unwrap();
        assert_eq!(nears[0].read(&mut [0; 2]).unwrap(), 1);
        for near in &mut nears[1..] {
            assert_eq!(near.read(&mut [0; 2]).unwrap(), 0, "closed");
        }
    }

    #[tokio::test]
    async fn a_receiver_that_takes_nothing_and_one_that_is_gone() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match connect_over(sender.as_raw_fd()) {
                Ok(socket) => held.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "after {}", held.len());
        drop(receiver);
        assert_eq!(connect_over(sender.as_raw_fd()).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn only_an_inherited_connected_unix_stream_carries() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert_eq!(carrier(stream.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::EBADF), "its own");
        as_inherited(&stream);
        carrier(stream.as_raw_fd()).unwrap();
        assert_eq!(carrier(999_999).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = std::fs::File::open("/dev/null").unwrap();
        as_inherited(&file);
        assert_eq!(carrier(file.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        as_inherited(&tcp);
        let folder = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(folder.path().join("s")).unwrap();
        as_inherited(&unix);
        let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        as_inherited(&datagrams);
        for other in [tcp.as_raw_fd(), unix.as_raw_fd(), datagrams.as_raw_fd()] {
            assert_eq!(carrier(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
