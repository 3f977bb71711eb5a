//! A server that follows a master: REPLICAOF, and what ROLE and INFO tell of the link.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::Server;
use super::client::{self, Client, OfMaster, ReplicaWait};
use super::dispatch::{Context, Outcome};
use crate::catalogue::Flags;
use crate::config::{MasterAddress, ServerOptions};
use crate::levels::{NOTICE, WARNING};
use crate::replication::link::{Connection, Link, Look, Master, Surroundings, Terms};
use crate::waiter::Waiter;

/// The error of a client that waits for what a replica cannot give it. As in Redis, its connection is closed then.
pub(super) const UNBLOCKED: &[u8] =
    b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

/// How often a client that waits for a change of role looks for a script that holds it up.
const BUSY_LOOK: Duration = Duration::from_millis(100);

/// Returns whether the connection is closed behind this reply.
pub(super) fn closes(reply: &[u8]) -> bool {
    reply.strip_prefix(b"-").is_some_and(|rest| rest.starts_with(UNBLOCKED))
}

/// Ends the link with its server.
pub(super) struct LinkEnd(pub(super) Arc<Link>);

impl Drop for LinkEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Returns the parameters that decide what clients see of a replica.
pub(super) fn terms(options: &ServerOptions) -> Terms {
    Terms {
        is_read_only: options.replica_read_only,
        serves_stale: options.replica_serve_stale_data,
        ignores_maxmemory: options.replica_ignore_maxmemory,
        timeout_s: options.repl_timeout_s,
        maxmemory: options.maxmemory,
        policy: options.maxmemory_policy,
        oom: options.process.oom_terms(),
    }
}

impl Server {
    /// Follows the master of the configuration, if it has one, once the data set is loaded.
    pub(super) fn follow_configured(&self) -> io::Result<()> {
        let Some(master) = self.options().replicaof.clone() else { return Ok(()) };
        if self.store.0.replication.offset() == 0 {
            self.store.0.link.need_full();
        }
        self.order(Some(master)).map(drop)
    }

    /// Follows a master, or none. Returns the number of the order, which is carried out soon.
    pub(super) fn order(&self, master: Option<MasterAddress>) -> io::Result<u64> {
        // The lock is held until the order is given, so that of two orders the last one is in both places.
        let mut current = self.options.write();
        let mut options = (**current).clone();
        options.replicaof = master.clone();
        let number = self.order_link(master.map(|MasterAddress { host, port }| Master { host, port }))?;
        let is_replica = options.replicaof.is_some();
        *current = Arc::new(options);
        self.options_version.fetch_add(1, Ordering::Release);
        drop(current);
        if is_replica {
            self.unblock_all();
        }
        Ok(number)
    }

    /// Lets the link follow a master, or none, whatever the parameters say.
    pub(super) fn order_link(&self, master: Option<Master>) -> io::Result<u64> {
        let this = self.this.clone();
        let look: Look = Box::new(move || {
            let server = this.upgrade()?;
            let (options, log) = (server.options(), server.log.get().cloned());
            let log = move |level: u8, text: &str| {
                if let Some(log) = &log {
                    log(level, text.as_bytes());
                }
            };
            // Read before the ports, which are set before it.
            let awaits_ports = server.awaits_ports.load(Ordering::Acquire);
            // Replicas find this server as it finds its master.
            let [plain, encrypted] = server.listens_on();
            let tls = server.link_tls();
            let port = if tls.is_some() && encrypted != 0 || plain == 0 { encrypted } else { plain };
            let predecessor = server.predecessor.lock().clone();
            Some(Surroundings { options, port: port as u16, awaits_ports, tls, predecessor, log: Arc::new(log) })
        });
        self.store.0.follow(master, look)
    }

    /// Returns what stands for the master among the clients, while the link works.
    pub(super) fn master_client(&self) -> Option<Arc<Client>> {
        let link = &self.store.0.link;
        let Some(Connection { number, peer, local, descriptor, db, heard }) = link.connection() else {
            *self.master_client.lock() = None;
            return None;
        };
        let mut known = self.master_client.lock();
        let client = match known.take().filter(|client| client.master_connection() == Some(number)) {
            Some(client) => client,
            None => {
                let (id, inner) = (self.next_client.fetch_add(1, Ordering::Relaxed), &self.store.0);
                let user = inner.acl.default_user();
                let client = Client::new(&inner.memory, user, id, peer, local, false, descriptor);
                Arc::new(client.of_master(OfMaster { link: link.clone(), number }))
            }
        };
        {
            let mut activity = client.activity.lock();
            (activity.db, activity.at) = (db, heard);
        }
        *known = Some(client.clone());
        Some(client)
    }

    /// Returns the clients that match, and the master if it does, in the order of their numbers.
    pub(super) fn matching_clients(&self, filter: &client::Filter) -> Vec<Arc<Client>> {
        let mut found = self.clients.matching(filter);
        if let Some(master) = self.master_client().filter(|master| filter.matches(master)) {
            found.insert(found.partition_point(|client| client.id < master.id), master);
        }
        found
    }

    /// Returns the role as INFO calls it.
    pub(super) fn role_name(&self) -> &'static str {
        if self.store.0.link.is_replica() { "slave" } else { "master" }
    }

    /// Appends the lines of INFO that only a replica has.
    pub(super) fn link_lines(&self, out: &mut String) {
        let inner = &self.store.0;
        if inner.link.master().is_none() {
            return;
        }
        inner.link.lines(inner.replication.offset(), out);
        let options = self.options();
        let lines = [
            ("slave_priority", options.replica_priority),
            ("slave_read_only", options.replica_read_only.into()),
            ("replica_announced", options.replica_announced.into()),
        ];
        for (name, value) in lines {
            // A string takes everything.
            let _ = writeln!(out, "{name}:{value}");
        }
    }

    /// Writes the reply to ROLE of a replica. Returns false, and writes nothing, for a master.
    pub(super) fn role_of_replica(&self, out: &mut ReplyWriter<'_>) -> bool {
        let inner = &self.store.0;
        let Some((Master { host, port }, state)) = inner.link.role() else { return false };
        let offset = if inner.link.is_up() { inner.replication.offset() as i64 } else { -1 };
        out.array(5);
        out.bulk(b"slave");
        out.bulk(host.as_bytes());
        out.integer(port.into());
        out.bulk(state.as_bytes());
        out.integer(offset);
        true
    }

    /// Ends the waits of clients that a replica cannot serve.
    fn unblock_all(&self) {
        for client in self.clients.matching(&client::Filter::default()) {
            // Cloned under the lock and called outside, as it wakes.
            let waiter = client.blocked.lock().clone();
            match waiter {
                Some(waiter) => drop(waiter.refuse(UNBLOCKED)),
                None => drop(client.end_replica_wait(ReplicaWait::Lost)),
            }
        }
    }

    /// Ends the wait of a client that has begun to wait for what it may change while the store became a replica.
    pub(super) fn unblock_late(&self, waiter: &Waiter) {
        let inner = &self.store.0;
        if inner.loading.is_read_only() && inner.rows.spec(waiter.row).flags.has(Flags::WRITE) {
            waiter.refuse(UNBLOCKED);
        }
    }
}

/// `REPLICAOF host port` and `REPLICAOF NO ONE`; SLAVEOF by its older name.
pub(super) fn replicaof(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    let wanted = match (args[1], args[2]) {
        (no, one) if no.eq_ignore_ascii_case(b"no") && one.eq_ignore_ascii_case(b"one") => None,
        (host, port) => match parse_i64(port).and_then(|port| u16::try_from(port).ok()) {
            Some(port) => Some(MasterAddress { host: String::from_utf8_lossy(host).into_owned(), port }),
            None => {
                out.error("ERR Invalid master port");
                return Outcome::Done;
            }
        },
    };
    let link = server.store.0.link.clone();
    let before = link.master();
    match (&wanted, &before) {
        (None, None) if !link.is_replica() => {
            out.ok();
            return Outcome::Done;
        }
        (Some(wanted), Some(before))
            if wanted.host.eq_ignore_ascii_case(&before.host) && wanted.port == before.port =>
        {
            server.log(
                NOTICE,
                "REPLICAOF would result into synchronization with the master we are already connected with. No \
                 operation performed.",
            );
            out.simple("OK Already connected to specified master");
            return Outcome::Done;
        }
        _ => {}
    }
    if let Some(text) = server.store.0.scripts.busy() {
        // The role changes at a moment at which no script runs.
        out.error(text);
        return Outcome::Done;
    }
    if wanted.is_some() && before.is_none() {
        server.log(
            NOTICE,
            "Before turning into a replica, using my own master parameters to synthesize a cached master: I may be able \
             to synchronize with the new master with just a partial transfer.",
        );
    }
    let number = match server.order(wanted.clone()) {
        Ok(number) => number,
        Err(error) => {
            let reason = crate::files::reason(&error);
            server.log(WARNING, &format!("Can't start the link to the master: {reason}"));
            out.error(&format!("ERR Can't start the link to the master: {reason}"));
            return Outcome::Done;
        }
    };
    let client = context.client.line(&server.store);
    match &wanted {
        Some(MasterAddress { host, port }) => {
            server.log(NOTICE, &format!("REPLICAOF {host}:{port} enabled (user request from '{client}')"));
            out.ok();
            return Outcome::Done;
        }
        None => server.log(NOTICE, &format!("MASTER MODE enabled (user request from '{client}')")),
    }
    if context.session.in_exec {
        // The store becomes a master when no transaction is under way, so that must not be waited for here.
        out.ok();
        return Outcome::Done;
    }
    let (protocol, store) = (context.session.protocol, server.store.clone());
    Outcome::Later(Box::pin(async move {
        let busy = async {
            loop {
                tokio::time::sleep(BUSY_LOOK).await;
                if let Some(text) = store.0.scripts.busy() {
                    break text;
                }
            }
        };
        let mut bytes = Vec::new();
        let mut out = ReplyWriter::new(&mut bytes, protocol);
        tokio::select! {
            biased;
            () = link.taken(number) => out.ok(),
            // The store becomes a master as soon as the script has ended.
            text = busy => out.error(text),
        }
        bytes
    }))
}
