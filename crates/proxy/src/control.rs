//! The control thread: everything that must never delay a request.
//!
//! [`run`] drives health checks, the log writer, the stats socket and the once-a-second figures together on one
//! current-thread runtime. Each is a plain future of its own ([`run_health_checks`], [`write_logs`], [`cli::serve`],
//! [`stats::tick`]), so a binary that wants another arrangement spawns them itself.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::cli;
use crate::log::write_logs;
use crate::running::Running;
use crate::server::run_health_checks;
use crate::stats;

/// How long the last log lines may take to be written at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs the control thread's work until `ended` is ready, which is when the workers have left; then writes the log
/// lines that are still there. Fails where a stats socket can't be used.
pub async fn run(running: Arc<Running>, sockets: Vec<cli::Socket>, ended: impl Future<Output = ()>) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(write_logs(running.logger.clone()));
    tasks.spawn(run_health_checks(running.clone()));
    tasks.spawn(stats::tick(running.clone()));
    tokio::select! {
        () = ended => {}
        result = cli::serve(sockets, running.clone()) => result?,
    }
    running.logger.drain(LAST_LINES).await;
    Ok(())
}
