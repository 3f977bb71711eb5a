//! Resolution state and the schedule of questions: without sockets, and with the time passed by the callers.
//!
//! A [`Resolution`] is one name of one type, with its users: servers that follow the name, backends whose servers come
//! from its SRV records, waiting rules. It is queried every `timeout resolve`; a question is sent to all name servers,
//! `resolve_retries` times `timeout retry` apart, and the first valid answer is used. If all of them answer with
//! errors, the other address family is queried.
//!
//! The records of a name are kept in the order of a hash, as in HAProxy, so that both programs choose the same address
//! among equals. A record is dropped once no answer had it for `hold obsolete`. A server keeps its record as long as
//! that exists, and by default no two servers of a backend use the same one.
//!
//! Invariant: each resolution has exactly one entry in `timers`, and one in `ids` while a question is pending.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate_config::model::{self, DnsFamilies};
use sluicegate_pattern::in_network;
use tokio::sync::oneshot;
use xxhash_rust::xxh32::xxh32;

use super::message::{self, Answer, Fault, Found, Kind, Name};
use super::route;
use crate::server::ServerRun;

/// The maximum number of records stored for a name.
pub(super) const RECORDS: usize = 8_192;
/// The maximum number of rules that wait for names.
pub(super) const WAITING: usize = 8_192;
/// The shortest record: a root name, type, class, time to live and length.
const RECORD_MIN: usize = 11;
const HEADER: usize = 12;
/// The maximum length in bytes of a name in a command.
const NAME_MAX: usize = 255;

/// A function that sends a question to all name servers; it returns the number of servers to which it was sent.
pub(super) type Send<'a> = dyn FnMut(&[u8]) -> u32 + 'a;

/// The servers of the active configuration, which are updated from answers.
pub(super) trait Servers {
    /// Returns the server with these indexes: the proxy's among all proxies, and the server's in it.
    fn at(&self, place: (usize, usize)) -> Box<dyn Target + '_>;
}

/// A server that is updated from answers.
pub(super) trait Target {
    /// Returns the server.
    fn server(&self) -> &ServerRun;

    /// Returns whether the server is out of service because its name has no address.
    fn is_unresolved(&self) -> bool;

    /// Sets its address; returns whether it changed. `by` is the log's source of the address.
    fn set_address(&self, ip: IpAddr, by: &str) -> bool;

    /// Removes its address.
    fn lose_address(&self);

    /// Sets its port to a service record's.
    fn set_port(&self, port: u16);

    /// Resets its port to the configured one.
    fn forget_port(&self);

    /// Sets its weight to a service record's, scaled from DNS's maximum of 65535 to HAProxy's 256; only 0 becomes 0.
    fn set_weight(&self, weight: u16);

    /// Puts the server into service or out of it; returns whether that is a change. `target`: the name that a service's
    /// record gave it.
    fn set_resolved(&self, resolved: Result<(), &str>, target: Option<&str>) -> bool;

    /// Logs that an answer put the server into service.
    fn tell_ready(&self);

    /// Logs that it follows another name.
    fn tell_name(&self, from: Option<&str>, to: &str, by: &str);
}

/// The counters of a name server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Questions.
    pub sent: AtomicU64,
    /// Questions that could not be sent.
    pub snd_error: AtomicU64,
    /// Good answers.
    pub valid: AtomicU64,
    /// Answers that gave a server another address.
    pub update: AtomicU64,
    /// Aliases that lead nowhere.
    pub cname_error: AtomicU64,
    /// Answers without records.
    pub any_err: AtomicU64,
    /// Answers that the name does not exist.
    pub nx: AtomicU64,
    /// Refusals.
    pub refused: AtomicU64,
    /// Other errors.
    pub other: AtomicU64,
    /// Messages that can't be read.
    pub invalid: AtomicU64,
    /// Messages longer than `accepted_payload_size`.
    pub too_big: AtomicU64,
    /// Answers that were cut off.
    pub truncated: AtomicU64,
    /// Answers to questions that are no longer pending, or were never sent.
    pub outdated: AtomicU64,
}

/// The result of a rule's look-up.
pub(crate) enum Asked {
    /// The address; `None` if the name has none.
    Known(Option<IpAddr>),
    /// The answer follows.
    Later(oneshot::Receiver<Option<IpAddr>>),
}

/// The names of a server's backend and of the server, which outlive a snapshot.
type ServerKey = (Arc<str>, Arc<str>);

/// A proxy whose servers may follow names: its place among all proxies, its name, its servers.
pub(super) type Attached<'a> = (usize, &'a Arc<str>, &'a [Arc<ServerRun>]);

/// The result of the last question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Nothing yet.
    None,
    Valid,
    Nx,
    Timeout,
    Refused,
    Other,
}

#[derive(Debug)]
enum Datum {
    Address(IpAddr),
    Service { target: Name, port: u16, weight: u16, additional: Option<(IpAddr, Instant)> },
}

/// A record and its servers.
#[derive(Debug)]
struct Record {
    order: u32,
    datum: Datum,
    seen: Instant,
    /// The servers that have this address, or that were assigned to this service record.
    users: Vec<ServerKey>,
}

/// A backend's servers that are assigned from SRV records.
#[derive(Debug)]
struct Service {
    backend: Arc<str>,
    free: VecDeque<ServerKey>,
}

#[derive(Debug)]
struct Resolution {
    name: Name,
    kind: Kind,
    /// The type that is queried; after failed answers, that of the other address family.
    asked: Kind,
    /// The id of the pending question.
    id: Option<u16>,
    /// The number of retransmissions left.
    tries: u32,
    questions: u32,
    answers: u32,
    status: Status,
    last_valid: Instant,
    last: Option<Instant>,
    due: Instant,
    records: Vec<Record>,
    servers: Vec<ServerKey>,
    services: Vec<Service>,
    rules: Vec<oneshot::Sender<Option<IpAddr>>>,
}

impl Resolution {
    /// Adds a backend whose servers are assigned from this name's records, and a server that is not assigned yet.
    fn service(&mut self, backend: &Arc<str>, free: Option<ServerKey>) {
        match self.services.iter_mut().find(|service| service.backend == *backend) {
            Some(service) => service.free.extend(free),
            None => self.services.push(Service { backend: backend.clone(), free: free.into_iter().collect() }),
        }
    }

    /// Assigns a server to a service's record that is not confirmed by an answer.
    fn remember(&mut self, key: &ServerKey, target: &Name, port: u16, now: Instant) {
        let order = order_of_service(target);
        let at = self.records.partition_point(|record| record.order <= order);
        let datum = Datum::Service { target: target.clone(), port, weight: 0, additional: None };
        self.records.insert(at, Record { order, datum, seen: now, users: vec![key.clone()] });
    }

    fn is_wanted(&self) -> bool {
        !self.servers.is_empty() || !self.services.is_empty() || self.rules.iter().any(|rule| !rule.is_closed())
    }
}

/// A server that follows a name.
#[derive(Debug, Default)]
struct Follower {
    /// The name that it follows, if it is the target of a service.
    target: Option<Name>,
    /// The resolution of its address.
    resolution: Option<u64>,
}

/// The names that a `resolvers` section resolves.
#[derive(Debug)]
pub(super) struct State {
    config: model::Resolvers,
    resolutions: HashMap<u64, Resolution>,
    numbers: HashMap<(Name, Kind), u64>,
    ids: HashMap<u16, u64>,
    timers: BTreeSet<(Instant, u64)>,
    next: u64,
    waiting: usize,
    followers: HashMap<ServerKey, Follower>,
    /// The indexes of the servers in the current snapshot.
    places: HashMap<ServerKey, (usize, usize)>,
}

/// Returns the type that is queried first by what prefers a family, of those that are accepted.
fn first(families: DnsFamilies, prefer_v4: bool) -> Kind {
    match route::accepted(families) {
        (true, false) => Kind::V4,
        (false, true) => Kind::V6,
        _ if prefer_v4 => Kind::V4,
        _ => Kind::V6,
    }
}

/// Returns the type that is queried if this one has no answer.
fn other(families: DnsFamilies, kind: Kind) -> Option<Kind> {
    kind.other().filter(|_| route::accepted(families) == (true, true))
}

/// Returns whether an address may be used.
fn is_accepted(families: DnsFamilies, address: &IpAddr) -> bool {
    let (v4, v6) = route::accepted(families);
    if address.is_ipv4() { v4 } else { v6 }
}

fn random_id() -> u16 {
    // A hasher's keys come from the system's source of randomness, and its output reveals nothing about them.
    RandomState::new().build_hasher().finish() as u16
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl State {
    pub(super) fn new(config: &model::Resolvers) -> State {
        State {
            config: config.clone(),
            resolutions: HashMap::new(),
            numbers: HashMap::new(),
            ids: HashMap::new(),
            timers: BTreeSet::new(),
            next: 0,
            waiting: 0,
            followers: HashMap::new(),
            places: HashMap::new(),
        }
    }

    /// Adopts the servers of a snapshot. Servers that existed before and follow the same name keep their state.
    pub(super) fn attach<'a>(&mut self, proxies: impl Iterator<Item = Attached<'a>>, now: Instant) {
        self.places.clear();
        let mut wanted: Vec<(ServerKey, Name, Kind, &Arc<ServerRun>)> = Vec::new();
        for (place, name, servers) in proxies {
            for (index, server) in servers.iter().enumerate() {
                let Some(resolve) = server.config.resolve.as_ref().filter(|own| own.section == self.config.name) else {
                    continue;
                };
                let key = (name.clone(), server.config.name.clone());
                self.places.insert(key.clone(), (place, index));
                // A server with a fixed address may be assigned a name at run time.
                let Some(name) = server.hostname().and_then(|host| message::name(host.as_bytes())) else { continue };
                let kind = if server.follows_service() {
                    Kind::Service
                } else {
                    first(self.config.families, resolve.prefer_v4)
                };
                wanted.push((key, name, kind, server));
            }
        }
        let mut followers = std::mem::take(&mut self.followers);
        self.resolutions.values_mut().for_each(|resolution| {
            resolution.servers.clear();
            resolution.services.clear();
        });
        let mut services = HashMap::new();
        for (key, name, kind, server) in wanted {
            let number = self.number(&name, kind, now);
            let before = followers.remove(&key).unwrap_or_default();
            let Some(resolution) = self.resolutions.get_mut(&number) else { continue };
            let follower = if kind != Kind::Service {
                resolution.servers.push(key.clone());
                Follower { target: None, resolution: Some(number) }
            } else {
                services.insert(key.clone(), number);
                let taken = resolution.records.iter().any(|record| record.users.contains(&key));
                // The state of a state file is used until there is an answer.
                if let Some(target) = server.shared.take_target().filter(|_| !taken)
                    && let (Some(name), Some(port)) = (message::name(target.as_bytes()), server.shared.moved().port)
                {
                    resolution.service(&key.0, None);
                    resolution.remember(&key, &name, port, now);
                    let own = self.number(
                        &name,
                        first(self.config.families, server.config.resolve.as_ref().is_some_and(|own| own.prefer_v4)),
                        now,
                    );
                    if let Some(resolution) = self.resolutions.get_mut(&own) {
                        resolution.servers.push(key.clone());
                    }
                    self.followers.insert(key, Follower { target: Some(name), resolution: Some(own) });
                    continue;
                }
                resolution.service(&key.0, (!taken).then(|| key.clone()));
                let own = before.resolution.and_then(|number| self.resolutions.get_mut(&number));
                if let Some(own) = own.filter(|_| taken) {
                    own.servers.push(key.clone());
                }
                if taken { before } else { Follower::default() }
            };
            self.followers.insert(key, follower);
        }
        // Removed servers have no record, and neither has a server that follows another name now.
        let followers = &self.followers;
        for (number, resolution) in &mut self.resolutions {
            let here = |key: &ServerKey| match resolution.kind {
                Kind::Service => services.get(key) == Some(number),
                _ => followers.get(key).is_some_and(|own| own.resolution == Some(*number)),
            };
            resolution.records.iter_mut().for_each(|record| record.users.retain(here));
        }
    }

    /// Returns the resolution of a name, created if necessary.
    fn number(&mut self, name: &Name, kind: Kind, now: Instant) -> u64 {
        if let Some(number) = self.numbers.get(&(name.clone(), kind)) {
            return *number;
        }
        let number = self.next;
        self.next += 1;
        let resolution = Resolution {
            name: name.clone(),
            kind,
            asked: kind,
            id: None,
            tries: 0,
            questions: 0,
            answers: 0,
            status: Status::None,
            last_valid: now,
            last: None,
            due: now,
            records: Vec::new(),
            servers: Vec::new(),
            services: Vec::new(),
            rules: Vec::new(),
        };
        self.numbers.insert((name.clone(), kind), number);
        self.timers.insert((now, number));
        self.resolutions.insert(number, resolution);
        number
    }

    fn schedule(&mut self, number: u64, due: Instant) {
        if let Some(resolution) = self.resolutions.get_mut(&number) {
            self.timers.remove(&(resolution.due, number));
            resolution.due = due;
            self.timers.insert((due, number));
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(resolution) = self.resolutions.remove(&number) {
            self.timers.remove(&(resolution.due, number));
            self.numbers.remove(&(resolution.name, resolution.kind));
            self.waiting -= resolution.rules.len();
            if let Some(id) = resolution.id {
                self.ids.remove(&id);
            }
        }
    }

    /// Resolves a name for a rule.
    pub(super) fn ask(&mut self, name: Name, prefer_v4: bool, now: Instant) -> Asked {
        let kind = first(self.config.families, prefer_v4);
        if self.waiting >= WAITING {
            return Asked::Known(None);
        }
        let number = self.number(&name, kind, now);
        let hold = self.config.hold.valid;
        let Some(resolution) = self.resolutions.get_mut(&number) else { return Asked::Known(None) };
        let fresh = resolution.last.is_some_and(|last| last + hold > now);
        if resolution.id.is_none() && resolution.status == Status::Valid && fresh {
            return Asked::Known(choose(&resolution.records, kind, None));
        }
        let (sender, receiver) = oneshot::channel();
        resolution.rules.push(sender);
        self.waiting += 1;
        if resolution.id.is_none() {
            self.schedule(number, now);
        }
        Asked::Later(receiver)
    }

    /// Returns the time of the next due action.
    pub(super) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Executes due actions.
    pub(super) fn turn(&mut self, now: Instant, known: &dyn Servers, send: &mut Send<'_>) {
        while let Some((due, number)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            debug_assert!(self.resolutions.get(&number).is_some_and(|resolution| resolution.due == due));
            let Some(resolution) = self.resolutions.get_mut(&number) else {
                self.timers.remove(&(due, number));
                continue;
            };
            if !resolution.is_wanted() {
                self.remove(number);
                continue;
            }
            if resolution.id.is_none() {
                self.begin(number, now, send);
                continue;
            }
            if resolution.tries == 0 {
                if resolution.answers == 0 {
                    resolution.status = Status::Timeout;
                }
                self.fail(number, now, known);
                continue;
            }
            let fallen_back = resolution.asked != resolution.kind;
            match other(self.config.families, resolution.kind).filter(|_| resolution.answers > 0 && !fallen_back) {
                // Some name servers responded, all with errors.
                Some(kind) => resolution.asked = kind,
                None => {
                    resolution.asked = resolution.kind;
                    resolution.tries -= 1;
                }
            }
            self.question(number, now, send);
        }
    }

    fn begin(&mut self, number: u64, now: Instant, send: &mut Send<'_>) {
        let free = (0..100).map(|_| random_id()).find(|id| !self.ids.contains_key(id));
        let Some(id) = free else {
            // Almost all ids are in use by pending questions.
            return self.schedule(number, now + self.config.retry);
        };
        self.ids.insert(id, number);
        if let Some(resolution) = self.resolutions.get_mut(&number) {
            (resolution.id, resolution.asked) = (Some(id), resolution.kind);
            resolution.tries = self.config.retries.saturating_sub(1);
        }
        self.question(number, now, send);
    }

    /// Sends the question.
    fn question(&mut self, number: u64, now: Instant, send: &mut Send<'_>) {
        let (payload, retry) = (self.config.payload, self.config.retry);
        if let Some(resolution) = self.resolutions.get_mut(&number) {
            let bytes = message::question(resolution.id.unwrap_or(0), &resolution.name, resolution.asked, payload);
            resolution.answers = 0;
            resolution.questions = send(&bytes);
        }
        self.schedule(number, now + retry);
    }

    /// Processes a message of a name server.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        (nameserver, counters): (&str, &Counters),
        now: Instant,
        known: &dyn Servers,
        send: &mut Send<'_>,
    ) {
        let payload = usize::from(self.config.payload);
        if bytes.len() > payload {
            return count(&counters.too_big);
        }
        let Some(id) = message::id(bytes) else { return count(&counters.invalid) };
        let number = self.ids.get(&id).copied();
        let Some((number, resolution)) = number.and_then(|n| Some((n, self.resolutions.get_mut(&n)?))) else {
            return count(&counters.outdated);
        };
        let most = payload.saturating_sub(HEADER) / RECORD_MIN;
        match message::read(bytes, &resolution.name, resolution.asked, most) {
            Ok(mut answer) => {
                let families = self.config.families;
                let usable = |found: &Found| !matches!(found, Found::Address(ip) if !is_accepted(families, ip));
                answer.records.retain(usable);
                answer.additional.retain(|(_, ip)| is_accepted(families, ip));
                count(&counters.valid);
                (resolution.status, resolution.last_valid) = (Status::Valid, now);
                self.succeed(number, answer, (nameserver, counters), now, known);
            }
            Err(fault) => {
                let (status, counter) = match fault {
                    Fault::Invalid => (Status::Other, &counters.invalid),
                    Fault::OtherQuestion | Fault::Other => (Status::Other, &counters.other),
                    Fault::Nx => (Status::Nx, &counters.nx),
                    Fault::Refused => (Status::Refused, &counters.refused),
                    Fault::Empty => (Status::Other, &counters.any_err),
                    Fault::Alias => (Status::Other, &counters.cname_error),
                    Fault::Truncated => (Status::Other, &counters.truncated),
                };
                count(counter);
                resolution.status = status;
                resolution.answers += 1;
                // Another name server may still send a valid answer.
                if resolution.answers < resolution.questions {
                    return;
                }
                if resolution.asked != resolution.kind {
                    if resolution.tries == 0 {
                        self.fail(number, now, known);
                    }
                } else if let Some(kind) = other(self.config.families, resolution.kind) {
                    resolution.asked = kind;
                    self.question(number, now, send);
                }
            }
        }
    }

    /// Ends a question: records its time, and answers the rules that wait for the name.
    fn rest(&mut self, number: u64, now: Instant) {
        if let Some(resolution) = self.resolutions.get_mut(&number) {
            if let Some(id) = resolution.id.take() {
                self.ids.remove(&id);
            }
            resolution.last = Some(now);
            (resolution.answers, resolution.questions) = (0, 0);
            let rules = std::mem::take(&mut resolution.rules);
            self.waiting -= rules.len();
            let ip = match resolution.status {
                Status::Valid => choose(&resolution.records, resolution.kind, None),
                _ => None,
            };
            // A rule whose client has disconnected no longer listens.
            for rule in rules {
                let _ = rule.send(ip);
            }
            if !resolution.is_wanted() {
                return self.remove(number);
            }
        }
        self.schedule(number, now + self.config.resolve);
    }

    fn succeed(
        &mut self,
        number: u64,
        answer: Answer,
        (nameserver, counters): (&str, &Counters),
        now: Instant,
        known: &dyn Servers,
    ) {
        let obsolete = self.config.hold.obsolete;
        let Some(resolution) = self.resolutions.get_mut(&number) else { return };
        merge(&mut resolution.records, answer, now);
        let old = |seen: Instant| seen + obsolete < now;
        let mut freed = Vec::new();
        for record in &mut resolution.records {
            if let Datum::Service { additional, .. } = &mut record.datum {
                additional.take_if(|(_, seen)| old(*seen));
            }
        }
        resolution.records.retain_mut(|record| {
            let old = old(record.seen);
            if old {
                freed.append(&mut record.users);
            }
            !old
        });
        if resolution.kind == Kind::Service {
            for key in freed {
                self.release(number, key, known);
            }
            self.serve(number, now, known);
        } else {
            let servers = std::mem::take(&mut resolution.servers);
            let mut by = Some((format!("{}/{nameserver}", self.config.name), counters));
            for key in &servers {
                self.follow(number, key, by.take(), known);
            }
            if let Some(resolution) = self.resolutions.get_mut(&number) {
                resolution.servers = servers;
            }
        }
        self.rest(number, now);
    }

    fn target<'r>(&self, key: &ServerKey, known: &'r dyn Servers) -> Option<Box<dyn Target + 'r>> {
        self.places.get(key).map(|place| known.at(*place))
    }

    /// Applies a valid answer to a server. The log line of the first of several servers names the name server, those of
    /// the others the cache.
    fn follow(&mut self, number: u64, key: &ServerKey, by: Option<(String, &Counters)>, known: &dyn Servers) {
        let Some(target) = self.target(key, known) else { return };
        let Some(resolution) = self.resolutions.get_mut(&number) else { return };
        if !resolution.records.iter().any(|record| record.users.contains(key)) {
            let resolve = target.server().config.resolve.as_ref();
            let current = target.server().address().filter(|_| !target.is_unresolved());
            let wish = resolve.map(|resolve| Wish { resolve, key, current });
            match choose_record(&resolution.records, resolution.kind, wish) {
                Some(index) => {
                    resolution.records[index].users.push(key.clone());
                    if let Datum::Address(ip) = resolution.records[index].datum {
                        let name = by.as_ref().map_or("DNS cache", |(name, _)| name);
                        if target.set_address(ip, name)
                            && let Some((_, counters)) = &by
                        {
                            count(&counters.update);
                        }
                    }
                }
                None => {
                    if target.set_resolved(Err("No IP for server "), None) {
                        target.lose_address();
                    }
                    return;
                }
            }
        }
        let name = self.followers.get(key).and_then(|follower| follower.target.as_ref()).map(message::text);
        if target.set_resolved(Ok(()), name.as_deref()) {
            target.tell_ready();
        }
    }

    /// Handles a failed question: the servers that follow the name go out of service once the last result is too old.
    fn fail(&mut self, number: u64, now: Instant, known: &dyn Servers) {
        let hold = self.config.hold;
        let Some(resolution) = self.resolutions.get_mut(&number) else { return };
        let (patience, reason): (Duration, &str) = match resolution.status {
            Status::Nx => (hold.nx, "DNS NX status"),
            Status::Timeout => (hold.timeout, "DNS timeout status"),
            Status::Refused => (hold.refused, "DNS refused status"),
            Status::None | Status::Valid | Status::Other => (hold.other, "unspecified DNS error"),
        };
        if resolution.last_valid + patience <= now {
            let records = std::mem::take(&mut resolution.records);
            let servers = resolution.servers.clone();
            for key in &servers {
                if let Some(target) = self.target(key, known)
                    && target.set_resolved(Err(reason), None)
                {
                    target.lose_address();
                }
            }
            if self.resolutions.get(&number).is_some_and(|resolution| resolution.kind == Kind::Service) {
                for key in records.into_iter().flat_map(|record| record.users) {
                    self.release(number, key, known);
                }
            }
        }
        self.rest(number, now);
    }

    /// Frees a server, whose service record is gone, for another record.
    fn release(&mut self, number: u64, key: ServerKey, known: &dyn Servers) {
        self.unfollow(&key);
        if let Some(target) = self.target(&key, known) {
            target.set_resolved(Err("entry removed from SRV record"), None);
            target.lose_address();
            target.forget_port();
        }
        if let Some(follower) = self.followers.get_mut(&key) {
            follower.target = None;
        }
        let resolution = self.resolutions.get_mut(&number);
        let service = resolution.and_then(|own| own.services.iter_mut().find(|service| service.backend == key.0));
        if let Some(service) = service {
            service.free.push_back(key);
        }
    }

    /// Detaches a server from the resolution of its own address.
    fn unfollow(&mut self, key: &ServerKey) {
        let number = self.followers.get_mut(key).and_then(|follower| follower.resolution.take());
        if let Some(resolution) = number.and_then(|number| self.resolutions.get_mut(&number)) {
            resolution.servers.retain(|other| other != key);
            resolution.records.iter_mut().for_each(|record| record.users.retain(|other| other != key));
        }
    }

    /// Makes a server follow another name.
    pub(super) fn rename(&mut self, backend: &Arc<str>, server: &ServerRun, to: &str, now: Instant) -> String {
        let from = server.hostname();
        if from.as_deref() == Some(to) {
            return "no need to change the FDQN".to_owned();
        }
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if to.len() > NAME_MAX || !to.bytes().all(is_known) {
            return format!("invalid fqdn '{to}'");
        }
        let label = format!("{backend}/{}", server.name());
        let (Some(name), Some(resolve)) = (message::name(to.as_bytes()), &server.config.resolve) else {
            return format!("could not update {label} FQDN");
        };
        let said = format!("{label} changed its FQDN from {} to {to}", from.as_deref().unwrap_or("(null)"));
        // Names that differ only in case are the same.
        if from.and_then(|from| message::name(from.as_bytes())).as_ref() == Some(&name) {
            return said;
        }
        let key = (backend.clone(), server.config.name.clone());
        self.unfollow(&key);
        let number = self.number(&name, first(self.config.families, resolve.prefer_v4), now);
        if let Some(resolution) = self.resolutions.get_mut(&number) {
            resolution.servers.push(key.clone());
        }
        self.followers.insert(key, Follower { target: None, resolution: Some(number) });
        server.shared.set_fqdn(Some(to.into()));
        said
    }

    /// Assigns a server of each interested backend to each service record, and updates the server from the record.
    fn serve(&mut self, number: u64, now: Instant, known: &dyn Servers) {
        let Some(resolution) = self.resolutions.get_mut(&number) else { return };
        let mut given = Vec::new();
        for record in &mut resolution.records {
            let Datum::Service { target, port, weight, additional } = &record.datum else { continue };
            for service in &mut resolution.services {
                let user = record.users.iter().find(|user| user.0 == service.backend).cloned();
                let Some(key) = user.or_else(|| {
                    let key = service.free.pop_front()?;
                    record.users.push(key.clone());
                    Some(key)
                }) else {
                    continue;
                };
                given.push((key, target.clone(), *port, *weight, additional.map(|(ip, _)| ip)));
            }
        }
        for (key, name, port, weight, additional) in given {
            let Some(target) = self.target(&key, known) else { continue };
            if let Some(ip) = additional {
                // The server needs no questions of its own.
                self.unfollow(&key);
                target.set_address(ip, "DNS additional record");
            }
            let follower = self.followers.entry(key.clone()).or_default();
            if follower.target.as_ref() != Some(&name) {
                let before = follower.target.replace(name.clone()).as_ref().map(message::text);
                target.tell_name(before.as_deref(), &message::text(&name), "SRV record");
            }
            let resolve = target.server().config.resolve.as_ref();
            if additional.is_none() && follower.resolution.is_none() {
                let kind = first(self.config.families, resolve.is_some_and(|own| own.prefer_v4));
                let own = self.number(&name, kind, now);
                if let Some(resolution) = self.resolutions.get_mut(&own) {
                    resolution.servers.push(key.clone());
                }
                self.followers.entry(key).or_default().resolution = Some(own);
            }
            let has_address = target.server().address().is_some();
            let resolved = if has_address { Ok(()) } else { Err("entry removed from SRV record") };
            target.set_resolved(resolved, Some(&message::text(&name)));
            target.set_port(port);
            if !resolve.is_some_and(|resolve| resolve.ignore_weight) {
                target.set_weight(weight);
            }
        }
    }

    /// Returns the name that a server follows, if it comes from a service record.
    pub(super) fn name_of(&self, backend: &str, server: &str) -> Option<String> {
        let key = (backend.into(), server.into());
        self.followers.get(&key).and_then(|follower| follower.target.as_ref()).map(message::text)
    }
}

fn order_of_service(target: &Name) -> u32 {
    let wire = target.as_octets();
    xxh32(&wire[..wire.len() - 1], 33)
}

/// Merges the records of an answer into the known ones.
fn merge(records: &mut Vec<Record>, answer: Answer, now: Instant) {
    for found in answer.records {
        let (order, datum) = match found {
            Found::Address(ip) => {
                let order = match ip {
                    IpAddr::V4(ip) => xxh32(&ip.octets(), 1),
                    IpAddr::V6(ip) => xxh32(&ip.octets(), 28),
                };
                (order, Datum::Address(ip))
            }
            Found::Service { target, port, weight } => {
                let order = order_of_service(&target);
                (order, Datum::Service { target, port, weight, additional: None })
            }
        };
        let begin = records.partition_point(|record| record.order < order);
        let mut end = begin;
        let mut known = false;
        while let Some(record) = records.get_mut(end).filter(|record| record.order == order) {
            let same = match (&mut record.datum, &datum) {
                (Datum::Address(one), Datum::Address(other)) => one == other,
                (
                    Datum::Service { target, port, weight, .. },
                    Datum::Service { target: other, port: its, weight: new, .. },
                ) if target == other && port == its => {
                    *weight = *new;
                    true
                }
                _ => false,
            };
            if same {
                record.seen = now;
                known = true;
                break;
            }
            end += 1;
        }
        if !known && records.len() < RECORDS {
            records.insert(end, Record { order, datum, seen: now, users: Vec::new() });
        }
    }
    let mut additional: HashMap<Name, IpAddr> = HashMap::new();
    for (name, ip) in answer.additional {
        additional.entry(name).or_insert(ip);
    }
    if additional.is_empty() {
        return;
    }
    for record in records {
        if let Datum::Service { target, additional: place, .. } = &mut record.datum
            && let Some(ip) = additional.get(target)
        {
            *place = Some((*ip, now));
        }
    }
}

/// The preferences of a server.
struct Wish<'a> {
    resolve: &'a model::ServerResolve,
    key: &'a ServerKey,
    current: Option<IpAddr>,
}

fn choose(records: &[Record], kind: Kind, wish: Option<Wish<'_>>) -> Option<IpAddr> {
    match records[choose_record(records, kind, wish)?].datum {
        Datum::Address(ip) => Some(ip),
        Datum::Service { .. } => None,
    }
}

/// Returns the best address. The criteria, in this order: the preferred family, a preferred network, no other server
/// has the address, it is the current one; the first among equals.
fn choose_record(records: &[Record], kind: Kind, wish: Option<Wish<'_>>) -> Option<usize> {
    let mut best: Option<(u32, usize)> = None;
    for (index, record) in records.iter().enumerate() {
        let Datum::Address(ip) = record.datum else { continue };
        let mut score = if ip.is_ipv4() == (kind == Kind::V4) { 8 } else { 0 };
        if let Some(wish) = &wish {
            let near = |(network, length): &(IpAddr, u8)| {
                network.is_ipv4() == ip.is_ipv4() && in_network(ip, *network, *length)
            };
            let taken = record.users.iter().any(|user| user.0 == wish.key.0 && user != wish.key);
            if taken && !wish.resolve.duplicates {
                continue;
            }
            score += if wish.resolve.networks.iter().any(near) { 4 } else { 0 };
            score += if taken { 0 } else { 2 };
            score += u32::from(wish.current == Some(ip));
        }
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, index));
        }
    }
    best.map(|(_, index)| index)
}
