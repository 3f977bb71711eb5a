//! The API call by call.

use sluicegate_proxy::stream::{ActionOutcome, ScriptHook};

use super::fixture::{bench, check, run_action, shared};

#[test]
fn fetches() {
    check("result(txn.sf:src(), txn.f:src(), txn.f:src_port())", "127.0.0.1 127.0.0.1 54321");
    check("result(txn.sf:method(), txn.sf:path(), txn.sf:query())", "GET /a/b c=d");
    check("result(txn.sf:req_hdr('host'), txn.f:req_hdr('none'), '[' .. txn.sf:req_hdr('none') .. ']')", "www nil []");
    check("result(txn.f:req_hdr_cnt('x-a') + 1)", "3");
    check("result(math.type(txn.f:src_port()), type(txn.sf:src_port()))", "integer string");
    check("result(txn.f.no_such_fetch)", "nil");
    check(
        "result(pcall(function() return txn.sf:req_hdr({}) end))",
        "false bad argument #1 to 'req_hdr' (string expected, got table)",
    );
}

#[test]
fn converters() {
    check("result(txn.c:lower('ABC'), txn.sc:upper('abc'), txn.c:field('a,b', 2, ','))", "abc ABC b");
    check("result(txn.c:lower(nil), '[' .. txn.sc:lower(nil) .. ']')", "nil []");
}

#[test]
fn variables() {
    check("txn:set_var('txn.v', 'text') result(txn:get_var('txn.v'))", "text");
    check("txn:set_var('sess.v', 7) result(txn:get_var('sess.v') + 1)", "8");
    check("txn:set_var('txn.v', 1) txn:unset_var('txn.v') result(txn:get_var('txn.v'))", "nil");
    check("result(txn:get_var('txn.never'))", "nil");
    // What haproxy 2.6 answers to names that can't be, and to the scope of the message that is not there.
    for name in ["v", "txn.", "txn.a b", "foo.bar", "txn.a-b", "", "res.x"] {
        let body = format!("result(txn:set_var('{name}', 1), txn:get_var('{name}'))");
        check(&body, "false nil");
    }
    check("result(txn:unset_var('v'), txn:unset_var('txn.nope'))", "false true");
    check("result(pcall(txn.set_var, txn, 'txn.v'))", "false 'set_var' needs between 3 and 4 arguments");
    check(
        "txn:set_var('proc.lua_api', 4) result(txn:get_var('proc.lua_api'), txn:unset_var('proc.lua_api'))",
        "4 true",
    );
}

/// HAProxy's default gives scripts its booleans as integers, those they set themselves included.
#[test]
fn booleans_are_as_configured() {
    let code = "core.register_action('a', {'http-req'}, function(txn)
        txn:set_var('req.v', true)
        txn:set_var('txn.result', tostring(txn:get_var('req.v')) .. ' ' .. tostring(txn.f:bool('false')))
      end)";
    for (as_integer, expected) in [(true, "1 0"), (false, "true false")] {
        let scripts = shared(code).tune(|tune| tune.lua_bool_as_integer = Some(as_integer));
        let result = bench(scripts, 1, |bench| Box::pin(async move { bench.result("a").await }));
        assert_eq!(result, expected);
    }
}

#[test]
fn private_values_belong_to_the_stream() {
    let code = "core.register_action('set', {'http-req'}, function(txn) txn:set_priv({v = 5}) end)
        core.register_action('get', {'http-req'}, function(txn)
          local p = txn:get_priv() txn:set_var('txn.result', p and p.v or 'none') end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut one = bench.stream("");
            let mut other = bench.stream("");
            bench.run("set", &mut one).await;
            bench.run("get", &mut one).await;
            bench.run("get", &mut other).await;
            assert_eq!((bench.result_of(&one), bench.result_of(&other)), ("5".into(), "none".into()));
            let id = one.id;
            drop(one);
            let mut again = bench.stream("");
            again.id = id;
            bench.run("get", &mut again).await;
            assert_eq!(bench.result_of(&again), "none", "the value went with its stream");
        })
    });
}

#[test]
fn txn_is_a_table_of_its_own() {
    check("txn.mine = 3 result(type(txn), txn.mine, txn.other)", "table 3 nil");
}

#[test]
fn another_stream_s_txn_is_refused() {
    let code = "core.register_action('keep', {'http-req'}, function(txn) kept, kept_f = txn, txn.f end)
        core.register_action('use', {'http-req'}, function(txn)
          local ok, why = pcall(function() return kept:get_var('txn.a') end)
          txn:set_var('txn.own', 'mine')
          txn:set_var('txn.result', table.concat({tostring(ok), why:gsub('^.-: ', ''), kept_f:var('txn.own'),
            kept.sf:var('txn.own'), tostring(kept_f == txn.f)}, ',')) end)";
    let result = bench(shared(code), 1, |bench| {
        Box::pin(async move {
            bench.result("keep").await;
            bench.result("use").await
        })
    });
    // Its objects are those of the stream that runs.
    assert_eq!(result, "false,this object belongs to another stream,mine,mine,true");
}

#[test]
fn headers_and_request_line() {
    check(
        "local h = txn.http:req_get_headers() result(h['host'][0], h['x-a'][0], h['x-a'][1], h['x-a'][2], h['none'])",
        "www 1 2 nil nil",
    );
    check("txn.http:req_set_header('X-A', '9') result(txn.sf:req_hdr('x-a'), txn.f:req_hdr_cnt('x-a'))", "9 1");
    check("txn.http:req_add_header('X-A', '3') result(txn.f:req_hdr_cnt('x-a'))", "3");
    check("txn.http:req_del_header('x-a') result(txn.f:req_hdr_cnt('x-a'))", "0");
    check(
        "txn.http:req_set_uri('http://www/a') txn.http:req_set_header('Host', 'new:81') result(txn.sf:url())",
        "http://new:81/a",
    );
    check("txn.http:req_rep_value('x-a', '^2$', '<\\\\0>') result(txn.sf:req_hdr('x-a'))", "<2>");
    // The method that fetches see stays the client's.
    check(
        "result(txn.http:req_set_path('/p'), txn.http:req_set_query('q'), txn.http:req_set_method('PUT'), txn.sf:url(), txn.sf:method())",
        "true true true /p?q GET",
    );
    check("result(txn.http:req_set_uri('/x y'), txn.sf:url())", "false /a/b?c=d");
    check(
        "result(pcall(txn.http.req_set_header, txn.http, 'X', 'a\\r\\nEvil: 1'))",
        "false invalid header name or value",
    );
    check(
        "result(pcall(txn.http.res_get_headers, txn.http))",
        "false a response's method is called while the request is processed",
    );
}

#[test]
fn stores_answer_at_once_or_later() {
    check("local r = core.redis('main') result(r:incrby('k', 2), r:incrby('k', 3), r:call('GET', 'k'))", "2 5 5");
    check("result(core.redis('main'):get('none'))", "nil");
    check(
        "result(pcall(function() core.redis('main'):incrby('k', 'x') end))",
        "false ERR value is not an integer or out of range",
    );
    check("result(core.redis('main'):pcall('INCRBY', 'k', 'x'))", "nil ERR value is not an integer or out of range");
    check(
        "result(core.redis('main'):later('text'), core.redis('main'):pcall('later', 'x'))",
        "text nil ERR unknown command",
    );
    check("result(pcall(function() core.redis('main'):later('fail') end))", "false ERR later");
    check("result(core.redis('main', {db = 3}):db())", "3");
    check(
        "local t = core.redis('main'):many() result(t[1], t[2], t[3], t.n, t[4][1], t[4][2].err, t[5].k)",
        "1 nil three 5 OK ERR inside 1.5",
    );
    check("result(coroutine.wrap(function() return core.redis('main'):later('inside') end)())", "inside");
    check("result(pcall(core.redis, 'other'))", "false core.redis: there is no store or redis section named 'other'");
    check(
        "result(pcall(function() core.redis('main').incrby('k', 1) end))",
        "false bad argument #1 to 'incrby' (an object of core.redis is expected (is it r:command(…)?))",
    );
}

#[test]
fn a_script_s_finalizers_may_call_anything_in_the_middle_of_a_call() {
    // Finalizers run between two bursts, without a stream (what needs one raises), and within `collectgarbage`, with the
    // stream of its caller.
    let litter = "collectgarbage('generational') local ran, failed = 0, nil
        local function litter(f)
          for _ = 1, 20 do setmetatable({}, {__gc = function()
            ran = ran + 1
            local ok, why = pcall(f)
            if not ok and not failed then failed = why end
          end}) end
        end ";
    // How many bursts the loops have depends on the machine; each of these is one more.
    let rest = "for _ = 1, 1000 do if ran <= 100 then core.yield() end end";
    check(
        &format!(
            "{litter} local r, good = core.redis('main'), 0
            for _ = 1, 500 do
              litter(function() r:many() r:pcall('nonsense') pcall(r.incrby, r, 'k', 'x') end)
              local t = r:many()
              if t[3] == 'three' and t.n == 5 and t[4][2].err == 'ERR inside' and t[5].k == 1.5 then good = good + 1 end
            end
            {rest}
            result(good, ran > 100, failed)"
        ),
        "500 true nil",
    );
    check(
        &format!(
            "{litter} local good = 0
            for i = 1, 500 do
              if i % 100 == 0 then core.yield() end
              txn.http:req_set_header('x-own', 'value ' .. i)
              litter(function() txn.http:req_get_headers() txn.http:req_add_header('x-b', ('y'):rep(400))
                txn.http:req_del_header('x-b') end)
              local h = txn.http:req_get_headers()
              if h['x-own'][0] == 'value ' .. i and h['host'][0] == 'www' and h['x-a'][1] == '2' then good = good + 1 end
            end
            {rest}
            result(good, ran > 100, failed)"
        ),
        "500 true this object belongs to a stream",
    );
    check(
        &format!(
            "{litter} litter(function() txn.http:req_get_headers() txn.http:req_add_header('x-b', ('y'):rep(400)) end)
            collectgarbage() collectgarbage()
            local h = txn.http:req_get_headers()
            result(ran, failed, #h['x-b'][19], h['host'][0], h['x-a'][1])"
        ),
        "20 nil 400 www 2",
    );
    check(
        &format!(
            "{litter} litter(function() core.msleep(1) end) for _ = 1, 100 do litter(function() end) end
            collectgarbage() result(failed:gsub('^.-: ', ''))"
        ),
        "cannot wait here 1",
    );
}

#[test]
fn a_fault_in_a_function_that_a_script_calls_is_the_script_s_error() {
    check("result(pcall(function() core.redis('main'):panic() end))", "false internal error: a fault of the store");
    let code = "core.register_action('a', {'http-req'}, function(txn) core.redis('main'):panic() end)
        core.register_action('b', {'http-req'}, function(txn) txn:set_var('txn.result', 'served') end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            assert_eq!(format!("{:?}", bench.run("a", &mut bench.stream("")).await), "Continue");
            assert!(bench.logged()[0].1.contains("internal error: a fault of the store"), "{:?}", bench.logged());
            assert_eq!(bench.result("b").await, "served");
        })
    });
}

#[test]
fn small_things() {
    check("result(core.tokenize('a,b;;c', ',;')[4], #core.tokenize('a,b;;c', ',;', true))", "c 3");
    check("local n = core.now() result(n.sec > 1600000000, n.usec >= 0)", "true true");
    check("result(core.nonsense, txn.nonsense)", "nil nil");
    check("core.yield() core.msleep(1) result('after')", "after");
    check("result(core.thread, core.silent, core.emerg, core.debug, act.DENY)", "0 -1 0 7 5");
    check("txn:set_var('txn.result', 'before') core.done() txn:set_var('txn.result', 'after')", "before");
}

#[test]
fn what_actions_return() {
    let code = "for _, name in ipairs({'CONTINUE', 'STOP', 'ERROR', 'DONE', 'DENY', 'ABORT', 'INVALID'}) do
          core.register_action(name, {'http-req'}, function() return act[name] end) end
        core.register_action('YIELD', {'http-req'}, function() return act.YIELD end)
        core.register_action('nothing', {'http-req'}, function() end)
        core.register_action('core.done', {'http-req'}, function() core.yield() core.done() end)
        core.register_action('done', {'http-req'}, function(txn) txn:done() end)
        core.register_action('caught', {'http-req'}, function(txn) pcall(txn.done, txn) end)";
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            for (name, expected) in [
                ("CONTINUE", "Continue"),
                ("nothing", "Continue"),
                ("STOP", "Stop"),
                ("ERROR", "Error"),
                ("DENY", "Deny"),
                ("INVALID", "Invalid"),
                ("ABORT", "Abort"),
                ("DONE", "Stop"),
                ("core.done", "Continue"),
                ("done", "Close"),
                ("caught", "Close"),
            ] {
                let outcome = bench.run(name, &mut bench.stream("")).await;
                assert_eq!(format!("{outcome:?}"), expected, "{name}");
            }
            assert_eq!(bench.logged(), []);
            bench.run("YIELD", &mut bench.stream("")).await;
            assert!(bench.logged()[0].1.contains("yield not allowed: act.YIELD waits for act.wake_time"));
        })
    });
}

#[test]
fn replies() {
    let code = r#"core.register_action('object', {'http-req'}, function(txn)
          local reply = txn:reply{status = 429, headers = {["Retry-After"] = "5", ["x-b"] = {"1", "2"}}}
          reply:set_body('slow down') reply:add_header('X-C', 'c') reply:del_header('x-b')
          txn:done(reply) end)
        core.register_action('table', {'http-req'}, function(txn)
          txn:done{status = 204, reason = 'Nothing', headers = {a = {[0] = 'x', 'y'}}} end)
        core.register_action('split', {'http-req'}, function(txn) txn:done{headers = {a = 'x\r\nb: y'}} end)"#;
    bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let text = |outcome: ActionOutcome| match outcome {
                ActionOutcome::Reply(reply) => {
                    let mut text = format!("{} {}", reply.head.status(), String::from_utf8_lossy(reply.head.target()));
                    let mut fields: Vec<String> = reply
                        .head
                        .fields()
                        .map(|(_, n, v)| format!("{}: {}", String::from_utf8_lossy(n), String::from_utf8_lossy(v)))
                        .collect();
                    fields.sort();
                    text += &format!(" | {} | {}", fields.join(", "), String::from_utf8_lossy(&reply.body));
                    text
                }
                other => format!("{other:?}"),
            };
            let object = text(bench.run("object", &mut bench.stream("")).await);
            assert_eq!(object, "429 Too Many Requests | content-length: 9, retry-after: 5, x-c: c | slow down");
            let table = text(bench.run("table", &mut bench.stream("")).await);
            assert_eq!(table, "204 Nothing | a: x, a: y | ");
            assert_eq!(
                text(bench.run("split", &mut bench.stream("")).await),
                "Continue",
                "it is an error of the script"
            );
            assert!(bench.logged()[0].1.contains("invalid header"), "{:?}", bench.logged());
        })
    });
}

#[test]
fn logs_reach_the_sink() {
    let code = "core.register_action('a', {'http-req'}, function(txn)
        core.Debug('d') core.Info('i') txn:Warning('w') txn:Alert('a\\nb') core.log(core.err, 'e') txn:log(core.notice, 'n')
        core.log(core.silent, 'never') txn:deflog('l') end)";
    let logged = bench(shared(code), 1, |bench| {
        Box::pin(async move {
            bench.run("a", &mut bench.stream("")).await;
            bench.logged()
        })
    });
    check("result(pcall(core.log, 99, 'x'))", "false bad argument #1 to '?' (Invalid loglevel.)");
    let expected = [(7, "d"), (6, "i"), (4, "w"), (1, "a.b"), (3, "e"), (5, "n"), (0, "l")];
    assert_eq!(logged, expected.map(|(level, text)| (level, text.to_owned())));
}

#[test]
fn arguments_and_hooks() {
    let code = "core.register_action('two', {'http-res'}, function(txn, a, b)
        txn.http:res_set_header('x', a .. b) txn.http:res_set_status(404)
        txn:set_var('txn.result', txn.sf:status() .. txn.sf:res_hdr('x')) end, 2)";
    let result = bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut cx = bench.stream("GET / HTTP/1.1\r\n\r\n");
            cx.response.set_response(sluicegate_wire::http::Version::Http11, 200, b"OK");
            cx.in_response = true;
            let action = bench.bind("two", &["x", "y"]);
            run_action(&bench.worker, &mut cx, &action, ScriptHook::HttpRes).await;
            bench.result_of(&cx)
        })
    });
    assert_eq!(result, "404xy");
}

/// The page is what the table says, and what the table says is there is there; `UPDATE_DOCS=1` writes the page.
#[test]
fn the_reference_is_in_step() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lua.md");
    let page = sluicegate_proxy::lua::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/reference/lua.md is behind the table: run with UPDATE_DOCS=1");
    for (class, object) in [("core", "core"), ("TXN", "txn")] {
        for name in sluicegate_proxy::lua::names_there(class) {
            // Only filters have the messages.
            let is_there = !name.starts_with("http_re");
            check(&format!("result({object}.{name} ~= nil)"), &is_there.to_string());
        }
    }
    // A script's own functions are not methods: it can call them itself.
    check("result(txn.f.lua_NAME, txn.c.lua_NAME)", "nil nil");
}
