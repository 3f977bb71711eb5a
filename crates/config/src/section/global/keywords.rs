//! The keywords of `global`, each with its arguments, its effect and the field of its value.

use std::path::PathBuf;
use std::time::Duration;

use super::lua::{bool_conversion, lua_load, openlibs};
use super::{GlobalRow, INT, Parser, Reading, flag, line, name_case, one, stats_socket, unix_bind};
use crate::limits::TRACKED_COUNTERS_MAX;
use crate::model::{
    BindAddress, CloseSpread, DnsFamilies, LogHost, LuaLogStderr, LuaPath, RuntimeState, StatusClasses, StatusCodes,
};
use crate::section::log;
use crate::section::table::{MANY, Table};
use crate::suggest;
use crate::unit::{TIME_HINT, TimeUnit};
use crate::word::Line;

/// The workers that HAProxy's baseline allows: 16 groups of 64 threads.
const MAX_THREADS: i64 = 1024;

/// The capabilities that `setcap` knows, with their numbers.
const CAPABILITIES: [(&str, u32); 4] =
    [("cap_net_admin", 12), ("cap_net_raw", 13), ("cap_net_bind_service", 10), ("cap_sys_admin", 21)];

const UNSENT: &str =
    "Bytes that were not sent yet beyond which a client's socket takes no more; 0: the kernel's choice.";
const UNSENT_TO_SERVERS: &str = "The same for connections to servers.";
const RECEIVE: &str = "Size of the kernel's receive buffer of clients' connections, bytes; 0: the kernel's choice.";
const RECEIVE_FROM_SERVERS: &str = "The same for connections to servers.";
const SEND: &str = "Size of the kernel's send buffer of clients' connections, bytes; 0: the kernel's choice.";
const SEND_TO_SERVERS: &str = "The same for connections to servers.";

/// The keywords of the section.
pub(crate) static KEYWORDS: Table<GlobalRow> = Table::new(&[
    one(
        "anonkey",
        "N",
        "The key by which 'set anon on' hashes names, 0 to 4294967295; 0: a random one. 'set anon global-key' changes it.",
        Parser::Integer(0, u32::MAX as i64, |g, n| g.anonymous_key = n as u32),
    ),
    one(
        "chroot",
        "DIRECTORY",
        "The directory to which the process changes its root once it has read its files and bound its sockets.",
        Parser::Path(|g| &mut g.chroot),
    ),
    line(
        "close-spread-time",
        1,
        1,
        "TIME|infinite",
        "The time over which clients' connections are closed at a soft stop, each at a moment of its own, and over which \
         a reload asks clients of HTTP/2 for new connections. Not set: at once. 'infinite': connections end by \
         their clients and timeouts alone.",
        |r, line| {
            let given = line.text(1);
            r.reader.global.close_spread = match given {
                "infinite" => CloseSpread::Never,
                _ => match r.diagnostics.duration(line.at(1), given, TimeUnit::Milliseconds) {
                    Ok(time) if time.is_zero() => CloseSpread::AtOnce,
                    Ok(time) => CloseSpread::Within(time),
                    Err(message) => return r.wrong(line, message, Some(TIME_HINT)),
                },
            };
        },
    ),
    line("description", 1, MANY, "TEXT", "The description of this process in 'show info'.", |r, line| {
        let words: Vec<&str> = line.words[1..].iter().map(|word| word.text()).collect();
        r.reader.global.description = Some(words.join(" "));
    }),
    line(
        "default-path",
        1,
        2,
        "current|config|parent|origin DIRECTORY",
        "The base of relative paths from this line on: the working directory, the configuration file's directory, its \
         parent, or DIRECTORY. It applies to files that are read with the configuration: scripts, maps, ACL files, \
         error files.",
        |r, line| {
            if let Err(message) = r.reader.global.default_paths.read(line, r.files) {
                r.diagnostics.error(line.at(1), message);
            }
        },
    ),
    line(
        "dns-accept-family",
        1,
        1,
        "ipv4|ipv6|auto[,…]",
        "The families of addresses that resolvers ask for and use: both by default; 'auto' is IPv4, and IPv6 while the \
         system has a route for it.",
        |r, line| {
            let mut families = [false; 3];
            for word in line.text(1).split(',').filter(|word| !word.is_empty()) {
                match ["ipv4", "ipv6", "auto"].iter().position(|known| *known == word) {
                    Some(index) => families[index] = true,
                    None => {
                        let message = format!(
                            "'dns-accept-family' expects a comma-delimited list of 'ipv4' and 'ipv6' but got '{}'.",
                            line.text(1)
                        );
                        r.diagnostics.error(line.at(1), message);
                        return;
                    }
                }
            }
            r.reader.global.dns_families = match families {
                [_, _, true] => DnsFamilies::Auto,
                [true, false, _] => DnsFamilies::V4,
                [false, true, _] => DnsFamilies::V6,
                [true, true, _] | [false, false, _] => DnsFamilies::Both,
            };
        },
    ),
    flag("daemon", "Runs in the background; '-db' overrides it.", |g| &mut g.daemon),
    one(
        "gid",
        "N",
        "The group of the process, by number.",
        Parser::Integer(0, u32::MAX as i64, |g, n| g.gid = Some(n as u32)),
    ),
    one(
        "fd-hard-limit",
        "N",
        "Upper limit of the descriptors from which 'maxconn' is derived, if the system's own limit is higher.",
        Parser::Integer(1, INT, |g, n| g.fd_hard_limit = Some(n as u64)),
    ),
    line(
        "force-cfg-parser-pause",
        1,
        1,
        "TIME",
        "Waits while the file is read, for tests of init scripts; needs 'expose-experimental-directives' before it.",
        |r, line| {
            if !r.reader.global.experimental {
                r.diagnostics.experimental(line.at(0), "'force-cfg-parser-pause' directive");
                return;
            }
            match r.diagnostics.duration(line.at(1), line.text(1), TimeUnit::Milliseconds) {
                Ok(time) => std::thread::sleep(time),
                Err(message) => r.wrong(line, message, Some(TIME_HINT)),
            }
        },
    ),
    one(
        "grace",
        "TIME",
        "The time between SIGUSR1 and the soft stop: meanwhile 'stopping' is true and everything is served. Not for \
         processes that are replaced.",
        Parser::Time(|g| &mut g.grace),
    ),
    flag(
        "h1-accept-payload-with-any-method",
        "Requests of HTTP/1.0 by GET, HEAD and DELETE may have a body, which some servers overlook.",
        |g| &mut g.any_payload,
    ),
    flag(
        "h1-do-not-close-on-insecure-transfer-encoding",
        "A connection stays open after a message with both Content-Length and Transfer-Encoding, of which the former is \
         removed.",
        |g| &mut g.keeps_insecure,
    ),
    line(
        "h1-case-adjust",
        2,
        2,
        "FROM TO",
        "The case in which a field's name is sent to peers of proxies with 'option h1-case-adjust-bogus-…'.",
        name_case::pair,
    ),
    line(
        "h1-case-adjust-file",
        1,
        1,
        "PATH",
        "A file of such pairs, one per line; '#' begins a comment.",
        name_case::file,
    ),
    one("group", "NAME", "The group of the process.", Parser::Text(|g| &mut g.group)),
    one(
        "harden.reject-privileged-ports.tcp",
        "on|off",
        "Whether TCP connections of clients whose port is below 1024 are closed; off.",
        Parser::OneOf(&["on", "off"], |g, index| g.refuses_privileged_ports = index == 0),
    ),
    line(
        "http-err-codes",
        1,
        MANY,
        "[+-]RANGE…",
        "Status codes counted as client errors ('http_err_cnt'), 400-499 by default: comma-separated ranges that \
         replace, extend ('+') or reduce ('-') the set.",
        |r, line| status_codes(r, line, |classes| &mut classes.errors),
    ),
    line(
        "http-fail-codes",
        1,
        MANY,
        "[+-]RANGE…",
        "Status codes counted as server failures ('http_fail_cnt'), 500-599 except 501 and 505 by default, in the same \
         syntax.",
        |r, line| status_codes(r, line, |classes| &mut classes.failures),
    ),
    one(
        "hard-stop-after",
        "TIME",
        "Maximum duration of a graceful stop; after it, everything left is closed.",
        Parser::Time(|g| &mut g.hard_stop_after),
    ),
    line(
        "localpeer",
        1,
        1,
        "NAME",
        "This machine's name among peers, available to files as HAPROXY_LOCALPEER; the host name by default. '-L' \
         overrides it.",
        |r, line| {
            if r.env.take_localpeer(line.text(1)) {
                r.reader.global.localpeer = Some(line.text(1).to_owned());
            } else {
                let message = "'localpeer' ignored since it is already set by using the '-L' command line argument";
                r.diagnostics.warning(line.at(0), message);
            }
        },
    ),
    line(
        "log",
        1,
        MANY,
        "TARGET [len N] [format F] [sample RANGES:SIZE] FACILITY [LEVEL [MIN]]",
        "The target of proxies with 'log global'.",
        |r, line| {
            if let Some(target) = log::target(line, r.files, r.diagnostics) {
                r.reader.global.log.push(target);
            }
        },
    ),
    line(
        "log-send-hostname",
        0,
        1,
        "[NAME]",
        "The host name in headers of log lines; the machine's without NAME. It makes rfc3164 their default format.",
        |r, line| {
            r.reader.global.log_host = match line.text(1) {
                "" => LogHost::Machine,
                name => LogHost::Named(name.into()),
            };
        },
    ),
    flag(
        "expose-deprecated-directives",
        "Allows 'program' sections after it; other deprecated directives do not need it.",
        |g| &mut g.expose_deprecated,
    ),
    line(
        "external-check",
        0,
        1,
        "[preserve-env]",
        "Allows 'option external-check'; with 'preserve-env' its programs get the environment of this process, too.",
        |r, line| match line.text(1) {
            "" => r.reader.global.external_check = Some(false),
            "preserve-env" => r.reader.global.external_check = Some(true),
            other => {
                let message = format!("'external-check' only supports 'preserve-env' as an argument, found '{other}'");
                r.diagnostics.error(line.at(1), message);
            }
        },
    ),
    flag(
        "insecure-fork-wanted",
        "Allows scripts to start programs while the process serves ('os.execute', 'io.popen'); without it they may do \
         so only while they are loaded.",
        |g| &mut g.insecure_fork,
    ),
    flag(
        "insecure-setuid-wanted",
        "Allows programs started by scripts to gain privileges (set-user-ID files); without it they never do.",
        |g| &mut g.insecure_setuid,
    ),
    line("log-tag", 1, 1, "TAG", "The tag in headers of log lines; the program's name by default.", |r, line| {
        r.reader.global.log_tag = Some(line.text(1).into());
    }),
    line("lua-load", 1, MANY, "FILE [ARG]…", "Runs a Lua file in the state that all workers share.", |r, line| {
        lua_load(r, line, false)
    }),
    line("lua-load-per-thread", 1, MANY, "FILE [ARG]…", "Runs a Lua file in a state of each worker.", |r, line| {
        lua_load(r, line, true)
    }),
    line(
        "lua-prepend-path",
        1,
        2,
        "PATTERN [path|cpath]",
        "Prepends a pattern to Lua's package.path or package.cpath.",
        |r, line| {
            let cpath = match line.text(2) {
                "" | "path" => false,
                "cpath" => true,
                _ => return r.one_of(line, 2, &["path", "cpath"]),
            };
            r.reader.global.lua_prepend_paths.push(LuaPath { pattern: line.text(1).to_owned(), cpath });
        },
    ),
    line(
        "master-worker",
        0,
        1,
        "[no-exit-on-failure]",
        "A master process supervises the worker process, as with '-W'; the following lines see HAPROXY_MWORKER. There \
         is one worker process, so the master always ends with it; 'no-exit-on-failure' only suppresses the message \
         about it.",
        |r, line| match line.text(1) {
            word @ ("" | "no-exit-on-failure") => {
                r.reader.global.master_worker = true;
                r.reader.global.no_exit_on_failure |= !word.is_empty();
                r.env.set("HAPROXY_MWORKER", "1");
            }
            _ => r.one_of(line, 1, &["no-exit-on-failure"]),
        },
    ),
    one(
        "max-spread-checks",
        "TIME",
        "Maximum time over which the first checks of all servers are spread.",
        Parser::Time(|g| &mut g.max_spread_checks),
    ),
    one(
        "maxcompcpuusage",
        "PERCENT",
        "New bodies are compressed only while the workers' load, as in 'show info', is below this percentage; 100: no \
         limit.",
        Parser::Integer(0, 100, |g, n| g.compression.idle = 100 - n as u32),
    ),
    one(
        "maxcomprate",
        "N",
        "New responses are compressed only while less than this many KiB of bodies per second enter compression; 0: no \
         limit.",
        Parser::Integer(0, INT, |g, n| g.compression.rate = n as u64 * 1024),
    ),
    one(
        "maxconn",
        "N",
        "Maximum number of sessions of the process; 0: as many as the descriptor limit allows.",
        Parser::Integer(0, INT, |g, n| g.maxconn = (n > 0).then_some(n as u32)),
    ),
    one(
        "spread-checks",
        "PERCENT",
        "Maximum random deviation of the check interval, 0 to 50 percent.",
        Parser::Integer(0, 50, |g, n| g.spread_checks = n as u32),
    ),
    one(
        "maxzlibmem",
        "N",
        "New bodies are compressed only while compression uses less than this many MiB; 0: no limit.",
        Parser::Integer(0, INT, |g, n| g.compression.memory = (n as u64) << 20),
    ),
    one(
        "tune.comp.maxlevel",
        "1-9",
        "Compression level: 1, the default, costs least.",
        Parser::Integer(1, 9, |g, n| g.compression.level = n as u32),
    ),
    one(
        "tune.zlib.windowsize",
        "8-15",
        "The window size of the compressor, as a power of 2; 15.",
        // A window of 256 bytes is none that a compressor has.
        Parser::Integer(8, 15, |g, n| g.compression.window_bits = n.max(9) as u8),
    ),
    one(
        "maxpipes",
        "N",
        "Maximum number of pipes for forwarding large bodies within the kernel; 64 for each worker by default. A body \
         without a pipe is copied.",
        Parser::Integer(0, INT, |g, n| g.tune.maxpipes = (n > 0).then_some(n as u32)),
    ),
    one(
        "maxconnrate",
        "N",
        "Maximum number of connections accepted per second by all frontends; further ones wait in the kernel. 0: \
         unlimited.",
        Parser::Integer(0, INT, |g, n| g.maxconnrate = n as u32),
    ),
    one(
        "maxsessrate",
        "N",
        "Maximum number of sessions per second of all frontends; a connection counts as a session when it is accepted. \
         0: unlimited.",
        Parser::Integer(0, INT, |g, n| g.maxsessrate = n as u32),
    ),
    one(
        "nbthread",
        "N",
        "Number of workers; one per available core by default.",
        Parser::Integer(1, MAX_THREADS, |g, n| g.nbthread = Some(n as u16)),
    ),
    line("nbproc", 0, MANY, "", "Refused, as since HAProxy 2.5: one process has 'nbthread' workers.", |r, line| {
        let message = "nbproc is not supported any more since HAProxy 2.5. Threads will automatically be used on \
                       multi-processor machines if available.";
        r.diagnostics.error(line.at(0), message).hint("remove the line, or write 'nbthread N'");
    }),
    one("node", "NAME", "This machine's name in 'show info'; the host name by default.", Parser::Text(|g| &mut g.node)),
    flag(
        "pp2-never-send-local",
        "Checks with 'send-proxy-v2' send the command PROXY with the addresses of the connection, as HAProxy 2.1 did, and \
         not LOCAL, which some servers do not understand.",
        |g| &mut g.never_local,
    ),
    one(
        "pidfile",
        "FILE",
        "The file that receives the process's number; '-p' overrides it.",
        Parser::Path(|g| &mut g.pidfile),
    ),
    line("presetenv", 2, 2, "NAME VALUE", "Sets an environment variable unless it is set.", |r, line| {
        if r.has_value(line) {
            r.env.set_default(line.text(1), line.text(2));
        }
    }),
    flag("no-quic", "'bind' lines with addresses of QUIC, which is not supported, are read and not bound.", |g| {
        &mut g.no_quic
    }),
    flag(
        "noreuseport",
        "All workers accept from one socket, whose port no other socket can share (SO_REUSEPORT); as with '-dR'.",
        |g| &mut g.no_reuse_port,
    ),
    line("nosplice", 0, 0, "", "Large bodies are copied and do not use kernel pipes; as with '-dS'.", |r, _| {
        r.reader.global.tune.splices = false;
    }),
    flag("quiet", "Prints nothing at start, as with '-q'.", |g| &mut g.quiet),
    line("resetenv", 0, MANY, "[NAME]…", "Removes all environment variables except these.", |r, line| {
        let keep: Vec<&str> = line.words[1..].iter().map(|w| w.text()).collect();
        r.env.retain(&keep);
    }),
    line(
        "runtime-state-file",
        1,
        3,
        "FILE [interval TIME]",
        "The file that keeps what the process learned across restarts and crashes: entries of stick tables, keys of \
         limits, 'proc.' variables, states of servers, counters. It is written at the end of the process and each \
         'interval', by default 10s; inside 'chroot', where 'user' must be able to write to its directory. Not in HAProxy.",
        runtime_state,
    ),
    line(
        "setcap",
        1,
        1,
        "NAME[,NAME]…",
        "Capabilities that the process keeps although it changes its user: cap_net_admin, cap_net_raw, \
         cap_net_bind_service, cap_sys_admin.",
        |r, line| {
            for name in line.text(1).split(',').filter(|name| !name.is_empty()) {
                match CAPABILITIES.iter().find(|(known, _)| *known == name) {
                    Some((_, number)) => r.reader.global.capabilities |= 1 << number,
                    None => {
                        let known: Vec<&str> = CAPABILITIES.iter().map(|(name, _)| *name).collect();
                        let message = format!(
                            "'setcap' : unsupported capability '{name}'. Supported ones are: {}.",
                            known.join(", ")
                        );
                        let near = suggest::nearest(name, known.iter().copied());
                        r.diagnostics.error(line.at(1), message).did_you_mean(near);
                        return;
                    }
                }
            }
        },
    ),
    one(
        "server-state-base",
        "DIRECTORY",
        "The directory of the files of 'server-state-file' and 'server-state-file-name', unless their names begin with \
         a slash.",
        Parser::Path(|g| &mut g.server_state_base),
    ),
    one(
        "server-state-file",
        "FILE",
        "The output of another process's 'show servers state': the initial states of backends with \
         'load-server-state-from-file global'. A reload keeps the current states and does not read the file.",
        Parser::Text(|g| &mut g.server_state_file),
    ),
    line(
        "set-var",
        2,
        2,
        "proc.NAME EXPRESSION",
        "Sets a variable of the process at start, and in a reload if the line has changed; only fetches that need no \
         stream, such as str(), int(), env() and var(), are allowed.",
        |_, _| (),
    ),
    line("set-var-fmt", 2, 2, "proc.NAME FORMAT", "The same with a format.", |_, _| ()),
    flag("set-dumpable", "Allows a process that has changed its user to write a core file.", |g| &mut g.dumpable),
    line("setenv", 2, 2, "NAME VALUE", "Sets an environment variable.", |r, line| {
        if r.has_value(line) {
            r.env.set(line.text(1), line.text(2));
        }
    }),
    one(
        "stats-file",
        "FILE",
        "The output of another process's 'dump stats-file': the initial counters of frontends, backends, servers and \
         sockets with a 'guid'. A reload keeps the current counters and does not read the file; 'runtime-state-file' \
         keeps those of all objects.",
        Parser::Path(|g| &mut g.stats_file),
    ),
    line(
        "stats socket",
        1,
        MANY,
        "ADDRESS [mode M] [level L] [user U] [group G] [uid U] [gid G] [name N] [id N] [nice N] [process P] [shards N] [thread T] \
         [expose-fd listeners] [ssl crt F …]",
        "Listens for commands such as 'show stat'; the following lines see its address in HAPROXY_CLI. 'expose-fd \
         listeners' passes the listening sockets to a successor process ('-x'); 'ssl' takes the options of 'bind' about \
         TLS; 'name', 'id', 'nice', 'process', \
         'shards' and 'thread' have no effect.",
        |r, line| {
            if let Some(socket) = stats_socket::stats_socket(line, r.files, r.diagnostics) {
                // HAProxy lists no socket of this kind.
                if !matches!(socket.address, BindAddress::Sockpair(_)) {
                    r.env.append("HAPROXY_CLI", &socket.address.with_family());
                }
                r.reader.secure.note(r.reader.global.stats_sockets.len(), line);
                r.reader.global.stats_sockets.push(socket);
            }
        },
    ),
    one(
        "stats maxconn",
        "N",
        "Maximum number of concurrent connections of all stats sockets; 10. Further ones wait.",
        Parser::Integer(1, 65535, |g, n| g.stats_maxconn = Some(n as usize)),
    ),
    one(
        "stats timeout",
        "TIME",
        "Inactivity timeout of a connection of the stats socket; 10 s.",
        Parser::Time(|g| &mut g.stats_timeout),
    ),
    flag(
        "strict-limits",
        "A limit that cannot be raised prevents the start, as by default; 'no strict-limits' warns.",
        |g| &mut g.limits.strict,
    ),
    one(
        "thread-hard-limit",
        "N",
        "Maximum number of workers, whatever the number of cores or 'nbthread'.",
        Parser::Integer(1, MAX_THREADS, |g, n| g.thread_hard_limit = Some(n as u16)),
    ),
    one(
        "tune.bufsize",
        "SIZE",
        "Size of a buffer in bytes, and so the limit of a head; 16384.",
        Parser::Size(1024, 1 << 28, |g, size| g.tune.bufsize = size),
    ),
    one(
        "tune.http.cookielen",
        "N",
        "Maximum number of bytes kept by 'capture cookie'; 63.",
        Parser::Integer(1, 65535, |g, n| g.tune.http_cookielen = n as usize),
    ),
    one(
        "tune.http.logurilen",
        "N",
        "Maximum number of logged bytes of a request line; 1023.",
        Parser::Integer(1, 65535, |g, n| g.tune.http_logurilen = n as usize),
    ),
    one(
        "tune.http.maxhdr",
        "N",
        "Maximum number of header fields of a message, plus one for their end; 101.",
        Parser::Integer(1, 32767, |g, n| g.tune.http_maxhdr = n as usize),
    ),
    line(
        "tune.idletimer",
        1,
        1,
        "TIME",
        "The pause after which the records of 'tune.ssl.maxrecord' are small again, up to 65535 ms; 1 s, 0: none.",
        |r, line| match r.diagnostics.duration(line.at(1), line.text(1), TimeUnit::Milliseconds) {
            Ok(time) if time.as_millis() <= 65_535 => r.reader.global.tls.records.idle = time,
            Ok(_) => r.wrong(line, "a timer value between 0 and 65535 ms was expected".to_owned(), None),
            Err(message) => r.wrong(line, message, Some(TIME_HINT)),
        },
    ),
    one(
        "tune.stick-counters",
        "N",
        "Number of counters that a connection, and a request, may track ('track-sc0' to 'track-scN'); 3. Each is \
         examined for every counted event.",
        Parser::Integer(0, TRACKED_COUNTERS_MAX as i64, |g, n| g.tune.stick_counters = n as usize),
    ),
    one(
        "tune.peers.max-updates-at-once",
        "N",
        "Number of updates that a peer is sent, or that are read from it, before other work has its turn; 200.",
        Parser::Integer(1, INT, |g, n| g.tune.peers_updates = n as u32),
    ),
    one(
        "tune.pipesize",
        "SIZE",
        "Size requested for a pipe, bytes; 256k.",
        Parser::Size(0, 1 << 31, |g, size| g.tune.pipesize = size),
    ),
    one(
        "tune.renice.runtime",
        "N",
        "The priority of the serving process, -20 to 19, as nice(1) says it.",
        Parser::Integer(-20, 19, |g, n| g.runtime_priority = Some(n as i8)),
    ),
    one(
        "tune.renice.startup",
        "N",
        "Its priority while it reads its files and starts; then it has that of before, unless 'tune.renice.runtime' says \
         otherwise.",
        Parser::Integer(-20, 19, |g, n| g.startup_priority = Some(n as i8)),
    ),
    one(
        "tune.vars.check-max-size",
        "SIZE",
        "Bytes of 'check.' variables of one check; 0: unlimited.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.check = n),
    ),
    one(
        "tune.vars.global-max-size",
        "SIZE",
        "Bytes of all variables; see 'tune.vars.proc-max-size'. 0: unlimited.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.global = n),
    ),
    one(
        "tune.vars.proc-max-size",
        "SIZE",
        "Bytes of 'proc.' variables together with those of the stream that sets one; 0: unlimited. A variable that does \
         not fit is not set. Each counts with 80 bytes in addition to its text, as in HAProxy.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.process = n),
    ),
    one(
        "tune.vars.reqres-max-size",
        "SIZE",
        "Bytes of 'req.' and 'res.' variables of one stream; 0: unlimited.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.message = n),
    ),
    one(
        "tune.vars.sess-max-size",
        "SIZE",
        "Bytes of 'sess.' variables of a session together with those of its stream; 0: unlimited.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.session = n),
    ),
    one(
        "tune.vars.txn-max-size",
        "SIZE",
        "Bytes of 'txn.', 'req.' and 'res.' variables of one stream; 0: unlimited.",
        Parser::Size(0, INT as u64, |g, n| g.tune.variables.transaction = n),
    ),
    one(
        "tune.notsent-lowat.client",
        "SIZE",
        UNSENT,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.client_sockets.unsent = (n > 0).then_some(n as u32);
        }),
    ),
    one(
        "tune.notsent-lowat.server",
        "SIZE",
        UNSENT_TO_SERVERS,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.server_sockets.unsent = (n > 0).then_some(n as u32);
        }),
    ),
    one(
        "tune.rcvbuf.client",
        "SIZE",
        RECEIVE,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.client_sockets.receive = (n > 0).then_some(n);
        }),
    ),
    one(
        "tune.rcvbuf.server",
        "SIZE",
        RECEIVE_FROM_SERVERS,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.server_sockets.receive = (n > 0).then_some(n);
        }),
    ),
    one(
        "tune.sndbuf.client",
        "SIZE",
        SEND,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.client_sockets.send = (n > 0).then_some(n);
        }),
    ),
    one(
        "tune.sndbuf.server",
        "SIZE",
        SEND_TO_SERVERS,
        Parser::Size(0, INT as u64, |g, n| {
            g.tune.server_sockets.send = (n > 0).then_some(n);
        }),
    ),
    line(
        "tune.lua.bool-sample-conversion",
        1,
        1,
        "normal|pre-3.1-bug",
        "Whether boolean samples are booleans in Lua, or integers as before HAProxy 3.1 (the default). Set before \
         'lua-load', which warns if it is not set.",
        bool_conversion,
    ),
    one(
        "tune.lua.burst-timeout",
        "TIME",
        "Run time limit of a script between two yields; 1 s, 0: unlimited.",
        Parser::Time(|g| &mut g.tune.lua_burst_timeout),
    ),
    one(
        "tune.lua.forced-yield",
        "N",
        "Instructions between voluntary yields; accepted without effect, since scripts are preempted.",
        Parser::Integer(1, INT, |g, n| g.tune.lua_forced_yield = Some(n as u32)),
    ),
    one(
        "tune.lua.log.loggers",
        "on|off",
        "Whether messages of scripts go to the log targets; on.",
        Parser::OneOf(&["on", "off"], |g, index| g.tune.lua_log_loggers = index == 0),
    ),
    one(
        "tune.lua.log.stderr",
        "on|auto|off",
        "Whether messages of scripts go to stderr; auto: if no log target receives them.",
        Parser::OneOf(&["on", "auto", "off"], |g, index| {
            g.tune.lua_log_stderr = [LuaLogStderr::On, LuaLogStderr::Auto, LuaLogStderr::Off][index];
        }),
    ),
    one(
        "tune.lua.maxmem",
        "MEGABYTES",
        "Memory limit of all Lua states together; 0: unlimited.",
        Parser::Integer(0, 1 << 20, |g, n| g.tune.lua_maxmem = (n as usize) << 20),
    ),
    line(
        "tune.lua.openlibs",
        1,
        1,
        "all|none|LIBRARY[,LIBRARY]…",
        "The Lua libraries available to scripts, in addition to the basic functions and coroutines: table, io, os, \
         string, math, utf8, package, debug; all by default. Must precede any line with a script.",
        openlibs,
    ),
    one(
        "tune.lua.service-timeout",
        "TIME",
        "Run time limit of a Lua service; 4 s, 0: unlimited.",
        Parser::Time(|g| &mut g.tune.lua_service_timeout),
    ),
    one(
        "tune.lua.session-timeout",
        "TIME",
        "Run time limit of a Lua action; 4 s, 0: unlimited.",
        Parser::Time(|g| &mut g.tune.lua_session_timeout),
    ),
    one(
        "tune.lua.task-timeout",
        "TIME",
        "Run time limit of a Lua task; unlimited by default and with 0.",
        Parser::Time(|g| &mut g.tune.lua_task_timeout),
    ),
    one(
        "tune.lua.watchdog-abort",
        "on|off",
        "Whether the process aborts (SIGABRT), as HAProxy does, when a script blocks a worker in a C function for more \
         than a second; off: a message is logged, and the worker accepts no connections until it continues.",
        Parser::OneOf(&["on", "off"], |g, index| g.tune.lua_watchdog_abort = index == 0),
    ),
    one(
        "tune.maxrewrite",
        "SIZE",
        "Bytes of a buffer reserved for rules that extend a head; 1024, at most half the buffer.",
        Parser::Size(0, 1 << 28, |g, size| g.tune.maxrewrite = size),
    ),
    one(
        "uid",
        "N",
        "The user of the process, by number.",
        Parser::Integer(0, u32::MAX as i64, |g, n| g.uid = Some(n as u32)),
    ),
    one(
        "ulimit-n",
        "N",
        "Maximum number of descriptors of the process; derived from 'maxconn' by default.",
        Parser::Integer(0, INT, |g, n| g.ulimit_n = (n > 0).then_some(n as u64)),
    ),
    line(
        "unix-bind",
        0,
        MANY,
        "[prefix PATH] [mode M] [user U] [uid U] [group G] [gid G]",
        "The prefix of the paths of 'bind' lines, and the permissions of all unix sockets that set none.",
        unix_bind::unix_bind,
    ),
    line("unsetenv", 1, MANY, "NAME…", "Removes environment variables.", |r, line| {
        line.words[1..].iter().for_each(|name| r.env.remove(name.text()));
    }),
    one("user", "NAME", "The user of the process.", Parser::Text(|g| &mut g.user)),
    flag("zero-warning", "A warning refuses the configuration, as with '-dW'.", |g| &mut g.zero_warning),
]);

/// `runtime-state-file`.
fn runtime_state(r: &mut Reading<'_>, line: &Line) {
    let path = PathBuf::from(line.text(1));
    if path.file_name().is_none() {
        r.diagnostics.error(line.at(1), format!("'{}' expects the path of a file", r.name));
        return;
    }
    let mut interval = Duration::from_secs(10);
    if line.len() > 2 {
        if line.text(2) != "interval" || line.len() == 3 {
            let at = line.at(2);
            let error =
                r.diagnostics.error(at, format!("'{}' knows only 'interval' and a time after the file", r.name));
            error.did_you_mean(suggest::nearest(line.text(2), ["interval"]));
            return;
        }
        match r.diagnostics.duration(line.at(3), line.text(3), TimeUnit::Milliseconds) {
            Ok(time) if !time.is_zero() => interval = time,
            Ok(_) => {
                r.diagnostics.error(line.at(3), format!("'{}': the interval must be longer than 0", r.name));
                return;
            }
            Err(message) => {
                r.diagnostics.error(line.at(3), format!("'{}': {message}", r.name)).hint(TIME_HINT);
                return;
            }
        }
    }
    r.reader.global.runtime_state = Some(RuntimeState { path, interval });
}

/// Applies each word of a line to a set of status codes.
fn status_codes(reading: &mut Reading<'_>, line: &Line, of: fn(&mut StatusClasses) -> &mut StatusCodes) {
    for index in 1..line.len() {
        let codes = of(&mut reading.reader.global.status_classes);
        if let Err(message) = codes.apply(line.text(index)) {
            reading.diagnostics.error(line.at(index), message);
        }
    }
}
