//! The append-only file as a whole: on a disk that fails, where what was reported as durable is there after every crash, in
//! order, as a prefix of what was appended, with transactions whole or not at all; and in turns with redis-server.

use std::io;

use sluicegate_data::random::numbers;
use sluicegate_testkit::{Client, RedisServer};

use super::parts::{BaseFormat, Found, Parts, PartsFault};
use super::read::{AofReader, EndKind, Event};
use super::write::{Effect, Log, Written, encode};
use crate::files::simulated::{Disk, Plan, on_disks};
use crate::files::{Directory, Files, Replacement};

const DIRECTORY: &[u8] = b"appendonlydir";
/// A name that is in quotes in manifests.
const NAME: &[u8] = b"append only.aof";

/// A command of the test: its number, in some database.
fn command(number: u64) -> (u32, Vec<u8>) {
    let (mut out, text) = (Vec::new(), number.to_string());
    let value = text.repeat(1 + number as usize % 7);
    encode([&b"SET"[..], text.as_bytes(), value.as_bytes()].into_iter(), &mut out);
    ((number / 3 % 3) as u32, out)
}

/// Commands that have their effects at once: these and those up to here.
fn unit_end(number: u64) -> u64 {
    if number.is_multiple_of(4) { number + 3 } else { number + 1 }
}

fn append(log: &mut Written, from: u64) -> u64 {
    let commands: Vec<_> = (from..unit_end(from)).map(command).collect();
    log.append(commands.iter().map(|(database, command)| Effect {
        database: *database,
        is_passing: false,
        command,
        start: 0,
        long: &[],
    }));
    unit_end(from)
}

/// A process: appends numbered commands.
struct Process {
    parts: Parts,
    log: Written,
    /// The number of commands so far.
    count: u64,
    /// How many there were at which positions.
    ends: Vec<(u64, u64)>,
}

/// Reads what is there, on a disk that keeps the order of writes or not. Returns the number of commands, and the length of the last file that is whole.
fn load(parts: &Parts, keeps_order: bool) -> io::Result<(u64, u64)> {
    let (mut count, mut whole) = (0, 0);
    let manifest = parts.manifest();
    for part in manifest.base.iter().chain(&manifest.increments) {
        let mut reader = AofReader::new(parts.directory().open(&part.name)?);
        let (mut database, mut pending, mut is_in_transaction) = (None, 0, false);
        let end = loop {
            match reader.next()? {
                Event::End(end) => break end,
                Event::Annotation(_) => {}
                Event::Command(read) => {
                    let words: Vec<&[u8]> = read.words().collect();
                    match words[0] {
                        b"SELECT" => database = String::from_utf8_lossy(words[1]).parse().ok(),
                        b"MULTI" => is_in_transaction = true,
                        b"EXEC" => is_in_transaction = false,
                        _ => {
                            let (expected, bytes) = command(count + pending);
                            let mut found = Vec::new();
                            encode(words.into_iter(), &mut found);
                            if found != bytes || database != Some(expected) {
                                // Pages that were not synced may be missing between others.
                                assert!(!keeps_order, "{read:?} in {database:?}");
                                return Ok((count, whole));
                            }
                            pending += 1;
                        }
                    }
                    if !is_in_transaction {
                        (count, pending, whole) = (count + pending, 0, read.end);
                    }
                }
            }
        };
        whole = end.whole;
        assert!(!keeps_order || end.kind == EndKind::Whole || end.kind.is_cut(), "{end:?}");
        if end.kind != EndKind::Whole && Some(part) != manifest.increments.last() {
            return Err(io::Error::other(format!("the truncated file is not the last file: {end:?}")));
        }
    }
    Ok((count, whole))
}

impl Process {
    fn start(disk: &dyn Files, keeps_order: bool) -> io::Result<Process> {
        let failed = |fault: PartsFault| io::Error::other(fault.to_string());
        let (mut parts, found) = Parts::open(disk, DIRECTORY, NAME).map_err(failed)?;
        let (count, whole) = load(&parts, keeps_order)?;
        let log = match parts.manifest().increments.last() {
            Some(last) => {
                let mut file = parts.directory().append(&last.name)?;
                file.truncate(whole)?;
                file.sync_data()?;
                Written::new(Log::new(file, whole, 0))
            }
            None => {
                assert_eq!(found, Found::Nothing);
                let (part, file) = parts.create_increment()?;
                write_base(&mut parts, 0, part.seq, |parts, base, seq| {
                    parts.replace_base(base, BaseFormat::Commands, seq, Some(part))
                })?;
                Written::new(Log::new(file, 0, 0))
            }
        };
        Ok(Process { parts, log, count, ends: vec![(0, count)] })
    }

    fn durable(&self) -> u64 {
        let durable = self.log.durable();
        self.ends.iter().rev().find(|(end, _)| *end <= durable).map_or(0, |(_, count)| *count)
    }

    fn append(&mut self) {
        self.count = append(&mut self.log, self.count);
        self.ends.push((self.log.appended(), self.count));
    }

    fn flush(&mut self) -> io::Result<()> {
        self.parts.settle()?;
        self.log.flush()
    }

    /// Group commit; after an error, the way back.
    fn commit(&mut self) -> io::Result<()> {
        if !self.log.is_sound() {
            return self.begin_anew();
        }
        self.flush()?;
        self.log.sync()
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let (part, file) = self.parts.create_increment()?;
        let mut log = Written::new(Log::unnamed(file, self.log.appended(), self.log.durable()));
        let (cut, before) = (self.count, self.ends.len());
        self.count = append(&mut log, self.count);
        self.ends.push((log.appended(), self.count));
        let result = write_base(&mut self.parts, cut, part.seq, |parts, base, seq| {
            log.flush()?;
            log.sync()?;
            parts.replace_base(base, BaseFormat::Commands, seq, Some(part))
        });
        if result.is_err() {
            // The old file goes on; what was appended to the new one goes there.
            self.count = cut;
            self.ends.truncate(before);
            return result;
        }
        log.set_named();
        self.log = log;
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        self.commit()?;
        assert_eq!(self.log.durable(), self.log.appended());
        let (part, file) = self.parts.create_increment()?;
        let (first_kept, cut) = (part.seq, self.count);
        self.parts.add_increment(part)?;
        self.log = Written::new(Log::new(file, 0, self.log.appended()));
        self.append();
        self.log.annotate(self.count);
        self.log.flush()?;
        write_base(&mut self.parts, cut, first_kept, |parts, base, seq| {
            parts.replace_base(base, BaseFormat::Commands, seq, None)
        })?;
        self.parts.remove_history()
    }

    fn step(&mut self, next: &mut impl FnMut(usize) -> usize) -> io::Result<()> {
        match next(10) {
            0..4 => self.append(),
            4..6 => self.flush()?,
            6..8 => self.commit()?,
            8 => self.rewrite()?,
            _ => self.begin_anew()?,
        }
        Ok(())
    }
}

/// Writes so many commands into a base file, and hands it over.
fn write_base(
    parts: &mut Parts,
    count: u64,
    first_kept: i64,
    replace: impl FnOnce(&mut Parts, Replacement<'_>, i64) -> io::Result<()>,
) -> io::Result<()> {
    let files = parts.directory().clone();
    let mut base = Replacement::new(&*files, b"temp-rewriteaof-bg-1.aof", Some(64))?;
    let (mut database, mut out) = (None, Vec::new());
    for number in 0..count {
        let (of_command, bytes) = command(number);
        if database.replace(of_command) != Some(of_command) {
            encode([&b"SELECT"[..], of_command.to_string().as_bytes()].into_iter(), &mut out);
        }
        out.extend(bytes);
    }
    for piece in out.chunks(50) {
        base.write(piece)?;
    }
    replace(parts, base, first_kept)
}

/// Lets a process run on a disk of these faults, then checks what crashes leave. Returns whether the machine was on to the
/// end.
fn check(seed: u64, plan: Plan) -> bool {
    let mut next = numbers(seed);
    let disk = Disk::new(seed, plan.clone());
    let mut durable = 0;
    if let Some(mut process) = (0..3).find_map(|_| Process::start(&disk, plan.keeps_order).ok()) {
        for _ in 0..15 {
            let _ = process.step(&mut next);
            assert!(process.durable() >= durable, "seed {seed}, {plan:?}");
            durable = process.durable();
        }
    }
    for crash in 0..3 {
        let after = disk.crash(seed * 3 + crash);
        let process =
            Process::start(&after, plan.keeps_order).unwrap_or_else(|error| panic!("seed {seed}, {plan:?}: {error}"));
        let found = process.count;
        assert!(found >= durable, "seed {seed}, {plan:?}, crash {crash}: {found} of {durable}");
        let mut boundary = 0;
        while boundary < found {
            boundary = unit_end(boundary);
        }
        assert_eq!(boundary, found, "seed {seed}, {plan:?}, crash {crash}: a transaction in part");
    }
    !disk.is_off()
}

#[test]
fn what_is_durable_is_there_after_every_crash_in_order() {
    on_disks(2_000, 1, |seed| {
        let mut disks = 0;
        let base = Plan {
            page_bytes: [32, 4096][seed as usize % 2],
            keeps_order: seed % 3 == 0,
            writes_short: seed % 4 < 2,
            ..Plan::default()
        };
        assert!(check(seed, base.clone()));
        for space in (100..1_200).step_by(100) {
            check(seed, Plan { space: Some(space), ..base.clone() });
            disks += 1;
        }
        for at in 0.. {
            let failing = Plan { error_at: Some((at, libc::EIO)), ..base.clone() };
            check(seed, failing.clone());
            check(seed, Plan { crash_at: Some(at + 1 + (seed + at) % 9), ..failing });
            disks += 3;
            if check(seed, Plan { crash_at: Some(at), ..base.clone() }) {
                break;
            }
        }
        disks
    });
}

/// redis-server loads what this store has written, and goes on with it, and the other way round.
#[test]
fn files_go_to_redis_and_back() {
    let path = tempfile::tempdir().expect("a directory");
    let dir = Directory::new(path.path());
    let mut process = Process::start(&dir, true).expect("a directory");
    (0..7).for_each(|_| process.append());
    process.rewrite().expect("no fault");
    (0..5).for_each(|_| process.append());
    process.commit().expect("no fault");
    let count = process.count;
    drop(process);
    let keys = |database: u32| (0..count).filter(|number| command(*number).0 == database).count();

    let arguments = ["--dir", path.path().to_str().expect("UTF-8"), "--appendonly", "yes", "--appendfilename"];
    let mut server = RedisServer::start(&[&arguments[..], &["append only.aof"]].concat());
    let mut client = Client::connect(&server.address());
    for database in 0..3 {
        client.ask(&["SELECT", &database.to_string()]);
        assert_eq!(client.ask(&["DBSIZE"]), format!(":{}\r\n", keys(database)), "{}", server.program.output());
    }
    assert!(!server.program.output().contains("runcating"), "{}", server.program.output());
    // The next numbers, as this test writes them.
    for number in count..count + 2 {
        let text = number.to_string();
        client.ask(&["SELECT", &command(number).0.to_string()]);
        client.ask(&["SET", &text, &text.repeat(1 + number as usize % 7)]);
    }
    server.program.signal(libc::SIGTERM);
    assert_eq!(server.program.wait(), 0);

    let process = Process::start(&dir, true).expect("no fault");
    assert_eq!(process.count, count + 2);
}
