//! Events of a request and its response, whose messages are sent to agents (SPOE).
//!
//! Filters of the frontend have all events, those of a backend that is another section have the events from its own on.
//! Callers look whether [any filter](Exchange::offloads) has events, because most streams have none.

use sluicegate_config::model::SpoeEvent;

use super::{Exchange, Step};
use crate::running::ProxyRun;

impl Exchange<'_> {
    /// Returns whether a filter of the stream sends messages to agents.
    pub(super) fn offloads(&self) -> bool {
        self.stream.cx.spoe.is_some()
    }

    /// Sends the messages of the events before the content rules of the frontend or of the backend.
    pub(super) async fn content_events(&mut self, frontend: &ProxyRun, proxy: &ProxyRun) -> Step<()> {
        if proxy.id != frontend.id {
            return self.offload(SpoeEvent::BackendTcpRequest, frontend, proxy).await;
        }
        self.offload(SpoeEvent::ClientSession, frontend, proxy).await?;
        self.offload(SpoeEvent::FrontendTcpRequest, frontend, proxy).await
    }

    /// Sends the messages of the event before the rules of requests of the frontend or of the backend.
    pub(super) async fn request_event(&mut self, frontend: &ProxyRun, proxy: &ProxyRun) -> Step<()> {
        let event = match proxy.id == frontend.id {
            true => SpoeEvent::FrontendHttpRequest,
            false => SpoeEvent::BackendHttpRequest,
        };
        self.offload(event, frontend, proxy).await
    }

    /// Sends the messages of the events before the rules of responses.
    pub(super) async fn response_events(&mut self, frontend: &ProxyRun, backend: &ProxyRun) -> Step<()> {
        for event in [SpoeEvent::ServerSession, SpoeEvent::TcpResponse, SpoeEvent::HttpResponse] {
            self.offload(event, frontend, backend).await?;
        }
        Ok(())
    }

    /// Sends the messages of an event to the agents of the frontend's filters and of the backend's.
    async fn offload(&mut self, event: SpoeEvent, frontend: &ProxyRun, backend: &ProxyRun) -> Step<()> {
        for proxy in [Some(frontend), Some(backend).filter(|backend| backend.id != frontend.id)].into_iter().flatten() {
            let (list, hook) = proxy.rules.event(event);
            if list.looks().request {
                self.peek_request();
            }
            self.rules(list, hook).await?;
        }
        Ok(())
    }
}
