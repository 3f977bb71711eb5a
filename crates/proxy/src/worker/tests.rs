use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};

use super::*;
use crate::process::Process;
use crate::running::tests::without_proxies;

/// Counts its calls.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn station() -> Rc<Station> {
    Rc::new(Station {
        peers: Vec::new().into(),
        phase: Cell::new(Phase::Serving),
        sessions: RefCell::default(),
        next_stream: Cell::new(0),
        clocks: Cell::new((Instant::now(), SystemTime::now())),
        current: RefCell::new(None),
        elders: RefCell::default(),
    })
}

/// A worker that is of a process with two.
fn worker(index: usize) -> Rc<Worker> {
    Worker::new(index, without_proxies(&Process::new(2, None), None), station(), None)
}

#[test]
fn numbers_of_streams_name_their_worker() {
    let worker = worker(1);
    assert_eq!([worker.next_stream_id(), worker.next_stream_id()], [1 << 48, 1 << 48 | 1]);
}

#[test]
fn the_wall_clock_is_read_once_a_second() {
    let worker = worker(0);
    let (known, wall) = (Instant::now() + Duration::from_secs(5), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000));
    worker.station.clocks.set((known, wall));
    let millis = Duration::from_millis;
    assert_eq!(worker.wall_clock(known), wall);
    assert_eq!(worker.wall_clock(known + millis(999)), wall + millis(999));
    assert_eq!(worker.wall_clock(known - millis(3_000)), wall - millis(3_000), "a moment that was noted before");
    let before = SystemTime::now();
    assert!(worker.wall_clock(known + millis(1_000)) >= before, "the clock is read again");
}

#[test]
fn a_place_of_an_ended_session_is_used_again_without_its_past() {
    let worker = worker(0);
    let (first, second) = (worker.register_session(), worker.register_session());
    assert_eq!([first.number(), second.number()], [0, 1]);
    worker.kill_session(0);
    drop(first);
    let again = worker.register_session();
    assert_eq!(again.number(), 0);
    let mut cx = Context::from_waker(Waker::noop());
    let mut served = pin!(again.watch().unless_killed(Box::pin(pending::<()>())));
    assert!(served.as_mut().poll(&mut cx).is_pending(), "it was not this session that was ended");
    // A number that no session has, as an operator may name it late.
    worker.kill_session(7);
}

#[test]
fn an_ended_session_is_woken_and_polled_once_more() {
    let worker = worker(0);
    let place = worker.register_session();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);

    let polls = Cell::new(0);
    let counting = poll_fn(|_| {
        polls.set(polls.get() + 1);
        Poll::<()>::Pending
    });
    let mut served = pin!(place.watch().unless_killed(counting));
    assert!(served.as_mut().poll(&mut cx).is_pending());
    worker.kill_session(place.number());
    assert_eq!(count.get(), 1);
    assert_eq!(served.as_mut().poll(&mut cx), Poll::Ready(None));
    assert_eq!(polls.get(), 2);

    // A stream that ends by itself in its last poll leaves the connection to the next one.
    let mut served = pin!(place.watch().unless_killed(std::future::ready(1)));
    assert_eq!(served.as_mut().poll(&mut cx), Poll::Ready(Some(1)));
    let mut next = pin!(place.watch().unless_killed(Box::pin(pending::<()>())));
    assert!(next.as_mut().poll(&mut cx).is_pending());
}

#[test]
fn sessions_that_wait_are_woken_together() {
    let worker = worker(0);
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    let places: Vec<SessionPlace> = counts.iter().map(|_| worker.register_session()).collect();
    let silent = worker.register_session();
    for (place, count) in places.iter().zip(&counts) {
        place.waits(&Waker::from(count.clone()));
    }
    worker.wake_idle_sessions();
    drop(places);
    worker.wake_idle_sessions();
    assert_eq!(counts.map(|count| count.get()), [1, 1]);
    drop(silent);
}

#[test]
fn a_worker_finds_itself_under_older_and_newer_configurations() {
    let (process, station) = (Process::new(1, None), station());
    let old = Worker::new(0, without_proxies(&process, None), station.clone(), None);
    let new = Worker::new(0, without_proxies(&process, Some(&old.running)), station.clone(), Some(&old));
    *station.current.borrow_mut() = Some(new.clone());
    station.elders.borrow_mut().push(Rc::downgrade(&old));
    assert!(old.newer().is_some_and(|newer| Rc::ptr_eq(&newer, &new)));
    assert!(new.newer().is_none());
    let generations = |worker: &Rc<Worker>| worker.all().iter().map(|one| one.running.generation).collect::<Vec<_>>();
    assert_eq!(generations(&old), [new.running.generation, old.running.generation]);
    // Streams have numbers of the thread, whatever they are served under.
    assert_eq!([old.next_stream_id(), new.next_stream_id()], [0, 1]);
    drop(old);
    assert_eq!(generations(&new), [new.running.generation]);
    *station.current.borrow_mut() = None;
}
