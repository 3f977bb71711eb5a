//! The script of one sequence: the commands of each client, in order.
//!
//! Two clients send commands, mostly one of them; before each switch all replies are awaited, so that both programs see
//! the same order. A third one subscribes. Actions that need a reply before the next command have separate steps:
//! exchanged payloads, complete iterations, a blocking client.

use std::fmt::Write;

use super::grammar::{Grammar, Maker, Words};
use super::value::Shown;
use crate::random::Random;

/// The key of a copy of SORT's input, with the same type.
pub(super) const SORTED: &[u8] = b"sorted";
/// The key of a list of the same elements.
const LISTED: &[u8] = b"listed";

/// The settings of servers and clients before a sequence.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// 2 or 3.
    pub(super) protocol: u8,
    /// Parameters that both programs are given.
    pub(super) parameters: Vec<(&'static str, &'static str)>,
    /// Classes of keyspace events that the subscriber hears.
    pub(super) events: Option<&'static str>,
}

/// An action on both programs; removed as a whole when a difference is narrowed down.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Commands of a client, 0 or 1.
    Run { client: usize, commands: Vec<Words> },
    /// A command on the connection that subscribes.
    Subscriber(Words),
    /// Each program restores the other's dump.
    Exchange { db: usize, key: Vec<u8>, to: Vec<u8>, options: Vec<Vec<u8>> },
    /// A complete iteration; the cursor follows the words of `before`.
    Iterate { db: usize, before: Words, after: Words },
    /// Client 1 blocks, client 0 goes on, client 1 is unblocked if it was not served.
    Block { words: Words, then: Vec<Words>, unblock: &'static str },
}

impl Settings {
    /// Chooses the settings of one sequence.
    pub(super) fn choose(random: &mut Random, protocol: u8) -> Settings {
        let mut parameters = vec![("notify-keyspace-events", ""), ("maxmemory-policy", "noeviction")];
        // Small limits: values grow over them within few commands.
        let limits: [(&str, &[&str]); 9] = [
            ("hash-max-listpack-entries", &["512", "12", "4"]),
            ("hash-max-listpack-value", &["64", "16"]),
            ("zset-max-listpack-entries", &["128", "12", "0"]),
            ("zset-max-listpack-value", &["64", "8"]),
            ("set-max-intset-entries", &["512"]),
            ("list-max-listpack-size", &["-2", "5", "1", "-1"]),
            ("hll-sparse-max-bytes", &["3000", "40"]),
            ("stream-node-max-bytes", &["4096", "0", "60"]),
            ("stream-node-max-entries", &["100", "3", "0"]),
        ];
        for (name, values) in limits {
            parameters.push((name, values[random.below(values.len())]));
        }
        if random.one_in(4) {
            parameters[1].1 = "allkeys-lfu";
        }
        let events = [None, None, Some("KEA"), Some("KEAmn"), Some("Eglshzxe$")][random.below(5)];
        if let Some(classes) = events {
            parameters[0].1 = classes;
        }
        Settings { protocol, parameters, events }
    }
}

/// Returns the steps of a sequence of about `commands` commands.
pub(super) fn steps(grammar: &Grammar, seed: u64, commands: usize, settings: &Settings) -> Vec<Step> {
    let mut maker = grammar.maker(seed);
    let mut steps = Vec::new();
    if settings.events.is_some() {
        steps.push(Step::Subscriber(words(&["PSUBSCRIBE", "__key*__:*"])));
    }
    let mut count = 0;
    while count < commands {
        let before = steps.len();
        add(&mut maker, &mut steps, settings);
        count += steps[before..].iter().map(Step::commands).sum::<usize>();
    }
    steps
}

fn words(words: &[&str]) -> Words {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn add(maker: &mut Maker<'_>, steps: &mut Vec<Step>, settings: &Settings) {
    let kind = maker.random.below(100);
    let mut run = |maker: &mut Maker<'_>, client: usize, count: usize| {
        for _ in 0..count {
            let commands = unit(maker.command(), settings);
            steps.push(Step::Run { client, commands });
        }
    };
    match kind {
        0..=39 => {
            let count = 20 + maker.random.below(120);
            run(maker, 0, count);
        }
        40..=59 => {
            let count = 1 + maker.random.below(6);
            run(maker, 1, count);
        }
        60..=74 => transaction(maker, steps, settings),
        75..=82 => {
            // A watch on the key shows whether a command touches it.
            let watched = maker.key();
            steps.push(one(1, words(&["DISCARD"])));
            steps.push(one(1, vec![b"UNWATCH".to_vec()]));
            steps.push(one(1, vec![b"WATCH".to_vec(), watched]));
            for _ in 0..1 + maker.random.below(3) {
                steps.push(Step::Run { client: 0, commands: unit(maker.command(), settings) });
            }
            let transaction = [words(&["MULTI"]), words(&["PING"]), words(&["EXEC"])];
            steps.push(Step::Run { client: 1, commands: transaction.to_vec() });
        }
        83..=87 => steps.push(Step::Subscriber(maker.subscription())),
        88..=92 => {
            let options: [&[&str]; 4] = [&["REPLACE"], &["REPLACE"], &[], &["REPLACE", "FREQ", "3"]];
            let options = words(maker.random.pick(&options));
            steps.push(Step::Exchange { db: maker.random.below(2), key: maker.key(), to: maker.key(), options });
        }
        93..=96 => {
            let db = maker.random.below(2);
            let (before, mut after) = match maker.random.below(4) {
                0 => (vec![b"SCAN".to_vec()], Words::new()),
                kind => (vec![[&b"HSCAN"[..], b"SSCAN", b"ZSCAN"][kind - 1].to_vec(), maker.key()], Words::new()),
            };
            if maker.random.one_in(2) {
                after.extend(words(&["COUNT", maker.random.pick(&["1", "3", "7"])]));
            }
            if maker.random.one_in(4) {
                after.extend(words(&["MATCH", maker.random.pick(&["*1*", "?", "[a-f]*"])]));
            }
            steps.push(Step::Iterate { db, before, after });
        }
        _ => {
            let list = |maker: &mut Maker<'_>| maker.random.pick(&["l1", "l2", "l3"]).to_string();
            let zset = |maker: &mut Maker<'_>| maker.random.pick(&["z1", "z2", "z3"]).to_string();
            let stream = |maker: &mut Maker<'_>| maker.random.pick(&["x1", "x2", "x3"]).to_string();
            let mut groups = Vec::new();
            let kind = match maker.random.below(11) {
                6 if settings.events.is_some_and(|classes| classes.contains('m')) => 7,
                kind => kind,
            };
            let text = match kind {
                0 => format!("BLPOP {} {} 0", list(maker), list(maker)),
                1 => format!("BRPOP {} 0", list(maker)),
                2 => format!("BLMOVE {} {} LEFT RIGHT 0", list(maker), list(maker)),
                3 => format!("BLMPOP 0 2 {} {} RIGHT COUNT 2", list(maker), list(maker)),
                4 => format!("BZPOPMIN {} {} 0", zset(maker), zset(maker)),
                5 => format!("BZMPOP 0 1 {} MAX COUNT 3", zset(maker)),
                6 => format!("XREAD BLOCK 0 STREAMS x3 {} $ 0", maker.random.pick(&["x1", "x2"])),
                7 => format!("XREAD COUNT 2 BLOCK 0 STREAMS {} $", stream(maker)),
                8 => {
                    groups = vec!["x3".to_owned(), maker.random.pick(&["x1", "x2"]).to_string()];
                    format!("XREADGROUP GROUP y1 c1 BLOCK 0 STREAMS {} {} > >", groups[0], groups[1])
                }
                _ => {
                    groups = vec![stream(maker)];
                    let count = maker.random.pick(&["COUNT 1", "NOACK"]);
                    format!("XREADGROUP GROUP y1 c2 BLOCK 0 {count} STREAMS {} >", groups[0])
                }
            };
            let blocks = words(&text.split(' ').collect::<Vec<_>>());
            let emptied =
                blocks[1..].iter().filter(|word| matches!(word[..], [b'l' | b'z' | b'x', b'1'..=b'3'])).cloned();
            let mut delete = vec![b"DEL".to_vec()];
            delete.extend(emptied);
            let filled = delete[1].clone();
            steps.push(one(0, words(&["DISCARD"])));
            steps.push(one(0, words(&["SELECT", "0"])));
            steps.push(one(1, words(&["DISCARD"])));
            steps.push(one(1, words(&["SELECT", "0"])));
            steps.push(one(0, delete));
            for key in &groups {
                steps.push(one(0, words(&["XGROUP", "CREATE", key, "y1", "$", "MKSTREAM"])));
            }
            let mut then: Vec<Words> = Vec::new();
            for _ in 0..maker.random.below(4) {
                let mut command = maker.command();
                if maker.random.one_in(3) {
                    let fill = match filled[0] {
                        b'l' => &["RPUSH", "k", "a", "b"][..],
                        b'z' => &["ZADD", "k", "1", "a"],
                        _ => &["XADD", "k", "1-*", "f", "a"],
                    };
                    command = words(fill);
                    command[1] = filled.clone();
                }
                then.extend(unit(command, settings));
            }
            let unblock = if maker.random.one_in(2) { "TIMEOUT" } else { "ERROR" };
            steps.push(Step::Block { words: blocks, then, unblock });
        }
    }
}

fn transaction(maker: &mut Maker<'_>, steps: &mut Vec<Step>, settings: &Settings) {
    steps.push(one(0, words(&["DISCARD"])));
    for _ in 0..maker.random.below(2) {
        let key = maker.key();
        steps.push(one(0, vec![b"WATCH".to_vec(), key]));
    }
    let others = |maker: &mut Maker<'_>, steps: &mut Vec<Step>| {
        if maker.random.one_in(6) {
            steps.push(Step::Run { client: 1, commands: unit(maker.command(), settings) });
        }
    };
    others(maker, steps);
    steps.push(one(0, words(&["MULTI"])));
    for _ in 0..maker.random.below(8) {
        let mut command = maker.command();
        if begins(&command) {
            command = words(&["PING"]);
        }
        steps.push(Step::Run { client: 0, commands: unit(command, settings) });
    }
    others(maker, steps);
    let end = if maker.random.one_in(10) { "DISCARD" } else { "EXEC" };
    steps.push(one(0, words(&[end])));
}

/// Returns whether the command must not occur in a transaction: Valkey would refuse EXEC.
fn begins(command: &[Vec<u8>]) -> bool {
    [&b"MULTI"[..], b"WATCH"].iter().any(|name| command[0].eq_ignore_ascii_case(name))
}

fn one(client: usize, command: Words) -> Step {
    Step::Run { client, commands: vec![command] }
}

fn by_name(name: &[u8], command: &[Vec<u8>]) -> bool {
    name.ends_with(b"BYLEX")
        || name == b"ZLEXCOUNT"
        || name.starts_with(b"ZRANGE") && command.iter().any(|word| word.eq_ignore_ascii_case(b"BYLEX"))
}

/// Returns whether SORT has this option with a pattern that leads to other keys or, if `leads` is false, with one that
/// does not.
fn has_pattern(sort: &[Vec<u8>], option: &[u8], leads: bool) -> bool {
    // As in Redis, a pattern ends at the first NUL.
    let is_led = |pattern: &[u8]| pattern.iter().take_while(|byte| **byte != 0).any(|byte| *byte == b'*');
    sort[1..].windows(2).any(|pair| pair[0].eq_ignore_ascii_case(option) && is_led(&pair[1]) == leads)
}

/// Returns whether a SORT specifies no order.
pub(super) fn is_unordered(sort: &[Vec<u8>]) -> bool {
    has_pattern(sort, b"by", false)
}

/// Returns SORT with the commands around it that make Redis's reply reproducible. Redis converts a sorted set that it
/// sorts to the large encoding, and reads the members of a set in the order of its hash table; so a copy is sorted,
/// under one of two names. [`LISTED`] is a list of the same elements: equal texts keep their order, and missing keys
/// are looked up in this order. In [`SORTED`], texts that are equal up to a NUL come in any order, so only the elements
/// themselves are requested.
fn sort(mut sort: Words, settings: &Settings) -> Vec<Words> {
    let has = |sort: &[Vec<u8>], other: &str| sort[2..].iter().any(|word| word.eq_ignore_ascii_case(other.as_bytes()));
    let (by, gets) = (has_pattern(&sort, b"by", true), has_pattern(&sort, b"get", true));
    let is_list = match has(&sort, "alpha") {
        _ if settings.events.is_some_and(|classes| classes.contains('m')) => by || gets,
        true => by || !has(&sort, "store") && (gets || sort[1].starts_with(b"l")),
        false => false,
    };
    if has(&sort, "alpha") && by {
        // Among elements of equal weight, it is arbitrary which ones a limit leaves.
        while let Some(at) = sort[2..].iter().position(|word| word.eq_ignore_ascii_case(b"limit")) {
            sort.drain(at + 2..sort.len().min(at + 5));
        }
    }
    let key = std::mem::replace(&mut sort[1], if is_list { LISTED } else { SORTED }.to_vec());
    // Redis's SORT takes an out-of-range number of an earlier command for its own; the number of this command is in
    // range.
    let number = words(&["ZADD", "sorted", "XX", "1", "a"]);
    let copy = vec![b"COPY".to_vec(), key, SORTED.to_vec(), b"REPLACE".to_vec()];
    let list = words(&["SORT", "sorted", "BY", "nosort", "STORE", "listed"]);
    vec![number, copy, list, sort, words(&["DEL", "sorted", "listed"])]
}

/// Returns a command with the commands that must follow it.
fn unit(command: Words, settings: &Settings) -> Vec<Words> {
    let name = command[0].to_ascii_uppercase();
    let is = |other: &str| name == other.as_bytes();
    let mut command = command;
    if name.starts_with(b"Z") {
        // Valkey counts a negative offset from the end of a sorted set in the large encoding; in the small one it
        // returns nothing.
        for at in 1..command.len() {
            if command[at - 1].eq_ignore_ascii_case(b"limit") && command[at].starts_with(b"-") {
                command[at].remove(0);
            }
        }
    }
    match command.get(1) {
        // The remaining elements are random.
        Some(key) if is("SPOP") => {
            let delete = vec![b"DEL".to_vec(), key.clone()];
            vec![command, delete]
        }
        Some(_) if is("SORT") || is("SORT_RO") => sort(command, settings),
        // A range by member is defined only among members of equal score.
        Some(_) if by_name(&name, &command) => {
            const COPY: &[u8] = b"lex";
            let at = if is("ZRANGESTORE") { 2 } else { 1 };
            let Some(key) = command.get(at) else { return vec![command] };
            let level = [&b"ZUNIONSTORE"[..], COPY, b"1", key, b"WEIGHTS", b"0"].map(<[u8]>::to_vec).to_vec();
            let mut ranged = command.clone();
            ranged[at] = COPY.to_vec();
            vec![level, ranged, words(&["DEL", "lex"])]
        }
        _ if begins(&command) => vec![words(&["DISCARD"]), command],
        None if is("RESET") => vec![command, words(&["HELLO", &settings.protocol.to_string()])],
        _ => vec![command],
    }
}

impl Step {
    /// Returns how many commands each program gets.
    pub(super) fn commands(&self) -> usize {
        match self {
            Step::Run { commands, .. } => commands.len(),
            Step::Subscriber(_) => 1,
            Step::Exchange { .. } | Step::Iterate { .. } => 2,
            Step::Block { then, .. } => 2 + then.len(),
        }
    }

    /// Returns the step as lines for a reader.
    pub(super) fn show(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = match self {
            Step::Run { client, commands } => {
                commands.iter().try_for_each(|words| writeln!(text, "  client {client}: {}", shown(words)))
            }
            Step::Subscriber(words) => writeln!(text, "  subscriber: {}", shown(words)),
            Step::Exchange { db, key, to, options } => writeln!(
                text,
                "  in database {db}: DUMP {}, then what the other program said: RESTORE {} 0 PAYLOAD {}",
                Shown(key),
                Shown(to),
                shown(options)
            ),
            Step::Iterate { db, before, after } => {
                writeln!(
                    text,
                    "  in database {db}, until it comes back to 0: {} CURSOR {}",
                    shown(before),
                    shown(after)
                )
            }
            Step::Block { words, then, unblock } => {
                let mut done = writeln!(text, "  client 1 blocks: {}", shown(words));
                for words in then {
                    done = done.and_then(|()| writeln!(text, "  client 0: {}", shown(words)));
                }
                done.and_then(|()| writeln!(text, "  CLIENT UNBLOCK client-1 {unblock}"))
            }
        };
        text
    }
}

/// Returns a command as one would type it.
pub(super) fn shown(words: &[Vec<u8>]) -> String {
    let words: Vec<String> = words.iter().map(|word| Shown(word).to_string()).collect();
    words.join(" ")
}
