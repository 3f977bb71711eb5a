//! Loading: bodies, paths, registrations, init and tasks.

use sluicegate_config::LuaNames;

use super::fixture::{Lines, Scripts, bench, shared};

#[test]
fn registered_names_are_known_with_their_hooks_and_arguments() {
    let code = "core.register_action('one', {'http-req', 'tcp-res'}, function() end, 2)
        core.register_action('other', {'tcp-req'}, function() end)";
    for per_thread in [false, true] {
        let states = Scripts::new().with(code, per_thread).load(2, &Lines::default()).expect("loads");
        assert_eq!(states.action("one", "http-req"), Some(2));
        assert_eq!(states.action("one", "tcp-res"), Some(2));
        assert_eq!(states.action("one", "http-res"), None);
        assert_eq!(states.action("other", "tcp-req"), Some(0));
        assert_eq!(states.action("nothing", "tcp-req"), None);
        let mut names = states.actions();
        names.sort();
        assert_eq!(names, ["one", "other"]);
    }
}

#[test]
fn errors_of_bodies_say_where() {
    let check = |code: &str, expected: &str| {
        let scripts = shared(code);
        let error = scripts.load(1, &Lines::default()).expect_err(code);
        let error = error.replace(&scripts.directory().display().to_string(), "DIR");
        assert!(error.contains(expected), "{code}: {error}");
    };
    check("x = = 1", "error in Lua file 'DIR/script0.lua': DIR/script0.lua:1: unexpected symbol near '='");
    check("error('boom')", "Lua runtime error: DIR/script0.lua:1: boom");
    check("error({})", "Lua runtime error: (null)");
    check("core.queue():pop_wait()", "cannot wait here");
    check("core.register_action('a', {'http-nope'}, print)", "Lua action environment 'http-nope' is unknown.");
    check("core.register_action('a')", "'register_action' needs between 3 and 4 arguments");
    check("require('no.such.module')", "module 'no.such.module' not found");
    check("core.register_service('x', 'udp', print)", "Lua service environment 'udp' is unknown.");
    check("core.register_fetches('x')", "'register_fetches' needs 2 arguments");
    check("core.register_cli({}, 'x', print)", "the command has no words");
    check("core.register_cli({'x'}, print)", "'register_cli' needs 3 arguments");
    check("core.register_cli('x', 'x', print)", "bad argument #1 to 'register_cli' (1st argument must be a table)");
    check("core.register_cli({1}, 'x', print)", "(1st argument must be a table filled with strings)");
    check("core.register_cli({'a', 'b', 'c', 'd', 'e', 'f'}, 'x', print)", "with a maximum of 5 entries)");
    check("core.redis('main'):get('x')", "the stores are not there yet");
    let missing = Scripts::new();
    let mut global = missing.global.clone();
    global.lua_loads = shared("").global.lua_loads;
    let error = sluicegate_proxy::lua::LuaStates::load(
        &global,
        1,
        super::fixture::sink(&Lines::default()),
        super::fixture::patterns(),
    );
    assert!(error.expect_err("the file is gone").to_string().contains("cannot open"));
}

#[test]
fn a_name_registered_twice_warns_and_the_last_counts() {
    let code = "core.register_action('a', {'http-req'}, function(txn) txn:set_var('txn.result', 'first') end)
        core.register_action('a', {'http-req'}, function(txn) txn:set_var('txn.result', 'last') end)";
    let (result, logged) =
        bench(shared(code), 1, |bench| Box::pin(async move { (bench.result("a").await, bench.logged()) }));
    assert_eq!(result, "last");
    assert!(logged[0].1.starts_with("Trying to register action 'lua.a' more than once."), "{logged:?}");
}

#[test]
fn bodies_get_arguments_and_paths() {
    let scripts = Scripts::new();
    std::fs::write(scripts.directory().join("mod.lua"), "return {v = 'from the module'}").expect("written");
    let pattern = format!("{}/?.lua", scripts.directory().display());
    let code = "local arg = ...
        local m = require('mod')
        core.register_action('a', {'http-req'}, function(txn) txn:set_var('txn.result', arg .. ' ' .. m.v) end)";
    let result =
        bench(scripts.with(code, false).path(&pattern), 1, |bench| Box::pin(async move { bench.result("a").await }));
    assert_eq!(result, "one from the module");
}

#[test]
fn each_worker_has_its_state_and_number() {
    let code = "count = 0
        core.register_action('a', {'http-req'}, function(txn)
          count = count + 1 txn:set_var('txn.result', core.thread .. ':' .. count) end)";
    let result = bench(Scripts::new().with(code, true), 2, |bench| {
        Box::pin(async move {
            bench.result("a").await;
            bench.result("a").await
        })
    });
    assert_eq!(result, "1:2");
}

#[test]
fn init_functions_run_before_traffic_and_can_t_wait() {
    let code = "core.register_init(function() started = core.redis('main'):incrby('k', 4) end)
        core.register_action('a', {'http-req'}, function(txn) txn:set_var('txn.result', started) end)";
    assert_eq!(bench(shared(code), 1, |bench| Box::pin(async move { bench.result("a").await })), "4");
    // As in HAProxy, a pause is none, and a script learns from its error that it cannot wait.
    let code = "core.msleep(1000000)
        core.register_init(function()
          core.sleep(1000) core.yield()
          local waited, wrong = pcall(function() return core.queue():pop_wait() end)
          started = tostring(waited) .. ' ' .. wrong
        end)
        core.register_action('a', {'http-req'}, function(txn) txn:set_var('txn.result', started) end)";
    let result = bench(shared(code), 1, |bench| Box::pin(async move { bench.result("a").await }));
    assert!(result.starts_with("false ") && result.ends_with("cannot wait here"), "{result}");
    let states = shared("core.register_init(function() core.queue():pop_wait() end)");
    let error = states.load(1, &Lines::default()).expect("loads").run_init().expect_err("it waits").to_string();
    assert!(error.starts_with("Lua init: runtime error: '") && error.contains("cannot wait here"), "{error}");
    let states =
        shared("core.register_init(function() error('boom', 0) end)").load(1, &Lines::default()).expect("loads");
    assert!(states.run_init().expect_err("it fails").to_string().starts_with("Lua init: runtime error: 'boom'"));
}

#[test]
fn tasks_run_beside_traffic() {
    let code = "ticks = 0
        core.register_task(function(step)
          core.register_task(function() nested = true end)
          while ticks < 3 do core.msleep(1) ticks = ticks + step end error('over', 0) end, 1)
        core.register_action('a', {'http-req'}, function(txn)
          while ticks < 3 do core.msleep(1) end core.msleep(1) txn:set_var('txn.result', tostring(nested)) end)";
    for per_thread in [false, true] {
        let (result, logged) = bench(Scripts::new().with(code, per_thread), 1, |bench| {
            Box::pin(async move { (bench.result("a").await, bench.logged()) })
        });
        assert_eq!(result, "true");
        assert!(logged[0].1.starts_with("Lua task: [state-id "), "{logged:?}");
        assert!(logged[0].1.contains("runtime error: over"), "{logged:?}");
    }
}
