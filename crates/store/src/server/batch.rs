//! Batched sending of replies.
//!
//! One poll of the runtime may find many connections readable. Their turns run one after the other, and if each sent
//! its replies immediately, each would wake its client, which answers and sleeps again while the next turn runs: waking
//! a sleeping thread is the most expensive part of a small send. So the replies of a turn wait in a buffer of the
//! worker, and a task sends them all. It is woken by the first of them, and so it is queued in the runtime behind every
//! connection that the same poll found readable, and before the connections of the next poll.
//!
//! A worker with a single connection sends immediately, and so does a turn with many bytes. Replies wait for at most
//! [`WAIT_MAX`] while other turns begin. Order is kept: an immediate send first sends the waiting data.
//!
//! Replies that wait for the disk are sent as far as what they follow is on it: those of turns that ran while the disk was
//! written wait for the next time, and keep nobody waiting.
//!
//! Data that a socket does not accept stays with its [`Exit`], and the connection, which is woken, sends it before it
//! reads anything more.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use sluicegate_transport::WriteHalf;

use super::client::Client;
use super::counters::WorkerCounters;

/// The maximum number of bytes of a turn that are batched; longer output is sent immediately, without being copied.
const TURN_MAX: usize = 4 * 1024;

/// The maximum size of a batch, in bytes; when it would be exceeded, everything is sent.
const BATCH_MAX: usize = 64 * 1024;

/// The maximum time that replies wait while other turns begin.
const WAIT_MAX: Duration = Duration::from_micros(500);

/// The state of a connection's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No output waits.
    Clear,
    /// Replies are in the worker's batch.
    Waiting,
    /// The socket did not accept all replies; the remaining bytes are in `rest`.
    Stuck,
    /// The client has disconnected.
    Gone,
}

/// The sending side of a connection, shared with the batch.
pub(super) struct Exit {
    half: WriteHalf,
    client: Arc<Client>,
    /// Never [`State::Waiting`], which its turns in the batch decide.
    own: Cell<State>,
    /// The number of its turns in the batch.
    batched: Cell<usize>,
    rest: RefCell<Vec<u8>>,
}

impl Exit {
    pub fn new(half: WriteHalf, client: Arc<Client>) -> Rc<Exit> {
        Rc::new(Exit { half, client, own: Cell::new(State::Clear), batched: Cell::new(0), rest: RefCell::default() })
    }

    pub fn state(&self) -> State {
        match self.own.get() {
            State::Clear if self.is_batched() => State::Waiting,
            own => own,
        }
    }

    /// Returns whether replies are in the worker's batch, behind those that the socket did not accept.
    pub fn is_batched(&self) -> bool {
        self.batched.get() > 0
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.half.try_write(bytes)
    }

    /// Moves the data that the socket did not accept to the front of `output`, which its connection now sends.
    pub fn take_rest(&self, output: &mut Vec<u8>) {
        if self.own.get() == State::Stuck {
            self.own.set(State::Clear);
            let mut rest = self.rest.take();
            rest.append(output);
            *output = rest;
        }
    }

    /// Disconnects the client.
    fn leave(&self) {
        self.own.set(State::Gone);
        self.client.wake();
    }

    /// Sends a turn's replies as far as the socket accepts them.
    fn send(&self, bytes: &[u8], counters: &WorkerCounters) {
        match self.own.get() {
            State::Stuck => return self.rest.borrow_mut().extend_from_slice(bytes),
            State::Gone => return,
            State::Clear | State::Waiting => {}
        }
        let mut sent = 0;
        while sent < bytes.len() {
            match self.try_write(&bytes[sent..]) {
                Ok(count) => {
                    sent += count;
                    counters.writes.add(1);
                    counters.output_bytes.add(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let waits = error.kind() == io::ErrorKind::WouldBlock;
                    if waits {
                        self.rest.borrow_mut().extend_from_slice(&bytes[sent..]);
                    }
                    self.own.set(if waits { State::Stuck } else { State::Gone });
                    return self.client.wake();
                }
            }
        }
        self.own.set(State::Clear);
        self.client.outbox.left(0);
    }
}

/// The batched replies of a worker.
#[derive(Default)]
pub(super) struct Batch {
    turns: RefCell<Turns>,
    /// The start of the first turn whose replies are in the batch.
    since: Cell<Option<Instant>>,
    /// The number of turns at the last look.
    looked: Cell<usize>,
    /// The waker of the task that sends the batch.
    sender: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Turns {
    bytes: Vec<u8>,
    all: Vec<Turn>,
}

/// The replies of a turn.
struct Turn {
    exit: Rc<Exit>,
    /// The end of its bytes.
    end: usize,
    /// The number of the last change that the replies may follow, if they wait until it is on the disk. It never falls from
    /// one turn to the next.
    number: u64,
    /// Whether it has called commands that may write.
    has_written: bool,
}

impl Batch {
    /// Adds a turn's replies to the batch. Returns false if they must be sent immediately. `now` is the start of the
    /// turn, `number` that of the last change that they follow, if they wait until it is on the disk.
    pub fn keep(&self, exit: &Rc<Exit>, bytes: &[u8], now: Instant, number: Option<u64>, has_written: bool) -> bool {
        if bytes.len() > TURN_MAX {
            return false;
        }
        let sender = self.sender.borrow();
        let Some(sender) = &*sender else { return false };
        let mut turns = self.turns.borrow_mut();
        if turns.bytes.len() + bytes.len() > BATCH_MAX {
            return false;
        }
        turns.bytes.extend_from_slice(bytes);
        let end = turns.bytes.len();
        let number = turns.last_number().max(number.unwrap_or(0));
        turns.all.push(Turn { exit: exit.clone(), end, number, has_written });
        exit.batched.set(exit.batched.get() + 1);
        if self.since.get().is_none() {
            self.since.set(Some(now));
            sender.wake_by_ref();
        }
        true
    }

    /// Sets the waker of the task that sends the batch.
    pub fn set_sender(&self, waker: &Waker) {
        let mut sender = self.sender.borrow_mut();
        if !sender.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *sender = Some(waker.clone());
        }
    }

    /// Returns whether, at `now`, replies have waited for longer than [`WAIT_MAX`].
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.since.get().is_some_and(|since| now.saturating_duration_since(since) > WAIT_MAX)
    }

    /// Returns the numbers of the last change that the first replies may follow, and all; [`None`] if there are no replies.
    pub fn numbers(&self) -> Option<(u64, u64)> {
        let turns = self.turns.borrow();
        turns.all.first().map(|first| (first.number, turns.last_number()))
    }

    /// Returns whether there are more turns than at the last look.
    pub fn has_grown(&self) -> bool {
        let turns = self.turns.borrow().all.len();
        self.looked.replace(turns) < turns
    }

    /// Sends the replies of the turns that follow no change behind this number.
    pub fn send(&self, counters: &WorkerCounters, durable: u64) {
        self.take(durable, |exit, bytes, _| exit.send(bytes, counters));
    }

    /// Sends everything, although what the replies follow is not on the disk and may never be: clients that may have written
    /// it are disconnected instead.
    pub fn fail(&self, counters: &WorkerCounters) {
        self.take(u64::MAX, |exit, bytes, has_written| match has_written {
            true => exit.leave(),
            false => exit.send(bytes, counters),
        });
    }

    /// Takes the turns that follow no change behind this number out, and calls `end` with each: its bytes, and whether it may
    /// have written.
    fn take(&self, durable: u64, end: impl Fn(&Exit, &[u8], bool)) {
        if self.since.get().is_none() {
            return;
        }
        // Taken out of the cell first, because waking and closing run code outside this module, which may use the
        // batch.
        let mut taken = self.turns.take();
        let count = taken.all.partition_point(|turn| turn.number <= durable);
        self.looked.set(self.looked.get().saturating_sub(count));
        if count < taken.all.len() {
            self.turns.replace(taken.split_off(count));
        } else {
            self.since.set(None);
        }
        let mut start = 0;
        for turn in taken.all.drain(..) {
            turn.exit.batched.set(turn.exit.batched.get() - 1);
            end(&turn.exit, &taken.bytes[start..turn.end], turn.has_written);
            start = turn.end;
        }
        taken.bytes.clear();
        let mut turns = self.turns.borrow_mut();
        if turns.all.is_empty() {
            *turns = taken;
        }
    }
}

impl Turns {
    fn last_number(&self) -> u64 {
        self.all.last().map_or(0, |turn| turn.number)
    }

    /// Splits off the turns behind so many.
    fn split_off(&mut self, count: usize) -> Turns {
        let start = count.checked_sub(1).map_or(0, |last| self.all[last].end);
        let mut all = self.all.split_off(count);
        all.iter_mut().for_each(|turn| turn.end -= start);
        Turns { bytes: self.bytes.split_off(start), all }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_transport::Socket;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Worker;
    use super::super::tests::on_worker;

    use super::*;

    /// Connects a client to the worker; its connection has little room for replies.
    async fn connect(worker: &Rc<Worker>, listener: &TcpListener) -> TcpStream {
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (stream, peer) = listener.accept().await.expect("accepted");
        socket2::SockRef::from(&stream).set_send_buffer_size(1).expect("settable");
        socket2::SockRef::from(&client).set_recv_buffer_size(32 << 10).expect("settable");
        worker.accept_tcp(Socket::Tcp(stream), peer);
        client
    }

    /// Runs the worker's connections until they have executed this number of commands.
    async fn until_run(worker: &Worker, commands: u64) {
        while worker.counters.commands.get() < commands {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn replies_wait_for_each_other_unless_there_is_one_client() {
        on_worker(async |worker, listener| {
            worker.batch.set_sender(Waker::noop());
            let mut first = connect(&worker, &listener).await;
            first.write_all(b"PING\r\n").await.expect("sent");
            until_run(&worker, 1).await;
            assert_eq!(worker.counters.writes.get(), 1);
            let mut second = connect(&worker, &listener).await;
            first.write_all(b"PING\r\n").await.expect("sent");
            second.write_all(b"PING\r\n").await.expect("sent");
            until_run(&worker, 3).await;
            assert_eq!(worker.counters.writes.get(), 1);
            worker.send_batch();
            assert_eq!(worker.counters.writes.get(), 3);
            // Data that is sent immediately follows the waiting data.
            first.write_all(b"PING\r\n").await.expect("sent");
            until_run(&worker, 4).await;
            first.write_all(b"PING\r\nQUIT\r\n").await.expect("sent");
            let mut all = String::new();
            first.read_to_string(&mut all).await.expect("closed");
            assert_eq!(all, ["+PONG\r\n"; 4].concat() + "+OK\r\n");
            drop(second);
        });
    }

    #[test]
    fn what_a_socket_does_not_take_comes_later_and_before_what_follows() {
        on_worker(async |worker, listener| {
            tokio::task::spawn_local(worker.clone().send_batches());
            let _other = connect(&worker, &listener).await;
            let mut client = connect(&worker, &listener).await;
            let echo = |round: u64| {
                let text = format!("{round:03000}");
                (format!("*2\r\n$4\r\nECHO\r\n$3000\r\n{text}\r\n"), format!("$3000\r\n{text}\r\n"))
            };
            let (mut rounds, mut expected) = (0, String::new());
            while worker.counters.output_bytes.get() == expected.len() as u64 {
                let (request, reply) = echo(rounds);
                client.write_all(request.as_bytes()).await.expect("sent");
                rounds += 1;
                expected += &reply;
                until_run(&worker, rounds).await;
                // The task that sends comes after the connection.
                tokio::task::yield_now().await;
            }
            assert!(rounds > 3, "the socket takes some");
            client.write_all(b"ECHO last\r\n").await.expect("sent");
            expected += "$4\r\nlast\r\n";
            let mut got = vec![0; expected.len()];
            client.read_exact(&mut got).await.expect("all replies");
            assert!(got == expected.as_bytes(), "{rounds} rounds");
            assert_eq!(worker.counters.output_bytes.get(), expected.len() as u64);
        });
    }

    /// Replies to what is on the disk do not wait for what came later; where the disk fails, whoever may have written is
    /// disconnected.
    #[test]
    fn replies_are_sent_as_far_as_the_disk_is() {
        on_worker(async |worker, listener| {
            worker.batch.set_sender(Waker::noop());
            let mut clients = Vec::new();
            for _ in 0..4 {
                clients.push(connect(&worker, &listener).await);
            }
            let turns = [(5, true), (5, false), (6, true), (7, false)];
            for (index, (number, has_written)) in turns.into_iter().enumerate() {
                clients[index].write_all(format!("ECHO {index}\r\n").as_bytes()).await.expect("sent");
                until_run(&worker, index as u64 + 1).await;
                {
                    let turn = &mut worker.batch.turns.borrow_mut().all[index];
                    (turn.number, turn.has_written) = (number, has_written);
                }
                assert!(worker.batch.has_grown() && !worker.batch.has_grown());
            }
            let counters = &worker.counters;
            worker.batch.send(counters, 4);
            assert_eq!((counters.writes.get(), worker.batch.numbers()), (0, Some((5, 7))));
            worker.batch.send(counters, 5);
            assert_eq!((counters.writes.get(), worker.batch.numbers()), (2, Some((6, 7))));
            assert!(!worker.batch.has_grown());
            // More of a client whose turn is in the batch comes behind that.
            let exit = worker.batch.turns.borrow().all[1].exit.clone();
            clients[3].write_all(b"ECHO 5\r\n").await.expect("sent");
            until_run(&worker, 5).await;
            worker.batch.turns.borrow_mut().all[2].number = 8;
            worker.batch.send(counters, 7);
            assert_eq!((counters.writes.get(), worker.batch.numbers()), (4, Some((8, 8))));
            assert_eq!(exit.state(), State::Waiting);
            clients[0].write_all(b"ECHO 4\r\n").await.expect("sent");
            until_run(&worker, 6).await;
            // It follows what the one before has seen.
            assert_eq!(worker.batch.numbers(), Some((8, 8)));
            assert!(worker.batch.has_grown());
            worker.batch.turns.borrow_mut().all[1].has_written = true;
            worker.batch.fail(counters);
            assert_eq!((counters.writes.get(), worker.batch.numbers()), (5, None));
            assert_eq!(exit.state(), State::Clear);
            drop(exit);
            let expected = ["$1\r\n0\r\n", "$1\r\n1\r\n", "$1\r\n2\r\n", "$1\r\n3\r\n$1\r\n5\r\n"];
            for (client, expected) in clients.iter_mut().zip(expected) {
                client.shutdown().await.expect("shut down");
                let mut all = String::new();
                client.read_to_string(&mut all).await.expect("closed");
                assert_eq!(all, expected);
            }
        });
    }

    #[test]
    fn who_leaves_with_replies_waiting_is_forgotten() {
        on_worker(async |worker, listener| {
            worker.batch.set_sender(Waker::noop());
            let _other = connect(&worker, &listener).await;
            let mut client = connect(&worker, &listener).await;
            client.write_all(b"PING\r\n").await.expect("sent");
            until_run(&worker, 1).await;
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("settable");
            drop(client);
            while worker.live.get() > 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(worker.batch.turns.borrow().all.len(), 0);
        });
    }
}
