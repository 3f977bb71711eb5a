//! The file of a report.
//!
//! A symbolic link with its name is not followed, except below `/dev` and `/proc` (`/dev/stdout` is a link); a new file
//! has the same mode whatever the umask.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The mode of the file: readable by everybody.
const MODE: u32 = 0o644;

/// Writes a report, replacing an existing file.
pub(super) fn write(path: &Path, report: &str) -> Result<(), String> {
    let writing = || -> io::Result<()> {
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(MODE))?;
                file
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let named = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
                let flags = if named { 0 } else { rustix::fs::OFlags::NOFOLLOW.bits() as i32 };
                OpenOptions::new().write(true).truncate(true).custom_flags(flags).open(path)?
            }
            Err(error) => return Err(error),
        };
        file.write_all(report.as_bytes())
    };
    writing().map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_a_file_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (target, path, link) = (dir.path().join("target"), dir.path().join("report"), dir.path().join("link"));
        for text in ["longer", "short"] {
            write(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, MODE);
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, "x").unwrap_err();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        write(Path::new("/dev/null"), "x").unwrap();
    }
}
