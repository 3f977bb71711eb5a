//! A sink for replies that the caller discards, except for errors.

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

/// Keeps errors, as lines of RESP, and nothing else.
pub(crate) struct ErrorsOnly<'o>(pub(crate) &'o mut Vec<u8>);

impl ReplySink for ErrorsOnly<'_> {
    fn simple(&mut self, _: &str) {}

    fn error(&mut self, text: &str) {
        ReplyWriter::new(self.0, Protocol::Resp2).error(text);
    }

    fn error_bytes(&mut self, text: &[u8]) {
        ReplyWriter::new(self.0, Protocol::Resp2).error_bytes(text);
    }

    fn integer(&mut self, _: i64) {}

    fn bulk(&mut self, _: &[u8]) {}

    fn null(&mut self) {}

    fn null_array(&mut self) {}

    fn array(&mut self, _: usize) {}

    fn map(&mut self, _: usize) {}

    fn set(&mut self, _: usize) {}

    fn push(&mut self, _: usize) {}

    fn double(&mut self, _: f64) {}

    fn decimal(&mut self, _: f64) {}

    fn pairs(&mut self, _: usize) -> bool {
        false
    }

    fn keyed(&mut self, _: usize) -> bool {
        false
    }

    fn boolean(&mut self, _: bool) {}

    fn big_number(&mut self, _: &str) {}

    fn verbatim(&mut self, _: [u8; 3], _: &[u8]) {}

    fn bulk_integer(&mut self, _: i64) {}
}
