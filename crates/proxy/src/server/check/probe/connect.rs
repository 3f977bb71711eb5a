//! The connection of a check: one of its own, or one from the server's pool.

use std::io;
use std::net::SocketAddr;

use sluicegate_config::model::{CheckProtocol, CheckStatus, Proto, ServerAddress};
use sluicegate_wire::proxy_protocol::{Writer, write_v1};
use tokio::time::{Instant as Deadline, timeout_at};

use super::super::code::{ConnectCode, PortCode, StepCode};
use super::super::fcgi::Responder;
use super::super::h2::Http2;
use super::super::pooled::{self, Taken};
use super::super::translator::Translator;
use super::{Outcome, Phase, Probe, describe};
use crate::server::connection::{connect_tcp, connect_unix};
use crate::server::tls::secure as secure_connection;
use crate::server::{sockets, source};

impl Probe<'_> {
    /// Closes the connection. Without `linger` a TCP connection is reset, so that no socket remains in TIME_WAIT.
    pub(super) fn hang_up(&mut self) {
        (self.borrowed, self.translator) = (None, None);
        match (self.socket.take(), self.loan.take()) {
            (Some(socket), Some(loan)) if !self.ended && loan.is_free(&self.received) => {
                pooled::give_back(&self.aim.proxy.directory.process, self.aim.server, socket, loan);
            }
            (Some(socket), _) if !self.linger => socket.reset_on_close(),
            _ => {}
        }
        self.received.clear();
        self.ended = false;
    }

    pub(super) async fn connect(&mut self, connect: &ConnectCode, step: &StepCode) -> Result<(), Outcome> {
        self.hang_up();
        self.linger = connect.linger;
        let timeouts = &self.aim.proxy.config.timeouts;
        let (connect_limit, check_limit) = (timeouts.connect, timeouts.check);
        let now = Deadline::now();
        self.deadline = now + self.aim.inter;
        if let (Some(limit), Some(_)) = (connect_limit, check_limit) {
            self.deadline = self.deadline.min(now + limit);
        }
        let server = self.aim.server;
        if self.take_from_pool(connect).await {
            if let Some(limit) = check_limit {
                self.deadline = Deadline::now() + limit;
            }
            return Ok(());
        }
        if server.config.is_reverse() && self.aim.address.is_none() && connect.addr.is_none() {
            // Nothing connects to it; this is what HAProxy reports, at once.
            return Err(self.trouble(CheckStatus::L7Tout, None, step));
        }
        let local = source::local_of_check(&self.aim.proxy.config, &server.config);
        let address = self.address(connect);
        let phase = Phase::Connecting { unix: address.is_none(), bound: local.is_some() };
        let mut way = server.way_of_check(local);
        let tcp = &server.config.tcp;
        way.socks4 = tcp.socks4.filter(|_| connect.via_socks4 || connect.default && tcp.check_via_socks4);
        let connected = match (address, &self.aim.server.config.address) {
            (Some(address), _) => match timeout_at(self.deadline, connect_tcp(address, &way, None)).await {
                Ok(result) => result,
                Err(_) => return Err(self.trouble(CheckStatus::L4Tout, None, step)),
            },
            (None, unix @ (ServerAddress::Unix(_) | ServerAddress::Abstract(_) | ServerAddress::Sockpair(_))) => {
                connect_unix(unix)
            }
            (None, _) => Err(io::Error::other("no address to check")),
        };
        let mut socket =
            connected.map_err(|error| self.trouble(phase.status(&error), Some(describe(&error, phase)), step))?;
        if let (Some(_), Some(address)) = (way.socks4, address) {
            match timeout_at(self.deadline, sockets::ask(&mut socket, address)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(self.trouble(CheckStatus::SockErr, Some(error.to_string()), step)),
                Err(_) => return Err(self.trouble(CheckStatus::L4Tout, None, step)),
            }
        }
        if let Some(limit) = check_limit {
            self.deadline = Deadline::now() + limit;
        }
        let (local, peer) = (socket.local_addr(), socket.peer_addr());
        self.socket = Some(socket);
        if connect.send_proxy || connect.default && self.aim.send_proxy {
            let mut line = Vec::new();
            match &self.aim.server.config.send_proxy {
                Some(form) if form.v2 => {
                    // A check has no client; version 2 of the PROXY protocol can express this (LOCAL).
                    let mut writer = match self.aim.never_local {
                        true => Writer::new(local, peer),
                        false => Writer::new(None, None),
                    };
                    if form.checksum {
                        writer.checksum();
                    }
                    writer.finish(&mut line);
                }
                _ => write_v1(local, peer, &mut line),
            }
            self.write(&line, step).await?;
        }
        self.secure(connect, step).await?;
        self.translator = self.translator(connect, peer);
        Ok(())
    }

    /// Takes a connection from the server's pool; `false` if the check needs one of its own, or there is none.
    async fn take_from_pool(&mut self, connect: &ConnectCode) -> bool {
        let Some(check) = self.aim.check else { return false };
        let (proxy, server) = (self.aim.proxy, self.aim.server);
        if !pooled::may_take(check, self.aim.send_proxy, server, connect) {
            return false;
        }
        let of_default = check.tls.sni.as_deref().filter(|_| connect.default);
        let name = check.pool_name.as_deref().or(connect.tls.sni.as_deref()).or(of_default);
        let is_http = self.aim.code.protocol == CheckProtocol::Http;
        let taking = pooled::take(proxy, server, name, is_http);
        match timeout_at(self.deadline, taking).await.ok().flatten() {
            Some(Taken::Own(socket, loan)) => (self.socket, self.loan) = (Some(socket), Some(loan)),
            Some(Taken::Stream(stream)) => self.borrowed = Some(stream),
            None => return false,
        }
        true
    }

    /// Returns the state of a connection that does not speak HTTP/1: by `proto` of the step, of checks or of the server, or
    /// as the handshake has selected.
    fn translator(&self, connect: &ConnectCode, peer: Option<SocketAddr>) -> Option<Box<dyn Translator>> {
        if self.aim.code.protocol != CheckProtocol::Http {
            return None;
        }
        let config = &self.aim.server.config;
        let of_check = config.check.as_ref().and_then(|check| check.tls.proto);
        let proto = match connect.default {
            true => of_check.or(config.proto),
            false => connect.tls.proto,
        };
        let alpn = self.socket.as_ref().and_then(|socket| socket.alpn());
        let http2 = || -> Box<dyn Translator> { Box::new(Http2::new(self.is_secure())) };
        match proto {
            Some(Proto::H2) => Some(http2()),
            Some(Proto::Fcgi) => Some(Box::new(Responder::new(self.aim.proxy.fcgi.clone()?, peer))),
            Some(Proto::H1 | Proto::Spop | Proto::Raw) => None,
            None => (alpn == Some(b"h2")).then(http2),
        }
    }

    /// Performs the TLS handshake, where the step or the server asks for it.
    async fn secure(&mut self, connect: &ConnectCode, step: &StepCode) -> Result<(), Outcome> {
        let server = &self.aim.server;
        let Some(own) = server.config.check.as_ref().map(|check| &check.tls) else { return Ok(()) };
        let words = if connect.default { own } else { &connect.tls };
        let Some(connector) = server.connector().filter(|_| words.enabled).cloned() else { return Ok(()) };
        let sni = words.sni.as_deref().or(own.sni.as_deref());
        let alpn = words.alpn.as_deref().or(own.alpn.as_deref());
        let totals = self.aim.proxy.directory.process.tls.clone();
        let Some(socket) = &mut self.socket else { return Ok(()) };
        match timeout_at(self.deadline, secure_connection(socket, &connector, sni, alpn, &totals)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(self.trouble(CheckStatus::L6Rsp, Some(failure.to_string()), step)),
            Err(_) => Err(self.trouble(CheckStatus::L6Tout, None, step)),
        }
    }

    /// Returns whether the connection uses TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.tls().is_some())
            || self.borrowed.as_ref().is_some_and(|stream| stream.is_secure)
    }

    fn address(&mut self, connect: &ConnectCode) -> Option<SocketAddr> {
        let computed = match &connect.port {
            None => None,
            Some(PortCode::Fixed(port)) => Some(*port),
            Some(PortCode::Computed(expression)) => {
                let port = self.with_context(|cx| expression.value(cx)?.to_int());
                port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
            }
        };
        let mut address = match (self.aim.address, connect.addr) {
            (Some(address), _) => address,
            (None, Some((host, port))) => SocketAddr::new(host, port),
            (None, None) => return None,
        };
        if let Some((host, port)) = connect.addr {
            address.set_ip(host);
            if port > 0 {
                address.set_port(port);
            }
        }
        if let Some(port) = computed {
            address.set_port(port);
        }
        Some(address).filter(|address| address.port() != 0)
    }
}
