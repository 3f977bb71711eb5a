//! The working directory of scripts' bodies: `default-path` starts them in another one, as HAProxy does.

use std::fs::File;
use std::io;
use std::path::Path;

/// The changed working directory; dropping this restores the previous one.
pub(super) struct Entered {
    back: File,
}

impl Entered {
    /// Changes to a directory.
    ///
    /// If other threads serve (`shared`), the calling thread first unshares its working directory, so that theirs is
    /// unchanged. If that is not possible, it returns `None`: the body was run in a separate process before, which
    /// found the directory, while this process may be confined to another root.
    pub(super) fn enter(directory: &Path, shared: bool) -> io::Result<Option<Entered>> {
        if shared && !own_directory() {
            return Ok(None);
        }
        let entered = File::open(".").and_then(|back| {
            std::env::set_current_dir(directory)?;
            Ok(Entered { back })
        });
        match entered {
            Err(_) if shared => Ok(None),
            entered => entered.map(Some),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // The directory was the working directory a moment ago; a failure leaves nothing to do.
        let _ = rustix::process::fchdir(&self.back);
    }
}

/// Gives the calling thread a working directory of its own; returns `false` if the system refuses.
fn own_directory() -> bool {
    // SAFETY: the call changes what the kernel shares between threads and touches no memory.
    unsafe { libc::unshare(libc::CLONE_FS) == 0 }
}
