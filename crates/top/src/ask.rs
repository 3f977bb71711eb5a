//! Commands to a stats socket: a connection each, as its replies end with the connection.

use std::io::{Read as _, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest wait for the socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest reply that is read: some hundred thousand servers.
const REPLY_MAX: u64 = 64 << 20;

/// Sends a command, a line, and returns the reply.
///
/// # Errors
/// A sentence that names the socket.
pub(crate) fn ask(socket: &str, command: &str) -> Result<String, String> {
    exchange(socket, command).map_err(|error| format!("stats socket {socket}: {error}"))
}

fn exchange(socket: &str, command: &str) -> std::io::Result<String> {
    let line = format!("{command}\n");
    let mut reply = Vec::new();
    if !socket.contains('/') && socket.contains(':') {
        let address = socket.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(line.as_bytes())?;
        // One that has answered and closed is no error; another fault comes with the read.
        let _ = stream.shutdown(Shutdown::Write);
        stream.take(REPLY_MAX).read_to_end(&mut reply)?;
    } else {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(line.as_bytes())?;
        // One that has answered and closed is no error; another fault comes with the read.
        let _ = stream.shutdown(Shutdown::Write);
        stream.take(REPLY_MAX).read_to_end(&mut reply)?;
    }
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
