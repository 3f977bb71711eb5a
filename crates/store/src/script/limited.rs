//! A sink for the replies to a script that may leave its worker.
//!
//! The size of a read is known only when it is done. So a read-only command is aborted when its reply becomes too long
//! for a worker, and is executed again on a script thread; a shorter reply that nevertheless takes a millisecond to
//! convert is converted there.

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use crate::catalogue::{CommandSpec, Flags};

/// The number of bytes from which on a reply is converted to a value on a script thread.
pub(super) const MUCH: usize = 64 << 10;
/// The same for a reply whose number of elements is known to be small.
const REPLY_BYTES_MAX: usize = 256 << 10;
/// The maximum number of elements converted to values on a worker.
const ELEMENTS_MAX: usize = 4096;
/// The number of bytes at which the reply of a read-only command is truncated.
const CUT_AT: usize = 1 << 20;

/// The size of a command's reply so far.
pub(super) struct Size {
    elements: usize,
    /// The maximum number of bytes of the reply.
    most: usize,
    is_cut: bool,
}

impl Size {
    pub(super) fn new(spec: &CommandSpec) -> Size {
        let most = if spec.flags.has(Flags::READONLY) { CUT_AT } else { usize::MAX };
        Size { elements: 0, most, is_cut: false }
    }

    /// Returns whether the reply was truncated.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether a reply of this many bytes takes long to convert to a value.
    pub(super) fn is_much(&self, bytes: usize) -> bool {
        bytes > REPLY_BYTES_MAX || self.elements > ELEMENTS_MAX
    }
}

/// Keeps a reply up to a length, and counts its elements.
pub(super) struct Limited<'o> {
    out: ReplyWriter<'o>,
    size: &'o mut Size,
}

impl<'o> Limited<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>, protocol: Protocol, size: &'o mut Size) -> Limited<'o> {
        Limited { out: ReplyWriter::new(out, protocol), size }
    }

    /// Returns the output for the next element, of this many bytes; `None` beyond the limit.
    #[inline]
    fn next(&mut self, len: usize) -> Option<&mut ReplyWriter<'o>> {
        let size = &mut *self.size;
        size.elements += 1;
        size.is_cut |= len > size.most || self.out.buffered() > size.most - len;
        (!size.is_cut).then_some(&mut self.out)
    }
}

macro_rules! limited {
    ($($name:ident($value:ident: $type:ty) $len:expr;)*) => {
        $(fn $name(&mut self, $value: $type) {
            if let Some(out) = self.next($len) {
                out.$name($value);
            }
        })*
    };
}

impl ReplySink for Limited<'_> {
    limited! {
        simple(text: &str) text.len();
        error(text: &str) text.len();
        error_bytes(text: &[u8]) text.len();
        integer(value: i64) 0;
        bulk(bytes: &[u8]) bytes.len();
        array(len: usize) 0;
        map(pairs: usize) 0;
        set(len: usize) 0;
        push(len: usize) 0;
        double(value: f64) 0;
        decimal(value: f64) 0;
        boolean(value: bool) 0;
        big_number(digits: &str) digits.len();
    }

    fn null(&mut self) {
        if let Some(out) = self.next(0) {
            out.null();
        }
    }

    fn null_array(&mut self) {
        if let Some(out) = self.next(0) {
            out.null_array();
        }
    }

    fn pairs(&mut self, len: usize) -> bool {
        self.out.pairs(len)
    }

    fn keyed(&mut self, len: usize) -> bool {
        self.out.keyed(len)
    }

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        if let Some(out) = self.next(text.len()) {
            out.verbatim(format, text);
        }
    }
}
