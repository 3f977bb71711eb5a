//! An engine as rules and scripts ask it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluicegate_wire::engine::{Connections, Engine, Started};
use tokio::runtime::Handle;

use crate::command::classify;
use crate::figures::add;
use crate::lane::{self, Lane};
use crate::node::Node;
use crate::{Failure, Options};

/// An engine, shared by all workers.
#[derive(Debug)]
pub struct Client {
    /// Tells clients apart in the threads' lists of lanes.
    id: u64,
    node: Arc<Node>,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Whose lane the next worker without one of its own uses.
    next: AtomicUsize,
}

thread_local! {
    /// The lanes that this thread uses, by client and database.
    static LANES: RefCell<Vec<(u64, u32, Arc<Lane>)>> = const { RefCell::new(Vec::new()) };
}

impl Client {
    /// A client of an engine; it connects when it is asked first.
    pub fn new(options: Options) -> Client {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Client {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            node: Arc::new(Node::new(options)),
            lanes: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// What its section says.
    pub fn options(&self) -> &Options {
        &self.node.options
    }

    /// This thread's lane to a database: its own, or where the cap leaves none, another thread's.
    fn lane(&self, db: u32) -> Result<Arc<Lane>, Failure> {
        LANES.with_borrow_mut(|known| {
            if let Some((.., lane)) =
                known.iter().find(|(id, of, lane)| (*id, *of) == (self.id, db) && !lane.is_closed())
            {
                return Ok(lane.clone());
            }
            known.retain(|(.., lane)| !lane.is_closed());
            let lane = self.assign(db)?;
            known.push((self.id, db, lane.clone()));
            Ok(lane)
        })
    }

    fn assign(&self, db: u32) -> Result<Arc<Lane>, Failure> {
        let mut lanes = self.lanes.lock();
        lanes.retain(|lane| !lane.is_closed());
        let most = self.node.options.maxconn;
        if lanes.len() < most {
            let runtime = Handle::try_current()
                .map_err(|_| Failure::Refused("an engine is asked from a thread without a runtime".into()))?;
            let lane = Arc::new(Lane::new(self.node.clone(), db));
            runtime.spawn(lane::serve(lane.clone()));
            lanes.push(lane.clone());
            return Ok(lane);
        }
        let same: Vec<&Arc<Lane>> = lanes.iter().filter(|lane| lane.db == db).collect();
        match same.len() {
            0 => Err(Failure::Refused(format!("maxconn {most} leaves no connection for database {db}"))),
            count => Ok(same[self.next.fetch_add(1, Ordering::Relaxed) % count].clone()),
        }
    }

    fn ask(&self, db: u32, args: &[&[u8]]) -> Result<Started, Failure> {
        add(&self.node.counters.commands, 1);
        let kind = classify(args)?;
        self.node.admit()?;
        let db = if db == 0 { self.node.options.db } else { db };
        let receiver = self.lane(db)?.push(args, kind)?;
        Ok(Started::Pending(Box::pin(async move { receiver.await.unwrap_or_else(|_| Failure::Closed.into_reply()) })))
    }
}

impl Engine for Client {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        self.ask(db, args).unwrap_or_else(|failure| {
            self.node.counters.failed(&failure);
            Started::Done(failure.into_reply())
        })
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.node.connections())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.lanes.lock().iter().for_each(|lane| lane.close());
    }
}
