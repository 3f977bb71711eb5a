//! Listening and connected sockets, and the timers, buffers and pipes used to move their data.
//!
//! The crate knows no protocol and no configuration. Its objects belong to the thread whose runtime they are
//! registered with.

mod address;
mod buffer;
pub mod clock;
mod connect;
mod demand;
mod descriptors;
mod half;
mod listen;
mod listener;
mod namespace;
mod options;
mod passed;
mod pipe;
mod recycled;
mod slice;
mod socket;
mod timer;
mod turn;

pub use address::{UnixAddress, abstract_address};
pub use buffer::{Buffer, BufferPool, PipeLimits, PoolFigures, allocated};
pub use connect::{LocalEnd, Origin, connect_tcp, connect_tcp_from, connect_to_any};
pub use demand::Demand;
pub use descriptors::{DESCRIPTORS_MAX, inherited, receive_descriptors, send_descriptors, try_send_descriptors};
pub use half::{ReadHalf, WriteHalf};
pub use listen::{
    TcpOptions, UnixFile, bind_tcp, bind_udp, is_alive, listen_unix, make_transparent, remove_stale, set_socket_mode,
    set_tcp_option,
};
pub use listener::Listener;
pub use namespace::Namespace;
pub use options::SocketOptions;
pub use passed::{carrier, connect_over, is_carrier, receive_connection};
pub use pipe::{Pipe, Pipes};
pub use recycled::Recycled;
pub use slice::{SLICE, give_way};
pub use socket::Socket;
pub use socket::tls::{Choose, Chosen, HandshakeError, Tls};
pub use timer::Timer;
