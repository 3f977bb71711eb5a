//! The files of the append-only file on the disk, and the steps from one manifest to the next.
//!
//! A manifest replaces the one before it as a whole ([`Replacement`]), and only names files whose names are durable by
//! then. A file that it names no more is removed afterwards, in two steps: as *history* it is still named, so that no
//! crash leaves a file that nobody removes.
//!
//! Files that no manifest has named yet are of no use after a crash; the next ones take their names.
//!
//! If a step fails after the new manifest has got its name, either may be found after a crash. Both are complete, but not
//! to who writes on: the increment that is open may not be the last one, so a torn end of it would make the files
//! unreadable, or may not be named at all. The step, another one or [`Parts::settle`] has to succeed before anything is
//! written then.
//!
//! The files are locked as long as [`Parts`] exists, since two processes that append to one file, or that remove what the
//! other one has named, would make it unreadable. The lock is that of a file beside them with the same start of its name,
//! since stores may share the directory with different names, as in Redis.

use std::io::{self, Read};
use std::sync::Arc;

use super::manifest::{MANIFEST_MAX, Manifest, ManifestFault, Part};
use crate::files::{EntryKind, File, Files, Lock, Replacement, reason};

/// The files, and where they are.
pub(crate) struct Parts {
    /// `appenddirname`.
    directory: Arc<dyn Files>,
    /// `appendfilename`, the start of their names.
    name: Vec<u8>,
    manifest: Manifest,
    /// The highest number of a file so far, even if no manifest names it.
    last_base: i64,
    last_increment: i64,
    /// Whether the manifest on the disk is known.
    is_certain: bool,
    /// [`None`] if the file system has no locks.
    lock: Option<Lock>,
}

/// The format of a base file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BaseFormat {
    /// An RDB file: `aof-use-rdb-preamble yes`.
    Rdb,
    /// Commands: only tests write them.
    #[cfg(test)]
    Commands,
}

/// Why the files are not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartsFault {
    /// The manifest is malformed.
    #[error("{0}")]
    Manifest(ManifestFault),
    /// The manifest cannot be read.
    #[error("Fatal error: can't open the AOF manifest file {} for reading: {}", .0.escape_ascii(), reason(.1))]
    Unreadable(Vec<u8>, io::Error),
    /// The directory cannot be created or opened.
    #[error("Can't open or create append-only dir {}: {}", .0.escape_ascii(), reason(.1))]
    Directory(Vec<u8>, io::Error),
    /// Another store has the files.
    #[error(
        "The append-only file {} in dir {} is in use by another process or store: two cannot append to the same files, so \
         stop that one, or give this one another 'dir', 'appenddirname' or 'appendfilename'",
        .0.escape_ascii(),
        .1.escape_ascii()
    )]
    InUse(Vec<u8>, Vec<u8>),
    /// A file of an old version cannot be moved into the directory.
    #[error("Error trying to move the old AOF file {} into dir {}: {}", .0.escape_ascii(), .1.escape_ascii(), reason(.2))]
    NotMoved(Vec<u8>, Vec<u8>, io::Error),
    /// A file that the manifest names is not there.
    #[error("Unable to obtain the AOF file {} length. stat: {}", .0.escape_ascii(), reason(.1))]
    Missing(Vec<u8>, io::Error),
}

/// What was found at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// No file: the append-only file is new.
    Nothing,
    /// Files.
    Files,
    /// The single file of a version before 7.0, which is the base file now.
    Old,
}

impl Parts {
    /// Opens the files in a directory (`dir`), where `appenddirname` is created if it is missing, to read them. The single
    /// file that Redis before 7.0 wrote becomes the base file.
    pub(crate) fn open(dir: &dyn Files, directory_name: &[u8], name: &[u8]) -> Result<(Parts, Found), PartsFault> {
        let (mut parts, is_missing) = Parts::open_unread(dir, directory_name, name)?;
        let not_moved = |error| PartsFault::NotMoved(name.to_vec(), directory_name.to_vec(), error);
        let is_old = parts.upgrade(dir, directory_name, is_missing).map_err(not_moved)?;
        for part in parts.manifest.base.iter().chain(&parts.manifest.increments) {
            let error = match parts.directory.entry(&part.name) {
                Ok(Some(_)) => continue,
                Ok(None) => io::Error::from_raw_os_error(libc::ENOENT),
                Err(error) => error,
            };
            return Err(PartsFault::Missing(part.name.clone(), error));
        }
        let is_empty = parts.manifest.base.is_none() && parts.manifest.increments.is_empty();
        let found = match (is_old, is_empty) {
            (true, _) => Found::Old,
            (false, true) => Found::Nothing,
            (false, false) => Found::Files,
        };
        Ok((parts, found))
    }

    /// Opens the files to put others in their place: what the manifest names may be missing, and the single file of an old
    /// version, which has nothing that is to be replaced, stays where it is, as in Redis.
    pub(crate) fn open_to_replace(dir: &dyn Files, directory_name: &[u8], name: &[u8]) -> Result<Parts, PartsFault> {
        Parts::open_unread(dir, directory_name, name).map(|(parts, _)| parts)
    }

    /// Opens the files. Returns whether the manifest is missing, too.
    fn open_unread(dir: &dyn Files, directory_name: &[u8], name: &[u8]) -> Result<(Parts, bool), PartsFault> {
        let directory =
            below(dir, directory_name).map_err(|error| PartsFault::Directory(directory_name.to_vec(), error))?;
        let lock = match directory.lock(&lock_name(name)) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(PartsFault::InUse(name.to_vec(), directory_name.to_vec()));
            }
            // As in Redis, which never locks.
            Err(_) => None,
        };
        let manifest = read_manifest(&*directory, &manifest_name(name))?;
        let is_missing = manifest.is_none();
        let manifest = manifest.unwrap_or_default();
        let parts = Parts {
            last_base: manifest.base.as_ref().map_or(0, |part| part.seq),
            last_increment: manifest.increments.last().map_or(0, |part| part.seq),
            directory,
            name: name.to_vec(),
            manifest,
            is_certain: true,
            lock,
        };
        Ok((parts, is_missing))
    }

    /// Makes the single file of an old version the base file, if there is one and nothing has replaced it. Returns whether
    /// it did. Each step leaves what Redis would continue from, too.
    fn upgrade(&mut self, dir: &dyn Files, directory_name: &[u8], is_missing: bool) -> io::Result<bool> {
        let Some(old) = dir.entry(&self.name)?.filter(|old| old.kind == EntryKind::File) else { return Ok(false) };
        let only_base = self.manifest.base.as_ref().filter(|_| self.manifest.increments.is_empty());
        let is_named = only_base.is_some_and(|base| base.name == self.name);
        if !is_missing && !is_named {
            return Ok(false);
        }
        let moved = self.directory.entry(&self.name)?;
        if !is_missing && moved.is_some_and(|moved| moved.number != old.number) {
            // The manifest's own file; Redis lets the other one be, too.
            return Ok(false);
        }
        if moved.is_none_or(|moved| moved.number != old.number) {
            self.bring(dir, directory_name)?;
        }
        self.directory.sync_directory()?;
        if is_missing {
            let base = Part { name: self.name.clone(), seq: 1 };
            self.last_base = 1;
            self.write(Manifest { base: Some(base), ..Manifest::default() })?;
        }
        dir.remove(&self.name)?;
        dir.sync_directory()?;
        Ok(true)
    }

    /// Gives a file of `dir` the same name in the directory, by a link, or by a copy where links are not possible.
    fn bring(&self, dir: &dyn Files, directory_name: &[u8]) -> io::Result<()> {
        if self.directory.entry(&self.name)?.is_some() {
            // Nothing names it.
            self.directory.remove(&self.name)?;
        }
        if dir.link_below(&self.name, directory_name).is_ok() {
            return Ok(());
        }
        let mut from = dir.open(&self.name)?;
        let mut to = Replacement::new(&*self.directory, &[b"temp-", &self.name[..]].concat(), None)?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            match from.read(&mut buffer)? {
                0 => return to.replace(&self.name),
                count => to.write(&buffer[..count])?,
            }
        }
    }

    /// Returns the manifest, as it is on the disk.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Lets another process use the files, which this one leaves alone until [`lock_again`](Self::lock_again).
    pub(crate) fn unlock(&mut self) {
        self.lock = None;
    }

    /// Ends what [`unlock`](Self::unlock) has begun.
    pub(crate) fn lock_again(&mut self) {
        // As at the start, files that cannot be locked are used.
        self.lock = self.directory.lock(&lock_name(&self.name)).ok();
    }

    /// Returns whether a file is the single one that a version before 7.0 wrote.
    pub(crate) fn is_old(&self, part: &Part) -> bool {
        part.name == self.name
    }

    /// Returns the directory of the files.
    pub(crate) fn directory(&self) -> &Arc<dyn Files> {
        &self.directory
    }

    /// Returns the name under which a base file is written. Stores of one process may share the directory.
    pub(crate) fn temporary(&self) -> Vec<u8> {
        [format!("temp-rewriteaof-bg-{}-", std::process::id()).as_bytes(), &self.name[..]].concat()
    }

    /// Creates the next increment, empty. Until a step names it, it is of no use after a crash.
    pub(crate) fn create_increment(&mut self) -> io::Result<(Part, Box<dyn File>)> {
        self.last_increment = next(self.last_increment)?;
        let part = Part { name: self.name_of(self.last_increment, ".incr.aof"), seq: self.last_increment };
        self.directory.create(&part.name)?;
        let file = self.directory.append(&part.name)?;
        self.directory.sync_directory()?;
        Ok((part, file))
    }

    /// Step: commands go to this increment from now on. What was written to the one before is durable already; else a
    /// crash would leave a torn file that is not the last one, which no reader accepts.
    pub(crate) fn add_increment(&mut self, part: Part) -> io::Result<()> {
        let mut next = self.manifest.clone();
        next.increments.push(part);
        self.write(next)
    }

    /// Step: a new base file, which has what was in the old one and in the increments before number `first_kept`. With
    /// `increment`, which no manifest has named yet, this begins anew: nothing of the increments before is needed, and it
    /// does not matter whether they are durable.
    pub(crate) fn replace_base(
        &mut self,
        base: Replacement<'_>,
        format: BaseFormat,
        first_kept: i64,
        increment: Option<Part>,
    ) -> io::Result<()> {
        self.last_base = next(self.last_base)?;
        let ending = match format {
            BaseFormat::Rdb => ".base.rdb",
            #[cfg(test)]
            BaseFormat::Commands => ".base.aof",
        };
        let part = Part { name: self.name_of(self.last_base, ending), seq: self.last_base };
        base.replace(&part.name)?;
        let mut next = self.manifest.clone();
        next.history.extend(next.base.replace(part));
        next.history.extend(next.increments.extract_if(.., |part| part.seq < first_kept));
        next.increments.extend(increment);
        self.write(next)
    }

    /// Step: files that are not needed any more are removed.
    pub(crate) fn remove_history(&mut self) -> io::Result<()> {
        if self.manifest.history.is_empty() {
            return Ok(());
        }
        for part in &self.manifest.history {
            match self.directory.remove(&part.name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.directory.sync_directory()?;
        self.write(Manifest { history: Vec::new(), ..self.manifest.clone() })
    }

    /// Writes the manifest once more, if a step has failed.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        if self.is_certain { Ok(()) } else { self.write(self.manifest.clone()) }
    }

    fn write(&mut self, manifest: Manifest) -> io::Result<()> {
        self.is_certain = false;
        let name = manifest_name(&self.name);
        let mut file = Replacement::new(&*self.directory, &[b"temp-", &name[..]].concat(), None)?;
        file.write(&manifest.encode())?;
        file.replace(&name)?;
        (self.manifest, self.is_certain) = (manifest, true);
        Ok(())
    }

    fn name_of(&self, seq: i64, ending: &str) -> Vec<u8> {
        [&self.name[..], format!(".{seq}{ending}").as_bytes()].concat()
    }
}

fn next(seq: i64) -> io::Result<i64> {
    seq.checked_add(1).ok_or_else(|| io::Error::other("the numbers of append-only files are used up"))
}

fn lock_name(name: &[u8]) -> Vec<u8> {
    [name, b".lock"].concat()
}

fn manifest_name(name: &[u8]) -> Vec<u8> {
    [name, b".manifest"].concat()
}

/// Opens a directory, which is created if it is missing. What an earlier process has named in it is durable afterwards,
/// even if that process ended before it could see to that.
fn below(dir: &dyn Files, name: &[u8]) -> io::Result<Arc<dyn Files>> {
    if dir.entry(name)?.is_none() {
        dir.make_directory(name)?;
    }
    let directory = dir.directory(name)?;
    dir.sync_directory()?;
    directory.sync_directory()?;
    Ok(directory)
}

/// Reads the manifest, if there is one.
fn read_manifest(directory: &dyn Files, name: &[u8]) -> Result<Option<Manifest>, PartsFault> {
    let unreadable = |error| PartsFault::Unreadable(name.to_vec(), error);
    let mut text = Vec::new();
    match directory.open(name) {
        Ok(file) => file.take(MANIFEST_MAX + 1).read_to_end(&mut text).map_err(unreadable)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    Manifest::parse(&text).map(Some).map_err(PartsFault::Manifest)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use sluicegate_data::random::numbers;

    use super::*;
    use crate::files::simulated::{Disk, Plan, on_disks};

    const DIRECTORY: &[u8] = b"appendonlydir";
    const NAME: &[u8] = b"appendonly.aof";

    /// Returns a data set: so many numbers.
    fn numbered(range: std::ops::Range<u64>) -> Vec<u8> {
        range.flat_map(|number| format!("{number};").into_bytes()).collect()
    }

    /// Returns how many of the following numbers a file has, and the bytes that they take.
    fn count(bytes: &[u8], from: u64) -> (u64, usize) {
        let (mut at, mut number) = (0, from);
        while bytes[at..].starts_with(format!("{number};").as_bytes()) {
            at += format!("{number};").len();
            number += 1;
        }
        (number, at)
    }

    fn contents(files: &dyn Files, name: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        files.open(name).and_then(|mut file| file.read_to_end(&mut bytes)).expect("the manifest names it");
        bytes
    }

    /// A process that writes numbers, until the machine stops.
    struct Life {
        parts: Parts,
        increment: Box<dyn File>,
        /// Whether the increment can still become durable.
        is_sound: bool,
        written: u64,
        durable: u64,
    }

    impl Life {
        /// Starts from what is on the disk.
        fn begin(disk: &Disk) -> io::Result<Life> {
            let failed = |fault: PartsFault| io::Error::other(fault.to_string());
            let (mut parts, found) = Parts::open(disk, DIRECTORY, NAME).map_err(failed)?;
            let (mut written, mut whole) = (0, 0);
            let manifest = parts.manifest().clone();
            for part in manifest.base.iter().chain(&manifest.increments) {
                let bytes = contents(&**parts.directory(), &part.name);
                (written, whole) = count(&bytes, written);
                if whole < bytes.len() && Some(part) != manifest.increments.last() {
                    return Err(io::Error::other("the truncated file is not the last file"));
                }
            }
            let increment = match manifest.increments.last() {
                Some(last) => {
                    let mut increment = parts.directory().append(&last.name)?;
                    increment.truncate(whole as u64)?;
                    increment.sync_data()?;
                    increment
                }
                None => {
                    let (part, increment) = parts.create_increment()?;
                    match found {
                        Found::Nothing => Life::replace_base(&mut parts, 0, part.seq, Some(part))?,
                        Found::Files | Found::Old => parts.add_increment(part)?,
                    }
                    increment
                }
            };
            Ok(Life { parts, increment, is_sound: true, written, durable: written })
        }

        fn replace_base(parts: &mut Parts, count: u64, first_kept: i64, part: Option<Part>) -> io::Result<()> {
            let files = parts.directory().clone();
            let mut base = Replacement::new(&*files, b"temp-rewriteaof-bg-1.aof", Some(16))?;
            for piece in numbered(0..count).chunks(7) {
                base.write(piece)?;
            }
            parts.replace_base(base, BaseFormat::Commands, first_kept, part)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.parts.settle()?;
            if !self.is_sound {
                // Nothing that was written to it may be counted on.
                return self.begin_anew();
            }
            self.is_sound = false;
            self.increment.sync_data()?;
            (self.is_sound, self.durable) = (true, self.written);
            Ok(())
        }

        fn begin_anew(&mut self) -> io::Result<()> {
            let (part, increment) = self.parts.create_increment()?;
            Life::replace_base(&mut self.parts, self.written, part.seq, Some(part))?;
            (self.increment, self.is_sound, self.durable) = (increment, true, self.written);
            Ok(())
        }

        fn rewrite(&mut self) -> io::Result<()> {
            self.sync()?;
            let (part, increment) = self.parts.create_increment()?;
            let first_kept = part.seq;
            self.parts.add_increment(part)?;
            self.increment = increment;
            let cut = self.written;
            self.write(3)?;
            Life::replace_base(&mut self.parts, cut, first_kept, None)?;
            self.parts.remove_history()
        }

        fn write(&mut self, count: u64) -> io::Result<()> {
            self.parts.settle()?;
            if !self.is_sound {
                return Ok(());
            }
            self.is_sound = false;
            self.increment.write_all(&numbered(self.written..self.written + count))?;
            (self.is_sound, self.written) = (true, self.written + count);
            Ok(())
        }

        fn step(&mut self, next: &mut impl FnMut(usize) -> usize) -> io::Result<()> {
            match next(8) {
                0..3 => self.write(1 + next(5) as u64),
                3..5 => self.sync(),
                5 => self.rewrite(),
                6 => self.parts.remove_history(),
                _ => self.begin_anew(),
            }
        }
    }

    /// Lets a process live on a disk; returns how many numbers were durable, and whether the machine has stopped.
    fn live(disk: &Disk, seed: u64) -> (u64, bool) {
        let mut next = numbers(seed);
        let life = (0..3).find_map(|_| Life::begin(disk).ok());
        let Some(mut life) = life else { return (0, disk.is_off()) };
        for _ in 0..12 {
            let _ = life.step(&mut next);
        }
        (life.durable, disk.is_off())
    }

    /// Checks what is there after crashes, in two lives. Returns whether the first one came to its end.
    fn check(seed: u64, plan: Plan, old: Option<u64>) -> bool {
        let disk = Disk::new(seed, plan.clone());
        old.into_iter().for_each(|count| disk.put(NAME, &numbered(0..count)));
        let (durable, is_off) = live(&disk, seed);
        let durable = durable.max(old.unwrap_or(0));
        for crash in 0..3 {
            let context = || format!("seed {seed}, {plan:?}, crash {crash}");
            let after = disk.crash(seed * 3 + crash);
            let life = Life::begin(&after).unwrap_or_else(|error| panic!("{}: {error}", context()));
            assert!(life.written >= durable, "{}: {} of {durable}", context(), life.written);
            if old.is_some() {
                assert!(after.contents(NAME).is_none() || !plan.has_links, "{}", context());
            }
            drop(life);
            let at = u64::from(crash as u32) * 7 + seed % 13;
            after.plan(|plan| plan.crash_at = Some(at));
            let (more, _) = live(&after, seed + 1);
            let mut life = Life::begin(&after.crash(seed)).unwrap_or_else(|error| panic!("{}: {error}", context()));
            assert!(life.written >= more.max(durable), "{}: then {} of {more}", context(), life.written);
            life.parts.remove_history().unwrap_or_else(|error| panic!("{}: {error}", context()));
        }
        !is_off
    }

    #[test]
    fn every_crash_and_fault_leaves_files_with_all_durable_data() {
        on_disks(2_000, 1, |seed| {
            let mut disks = 0;
            let old = (seed % 4 == 0).then_some(5);
            let base = Plan { page_bytes: 16, keeps_order: seed % 3 == 0, has_links: seed % 8 > 0, ..Plan::default() };
            assert!(check(seed, base.clone(), old));
            for at in 0.. {
                let failing = Plan { error_at: Some((at, libc::EIO)), ..base.clone() };
                check(seed, failing.clone(), old);
                check(seed, Plan { crash_at: Some(at + 2 + (seed + at) % 6), ..failing }, old);
                disks += 3;
                if check(seed, Plan { crash_at: Some(at), ..base.clone() }, old) {
                    break;
                }
            }
            disks
        });
    }

    #[test]
    fn an_upgrade_that_redis_began_is_finished() {
        let disk = Disk::new(1, Plan::default());
        disk.put(NAME, b"0;1;");
        disk.make_directory(DIRECTORY).unwrap();
        disk.below(DIRECTORY).unwrap().put(b"appendonly.aof.manifest", b"file appendonly.aof seq 1 type b\n");
        let (parts, found) = Parts::open(&disk, DIRECTORY, NAME).unwrap();
        assert_eq!((found, parts.manifest().base.as_ref().map(|base| base.seq)), (Found::Old, Some(1)));
        assert_eq!(disk.list().unwrap(), [DIRECTORY]);
        assert_eq!(contents(&**parts.directory(), NAME), b"0;1;");
        // Two stores would spoil it.
        let in_use = Parts::open(&disk, DIRECTORY, NAME).map(drop).unwrap_err().to_string();
        assert!(
            in_use.starts_with("The append-only file appendonly.aof in dir appendonlydir is in use by another process"),
            "{in_use}"
        );
        // Another name is another store's.
        assert!(Parts::open(&disk, DIRECTORY, b"other.aof").is_ok());
        drop(parts);
        // One that is not named belongs to somebody else.
        disk.put(NAME, b"7;");
        assert_eq!(Parts::open(&disk, DIRECTORY, NAME).map(|(_, found)| found).ok(), Some(Found::Files));
        assert_eq!(disk.contents(NAME).unwrap(), b"7;");
    }

    #[test]
    fn names_are_redis_s_and_faults_too() {
        let path = tempfile::tempdir().expect("a directory");
        let dir = crate::files::Directory::new(path.path());
        let mut life =
            Life { written: 3, ..Life::begin(&Disk::new(1, Plan::default())).expect("a disk without faults") };
        life.rewrite().expect("no faults");
        let text = String::from_utf8(life.parts.manifest().encode()).unwrap();
        assert_eq!(text, "file appendonly.aof.2.base.aof seq 2 type b\nfile appendonly.aof.2.incr.aof seq 2 type i\n");
        let fault = |manifest: &str| {
            std::fs::create_dir_all(path.path().join("appendonlydir")).unwrap();
            std::fs::write(path.path().join("appendonlydir/appendonly.aof.manifest"), manifest).unwrap();
            Parts::open(&dir, DIRECTORY, NAME).map(drop).unwrap_err().to_string()
        };
        assert_eq!(fault(""), "Found an empty AOF manifest");
        assert_eq!(
            fault("file x seq 1 type i\n"),
            "Unable to obtain the AOF file x length. stat: No such file or directory"
        );
        std::fs::write(path.path().join("file"), "").unwrap();
        let error = Parts::open(&dir, b"file", NAME).map(drop).unwrap_err().to_string();
        assert_eq!(error, "Can't open or create append-only dir file: Not a directory");
    }
}
