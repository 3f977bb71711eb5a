//! A file that replaces another one, without a moment in which neither is whole: it is written under a temporary name,
//! synced, and given its name, which is synced.

use std::io::{self, Write};

use super::{File, Files, Identity};

/// The bytes after which a file that is being written is synced, so that its end does not wait for all of them and other
/// writers of the disk have their turns (Redis's `rdb-save-incremental-fsync`).
pub(crate) const SYNCED_EACH: u64 = 4 << 20;

/// A new version of a file. Dropped before it is whole, it is removed.
pub(crate) struct Replacement<'f> {
    files: &'f dyn Files,
    /// [`None`] once it has its name.
    temporary: Option<Vec<u8>>,
    file: Box<dyn File>,
    synced_each: Option<u64>,
    unsynced: u64,
}

impl<'f> Replacement<'f> {
    /// Begins a file under a temporary name. It is synced each so many bytes, and at its end.
    pub(crate) fn new(files: &'f dyn Files, temporary: &[u8], synced_each: Option<u64>) -> io::Result<Replacement<'f>> {
        let file = files.create(temporary)?;
        Ok(Replacement { files, temporary: Some(temporary.to_vec()), file, synced_each, unsynced: 0 })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.unsynced += bytes.len() as u64;
        if self.synced_each.is_some_and(|each| self.unsynced >= each) {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Replaces the first bytes, which were not known when they were written.
    pub(crate) fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)
    }

    /// Returns what tells the file from others, also under its name. Called when all is written.
    pub(crate) fn identity(&self) -> io::Result<Option<Identity>> {
        let name = self.temporary.as_deref().unwrap_or_default();
        Ok(self.files.entry(name)?.map(|entry| entry.identity()))
    }

    /// Gives the file its name, once it is on the disk. After an error the file of that name is the old one, or, if only
    /// the directory could not be synced, the new one, which a crash may undo.
    pub(crate) fn replace(mut self, name: &[u8]) -> io::Result<()> {
        self.file.sync_data()?;
        if let Some(temporary) = &self.temporary {
            self.files.rename(temporary, name)?;
        }
        self.temporary = None;
        self.files.sync_directory()
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // It is of no use, and the next one takes its place.
            let _ = self.files.remove(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use sluicegate_data::random::numbers;

    use super::super::simulated::{Disk, Plan, on_disks};
    use super::*;

    const TEMPORARY: &[u8] = b"temp-1.rdb";
    const NAME: &[u8] = b"dump.rdb";

    /// Writes a file in chunks, the first bytes last.
    fn replace(disk: &Disk, contents: &[u8], chunk: usize, synced_each: Option<u64>) -> io::Result<()> {
        let mut file = Replacement::new(disk, TEMPORARY, synced_each)?;
        let (start, rest) = contents.split_at(9.min(contents.len()));
        file.write(&vec![b'-'; start.len()])?;
        for bytes in rest.chunks(chunk) {
            file.write(bytes)?;
        }
        file.write_start(start)?;
        file.replace(NAME)
    }

    /// Replaces a file on a disk of these faults; checks what is there then, and after crashes. Returns whether it was
    /// said to be replaced, and which of both crashes have left: old, new.
    #[track_caller]
    fn check(seed: u64, plan: Plan, old: Option<&[u8]>) -> (bool, [bool; 2]) {
        let mut next = numbers(seed);
        let new: Vec<u8> = (0..1 + next(500)).map(|at| (at % 251) as u8).collect();
        let (chunk, synced_each) = (1 + next(100), [None, Some(64)][next(2)]);
        let disk = Disk::new(seed, plan.clone());
        old.into_iter().for_each(|old| disk.put(NAME, old));
        let result = replace(&disk, &new, chunk, synced_each);
        let context = format!("seed {seed}, {plan:?}: {result:?}");
        if !disk.is_off() {
            assert!(disk.contents(TEMPORARY).is_none(), "{context}");
            let found = disk.contents(NAME);
            assert!(found.as_deref() == Some(&new) || result.is_err() && found.as_deref() == old, "{context}");
        }
        let mut left = [false; 2];
        for crash in 0..4 {
            let found = disk.crash(seed * 4 + crash).contents(NAME);
            let (is_old, is_new) = (found.as_deref() == old, found.as_deref() == Some(&new));
            assert!(is_new || is_old && result.is_err(), "{context}: crash {crash} left {found:?}");
            left = [left[0] | is_old, left[1] | is_new];
        }
        (result.is_ok(), left)
    }

    #[test]
    fn every_crash_and_fault_leaves_the_old_file_or_the_new_one() {
        let old = vec![b'o'; 300];
        let left = [const { AtomicBool::new(false) }; 2];
        on_disks(2_000, 1, |seed| {
            let mut disks = 0;
            let base = Plan { page_bytes: 32, writes_short: true, keeps_order: seed % 4 == 0, ..Plan::default() };
            let old = (seed % 3 > 0).then_some(&old[..]);
            let (is_replaced, _) = check(seed, base.clone(), old);
            assert!(is_replaced);
            for space in [0, 40, 320, 420, 900] {
                check(seed, Plan { space: Some(space), ..base.clone() }, old);
                disks += 1;
            }
            // Until neither is reached.
            for at in 0.. {
                let (crashed, of_crash) = check(seed, Plan { crash_at: Some(at), ..base.clone() }, old);
                let (failed, of_error) = check(seed, Plan { error_at: Some((at, libc::EIO)), ..base.clone() }, old);
                for found in [of_crash, of_error] {
                    for (left, found) in left.iter().zip(found) {
                        left.fetch_or(found, Ordering::Relaxed);
                    }
                }
                disks += 2;
                if crashed && failed {
                    break;
                }
            }
            disks
        });
        assert_eq!(left.map(AtomicBool::into_inner), [true, true]);
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let path = tempfile::tempdir().expect("a directory");
        let files = super::super::Directory::new(path.path());
        let mut file = Replacement::new(&files, TEMPORARY, None).expect("it is created");
        file.write(b"half").expect("it is written");
        drop(file);
        assert_eq!(files.list().expect("it is read"), Vec::<Vec<u8>>::new());
        let mut file = Replacement::new(&files, TEMPORARY, Some(SYNCED_EACH)).expect("it is created");
        file.write(b"-hole").expect("it is written");
        file.write_start(b"w").expect("it is written");
        file.replace(NAME).expect("it is there");
        assert_eq!(files.list().expect("it is read"), [NAME]);
        assert_eq!(std::fs::read(path.path().join("dump.rdb")).expect("it is there"), b"whole");
    }
}
