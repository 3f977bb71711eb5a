//! The transfer of clients from the master's sockets to the worker process: a byte for the access level, and a
//! descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use sluicegate_config::model::StatsLevel;
use sluicegate_proxy::cli::protocol::Rights;

/// Bits of the byte that also contains the level.
const EXPERT: u8 = 4;
const EXPERIMENTAL: u8 = 8;

/// Sends a client.
pub fn send(worker: &UnixStream, client: &UnixStream, rights: Rights) -> io::Result<()> {
    let level = match rights.level {
        StatsLevel::User => 0,
        StatsLevel::Operator => 1,
        StatsLevel::Admin => 2,
    };
    let byte = level | if rights.expert { EXPERT } else { 0 } | if rights.experimental { EXPERIMENTAL } else { 0 };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [client.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(worker, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Returns the next client; `None` once the master has ended.
pub fn receive(master: &UnixStream) -> io::Result<Option<(UnixStream, Rights)>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(master, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let client = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let [byte] = byte;
    let level = match byte & 3 {
        0 => StatsLevel::User,
        1 => StatsLevel::Operator,
        _ => StatsLevel::Admin,
    };
    let rights = Rights { level, expert: byte & EXPERT != 0, experimental: byte & EXPERIMENTAL != 0 };
    Ok(client.filter(|_| read == 1).map(|client| (UnixStream::from(client), rights)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn clients_come_with_their_rights_and_the_end_is_told() {
        let (master, worker) = UnixStream::pair().unwrap();
        for (level, expert, experimental) in
            [(StatsLevel::User, false, true), (StatsLevel::Operator, true, false), (StatsLevel::Admin, true, true)]
        {
            let rights = Rights { level, expert, experimental };
            let (mut client, given) = UnixStream::pair().unwrap();
            send(&master, &given, rights).unwrap();
            drop(given);
            let (mut received, known) = receive(&worker).unwrap().unwrap();
            assert_eq!(known, rights);
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
