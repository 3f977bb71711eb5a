//! `cargo xtask package`: a `.deb` of the program, put together from `packaging/` and the documents.
//!
//! `--program PATH` packages an existing program; without it the [optimised](crate::release) one is built. The package
//! and a file with the program's symbols are written to the DIRECTORY of `--to`, by default `target/package`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::prelude::{Long, ValueExt};

use crate::release;
use crate::run::{output, root};

/// Files of the package: from where in the workspace, to where, with which mode.
const FILES: [(&str, &str, u32); 9] = [
    ("packaging/sluicegate.cfg", "etc/sluicegate/sluicegate.cfg", 0o644),
    ("packaging/sluicegate.default", "etc/default/sluicegate", 0o644),
    ("packaging/sluicegate.service", "lib/systemd/system/sluicegate.service", 0o644),
    ("packaging/debian/copyright", "usr/share/doc/sluicegate/copyright", 0o644),
    ("LICENSE", "usr/share/doc/sluicegate/LICENSE", 0o644),
    ("README.md", "usr/share/doc/sluicegate/README.md", 0o644),
    ("CHANGELOG.md", "usr/share/doc/sluicegate/CHANGELOG.md", 0o644),
    ("docs/guide", "usr/share/doc/sluicegate/guide", 0o755),
    ("docs/reference", "usr/share/doc/sluicegate/reference", 0o755),
];

/// Control files for dpkg, with their modes.
const CONTROL: [(&str, u32); 4] = [("conffiles", 0o644), ("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755)];

/// Makes the package.
pub fn package(words: &[&str]) -> Result<(), String> {
    let mut parser = lexopt::Parser::from_args(words);
    let (mut program, mut to) = (None, root().join("target/package"));
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("program") => program = Some(PathBuf::from(value(&mut parser)?)),
            Long("to") => to = PathBuf::from(value(&mut parser)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let program = match program {
        Some(program) => program,
        None => release::program(true)?,
    };
    let made = build(&program, &to).map_err(|error| format!("the package can't be made: {error}"))?;
    println!("{}", made.display());
    Ok(())
}

fn value(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())
}

/// Puts the tree together and packs it; gives the file.
fn build(program: &Path, to: &Path) -> std::io::Result<PathBuf> {
    let tree = to.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    place(program, &tree.join("usr/bin/sluicegate"), 0o755)?;
    for (from, name, mode) in FILES {
        place(&root().join(from), &tree.join(name), mode)?;
    }
    fs::create_dir_all(tree.join("usr/lib/sluicegate"))?;
    symlink("../../bin/sluicegate", tree.join("usr/lib/sluicegate/haproxy"))?;
    let architecture = output("dpkg", &["--print-architecture"]).unwrap_or_else(|| String::from("amd64"));
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture.trim());
    let control = tree.join("DEBIAN");
    fs::create_dir_all(&control)?;
    for (name, mode) in CONTROL {
        place(&root().join("packaging/debian").join(name), &control.join(name), mode)?;
    }
    let size = fs::metadata(program)?.len().div_ceil(1024).to_string();
    let text = fs::read_to_string(root().join("packaging/debian/control"))?;
    let text = text.replace("@VERSION@", version).replace("@ARCHITECTURE@", architecture).replace("@SIZE@", &size);
    fs::write(control.join("control"), text)?;
    let made = to.join(format!("sluicegate_{version}_{architecture}.deb"));
    let packed = Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(&made).output()?;
    if !packed.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&packed.stderr).into_owned()));
    }
    fs::remove_dir_all(tree)?;
    let symbols = program.with_extension(release::SYMBOLS);
    if symbols.exists() {
        fs::copy(symbols, made.with_extension(release::SYMBOLS))?;
    }
    Ok(made)
}

/// Copies a file, or a folder with the files in it.
fn place(from: &Path, to: &Path, mode: u32) -> std::io::Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            place(&entry.path(), &to.join(entry.file_name()), 0o644)?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().expect("a file lies in a folder"))?;
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dpkg_deb(words: &[&str], path: &Path) -> String {
        let ended = Command::new("dpkg-deb").args(words).arg(path).output().expect("dpkg-deb is there");
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    /// A package around any program, taken apart again: what is in it, who owns it, what dpkg is told and does.
    #[test]
    fn a_package_is_built_and_unpacks() {
        let to = std::env::temp_dir().join(format!("sluicegate-package-{}", std::process::id()));
        let program = Path::new("/bin/true");
        let made = build(program, &to).expect("a package");
        let fields = dpkg_deb(&["--field"], &made);
        for line in
            ["Package: sluicegate", concat!("Version: ", env!("CARGO_PKG_VERSION")), "Depends: libc6", "Section: net"]
        {
            assert!(fields.lines().any(|field| field.starts_with(line)), "{line}: {fields}");
        }
        assert!(!fields.contains('@') || fields.matches('@').count() == 1, "every mark is replaced: {fields}");
        let contents = dpkg_deb(&["--contents"], &made);
        for file in [
            "-rwxr-xr-x root/root",
            "./usr/bin/sluicegate",
            "./usr/lib/sluicegate/haproxy -> ../../bin/sluicegate",
            "./etc/sluicegate/sluicegate.cfg",
            "./etc/default/sluicegate",
            "./lib/systemd/system/sluicegate.service",
            "./usr/share/doc/sluicegate/copyright",
            "./usr/share/doc/sluicegate/reference/command-line.md",
        ] {
            assert!(contents.contains(file), "{file}: {contents}");
        }
        let (tree, control) = (to.join("out"), to.join("control"));
        for (option, folder) in [("--extract", &tree), ("--control", &control)] {
            let ended =
                Command::new("dpkg-deb").arg(option).arg(&made).arg(folder).output().expect("dpkg-deb is there");
            assert!(ended.status.success(), "{ended:?}");
        }
        assert_eq!(fs::read(tree.join("usr/lib/sluicegate/haproxy")).unwrap(), fs::read(program).unwrap());
        let listed = fs::read_to_string(control.join("conffiles")).unwrap();
        for file in listed.lines() {
            assert!(tree.join(file.trim_start_matches('/')).is_file(), "{file} is listed and not there");
        }
        assert_eq!(listed.lines().count(), 2);
        for script in ["postinst", "prerm", "postrm"] {
            let mode = fs::metadata(control.join(script)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{script}");
            let ended = Command::new("sh").arg("-n").arg(control.join(script)).status().expect("a shell");
            assert!(ended.success(), "{script}");
        }
        fs::remove_dir_all(to).unwrap();
    }
}
