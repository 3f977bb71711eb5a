//! Client libraries of other languages that the store is tested with, in `target/clients`.
//!
//! Each language's own tool brings the versions that `crates/store/tests/clients` pins, once: what is installed stands
//! with a copy of the file that pinned it, and is brought again only if that has changed. All run at a time.

use std::path::{Path, PathBuf};

use crate::run::{root, run_in};

/// One language.
struct Language {
    name: &'static str,
    /// The files that say what is wanted.
    pins: &'static [&'static str],
    /// Installs into the folder `to`, from the files in `from`.
    install: fn(from: &Path, to: &Path) -> Result<(), String>,
}

const LANGUAGES: &[Language] = &[
    Language { name: "python", pins: &["requirements.txt"], install: python },
    Language { name: "npm", pins: &["package.json", "package-lock.json"], install: npm },
    Language { name: "go", pins: &["goredis/go.mod", "goredis/go.sum", "goredis/main.go"], install: go },
    Language { name: "asynq", pins: &["asynq/go.mod", "asynq/go.sum", "asynq/main.go"], install: asynq },
    Language { name: "jedis", pins: &["pom.xml", "JedisClient.java"], install: jedis },
];

/// Makes sure every library is there; without `install` by saying what is missing.
pub fn ensure(install: bool) -> Result<(), String> {
    let (from, to) = (root().join("crates/store/tests/clients"), root().join("target/clients"));
    let missing: Vec<&Language> = LANGUAGES.iter().filter(|language| !language.is_there(&from, &to)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !install {
        let names: Vec<&str> = missing.iter().map(|language| language.name).collect();
        return Err(format!(
            "clients are missing in target/clients: {}\nhint: `cargo xtask test --install` brings them",
            names.join(", ")
        ));
    }
    let (from, to) = (&from, &to);
    std::thread::scope(|scope| {
        let runs: Vec<_> = missing.into_iter().map(|language| scope.spawn(move || language.bring(from, to))).collect();
        runs.into_iter().try_for_each(|run| run.join().unwrap_or_else(|_| Err("an installation panicked".to_owned())))
    })
}

impl Language {
    /// What the pins say; kept beside what they brought.
    fn wanted(&self, from: &Path) -> String {
        self.pins.iter().map(|pin| std::fs::read_to_string(from.join(pin)).unwrap_or_default()).collect()
    }

    fn stamp(&self, to: &Path) -> PathBuf {
        to.join(format!("{}.pins", self.name))
    }

    fn is_there(&self, from: &Path, to: &Path) -> bool {
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

fn python(from: &Path, to: &Path) -> Result<(), String> {
    run_in(to, "python3", &["-m", "venv", "."])?;
    let pins = from.join("requirements.txt");
    run_in(
        to,
        &to.join("bin/pip").to_string_lossy(),
        &["install", "--quiet", "--disable-pip-version-check", "-r", &pins.to_string_lossy()],
    )
}

fn npm(from: &Path, to: &Path) -> Result<(), String> {
    for pin in ["package.json", "package-lock.json"] {
        std::fs::copy(from.join(pin), to.join(pin)).map_err(|error| format!("{pin}: {error}"))?;
    }
    // Not `ci`, which wants optional parts for systems that nobody has here; what is installed is what is locked.
    run_in(to, "npm", &["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"])
}

fn go(from: &Path, to: &Path) -> Result<(), String> {
    go_program(from, to, "goredis")
}

fn asynq(from: &Path, to: &Path) -> Result<(), String> {
    go_program(from, to, "asynq")
}

fn go_program(from: &Path, to: &Path, name: &str) -> Result<(), String> {
    run_in(&from.join(name), "go", &["build", "-o", &to.join(name).to_string_lossy(), "."])
}

fn jedis(from: &Path, to: &Path) -> Result<(), String> {
    let (pom, folder) = (from.join("pom.xml"), format!("-DoutputDirectory={}", to.display()));
    let copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
    run_in(to, "mvn", &["-q", "-B", "-f", &pom.to_string_lossy(), copy, &folder])?;
    run_in(to, "javac", &["-cp", "*", "-d", ".", &from.join("JedisClient.java").to_string_lossy()])
}
