//! TLS to servers: the names that are asked for, and the handshake of a new connection.
//!
//! The name is computed for every request before a server is chosen, for each server that has `sni`; it is part of the
//! label of a connection, so that no request takes a connection that was verified for another name, unless
//! `pool-conn-name` sets another label.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::failure::Code;
use sluicegate_tls::verify::Failure;
use sluicegate_transport::Socket;

use super::run::ServerRun;
use super::shared::ServerShared;
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::proxied::TlsFailure;
use crate::sample::{ExpressionCode, FetchScope};
use crate::stream::StreamContext;
use crate::tls::{Side, TlsTotals};

/// The names that a backend's servers have for a request: those of `sni`, and those of `pool-conn-name`.
#[derive(Default)]
pub struct ServerNames {
    sent: Expressions,
    of_pool: Expressions,
}

/// Expressions by the server's index; empty if no server has one.
type Expressions = Box<[Option<ExpressionCode>]>;

/// Values of such expressions; empty if no server has one.
type Values = Vec<Option<Arc<str>>>;

/// The names for one request.
#[derive(Default)]
pub(super) struct Names {
    sent: Values,
    of_pool: Values,
}

impl Names {
    /// Returns the name that is asked for in the handshake with a server.
    pub(super) fn sent(&self, server: &ServerRun) -> Option<&str> {
        self.sent.get(server.shared.index)?.as_deref()
    }

    /// Returns the name that connections to a server must have to serve the request.
    pub(super) fn of_pool(&self, server: &ServerRun) -> Option<&str> {
        match server.config.pool_name {
            Some(_) => self.of_pool.get(server.shared.index)?.as_deref(),
            None => self.sent(server),
        }
    }
}

impl ServerNames {
    /// Compiles the expressions of a backend.
    pub fn compile(
        proxy: &model::Proxy,
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<ServerNames, Vec<CompileError>> {
        let mut errors = Vec::new();
        let mut compile = |of: fn(&model::Server) -> Option<&model::Expr>| -> Expressions {
            if proxy.servers.iter().all(|server| of(server).is_none()) {
                return Expressions::default();
            }
            let compiled = proxy.servers.iter().map(|server| {
                let expression = of(server)?;
                let code = ExpressionCode::compile(expression, engines, scope);
                code.map_err(|message| errors.push(CompileError { at: expression.at.clone(), message })).ok()
            });
            compiled.collect()
        };
        let sent = compile(|server| server.tls.as_ref()?.sni.as_ref());
        let of_pool = compile(|server| server.pool_name.as_ref());
        if errors.is_empty() { Ok(ServerNames { sent, of_pool }) } else { Err(errors) }
    }

    /// Returns whether no server has a name.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.of_pool.is_empty()
    }

    /// Returns the name that is asked for in a handshake that is made for no request.
    pub(crate) fn sent_without_stream(&self, cx: &StreamContext, server: &ServerRun) -> Option<String> {
        self.make(cx).sent(server).map(str::to_owned)
    }

    /// Computes the names for a request.
    pub(super) fn make(&self, cx: &StreamContext) -> Names {
        let values = |codes: &[Option<ExpressionCode>]| -> Values {
            let value = |code: &Option<ExpressionCode>| Some(code.as_ref()?.text(cx)?.into());
            codes.iter().map(|code| value(code).filter(|name: &Arc<str>| !name.is_empty())).collect()
        };
        Names { sent: values(&self.sent), of_pool: values(&self.of_pool) }
    }
}

/// Builds the TLS of a backend's servers. A server that is equal to one in `before`, the replaced servers, or has
/// become equal at run time, keeps its connector, with its sessions and with the certificates that were set at run
/// time.
pub fn connectors(servers: &[Arc<ServerRun>], before: &[Arc<ServerRun>]) -> Result<(), Vec<CompileError>> {
    let mut errors = Vec::new();
    for server in servers {
        let Some(tls) = &server.config.tls else { continue };
        let is_same = |known: &ServerRun| {
            let connector = known.connector.get();
            known.config.tls.as_ref() == Some(tls)
                || connector.is_some_and(|connector| *connector.settings() == tls.settings)
        };
        let known = before.iter().find(|known| known.name() == server.name() && is_same(known));
        let built = match known.and_then(|known| known.connector.get()) {
            Some(known) => Ok(known.clone()),
            None => Connector::new(tls.settings.clone()).map(Arc::new),
        };
        match built {
            Ok(connector) => _ = server.connector.set(connector),
            Err(message) => errors.push(CompileError { at: server.config.at.clone(), message }),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

impl ServerShared {
    /// Returns whether a command has set that connections use TLS; `None` if the file's setting applies.
    pub(crate) fn tls_set(&self) -> Option<bool> {
        match self.tls_set.load(Ordering::Relaxed) {
            0 => None,
            set => Some(set == 2),
        }
    }

    /// Sets whether connections use TLS, overriding the file.
    pub(crate) fn set_tls(&self, on: bool) {
        self.tls_set.store(if on { 2 } else { 1 }, Ordering::Relaxed);
    }
}

impl ServerRun {
    /// Returns the TLS of its line, whether connections use it or not.
    pub(crate) fn connector(&self) -> Option<&Arc<Connector>> {
        self.connector.get()
    }

    /// Returns whether connections may speak HTTP/2: by `proto` or `ws`, or if ALPN offers it.
    pub(crate) fn may_speak_http2(&self) -> bool {
        let model::Server { proto, websockets, tls, .. } = &self.config;
        let offered = |tls: &model::ServerTls| {
            let alpn = tls.settings.policy.alpn.as_deref();
            alpn.is_some_and(|protocols| protocols.iter().any(|protocol| protocol == b"h2"))
        };
        self.config.is_reverse()
            || *proto == Some(model::Proto::H2)
            || *websockets == model::WebSockets::H2
            || proto.is_none() && tls.as_deref().is_some_and(offered)
    }

    /// Returns the TLS of connections to this server, if they have any.
    pub(crate) fn tls(&self) -> Option<&Arc<Connector>> {
        let enabled = self.shared.tls_set().unwrap_or_else(|| self.config.tls.as_ref().is_some_and(|tls| tls.enabled));
        self.connector.get().filter(|_| enabled)
    }
}

/// Performs the handshake of a new connection. `alpn` replaces the protocols of the line.
///
/// # Errors
/// HAProxy's kind of the failure.
pub(crate) async fn secure(
    socket: &mut Socket,
    connector: &Connector,
    sni: Option<&str>,
    alpn: Option<&[Vec<u8>]>,
    totals: &Arc<TlsTotals>,
) -> Result<(), TlsFailure> {
    let place = totals.begin().ok_or(TlsFailure::TooMany)?;
    let connection = connector.connect(sni, alpn).map_err(|_| TlsFailure::Handshake(0))?;
    let done = socket.connect_tls(connection, sni.map(Box::from)).await;
    done.map_err(|(error, outcome)| match outcome.and_then(|outcome| outcome.failure) {
        Some(Failure::Mismatch) => TlsFailure::Mismatch,
        Some(Failure::MismatchSni) => TlsFailure::MismatchSni,
        Some(_) => TlsFailure::Handshake(Code::VERIFY_FAILED.number()),
        None => TlsFailure::from(&error),
    })?;
    if let Some(stream) = socket.tls_mut() {
        stream.set_record_sizes(connector.settings().records);
        let resumed = stream.facts().is_some_and(|facts| facts.resumed);
        stream.attach(Box::new(place));
        totals.done(Side::Back, resumed, Instant::now());
    }
    Ok(())
}
