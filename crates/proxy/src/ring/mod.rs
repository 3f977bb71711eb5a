//! Rings: buffers of the latest messages, for readers that come later (HAProxy configuration manual 12.5).
//!
//! A message is stored whole; the oldest ones make room for a new one. A [`Reader`] holds its place: what it has not
//! read yet is kept, so that a message that does not fit is dropped and counted while a reader is slow. The next one that fits
//! is preceded by the count. A reader that has not started holds no place.
//!
//! Writers run on any thread and hold the lock for a copy of the message; they never wait for a reader. There are at
//! most [`READERS_MAX`] readers.

mod area;
mod storage;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use area::Area;
use storage::Storage;

/// A destination of lines by its name: a ring, or an output of the process.
pub trait LineSink: std::fmt::Debug + Send + Sync {
    /// Returns its name.
    fn name(&self) -> &str;

    /// Writes a line, given without its end. A failure must not stop the caller: there is none to report it to.
    fn write(&self, line: &[u8]);
}

/// The maximum number of readers of a ring.
pub const READERS_MAX: usize = 254;

/// A ring.
#[derive(Debug)]
pub struct Ring {
    /// Its name.
    pub name: Arc<str>,
    /// Its description.
    pub description: Arc<str>,
    storage: Mutex<Storage>,
    /// Messages that did not fit and are not reported yet.
    dropped: AtomicU32,
    news: Notify,
}

impl Ring {
    /// Returns an empty ring of this size in memory. Memory is used as messages fill it.
    pub fn new(name: Arc<str>, description: Arc<str>, size: usize) -> Ring {
        Ring::over(name, description, Area::in_memory(size))
    }

    /// Returns an empty ring in a file. A file with messages gets the suffix `.bak` first.
    pub fn in_file(name: Arc<str>, description: Arc<str>, size: usize, path: &Path) -> io::Result<Ring> {
        Ok(Ring::over(name, description, Area::in_file(size, path)?))
    }

    fn over(name: Arc<str>, description: Arc<str>, area: Area) -> Ring {
        let storage = Mutex::new(Storage::new(area));
        Ring { name, description, storage, dropped: AtomicU32::new(0), news: Notify::new() }
    }

    /// Appends a message, given in parts and cut to `max_len` bytes. `notice` makes the message that reports a number
    /// of dropped ones.
    pub fn write(&self, parts: &[&[u8]], max_len: usize, notice: impl Fn(&str, &mut Vec<u8>)) {
        let mut storage = self.storage.lock();
        let dropped = self.dropped.load(Ordering::Relaxed);
        let reported = dropped == 0 || {
            let mut message = Vec::new();
            notice(&dropped_text(dropped), &mut message);
            let reported = storage.write(&[&message], max_len);
            if reported {
                self.dropped.store(0, Ordering::Relaxed);
            }
            reported
        };
        if !(reported && storage.write(parts, max_len)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        drop(storage);
        self.news.notify_waiters();
    }

    /// Returns the number of dropped messages that no message reports yet.
    pub fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns a reader that has not started; `None` if there are too many.
    pub fn attach(self: &Arc<Ring>) -> Option<Reader> {
        let slot = self.storage.lock().attach()?;
        Some(Reader { ring: self.clone(), slot })
    }
}

/// HAProxy's texts.
fn dropped_text(count: u32) -> String {
    if count == 1 { "1 event dropped".to_owned() } else { format!("{count} events dropped") }
}

/// Whether a reader wants more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The message was taken, and the next one is wanted.
    More,
    /// The message was taken, and no further one is wanted now.
    Enough,
    /// The message was not taken: it will be the first one of the next call.
    Not,
}

/// A reader of a ring. While it exists, the messages that it has not read are kept, once it has read for the first time.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    slot: usize,
}

impl Reader {
    /// Passes messages to `take`, the oldest first, until there is no further one or `take` wants none; a message comes in
    /// two parts. `from_end`: the first call skips what the ring contains.
    pub fn read(&mut self, from_end: bool, take: impl FnMut(&[u8], &[u8]) -> Taken) {
        self.ring.storage.lock().read(self.slot, from_end, take);
    }

    /// Waits until there is a message to read.
    pub async fn wait(&self) {
        let mut news = std::pin::pin!(self.ring.news.notified());
        loop {
            news.as_mut().enable();
            if self.ring.storage.lock().has_news(self.slot) {
                return;
            }
            news.as_mut().await;
            news.set(self.ring.news.notified());
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ring.storage.lock().detach(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(size: usize) -> Arc<Ring> {
        Arc::new(Ring::new("r".into(), "r".into(), size))
    }

    fn write(ring: &Ring, message: &str) {
        ring.write(&[message.as_bytes()], usize::MAX, |text, out| out.extend_from_slice(text.as_bytes()));
    }

    fn read(reader: &mut Reader, from_end: bool) -> Vec<String> {
        let mut found = Vec::new();
        reader.read(from_end, |first, second| {
            found.push(String::from_utf8([first, second].concat()).expect("text"));
            Taken::More
        });
        found
    }

    #[test]
    fn the_oldest_messages_make_room() {
        let ring = ring(32);
        for number in 0..100 {
            write(&ring, &format!("message {number}"));
        }
        let mut reader = ring.attach().expect("a place");
        assert_eq!(read(&mut reader, false), ["message 98", "message 99"]);
        assert_eq!(read(&mut reader, false), Vec::<String>::new());
        write(&ring, "one more");
        assert_eq!(read(&mut reader, false), ["one more"]);
        assert_eq!(read(&mut ring.attach().expect("a place"), true), Vec::<String>::new());
    }

    #[test]
    fn a_reader_holds_what_it_has_not_read() {
        let ring = ring(40);
        let mut reader = ring.attach().expect("a place");
        write(&ring, "before");
        assert_eq!(read(&mut reader, true), Vec::<String>::new());
        for number in 0..10 {
            write(&ring, &format!("message {number}"));
        }
        assert_eq!(ring.dropped(), 7);
        assert_eq!(read(&mut reader, false), ["message 0", "message 1", "message 2"]);
        write(&ring, "next");
        assert_eq!(read(&mut reader, false), ["7 events dropped", "next"]);
        assert_eq!(ring.dropped(), 0);
        drop(reader);
        for _ in 0..10 {
            write(&ring, "nobody holds it");
        }
        assert_eq!(ring.dropped(), 0);
    }

    #[test]
    fn messages_are_cut_and_those_that_never_fit_are_dropped() {
        let ring = ring(300);
        ring.write(&[b"ab", b"cdef"], 3, |_, _| {});
        write(&ring, &"x".repeat(300));
        assert_eq!(ring.dropped(), 1);
        let long = "y".repeat(sluicegate_config::model::Ring::max_payload(300));
        let mut reader = ring.attach().expect("a place");
        assert_eq!(read(&mut reader, false), ["abc"]);
        // The longest message fits alone: not beside the report of the dropped one, at which the reader stands.
        write(&ring, &long);
        assert_eq!(read(&mut reader, false), ["1 event dropped"]);
        assert_eq!(ring.dropped(), 1);
        drop(reader);
        write(&ring, &long);
        assert_eq!(read(&mut ring.attach().expect("a place"), false), [&*long]);
    }

    #[test]
    fn readers_stop_where_they_want_and_are_limited() {
        let ring = ring(1000);
        ["a", "b", "c"].iter().for_each(|message| write(&ring, message));
        let mut reader = ring.attach().expect("a place");
        reader.read(false, |first, _| if first == b"b" { Taken::Not } else { Taken::More });
        reader.read(false, |first, _| {
            assert_eq!(first, b"b");
            Taken::Enough
        });
        assert_eq!(read(&mut reader, false), ["c"]);
        let others: Vec<_> = std::iter::from_fn(|| ring.attach()).collect();
        assert_eq!(others.len(), READERS_MAX - 1);
    }

    #[tokio::test]
    async fn a_reader_is_woken() {
        let ring = ring(1000);
        let mut reader = ring.attach().expect("a place");
        read(&mut reader, true);
        let writer = ring.clone();
        let written = tokio::spawn(async move { write(&writer, "news") });
        reader.wait().await;
        assert_eq!(read(&mut reader, false), ["news"]);
        written.await.expect("it ends");
    }

    /// The layout is that of HAProxy 3.2's `struct ring_storage`: size, length of the header, and in cache lines of their own the
    /// ends; then the area.
    #[test]
    fn a_file_keeps_the_messages() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ring");
        let file = || Ring::in_file("r".into(), "r".into(), 5000, &path).expect("mapped");
        let ring = file();
        write(&ring, "kept");
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(bytes.len(), 8192);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!([word(0), word(8), word(64), word(128)], [8192 - 192, 192, 7, 0]);
        assert_eq!(&bytes[192..199], b"\x00\x04kept\x00");
        drop(ring);
        let backup = directory.path().join("ring.bak");
        drop(file());
        assert_eq!(std::fs::read(&backup).expect("renamed"), bytes);
        // An empty ring is not kept, and does not replace what was.
        drop(file());
        assert_eq!(std::fs::read(&backup).expect("there"), bytes);
    }
}
