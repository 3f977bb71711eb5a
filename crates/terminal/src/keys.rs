//! Typed keys.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time in which the rest of a sequence follows the Escape character; a key of its own has none.
const SEQUENCE: Duration = Duration::from_millis(50);

/// A key.
#[allow(missing_docs)] // the names are the keys
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Tab,
    /// Ctrl-C, or Ctrl-D.
    Interrupt,
    /// A character of ASCII.
    Char(char),
}

/// The keys of standard input.
#[derive(Debug, Default)]
pub struct Keys {
    bytes: VecDeque<u8>,
    is_ended: bool,
}

impl Keys {
    /// Waits for a key; [`None`] after this time. The end of the input is [`Key::Interrupt`].
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub fn next(&mut self, time: Duration) -> io::Result<Option<Key>> {
        if self.bytes.is_empty() {
            self.fill(time)?;
        }
        if self.bytes.front() == Some(&0x1b) && self.bytes.len() == 1 {
            self.fill(SEQUENCE)?;
        }
        Ok(match parse(self.bytes.make_contiguous()) {
            Some((key, length)) => {
                self.bytes.drain(..length);
                key
            }
            None => self.is_ended.then_some(Key::Interrupt),
        })
    }

    fn fill(&mut self, time: Duration) -> io::Result<()> {
        let stdin = io::stdin();
        let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match poll(&mut wanted, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [0; 256];
        let count = rustix::io::read(&stdin, &mut buffer)?;
        self.is_ended |= count == 0;
        self.bytes.extend(&buffer[..count]);
        Ok(())
    }
}

/// Returns the first key, if it is known, and the length of its bytes; [`None`] without bytes.
fn parse(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let key = match *bytes.first()? {
        0x1b => return Some(sequence(bytes)),
        b'\r' | b'\n' => Key::Enter,
        b'\t' => Key::Tab,
        0x7f | 8 => Key::Backspace,
        3 | 4 => Key::Interrupt,
        byte @ b' '..=b'~' => Key::Char(char::from(byte)),
        _ => return Some((None, 1)),
    };
    Some((Some(key), 1))
}

/// Parses what begins with the Escape character.
fn sequence(bytes: &[u8]) -> (Option<Key>, usize) {
    let [_, b'[' | b'O', rest @ ..] = bytes else { return (Some(Key::Escape), 1) };
    let Some(length) = rest.iter().position(|byte| matches!(byte, b'@'..=b'~')) else { return (None, bytes.len()) };
    let key = match &rest[..=length] {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"C" => Key::Right,
        b"D" => Key::Left,
        b"H" | b"1~" | b"7~" => Key::Home,
        b"F" | b"4~" | b"8~" => Key::End,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        _ => return (None, length + 3),
    };
    (Some(key), length + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_keys() {
        let mut bytes = &b"a\x1b[A\x1b[6~\x1bOB\x1b[1;5C\r\x7f\x03\xc3\x1b"[..];
        let mut keys = Vec::new();
        while let Some((key, length)) = parse(bytes) {
            keys.extend(key);
            bytes = &bytes[length..];
        }
        let [up, down, page] = [Key::Up, Key::Down, Key::PageDown];
        let rest = [Key::Enter, Key::Backspace, Key::Interrupt, Key::Escape];
        assert_eq!(keys, [&[Key::Char('a'), up, page, down][..], &rest].concat());
    }

    #[test]
    fn any_bytes_come_to_an_end() {
        for length in 1..4u32 {
            for number in 0..256u32.pow(length.min(2)) {
                let text = [0x1b, b'[', (number >> 8) as u8, number as u8];
                let mut bytes = &text[..=length as usize];
                while let Some((_, taken)) = parse(bytes) {
                    assert!(taken > 0 && taken <= bytes.len());
                    bytes = &bytes[taken..];
                }
            }
        }
    }
}
