//! A session in TCP mode: one stream from the acceptance to the end.

use std::time::Instant;

use sluicegate_config::model::ProxyId;

use super::relay::{Relay, RelayTimeouts};
use super::{Active, Buffer};
use crate::rule::{self, Hook, Verdict};
use crate::running::ProxyRun;
use crate::server;
use crate::session::Session;

/// Serves the session.
pub(crate) async fn serve(session: &mut Session) {
    let mut stream = Active::take(session);
    stream.begin();
    let worker = stream.worker().clone();
    let frontend = &worker.running.proxies[stream.cx.frontend.id.0 as usize];
    if !rules(frontend, Hook::TcpRequestContent, &mut stream).await {
        return;
    }
    let chosen = rule::choose_backend(frontend, &mut stream.cx, &worker).await;
    let Some(ProxyId(index)) = chosen else {
        stream.end(b'S', b'C');
        return;
    };
    let backend = &worker.running.proxies[index as usize];
    stream.cx.backend = Some(backend.clone());
    let _stay = backend.backend.enter(worker.index, Instant::now());
    if backend.id != frontend.id && !rules(backend, Hook::TcpRequestContent, &mut stream).await {
        return;
    }
    let gone = session.socket.gone(backend.config.options.abortonclose);
    let result = tokio::select! {
        biased;
        result = server::assign_and_connect(backend, &mut stream.cx, &worker, false) => Some(result),
        () = gone => None,
    };
    let mut connection = match result {
        Some(Ok(connection)) => connection,
        Some(Err(failure)) => {
            let ending = failure.ending();
            stream.end(ending.who, ending.phase);
            return;
        }
        None => {
            let phase = if stream.cx.log.queue_done.is_none() { b'Q' } else { b'C' };
            stream.end(b'C', phase);
            return;
        }
    };
    stream.cx.in_response = true;
    if !rules(backend, Hook::TcpResponseContent, &mut stream).await {
        return;
    }
    let mut input = Buffer::default();
    let timeouts = RelayTimeouts::new(&frontend.config.timeouts, &backend.config.timeouts);
    let relay = Relay::new(session, &mut stream, &mut connection.socket, &mut input, Vec::new(), timeouts);
    let ending = relay.run().await;
    worker.buffers.reclaim(&mut input);
    stream.end(ending.who, ending.phase);
}

/// Runs content rules; `false`: the stream is refused, counted and its ending said.
async fn rules(proxy: &ProxyRun, hook: Hook, stream: &mut Active) -> bool {
    let list = if hook.is_response() { &proxy.rules.tcp_response_content } else { &proxy.rules.tcp_request_content };
    if list.is_empty() {
        return true;
    }
    let worker = stream.worker().clone();
    let verdict = rule::run(list, hook, &mut stream.cx, &worker).await;
    if matches!(verdict, Verdict::Continue) {
        return true;
    }
    let counters = proxy.frontend.figures.at(worker.index);
    if hook.is_response() {
        counters.dresp.add(1);
    } else {
        counters.dreq.add(1);
    }
    stream.end(b'P', if hook.is_response() { b'D' } else { b'R' });
    false
}
