//! Which node a command goes to.

use std::sync::Arc;

use crate::Failure;
use crate::node::Node;
use crate::section::Section;

/// The nodes of a section.
#[derive(Debug)]
pub(crate) enum Topology {
    /// `mode single`: one engine has all keys.
    Single(Arc<Node>),
}

impl Topology {
    pub(crate) fn new(section: &Arc<Section>) -> Topology {
        Topology::Single(Arc::new(Node::new(section.clone(), section.options.address.clone())))
    }

    /// The node that is asked `args`.
    pub(crate) fn node(&self, _args: &[&[u8]]) -> Result<Arc<Node>, Failure> {
        match self {
            Topology::Single(node) => Ok(node.clone()),
        }
    }

    /// Every node.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Topology::Single(node) => vec![node.clone()],
        }
    }
}
