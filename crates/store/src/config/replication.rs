//! The parameters of replication.

use std::time::Duration;

use super::ServerOptions;
use crate::replication::ReplicationOptions;

/// Parameters of a master.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicationParameters {
    /// The bytes of the stream that are kept for replicas that come back.
    pub backlog_bytes: u64,
    /// Seconds without replicas after which they are not kept any longer; 0: they always are.
    pub backlog_ttl_s: i64,
    /// Seconds between signs of life.
    pub ping_s: u32,
    /// Whether a data set is sent without a file.
    pub is_diskless: bool,
    /// Seconds for which others are waited for then.
    pub diskless_delay_s: u32,
    /// The number of replicas that are not waited for any longer; 0: none.
    pub diskless_max: u32,
    /// The replicas without which commands that write are refused.
    pub min_replicas: u32,
    /// The seconds for which they may have been silent.
    pub max_lag_s: u32,
}

impl Default for ReplicationParameters {
    fn default() -> ReplicationParameters {
        ReplicationParameters {
            backlog_bytes: 1 << 20,
            backlog_ttl_s: 3600,
            ping_s: 10,
            is_diskless: true,
            diskless_delay_s: 5,
            diskless_max: 0,
            min_replicas: 0,
            max_lag_s: 10,
        }
    }
}

impl ReplicationParameters {
    /// Returns what a master needs of them.
    pub(crate) fn of_master(&self, options: &ServerOptions) -> ReplicationOptions {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        ReplicationOptions {
            backlog_bytes: self.backlog_bytes,
            backlog_ttl: Duration::from_secs(self.backlog_ttl_s.unsigned_abs()),
            timeout: seconds(options.repl_timeout_s),
            ping_each: seconds(self.ping_s),
            is_diskless: self.is_diskless,
            diskless_delay: seconds(self.diskless_delay_s),
            diskless_max: self.diskless_max,
            output_limit: options.client_output_buffer_limit[1],
            min_replicas: self.min_replicas,
            max_lag: seconds(self.max_lag_s),
        }
    }
}
