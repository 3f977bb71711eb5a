//! Options about the form of messages on the wire.

use super::keywords::option;
use super::{ProxyParser, ProxyReader, on};
use crate::catalogue::Contexts;
use crate::section::table::Row;
use crate::word::Line;

const FRONT: Contexts = Contexts::FRONT;
const BACK: Contexts = Contexts::BACK;

/// `option accept-invalid-http-request`.
pub(super) const INVALID_REQUEST: Row<ProxyParser> = option(
    "option accept-invalid-http-request",
    FRONT,
    "The former name of 'option accept-unsafe-violations-in-http-request'.",
    |r, line| {
        if r.former_name(line, "accept-unsafe-violations-in-http-request") {
            r.settings.proxy.options.unsafe_requests = true;
        }
    },
);

/// `option accept-invalid-http-response`.
pub(super) const INVALID_RESPONSE: Row<ProxyParser> = option(
    "option accept-invalid-http-response",
    BACK,
    "The former name of 'option accept-unsafe-violations-in-http-response'.",
    |r, line| {
        if r.former_name(line, "accept-unsafe-violations-in-http-response") {
            r.settings.proxy.options.unsafe_responses = true;
        }
    },
);

/// `option accept-unsafe-violations-in-http-request`.
pub(super) const UNSAFE_REQUEST: Row<ProxyParser> = option(
    "option accept-unsafe-violations-in-http-request",
    FRONT,
    "Accepts requests that are malformed in these ways: '#' or bytes beyond ASCII in the target, invalid bytes in a \
     field's name, NUL in a value, a Host that differs from the target's, a version that is not HTTP's. Readers that \
     interpret them differently may be deceived.",
    |r, line| r.settings.proxy.options.unsafe_requests = on(line),
);

/// `option accept-unsafe-violations-in-http-response`.
pub(super) const UNSAFE_RESPONSE: Row<ProxyParser> = option(
    "option accept-unsafe-violations-in-http-response",
    BACK,
    "Accepts responses that are malformed in these ways: invalid bytes in a field's name, NUL in a value, a version \
     that is not HTTP's.",
    |r, line| r.settings.proxy.options.unsafe_responses = on(line),
);

/// `option disable-h2-upgrade`.
pub(super) const NO_H2_UPGRADE: Row<ProxyParser> = option(
    "option disable-h2-upgrade",
    FRONT,
    "A connection of HTTP/1 that begins with the preface of HTTP/2 is not served in HTTP/2.",
    |r, line| r.settings.proxy.options.no_h2_upgrade = on(line),
);

/// `option h1-case-adjust-bogus-client`.
pub(super) const CASE_CLIENT: Row<ProxyParser> = option(
    "option h1-case-adjust-bogus-client",
    FRONT,
    "Names of fields sent to clients have the case that 'h1-case-adjust' defines.",
    |r, line| r.settings.proxy.options.case_for_clients = on(line),
);

/// `option h1-case-adjust-bogus-server`.
pub(super) const CASE_SERVER: Row<ProxyParser> = option(
    "option h1-case-adjust-bogus-server",
    BACK,
    "Names of fields sent to servers have the case that 'h1-case-adjust' defines.",
    |r, line| r.settings.proxy.options.case_for_servers = on(line),
);

/// `option http-drop-request-trailers`.
pub(super) const REQUEST_TRAILERS: Row<ProxyParser> =
    option("option http-drop-request-trailers", BACK, "Trailers of requests are not forwarded.", |r, line| {
        r.settings.proxy.options.drop_request_trailers = on(line)
    });

/// `option http-drop-response-trailers`.
pub(super) const RESPONSE_TRAILERS: Row<ProxyParser> =
    option("option http-drop-response-trailers", FRONT, "Trailers of responses are not forwarded.", |r, line| {
        r.settings.proxy.options.drop_response_trailers = on(line)
    });

impl ProxyReader<'_> {
    /// HAProxy's warning about an option's former name, which can't be negated; `false`: it was.
    fn former_name(&mut self, line: &Line, name: &str) -> bool {
        let former = line.text(1);
        if on(line) {
            let message = format!("option '{former}' is deprecated. please use 'option {name}' if absolutely needed");
            self.diagnostics.warning(line.at(1), message);
        } else {
            let message = format!("negation/default is not supported for option '{former}'");
            self.diagnostics.error(line.at(1), message).hint(format!("write 'no option {name}'"));
        }
        on(line)
    }
}
