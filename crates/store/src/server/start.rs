//! The files that a store begins with: `dbfilename` in `dir`, or the append-only file.
//!
//! It is opened before the store serves, so a file that cannot be read is noticed at once, and loaded while it serves:
//! clients, rules and Lua get the error LOADING until then. A file that is damaged is never served in part.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use rustix::fs::{Gid, Uid};

use super::Server;
use crate::aof::parts::{Found, Parts};
use crate::files::{identity_of, reason};
use crate::levels::{NOTICE, WARNING};
use crate::replay::ReplayOptions;
use crate::replication::Moment;
use crate::thread::block_on;
use crate::{Directory, Load, LoadOptions};

pub(super) const NEEDS_DIR: &str = "'appendonly yes' needs a directory: set 'dir'";

const BUSY: &str = "a file is being loaded already";

/// A data set that has begun to be loaded: commands are refused.
#[must_use = "the store serves once it is loaded"]
pub struct Beginning {
    server: Arc<Server>,
    source: Source,
    load: Load,
}

/// What it is loaded from.
enum Source {
    Rdb(PathBuf, File),
    AppendOnly(Box<Parts>),
}

impl std::fmt::Debug for Beginning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Source::Rdb(path, _) => write!(f, "a store of {}", path.display()),
            Source::AppendOnly(_) => f.write_str("a store of append-only files"),
        }
    }
}

impl Server {
    /// Opens the files that the store begins with: those of the append-only file if that is on, as in Redis even if there
    /// are none yet, otherwise the RDB file. [`None`] if there is nothing to load. The error says what is wrong.
    pub fn begin(self: &Arc<Self>) -> Result<Option<Beginning>, String> {
        self.renew_link_tls()?;
        let beginning = self.begin_with_files()?;
        // The link waits for the end of the load.
        self.follow_configured().map_err(|error| format!("Can't start the link to the master: {}", reason(&error)))?;
        Ok(beginning)
    }

    fn begin_with_files(self: &Arc<Self>) -> Result<Option<Beginning>, String> {
        let options = self.options();
        if options.dir.is_empty() {
            return match options.appendonly {
                true => Err(NEEDS_DIR.into()),
                false => Ok(None),
            };
        }
        let [dir, name] = [&options.dir, &options.dbfilename].map(|part| PathBuf::from(OsStr::from_bytes(part)));
        // A directory that is missing is a mistake, unlike a file that is missing.
        std::fs::metadata(dir.join("."))
            .map_err(|error| format!("Can't chdir to '{}': {}", dir.display(), reason(&error)))?;
        let saver = &self.store.0.saver;
        // The directory is opened while its path is valid: the process may be about to change its root.
        let found = saver.files().and_then(|files| files.entry(&options.dbfilename).ok().flatten());
        if options.appendonly {
            saver.begin_with(found.map(|entry| entry.identity()));
            return self.begin_append_only(&dir, &name);
        }
        if options.dbfilename.is_empty() {
            return Ok(None);
        }
        let path = dir.join(name);
        let opened = File::open(&path).and_then(|file| {
            let found = file.metadata()?;
            saver.begin_with(Some(identity_of(&found)));
            Ok((file, found.is_file().then_some(found.len())))
        });
        match opened {
            Ok((file, size)) => {
                let load = self.store.begin_load(size).ok_or(BUSY)?;
                Ok(Some(Beginning { server: self.clone(), source: Source::Rdb(path, file), load }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                saver.begin_with(None);
                Ok(None)
            }
            Err(error) => {
                Err(format!("Fatal error: can't open the RDB file {} for reading: {}", path.display(), reason(&error)))
            }
        }
    }

    /// Gives the files of the append-only file to the user and the group that the process is about to have, so that it can
    /// replace them. What others own, and all files if the process is not root, stays as it is.
    pub fn give_files(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let options = self.options();
        if !rustix::process::geteuid().is_root() || !options.appendonly || options.dir.is_empty() {
            return Ok(());
        }
        let [user, group] = [user, group];
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        Directory::new(OsStr::from_bytes(&options.dir)).give(
            &options.appenddirname,
            &options.appendfilename,
            user,
            group,
        )
    }

    fn begin_append_only(self: &Arc<Self>, dir: &Path, rdb: &Path) -> Result<Option<Beginning>, String> {
        let (parts, found) = self.store.find_append_only(&Directory::new(dir)).map_err(|fault| fault.to_string())?;
        if found == Found::Old {
            let options = self.options();
            let [name, directory] = [&options.appendfilename, &options.appenddirname].map(|name| name.escape_ascii());
            self.log(
                NOTICE,
                &format!("Successfully migrated an old-style AOF file ({name}) into the AOF directory ({directory})."),
            );
        }
        if found == Found::Nothing {
            let rdb = dir.join(rdb);
            if rdb.is_file() {
                let path = rdb.display();
                self.log(
                    WARNING,
                    &format!(
                        "There is no append-only file yet, so the store begins empty, as in Redis: {path} is not loaded. To \
                         take it over, start with 'appendonly no' and then CONFIG SET appendonly yes."
                    ),
                );
            }
            self.store.append_to(parts, 0).map_err(|error| cannot_append(&error))?;
            return Ok(None);
        }
        let load = self.store.begin_load(None).ok_or(BUSY)?;
        Ok(Some(Beginning { server: self.clone(), source: Source::AppendOnly(Box::new(parts)), load }))
    }

    /// Writes what was recorded, empties the store and replays the append-only file, while others wait as during the load
    /// at a start. Returns false after an error, which is logged. Waits for the end: to be called on a thread that may.
    pub(super) fn load_append_only_again(&self) -> bool {
        // Files that are switched off or on, or rewritten, are not read.
        let mut switched = pin!(self.switched());
        block_on(|context| switched.as_mut().poll(context));
        let (options, store) = (self.options(), &self.store);
        if let Some(job) = store.0.saver.job().filter(|job| job.is_rewrite()) {
            job.wait_for_end();
        }
        let Some(load) = store.begin_load(None) else { return false };
        let _pause = store.0.link.pause();
        let was_open = store.0.appender.is_open();
        let replayed = store
            .end_appending()
            .map_err(|error| cannot_append(&error))
            .and_then(|()| {
                let dir = Directory::new(OsStr::from_bytes(&options.dir));
                store.find_append_only(&dir).map_err(|fault| fault.to_string())
            })
            .and_then(|(parts, _)| {
                store.0.without_stream(|| {
                    store.0.empty();
                    replay(self, parts, &load, was_open)
                })
            });
        match replayed {
            Ok(_) => self.log(NOTICE, "Append Only File loaded by DEBUG LOADAOF"),
            Err(text) => {
                // What is left of the data set is not served, nor recorded.
                load.never_end();
                self.log(WARNING, &text);
                return false;
            }
        }
        true
    }

    /// Returns the part of a file that is loaded, in percent.
    pub fn loaded_percent(&self) -> f64 {
        self.store.0.loading.estimate(0).0
    }
}

impl Beginning {
    /// Loads it, with Redis's log lines, and waits for the end. After an error, which says what is wrong, the store goes on
    /// to refuse commands.
    pub fn load(self) -> Result<(), String> {
        let Beginning { server, source, load } = self;
        let loaded = match source {
            Source::Rdb(path, file) => load_rdb(&server, &path, file, &load),
            Source::AppendOnly(parts) => replay(&server, *parts, &load, true).map(|moment| (moment, None)),
        };
        match loaded {
            Ok((moment, last)) => {
                match moment {
                    Some(moment) => server.store.0.resume(moment),
                    None => server.store.0.replication.begin_anew(),
                }
                // Whoever reads the last line finds a store that serves.
                drop(load);
                last.into_iter().for_each(|line| server.log(NOTICE, &line));
                Ok(())
            }
            Err(text) => {
                load.never_end();
                server.log(WARNING, &text);
                Err(text)
            }
        }
    }
}

/// Returns the moment of the stream that the file names, and a last line for the log.
fn load_rdb(server: &Server, path: &Path, file: File, load: &Load) -> Result<(Option<Moment>, Option<String>), String> {
    let (checks, keeps_expired) = (server.options().rdbchecksum, server.options().replicaof.is_some());
    let log = |level: u8, text: &str| server.log(level, text);
    let options =
        LoadOptions { checks, keeps_expired, tells_replicas: !keeps_expired, log: &log, ..LoadOptions::default() };
    if options.tells_replicas {
        server.store.0.replication.begin_load();
    }
    let loaded = load.run(file, options);
    let loaded = loaded.map_err(|fault| {
        if let Some(line) = fault.internal() {
            server.log(WARNING, &line);
        }
        format!("{}: {fault}", path.display())
    })?;
    server.log(NOTICE, &loaded.told());
    Ok((loaded.moment, Some(format!("DB loaded from disk: {:.3} seconds", loaded.took.as_secs_f64()))))
}

/// Replays append-only files, and begins to append to them, if wanted, before the store serves.
fn replay(server: &Server, parts: Parts, load: &Load, appends: bool) -> Result<Option<Moment>, String> {
    let options = server.options();
    let log = |level: u8, text: &str| server.log(level, text);
    let (checks, accepts_cut) = (options.rdbchecksum, options.aof_load_truncated);
    let replayed =
        load.replay(&parts, ReplayOptions { checks, accepts_cut, log: &log }).map_err(|fault| fault.to_string())?;
    server.log(NOTICE, &format!("DB loaded from append only file: {:.3} seconds", replayed.took.as_secs_f64()));
    if appends {
        server.store.append_to(parts, replayed.last_bytes).map_err(|error| cannot_append(&error))?;
    }
    Ok(replayed.moment)
}

pub(super) fn cannot_append(error: &io::Error) -> String {
    format!("Can't open the append-only file: {}", reason(error))
}
