//! STOPGAP: replaced by the files module.
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

pub trait Files: Send + Sync {
    fn dir(&self) -> PathBuf;
}

pub struct Directory(pub PathBuf);

impl Files for Directory {
    fn dir(&self) -> PathBuf {
        self.0.clone()
    }
}

pub(crate) struct Replacement<'f> {
    files: &'f dyn Files,
    file: File,
    temp: PathBuf,
}

impl<'f> Replacement<'f> {
    pub(crate) fn new(files: &'f dyn Files, temp: &str) -> io::Result<Replacement<'f>> {
        let temp = files.dir().join(temp);
        Ok(Replacement { files, file: File::create(&temp)?, temp })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(crate) fn replace(self, name: &str) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.temp, self.files.dir().join(name))
    }
}
