//! Commands about the process itself: its descriptors, libraries, memory and workers, waiting, and `debug dev`.
//!
//! HAProxy's answers to these describe its own tasks, pools and addresses; here they describe what this process has in
//! their place, under the same names and in the same first lines. Everything is read at the moment of the command, from
//! `/proc` or from figures that are kept anyway.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluicegate_config::model::StatsLevel;
use xxhash_rust::xxh32::xxh32;

use super::catalogue::{Call, Command, Run};
use super::change::backend_named;
use super::protocol::Answer;
use super::servers::{BUSY, may_go};
use crate::log::Severity;

/// The interval at which `wait` checks its condition.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["debug", "dev", "delay"],
        arguments: "[ms]",
        help: "block the thread of commands and checks for this long",
        level: StatsLevel::Admin,
        run: Run::Now(delay),
    },
    Command {
        name: &["debug", "dev", "exit"],
        arguments: "[code]",
        help: "exit the process at once",
        level: StatsLevel::Admin,
        run: Run::Now(exit),
    },
    Command {
        name: &["debug", "dev", "hash"],
        arguments: "[msg]",
        help: "return msg hashed if anon is set",
        level: StatsLevel::User,
        run: Run::Now(|call| {
            let text = call.arg(0).to_owned();
            let text = anonymous(call.session.anonymous, &text);
            call.out.push(text + "\n");
        }),
    },
    Command {
        name: &["debug", "dev", "log"],
        arguments: "[msg] ...",
        help: "send this msg to global logs",
        level: StatsLevel::Admin,
        run: Run::Now(log),
    },
    Command {
        name: &["debug", "dev", "panic"],
        arguments: "",
        help: "abort the process",
        level: StatsLevel::Admin,
        run: Run::Now(|call| {
            if expert(call) {
                std::process::abort();
            }
        }),
    },
    Command {
        name: &["debug", "dev", "write"],
        arguments: "[size]",
        help: "write that many bytes in return",
        level: StatsLevel::Admin,
        run: Run::Long(write),
    },
    Command {
        name: &["echo"],
        arguments: "[text]",
        help: "print text to the output",
        level: StatsLevel::User,
        run: Run::Now(|call| {
            let text = call.args.join(&b' ');
            call.out.push(text);
            call.out.push("\n");
        }),
    },
    Command {
        name: &["set", "anon", "global-key"],
        arguments: "<value>",
        help: "change the global anonymizing key",
        level: StatsLevel::Admin,
        run: Run::Now(set_global_key),
    },
    Command {
        name: &["set", "anon", "off"],
        arguments: "",
        help: "deactivate the anonymized mode",
        level: StatsLevel::User,
        run: Run::Now(|call| match call.args {
            [] => call.session.anonymous = None,
            _ => call.say("Key can't be added while disabling anonymized mode"),
        }),
    },
    Command {
        name: &["set", "anon", "on"],
        arguments: "[value]",
        help: "activate the anonymized mode",
        level: StatsLevel::User,
        run: Run::Now(set_anonymous),
    },
    Command {
        name: &["set", "profiling"],
        arguments: "<what> {auto|on|off}",
        help: "tasks cannot be profiled: everything but 'off' is refused",
        level: StatsLevel::Admin,
        run: Run::Now(set_profiling),
    },
    Command {
        name: &["show", "anon"],
        arguments: "",
        help: "display the current state of anonymized mode",
        level: StatsLevel::User,
        run: Run::Now(show_anonymous),
    },
    Command {
        name: &["show", "dev"],
        arguments: "",
        help: "show debug info for developers",
        level: StatsLevel::Operator,
        run: Run::Now(show_dev),
    },
    Command {
        name: &["show", "fd"],
        arguments: "[num]",
        help: "show list of file descriptors in use or a specific one",
        level: StatsLevel::Operator,
        run: Run::Long(show_descriptors),
    },
    Command {
        name: &["show", "libs"],
        arguments: "",
        help: "show loaded object files and libraries",
        level: StatsLevel::Operator,
        run: Run::Now(show_libraries),
    },
    Command {
        name: &["show", "pools"],
        arguments: "",
        help: "report information about the memory of buffers and pipes",
        level: StatsLevel::User,
        run: Run::Now(show_pools),
    },
    Command {
        name: &["show", "startup-logs"],
        arguments: "",
        help: "report logs emitted during startup",
        level: StatsLevel::User,
        run: Run::Now(|call| {
            let text = call.running.process.startup_logs();
            call.out.push(text);
        }),
    },
    Command {
        name: &["show", "tasks"],
        arguments: "",
        help: "show running tasks",
        level: StatsLevel::User,
        run: Run::Now(show_tasks),
    },
    Command {
        name: &["show", "threads"],
        arguments: "",
        help: "show the state of the workers",
        level: StatsLevel::User,
        run: Run::Now(show_threads),
    },
    Command {
        name: &["wait"],
        arguments: "{-h|<delay_ms>} cond [args...]",
        help: "wait the specified delay or condition",
        level: StatsLevel::Admin,
        run: Run::Long(wait),
    },
];

/// Returns whether the client is in expert mode; if not, it gets an error.
fn expert(call: &mut Call<'_>) -> bool {
    if !call.session.rights.expert {
        call.say("This command is restricted to expert mode only.");
    }
    call.session.rights.expert
}

fn delay(call: &mut Call<'_>) {
    /// The maximum delay in milliseconds: a longer one is useless, and the process answers nothing meanwhile.
    const MOST_MS: u64 = 60_000;
    if expert(call) {
        let ms = call.arg(0).parse().unwrap_or(0u64);
        std::thread::sleep(Duration::from_millis(ms.min(MOST_MS)));
    }
}

fn exit(call: &mut Call<'_>) {
    if expert(call) {
        std::process::exit(call.arg(0).parse().unwrap_or(0));
    }
}

fn log(call: &mut Call<'_>) {
    if expert(call) {
        let text = call.args.join(&b' ');
        call.running.logger.send(&call.running.config.global.log, Severity::Info, &text);
    }
}

fn write(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        if !expert(&mut call) {
            return Ok(());
        }
        // HAProxy writes whole lines of dots and digits; only the number of bytes matters.
        let mut left: usize = call.arg(0).parse().unwrap_or(0);
        while left > 0 {
            let count = left.min(64);
            call.out.push(".".repeat(count - 1));
            call.out.push("\n");
            left -= count;
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// The key of `set anon on` without one; 0: a random key.
static GLOBAL_KEY: AtomicU32 = AtomicU32::new(0);

fn set_global_key(call: &mut Call<'_>) {
    match call.arg(0).parse::<i64>() {
        Err(_) => call.say("Expects an integer value."),
        Ok(key) => match u32::try_from(key) {
            Ok(key) => GLOBAL_KEY.store(key, Ordering::Relaxed),
            Err(_) => call.say("Value out of range (0 to 4294967295 expected)."),
        },
    }
}

fn set_anonymous(call: &mut Call<'_>) {
    let key = match call.arg(0) {
        "" => match (GLOBAL_KEY.load(Ordering::Relaxed), call.running.config.global.anonymous_key) {
            (0, 0) => chance().max(1),
            (0, key) | (key, _) => key,
        },
        text => match text.parse::<u32>().ok().filter(|key| *key > 0) {
            Some(key) => key,
            None => return call.say("Value out of range (1 to 4294967295 expected)."),
        },
    };
    call.session.anonymous = Some(key);
}

fn chance() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish() as u32
}

fn set_profiling(call: &mut Call<'_>) {
    match (call.arg(0), call.arg(1)) {
        ("tasks", "off") => {}
        ("tasks", "on" | "auto") => call.say("Tasks are not profiled by this program."),
        ("tasks", _) => call.say("Expects 'on', 'auto', or 'off'."),
        ("memory", _) => call.say("Memory profiling not compiled in."),
        _ => call.say("Expects either 'tasks' or 'memory'."),
    }
}

fn show_anonymous(call: &mut Call<'_>) {
    match call.session.anonymous {
        None => call.say("Anonymized mode disabled"),
        Some(key) => call.say(format!("Anonymized mode enabled\nKey : {key}")),
    }
}

/// Returns a name as `set anon on` shows it: HAProxy's hash of six digits.
pub(super) fn anonymous(key: Option<u32>, text: &str) -> String {
    match key {
        Some(key) if !text.is_empty() => format!("{:06x}", xxh32(text.as_bytes(), key) & 0xff_ffff),
        _ => text.to_owned(),
    }
}

/// Like [`anonymous`], for an address, whose kind remains recognizable.
pub(super) fn anonymous_address(key: Option<u32>, text: &str) -> String {
    let Some(number) = key else { return text.to_owned() };
    let digits = || xxh32(text.as_bytes(), number) & 0xff_ffff;
    match text.parse() {
        Ok(std::net::IpAddr::V4(ip)) if matches!(ip.octets()[0], 0 | 127 | 255) => text.to_owned(),
        Ok(std::net::IpAddr::V4(_)) => format!("IPV4({:06x})", digits()),
        Ok(std::net::IpAddr::V6(ip)) if ip.is_loopback() => text.to_owned(),
        Ok(std::net::IpAddr::V6(_)) => format!("IPV6({:06x})", digits()),
        Err(_) if text == "-" => text.to_owned(),
        Err(_) => anonymous(key, text),
    }
}

fn show_dev(call: &mut Call<'_>) {
    let mut text = format!("HAProxy version {}\nFeatures\n ", crate::stats::info::VERSION);
    for feature in sluicegate_config::FEATURES {
        // Writing to a string can't fail.
        let _ = write!(text, " +{feature}");
    }
    let process = &call.running.process;
    let _ = write!(
        text,
        "\nPlatform info\n  machine arch: {}\n  cpus: {}\nProcess info\n  pid: {}\n  workers: {}\n  boot uid: {}\n",
        std::env::consts::ARCH,
        std::thread::available_parallelism().map_or(0, usize::from),
        std::process::id(),
        process.workers.len(),
        rustix::process::getuid().as_raw(),
    );
    for (name, limit) in [
        ("descriptors", rustix::process::Resource::Nofile),
        ("core size", rustix::process::Resource::Core),
        ("address space", rustix::process::Resource::As),
    ] {
        let limit = rustix::process::getrlimit(limit);
        let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        let _ = writeln!(text, "  limit of {name}: {} (hard {})", shown(limit.current), shown(limit.maximum));
    }
    call.out.push(text);
}

fn show_descriptors(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let wanted = match call.arg(0) {
            "" => None,
            text => match text.parse::<u32>() {
                Ok(number) => Some(number),
                Err(_) => {
                    call.say("Expects the number of a descriptor.");
                    return Ok(());
                }
            },
        };
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
            call.say("/proc is not there to be read.");
            return Ok(());
        };
        let entries = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(&path).ok()?))
        });
        let mut found: Vec<_> = entries.filter(|(number, _)| wanted.is_none_or(|wanted| wanted == *number)).collect();
        found.sort_unstable();
        for (number, leads_to) in found {
            call.out.push(format!("{number:>7} : {}\n", leads_to.display()));
            call.out.drain().await?;
        }
        Ok(())
    })
}

fn show_libraries(call: &mut Call<'_>) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<(String, u64, u64)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let path = words.nth(4).filter(|path| path.starts_with('/'));
        let (Some((start, end)), Some(path)) = (range, path) else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else { continue };
        match found.iter_mut().find(|(known, _, _)| known == path) {
            Some((_, first, last)) => (*first, *last) = ((*first).min(start), (*last).max(end)),
            None => found.push((path.to_owned(), start, end)),
        }
    }
    for (path, start, end) in found {
        call.out.push(format!("0x{start:012x}-0x{:012x} (0x{:07x}) {path}\n", end - 1, end - start));
    }
}

fn show_pools(call: &mut Call<'_>) {
    let process = &call.running.process;
    let sum = |figure: fn(&crate::process::WorkerFigures) -> u64| process.workers.iter().map(figure).sum::<u64>();
    let size = call.running.config.global.tune.bufsize as u64;
    let free = sum(|worker| worker.pool.buffers_free.load(Ordering::Relaxed));
    let allocated = sluicegate_transport::allocated();
    let (piped, spare) = (
        sum(|worker| worker.pool.pipes_used.load(Ordering::Relaxed)),
        sum(|worker| worker.pool.pipes_free.load(Ordering::Relaxed)),
    );
    call.out.push(format!(
        "Dumping pools usage.\n  - Pool buffer ({size} bytes) : {} free ({free} bytes)\n  - Pool pipe : {} allocated, {piped} \
         used\nTotal: 2 pools, {allocated} bytes allocated, {} used.\n",
        free / size.max(1),
        piped + spare,
        allocated.saturating_sub(free),
    ));
}

fn show_tasks(call: &mut Call<'_>) {
    let process = &call.running.process;
    let (tasks, waiting, workers) = (process.tasks(), process.run_queue(), process.workers.len());
    let mut text = format!("Running tasks: {tasks} ({workers} threads)\n");
    let _ = writeln!(text, "  thread     tasks   waiting   streams");
    for (index, worker) in process.workers.iter().enumerate() {
        let runtime = worker.runtime.get();
        let (alive, queued) =
            runtime.map_or((0, 0), |runtime| (runtime.num_alive_tasks(), runtime.global_queue_depth()));
        let streams = worker.streams.load(Ordering::Relaxed);
        let _ = writeln!(text, "  {:<6} {alive:>9} {queued:>9} {streams:>9}", index + 1);
    }
    let _ = writeln!(text, "  all    {tasks:>9} {waiting:>9}");
    call.out.push(text);
}

fn show_threads(call: &mut Call<'_>) {
    let process = &call.running.process;
    let up = process.started.elapsed();
    let mut text = String::new();
    for (index, worker) in process.workers.iter().enumerate() {
        let (busy, parks) = worker.runtime.get().map_or((Duration::ZERO, 0), |runtime| {
            (runtime.worker_total_busy_duration(0), runtime.worker_park_count(0))
        });
        let _ = writeln!(
            text,
            "  Thread {} : sessions={} streams={} busy_ms={} of={} parks={parks} requests={}",
            index + 1,
            worker.load.load(Ordering::Relaxed),
            worker.streams.load(Ordering::Relaxed),
            busy.as_millis(),
            up.as_millis(),
            worker.requests.get(),
        );
    }
    call.out.push(text);
}

const WAIT_USAGE: &str = "Usage: wait {-h|<duration>} [condition [args...]]\n  - '-h' displays this help\n  - <duration> is \
     the longest wait, in milliseconds or with a unit: us, ms, s, m, h, d\n  - <condition> ends the wait sooner:\n    - \
     <none> : waits for the whole duration\n    - srv-removable <px>/<sv> : until this server can be deleted";

fn wait(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let until = match call.arg(0) {
            "" => {
                call.say("Expects a duration in milliseconds.");
                return Ok(());
            }
            "-h" => {
                call.say(WAIT_USAGE);
                return Ok(());
            }
            text => match duration(text) {
                Some(limit) => Instant::now() + limit,
                None => {
                    call.say("Invalid duration.");
                    return Ok(());
                }
            },
        };
        let place = match (call.arg(1), call.arg(2)) {
            ("", _) => None,
            ("srv-removable", "") => {
                call.say("Missing server name (<backend>/<server>).");
                return Ok(());
            }
            ("srv-removable", place) => match place.split_once('/') {
                Some((backend, server)) if !server.is_empty() => Some((backend.to_owned(), server.to_owned())),
                _ => {
                    call.say("Require 'backend/server'.");
                    return Ok(());
                }
            },
            _ => {
                call.say(WAIT_USAGE);
                return Ok(());
            }
        };
        // Earlier replies are sent before the wait.
        call.out.flush().await?;
        let said = loop {
            if let Some((backend, server)) = &place {
                match removable(&call, backend, server) {
                    Some(true) => break "Done.",
                    Some(false) => {}
                    None => break "Failed.",
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break if place.is_some() { "Wait delay expired." } else { "Done." };
            }
            let pause = if place.is_some() { left.min(LOOK_PERIOD) } else { left };
            tokio::time::sleep(pause).await;
        };
        call.say(said);
        Ok(())
    })
}

/// Returns whether `del server` would delete the server now; `None`: never with the current configuration.
fn removable(call: &Call<'_>, backend: &str, server: &str) -> Option<bool> {
    let running = call.running.process.current().map_or_else(|| call.running.clone(), |current| current.running());
    let proxy = backend_named(&running, backend)?;
    let server = proxy.server(server)?;
    match may_go(&running, proxy, server) {
        Ok(()) => Some(true),
        Err(BUSY) => Some(false),
        Err(_) => None,
    }
}

/// Parses a duration of at least 1 ms, in milliseconds without a unit.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let ms = match &text[digits..] {
        "us" => number.div_ceil(1_000),
        "" | "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        "d" => number.checked_mul(86_400_000)?,
        _ => return None,
    };
    (1..=u64::from(u32::MAX)).contains(&ms).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_milliseconds_without_a_unit() {
        assert_eq!(duration("10"), Some(Duration::from_millis(10)));
        assert_eq!(duration("2s"), Some(Duration::from_secs(2)));
        assert_eq!(duration("1us"), Some(Duration::from_millis(1)));
        assert_eq!([duration("0"), duration("x"), duration("3y"), duration("99999d")], [None; 4]);
    }

    /// Measured with haproxy 3.2.0: `set anon on 1234; show servers state`.
    #[test]
    fn names_are_hashed_as_in_haproxy() {
        assert_eq!(anonymous(Some(1234), "b"), "c359d4");
        assert_eq!(anonymous(Some(1234), "s1"), "238337");
        assert_eq!([anonymous(None, "b"), anonymous(Some(1), "")], ["b", ""]);
        assert_eq!(anonymous_address(Some(1234), "127.0.0.1"), "127.0.0.1");
        assert!(anonymous_address(Some(1234), "10.0.0.1").starts_with("IPV4("));
        assert!(anonymous_address(Some(1234), "2001:db8::1").starts_with("IPV6("));
    }
}
