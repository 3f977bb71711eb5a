//! The table of connected clients, used by CLIENT LIST and CLIENT KILL from any worker.
//!
//! A connection owns its state; this table only has the shared part. The owner writes its activity once per turn (a
//! batch of pipelined commands), under a lock that other threads hold only for a copy. Killing sets a flag and wakes
//! the owner, which closes its socket itself: no descriptor is ever closed by another thread.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_wire::resp::Protocol;

use super::dispatch::Session;
use super::subscription::Listening;
use crate::Store;
use crate::acl::User;
use crate::hold::Ticket;
use crate::memory::{Account, Memory, Share};
use crate::outbox::OutputLimit;
use crate::outbox::{Outbox, Put};
use crate::replication::link::Link;
use crate::replication::replica::Replica;
use crate::tracking::{Modes, Tracks};
use crate::waiter::Waiter;
use crate::watch::Mark;

/// The shared part of a client.
#[derive(Debug)]
pub(super) struct Client {
    pub id: u64,
    /// `address:port`, or `path:0` for a Unix socket.
    pub address: String,
    /// The same for the server's end of the connection.
    pub local: String,
    pub is_unix: bool,
    /// Whether its bytes go through TLS.
    pub is_encrypted: bool,
    pub descriptor: i32,
    pub since: Instant,
    /// The user of its commands.
    pub user: Mutex<Arc<User>>,
    pub names: Mutex<Names>,
    pub activity: Mutex<Activity>,
    /// Its memory in addition to the buffers of its connection.
    pub account: Arc<Account>,
    /// The base memory of every client.
    _base: Share,
    /// Bytes of a large reply after the share of it that is being written.
    pub behind: AtomicUsize,
    /// Messages for the client.
    pub outbox: Outbox,
    /// What it is to this server as a replica.
    pub replica: OnceLock<Arc<Replica>>,
    /// The numbers of its subscriptions.
    pub listening: Listening,
    /// The command that waits for an element, if one does.
    pub blocked: Mutex<Option<Arc<Waiter>>>,
    /// The state of its wait for replicas: one of [`ReplicaWait`]'s numbers.
    replica_wait: AtomicU8,
    killed: AtomicBool,
    is_monitor: AtomicBool,
    /// Its tracking, once it has tracked keys.
    pub tracks: OnceLock<Box<Tracks>>,
    waker: Mutex<Option<Waker>>,
    /// What the client stands for if it is the master of this server, and no connection of a worker.
    master: Option<OfMaster>,
}

/// A connection of the link to the master.
pub(super) struct OfMaster {
    pub link: Arc<Link>,
    pub number: u64,
}

impl std::fmt::Debug for OfMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection {} of the link", self.number)
    }
}

/// The state of WAIT and WAITAOF, for the threads that may end them. What they wait
/// for, and the timeout, ends them otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ReplicaWait {
    None,
    Waits,
    /// It has to reply as if its timeout were over.
    Ended,
    /// It has to reply with an error.
    Failed,
    /// It has to reply that the store has become a replica.
    Lost,
}

/// The names that a client has set.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub name: String,
    pub lib_name: String,
    pub lib_ver: String,
}

/// The activity that the owner records after each turn.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    pub at: Instant,
    /// `get`, `client|list`; NULL, as in Redis, before the first command.
    pub command: &'static str,
    pub db: u32,
    pub protocol: Protocol,
    pub is_blocked: bool,
    /// Its ticket, while a command of the client is queued for a held key.
    pub waits: Option<Arc<Ticket>>,
    pub closes: bool,
    pub no_evict: bool,
    pub no_touch: bool,
    /// The number of commands that wait for EXEC, and their bytes.
    pub queued: Option<(usize, usize)>,
    /// Keys that it watches.
    pub watched: usize,
    /// Bytes of the words of the command that is waiting or running.
    pub words: usize,
    /// Records whether a watched key was changed; other threads set it while this client is idle.
    pub watch: Option<Arc<Mark>>,
    /// Bytes of requests that have not run yet, and of the free room after them.
    pub query: usize,
    pub query_free: usize,
    /// The capacity of the buffer for replies.
    pub reply_room: usize,
    /// Bytes of replies that the client has not received yet.
    pub output: usize,
}

impl Activity {
    /// Records the state of a session.
    pub fn set(&mut self, session: &Session) {
        self.at = session.now;
        self.command = session.command;
        self.db = session.db;
        self.protocol = session.protocol;
        self.no_evict = session.no_evict;
        self.no_touch = session.behalf.is_traceless;
        (self.queued, self.watch) = session.transaction();
        self.watched = session.rare.watching.as_ref().map_or(0, |watching| watching.keys.len());
    }
}

/// What stands for the address of a process that replaces this one.
pub(super) const SUCCESSOR: &str = "successor:0";

impl Client {
    /// Returns whether it is the store of a process that replaces this one.
    pub fn is_successor(&self) -> bool {
        self.address == SUCCESSOR
    }

    /// Returns whether it is on this machine.
    pub fn is_local(&self) -> bool {
        self.is_unix || self.address.parse::<std::net::SocketAddr>().is_ok_and(|address| is_own_machine(address.ip()))
    }

    pub fn new(
        memory: &Arc<Memory>,
        user: &Arc<User>,
        id: u64,
        address: String,
        local: String,
        is_unix: bool,
        descriptor: i32,
    ) -> Client {
        let now = Instant::now();
        let activity = Activity {
            at: now,
            command: "NULL",
            db: 0,
            protocol: Protocol::Resp2,
            is_blocked: false,
            waits: None,
            closes: false,
            no_evict: false,
            no_touch: false,
            queued: None,
            watched: 0,
            words: 0,
            watch: None,
            query: 0,
            query_free: 0,
            reply_room: 0,
            output: 0,
        };
        let account = Account::new(memory);
        let base = CLIENT_BYTES + address.len() + local.len();
        Client {
            _base: Share::of(&account, base),
            outbox: Outbox::of(&account),
            account,
            id,
            address,
            local,
            is_unix,
            is_encrypted: false,
            descriptor,
            since: now,
            user: Mutex::new(user.clone()),
            names: Mutex::default(),
            activity: Mutex::new(activity),
            behind: AtomicUsize::new(0),
            replica: OnceLock::new(),
            listening: Listening::default(),
            blocked: Mutex::new(None),
            replica_wait: AtomicU8::new(ReplicaWait::None as u8),
            killed: AtomicBool::new(false),
            is_monitor: AtomicBool::new(false),
            tracks: OnceLock::new(),
            waker: Mutex::new(None),
            master: None,
        }
    }

    /// Sets whether its bytes go through TLS.
    pub fn encrypted(self, is_encrypted: bool) -> Client {
        Client { is_encrypted, ..self }
    }

    /// Lets the client stand for a connection of the link to the master.
    pub fn of_master(self, master: OfMaster) -> Client {
        Client { master: Some(master), ..self }
    }

    /// Returns the number of the connection of the link that it stands for.
    pub fn master_connection(&self) -> Option<u64> {
        self.master.as_ref().map(|master| master.number)
    }

    /// Asks the owner to close the connection.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        if let Some(OfMaster { link, number }) = &self.master {
            link.cut(*number);
        }
        self.outbox.give_up();
        self.wake();
    }

    /// Marks the client as gone: its connection is closed.
    pub fn leave(&self) {
        self.killed.store(true, Ordering::Release);
    }

    /// Ends the wait of a blocking command, as its timeout does or with an error; false if there is none.
    pub fn unblock(&self, with_error: bool) -> bool {
        // Cloned under the lock and called outside, as it wakes.
        let waiter = self.blocked.lock().clone();
        match waiter {
            Some(waiter) => waiter.unblock(with_error),
            None => self.end_replica_wait(if with_error { ReplicaWait::Failed } else { ReplicaWait::Ended }),
        }
    }

    /// Ends a wait for replicas in this way; false if there is none.
    pub fn end_replica_wait(&self, end: ReplicaWait) -> bool {
        let (waits, end) = (ReplicaWait::Waits as u8, end as u8);
        let ends = self.replica_wait.compare_exchange(waits, end, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if ends {
            self.wake();
        }
        ends
    }

    /// Begins a wait for replicas, or ends it.
    pub fn set_replica_wait(&self, waits: bool) {
        let state = if waits { ReplicaWait::Waits } else { ReplicaWait::None };
        self.replica_wait.store(state as u8, Ordering::Release);
    }

    pub fn replica_wait(&self) -> ReplicaWait {
        [ReplicaWait::None, ReplicaWait::Waits, ReplicaWait::Ended, ReplicaWait::Failed, ReplicaWait::Lost]
            [usize::from(self.replica_wait.load(Ordering::Acquire))]
    }

    /// Wakes the owner, which then checks all flags.
    pub fn wake(&self) {
        // Cloned under the lock and called outside: waking may run the scheduler's own code.
        let waker = self.waker.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Queues a line that the owner sends between two replies. A client with too many unsent lines is closed.
    pub fn post(&self, line: &[u8], limit: &OutputLimit) {
        match self.outbox.put(None, line, limit) {
            Put::First => self.wake(),
            Put::More => {}
            Put::TooMuch => self.kill(),
        }
    }

    /// Returns the client's address and name, as the slow log shows them.
    pub fn sender(&self) -> (String, String) {
        (self.address.clone(), self.names.lock().name.clone())
    }

    /// Returns the prefix of the client's commands in MONITOR.
    pub fn place(&self, db: u32) -> String {
        match self.is_unix {
            true => format!("{db} unix:{}", self.address.strip_suffix(":0").unwrap_or(&self.address)),
            false => format!("{db} {}", self.address),
        }
    }

    pub fn set_monitor(&self, watches: bool) {
        self.is_monitor.store(watches, Ordering::Relaxed);
    }

    pub fn is_monitor(&self) -> bool {
        self.is_monitor.load(Ordering::Relaxed)
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Registers the owner's waker; the owner must check the flags after that, not before.
    pub fn register(&self, waker: &Waker) {
        let mut slot = self.waker.lock();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn client_type(&self) -> ClientType {
        match () {
            () if self.master.is_some() => ClientType::Master,
            () if self.replica.get().is_some() => ClientType::Replica,
            () if self.listening.is_any() => ClientType::PubSub,
            () => ClientType::Normal,
        }
    }

    /// Returns the line of CLIENT LIST, without line end.
    pub fn line(&self, store: &Store) -> String {
        let now = Instant::now();
        let names = self.names.lock().clone();
        let activity = self.activity.lock().clone();
        let mut flags = String::new();
        let [channels, patterns, shards] = self.listening.counts();
        let modes = self.tracks.get().map(|tracks| tracks.modes()).unwrap_or_default();
        let redirection = match self.tracks.get() {
            Some(tracks) if modes.has(Modes::ON) => tracks.redirection() as i64,
            _ => -1,
        };
        for (set, letter) in [
            (self.listening.is_any(), 'P'),
            (activity.queued.is_some(), 'x'),
            (self.replica.get().is_some(), 'S'),
            (self.master.is_some(), 'M'),
            (self.is_monitor(), 'O'),
            (activity.is_blocked, 'b'),
            (modes.has(Modes::ON), 't'),
            (modes.has(Modes::BROKEN), 'R'),
            (modes.has(Modes::BCAST), 'B'),
            (activity.watch.as_ref().is_some_and(|mark| mark.is_dirty()), 'd'),
            (activity.closes, 'c'),
            (self.is_killed(), 'A'),
            (self.is_unix, 'U'),
            (activity.no_evict, 'e'),
            (activity.no_touch, 'T'),
        ] {
            if set {
                flags.push(letter);
            }
        }
        let mut why = String::new();
        if let Some(blocker) = activity.waits.as_ref().and_then(|ticket| store.0.blocker(ticket)) {
            why = format!(" wait-key={} wait-db={} wait-owner={}", visible(&blocker.key), blocker.db, blocker.owner);
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let user = match &self.master {
            Some(_) => "(superuser)".into(),
            None => String::from_utf8_lossy(self.user.lock().name()).into_owned(),
        };
        // In Redis the first replies wait in a buffer, and the others in a list of blocks of its size.
        let waiting = activity.output + self.outbox.len();
        let listed = waiting.saturating_sub(REPLY_BLOCK);
        format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db={} sub={channels} psub={patterns} \
             ssub={shards} multi={} watch={} qbuf={} qbuf-free={} argv-mem={} multi-mem={} rbs={} rbp={} obl={} oll={} \
             omem={} tot-mem={} events=r cmd={} \
             user={} redir={redirection} resp={} lib-name={} lib-ver={}{why}",
            self.id,
            self.address,
            self.local,
            self.descriptor,
            names.name,
            now.duration_since(self.since).as_secs(),
            now.duration_since(activity.at).as_secs(),
            activity.db,
            activity.queued.map_or(-1, |(commands, _)| commands as i64),
            activity.watched,
            activity.query,
            activity.query_free,
            activity.words,
            activity.queued.map_or(0, |(_, bytes)| bytes),
            activity.reply_room,
            activity.reply_room,
            waiting.min(REPLY_BLOCK),
            listed.div_ceil(REPLY_BLOCK),
            listed,
            self.memory(&activity),
            activity.command,
            user,
            match activity.protocol {
                Protocol::Resp2 => 2,
                Protocol::Resp3 => 3,
            },
            names.lib_name,
            names.lib_ver,
        )
    }

    /// Returns the memory of this client in bytes: its record and its buffers.
    fn memory(&self, activity: &Activity) -> usize {
        self.account.bytes() + activity.query + activity.query_free + activity.output.max(activity.reply_room)
    }
}

/// The memory of an idle client, in bytes: its record, its task with the socket's registration, and its session.
const CLIENT_BYTES: usize = size_of::<Client>() + 1300;

/// Bytes of a block of replies in Redis.
const REPLY_BLOCK: usize = 16 << 10;

/// Types of clients as CLIENT LIST and CLIENT KILL name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientType {
    Normal,
    PubSub,
    Replica,
    /// The master of a replica.
    Master,
}

impl ClientType {
    /// Returns the type of this name, if Redis knows one.
    pub fn parse(name: &[u8]) -> Option<ClientType> {
        match &name.to_ascii_lowercase()[..] {
            b"normal" => Some(ClientType::Normal),
            b"pubsub" => Some(ClientType::PubSub),
            b"replica" | b"slave" => Some(ClientType::Replica),
            b"master" => Some(ClientType::Master),
            _ => None,
        }
    }
}

/// The filter of CLIENT KILL and CLIENT LIST; all conditions must hold.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub ids: Option<Vec<u64>>,
    pub address: Option<Vec<u8>>,
    pub local: Option<Vec<u8>>,
    pub client_type: Option<ClientType>,
    pub user: Option<Arc<User>>,
    pub skip: Option<u64>,
    /// The minimum age, in seconds.
    pub age_s: Option<u64>,
}

impl Filter {
    pub fn matches(&self, client: &Client) -> bool {
        self.client_type.is_none_or(|wanted| wanted == client.client_type())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&client.id))
            && self.address.as_ref().is_none_or(|address| client.address.as_bytes() == address)
            && self.user.as_ref().is_none_or(|user| client.master.is_none() && Arc::ptr_eq(user, &client.user.lock()))
            && self.local.as_ref().is_none_or(|local| client.local.as_bytes() == local)
            && self.skip != Some(client.id)
            && self.age_s.is_none_or(|age_s| client.since.elapsed().as_secs() >= age_s)
    }
}

/// All clients of a server, by id, so that CLIENT LIST shows them in the order in which they connected.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<BTreeMap<u64, Arc<Client>>>);

impl Clients {
    /// Adds a client unless there are `limit` already.
    pub fn add(&self, client: &Arc<Client>, limit: usize) -> bool {
        let mut all = self.0.lock();
        let fits = all.len() < limit;
        if fits {
            all.insert(client.id, client.clone());
        }
        fits
    }

    pub fn remove(&self, id: u64) {
        self.0.lock().remove(&id);
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the clients that match, in the order in which they connected.
    pub fn matching(&self, filter: &Filter) -> Vec<Arc<Client>> {
        self.0.lock().values().filter(|client| filter.matches(client)).cloned().collect()
    }

    /// Returns the client with this number.
    pub fn with_id(&self, id: u64) -> Option<Arc<Client>> {
        self.0.lock().get(&id).cloned()
    }

    /// Kills clients that have left more messages unread than the soft limit of their class for too long.
    pub fn kill_overdue(&self, limits: &[OutputLimit; 3]) {
        for client in self.matching(&Filter::default()) {
            let class = if client.listening.is_any() { 2 } else { 0 };
            if client.outbox.is_overdue(&limits[class]) {
                client.kill();
            }
        }
    }

    /// Kills the largest clients until this many bytes will be freed, except those that may not be evicted. Returns
    /// their number.
    pub fn kill_largest(&self, mut excess: i64) -> u64 {
        let mut all: Vec<(usize, Arc<Client>)> = Vec::new();
        for client in self.matching(&Filter::default()) {
            let activity = client.activity.lock();
            // The memory of its buffers is freed when its request has been answered.
            let bytes = client.account.bytes() + activity.query + activity.output;
            let may_go = bytes >= EVICTED_MIN && !activity.no_evict;
            drop(activity);
            if client.is_killed() {
                // The client's memory is about to be freed.
                excess -= bytes as i64;
            } else if may_go {
                all.push((bytes, client));
            }
        }
        all.sort_unstable_by_key(|(bytes, client)| (std::cmp::Reverse(*bytes), client.id));
        let mut killed = 0;
        for (bytes, client) in all {
            if excess <= 0 {
                break;
            }
            excess -= bytes as i64;
            client.kill();
            killed += 1;
        }
        killed
    }

    /// Kills clients that have been silent for longer than `limit`, do not wait for a reply, and do not listen or watch.
    pub fn kill_idle(&self, limit: Duration) {
        let now = Instant::now();
        for client in self.matching(&Filter::default()) {
            let activity = client.activity.lock();
            let waits = activity.is_blocked || client.listening.is_any() || client.is_monitor();
            let idle = !waits && now.duration_since(activity.at) > limit;
            drop(activity);
            if idle {
                client.kill();
            }
        }
    }
}

/// Clients with less memory than this are not closed because of it, as in Redis.
const EVICTED_MIN: usize = 32 << 10;

/// The maximum number of bytes of a key that a line shows.
const SHOWN_MAX: usize = 64;

/// Returns a key without blanks, so that the line stays a list of fields.
fn visible(key: &[u8]) -> String {
    let mut text = String::new();
    for byte in key.iter().take(SHOWN_MAX) {
        match byte {
            b'!'..=b'~' if *byte != b'\\' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if key.len() > SHOWN_MAX {
        text.push_str("...");
    }
    text
}

/// Returns whether Redis accepts this as a client name: printable ASCII without spaces, so that CLIENT LIST stays a
/// list.
pub(super) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// Returns whether protected mode admits this address.
pub(super) fn is_own_machine(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_hold_together_and_the_table_has_a_limit() {
        let clients = Clients::default();
        for id in 1..=3 {
            let memory = Arc::new(Memory::new());
            let client =
                Client::new(&memory, &user(), id, format!("127.0.0.1:{id}"), "127.0.0.1:6379".into(), false, 9);
            assert_eq!(clients.add(&Arc::new(client), 2), id < 3);
        }
        let found = |filter: Filter| clients.matching(&filter).iter().map(|client| client.id).collect::<Vec<_>>();
        assert_eq!(found(Filter::default()), [1, 2]);
        assert_eq!(found(Filter { skip: Some(1), ..Filter::default() }), [2]);
        assert_eq!(found(Filter { ids: Some(vec![1, 9]), skip: Some(1), ..Filter::default() }), [] as [u64; 0]);
        assert_eq!(found(Filter { address: Some(b"127.0.0.1:2".to_vec()), ..Filter::default() }), [2]);
        for (client_type, expected) in [(ClientType::Normal, &[1, 2][..]), (ClientType::PubSub, &[])] {
            assert_eq!(found(Filter { client_type: Some(client_type), ..Filter::default() }), expected);
        }
        clients.remove(1);
        assert_eq!(clients.count(), 1);
    }

    fn user() -> Arc<User> {
        Store::new(crate::StoreOptions { stripes: 1, ..Default::default() }).0.acl.default_user().clone()
    }

    /// Returns a client of a memory, with this number of bytes in addition to its buffers.
    fn client(memory: &Arc<Memory>, id: u64, bytes: usize) -> (Arc<Client>, Share) {
        let client = Client::new(memory, &user(), id, format!("127.0.0.1:{id}"), "127.0.0.1:6379".into(), false, 9);
        let share = Share::of(&client.account, bytes);
        (Arc::new(client), share)
    }

    /// Returns registered clients of one memory, with these numbers of bytes.
    fn table<const N: usize>(bytes: [usize; N]) -> (Clients, [(Arc<Client>, Share); N]) {
        let (memory, clients) = (Arc::new(Memory::new()), Clients::default());
        let mut id = 0;
        let all = bytes.map(|bytes| {
            id += 1;
            client(&memory, id, bytes)
        });
        assert!(all.iter().all(|(client, _)| clients.add(client, N)));
        (clients, all)
    }

    fn killed(all: &[(Arc<Client>, Share)]) -> Vec<u64> {
        all.iter().filter(|(client, _)| client.is_killed()).map(|(client, _)| client.id).collect()
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_killed_client_is_woken_and_takes_no_more_messages() {
        let (clients, [(client, _share)]) = table([0]);
        let woken = Arc::new(Woken::default());
        client.register(&woken.clone().into());
        let limit = OutputLimit { hard: 1000, ..OutputLimit::default() };
        client.post(b"+one\r\n", &limit);
        client.post(b"+two\r\n", &limit);
        assert_eq!(
            (woken.0.load(Ordering::Relaxed), client.is_killed()),
            (1, false),
            "woken for the first message alone"
        );
        client.post(&[b'x'; 1001], &limit);
        assert!(client.is_killed());
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        client.kill();
        assert!(client.line(&Store::new(crate::StoreOptions::default())).contains(" flags=A "));
        assert_eq!(clients.count(), 1, "its owner removes it");
        clients.remove(1);
        assert_eq!((clients.count(), clients.with_id(1).is_none()), (0, true));
    }

    #[test]
    fn an_account_is_settled_when_its_client_goes() {
        let memory = Arc::new(Memory::new());
        let (first, share) = client(&memory, 1, 5000);
        let (second, _other) = client(&memory, 2, 0);
        let base = CLIENT_BYTES + first.address.len() + first.local.len();
        assert_eq!((first.account.bytes(), second.account.bytes()), (base + 5000, base));
        assert_eq!(memory.clients(), 2 * base as u64 + 5000);
        drop(share);
        assert_eq!(memory.clients(), 2 * base as u64);
        drop(first);
        assert_eq!(memory.clients(), base as u64);
    }

    #[test]
    fn the_largest_clients_go_until_enough_is_given_back() {
        let sizes = [EVICTED_MIN * 3, EVICTED_MIN, EVICTED_MIN * 2, 10, EVICTED_MIN * 9];
        let (clients, all) = table(sizes);
        all[4].0.activity.lock().no_evict = true;
        assert_eq!(clients.kill_largest(0), 0);
        assert_eq!(clients.kill_largest(1), 1);
        assert_eq!(killed(&all), [1], "neither the exempt one nor a small one");
        assert_eq!(clients.kill_largest(EVICTED_MIN as i64 * 3), 0, "one that is killed already gives back as much");
        assert_eq!(clients.kill_largest(EVICTED_MIN as i64 * 6), 2);
        assert_eq!(killed(&all), [1, 2, 3]);
        assert_eq!(clients.kill_largest(i64::MAX), 0, "nobody is left who may go");
    }

    #[test]
    fn idle_clients_go_unless_they_wait_or_watch() {
        let (clients, all) = table([0; 4]);
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(10)) else { return };
        for (client, _) in &all[..3] {
            client.activity.lock().at = long_ago;
        }
        all[1].0.activity.lock().is_blocked = true;
        all[2].0.set_monitor(true);
        clients.kill_idle(Duration::from_secs(5));
        assert_eq!(killed(&all), [1]);
    }

    #[test]
    fn a_wait_for_replicas_ends_once() {
        let (_clients, [(client, _share)]) = table([0]);
        assert!(!client.unblock(false), "it does not wait");
        client.set_replica_wait(true);
        assert!(client.unblock(true));
        assert!(!client.unblock(false), "it has ended");
        assert_eq!(client.replica_wait(), ReplicaWait::Failed);
        client.set_replica_wait(false);
        assert_eq!(client.replica_wait(), ReplicaWait::None);
    }

    #[test]
    fn protected_mode_knows_the_own_machine() {
        let check = |address: &str, own: bool| assert_eq!(is_own_machine(address.parse().expect("an address")), own);
        check("127.0.0.1", true);
        check("127.9.9.9", true);
        check("::1", true);
        check("::ffff:127.0.0.1", true);
        check("10.0.0.1", false);
        check("2001:db8::1", false);
    }
}
