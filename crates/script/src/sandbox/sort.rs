//! `table.sort`.
//!
//! With a comparison function, the order of its calls and of equal elements is Lua 5.1's: a quicksort with the median
//! of three as its pivot. The function may wait or be suspended at any call, so the sort is a state machine: its bounds
//! are in a userdata, the compared values on the stack.
//!
//! Without one, only numbers or only strings are sorted by a merge sort outside of Lua: elements that compare as equal
//! are indistinguishable then. All other cases use the state machine.

use std::cmp::Ordering;
use std::ffi::c_int;

use super::argument;
use super::buffer::Buffer;
use super::table::{end, length};
use crate::ffi::{self, lua_KContext, lua_State};
use crate::run::Poll;
use crate::state::Core;
use crate::{again, continuation};

/// Comparisons between two polls.
const COMPARISONS: u32 = 512;

/// Elements of a run that is sorted in one go.
const RUN: usize = 512;

/// The maximum number of parts that wait to be sorted: the smaller half is sorted first, so there is at most one for
/// each bit of the length.
const PARTS_MAX: usize = 40;

/// The next comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Take the part on top of the waiting ones.
    Part,
    /// `a[upper] < a[lower]`
    Ends,
    /// `a[middle] < a[lower]`
    MiddleLower,
    /// `a[upper] < a[middle]`
    UpperMiddle,
    /// `a[i] < pivot`, going up
    Up,
    /// `pivot < a[j]`, going down
    Down,
}

struct Sorting {
    step: Step,
    lower: i64,
    upper: i64,
    i: i64,
    j: i64,
    comparisons: u32,
    parts: usize,
    waiting: [(i64, i64); PARTS_MAX],
}

// Slots of the stack: the table, the function, the state, the pivot, the two values that are compared, and
// one that waits to be swapped.
const TABLE: c_int = 1;
const COMPARE: c_int = 2;
const STATE: c_int = 3;
const PIVOT: c_int = 4;
const LEFT: c_int = 5;
const RIGHT: c_int = 6;
/// The element at which the upward scan stopped.
const STOPPED: c_int = 7;
const SLOTS: c_int = STOPPED;

pub(crate) unsafe fn sort(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, TABLE);
        let count = length(lua, TABLE);
        if ffi::lua_type(lua, COMPARE) > ffi::LUA_TNIL {
            argument::function(lua, COMPARE);
        }
        ffi::lua_settop(lua, COMPARE);
        if count < 2 {
            return 0;
        }
        // A suspended plain sort starts again from the beginning on a thread for long work, which only the store has.
        if ffi::lua_type(lua, COMPARE) == ffi::LUA_TNIL && Core::of(lua).sandbox.on {
            match sort_plain(lua, count) {
                Plain::Done => return 0,
                Plain::Ended(verdict) => return end(lua, verdict, again!(sort)),
                Plain::Mixed => {}
            }
        }
        let state = ffi::lua_newuserdatauv(lua, size_of::<Sorting>(), 0) as *mut Sorting;
        state.write(Sorting {
            step: Step::Part,
            lower: 0,
            upper: 0,
            i: 0,
            j: 0,
            comparisons: 0,
            parts: 1,
            waiting: [(1, count); PARTS_MAX],
        });
        ffi::lua_settop(lua, SLOTS);
        go_on(lua)
    }
}

/// Compares until everything is sorted.
unsafe fn go_on(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `sort` made; the state stays at its slot. Nothing has a destructor.
    unsafe {
        let state = ffi::lua_touserdata(lua, STATE) as *mut Sorting;
        loop {
            let less = if (*state).step == Step::Part {
                false
            } else {
                (*state).comparisons += 1;
                if (*state).comparisons.is_multiple_of(COMPARISONS) {
                    let verdict = crate::poll(lua);
                    if verdict != Poll::Go {
                        return end(lua, verdict, again!(go_on));
                    }
                }
                is_less(lua)
            };
            if !advance(lua, state, less) {
                return 0;
            }
        }
    }
}

/// Goes on after a comparison that was suspended; its result is on top.
unsafe fn compared(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `go_on`.
    unsafe {
        let less = ffi::lua_toboolean(lua, -1) != 0;
        ffi::lua_settop(lua, SLOTS);
        let state = ffi::lua_touserdata(lua, STATE) as *mut Sorting;
        if advance(lua, state, less) { go_on(lua) } else { 0 }
    }
}

/// Returns whether the value at [`LEFT`] comes before that at [`RIGHT`]; does not return if the script is suspended.
unsafe fn is_less(lua: *mut lua_State) -> bool {
    // SAFETY: as `go_on`. Numbers and strings compare without running Lua.
    unsafe {
        if ffi::lua_type(lua, COMPARE) == ffi::LUA_TNIL {
            let (left, right) = (ffi::lua_type(lua, LEFT), ffi::lua_type(lua, RIGHT));
            if left == right && matches!(left, ffi::LUA_TNUMBER | ffi::LUA_TSTRING) {
                return ffi::lua_compare(lua, LEFT, RIGHT, ffi::LUA_OPLT) != 0;
            }
            if (left != right && Core::of(lua).sandbox.on) || !push_order(lua) {
                fail_order(lua);
            }
        } else {
            ffi::lua_pushvalue(lua, COMPARE);
        }
        ffi::lua_pushvalue(lua, LEFT);
        ffi::lua_pushvalue(lua, RIGHT);
        ffi::lua_callk(lua, 2, 1, 0, Some(continuation!(compared)));
        let less = ffi::lua_toboolean(lua, -1) != 0;
        ffi::lua_settop(lua, SLOTS);
        less
    }
}

/// Pushes the `__lt` that both values have in common; outside the sandbox, the `__lt` of the first value that has one.
unsafe fn push_order(lua: *mut lua_State) -> bool {
    // SAFETY: as `go_on`.
    unsafe {
        if !Core::of(lua).sandbox.on {
            return ffi::luaL_getmetafield(lua, LEFT, c"__lt".as_ptr()) != ffi::LUA_TNIL
                || ffi::luaL_getmetafield(lua, RIGHT, c"__lt".as_ptr()) != ffi::LUA_TNIL;
        }
        if ffi::luaL_getmetafield(lua, LEFT, c"__lt".as_ptr()) == ffi::LUA_TNIL {
            return false;
        }
        if ffi::luaL_getmetafield(lua, RIGHT, c"__lt".as_ptr()) == ffi::LUA_TNIL {
            return false;
        }
        let same = ffi::lua_rawequal(lua, -1, -2) != 0;
        ffi::lua_pop(lua, 1);
        same
    }
}

#[cold]
unsafe fn fail_order(lua: *mut lua_State) -> ! {
    // SAFETY: names of types live forever. As raised by Lua's core, the message has no position.
    unsafe {
        let (left, right) = (argument::type_name(lua, LEFT), argument::type_name(lua, RIGHT));
        if left == right {
            ffi::lua_pushfstring(lua, c"attempt to compare two %s values".as_ptr(), left.as_ptr());
        } else {
            ffi::lua_pushfstring(lua, c"attempt to compare %s with %s".as_ptr(), left.as_ptr(), right.as_ptr());
        }
        ffi::lua_error(lua)
    }
}

/// Loads the two values to be compared.
unsafe fn load(lua: *mut lua_State, left: i64, right: i64) {
    // SAFETY: as `go_on`.
    unsafe {
        ffi::lua_rawgeti(lua, TABLE, left);
        ffi::lua_replace(lua, LEFT);
        ffi::lua_rawgeti(lua, TABLE, right);
        ffi::lua_replace(lua, RIGHT);
    }
}

/// Stores the value of one slot under an index.
unsafe fn store(lua: *mut lua_State, slot: c_int, index: i64) {
    // SAFETY: as `go_on`.
    unsafe {
        ffi::lua_pushvalue(lua, slot);
        ffi::lua_rawseti(lua, TABLE, index);
    }
}

/// Takes the result of the comparison that `step` names, and loads the next two values; `false` at the end.
unsafe fn advance(lua: *mut lua_State, state: *mut Sorting, less: bool) -> bool {
    // SAFETY: as `go_on`; the state is not referred to elsewhere while this runs, as raw access runs no Lua.
    unsafe {
        let state = &mut *state;
        let (lower, upper) = (state.lower, state.upper);
        let middle = (lower + upper) / 2;
        match state.step {
            Step::Part => return next_part(lua, state),
            Step::Ends => {
                if less {
                    store(lua, LEFT, lower);
                    store(lua, RIGHT, upper);
                }
                if upper - lower == 1 {
                    return next_part(lua, state);
                }
                load(lua, middle, lower);
                state.step = Step::MiddleLower;
            }
            Step::MiddleLower if !less => {
                load(lua, upper, middle);
                state.step = Step::UpperMiddle;
            }
            Step::MiddleLower | Step::UpperMiddle => {
                if less {
                    let other = if state.step == Step::MiddleLower { lower } else { upper };
                    let (at_other, at_middle) = if other == lower { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
                    store(lua, at_other, other);
                    store(lua, at_middle, middle);
                }
                if upper - lower == 2 {
                    return next_part(lua, state);
                }
                ffi::lua_rawgeti(lua, TABLE, middle);
                ffi::lua_replace(lua, PIVOT);
                ffi::lua_rawgeti(lua, TABLE, upper - 1);
                ffi::lua_rawseti(lua, TABLE, middle);
                store(lua, PIVOT, upper - 1);
                state.i = lower;
                state.j = upper - 1;
                go_up(lua, state);
            }
            Step::Up if less => {
                if state.i > upper {
                    crate::raise(lua, c"invalid order function for sorting");
                }
                go_up(lua, state);
            }
            Step::Up => {
                ffi::lua_copy(lua, LEFT, STOPPED);
                ffi::lua_rawgeti(lua, TABLE, state.j - 1);
                state.j -= 1;
                ffi::lua_replace(lua, RIGHT);
                ffi::lua_copy(lua, PIVOT, LEFT);
                state.step = Step::Down;
            }
            Step::Down if less => {
                if state.j < lower {
                    crate::raise(lua, c"invalid order function for sorting");
                }
                state.j -= 1;
                ffi::lua_rawgeti(lua, TABLE, state.j);
                ffi::lua_replace(lua, RIGHT);
            }
            Step::Down if state.j < state.i => return split(lua, state),
            Step::Down => {
                store(lua, RIGHT, state.i);
                store(lua, STOPPED, state.j);
                go_up(lua, state);
            }
        }
        true
    }
}

/// Compares the next element going up with the pivot.
unsafe fn go_up(lua: *mut lua_State, state: &mut Sorting) {
    // SAFETY: as `advance`.
    unsafe {
        state.i += 1;
        ffi::lua_rawgeti(lua, TABLE, state.i);
        ffi::lua_replace(lua, LEFT);
        ffi::lua_copy(lua, PIVOT, RIGHT);
        state.step = Step::Up;
    }
}

/// Puts the pivot in between and sorts the smaller half next.
unsafe fn split(lua: *mut lua_State, state: &mut Sorting) -> bool {
    // SAFETY: as `advance`.
    unsafe {
        let Sorting { lower, upper, i, .. } = *state;
        ffi::lua_rawgeti(lua, TABLE, upper - 1);
        ffi::lua_rawgeti(lua, TABLE, i);
        ffi::lua_rawseti(lua, TABLE, upper - 1);
        ffi::lua_rawseti(lua, TABLE, i);
        let (smaller, larger) =
            if i - lower < upper - i { ((lower, i - 1), (i + 1, upper)) } else { ((i + 1, upper), (lower, i - 1)) };
        for part in [larger, smaller] {
            if state.parts == PARTS_MAX {
                crate::raise(lua, c"invalid order function for sorting");
            }
            state.waiting[state.parts] = part;
            state.parts += 1;
        }
        next_part(lua, state)
    }
}

/// Starts the next part with more than one element; `false` if there is none.
unsafe fn next_part(lua: *mut lua_State, state: &mut Sorting) -> bool {
    while state.parts > 0 {
        state.parts -= 1;
        let (lower, upper) = state.waiting[state.parts];
        if lower < upper {
            state.lower = lower;
            state.upper = upper;
            state.step = Step::Ends;
            // SAFETY: as `advance`.
            unsafe { load(lua, upper, lower) };
            return true;
        }
    }
    false
}

enum Plain {
    Done,
    /// Other values than numbers alone or strings alone, or something that is not a number.
    Mixed,
    Ended(Poll),
}

/// A number: a Lua integer or a float.
#[derive(Clone, Copy)]
struct Number {
    bits: u64,
    integer: bool,
}

/// The bytes of the string that is element `index` now.
#[derive(Clone, Copy)]
struct Text {
    bytes: *const u8,
    len: usize,
    index: usize,
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    let order = |integer: u64, float: u64| {
        let (integer, float) = (integer as i64, f64::from_bits(float));
        if float >= 9223372036854775808.0 {
            Ordering::Less
        } else if float < -9223372036854775808.0 {
            Ordering::Greater
        } else {
            // The float is truncated towards zero; its fraction decides if the integer parts are equal.
            integer.cmp(&(float as i64)).then_with(|| 0.0f64.total_cmp(&(float - float.trunc() + 0.0)))
        }
    };
    match (left.integer, right.integer) {
        (true, true) => (left.bits as i64).cmp(&(right.bits as i64)),
        (true, false) => order(left.bits, right.bits),
        (false, true) => order(right.bits, left.bits).reverse(),
        (false, false) => f64::from_bits(left.bits).total_cmp(&f64::from_bits(right.bits)),
    }
}

fn compare_texts(left: &Text, right: &Text) -> Ordering {
    // SAFETY: the table keeps the strings alive while nothing runs but this sort.
    unsafe {
        let left = std::slice::from_raw_parts(left.bytes, left.len);
        left.cmp(std::slice::from_raw_parts(right.bytes, right.len))
    }
}

/// Sorts numbers alone, or strings alone, outside of Lua. The table does not change until all elements are sorted.
unsafe fn sort_plain(lua: *mut lua_State, count: i64) -> Plain {
    // SAFETY: a slot is free. The state's buffer is aligned for the elements and has room for two copies of them,
    // because each merge moves them from one half to the other. Raw access runs no Lua.
    unsafe {
        ffi::lua_rawgeti(lua, TABLE, 1);
        let kind = ffi::lua_type(lua, -1);
        ffi::lua_pop(lua, 1);
        let (mut buffer, count) = (Buffer::begin(lua), count as usize);
        let result = match kind {
            ffi::LUA_TNUMBER => {
                let room = buffer.reserve(2 * count * size_of::<Number>()) as *mut Number;
                sort_as(lua, room, count, read_number, compare_numbers, |lua, sorted| {
                    for (at, number) in sorted.iter().enumerate() {
                        if number.integer {
                            ffi::lua_pushinteger(lua, number.bits as i64);
                        } else {
                            ffi::lua_pushnumber(lua, f64::from_bits(number.bits));
                        }
                        ffi::lua_rawseti(lua, TABLE, at as i64 + 1);
                    }
                })
            }
            ffi::LUA_TSTRING => {
                let room = buffer.reserve(2 * count * size_of::<Text>()) as *mut Text;
                sort_as(lua, room, count, read_text, compare_texts, permute)
            }
            _ => Plain::Mixed,
        };
        buffer.free();
        result
    }
}

unsafe fn read_number(lua: *mut lua_State, _: usize) -> Option<Number> {
    // SAFETY: the value is on top.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TNUMBER {
            return None;
        }
        if ffi::lua_isinteger(lua, -1) != 0 {
            return Some(Number { bits: ffi::lua_tointeger(lua, -1) as u64, integer: true });
        }
        let number = ffi::lua_tonumber(lua, -1);
        (!number.is_nan()).then_some(Number { bits: number.to_bits(), integer: false })
    }
}

unsafe fn read_text(lua: *mut lua_State, index: usize) -> Option<Text> {
    // SAFETY: the value is on top.
    let bytes = unsafe { crate::to_bytes(lua, -1)? };
    Some(Text { bytes: bytes.as_ptr(), len: bytes.len(), index })
}

/// Moves the table's elements to where `sorted` wants them, cycle by cycle.
unsafe fn permute(lua: *mut lua_State, sorted: &mut [Text]) {
    // SAFETY: two slots are free.
    unsafe {
        for start in 0..sorted.len() {
            if sorted[start].index == start {
                continue;
            }
            ffi::lua_rawgeti(lua, TABLE, start as i64 + 1);
            let mut at = start;
            loop {
                let from = std::mem::replace(&mut sorted[at].index, at);
                if from == start {
                    break;
                }
                ffi::lua_rawgeti(lua, TABLE, from as i64 + 1);
                ffi::lua_rawseti(lua, TABLE, at as i64 + 1);
                at = from;
            }
            ffi::lua_rawseti(lua, TABLE, at as i64 + 1);
        }
    }
}

/// Reads, sorts and writes back.
unsafe fn sort_as<T: Copy>(
    lua: *mut lua_State,
    room: *mut T,
    count: usize,
    read: unsafe fn(*mut lua_State, usize) -> Option<T>,
    compare: fn(&T, &T) -> Ordering,
    write: unsafe fn(*mut lua_State, &mut [T]),
) -> Plain {
    // SAFETY: the room holds twice as many elements; each half is written before it is read.
    unsafe {
        for at in 0..count {
            ffi::lua_rawgeti(lua, TABLE, at as i64 + 1);
            let element = read(lua, at);
            ffi::lua_pop(lua, 1);
            let Some(element) = element else { return Plain::Mixed };
            room.add(at).write(element);
            if at % RUN == 0 {
                let verdict = crate::poll(lua);
                if verdict != Poll::Go {
                    return Plain::Ended(verdict);
                }
            }
        }
        let elements = std::slice::from_raw_parts_mut(room, count);
        for run in elements.chunks_mut(RUN) {
            run.sort_unstable_by(compare);
            let verdict = crate::poll(lua);
            if verdict != Poll::Go {
                return Plain::Ended(verdict);
            }
        }
        let (mut source, mut target) = (room, room.add(count));
        let mut width = RUN;
        while width < count {
            let mut steps = 0;
            for start in (0..count).step_by(2 * width) {
                let (middle, stop) = ((start + width).min(count), (start + 2 * width).min(count));
                let (mut left, mut right) = (start, middle);
                for at in start..stop {
                    let take_left = left < middle
                        && (right >= stop || compare(&*source.add(left), &*source.add(right)) != Ordering::Greater);
                    let from = if take_left { &mut left } else { &mut right };
                    target.add(at).write(*source.add(*from));
                    *from += 1;
                    steps += 1;
                    if steps % RUN == 0 {
                        let verdict = crate::poll(lua);
                        if verdict != Poll::Go {
                            return Plain::Ended(verdict);
                        }
                    }
                }
            }
            std::mem::swap(&mut source, &mut target);
            width *= 2;
        }
        // Writing back cannot be interrupted, so with many elements the script first moves from a worker to a thread
        // for long work.
        let verdict = crate::weigh(lua, count * 64);
        if verdict != Poll::Go {
            return Plain::Ended(verdict);
        }
        write(lua, std::slice::from_raw_parts_mut(source, count));
        Plain::Done
    }
}
