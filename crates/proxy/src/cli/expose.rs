//! `_getsocks`: passes the listening sockets as descriptors to a process that replaces this one (`-x`).
//!
//! The protocol is that of HAProxy 2.3 and later, so sockets can be passed from HAProxy to this program and back. The
//! new process sends a line. The old process replies with the number of its sockets, a native-endian 32-bit integer,
//! and then with messages of at most 252 descriptors. For each descriptor a message contains the name of a network
//! namespace and the name of an interface, each preceded by its length in one byte, and four zero bytes. The new
//! process acknowledges each message with four bytes; the old one waits for the acknowledgement of a full message only.
//!
//! Only a stats socket with `expose-fd listeners` hands over sockets. Limits: at most 65,536 sockets are accepted, and
//! the other process must not be silent for more than a second.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use sluicegate_transport::{DESCRIPTORS_MAX as BATCH, receive_descriptors, send_descriptors};
use tokio::io::Interest;
use tokio::net::UnixStream;

const LINE: &[u8] = b"_getsocks\n";

/// The description of a descriptor whose two names are empty.
const PLAIN: [u8; 6] = [0; 6];

/// The maximum number of sockets that are taken over.
const SOCKETS_MAX: usize = 1 << 16;

/// The inactivity timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns whether a client's first line requests sockets. The line is consumed only if it does; other data is left for
/// the command parser. A client that requests sockets sends the line in one piece, immediately after it has connected.
pub(super) async fn is_asked(stream: &UnixStream) -> bool {
    let mut line = [0; LINE.len()];
    loop {
        if stream.readable().await.is_err() {
            return false;
        }
        match stream.try_io(Interest::READABLE, || Ok(recv(stream, &mut line, RecvFlags::PEEK)?)) {
            Ok((length, _)) => {
                let asked = line[..length] == *LINE;
                if asked {
                    let _ = stream.try_read(&mut line);
                }
                return asked;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
}

/// Passes sockets to a client that requested them.
pub(super) async fn give(stream: &UnixStream, sockets: &[Arc<OwnedFd>]) -> io::Result<()> {
    let count = i32::try_from(sockets.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    send(stream, &count.to_ne_bytes(), &[]).await?;
    for batch in sockets.chunks(BATCH) {
        send(stream, &PLAIN.repeat(batch.len()), batch).await?;
        let mut seen = 0;
        while batch.len() == BATCH && seen < 4 {
            stream.readable().await?;
            match stream.try_read(&mut [0; 4]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => seen += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn send(stream: &UnixStream, bytes: &[u8], sockets: &[Arc<OwnedFd>]) -> io::Result<()> {
    let descriptors: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        stream.writable().await?;
        let with = if sent == 0 { &descriptors[..] } else { &[] };
        let step = stream.try_io(Interest::WRITABLE, || send_descriptors(stream, &bytes[sent..], with));
        match step {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Requests the listening sockets of the process whose stats socket is `path`. Sockets that belong to another network
/// namespace or are bound to an interface are skipped.
pub fn take(path: &Path) -> io::Result<Vec<OwnedFd>> {
    take_from(std::os::unix::net::UnixStream::connect(path)?)
}

fn take_from(mut stream: std::os::unix::net::UnixStream) -> io::Result<Vec<OwnedFd>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(LINE)?;
    let mut count = [0; 4];
    // A process that exposes none sends nothing, or its reply to an unknown command, which is not a number of sockets.
    let none = || invalid("it gives no sockets away ('expose-fd listeners')");
    stream.read_exact(&mut count).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => none(),
        _ => error,
    })?;
    let count = usize::try_from(i32::from_ne_bytes(count)).ok().filter(|count| *count <= SOCKETS_MAX);
    let count = count.ok_or_else(none)?;
    let (mut sockets, mut told) = (Vec::new(), Vec::new());
    while sockets.len() < count {
        // Room for two names of at most 4096 and 16 bytes per descriptor.
        let mut bytes = vec![0; BATCH * 4128];
        let (length, received) = receive_descriptors(&stream, &mut bytes)?;
        sockets.extend(received);
        if length == 0 || sockets.len() > count {
            return Err(invalid("it gave another number of sockets than it said"));
        }
        told.extend_from_slice(&bytes[..length]);
        let acknowledged = stream.write_all(&(sockets.len() as i32).to_ne_bytes());
        // The other process may close the connection right after its last message.
        if sockets.len() < count {
            acknowledged?;
        }
    }
    let mut told = &told[..];
    let mut plain = Vec::with_capacity(sockets.len());
    for socket in sockets {
        let mut named = false;
        for _ in 0..2 {
            let (length, rest) =
                told.split_first().ok_or_else(|| invalid("what it tells of its sockets ends early"))?;
            named |= *length > 0;
            told = rest.get(usize::from(*length)..).unwrap_or_default();
        }
        told = told.get(4..).unwrap_or_default();
        if !named {
            plain.push(socket);
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as Blocking;
    use std::thread;

    use super::*;

    /// Returns the number of sockets that [`take_from`] receives when [`give`] sends `count`.
    fn through(count: usize) -> usize {
        let (one, other) = Blocking::pair().unwrap();
        let taking = thread::spawn(move || take_from(other).unwrap().len());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            one.set_nonblocking(true).unwrap();
            let stream = UnixStream::from_std(one).unwrap();
            assert!(is_asked(&stream).await);
            let socket = Arc::new(OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
            give(&stream, &vec![socket; count]).await.unwrap();
        });
        taking.join().unwrap()
    }

    #[test]
    fn sockets_come_through() {
        for count in [0, 1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH] {
            assert_eq!(through(count), count);
        }
    }

    #[test]
    fn other_first_words_stay_where_they_are() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for words in ["show stat\n", "_getsocks", "_getsocks x\n"] {
                let (mut one, other) = Blocking::pair().unwrap();
                other.set_nonblocking(true).unwrap();
                let stream = UnixStream::from_std(other).unwrap();
                one.write_all(words.as_bytes()).unwrap();
                assert!(!is_asked(&stream).await, "{words}");
                let mut bytes = [0; 32];
                let length = stream.try_read(&mut bytes).unwrap();
                assert_eq!(bytes[..length], *words.as_bytes());
            }
        });
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let answers: [&[u8]; 5] = [b"", b"\x01", b"\xff\xff\xff\xff", b"\0\0\x02\0", b"\x01\0\0\0\0\0\0\0\0\0"];
        for answer in answers {
            let (mut one, other) = Blocking::pair().unwrap();
            one.write_all(answer).unwrap();
            one.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(take_from(other).is_err(), "{answer:?}");
        }
    }
}
