//! What the process itself says on stderr, in HAProxy's form: `[NOTICE]   (PID) : text`.
//!
//! Operators and tools grep for these lines. The configuration's diagnostics have a form of their own.

use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Notices and warnings are no longer printed (`-q`); alerts are, as in HAProxy while it starts.
pub fn quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Something went as it should.
pub fn notice(text: &str) {
    line("[NOTICE]  ", text, false);
}

/// Something deserves a look.
pub fn warning(text: &str) {
    line("[WARNING] ", text, false);
}

/// Something keeps the process from going on.
pub fn alert(text: &str) {
    line("[ALERT]   ", text, true);
}

fn line(label: &str, text: &str, always: bool) {
    if always || !QUIET.load(Ordering::Relaxed) {
        eprintln!("{label} ({}) : {text}", std::process::id());
    }
}
