//! Load generators for HTTP/1, HTTP/2 and RESP: `sluicegate bench http|redis`.
//!
//! | module | contents |
//! |---|---|
//! | `arguments`, `plan` | the command line, parsed into the plan of a run and checked before anything is opened |
//! | `target`, `template`, `random`, `items` | the server; requests with placeholders for keys; random keys; keys of a file |
//! | `http`, `http2`, `redis`, `scan`, `protocol` | prepared requests; responses, which `wire` parses to their end |
//! | `tls`, `transport` | settings, sessions and results of TLS; the stream of a connection, plain or TLS |
//! | `schedule`, `poller`, `reactor` | due times of requests; epoll and a timer; one thread with its connections |
//! | `stats`, `clients`, `cpu` | counters and histograms, also of each client; CPU times |
//! | `outcome`, `text`, `json`, `csv`, `picture`, `console` | results, reports, and their outputs |
//! | `progress`, `screen`, `statsd` | lines that show the progress, a view of the terminal, metrics for StatsD |
//! | `run`, `reconnect` | threads, signals, a run and the cost of connections |
//! | `capacity` | the search for the highest rate and the limit that was reached |
//! | `compare` | comparisons with confidence intervals |
//! | `ask`, `cluster` | commands asked of a server before a run; the nodes of a cluster |
//! | `base64` | the alphabet of logins and of compressed histograms |
//! | `distribution` | latencies in steps |
//! | `face`, `gobench`, `memtier`, `redis_benchmark` | command lines and reports of other load generators, over the same engine |
//!
//! **Invariant:** nothing is hidden. A latency begins when the request was *due*, every request ends in
//! exactly one counter, and the report warns if the generator itself is the limit.

mod arguments;
mod ask;
mod base64;
mod capacity;
mod clients;
mod cluster;
mod compare;
mod console;
mod cpu;
mod csv;
mod distribution;
mod face;
mod gobench;
mod http;
mod http2;
mod items;
mod json;
mod memtier;
mod outcome;
mod output;
mod picture;
mod plan;
mod poller;
mod progress;
mod protocol;
mod random;
mod reactor;
mod reconnect;
mod redis;
mod redis_benchmark;
mod run;
mod scan;
mod schedule;
mod screen;
mod stats;
mod statsd;
mod target;
mod template;
mod text;
mod tls;
mod transport;

pub use console::Console;
pub use face::Face;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs `sluicegate bench WORDS…`. The exit code is 0 if at least one request succeeded, 1 if every request failed or
/// the arguments are invalid, 130 when interrupted. The report goes to standard output, live lines and errors to
/// standard error.
pub fn command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let is_terminal = sluicegate_terminal::Screen::is_there();
    ExitCode::from(execute(words, &mut Console { out: &mut out, err: &mut err, takes_signals: true, is_terminal }))
}

/// Like [`command`], for a program that processes the output itself. Returns the exit code.
pub fn execute(words: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> u8 {
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some((face, words)) = Face::of_words(&words) {
        return face.execute(words, console);
    }
    match arguments::parse(words) {
        Ok(arguments::Command::Help(text)) => match console.out.write_all(text.as_bytes()) {
            Ok(()) => 0,
            Err(_) => 1,
        },
        Ok(arguments::Command::Run(mut plan)) => {
            if !console.is_terminal {
                plan.load.leave_screen();
            }
            run::run(&plan, console)
        }
        Ok(arguments::Command::Capacity(capacity)) => capacity::run(&capacity, console),
        Ok(arguments::Command::Compare(paths, options)) => compare::files(&paths, &options, console),
        Ok(arguments::Command::Versus(mut versus)) => {
            for plan in [&mut versus.one, &mut versus.other] {
                plan.load.leave_screen();
            }
            compare::versus(&versus, console)
        }
        Ok(arguments::Command::Reconnect(mut plan)) => {
            plan.load.leave_screen();
            reconnect::run(&plan, console)
        }
        Err(message) => console.refuse(&message),
    }
}
