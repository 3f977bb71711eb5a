//! BITFIELD: integers of any width at any bit offset of a string.
//!
//! The bits of a field are ordered from the most significant to the least, with SETBIT's bit numbers. All operations of
//! a command are parsed and validated before the first is executed.

use sluicegate_data::value::View;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::bitmap::bit_offset;
use super::string::edit_bytes;
use super::{Refused, SYNTAX, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;

/// The treatment of a number that does not fit in its field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Increment(i64),
}

/// One operation.
#[derive(Clone, Copy)]
struct Operation {
    field: Field,
    action: Action,
    overflow: Overflow,
}

/// A field of `width` bits (1 to 64) starting at bit `at`. If `signed`, the first bit is the sign.
#[derive(Clone, Copy)]
struct Field {
    signed: bool,
    width: u32,
    at: u64,
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8], string_max: usize) -> Result<Field, Refused> {
        let refused =
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
        let (signed, digits) = match kind {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(refused.into()),
        };
        // Redis reads the width as a C string, which ends at the first zero byte.
        let digits = &digits[..memchr::memchr(0, digits).unwrap_or(digits.len())];
        let most = if signed { 64 } else { 63 };
        let width = parse_i64(digits).filter(|width| (1..=most).contains(width)).ok_or(refused)? as u32;
        Ok(Field { signed, width, at: bit_offset(offset, Some(width), string_max)? })
    }

    /// Returns the index of the first byte after the field.
    fn end(&self) -> usize {
        ((self.at + u64::from(self.width) - 1) / 8 + 1) as usize
    }

    /// Returns the bytes that the field overlaps, at most 9, as one number, and the number of bits below the field in
    /// it.
    fn window(&self, bytes: &[u8]) -> (u128, u32) {
        let first = (self.at / 8) as usize;
        let window = (first..self.end()).fold(0, |window, at| window << 8 | u128::from(*bytes.get(at).unwrap_or(&0)));
        (window, (self.end() as u64 * 8 - self.at) as u32 - self.width)
    }

    fn mask(&self) -> u128 {
        (1 << self.width) - 1
    }

    fn read(&self, bytes: &[u8]) -> i64 {
        let (window, shift) = self.window(bytes);
        self.fit((window >> shift & self.mask()) as i128)
    }

    /// Writes the low `width` bits of `value`; `bytes` extends at least to the field's end.
    fn write(&self, bytes: &mut [u8], value: i64) {
        let (window, shift) = self.window(bytes);
        let mut window = window & !(self.mask() << shift) | (value as u128 & self.mask()) << shift;
        for byte in bytes[(self.at / 8) as usize..self.end()].iter_mut().rev() {
            *byte = window as u8;
            window >>= 8;
        }
    }

    /// Returns `value` truncated to the field's width, with the sign extended if the field is signed.
    fn fit(&self, value: i128) -> i64 {
        let bits = value as u128 & self.mask();
        let negative = self.signed && bits >> (self.width - 1) & 1 == 1;
        if negative { (bits | !self.mask()) as i64 } else { bits as i64 }
    }

    /// Returns the number to store; [`None`] if it does not fit and the command should fail.
    fn kept(&self, value: i128, overflow: Overflow) -> Option<i64> {
        let (min, max) = match self.signed {
            true => (-(1_i128 << (self.width - 1)), (1 << (self.width - 1)) - 1),
            false => (0, self.mask() as i128),
        };
        match overflow {
            _ if (min..=max).contains(&value) => Some(value as i64),
            Overflow::Wrap => Some(self.fit(value)),
            Overflow::Saturate => Some(value.clamp(min, max) as i64),
            Overflow::Fail => None,
        }
    }
}

fn parse(words: &[&[u8]], string_max: usize) -> Result<Vec<Operation>, Refused> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut rest = &words[2..];
    while !rest.is_empty() {
        match rest {
            [name, kind, offset, after @ ..] if is(name, "get") => {
                operations.push(Operation {
                    field: Field::parse(kind, offset, string_max)?,
                    action: Action::Get,
                    overflow,
                });
                rest = after;
            }
            [name, kind, offset, value, after @ ..] if is(name, "set") || is(name, "incrby") => {
                let field = Field::parse(kind, offset, string_max)?;
                let value = integer(value)?;
                let action = if is(name, "set") { Action::Set(value) } else { Action::Increment(value) };
                operations.push(Operation { field, action, overflow });
                rest = after;
            }
            [name, kind, after @ ..] if is(name, "overflow") => {
                overflow = match () {
                    () if is(kind, "wrap") => Overflow::Wrap,
                    () if is(kind, "sat") => Overflow::Saturate,
                    () if is(kind, "fail") => Overflow::Fail,
                    () => return Err("ERR Invalid OVERFLOW type specified".into()),
                };
                rest = after;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    Ok(operations)
}

impl Operation {
    fn writes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// Executes the operation. Returns its reply, and whether the stored number changed.
    fn run(&self, bytes: &mut [u8]) -> (Option<i64>, bool) {
        let old = self.field.read(bytes);
        let (new, shows_new) = match self.action {
            Action::Get => return (Some(old), false),
            // For an unsigned field, a negative number is reinterpreted as a large unsigned one.
            Action::Set(value) if self.field.signed => (i128::from(value), false),
            Action::Set(value) => (i128::from(value as u64), false),
            Action::Increment(by) => (i128::from(old) + i128::from(by), true),
        };
        let Some(new) = self.field.kept(new, self.overflow) else { return (None, false) };
        self.field.write(bytes, new);
        (Some(if shows_new { new } else { old }), old != new)
    }
}

fn say(replies: &[Option<i64>], out: &mut dyn ReplySink) {
    out.array(replies.len());
    for reply in replies {
        match reply {
            Some(value) => out.integer(*value),
            None => out.null(),
        }
    }
}

/// Replies to a command in which every operation is a GET.
fn read_fields(ctx: &mut Ctx<'_>, operations: &[Operation], out: &mut dyn ReplySink) -> Result<(), Refused> {
    let mut digits = itoa::Buffer::new();
    let bytes = ctx.read_string(0)?.map_or(&b""[..], |view| view.text(&mut digits));
    let replies: Vec<_> = operations.iter().map(|operation| Some(operation.field.read(bytes))).collect();
    say(&replies, out);
    Ok(())
}

fn bitfield(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let operations = parse(ctx.words, ctx.string_max())?;
        let Some(end) = operations.iter().filter(|operation| operation.writes()).map(|o| o.field.end()).max() else {
            return read_fields(ctx, &operations, out);
        };
        let mut key = ctx.key(0);
        let grows = key.string()?.map_or(0, View::len) < end;
        if key.takes_long_to_edit(end, 0) {
            if ctx.defer() {
                return Ok(());
            }
            key = ctx.key(0);
        }
        let (mut replies, mut changed) = (Vec::with_capacity(operations.len()), false);
        edit_bytes(&mut key, end, 0, |bytes| {
            for operation in &operations {
                let (reply, changes) = operation.run(bytes);
                changed |= changes || grows && operation.writes() && reply.is_some();
                replies.push(reply);
            }
        })?;
        if changed {
            ctx.notify(0, Class::String, "setbit");
        }
        say(&replies, out);
        Ok(())
    })();
    or_error(result, out);
}

fn bitfield_ro(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = parse(ctx.words, ctx.string_max()).and_then(|operations| {
        if operations.iter().any(Operation::writes) {
            return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
        }
        read_fields(ctx, &operations, out)
    });
    or_error(result, out);
}

/// BITFIELD is read-only if all its operations are GET. Words that it refuses could be anything.
fn bitfield_key_flags(words: &[&[u8]]) -> Option<&'static [&'static str]> {
    let mut rest = words.get(2..).unwrap_or_default();
    loop {
        rest = match rest {
            [] => return Some(&["RO", "access"]),
            [word, _, _, rest @ ..] if is(word, "get") => rest,
            [word, _, rest @ ..] if is(word, "overflow") => rest,
            _ => return None,
        };
    }
}

const BOTH: CommandSpec = CommandSpec {
    arity: -2,
    keys: KeyRule::ONE,
    categories: &[Category::Bitmap],
    group: "bitmap",
    has_offsets: true,
    complexity: "O(1) for each subcommand specified",
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "bitfield",
        key_flags: Some(bitfield_key_flags),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        since: "3.2.0",
        summary: "Performs arbitrary bitfield integer operations on strings.",
        handler: Handler::Keyspace(bitfield),
        ..BOTH
    },
    CommandSpec {
        name: "bitfield_ro",
        flags: Flags::READONLY.and(Flags::FAST),
        since: "6.0.0",
        summary: "Performs arbitrary read-only bitfield integer operations on strings.",
        handler: Handler::Keyspace(bitfield_ro),
        ..BOTH
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_widths_at_all_offsets_come_out_as_they_went_in() {
        for width in 1..=64 {
            for at in 0..24 {
                for signed in [true, false] {
                    let field = Field { signed, width, at };
                    if !signed && width == 64 {
                        continue;
                    }
                    for fill in [0, 0xff, 0xa5] {
                        let value = field.fit(0x5a3c_96f0_1e78_b4d2_u64 as i128);
                        let mut bytes = [fill; 16];
                        field.write(&mut bytes, value);
                        assert_eq!(field.read(&bytes), value, "{width} {at} {signed}");
                        let outside = |bit: u64| bit < at || bit >= at + u64::from(width);
                        for bit in (0..128).filter(|bit| outside(*bit)) {
                            let of = |bytes: &[u8; 16]| bytes[bit as usize / 8] >> (7 - bit % 8) & 1;
                            assert_eq!(of(&bytes), of(&[fill; 16]), "bit {bit} is none of the field's");
                        }
                    }
                }
            }
        }
    }
}
