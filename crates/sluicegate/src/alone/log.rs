//! The log in Redis's format, which scripts that start a redis-server wait for and search:
//!
//! ```text
//! 1234:M 22 Nov 2026 02:00:00.123 * Ready to accept connections tcp
//! ```
//!
//! A file is followed by its path, as programs that rotate logs expect of Redis, which opens it for every line: a line
//! goes to a new file if the path leads elsewhere, or nowhere, since the last one.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::output::Mode;

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
    /// [`None`]: standard output.
    file: Option<Followed>,
    least: Level,
}

/// A file, and the path at which it is opened again.
struct Followed {
    path: PathBuf,
    file: Mutex<File>,
}

impl Followed {
    fn open(path: PathBuf) -> io::Result<Followed> {
        let file = Mutex::new(crate::output::append(&path, Mode::Umask)?);
        Ok(Followed { path, file })
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mut file = self.file.lock();
        let number = |found: io::Result<std::fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        // Without permission to open it again, lines go to the old file.
        if number(std::fs::metadata(&self.path)) != number(file.metadata())
            && let Ok(next) = crate::output::append(&self.path, Mode::Umask)
        {
            *file = next;
        }
        file.write_all(line.as_bytes())
    }
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
            path => Some(Followed::open(super::path_of(path))?),
        };
        Ok(Log { file, least: Level::named(level) })
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
            Some(file) => file.write(&line),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_the_path() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let log = Log::open(path.as_os_str().as_encoded_bytes(), "notice").expect("it is created");
        let lines = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("a file").lines().count();
        log.say(Level::Notice, "one");
        log.say(Level::Verbose, "nothing");
        std::fs::rename(&path, directory.path().join("old")).expect("it is rotated");
        log.say(Level::Notice, "two");
        log.say(Level::Notice, "three");
        assert_eq!((lines("old"), lines("log")), (1, 2));
        std::fs::write(directory.path().join("new"), "").expect("written");
        std::fs::rename(directory.path().join("new"), &path).expect("it is replaced");
        log.say(Level::Notice, "four");
        assert_eq!((lines("old"), lines("log")), (1, 1));
        // Where no file can be opened, nothing is lost.
        std::fs::rename(&path, directory.path().join("last")).expect("it is rotated");
        std::fs::create_dir(&path).expect("a directory in its place");
        log.say(Level::Notice, "five");
        assert_eq!(lines("last"), 2);
    }
}
