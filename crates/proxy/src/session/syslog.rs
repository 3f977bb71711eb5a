//! Sessions and datagrams of `log-forward` sections: syslog messages that are passed on to log targets.
//!
//! Messages are handled on the worker that receives them, one after the other; a target that does not keep up delays no
//! client. A message is at most as long as a buffer (`tune.bufsize`): a longer one ends its connection.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sluicegate_wire::syslog::{Frame, Message, frame};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Session;
use crate::listener::Listener;
use crate::process::Phase;
use crate::site::Site;
use crate::worker::Worker;

/// The maximum number of messages that are handled before other tasks run.
const BATCH: usize = 64;

/// The end of a session's input.
enum Ended {
    /// The client has closed or broken the connection, or was silent for too long.
    Gone,
    /// The bytes are no message.
    Malformed,
}

/// Passes on the messages of a connection, until it ends.
pub(super) async fn serve(session: &mut Session) {
    let site = session.frontend().clone();
    let Some(settings) = site.config.log_forward.clone() else { return };
    let timeout = site.config.timeouts.client;
    let worker = session.worker().clone();
    let index = worker.index;
    let max = worker.buffers.size();
    let ended = 'connection: loop {
        let mut handled = 0;
        loop {
            let input = session.front.input();
            match frame(input, settings.always_lines, max) {
                Frame::Whole(message, taken) => {
                    let from = session.client.ends().0;
                    session.listener().count(index, |counters| counters.req_tot.add(1));
                    pass_on(&worker, &site, message, from);
                    session.front.skip(taken);
                    handled += 1;
                    if handled == BATCH {
                        handled = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Frame::Partial if session.front.has_ended() => break 'connection Ended::Gone,
                Frame::Partial => break,
                Frame::Bad => break 'connection Ended::Malformed,
            }
        }
        session.front.give_back(&worker.buffers, false);
        session.front.arm(timeout.map(|timeout| Instant::now() + timeout));
        let filled = poll_fn(|cx| {
            // A session of a process that stops ends, whatever its client still has to say.
            if session.closing_time().is_some_and(|at| at <= Instant::now()) {
                return Poll::Ready(false);
            }
            session.place.waits(cx.waker());
            match session.front.poll_fill(cx, &session.place.worker().buffers) {
                Poll::Ready(result) => Poll::Ready(matches!(result, Ok(count) if count > 0)),
                Poll::Pending => session.front.poll_alarm(cx).map(|()| false),
            }
        });
        if !filled.await {
            break Ended::Gone;
        }
    };
    match ended {
        Ended::Gone if session.front.input().is_empty() => {}
        Ended::Gone => session.listener().count(index, |counters| counters.cli_abrt.add(1)),
        Ended::Malformed => session.listener().count(index, |counters| counters.ereq.add(1)),
    }
}

/// Passes on the datagrams of a socket, until the process stops listening.
pub(crate) async fn receive(worker: Rc<Worker>, listener: Arc<Listener>, socket: Arc<OwnedFd>) -> io::Result<()> {
    // SAFETY: an `OwnedFd` keeps its descriptor open and unchanged until it is dropped, which cannot happen before the
    // `AsyncFd`, holding one of its owners, is dropped.
    let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
    let mut buffer = vec![MaybeUninit::uninit(); worker.buffers.size()];
    while worker.phase() == Phase::Serving {
        let mut ready = socket.readable().await?;
        for _ in 0..BATCH {
            let received = ready.try_io(|socket| SockRef::from(socket.get_ref()).recv_from(&mut buffer));
            let Ok(received) = received else { break };
            // An error belongs to one datagram or to the past.
            let Ok((count, from)) = received else { continue };
            // SAFETY: the kernel has written the first `count` bytes.
            let message = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), count) };
            listener.count(worker.index, |counters| counters.req_tot.add(1));
            pass_on(&worker, &listener.proxy, message, from.as_socket());
        }
        drop(ready);
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn pass_on(worker: &Worker, site: &Site, message: &[u8], from: Option<SocketAddr>) {
    worker.figures().messages.add(1);
    let config = &site.config;
    let Some(settings) = &config.log_forward else { return };
    let message = match settings.unparsed {
        true => Message { text: message, ..Message::default() },
        false => Message::parse(message),
    };
    let from = from.filter(|_| !settings.unparsed);
    worker.running.logger.forward(&config.log, &message, settings.host, from.map(|from| from.ip()));
}
