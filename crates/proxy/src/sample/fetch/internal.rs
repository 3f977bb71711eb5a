//! Clocks, random numbers, the process, and what a stream knows of itself (HAProxy configuration manual 7.3.2).

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluicegate_config::catalogue::Fetch;
use sluicegate_config::model::Mode;

use super::Args;
use crate::process::Phase;
use crate::random::{random, random_below};
use crate::sample::value::Value;
use crate::stream::{LogRecord, StreamContext, Timers};

/// The unit of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateUnit {
    /// `s`.
    Seconds,
    /// `ms`.
    Milliseconds,
    /// `us`.
    Microseconds,
}

/// A phase of a stream, whose time is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// `bc.timer.connect`.
    Connect,
    /// `fc.timer.handshake`: there are none.
    Handshake,
    /// `fc.timer.total`.
    Session,
    /// `req.timer.hdr`.
    RequestHead,
    /// `req.timer.idle`.
    Idle,
    /// `req.timer.queue`.
    Queue,
    /// `req.timer.tq`.
    RequestTotal,
    /// `res.timer.data`.
    ResponseData,
    /// `res.timer.hdr`.
    ResponseHead,
    /// `res.timer.user`.
    User,
    /// `txn.timer.total`.
    Total,
}

/// A fetch of internal state.
#[derive(Clone, Debug)]
pub enum Internal {
    /// `date([offset[,unit]])`.
    Date(i64, DateUnit),
    /// `res.comp`.
    Compressed,
    /// `res.comp_algo`.
    Algorithm,
    /// `date_us`.
    DateMicros,
    /// `accept_date([unit])`.
    AcceptDate(DateUnit),
    /// `request_date([unit])`.
    RequestDate(DateUnit),
    /// `hostname`.
    Hostname,
    /// `rand([range])`: below the range; 2^32 by default.
    Random(u64),
    /// `uuid([version])`: 4 or 7.
    Uuid(u8),
    /// `nbproc`, `proc`: there is one process that serves.
    One,
    /// `thread`.
    Thread,
    /// `stopping`.
    Stopping,
    /// `act_conns`.
    Sessions,
    /// `wait_end`.
    WaitEnd,
    /// `txn.id32`.
    Id,
    /// `txn.conn_retries`.
    Retries,
    /// `txn.store_failures`.
    StoreFailures,
    /// `txn.redispatched`.
    Redispatched,
    /// `txn.sess_term_state`.
    Ending,
    /// `prio_class`.
    PriorityClass,
    /// `prio_offset`.
    PriorityOffset,
    /// `unique-id`.
    UniqueId,
    /// `txn.status`.
    Status,
    /// `last_rule_file`.
    LastRuleFile,
    /// `last_rule_line`.
    LastRuleLine,
    /// `last_entity`.
    LastRule,
    /// `internal.strm.is_htx`.
    IsHttp,
    /// `fs.aborted`.
    ClientLeft,
    /// `bs.aborted`.
    ServerLeft,
    /// `uptime`.
    Uptime,
    /// `bytes_in`.
    BytesIn,
    /// `bytes_out`.
    BytesOut,
    /// `*.timer.*`.
    Timer(Timer),
}

impl Internal {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>) -> Result<Option<Internal>, String> {
        Ok(Some(match fetch {
            Fetch::Date => Internal::Date(args.int(0)?.unwrap_or(0), unit(args, 1)?),
            Fetch::DateUs => Internal::DateMicros,
            Fetch::AcceptDate => Internal::AcceptDate(unit(args, 0)?),
            Fetch::RequestDate => Internal::RequestDate(unit(args, 0)?),
            Fetch::Hostname => Internal::Hostname,
            Fetch::Rand => match args.int(0)? {
                None => Internal::Random(1 << 32),
                Some(range) if range > 0 => Internal::Random(range as u64),
                Some(range) => return Err(format!("rand needs a positive range, found {range}")),
            },
            Fetch::Uuid => match args.int(0)?.unwrap_or(4) {
                version @ (4 | 7) => Internal::Uuid(version as u8),
                version => return Err(format!("uuid makes versions 4 and 7, not {version}")),
            },
            Fetch::Nbproc | Fetch::Proc => Internal::One,
            Fetch::Thread => Internal::Thread,
            Fetch::Stopping => Internal::Stopping,
            Fetch::ActConns => Internal::Sessions,
            Fetch::WaitEnd => Internal::WaitEnd,
            Fetch::Id32 => Internal::Id,
            Fetch::ConnRetries => Internal::Retries,
            Fetch::StoreFailures => Internal::StoreFailures,
            Fetch::Redispatched => Internal::Redispatched,
            Fetch::SessTermState => Internal::Ending,
            Fetch::PrioClass => Internal::PriorityClass,
            Fetch::PrioOffset => Internal::PriorityOffset,
            Fetch::UniqueId => Internal::UniqueId,
            Fetch::TxnStatus => Internal::Status,
            Fetch::LastRuleFile => Internal::LastRuleFile,
            Fetch::LastRuleLine => Internal::LastRuleLine,
            Fetch::LastEntity => Internal::LastRule,
            Fetch::StrmIsHtx => Internal::IsHttp,
            Fetch::FsAborted => Internal::ClientLeft,
            Fetch::BsAborted => Internal::ServerLeft,
            Fetch::Uptime => Internal::Uptime,
            Fetch::ResComp => Internal::Compressed,
            Fetch::ResCompAlgo => Internal::Algorithm,
            Fetch::BytesIn => Internal::BytesIn,
            Fetch::BytesOut => Internal::BytesOut,
            Fetch::TimerConnect => Internal::Timer(Timer::Connect),
            Fetch::TimerHandshake => Internal::Timer(Timer::Handshake),
            Fetch::TimerSession => Internal::Timer(Timer::Session),
            Fetch::TimerReqHdr => Internal::Timer(Timer::RequestHead),
            Fetch::TimerReqIdle => Internal::Timer(Timer::Idle),
            Fetch::TimerReqQueue => Internal::Timer(Timer::Queue),
            Fetch::TimerReqTq => Internal::Timer(Timer::RequestTotal),
            Fetch::TimerResData => Internal::Timer(Timer::ResponseData),
            Fetch::TimerResHdr => Internal::Timer(Timer::ResponseHead),
            Fetch::TimerResUser => Internal::Timer(Timer::User),
            Fetch::TimerTotal => Internal::Timer(Timer::Total),
            _ => return Ok(None),
        }))
    }

    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        let process = &cx.frontend.directory.process;
        Some(match self {
            Internal::Date(offset, unit) => Value::Int(date(SystemTime::now(), *unit).saturating_add(*offset)),
            Internal::Compressed => Value::Bool(cx.log.compressed.is_some()),
            Internal::Algorithm => Value::text(cx.log.compressed?.name().as_bytes()),
            Internal::DateMicros => Value::Int(i64::from(since_epoch(SystemTime::now()).subsec_micros())),
            Internal::AcceptDate(unit) => Value::Int(date(cx.log.accepted_at(), *unit)),
            Internal::RequestDate(unit) => Value::Int(date(cx.log.request_started_at, *unit)),
            Internal::Hostname => Value::text(hostname()),
            Internal::Random(range) => Value::Int(random_below(*range) as i64),
            Internal::Uuid(version) => Value::owned_text(uuid(*version)),
            Internal::One => Value::Int(1),
            // A stream's number has its worker in the upper 16 bits.
            Internal::Thread => Value::Int((cx.id >> 48) as i64),
            Internal::Stopping => Value::Bool(process.phase() != Phase::Serving),
            Internal::Sessions => Value::Int(i64::from(process.sessions.current())),
            Internal::WaitEnd => return cx.inspection.is_over().then_some(Value::Bool(true)),
            Internal::Id => Value::Int(i64::from(cx.id as u32)),
            Internal::Retries => Value::Int(i64::from(cx.log.retries)),
            Internal::StoreFailures => Value::Int(i64::from(cx.log.store_failures)),
            Internal::Redispatched => Value::Bool(cx.log.redispatched),
            Internal::Ending => Value::owned_text(vec![cx.log.ending.who, cx.log.ending.phase]),
            Internal::PriorityClass => Value::Int(i64::from(cx.priority.class)),
            Internal::PriorityOffset => Value::Int(i64::from(cx.priority.offset)),
            Internal::UniqueId => Value::owned_text(cx.unique_id()?.to_vec()),
            Internal::Status => match cx.log.status {
                ..=0 => return None,
                status => Value::Int(i64::from(status)),
            },
            Internal::LastRuleFile => Value::owned_text(cx.log.last_rule?.file().as_bytes().to_vec()),
            Internal::LastRuleLine => Value::Int(cx.log.last_rule?.line().into()),
            Internal::LastRule => {
                let place = cx.log.last_rule?;
                Value::owned_text(format!("{}:{}", place.file(), place.line()).into_bytes())
            }
            Internal::ServerLeft => Value::Bool(cx.log.ending.who == b'S'),
            Internal::Uptime => Value::Int(process.started.elapsed().as_secs() as i64),
            Internal::ClientLeft => Value::Bool(cx.log.ending.who == b'C'),
            Internal::IsHttp => Value::Bool(cx.frontend.config.mode == Mode::Http),
            Internal::BytesIn => Value::Int(cx.log.bytes_uploaded as i64),
            Internal::BytesOut => Value::Int(cx.log.bytes_read as i64),
            Internal::Timer(timer) => Value::Int(time(&cx.log, *timer, cx.log.ended.unwrap_or_else(Instant::now))),
        })
    }
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

/// The time since 1970 in the unit.
fn date(at: SystemTime, unit: DateUnit) -> i64 {
    let at = since_epoch(at);
    match unit {
        DateUnit::Seconds => at.as_secs() as i64,
        DateUnit::Milliseconds => at.as_millis() as i64,
        DateUnit::Microseconds => at.as_micros() as i64,
    }
}

/// A phase's milliseconds; -1 where it was not reached. What has not ended is told as if it ended now.
fn time(log: &LogRecord, timer: Timer, now: Instant) -> i64 {
    let times = Timers::of(log, now);
    match timer {
        Timer::Connect => times.connect,
        Timer::Handshake => 0,
        Timer::Session => times.total,
        Timer::RequestHead => times.request,
        Timer::Idle => times.idle,
        Timer::Queue => times.queue,
        Timer::RequestTotal => times.request_total,
        Timer::ResponseData => times.data,
        Timer::ResponseHead => times.response,
        Timer::User => times.user,
        Timer::Total => times.active,
    }
}

/// This machine's name, read once.
fn hostname() -> &'static [u8] {
    static NAME: OnceLock<Vec<u8>> = OnceLock::new();
    NAME.get_or_init(|| {
        let mut name = [0u8; 256];
        // SAFETY: the array is as long as said, and outlives the call.
        let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        if failed { Vec::new() } else { name[..end].to_vec() }
    })
}

/// An identifier of RFC 9562: random (version 4), or a time in milliseconds and random bits (version 7).
fn uuid(version: u8) -> Vec<u8> {
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

    #[test]
    fn dates_have_their_unit() {
        let at = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(date(at, DateUnit::Seconds), 1_700_000_000);
        assert_eq!(date(at, DateUnit::Milliseconds), 1_700_000_000_123);
        assert_eq!(date(at, DateUnit::Microseconds), 1_700_000_000_123_456);
    }

    #[test]
    fn identifiers_have_their_form_and_differ() {
        for version in [4u8, 7] {
            let (one, other) = (uuid(version), uuid(version));
            assert_ne!(one, other);
            let text = String::from_utf8(one).expect("ascii");
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{text}");
            assert_eq!(text.as_bytes()[14], b'0' + version, "{text}");
            assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{text}");
        }
        let ms = |text: &[u8]| i64::from_str_radix(&String::from_utf8_lossy(text).replace('-', "")[..12], 16).unwrap();
        assert!(ms(&uuid(7)) > 1_700_000_000_000);
    }

    #[test]
    fn phases_that_were_not_reached_are_minus_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut log = LogRecord::new(UNIX_EPOCH, start);
        log.request_started = at(5);
        assert_eq!(time(&log, Timer::RequestHead, at(100)), -1);
        assert_eq!(time(&log, Timer::RequestTotal, at(100)), -1);
        assert_eq!(time(&log, Timer::Idle, at(100)), 5);
        log.request_done = Some(at(15));
        log.queue_done = Some(at(17));
        log.connect_done = Some(at(20));
        assert_eq!(time(&log, Timer::ResponseHead, at(100)), -1);
        assert_eq!(time(&log, Timer::ResponseData, at(100)), -1);
        log.response_started = Some(at(50));
        let all = [Timer::RequestHead, Timer::RequestTotal, Timer::Queue, Timer::Connect, Timer::ResponseHead];
        assert_eq!(all.map(|timer| time(&log, timer, at(100))), [10, 15, 2, 3, 30]);
        let ends = [Timer::ResponseData, Timer::Total, Timer::User, Timer::Session, Timer::Handshake];
        assert_eq!(ends.map(|timer| time(&log, timer, at(100))), [50, 95, 95, 100, 0]);
    }
}
