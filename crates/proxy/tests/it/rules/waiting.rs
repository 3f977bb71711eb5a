//! Rules that ask a store, at once and after a wait, and what they do with what it says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluicegate_config::model::{Action, BackendName, OnError, ProxyId, ProxyKind, Rule, StoreCall, UseBackend};
use sluicegate_proxy::rule::{Attempt, Hook, choose_backend, resume, try_run};
use sluicegate_proxy::running::Engines;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use super::fixture::{
    self, answer, answer_of, compile, condition, config, context, expr, format, in_worker, rule, var,
};

/// Answers each command with the next reply, at once or later, and remembers what it was asked.
struct Script {
    replies: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<String>>,
    later: bool,
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

/// Runs the rules with these replies, at once and later, and expects the same answer and commands from both.
#[track_caller]
fn check(rules: Vec<Rule>, replies: &[Reply], expected: &str, commands: &[&str]) {
    for later in [false, true] {
        let script =
            Arc::new(Script { replies: Mutex::new(replies.iter().cloned().collect()), asked: Mutex::default(), later });
        let engine: Arc<dyn Engine> = script.clone();
        let engines: Engines = [(Arc::from("s"), engine)].into_iter().collect();
        let proxy = sluicegate_config::model::Proxy { http_request: rules.clone(), ..fixture::proxy() };
        let compiled = compile(&proxy, &engines);
        let got = in_worker(config(vec![fixture::proxy()]), Engines::new(), move |worker| {
            Box::pin(async move {
                let mut cx = context(&worker.running.proxies[0], HEAD);
                let answer = answer_of(&compiled, &mut cx, &worker).await;
                answer.split_once("\n\n").map_or(answer.clone(), |(_, body)| body.to_owned())
            })
        });
        assert_eq!(got, expected, "the store answers later: {later}");
        assert_eq!(*script.asked.lock().expect("not poisoned"), commands, "the store answers later: {later}");
    }
}

fn call(args: &[&str], set_var: Option<&str>, on_error: OnError) -> Rule {
    let args = args.iter().map(|arg| format(arg)).collect();
    rule(Action::StoreCall(StoreCall { store: Arc::from("s"), args, set_var: set_var.map(var), on_error }), "")
}

fn show() -> Rule {
    rule(answer("[%[var(txn.v)]] [%[var(txn.store_err)]]"), "")
}

fn error() -> Reply {
    Reply::Error("ERR no".to_owned())
}

#[test]
fn a_call_keeps_the_reply_in_its_variable() {
    let incr = || call(&["INCRBY", "hits:%[src]", "1"], Some("txn.v"), OnError::Open);
    let asked = &["0:INCRBY|hits:127.0.0.1|1"];
    check(vec![incr(), show()], &[Reply::Integer(7)], "[7] []", asked);
    check(vec![incr(), show()], &[Reply::Bulk(b"b x".to_vec())], "[b x] []", asked);
    check(vec![incr(), show()], &[Reply::Simple("OK".to_owned())], "[OK] []", asked);
    check(vec![incr(), show()], &[Reply::Array(vec![])], "[] [ERR the reply is not a single value]", asked);
    let set = || rule(Action::SetVar(var("txn.v"), expr("int(1)")), "");
    check(vec![set(), incr(), show()], &[Reply::Null], "[] []", asked);
    check(vec![call(&["PING"], None, OnError::Open), show()], &[Reply::Array(vec![])], "[] []", &["0:PING"]);
}

#[test]
fn a_reply_keeps_its_type() {
    let rules = |test: &str| {
        vec![call(&["GET", "k"], Some("txn.v"), OnError::Open), rule(answer("yes"), test), rule(answer("no"), "")]
    };
    let test = "if { var(txn.v) -m int gt 99 }";
    check(rules(test), &[Reply::Integer(100)], "yes", &["0:GET|k"]);
    check(rules(test), &[Reply::Integer(99)], "no", &["0:GET|k"]);
    check(rules(test), &[Reply::Bulk(b"100".to_vec())], "yes", &["0:GET|k"]);
    check(rules(test), &[Reply::Null], "no", &["0:GET|k"]);
}

#[test]
fn a_failure_does_what_on_error_says() {
    let get = |on_error| call(&["GET", "k"], Some("txn.v"), on_error);
    let asked = &["0:GET|k"];
    check(vec![get(OnError::Open), show()], &[error()], "[] [ERR no]", asked);
    check(vec![get(OnError::Value("9".to_owned())), show()], &[error()], "[9] [ERR no]", asked);
    let page = "<html><body><h1>503 Service Unavailable</h1>\nNo server is available to handle this request.\n</body></html>\n";
    check(vec![get(OnError::Closed), show()], &[error()], page, asked);
    // A success after a failure hides nothing.
    let rules = vec![get(OnError::Open), get(OnError::Open), show()];
    check(rules, &[error(), Reply::Integer(1)], "[1] [ERR no]", &["0:GET|k", "0:GET|k"]);
}

#[test]
fn converters_ask_the_store_wherever_an_expression_stands() {
    // In a set-var, in the middle of a log-format, and as the key of another one.
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let set = || rule(Action::SetVar(var("txn.v"), expr("path,store_get(s),upper")), "");
    check(vec![set(), show()], &[bulk("x")], "[X] []", &["0:GET|/p"]);
    check(vec![set(), show()], &[Reply::Null], "[] []", &["0:GET|/p"]);
    check(vec![set(), show()], &[error()], "[] [ERR no]", &["0:GET|/p"]);
    let text = rule(answer("a%[path,store_get(s)]b%[query,store_get(s),store_get(s)]c%[var(txn.store_err)]"), "");
    let asked = &["0:GET|/p", "0:GET|q", "0:GET|y"];
    check(vec![text.clone()], &[bulk("x"), bulk("y"), bulk("z")], "axbzc", asked);
    check(vec![text], &[error(), bulk("y"), Reply::Null], "abcERR no", asked);
}

#[test]
fn a_condition_that_waits_looks_at_every_occurrence_once() {
    let rules = |text: &str| vec![rule(answer("yes"), text), rule(answer("no"), "")];
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let any = "if { req.hdr(x),store_get(s) -m str 2 }";
    check(rules(any), &[bulk("1"), bulk("2")], "yes", &["0:GET|a", "0:GET|b"]);
    check(rules(any), &[bulk("1"), Reply::Null, bulk("2")], "yes", &["0:GET|a", "0:GET|b", "0:GET|c"]);
    check(rules(any), &[bulk("1"), error(), bulk("1")], "no", &["0:GET|a", "0:GET|b", "0:GET|c"]);
    let both = "if { path,store_get(s) -m found } !{ query,store_get(s) -m found }";
    check(rules(both), &[bulk("1"), Reply::Null], "yes", &["0:GET|/p", "0:GET|q"]);
    check(rules(both), &[Reply::Null], "no", &["0:GET|/p"]);
}

#[test]
fn a_counter_is_added_to() {
    let rules = |text: &str| vec![rule(Action::SetVar(var("txn.v"), expr(text)), ""), show()];
    check(rules("path,store_incr(s)"), &[Reply::Integer(3)], "[3] []", &["0:INCRBY|/p|1"]);
    check(rules("src,store_incr(s,-5)"), &[Reply::Integer(-2)], "[-2] []", &["0:INCRBY|127.0.0.1|-5"]);
    check(rules("path,store_incr(s)"), &[error()], "[] [ERR no]", &["0:INCRBY|/p|1"]);
}

#[test]
fn a_list_that_does_not_wait_needs_no_future() {
    let proxy = sluicegate_config::model::Proxy { http_request: vec![show()], ..fixture::proxy() };
    let script = Script { replies: Mutex::new([Reply::Integer(1)].into()), asked: Mutex::default(), later: true };
    let engines: Engines = [(Arc::from("s"), Arc::new(script) as Arc<dyn Engine>)].into_iter().collect();
    let waits = sluicegate_config::model::Proxy {
        http_request: vec![call(&["GET", "k"], Some("txn.v"), OnError::Open)],
        ..fixture::proxy()
    };
    let ready = compile(&proxy, &engines);
    let waiting = compile(&waits, &engines);
    let (first, second, value) = in_worker(config(vec![fixture::proxy()]), Engines::new(), move |worker| {
        Box::pin(async move {
            let mut cx = context(&worker.running.proxies[0], HEAD);
            let first = matches!(try_run(&ready.http_request, Hook::HttpRequest, &mut cx, &worker), Attempt::Ready(_));
            let Attempt::Suspended(suspended) = try_run(&waiting.http_request, Hook::HttpRequest, &mut cx, &worker)
            else {
                return (first, false, String::new());
            };
            resume(&waiting.http_request, suspended, Hook::HttpRequest, &mut cx, &worker).await;
            let shown = answer_of(&ready, &mut cx, &worker).await;
            (first, true, shown)
        })
    });
    assert!(first, "nothing waits");
    assert!(second, "the store answers later");
    assert!(value.ends_with("[1] []"), "{value}");
}

#[test]
fn a_store_cannot_be_asked_where_nothing_may_wait() {
    let engines: Engines = Engines::new();
    let proxy = sluicegate_config::model::Proxy {
        tcp_request_connection: vec![call(&["GET", "k"], None, OnError::Open)],
        http_request: vec![call(&["GET", "k"], None, OnError::Open)],
        ..fixture::proxy()
    };
    let errors = sluicegate_proxy::rule::ProxyRules::compile(&proxy, &config(vec![proxy.clone()]), &engines, None)
        .expect_err("two errors");
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "test.cfg:1:1: error: a store cannot be waited for in 'tcp-request connection'",
            "test.cfg:1:1: error: no store is named 's'"
        ]
    );
}

#[test]
fn the_first_use_backend_that_holds_and_exists_is_taken() {
    #[track_caller]
    fn check(rules: Vec<(BackendName, &str)>, default: Option<u32>, kind: ProxyKind, expected: Option<u32>) {
        let named = |name: &str, uid| sluicegate_config::model::Proxy {
            name: Arc::from(name),
            uid,
            kind: ProxyKind::Backend,
            ..fixture::proxy()
        };
        let use_backend = rules
            .into_iter()
            .map(|(target, text)| UseBackend {
                target,
                condition: (!text.is_empty()).then(|| condition(text)),
                at: fixture::at(),
            })
            .collect();
        let front = sluicegate_config::model::Proxy {
            use_backend,
            kind,
            default_backend: default.map(ProxyId),
            ..fixture::proxy()
        };
        let script =
            Script { replies: Mutex::new([Reply::Bulk(b"b2".to_vec())].into()), asked: Mutex::default(), later: true };
        let engines: Engines = [(Arc::from("s"), Arc::new(script) as Arc<dyn Engine>)].into_iter().collect();
        let all = config(vec![front.clone(), named("b1", 2), named("b2", 3)]);
        let chosen = in_worker(all, engines, move |worker| {
            Box::pin(async move {
                let front = &worker.running.proxies[0];
                choose_backend(front, &mut context(front, HEAD), &worker).await
            })
        });
        assert_eq!(chosen, expected.map(ProxyId));
    }
    let fixed = |id| BackendName::Static(ProxyId(id));
    let named = |text: &str| BackendName::Dynamic(format(text));
    let front = ProxyKind::Frontend;
    check(vec![(fixed(1), "if { path -m str /p }"), (fixed(2), "")], None, front, Some(1));
    check(vec![(fixed(1), "if { path -m str /other }"), (fixed(2), "")], None, front, Some(2));
    check(vec![(fixed(1), "if { path -m str /other }")], Some(2), front, Some(2));
    check(vec![(fixed(1), "if { path -m str /other }")], None, front, None);
    check(vec![], None, front, None);
    check(vec![], None, ProxyKind::Listen, Some(0));
    check(vec![(named("b%[int(2)]"), "")], Some(1), front, Some(2));
    check(vec![(named("none"), ""), (fixed(2), "")], Some(1), front, Some(2));
    check(vec![(named("%[req.hdr(none)]"), "")], Some(1), front, Some(1));
    check(vec![(named("%[query,store_get(s)]"), "")], Some(1), front, Some(2));
}
