//! Streams of payloads: nodes, properties and consumer groups.
//!
//! A payload with inconsistent groups is rejected: each ID of a consumer must be pending in its group, and each pending
//! entry must have one owner. Redis checks the former always and the latter only if it is configured to check payloads.

use super::encode::{TYPE_STREAM, TYPE_STREAM_3, VERSION_MAX, seal};
use super::{ElementTimes, Reader, Wrong, dump, restore};
use crate::object::limits::Limits;
use crate::object::stream::{Group, NEVER, StreamId, UNKNOWN};
use crate::object::{Kind, Object, Stream};
use crate::value::Value;

impl Reader<'_> {
    /// Returns a stream, which may have no entries.
    /// `times` are those of its consumers' successes, if they are stored apart from it.
    pub(super) fn stream(
        &mut self,
        kind: u8,
        mut times: Option<&mut ElementTimes<'_>>,
    ) -> Result<Value<'static>, Wrong> {
        let mut nodes = Vec::new();
        for _ in 0..self.plain_length()? {
            let master = self.string()?.into_bytes().try_into().map_err(|_| Wrong::Object)?;
            nodes.push((StreamId::of_bytes(master), self.string()?.into_bytes()));
        }
        let len = self.plain_length()?;
        let last = self.stream_id()?;
        let facts = match kind {
            TYPE_STREAM => None,
            _ => Some((self.stream_id()?, self.stream_id()?, self.plain_length()? as u64)),
        };
        let mut stream = Stream::parse(nodes, len, last, facts).ok_or(Wrong::Object)?;
        for _ in 0..self.plain_length()? {
            let name = self.string()?.into_bytes();
            let group = self.group(kind, &stream, times.as_deref_mut())?;
            if !stream.add_group(&name, group) {
                return Err(Wrong::Object);
            }
        }
        Ok(Value::Object(stream.into_object()))
    }

    fn group(&mut self, kind: u8, stream: &Stream, mut times: Option<&mut ElementTimes<'_>>) -> Result<Group, Wrong> {
        let last = self.stream_id()?;
        let read = match kind {
            TYPE_STREAM => stream.distance_to(last).map_or(UNKNOWN, |read| read as i64),
            _ => self.plain_length()? as i64,
        };
        let mut pending = Vec::new();
        for _ in 0..self.plain_length()? {
            let id = StreamId::of_bytes(self.array()?);
            pending.push((id, i64::from_le_bytes(self.array()?), self.plain_length()? as u64));
        }
        let mut consumers = Vec::new();
        for _ in 0..self.plain_length()? {
            let name = self.string()?.into_bytes();
            let seen_ms = i64::from_le_bytes(self.array()?);
            let active_ms = match &mut times {
                Some(times) => times.next(i64::MAX)?.unwrap_or(NEVER),
                None if kind == TYPE_STREAM_3 => i64::from_le_bytes(self.array()?),
                None => seen_ms,
            };
            let mut ids = Vec::new();
            for _ in 0..self.plain_length()? {
                ids.push(StreamId::of_bytes(self.array()?));
            }
            consumers.push((name, seen_ms, active_ms, ids));
        }
        Group::parse((last, read), pending, consumers).ok_or(Wrong::Object)
    }

    fn stream_id(&mut self) -> Result<StreamId, Wrong> {
        Ok(StreamId { ms: self.plain_length()? as u64, seq: self.plain_length()? as u64 })
    }
}

/// Restores untrusted bytes as the groups of a stream without entries. Must not panic; the bytes in memory are limited by
/// the payload's length, and groups are unchanged after another dump and restore.
pub(super) fn fuzz_groups(kind: u8, data: &[u8]) {
    let facts = if kind == TYPE_STREAM { 4 } else { 9 };
    let object = [&[kind][..], &[0].repeat(facts), data].concat();
    let max = object.len().saturating_mul(88);
    let limits = Limits::new();
    let Ok(Value::Object(Object::Stream(stream))) = restore(&seal(object, VERSION_MAX), &limits) else { return };
    assert!(stream.groups().bytes() <= max);
    let payload = dump(&Value::Object(stream.into_object()));
    let again = restore(&payload, &limits).expect("a payload of our own");
    assert!(dump(&again) == payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{damage, numbers};

    #[test]
    fn damaged_groups_are_refused_or_groups() {
        let id = |ms| StreamId { ms, seq: 0 };
        let mut next = numbers(29);
        let mut taken = 0;
        for round in 0..4_000 {
            let mut stream = Stream::empty();
            for name in [&b"g"[..], b"a long name of a group"].iter().take(1 + next(2)) {
                let mut group = Group::new(id(next(9) as u64), next(3) as i64 - 1);
                for (n, name) in [&b"c"[..], b"12", b"other"].iter().enumerate().take(next(4)) {
                    let (consumer, _) = group.see(name, next(2) as i64);
                    (0..next(4)).for_each(|m| group.assign(id((10 * n + m) as u64), consumer, 7, next(3) as u64));
                }
                stream.add_group(name, group);
            }
            let mut object = Vec::new();
            stream.dump(crate::rdb::encode::Form::PAYLOAD, &mut crate::rdb::encode::Out::whole(&mut object));
            let kind = object[0];
            let mut groups = object.split_off(10);
            damage(&mut groups, round % 3, &mut next);
            fuzz_groups(kind, &groups);
            object.extend(groups);
            taken += usize::from(restore(&seal(object, VERSION_MAX), &Limits::new()).is_ok());
        }
        assert!((1_400..3_900).contains(&taken), "{taken} were taken");
    }
}
