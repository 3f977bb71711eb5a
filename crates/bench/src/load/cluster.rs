//! The nodes of a Redis cluster, found through one of them by `CLUSTER SLOTS`.

use std::sync::Arc;

use sluicegate_wire::slot::SLOTS;

use super::ask::{Asked, Failure, Item, ask};
use super::redis::{Login, Nodes};
use super::target::{Family, Server};
use super::tls::Connector;

/// The nodes of a cluster, and the node of each slot.
pub(super) struct Cluster {
    pub(super) servers: Vec<Server>,
    /// The nodes' names, as far as they have told them.
    pub(super) names: Vec<String>,
    pub(super) nodes: Nodes,
}

impl Cluster {
    /// Asks a node for the slots of all masters.
    pub(super) fn find(
        server: &Server,
        family: Family,
        login: &Login,
        tls: Option<&Connector>,
    ) -> Result<Cluster, String> {
        let failed = |reason: String| format!("{server}: CLUSTER SLOTS: {reason}");
        if let Server::Unix(_) = server {
            return Err(failed("a unix socket has no cluster".to_owned()));
        }
        let answers = ask(&Asked { server, family, login, tls }, &[&["CLUSTER", "SLOTS"]]);
        match answers.map(|mut answers| answers.pop()) {
            Ok(Some(Item::Error(error))) => Err(failed(error)),
            Ok(Some(slots)) => cluster(&slots, server).map_err(failed),
            Ok(None) => Err(failed("no answer".to_owned())),
            Err(Failure::Connect(reason) | Failure::Login(reason) | Failure::Answer(reason)) => Err(failed(reason)),
        }
    }

    /// Returns the names or addresses of the nodes, in their order.
    pub(super) fn hosts(&self) -> Vec<String> {
        let host = |server: &Server| match server {
            Server::Tcp(host, _) => Some(host.clone()),
            Server::Unix(_) => None,
        };
        self.servers.iter().filter_map(host).collect()
    }

    /// Divides the requests of a client by the nodes' numbers of slots; the first node gets the rest.
    pub(super) fn shares(&self, requests: u64) -> Vec<u64> {
        let of_slots = &self.nodes.of_slots;
        let share = |node: usize| {
            let slots = of_slots.iter().filter(|found| usize::from(**found) == node).count();
            (u128::from(requests) * slots as u128 / of_slots.len() as u128) as u64
        };
        let mut shares: Vec<u64> = (0..self.nodes.count).map(share).collect();
        shares[0] += requests - shares.iter().sum::<u64>();
        shares
    }
}

fn cluster(slots: &Item, asked: &Server) -> Result<Cluster, String> {
    let odd = || "an answer that is not understood".to_owned();
    let Item::List(ranges) = slots else { return Err(odd()) };
    let (mut servers, mut names): (Vec<Server>, Vec<String>) = (Vec::new(), Vec::new());
    let mut of_slots = vec![u16::MAX; usize::from(SLOTS)];
    for range in ranges {
        let Item::List(range) = range else { return Err(odd()) };
        let [Item::Number(from), Item::Number(to), Item::List(master), ..] = range.as_slice() else {
            return Err(odd());
        };
        let [Item::Text(host), Item::Number(port), more @ ..] = master.as_slice() else { return Err(odd()) };
        // A node that does not know its own address has an empty one.
        let host = match (host.as_str(), asked) {
            ("" | "?", Server::Tcp(host, _)) => host.clone(),
            (host, _) => host.to_owned(),
        };
        let server = Server::Tcp(host, u16::try_from(*port).map_err(|_| odd())?);
        let node = servers.iter().position(|known| *known == server).unwrap_or_else(|| {
            servers.push(server);
            names.push(match more {
                [Item::Text(name), ..] => name.clone(),
                _ => String::new(),
            });
            servers.len() - 1
        });
        let range = of_slots.get_mut(*from as usize..=*to as usize).ok_or_else(odd)?;
        range.fill(node as u16);
    }
    match of_slots.iter().position(|node| *node == u16::MAX) {
        Some(slot) => Err(format!("no node has slot {slot}")),
        None => Ok(Cluster { nodes: Nodes { of_slots: Arc::new(of_slots), count: servers.len() }, servers, names }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::Reader;
    use super::*;

    #[test]
    fn slots_are_read() {
        let text = b"*2\r\n*3\r\n:0\r\n:8191\r\n*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n*4\r\n:8192\r\n:16383\r\n*3\r\n$0\r\n\r\n:7001\r\n$2\r\nid\r\n*3\r\n$1\r\nr\r\n:7\r\n$1\r\ni\r\n";
        for cut in 0..text.len() {
            assert!(Reader { buf: &text[..cut], at: 0 }.value(0).unwrap().is_none(), "{cut}");
        }
        let value = Reader { buf: text, at: 0 }.value(0).unwrap().unwrap();
        let found = cluster(&value, &Server::Tcp("h".into(), 1)).unwrap();
        assert_eq!(found.servers, [Server::Tcp("127.0.0.1".into(), 7000), Server::Tcp("h".into(), 7001)]);
        assert_eq!([found.nodes.of_slots[8191], found.nodes.of_slots[8192]], [0, 1]);
        assert_eq!(found.shares(7), [4, 3]);
        let part =
            Reader { buf: b"*1\r\n*3\r\n:1\r\n:16383\r\n*2\r\n$1\r\nh\r\n:1\r\n", at: 0 }.value(0).unwrap().unwrap();
        assert!(cluster(&part, &Server::Tcp("h".into(), 1)).is_err_and(|error| error == "no node has slot 0"));
    }
}
