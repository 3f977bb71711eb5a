//! Proxies and servers: what they are called, how they stand, how busy they are (HAProxy configuration manual 7.3.2).
//!
//! Names are found when the rule is compiled, so a fetch reads the figures themselves; rates and queue lengths are sums
//! over workers, a few loads each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_config::catalogue::Fetch;

use super::{Args, FetchScope};
use crate::directory::Sides;
use crate::sample::value::Value;
use crate::server::{ServerRun, ServerShared};
use crate::site::Site;
use crate::stream::StreamContext;

/// A figure of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFigure {
    /// `avg_queue`.
    AverageQueue,
    /// `be_conn`.
    Requests,
    /// `be_conn_free`.
    FreeConnections,
    /// `be_sess_rate`.
    Rate,
    /// `connslots`.
    Slots,
    /// `nbsrv`.
    UsableServers,
    /// `queue`.
    Queue,
}

/// A figure of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendFigure {
    /// `fe_conn`.
    Connections,
    /// `fe_req_rate`.
    RequestRate,
    /// `fe_sess_rate`.
    Rate,
}

/// A figure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFigure {
    /// `srv_conn`.
    Requests,
    /// `srv_conn_free`.
    FreeConnections,
    /// `srv_is_up`.
    IsUp,
    /// `srv_iweight`.
    InitialWeight,
    /// `srv_uweight`.
    UserWeight,
    /// `srv_weight`.
    Weight,
    /// `srv_queue`.
    Queue,
    /// `srv_sess_rate`.
    Rate,
}

/// What a stream's own frontend, backend, listener or server is called or configured to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is the fetch of that name
pub enum Own {
    FeName,
    FeId,
    FeDefbe,
    FeClientTimeout,
    BeName,
    BeId,
    BeServerTimeout,
    BeTunnelTimeout,
    CurClientTimeout,
    CurServerTimeout,
    CurTunnelTimeout,
    SoId,
    SoName,
    DstConn,
    SrvId,
    SrvName,
    BcBeQueue,
    BcSrvQueue,
}

/// A fetch of proxies and servers. `None` is the stream's own proxy.
#[derive(Clone, Debug)]
pub enum State {
    /// Of a frontend.
    Frontend(FrontendFigure, Option<Arc<Sides>>),
    /// Of a backend.
    Backend(BackendFigure, Option<Arc<Sides>>),
    /// Of a server.
    Server(ServerFigure, Arc<ServerRun>),
    /// Of the stream's own.
    Own(Own),
}

impl State {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>, scope: FetchScope<'_>) -> Result<Option<State>, String> {
        let own = || scope.directory.zip(scope.own).map(|(directory, index)| directory.proxies[index].clone());
        let frontend = |figure| {
            let sides = match args.str(0)? {
                None => own(),
                Some(name) => {
                    let found = scope.directory.and_then(|directory| directory.frontend(name));
                    Some(found.ok_or_else(|| format!("no frontend is named '{name}'"))?.clone())
                }
            };
            Ok::<_, String>(State::Frontend(figure, sides))
        };
        let backend = |figure| {
            let sides = match args.str(0)? {
                None => own(),
                Some(name) => {
                    let found = scope.directory.and_then(|directory| directory.backend(name));
                    Some(found.ok_or_else(|| format!("no backend is named '{name}'"))?.clone())
                }
            };
            Ok::<_, String>(State::Backend(figure, sides))
        };
        let server = |figure| {
            let name = args.str(0)?.ok_or("a server's name is missing")?;
            let (sides, server) = match name.split_once('/') {
                Some((backend, server)) => {
                    (scope.directory.and_then(|directory| directory.backend(backend)).cloned(), server)
                }
                None => (own(), name),
            };
            let found = sides.and_then(|sides| sides.server(server).cloned());
            Ok::<_, String>(State::Server(figure, found.ok_or_else(|| format!("no server is named '{name}'"))?))
        };
        Ok(Some(match fetch {
            Fetch::FeConn => frontend(FrontendFigure::Connections)?,
            Fetch::FeReqRate => frontend(FrontendFigure::RequestRate)?,
            Fetch::FeSessRate => frontend(FrontendFigure::Rate)?,
            Fetch::AvgQueue => backend(BackendFigure::AverageQueue)?,
            Fetch::BeConn => backend(BackendFigure::Requests)?,
            Fetch::BeConnFree => backend(BackendFigure::FreeConnections)?,
            Fetch::BeSessRate => backend(BackendFigure::Rate)?,
            Fetch::Connslots => backend(BackendFigure::Slots)?,
            Fetch::Nbsrv => backend(BackendFigure::UsableServers)?,
            Fetch::Queue => backend(BackendFigure::Queue)?,
            Fetch::SrvConn => server(ServerFigure::Requests)?,
            Fetch::SrvConnFree => server(ServerFigure::FreeConnections)?,
            Fetch::SrvIsUp => server(ServerFigure::IsUp)?,
            Fetch::SrvIweight => server(ServerFigure::InitialWeight)?,
            Fetch::SrvUweight => server(ServerFigure::UserWeight)?,
            Fetch::SrvWeight => server(ServerFigure::Weight)?,
            Fetch::SrvQueue => server(ServerFigure::Queue)?,
            Fetch::SrvSessRate => server(ServerFigure::Rate)?,
            fetch => match own_of(fetch) {
                Some(own) => State::Own(own),
                None => return Ok(None),
            },
        }))
    }

    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self {
            State::Frontend(figure, sides) => {
                Some(frontend(sides.as_deref().unwrap_or_else(|| sides_of(&cx.frontend)), *figure))
            }
            State::Backend(figure, sides) => {
                let own = || sides_of(cx.backend.as_ref().unwrap_or(&cx.frontend));
                Some(Value::Int(backend(sides.as_deref().unwrap_or_else(own), *figure)))
            }
            State::Server(figure, of) => Some(server(of, *figure)),
            State::Own(what) => own(*what, cx),
        }
    }
}

fn own_of(fetch: Fetch) -> Option<Own> {
    Some(match fetch {
        Fetch::FeName => Own::FeName,
        Fetch::FeId => Own::FeId,
        Fetch::FeDefbe => Own::FeDefbe,
        Fetch::FeClientTimeout => Own::FeClientTimeout,
        Fetch::CurClientTimeout => Own::CurClientTimeout,
        Fetch::BeName => Own::BeName,
        Fetch::BeId => Own::BeId,
        Fetch::BeServerTimeout => Own::BeServerTimeout,
        Fetch::BeTunnelTimeout => Own::BeTunnelTimeout,
        Fetch::CurServerTimeout => Own::CurServerTimeout,
        Fetch::CurTunnelTimeout => Own::CurTunnelTimeout,
        Fetch::SoId => Own::SoId,
        Fetch::SoName => Own::SoName,
        Fetch::DstConn => Own::DstConn,
        Fetch::SrvId => Own::SrvId,
        Fetch::SrvName => Own::SrvName,
        Fetch::BcBeQueue => Own::BcBeQueue,
        Fetch::BcSrvQueue => Own::BcSrvQueue,
        _ => return None,
    })
}

fn sides_of(proxy: &Site) -> &Sides {
    &proxy.directory.proxies[proxy.id.0 as usize]
}

/// Milliseconds; 0 without a limit.
fn ms(timeout: Option<Duration>) -> Value<'static> {
    Value::Int(timeout.map_or(0, |timeout| timeout.as_millis() as i64))
}

fn own(what: Own, cx: &StreamContext) -> Option<Value<'_>> {
    let backend = cx.backend.as_ref().unwrap_or(&cx.frontend);
    Some(match what {
        Own::FeName => Value::text(cx.frontend.config.name.as_bytes()),
        Own::FeId => Value::Int(i64::from(cx.frontend.config.uid)),
        Own::FeDefbe => {
            let id = cx.frontend.config.default_backend?;
            Value::text(cx.frontend.directory.proxies.get(id.0 as usize)?.name.as_bytes())
        }
        Own::FeClientTimeout => ms(cx.frontend.config.timeouts.client),
        // A connection that failed before its first request has no stream, so no backend.
        Own::BeName if cx.log.no_request => return None,
        Own::BeName => Value::text(backend.config.name.as_bytes()),
        Own::BeId => Value::Int(i64::from(backend.config.uid)),
        Own::BeServerTimeout => ms(backend.config.timeouts.server),
        Own::BeTunnelTimeout => ms(backend.config.timeouts.tunnel),
        Own::CurServerTimeout => match cx.overrides.server {
            None => ms(cx.backend.as_ref()?.config.timeouts.server),
            set => ms(set),
        },
        Own::CurTunnelTimeout => match cx.overrides.tunnel {
            None => ms(cx.backend.as_ref()?.config.timeouts.tunnel),
            set => ms(set),
        },
        Own::CurClientTimeout => ms(cx.overrides.client.or(cx.frontend.config.timeouts.client)),
        Own::SoId => Value::Int(i64::from(cx.client.listener.as_ref()?.id)),
        Own::SoName => {
            let listener = cx.client.listener.as_ref()?;
            Value::text(listener.proxy.config.binds[listener.bind].name.as_ref()?.as_bytes())
        }
        Own::DstConn => Value::Int(i64::from(cx.client.listener.as_ref()?.sessions.current())),
        Own::SrvId => Value::Int(i64::from(cx.log.server.as_ref()?.config.sid)),
        Own::SrvName => Value::text(cx.log.server.as_ref()?.name().as_bytes()),
        Own::BcBeQueue => Value::Int(i64::from(cx.log.backend_queue)),
        Own::BcSrvQueue => Value::Int(i64::from(cx.log.server_queue)),
    })
}

fn frontend(sides: &Sides, figure: FrontendFigure) -> Value<'static> {
    let shared = &sides.frontend;
    Value::Int(match figure {
        FrontendFigure::Connections => i64::from(shared.sessions.current()),
        FrontendFigure::RequestRate => shared.figures.rate(Instant::now(), |counters| &counters.req_rate) as i64,
        FrontendFigure::Rate => shared.figures.rate(Instant::now(), |counters| &counters.sess_rate) as i64,
    })
}

/// Servers that take requests: the active ones, or of the backups the first; what `nbsrv` counts.
/// Returns the number of usable servers; backups in use count as one.
pub(in crate::sample) fn usable_servers_of(sides: &Sides) -> i64 {
    usable(sides)
}

/// Returns the number of requests that wait for a server.
pub(in crate::sample) fn queue_of(server: &ServerRun) -> i64 {
    i64::from(server.shared.queued.load(Ordering::Relaxed))
}

fn usable(sides: &Sides) -> i64 {
    match sides.backend.usable_servers() {
        (0, 0) => 0,
        (0, _) => 1,
        (active, _) => active as i64,
    }
}

fn backend(sides: &Sides, figure: BackendFigure) -> i64 {
    let shared = &sides.backend;
    let queued = || i64::from(shared.queue.waiting());
    match figure {
        BackendFigure::AverageQueue => match usable(sides) {
            0 => queued() * 2,
            servers => (queued() + servers - 1) / servers,
        },
        BackendFigure::Requests => i64::from(shared.figures.scur.load(Ordering::Relaxed)),
        BackendFigure::FreeConnections => left(sides, |server, max| Some(i64::from(max) - in_use(server))),
        BackendFigure::Slots => left(sides, |server, max| {
            let queue = i64::from(server.maxqueue()?) - i64::from(server.queued.load(Ordering::Relaxed));
            Some((i64::from(max) - in_use(server)) + queue)
        }),
        BackendFigure::Rate => shared.figures.rate(Instant::now(), |counters| &counters.sess_rate) as i64,
        BackendFigure::UsableServers => usable(sides),
        BackendFigure::Queue => queued(),
    }
}

/// What the servers that take requests have left together; -1 as soon as one has no limit.
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

fn server(server: &ServerRun, figure: ServerFigure) -> Value<'static> {
    let shared = &server.shared;
    Value::Int(match figure {
        ServerFigure::IsUp => return Value::Bool(shared.status().is_running()),
        ServerFigure::Requests => in_use(shared),
        ServerFigure::FreeConnections => match shared.maxconn() {
            None => -1,
            Some(max) => (i64::from(max) - in_use(shared)).max(0),
        },
        ServerFigure::InitialWeight => i64::from(server.config.weight),
        // Nothing starts slowly, so both are the same; being down or in maintenance changes neither.
        ServerFigure::UserWeight | ServerFigure::Weight => i64::from(shared.status().weight),
        ServerFigure::Queue => i64::from(shared.queued.load(Ordering::Relaxed)),
        ServerFigure::Rate => shared.figures.rate(Instant::now(), |counters| &counters.sess_rate) as i64,
    })
}
