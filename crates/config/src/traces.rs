//! `trace` statements: the sources of traces, their settings, and what the statement changes or lists.
//!
//! The lines of a `traces` section and the stats socket's `trace` are the same statement. The texts are HAProxy 3.2's. A source
//! has the events that this program reports.

use std::fmt::Write as _;
use std::sync::Arc;

/// A source of traces.
#[derive(Debug)]
pub struct TraceSource {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub description: &'static str,
    /// Its events, with their descriptions.
    pub events: &'static [(&'static str, &'static str)],
    /// The levels of verbosity above `quiet`, with their descriptions.
    pub verbosities: &'static [(&'static str, &'static str)],
    /// What a trace can be locked on, beside the thread.
    pub locks: &'static [&'static str],
}

const DEFAULT: &[(&str, &str)] = &[("default", "report extra information when available")];
const DETAILS: &[(&str, &str)] = &[
    ("clean", "only user-friendly stuff, generally suitable for level \"user\""),
    ("minimal", "report info on streams and connectors"),
    ("simple", "add request/response status line"),
    ("advanced", "add header fields"),
    ("complete", "the same as advanced"),
];
const STREAM_LOCKS: &[&str] = &["backend", "frontend", "server", "session", "stream"];

/// The sources.
pub const TRACE_SOURCES: &[TraceSource] = &[
    TraceSource {
        name: "h2",
        description: "HTTP/2 multiplexer",
        events: &[("rx_hdr", "receipt of H2 HEADERS frame"), ("tx_hdr", "transmission of H2 HEADERS frame")],
        verbosities: DETAILS,
        locks: STREAM_LOCKS,
    },
    TraceSource {
        name: "h1",
        description: "HTTP/1 multiplexer",
        events: &[("rx_headers", "receipt of H1 headers"), ("tx_headers", "transmission of all headers")],
        verbosities: DETAILS,
        locks: STREAM_LOCKS,
    },
    TraceSource {
        name: "stream",
        description: "Applicative stream",
        events: &[("strm_new", "new stream"), ("strm_free", "release stream")],
        verbosities: DETAILS,
        locks: STREAM_LOCKS,
    },
    TraceSource {
        name: "check",
        description: "Health-check",
        events: &[
            ("hchck_start", "Health-check started"),
            ("hchck_end", "Health-check terminated"),
            ("hchck_succ", "Health-check success"),
            ("hchck_err", "Health-check failure"),
        ],
        verbosities: DEFAULT,
        locks: &["backend", "server"],
    },
    TraceSource {
        name: "session",
        description: "client session management",
        events: &[("sess_new", "new session creation"), ("sess_end", "session termination")],
        verbosities: DEFAULT,
        locks: &["frontend", "session"],
    },
];

const LEVELS: [(&str, &str); 6] = [
    ("error", "report errors"),
    ("user", "also information useful to the end user"),
    ("proto", "also protocol-level updates"),
    ("state", "also report internal state changes"),
    ("data", "also report data transfers"),
    ("developer", "also report information useful only to the developer"),
];

/// Whether a source reports events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceState {
    /// It does not.
    #[default]
    Stopped,
    /// It will from the first event of those that start it.
    Waiting,
    /// It does.
    Running,
}

impl TraceState {
    /// Returns the character of listings.
    pub fn letter(self) -> char {
        match self {
            TraceState::Stopped => '.',
            TraceState::Waiting => 'w',
            TraceState::Running => 'R',
        }
    }
}

/// The settings of a source. Sets of events have a bit per event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// Whether it reports events.
    pub state: TraceState,
    /// The highest level that is reported, 0 to 5.
    pub level: u8,
    /// The verbosity; 0 is `quiet`.
    pub verbosity: usize,
    /// Where its lines go.
    pub sink: Option<Arc<str>>,
    /// The events that are reported.
    pub report: u32,
    /// The events that start it.
    pub start: u32,
    /// The events that pause it.
    pub pause: u32,
    /// The events that stop it.
    pub stop: u32,
    /// What it is locked on: one of its criteria.
    pub lock: &'static str,
    /// The object that it is locked on.
    pub locked: Option<String>,
    /// The source whose lock it follows.
    pub follow: Option<usize>,
}

impl Default for TraceSettings {
    fn default() -> TraceSettings {
        TraceSettings {
            state: TraceState::Stopped,
            level: 1,
            verbosity: 1,
            sink: None,
            report: u32::MAX,
            start: 0,
            pause: 0,
            stop: 0,
            lock: NOTHING,
            locked: None,
            follow: None,
        }
    }
}

const NOTHING: &str = "nothing";

/// The severity of an answer, as in syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSeverity {
    /// The statement is wrong.
    Error,
    /// A listing.
    Warning,
    /// A remark.
    Notice,
}

/// What a statement answers, if it says something.
pub type TraceAnswer = Option<(TraceSeverity, String)>;

/// Returns a line of a listing.
fn item(mark: char, name: &str, description: &str) -> String {
    format!("  {mark} {name:<10} : {description}\n")
}

fn star(is_current: bool) -> char {
    if is_current { '*' } else { ' ' }
}

fn sign(set: u32, index: usize) -> char {
    if set & (1 << index) != 0 { '+' } else { '-' }
}

/// The settings of every source, in the order of [`TRACE_SOURCES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    settings: [TraceSettings; 5],
}

impl Traces {
    /// Returns the settings.
    pub fn settings(&self) -> &[TraceSettings] {
        &self.settings
    }

    /// Returns the settings, to be changed.
    pub fn settings_mut(&mut self) -> &mut [TraceSettings] {
        &mut self.settings
    }

    /// Returns the index of a source.
    pub fn find(name: &str) -> Option<usize> {
        TRACE_SOURCES.iter().position(|source| source.name == name)
    }

    /// Returns each source with its settings.
    pub fn all(&self) -> impl Iterator<Item = (&'static TraceSource, &TraceSettings)> {
        TRACE_SOURCES.iter().zip(&self.settings)
    }

    fn listed(&self) -> String {
        let mut text = String::new();
        for (source, settings) in self.all() {
            // Writing to a string does not fail.
            let _ = writeln!(text, " [{}] {:<10} : {}", settings.state.letter(), source.name, source.description);
        }
        text
    }

    /// Runs a statement, given without its first word. `sinks` are those that exist, with their descriptions; `None`: they are
    /// not known yet, and any name is taken.
    pub fn run(&mut self, words: &[&str], sinks: Option<&[(Arc<str>, Arc<str>)]>) -> TraceAnswer {
        use TraceSeverity::{Error, Notice, Warning};
        let Some(name) = words.first().filter(|name| !name.is_empty()) else {
            let text = "Supported trace sources and states (.=stopped, w=waiting, R=running) :\n \
                        [.] 0          : not a source, will immediately stop all traces\n \
                        [.] all        : all sources below, only for 'sink', 'level' and 'follow'\n";
            return Some((Warning, format!("{text}{}", self.listed())));
        };
        if *name == "0" {
            self.settings.iter_mut().for_each(|settings| settings.state = TraceState::Stopped);
            return Some((Notice, "All traces now stopped".to_owned()));
        }
        let source = Traces::find(name);
        if source.is_none() && *name != "all" {
            return Some((Error, format!("No such trace source '{name}'")));
        }
        if words.len() == 1 {
            return Some((Warning, COMMANDS.to_owned()));
        }
        for pair in words[1..].chunks(2) {
            let value = pair.get(1).copied().unwrap_or("");
            let answer = match (source, pair[0]) {
                (_, "follow") => self.follow(source, value),
                (_, "sink") => self.sink(source, value, sinks),
                (_, "level") => self.level(source, value),
                (None, word) => Some((Error, format!("'{word}' not applicable to meta-source 'all'"))),
                (Some(source), word @ ("event" | "start" | "pause" | "stop")) => self.events(source, word, value),
                (Some(source), "lock") => self.lock(source, value),
                (Some(source), "verbosity") => self.verbosity(source, value),
                (Some(_), word) => Some((Error, format!("Unknown trace keyword '{word}'"))),
            };
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// Changes a source, or all of them.
    fn change(&mut self, source: Option<usize>, mut change: impl FnMut(usize, &mut TraceSettings)) {
        for (index, settings) in self.settings.iter_mut().enumerate() {
            if source.is_none_or(|source| source == index) {
                change(index, settings);
            }
        }
    }

    fn follow(&mut self, source: Option<usize>, value: &str) -> TraceAnswer {
        if value.is_empty() {
            let mut text = match source.map(|source| self.settings[source].follow) {
                Some(Some(other)) => format!("Currently following source '{}'.\n", TRACE_SOURCES[other].name),
                Some(None) => "Not currently following any other source.\n".to_owned(),
                None => String::new(),
            };
            text += "Please specify another source to follow, among the following ones:\n \
                     [.] none       : follow no other source\n";
            return Some((TraceSeverity::Warning, text + &self.listed()));
        }
        let other = Traces::find(value);
        if other.is_none() && value != "none" {
            return Some((TraceSeverity::Error, format!("No such trace source '{value}'")));
        }
        self.change(source, |index, settings| {
            if source.is_some() || other != Some(index) {
                settings.follow = other;
            }
        });
        None
    }

    fn sink(&mut self, source: Option<usize>, value: &str, sinks: Option<&[(Arc<str>, Arc<str>)]>) -> TraceAnswer {
        let current = source.and_then(|source| self.settings[source].sink.clone());
        if value.is_empty() {
            let mut text = format!("Supported sinks for source {} (*=current):\n", of(source));
            text += &item(star(current.is_none()), "none", "no sink");
            for (name, description) in sinks.unwrap_or_default() {
                text += &item(star(current.as_ref() == Some(name)), name, description);
            }
            if sinks.is_none() {
                text += "(forward-declared sinks are not displayed here!)\n";
            }
            return Some((TraceSeverity::Warning, text));
        }
        let known = || sinks.is_none_or(|sinks| sinks.iter().any(|(name, _)| **name == *value));
        let sink = match value {
            "none" => None,
            _ if known() => Some(Arc::from(value)),
            _ => return Some((TraceSeverity::Error, format!("No such trace sink '{value}' "))),
        };
        self.change(source, |_, settings| settings.sink.clone_from(&sink));
        None
    }

    fn level(&mut self, source: Option<usize>, value: &str) -> TraceAnswer {
        if let Some(level) = LEVELS.iter().position(|(name, _)| *name == value) {
            self.change(source, |_, settings| settings.level = level as u8);
            return None;
        }
        let mut text = format!("Supported trace levels for source {}:\n", of(source));
        for (level, (name, description)) in LEVELS.iter().enumerate() {
            let is_current = source.is_some_and(|source| usize::from(self.settings[source].level) == level);
            text += &item(star(is_current), name, description);
        }
        Some(unknown("trace level", value, text))
    }

    fn verbosity(&mut self, source: usize, value: &str) -> TraceAnswer {
        let quiet = ("quiet", "only report basic information with no decoding");
        let all = || [quiet].into_iter().chain(TRACE_SOURCES[source].verbosities.iter().copied());
        let settings = &mut self.settings[source];
        if let Some(verbosity) = all().position(|(name, _)| name == value) {
            settings.verbosity = verbosity;
            return None;
        }
        let mut text = format!("Supported trace verbosities for source {}:\n", of(Some(source)));
        for (index, (name, description)) in all().enumerate() {
            text += &item(star(index == settings.verbosity), name, description);
        }
        Some(unknown("verbosity level", value, text))
    }

    fn lock(&mut self, source: usize, value: &str) -> TraceAnswer {
        const ALWAYS: [&str; 2] = [NOTHING, "thread"];
        let mut criteria: Vec<&'static str> = TRACE_SOURCES[source].locks.iter().copied().chain(ALWAYS).collect();
        criteria.sort_unstable();
        let settings = &mut self.settings[source];
        if value.is_empty() {
            let mut text = format!("Supported lock-on criteria for source {}:\n", of(Some(source)));
            for name in criteria {
                let description = match name {
                    NOTHING => "do not lock on anything".to_owned(),
                    _ => format!("lock on the {name} that started the trace"),
                };
                text += &item(star(name == settings.lock), name, &description);
            }
            return Some((TraceSeverity::Warning, text));
        }
        match criteria.into_iter().find(|name| *name == value) {
            Some(name) => {
                (settings.lock, settings.locked) = (name, None);
                None
            }
            None => Some((TraceSeverity::Error, format!("Unsupported lock-on criterion '{value}'"))),
        }
    }

    fn events(&mut self, source: usize, word: &str, value: &str) -> TraceAnswer {
        let known = TRACE_SOURCES[source].events;
        let name = value.trim_start_matches(['!', '-', '+']);
        // The last sign that removes counts, unless a plus follows it.
        let removes = value[..value.len() - name.len()].chars().next_back().is_some_and(|sign| sign != '+');
        let settings = &mut self.settings[source];
        let set = match word {
            "start" => &mut settings.start,
            "pause" => &mut settings.pause,
            "stop" => &mut settings.stop,
            _ => &mut settings.report,
        };
        let is_report = word == "event";
        match name {
            "" => {
                let mut text = format!("Supported events for source {} (+=enabled, -=disabled):\n", of(Some(source)));
                if !is_report {
                    text += "  - now          : don't wait for events, immediately change the state\n";
                }
                text += "  - none         : disable all event types\n  - any          : enable all event types\n";
                for (index, (name, description)) in known.iter().enumerate() {
                    // Writing to a string does not fail.
                    let _ = writeln!(text, "  {} {name:<12} : {description}", sign(*set, index));
                }
                return Some((TraceSeverity::Warning, text));
            }
            "now" if !is_report => {
                *set = 0;
                settings.state = match word {
                    "start" => TraceState::Running,
                    "pause" => TraceState::Waiting,
                    _ => TraceState::Stopped,
                };
                if word != "start" {
                    settings.locked = None;
                }
                return None;
            }
            "none" => {
                *set = 0;
                return None;
            }
            "any" => *set = u32::MAX,
            _ => match known.iter().position(|(known, _)| *known == name) {
                Some(index) if removes => *set &= !(1 << index),
                Some(index) => *set |= 1 << index,
                None => return Some((TraceSeverity::Error, format!("No such trace event '{name}'"))),
            },
        }
        if word == "start" && *set != 0 && settings.state == TraceState::Stopped {
            settings.state = TraceState::Waiting;
        }
        None
    }

    /// Returns the listing of a source's events.
    pub fn status(&self, source: usize) -> String {
        let mut text = "  - event name   :     report    start    stop    pause\n".to_owned();
        let TraceSettings { report, start, stop, pause, .. } = self.settings[source];
        for (index, (name, _)) in TRACE_SOURCES[source].events.iter().enumerate() {
            let [report, start, stop, pause] = [report, start, stop, pause].map(|set| sign(set, index));
            // Writing to a string does not fail.
            let _ = writeln!(text, "    {name:<12} :        {report}        {start}        {stop}       {pause}");
        }
        text
    }
}

fn of(source: Option<usize>) -> &'static str {
    source.map_or("all", |source| TRACE_SOURCES[source].name)
}

fn unknown(what: &str, value: &str, listing: String) -> (TraceSeverity, String) {
    match value {
        "" => (TraceSeverity::Warning, listing),
        _ => (TraceSeverity::Error, format!("No such {what} '{value}'. {listing}")),
    }
}

const COMMANDS: &str = "Supported commands:
  event     : list/enable/disable source-specific event reporting
  level     : list/set trace reporting level
  lock      : automatic lock on thread/connection/stream/...
  follow    : passively follow another source's locked pointer (e.g. session)
  pause     : pause and automatically restart after a specific event
  sink      : list/set event sinks
  start     : start immediately or after a specific event
  stop      : stop immediately or after a specific event
  verbosity : list/set trace output verbosity
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_change_settings() {
        let mut traces = Traces::default();
        let run = |traces: &mut Traces, text: &str| traces.run(&text.split(' ').collect::<Vec<_>>(), None);
        assert_eq!(run(&mut traces, "h1 sink r level developer verbosity quiet start rx_headers lock session"), None);
        let h1 = Traces::find("h1").expect("a source");
        let settings = &traces.settings()[h1];
        assert_eq!((settings.level, settings.verbosity, settings.start, settings.lock), (5, 0, 1, "session"));
        assert_eq!((settings.state, settings.sink.as_deref()), (TraceState::Waiting, Some("r")));
        assert_eq!(run(&mut traces, "h1 start -rx_headers event !tx_headers start now stop any"), None);
        let settings = &traces.settings()[h1];
        assert_eq!((settings.start, settings.report & 3, settings.state), (0, 1, TraceState::Running));
        assert_eq!(run(&mut traces, "all follow session"), None);
        assert_eq!(traces.settings().iter().filter(|settings| settings.follow.is_none()).count(), 1);
        for (text, answer) in [
            ("x", "No such trace source 'x'"),
            ("h1 foo", "Unknown trace keyword 'foo'"),
            ("all foo", "'foo' not applicable to meta-source 'all'"),
            ("h1 start nope", "No such trace event 'nope'"),
            ("h1 lock nope", "Unsupported lock-on criterion 'nope'"),
            ("h1 follow nope", "No such trace source 'nope'"),
            ("0", "All traces now stopped"),
        ] {
            assert_eq!(run(&mut traces, text).map(|(_, text)| text).as_deref(), Some(answer));
        }
        assert_eq!(traces.settings()[h1].state, TraceState::Stopped);
        let answer = run(&mut traces, "h1 verbosity nope").expect("an answer").1;
        assert!(answer.starts_with("No such verbosity level 'nope'. Supported trace verbosities for source h1:\n"));
    }
}
