//! Errors, budgets, memory, and streams that leave in the middle.

use std::rc::Rc;
use std::time::Duration;

use sluicegate_proxy::stream::{ScriptAttempt, ScriptHook};

use super::fixture::{Bench, Scripts, bench, shared, try_run_action, unlimited};

#[test]
fn an_error_is_logged_with_its_traceback_and_the_request_goes_on() {
    let code = "local function inner() error('boom') end
        core.register_action('a', {'http-req'}, function(txn) inner() end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let outcome = bench.run("a", &mut bench.stream("")).await;
            assert_eq!(format!("{outcome:?}"), "Continue");
            let (level, text) = bench.logged().remove(0);
            assert_eq!(level, 3);
            assert!(text.starts_with("Lua function 'a': [state-id 0] runtime error: "), "{text}");
            assert!(text.contains("script0.lua:1: boom from "), "{text}");
            assert!(text.ends_with("script0.lua:2: in function line 2."), "{text}");
        })
    });
}

#[test]
fn an_action_that_finishes_at_once_needs_no_future() {
    let code = "core.register_action('now', {'http-req'}, function(txn) core.redis('main'):incrby(txn.sf:src(), 1) end)
        core.register_action('later', {'http-req'}, function(txn) core.yield() end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut cx = bench.stream("");
            let now = try_run_action(&bench.worker, &mut cx, &bench.bind("now", &[]), ScriptHook::HttpReq);
            assert!(matches!(now, ScriptAttempt::Ready(_)));
            let later = try_run_action(&bench.worker, &mut cx, &bench.bind("later", &[]), ScriptHook::HttpReq);
            let ScriptAttempt::Pending(pending) = later else { panic!("it yields") };
            pending.finish(&mut cx).await;
        })
    });
}

#[test]
fn a_spinning_script_lets_others_go_on() {
    // It spins until others have had their turns.
    let scripts = shared(
        "served = 0
        core.register_action('a', {'http-req'}, function(txn)
          while served < 5 do end
          txn:set_var('txn.result', 'all were served') end)
        core.register_action('b', {'http-req'}, function(txn) served = served + 1 txn:set_var('txn.result', 'served') end)",
    )
    .tune(unlimited);
    bench(scripts, 1, |bench| {
        Box::pin(async move {
            let others: Rc<Bench> = bench.clone();
            let served = tokio::task::spawn_local(async move {
                for _ in 0..5 {
                    assert_eq!(others.result("b").await, "served");
                }
            });
            assert_eq!(bench.result("a").await, "all were served");
            served.await.expect("they ran");
            assert_eq!(bench.logged(), []);
        })
    });
}

#[test]
fn a_spinning_script_is_ended() {
    let scripts = shared("core.register_action('a', {'http-req'}, function() while true do end end)")
        .tune(|tune| tune.lua_session_timeout = Some(Duration::from_millis(50)));
    bench(scripts, 1, |bench| {
        Box::pin(async move {
            let mut cx = bench.stream("");
            let outcome = bench.run("a", &mut cx).await;
            assert_eq!(format!("{outcome:?}"), "Continue");
            let text = bench.logged().remove(0).1;
            assert!(
                text.starts_with("Lua function 'a': [state-id 0] runtime error: execution timeout from "),
                "{text}"
            );
        })
    });
}

#[test]
fn memory_of_all_states_is_bounded() {
    let scripts = shared(
        "core.register_action('a', {'http-req'}, function() local s = ('x'):rep(1 << 24) end)
        core.register_action('b', {'http-req'}, function(txn) txn:set_var('txn.result', 'served') end)
        core.register_action('c', {'http-req'}, function() local s = ('x'):rep(1 << 30) end)",
    )
    .tune(|tune| tune.lua_maxmem = 8 << 20);
    bench(scripts, 1, |bench| {
        Box::pin(async move {
            bench.run("a", &mut bench.stream("")).await;
            assert_eq!(bench.logged()[0].1, "Lua function 'a': out of memory error.");
            assert_eq!(bench.result("b").await, "served");
            // A string beyond what any string may have is refused before memory is asked for.
            bench.run("c", &mut bench.stream("")).await;
            assert!(bench.logged()[1].1.contains(": resulting string too large from [C]: "), "{:?}", bench.logged());
            assert_eq!(bench.result("b").await, "served");
        })
    });
}

#[test]
fn a_script_outlives_its_stream() {
    let code = "left, seen = 0, {}
        core.register_action('a', {'http-req'}, function(txn)
          local sf = txn.sf
          core.msleep(1)
          seen = {txn:get_var('txn.x'), txn.sf:src(), sf:src(), txn.http:req_get_headers(), n = 'nothing'}
          left = left + 1 end)
        core.register_action('b', {'http-req'}, function(txn)
          txn:set_var('txn.result', left .. tostring(next(seen))) end)";
    for per_thread in [false, true] {
        bench(Scripts::new().with(code, per_thread), 1, |bench| {
            Box::pin(async move {
                const STREAMS: usize = 100;
                for _ in 0..STREAMS {
                    let mut cx = bench.stream("GET / HTTP/1.1\r\n\r\n");
                    let action = bench.bind("a", &[]);
                    match try_run_action(&bench.worker, &mut cx, &action, ScriptHook::HttpReq) {
                        ScriptAttempt::Pending(pending) => drop(pending),
                        ScriptAttempt::Ready(_) => panic!("it waits"),
                    }
                }
                assert_eq!(bench.detached(), STREAMS);
                while bench.detached() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(bench.result("b").await, format!("{STREAMS}n"), "all went on, and txn answered nil");
                assert_eq!(bench.logged(), []);
            })
        });
    }
}

#[test]
fn a_stream_that_leaves_between_bursts_loses_no_turn() {
    // The future is dropped at every point it can stop at: a poll count after the first burst.
    let code = "left = 0
        core.register_action('a', {'http-req'}, function() for _ = 1, 5 do core.yield() end left = left + 1 end)
        core.register_action('b', {'http-req'}, function(txn) txn:set_var('txn.result', left) end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            for polls in 0..12 {
                let mut cx = bench.stream("");
                let running = bench.run("a", &mut cx);
                let mut running = std::pin::pin!(running);
                for _ in 0..polls {
                    let ended =
                        std::future::poll_fn(|cx| std::task::Poll::Ready(running.as_mut().poll(cx).is_ready())).await;
                    if ended {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            while bench.detached() > 0 {
                tokio::task::yield_now().await;
            }
            // The first was never polled, so it never began.
            assert_eq!(bench.result("b").await, "11");
        })
    });
}

#[test]
fn a_detached_script_that_waits_for_ever_is_given_up() {
    let code = "closed = 0
        core.register_action('a', {'http-req'}, function(txn)
          local x <close> = setmetatable({}, {__close = function() closed = closed + 1 end})
          core.redis('main'):never() end)
        core.register_action('b', {'http-req'}, function(txn) txn:set_var('txn.result', closed) end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            bench.limit_detached(Duration::from_millis(20));
            for _ in 0..3 {
                let mut cx = bench.stream("");
                match try_run_action(&bench.worker, &mut cx, &bench.bind("a", &[]), ScriptHook::HttpReq) {
                    ScriptAttempt::Pending(pending) => drop(pending),
                    ScriptAttempt::Ready(_) => panic!("it waits"),
                }
            }
            assert_eq!(bench.detached(), 3);
            while bench.detached() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(bench.result("b").await, "3", "what it held in variables to be closed was closed");
            let (level, text) = bench.logged().remove(0);
            assert_eq!((level, text.as_str()), (4, "Lua function 'a': given up 20ms after its stream ended."));
        })
    });
}

/// Connections of their own are few: a script that is given up gives its own back at once, not when its state collects
/// garbage.
#[test]
fn a_script_that_is_given_up_gives_its_connections_back() {
    let code = "collectgarbage('stop')
        local store = core.redis('main')
        core.register_action('own', {'http-req'}, function(txn)
          store:own(function() core.sleep(1000) end) end)
        core.register_action('multi', {'http-req'}, function(txn)
          store:multi(function(m, c) c:get('k') core.sleep(1000) end) end)
        core.register_action('lent', {'http-req'}, function(txn) txn:set_var('txn.result', store:lent()) end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut pending = Vec::new();
            for name in ["own", "multi"] {
                let mut cx = bench.stream("");
                match try_run_action(&bench.worker, &mut cx, &bench.bind(name, &[]), ScriptHook::HttpReq) {
                    ScriptAttempt::Pending(waits) => pending.push(waits),
                    ScriptAttempt::Ready(_) => panic!("it waits"),
                }
            }
            assert_eq!(bench.result("lent").await, "2");
            bench.limit_detached(Duration::from_millis(20));
            drop(pending);
            while bench.detached() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(bench.result("lent").await, "0");
        })
    });
}

#[test]
fn the_process_ends_with_tasks_and_detached_scripts_on_their_way() {
    let code = "core.register_task(function() while true do core.msleep(1) end end)
        core.register_task(function() core.redis('main'):never() end)
        core.register_task(function() while true do core.yield() end end)
        core.register_action('a', {'http-req'}, function() core.sleep(1000) end)
        core.register_action('spins', {'http-req'}, function() core.yield() while true do end end)";
    for per_thread in [false, true] {
        // The bench stops its workers and joins them.
        bench(Scripts::new().with(code, per_thread), 2, |bench| {
            Box::pin(async move {
                for name in ["a", "spins"] {
                    let mut cx = bench.stream("");
                    match try_run_action(&bench.worker, &mut cx, &bench.bind(name, &[]), ScriptHook::HttpReq) {
                        ScriptAttempt::Pending(pending) => drop(pending),
                        ScriptAttempt::Ready(_) => panic!("it waits"),
                    }
                }
            })
        });
    }
}

#[test]
fn an_action_behind_responses_edits_them_and_may_wait() {
    let code = "core.register_action('a', {'http-after-res'}, function(txn)
          txn.http:res_set_header('x', 'before')
          core.msleep(1)
          txn.http:res_set_header('x', txn.sf:status() .. 'after') end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut cx = bench.stream("GET / HTTP/1.1\r\n\r\n");
            cx.response.set_response(sluicegate_wire::http::Version::Http11, 204, b"No Content");
            let action = bench.bind("a", &[]);
            let ScriptAttempt::Pending(pending) =
                try_run_action(&bench.worker, &mut cx, &action, ScriptHook::HttpAfterRes)
            else {
                panic!("it waits")
            };
            assert_eq!(cx.response.first(b"x"), Some(&b"before"[..]));
            pending.finish(&mut cx).await;
            assert_eq!(cx.response.first(b"x"), Some(&b"204after"[..]));
            assert_eq!(bench.logged(), []);
        })
    });
}
