//! Certificates that are being renewed, and those that commands ask to renew.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The renewals of a process. A name is in `running` from the request on, so that no certificate is renewed twice at a
/// time.
#[derive(Debug, Default)]
pub struct Renewals {
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeSet<Arc<str>>,
    queue: Vec<Arc<str>>,
}

impl Renewals {
    /// Asks for the renewal of a certificate; returns false if one is under way.
    pub(crate) fn ask(&self, name: &Arc<str>) -> bool {
        let mut state = self.state.lock();
        let is_new = state.running.insert(name.clone());
        if is_new {
            state.queue.push(name.clone());
            self.asked.notify_one();
        }
        is_new
    }

    /// Waits for names of certificates to renew, and takes them.
    pub(crate) async fn take(&self) -> Vec<Arc<str>> {
        loop {
            let queue = std::mem::take(&mut self.state.lock().queue);
            if !queue.is_empty() {
                return queue;
            }
            self.asked.notified().await;
        }
    }

    /// Returns whether a certificate is being renewed, or waits for it.
    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.state.lock().running.contains(name)
    }

    /// Ends a renewal.
    pub(crate) fn ended(&self, name: &str) {
        self.state.lock().running.remove(name);
    }
}
