//! The connection to a master: reads that end when the link is stopped, or when nothing comes for too long.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::ClientConnection;
use sluicegate_tls::connector::Connector;
use socket2::{Domain, Socket, TcpKeepalive, Type};

use super::{Gone, Link};
use crate::aof::write::encode;

/// The time between two looks at whether the link is stopped, where nothing else wakes the thread.
const LOOK: Duration = Duration::from_millis(50);
/// The longest line of a handshake.
const LINE_MAX: usize = 1024;
/// The bytes that are read at once.
pub(super) const READ_BYTES: usize = 64 << 10;

/// A connection to a master.
pub(super) struct Conn<'l> {
    link: &'l Link,
    /// The number of the order to follow this master.
    order: u64,
    stream: Socket,
    /// The state of the encryption, if there is one.
    tls: Option<Box<ClientConnection>>,
    /// The last time at which something came.
    heard: Instant,
    /// What was read beyond the last line.
    ahead: Vec<u8>,
    /// The position up to which that was used.
    used: usize,
}

/// Returns the addresses of a host. The resolver cannot be interrupted, so a thread asks it.
fn resolve(link: &Link, order: u64, host: &str, port: u16) -> Result<Vec<SocketAddr>, Gone> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (tell, told) = channel();
    let name = host.to_owned();
    let ask = move || {
        let found = (&*name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Whoever asked may have gone.
        let _ = tell.send(found);
    };
    std::thread::Builder::new().name("store-resolve".into()).spawn(ask)?;
    let began = Instant::now();
    loop {
        match told.recv_timeout(LOOK) {
            Ok(found) => return Ok(found?),
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the resolver failed").into()),
            Err(RecvTimeoutError::Timeout) => link.check(order)?,
        }
        if began.elapsed() > link.timeout() {
            return Err(Gone::Timeout);
        }
    }
}

/// Connects to the first address that accepts, from `source` if that is set.
pub(super) fn connect<'l>(
    link: &'l Link,
    order: u64,
    (host, port): (&str, u16),
    source: &str,
) -> Result<Conn<'l>, Gone> {
    let mut last = Gone::from(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in resolve(link, order, host, port)? {
        match connect_to(link, order, address, source) {
            Ok(stream) => return Ok(Conn::new(link, order, stream)),
            Err(Gone::Stopped) => return Err(Gone::Stopped),
            Err(gone) => last = gone,
        }
    }
    Err(last)
}

fn connect_to(link: &Link, order: u64, address: SocketAddr, source: &str) -> Result<Socket, Gone> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if !source.is_empty() {
        let ip: IpAddr = source.parse().map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let began = Instant::now();
    while !wait_for(&socket, PollFlags::OUT, LOOK)? {
        link.check(order)?;
        if began.elapsed() > link.timeout() {
            return Err(Gone::Timeout);
        }
    }
    if let Some(error) = socket.take_error()? {
        return Err(error.into());
    }
    Ok(socket)
}

/// Waits until a socket is ready; false if it is not by then.
fn wait_for(socket: &impl AsFd, flags: PollFlags, time: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::new(socket, flags)];
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    match poll(&mut polled, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes over a connection that was made already, within this machine.
pub(super) fn take<'l>(link: &'l Link, order: u64, socket: OwnedFd) -> Result<Conn<'l>, Gone> {
    let stream = Socket::from(socket);
    stream.set_nonblocking(true)?;
    Ok(Conn::new(link, order, stream))
}

impl<'l> Conn<'l> {
    fn new(link: &'l Link, order: u64, stream: Socket) -> Conn<'l> {
        Conn { link, order, stream, tls: None, heard: Instant::now(), ahead: Vec::new(), used: 0 }
    }
}

impl Conn<'_> {
    /// Registers the connection, so that a change of the master ends it.
    pub(super) fn register(&self) -> Result<(), Gone> {
        self.link.register(self.order, self.stream.try_clone()?)
    }

    /// Sets up a connection over TCP.
    pub(super) fn set_up(&self, keepalive_s: u32) -> Result<(), Gone> {
        self.stream.set_tcp_nodelay(true)?;
        if keepalive_s > 0 {
            let time = Duration::from_secs(keepalive_s.into());
            self.stream.set_tcp_keepalive(&TcpKeepalive::new().with_time(time))?;
        }
        Ok(())
    }

    /// Encrypts what follows, which begins with a handshake.
    pub(super) fn encrypt(&mut self, connector: &Connector) -> Result<(), Gone> {
        self.tls = Some(Box::new(connector.connect(None, None).map_err(io::Error::other)?));
        let began = Instant::now();
        loop {
            let is_done = match self.exchange() {
                Ok(()) => self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                Err(error) => return Err(error.into()),
            };
            if is_done {
                return Ok(());
            }
            self.link.check(self.order)?;
            if began.elapsed() >= self.link.timeout() {
                return Err(Gone::Timeout);
            }
            wait_for(&self.stream, PollFlags::IN, LOOK)?;
        }
    }

    /// Writes and reads once what the encryption has to.
    fn exchange(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut &self.stream)?;
        }
        if !tls.is_handshaking() {
            return Ok(());
        }
        if tls.read_tls(&mut &self.stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let processed = tls.process_new_packets();
        // The master is told what is wrong.
        while tls.wants_write() {
            tls.write_tls(&mut &self.stream)?;
        }
        processed.map_err(io::Error::other)?;
        if tls.is_handshaking() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Reads what is there.
    fn pull(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&self.stream).read(out) };
        loop {
            match tls.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut &self.stream)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Returns whether something was decrypted and not read.
    fn has_decrypted(&mut self) -> bool {
        let state = self.tls.as_mut().map(|tls| tls.process_new_packets());
        // An error is found by the next read.
        matches!(state, Some(Ok(state)) if state.plaintext_bytes_to_read() > 0)
    }

    /// Writes what the socket takes.
    fn push(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&self.stream).write(bytes) };
        while tls.wants_write() {
            tls.write_tls(&mut &self.stream)?;
        }
        tls.writer().write(bytes)
    }

    /// Writes what the encryption has kept. Returns whether that is everything.
    fn push_rest(&mut self) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) if tls.wants_write() => tls.write_tls(&mut &self.stream),
            _ => Ok(0),
        }
    }

    /// Lets the time without a word from the master begin anew, after work in which nothing was read.
    pub(super) fn forget_silence(&mut self) {
        self.heard = Instant::now();
    }

    /// Reads what has come, at most `bytes`, and appends it. Returns false if nothing has.
    pub(super) fn receive(&mut self, out: &mut Vec<u8>, bytes: usize) -> Result<bool, Gone> {
        if self.used < self.ahead.len() {
            out.extend_from_slice(&self.ahead[self.used..]);
            (self.ahead, self.used) = (Vec::new(), 0);
            return Ok(true);
        }
        let before = out.len();
        out.resize(before + bytes, 0);
        let read = self.pull(&mut out[before..]);
        out.truncate(before + read.as_ref().map_or(0, |read| *read));
        self.heard_of(read)
    }

    /// Decides about a read. Returns false if it would have had to wait.
    fn heard_of(&mut self, read: io::Result<usize>) -> Result<bool, Gone> {
        match read {
            Ok(0) => {
                self.link.check(self.order)?;
                Err(Gone::Closed)
            }
            Ok(_) => {
                self.heard = Instant::now();
                self.link.note_heard();
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => {
                self.link.check(self.order)?;
                Err(error.into())
            }
        }
    }

    /// Waits until something has come, for this time at most.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Gone> {
        let is_ready = self.has_decrypted() || wait_for(&self.stream, PollFlags::IN, time)?;
        self.link.check(self.order)?;
        if !is_ready && self.heard.elapsed() >= self.link.timeout() { Err(Gone::Timeout) } else { Ok(()) }
    }

    /// Reads bytes, waiting for some. `beat` is called while it waits, at least once a second.
    pub(super) fn read(
        &mut self,
        out: &mut [u8],
        mut beat: impl FnMut(&mut Self) -> Result<(), Gone>,
    ) -> Result<usize, Gone> {
        loop {
            beat(self)?;
            if self.used < self.ahead.len() {
                let len = out.len().min(self.ahead.len() - self.used);
                out[..len].copy_from_slice(&self.ahead[self.used..self.used + len]);
                self.used += len;
                return Ok(len);
            }
            let read = self.pull(out);
            let len = read.as_ref().map_or(0, |read| *read);
            if self.heard_of(read)? {
                return Ok(len);
            }
            self.wait(Duration::from_secs(1))?;
        }
    }

    /// Puts bytes back that were read too many.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        let rest = self.ahead.split_off(self.used);
        self.ahead = [bytes, &rest].concat();
        self.used = 0;
    }

    /// Reads a line without its end; empty ones, which only show that the master lives, are skipped.
    pub(super) fn line(&mut self) -> Result<Vec<u8>, Gone> {
        loop {
            if let Some(len) = memchr::memchr(b'\n', &self.ahead[self.used..]) {
                let line = self.ahead[self.used..self.used + len].trim_ascii_end().to_vec();
                self.used += len + 1;
                if !line.is_empty() {
                    return Ok(line);
                }
                continue;
            }
            if self.ahead.len() - self.used > LINE_MAX {
                return Err(Gone::Protocol);
            }
            self.ahead.drain(..self.used);
            self.used = 0;
            let mut bytes = [0; 256];
            let read = self.read_past(&mut bytes)?;
            self.ahead.extend_from_slice(&bytes[..read]);
        }
    }

    /// Reads from the socket, whatever was read before.
    fn read_past(&mut self, out: &mut [u8]) -> Result<usize, Gone> {
        loop {
            let read = self.pull(out);
            let len = read.as_ref().map_or(0, |read| *read);
            if self.heard_of(read)? {
                return Ok(len);
            }
            self.wait(Duration::from_secs(1))?;
        }
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        let began = Instant::now();
        while !bytes.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            let written = if bytes.is_empty() { self.push_rest() } else { self.push(bytes) };
            match written {
                Ok(0) => return Err(Gone::Closed),
                Ok(_) if bytes.is_empty() => {}
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.stream, PollFlags::OUT, LOOK)?;
                    self.link.check(self.order)?;
                    if began.elapsed() >= self.link.timeout() {
                        return Err(Gone::Timeout);
                    }
                }
                Err(error) => {
                    self.link.check(self.order)?;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Sends a command.
    pub(super) fn command(&mut self, words: &[&[u8]]) -> Result<(), Gone> {
        let mut bytes = Vec::new();
        encode(words.iter().copied(), &mut bytes);
        self.send(&bytes)
    }
}
