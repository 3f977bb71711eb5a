//! Where [units](super::Unit) go, in their order: into the append-only file, and into the replication stream.
//!
//! Each has a thread, and either of them takes units and encodes them for both, so that a disk that is slow or fails does
//! not keep replicas waiting; a worker that waits for either may do the same. What is for the file waits in a queue until
//! its thread writes it. That is bounded: beyond [`FILE_QUEUE_MAX`] units stay where they were recorded, and commands that
//! write wait in the end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Record;
use super::merge::Merger;
use crate::aof::write::{Effect, Encoder, Log, encode};
use crate::replication::Replication;

/// The bytes that are written to the file at a time.
const WRITTEN_EACH: usize = 1 << 20;
/// The bytes that may wait for the file.
const FILE_QUEUE_MAX: usize = 64 << 20;
/// The bytes that are given to the stream at a time.
const STREAMED_EACH: usize = 64 << 10;
/// A buffer beyond this size is given back.
const KEPT_MAX: usize = 1 << 20;

/// The outlets of a record.
pub(crate) struct Outlets {
    record: Arc<Record>,
    replication: Arc<Replication>,
    state: Mutex<State>,
}

struct State {
    merger: Merger,
    file: Option<FileQueue>,
    stream: Option<Streaming>,
}

/// What waits to be written to the append-only file.
struct FileQueue {
    encoder: Encoder,
    /// The numbers of the first unit that belongs to the file, and of the last one.
    first: u64,
    last: u64,
}

/// What is about to enter the stream.
struct Streaming {
    encoder: Encoder,
    first: u64,
}

/// What was taken for the file.
pub(crate) struct ForFile {
    /// The number of the last unit that was taken.
    pub(crate) number: u64,
    /// Whether there may be more.
    pub(crate) is_some: bool,
}

impl Outlets {
    pub(crate) fn new(record: Arc<Record>, replication: Arc<Replication>) -> Outlets {
        let state = State { merger: Merger::new(Record::FIRST), file: None, stream: None };
        Outlets { record, replication, state: Mutex::new(state) }
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Lets the units from a number on be for a new file, and forgets what waits for the last one.
    pub(crate) fn begin_file(&self, first: u64) {
        self.state.lock().file = Some(FileQueue { encoder: Encoder::default(), first, last: u64::MAX });
    }

    /// Lets nothing behind this unit be for the file.
    pub(crate) fn end_file(&self, last: u64) {
        if let Some(file) = &mut self.state.lock().file {
            file.last = last;
        }
    }

    /// Lets units be for the file again, after an end that was none.
    pub(crate) fn continue_file(&self) {
        self.end_file(u64::MAX);
    }

    /// Lets an annotation follow this unit, which is the last one.
    pub(crate) fn end_file_with(&self, last: u64, annotation: &[u8]) {
        let state = &mut *self.state.lock();
        self.pull(state, true, usize::MAX);
        if state.merger.next_number() == last + 1
            && let Some(file) = &mut state.file
        {
            file.encoder.out.extend_from_slice(annotation);
        }
    }

    /// Forgets the file.
    pub(crate) fn close_file(&self) {
        self.state.lock().file = None;
    }

    /// Adds the time to the file, before what follows.
    pub(crate) fn annotate(&self, now_s: u64) {
        if let Some(file) = &mut self.state.lock().file {
            file.encoder.annotate(now_s);
        }
    }

    /// Appends to the file what waits for it, or a part that is enough to be written. If not for the first time, without
    /// what was recorded meanwhile.
    pub(crate) fn take_for_file(&self, is_first: bool, log: &mut Log) -> ForFile {
        let state = &mut *self.state.lock();
        let mut is_some = self.pull(state, is_first, WRITTEN_EACH);
        if let Some(file) = &mut state.file {
            is_some |= !file.encoder.out.is_empty();
            log.append(&mut file.encoder.out);
            if file.encoder.out.capacity() > KEPT_MAX {
                file.encoder.out = Vec::new();
            }
        }
        let last = state.file.as_ref().map_or(u64::MAX, |file| file.last);
        ForFile { number: (state.merger.next_number() - 1).min(last), is_some }
    }

    /// Returns the bytes that wait for the file.
    pub(crate) fn waiting(&self) -> u64 {
        let queued = self.state.lock().file.as_ref().map_or(0, |file| file.encoder.out.len());
        queued as u64 + self.record.waiting()
    }

    /// Parks this thread, which writes the file, until there are units for it, or it is woken. Units that the thread of the
    /// stream has taken wait in the queue, and not in the record.
    pub(crate) fn sleep_for_file(&self, timeout: Option<Duration>) {
        self.record.sleep(timeout, || self.waiting() > 0);
    }

    /// Lets the units from a number on enter the stream.
    pub(crate) fn begin_stream(&self, first: u64) {
        self.state.lock().stream = Some(Streaming { encoder: Encoder::default(), first });
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.state.lock().stream.is_some()
    }

    /// Lets nothing enter the stream any more.
    pub(crate) fn end_stream(&self) {
        self.state.lock().stream = None;
    }

    /// Lets what was recorded enter the stream. Returns the number of the last unit that has.
    pub(crate) fn stream(&self) -> u64 {
        let state = &mut *self.state.lock();
        self.pull(state, true, FILE_QUEUE_MAX);
        state.merger.next_number() - 1
    }

    /// Like [`stream`](Self::stream) at a cut: the next command of the stream names its database. Returns the stream's end.
    pub(crate) fn stream_to_cut(&self) -> u64 {
        let state = &mut *self.state.lock();
        self.pull(state, true, usize::MAX);
        if let Some(stream) = &mut state.stream {
            stream.encoder.forget_database();
        }
        self.replication.offset()
    }

    /// Adds a command to the stream that is not of the record.
    pub(crate) fn add_to_stream(&self, words: &[&[u8]]) {
        // The lock keeps it out of a transaction.
        if self.state.lock().stream.is_some() {
            let mut bytes = Vec::new();
            encode(words.iter().copied(), &mut bytes);
            self.replication.feed(&bytes);
        }
    }

    /// Passes units on, while less than so many bytes wait for the file; if it `takes`, those that are recorded now, too.
    /// Returns whether there were any.
    fn pull(&self, state: &mut State, takes: bool, queue_max: usize) -> bool {
        let State { merger, file, stream } = state;
        let has_room = |file: &Option<FileQueue>| file.as_ref().is_none_or(|file| file.encoder.out.len() < queue_max);
        if !has_room(file) {
            return false;
        }
        let until = if takes { merger.take(&self.record) } else { self.record.barrier() };
        let mut is_some = false;
        while has_room(file) {
            let number = merger.next_number();
            let mut file = file.as_mut();
            let mut stream = stream.as_mut();
            // As far as all units go to the same outlets.
            let borders =
                [file.as_ref().map(|file| file.first), file.as_ref().and_then(|file| file.last.checked_add(1))];
            let borders = borders.into_iter().chain([stream.as_ref().map(|stream| stream.first)]).flatten();
            let until = borders.filter(|border| *border > number).map(|border| border - 1).fold(until, u64::min);
            let has_passed = merger.pass(until, |units| {
                if let Some(file) = file.as_mut().filter(|file| (file.first..=file.last).contains(&number)) {
                    file.encoder.unit(units.effects());
                }
                if let Some(stream) = stream.as_mut().filter(|stream| number >= stream.first) {
                    stream.unit(units.effects());
                    if stream.encoder.out.len() >= STREAMED_EACH {
                        stream.flush(&self.replication);
                    }
                }
            });
            if !has_passed {
                break;
            }
            is_some = true;
        }
        if let Some(stream) = stream {
            stream.flush(&self.replication);
        }
        is_some
    }
}

impl Streaming {
    /// Encodes commands that have their effects at once.
    fn unit<'e>(&mut self, effects: impl ExactSizeIterator<Item = Effect<'e>>) {
        let is_several = effects.len() > 1;
        for (index, effect) in effects.enumerate() {
            self.encoder.select(effect.database);
            if is_several && index == 0 {
                self.encoder.begin_transaction();
            }
            match effect.command.strip_suffix(b"\r\n") {
                // What only this store knows: other servers take it for a sign of life.
                Some(annotation) if annotation.starts_with(b"#") => {
                    encode([b"PING", annotation].into_iter(), &mut self.encoder.out);
                }
                _ => effect.write(&mut self.encoder.out),
            }
        }
        if is_several {
            self.encoder.end_transaction();
        }
    }

    fn flush(&mut self, replication: &Replication) {
        let out = &mut self.encoder.out;
        if !out.is_empty() {
            replication.feed(out);
            out.clear();
            if out.capacity() > KEPT_MAX {
                *out = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Unit;
    use crate::{Store, StoreOptions};

    /// The thread of the stream has taken a unit before the one of the file parks, and nobody wakes that for it any more.
    #[test]
    fn what_waits_in_the_queue_is_not_slept_over() {
        let store = Store::new(StoreOptions::default());
        let (outlets, record) = (&store.0.outlets, &store.0.record);
        outlets.begin_file(record.last() + 1);
        outlets.begin_stream(record.last() + 1);
        record.put(|unit: &mut Unit| unit.add(0, &[b"SET", b"a", b"1"]));
        outlets.stream();
        assert_eq!(record.waiting(), 0);
        assert!(outlets.waiting() > 0);
        let (sender, receiver) = std::sync::mpsc::channel();
        let outlets = outlets.clone();
        let thread = std::thread::spawn(move || {
            outlets.record().set_taker();
            outlets.sleep_for_file(None);
            sender.send(()).expect("it is received");
        });
        let awake = receiver.recv_timeout(sluicegate_testkit::PATIENCE);
        record.wake_taker();
        thread.join().expect("it ends");
        assert_eq!(awake, Ok(()));
    }
}
