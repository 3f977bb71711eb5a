//! Filters of bodies: changes of data and trailers between the two ends of a stream.
//!
//! A filter receives a body as events, independent of the protocols of both ends, and outputs data; framing is not its
//! concern. A filtered body is not relayed from socket to socket. An enum and not a trait object, as it is called for
//! each piece of data.

use sluicegate_wire::http::Message;

use crate::compress::Encoder;

/// A filter of one body.
#[derive(Debug)]
pub(crate) enum Filter {
    /// `compression` of a proxy.
    Compression(Encoder),
}

impl Filter {
    /// Receives data; `give` receives the output.
    pub(crate) fn data(&mut self, data: &[u8], give: &mut dyn FnMut(&[u8])) {
        let Filter::Compression(encoder) = self;
        encoder.push(data, give);
    }

    /// Receives the trailers, which it may change.
    pub(crate) fn trailers(&mut self, _trailers: &mut Message) {
        let Filter::Compression(_) = self;
    }

    /// Ends the body; `give` receives the data held back.
    pub(crate) fn end(&mut self, give: &mut dyn FnMut(&[u8])) {
        let Filter::Compression(encoder) = self;
        encoder.finish(give);
    }

    /// Passes the data held back to `give`, because the next data may be late. `false` if there is none.
    pub(crate) fn flush(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        let Filter::Compression(encoder) = self;
        encoder.flush(give)
    }

    /// Returns the bytes in and out of the encoder since the last call, and whether it is the identity.
    pub(crate) fn take_encoded(&mut self) -> (u64, u64, bool) {
        let Filter::Compression(encoder) = self;
        let (read, written) = encoder.take_moved();
        (read, written, encoder.is_identity())
    }
}
