//! Descriptors passed to another process over a unix socket (`SCM_RIGHTS`), and those that were inherited.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The maximum number of descriptors of one message: Linux's limit minus one, as in HAProxy.
pub const DESCRIPTORS_MAX: usize = 252;

/// Sends bytes, with descriptors that the receiver gets with the first of them; returns how many bytes were sent.
///
/// # Errors
/// The kernel's; also where the descriptors are more than [`DESCRIPTORS_MAX`].
pub fn send_descriptors(stream: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(stream, bytes, descriptors, SendFlags::NOSIGNAL)
}

/// Like [`send_descriptors`], but never waits, whatever the mode of the socket.
///
/// # Errors
/// As [`send_descriptors`]; `WouldBlock` if the socket has no room.
pub fn try_send_descriptors(stream: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(stream, bytes, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send(stream: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let has_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(has_room);
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives bytes and the descriptors that came with them, which are closed on `exec`; 0 bytes are the end.
///
/// # Errors
/// The kernel's.
pub fn receive_descriptors(stream: impl AsFd, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((received.bytes, descriptors))
}

/// Duplicates an inherited descriptor: the copy is closed on `exec`, the inherited one stays open.
///
/// # Errors
/// `EBADF` if none is open under that number.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `fcntl` with a descriptor that isn't open fails with EBADF and touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_come_with_the_first_byte_of_their_message() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (mut end, passed) = UnixStream::pair().unwrap();
        assert_eq!(send_descriptors(&sender, b"ab", &[passed.as_fd(), passed.as_fd()]).unwrap(), 2);
        drop(passed);
        assert_eq!(try_send_descriptors(&sender, b"c", &[]).unwrap(), 1);
        let mut byte = [0];
        let (count, mut descriptors) = receive_descriptors(&receiver, &mut byte).unwrap();
        assert_eq!((count, &byte, descriptors.len()), (1, b"a", 2));
        UnixStream::from(descriptors.pop().unwrap()).write_all(b"hi").unwrap();
        drop(descriptors);
        let mut text = String::new();
        end.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi");
        let mut rest = [0; 4];
        let (count, descriptors) = receive_descriptors(&receiver, &mut rest).unwrap();
        assert_eq!((&rest[..count], descriptors.len()), (&b"bc"[..], 0));
        drop(sender);
        assert_eq!(receive_descriptors(&receiver, &mut rest).unwrap().0, 0, "the end");
    }

    #[test]
    fn more_descriptors_than_a_message_takes_are_an_error() {
        let (sender, _receiver) = UnixStream::pair().unwrap();
        let many = vec![sender.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send_descriptors(&sender, b"a", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn an_inherited_descriptor_is_duplicated() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let copy = inherited(far.as_raw_fd()).unwrap();
        drop(far);
        UnixStream::from(copy).write_all(b"x").unwrap();
        assert_eq!(near.read(&mut [0; 2]).unwrap(), 1);
        assert_eq!(inherited(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
