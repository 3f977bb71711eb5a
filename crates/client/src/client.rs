//! An engine as rules and scripts ask it.

use std::sync::Arc;

use sluicegate_wire::engine::{Connections, Engine, Started};

use crate::command::classify;
use crate::figures::add;
use crate::section::Section;
use crate::topology::Topology;
use crate::{Failure, Options};

/// An engine, shared by all workers.
#[derive(Debug)]
pub struct Client {
    section: Arc<Section>,
    topology: Topology,
}

impl Client {
    /// A client of an engine; it connects when it is asked first.
    pub fn new(options: Options) -> Client {
        let section = Arc::new(Section::new(options));
        Client { topology: Topology::new(&section), section }
    }

    /// What its section says.
    pub fn options(&self) -> &Options {
        &self.section.options
    }

    fn ask(&self, db: u32, args: &[&[u8]]) -> Result<Started, Failure> {
        add(&self.section.counters.commands, 1);
        let kind = classify(args)?;
        let node = self.topology.node(args)?;
        node.admit()?;
        let db = if db == 0 { self.section.options.db } else { db };
        let receiver = node.lane(db)?.push(args, kind)?;
        Ok(Started::Pending(Box::pin(async move { receiver.await.unwrap_or_else(|_| Failure::Closed.into_reply()) })))
    }
}

impl Engine for Client {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        self.ask(db, args).unwrap_or_else(|failure| {
            self.section.counters.failed(&failure);
            Started::Done(failure.into_reply())
        })
    }

    fn connections(&self) -> Option<Connections> {
        let mut figures = Connections { max: self.section.options.maxconn as u64, ..Connections::default() };
        self.section.counters.add_to(&mut figures);
        for node in self.topology.nodes() {
            node.counters.add_to(&mut figures);
            let (is_open, last_failure) = node.health();
            figures.address = node.address.to_string();
            figures.is_open |= is_open;
            figures.last_failure = last_failure;
        }
        Some(figures)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.topology.nodes().iter().for_each(|node| node.close());
    }
}
