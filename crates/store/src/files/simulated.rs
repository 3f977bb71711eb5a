//! A disk for tests, which at a crash loses what was not synced.
//!
//! Contents: of what was written after the last sync, each page is kept, lost (zeros) or torn, and the length is any
//! between the two. Names: of the creations, renamings and removals after the directory's last sync, the first few are
//! kept, in their order. After [`fail_from_now`](Disk::fail_from_now) something happens at a random operation: the
//! machine stops, the disk is full, a write is short, or a write or sync fails once, after which what was not synced
//! counts as lost even if a later sync succeeds.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{File, Files};

const PAGE: usize = 4096;
/// The operations of a test among which one is chosen.
const OPERATIONS: u64 = 24;

#[derive(Clone, Debug, Default)]
struct Contents {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Whether pages may be lost though a later sync succeeds.
    is_doubtful: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    changes: Vec<Change>,
    /// What happens, and after how many operations.
    fault: Option<(u64, Fault)>,
    is_stopped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stop,
    Full,
    Short,
    Error,
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl State {
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) % limit.max(1)
    }

    /// Counts an operation. Returns what happens to it.
    fn step(&mut self) -> io::Result<Option<Fault>> {
        if self.is_stopped {
            return Err(io::Error::other("the machine has stopped"));
        }
        match &mut self.fault {
            Some((0, fault)) => {
                let fault = *fault;
                if !matches!(fault, Fault::Full) {
                    self.fault = None;
                }
                if let Fault::Stop = fault {
                    self.is_stopped = true;
                    return Err(io::Error::other("the machine has stopped"));
                }
                Ok(Some(fault))
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn apply(names: &mut BTreeMap<String, usize>, change: &Change) {
        match change {
            Change::Create(name, file) => drop(names.insert(name.clone(), *file)),
            Change::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Change::Remove(name) => drop(names.remove(name)),
        }
    }

    fn change(&mut self, change: Change) {
        State::apply(&mut self.names, &change);
        self.changes.push(change);
    }
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let disk = Disk::default();
        disk.0.lock().random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        disk
    }

    /// Lets something happen at one of the next operations, or, now and then, nothing.
    pub(crate) fn fail_from_now(&self) {
        let mut state = self.0.lock();
        let (after, kind) = (state.below(OPERATIONS), state.below(8));
        state.fault = match kind {
            0 => None,
            1..5 => Some((after, Fault::Stop)),
            5 => Some((after, Fault::Full)),
            6 => Some((after, Fault::Short)),
            _ => Some((after, Fault::Error)),
        };
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.lock().is_stopped
    }

    /// Returns the disk as it is found after a crash at this moment.
    pub(crate) fn crash(&self) -> Disk {
        let mut state = self.0.lock();
        let changes = state.changes.len() as u64;
        let kept = state.below(changes + 1) as usize;
        let mut names = state.synced_names.clone();
        state.changes[..kept].iter().for_each(|change| State::apply(&mut names, change));
        let mut files = state.files.clone();
        for file in &mut files {
            let len = match file.now.len() >= file.synced.len() {
                true => file.synced.len() + state.below((file.now.len() - file.synced.len()) as u64 + 1) as usize,
                false => file.synced.len(),
            };
            let mut found = file.synced.clone();
            found.resize(len, 0);
            for start in (0..len).step_by(PAGE) {
                let end = len.min(start + PAGE);
                let is_same = file.now.get(start..end) == found.get(start..end);
                // Torn in the middle, kept, or lost.
                let until = match state.below(4) {
                    _ if is_same => continue,
                    0 => start + state.below((end - start) as u64) as usize,
                    1 => start,
                    _ => end,
                };
                for at in start..until.min(file.now.len()) {
                    found[at] = file.now[at];
                }
            }
            *file = Contents { now: found.clone(), synced: found, is_doubtful: false };
        }
        let (random, synced_names) = (state.random, names.clone());
        let after = State { random, files, names, synced_names, ..State::default() };
        Disk(Arc::new(Mutex::new(after)))
    }

    /// Returns the contents of a file.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.lock();
        state.names.get(name).map(|file| state.files[*file].now.clone())
    }
}

struct Handle {
    disk: Disk,
    file: usize,
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.0.lock();
        let len = match state.step()? {
            Some(Fault::Full) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Some(Fault::Short) => bytes.len().div_ceil(2),
            Some(_) => {
                state.files[self.file].is_doubtful = true;
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            None => bytes.len(),
        };
        state.files[self.file].now.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl File for Handle {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let fault = state.step()?;
        let file = &mut state.files[self.file];
        if let Some(Fault::Error | Fault::Full) = fault {
            file.is_doubtful = true;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if !file.is_doubtful {
            file.synced = file.now.clone();
        }
        Ok(())
    }
}

impl Files for Disk {
    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.0.lock();
        if let Some(Fault::Full | Fault::Error) = state.step()? {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let file = state.files.len();
        state.files.push(Contents::default());
        state.change(Change::Create(name.to_owned(), file));
        Ok(Box::new(Handle { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Read + Send>, u64)> {
        let contents = self.read(name).ok_or(io::ErrorKind::NotFound)?;
        let len = contents.len() as u64;
        Ok((Box::new(io::Cursor::new(contents)), len))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(Fault::Error) = state.step()? {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.change(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        state.change(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(Fault::Error) = state.step()? {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.synced_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }
}
