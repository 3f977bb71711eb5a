//! Reports of connections with peers to the traces of the process.

use sluicegate_wire::peers::{self as wire, Message};

use super::session::{Connection, End, Settings};
use crate::log::{Level, Source, Subject};

/// Returns the event of a message, and what it is called.
fn event(message: &Message<'_>) -> Option<(&'static [&'static str], &'static str)> {
    Some(match message {
        Message::Update(..) | Message::Columns(..) => (&["updtmsg"], "update"),
        Message::Ack { .. } => (&["ackmsg"], "ack"),
        Message::Switch(_) => (&["swtcmsg"], "switch"),
        Message::Define(_) => (&["defmsg"], "definition"),
        Message::Control(_) => (&["ctrlmsg"], "control"),
        Message::Fault(_) => (&["protoerr"], "error"),
        Message::Other => return None,
    })
}

fn report(
    connection: &Connection,
    settings: &Settings,
    events: &'static [&'static str],
    text: impl FnOnce() -> String,
) {
    let Connection { section, index, number, .. } = connection;
    let (name, peer) = (&*section.config.proxy.name, &*section.servers[*index]);
    // A lock on the part is one on the peer.
    let part = Some(*index as u64);
    let subject = Subject {
        backend: Some(name),
        server: Some(peer.name()),
        connection: Some(*number),
        part,
        ..Subject::default()
    };
    settings.logger.trace(Source::Peers, (events, Level::Proto), &subject, |verbosity| match verbosity {
        0 => text(),
        _ => format!("{} : peer={name}/{}", text(), peer.name()),
    });
}

/// Reports a message of the peer.
pub(super) fn received(connection: &Connection, settings: &Settings, message: &Message<'_>) {
    if settings.logger.is_traced(Source::Peers)
        && let Some((events, name)) = event(message)
    {
        report(connection, settings, events, || format!("received {name} message"));
    }
}

/// Reports the messages that are about to be sent: as in HAProxy those of control.
pub(super) fn sent(connection: &Connection, settings: &Settings, mut bytes: &[u8]) {
    if !settings.logger.is_traced(Source::Peers) {
        return;
    }
    while let Ok(Some((message, length))) = wire::read(bytes, settings.message_max) {
        if let (Message::Control(_), Some((events, name))) = (&message, event(&message)) {
            report(connection, settings, events, || format!("send {name} message"));
        }
        bytes = &bytes[length..];
    }
}

/// Reports the end of a connection.
pub(super) fn ended(connection: &Connection, settings: &Settings, end: End) {
    if settings.logger.is_traced(Source::Peers) {
        if let End::Fault(_) = end {
            report(connection, settings, &["protoerr"], || "protocol error".to_owned());
        }
        report(connection, settings, &["sessrl"], || "releasing peer session".to_owned());
    }
}
