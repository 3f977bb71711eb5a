//! The file that a store begins with: `dbfilename` in `dir`.
//!
//! It is opened before the store serves, so a file that cannot be read is noticed at once, and loaded while it serves:
//! clients, rules and Lua get the error LOADING until then. A file that is damaged is never served in part.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::Server;
use crate::config::ServerOptions;
use crate::files::reason;
use crate::{Directory, Load, LoadOptions};

/// Levels of log lines.
const NOTICE: u8 = 2;
const WARNING: u8 = 3;

/// A file that has begun to be loaded: commands are refused.
#[must_use = "the store serves once it is loaded"]
pub struct Beginning {
    server: Arc<Server>,
    path: PathBuf,
    file: File,
    load: Load,
}

impl std::fmt::Debug for Beginning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a store of {}", self.path.display())
    }
}

impl Server {
    /// Opens the file that the store begins with. [`None`] if there is none, or if the store has no directory. The error
    /// says what is wrong.
    pub fn begin(self: &Arc<Self>) -> Result<Option<Beginning>, String> {
        let options = self.options();
        if options.dir.is_empty() {
            return Ok(None);
        }
        let [dir, name] = [&options.dir, &options.dbfilename].map(|part| PathBuf::from(OsStr::from_bytes(part)));
        // A directory that is missing is a mistake, unlike a file that is missing.
        std::fs::metadata(dir.join("."))
            .map_err(|error| format!("Can't chdir to '{}': {}", dir.display(), reason(&error)))?;
        if options.dbfilename.is_empty() {
            return Ok(None);
        }
        let path = dir.join(name);
        let opened = File::open(&path).and_then(|file| {
            let size = file.metadata()?;
            Ok((file, size.is_file().then_some(size.len())))
        });
        match opened {
            Ok((file, size)) => {
                let server = self.clone();
                let load = self.store.begin_load(size).ok_or("a file is being loaded already")?;
                Ok(Some(Beginning { server, path, file, load }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(format!("Fatal error: can't open the RDB file {} for reading: {}", path.display(), reason(&error)))
            }
        }
    }

    /// Begins to append to a file, or ends that. The errors are Redis's text and a line for the log.
    pub(super) fn switch_appending(&self, options: &ServerOptions) -> Result<(), (String, Option<String>)> {
        if !options.appendonly {
            // Waits for scripts and for the disk, which a worker must not.
            let store = self.store.clone();
            let end = move || {
                // The file is closed in any case, and the log has the error.
                let _ = store.end_appending();
            };
            let thread = std::thread::Builder::new().name("store-append-end".into()).spawn(end);
            return thread.map(drop).map_err(|error| (reason(&error), None));
        }
        if options.dir.is_empty() {
            return Err(("this store has no directory; set 'dir' in its section".into(), None));
        }
        let directory = Directory::new(OsStr::from_bytes(&options.dir));
        self.store
            .begin_to_append(&directory)
            .map_err(|fault| ("Unable to turn on AOF. Check server logs.".to_owned(), Some(fault.to_string())))
    }

    /// Returns the part of a file that is loaded, in percent.
    pub fn loaded_percent(&self) -> f64 {
        self.store.0.loading.estimate(0).0
    }
}

impl Beginning {
    /// Loads the file, with Redis's log lines, and waits for the end. After an error, which says what is wrong, the store
    /// goes on to refuse commands.
    pub fn load(self) -> Result<(), String> {
        let Beginning { server, path, file, load } = self;
        let checks = server.options().rdbchecksum;
        let log = |level: u8, text: &str| server.log(level, text);
        match load.run(file, LoadOptions { checks, log: &log, ..LoadOptions::default() }) {
            Ok(loaded) => {
                let empty = match loaded.empty {
                    0 => String::new(),
                    empty => format!(", empty keys skipped: {empty}"),
                };
                let (keys, expired) = (loaded.keys, loaded.expired);
                server.log(NOTICE, &format!("Done loading RDB, keys loaded: {keys}, keys expired: {expired}{empty}."));
                server.log(NOTICE, &format!("DB loaded from disk: {:.3} seconds", loaded.took.as_secs_f64()));
                Ok(())
            }
            Err(fault) => {
                load.never_end();
                let text = format!("{}: {fault}", path.display());
                server.log(WARNING, &text);
                Err(text)
            }
        }
    }
}
