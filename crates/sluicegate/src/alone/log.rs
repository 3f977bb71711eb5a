//! The log in Redis's format, which scripts that start a redis-server wait for and search:
//!
//! ```text
//! 1234:M 22 Nov 2026 02:00:00.123 * Ready to accept connections tcp
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// The level of a line, in Redis's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// `.`
    Debug,
    /// `-`
    Verbose,
    /// `*`
    Notice,
    /// `#`
    Warning,
    /// No lines are logged.
    Nothing,
}

impl Level {
    /// Returns the level with this number, starting with the least severe one.
    pub fn from_number(number: u8) -> Level {
        [Level::Debug, Level::Verbose, Level::Notice].get(usize::from(number)).copied().unwrap_or(Level::Warning)
    }

    /// Returns the level with this name.
    fn named(name: &str) -> Level {
        match name {
            "debug" => Level::Debug,
            "verbose" => Level::Verbose,
            "nothing" => Level::Nothing,
            "warning" => Level::Warning,
            _ => Level::Notice,
        }
    }
}

/// The destination of lines.
pub struct Log {
    file: Option<Mutex<File>>,
    least: Level,
}

impl Log {
    /// Standard output.
    pub fn to_stdout() -> Log {
        Log { file: None, least: Level::Notice }
    }

    /// Opens a file for appending; an empty path means standard output.
    pub fn open(path: &[u8], level: &str) -> io::Result<Log> {
        let file = match path {
            b"" => None,
            path => Some(crate::output::append(&super::path_of(path))?),
        };
        Ok(Log { file: file.map(Mutex::new), least: Level::named(level) })
    }

    /// Writes a line of the server or of a script, with its level as a number and the current `loglevel`. Invalid text
    /// and line ends in it are replaced.
    pub fn say_at_run_time(&self, level: u8, loglevel: &str, text: &[u8]) {
        let (level, least) = (Level::from_number(level), Level::named(loglevel));
        if level >= least && least != Level::Nothing {
            self.write(level, &String::from_utf8_lossy(text).replace(char::is_control, " "));
        }
    }

    /// Writes a line. A line that cannot be written is lost.
    pub fn say(&self, level: Level, text: &str) {
        if level >= self.least && self.least != Level::Nothing {
            self.write(level, text);
        }
    }

    fn write(&self, level: Level, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mark = match level {
            Level::Debug => '.',
            Level::Verbose => '-',
            Level::Notice => '*',
            Level::Warning | Level::Nothing => '#',
        };
        let when = local(now.as_secs() as i64);
        let line = format!("{}:M {when}.{:03} {mark} {text}\n", std::process::id(), now.subsec_millis());
        let _ = match &self.file {
            Some(file) => file.lock().write_all(line.as_bytes()),
            None => io::stdout().lock().write_all(line.as_bytes()),
        };
    }
}

/// Returns a time in the machine's time zone, like `22 Nov 2026 02:00:00`.
fn local(seconds: i64) -> String {
    // SAFETY: a tm is plain data for which all zeroes are valid; both pointers are to live values.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut tm);
        tm
    };
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = MONTHS[tm.tm_mon.clamp(0, 11) as usize];
    format!("{:02} {month} {} {:02}:{:02}:{:02}", tm.tm_mday, tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec)
}
