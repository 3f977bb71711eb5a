//! What `show peers` prints, in HAProxy's form. Where HAProxy prints addresses of its structures, numbers stand that
//! identify them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{ServerAddress, ServerPort};

use super::Section;
use super::state::{CONNECTED, CONNECTING, Learning, Peer, PeerTable};
use crate::date::{Clock, append_date};

/// Appends a section and its peers. `with_names`: the dictionaries, too.
pub(crate) fn section(section: &Arc<Section>, with_names: bool, out: &mut String) {
    let inner = section.state.inner.lock();
    let now = Instant::now();
    let mut date = Vec::new();
    append_date(inner.since, Clock::LocalMilliseconds, &mut date);
    let date = String::from_utf8_lossy(&date);
    let date = date.split('.').next().unwrap_or_default();
    // Writing to a string can't fail.
    let _ = writeln!(
        out,
        "{:#x}: [{date}] id={} disabled=0 flags={:#x} resync_timeout={} task_calls={}",
        Arc::as_ptr(&section.state).addr(),
        section.state.name(),
        inner.flags,
        until(inner.resync_until, now),
        inner.calls
    );
    for (index, shown) in inner.peers.iter().enumerate() {
        peer(section, index, shown, with_names, now, out);
    }
}

fn peer(section: &Section, index: usize, peer: &Peer, with_names: bool, now: Instant, out: &mut String) {
    let address = match section.servers.get(index).map(|server| &server.config.address) {
        Some(ServerAddress::Inet(ip, ServerPort::Fixed(port))) => format!("{ip}:{port}"),
        Some(ServerAddress::Unix(_) | ServerAddress::Abstract(_)) => "unix:0".to_owned(),
        _ => ":0".to_owned(),
    };
    let (is_used, state) = match (peer.connection, peer.is_established) {
        (Some(_), true) => ("active", "RUNNING"),
        (Some(_), false) => ("active", "STOPPED"),
        (None, _) => ("inactive", "STOPPED"),
    };
    let learning = match peer.learning {
        Learning::No => "NOTASSIGNED",
        Learning::Assigned => "ASSIGNED",
        Learning::Processing => "PROCESSING",
    };
    let status = match peer.status {
        CONNECTING => "CONN",
        CONNECTED => "HSHK",
        200 => "ESTA",
        300 => "RETR",
        501 => "PROT",
        502 => "VERS",
        503 => "NAME",
        504 => "UNKN",
        _ => "NONE",
    };
    let last = peer.last_handshake.map_or("<NEVER>".to_owned(), |at| human(now.saturating_duration_since(at)));
    let _ = writeln!(
        out,
        "  {:#x}: id={}({},{is_used}) addr={address} app_state={state} learn_state={learning} last_status={status} \
         last_hdshk={last}",
        Arc::as_ptr(&peer.kick).addr(),
        peer.name,
        if peer.is_local { "local" } else { "remote" },
    );
    let _ = writeln!(
        out,
        "        reconnect={} heartbeat={} confirm={} tx_hbt={} rx_hbt={} no_hbt={} new_conn={} proto_err={} coll={}",
        until(peer.reconnect, now),
        until(peer.heartbeat, now),
        peer.confirm,
        peer.sent_heartbeats,
        peer.received_heartbeats,
        peer.missed_heartbeats,
        peer.new_connections,
        peer.protocol_errors,
        peer.collisions
    );
    let _ = write!(out, "        flags={:#x}", peer.flags);
    if let Some(number) = peer.connection {
        // HAProxy's numbers of a connection that exchanges messages, and of one that waits for its status.
        let (st0, state) = if peer.is_established { (7, "EST") } else { (6, "CON") };
        let _ = write!(out, " appctx:{number:#x} st0={st0} st1=0 task_calls=0 state={state}");
        if peer.is_established {
            let _ = write!(out, "\n        xprt={}", peer.link.transport);
            for (name, address) in [("src", peer.link.source), ("addr", peer.link.destination)] {
                let _ = match address {
                    Some(address) => write!(out, " {name}={address}"),
                    None => write!(out, " {name}=unix:1"),
                };
            }
        }
    }
    for (name, at) in [("remote_table", peer.remote_table), ("last_local_table", peer.local_table)] {
        if let Some(table) = at.and_then(|at| peer.tables.get(at)) {
            let _ = write!(out, "\n        {name}:{}", id_of(table));
        }
    }
    if !peer.tables.is_empty() {
        out.push_str("\n        shared tables:");
    }
    for table in &peer.tables {
        self::table(peer, table, with_names, out);
    }
    out.push('\n');
}

fn id_of(table: &PeerTable) -> String {
    let address = std::ptr::from_ref(table).addr();
    format!("{address:#x} id={} local_id={} remote_id={}", table.table().name, table.local_id, table.remote_id)
}

fn table(peer: &Peer, table: &PeerTable, with_names: bool, out: &mut String) {
    let bits = table.columns.iter().fold(0_u64, |bits, column| bits | 1 << column.number);
    let _ = write!(
        out,
        "\n          {:#x} local_id={} remote_id={} flags={:#x} remote_data={bits:#x}",
        std::ptr::from_ref(table).addr(),
        table.local_id,
        table.remote_id,
        0
    );
    let _ = write!(
        out,
        "\n              last_acked={} last_pushed={} last_get={} teaching_origin={} update={}",
        table.last_acked, table.last_pushed, table.last_got, table.teaching_origin, table.update
    );
    let (shared, last) = (table.table(), table.table().last_change());
    let _ = write!(
        out,
        "\n              table:{:#x} id={} update={last} localupdate={last} commitupdate={} refcnt=1",
        Arc::as_ptr(shared).addr(),
        shared.name,
        table.last_pushed
    );
    if !with_names {
        out.push_str("\n        Dictionary cache not dumped (use \"show peers dict\")");
        return;
    }
    let sent = peer.sent.names().iter().map(|name| Some(&**name));
    let received = peer.received.names().iter().map(|name| name.as_deref());
    let received = received.chain(std::iter::repeat(None)).take(sluicegate_wire::peers::dictionary::ENTRIES);
    names("TX", sent, out);
    names("RX", received, out);
}

fn names<'a>(direction: &str, names: impl Iterator<Item = Option<&'a str>>, out: &mut String) {
    let _ = write!(out, "\n        {direction} dictionary cache:");
    for (number, name) in names.enumerate() {
        if number % 4 == 0 {
            out.push_str("\n        ");
        }
        let _ = write!(out, "  {number:3} -> {}", name.unwrap_or("-"));
    }
}

fn until(at: Option<Instant>, now: Instant) -> String {
    match at {
        None => "<NEVER>".to_owned(),
        Some(at) if at <= now => "<PAST>".to_owned(),
        Some(at) => human(at - now),
    }
}

/// Returns a duration with its two largest units, as HAProxy shows it.
fn human(time: Duration) -> String {
    let seconds = time.as_secs();
    let (mut text, mut left) = (String::new(), 2);
    let units = [(seconds / 86_400, 'd'), (seconds / 3_600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    for (count, unit) in units {
        if left > 0 && (count > 0 || unit == 's' && seconds == 0) {
            let _ = write!(text, "{count}{unit}");
            left -= 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [(0, "0s"), (5, "5s"), (60, "1m"), (65, "1m5s"), (3_605, "1h5s"), (90_061, "1d1h")] {
            assert_eq!(human(Duration::from_secs(seconds)), text, "{seconds}");
        }
    }
}
