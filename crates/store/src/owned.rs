//! Words and replies that outlive their caller's buffers.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{Protocol, ReplyBuilder, ReplySink, ReplyWriter};

use crate::refused::FAILED;

/// The form of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// As the bytes of a protocol.
    Wire(Protocol),
    /// As a value.
    Value,
}

/// A finished reply.
#[derive(Debug)]
pub(crate) enum Finished {
    Wire(Vec<u8>),
    Value(Reply),
}

impl ReplyForm {
    /// Collects the output of `write` in this form.
    pub(crate) fn collect(self, write: impl FnOnce(&mut dyn ReplySink)) -> Finished {
        match self {
            ReplyForm::Wire(protocol) => {
                let mut bytes = Vec::new();
                write(&mut ReplyWriter::new(&mut bytes, protocol));
                Finished::Wire(bytes)
            }
            ReplyForm::Value => {
                let mut builder = ReplyBuilder::new();
                write(&mut builder);
                Finished::Value(builder.finish())
            }
        }
    }
}

/// The words of a command, in one allocation.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    bytes: Bytes,
    places: Vec<Range<usize>>,
}

/// A client's request as received, which can be kept without a copy.
pub(crate) type Received = Arc<Vec<u8>>;

/// The storage of words.
#[derive(Clone, Debug)]
enum Bytes {
    Copied(Vec<u8>),
    Received(Received),
}

impl Words {
    pub(crate) fn new(words: &[&[u8]]) -> Words {
        let mut bytes = Vec::with_capacity(words.iter().map(|word| word.len()).sum());
        let places = words
            .iter()
            .map(|word| {
                let start = bytes.len();
                bytes.extend_from_slice(word);
                start..bytes.len()
            })
            .collect();
        Words { bytes: Bytes::Copied(bytes), places }
    }

    /// Like [`new`](Self::new), without a copy if the words are part of the given buffer.
    pub(crate) fn within(received: Option<&Received>, words: &[&[u8]]) -> Words {
        let Some(received) = received else { return Words::new(words) };
        let all = received.as_ptr_range();
        let place = |word: &&[u8]| {
            let word = word.as_ptr_range();
            let is_within = all.start <= word.start && word.end <= all.end;
            is_within.then(|| word.start.addr() - all.start.addr()..word.end.addr() - all.start.addr())
        };
        match words.iter().map(place).collect() {
            Some(places) => Words { bytes: Bytes::Received(received.clone()), places },
            None => Words::new(words),
        }
    }

    /// Returns the buffer that contains the words, if they were not copied.
    pub(crate) fn received(&self) -> Option<&Received> {
        match &self.bytes {
            Bytes::Received(received) => Some(received),
            Bytes::Copied(_) => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let bytes = match &self.bytes {
            Bytes::Copied(bytes) => bytes,
            Bytes::Received(received) => &**received,
        };
        &bytes[self.places[index].clone()]
    }

    pub(crate) fn to_vec(&self) -> Vec<&[u8]> {
        (0..self.len()).map(|index| self.get(index)).collect()
    }
}

/// Runs a parked command's handler, and returns its duration. A panic is not the fault of the thread that happens to
/// release the keys, and must not block the tickets behind: it becomes the reply.
pub(crate) fn caught(form: ReplyForm, write: impl FnOnce(&mut dyn ReplySink)) -> (Finished, Duration) {
    let start = Instant::now();
    // No partial result is visible after a panic: guards unlock the stripes, and the partial reply is dropped.
    let reply = catch_unwind(AssertUnwindSafe(|| form.collect(write)));
    (reply.unwrap_or_else(|_| form.collect(|out| out.error(FAILED))), start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_what_came_are_not_copied() {
        let received = Arc::new(b"*3 EVAL  body".to_vec());
        let words: Vec<&[u8]> = vec![&received[3..7], &received[8..8], &received[9..]];
        let kept = Words::within(Some(&received), &words);
        assert_eq!((kept.to_vec(), kept.len()), (words.clone(), 3));
        assert_eq!(kept.get(2).as_ptr(), words[2].as_ptr());
        assert!(kept.received().is_some_and(|kept| Arc::ptr_eq(kept, &received)));
        // Words outside of the buffer are copied, together with all others of the command.
        for (received, words) in [(Some(&received), [&b"EVAL"[..], &received[9..]]), (None, [words[0], words[2]])] {
            let copied = Words::within(received, &words);
            assert_eq!(copied.to_vec(), words);
            assert!(copied.received().is_none());
        }
    }
}
