//! The implementation of `Engine` that rules and scripts use.

use std::sync::Arc;

use sluicegate_wire::engine::{Connections, Engine, Failed, Origin, Own, Started};
use sluicegate_wire::reply::Reply;

use crate::command::{Kind, classify};
use crate::figures::add;
use crate::node::section::Section;
use crate::own::{OwnConnection, alone};
use crate::scripts::Scripts;
use crate::topology::Topology;
use crate::transaction::Request;
use crate::{Failure, Options};

/// An engine, shared by all workers.
#[derive(Debug)]
pub struct Client {
    section: Arc<Section>,
    topology: Topology,
    scripts: Scripts,
}

impl Client {
    /// Returns a client of an engine; it connects when the first command is sent.
    pub fn new(options: Options) -> Client {
        let section = Arc::new(Section::new(options));
        Client { topology: Topology::new(&section), section, scripts: Scripts::default() }
    }

    /// Returns the settings of the client's section.
    pub fn options(&self) -> &Options {
        &self.section.options
    }

    /// Starts a command. With `failed`, no caller waits for the reply; [`Started::Done`] with a null then means that
    /// the command was queued.
    fn ask(&self, db: u32, args: &[&[u8]], failed: Option<&Failed>) -> Result<Started, Failure> {
        add(&self.section.counters.commands, 1);
        let kind = classify(args)?;
        let db = self.database(db);
        if kind == Kind::Waits {
            let own = OwnConnection::new(&self.topology, &self.section, db);
            return Ok(alone(Box::new(own), args));
        }
        match self.scripts.ask(&self.topology, db, args, kind) {
            Some(started) => started,
            None => {
                let request = failed.map_or(Request::One(args), |failed| Request::Forgotten(args, failed));
                self.topology.ask(db, request, kind)
            }
        }
    }

    /// Returns `db`, or the section's database if `db` is 0 (not specified).
    fn database(&self, db: u32) -> u32 {
        if db == 0 { self.section.options.db } else { db }
    }

    /// Converts a failure into an error reply and counts it.
    fn told(&self, started: Result<Started, Failure>) -> Started {
        started.unwrap_or_else(|failure| {
            self.section.counters.failed(&failure);
            Started::Done(failure.into_reply())
        })
    }
}

impl Engine for Client {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        self.told(self.ask(db, args, None))
    }

    fn forget(&self, _: Origin<'_>, db: u32, args: &[&[u8]], failed: &Failed) -> Option<Started> {
        match self.told(self.ask(db, args, Some(failed))) {
            Started::Done(Reply::Null) => None,
            started => Some(started),
        }
    }

    fn together(&self, _: Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        // A command that may not be sent over a shared connection may be sent over a dedicated one, or is refused
        // there.
        if commands.iter().any(|args| classify(args).is_err()) {
            return None;
        }
        add(&self.section.counters.commands, commands.len() as u64);
        let db = self.database(db);
        let bodies: Vec<_> = commands.iter().map(|args| self.scripts.with_body(args)).collect();
        let started = match bodies.iter().all(Option::is_none) {
            true => self.topology.ask(db, Request::Together(commands), Kind::Writes),
            false => {
                let whole = commands.iter().zip(&bodies).map(|(args, body)| match body {
                    Some((name, body)) => [&[*name, body], &args[2..]].concat(),
                    None => args.to_vec(),
                });
                let whole: Vec<Vec<&[u8]>> = whole.collect();
                let whole: Vec<&[&[u8]]> = whole.iter().map(Vec::as_slice).collect();
                self.topology.ask(db, Request::Together(&whole), Kind::Writes)
            }
        };
        Some(self.told(started))
    }

    fn own(&self, db: u32) -> Option<Box<dyn Own>> {
        Some(Box::new(OwnConnection::new(&self.topology, &self.section, self.database(db))))
    }

    fn connections(&self) -> Option<Connections> {
        let options = &self.section.options;
        let mut figures = Connections { max: options.maxconn as u64, ..Connections::default() };
        self.section.counters.add_to(&mut figures);
        self.section.cached.add_to(&mut figures);
        figures.last_failure = self.topology.last_failure();
        for (node, role) in self.topology.nodes() {
            node.counters.add_to(&mut figures);
            let node = node.figures(role);
            figures.is_open |= node.is_open;
            figures.last_failure = figures.last_failure.or_else(|| node.last_failure.clone());
            figures.nodes.push(node);
        }
        figures.address = match &figures.nodes[..] {
            [node] => node.address.clone(),
            _ => options.servers.iter().map(|server| server.to_string()).collect::<Vec<_>>().join(","),
        };
        Some(figures)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.section.close();
    }
}
