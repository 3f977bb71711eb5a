//! Sample fetches, compiled: arguments resolved, names interned.
//!
//! A fetch that can occur several times (a header, a cookie) gives its last occurrence, as HAProxy's does; under a
//! [`Cursor`] it gives one after another, which is how a condition looks at all of them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::catalogue::Fetch;
use sluicegate_config::model::Arg;
use sluicegate_wire::http::{Message, Version};

use super::field;
use super::value::{Sample, Value};
use super::variables::VarRef;
use crate::lua::LuaCall;
use crate::stream::StreamContext;

/// Negative occurrences reach this far back (HAProxy's `MAX_HDR_HISTORY`).
const HISTORY: usize = 10;

/// Which message a fetch looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// Which list of values a fetch takes from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// A header's comma-separated elements.
    Elements,
    /// A header's lines.
    Lines,
    /// A cookie's values.
    Cookies,
}

/// The unit of `date`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateUnit {
    /// `s`.
    Seconds,
    /// `ms`.
    Milliseconds,
    /// `us`.
    Microseconds,
}

/// A fetch with its arguments.
#[derive(Clone, Debug)]
pub enum FetchCode {
    /// `str`, `int`, `bool`.
    Constant(Sample),
    /// `var`.
    Variable(VarRef),
    /// `date([offset[,unit]])`.
    Date {
        /// Added, in the unit.
        offset: i64,
        /// What is counted.
        unit: DateUnit,
    },
    /// `rand([range])`: below the range.
    Random {
        /// Above every result; 2^32 by default.
        range: u64,
    },
    /// `src`.
    Source,
    /// `src_port`.
    SourcePort,
    /// `dst`.
    Destination,
    /// `dst_port`.
    DestinationPort,
    /// `method`.
    Method,
    /// `path`.
    Path,
    /// `query`.
    Query,
    /// `url`.
    Url,
    /// `req.ver`.
    RequestVersion,
    /// `status`.
    Status,
    /// `fe_name`.
    FrontendName,
    /// `be_name`.
    BackendName,
    /// `hdr`, `fhdr`, `cook` of either side.
    Occurrence {
        /// Which message.
        side: Side,
        /// Which values.
        list: List,
        /// The header's or cookie's name; empty means any.
        name: Box<[u8]>,
        /// From 1, negative from the end, 0 for the last or, under a cursor, for all.
        occurrence: i64,
    },
    /// `lua.NAME`.
    Lua(std::sync::Arc<LuaCall>),
    /// `hdr_cnt` of either side.
    Count {
        /// Which message.
        side: Side,
        /// The header's name; empty means any.
        name: Box<[u8]>,
    },
}

/// How far a condition has looked through the occurrences of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Occurrences already given.
    pub seen: u32,
}

impl FetchCode {
    /// Resolves a fetch and its arguments.
    pub fn compile(fetch: Fetch, args: &[Arg]) -> Result<FetchCode, String> {
        let text = |index: usize| match args.get(index) {
            Some(Arg::Str(text)) => Ok(text.as_bytes().into()),
            None | Some(Arg::Absent) => Ok(Box::default()),
            Some(other) => Err(format!("argument {} of a fetch must be text, found {other:?}", index + 1)),
        };
        let int = |index: usize| match args.get(index) {
            Some(Arg::Int(number)) => Ok(Some(*number)),
            Some(Arg::Str(text)) => text.parse().map(Some).map_err(|_| format!("'{text}' is not an integer")),
            None | Some(Arg::Absent) => Ok(None),
            Some(other) => Err(format!("argument {} of a fetch must be an integer, found {other:?}", index + 1)),
        };
        let occurrence = |side, list| {
            Ok::<_, String>(FetchCode::Occurrence {
                side,
                list,
                name: text(0)?,
                occurrence: match list {
                    List::Cookies => 0,
                    List::Elements | List::Lines => int(1)?.unwrap_or(0),
                },
            })
        };
        Ok(match fetch {
            Fetch::AlwaysTrue => FetchCode::Constant(Sample::Bool(true)),
            Fetch::AlwaysFalse => FetchCode::Constant(Sample::Bool(false)),
            Fetch::Bool => FetchCode::Constant(Sample::Bool(match args.first() {
                Some(Arg::Str(text)) if matches!(&**text, "true" | "1") => true,
                Some(Arg::Str(text)) if matches!(&**text, "false" | "0") => false,
                Some(Arg::Int(number)) => *number != 0,
                other => return Err(format!("bool needs true or false, found {other:?}")),
            })),
            Fetch::Int => FetchCode::Constant(Sample::Int(int(0)?.ok_or("int needs an integer")?)),
            Fetch::Str => FetchCode::Constant(Sample::Str(text(0)?.into_vec())),
            Fetch::Var => match args.first() {
                Some(Arg::Var(name)) => {
                    FetchCode::Variable(VarRef::intern(name).ok_or("too many variable names in this process")?)
                }
                Some(Arg::Str(text)) => FetchCode::Variable(
                    VarRef::parse(text).ok_or_else(|| format!("'{text}' is not a variable's name"))?,
                ),
                other => return Err(format!("var needs a variable's name, found {other:?}")),
            },
            Fetch::Date => FetchCode::Date {
                offset: int(0)?.unwrap_or(0),
                unit: match &*text(1)? {
                    b"" | b"s" => DateUnit::Seconds,
                    b"ms" => DateUnit::Milliseconds,
                    b"us" => DateUnit::Microseconds,
                    other => return Err(format!("'{}' is not s, ms or us", String::from_utf8_lossy(other))),
                },
            },
            Fetch::Rand => match int(0)? {
                None => FetchCode::Random { range: 1 << 32 },
                Some(range) if range > 0 => FetchCode::Random { range: range as u64 },
                Some(range) => return Err(format!("rand needs a positive range, found {range}")),
            },
            Fetch::Src => FetchCode::Source,
            Fetch::SrcPort => FetchCode::SourcePort,
            Fetch::Dst => FetchCode::Destination,
            Fetch::DstPort => FetchCode::DestinationPort,
            Fetch::Method => FetchCode::Method,
            Fetch::Path => FetchCode::Path,
            Fetch::Query => FetchCode::Query,
            Fetch::Url => FetchCode::Url,
            Fetch::ReqVer => FetchCode::RequestVersion,
            Fetch::Status => FetchCode::Status,
            Fetch::FeName => FetchCode::FrontendName,
            Fetch::BeName => FetchCode::BackendName,
            Fetch::ReqHdr => occurrence(Side::Request, List::Elements)?,
            Fetch::ReqFhdr => occurrence(Side::Request, List::Lines)?,
            Fetch::ReqCook => occurrence(Side::Request, List::Cookies)?,
            Fetch::ResHdr => occurrence(Side::Response, List::Elements)?,
            Fetch::ResFhdr => occurrence(Side::Response, List::Lines)?,
            Fetch::ResCook => occurrence(Side::Response, List::Cookies)?,
            Fetch::Lua => FetchCode::Lua(std::sync::Arc::new(LuaCall::fetch(args)?)),
            Fetch::ReqHdrCnt => FetchCode::Count { side: Side::Request, name: text(0)? },
            Fetch::ResHdrCnt => FetchCode::Count { side: Side::Response, name: text(0)? },
        })
    }

    /// A condition must look at every occurrence of it.
    pub fn is_multiple(&self) -> bool {
        matches!(self, FetchCode::Occurrence { occurrence: 0, .. })
    }

    /// The sample, if there is one.
    pub fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self {
            FetchCode::Constant(sample) => Some(sample.as_value()),
            FetchCode::Variable(VarRef::Process(variable)) => variable.get().map(Value::from_sample),
            FetchCode::Variable(variable) => cx.variables.get_local(variable).map(Sample::as_value),
            FetchCode::Lua(call) => call.now(None, cx).map(Value::from_sample),
            FetchCode::Date { offset, unit } => Some(Value::Int(date(*offset, *unit))),
            FetchCode::Random { range } => Some(Value::Int(random_below(*range) as i64)),
            FetchCode::Source => cx.source.map(|address| Value::Ip(address.ip())),
            FetchCode::Destination => cx.destination.map(|address| Value::Ip(address.ip())),
            FetchCode::SourcePort => cx.source.map(port),
            FetchCode::DestinationPort => cx.destination.map(port),
            FetchCode::Method => request(cx).map(|message| Value::Method(std::borrow::Cow::Borrowed(message.method()))),
            FetchCode::Path => path(request(cx)?.target()).map(Value::text),
            FetchCode::Query => query(request(cx)?.target()).map(Value::text),
            FetchCode::Url => request(cx).map(|message| Value::text(message.target())),
            FetchCode::RequestVersion => request(cx).map(|message| Value::text(version(message.version()))),
            FetchCode::Status => match cx.response.status() {
                0 => None,
                status => Some(Value::Int(i64::from(status))),
            },
            FetchCode::FrontendName => Some(Value::text(cx.frontend.config.name.as_bytes())),
            FetchCode::BackendName => {
                let proxy = cx.backend.as_ref().unwrap_or(&cx.frontend);
                Some(Value::text(proxy.config.name.as_bytes()))
            }
            FetchCode::Occurrence { side, list, name, occurrence } => {
                let message = message(cx, *side)?;
                // Without a name the first cookie is meant, though the last one of a name.
                let occurrence = if *list == List::Cookies && name.is_empty() { 1 } else { *occurrence };
                values(message, *side, *list, name, |values| pick(values, occurrence)).map(Value::text)
            }
            FetchCode::Count { side, name } => {
                let count = field::header_values(message(cx, *side)?, name, false).count();
                Some(Value::Int(count as i64))
            }
        }
    }

    /// The occurrence after those the cursor has seen; the cursor moves on. Scanning from the front each time costs
    /// the square of the occurrences, which `tune.http.maxhdr` and the buffer bound, and needs no iterator to be kept
    /// while an operation waits.
    pub fn fetch_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        let FetchCode::Occurrence { side, list, name, occurrence: 0 } = self else {
            return if cursor.seen == 0 {
                cursor.seen = 1;
                self.fetch(cx)
            } else {
                None
            };
        };
        let message = message(cx, *side)?;
        let found = values(message, *side, *list, name, |values| values.nth(cursor.seen as usize));
        cursor.seen += 1;
        found.map(Value::text)
    }
}

fn port(address: SocketAddr) -> Value<'static> {
    Value::Int(i64::from(address.port()))
}

/// The request, if one was parsed: the context of a TCP stream holds an empty one.
fn request(cx: &StreamContext) -> Option<&Message> {
    (!cx.request.method().is_empty()).then_some(&cx.request)
}

fn message(cx: &StreamContext, side: Side) -> Option<&Message> {
    match side {
        Side::Request => request(cx),
        Side::Response => (cx.response.status() != 0).then_some(&cx.response),
    }
}

fn values<'a, R>(
    message: &'a Message,
    side: Side,
    list: List,
    name: &'a [u8],
    use_them: impl FnOnce(&mut dyn Iterator<Item = &'a [u8]>) -> R,
) -> R {
    match (list, side) {
        (List::Elements, _) => use_them(&mut field::header_values(message, name, false)),
        (List::Lines, _) => use_them(&mut field::header_values(message, name, true)),
        (List::Cookies, Side::Request) => use_them(&mut field::cookies(message, name)),
        (List::Cookies, Side::Response) => use_them(&mut field::set_cookies(message, name)),
    }
}

/// The occurrence by number: from 1, negative from the end, 0 the last.
fn pick<'a>(values: &mut dyn Iterator<Item = &'a [u8]>, occurrence: i64) -> Option<&'a [u8]> {
    if occurrence > 0 {
        return values.nth(usize::try_from(occurrence - 1).ok()?);
    }
    let back = if occurrence == 0 { 1 } else { usize::try_from(occurrence.unsigned_abs()).ok()? };
    if back > HISTORY {
        return None;
    }
    let mut ring: [&[u8]; HISTORY] = [b""; HISTORY];
    let mut count = 0;
    for value in values {
        ring[count % HISTORY] = value;
        count += 1;
    }
    (back <= count).then(|| ring[(count - back) % HISTORY])
}

fn version(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"1.0",
        Version::Http11 => b"1.1",
    }
}

/// The path of a target: from its first `/` (after the authority, in absolute form) up to the `?` or the end.
pub fn path(target: &[u8]) -> Option<&[u8]> {
    let path = path_and_query(target)?;
    let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
    Some(&path[..end])
}

/// Path and query of a target: `*` and the authority of CONNECT have none.
pub fn path_and_query(target: &[u8]) -> Option<&[u8]> {
    match target {
        [b'/', ..] => Some(target),
        _ => {
            let scheme = target.windows(3).position(|window| window == b"://")?;
            let authority = &target[scheme + 3..];
            memchr::memchr(b'/', authority).map(|slash| &authority[slash..])
        }
    }
}

/// The query of a target: after the first `?`.
pub fn query(target: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b'?', target).map(|mark| &target[mark + 1..])
}

/// The time since 1970 in the unit, and the offset in the same unit.
fn date(offset: i64, unit: DateUnit) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = match unit {
        DateUnit::Seconds => now.as_secs() as i64,
        DateUnit::Milliseconds => now.as_millis() as i64,
        DateUnit::Microseconds => now.as_micros() as i64,
    };
    now.saturating_add(offset)
}

/// A number below `range`, from a xorshift generator per thread: `rand` chooses and spreads, it keeps no secrets.
fn random_below(range: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    thread_local! {
        static STATE: Cell<u64> = Cell::new(std::collections::hash_map::RandomState::new().build_hasher().finish() | 1);
    }
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        // The high half of a product is an even spread over the range without a division.
        ((u128::from(x) * u128::from(range)) >> 64) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_every_form_have_their_path() {
        let check = |target: &str, path_: Option<&str>, query_: Option<&str>| {
            let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            assert_eq!(text(path(target.as_bytes())).as_deref(), path_, "path of {target}");
            assert_eq!(text(query(target.as_bytes())).as_deref(), query_, "query of {target}");
        };
        check("/a/b?c?d", Some("/a/b"), Some("c?d"));
        check("/a?", Some("/a"), Some(""));
        check("/a", Some("/a"), None);
        check("/a#f?x", Some("/a"), Some("x"));
        check("http://h/p?q", Some("/p"), Some("q"));
        check("http://h", None, None);
        check("*", None, None);
        check("h:443", None, None);
    }

    #[test]
    fn occurrences_count_from_both_ends() {
        let values = ["a", "b", "c"];
        let check = |occurrence: i64, expected: Option<&str>| {
            let found = pick(&mut values.iter().map(|value| value.as_bytes()), occurrence);
            assert_eq!(found, expected.map(str::as_bytes), "{occurrence}");
        };
        check(0, Some("c"));
        check(1, Some("a"));
        check(3, Some("c"));
        check(4, None);
        check(-1, Some("c"));
        check(-3, Some("a"));
        check(-4, None);
        check(-11, None);
        check(i64::MIN, None);
        check(i64::MAX, None);
    }

    #[test]
    fn random_numbers_fill_their_range() {
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random_below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (500..2_000).contains(count)), "{seen:?}");
    }

    #[test]
    fn dates_add_their_offset_in_their_unit() {
        let seconds = date(0, DateUnit::Seconds);
        assert!(seconds > 1_700_000_000);
        let hour = date(3600, DateUnit::Seconds) - seconds;
        assert!((3600..3660).contains(&hour), "{hour}");
        let ms = date(-5_000_000, DateUnit::Milliseconds) - seconds * 1000;
        assert!((-5_000_000..-4_900_000).contains(&ms), "{ms}");
        assert!(date(0, DateUnit::Microseconds) / 1_000_000 - seconds <= 60);
    }

    #[track_caller]
    fn check_error(fetch: Fetch, args: &[&str], expected: &str) {
        let args: Vec<_> = args.iter().map(|arg| Arg::Str(std::sync::Arc::from(*arg))).collect();
        assert_eq!(FetchCode::compile(fetch, &args).err().as_deref(), Some(expected));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check_error(Fetch::Int, &["x"], "'x' is not an integer");
        check_error(Fetch::Var, &["none"], "'none' is not a variable's name");
        check_error(Fetch::Date, &["0", "h"], "'h' is not s, ms or us");
        check_error(Fetch::Rand, &["0"], "rand needs a positive range, found 0");
    }
}
