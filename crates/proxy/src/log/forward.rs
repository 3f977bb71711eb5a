//! Messages of other programs, passed on to log targets (`log-forward`).

use std::net::IpAddr;
use std::time::SystemTime;

use sluicegate_config::model::{LogFrom, LogTarget};
use sluicegate_wire::syslog;

use super::header::Meta;
use super::{Logger, Message};

impl Logger {
    /// Queues a message for every target that takes its level. A message without a priority is taken by all of them.
    /// `from` is the sender's address.
    pub(crate) fn forward(
        &self,
        targets: &[LogTarget],
        message: &syslog::Message<'_>,
        host: LogFrom,
        from: Option<IpAddr>,
    ) {
        let made = match (host, message.host, from) {
            (LogFrom::Keep, ..) | (_, _, None) | (LogFrom::Fill, Some(_), _) => None,
            (LogFrom::Append, Some(own), Some(from)) => Some([own, format!(",{from}").as_bytes()].concat()),
            (_, _, Some(from)) => Some(from.to_string().into_bytes()),
        };
        let meta = Meta {
            time: message.time,
            host: made.as_deref().or(message.host),
            tag: message.tag,
            pid: message.pid,
            msgid: message.msgid,
            structured: message.structured,
            has_priority: message.priority.is_some(),
        };
        let (facility, level) = message.priority.unzip();
        self.distribute(
            targets,
            &Message { level, facility, now: SystemTime::now(), meta, own: false, line: message.text },
        );
    }
}
