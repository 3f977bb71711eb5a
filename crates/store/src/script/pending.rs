//! A script whose caller waits, and the continuation of its section when that caller has gone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::run::{Ended, Job, Step};
use super::threads::{Done, Told};
use crate::claim::Claim;
use crate::hold::Ticket;
use crate::owned::Finished;
use crate::park::{Parked, Waits, Work};

/// A script whose caller waits.
pub(crate) enum Pending {
    Here(Option<Box<Job>>),
    Away(Told),
    /// It has ended, after running on script threads for this time.
    Over(Duration),
}

impl Pending {
    pub(crate) fn new(job: Box<Job>) -> Pending {
        Pending::Here(Some(job))
    }

    /// Returns the script that a command has left pending; an error is another pending reply.
    pub(crate) fn of(parked: Parked) -> Result<Box<Pending>, Parked> {
        match parked.0 {
            Waits::Work(work) if (&*work as &dyn Any).is::<Pending>() => {
                Ok((work as Box<dyn Any>).downcast().expect("its type was just seen"))
            }
            other => Err(Parked(other)),
        }
    }

    /// Returns the place in the queues of its keys, while it waits there.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        match self {
            Pending::Here(Some(job)) => job.ticket(),
            _ => None,
        }
    }

    /// Returns its run time on script threads; zero until it has ended.
    pub(crate) fn worked(&self) -> Duration {
        match self {
            Pending::Over(worked) => *worked,
            _ => Duration::ZERO,
        }
    }

    /// Continues it. The section is returned with the reply, for the continuation.
    pub(crate) fn poll_begun(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        if let Pending::Here(job) = self {
            let Some(running) = job else { return Poll::Pending };
            let step = catch_unwind(AssertUnwindSafe(|| running.step(context, false)));
            let step = match (step, &mut *job) {
                (Ok(step), _) => step,
                // A panic ends the script; its caller gets an error.
                (Err(_), job) => job.take().map_or(Step::Waits, |job| Step::Done(job.fail())),
            };
            match step {
                Step::Waits => return Poll::Pending,
                Step::Done(ended) => {
                    *job = None;
                    return Poll::Ready(ended);
                }
                Step::Forced => {
                    let claim = Arc::new(Claim::new());
                    if let Some(job) = job.take() {
                        job.go_away(Done::Caller(claim.clone()));
                    }
                    *self = Pending::Away(claim);
                }
            }
        }
        let Pending::Away(claim) = self else { return Poll::Pending };
        let Poll::Ready((ended, worked)) = claim.poll(context.waker()) else { return Poll::Pending };
        *self = Pending::Over(worked);
        Poll::Ready(ended)
    }

    /// Passes its enclosing section to `then` at its end, because its caller has gone.
    pub(crate) fn leave(mut self, then: impl FnOnce(Ended) + Send + 'static) {
        match &mut self {
            Pending::Here(job) => {
                if let Some(job) = job.take() {
                    job.go_away(Done::Then(Box::new(then)));
                }
            }
            Pending::Away(claim) => {
                let place = Mutex::new(Some((claim.clone(), Box::new(then) as Heir)));
                Arc::new(Then(place)).wake();
            }
            Pending::Over(_) => {}
        }
    }
}

impl Work for Pending {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        // The enclosing section ends with it.
        self.poll_begun(context).map(Ended::finish)
    }

    fn ticket(&self) -> Option<&Arc<Ticket>> {
        Pending::ticket(self)
    }

    fn worked(&self) -> Duration {
        Pending::worked(self)
    }
}

/// The continuation of a script's enclosing section.
pub(crate) type Heir = Box<dyn FnOnce(Ended) + Send>;

/// The function called at the end of a script that had another receiver first. It is empty afterwards; the end of the
/// script and this refer to each other until then.
struct Then(Mutex<Option<(Told, Heir)>>);

impl Wake for Then {
    fn wake(self: Arc<Self>) {
        let mut place = self.0.lock();
        let Some((claim, then)) = place.take() else { return };
        match claim.poll(&Waker::from(self.clone())) {
            Poll::Ready((ended, _)) => {
                drop(place);
                then(ended);
            }
            Poll::Pending => *place = Some((claim, then)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Pending::Here(job) = self
            && let Some(job) = job.take()
            && job.has_begun()
        {
            // Its client has disconnected in the middle; half a script must not remain.
            job.go_away(Done::Nobody);
        }
    }
}
