//! Filters of bodies: what changes data and trailers on their way from one end of a stream to the other.
//!
//! A filter sees a body as events, whatever protocol it comes by and goes by, and gives data on as it likes; framing is
//! not its concern. A body that has one is not passed on unseen. An enum, because a filter is asked for each piece.

use sluicegate_wire::http::Message;

use crate::compress::Encoder;

/// A filter of one body.
#[derive(Debug)]
pub(crate) enum Filter {
    /// `compression` of a proxy.
    Compression(Encoder),
}

impl Filter {
    /// Takes data; the output is passed to `give`.
    pub(crate) fn data(&mut self, data: &[u8], give: &mut dyn FnMut(&[u8])) {
        let Filter::Compression(encoder) = self;
        encoder.push(data, give);
    }

    /// Sees the trailers.
    pub(crate) fn trailers(&mut self, _trailers: &mut Message) {
        let Filter::Compression(_) = self;
    }

    /// The body has ended: data held back is passed to `give`.
    pub(crate) fn end(&mut self, give: &mut dyn FnMut(&[u8])) {
        let Filter::Compression(encoder) = self;
        encoder.finish(give);
    }

    /// No data arrives for now: data held back is passed to `give`. `false` if there is none.
    pub(crate) fn flush(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        let Filter::Compression(encoder) = self;
        encoder.flush(give)
    }

    /// Bytes in and out of a compression since the last call, and whether it leaves them as they are.
    pub(crate) fn take_encoded(&mut self) -> (u64, u64, bool) {
        let Filter::Compression(encoder) = self;
        let (read, written) = encoder.take_moved();
        (read, written, encoder.is_identity())
    }
}
