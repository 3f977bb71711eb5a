//! The priority of a benchmark's session over the machine's other programs.
//!
//! A kernel that groups processes by session gives each session its share first; nice values only count within one. So a
//! load at a high priority still waits for the compiler of another session, unless its own session has one.

const PATH: &str = "/proc/self/autogroup";
const NICE: &str = "-15";

/// A session with a priority. What it was before returns when this is dropped.
pub(crate) struct Session {
    nice: Option<String>,
}

impl Session {
    pub(crate) fn new() -> Session {
        let text = std::fs::read_to_string(PATH).unwrap_or_default();
        let nice = text.split_whitespace().last().map(str::to_owned);
        // Without such groups, or as another user, the nice values alone count.
        let _ = std::fs::write(PATH, NICE);
        Session { nice }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(nice) = &self.nice {
            let _ = std::fs::write(PATH, nice);
        }
    }
}
