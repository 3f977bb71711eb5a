//! Exchanges with agents: a server of the backend is chosen and connected to as for any stream.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_wire::spop::Messages;

use super::assign::Assignment;
use super::failure::ServerFailure;
use super::header::Made;
use super::idle::Keeper;
use super::queue::Priority;
use super::tls::Names;
use super::{Link, ServerConnection};
use crate::running::ProxyRun;
use crate::sample::Variables;
use crate::spoe::{Agents, Answer, Engine, Exchange, OF_CONNECTION, StreamSpoe};
use crate::stream::{LogRecord, StreamContext, Timers};
use crate::worker::Worker;

/// Statuses of connections: an error, and no resources.
const IO: u64 = 1;
const RESOURCES: u64 = 13;

impl Agents for Worker {
    fn ask(
        self: Rc<Self>,
        messages: Messages,
        engine: Arc<Engine>,
        limit: Option<Duration>,
        parent: &Variables,
    ) -> Exchange {
        let backend = self.running.proxies.get(engine.backend.0 as usize);
        // Only expressions of the backend see the variables.
        let variables = backend.filter(|backend| has_expressions(backend)).map(|_| parent.of_child());
        Box::pin(exchange(self, engine, messages, limit, variables))
    }
}

/// Returns whether an exchange with an agent of a backend depends on samples.
fn has_expressions(backend: &ProxyRun) -> bool {
    !backend.headers.is_empty() || !backend.names.is_empty() || backend.rules.balance_key.is_some()
}

async fn exchange(
    worker: Rc<Worker>,
    engine: Arc<Engine>,
    messages: Messages,
    limit: Option<Duration>,
    variables: Option<Variables>,
) -> Answer {
    let now = Instant::now();
    let Some(backend) = worker.running.proxies.get(engine.backend.0 as usize) else {
        return Err(OF_CONNECTION + RESOURCES);
    };
    let _stay = backend.backend.enter(worker.index, now);
    let mut log = LogRecord::new(worker.wall_clock(now), now);
    log.request_done = Some(now);
    let connection =
        connect(&worker, &engine, backend, variables, &mut log).await.map_err(|failure| match failure {
            ServerFailure::Resource => OF_CONNECTION + RESOURCES,
            _ => OF_CONNECTION + IO,
        })?;
    // The caller's limit began earlier.
    let own = backend.config.timeouts.server.filter(|own| limit.is_none_or(|limit| *own < limit));
    let answer = converse(&connection, messages, own, |sent, received| {
        for counters in [&backend.backend.figures, &connection.server().shared.figures] {
            let counters = counters.at(worker.index);
            counters.bin.add(sent as u64);
            counters.bout.add(received as u64);
        }
    })
    .await;
    let ended = Instant::now();
    if answer.is_ok() {
        log.response_started = Some(ended);
    }
    log.ended = Some(ended);
    let times = Timers::of(&log, ended);
    for figures in [&backend.backend.figures, &connection.server().shared.figures] {
        figures.at(worker.index).times(times.queue, times.connect, times.response, times.active);
    }
    answer
}

/// The results of a backend's expressions for a connection to an agent: PROXY headers, names in handshakes, and the hash
/// of `balance`.
type Sampled = (Made, Names, Option<u32>);

/// Evaluates the backend's expressions with the variables of the stream that asks; there is no client.
fn sampled(worker: &Rc<Worker>, engine: &Arc<Engine>, backend: &ProxyRun, variables: Variables) -> Sampled {
    let now = Instant::now();
    let record = LogRecord::new(worker.wall_clock(now), now);
    let mut cx = StreamContext::unconnected(backend.site.clone(), record);
    cx.variables = variables;
    let mut spoe = StreamSpoe::new(worker.clone());
    spoe.carried = Some(engine.clone());
    cx.spoe = Some(Box::new(spoe));
    let hash = backend.rules.balance_key.as_ref().and_then(|key| key.hash(&cx));
    (backend.headers.make(&cx), backend.names.make(&cx), hash)
}

async fn connect(
    worker: &Rc<Worker>,
    engine: &Arc<Engine>,
    backend: &ProxyRun,
    variables: Option<Variables>,
    log: &mut LogRecord,
) -> Result<ServerConnection, ServerFailure> {
    let sampled = variables.map(|variables| sampled(worker, engine, backend, variables));
    let (headers, names, hash) = sampled.unwrap_or_default();
    let assignment = Assignment {
        config: &backend.config,
        backend: &backend.backend,
        counted: &backend.backend,
        redirects: false,
        servers: &backend.servers,
        proxies: &worker.running.proxies,
        observer: Some((&worker.running, backend)),
        worker: worker.index,
        destination: None,
        headers: (&backend.headers, headers),
        names,
        totals: &worker.running.process.tls,
        foreign: Vec::new(),
        namespace: None,
        http2: None,
        agents: Some((&worker.agents, engine)),
        application: None,
        websocket: false,
        allow_reuse: true,
        keeper: Keeper { session: 0, most: 0 },
        hash,
        retries: backend.config.retries,
        priority: Priority::default(),
        asked_for: None,
        stays: false,
        preferred: None,
        has_reserved: false,
    };
    assignment.run_for_agent(log).await
}

async fn converse(
    connection: &ServerConnection,
    messages: Messages,
    limit: Option<Duration>,
    count: impl Fn(usize, usize),
) -> Answer {
    let Link::Agent(stream) = &connection.link else { return Err(OF_CONNECTION + RESOURCES) };
    let sent = messages.len();
    let exchange = stream.exchange(messages);
    let answer = match limit {
        Some(limit) => tokio::time::timeout(limit, exchange).await.unwrap_or(Err(OF_CONNECTION + IO)),
        None => exchange.await,
    };
    count(sent, answer.as_ref().map_or(0, Vec::len));
    answer
}
