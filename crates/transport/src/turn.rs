//! Turns of long computations on a thread that also serves sockets.
//!
//! A handshake of TLS computes for some hundred microseconds. A burst of clients makes dozens of them ready at once, and
//! the runtime would run them all before it looks at its sockets again, so requests on other connections would wait for
//! the whole burst. Here such computations share [`SHARE`] between two looks at the sockets; what exceeds it waits in a
//! queue, first come, first served. Nothing waits while a thread has few of them.
//!
//! **Limit:** the queue is as long as the number of connections. A computation stays on the thread where it queued.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::clock;
use crate::slice::give_way;

/// The time after which no further computation begins before a look at the sockets: one full handshake, or two that
/// resume a session.
const SHARE: Duration = Duration::from_micros(50);

#[derive(Default)]
struct Turns {
    /// The time that was computed since the thread last looked at its sockets.
    spent: Duration,
    queue: VecDeque<(u64, Waker)>,
    last_number: u64,
}

impl Turns {
    /// Wakes the first in the queue, unless the share is used up.
    fn wake_first(&self) {
        if let Some((_, waker)) = self.queue.front().filter(|_| self.spent < SHARE) {
            waker.wake_by_ref();
        }
    }
}

/// Is woken after a look at the sockets.
struct Look;

impl Wake for Look {
    fn wake(self: Arc<Look>) {
        // A thread that ends has no queue.
        let _ = TURNS.try_with(|turns| {
            let mut turns = turns.borrow_mut();
            turns.spent = Duration::ZERO;
            turns.wake_first();
        });
    }
}

thread_local! {
    static TURNS: RefCell<Turns> = RefCell::default();
    static LOOK: Waker = Arc::new(Look).into();
}

/// A place in the queue of the thread's computations.
#[derive(Default)]
pub(crate) struct Turn {
    /// The number in the queue; 0 outside of it.
    number: u64,
}

impl Turn {
    /// Ready when a computation may begin, which has to be reported to [`spent`]. Pending: the task is woken.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let turn = TURNS.with_borrow_mut(|turns| {
            if self.number == 0 {
                if turns.queue.is_empty() && turns.spent < SHARE {
                    return Poll::Ready(());
                }
                turns.last_number += 1;
                self.number = turns.last_number;
                turns.queue.push_back((self.number, cx.waker().clone()));
                if turns.queue.len() == 1 {
                    turns.wake_first();
                }
                return Poll::Pending;
            }
            match turns.queue.front() {
                Some((number, _)) if *number == self.number && turns.spent < SHARE => {
                    self.number = 0;
                    turns.queue.pop_front();
                    Poll::Ready(())
                }
                _ => {
                    let own = turns.queue.iter_mut().find(|(number, _)| *number == self.number);
                    own.into_iter().for_each(|(_, waker)| waker.clone_from(cx.waker()));
                    Poll::Pending
                }
            }
        });
        // The runtime that was told of the last computation may have ended since.
        if turn.is_pending() && TURNS.with_borrow(|turns| turns.queue.len() == 1 && turns.spent >= SHARE) {
            LOOK.with(give_way);
        }
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.number == 0 {
            return;
        }
        // A thread that ends has no queue.
        let _ = TURNS.try_with(|turns| {
            let mut turns = turns.borrow_mut();
            let was_first = turns.queue.front().is_some_and(|(number, _)| *number == self.number);
            turns.queue.retain(|(number, _)| *number != self.number);
            if was_first {
                turns.wake_first();
            }
        });
    }
}

/// Reports that a computation began at `begun` and is over.
pub(crate) fn spent(begun: Instant) {
    clock::renew();
    let used_up = TURNS.with_borrow_mut(|turns| {
        let before = turns.spent;
        turns.spent += begun.elapsed();
        turns.wake_first();
        before < SHARE && turns.spent >= SHARE
    });
    if used_up {
        LOOK.with(give_way);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::rc::Rc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    /// A computation that uses up the share.
    async fn compute(turn: &mut Turn) {
        poll_fn(|cx| turn.poll(cx)).await;
        let begun = Instant::now();
        while begun.elapsed() < SHARE {
            std::hint::spin_loop();
        }
        spent(begun);
    }

    fn run(test: impl Future<Output = ()> + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn a_socket_is_served_between_computations() {
        run(async {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            let log: Rc<RefCell<Vec<&str>>> = Rc::default();
            let echo = log.clone();
            let reader = tokio::task::spawn_local(async move {
                let mut byte = [0];
                for _ in 0..3 {
                    near.read_exact(&mut byte).await.unwrap();
                    echo.borrow_mut().push("socket");
                }
            });
            let computed = (0..20).map(|index| {
                let log = log.clone();
                let begin = async move {
                    compute(&mut Turn::default()).await;
                    log.borrow_mut().push("computed");
                };
                (index, tokio::task::spawn_local(begin))
            });
            let computed: Vec<_> = computed.collect();
            // The bytes come while the computations are due.
            far.write_all(b"abc").await.unwrap();
            for (_, task) in computed {
                task.await.unwrap();
            }
            reader.await.unwrap();
            let log = log.borrow();
            let served = log.iter().rposition(|what| *what == "socket").unwrap();
            let before = log[..served].iter().filter(|what| **what == "computed").count();
            assert!(before <= 5, "{before} computations before the socket's bytes: {log:?}");
        });
    }

    #[test]
    fn computations_have_their_turns_in_order_and_one_that_is_dropped_holds_nobody_up() {
        run(async {
            compute(&mut Turn::default()).await;
            let order: Rc<RefCell<Vec<usize>>> = Rc::default();
            let tasks: Vec<_> = (0..6)
                .map(|index| {
                    let order = order.clone();
                    tokio::task::spawn_local(async move {
                        compute(&mut Turn::default()).await;
                        order.borrow_mut().push(index);
                    })
                })
                .collect();
            // All of them have queued when this task runs again; the first and another go.
            tokio::task::yield_now().await;
            assert_eq!(TURNS.with_borrow(|turns| turns.queue.len()), 6);
            tasks[0].abort();
            tasks[3].abort();
            for (index, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.is_ok(), ![0, 3].contains(&index));
            }
            assert_eq!(*order.borrow(), [1, 2, 4, 5]);
            assert!(TURNS.with_borrow(|turns| turns.queue.is_empty()));
        });
    }

    #[test]
    fn a_share_that_is_used_up_does_not_outlive_the_runtime() {
        for _ in 0..2 {
            run(async { compute(&mut Turn::default()).await });
        }
    }
}
