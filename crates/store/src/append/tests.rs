//! Stores that append to a file, and stores that are made of it.

mod images;

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluicegate_testkit::PATIENCE;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyBuilder;

use super::*;
use crate::aof::read::{AofReader, Event};
use crate::commands::gated::{self, Random};
use crate::files::Directory;
use crate::files::simulated::{Disk, Plan, on_disks};
use crate::replay::ReplayOptions;
use crate::replay::tests::{Contents, ask, check_same, contents};
use crate::save::SaveEnd;
use crate::section::Section;
use crate::thread::block_on;
use crate::{Clock, LoadOptions, ManualClock, Mode, StoreOptions};

const NOW_MS: i64 = 1_700_000_000_000;

/// Commands whose effect depends on time, chance, or other keys, or that only this store has.
const SPECIAL: &[&str] = &[
    "SET string v EX 1",
    "SET number 5 PX 900 STICK",
    "SET string w KEEPTTL",
    "SET number 10 GET",
    "SETEX new 2 v",
    "GETEX string EX 3",
    "GETEX string PERSIST",
    "GETDEL new",
    "GETSET new x",
    "INCRBYFLOAT number 1.5",
    "HINCRBYFLOAT hash b 0.25",
    "EXPIRE hash 1",
    "PEXPIRE zset 700",
    "EXPIRE list -1",
    "PERSIST hash",
    "SPOP set 2",
    "SPOP ints",
    "SADD set a b c d e f g",
    "SADD ints 1 2 3 4 5",
    "SADDEX set 1 a h",
    "SADDEX set KEEPTTL 2 b i",
    "FIELDEXPIRE set 1 c d",
    "HPEXPIRE hash 500 FIELDS 2 a b",
    "HPERSIST hash FIELDS 1 a",
    "HSETEX hash EX 1 FIELDS 2 a 1 d 2",
    "HSETEX hash KEEPTTL FIELDS 1 a 5",
    "HGETEX hash PX 300 FIELDS 1 b",
    "HGETDEL hash FIELDS 1 d",
    "HINCRBY hash a 2",
    "HSET hash a 1 b 2 c 3",
    "SUNIONSTORE new set ints",
    "SINTERSTORE new set set",
    "ZUNIONSTORE new 2 zset set",
    "SORT set ALPHA STORE new",
    "COPY set new REPLACE",
    "COPY hash new DB 2 REPLACE",
    "MOVE string 1",
    "RENAME set new",
    "SMOVE new set a",
    "LMPOP 2 new list LEFT COUNT 2",
    "ZMPOP 2 new zset MAX COUNT 2",
    "ZADD zset 1 a 2 b 3 c",
    "RPUSH list a b c 1 2",
    "LMOVE list new LEFT RIGHT",
    "CL.THROTTLE number 5 10 60",
    "LIMIT.TAKE new gcra 10 1000000 5 1",
    "LIMIT.TAKE string sliding 10 1000000 5 1",
    "LIMIT.LEASE zset 9 700 id",
    "STICK list hash",
    "UNSTICK list",
    "PFADD new a b c",
    "XADD stream MAXLEN ~ 3 * f v",
    "XADD stream MAXLEN = 4 * f v",
    "XTRIM stream MAXLEN ~ 2",
    "XADD stream NOMKSTREAM * f v g w",
    "XREADGROUP GROUP a b COUNT 2 STREAMS stream >",
    "XREADGROUP GROUP a c COUNT 1 NOACK STREAMS stream >",
    "XREADGROUP GROUP a b STREAMS stream 0",
    "XAUTOCLAIM stream a d 0 0 COUNT 3",
    "XCLAIM stream a e 0 1-1 2-1 FORCE",
    "XCLAIM stream a e 0 1-1 LASTID 9-9",
    "XGROUP CREATE stream z $ MKSTREAM",
    "XGROUP CREATE stream a 0 MKSTREAM",
    "XACK stream a 1-1 2-1",
    "XDEL stream 1-1",
    "EVAL redis.call('incr','number')redis.call('rpush','list','s')redis.call('expire','list',2)return(redis.call('spop','set')) 0",
    "EVAL redis.call('del',KEYS[1])redis.call('sadd',KEYS[1],'q')redis.call('sunionstore','new',KEYS[1],'ints')redis.call('flushdb') 1 set",
    "EVAL redis.call('set','string','1','px','50')redis.call('append','string','2')error('over') 1 string",
    "FUNCTION LOAD REPLACE #!lua\u{20}name=lib\nserver.register_function('f',function(k,a)return(redis.call('incr',k[1]))end)",
    "FCALL f 1 number",
    "FUNCTION DELETE lib",
    "FLUSHDB",
    "SWAPDB 0 1",
    "FLUSHALL",
];

fn store(clock: &ManualClock) -> Store {
    Store::new(StoreOptions { stripes: 8, clock: Clock::Manual(clock.clone()), ..StoreOptions::default() })
}

/// Runs a command and waits for its end, if it has one. Nobody else serves it.
fn run(store: &Store, db: u32, words: &[&[u8]]) -> Option<Reply> {
    match store.start(db, words) {
        Started::Done(reply) => Some(reply),
        Started::Pending(mut pending) => {
            let begun = Instant::now();
            let waker = crate::thread::waker();
            loop {
                match pending.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                    Poll::Ready(reply) => return Some(reply),
                    Poll::Pending if begun.elapsed() > PATIENCE => {
                        let (job, stats) = (store.0.saver.job().map(|job| job.kind), store.stats());
                        panic!("{} waits, beside {job:?}: {stats:?}", words.join(&b' ').escape_ascii());
                    }
                    Poll::Pending => std::thread::park_timeout(Duration::from_secs(1)),
                }
            }
        }
    }
}

fn words(line: &str) -> Vec<&[u8]> {
    // Blanks within a library's first line.
    line.split(' ').map(str::as_bytes).collect()
}

/// Makes a store of the files in a directory.
fn reopened(dir: &dyn Files, clock: &ManualClock, accepts_cut: bool) -> Result<(Store, Parts, u64), String> {
    let store = store(clock);
    let (parts, found) = store.find_append_only(dir).map_err(|fault| fault.to_string())?;
    let mut whole = 0;
    if found != Found::Nothing {
        let load = store.begin_load(None).expect("no other load");
        let options = ReplayOptions { accepts_cut, ..ReplayOptions::default() };
        whole = load.replay(&parts, options).map_err(|fault| fault.to_string())?.last_bytes;
    }
    Ok((store, parts, whole))
}

fn rewrite(store: &Store) {
    assert_eq!(store.0.begin_rewrite(), Rewriting::Begun);
    wait_for_rewrite(store);
}

fn wait_for_rewrite(store: &Store) {
    if let Some(job) = store.0.saver.job() {
        job.wait_for_end();
    }
}

fn begin(dir: &dyn Files, clock: &ManualClock, fsync: Fsync) -> Store {
    let (store, parts, whole) = reopened(dir, clock, true).expect("right files");
    store.set_appending(Appending { fsync, ..Appending::default() });
    store.append_to(parts, whole).expect("no fault");
    store
}

/// Generated commands of all rows and special ones, with time that passes, rewrites and restarts: what the files make of a
/// store is what it was.
#[test]
fn what_is_replayed_is_what_was_there() {
    let rows = gated::rows();
    for seed in 0..60 {
        let mut random = Random(seed);
        let clock = ManualClock::new(NOW_MS);
        let disk = Disk::new(seed, Plan::default());
        let mut store = begin(&disk, &clock, Fsync::EverySecond);
        gated::prepare(&store);
        let mut done: VecDeque<String> = VecDeque::new();
        for _ in 0..6 {
            for _ in 0..60 {
                clock.advance(random.below(60) as i64);
                let db = if random.below(8) == 0 { random.below(3) as u32 } else { 0 };
                let line = match random.below(3) {
                    0 => gated::words_of(&rows[random.below(rows.len())], &mut random).join(" "),
                    // Commands that empty databases, which come last, are rare.
                    _ => {
                        let rare = 3 * usize::from(random.below(8) > 0);
                        SPECIAL[random.below(SPECIAL.len() - rare)].to_owned()
                    }
                };
                let reply = run(&store, db, &words(&line));
                done.push_back(format!("{} {db}: {line} -> {reply:?}", store.0.clock.now_ms()));
                if random.below(40) == 0 {
                    store.tick();
                }
                if random.below(90) == 0 {
                    rewrite(&store);
                    done.push_back("rewrite".into());
                }
                done.drain(..done.len().saturating_sub(400));
            }
            store.end_appending().expect("no fault");
            let (again, parts, whole) =
                reopened(&disk, &clock, false).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
            let (found, expected) = (contents(&again), contents(&store));
            if found != expected {
                done.iter().for_each(|line| eprintln!("{line}"));
                eprintln!("seed {seed}");
                check_same(&found, &expected);
            }
            assert_eq!(libraries(&again), libraries(&store));
            again.append_to(parts, whole).expect("no fault");
            store = again;
        }
    }
}

fn libraries(store: &Store) -> Vec<Box<[u8]>> {
    store.0.scripts.libraries.all().iter().map(|library| library.source.clone()).collect()
}

/// Threads change the same keys, by commands whose order shows, and by scripts, while the file is rewritten.
#[test]
fn the_order_of_changes_is_that_of_the_file() {
    let disk = Disk::new(7, Plan::default());
    let clock = ManualClock::new(NOW_MS);
    let store = begin(&disk, &clock, Fsync::No);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6_usize)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let mut random = Random(thread as u64);
                    // Some changes come beside a rewrite, however late the thread of rewrites has its turn.
                    let is_over = |number| number >= 1_500 && store.0.appender.state.lock().rewrites > 0;
                    for number in (0..).take_while(|number| !is_over(*number)) {
                        let key = format!("k{}", random.below(4));
                        let other = format!("k{}", random.below(4));
                        let value = format!("{thread}:{number};");
                        let line = match random.below(8) {
                            0..3 => format!("APPEND {key} {value}"),
                            3 => format!("RENAME {key} {other}"),
                            4 => format!("COPY {key} {other} REPLACE"),
                            5 => format!("GETDEL {key}"),
                            6 => format!("SET {key} {value}"),
                            _ => format!(
                                "EVAL redis.call('append',KEYS[1],'{value}')redis.call('append','{other}','s{value}') 1 {key}"
                            ),
                        };
                        assert!(run(store, 0, &words(&line)).is_some());
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                store.0.begin_rewrite();
                wait_for_rewrite(&store);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        is_over.store(true, Ordering::SeqCst);
    });
    store.end_appending().expect("no fault");
    let (again, ..) = reopened(&disk, &clock, false).expect("right files");
    check_same(&contents(&again), &contents(&store));
}

/// A store on a disk that fails: units of two keys that have the same number, rewrites and saves.
struct Failing {
    store: Store,
    fsync: Fsync,
    /// The last unit that was sent, and the last one that was reported as durable.
    sent: u64,
    acknowledged: u64,
    /// The units that may not be durable yet, with the numbers that they had in the record.
    pending: VecDeque<(u64, u64)>,
    /// The last unit before the last save that succeeded.
    saved: u64,
}

impl Failing {
    /// Starts a store on what the disk has. [`None`] if it could not write.
    fn start(disk: &Disk, clock: &ManualClock, fsync: Fsync) -> Option<Failing> {
        let (store, parts, whole) = reopened(disk, clock, true).ok()?;
        store.set_files(Some(Arc::new(disk.clone())));
        store.set_appending(Appending { fsync, ..Appending::default() });
        store.append_to(parts, whole).ok()?;
        let (sent, acknowledged, saved, pending) = Default::default();
        Some(Failing { store, fsync, sent, acknowledged, pending, saved })
    }

    /// Sends a unit. Returns false if it was refused because the disk has failed.
    fn send(&mut self) -> bool {
        let number = self.sent + 1;
        // Both or none; some are larger than a page.
        let filler = "x".repeat(number as usize % 5 * 40);
        let line = format!("EVAL redis.call('set','a','{number}')redis.call('rpush','l','{number}:{filler}') 2 a l");
        if run(&self.store, 0, &words(&line)) != Some(Reply::Null) {
            return false;
        }
        self.sent = number;
        self.pending.push_back((self.store.0.record.last(), number));
        true
    }

    /// Waits until the last unit is durable, as clients do with `always`. Returns false if it may not be.
    fn wait(&mut self) -> bool {
        let Some((number, sent)) = self.pending.back().copied() else { return true };
        let appender = self.store.0.appender.clone();
        let mut durable = std::pin::pin!(appender.durable(number));
        let is_durable = block_on(|context| durable.as_mut().poll(context));
        if is_durable {
            self.acknowledged = sent;
        }
        is_durable
    }

    /// Looks at what is durable.
    fn look(&mut self) {
        let durable = self.store.0.appender.durable_number();
        while let Some((number, sent)) = self.pending.front().copied()
            && number <= durable
        {
            self.acknowledged = self.acknowledged.max(sent);
            self.pending.pop_front();
        }
    }

    /// Begins a rewrite or a save, waits for its cut, and sends more.
    fn save_beside(&mut self, is_rewrite: bool, count: u64) {
        if is_rewrite {
            self.store.0.begin_rewrite();
            for _ in 0..count {
                self.send();
            }
            return wait_for_rewrite(&self.store);
        }
        let Ok(job) = self.store.save(true) else { return };
        let mut cut = std::pin::pin!(job.cut());
        block_on(|context| cut.as_mut().poll(context));
        let before = self.sent;
        for _ in 0..count {
            self.send();
        }
        if job.wait_for_end() == SaveEnd::Saved {
            self.saved = before;
        }
    }

    /// Lets the store do what its tick does, until it is as before the disk failed, or the machine stops.
    fn recover(&mut self, disk: &Disk, context: &str) {
        let begun = Instant::now();
        while !disk.is_off() {
            self.store.0.tick_rewrites();
            wait_for_rewrite(&self.store);
            self.store.0.record.wake_taker();
            if self.store.0.loading.refuses_appending().is_none()
                && self.send()
                && (self.fsync == Fsync::No || self.wait())
            {
                return;
            }
            let fault = self.store.0.loading.refuses_appending();
            let state = self.store.0.appender.state.lock();
            assert!(
                begun.elapsed() < PATIENCE,
                "{context}: it does not recover: {fault:?}, {:?}, anew: {}",
                state.error,
                state.must_begin_anew
            );
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Checks what a crash has left in a store: units up to one of them, each whole. If pages that were not synced may be
/// missing between others, only those up to `acknowledged` have to be as they were. Returns how many there are.
fn units_of(store: &Store, acknowledged: Option<u64>, context: &str) -> u64 {
    let last = match ask(store, 0, &[b"GET", b"a"]) {
        Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().unwrap_or(0),
        _ => 0_u64,
    };
    let Reply::Array(found) = ask(store, 0, &[b"LRANGE", b"l", b"0", b"-1"]) else { panic!("a list") };
    let checked = acknowledged.unwrap_or(last);
    let is_right = (1..=checked).all(|number| {
        let filler = "x".repeat(number as usize % 5 * 40);
        found.get(number as usize - 1) == Some(&Reply::Bulk(format!("{number}:{filler}").into()))
    });
    assert!(is_right, "{context}: not all of {checked} units are among the {} that are there", found.len());
    assert!(acknowledged.is_some() || found.len() as u64 == last, "{context}: {last} and {}", found.len());
    last.max(checked)
}

/// The units that were durable when the machine stopped, or after an error, are there, and nothing of others in part. So
/// it is with the file of the last save that succeeded, or the one after it. Returns whether the machine was on to the
/// end; then the store has recovered from all errors.
fn check_crash(seed: u64, plan: &Plan, fsync: Fsync) -> bool {
    let disk = Disk::new(seed, plan.clone());
    let clock = ManualClock::new(NOW_MS);
    let mut random = Random(seed);
    let context = format!("seed {seed}, {fsync:?}, {plan:?}");
    let (mut acknowledged, mut sent, mut saved) = (0, 0, 0);
    if let Some(mut failing) = (0..3).find_map(|_| Failing::start(&disk, &clock, fsync)) {
        let mut is_rewrite = seed.is_multiple_of(2);
        for step in 0..8 {
            let several = random.below(3) as u64;
            if step % 3 == 1 {
                failing.save_beside(is_rewrite, several);
                is_rewrite = !is_rewrite;
            }
            // Some are sent while others are written and synced.
            for _ in 0..=several {
                failing.send();
            }
            if fsync == Fsync::Always && random.below(2) == 0 {
                failing.wait();
            }
            failing.look();
            if failing.store.0.loading.refuses_appending().is_some() {
                failing.store.0.tick_rewrites();
            }
        }
        if !disk.is_off() {
            disk.plan(|plan| (plan.error_at, plan.space) = (None, None));
            failing.recover(&disk, &context);
        }
        wait_for_rewrite(&failing.store);
        (acknowledged, sent, saved) = (failing.acknowledged, failing.sent, failing.saved);
    }
    let is_on = !disk.is_off();
    for crash in 0..2 {
        let after = disk.crash(seed * 2 + crash);
        let context = format!("{context}, crash {crash}");
        let checked = (!plan.keeps_order).then_some(acknowledged);
        let last = match reopened(&after, &clock, true) {
            Ok((again, ..)) => units_of(&again, checked, &context),
            Err(fault) => {
                // As in Redis: what was not synced is not a prefix here, and somebody has to cut it off.
                assert!(!plan.keeps_order, "{context}: {fault}");
                units_of(&cut_and_reopened(&after, &clock, fault, &context), checked, &context)
            }
        };
        assert!((acknowledged..=sent).contains(&last), "{context}: {last}, {acknowledged} of {sent}");
        let found = match after.open(b"dump.rdb") {
            Ok(file) => {
                let of_file = store(&clock);
                of_file.load(file, None, LoadOptions::default()).unwrap_or_else(|fault| panic!("{context}: {fault}"));
                units_of(&of_file, None, &context)
            }
            Err(_) => 0,
        };
        assert!((saved..=sent).contains(&found), "{context}: the save has {found}, {saved} of {sent}");
    }
    is_on
}

/// Cuts the last file before what the error says is wrong, until it is read.
fn cut_and_reopened(disk: &Disk, clock: &ManualClock, mut fault: String, context: &str) -> Store {
    loop {
        let offset = fault.rsplit_once("(offset ").and_then(|(_, offset)| offset.trim_end_matches(')').parse().ok());
        let offset: u64 = offset.unwrap_or_else(|| panic!("{context}: {fault}"));
        let appending = Appending::default();
        let (parts, _) = Parts::open(disk, &appending.directory, &appending.name).expect("right files");
        let last = parts.manifest().increments.last().expect("an increment");
        let mut reader = AofReader::new(parts.directory().open(&last.name).expect("a file"));
        let mut whole = 0;
        while let Event::Command(command) = reader.next().expect("it is read") {
            // The offset of a wrong command is that of its end; where there is none, that of the first wrong byte.
            if command.end > offset || command.end == offset && !fault.starts_with("Bad file format") {
                break;
            }
            whole = command.end;
        }
        let cut = parts.directory().append(&last.name).and_then(|mut file| file.truncate(whole));
        cut.expect("no fault");
        drop((reader, parts));
        match reopened(disk, clock, true) {
            Ok((store, ..)) => return store,
            Err(again) => fault = again,
        }
    }
}

#[test]
fn what_was_acknowledged_is_there_after_every_crash() {
    on_disks(150, 4, |seed| {
        let mut disks = 0;
        let base = Plan {
            page_bytes: [64, 4096][seed as usize % 2],
            keeps_order: seed % 3 < 2,
            writes_short: seed % 4 < 2,
            sync_takes: Duration::from_micros([0, 300][seed as usize / 2 % 2]),
            ..Plan::default()
        };
        let fsync = [Fsync::Always, Fsync::EverySecond, Fsync::Always, Fsync::No][seed as usize % 4];
        assert!(check_crash(seed, &base, fsync));
        // Some of the places; other seeds have the others.
        for at in (seed % 8..).step_by(8) {
            let error = [libc::EIO, libc::ENOSPC][at as usize / 8 % 2];
            check_crash(seed, &Plan { error_at: Some((at, error)), ..base.clone() }, fsync);
            check_crash(seed, &Plan { space: Some(60 * (at + 1)), ..base.clone() }, fsync);
            disks += 3;
            if check_crash(seed, &Plan { crash_at: Some(at), ..base.clone() }, fsync) {
                break;
            }
        }
        disks
    });
}

/// A disk that fails refuses the first change of a script or transaction, and not the second: half of it would be worse.
#[test]
fn what_has_begun_to_write_writes_to_its_end() {
    let clock = ManualClock::new(NOW_MS);
    let store = store(&clock);
    let section = || Section::at_once(&store.0, store.0.ticket_id(), [(0, &b"k"[..], Mode::Exclusive)].into_iter());
    let execute = |section: &mut Section, line: &str| {
        let (words, mut reply) = (words(line), ReplyBuilder::new());
        let spec = store.0.rows.resolve(&words).expect("a command");
        section.try_execute(spec, 0, &words, &mut reply).expect("its key is held");
        reply.finish()
    };
    let refused = Reply::Error("MISCONF Errors writing to the AOF file: x".into());
    let mut script = section().expect("the key is free");
    assert_eq!(execute(&mut script, "SET k 1"), Reply::Simple("OK".into()));
    store.0.loading.refuse_appending(Some("x"));
    assert_eq!(execute(&mut script, "INCR k"), Reply::Integer(2));
    script.finish();
    let mut later = section().expect("the key is free");
    assert_eq!(execute(&mut later, "GET k"), Reply::Bulk(b"2".to_vec()));
    assert_eq!(execute(&mut later, "INCR k"), refused);
    store.0.loading.refuse_appending(None);
    assert_eq!(execute(&mut later, "INCR k"), Reply::Integer(3));
    later.finish();
    // EXEC has looked before it began.
    store.0.loading.refuse_appending(Some("x"));
    let mut transaction = section().expect("the key is free");
    transaction.begin_to_write();
    assert_eq!(execute(&mut transaction, "INCR k"), Reply::Integer(4));
    transaction.finish();
}

/// An error of the disk is logged once, and its end, as by Redis.
#[test]
fn errors_of_the_disk_are_logged() {
    let mut failures = 0;
    for at in 0.. {
        let disk = Disk::new(at, Plan { error_at: Some((at, libc::ENOSPC)), keeps_order: true, ..Plan::default() });
        let clock = ManualClock::new(NOW_MS);
        let Ok((store, parts, whole)) = reopened(&disk, &clock, true) else { continue };
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_store = lines.clone();
        store.set_save_log(move |level, text| of_store.lock().push(format!("{level} {text}")));
        store.set_appending(Appending { fsync: Fsync::Always, ..Appending::default() });
        if store.append_to(parts, whole).is_err() {
            continue;
        }
        assert!(run(&store, 0, &words("SET a b")).is_some_and(|reply| !matches!(reply, Reply::Error(..))));
        let number = store.0.record.last();
        let is_durable = || {
            let mut durable = std::pin::pin!(store.0.appender.durable(number));
            block_on(|context| durable.as_mut().poll(context))
        };
        if is_durable() {
            if failures > 0 {
                // Neither the write nor the sync fails any more.
                break;
            }
            continue;
        }
        failures += 1;
        while !is_durable() {
            store.0.tick_rewrites();
            wait_for_rewrite(&store);
            store.0.record.wake_taker();
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_told = |line: &&String| line.contains("AOF file:") || line.contains("looks solved");
        let told: Vec<String> = lines.lock().iter().filter(is_told).cloned().collect();
        let expected = [
            "3 Error writing to the AOF file: No space left on device",
            "2 AOF write error looks solved, Redis can write again.",
        ];
        assert_eq!(told, expected, "{at}");
    }
    assert!(failures > 0);
}

/// A file is closed whose first rewrite has begun and not made its cut: nothing is recorded any more, or else units that
/// nobody takes would keep those of the next file from being written.
#[test]
fn a_file_that_is_closed_at_once_leaves_nothing_behind() {
    let disk = Disk::new(1, Plan::default());
    let clock = ManualClock::new(NOW_MS);
    let store = store(&clock);
    let (go, going) = std::sync::mpsc::channel::<()>();
    let (go, going, begun) = (Mutex::new(go), Mutex::new(going), Arc::new(AtomicBool::new(false)));
    let seen = begun.clone();
    // The first rewrite stops at its first line until the file is being closed.
    store.set_save_log(move |_, text| {
        if text.starts_with("Background append only file rewriting started") && !seen.swap(true, Ordering::SeqCst) {
            let _ = going.lock().recv();
        } else if text.starts_with("Killing running AOF rewrite child") {
            let _ = go.lock().send(());
        }
    });
    store.begin_to_append(&disk).expect("no fault");
    sluicegate_testkit::wait_for("the rewrite", || begun.load(Ordering::SeqCst).then_some(()));
    store.end_appending().expect("no fault");
    assert!(!store.0.record.is_on());
    run(&store, 0, &words("SET a 1"));
    assert_eq!(store.0.record.waiting(), 0);
    // Another one has everything.
    store.begin_to_append(&disk).expect("no fault");
    wait_for_rewrite(&store);
    run(&store, 0, &words("SET b 2"));
    let (appender, number) = (store.0.appender.clone(), store.0.record.last());
    let mut durable = std::pin::pin!(appender.durable(number));
    assert!(block_on(|context| durable.as_mut().poll(context)));
    store.end_appending().expect("no fault");
    let (again, ..) = reopened(&disk, &clock, false).expect("right files");
    check_same(&contents(&again), &contents(&store));
}

/// redis-server and Valkey make the same of the files.
#[test]
fn redis_loads_what_was_written() {
    let path = tempfile::tempdir().expect("a directory");
    let dir = Directory::new(path.path());
    let clock = ManualClock::new(NOW_MS + 400_000_000_000);
    let store = begin(&dir, &clock, Fsync::EverySecond);
    gated::prepare(&store);
    let skipped = ["hpexpire", "hsetex", "fieldexpire", "saddex", "hgetex", "hpersist"];
    for (index, line) in SPECIAL.iter().chain(SPECIAL).enumerate() {
        let is_timed = skipped.iter().any(|name| line.to_ascii_lowercase().starts_with(name));
        if !is_timed && !line.starts_with("FLUSH") && !line.contains("flushdb") {
            run(&store, 0, &words(&line.replace(" 1", " 100000")));
        }
        if index == 40 {
            rewrite(&store);
        }
    }
    store.end_appending().expect("no fault");
    let expected: Contents = contents(&store).into_iter().collect();
    let arguments = ["--dir", path.path().to_str().expect("UTF-8"), "--appendonly", "yes"];
    let server = sluicegate_testkit::RedisServer::start(&arguments);
    let mut client = sluicegate_testkit::Client::connect(&server.address());
    let mut sizes = Vec::new();
    for db in 0..3_u32 {
        client.ask(&["SELECT", &db.to_string()]);
        sizes.push(client.ask(&["DBSIZE"]));
    }
    let own = |db| format!(":{}\r\n", expected.keys().filter(|(of, _)| *of == db).count());
    assert_eq!(sizes, [own(0), own(1), own(2)], "{}", server.program.output());
}
