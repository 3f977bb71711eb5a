//! The four hooks over sockets, in HTTP and in TCP mode, and faults in the middle of a request.

use sluicegate_testkit::{Client, wait_for};
use sluicegate_wire::engine::Engine;

use super::fixture::{shared, unlimited};
use super::traffic::Gate;
use crate::support::{OK, Origin};

const TCP: &str = "core.register_action('greet', {'tcp-req'}, function(txn, word)
      core.Info(word .. ' ' .. txn.sf:src() .. ' ' .. tostring(txn.f:method()))
      txn:set_var('txn.seen', 'by request') end, 1)
    core.register_action('answer', {'tcp-res'}, function(txn) core.Info('response ' .. txn:get_var('txn.seen')) end)
    core.register_action('refuse', {'tcp-req', 'tcp-res'}, function() return act.DENY end)
    core.register_action('done', {'tcp-req'}, function(txn) core.yield() txn:done() end)";

fn tcp(origin: &Origin, rules: &str) -> Gate {
    let server = format!(" mode tcp\n{rules} server s {}\n", origin.address);
    Gate::start(1, shared(TCP), &server)
}

#[test]
fn tcp_hooks_see_a_session_and_may_end_it() {
    let origin = Origin::new();
    let gate = tcp(&origin, " tcp-request content lua.greet hello\n tcp-response content lua.answer\n");
    let mut client = Client::connect(&gate.address.to_string());
    client.send("ping");
    let mut peer = origin.accept();
    assert_eq!(peer.read_exact(4), b"ping");
    peer.send("pong");
    drop(peer);
    assert_eq!(client.read_to_end(), b"pong");
    let lines: Vec<String> = gate.lines.lock().unwrap().iter().map(|(_, line)| line.clone()).collect();
    assert_eq!(lines, ["hello 127.0.0.1 nil", "response by request"]);
    for rule in ["refuse", "done"] {
        let gate = tcp(&origin, &format!(" tcp-request content lua.{rule}\n"));
        let mut client = Client::connect(&gate.address.to_string());
        assert_eq!(client.read_to_end(), b"", "{rule}");
        assert!(origin.is_unvisited(), "{rule}");
    }
    let gate = tcp(&origin, " tcp-response content lua.refuse\n");
    let mut client = Client::connect(&gate.address.to_string());
    let mut peer = origin.accept();
    assert_eq!(client.read_to_end(), b"");
    assert_eq!(peer.read_to_end(), b"");
}

#[test]
fn a_response_is_changed_replaced_or_refused() {
    let code = "core.register_action('mark', {'http-res'}, function(txn)
          core.yield()
          local h = txn.http:res_get_headers()
          txn.http:res_set_header('X-Seen', h['content-length'][0] .. ' ' .. txn.sf:status() .. ' ' .. txn:get_var('txn.path'))
          txn.http:res_add_header('X-Two', '1') txn.http:res_add_header('X-Two', '2')
          txn.http:res_del_header('X-Gone') txn.http:res_set_status(418, 'Tea') end)
        core.register_action('keep', {'http-req'}, function(txn) txn:set_var('txn.path', txn.sf:path()) end)
        core.register_action('deny', {'http-res'}, function() return act.DENY end)
        core.register_action('done', {'http-res'}, function(txn)
          txn:done(txn:reply{status = 203, headers = {['x-own'] = 'yes'}, body = 'own'}) end)";
    let response = OK.replace("\r\n\r\n", "\r\nX-Gone: 1\r\n\r\n");
    let server = Origin::new().serve(response);
    let gate = Gate::start(
        1,
        shared(code),
        &format!(
            " http-request lua.keep\n http-response lua.deny if {{ var(txn.path) -m str /deny }}\n http-response lua.done if {{ \
             var(txn.path) -m str /done }}\n http-response lua.mark\n server s {server}\n"
        ),
    );
    let mut client = Client::connect(&gate.address.to_string());
    let marked = client.get("/mark");
    assert_eq!((marked.status, marked.text().as_str()), (418, "ok"));
    assert_eq!((marked.header("x-seen"), marked.header("x-gone")), (Some("2 200 /mark"), None));
    let done = client.get("/done");
    assert_eq!((done.status, done.text().as_str(), done.header("x-own")), (203, "own", Some("yes")));
    let mut client = Client::connect(&gate.address.to_string());
    assert_eq!(client.get("/deny").status, 502);
}

#[test]
fn an_action_that_yields_is_called_again_when_it_says() {
    let code = "local function again(txn, word)
          local n = (txn:get_var('txn.n') or 0) + 1
          txn:set_var('txn.n', n) txn:set_var('txn.word', word)
          if n < 4 then
            -- What was said before a wait counts no more.
            if n == 2 then act.wake_time(3600000) core.msleep(1) end
            act.wake_time(1) return act.YIELD
          end
          return n == 4 and act.STOP or act.CONTINUE
        end
        core.register_action('again', {'http-req', 'http-res'}, again, 1)
        core.register_action('never', {'http-req'}, function() return act.YIELD end)";
    let lines = " http-request lua.never if { path /never }\n \
                 http-request return status 202 if { path /never }\n http-request lua.again w\n \
                 http-request return status 500\n http-response lua.again r\n \
                 http-response set-header n %[var(txn.n)]%[var(txn.word)]\n";
    let server = Origin::new().serve(OK);
    let gate = Gate::start(1, shared(code), &format!("{lines} server s {server}\n"));
    let mut client = Client::connect(&gate.address.to_string());
    // The request's STOP lets it go to the server; the response's call is the fifth.
    let answer = client.get("/");
    assert_eq!((answer.status, answer.header("n")), (200, Some("5r")));
    assert_eq!(client.get("/never").status, 202);
    assert_eq!(
        gate.lines.lock().unwrap()[0].1,
        "Lua function 'never': yield not allowed: act.YIELD waits for act.wake_time."
    );
}

#[test]
fn a_fault_in_one_request_ends_that_request_and_gives_everything_back() {
    let server = Origin::new().serve(OK);
    let gate = Gate::start(
        1,
        shared(""),
        &format!(
            " http-request store-call main PANIC if {{ path /fault }}\n http-response store-call main PANIC if {{ \
             var(txn.late) -m found }}\n http-request set-var(txn.late) str(1) if {{ path /late }}\n server s {server} \
             maxconn 1\nstore main\n"
        ),
    );
    for path in ["/fault", "/late"] {
        for _ in 0..3 {
            let mut client = Client::connect(&gate.address.to_string());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(client.read_to_end(), b"", "{path}");
        }
    }
    let mut client = Client::connect(&gate.address.to_string());
    // The only slot of the server was given back each time.
    assert_eq!(client.get("/").status, 200);
    drop(client);
    wait_for("the last session", || (gate.running.process.sessions.current() == 0).then_some(()));
    let streams = || gate.running.process.workers[0].streams.load(std::sync::atomic::Ordering::Relaxed);
    let sessions = || gate.running.proxies[0].frontend.sessions.current();
    wait_for("everything to be given back", || (streams() == 0 && sessions() == 0).then_some(()));
}

#[test]
fn a_soft_stop_waits_for_streams_and_not_for_tasks() {
    let code = "core.register_task(function() while true do core.msleep(1) end end)
        core.register_action('wait', {'http-req'}, function(txn)
          repeat core.msleep(1) until core.redis('main'):get('go')
          txn:set_var('txn.waited', 1) end)";
    let origin = Origin::new();
    let rules = format!(
        " http-request lua.wait\n http-request return status 200 content-type a/b string waited if {{ var(txn.waited) \
         -m found }}\n server s {}\n",
        origin.address
    );
    let gate = Gate::start(1, shared(code).tune(unlimited), &rules);
    let mut client = Client::connect(&gate.address.to_string());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let streams = || gate.running.process.workers[0].streams.load(std::sync::atomic::Ordering::Relaxed);
    wait_for("the stream", || (streams() == 1).then_some(()));
    gate.running.process.begin_soft_stop();
    gate.store.start(0, &[b"INCRBY", b"go", b"1"]);
    assert_eq!(client.read_response().text(), "waited");
    wait_for("the end", || (gate.running.process.phase() == sluicegate_proxy::process::Phase::Ended).then_some(()));
}
