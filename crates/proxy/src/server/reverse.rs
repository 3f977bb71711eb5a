//! Connections to servers that will send requests on them (`bind rhttp@`).

use std::time::Instant;

use sluicegate_config::model::{ForeignSource, Proto};
use sluicegate_transport::Socket;

use super::connection::{connect, introduce, keepalive};
use super::opening::ConnectError;
use super::run::ServerRun;
use super::{secure_connection, source};
use crate::running::ProxyRun;
use crate::stream::{LogRecord, StreamContext};
use crate::worker::Worker;

/// Connects to a server, up to the end of the handshakes that precede HTTP/2.
pub(crate) async fn connect_reversed(
    worker: &Worker,
    proxy: &ProxyRun,
    server: &ServerRun,
) -> Result<Socket, ConnectError> {
    let config = &proxy.config;
    let from = server.config.source.as_ref().or(config.source.as_ref()).and_then(|source| source.foreign.as_ref());
    let foreign = match from {
        Some(ForeignSource::Address(address)) => Some(*address),
        _ => None,
    };
    let way = server.way_without_client(source::local(config, &server.config, foreign), true);
    let mut socket = connect(server, None, &way, None).await?;
    socket.settle(keepalive(&config.options.server_probes).as_ref(), config.options.nolinger);
    introduce(&socket, server).await?;
    if let Some(connector) = server.tls() {
        let log = LogRecord::new(worker.wall_clock(Instant::now()), Instant::now());
        let cx = StreamContext::unconnected(proxy.site.clone(), log);
        let sni = proxy.names.sent_without_stream(&cx, server);
        let totals = &worker.running.process.tls;
        let secured = secure_connection(&mut socket, connector, sni.as_deref(), None, totals).await;
        secured.map_err(|_| ConnectError::Refused)?;
    }
    let speaks_http2 = server.config.proto == Some(Proto::H2) || socket.alpn() == Some(b"h2");
    if speaks_http2 { Ok(socket) } else { Err(ConnectError::Refused) }
}
