//! Requests that wait for a server's slot, ordered by priority and arrival.
//!
//! A backend has one queue for requests that any of its servers may serve and one per server for those that only it may
//! serve (its only backup, the server selected by a hash or by persistence). All have the same order: by
//! `set-priority-class`, then by the time of arrival, which `set-priority-offset` shifts. A freed slot goes to the
//! first waiter of the two queues that it can serve. The slot is taken *for* the waiter, under the queue's lock, before
//! the waiter is woken: no waiter overtakes, and no slot is lost on the way, because a dropped waiter (timeout,
//! disconnected client) returns its grant.
//!
//! Invariant: after every operation, no waiter waits while a slot that it could use is free. The fast paths keep it
//! without the lock: a requester of a slot publishes itself and tries again, a releaser looks for waiters afterwards
//! (both SeqCst), so at least one of them acts.
//!
//! Cost: without waiters, one atomic load per freed slot. With waiters, one short lock per operation; under it a queue
//! is an ordered tree, so that joining, leaving and granting are O(log n) whatever the priorities. Memory: about 100
//! bytes per waiter, at most as many as streams, which the frontends' `maxconn` limits. Wakers are called after the
//! lock is released.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::shared::BackendShared;
use crate::balance::{Pick, Wish};

const NONE: u32 = u32::MAX;

/// Wakers to call once the lock is released.
type Wakers = SmallVec<[Waker; 4]>;

/// The order of a waiter: the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    class: i16,
    /// The time of arrival in milliseconds since the queue was created, plus the priority offset.
    moment: i64,
    ticket: u64,
}

/// `set-priority-class` and `set-priority-offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// The class, from -2047 to 2047; lower ones go first.
    pub class: i16,
    /// Milliseconds added to the time of arrival; a negative offset moves the request forward.
    pub offset: i32,
}

impl Priority {
    /// Sets the class, cut to the range of classes, as in HAProxy.
    pub(crate) fn set_class(&mut self, class: i64) {
        self.class = class.clamp(-2047, 2047) as i16;
    }

    /// Sets the offset, cut to the range of offsets, as in HAProxy.
    pub(crate) fn set_offset(&mut self, milliseconds: i64) {
        self.offset = milliseconds.clamp(-524_287, 524_287) as i32;
    }
}

#[derive(Debug)]
enum NodeState {
    Free,
    Waiting(Option<Waker>),
    Granted(usize, Positions),
    /// The waiter's server is out of service: it must choose again.
    SentAway(Positions),
}

#[derive(Debug)]
struct Node {
    state: NodeState,
    /// The server whose queue the waiter is in; `NONE` means the backend's queue.
    list: u32,
    rank: Rank,
    /// The list's `passed` when the waiter joined; the difference is its position for the log.
    passed: u32,
    /// Whether the waiter waits for its server even while that is down (`force-persist`).
    stays: bool,
}

#[derive(Clone, Debug, Default)]
struct List {
    waiting: BTreeSet<(Rank, u32)>,
    /// The number of grants from this list so far.
    passed: u32,
}

#[derive(Debug, Default)]
struct State {
    nodes: Vec<Node>,
    free: Vec<u32>,
    backend: List,
    servers: Vec<List>,
    tickets: u64,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The wait ends with a slot of this server.
    Granted(usize),
    /// The server that the request waited for takes no more requests: another one must be chosen.
    Again,
}

/// The positions of a finished wait, added to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    pub(super) server: u32,
    pub(super) backend: u32,
}

/// A backend's queues.
#[derive(Debug)]
pub struct Queue {
    waiting: AtomicU32,
    backend_waiting: AtomicU32,
    backend_max: AtomicU32,
    made: Instant,
    state: Mutex<State>,
}

impl State {
    fn list(&mut self, list: u32) -> &mut List {
        if list == NONE { &mut self.backend } else { &mut self.servers[list as usize] }
    }

    fn link(&mut self, index: u32, list: u32) {
        let rank = self.nodes[index as usize].rank;
        self.list(list).waiting.insert((rank, index));
        let passed = self.list(list).passed;
        let node = &mut self.nodes[index as usize];
        (node.list, node.passed) = (list, passed);
    }

    fn unlink(&mut self, index: u32) {
        let Node { list, rank, .. } = self.nodes[index as usize];
        self.list(list).waiting.remove(&(rank, index));
    }

    fn head(&self, list: u32) -> Option<(Rank, u32)> {
        let list = if list == NONE { &self.backend } else { &self.servers[list as usize] };
        list.waiting.first().copied()
    }

    fn join(&mut self, list: u32, priority: Priority, moment: i64, stays: bool) -> u32 {
        self.tickets += 1;
        let rank = Rank { class: priority.class, moment: moment + i64::from(priority.offset), ticket: self.tickets };
        let node = Node { state: NodeState::Waiting(None), list, rank, passed: 0, stays };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.link(index, list);
        index
    }

    fn release(&mut self, index: u32) {
        self.nodes[index as usize].state = NodeState::Free;
        self.free.push(index);
    }

    fn positions(&mut self, index: u32) -> Positions {
        let Node { list, passed, .. } = self.nodes[index as usize];
        // HAProxy counts the request itself: the first in line logs 1.
        let position = self.list(list).passed.wrapping_sub(passed) + 1;
        if list == NONE {
            Positions { server: 0, backend: position }
        } else {
            Positions { server: position, backend: 0 }
        }
    }
}

impl Queue {
    pub(super) fn new(servers: usize) -> Queue {
        Queue {
            waiting: AtomicU32::new(0),
            backend_waiting: AtomicU32::new(0),
            backend_max: AtomicU32::new(0),
            made: Instant::now(),
            state: Mutex::new(State { servers: vec![List::default(); servers], ..State::default() }),
        }
    }

    /// Returns the number of waiting requests, in the backend's queue and in those of its servers.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether there are waiters in the backend's queue or in that of one of its servers.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns whether there are waiters for any of the backend's servers.
    #[inline]
    pub(super) fn has_common_waiters(&self) -> bool {
        self.backend_waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns the number of requests in the backend's own queue (`qcur` of its BACKEND line).
    pub fn len(&self) -> u32 {
        self.backend_waiting.load(Ordering::Relaxed)
    }

    /// Returns whether the backend's own queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the highest value of [`Queue::len`] (`qmax`).
    pub fn highest(&self) -> u32 {
        self.backend_max.load(Ordering::Relaxed)
    }

    /// Resets the highest value (`clear counters`).
    pub fn clear_highest(&self) {
        self.backend_max.store(self.len(), Ordering::Relaxed);
    }

    /// Joins the backend's queue, or that of one server. The wait ends when a slot is granted or, unless it `stays`,
    /// when the server stops serving.
    pub(super) fn wait<'a>(
        &'a self,
        backend: &'a BackendShared,
        server: Option<usize>,
        priority: Priority,
        stays: bool,
    ) -> Wait<'a> {
        let mut wakers = Wakers::new();
        let moment = self.made.elapsed().as_millis() as i64;
        let node = {
            let mut state = self.state.lock();
            let node = state.join(server.map_or(NONE, |server| server as u32), priority, moment, stays);
            self.count(backend, server, 1);
            // A slot may have been freed before this request was visible.
            match server {
                Some(server) => self.serve(&mut state, backend, server, &mut wakers),
                None => self.serve_any(&mut state, backend, &mut wakers),
            }
            node
        };
        wakers.into_iter().for_each(Waker::wake);
        Wait { queue: self, backend, node, ended: None }
    }

    fn count(&self, backend: &BackendShared, server: Option<usize>, change: i32) {
        let add = |count: &AtomicU32, max: Option<&AtomicU32>| {
            let now = count.fetch_add(change as u32, Ordering::SeqCst).wrapping_add(change as u32);
            if let Some(max) = max
                && change > 0
            {
                max.fetch_max(now, Ordering::Relaxed);
            }
        };
        add(&self.waiting, None);
        match server {
            Some(index) => {
                let server = &backend.servers[index];
                add(&server.queued, Some(&server.queued_max));
                backend.load_changed(index);
            }
            None => add(&self.backend_waiting, Some(&self.backend_max)),
        }
    }

    /// Hands free slots of one server to its waiters.
    pub(super) fn dispatch(&self, backend: &BackendShared, server: usize) {
        if !self.has_waiters() {
            return;
        }
        let mut wakers = Wakers::new();
        self.serve(&mut self.state.lock(), backend, server, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Empties the queue of a server that stopped serving, under `option redispatch`: its waiters choose again. As in
    /// HAProxy, other waiters stay and get its slots, which become free as its requests end.
    pub(super) fn redistribute(&self, backend: &BackendShared, server: usize) {
        if !backend.lets_go() || !self.has_waiters() {
            return;
        }
        let mut wakers = Wakers::new();
        {
            let mut state = self.state.lock();
            let waiting: Vec<u32> = state.servers[server].waiting.iter().map(|(_, node)| *node).collect();
            for node in waiting {
                if !state.nodes[node as usize].stays {
                    let positions = state.positions(node);
                    self.end(&mut state, backend, node, NodeState::SentAway(positions), &mut wakers);
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn serve(&self, state: &mut State, backend: &BackendShared, server: usize, wakers: &mut Wakers) {
        let shared = &backend.servers[server];
        loop {
            let own = state.head(server as u32);
            let common = state.head(NONE).filter(|_| backend.serves_any(server));
            let Some((_, node)) = [own, common].into_iter().flatten().min() else { return };
            if !shared.take_slot() {
                return;
            }
            backend.load_changed(server);
            self.grant(state, backend, node, server, wakers);
        }
    }

    fn serve_any(&self, state: &mut State, backend: &BackendShared, wakers: &mut Wakers) {
        while let Some((_, head)) = state.head(NONE) {
            match backend.pick(Wish::default()) {
                Pick::Taken(server) => self.grant(state, backend, head, server, wakers),
                Pick::Wait(_) | Pick::Full | Pick::None => return,
            }
        }
    }

    fn grant(&self, state: &mut State, backend: &BackendShared, node: u32, server: usize, wakers: &mut Wakers) {
        let positions = state.positions(node);
        let list = state.nodes[node as usize].list;
        state.list(list).passed = state.list(list).passed.wrapping_add(1);
        backend.servers[server].granted.fetch_add(1, Ordering::Relaxed);
        self.end(state, backend, node, NodeState::Granted(server, positions), wakers);
    }

    /// Ends a wait with `how`.
    fn end(&self, state: &mut State, backend: &BackendShared, node: u32, how: NodeState, wakers: &mut Wakers) {
        state.unlink(node);
        let list = state.nodes[node as usize].list;
        self.count(backend, (list != NONE).then_some(list as usize), -1);
        let before = std::mem::replace(&mut state.nodes[node as usize].state, how);
        if let NodeState::Waiting(Some(waker)) = before {
            wakers.push(waker);
        }
    }
}

/// A place in a queue; the future resolves to the reason for which the wait ended. If it is dropped, it leaves the
/// queue, or passes the granted slot to the next waiter.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    queue: &'a Queue,
    backend: &'a BackendShared,
    node: u32,
    ended: Option<Positions>,
}

impl Wait<'_> {
    /// Returns its positions so far.
    pub(super) fn positions(&self) -> Positions {
        if let Some(positions) = self.ended {
            return positions;
        }
        let mut state = self.queue.state.lock();
        match state.nodes[self.node as usize].state {
            NodeState::Granted(_, positions) | NodeState::SentAway(positions) => positions,
            _ => state.positions(self.node),
        }
    }
}

impl Future for Wait<'_> {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let queue = self.queue;
        let mut state = queue.state.lock();
        let node = self.node;
        let (turn, positions) = match &mut state.nodes[node as usize].state {
            NodeState::Granted(server, positions) => (Turn::Granted(*server), *positions),
            NodeState::SentAway(positions) => (Turn::Again, *positions),
            NodeState::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            NodeState::Free => unreachable!("a place is freed only when its wait ends"),
        };
        state.release(node);
        drop(state);
        if let Turn::Granted(server) = turn {
            self.backend.servers[server].granted.fetch_sub(1, Ordering::Relaxed);
        }
        self.ended = Some(positions);
        Poll::Ready(turn)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let mut wakers = Wakers::new();
        {
            let mut state = self.queue.state.lock();
            match state.nodes[self.node as usize].state {
                NodeState::Granted(server, _) => {
                    state.release(self.node);
                    self.backend.servers[server].granted.fetch_sub(1, Ordering::Relaxed);
                    self.backend.give_slot(server);
                    self.queue.serve(&mut state, self.backend, server, &mut wakers);
                }
                NodeState::SentAway(_) => state.release(self.node),
                _ => {
                    state.unlink(self.node);
                    let list = state.nodes[self.node as usize].list;
                    self.queue.count(self.backend, (list != NONE).then_some(list as usize), -1);
                    state.release(self.node);
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}
