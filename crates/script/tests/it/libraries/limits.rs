//! Long inputs, which make a call leave the worker and end elsewhere; lack of memory, which is an error that leaks
//! nothing.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_script::ffi::{self, lua_Alloc};
use sluicegate_script::{Budget, Burst, Coroutine, ErrorKind, MemoryLimit, State, patient, to_bytes};

use crate::sandbox::support::{run, sandbox};

/// A chunk that creates an argument, and one that receives it as `...` and spends all its time in one call.
const LONG: [(&str, &str); 23] = [
    ("local t = {} for i = 1, 1e6 do t[i] = i end return t", "local s = cjson.encode(...) return s"),
    ("local t = {} for i = 1, 4e5 do t[i] = {i, k = 'v'} end return t", "local s = cjson.encode(...) return s"),
    ("return string.rep('a\\n', 3e6)", "local s = cjson.encode(...) return s"),
    ("local t = {[2e6] = 1} cjson.encode_sparse_array(false, 0) return t", "local s = cjson.encode(...) return s"),
    ("return '[' .. string.rep('1,', 4e6) .. '1]'", "local t = cjson.decode(...) return tostring(#t)"),
    ("return '[' .. string.rep('{\"a\":[]},', 4e5) .. '1]'", "local t = cjson.decode(...) return tostring(#t)"),
    ("return '\"' .. string.rep('x', 2e7) .. '\"'", "local s = cjson.decode(...) return s"),
    ("return '\"' .. string.rep('\\\\u00e9', 1e6) .. '\"'", "local s = cjson.decode(...) return s"),
    ("return string.rep(' ', 3e7) .. '1'", "local n = cjson.decode(...) return tostring(n)"),
    ("return '[1 \"' .. string.rep('x', 6e7)", "return cjson.decode(...)"),
    ("local t = {} for i = 1, 4e5 do t['k' .. i] = i end return t", "local s = cmsgpack.pack(...) return tostring(#s)"),
    ("local t = {} for i = 1, 1e6 do t[i] = i end return t", "local s = cmsgpack.pack(...) return s"),
    ("return '\\221\\0\\16\\0\\0' .. string.rep('\\1', 2^20)", "local t = cmsgpack.unpack(...) return tostring(#t)"),
    ("return string.rep('x', 3e6)", "local s = struct.pack(...) return tostring(#s)"),
    ("return string.rep('x', 3e6)", "return tostring(struct.size(...))"),
    ("return string.rep('x', 3e6)", "local n = struct.unpack(..., ...) return tostring(n)"),
    // So fast that it takes many to outlast a slice.
    (
        "return string.rep('x', 5e7)",
        "local s for i = 1, 50 do
             repeat s = select(2, pcall(struct.unpack, 's', ...)) until s ~= 'script stopped'
         end return s",
    ),
    // Values that are copied in one step leave the worker before that step.
    ("return '\"' .. string.rep('x', 2e6) .. '\"'", "local s = cjson.decode(...) return s"),
    ("return string.rep('x', 2e6)", "local s = cjson.encode(...) return s"),
    ("return string.rep('x', 2e6)", "local s = cmsgpack.pack(...) return s"),
    ("return '\\219\\0\\32\\0\\0' .. string.rep('x', 2^21)", "local s = cmsgpack.unpack(...) return s"),
    ("return string.rep('x', 2e6)", "local s = struct.pack('c0', ...) return s"),
    ("return string.rep('x', 2e6)", "local s = struct.unpack('c2000000', ...) return s"),
];

fn load(state: &mut State, code: &str) -> Coroutine {
    let coroutine = state.coroutine().expect("a coroutine");
    // SAFETY: loading answers with a status.
    let status = unsafe {
        ffi::luaL_loadbufferx(coroutine.thread(), code.as_ptr().cast(), code.len(), c"=test".as_ptr(), ptr::null())
    };
    assert_eq!(status, ffi::LUA_OK, "{code}");
    coroutine
}

/// Loads `call` and gives it what `make` returns.
fn prepare(state: &mut State, make: &str, call: &str) -> Coroutine {
    let maker = load(state, make);
    let mut budget = Budget::default();
    patient(true);
    loop {
        // SAFETY: loaded without arguments.
        match unsafe { state.resume(&maker, 0, &mut budget) } {
            Burst::Forced => {}
            Burst::Done(1) => break,
            other => panic!("{make}: {other:?}"),
        }
    }
    patient(false);
    let coroutine = load(state, call);
    // SAFETY: both belong to the state; the result is on top.
    unsafe { ffi::lua_xmove(maker.thread(), coroutine.thread(), 1) };
    state.recycle(maker);
    coroutine
}

/// Runs a coroutine to its end on this thread, as on one that has time. Returns the result, or the error's kind and
/// message.
fn finish(
    state: &mut State,
    coroutine: Coroutine,
    mut args: c_int,
    mut budget: Budget,
) -> Result<Vec<u8>, (ErrorKind, String)> {
    patient(true);
    let burst = loop {
        // SAFETY: as the caller says.
        match unsafe { state.resume(&coroutine, args, &mut budget) } {
            Burst::Forced => args = 0,
            other => break other,
        }
    };
    patient(false);
    let result = match burst {
        // SAFETY: the result is on top.
        Burst::Done(1) => Ok(unsafe { to_bytes(coroutine.thread(), -1) }.expect("a string").to_vec()),
        _ => {
            let error = state.failure(&coroutine);
            Err((error.kind, error.message))
        }
    };
    state.recycle(coroutine);
    result
}

/// Returns whether the suspended function is a C function.
fn in_c(coroutine: &Coroutine) -> bool {
    // SAFETY: the coroutine is suspended; Lua fills the record.
    unsafe {
        let mut record: ffi::lua_Debug = std::mem::zeroed();
        assert_eq!(ffi::lua_getstack(coroutine.thread(), 0, &mut record), 1);
        ffi::lua_getinfo(coroutine.thread(), c"S".as_ptr(), &mut record);
        CStr::from_ptr(record.what) == c"C"
    }
}

#[test]
fn a_long_call_is_left_and_ends_elsewhere() {
    for (make, call) in LONG {
        let mut state = sandbox();
        let coroutine = prepare(&mut state, make, call);
        let whole = finish(&mut state, coroutine, 1, Budget::default());
        let mut state = sandbox();
        let coroutine = prepare(&mut state, make, call);
        let mut budget = Budget::default();
        // SAFETY: one argument was pushed.
        assert_eq!(unsafe { state.resume(&coroutine, 1, &mut budget) }, Burst::Forced, "{call}");
        assert!(in_c(&coroutine), "{call}: it ran to its end before it left");
        let elsewhere = std::thread::spawn(move || finish(&mut state, coroutine, 0, budget));
        assert!(elsewhere.join().expect("the other thread ends well") == whole, "{call}");
    }
}

#[test]
fn a_long_call_is_ended_from_outside() {
    for (make, call) in LONG {
        let mut state = sandbox();
        let coroutine = prepare(&mut state, make, call);
        let stop = state.stopper();
        stop.store(true, Ordering::Relaxed);
        let result = finish(&mut state, coroutine, 1, Budget::default());
        assert_eq!(result.map_err(|(kind, _)| kind), Err(ErrorKind::Stopped), "{call}");
        stop.store(false, Ordering::Relaxed);
        assert_eq!(run(&mut state, b"return 'serves on'", &[]), Ok(vec![b"serves on".to_vec()]));
    }
}

/// An allocator that refuses all requests from a given one on.
struct Refusing {
    allocate: lua_Alloc,
    account: *mut c_void,
    left: Cell<usize>,
}

unsafe extern "C" fn refuse(account: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: `account` is the `Refusing` of the test, which outlives its use; all else is handed on.
    unsafe {
        let refusing = &*(account as *const Refusing);
        if new > if block.is_null() { 0 } else { old } {
            match refusing.left.get() {
                0 => return ptr::null_mut(),
                left => refusing.left.set(left - 1),
            }
        }
        (refusing.allocate)(refusing.account, block, old, new)
    }
}

#[test]
fn memory_that_ends_at_any_allocation_is_an_error_and_no_leak() {
    let deep = "local t = {} for i = 1, 60 do t = {t, k = {i}} end";
    for code in [
        "return cjson.encode({1, 2, {a = 'b'}, 'x'})".to_owned(),
        "return cjson.encode({string.rep('x', 5000), string.rep('\\n', 5000)})".to_owned(),
        "return cjson.encode(12), cjson.encode('x')".to_owned(),
        format!("{deep} return cjson.encode(t)"),
        "return cjson.decode('[1,[2,[3]],{\"a\":{\"b\":\"c\"}}]')[3].a.b".to_owned(),
        "return cjson.decode('\"' .. string.rep('\\\\n', 3000) .. '\"')".to_owned(),
        "return cjson.decode(string.rep('[', 60) .. '\"x\"' .. string.rep(']', 60)) and 'x'".to_owned(),
        "return cjson.decode('[' .. string.rep('[1,2],', 200) .. '1]') and 'x'".to_owned(),
        "return cjson.new().encode({1})".to_owned(),
        "return cmsgpack.pack({1, 2, {a = 'b'}}, string.rep('x', 5000))".to_owned(),
        format!("{deep} return cmsgpack.pack(t)"),
        "return cmsgpack.unpack('\\147\\161a\\129\\161k\\145\\1\\220\\0\\2\\1\\2') and 'x'".to_owned(),
        "return cmsgpack.unpack(string.rep('\\145', 60) .. '\\1') and 'x'".to_owned(),
        "return struct.pack('>I2 s c0 d', 1, 'abc', string.rep('x', 3000), 2)".to_owned(),
        "return tostring(struct.unpack('>I2 s d', string.rep('ab\\0', 9)))".to_owned(),
        "return bit.tohex(255)".to_owned(),
        "return select(2, pcall(cjson.decode, '[1,'))".to_owned(),
        "return select(2, pcall(cjson.encode, {[100] = 1}))".to_owned(),
        "return select(2, pcall(cjson.encode_max_depth, 0))".to_owned(),
        "return select(2, pcall(struct.pack, 'y'))".to_owned(),
        "return select(2, pcall(cmsgpack.unpack, '\\193'))".to_owned(),
    ] {
        let mut state = sandbox();
        let mut account = ptr::null_mut();
        // SAFETY: reading the state's allocator.
        let allocate = unsafe { ffi::lua_getallocf(state.main(), &mut account) };
        let refusing = Refusing { allocate, account, left: Cell::new(usize::MAX) };
        // Twice, so that stack, strings and idle coroutines have their final size.
        let whole = run(&mut state, code.as_bytes(), &[]).expect(&code).concat();
        run(&mut state, code.as_bytes(), &[]).expect(&code);
        patient(false);
        let mut used = || {
            state.collect();
            state.collect();
            state.memory_used()
        };
        let before = used();
        let mut refused = 0;
        for left in 0.. {
            // Loading is not under test, so it gets memory.
            let coroutine = load(&mut state, &code);
            refusing.left.set(left);
            // SAFETY: the allocator is set back below, before `refusing` goes.
            unsafe { ffi::lua_setallocf(state.main(), refuse, (&raw const refusing).cast_mut().cast()) };
            let mut budget = Budget::default();
            patient(true);
            // SAFETY: loaded without arguments.
            let burst = unsafe {
                let mut burst = state.resume(&coroutine, 0, &mut budget);
                while burst == Burst::Forced {
                    burst = state.resume(&coroutine, 0, &mut budget);
                }
                ffi::lua_setallocf(state.main(), allocate, account);
                burst
            };
            patient(false);
            match burst {
                // SAFETY: the results are on the stack.
                Burst::Done(results) => unsafe {
                    let result = to_bytes(coroutine.thread(), -results).map(<[u8]>::to_vec);
                    state.recycle(coroutine);
                    // A script that catches the error returns it.
                    if result.as_deref() != Some(b"not enough memory") {
                        assert_eq!(result, Some(whole), "{code}");
                        break;
                    }
                },
                _ => {
                    let error = state.failure(&coroutine);
                    state.recycle(coroutine);
                    assert_eq!(
                        (error.kind, error.message.as_str()),
                        (ErrorKind::Memory, "not enough memory"),
                        "{code}"
                    );
                }
            }
            refused += 1;
        }
        let mut used = || {
            state.collect();
            state.collect();
            state.memory_used()
        };
        assert!(refused > 0, "{code}");
        // There may be one more record of a call, or one less.
        assert!(used() <= before + 256, "{code}: {before} bytes became {}", used());
    }
}

#[test]
fn memory_is_bounded_by_the_limit() {
    for code in [
        "local t = {[1e8] = 1} cjson.encode_sparse_array(false, 0) return cjson.encode(t)",
        "local s = string.rep('\\0', 4e6) return cjson.encode(s)",
        "return cjson.decode('[' .. string.rep('[],', 1e6) .. '1]')",
        "return cmsgpack.unpack('\\221\\0\\16\\0\\0' .. string.rep('\\144', 2^20))",
        "local s = string.rep('x', 3e6) return cmsgpack.pack(s, s, s, s, s, s, s)",
        "local s = string.rep('x', 3e6) return struct.pack('sssssss', s, s, s, s, s, s, s)",
    ] {
        let limit = Arc::new(MemoryLimit::new(16 << 20));
        let mut state = State::sandboxed(limit, ()).expect("a sandbox");
        let error = run(&mut state, code.as_bytes(), &[]).expect_err(code);
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Memory, "not enough memory"), "{code}");
        assert_eq!(run(&mut state, b"return 'serves on'", &[]), Ok(vec![b"serves on".to_vec()]));
        state.collect();
        state.collect();
        assert!(state.memory_used() < 1 << 20, "{code}: {}", state.memory_used());
    }
}
