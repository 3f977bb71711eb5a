//! The sentinels of a section: those of the configuration, and those learned from them.
//!
//! One sentinel is queried at a time, the one that answered last; the others if it does not answer. Learned sentinels
//! are kept as long as the section, so the section keeps working when all configured sentinels are gone.
//!
//! **Trust.** The configuration epoch orders the replies of sentinels. A sentinel with an older epoch than one already
//! seen is trusted only if it names the same master, or if no sentinel has reported the newer epoch for [`EPOCH_AGE`]
//! and the master of that epoch fails: newly installed sentinels start at epoch 0, and a partitioned one may be the
//! only one left.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Address;
use crate::node::Node;
use crate::node::lane::question;
use crate::node::section::Section;
use crate::told::{self, SENTINELS_MAX};

/// The time for which a reported epoch takes precedence over lower ones in any case.
const EPOCH_AGE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Sentinels {
    section: Arc<Section>,
    /// The master's name.
    name: String,
    from_replicas: bool,
    /// The configured sentinels.
    written: Vec<Arc<Node>>,
    learned: Mutex<Learned>,
}

#[derive(Debug, Default)]
struct Learned {
    /// Sentinels learned from others, at most [`SENTINELS_MAX`].
    further: Vec<Arc<Node>>,
    /// The sentinel that answered last.
    last: Option<Arc<Node>>,
    /// The newest epoch, and when it was last reported.
    epoch: Option<(u64, Instant)>,
}

impl Sentinels {
    pub(crate) fn new(section: &Arc<Section>, name: &str, from_replicas: bool) -> Sentinels {
        let servers = section.options.servers.iter();
        let written = servers.map(|address| Arc::new(Node::sentinel(section.clone(), address.clone()))).collect();
        let section = section.clone();
        Sentinels { section, name: name.to_owned(), from_replicas, written, learned: Mutex::default() }
    }

    /// Returns all sentinels, in the order in which they are queried.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        let learned = self.learned.lock();
        let mut all: Vec<Arc<Node>> = self.written.iter().chain(&learned.further).cloned().collect();
        if let Some(last) = &learned.last
            && let Some(place) = all.iter().position(|node| Arc::ptr_eq(node, last))
        {
            all[..=place].rotate_right(1);
        }
        all
    }

    /// Returns a sentinel's report of the master and its replicas, if it is trusted; `known` is the current master.
    pub(crate) async fn ask(&self, node: &Arc<Node>, known: Option<Arc<Node>>) -> Result<told::Shard, String> {
        let name = self.name.as_bytes();
        let [address, state, replicas, others]: [[&[u8]; 3]; 4] = [
            [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name],
            [b"SENTINEL", b"MASTER", name],
            [b"SENTINEL", b"REPLICAS", name],
            [b"SENTINEL", b"SENTINELS", name],
        ];
        let replicas = async {
            match self.from_replicas {
                true => Some(question(node, &replicas).await),
                false => None,
            }
        };
        // All commands are queued before the first reply is awaited.
        let (address, state, replicas, others) =
            tokio::join!(question(node, &address), question(node, &state), replicas, question(node, &others));
        let (master, epoch) = told::master(&address, &state, &node.address)?;
        let (replicas, spare) = match replicas {
            Some(reply) => told::replicas(&reply, &node.address)?,
            None => Default::default(),
        };
        self.believe(&master, epoch, known)?;
        self.learn(node, told::sentinels(&others, &node.address));
        let is_other = |replica: &Address| *replica != master;
        let replicas = replicas.into_iter().filter(is_other).collect();
        let spare = spare.into_iter().filter(is_other).collect();
        Ok(told::Shard { slots: Vec::new(), master, replicas, spare })
    }

    fn believe(&self, master: &Address, epoch: u64, known: Option<Arc<Node>>) -> Result<(), String> {
        let now = Instant::now();
        let mut learned = self.learned.lock();
        if let Some((newest, at)) = learned.epoch.filter(|(newest, _)| epoch < *newest) {
            if known.as_ref().is_some_and(|known| known.address == *master) {
                return Ok(());
            }
            if now < at + EPOCH_AGE || known.is_some_and(|known| !known.is_ailing()) {
                return Err(format!("it knows epoch {epoch} of '{}', others know {newest}", self.name));
            }
        }
        learned.epoch = Some((epoch, now));
        Ok(())
    }

    /// Records the other sentinels that a sentinel knows. A sentinel that knows none is ignored: it has just started.
    fn learn(&self, node: &Arc<Node>, told: Vec<Address>) {
        let mut learned = self.learned.lock();
        learned.last = Some(node.clone());
        if told.is_empty() {
            return;
        }
        let before = std::mem::take(&mut learned.further);
        for address in std::iter::once(node.address.clone()).chain(told) {
            let has = |nodes: &[Arc<Node>]| nodes.iter().any(|node| node.address == address);
            if has(&self.written) || has(&learned.further) || learned.further.len() == SENTINELS_MAX {
                continue;
            }
            let known = before.iter().find(|node| node.address == address).cloned();
            let known = known.unwrap_or_else(|| Arc::new(Node::sentinel(self.section.clone(), address)));
            learned.further.push(known);
        }
        let gone = before.iter().filter(|node| !learned.further.iter().any(|other| Arc::ptr_eq(node, other)));
        gone.for_each(|node| {
            self.section.counters.take_over(&node.counters);
            node.close();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn tcp(port: u16) -> Address {
        Address::Tcp("127.0.0.1".into(), port)
    }

    fn check(run: impl AsyncFnOnce(&Arc<Section>, Sentinels)) {
        let section = Arc::new(Section::new(Options::new("sessions", tcp(1))));
        let sentinels = Sentinels::new(&section, "m", false);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(run(&section, sentinels));
    }

    #[test]
    fn older_epochs_count_only_when_nobody_else_is_left() {
        check(async |section, sentinels| {
            let master = Arc::new(Node::new(section.clone(), tcp(6001)));
            let says = |port: u16, epoch: u64| sentinels.believe(&tcp(port), epoch, Some(master.clone())).is_ok();
            assert!(says(6000, 3) && says(6001, 7));
            // The sentinel names the same master, but its epoch is not the newest.
            assert!(says(6001, 3) && !says(6002, 3) && !says(6002, 6));
            tokio::time::advance(2 * EPOCH_AGE).await;
            assert!(!says(6002, 6));
            master.failed("it is gone");
            assert!(says(6002, 6) && !says(6003, 5));
            assert!(says(6003, 6));
            // Without a known master only the age counts.
            assert!(sentinels.believe(&tcp(6004), 5, None).is_err());
            tokio::time::advance(EPOCH_AGE).await;
            assert!(sentinels.believe(&tcp(6004), 5, None).is_ok());
        });
    }

    #[test]
    fn the_others_are_known_and_bounded() {
        check(async |section, sentinels| {
            let written = sentinels.written[0].clone();
            let ports = || sentinels.all().iter().map(|node| node.address.to_string()).collect::<Vec<_>>();
            let at = |ports: &[u16]| ports.iter().map(|port| tcp(*port).to_string()).collect::<Vec<_>>();
            sentinels.learn(&written, vec![tcp(2), tcp(3), tcp(2)]);
            assert_eq!(ports(), at(&[1, 2, 3]));
            // A learned sentinel answers: it is queried first, and kept although its reply does not list itself.
            let third = sentinels.all()[2].clone();
            sentinels.learn(&third, vec![tcp(1), tcp(4)]);
            assert_eq!(ports(), at(&[3, 1, 4]));
            assert!(Arc::ptr_eq(&sentinels.all()[0], &third));
            sentinels.learn(&written, Vec::new());
            assert_eq!(ports(), at(&[1, 3, 4]));
            sentinels.learn(&written, (10..200).map(tcp).collect());
            assert_eq!(ports().len(), 1 + SENTINELS_MAX);
            assert!(third.lane(0).is_err() || section.options.servers.len() == 1);
        });
    }
}
