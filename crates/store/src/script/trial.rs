//! Tests of scripts step by step, without threads: released resources wherever they end, and memory that runs out at
//! any allocation.

use std::ffi::c_void;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use sluicegate_script::ffi;

use super::call::Call;
use super::code::Code;
use super::command::script_of;
use super::run::{Job, Pending, Step};
use super::source::Flags;
use crate::catalogue::Start;
use crate::command::asked::ask;
use crate::hold::Mode;
use crate::owned::Finished;
use crate::owned::ReplyForm;
use crate::owned::Words;
use crate::park::{Parked, Waits, Work as _};
use crate::{Store, StoreOptions};

pub(crate) fn store() -> Store {
    Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() })
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns the reply of a command, whatever it waits for.
fn answered(store: &Store, words: &[&str]) -> String {
    ask(store, words).unwrap_or_else(reply_of)
}

fn reply_of(mut parked: Parked) -> String {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut parked).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(reply) => return String::from_utf8_lossy(&reply).into_owned(),
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Returns a script whose first slice is over.
pub(crate) fn job_of(store: &Store, words: &[&str]) -> Box<Job> {
    let Some(mut pending) = ask(store, words).err().and_then(|parked| Pending::of(parked).ok()) else {
        panic!("it ends in its first slice")
    };
    match &mut *pending {
        Pending::Here(job) => job.take().expect("nobody has polled it"),
        Pending::Away(_) | Pending::Over(_) => panic!("nobody has polled it"),
    }
}

/// Returns a call of this code without keys.
fn call_of(store: &Store, code: Code) -> Call {
    Call::new(&Start::of_store(&store.0), code, Flags::NONE, Flags::NONE, 0)
}

/// Code that takes too long for a worker to compile.
fn long_code() -> String {
    format!("local a {} return 1", "a = {1, 2, 3} ".repeat(100_000))
}

#[test]
fn one_that_is_ended_before_it_begins_gives_its_section_back() {
    let store = store();
    let section = {
        let wait = std::pin::pin!(store.section([(0, &b"k"[..], Mode::Exclusive)]));
        let Poll::Ready(Ok(section)) = wait.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the key is free")
        };
        section
    };
    let inner = &store.0;
    let script = script_of(inner, long_code().as_bytes(), false).unwrap_or_else(|text| panic!("{text}"));
    let call = call_of(&store, Code::Script(script));
    let control = call.control.clone();
    let Ok(mut job) = Job::within(inner, call, &[], || Arc::new(Words::new(&[])), ReplyForm::Value, section) else {
        panic!("nothing is wrong")
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(job.step(&mut context, false), Step::Forced), "it goes to another thread to be compiled");
    assert!(control.kill(false));
    let Step::Done(ended) = job.step(&mut context, true) else { panic!("it was ended") };
    let Finished::Value(reply) = ended.reply else { panic!("a value was asked for") };
    assert!(format!("{reply:?}").contains("killed by user"), "{reply:?}");
    // The transaction continues with the section.
    let section = ended.section.expect("it is not the script's");
    assert!(ask(&store, &["GET", "k"]).is_err(), "the key is held");
    drop((section, job));
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn a_killed_script_lets_its_waiters_go_on() {
    let store = store();
    let mut job = job_of(&store, &["EVAL", "while true do end", "1", "k"]);
    let behind = ask(&store, &["SET", "k", "behind"]).expect_err("the key is held");
    for control in store.0.scripts.running.all() {
        assert!(control.kill(false));
    }
    let Step::Done(ended) = job.step(&mut Context::from_waker(Waker::noop()), true) else { panic!("it was ended") };
    let Finished::Wire(reply) = ended.finish() else { panic!("bytes were asked for") };
    assert!(String::from_utf8_lossy(&reply).contains("killed by user"));
    assert_eq!(reply_of(behind), "+OK\r\n");
    let stats = store.stats();
    assert_eq!((stats.aborted, stats.aborted_commands, stats.tickets), (1, 0, 0));
    // A script that runs to its end does not count as aborted.
    assert_eq!(answered(&store, &["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"]), "$6\r\nbehind\r\n");
    assert_eq!(store.stats().aborted, 1);
}

#[test]
fn what_takes_long_to_begin_is_begun_elsewhere() {
    let store = store();
    let script = "redis.call('SET', KEYS[1], 'begun') return #ARGV[1]";
    let wide =
        format!("local a = ARGV[1] redis.call('SET', KEYS[1], 'begun') return #({})", vec!["a"; 40].join(" .. "));
    let large = "x".repeat(2 << 20);
    let many = [&["EVAL", "return #ARGV", "0"][..], &["a"; 5000]].concat();
    assert_eq!(reply_of(ask(&store, &many).expect_err("that is much to begin with")), ":5000\r\n");
    let held = store.section([(0, large.as_bytes(), Mode::Exclusive)]);
    let mut held = std::pin::pin!(held);
    let Poll::Ready(Ok(section)) = held.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the key is free")
    };
    let waits = ask(&store, &["EVAL", "return #KEYS[1]", "1", &large]).expect_err("its key is held");
    drop(section);
    assert_eq!(reply_of(waits), format!(":{}\r\n", large.len()));
    for (script, argument, result) in [(script, &*large, large.len()), (&wide, "abc", 120)] {
        let words = ["EVAL", script, "1", "k", argument];
        let Err(parked) = ask(&store, &words) else { panic!("it is begun on a thread that others wait for") };
        assert_eq!(ask(&store, &["DBSIZE"]).unwrap_or_default(), ":0\r\n");
        assert_eq!(reply_of(parked), format!(":{result}\r\n"));
        assert_eq!(ask(&store, &["GETDEL", "k"]).unwrap_or_default(), "$5\r\nbegun\r\n");
    }
}

/// Checks that a script that a worker has begun moves to another thread with the rest of its work, and its result
/// there.
fn check_leaves(store: &Store, words: &[&str], expected: &str) {
    let Some(mut pending) = ask(store, words).err().and_then(|parked| Pending::of(parked).ok()) else {
        panic!("{words:?} ends where it began")
    };
    let polled = pending.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(*pending, Pending::Away(_) | Pending::Over(_)), "{words:?} goes on where it began");
    let reply = match polled {
        Poll::Ready(Finished::Wire(reply)) => String::from_utf8_lossy(&reply).into_owned(),
        _ => reply_of(Parked(Waits::Work(pending))),
    };
    assert_eq!(reply, expected, "{words:?}");
}

/// Returns a store with a few large values.
fn store_with_large_values() -> Store {
    let store = store();
    let long = "x".repeat(2 << 20);
    let elements: Vec<String> = (0..5000).map(|number| format!("e{number}")).collect();
    let elements: Vec<&str> = elements.iter().map(String::as_str).collect();
    for words in [&["SET", "long"][..], &["SET", "other"]] {
        assert!(ask(&store, &[words, &[&long]].concat()).is_ok());
    }
    for words in [&["RPUSH", "list"][..], &["SADD", "set"], &["HSET", "hash"], &["MSET"]] {
        assert!(answered(&store, &[words, &elements].concat()).starts_with([':', '+']), "{words:?}");
    }
    store
}

#[test]
fn long_replies_become_values_elsewhere() {
    let store = store_with_large_values();
    let cases = [
        ("return #redis.call('GET', 'long')", ":2097152\r\n"),
        ("return #redis.call('GETRANGE', 'long', 0, 1500000)", ":1500001\r\n"),
        ("return #redis.call('GETRANGE', 'long', 0, 300000)", ":300001\r\n"),
        ("return #redis.call('MGET', 'long', 'nothing', 'other')[3]", ":2097152\r\n"),
        ("return #redis.pcall('LRANGE', 'list', 0, -1)", ":5000\r\n"),
        ("return #redis.call('SMEMBERS', 'set')", ":5000\r\n"),
        ("return #redis.call('HGETALL', 'hash')", ":5000\r\n"),
        ("redis.setresp(3) return redis.call('HGETALL', 'hash').map.e2", "$2\r\ne3\r\n"),
        ("return #redis.call('SCAN', '0', 'COUNT', '5000')[2] > 2000", ":1\r\n"),
        ("return #redis.call('ECHO', ('x'):rep(100000))", ":100000\r\n"),
        ("return redis.call('LPUSH', 'new', redis.call('GET', 'long'), 'b')", ":2\r\n"),
        (
            "return dragonfly.ihash(0, false, 'LRANGE', 'list', 0, -1) == dragonfly.ihash(0, false, 'GET', 'none')",
            "$-1\r\n",
        ),
    ];
    for (script, expected) in cases {
        check_leaves(&store, &["EVAL", script, "0"], expected);
        assert!(answered(&store, &["DEL", "new"]).starts_with(':'));
        let script = format!("--!df flags=disable-atomicity\n{script}");
        check_leaves(&store, &["EVAL", &script, "0"], expected);
        assert!(answered(&store, &["DEL", "new"]).starts_with(':'));
    }
}

#[test]
fn long_old_values_are_said_elsewhere() {
    let store = store_with_large_values();
    let long = "x".repeat(2 << 20);
    let cases = [
        ("return #redis.call('GETDEL', 'long')", ":2097152\r\n", "$-1\r\n"),
        ("return #redis.call('GETSET', 'long', 'new')", ":2097152\r\n", "$3\r\nnew\r\n"),
        ("return #redis.call('SET', 'long', 'new', 'GET')", ":2097152\r\n", "$3\r\nnew\r\n"),
        ("return #redis.call('GETEX', 'long', 'PXAT', 1)", ":2097152\r\n", "$-1\r\n"),
        ("redis.call('SET', 'new', 1) return #redis.call('GETDEL', 'long')", ":2097152\r\n", "$-1\r\n"),
    ];
    for (script, expected, left) in cases {
        for keys in [&["0"][..], &["1", "long"]] {
            assert_eq!(answered(&store, &["SET", "long", &long]), "+OK\r\n");
            check_leaves(&store, &[&["EVAL", script][..], keys].concat(), expected);
            assert_eq!(answered(&store, &["GET", "long"]), left, "{script}");
        }
    }
    // A script that has changed nothing yet can be killed.
    let words = ["EVAL", "return redis.call('GETDEL', 'long') and redis.call('NOSUCH')", "0"];
    assert_eq!(answered(&store, &["SET", "long", &long]), "+OK\r\n");
    let Err(parked) = ask(&store, &words) else { panic!("it ends where it began") };
    assert!(reply_of(parked).contains("Unknown Redis command"));
    assert_eq!(answered(&store, &["EXISTS", "long"]), ":0\r\n");
}

#[test]
fn a_long_reply_is_read_at_once_where_a_script_cannot_leave() {
    let store = store_with_large_values();
    for call in ["redis.call('GETRANGE', 'long', 0, 1500000)", "table.concat(redis.call('MGET', 'long'))"] {
        let script =
            format!("local t = setmetatable({{}}, {{__index = function() return {call} end}}) return #t.x > 1500000");
        assert_eq!(answered(&store, &["EVAL", &script, "0"]), ":1\r\n");
    }
}

#[test]
fn long_results_are_said_elsewhere() {
    let store = store();
    let long = "x".repeat(100_000);
    let element = format!("$100000\r\n{long}\r\n");
    let all = format!("*4\r\n{}", element.repeat(4));
    let numbers: String = (1..=5000).map(|number| format!(":{number}\r\n")).collect();
    let cases = [
        ("return {ARGV[1], ARGV[1], ARGV[1], ARGV[1]}", &*all),
        ("local t = {} for i = 1, 5000 do t[i] = i end return t", &format!("*5000\r\n{numbers}")),
        (
            "local t = {} for i = 1, 5000 do t[i] = i end return {map = {a = t}}",
            &format!("*2\r\n$1\r\na\r\n*5000\r\n{numbers}"),
        ),
        ("local t = 1 for i = 1, 60 do t = {t} end return t", &format!("{}:1\r\n", "*1\r\n".repeat(60))),
    ];
    for (script, expected) in cases {
        check_leaves(&store, &["EVAL", script, "1", "k", &long], expected);
        let script = format!("--!df flags=disable-atomicity\n{script}");
        check_leaves(&store, &["EVAL", &script, "1", "k", &long], expected);
    }
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn one_that_has_ended_says_so_though_it_is_killed() {
    let store = store();
    let script = "redis.call('SET', KEYS[1], 1) return {ARGV[1], ARGV[1], ARGV[1], ARGV[1]}";
    let mut job = job_of(&store, &["EVAL", script, "1", "k", &"x".repeat(100_000)]);
    let running = store.0.scripts.running.all();
    let [control] = &running[..] else { panic!("it is listed until it has replied") };
    assert!(ask(&store, &["GET", "k"]).is_err(), "the key is held until then");
    assert!(!control.kill(false) && control.kill(true));
    let mut context = Context::from_waker(Waker::noop());
    let Step::Done(ended) = job.step(&mut context, true) else { panic!("there is nothing to wait for") };
    let Finished::Wire(reply) = ended.reply else { panic!("bytes were asked for") };
    assert!(reply.starts_with(b"*4\r\n"));
    drop((ended.section, job));
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn a_script_either_writes_or_is_ended() {
    let store = store();
    let script = script_of(&store.0, b"return 1", false).unwrap_or_else(|text| panic!("{text}"));
    let call = call_of(&store, Code::Script(script));
    let control = &call.control;
    use super::control::Write;
    assert_eq!(control.begin_write(), Write::First);
    assert!(!control.kill(false) && !control.is_killed());
    // The write had no effect.
    control.take_back_write();
    assert!(control.kill(false) && control.is_killed());
    assert_eq!(control.begin_write(), Write::Never);
    let call = call_of(&store, call.control.code.clone());
    assert_eq!((call.control.begin_write(), call.control.begin_write()), (Write::First, Write::Another));
    assert!(call.control.kill(true) && call.control.is_killed());
}

/// An allocator that fails once it has granted this amount.
struct Failing {
    allocate: ffi::lua_Alloc,
    account: *mut c_void,
    left: usize,
}

unsafe extern "C" fn failing(place: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: the test keeps `Failing` for longer than the state, and uses it only while the state does not run.
    unsafe {
        let failing = &mut *(place as *mut Failing);
        // A block that shrinks is never refused.
        if new > 0 && (block.is_null() || new > old) {
            if failing.left == 0 {
                return std::ptr::null_mut();
            }
            failing.left -= 1;
        }
        (failing.allocate)(failing.account, block, old, new)
    }
}

/// Runs a command once for each allocation that it makes; that allocation and all that follow fail.
///
/// It runs on a thread that long functions may occupy: a call that moved to another thread before it began would take
/// another interpreter there, whose memory does not run out.
fn check_memory(prepare: &[&[&str]], words: &[&str]) {
    std::thread::scope(|scope| {
        let checking = scope.spawn(|| {
            sluicegate_script::patient(true);
            check_memory_here(prepare, words);
        });
        checking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn check_memory_here(prepare: &[&[&str]], words: &[&str]) {
    /// The maximum number of attempts that another interpreter served.
    const FOREIGN_MAX: usize = 1000;
    let store = store();
    prepare.iter().for_each(|words| drop(ask(&store, words)));
    let pool = &store.0.scripts.pool;
    let expected = answered(&store, words);
    let failing_place: *mut Failing =
        Box::into_raw(Box::new(Failing { allocate: no_memory, account: std::ptr::null_mut(), left: 0 }));
    let (mut failures, mut foreign, mut granted) = (0, 0, 0);
    loop {
        pool.close_all();
        let mut interpreter = pool.take().unwrap_or_else(|error| panic!("{}", error.message));
        // SAFETY: nothing with a destructor is alive in the closure; the place outlives the state.
        let set = unsafe {
            interpreter.state.protect(|lua| {
                let place = &mut *failing_place;
                place.allocate = ffi::lua_getallocf(lua, &raw mut place.account);
                place.left = usize::MAX;
                ffi::lua_setallocf(lua, failing, failing_place.cast());
            })
        };
        assert!(set.is_ok());
        pool.put_away(interpreter, true);
        // SAFETY: the state does not run.
        unsafe { (*failing_place).left = granted };
        // No other command runs, so nothing was left behind.
        assert_eq!(ask(&store, &["FLUSHALL"]).unwrap_or_default(), "+OK\r\n");
        let reply = answered(&store, words);
        // SAFETY: as above.
        let left = unsafe { std::mem::replace(&mut (*failing_place).left, usize::MAX) };
        assert_eq!(store.stats().tickets, 0, "{words:?} with {granted} allocations");
        assert_eq!(
            ask(&store, &["SET", "k", "0"]).unwrap_or_default(),
            "+OK\r\n",
            "{words:?} with {granted} allocations"
        );
        assert!(store.0.scripts.running.all().is_empty());
        if pool.assemble() > 1 {
            // Another interpreter served a part of the command, so this attempt has shown nothing.
            foreign += 1;
            assert!(foreign < FOREIGN_MAX, "{words:?}: other interpreters serve it");
            continue;
        }
        if left > 0 {
            assert_eq!(reply, expected, "{words:?} with memory enough");
            break;
        }
        if reply.contains("not enough memory") {
            assert_eq!(pool.assemble(), 0, "{words:?} with {granted} allocations: the interpreter goes");
            failures += 1;
        }
        granted += 1;
    }
    assert!(failures > 10, "{words:?} failed {failures} times");
    pool.close_all();
    // SAFETY: it was made by a box above, and no state knows it any more.
    drop(unsafe { Box::from_raw(failing_place) });
}

unsafe extern "C" fn no_memory(_: *mut c_void, _: *mut c_void, _: usize, _: usize) -> *mut c_void {
    std::ptr::null_mut()
}

#[test]
fn memory_may_run_out_at_any_allocation() {
    let incr = "redis.call('SET', KEYS[1], '0') ";
    let scripts = [
        "return redis.call('INCR', KEYS[1])",
        "local t = {} for i = 1, 20 do t[i] = redis.call('INCR', 'other') .. ('x'):rep(i) end return t",
        "redis.call('RPUSH', 'list', 1, 2.5, 'three') local t = redis.call('LRANGE', 'list', 0, -1) redis.call('DEL', 'list') return t",
        "redis.setresp(3) redis.call('HSET', 'h', 'a', 1) local t = redis.call('HGETALL', 'h') redis.call('DEL', 'h') return t",
        "return cjson.decode(cjson.encode({a = {1, 2, 3}, b = 'text'})).b .. #cmsgpack.pack({1, 'x', {y = 2}})",
        "local ok, e = pcall(error, {err = 'MY error'}) return redis.error_reply(e.err .. tostring(ok))",
        "return (('a,b,c'):gsub('%w', function(c) return c:upper() .. redis.call('ECHO', c) end))",
        "local c = coroutine.wrap(function() for i = 1, 3 do coroutine.yield({i}) end end) return {c(), c()}",
        "error('boo')",
        "return redis.call('NOSUCH', {})",
    ];
    for script in scripts {
        let script = format!("{incr}{script}");
        check_memory(&[], &["EVAL", &script, "1", "k", "some", "arguments"]);
        check_memory(&[], &["EVAL", &format!("--!df flags=disable-atomicity\n{script}"), "1", "k"]);
    }
    let library = "#!lua name=l\nlocal kept = {} redis.register_function('f', function(keys, arguments) \
                   kept[#kept + 1] = redis.call('INCR', keys[1]) return {#keys, arguments[1]} end)";
    check_memory(&[&["FUNCTION", "LOAD", library]], &["FCALL", "f", "1", "k", "argument"]);
    check_memory(&[], &["FUNCTION", "LOAD", "REPLACE", library]);
}
