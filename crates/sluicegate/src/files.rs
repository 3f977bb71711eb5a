//! File access for the configuration.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sluicegate_config::{Files, recorded_listing, recorded_name};

/// Reads through the file system.
pub struct Disk;

/// The maximum size of a configuration file; a larger one is a mistake (a device, a log file).
const FILE_LIMIT: u64 = 64 << 20;

impl Files for Disk {
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn opens(&self, path: &Path) -> bool {
        std::fs::File::open(path).is_ok()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(FILE_LIMIT + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_LIMIT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {} MiB", FILE_LIMIT >> 20)));
        }
        Ok(bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let path = entry?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if path.extension().is_some_and(|extension| extension == "cfg") && !hidden && path.is_file() {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if std::fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file()) {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

/// The disk, with a record of the files read, for a process that cannot read them.
#[derive(Default)]
pub struct Recorder(Mutex<HashMap<PathBuf, Vec<u8>>>);

impl Recorder {
    /// Returns everything that has been read so far.
    pub fn take(&self) -> Vec<(PathBuf, Vec<u8>)> {
        std::mem::take(&mut *self.0.lock()).into_iter().collect()
    }
}

impl Files for Recorder {
    fn is_directory(&self, path: &Path) -> bool {
        Disk.is_directory(path)
    }

    fn opens(&self, path: &Path) -> bool {
        Disk.opens(path)
    }

    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let addresses = Disk.resolve(host)?;
        let (path, answer) = recorded_name(host, &addresses);
        self.0.lock().insert(path, answer);
        Ok(addresses)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // A second read of a file returns the same content as the first.
        if let Some(known) = self.0.lock().get(path) {
            return Ok(known.clone());
        }
        let bytes = Disk.read(path)?;
        self.0.lock().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        Disk.list(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = Disk.names(path)?;
        let (record, listing) = recorded_listing(path, &names);
        self.0.lock().insert(record, listing);
        Ok(names)
    }
}
