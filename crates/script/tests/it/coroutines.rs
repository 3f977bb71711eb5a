//! Waits through the script's own coroutines, under pcall, and where they can't go.

use crate::support::{Host, check, run, state};

#[test]
fn waits_in_plain_code_and_under_pcall() {
    check("return ask(4) + ask(5)", "18");
    check("local ok, v = pcall(ask, 4) return tostring(ok) .. v", "true8");
    check("local ok, v = pcall(function() local x = ask(4) error('no' .. x, 0) end) return v", "no8");
    check("return select(2, xpcall(function() return ask(1) end, debug.traceback))", "2");
    check("local t = setmetatable({}, {__index = function(t, k) return ask(k) end}) return t[21]", "42");
    check("for _ in function(_, i) if not i then return ask(3) end end do return 'once' end", "once");
}

#[test]
fn waits_travel_through_the_scripts_own_coroutines() {
    check("local co = coroutine.create(function(a) return ask(a) end) return select(2, coroutine.resume(co, 7))", "14");
    check("return coroutine.wrap(function(a) local b = ask(a) return ask(b) end)(7)", "28");
    // Three levels, and a yield of the script's own between two waits.
    check(
        "local function inner() local x = ask(1) coroutine.yield(x) return ask(x) end
         local outer = coroutine.wrap(function()
           local co = coroutine.create(inner)
           local _, a = coroutine.resume(co)
           local _, b = coroutine.resume(co)
           return a .. ',' .. b .. ',' .. coroutine.status(co)
         end)
         return outer()",
        "2,4,dead",
    );
    check(
        "local gen = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(ask(i)) end end)
         return gen() .. gen() .. gen()",
        "246",
    );
    check("local ok, e = pcall(coroutine.wrap(function() ask(1) error('inside', 0) end)) return e", "inside");
}

#[test]
fn status_and_running_stay_lua_s() {
    check("local co = coroutine.create(function() end) return coroutine.status(co)", "suspended");
    check(
        "local co co = coroutine.create(function() return coroutine.status(co) end) return select(2, coroutine.resume(co))",
        "running",
    );
    check(
        "local me = coroutine.running() return select(2, coroutine.resume(coroutine.create(function() return coroutine.status(me) end)))",
        "normal",
    );
    check("return tostring(coroutine.isyieldable()) .. tostring(select(2, coroutine.running()))", "truefalse");
    check("local co = coroutine.wrap(function() error({}) end) return tostring(pcall(co))", "false");
    check(
        "local co = coroutine.create(function() end) coroutine.resume(co) return select(2, coroutine.resume(co))",
        "cannot resume dead coroutine",
    );
    check(
        "local co = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() error('closing', 0) end}) coroutine.yield() end) coroutine.resume(co) return select(2, coroutine.close(co))",
        "closing",
    );
    check("return select(2, pcall(coroutine.close, coroutine.running()))", "cannot close a running coroutine");
}

#[test]
fn a_waiting_coroutine_belongs_to_its_root() {
    // While `co` waits inside the first root, another root sees it as running elsewhere.
    use sluicegate_script::{Budget, Burst};
    let mut state = state(0);
    let first = crate::support::start(
        &mut state,
        "co = coroutine.create(function() return ask(1) end) return coroutine.resume(co)",
    );
    let mut budget = Budget::new(None, None);
    // SAFETY: loaded without arguments.
    assert_eq!(unsafe { state.resume(&first, 0, &mut budget) }, Burst::Waiting);
    let seen = run(&mut state, "return coroutine.status(co) .. ':' .. select(2, coroutine.resume(co))");
    assert_eq!(seen.as_deref(), Ok("normal:cannot resume non-suspended coroutine"));
    let closed = run(&mut state, "return select(2, pcall(coroutine.close, co))");
    assert_eq!(closed.as_deref(), Ok("cannot close a normal coroutine"));
    state.host::<Host>().answer = 5;
    // SAFETY: resumed after a wait, without arguments.
    assert_eq!(unsafe { state.resume(&first, 0, &mut budget) }, Burst::Done(2));
    state.recycle(first);
    // Given up in the middle: the coroutine inside is forgotten, and its root serves again.
    let second = crate::support::start(
        &mut state,
        "co = coroutine.create(function() return ask(1) end) return coroutine.resume(co)",
    );
    let mut budget = Budget::new(None, None);
    // SAFETY: loaded without arguments.
    assert_eq!(unsafe { state.resume(&second, 0, &mut budget) }, Burst::Waiting);
    state.recycle(second);
    assert_eq!(run(&mut state, "return coroutine.status(co)").as_deref(), Ok("suspended"));
    assert_eq!(run(&mut state, "return ask(2)").as_deref(), Ok("4"));
}

#[test]
fn a_wait_across_a_c_call_is_a_clear_error() {
    for code in [
        "package.preload.m = function() return ask(1) end require('m')",
        "package.preload.m = coroutine.wrap(function() ask(1) coroutine.yield(false) end) require('m')",
    ] {
        let mut state = state(0);
        let error = run(&mut state, code).expect_err(code);
        assert!(error.message.contains("attempt to yield across a C-call boundary"), "{code}: {error}");
        assert_eq!(run(&mut state, "return ask(2)").as_deref(), Ok("4"), "the state serves on");
    }
}

/// Lua's own functions call what scripts give them across such a boundary; those in their place do not.
#[test]
fn what_library_functions_call_may_wait() {
    check("local t = {3, 2, 1} table.sort(t, function(a, b) return ask(a) < ask(b) end) return table.concat(t)", "123");
    check("return (('abc'):gsub('%w', function(c) return ask(#c) end))", "222");
    check("return (('abc'):gsub('%w', setmetatable({}, {__index = function(_, k) return k .. ask(1) end})))", "a2b2c2");
    check("return tostring(setmetatable({}, {__tostring = function() return 'x' .. ask(2) end}))", "x4");
    check("return ('%s'):format(setmetatable({}, {__tostring = function() return 'x' .. ask(2) end}))", "x4");
    check(
        "return table.concat(setmetatable({}, {__index = function(_, k) return ask(k) end, __len = function() return 2 end}))",
        "24",
    );
    check("return load(function() ask(1) return nil end) and 'loaded'", "loaded");
}

#[test]
fn a_yield_at_the_top_goes_to_the_driver() {
    check("coroutine.yield(1, 2, 3) return 'after'", "after");
}

#[test]
fn errors_carry_their_traceback() {
    let mut state = state(0);
    let error = run(&mut state, "local function f() error('boom') end\nlocal function g() f() end\ng()").unwrap_err();
    assert_eq!(error.message, "test:1: boom");
    assert!(error.trace.contains("test:1: in"), "{}", error.trace);
    assert!(error.trace.contains("test:3: in"), "{}", error.trace);
    let error = run(&mut state, "error({})").unwrap_err();
    assert_eq!(error.message, "(error object is a table value)");
    let error = run(&mut state, "error()").unwrap_err();
    assert_eq!(error.message, "(error object is a nil value)");
}
