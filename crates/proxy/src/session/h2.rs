//! The life of a connection of HTTP/2: it begins streams, each of which runs in a task of its own.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use sluicegate_wire::http::{Limits, RequestHead};
use sluicegate_wire::http2::Settings;

use super::Session;
use crate::mux::Front;
use crate::mux::h2::{self, Arrival, Driver, Over, Times};
use crate::stick::Counted;
use crate::stream::{Active, http};
use crate::worker::Worker;

/// Serves the connection until it is over and its last stream has ended.
pub(super) async fn serve(session: &mut Session) {
    let mut driver = Driver::new(settings(session), session.client.accepted);
    let mut began = session.client.accepted;
    let over = poll_fn(|cx| {
        loop {
            if driver.is_idle() {
                session.follow();
            }
            if session.is_stopping() || session.is_outdated() {
                driver.stop();
            }
            session.place.waits(cx.waker());
            let times = times(session);
            let worker = session.place.worker().clone();
            let polled = driver.poll(cx, &mut session.front, &worker.buffers, &times);
            let now = Instant::now();
            let mut arrivals = driver.arrivals().peekable();
            if arrivals.peek().is_none() {
                return polled;
            }
            for arrival in arrivals.collect::<Vec<_>>() {
                let left = begin(session, arrival, began, now);
                driver.keep_message(left);
                began = now;
            }
            if polled.is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    driver.end();
    match over {
        // The client reads why, if it still reads.
        Over::Failed | Over::TimedOut => session.front.give_up(),
        Over::Gone | Over::Done => {}
    }
    poll_fn(|cx| driver.poll_ended(cx)).await;
}

/// Returns this side's settings.
fn settings(session: &Session) -> Settings {
    let worker = session.worker();
    let global = &worker.running.config.global;
    let (tune, side) = (&global.tune.h2, &global.tune.h2.front);
    let lenient = session.frontend().config.options.unsafe_requests;
    Settings {
        header_table_size: tune.header_table,
        initial_window: tune.window(side, worker.buffers.size()),
        max_concurrent_streams: tune.streams(side),
        max_frame_size: tune.max_frame.unwrap_or(0),
        connect_protocol: !tune.no_websocket,
        max_total_streams: tune.max_total_streams,
        glitches_threshold: side.glitches,
        head: Limits { lenient, ..worker.limits },
        ..Settings::default()
    }
}

fn times(session: &Session) -> Times {
    let times = &session.frontend().config.timeouts;
    let request = times.http_request.or(times.client);
    Times { request, idle: times.http_keep_alive.or(request), client: times.client }
}

/// Begins a stream; returns a message whose memory the next stream may have. `before` is the time at which the stream
/// before it began, or that of the acceptance.
fn begin(session: &Session, arrival: Arrival, before: Instant, now: Instant) -> sluicegate_wire::http::Message {
    let Arrival { front, head, mut message, unparsable } = arrival;
    let mut stream = session.new_stream();
    std::mem::swap(&mut stream.cx.request, &mut message);
    let worker = session.worker();
    let log = &mut stream.cx.log;
    log.request_started_at = worker.wall_clock(now);
    log.request_started = now;
    log.accepted = before;
    stream.cx.request_number = session.client.count_request();
    if unparsable {
        refuse(session, front, stream);
    } else {
        run(worker, front, stream, head, now);
    }
    message
}

/// Runs a stream in a task of its own, which an administrator can end like a session.
fn run(worker: &Rc<Worker>, front: h2::Front, mut stream: Active, head: RequestHead, now: Instant) {
    let place = worker.register_session();
    stream.cx.place = Some(place.number());
    let watch = place.watch();
    // Made where it will live: `Box::pin` makes it on the stack and copies all its kilobytes.
    let serving = Box::write(Box::new_uninit(), http::serve(Front::H2(front), stream, head, now));
    let serving = Box::into_pin(serving);
    tokio::task::spawn_local(async move {
        watch.unless_killed(serving).await;
        drop(place);
    });
}

/// Answers a request that is malformed in a way that HAProxy's HTTP/2 layer does not see.
fn refuse(session: &Session, mut front: h2::Front, mut stream: Active) {
    session.listener().count(session.worker().index, |counters| {
        counters.ereq.add(1);
        counters.req_tot.add(1);
    });
    stream.cx.count(Counted::Request);
    stream.cx.count(Counted::Error);
    stream.cx.log.no_request = true;
    stream.cx.log.status = 400;
    front.send_page(400);
    stream.end(b'P', b'R');
}
