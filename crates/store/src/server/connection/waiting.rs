//! How a connection waits: for the reply of a parked or blocked command, for a future, until the client has gone.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use super::super::replicaof;
use super::super::workspace::Workspace;
use super::{Connection, WRITE_SHARE};
use crate::config::ServerOptions;
use crate::memory::Share;
use crate::park::Parked;

impl Connection {
    /// Records that the client waits for a reply, with this many bytes of words.
    pub(super) fn waits(&self, workspace: &Workspace, words: usize) {
        self.tell(true, workspace.buffers());
        self.client.activity.lock().words = words;
    }

    /// Records that the client waits no longer, before it gets the reply.
    pub(super) fn goes_on(&self) {
        let mut activity = self.client.activity.lock();
        activity.is_blocked = false;
        activity.waits = None;
        activity.words = 0;
    }

    /// Appends a reply that was waited for, or [`None`] if the client has gone meanwhile. Returns false if the connection has to
    /// be closed.
    pub(super) async fn end_wait(
        &mut self,
        came: Option<(Vec<u8>, Duration)>,
        workspace: &mut Workspace,
        options: &ServerOptions,
    ) -> bool {
        let Some((bytes, worked)) = came else { return false };
        self.goes_on();
        let closes = replicaof::closes(&bytes);
        self.session.finish_parked(&self.worker, &self.client, worked, bytes, &mut workspace.output);
        if closes {
            self.flush(&mut workspace.output, options).await;
        }
        !closes && !self.exceeds(&workspace.output, options)
    }

    /// Returns the reply of a parked command; messages are sent meanwhile. `None` if the connection has to be closed.
    pub(super) async fn reply_of(
        &mut self,
        mut reply: Parked,
        workspace: &mut Workspace,
        options: &ServerOptions,
    ) -> Option<(Vec<u8>, Duration)> {
        // The words of the command count while its client waits for the reply.
        let mut kept = Share::default();
        kept.set(&self.client.account, workspace.waits);
        if reply.waiter().is_some() {
            let bytes = self.while_blocked(reply, workspace, options).await;
            // The waiting time does not count as time of the command.
            self.session.now = Instant::now();
            return bytes.map(|bytes| (bytes, Duration::ZERO));
        }
        let mut all = Duration::ZERO;
        loop {
            let came = poll_fn(|cx| match pin!(&mut reply).poll(cx) {
                Poll::Ready(bytes) => Poll::Ready(Some(bytes)),
                // The waker of the connection is registered below.
                Poll::Pending => {
                    self.client.register(cx.waker());
                    // A message about a key that the command has read must follow its reply. Scripts and held keys end
                    // soon; a command that waits for an element is treated above.
                    let sends = self.has_messages() && !self.session.tracks_keys();
                    if sends { Poll::Ready(None) } else { Poll::Pending }
                }
            });
            let (bytes, worked) = self.unless_killed(Box::pin(came)).await?;
            all += worked;
            if let Some(bytes) = bytes {
                return Some((bytes, all + reply.worked()));
            }
            self.client.outbox.drain_some(WRITE_SHARE, &mut workspace.output);
            workspace.count(&self.worker.server.store.0.memory);
            if !Box::pin(self.flush(&mut workspace.output, options)).await {
                return None;
            }
        }
    }

    /// Waits for the reply of a blocked command or its deadline. Returns `None` once the client has disconnected or is
    /// killed, or the server stops. Messages are sent meanwhile. The client's data is read, since its disconnection
    /// shows only after it, and processed later.
    async fn while_blocked(
        &mut self,
        mut parked: Parked,
        workspace: &mut Workspace,
        options: &ServerOptions,
    ) -> Option<Vec<u8>> {
        /// An event that ends a period of waiting.
        enum Came {
            Reply(Vec<u8>),
            Messages,
            End,
        }
        let mut timer = parked.deadline().map(|deadline| Box::pin(tokio::time::sleep_until(deadline.into())));
        let reply = loop {
            let came = poll_fn(|cx| {
                self.client.register(cx.waker());
                if let Poll::Ready(bytes) = pin!(&mut parked).poll(cx) {
                    return Poll::Ready(Came::Reply(bytes));
                }
                if self.client.is_killed() || self.worker.server.is_stopping() {
                    return Poll::Ready(Came::End);
                }
                if timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                    timer = None;
                    parked.time_out();
                    return pin!(&mut parked).poll(cx).map(Came::Reply);
                }
                if self.has_messages() {
                    return Poll::Ready(Came::Messages);
                }
                self.poll_gone(cx, workspace, usize::MAX, options).map(|()| Came::End)
            });
            match came.await {
                Came::Reply(bytes) => break Some(bytes),
                Came::End => break None,
                Came::Messages => {
                    let mut messages = Vec::new();
                    self.client.outbox.drain_some(WRITE_SHARE, &mut messages);
                    let ready = poll_fn(|cx| Poll::Ready(pin!(&mut parked).poll(cx)));
                    if let Poll::Ready(bytes) = ready.await {
                        // Some of them may be about the keys that the command has read, so they follow its reply.
                        self.client.outbox.put_back(messages);
                        break Some(bytes);
                    }
                    workspace.output.append(&mut messages);
                    workspace.count(&self.worker.server.store.0.memory);
                    if !self.flush(&mut workspace.output, options).await {
                        break None;
                    }
                }
            }
        };
        *self.client.blocked.lock() = None;
        reply
    }

    /// Reads the client's data, to be processed later, until it has disconnected, which shows only after the data. With so
    /// many bytes of data no more are read.
    fn poll_gone(
        &mut self,
        cx: &mut TaskContext<'_>,
        workspace: &mut Workspace,
        most: usize,
        options: &ServerOptions,
    ) -> Poll<()> {
        loop {
            if workspace.input.len() - workspace.start >= most {
                return Poll::Pending;
            }
            if (workspace.input.len() - workspace.start) as u64 > options.client_query_buffer_limit {
                self.worker.counters.query_limit.add(1);
                return Poll::Ready(());
            }
            workspace.make_room();
            match ready!(pin!(self.stream.read_buf(&mut workspace.input)).poll(cx)) {
                Ok(count) if count > 0 => {
                    workspace.count(&self.worker.server.store.0.memory);
                    self.client.activity.lock().query = workspace.input.len() - workspace.start;
                    self.worker.counters.reads.add(1);
                    self.worker.counters.input_bytes.add(count as u64);
                }
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Like [`unless_killed`](Self::unless_killed), for waits without an end: returns `None` also after a
    /// disconnection, which shows as long as the client sends no more than `most` bytes meanwhile.
    pub(super) async fn unless_gone<T>(
        &mut self,
        mut future: impl Future<Output = T> + Unpin,
        workspace: &mut Workspace,
        most: usize,
        options: &ServerOptions,
    ) -> Option<(T, Duration)> {
        let mut worked = Duration::ZERO;
        poll_fn(|cx| match self.poll_unless_killed(cx, &mut future, &mut worked) {
            Poll::Pending => self.poll_gone(cx, workspace, most, options).map(|()| None),
            ready => ready,
        })
        .await
    }

    /// Returns the future's result with the time of its polls, which is its own work; `None` once the client is killed.
    pub(super) async fn unless_killed<T>(&self, mut future: impl Future<Output = T> + Unpin) -> Option<(T, Duration)> {
        let mut worked = Duration::ZERO;
        poll_fn(|cx| self.poll_unless_killed(cx, &mut future, &mut worked)).await
    }

    /// One poll of [`unless_killed`](Self::unless_killed); `worked` is the time of all polls so far.
    fn poll_unless_killed<T>(
        &self,
        cx: &mut TaskContext<'_>,
        future: &mut (impl Future<Output = T> + Unpin),
        worked: &mut Duration,
    ) -> Poll<Option<(T, Duration)>> {
        self.client.register(cx.waker());
        if self.client.is_killed() {
            return Poll::Ready(None);
        }
        let start = Instant::now();
        let polled = pin!(future).poll(cx);
        *worked += start.elapsed();
        polled.map(|result| Some((result, *worked)))
    }
}
