//! Adaptation of compiled chunks. The code is scanned once, in the form of Lua's own dumps; a chunk that is not
//! understood stays unchanged.
//!
//! **Globals.** The script's table of globals, and each library table, refuses writes, at the price of two more
//! look-ups for every read. A chunk that neither writes a global nor gets a reference to the table can use the real one
//! without an observable difference; one that also uses libraries only as `library.field` can use the real libraries.
//!
//! **Arguments.** A chunk that only reads elements of `KEYS` and `ARGV` leaves these tables unchanged, so that they are
//! reused for the next script without a check.
//!
//! **Discarded replies.** `redis.call(…)` as a separate statement calls `acall` in its place, `pcall` calls `apcall`:
//! they do the same without converting the reply to a value.
//!
//! **Divisions.** In Lua 5.1 an integral quotient prints as an integer, also in `..`: `"page:" .. n / 10` names a key.
//! So the instructions that divide and raise to powers are removed in favour of the instruction that follows each of
//! them in 5.4's code, the call of a metamethod; numbers have one here, and it returns integers where 5.1 would print
//! one.
//!
//! **Wide concatenations.** One instruction of `..` copies all its operands. A chunk with a very wide one does not run
//! on a worker if an operand may be as large as a block that makes a script [leave](crate::memory).
//!
//! Cost: a copy of the code at compilation, and a call of a C function for each division.

use std::ops::Range;

/// The header of every Lua 5.4 dump: signature, version, format, bytes that detect damage, sizes, and samples of an
/// integer and a float.
const HEADER: &[u8] =
    b"\x1bLua\x54\x00\x19\x93\r\n\x1a\n\x04\x08\x08\x78\x56\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x28\x77\x40";

const OP_MOVE: u32 = 0;
const OP_LOADI: u32 = 1;
const OP_LOADNIL: u32 = 8;
const OP_GETUPVAL: u32 = 9;
const OP_SETUPVAL: u32 = 10;
const OP_GETTABUP: u32 = 11;
const OP_GETTABLE: u32 = 12;
const OP_GETI: u32 = 13;
const OP_GETFIELD: u32 = 14;
const OP_SETTABUP: u32 = 15;
const OP_SELF: u32 = 20;
const OP_ADDI: u32 = 21;
const OP_POWK: u32 = 26;
const OP_DIVK: u32 = 27;
const OP_SHLI: u32 = 33;
const OP_ADD: u32 = 34;
const OP_POW: u32 = 38;
const OP_DIV: u32 = 39;
const OP_SHR: u32 = 45;
const OP_MMBIN: u32 = 46;
const OP_MMBINI: u32 = 47;
const OP_MMBINK: u32 = 48;
const OP_UNM: u32 = 49;
const OP_LEN: u32 = 52;
const OP_CONCAT: u32 = 53;
const OP_CLOSE: u32 = 54;
const OP_TBC: u32 = 55;
const OP_JMP: u32 = 56;
const OP_CALL: u32 = 68;
const OP_TAILCALL: u32 = 69;
const OP_RETURN: u32 = 70;
const OP_TFORPREP: u32 = 75;
const OP_TFORLOOP: u32 = 77;
const OP_VARARG: u32 = 80;
const OP_EXTRAARG: u32 = 82;

/// Kinds of constants that are strings.
const SHORT_STRING: u8 = 0x04;
const LONG_STRING: u8 = 0x14;

/// The number of operands from which on a `..` is wide.
const WIDE: u32 = 32;

/// The maximum depth of nested functions.
const DEPTH_MAX: u32 = 200;

/// Globals that are libraries, for which [`open_libraries`](super::open_libraries) puts the real tables in place of the
/// ones that scripts see.
pub(super) const LIBRARIES: [&[u8]; 11] =
    [b"bit", b"cjson", b"cmsgpack", b"coroutine", b"math", b"os", b"redis", b"server", b"string", b"struct", b"table"];

/// Globals through which a script gets a reference to its globals, or to code that has one.
const LEADING_OUT: [&[u8]; 3] = [b"_G", b"load", b"loadstring"];

/// The table that a chunk may have for its globals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Globals {
    /// The table that refuses writes.
    Sealed,
    /// The real table: the chunk only reads its fields.
    Real,
    /// A table with the real libraries: the chunk only reads their fields, too.
    Open,
}

/// The functions of a chunk in which unused replies are not converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Discards {
    #[default]
    Nowhere,
    /// In the functions within the main one. The main function of a library runs while there is nothing to call.
    Within,
    Everywhere,
}

/// The properties of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) globals: Globals,
    /// Whether it changes neither `KEYS` nor `ARGV`.
    pub(super) keeps_arguments: bool,
    /// The changed dump, which is to be loaded; `None` if nothing had to change.
    pub(super) changed: Option<Vec<u8>>,
    /// Whether one of its concatenations has very many operands.
    pub(super) is_wide: bool,
}

/// Scans a dump and changes it where necessary; `None` if it is not understood: it must not be used then. `discards`:
/// the functions in which unused replies are not converted.
pub(super) fn adapt(dump: &[u8], discards: Discards) -> Option<Chunk> {
    if !dump.starts_with(HEADER) {
        return None;
    }
    let mut reader = Reader {
        dump,
        at: HEADER.len(),
        out: Vec::new(),
        copied: 0,
        globals: Globals::Open,
        keeps_arguments: true,
        discards,
        is_wide: false,
    };
    // The number of upvalues of the main function, whose first is the table of globals.
    reader.byte()?;
    reader.function(Some(0), &[], 0)?;
    if reader.at != dump.len() {
        return None;
    }
    let changed = (reader.copied > 0).then(|| {
        reader.out.extend_from_slice(&dump[reader.copied..]);
        reader.out
    });
    // A chunk with a reference to the globals can also get at the arguments.
    let keeps_arguments = reader.keeps_arguments && reader.globals == Globals::Open;
    Some(Chunk { globals: reader.globals, keeps_arguments, changed, is_wide: reader.is_wide })
}

struct Reader<'a> {
    dump: &'a [u8],
    at: usize,
    /// The changed dump, as far as the first `copied` bytes go.
    out: Vec<u8>,
    copied: usize,
    globals: Globals,
    keeps_arguments: bool,
    discards: Discards,
    is_wide: bool,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.dump.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Skips bytes; returns their range.
    fn skip(&mut self, count: usize) -> Option<Range<usize>> {
        let start = self.at;
        let end = start.checked_add(count)?;
        if end > self.dump.len() {
            return None;
        }
        self.at = end;
        Some(start..end)
    }

    /// Reads a size: seven bits per byte, with the last byte marked.
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
        let bytes = self.skip(size.saturating_sub(1))?;
        Some(&self.dump[bytes])
    }

    /// Reads a function. The table of globals is the upvalue `outer` of the function around it. The registers
    /// `lent_around` of that function contain the arguments at times.
    fn function(&mut self, outer: Option<u8>, lent_around: &[u8], depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.string()?;
        self.size()?;
        self.size()?;
        self.skip(3)?;
        let count = self.size()?.checked_mul(4)?;
        let code = self.skip(count)?;
        let count = self.size()?;
        let constants_at = self.at;
        let mut constants = Constants { names: Vec::new(), added: Vec::new() };
        for _ in 0..count {
            let kind = self.byte()?;
            let name = match kind {
                0x00 | 0x01 | 0x11 => None,
                0x03 | 0x13 => self.skip(8).map(|_| None)?,
                SHORT_STRING | LONG_STRING => Some(self.string()?),
                _ => return None,
            };
            constants.names.push(name);
        }
        let constants_at = constants_at..self.at;
        // An upvalue is either a variable of the enclosing function, or one of that function's upvalues. The table is
        // never a variable: only a script that declares `_ENV` has such a variable, which is a table of its own.
        let count = self.size()?.checked_mul(3)?;
        let upvalues = self.skip(count)?;
        let upvalues = &self.dump[upvalues];
        // A closure that captures a register sees later values of it.
        self.keeps_arguments &=
            !upvalues.chunks_exact(3).any(|upvalue| upvalue[0] == 1 && lent_around.contains(&upvalue[1]));
        let globals = match outer {
            Some(outer) if depth > 0 => upvalues.chunks_exact(3).position(|upvalue| upvalue[..2] == [0, outer]),
            outer => outer.map(usize::from),
        };
        let globals = globals.and_then(|globals| u8::try_from(globals).ok());
        let mut lent = Vec::new();
        let mut words: Vec<u32> = self.dump[code.clone()].chunks_exact(4).map(word).collect();
        if let Some(globals) = globals {
            self.globals = self.globals.min(use_of_globals(&words, u32::from(globals), &constants));
            self.keeps_arguments &= keeps_arguments(&words, u32::from(globals), &constants, &mut lent);
        }
        self.is_wide |= words.iter().any(|word| operation(*word) == OP_CONCAT && operands(*word).1 >= WIDE);
        let mut changed = divide_by_call(&mut words);
        let discards = match self.discards {
            Discards::Nowhere => false,
            Discards::Within => depth > 0,
            Discards::Everywhere => true,
        };
        if discards && let Some(globals) = globals {
            changed |= discard_replies(&mut words, u32::from(globals), &mut constants);
        }
        if changed {
            self.out.extend_from_slice(&self.dump[self.copied..code.start]);
            words.iter().for_each(|word| self.out.extend_from_slice(&word.to_le_bytes()));
            self.out.extend_from_slice(&size_bytes(constants.names.len()));
            self.out.extend_from_slice(&self.dump[constants_at.clone()]);
            self.out.extend_from_slice(&constants.added);
            self.copied = constants_at.end;
        }
        for _ in 0..self.size()? {
            self.function(globals, &lent, depth + 1)?;
        }
        self.debug()
    }

    /// Skips lines, variables and names of upvalues.
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

/// A size as it stands in a dump.
fn size_bytes(mut size: usize) -> Vec<u8> {
    let mut bytes = vec![0x80 | (size & 0x7f) as u8];
    while size > 0x7f {
        size >>= 7;
        bytes.insert(0, (size & 0x7f) as u8);
    }
    bytes
}

/// The constants of a function.
struct Constants<'a> {
    /// The constants that are strings, by index.
    names: Vec<Option<&'a [u8]>>,
    /// Added constants, in the form of a dump.
    added: Vec<u8>,
}

impl<'a> Constants<'a> {
    fn name(&self, place: u32) -> &'a [u8] {
        self.names.get(place as usize).copied().flatten().unwrap_or_default()
    }

    /// Returns the place of a short string, which is added if need be; `None` if an instruction can't name the place.
    fn place_of(&mut self, name: &'static [u8]) -> Option<u32> {
        let place = match self.names.iter().position(|known| *known == Some(name)) {
            Some(place) => place,
            None if self.names.len() > 0xff => return None,
            None => {
                self.added.push(SHORT_STRING);
                self.added.extend_from_slice(&size_bytes(name.len() + 1));
                self.added.extend_from_slice(name);
                self.names.push(Some(name));
                self.names.len() - 1
            }
        };
        u32::try_from(place).ok().filter(|place| *place <= 0xff)
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn operation(word: u32) -> u32 {
    word & 0x7f
}

/// Returns the operands A, B and C of an instruction.
fn operands(word: u32) -> (u32, u32, u32) {
    (word >> 7 & 0xff, word >> 16 & 0xff, word >> 24)
}

/// Returns whether an instruction replaces a register by a field of its value; the field's index among the constants.
fn field_in_place(word: Option<&u32>, register: u32) -> Option<u32> {
    let word = *word?;
    let (a, b, field) = operands(word);
    (operation(word) == OP_GETFIELD && a == register && b == register).then_some(field)
}

/// Classifies the code's use of the upvalue with the table of globals.
fn use_of_globals(code: &[u32], upvalue: u32, constants: &Constants<'_>) -> Globals {
    let mut globals = Globals::Open;
    for (at, &word) in code.iter().enumerate() {
        let (a, b, c) = operands(word);
        match operation(word) {
            OP_GETUPVAL | OP_SETUPVAL if b == upvalue => return Globals::Sealed,
            OP_SETTABUP if a == upvalue => return Globals::Sealed,
            OP_GETTABUP if b == upvalue => {
                let name = constants.name(c);
                let is_held = LIBRARIES.contains(&name) && field_in_place(code.get(at + 1), a).is_none();
                if is_held || LEADING_OUT.contains(&name) {
                    globals = Globals::Real;
                }
            }
            _ => {}
        }
    }
    globals
}

/// Returns whether code reads elements or the length of `KEYS` and `ARGV`, goes through them by `ipairs`, or has them
/// unpacked, and does nothing else with them. Registers that they are in meanwhile are added to `lent`.
fn keeps_arguments(code: &[u32], upvalue: u32, constants: &Constants<'_>, lent: &mut Vec<u8>) -> bool {
    let global = |at: usize| {
        let (a, b, c) = operands(*code.get(at)?);
        (operation(code[at]) == OP_GETTABUP && b == upvalue).then(|| (a, constants.name(c)))
    };
    (0..code.len()).all(|at| {
        let Some((register, b"KEYS" | b"ARGV")) = global(at) else { return true };
        lent.push(register as u8);
        is_read_in_place(&code[at + 1..], register)
            || at > 0 && !is_jumped_to(code, at) && {
                let called = register.wrapping_sub(1);
                let is_called = code.get(at + 1).is_some_and(|call| {
                    let (a, b, _) = operands(*call);
                    matches!(operation(*call), OP_CALL | OP_TAILCALL) && a == called && b == 2
                });
                // The loop has the table in a register that belongs to no variable.
                let goes_through = || {
                    code.get(at + 2).is_some_and(|then| operation(*then) == OP_TFORPREP && operands(*then).0 == called)
                };
                match global(at - 1) {
                    Some((function, b"unpack")) => is_called && function == called,
                    Some((function, b"ipairs")) => is_called && function == called && goes_through(),
                    _ => false,
                }
            }
    })
}

/// Returns whether the table just put into a register is replaced by an element or its length, with only index
/// computations in other registers in between.
fn is_read_in_place(code: &[u32], register: u32) -> bool {
    for &word in code {
        let (a, b, c) = operands(word);
        // The register that the instruction sets, and those that it reads, as far as they are not above the former.
        let (sets, reads) = match operation(word) {
            OP_GETTABLE | OP_SELF | OP_ADD..=OP_SHR => (Some(a), [b, c]),
            OP_MOVE | OP_GETI | OP_GETFIELD | OP_ADDI..=OP_SHLI | OP_UNM..=OP_LEN => (Some(a), [b, b]),
            OP_LOADI..=OP_LOADNIL | OP_GETUPVAL | OP_GETTABUP | OP_CONCAT | OP_CALL => (Some(a), [a, a]),
            // They set the registers named by the previous instruction.
            OP_MMBIN => (None, [a, b]),
            OP_MMBINI | OP_MMBINK => (None, [a, a]),
            _ => return false,
        };
        match operation(word) {
            OP_GETTABLE if a == register => return b == register && c != register,
            OP_GETI | OP_GETFIELD | OP_LEN if a == register => return b == register,
            _ if sets.is_none_or(|set| set > register) && !reads.contains(&register) => {}
            _ => return false,
        }
    }
    false
}

/// Returns whether a jump leads to an instruction, as the second half of an `and` or `or` does.
fn is_jumped_to(code: &[u32], to: usize) -> bool {
    /// The encoding of a jump to the next instruction.
    const NEAR: i64 = (1 << 24) - 1;
    let mut jumps = code.iter().enumerate().filter(|(_, word)| operation(**word) == OP_JMP);
    jumps.any(|(at, word)| at as i64 + 1 + i64::from(*word >> 7) - NEAR == to as i64)
}

/// Makes each call of `redis.call` or `redis.pcall` with an unused result call `acall` or `apcall`. Returns whether
/// there was one.
fn discard_replies(code: &mut [u32], globals: u32, constants: &mut Constants<'_>) -> bool {
    let mut changed = false;
    for at in 0..code.len() {
        let (a, b, c) = operands(code[at]);
        let is_redis =
            operation(code[at]) == OP_GETTABUP && b == globals && matches!(constants.name(c), b"redis" | b"server");
        let Some(field) = is_redis.then(|| field_in_place(code.get(at + 1), a)).flatten() else { continue };
        let other: &[u8] = match constants.name(field) {
            b"call" => b"acall",
            b"pcall" => b"apcall",
            _ => continue,
        };
        if is_called_for_nothing(&code[at + 2..], a)
            && let Some(place) = constants.place_of(other)
        {
            code[at + 1] = code[at + 1] & 0x00ff_ffff | place << 24;
            changed = true;
        }
    }
    changed
}

/// Returns whether the function that was just put into a register is called, and its results are dropped. Between the
/// two stands the code of the arguments, all of which uses registers above; other code is left unchanged.
fn is_called_for_nothing(code: &[u32], register: u32) -> bool {
    for &word in code {
        let (a, _, c) = operands(word);
        match operation(word) {
            OP_CALL if a == register => return c == 1,
            OP_EXTRAARG | OP_JMP => {}
            // Instructions that set the register, or several registers.
            _ if a == register => return false,
            OP_LOADNIL
            | OP_SELF
            | OP_CONCAT
            | OP_CLOSE
            | OP_TBC
            | OP_CALL
            | OP_TAILCALL
            | OP_VARARG
            | OP_RETURN..=OP_TFORLOOP
                if a < register =>
            {
                return false;
            }
            _ => {}
        }
    }
    false
}

/// Makes the instruction that follows each division compute the result: it takes the result's register from the
/// division, which becomes a move of the register to itself. Returns whether there was one.
fn divide_by_call(code: &mut [u32]) -> bool {
    let mut changed = false;
    for at in 1..code.len() {
        let (before, after) = (code[at - 1], code[at]);
        let divides = match operation(after) {
            OP_MMBIN => matches!(operation(before), OP_DIV | OP_POW),
            OP_MMBINK => matches!(operation(before), OP_DIVK | OP_POWK),
            _ => false,
        };
        if divides {
            let (result, _, _) = operands(before);
            code[at - 1] = OP_MOVE | result << 7 | result << 16;
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
            // With this many constants the table is loaded into a register first.
            (&format!("{many} y = 1"), false),
            (&many, true),
            (&format!("{many} return y"), false),
        ] {
            let chunk = adapt(&dumped(code), Discards::Nowhere).expect(code);
            assert_eq!((chunk.globals != Globals::Sealed, chunk.changed), (reads, None), "{code}");
        }
    }

    #[test]
    fn libraries_that_are_only_read_are_seen() {
        for (code, opens) in [
            ("return redis.call('get', KEYS[1])", true),
            ("local call = redis.call return call('get', KEYS[1]) .. string.rep('x', 2)", true),
            ("return function() return function() return math.max(1, #cjson.encode({})) end end", true),
            ("return ('x'):rep(3)", true),
            ("return (KEYS and redis or server).call('ping')", false),
            ("local r = redis return r.call('ping')", false),
            ("local r = KEYS or redis return r.call('ping')", false),
            ("return redis", false),
            ("redis.x = 1", false),
            ("redis:call()", false),
            ("return pairs(string)", false),
            ("local s s = string.rep return s('x', 1)", false),
            ("return redis[KEYS[1]]", false),
            ("return function() return #table end", false),
            ("return _G.redis.call", false),
            ("return loadstring('redis.x = 1')", false),
            ("return load(function() end)", false),
        ] {
            let chunk = adapt(&dumped(code), Discards::Nowhere).expect(code);
            assert_eq!((chunk.globals == Globals::Open, chunk.changed), (opens, None), "{code}");
        }
    }

    #[test]
    fn chunks_that_leave_their_arguments_alone_are_seen() {
        for (code, keeps) in [
            ("return 1", true),
            ("return redis.call('get', KEYS[1])", true),
            ("local n = #KEYS + #ARGV local last = ARGV[#ARGV] return KEYS[n] or last", true),
            ("return function() return function() return KEYS.x end end", true),
            ("local i = 1 return ARGV[2 * i - 1] .. ARGV[tonumber(ARGV[#ARGV]) + i]", true),
            ("local k k = KEYS k = k[1] return k", true),
            ("local k local function f() k[2] = 1 end k = KEYS k = k[1] return k", false),
            ("local k = KEYS table.sort(k) k = k[1]", false),
            ("local k = KEYS local l = k k = k[l]", false),
            ("local k = KEYS k = k[k]", false),
            ("for i = 1, #KEYS do redis.call('del', KEYS[i], ARGV[i + 1], unpack(ARGV)) end", true),
            ("return redis.call('del', unpack(KEYS))", true),
            ("return unpack(KEYS)", true),
            ("for i, key in ipairs(KEYS) do for _, value in ipairs(ARGV) do print(i, key, value) end end", true),
            ("local f = function(k) return k end return f(KEYS[1])", true),
            ("local k = KEYS return k[1]", false),
            ("KEYS[1] = 2", false),
            ("KEYS.x = 2", false),
            ("ARGV[#ARGV + 1] = 2", false),
            ("return ARGV", false),
            ("table.insert(ARGV, 1)", false),
            ("table.sort(KEYS)", false),
            ("return cjson.encode(KEYS)", false),
            ("for k, v in pairs(KEYS) do end", false),
            ("local f, t = ipairs(KEYS) t[1] = 2", false),
            ("for i, k in next, KEYS do end", false),
            ("for i, k in (table.sort or ipairs)(KEYS) do end", false),
            ("(table.sort or unpack)(KEYS)", false),
            ("return unpack(ARGV, 2)", false),
            ("local ipairs = table.sort for i, k in ipairs(KEYS) do end", false),
            ("local t = {KEYS} t[1][1] = 2", false),
            ("local t = ARGV[1] and KEYS", false),
            ("local function f(t) t[1] = 2 end f(KEYS)", false),
            ("return function() return ARGV end", false),
            ("setmetatable(KEYS, {})", false),
            ("return _G.KEYS[1]", false),
            ("return loadstring('KEYS[1] = 2')()", false),
            ("x = 1", false),
        ] {
            let chunk = adapt(&dumped(code), Discards::Nowhere).expect(code);
            assert_eq!(chunk.keeps_arguments, keeps, "{code}");
        }
    }

    #[test]
    fn calls_for_nothing_are_seen() {
        let many: String = (0..300).map(|at| format!("x({at}.5) ")).collect();
        for (code, discards) in [
            ("redis.call('set', KEYS[1], 1)", true),
            ("server.pcall('set', KEYS[1], 1) return 1", true),
            ("for i = 1, 3 do redis.call('set', KEYS[i], ARGV[i] or 'x' .. i, unpack(ARGV)) end", true),
            ("local function f(...) redis.call('del', ...) end f(1)", true),
            (
                "redis.call('set', redis.call('get', KEYS[1]), tostring({1, 2, a = 3}), (function() return 1 end)())",
                true,
            ),
            ("if redis.call('get', KEYS[1]) == 1 then redis.call('del', KEYS[1]) end", true),
            ("return redis.call('get', KEYS[1])", false),
            ("local x = redis.call('get', KEYS[1]) return x", false),
            ("local x x = redis.call('get', KEYS[1])", false),
            ("print(redis.call('get', KEYS[1]))", false),
            ("print(1, redis.call('get', KEYS[1]))", false),
            ("local t = {redis.call('get', KEYS[1])}", false),
            ("if redis.call('get', KEYS[1]) then end", false),
            ("local f = redis.call f('set', KEYS[1], 1)", false),
            ("do local f = redis.call end print(1)", false),
            ("do local f = redis.call end local g = print g(1)", false),
            ("local f = KEYS and redis.call or print f(1)", false),
            ("local a = redis.call; (function() end)()", false),
            ("local redis = {} redis.call(1)", false),
            ("redis.sha1hex('x')", false),
            ("KEYS.call(1)", false),
            (&format!("{many} redis.call(1)"), false),
        ] {
            let dump = dumped(code);
            let chunk = adapt(&dump, Discards::Everywhere).expect(code);
            assert_eq!(chunk.changed.is_some(), discards, "{code}");
            assert_eq!(adapt(&dump, Discards::Nowhere).expect(code).changed, None, "{code}");
            // The changed dump can be scanned again.
            if let Some(changed) = chunk.changed {
                let again = adapt(&changed, Discards::Everywhere).expect(code);
                assert_eq!((again.globals, again.changed), (chunk.globals, None), "{code}");
            }
        }
    }

    #[test]
    fn the_main_function_of_a_library_is_left_alone() {
        for (code, discards) in [
            ("redis.call('set', 'a', 1)", false),
            ("redis.register_function('f', function(keys) redis.call('del', keys[1]) end)", true),
        ] {
            assert_eq!(adapt(&dumped(code), Discards::Within).expect(code).changed.is_some(), discards, "{code}");
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
            assert_eq!(adapt(&dumped(code), Discards::Everywhere).expect(code).changed.is_some(), divides, "{code}");
        }
    }

    #[test]
    fn wide_concatenations_are_seen() {
        let check = |count: usize, wide: bool| {
            let code = format!("local function f(a) return {} end", vec!["a"; count].join(" .. "));
            let chunk = adapt(&dumped(&code), Discards::Nowhere).expect("understood");
            assert_eq!(chunk.is_wide, wide, "{count}");
        };
        check(2, false);
        check(WIDE as usize - 1, false);
        check(WIDE as usize, true);
        check(150, true);
    }

    #[test]
    fn damaged_dumps_do_no_harm() {
        let dump = dumped(
            "local a = KEYS[1] redis.call('SET', a, 1) return function(b) return a .. b .. 'text' .. 1.5 / b end",
        );
        assert!(adapt(&dump, Discards::Everywhere).is_some());
        for len in 0..dump.len() {
            assert_eq!(adapt(&dump[..len], Discards::Everywhere), None, "{len}");
        }
        for at in 0..dump.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = dump.clone();
                damaged[at] = byte;
                adapt(&damaged, Discards::Everywhere);
            }
        }
    }
}
