//! Messages of rings on their way to servers (`server` of a `ring`).
//!
//! A task of the control thread per server connects, at most once a second, and writes what the ring has. It holds its
//! place in the ring, so messages that the server has not got yet are kept while it is away, and new ones are dropped
//! once the ring is full of them; before the first connection it holds none. After a broken connection, the message
//! that was not written whole is sent again. What a server sends is discarded.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_config::model::LogProto;
use sluicegate_transport::Socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ring::{Reader, Taken};
use crate::running::{RingServer, Running};
use crate::server::{connect, secure_connection};

/// The minimum time between two attempts to connect (HAProxy's).
const RECONNECT: Duration = Duration::from_secs(1);
/// The number of bytes read from a ring at a time; a longer message is read alone.
const BATCH: usize = 16_384;
/// The interval at which the end of the process checks whether servers have got everything.
const LOOK: Duration = Duration::from_millis(2);

/// Starts to send to the servers of `running` that nothing sends to yet, and ends what sends to those of `before` that are gone.
pub(crate) fn follow(running: &Running, before: &mut Vec<Arc<RingServer>>, tasks: &mut JoinSet<()>) {
    for old in before.iter().filter(|old| !running.rings.iter().any(|new| Arc::ptr_eq(old, new))) {
        old.leave();
    }
    *before = running.rings.clone();
    for server in running.rings.iter().filter(|server| !server.served.swap(true, Ordering::Relaxed)) {
        tasks.spawn(serve(server.clone()));
    }
    while tasks.try_join_next().is_some() {}
}

/// Waits until the servers that are connected have got everything, but no longer than `limit`.
pub(crate) async fn drain(running: &Running, limit: Duration) {
    let sent = async {
        while running.rings.iter().any(|server| server.busy.load(Ordering::Relaxed)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    // What a server does not accept in time is lost with the process.
    let _ = tokio::time::timeout(limit, sent).await;
}

async fn serve(target: Arc<RingServer>) {
    // The configuration has fewer servers than a ring has places, except beside many watchers.
    let Some(reader) = target.ring.attach() else { return };
    let mut sender = Sender { target: &target, reader, outbox: Outbox::default(), processed: 0 };
    loop {
        let next = Instant::now() + RECONNECT;
        let left = target.is_left();
        tokio::select! {
            // What failed is tried again; a ring has no log of its own.
            _ = sender.connection() => {}
            () = left => return,
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = target.is_left() => return,
        }
    }
}

/// Bytes that are being written.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// The end of each message in `bytes`.
    ends: Vec<usize>,
    written: usize,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes the messages that were written whole; what was written of the next one is forgotten.
    fn rewind(&mut self) {
        let whole = self.ends.partition_point(|end| *end <= self.written);
        let start = self.ends[..whole].last().copied().unwrap_or(0);
        self.bytes.drain(..start);
        self.ends.drain(..whole);
        self.ends.iter_mut().for_each(|end| *end -= start);
        self.written = 0;
    }

    /// Fills with messages in the form of a protocol.
    fn fill(&mut self, reader: &mut Reader, proto: LogProto) {
        let mut number = itoa::Buffer::new();
        reader.read(false, |first, second| {
            if proto == LogProto::OctetCount {
                self.bytes.extend_from_slice(number.format(first.len() + second.len()).as_bytes());
                self.bytes.push(b' ');
            }
            self.bytes.extend_from_slice(first);
            self.bytes.extend_from_slice(second);
            if proto == LogProto::Legacy {
                self.bytes.push(b'\n');
            }
            self.ends.push(self.bytes.len());
            if self.bytes.len() < BATCH { Taken::More } else { Taken::Enough }
        });
    }
}

struct Sender<'a> {
    target: &'a RingServer,
    reader: Reader,
    outbox: Outbox,
    /// Messages sent so far, for `max-reuse`.
    processed: u64,
}

impl Sender<'_> {
    /// Connects and sends until the connection ends.
    async fn connection(&mut self) -> io::Result<()> {
        let socket = self.connect().await?;
        let (mut from, mut to) = tokio::io::split(socket);
        let result = self.send(&mut from, &mut to).await;
        self.outbox.rewind();
        self.target.busy.store(false, Ordering::Relaxed);
        result
    }

    async fn connect(&self) -> io::Result<Socket> {
        self.target.move_along();
        let RingServer { server, site, .. } = self.target;
        let limit = site.config.timeouts.connect;
        let failed = || io::Error::from(io::ErrorKind::NotConnected);
        let local = crate::server::source_of(&site.config, &server.config);
        let way = server.way_without_client(local, true);
        let mut socket = connect(server, None, &way, limit).await.map_err(|_| failed())?;
        if let Some(connector) = server.tls().cloned() {
            let sni = self.target.sni();
            let totals = site.directory.process.tls.clone();
            let shaking = secure_connection(&mut socket, &connector, sni.as_deref(), None, &totals);
            let shaken = match limit {
                Some(limit) => tokio::time::timeout(limit, shaking).await?,
                None => shaking.await,
            };
            shaken.map_err(|_| failed())?;
        }
        Ok(socket)
    }

    async fn send(&mut self, from: &mut ReadHalf<Socket>, to: &mut WriteHalf<Socket>) -> io::Result<()> {
        let limit = self.target.site.config.timeouts.server;
        let most = self.target.server.config.pool.max_reuse.map(|reuses| u64::from(reuses) + 1);
        let mut discarded = [0; 512];
        loop {
            if self.outbox.is_empty() {
                self.target.busy.store(true, Ordering::Relaxed);
                self.outbox.fill(&mut self.reader, self.target.proto());
            }
            if self.outbox.is_empty() {
                self.target.busy.store(false, Ordering::Relaxed);
                tokio::select! {
                    () = self.reader.wait() => {}
                    count = from.read(&mut discarded) => if count? == 0 { return Ok(()) },
                }
                continue;
            }
            let deadline = limit.map(|limit| Instant::now() + limit);
            while self.outbox.written < self.outbox.bytes.len() {
                tokio::select! {
                    count = to.write(&self.outbox.bytes[self.outbox.written..]) => match count? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        count => self.outbox.written += count,
                    },
                    count = from.read(&mut discarded) => if count? == 0 { return Ok(()) },
                    () = until(deadline) => return Err(io::ErrorKind::TimedOut.into()),
                }
            }
            tokio::select! {
                flushed = to.flush() => flushed?,
                () = until(deadline) => return Err(io::ErrorKind::TimedOut.into()),
            }
            let before = self.processed;
            self.processed += self.outbox.ends.len() as u64;
            self.outbox.rewind();
            if most.is_some_and(|most| self.processed / most != before / most) {
                return to.shutdown().await;
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
