//! The choice of the node for a command.

use std::sync::Arc;

use sluicegate_wire::engine::Started;

use crate::Failure;
use crate::cluster::Cluster;
use crate::command::Kind;
use crate::node::Node;
use crate::node::section::Section;
use crate::options::Mode;
use crate::transaction::Request;

/// The nodes of a section.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    /// `mode single`: one engine holds all keys.
    Single(Arc<Node>),
    /// `mode cluster`: each node owns some of the slots. `mode sentinel`: one node, which may change, holds all keys.
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn new(section: &Arc<Section>) -> Topology {
        match &section.options.mode {
            Mode::Single => {
                let address = section.options.servers[0].clone();
                Topology::Single(Arc::new(Node::new(section.clone(), address)))
            }
            Mode::Sentinel { .. } | Mode::Cluster { .. } => {
                let cluster = Cluster::new(section.clone());
                section.belongs_to(Cluster::router(&cluster));
                Topology::Cluster(cluster)
            }
        }
    }

    /// Starts a command or a transaction on the node that owns its keys.
    pub(crate) fn ask(&self, db: u32, request: Request<'_>, kind: Kind) -> Result<Started, Failure> {
        match self {
            Topology::Single(node) => node.ask(db, request, kind),
            Topology::Cluster(cluster) => cluster.ask(db, request, kind),
        }
    }

    /// Returns the node for a dedicated connection: the owner of the key, if a key is given.
    pub(crate) async fn own_node(&self, key: Option<&[u8]>) -> Result<Arc<Node>, Failure> {
        match self {
            Topology::Single(node) => Ok(node.clone()),
            Topology::Cluster(cluster) => cluster.own_node(key).await,
        }
    }

    /// Returns every node, with its role.
    pub(crate) fn nodes(&self) -> Vec<(Arc<Node>, &'static str)> {
        match self {
            Topology::Single(node) => vec![(node.clone(), "master")],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns the reason why no node is known, if none is.
    pub(crate) fn last_failure(&self) -> Option<String> {
        match self {
            Topology::Single(_) => None,
            Topology::Cluster(cluster) => cluster.last_failure(),
        }
    }
}
