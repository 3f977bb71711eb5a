//! Packages of other languages at pinned versions, each installed once into a folder below `target`.
//!
//! A copy of the files that pin the versions is stored with each installation; the installation is repeated only if
//! those files change. Installations run in parallel.

use std::path::{Path, PathBuf};

use crate::run::{root, run_in, side_by_side};

/// One installation.
pub struct Pinned {
    /// The name of the installation's folder.
    pub name: &'static str,
    /// The files that pin versions, relative to the set's source folder.
    pub pins: &'static [&'static str],
    /// Installs into the folder `to`, from the files in `from`.
    pub install: fn(from: &Path, to: &Path) -> Result<(), String>,
}

/// A group of related installations.
pub struct Set {
    /// The plural noun for the installations in messages.
    pub what: &'static str,
    /// The folder of the pin files, relative to the workspace.
    pub from: &'static str,
    /// The folder below `target` that holds the installations.
    pub to: &'static str,
    /// The installations of this set.
    pub members: &'static [Pinned],
}

impl Set {
    /// Installs missing packages. If `install` is false, returns an error that lists them instead.
    pub fn ensure(&self, install: bool) -> Result<(), String> {
        let (from, to) = (&root().join(self.from), &root().join("target").join(self.to));
        let missing: Vec<&Pinned> = self.members.iter().filter(|member| !member.is_installed(from, to)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if !install {
            let names: Vec<&str> = missing.iter().map(|member| member.name).collect();
            return Err(format!(
                "{} are missing in target/{}: {}\nhint: `cargo xtask test --install` installs them",
                self.what,
                self.to,
                names.join(", ")
            ));
        }
        let steps: Vec<_> = missing.into_iter().map(|member| move || member.bring(from, to)).collect();
        side_by_side(&steps.iter().map(|step| step as _).collect::<Vec<_>>())
    }
}

impl Pinned {
    /// Returns the text of the pin files, which is kept with the installation.
    fn wanted(&self, from: &Path) -> String {
        self.pins.iter().map(|pin| std::fs::read_to_string(from.join(pin)).unwrap_or_default()).collect()
    }

    fn stamp(&self, to: &Path) -> PathBuf {
        to.join(format!("{}.pins", self.name))
    }

    fn is_installed(&self, from: &Path, to: &Path) -> bool {
        std::fs::read_to_string(self.stamp(to)).is_ok_and(|stamp| stamp == self.wanted(from))
    }

    fn bring(&self, from: &Path, to: &Path) -> Result<(), String> {
        let (folder, stamp) = (to.join(self.name), self.stamp(to));
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let _ = std::fs::remove_file(&stamp);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        (self.install)(from, &folder)?;
        std::fs::write(&stamp, self.wanted(from)).map_err(failed)
    }
}

/// Creates a Python environment in `to` with the packages of `requirements.txt` in `from`.
pub fn python(from: &Path, to: &Path) -> Result<(), String> {
    run_in(to, "python3", &["-m", "venv", "."])?;
    let pins = from.join("requirements.txt");
    run_in(
        to,
        &to.join("bin/pip").to_string_lossy(),
        &["install", "--quiet", "--disable-pip-version-check", "-r", &pins.to_string_lossy()],
    )
}
