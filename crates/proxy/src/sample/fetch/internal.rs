//! Clocks, random numbers, the process, and internal state of a stream (HAProxy configuration manual 7.3.2).

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::args::Args;
use super::code::{Compiled, read, read_with};
use crate::random::{random, random_below};
use crate::sample::value::Value;
use crate::stream::Timers;

pub(super) fn res_cache_hit(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.cache_hit().is_some())))
}

pub(super) fn res_cache_name(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Str(Cow::Owned(cx.cache_hit()?.cache.config().name.as_bytes().to_vec()))))
}

pub(super) fn res_comp(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.log.compressed.is_some())))
}

pub(super) fn res_comp_algo(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(cx.log.compressed?.name().as_bytes())))
}

pub(super) fn date_us(_: &Args<'_>) -> Compiled {
    read(|_| Some(Value::Int(i64::from(since_epoch(SystemTime::now()).subsec_micros()))))
}

pub(super) fn hostname(_: &Args<'_>) -> Compiled {
    read(|_| Some(Value::text(this_hostname())))
}

pub(super) fn stopping(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.frontend.directory.process.is_stopping())))
}

pub(super) fn act_conns(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.frontend.directory.process.sessions.current()))))
}

pub(super) fn wait_end(_: &Args<'_>) -> Compiled {
    read(|cx| cx.inspection.is_over().then_some(Value::Bool(true)))
}

pub(super) fn id32(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.id as u32))))
}

pub(super) fn spoe_engine_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::text(cx.spoe.as_ref()?.carried.as_ref()?.id.as_bytes())))
}

pub(super) fn term_events(_: &Args<'_>) -> Compiled {
    read(|_| Some(Value::text(b"-")))
}

pub(super) fn conn_retries(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.log.retries))))
}

pub(super) fn store_failures(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.log.store_failures))))
}

pub(super) fn redispatched(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.log.redispatched)))
}

pub(super) fn sess_term_state(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::owned_text(vec![cx.log.ending.who, cx.log.ending.phase])))
}

pub(super) fn prio_class(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.priority.class))))
}

pub(super) fn prio_offset(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(i64::from(cx.priority.offset))))
}

pub(super) fn unique_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::owned_text(cx.unique_id()?.to_vec())))
}

pub(super) fn txn_status(_: &Args<'_>) -> Compiled {
    read(|cx| (cx.log.status > 0).then(|| Value::Int(i64::from(cx.log.status))))
}

pub(super) fn last_rule_file(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::owned_text(cx.log.last_rule?.file().as_bytes().to_vec())))
}

pub(super) fn last_rule_line(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.log.last_rule?.line().into())))
}

pub(super) fn last_entity(_: &Args<'_>) -> Compiled {
    read(|cx| {
        let place = cx.log.last_rule?;
        Some(Value::owned_text(format!("{}:{}", place.file(), place.line()).into_bytes()))
    })
}

pub(super) fn waiting_entity(_: &Args<'_>) -> Compiled {
    read(|cx| {
        let place = cx.log.waiting_rule?;
        Some(Value::owned_text(format!("{}:{}", place.file(), place.line()).into_bytes()))
    })
}

pub(super) fn server_status(_: &Args<'_>) -> Compiled {
    read(|cx| (cx.log.server_status > 0).then(|| Value::Int(i64::from(cx.log.server_status))))
}

pub(super) fn strm_is_htx(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.is_http())))
}

pub(super) fn fs_aborted(_: &Args<'_>) -> Compiled {
    read(|cx| {
        let reset = || cx.client.http2().is_some_and(|facts| facts.reset_code(cx.stream_id).is_some());
        Some(Value::Bool(cx.log.ending.who == b'C' || reset()))
    })
}

pub(super) fn bs_aborted(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.log.ending.who == b'S')))
}

pub(super) fn uptime(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.frontend.directory.process.started.elapsed().as_secs() as i64)))
}

pub(super) fn bytes_in(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.log.bytes_uploaded as i64)))
}

pub(super) fn bytes_out(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.log.bytes_read as i64)))
}

/// `thread`: the upper 16 bits of a stream's number contain its worker.
pub(super) fn thread(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int((cx.id >> 48) as i64)))
}

/// `date([offset[,unit]])`.
pub(super) fn date(args: &Args<'_>) -> Compiled {
    read_with((args.int(0)?.unwrap_or(0), unit(args, 1)?), |(offset, unit), _| {
        Some(Value::Int(unit.count(SystemTime::now()).saturating_add(*offset)))
    })
}

/// `accept_date([unit])`.
pub(super) fn accept_date(args: &Args<'_>) -> Compiled {
    read_with(unit(args, 0)?, |unit, cx| Some(Value::Int(unit.count(cx.log.accepted_at()))))
}

/// `request_date([unit])`.
pub(super) fn request_date(args: &Args<'_>) -> Compiled {
    read_with(unit(args, 0)?, |unit, cx| Some(Value::Int(unit.count(cx.log.request_started_at))))
}

/// `rand([range])`: a random number below the range, which is 2^32 by default.
pub(super) fn rand(args: &Args<'_>) -> Compiled {
    let range = match args.int(0)? {
        None => 1 << 32,
        Some(range) if range > 0 => range as u64,
        Some(range) => return Err(format!("rand needs a positive range, found {range}")),
    };
    read_with(range, |range, _| Some(Value::Int(random_below(*range) as i64)))
}

/// `uuid([version])`: 4 or 7.
pub(super) fn uuid(args: &Args<'_>) -> Compiled {
    let version = match args.int(0)?.unwrap_or(4) {
        version @ (4 | 7) => version as u8,
        version => return Err(format!("uuid makes versions 4 and 7, not {version}")),
    };
    read_with(version, |version, _| Some(Value::owned_text(new_uuid(*version))))
}

/// Returns a fetch of a phase's duration in milliseconds; -1 if it was not reached. A phase that has not ended is
/// measured up to now.
pub(super) fn timer(phase: impl Fn(&Timers) -> i64 + Send + Sync + 'static) -> Compiled {
    read(move |cx| Some(Value::Int(phase(&Timers::of(&cx.log, cx.log.ended.unwrap_or_else(Instant::now))))))
}

/// The unit of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DateUnit {
    /// `s`.
    Seconds,
    /// `ms`.
    Milliseconds,
    /// `us`.
    Microseconds,
}

fn unit(args: &Args<'_>, index: usize) -> Result<DateUnit, String> {
    match args.str(index)? {
        None | Some("s") => Ok(DateUnit::Seconds),
        Some("ms") => Ok(DateUnit::Milliseconds),
        Some("us") => Ok(DateUnit::Microseconds),
        Some(other) => Err(format!("'{other}' is not s, ms or us")),
    }
}

fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl DateUnit {
    /// Returns the time since 1970 in the unit.
    fn count(self, at: SystemTime) -> i64 {
        let at = since_epoch(at);
        match self {
            DateUnit::Seconds => at.as_secs() as i64,
            DateUnit::Milliseconds => at.as_millis() as i64,
            DateUnit::Microseconds => at.as_micros() as i64,
        }
    }
}

/// Returns the host name of this machine, which is read once.
fn this_hostname() -> &'static [u8] {
    static NAME: OnceLock<Vec<u8>> = OnceLock::new();
    NAME.get_or_init(|| {
        let mut name = [0u8; 256];
        // SAFETY: the array is as long as said, and outlives the call.
        let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        if failed { Vec::new() } else { name[..end].to_vec() }
    })
}

/// Returns an identifier of RFC 9562: random (version 4), or a time in milliseconds and random bits (version 7).
pub(crate) fn new_uuid(version: u8) -> Vec<u8> {
    let mut bits = (u128::from(random()) << 64) | u128::from(random());
    if version == 7 {
        let ms = since_epoch(SystemTime::now()).as_millis() & 0xffff_ffff_ffff;
        bits = bits & (u128::MAX >> 48) | (ms << 80);
    }
    bits = bits & !(0xf << 76) | (u128::from(version) << 76);
    bits = bits & !(0x3 << 62) | (0x2 << 62);
    let part = |shift: u32, digits: u32| (bits >> shift) & ((1 << (digits * 4)) - 1);
    let (a, b, c, d, e) = (part(96, 8), part(80, 4), part(64, 4), part(48, 4), part(0, 12));
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::LogRecord;

    #[test]
    fn dates_have_their_unit() {
        let at = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(DateUnit::Seconds.count(at), 1_700_000_000);
        assert_eq!(DateUnit::Milliseconds.count(at), 1_700_000_000_123);
        assert_eq!(DateUnit::Microseconds.count(at), 1_700_000_000_123_456);
    }

    #[test]
    fn identifiers_have_their_form_and_differ() {
        for version in [4u8, 7] {
            let (one, other) = (new_uuid(version), new_uuid(version));
            assert_ne!(one, other);
            let text = String::from_utf8(one).expect("ascii");
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{text}");
            assert_eq!(text.as_bytes()[14], b'0' + version, "{text}");
            assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{text}");
        }
        let ms = |text: &[u8]| i64::from_str_radix(&String::from_utf8_lossy(text).replace('-', "")[..12], 16).unwrap();
        assert!(ms(&new_uuid(7)) > 1_700_000_000_000);
    }

    #[test]
    fn phases_that_were_not_reached_are_minus_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let times = |log: &LogRecord| Timers::of(log, at(100));
        let mut log = LogRecord::new(UNIX_EPOCH, start);
        log.request_started = at(5);
        assert_eq!(times(&log).request, -1);
        assert_eq!(times(&log).request_total, -1);
        assert_eq!(times(&log).idle, 5);
        log.request_done = Some(at(15));
        log.queue_done = Some(at(17));
        log.connect_done = Some(at(20));
        assert_eq!(times(&log).response, -1);
        assert_eq!(times(&log).data, -1);
        log.response_started = Some(at(50));
        let Timers { request, request_total, queue, connect, response, .. } = times(&log);
        assert_eq!([request, request_total, queue, connect, response], [10, 15, 2, 3, 30]);
        let Timers { data, active, user, total, .. } = times(&log);
        assert_eq!([data, active, user, total], [50, 95, 95, 100]);
    }
}
