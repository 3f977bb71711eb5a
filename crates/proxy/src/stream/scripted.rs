//! Filters of scripts in a stream's life: their instances, and the events outside bodies.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluicegate_config::model::ProxyId;

use super::Active;
use super::context::{Attached, FilterEvent, FilterMade, FilterVerdict};
use super::filter::FilterFailed;
use crate::mux::Front;
use crate::running::ProxyRun;

/// The result of calling the functions of filters for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// All have been called.
    Done,
    /// The state of a script is in use: try again.
    Busy,
    /// A script wants to be called again, after this time or when anything has happened.
    Wait(Option<Duration>),
    Failed,
}

/// The reason why an event does not pass the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halted {
    /// A filter failed or refused it.
    Failed,
    /// The client has left while a filter waited.
    Gone,
    /// A filter without a wake time has waited as long as it may.
    Late,
}

impl Active {
    /// Makes the instances of a proxy's filters, which a stream of HTTP or of TCP passes.
    pub(crate) async fn attach_filters(&mut self, proxy: &ProxyRun, http: bool) -> Result<(), FilterFailed> {
        for (line, bound) in &proxy.script_filters {
            if http && !bound.http {
                continue;
            }
            let Some(scripts) = self.worker().scripts.clone() else { return Ok(()) };
            let made = loop {
                match scripts.filter(&mut self.cx, bound, http) {
                    FilterMade::Busy => tokio::task::yield_now().await,
                    FilterMade::Made(filter) => break Some(filter),
                    FilterMade::Ignored => break None,
                    FilterMade::Failed => return Err(FilterFailed),
                }
            };
            if let Some(filter) = made {
                let filters = self.cx.lua.filters.get_or_insert_default();
                filters.attached.push(Attached { proxy: proxy.id, line: *line, filter });
            }
        }
        Ok(())
    }

    /// Returns whether the stream passes filters of scripts.
    pub(crate) fn is_scripted(&self) -> bool {
        self.cx.lua.filters.is_some()
    }

    /// Calls the filters' functions for an event of a direction, with `of` only those of this proxy, until none wants to be
    /// called again. Without a wake time it is waited for `patience`.
    pub(crate) async fn pass_event(
        &mut self,
        front: &mut Front<'_>,
        event: FilterEvent,
        response: bool,
        of: Option<ProxyId>,
        patience: Option<Duration>,
    ) -> Result<(), Halted> {
        let mut from = 0;
        loop {
            match self.call_filters(event, response, of, &mut from) {
                Called::Done => return Ok(()),
                Called::Busy => tokio::task::yield_now().await,
                Called::Failed => return Err(Halted::Failed),
                Called::Wait(time) => {
                    front.arm(time.or(patience).map(|time| Instant::now() + time));
                    let worker = self.worker().clone();
                    let gone = poll_fn(|cx| match front.poll_alarm(cx) {
                        Poll::Ready(()) => Poll::Ready(false),
                        Poll::Pending => front.poll_gone(cx, &worker.buffers, true).map(|()| true),
                    })
                    .await;
                    if gone {
                        return Err(Halted::Gone);
                    }
                    if time.is_none() {
                        return Err(Halted::Late);
                    }
                }
            }
        }
    }

    /// Calls the filters' functions for an event of a direction, from number `from` on, which is that of the filter that
    /// is called next; with `of` only those of this proxy.
    fn call_filters(&mut self, event: FilterEvent, response: bool, of: Option<ProxyId>, from: &mut usize) -> Called {
        let Some(filters) = &mut self.cx.lua.filters else { return Called::Done };
        match event {
            FilterEvent::Start => filters.analyzed[usize::from(response)] = true,
            FilterEvent::End if !filters.analyzed[usize::from(response)] => return Called::Done,
            _ => {}
        }
        while let Some(one) = self.cx.lua.filters.as_ref().and_then(|filters| filters.attached.get(*from)) {
            let filter = one.filter.clone();
            if of.is_none_or(|of| of == one.proxy) {
                if event == FilterEvent::End {
                    filter.see_data(response, false);
                }
                // As in bodies, the end of a message is one for filters that see its data.
                let sees = event != FilterEvent::MessageEnd || filter.sees_data(response);
                if sees && filter.handles(event) {
                    let Some(answer) = filter.call(&mut self.cx, event, response, None) else { return Called::Busy };
                    match answer.verdict() {
                        FilterVerdict::Continue => {}
                        FilterVerdict::Wait => return Called::Wait(answer.wake),
                        FilterVerdict::Error => return Called::Failed,
                    }
                }
            }
            *from += 1;
        }
        Called::Done
    }

    /// Calls the filters' functions for the end of both directions. As the stream has ended, none is waited for.
    pub(crate) async fn end_filters(&mut self) {
        for response in [false, true] {
            let mut from = 0;
            while self.is_scripted() {
                match self.call_filters(FilterEvent::End, response, None, &mut from) {
                    Called::Done => break,
                    Called::Busy => tokio::task::yield_now().await,
                    Called::Wait(_) | Called::Failed => from += 1,
                }
            }
        }
        if let Some(filters) = &mut self.cx.lua.filters {
            filters.analyzed = [false; 2];
        }
    }

    /// Removes the filters, because the stream begins anew in HTTP.
    pub(crate) fn detach_filters(&mut self) {
        self.cx.lua.filters = None;
    }
}
