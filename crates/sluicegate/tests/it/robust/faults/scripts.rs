//! Replies of scripts: actions that end a transaction, and services.

use super::*;

const SCRIPT: &str = r#"
core.register_action('plain', { 'http-req' }, function(txn)
  txn:done(txn:reply{ status = 403, headers = { ['x-a'] = { '1' } }, body = 'no' })
end)
core.register_action('ends', { 'tcp-req', 'http-req', 'http-res', 'tcp-res' }, function(txn) txn:done() end)
core.register_action('late', { 'http-res' }, function(txn) txn:done(txn:reply{ status = 418, body = 'tea' }) end)
core.register_action('denies', { 'tcp-req', 'http-req', 'http-res' }, function(txn) return act.DENY end)
core.register_action('aborts', { 'http-req', 'http-res' }, function(txn) return act.ABORT end)
core.register_action('invalid', { 'http-req', 'http-res' }, function(txn) return act.INVALID end)
core.register_action('errs', { 'http-req', 'http-res' }, function(txn) return act.ERROR end)
core.register_action('stops', { 'http-req' }, function(txn) return act.STOP end)
core.register_action('raises', { 'http-req' }, function(txn) error('x') end)
core.register_service('hello', 'http', function(applet)
  applet:set_status(201)
  applet:add_header('content-length', '5')
  applet:start_response()
  applet:send('hello')
end)
core.register_service('slow', 'http', function(applet)
  applet:receive()
  applet:set_status(200)
  applet:start_response()
  applet:send('x')
end)
core.register_service('line', 'tcp', function(applet) applet:send('hello ' .. applet:getline()) end)
"#;

#[rustfmt::skip]
fn replies() -> Vec<Case> {
    vec![
        case("is replied to", &["http-request lua.plain"], vec![send(GET), Finish], vec![]),
        case("is replied to with a body", &["http-request lua.plain"], vec![send(HALF_A_POST), Wait("no"), Finish], vec![]),
        case("is ended", &["http-request lua.ends"], vec![send(GET), Finish], vec![]),
        case("is denied", &["http-request lua.denies"], vec![send(GET), Finish], vec![]),
        case("is invalid", &["http-request lua.invalid"], vec![send(GET), Finish], vec![]),
        case("is an error", &["http-request lua.errs"], vec![send(GET), Finish], vec![]),
        case("is stopped", &["http-request lua.stops", "http-request deny"], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("raises", &["http-request lua.raises"], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("has its response replaced", &["http-response lua.late"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 logs no time of the response, 3.2 does", "HTTP/1.1 418 I'm a teapot | \"tea\" [closed]\ncase/s N/N/N/N/N 418 113 - - LH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has its response ended", &["http-response lua.ends"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 logs no time of the response, 3.2 does", " | \"\" [closed]\ncase/s N/N/N/N/N 0 51 - - LH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has its response denied", &["http-response lua.denies"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 answers with the page of a status that nobody set, that of 200", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/N/N 502 260 - - PH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("is aborted", &["http-request lua.aborts"], vec![send(GET), Finish], vec![])
            .instead("2.6 goes on to the server and logs a refused request after the server's timeout", "HTTP/1.1 503 Service Unavailable | \"<html><body><h1>503 Service Unavailable</h1>\\nNo server is available to handle this request.\\n</body></html>\\n\" [closed]\ncase/<NOSRV> N/-1/-1/-1/N 503 217 - - PR-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has its response aborted", &["http-response lua.aborts"], vec![send(GET)], vec![head(), send(OK), Logged])
            .instead("2.6 holds both connections and never logs", " | \"\" [closed]\ncase/s N/N/N/N/N 200 51 - - PH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("has an invalid response", &["http-response lua.invalid"], vec![send(GET), Finish], vec![head(), send(OK), Logged]),
        case("has an error for a response", &["http-response lua.errs"], vec![send(GET), Finish], vec![head(), send(OK), Logged])
            .instead("2.6 logs no time of the response, 3.2 does", "HTTP/1.1 500 Internal Server Error | \"<html><body><h1>500 Internal Server Error</h1>\\nAn internal server error occurred.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/N/N 500 259 - - IH-- N/1/0/0/0 0/0 \"GET /a HTTP/1.1\""),
        case("is served", &["http-request use-service lua.hello"], vec![send(GET), Wait("hello"), Finish], vec![]),
        // HAProxy logs no times where the FIN comes before the service has begun.
        case("closes while it is served", &["http-request use-service lua.slow"], vec![send(HALF_A_POST), Counted, Finish], vec![]),
        // Without HTTP.
        case("tcp: is ended", &["mode tcp", "option tcplog", "tcp-request content lua.ends"], vec![Finish], vec![]),
        case("tcp: is denied", &["mode tcp", "option tcplog", "tcp-request content lua.denies"], vec![Finish], vec![]),
        case("tcp: response ended", &["mode tcp", "option tcplog", "tcp-response content lua.ends"], vec![], vec![send("y"), Logged]),
        case("tcp: is served", &["mode tcp", "option tcplog", "tcp-request content use-service lua.line"], vec![send("you\n"), Wait("you"), Finish], vec![]),
    ]
}

#[test]
fn replies_of_scripts_are_told_and_logged_as_haproxy_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("replies.lua");
    std::fs::write(&script, SCRIPT).expect("writable");
    check_with(&format!("    lua-load {}\n", script.display()), &replies());
}
