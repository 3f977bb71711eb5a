//! Connections of checks from the servers' pools (`check-reuse-pool`).
//!
//! A connection of HTTP/1 moves from a worker's list to the control thread. It goes back if the check has sent nothing, or
//! requests that keep it open (`connection: keep-alive`; by default they close it) and all of the last response has
//! arrived. A stream of HTTP/2 stays with its worker: a task there waits for the check's request and returns the
//! response. If the check sends none, the stream is unused.
//!
//! As in HAProxy, checks with settings of a connection open one of their own, and servers that connect to this side have no
//! other connections.

use std::rc::Rc;
use std::sync::Arc;

use sluicegate_config::model::Check;
use sluicegate_transport::Socket;
use sluicegate_wire::http::{BodyDecoder, BodyEvent, Framing, Limits, Message, Method, parse_response};
use tokio::sync::oneshot;

use super::code::ConnectCode;
use super::probe::ANSWER_MAX;
use crate::process::Process;
use crate::running::ProxyRun;
use crate::server::connection::reuse_policy;
use crate::server::h2::Wanted;
use crate::server::h2::attached::label_of;
use crate::server::idle::{self, Keeper, Open};
use crate::server::run::ServerRun;
use crate::worker::Worker;

/// A connection that a check has taken.
pub(super) enum Taken {
    /// An idle connection of HTTP/1.
    Own(Socket, Loan),
    /// A stream of HTTP/2.
    Stream(Borrowed),
}

/// The pool's state of an idle HTTP/1 connection, for its return.
pub(super) struct Loan {
    open: Open,
    reuses: u32,
    label: Option<Arc<[u8]>>,
    /// The method of the request that was sent.
    asked: Option<Method>,
}

impl Loan {
    /// Notes a request that keeps the connection open.
    pub(super) fn ask(&mut self, method: &[u8]) {
        self.asked = Some(Method::of(method));
        self.reuses = self.reuses.saturating_add(1);
    }

    /// Returns whether the connection may carry another request, after these received bytes.
    pub(super) fn is_free(&self, mut received: &[u8]) -> bool {
        let Some(method) = self.asked else { return received.is_empty() };
        let mut message = Message::new();
        loop {
            match parse_response(received, &Limits::default(), method, &mut message) {
                Ok(Some(head)) if head.interim => received = &received[head.head_len..],
                Ok(Some(head)) => return head.keep_alive && is_whole(&received[head.head_len..], head.body),
                Ok(None) | Err(_) => return false,
            }
        }
    }
}

/// Returns whether these bytes are a body, all of it and nothing else.
fn is_whole(mut bytes: &[u8], framing: Framing) -> bool {
    let mut decoder = BodyDecoder::new(framing);
    loop {
        match decoder.decode(bytes) {
            Ok((used, BodyEvent::Data(_))) => bytes = &bytes[used..],
            Ok((used, _)) => return decoder.is_done() && used == bytes.len(),
            Err(_) => return false,
        }
    }
}

/// A stream that a worker holds for a check.
pub(super) struct Borrowed {
    ask: Option<oneshot::Sender<Vec<u8>>>,
    answer: oneshot::Receiver<Option<Vec<u8>>>,
    /// Whether its connection uses TLS.
    pub(super) is_secure: bool,
}

impl Borrowed {
    /// Sends a request; `false` if the stream is gone.
    pub(super) fn ask(&mut self, request: &[u8]) -> bool {
        self.ask.take().is_some_and(|ask| ask.send(request.to_vec()).is_ok())
    }

    /// Returns the response in the form of HTTP/1.
    pub(super) async fn answer(&mut self) -> Option<Vec<u8>> {
        (&mut self.answer).await.ok().flatten()
    }
}

/// Returns whether a check's connection may come from the pool.
pub(super) fn may_take(check: &Check, send_proxy: bool, server: &ServerRun, connect: &ConnectCode) -> bool {
    // `check-ssl` is a setting of checks, and the server's own TLS is none.
    let own_tls = check.tls.enabled && !server.config.tls.as_ref().is_some_and(|tls| tls.enabled);
    let of_line = check.tls.proto.is_some() || check.addr.is_some() || check.port.is_some() || check.tls.alpn.is_some();
    check.reuse_pool
        && !(of_line || own_tls || send_proxy || server.config.tcp.check_via_socks4)
        && !(connect.tls.proto.is_some() || connect.addr.is_some() || connect.port.is_some())
        && !(connect.tls.alpn.is_some() || connect.tls.enabled || connect.send_proxy)
        && !(connect.linger && !connect.default || connect.via_socks4)
}

/// Takes a connection with this name. What is sent on a stream is a request of HTTP; servers that connect to this side
/// have nothing else.
pub(super) async fn take(
    proxy: &ProxyRun,
    server: &Arc<ServerRun>,
    name: Option<&str>,
    is_http: bool,
) -> Option<Taken> {
    let label: Option<Arc<[u8]>> = name.filter(|name| !name.is_empty()).map(|name| label_of(name.as_bytes()).into());
    let config = &proxy.config;
    let policy = reuse_policy(config.mode, server.reuse, false);
    let is_reverse = server.config.is_reverse();
    if policy.is_none() && !is_reverse {
        return None;
    }
    if server.may_speak_http2() && (is_http || is_reverse) {
        let process = &proxy.directory.process;
        for worker in 0..server.shared.idle.len() {
            let (server, label) = (server.clone(), label.clone());
            let lent = process.on_worker(worker, move |worker| lend(worker, &server, label.as_deref())).await;
            if let Some(stream) = lent.flatten() {
                return Some(Taken::Stream(stream));
            }
        }
    }
    let proven_only = policy? && !is_reverse;
    let (socket, open, reuses) = idle::take_to_check(server, proven_only, label.as_deref())?;
    Some(Taken::Own(socket, Loan { open, reuses, label, asked: None }))
}

/// Lends a stream to a check.
fn lend(worker: &Rc<Worker>, server: &Arc<ServerRun>, label: Option<&[u8]>) -> Option<Borrowed> {
    let address = server.socket_addr(None).filter(|_| !server.config.is_reverse());
    let (stream, _) = worker.http2.take(server, &Wanted { label, address, session: None })?;
    let (ask, asked) = oneshot::channel::<Vec<u8>>();
    let (mut answer, answered) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let Ok(request) = asked.await else { return };
        let response = tokio::select! {
            response = stream.exchange(&request, ANSWER_MAX) => response,
            () = answer.closed() => return,
        };
        // The check may have given up.
        let _ = answer.send(response);
    });
    Some(Borrowed { ask: Some(ask), answer: answered, is_secure: server.tls().is_some() })
}

/// Returns an HTTP/1 connection that may carry another request to the pool; does not wait for the task that stores it.
pub(super) fn give_back(process: &Arc<Process>, server: &Arc<ServerRun>, socket: Socket, loan: Loan) {
    let (process, server) = (process.clone(), server.clone());
    tokio::spawn(async move {
        let giving = process.on_worker(0, move |worker| {
            let Ok(socket) = socket.adopt() else { return };
            let Loan { open, reuses, label, .. } = loan;
            let nobody = Keeper { session: 0, most: 0 };
            idle::keep(&server, (socket, open, reuses, label), &worker.idle, worker.index, nobody);
        });
        giving.await
    });
}
