//! The series of *How Many Simultaneous Connections can HAProxy Handle?*
//!
//! Runs against the slow server wait for it all the time, so those of both programs are made at once; runs against the
//! fast one alternate.

use std::fmt::Write as _;

use crate::bench::{median, spread};
use crate::proxy::peer::{BOTH, Bench, Peer, Running};
use crate::report::{Options, Part, ratios};
use crate::run::output;

/// The post's duration of a run.
const SECONDS: u32 = 30;
/// The seconds that the slow server takes for an answer.
const SLOW_S: u32 = 3;
/// Of a run against the fast server, which shows its rate sooner.
const FAST_SECONDS: u32 = 10;

/// A run of the post: limits, clients, and its requests, successes, failures and successes a second.
struct Row {
    maxconn: u32,
    fullconn: u32,
    clients: u32,
    path: &'static str,
    published: [u32; 4],
}

const fn row(maxconn: u32, fullconn: u32, clients: u32, path: &'static str, published: [u32; 4]) -> Row {
    Row { maxconn, fullconn, clients, path, published }
}

const FAST: [Row; 2] =
    [row(20, 20, 20, "/fast", [627_867, 627_867, 0, 20_928]), row(20, 1, 20, "/fast", [527_141, 527_141, 0, 17_571])];

/// The post makes the first of them twice.
const SLOW: [Row; 7] = [
    row(20, 20, 20, "/slow", [180, 180, 0, 6]),
    row(20, 1, 20, "/slow", [180, 180, 0, 6]),
    row(20, 20, 100, "/slow", [266, 180, 86, 6]),
    row(40, 20, 100, "/slow", [426, 360, 66, 12]),
    row(60, 20, 100, "/slow", [595, 540, 55, 18]),
    row(80, 20, 100, "/slow", [760, 720, 40, 24]),
    row(100, 20, 100, "/slow", [900, 900, 0, 30]),
];

impl Row {
    /// Returns the post's file; the statistics socket, the log and the process in the background are left out.
    fn file(&self, bench: &Bench<'_>) -> String {
        format!(
            "global\n    maxconn {}\n    nbthread 1\ndefaults\n    timeout connect 4000\n    timeout client 42000\n    \
             timeout server 43000\nlisten pool-1\n    bind 127.0.0.1:PORT\n    mode http\n    balance roundrobin\n    fullconn \
             {}\n    server go_http_server_1 {} cookie go_http_server_1 check inter 2000 rise 2 fall 3\n",
            self.maxconn,
            self.fullconn,
            bench.origin()
        )
    }

    fn name(&self) -> String {
        format!("maxconn {}, fullconn {}, {} clients, {}", self.maxconn, self.fullconn, self.clients, self.path)
    }

    /// Runs gobench's line. Returns requests, successes, failures and successes a second.
    fn run(&self, running: &Running, options: &Options, seconds: u32) -> Result<[f64; 4], String> {
        let (program, url) = (options.program.display().to_string(), running.url(self.path));
        let (clients, seconds) = (self.clients.to_string(), seconds.to_string());
        let words = ["-c", "1", &program, "bench", "http", "-u", &url, "-c", &clients, "-t", &seconds];
        let text = output("taskset", &words).ok_or_else(|| format!("the load of {} failed", self.name()))?;
        figures(&text).ok_or_else(|| format!("the report of {} lacks a line:\n{text}", self.name()))
    }

    fn write(&self, text: &mut String, measured: &[Vec<[f64; 4]>]) {
        let _ = write!(text, "| {} | {} |", self.name(), self.published.map(|figure| figure.to_string()).join(" / "));
        for runs in measured {
            let cells: Vec<String> = (0..4)
                .map(|index| median(&runs.iter().map(|run| run[index]).collect::<Vec<f64>>()))
                .map(|figure| format!("{figure:.0}"))
                .collect();
            let _ = write!(text, " {} |", cells.join(" / "));
        }
        text.push('\n');
    }
}

/// Returns the figures of gobench's report.
fn figures(text: &str) -> Option<[f64; 4]> {
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let names = ["Requests:", "Successful requests:", "Network failed:", "Successful requests rate:"];
    let [requests, successes, failures, rate] = names.map(figure);
    Some([requests?, successes?, failures?, rate?])
}

/// `connections`: limits of connections with a slow and a fast server.
pub(super) fn connections(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("connections", "How Many Simultaneous Connections can HAProxy Handle?");
    let bench = Bench::new(options)?;
    // Less than two answers of the slow server show nothing.
    let seconds = options.seconds(SECONDS).max(2 * SLOW_S + 1);
    let fast_seconds = (seconds / 3).clamp(1, FAST_SECONDS);
    // `[row][program][run]`
    let mut fast: Vec<Vec<Vec<[f64; 4]>>> = vec![vec![Vec::new(); BOTH.len()]; FAST.len()];
    for round in options.rounds() {
        for (row, of_row) in FAST.iter().zip(&mut fast) {
            for (peer, runs) in BOTH.into_iter().zip(of_row) {
                let running = peer.start(&bench, &row.file(&bench))?;
                let figures = row.run(&running, options, fast_seconds)?;
                println!("run {} {} {:<12} {figures:?}", round + 1, row.name(), peer.name());
                runs.push(figures);
            }
        }
    }
    let slow = slow(&bench, options, seconds)?;
    let columns = BOTH.map(Peer::name);
    let _ = writeln!(
        part.text,
        "`gobench -u URL -c CLIENTS -t {seconds}` ({fast_seconds} s for `/fast`), run by `sluicegate bench http`; `/slow` answers \
         after three seconds. Requests / successes / network failures / successes a second; a published run takes {SECONDS} s.\n\n\
         | | published | {} |\n|---|---|{}",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    FAST.iter().zip(&fast).chain(SLOW.iter().zip(&slow)).for_each(|(row, of_row)| row.write(&mut part.text, of_row));
    let rates = |rows: &[Vec<Vec<[f64; 4]>>]| -> Vec<Vec<Vec<f64>>> {
        let of_runs = |runs: &Vec<[f64; 4]>| runs.iter().map(|run| run[3]).collect::<Vec<f64>>();
        rows.iter().map(|of_row| of_row.iter().map(of_runs).collect()).collect()
    };
    let (fast_rates, slow_rates) = (rates(&fast), rates(&slow));
    let names: Vec<String> = FAST.iter().chain(&SLOW).map(Row::name).collect();
    let all = [fast_rates.clone(), slow_rates.clone()].concat();
    part.keep("successes a second", &columns, names.iter().map(String::as_str), &all);
    let _ = writeln!(
        part.text,
        "\n`fullconn 1` in place of 20 with the fast server, times: {}.",
        BOTH.iter()
            .enumerate()
            .map(|(index, peer)| {
                let both = [fast_rates[0][index].clone(), fast_rates[1][index].clone()];
                format!("{} {}", peer.name(), spread(&ratios(&both), 2))
            })
            .collect::<Vec<_>>()
            .join(", ")
    );
    // The law of the series: of a slow server come as many answers as connections are allowed, in each whole three seconds.
    let rounds = f64::from((seconds - 1) / SLOW_S);
    let worst = SLOW
        .iter()
        .zip(&slow)
        .map(|(row, of_row)| of_row[1][0][1] / (f64::from(row.maxconn.min(row.clients)) * rounds))
        .fold(f64::INFINITY, f64::min);
    part.goal("successes / (maxconn × whole three seconds), ours, the least", "≥ 0.99", worst, |part| part >= 0.99);
    Ok(part)
}

/// Makes the slow runs of both programs at once. Returns `[row][program][run]`.
fn slow(bench: &Bench<'_>, options: &Options, seconds: u32) -> Result<Vec<Vec<Vec<[f64; 4]>>>, String> {
    let mut running = Vec::new();
    for row in &SLOW {
        for peer in BOTH {
            running.push((row, peer.start(bench, &row.file(bench))?));
        }
    }
    let results: Vec<[f64; 4]> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            running.iter().map(|(row, running)| scope.spawn(move || row.run(running, options, seconds))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("a load panicked".to_owned()))
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    })
    .into_iter()
    .collect::<Result<_, String>>()?;
    Ok(results.chunks(BOTH.len()).map(|of_row| of_row.iter().map(|run| vec![*run]).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_gobench_are_read() {
        let text = "Dispatching 100 clients\nWaiting for results...\n\n\
                    Requests:                              266 hits\n\
                    Successful requests:                   180 hits\n\
                    Network failed:                         86 hits\n\
                    Bad requests failed (!2xx):              0 hits\n\
                    Successful requests rate:                6 hits/sec\n";
        assert_eq!(figures(text), Some([266.0, 180.0, 86.0, 6.0]));
        assert_eq!(figures("Requests: 1 hits\n"), None);
    }

    #[test]
    fn the_series_keeps_its_law() {
        for row in &SLOW {
            assert_eq!(row.published[1], row.maxconn.min(row.clients) * ((SECONDS - 1) / SLOW_S), "{}", row.name());
            assert_eq!(row.published[3], row.published[1] / SECONDS);
            assert_eq!(row.published[0], row.published[1] + row.published[2]);
        }
    }
}
