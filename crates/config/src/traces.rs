//! `trace` statements: the sources of traces, their settings, and what the statement changes or lists.
//!
//! The lines of a `traces` section and the stats socket's `trace` are the same statement. The texts are HAProxy 3.2's, and so are
//! the sources and their events; this program reports some of them, and [`unreported`] tells which of those that a statement
//! asks for it does not.

mod sources;

use std::fmt::Write as _;
use std::sync::Arc;

pub use sources::{TRACE_SOURCES, TraceObject, TraceSource};

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
    pub report: u64,
    /// The events that start it.
    pub start: u64,
    /// The events that pause it.
    pub pause: u64,
    /// The events that stop it.
    pub stop: u64,
    /// The criterion of its lock.
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
            report: u64::MAX,
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

const WITH_SERVER: &[TraceObject] = &[TraceObject::Connection, TraceObject::Stream];
const WITH_CLIENT: &[TraceObject] = &[TraceObject::Connection, TraceObject::Session, TraceObject::Stream];
const ANY: &[TraceObject] =
    &[TraceObject::Connection, TraceObject::Stream, TraceObject::Check, TraceObject::Applet, TraceObject::Session];

/// The criteria of locks: their words, their names in listings, and the objects of the sources that have them.
const CRITERIA: &[(&str, &str, &[TraceObject])] = &[
    ("backend", "backend", WITH_SERVER),
    ("check", "check", &[TraceObject::Check]),
    ("connection", "connection", &[TraceObject::Connection]),
    ("frontend", "frontend", WITH_CLIENT),
    ("listener", "listener", WITH_CLIENT),
    (NOTHING, NOTHING, ANY),
    ("server", "server", WITH_SERVER),
    ("session", "session", WITH_CLIENT),
    ("stream", "stream", &[TraceObject::Stream]),
    ("appctx", "applet", &[TraceObject::Applet]),
    ("thread", "thread", ANY),
];

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

/// The answer to a statement; `None`: there is nothing to say.
pub type TraceAnswer = Option<(TraceSeverity, String)>;

/// Returns a line of a listing.
fn item(mark: char, name: &str, description: &str) -> String {
    format!("  {mark} {name:<10} : {description}\n")
}

fn star(is_current: bool) -> char {
    if is_current { '*' } else { ' ' }
}

fn sign(set: u64, index: usize) -> char {
    if set & (1 << index) != 0 { '+' } else { '-' }
}

/// The settings of every source, in the order of [`TRACE_SOURCES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    settings: [TraceSettings; TRACE_SOURCES.len()],
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
        let TraceSource { object, part, .. } = &TRACE_SOURCES[source];
        let criteria = || CRITERIA.iter().filter(|(.., of)| of.contains(object)).map(|(word, name, _)| (*word, *name));
        let settings = &mut self.settings[source];
        if value.is_empty() {
            let mut text = format!("Supported lock-on criteria for source {}:\n", of(Some(source)));
            for (word, name) in criteria() {
                let description = match word {
                    NOTHING => "do not lock on anything".to_owned(),
                    _ => format!("lock on the {name} that started the trace"),
                };
                text += &item(star(word == settings.lock), name, &description);
            }
            if let Some((name, description)) = part {
                text += &item(star(*name == settings.lock), name, description);
            }
            return Some((TraceSeverity::Warning, text));
        }
        match criteria().map(|(word, _)| word).chain(part.map(|(name, _)| name)).find(|word| *word == value) {
            Some(word) => {
                (settings.lock, settings.locked) = (word, None);
                None
            }
            None => Some((TraceSeverity::Error, format!("Unsupported lock-on criterion '{value}'"))),
        }
    }

    fn events(&mut self, source: usize, word: &str, value: &str) -> TraceAnswer {
        let known = &TRACE_SOURCES[source];
        let (name, removes) = signed(value);
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
                for (index, name) in known.events.iter().enumerate() {
                    let description = known.reported(name).unwrap_or("not reported here");
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
            "any" => *set = u64::MAX,
            _ => match known.event(name) {
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
        for (index, name) in TRACE_SOURCES[source].events.iter().enumerate() {
            let [report, start, stop, pause] = [report, start, stop, pause].map(|set| sign(set, index));
            // Writing to a string does not fail.
            let _ = writeln!(text, "    {name:<12} :        {report}        {start}        {stop}       {pause}");
        }
        text
    }
}

/// Returns the name of an event, and whether the signs before it remove it: the last one counts.
fn signed(value: &str) -> (&str, bool) {
    let name = value.trim_start_matches(['!', '-', '+']);
    (name, value[..value.len() - name.len()].chars().next_back().is_some_and(|sign| sign != '+'))
}

/// Returns a remark on the events of a statement without errors that this program does not report.
pub fn unreported(words: &[&str]) -> Option<String> {
    let silent = |name: &str| Traces::find(name).filter(|source| TRACE_SOURCES[*source].reported.is_empty());
    let name = words.first()?;
    let mut missing = Vec::from_iter(silent(name).map(|_| format!("source '{name}'")));
    for pair in words[1..].chunks_exact(2) {
        let (word, value) = (pair[0], pair[1]);
        if word == "follow" && silent(value).is_some() {
            missing.push(format!("source '{value}'"));
        }
        if let ("event" | "start" | "pause" | "stop", (event, false), Some(source)) =
            (word, signed(value), Traces::find(name).filter(|_| silent(name).is_none()))
        {
            let source = &TRACE_SOURCES[source];
            let is_missing = source.event(event).is_some() && source.reported(event).is_none();
            missing.extend(is_missing.then(|| format!("'{event}'")));
        }
    }
    (!missing.is_empty()).then(|| format!("no such events are reported here: {}", missing.join(", ")))
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
        assert_eq!((settings.level, settings.verbosity, settings.start, settings.lock), (5, 0, 1 << 9, "session"));
        assert_eq!((settings.state, settings.sink.as_deref()), (TraceState::Waiting, Some("r")));
        assert_eq!(run(&mut traces, "h1 start -rx_headers event !tx_headers start now stop any"), None);
        let settings = &traces.settings()[h1];
        assert_eq!((settings.start, settings.report, settings.state), (0, !(1 << 14), TraceState::Running));
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
        for (text, remark) in [
            ("h1 event rx_body start +h1c_new stop -rx_eoi pause tx_headers", Some("'rx_body', 'h1c_new'")),
            ("pt start pt_rx_data", Some("source 'pt'")),
            ("h1 follow applet", Some("source 'applet'")),
            ("h1 start now event any", None),
            ("all level user", None),
        ] {
            assert_eq!(run(&mut traces, text), None);
            let remark = remark.map(|remark| format!("no such events are reported here: {remark}"));
            assert_eq!(unreported(&text.split(' ').collect::<Vec<_>>()), remark);
        }
        let answer = run(&mut traces, "h1 verbosity nope").expect("an answer").1;
        assert!(answer.starts_with("No such verbosity level 'nope'. Supported trace verbosities for source h1:\n"));
    }
}
