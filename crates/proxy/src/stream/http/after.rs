//! `http-after-response`: rules for every response sent, a server's or one made here.
//!
//! They are the last rules to see a head, the backend's before the frontend's. They cannot respond: a list that fails
//! makes the response a 500. Their waits are bounded, because the client waits for a response that is ready.

use std::time::Duration;

use sluicegate_transport::clock;

use super::*;

/// The total time for which the rules of one proxy may wait.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

impl Exchange<'_> {
    /// Returns whether there are after-response rules for this stream.
    pub(super) fn has_after_rules(&self) -> bool {
        let proxies = &self.stream.worker().running.proxies;
        let some = |site: &Site| !proxies[site.id.0 as usize].rules.http_after_response.is_empty();
        let cx = &self.stream.cx;
        !self.constant && (some(&cx.frontend) || cx.backend.as_deref().is_some_and(some))
    }

    /// Runs the after-response rules on the response in the context; returns `false` if a rule failed.
    pub(super) async fn after_rules(&mut self) -> bool {
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        if !cx.in_response {
            cx.in_response = true;
            cx.variables.enter_response();
        }
        let frontend = cx.frontend.clone();
        let backend = cx.backend.clone().filter(|backend| backend.id != frontend.id);
        for proxy in backend.iter().chain([&frontend]) {
            let proxy = &worker.running.proxies[proxy.id.0 as usize];
            let (list, hook) = (&proxy.rules.http_after_response, Hook::HttpAfterResponse);
            let verdict = match rule::try_run(list, hook, &mut self.stream.cx, worker.scripts()) {
                rule::Attempt::Ready(verdict) => verdict,
                rule::Attempt::Suspended(suspended) => {
                    let resumed = rule::resume(list, suspended, hook, &mut self.stream.cx, worker.scripts());
                    let verdict = tokio::time::timeout(WAIT_LIMIT, resumed).await;
                    self.client_active = clock::now();
                    self.server_active = self.client_active;
                    verdict.unwrap_or(Verdict::Continue)
                }
            };
            if !matches!(verdict, Verdict::Continue) {
                return false;
            }
        }
        true
    }

    /// Runs the after-response rules on a response of a server or a service, and records its status.
    pub(super) async fn finish_response(&mut self) -> Step<()> {
        self.stream.cx.tell_limits();
        if self.has_after_rules() && !Box::pin(self.after_rules()).await {
            self.stream.each_side_and_server(|counters| counters.eint.add(1));
            return Err(Box::pin(self.page(500, b'P', b'H')).await);
        }
        let cx = &mut self.stream.cx;
        cx.log.status = i32::from(cx.response.status());
        Ok(())
    }
}
