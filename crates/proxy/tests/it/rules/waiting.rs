//! Rules that query a store, with immediate and with delayed replies, and their use of the replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluicegate_config::model::ProxyId;
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::hook::Hook;
use sluicegate_proxy::rule::{Attempt, Verdict, choose_backend, resume, run, try_run};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use super::fixture::{answer_of, config, context, in_worker};

/// An engine that answers each command with the next reply, at once or later, and records the commands.
struct Script {
    replies: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<String>>,
    later: bool,
}

impl Script {
    fn new(replies: &[Reply], later: bool) -> Arc<Script> {
        Arc::new(Script { replies: Mutex::new(replies.iter().cloned().collect()), asked: Mutex::default(), later })
    }

    /// Returns the engines, in which this one has the name `s`.
    fn engines(self: &Arc<Self>) -> Engines {
        let engine: Arc<dyn Engine> = self.clone();
        [(Arc::from("s"), engine)].into_iter().collect()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

impl Engine for Script {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        let words: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
        self.asked.lock().expect("not poisoned").push(format!("{db}:{}", words.join("|")));
        let reply = self.replies.lock().expect("not poisoned").pop_front().expect("a reply is left");
        if !self.later {
            return Started::Done(reply);
        }
        Started::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            reply
        }))
    }
}

const HEAD: &str = "GET /p?q HTTP/1.1\r\nHost: h\r\nX: a,b,c\r\n\r\n";

/// Returns the lines of a frontend, after the store's section.
fn frontend(lines: &[&str]) -> String {
    format!("store s\nfrontend f\n {}\n", lines.join("\n "))
}

/// Runs `http-request` lines with these replies, immediate and delayed, and expects the same answer and commands.
#[track_caller]
fn check(lines: &[&str], replies: &[Reply], expected: &str, commands: &[&str]) {
    let lines: Vec<String> = lines.iter().map(|line| format!("http-request {line}")).collect();
    let text = frontend(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    for later in [false, true] {
        let script = Script::new(replies, later);
        let got = in_worker(config(&text), script.engines(), move |worker| {
            Box::pin(async move {
                let proxy = &worker.running.proxies[0];
                let answer = answer_of(&proxy.rules, &mut context(proxy, HEAD), &worker).await;
                answer.split_once("\n\n").map_or(answer.clone(), |(_, body)| body.to_owned())
            })
        });
        assert_eq!(got, expected, "the store answers later: {later}");
        assert_eq!(script.asked(), commands, "the store answers later: {later}");
    }
}

const SHOW: &str = "return status 200 content-type a/b lf-string \"[%[var(txn.v)]] [%[var(txn.store_err)]]\"";
const NO: &str = "return status 200 content-type a/b string no";

fn yes(condition: &str) -> String {
    format!("return status 200 content-type a/b string yes {condition}")
}

fn error() -> Reply {
    Reply::Error("ERR no".to_owned())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

#[test]
fn a_call_keeps_the_reply_in_its_variable() {
    let incr = "store-call s INCRBY \"hits:%[src]\" 1 set-var(txn.v)";
    let asked = &["0:INCRBY|hits:127.0.0.1|1"];
    check(&[incr, SHOW], &[Reply::Integer(7)], "[7] []", asked);
    check(&[incr, SHOW], &[bulk("b x")], "[b x] []", asked);
    check(&[incr, SHOW], &[Reply::Simple("OK".to_owned())], "[OK] []", asked);
    check(&[incr, SHOW], &[Reply::Array(vec![])], "[] [ERR the reply is not a single value]", asked);
    check(&["set-var(txn.v) int(1)", incr, SHOW], &[Reply::Null], "[] []", asked);
    check(&["store-call s PING", SHOW], &[Reply::Array(vec![])], "[] []", &["0:PING"]);
    check(&["store-call s SET \"a b\" \"%[req.hdr(none)]\"", SHOW], &[bulk("OK")], "[] []", &["0:SET|a b|"]);
}

#[test]
fn a_reply_keeps_its_type() {
    let lines = ["store-call s GET k set-var(txn.v)", &yes("if { var(txn.v) -m int gt 99 }"), NO];
    check(&lines, &[Reply::Integer(100)], "yes", &["0:GET|k"]);
    check(&lines, &[Reply::Integer(99)], "no", &["0:GET|k"]);
    check(&lines, &[bulk("100")], "yes", &["0:GET|k"]);
    check(&lines, &[Reply::Null], "no", &["0:GET|k"]);
}

#[test]
fn a_failure_does_what_on_error_says() {
    let get = "store-call s GET k set-var(txn.v)";
    let asked = &["0:GET|k"];
    check(&[get, SHOW], &[error()], "[] [ERR no]", asked);
    check(&[&format!("{get} on-error open"), SHOW], &[error()], "[] [ERR no]", asked);
    check(&[&format!("{get} on-error value:9"), SHOW], &[error()], "[9] [ERR no]", asked);
    let page = "<html><body><h1>503 Service Unavailable</h1>\n\
                No server is available to handle this request.\n</body></html>\n";
    check(&[&format!("{get} on-error closed"), SHOW], &[error()], page, asked);
    // A success after a failure does not hide the failure.
    check(&[get, get, SHOW], &[error(), Reply::Integer(1)], "[1] [ERR no]", &["0:GET|k", "0:GET|k"]);
}

#[test]
fn converters_ask_the_store_wherever_an_expression_stands() {
    // In a set-var, in the middle of a log-format, and as the key of another one.
    let set = "set-var(txn.v) path,store_get(s),upper";
    check(&[set, SHOW], &[bulk("x")], "[X] []", &["0:GET|/p"]);
    check(&[set, SHOW], &[Reply::Null], "[] []", &["0:GET|/p"]);
    check(&[set, SHOW], &[error()], "[] [ERR no]", &["0:GET|/p"]);
    let text = "return status 200 content-type a/b lf-string \
                \"a%[path,store_get(s)]b%[query,store_get(s),store_get(s)]c%[var(txn.store_err)]\"";
    let asked = &["0:GET|/p", "0:GET|q", "0:GET|y"];
    check(&[text], &[bulk("x"), bulk("y"), bulk("z")], "axbzc", asked);
    check(&[text], &[error(), bulk("y"), Reply::Null], "abcERR no", asked);
}

#[test]
fn a_condition_that_waits_looks_at_every_occurrence_once() {
    let any = &yes("if { req.hdr(x),store_get(s) -m str 2 }");
    check(&[any, NO], &[bulk("1"), bulk("2")], "yes", &["0:GET|a", "0:GET|b"]);
    check(&[any, NO], &[bulk("1"), Reply::Null, bulk("2")], "yes", &["0:GET|a", "0:GET|b", "0:GET|c"]);
    check(&[any, NO], &[bulk("1"), error(), bulk("1")], "no", &["0:GET|a", "0:GET|b", "0:GET|c"]);
    let both = &yes("if { path,store_get(s) -m found } !{ query,store_get(s) -m found }");
    check(&[both, NO], &[bulk("1"), Reply::Null], "yes", &["0:GET|/p", "0:GET|q"]);
    check(&[both, NO], &[Reply::Null], "no", &["0:GET|/p"]);
}

#[test]
fn a_counter_is_added_to() {
    let lines = |expr: &str| [format!("set-var(txn.v) {expr}"), SHOW.to_owned()];
    let check = |expr: &str, reply: Reply, expected: &str, asked: &str| {
        check(&lines(expr).each_ref().map(String::as_str), &[reply], expected, &[asked]);
    };
    check("path,store_incr(s)", Reply::Integer(3), "[3] []", "0:INCRBY|/p|1");
    check("src,store_incr(s,-5)", Reply::Integer(-2), "[-2] []", "0:INCRBY|127.0.0.1|-5");
    check("path,store_incr(s)", error(), "[] [ERR no]", "0:INCRBY|/p|1");
    check("path,store_hget(s,f)", bulk("v"), "[v] []", "0:HGET|/p|f");
    check("path,store_hget(s,f)", error(), "[] [ERR no]", "0:HGET|/p|f");
    check("path,store_call(s,strlen)", Reply::Integer(2), "[2] []", "0:strlen|/p");
    check("path,store_call(s,GETRANGE,0,1)", bulk("a"), "[a] []", "0:GETRANGE|/p|0|1");
    check(
        "src,store_call(s,MGET)",
        Reply::Array(vec![]),
        "[] [ERR the reply is not a single value]",
        "0:MGET|127.0.0.1",
    );
}

#[test]
fn a_list_that_does_not_wait_needs_no_future() {
    let text = frontend(&["http-request store-call s GET k set-var(txn.v)"]);
    let script = Script::new(&[Reply::Integer(1), Reply::Integer(2)], false);
    let ready = in_worker(config(&text), script.engines(), move |worker| {
        Box::pin(async move {
            let proxy = &worker.running.proxies[0];
            let attempt =
                try_run(&proxy.rules.http_request, Hook::HttpRequest, &mut context(proxy, HEAD), worker.scripts());
            matches!(attempt, Attempt::Ready(Verdict::Continue))
        })
    });
    assert!(ready);
    let script = Script::new(&[Reply::Integer(1)], true);
    let resumed = in_worker(config(&text), script.engines(), move |worker| {
        Box::pin(async move {
            let proxy = &worker.running.proxies[0];
            let list = &proxy.rules.http_request;
            let mut cx = context(proxy, HEAD);
            match try_run(list, Hook::HttpRequest, &mut cx, worker.scripts()) {
                Attempt::Ready(_) => false,
                Attempt::Suspended(suspended) => {
                    let verdict = resume(list, suspended, Hook::HttpRequest, &mut cx, worker.scripts()).await;
                    matches!(verdict, Verdict::Continue)
                }
            }
        })
    });
    assert!(resumed);
}

#[test]
fn a_failed_call_closes_a_tcp_session_where_it_should() {
    let check = |on_error: &str, closes: bool| {
        let text = format!("store s\nfrontend f\n mode tcp\n tcp-request content store-call s GET k {on_error}\n");
        let closed = in_worker(config(&text), Script::new(&[error()], true).engines(), move |worker| {
            Box::pin(async move {
                let proxy = &worker.running.proxies[0];
                let list = &proxy.rules.tcp_request_content;
                let verdict = run(list, Hook::TcpRequestContent, &mut context(proxy, ""), worker.scripts()).await;
                matches!(verdict, Verdict::Close)
            })
        });
        assert_eq!(closed, closes, "{on_error}");
    };
    check("on-error closed", true);
    check("on-error open", false);
}

#[test]
fn the_first_use_backend_that_holds_decides() {
    #[track_caller]
    fn check(section: &str, lines: &[&str], expected: Option<u32>) {
        let text = format!("store s\n{section} f\n {}\nbackend b1\nbackend b2\n", lines.join("\n "));
        let script = Script::new(&[bulk("b2")], true);
        let chosen = in_worker(config(&text), script.engines(), move |worker| {
            Box::pin(async move {
                let front = &worker.running.proxies[0];
                choose_backend(&front.rules, &mut context(front, HEAD), worker.scripts()).await
            })
        });
        assert_eq!(chosen, expected.map(ProxyId), "{text}");
    }
    check("frontend", &["use_backend b1 if { path /p }", "use_backend b2"], Some(1));
    check("frontend", &["use_backend b1 if { path /other }", "use_backend b2"], Some(2));
    check("frontend", &["use_backend b1 if { path /other }", "default_backend b2"], Some(2));
    check("frontend", &["use_backend b1 if { path /other }"], None);
    check("frontend", &[""], None);
    check("listen", &[""], Some(0));
    check("frontend", &["use_backend b%[int(2)]", "default_backend b1"], Some(2));
    check("frontend", &["use_backend none%[int(2)]", "use_backend b2", "default_backend b1"], Some(1));
    check("frontend", &["use_backend %[req.hdr(none)]", "default_backend b1"], Some(1));
    check("frontend", &["use_backend %[query,store_get(s)]", "default_backend b1"], Some(2));
}
