//! What is done to a compiled chunk before it runs. Its code is looked through once, in the form that Lua itself dumps
//! it; one that is not understood stays as it is.
//!
//! **Globals.** What scripts get for the table of globals refuses writes, at the price of two more look-ups for every
//! read. A chunk that neither writes a global nor takes hold of the table can read the real one and tell no difference.
//!
//! **Divisions.** In Lua 5.1 a quotient that is whole prints as an integer, also in `..`: `"page:" .. n / 10` names a key.
//! So the instructions that divide and raise to powers give way to what follows each of them in 5.4's code, the call of
//! a metamethod; numbers have one here, and it gives integers where 5.1 would print one.
//!
//! Cost: a copy of the code at compilation, and a call of a C function for each division.

/// What Lua 5.4 puts before every dump: signature, version, format, bytes that catch damage, sizes, and samples of an
/// integer and a float.
const HEADER: &[u8] =
    b"\x1bLua\x54\x00\x19\x93\r\n\x1a\n\x04\x08\x08\x78\x56\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x28\x77\x40";

const OP_MOVE: u32 = 0;
const OP_GETUPVAL: u32 = 9;
const OP_SETUPVAL: u32 = 10;
const OP_SETTABUP: u32 = 15;
const OP_POWK: u32 = 26;
const OP_DIVK: u32 = 27;
const OP_POW: u32 = 38;
const OP_DIV: u32 = 39;
const OP_MMBIN: u32 = 46;
const OP_MMBINK: u32 = 48;

/// Functions within each other.
const DEPTH_MAX: u32 = 200;

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// It does no more with the table of globals than read fields.
    pub(super) only_reads_globals: bool,
    /// It divides or raises to powers: the dump has changed and is to be loaded.
    pub(super) changed: bool,
}

/// Looks through a dump and changes what has to change; `None` if it is not understood, and then it is not to be used.
pub(super) fn adapt(dump: &mut [u8]) -> Option<Chunk> {
    if !dump.starts_with(HEADER) {
        return None;
    }
    let chunk = Chunk { only_reads_globals: true, changed: false };
    let mut reader = Reader { dump, at: HEADER.len(), chunk };
    // The number of upvalues of the main function, whose first is the table of globals.
    reader.byte()?;
    reader.function(Some(0), 0)?;
    (reader.at == reader.dump.len()).then_some(reader.chunk)
}

struct Reader<'a> {
    dump: &'a mut [u8],
    at: usize,
    chunk: Chunk,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.dump.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Skips bytes; gives where they begin.
    fn skip(&mut self, count: usize) -> Option<usize> {
        let start = self.at;
        let end = start.checked_add(count)?;
        if end > self.dump.len() {
            return None;
        }
        self.at = end;
        Some(start)
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

    fn string(&mut self) -> Option<()> {
        let size = self.size()?;
        self.skip(size.saturating_sub(1))?;
        Some(())
    }

    /// Reads a function. The table of globals is the upvalue `outer` of the function around it.
    fn function(&mut self, outer: Option<u8>, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.string()?;
        self.size()?;
        self.size()?;
        self.skip(3)?;
        let count = self.size()?.checked_mul(4)?;
        let code = self.skip(count)?;
        let code = code..code + count;
        for _ in 0..self.size()? {
            match self.byte()? {
                0x00 | 0x01 | 0x11 => {}
                0x03 | 0x13 => drop(self.skip(8)?),
                0x04 | 0x14 => self.string()?,
                _ => return None,
            }
        }
        // An upvalue says whether it is a variable of the function around, or which upvalue of that it is. The table
        // is never a variable: only a script that names one `_ENV` has that, and then it is a table of its own.
        let count = self.size()?.checked_mul(3)?;
        let upvalues = self.skip(count)?;
        let upvalues = &self.dump[upvalues..upvalues + count];
        let globals = match outer {
            Some(outer) if depth > 0 => upvalues.chunks_exact(3).position(|upvalue| upvalue[..2] == [0, outer]),
            outer => outer.map(usize::from),
        };
        let globals = globals.and_then(|globals| u8::try_from(globals).ok());
        let code = &mut self.dump[code];
        if globals.is_some_and(|globals| touches(code, u32::from(globals))) {
            self.chunk.only_reads_globals = false;
        }
        self.chunk.changed |= divide_by_call(code);
        for _ in 0..self.size()? {
            self.function(globals, depth + 1)?;
        }
        self.debug()
    }

    /// Lines, variables and names of upvalues.
    fn debug(&mut self) -> Option<()> {
        let lines = self.size()?;
        self.skip(lines)?;
        for _ in 0..self.size()? {
            self.size()?;
            self.size()?;
        }
        for _ in 0..self.size()? {
            self.string()?;
            self.size()?;
            self.size()?;
        }
        for _ in 0..self.size()? {
            self.string()?;
        }
        Some(())
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Whether code does more with an upvalue than read one of its fields.
fn touches(code: &[u8], upvalue: u32) -> bool {
    code.chunks_exact(4).map(word).any(|word| {
        let (a, b) = (word >> 7 & 0xff, word >> 16 & 0xff);
        match word & 0x7f {
            OP_GETUPVAL | OP_SETUPVAL => b == upvalue,
            OP_SETTABUP => a == upvalue,
            _ => false,
        }
    })
}

/// Lets the instruction behind each division do it: that one takes the result's register from the instruction before
/// it, which becomes a move of the register to itself. Gives whether there was one.
fn divide_by_call(code: &mut [u8]) -> bool {
    let mut changed = false;
    for at in (4..code.len()).step_by(4) {
        let (before, after) = (word(&code[at - 4..]), word(&code[at..]));
        let divides = match after & 0x7f {
            OP_MMBIN => matches!(before & 0x7f, OP_DIV | OP_POW),
            OP_MMBINK => matches!(before & 0x7f, OP_DIVK | OP_POWK),
            _ => false,
        };
        if divides {
            let result = before >> 7 & 0xff;
            code[at - 4..at].copy_from_slice(&(OP_MOVE | result << 7 | result << 16).to_le_bytes());
            changed = true;
        }
    }
    changed
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
            ffi::lua_dump(lua, append, (&raw mut dump).cast(), 0);
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
            let chunk = adapt(&mut dumped(code)).expect(code);
            assert_eq!((chunk.only_reads_globals, chunk.changed), (reads, false), "{code}");
        }
    }

    #[test]
    fn divisions_are_seen() {
        for (code, divides) in [
            ("local a, b = 1, 2 return a + b - a * b % 3", false),
            ("local a, b = 1, 2 return a / b", true),
            ("local a = 1 return a / 2", true),
            ("local a = 1 return 2 ^ a", true),
            ("return function(a) return function() return a ^ 2 end end", true),
            ("return 10 / 2", false),
        ] {
            assert_eq!(adapt(&mut dumped(code)).expect(code).changed, divides, "{code}");
        }
    }

    #[test]
    fn damaged_dumps_do_no_harm() {
        let dump = dumped("local a = KEYS[1] return function(b) return a .. b .. 'text' .. 1.5 / b end");
        assert!(adapt(&mut dump.clone()).is_some());
        for len in 0..dump.len() {
            assert_eq!(adapt(&mut dump[..len].to_vec()), None, "{len}");
        }
        for at in 0..dump.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = dump.clone();
                damaged[at] = byte;
                adapt(&mut damaged);
            }
        }
    }
}
