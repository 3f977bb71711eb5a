//! Tests that compare the functions for long work with Lua's own, on short arguments.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use crate::run::tests::answer;
use crate::{Budget, Burst, MemoryLimit, Poll, State, ffi, to_bytes};

thread_local! {
    /// Whether short arguments are processed like long ones.
    pub(super) static FORCED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the results of a chunk, as text. `interrupted`: the poll with this number suspends it.
fn run(state: &mut State, code: &str, interrupted: Option<u64>) -> String {
    let coroutine = state.coroutine().expect("a coroutine");
    let thread = coroutine.thread();
    let whole = format!(
        "local values = table.pack(pcall(function(...) {code} end)) for n = 1, values.n do local value = values[n]
        values[n] = (math.type(value) or type(value)) .. ':' .. tostring(value) end return table.concat(values, '|')"
    );
    // SAFETY: a load answers with a status.
    let status = unsafe {
        ffi::luaL_loadbufferx(thread, whole.as_ptr().cast(), whole.len(), c"=test".as_ptr(), std::ptr::null())
    };
    assert_eq!(status, ffi::LUA_OK, "{code}");
    answer(interrupted.unwrap_or(u64::MAX), Poll::Leave);
    let mut budget = Budget::new(Some(Duration::from_secs(60)), None);
    loop {
        // SAFETY: the chunk was loaded on the coroutine.
        match unsafe { state.resume(&coroutine, 0, &mut budget) } {
            Burst::Done(_) => break,
            Burst::Forced => {}
            other => panic!("{code}: {other:?} {:?}", state.failure(&coroutine)),
        }
    }
    // SAFETY: the chunk returns a string.
    let text = unsafe { String::from_utf8_lossy(to_bytes(thread, -1).unwrap_or_default()).into_owned() };
    state.recycle(coroutine);
    text
}

fn state() -> State {
    State::new(Arc::new(MemoryLimit::new(0)), ()).expect("a state")
}

/// Checks that a chunk returns the same in its functions' short and long cases.
#[track_caller]
fn check(state: &mut State, code: &str) {
    FORCED.set(false);
    let own = run(state, code, None);
    FORCED.set(true);
    for interrupted in [None, Some(1), Some(2)] {
        let long = run(state, code, interrupted);
        // The reported position differs because the function is called in another way.
        assert_eq!(long, own, "{code} ({interrupted:?})");
    }
    FORCED.set(false);
}

#[test]
fn strings_are_searched_as_by_lua() {
    let mut state = state();
    for code in [
        "return ('hello world'):find('o w')",
        "return ('hello world'):find('o', 6)",
        "return ('hello world'):find('l+', -3)",
        "return ('a.b'):find('.', 2, true)",
        "return ('abc'):find('b', 10)",
        "return ('abc'):find('', 4)",
        "return ('abc'):find('', 5)",
        "return ('key = value'):match('^(%w+)%s*=%s*(%w+)$')",
        "return ('abc'):match('()b()')",
        "return ('THE (quick) fox'):find('%((%a+)%)')",
        "return ('x[[y]]z'):match('%[(%b[])%]')",
        "return ('THE (quick) fox'):gsub('%f[%a]%a+', '<%0>')",
        "return ('abcabc'):gsub('(a)(b)(c)', '%3%2%1')",
        "return ('abc'):gsub('', '-')",
        "return ('abc'):gsub('%w', '%%')",
        "return ('hello'):gsub('l*', 'x')",
        "return ('abc'):gsub('^a', 'x')",
        "return ('aaa'):gsub('^a', 'x')",
        "return ('aaa'):gsub('a', 'x', 2)",
        "return ('aaa'):gsub('a', 'x', 0)",
        "return ('aaa'):gsub('a', 'x', -1)",
        "return ('a b c'):gsub('%w', {a = 1, b = false, c = 'C'})",
        "return ('a b c'):gsub('%w', function(c) if c ~= 'b' then return c .. c end end)",
        "return ('a b c'):gsub('%w', setmetatable({}, {__index = function(_, k) return k:upper() end}))",
        "return ('abc'):gsub('()', '%1')",
        "return ('abc'):gsub('%w', function() return {} end)",
        "return ('abc'):gsub('b', '%2')",
        "return ('abc'):gsub('b', '%x')",
        "return ('abc'):gsub('(b', 'x')",
        "return ('abc'):find('[a')",
        "return ('abc'):find('%')",
        "return ('abc'):find('%1')",
        "return ('abc'):find('(a)%0')",
        "return ('abc'):find('(a%1)')",
        "return ('abc'):find('%f')",
        "return ('abc'):find('a)')",
        "return ('abc'):find('%b')",
        "return ('aXb'):find('%bX')",
        "return ('a\\0b'):find('\\0')",
        "return ('a\\0b'):match('[%z]b')",
        "return ('tab\\there'):gsub('%c', '.')",
        "return ('a\\200b'):match('%g+')",
        "return ('x'):rep(300):find(('x?'):rep(250))",
        "return ('x'):find(('(x'):rep(40))",
        "local t = {} for a, b in ('k=v, x=y'):gmatch('(%w+)=(%w+)') do t[#t + 1] = a .. b end return table.unpack(t)",
        "local t = {} for w in ('one two'):gmatch('%a*') do t[#t + 1] = '<' .. w .. '>' end return table.unpack(t)",
        "local t = {} for w in ('abc'):gmatch('', 2) do t[#t + 1] = w end return #t",
        "local t = {} for w in ('^a^a'):gmatch('^a') do t[#t + 1] = w end return #t",
        "return ('abc'):gmatch('(')()",
        "return ('aXbX'):gsub('X', '%1')",
        "return ('x = 1'):gsub('(%w+) = (%w+)', '%2 = %1')",
        "return (123):rep(2)",
        "return string.find(1234, 23)",
        "return pcall(string.find, 'x')",
        "return select(2, pcall(string.gsub, 'x', 'x'))",
    ] {
        check(&mut state, code);
    }
}

#[test]
fn any_search_ends_as_by_lua() {
    let mut state = state();
    let mut seed = 7u64;
    let mut below = |bound: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % bound
    };
    const USUAL: &[u8] = b"%%[]^$().*+-?abcabdfg1019- ";
    for _ in 0..2500 {
        let mut some = |len: usize| -> String { (0..below(len)).map(|_| USUAL[below(USUAL.len())] as char).collect() };
        let (pattern, subject, replacement) = (some(9), some(14), some(4));
        let function = ["find", "match", "gsub", "gmatch"][below(4)];
        let code = match function {
            "gsub" if below(2) == 0 => format!("return ([==[{subject}]==]):gsub([==[{pattern}]==], function(c) return c and c .. '!' end)"),
            "gsub" => format!("return ([==[{subject}]==]):gsub([==[{pattern}]==], [==[{replacement}]==])"),
            "gmatch" => format!(
                "local t = {{}} for a, b in ([==[{subject}]==]):gmatch([==[{pattern}]==]) do t[#t + 1] = tostring(a) .. tostring(b) end
                return table.concat(t, ';')"
            ),
            _ => format!("return ([==[{subject}]==]):{function}([==[{pattern}]==], {})", below(6) as i64 - 2),
        };
        check(&mut state, &code);
    }
}

#[test]
fn tables_and_text_are_handled_as_by_lua() {
    let mut state = state();
    for code in [
        "return ('aBc'):upper(), ('aBc'):lower(), ('aBc'):reverse(), (''):reverse(), (12):upper()",
        "return utf8.len('äöü'), utf8.len('äöü', 3), utf8.len('abc', 4), utf8.len('a\\xff'), utf8.len('äöü', -2), utf8.len('')",
        "return table.concat({1, 2, 'x'}), table.concat({1, 2, 3}, '-', 2, 3), table.concat({}, 'x'), table.concat({1}, 'x', 2, 1)",
        "local t = {1, 2, 3} table.insert(t, 4) table.insert(t, 1, 0) table.insert(t, 6, 9) return table.concat(t, ' ')",
        "local t = {1, 2, 3} return table.remove(t), table.remove(t, 1), #t, table.remove({}), table.remove({}, 0), #t",
        "return table.concat(table.move({1, 2, 3, 4}, 2, 4, 1), ' '), table.concat(table.move({1, 2, 3}, 1, 3, 2), ' ')",
        "return table.concat(table.move({1, 2}, 1, 2, 3, {8, 9}), ' '), #table.move({1}, 1, 0, 5)",
        "local t = {5, 2, 8, 1} table.sort(t) return table.concat(t, ' ')",
        "local t = {5, 2, 8, 1} table.sort(t, function(a, b) return a > b end) return table.concat(t, ' ')",
        "local t = {} for i = 1, 500 do t[i] = i * 7919 % 503 end table.sort(t)
         for i = 2, 500 do assert(t[i - 1] <= t[i]) end return t[1], t[250], t[500]",
        "local t = {} for i = 1, 300 do t[i] = {i * 7919 % 307} end table.sort(t, function(a, b) return a[1] < b[1] end)
         for i = 2, 300 do assert(t[i - 1][1] <= t[i][1]) end return t[1][1], t[300][1]",
        "local m = {__lt = function(a, b) return a.n < b.n end} local t = {}
         for i = 1, 50 do t[i] = setmetatable({n = i * 31 % 53}, m) end table.sort(t) return t[1].n, t[25].n, t[50].n",
        "local log = {} local t = setmetatable({}, {__index = function(_, k) if k <= 3 then return k * 10 end end, __len = function() return 3 end})
         return table.concat(t, ','), table.unpack(t)",
        "local store = {} local t = setmetatable({}, {__index = store, __newindex = function(_, k, v) store[k] = v end, __len = function() return #store end})
         table.insert(t, 'a') table.insert(t, 1, 'b') return #store, store[1], store[2], table.remove(t, 1), #store",
        "return tostring(setmetatable({}, {__tostring = function() return 'me' end})), tostring(nil), tostring(1.0)",
        "return tostring(setmetatable({}, {__tostring = function() return 12 end}))",
        "return (tostring(setmetatable({}, {__name = 'Kind'})):gsub('0x%x+', ''))",
        "return string.format('%s %d %5.1f %q %%', setmetatable({}, {__tostring = function() return 'me' end}), 7, 2.25, 'a\\nb')",
        "return string.format('%-6s|%6s|%.2s', 'ab', true, setmetatable({}, {__tostring = function() return 'xyz' end}))",
        "return type(load(function() return nil end)), pcall(load('return 1 + 1'))",
        "local parts = {'return ', '4', '2'} local n = 0 return load(function() n = n + 1 return parts[n] end)()",
        "return load(function() error('no') end)",
        "return load(function() return {} end)",
        "return load('x =', '=chunk')",
        "return load('return x', 'c', 't', {x = 5})()",
        "return load('return 1', 'c', 'b')",
        "return collectgarbage(), collectgarbage('step', 100), collectgarbage('isrunning'), collectgarbage('incremental'), pcall(collectgarbage, 'x')",
        "return xpcall(error, function(e) return e .. '!' end, 'x')",
        "return xpcall(error, 1)",
        "return xpcall(error, function() error('y', 0) end, 'x')",
        "return select('#', table.unpack({}, 1, 3)), pcall(table.unpack, {}, 1, 1e8)",
    ] {
        check(&mut state, code);
    }
}

#[test]
fn finalizers_run_when_garbage_is_collected() {
    let mut state = state();
    for (code, expected) in [
        ("local n = 0 setmetatable({}, {__gc = function() n = n + 1 end}) collectgarbage() return n", "integer:1"),
        // If the field was set at first, the function that it holds last is called.
        (
            "local n = 0 local m = {__gc = true} setmetatable({}, m) m.__gc = function() n = 2 end collectgarbage() return n",
            "integer:2",
        ),
        (
            "local n = 0 local m = {} setmetatable({}, m) m.__gc = function() n = 3 end collectgarbage() return n",
            "integer:0",
        ),
        ("local m = {__gc = print} setmetatable({}, m) return m.__gc == print", "boolean:true"),
        (
            "local kept local o = setmetatable({7}, {__gc = function(o) kept = o end}) o = nil collectgarbage() return kept[1]",
            "integer:7",
        ),
        ("setmetatable({}, {__gc = function() error('x') end}) collectgarbage() return 1", "integer:1"),
        ("local o = setmetatable({}, {__gc = print}) collectgarbage() return o ~= nil", "boolean:true"),
        (
            "return pcall(setmetatable, setmetatable({}, {__metatable = 1}), {__gc = print})",
            "boolean:true|boolean:false|string:cannot change a protected metatable",
        ),
        ("local n = 0 debug.setmetatable({}, {__gc = function() n = 4 end}) collectgarbage() return n", "integer:4"),
        (
            "local order = {} for i = 1, 3 do setmetatable({}, {__gc = function() order[#order + 1] = i end}) end collectgarbage() return table.concat(order)",
            "string:321",
        ),
    ] {
        let expected = if expected.starts_with("boolean:true|") {
            expected.to_owned()
        } else {
            format!("boolean:true|{expected}")
        };
        assert_eq!(run(&mut state, code, None), expected, "{code}");
    }
}

#[test]
fn a_finalizer_that_does_not_end_is_ended() {
    let mut state = state();
    for _ in 0..3 {
        assert!(
            run(&mut state, "setmetatable({}, {__gc = function() while true do end end}) return 1", None)
                .ends_with(":1")
        );
        state.collect();
        assert!(state.has_finalizers());
        let mut slices = 0;
        let error = loop {
            slices += 1;
            match state.finalize() {
                Ok(()) => assert!(state.has_finalizers(), "it does not end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.message, "execution timeout");
        assert!(slices > 1, "others run in between");
        // The next call finds nothing left.
        assert_eq!(state.finalize(), Ok(()));
        assert!(!state.has_finalizers());
    }
    // A finalizer that does not end does not block the thread that closes the state, either.
    run(&mut state, "kept = setmetatable({}, {__gc = function() while true do end end})", None);
}

/// The error of a hook calls the handler of `xpcall`, in which no hook acts.
#[test]
fn a_handler_that_does_not_end_is_ended() {
    let mut state = state();
    for code in [
        "xpcall(error, function() while true do end end)",
        "xpcall(function() while true do end end, function() while true do end end)",
        "xpcall(string.find, function() while true do end end, ('a'):rep(30000), '.-.-.-b')",
        "pcall(xpcall, error, function() xpcall(error, function() while true do end end) end)",
    ] {
        let coroutine = state.coroutine().expect("a coroutine");
        // SAFETY: a load answers with a status.
        let status = unsafe {
            ffi::luaL_loadbufferx(
                coroutine.thread(),
                code.as_ptr().cast(),
                code.len(),
                c"=test".as_ptr(),
                std::ptr::null(),
            )
        };
        assert_eq!(status, ffi::LUA_OK, "{code}");
        let mut budget = Budget::new(Some(Duration::from_millis(100)), Some(Duration::from_secs(1)));
        // SAFETY: the chunk was loaded on the coroutine.
        while unsafe { state.resume(&coroutine, 0, &mut budget) } == Burst::Forced {}
        assert_eq!(state.failure(&coroutine).message, "execution timeout", "{code}");
        state.recycle(coroutine);
    }
}

#[test]
fn closed_libraries_are_not_there() {
    let mut state = state();
    let closed: [&CStr; 8] = [c"table", c"io", c"os", c"string", c"math", c"utf8", c"package", c"debug"];
    state.close_libraries(&closed).expect("they are closed");
    // SAFETY: the chunk is text, and holds nothing.
    let code = "for _, name in ipairs{'table', 'io', 'os', 'string', 'math', 'utf8', 'package', 'debug', 'require'} do
        assert(_G[name] == nil, name) end
        assert(not pcall(function() return ('x'):len() end)) assert(coroutine and tostring(setmetatable({}, {__tostring = function() return 'x' end})) == 'x')
        setmetatable({}, {__gc = function() done = true end}) collectgarbage() assert(done)";
    state.run_chunk(code.as_bytes(), c"=test", &[]).expect("nothing is there");
}

#[test]
fn floats_and_texts_count_as_integers() {
    let mut state = state();
    for code in [
        "return ('ab'):rep(3.0), ('ab'):rep('3', ','), string.rep(7, 2.0, 1)",
        "return ('ab'):rep(1.5)",
        "return ('ab'):rep('x')",
        "return table.concat({1, 2, 3}, ',', 1.0, '2')",
        "local t = {1, 2, 3} table.insert(t, 1.0, 'x') table.insert(t, '2', 'y') return table.concat(t)",
        "local t = {1, 2, 3} return table.remove(t, 1.0), table.remove(t, '1'), #t",
        "return table.concat(table.move({1, 2, 3}, 1.0, '3', 2.0))",
        "return table.unpack({1, 2, 3}, 2.0, '3')",
        "return utf8.len('äbc', 1.0, '-1')",
    ] {
        check(&mut state, code);
    }
    // None of them is a way around the limits.
    for code in ["('x'):rep(1e9)", "('x'):rep('1000000000')", "string.rep(7, 2^30)", "('x'):rep(2, ('y'):rep(3e7))"] {
        let answer = run(&mut state, &format!("return {code}"), None);
        assert!(answer.ends_with("resulting string too large"), "{code}: {answer}");
    }
}
