//! Clients of the master's sockets on their way to the worker process: a byte for what they may do, and a descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use sluicegate_config::model::StatsLevel;

/// Sends a client.
pub fn send(worker: &UnixStream, client: &UnixStream, level: StatsLevel) -> io::Result<()> {
    let byte = match level {
        StatsLevel::User => b'u',
        StatsLevel::Operator => b'o',
        StatsLevel::Admin => b'a',
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [client.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(worker, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The next client; `None` once the master has gone.
pub fn receive(master: &UnixStream) -> io::Result<Option<(UnixStream, StatsLevel)>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(master, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let client = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let level = match byte {
        [b'u'] => StatsLevel::User,
        [b'o'] => StatsLevel::Operator,
        _ => StatsLevel::Admin,
    };
    Ok(client.filter(|_| read == 1).map(|client| (UnixStream::from(client), level)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn clients_come_with_their_level_and_the_end_is_told() {
        let (master, worker) = UnixStream::pair().unwrap();
        for level in [StatsLevel::User, StatsLevel::Operator, StatsLevel::Admin] {
            let (mut client, given) = UnixStream::pair().unwrap();
            send(&master, &given, level).unwrap();
            drop(given);
            let (mut received, known) = receive(&worker).unwrap().unwrap();
            assert_eq!(known, level);
            received.write_all(b"hi").unwrap();
            drop(received);
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hi");
        }
        drop(master);
        assert!(receive(&worker).unwrap().is_none());
    }
}
