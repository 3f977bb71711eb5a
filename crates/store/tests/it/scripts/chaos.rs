//! A random load of everything at once: scripts of all modes and lengths, plain and blocking commands, transactions,
//! SCRIPT KILL, clients that disconnect, and script threads that are stopped at any point, even with a locked stripe.
//!
//! Invariants: every client is answered in bounded time, the sum of the accounts is constant whenever it is read, every
//! pushed element is popped once, and at the end no key is held.
//!
//! `SLUICEGATE_CHAOS` sets the number of rounds, `SLUICEGATE_SEED` the seed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Store, StoreOptions};
use sluicegate_testkit::{Client, wait_for};

use super::{Ticking, number};
use crate::Random;
use crate::support::Running;

const CLIENTS: usize = 100;
/// The number of operations of each client.
const OPERATIONS: usize = 12;
const CONSUMERS: usize = 4;
const ACCOUNTS: usize = 10;
/// The initial value of each account.
const BEGIN: usize = 1_000;
const TOKENS: usize = 8;
const LISTS: &[&str] = &["x", "y", "w"];
/// The age beyond which scripts can be ended, and clients behind them get `BUSY`.
const BUSY_AFTER_MS: i64 = 60;

const TRANSFER: &str = "\
for i = 1, tonumber(ARGV[2]) do local x = i % 7 end
redis.call('DECRBY', KEYS[1], ARGV[1])
for i = 1, tonumber(ARGV[2]) do local x = i % 7 end
return redis.call('INCRBY', KEYS[2], ARGV[1]) and 'moved'";

/// Undoes its first change if the second key is refused.
const UNDECLARED: &str = "\
local from, to, amount = ARGV[1], ARGV[2], ARGV[3]
local first = redis.pcall('DECRBY', from, amount)
if type(first) == 'table' then return first end
for i = 1, tonumber(ARGV[4]) do local x = i % 7 end
local second = redis.pcall('INCRBY', to, amount)
if type(second) == 'table' then redis.call('INCRBY', from, amount) return second end
return 'moved'";

/// Reads before it writes, so that it may be restarted.
const CAREFUL: &str = "\
local have, has = redis.call('GET', ARGV[1]), nil
for i = 1, tonumber(ARGV[4]) do local x = i % 7 end
has = redis.call('GET', ARGV[2])
redis.call('SET', ARGV[1], have - ARGV[3])
redis.call('SET', ARGV[2], has + ARGV[3])
return 'moved'";

const NON_ATOMIC: &str = "\
--!df flags=disable-atomicity
redis.call('DECRBY', ARGV[1], ARGV[3])
for i = 1, tonumber(ARGV[4]) do local x = i % 7 end
redis.call('INCRBY', ARGV[2], ARGV[3])
return 'moved'";

const SUM: &str = "\
local sum = 0
for _, key in ipairs(KEYS) do sum = sum + redis.call('GET', key) end
return sum";

const SUM_UNDECLARED: &str = "\
#!lua flags=no-writes
local sum = 0
for _, key in ipairs(ARGV) do
  sum = sum + redis.call('GET', key)
  for i = 1, 500 do local x = i % 7 end
end
return sum";

/// Scripts that do not end, each in a different way.
const ENDLESS: &[&str] = &[
    "redis.call('GET', KEYS[1]) while true do end",
    "while true do pcall(function() while true do end end) end",
    "while true do redis.pcall('GET', KEYS[1]) end",
    "local c = coroutine.wrap(function() while true do coroutine.yield() end end) while true do c() end",
    "return ('a'):rep(40):find(('a*'):rep(40) .. 'b')",
    "while true do local s = ('x'):rep(100000):gsub('x', 'yy'):upper() end",
    "#!lua flags=no-writes\nwhile true do pcall(redis.call, 'NOSUCH') end",
    "--!df flags=disable-atomicity\nwhile true do redis.call('GET', KEYS[1]) end",
    "local t = {} for i = 1, 3000 do t[i] = (i * 7919) % 3001 end while true do table.sort(t, function(a, b) return a > b end) end",
];

/// A script that has written, and can only be ended with FORCE.
const WRITES: &str = "while true do redis.pcall('INCR', KEYS[1]) end";

/// A function that moves money, and one that does not end.
const LIBRARY: &str = "#!lua name=chaos
redis.register_function('moves', function(keys, arguments)
  redis.call('DECRBY', keys[1], arguments[1])
  for i = 1, tonumber(arguments[2]) do local x = i % 7 end
  redis.call('INCRBY', keys[2], arguments[1])
  return 'moved'
end)
redis.register_function('turns', function() while true do end end)";

fn account(n: usize) -> String {
    format!("account:{n}")
}

/// A client and its operations.
struct Actor<'r> {
    random: Random,
    client: Client,
    ours: &'r Running,
    pushed: &'r AtomicUsize,
    /// Its last request.
    last: String,
}

impl Drop for Actor<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("asked for: {}", self.last);
        }
    }
}

impl Actor<'_> {
    fn ask(&mut self, words: &[&str]) -> String {
        self.last = words.join(" ");
        self.client.command(words);
        String::from_utf8_lossy(&self.client.read_reply()).into_owned()
    }

    /// Returns two different accounts.
    fn pair(&mut self, prefix: &str) -> [String; 2] {
        let from = self.random.below(ACCOUNTS);
        let to = (from + 1 + self.random.below(ACCOUNTS - 1)) % ACCOUNTS;
        [from, to].map(|n| format!("{prefix}{}", account(n)))
    }

    /// Returns the number of turns of a script's loop: mostly none, sometimes more than fit a slice.
    fn turns(&mut self) -> String {
        let most = [10, 10, 100, 20_000, 300_000][self.random.below(5)];
        self.random.below(most).to_string()
    }

    fn amount(&mut self) -> String {
        (1 + self.random.below(9)).to_string()
    }

    /// Returns a command that moves money and keeps the sum.
    fn movement(&mut self) -> Vec<String> {
        let (amount, turns) = (self.amount(), self.turns());
        let [from, to] = self.pair("");
        let words: Vec<&str> = match self.random.below(6) {
            0 | 1 => vec!["EVAL", TRANSFER, "2", &from, &to, &amount, &turns],
            2 => vec!["EVAL", UNDECLARED, "0", &from, &to, &amount, &turns],
            3 => vec!["EVAL", CAREFUL, "0", &from, &to, &amount, &turns],
            // Declares only some of its keys.
            4 => vec!["EVAL", CAREFUL, "1", &from, &from, &to, &amount, &turns],
            _ => {
                let [from, to] = self.pair("loose:");
                return ["EVAL", NON_ATOMIC, "0", &from, &to, &amount, &turns].map(str::to_owned).to_vec();
            }
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn step(&mut self) {
        match self.random.below(26) {
            0..7 => {
                let words = self.movement();
                let reply = self.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
                assert!(is_usual(&reply) || reply == "$5\r\nmoved\r\n", "{words:?}: {reply}");
            }
            7 => {
                let keys: Vec<String> = (0..ACCOUNTS).map(account).collect();
                let count = ACCOUNTS.to_string();
                let mut words = vec!["EVAL_RO", SUM, &count];
                words.extend(keys.iter().map(String::as_str));
                let reply = self.ask(&words);
                assert!(is_usual(&reply) || reply == format!(":{}\r\n", ACCOUNTS * BEGIN), "{reply}");
            }
            8 => {
                let from = self.random.below(ACCOUNTS);
                let keys: Vec<String> = (from..from + ACCOUNTS).map(|n| account(n % ACCOUNTS)).collect();
                let mut words = vec!["EVAL", SUM_UNDECLARED, "0"];
                words.extend(keys.iter().map(String::as_str));
                let reply = self.ask(&words);
                assert!(is_usual(&reply) || reply == format!(":{}\r\n", ACCOUNTS * BEGIN), "{reply}");
            }
            9 | 10 => self.look(),
            11 | 12 => self.watch(),
            13 => self.transaction(),
            14 => {
                let [from, to] = [0, 1].map(|_| *self.random.pick(&[&LISTS[0], &LISTS[1], &LISTS[2]]));
                let reply = self.ask(&["BLMOVE", from, to, "LEFT", "RIGHT", "0.02"]);
                assert!(reply.starts_with(['$', '*']) || is_usual(&reply), "{reply}");
            }
            15 => {
                let [from, to] = [0, 1].map(|_| *self.random.pick(&[&LISTS[0], &LISTS[1], &LISTS[2]]));
                let turns = self.turns();
                let script = "local t = redis.call('LPOP', KEYS[1]) for i = 1, tonumber(ARGV[1]) do local x = i % 7 end \
                              if t then redis.call('RPUSH', KEYS[2], t) end return t";
                let reply = self.ask(&["EVAL", script, "2", from, to, &turns]);
                assert!(reply.starts_with('$') || is_usual(&reply), "{reply}");
            }
            16 => {
                let turns = self.turns();
                let script =
                    "for i = 1, tonumber(ARGV[1]) do local x = i % 7 end return redis.call('RPUSH', 'work', 'w')";
                let reply = match self.random.below(2) {
                    0 => self.ask(&["EVAL", script, "0", &turns]),
                    _ => self.ask(&["EVAL", script, "1", "work", &turns]),
                };
                if reply.starts_with(':') {
                    self.pushed.fetch_add(1, Ordering::SeqCst);
                } else {
                    assert!(is_usual(&reply), "{reply}");
                }
            }
            17 => {
                let script = ENDLESS[self.random.below(ENDLESS.len())];
                let key = account(self.random.below(ACCOUNTS));
                let reply = self.ask(&["EVAL", script, "1", &key]);
                assert!(is_usual(&reply), "{script}: {reply}");
            }
            18 => {
                // Whole databases, but not the one with the accounts.
                for words in
                    [&["SELECT", "5"][..], &["SET", "k", "v"], &["FLUSHDB"], &["SWAPDB", "5", "6"], &["SELECT", "0"]]
                {
                    let reply = self.ask(words);
                    assert!(reply == "+OK\r\n" || is_usual(&reply), "{reply}");
                }
            }
            19 => {
                for words in
                    [&["SCRIPT", "FLUSH"][..], &["SCRIPT", "LOAD", TRANSFER], &["EVAL", "return (", "0"], &["DBSIZE"]]
                {
                    self.ask(words);
                }
                let reply = self.ask(&["EVALSHA", "0000000000000000000000000000000000000000", "0"]);
                assert!(reply.starts_with("-NOSCRIPT"), "{reply}");
            }
            20 => {
                let [from, to] = self.pair("");
                let reply = self.ask(&["SORT", &from, "BY", "nosort"]);
                assert!(reply.starts_with("-WRONGTYPE") || is_usual(&reply), "{reply}");
                let reply = self.ask(&["EXISTS", &from, &to]);
                assert!(reply == ":2\r\n" || is_usual(&reply), "{reply}");
            }
            21 => {
                let key = format!("forced:{}", self.random.below(3));
                let reply = self.ask(&["EVAL", WRITES, "1", &key]);
                assert!(is_usual(&reply), "{reply}");
            }
            22 => {
                let [from, to] = self.pair("");
                let (amount, turns) = (self.amount(), self.turns());
                let reply = self.ask(&["FCALL", "moves", "2", &from, &to, &amount, &turns]);
                assert!(is_usual(&reply) || reply == "$5\r\nmoved\r\n", "{reply}");
            }
            _ => self.leave(),
        }
    }

    /// Checks the sum with a plain command.
    fn look(&mut self) {
        let keys: Vec<String> = (0..ACCOUNTS).map(account).collect();
        let words: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
        let reply = self.ask(&words);
        if !is_usual(&reply) {
            let values = reply.lines().skip(1).filter(|line| !line.starts_with('$'));
            let sum: i64 = values.map(|value| value.parse::<i64>().expect("a number")).sum();
            assert_eq!(sum, (ACCOUNTS * BEGIN) as i64, "{reply}");
        }
    }

    fn watch(&mut self) {
        let ([from, to], amount) = (self.pair(""), self.amount());
        self.ask(&["WATCH", &from, &to]);
        let read =
            [&from, &to].map(|key| self.ask(&["GET", key]).lines().nth(1).and_then(|line| line.parse::<i64>().ok()));
        let [Some(have), Some(has)] = read else {
            self.ask(&["UNWATCH"]);
            return;
        };
        let amount: i64 = amount.parse().expect("a number");
        self.ask(&["MULTI"]);
        self.ask(&["SET", &from, &(have - amount).to_string()]);
        if self.random.below(3) == 0 {
            let turns = self.turns();
            self.ask(&["EVAL", "for i = 1, tonumber(ARGV[1]) do local x = i % 7 end", "0", &turns]);
        }
        self.ask(&["SET", &to, &(has + amount).to_string()]);
        let reply = self.ask(&["EXEC"]);
        assert!(reply.starts_with("*") || is_usual(&reply), "{reply}");
    }

    /// Runs scripts within a transaction.
    fn transaction(&mut self) {
        let (amount, turns) = (self.amount(), self.turns());
        let ([from, to], [other, another]) = (self.pair(""), self.pair(""));
        self.ask(&["MULTI"]);
        self.ask(&["EVAL", TRANSFER, "2", &from, &to, &amount, &turns]);
        self.ask(&["DECRBY", &other, &amount]);
        self.ask(&["INCRBY", &another, &amount]);
        self.ask(&["EVAL_RO", "return redis.call('GET', KEYS[1])", "1", &from]);
        let reply = self.ask(&["EXEC"]);
        let is_whole = reply.starts_with("*4\r\n$5\r\nmoved\r\n:");
        // A script that has not written yet may be killed; the other transfer is still made.
        let is_killed = reply.starts_with("*4\r\n-ERR Script killed by user");
        assert!(is_whole || is_killed || is_usual(&reply), "{reply}");
    }

    /// Begins an operation and disconnects; a new connection replaces the old one.
    fn leave(&mut self) {
        let id = self.ask(&["CLIENT", "ID"])[1..].trim().to_owned();
        let mut requests = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let words = self.movement();
            requests.extend(sluicegate_testkit::encode(&words));
        }
        match self.random.below(7) {
            0 => requests.extend(b"BLMOVE x y LEFT RIGHT 0\r\n"),
            1 => requests.extend(sluicegate_testkit::encode(&["EVAL", ENDLESS[0], "1", &account(3)])),
            2 => {
                let words = self.movement();
                requests = b"MULTI\r\n".to_vec();
                requests.extend(sluicegate_testkit::encode(&words));
                requests.extend(b"EXEC\r\n");
            }
            4 => requests.extend(sluicegate_testkit::encode(&["FCALL", "turns", "1", &account(4)])),
            3 => requests = b"WATCH account:1 account:2\r\nMULTI\r\nGET account:1\r\n".to_vec(),
            _ => {}
        }
        let cut = if self.random.below(4) == 0 { self.random.below(requests.len()) } else { requests.len() };
        self.client.send(&requests[..cut]);
        for _ in 0..self.random.below(200) {
            std::thread::yield_now();
        }
        let left = std::mem::replace(&mut self.client, self.ours.connect());
        match self.random.below(3) {
            0 => left.reset(),
            // The connection is closed at once, whatever it waits for.
            1 => drop(self.ask(&["CLIENT", "KILL", "ID", &id])),
            _ => {}
        }
    }
}

/// Returns whether a reply is one of the expected errors: a script has run for too long or was ended, a key was
/// refused, or a transaction was aborted.
fn is_usual(reply: &str) -> bool {
    ["-BUSY ", "-ERR Script killed by user", "*-1\r\n", "-EXECABORT"].iter().any(|start| reply.starts_with(start))
        || (reply.starts_with("*4\r\n-") && reply.contains("-BUSY "))
}

/// Stops script threads at random points for a moment, repeatedly, until it is dropped.
struct Disturbing<'d>(&'d AtomicBool);

extern "C" fn stop_for_a_moment(_: libc::c_int) {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    // SAFETY: `nanosleep` may be called in a handler, and writes nowhere.
    unsafe { libc::nanosleep(&moment, std::ptr::null_mut()) };
}

impl Disturbing<'_> {
    fn run(&self) {
        // SAFETY: the handler calls only what is safe in one; nobody else in these tests uses the signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stop_for_a_moment as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
        while !self.0.load(Ordering::SeqCst) {
            for thread in std::fs::read_dir("/proc/self/task").expect("threads are listed").flatten() {
                let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
                let number = thread.file_name().to_string_lossy().parse::<libc::pid_t>();
                if let ("store-script", Ok(number)) = (name.trim(), number) {
                    // SAFETY: it has no effect on memory; a thread that is gone is not found.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, libc::SIGUSR2) };
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends the background threads, even if the test fails.
struct Ending<'e> {
    ours: &'e Running,
    over: &'e AtomicBool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let mut client = self.ours.connect();
        // Waits for each answer, since the data of a client that has disconnected may never be read.
        (0..CONSUMERS).for_each(|_| drop(client.ask(&["RPUSH", "work", "end"])));
    }
}

fn chaos(seed: u64) {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let options = ServerOptions { busy_reply_threshold_ms: BUSY_AFTER_MS, ..ServerOptions::default() };
    let ours = Running::serving(store, options, 2);
    let ticking = Ticking::start(&ours);
    let mut admin = ours.connect();
    for n in 0..ACCOUNTS {
        for key in [account(n), format!("loose:{}", account(n))] {
            assert_eq!(admin.ask(&["SET", &key, &BEGIN.to_string()]), "+OK\r\n");
        }
    }
    (0..TOKENS).for_each(|token| assert!(admin.ask(&["RPUSH", LISTS[token % 3], &token.to_string()]).starts_with(':')));
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", LIBRARY]), "$5\r\nchaos\r\n");
    let (pushed, popped) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ours, pushed, popped) = (&ours, &pushed, &popped);
        let over = &over;
        let ending = Ending { ours, over };
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|_| {
                scope.spawn(move || {
                    let mut client = ours.connect();
                    loop {
                        let reply = client.ask(&["BLPOP", "none", "work", "5"]);
                        match reply.as_str() {
                            "*2\r\n$4\r\nwork\r\n$1\r\nw\r\n" => _ = popped.fetch_add(1, Ordering::SeqCst),
                            "*2\r\n$4\r\nwork\r\n$3\r\nend\r\n" => return,
                            _ => assert!(is_usual(&reply), "{reply}"),
                        }
                    }
                })
            })
            .collect();
        let disturber = scope.spawn(move || Disturbing(over).run());
        // Endless scripts are ended by SCRIPT KILL.
        let killer = scope.spawn(move || {
            let mut client = ours.connect();
            let writes = client.ask(&["SCRIPT", "LOAD", WRITES]).lines().nth(1).expect("a digest").to_owned();
            while !over.load(Ordering::SeqCst) {
                for kill in [&["SCRIPT", "KILL"][..], &["FUNCTION", "KILL"], &["SCRIPT", "KILL", &writes, "FORCE"]] {
                    let reply = client.ask(kill);
                    let known = ["+OK\r\n", "-NOTBUSY", "-UNKILLABLE", "-BUSY"];
                    assert!(known.iter().any(|known| reply.starts_with(known)), "{kill:?}: {reply}");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let actors: Vec<_> = (0..CLIENTS as u64)
            .map(|number| {
                scope.spawn(move || {
                    let random = Random(seed.wrapping_mul(1_000_003).wrapping_add(number * 7_919));
                    let mut actor = Actor { random, client: ours.connect(), ours, pushed, last: String::new() };
                    (0..OPERATIONS).for_each(|_| actor.step());
                })
            })
            .collect();
        let failed = actors.into_iter().map(|actor| actor.join()).filter(Result::is_err).count();
        // Scripts whose clients have disconnected run to their end, endless ones until they are killed.
        wait_for("all scripts to end", || (ours.store().stats().tickets == 0).then_some(()));
        drop(ending);
        consumers.into_iter().for_each(|consumer| consumer.join().expect("it ended"));
        killer.join().expect("it ended");
        disturber.join().expect("it ended");
        assert_eq!(failed, 0, "seed {seed}");
    });
    // No client waits, no client but this one is connected, and no script runs.
    wait_for("the last to go", || {
        let clients = admin.ask(&["INFO", "clients"]);
        let is_alone = clients.contains("connected_clients:1\r\n") && clients.contains("blocked_clients:0\r\n");
        (is_alone && ours.store().stats().tickets == 0).then_some(())
    });
    assert!(admin.ask(&["FUNCTION", "STATS"]).starts_with("*4\r\n$14\r\nrunning_script\r\n$-1\r\n"));
    assert_eq!(pushed.into_inner(), popped.into_inner(), "elements, seed {seed}");
    let whole = format!(":{}\r\n", ACCOUNTS * BEGIN);
    for prefix in ["", "loose:"] {
        let keys: Vec<String> = (0..ACCOUNTS).map(|n| format!("{prefix}{}", account(n))).collect();
        let count = ACCOUNTS.to_string();
        let mut words = vec!["EVAL", SUM, &count];
        words.extend(keys.iter().map(String::as_str));
        assert_eq!(admin.ask(&words), whole, "{prefix}, seed {seed}");
        // No key is held.
        for key in &keys {
            assert!(admin.ask(&["INCRBY", key, "0"]).starts_with(':'));
        }
    }
    let tokens: usize =
        LISTS.iter().map(|list| admin.ask(&["LLEN", list])[1..].trim().parse::<usize>().expect("a number")).sum();
    assert_eq!(tokens, TOKENS, "seed {seed}");
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
    drop(ticking);
}

#[test]
fn everything_at_once_adds_up() {
    let first = number("SLUICEGATE_SEED", 1);
    (first..first + number("SLUICEGATE_CHAOS", 4)).for_each(chaos);
}
