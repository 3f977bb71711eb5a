//! The section of a transaction on other threads: for a long command, and after its client has disconnected.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_wire::resp::ReplyBuilder;

use super::{LEFT_MAX, Queued, selected};
use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::{Flags, Guard, Handler, Start};
use crate::memory::Share;
use crate::owned::ReplyForm;
use crate::script::Pending;
use crate::section::Section;

/// The remaining commands of a transaction whose client has disconnected.
pub(super) struct Rest {
    pub(super) inner: Arc<Inner>,
    pub(super) commands: Vec<Queued>,
    pub(super) next: usize,
    pub(super) db: u32,
    /// The permissions of their client, if they are restricted.
    pub(super) guard: Option<Arc<dyn Guard>>,
    /// The memory of the queued commands, still charged to their client, which has disconnected.
    pub(super) _share: Share,
}

impl Rest {
    /// Runs the remaining commands on this thread, or on another one if there are many.
    pub(super) fn finish_somewhere(self, section: Section) {
        if self.commands.len() - self.next <= LEFT_MAX {
            self.finish(section);
        } else {
            self.inner.clone().aside.run(move || self.finish(section));
        }
    }

    /// Drops the remaining commands without running them, and aborts the section.
    pub(super) fn give_up(self, section: Section) {
        self.inner.clone().aside.run(move || drop((section, self)));
    }

    fn finish(mut self, mut section: Section) {
        while let Some(queued) = self.commands.get(self.next) {
            self.next += 1;
            let (spec, words) = (queued.spec(), queued.words.to_vec());
            if self.guard.as_ref().is_some_and(|guard| !guard.allows(queued.row, &words)) {
                continue;
            }
            if let Handler::Script(handle) = spec.handler {
                let place = RefCell::new(Some(section));
                let (inner, form, guard) = (self.inner.clone(), ReplyForm::Value, self.guard.clone());
                // Its client has disconnected.
                let client = 0;
                let start = Start {
                    inner: &inner,
                    words: &words,
                    received: queued.words.received(),
                    db: self.db,
                    client,
                    began: None,
                    form,
                    behalf: Behalf::CLIENT,
                    guard: guard.as_ref(),
                    section: Some(&place),
                };
                if let Some(Ok(script)) = handle(&start, &mut ReplyBuilder::new()).map(Pending::of) {
                    drop(words);
                    return script.leave(move |ended| {
                        if let Some(mut section) = ended.section {
                            section.extend_by_command();
                            self.finish(section);
                        }
                    });
                }
                let Some(given_back) = place.take() else { return };
                section = given_back;
                continue;
            }
            if spec.selects() {
                self.db = selected(&self.inner, words[1]).unwrap_or(self.db);
            }
            if let Handler::Keyspace(_) | Handler::Global(_) = spec.handler {
                let mut unheard = ReplyBuilder::new();
                if spec.flags.has(Flags::WRITE) {
                    section.begin_to_write();
                }
                // If the command panics, only its reply is lost, which has no receiver.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let _ = section.execute_resolved(spec, self.db, &words, &mut unheard);
                }));
            }
        }
        section.finish();
    }
}

/// The data that another thread returns after it has executed a command.
pub(super) struct Back {
    pub(super) section: Section,
    pub(super) reply: Vec<u8>,
    /// The duration of the command.
    pub(super) spent: Duration,
}

/// A section that is on another thread, where one of its commands is executed.
#[derive(Default)]
pub(super) struct Away(Mutex<Errand>);

#[derive(Default)]
#[allow(clippy::large_enum_variant, reason = "there is one for a transaction that has gone away")]
enum Errand {
    /// The command is being executed, and no task waits for it yet.
    #[default]
    Unheard,
    /// The command is being executed; the waker of the task that waits for it.
    Heard(Waker),
    /// The command has been executed.
    Back(Back),
    /// The client has disconnected: the thread that executes the command also runs the remaining ones.
    Left(Rest),
}

impl Away {
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Back> {
        let mut errand = self.0.lock();
        match std::mem::replace(&mut *errand, Errand::Heard(waker.clone())) {
            Errand::Back(back) => Poll::Ready(back),
            _ => Poll::Pending,
        }
    }

    pub(super) fn come_back(&self, back: Back) {
        let mut errand = self.0.lock();
        match std::mem::take(&mut *errand) {
            Errand::Left(rest) => {
                drop(errand);
                rest.finish(back.section);
            }
            before => {
                *errand = Errand::Back(back);
                drop(errand);
                if let Errand::Heard(waker) = before {
                    waker.wake();
                }
            }
        }
    }

    pub(super) fn leave(&self, rest: Rest) {
        let mut errand = self.0.lock();
        match std::mem::take(&mut *errand) {
            Errand::Back(back) => {
                drop(errand);
                rest.finish_somewhere(back.section);
            }
            _ => *errand = Errand::Left(rest),
        }
    }
}
