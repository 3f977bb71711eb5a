//! Zero-copy forwarding between sockets through a kernel pipe (`splice`).
//!
//! `splice` moves the pages that the network card filled instead of copying them. For a proxied connection, the CPU
//! time of a large body is about half of what it is with reading and writing. A pipe is taken when a source is readable
//! and returned when it is empty; only a stalled sink keeps one in use. Pipes are limited, and bytes are copied if none
//! is available. Pipes use file descriptors that sessions do not need, so none is created while sessions approach
//! `maxconn`, and idle ones are closed when descriptors run out.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// The requested size of a pipe, in bytes: four times the kernel's default, so that fewer system calls are needed.
const SIZE: usize = 256 * 1024;

/// A pipe and the number of bytes in it.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in it.
    len: usize,
    /// The worker's count of existing pipes, which this pipe decrements when it is dropped.
    made: Rc<Cell<u32>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.made.set(self.made.get() - 1);
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Pipe {
    fn new(size: usize, made: &Rc<Cell<u32>>) -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The system limits the pages of all pipes of a user, so this may fail; a pipe of the default size works, too.
        let _ = fcntl_setpipe_size(&write, size);
        made.set(made.get() + 1);
        Ok(Pipe { read, write, len: 0, made: made.clone() })
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the pipe is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Moves at most `most` bytes from a socket into the pipe; 0 means the end of the peer's stream. The pipe must be
    /// empty, so that `WouldBlock` can only mean that the socket has no data.
    pub fn fill(&mut self, source: impl AsFd, most: usize) -> io::Result<usize> {
        debug_assert_eq!(self.len, 0, "a full pipe looks like an empty socket");
        self.len = splice(source, None, &self.write, None, most, FLAGS)?;
        Ok(self.len)
    }

    /// Writes as many bytes to a socket as it accepts.
    pub fn drain(&mut self, sink: impl AsFd) -> io::Result<usize> {
        let count = splice(&self.read, None, sink, None, self.len, FLAGS)?;
        self.len -= count;
        Ok(count)
    }
}

/// A worker's pipes.
#[derive(Debug)]
pub struct Pipes {
    free: RefCell<Vec<Pipe>>,
    /// The number of existing pipes.
    made: Rc<Cell<u32>>,
    most: u32,
    size: usize,
}

impl Pipes {
    /// Returns a pool of at most `most` pipes of `size` bytes; a `size` of 0 selects the default.
    pub fn new(most: u32, size: usize) -> Pipes {
        Pipes { free: RefCell::default(), made: Rc::default(), most, size: if size == 0 { SIZE } else { size } }
    }

    /// Takes an empty pipe: a free one, or a new one if the limit and `has_room` allow it.
    pub fn take(&self, has_room: impl FnOnce() -> bool) -> Option<Pipe> {
        if let Some(pipe) = self.free.borrow_mut().pop() {
            return Some(pipe);
        }
        if self.made.get() >= self.most || !has_room() {
            return None;
        }
        Pipe::new(self.size, &self.made).ok()
    }

    /// Returns the number of pipes in use and of free pipes.
    pub fn counts(&self) -> (u32, u32) {
        let free = self.free.borrow().len() as u32;
        (self.made.get() - free, free)
    }

    /// Closes the free pipes and returns their number.
    pub fn shed(&self) -> usize {
        std::mem::take(&mut *self.free.borrow_mut()).len()
    }

    /// Puts a pipe back into the pool. A pipe that is not empty is closed.
    pub fn give_back(&self, pipe: Pipe) {
        if pipe.is_empty() {
            self.free.borrow_mut().push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let (mut sender, source) = UnixStream::pair().unwrap();
        let (sink, mut receiver) = UnixStream::pair().unwrap();
        let pipes = Pipes::new(1, 0);
        assert!(pipes.take(|| false).is_none(), "sessions leave no room");
        let mut pipe = pipes.take(|| true).expect("the first");
        assert!(pipes.take(|| true).is_none(), "no more than allowed");
        sender.write_all(b"abcdef").unwrap();
        assert_eq!(pipe.fill(&source, 4).unwrap(), 4);
        assert_eq!(pipe.drain(&sink).unwrap(), 4);
        assert_eq!(pipe.fill(&source, 4).unwrap(), 2);
        assert_eq!(pipe.drain(&sink).unwrap(), 2);
        assert_eq!(pipe.fill(&source, 4).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(sender);
        assert_eq!(pipe.fill(&source, 4).unwrap(), 0, "the end");
        let mut got = [0; 6];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abcdef");
        pipes.give_back(pipe);
        assert!(pipes.take(|| false).is_some(), "a free one needs no room");
        assert_eq!(pipes.shed(), 0);
    }

    #[test]
    fn a_pipe_that_is_not_empty_is_made_anew() {
        let (mut sender, source) = UnixStream::pair().unwrap();
        let pipes = Pipes::new(1, 4096);
        let mut pipe = pipes.take(|| true).unwrap();
        sender.write_all(b"abc").unwrap();
        pipe.fill(&source, 3).unwrap();
        pipes.give_back(pipe);
        assert_eq!(pipes.take(|| true).expect("another").len(), 0);
        assert_eq!(Pipes::new(0, 0).take(|| true).map(|pipe| pipe.len()), None);
    }
}
