//! Commands that are appended to an increment, and what of them is durable.
//!
//! Positions are counted in bytes since the append-only file began, over all increments, so that whoever waits for a
//! command waits for the position of its end: up to [`Log::appended`] commands are in memory, after a
//! [`flush`](Log::flush) they survive the process, and up to [`Log::durable`] they survive the machine.
//!
//! Nothing here has a thread. The caller decides when to [`flush`](Log::flush) and to [`sync`](Log::sync).
//!
//! What fails:
//!
//! - *A write.* What it has written is cut off, so the file ends with a whole command, and the next flush tries again with
//!   all that waits. If it cannot be cut off, the next flush continues where this one stopped.
//! - *A sync.* The kernel may have dropped what it could not write, and reports that once; a later success says nothing.
//!   So the file is neither synced any more nor written: behind a part that is missing, commands would only make it
//!   unreadable. What is appended waits in memory. To recover, the caller begins anew: it creates an increment with a new
//!   `Log` (not named yet), writes the data set into a base file, and names both in one manifest.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use sluicegate_wire::resp::{CommandLimits, CommandParser, CommandStatus};

use crate::files::File;

/// A buffer beyond this size is given back once it is written.
const BUFFER_KEPT: usize = 4 << 20;

/// Commands in the format of the file.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    pub(crate) out: Vec<u8>,
    /// The database of the last command of this increment.
    database: Option<u32>,
    /// The time of the last annotation, in Unix seconds.
    annotated_s: u64,
}

/// Appends a command to a buffer, as an array of bulk strings.
pub(crate) fn encode<'w>(words: impl ExactSizeIterator<Item = &'w [u8]> + Clone, out: &mut Vec<u8>) {
    let word_len = |word: &[u8]| head_len(word.len()) + word.len() + 2;
    let len = head_len(words.len()) + words.clone().map(word_len).sum::<usize>();
    let start = out.len();
    // Made long enough once: commands are short, and have many pieces.
    out.resize(start + len, 0);
    let mut rest = put_head(b'*', words.len(), &mut out[start..]);
    for word in words {
        rest = put_head(b'$', word.len(), rest);
        rest = put(word, rest);
        rest = put(b"\r\n", rest);
    }
    debug_assert!(rest.is_empty());
}

/// Appends the head of an array or of a bulk string.
pub(crate) fn encode_head(kind: u8, number: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + head_len(number), 0);
    put_head(kind, number, &mut out[start..]);
}

/// Returns the length of the first of several commands that [`encode`] has written.
pub(crate) fn encoded_len(bytes: &[u8]) -> usize {
    let limits = CommandLimits { max_bulk: u64::MAX, ..CommandLimits::default() };
    match CommandParser::new().parse(bytes, &limits) {
        CommandStatus::Complete { consumed } => consumed,
        status => unreachable!("{status:?}"),
    }
}

/// Returns the length of a head.
#[inline]
fn head_len(number: usize) -> usize {
    match number {
        0..10 => 4,
        10..100 => 5,
        _ => 4 + number.ilog10() as usize,
    }
}

/// Writes a head, and returns what follows it.
#[inline]
fn put_head(kind: u8, number: usize, out: &mut [u8]) -> &mut [u8] {
    let digit = |number: usize| b'0' + number as u8;
    match number {
        0..10 => put(&[kind, digit(number), b'\r', b'\n'], out),
        10..100 => put(&[kind, digit(number / 10), digit(number % 10), b'\r', b'\n'], out),
        _ => {
            let rest = put(itoa::Buffer::new().format(number).as_bytes(), put(&[kind], out));
            put(b"\r\n", rest)
        }
    }
}

/// Writes bytes, and returns what follows them.
#[inline]
fn put<'o>(bytes: &[u8], out: &'o mut [u8]) -> &'o mut [u8] {
    let (here, rest) = out.split_at_mut(bytes.len());
    here.copy_from_slice(bytes);
    rest
}

impl Encoder {
    /// Appends commands that have their effects at once.
    pub(crate) fn unit<'e>(&mut self, effects: impl ExactSizeIterator<Item = Effect<'e>>) {
        // Nearly every unit has one effect.
        let is_single = effects.len() == 1;
        let mut effects = effects.filter(|effect| !effect.is_passing).peekable();
        let mut is_first = true;
        let mut is_several = false;
        while let Some(effect) = effects.next() {
            self.select(effect.database);
            if is_first && !is_single && effects.peek().is_some() {
                // As Redis: the first SELECT comes before MULTI.
                is_several = true;
                self.begin_transaction();
            }
            is_first = false;
            effect.write(&mut self.out);
        }
        if is_several {
            self.end_transaction();
        }
    }

    /// Lets commands have their effects in a database.
    pub(crate) fn select(&mut self, database: u32) {
        if self.database != Some(database) {
            self.database = Some(database);
            let mut digits = itoa::Buffer::new();
            encode([&b"SELECT"[..], digits.format(database).as_bytes()].into_iter(), &mut self.out);
        }
    }

    /// Forgets the database of the last command, so that the next one names its own.
    pub(crate) fn forget_database(&mut self) {
        self.database = None;
    }

    pub(crate) fn begin_transaction(&mut self) {
        self.out.extend_from_slice(b"*1\r\n$5\r\nMULTI\r\n");
    }

    pub(crate) fn end_transaction(&mut self) {
        self.out.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
    }

    /// Appends the time, unless that of the second was appended already.
    pub(crate) fn annotate(&mut self, now_s: u64) {
        if now_s > self.annotated_s {
            self.annotated_s = now_s;
            self.out.extend_from_slice(format!("#TS:{now_s}\r\n").as_bytes());
        }
    }
}

/// A command in the form of [`encode`], and the database in which it has its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect<'e> {
    pub(crate) database: u32,
    /// Whether only replicas are told of it.
    pub(crate) is_passing: bool,
    pub(crate) command: &'e [u8],
    /// The position of `command` among others, by which long words find their place.
    pub(crate) start: usize,
    /// Long words, each with the position where it belongs.
    pub(crate) long: &'e [(usize, Arc<Vec<u8>>)],
}

impl Effect<'_> {
    /// Appends the command.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut done = 0;
        for (at, word) in self.long {
            let at = at - self.start;
            out.extend_from_slice(&self.command[done..at]);
            out.extend_from_slice(word);
            done = at;
        }
        out.extend_from_slice(&self.command[done..]);
    }
}

/// The increment to which commands are appended.
pub(crate) struct Log {
    file: Box<dyn File>,
    /// The length of the file, up to the last successful write.
    length: u64,
    /// Appended bytes that are not written yet.
    out: Vec<u8>,
    written: u64,
    /// The position up to which this file, the increments before it and the base have been synced.
    synced: u64,
    /// The position that was durable before a manifest named the file, until one does.
    unnamed: Option<u64>,
    /// Whether the file can still be synced.
    is_sound: bool,
}

impl Log {
    /// Appends to an increment of so many bytes that a manifest names. What was appended before this position is durable.
    pub(crate) fn new(file: Box<dyn File>, length: u64, position: u64) -> Log {
        Log { file, length, out: Vec::new(), written: position, synced: position, unnamed: None, is_sound: true }
    }

    /// Appends to an empty increment that no manifest names yet. What was appended before `position` will be in a base
    /// file; for now, only what was appended before `durable` is durable, whatever is synced.
    pub(crate) fn unnamed(file: Box<dyn File>, position: u64, durable: u64) -> Log {
        Log { unnamed: Some(durable), ..Log::new(file, 0, position) }
    }

    /// Records that a manifest names the file, with a base file up to its start.
    pub(crate) fn set_named(&mut self) {
        self.unnamed = None;
    }

    /// Appends encoded commands, whole ones, and leaves `commands` empty. Returns the position of their end.
    pub(crate) fn append(&mut self, commands: &mut Vec<u8>) -> u64 {
        match self.out.is_empty() {
            true => std::mem::swap(&mut self.out, commands),
            false => self.out.append(commands),
        }
        self.appended()
    }

    /// Returns the position of the last command's end.
    pub(crate) fn appended(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Returns the position up to which commands are in the file.
    #[cfg(test)]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the position up to which commands are on the disk.
    pub(crate) fn durable(&self) -> u64 {
        self.unnamed.unwrap_or(self.synced)
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Removes what another process has appended.
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        if self.file.length()? > self.length {
            self.file.truncate(self.length)?;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Returns the number of bytes that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Returns whether the file is of use; it is not after a sync has failed.
    pub(crate) fn is_sound(&self) -> bool {
        self.is_sound
    }

    /// Writes what was appended.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.is_sound {
            return Err(unsound());
        }
        let out = &mut self.out;
        let mut done = 0;
        let result = loop {
            if done == out.len() {
                break Ok(());
            }
            match self.file.write(&out[done..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if result.is_err() && done > 0 && self.file.truncate(self.length).is_ok() {
            done = 0;
        }
        self.length += done as u64;
        self.written += done as u64;
        out.drain(..done);
        if out.is_empty() && out.capacity() > BUFFER_KEPT {
            *out = Vec::new();
        }
        result
    }

    /// Makes durable what was written, and waits for that.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let position = self.syncable().ok_or_else(unsound)?;
        if position == self.synced {
            return Ok(());
        }
        let result = self.file.sync_data();
        self.end_sync(position, result.is_ok());
        result
    }

    /// Returns the position up to which a sync that begins now makes commands durable; [`None`] if none may begin any
    /// more.
    fn syncable(&self) -> Option<u64> {
        self.is_sound.then_some(self.written)
    }

    /// Records that a sync has ended that began at a [position](Self::syncable).
    fn end_sync(&mut self, position: u64, has_succeeded: bool) {
        match has_succeeded {
            // One that began earlier and ended later than one that failed did not see its error.
            true if self.is_sound => self.synced = self.synced.max(position),
            true => {}
            false => self.is_sound = false,
        }
    }
}

fn unsound() -> io::Error {
    io::Error::other("an earlier sync of the file failed")
}

/// A log with what encodes its commands, for tests.
#[cfg(test)]
pub(crate) struct Written(Log, Encoder);

#[cfg(test)]
impl Written {
    pub(crate) fn new(log: Log) -> Written {
        Written(log, Encoder::default())
    }

    pub(crate) fn append<'e>(&mut self, effects: impl ExactSizeIterator<Item = Effect<'e>>) -> u64 {
        self.1.unit(effects);
        self.0.append(&mut self.1.out)
    }

    pub(crate) fn annotate(&mut self, now_s: u64) {
        self.1.annotate(now_s);
        self.0.append(&mut self.1.out);
    }
}

#[cfg(test)]
impl std::ops::Deref for Written {
    type Target = Log;
    fn deref(&self) -> &Log {
        &self.0
    }
}

#[cfg(test)]
impl std::ops::DerefMut for Written {
    fn deref_mut(&mut self) -> &mut Log {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files as _;
    use crate::files::simulated::{Disk, Plan};

    #[test]
    fn words_of_every_length_have_their_heads() {
        let of_first = |out: &[u8]| encoded_len(&[out, b"*1\r\n$4\r\nPING\r\n"].concat());
        for len in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 99_999, 100_000] {
            let (word, mut out) = (vec![b'x'; len], b"before".to_vec());
            encode([b"SET", &word[..]].into_iter(), &mut out);
            let text = String::from_utf8(word).expect("text");
            assert_eq!(of_first(&out[6..]), out.len() - 6);
            assert_eq!(String::from_utf8(out).expect("text"), format!("before*2\r\n$3\r\nSET\r\n${len}\r\n{text}\r\n"));
            let (many, mut out) = (vec![&b""[..]; len], Vec::new());
            encode(many.into_iter(), &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), format!("*{len}\r\n{}", "$0\r\n\r\n".repeat(len)));
        }
    }

    fn effect(database: u32, command: &[u8]) -> Effect<'_> {
        Effect { database, is_passing: false, command, start: 0, long: &[] }
    }

    fn effects(database: u32, commands: &[&'static [u8]]) -> Vec<Effect<'static>> {
        commands.iter().map(|command| effect(database, command)).collect()
    }

    fn log(plan: Plan) -> (Disk, Written) {
        let disk = Disk::new(1, Plan::default());
        let file = disk.append(b"f").expect("no fault");
        disk.sync_directory().expect("no fault");
        let operations = disk.operations();
        disk.plan(|now| *now = Plan { error_at: plan.error_at.map(|(at, code)| (operations + at, code)), ..plan });
        (disk, Written::new(Log::new(file, 0, 100)))
    }

    #[test]
    fn commands_are_written_as_by_redis() {
        let (disk, mut log) = log(Plan::default());
        let mut set = Vec::new();
        encode([&b"SET"[..], b"k", b""].into_iter(), &mut set);
        log.annotate(17);
        assert_eq!(log.append([effect(0, &set)].into_iter()), log.appended());
        log.annotate(17);
        log.append(effects(0, &[b"<one>"]).into_iter());
        log.append(effects(3, &[b"<two>", b"<three>"]).into_iter());
        log.append([effects(3, &[b"<four>"]), effects(12, &[b"<five>"])].concat().into_iter());
        log.annotate(18);
        log.append(std::iter::empty());
        assert_eq!((log.written(), log.waiting() as u64), (100, log.appended() - 100));
        log.flush().expect("no fault");
        let expected = "#TS:17\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n<one>\
             *2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*1\r\n$5\r\nMULTI\r\n<two><three>*1\r\n$4\r\nEXEC\r\n\
             *1\r\n$5\r\nMULTI\r\n<four>*2\r\n$6\r\nSELECT\r\n$2\r\n12\r\n<five>*1\r\n$4\r\nEXEC\r\n#TS:18\r\n";
        assert_eq!(String::from_utf8(disk.contents(b"f").expect("a file")).expect("text"), expected);
        assert_eq!((log.length(), log.written(), log.durable()), (expected.len() as u64, log.appended(), 100));
        log.sync().expect("no fault");
        assert_eq!(log.durable(), log.appended());
    }

    #[test]
    fn a_write_that_fails_leaves_whole_commands_and_is_tried_again() {
        let (disk, mut log) = log(Plan { space: Some(60), ..Plan::default() });
        log.append(effects(0, &[b"<first>"]).into_iter());
        log.flush().expect("space");
        let first = disk.contents(b"f").expect("a file");
        log.append(effects(0, &[b"<a command of more than sixty bytes, which is too long for the disk>"]).into_iter());
        assert_eq!(log.flush().expect_err("no space").raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(disk.contents(b"f").expect("a file"), first);
        log.append(effects(0, &[b"<third>"]).into_iter());
        disk.plan(|plan| plan.space = None);
        log.flush().expect("space");
        let after = disk.contents(b"f").expect("a file");
        assert!(after.starts_with(&first) && after.ends_with(b"the disk><third>"));
        assert_eq!((log.length(), log.written(), log.waiting()), (after.len() as u64, log.appended(), 0));
        // What cannot be cut off is continued.
        let at = disk.operations() + 2;
        let space = after.len() as u64 + 3;
        disk.plan(|plan| *plan = Plan { space: Some(space), error_at: Some((at, libc::EIO)), ..Plan::default() });
        log.append(effects(0, &[b"<fourth>"]).into_iter());
        assert!(log.flush().is_err());
        assert_eq!(disk.contents(b"f").expect("a file"), [&after[..], b"<fo"].concat());
        disk.plan(|plan| *plan = Plan::default());
        log.flush().expect("space");
        assert_eq!(disk.contents(b"f").expect("a file"), [&after[..], b"<fourth>"].concat());
    }

    #[test]
    fn a_file_is_not_synced_after_an_error() {
        let (disk, mut log) = log(Plan { error_at: Some((3, libc::EIO)), ..Plan::default() });
        let first = log.append(effects(0, &[b"<first>"]).into_iter());
        log.flush().expect("no fault");
        log.sync().expect("no fault");
        let second = log.append(effects(0, &[b"<second>"]).into_iter());
        log.flush().expect("no fault");
        let began = log.syncable().expect("sound");
        assert!(log.sync().is_err());
        let operations = disk.operations();
        assert!(log.sync().is_err() && log.syncable().is_none() && !log.is_sound());
        assert_eq!(disk.operations(), operations);
        log.end_sync(began, true);
        assert_eq!((log.durable(), began), (first, second));
        let third = log.append(effects(0, &[b"<third>"]).into_iter());
        assert!(log.flush().is_err());
        assert_eq!((log.appended(), log.written(), disk.operations()), (third, second, operations));
    }

    #[test]
    fn a_file_that_is_not_named_makes_nothing_durable() {
        let disk = Disk::new(1, Plan::default());
        let mut log = Written::new(Log::unnamed(disk.append(b"f").expect("no fault"), 500, 200));
        let end = log.append(effects(0, &[b"<first>"]).into_iter());
        log.flush().expect("no fault");
        let (position, mut file) = (log.syncable().expect("sound"), disk.append(b"f").expect("no fault"));
        log.append(effects(0, &[b"<second>"]).into_iter());
        log.flush().expect("no fault");
        log.end_sync(position, file.sync_data().is_ok());
        assert_eq!(log.durable(), 200);
        log.set_named();
        assert_eq!(log.durable(), end);
    }
}
