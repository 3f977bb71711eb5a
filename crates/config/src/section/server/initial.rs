//! The settings of a server before its words.

use std::time::Duration;

use super::{AgentSettings, ServerSettings, send_proxy};
use crate::model::{InitialState, LogProto, OnObserved, Pool, ServerHashKey, ServerTcp};
use crate::section::tls::ServerWords;

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            sid: None,
            init_addr: None,
            resolvers: None,
            prefer_v4: false,
            networks: Vec::new(),
            duplicates: false,
            ignore_weight: false,
            weight: 1,
            maxconn: None,
            minconn: None,
            maxqueue: None,
            slowstart: None,
            strict_maxconn: false,
            hash_key: ServerHashKey::Id,
            pool: Pool::default(),
            backup: false,
            disabled: false,
            cookie: None,
            non_stick: false,
            send_proxy: send_proxy::Settings::default(),
            source: None,
            tcp: ServerTcp::default(),
            guid: None,
            redirect: None,
            check: false,
            inter: Duration::from_secs(2),
            fastinter: None,
            downinter: None,
            rise: 2,
            fall: 3,
            port: None,
            addr: None,
            addr_port: None,
            check_send_proxy: false,
            check_reuse_pool: None,
            check_pool_name: None,
            agent: AgentSettings::default(),
            observe: None,
            on_observed: OnObserved::default(),
            error_limit: 10,
            shut_sessions_when_down: false,
            shut_backups_when_up: false,
            track: None,
            initial: InitialState::default(),
            shard: 0,
            log_proto: LogProto::default(),
            log_bufsize: None,
            tls: ServerWords::default(),
        }
    }
}
