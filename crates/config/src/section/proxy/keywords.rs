//! The keywords of proxies, each with its sections, its arguments, its effect and its parser.

use super::{
    ProxyParser, ProxyReader, check, compression, connection, dispatch, fcgi, filter, logging, on, servers, stats, wire,
};
use crate::catalogue::{Contexts, Place};
use crate::model::{ConnectionMode, HttpReuse};
use crate::section::bind::{self, BindContext};
use crate::section::table::{MANY, Row, Table};
use crate::section::{mailers, rule};
use crate::word::Line;

pub(super) const fn row(
    name: &'static str,
    contexts: Contexts,
    min: usize,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    parser: fn(&mut ProxyReader<'_>, &Line),
) -> Row<ProxyParser> {
    Row { name, contexts, min, max, usage, docs, parser: ProxyParser(parser) }
}

pub(super) const fn timeout(
    name: &'static str,
    contexts: Contexts,
    docs: &'static str,
    parser: fn(&mut ProxyReader<'_>, &Line),
) -> Row<ProxyParser> {
    row(name, contexts, 1, 1, "TIME", docs, parser)
}

pub(super) const fn option(
    name: &'static str,
    contexts: Contexts,
    docs: &'static str,
    parser: fn(&mut ProxyReader<'_>, &Line),
) -> Row<ProxyParser> {
    row(name, contexts, 0, 0, "", docs, parser)
}

/// The arguments of tables.
const TABLE_USAGE: &str = "type ip|ipv4|ipv6|integer|string [len N]|binary [len N] size N [expire TIME] [nopurge] \
                                      [srvkey name|addr] [brates-factor N] [store DATA,…] [peers SECTION [recv-only] \
                                      [write-to TABLE] [aggregate]]";
const FRONT: Contexts = Contexts::FRONT;
const BACK: Contexts = Contexts::BACK;
const PROXY: Contexts = Contexts::PROXY;
const NO_DEFAULTS: Contexts = Contexts::PROXY.without(Contexts::DEFAULTS);

/// The keywords of proxies.
pub(crate) static KEYWORDS: Table<ProxyParser> = Table::new(&[
    row(
        "acl",
        PROXY,
        2,
        MANY,
        "NAME FETCH[,CONVERTER]… [-i] [-n] [-m METHOD] [-M] [-f FILE]… [-u NUMBER] [--] [PATTERN]…",
        "Declares a test; several lines with one name are or-ed.",
        |r, line| r.acl(line),
    ),
    row(
        "backlog",
        FRONT,
        1,
        1,
        "N",
        "Length of the kernel's accept queue; the frontend's maxconn by default.",
        |r, line| {
            if let Some(n) = r.leading_integer(line, 1, 0, i64::from(i32::MAX)) {
                r.settings.proxy.backlog = (n > 0).then_some(n as u32);
            }
        },
    ),
    row(
        "balance",
        BACK,
        0,
        MANY,
        "roundrobin | static-rr | leastconn | first | random[(N)] | source | uri [len N] [depth N] [whole] [path-only] | \
         url_param NAME [check_post] | hdr(NAME) [use_domain_only] | hash EXPRESSION | rdp-cookie[(NAME)]",
        "The balancing algorithm; weighted round robin by default. 'first', 'leastconn', 'random' and round robin skip \
         full servers, a hash waits for its server. A request without the key is balanced by round robin.",
        |r, line| r.balance(line),
    ),
    row(
        "bind",
        FRONT.without(Contexts::DEFAULTS),
        1,
        MANY,
        "ADDRESS[,ADDRESS]… [OPTION]…",
        "Listens: ADDRESS:PORT, :PORT, *:PORT, [V6]:PORT, PORT-PORT, /PATH, unix@PATH, abns@NAME, abnsz@NAME or fd@N, \
         or one of these behind 'stream+'. sockpair@N receives connections as descriptors over the inherited unix socket N. \
         rhttp@BACKEND/SERVER connects to a server, for reverse HTTP.",
        |r, line| {
            let is_quic = |address: &str| address.starts_with("quic4@") || address.starts_with("quic6@");
            if r.loaded.no_quic && line.address(1).split(',').all(is_quic) {
                return;
            }
            let context = BindContext { section: r.section, loader: r.loaded.tls };
            if let Some((bind, tls)) = bind::bind(line, &context, r.diagnostics) {
                r.settings.proxy.binds.push(bind);
                r.settings.bind_words.push((line.text(1).into(), tls));
            }
        },
    ),
    row(
        "capture",
        FRONT.without(Contexts::DEFAULTS),
        4,
        5,
        "request header NAME len N | response header NAME len N | cookie NAME len N",
        "Captures a header's last value, or the first cookie whose name has this prefix, for the log line.",
        |r, line| r.capture(line),
    ),
    connection::CLIENT_COUNT,
    connection::CLIENT_IDLE,
    connection::CLIENT_INTERVAL,
    compression::ALGO,
    compression::ALGO_REQ,
    compression::ALGO_RES,
    compression::DIRECTION,
    compression::MINSIZE_REQ,
    compression::MINSIZE_RES,
    compression::OFFLOAD,
    compression::TYPE,
    compression::TYPE_REQ,
    compression::TYPE_RES,
    row(
        "cookie",
        BACK,
        1,
        MANY,
        "NAME [rewrite|insert|prefix] [indirect] [nocache] [postonly] [preserve] [httponly] [secure] [domain D]… \
         [maxidle T] [maxlife T] [dynamic] [attr A]…",
        "Persistence by a cookie with the value of the server's 'cookie' option.",
        |r, line| r.persistence_cookie(line),
    ),
    row(
        "declare capture",
        FRONT.without(Contexts::DEFAULTS),
        3,
        MANY,
        "request|response len N",
        "Declares a slot for the 'capture' actions of this frontend and its backends.",
        |r, line| r.declare_capture(line),
    ),
    servers::DEFAULTS,
    stats::DESCRIPTION,
    row("default_backend", FRONT, 1, 1, "NAME", "The backend used if no use_backend applies.", |r, line| {
        r.settings.proxy.default_backend = r.backend(line, 1);
        r.settings.default_backend_at = Some(line.at(1));
    }),
    dispatch::DISPATCH,
    dispatch::OPTION,
    dispatch::TRANSPARENT,
    row("disabled", PROXY, 0, 0, "", "The section is parsed and checked, but not started.", |r, _| {
        r.settings.proxy.disabled = true
    }),
    row(
        "dynamic-cookie-key",
        BACK,
        1,
        1,
        "KEY",
        "The secret for the values of 'cookie … dynamic', in addition to the servers' addresses.",
        |r, line| r.settings.proxy.dynamic_cookie_key = Some(line.text(1).to_owned()),
    ),
    row("enabled", PROXY, 0, 0, "", "Undoes a 'disabled' of the defaults.", |r, _| r.settings.proxy.disabled = false),
    row(
        "error-log-format",
        FRONT,
        1,
        1,
        "FORMAT",
        "The log format of a connection that failed before its first request was understood.",
        |r, line| r.settings.proxy.logging.error_line = r.log_format(line, Place::Log),
    ),
    row(
        "errorfile",
        PROXY,
        2,
        2,
        "STATUS FILE",
        "The complete response that replaces the page of a status. It is read at start; an empty file closes the \
         connection without a response. Errors before the head is complete use the built-in page, or no response.",
        |r, line| {
            if let Some((code, page)) = r.pages.error_file(line, r.diagnostics) {
                r.settings.proxy.errors.insert(code, page);
            }
        },
    ),
    row(
        "errorfiles",
        PROXY,
        1,
        MANY,
        "NAME [STATUS]…",
        "The pages of an 'http-errors' section, or those of these statuses.",
        |r, line| r.errors.import(line, &mut r.settings.proxy.errors, r.diagnostics),
    ),
    row("errorloc", PROXY, 2, 2, "STATUS URL", "The same as 'errorloc302'.", |r, line| r.error_location(line, 302)),
    row("errorloc302", PROXY, 2, 2, "STATUS URL", "A redirect (302) in place of a page.", |r, line| {
        r.error_location(line, 302)
    }),
    row(
        "errorloc303",
        PROXY,
        2,
        2,
        "STATUS URL",
        "A redirect (303, to be fetched by GET) in place of a page.",
        |r, line| r.error_location(line, 303),
    ),
    filter::FILTER,
    row(
        "force-persist",
        BACK.without(Contexts::DEFAULTS),
        1,
        MANY,
        "if|unless CONDITION",
        "Requests whose cookie or table entry names a server that is down are still sent there.",
        |r, line| r.persist_rule(line, true),
    ),
    row(
        "fullconn",
        BACK,
        1,
        1,
        "N",
        "Streams in the backend at which servers with a 'minconn' reach their 'maxconn'; a tenth of the maxconn of the \
         frontends that use the backend by default.",
        |r, line| {
            if let Some(n) = r.leading_integer(line, 1, 1, i64::from(i32::MAX)) {
                r.settings.proxy.fullconn = Some(n as u32);
            }
        },
    ),
    row(
        "guid",
        NO_DEFAULTS,
        1,
        1,
        "TEXT",
        "The proxy's global identifier: unique, and the same whatever its name is. It finds the proxy's counters in a \
         'stats-file'.",
        |r, line| match crate::section::guid::check(line.text(1)) {
            Ok(()) => r.settings.proxy.guid = Some(line.text(1).to_owned()),
            Err(message) => _ = r.diagnostics.error(line.at(1), format!("'guid': {message}")),
        },
    ),
    row(
        "hash-balance-factor",
        PROXY,
        1,
        1,
        "PERCENT",
        "With 'hash-type consistent' and 'random', the maximum load of a server in percent of the average load for its \
         weight; beyond it the next server on the ring is used; 0: no limit.",
        |r, line| r.hash_balance_factor(line),
    ),
    row(
        "hash-preserve-affinity",
        BACK,
        1,
        1,
        "always|maxconn|maxqueue",
        "With 'hash-type consistent', whether a server without a free slot, or with a full queue, is skipped for the \
         next one on the ring; always: it is not.",
        |r, line| r.hash_preserve_affinity(line),
    ),
    row(
        "hash-type",
        BACK,
        1,
        3,
        "map-based|consistent [sdbm|djb2|wt6|crc32|none [avalanche]]",
        "The mapping from a hash to a server: a table of all weights, or the nearest point on a ring, and the hash \
         function; map-based sdbm by default. 'none' uses the key as a number.",
        |r, line| r.hash_type(line),
    ),
    row(
        "http-after-response",
        PROXY,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for every response to the client, a server's or one made here; see the actions. Such rules may wait \
         for 5 s at most; a list that takes longer ends there.",
        |r, line| {
            r.rule(line, 1, Place::HttpAfterResponse);
        },
    ),
    row(
        "http-error",
        PROXY,
        2,
        MANY,
        "status N [ANSWER as return]",
        "The response that replaces the page of a status, with formats evaluated per request.",
        rule::http_error,
    ),
    row(
        "http-request",
        PROXY,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for requests; see the actions.",
        |r, line| {
            r.rule(line, 1, Place::HttpRequest);
        },
    ),
    row(
        "http-response",
        PROXY,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for responses; see the actions.",
        |r, line| {
            r.rule(line, 1, Place::HttpResponse);
        },
    ),
    row("http-send-name-header", BACK, 1, 1, "NAME", "Sends the server's name to it in this field.", |r, line| {
        r.settings.proxy.send_name_header = rule::header_name(r, line, 1)
    }),
    row(
        "http-reuse",
        BACK,
        1,
        1,
        "never|safe|aggressive|always",
        "The conditions for sharing idle server connections between clients; safe by default. A connection whose server \
         asks for NTLM or Negotiate is never shared.",
        |r, line| {
            const NAMES: [(&str, HttpReuse); 4] = [
                ("never", HttpReuse::Never),
                ("safe", HttpReuse::Safe),
                ("aggressive", HttpReuse::Aggressive),
                ("always", HttpReuse::Always),
            ];
            if let Some(found) = r.one_of(line, 1, &NAMES) {
                r.settings.proxy.http_reuse = found;
            }
        },
    ),
    row("id", NO_DEFAULTS, 1, 1, "N", "The proxy's number in statistics.", |r, line| {
        if let Some(n) = r.leading_integer(line, 1, 1, i64::from(i32::MAX)) {
            r.settings.explicit_uid = Some(n as u32);
        }
    }),
    row(
        "ignore-persist",
        BACK.without(Contexts::DEFAULTS),
        1,
        MANY,
        "if|unless CONDITION",
        "The cookie is neither used nor set.",
        |r, line| r.persist_rule(line, false),
    ),
    row("email-alert from", PROXY, 1, 1, "ADDRESS", "The sender of alerts by mail.", mailers::email_alert),
    row(
        "email-alert level",
        PROXY,
        1,
        1,
        "LEVEL",
        "The least severe level of alerts: servers that go down (alert, the default), or come up or are drained (notice), or \
         also the results of checks with 'option log-health-checks' (info).",
        mailers::email_alert,
    ),
    row(
        "email-alert mailers",
        PROXY,
        1,
        1,
        "SECTION",
        "Sends alerts about the states of the servers to the mailers of this section.",
        mailers::email_alert,
    ),
    row(
        "email-alert myhostname",
        PROXY,
        1,
        1,
        "NAME",
        "The name of this host for mailers; the machine's by default.",
        mailers::email_alert,
    ),
    row("email-alert to", PROXY, 1, MANY, "ADDRESS", "The recipient of alerts.", mailers::email_alert),
    row(
        "log",
        PROXY,
        1,
        MANY,
        "global | TARGET [len N] [format F] [sample RANGES:SIZE] [profile NAME] FACILITY [LEVEL [MIN]]",
        "The target of the access log.",
        |r, line| r.log(line),
    ),
    servers::STATE,
    row("log-format", FRONT, 1, 1, "FORMAT", "The log format of a stream.", |r, line| r.log_line(line)),
    row(
        "log-format-sd",
        FRONT,
        1,
        1,
        "FORMAT",
        "The structured data of log targets with 'format rfc5424'.",
        |r, line| r.settings.proxy.logging.structured = r.log_format(line, Place::Log),
    ),
    row(
        "log-steps",
        PROXY,
        0,
        1,
        "all | accept|request|connect|response|close[,…]",
        "Writes a line at each of these steps of a stream in place of one for the whole stream: its begin, the request's \
         head, the connection to the server, the response's head, and the end. Without effect beside 'option logasap'.",
        |r, line| r.log_steps(line),
    ),
    row("log-tag", PROXY, 1, 1, "TAG", "The tag in the headers of this proxy's log lines.", |r, line| r.log_tag(line)),
    row(
        "maxconn",
        FRONT,
        1,
        1,
        "N",
        "Maximum number of concurrent connections of the frontend; further ones wait in the kernel.",
        |r, line| {
            if let Some(n) = r.leading_integer(line, 1, 0, i64::from(i32::MAX)) {
                r.settings.proxy.maxconn = (n > 0).then_some(n as u32);
            }
        },
    ),
    row(
        "mode",
        PROXY,
        1,
        1,
        "tcp|http|log|spop",
        "The protocol: bytes (tcp), HTTP messages (http) or, of a backend, log messages of 'log backend@NAME' (log) or messages \
         to agents of 'filter spoe' (spop); tcp by default.",
        |r, line| r.mode(line),
    ),
    row(
        "monitor fail",
        FRONT.without(Contexts::DEFAULTS),
        1,
        MANY,
        "if|unless CONDITION",
        "'monitor-uri' answers 503 if this condition holds.",
        |r, line| {
            if let Ok(Some(condition)) = r.condition(line, 2, Place::HttpRequest) {
                r.settings.proxy.monitor_fail.push(condition);
            }
        },
    ),
    row(
        "monitor-uri",
        FRONT,
        1,
        1,
        "URI",
        "A request with exactly this target gets a 200 before any rule, and is not logged.",
        |r, line| r.settings.proxy.monitor_uri = Some(line.words[1].bytes().to_vec()),
    ),
    wire::INVALID_REQUEST,
    wire::INVALID_RESPONSE,
    wire::UNSAFE_REQUEST,
    wire::UNSAFE_RESPONSE,
    wire::CASE_CLIENT,
    wire::CASE_SERVER,
    wire::REQUEST_TRAILERS,
    wire::RESPONSE_TRAILERS,
    option(
        "option abortonclose",
        BACK,
        "A request whose client has ended its side is aborted, while it is queued, waits for a server or gets the response.",
        |r, line| r.settings.proxy.options.abortonclose = on(line),
    ),
    option(
        "option allbackups",
        BACK,
        "All backup servers are used once no other is up, not only the first.",
        |r, line| r.settings.proxy.options.all_backups = on(line),
    ),
    option("option dontlog-normal", FRONT, "Streams without a failure, retry or 5xx are not logged.", |r, line| {
        r.settings.proxy.logging.only_errors = on(line)
    }),
    option("option dontlognull", FRONT, "Connections without any data are not logged.", |r, line| {
        r.settings.proxy.options.dontlognull = on(line)
    }),
    row(
        "option forwardfor",
        PROXY,
        0,
        5,
        "[except NETWORK] [header NAME] [if-none]",
        "Adds X-Forwarded-For with the client's address.",
        |r, line| r.forwardfor(line),
    ),
    option(
        "option http-buffer-request",
        PROXY,
        "Before any rule runs, waits for the request's body until it is complete or the buffer is full, within \
         'timeout http-request'.",
        |r, line| r.settings.proxy.options.buffer_request = on(line),
    ),
    option(
        "option http-ignore-probes",
        FRONT,
        "Connections that end before a request get no response and no log line.",
        |r, line| r.settings.proxy.options.http_ignore_probes = on(line),
    ),
    option(
        "option http-use-proxy-header",
        FRONT,
        "A request whose target names a host counts as a proxy request: its credentials are those of \
         Proxy-Authorization, and 'http-request auth' answers with 407.",
        |r, line| r.settings.proxy.options.use_proxy_header = on(line),
    ),
    option("option http-keep-alive", PROXY, "Connections are kept alive on both sides; the default.", |r, line| {
        r.connection(line, ConnectionMode::KeepAlive)
    }),
    option("option http-server-close", PROXY, "The server's connection is closed after each response.", |r, line| {
        r.connection(line, ConnectionMode::ServerClose)
    }),
    option(
        "option httpclose",
        PROXY,
        "Connections of HTTP/1 are closed after each response, on both sides.",
        |r, line| r.connection(line, ConnectionMode::Close),
    ),
    check::HTTPCHK,
    option(
        "option checkcache",
        BACK,
        "A response that caches may keep and that sets a cookie is blocked: the client gets a 502, and the log an alert.",
        |r, line| r.settings.proxy.options.check_cache = on(line),
    ),
    row(
        "option httplog",
        PROXY,
        0,
        1,
        "[clf]",
        "Logs one line per request with timers, status and ending; clf: in the common log format.",
        |r, line| r.log_option(line, logging::HTTP, Some(logging::HTTP_CLF)),
    ),
    option(
        "option httpslog",
        PROXY,
        "As httplog, with the handshake's errors, whether its session was resumed, the client's name for this side, version \
         and cipher suite.",
        |r, line| r.log_option(line, logging::HTTPS, None),
    ),
    option(
        "option log-separate-errors",
        FRONT,
        "Streams that failed, were retried or answered with 5xx are logged at level err.",
        |r, line| r.settings.proxy.logging.separate_errors = on(line),
    ),
    option(
        "option logasap",
        FRONT,
        "The line is logged once the response's head has arrived or a TCP connection is established; values that are \
         not final have a '+' prefix.",
        |r, line| r.settings.proxy.logging.asap = on(line),
    ),
    connection::CLIENT_PROBES,
    connection::CONTSTATS,
    connection::FORWARDED,
    connection::INDEPENDENT,
    connection::NO_DELAY,
    connection::PRETEND,
    connection::HEADER_NAMES,
    connection::IDLE_CLOSE,
    connection::NOLINGER,
    connection::ORIGINALTO,
    connection::SOCKET_STATS,
    option(
        "option disable-h2-upgrade",
        FRONT,
        "Connections without TLS stay HTTP/1, even if they begin with HTTP/2's preface.",
        |r, line| r.settings.proxy.options.disable_h2_upgrade = on(line),
    ),
    option("option splice-auto", PROXY, "No effect: large bodies pass through pipes anyway.", |_, _| ()),
    option("option splice-request", PROXY, "No effect: large bodies pass through pipes anyway.", |_, _| ()),
    option("option splice-response", PROXY, "No effect: large bodies pass through pipes anyway.", |_, _| ()),
    connection::SERVER_PROBES,
    option(
        "option tcp-smart-accept",
        FRONT,
        "No effect on data: it changes only which packets acknowledge.",
        |_, _| (),
    ),
    option(
        "option tcp-smart-connect",
        BACK,
        "No effect on data: it changes only which packets acknowledge.",
        |_, _| (),
    ),
    connection::PROBES,
    option("option persist", BACK, "Requests for a persistent server that is down are still sent to it.", |r, line| {
        r.settings.proxy.options.persist = on(line)
    }),
    check::COMMAND,
    check::PATH,
    check::EXTERNAL,
    check::LDAP,
    option(
        "option log-health-checks",
        BACK,
        "Logs every check whose result differs from the previous one.",
        |r, line| r.settings.proxy.health.log_checks = on(line),
    ),
    check::MYSQL,
    check::PGSQL,
    check::REDIS,
    row(
        "option redispatch",
        BACK,
        0,
        1,
        "[INTERVAL]",
        "Retries go to another server: only the last one, or every nth.",
        |r, line| r.redispatch(line),
    ),
    check::SPOP,
    check::SMTP,
    check::SSL_HELLO,
    check::TCP,
    row(
        "option tcplog",
        PROXY,
        0,
        1,
        "[clf]",
        "Logs one line per connection with timers and ending; clf: in the common log format.",
        |r, line| r.log_option(line, logging::TCP, Some(logging::TCP_CLF)),
    ),
    row(
        "rate-limit sessions",
        FRONT,
        1,
        1,
        "N",
        "Maximum number of connections accepted per second; further ones wait in the kernel. 0: unlimited.",
        |r, line| {
            if let Some(n) = r.integer(line, 2, 0, i64::from(i32::MAX)) {
                r.settings.proxy.session_rate = (n > 0).then_some(n as u32);
            }
        },
    ),
    row(
        "redirect",
        NO_DEFAULTS,
        2,
        MANY,
        "location|prefix|scheme FORMAT [code N] [drop-query] [append-slash] [keep-query] [ignore-empty] [set-cookie C] [set-cookie-fmt FORMAT] [clear-cookie C] [if|unless CONDITION]",
        "As 'http-request redirect', after all http-request rules.",
        |r, line| {
            r.step(line, "redirect");
            if let Some(rule) = rule::redirect_line(r, line) {
                r.settings.redirects.push(rule);
            }
        },
    ),
    row("retries", BACK, 1, 1, "N", "Maximum number of retries of a failed connection; 3.", |r, line| {
        if let Some(n) = r.leading_integer(line, 1, -1, 1000) {
            r.settings.proxy.retries = n.max(0) as u32;
        }
    }),
    row(
        "retry-on",
        BACK,
        1,
        MANY,
        "none | all-retryable-errors | conn-failure | empty-response | junk-response | response-timeout | \
         0rtt-rejected | STATUS…",
        "The failures after which a request is sent again, within 'retries', if its data is still buffered; \
         conn-failure by default. 0rtt-rejected has no effect, as no early data is sent.",
        |r, line| r.retry_on(line),
    ),
    servers::SERVER,
    servers::STATE_FILE,
    connection::KEEP_ALIVE_QUEUE,
    connection::SESSION_CONNECTIONS,
    connection::PREFER_LAST,
    connection::PERSIST_RDP,
    connection::SOURCE,
    connection::SERVER_COUNT,
    connection::SERVER_IDLE,
    connection::SERVER_INTERVAL,
    row(
        "ssl-f-use",
        PROXY,
        2,
        MANY,
        "crt FILE [OPTION VALUE]…",
        "A certificate of this section's 'bind' lines with 'ssl' that name none themselves; its options are those of a \
         line of a 'crt-list'. The last line's certificate serves clients whose name no certificate has. In a 'defaults' \
         or a backend: one of the next frontend or 'listen' in the file, and of no other.",
        |r, line| r.settings.certificates.line(line, r.loaded.tls, r.diagnostics),
    ),
    stats::ADMIN,
    stats::AUTH,
    stats::ENABLE,
    stats::HIDE_VERSION,
    stats::HTTP_REQUEST,
    stats::REALM,
    stats::REFRESH,
    stats::SCOPE,
    stats::SHOW_DESC,
    stats::SHOW_LEGENDS,
    stats::SHOW_MODULES,
    stats::SHOW_NODE,
    stats::URI,
    servers::TEMPLATE,
    row(
        "stick",
        BACK.without(Contexts::DEFAULTS),
        2,
        MANY,
        "on|match|store-request|store-response EXPRESSION [table NAME] [if|unless CONDITION]",
        "Looks up or stores, under a key of a stick table, the server of a client.",
        |r, line| r.stick(line),
    ),
    row(
        "stick-table",
        NO_DEFAULTS,
        1,
        MANY,
        TABLE_USAGE,
        "A table with the section's name, for counters of clients and persistence.",
        |r, line| r.stick_table(line),
    ),
    row(
        "tcp-request connection",
        FRONT,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for accepted connections, before their session begins.",
        |r, line| {
            r.rule(line, 2, Place::TcpConnection);
        },
    ),
    row(
        "tcp-request content",
        PROXY,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for data from the client.",
        |r, line| {
            r.rule(line, 2, Place::TcpRequest);
        },
    ),
    row(
        "tcp-request inspect-delay",
        PROXY,
        1,
        1,
        "TIME",
        "Maximum time for which content rules wait for data: a condition that cannot be decided yet is evaluated again \
         with more data, until the delay, the client's side or the buffer ends.",
        |r, line| {
            if let Some(time) = r.time(line, 2) {
                r.settings.proxy.inspect_delay = time;
                r.again(line, "tcp-request inspect-delay");
            }
        },
    ),
    row(
        "tcp-request session",
        FRONT,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for sessions, before the first byte is awaited.",
        |r, line| {
            r.rule(line, 2, Place::TcpSession);
        },
    ),
    row(
        "tcp-response content",
        BACK,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for data from the server.",
        |r, line| {
            r.rule(line, 2, Place::TcpResponse);
        },
    ),
    row(
        "tcp-response inspect-delay",
        BACK,
        1,
        1,
        "TIME",
        "The same for data from a server in 'mode tcp'; in 'mode http' rules see the data that arrived with the head.",
        |r, line| {
            if let Some(time) = r.time(line, 2) {
                r.settings.proxy.response_inspect_delay = time;
                r.again(line, "tcp-response inspect-delay");
            }
        },
    ),
    timeout("timeout check", BACK, "Maximum duration of a check after its connection.", |r, line| {
        r.timeout(line, |t| &mut t.check)
    }),
    timeout("timeout client", FRONT, "Maximum inactivity time on the client side.", |r, line| {
        r.timeout(line, |t| &mut t.client)
    }),
    timeout(
        "timeout client-hs",
        FRONT,
        "Maximum time for data that precedes the client's first byte, a PROXY protocol header; timeout client by \
         default.",
        |r, line| r.timeout(line, |t| &mut t.client_handshake),
    ),
    timeout(
        "timeout client-fin",
        FRONT,
        "The same once one side has ended; for an idle client of HTTP/2 that was asked to close.",
        |r, line| r.timeout(line, |t| &mut t.client_fin),
    ),
    timeout("timeout connect", BACK, "Maximum time for connecting to a server.", |r, line| {
        r.timeout(line, |t| &mut t.connect)
    }),
    timeout("timeout http-keep-alive", PROXY, "Maximum time until a client's next request.", |r, line| {
        r.timeout(line, |t| &mut t.http_keep_alive)
    }),
    timeout("timeout http-request", PROXY, "Maximum time for a request's head.", |r, line| {
        r.timeout(line, |t| &mut t.http_request)
    }),
    timeout("timeout queue", BACK, "Maximum time of a request in a queue.", |r, line| {
        r.timeout(line, |t| &mut t.queue)
    }),
    timeout("timeout server", BACK, "Maximum inactivity time on the server side.", |r, line| {
        r.timeout(line, |t| &mut t.server)
    }),
    timeout("timeout server-fin", BACK, "The same once one side has ended.", |r, line| {
        r.timeout(line, |t| &mut t.server_fin)
    }),
    timeout("timeout tarpit", PROXY, "The delay of a tarpitted request; 'timeout connect' by default.", |r, line| {
        r.timeout(line, |t| &mut t.tarpit)
    }),
    timeout("timeout tunnel", BACK, "Maximum inactivity time on both sides of a tunnel.", |r, line| {
        r.timeout(line, |t| &mut t.tunnel)
    }),
    row(
        "unique-id-format",
        PROXY,
        1,
        1,
        "FORMAT",
        "The format of a request's unique id, used by '%ID', 'unique-id' and the header of unique-id-header.",
        |r, line| r.settings.proxy.logging.unique_id = r.log_format(line, Place::UniqueId),
    ),
    row(
        "unique-id-header",
        PROXY,
        1,
        1,
        "NAME",
        "The header field that sends the unique id to the server.",
        |r, line| {
            r.settings.proxy.logging.unique_id_header = rule::header_name(r, line, 1);
        },
    ),
    fcgi::USE,
    row(
        "use-server",
        BACK.without(Contexts::DEFAULTS),
        1,
        MANY,
        "NAME|FORMAT [if|unless CONDITION]",
        "Selects the server: the first line that applies and whose server is up; a name with '%' is evaluated per \
         request.",
        |r, line| r.use_server(line),
    ),
    row(
        "use_backend",
        FRONT.without(Contexts::DEFAULTS),
        1,
        MANY,
        "NAME|FORMAT [if|unless CONDITION]",
        "Selects the backend: the first line that applies; a name with '%' is evaluated per request.",
        |r, line| r.use_backend(line),
    ),
]);
