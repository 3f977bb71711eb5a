//! The life of a connection of HTTP/2: it begins streams, each of which runs in a task of its own.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Instant, SystemTime};

use sluicegate_transport::Recycled;
use sluicegate_wire::http::{Limits, RequestHead, status};
use sluicegate_wire::http2::{Connection, Counts, Settings};

use super::Session;
use crate::counters::Http2Counters;
use crate::mux::Front;
use crate::mux::h2::{self, Arrival, Driver, Over, Times};
use crate::running::ProxyRun;
use crate::site::Site;
use crate::stick::{Counted, Tracked};
use crate::stream::{Active, http};
use crate::worker::Worker;

/// Serves the connection until it is over and its last stream has ended.
pub(super) async fn serve(session: &mut Session) {
    let driver = Driver::new(settings(session.worker(), session.frontend()), session.client.accepted);
    drive(session, driver).await;
}

/// Serves a connection that this side has opened, and whose peer has sent its settings.
pub(super) async fn serve_reversed(session: &mut Session, wire: Connection) {
    let driver = Driver::of(wire, session.client.accepted);
    drive(session, driver).await;
}

async fn drive(session: &mut Session, mut driver: Driver) {
    session.client.set_http2(driver.facts());
    if let Some(tls) = session.front.tls() {
        tls.multiplex();
    }
    let mut counter = Counter::begin(session);
    let glitches_load = session.worker().running.config.global.tune.h2.glitches_load;
    let mut began = session.client.accepted;
    let over = poll_fn(|cx| {
        loop {
            if driver.is_idle() {
                session.follow();
            }
            let stop = session.renewal_time();
            if stop.is_some_and(|at| at <= Instant::now()) {
                driver.stop();
                session.slots.leave_reverse();
            }
            session.place.waits(cx.waker());
            let times = times(session, stop);
            let worker = session.place.worker().clone();
            if glitches_load > 0 {
                driver.set_strict(worker.running.process.kills_glitches(worker.index, glitches_load));
            }
            let polled = driver.poll(cx, &mut session.front, &worker.buffers, &times);
            counter.count(session, &driver);
            let mut arrivals = driver.arrivals().peekable();
            if arrivals.peek().is_none() {
                return polled;
            }
            let now = Instant::now();
            let now_at = worker.wall_clock(now);
            for arrival in arrivals {
                begin(session, arrival, began, (now, now_at));
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
        // The client reads the last answers, or why there are none, if it still reads.
        Over::Failed | Over::TimedOut | Over::Done => session.front.give_up(),
        Over::Gone => note_end(session, &driver),
        Over::Stopped => {}
    }
    poll_fn(|cx| driver.poll_ended(cx)).await;
    counter.count(session, &driver);
    if over == Over::Stopped {
        // A request that is still on its way would have the kernel reset the connection under unread answers.
        let buffers = session.worker().buffers.clone();
        session.front.drain(&buffers).await;
    }
}

/// Logs a connection that the client has closed before its preface was complete.
fn note_end(session: &Session, driver: &Driver) {
    let options = &session.frontend().config.options;
    let ignored = options.dontlognull || options.http_ignore_probes;
    if let Some(received) = driver.preface_received().filter(|received| *received > 0 || !ignored) {
        note_failure(session, received.into());
    }
}

/// Logs bytes of the client that are no request; at least `received` have come.
fn note_failure(session: &Session, received: usize) {
    let mut stream = session.new_stream();
    stream.note_received(received);
    stream.cx.log.no_request = true;
    stream.cx.log.status = 0;
    stream.end(b'P', b'R');
    stream.begin();
}

/// The figures of a connection's frontend. They stay those of the configuration with which the connection began, so that
/// its beginning and its end are counted in the same place.
struct Counter {
    frontend: Arc<ProxyRun>,
    worker: usize,
    /// The anomalies that were counted.
    glitches: u32,
}

impl Counter {
    fn begin(session: &Session) -> Counter {
        let worker = session.worker();
        let frontend = worker.running.proxies[session.frontend().id.0 as usize].clone();
        let counter = Counter { frontend, worker: worker.index, glitches: 0 };
        counter.figures().total_connections.add(1);
        counter
    }

    fn figures(&self) -> &Http2Counters {
        &self.frontend.frontend.figures.at(self.worker).http2
    }

    /// Adds what was received and sent since the last call.
    fn count(&mut self, session: &Session, driver: &Driver) {
        let (counts, glitches) = driver.take_counts();
        if counts != Counts::default() {
            self.figures().add(&counts);
            // As in HAProxy, a failed connection with open streams has no line of its own: the streams report it.
            let failed = u32::from(counts.connection_errors > 0 && driver.is_idle());
            (0..counts.refused_heads + failed).for_each(|_| note_failure(session, 1));
            // Tables count the request that a malformed head is, and its error.
            let tracked = session.client.tracked.borrow();
            for _ in 0..counts.refused_heads {
                Tracked::count(&Tracked::default(), &tracked, Counted::Request);
                Tracked::count(&Tracked::default(), &tracked, Counted::Error);
            }
        }
        let more = glitches - self.glitches;
        if more > 0 {
            self.glitches = glitches;
            let tracked = session.client.tracked.borrow();
            Tracked::count(&Tracked::default(), &tracked, Counted::Glitches(more.into()));
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.figures().ended_connections.add(1);
    }
}

/// A stream's place in the figures, until it ends.
struct StreamCount {
    frontend: Arc<ProxyRun>,
    worker: usize,
}

impl StreamCount {
    fn begin(session: &Session) -> StreamCount {
        let worker = session.worker();
        let frontend = worker.running.proxies[session.frontend().id.0 as usize].clone();
        frontend.frontend.figures.at(worker.index).http2.total_streams.add(1);
        StreamCount { frontend, worker: worker.index }
    }
}

impl Drop for StreamCount {
    fn drop(&mut self) {
        self.frontend.frontend.figures.at(self.worker).http2.ended_streams.add(1);
    }
}

/// Returns this side's settings on connections of a frontend.
pub(super) fn settings(worker: &Worker, frontend: &Site) -> Settings {
    let global = &worker.running.config.global;
    let (tune, side) = (&global.tune.h2, &global.tune.h2.front);
    let lenient = frontend.config.options.unsafe_requests;
    Settings {
        header_table_size: tune.header_table,
        initial_window: tune.window(side, worker.buffers.size()),
        receive_total: tune.receive_total(side, worker.buffers.size()),
        max_concurrent_streams: tune.streams(side),
        max_frame_size: tune.frame(worker.buffers.size()),
        connect_protocol: !tune.no_websocket,
        max_total_streams: tune.max_total_streams,
        glitches_threshold: side.glitches,
        head: Limits { lenient, ..worker.limits },
        ..Settings::default()
    }
}

/// Returns this side's settings on connections that it opens for a frontend: as in HAProxy those of a client.
pub(super) fn settings_reversed(worker: &Worker, frontend: &Site) -> Settings {
    let tune = &worker.running.config.global.tune.h2;
    Settings {
        initial_window: tune.window(&tune.back, worker.buffers.size()),
        receive_total: tune.receive_total(&tune.back, worker.buffers.size()),
        max_concurrent_streams: tune.streams(&tune.back),
        ..settings(worker, frontend)
    }
}

fn times(session: &Session, stop: Option<Instant>) -> Times {
    let (listener, times) = (session.listener(), &session.frontend().config.timeouts);
    let bind = listener.proxy.config.binds.get(listener.bind);
    Times {
        request: times.http_request,
        idle: times.http_keep_alive.or(times.http_request),
        client: times.client,
        fin: times.client_fin,
        ping: bind.and_then(|bind| bind.idle_ping),
        stop,
    }
}

/// Begins a stream at this moment of both clocks. `before` is the time at which the stream before it began, or that of the
/// acceptance.
fn begin(session: &Session, arrival: Arrival, before: Instant, (now, now_at): (Instant, SystemTime)) {
    let Arrival { front, head, mut message, unparsable } = arrival;
    let mut stream = session.new_stream();
    std::mem::swap(&mut stream.cx.request, &mut message);
    let worker = session.worker();
    let log = &mut stream.cx.log;
    log.request_started_at = now_at;
    log.request_started = now;
    log.accepted = before;
    stream.cx.request_number = session.client.count_request();
    stream.cx.stream_id = front.id();
    h2::keep_message(message);
    let count = StreamCount::begin(session);
    if unparsable {
        refuse(session, front, stream);
    } else {
        run(worker, front, stream, head, now, count);
    }
}

/// Runs a stream in a task of its own, which an administrator can end like a session.
fn run(
    worker: &Rc<Worker>,
    front: Box<h2::Front>,
    mut stream: Active,
    head: RequestHead,
    now: Instant,
    count: StreamCount,
) {
    let place = worker.register_session();
    stream.cx.place = Some(place.number());
    let watch = place.watch();
    let serving = Recycled::new(|| http::serve(Front::H2(front), stream, head, now));
    tokio::task::spawn_local(async move {
        watch.unless_killed(serving).await;
        drop((place, count));
    });
}

/// Answers a request that is malformed in a way that HAProxy's HTTP/2 layer does not see.
fn refuse(session: &Session, mut front: Box<h2::Front>, mut stream: Active) {
    session.listener().count(session.worker().index, |counters| {
        counters.ereq.add(1);
        counters.req_tot.add(1);
    });
    stream.cx.count(Counted::Request);
    stream.cx.count(Counted::Error);
    stream.cx.log.no_request = true;
    stream.cx.log.status = 400;
    stream.end(b'P', b'R');
    stream.begin();
    front.send_page(400);
    stream.count_sent(status::error_page(400).raw.len());
}
