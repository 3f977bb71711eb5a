//! Balancing: which server takes the next request, an algorithm per file.
//!
//! A [`Balancer`] is a backend's algorithm and what every algorithm knows of its servers, who are named by their place
//! in the backend: effective weights, who is usable, and which side serves. Backups serve only while no other server
//! is usable, and then the first usable one alone unless `option allbackups` says all of them. What an algorithm asks
//! about a server's load goes through [`Load`], whose [`take`](Load::take) takes the slot, so that choosing and taking
//! are one step.
//!
//! Effective weights are user weights times [`WEIGHT_SCALE`]; a server that starts slowly has less.
//!
//! The balancer stands behind one lock per backend, which all workers share; what is done under it costs O(log n) of
//! the servers for every choice, except where a file says otherwise.

mod first;
mod hash;
mod least_conn;
mod ring;
mod round_robin;
mod table;

use sluicegate_config::model::{self, Affinity, HashType};

use first::First;
pub use hash::{body_parameter, full_hash, hash, main_domain, of_address, parameter, uri_part};
use least_conn::LeastConn;
use ring::Ring;
use round_robin::RoundRobin;
use table::Table;

/// Effective weights are user weights times this (HAProxy's BE_WEIGHT_SCALE), which leaves room for slow starts.
pub const WEIGHT_SCALE: u32 = 16;

/// The highest effective weight.
const WEIGHT_MAX: u32 = 256 * WEIGHT_SCALE;

/// What an algorithm found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// This server, and its slot is taken.
    Taken(usize),
    /// This server is the only choice and has no free slot: wait in its own queue.
    Wait(usize),
    /// Servers are there, but every one is full: wait in the backend's queue.
    Full,
    /// No server is usable.
    None,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The hash of its key; `None` where the algorithm has none, or the request has no key.
    pub hash: Option<u32>,
    /// A server that is chosen only if nobody else can serve: the one that just failed.
    pub avoid: Option<usize>,
}

/// What algorithms ask about servers at the moment of a choice.
pub trait Load {
    /// Takes a slot of a server if one is free and nobody waits in its queue.
    fn take(&self, server: usize) -> bool;
    /// Its own queue has a limit that is not reached yet.
    fn may_queue(&self, server: usize) -> bool;
    /// Requests that it serves.
    fn served(&self, server: usize) -> u32;
    /// The same and those in its queue.
    fn in_flight(&self, server: usize) -> u32;
    /// Requests that all servers of the backend serve; counted only where a `hash-balance-factor` is.
    fn all_served(&self) -> u32;
    /// It has a limit and no free slot.
    fn is_full(&self, server: usize) -> bool;
    /// It has a limit and its queue has one, and both are reached.
    fn queue_is_full(&self, server: usize) -> bool;
}

/// A server as it is at the start.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// User weight by the file, 0–256.
    pub weight: u32,
    /// Effective weight at the moment.
    pub effective: u32,
    /// `backup`.
    pub backup: bool,
    /// Its number (`id`).
    pub number: u32,
    /// Where its places on a ring come from.
    pub seed: u32,
}

/// What the `balance` line and its kin say.
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
    /// Weights may change at run time; otherwise a server has its weight by the file or none.
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

/// The servers as every algorithm sees them.
#[derive(Debug, Default)]
struct Servers {
    backup: Vec<bool>,
    weight: Vec<u32>,
    /// Active servers, backups.
    totals: [Total; 2],
    all_backups: bool,
}

/// Who serves.
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

    /// Usable servers of a side, in the order of the file.
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
}

/// The balancer of one backend.
#[derive(Debug)]
pub struct Balancer {
    servers: Servers,
    algorithm: Algorithm,
}

impl Balancer {
    /// The balancer of these servers.
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
            Balance::Hash(_) if method.hash_type.consistent => Algorithm::Ring(Ring::new(members, method, None)),
            Balance::Hash(_) => Algorithm::Table(Table::new(members)),
        };
        Balancer { servers, algorithm }
    }

    /// Chooses a server.
    pub fn pick(&mut self, wish: Wish, load: &dyn Load) -> Pick {
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
            },
        };
        if let Pick::Taken(server) = pick {
            self.load_changed(server, load.in_flight(server));
        }
        pick
    }

    /// Sets a server's effective weight; 0 takes it out, which is what a server that is down gets.
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
        }
    }

    /// What a server's places follow from is another number now. Only hashes on a ring want to know.
    pub fn set_seed(&mut self, server: usize, seed: u32) {
        if let Algorithm::Ring(ring) = &mut self.algorithm {
            ring.set_seed(server, seed, &self.servers);
        }
    }

    /// A server serves or queues so many requests now. Only `leastconn` wants to know.
    pub fn load_changed(&mut self, server: usize, in_flight: u32) {
        if let Algorithm::LeastConn(least) = &mut self.algorithm {
            least.set_load(server, in_flight);
        }
    }

    /// Usable servers: active, backup.
    pub fn usable(&self) -> (usize, usize) {
        let [active, backup] = self.servers.totals;
        (active.usable, backup.usable)
    }

    /// Sum of the user weights of the servers that serve, rounded up.
    pub fn total_weight(&self) -> u32 {
        let effective = match self.servers.side() {
            Side::Nobody => 0,
            Side::Only(server) => self.servers.weight[server],
            Side::All(side) => self.servers.totals[side].weight,
        };
        effective.div_ceil(WEIGHT_SCALE)
    }

    /// Whether a server may take what waits for any: a backup only while backups serve, and it among them.
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
