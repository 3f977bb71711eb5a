//! The thread that makes certificates for `generate-certificates`.
//!
//! A signature of a large RSA key takes milliseconds, in which a worker would serve hundreds of requests. One thread
//! makes the certificates of all workers, so that names without a certificate cost one core at most; concurrent
//! handshakes for a name get the same certificate. The queue is bounded: when it is full, a client gets the default
//! certificate, or none with `strict-sni`.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::{Context, Poll, ready};

use rustls::server::ClientHello;
use sluicegate_tls::listener::{Choice, Forged, Listener, Offer, Order, Refusal};
use tokio::sync::oneshot;

/// The maximum number of certificates that wait to be made.
const WAITING: usize = 1024;

/// A certificate that is being made. It never arrives if making it fails.
pub(crate) type Making = oneshot::Receiver<Forged>;

struct Job {
    order: Order,
    answer: oneshot::Sender<Forged>,
}

/// Chooses the certificate for a client. `making` is kept from one call to the next, while a certificate is made.
pub(crate) fn poll_choose(
    cx: &mut Context<'_>,
    listener: &Listener,
    hello: &ClientHello<'_>,
    making: &mut Option<Making>,
) -> Poll<Result<Choice, Refusal>> {
    let receiver = match making {
        Some(receiver) => receiver,
        None => match listener.offer(hello) {
            Ok(Offer::Ready(choice)) => return Poll::Ready(Ok(choice)),
            Ok(Offer::Forge(order)) => making.insert(begin(order)),
            Err(refusal) => return Poll::Ready(Err(refusal)),
        },
    };
    let forged = ready!(std::pin::Pin::new(receiver).poll(cx)).ok();
    *making = None;
    Poll::Ready(listener.finish(hello, forged.as_ref()))
}

fn begin(order: Order) -> Making {
    let (answer, making) = oneshot::channel();
    if let Some(jobs) = jobs() {
        // A full queue drops the job, and with it the sender.
        let _ = jobs.try_send(Job { order, answer });
    }
    making
}

/// Returns the queue of the thread, which is started with the first job.
fn jobs() -> Option<&'static SyncSender<Job>> {
    static JOBS: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    JOBS.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Job>(WAITING);
        let run = move || {
            for Job { order, answer } in receiver {
                if !answer.is_closed()
                    && let Ok(forged) = order.make()
                {
                    let _ = answer.send(forged);
                }
            }
        };
        std::thread::Builder::new().name("certificates".to_owned()).spawn(run).ok().map(|_| sender)
    })
    .as_ref()
}
