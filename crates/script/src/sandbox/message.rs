//! Translation of error messages of Lua 5.4's core to those of 5.1, which scripts and users may search for.
//!
//! `attempt to index a nil value (field 'x')` is `attempt to index field 'x' (a nil value)` in 5.1. A message is
//! translated where it becomes visible: in `pcall` and `xpcall`, and in the driver.

use super::buffer::Buffer;
use crate::ffi::{self, lua_State};

/// Writes a message in 5.1's words; returns false if nothing has to change.
type Adapt = fn(&[u8], &mut dyn FnMut(&[u8])) -> bool;

/// Replaces the message on top of the stack, if it is one of the core's. May raise.
pub(crate) unsafe fn adapt(lua: *mut lua_State) {
    // SAFETY: the value is on top and stays there until the new one is made. The buffer has no destructor.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TSTRING {
            return;
        }
        let message = crate::to_bytes(lua, -1).unwrap_or_default();
        if message.ends_with(b")") || message.ends_with(b"loop") {
            replace(lua, message, runtime);
        }
    }
}

/// As [`adapt`], for the message of a compilation.
pub(super) unsafe fn adapt_syntax(lua: *mut lua_State) {
    // SAFETY: as `adapt`.
    unsafe {
        if ffi::lua_type(lua, -1) == ffi::LUA_TSTRING {
            replace(lua, crate::to_bytes(lua, -1).unwrap_or_default(), syntax);
        }
    }
}

unsafe fn replace(lua: *mut lua_State, message: &[u8], adapt: Adapt) {
    // SAFETY: as `adapt`.
    unsafe {
        let mut buffer = Buffer::begin(lua);
        if adapt(message, &mut |part| buffer.extend(part)) {
            buffer.finish();
            ffi::lua_remove(lua, -2);
        }
    }
}

/// As [`adapt`], for a message that left Lua.
pub(crate) fn adapted(message: String) -> String {
    let mut bytes = Vec::new();
    if runtime(message.as_bytes(), &mut |part| bytes.extend_from_slice(part)) {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    message
}

/// The [`Adapt`] of the running core's messages.
fn runtime(message: &[u8], write: &mut dyn FnMut(&[u8])) -> bool {
    for (from, to) in [(&b"'__index"[..], &b"loop in gettable"[..]), (b"'__newindex", b"loop in settable")] {
        let place = message.strip_suffix(b"' chain too long; possible loop").and_then(|rest| rest.strip_suffix(from));
        if let Some(place) = place {
            write(place);
            write(to);
            return true;
        }
    }
    if let Some(start) = find(message, b"bad 'for' ") {
        let Some(end) = find(message, b" (number expected, got ").filter(|end| *end > start) else { return false };
        write(&message[..start]);
        write(&message[start + 4..end]);
        write(b" must be a number");
        return true;
    }
    let Some(start) = find(message, b"attempt to ") else { return false };
    let Some(end) = find(&message[start..], b" value (").map(|at| start + at) else { return false };
    let Some(subject) = message[end + 8..].strip_suffix(b"')") else { return false };
    // `index a nil`: the operation and its operand.
    let Some(tried) = message[start..end].windows(3).rposition(|part| part == b" a ").map(|at| start + at) else {
        return false;
    };
    const KINDS: [&[u8]; 5] = [b"local '", b"global '", b"field '", b"upvalue '", b"method '"];
    if KINDS.iter().any(|kind| subject.starts_with(kind)) {
        write(&message[..tried + 1]);
        write(if subject == b"field 'integer index" { b"field '?" } else { subject });
        write(b"' (");
        write(&message[tried + 1..end]);
        write(b" value)");
        return true;
    }
    if subject.starts_with(b"constant '") || subject == b"for iterator 'for iterator" {
        write(&message[..end + 6]);
        return true;
    }
    false
}

/// Messages of 5.4's compiler and their equivalents in 5.1.
const SYNTAX: [(&[u8], &[u8]); 3] = [
    (b": syntax error", b": '=' expected"),
    (b": <name> expected", b": '<name>' expected"),
    (b": <eof> expected", b": '<eof>' expected"),
];

/// The [`Adapt`] of the compiler's messages.
fn syntax(message: &[u8], write: &mut dyn FnMut(&[u8])) -> bool {
    // The text after `near`, from the end: the end of the source, or an unprintable byte.
    let (rest, near, end): (&[u8], &[u8], &[u8]) = if let Some(rest) = message.strip_suffix(b" near <eof>") {
        (rest, b" near '<eof>", b"'")
    } else {
        match message.windows(9).rposition(|part| part == b" near '<\\").zip(message.strip_suffix(b">'")) {
            Some((at, whole)) => (&message[..at], b" near 'char(", &whole[at + 9..]),
            None => (message, b"", b""),
        }
    };
    if let Some(at) = find(rest, b": decimal escape too large near '") {
        // The text after `near` ends where the escape begins.
        let escape = rest.iter().rposition(|byte| *byte == b'\\').unwrap_or(rest.len());
        write(&rest[..at]);
        write(b": escape sequence");
        write(&rest[at + 16..escape]);
        write(b"'");
        return true;
    }
    // For an assignment, 5.1 has the same message.
    let is_assigned = message.ends_with(b" near '='") || message.ends_with(b" near ','");
    if is_assigned && find(message, b": syntax error").is_some() {
        return false;
    }
    let words = SYNTAX.iter().find_map(|(from, to)| Some((find(rest, from)?, from.len(), *to)));
    let started = find(rest, b" (starting at line ");
    if near.is_empty() && words.is_none() && started.is_none() {
        return false;
    }
    let (from, len, to) = words.unwrap_or((started.unwrap_or(rest.len()), 0, b""));
    write(&rest[..from]);
    write(to);
    let rest = match started {
        Some(at) => find(&rest[at..], b")").map_or(&b""[..], |end| &rest[at + end + 1..]),
        None => &rest[from + len..],
    };
    write(rest);
    write(near);
    write(end);
    if near.ends_with(b"(") {
        write(b")'");
    }
    true
}

fn find(message: &[u8], words: &[u8]) -> Option<usize> {
    message.windows(words.len()).position(|window| window == words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(adapt: Adapt, message: &str, expected: &str) {
        let mut bytes = Vec::new();
        let changed = adapt(message.as_bytes(), &mut |part| bytes.extend_from_slice(part));
        assert_eq!(changed, message != expected, "{message}");
        assert_eq!(if changed { String::from_utf8_lossy(&bytes).into_owned() } else { message.to_owned() }, expected);
    }

    #[test]
    fn the_core_s_messages_are_those_of_5_1() {
        for (message, expected) in [
            ("a:1: attempt to index a nil value (field 'x')", "a:1: attempt to index field 'x' (a nil value)"),
            (
                "attempt to perform arithmetic on a nil value (local 'a b')",
                "attempt to perform arithmetic on local 'a b' (a nil value)",
            ),
            (
                "attempt to perform arithmetic on a string value (constant 'x')",
                "attempt to perform arithmetic on a string value",
            ),
            ("attempt to call a nil value (for iterator 'for iterator')", "attempt to call a nil value"),
            ("attempt to index a nil value (field 'integer index')", "attempt to index field '?' (a nil value)"),
            ("bad 'for' limit (number expected, got nil)", "'for' limit must be a number"),
            ("attempt to call a nil value (method 'f')", "attempt to call method 'f' (a nil value)"),
            ("a:1: '__index' chain too long; possible loop", "a:1: loop in gettable"),
            ("a:1: '__newindex' chain too long; possible loop", "a:1: loop in settable"),
            ("attempt to compare two nil values", "attempt to compare two nil values"),
            ("it's an attempt to say (so 'x')", "it's an attempt to say (so 'x')"),
            ("attempt to index a nil value (thing 'x')", "attempt to index a nil value (thing 'x')"),
            ("", ""),
        ] {
            check(runtime, message, expected);
        }
    }

    #[test]
    fn the_compiler_s_messages_are_those_of_5_1() {
        for (message, expected) in [
            ("a:1: unexpected symbol near <eof>", "a:1: unexpected symbol near '<eof>'"),
            ("a:1: syntax error near 'x'", "a:1: '=' expected near 'x'"),
            ("a:1: syntax error near <eof>", "a:1: '=' expected near '<eof>'"),
            ("a:1: syntax error near '('", "a:1: '=' expected near '('"),
            ("a:1: syntax error near '='", "a:1: syntax error near '='"),
            ("a:1: decimal escape too large near '\"ab\\300\"'", "a:1: escape sequence too large near '\"ab'"),
            ("a:1: <eof> expected near 'end'", "a:1: '<eof>' expected near 'end'"),
            (
                "a:1: unfinished long string (starting at line 1) near '<eof>'",
                "a:1: unfinished long string near '<eof>'",
            ),
            ("a:1: unfinished string near '\"abc'", "a:1: unfinished string near '\"abc'"),
            ("a:1: <name> expected near '1'", "a:1: '<name>' expected near '1'"),
            ("a:1: unexpected symbol near '<\\27>'", "a:1: unexpected symbol near 'char(27)'"),
            ("a:1: 'end' expected near 'x'", "a:1: 'end' expected near 'x'"),
        ] {
            check(syntax, message, expected);
        }
    }
}
