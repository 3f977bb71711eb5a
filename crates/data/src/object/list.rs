//! Lists.
//!
//! A small list is one block; a list beyond `list-max-listpack-size` is a sequence of blocks of at most that size (8
//! KiB), like Redis's quicklist. The sequence is an array of pointers, each with its block's number of elements, so an
//! index is found by adding up adjacent numbers, from the nearer end, and scanning one block.
//!
//! Costs: a push or pop at either end moves at most one block's bytes. An insertion in the middle moves a block and a
//! part of the array: 24 bytes for each 8 KiB of elements. Unlike the other types a list returns to its small form, as
//! in Redis 7.2: when one block is left that is at most half full.
//!
//! The blocks of a large list can be shared with a copy of it, at some tens of nanoseconds for each; then whoever changes
//! a block copies it first, if the other one still has it.

mod nodes;

use std::ptr::NonNull;

use super::limits::Limits;
use super::packed::{At, Element, integer};
use super::{Kind, Packed, kind_of};
use crate::rdb::encode::{self, Form, Out};
pub use nodes::Nodes;
use nodes::{Node, exceeds, node_limits};

const PACKED: u8 = 0;
const NODES: u8 = 1;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first element.
    Head,
    /// The last element.
    Tail,
}

/// A list.
#[derive(Debug)]
pub enum List {
    /// A small list.
    Packed(Packed),
    /// A large list.
    Nodes(Box<Nodes>),
}

/// The place of an element; valid until the list changes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    node: usize,
    at: At,
}

/// The elements from a place on, towards either end.
pub struct Iter<'l> {
    list: &'l List,
    next: Option<Place>,
    towards: End,
}

impl<'l> Iterator for Iter<'l> {
    type Item = Element<'l>;

    #[inline]
    fn next(&mut self) -> Option<Element<'l>> {
        let place = self.next?;
        let packed = self.list.block(place.node)?;
        let (element, at) = match self.towards {
            End::Tail => packed.read(place.at),
            End::Head => (packed.get(place.at), packed.previous(place.at)),
        };
        self.next = match (at, self.towards) {
            (Some(at), _) => Some(Place { at, ..place }),
            (None, End::Tail) => self.list.first_of(place.node + 1),
            (None, End::Head) => place.node.checked_sub(1).and_then(|node| self.list.last_of(node)),
        };
        Some(element)
    }
}

impl List {
    #[inline]
    fn block(&self, node: usize) -> Option<&Packed> {
        match self {
            List::Packed(packed) => (node == 0).then_some(packed),
            List::Nodes(nodes) => nodes.nodes.get(node).map(|node| &*node.packed),
        }
    }

    #[inline]
    fn blocks(&self) -> usize {
        match self {
            List::Packed(_) => 1,
            List::Nodes(nodes) => nodes.nodes.len(),
        }
    }

    #[inline]
    fn first_of(&self, node: usize) -> Option<Place> {
        self.block(node)?.first().map(|at| Place { node, at })
    }

    #[inline]
    fn last_of(&self, node: usize) -> Option<Place> {
        self.block(node)?.last().map(|at| Place { node, at })
    }

    /// Converts an index as Redis counts it, from the end if negative.
    #[inline]
    pub fn index(&self, index: i64) -> Option<usize> {
        let len = self.len() as i64;
        let index = if index < 0 { index.checked_add(len)? } else { index };
        (0..len).contains(&index).then_some(index as usize)
    }

    #[inline]
    fn seek(&self, index: usize) -> Option<Place> {
        match self {
            List::Packed(packed) => packed.seek(index as i64).map(|at| Place { node: 0, at }),
            List::Nodes(nodes) => {
                let (node, index) = nodes.locate(index)?;
                nodes.nodes[node].packed.seek(index as i64).map(|at| Place { node, at })
            }
        }
    }

    /// Returns the element with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Element<'_>> {
        self.seek(index).and_then(|place| self.block(place.node).map(|packed| packed.get(place.at)))
    }

    /// Calls `see` with up to `count` elements from an index on.
    pub fn visit(&self, index: usize, mut count: usize, mut see: impl FnMut(Element<'_>)) {
        let Some(Place { mut node, at }) = self.seek(index) else { return };
        let mut next = Some(at);
        while let Some(packed) = self.block(node) {
            while let Some(at) = next {
                if count == 0 {
                    return;
                }
                let element;
                (element, next) = packed.read(at);
                see(element);
                count -= 1;
            }
            node += 1;
            next = self.block(node).and_then(Packed::first);
        }
    }

    /// Returns all elements, starting at this end.
    #[inline]
    pub fn iter(&self, from: End) -> Iter<'_> {
        let (next, towards) = match from {
            End::Head => (self.first_of(0), End::Tail),
            End::Tail => (self.blocks().checked_sub(1).and_then(|last| self.last_of(last)), End::Head),
        };
        Iter { list: self, next, towards }
    }

    /// Converts the list to its large form if these elements would not fit into the small one.
    #[inline]
    pub fn make_room(&mut self, texts: &[&[u8]], limits: &Limits) {
        let List::Packed(packed) = self else { return };
        let more: usize = texts.iter().map(|text| text.len()).sum();
        if !exceeds(packed.as_bytes().len() + more, packed.len() + texts.len(), limits) {
            return;
        }
        let mut nodes = Box::<Nodes>::default();
        if !packed.is_empty() {
            nodes.put(0, Node::new(std::mem::take(packed)));
        }
        *self = List::Nodes(nodes);
    }

    /// Converts the list to its small form if elements were removed and few are left.
    fn settle(&mut self, limits: &Limits) {
        let List::Nodes(nodes) = self else { return };
        if nodes.nodes.len() > 1 {
            return;
        }
        let (size_max, count_max) = node_limits(limits);
        let size_max = if count_max == usize::MAX { size_max / 2 } else { usize::MAX };
        let small = nodes
            .nodes
            .front()
            .is_none_or(|node| node.packed.as_bytes().len() <= size_max && node.count as usize <= count_max / 2);
        if small {
            let packed = nodes.nodes.pop_front().map_or_else(Packed::new, |node| node.packed.into_packed());
            *self = List::Packed(packed);
        }
    }

    /// Adds an element at an end; [`make_room`](Self::make_room) has been called for it.
    #[inline]
    pub fn push(&mut self, end: End, text: &[u8], limits: &Limits) {
        match (self, end) {
            (List::Packed(packed), End::Head) => packed.push_front(text),
            (List::Packed(packed), End::Tail) => packed.push_back(text),
            (List::Nodes(nodes), end) => nodes.push(end, text, limits),
        }
    }

    /// Passes up to `count` elements from an end to `visit` and removes them. The part that is not freed immediately is
    /// returned.
    pub fn pop(&mut self, end: End, count: usize, visit: &mut dyn FnMut(Element<'_>), limits: &Limits) -> Option<List> {
        if count == 1 && self.pop_one(end, visit) {
            self.settle(limits);
            return None;
        }
        self.iter(end).take(count).for_each(visit);
        let count = count.min(self.len());
        let start = if end == End::Head { 0 } else { self.len() - count };
        self.remove_range(start, count, limits)
    }

    /// Moves the element at an end to an end, and passes it to `visit`.
    pub fn rotate(&mut self, from: End, to: End, visit: &mut dyn FnMut(&[u8]), limits: &Limits) {
        let mut text = smallvec::SmallVec::<[u8; 128]>::new();
        let mut keep = |element: Element<'_>| text.extend_from_slice(element.text(&mut itoa::Buffer::new()));
        if !self.pop_one(from, &mut keep) {
            self.iter(from).take(1).for_each(keep);
            let at = if from == End::Head { 0 } else { self.len().saturating_sub(1) };
            drop(self.take_range(at, 1));
        }
        self.make_room(&[&text], limits);
        self.push(to, &text, limits);
        // Only now: a list that is empty for a moment keeps its form.
        self.settle(limits);
        visit(&text);
    }

    /// Passes the element at an end to `visit` and removes it. Returns false, without any effect, if a block would
    /// become empty.
    fn pop_one(&mut self, end: End, visit: &mut dyn FnMut(Element<'_>)) -> bool {
        let mut pop = |packed: &mut Packed| {
            let at = if end == End::Head { packed.first() } else { packed.last() };
            if let Some(at) = at {
                visit(packed.get(at));
                packed.remove(at, 1);
            }
            at.is_some()
        };
        let nodes = match self {
            List::Packed(packed) => return pop(packed),
            List::Nodes(nodes) => nodes,
        };
        let node = if end == End::Head { nodes.nodes.front_mut() } else { nodes.nodes.back_mut() };
        let Some(node) = node.filter(|node| node.count > 1) else { return false };
        nodes.bytes -= node.packed.bytes();
        pop(&mut node.packed);
        node.count -= 1;
        nodes.bytes += node.packed.bytes();
        nodes.len -= 1;
        true
    }

    /// Removes this many elements from an index on. Whole nodes are returned, as freeing them may take long.
    pub fn remove_range(&mut self, start: usize, count: usize, limits: &Limits) -> Option<List> {
        let taken = self.take_range(start, count);
        self.settle(limits);
        taken
    }

    /// Like [`remove_range`](Self::remove_range), in the present form.
    fn take_range(&mut self, start: usize, mut count: usize) -> Option<List> {
        let mut taken = None;
        match self {
            List::Packed(packed) => {
                if count > 0
                    && let Some(at) = packed.seek(start as i64)
                {
                    packed.remove(at, count);
                }
                return None;
            }
            List::Nodes(nodes) => {
                let (mut index, skipped) = nodes.locate(start)?;
                if skipped > 0 {
                    let here = count.min(nodes.nodes[index].count as usize - skipped);
                    nodes.change(index, |packed| {
                        packed.seek(skipped as i64).and_then(|at| packed.remove(at, here));
                    });
                    count -= here;
                    index += 1;
                }
                let mut end = index;
                while let Some(node) = nodes.nodes.get(end)
                    && node.count as usize <= count
                {
                    count -= node.count as usize;
                    end += 1;
                }
                if end > index {
                    taken = Some(List::Nodes(Box::new(nodes.drain(index..end))));
                }
                if count > 0 && index < nodes.nodes.len() {
                    nodes.change(index, |packed| packed.first().and_then(|at| packed.remove(at, count)));
                }
            }
        }
        taken
    }

    /// Replaces an element. Returns false if it does not exist.
    #[inline]
    pub fn set(&mut self, index: usize, text: &[u8], limits: &Limits) -> bool {
        // As in Redis, before it is known whether there is such an element.
        self.make_room(&[text], limits);
        let Some(place) = self.seek(index) else { return false };
        match self {
            List::Packed(packed) => packed.replace(place.at, text),
            List::Nodes(nodes) => nodes.replace(place.node, place.at, text),
        }
        self.settle(limits);
        true
    }

    /// Inserts an element before or after the first one equal to `pivot`. Returns false if there is none.
    pub fn insert(&mut self, pivot: &[u8], before: bool, text: &[u8], limits: &Limits) -> bool {
        // As in Redis, before the pivot is searched for.
        self.make_room(&[text], limits);
        let Some(place) = self.find(pivot) else { return false };
        match self {
            List::Packed(packed) => {
                let at = if before { Some(place.at) } else { packed.next(place.at) };
                packed.insert(at, &[text]);
            }
            List::Nodes(nodes) => nodes.insert(place.node, place.at, before, text, limits),
        }
        true
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<Place> {
        (0..self.blocks()).find_map(|node| self.block(node)?.find(text, 1).map(|at| Place { node, at }))
    }

    /// Removes up to `max` elements that equal `text`, starting at an end. Returns the number removed.
    pub fn remove(&mut self, text: &[u8], from: End, max: usize, limits: &Limits) -> usize {
        let value = integer(text);
        let mut removed = 0;
        match self {
            List::Packed(packed) => removed = remove_in(packed, text, value, from, max),
            List::Nodes(nodes) => {
                let blocks = nodes.nodes.len();
                for step in 0..blocks {
                    if removed == max {
                        break;
                    }
                    let index = if from == End::Head { step } else { blocks - 1 - step };
                    if nodes.nodes[index].packed.find(text, 1).is_some() {
                        removed += nodes.change(index, |packed| remove_in(packed, text, value, from, max - removed));
                    }
                }
                if removed > 0 {
                    nodes.sweep();
                }
            }
        }
        if removed > 0 {
            self.settle(limits);
        }
        removed
    }

    /// Visits the indices of the elements that equal this text, from the first on, until `visit` returns false.
    pub fn each_index(&self, text: &[u8], mut visit: impl FnMut(usize) -> bool) {
        let mut index = 0;
        for packed in (0..self.blocks()).filter_map(|node| self.block(node)) {
            let (mut place, mut here) = (packed.first(), index);
            while let Some((at, passed)) = packed.search(place, text, 1) {
                if !visit(here + passed) {
                    return;
                }
                place = packed.next(at);
                here += passed + 1;
            }
            index += packed.len();
        }
    }

    /// Lets `copy`, which had no elements at first, have up to `count` more blocks of the list, from this block on.
    /// Returns the block to go on from, or [`None`] at the end. The list is not changed meanwhile; afterwards either can
    /// be.
    pub fn share(&mut self, copy: &mut List, from: usize, count: usize) -> Option<usize> {
        let List::Nodes(nodes) = self else {
            *copy = self.copy();
            return None;
        };
        if !matches!(copy, List::Nodes(_)) {
            *copy = List::Nodes(Box::default());
        }
        if let List::Nodes(into) = copy {
            for node in nodes.nodes.iter_mut().skip(from).take(count) {
                into.put(into.nodes.len(), Node { packed: node.packed.share(), count: node.count });
            }
        }
        Some(from + count).filter(|next| *next < nodes.nodes.len())
    }

    /// Returns the list of these blocks, which are not empty.
    pub fn of_blocks(blocks: impl IntoIterator<Item = Packed>, limits: &Limits) -> List {
        let mut nodes = Box::<Nodes>::default();
        for packed in blocks {
            nodes.put(nodes.nodes.len(), Node::new(packed));
        }
        match nodes.nodes.len() {
            1 if !exceeds(nodes.nodes[0].packed.as_bytes().len(), nodes.len, limits) => {
                List::Packed(nodes.nodes.pop_front().map_or_else(Packed::new, |node| node.packed.into_packed()))
            }
            0 => List::empty(),
            _ => List::Nodes(nodes),
        }
    }
}

/// Removes up to `max` elements of a block that equal `text`.
fn remove_in(packed: &mut Packed, text: &[u8], value: Option<i64>, from: End, max: usize) -> usize {
    let mut removed = 0;
    let mut next = if from == End::Head { packed.first() } else { packed.last() };
    while let Some(at) = next
        && removed < max
    {
        let hit = packed.get(at).is(text, value);
        removed += usize::from(hit);
        next = match (from, hit) {
            (End::Head, true) => packed.remove(at, 1),
            (End::Head, false) => packed.next(at),
            (End::Tail, hit) => {
                let before = packed.previous(at);
                if hit {
                    packed.remove(at, 1);
                }
                before
            }
        };
    }
    removed
}

impl Kind for List {
    const TAG: u8 = 0;
    const NAME: &'static str = "list";

    #[inline]
    fn empty() -> List {
        List::Packed(Packed::new())
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            List::Packed(packed) => packed.len(),
            List::Nodes(nodes) => nodes.len,
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        match self {
            List::Packed(packed) => packed.bytes(),
            List::Nodes(nodes) => size_of::<Nodes>() + nodes.nodes.capacity() * size_of::<Node>() + nodes.bytes,
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            List::Packed(_) => "listpack",
            List::Nodes(_) => "quicklist",
        }
    }

    fn copy(&self) -> List {
        match self {
            List::Packed(packed) => List::Packed(packed.clone()),
            List::Nodes(nodes) => {
                List::Nodes(Box::new(Nodes { nodes: nodes.nodes.clone(), len: nodes.len, bytes: nodes.bytes }))
            }
        }
    }

    fn dump(&self, form: Form, out: &mut Out<'_>) {
        out.push(encode::TYPE_LIST_QUICKLIST_2);
        encode::put_len(self.blocks(), out);
        for block in (0..self.blocks()).filter_map(|node| self.block(node)) {
            encode::put_len(encode::NODE_LISTPACK, out);
            form.put_string(block.as_bytes(), out);
            out.end_part();
        }
    }

    #[inline]
    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            List::Packed(packed) => (PACKED, packed.into_raw()),
            List::Nodes(nodes) => (NODES, NonNull::from(Box::leak(nodes)).cast()),
        }
    }

    #[inline]
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> List {
        // SAFETY: passed on; the form says what it was.
        unsafe {
            match form {
                PACKED => List::Packed(Packed::from_raw(start)),
                _ => List::Nodes(Box::from_raw(start.cast().as_ptr())),
            }
        }
    }

    kind_of!(List);
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn texts(list: &List, from: End) -> Vec<Vec<u8>> {
        list.iter(from).map(|element| element.text(&mut itoa::Buffer::new()).to_vec()).collect()
    }

    /// Checks that the numbers in nodes are right, and that no node is empty.
    fn check(list: &List) {
        if let List::Nodes(nodes) = list {
            assert_eq!(nodes.len, nodes.nodes.iter().map(|node| node.packed.len()).sum::<usize>());
            assert!(nodes.nodes.iter().all(|node| node.count as usize == node.packed.len() && node.count > 0));
            assert_eq!(nodes.bytes, nodes.nodes.iter().map(|node| node.packed.bytes()).sum::<usize>());
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(bool, Vec<u8>),
        Pop(bool, usize),
        Set(usize, Vec<u8>),
        Insert(usize, bool, Vec<u8>),
        Remove(usize, bool, usize),
        Cut(usize, usize),
        Rotate(bool, bool),
    }

    /// Numbers, short texts that repeat, long ones, and some that fill a node alone.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            1 => (30_000..50_000_usize).prop_map(|len| vec![b'z'; len]),
            30 => (0..20_u32).prop_map(|number| number.to_string().into_bytes()),
            30 => (0..4_usize, 1..300_usize).prop_map(|(letter, len)| vec![b'a' + letter as u8; len]),
            15 => (1000..9000_usize).prop_map(|len| vec![b'x'; len]),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (any::<bool>(), text()).prop_map(|(head, text)| Step::Push(head, text)),
            1 => (any::<bool>(), 1..30_usize).prop_map(|(head, count)| Step::Pop(head, count)),
            2 => (any::<usize>(), text()).prop_map(|(at, text)| Step::Set(at, text)),
            3 => (any::<usize>(), any::<bool>(), text()).prop_map(|(at, before, text)| Step::Insert(at, before, text)),
            1 => (any::<usize>(), any::<bool>(), 0..5_usize).prop_map(|(at, head, max)| Step::Remove(at, head, max)),
            1 => (any::<usize>(), 0..40_usize).prop_map(|(at, count)| Step::Cut(at, count)),
            2 => (any::<bool>(), any::<bool>()).prop_map(|(from, to)| Step::Rotate(from, to)),
        ]
    }

    fn end(head: bool) -> End {
        if head { End::Head } else { End::Tail }
    }

    #[test]
    fn a_list_and_one_that_shares_its_blocks_change_apart() {
        let limits = Limits::new();
        for count in [5, 3_000] {
            let mut list = List::empty();
            for number in 0..count {
                let text = format!("{number:>30}").into_bytes();
                list.make_room(&[&text], &limits);
                list.push(End::Tail, &text, &limits);
            }
            let before = texts(&list, End::Head);
            let (mut copy, mut from, mut slices) = (List::empty(), Some(0), 0);
            while let Some(here) = from {
                from = list.share(&mut copy, here, 4);
                slices += 1;
            }
            assert!(slices == 1 || count > 5);
            check(&copy);
            assert_eq!((texts(&copy, End::Head), copy.len()), (before.clone(), list.len()));
            list.push(End::Head, b"first", &limits);
            list.set(count as usize / 2, b"middle", &limits);
            drop(list.pop(End::Tail, 2, &mut |_| {}, &limits));
            assert_eq!(texts(&copy, End::Head), before);
            check(&list);
            let changed = texts(&list, End::Head);
            drop(copy.pop(End::Head, count as usize / 2, &mut |_| {}, &limits));
            check(&copy);
            drop(copy);
            assert_eq!(texts(&list, End::Head), changed);
            while list.len() > 0 {
                drop(list.pop(End::Head, 100, &mut |_| {}, &limits));
            }
        }
    }

    #[test]
    fn a_rotation_leaves_a_list_in_its_form() {
        let limits = Limits::new();
        limits.list_size.set(1);
        let mut list = List::Packed(Packed::new());
        for text in [&b"a"[..], b"b"] {
            list.make_room(&[text], &limits);
            list.push(End::Tail, text, &limits);
        }
        drop(list.pop(End::Tail, 1, &mut |_| {}, &limits));
        assert_eq!(list.encoding(), "quicklist");
        list.rotate(End::Tail, End::Head, &mut |_| {}, &limits);
        assert_eq!((list.encoding(), texts(&list, End::Head)), ("quicklist", vec![b"a".to_vec()]));
    }

    fn apply(list: &mut List, model: &mut VecDeque<Vec<u8>>, step: Step) {
        let place = |at: usize, len: usize| if len == 0 { 0 } else { at % len };
        match step {
            Step::Rotate(from, to) => {
                let Some(text) = (if from { model.pop_front() } else { model.pop_back() }) else { return };
                list.rotate(end(from), end(to), &mut |moved| assert_eq!(moved, text), &Limits::new());
                if to { model.push_front(text) } else { model.push_back(text) }
            }
            Step::Push(head, text) => {
                list.make_room(&[&text], &Limits::new());
                list.push(end(head), &text, &Limits::new());
                if head { model.push_front(text) } else { model.push_back(text) }
            }
            Step::Pop(head, count) => {
                let mut popped = Vec::new();
                list.pop(
                    end(head),
                    count,
                    &mut |element| popped.push(element.text(&mut itoa::Buffer::new()).to_vec()),
                    &Limits::new(),
                );
                let expected: Vec<_> =
                    (0..count).map_while(|_| if head { model.pop_front() } else { model.pop_back() }).collect();
                assert_eq!(popped, expected);
            }
            Step::Set(at, text) => {
                let index = place(at, model.len());
                assert_eq!(list.set(index, &text, &Limits::new()), index < model.len());
                if let Some(old) = model.get_mut(index) {
                    *old = text;
                }
            }
            Step::Insert(at, before, text) => {
                let pivot = model.get(place(at, model.len())).cloned().unwrap_or_else(|| b"none".to_vec());
                let found = model.iter().position(|element| *element == pivot);
                assert_eq!(list.insert(&pivot, before, &text, &Limits::new()), found.is_some());
                if let Some(index) = found {
                    model.insert(index + usize::from(!before), text);
                }
            }
            Step::Remove(at, head, max) => {
                let Some(text) = model.get(place(at, model.len())).cloned() else { return };
                let mut left = max;
                let mut keep = |element: &Vec<u8>| {
                    let gone = left > 0 && *element == text;
                    left -= usize::from(gone);
                    !gone
                };
                if head {
                    model.retain(&mut keep);
                } else {
                    let mut turned: VecDeque<_> = model.drain(..).rev().collect();
                    turned.retain(&mut keep);
                    model.extend(turned.into_iter().rev());
                }
                assert_eq!(list.remove(&text, end(head), max, &Limits::new()), max - left);
            }
            Step::Cut(at, count) => {
                let start = place(at, model.len());
                list.remove_range(start, count, &Limits::new());
                model.drain(start..model.len().min(start + count));
            }
        }
        check(list);
        assert_eq!(list.len(), model.len());
    }

    proptest! {
        #[test]
        fn a_deque_does_the_same(steps in proptest::collection::vec(step(), 0..400)) {
            let (mut list, mut model) = (List::empty(), VecDeque::new());
            for step in steps {
                apply(&mut list, &mut model, step);
            }
            let mut expected: Vec<Vec<u8>> = model.into();
            prop_assert_eq!(texts(&list, End::Head), expected.clone());
            prop_assert_eq!(texts(&list.copy(), End::Head), expected.clone());
            for index in [0, expected.len() / 3, expected.len() / 2, expected.len().saturating_sub(1), expected.len()] {
                let found = list.get(index).map(|element| element.text(&mut itoa::Buffer::new()).to_vec());
                prop_assert_eq!(found, expected.get(index).cloned());
                let mut rest = Vec::new();
                list.visit(index, usize::MAX, |e| rest.push(e.text(&mut itoa::Buffer::new()).to_vec()));
                prop_assert_eq!(&rest[..], expected.get(index..).unwrap_or_default());
                rest.clear();
                list.visit(index, 3, |e| rest.push(e.text(&mut itoa::Buffer::new()).to_vec()));
                prop_assert_eq!(&rest[..], expected.get(index..expected.len().min(index + 3)).unwrap_or_default());
            }
            expected.reverse();
            prop_assert_eq!(texts(&list, End::Tail), expected);
        }
    }

    #[test]
    fn a_list_changes_its_form_where_redis_does() {
        let mut list = List::empty();
        let push = |list: &mut List, text: &[u8]| {
            list.make_room(&[text], &Limits::new());
            list.push(End::Tail, text, &Limits::new());
        };
        // 8,192 bytes in all: the head and end take 7, each element 2 + 2 more than itself.
        (0..8).for_each(|_| push(&mut list, &[b'v'; 1000]));
        assert_eq!(list.encoding(), "listpack");
        push(&mut list, &[b'v'; 200]);
        assert_eq!(list.encoding(), "quicklist");
        list.pop(End::Tail, 4, &mut |_| {}, &Limits::new());
        assert_eq!((list.encoding(), list.len()), ("quicklist", 5));
        list.pop(End::Tail, 1, &mut |_| {}, &Limits::new());
        assert_eq!((list.encoding(), list.len()), ("listpack", 4));
        list.set(2, &[b'v'; 9000], &Limits::new());
        assert_eq!(list.encoding(), "quicklist");
        list.remove(&[b'v'; 9000], End::Head, 9, &Limits::new());
        assert_eq!((list.encoding(), list.len()), ("listpack", 3));
    }
}
