//! Nothing that a script calls keeps a thread that others wait for.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::{
    Budget, Burst, ErrorKind, MemoryLimit, Poll, State, again, function, host, leave, patient, poll, push_globals,
    stopped,
};

use crate::support::start;

#[derive(Default)]
struct Host {
    /// How often `long` began.
    begun: u32,
    /// How often it asked.
    polls: u64,
}

/// Asks until it is told something; on a thread that has time it gives up after a thousand times.
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

fn state() -> State {
    let mut state = State::sandboxed(Arc::new(MemoryLimit::new(0)), Host::default()).expect("a state");
    // SAFETY: nothing is held.
    unsafe {
        state
            .protect(|lua| {
                push_globals(lua);
                ffi::lua_pushcfunction(lua, function!(long));
                ffi::lua_setfield(lua, -2, c"long".as_ptr());
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
