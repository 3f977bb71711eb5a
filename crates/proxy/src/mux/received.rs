//! The part of a body that a stream of several on one connection has received and not consumed.
//!
//! **Invariant:** trailers are reported once, whether or not their reader takes them, so that a reader that drops them
//! comes to the end of the body.

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::Message;

use super::{Body, Moved};

/// Received data with the end of its message.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Bytes; those before `taken` are consumed, and `counted` of the others were counted.
    bytes: Vec<u8>,
    taken: usize,
    counted: usize,
    /// Whether the message is complete.
    complete: bool,
    trailers: Option<Message>,
    /// Whether the trailers were reported.
    told_trailers: bool,
}

impl Received {
    /// Returns the data that is not consumed.
    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Returns whether nothing more should be added before data is consumed.
    pub(super) fn is_full(&self, pool: &BufferPool) -> bool {
        self.data().len() >= pool.size()
    }

    /// Returns whether the message is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Moves all bytes of `more` to the end of the data; returns their number.
    pub(super) fn add(&mut self, more: &mut Vec<u8>) -> usize {
        let count = more.len();
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            std::mem::swap(&mut self.bytes, more);
        } else {
            self.bytes.drain(..self.taken);
            self.bytes.append(more);
        }
        self.taken = 0;
        count
    }

    /// Records that the message is complete, with these trailers.
    pub(super) fn end(&mut self, trailers: Option<Message>) {
        self.complete = true;
        self.trailers = self.trailers.take().or(trailers);
    }

    /// Returns the next event of the body, if it is here.
    pub(super) fn next(&mut self, moved: &mut Moved) -> Option<Body> {
        let held = self.data().len();
        moved.body += held.saturating_sub(self.counted);
        self.counted = held;
        match held {
            0 if self.complete && self.trailers.is_some() && !self.told_trailers => {
                self.told_trailers = true;
                Some(Body::Trailers)
            }
            0 => self.complete.then_some(Body::End),
            count => Some(Body::Data(count)),
        }
    }

    /// Consumes data.
    pub(super) fn consume(&mut self, count: usize) {
        self.taken += count;
        self.counted = self.counted.saturating_sub(count);
    }

    /// Replaces the data by bytes that were not received; returns the number of bytes that it had.
    pub(super) fn replace(&mut self, bytes: &[u8]) -> usize {
        let count = self.data().len();
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.taken = 0;
        count
    }

    /// Records that no body follows after all.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
        (self.taken, self.counted) = (0, 0);
        (self.complete, self.trailers) = (true, None);
    }

    /// Returns the trailers, once.
    pub(super) fn take_trailers(&mut self) -> Message {
        self.trailers.take().unwrap_or_default()
    }

    /// Returns the memory if it has no data.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        self.data().is_empty().then(|| self.take_memory())
    }

    /// Returns the memory, with all data.
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        self.taken = 0;
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_reported_once_whether_or_not_they_are_taken() {
        for takes in [true, false] {
            let (mut received, mut moved) = (Received::default(), Moved::default());
            received.add(&mut b"abc".to_vec());
            let mut trailers = Message::new();
            trailers.add(b"a", b"b");
            received.end(Some(trailers));
            assert_eq!(received.next(&mut moved), Some(Body::Data(3)));
            received.consume(3);
            assert_eq!(received.next(&mut moved), Some(Body::Trailers));
            if takes {
                assert_eq!(received.take_trailers().first(b"a"), Some(&b"b"[..]));
            }
            assert_eq!(received.next(&mut moved), Some(Body::End));
            assert_eq!(moved.body, 3);
        }
    }

    #[test]
    fn data_is_counted_once_and_follows_what_is_not_consumed() {
        let (mut received, mut moved) = (Received::default(), Moved::default());
        assert_eq!(received.add(&mut b"abcd".to_vec()), 4);
        assert_eq!(received.next(&mut moved), Some(Body::Data(4)));
        received.consume(3);
        received.add(&mut b"ef".to_vec());
        assert_eq!((received.next(&mut moved), received.data()), (Some(Body::Data(3)), &b"def"[..]));
        assert_eq!(received.replace(b"x"), 3);
        assert_eq!((received.next(&mut moved), received.data()), (Some(Body::Data(1)), &b"x"[..]));
        assert_eq!(moved.body, 6);
        received.forget();
        assert_eq!(received.next(&mut moved), Some(Body::End));
    }
}
