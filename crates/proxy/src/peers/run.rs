//! The sections of the current configuration and its replacements.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::session::Settings;
use super::{Section, exchange, stop};
use crate::process::Phase;
use crate::reload::Current;
use crate::running::Running;

/// Returns the settings of connections of a snapshot.
fn settings(running: &Running) -> Settings {
    Settings::new(&running.config.global.tune, &running.process, &running.logger)
}

/// Exchanges the tables of the current configuration and its replacements until the process ends. A soft stop ends with
/// the transfer of the tables to the process that replaces this one.
pub(crate) async fn run(current: Arc<Current>) {
    let mut changes = current.watch();
    let process = current.running().process.clone();
    let mut phase = process.watch();
    let mut exchanges: Vec<(Arc<Section>, JoinSet<()>)> = Vec::new();
    // While tables may be transferred, a soft stop is not over.
    let mut hold = None;
    loop {
        let running = changes.borrow_and_update().clone();
        if !running.peers.is_empty() && hold.is_none() {
            hold = Some(process.hold());
        }
        let mut next = Vec::new();
        for section in &running.peers {
            let known = exchanges.iter().position(|(known, _)| section.continues(known));
            next.push(match known {
                Some(at) => exchanges.swap_remove(at),
                None => (section.clone(), JoinSet::new()),
            });
        }
        // What is left has changed or is gone; its connections are closed before others are made.
        for (_, mut tasks) in exchanges.drain(..) {
            tasks.shutdown().await;
        }
        for (section, tasks) in &mut next {
            if tasks.is_empty() {
                tasks.spawn_local(exchange::run(section.clone(), settings(&running)));
            }
        }
        exchanges = next;
        drop(running);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = phase.wait_for(|phase| *phase >= Phase::Stopping) => break,
        }
    }
    if process.phase() == Phase::Ended {
        return;
    }
    let settings = settings(&current.running());
    let mut teaching = JoinSet::new();
    for (section, mut tasks) in exchanges {
        tasks.shutdown().await;
        section.shut_door();
        teaching.spawn_local(stop::teach(section, settings.clone()));
    }
    while teaching.join_next().await.is_some() {}
    drop(hold);
}
