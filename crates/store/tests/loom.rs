//! The lock-free parts under a model checker, which runs them in every order that the memory model allows (within a
//! bound of preemptions): the claim word of blocked clients, the lock of stripes, the progress of tickets, the gate's
//! turnstile, the order of the record, the parity of entries, and clients that wait for replicas.

#[allow(dead_code, reason = "not everything of it is under test")]
#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/leaf_lock.rs"]
mod leaf_lock;
#[allow(dead_code, reason = "not everything of it is under test")]
#[path = "../src/record/order.rs"]
mod order;
#[path = "loom/parity.rs"]
mod parity;
#[allow(dead_code, reason = "not everything of it is under test")]
#[path = "../src/progress.rs"]
mod progress;
#[path = "loom/record.rs"]
mod record;
#[allow(dead_code, reason = "not everything of it is under test")]
#[path = "../src/turnstile.rs"]
mod turnstile;
#[allow(dead_code, reason = "not everything of it is under test")]
#[path = "../src/replication/waiting.rs"]
mod waiting;

/// What the files are made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// A lock that a panic does not poison, which the checker's own cannot be.
    pub(crate) struct ParkingMutex<T>(Futex, std::cell::UnsafeCell<T>);

    // SAFETY: the value is used under the lock only.
    unsafe impl<T: Send> Sync for ParkingMutex<T> {}

    pub(crate) struct ParkingGuard<'l, T>(&'l ParkingMutex<T>);

    impl<T> ParkingMutex<T> {
        pub(crate) fn new(value: T) -> ParkingMutex<T> {
            ParkingMutex(Futex::new(crate::leaf_lock::FREE), std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn lock(&self) -> ParkingGuard<'_, T> {
            if !crate::leaf_lock::try_lock(&self.0) {
                crate::leaf_lock::lock(&self.0, || false);
            }
            ParkingGuard(self)
        }
    }

    impl<T> std::ops::Deref for ParkingGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: it is locked.
            unsafe { &*self.0.1.get() }
        }
    }

    impl<T> std::ops::DerefMut for ParkingGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: it is locked, and this is the only guard.
            unsafe { &mut *self.0.1.get() }
        }
    }

    impl<T> Drop for ParkingGuard<'_, T> {
        fn drop(&mut self) {
            crate::leaf_lock::unlock(&self.0.0);
        }
    }

    /// As the kernel does it: who wants to sleep looks at the word while nobody can wake.
    pub(crate) struct Futex(AtomicU32, Mutex<()>, loom::sync::Condvar);

    impl Futex {
        pub(crate) fn new(value: u32) -> Futex {
            Futex(AtomicU32::new(value), Mutex::new(()), loom::sync::Condvar::new())
        }

        pub(crate) fn word(&self) -> &AtomicU32 {
            &self.0
        }

        pub(crate) fn wait(&self, expected: u32) {
            let kernel = self.1.lock().expect("nobody panics");
            if self.0.load(Ordering::SeqCst) == expected {
                drop(self.2.wait(kernel));
            }
        }

        pub(crate) fn wake_one(&self) {
            let _kernel = self.1.lock().expect("nobody panics");
            self.2.notify_one();
        }
    }
}

use std::task::{Poll, Wake, Waker};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use claim::{By, Claim};
use progress::{Phase, Progress};
use turnstile::Turnstile;
use waiting::Waiting;

/// Counts how often it is woken.
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn alarm() -> (std::sync::Arc<Alarm>, Waker) {
    let alarm = std::sync::Arc::new(Alarm(AtomicUsize::new(0)));
    (alarm.clone(), Waker::from(alarm))
}

/// What the gate guards. The checker fails a test in which two have it at once, or one does not see what the other wrote.
struct Guarded(loom::cell::UnsafeCell<u32>);

// SAFETY: the checker watches over every access, and fails the test if two of them are not ordered.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded(loom::cell::UnsafeCell::new(0)))
    }

    fn read(&self) -> u32 {
        // SAFETY: the checker fails the test if somebody writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self) {
        // SAFETY: the checker fails the test if somebody else has it meanwhile.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

/// As the gate does it.
fn enter(turnstile: &Turnstile) {
    while !turnstile.try_enter(turnstile.counter(0)) {
        turnstile.wait();
    }
}

fn check(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Checks that the checker finds what is wrong with a model: some order ends in a panic with this text.
fn check_wrong(bound: usize, text: &'static str, model: impl Fn() + Sync + Send + 'static) {
    let found = std::thread::spawn(move || check(bound, model)).join().expect_err("nothing wrong was found");
    let found =
        found.downcast::<String>().map_or_else(|found| *found.downcast::<&str>().expect("a text"), |text| text.leak());
    assert!(found.contains(text), "found instead: {found}");
}

#[test]
fn a_wait_is_ended_by_one_and_its_client_hears_of_it() {
    check(3, || {
        let claim = Arc::new(Claim::new());
        let elements = Arc::new(AtomicUsize::new(1));
        let (rung, waker) = alarm();
        // A push takes the element only if it wins; a timeout takes nothing.
        let pusher = {
            let (claim, elements) = (claim.clone(), elements.clone());
            thread::spawn(move || {
                if claim.win(By::Server) {
                    elements.fetch_sub(1, Ordering::SeqCst);
                    claim.answer("element");
                }
            })
        };
        let timer = {
            let claim = claim.clone();
            thread::spawn(move || {
                if claim.win(By::Timeout) {
                    claim.answer("nothing");
                }
            })
        };
        let first = claim.poll(&waker);
        pusher.join().expect("it ends");
        timer.join().expect("it ends");
        let reply = match first {
            Poll::Ready(reply) => reply,
            Poll::Pending => {
                assert_eq!(rung.0.load(Ordering::SeqCst), 1, "nobody woke the client");
                let Poll::Ready(reply) = claim.poll(&waker) else { panic!("woken for nothing") };
                reply
            }
        };
        assert!(claim.is_won());
        assert_eq!(elements.load(Ordering::SeqCst), usize::from(reply == "nothing"));
    });
}

#[test]
fn nothing_is_taken_for_a_client_that_has_gone() {
    check(3, || {
        let claim = Arc::new(Claim::new());
        let pusher = {
            let claim = claim.clone();
            thread::spawn(move || {
                let won = claim.win(By::Server);
                if won {
                    claim.answer("element");
                }
                won
            })
        };
        let gone = claim.win(By::Client);
        let served = pusher.join().expect("it ends");
        assert!(gone != served);
        let (_, waker) = alarm();
        assert_eq!(claim.poll(&waker).is_ready(), served);
    });
}

#[test]
fn a_ticket_is_granted_or_given_up_and_its_owner_woken() {
    check(3, || {
        let progress: Arc<Progress<u32>> = Arc::new(Progress::new());
        let (rung, waker) = alarm();
        let granter = {
            let progress = progress.clone();
            thread::spawn(move || {
                let granted = progress.end_waiting(Phase::Granted);
                if granted {
                    progress.wake();
                }
                granted
            })
        };
        progress.listen(&waker);
        let seen = progress.phase();
        let gave_up = seen == Phase::Waiting && progress.end_waiting(Phase::Cancelled);
        let granted = granter.join().expect("it ends");
        assert!(granted != gave_up);
        if seen == Phase::Waiting && !gave_up {
            assert_eq!(rung.0.load(Ordering::SeqCst), 1, "nobody woke the section");
        }
    });
}

#[test]
fn a_parked_command_s_reply_is_heard_of() {
    check(3, || {
        let progress: Arc<Progress<u32>> = Arc::new(Progress::new());
        let (rung, waker) = alarm();
        let runner = {
            let progress = progress.clone();
            thread::spawn(move || {
                assert!(progress.end_waiting(Phase::Granted));
                progress.finish(7);
                progress.wake();
            })
        };
        progress.listen(&waker);
        let mut reply = (progress.phase() == Phase::Finished).then(|| progress.take_reply().expect("it was left"));
        runner.join().expect("it ends");
        if reply.is_none() {
            assert_eq!(rung.0.load(Ordering::SeqCst), 1, "nobody woke the client");
            reply = progress.take_reply();
        }
        assert_eq!((reply, progress.take_reply()), (Some(7), None));
    });
}

#[test]
fn who_is_invited_has_its_key_or_is_invited_again() {
    check(3, || {
        let progress: Arc<Progress<u32>> = Arc::new(Progress::new());
        let is_held = Arc::new(Mutex::new(true));
        let (rung, waker) = alarm();
        let releasing = {
            let (progress, is_held) = (progress.clone(), is_held.clone());
            move || {
                *is_held.lock().expect("nobody panics") = false;
                if progress.invite() {
                    progress.wake();
                }
            }
        };
        let holder = {
            let is_held = is_held.clone();
            thread::spawn(move || {
                releasing();
                // Somebody may take it before who was invited does.
                let overtakes = !std::mem::replace(&mut *is_held.lock().expect("nobody panics"), true);
                if overtakes {
                    releasing();
                }
            })
        };
        let poll = || {
            progress.listen(&waker);
            progress.take_invitation() && !std::mem::replace(&mut *is_held.lock().expect("nobody panics"), true)
        };
        let has_it = poll();
        holder.join().expect("it ends");
        if !has_it {
            assert!(rung.0.load(Ordering::SeqCst) > 0, "nobody woke the section");
            assert!(poll(), "the key is free, and who waits was not invited");
        }
    });
}

#[test]
fn a_client_that_waits_for_replicas_hears_of_each() {
    check(3, || {
        let (waiting, acknowledged) = (Arc::new(Waiting::new()), Arc::new(AtomicUsize::new(0)));
        let (rung, waker) = alarm();
        let replicas = {
            let (waiting, acknowledged) = (waiting.clone(), acknowledged.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    waiting.acknowledged();
                }
            })
        };
        waiting.listen(&waker);
        let seen = acknowledged.load(Ordering::SeqCst);
        replicas.join().expect("it ends");
        assert!(seen == 2 || rung.0.load(Ordering::SeqCst) > 0, "nobody woke the client");
    });
}

#[test]
fn nobody_is_inside_while_it_is_closed() {
    check(2, || {
        let turnstile = Arc::new(Turnstile::new(1));
        let keyspace = Guarded::new();
        let other = {
            let (turnstile, keyspace) = (turnstile.clone(), keyspace.clone());
            thread::spawn(move || {
                enter(&turnstile);
                let seen = keyspace.read();
                turnstile.leave(turnstile.counter(0));
                seen
            })
        };
        assert!(turnstile.close(), "there are no tickets");
        keyspace.write();
        turnstile.open();
        assert!(other.join().expect("it ends") <= 1);
    });
}

#[test]
fn a_ticket_keeps_it_open_until_it_is_gone() {
    check(2, || {
        let turnstile = Arc::new(Turnstile::new(1));
        let keyspace = Guarded::new();
        let section = {
            let (turnstile, keyspace) = (turnstile.clone(), keyspace.clone());
            thread::spawn(move || {
                enter(&turnstile);
                turnstile.add_ticket();
                turnstile.leave(turnstile.counter(0));
                // Outside, but its ticket exists: who closes the gate must not be alone yet.
                keyspace.read();
                turnstile.remove_ticket()
            })
        };
        if turnstile.close() {
            assert_eq!(turnstile.tickets(), 0);
            keyspace.write();
            turnstile.open();
        }
        assert!(section.join().expect("it ends"), "the last ticket knows that it is the last");
        assert!(turnstile.close());
        turnstile.open();
    });
}

/// Three threads take the lock of a stripe, one after the other and never two at once; one that sleeps is woken.
#[test]
fn a_stripe_is_locked_by_one_at_a_time() {
    check(2, || {
        let lock = Arc::new(sync::Futex::new(leaf_lock::FREE));
        let guarded = Guarded::new();
        let work = |lock: &sync::Futex, guarded: &Guarded| {
            if !leaf_lock::try_lock(lock) {
                let mut looks = 1;
                leaf_lock::lock(lock, || std::mem::take(&mut looks) > 0);
            }
            guarded.write();
            leaf_lock::unlock(lock);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (lock, guarded) = (lock.clone(), guarded.clone());
                thread::spawn(move || work(&lock, &guarded))
            })
            .collect();
        work(&lock, &guarded);
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        assert_eq!(guarded.read(), 3);
    });
}
