//! Commands that must wait: what is kept of them, and the future that ends with their reply.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_transport::{SLICE, give_way};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{Protocol, ReplyBuilder, ReplySink, ReplyWriter};

use crate::big::Big;
use crate::block::{Blocked, Waiter};
use crate::catalogue::CommandSpec;
use crate::hold::{Phase, Ticket};
use crate::script::Pending;
use crate::undeclared::Undeclared;

/// In which form a reply is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// As bytes of a protocol.
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
    /// Collects what `write` says in this form.
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

/// What came from a client, and can be kept as it came.
pub(crate) type Received = Arc<Vec<u8>>;

/// Where words stand.
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

    /// The same, without a copy if the words stand in what is given.
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

    /// What they stand in, if they were not copied.
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

/// A command that outlives its caller's buffers.
pub(crate) struct OwnedCommand {
    pub(crate) spec: &'static CommandSpec,
    pub(crate) words: Words,
    pub(crate) db: u32,
    pub(crate) form: ReplyForm,
    /// Who gets the reply of a command that may block, whether this run brings it or a later one.
    pub(crate) waiter: Option<Arc<Waiter>>,
}

/// A command that was accepted and whose reply is still to come.
///
/// The future ends with the encoded reply, to be sent as it is. Dropping it gives up the reply, never the command; except
/// that a blocked command, which has taken nothing yet, ends with it.
#[must_use = "the reply comes from the future"]
pub struct Parked(pub(crate) Waits);

pub(crate) enum Waits {
    /// For a held key, or for a turn alone.
    Ticket(Arc<Ticket>),
    /// For an element.
    Blocked(Box<Blocked>),
    /// For its own work, which is done in slices.
    Big(Box<Big>),
    /// For keys that show only while it runs, or for its work.
    Undeclared(Box<Undeclared>),
    /// For a script.
    Script(Box<Pending>),
    /// For a time, after which it is answered with `OK`.
    Sleep(Pin<Box<tokio::time::Sleep>>, Duration, ReplyForm),
    /// For steps of work, done in slices until one returns true; it is answered with `OK` then.
    Steps(Box<dyn FnMut() -> bool + Send>, ReplyForm),
}

impl Parked {
    /// The ticket of a command that waits for a held key, or of a script that waits for its keys.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        match &self.0 {
            Waits::Ticket(ticket) => Some(ticket),
            Waits::Script(script) => script.ticket(),
            _ => None,
        }
    }

    /// How long the command ran on whichever thread ran it, if its caller has not seen that by polling.
    pub(crate) fn worked(&self) -> Duration {
        match &self.0 {
            // Redis works while it sleeps, and public tests of the slow log fill it so.
            Waits::Sleep(_, time, _) => *time,
            Waits::Script(script) => script.worked(),
            _ => self.ticket().map_or(Duration::ZERO, |ticket| ticket.worked()),
        }
    }

    pub(crate) fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        match &mut self.0 {
            Waits::Ticket(ticket) => {
                ticket.listen(context.waker());
                match ticket.phase() {
                    Phase::Finished => Poll::Ready(ticket.take_reply().expect("polled after its end")),
                    _ => Poll::Pending,
                }
            }
            Waits::Blocked(blocked) => blocked.poll(context),
            Waits::Big(big) => big.poll(context),
            Waits::Undeclared(command) => command.poll(context),
            Waits::Script(script) => script.poll(context),
            Waits::Sleep(sleep, _, form) => {
                let form = *form;
                sleep.as_mut().poll(context).map(|()| form.collect(|out| out.ok()))
            }
            Waits::Steps(step, form) => {
                let start = Instant::now();
                while start.elapsed() < SLICE {
                    if step() {
                        return Poll::Ready(form.collect(|out| out.ok()));
                    }
                }
                give_way(context.waker());
                Poll::Pending
            }
        }
    }

    /// The wait for an element, if it is one.
    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        match &self.0 {
            Waits::Blocked(blocked) => Some(blocked.waiter()),
            _ => None,
        }
    }

    /// When a blocked command's time is over; [`None`] if it has no limit, or waits for something else. Whoever polls
    /// the future keeps the time, and calls [`time_out`](Self::time_out).
    pub fn deadline(&self) -> Option<Instant> {
        self.waiter().and_then(|waiter| waiter.deadline())
    }

    /// Ends the wait of a blocked command with the reply for nothing, unless it has just been served. The future is
    /// ready afterwards, or as soon as a key that is held has been looked at.
    pub fn time_out(&self) {
        if let Some(waiter) = self.waiter() {
            waiter.time_out();
        }
    }
}

impl Future for Parked {
    type Output = Vec<u8>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.poll_finished(context).map(|finished| match finished {
            Finished::Wire(bytes) => bytes,
            Finished::Value(reply) => {
                let mut bytes = Vec::new();
                ReplyWriter::new(&mut bytes, Protocol::Resp2).write_reply(&reply);
                bytes
            }
        })
    }
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parked")
    }
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
        // Others are copied, whole commands together.
        for (received, words) in [(Some(&received), [&b"EVAL"[..], &received[9..]]), (None, [words[0], words[2]])] {
            let copied = Words::within(received, &words);
            assert_eq!(copied.to_vec(), words);
            assert!(copied.received().is_none());
        }
    }
}
