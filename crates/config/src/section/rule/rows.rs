//! The actions, each with its rule sets, its arguments and its effect.

use super::*;
use crate::section::table::{Row, Table};

const HTTP: Contexts = Contexts::HTTP_REQUEST.or(Contexts::HTTP_RESPONSE);
const MESSAGE: Contexts = HTTP.or(Contexts::HTTP_AFTER_RESPONSE);
const AFTER: Contexts = Contexts::HTTP_AFTER_RESPONSE;
const EARLY: Contexts = Contexts::TCP_CONNECTION.or(Contexts::TCP_SESSION);
const TCP: Contexts = EARLY.or(Contexts::TCP_REQUEST).or(Contexts::TCP_RESPONSE);
const ANY: Contexts = TCP.or(HTTP);
const REQUEST: Contexts = Contexts::HTTP_REQUEST;
const TO_SERVER: Contexts = Contexts::HTTP_REQUEST.or(Contexts::TCP_REQUEST);
/// The rule sets that see contents, of either protocol.
const CONTENT: Contexts = MESSAGE.or(Contexts::TCP_REQUEST).or(Contexts::TCP_RESPONSE);
const EVERYWHERE: Contexts = MESSAGE.or(TCP);
const ADDRESS: Contexts = EARLY.or(TO_SERVER);

const fn row(
    name: &'static str,
    contexts: Contexts,
    usage: &'static str,
    docs: &'static str,
    parser: fn(&mut ActionReader<'_, '_>) -> Option<Action>,
) -> Row<ActionParser> {
    Row { name, contexts, min: 0, max: 0, usage, docs, parser: ActionParser(parser) }
}

const REPLY: &str = "[status N] [content-type T] [default-errorfiles | file F | lf-file F | string S | lf-string FORMAT] [hdr NAME FORMAT]…";

/// The actions; `lua.NAME` stands for all that scripts registered.
pub(crate) static ACTIONS: Table<ActionParser> = Table::new(&[
    row("accept", TCP, "", "Ends the rule set; the connection continues.", |_| Some(Action::Accept)),
    row("add-header", MESSAGE, "NAME FORMAT", "Adds a header field.", |a| {
        let (name, format) = a.field()?;
        Some(Action::AddHeader(name, format))
    }),
    row("add-acl", HTTP, "(FILE) FORMAT", "Adds a pattern to an ACL file, in memory, unless it exists.", |a| {
        a.edit_patterns(PatternEdit::Add)
    }),
    row("allow", MESSAGE, "", "Ends the rule set; the message continues.", |_| Some(Action::Accept)),
    row(
        "attach-srv",
        Contexts::TCP_SESSION,
        "BACKEND/SERVER [name EXPRESSION]",
        "Reverse HTTP: the client's connection of HTTP/2 becomes an idle connection to a server, which is sent requests \
         on it. The server has an 'rhttp@' address; with 'sni' or 'pool-conn-name', requests with the value of EXPRESSION \
         use the connection. The last rule that applies decides. Needs 'expose-experimental-directives' in 'global'.",
        |a| a.attach_server(),
    ),
    row(
        "auth",
        REQUEST,
        "[realm TEXT]",
        "Answers with 401, or 407 to a proxy request, which makes a browser ask for a user and a password; the realm \
         is the section's name by default.",
        |a| a.auth(),
    ),
    row(
        "cache-store",
        Contexts::HTTP_RESPONSE,
        "CACHE",
        "Stores the response in a cache, as its head is now, if it may be stored and 'cache-use' of the same cache has \
         seen the request.",
        |a| a.cache().map(Action::CacheStore),
    ),
    row(
        "cache-use",
        REQUEST,
        "CACHE",
        "Answers a GET or HEAD request from a cache if it has a response that may be used; the rules after this one \
         run first.",
        |a| a.cache().map(Action::CacheUse),
    ),
    row(
        "capture",
        MESSAGE.or(Contexts::TCP_REQUEST),
        "EXPRESSION len N | id SLOT",
        "Captures a sample for the log line: in a slot of its own, or in one that the frontend declares.",
        |a| a.capture(),
    ),
    row("limit", TO_SERVER, limit::USAGE, limit::DOCS, |a| a.limit().map(|rule| Action::Limit(Box::new(rule)))),
    row("del-acl", MESSAGE, "(FILE) FORMAT", "Removes a pattern from an ACL file, in memory.", |a| {
        a.edit_patterns(PatternEdit::Remove)
    }),
    row("del-map", MESSAGE, "(FILE) FORMAT", "Removes a key from a map file, in memory.", |a| {
        a.edit_patterns(PatternEdit::Remove)
    }),
    row(
        "del-header",
        MESSAGE,
        "NAME [-m str|beg|end|sub|reg]",
        "Removes all header fields of a name, or of names that match by the given method.",
        |a| a.delete_fields(),
    ),
    row(
        "switch-mode",
        Contexts::TCP_REQUEST,
        "http [proto h1]",
        "Upgrades a connection of a TCP frontend to HTTP from its first byte: its requests pass the HTTP rules and may \
         use HTTP backends only. Ends the set.",
        |a| a.switch_mode(),
    ),
    row(
        "disable-l7-retry",
        Contexts::HTTP_REQUEST,
        "",
        "Disables retries of the request; only a failed connection attempt is retried.",
        |_| Some(Action::DisableL7Retry),
    ),
    row(
        "deny",
        HTTP,
        "[deny_status N] [ANSWER as return]",
        "Answers with an error, 403 for a request and 502 for a response.",
        |a| {
            let status = if a.place == Place::HttpRequest { 403 } else { 502 };
            a.reply(status, true).map(Action::Deny)
        },
    ),
    row(
        "do-log",
        EVERYWHERE,
        "",
        "Writes a log line of the frontend, with what is known at this moment. Its step in a 'log-profile' has the name \
         of the rule set.",
        |_| Some(Action::DoLog),
    ),
    row(
        "do-resolve",
        TO_SERVER,
        "(SCOPE.NAME,SECTION[,ipv4|ipv6]) EXPRESSION",
        "Queries the name servers of a 'resolvers' section for the address of a name, and sets a variable to it if \
         there is one. The rule waits for the answer.",
        |a| a.do_resolve(),
    ),
    row(
        "early-hint",
        REQUEST,
        "NAME FORMAT",
        "Sends a 103 with this field to an HTTP/1.1 client immediately; adjacent rules without a condition share one \
         response.",
        |a| {
            let (name, format) = a.field()?;
            Some(Action::EarlyHint(name, format))
        },
    ),
    row(
        "close",
        Contexts::TCP_RESPONSE,
        "",
        "Ends the rule set and the connection to the server; what it has sent is passed on.",
        |_| Some(Action::CloseServer),
    ),
    row(
        "expect-netscaler-cip",
        Contexts::TCP_CONNECTION,
        "layer4",
        "The connection begins with a header of NetScaler's Client IP insertion protocol, with the number of its bind's \
         'accept-netscaler-cip', or 0.",
        |a| {
            if a.line.text(a.next) != "layer4" {
                a.reader.diagnostics.error(a.line.at(a.next), "'expect-netscaler-cip' only supports 'layer4'");
                return None;
            }
            a.next += 1;
            Some(Action::ExpectCip)
        },
    ),
    row(
        "expect-proxy",
        Contexts::TCP_CONNECTION,
        "layer4",
        "The connection begins with a PROXY protocol header, as with 'accept-proxy' of its 'bind'.",
        |a| {
            if a.line.text(a.next) != "layer4" {
                a.reader.diagnostics.error(a.line.at(a.next), "'expect-proxy' expects 'layer4'");
                return None;
            }
            a.next += 1;
            Some(Action::ExpectProxy)
        },
    ),
    row(
        "lua.NAME",
        CONTENT,
        "[ARG]…",
        "Runs an action that a script registered with core.register_action, with the declared number of arguments.",
        |a| a.lua(),
    ),
    row(
        "normalize-uri",
        REQUEST,
        "fragment-encode | fragment-strip | path-merge-slashes | path-strip-dot | path-strip-dotdot [full] | \
         percent-decode-unreserved [strict] | percent-to-uppercase [strict] | query-sort-by-name",
        "Normalizes the target; 'strict': a malformed percent sequence is answered with 400.",
        |a| a.normalize(),
    ),
    row(
        "pause",
        HTTP,
        "TIME|EXPRESSION",
        "Waits for this time, or this number of milliseconds, before the next rule.",
        |a| Some(Action::Carrier(Carrier::Pause(a.time_or()?))),
    ),
    row(
        "redirect",
        HTTP,
        "location|prefix|scheme FORMAT [code N] [drop-query] [append-slash] [keep-query] [ignore-empty] [set-cookie C] [set-cookie-fmt FORMAT] [clear-cookie C]",
        "Answers with a redirection.",
        |a| a.redirect().map(Action::Redirect),
    ),
    row("reject", Contexts::HTTP_REQUEST.or(TCP), "", "Closes the connection without an answer.", |_| {
        Some(Action::Reject)
    }),
    row(
        "replace-header",
        MESSAGE,
        "NAME REGEX FORMAT",
        "Replaces each value of a header field that matches entirely by the format, in which '\\1' is the first group.",
        |a| a.replace_field(false),
    ),
    row(
        "replace-path",
        REQUEST,
        "REGEX FORMAT",
        "Replaces the target's path, without its query, if it matches.",
        |a| a.replace_target(TargetPart::Path),
    ),
    row("replace-pathq", REQUEST, "REGEX FORMAT", "The same for path and query.", |a| {
        a.replace_target(TargetPart::PathAndQuery)
    }),
    row("replace-uri", REQUEST, "REGEX FORMAT", "The same for the whole target.", |a| {
        a.replace_target(TargetPart::Whole)
    }),
    row(
        "replace-value",
        MESSAGE,
        "NAME REGEX FORMAT",
        "As 'replace-header', for each of the comma-separated values.",
        |a| a.replace_field(true),
    ),
    row("return", HTTP, REPLY, "Answers with a response made by this rule.", |a| {
        a.reply(200, false).map(Action::Return)
    }),
    row(
        "sc-add-gpc",
        EVERYWHERE,
        "(ELEMENT,N) NUMBER|EXPRESSION",
        "Increases an element of a tracked counter's gpc.",
        |a| a.counter(DataKind::Gpc, true, None),
    ),
    row("sc-inc-gpc", EVERYWHERE, "(ELEMENT,N)", "Increments an element of a tracked counter's gpc.", |a| {
        a.counter(DataKind::Gpc, true, Some(1))
    }),
    row(
        "sc-inc-gpc0",
        EVERYWHERE,
        "[(N)]",
        "Increments a tracked counter's gpc0; without a number that of sc0.",
        |a| a.counter(DataKind::Gpc0, false, Some(1)),
    ),
    row(
        "sc-inc-gpc1",
        EVERYWHERE,
        "[(N)]",
        "Increments a tracked counter's gpc1; without a number that of sc0.",
        |a| a.counter(DataKind::Gpc1, false, Some(1)),
    ),
    row(
        "sc-set-gpt",
        EVERYWHERE,
        "(ELEMENT,N) NUMBER|EXPRESSION",
        "Sets an element of a tracked counter's gpt.",
        |a| a.counter(DataKind::Gpt, true, None),
    ),
    row(
        "sc-set-gpt0",
        EVERYWHERE,
        "[(N)] NUMBER|EXPRESSION",
        "Sets a tracked counter's gpt0; without a number that of sc0.",
        |a| a.counter(DataKind::Gpt0, false, None),
    ),
    row(
        "send-spoe-group",
        CONTENT.without(AFTER),
        "ENGINE GROUP",
        "Sends the messages of a group to the agents of a 'filter spoe' of this section, and waits for the answer.",
        |a| a.send_spoe_group(),
    ),
    row(
        "set-bandwidth-limit",
        CONTENT.without(AFTER),
        "NAME [limit SIZE|EXPRESSION] [period TIME|EXPRESSION]",
        "Enables a bandwidth filter of this section for the stream, with its own limit and period or, for one of single \
         streams, with these.",
        |a| a.set_bandwidth_limit(),
    ),
    row(
        "set-bc-mark",
        TO_SERVER,
        "MARK|EXPRESSION",
        "Sets the netfilter mark of packets to the server, which needs CAP_NET_ADMIN.",
        |a| a.socket(true, true),
    ),
    row("set-bc-tos", TO_SERVER, "TOS|EXPRESSION", "Sets the type of service of packets to the server.", |a| {
        a.socket(true, false)
    }),
    row(
        "set-dst",
        ADDRESS,
        "EXPRESSION",
        "Sets the destination address of the client's connection, as rules and \
     headers see it.",
        |a| a.address(AddressPart::Destination),
    ),
    row("set-dst-port", ADDRESS, "EXPRESSION", "Sets the destination port of the client's connection.", |a| {
        a.address(AddressPart::DestinationPort)
    }),
    row(
        "set-fc-mark",
        ANY,
        "MARK|EXPRESSION",
        "Sets the netfilter mark of packets to the client, which needs CAP_NET_ADMIN.",
        |a| a.socket(false, true),
    ),
    row("set-fc-tos", ANY, "TOS|EXPRESSION", "Sets the type of service of packets to the client.", |a| {
        a.socket(false, false)
    }),
    row("set-header", MESSAGE, "NAME FORMAT", "Adds a header field and removes all others of its name.", |a| {
        let (name, format) = a.field()?;
        Some(Action::SetHeader(name, format))
    }),
    row(
        "set-log-level",
        CONTENT,
        "emerg|alert|crit|err|warning|notice|info|debug|silent",
        "Sets the level of this stream's log line; silent: no line.",
        |a| {
            let word = a.line.text(a.next);
            if !a.has(a.next) {
                a.missing(a.next, "a level");
                return None;
            }
            let Some(level) = log::level(word) else {
                let near = suggest::nearest(word, log::level_names());
                let message = format!("'set-log-level': unknown log level '{word}'");
                a.reader.diagnostics.error(a.line.at(a.next), message).did_you_mean(near);
                return None;
            };
            a.next += 1;
            Some(Action::SetLogLevel(level))
        },
    ),
    row("set-map", MESSAGE, "(FILE) FORMAT FORMAT", "Sets a key of a map file to a value, in memory.", |a| {
        a.edit_patterns(PatternEdit::Set)
    }),
    row("set-mark", ANY, "MARK|EXPRESSION", "The former name of 'set-fc-mark'.", |a| a.socket(false, true)),
    row("set-method", REQUEST, "FORMAT", "Sets the request's method.", |a| {
        let format = a.format(a.next, "a method")?;
        a.next += 1;
        Some(Action::Edit(Edit::SetMethod(format)))
    }),
    row(
        "set-nice",
        HTTP.or(Contexts::TCP_REQUEST).or(Contexts::TCP_RESPONSE),
        "N",
        "No effect: it sets HAProxy's scheduling priority; streams of a worker take turns.",
        |a| a.nice(),
    ),
    row("set-path", REQUEST, "FORMAT", "Sets the target's path, without its query.", |a| {
        a.set_target(TargetPart::Path)
    }),
    row("set-pathq", REQUEST, "FORMAT", "Sets the target's path and query.", |a| {
        a.set_target(TargetPart::PathAndQuery)
    }),
    row(
        "set-priority-class",
        TO_SERVER,
        "EXPRESSION",
        "Sets the priority class in queues: lower classes go first, from -2047 to 2047; 0 by default.",
        |a| Some(Action::SetPriorityClass(a.expression()?)),
    ),
    row(
        "set-priority-offset",
        TO_SERVER,
        "EXPRESSION",
        "Moves the request within its class in queues, as if it had arrived this many milliseconds later, or earlier \
         if negative.",
        |a| Some(Action::SetPriorityOffset(a.expression()?)),
    ),
    row("set-query", REQUEST, "FORMAT", "Sets the target's query, the part after the '?'.", |a| {
        a.set_target(TargetPart::Query)
    }),
    row(
        "set-retries",
        TO_SERVER,
        "N|EXPRESSION",
        "Sets this stream's maximum number of retries of a failed connection, in place of 'retries'; 0 to 100.",
        |a| a.retries(),
    ),
    row("set-src", ADDRESS, "EXPRESSION", "Sets the client's address, as seen by rules, logs and headers.", |a| {
        a.address(AddressPart::Source)
    }),
    row("set-src-port", ADDRESS, "EXPRESSION", "Sets the client's port, as seen by rules, logs and headers.", |a| {
        a.address(AddressPart::SourcePort)
    }),
    row(
        "set-status",
        Contexts::HTTP_RESPONSE.or(AFTER),
        "N [reason TEXT]",
        "Sets the response's status, with its standard reason or this one.",
        |a| a.set_status(),
    ),
    row(
        "set-timeout",
        HTTP,
        "client|server|tunnel TIME|EXPRESSION",
        "Sets a timeout of this stream, in place of its proxy's; an expression is in milliseconds.",
        |a| a.set_timeout(),
    ),
    row("set-tos", ANY, "TOS|EXPRESSION", "The former name of 'set-fc-tos'.", |a| a.socket(false, false)),
    row("set-uri", REQUEST, "FORMAT", "Sets the whole target; Host follows its authority if it has one.", |a| {
        a.set_target(TargetPart::Whole)
    }),
    row(
        "set-var",
        EVERYWHERE,
        "(SCOPE.NAME[,CONDITION]…) EXPRESSION",
        "Sets a variable to a sample, if all conditions hold; the converter `set-var` has the same ones: `ifexists`, \
         `ifnotexists` (a `proc.` variable always exists), `ifset`, `ifnotset` (it has a value), `ifempty`, \
         `ifnotempty` (the sample is an empty text), `ifgt`, `iflt` (its integer is above or below the sample's).",
        |a| {
            let target = a.variable_to_set()?;
            Some(Action::SetVar(target, a.expression()?))
        },
    ),
    row("set-var-fmt", EVERYWHERE, "(SCOPE.NAME[,CONDITION]…) FORMAT", "The same with a string.", |a| {
        let target = a.variable_to_set()?;
        let format = a.format(a.next, "a format")?;
        a.next += 1;
        Some(Action::SetVarFormat(target, format))
    }),
    row(
        "silent-drop",
        ANY,
        "[rst-ttl N]",
        "Closes the connection without notifying the client: with TCP_REPAIR if permitted, else with a reset that \
         lives for one hop; 'rst-ttl': with a reset that lives for this many hops.",
        |a| a.silent_drop(),
    ),
    row(
        "store-call",
        CONTENT,
        "STORE COMMAND [FORMAT]… [set-var(SCOPE.NAME)] [on-error open|closed|value:V]",
        "Runs a command in a store; its arguments are formats, its reply may be assigned to a variable.",
        |a| a.store_call().map(Action::StoreCall),
    ),
    row(
        "strict-mode",
        MESSAGE,
        "on|off",
        "Whether an invalid edit ends the request with 500 (on, as at the start of each rule set), or is skipped.",
        |a| a.strict_mode(),
    ),
    row(
        "tarpit",
        Contexts::HTTP_REQUEST,
        "[deny_status N] [ANSWER as return]",
        "Delays the client for 'timeout tarpit', then answers with an error, 500 by default.",
        |a| a.reply(500, true).map(Action::Tarpit),
    ),
    row(
        "use-service",
        TO_SERVER,
        "lua.NAME | prometheus-exporter",
        "Answers with a service that a script registered with core.register_service, or, in http-request, with the \
         Prometheus exporter.",
        |a| a.service(),
    ),
    row(
        "track-scN",
        ANY,
        "EXPRESSION [table NAME]",
        "Counts the connection, session or request under a key of a stick table from here on, as counter N (0 to 2). A \
         counter that is already tracking is unchanged.",
        |a| a.track(),
    ),
    row("unset-var", EVERYWHERE, "(SCOPE.NAME)", "Removes a variable.", |a| a.variable().map(Action::UnsetVar)),
    row(
        "wait-for-body",
        HTTP,
        "time TIME [at-least BYTES]",
        "Waits for the body, or this many bytes of it, until it is complete or the buffer is full; a late request body \
         is answered with 408, a late response body with 504.",
        |a| a.wait_for_body(),
    ),
    row("wait-for-handshake", REQUEST, "", "No effect: it applies to TLS early data, which is not supported.", |_| {
        Some(Action::Nothing)
    }),
]);
