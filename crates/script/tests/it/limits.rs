//! Budget and memory.

use std::time::Duration;

use sluicegate_script::{Budget, Burst, ErrorKind};

use crate::support::{Host, run, run_with, start, state};

fn short() -> Budget {
    Budget::new(Some(Duration::from_millis(30)), Some(Duration::from_millis(30)))
}

#[test]
fn a_spinning_script_yields_and_is_ended() {
    for code in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local co = coroutine.wrap(function() while true do end end) while true do pcall(co) end",
        "local function f() return f() end f()",
        "goto a ::a:: goto a",
    ] {
        let mut state = state(0);
        let coroutine = start(&mut state, code);
        let mut budget = Budget::default();
        // SAFETY: loaded without arguments.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Forced, "{code}: others get their turn");
        (budget.total, budget.burst) = (short().total, short().burst);
        // SAFETY: as above.
        while unsafe { state.resume(&coroutine, 0, &mut budget) } == Burst::Forced {}
        let error = state.failure(&coroutine);
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Timeout, "execution timeout"), "{code}");
        state.recycle(coroutine);
        assert_eq!(run(&mut state, "return 'serves on'").as_deref(), Ok("serves on"));
    }
}

#[test]
fn a_short_script_is_alone_however_long_its_thread_is_kept_from_running() {
    let mut state = state(0);
    let coroutine = start(&mut state, "count = 1 local seen = count stands_still() count = seen + 1");
    let mut budget = Budget::default();
    // SAFETY: loaded without arguments.
    assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Done(0));
    state.recycle(coroutine);
}

#[test]
fn a_script_that_can_t_yield_is_ended_all_the_same() {
    for code in [
        "table.sort({3, 2, 1}, function() while true do end end)",
        "table.sort({3, 2, 1}, function() while true do pcall(function() while true do end end) end end)",
        "local t = setmetatable({}, {__gc = true}) return ('x'):gsub('x', function() while true do end end)",
    ] {
        let mut state = state(0);
        let error = run_with(&mut state, code, short()).expect_err(code);
        assert_eq!(error.kind, ErrorKind::Timeout, "{code}");
        assert_eq!(run(&mut state, "return 'serves on'").as_deref(), Ok("serves on"));
    }
}

#[test]
fn a_long_script_within_its_budget_gives_its_result() {
    let mut state = state(0);
    // Long enough to be signalled on any machine, in the script's own coroutine as well. Counted, because the clock that
    // scripts see is the process's: others may use it up.
    let code = "local n = 0 for i = 1, 2e7 do n = n + 1 end
        return coroutine.wrap(function() for i = 1, 2e7 do n = n + 1 end return 'whole' end)()";
    assert_eq!(run(&mut state, code).as_deref(), Ok("whole"));
    assert!(state.host::<Host>().forced >= 2);
}

#[test]
fn closing_variables_has_a_budget_too() {
    let mut state = state(0);
    let code = "local x <close> = setmetatable({}, {__close = function() while true do end end}) ask(1)";
    let coroutine = start(&mut state, code);
    let mut budget = short();
    // SAFETY: loaded without arguments.
    assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Waiting);
    state.recycle(coroutine);
    assert_eq!(run(&mut state, "return 1").as_deref(), Ok("1"));
}

#[test]
fn run_time_adds_up_over_yields() {
    let mut state = state(0);
    let coroutine = start(&mut state, "while true do for i = 1, 1000 do end ask(1) end");
    let mut budget = short();
    let mut bursts = Vec::new();
    // SAFETY: loaded without arguments.
    while unsafe { state.resume(&coroutine, 0, &mut budget) } != Burst::Failed {
        bursts.push(budget.used);
    }
    assert_eq!(state.failure(&coroutine).kind, ErrorKind::Timeout);
    state.recycle(coroutine);
    // The first one is not timed unless it is long.
    assert!(bursts.windows(2).all(|pair| pair[0] < pair[1]), "each adds its own: {bursts:?}");
    assert!(budget.used >= Duration::from_millis(30), "{budget:?}");
}

#[test]
fn memory_is_bounded() {
    let mut state = state(4 << 20);
    for code in ["return #string.rep('x', 16 << 20)", "local t = {} for i = 1, 1e9 do t[i] = i .. '' end"] {
        let error = run(&mut state, code).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Memory, "not enough memory"), "{code}");
    }
    assert_eq!(run(&mut state, "return pcall(string.rep, 'x', 16 << 20)").as_deref(), Ok("false"));
    assert_eq!(run(&mut state, "collectgarbage() return #string.rep('x', 1 << 20)").as_deref(), Ok("1048576"));
}

#[test]
fn endless_recursion_is_an_error() {
    let mut state = state(0);
    let error = run(&mut state, "local function f() return 1 + f() end return f()").unwrap_err();
    assert!(error.message.contains("stack overflow"), "{error}");
    let error = run(&mut state, "local function f() return coroutine.wrap(f)() end return f()").unwrap_err();
    assert!(error.message.contains("C stack overflow"), "{error}");
    assert_eq!(run(&mut state, "return 1").as_deref(), Ok("1"));
}

#[test]
fn a_panic_is_an_error_of_the_script_that_met_it() {
    let mut state = state(0);
    let error = run(&mut state, "panics(7)").expect_err("it is raised");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Runtime, "test:1: internal error: a fault with 7"));
    for (code, expected) in [
        ("return select(2, pcall(panics, 1))", "internal error: a fault with 1"),
        ("return select(2, coroutine.resume(coroutine.create(panics), 2))", "internal error: a fault with 2"),
        ("local ok = pcall(coroutine.wrap(function() ask(1) panics(3) end)) return tostring(ok) .. ask(4)", "false8"),
        ("setmetatable({}, {__gc = panics}) collectgarbage() return 'collected'", "collected"),
    ] {
        assert_eq!(run(&mut state, code).as_deref(), Ok(expected), "{code}");
    }
    // SAFETY: the closure's value is a number.
    let error = unsafe { state.protect::<(), _>(|_| panic!("in a protected call")) }.expect_err("it is caught");
    assert_eq!(error.message, "internal error: in a protected call");
    assert_eq!(run(&mut state, "return 'serves on'").as_deref(), Ok("serves on"));
}

#[test]
fn closing_a_coroutine_by_hand_has_the_budget_too() {
    let forever = "local x <close> = setmetatable({}, {__close = function() while true do end end})";
    for code in [
        format!(
            "local co = coroutine.create(function() {forever} coroutine.yield() end)
            coroutine.resume(co) coroutine.close(co) while true do end"
        ),
        format!("pcall(coroutine.wrap(function() {forever} error('x') end)) while true do end"),
    ] {
        let mut state = state(0);
        let error = run_with(&mut state, &code, short()).expect_err(&code);
        assert_eq!(error.kind, ErrorKind::Timeout, "{code}");
        assert_eq!(run(&mut state, "return 'serves on'").as_deref(), Ok("serves on"));
    }
}
