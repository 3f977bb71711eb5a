//! `rhttp@` addresses: nothing listens; workers keep connections to a server, which sends requests on them, and serve
//! these like accepted ones.
//!
//! Each worker keeps its share of the `nbconn` connections, one after the other: the next is opened when there is room in
//! the share, and after a failed attempt a second later; a server that closes connections at once gets no more of them in a
//! second than the share has places. The shares outlive configurations together with the sessions, so
//! that a configuration that replaces another opens no connection that a session continues; a session that announces its
//! end leaves its share at once, so that another connection takes its place meanwhile.
//!
//! As in HAProxy a connection becomes a session, which limits, rates, rules and figures see, when the server has sent its
//! settings; the frontend's log has a line when the attempts begin, when they fail for the first time, and when all
//! connections are there.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_wire::http2;

use super::share::{Reverse, Share, Stage};
use super::state::{Full, Listener, Slots, Waits};
use crate::frontend::Gate;
use crate::log::Severity;
use crate::mux::h1;
use crate::mux::h2::poll_greeting;
use crate::process::Phase;
use crate::running::ProxyRun;
use crate::server::{ServerRun, connect_reversed};
use crate::session::{Session, run as session};
use crate::worker::Worker;

/// The pause after a failed attempt, and the time for an attempt without `timeout connect`: HAProxy's.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps this worker's connections until the process stops, or the frontend is shut down.
pub(super) async fn keep(worker: Rc<Worker>, listener: Arc<Listener>, reverse: Arc<Reverse>) {
    let running = worker.running.clone();
    let Some((proxy, server)) = running.server_named(&reverse.server) else { return };
    note(&worker, &listener, &reverse, Stage::Begun);
    let mut opened_at = VecDeque::new();
    let mut gate = listener.proxy.frontend.watch_gate();
    while worker.phase() == Phase::Serving && *gate.borrow_and_update() != Gate::Shut {
        let connecting = async {
            let share = Share::take(&reverse, worker.index).await;
            if let Some(pause) = pause(&mut opened_at, share.places()) {
                tokio::time::sleep(pause).await;
            }
            (share, open(&worker, &listener, proxy, server).await)
        };
        let (share, opened) = tokio::select! {
            opened = connecting => opened,
            _ = gate.changed() => continue,
        };
        match opened {
            Some((front, wire)) => {
                opened_at.push_back(Instant::now());
                while let Err(pause) = listener.paces().take() {
                    let _waits = Waits::on(&listener);
                    tokio::time::sleep(pause).await;
                }
                let slots = slots(&worker, &listener, share).await;
                worker.figures().sessions.add(1);
                let session = Session::reversed(&worker, front, slots);
                tokio::task::spawn_local(session::run_reversed(session, wire));
                if reverse.is_complete() {
                    note(&worker, &listener, &reverse, Stage::Complete);
                }
            }
            None => {
                note(&worker, &listener, &reverse, Stage::Failed);
                tokio::time::sleep(PAUSE).await;
                drop(share);
            }
        }
    }
}

/// Returns how long to wait before another connection is opened. `opened_at` has the times of the last ones, of which as
/// many as there are places are kept.
fn pause(opened_at: &mut VecDeque<Instant>, places: usize) -> Option<Duration> {
    while opened_at.len() > places {
        opened_at.pop_front();
    }
    let first = opened_at.front().filter(|_| opened_at.len() == places)?;
    PAUSE.checked_sub(first.elapsed()).filter(|pause| !pause.is_zero())
}

/// Opens a connection, and waits until the server has sent its settings.
async fn open(
    worker: &Rc<Worker>,
    listener: &Listener,
    proxy: &ProxyRun,
    server: &ServerRun,
) -> Option<(h1::Front, http2::Connection)> {
    let opening = async {
        let mut front = h1::Front::new(connect_reversed(worker, proxy, server).await.ok()?);
        let mut wire = session::reversed_server(worker, &listener.proxy);
        let greeted = poll_fn(|cx| poll_greeting(cx, &mut wire, &mut front, &worker.buffers)).await;
        greeted.then_some((front, wire))
    };
    tokio::time::timeout(proxy.config.timeouts.connect.unwrap_or(PAUSE), opening).await.ok()?
}

/// Waits for the slots of a session.
async fn slots(worker: &Worker, listener: &Arc<Listener>, share: Share) -> Slots {
    let mut share = share;
    loop {
        let (full, back) = match Slots::take_reversed(listener, worker.index, share) {
            Ok(slots) => return slots,
            Err(full) => full,
        };
        share = back;
        let _waits = Waits::on(listener);
        match full {
            Full::Frontend => listener.proxy.frontend.sessions.room().await,
            Full::Process | Full::Listener => listener.process.sessions.room().await,
        }
    }
}

/// Writes a line to the frontend's log, unless the last one was the same or says more.
fn note(worker: &Worker, listener: &Listener, reverse: &Reverse, stage: Stage) {
    {
        let mut last = reverse.stage.lock();
        let is_new = match stage {
            Stage::Failed => *last != Stage::Failed,
            stage => *last < stage,
        };
        if !is_new {
            return;
        }
        *last = stage;
    }
    let (severity, what) = match stage {
        Stage::Stopped => return,
        Stage::Begun => (Severity::Info, "Initiating.".to_owned()),
        Stage::Failed => (Severity::Error, "Error encountered.".to_owned()),
        Stage::Complete => {
            let count = listener.bind().reverse_connections;
            (Severity::Info, format!("Running with nbconn {count} reached."))
        }
    };
    let config = &listener.proxy.config;
    let line = format!("preconnect {}::{}: {what}", config.name, reverse.server);
    worker.running.logger.send(&config.log, severity, line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_do_not_last_are_opened_slowly() {
        let (now, long_ago) = (Instant::now(), Instant::now().checked_sub(PAUSE).expect("a clock that has run"));
        for (opened_at, places, pauses) in [
            (vec![], 1, false),
            (vec![now], 1, true),
            (vec![long_ago], 1, false),
            (vec![now], 2, false),
            (vec![long_ago, now], 2, false),
            (vec![long_ago, now, now], 2, true),
        ] {
            let mut opened_at = VecDeque::from(opened_at);
            assert_eq!(pause(&mut opened_at, places).is_some(), pauses, "{opened_at:?} of {places}");
        }
    }
}
