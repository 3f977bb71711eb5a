//! The proxy's own figures while it is under load: `show info` and `show stat` of a stats socket, or the CSV of a statistics
//! page ([`page`]), as HAProxy and Sluicegate have them.
//!
//! A thread of its own reads them ten times a second and keeps the highest: how many sessions were open and queued at once, and
//! the limits they had. Limit: [`MAX_ANSWER`] of an answer.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::page;
use crate::load::ask::connect;
use crate::load::cpu;
use crate::load::target::{Family, Server, StatsSource};
use crate::load::tls::{Connector, ThreadConnector};

/// The maximum size of an answer.
pub(super) const MAX_ANSWER: usize = 16 << 20;

/// The time between two readings.
const PAUSE: Duration = Duration::from_millis(100);

/// A source of figures that is ready to be read.
pub(super) struct Source<'a> {
    source: &'a StatsSource,
    /// TLS of a page, with the sessions that readings resume.
    tls: Option<ThreadConnector>,
}

impl<'a> Source<'a> {
    /// Reads the files of TLS.
    pub(super) fn open(source: &'a StatsSource) -> Result<Source<'a>, String> {
        let tls = match source {
            StatsSource::Page(page) => page.tls.as_ref().map(Connector::new).transpose()?,
            StatsSource::Socket(_) => None,
        };
        Ok(Source { source, tls: tls.map(|tls| tls.of_thread(1)) })
    }

    /// Reads the figures once.
    pub(super) fn read(&self) -> Result<Snapshot, String> {
        let (text, what) = match self.source {
            StatsSource::Socket(server) => {
                let text = ask(server).map_err(|error| format!("--stats {server}: {error}"))?;
                (text, "this is no stats socket")
            }
            StatsSource::Page(page) => (page::read(page, self.tls.as_ref())?, "this is no statistics page"),
        };
        Snapshot::parse(&text).ok_or_else(|| match self.source {
            StatsSource::Socket(server) => format!("--stats {server}: {what}"),
            StatsSource::Page(page) => format!("--stats {page}: {what}"),
        })
    }

    /// Returns the proxy's process, if it is on this machine.
    pub(super) fn process(&self) -> Result<Option<u32>, String> {
        let is_here = matches!(self.source, StatsSource::Socket(Server::Unix(_)));
        Ok(self.read()?.pid.filter(|_| is_here))
    }
}

/// Asks a stats socket, which closes the connection after its answer.
fn ask(server: &Server) -> Result<String, String> {
    let mut stream = connect(server, Family::Any, None)?;
    stream.write_all(b"show info;show stat\n").map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER as u64).read_to_end(&mut answer).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The kind of a line of `show stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Frontend,
    Backend,
    Server,
}

/// The figures of a frontend, a backend or a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) proxy: String,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) sessions: u64,
    pub(super) limit: Option<u64>,
    pub(super) queued: u64,
    /// Attempts to connect to a server that have failed; of a step those during it.
    pub(super) unconnected: u64,
    /// Means of the last responses, in milliseconds.
    pub(super) queue_ms: Option<u64>,
    pub(super) response_ms: Option<u64>,
}

/// What was read at once, or the highest of several readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Connections of the process, and its `maxconn`; unknown to a page.
    pub(super) connections: Option<(u64, u64)>,
    pub(super) threads: u64,
    pub(super) pid: Option<u32>,
    pub(super) rows: Vec<Row>,
}

impl Snapshot {
    /// Reads the answers of a socket or a page: lines `Name: value`, and a table that begins with `# pxname`, without which
    /// it is neither.
    pub(super) fn parse(text: &str) -> Option<Snapshot> {
        let mut info: BTreeMap<&str, &str> = BTreeMap::new();
        let mut columns: Vec<&str> = Vec::new();
        let mut rows = Vec::new();
        for line in text.lines() {
            if let Some(names) = line.strip_prefix("# pxname") {
                columns = ["pxname"].into_iter().chain(names.split(',').skip(1)).collect();
            } else if !columns.is_empty() {
                rows.extend(row(&columns, line));
            } else if let Some((name, value)) = line.split_once(": ") {
                info.insert(name, value.trim());
            }
        }
        if columns.is_empty() {
            return None;
        }
        let number = |name: &str| info.get(name).and_then(|text| text.parse::<u64>().ok());
        Some(Snapshot {
            connections: number("CurrConns").zip(number("Maxconn")),
            threads: number("Nbthread").unwrap_or(1).max(1),
            pid: number("Pid").and_then(|pid| u32::try_from(pid).ok()),
            rows,
        })
    }

    /// Takes over what is higher in another reading.
    fn raise(&mut self, other: Snapshot) {
        self.connections = match (self.connections, other.connections) {
            (Some((one, _)), Some((other, limit))) => Some((one.max(other), limit)),
            (one, other) => other.or(one),
        };
        self.threads = other.threads;
        self.pid = other.pid.or(self.pid);
        for row in other.rows {
            let known = self.rows.iter_mut().find(|known| (&known.proxy, &known.name) == (&row.proxy, &row.name));
            match known {
                None => self.rows.push(row),
                Some(known) => {
                    known.sessions = known.sessions.max(row.sessions);
                    known.queued = known.queued.max(row.queued);
                    known.unconnected = row.unconnected;
                    (known.limit, known.queue_ms, known.response_ms) = (row.limit, row.queue_ms, row.response_ms);
                }
            }
        }
    }

    /// Takes off what had been counted before.
    fn count_since(&mut self, first: &Snapshot) {
        for row in &mut self.rows {
            let before = first.rows.iter().find(|other| (&other.proxy, &other.name) == (&row.proxy, &row.name));
            row.unconnected = row.unconnected.saturating_sub(before.map_or(0, |before| before.unconnected));
        }
    }
}

fn row(columns: &[&str], line: &str) -> Option<Row> {
    let cells = cells(line);
    let cell = |name: &str| {
        let at = columns.iter().position(|column| *column == name)?;
        cells.get(at).map(String::as_str)
    };
    let number = |name: &str| cell(name).and_then(|text| text.parse::<u64>().ok());
    let kind = match cell("type")? {
        "0" => Kind::Frontend,
        "1" => Kind::Backend,
        "2" => Kind::Server,
        _ => return None,
    };
    Some(Row {
        proxy: cell("pxname")?.to_owned(),
        name: cell("svname")?.to_owned(),
        kind,
        sessions: number("scur").unwrap_or(0),
        limit: number("slim").filter(|limit| *limit > 0),
        queued: number("qcur").unwrap_or(0),
        unconnected: number("econ").unwrap_or(0),
        queue_ms: number("qtime"),
        response_ms: number("rtime"),
    })
}

/// Splits a line of CSV; cells with commas are in quotes, which are doubled within.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            c => {
                if let Some(cell) = cells.last_mut() {
                    cell.push(c);
                }
            }
        }
    }
    cells
}

/// The processors' time of a process, as a number of them: 1.5 is one and a half.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) cores: f64,
    /// How much more it would have used if others had used less.
    pub(super) waited: f64,
    /// Both together of the thread that has most of it.
    pub(super) busiest: f64,
}

impl Process {
    /// Returns what a process has used and waited for since `before`.
    fn since(before: &Usage, elapsed_s: f64) -> Option<Process> {
        let now = Usage::of(before.pid);
        let ((user, system), (user_now, system_now)) = (before.process?, now.process?);
        let threads = now.threads.iter().map(|(thread, (ran, waited))| {
            let (ran_before, waited_before) = before.threads.get(thread).copied().unwrap_or_default();
            let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e9 / elapsed_s;
            (share(*ran, ran_before), share(*waited, waited_before))
        });
        let threads: Vec<(f64, f64)> = threads.collect();
        Some(Process {
            pid: before.pid,
            cores: (user_now - user + system_now - system) / elapsed_s,
            waited: threads.iter().map(|(_, waited)| waited).sum(),
            busiest: threads.iter().map(|(ran, waited)| ran + waited).fold(0.0, f64::max),
        })
    }
}

/// The times of a process so far.
struct Usage {
    pid: u32,
    process: Option<(f64, f64)>,
    threads: BTreeMap<u32, (u64, u64)>,
}

impl Usage {
    fn of(pid: u32) -> Usage {
        Usage { pid, process: cpu::process_s(pid), threads: cpu::threads_ns(pid) }
    }
}

/// What was observed during a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) proxy: Option<Snapshot>,
    pub(super) processes: Vec<Process>,
    /// The share of this machine's time that no process used.
    pub(super) idle: Option<f64>,
    pub(super) error: Option<String>,
}

/// Reads until `is_over`.
pub(super) fn watch(source: Option<&Source<'_>>, pids: &[u32], is_over: &AtomicBool) -> Observed {
    let mut observed = Observed::default();
    let mut first = None;
    let mut begun = std::time::Instant::now();
    let mut before: Vec<Usage> = pids.iter().map(|pid| Usage::of(*pid)).collect();
    let mut idle = cpu::machine_ticks();
    let mut is_begin = true;
    loop {
        match source.map(Source::read) {
            None => {}
            Some(Ok(snapshot)) => {
                first.get_or_insert_with(|| snapshot.clone());
                observed.proxy.get_or_insert_with(Snapshot::default).raise(snapshot);
            }
            Some(Err(error)) => observed.error = Some(error),
        }
        if is_over.load(Ordering::Acquire) {
            break;
        }
        // The end of the step wakes this thread: what processes use is measured until then.
        std::thread::park_timeout(PAUSE);
        if std::mem::take(&mut is_begin) && !is_over.load(Ordering::Acquire) {
            // Until now connections were made, which is not yet the load.
            begun = std::time::Instant::now();
            before = pids.iter().map(|pid| Usage::of(*pid)).collect();
            idle = cpu::machine_ticks();
        }
    }
    if let (Some(proxy), Some(first)) = (&mut observed.proxy, &first) {
        proxy.count_since(first);
    }
    let elapsed_s = begun.elapsed().as_secs_f64().max(1e-3);
    observed.processes = before.iter().filter_map(|before| Process::since(before, elapsed_s)).collect();
    observed.idle = idle.zip(cpu::machine_ticks()).and_then(|((idle, all), (idle_after, all_after))| {
        let all = all_after.checked_sub(all).filter(|all| *all > 0)?;
        Some(idle_after.saturating_sub(idle) as f64 / all as f64)
    });
    observed
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name: HAProxy\nPid: 77\nNbthread: 2\nMaxconn: 100\nCurrConns: 20\n\n\
        # pxname,svname,qcur,qmax,scur,smax,slim,econ,type,rtime,qtime,last_chk,\n\
        www,FRONTEND,,,20,30,50,,0,,,,\n\
        app,s1,3,4,5,5,5,7,2,12,40,\"a, \"\"b\"\"\",\n\
        app,BACKEND,3,4,5,5,10,7,1,12,40,,\n\
        www,socket-1,,,1,1,9,,3,,,,\n\n";

    #[test]
    fn figures_are_read_and_the_highest_kept() {
        let mut one = Snapshot::parse(TEXT).unwrap();
        assert_eq!((one.connections, one.threads, one.pid, one.rows.len()), (Some((20, 100)), 2, Some(77), 3));
        let server = &one.rows[1];
        assert_eq!((server.kind, server.sessions, server.limit, server.queued), (Kind::Server, 5, Some(5), 3));
        assert_eq!((server.response_ms, server.queue_ms), (Some(12), Some(40)));
        let other =
            Snapshot::parse(&TEXT.replace("app,s1,3,4,5,", "app,s1,9,9,2,").replace("CurrConns: 20", "CurrConns: 99"));
        let first = one.clone();
        one.raise(other.unwrap());
        assert_eq!((one.connections, one.rows[1].sessions, one.rows[1].queued), (Some((99, 100)), 5, 9));
        one.raise(Snapshot::parse(&TEXT.replace(",5,7,2,", ",5,19,2,")).unwrap());
        one.count_since(&first);
        assert_eq!(one.rows.iter().map(|row| row.unconnected).collect::<Vec<_>>(), [0, 12, 0]);
        assert!(Snapshot::parse("Unknown command\n").is_none());
        assert_eq!(cells("a,\"b,c\",,d"), ["a", "b,c", "", "d"]);
    }

    #[test]
    fn fuzz_tables() {
        let mut random = crate::load::random::Random::new(4);
        let bytes: Vec<u8> = TEXT.bytes().collect();
        for _ in 0..5000 {
            let mut text = bytes.clone();
            for _ in 0..8 {
                let at = random.below(text.len() as u64) as usize;
                text[at] = random.next() as u8;
            }
            let _ = Snapshot::parse(&String::from_utf8_lossy(&text));
        }
    }
}
