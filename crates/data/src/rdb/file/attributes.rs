//! The auxiliary field `sluicegate-key` that follows a key in a file of this store: attributes that no type of Redis has.
//!
//! ```text
//! flags (1: never evicted, 2: times)   [earliest time (8, little endian)   (0 or 1 + time - earliest, a length)…]
//! ```
//!
//! The times are those at which the elements of the value before expire, in their order; of a stream, those of its
//! consumers' last successes.

use super::super::encode::put_len;
use super::FaultKind;
use crate::object::elements::TIMELESS;
use crate::object::{Hash, Object, Set, Stream};

/// The name of the auxiliary field.
pub(super) const NAME: &[u8] = b"sluicegate-key";
const STICKY: u8 = 1;
const TIMES: u8 = 2;

/// The attributes of the key before a field.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Attributes<'f> {
    pub(super) is_sticky: bool,
    pub(super) times: Option<&'f [u8]>,
}

impl<'f> Attributes<'f> {
    pub(super) fn parse(bytes: &'f [u8]) -> Result<Attributes<'f>, FaultKind> {
        match bytes {
            [flags, times @ ..] if flags & !(STICKY | TIMES) == 0 => {
                let has_times = flags & TIMES != 0;
                if !has_times && !times.is_empty() {
                    return Err(FaultKind::Attributes);
                }
                Ok(Attributes { is_sticky: flags & STICKY != 0, times: has_times.then_some(times) })
            }
            _ => Err(FaultKind::Attributes),
        }
    }
}

/// Returns the field's value; [`None`] if there is nothing to tell. `times` is the value, if its type lacks times; those
/// that have expired at `now_ms` are excluded.
pub(super) fn encode(is_sticky: bool, times: Option<&Object>, now_ms: i64) -> Option<Vec<u8>> {
    let mut base_ms = i64::MAX;
    if let Some(object) = times {
        each_time(object, now_ms, |at_ms| base_ms = base_ms.min(at_ms.unwrap_or(i64::MAX)));
    }
    let is_of_consumers = matches!(times, Some(Object::Stream(stream)) if has_other_successes(stream));
    let has_times = base_ms != i64::MAX || is_of_consumers;
    if base_ms == i64::MAX {
        // No consumer has succeeded yet.
        base_ms = 0;
    }
    if !is_sticky && !has_times {
        return None;
    }
    let mut out = vec![if is_sticky { STICKY } else { 0 } | if has_times { TIMES } else { 0 }];
    if let (true, Some(object)) = (has_times, times) {
        out.extend(base_ms.to_le_bytes());
        each_time(object, now_ms, |at_ms| put_len(at_ms.map_or(0, |at_ms| (at_ms - base_ms) as usize + 1), &mut out));
    }
    Some(out)
}

/// Visits the times of elements in the order in which the value is written.
fn each_time(object: &Object, now_ms: i64, mut visit: impl FnMut(Option<i64>)) {
    match object {
        Object::Hash(hash) => hash.each_timed(now_ms, |_, _, at_ms| visit(at_ms)),
        Object::Stream(stream) if has_other_successes(stream) => {
            let consumers = stream.groups().iter().flat_map(|(_, group)| group.consumers());
            consumers.for_each(|consumer| visit(Some(consumer.active_ms).filter(|at_ms| *at_ms > 0)));
        }
        Object::Set(Set::Members(members)) => members.iter(now_ms).for_each(|member| visit(member.expiry())),
        _ => {}
    }
}

/// Returns whether a consumer's last success was at another time than its last attempt.
pub(super) fn has_other_successes(stream: &Stream) -> bool {
    let mut consumers = stream.groups().iter().flat_map(|(_, group)| group.consumers());
    consumers.any(|consumer| consumer.active_ms != consumer.seen_ms)
}

/// Returns whether some element has a time, and how many elements are left at this time.
pub(super) fn times_of(object: &Object, now_ms: i64) -> (bool, usize) {
    if object.earliest_ms().is_none() || now_ms == TIMELESS {
        return (object.earliest_ms().is_some(), object.len());
    }
    let living = match object {
        Object::Hash(hash) => Hash::living(hash, now_ms),
        Object::Set(set) => Set::living(set, now_ms),
        other => other.len(),
    };
    (true, living)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_checked() {
        assert_eq!(Attributes::parse(b"\x01").ok(), Some(Attributes { is_sticky: true, times: None }));
        assert_eq!(Attributes::parse(b"\x02ab").ok(), Some(Attributes { is_sticky: false, times: Some(b"ab") }));
        for wrong in [&b""[..], b"\x04", b"\x01x"] {
            assert!(Attributes::parse(wrong).is_err());
        }
    }
}
