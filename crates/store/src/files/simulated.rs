//! A disk in memory that fails as real ones do, for tests.
//!
//! Every change is an operation with a number: a [`Plan`] says at which the machine stops or an error occurs. What is
//! not synced is undecided until [`Disk::crash`] makes the disk that is found afterwards:
//!
//! - of a file's changes since the last sync, each page has those up to some point of its own, possibly torn within one,
//!   and the length is one that it had on the way; what lies before it and in no kept page is zeros. With
//!   [`Plan::keeps_order`] all pages and the length have the same point, as on file systems that write data before
//!   lengths;
//! - of a directory's changes since its last sync any may be missing, the others are there in order;
//! - after a failed sync the changes before it are decided at once, invisibly: later syncs do not repair them.
//!
//! All decisions follow from the seed.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Entry, EntryKind, File, Files, Lock};

/// Runs a test with one seed after the other, on some threads, until it has made so many disks, or as many as
/// `SLUICEGATE_DISKS` says; the first seed is `SLUICEGATE_SEED`. For a seed the test returns the number of disks on which
/// something went wrong, or could have: one for each place at which the machine stopped.
pub(crate) fn on_disks(count: u64, threads: usize, test: impl Fn(u64) -> u64 + Sync) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let wanted = number("SLUICEGATE_DISKS").unwrap_or(count);
    let (first, start) = (number("SLUICEGATE_SEED").unwrap_or(0), Instant::now());
    let (next, disks) = (AtomicU64::new(first), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let work = || {
            while disks.load(Ordering::Relaxed) < wanted {
                disks.fetch_add(test(next.fetch_add(1, Ordering::Relaxed)), Ordering::Relaxed);
            }
        };
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let (disks, next) = (disks.into_inner(), next.into_inner());
    println!("{disks} disks, seeds {first} to {}, {:.1} s", next - 1, start.elapsed().as_secs_f64());
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The machine stops before the operation of this number; the first is 0.
    pub(crate) crash_at: Option<u64>,
    /// The operation of this number fails, once, with this error (of `libc`).
    pub(crate) error_at: Option<(u64, i32)>,
    /// The number of bytes of all files, after which the disk is full.
    pub(crate) space: Option<u64>,
    /// Whether writes may write less than they are given.
    pub(crate) writes_short: bool,
    /// The time that it takes to sync a file. What is written meanwhile is not synced by it.
    pub(crate) sync_takes: Duration,
    pub(crate) page_bytes: usize,
    pub(crate) keeps_order: bool,
    /// Whether a file may have several names.
    pub(crate) has_links: bool,
    /// Whether the disk is kept as it is whenever a file gets a name with this end.
    pub(crate) kept_at: Option<&'static [u8]>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            crash_at: None,
            error_at: None,
            space: None,
            writes_short: false,
            sync_takes: Duration::ZERO,
            page_bytes: 4096,
            keeps_order: false,
            has_links: true,
            kept_at: None,
        }
    }
}

/// A directory of the disk; clones are the same one.
#[derive(Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
    node: usize,
}

struct State {
    plan: Plan,
    random: u64,
    operations: u64,
    nodes: Vec<Node>,
    locked: HashSet<(usize, Vec<u8>)>,
    /// See [`Plan::kept_at`].
    images: Vec<Disk>,
}

#[derive(Clone)]
enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}

/// A file: what readers see, what is on the disk for certain, and the changes between the two.
#[derive(Clone, Default)]
struct FileNode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

type Names = BTreeMap<Vec<u8>, usize>;

#[derive(Clone, Default)]
struct DirectoryNode {
    seen: Names,
    durable: Names,
    changes: Vec<NameChange>,
}

#[derive(Clone)]
struct NameChange {
    removed: Option<Vec<u8>>,
    added: Option<(Vec<u8>, usize)>,
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, node)) = &self.added {
            names.insert(name.clone(), *node);
        }
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(at, written) => {
                let end = at + written.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at..end].copy_from_slice(written);
            }
            Change::Truncate(len) => bytes.resize(*len, 0),
        }
    }

    /// Returns a change as far as it came when it was torn.
    fn torn(&self, len: usize) -> Option<Change> {
        match self {
            Change::Write(at, written) => Some(Change::Write(*at, written[..len.min(written.len())].to_vec())),
            Change::Truncate(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Change::Write(_, written) => written.len(),
            Change::Truncate(_) => 0,
        }
    }
}

impl FileNode {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.changes.push(change);
    }

    /// Returns what is on the disk if nothing is lost.
    fn with_changes(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.changes.iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }

    /// Decides what is on the disk.
    fn decided(&self, plan: &Plan, below: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
        let count = self.changes.len();
        // The contents after some changes and a part of the next one.
        let mut version = |from: &[Change]| -> Vec<u8> {
            let whole = below(count + 1);
            let mut bytes = self.durable.clone();
            from[..whole].iter().for_each(|change| change.apply(&mut bytes));
            if let Some(next) = from.get(whole) {
                let torn = next.torn(below(next.bytes() + 1));
                torn.into_iter().for_each(|change| change.apply(&mut bytes));
            }
            bytes
        };
        let mut bytes = version(&self.changes);
        if count == 0 || plan.keeps_order {
            return bytes;
        }
        let pages = self.seen.len().max(bytes.len()).div_ceil(plan.page_bytes);
        for page in 0..pages {
            let from = version(&self.changes);
            let start = page * plan.page_bytes;
            for at in start..(start + plan.page_bytes).min(bytes.len()) {
                bytes[at] = from.get(at).copied().unwrap_or(0);
            }
        }
        bytes
    }
}

impl State {
    fn below(&mut self, limit: usize) -> usize {
        let (next, bits) = sluicegate_data::random::step(self.random);
        self.random = next;
        (bits >> 33) as usize % limit
    }

    /// Counts an operation; returns the error that it is to have.
    fn operate(&mut self) -> io::Result<()> {
        self.is_up()?;
        self.operations += 1;
        match self.plan.error_at {
            Some((at, code)) if at == self.operations - 1 => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn is_up(&self) -> io::Result<()> {
        match self.plan.crash_at {
            Some(at) if self.operations >= at => Err(io::Error::other("the machine is off")),
            _ => Ok(()),
        }
    }

    fn file(&mut self, node: usize) -> &mut FileNode {
        match &mut self.nodes[node] {
            Node::File(file) => file,
            Node::Directory(_) => panic!("a directory is not opened as a file"),
        }
    }

    fn directory(&mut self, node: usize) -> &mut DirectoryNode {
        match &mut self.nodes[node] {
            Node::Directory(directory) => directory,
            Node::File(_) => panic!("a file is not opened as a directory"),
        }
    }

    /// Returns the root of a disk that has what readers see at this moment.
    fn image(&self) -> Disk {
        let nodes = self.nodes.iter().map(|node| match node {
            Node::File(FileNode { seen, .. }) => {
                Node::File(FileNode { seen: seen.clone(), durable: seen.clone(), changes: Vec::new() })
            }
            Node::Directory(DirectoryNode { seen, .. }) => {
                Node::Directory(DirectoryNode { seen: seen.clone(), durable: seen.clone(), changes: Vec::new() })
            }
        });
        let (nodes, plan) = (nodes.collect(), Plan::default());
        Disk::of(State { plan, random: 0, operations: 0, nodes, locked: HashSet::new(), images: Vec::new() })
    }

    /// Returns how many bytes more there is space for.
    fn space(&self) -> usize {
        let used: usize =
            self.nodes.iter().map(|node| if let Node::File(file) = node { file.seen.len() } else { 0 }).sum();
        self.plan.space.map_or(usize::MAX, |space| (space as usize).saturating_sub(used))
    }
}

impl Disk {
    /// Returns the root of an empty disk.
    pub(crate) fn new(seed: u64, plan: Plan) -> Disk {
        let nodes = vec![Node::Directory(DirectoryNode::default())];
        Disk::of(State { plan, random: seed, operations: 0, nodes, locked: HashSet::new(), images: Vec::new() })
    }

    fn of(state: State) -> Disk {
        Disk { state: Arc::new(Mutex::new(state)), node: 0 }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes what goes wrong from now on.
    pub(crate) fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.state().plan);
    }

    /// Returns the number of operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Returns whether the machine has stopped.
    pub(crate) fn is_off(&self) -> bool {
        self.state().is_up().is_err()
    }

    /// Returns the root of the disk that is found after a crash at this moment; nothing goes wrong on it.
    pub(crate) fn crash(&self, seed: u64) -> Disk {
        let mut before = self.state();
        before.random = seed;
        let plan = before.plan.clone();
        let style = before.below(4);
        let mut nodes = before.nodes.clone();
        for node in &mut nodes {
            match node {
                Node::File(file) => {
                    let bytes = match style {
                        0 => file.durable.clone(),
                        1 => file.with_changes(),
                        _ => file.decided(&plan, &mut |limit| before.below(limit)),
                    };
                    *file = FileNode { seen: bytes.clone(), durable: bytes, changes: Vec::new() };
                }
                Node::Directory(directory) => {
                    let mut names = directory.durable.clone();
                    for change in &directory.changes {
                        if style == 1 || style > 1 && before.below(2) == 0 {
                            change.apply(&mut names);
                        }
                    }
                    *directory = DirectoryNode { seen: names.clone(), durable: names, changes: Vec::new() };
                }
            }
        }
        let plan = Plan {
            page_bytes: plan.page_bytes,
            keeps_order: plan.keeps_order,
            has_links: plan.has_links,
            ..Plan::default()
        };
        Disk::of(State { plan, random: seed, operations: 0, nodes, locked: HashSet::new(), images: Vec::new() })
    }

    /// Returns the root of a disk that has what readers see at this moment.
    pub(crate) fn image(&self) -> Disk {
        self.state().image()
    }

    /// Returns the disks that were [kept](Plan::kept_at).
    pub(crate) fn images(&self) -> Vec<Disk> {
        self.state().images.clone()
    }

    /// Returns a file's contents as readers see them, even if the machine has stopped.
    pub(crate) fn contents(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.state();
        let node = *state.directory(self.node).seen.get(name)?;
        Some(state.file(node).seen.clone())
    }

    /// Makes a durable file.
    pub(crate) fn put(&self, name: &[u8], contents: &[u8]) {
        let mut state = self.state();
        let (seen, durable) = (contents.to_vec(), contents.to_vec());
        state.nodes.push(Node::File(FileNode { seen, durable, changes: Vec::new() }));
        let node = state.nodes.len() - 1;
        let directory = state.directory(self.node);
        directory.seen.insert(name.to_vec(), node);
        directory.durable.insert(name.to_vec(), node);
    }

    fn find(&self, state: &mut State, name: &[u8]) -> io::Result<usize> {
        let found = state.directory(self.node).seen.get(name).copied();
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn change(&self, state: &mut State, change: NameChange) {
        let directory = state.directory(self.node);
        change.apply(&mut directory.seen);
        directory.changes.push(change);
    }

    fn add(&self, state: &mut State, name: &[u8], node: Node) -> usize {
        state.nodes.push(node);
        let node = state.nodes.len() - 1;
        self.change(state, NameChange { removed: None, added: Some((name.to_vec(), node)) });
        node
    }

    fn opened(&self, node: usize, mode: FileMode) -> Box<dyn File> {
        Box::new(DiskFile { state: self.state.clone(), node, position: 0, mode })
    }
}

impl Files for Disk {
    fn create(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.operate()?;
        let node = match self.find(&mut state, name) {
            Ok(node) => {
                state.file(node).change(Change::Truncate(0));
                node
            }
            Err(_) => self.add(&mut state, name, Node::File(FileNode::default())),
        };
        Ok(self.opened(node, FileMode::Write))
    }

    fn open(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.is_up()?;
        let node = self.find(&mut state, name)?;
        Ok(self.opened(node, FileMode::Read))
    }

    fn append(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.operate()?;
        let node = match self.find(&mut state, name) {
            Ok(node) => node,
            Err(_) => self.add(&mut state, name, Node::File(FileNode::default())),
        };
        Ok(self.opened(node, FileMode::Append))
    }

    fn entry(&self, name: &[u8]) -> io::Result<Option<Entry>> {
        let mut state = self.state();
        state.is_up()?;
        let Ok(node) = self.find(&mut state, name) else { return Ok(None) };
        Ok(Some(match &state.nodes[node] {
            Node::File(file) => {
                Entry { kind: EntryKind::File, bytes: file.seen.len() as u64, number: node as u64, modified: (0, 0) }
            }
            Node::Directory(_) => Entry { kind: EntryKind::Directory, bytes: 0, number: node as u64, modified: (0, 0) },
        }))
    }

    fn list(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut state = self.state();
        state.is_up()?;
        Ok(state.directory(self.node).seen.keys().cloned().collect())
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        let node = self.find(&mut state, from)?;
        self.change(&mut state, NameChange { removed: Some(from.to_vec()), added: Some((to.to_vec(), node)) });
        if state.plan.kept_at.is_some_and(|end| to.ends_with(end)) {
            let image = state.image();
            state.images.push(image);
        }
        Ok(())
    }

    fn remove(&self, name: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        self.find(&mut state, name)?;
        self.change(&mut state, NameChange { removed: Some(name.to_vec()), added: None });
        Ok(())
    }

    fn make_directory(&self, name: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        if self.find(&mut state, name).is_ok() {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        self.add(&mut state, name, Node::Directory(DirectoryNode::default()));
        Ok(())
    }

    fn directory(&self, name: &[u8]) -> io::Result<Arc<dyn Files>> {
        Ok(Arc::new(self.below(name)?))
    }

    fn link_below(&self, name: &[u8], directory: &[u8]) -> io::Result<()> {
        let below = self.below(directory)?;
        let mut state = self.state();
        state.operate()?;
        if !state.plan.has_links {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let node = self.find(&mut state, name)?;
        if below.find(&mut state, name).is_ok() {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        below.change(&mut state, NameChange { removed: None, added: Some((name.to_vec(), node)) });
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        let result = state.operate();
        if result.is_ok() {
            let directory = state.directory(self.node);
            directory.durable = directory.seen.clone();
            directory.changes.clear();
        }
        result
    }

    fn lock(&self, name: &[u8]) -> io::Result<Lock> {
        let mut state = self.state();
        state.is_up()?;
        match state.locked.insert((self.node, name.to_vec())) {
            true => Ok(Box::new(DiskLock(self.clone(), name.to_vec()))),
            false => Err(io::Error::from_raw_os_error(libc::EWOULDBLOCK)),
        }
    }
}

impl Disk {
    /// Returns a directory in this one.
    pub(crate) fn below(&self, name: &[u8]) -> io::Result<Disk> {
        let mut state = self.state();
        state.is_up()?;
        let node = self.find(&mut state, name)?;
        match &state.nodes[node] {
            Node::Directory(_) => Ok(Disk { state: self.state.clone(), node }),
            Node::File(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
}

struct DiskLock(Disk, Vec<u8>);

impl Drop for DiskLock {
    fn drop(&mut self) {
        self.0.state().locked.remove(&(self.0.node, std::mem::take(&mut self.1)));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileMode {
    Read,
    Write,
    Append,
}

struct DiskFile {
    state: Arc<Mutex<State>>,
    node: usize,
    position: usize,
    mode: FileMode,
}

impl DiskFile {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes as much as there is space for, and returns how much that is.
    fn put(&self, state: &mut State, at: usize, bytes: &[u8], is_short: bool) -> io::Result<usize> {
        if self.mode == FileMode::Read {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        state.operate()?;
        let space = state.space();
        let inside = state.file(self.node).seen.len().saturating_sub(at);
        let mut len = bytes.len().min(inside.saturating_add(space));
        if len == 0 && !bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if is_short && len > 1 && state.below(2) == 0 {
            len = 1 + state.below(len);
        }
        state.file(self.node).change(Change::Write(at, bytes[..len].to_vec()));
        Ok(len)
    }
}

impl Read for DiskFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        state.is_up()?;
        let rest = state.file(self.node).seen.get(self.position..).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        drop(state);
        self.position += len;
        Ok(len)
    }
}

impl Write for DiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let at = if self.mode == FileMode::Append { state.file(self.node).seen.len() } else { self.position };
        let is_short = state.plan.writes_short;
        let len = self.put(&mut state, at, bytes, is_short)?;
        drop(state);
        self.position = at + len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl File for DiskFile {
    fn write_all_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut state = self.state();
        let mut done = 0;
        while done < bytes.len() {
            done += self.put(&mut state, position as usize + done, &bytes[done..], false)?;
        }
        Ok(())
    }

    fn sync_data(&mut self) -> io::Result<()> {
        let mut state = self.state();
        let result = state.operate();
        let (count, takes) = (state.file(self.node).changes.len(), state.plan.sync_takes);
        if result.is_ok() && !takes.is_zero() {
            drop(state);
            std::thread::sleep(takes);
            state = self.state();
            // The machine may have stopped meanwhile.
            state.is_up()?;
        }
        let mut file = std::mem::take(state.file(self.node));
        match (&result, state.is_up()) {
            (Ok(()), _) => {
                let synced = count.min(file.changes.len());
                file.changes.drain(..synced).for_each(|change| change.apply(&mut file.durable));
            }
            (Err(_), Ok(())) => {
                let plan = state.plan.clone();
                file.durable = file.decided(&plan, &mut |limit| state.below(limit));
                file.changes.clear();
            }
            (Err(_), Err(_)) => {}
        }
        *state.file(self.node) = file;
        result
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        state.file(self.node).change(Change::Truncate(len as usize));
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.is_up()?;
        Ok(state.file(self.node).seen.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is found after many crashes of a disk.
    fn found(disk: &Disk, name: &[u8]) -> HashSet<Option<Vec<u8>>> {
        (0..500).map(|seed| disk.crash(seed).contents(name)).collect()
    }

    fn some(texts: &[&str]) -> HashSet<Option<Vec<u8>>> {
        texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn what_is_not_synced_is_lost_kept_torn_or_reordered() {
        let disk = Disk::new(1, Plan { page_bytes: 2, ..Plan::default() });
        disk.put(b"f", b"");
        let mut file = disk.append(b"f").unwrap();
        file.write_all(b"ab").unwrap();
        file.sync_data().unwrap();
        assert_eq!(found(&disk, b"f"), some(&["ab"]));
        file.write_all(b"cdef").unwrap();
        let all = found(&disk, b"f");
        assert!(
            all.is_superset(&some(&["ab", "abcdef", "abcd", "abcde", "ab\0\0ef", "abc\0e", "ab\0\0\0\0"])),
            "{all:?}"
        );
        assert!(all.iter().flatten().all(|found| found.starts_with(b"ab")));
        disk.plan(|plan| plan.keeps_order = true);
        assert_eq!(found(&disk, b"f"), some(&["ab", "abc", "abcd", "abcde", "abcdef"]));
        file.sync_data().unwrap();
        assert_eq!(found(&disk, b"f"), some(&["abcdef"]));
        file.truncate(1).unwrap();
        file.write_all(b"X").unwrap();
        assert_eq!(found(&disk, b"f"), some(&["abcdef", "a", "aX"]));
    }

    #[test]
    fn names_are_durable_once_the_directory_is_synced() {
        let disk = Disk::new(1, Plan::default());
        disk.put(b"f", b"old");
        let mut file = disk.create(b"new").unwrap();
        file.write_all(b"new").unwrap();
        file.sync_data().unwrap();
        disk.rename(b"new", b"f").unwrap();
        assert_eq!(disk.contents(b"f").unwrap(), b"new");
        assert_eq!(found(&disk, b"f"), some(&["old", "new"]));
        disk.sync_directory().unwrap();
        assert_eq!(found(&disk, b"f"), some(&["new"]));
        disk.remove(b"f").unwrap();
        assert_eq!(found(&disk, b"f"), HashSet::from([Some(b"new".to_vec()), None]));
        disk.make_directory(b"d").unwrap();
        let below = disk.below(b"d").unwrap();
        below.create(b"g").unwrap();
        below.sync_directory().unwrap();
        let list = |seed| disk.crash(seed).below(b"d").map(|below| below.list().unwrap());
        let lists: HashSet<_> = (0..50).map(|seed| list(seed).ok()).collect();
        assert_eq!(lists, HashSet::from([None, Some(vec![b"g".to_vec()])]));
    }

    #[test]
    fn a_failed_sync_is_not_repaired_by_the_next_one() {
        let mut all = HashSet::new();
        for seed in 0..100 {
            let disk = Disk::new(seed, Plan { error_at: Some((2, libc::EIO)), keeps_order: true, ..Plan::default() });
            disk.put(b"f", b"");
            let mut file = disk.append(b"f").unwrap();
            file.write_all(b"abc").unwrap();
            assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
            file.sync_data().unwrap();
            assert_eq!(disk.contents(b"f").unwrap(), b"abc");
            let now = found(&disk, b"f");
            assert_eq!(now.len(), 1, "{now:?}");
            all.extend(now);
        }
        assert_eq!(all, some(&["", "a", "ab", "abc"]));
    }

    #[test]
    fn what_is_written_during_a_sync_is_not_synced() {
        let disk = Disk::new(1, Plan { sync_takes: Duration::from_millis(20), keeps_order: true, ..Plan::default() });
        disk.put(b"f", b"");
        let (mut file, mut other) = (disk.append(b"f").unwrap(), disk.append(b"f").unwrap());
        file.write_all(b"a").unwrap();
        let before = disk.operations();
        std::thread::scope(|scope| {
            scope.spawn(|| file.sync_data().unwrap());
            while disk.operations() == before {
                std::thread::yield_now();
            }
            other.write_all(b"b").unwrap();
        });
        assert_eq!(found(&disk, b"f"), some(&["a", "ab"]));
    }

    #[test]
    fn space_ends_writes_are_short_and_the_machine_stops() {
        let disk = Disk::new(1, Plan { space: Some(5), ..Plan::default() });
        let mut file = disk.create(b"f").unwrap();
        assert_eq!(file.write(b"1234567").unwrap(), 5);
        assert_eq!(file.write(b"67").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        file.write_all_at(b"xy", 3).unwrap();
        assert_eq!(disk.contents(b"f").unwrap(), b"123xy");
        disk.plan(|plan| *plan = Plan { writes_short: true, ..Plan::default() });
        let lens: HashSet<usize> = (0..50).map(|_| file.write(b"123").unwrap()).collect();
        assert_eq!(lens, HashSet::from([1, 2, 3]));
        file.sync_data().unwrap();
        disk.sync_directory().unwrap();
        let at = disk.operations() + 1;
        disk.plan(|plan| plan.crash_at = Some(at));
        file.sync_data().unwrap();
        assert!(disk.is_off() && file.sync_data().is_err() && disk.open(b"f").is_err());
        let after = disk.crash(1);
        assert_eq!(after.contents(b"f"), disk.contents(b"f"));
        let lock = after.lock(b"lock").unwrap();
        assert_eq!(after.lock(b"lock").map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(after.lock(b"lock").is_ok());
    }
}
