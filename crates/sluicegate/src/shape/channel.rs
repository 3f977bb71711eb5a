//! The transfer of clients from the master's sockets to the worker process: a byte for the access level, and a
//! descriptor.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use sluicegate_config::model::StatsLevel;
use sluicegate_proxy::cli::protocol::Rights;
use sluicegate_transport::{receive_descriptors, try_send_descriptors};

/// Bits of the byte that also contains the level.
const EXPERT: u8 = 4;
const EXPERIMENTAL: u8 = 8;

/// Sends a client's connection.
pub fn send(worker: &UnixStream, client: &UnixStream, rights: Rights) -> io::Result<()> {
    let level = match rights.level {
        StatsLevel::User => 0,
        StatsLevel::Operator => 1,
        StatsLevel::Admin => 2,
    };
    let byte = level | if rights.expert { EXPERT } else { 0 } | if rights.experimental { EXPERIMENTAL } else { 0 };
    try_send_descriptors(worker, &[byte], &[client.as_fd()])?;
    Ok(())
}

/// Returns the next client's connection; `None` once the master has ended.
pub fn receive(master: &UnixStream) -> io::Result<Option<(UnixStream, Rights)>> {
    let mut byte = [0];
    let (read, descriptors) = receive_descriptors(master, &mut byte)?;
    let client = descriptors.into_iter().next();
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
