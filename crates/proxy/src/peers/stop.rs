//! The end of a soft stop: the tables are taught to the process that replaces this one, if there is one.
//!
//! It listens on the local peer's address, which this process has just left. HAProxy's rules: this process must be up to
//! date itself, and an attempt begins within 5 seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{ServerAddress, ServerPort};

use super::session::Settings;
use super::{Section, exchange};

/// The time within which an attempt must begin.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Teaches the next process the tables of a section.
pub(super) async fn teach(section: Arc<Section>, settings: Settings) {
    let has_address = section.config.local_peer().is_some_and(|server| {
        !matches!(&server.address, ServerAddress::Inet(_, ServerPort::Fixed(0) | ServerPort::Offset(_)))
    });
    if !has_address || !section.state.inner.lock().is_up_to_date() {
        return;
    }
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let (is_done, was_connected) = exchange::connect_to_local(&section, &settings).await;
        if is_done || !was_connected {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
