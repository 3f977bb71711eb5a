//! FAILOVER: a replica becomes the master, and this server its replica, without a change that is lost.
//!
//! Writes wait from the beginning on. Once a replica has acknowledged everything, this server asks it, by a PSYNC with the
//! word FAILOVER, to become the master, and continues as its replica; writes that waited are then refused. If no replica
//! comes so far in time, or the one that was asked refuses, everything is as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::dispatch::{Context, Outcome};
use super::{Server, bounded};
use crate::config::MasterAddress;
use crate::levels::{NOTICE, WARNING};
use crate::refused::{NOT_INTEGER, SYNTAX};
use crate::replication::link::HandOver;
use crate::replication::replica::{Phase, Replica};

/// The time between two looks.
const LOOKS_EACH: Duration = Duration::from_millis(5);

/// A failover in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Failover {
    pub(super) state: State,
    is_aborted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    None,
    Waiting,
    InProgress,
}

/// What a client wants.
struct Wanted {
    target: Option<MasterAddress>,
    is_forced: bool,
    until: Option<Instant>,
}

impl Failover {
    /// Returns the state, as INFO tells it.
    pub(super) fn told(&self) -> &'static str {
        match self.state {
            State::None => "no-failover",
            State::Waiting => "waiting-for-sync",
            State::InProgress => "failover-in-progress",
        }
    }

    fn is_being_aborted(&self) -> bool {
        self.state != State::None && self.is_aborted
    }
}

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`: replies once writes wait, or wait no longer.
pub(super) fn failover(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = context.worker.server.clone();
    match read(&server, &args[1..]) {
        Ok(None) => {
            {
                let mut failover = server.failover.lock();
                if failover.state == State::None {
                    out.error("ERR No failover in progress.");
                    return Outcome::Done;
                }
                failover.is_aborted = true;
            }
            if context.session.in_exec {
                out.ok();
                return Outcome::Done;
            }
            let protocol = context.session.protocol;
            return Outcome::Later(Box::pin(async move {
                while server.failover.lock().is_being_aborted() {
                    tokio::time::sleep(LOOKS_EACH).await;
                }
                let mut bytes = Vec::new();
                ReplyWriter::new(&mut bytes, protocol).ok();
                bytes
            }));
        }
        Ok(Some(wanted)) => {
            *server.failover.lock() = Failover { state: State::Waiting, is_aborted: false };
            server.pause.hand_over(true);
            server.hold_offset();
            server.log(NOTICE, "FAILOVER requested: writes wait.");
            tokio::task::spawn_local(async move { server.fail_over(wanted).await });
            out.ok();
        }
        Err(text) => out.error(text),
    }
    Outcome::Done
}

/// Reads what a client wants, and checks whether it is possible. [`None`]: to abort.
fn read(server: &Server, mut words: &[&[u8]]) -> Result<Option<Wanted>, &'static str> {
    let (mut target, mut is_forced, mut until) = (None, false, None);
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if let [word] = words
        && is(word, "abort")
    {
        return Ok(None);
    }
    while let Some((word, rest)) = words.split_first() {
        words = match rest {
            [time, rest @ ..] if is(word, "timeout") && until.is_none() => {
                let time_ms = parse_i64(time).ok_or(NOT_INTEGER)?;
                let time_ms = u64::try_from(time_ms).ok().filter(|time_ms| *time_ms > 0);
                let time_ms = time_ms.ok_or("ERR FAILOVER timeout must be greater than 0")?;
                until = Some(Instant::now() + bounded(time_ms));
                rest
            }
            [host, port, rest @ ..] if is(word, "to") && target.is_none() => {
                let port = parse_i64(port).ok_or(NOT_INTEGER)?;
                let host = String::from_utf8_lossy(host).into_owned();
                target = Some(MasterAddress { host, port: u16::try_from(port).unwrap_or(0) });
                rest
            }
            rest if is(word, "force") && !is_forced => {
                is_forced = true;
                rest
            }
            _ => return Err(SYNTAX),
        };
    }
    let inner = &server.store.0;
    if server.failover.lock().state != State::None {
        return Err("ERR FAILOVER already in progress.");
    }
    if inner.link.is_replica() {
        return Err("ERR FAILOVER is not valid when server is a replica.");
    }
    let replicas = inner.replication.visible_replicas();
    if replicas.is_empty() {
        return Err("ERR FAILOVER requires connected replicas.");
    }
    if is_forced && (until.is_none() || target.is_none()) {
        return Err("ERR FAILOVER with force option requires both a timeout and target HOST and IP.");
    }
    if let Some(target) = &target {
        let found = replicas.iter().find(|replica| is_target(replica, target));
        let found = found.ok_or("ERR FAILOVER target HOST and PORT is not a replica.")?;
        if found.phase() != Phase::Online {
            return Err("ERR FAILOVER target replica is not online.");
        }
    }
    Ok(Some(Wanted { target, is_forced, until }))
}

fn is_target(replica: &Replica, target: &MasterAddress) -> bool {
    replica.address.eq_ignore_ascii_case(&target.host) && replica.port == u32::from(target.port)
}

impl Server {
    /// Runs a failover to its end.
    async fn fail_over(self: Arc<Self>, wanted: Wanted) {
        if let Some((target, end)) = self.await_replica(&wanted).await {
            self.hand_over_to(target, end).await;
        }
        self.pause.hand_over(false);
        self.hold_offset();
        *self.failover.lock() = Failover::default();
    }

    /// Waits until a replica has everything, and returns it with the offset up to which it has. [`None`] if none will. One
    /// that is chosen by force has no such offset.
    async fn await_replica(&self, wanted: &Wanted) -> Option<(MasterAddress, Option<u64>)> {
        let inner = &self.store.0;
        loop {
            if self.failover.lock().is_aborted {
                self.log(NOTICE, "Failover manually aborted.");
                return None;
            }
            // Writes that began before may still be under way. Replicas acknowledge each second what they have.
            let last = inner.record.last();
            let end = (inner.outlets.stream() >= last).then(|| inner.replication.offset());
            let has_all = |replica: &&Arc<Replica>| {
                replica.phase() == Phase::Online
                    && end.is_some()
                    && replica.acknowledged(false) == end
                    && wanted.target.as_ref().is_none_or(|target| is_target(replica, target))
            };
            let replicas = inner.replication.visible_replicas();
            if let Some(replica) = replicas.iter().find(has_all) {
                let port = u16::try_from(replica.port).unwrap_or(0);
                self.log(NOTICE, &format!("Failover target {}:{port} is synced, failing over.", replica.address));
                return Some((MasterAddress { host: replica.address.clone(), port }, end));
            }
            if wanted.until.is_some_and(|until| Instant::now() >= until) {
                if wanted.is_forced {
                    if let Some(MasterAddress { host, port }) = &wanted.target {
                        self.log(NOTICE, &format!("Failover to {host}:{port} time out exceeded, failing over."));
                    }
                    return wanted.target.clone().map(|target| (target, None));
                }
                self.log(NOTICE, "Replica never caught up before timeout: the failover is aborted.");
                return None;
            }
            tokio::time::sleep(LOOKS_EACH).await;
        }
    }

    /// Makes a replica the master.
    async fn hand_over_to(&self, target: MasterAddress, end: Option<u64>) {
        let inner = &self.store.0;
        {
            let mut failover = self.failover.lock();
            failover.state = State::InProgress;
        }
        inner.link.set_hand_over(HandOver::Wanted(end));
        if let Err(error) = self.order(Some(target)) {
            self.log(WARNING, &format!("Can't start the link to the master: {}", crate::files::reason(&error)));
            return inner.link.set_hand_over(HandOver::None);
        }
        let ended = loop {
            let hand_over = inner.link.hand_over();
            if !matches!(hand_over, HandOver::Wanted(_)) || self.failover.lock().is_aborted {
                break hand_over;
            }
            tokio::time::sleep(LOOKS_EACH).await;
        };
        inner.link.set_hand_over(HandOver::None);
        if ended == HandOver::Done {
            self.log(NOTICE, "Failover is over: this server is a replica.");
            return;
        }
        self.log(NOTICE, "The failover is aborted: this server stays the master.");
        if let Ok(number) = self.order(None) {
            inner.link.taken(number).await;
        }
    }
}
