//! No function called by a script occupies for long a thread that others wait for.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::{
    Budget, Burst, ErrorKind, MemoryLimit, Poll, State, again, function, host, is_patient, leave, patient, poll,
    push_globals, stopped,
};

use super::support::{run, sandbox};
use crate::support::start;

#[derive(Default)]
struct Host {
    /// The number of calls of `long`.
    begun: u32,
    /// The number of its polls.
    polls: u64,
    /// The arguments of calls of `mark` on a thread that others wait for.
    marks: Vec<i64>,
}

/// Polls until the answer is to leave or to stop; once resumed, it returns after a thousand polls.
unsafe fn long(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the host is a `Host`.
    unsafe {
        host::<Host>(lua).begun += 1;
        let mut go_on = 1000;
        loop {
            host::<Host>(lua).polls += 1;
            match poll(lua) {
                Poll::Leave => return leave(lua, again!(long)),
                Poll::Stop => stopped(lua),
                Poll::Go if host::<Host>(lua).begun > 1 => go_on -= 1,
                Poll::Go => {}
            }
            if go_on == 0 {
                ffi::lua_pushvalue(lua, 1);
                return 1;
            }
        }
    }
}

unsafe fn mark(lua: *mut lua_State) -> c_int {
    // SAFETY: as in `long`; the push may move `marks`, but no call of Lua follows the access to the host.
    unsafe {
        if !is_patient() {
            host::<Host>(lua).marks.push(ffi::lua_tointeger(lua, 1));
        }
        0
    }
}

fn state() -> State {
    let mut state = State::sandboxed(Arc::new(MemoryLimit::new(0)), Host::default()).expect("a state");
    // SAFETY: nothing is held.
    unsafe {
        state
            .protect(|lua| {
                push_globals(lua);
                ffi::lua_pushcfunction(lua, function!(long));
                ffi::lua_setfield(lua, -2, c"long".as_ptr());
                ffi::lua_pushcfunction(lua, function!(mark));
                ffi::lua_setfield(lua, -2, c"mark".as_ptr());
            })
            .expect("registered");
    }
    state
}

#[test]
fn a_long_function_leaves_and_ends_elsewhere() {
    for code in ["return long(7)", "return coroutine.wrap(function() return select(2, pcall(long, 7)) end)()"] {
        let mut state = state();
        let coroutine = start(&mut state, code);
        let mut budget = Budget::default();
        // SAFETY: loaded without arguments.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Forced, "{code}");
        assert_eq!(state.host::<Host>().begun, 1);
        std::thread::spawn(move || {
            patient(true);
            loop {
                // SAFETY: as above.
                match unsafe { state.resume(&coroutine, 0, &mut budget) } {
                    Burst::Forced => continue,
                    Burst::Done(1) => break,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(state.host::<Host>().begun, 2);
            // SAFETY: one result is there.
            assert_eq!(unsafe { ffi::lua_tointeger(coroutine.thread(), -1) }, 7);
            state.recycle(coroutine);
        })
        .join()
        .expect("the other thread ends well");
    }
}

/// Scripts that allocate large blocks, the highest mark that they reach on a thread that others wait for, and their
/// results.
const LARGE: &[(&str, i64, &str)] = &[
    ("local s = ('x'):rep(200000) mark(1) s = s .. s mark(2) s = s .. s mark(3) return #s", 1, "800000"),
    ("local s = ('x'):rep(1000) for i = 1, 12 do s = s .. s mark(#s) end return #s", 262_143, "4096000"),
    ("local t = {} for i = 1, 100000 do t[i] = i if i % 1024 == 0 then mark(i) end end return #t", 16_383, "100000"),
    (
        "local t = {} for i = 1, 100000 do t[-i] = i if i % 1024 == 0 then mark(i) end end return t[-100000]",
        16_383,
        "100000",
    ),
    (
        "local s = ('x'):rep(200000) local c = coroutine.wrap(function() s = s .. s mark(1) s = s .. s end) c() mark(2) \
         return #s",
        0,
        "800000",
    ),
];

#[test]
fn scripts_with_large_blocks_leave_before_the_next_step() {
    for (code, most, result) in LARGE {
        let mut state = state();
        let coroutine = start(&mut state, code);
        let mut budget = Budget::default();
        // SAFETY: loaded without arguments.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Forced, "{code}");
        std::thread::spawn(move || {
            patient(true);
            // SAFETY: as above.
            while unsafe { state.resume(&coroutine, 0, &mut budget) } == Burst::Forced {}
            let marks = &state.host::<Host>().marks;
            assert!(marks.iter().all(|mark| mark <= most), "{code}: {marks:?}");
            // SAFETY: one result is there.
            let got = unsafe { ffi::lua_tointeger(coroutine.thread(), -1) };
            assert_eq!(got.to_string(), *result, "{code}");
            state.recycle(coroutine);
        })
        .join()
        .expect("the other thread ends well");
    }
}

#[test]
fn whatever_runs_can_be_ended_from_outside() {
    for code in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do pcall(long) end",
        "coroutine.wrap(function() while true do pcall(coroutine.wrap(function() long() end)) end end)()",
    ] {
        let mut state = state();
        let coroutine = start(&mut state, code);
        let mut budget = Budget::default();
        let stop = state.stopper();
        // SAFETY: loaded without arguments.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Forced, "{code}");
        stop.store(true, Ordering::Relaxed);
        // SAFETY: as above.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Failed, "{code}");
        assert_eq!(state.failure(&coroutine).kind, ErrorKind::Stopped, "{code}");
        state.recycle(coroutine);
        stop.store(false, Ordering::Relaxed);
        let coroutine = start(&mut state, "return 1");
        // SAFETY: as above.
        assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Done(1));
        state.recycle(coroutine);
    }
}

/// Scripts that spend nearly all their time in one C function or in what it calls, and their results.
const LONG: &[(&str, &str)] = &[
    // A pattern that takes exponential time.
    ("return tostring(('a'):rep(26):find('a-a-a-a-a-a-a-b'))", "nil"),
    ("return tostring(pcall(string.match, ('a'):rep(26), 'a*a*a*a*a*a*a*b'))", "true"),
    ("local n = 0 for w in ('('):rep(20000):gmatch('%b()') do n = n + 1 end return n .. ''", "0"),
    ("return #('x'):rep(300 * 2^20) .. ''", "314572800"),
    (
        "local s = ('aBc'):rep(20 * 2^20) return #s:reverse() .. s:upper():sub(1, 3) .. s:lower():sub(-3)",
        "62914560ABCabc",
    ),
    ("local t = {} for i = 1, 1000000 do t[i] = i % 10 end return #table.concat(t) .. ''", "1000000"),
    (
        "local t, x = {}, 7 for i = 1, 1000000 do x = x * 1103515245 % 2147483648 + 1 t[i] = x end table.sort(t) \
         for i = 2, #t do if t[i - 1] > t[i] then return 'unsorted' end end return #t .. ''",
        "1000000",
    ),
    (
        "local t = {} for i = 1, 40000 do t[i] = (i * 7919) % 40009 end table.sort(t, function(a, b) return a > b end) \
         return t[1] .. ' ' .. t[#t]",
        "40008 1",
    ),
    ("local s, n = ('ab'):rep(200000):gsub('a', function(c) return c .. c end) return #s .. ' ' .. n", "600000 200000"),
    ("local s, n = ('ab'):rep(2000000):gsub('(a)', '%1%1') return #s .. ' ' .. n", "6000000 2000000"),
    (
        "local code = 'local x = 0 ' .. ('x = x + 1 '):rep(400000) .. 'return x' return loadstring(code)() .. #code",
        "4000004000020",
    ),
    // Functions that catch errors, and functions that call themselves through C functions.
    ("local n = 0 for i = 1, 300000 do if not pcall(error, 'x') then n = n + 1 end end return n .. ''", "300000"),
    (
        "local function f(n) if n == 0 then local x = 0 for i = 1, 20000000 do x = x + 1 end return x end \
         return coroutine.wrap(function() return select(2, pcall(f, n - 1)) end)() end return f(20) .. ''",
        "20000000",
    ),
    (
        "local ok, m = xpcall(error, function() local x = 0 for i = 1, 20000000 do x = x + 1 end return x end) return m .. ''",
        "20000000",
    ),
    (
        "local t = setmetatable({}, {__tostring = function() local x = 0 for i = 1, 20000000 do x = x + 1 end return 'x' .. x end}) \
         return tostring(t)",
        "x20000000",
    ),
    (
        "local m = {__add = function(a, b) local x = 0 for i = 1, 20000000 do x = x + 1 end return x end} \
         return ('1' + setmetatable({}, m)) .. ''",
        "20000000",
    ),
    (
        "return table.foreach({1}, function() local x = 0 for i = 1, 20000000 do x = x + 1 end return x .. '' end)",
        "20000000",
    ),
];

#[test]
fn long_functions_leave_a_thread_that_others_wait_for() {
    for (code, expected) in LONG {
        let mut state = sandbox();
        patient(false);
        let mut burst;
        let mut budget = Budget::default();
        // The script is compiled on this thread, even if that takes longer than the thread may be kept.
        let coroutine = start(&mut state, code);
        // Every script is forced to yield here; how often that happens while it fills its tables does not matter.
        // SAFETY: loaded without arguments.
        burst = unsafe { state.resume(&coroutine, 0, &mut budget) };
        assert_eq!(burst, Burst::Forced, "{code}");
        let result = std::thread::spawn(move || {
            patient(true);
            while burst == Burst::Forced {
                // SAFETY: as above.
                burst = unsafe { state.resume(&coroutine, 0, &mut budget) };
            }
            assert_eq!(burst, Burst::Done(1), "{code}: {}", state.failure(&coroutine));
            // SAFETY: one result is there.
            let result = unsafe { sluicegate_script::to_bytes(coroutine.thread(), -1).expect("a string").to_vec() };
            state.recycle(coroutine);
            result
        })
        .join()
        .expect("the other thread ends well");
        assert_eq!(String::from_utf8_lossy(&result), *expected, "{code}");
    }
}

/// On a thread that others wait for, a function that can't finish within a slice does nothing, however often it is
/// resumed, so it never occupies the thread.
#[test]
fn what_is_too_large_is_never_done_in_haste() {
    for code in [
        "return #('x'):rep(300 * 2^20)",
        "return tostring(('a'):rep(40):find('a-a-a-a-a-a-a-a-a-a-b'))",
        "local t = {('x'):rep(900000), ('x'):rep(900000)} return #table.concat(t)",
        "local s = ('x'):rep(1000000) return #s:gsub('x', 'yy')",
    ] {
        let mut state = sandbox();
        patient(false);
        let coroutine = start(&mut state, code);
        let mut budget = Budget::default();
        for _ in 0..30 {
            // SAFETY: loaded without arguments.
            assert_eq!(unsafe { state.resume(&coroutine, 0, &mut budget) }, Burst::Forced, "{code}");
        }
        state.recycle(coroutine);
    }
}

#[test]
fn a_large_source_is_compiled_where_there_is_time() {
    let mut state = sandbox();
    let code = format!("local x = 0 {} return x", "x = x + 1 ".repeat(400_000));
    patient(false);
    assert_eq!(state.compile(code.as_bytes(), c"@x"), Ok(None));
    // Short scripts are compiled at once, even if that takes longer than the limit.
    for _ in 0..50 {
        let short = format!("local a = {{}} {} return a", "a = {a}".repeat(1100));
        let function = state.compile(short.as_bytes(), c"@x").expect("it compiles").expect("at once");
        state.release(function);
    }
    patient(true);
    let function = state.compile(code.as_bytes(), c"@x").expect("it compiles").expect("there is time");
    state.release(function);
}

#[test]
fn a_function_on_a_patient_thread_can_be_ended() {
    for code in [
        "return ('a'):rep(200):find(('a-'):rep(100) .. 'b')",
        "while true do pcall(string.match, ('a'):rep(200), ('a*'):rep(100) .. 'b') end",
        "local t = {} for i = 1, 100 do t[i] = i end table.sort(t, function() while true do end end)",
        "load(function() return 'x' end)",
    ] {
        let mut state = sandbox();
        let stop = state.stopper();
        let running = std::thread::spawn(move || {
            patient(true);
            let coroutine = start(&mut state, code);
            let mut budget = Budget::default();
            loop {
                // SAFETY: loaded without arguments.
                match unsafe { state.resume(&coroutine, 0, &mut budget) } {
                    Burst::Forced => {}
                    Burst::Failed => break,
                    other => panic!("{code}: {other:?}"),
                }
            }
            assert_eq!(state.failure(&coroutine).kind, ErrorKind::Stopped, "{code}");
            state.recycle(coroutine);
        });
        stop.store(true, Ordering::Relaxed);
        running.join().expect("it ends");
    }
}

#[test]
fn protected_calls_in_their_own_handlers_are_bounded() {
    for (code, expected) in [
        // The calls are counted, because every one of them returns eventually.
        ("local n = 0 local function f() n = n + 1 xpcall(f, f) end f() return tostring(n < 25000)", "true"),
        ("local n = 0 local function f() n = n + 1 pcall(f) end f() return tostring(n < 25000)", "true"),
        (
            "local function f(n) if n == 0 then return select(2, pcall(error, 'deep')) end return (f(n - 1)) end return f(15000)",
            "deep",
        ),
        (
            "local function f(n) if n == 0 then return pcall(error) end return (f(n - 1)) end return select(2, pcall(f, 25000))",
            "stack overflow",
        ),
    ] {
        let result = run(&mut sandbox(), code.as_bytes(), &[]);
        let result = result.unwrap_or_else(|error| panic!("{code}: {error}"));
        assert!(String::from_utf8_lossy(&result[0]).ends_with(expected), "{code}: {result:?}");
    }
}
