//! The directory of the file system, by its descriptor: it stays the same one when it is renamed, and nobody changes the
//! directory of the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Entry, EntryKind, Files, Lock, OpenFile};

/// The mode of new files, before the umask, as Redis's.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// The mode of new directories, before the umask, as Redis's.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory of the file system.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory.
    pub(crate) fn open_path(path: &Path) -> io::Result<Directory> {
        Ok(Directory(rustix::fs::openat(
            CWD,
            path,
            OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?))
    }

    fn open_file(&self, name: &[u8], flags: OFlags) -> io::Result<Box<dyn OpenFile>> {
        let descriptor = rustix::fs::openat(&self.0, single(name)?, flags | OFlags::CLOEXEC, FILE_MODE)?;
        Ok(Box::new(File::from(descriptor)))
    }

    /// Opens a directory below this one, or this one once more.
    fn below(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)
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
    fn create(&self, name: &[u8]) -> io::Result<Box<dyn OpenFile>> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW)
    }

    fn open(&self, name: &[u8]) -> io::Result<Box<dyn OpenFile>> {
        self.open_file(name, OFlags::RDONLY)
    }

    fn append(&self, name: &[u8]) -> io::Result<Box<dyn OpenFile>> {
        self.open_file(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    fn entry(&self, name: &[u8]) -> io::Result<Option<Entry>> {
        let found = match rustix::fs::statat(&self.0, single(name)?, AtFlags::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            _ => EntryKind::Other,
        };
        Ok(Some(Entry { kind, bytes: u64::try_from(found.st_size).unwrap_or(0) }))
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
        Ok(rustix::fs::renameat(&self.0, single(from)?, &self.0, single(to)?)?)
    }

    fn remove(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, single(name)?, AtFlags::empty())?)
    }

    fn make_directory(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.0, single(name)?, DIRECTORY_MODE)?)
    }

    fn directory(&self, name: &[u8]) -> io::Result<Arc<dyn Files>> {
        Ok(Arc::new(Directory(self.below(single(name)?)?)))
    }

    fn sync_directory(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.0) {
            // Some file systems cannot sync directories, and Redis goes on with those, too.
            Err(Errno::BADF | Errno::INVAL) => Ok(()),
            result => Ok(result?),
        }
    }

    fn lock(&self) -> io::Result<Lock> {
        // The lock belongs to the description of the file, so it ends with this descriptor alone.
        let descriptor = self.below(b".")?;
        rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(descriptor))
    }
}

impl OpenFile for File {
    fn write_all_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, position)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        File::sync_data(self)
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
        let directory = Directory::open_path(path.path()).expect("it is there");
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
        assert_eq!(files.entry(b"two").unwrap(), Some(Entry { kind: EntryKind::File, bytes: 11 }));

        let mut file = files.append(b"two").unwrap();
        file.write_all(b"!").unwrap();
        file.truncate(3).unwrap();
        file.write_all(b"?").unwrap();
        assert_eq!(read(&files, b"two"), b"01a?");
        files.make_directory(b"below").unwrap();
        files.directory(b"below").unwrap().create(b"three").unwrap();
        assert_eq!(files.entry(b"below").unwrap().map(|entry| entry.kind), Some(EntryKind::Directory));
        let mut names = files.list().unwrap();
        names.sort();
        assert_eq!(names, [&b"below"[..], b"two"]);
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
        // The directory is the same one under another name.
        let moved = path.path().with_extension("moved");
        std::fs::rename(path.path(), &moved).unwrap();
        assert_eq!(read(&files, b"target"), b"kept");
        std::fs::rename(&moved, path.path()).unwrap();
    }

    #[test]
    fn one_owner_locks_the_directory() {
        let (path, files) = directory();
        let lock = files.lock().unwrap();
        let other = Directory::open_path(path.path()).unwrap();
        assert_eq!(other.lock().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(lock);
        assert!(other.lock().is_ok());
    }
}
