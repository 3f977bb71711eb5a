//! Services: scripts that respond in place of a server, driven by the stream whose bytes they write.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sluicegate_script::State;

use super::{Begun, Ended, Entry, Inner, Lent, Outcome, Pending, Purpose, Stage, Step, begin_with};
use crate::lua::states::StateCell;
use crate::stream::{Applet, AppletIo, BoundService, Bursted, ScriptHook, StreamContext};

/// A running service. Its stream drives it burst by burst and moves its bytes in between. Dropping it detaches the
/// script, whose applet then reports that the client has disconnected.
pub(super) struct Service {
    pub(super) pending: Pending,
    /// The wait for the script's next slice; set if the last burst ended without an operation to wait for.
    pub(super) turn: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Service {
    /// Returns a service that has not started yet; `None` if the worker has no Lua state for it.
    pub(super) fn new(inner: &Rc<Inner>, service: &BoundService) -> Option<Service> {
        let inner = inner.clone();
        let cell = inner.cell(&service.code)?.clone();
        let purpose = if service.http { Purpose::HttpService } else { Purpose::TcpService };
        let hook = if service.http { ScriptHook::HttpReq } else { ScriptHook::TcpReq };
        let stage = Stage::Begin { purpose, code: service.code.clone(), hook, input: None, may_wait: true, cell };
        Some(Service { pending: Pending { inner, stage: Some(stage) }, turn: None })
    }

    /// Returns the state that the service runs in, until it has ended.
    fn cell(&self) -> Option<Arc<StateCell>> {
        match self.pending.stage.as_ref()? {
            Stage::Begin { cell, .. } => Some(cell.clone()),
            Stage::Running(script) => Some(script.cell.clone()),
        }
    }

    /// Runs one burst in the state. Returns `Some` once the script has ended, with whether it ended without an error.
    fn burst_in(&mut self, cell: &Arc<StateCell>, state: &mut State, lent: Lent<'_>) -> Option<bool> {
        let ended = match self.pending.stage.as_mut() {
            Some(Stage::Begin { purpose, code, hook, .. }) => {
                let entry = Entry { purpose: *purpose, code, hook: *hook, input: None, may_wait: true };
                match begin_with(&self.pending.inner, cell, state, lent, entry) {
                    Begun::Ended(ended) => Some(ended),
                    Begun::Waits(script) => {
                        self.pending.stage = Some(Stage::Running(script));
                        None
                    }
                }
            }
            Some(Stage::Running(script)) => match script.burst(state, lent) {
                Step::Ended(ended) => Some(ended),
                Step::Waits => None,
            },
            None => Some(Ended::Task),
        };
        self.turn = None;
        let ended = ended?;
        self.pending.stage = None;
        Some(matches!(ended, Ended::Service(true)))
    }

    pub(super) async fn burst_with(&mut self, lent: Lent<'_>) -> Option<bool> {
        let Some(cell) = self.cell() else { return Some(false) };
        let mut state = cell.lock.lock().await;
        self.burst_in(&cell, &mut state, lent)
    }
}

impl Applet for Service {
    fn try_burst(&mut self, cx: &mut StreamContext) -> Bursted {
        let Some(cell) = self.cell() else { return Bursted::Ended(false) };
        let Some(mut state) = cell.lock.try_lock() else { return Bursted::Busy };
        self.burst_in(&cell, &mut state, Lent::Write(cx)).map_or(Bursted::Waits, Bursted::Ended)
    }

    fn burst_later<'a>(&'a mut self, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = Option<bool>> + 'a>> {
        Box::pin(self.burst_with(Lent::Write(cx)))
    }

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>, io: &AppletIo) -> Poll<()> {
        let Some(Stage::Running(script)) = self.pending.stage.as_mut() else { return Poll::Ready(()) };
        if script.outcome.is_some() {
            return Poll::Ready(());
        }
        let outcome = match (script.applet, &mut script.waiting) {
            (Some((wait, _)), _) if io.is_ready(wait) => Outcome::Ready,
            (Some((_, true)), Some(deadline)) => std::task::ready!(deadline.as_mut().poll(cx)),
            (Some(_), _) => return Poll::Pending,
            (None, Some(waiting)) => std::task::ready!(waiting.as_mut().poll(cx)),
            // A slice was used up, or the script yielded: the worker's other tasks run first.
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
