//! Options of TCP sockets that a configuration sets.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::SockRef;

use crate::listen::set_tcp_option;

/// Options of a connection's socket; the default leaves all to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Size of the kernel's send buffer, bytes. The kernel doubles it for its own needs.
    pub send_buffer: Option<usize>,
    /// Size of the kernel's receive buffer, bytes.
    pub receive_buffer: Option<usize>,
    /// The number of bytes not sent yet beyond which the socket takes no more.
    pub unsent_max: Option<u32>,
    /// The time that sent data may stay without an acknowledgement.
    pub user_timeout: Option<Duration>,
    /// Whether the first data leaves with the first packet, so that nothing is sent before there is data.
    pub fast_open: bool,
    /// Whether the connection is made by MPTCP.
    pub multipath: bool,
}

impl SocketOptions {
    /// Sets the options that are for sockets of any kind; those for TCP are refused by others.
    ///
    /// # Errors
    /// The kernel's.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let raw = SockRef::from(&socket);
        if let Some(size) = self.send_buffer {
            raw.set_send_buffer_size(size)?;
        }
        if let Some(size) = self.receive_buffer {
            raw.set_recv_buffer_size(size)?;
        }
        if let Some(most) = self.unsent_max {
            raw.set_tcp_notsent_lowat(most)?;
        }
        if self.user_timeout.is_some() {
            raw.set_tcp_user_timeout(self.user_timeout)?;
        }
        if self.fast_open {
            set_tcp_option(&socket, libc::TCP_FASTOPEN_CONNECT, 1)?;
        }
        Ok(())
    }
}
