//! Waiting for sockets and for an instant, one thread's.
//!
//! A timeout of `epoll_wait` has millisecond steps, which is as long as what is to be measured, and the kernel adds up
//! to 50 µs of slack to it. A timerfd in the same epoll set has neither: it costs one more system call for each wait
//! that has a deadline, and no spinning. It is watched edge-triggered, so its expirations need not be read.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Events taken by one call.
const EVENTS: usize = 256;

/// The timer's token, which no connection has.
const TIMER: u64 = u64::MAX;

/// A socket that can be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// What [`Poller::add`] was given.
    pub(super) token: u64,
    /// Bytes, an end or an error can be read.
    pub(super) readable: bool,
    /// There is room for more bytes, or a connection has been made, or an error can be asked for.
    pub(super) writable: bool,
}

/// An epoll set with a timer.
pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Poller { epoll, timer })
    }

    /// Watches a socket for reading, and for writing too if `write`. Closing it ends that.
    pub(super) fn add(&self, socket: impl AsFd, token: u64, write: bool) -> io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), flags(write))
    }

    /// Changes whether it is watched for writing.
    pub(super) fn modify(&self, socket: impl AsFd, token: u64, write: bool) -> io::Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags(write))
    }

    /// Waits until a socket can be used or `wait_ns` have passed; fills `ready`. 0 only looks.
    pub(super) fn wait(&self, wait_ns: u64, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let look = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if wait_ns == 0 {
            Some(&look)
        } else {
            let value = Timespec {
                tv_sec: (wait_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (wait_ns % 1_000_000_000).cast_signed(),
            };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            None
        };
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((events, _)) => events,
            // A signal is the main thread's affair; the deadline comes round again.
            Err(io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error),
        };
        for event in events.iter() {
            let (flags, token) = (event.flags, event.data.u64());
            if token != TIMER {
                let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                ready.push(Ready {
                    token,
                    readable: failed || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                    writable: failed || flags.contains(EventFlags::OUT),
                });
            }
        }
        Ok(())
    }
}

fn flags(write: bool) -> EventFlags {
    if write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    #[test]
    fn waits_for_sockets_and_for_time() {
        let poller = Poller::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        poller.add(&b, 7, false).unwrap();
        let mut ready = Vec::new();
        poller.wait(0, &mut ready).unwrap();
        assert!(ready.is_empty());
        // A deadline again and again: the timer fires each time though nothing reads it.
        for _ in 0..5 {
            let start = Instant::now();
            poller.wait(2_000_000, &mut ready).unwrap();
            assert!(ready.is_empty() && start.elapsed() >= Duration::from_millis(2));
        }
        a.write_all(b"x").unwrap();
        poller.wait(20_000_000_000, &mut ready).unwrap();
        assert!(ready[0].token == 7 && ready[0].readable && !ready[0].writable);
        poller.modify(&b, 7, true).unwrap();
        poller.wait(20_000_000_000, &mut ready).unwrap();
        assert!(ready[0].writable);
        drop(b);
        poller.wait(0, &mut ready).unwrap();
        assert!(ready.is_empty());
    }
}
