//! The commands of a master.
//!
//! They have the form of clients' requests, and run as those of the append-only file do: those of one key on the thread of
//! its stripe ([`lanes`](crate::replay::lanes)), others after all before them. Unlike a file's, they are seen: they wake
//! blocked readers, touch watched keys, publish events and messages and are recorded. A transaction is seen whole or not
//! at all.
//!
//! A part of the stream is *settled* when all its commands have run: whenever nothing more has come, before each ACK, and
//! after [`UNSETTLED_MAX`] bytes. Only then it is counted and passed on. A transaction that has begun is not counted until
//! its EXEC has come, so after a loss of the connection the master sends it again from its beginning.
//!
//! Effects that only this store knows come as the argument of PING, where they are annotations, as in the append-only
//! file.
//!
//! Memory: the buffer holds what is not settled and one command; a command, or a transaction, that is longer than
//! [`COMMAND_MAX`] ends the link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{CommandLimits, CommandParser, CommandStatus, PLAIN_ARGS, parse_i64};
use smallvec::SmallVec;

use super::conn::{Conn, READ_BYTES};
use super::state::Link;
use super::transactions::run_for_master;
use super::{Border, Gone, WARNING};
use crate::Inner;
use crate::catalogue::{CommandSpec, Detached, Flags, Handler, Numbered};
use crate::record::annotation;
use crate::refused::{DB_RANGE, unknown_command};
use crate::replay::lanes::Lanes;
use crate::replay::runner::{Runner, Source};
use crate::replay::{Queue, own_row};
use crate::script::{Came, Counts};

/// The bytes after which the stream is settled even if more has come.
const UNSETTLED_MAX: usize = if cfg!(test) { 256 } else { 4 << 20 };
/// The maximum number of bytes of a command, and of a transaction.
const COMMAND_MAX: usize = 4 << 30;
/// The time between two ACKs.
const ACK_EACH: Duration = Duration::from_secs(1);
/// The time after which it is looked whether the disk has caught up.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// The bytes that are received while no commands may be begun.
const HELD_MAX: usize = 64 << 20;
/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES: usize = 4 << 20;

/// What a master may send: words that are values of other masters may be longer than here.
const LIMITS: CommandLimits =
    CommandLimits { max_bulk: COMMAND_MAX as u64, max_args: i32::MAX as u32, unauthenticated: false };

/// The stream of one connection.
pub(super) struct Stream<'l> {
    inner: &'l Arc<Inner>,
    link: &'l Link,
    order: u64,
    log: &'l dyn Fn(u8, &str),
    parser: CommandParser,
    buffer: Vec<u8>,
    /// The position in the buffer up to which commands were read.
    read: usize,
    /// The position up to which they were begun, without a transaction that is not whole.
    begun: usize,
    db: u32,
    /// The commands since MULTI, and the database selected before it.
    multi: Option<(Queue, u32)>,
    spare: Queue,
    runner: Runner,
    lanes: Lanes,
    /// Held while commands are begun and not counted.
    border: Option<Border<'l>>,
    acked: Instant,
    /// Ends of settled parts and the last unit that was recorded by then, for the position up to which the append-only file
    /// is on the disk.
    recorded: VecDeque<(u64, u64)>,
    durable: Option<u64>,
    errors_logged: u64,
    /// The commands since the last part that was settled, for INFO.
    counts: Counts,
    /// The master's address, for MONITOR.
    peer: String,
}

/// The maximum number of settled parts whose units are remembered.
const RECORDED_MAX: usize = 64;
/// The number of errors of commands that are logged for one connection.
const ERRORS_MAX: u64 = 100;

/// What a command asks of the link itself.
enum Wanted {
    Nothing,
    Ack,
}

impl<'l> Stream<'l> {
    pub(super) fn new(inner: &'l Arc<Inner>, link: &'l Link, order: u64, log: &'l dyn Fn(u8, &str)) -> Stream<'l> {
        Stream {
            inner,
            link,
            order,
            log,
            parser: CommandParser::new(),
            buffer: Vec::new(),
            read: 0,
            begun: 0,
            db: link.stream_db(),
            multi: None,
            spare: Queue::default(),
            runner: Runner::new(inner.clone(), Source::Master),
            lanes: Lanes::new(inner, Source::Master, None),
            border: None,
            acked: Instant::now(),
            recorded: VecDeque::new(),
            durable: None,
            errors_logged: 0,
            counts: Counts::new(inner.rows),
            peer: link.connection().map(|connection| connection.peer).unwrap_or_default(),
        }
    }

    /// Runs the commands that come, until the connection ends.
    pub(super) fn run(&mut self, conn: &mut Conn<'_>) -> Result<(), Gone> {
        self.ack(conn)?;
        let mut was_held = false;
        loop {
            let is_held = self.link.is_held();
            if is_held && self.buffer.len() < HELD_MAX {
                conn.receive(&mut self.buffer, READ_BYTES)?;
                self.link.set_ahead(self.buffer.len());
            }
            was_held |= is_held;
            if is_held || self.inner.loading.holds_writes() {
                // A client has asked for a pause, or too much waits for the disk.
                self.settle()?;
                std::thread::sleep(FULL_PAUSE);
                if self.acked.elapsed() >= ACK_EACH {
                    self.ack(conn)?;
                }
                conn.forget_silence();
                self.link.check(self.order)?;
                continue;
            }
            if conn.receive(&mut self.buffer, READ_BYTES)? | std::mem::take(&mut was_held) {
                if self.link.is_held() {
                    // It came behind the reply that the pause has begun.
                    was_held = true;
                    continue;
                }
                self.commands(&mut |stream| stream.ack(conn))?;
                if self.begun < UNSETTLED_MAX && self.acked.elapsed() < ACK_EACH {
                    continue;
                }
            }
            self.settle()?;
            match ACK_EACH.checked_sub(self.acked.elapsed()) {
                Some(rest) if !rest.is_zero() => conn.wait(rest)?,
                _ => self.ack(conn)?,
            }
        }
    }

    /// Begins all commands that are whole.
    fn commands(&mut self, ack: &mut dyn FnMut(&mut Self) -> Result<(), Gone>) -> Result<(), Gone> {
        // Taken out, so that the words may be borrowed while commands are begun.
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut parser = std::mem::take(&mut self.parser);
        let result = self.commands_of(&mut buffer, &mut parser, ack);
        (self.buffer, self.parser) = (buffer, parser);
        result
    }

    fn commands_of(
        &mut self,
        buffer: &mut Vec<u8>,
        parser: &mut CommandParser,
        ack: &mut dyn FnMut(&mut Self) -> Result<(), Gone>,
    ) -> Result<(), Gone> {
        loop {
            let rest = &buffer[self.read..];
            if rest.is_empty() {
                return Ok(());
            }
            let mut plain: [&[u8]; PLAIN_ARGS] = [&[]; PLAIN_ARGS];
            let (wanted, consumed) = match parser.plain(rest, &LIMITS, &mut plain) {
                Some((consumed, count)) => (self.command(&plain[..count])?, consumed),
                None => match parser.parse(rest, &LIMITS) {
                    CommandStatus::Complete { consumed } => {
                        let words = parser.args(rest);
                        let wanted = if words.is_empty() { Wanted::Nothing } else { self.command(&words)? };
                        (wanted, consumed)
                    }
                    CommandStatus::Incomplete { .. } => {
                        let is_long = rest.len() > COMMAND_MAX;
                        return if is_long { Err(Gone::Protocol) } else { Ok(()) };
                    }
                    CommandStatus::Error(_) => return Err(Gone::Protocol),
                },
            };
            if let Wanted::Ack = wanted {
                // The command itself is not counted yet.
                self.settle_in(buffer)?;
                ack(self)?;
            }
            self.read += consumed;
            if self.multi.is_none() {
                self.begun = self.read;
            } else if self.read - self.begun > COMMAND_MAX {
                return Err(Gone::Protocol);
            }
        }
    }

    /// Begins one command, or queues it for its transaction.
    fn command(&mut self, words: &[&[u8]]) -> Result<Wanted, Gone> {
        if self.border.is_none() {
            self.border = Some(self.link.border_of_stream(self.order)?);
        }
        match words {
            [name, text] if name.eq_ignore_ascii_case(b"ping") => {
                self.count(words);
                return self.ping(words, text).map(|()| Wanted::Nothing);
            }
            [name, word, _] if name.eq_ignore_ascii_case(b"replconf") => {
                self.count(words);
                return Ok(if word.eq_ignore_ascii_case(b"getack") { Wanted::Ack } else { Wanted::Nothing });
            }
            [name] if name.eq_ignore_ascii_case(b"multi") => {
                self.count(words);
                if self.multi.is_none() {
                    self.multi = Some((std::mem::take(&mut self.spare), self.db));
                }
                self.show(words);
                return Ok(Wanted::Nothing);
            }
            [name] if name.eq_ignore_ascii_case(b"exec") => {
                self.count(words);
                self.exec()?;
                self.show(words);
                return Ok(Wanted::Nothing);
            }
            [name] if name.eq_ignore_ascii_case(b"discard") => {
                if let Some((queue, db)) = self.multi.take() {
                    (self.spare, self.db) = (queue.cleared(), db);
                }
                return Ok(Wanted::Nothing);
            }
            _ => {}
        }
        match self.inner.rows.resolve_numbered(words) {
            Ok(row) => {
                self.counts.add(row.number, Came::Well);
                self.run_or_queue(row, words)?;
            }
            Err((_, error)) => self.fail(words, &error)?,
        }
        Ok(Wanted::Nothing)
    }

    /// Counts a command that the link itself obeys.
    fn count(&mut self, words: &[&[u8]]) {
        if let Ok(row) = self.inner.rows.resolve_numbered(words) {
            self.counts.add(row.number, Came::Well);
        }
    }

    /// Shows a command that the link itself obeys to clients that watch all commands.
    #[inline]
    fn show(&self, words: &[&[u8]]) {
        if self.inner.scripts.watches.shows()
            && let Ok(row) = self.inner.rows.resolve_numbered(words)
        {
            self.inner.scripts.show(row.number, words, self.db, &self.peer);
        }
    }

    /// Begins an effect that only this store knows, which is shown in place of the PING; other texts are those of a PING.
    fn ping(&mut self, words: &[&[u8]], text: &[u8]) -> Result<(), Gone> {
        if !text.starts_with(b"#SG") {
            self.show(words);
            return Ok(());
        }
        let mut reader = annotation::Reader::default();
        let mut lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let words = loop {
            let Some(line) = lines.next() else { return Err(Gone::Protocol) };
            match reader.read(line) {
                Ok(Some(words)) => break words,
                Ok(None) => {}
                Err(_) => return Err(Gone::Protocol),
            }
        };
        let words: SmallVec<[&[u8]; 16]> = words.iter().map(|word| &word[..]).collect();
        match own_row(self.inner, &words) {
            Some(row) => self.run_or_queue(row, &words),
            None => self.fail(&words, &unknown_command(&words)),
        }
    }

    /// Notes the error of a command that cannot run.
    #[cold]
    fn fail(&mut self, words: &[&[u8]], error: &[u8]) -> Result<(), Gone> {
        self.runner.add_error(&words[0].escape_ascii().to_string(), error);
        Ok(())
    }

    #[inline]
    fn run_or_queue(&mut self, row: Numbered, words: &[&[u8]]) -> Result<(), Gone> {
        match &mut self.multi {
            Some((queue, _)) => {
                queue.push(row, words, 0);
                Ok(())
            }
            None => self.begin(row, words),
        }
    }

    #[inline]
    fn begin(&mut self, row: Numbered, words: &[&[u8]]) -> Result<(), Gone> {
        if self.inner.scripts.watches.shows() {
            self.run_and_show(row, words)
        } else {
            self.begin_unseen(row.spec, words)
        }
    }

    /// Runs a command, and shows it to clients that watch all commands. As in Redis, one that runs others is shown before
    /// them, and any other when it has run.
    #[cold]
    fn run_and_show(&mut self, row: Numbered, words: &[&[u8]]) -> Result<(), Gone> {
        let is_before = row.spec.flags.has(Flags::SKIP_MONITOR);
        if is_before {
            self.inner.scripts.show(row.number, words, self.db, &self.peer);
        }
        match row.spec.handler {
            Handler::Connection(_) | Handler::Container => self.begin_unseen(row.spec, words)?,
            _ => self.run_here(row.spec, words)?,
        }
        if !is_before {
            self.inner.scripts.show(row.number, words, self.db, &self.peer);
        }
        Ok(())
    }

    #[inline]
    fn begin_unseen(&mut self, spec: &'static CommandSpec, words: &[&[u8]]) -> Result<(), Gone> {
        match spec.handler {
            Handler::Connection(Detached::Selects) => self.select(words),
            // It concerns a client.
            Handler::Connection(_) | Handler::Container => Ok(()),
            Handler::Keyspace(_) if self.lanes.takes(words) && spec.leads(words).is_none() => match spec.keys.only() {
                Some(key) => {
                    self.lanes.push(spec, self.db, words[key], words, &mut self.runner).map_err(|_| Gone::Broken)
                }
                None => self.run_here(spec, words),
            },
            Handler::Keyspace(_) | Handler::Global(_) | Handler::Script(_) => self.run_here(spec, words),
        }
    }

    /// Runs a command on this thread, after all that come before it.
    fn run_here(&mut self, spec: &'static CommandSpec, words: &[&[u8]]) -> Result<(), Gone> {
        self.lanes.settle(&mut self.runner).map_err(|_| Gone::Broken)?;
        self.runner.run(spec, self.db, words, None);
        Ok(())
    }

    fn select(&mut self, words: &[&[u8]]) -> Result<(), Gone> {
        match self.database(words) {
            Some(db) => self.db = db,
            None => self.fail(words, DB_RANGE.as_bytes())?,
        }
        Ok(())
    }

    /// Returns the database that SELECT chooses, if it exists.
    fn database(&self, words: &[&[u8]]) -> Option<u32> {
        let db = parse_i64(words.get(1)?).and_then(|db| u32::try_from(db).ok())?;
        (db < self.inner.keyspace.databases()).then_some(db)
    }

    /// Runs a transaction, after all that comes before it.
    fn exec(&mut self) -> Result<(), Gone> {
        let Some((queue, db)) = self.multi.take() else { return Ok(()) };
        let mut commands: Vec<(Numbered, SmallVec<[&[u8]; 16]>)> = Vec::with_capacity(queue.commands.len());
        let mut from = 0;
        for &(row, end, _) in &queue.commands {
            let words = queue.words(std::mem::replace(&mut from, end)..end);
            match row.spec.handler {
                Handler::Connection(Detached::Selects) => commands.push((row, words)),
                Handler::Connection(_) | Handler::Container => {}
                _ => commands.push((row, words)),
            }
        }
        self.db = db;
        let effects = commands.iter().filter(|(row, _)| !row.spec.selects()).count();
        if effects > 1 {
            self.lanes.settle(&mut self.runner).map_err(|_| Gone::Broken)?;
            self.db = run_for_master(self.inner, &commands, db, &mut self.runner, &self.peer);
        } else {
            for (row, words) in &commands {
                self.begin(*row, words)?;
            }
        }
        drop(commands);
        self.spare = queue.cleared();
        Ok(())
    }

    /// Waits until all commands so far have run, and counts and passes on their part of the stream.
    pub(super) fn settle(&mut self) -> Result<(), Gone> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.settle_in(&mut buffer);
        self.buffer = buffer;
        result
    }

    fn settle_in(&mut self, buffer: &mut Vec<u8>) -> Result<(), Gone> {
        self.lanes.settle(&mut self.runner).map_err(|_| Gone::Broken)?;
        self.tell();
        let whole = self.begun;
        if whole > 0 {
            let replication = &self.inner.replication;
            replication.relay(&buffer[..whole]);
            self.link.set_stream_db(self.multi.as_ref().map_or(self.db, |(_, before)| *before));
            if self.inner.record.is_on() {
                // The last one is always known.
                self.recorded.truncate(RECORDED_MAX - 1);
                self.recorded.push_back((replication.offset(), self.inner.record.last()));
            }
        }
        // Of a transaction that is not whole nothing has run.
        self.border = None;
        (self.begun, self.read) = (0, self.read - whole);
        if whole == buffer.len() && buffer.capacity() > KEPT_BYTES {
            *buffer = Vec::new();
        } else if whole > 0 {
            buffer.drain(..whole);
        }
        self.link.set_ahead(buffer.len());
        Ok(())
    }

    /// Logs errors of commands.
    fn tell(&mut self) {
        self.counts.give(&self.inner.scripts.counts, &self.inner.errors);
        let told = std::mem::take(&mut self.runner.told);
        for line in told.lines.iter().take(ERRORS_MAX.saturating_sub(self.errors_logged) as usize) {
            (self.log)(WARNING, line);
        }
        self.errors_logged += told.errors;
    }

    /// Tells the master the position up to which the stream is settled, and up to which it is on the disk.
    fn ack(&mut self, conn: &mut Conn<'_>) -> Result<(), Gone> {
        self.acked = Instant::now();
        let offset = self.inner.replication.offset().to_string();
        while let Some((end, number)) = self.recorded.front()
            && self.inner.appender.durable_number() >= *number
        {
            self.durable = Some(*end);
            self.recorded.pop_front();
        }
        match self.durable.filter(|_| self.inner.appender.is_open()) {
            Some(durable) => {
                conn.command(&[b"REPLCONF", b"ACK", offset.as_bytes(), b"FACK", durable.to_string().as_bytes()])
            }
            None => conn.command(&[b"REPLCONF", b"ACK", offset.as_bytes()]),
        }
    }
}

/// Runs untrusted bytes as a stream, in pieces of different sizes. Must neither panic nor hang, and what is counted must not
/// depend on the pieces.
pub fn fuzz_stream(data: &[u8]) {
    let counted = |bytes: usize| {
        let store = crate::Store::new(crate::StoreOptions { stripes: 4, ..crate::StoreOptions::default() });
        let link = Link::default();
        let mut stream = Stream::new(&store.0, &link, 0, &|_, _| {});
        let mut ended = false;
        for piece in data.chunks(bytes.max(1)) {
            stream.buffer.extend_from_slice(piece);
            ended = stream.commands(&mut |_| Ok(())).is_err();
            if ended {
                break;
            }
        }
        stream.settle().expect("no thread fails");
        (store.0.replication.offset(), link.stream_db(), store.keys(), ended)
    };
    assert_eq!(counted(usize::MAX), counted(7));
}

#[cfg(test)]
mod tests {
    use sluicegate_data::random::{damage, numbers};
    use sluicegate_testkit::encode;

    use super::*;

    #[test]
    fn fuzz_stream_holds() {
        let mut next = numbers(31);
        let stream = [
            encode(&["SELECT", "1"]),
            encode(&["SET", "k", "value"]),
            b"\n".to_vec(),
            encode(&["PING", "#SG:STICK k"]),
            encode(&["MULTI"]),
            encode(&["RPUSH", "l", "a", "b"]),
            encode(&["SELECT", "2"]),
            encode(&["MSET", "a", "1", "b", "2"]),
            encode(&["EXEC"]),
            b"DEL a\r\n".to_vec(),
            encode(&["REPLCONF", "GETACK", "*"]),
        ];
        let stream = stream.concat();
        for round in 0..200 {
            let mut data = stream.repeat(1 + round % 2);
            damage(&mut data, next(4), &mut next);
            data.truncate(next(data.len() + 1).max(data.len() / 3));
            fuzz_stream(&data);
        }
    }
}
