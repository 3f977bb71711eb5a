//! `string.format`: Lua 5.1's directives with C's results.

use std::ffi::{c_char, c_int};

use super::argument;
use super::buffer::Buffer;
use super::number;
use crate::again;
use crate::ffi::{self, lua_State};
use crate::run::Poll;

/// Room for one item: `%99.99f` of the largest double, and more.
const ITEM_MAX: usize = 512;

/// A string of at least this length is added as it is, whatever the width.
const WHOLE: usize = 100;

/// The maximum number of flags of a directive.
const FLAGS_MAX: usize = 5;

/// A directive between `%` and its letter.
#[derive(Default)]
struct Spec<'a> {
    /// Flags, width and precision as they stand.
    text: &'a [u8],
    left: bool,
    width: usize,
    precision: Option<usize>,
}

impl Spec<'_> {
    /// Returns the directive for C's printf, with `size` before its letter.
    fn directive(&self, size: &[u8], letter: u8) -> [u8; 24] {
        let mut directive = [0; 24];
        directive[0] = b'%';
        let mut at = 1;
        for part in [self.text, size, &[letter]] {
            directive[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        directive
    }
}

pub(super) unsafe fn format(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. Neither buffer nor directive has a destructor, and nothing
    // called in between runs Lua.
    unsafe {
        let top = ffi::lua_gettop(lua);
        let mut rest = argument::string(lua, 1);
        let mut verdict = crate::weigh_small(lua, rest.len());
        let mut buffer = Buffer::begin(lua);
        let mut n = 1;
        while verdict == Poll::Go {
            let Some(at) = rest.iter().position(|byte| *byte == b'%') else {
                buffer.extend(rest);
                break;
            };
            buffer.extend(&rest[..at]);
            rest = &rest[at + 1..];
            if let [b'%', after @ ..] = rest {
                buffer.push(b'%');
                rest = after;
                continue;
            }
            n += 1;
            if n > top {
                argument::fail(lua, n, c"no value");
            }
            let spec = read_spec(lua, rest);
            // After the end there is the zero byte of every string of C.
            let letter = rest.get(spec.text.len()).copied().unwrap_or(0);
            rest = rest.get(spec.text.len() + 1..).unwrap_or_default();
            verdict = add(lua, &mut buffer, n, &spec, letter);
        }
        if verdict == Poll::Go {
            verdict = buffer.weigh();
        }
        match verdict {
            Poll::Go => {
                buffer.finish();
                1
            }
            Poll::Leave => {
                buffer.free();
                crate::leave(lua, again!(format))
            }
            Poll::Stop => {
                buffer.free();
                crate::stopped(lua)
            }
        }
    }
}

/// Reads flags, width and precision.
#[inline]
unsafe fn read_spec<'a>(lua: *mut lua_State, rest: &'a [u8]) -> Spec<'a> {
    let mut spec = Spec::default();
    if rest.first().is_none_or(u8::is_ascii_alphabetic) {
        return spec;
    }
    let mut at = 0;
    while let Some(b'-' | b'+' | b' ' | b'#' | b'0') = rest.get(at) {
        spec.left |= rest[at] == b'-';
        at += 1;
    }
    if at > FLAGS_MAX {
        // SAFETY: no value with a destructor is alive.
        unsafe { crate::raise(lua, c"invalid format (repeated flags)") };
    }
    let digits = |at: &mut usize| {
        let mut number = 0;
        for _ in 0..2 {
            if let Some(digit @ b'0'..=b'9') = rest.get(*at) {
                number = number * 10 + usize::from(digit - b'0');
                *at += 1;
            }
        }
        number
    };
    spec.width = digits(&mut at);
    if rest.get(at) == Some(&b'.') {
        at += 1;
        spec.precision = Some(digits(&mut at));
    }
    if rest.get(at).is_some_and(u8::is_ascii_digit) {
        // SAFETY: as above.
        unsafe { crate::raise(lua, c"invalid format (width or precision too long)") };
    }
    spec.text = &rest[..at];
    spec
}

/// Appends argument `n` in the directive's format.
#[inline]
unsafe fn add(lua: *mut lua_State, buffer: &mut Buffer, n: c_int, spec: &Spec<'_>, letter: u8) -> Poll {
    // SAFETY: as `format`.
    unsafe {
        match letter {
            b's' => return add_string(lua, buffer, n, spec),
            b'd' | b'i' => {
                let number = number::to_i64(argument::number(lua, n));
                if spec.text.is_empty() {
                    let mut text = [0; number::TEXT_MAX];
                    let len = number::write_integer(number, &mut text);
                    buffer.extend(&text[..len]);
                } else {
                    print(buffer, &spec.directive(b"l", letter), number);
                }
            }
            b'u' | b'o' | b'x' | b'X' => {
                let number = number::to_u64(argument::number(lua, n));
                print(buffer, &spec.directive(b"l", letter), number);
            }
            b'e' | b'E' | b'f' | b'g' | b'G' => {
                let number = argument::number(lua, n);
                print(buffer, &spec.directive(b"", letter), number);
            }
            b'c' => {
                let byte = number::to_i32(argument::number(lua, n)) as u8;
                // Bytes after a zero byte are lost, as in a C string.
                let bytes: &[u8] = if byte == 0 { &[] } else { &[byte] };
                if byte == 0 && spec.left {
                    return Poll::Go;
                }
                let padding = spec.width.saturating_sub(1);
                pad(buffer, bytes, if spec.left { 0 } else { padding }, if spec.left { padding } else { 0 });
            }
            b'q' => return add_quoted(lua, buffer, n),
            other => {
                // The array is bound to a name, so that it lives until the message is made.
                let option = [other, 0];
                let option = option.as_ptr().cast::<c_char>();
                ffi::luaL_error(lua, c"invalid option '%%%s' to 'format'".as_ptr(), option);
            }
        }
        Poll::Go
    }
}

/// Appends one value as C's printf formats it.
unsafe fn print<T>(buffer: &mut Buffer, directive: &[u8; 24], value: T)
where
    T: Printable,
{
    // SAFETY: the directive takes one value of this type, and no item is longer than the room for it.
    unsafe {
        let target = buffer.reserve(ITEM_MAX) as *mut c_char;
        let len = value.print(target, directive.as_ptr().cast());
        buffer.advance((len as usize).min(ITEM_MAX - 1));
    }
}

/// Argument types of C's printf.
trait Printable {
    unsafe fn print(self, target: *mut c_char, directive: *const c_char) -> c_int;
}

macro_rules! printable {
    ($($type:ty),*) => {$(
        impl Printable for $type {
            unsafe fn print(self, target: *mut c_char, directive: *const c_char) -> c_int {
                // SAFETY: promised by the one caller.
                unsafe { libc::snprintf(target, ITEM_MAX, directive, self) }
            }
        }
    )*};
}

printable!(i64, u64, f64);

unsafe fn add_string(lua: *mut lua_State, buffer: &mut Buffer, n: c_int, spec: &Spec<'_>) -> Poll {
    // SAFETY: as `format`.
    unsafe {
        let bytes = argument::string(lua, n);
        if spec.text.is_empty() && bytes.len() < WHOLE {
            buffer.extend(until_zero(bytes));
            return Poll::Go;
        }
        if spec.precision.is_none() && bytes.len() >= WHOLE {
            let verdict = crate::weigh_small(lua, buffer.len() + bytes.len());
            if verdict == Poll::Go {
                buffer.extend(bytes);
            }
            return verdict;
        }
        let bytes = until_zero(&bytes[..bytes.len().min(spec.precision.unwrap_or(WHOLE))]);
        let padding = spec.width.saturating_sub(bytes.len());
        pad(buffer, bytes, if spec.left { 0 } else { padding }, if spec.left { padding } else { 0 });
        Poll::Go
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}

unsafe fn pad(buffer: &mut Buffer, bytes: &[u8], before: usize, after: usize) {
    const BLANKS: [u8; 100] = [b' '; 100];
    // SAFETY: a width has two digits.
    unsafe {
        buffer.extend(&BLANKS[..before]);
        buffer.extend(bytes);
        buffer.extend(&BLANKS[..after]);
    }
}

/// Appends a string in quotes, so that Lua can read it back.
unsafe fn add_quoted(lua: *mut lua_State, buffer: &mut Buffer, n: c_int) -> Poll {
    // SAFETY: as `format`.
    unsafe {
        let bytes = argument::string(lua, n);
        let verdict = crate::weigh_small(lua, buffer.len() + bytes.len());
        if verdict != Poll::Go {
            return verdict;
        }
        buffer.push(b'"');
        for part in bytes.chunks(4096) {
            for byte in part {
                match byte {
                    b'"' | b'\\' | b'\n' => {
                        buffer.push(b'\\');
                        buffer.push(*byte);
                    }
                    b'\r' => buffer.extend(b"\\r"),
                    0 => buffer.extend(b"\\000"),
                    other => buffer.push(*other),
                }
            }
            let verdict = buffer.weigh();
            if verdict != Poll::Go {
                return verdict;
            }
        }
        buffer.push(b'"');
        Poll::Go
    }
}
