//! `balance first`: the usable server with the lowest number that has a free slot, so that as few servers as possible
//! are busy and the others may be switched off. Weights only determine which servers are usable.
//!
//! Cost: examines every full server before the chosen one, so O(n) in a nearly full backend, as in HAProxy.

use super::{Load, Member, Pick, Servers};

#[derive(Debug)]
pub(super) struct First {
    /// Servers by their numbers.
    order: Box<[usize]>,
}

impl First {
    pub(super) fn new(members: &[Member]) -> First {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&server| members[server].number);
        First { order: order.into() }
    }

    pub(super) fn pick(&self, side: usize, avoid: Option<usize>, servers: &Servers, load: &dyn Load) -> Pick {
        let usable = |server: &usize| servers.backup[*server] == (side == 1) && servers.weight[*server] > 0;
        let others = self.order.iter().copied().filter(usable).filter(|server| Some(*server) != avoid);
        for server in others.chain(avoid.filter(usable)) {
            if load.take(server) {
                return Pick::Taken(server);
            }
        }
        Pick::Full
    }
}
