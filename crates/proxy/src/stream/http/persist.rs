//! Persistence of an exchange: the server that a request selects, and the data stored about the one that responded.

use super::*;
use crate::persist;

impl Exchange<'_> {
    /// Finds the server that the request selects by persistence, in HAProxy's order.
    pub(super) async fn persist(&mut self, backend: &ProxyRun) -> Step<()> {
        let rules = &backend.rules;
        self.rules(&rules.persist, Hook::HttpRequest).await?;
        self.rules(&rules.use_server, Hook::HttpRequest).await?;
        persist::request_cookie(&mut self.stream.cx, backend);
        // As in HAProxy the body is awaited before stick rules run, unless the server is known.
        if let Some(key) = &rules.balance_key
            && self.stream.cx.persistence.server.is_none()
            && key.awaits_body(&self.stream.cx)
        {
            self.await_body(self.patience(backend), 0).await?;
        }
        if rules.stick_request.looks().request {
            self.peek_request();
        }
        self.rules(&rules.stick_request, Hook::HttpRequest).await
    }

    /// Stores the server that answers, before rules change its answer.
    pub(super) async fn store_server(&mut self, backend: &ProxyRun) -> Step<()> {
        self.rules(&backend.rules.stick_response, Hook::HttpResponse).await?;
        persist::store(&mut self.stream.cx);
        Ok(())
    }
}
