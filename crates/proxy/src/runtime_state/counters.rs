//! Counters of frontends, listeners, backends, servers and limits in the state file: sums since the first start. Gauges,
//! rates, averages and highest values begin anew.
//!
//! Listeners with counters of their own (`option socket-stats`) are bound after the file is read, and take theirs then.

use std::io::{self, Write};

use sluicegate_config::model::ProxyKind;

use super::Kind;
use super::frame::{Put, Take, Writer};
use crate::directory::Sides;
use crate::listener;
use crate::running::Running;

const FRONTEND: u8 = 0;
const BACKEND: u8 = 1;
const SERVER: u8 = 2;
const LIMIT: u8 = 3;
const LISTENER: u8 = 4;

/// Returns whether a section has objects of this kind: a frontend and a backend may share a name.
fn has(sides: &Sides, kind: u8) -> bool {
    match kind {
        FRONTEND | LISTENER => sides.kind != ProxyKind::Backend,
        _ => sides.kind != ProxyKind::Frontend,
    }
}

/// Writes the counters of all objects.
pub(super) fn write<W: Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    let mut body = Put::default();
    let mut put = |kind: u8, names: [&str; 2], sums: &mut dyn Iterator<Item = (&'static str, u64)>| {
        let sums: Vec<_> = sums.collect();
        if sums.is_empty() {
            return Ok(());
        }
        body.u8(kind);
        names.iter().for_each(|name| body.text(name.as_bytes()));
        body.u32(sums.len() as u32);
        for (name, sum) in sums {
            body.text(name.as_bytes());
            body.u64(sum);
        }
        writer.frame_if_full(Kind::Counters as u8, &mut body)
    };
    for sides in &running.directory.proxies {
        if has(sides, FRONTEND) {
            put(FRONTEND, [&sides.name, ""], &mut sides.frontend.figures.sums())?;
        }
        if !has(sides, BACKEND) {
            continue;
        }
        put(BACKEND, [&sides.name, ""], &mut sides.backend.figures.sums())?;
        for server in &sides.servers {
            put(SERVER, [&sides.name, server.name()], &mut server.shared.figures.sums())?;
        }
    }
    for listener in running.listeners() {
        if let Some(figures) = listener.figures() {
            put(LISTENER, [&listener.proxy.config.name, listener.key()], &mut figures.sums())?;
        }
    }
    for limit in &running.directory.limits {
        put(LIMIT, [&limit.config.name, ""], &mut limit.sums())?;
    }
    writer.rest(Kind::Counters as u8, &mut body)
}

/// Adds the counters of a frame to those of the objects that still exist; `None` if it is malformed.
pub(super) fn take(running: &Running, body: &[u8]) -> Option<()> {
    let mut body = Take(body);
    let directory = &running.directory;
    while !body.0.is_empty() {
        // The second name is that of a server, or the identity of a listener.
        let (kind, name, second) = (body.u8()?, body.name()?, body.name()?);
        for _ in 0..body.u32()? {
            let (figure, value) = (body.name()?, body.u64()?);
            let sides = directory.proxies.iter().filter(|sides| *sides.name == *name && has(sides, kind));
            match kind {
                FRONTEND => sides.for_each(|sides| sides.frontend.figures.restore(figure, value)),
                BACKEND => sides.for_each(|sides| sides.backend.figures.restore(figure, value)),
                SERVER => {
                    let servers = sides.flat_map(|sides| &sides.servers).filter(|known| **known.name() == *second);
                    servers.for_each(|server| server.shared.figures.restore(figure, value));
                }
                LISTENER => {
                    if let Some(figures) = listener::left_figures(running, name, second) {
                        figures.restore(figure, value);
                    }
                }
                LIMIT => {
                    let limits = directory.limits.iter().filter(|limit| *limit.config.name == *name);
                    limits.for_each(|limit| limit.restore(figure, value));
                }
                // A later version's.
                _ => {}
            }
        }
    }
    Some(())
}
