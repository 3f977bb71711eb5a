//! Tests that long-running functions poll often enough, and work correctly whatever a poll answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::run::tests::{answer, asked};
use crate::{Budget, Burst, Error, MemoryLimit, Poll, State, Watch, ffi, patient, to_bytes};

/// Scripts whose C functions run long, each with its minimum number of polls. Their results show whether all work was
/// done.
const LONG: &[(&str, u64)] = &[
    ("return tostring(string.rep('a', 22):find('a-a-a-a-a-a-b'))", 100),
    ("return tostring(string.rep('a', 1000000):find('a-b', 999990))", 0),
    ("return table.concat({string.rep('x', 500000):find('x*')}, ' ')", 100),
    ("return tostring(('x'):rep(200000):find('.-y', 199900))", 0),
    ("return table.concat({('('):rep(4000):gsub('%b()', '')}, ' '):sub(-5)", 100),
    ("return table.concat({string.rep('x', 900000):find('y')}, ' ')", 4),
    ("return table.concat({(('x'):rep(900000) .. 'yz'):find('yz', 1, true)}, ' ')", 8),
    ("local n = 0 for w in ('ab '):rep(20000):gmatch('[^ ]+') do n = n + #w end return tostring(n)", 0),
    ("local s, n = ('ab '):rep(50000):gsub('a', 'xyz') return #s .. ' ' .. n .. s:sub(-6)", 2),
    ("local s, n = ('ab '):rep(50000):gsub('(a)(b)', '%2%1%0') return #s .. ' ' .. n .. s:sub(-6)", 2),
    ("local s, n = ('ab '):rep(30000):gsub('a', {a = 'x'}) return #s .. ' ' .. n .. s:sub(-6)", 1),
    ("local s, n = ('ab '):rep(3000):gsub('a', function(c) return c .. c end) return #s .. n .. s:sub(-6)", 3000),
    (
        "local m = {__index = function(t, k) return k .. k end} local s, n = ('ab '):rep(3000):gsub('a', setmetatable({}, m)) return #s .. n",
        3000,
    ),
    ("return #('xyz'):rep(200000) .. ('xyz'):rep(200000):sub(-4)", 5),
    ("local s = ('aB'):rep(300000) return #s:upper() .. s:lower():sub(-3) .. s:reverse():sub(1, 3)", 6),
    ("return #string.format('%s|%q|%s', ('x'):rep(100000), ('\"'):rep(100000), ('y'):rep(100000))", 5),
    ("local t = {} for i = 1, 50000 do t[i] = i % 7 end return #table.concat(t, ',')", 20),
    ("local t = {} for i = 1, 300 do t[i] = ('x'):rep(5000) end return #table.concat(t)", 20),
    ("local t = {} for i = 1, 30000 do t[i] = i end table.insert(t, 1, 0) return t[1] .. t[2] .. t[30001]", 10),
    ("local t = {} for i = 1, 30000 do t[i] = i end local x = table.remove(t, 1) return x .. t[1] .. #t", 10),
    ("local t = {} for i = 1, 9000 do t['k' .. i] = i t[i] = 1 end return table.maxn(t) .. ''", 8),
    (
        "local t, x = {}, 7 for i = 1, 15000 do x = x * 1103515245 % 65536 + 1 t[i] = x end table.sort(t) \
      for i = 2, #t do if t[i - 1] > t[i] then return 'no' end end return t[1] .. ' ' .. t[#t]",
        100,
    ),
    (
        "local t, x = {}, 7 for i = 1, 15000 do x = x * 1103515245 % 65536 + 1 t[i] = 'k' .. x end table.sort(t) \
      for i = 2, #t do if t[i - 1] > t[i] then return 'no' end end return t[1] .. t[#t]",
        100,
    ),
    (
        "local t, x = {}, 7 for i = 1, 3000 do x = x * 1103515245 % 65536 + 1 t[i] = x end \
      table.sort(t, function(a, b) return a > b end) \
      for i = 2, #t do if t[i - 1] < t[i] then return 'no' end end return t[1] .. ' ' .. t[#t]",
        50,
    ),
    (
        "local m = {__lt = function(a, b) return a[1] < b[1] end} local t = {} \
      for i = 1, 3000 do t[i] = setmetatable({-i}, m) end table.sort(t) return t[1][1] .. ' ' .. t[3000][1]",
        50,
    ),
    ("local code = 'local x = 0 ' .. ('x = x + 1 '):rep(20000) .. 'return x' return loadstring(code)() .. ''", 150),
    (
        "local n = 0 local f = load(function() n = n + 1 if n == 1 then return 'local x = 0 ' end \
      if n < 20000 then return 'x = x + 1 ' end if n == 20000 then return 'return x' end end) return f() .. ''",
        150,
    ),
    ("local t = {} for i = 1, 20000 do t[i] = {} end t = nil return collectgarbage() .. ''", 1),
    ("return #tostring(cjson.encode({('x'):rep(200000)}))", 1),
];

fn sandbox() -> State {
    State::sandboxed(Arc::new(MemoryLimit::new(0)), ()).expect("a sandbox")
}

/// Runs a script; returns its result and how many bursts were ended early.
fn run(state: &mut State, code: &str) -> (Result<String, Error>, u32) {
    let function = state.compile(code.as_bytes(), c"=x").expect("it compiles").expect("on a patient thread");
    let coroutine = state.begin(&function, &[], &[]).expect("a coroutine");
    let (mut budget, mut forced) = (Budget::default(), 0);
    let result = loop {
        // SAFETY: the coroutine holds the function alone.
        match unsafe { state.resume(&coroutine, 0, &mut budget) } {
            Burst::Forced => forced += 1,
            Burst::Done(_) => {
                // SAFETY: the result is on top; a number among the results becomes a string in place.
                unsafe {
                    let thread = coroutine.thread();
                    ffi::lua_tolstring(thread, -1, std::ptr::null_mut());
                    break Ok(String::from_utf8_lossy(to_bytes(thread, -1).unwrap_or_default()).into_owned());
                }
            }
            Burst::Failed => break Err(state.failure(&coroutine)),
            other => panic!("{other:?}"),
        }
    };
    state.recycle(coroutine);
    state.release(function);
    (result, forced)
}

#[test]
fn a_long_function_leaves_a_patient_thread_whose_slice_is_ended() {
    let burst = std::thread::spawn(|| {
        patient(true);
        let mut state = sandbox();
        let forever = b"return ('a'):rep(40):find(('a*'):rep(40) .. 'b')";
        let function = state.compile(forever, c"=x").expect("it compiles").expect("on a patient thread");
        let coroutine = state.begin(&function, &[], &[]).expect("a coroutine");
        let (watch, is_over) = (Watch::of_this_thread(), AtomicBool::new(false));
        let burst = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    watch.end_slice();
                    std::thread::yield_now();
                }
            });
            // SAFETY: the coroutine holds the function alone.
            let burst = unsafe { state.resume(&coroutine, 0, &mut Budget::default()) };
            is_over.store(true, Ordering::Relaxed);
            burst
        });
        state.recycle(coroutine);
        burst
    });
    assert_eq!(burst.join().expect("the thread"), Burst::Forced);
}

#[test]
fn what_runs_long_asks_often_and_does_not_mind_the_answer() {
    patient(true);
    for (code, least) in LONG {
        let mut state = sandbox();
        answer(u64::MAX, Poll::Go);
        let (expected, _) = run(&mut state, code);
        let expected = expected.unwrap_or_else(|error| panic!("{code}: {error}"));
        let polls = asked();
        assert!(polls >= *least, "{code}: only {polls} polls");
        // All polls if there are few, otherwise a sample of them, and always the last one.
        let step = (polls / 12).max(1);
        for at in (1..=polls).step_by(step as usize).chain([polls]) {
            answer(at, Poll::Leave);
            let (result, _) = run(&mut state, code);
            assert_eq!(result.as_deref(), Ok(expected.as_str()), "{code}: left at poll {at} of {polls}");
            answer(at, Poll::Stop);
            let (result, _) = run(&mut state, code);
            match result {
                Err(error) => assert!(error.message.ends_with("script stopped"), "{code}: {error}"),
                // A function that calls back into the script polls once more if the callee was forced to yield, which
                // depends on the timer: a run may have fewer polls than the first one had.
                Ok(result) => assert!(asked() < at && result == expected, "{code}: went on after poll {at} of {polls}"),
            }
        }
    }
}
