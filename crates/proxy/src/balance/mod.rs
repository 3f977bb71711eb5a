//! Balancing: the choice of the server for a request, an algorithm per file.
//!
//! A [`Balancer`] is a backend's algorithm and the state common to all algorithms, with servers identified by their
//! index in the backend: effective weights, usability, and whether active servers or backups serve. Backups serve only
//! while no other server is usable, and then only the first usable one unless `option allbackups` includes all.
//! Algorithms query a server's load through [`Load`], whose [`take`](Load::take) acquires the slot, so that choosing
//! and acquiring are one step.
//!
//! Effective weights are user weights times [`WEIGHT_SCALE`]; a server in slow start has less.
//!
//! The balancer is behind one lock per backend, which all workers share; each choice under it costs O(log n) of the
//! servers, except where an algorithm's file states another cost.

mod first;
mod hash;
mod least_conn;
mod ring;
mod round_robin;
mod sticky;
mod table;

use sluicegate_config::model::{self, Affinity, HashType};

use first::First;
pub use hash::{body_parameter, full_hash, hash, main_domain, of_address, parameter, uri_part};
use least_conn::LeastConn;
use ring::Ring;
use round_robin::RoundRobin;
use sticky::Sticky;
use table::Table;

/// Effective weights are user weights times this (HAProxy's BE_WEIGHT_SCALE), which leaves room for slow starts.
pub const WEIGHT_SCALE: u32 = 16;

/// The highest effective weight.
const WEIGHT_MAX: u32 = 256 * WEIGHT_SCALE;

/// The result of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// This server, whose slot is now taken.
    Taken(usize),
    /// This server is the only choice and has no free slot: wait in its own queue.
    Wait(usize),
    /// Servers are there, but every one is full: wait in the backend's queue.
    Full,
    /// No server is usable.
    None,
}

/// The preferences of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The hash of the request's key; `None` if the algorithm needs none, or the request has no key.
    pub hash: Option<u32>,
    /// A server chosen only if no other can serve: the one that just failed.
    pub avoid: Option<usize>,
}

/// The load of servers at the moment of a choice.
pub trait Load {
    /// Acquires a slot of a server if one is free and its queue is empty.
    fn take(&self, server: usize) -> bool;
    /// Returns whether a server's own queue has a limit that is not reached yet.
    fn may_queue(&self, server: usize) -> bool;
    /// Returns the number of requests that a server serves.
    fn served(&self, server: usize) -> u32;
    /// Returns the number of requests that a server serves or has in its queue.
    fn in_flight(&self, server: usize) -> u32;
    /// Returns the number of requests that all servers of the backend serve; counted only with a `hash-balance-factor`.
    fn all_served(&self) -> u32;
    /// Returns whether a server has a limit and no free slot.
    fn is_full(&self, server: usize) -> bool;
    /// Returns whether a server has a limit and its queue has one, and both are reached.
    fn queue_is_full(&self, server: usize) -> bool;
}

/// The initial settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The configured user weight, 0–256.
    pub weight: u32,
    /// Effective weight at the moment.
    pub effective: u32,
    /// `backup`.
    pub backup: bool,
    /// Its number (`id`).
    pub number: u32,
    /// The source of its points on a ring.
    pub seed: u32,
}

/// The settings of the `balance` line and related keywords.
#[derive(Clone, Debug, Default)]
pub struct Method {
    /// `balance`.
    pub balance: model::Balance,
    /// `hash-type`.
    pub hash_type: HashType,
    /// `hash-balance-factor`.
    pub factor: u32,
    /// `hash-preserve-affinity`.
    pub affinity: Affinity,
    /// `option allbackups`.
    pub all_backups: bool,
}

impl Method {
    /// Returns whether weights may change at run time; otherwise a server has its configured weight or none.
    pub fn is_dynamic(&self) -> bool {
        match self.balance {
            model::Balance::StaticRoundRobin => false,
            model::Balance::Hash(_) => self.hash_type.consistent,
            _ => true,
        }
    }
}

/// One side's usable servers.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    usable: usize,
    weight: u32,
}

/// The servers, in the form common to all algorithms.
#[derive(Debug, Default)]
struct Servers {
    backup: Vec<bool>,
    weight: Vec<u32>,
    /// Active servers, backups.
    totals: [Total; 2],
    all_backups: bool,
}

/// The group of servers that serves: active ones or backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Nobody,
    /// The first usable backup.
    Only(usize),
    /// All that are active (0), all backups (1).
    All(usize),
}

impl Servers {
    fn new(members: &[Member], all_backups: bool) -> Servers {
        let mut servers = Servers {
            backup: members.iter().map(|member| member.backup).collect(),
            weight: vec![0; members.len()],
            totals: [Total::default(); 2],
            all_backups,
        };
        for (index, member) in members.iter().enumerate() {
            servers.set_weight(index, member.effective);
        }
        servers
    }

    fn set_weight(&mut self, server: usize, new: u32) {
        let old = std::mem::replace(&mut self.weight[server], new);
        let total = &mut self.totals[usize::from(self.backup[server])];
        total.weight = total.weight - old + new;
        total.usable = total.usable + usize::from(new > 0) - usize::from(old > 0);
    }

    fn side(&self) -> Side {
        let [active, backup] = self.totals;
        if active.usable > 0 {
            Side::All(0)
        } else if backup.usable == 0 {
            Side::Nobody
        } else if self.all_backups {
            Side::All(1)
        } else {
            self.first_backup().map_or(Side::Nobody, Side::Only)
        }
    }

    fn first_backup(&self) -> Option<usize> {
        (0..self.weight.len()).find(|&index| self.backup[index] && self.weight[index] > 0)
    }

    /// Returns the usable servers of a side, in the order of the configuration.
    fn of(&self, side: usize) -> impl Iterator<Item = usize> {
        let wanted = side == 1;
        (0..self.weight.len()).filter(move |&index| self.backup[index] == wanted && self.weight[index] > 0)
    }
}

#[derive(Debug)]
enum Algorithm {
    RoundRobin(RoundRobin),
    Table(Table),
    LeastConn(LeastConn),
    First(First),
    Ring(Ring),
    Sticky(Sticky),
}

/// The balancer of one backend.
#[derive(Debug)]
pub struct Balancer {
    servers: Servers,
    algorithm: Algorithm,
}

impl Balancer {
    /// Returns the balancer of these servers.
    pub fn new(method: &Method, members: &[Member]) -> Balancer {
        use model::Balance;
        let servers = Servers::new(members, method.all_backups);
        let algorithm = match &method.balance {
            Balance::RoundRobin => {
                let each = members.iter().map(|member| (member.effective, member.backup));
                Algorithm::RoundRobin(RoundRobin::new(each))
            }
            Balance::StaticRoundRobin => Algorithm::Table(Table::new(members)),
            Balance::LeastConn => Algorithm::LeastConn(LeastConn::new(members)),
            Balance::First => Algorithm::First(First::new(members)),
            Balance::Random(draws) => Algorithm::Ring(Ring::new(members, method, Some(*draws))),
            Balance::Sticky => Algorithm::Sticky(Sticky::new(&servers)),
            Balance::Hash(_) if method.hash_type.consistent => Algorithm::Ring(Ring::new(members, method, None)),
            Balance::Hash(_) => Algorithm::Table(Table::new(members)),
        };
        Balancer { servers, algorithm }
    }

    /// Chooses a server.
    pub fn pick(&mut self, wish: Wish, load: &dyn Load) -> Pick {
        if let Algorithm::Sticky(sticky) = &self.algorithm {
            return sticky.pick(load);
        }
        let pick = match self.servers.side() {
            Side::Nobody => return Pick::None,
            Side::Only(server) if load.take(server) => Pick::Taken(server),
            Side::Only(server) => Pick::Wait(server),
            Side::All(side) => match &mut self.algorithm {
                Algorithm::RoundRobin(all) => all.pick(side, wish.avoid, |server| load.take(server)),
                Algorithm::Table(table) => table.pick(side, wish, &self.servers, load),
                Algorithm::LeastConn(least) => least.pick(side, wish.avoid, load),
                Algorithm::First(first) => first.pick(side, wish.avoid, &self.servers, load),
                Algorithm::Ring(ring) => ring.pick(side, wish, &self.servers, load),
                Algorithm::Sticky(sticky) => sticky.pick(load),
            },
        };
        if let Pick::Taken(server) = pick {
            self.load_changed(server, load.in_flight(server));
        }
        pick
    }

    /// Sets a server's effective weight; 0 removes it, as for a server that is down.
    pub fn set_weight(&mut self, server: usize, effective: u32) {
        if self.servers.weight[server] == effective {
            return;
        }
        self.servers.set_weight(server, effective);
        match &mut self.algorithm {
            Algorithm::RoundRobin(all) => all.set_weight(server, effective),
            Algorithm::Table(table) => table.changed(),
            Algorithm::LeastConn(least) => least.set_weight(server, effective),
            Algorithm::First(_) => {}
            Algorithm::Ring(ring) => ring.set_weight(server, &self.servers),
            Algorithm::Sticky(sticky) => sticky.set_weight(server, &self.servers),
        }
    }

    /// Changes the seed from which a server's points on a ring are computed. Used only by ring hashes.
    pub fn set_seed(&mut self, server: usize, seed: u32) {
        if let Algorithm::Ring(ring) = &mut self.algorithm {
            ring.set_seed(server, seed, &self.servers);
        }
    }

    /// Records a server's number of active and queued requests. Used only by `leastconn`.
    pub fn load_changed(&mut self, server: usize, in_flight: u32) {
        if let Algorithm::LeastConn(least) = &mut self.algorithm {
            least.set_load(server, in_flight);
        }
    }

    /// Returns the numbers of usable servers: active ones and backups.
    pub fn usable(&self) -> (usize, usize) {
        let [active, backup] = self.servers.totals;
        (active.usable, backup.usable)
    }

    /// Returns the sum of the user weights of the servers that serve, rounded up.
    pub fn total_weight(&self) -> u32 {
        let effective = match self.servers.side() {
            Side::Nobody => 0,
            Side::Only(server) => self.servers.weight[server],
            Side::All(side) => self.servers.totals[side].weight,
        };
        effective.div_ceil(WEIGHT_SCALE)
    }

    /// Returns whether a server may take requests from the backend's queue: a backup only while backups serve,
    /// including itself.
    pub fn serves_any(&self, server: usize) -> bool {
        self.servers.weight[server] > 0
            && match self.servers.side() {
                Side::Nobody => false,
                Side::Only(only) => only == server,
                Side::All(side) => self.servers.backup[server] == (side == 1),
            }
    }
}

#[cfg(test)]
mod tests;
