//! A directory of the file system, by its descriptor: it stays the same one when it is renamed, as the working directory
//! does that Redis changes to, and the process's own one is not changed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{Entry, EntryKind, File, Files, Lock};

/// Flags with which directories are opened.
const DIRECTORY_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// The mode of new files, before the umask, as Redis's.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// The mode of new directories, before the umask, as Redis's.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory of the file system. It is opened when it is first used.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    descriptor: OnceLock<OwnedFd>,
}

impl Directory {
    /// Returns the directory at a path.
    pub fn new(path: impl Into<PathBuf>) -> Directory {
        Directory { path: path.into(), descriptor: OnceLock::new() }
    }

    /// Returns the path at which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives what this process's user owns in the directory `name` to another user, and that directory itself: the files
    /// whose names begin with `start`. Links are not followed, and files with several names are left alone.
    pub fn give(&self, name: &[u8], start: &[u8], user: Option<Uid>, group: Option<Gid>) -> io::Result<()> {
        let directory = self.below(name)?;
        let mine = rustix::process::geteuid().as_raw();
        let give = |name: &[u8]| -> io::Result<()> {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&found)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_file = kind == FileType::RegularFile && stat.st_nlink == 1;
            if stat.st_uid == mine && (is_file || kind == FileType::Directory) {
                rustix::fs::chownat(&found, "", user, group, AtFlags::EMPTY_PATH)?;
            }
            Ok(())
        };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(start) {
                give(entry.file_name().to_bytes())?;
            }
        }
        give(b".")
    }

    fn descriptor(&self) -> io::Result<&OwnedFd> {
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor);
        }
        let opened = rustix::fs::openat(CWD, &self.path, DIRECTORY_FLAGS, Mode::empty())?;
        Ok(self.descriptor.get_or_init(|| opened))
    }

    fn open_file(&self, name: &[u8], flags: OFlags) -> io::Result<Box<dyn File>> {
        let flags = flags | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(self.descriptor()?, single(name)?, flags, FILE_MODE)?;
        Ok(Box::new(fs::File::from(descriptor)))
    }

    /// Opens a directory in this one, or this one once more.
    fn below(&self, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(self.descriptor()?, name, DIRECTORY_FLAGS, Mode::empty())?)
    }
}

/// Refuses names that lead out of the directory.
fn single(name: &[u8]) -> io::Result<&[u8]> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Errno::INVAL.into());
    }
    Ok(name)
}

impl Files for Directory {
    fn create(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW)
    }

    fn open(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        self.open_file(name, OFlags::RDONLY)
    }

    fn append(&self, name: &[u8]) -> io::Result<Box<dyn File>> {
        self.open_file(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    fn entry(&self, name: &[u8]) -> io::Result<Option<Entry>> {
        let found = match rustix::fs::statat(self.descriptor()?, single(name)?, AtFlags::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            _ => EntryKind::Other,
        };
        Ok(Some(Entry {
            kind,
            bytes: u64::try_from(found.st_size).unwrap_or(0),
            number: found.st_ino,
            modified: (found.st_mtime as i64, found.st_mtime_nsec as i64),
        }))
    }

    fn list(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.below(b".")?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.descriptor()?, single(from)?, self.descriptor()?, single(to)?)?)
    }

    fn remove(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.descriptor()?, single(name)?, AtFlags::empty())?)
    }

    fn make_directory(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self.descriptor()?, single(name)?, DIRECTORY_MODE)?)
    }

    fn directory(&self, name: &[u8]) -> io::Result<Arc<dyn Files>> {
        let descriptor = self.below(single(name)?)?;
        let path = self.path.join(OsStr::from_bytes(name));
        Ok(Arc::new(Directory { path, descriptor: descriptor.into() }))
    }

    fn link_below(&self, name: &[u8], directory: &[u8]) -> io::Result<()> {
        let below = self.below(single(directory)?)?;
        Ok(rustix::fs::linkat(self.descriptor()?, single(name)?, below, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        match rustix::fs::fsync(self.descriptor()?) {
            // Some file systems cannot sync directories, and Redis goes on with those, too.
            Err(Errno::BADF | Errno::INVAL) => Ok(()),
            result => Ok(result?),
        }
    }

    fn lock(&self, name: &[u8]) -> io::Result<Lock> {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(self.descriptor()?, single(name)?, flags, FILE_MODE)?;
        rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(FileLock(descriptor)))
    }
}

/// A lock of a file. It belongs to the description of the file, which a process that was forked shares until it runs
/// another program: so it is not enough to close the descriptor.
struct FileLock(OwnedFd);

impl Drop for FileLock {
    fn drop(&mut self) {
        // It cannot fail for a file that was locked.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl File for fs::File {
    fn write_all_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, position)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        fs::File::sync_data(self)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let path = tempfile::tempdir().expect("a directory");
        let directory = Directory::new(path.path());
        (path, directory)
    }

    #[track_caller]
    fn read(files: &dyn Files, name: &[u8]) -> Vec<u8> {
        let mut contents = Vec::new();
        files.open(name).expect("a file").read_to_end(&mut contents).expect("readable");
        contents
    }

    #[test]
    fn files_are_written_renamed_and_removed() {
        let (path, files) = directory();
        let mut file = files.create(b"one").unwrap();
        file.write_all(b"0123456789").unwrap();
        file.write_all_at(b"ab", 2).unwrap();
        file.write_all(b"x").unwrap();
        file.sync_data().unwrap();
        assert_eq!((read(&files, b"one"), file.length().unwrap()), (b"01ab456789x".to_vec(), 11));
        let mode = std::fs::metadata(path.path().join("one")).unwrap().permissions().mode();
        assert_eq!(mode & 0o133, 0, "{mode:o}");
        files.rename(b"one", b"two").unwrap();
        files.sync_directory().unwrap();
        assert_eq!(files.entry(b"one").unwrap(), None);
        let entry = files.entry(b"two").unwrap().expect("it is there");
        assert_eq!((entry.kind, entry.bytes), (EntryKind::File, 11));

        let mut file = files.append(b"two").unwrap();
        file.write_all(b"!").unwrap();
        file.truncate(3).unwrap();
        file.write_all(b"?").unwrap();
        file.sync_data().unwrap();
        assert_eq!(read(&files, b"two"), b"01a?");
        files.make_directory(b"below").unwrap();
        files.directory(b"below").unwrap().create(b"three").unwrap();
        assert_eq!(files.entry(b"below").unwrap().map(|entry| entry.kind), Some(EntryKind::Directory));
        let mut names = files.list().unwrap();
        names.sort();
        assert_eq!(names, [&b"below"[..], b"two"]);
        files.link_below(b"two", b"below").unwrap();
        let linked = files.directory(b"below").unwrap().entry(b"two").unwrap();
        assert!(linked.is_some() && linked == files.entry(b"two").unwrap());
        files.remove(b"two").unwrap();
        assert_eq!(files.list().unwrap(), [b"below"]);
        let error = files.open(b"two").map(drop).unwrap_err();
        assert_eq!(super::super::reason(&error), "No such file or directory");
    }

    #[test]
    fn names_stay_in_the_directory_and_links_are_not_overwritten() {
        let (path, files) = directory();
        for name in [&b""[..], b".", b"..", b"a/b", b"/a"] {
            assert_eq!(files.create(name).map(drop).unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
        }
        std::fs::write(path.path().join("target"), "kept").unwrap();
        std::os::unix::fs::symlink("target", path.path().join("link")).unwrap();
        assert!(files.create(b"link").is_err());
        assert_eq!(read(&files, b"link"), b"kept");
        let missing = Directory::new(path.path().join("none"));
        assert_eq!(missing.create(b"a").map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        // The directory is the same one under another name.
        let moved = path.path().with_extension("moved");
        std::fs::rename(path.path(), &moved).unwrap();
        assert_eq!(read(&files, b"target"), b"kept");
        std::fs::rename(&moved, path.path()).unwrap();
    }

    #[test]
    fn one_owner_locks_the_directory() {
        let (path, files) = directory();
        let lock = files.lock(b"lock").unwrap();
        let other = Directory::new(path.path());
        assert!(other.lock(b"another").is_ok());
        assert_eq!(other.lock(b"lock").map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(lock);
        assert!(other.lock(b"lock").is_ok());
        // As in a process that was forked and has not run another program yet.
        let locked = fs::File::open(path.path().join("lock")).unwrap();
        rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let _of_child = locked.try_clone().unwrap();
        drop(FileLock(locked.into()));
        assert!(other.lock(b"lock").is_ok());
    }
}
