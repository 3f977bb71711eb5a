//! Messages on stderr before the process serves, formatted according to the name by which the program was called.
//!
//! As `sluicegate`: `file:line:col: error: …`, the line, a caret, a hint. As `haproxy`: one line for each diagnostic,
//! in the format that users and tools search for:
//!
//! ```text
//! [ALERT]    (1234) : config : parsing [/etc/haproxy/haproxy.cfg:12] : unknown keyword 'foo' in 'global' section
//! ```
//!
//! Standard output contains only the result of `-c`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluicegate_config::{Diagnostic, Diagnostics, Severity};

use crate::arguments::Service;

/// The receiver of messages; cheap to copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    as_haproxy: bool,
    quiet: bool,
    /// Whether remarks of the lowest severity are shown, too (`-dD`).
    remarks: bool,
}

/// Whether the introduction has been printed. The first message under the name `haproxy` is preceded by the version and
/// the program's path, so that a reader of a log knows which program wrote it.
static INTRODUCED: AtomicBool = AtomicBool::new(false);

impl Report {
    /// Returns the receiver that the command line configures; `quiet` in the configuration is not known yet.
    pub fn new(service: &Service) -> Report {
        Report {
            as_haproxy: service.as_haproxy,
            quiet: service.quiet && !service.verbose && !service.debug,
            remarks: service.diagnostics,
        }
    }

    /// Returns the same receiver, but silent if `quiet`.
    pub fn quieted(self, quiet: bool) -> Report {
        Report { quiet: self.quiet || quiet, ..self }
    }

    /// Returns whether nothing is printed.
    pub fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Reports an error that prevents the start.
    pub fn error(self, message: &str) {
        self.say(Severity::Error, None, message);
    }

    /// Reports a warning.
    pub fn warning(self, message: &str) {
        self.say(Severity::Warning, None, message);
    }

    /// Reports a success.
    pub fn notice(self, message: &str) {
        if self.quiet {
        } else if self.as_haproxy {
            line("[NOTICE]", None, message);
        } else {
            whole(&format!("notice: {message}\n"));
        }
    }

    /// Reports all diagnostics; returns the number of errors.
    pub fn diagnostics(self, diagnostics: &Diagnostics) -> usize {
        let shown = |found: &&Diagnostic| found.severity > Severity::Diag || self.remarks;
        for found in diagnostics.iter().filter(shown) {
            if self.as_haproxy {
                let place = found.at.as_ref().map(|at| format!("parsing [{}:{}] : ", at.file, at.line));
                let hint = found.hint.as_ref().map(|hint| format!("; {hint}"));
                let text = [place.as_deref(), Some(&found.message), hint.as_deref()].into_iter().flatten();
                self.say(found.severity, Some("config"), &text.collect::<String>());
            } else if !self.quiet {
                whole(&format!("{found}\n"));
            }
        }
        if diagnostics.left_off() > 0 {
            self.say(Severity::Notice, None, &format!("{} more are not shown", diagnostics.left_off()));
        }
        if self.as_haproxy && diagnostics.has_errors() {
            self.say(Severity::Error, Some("config"), "Fatal errors found in configuration.");
        }
        diagnostics.errors()
    }

    fn say(self, severity: Severity, part: Option<&str>, message: &str) {
        if self.quiet {
            return;
        }
        if !self.as_haproxy {
            whole(&format!("{severity}: {message}\n"));
            return;
        }
        if !INTRODUCED.swap(true, Ordering::Relaxed) {
            line("[NOTICE]", None, &format!("haproxy version is {}", version_number()));
            if let Ok(path) = std::env::current_exe() {
                line("[NOTICE]", None, &format!("path to executable is {}", path.display()));
            }
        }
        let label = match severity {
            Severity::Diag => "[DIAG]",
            Severity::Notice => "[NOTICE]",
            Severity::Warning => "[WARNING]",
            Severity::Error => "[ALERT]",
        };
        line(label, part, message);
    }
}

/// Prints one message in HAProxy's form; further lines of the text are indented as in HAProxy.
fn line(label: &str, part: Option<&str>, message: &str) {
    let part = part.map(|part| format!("{part} : ")).unwrap_or_default();
    let message = message.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n   | ");
    whole(&format!("{label:<10} ({}) : {part}{message}\n", std::process::id()));
}

std::thread_local! {
    /// If set, messages of this thread are stored here instead of being printed.
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work` on this thread without printing its messages; returns them with its result.
pub fn kept<T>(work: impl FnOnce() -> T) -> (T, String) {
    KEPT.set(Some(String::new()));
    let result = work();
    (result, KEPT.take().unwrap_or_default())
}

/// The maximum size in bytes of the stored startup messages: that of a ring in HAProxy.
const STARTUP_MAX: usize = 65_536;

/// The messages printed before the process began to serve.
static STARTUP: Mutex<Option<String>> = Mutex::new(Some(String::new()));

/// Returns the messages printed so far; no more are stored afterwards.
pub fn startup() -> String {
    STARTUP.lock().take().unwrap_or_default()
}

/// Writes a text in one piece, so that the lines of a master, its worker and its logs are not interleaved.
fn whole(text: &str) {
    let is_raw = |char: char| char.is_ascii_control() && !matches!(char, '\n' | '\t');
    if text.contains(is_raw) {
        let safe =
            text.chars().map(|char| if is_raw(char) { format!("#{:02X}", u32::from(char)) } else { char.into() });
        return whole(&safe.collect::<String>());
    }
    if let Some(startup) = &mut *STARTUP.lock()
        && startup.len() + text.len() <= STARTUP_MAX
    {
        startup.push_str(text);
    }
    let printed = KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.push_str(text)).is_none());
    if printed {
        eprint!("{text}");
    }
}

/// Returns the version reported to HAProxy's tools.
pub fn version_number() -> &'static str {
    sluicegate_proxy::stats::info::VERSION
}
