//! Services: scripts that answer, driven by the stream whose bytes they write.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use super::{Begun, Ended, Entry, Lent, Outcome, Pending, Purpose, Stage, Step, begin_with};
use crate::lua::Hook;
use crate::lua::applet::AppletIo;
use crate::lua::states::BoundService;
use crate::stream::StreamContext;
use crate::worker::Worker;

/// A service on its way. Its stream drives it burst by burst and moves its bytes meanwhile. Dropping it lets the script
/// go on detached, where its applet says that the client has gone.
pub struct Service {
    pub(super) pending: Pending,
    /// The last burst ended without anything to wait for: its turn.
    pub(super) turn: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Service {
    /// A service that has not begun; `None` where there is no such state.
    pub fn new(worker: &Rc<Worker>, service: &BoundService) -> Option<Service> {
        let inner = worker.lua.inner.as_ref()?.clone();
        let cell = inner.cell(&service.code)?.clone();
        let purpose = if service.http { Purpose::HttpService } else { Purpose::TcpService };
        let hook = if service.http { Hook::HttpReq } else { Hook::TcpReq };
        let stage = Stage::Begin { purpose, code: service.code.clone(), hook, input: None, may_wait: true, cell };
        Some(Service { pending: Pending { inner, stage: Some(Box::new(stage)) }, turn: None })
    }

    /// Runs one burst; `Some` once the script has ended, and whether without an error.
    pub async fn burst(&mut self, cx: &mut StreamContext) -> Option<bool> {
        self.burst_with(Lent::Write(cx)).await
    }

    pub(super) async fn burst_with(&mut self, lent: Lent<'_>) -> Option<bool> {
        let ended = match self.pending.stage.as_deref_mut() {
            Some(Stage::Begin { purpose, code, hook, cell, .. }) => {
                let cell = cell.clone();
                let mut state = cell.lock.lock().await;
                let entry = Entry { purpose: *purpose, code, hook: *hook, input: None, may_wait: true };
                match begin_with(&self.pending.inner, &cell, &mut state, lent, entry) {
                    Begun::Ended(ended) => Some(ended),
                    Begun::Waits(script) => {
                        drop(state);
                        self.pending.stage = Some(Box::new(Stage::Running(script)));
                        None
                    }
                }
            }
            Some(Stage::Running(script)) => {
                let cell = script.cell.clone();
                let mut state = cell.lock.lock().await;
                match script.burst(&mut state, lent) {
                    Step::Ended(ended) => Some(ended),
                    Step::Waits => None,
                }
            }
            None => Some(Ended::Task),
        };
        self.turn = None;
        let ended = ended?;
        self.pending.stage = None;
        Some(matches!(ended, Ended::Service(true)))
    }

    /// Ready when the next burst makes sense.
    pub fn poll_ready(&mut self, cx: &mut std::task::Context<'_>, io: &AppletIo) -> Poll<()> {
        let Some(Stage::Running(script)) = self.pending.stage.as_deref_mut() else { return Poll::Ready(()) };
        if script.outcome.is_some() {
            return Poll::Ready(());
        }
        let outcome = match (script.applet, &mut script.waiting) {
            (Some((wait, _)), _) if io.is_ready(wait) => Outcome::Ready,
            (Some((_, true)), Some(deadline)) => std::task::ready!(deadline.as_mut().poll(cx)),
            (Some(_), _) => return Poll::Pending,
            (None, Some(waiting)) => std::task::ready!(waiting.as_mut().poll(cx)),
            // A slice was used up, or the script yielded: others of this worker come first.
            (None, None) => {
                let inner = script.inner.clone();
                let turn = self.turn.get_or_insert_with(|| Box::pin(async move { inner.turn().await }));
                std::task::ready!(turn.as_mut().poll(cx));
                Outcome::Ready
            }
        };
        script.waiting = None;
        script.applet = None;
        script.outcome = Some(outcome);
        Poll::Ready(())
    }
}
