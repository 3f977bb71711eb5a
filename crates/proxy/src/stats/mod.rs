//! The data of the stats socket and the statistics page: `show stat` ([`columns`]) and `show info` ([`info`]), each a
//! catalogue of named cells, and the [`page`].
//!
//! Figures are read from the running objects on request; only the maximum rates are stored for them, which [`tick`]
//! updates once a second on the control thread.

pub mod columns;
pub mod describe;
pub mod info;
pub mod page;
mod pages;
pub mod promex;
mod recent;
pub mod schema;
pub mod stats_file;
pub mod status_lines;
mod stores;
pub mod typed;

pub use pages::pages;
pub(crate) use stores::named as named_figures;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::ProxyKind;

use crate::listener::Listener;
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, ServerRun};

/// A line of `show stat`.
#[derive(Clone, Copy)]
pub enum Object<'a> {
    /// A frontend, or the frontend side of a listen.
    Frontend(&'a ProxyRun),
    /// A listening socket with its own figures (`option socket-stats`).
    Socket(&'a ProxyRun, &'a Listener),
    /// A server.
    Server(&'a ProxyRun, &'a ServerRun),
    /// A backend, or the backend side of a listen.
    Backend(&'a ProxyRun),
}

/// The format of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CSV of `show stat`, a line per key of `show info`.
    Plain,
    /// A line per value, with its kind.
    Typed,
    /// JSON.
    Json,
}

/// The lines that `show stat` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this proxy: `iid`.
    pub proxy: Option<u32>,
    /// Types as a mask: 1 frontends, 2 backends, 4 servers, 8 sockets; `None` all.
    pub types: Option<u32>,
    /// Only this server or socket: `sid`.
    pub server: Option<u32>,
    /// Whether only servers that are up are listed.
    pub up: bool,
    /// Whether servers in maintenance are left out.
    pub no_maint: bool,
    /// Whether addresses, names of cookies and algorithms are left out, as on a page without `stats show-legends`.
    pub no_legends: bool,
}

impl Filter {
    fn takes(&self, object: Object<'_>) -> bool {
        let (bit, proxy) = match object {
            Object::Frontend(proxy) => (1, proxy),
            Object::Backend(proxy) => (2, proxy),
            Object::Server(proxy, _) => (4, proxy),
            Object::Socket(proxy, _) => (8, proxy),
        };
        if self.proxy.is_some_and(|iid| iid != proxy.config.uid) || self.types.is_some_and(|mask| mask & bit == 0) {
            return false;
        }
        let wrong = |id: u32| self.server.is_some_and(|sid| sid != id);
        let server = match object {
            Object::Server(_, server) if !wrong(server.config.sid) => server,
            Object::Server(..) => return false,
            Object::Socket(_, listener) => return !wrong(listener.id),
            _ => return true,
        };
        if !self.up && !self.no_maint {
            return true;
        }
        let status = server.shared.status();
        status.admin != Admin::Maintenance && (!self.up || status.is_running())
    }
}

/// Returns all lines in HAProxy's order: proxies as in the file, of each the frontend, its sockets, the servers, the
/// backend.
pub fn objects(running: &Running) -> impl Iterator<Item = Object<'_>> {
    running.proxies.iter().filter(|proxy| !proxy.config.disabled && proxy.config.log_forward.is_none()).flat_map(
        |proxy| {
            let frontend = (proxy.config.kind != ProxyKind::Backend).then_some(Object::Frontend(proxy));
            let backend = (proxy.config.kind != ProxyKind::Frontend).then_some(Object::Backend(proxy));
            let sockets = running.counted_listeners(proxy).iter().map(move |listener| Object::Socket(proxy, listener));
            let servers = proxy.servers.iter().map(move |server| Object::Server(proxy, server));
            frontend.into_iter().chain(sockets).chain(servers.take_while(move |_| backend.is_some())).chain(backend)
        },
    )
}

impl Object<'_> {
    /// Returns the owner of the values in the typed formats.
    pub fn owner(&self) -> typed::Owner {
        match self {
            Object::Frontend(proxy) => typed::Owner { letter: 'F', proxy: proxy.config.uid, server: 0 },
            Object::Backend(proxy) => typed::Owner { letter: 'B', proxy: proxy.config.uid, server: 0 },
            Object::Server(proxy, server) => {
                typed::Owner { letter: 'S', proxy: proxy.config.uid, server: server.config.sid }
            }
            Object::Socket(proxy, listener) => {
                typed::Owner { letter: 'L', proxy: proxy.config.uid, server: listener.id }
            }
        }
    }
}

/// Returns the objects that pass `filter`, with rates folded first so that none is shown above its highest value.
pub fn filtered<'a>(running: &'a Running, filter: &'a Filter, now: Instant) -> impl Iterator<Item = Object<'a>> {
    fold(running, now);
    objects(running).filter(|object| filter.takes(*object))
}

/// Folds finished seconds into the highest rates, advances slow starts, settles the memory of stick tables and records the
/// dashboard's points, for the lifetime of the future. Runs on the control thread's runtime.
pub async fn tick(running: Arc<Running>) {
    // Twice a second: each whole second is seen while it is still one of the two that a rate remembers.
    let mut interval = tokio::time::interval(Duration::from_millis(500));
    let is_shown = recent::is_shown(&running);
    loop {
        interval.tick().await;
        let now = Instant::now();
        fold(&running, now);
        running.directory.tables.iter().for_each(|table| table.settle());
        if is_shown {
            recent::record(&running, now);
        }
    }
}

/// Folds finished seconds into the highest rates, advances slow starts and removes expired entries of stick tables.
pub fn fold(running: &Running, now: Instant) {
    running.frontends.iter().for_each(|frontend| frontend.figures.tick(now));
    running.slow_starts.iter().for_each(|backend| backend.warm_up(now));
    running.busy.fold(now);
    running.directory.tables.iter().for_each(|table| table.expire());
}
