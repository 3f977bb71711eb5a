//! The `global` section (HAProxy configuration manual 3).

use std::path::PathBuf;
use std::time::Duration;

use crate::address;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::model::{Global, LogAddress, LuaLoad, LuaLogStderr, LuaPath, Position, StatsLevel, StatsSocket};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{bind, log};
use crate::suggest;
use crate::unit::{self, SIZE_HINT, TIME_HINT, TimeUnit};
use crate::word::Line;

/// Reads the section line by line; several `global` sections add up, as in HAProxy.
#[derive(Default)]
pub(crate) struct GlobalReader {
    global: Global,
    daemon_at: Option<Position>,
    log_later_at: Vec<Position>,
}

struct Reading<'a> {
    /// The keyword, both words of it.
    name: &'static str,
    reader: &'a mut GlobalReader,
    env: &'a mut Environment,
    diagnostics: &'a mut Diagnostics,
}

type GlobalParser = fn(&mut Reading<'_>, &Line);

/// The workers that HAProxy's baseline allows: 16 groups of 64 threads.
const MAX_THREADS: i64 = 1024;

/// The keywords of the section.
pub(crate) static KEYWORDS: Table<GlobalParserRow> = Table::new(&[
    row(
        "daemon",
        0,
        0,
        "",
        "Goes to the background. Read now; it acts with the service mode, until then check warns.",
        |r, line| {
            r.reader.global.daemon = true;
            r.reader.daemon_at = Some(line.at(0));
        },
    ),
    row(
        "hard-stop-after",
        1,
        1,
        "TIME",
        "How long a graceful stop may take before everything left is closed.",
        |r, line| {
            if let Some(time) = r.time(line, 1) {
                r.reader.global.hard_stop_after = time;
            }
        },
    ),
    row(
        "log",
        1,
        MANY,
        "TARGET [len N] [format F] FACILITY [LEVEL [MIN]]",
        "Where 'log global' of a proxy sends its lines.",
        |r, line| {
            if let Some(target) = log::target(line, r.diagnostics) {
                if matches!(target.to, LogAddress::Unix(_) | LogAddress::Udp(..)) {
                    r.reader.log_later_at.push(line.at(1));
                }
                r.reader.global.log.push(target);
            }
        },
    ),
    row("lua-load", 1, MANY, "FILE [ARG]…", "Runs a Lua file in the state that all workers share.", |r, line| {
        r.lua_load(line, false)
    }),
    row("lua-load-per-thread", 1, MANY, "FILE [ARG]…", "Runs a Lua file in a state of each worker.", |r, line| {
        r.lua_load(line, true)
    }),
    row(
        "lua-prepend-path",
        1,
        2,
        "PATTERN [path|cpath]",
        "Puts a pattern in front of Lua's package.path or package.cpath.",
        |r, line| {
            let cpath = match line.text(2) {
                "" | "path" => false,
                "cpath" => true,
                other => {
                    let message = format!("'lua-prepend-path' expects 'path' or 'cpath', not '{other}'");
                    let near = suggest::nearest(other, ["path", "cpath"]);
                    r.diagnostics.error(line.at(2), message).did_you_mean(near);
                    return;
                }
            };
            r.reader.global.lua_prepend_paths.push(LuaPath { pattern: line.text(1).to_owned(), cpath });
        },
    ),
    row(
        "maxconn",
        1,
        1,
        "N",
        "Sessions of the whole process; 0: as many as the descriptor limit allows.",
        |r, line| {
            if let Some(n) = r.integer(line, 1, 0, i64::from(i32::MAX)) {
                r.reader.global.maxconn = (n > 0).then_some(n as u32);
            }
        },
    ),
    row("nbthread", 1, 1, "N", "Workers; one per available core by default.", |r, line| {
        if let Some(n) = r.integer(line, 1, 1, MAX_THREADS) {
            r.reader.global.nbthread = Some(n as u16);
        }
    }),
    row("presetenv", 2, 2, "NAME VALUE", "Sets an environment variable unless it is set.", |r, line| {
        if r.has_value(line) {
            r.env.set_default(line.text(1), line.text(2));
        }
    }),
    row("resetenv", 0, MANY, "[NAME]…", "Removes all environment variables but these.", |r, line| {
        let keep: Vec<&str> = line.words[1..].iter().map(|w| w.text()).collect();
        r.env.retain(&keep);
    }),
    row("setenv", 2, 2, "NAME VALUE", "Sets an environment variable.", |r, line| {
        if r.has_value(line) {
            r.env.set(line.text(1), line.text(2));
        }
    }),
    row(
        "stats socket",
        1,
        MANY,
        "ADDRESS [mode M] [level L] [user U] [group G] [uid U] [gid G] [name N]",
        "Listens for commands such as 'show stat'.",
        stats_socket,
    ),
    row("stats timeout", 1, 1, "TIME", "How long a connection of the stats socket may be silent; 10 s.", |r, line| {
        if let Some(time) = r.time(line, 2) {
            r.reader.global.stats_timeout = time;
        }
    }),
    row("tune.bufsize", 1, 1, "SIZE", "Bytes of a buffer, so of a request's or response's head; 16384.", |r, line| {
        if let Some(size) = r.size(line, 1024, 1 << 28) {
            r.reader.global.tune.bufsize = size;
        }
    }),
    row("tune.http.maxhdr", 1, 1, "N", "Header fields of a message, and one for their end; 101.", |r, line| {
        if let Some(n) = r.integer(line, 1, 1, 32767) {
            r.reader.global.tune.http_maxhdr = n as usize;
        }
    }),
    row(
        "tune.lua.bool-sample-conversion",
        1,
        1,
        "normal|pre-3.1-bug",
        "Whether Lua gets boolean samples as booleans, or as integers as before HAProxy 3.1 (the default).",
        |r, line| match line.text(1) {
            "normal" => r.reader.global.tune.lua_bool_as_integer = false,
            "pre-3.1-bug" => r.reader.global.tune.lua_bool_as_integer = true,
            other => r.one_of(line, other, &["normal", "pre-3.1-bug"]),
        },
    ),
    row(
        "tune.lua.burst-timeout",
        1,
        1,
        "TIME",
        "Run time of a script between two yields; 1 s, 0: unlimited.",
        |r, line| {
            if let Some(time) = r.time(line, 1) {
                r.reader.global.tune.lua_burst_timeout = time;
            }
        },
    ),
    row(
        "tune.lua.forced-yield",
        1,
        1,
        "N",
        "Instructions between voluntary yields; read for compatibility, workers are never held up by a script.",
        |r, line| {
            if let Some(n) = r.integer(line, 1, 1, i64::from(i32::MAX)) {
                r.reader.global.tune.lua_forced_yield = Some(n as u32);
            }
        },
    ),
    row("tune.lua.log.loggers", 1, 1, "on|off", "Whether messages of scripts go to the log targets; on.", |r, line| {
        match line.text(1) {
            "on" => r.reader.global.tune.lua_log_loggers = true,
            "off" => r.reader.global.tune.lua_log_loggers = false,
            other => r.one_of(line, other, &["on", "off"]),
        }
    }),
    row(
        "tune.lua.log.stderr",
        1,
        1,
        "on|auto|off",
        "Whether messages of scripts go to stderr; auto: where no log target takes them.",
        |r, line| {
            r.reader.global.tune.lua_log_stderr = match line.text(1) {
                "on" => LuaLogStderr::On,
                "auto" => LuaLogStderr::Auto,
                "off" => LuaLogStderr::Off,
                other => return r.one_of(line, other, &["on", "auto", "off"]),
            };
        },
    ),
    row("tune.lua.maxmem", 1, 1, "MEGABYTES", "Memory of all Lua states together; 0: unlimited.", |r, line| {
        if let Some(n) = r.integer(line, 1, 0, 1 << 20) {
            r.reader.global.tune.lua_maxmem = (n as usize) << 20;
        }
    }),
    row(
        "tune.lua.service-timeout",
        1,
        1,
        "TIME",
        "Run time of a Lua service; 4 s, 0: unlimited. Scripts can't register services yet.",
        |r, line| {
            if let Some(time) = r.time(line, 1) {
                r.reader.global.tune.lua_service_timeout = time;
            }
        },
    ),
    row("tune.lua.session-timeout", 1, 1, "TIME", "Run time of a Lua action; 4 s, 0: unlimited.", |r, line| {
        if let Some(time) = r.time(line, 1) {
            r.reader.global.tune.lua_session_timeout = time;
        }
    }),
    row(
        "tune.lua.task-timeout",
        1,
        1,
        "TIME",
        "Run time of a Lua task; unlimited by default and with 0.",
        |r, line| {
            if let Some(time) = r.time(line, 1) {
                r.reader.global.tune.lua_task_timeout = time;
            }
        },
    ),
    row(
        "tune.maxrewrite",
        1,
        1,
        "SIZE",
        "Bytes of a buffer kept free for rules that add to a head; 1024, at most half the buffer.",
        |r, line| {
            if let Some(size) = r.size(line, 0, 1 << 28) {
                r.reader.global.tune.maxrewrite = size;
            }
        },
    ),
    row(
        "tune.ssl.default-dh-param",
        1,
        1,
        "BITS",
        "Size of Diffie-Hellman keys. Accepted: it concerns TLS 1.2 suites that are never offered here.",
        |r, line| {
            r.integer(line, 1, 1024, 1 << 16);
        },
    ),
    row("unsetenv", 1, MANY, "NAME…", "Removes environment variables.", |r, line| {
        line.words[1..].iter().for_each(|name| r.env.remove(name.text()));
    }),
]);

/// A parser of the section; its type can't be named outside, since it sees the reader's inside.
pub(crate) struct GlobalParserRow(GlobalParser);

const fn row(
    name: &'static str,
    min: usize,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    parser: GlobalParser,
) -> Row<GlobalParserRow> {
    Row { name, contexts: Contexts::GLOBAL, min, max, usage, docs, parser: GlobalParserRow(parser) }
}

impl GlobalReader {
    /// Reads one line.
    pub(crate) fn line(&mut self, line: &Line, env: &mut Environment, diagnostics: &mut Diagnostics) {
        match KEYWORDS.find(line.text(0), line.text(1)) {
            Some((row, name_words)) => {
                if table::arity(row, name_words, line, diagnostics) {
                    (row.parser.0)(&mut Reading { name: row.name, reader: self, env, diagnostics }, line);
                }
            }
            None => table::unknown(&KEYWORDS, known::GLOBAL, Contexts::GLOBAL, "global", line, diagnostics),
        }
    }

    /// The whole section, once every line was read.
    pub(crate) fn finish(mut self, diagnostics: &mut Diagnostics) -> Global {
        if let Some(at) = self.daemon_at {
            let warning = diagnostics.warning(at, "'daemon' has no effect yet: the process stays in the foreground");
            warning.hint("start it by a service manager, or with '&'");
        }
        for at in self.log_later_at {
            let warning = diagnostics.warning(at, "logs to syslog have no effect yet");
            warning.hint("'log stdout format raw local0' logs now");
        }
        let tune = &mut self.global.tune;
        // HAProxy's own rule: the reserve is never more than half of a buffer.
        tune.maxrewrite = tune.maxrewrite.min(tune.bufsize / 2);
        self.global
    }
}

impl Reading<'_> {
    /// HAProxy knows no empty variable: a name and a value are both needed.
    fn has_value(&mut self, line: &Line) -> bool {
        let empty = (1..3).find(|i| line.text(*i).is_empty());
        if let Some(index) = empty {
            self.diagnostics.error(line.at(index), format!("'{}' expects a name and a value", self.name));
        }
        empty.is_none()
    }

    fn integer(&mut self, line: &Line, index: usize, min: i64, max: i64) -> Option<i64> {
        match unit::integer(line.text(index), min, max) {
            Ok(value) => Some(value),
            Err(message) => {
                self.diagnostics.error(line.at(index), format!("'{}': {message}", self.name));
                None
            }
        }
    }

    /// A duration; 0 is none, which the result's inner `None` says.
    fn time(&mut self, line: &Line, index: usize) -> Option<Option<Duration>> {
        match unit::time(line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => Some((!time.is_zero()).then_some(time)),
            Err(message) => {
                let error = self.diagnostics.error(line.at(index), format!("'{}': {message}", self.name));
                error.hint(TIME_HINT);
                None
            }
        }
    }

    fn size(&mut self, line: &Line, min: u64, max: u64) -> Option<usize> {
        match unit::size(line.text(1), max) {
            Ok(size) if size >= min => Some(size as usize),
            Ok(size) => {
                let message = format!("'{}': the value must be at least {min} (was {size})", self.name);
                self.diagnostics.error(line.at(1), message);
                None
            }
            Err(message) => {
                let error = self.diagnostics.error(line.at(1), format!("'{}': {message}", self.name));
                error.hint(SIZE_HINT);
                None
            }
        }
    }

    fn one_of(&mut self, line: &Line, given: &str, names: &[&str]) {
        let message = format!("'{}' expects one of {}, not '{given}'", line.text(0), table::list(names));
        let near = suggest::nearest(given, names.iter().copied());
        self.diagnostics.error(line.at(1), message).did_you_mean(near);
    }

    fn lua_load(&mut self, line: &Line, per_thread: bool) {
        self.reader.global.lua_loads.push(LuaLoad {
            path: PathBuf::from(line.text(1)),
            args: line.words[2..].iter().map(|w| w.text().to_owned()).collect(),
            per_thread,
            at: line.at(1),
        });
    }
}

fn stats_socket(r: &mut Reading<'_>, line: &Line) {
    const OPTIONS: &[&str] = &["gid", "group", "level", "mode", "name", "uid", "user"];
    let mut addresses = match address::bind(line.text(2)) {
        Ok(addresses) => addresses,
        Err(problem) => {
            let message = format!("'stats socket': {}", problem.message);
            let error = r.diagnostics.error(line.within(2, problem.offset), message);
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
            return;
        }
    };
    if addresses.len() > 1 {
        r.diagnostics.error(line.at(2), "'stats socket' takes one address").hint("write a line for each");
        return;
    }
    let mut socket = StatsSocket {
        address: addresses.remove(0),
        mode: None,
        level: StatsLevel::default(),
        user: None,
        group: None,
        at: line.at(0),
    };
    let mut next = 3;
    while next < line.len() {
        let (name, value) = (line.text(next), line.text(next + 1));
        if !OPTIONS.contains(&name) {
            if table::is_known(known::STATS_SOCKET_OPTIONS, name) {
                r.diagnostics.error(line.at(next), format!("'{name}' of 'stats socket' is not supported yet"));
            } else {
                let near = suggest::nearest(name, OPTIONS.iter().chain(known::STATS_SOCKET_OPTIONS).copied());
                let error = r.diagnostics.error(line.at(next), format!("unknown keyword '{name}' of 'stats socket'"));
                error.did_you_mean(near);
            }
            return;
        }
        if next + 1 >= line.len() {
            r.diagnostics.error(line.at(next + 1), format!("'{name}' of 'stats socket' expects a value"));
            return;
        }
        match name {
            "level" => {
                socket.level = match value {
                    "user" => StatsLevel::User,
                    "operator" => StatsLevel::Operator,
                    "admin" => StatsLevel::Admin,
                    other => {
                        let names = ["user", "operator", "admin"];
                        let message = format!("'level' only supports {} (got '{other}')", table::list(&names));
                        let near = suggest::nearest(other, names);
                        r.diagnostics.error(line.at(next + 1), message).did_you_mean(near);
                        return;
                    }
                }
            }
            "mode" => match bind::octal(value) {
                Ok(mode) => socket.mode = Some(mode),
                Err(message) => {
                    r.diagnostics.error(line.at(next + 1), format!("'mode' of 'stats socket': {message}"));
                }
            },
            "user" | "uid" => socket.user = Some(value.to_owned()),
            "group" | "gid" => socket.group = Some(value.to_owned()),
            // A socket's name shows in nothing that this process reports.
            _ => {}
        }
        next += 2;
    }
    r.reader.global.stats_sockets.push(socket);
}
