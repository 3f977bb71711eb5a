//! The proxy's own figures while it is under load: `show info` and `show stat` of a stats socket, or the CSV of a statistics
//! page, as HAProxy and Sluicegate have them.
//!
//! A thread of its own reads them ten times a second and keeps the highest: how many sessions were open and queued at once, and
//! the limits they had. Limits: [`MAX_ANSWER`] of an answer, [`TIMEOUT`] for it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::load::cpu;
use crate::load::target::{Family, Server, StatsSource};

/// The maximum size of an answer.
const MAX_ANSWER: u64 = 16 << 20;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two readings.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the figures once.
pub(super) fn read(source: &StatsSource) -> Result<Snapshot, String> {
    let text = match source {
        StatsSource::Socket(server) => exchange(server, "show info;show stat\n".to_owned())?,
        StatsSource::Page(url) => {
            // The page's CSV is at the same path with `;csv` behind it.
            let target = if url.target.contains(";csv") { url.target.clone() } else { format!("{};csv", url.target) };
            exchange(&url.server, format!("GET {target} HTTP/1.0\r\nHost: {}\r\n\r\n", url.authority))?
        }
    };
    Snapshot::parse(&text)
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Sends a request and reads until the server closes the connection.
fn exchange(server: &Server, request: String) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("--stats {server}: {error}");
    let mut stream: Box<dyn Stream> = match server {
        Server::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(failed)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
            Box::new(stream)
        }
        Server::Tcp(..) => {
            let addresses = server.resolve(Family::Any)?;
            let address = addresses.iter().find_map(|address| address.as_socket());
            let address = address.ok_or_else(|| format!("--stats {server}: no address"))?;
            let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
            Box::new(stream)
        }
    };
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).map_err(failed)?;
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
    /// Reads the answers of a socket or a page: lines `Name: value`, and a table that begins with `# pxname`.
    pub(super) fn parse(text: &str) -> Result<Snapshot, String> {
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
            return Err("--stats: neither a stats socket nor a statistics page".to_owned());
        }
        let number = |name: &str| info.get(name).and_then(|text| text.parse::<u64>().ok());
        Ok(Snapshot {
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
                    (known.limit, known.queue_ms, known.response_ms) = (row.limit, row.queue_ms, row.response_ms);
                }
            }
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

/// What was observed during a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) proxy: Option<Snapshot>,
    /// Processes with the cores that they used: 1.5 is one and a half.
    pub(super) processes: Vec<(u32, f64)>,
    /// The share of this machine's time that no process used.
    pub(super) idle: Option<f64>,
    pub(super) error: Option<String>,
}

/// Reads until `is_over`.
pub(super) fn watch(source: Option<&StatsSource>, pids: &[u32], is_over: &AtomicBool) -> Observed {
    let mut observed = Observed::default();
    let begun = std::time::Instant::now();
    let times = || pids.iter().map(|pid| cpu::process_s(*pid)).collect::<Vec<_>>();
    let (before, idle) = (times(), cpu::machine_ticks());
    loop {
        match source.map(read) {
            None => {}
            Some(Ok(snapshot)) => observed.proxy.get_or_insert_with(Snapshot::default).raise(snapshot),
            Some(Err(error)) => observed.error = Some(error),
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let elapsed_s = begun.elapsed().as_secs_f64().max(1e-3);
    for ((pid, before), after) in pids.iter().zip(before).zip(times()) {
        if let (Some((user, system)), Some((user_after, system_after))) = (before, after) {
            observed.processes.push((*pid, (user_after - user + system_after - system) / elapsed_s));
        }
    }
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
        # pxname,svname,qcur,qmax,scur,smax,slim,type,rtime,qtime,last_chk,\n\
        www,FRONTEND,,,20,30,50,0,,,,\n\
        app,s1,3,4,5,5,5,2,12,40,\"a, \"\"b\"\"\",\n\
        app,BACKEND,3,4,5,5,10,1,12,40,,\n\
        www,socket-1,,,1,1,9,3,,,,\n\n";

    #[test]
    fn figures_are_read_and_the_highest_kept() {
        let mut one = Snapshot::parse(TEXT).unwrap();
        assert_eq!((one.connections, one.threads, one.pid, one.rows.len()), (Some((20, 100)), 2, Some(77), 3));
        let server = &one.rows[1];
        assert_eq!((server.kind, server.sessions, server.limit, server.queued), (Kind::Server, 5, Some(5), 3));
        assert_eq!((server.response_ms, server.queue_ms), (Some(12), Some(40)));
        let other =
            Snapshot::parse(&TEXT.replace("app,s1,3,4,5,", "app,s1,9,9,2,").replace("CurrConns: 20", "CurrConns: 99"));
        one.raise(other.unwrap());
        assert_eq!((one.connections, one.rows[1].sessions, one.rows[1].queued), (Some((99, 100)), 5, 9));
        assert!(Snapshot::parse("HTTP/1.0 401 Unauthorized\r\n\r\n").is_err());
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
