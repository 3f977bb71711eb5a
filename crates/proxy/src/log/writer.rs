//! The control thread's side of logging: writes whole buffers to descriptors without blocking.
//!
//! Descriptors 1 and 2 are usually shared with the parent, so they are not switched to non-blocking mode. Instead a
//! write is made only when poll(2) reports room, and is at most PIPE_BUF long, which a pipe with room accepts without
//! blocking. Regular files are always writable and accept everything at once.
//!
//! After a write the writer pauses for [`GATHER`], so a busy proxy costs 500 writes a second instead of one per
//! request; a line waits at most that long. A failing destination (closed pipe, a socket without a reader) loses its
//! data, which is counted, and a message to stderr is written at most once in [`SAID_EVERY`].

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_config::model::LogAddress;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::datagram::{Datagrams, Peer};
use super::{Lines, Logger, Sink, header};

/// Pause between two writes to one destination.
const GATHER: Duration = Duration::from_millis(2);

/// The minimum time between two messages to stderr about one destination's failures.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The interval at which an idle writer checks whether any logger still uses its destination.
const LEFT_EVERY: Duration = Duration::from_secs(2);

/// The size that a pipe with room accepts without blocking: Linux's PIPE_BUF.
const PIECE: usize = 4096;

/// A destination's descriptor.
enum Output {
    /// Pipes, sockets, terminals: readiness is polled.
    Polled(AsyncFd<OwnedFd>),
    /// Regular files and the like: always ready.
    Direct(OwnedFd),
}

fn open(to: &LogAddress) -> io::Result<Output> {
    let number: RawFd = match to {
        LogAddress::Stdout => libc::STDOUT_FILENO,
        LogAddress::Stderr => libc::STDERR_FILENO,
        LogAddress::Fd(number) => *number,
        LogAddress::Unix(_)
        | LogAddress::Udp(..)
        | LogAddress::Ring(_)
        | LogAddress::Backend(_)
        | LogAddress::Stream(_) => {
            return Err(io::ErrorKind::Unsupported.into());
        }
    };
    // SAFETY: fcntl with F_GETFD reads no memory and fails on a number that is no open descriptor.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open (checked above), and nothing in this process closes descriptors that a `log` line
    // names; it is borrowed only for the duplication.
    let own = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` is the sole owner of its descriptor and returns the same number for its lifetime.
    match unsafe { AsyncFd::register_with_interest(own, Interest::WRITABLE) } {
        Ok(polled) => Ok(Output::Polled(polled)),
        // epoll refuses descriptors that are always ready.
        Err(error) => Ok(Output::Direct(error.into_parts().0)),
    }
}

/// Returns whether there is room for [`PIECE`] bytes, or an error that the next write will report.
fn has_room(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the pointer refers to one valid pollfd, the count is one, and the call does not block.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are of a live slice; the kernel only reads it.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
}

impl Output {
    /// Writes some of `bytes` when that is possible without blocking.
    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let polled = match self {
            Output::Polled(polled) => polled,
            Output::Direct(own) => return write(own.as_raw_fd(), bytes),
        };
        loop {
            let mut ready = polled.writable().await?;
            if has_room(polled.as_raw_fd()) {
                return write(polled.as_raw_fd(), &bytes[..bytes.len().min(PIECE)]);
            }
            ready.clear_ready();
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes).await {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Writes log lines while another owner of the logger, or of a logger with the same destination, exists. Runs on the
/// control thread's runtime.
pub async fn write_logs(logger: Logger) {
    // The process may have forked since its id was last read.
    header::refresh_pid();
    let mut tasks = JoinSet::new();
    for sink in logger.inner.sinks.iter().filter(|sink| !sink.served.swap(true, Ordering::Relaxed)) {
        tasks.spawn(write_sink(logger.voice(), sink.clone()));
    }
    drop(logger);
    while tasks.join_next().await.is_some() {}
}

async fn write_sink(logger: Logger, sink: Arc<Sink>) {
    let inner = &logger.inner;
    let mut output = match &sink.peer {
        Some(peer) => Destination::Datagrams(Datagrams::new(peer)),
        None => open(&sink.to).map_or(Destination::Missing, Destination::Stream),
    };
    let mut lines = Lines::default();
    let mut said: Option<Instant> = None;
    loop {
        if !take(&sink, &mut lines).await {
            sink.served.store(false, Ordering::Relaxed);
            return;
        }
        let all = lines.ends.len();
        let result = match &mut output {
            Destination::Stream(output) => output.write_all(&lines.bytes).await.map_err(|error| (all, error)),
            Destination::Datagrams(output) => output.send(&lines).await,
            Destination::Missing => Err((all, io::ErrorKind::NotConnected.into())),
        };
        if let Err((lost, error)) = result {
            inner.dropped.fetch_add(lost as u64, Ordering::Relaxed);
            if sink.to != LogAddress::Stderr && said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
                said = Some(Instant::now());
                let name = sink.peer.as_ref().map_or_else(|| format!("{:?}", sink.to).to_lowercase(), Peer::name);
                logger.say(&format!("[ALERT]    ({}) : log target '{name}' failed: {error}", header::pid()));
            }
        }
        lines.clear();
        sink.writing.store(false, Ordering::Relaxed);
        tokio::time::sleep(GATHER).await;
    }
}

/// The target of a sink's lines.
enum Destination<'a> {
    Stream(Output),
    Datagrams(Datagrams<'a>),
    /// A descriptor that is not open.
    Missing,
}

/// Waits for lines and moves them to `lines`; returns `false` when nothing can add lines any more.
async fn take(sink: &Arc<Sink>, lines: &mut Lines) -> bool {
    loop {
        {
            let mut pending = sink.pending.lock();
            if !pending.ends.is_empty() {
                std::mem::swap(&mut *pending, lines);
                sink.writing.store(true, Ordering::Relaxed);
                return true;
            }
            // Under the lock, so that the next append sees it.
            sink.sleeping.store(true, Ordering::Relaxed);
        }
        // The writer itself is one owner.
        if tokio::time::timeout(LEFT_EVERY, sink.wake.notified()).await.is_err() && Arc::strong_count(sink) == 1 {
            return false;
        }
    }
}

impl Logger {
    /// Writes what is queued, but no longer than `limit`. Called if the process ends before its control thread serves.
    pub fn write_before_end(&self, limit: Duration) {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            tokio::spawn(write_logs(self.clone()));
            self.drain(limit).await;
        });
    }

    /// Waits until everything is written, but no longer than `limit`. Called when the process ends.
    pub async fn drain(&self, limit: Duration) {
        let empty = async {
            while !self.is_empty() {
                tokio::time::sleep(GATHER).await;
            }
        };
        // Data that a destination does not accept in time is lost with the process.
        let _ = tokio::time::timeout(limit, empty).await;
    }
}
