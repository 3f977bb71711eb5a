//! Files of a configuration that commands write: the file of users, and a redis.conf.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a file in the place of the one at a path, at once: in the same folder, with the mode of the old one, or else
/// readable for its owner alone, since it may have passwords. It is on the disk afterwards.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".tmp-{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // A file that an interrupted process left; a link there is removed and never followed.
    let _ = std::fs::remove_file(&temporary);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mode = std::fs::metadata(path).map(|old| old.permissions());
    let replaced = file
        .write_all(text)
        .and_then(|()| mode.map_or(Ok(()), |mode| file.set_permissions(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&temporary, path));
    replaced.inspect_err(|_| drop(std::fs::remove_file(&temporary)))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(directory)?.sync_all()
}
