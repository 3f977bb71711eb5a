//! The server that the options of a line make.

use std::sync::Arc;

use super::ServerSettings;
use crate::model::{
    Agent, Check, InitAddr, Observe, Position, Server, ServerAddress, ServerHealth, ServerResolve, TrackedServer,
    UncheckedLevels,
};

impl ServerSettings {
    pub(super) fn resolve(&self) -> Option<ServerResolve> {
        self.resolvers.as_ref().map(|section| ServerResolve {
            section: section.as_str().into(),
            prefer_v4: self.prefer_v4,
            networks: self.networks.clone(),
            duplicates: self.duplicates,
            ignore_weight: self.ignore_weight,
        })
    }

    /// `init-addr`; a server whose name is resolved again may begin without an address.
    fn ways(&self, resolved: bool) -> Vec<InitAddr> {
        match &self.init_addr {
            Some(ways) => ways.clone(),
            None if resolved => vec![InitAddr::Last, InitAddr::Libc, InitAddr::None],
            None => vec![InitAddr::Last, InitAddr::Libc],
        }
    }

    /// Returns the server that they make.
    pub(crate) fn server(self, name: Arc<str>, address: ServerAddress, at: Position) -> Server {
        let (resolve, health, (maxconn, minconn)) = (self.resolve(), self.health(&at), self.limits());
        let is_reverse = matches!(address, ServerAddress::Reverse);
        Server {
            name,
            // 0 stands for "the next free one" until the whole backend is known.
            sid: self.sid.unwrap_or(0),
            forced_id: self.sid.is_some(),
            is_named: false,
            address,
            init_addr: self.ways(resolve.is_some()),
            resolve,
            weight: self.weight,
            maxconn,
            minconn,
            maxqueue: self.maxqueue,
            slowstart: self.slowstart,
            strict_maxconn: self.strict_maxconn,
            hash_key: self.hash_key,
            pool: self.pool,
            backup: self.backup,
            disabled: self.disabled,
            dynamic: false,
            cookie: self.cookie,
            non_stick: self.non_stick,
            send_proxy: self.send_proxy.finish(),
            source: self.source,
            tcp: self.tcp,
            guid: self.guid,
            redirect: self.redirect,
            check: self.check.then_some(Check {
                inter: self.inter,
                fastinter: self.fastinter,
                downinter: self.downinter,
                rise: self.rise,
                fall: self.fall,
                port: self.port.or(self.addr_port),
                addr: self.addr,
                send_proxy: self.check_send_proxy,
                reuse_pool: self.check_reuse_pool.unwrap_or(is_reverse),
                pool_name: self.check_pool_name,
                tls: self.tls.check(self.port.is_some() || self.addr.is_some()),
            }),
            tls: None,
            no_tls: self.tls.is_refused(),
            proto: self.tls.proto,
            websockets: self.tls.websockets,
            log_proto: self.log_proto,
            log_bufsize: self.log_bufsize,
            datagram: false,
            pool_name: self.tls.pool_name.clone(),
            health,
            shard: self.shard,
            at,
        }
    }

    fn health(&self, at: &Position) -> ServerHealth {
        let agent = self.agent.port.filter(|_| self.agent.on).map(|port| Agent {
            inter: self.agent.inter.unwrap_or(self.inter),
            port,
            addr: self.agent.addr.or(self.addr),
            send: self.agent.send.clone(),
        });
        ServerHealth {
            agent,
            observe: self.observe.map(|layer7| Observe { layer7, on_error: self.on_observed, limit: self.error_limit }),
            shut_sessions_when_down: self.shut_sessions_when_down,
            shut_backups_when_up: self.shut_backups_when_up,
            track: self.track.as_deref().map(|word| TrackedServer { word: word.into(), target: None, at: at.clone() }),
            initial: self.initial,
            unchecked: UncheckedLevels { rise: self.rise, top: self.rise + self.fall - 1 },
        }
    }

    /// Returns the limit and, where it follows the load, its least value: a `minconn` that is not below `maxconn`, or
    /// stands alone, is the limit (HAProxy's rule).
    fn limits(&self) -> (Option<u32>, Option<u32>) {
        match (self.maxconn, self.minconn) {
            (max, Some(min)) if min >= max.unwrap_or(0) => (Some(min), None),
            limits => limits,
        }
    }
}

/// Assigns the number of its position to every server without an `id`, or the next free number.
pub(crate) fn number(servers: &mut [Server]) {
    let used: std::collections::HashSet<u32> = servers.iter().map(|s| s.sid).filter(|id| *id != 0).collect();
    let mut next = 1;
    for server in servers {
        if server.sid == 0 {
            while used.contains(&next) {
                next += 1;
            }
            server.sid = next;
        }
        next += 1;
    }
}
