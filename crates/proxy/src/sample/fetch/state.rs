//! Proxies and servers: names, states, and load (HAProxy configuration manual 7.3.2).
//!
//! Names are resolved when the rule is compiled, so a fetch reads the figures themselves; rates and queue lengths are
//! sums over workers, a few loads each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_transport::clock;

use super::args::Args;
use super::code::{Compiled, read, read_with};
use crate::directory::Sides;
use crate::sample::value::Value;
use crate::server::{ServerRun, ServerShared};
use crate::site::Site;
use crate::stream::StreamContext;

pub(super) fn fe_name(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(cx.frontend.config.name.as_bytes())))
}

pub(super) fn fe_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.frontend.config.uid))))
}

pub(super) fn fe_defbe(_: &Args<'_>) -> Compiled {
    read(|cx| {
        let id = cx.frontend.config.default_backend?;
        Some(Value::text(cx.frontend.directory.proxies.get(id.0 as usize)?.name.as_bytes()))
    })
}

pub(super) fn fe_client_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| Some(ms(cx.frontend.config.timeouts.client)))
}

/// `be_name`: a connection that failed before its first request has no stream, and so no backend.
pub(super) fn be_name(_: &Args<'_>) -> Compiled {
    read(|cx| (!cx.log.no_request).then(|| Value::text(backend_of(cx).config.name.as_bytes())))
}

/// `fcgi.docroot`.
pub(super) fn fcgi_docroot(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(backend_of(cx).config.fcgi_app()?.docroot.as_bytes())))
}

/// `fcgi.index`.
pub(super) fn fcgi_index(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(backend_of(cx).config.fcgi_app()?.index.as_ref()?.as_bytes())))
}

pub(super) fn be_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(backend_of(cx).config.uid))))
}

pub(super) fn be_server_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| Some(ms(backend_of(cx).config.timeouts.server)))
}

pub(super) fn be_tunnel_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| Some(ms(backend_of(cx).config.timeouts.tunnel)))
}

pub(super) fn cur_client_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| Some(ms(cx.overrides.client.or(cx.frontend.config.timeouts.client))))
}

pub(super) fn cur_server_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| {
        Some(match cx.overrides.server {
            None => ms(cx.backend.as_ref()?.config.timeouts.server),
            set => ms(set),
        })
    })
}

pub(super) fn cur_tunnel_timeout(_: &Args<'_>) -> Compiled {
    read(|cx| {
        Some(match cx.overrides.tunnel {
            None => ms(cx.backend.as_ref()?.config.timeouts.tunnel),
            set => ms(set),
        })
    })
}

pub(super) fn so_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.client.listener.as_ref()?.id))))
}

pub(super) fn so_name(_: &Args<'_>) -> Compiled {
    read(|cx| {
        let listener = cx.client.listener.as_ref()?;
        Some(Value::text(listener.proxy.config.binds[listener.bind].name.as_ref()?.as_bytes()))
    })
}

pub(super) fn dst_conn(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.client.listener.as_ref()?.sessions.current()))))
}

pub(super) fn srv_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.log.server.as_ref()?.config.sid))))
}

pub(super) fn srv_name(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(cx.log.server.as_ref()?.name().as_bytes())))
}

pub(super) fn bc_be_queue(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.log.backend_queue))))
}

pub(super) fn bc_srv_queue(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.log.server_queue))))
}

/// Returns a fetch of a frontend's figure; without a name, the frontend is the own section or that of the stream.
fn frontend(args: &Args<'_>, figure: impl Fn(&Sides) -> i64 + Send + Sync + 'static) -> Compiled {
    let sides = match args.str(0)? {
        None => args.own(),
        Some(name) => {
            let found = args.scope.directory.and_then(|directory| directory.frontend(name));
            Some(found.ok_or_else(|| format!("no frontend is named '{name}'"))?.clone())
        }
    };
    read_with(sides, move |sides, cx| {
        Some(Value::Int(figure(sides.as_deref().unwrap_or_else(|| sides_of(&cx.frontend)))))
    })
}

pub(super) fn fe_conn(args: &Args<'_>) -> Compiled {
    frontend(args, |sides| i64::from(sides.frontend.sessions.current()))
}

pub(super) fn fe_req_rate(args: &Args<'_>) -> Compiled {
    frontend(args, |sides| sides.frontend.figures.rate(clock::now(), |counters| &counters.req_rate) as i64)
}

pub(super) fn fe_sess_rate(args: &Args<'_>) -> Compiled {
    frontend(args, |sides| sides.frontend.figures.rate(clock::now(), |counters| &counters.sess_rate) as i64)
}

/// Returns a fetch of a backend's figure; without a name, the backend is the own section or that of the stream.
fn backend(args: &Args<'_>, figure: impl Fn(&Sides) -> i64 + Send + Sync + 'static) -> Compiled {
    let sides = match args.str(0)? {
        None => args.own(),
        Some(name) => {
            let found = args.scope.directory.and_then(|directory| directory.backend(name));
            Some(found.ok_or_else(|| format!("no backend is named '{name}'"))?.clone())
        }
    };
    read_with(sides, move |sides, cx| {
        Some(Value::Int(figure(sides.as_deref().unwrap_or_else(|| sides_of(backend_of(cx))))))
    })
}

pub(super) fn avg_queue(args: &Args<'_>) -> Compiled {
    backend(args, |sides| match usable_servers_of(sides) {
        0 => queued(sides) * 2,
        servers => (queued(sides) + servers - 1) / servers,
    })
}

pub(super) fn be_conn(args: &Args<'_>) -> Compiled {
    backend(args, |sides| i64::from(sides.backend.figures.scur.load(Ordering::Relaxed)))
}

pub(super) fn be_conn_free(args: &Args<'_>) -> Compiled {
    backend(args, |sides| left(sides, |server, max| Some(i64::from(max) - in_use(server))))
}

pub(super) fn connslots(args: &Args<'_>) -> Compiled {
    backend(args, |sides| {
        let running = sides.servers.iter().map(|server| &server.shared).filter(|server| server.status().is_running());
        let free = |server: &Arc<ServerShared>| {
            let (most, queue) = (server.maxconn()?, server.maxqueue()?);
            let queue = i64::from(queue) - i64::from(server.queued.load(Ordering::Relaxed));
            Some((i64::from(most) - in_use(server) + queue).max(0))
        };
        // Without a limit of each, HAProxy gives no sum.
        running.map(free).sum::<Option<i64>>().unwrap_or(-1)
    })
}

pub(super) fn be_sess_rate(args: &Args<'_>) -> Compiled {
    backend(args, |sides| sides.backend.figures.rate(clock::now(), |counters| &counters.sess_rate) as i64)
}

pub(super) fn nbsrv(args: &Args<'_>) -> Compiled {
    backend(args, usable_servers_of)
}

pub(super) fn queue(args: &Args<'_>) -> Compiled {
    backend(args, queued)
}

/// Returns a fetch of a server's figure.
fn server(args: &Args<'_>, figure: impl Fn(&ServerRun) -> Value<'static> + Send + Sync + 'static) -> Compiled {
    let name = args.str(0)?.ok_or("a server's name is missing")?;
    let (sides, server) = match name.split_once('/') {
        Some((backend, server)) => {
            (args.scope.directory.and_then(|directory| directory.backend(backend)).cloned(), server)
        }
        None => (args.own(), name),
    };
    let found = sides.and_then(|sides| sides.server(server).cloned());
    let server: Arc<ServerRun> = found.ok_or_else(|| format!("no server is named '{name}'"))?;
    read_with(server, move |server, _| Some(figure(server)))
}

pub(super) fn srv_conn(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Int(in_use(&server.shared)))
}

pub(super) fn srv_conn_free(args: &Args<'_>) -> Compiled {
    server(args, |server| {
        Value::Int(server.shared.maxconn().map_or(-1, |max| (i64::from(max) - in_use(&server.shared)).max(0)))
    })
}

pub(super) fn srv_is_up(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Bool(server.shared.status().is_running()))
}

pub(super) fn srv_iweight(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Int(i64::from(server.config.weight)))
}

/// Nothing starts slowly, so this is the weight of `srv_uweight`, too; being down or in maintenance changes neither.
pub(super) fn srv_weight(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Int(i64::from(server.shared.status().weight)))
}

pub(super) fn srv_queue(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Int(queue_of(server)))
}

pub(super) fn srv_sess_rate(args: &Args<'_>) -> Compiled {
    server(args, |server| Value::Int(server.shared.figures.rate(clock::now(), |counters| &counters.sess_rate) as i64))
}

fn sides_of(proxy: &Site) -> &Sides {
    &proxy.directory.proxies[proxy.id.0 as usize]
}

/// Returns a time limit in milliseconds; 0 without a limit.
fn ms(timeout: Option<Duration>) -> Value<'static> {
    Value::Int(timeout.map_or(0, |timeout| timeout.as_millis() as i64))
}

/// Returns the stream's backend or, before one is chosen, its frontend.
fn backend_of(cx: &StreamContext) -> &Site {
    cx.backend.as_ref().unwrap_or(&cx.frontend)
}

fn queued(sides: &Sides) -> i64 {
    i64::from(sides.backend.queue.waiting())
}

/// Returns the number of servers that accept requests, as `nbsrv` counts them: the active ones, or one for all backups.
pub(in crate::sample) fn usable_servers_of(sides: &Sides) -> i64 {
    match sides.backend.usable_servers() {
        (0, 0) => 0,
        (0, _) => 1,
        (active, _) => active as i64,
    }
}

/// Returns the number of requests that wait for a server.
pub(in crate::sample) fn queue_of(server: &ServerRun) -> i64 {
    i64::from(server.shared.queued.load(Ordering::Relaxed))
}

/// Returns the total remaining capacity of the usable servers; -1 if any of them has no limit.
fn left(sides: &Sides, of: impl Fn(&ServerShared, u32) -> Option<i64>) -> i64 {
    let (active, _) = sides.backend.usable_servers();
    let mut sum = 0;
    let mut backup_counted = false;
    for server in &sides.servers {
        let shared = &server.shared;
        if shared.effective_weight() == 0 {
            continue;
        }
        // A backup counts only while no active server is left, and then the first alone.
        if shared.backup && (active > 0 || std::mem::replace(&mut backup_counted, true)) {
            continue;
        }
        match shared.maxconn().and_then(|max| of(shared, max)) {
            None => return -1,
            Some(free) => sum += free.max(0),
        }
    }
    sum
}

fn in_use(server: &ServerShared) -> i64 {
    i64::from(server.sessions())
}
