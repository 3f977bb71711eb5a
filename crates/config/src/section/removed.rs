//! Keywords that HAProxy 3.2 has removed, each with HAProxy's message about its replacement.

use crate::diagnostic::Diagnostics;
use crate::word::Line;

/// Returns HAProxy's message about a removed keyword of a proxy; `None` for other keywords.
fn proxy(line: &Line) -> Option<String> {
    let (first, second) = (line.text(0), line.text(1));
    let directive =
        |rest: &str| Some(format!("The '{first}' directive is not supported anymore since HAProxy 2.1. {rest}"));
    let instead = |what: &str| directive(&format!("Use {what} instead."));
    let timeout = |old: &str, new: &str| {
        Some(format!("the '{old}' directive is not supported anymore since HAProxy 2.1. Use 'timeout {new}'."))
    };
    match (first, second) {
        ("cliexp" | "reqrep", _) => {
            instead("'http-request replace-path', 'http-request replace-uri' or 'http-request replace-header'")
        }
        ("reqirep", _) => instead("'http-request replace-header'"),
        ("reqdel" | "reqidel", _) => instead("'http-request del-header'"),
        ("reqdeny" | "reqideny", _) => {
            Some(format!("The '{first}' not supported anymore since HAProxy 2.1. Use 'http-request deny' instead."))
        }
        ("reqallow" | "reqiallow", _) => instead("'http-request allow'"),
        ("reqtarpit" | "reqitarpit", _) => instead("'http-request tarpit'"),
        ("reqadd", _) => instead("'http-request add-header'"),
        ("reqpass" | "reqipass", _) => Some(format!("The '{first}' not supported anymore since HAProxy 2.1.")),
        ("srvexp" | "rsprep" | "rspirep", _) => instead("'http-response replace-header'"),
        ("rspdel" | "rspidel", _) => directive("Use 'http-response del-header' ."),
        ("rspdeny" | "rspideny", _) => instead("'http-response deny'"),
        ("rspadd", _) => instead("'http-response add-header'"),
        ("block", _) => directive("Use 'http-request deny' which uses the exact same syntax."),
        ("redispatch" | "redisp", _) => Some(format!(
            "keyword '{first}' directive is not supported anymore since HAProxy 2.1. Use 'option redispatch'."
        )),
        ("clitimeout", _) | ("timeout", "clitimeout") => timeout("clitimeout", "client"),
        ("srvtimeout", _) | ("timeout", "srvtimeout") => timeout("srvtimeout", "server"),
        ("contimeout", _) | ("timeout", "contimeout") => timeout("contimeout", "connect"),
        ("monitor-net", net) => Some(format!(
            "'monitor-net' doesn't exist anymore. Please use 'http-request return status 200 if {{ src {net} }}' instead."
        )),
        ("mode", "health") => {
            Some("'mode health' doesn't exist anymore. Please use 'http-request return status 200' instead.".to_owned())
        }
        ("grace", _) => Some("the 'grace' keyword is not supported any more since HAProxy version 2.5.".to_owned()),
        ("appsession", _) => Some("'appsession' is not supported anymore since HAProxy 1.6.".to_owned()),
        ("bind-process", _) => Some("'bind-process' is not supported anymore.".to_owned()),
        ("option", "forceclose") => Some(
            "option 'forceclose' is not supported any more since HAProxy 2.0, please just remove it, or use \
             'option httpclose' if absolutely needed."
                .to_owned(),
        ),
        ("option", "http-tunnel") => Some(
            "option 'http-tunnel' is not supported any more since HAProxy 2.1, please just remove it, it shouldn't be \
             needed."
                .to_owned(),
        ),
        ("option", "http_proxy") => Some(
            "option 'http_proxy' is not supported any more since HAProxy 2.5. This option stopped working in HAProxy 1.9 \
             and usually had nasty side effects. It can be more reliably implemented with combinations of \
             'http-request set-dst' and 'http-request set-uri', and even 'http-request do-resolve' if DNS resolution is \
             desired."
                .to_owned(),
        ),
        ("option", "httpclog") => Some("unknown option 'httpclog'; did you mean 'httplog' maybe ?".to_owned()),
        ("option", "http-use-htx") => Some("unknown option 'http-use-htx'.".to_owned()),
        _ => None,
    }
}

/// What replaces a removed word, where HAProxy's message does not say it.
fn hint(line: &Line) -> Option<&'static str> {
    Some(match (line.text(0), line.text(1)) {
        ("appsession", _) => "'stick store-response res.cook(NAME)' and 'stick match req.cook(NAME)' do the same",
        ("option", "httpclog") => "'option httplog clf' does it",
        ("option", "http-use-htx") => "remove the line",
        ("bind-process", _) => "remove the line: there is one process",
        ("grace", _) => "'grace' of 'global' delays a soft stop",
        _ => "'sluicegate migrate FILE' rewrites such lines",
    })
}

/// Reports a removed keyword of `global`; returns false if the line has none.
pub(crate) fn report_global(line: &Line, diagnostics: &mut Diagnostics) -> bool {
    let (message, hint) = match (line.text(0), line.text(1)) {
        ("debug", _) => ("unknown keyword 'debug' in 'global' section", "'haproxy -d' does it"),
        ("nosepoll", _) => {
            ("unknown keyword 'nosepoll' in 'global' section; did you mean 'noepoll' maybe ?", "remove it")
        }
        ("tune.chksize", _) => {
            ("option 'tune.chksize' is not supported any more (tune.bufsize is used instead).", "remove the line")
        }
        ("stats", "bind-process") => {
            ("'stats bind-process' is not supported anymore.", "remove the line: there is one process")
        }
        _ => return false,
    };
    diagnostics.error(line.at(0), message).hint(hint);
    true
}

/// Reports a removed keyword of a proxy, also after `no`; returns false if the line has none.
pub(crate) fn report(line: &Line, diagnostics: &mut Diagnostics) -> bool {
    match proxy(line) {
        Some(message) => {
            let error = diagnostics.error(line.at(0), message);
            if let Some(hint) = hint(line) {
                error.hint(hint);
            }
            true
        }
        None => false,
    }
}
