//! Keywords that HAProxy 3.2 has removed, each with HAProxy's message about its replacement.

use crate::diagnostic::Diagnostics;
use crate::word::Line;

/// Message templates; `{}` is the keyword.
const REPLACE_HEADER: &str = "'http-request replace-header'";

/// Returns HAProxy's message about a removed keyword of a proxy; `None` for other keywords.
fn proxy(line: &Line) -> Option<String> {
    let (first, second) = (line.text(0), line.text(1));
    let since_2_1 =
        |instead: &str| Some(format!("The '{first}' directive is not supported anymore since HAProxy 2.1. {instead}"));
    let instead = |what: &str| since_2_1(&format!("Use {what} instead."));
    match (first, second) {
        ("cliexp" | "reqrep", _) => {
            instead("'http-request replace-path', 'http-request replace-uri' or 'http-request replace-header'")
        }
        ("reqirep", _) => instead(REPLACE_HEADER),
        ("reqdel" | "reqidel", _) => instead("'http-request del-header'"),
        ("reqdeny" | "reqideny", _) => instead("'http-request deny'"),
        ("reqallow" | "reqiallow", _) => instead("'http-request allow'"),
        ("reqtarpit" | "reqitarpit", _) => instead("'http-request tarpit'"),
        ("reqadd", _) => instead("'http-request add-header'"),
        ("reqpass" | "reqipass", _) => since_2_1("Please remove it."),
        ("srvexp" | "rsprep" | "rspirep", _) => instead("'http-response replace-header'"),
        ("rspdel" | "rspidel", _) => instead("'http-response del-header'"),
        ("rspdeny" | "rspideny", _) => instead("'http-response deny'"),
        ("rspadd", _) => instead("'http-response add-header'"),
        ("block", _) => since_2_1("Use 'http-request deny' which uses the exact same syntax."),
        ("redispatch" | "redisp", _) => since_2_1("Use 'option redispatch'."),
        ("clitimeout", _) => since_2_1("Use 'timeout client'."),
        ("srvtimeout", _) => since_2_1("Use 'timeout server'."),
        ("contimeout", _) => since_2_1("Use 'timeout connect'."),
        ("timeout", "clitimeout") => Some(
            "the 'timeout clitimeout' directive is not supported anymore since HAProxy 2.1. Use 'timeout client'."
                .to_owned(),
        ),
        ("monitor-net", net) => Some(format!(
            "'monitor-net' doesn't exist anymore. Please use 'http-request return status 200 if {{ src {net} }}' instead"
        )),
        ("mode", "health") => {
            Some("'mode health' doesn't exist anymore. Please use 'http-request return status 200' instead".to_owned())
        }
        ("grace", _) => Some("the 'grace' keyword is not supported any more since HAProxy version 2.5".to_owned()),
        ("appsession", _) => Some(
            "'appsession' is not supported anymore since HAProxy 1.6: 'stick store-response res.cook(NAME)' and \
             'stick match req.cook(NAME)' do the same"
                .to_owned(),
        ),
        ("option", "forceclose") => Some(
            "option 'forceclose' is not supported any more since HAProxy 2.0, please just remove it, or use \
             'option httpclose' if absolutely needed"
                .to_owned(),
        ),
        ("option", "http-tunnel") => Some(
            "option 'http-tunnel' is not supported any more since HAProxy 2.1, please just remove it, it shouldn't be \
             needed"
                .to_owned(),
        ),
        ("option", "http_proxy") => Some(
            "option 'http_proxy' is not supported any more since HAProxy 2.5. It can be more reliably implemented with \
             combinations of 'http-request set-dst' and 'http-request set-uri', and even 'http-request do-resolve' if \
             DNS resolution is desired"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Reports a removed keyword of a proxy, also after `no`; returns false if the line has none.
pub(crate) fn report(line: &Line, diagnostics: &mut Diagnostics) -> bool {
    match proxy(line) {
        Some(message) => {
            diagnostics.error(line.at(0), message);
            true
        }
        None => false,
    }
}
