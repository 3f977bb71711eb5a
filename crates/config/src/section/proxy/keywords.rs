//! The keywords of proxies, each with its sections, its arguments, its effect and its parser.

use super::{ProxyParser, ProxyReader, check, compression, connection, logging, on, servers, stats, wire};
use crate::catalogue::{Contexts, Place};
use crate::model::{ConnectionMode, HttpReuse, Mode};
use crate::section::table::{MANY, Row, Table};
use crate::section::{bind, rule};
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
        "Declares a test; lines of one name are or-ed.",
        |r, line| r.acl(line),
    ),
    row("bind-process", PROXY, 1, MANY, "all|odd|even|NUMBER…", crate::section::bind::ONE_PROCESS, |_, _| ()),
    row(
        "backlog",
        FRONT,
        1,
        1,
        "N",
        "Length of the kernel's queues of connections that wait to be accepted; the frontend's maxconn by default.",
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
        "How servers are chosen; weighted round robin. 'first', 'leastconn', 'random' and turns pass full servers over, \
         a hash waits for its own. A request without the key takes its turn.",
        |r, line| r.balance(line),
    ),
    row(
        "bind",
        FRONT.without(Contexts::DEFAULTS),
        1,
        MANY,
        "ADDRESS[,ADDRESS]… [OPTION]…",
        "Listens: ADDRESS:PORT, :PORT, *:PORT, [V6]:PORT, PORT-PORT, /PATH, unix@PATH, abns@NAME or fd@N.",
        |r, line| {
            if let Some(bind) = bind::bind(line, r.loaded.files, r.diagnostics) {
                r.settings.proxy.binds.push(bind);
            }
        },
    ),
    row(
        "capture",
        FRONT.without(Contexts::DEFAULTS),
        4,
        5,
        "request header NAME len N | response header NAME len N | cookie NAME len N",
        "Keeps a header's last value, or the first cookie whose name starts so, for the log line.",
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
        "A cookie that names the server which a client was at, by the servers' 'cookie', and keeps it there.",
        |r, line| r.persistence_cookie(line),
    ),
    row(
        "declare capture",
        FRONT.without(Contexts::DEFAULTS),
        3,
        3,
        "request|response len N",
        "Makes a slot that the 'capture' actions of this frontend and its backends fill.",
        |r, line| r.declare_capture(line),
    ),
    servers::DEFAULTS,
    stats::DESCRIPTION,
    row("default_backend", FRONT, 1, 1, "NAME", "The backend where no use_backend applies.", |r, line| {
        r.settings.proxy.default_backend = r.backend(line, 1);
        r.settings.default_backend_at = Some(line.at(1));
    }),
    row("disabled", PROXY, 0, 0, "", "The section is read, checked and left alone.", |r, _| {
        r.settings.proxy.disabled = true
    }),
    row(
        "dynamic-cookie-key",
        BACK,
        1,
        1,
        "KEY",
        "What the values of 'cookie … dynamic' are made with, besides the servers' addresses.",
        |r, line| r.settings.proxy.dynamic_cookie_key = Some(line.text(1).to_owned()),
    ),
    row("enabled", PROXY, 0, 0, "", "Undoes a 'disabled' of the defaults.", |r, _| r.settings.proxy.disabled = false),
    row(
        "error-log-format",
        FRONT,
        1,
        1,
        "FORMAT",
        "The line of a connection that failed before its first request was understood.",
        |r, line| r.settings.proxy.logging.error_line = r.log_format(line, Place::Log),
    ),
    row(
        "errorfile",
        PROXY,
        2,
        2,
        "STATUS FILE",
        "The whole response that stands for the page of a status. It is read at start; an empty file closes the \
         connection without an answer. What is refused before its head is complete gets the built-in page, or silence.",
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
    row("errorloc302", PROXY, 2, 2, "STATUS URL", "A redirection (302) in place of a page.", |r, line| {
        r.error_location(line, 302)
    }),
    row(
        "errorloc303",
        PROXY,
        2,
        2,
        "STATUS URL",
        "A redirection (303, to be fetched by GET) in place of a page.",
        |r, line| r.error_location(line, 303),
    ),
    compression::FILTER,
    row(
        "force-persist",
        BACK.without(Contexts::DEFAULTS),
        2,
        MANY,
        "if|unless CONDITION",
        "Clients whose cookie or table entry names a server that is down are sent there all the same.",
        |r, line| r.persist_rule(line, true),
    ),
    row(
        "fullconn",
        BACK,
        1,
        1,
        "N",
        "Streams in the backend at which servers with a 'minconn' reach their 'maxconn'; a tenth of the maxconn of the \
         frontends that name the backend.",
        |r, line| {
            if let Some(n) = r.leading_integer(line, 1, 1, i64::from(i32::MAX)) {
                r.settings.proxy.fullconn = Some(n as u32);
            }
        },
    ),
    row(
        "hash-balance-factor",
        BACK,
        1,
        1,
        "PERCENT",
        "With 'hash-type consistent' and 'random', no server gets more than this share of the average load of its \
         weight: the next one on the ring does; 0: no bound.",
        |r, line| r.hash_balance_factor(line),
    ),
    row(
        "hash-preserve-affinity",
        BACK,
        1,
        1,
        "always|maxconn|maxqueue",
        "With 'hash-type consistent', whether a server without a free slot, or with a full queue, is passed over for \
         the next one on the ring; always: it is not.",
        |r, line| r.hash_preserve_affinity(line),
    ),
    row(
        "hash-type",
        BACK,
        1,
        3,
        "map-based|consistent [sdbm|djb2|wt6|crc32|none [avalanche]]",
        "How a hash becomes a server: by a table of all weights, or by the nearest place on a ring, and with which \
         function; map-based sdbm. 'none' takes the key as a number.",
        |r, line| r.hash_type(line),
    ),
    row(
        "http-after-response",
        PROXY,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for every response that leaves, a server's and those made here; see the actions. What such rules wait \
         for is waited for 5 s at most: a list that takes longer ends there.",
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
        "What is answered in place of the page of a status, with formats made for each request.",
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
    row("http-send-name-header", BACK, 1, 1, "NAME", "Tells a server its name in this field.", |r, line| {
        r.settings.proxy.send_name_header = rule::header_name(r, line, 1)
    }),
    row(
        "http-reuse",
        BACK,
        1,
        1,
        "never|safe|aggressive|always",
        "When idle server connections are shared between clients; safe.",
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
        2,
        MANY,
        "if|unless CONDITION",
        "The cookie is neither obeyed nor set.",
        |r, line| r.persist_rule(line, false),
    ),
    row(
        "log",
        PROXY,
        1,
        MANY,
        "global | TARGET [len N] [format F] [sample RANGES:SIZE] FACILITY [LEVEL [MIN]]",
        "Where the access log goes.",
        |r, line| r.log(line),
    ),
    servers::STATE,
    row("log-format", FRONT, 1, 1, "FORMAT", "The line that is logged of a stream.", |r, line| r.log_line(line)),
    row(
        "log-format-sd",
        FRONT,
        1,
        1,
        "FORMAT",
        "The structured data of log targets with 'format rfc5424'.",
        |r, line| r.settings.proxy.logging.structured = r.log_format(line, Place::Log),
    ),
    row("log-tag", PROXY, 1, 1, "TAG", "The tag in the headers of this proxy's log lines.", |r, line| r.log_tag(line)),
    row(
        "maxconn",
        FRONT,
        1,
        1,
        "N",
        "Connections that the frontend serves at a time; more wait in the kernel.",
        |r, line| {
            if let Some(n) = r.leading_integer(line, 1, 0, i64::from(i32::MAX)) {
                r.settings.proxy.maxconn = (n > 0).then_some(n as u32);
            }
        },
    ),
    row("mode", PROXY, 1, 1, "tcp|http", "Whether bytes or HTTP messages are relayed; tcp.", |r, line| {
        match line.text(1) {
            mode @ ("health" | "log" | "spop" | "haterm") => {
                r.diagnostics.error(line.at(1), format!("'mode {mode}' is not supported yet"));
            }
            _ => {
                if let Some(mode) = r.one_of(line, 1, &[("tcp", Mode::Tcp), ("http", Mode::Http)]) {
                    r.settings.proxy.mode = mode;
                }
            }
        }
    }),
    row(
        "monitor fail",
        FRONT.without(Contexts::DEFAULTS),
        2,
        MANY,
        "if|unless CONDITION",
        "'monitor-uri' answers 503 \
         where this holds.",
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
        "A request with exactly this target is answered with 200 before any rule, and not logged.",
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
        "A request whose client left is given up while it waits for a server.",
        |r, line| r.settings.proxy.options.abortonclose = on(line),
    ),
    option(
        "option allbackups",
        BACK,
        "All backup servers serve once no other does, not the first alone.",
        |r, line| r.settings.proxy.options.all_backups = on(line),
    ),
    option("option dontlog-normal", FRONT, "Streams without any failure, retry or 5xx are not logged.", |r, line| {
        r.settings.proxy.logging.only_errors = on(line)
    }),
    option("option dontlognull", FRONT, "Connections that sent nothing are not logged.", |r, line| {
        r.settings.proxy.options.dontlognull = on(line)
    }),
    row(
        "option forwardfor",
        PROXY,
        0,
        5,
        "[except NETWORK] [header NAME] [if-none]",
        "Adds the client's address in X-Forwarded-For.",
        |r, line| r.forwardfor(line),
    ),
    option(
        "option http-buffer-request",
        PROXY,
        "The request's body is waited for before any rule runs, until it is complete or the buffer is full, within 'timeout http-request'.",
        |r, line| r.settings.proxy.options.buffer_request = on(line),
    ),
    option(
        "option http-ignore-probes",
        FRONT,
        "Connections that end before a request get no answer and no log line.",
        |r, line| r.settings.proxy.options.http_ignore_probes = on(line),
    ),
    option(
        "option http-use-proxy-header",
        FRONT,
        "A request whose target names a host is one for a proxy: its credentials are those of Proxy-Authorization, and \
         'http-request auth' answers with 407.",
        |r, line| r.settings.proxy.options.use_proxy_header = on(line),
    ),
    option("option http-keep-alive", PROXY, "Connections are kept on both sides; the default.", |r, line| {
        r.connection(line, ConnectionMode::KeepAlive)
    }),
    option("option http-server-close", PROXY, "The server's connection is closed after each response.", |r, line| {
        r.connection(line, ConnectionMode::ServerClose)
    }),
    option("option httpclose", PROXY, "Both connections are closed after each response.", |r, line| {
        r.connection(line, ConnectionMode::Close)
    }),
    check::HTTPCHK,
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
        "As httplog, with what HAProxy adds about TLS; every connection is a plain one so far.",
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
        "The line is written once the response's head has come or a TCP connection stands; what is then unfinished \
         has a '+' before it.",
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
    option("option disable-h2-upgrade", FRONT, "Changes nothing: HTTP/2 is not spoken.", |_, _| ()),
    option("option splice-auto", PROXY, "Changes nothing: it tunes how HAProxy passes bytes on, not which.", |_, _| ()),
    option(
        "option splice-request",
        PROXY,
        "Changes nothing: it tunes how HAProxy passes bytes on, not which.",
        |_, _| (),
    ),
    option(
        "option splice-response",
        PROXY,
        "Changes nothing: it tunes how HAProxy passes bytes on, not which.",
        |_, _| (),
    ),
    connection::SERVER_PROBES,
    option("option tcp-smart-accept", FRONT, "Changes nothing but which packets acknowledge.", |_, _| ()),
    option("option tcp-smart-connect", BACK, "Changes nothing but which packets acknowledge.", |_, _| ()),
    connection::PROBES,
    option("option persist", BACK, "A server that is down is still asked for by those who were at it.", |r, line| {
        r.settings.proxy.options.persist = on(line)
    }),
    check::LDAP,
    option(
        "option log-health-checks",
        BACK,
        "Every check that ends otherwise than the one before is logged.",
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
        "Retries go to another server: the last one, or every nth.",
        |r, line| r.redispatch(line),
    ),
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
        "Connections that the frontend accepts in a second; more wait in the kernel. 0: without a limit.",
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
        "As 'http-request redirect', behind all http-request rules.",
        |r, line| {
            r.step(line, "redirect");
            if let Some(rule) = rule::redirect_line(r, line) {
                r.settings.redirects.push(rule);
            }
        },
    ),
    row("retries", BACK, 1, 1, "N", "How often a failed connection is tried again; 3.", |r, line| {
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
        "What a request that is still at hand is sent once more for, as often as 'retries' says; conn-failure. \
         0rtt-rejected changes nothing, as no early data is sent.",
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
        "Looks up or stores under a key of a stick table which server the client is at.",
        |r, line| r.stick(line),
    ),
    row(
        "stick-table",
        NO_DEFAULTS,
        1,
        MANY,
        "type ip|ipv6|integer|string [len N]|binary [len N] size N [expire TIME] [nopurge] [srvkey name|addr] [brates-factor N] [store DATA,…]",
        "A table by the section's name: what clients are counted by, and what keeps them at a server.",
        |r, line| r.stick_table(line),
    ),
    row(
        "tcp-request connection",
        FRONT,
        1,
        MANY,
        "ACTION… [if|unless CONDITION]",
        "A rule for new connections.",
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
        "A rule for what a client sends.",
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
        "How long content rules wait for data: a condition that can't be decided on what came is tried again with \
         more, until the delay, the client's side or the buffer ends.",
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
        "A rule for connections that were accepted, before their first byte is waited for.",
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
        "A rule for what a server sends.",
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
        "The same for what a server sends in 'mode tcp'; in 'mode http' rules see what came with the head.",
        |r, line| {
            if let Some(time) = r.time(line, 2) {
                r.settings.proxy.response_inspect_delay = time;
                r.again(line, "tcp-response inspect-delay");
            }
        },
    ),
    timeout("timeout check", BACK, "How long a check may take once it is connected.", |r, line| {
        r.timeout(line, |t| &mut t.check)
    }),
    timeout("timeout client", FRONT, "How long a client may be silent.", |r, line| r.timeout(line, |t| &mut t.client)),
    timeout(
        "timeout client-hs",
        FRONT,
        "How long a client may take for what precedes its first byte, a PROXY protocol header; timeout client by default.",
        |r, line| r.timeout(line, |t| &mut t.client_handshake),
    ),
    timeout("timeout client-fin", FRONT, "The same once one side has ended.", |r, line| {
        r.timeout(line, |t| &mut t.client_fin)
    }),
    timeout("timeout connect", BACK, "How long a connection to a server may take.", |r, line| {
        r.timeout(line, |t| &mut t.connect)
    }),
    timeout("timeout http-keep-alive", PROXY, "How long a client may wait before its next request.", |r, line| {
        r.timeout(line, |t| &mut t.http_keep_alive)
    }),
    timeout("timeout http-request", PROXY, "How long a request's head may take.", |r, line| {
        r.timeout(line, |t| &mut t.http_request)
    }),
    timeout("timeout queue", BACK, "How long a request may wait for a server.", |r, line| {
        r.timeout(line, |t| &mut t.queue)
    }),
    timeout("timeout server", BACK, "How long a server may be silent.", |r, line| r.timeout(line, |t| &mut t.server)),
    timeout("timeout server-fin", BACK, "The same once one side has ended.", |r, line| {
        r.timeout(line, |t| &mut t.server_fin)
    }),
    timeout(
        "timeout tarpit",
        PROXY,
        "How long a tarpitted request is kept; without it 'timeout connect' is.",
        |r, line| r.timeout(line, |t| &mut t.tarpit),
    ),
    timeout("timeout tunnel", BACK, "How long both sides of a tunnel may be silent.", |r, line| {
        r.timeout(line, |t| &mut t.tunnel)
    }),
    row(
        "unique-id-format",
        PROXY,
        1,
        1,
        "FORMAT",
        "What makes a request's unique id: '%ID', 'unique-id' and the header of unique-id-header.",
        |r, line| r.settings.proxy.logging.unique_id = r.log_format(line, Place::UniqueId),
    ),
    row("unique-id-header", PROXY, 1, 1, "NAME", "The header field that tells a server the unique id.", |r, line| {
        r.settings.proxy.logging.unique_id_header = rule::header_name(r, line, 1);
    }),
    row(
        "use-server",
        BACK.without(Contexts::DEFAULTS),
        1,
        MANY,
        "NAME|FORMAT [if|unless CONDITION]",
        "The server, the first that applies and is up; a name with '%' is computed per request.",
        |r, line| r.use_server(line),
    ),
    row(
        "use_backend",
        FRONT.without(Contexts::DEFAULTS),
        1,
        MANY,
        "NAME|FORMAT [if|unless CONDITION]",
        "The backend, the first that applies; a name with '%' is computed per request.",
        |r, line| r.use_backend(line),
    ),
]);
