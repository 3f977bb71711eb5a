//! A dedicated connection, and the idle dedicated connections of a section.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyParser;
use tokio::time::Instant;

use super::lane::jittered;
use super::running::{READ, reply_parser};
use super::{Connected, Node};
use crate::stream::Stream;

/// The maximum number of messages of channels that are kept while a reply is awaited.
const MESSAGES_MAX: usize = 1000;

/// The transport of a connection.
#[derive(Debug)]
pub(crate) enum Line {
    /// A connection to the node of an engine, which counts as one of its connections.
    Engine(Connected),
    /// A socket whose other end is a store of this process.
    Here(Stream),
}

impl Line {
    pub(crate) fn stream(&mut self) -> &mut Stream {
        match self {
            Line::Engine(connected) => &mut connected.stream,
            Line::Here(stream) => stream,
        }
    }
}

/// A connection and its partially read data.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) line: Line,
    pub(crate) db: u32,
    pub(crate) input: Vec<u8>,
    /// Start of the unread bytes in `input`.
    pub(crate) start: usize,
    pub(crate) filled: usize,
    pub(crate) parser: ReplyParser,
    pub(crate) messages: VecDeque<Reply>,
    /// Whether a transaction may be open, or keys watched.
    pub(crate) unclean: bool,
    pub(crate) listens: bool,
    pub(crate) generation: u64,
    pub(crate) renew_at: Option<Instant>,
    pub(crate) active: Instant,
}

impl Conversation {
    pub(crate) fn new(line: Line, db: u32, generation: u64, lifetime: Option<Duration>) -> Conversation {
        let now = Instant::now();
        Conversation {
            line,
            db,
            input: vec![0; READ],
            start: 0,
            filled: 0,
            parser: reply_parser(),
            messages: VecDeque::new(),
            unclean: false,
            listens: false,
            generation,
            renew_at: lifetime.map(|lifetime| now + jittered(lifetime)),
            active: now,
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let stream = self.line.stream();
            match poll_fn(|cx| stream.poll_write(cx, &bytes[written..])).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => written += count,
            }
        }
        let stream = self.line.stream();
        poll_fn(|cx| stream.poll_flush(cx)).await
    }

    /// Reads the next reply or message. A partially read one is kept if the caller stops waiting.
    pub(crate) async fn read(&mut self) -> Result<Reply, String> {
        loop {
            let progress = self.parser.parse(&self.input[self.start..self.filled]);
            let progress = progress.map_err(|error| format!("the engine speaks no RESP: {error}"))?;
            self.start += progress.consumed;
            if let Some(reply) = progress.reply {
                if self.start == self.filled {
                    (self.start, self.filled) = (0, 0);
                    if self.input.len() > 4 * READ {
                        self.input = vec![0; READ];
                    }
                }
                return Ok(reply);
            }
            // Once per read, and not for each reply in it.
            self.input.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.start = 0;
            if self.filled == self.input.len() {
                let larger = 2 * self.input.len();
                self.input.resize(larger, 0);
            }
            let stream = self.line.stream();
            match poll_fn(|cx| stream.poll_read(cx, &mut self.input[self.filled..])).await {
                Ok(0) => return Err("the engine ended the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Keeps a message that arrived between replies.
    pub(crate) fn keep(&mut self, message: Reply) -> Result<(), String> {
        if self.messages.len() == MESSAGES_MAX {
            return Err(format!("more than {MESSAGES_MAX} messages came while something else was asked"));
        }
        self.messages.push_back(message);
        Ok(())
    }

    /// Sends commands together and reads this many replies.
    pub(crate) async fn ask(&mut self, bytes: &[u8], replies: usize) -> Result<Vec<Reply>, String> {
        self.write(bytes).await.map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        while all.len() < replies {
            match self.read().await? {
                message @ Reply::Push(_) => self.keep(message)?,
                reply => all.push(reply),
            }
        }
        self.active = Instant::now();
        Ok(all)
    }

    /// Subscribes to channels or patterns.
    pub(crate) async fn subscribe(&mut self, bytes: &[u8], channels: usize) -> Result<Reply, String> {
        self.listens = true;
        self.write(bytes).await.map_err(|error| error.to_string())?;
        let mut confirmed = 0;
        while confirmed < channels {
            match self.read().await? {
                error @ Reply::Error(_) => return Ok(error),
                reply if is_message(&reply) => self.keep(reply)?,
                _ => confirmed += 1,
            }
        }
        Ok(Reply::Simple("OK".into()))
    }

    /// Returns the next message of a channel.
    pub(crate) async fn message(&mut self) -> Result<Reply, String> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(message);
            }
            let reply = self.read().await?;
            if is_message(&reply) {
                return Ok(reply);
            }
        }
    }

    /// Returns whether it is unchanged since it was released: open, with nothing to read.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        let stream = self.line.stream();
        let mut byte = [0];
        self.filled == self.start && poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut byte).is_pending())).await
    }

    pub(crate) fn is_stale(&self, node: &Node, now: Instant) -> bool {
        let idle = node.section.options.timeout_idle;
        self.generation != node.generation()
            || self.renew_at.is_some_and(|at| at <= now)
            || idle.is_some_and(|idle| self.active + idle <= now)
    }
}

/// Returns whether a reply is a message of a channel, as RESP3 pushes it or as RESP2 sends it.
pub(crate) fn is_message(reply: &Reply) -> bool {
    let (Reply::Push(items) | Reply::Array(items)) = reply else { return false };
    matches!(items.first(), Some(Reply::Bulk(kind)) if kind == b"message" || kind == b"pmessage")
}

/// Idle connections of a section.
#[derive(Debug, Default)]
pub(crate) struct Resting(Mutex<VecDeque<(Arc<Node>, Conversation)>>);

impl Resting {
    /// Takes the connection to this node that was used last.
    pub(crate) fn take(&self, node: &Arc<Node>, db: u32) -> Option<Conversation> {
        let mut all = self.0.lock();
        let now = Instant::now();
        all.retain(|(of, one)| !one.is_stale(of, now));
        let at = all.iter().rposition(|(of, one)| Arc::ptr_eq(of, node) && one.db == db)?;
        all.remove(at).map(|(_, one)| one)
    }

    pub(crate) fn add(&self, node: &Arc<Node>, one: Conversation) {
        self.0.lock().push_back((node.clone(), one));
    }

    /// Closes the connection idle for longest, since its permit is needed.
    pub(crate) fn give_way(&self) {
        let oldest = self.0.lock().pop_front();
        drop(oldest);
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }

    /// Closes connections that are idle for too long, too old, or of a node that has failed. Returns false if none is
    /// left; then the next one that is put back finds `sweeping` false.
    pub(crate) fn sweep(&self, sweeping: &AtomicBool) -> bool {
        let mut all = self.0.lock();
        let now = Instant::now();
        all.retain(|(of, one)| !one.is_stale(of, now));
        if all.is_empty() {
            sweeping.store(false, Ordering::Relaxed);
        }
        !all.is_empty()
    }
}
