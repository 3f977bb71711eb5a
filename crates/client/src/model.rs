//! Tests of the pool against a model, with a manual clock: an in-memory engine randomly refuses connections, delays
//! replies, stops answering and closes connections; random commands are sent, and the result of each is compared with
//! the documented behaviour.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::{Address, Client, Options};

/// The simulated engine of a test, if one is used instead of the network.
#[derive(Clone, Default)]
pub(crate) struct Place(Option<Arc<Simulated>>);

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}

impl PartialEq for Place {
    fn eq(&self, _: &Place) -> bool {
        true
    }
}

impl Eq for Place {}

impl Place {
    pub(crate) fn connect(&self) -> Option<io::Result<Line>> {
        self.0.as_ref().map(|engine| engine.connect())
    }
}

/// The client's end of a connection, which counts as open as long as this exists.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) stream: DuplexStream,
    seen: Arc<Mutex<Seen>>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.seen.lock().open -= 1;
    }
}

/// The current state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// It answers each command after this many milliseconds.
    Slow(u64),
    /// It does not listen; its connections end.
    Down,
    /// It accepts all commands and never replies.
    Silent,
}

/// The commands seen by an engine.
#[derive(Debug, Default)]
struct Seen {
    open: usize,
    most_open: usize,
    connects: Vec<Instant>,
    /// Commands that were carried out, by their numbers.
    done: Vec<i64>,
}

/// An engine in memory.
struct Simulated {
    state: watch::Sender<State>,
    seen: Arc<Mutex<Seen>>,
}

impl Simulated {
    fn connect(&self) -> io::Result<Line> {
        self.seen.lock().connects.push(Instant::now());
        if *self.state.borrow() == State::Down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = duplex(1 << 16);
        tokio::spawn(serve(far, self.state.subscribe(), self.seen.clone()));
        let mut seen = self.seen.lock();
        seen.open += 1;
        seen.most_open = seen.most_open.max(seen.open);
        Ok(Line { stream: near, seen: self.seen.clone() })
    }
}

async fn serve(mut stream: DuplexStream, mut state: watch::Receiver<State>, seen: Arc<Mutex<Seen>>) {
    let mut down = state.clone();
    tokio::select! {
        biased;
        () = async { drop(down.wait_for(|state| *state == State::Down).await) } => {}
        _ = converse(&mut stream, &mut state, &seen) => {}
    }
}

/// Commands are arrays of strings, so the parser of replies can read them too.
async fn converse(stream: &mut DuplexStream, state: &mut watch::Receiver<State>, seen: &Mutex<Seen>) -> io::Result<()> {
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut input = Vec::new();
    // The commands queued until EXEC.
    let mut queued: Option<Vec<i64>> = None;
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let mut at = 0;
        loop {
            let progress = parser.parse(&input[at..]).expect("commands are lists");
            at += progress.consumed;
            let Some(Reply::Array(words)) = progress.reply else { break };
            let word = |index: usize| match &words[index] {
                Reply::Bulk(word) => String::from_utf8_lossy(word).into_owned(),
                word => panic!("{word:?}"),
            };
            let now = *state.borrow();
            if let State::Slow(ms) = now {
                sleep(Duration::from_millis(ms)).await;
            }
            drop(state.wait_for(|state| *state != State::Silent).await.map_err(io::Error::other)?);
            let reply = match &*word(0) {
                "INCR" | "GET" => {
                    let number: i64 = word(1).parse().expect("a number");
                    match &mut queued {
                        Some(queued) => {
                            queued.push(number);
                            "+QUEUED\r\n".to_owned()
                        }
                        None => {
                            seen.lock().done.push(number);
                            format!(":{number}\r\n")
                        }
                    }
                }
                "MULTI" => {
                    assert!(queued.replace(Vec::new()).is_none(), "MULTI within MULTI");
                    "+OK\r\n".to_owned()
                }
                "EXEC" => {
                    let numbers = queued.take().expect("MULTI comes first");
                    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{numbers:?} in one transaction");
                    seen.lock().done.push(numbers[0]);
                    format!("*2\r\n:{0}\r\n:{0}\r\n", numbers[0])
                }
                _ => "+OK\r\n".to_owned(),
            };
            stream.write_all(reply.as_bytes()).await?;
        }
        input.drain(..at);
    }
}

/// The command sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Write,
    /// The same write twice, together.
    Together,
}

/// The events, in order.
#[derive(Clone, Debug)]
enum Event {
    Ask { db: u32, what: What },
    Wait(u64),
    Turn(State),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let state = prop_oneof![Just(State::Up), (1u64..150).prop_map(State::Slow), Just(State::Down), Just(State::Silent)];
    let what = prop_oneof![3 => Just(What::Read), 3 => Just(What::Write), 2 => Just(What::Together)];
    let event = prop_oneof![
        6 => (0u32..2, what).prop_map(|(db, what)| Event::Ask { db, what }),
        3 => prop_oneof![0u64..5, 0u64..400, 0u64..2000].prop_map(Event::Wait),
        1 => state.prop_map(Event::Turn),
    ];
    proptest::collection::vec(event, 1..80)
}

const QUEUE: Duration = Duration::from_millis(300);
const SERVER: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_millis(100);
const RATE: u32 = 10;
const MAXQUEUE: usize = 8;
/// The resolution of the timer.
const GRAIN: Duration = Duration::from_millis(5);

/// A command and its outcome.
struct Asked {
    number: i64,
    db: u32,
    what: What,
    took: Duration,
    reply: Reply,
}

/// Sends the command immediately; the future that is returned resolves to its result.
fn ask(client: &Client, number: i64, db: u32, what: What) -> impl Future<Output = Asked> + Send + 'static {
    let begun = Instant::now();
    let key = number.to_string();
    let full = client.connections().expect("an engine").queued >= MAXQUEUE as u64;
    let write: &[&[u8]] = &[b"INCR", key.as_bytes()];
    let started = match what {
        What::Read => client.start(db + 1, &[b"GET", key.as_bytes()]),
        What::Write => client.start(db + 1, write),
        What::Together => client.together(&String::new, db + 1, &[write, write]).expect("it is shared"),
    };
    if let Started::Done(Reply::Error(text)) = &started {
        assert!(text.starts_with("BREAKER") || full && text.starts_with("QUEUEFULL"), "{text}");
    } else {
        assert!(!full, "{number} found no room and was queued");
    }
    async move {
        let reply = started.finish().await;
        let reply = match reply {
            Reply::Array(both)
                if what == What::Together && both == [Reply::Integer(number), Reply::Integer(number)] =>
            {
                Reply::Integer(number)
            }
            reply => reply,
        };
        Asked { number, db, what, took: begun.elapsed(), reply }
    }
}

async fn play(events: Vec<Event>, breaker: u32) {
    let (state, _) = watch::channel(State::Up);
    let engine = Arc::new(Simulated { state, seen: Arc::default() });
    let client = Client::new(Options {
        maxconn: 2,
        maxqueue: MAXQUEUE,
        timeout_queue: QUEUE,
        timeout_server: SERVER,
        timeout_connect: CONNECT,
        timeout_idle: Some(Duration::from_millis(700)),
        max_lifetime: Some(Duration::from_secs(3)),
        connect_rate: RATE,
        breaker,
        place: Place(Some(engine.clone())),
        ..Options::new("model", Address::Tcp("engine".into(), 1))
    });
    let mut tasks = Vec::new();
    let mut number = 0;
    for event in events {
        match event {
            Event::Ask { db, what } => {
                number += 1;
                tasks.push(tokio::spawn(ask(&client, number, db, what)));
            }
            Event::Wait(ms) => sleep(Duration::from_millis(ms)).await,
            Event::Turn(state) => drop(engine.state.send_replace(state)),
        }
        let seen = client.connections().expect("an engine");
        assert!(seen.connected + seen.connecting <= 2, "{seen:?}");
    }
    engine.state.send_replace(State::Up);
    let back = Instant::now();
    loop {
        number += 1;
        let asked = ask(&client, number, 0, What::Write).await;
        let ends = asked.reply == Reply::Integer(number);
        tasks.push(tokio::spawn(async move { asked }));
        if ends {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    // The timeout of a command already sent may have to pass first, then the longest pause or the rate limit's.
    let bound = SERVER + CONNECT + Duration::from_millis(500) + GRAIN;
    assert!(back.elapsed() <= bound, "it took {:?} to notice that the engine is back", back.elapsed());
    let mut asked = Vec::new();
    for task in tasks {
        asked.push(task.await.expect("no panic"));
    }
    let mut done: HashMap<i64, usize> = HashMap::new();
    let order = {
        let seen = engine.seen.lock();
        assert!(seen.most_open <= 2, "{} connections at once", seen.most_open);
        for (index, at) in seen.connects.iter().enumerate() {
            let within = seen.connects[index..].iter().take_while(|other| **other < *at + Duration::from_secs(1));
            assert!(within.count() <= 2 * RATE as usize);
        }
        seen.done.iter().for_each(|number| *done.entry(*number).or_default() += 1);
        seen.done.clone()
    };
    let mut writes: HashMap<i64, u32> = HashMap::new();
    for Asked { number, db, what, took, reply } in asked {
        let reads = what == What::Read;
        let times = done.get(&number).copied().unwrap_or(0);
        // A read may wait and be sent twice.
        let bound = (QUEUE + SERVER) * if reads { 2 } else { 1 } + GRAIN;
        assert!(took <= bound, "{number} took {took:?}: {reply:?}");
        match &reply {
            Reply::Integer(told) => assert!(*told == number && times > 0, "{number} was answered {told}"),
            Reply::Error(text) => match text.split(' ').next().expect("a word") {
                "TIMEOUT" | "CONNLOST" => {}
                "QUEUEFULL" | "BREAKER" | "QUEUETIMEOUT" | "CONNECT" if times == 0 || reads => {}
                _ => panic!("{number} was done {times} times: {text}"),
            },
            reply => panic!("{number}: {reply:?}"),
        }
        assert!(times <= if reads { 2 } else { 1 }, "{number} was done {times} times");
        // A command without a waiting caller may be executed later.
        if !reads && reply == Reply::Integer(number) {
            writes.insert(number, db);
        }
    }
    for db in 0..2 {
        let order: Vec<i64> = order.iter().copied().filter(|number| writes.get(number) == Some(&db)).collect();
        assert!(order.is_sorted(), "writes of one database were done in the order {order:?}");
    }
    let seen = client.connections().expect("an engine");
    assert_eq!((seen.queued, seen.in_flight), (0, 0), "{seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_pool_keeps_its_promises(events in events(), breaker in 1u32..6) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(play(events, breaker));
    }
}
