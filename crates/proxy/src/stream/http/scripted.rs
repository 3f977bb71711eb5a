//! Filters of scripts in an exchange: events outside bodies, and what follows from a filter that waits or fails. Callers
//! look whether there are any, because most streams have none.

use std::future::poll_fn;
use std::time::Instant;

use sluicegate_config::model::ProxyId;
use sluicegate_wire::http::Framing;

use super::{After, Exchange, Method, Step};
use crate::running::ProxyRun;
use crate::stream::FilterEvent;
use crate::stream::filter::Chain;
use crate::stream::flow::give;
use crate::stream::scripted::Halted;

impl Exchange<'_> {
    /// Makes the filters of a proxy, and begins with the request.
    pub(super) async fn begin_filters(&mut self, proxy: &ProxyRun) -> Step<()> {
        if self.stream.attach_filters(proxy, true).await.is_err() {
            return Err(self.page(500, b'I', b'R').await);
        }
        self.filter_event(FilterEvent::Start, false, Some(proxy.id)).await
    }

    /// Begins with the response in all filters.
    pub(super) async fn begin_response_filters(&mut self) -> Step<()> {
        self.filter_event(FilterEvent::Start, true, None).await
    }

    /// Passes the request's head through the filters, when all rules have run.
    pub(super) async fn filter_request_head(&mut self) -> Step<()> {
        let Some(filters) = &mut self.stream.cx.lua.filters else { return Ok(()) };
        filters.note_body(false, self.head.body, self.front.input().len());
        self.filter_event(FilterEvent::Headers, false, None).await?;
        self.sent_method = Method::of(self.stream.cx.request.method());
        if self.asks_for_tunnel() { self.end_head(false).await } else { Ok(()) }
    }

    /// Passes the response's head through the filters, when all rules have run. `held` bytes of its body have come.
    pub(super) async fn filter_response_head(&mut self, framing: Framing, held: usize) -> Step<()> {
        let Some(filters) = &mut self.stream.cx.lua.filters else { return Ok(()) };
        filters.note_body(true, framing, held);
        self.filter_event(FilterEvent::Headers, true, None).await
    }

    pub(super) async fn filter_event(&mut self, event: FilterEvent, response: bool, of: Option<ProxyId>) -> Step<()> {
        let patience = self.client_timeout;
        match (self.stream.pass_event(&mut self.front, event, response, of, patience).await, response) {
            (Ok(()), _) => Ok(()),
            (Err(Halted::Gone), true) => Err(self.lost_client(b'D')),
            (Err(Halted::Gone), false) => Err(self.lost_client(b'R')),
            (Err(Halted::Late), true) => Err(self.page(504, b's', b'H').await),
            (Err(Halted::Late), false) => Err(self.page(408, b'c', b'R').await),
            (Err(Halted::Failed), true) => {
                // As in HAProxy, which has the status of the response already, nothing is sent.
                self.stream.end(b'P', b'H');
                self.front.give_up();
                Err(After::Close)
            }
            (Err(Halted::Failed), false) => Err(self.page(400, b'P', b'R').await),
        }
    }

    /// Calls the scripts of a local answer's filters that are due; with `mute` nothing of what they let pass is sent.
    pub(super) fn run_scripts(&mut self, filters: &mut Chain, mute: bool) -> Step<()> {
        if !filters.script_is_due() {
            return Ok(());
        }
        let ran = filters.run_scripts(&mut self.stream.cx, &mut give(&mut self.front, mute, &mut self.announced));
        let exceeded = self.announced.as_ref().is_some_and(|announced| announced.exceeded);
        // A state that is in use is asked again at its alarm.
        if ran.is_ok() && !exceeded {
            return Ok(());
        }
        self.stream.end(b'P', b'D');
        Err(After::Close)
    }

    /// Waits until the filters of a local answer may take data again.
    pub(super) async fn await_filters(&mut self, filters: &mut Chain, mute: bool) -> Step<()> {
        if filters.stalls() {
            self.front.arm(self.client_timeout.map(|time| Instant::now() + time));
            poll_fn(|cx| self.front.poll_alarm(cx)).await;
            self.stream.end(b'c', b'D');
            return Err(After::Close);
        }
        poll_fn(|cx| filters.poll_wake(cx)).await;
        self.run_scripts(filters, mute)
    }
}
