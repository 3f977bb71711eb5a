//! Whether a compiled chunk leaves its globals alone.
//!
//! What scripts get for the table of globals refuses writes, at the price of two more look-ups for every read. A chunk
//! that neither writes a global nor takes hold of the table can read the real one instead and tell no difference. So
//! its code is looked through once, in the form that Lua itself dumps it. What is not understood counts as a write.

/// What Lua 5.4 puts before every dump: signature, version, format, bytes that catch damage, sizes, and samples of an
/// integer and a float.
const HEADER: &[u8] =
    b"\x1bLua\x54\x00\x19\x93\r\n\x1a\n\x04\x08\x08\x78\x56\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x28\x77\x40";

const OP_GETUPVAL: u32 = 9;
const OP_SETUPVAL: u32 = 10;
const OP_SETTABUP: u32 = 15;

/// Functions within each other.
const DEPTH_MAX: u32 = 200;

/// Whether the chunk of this dump only ever reads single globals.
pub(super) fn only_reads_globals(dump: &[u8]) -> bool {
    let Some(rest) = dump.strip_prefix(HEADER) else { return false };
    let mut reader = Reader { rest };
    // The number of upvalues of the main function, whose first is the table of globals.
    reader.byte().is_some() && reader.function(Some(0), 0) == Some(true)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Seven bits a byte, the last one marked.
    fn size(&mut self) -> Option<usize> {
        let mut size = 0usize;
        loop {
            let byte = self.byte()?;
            size = size.checked_mul(128)? | usize::from(byte & 0x7f);
            if byte & 0x80 != 0 {
                return Some(size);
            }
        }
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let size = self.size()?;
        self.bytes(size.saturating_sub(1))
    }

    /// Reads a function. The table of globals is the upvalue `outer` of the function around it.
    fn function(&mut self, outer: Option<u8>, depth: u32) -> Option<bool> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.string()?;
        self.size()?;
        self.size()?;
        self.bytes(3)?;
        let count = self.size()?;
        let code = self.bytes(count.checked_mul(4)?)?;
        for _ in 0..self.size()? {
            match self.byte()? {
                0x00 | 0x01 | 0x11 => {}
                0x03 | 0x13 => drop(self.bytes(8)?),
                0x04 | 0x14 => drop(self.string()?),
                _ => return None,
            }
        }
        // An upvalue says whether it is a variable of the function around, or which upvalue of that it is. The table
        // is never a variable: only a script that names one `_ENV` has that, and then it is a table of its own.
        let count = self.size()?;
        let upvalues = self.bytes(count.checked_mul(3)?)?;
        let globals = match outer {
            Some(outer) if depth > 0 => upvalues.chunks_exact(3).position(|upvalue| upvalue[..2] == [0, outer]),
            outer => outer.map(usize::from),
        };
        if globals.is_some_and(|globals| touches(code, globals as u32)) {
            return Some(false);
        }
        let globals = globals.and_then(|globals| u8::try_from(globals).ok());
        for _ in 0..self.size()? {
            if !self.function(globals, depth + 1)? {
                return Some(false);
            }
        }
        // There is nothing for debuggers.
        for _ in 0..4 {
            if self.size()? != 0 {
                return None;
            }
        }
        Some(true)
    }
}

/// Whether code does more with an upvalue than read one of its fields.
fn touches(code: &[u8], upvalue: u32) -> bool {
    code.chunks_exact(4).any(|word| {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let (a, b) = (word >> 7 & 0xff, word >> 16 & 0xff);
        match word & 0x7f {
            OP_GETUPVAL | OP_SETUPVAL => b == upvalue,
            OP_SETTABUP => a == upvalue,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::sync::Arc;

    use super::*;
    use crate::{MemoryLimit, State, ffi};

    unsafe extern "C-unwind" fn append(
        _: *mut ffi::lua_State,
        part: *const c_void,
        len: usize,
        dump: *mut c_void,
    ) -> c_int {
        // SAFETY: the last argument is the vector of the frame below.
        unsafe { (*(dump as *mut Vec<u8>)).extend_from_slice(std::slice::from_raw_parts(part.cast(), len)) };
        0
    }

    fn dumped(code: &str) -> Vec<u8> {
        let state = State::sandboxed(Arc::new(MemoryLimit::new(0)), ()).expect("a state");
        let mut dump = Vec::new();
        // SAFETY: neither loading nor dumping raises.
        unsafe {
            let lua = state.main();
            let status = ffi::luaL_loadbufferx(lua, code.as_ptr().cast(), code.len(), c"=x".as_ptr(), std::ptr::null());
            assert_eq!(status, ffi::LUA_OK, "{code}");
            ffi::lua_dump(lua, append, (&raw mut dump).cast(), 1);
            ffi::lua_settop(lua, 0);
        }
        dump
    }

    #[test]
    fn writes_to_globals_are_seen() {
        let many: String = (0..300).map(|at| format!("x({at}.5) ")).collect();
        for (code, reads) in [
            ("return redis.call('get', KEYS[1])", true),
            ("local x = 1 local function f() x = 2 return string.rep('x', x) end return f()", true),
            ("local t = {} t.x = 1 t[1] = 2 t[KEYS[1]] = 3 return function() t.y = KEYS end", true),
            ("local t = {} return function() return function() t.KEYS = ARGV[1] end end", true),
            ("for i, v in ipairs(ARGV) do local x <const> = v end goto a ::a:: return 1.5, 3, nil, true, false", true),
            ("local _ENV = {} x = 1 return function() x = 2 end", true),
            ("x = 1", false),
            ("return function() return function() x = 1 end end", false),
            ("local t = {} return function() t.y = 1 x = t end", false),
            ("function f() end", false),
            ("_ENV = {}", false),
            ("return _ENV", false),
            ("local e = _ENV e.x = 1", false),
            ("return function() _ENV.x = 1 end", false),
            ("return function() _ENV = nil end", false),
            // With this many constants the table is fetched first.
            (&format!("{many} y = 1"), false),
            (&many, true),
            (&format!("{many} return y"), false),
        ] {
            assert_eq!(only_reads_globals(&dumped(code)), reads, "{code}");
        }
    }

    #[test]
    fn damaged_dumps_count_as_writes() {
        let dump = dumped("local a = KEYS[1] return function(b) return a .. b .. 'text' .. 1.5 end");
        assert!(only_reads_globals(&dump));
        for len in 0..dump.len() {
            assert!(!only_reads_globals(&dump[..len]), "{len}");
        }
        for at in 0..dump.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = dump.clone();
                damaged[at] = byte;
                only_reads_globals(&damaged);
            }
        }
    }
}
