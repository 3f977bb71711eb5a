//! The blocks of a large list, which it can share with a copy of it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::super::Packed;
use super::super::limits::Limits;
use super::super::packed::At;
use super::End;

/// The sizes of nodes for `list-max-listpack-size` -1 to -5.
const NODE_SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];
/// The size of a node whose number of elements is limited.
const COUNTED_NODE_SIZE: usize = 8192;
/// The overhead of an element in addition to its text, as estimated by Redis.
const ELEMENT_OVERHEAD: usize = 8;

/// The size up to which a node may grow when elements are replaced by longer ones; Redis has no such limit.
const OUTGROWN: usize = 65_536 + COUNTED_NODE_SIZE;
/// Returns the maximum numbers of bytes and elements of a node.
#[inline]
pub(super) fn node_limits(limits: &Limits) -> (usize, usize) {
    match limits.list_size.get() {
        fill @ ..0 => (NODE_SIZES[(-fill).clamp(1, 5) as usize - 1], usize::MAX),
        fill => (COUNTED_NODE_SIZE, fill.max(1) as usize),
    }
}

#[inline]
pub(super) fn exceeds(bytes: usize, count: usize, limits: &Limits) -> bool {
    let (size_max, count_max) = node_limits(limits);
    bytes > size_max || count > count_max
}

/// A block, which a copy of the list may share. It is its own again once it is changed.
#[derive(Debug)]
pub(super) enum Block {
    Own(Packed),
    Shared(Arc<Packed>),
}

impl Block {
    pub(super) fn into_packed(self) -> Packed {
        match self {
            Block::Own(packed) => packed,
            Block::Shared(shared) => Arc::try_unwrap(shared).unwrap_or_else(|shared| Packed::clone(&shared)),
        }
    }

    /// Returns it for another list.
    pub(super) fn share(&mut self) -> Block {
        if let Block::Own(packed) = self {
            *self = Block::Shared(Arc::new(std::mem::take(packed)));
        }
        match self {
            Block::Shared(shared) => Block::Shared(shared.clone()),
            Block::Own(packed) => Block::Own(packed.clone()),
        }
    }

    #[cold]
    fn unshare(&mut self) {
        let block = std::mem::replace(self, Block::Own(Packed::new()));
        *self = Block::Own(block.into_packed());
    }
}

impl Deref for Block {
    type Target = Packed;

    #[inline]
    fn deref(&self) -> &Packed {
        match self {
            Block::Own(packed) => packed,
            Block::Shared(shared) => shared,
        }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut Packed {
        if let Block::Shared(_) = self {
            self.unshare();
        }
        match self {
            Block::Own(packed) => packed,
            Block::Shared(_) => unreachable!("it was made its own"),
        }
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        Block::Own(Packed::clone(self))
    }
}

/// One block of a large list.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) packed: Block,
    pub(super) count: u32,
}

impl Node {
    #[inline]
    pub(super) fn new(packed: Packed) -> Node {
        Node { count: packed.len() as u32, packed: Block::Own(packed) }
    }

    #[inline]
    pub(super) fn takes(&self, text: &[u8], limits: &Limits) -> bool {
        !exceeds(self.packed.as_bytes().len() + text.len() + ELEMENT_OVERHEAD, self.count as usize + 1, limits)
    }
}

/// The blocks of a large list; none is empty.
#[derive(Debug, Default)]
pub struct Nodes {
    pub(super) nodes: VecDeque<Node>,
    pub(super) len: usize,
    /// The bytes of the blocks.
    pub(super) bytes: usize,
}

impl Nodes {
    /// Inserts a node before the one with this index.
    #[inline]
    pub(super) fn put(&mut self, index: usize, node: Node) {
        self.len += node.count as usize;
        self.bytes += node.packed.bytes();
        self.nodes.insert(index, node);
    }

    /// Changes a node's block and updates the sums.
    pub(super) fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut Packed) -> R) -> R {
        let node = &mut self.nodes[index];
        self.bytes -= node.packed.bytes();
        self.len -= node.count as usize;
        let result = change(&mut node.packed);
        node.count = node.packed.len() as u32;
        self.bytes += node.packed.bytes();
        self.len += node.count as usize;
        result
    }

    pub(super) fn push(&mut self, end: End, text: &[u8], limits: &Limits) {
        let index = match end {
            End::Head => 0,
            End::Tail => self.nodes.len().saturating_sub(1),
        };
        if !self.nodes.get(index).is_some_and(|node| node.takes(text, limits)) {
            let place = if end == End::Head { 0 } else { self.nodes.len() };
            let mut packed = Packed::new();
            packed.push_back(text);
            return self.put(place, Node::new(packed));
        }
        let node = &mut self.nodes[index];
        self.bytes -= node.packed.bytes();
        match end {
            End::Head => node.packed.push_front(text),
            End::Tail => node.packed.push_back(text),
        }
        node.count += 1;
        self.bytes += node.packed.bytes();
        self.len += 1;
    }

    /// Returns the node of an index, and the index within it.
    pub(super) fn locate(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.len {
            return None;
        }
        if index <= self.len / 2 {
            let mut rest = index;
            let node = self.nodes.iter().position(|node| {
                let here = rest < node.count as usize;
                if !here {
                    rest -= node.count as usize;
                }
                here
            })?;
            Some((node, rest))
        } else {
            let mut start = self.len;
            let node = self.nodes.iter().rposition(|node| {
                start -= node.count as usize;
                start <= index
            })?;
            Some((node, index - start))
        }
    }

    /// Splits a node before a place.
    #[inline]
    pub(super) fn split(&mut self, index: usize, at: At) {
        let tail = self.change(index, |packed| packed.split_off(at));
        self.put(index + 1, Node::new(tail));
        if self.nodes[index].count == 0 {
            self.drain(index..index + 1);
        }
    }

    /// Takes nodes out.
    pub(super) fn drain(&mut self, range: std::ops::Range<usize>) -> Nodes {
        let mut taken = Nodes::default();
        for node in self.nodes.drain(range) {
            self.len -= node.count as usize;
            self.bytes -= node.packed.bytes();
            taken.len += node.count as usize;
            taken.bytes += node.packed.bytes();
            taken.nodes.push_back(node);
        }
        if self.nodes.capacity() > 64 && self.nodes.len() < self.nodes.capacity() / 4 {
            self.nodes.shrink_to(self.nodes.len() * 2);
        }
        taken
    }

    /// Inserts an element before or after the one at a place.
    pub(super) fn insert(&mut self, index: usize, at: At, before: bool, text: &[u8], limits: &Limits) {
        let place = if before { Some(at) } else { self.nodes[index].packed.next(at) };
        if self.nodes[index].takes(text, limits) {
            return self.change(index, |packed| packed.insert(place, &[text]));
        }
        let (own, beside) = match place {
            Some(at) if self.nodes[index].packed.first() == Some(at) => (index, index.checked_sub(1)),
            Some(at) => {
                self.split(index, at);
                (index + 1, Some(index))
            }
            None => (index + 1, None),
        };
        // Into the node beside it that has room, otherwise into a node of its own.
        match (beside, self.nodes.get(own)) {
            (Some(left), _) if self.nodes[left].takes(text, limits) => {
                self.change(left, |packed| packed.push_back(text))
            }
            (_, Some(right)) if right.takes(text, limits) => self.change(own, |packed| packed.push_front(text)),
            _ => {
                let mut packed = Packed::new();
                packed.push_back(text);
                self.put(own, Node::new(packed));
            }
        }
    }

    /// Replaces an element.
    pub(super) fn replace(&mut self, index: usize, at: At, text: &[u8]) {
        self.change(index, |packed| packed.replace(at, text));
        let node = &self.nodes[index];
        if node.count == 1 || node.packed.as_bytes().len() <= OUTGROWN {
            return;
        }
        // A node that became this long would be moved by each change: a long element gets a node of its own.
        if let Some(next) = node.packed.next(at) {
            self.split(index, next);
        }
        if self.nodes[index].packed.first() != Some(at) {
            self.split(index, at);
        }
    }

    /// Drops the nodes that have become empty; their blocks are small.
    #[inline]
    pub(super) fn sweep(&mut self) {
        let bytes = &mut self.bytes;
        self.nodes.retain(|node| {
            if node.count == 0 {
                *bytes -= node.packed.bytes();
            }
            node.count > 0
        });
    }
}
