//! The end of a command: finished, or aborted by the drop of its context.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Ctx;
use crate::stats::SectionCounts;

impl Ctx<'_> {
    /// Ends the command: unlocks its stripes, frees replaced values, and emits its effects, or hands them to the
    /// section that runs it.
    #[inline]
    pub(crate) fn finish(mut self) {
        if self.ends_bare() {
            // Nearly all commands leave nothing to be dropped.
            std::mem::forget(self);
        } else {
            self.finish_whole();
        }
    }

    fn finish_whole(mut self) {
        self.is_finished = true;
        self.leave();
    }

    /// Unlocks the stripe of a command that leaves nothing else, whose context must then be forgotten. Returns false,
    /// and does nothing, if there is more.
    #[inline]
    pub(crate) fn ends_bare(&mut self) -> bool {
        self.garbage.capacity() == 0
            && self.effects.capacity() == 0
            && !self.places.spilled()
            && self.ahead.is_none()
            && self.resolved.is_none()
            && self.pins.is_none()
            && self.locks.clear_one()
    }

    /// Unlocks, frees replaced values, and emits the effects.
    fn leave(&mut self) {
        if self.collected.is_none() && !self.effects.is_empty() {
            self.inner.record_all(&mut self.effects);
        }
        // Stripes first, then replaced values: freeing megabytes takes longer than a lock may be held.
        self.locks.clear();
        if !self.garbage.is_empty() {
            self.inner.discard(self.garbage.drain(..));
        }
        if !self.effects.is_empty() {
            let effects = std::mem::take(&mut self.effects);
            match self.collected {
                Some(collected) => collected.borrow_mut().extend(effects),
                None => self.inner.emit(effects),
            }
        }
    }

    /// Ends a command whose handler panicked. Waiters are served by another thread, because this one is inside the gate.
    #[cold]
    fn abort(&mut self) {
        SectionCounts::count(&self.inner.sections.aborted_commands);
        // This runs during unwinding, in which a second panic would abort the process.
        let _ = catch_unwind(AssertUnwindSafe(|| self.record_aborted()));
        let mut ready = self.pins.as_mut().map(|pins| std::mem::take(&mut pins.ready)).unwrap_or_default();
        for waits in self.locks.iter_mut().filter_map(|stripe| stripe.waits.as_deref_mut()) {
            ready.extend(waits.take_ready());
        }
        self.leave();
        if !ready.is_empty() {
            self.inner.serve_elsewhere(ready);
        }
    }
}

impl Drop for Ctx<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.abort();
        }
    }
}
