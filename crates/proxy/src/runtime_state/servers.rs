//! States of servers in the state file: the lines of `show servers state`, which [`server`](crate::server) restores as it
//! does those of `server-state-file`.
//!
//! Times since the last change are those at [`AT_S`], so that the lines of servers that do not change are always the same.

use std::io::{self, Write};
use std::time::Duration;

use sluicegate_config::model::ProxyKind;

use super::frame::{Header, Put, Writer};
use super::{Kind, since};
use crate::cli::show::{state, state_header};
use crate::running::Running;
use crate::server::KeptStates;

/// The size of the lines that are restored: HAProxy's for a million servers.
const LINES_MAX: usize = 256 << 20;

/// Seconds after the start of the process: a moment that it does not live to see.
const AT_S: u32 = u32::MAX;

/// Writes the states of all servers.
pub(super) fn write<W: Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    let mut body = Put::default();
    let now = running.process.started + Duration::from_secs(AT_S.into());
    for proxy in running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend) {
        for server in &proxy.servers {
            body.bytes(state(proxy, server, now, None).as_bytes());
            body.bytes(b"\n");
            writer.frame_if_full(Kind::Servers as u8, &mut body)?;
        }
    }
    writer.rest(Kind::Servers as u8, &mut body)
}

/// Adds the lines of a frame; `None` if it is malformed.
pub(super) fn take(kept: &mut KeptStates, running: &Running, header: &Header, body: &[u8]) -> Option<()> {
    let lines = std::str::from_utf8(body).ok()?;
    if kept.text.is_empty() {
        kept.text = state_header(running);
        let lived_ms = header.unix_ms.saturating_sub(header.started_ms);
        kept.later_s = ((lived_ms + since(header.unix_ms)) / 1_000).cast_signed() - i64::from(AT_S);
    }
    if kept.text.len() + lines.len() > LINES_MAX {
        return None;
    }
    kept.text.push_str(lines);
    Some(())
}
