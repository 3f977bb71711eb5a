//! Elements of a large sorted set in their order, with ranks: a B+tree of pointers.
//!
//! A leaf is a block of up to 64 pointers to elements, ordered by score and then by bytes; the elements themselves
//! belong to the table in which they are looked up, so a member is stored once. An inner node keeps, for each of up to
//! 32 children, the number of elements below it, its first element and that element's score. So a rank is a sum during
//! the descent, and only a tie of scores, or the last step in a leaf, reads an element itself.
//!
//! Elements that are inserted in order fill leaves completely; in any other order leaves are two thirds full: 8 to 12
//! bytes per element. A node that is less than a quarter full is merged with a neighbour that has room.
//!
//! Cost: a descent is four nodes for a million elements. Ranges go from leaf to leaf by descents by rank, one in 64
//! elements, so that a node needs no pointer to the next.

use std::cmp::Ordering;
use std::ops::Range;

use super::cell::{Alias, Cell};

/// The maximum number of elements in a leaf.
const LEAF: usize = 64;
/// The maximum number of children of an inner node.
const INNER: usize = 32;

/// A child's summary in its parent.
#[derive(Debug)]
struct Child {
    /// The number of elements below it, never 0.
    len: usize,
    /// The first of them and its score.
    first: Alias,
    score: f64,
    node: Node,
}

#[derive(Debug)]
enum Node {
    Leaf(Vec<Alias>),
    Inner(Vec<Child>),
}

impl Node {
    #[inline]
    fn leaf() -> Node {
        Node::Leaf(Vec::with_capacity(LEAF))
    }

    /// Returns the number of elements below.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Inner(children) => children.iter().map(|child| child.len).sum(),
        }
    }

    /// Returns the first element below; the node must have one.
    #[inline]
    fn first(&self) -> (Alias, f64) {
        match self {
            Node::Leaf(items) => (items[0], score_of(look(&items[0]))),
            Node::Inner(children) => (children[0].first, children[0].score),
        }
    }

    /// Returns the number of entries of the node itself, and the maximum.
    #[inline]
    fn fill(&self) -> (usize, usize) {
        match self {
            Node::Leaf(items) => (items.len(), LEAF),
            Node::Inner(children) => (children.len(), INNER),
        }
    }

    #[inline]
    fn into_child(self) -> Child {
        let (first, score) = self.first();
        Child { len: self.len(), first, score, node: self }
    }
}

/// Elements in order, with ranks.
#[derive(Debug)]
pub struct RankTree {
    root: Node,
    leaves: usize,
    inners: usize,
}

/// Returns the element of a pointer in a tree.
#[inline]
fn look(alias: &Alias) -> &Cell {
    // SAFETY: the caller that inserts an element promises that it lives, and changes only in its value, until it is
    // removed.
    unsafe { alias.cell() }
}

/// Returns the score of an element.
#[inline]
pub fn score_of(cell: &Cell) -> f64 {
    f64::from_bits(cell.word().unwrap_or_default())
}

/// Returns the order of sorted sets: by score, then by bytes. Scores are never NaN.
#[inline]
pub fn order(score: f64, member: &[u8], other_score: f64, other: &Cell) -> Ordering {
    score.partial_cmp(&other_score).unwrap_or(Ordering::Equal).then_with(|| member.cmp(other.key()))
}

impl Default for RankTree {
    #[inline]
    fn default() -> RankTree {
        RankTree::new()
    }
}

impl RankTree {
    /// Returns an empty tree.
    #[inline]
    pub fn new() -> RankTree {
        RankTree { root: Node::leaf(), leaves: 1, inners: 0 }
    }

    /// Returns the bytes of the nodes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.leaves * LEAF * size_of::<Alias>() + self.inners * INNER * size_of::<Child>()
    }

    /// Returns the number of elements.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.root.len()
    }

    /// Returns the number of elements at the start that are `before` something: true up to some place, and false from
    /// there on.
    pub fn position(&self, before: impl Fn(f64, &Cell) -> bool) -> usize {
        let (mut rank, mut node) = (0, &self.root);
        loop {
            match node {
                Node::Leaf(items) => {
                    return rank + items.partition_point(|item| before(score_of(look(item)), look(item)));
                }
                Node::Inner(children) => {
                    // The first child's first element is irrelevant: if it is not before, the place is in that child,
                    // too.
                    let at = children[1..].partition_point(|child| before(child.score, look(&child.first)));
                    rank += children[..at].iter().map(|child| child.len).sum::<usize>();
                    node = &children[at].node;
                }
            }
        }
    }

    /// Returns the number of elements before this one.
    #[inline]
    pub fn rank(&self, score: f64, member: &[u8]) -> usize {
        self.position(|other_score, other| order(score, member, other_score, other) == Ordering::Greater)
    }

    /// Returns the leaf with the element of this rank, which must exist, and the element's index in it.
    #[inline]
    fn leaf(&self, mut rank: usize) -> (&[Alias], usize) {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => return (items, rank),
                Node::Inner(children) => {
                    let at = child_of_rank(children, &mut rank);
                    node = &children[at].node;
                }
            }
        }
    }

    /// Returns the element of this rank, which must exist.
    #[inline]
    pub fn get(&self, rank: usize) -> &Cell {
        let (items, at) = self.leaf(rank);
        look(&items[at])
    }

    /// Visits the elements of these ranks, which must exist, in order.
    pub fn each(&self, ranks: Range<usize>, mut visit: impl FnMut(&Cell)) {
        let mut next = ranks.start;
        while next < ranks.end {
            let (items, at) = self.leaf(next);
            let end = items.len().min(at + ranks.end - next);
            items[at..end].iter().for_each(|item| visit(look(item)));
            next += end - at;
        }
    }

    /// Like [`each`](Self::each), from the last to the first.
    pub fn each_back(&self, ranks: Range<usize>, mut visit: impl FnMut(&Cell)) {
        let mut end = ranks.end;
        while end > ranks.start {
            let (items, at) = self.leaf(end - 1);
            let start = (at + 1).saturating_sub(end - ranks.start);
            items[start..=at].iter().rev().for_each(|item| visit(look(item)));
            end -= at + 1 - start;
        }
    }

    /// Returns whether the element of this rank may have this score and keep its place. May return false although it
    /// may.
    #[inline]
    pub fn keeps_place(&self, rank: usize, score: f64) -> bool {
        let (items, at) = self.leaf(rank);
        if at == 0 || at + 1 >= items.len() {
            return false;
        }
        // With equal scores, the caller has to compare the bytes.
        score_of(look(&items[at - 1])) < score && score < score_of(look(&items[at + 1]))
    }

    /// Adds an element.
    ///
    /// # Safety
    /// Until it is removed, or the tree is not used any more but to be dropped, the element is neither freed nor given
    /// a score that would put it elsewhere.
    #[inline]
    pub unsafe fn insert(&mut self, item: Alias) {
        let score = score_of(look(&item));
        if let Some(sibling) = insert(&mut self.root, item, score, &mut self.leaves, &mut self.inners) {
            let old = std::mem::replace(&mut self.root, Node::Inner(Vec::with_capacity(INNER)));
            self.inners += 1;
            if let Node::Inner(children) = &mut self.root {
                children.push(old.into_child());
                children.push(sibling);
            }
        }
    }

    /// Removes the element of this rank, which must exist.
    #[inline]
    pub fn remove(&mut self, rank: usize) -> Alias {
        let removed = remove(&mut self.root, rank, &mut self.leaves, &mut self.inners);
        while let Node::Inner(children) = &mut self.root
            && children.len() == 1
        {
            let only = children.pop().expect("one child").node;
            self.inners -= 1;
            self.root = only;
        }
        removed
    }
}

/// Returns the index of the child that contains the element of this rank; `rank` becomes its rank there.
#[inline]
fn child_of_rank(children: &[Child], rank: &mut usize) -> usize {
    let mut at = 0;
    while *rank >= children[at].len {
        *rank -= children[at].len;
        at += 1;
    }
    at
}

/// Returns the index at which a full node of `room` entries is split for one more at `at`: insertion in order, from
/// either end, leaves full nodes behind.
#[inline]
fn split_point(at: usize, room: usize) -> usize {
    match at {
        0 => 0,
        _ if at == room => room,
        _ => room / 2,
    }
}

/// Splits a full vector and inserts `item` at index `at` of both parts together. Returns the right part.
fn split<T>(items: &mut Vec<T>, at: usize, item: T, room: usize) -> Vec<T> {
    let split = split_point(at, room);
    let mut right = Vec::with_capacity(room);
    right.extend(items.drain(split..));
    if at > split || split == room {
        right.insert(at - split, item);
    } else {
        items.insert(at, item);
    }
    right
}

/// Inserts an element below `node`. If the node was split, returns the new node to its right.
fn insert(node: &mut Node, item: Alias, score: f64, leaves: &mut usize, inners: &mut usize) -> Option<Child> {
    let member = look(&item).key();
    match node {
        Node::Leaf(items) => {
            let at = items.partition_point(|other| {
                let other = look(other);
                order(score, member, score_of(other), other) == Ordering::Greater
            });
            if items.len() < LEAF {
                items.insert(at, item);
                return None;
            }
            *leaves += 1;
            Some(Node::Leaf(split(items, at, item, LEAF)).into_child())
        }
        Node::Inner(children) => {
            let at = children[1..]
                .partition_point(|child| order(score, member, child.score, look(&child.first)) == Ordering::Greater);
            let sibling = insert(&mut children[at].node, item, score, leaves, inners);
            let child = &mut children[at];
            child.len = child.len + 1 - sibling.as_ref().map_or(0, |sibling| sibling.len);
            (child.first, child.score) = child.node.first();
            let sibling = sibling?;
            if children.len() < INNER {
                children.insert(at + 1, sibling);
                return None;
            }
            *inners += 1;
            Some(Node::Inner(split(children, at + 1, sibling, INNER)).into_child())
        }
    }
}

fn remove(node: &mut Node, mut rank: usize, leaves: &mut usize, inners: &mut usize) -> Alias {
    match node {
        Node::Leaf(items) => items.remove(rank),
        Node::Inner(children) => {
            let at = child_of_rank(children, &mut rank);
            let child = &mut children[at];
            let removed = remove(&mut child.node, rank, leaves, inners);
            child.len -= 1;
            if child.len == 0 {
                forget(&children.remove(at).node, leaves, inners);
                return removed;
            }
            if rank == 0 {
                (child.first, child.score) = child.node.first();
            }
            let (fill, room) = child.node.fill();
            if fill < room / 4 {
                join(children, at, leaves, inners);
            }
            removed
        }
    }
}

#[inline]
fn forget(node: &Node, leaves: &mut usize, inners: &mut usize) {
    match node {
        Node::Leaf(_) => *leaves -= 1,
        Node::Inner(_) => *inners -= 1,
    }
}

/// Merges the child at `at`, which has few entries, with a neighbour that has room for them and more.
fn join(children: &mut Vec<Child>, at: usize, leaves: &mut usize, inners: &mut usize) {
    let (fill, room) = children[at].node.fill();
    let fits = |other: &Child| other.node.fill().0 + fill <= room / 4 * 3;
    let left = match at {
        _ if at > 0 && fits(&children[at - 1]) => at - 1,
        _ if children.get(at + 1).is_some_and(fits) => at,
        _ => return,
    };
    let right = children.remove(left + 1);
    forget(&right.node, leaves, inners);
    let left = &mut children[left];
    left.len += right.len;
    match (&mut left.node, right.node) {
        (Node::Leaf(items), Node::Leaf(more)) => items.extend(more),
        (Node::Inner(items), Node::Inner(more)) => items.extend(more),
        _ => unreachable!("all leaves are equally deep"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn cell(score: f64, member: &str) -> Cell {
        Cell::new(member.as_bytes(), None, Some(score.to_bits()))
    }

    /// Counts nodes and compares what parents know of their children.
    fn check_node(node: &Node, leaves: &mut usize, inners: &mut usize) -> usize {
        match node {
            Node::Leaf(items) => {
                *leaves += 1;
                assert_eq!(items.capacity(), LEAF);
                items.len()
            }
            Node::Inner(children) => {
                *inners += 1;
                assert!(children.len() >= 2 && children.capacity() == INNER || !children.is_empty());
                for child in children {
                    let (first, score) = child.node.first();
                    assert!(look(&first).key() == look(&child.first).key() && score == child.score);
                    assert_eq!(check_node(&child.node, leaves, inners), child.len);
                }
                node.len()
            }
        }
    }

    fn check(tree: &RankTree, len: usize) {
        let (mut leaves, mut inners) = (0, 0);
        assert_eq!(check_node(&tree.root, &mut leaves, &mut inners), len);
        assert_eq!((tree.leaves, tree.inners, tree.len()), (leaves, inners, len));
    }

    /// Scores and members as a model keeps them: the bits of what is not negative are in order.
    type Model = BTreeSet<(u64, String)>;

    fn random_work(seed: u64, scores: u64, members: u64, steps: usize) {
        let mut state = seed;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        let mut tree = RankTree::new();
        let mut model = Model::new();
        let mut cells = std::collections::HashMap::<(u64, String), Cell>::new();
        for step in 0..steps {
            // It grows for a while, then shrinks, then grows again.
            let grows = step * 3 / steps != 1;
            if below(10) < if grows { 8 } else { 1 } {
                let key = ((below(scores) as f64 / 4.0).to_bits(), format!("m{}", below(members)));
                if model.insert(key.clone()) {
                    let cell = cell(f64::from_bits(key.0), &key.1);
                    let alias = cell.alias();
                    cells.insert(key, cell);
                    // SAFETY: the cell is removed from the tree before it is from the map.
                    unsafe { tree.insert(alias) };
                }
            } else if !model.is_empty() {
                let rank = below(model.len() as u64) as usize;
                let key = model.iter().nth(rank).expect("within the length").clone();
                assert_eq!(tree.rank(f64::from_bits(key.0), key.1.as_bytes()), rank);
                assert_eq!(tree.get(rank).key(), key.1.as_bytes());
                tree.remove(rank);
                model.remove(&key);
                cells.remove(&key);
            }
            if step % 997 == 0 {
                check(&tree, model.len());
                let all: Vec<_> = model.iter().collect();
                let (from, to) = (below(all.len() as u64 + 1) as usize, below(all.len() as u64 + 1) as usize);
                let range = from.min(to)..from.max(to);
                let (mut forth, mut back) = (Vec::new(), Vec::new());
                tree.each(range.clone(), |cell| forth.push((cell.word().unwrap(), cell.key().to_vec())));
                tree.each_back(range.clone(), |cell| back.push((cell.word().unwrap(), cell.key().to_vec())));
                back.reverse();
                let expected: Vec<_> =
                    all[range].iter().map(|(score, member)| (*score, member.clone().into_bytes())).collect();
                assert!(forth == expected && back == expected);
                let score = below(scores) as f64 / 4.0;
                let expected = model.iter().filter(|(bits, _)| f64::from_bits(*bits) <= score).count();
                assert_eq!(tree.position(|other, _| other <= score), expected);
            }
        }
        while !model.is_empty() {
            let rank = below(model.len() as u64) as usize;
            let key = model.iter().nth(rank).expect("within the length").clone();
            assert_eq!(look(&tree.remove(rank)).key(), key.1.as_bytes());
            model.remove(&key);
        }
        check(&tree, 0);
        assert_eq!(tree.leaves, 1);
    }

    #[test]
    fn an_ordered_set_does_the_same() {
        random_work(1, 1_000_000, 1_000_000, 12_000);
        random_work(2, 3, 20_000, 8_000);
        random_work(3, 1, 20_000, 8_000);
        random_work(4, 500, 4, 3_000);
    }

    #[test]
    fn elements_in_order_fill_their_leaves() {
        let cells: Vec<Cell> = (0..10_000).map(|number| cell(f64::from(number), "member")).collect();
        for reverse in [false, true] {
            let mut tree = RankTree::new();
            for at in 0..cells.len() {
                let at = if reverse { cells.len() - 1 - at } else { at };
                // SAFETY: the cells outlive the tree.
                unsafe { tree.insert(cells[at].alias()) };
            }
            check(&tree, cells.len());
            assert_eq!(tree.leaves, cells.len().div_ceil(LEAF));
            assert!(tree.bytes() < 10 * cells.len());
        }
    }
}
