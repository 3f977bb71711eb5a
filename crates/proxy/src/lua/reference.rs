//! The reference page of the Lua API: the names of HAProxy's API, from one table.

/// A class: its name, and the names that it has.
type Class = (&'static str, &'static [&'static str]);

const CLASSES: &[Class] = &[
    (
        "core",
        &[
            "register_action",
            "register_filter",
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
            "event_sub",
            "disable_legacy_mailers",
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
            "http_req",
            "http_res",
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
    ),
    (
        "HTTP",
        &[
            "req_get_headers",
            "res_get_headers",
            "req_add_header",
            "res_add_header",
            "req_set_header",
            "res_set_header",
            "req_del_header",
            "res_del_header",
            "req_rep_header",
            "res_rep_header",
            "req_rep_value",
            "res_rep_value",
            "req_set_method",
            "req_set_path",
            "req_set_query",
            "req_set_uri",
            "res_set_status",
        ],
    ),
    ("act", &["CONTINUE", "STOP", "YIELD", "ERROR", "DONE", "DENY", "ABORT", "INVALID", "wake_time"]),
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
    ),
    (
        "filter",
        &["CONTINUE", "WAIT", "ERROR", "FLT_CFG_FL_HTX", "register_data_filter", "unregister_data_filter", "wake_time"],
    ),
    (
        "HTTPMessage",
        &[
            "channel",
            "get_stline",
            "get_headers",
            "add_header",
            "set_header",
            "del_header",
            "rep_header",
            "rep_value",
            "set_method",
            "set_path",
            "set_query",
            "set_uri",
            "set_status",
            "set_body_len",
            "body",
            "append",
            "prepend",
            "insert",
            "set",
            "remove",
            "send",
            "forward",
            "input",
            "output",
            "eom",
            "set_eom",
            "unset_eom",
            "is_full",
            "is_resp",
            "may_recv",
        ],
    ),
    (
        "Socket",
        &[
            "connect",
            "connect_ssl",
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
            "get_mailers",
        ],
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
            "event_sub",
        ],
    ),
    ("Listener", &["get_stats"]),
    ("StickTable", &["info", "lookup", "dump", "set", "clear"]),
    ("Queue", &["push", "pop", "pop_wait", "size", "alarm"]),
    ("Map", &["new", "lookup", "slookup"]),
    (
        "Patref",
        &["get_name", "is_map", "prepare", "commit", "giveup", "purge", "add", "add_bulk", "del", "set", "event_sub"],
    ),
    ("CertCache", &["set"]),
    ("EventSub", &["unsub"]),
    ("HTTPClient", &["get", "head", "put", "post", "delete"]),
    ("Regex", &["new", "exec", "match"]),
    ("Concat", &["add", "dump"]),
];

const HEAD: &str = "\
# Lua

This page lists HAProxy's Lua API as it is implemented, which is that of 3.2's manual.
Every fetch and converter of the [configuration reference](configuration.md) is a method of `f`/`sf` and `c`/`sc`, with `.`,
`-` and `+` written as `_`.

**Waiting.** Actions, tasks, services and commands of the stats socket may wait for sockets, stores and sleeps. So may
fetches and converters in rules (`tcp-request content`, `http-request`, `http-response`, `tcp-response content`,
`use_backend`); in `http-after-response` they may wait for at most 5 s. Elsewhere (`tcp-request connection`, log lines) a
call that would wait raises `cannot wait here`: the script's error is logged, the sample is missing, and the request goes
on. Before traffic nothing waits: while a file is loaded and in functions of `core.register_init` pauses end at once, and
other calls that would wait raise the same error. A log line may only read the stream: a call that would change it raises
`the stream cannot be changed here`. While another thread runs in the shared state, a log line waits for it for at most
20 ms; after that the sample is missing, and a message (at most one a second) reports it. Scripts of `lua-load-per-thread` do not share their state.

**Run time.** A script is preempted after 0.3 to 0.65 ms of CPU time, between two instructions or within the functions of the libraries:
searches (`find`, `match`, `gmatch`, `gsub`), `sort` and other functions that run long or call functions of the script
(comparisons, replacements, metamethods such as `__tostring`, `__index`, `__len`) are suspended and continued. Preempted
scripts take turns, one slice in each iteration of the worker's event loop, so however many there are, they delay other
requests by one slice at a time. `tune.lua.session-timeout`, `tune.lua.task-timeout` and `tune.lua.service-timeout` limit
the sum of a script's slices. Where a script cannot be suspended (the handler of `xpcall`, the chunk that `require` runs,
functions called by a C module) it is ended after a fiftieth of `tune.lua.burst-timeout`, 20 ms by default; fetches and
converters that may not wait have `tune.lua.burst-timeout`. While the process serves, a string made by a script is limited
to 32 MiB (`resulting string too large`, `not enough memory`), and a layout of `string.pack` to 256 KiB.
`collectgarbage(\"generational\")` only changes the mode that `collectgarbage` reports.

**Finalizers** (`__gc`) run after the burst in which their object was collected, or before `collectgarbage` returns, as
coroutines with a budget of 1 s; a finalizer that exceeds it is ended with an alert. Finalizers may not wait and have no
stream: methods of `txn` raise.

**Signals.** The end of a slice is a signal (SIGURG, as in Go). System calls continue after it, except those that Linux
never continues, such as `poll`, or `recv` on a socket with a timeout: C modules must call these again (`EINTR`).

**Watchdog.** Blocking I/O and C modules can block a worker. After a second without an iteration of its event loop an alert
names the worker, the line of its script and the seconds (again each time the duration has doubled, and when the worker
continues); meanwhile other workers accept on its sockets. With `tune.lua.watchdog-abort on` the process aborts instead, as
HAProxy does. SIGTERM and SIGINT end the process within about a second even if a worker is stuck.

**Programs.** `os.execute` and `io.popen` start programs while scripts are loaded. While the process serves they fail as
under HAProxy's limits (`nil`, `Resource temporarily unavailable`) unless `insecure-fork-wanted` is set; in HAProxy that
limit does not apply to a process of root. Started programs gain no privileges (`PR_SET_NO_NEW_PRIVS`) unless
`insecure-setuid-wanted` is set; a reload cannot revert that. C modules that fork are not prevented from it.

**Actions** are registered per rule set: the same name may be a different function, with a different number of arguments,
for `tcp-req`, `tcp-res`, `http-req`, `http-res` and `http-after-res`.

**Filters** (`core.register_filter`, `filter lua.NAME` in the configuration) have their functions called for the events of a
stream; none may wait. `http_payload` and `tcp_payload` are called with what the source has sent since the last call, once it
has sent nothing more for now, and return the number of bytes that pass; the rest stays until the next call, within
`tune.bufsize`. `http_payload` may also be called with no data, at the end of a body (`eom`). A function that returns
`filter.WAIT` is called again after `filter.wake_time(milliseconds)`; without a wake time, or if a payload does not pass, the
client's or the server's timeout ends the stream. `filter.ERROR` and a Lua error end it: a request is answered with 400, a response is not sent (further). `set_body_len` is the way
to change the length of a body: a request whose filter adds more than the head announces is answered with 500, such a
response ends the connection, and a filter that sends less breaks the message.

As in HAProxy, filters see responses of caches, of services, of the statistics page and of the exporter like those of servers,
and the requests that these answer; of other answers of the process (`return`, `redirect`, `deny`, errors) they see
nothing but `end_analyze`. A CONNECT and the response that opens a tunnel have no `http_payload`; what passes the tunnel is
given to `tcp_payload`, which is called once before any data. There the channel's contents are not accessible: functions
may count (`input`, `output`), let bytes pass or hold them, and a call of `data`, `append` and the like raises an error.
Data that a filter adds to a message is not sent into the tunnel that follows. Differences: `start_analyze` of a
response is called when its head has come, not when the connection is made; the functions for a request's body are called
once there is a connection; `set_body_len` has no effect on a CONNECT and on a response that opens a tunnel, where 2.8 stops;
`tcp_payload` is not called for responses that end with their connection.

**Libraries.** `tune.lua.openlibs` (from HAProxy 3.5) selects the Lua libraries that scripts can use. The classes of
HAProxy's API work without any of them.

**`act.YIELD`** suspends an action, which is called again with the same arguments after `act.wake_time(milliseconds)`.
Without a wake time it would never be called again: the script's error is logged, and the next rule runs. In 2.6 such a
request hangs.

**Fetches and converters** return their last result: a number (an integer, or 0), a string or a boolean; any other value is
the boolean false, and no result means no sample.

**Services** read and write through bounded buffers. Without a Content-Length the response is chunked (HTTP/1.0: until the
end of the connection); bytes beyond the Content-Length are cut off, and a body that is too short ends the connection. A
service that fails before `start_response` is answered with 500. The run time of services is limited by
`tune.lua.service-timeout`, that of fetches and converters by `tune.lua.session-timeout`. Header names keep the case that
the script gives them.

**Proxies and servers.** Without `option socket-stats` a listener has no counters of its own, and `get_stats` returns an
empty table, where 2.6 returns values last reported for another listener. The `servers` of a proxy are its current ones,
including those of `add server`; all methods of a server that was deleted return nil, as in 3.2, and a new server of the
same name is another object. `pause`, `resume` and `stop` are the commands of the stats socket; on a backend they have no
effect. `is_draining` returns a boolean, as the manual says, where 2.6 returns 0 or 1. `core.set_nice` checks its argument
and has no effect: workers run tasks in the order in which they become ready.

**Stick tables** are writable, unlike HAProxy's: `table:set(key, {gpc0 = 1})` creates the entry of a key if necessary and
sets all the given data or none (it returns `false` if the table is full and no entry can be evicted); `table:clear(key)`,
`table:clear(filter)` with a filter of `dump`, and `table:clear()` remove entries (`false` if one remains because it is
tracked). For an array of data only the first element is read and set.

**TXN.** A `txn` belongs to its stream: a script of another stream that uses one which it kept gets an error. Its objects
`f`, `sf`, `c`, `sc`, `http`, `req` and `res` are the same ones for all streams and stand for that of the script that uses
them; without a stream (tasks, finalizers) they raise.

**Channels.** In TCP content rules `txn.req` and `txn.res` read and change the received data. Within the inspect delay a
script may wait for more data of the direction that its rules apply to; in a request's rules `txn.res:send` answers the
client before a server is contacted. Methods of the other direction's channel return nil, 0 or -1. In HTTP mode the contents
are not accessible, as in HAProxy. `txn.http_req` and `txn.http_res` (class HTTPMessage) are nil
outside of filters' functions. `append` adds at the end, as the manual says; 2.6 adds at the
front.

**Pattern references** (`core.get_patref`) support `pairs` and `reference[key]`. Changes after a `prepare` are collected,
and `commit` replaces all entries by them atomically.

**Events.** `core.event_sub`, `Server:event_sub` and `Patref:event_sub` call a function for each event, one after the other,
on the worker on which the subscription was made (the first one while scripts are loaded). The function may wait. A
subscription with more than 100 events that it has not seen pauses until it has seen them, which is logged. Events of servers
have the data of the manual, `SERVER_INETADDR` only those that all events of servers have. As in HAProxy, events of pattern
references have no data and no place for them: the function gets the event, the subscription and the time. `unsub` drops
the events in the queue. A reload ends the subscriptions of the previous scripts.

**Mailers.** `Proxy:get_mailers` returns nil unless the proxy sends alerts. After `core.disable_legacy_mailers` the process
sends no alerts itself.

**`CertCache.set`** waits until the certificate is in place, as after `set ssl cert` and `commit ssl cert`; where a function
may not wait it raises an error. `sctl` is not supported: signed certificate timestamps are not sent.

**`core.redis(NAME [, {db = N}])`** returns a store or an engine; each command is a method of it: `r:incrby(key, 1)`, or
`r:call(\"INCRBY\", key, 1)`. An error reply is raised; `r:pcall(…)` returns nil and the message instead. A null is nil, an
array a table with its length in `n`, a map a table by key. `r:acall(…)` does not wait for its reply: failures are logged,
at most once a second. `r:pipeline(function(p) p:set(\"k\", 1) p:get(\"k\") end)` sends commands together (at most 100,000) and
returns a table of their replies, where an error is a table with `err`.

`r:multi(function(m) m:set(\"k\", 1) m:incr(\"n\") end)` executes the commands called on `m` as one transaction and returns a
table of the replies. It uses the shared connection, unless one of the commands is not allowed there or the function uses
`c`; in the embedded store a few short commands are executed by a direct call. `r:multi({watch = {\"k\"}, retry = 3},
function(m, c) m:set(\"k\", c:get(\"k\") + 1) end)` executes them only if no watched key has changed: otherwise the function is
called again, at most `retry` times, and nil is returned if the transaction was never executed. `c` is the connection, for
reads before the transaction. A refused command raises an error, and then nothing was executed.

`r:own(function(c) … end)` passes a dedicated connection to the function, for commands that change its state: `c:watch`,
`c:multi`, `c:wait`. Each command is a method of it; `c:pcall` and `c:pipeline` work as on `r`. When the function ends, the
connection is reset and returned to the pool. Blocking commands (`r:blpop(\"l\", 5)`) use a dedicated connection
automatically.

`local s = r:subscribe(\"a\", \"b\")` subscribes to channels, `r:psubscribe(…)` to patterns. `s:receive([seconds])` waits for a
message and returns it, its channel, and the pattern if there was one; otherwise it returns nil and `\"timeout\"`, or the
reason why the connection ended. The next call reconnects and returns `nil, \"reconnected\"`: messages published in between
were missed. `s:close()` ends the subscription, and so does the end of the script. Subscriptions are best used in tasks: a
message is read only by `receive`, and an engine closes the connection of a subscriber that falls far behind
(`client-output-buffer-limit pubsub`).

**`core.httpclient`** makes one request while the script waits: over HTTP/2 if the server of an `https` URL selects it,
otherwise in HTTP/1.1. Such a server is verified as `httpclient.ssl.verify` and `httpclient.ssl.ca-file` say, for the name in
the request's `host` field; an address in its place
can't be verified. Each request has its own connection. Names are looked up in `/etc/hosts`, by the system, and then in the
section `default` of `resolvers`; `httpclient.resolvers.*` name another section, and the preferred family of addresses. The
result is 503 if a name has no address, if the server cannot be reached after `httpclient.retries` more attempts, each of
`httpclient.timeout.connect`, or if its handshake fails, which is not repeated. A response's body is limited to 64 MiB.
Arguments that would split the request are errors; header fields that frame its body, and `connection: keep-alive`, are left
out. Any request is sent again, at most `httpclient.retries` times, if its connection ends without a response or the server is
late; an interim response (1xx) is skipped, where 2.6 returns its head.

**Pooled sockets.** `tcp:setkeepalive(pool, max_idle, timeout)` returns a socket's connection to a pool, from which
`core.tcp():connect(host, port, {pool = \"name\"})` takes it; the default name of a pool is the address. A pool keeps at most
`max_idle` (30) idle connections for `timeout` (60) seconds; all pools of a worker keep at most 1024; workers do not share
pools. A connection that the other side has closed, or on which unexpected data has arrived, is not handed out. A connection
whose last read or write was incomplete, or that is not writable, is closed instead of pooled.
`tcp:setkeepalive(milliseconds, size)` is OpenResty's form. It returns 1, or nil and the reason; `tcp:getreusedtimes()`
returns how often the connection was reused.

**`require \"socket\"`** returns LuaSocket's functions over the proxy's own sockets (`tcp`, `connect`, `gettime`, `sleep`,
`dns.toip`, `dns.gethostname`, `try`, `newtry`, `protect`, `skip`; `socket.unix`), so that libraries written for LuaSocket
wait without blocking a worker. It takes precedence over an installed LuaSocket. Using other functions of LuaSocket (`udp`,
`bind`, `select`…) raises an error.
";

/// Returns the page as Markdown.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for (class, names) in CLASSES {
        page.push_str(&format!("\n## {class}\n\n{}.\n", list(names)));
    }
    page
}

/// Names of `core` and of `TXN` that a state must have.
pub fn names_there(class: &str) -> &'static [&'static str] {
    CLASSES.iter().find(|(name, _)| *name == class).map_or(&[], |(_, names)| names)
}
