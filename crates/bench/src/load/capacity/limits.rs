//! Which limit was reached: what a step of the load has shown, compared with the limits that the proxy tells.

use super::probe::{Kind, Process, Row};
use super::{ERRORS, Step};

/// The share of its limit from which on a processor is the limit.
const BUSY: f64 = 0.9;

/// The factor by which a server's response time has grown if its time is the limit.
const SLOWER: f64 = 1.5;

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limit {
    /// A name for programs: `server_maxconn`.
    pub(super) name: &'static str,
    pub(super) text: String,
}

fn limit(name: &'static str, text: String) -> Limit {
    Limit { name, text }
}

/// Returns the limits that the last of the steps has reached; what is most certain comes first.
pub(super) fn reached(steps: &[Step], cores: usize) -> Vec<Limit> {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(text) = &last.resources {
        found.push(limit("resources", format!("ports or descriptors of this machine: {text}")));
    }
    if let Some(text) = &last.refused {
        found.push(limit(
            "connections_refused",
            format!("the target refuses connections, or does not accept them in time: {text}"),
        ));
    }
    let rows = last.observed.proxy.iter().flat_map(|proxy| &proxy.rows);
    let global = last.observed.proxy.as_ref().and_then(|proxy| proxy.connections);
    if let Some((connections, most)) = global.filter(|(connections, most)| *most > 0 && connections >= most) {
        found.push(limit("global_maxconn", format!("maxconn {most} of the process: {connections} connections")));
    }
    let full = |row: &&Row| row.limit.is_some_and(|limit| row.sessions >= limit);
    for row in rows.clone().filter(|row| row.kind == Kind::Frontend).filter(full) {
        let most = row.limit.unwrap_or(0);
        // A frontend without a limit of its own has that of the process.
        if global.is_none_or(|(_, of_process)| of_process != most) {
            found.push(limit("frontend_maxconn", format!("maxconn {most} of frontend {}", row.proxy)));
        }
    }
    let queue = |proxy: &str| rows.clone().filter(|row| row.proxy == proxy).map(|row| row.queued).sum::<u64>();
    for row in rows.clone().filter(|row| row.kind == Kind::Server).filter(full) {
        let (most, queued) = (row.limit.unwrap_or(0), queue(&row.proxy));
        if queued > 0 {
            let text =
                format!("maxconn {most} of server {}/{}: up to {queued} requests in the queue", row.proxy, row.name);
            found.push(limit("server_maxconn", text));
        }
    }
    if last.unavailable > 0 && found.iter().any(|limit| limit.name == "server_maxconn") {
        found.push(limit(
            "queue",
            format!("timeout queue: {} responses 503 after waiting for a server", last.unavailable),
        ));
    }
    let is_unconnected = |row: &&Row| row.unconnected as f64 > ERRORS * (last.answered + last.failed) as f64;
    for row in rows.clone().filter(|row| row.kind == Kind::Server).filter(is_unconnected) {
        let (proxy, name, count) = (&row.proxy, &row.name, row.unconnected);
        found.push(limit(
            "server_connections",
            format!(
                "connections to server {proxy}/{name}: {count} failed; it refuses them, or the proxy has no ports or \
                 descriptors left"
            ),
        ));
    }
    for Process { pid, cores: used, waited, busiest } in &last.observed.processes {
        let threads = match &last.observed.proxy {
            Some(proxy) if proxy.pid == Some(*pid) => proxy.threads as usize,
            _ => cores,
        };
        let most = threads.clamp(1, cores) as f64;
        let text = format!("CPU of process {pid}: {used:.2} of {most} cores");
        if *used >= BUSY * most {
            found.push(limit("process_cpu", text));
        } else if *busiest >= BUSY {
            // It may be the only one that works, or others may take its processor.
            let share = busiest.min(1.0) * 100.0;
            let more = format!(
                "and {waited:.2} more that it waited for; one of its threads had work {share:.0} % of the time"
            );
            found.push(limit("process_cpu", format!("{text}, {more}")));
        }
    }
    if last.busiest >= BUSY {
        let text = format!("CPU of the load generator: {:.0} % of a core; give it --threads", last.busiest * 100.0);
        found.push(limit("generator_cpu", text));
    }
    if let Some(idle) = last.observed.idle.filter(|idle| *idle < 1.0 - BUSY)
        && found.is_empty()
    {
        found.push(limit("machine_cpu", format!("CPU of this machine: {:.0} % idle", idle * 100.0)));
    }
    found.extend(slower(first, last));
    if found.is_empty() && last.error_share() > ERRORS {
        found.push(limit(
            "errors",
            format!("{:.1} % of the requests failed or were answered with 5xx", last.error_share() * 100.0),
        ));
    }
    found
}

/// Returns the servers whose responses take longer than under little load.
fn slower<'a>(first: &'a Step, last: &'a Step) -> impl Iterator<Item = Limit> + 'a {
    let servers = |step: &'a Step| {
        step.observed.proxy.iter().flat_map(|proxy| &proxy.rows).filter(|row| row.kind == Kind::Server)
    };
    servers(last).filter_map(move |row| {
        let before = servers(first).find(|other| (&other.proxy, &other.name) == (&row.proxy, &row.name))?;
        let (before, now) = (before.response_ms?.max(1), row.response_ms?);
        let is_slower = now as f64 >= before as f64 * SLOWER && now >= 2;
        let text = format!(
            "time of server {}/{}: its responses take {now} ms, under little load {before} ms",
            row.proxy, row.name
        );
        is_slower.then(|| limit("server_time", text))
    })
}

#[cfg(test)]
mod tests {
    use super::super::probe::{Observed, Snapshot};
    use super::*;

    fn row(kind: Kind, sessions: u64, limit: Option<u64>, queued: u64) -> Row {
        Row {
            proxy: "p".to_owned(),
            name: "s".to_owned(),
            kind,
            sessions,
            limit,
            queued,
            unconnected: 0,
            queue_ms: None,
            response_ms: Some(sessions),
        }
    }

    fn step(rows: Vec<Row>, connections: (u64, u64)) -> Step {
        let proxy = Snapshot { connections: Some(connections), threads: 2, pid: Some(7), rows };
        Step { observed: Observed { proxy: Some(proxy), ..Observed::default() }, answered: 100, ..Step::default() }
    }

    fn names(steps: &[Step]) -> Vec<&'static str> {
        reached(steps, 4).into_iter().map(|limit| limit.name).collect()
    }

    #[test]
    fn each_limit_is_found() {
        let calm = step(vec![row(Kind::Server, 1, Some(9), 0)], (1, 100));
        assert_eq!(names(&[calm.clone(), calm.clone()]), Vec::<&str>::new());
        let full = |rows, connections| [calm.clone(), step(rows, connections)];
        assert_eq!(names(&full(vec![row(Kind::Frontend, 20, Some(20), 0)], (25, 100))), ["frontend_maxconn"]);
        assert_eq!(names(&full(vec![row(Kind::Frontend, 100, Some(100), 0)], (100, 100))), ["global_maxconn"]);
        assert_eq!(names(&full(vec![row(Kind::Server, 9, Some(9), 4)], (25, 100))), ["server_maxconn", "server_time"]);
        // Full, but nobody waits: one connection for each session is enough.
        assert_eq!(names(&full(vec![row(Kind::Server, 1, Some(1), 0)], (1, 100))), Vec::<&str>::new());
        let mut last = calm.clone();
        let process = |pid, cores, busiest| Process { pid, cores, waited: 0.3, busiest };
        last.observed.processes = vec![process(7, 1.9, 0.0), process(8, 1.9, 0.8)];
        assert_eq!(names(&[calm.clone(), last.clone()]), ["process_cpu"], "7 has two threads, 8 may use four cores");
        last.observed.processes = vec![process(7, 1.7, 0.8), process(8, 0.6, 0.95)];
        let limits = reached(&[calm.clone(), last.clone()], 4);
        let text = "CPU of process 8: 0.60 of 4 cores, and 0.30 more that it waited for; one of its threads had work 95 % of \
                    the time";
        assert_eq!(limits, [limit("process_cpu", text.to_owned())], "one thread of it is busy");
        (last.busiest, last.resources, last.refused) = (0.95, Some("no port".to_owned()), Some("refused".to_owned()));
        assert_eq!(names(&[calm.clone(), last]), ["resources", "connections_refused", "process_cpu", "generator_cpu"]);
        let mut last = step(vec![row(Kind::Server, 9, Some(9), 4)], (25, 100));
        last.unavailable = 5;
        assert!(names(&[calm.clone(), last]).contains(&"queue"));
        let mut unconnected = row(Kind::Server, 1, Some(9), 0);
        unconnected.unconnected = 3;
        assert_eq!(names(&full(vec![unconnected], (1, 100))), ["server_connections"]);
        let mut last = calm.clone();
        (last.answered, last.failed) = (0, 9);
        assert_eq!(names(&[calm.clone(), last]), ["errors"]);
        let mut last = calm.clone();
        last.observed.idle = Some(0.01);
        assert_eq!(names(&[calm, last]), ["machine_cpu"]);
    }
}
