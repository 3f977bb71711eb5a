//! Parts of messages captured for a stream's log line (HAProxy configuration manual 4.2, "capture").
//!
//! Headers are captured when a head is parsed, before any rule edits it; the last field of a name wins. The cookie is
//! captured after the rules, as in HAProxy, and the first one wins.

use std::ops::Range;

use sluicegate_config::model::Capture;
use sluicegate_wire::http::Message;

/// The slots of one side. The next stream reuses their memory.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    bytes: Vec<u8>,
    filled: Vec<Option<Range<u32>>>,
}

impl Slots {
    /// Stores a value in a slot; a previous value is replaced.
    pub fn set(&mut self, slot: usize, value: &[u8]) {
        if self.filled.len() <= slot {
            self.filled.resize(slot + 1, None);
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.filled[slot] = Some(start..self.bytes.len() as u32);
    }

    /// Returns the content of a slot.
    pub fn get(&self, slot: usize) -> Option<&[u8]> {
        let range = self.filled.get(slot)?.clone()?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    /// Empties every slot.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.filled.clear();
    }

    /// Captures the headers for which slots are configured.
    pub fn take_headers(&mut self, captures: &[Capture], message: &Message) {
        for (slot, capture) in captures.iter().enumerate() {
            let Some(name) = &capture.name else { continue };
            if let Some((_, value)) = message.fields_named(name.as_bytes()).last() {
                self.set(slot, &value[..value.len().min(capture.len)]);
            }
        }
    }
}

/// All captures of a stream.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// Slots of the request (`capture.req.hdr`, `%hr`).
    pub request: Slots,
    /// Slots of the response (`capture.res.hdr`, `%hs`).
    pub response: Slots,
    /// The client's cookie (`%CC`) in slot 0, the server's (`%CS`) in slot 1.
    pub cookies: Slots,
}

impl Captures {
    /// Empties all slots; their memory is kept.
    pub fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.cookies.clear();
    }

    /// Captures the first cookie of `message` whose `name=value` starts with the capture's name. In a response each
    /// field is one cookie, followed by its attributes.
    pub fn take_cookie(&mut self, capture: &Capture, message: &Message, response: bool) {
        let Some(name) = &capture.name else { return };
        let field: &[u8] = if response { b"set-cookie" } else { b"cookie" };
        let found = message.fields_named(field).find_map(|(_, value)| {
            let pairs = if response { 1 } else { usize::MAX };
            let mut pairs = value.split(|byte| matches!(byte, b';' | b',')).take(pairs).map(<[u8]>::trim_ascii);
            pairs.find(|pair| pair.starts_with(name.as_bytes()))
        });
        if let Some(pair) = found {
            self.cookies.set(usize::from(response), &pair[..pair.len().min(capture.len)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(name: &str, len: usize) -> Capture {
        Capture { name: Some(name.to_owned()), len }
    }

    #[test]
    fn the_last_header_and_the_first_cookie_are_kept() {
        let mut message = Message::new();
        for (name, value) in [("X-A", "one"), ("x-a", "longer"), ("Cookie", "b=1; sid=abc; sid=def"), ("Cookie", "z=1")]
        {
            message.add(name.as_bytes(), value.as_bytes());
        }
        let mut captures = Captures::default();
        captures.request.take_headers(&[capture("x-A", 4), capture("none", 9), capture("cookie", 1)], &message);
        assert_eq!([0, 1, 2, 3].map(|slot| captures.request.get(slot)), [Some(&b"long"[..]), None, Some(b"z"), None]);
        captures.take_cookie(&capture("sid=", 6), &message, false);
        assert_eq!((captures.cookies.get(0), captures.cookies.get(1)), (Some(&b"sid=ab"[..]), None));
        captures.clear();
        assert_eq!(captures.request.get(0), None);
    }
}
