//! The directory in which a store keeps its files, and how a file is replaced without a moment in which neither the old
//! one nor the new one is whole.
//!
//! Everything that is kept goes through [`Files`], so that tests can put a disk in its place that loses, at a crash, what
//! was not synced (`files::simulated`).

#[cfg(test)]
pub(crate) mod simulated;

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The bytes after which a file that is being written is synced, so that its end does not wait for all of them (Redis's
/// `rdb-save-incremental-fsync`).
const SYNCED_EACH: u64 = 4 << 20;

/// A file that is being written.
pub trait File: Write + Send {
    /// Waits until its contents are on the disk. After an error it is unknown which are, and a later success says nothing
    /// about them.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of files.
pub trait Files: Send + Sync {
    /// Creates a file, or empties it.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Opens a file to be read. Returns it with its length in bytes.
    fn open(&self, name: &str) -> io::Result<(Box<dyn Read + Send>, u64)>;
    /// Gives a file another name, in place of the one that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until creations, removals and names are on the disk.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Returns the directory at a path, which is used when it is needed.
    pub fn new(path: impl Into<PathBuf>) -> Directory {
        Directory(path.into())
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl File for fs::File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl Files for Directory {
    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
        Ok(Box::new(options.open(self.0.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Read + Send>, u64)> {
        let file = fs::File::open(self.0.join(name))?;
        let len = file.metadata()?.len();
        Ok((Box::new(file), len))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.0)?.sync_all()
    }
}

/// A new version of a file, under a temporary name until it is whole. Dropped before that, it is removed.
pub(crate) struct Replacement<'f> {
    files: &'f dyn Files,
    /// [`None`] once it has its name.
    temporary: Option<String>,
    file: Box<dyn File>,
    unsynced: u64,
}

impl<'f> Replacement<'f> {
    /// Begins a file under a temporary name.
    pub(crate) fn new(files: &'f dyn Files, temporary: &str) -> io::Result<Replacement<'f>> {
        let file = files.create(temporary)?;
        Ok(Replacement { files, temporary: Some(temporary.to_owned()), file, unsynced: 0 })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNCED_EACH {
            self.unsynced = 0;
            self.file.sync()?;
        }
        Ok(())
    }

    /// Gives the file its name, once it is on the disk. After an error the file of that name is the old one, or, if only
    /// the directory could not be synced, the new one, which a crash may undo.
    pub(crate) fn replace(mut self, name: &str) -> io::Result<()> {
        self.file.flush()?;
        self.file.sync()?;
        if let Some(temporary) = &self.temporary {
            self.files.rename(temporary, name)?;
        }
        self.temporary = None;
        self.files.sync()
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
    use super::simulated::Disk;
    use super::*;

    /// Writes a file of some pieces. Returns whether it said that it is there.
    fn replace(disk: &Disk, contents: &[u8]) -> io::Result<()> {
        let mut file = Replacement::new(disk, "temp.rdb")?;
        for piece in contents.chunks(5_000) {
            file.write(piece)?;
        }
        file.replace("dump.rdb")
    }

    #[test]
    fn whenever_the_machine_stops_the_file_is_the_old_one_or_the_new_one() {
        let (old, new): (Vec<u8>, Vec<u8>) = (vec![b'o'; 30_000], (0..50_000).map(|at| at as u8).collect());
        let (mut olds, mut news) = (0, 0);
        for seed in 0..2_000 {
            let disk = Disk::new(seed);
            replace(&disk, &old).expect("nothing fails yet");
            disk.fail_from_now();
            let said = replace(&disk, &new);
            if disk.is_stopped() {
                assert!(said.is_err(), "seed {seed}");
            }
            let after = disk.crash();
            let found = after.read("dump.rdb").unwrap_or_else(|| panic!("seed {seed}: there is no file"));
            assert!(found == old || found == new, "seed {seed}: {} bytes", found.len());
            assert!(said.is_err() || found == new, "seed {seed}: it was said to be there");
            olds += u32::from(found == old);
            news += u32::from(found == new);
        }
        assert!(olds > 200 && news > 200, "{olds} old, {news} new");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = Directory::new(directory.path());
        let mut file = Replacement::new(&files, "temp.rdb").expect("it is created");
        file.write(b"half").expect("it is written");
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).expect("it is read").count(), 0);
        let mut file = Replacement::new(&files, "temp.rdb").expect("it is created");
        file.write(b"whole").expect("it is written");
        file.replace("dump.rdb").expect("it is there");
        let (mut found, len) = files.open("dump.rdb").expect("it is there");
        let mut text = String::new();
        found.read_to_string(&mut text).expect("it is read");
        assert_eq!((text.as_str(), len), ("whole", 5));
        assert_eq!(
            Replacement::new(&Directory::new("/none"), "x").err().map(|fault| fault.kind()),
            Some(io::ErrorKind::NotFound)
        );
    }
}
