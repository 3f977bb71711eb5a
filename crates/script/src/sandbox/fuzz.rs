//! Inputs of fuzzers and tests for the libraries that parse clients' bytes.

use std::cell::RefCell;
use std::sync::Arc;

use crate::ffi;
use crate::memory::MemoryLimit;
use crate::run::{Budget, Burst};
use crate::state::State;

/// More than any input of these lengths needs.
const MEMORY: usize = 64 << 20;

/// Decoded text is encoded and decoded again with the same length: members of objects may change places.
const JSON: &str = "
    local text, invalid = ...
    cjson.decode_invalid_numbers(invalid == 'yes')
    local ok, value = pcall(cjson.decode, text)
    if not ok then return #value > 0 end
    cjson.decode_invalid_numbers(true)
    cjson.encode_invalid_numbers(true)
    local once = cjson.encode(value)
    return #cjson.encode(cjson.decode(once)) == #once";

/// Unpacked values are packed and unpacked again with the same count, unless a key was nested so deeply that it became
/// nil.
const MSGPACK: &str = "
    local bytes = ...
    pcall(cmsgpack.unpack_one, bytes, 1)
    pcall(cmsgpack.unpack_limit, bytes, 2, #bytes - 3)
    local function count(ok, ...)
        return ok, select('#', ...), ...
    end
    local function again(ok, values, ...)
        if not ok or values == 0 or values > 4000 then return true end
        local ok, count, message = count(pcall(cmsgpack.unpack, cmsgpack.pack(...)))
        return ok and count == values or message == 'table index is nil'
    end
    return again(count(pcall(cmsgpack.unpack, bytes)))";

/// Unpacking ends within the data, and its values can be packed again.
const STRUCT: &str = "
    local data, format = ...
    pcall(struct.size, format)
    local function again(ok, ...)
        if not ok then return true end
        pcall(struct.pack, format, ...)
        return select(select('#', ...), ...) <= #data + 1
    end
    return again(pcall(struct.unpack, format, data))";

/// Decodes JSON.
pub fn fuzz_json(data: &[u8]) {
    check(JSON, data, b"yes");
    check(JSON, data, b"no");
}

/// Unpacks MessagePack.
pub fn fuzz_msgpack(data: &[u8]) {
    check(MSGPACK, data, b"");
}

/// Unpacks by a format of `struct`; the first byte is its length.
pub fn fuzz_struct(data: &[u8]) {
    let Some((&len, rest)) = data.split_first() else { return };
    let (format, data) = rest.split_at(usize::from(len).min(rest.len()));
    check(STRUCT, data, format);
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

fn check(code: &str, first: &[u8], second: &[u8]) {
    STATE.with_borrow_mut(|state| {
        let state = state.get_or_insert_with(|| {
            State::sandboxed(Arc::new(MemoryLimit::new(MEMORY)), ()).expect("a state within its memory")
        });
        crate::patient(true);
        let function =
            state.compile(code.as_bytes(), c"=fuzz").expect("the script parses").expect("on a patient thread");
        let coroutine = state.begin(&function, &[], &[]).expect("a coroutine within the state's memory");
        let thread = coroutine.thread();
        // SAFETY: the coroutine has room for two values. Making the strings may raise only where memory ends, and
        // inputs are far shorter than that.
        unsafe {
            crate::push_bytes(thread, first);
            crate::push_bytes(thread, second);
        }
        let mut budget = Budget::default();
        // SAFETY: function and arguments were pushed above.
        let mut burst = unsafe { state.resume(&coroutine, 2, &mut budget) };
        while burst == Burst::Forced {
            // SAFETY: the coroutine was suspended and goes on without arguments.
            burst = unsafe { state.resume(&coroutine, 0, &mut budget) };
        }
        crate::patient(false);
        if burst != Burst::Done(1) {
            panic!("{first:?} {second:?}: {}", state.failure(&coroutine));
        }
        // SAFETY: the result is on the stack.
        assert!(unsafe { ffi::lua_toboolean(thread, -1) } != 0, "{first:?} {second:?}");
        state.recycle(coroutine);
        state.release(function);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % limit
        }

        /// Pieces from `choices` and a few bytes of any kind.
        fn bytes(&mut self, choices: &[&[u8]]) -> Vec<u8> {
            let mut bytes = Vec::new();
            for _ in 0..self.below(40) {
                match self.below(20) {
                    0 => bytes.push(self.below(256) as u8),
                    1 => {
                        bytes.extend(std::iter::repeat_n(choices[self.below(choices.len())], self.below(40)).flatten())
                    }
                    _ => bytes.extend_from_slice(choices[self.below(choices.len())]),
                }
            }
            bytes
        }
    }

    /// Returns the memory that the state of this thread uses after a full collection.
    fn used() -> usize {
        STATE.with_borrow_mut(|state| {
            let state = state.as_mut().expect("used before");
            state.collect();
            state.collect();
            state.memory_used()
        })
    }

    fn run(target: fn(&[u8]), choices: &[&[u8]]) {
        let mut random = Random(1);
        for _ in 0..200 {
            target(&random.bytes(choices));
        }
        let before = used();
        for _ in 0..10_000 {
            target(&random.bytes(choices));
        }
        assert!(used() < before + 16384, "{} bytes became {}", before, used());
    }

    #[test]
    fn fuzz_json_holds() {
        let choices: [&[u8]; 30] = [
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\"",
            b"\"a\"",
            b"\"b\":",
            b"1",
            b"-",
            b"0",
            b".5",
            b"e9",
            b"E-",
            b"true",
            b"false",
            b"null",
            b"nan",
            b"-inf",
            b"0x",
            b" ",
            b"\n",
            b"\\",
            b"\\u00",
            b"\\ud83d",
            b"\\udc00",
            b"\0",
            b"[1,2]",
            b"{\"a\":[]}",
        ];
        run(fuzz_json, &choices);
    }

    #[test]
    fn fuzz_msgpack_holds() {
        let choices: [&[u8]; 26] = [
            b"\0",
            b"\x01",
            b"\x7f",
            b"\x80",
            b"\x81",
            b"\x82",
            b"\x90",
            b"\x91",
            b"\x93",
            b"\xa0",
            b"\xa2",
            b"\xc0",
            b"\xc2",
            b"\xca",
            b"\xcb",
            b"\xcc",
            b"\xcf",
            b"\xd0",
            b"\xd9",
            b"\xdb\0\0\0",
            b"\xdc\0",
            b"\xdd\0\0\0",
            b"\xde\0",
            b"\xdf\0\0\0",
            b"\xff",
            b"\xdd\xff\xff\xff",
        ];
        run(fuzz_msgpack, &choices);
    }

    #[test]
    fn fuzz_struct_holds() {
        let choices: [&[u8]; 28] = [
            b"\x01", b"\x02", b"\x05", b"\x10", b"b", b"B", b"h", b"l", b"T", b"i", b"I3", b"i9", b"i32", b"f", b"d",
            b"s", b"c", b"c0", b"bc0", b"x", b"!", b"!4", b"<", b">", b" ", b"\0", b"\xff", b"i33",
        ];
        run(fuzz_struct, &choices);
    }
}
