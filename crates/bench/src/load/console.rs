//! The outputs of a run.

use std::io::Write;

/// The outputs of a run, and how it may be interrupted.
pub struct Console<'a> {
    /// The report.
    pub out: &'a mut dyn Write,
    /// Live lines and errors.
    pub err: &'a mut dyn Write,
    /// Whether SIGINT and SIGTERM end the run with a report; otherwise they are left to the rest of the program.
    pub takes_signals: bool,
    /// Whether both outputs are those of a terminal, on which a live view may be drawn.
    pub is_terminal: bool,
}

impl Console<'_> {
    /// Writes an error and returns the exit code.
    pub(super) fn refuse(&mut self, message: &str) -> u8 {
        // If errors can't be written either, only the exit code remains.
        let _ = writeln!(self.err, "error: {message}");
        1
    }
}

/// Ends the process if its threads can't be waited for.
pub(super) fn abort(code: i32, reason: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    std::process::exit(code)
}

/// Writes a report.
pub(super) fn print(console: &mut Console<'_>, text: &str) -> Result<(), String> {
    let written = console.out.write_all(text.as_bytes()).and_then(|()| console.out.flush());
    written.map_err(|error| format!("the report can't be written: {error}"))
}

/// Returns the beginning of bytes, readable.
pub(super) fn shown(bytes: &[u8], most: usize) -> String {
    let text = bytes[..bytes.len().min(most)].escape_ascii();
    format!("{text}{}", if bytes.len() > most { "…" } else { "" })
}
