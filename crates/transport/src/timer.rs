//! A deadline that moves often and fires rarely.
//!
//! Every activity of a connection moves its timeout. Registering that with the runtime each time would take its
//! timer wheel's lock per read; so a move only stores a time, and the timer is armed anew when it fires too early.
//! It is armed at once only where the new deadline lies before the armed one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::time::Sleep;

/// A timer with one deadline; `None` means that it never expires.
#[derive(Debug, Default)]
pub struct Timer {
    deadline: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Moves the deadline. It takes effect with the next [`Timer::poll`].
    pub fn set(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Moves the deadline to `at` if it lies behind it, or if there is none.
    pub fn advance(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
    }

    /// Ready when the deadline has passed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
        if sleep.deadline().into_std() > deadline {
            sleep.as_mut().reset(deadline.into());
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline().into_std() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_deadline_is_brought_forward_alone() {
        let (mut timer, now) = (Timer::default(), Instant::now());
        for (seconds, deadline) in [(5, 5), (3, 3), (4, 3)] {
            timer.advance(now + Duration::from_secs(seconds));
            assert_eq!(timer.deadline, Some(now + Duration::from_secs(deadline)));
        }
    }

    #[test]
    fn a_deadline_may_move_both_ways() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let start = Instant::now();
            let mut timer = Timer::default();
            timer.set(Some(start + Duration::from_millis(20)));
            let mut polls = 0;
            std::future::poll_fn(|cx| {
                polls += 1;
                if polls == 1 {
                    assert!(timer.poll(cx).is_pending());
                    timer.set(Some(start + Duration::from_millis(40)));
                }
                timer.poll(cx)
            })
            .await;
            assert!(start.elapsed() >= Duration::from_millis(40), "the first arming did not end it");
            timer.set(Some(Instant::now() + Duration::from_secs(3600)));
            std::future::poll_fn(|cx| Poll::Ready(timer.poll(cx).is_pending())).await;
            timer.set(Some(Instant::now()));
            std::future::poll_fn(|cx| timer.poll(cx)).await;
        });
    }
}
