//! The poller of a thread: waits for sockets and for a deadline.
//!
//! A timeout of `epoll_wait` has a resolution of a millisecond, as long as the latencies to be measured, and the kernel
//! adds up to 50 µs of slack. A timerfd in the same epoll set has neither problem, and needs no spinning. It is watched
//! edge-triggered, so its expirations need not be read, and it is not set again while it is set for the deadline or
//! earlier: an occasional spurious wake-up costs less than setting it for every wait.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// The maximum number of events returned by one call.
const EVENTS: usize = 256;

/// The timer's token, which no connection has.
const TIMER: u64 = u64::MAX;

/// A socket that can be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The token passed to [`Poller::add`].
    pub(super) token: u64,
    /// Data, the end of the stream or an error can be read.
    pub(super) readable: bool,
    /// There is room for more data, a connection has been established, or an error can be queried.
    pub(super) writable: bool,
}

/// An epoll set with a timer.
pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The time at which the timer fires, in the caller's clock.
    armed: u64,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Poller { epoll, timer, armed: 0 })
    }

    /// Watches a socket for reading, and for writing too if `write`. Closing it ends that.
    pub(super) fn add(&self, socket: impl AsFd, token: u64, write: bool) -> io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), flags(write))
    }

    /// Changes whether a socket is watched for writing.
    pub(super) fn modify(&self, socket: impl AsFd, token: u64, write: bool) -> io::Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags(write))
    }

    /// Waits until a socket can be used, at the latest until `until`; fills `ready`. Times are nanoseconds of one
    /// clock, and `now` is the present; if `until` is not after it, returns immediately.
    pub(super) fn wait(&mut self, now: u64, until: u64, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let look = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if until <= now {
            Some(&look)
        } else if self.armed > now && self.armed <= until {
            None
        } else {
            let wait_ns = until - now;
            let value = Timespec {
                tv_sec: (wait_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (wait_ns % 1_000_000_000).cast_signed(),
            };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            self.armed = until;
            None
        };
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((events, _)) => events,
            // Signals are handled by the main thread; the deadline is reached in a later call.
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
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn waits_for_sockets_and_for_time() {
        let mut poller = Poller::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        poller.add(&b, 7, false).unwrap();
        let mut ready = Vec::new();
        let epoch = Instant::now();
        let now = || epoch.elapsed().as_nanos() as u64;
        poller.wait(now(), 0, &mut ready).unwrap();
        assert!(ready.is_empty());
        // The timer fires for each of several deadlines although it is never read.
        for _ in 0..5 {
            let until = now() + 2_000_000;
            poller.wait(now(), until, &mut ready).unwrap();
            assert!(ready.is_empty() && now() >= until);
        }
        // The timer is not set for a later deadline, which repeated waits still reach.
        let until = now() + 20_000_000;
        a.write_all(b"x").unwrap();
        poller.wait(now(), until - 10_000_000, &mut ready).unwrap();
        assert!(ready[0].token == 7 && ready[0].readable && !ready[0].writable);
        (&b).read_exact(&mut [0]).unwrap();
        while now() < until {
            poller.wait(now(), until, &mut ready).unwrap();
            assert!(ready.is_empty());
        }
        let later = now() + 20_000_000_000;
        poller.modify(&b, 7, true).unwrap();
        poller.wait(now(), later, &mut ready).unwrap();
        assert!(ready[0].writable);
        drop(b);
        poller.wait(now(), 0, &mut ready).unwrap();
        assert!(ready.is_empty());
    }
}
