//! A host with one waiting function, and a driver that answers it.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_KContext, lua_State};
use sluicegate_script::{
    Budget, Burst, Coroutine, Error, MemoryLimit, State, continuation, function, host, push_bytes, to_bytes, wait,
};

/// What the test functions share with the driver.
#[derive(Default)]
pub struct Host {
    /// What `ask` was called with and waits for.
    pub asked: Option<i64>,
    /// What `ask` returns.
    pub answer: i64,
    /// How often a burst ended in a forced yield.
    pub forced: u32,
    /// How often `ask` waited.
    pub waited: u32,
}

unsafe fn ask(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the host is a `Host`.
    unsafe {
        host::<Host>(lua).asked = Some(ffi::luaL_checkinteger(lua, 1));
        wait(lua, 0, continuation!(answered))
    }
}

unsafe fn answered(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `ask`.
    unsafe {
        ffi::lua_pushinteger(lua, host::<Host>(lua).answer);
        1
    }
}

/// Drops a value on its way out, as a fault of Rust code would.
unsafe fn panics(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    let wanted = unsafe { ffi::lua_tointeger(lua, 1) };
    let owned = Box::new([wanted; 3]);
    assert!(owned[0] < 0, "a fault with {wanted}");
    0
}

/// Keeps its thread from running for twenty slices.
unsafe fn stands_still(_: *mut lua_State) -> c_int {
    std::thread::sleep(20 * sluicegate_script::budget::SLICE);
    0
}

/// A state with `ask(n)`, which waits and returns 2n, `panics(n)` and `stands_still()`.
pub fn state(limit: usize) -> State {
    let mut state = State::new(Arc::new(MemoryLimit::new(limit)), Host::default()).expect("a state");
    // SAFETY: nothing is held.
    unsafe {
        state
            .protect(|lua| {
                ffi::lua_pushcfunction(lua, function!(ask));
                ffi::lua_setglobal(lua, c"ask".as_ptr());
                ffi::lua_pushcfunction(lua, function!(panics));
                ffi::lua_setglobal(lua, c"panics".as_ptr());
                ffi::lua_pushcfunction(lua, function!(stands_still));
                ffi::lua_setglobal(lua, c"stands_still".as_ptr());
            })
            .expect("registered");
    }
    state
}

/// Loads `code` as the body of a coroutine.
pub fn start(state: &mut State, code: &str) -> Coroutine {
    let coroutine = state.coroutine().expect("a coroutine");
    let thread = coroutine.thread();
    // SAFETY: the chunk is loaded on the coroutine's own stack; a load does not raise, it answers.
    let status =
        unsafe { ffi::luaL_loadbufferx(thread, code.as_ptr().cast(), code.len(), c"=test".as_ptr(), std::ptr::null()) };
    assert_eq!(status, ffi::LUA_OK, "the test's chunk parses");
    coroutine
}

/// Runs `code` to its end, answering every `ask`; gives its first result as text.
pub fn run_with(state: &mut State, code: &str, mut budget: Budget) -> Result<String, Error> {
    let coroutine = start(state, code);
    loop {
        // SAFETY: the coroutine was loaded above, without arguments.
        match unsafe { state.resume(&coroutine, 0, &mut budget) } {
            Burst::Done(results) => {
                let thread = coroutine.thread();
                let mut text = String::from("nothing");
                if results > 0 {
                    // SAFETY: the results are on the stack; converting them is protected by being of simple types.
                    unsafe {
                        let first = ffi::lua_gettop(thread) - results + 1;
                        ffi::luaL_tolstring(thread, first, std::ptr::null_mut());
                        text = String::from_utf8_lossy(to_bytes(thread, -1).unwrap_or_default()).into_owned();
                    }
                }
                state.recycle(coroutine);
                return Ok(text);
            }
            Burst::Waiting => {
                let host = state.host::<Host>();
                host.waited += 1;
                host.answer = host.asked.take().expect("something was asked") * 2;
            }
            Burst::Forced => state.host::<Host>().forced += 1,
            Burst::Yielded => {}
            Burst::Failed => {
                let error = state.failure(&coroutine);
                state.recycle(coroutine);
                return Err(error);
            }
        }
    }
}

/// As [`run_with`], with a budget that only what has no end uses up, however slow the machine.
pub fn run(state: &mut State, code: &str) -> Result<String, Error> {
    run_with(state, code, Budget::new(Some(Duration::from_secs(60)), Some(Duration::from_secs(60))))
}

/// Runs `code` in a fresh state.
pub fn check(code: &str, expected: &str) {
    let mut state = state(0);
    assert_eq!(run(&mut state, code).map_err(|error| error.to_string()), Ok(expected.to_owned()), "{code}");
    // Once more in the coroutine that the first run left.
    assert_eq!(run(&mut state, code).map_err(|error| error.to_string()), Ok(expected.to_owned()), "{code}");
}

/// Defines a global string.
pub fn set_global(state: &mut State, name: &std::ffi::CStr, value: &str) {
    // SAFETY: nothing is held.
    unsafe {
        state
            .protect(|lua| {
                push_bytes(lua, value.as_bytes());
                ffi::lua_setglobal(lua, name.as_ptr());
            })
            .expect("set");
    }
}
