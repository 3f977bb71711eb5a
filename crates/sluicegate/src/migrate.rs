//! `sluicegate migrate`: files for old versions of HAProxy, rewritten for 3.2.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use sluicegate_config::{Migrated, migrate};

use crate::output::{self, Mode};

/// The name of standard input and output.
const STANDARD: &str = "-";

/// Rewrites a file to another one, or to standard output; the notes go to standard error. The exit code is 1 if a line
/// could not be rewritten, or a file not be read or written.
pub fn run(file: &Path, to: Option<&Path>) -> ExitCode {
    let text = match read(file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    };
    let migrated = migrate(&text);
    if let Err((name, error)) = write(&migrated, to) {
        eprintln!("error: {name}: {error}");
        return ExitCode::FAILURE;
    }
    let mut lost = 0;
    for note in &migrated.notes {
        let kind = if note.lost { "not migrated" } else { "note" };
        eprintln!("{}:{}: {kind}: {}", file.display(), note.line, note.text);
        lost += usize::from(note.lost);
    }
    let plural = if migrated.changed == 1 { "" } else { "s" };
    eprintln!("{} line{plural} changed, {lost} of them not migrated", migrated.changed);
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(file: &Path) -> io::Result<String> {
    let bytes = if file == Path::new(STANDARD) {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes)?;
        bytes
    } else {
        std::fs::read(file)?
    };
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn write(migrated: &Migrated, to: Option<&Path>) -> Result<(), (String, io::Error)> {
    let written = match to {
        Some(path) if path != Path::new(STANDARD) => {
            return output::replace(path, Mode::Fixed)
                .and_then(|mut file| file.write_all(migrated.text.as_bytes()))
                .map_err(|error| (path.display().to_string(), error));
        }
        _ => io::stdout().lock().write_all(migrated.text.as_bytes()),
    };
    written.map_err(|error| ("standard output".to_owned(), error))
}
