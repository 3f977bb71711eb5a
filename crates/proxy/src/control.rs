//! The control thread: work that must never delay a request.
//!
//! [`run`] drives health checks, the log writer, the stats socket and the once-a-second figures together on one
//! current-thread runtime. Each is a separate future ([`run_health_checks`], [`write_logs`], [`cli::serve`],
//! [`stats::tick`], and the watchdog of the workers), so a binary can also spawn them in another arrangement.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::acme;
use crate::cli;
use crate::log::write_logs;
use crate::mail;
use crate::ocsp_update;
use crate::peers;
use crate::reload::Current;
use crate::resolve;
use crate::ring_servers;
use crate::runtime_state::Keeper;
use crate::server::run_health_checks;
use crate::stats;
use crate::watchdog;

/// The time limit for writing the last log lines at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The time limit for writing the state file at the end.
const LAST_STATE: Duration = Duration::from_secs(10);

/// Runs the control thread's work until `ended` is ready, which is when the workers have ended; then writes the state file
/// and the remaining log lines. Returns an error if a stats socket can't be used.
pub async fn run(current: Arc<Current>, ended: impl Future<Output = ()>) -> io::Result<()> {
    let care = tokio::spawn(take_care(current.clone()));
    let watchdog = tokio::spawn(watchdog::watch(current.clone()));
    let renewing = tokio::task::spawn_local(acme::run(current.clone()));
    let exchanging = tokio::task::spawn_local(peers::run::run(current.clone()));
    let keeper = Keeper::new(current.clone());
    let keeping = tokio::task::spawn_local(keeper.clone().run());
    let result = tokio::select! {
        () = ended => Ok(()),
        result = cli::serve(current.clone()) => result,
    };
    keeping.abort();
    exchanging.abort();
    // Nothing changes the state any more. A disk that does not answer must not keep the process.
    let _ = tokio::time::timeout(LAST_STATE, keeper.write()).await;
    let running = current.running();
    running.logger.drain(LAST_LINES).await;
    ring_servers::drain(&running, LAST_LINES).await;
    care.abort();
    watchdog.abort();
    renewing.abort();
    result
}

/// Writes logs, checks servers and updates figures of the current configuration, including its replacements.
async fn take_care(current: Arc<Current>) {
    let mut changes = current.watch();
    let mut writers = JoinSet::new();
    let (mut rings, mut senders, mut mails) = (Vec::new(), JoinSet::new(), JoinSet::new());
    loop {
        let running = changes.borrow_and_update().clone();
        // The log targets of an earlier configuration are written to until they are empty and no longer referenced.
        writers.spawn(write_logs(running.logger.clone()));
        running
            .proxies
            .iter()
            .filter_map(|proxy| proxy.alerts.as_ref())
            .for_each(|alerts| mail::deliver(alerts, &mut mails));
        while mails.try_join_next().is_some() {}
        ring_servers::follow(&running, &mut rings, &mut senders);
        let mut tasks = JoinSet::new();
        tasks.spawn(run_health_checks(running.clone()));
        tasks.spawn(stats::tick(running.clone()));
        tasks.spawn(resolve::run::run(running.clone()));
        tasks.spawn(ocsp_update::run(running.clone()));
        drop(running);
        if changes.changed().await.is_err() {
            return;
        }
        // A check or an update that is in progress is repeated.
        tasks.shutdown().await;
        while writers.try_join_next().is_some() {}
    }
}
