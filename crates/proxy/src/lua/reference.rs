//! The reference page of the Lua API: what of HAProxy's API is there and what is not, from one table.

use super::core_api;
use super::txn;

/// A class: its name, what is there, and what HAProxy 3.2 has and this program has not yet.
type Class = (&'static str, &'static [&'static str], &'static [&'static str]);

const CLASSES: &[Class] = &[
    (
        "core",
        &[
            "register_action",
            "register_init",
            "register_task",
            "register_fetches",
            "register_converters",
            "register_service",
            "register_cli",
            "set_map",
            "del_map",
            "add_acl",
            "del_acl",
            "tcp",
            "redis",
            "msleep",
            "sleep",
            "yield",
            "now",
            "log",
            "Debug",
            "Info",
            "Warning",
            "Alert",
            "done",
            "tokenize",
            "concat",
            "queue",
            "wait",
            "set_nice",
            "get_patref",
            "httpclient",
            "get_info",
            "get_var",
            "parse_addr",
            "match_addr",
            "http_date",
            "imf_date",
            "rfc850_date",
            "asctime_date",
            "thread",
            "proxies",
            "backends",
            "frontends",
            "silent",
            "emerg",
            "alert",
            "crit",
            "err",
            "warning",
            "notice",
            "info",
            "debug",
        ],
        core_api::NOT_YET,
    ),
    (
        "TXN",
        &[
            "f",
            "sf",
            "c",
            "sc",
            "http",
            "set_var",
            "get_var",
            "unset_var",
            "set_priv",
            "get_priv",
            "done",
            "reply",
            "req",
            "res",
            "set_loglevel",
            "set_priority_class",
            "set_priority_offset",
            "set_tos",
            "set_fc_tos",
            "set_mark",
            "set_fc_mark",
            "log",
            "deflog",
            "Debug",
            "Info",
            "Warning",
            "Alert",
        ],
        txn::NOT_YET,
    ),
    (
        "AppletHTTP",
        &[
            "method",
            "version",
            "path",
            "qs",
            "length",
            "headers",
            "f",
            "sf",
            "c",
            "sc",
            "set_status",
            "add_header",
            "start_response",
            "getline",
            "receive",
            "send",
            "set_priv",
            "get_priv",
            "set_var",
            "get_var",
            "unset_var",
        ],
        &[],
    ),
    (
        "AppletTCP",
        &[
            "f",
            "sf",
            "c",
            "sc",
            "getline",
            "receive",
            "try_receive",
            "send",
            "set_priv",
            "get_priv",
            "set_var",
            "get_var",
            "unset_var",
        ],
        &[],
    ),
    (
        "Channel",
        &[
            "data",
            "line",
            "dup",
            "get",
            "getline",
            "append",
            "prepend",
            "insert",
            "set",
            "remove",
            "send",
            "forward",
            "input",
            "output",
            "get_in_len",
            "get_out_len",
            "is_full",
            "is_resp",
            "may_recv",
        ],
        &[],
    ),
    (
        "Socket",
        &[
            "connect",
            "send",
            "receive",
            "close",
            "settimeout",
            "setoption",
            "getpeername",
            "getsockname",
            "shutdown",
            "setkeepalive",
            "getreusedtimes",
        ],
        &["connect_ssl"],
    ),
    (
        "Proxy",
        &[
            "name",
            "uuid",
            "servers",
            "listeners",
            "get_name",
            "get_uuid",
            "get_cap",
            "get_mode",
            "get_srv_act",
            "get_srv_bck",
            "get_stats",
            "stktable",
            "pause",
            "resume",
            "stop",
            "shut_bcksess",
        ],
        &["get_mailers"],
    ),
    (
        "Server",
        &[
            "name",
            "puid",
            "get_name",
            "get_puid",
            "get_addr",
            "get_stats",
            "get_cur_sess",
            "get_pend_conn",
            "get_maxconn",
            "set_maxconn",
            "get_weight",
            "set_weight",
            "set_drain",
            "set_maint",
            "set_ready",
            "is_draining",
            "is_backup",
            "is_dynamic",
            "get_proxy",
            "get_rid",
            "tracking",
            "get_trackers",
            "set_addr",
            "shut_sess",
            "check_enable",
            "check_disable",
            "check_force_up",
            "check_force_nolb",
            "check_force_down",
            "agent_enable",
            "agent_disable",
            "agent_force_up",
            "agent_force_down",
        ],
        &["event_sub"],
    ),
    ("Listener", &["get_stats"], &[]),
    ("StickTable", &["info", "lookup", "dump", "set", "clear"], &[]),
    ("Queue", &["push", "pop", "pop_wait", "size", "alarm"], &[]),
    ("Map", &["new", "lookup", "slookup"], &[]),
    (
        "Patref",
        &["get_name", "is_map", "prepare", "commit", "giveup", "purge", "add", "add_bulk", "del", "set"],
        &["event_sub"],
    ),
    ("HTTPClient", &["get", "head", "put", "post", "delete"], &[]),
    ("Regex", &["new", "exec", "match"], &[]),
    ("Concat", &["add", "dump"], &[]),
];

const HEAD: &str = "\
# Lua

What of HAProxy's Lua API is there. A name that is not there yet raises an error that says so. Every fetch and
converter of the [configuration reference](configuration.md) is a method of `f`/`sf` and `c`/`sc`, with `.`, `-` and
`+` written as `_`.

**Waiting.** Actions, tasks, services and commands of the stats socket may wait for sockets, stores and sleeps, and so
may fetches and converters in rules (`tcp-request content`, `http-request`, `http-response`, `tcp-response content`,
`use_backend`); those of `http-after-response`, 5 s at most. Elsewhere (`tcp-request connection`, log lines) what would wait raises `cannot wait here`: the script's
error is logged, the sample is missing, and the request goes on. In a log line the stream is only read: what would
change it raises `the stream cannot be changed here`. A log line waits for the shared state
for 20 ms at most while another thread runs in it: after that the sample is missing, and a message (one a second at most) says
so. Scripts of `lua-load-per-thread` do not share their state.

**Run time.** A script yields by itself after 1 to 2 ms, between two instructions and within the functions of the libraries:
searches (`find`, `match`, `gmatch`, `gsub`), `sort` and whatever else is long or calls functions of the script (comparisons,
replacements, metamethods such as `__tostring`, `__index`, `__len`) are suspended and continued. Scripts whose time is over have
turns, one in each iteration of the worker's event loop, so many of them delay other requests by one slice. `tune.lua.session-timeout` and its kin
bound their sum. Where a script can't yield (the handler of `xpcall`, the chunk that `require` runs, functions that a C module
calls) it is ended after a fiftieth of `tune.lua.burst-timeout`, 20 ms; fetches and converters where nothing may wait have
`tune.lua.burst-timeout`. One string that a script makes while the process serves is limited to 32 MiB (`resulting string too
large`, `not enough memory`), and a layout of `string.pack` to 256 KiB. `collectgarbage(\"generational\")` changes the mode that it reports only.

**Finalizers** (`__gc`) run after the burst in which their object was collected, or before `collectgarbage` returns, as coroutines
with a budget of 1 s; one that exceeds it is ended with an alert. They may not wait and have no stream: methods of `txn` raise.

**Watchdog.** Blocking I/O and C modules can keep a worker. After a second without an iteration of its event loop an alert names the worker,
the line of its script and the seconds (again after each doubling of the time, and once the worker goes on); other workers
accept on its sockets meanwhile. `tune.lua.watchdog-abort on` aborts the process instead, as HAProxy does. SIGTERM and SIGINT
end the process within about a second though a worker is stuck.

**Programs.** `os.execute` and `io.popen` start programs while scripts are loaded. While the process serves they fail as under
HAProxy's limits (`nil`, `Resource temporarily unavailable`) unless `insecure-fork-wanted` is set; in HAProxy that limit does not
bind a process of root. Programs gain no privileges (`PR_SET_NO_NEW_PRIVS`) unless `insecure-setuid-wanted` is set; a reload cannot
take that back. A C module that forks by itself is not kept from it.

**Actions** are registered for rule sets: one name may be another function, with another number of arguments, for `tcp-req`, `tcp-res`,
`http-req`, `http-res` and `http-after-res`.

**Libraries.** `tune.lua.openlibs` (from HAProxy 3.5) says which of Lua's libraries scripts find. The classes of HAProxy's API
work without any of them.

**`act.YIELD`** ends an action that is called again after `act.wake_time(milliseconds)`, with the same arguments. Without a
wake time nothing would wake it: the script's error is logged, and the next rule follows. In 2.6 such a request hangs.

**Fetches and converters** give their last result: a number (whole, or 0), a string or a boolean; any other value is a
false boolean, and no result is no sample.

**Services** read and write through bounded buffers. Without a Content-Length the answer is chunked (HTTP/1.0: until
the end of the connection); more bytes than a Content-Length promised are cut off, fewer end the connection. A service
that fails before `start_response` is answered with 500. Their run time is bounded by `tune.lua.service-timeout`, that
of fetches and converters by `tune.lua.session-timeout`. Header names keep the case that the script gives them.

**Proxies and servers.** Without `option socket-stats` a listener has no counters of its own, and `get_stats` gives an
empty table, where 2.6 gives what it told last of another one. The `servers` of a proxy are those that it has at
the moment, also those of `add server`; whoever holds one that was deleted is told nil by all of its methods, as in 3.2, and a new one
of the same name is another object. `pause`, `resume` and `stop` are those of the stats socket; a backend's do nothing. `is_draining` is a boolean, as the
manual says, where 2.6 gives 0 or 1.
`core.set_nice` checks its argument and changes nothing: workers take turns by what is ready.

**Stick tables** may be written, which HAProxy's can't: `table:set(key, {gpc0 = 1})` makes the entry of a key, if it is not
there, and sets data of it, all or nothing (`false` where a full table gives up nothing); `table:clear(key)`,
`table:clear(filter)` with a filter of `dump`, and `table:clear()` remove entries (`false` if one stays because it is
tracked). Of an array of data it is the first element.

**Channels.** In TCP content rules `txn.req` and `txn.res` read and change what came. A script may wait for more of
the side that its rules are about, within the inspect delay; in a request's rules `txn.res:send` answers the client before
any server is asked. The other side's channel gives nil, 0 or -1. In HTTP mode
their contents are out of reach, as in HAProxy. `txn.http_req` and `txn.http_res` (class HTTPMessage) are nil, as in HAProxy
2.6 and 3.2 everywhere but in the callbacks of filters, which come later.
`append` adds at the end, as the manual says; 2.6 puts it at the front.

**Pattern references** (`core.get_patref`) are walked with `pairs` and asked with `reference[key]`. What follows a `prepare`
is gathered, and `commit` puts it in the place of all entries at once.

**`core.redis(NAME [, {db = N}])`** is a store or an engine, and any name on it a command: `r:incrby(key, 1)`, or
`r:call(\"INCRBY\", key, 1)`. An error is raised; `r:pcall(…)` gives nil and its message instead. A null is nil, an array a
table with its length in `n`, a map a table by key. `r:acall(…)` does not wait for its reply: what fails is told in the log, at
most once a second. `r:pipeline(function(p) p:set(\"k\", 1) p:get(\"k\") end)` sends commands together (at most 100,000) and gives
a table of their replies, where an error is a table with `err`.

`r:multi(function(m) m:set(\"k\", 1) m:incr(\"n\") end)` does what is called on `m` together and with nobody else in between, and
gives a table of the replies. It shares the connection with other commands, unless one of these is not for that or the function
uses `c`; few short commands in the embedded store are a function call. `r:multi({watch = {\"k\"}, retry = 3}, function(m, c) m:set(\"k\", c:get(\"k\") + 1) end)` does so only if
no watched key was changed since: the function is called again, at most `retry` times, and nil says that it was never done. `c` is
the connection, for what has to be known before. A command that is refused is an error, and then nothing was done.

`r:own(function(c) … end)` gives the function a connection of its own, for whatever changes one: `c:watch`, `c:multi`, `c:wait`.
Any name on it is a command, `c:pcall` and `c:pipeline` are as on `r`. It is given back, clean, when the function ends. Commands
that wait for others (`r:blpop(\"l\", 5)`) have such a connection by themselves.

`local s = r:subscribe(\"a\", \"b\")` listens to channels, `r:psubscribe(…)` to those of patterns. `s:receive([seconds])` waits for a
message and gives it, its channel, and the pattern if there was one; else nil and `\"timeout\"`, or what ended the connection. The
next call connects again and says `nil, \"reconnected\"`: what was published meanwhile was missed. `s:close()` ends it, and so does
the script's end. Tasks are the place for it: a message is read when it is asked for, and an engine ends the connection of a
listener that is far behind (`client-output-buffer-limit pubsub`).

**`core.httpclient`** makes one request over HTTP/1.1 while the script waits; `https` comes later and is an error. Each
request has a connection of its own; names are resolved by the system, and a name without an address is answered with 503,
as a server that can't be reached after three more attempts. An answer's body may have 64 MiB. What would split a request,
and fields that frame its body, are errors. A request that timed out is not repeated; an interim answer (1xx) is skipped,
where 2.6 gives its head.

**Sockets that are kept.** `tcp:setkeepalive(pool, max_idle, timeout)` leaves a socket's connection to whoever connects to the same
pool next, with `core.tcp():connect(host, port, {pool = \"name\"})`; without a name the pool is that of the address. At most
`max_idle` (30) connections rest in a pool, for `timeout` (60) seconds, and 1024 in all pools of a worker; each worker has its
own. One that the other side closed, or that says something that nobody asked for, is not handed out. One whose last read
or write did not come to its end, or that can't be written to, is closed instead of kept.
`tcp:setkeepalive(milliseconds, size)` is OpenResty's form. It gives 1, or nil and why not; `tcp:getreusedtimes()` says how
often the connection was used before.

**`require \"socket\"`** gives LuaSocket's functions over the proxy's own sockets (`tcp`, `connect`, `gettime`, `sleep`,
`dns.toip`, `dns.gethostname`, `try`, `newtry`, `protect`, `skip`; `socket.unix`), so that libraries written for
LuaSocket wait without blocking a worker. It wins over a LuaSocket that is installed. Names it lacks (`udp`, `bind`,
`select`…) raise.
";

/// The page as Markdown.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for (class, there, not_yet) in CLASSES {
        page.push_str(&format!("\n## {class}\n"));
        for (what, names) in [("There", there), ("Not yet", not_yet)] {
            if !names.is_empty() {
                page.push_str(&format!("\n{what}: {}.\n", list(names)));
            }
        }
    }
    page.push_str(&format!("\nClasses that are not there yet: {}.\n", list(core_api::CLASSES_NOT_YET)));
    page
}

/// Names of `core` and of `TXN` that a state must have.
pub fn names_there(class: &str) -> &'static [&'static str] {
    CLASSES.iter().find(|(name, ..)| *name == class).map_or(&[], |(_, there, _)| there)
}
