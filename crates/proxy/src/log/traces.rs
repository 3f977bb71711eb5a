//! Reports to the traces of the process (`trace`, `traces`).
//!
//! While no source runs, a place that reports costs one relaxed load. A line goes through the logger to a ring or to an output,
//! which are bounded and never make the place wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sluicegate_config::model::{LogAddress, LogTarget, LogWire};
use sluicegate_config::traces::{
    TRACE_SOURCES, TraceAnswer, TraceSettings, TraceSeverity, TraceState, Traces, unreported,
};

use super::{Logger, Severity};

/// The sinks that are no rings, with their descriptions.
pub(crate) const OUTPUTS: [(&str, &str); 2] =
    [("stdout", "standard output (fd#1)"), ("stderr", "standard output (fd#2)")];

/// The sources that report events, by their place in [`TRACE_SOURCES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Ssl,
    H2,
    H1,
    Fcgi,
    Stream,
    Spop,
    Peers,
    Check,
    Session = 10,
}

/// The settings of the sources that run.
#[derive(Debug, Default)]
pub(super) struct Tracing {
    /// A bit for each source that may report something.
    active: AtomicU32,
    traces: Mutex<Traces>,
}

impl Tracing {
    pub(super) fn new(traces: Traces) -> Tracing {
        Tracing { active: AtomicU32::new(active(&traces)), traces: Mutex::new(traces) }
    }
}

fn active(traces: &Traces) -> u32 {
    let may = |settings: &TraceSettings| settings.state != TraceState::Stopped || settings.follow.is_some();
    let all = traces.settings().iter().enumerate();
    all.fold(0, |set, (index, settings)| set | u32::from(may(settings)) << index)
}

/// The levels of events, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    /// Events of interest to users of the proxy.
    User,
    /// Messages, records and frames.
    Proto,
    /// Inner states.
    State,
}

/// The names of the events that a place reports at once, the one that lines show first, and their level.
pub(crate) type Events = (&'static [&'static str], Level);

/// The objects of an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subject<'a> {
    pub(crate) worker: usize,
    pub(crate) frontend: Option<&'a str>,
    pub(crate) backend: Option<&'a str>,
    pub(crate) server: Option<&'a str>,
    /// The number of the listener in its frontend.
    pub(crate) listener: Option<u32>,
    /// A number that no other connection of the worker has; a session's is that of the session.
    pub(crate) connection: Option<u64>,
    pub(crate) session: Option<u32>,
    pub(crate) stream: Option<u64>,
    /// The further object of the source, or the kind of a check.
    pub(crate) part: Option<u64>,
}

impl Subject<'_> {
    /// Returns the object of a lock's criterion, as text.
    fn object(&self, criterion: &str) -> Option<String> {
        match criterion {
            "frontend" => self.frontend.map(str::to_owned),
            "backend" => self.backend.map(str::to_owned),
            "server" => Some(format!("{}/{}", self.backend?, self.server?)),
            "check" => Some(format!("{}/{}/{}", self.backend?, self.server?, self.part?)),
            "listener" => Some(format!("{}/{}", self.frontend?, self.listener?)),
            // Connections and sessions are numbered by their worker.
            "connection" => Some(format!("{}/{}", self.worker, self.connection.or(self.session.map(u64::from))?)),
            "session" => Some(format!("{}/{}", self.worker, self.session?)),
            "stream" => Some(self.stream?.to_string()),
            "thread" => Some(self.worker.to_string()),
            "nothing" => None,
            _ => self.part.map(|part| part.to_string()),
        }
    }
}

/// Decides whether an event is reported, and what it changes.
fn decide(traces: &mut Traces, source: usize, set: u64, level: u8, subject: &Subject<'_>) -> bool {
    let followed = traces.settings()[source].follow.map(|other| {
        let other = &traces.settings()[other];
        (other.lock, other.locked.clone())
    });
    let settings = &mut traces.settings_mut()[source];
    if settings.state == TraceState::Stopped && followed.is_none() {
        return false;
    }
    if (settings.report | settings.start | settings.pause | settings.stop) & set == 0 {
        return false;
    }
    if settings.state == TraceState::Waiting {
        if settings.start & set == 0 {
            return false;
        }
        settings.state = TraceState::Running;
    }
    let object = subject.object(settings.lock);
    if settings.locked.is_some() && settings.locked != object {
        return false;
    }
    if settings.locked.is_none() && settings.state == TraceState::Running {
        settings.locked = object;
    }
    if let Some((criterion, locked)) = followed
        && (locked.is_none() || subject.object(criterion) != locked)
    {
        return false;
    }
    let reported = settings.report & set != 0 && level <= settings.level;
    let next = if settings.stop & set != 0 {
        Some(TraceState::Stopped)
    } else {
        (settings.pause & set != 0).then_some(TraceState::Waiting)
    };
    if let Some(next) = next {
        (settings.state, settings.locked) = (next, None);
    }
    reported
}

impl Logger {
    /// Returns whether a source may report something.
    #[inline]
    pub(crate) fn is_traced(&self, source: Source) -> bool {
        self.inner.tracing.active.load(Ordering::Relaxed) & 1 << source as u32 != 0
    }

    /// Reports an event of a source; `text` makes the line for a verbosity.
    #[cold]
    pub(crate) fn trace(
        &self,
        source: Source,
        (events, level): Events,
        subject: &Subject<'_>,
        text: impl FnOnce(usize) -> String,
    ) {
        let facts = &TRACE_SOURCES[source as usize];
        let set = events.iter().filter_map(|event| facts.event(event)).fold(0, |set, index| set | 1 << index);
        let mut traces = self.inner.tracing.traces.lock();
        let level = level as u8;
        let reported = decide(&mut traces, source as usize, set, level, subject);
        self.inner.tracing.active.store(active(&traces), Ordering::Relaxed);
        let TraceSettings { verbosity, sink, .. } = &traces.settings()[source as usize];
        let (verbosity, sink) = (*verbosity, sink.clone());
        drop(traces);
        let Some(to) = sink.filter(|_| reported).map(|name| match &*name {
            "stdout" => LogAddress::Stdout,
            "stderr" => LogAddress::Stderr,
            _ => LogAddress::Ring(name),
        }) else {
            return;
        };
        let line = format!("[{:02}|{}|{level}|{}] {}", subject.worker, facts.name, events[0], text(verbosity));
        // The severity is HAProxy's.
        self.send(&[LogTarget { format: LogWire::Raw, ..LogTarget::raw(to) }], Severity::Emergency, line.as_bytes());
    }

    /// Runs a `trace` statement.
    pub(crate) fn run_trace(&self, words: &[&str]) -> TraceAnswer {
        let outputs = OUTPUTS.iter().map(|(name, description)| (Arc::from(*name), Arc::from(*description)));
        let rings = self.open_rings();
        let sinks: Vec<(Arc<str>, Arc<str>)> =
            outputs.chain(rings.map(|ring| (ring.name.clone(), ring.description.clone()))).collect();
        let mut traces = self.inner.tracing.traces.lock();
        let answer = traces.run(words, Some(&sinks)).or_else(|| Some((TraceSeverity::Warning, unreported(words)?)));
        self.inner.tracing.active.store(active(&traces), Ordering::Relaxed);
        answer
    }

    /// Returns a copy of the settings of all sources.
    pub(crate) fn traces(&self) -> Traces {
        self.inner.tracing.traces.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Traces {
        let mut traces = Traces::default();
        assert_eq!(traces.run(&text.split(' ').collect::<Vec<_>>(), None), None);
        traces
    }

    #[test]
    fn sources_have_their_places() {
        use Source::{Check, Fcgi, H1, H2, Peers, Session, Spop, Ssl, Stream};
        let first = [(Ssl, "ssl"), (H2, "h2"), (H1, "h1"), (Fcgi, "fcgi"), (Stream, "stream")];
        let rest = [(Spop, "spop"), (Peers, "peers"), (Check, "check"), (Session, "session")];
        for (source, name) in first.into_iter().chain(rest) {
            assert_eq!(TRACE_SOURCES[source as usize].name, name);
        }
    }

    #[test]
    fn events_start_and_stop_a_source() {
        let mut traces = set("stream start strm_new stop strm_free lock session level state");
        let stream = Source::Stream as usize;
        let of = |session| Subject { session: Some(session), ..Subject::default() };
        // Bit 0 is the start of a stream and bit 1 its end.
        let mut decide = |bit, level, session| decide(&mut traces, stream, bit, level, &of(session));
        assert!(!decide(2, 3, 1), "it waits");
        assert!(decide(1, 3, 1));
        assert!(!decide(1, 3, 2), "another session");
        assert!(!decide(1, 4, 1), "a higher level");
        assert!(decide(2, 3, 1));
        assert!(!decide(1, 3, 1), "stopped");
        assert_eq!(active(&traces), 0);
    }

    #[test]
    fn a_source_follows_the_lock_of_another() {
        let mut traces = set("session start now lock session");
        assert_eq!(traces.run(&["h1", "follow", "session"], None), None);
        assert_eq!(active(&traces), 1 << Source::H1 as u32 | 1 << Source::Session as u32);
        let of = |session| Subject { session: Some(session), ..Subject::default() };
        assert!(!decide(&mut traces, Source::H1 as usize, 1, 1, &of(7)));
        assert!(decide(&mut traces, Source::Session as usize, 1, 1, &of(7)));
        assert!(decide(&mut traces, Source::H1 as usize, 1, 1, &of(7)));
        assert!(!decide(&mut traces, Source::H1 as usize, 1, 1, &of(8)));
    }
}
