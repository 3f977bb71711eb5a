//! Clients that disconnect at every moment: whatever they wait for, no key stays held, no element is lost or
//! duplicated, and the clients behind them are woken.
//!
//! Within the process the moments are counted: each operation is dropped after 0, 1, 2… steps of a script that holds,
//! releases, pushes and polls. Over sockets they are random.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Mode, Section, Store, StoreOptions};
use sluicegate_testkit::{Client, wait_for};

use crate::support::Running;
use crate::{Random, ask, block_on, start};

/// A waker that records whether it was woken.
#[derive(Default)]
struct Alarm(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An operation that is polled only at first and after a wake-up, as by a runtime.
pub(crate) struct Task {
    future: Pin<Box<dyn Future<Output = Vec<u8>>>>,
    alarm: Arc<Alarm>,
    pub(crate) reply: Option<Vec<u8>>,
}

impl Task {
    pub(crate) fn new(future: impl Future<Output = Vec<u8>> + 'static) -> Task {
        let alarm = Arc::new(Alarm(AtomicBool::new(true)));
        Task { future: Box::pin(future), alarm, reply: None }
    }

    /// Polls the operation if it was woken; returns whether it has ended.
    pub(crate) fn turn(&mut self) -> bool {
        if self.reply.is_none() && self.alarm.0.swap(false, Ordering::SeqCst) {
            let waker = Waker::from(self.alarm.clone());
            if let Poll::Ready(reply) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.reply = Some(reply);
            }
        }
        self.reply.is_some()
    }

    /// Returns the reply, for which the operation is polled only when it is woken.
    #[track_caller]
    pub(crate) fn end(mut self, what: &str) -> Vec<u8> {
        wait_for(&format!("{what} to be woken"), || self.turn().then_some(()));
        self.reply.expect("it has ended")
    }
}

fn store() -> Store {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    for from in [0, 100, 200] {
        let many: String = (from..from + 100).map(|n| format!(" many:{n} v")).collect();
        ask(&store, &format!("MSET{many}"));
    }
    ask(&store, "RPUSH sorted 1 2 3");
    store
}

/// Returns a command as a task, which has already ended if the command did not wait.
fn command(store: &Store, command: &str) -> Task {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    match start(store, &mut Caller::default(), &words) {
        Ok(reply) => Task::new(std::future::ready(reply)),
        Err(parked) => Task::new(parked),
    }
}

/// Returns a section with one command, as a task.
fn section(store: &Store, keys: &[&str], command: &'static str) -> Task {
    let wait = store.section(keys.iter().map(|key| (0, key.as_bytes(), Mode::Exclusive)));
    Task::new(async move {
        let mut section = wait.await.expect("room");
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let mut out = Vec::new();
        let mut writer = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
        section.execute(0, &words, &mut writer).expect("declared");
        // The section is suspended in the middle, too.
        YieldOnce(false).await;
        out
    })
}

struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

pub(crate) fn hold(store: &Store, key: &str) -> Section {
    block_on(store.section([(0, key.as_bytes(), Mode::Exclusive)])).expect("a free key")
}

/// All operations: a name, the function that starts one, the key that is held against it, and the command that pushes
/// an element for which it may wait.
type Operation = (&'static str, fn(&Store) -> Task, &'static str, &'static str);

const OPERATIONS: &[Operation] = &[
    ("blpop", |store| command(store, "BLPOP l other 0"), "l", "RPUSH l x"),
    ("brpop behind another key", |store| command(store, "BRPOP other l 0"), "other", "RPUSH l x"),
    ("blmove", |store| command(store, "BLMOVE l to LEFT RIGHT 0"), "to", "RPUSH l x"),
    ("brpoplpush", |store| command(store, "BRPOPLPUSH l to 0"), "l", "RPUSH l x"),
    ("blmpop", |store| command(store, "BLMPOP 0 2 other l LEFT COUNT 3"), "l", "RPUSH l x"),
    ("bzpopmin", |store| command(store, "BZPOPMIN z other 0"), "z", "ZADD z 1 x"),
    ("bzmpop", |store| command(store, "BZMPOP 0 2 other z MAX"), "other", "ZADD z 1 x"),
    ("xread", |store| command(store, "XREAD BLOCK 0 STREAMS other l $ $"), "l", "XADD l * f x"),
    ("xread behind another key", |store| command(store, "XREAD BLOCK 0 STREAMS other l 0 $"), "other", "XADD l * f x"),
    ("append", |store| command(store, "APPEND k x"), "k", "SET n 1"),
    ("mset", |store| command(store, "MSET k 1 n 2 l:2 3"), "n", "SET n 1"),
    ("del of many", |store| big(store, "DEL"), "many:7", "SET n 1"),
    ("unlink of many", |store| big(store, "UNLINK"), "many:299", "SET n 1"),
    ("sort by others", |store| command(store, "SORT sorted BY w_* GET o_* STORE d"), "w_2", "SET n 1"),
    ("sort of a held list", |store| command(store, "SORT sorted BY w_* STORE d"), "sorted", "SET n 1"),
    ("flushdb", |store| command(store, "FLUSHDB"), "k", "SET n 1"),
    ("section", |store| section(store, &["k", "n"], "APPEND k x"), "n", "SET free 1"),
    ("section that pushes", |store| section(store, &["l"], "RPUSH l y"), "l", "SET n 1"),
];

fn big(store: &Store, name: &str) -> Task {
    let keys: String = (0..300).map(|n| format!(" many:{n}")).collect();
    command(store, &format!("{name}{keys}"))
}

/// Returns what is left: the number of elements of all lists and sorted sets.
fn elements(store: &Store) -> usize {
    let len = |command: &str| ask(store, command)[1..].trim().parse::<usize>().expect("a number");
    ["LLEN l", "LLEN to", "LLEN other", "ZCARD z"].into_iter().map(len).sum()
}

/// Drops an operation after `steps` of these steps: hold, start, poll, start of another behind it, release, poll, push,
/// poll.
fn drop_after(steps: usize, (name, operation, key, push): &Operation) {
    let store = store();
    let (waits_for_element, reads) = (name.starts_with('b'), name.starts_with("xread"));
    let mut held = None;
    let mut task = None;
    let mut behind = None;
    let mut pushed = false;
    for step in 0..steps {
        match step {
            0 => held = Some(hold(&store, key)),
            1 => task = Some(operation(&store)),
            3 => behind = Some(operation(&store)),
            5 => held = None,
            7 => {
                pushed = true;
                let done = command(&store, push).end(&format!("{name} after {steps}: {push}"));
                assert_ne!(done[0], b'-');
            }
            _ => {
                task.as_mut().map(Task::turn);
                behind.as_mut().map(Task::turn);
            }
        }
    }
    let served = task.as_mut().is_some_and(|task| task.reply.is_some());
    drop(task);
    drop(held);
    if waits_for_element || reads {
        // There are two more elements than were taken: the operation behind gets one of them, and one is left, unless
        // it takes all.
        if !pushed {
            assert_ne!(command(&store, push).end(push)[0], b'-', "{name} after {steps}");
        }
        if steps > 7 {
            assert!(served || steps == 8, "{name} was not served after {steps} steps");
            let again = push.replace(" x", " y");
            assert_ne!(command(&store, &again).end(&again)[0], b'-', "{name} after {steps}");
        }
    }
    if let Some(behind) = behind {
        let reply = behind.end(&format!("{name} behind, after {steps}"));
        assert_ne!(reply[0], b'-', "{name} after {steps}: {}", reply.escape_ascii());
    }
    if waits_for_element {
        let is_move = name.starts_with("blmove") || name.starts_with("brpop") && name.ends_with("push");
        let expected = match (steps, is_move) {
            // The operation behind was served, and took the pushed element.
            (4..=7, false) => 0,
            (4..=7, true) => 1,
            // The first was served, whether it got the reply or not; the second by the second push.
            (8.., false) => 0,
            (8.., true) => 2,
            _ => 1,
        };
        assert_eq!(elements(&store), expected, "{name} after {steps} steps");
    }
    wait_for("no ticket to be left", || (store.stats().tickets == 0).then_some(()));
    // Nothing is held any more, so all these commands run at once.
    for line in
        ["MSET k 1 n 2", "DEL l to other z d", "MSET w_1 1 w_2 2 w_3 3", "DEL many:7 many:299 sorted", "FLUSHALL"]
    {
        assert_ne!(ask(&store, line).as_bytes()[0], b'-');
    }
}

#[test]
fn operations_are_dropped_after_each_step() {
    for operation in OPERATIONS {
        for steps in 1..10 {
            drop_after(steps, operation);
        }
    }
}

/// A queue of operations on one key, of which one or several are dropped: all others get their turn.
#[test]
fn of_a_queue_any_part_may_leave() {
    const QUEUE: usize = 6;
    for leaving in 0..1 << QUEUE {
        let store = store();
        let section = hold(&store, "k");
        let start_one = |n: usize| match n % 3 {
            0 => command(&store, "APPEND k x"),
            1 => self::section(&store, &["k", "n"], "APPEND k y"),
            _ => command(&store, "SORT k BY w_* STORE d"),
        };
        let mut tasks: Vec<Option<Task>> = (0..QUEUE).map(|n| Some(start_one(n))).collect();
        tasks.iter_mut().flatten().for_each(|task| assert!(!task.turn()));
        for (n, task) in tasks.iter_mut().enumerate() {
            if leaving & 1 << n != 0 {
                *task = None;
            }
        }
        drop(section);
        let mut tasks: Vec<(usize, Task)> =
            tasks.into_iter().enumerate().filter_map(|(n, task)| Some((n, task?))).collect();
        wait_for(&format!("all but {leaving:b} to be woken"), || {
            // Each operation has a turn of its own, so all are polled.
            let ended = tasks.iter_mut().filter_map(|(_, task)| task.turn().then_some(())).count();
            (ended == tasks.len()).then_some(())
        });
        let stay = tasks.iter().filter(|(n, _)| n % 3 == 1).count();
        for (n, task) in tasks {
            let reply = task.reply.expect("it has ended");
            assert!(reply[0] != b'-' || n % 3 == 2, "{}", reply.escape_ascii());
        }
        // A parked command runs although its client has gone; a section that had not begun does not.
        assert_eq!(ask(&store, "STRLEN k"), format!(":{}\r\n", 2 + stay));
        assert_eq!(store.stats().tickets, 0);
    }
}

/// Commands executed aside are dropped at any moment.
#[test]
fn long_commands_are_given_up() {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    for from in (0..30_000).step_by(1_000) {
        let numbers: String = (from..from + 1_000).map(|n| format!(" {n}")).collect();
        ask(&store, &format!("SADD s{numbers}"));
        ask(&store, &format!("RPUSH l{numbers}"));
    }
    let mut random = Random(3);
    for round in 0..60 {
        let line = random.pick(&["SMEMBERS s", "SORT_RO l", "SORT l BY w_* STORE d", "SINTERCARD 1 s", "KEYS *"]);
        let mut task = command(&store, line);
        for _ in 0..round % 4 {
            task.turn();
        }
        (0..random.below(50)).for_each(|_| std::thread::yield_now());
        drop(task);
        // A writer waits for the readers, and gets its turn.
        assert_eq!(command(&store, "SADD s x").end("SADD")[0], b':');
        assert_eq!(command(&store, "SREM s x").end("SREM"), b":1\r\n");
    }
    wait_for("no ticket to be left", || (store.stats().tickets == 0).then_some(()));
    assert_eq!(command(&store, "FLUSHALL").end("FLUSHALL"), b"+OK\r\n");
}

/// Connections that are reset at any moment while they block, park, run transactions or have subscriptions.
#[test]
fn connections_are_reset_at_any_moment() {
    const TOKENS: usize = 12;
    let ours = Running::with(ServerOptions::default(), 2);
    let mut admin = ours.connect();
    (0..TOKENS).for_each(|token| assert_eq!(admin.ask(&["RPUSH", "x", &token.to_string()]).as_bytes()[0], b':'));
    let pushed = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let lost: usize = std::thread::scope(|scope| {
        let (ours, over, pushed) = (&ours, &over, &pushed);
        scope.spawn(move || {
            let mut random = Random(77);
            while !over.load(Ordering::SeqCst) {
                let keys = [0, 1].map(|_| random.pick(&["x", "y", "queue", "counter"]).as_bytes());
                let section = block_on(ours.store().section(keys.map(|key| (0, key, Mode::Exclusive)))).expect("room");
                (0..random.below(200)).for_each(|_| std::thread::yield_now());
                drop(section);
            }
        });
        // Elements for the clients that remove them for good.
        scope.spawn(move || {
            let mut client = ours.connect();
            while !over.load(Ordering::SeqCst) {
                assert_eq!(client.ask(&["RPUSH", "queue", "e"]).as_bytes()[0], b':');
                pushed.fetch_add(1, Ordering::SeqCst);
            }
        });
        let clients: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || (0..120).map(|round| leave(ours, &mut Random(seed * 1_000 + round))).sum::<usize>())
            })
            .collect();
        let lost = clients.into_iter().map(|client| client.join().expect("it ended")).sum();
        over.store(true, Ordering::SeqCst);
        lost
    });
    // Clients that left before they were accepted are served, too.
    let all = format!("\r\ntotal_connections_received:{}\r\n", 2 + 3 * 120);
    wait_for("all to come", || admin.ask(&["INFO", "stats"]).contains(&all).then_some(()));
    wait_for("all to leave", || (ours.server.client_count() == 1).then_some(()));
    wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
    assert!(admin.ask(&["INFO", "clients"]).contains("blocked_clients:0\r\n"));
    assert_eq!(admin.ask(&["PUBSUB", "CHANNELS"]), "*0\r\n");
    // Tokens are only moved, so each must exist exactly once.
    let mut tokens: BTreeMap<String, usize> = BTreeMap::new();
    for key in ["x", "y"] {
        let reply = admin.ask(&["LRANGE", key, "0", "-1"]);
        for line in reply.lines().filter(|line| !line.starts_with(['*', '$'])) {
            *tokens.entry(line.to_owned()).or_default() += 1;
        }
    }
    assert!(tokens.len() == TOKENS && tokens.values().all(|count| *count == 1), "{tokens:?}");
    // A client that left lost at most one of the elements removed for good.
    let left = admin.ask(&["LLEN", "queue"])[1..].trim().parse::<usize>().expect("a number");
    let pushed = pushed.load(Ordering::SeqCst);
    assert!(left + lost >= pushed && left <= pushed, "{left} of {pushed} are left, {lost} may have gone");
    let both = admin.ask(&["MGET", "counter", "twin"]);
    let values: Vec<&str> = both.lines().skip(1).collect();
    assert_eq!(values[..values.len() / 2], values[values.len() / 2..], "{both}");
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
}

/// Runs a client that begins something and leaves after a while; returns how many elements it may have taken.
fn leave(ours: &Running, random: &mut Random) -> usize {
    let mut client: Client = ours.connect();
    let mut bytes = Vec::new();
    let mut taken = 0;
    match random.below(7) {
        0 => bytes.extend_from_slice(b"BLMOVE x y LEFT RIGHT 0\r\nBLMOVE y x RIGHT LEFT 0\r\n"),
        1 => bytes.extend_from_slice(b"BLMOVE none y LEFT RIGHT 0\r\n"),
        2 => {
            bytes.extend_from_slice(b"BLPOP none queue 0\r\n");
            taken = 1;
        }
        3 => {
            bytes.extend_from_slice(b"MULTI\r\nINCR counter\r\nLMOVE x y LEFT LEFT\r\n");
            (0..100 * random.below(3)).for_each(|_| bytes.extend_from_slice(b"GET counter\r\n"));
            bytes.extend_from_slice(b"INCR twin\r\nEXEC\r\n");
        }
        4 => bytes.extend_from_slice(b"SUBSCRIBE a b\r\nPSUBSCRIBE c*\r\nSSUBSCRIBE s\r\n"),
        5 => bytes.extend_from_slice(b"WATCH x y counter\r\nMULTI\r\nLMOVE y x LEFT LEFT\r\nEXEC\r\nWAIT 1 0\r\n"),
        _ => bytes.extend_from_slice(b"LMOVE x y LEFT RIGHT\r\nRPOPLPUSH y x\r\nSORT x BY w_*\r\n"),
    }
    let cut = if random.below(3) == 0 { random.below(bytes.len()) } else { bytes.len() };
    client.send(&bytes[..cut]);
    (0..random.below(400)).for_each(|_| std::thread::yield_now());
    if random.below(2) == 0 {
        client.reset()
    } else {
        drop(client)
    }
    taken
}
