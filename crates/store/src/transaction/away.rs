//! A transaction's section on other threads: with a long command, and after its client has disconnected.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_wire::resp::ReplyBuilder;

use super::{LEFT_MAX, Queued, selected};
use crate::Inner;
use crate::catalogue::Handler;
use crate::catalogue::Start;
use crate::memory::Share;
use crate::owned::ReplyForm;
use crate::script::Pending;
use crate::section::Section;

/// The rest of a transaction whose client has disconnected.
pub(super) struct Rest {
    pub(super) inner: Arc<Inner>,
    pub(super) commands: Vec<Queued>,
    pub(super) next: usize,
    pub(super) db: u32,
    /// The memory of the commands on the account of their client, which has disconnected.
    pub(super) _share: Share,
}

impl Rest {
    /// Runs it here, or on another thread if it is much.
    pub(super) fn finish_somewhere(self, section: Section) {
        if self.commands.len() - self.next <= LEFT_MAX {
            self.finish(section);
        } else {
            self.inner.clone().aside.run(move || self.finish(section));
        }
    }

    /// Frees it, without having done anything, and aborts its section.
    pub(super) fn give_up(self, section: Section) {
        self.inner.clone().aside.run(move || drop((section, self)));
    }

    fn finish(mut self, mut section: Section) {
        while let Some(queued) = self.commands.get(self.next) {
            self.next += 1;
            let (spec, words) = (queued.spec(), queued.words.to_vec());
            if let Handler::Script(handle) = spec.handler {
                let place = RefCell::new(Some(section));
                let (inner, form) = (self.inner.clone(), ReplyForm::Value);
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
                    is_traceless: false,
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
                // A panicking command has lost its reply, which has no receiver.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let _ = section.execute_resolved(spec, self.db, &words, &mut unheard);
                }));
            }
        }
        section.finish();
    }
}

/// The data that returns from another thread.
pub(super) struct Back {
    pub(super) section: Section,
    pub(super) reply: Vec<u8>,
    /// The duration of the command.
    pub(super) spent: Duration,
}

/// A section that is on another thread, which carries out one command of it.
#[derive(Default)]
pub(super) struct Away(Mutex<Errand>);

#[derive(Default)]
#[allow(clippy::large_enum_variant, reason = "there is one for a transaction that has gone away")]
enum Errand {
    /// The command is being executed; the task to wake afterwards.
    #[default]
    Unheard,
    Heard(Waker),
    /// It has replied.
    Back(Back),
    /// The client has disconnected: that thread does the rest.
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
