//! Step counters by which long-running functions stay interruptible: they poll every few thousand steps.

use std::ffi::c_int;

use crate::ffi::{self, lua_KFunction, lua_State};
use crate::{Poll, leave, poll, stopped, weigh};

/// Steps between two polls. A step is a value or some tens of bytes, so this is a few tens of microseconds.
const STEPS: usize = 4096;

/// Bytes that are copied or looked through in the time of a step.
const BYTES: usize = 32;

/// Fewer bytes than this are copied without a poll.
const LIGHT: usize = 1 << 16;

/// The steps of one call.
pub(super) struct Pace {
    left: usize,
    /// The number of the function's arguments, and the continuation that calls it again with them.
    args: c_int,
    again: lua_KFunction,
}

impl Pace {
    /// Returns the pace of a function with `args` arguments; `again` is its continuation, which repeats the whole work.
    pub(super) fn new(args: c_int, again: lua_KFunction) -> Pace {
        Pace { left: STEPS, args, again }
    }

    /// Counts a step. Does not return if the slice is over or the script is being ended.
    ///
    /// # Safety
    /// `lua` is what the function was called with. Nothing with a destructor is alive; results so far are either on the
    /// stack above the arguments or are discarded.
    #[inline(always)]
    pub(super) unsafe fn step(&mut self, lua: *mut lua_State) {
        self.left -= 1;
        if self.left == 0 {
            // SAFETY: as promised by the caller.
            unsafe { self.look(lua) };
        }
    }

    /// Counts `bytes` bytes as steps towards the next poll.
    #[inline(always)]
    pub(super) fn bytes(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes / BYTES).max(1);
    }

    /// Called before `bytes` bytes are copied at once, by code that cannot poll in between.
    ///
    /// # Safety
    /// As [`Pace::step`].
    #[inline(always)]
    pub(super) unsafe fn weigh(&mut self, lua: *mut lua_State, bytes: usize) {
        if bytes >= LIGHT {
            // SAFETY: as promised by the caller.
            unsafe { self.obey(lua, weigh(lua, bytes)) };
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn look(&mut self, lua: *mut lua_State) {
        self.left = STEPS;
        // SAFETY: as promised by the caller.
        unsafe { self.obey(lua, poll(lua)) };
    }

    unsafe fn obey(&mut self, lua: *mut lua_State, verdict: Poll) {
        // SAFETY: as promised by the caller; the stack is as the function found it when it leaves.
        unsafe {
            match verdict {
                Poll::Go => {}
                Poll::Leave => {
                    ffi::lua_settop(lua, self.args);
                    leave(lua, self.again);
                    unreachable!("a yield does not return");
                }
                Poll::Stop => stopped(lua),
            }
        }
    }
}
