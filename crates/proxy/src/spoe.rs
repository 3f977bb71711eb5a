//! SPOE: what a stream keeps of the engines of its proxies, and the interface through which messages reach agents.
//!
//! Rules and events write messages ([`rule`](crate::rule)); a worker sends them to a server of the agent's backend and
//! returns the payload of its answer ([`server`](crate::server)).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::ProxyId;
use sluicegate_wire::spop::Messages;
use smallvec::SmallVec;

use crate::sample::Variables;

/// The part of a connection's status in the status of a failed exchange (HAProxy's SPOE.txt, section 2.3).
pub(crate) const OF_CONNECTION: u64 = 256;

/// An engine as its agents know it.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Its identifier, which is the same on all its connections.
    pub(crate) id: Box<str>,
    /// The backend whose servers are the agents.
    pub(crate) backend: ProxyId,
    /// The maximum length of frames in bytes.
    pub(crate) max_frame_size: u32,
    /// Whether a connection may have several frames at a time.
    pub(crate) pipelining: bool,
}

/// The answer to messages: the actions of an agent, or the status of a failure.
pub(crate) type Answer = Result<Vec<u8>, u64>;

/// An exchange with an agent. Dropping it ends the exchange.
pub(crate) type Exchange = Pin<Box<dyn Future<Output = Answer>>>;

/// A worker that sends messages to agents.
pub(crate) trait Agents {
    /// Sends messages to an agent of an engine. The caller drops the exchange when `limit` is over; `parent` are the
    /// variables of the stream that they belong to.
    fn ask(
        self: Rc<Self>,
        messages: Messages,
        engine: Arc<Engine>,
        limit: Option<Duration>,
        parent: &Variables,
    ) -> Exchange;
}

/// A stream's state of its engines.
pub struct StreamSpoe {
    pub(crate) agents: Rc<dyn Agents>,
    engines: SmallVec<[StreamEngine; 1]>,
    /// Messages that are being written.
    pub(crate) messages: Messages,
    /// The engine whose messages to an agent this stream carries.
    pub(crate) carried: Option<Arc<Engine>>,
}

/// An engine's work on a stream.
#[derive(Debug)]
pub(crate) struct StreamEngine {
    engine: Arc<Engine>,
    /// Whether an exchange has failed, after which there is no other.
    pub(crate) is_over: bool,
    /// The time of all exchanges, in ms.
    pub(crate) total_ms: i64,
}

impl StreamSpoe {
    /// Returns the state of a stream without exchanges so far.
    pub(crate) fn new(agents: Rc<dyn Agents>) -> StreamSpoe {
        StreamSpoe { agents, engines: SmallVec::new(), messages: Messages::default(), carried: None }
    }

    /// Returns an engine's work on the stream.
    pub(crate) fn of(&mut self, engine: &Arc<Engine>) -> &mut StreamEngine {
        let known = self.engines.iter().position(|known| Arc::ptr_eq(&known.engine, engine));
        let index = known.unwrap_or_else(|| {
            self.engines.push(StreamEngine { engine: engine.clone(), is_over: false, total_ms: 0 });
            self.engines.len() - 1
        });
        &mut self.engines[index]
    }
}
