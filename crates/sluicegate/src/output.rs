//! Files that the process creates: pidfiles, logs and keys of accounts.
//!
//! They are often written by root in directories that other users may write to, so symbolic links are never followed.
//! Modes do not depend on the umask, except those of the files of a standalone store, for which it is set by whoever starts
//! a redis-server (Debian's unit and init script hide the log from others with it). Files below `/dev` or `/proc` are opened as they are: an administrator who
//! names `/dev/null` or `/dev/stdout` intends the device or link itself.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The mode of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Readable by everybody, like the files of HAProxy under the usual umask.
    Fixed,
    /// Like a file that Redis creates, but never writable by everybody.
    Umask,
}

/// The mode of [`Mode::Fixed`].
const FIXED: u32 = 0o644;
/// The mode of [`Mode::Umask`] before the umask.
const BEFORE_UMASK: u32 = 0o664;

/// Creates an empty file. An existing regular file or symbolic link at the path is removed first.
pub fn replace(path: &Path, mode: Mode) -> io::Result<File> {
    if is_device_path(path) {
        return OpenOptions::new().write(true).open(path);
    }
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() || meta.is_symlink()) {
        // If the directory is not writable, this fails, and the existing file is truncated below instead.
        let _ = std::fs::remove_file(path);
    }
    match create(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().write(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path)
        }
        created => created,
    }
}

/// Creates a file that its owner alone can read, with this content; fails if there is anything at the path.
pub fn create_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Opens a file for appending, and creates it if it does not exist. A symbolic link is followed only if it leads to a
/// pipe or a character device.
pub fn append(path: &Path, mode: Mode) -> io::Result<File> {
    if is_device_path(path) {
        return OpenOptions::new().append(true).open(path);
    }
    match create(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created,
    }
    match OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            let meta = std::fs::metadata(path)?;
            let kind = meta.file_type();
            if !kind.is_char_device() && !kind.is_fifo() {
                return Err(io::Error::other("it is a symbolic link: name the file that it leads to"));
            }
            OpenOptions::new().append(true).open(path)
        }
        opened => opened,
    }
}

/// Creates a new file; fails if anything, including a symbolic link, exists at the path.
fn create(path: &Path, mode: Mode) -> io::Result<File> {
    let create = |mode| OpenOptions::new().append(true).create_new(true).mode(mode).open(path);
    match mode {
        Mode::Fixed => {
            let file = create(FIXED)?;
            file.set_permissions(Permissions::from_mode(FIXED))?;
            Ok(file)
        }
        Mode::Umask => create(BEFORE_UMASK),
    }
}

/// Returns whether a path is opened as it is. `/dev/shm` and `/dev/mqueue` are excluded because they are directories
/// that everybody may write to.
fn is_device_path(path: &Path) -> bool {
    let below = |folder: &str| path.starts_with(folder);
    (below("/dev") && !below("/dev/shm") && !below("/dev/mqueue")) || below("/proc")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (target, path) = (dir.path().join("target"), dir.path().join("pid"));
        std::fs::write(&target, "precious").unwrap();
        for leads_to in [target.clone(), dir.path().join("nowhere")] {
            let _ = std::fs::remove_file(&path);
            symlink(&leads_to, &path).unwrap();
            replace(&path, Mode::Fixed).unwrap().write_all(b"7\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "7\n");
            assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        }
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        assert!(!dir.path().join("nowhere").exists());
        replace(&path, Mode::Fixed).unwrap().write_all(b"8\n").unwrap();
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("8\n", FIXED));
    }

    #[test]
    fn a_log_is_appended_to_and_never_through_a_link_to_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let (target, path, link) = (dir.path().join("target"), dir.path().join("log"), dir.path().join("link"));
        for text in ["a", "b"] {
            append(&path, Mode::Fixed).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("ab", FIXED));
        std::fs::write(&target, "precious").unwrap();
        symlink(&target, &link).unwrap();
        assert!(append(&link, Mode::Fixed).unwrap_err().to_string().contains("symbolic link"));
        std::fs::remove_file(&link).unwrap();
        symlink(dir.path().join("nowhere"), &link).unwrap();
        append(&link, Mode::Fixed).unwrap_err();
        assert!(!dir.path().join("nowhere").exists());
        std::fs::remove_file(&link).unwrap();
        symlink("/dev/null", &link).unwrap();
        append(&link, Mode::Fixed).unwrap().write_all(b"x").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }

    #[test]
    fn devices_are_opened_as_they_are() {
        replace(Path::new("/dev/null"), Mode::Fixed).unwrap().write_all(b"x").unwrap();
        append(Path::new("/dev/null"), Mode::Fixed).unwrap().write_all(b"x").unwrap();
        assert!(Path::new("/dev/null").exists());
        assert!(!is_device_path(Path::new("/dev/shm/x")) && !is_device_path(Path::new("/development")));
    }
}
