//! DEBUG: the subcommands that public test suites need and that do not disturb other clients.
//!
//! As in Redis 7 it is refused unless `enable-debug-command` allows it when the server starts. Subcommands that would
//! end the process, or show data structures that do not exist here, are refused by name.

use std::time::Duration;

use sluicegate_data::clock::{TICKS_PER_S, idle_ticks};
use sluicegate_data::glob;
use sluicegate_data::rdb;
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};

use super::dispatch::{Context, Outcome};
use super::rows::ROWS;
use super::{digest, persistence};
use crate::execute::Origin;
use crate::levels::WARNING;
use crate::owned::ReplyForm;
use crate::park::{Parked, Waits};
use crate::stripe::Now;

/// The longest DEBUG SLEEP.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a payload that are not the value: its type, the version and the checksum.
const PAYLOAD_EXTRA: usize = 1 + 2 + 8;
/// The maximum number of keys that one POPULATE creates.
const POPULATE_MAX: i64 = 100_000_000;

/// Subcommands of Redis that this store refuses.
const REFUSED: &[&str] = &[
    "aof-flush-sleep",
    "assert",
    "change-repl-id",
    "client-eviction",
    "clusterlink",
    "config-rewrite-force-all",
    "crash-and-recover",
    "drop-cluster-packet-filter",
    "htstats",
    "htstats-key",
    "jmap",
    "leak",
    "listpack",
    "listpack-entries",
    "mallctl",
    "mallctl-str",
    "oom",
    "panic",
    "pause-cron",
    "quicklist",
    "quicklist-packed-threshold",
    "replicate",
    "replybuffer",
    "restart",
    "sdslen",
    "segfault",
    "set-skip-checksum-validation",
    "structsize",
    "ziplist",
];

/// `DEBUG subcommand …`.
pub(super) fn debug(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let allowed = match context.options.enable_debug_command {
        "yes" => true,
        "local" => context.client.is_local(),
        _ => false,
    };
    if !allowed {
        out.error(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from \
             a local connection, otherwise you need to set this option in the configuration file, and then restart \
             the server.",
        );
        return Outcome::Done;
    }
    let name = args[1].to_ascii_lowercase();
    match (&name[..], &args[2..]) {
        (b"help", []) => help(out),
        (b"sleep", [seconds]) => return sleep(context, seconds),
        (b"object", [key]) => object(context, key, out),
        (b"set-active-expire", [switch]) => {
            context.worker.server.store.expire_actively(parse_number(switch) != 0);
            out.ok();
        }
        (b"stringmatch-len", [len, pattern]) => stringmatch_len(len, pattern, out),
        (b"stringmatch-test", []) => {
            glob_test();
            out.simple("Apparently Redis did not crash: test passed");
        }
        (b"error", [text]) => out.error_bytes(text),
        (b"protocol", [kind]) => protocol(&kind.to_ascii_lowercase(), context.session.protocol, out),
        (b"digest", []) => return persistence::digest(context, out),
        (b"digest-value", keys) => {
            let (inner, db) = (&context.worker.server.store.0, context.session.db);
            out.array(keys.len());
            keys.iter().for_each(|key| out.simple(&digest::of_key(inner, db, key).text()));
        }
        (b"loadaof", []) => return persistence::load_append_only(context, out),
        (b"log", [text]) => {
            context.worker.server.log(WARNING, &format!("DEBUG LOG: {}", String::from_utf8_lossy(text)));
            out.ok();
        }
        (b"reload", options) => return persistence::reload(context, options, out),
        (b"populate", [count, rest @ ..]) if rest.len() <= 2 => return populate(context, count, rest, out),
        (name, _) if REFUSED.iter().any(|refused| refused.as_bytes() == name) => {
            out.error(&format!("ERR DEBUG {} is not supported", String::from_utf8_lossy(args[1])));
        }
        _ => {
            let shown = String::from_utf8_lossy(&args[1][..args[1].len().min(128)]);
            out.error(&format!("ERR unknown subcommand or wrong number of arguments for '{shown}'. Try DEBUG HELP."));
        }
    }
    Outcome::Done
}

/// Parses a number as C does: anything that is not a number is 0.
fn parse_number(word: &[u8]) -> i64 {
    parse_i64(word).unwrap_or(0)
}

fn help(out: &mut ReplyWriter<'_>) {
    let lines = [
        "DIGEST",
        "    Output a hex signature representing the current DB content.",
        "DIGEST-VALUE <key> [<key> ...]",
        "    Output a hex signature of the values of all the specified keys.",
        "ERROR <string>",
        "    Return a Redis protocol error with <string> as message. Useful for clients",
        "    unit tests to simulate Redis errors.",
        "LOADAOF",
        "    Flush the AOF buffers on disk and reload the AOF in memory.",
        "LOG <message>",
        "    Write <message> to the server log.",
        "OBJECT <key>",
        "    Show low level info about `key` and associated value.",
        "POPULATE <count> [<prefix>] [<size>]",
        "    Create <count> string keys named key:<num>. If <prefix> is specified then",
        "    it is used instead of the 'key' prefix.",
        "PROTOCOL <type>",
        "    Reply with a test value of the specified type. <type> can be: string,",
        "    integer, double, bignum, null, array, set, map, push, verbatim, true, false.",
        "RELOAD [option ...]",
        "    Save the RDB on disk and reload it back to memory. Valid <option> values:",
        "    * MERGE: conflicting keys will be loaded from RDB.",
        "    * NOFLUSH: the existing database will not be removed before load, but",
        "      conflicting keys will generate an exception and kill the server.",
        "    * NOSAVE: the database will be loaded from an existing RDB file.",
        "SET-ACTIVE-EXPIRE <0|1>",
        "    Setting it to 0 disables expiring keys in background when they are not",
        "    accessed (otherwise the Redis behavior). Setting it to 1 reenables back the",
        "    default.",
        "SLEEP <seconds>",
        "    Delay the answer to this client for <seconds>. Decimals allowed.",
        "STRINGMATCH-LEN <len> <pattern>",
        "    Match a string of <len> times 'a' with <pattern>.",
        "STRINGMATCH-TEST",
        "    Run a fuzz tester against the function that matches patterns.",
    ];
    crate::command::help("DEBUG", &lines, out);
}

/// Delays this client; Redis's delays all. The time counts as execution, for the slow log and events.
fn sleep(context: &Context<'_>, seconds: &[u8]) -> Outcome {
    let seconds = std::str::from_utf8(seconds).ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default().min(SLEEP_MAX);
    let form = ReplyForm::Wire(context.session.protocol);
    Outcome::Parked(Parked(Waits::Sleep(Box::pin(tokio::time::sleep(time)), time, form)))
}

fn object(context: &Context<'_>, key: &[u8], out: &mut ReplyWriter<'_>) {
    let inner = &context.worker.server.store.0;
    let mut expired = None;
    let found = {
        let pass = inner.gate.enter();
        inner.keyspace.db(&pass, context.session.db).and_then(|db| {
            let hash = inner.keyspace.hasher.hash(key);
            let mut stripe = db.lock(inner.keyspace.stripe_of(hash));
            let mut now = Now::new(&inner.clock, &inner.limits);
            let slot = stripe.find(hash, key, &mut now, true);
            if now.take_removed() {
                inner.record_expired(context.session.db, key);
                expired = inner.lose_tracked(hash, key);
            }
            let slot = slot?;
            let entry = stripe.table.entry(slot);
            let idle_s = i64::from(idle_ticks(now.ticks(), entry.access())) / TICKS_PER_S;
            Some((hash, entry.encoding(), entry.copy_value(), entry.access(), idle_s))
        })
    };
    inner.emit(expired);
    let Some((hash, encoding, value, access, idle_s)) = found else { return out.error("ERR no such key") };
    let length = rdb::dump(&value).len() - PAYLOAD_EXTRA;
    // No address of this process is disclosed; the hash of the key distinguishes keys as well.
    let place = hash >> 16;
    let lru = access & 0xff_ffff;
    out.simple(&format!(
        "Value at:0x{place:x} refcount:1 encoding:{encoding} serializedlength:{length} lru:{lru} lru_seconds_idle:{idle_s}"
    ));
}

/// Matches a long string, to show that no pattern takes too long.
fn stringmatch_len(len: &[u8], pattern: &[u8], out: &mut ReplyWriter<'_>) {
    match parse_i64(len) {
        Some(len @ 0..=1_000_000) => out.integer(i64::from(glob::matches(pattern, &vec![b'a'; len as usize]))),
        _ => out.error("ERR value is not an integer or out of range"),
    }
}

fn glob_test() {
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u8
    };
    for _ in 0..20_000 {
        let mut bytes = |most: u8| (0..random() % most).map(|_| random()).collect::<Vec<u8>>();
        let (pattern, text) = (bytes(32), bytes(32));
        std::hint::black_box(glob::matches(&pattern, &text));
    }
}

/// Writes a value of a kind, the same value as Redis.
fn protocol(kind: &[u8], version: Protocol, out: &mut ReplyWriter<'_>) {
    match kind {
        b"string" => out.bulk(b"Hello World"),
        b"integer" => out.integer(12345),
        b"double" => out.double(3141.0 / 1000.0),
        b"bignum" => out.big_number("1234567999999999999999999999999999999"),
        b"null" => out.null(),
        b"array" => {
            out.array(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"map" => {
            out.map(3);
            for number in 0..3 {
                out.integer(number);
                out.boolean(number == 1);
            }
        }
        b"push" if version == Protocol::Resp2 => {
            out.error("ERR RESP2 is not supported by this command");
        }
        b"push" => {
            out.push(2);
            out.bulk(b"server-cpu-usage");
            out.integer(42);
        }
        b"attrib" => out.error("ERR DEBUG PROTOCOL attrib is not supported"),
        b"verbatim" => out.verbatim(*b"txt", b"This is a verbatim\nstring"),
        b"true" => out.boolean(true),
        b"false" => out.boolean(false),
        _ => out.error(
            "ERR Wrong protocol type name. Please use one of the following: \
             string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
        ),
    }
}

/// `POPULATE count [prefix] [size]`, in slices.
fn populate(context: &Context<'_>, count: &[u8], rest: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let number = |word: &[u8]| parse_i64(word).filter(|number| (0..=POPULATE_MAX).contains(number));
    let size = rest.get(1).map_or(Some(0), |word| number(word));
    let (Some(count), Some(size)) = (number(count), size) else {
        out.error("ERR value is out of range, must be positive");
        return Outcome::Done;
    };
    let prefix = rest.first().map_or(&b"key"[..], |prefix| prefix).to_vec();
    let (inner, db) = (context.worker.server.store.0.clone(), context.session.db);
    let Some(spec) = ROWS.find(b"setnx").map(|row| row.spec) else { return Outcome::Done };
    let mut next = 0;
    let step = move || {
        if next == count {
            return true;
        }
        let key = [&prefix[..], b":", itoa::Buffer::new().format(next).as_bytes()].concat();
        let mut value = format!("value:{next}").into_bytes();
        if size > 0 {
            value.resize(size as usize, 0);
        }
        let mut reply = Vec::new();
        let mut sink = ReplyWriter::new(&mut reply, Protocol::Resp2);
        // A held key exists, or will be created by an earlier waiter.
        let origin = Origin { db, ..Origin::default() };
        drop(inner.start(&inner, spec, &[b"SETNX", &key, &value], origin, ReplyForm::Value, &mut sink));
        next += 1;
        false
    };
    Outcome::Parked(Parked(Waits::Steps(Box::new(step), ReplyForm::Wire(context.session.protocol))))
}
